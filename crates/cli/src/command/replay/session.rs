//! A replay of a session on a server: its tasks one after the other, in a fork of it.

use std::collections::BTreeMap;
use std::time::Duration;

use canon::Value;
use runs::replay::question;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::keys::{RecordedKeys, recorded};
use super::online::{read_artifacts, upload};
use super::report::Report;
use super::request::{Names, PreparedRequest, given_keys, prepare};
use super::{ReplayArgs, trial};
use crate::client::{Client, Event, Page, Target, Write, fresh_key};
use crate::exit::{Exit, Problem, is_refused};
use crate::output::{Output, Paint, Progress, Table, inform, shorten};

/// How often the fork is asked for news.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long nothing may happen before nobody is believed to be at work.
const SILENCE_MAX: Duration = Duration::from_secs(600);

/// Replays and tells.
pub(super) async fn run(args: &ReplayArgs, session: &str) -> anyhow::Result<Exit> {
    if args.list || args.receipt || args.from.is_some() {
        return Err(Problem::new(
            "--list, --receipt and --from are about one task",
            format!("`reprise task list --session {session}` shows the tasks of the session"),
        )
        .into());
    }
    let client = Client::new(Target::find(&args.connection)?)?;
    let asked = changed_tasks(&client, args).await?;
    let mut prepared = prepare(args, Names::TasksAndKeys, |name| {
        let (task, key) = name.split_once('/')?;
        question(&asked.get(task)?.source, key)
    })?;
    rehearse(&client, &asked, args, &prepared).await?;
    let source = client.get(&["v1", "sessions", session], &[]).await?;
    let workspace = text(&source, "workspace_id").map(str::to_owned);
    for large in prepared.take_large() {
        let id = upload(&client, session, workspace.clone(), &large).await?;
        prepared.place(&large.key, &id);
    }
    let body = prepared.value();
    let mode = text(&body, "mode").unwrap_or("exact").to_owned();
    let key = fresh_key()?;
    let path = ["v1", "sessions", session, "replay"];
    let fork = client.post(&path, Write { body, key: &key }).await?;
    let Some(fork) = text(&fork, "id") else {
        return Err(Problem::new(
            "the server's answer is not a session",
            "check that the address is that of an Agents Protocol server",
        )
        .into());
    };
    if args.no_wait {
        let mut out = Output::stdout();
        match args.json {
            true => out.json(&json!({"session_id": fork, "source_session_id": session}))?,
            false => out.line(fork)?,
        }
        return Ok(Exit::Ok);
    }
    let mut told = SessionReplayStatus {
        fork: fork.to_owned(),
        source: session.to_owned(),
        mode,
        ..SessionReplayStatus::default()
    };
    let progress = Progress::begin("replaying");
    told.listen(&client).await?;
    drop(progress);
    for report in told.replays.values_mut() {
        let task = client.task(&report.task).await?;
        report.status = task.status.to_string();
        if report.failure.is_null() {
            report.failure = task.raw.get("failure").cloned().unwrap_or_default();
        }
        report.receipt = text(&task.raw, "receipt_id").map(str::to_owned);
    }
    told.print(args.json)?;
    Ok(told.exit())
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str)
}

/// Reads the records of the Tasks whose answers are changed.
async fn changed_tasks(
    client: &Client,
    args: &ReplayArgs,
) -> anyhow::Result<BTreeMap<String, RecordedKeys>> {
    let mut found = BTreeMap::new();
    for name in given_keys(args) {
        // What names no task is told when the request is put together.
        let Some((task, _)) = name.split_once('/') else {
            continue;
        };
        if !task.starts_with("task_") || found.contains_key(task) {
            continue;
        }
        match recorded(client, task).await {
            Ok(recorded) => found.insert(task.to_owned(), recorded),
            // Which tasks of the session are replayed is for the server to say.
            Err(error) if is_refused(&error, &["resource_not_found", "conflict"]) => continue,
            Err(error) => return Err(error),
        };
    }
    Ok(found)
}

/// Refuses changes that their run would never ask for, before the server knows of a replay. Each Task is replayed from its
/// own record, whatever came of the others.
async fn rehearse(
    client: &Client,
    recorded: &BTreeMap<String, RecordedKeys>,
    args: &ReplayArgs,
    prepared: &PreparedRequest,
) -> anyhow::Result<()> {
    let mut artifacts = read_artifacts(client, args).await?;
    let body = prepared.clone().into_local(&mut artifacts);
    let given = body.get("override").and_then(Value::as_object);
    for (task, recorded) in recorded {
        if !recorded.is_whole {
            let names = given_keys(args).filter_map(|name| name.split_once('/'));
            let keys = names.filter(|(of, _)| of == task).map(|(_, key)| key);
            trial::check_names(&recorded.source, keys)?;
            continue;
        }
        let own = given.into_iter().flatten().filter_map(|(name, value)| {
            let (of, key) = name.split_once('/')?;
            (of == task).then(|| (key.to_owned(), value.clone()))
        });
        let mut body = body.clone();
        body.insert("override".to_owned(), Value::Object(own.collect()));
        trial::check(&recorded.source, &body, &artifacts, false)?;
    }
    Ok(())
}

/// What a fork tells of the replays in it.
#[derive(Debug, Default)]
struct SessionReplayStatus {
    fork: String,
    source: String,
    mode: String,
    /// By the id of the replay.
    replays: BTreeMap<String, Report>,
    /// The ids of the replays as they came.
    order: Vec<String>,
    /// The payload of `session.replayed`.
    end: Value,
}

impl SessionReplayStatus {
    /// Reads the events of the fork until it says that it is done.
    async fn listen(&mut self, client: &Client) -> anyhow::Result<()> {
        let mut after: Option<String> = None;
        let mut heard = Instant::now();
        loop {
            let mut query = vec![("limit", "200")];
            if let Some(after) = &after {
                query.push(("after_event_id", after));
            }
            let path = ["v1", "sessions", &self.fork, "events"];
            let page = Page::read(&client.get(&path, &query).await?)?;
            for raw in page.data {
                heard = Instant::now();
                let event = Event::read(raw)?;
                self.event(&event);
                after = Some(event.id);
            }
            if !self.end.is_null() {
                return Ok(());
            }
            if heard.elapsed() > SILENCE_MAX {
                let fork = &self.fork;
                return Err(Problem::new(
                    format!("`{fork}` has been silent for {} s", SILENCE_MAX.as_secs()),
                    format!("`reprise task list --session {fork}` shows how far it came"),
                )
                .into());
            }
            if page.next.is_none() {
                sleep(LOOK_EVERY).await;
            }
        }
    }

    fn event(&mut self, event: &Event) {
        if event.kind == "session.replayed" {
            self.end = event.payload.clone();
        }
        let Some(task) = text(&event.raw, "task_id") else {
            return;
        };
        if event.kind == "task.submitted" {
            let source = event.payload.pointer("/replay/source_task_id");
            let report = Report {
                task: task.to_owned(),
                source: source
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned(),
                mode: self.mode.clone(),
                ..Report::default()
            };
            self.order.push(task.to_owned());
            self.replays.insert(task.to_owned(), report);
        }
        if let Some(report) = self.replays.get_mut(task) {
            report.event(event);
        }
    }

    fn reports(&self) -> impl Iterator<Item = &Report> {
        self.order.iter().filter_map(|id| self.replays.get(id))
    }

    fn completed(&self) -> bool {
        self.end.get("completed") == Some(&Value::Bool(true))
    }

    /// Yes when every replay is one.
    fn exit(&self) -> Exit {
        let all = self.reports().all(|report| report.exit() == Exit::Ok);
        match self.completed() && all {
            true => Exit::Ok,
            false => Exit::No,
        }
    }

    fn print(&self, as_json: bool) -> anyhow::Result<()> {
        let mut out = Output::stdout();
        let skipped = self.end.get("skipped").and_then(Value::as_array);
        let skipped = skipped.map(Vec::as_slice).unwrap_or_default();
        if as_json {
            return out.json(&json!({
                "session_id": self.fork,
                "source_session_id": self.source,
                "mode": self.mode,
                "completed": self.completed(),
                "tasks": self.reports().map(Report::to_json).collect::<Vec<_>>(),
                "skipped": skipped,
            }));
        }
        let mut head = Table::default();
        for (name, value) in [
            ("replay", &self.fork),
            ("of", &self.source),
            ("mode", &self.mode),
        ] {
            let name = (name.to_owned(), Some(Paint::Quiet));
            head.row([name, (shorten(value, 120), None)]);
        }
        head.print(&mut out, "")?;
        out.line("")?;
        let mut table = Table::new(&["TASK", "REPLAY", "RESULT"]);
        for report in self.reports() {
            let (verdict, paint) = report.verdict();
            let verdict = match text(&report.failure, "message") {
                Some(message) => format!("{verdict}: {message}"),
                None => verdict,
            };
            table.row([
                (shorten(&report.source, 80), None),
                (shorten(&report.task, 80), None),
                (shorten(&verdict, 200), Some(paint)),
            ]);
        }
        for left in skipped {
            let reason = text(left, "reason").unwrap_or_default();
            table.row([
                (shorten(text(left, "task_id").unwrap_or_default(), 80), None),
                ("-".to_owned(), Some(Paint::Quiet)),
                (format!("left out: it {reason}"), Some(Paint::Quiet)),
            ]);
        }
        table.print(&mut out, "")?;
        if !self.completed() {
            inform("the first replay that fails ends the replay of a session");
        }
        Ok(())
    }
}
