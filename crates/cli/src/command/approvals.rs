//! `reprise approvals`: what waits for a decision, with exactly what would be done, and the decision.

use canon::{Value, jcs, sha256};
use clap::{Args, Subcommand};
use domain::Timestamp;
use serde_json::json;

use crate::args::ServerArgs;
use crate::client::{Client, Target, Write, fresh_key};
use crate::exit::{Exit, Problem};
use crate::listing::Listing;
use crate::output::{Output, Paint, Table, inform, is_quiet, printable, shorten, width};

/// `reprise approvals`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List what is waiting for a decision or an answer, longest waiting first
    #[command(
        after_help = "Examples:\n  reprise approvals list\n  reprise approvals list --status denied\n  reprise approvals list --all --json"
    )]
    List(ListArgs),
    /// Show one: what would be done with which arguments, who asks, and what led to it
    #[command(after_help = "Example:\n  reprise approvals show permission_0123")]
    Show(ShowArgs),
    /// Approve a request
    #[command(
        after_help = "With --digest the decision is about exactly these arguments: with others nothing is decided.\n\n\
        Examples:\n  reprise approvals approve permission_0123 --reason 'read the diff'\n  \
        reprise approvals approve task_0123 --digest sha256:0123"
    )]
    Approve(DecideArgs),
    /// Deny a request
    #[command(
        after_help = "Example:\n  reprise approvals deny permission_0123 --reason 'not on a Friday'"
    )]
    Deny(DecideArgs),
}

/// `reprise approvals list`
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only what is pending (the default), approved or denied
    #[arg(long, value_name = "STATUS", ignore_case = true, value_parser = ["pending", "approved", "denied"], conflicts_with = "all")]
    status: Option<String>,
    /// Also show what has been decided, newest first
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    listing: Listing,
}

/// `reprise approvals show`
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The request, or the task that waits
    id: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// `reprise approvals approve` and `reprise approvals deny`
#[derive(Debug, Args)]
pub(crate) struct DecideArgs {
    /// The request, or the task that waits
    id: String,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The digest of the arguments that were looked at
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs one of them.
pub(crate) async fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::List(args) => list(args).await,
        Command::Show(args) => show(args).await,
        Command::Approve(args) => decide(args, true).await,
        Command::Deny(args) => decide(args, false).await,
    }
}

async fn list(args: ListArgs) -> anyhow::Result<Exit> {
    let client = args.listing.server.client()?;
    let status = args.status.as_deref().unwrap_or("pending");
    let query = match (args.all, status) {
        (true, _) => vec![("order", "desc")],
        (false, "pending") => vec![("status", status)],
        (false, _) => vec![("status", status), ("order", "desc")],
    };
    let path = ["v1", "permission-requests"];
    let (found, more) = client.list(&path, &query, args.listing.limit()).await?;
    let shows = !found.is_empty() && !args.listing.server.json && !is_quiet();
    let none = match (args.all, status) {
        (false, "pending") => "nothing waits for a decision",
        (false, "approved") => "nothing was approved",
        (false, _) => "nothing was denied",
        (true, _) => "nobody was asked for a decision",
    };
    let exit = args.listing.print(found, more, none, |found| {
        let mut rows = Table::new(&["REQUEST", "STATUS", "WAITS", "TASK", "WHAT"]);
        for request in found {
            let status = text(request, "/status");
            let paint = match status {
                "pending" => Paint::Waiting,
                "approved" => Paint::Good,
                _ => Paint::Bad,
            };
            let waits = match status {
                "pending" => waited(request),
                _ => String::new(),
            };
            // A question is answered, whatever the protocol calls it.
            let status = match (status, request.get("action").is_some_and(Value::is_object)) {
                ("approved", false) => "answered",
                (status, _) => status,
            };
            rows.row([
                (shorten(text(request, "/id"), 80), None),
                (shorten(status, 20), Some(paint)),
                (waits, None),
                (shorten(text(request, "/task_id"), 80), None),
                (
                    shorten(&describe_request(request), width().unwrap_or(usize::MAX)),
                    None,
                ),
            ]);
        }
        rows
    })?;
    if shows {
        inform("to see one whole: reprise approvals show REQUEST");
    }
    Ok(exit)
}

/// Finds a request by its id, or what a Task waits for.
async fn find(client: &Client, id: &str) -> anyhow::Result<Value> {
    if !id.starts_with("task_") {
        return client.get(&["v1", "permission-requests", id], &[]).await;
    }
    let path = ["v1", "tasks", id, "permission-requests"];
    let (mut found, _) = client.list(&path, &[("status", "pending")], 200).await?;
    match found.pop() {
        Some(request) if found.is_empty() => Ok(request),
        Some(_) => {
            let message = format!(
                "task `{}` waits for {} decisions",
                shorten(id, 80),
                found.len() + 1
            );
            let hint = "name one of the requests that `reprise approvals list` shows";
            Err(Problem::new(message, hint).answers_no().into())
        }
        None => Err(Problem::new(
            format!("task `{}` does not wait for anybody", shorten(id, 80)),
            "`reprise approvals list` shows what is waiting",
        )
        .answers_no()
        .into()),
    }
}

async fn show(args: ShowArgs) -> anyhow::Result<Exit> {
    let client = args.server.client()?;
    let request = find(&client, &args.id).await?;
    let task = text(&request, "/task_id").to_owned();
    let told = client
        .get(&["v1", "tasks", &task, "transcript"], &[])
        .await?;
    let mut out = Output::stdout();
    if args.server.json {
        let led = led_to(&told, text(&request, "/id"));
        let digest = digest(&request);
        let decided = decision(&told, text(&request, "/id"));
        out.json(&json!({
            "request": request, "input_sha256": digest, "led_to_it": led, "decision": decided,
        }))?;
        return Ok(Exit::Ok);
    }
    describe(&mut out, &request, &told)?;
    if text(&request, "/status") == "pending" {
        let id = shorten(text(&request, "/id"), 80);
        match request.get("action").is_some_and(Value::is_object) {
            true => inform(format_args!(
                "to decide: reprise approvals approve {id} --reason WHY, or reprise approvals deny {id} --reason WHY"
            )),
            false => inform(format_args!("to answer: reprise task answer {task} TEXT")),
        }
    }
    Ok(Exit::Ok)
}

/// Writes what is asked, by whom, and what was said before.
fn describe(out: &mut Output, request: &Value, told: &Value) -> anyhow::Result<()> {
    let mut rows = Table::default();
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            rows.row([
                (name.to_owned(), Some(Paint::Quiet)),
                (printable(&value), None),
            ]);
        }
    };
    row("request", text(request, "/id").to_owned());
    row("status", text(request, "/status").to_owned());
    row("task", text(request, "/task_id").to_owned());
    let persona = match text(told, "/persona/name") {
        "" => String::new(),
        name => format!("{name}@{}", text(told, "/persona/version")),
    };
    row("persona", persona);
    row("submitted by", text(told, "/submitted_by").to_owned());
    if text(request, "/status") == "pending" {
        row("waits", waited(request));
    }
    let calls = several(request);
    let action = match calls {
        [] => text(request, "/action/name").to_owned(),
        calls => format!("{} calls, decided together", calls.len()),
    };
    row("action", action);
    row("digest", digest(request).unwrap_or_default());
    let decided = decision(told, text(request, "/id"));
    row("decided by", text(&decided, "/actor").to_owned());
    row("key", text(request, "/response/key_id").to_owned());
    // What a program wrote beside its decision: only the lines above are known.
    row("signed", text(request, "/response/decided_by").to_owned());
    row("decided at", text(&decided, "/at").to_owned());
    row("reason", text(request, "/response/reason").to_owned());
    rows.print(out, "")?;
    let mut part = |title: &str, text: &str| -> anyhow::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        out.line("")?;
        let title = out.paint(Paint::Heading, title);
        out.line(title)?;
        for line in printable(text).lines() {
            out.line(format_args!("  {line}"))?;
        }
        Ok(())
    };
    for (number, call) in (1..).zip(calls) {
        let name = shorten(text(call, "/tool_name"), 200);
        let title = format!("Call {number} of {}: {name}", calls.len());
        let arguments = call.get("arguments").unwrap_or(&Value::Null);
        let reason = text(call, "/reason");
        part(&title, &format!("{reason}\n{arguments:#}"))?;
    }
    if calls.is_empty() {
        part("Asked", text(request, "/request/reason"))?;
        part("Question", text(request, "/request/question"))?;
        if let Some(input) = request.pointer("/action/input") {
            part("Arguments", &format!("{input:#}"))?;
        }
    }
    part("The task", &input_words(told))?;
    let led = led_to(told, text(request, "/id"));
    part("The model said", text(&led, "/text"))
}

/// Returns who decided a request, when and why; nothing while it waits.
fn decision(told: &Value, request: &str) -> Value {
    let steps = told.get("steps").and_then(Value::as_array);
    let mut decisions = steps.into_iter().flatten().filter_map(|step| {
        let decision = step.get("decision")?;
        (text(decision, "/request_id") == request).then_some(decision)
    });
    let decided = decisions.next();
    let decided = decided.filter(|decision| decision.get("at").is_some_and(Value::is_string));
    decided.cloned().unwrap_or_default()
}

/// Returns the step of the model before a request.
fn led_to(told: &Value, request: &str) -> Value {
    let steps = told.get("steps").and_then(Value::as_array);
    let mut said = Value::Null;
    for step in steps.into_iter().flatten() {
        if text(step, "/decision/request_id") == request {
            break;
        }
        if text(step, "/what") == "model" {
            said = step.clone();
        }
    }
    said
}

fn input_words(told: &Value) -> String {
    match told.get("input") {
        Some(Value::String(words)) => words.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => format!("{other:#}"),
    }
}

async fn decide(args: DecideArgs, approved: bool) -> anyhow::Result<Exit> {
    let client = Client::new(Target::find_approver(&args.server.connection)?)?;
    let request = find(&client, &args.id).await?;
    if approved && !request.get("action").is_some_and(Value::is_object) {
        let task = shorten(text(&request, "/task_id"), 80);
        return Err(Problem::new(
            "it asks a question, which an approval would not answer",
            format!("nothing was decided; to answer: reprise task answer {task} TEXT"),
        )
        .answers_no()
        .into());
    }
    let found = digest(&request);
    if let Some(looked_at) = &args.digest
        && found.as_ref() != Some(looked_at)
    {
        return Err(Problem::new(
            format!(
                "the arguments have the digest {}",
                found.unwrap_or_else(|| "none".to_owned())
            ),
            format!(
                "nothing was decided; `reprise approvals show {}` shows them",
                args.id
            ),
        )
        .answers_no()
        .into());
    }
    let mut body = json!({"approved": approved});
    if let (Some(reason), Value::Object(body)) = (&args.reason, &mut body) {
        body.insert("reason".to_owned(), reason.as_str().into());
    }
    let key = fresh_key()?;
    let id = text(&request, "/id");
    let path = ["v1", "permission-requests", id, "respond"];
    let decided = client.post(&path, Write { body, key: &key }).await?;
    let mut out = Output::stdout();
    if args.server.json {
        out.json(&decided)?;
        return Ok(Exit::Ok);
    }
    let (paint, word) = match approved {
        true => (Paint::Good, "approved"),
        false => (Paint::Bad, "denied"),
    };
    let word = out.paint(paint, word);
    out.line(format_args!(
        "{}  {word}  {}",
        shorten(id, 80),
        printable(&describe_request(&request))
    ))?;
    inform(format_args!(
        "to follow what comes of it: reprise task watch {}",
        shorten(text(&request, "/task_id"), 80)
    ));
    Ok(Exit::Ok)
}

/// Returns the calls that one decision releases, where it is more than one.
fn several(request: &Value) -> &[Value] {
    let calls = request.pointer("/request/governed/approval_requests");
    match calls.and_then(Value::as_array) {
        Some(calls) if calls.len() > 1 => calls,
        _ => &[],
    }
}

/// Says in one line what is asked: the action with its arguments, or the question. How many more calls a decision releases stands
/// before the arguments, which may be cut off.
pub(crate) fn describe_request(request: &Value) -> String {
    if let [first, rest @ ..] = several(request) {
        let (name, more) = (text(first, "/tool_name"), rest.len());
        let input = first.get("arguments").unwrap_or(&Value::Null);
        return format!("{name} (and {more} more) {input}");
    }
    match text(request, "/action/name") {
        "" => text(request, "/request/question").to_owned(),
        name => {
            let input = request.pointer("/action/input").map(Value::to_string);
            format!("{name} {}", input.unwrap_or_default())
        }
    }
}

/// Returns SHA-256 of the canonical form of the arguments; those of several calls are a list.
fn digest(request: &Value) -> Option<String> {
    let calls = several(request);
    if !calls.is_empty() {
        let arguments = calls.iter().map(|call| call.get("arguments").cloned());
        let arguments: Value = arguments.map(Option::unwrap_or_default).collect();
        return Some(sha256(&jcs(&arguments)).to_string());
    }
    let input = request.pointer("/action/input")?;
    Some(sha256(&jcs(input)).to_string())
}

/// Says how long a request waits by this machine's clock.
fn waited(request: &Value) -> String {
    let since = Timestamp::parse(text(request, "/created_at")).ok();
    let Some(since) = since else {
        return String::new();
    };
    let seconds = (crate::time::now().as_micros() - since.as_micros()).max(0) / 1_000_000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default()
}
