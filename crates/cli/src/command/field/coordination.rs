//! What agents do together: sessions, tasks and handing them over.

use canon::{Map, Value};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::args::SenderArgs;
use super::with;
use crate::exit::Exit;
use crate::output::{Output, is_quiet, shorten};

/// A step of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SessionStep {
    /// Begin a session; prints its id
    Create,
    /// Become a member
    Join,
    /// Leave it
    Leave,
    /// Take nothing in for a while
    Pause,
    /// Go on
    Resume,
    /// End it; it can still be replayed
    End,
}

/// `reprise field session`
#[derive(Debug, Args)]
pub(crate) struct SessionArgs {
    /// What to do
    step: SessionStep,
    /// The session; the server names a new one when this is left out
    id: Option<String>,
    /// What it is for
    #[arg(long)]
    goal: Option<String>,
    /// A role that may join; may be given several times [default: all]
    #[arg(long = "admit", value_name = "ROLE")]
    admit: Vec<String>,
    #[command(flatten)]
    speaker: SenderArgs,
}

/// A step of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TaskStep {
    /// Make a task; prints its id
    Create,
    /// Give it to an agent
    Assign,
    /// Begin with it
    Start,
    /// Wait for something
    Block,
    /// Go on
    Unblock,
    /// It is done
    Complete,
    /// It came to nothing
    Fail,
    /// It is not wanted any more
    Cancel,
}

/// `reprise field task`
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    /// What to do
    step: TaskStep,
    /// The task; the server names a new one when this is left out
    id: Option<String>,
    /// What it is called
    #[arg(long)]
    title: Option<String>,
    /// What is to be reached
    #[arg(long)]
    goal: Option<String>,
    /// Who does it
    #[arg(long, value_name = "AGENT")]
    assignee: Option<String>,
    /// A task that has to be completed before; may be given several times
    #[arg(long, value_name = "TASK")]
    depends_on: Vec<String>,
    /// Why
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    speaker: SenderArgs,
}

/// A step of a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HandoffStep {
    /// Offer a task to another agent; prints the id of the offer
    Offer,
    /// Take an offered task
    Accept,
    /// Leave it
    Decline,
}

/// `reprise field handoff`
#[derive(Debug, Args)]
pub(crate) struct HandoffArgs {
    /// What to do
    step: HandoffStep,
    /// The task that is offered, or the offer that is answered
    id: String,
    /// Who should go on with it
    #[arg(long, value_name = "AGENT")]
    to: Option<String>,
    /// Why
    #[arg(long)]
    reason: Option<String>,
    /// A unit to read; may be given several times
    #[arg(long, value_name = "UNIT")]
    unit: Vec<String>,
    /// What is still open; may be given several times
    #[arg(long, value_name = "QUESTION")]
    open: Vec<String>,
    /// Where things stand
    #[arg(long, value_name = "TEXT")]
    summary: Option<String>,
    #[command(flatten)]
    speaker: SenderArgs,
}

fn word(step: impl ValueEnum) -> String {
    let value = step.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn text<'a>(answer: &'a Value, pointer: &str) -> &'a str {
    let found = answer.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default()
}

/// Says what became of something: its id alone for a program, and the words for a person.
fn print(speaker: &SenderArgs, answer: &Value, id: &str, words: &str) -> anyhow::Result<Exit> {
    let mut out = Output::stdout();
    let id = shorten(id, 256);
    match (speaker.place.json, is_quiet()) {
        (true, _) => out.json(answer)?,
        (false, true) => out.line(id)?,
        (false, false) => out.line(format_args!("{id} {}", shorten(words, 400)))?,
    }
    Ok(Exit::Ok)
}

pub(super) async fn session(args: SessionArgs) -> anyhow::Result<Exit> {
    let rules = match args.admit.is_empty() {
        true => Value::Null,
        false => json!({"roles": args.admit}),
    };
    let session = with(
        Map::new(),
        &[
            ("id", json!(args.id)),
            ("goal", json!(args.goal)),
            ("rules", rules),
        ],
    );
    let payload = json!({"action": word(args.step), "session": session});
    let answer = args.speaker.say("session", payload).await?;
    let members = answer.pointer("/session/members").and_then(Value::as_array);
    let members = members.into_iter().flatten().filter_map(Value::as_str);
    let members: Vec<&str> = members.collect();
    let words = format!(
        "is {}; members: {}",
        text(&answer, "/session/status"),
        members.join(", ")
    );
    print(&args.speaker, &answer, text(&answer, "/session/id"), &words)
}

pub(super) async fn task(args: TaskArgs) -> anyhow::Result<Exit> {
    let task = with(
        Map::new(),
        &[
            ("id", json!(args.id)),
            ("title", json!(args.title)),
            ("goal", json!(args.goal)),
            ("assignee", json!(args.assignee)),
            ("depends_on", json!(args.depends_on)),
        ],
    );
    let members = Map::from_iter([
        ("action".to_owned(), json!(word(args.step))),
        ("task".to_owned(), task),
    ]);
    let payload = with(members, &[("reason", json!(args.reason))]);
    let answer = args.speaker.say("coordinate", payload).await?;
    let assignee = match text(&answer, "/task/assignee") {
        "" => String::new(),
        agent => format!(", assigned to {agent}"),
    };
    let words = format!("is {}{assignee}", text(&answer, "/task/status"));
    print(&args.speaker, &answer, text(&answer, "/task/id"), &words)
}

pub(super) async fn handoff(args: HandoffArgs) -> anyhow::Result<Exit> {
    let action = Map::from_iter([("action".to_owned(), json!(word(args.step)))]);
    let payload = match args.step {
        HandoffStep::Offer => {
            let context = with(
                Map::new(),
                &[
                    ("unit_ids", json!(args.unit)),
                    ("open_questions", json!(args.open)),
                    ("summary", json!(args.summary)),
                ],
            );
            let more = [
                ("task_id", json!(args.id)),
                ("to_agent", json!(args.to)),
                ("reason", json!(args.reason)),
                ("context", context),
            ];
            with(action, &more)
        }
        HandoffStep::Accept | HandoffStep::Decline => {
            with(action, &[("handoff_id", json!(args.id))])
        }
    };
    let answer = args.speaker.say("handoff", payload).await?;
    let words = format!("is {}", text(&answer, "/status"));
    print(&args.speaker, &answer, text(&answer, "/handoff_id"), &words)
}
