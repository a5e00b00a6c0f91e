//! `reprise field`: the memory that agents share, from a terminal. Each command is one message of the memory protocol.

mod args;
mod clock;
mod coordination;
mod show;

use canon::{Map, Value};
use clap::Subcommand;
use serde_json::json;

use args::{
    AttuneArgs, CompactArgs, DetectArgs, FieldArgs, MergeArgs, RecordArgs, RegisterArgs,
    ReplayArgs, RetractArgs, SenderArgs, StatusArgs,
};

use crate::client::{Client, Target, Write, fresh_key};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, inform, is_quiet, shorten};

/// `reprise field`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what is in a field: agents, counts, open conflicts
    #[command(
        after_help = "Examples:\n  reprise field status\n  reprise field status --field research --json"
    )]
    Status(StatusArgs),
    /// Register an agent; the first one creates the field
    #[command(
        after_help = "Examples:\n  reprise field register ann --role analyst --interest markets\n  \
        reprise field register sam --role strategist --authority 6"
    )]
    Register(RegisterArgs),
    /// Record something that an agent knows, and why
    #[command(
        after_help = "Examples:\n  reprise field record 'The market grows by 23% a year' --agent ann \\\n    \
        --purpose 'size the market' --score 0.8 --reasoning 'two reports' --task market\n  \
        reprise field record 'It grows by 14%' --agent bob --purpose 'check' --score 0.4 \\\n    \
        --reasoning 'an old report' --relation contradicts=mem_0123"
    )]
    Record(RecordArgs),
    /// Show what an agent should know now, best first
    #[command(after_help = "Examples:\n  reprise field attune --agent sam\n  \
        reprise field attune --agent sam --hint 'market growth' --max 3")]
    Attune(AttuneArgs),
    /// List conflicts, or look for some
    #[command(
        after_help = "Examples:\n  reprise field detect --agent sam\n  reprise field detect --agent sam --scan\n  \
        reprise field detect --agent sam --all --json"
    )]
    Detect(DetectArgs),
    /// Settle a conflict
    #[command(
        after_help = "`authority` and `vote` name the unit that stays with --winner, `synthesis` says with --synthesis what replaces\n\
        both. `vote` counts one vote for each agent, and ends when more than half of them agree.\n\n\
        Example:\n  reprise field merge conflict_0123 --agent sam --strategy confidence_weighted \\\n    \
        --rationale 'the better source'"
    )]
    Merge(MergeArgs),
    /// Explain how something came about: the reasons behind it, in order
    #[command(
        after_help = "The picture has one row per event and needs no colours; Graphviz draws a .dot file.\n\n\
        Examples:\n  reprise field replay conflict conflict_0123 --agent sam\n  \
        reprise field replay decision mem_0123 --agent sam \\\n    --depth full_trace --svg reasons.svg"
    )]
    Replay(ReplayArgs),
    /// Take back what an agent recorded; the log keeps it and says why
    #[command(
        after_help = "Only its author takes a unit back, or the operator (authority 10). It is no longer shown as memory.\n\n\
        Example:\n  reprise field retract mem_0123 --agent ann --reason 'measured wrong'"
    )]
    Retract(RetractArgs),
    /// Make the memory smaller; the log stays whole
    #[command(
        after_help = "Examples:\n  reprise field compact archive --agent sam --older-than 1000\n  \
        reprise field compact summarize --agent sam --type observation\n  \
        reprise field compact purge --agent op --status retracted --reason 'asked to forget'"
    )]
    Compact(CompactArgs),
    /// Begin a session, join or leave it, pause, resume or end it: what is recorded in it is for its members
    #[command(
        after_help = "A session is named with --session in other commands.\n\n\
        Examples:\n  reprise field session create market --goal 'size the market' --agent ann\n  \
        reprise field session join market --agent bob\n  \
        reprise field record 'It grows' --agent bob --session market --purpose p --score 0.5 --reasoning r"
    )]
    Session(coordination::SessionArgs),
    /// Make a task, or take it a step further
    #[command(
        after_help = "Examples:\n  reprise field task create size --title 'Size the market' --assignee ann --agent ann\n  \
        reprise field task start size --agent ann"
    )]
    Task(coordination::TaskArgs),
    /// Offer a task to another agent, or answer such an offer
    #[command(
        after_help = "Examples:\n  reprise field handoff offer size --to bob --reason 'you know it' --agent ann\n  \
        reprise field handoff accept handoff_0123 --agent bob"
    )]
    Handoff(coordination::HandoffArgs),
}

/// A field on a server.
struct Field {
    client: Client,
    name: Option<String>,
}

impl Field {
    fn at(place: &FieldArgs) -> anyhow::Result<Self> {
        Ok(Self {
            client: Client::new(Target::find(&place.connection)?)?,
            name: place.field.clone(),
        })
    }

    fn path<'a>(&'a self, rest: &[&'a str]) -> Vec<&'a str> {
        let base: &[&str] = match &self.name {
            Some(name) => &["akashik", "fields", name, "v1"],
            None => &["akashik", "v1"],
        };
        [base, rest].concat()
    }

    async fn view(&self, rest: &[&str]) -> anyhow::Result<Value> {
        self.client.get(&self.path(rest), &[]).await
    }

    async fn send(
        &self,
        operation: &str,
        agent: &str,
        session: Option<&str>,
        payload: Value,
    ) -> anyhow::Result<Value> {
        let path = self.path(&[operation]);
        message(&self.client, &path, agent, session, payload).await
    }
}

/// A process speaks to one field.
static CLOCK: clock::Clock = clock::Clock::new();

/// Sends a message to a field; the last part of the path is its operation.
pub(crate) async fn message(
    client: &Client,
    path: &[&str],
    agent: &str,
    session: Option<&str>,
    payload: Value,
) -> anyhow::Result<Value> {
    let operation = path.last().map(|operation| operation.to_uppercase());
    // One id for all repetitions: a message that arrived is not done again when its answer was lost.
    let id = fresh_key()?;
    let envelope = json!({
        "protocol": "akashik", "version": "0.1.0", "id": id, "operation": operation,
        "agent_id": agent, "session_id": session, "epoch": CLOCK.epoch(), "payload": payload,
    });
    let write = Write {
        body: envelope,
        key: &id,
    };
    let answer = client.post(path, write).await?;
    CLOCK.hear(&answer);
    Ok(answer)
}

impl SenderArgs {
    async fn say(&self, operation: &str, payload: Value) -> anyhow::Result<Value> {
        let session = self.session.as_deref();
        let field = Field::at(&self.place)?;
        field.send(operation, &self.agent, session, payload).await
    }
}

/// Adds members that have a value.
fn with(mut members: Map<String, Value>, more: &[(&str, Value)]) -> Value {
    for (name, value) in more {
        let is_empty = value.as_array().is_some_and(Vec::is_empty);
        if !value.is_null() && !is_empty {
            members.insert((*name).to_owned(), value.clone());
        }
    }
    Value::Object(members)
}

/// Runs one of them.
pub(crate) async fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Status(args) => status(args).await,
        Command::Register(args) => register(args).await,
        Command::Record(args) => record(args).await,
        Command::Attune(args) => attune(args).await,
        Command::Detect(args) => detect(args).await,
        Command::Merge(args) => merge(args).await,
        Command::Replay(args) => replay(args).await,
        Command::Retract(args) => retract(args).await,
        Command::Compact(args) => compact(args).await,
        Command::Session(args) => coordination::session(args).await,
        Command::Task(args) => coordination::task(args).await,
        Command::Handoff(args) => coordination::handoff(args).await,
    }
}

async fn status(args: StatusArgs) -> anyhow::Result<Exit> {
    let field = Field::at(&args.place)?;
    let status = field.view(&["field", "status"]).await?;
    let agents = field.view(&["agents"]).await?;
    let conflicts = field.view(&["conflicts"]).await?;
    // A field that nobody made answers like an empty one.
    if let (Some(name), Some(0)) = (&field.name, status.get("epoch").and_then(Value::as_u64)) {
        let hint =
            "the first `reprise field register` with a key that has `field:admin` creates it";
        let problem = Problem::new(format!("there is no field `{name}`"), hint);
        return Err(problem.answers_no().into());
    }
    let mut out = Output::stdout();
    if args.place.json {
        let (agents, conflicts) = (agents.get("agents"), conflicts.get("conflicts"));
        out.json(&json!({"status": status, "agents": agents, "conflicts": conflicts}))?;
    } else {
        show::status(&mut out, &status, &agents, &conflicts)?;
    }
    Ok(Exit::Ok)
}

async fn register(args: RegisterArgs) -> anyhow::Result<Exit> {
    let payload = with(
        Map::new(),
        &[
            ("id", json!(args.agent)),
            ("role", json!(args.role)),
            ("interests", json!(args.interest)),
            ("authority", json!(args.authority)),
        ],
    );
    let field = Field::at(&args.place)?;
    let answer = match field.send("register", &args.agent, None, payload).await {
        Ok(answer) => answer,
        Err(error) if !args.place.json && error.to_string().contains("(AGENT_ID_TAKEN)") => {
            // Saying the same twice is no fault.
            let agents = field.view(&["agents"]).await?;
            let agents = agents.get("agents").and_then(Value::as_array);
            let is_known = agents.into_iter().flatten().any(|known| {
                let is = |name: &str, value: &str| {
                    known.get(name).and_then(Value::as_str) == Some(value)
                };
                is("id", &args.agent) && is("role", &args.role)
            });
            if !is_known {
                return Err(error);
            }
            inform(format_args!("{} is already registered", args.agent));
            return Ok(Exit::Ok);
        }
        Err(error) => return Err(error),
    };
    let mut out = Output::stdout();
    match args.place.json {
        true => out.json(&answer)?,
        false => inform(format_args!(
            "{} is registered as {}",
            args.agent, args.role
        )),
    }
    Ok(Exit::Ok)
}

async fn record(args: RecordArgs) -> anyhow::Result<Exit> {
    let intent = with(
        Map::new(),
        &[
            ("purpose", json!(args.purpose)),
            ("task_id", json!(args.task)),
            ("question", json!(args.question)),
        ],
    );
    let confidence = with(
        Map::new(),
        &[
            ("score", json!(args.score)),
            ("reasoning", json!(args.reasoning)),
            ("evidence", json!(args.evidence)),
        ],
    );
    let relations: Vec<Value> = args
        .relation
        .iter()
        .map(|(kind, unit)| json!({"type": kind, "target_id": unit}))
        .collect();
    let is_sure = confidence
        .as_object()
        .is_some_and(|given| !given.is_empty());
    let payload = with(
        Map::new(),
        &[
            (
                "mode",
                json!(if args.draft { "draft" } else { "committed" }),
            ),
            ("type", json!(args.kind)),
            ("content", json!(args.content)),
            ("intent", intent),
            ("confidence", if is_sure { confidence } else { Value::Null }),
            ("relations", json!(relations)),
        ],
    );
    let answer = args.speaker.say("record", payload).await?;
    let mut out = Output::stdout();
    if args.speaker.place.json {
        out.json(&answer)?;
        return Ok(Exit::Ok);
    }
    show::recorded(&mut out, &answer)?;
    Ok(Exit::Ok)
}

/// Returns the role that an agent is registered with.
async fn role_of(speaker: &SenderArgs) -> anyhow::Result<String> {
    let agents = Field::at(&speaker.place)?.view(&["agents"]).await?;
    let agents = agents.get("agents").and_then(Value::as_array);
    let is_speaker = |agent: &&Value| agent.get("id") == Some(&json!(speaker.agent));
    let agent = agents.into_iter().flatten().find(is_speaker);
    let role = agent.and_then(|agent| agent.get("role")?.as_str());
    role.map(str::to_owned).ok_or_else(|| {
        let hint = "register it with `reprise field register`";
        Problem::new(
            format!("there is no agent `{}` in this field", speaker.agent),
            hint,
        )
        .answers_no()
        .into()
    })
}

async fn attune(args: AttuneArgs) -> anyhow::Result<Exit> {
    let role = match args.role {
        Some(role) => role,
        None => role_of(&args.speaker).await?,
    };
    let scope = with(
        Map::new(),
        &[
            ("role", json!(role)),
            ("max_units", json!(args.max)),
            ("active_task_id", json!(args.task)),
            ("interests", json!(args.interest)),
            ("since_epoch", json!(args.since)),
            ("include_own", json!(args.own)),
            ("include_archived", json!(args.archived)),
        ],
    );
    let payload = with(
        Map::new(),
        &[("scope", scope), ("context_hint", json!(args.hint))],
    );
    let answer = args.speaker.say("attune", payload).await?;
    let mut out = Output::stdout();
    match args.speaker.place.json {
        true => out.json(&answer)?,
        false => show::attuned(&mut out, &answer)?,
    }
    Ok(Exit::Ok)
}

async fn detect(args: DetectArgs) -> anyhow::Result<Exit> {
    let mode = match (&args.check, args.scan) {
        (Some(_), _) => "check",
        (None, true) => "scan",
        (None, false) => "list",
    };
    let open = ["detected", "resolving", "escalated"];
    let filter = (!args.all).then(|| json!({"status": open}));
    let mut conflicts = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let members = Map::from_iter([("mode".to_owned(), json!(mode))]);
        let payload = with(
            members,
            &[
                ("target_id", json!(args.check)),
                ("filter", json!(filter)),
                ("cursor", cursor),
            ],
        );
        let mut answer = args.speaker.say("detect", payload).await?;
        if let Some(Value::Array(page)) = answer.get_mut("conflicts").map(Value::take) {
            conflicts.extend(page);
        }
        cursor = match answer.get_mut("next_cursor").map(Value::take) {
            Some(next) if !next.is_null() => next,
            _ => break,
        };
    }
    let mut out = Output::stdout();
    match args.speaker.place.json {
        true => out.json(&Value::Array(conflicts))?,
        false => show::conflicts(&mut out, &json!({"conflicts": conflicts}))?,
    }
    Ok(Exit::Ok)
}

async fn merge(args: MergeArgs) -> anyhow::Result<Exit> {
    let resolution = with(
        Map::new(),
        &[
            ("rationale", json!(args.rationale)),
            ("winner_id", json!(args.winner)),
            ("synthesis", json!(args.synthesis)),
        ],
    );
    let payload = json!({
        "conflict_id": args.conflict, "strategy": args.strategy, "resolution": resolution,
    });
    let answer = args.speaker.say("merge", payload).await?;
    let mut out = Output::stdout();
    match args.speaker.place.json {
        true => out.json(&answer)?,
        false => show::merged(&mut out, &answer)?,
    }
    Ok(Exit::Ok)
}

async fn replay(args: ReplayArgs) -> anyhow::Result<Exit> {
    let payload =
        json!({"target_type": args.kind.word(), "target_id": args.id, "depth": args.depth});
    let answer = args.speaker.say("replay", payload).await?;
    let field = Field::at(&args.speaker.place)?;
    for (file, format) in [(&args.dot, "dot"), (&args.svg, "svg")] {
        let Some(file) = file else { continue };
        let query = [
            ("target_type", args.kind.word()),
            ("target_id", args.id.as_str()),
            ("format", format),
        ];
        let path = field.path(&["field", "graph"]);
        let drawn = field.client.get_bytes(&path, &query).await?;
        std::fs::write(file, drawn).or_hint(
            format_args!("cannot write `{}`", file.display()),
            "check the folder and its rights",
        )?;
        if !is_quiet() {
            inform(format_args!("wrote {}", file.display()));
        }
    }
    let mut out = Output::stdout();
    match args.speaker.place.json {
        true => out.json(&answer)?,
        false => show::replayed(&mut out, &answer)?,
    }
    Ok(Exit::Ok)
}

async fn retract(args: RetractArgs) -> anyhow::Result<Exit> {
    let field = Field::at(&args.place)?;
    let body = json!({"agent_id": args.agent, "unit_id": args.unit, "reason": args.reason});
    let key = fresh_key()?;
    let path = field.path(&["field", "retract"]);
    let answer = field.client.post(&path, Write { body, key: &key }).await?;
    match args.place.json {
        true => Output::stdout().json(&answer)?,
        false => inform(format_args!("{} is retracted", shorten(&args.unit, 80))),
    }
    Ok(Exit::Ok)
}

async fn compact(args: CompactArgs) -> anyhow::Result<Exit> {
    let filter = with(
        Map::new(),
        &[
            ("max_age_epochs", json!(args.older_than)),
            ("types", json!(args.kind)),
            ("status", json!(args.status)),
            ("session_id", json!(args.of_session)),
        ],
    );
    let members = Map::from_iter([
        ("strategy".to_owned(), json!(args.strategy)),
        ("filter".to_owned(), filter),
    ]);
    let payload = with(members, &[("reason", json!(args.reason))]);
    let answer = args.speaker.say("compact", payload).await?;
    let mut out = Output::stdout();
    match args.speaker.place.json {
        true => out.json(&answer)?,
        false => show::compacted(&mut out, &args.strategy, &answer)?,
    }
    Ok(Exit::Ok)
}
