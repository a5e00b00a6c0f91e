//! `reprise demo`: the tour, on a real server with real requests.
//!
//! Owns the story and its words. Everything it shows happened: it talks to the server as any client would.

mod contracts;
mod crash;
mod memory;
mod replay;

use std::path::PathBuf;
use std::pin::pin;

use serde_json::{Map, Value, json};
use store::Options;

use crate::args::{Connection, DemoArgs};
use crate::client::{
    Client, Cursor, Event, Flow, PROTOCOL_VERSION, Page, Target, Task, follow, fresh_key,
};
use crate::command::key::KEY_FILE;
use crate::command::log;
use crate::command::serve::{Server, Signals};
use crate::command::task::{
    DecisionTarget, NewTask, decide, ending, new_session, paint, stop, user_message,
};
use crate::config::Settings;
use crate::exit::{Exit, OrHint};
use crate::output::{
    KIND_WIDTH, Output, Paint, Table, event_line, is_told_elsewhere, shorten, width, wrapped,
};
use crate::receipt::Findings;

const HINT: &str = "run the demo again";

/// Takes the tour.
pub(crate) fn run(args: DemoArgs) -> anyhow::Result<Exit> {
    let Some(data) = args.data else {
        let hint = "give a directory with --data";
        let temporary = tempfile::Builder::new()
            .prefix("reprise-demo-")
            .tempdir()
            .or_hint("cannot create a temporary directory", hint)?;
        let data = temporary.path().to_owned();
        // The directory goes when everything that works in it has gone.
        let exit = crate::wait(host(data, args.once, false));
        temporary
            .close()
            .or_hint("the temporary directory is still there", hint)?;
        return exit;
    };
    crate::wait(host(data, args.once, true))
}

/// Runs a server and shows the tour on it.
async fn host(data: PathBuf, once: bool, kept: bool) -> anyhow::Result<Exit> {
    let signals = Signals::new()?;
    let mut settings = Settings {
        data: data.clone(),
        examples: true,
        ..Settings::default()
    };
    // Beside the data directory: no tool may have a folder in it.
    let stage = tempfile::Builder::new()
        .prefix("reprise-demo-files-")
        .tempdir()
        .or_hint(
            "cannot create a temporary directory",
            "check that `TMPDIR` can be written",
        )?;
    replay::set_stage(&mut settings, stage.path())?;
    contracts::set_stage(&mut settings, stage.path())?;
    // The usual port when nobody has it, otherwise any. Another failure fails again, and is told then.
    let server = match Server::start(&settings, Options::default()).await {
        Ok(server) => server,
        Err(_) => {
            "127.0.0.1:0".clone_into(&mut settings.listen);
            Server::start(&settings, Options::default()).await?
        }
    };
    let place = Place {
        url: server.url.clone(),
        data,
        stage: stage.path().to_owned(),
        once,
        kept,
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async {
        // Dropping the other end stops the server.
        let _ = stopped.await;
    }));
    let mut signal = pin!(signals.stop());
    let toured = tokio::select! {
        toured = tour(&place) => toured.map(|()| Exit::Ok),
        () = &mut signal => Ok(Exit::Fault),
    };
    if matches!(toured, Ok(Exit::Ok)) && !once {
        signal.await;
    }
    drop(stop);
    serving
        .await
        .or_hint("the server did not stop", "run the demo again")?;
    toured
}

/// Where the tour takes place.
struct Place {
    url: String,
    data: PathBuf,
    /// What the tour's agents work with.
    stage: PathBuf,
    once: bool,
    kept: bool,
}

async fn tour(place: &Place) -> anyhow::Result<()> {
    let connection = Connection {
        url: Some(place.url.clone()),
        key: None,
        data: place.data.clone(),
        ca: None,
        allow_plain_http: false,
    };
    let client = Client::new(Target::find(&connection)?)?;
    let approver = Client::new(Target::find_approver(&connection)?)?;
    let session = new_session(&client, None, &fresh_key()?).await?;
    let mut guide = Guide {
        out: Output::stdout(),
        client: &client,
        approver: &approver,
        session,
        tasks: Vec::new(),
    };
    guide.welcome(place)?;
    for (number, chapter) in CHAPTERS.iter().enumerate() {
        match chapter.act {
            Act::Govern => guide.contracts(number + 1, chapter, place).await?,
            Act::Nothing | Act::Cancel(_) => {
                guide.chapter(number + 1, chapter).await?;
            }
        }
    }
    guide.crash(CHAPTERS.len() + 1).await?;
    guide.replay(CHAPTERS.len() + 2, place).await?;
    guide.record(place).await?;
    guide.prove().await?;
    guide.memory(CHAPTERS.len() + 5).await?;
    guide.farewell(place)
}

/// A task of the tour, and what we do about it.
struct Chapter {
    title: &'static str,
    why: &'static str,
    workflow: &'static str,
    text: &'static str,
    act: Act,
}

/// What we do when a task waits, or works for ever.
enum Act {
    Nothing,
    Govern,
    Cancel(&'static str),
}

const CHAPTERS: [Chapter; 3] = [
    Chapter {
        title: "An agent works",
        why: "Every step is an event, stored before it is shown.",
        workflow: "agent",
        text: "The deploy failed twice and then passed. What happened?",
        act: Act::Nothing,
    },
    Chapter {
        title: "An agent works under contract",
        why: "Contracts judge every call before it is made; a payment above 150.00 needs a person. (examples/refund-desk)",
        workflow: "agent",
        text: "I sent order A-17 back.",
        act: Act::Govern,
    },
    Chapter {
        title: "An agent is stopped",
        why: "Once canceled, no late result can turn it into a success.",
        workflow: "hold",
        text: "Watch the queue until somebody stops you.",
        act: Act::Cancel("the tour continues"),
    },
];

impl Act {
    /// True when an event is the moment to act.
    fn is_due(&self, event: &Event) -> bool {
        let to = event.payload.get("to").and_then(Value::as_str);
        match self {
            Act::Nothing => false,
            Act::Govern => to == Some("AUTH_REQUIRED"),
            Act::Cancel(_) => event.kind == "vendor.effect_requested",
        }
    }
}

/// Whoever shows the way.
struct Guide<'a> {
    out: Output,
    client: &'a Client,
    /// Whoever submits does not approve.
    approver: &'a Client,
    session: String,
    tasks: Vec<Task>,
}

impl Guide<'_> {
    fn welcome(&mut self, place: &Place) -> anyhow::Result<()> {
        let name = self.out.paint(Paint::Heading, "Reprise");
        self.out
            .line(format_args!("{name}  the flight recorder for AI agents\n"))?;
        let mut rows = Table::default();
        let quiet = |text: &str| (text.to_owned(), Some(Paint::Quiet));
        rows.row([quiet("server"), (place.url.clone(), None)]);
        rows.row([quiet("data"), (place.data.display().to_string(), None)]);
        rows.row([
            quiet("key"),
            (place.data.join(KEY_FILE).display().to_string(), None),
        ]);
        rows.print(&mut self.out, "   ")?;
        self.out.line("")?;
        self.out.line(wrapped(
            "The model of this tour is scripted: its answers are prepared, and the small workflows do nothing but what is \
             shown. The server, the log, the tools, the receipts and the replays are real.",
            "   ",
        ))
    }

    fn heading(&mut self, number: usize, title: &str, why: &str) -> anyhow::Result<()> {
        let title = self.out.paint(Paint::Heading, title);
        let why = self.out.paint(Paint::Quiet, &wrapped(why, "   "));
        self.out.line(format_args!("\n{number}  {title}\n{why}\n"))
    }

    async fn chapter(&mut self, number: usize, chapter: &Chapter) -> anyhow::Result<()> {
        self.heading(number, chapter.title, chapter.why)?;
        let metadata = Map::from_iter([("workflow".to_owned(), json!(chapter.workflow))]);
        let task = NewTask {
            input: user_message(chapter.text),
            metadata,
            persona: None,
            session: Some(self.session.clone()),
            workspace: None,
        };
        let id = task.submit(self.client, &fresh_key()?).await?.id;
        let mut cursor = Cursor::default();
        let mut task = self.show(&id, &mut cursor, &chapter.act).await?;
        if !task.status.is_terminal() {
            self.act(&id, &chapter.act).await?;
            task = self.show(&id, &mut cursor, &Act::Nothing).await?;
        }
        self.tasks.push(task);
        Ok(())
    }

    /// Shows events until the task ends or the moment to act has come.
    async fn show(&mut self, id: &str, cursor: &mut Cursor, until: &Act) -> anyhow::Result<Task> {
        let out = &mut self.out;
        follow(self.client, id, cursor, |event| {
            if !is_told_elsewhere(event) && !is_bookkeeping(event) {
                let room = width().map(|width| width.saturating_sub(3));
                let line = event_line(out, event, room);
                out.line(format_args!("   {line}"))?;
            }
            Ok(if until.is_due(event) {
                Flow::Stop
            } else {
                Flow::Continue
            })
        })
        .await
    }

    async fn act(&mut self, id: &str, act: &Act) -> anyhow::Result<()> {
        let (verb, words) = match act {
            Act::Nothing => return Ok(()),
            Act::Govern => ("approve", ""),
            Act::Cancel(reason) => ("cancel", *reason),
        };
        // In the columns of the lines around it.
        let line = match act {
            Act::Govern => format!("   {:10}  {verb}", "you"),
            Act::Nothing | Act::Cancel(_) => {
                format!("   {:12}  {verb:KIND_WIDTH$}  {words}", "you")
            }
        };
        self.out
            .line(self.out.paint(Paint::Waiting, line.trim_end()))?;
        match act {
            Act::Nothing => Ok(()),
            Act::Govern => {
                decide(
                    self.approver,
                    id,
                    DecisionTarget::TheOnly,
                    true,
                    Some("seen on the tour"),
                )
                .await
            }
            Act::Cancel(reason) => stop(self.client, id, Some(reason)).await.map(drop),
        }
    }

    /// Shows what is left when all is done: outcomes, and a log that can be checked.
    async fn record(&mut self, place: &Place) -> anyhow::Result<()> {
        self.heading(
            CHAPTERS.len() + 3,
            "What is on record",
            "Tasks, outcomes and messages are folds of the events; nothing else is stored about them.",
        )?;
        let mut rows = Table::new(&["WORKFLOW", "STATUS", "EVENTS", "OUTCOME"]);
        for task in &self.tasks {
            let events = self
                .client
                .get(&["v1", "tasks", &task.id, "events"], &[("limit", "200")])
                .await?;
            let outcomes = self
                .client
                .get(&["v1", "outcomes"], &[("task_id", &task.id)])
                .await?;
            let outcomes = Page::read(&outcomes)?.data;
            let summary = outcomes
                .first()
                .and_then(|outcome| outcome.get("summary")?.as_str());
            let summary = summary.map_or_else(|| ending(task), |summary| shorten(summary, 70));
            rows.row([
                (task.workflow().unwrap_or("agent").to_owned(), None),
                (task.status.to_string(), paint(&task.status)),
                (own_events(&Page::read(&events)?).to_string(), None),
                (summary, None),
            ]);
        }
        rows.print(&mut self.out, "   ")?;
        let data = place.data.clone();
        let (report, problems) = tokio::task::spawn_blocking(move || log::check(&data))
            .await
            .or_hint("the log was not checked", "run `reprise log verify`")??;
        let (verdict, good) = match problems.as_slice() {
            [] => ("verified", Paint::Good),
            _ => ("DAMAGED", Paint::Bad),
        };
        let verdict = self.out.paint(good, verdict);
        self.out.line(format_args!(
            "\n   {verdict}  {} events, {} documents, {} blobs, {} receipts: each byte is what was written",
            report.events, report.documents, report.blobs, report.receipts
        ))?;
        for problem in &problems {
            self.out.line(format_args!("   {problem}"))?;
        }
        Ok(())
    }

    /// Shows a receipt, has it verified, and changes one byte of a copy.
    async fn prove(&mut self) -> anyhow::Result<()> {
        self.heading(
            CHAPTERS.len() + 4,
            "What can be proven",
            "Every ended task leaves a signed receipt that commits to its events; anyone can check it offline.",
        )?;
        let Some(task) = self.tasks.first() else {
            return Ok(());
        };
        let list = self
            .client
            .get(&["v1", "tasks", &task.id, "receipts"], &[])
            .await?;
        let receipts = Page::read(&list)?.data;
        let payload = receipts
            .first()
            .and_then(|receipt| receipt.pointer("/wire/payload"));
        let keys = self.client.get(&[".well-known", "jwks.json"], &[]).await?;
        let (Some(payload), Ok(keys)) = (payload, receipts::KeySet::from_jwks(&canon::jcs(&keys)))
        else {
            return Ok(());
        };
        let text = |pointer: &str| {
            payload
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or("none")
        };
        let mut rows = Table::default();
        let quiet = |text: &str| (text.to_owned(), Some(Paint::Quiet));
        rows.row([quiet("receipt"), (text("/receipt_id").to_owned(), None)]);
        rows.row([
            quiet("of"),
            (
                format!("{} {}", text("/subject/id"), text("/lifecycle/final_state")),
                None,
            ),
        ]);
        rows.row([
            quiet("hash"),
            (text("/chain/receipt_hash").to_owned(), None),
        ]);
        rows.row([
            quiet("signed by"),
            (text("/signatures/0/key_id").to_owned(), None),
        ]);
        rows.print(&mut self.out, "   ")?;
        let bytes = canon::jcs(payload);
        self.out
            .line("\n   verified from its bytes and the public keys alone:\n")?;
        self.judge(&bytes, &keys)?;
        // One byte: a cost of nothing becomes a cost of one.
        let mut changed = bytes;
        let place = changed
            .windows(9)
            .position(|window| window == b"\"total\":0");
        if let Some(byte) = place.and_then(|at| changed.get_mut(at + 8)) {
            *byte = b'1';
        }
        self.out.line(
            "\n   the same receipt with one byte changed, `\"total\":0` to `\"total\":1`:\n",
        )?;
        self.judge(&changed, &keys)
    }

    fn judge(&mut self, bytes: &[u8], keys: &receipts::KeySet) -> anyhow::Result<()> {
        let report = receipts::verify(
            bytes,
            &receipts::verify::Evidence {
                form: receipts::verify::Form::Canonical,
                predecessor: receipts::verify::Predecessor::NotAsked,
                batches: &[],
                inclusion: None,
                keys: receipts::verify::Keys::Given(keys),
                at_time: None,
                trust_anchor: None,
                references: None,
            },
        );
        let mut findings = Findings::default();
        findings.report(&report);
        // Indented lines are what was expected and what was found: for whoever looks into one finding.
        let lines = findings.text(&self.out);
        for line in lines.iter().filter(|line| !line.starts_with("      ")) {
            self.out.line(format_args!("   {line}"))?;
        }
        Ok(())
    }

    fn farewell(&mut self, place: &Place) -> anyhow::Result<()> {
        let title = self.out.paint(Paint::Heading, "Try next");
        let task = self.tasks.first().map_or("TASK", |task| task.id.as_str());
        let task = task.to_owned();
        let program = program();
        let data = quoted(&place.data.display().to_string());
        if place.once {
            let command = if place.kept {
                format!("{program} serve --data {data}")
            } else {
                format!("{program} demo")
            };
            return self.out.line(format_args!("\n{title}\n\n   {command}"));
        }
        self.out.line(format_args!(
            "\n{title}, in another terminal\n\n   \
             export REPRISE_DATA={data}\n   \
             {program} task list\n   \
             {program} task show {task}\n   \
             {program} task submit 'Restart the cache' --workflow approve --watch\n   \
             {program} key create --actor auditor --read-only\n   \
             {program} receipt verify {task}\n   \
             {program} log verify\n\n   \
             curl {}/v1/tasks \\\n     \
             -H \"Authorization: Bearer $(cat {})\" \\\n     \
             -H 'Harn-Agents-Protocol-Version: {PROTOCOL_VERSION}'\n",
            place.url,
            quoted(&place.data.join(KEY_FILE).display().to_string()),
        ))?;
        let note = if place.kept {
            "Ctrl-C stops the server"
        } else {
            "Ctrl-C stops the server and removes its data"
        };
        self.out.line(self.out.paint(Paint::Quiet, note))
    }
}

/// True for events that a first look can do without. `reprise task watch` shows all of them.
fn is_bookkeeping(event: &Event) -> bool {
    match event.kind.as_str() {
        "session.message_appended"
        | "task.submitted"
        | "receipt.issued"
        | "vendor.effect_requested"
        | "vendor.effect_recorded"
        | "vendor.outcome_recorded"
        | "vendor.input_requested"
        | "vendor.trust_recorded"
        | "task.started"
        | "task.completed"
        | "task.canceled"
        | "task.input_required"
        | "task.auth_required"
        | "tool.approved" => true,
        "task.status_changed" => {
            let to = event.payload.get("to").and_then(Value::as_str);
            to == Some("WORKING")
        }
        _ => false,
    }
}

/// Counts the events of a task's log; that its receipt was issued comes after it.
fn own_events(page: &Page) -> usize {
    let own = page.data.iter();
    own.filter(|event| event.get("event").and_then(Value::as_str) != Some("receipt.issued"))
        .count()
}

fn program_file() -> anyhow::Result<PathBuf> {
    std::env::current_exe().or_hint("cannot locate this executable", HINT)
}

/// Returns how the reader started this program.
fn program() -> String {
    let called = std::env::args().next().unwrap_or_default();
    if called.contains('/') {
        quoted(&called)
    } else {
        "reprise".to_owned()
    }
}

/// Returns text that a shell takes as one word.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
