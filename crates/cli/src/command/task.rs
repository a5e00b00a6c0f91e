//! `reprise task`: submit, get, list, watch, answer, cancel.

mod show;

use std::io::{Read, Write as _};
use std::path::Path;

use domain::Status;
use serde_json::{Map, Value, json};

use crate::args::{
    TaskAnswerArgs, TaskCancelArgs, TaskCommand, TaskExportArgs, TaskGetArgs, TaskListArgs,
    TaskRetryArgs, TaskSubmitArgs,
};
use crate::client::{
    Client, Cursor, Flow, Page, Target, Task, TaskStatus, Write, follow, fresh_key,
};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{
    Output, Paint, Table, event_line, inform, is_quiet, is_told_elsewhere, shorten, width,
};
use crate::persona::PersonaName;

/// The most bytes of input that are read.
const INPUT_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Runs one of them.
pub(crate) async fn run(command: TaskCommand) -> anyhow::Result<Exit> {
    match command {
        TaskCommand::Submit(args) => submit(args).await,
        TaskCommand::Get(args) => get(args).await,
        TaskCommand::Show(args) => show::run(args).await,
        TaskCommand::List(args) => list(args).await,
        TaskCommand::Watch(args) => {
            let client = args.server.client()?;
            watch(&client, &args.id, args.server.json).await
        }
        TaskCommand::Answer(args) => answer(args).await,
        TaskCommand::Export(args) => export(args).await,
        TaskCommand::Retry(args) => retry(args).await,
        TaskCommand::Cancel(args) => cancel(args).await,
    }
}

async fn submit(args: TaskSubmitArgs) -> anyhow::Result<Exit> {
    let client = args.server.client()?;
    let input = match (&args.text, &args.json_input) {
        (_, Some(file)) => object(&read(file)?, file)?,
        (text, None) => {
            let text = match text.as_deref() {
                Some("-") => read(Path::new("-"))?,
                text => text.unwrap_or_default().to_owned(),
            };
            if text.trim().is_empty() {
                let hint = "say what to do; `-` reads it from stdin";
                return Err(Problem::new("the text is empty", hint).into());
            }
            user_message(&text)
        }
    };
    let mut metadata: Map<String, Value> = args
        .metadata
        .into_iter()
        .map(|(key, value)| (key, Value::String(value)))
        .collect();
    if let Some(workflow) = args.workflow {
        metadata.insert("workflow".to_owned(), Value::String(workflow));
    }
    let persona = match &args.persona {
        Some(words) => Some(crate::persona::resolve(&client, words).await?),
        None => None,
    };
    let task = NewTask {
        input,
        metadata,
        persona,
        session: args.session,
        workspace: args.workspace,
    };
    let key = match args.idempotency_key {
        Some(key) => key,
        None => fresh_key()?,
    };
    let task = task.submit(&client, &key).await?;
    if args.watch {
        if !args.server.json {
            inform(format_args!("{} in {}", task.id, task.session_id));
        }
        return watch(&client, &task.id, args.server.json).await;
    }
    shown(&task, args.server.json)?;
    Ok(match task.status {
        TaskStatus::Known(Status::Failed | Status::Canceled) => Exit::No,
        ref other => other.reading(),
    })
}

/// A new Task.
#[derive(Debug)]
pub(crate) struct NewTask {
    /// A Message or an object.
    pub(crate) input: Value,
    /// The caller's members.
    pub(crate) metadata: Map<String, Value>,
    /// The persona, by id.
    pub(crate) persona: Option<String>,
    /// The Session; a new one when none is given.
    pub(crate) session: Option<String>,
    /// The Workspace.
    pub(crate) workspace: Option<String>,
}

impl NewTask {
    /// Submits it, once for each key however often this is called.
    pub(crate) async fn submit(self, client: &Client, key: &str) -> anyhow::Result<Task> {
        let session = match self.session {
            Some(session) => session,
            None => new_session(client, self.workspace.as_deref(), key).await?,
        };
        let mut body = json!({"input": self.input, "metadata": self.metadata});
        if let (Some(workspace), Value::Object(body)) = (self.workspace, &mut body) {
            body.insert("workspace_id".to_owned(), Value::String(workspace));
        }
        if let (Some(persona), Value::Object(body)) = (self.persona, &mut body) {
            body.insert("persona_id".to_owned(), Value::String(persona));
        }
        let path = ["v1", "sessions", &session, "tasks"];
        Task::read(client.post(&path, Write { body, key }).await?)
    }
}

/// Makes a Session. The key may be the Task's: a key counts per path.
pub(crate) async fn new_session(
    client: &Client,
    workspace: Option<&str>,
    key: &str,
) -> anyhow::Result<String> {
    let body = json!({"workspace_id": workspace.unwrap_or("workspace_local")});
    let session = client
        .post(&["v1", "sessions"], Write { body, key })
        .await?;
    match session.get("id").and_then(Value::as_str) {
        Some(id) => Ok(id.to_owned()),
        None => Err(Problem::new(
            "the server's answer is not a session",
            "check that the address is that of an Agents Protocol server",
        )
        .into()),
    }
}

/// Returns text as a Message of a user.
pub(crate) fn user_message(text: &str) -> Value {
    json!({"role": "user", "parts": [{"type": "text", "text": text, "visibility": "public"}]})
}

/// Reads a file, or stdin for `-`.
pub(crate) fn read(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let hint = "give a readable UTF-8 file of at most 64 MiB, or `-` for stdin";
    let bytes = if file == Path::new("-") {
        std::io::stdin()
            .take(INPUT_BYTES_MAX + 1)
            .read_to_string(&mut text)
    } else {
        std::fs::File::open(file)
            .and_then(|opened| opened.take(INPUT_BYTES_MAX + 1).read_to_string(&mut text))
    };
    let bytes = bytes.or_hint(format_args!("`{}`", file.display()), hint)?;
    if bytes as u64 > INPUT_BYTES_MAX {
        return Err(Problem::new(format!("`{}` is too large", file.display()), hint).into());
    }
    Ok(text)
}

fn object(text: &str, file: &Path) -> anyhow::Result<Value> {
    let members = canon::read_object(text.as_bytes(), canon::Integers::Safe).or_hint(
        format_args!("`{}`", file.display()),
        "the file must hold one JSON object, such as {\"ticket\": 7}",
    )?;
    Ok(Value::Object(members))
}

async fn get(args: TaskGetArgs) -> anyhow::Result<Exit> {
    let client = args.server.client()?;
    let task = client.task(&args.id).await?;
    if args.server.json {
        Output::stdout().json(&task.raw)?;
    } else {
        let personas = crate::persona::names(&client, std::slice::from_ref(&task)).await;
        let persona = personas.values().next();
        let workflow = workflow(&client, &task, persona).await;
        let path = ["v1", "tasks", &task.id, "permission-requests"];
        let waits_for = match task.status {
            TaskStatus::Known(Status::InputRequired | Status::AuthRequired) => {
                client.list(&path, &[("status", "pending")], 200).await?.0
            }
            _ => Vec::new(),
        };
        let answer = answer_of(&client, &task).await;
        let persona = persona.map(|persona| persona.name.as_str());
        details(&task, workflow, persona, &waits_for, answer.as_deref())?;
    }
    Ok(task.status.reading())
}

/// Returns the workflow that a Task really runs. That of a replay stands in its first event alone.
async fn workflow(client: &Client, task: &Task, persona: Option<&PersonaName>) -> String {
    if !task.is_replay() {
        let of_persona = persona.map(|persona| persona.workflow.as_str());
        let named = task.workflow().or(of_persona);
        return named.unwrap_or("agent").to_owned();
    }
    let path = ["v1", "tasks", &task.id, "events"];
    let first = client.get(&path, &[("limit", "1")]).await;
    // A list is not worth failing for it: it may be pruned, or not for this key to see.
    let first = first.ok().and_then(|page| Page::read(&page).ok());
    let name = first.and_then(|page| {
        let name = page.data.first()?.pointer("/payload/workflow")?;
        name.as_str().map(str::to_owned)
    });
    name.unwrap_or_else(|| "(its source's)".to_owned())
}

/// Returns the words of a Task's outcome, when there is one and this key may see it.
async fn answer_of(client: &Client, task: &Task) -> Option<String> {
    let id = task.raw.get("outcome_id")?.as_str()?;
    let outcome = client.get(&["v1", "outcomes", id], &[]).await.ok()?;
    let messages = outcome.get("messages").and_then(Value::as_array);
    let parts = messages
        .into_iter()
        .flatten()
        .filter_map(|message| message.get("parts")?.as_array())
        .flatten();
    let words: Vec<&str> = parts
        .filter_map(|part| part.get("text")?.as_str())
        .collect();
    let summary = || outcome.get("summary").and_then(Value::as_str);
    match words.is_empty() {
        // The summary of a failure is the failure.
        true if task.failure.is_some() => None,
        true => summary().map(str::to_owned),
        false => Some(words.join("\n")),
    }
}

fn details(
    task: &Task,
    workflow: String,
    persona: Option<&str>,
    waits_for: &[Value],
    answer: Option<&str>,
) -> anyhow::Result<()> {
    let mut out = Output::stdout();
    let member = |name: &str| task.raw.get(name).and_then(Value::as_str);
    let mut rows = Table::default();
    let mut row = |name: &str, value: String, paint: Option<Paint>| {
        if !value.is_empty() {
            rows.row([
                (name.to_owned(), Some(Paint::Quiet)),
                (shorten(&value, width().unwrap_or(usize::MAX)), paint),
            ]);
        }
    };
    row("task", task.id.clone(), None);
    row("status", task.status.to_string(), paint(&task.status));
    row("workflow", workflow, None);
    row("input", task.input_text(), None);
    if let Some(Value::Object(metadata)) = task.raw.get("metadata") {
        let own = metadata.iter().filter(|(name, _)| *name != "workflow");
        let own: Vec<String> = own
            .map(|(name, value)| match value {
                Value::String(text) => format!("{name}={text}"),
                other => format!("{name}={other}"),
            })
            .collect();
        row("metadata", own.join(", "), None);
    }
    for request in waits_for {
        row(
            "waits for",
            crate::command::approvals::describe_request(request),
            Some(Paint::Waiting),
        );
    }
    row("answer", answer.unwrap_or_default().to_owned(), None);
    if let Some(failure) = &task.failure {
        row(
            "failure",
            format!("{}: {}", failure.code, failure.message),
            None,
        );
    }
    row("persona", persona.unwrap_or_default().to_owned(), None);
    for name in [
        "session_id",
        "workspace_id",
        "created_by",
        "outcome_id",
        "receipt_id",
    ] {
        row(
            name.trim_end_matches("_id"),
            member(name).unwrap_or_default().to_owned(),
            None,
        );
    }
    for name in ["created_at", "started_at", "completed_at", "canceled_at"] {
        row(
            name.trim_end_matches("_at"),
            member(name).unwrap_or_default().to_owned(),
            None,
        );
    }
    rows.print(&mut out, "")?;
    advise(task);
    Ok(())
}

/// Says what to do next about a Task that is not done.
fn advise(task: &Task) {
    match task.status {
        TaskStatus::Known(Status::InputRequired) => {
            inform(format_args!(
                "it waits for an answer: reprise task answer {} TEXT",
                task.id
            ));
        }
        TaskStatus::Known(Status::AuthRequired) => {
            inform(format_args!(
                "it waits for a decision: reprise approvals show {}",
                task.id
            ));
        }
        TaskStatus::Known(Status::Submitted | Status::Working) => {
            inform(format_args!("to follow it: reprise task watch {}", task.id));
        }
        TaskStatus::Known(Status::Failed) => {
            inform(format_args!(
                "to read the run: reprise task show {id}; to retry it, if the reason has passed: reprise task retry {id}",
                id = task.id
            ));
        }
        TaskStatus::Known(Status::Completed | Status::Canceled) | TaskStatus::Unknown(_) => {}
    }
}

pub(crate) fn paint(status: &TaskStatus) -> Option<Paint> {
    match status {
        TaskStatus::Known(Status::Completed) => Some(Paint::Good),
        TaskStatus::Known(Status::Failed | Status::Canceled) | TaskStatus::Unknown(_) => {
            Some(Paint::Bad)
        }
        TaskStatus::Known(Status::InputRequired | Status::AuthRequired) => Some(Paint::Waiting),
        TaskStatus::Known(Status::Submitted | Status::Working) => None,
    }
}

async fn list(args: TaskListArgs) -> anyhow::Result<Exit> {
    let client = args.server.client()?;
    let wanted = args.limit as usize;
    let status = args.status.as_ref().map(|status| status.to_uppercase());
    let persona = match &args.persona {
        Some(words) => Some(crate::persona::resolve(&client, words).await?),
        None => None,
    };
    let mut query = vec![("order", if args.oldest { "asc" } else { "desc" })];
    for (name, value) in [
        ("session_id", &args.session),
        ("workspace_id", &args.workspace),
        ("status", &status),
        ("persona_id", &persona),
        ("workflow", &args.workflow),
        ("created_after", &args.since),
    ] {
        query.extend(value.iter().map(|value| (name, value.as_str())));
    }
    let metadata = args.metadata.iter();
    let metadata: Vec<(String, &String)> = metadata
        .map(|(key, value)| (format!("metadata.{key}"), value))
        .collect();
    query.extend(
        metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str())),
    );
    let path = ["v1", "tasks"];
    let is_wanted = |task: &Value| {
        !args.no_replays || Task::read(task.clone()).is_ok_and(|task| !task.is_replay())
    };
    let (items, more) = client
        .list_where(&path, &query, wanted, None, is_wanted)
        .await?;
    let tasks: Vec<Task> = items
        .into_iter()
        .map(Task::read)
        .collect::<anyhow::Result<_>>()?;
    let mut out = Output::stdout();
    if args.server.json {
        out.json(&tasks.iter().map(|task| &task.raw).collect::<Vec<_>>())?;
    } else if is_quiet() {
        out.ids(tasks.iter().map(|task| task.id.as_str()))?;
    } else if tasks.is_empty() {
        inform("no tasks");
    } else {
        let personas = crate::persona::names(&client, &tasks).await;
        let mut rows = Table::new(&["TASK", "STATUS", "CREATED", "PERSONA", "WORKFLOW", "INPUT"]);
        for task in &tasks {
            let created = task.created_at.get(..19).unwrap_or(&task.created_at);
            let persona = task.raw.get("persona_id").and_then(Value::as_str);
            let persona = persona.and_then(|id| personas.get(id));
            let workflow = workflow(&client, task, persona).await;
            let persona = persona.map(|persona| persona.name.as_str());
            rows.row([
                (shorten(&task.id, 80), None),
                (task.status.to_string(), paint(&task.status)),
                (shorten(&created.replace('T', " "), 40), None),
                (shorten(persona.unwrap_or("-"), 40), None),
                (shorten(&workflow, 40), None),
                (shorten(&task.input_text(), 60), None),
            ]);
        }
        rows.print(&mut out, "")?;
    }
    if more {
        inform(format_args!("there are more; raise --limit (now {wanted})"));
    }
    let unknown = tasks.iter().any(|task| task.status.reading() == Exit::No);
    Ok(if unknown { Exit::No } else { Exit::Ok })
}

async fn watch(client: &Client, id: &str, json: bool) -> anyhow::Result<Exit> {
    let mut out = Output::stdout();
    let mut cursor = Cursor::default();
    let now = Task::read(client.get(&["v1", "tasks", id], &[]).await?)?;
    let since = now.raw.get("updated_at").and_then(Value::as_str);
    let since = since.unwrap_or_default().to_owned();
    let waits = matches!(
        now.status,
        TaskStatus::Known(Status::InputRequired | Status::AuthRequired)
    );
    let following = follow(client, id, &mut cursor, |event| {
        if json {
            out.line(&event.raw)?;
        } else if !is_told_elsewhere(event) {
            out.line(event_line(&out, event, width()))?;
        }
        // A question of long ago needs no advice: only one that waits now, or comes while somebody watches.
        let is_open = event.created_at > since || waits && event.created_at == since;
        match event.kind.as_str() {
            "task.input_required" if is_open => {
                inform(format_args!(
                    "it waits for an answer: reprise task answer {id} TEXT"
                ));
            }
            "task.auth_required" if is_open => {
                inform(format_args!(
                    "it waits for a decision: reprise approvals show {id}"
                ));
            }
            "vendor.task_imported" => {
                inform(format_args!(
                    "it ran on another server; to read the run: reprise task show {id}, or reprise event list --task {id} --oldest"
                ));
            }
            _ => {}
        }
        Ok(if out.is_closed() {
            Flow::Stop
        } else {
            Flow::Continue
        })
    });
    let task = tokio::select! {
        task = following => task?,
        _ = tokio::signal::ctrl_c() => {
            inform(format_args!(
                "no longer watching; the task continues. To watch it again: reprise task watch {id}; \
                 to end it: reprise task cancel {id}"
            ));
            return Ok(Exit::Interrupted);
        }
    };
    if !json {
        inform(ending(&task));
    }
    Ok(task.status.verdict())
}

/// Returns how a Task ended, in one line.
pub(crate) fn ending(task: &Task) -> String {
    match &task.failure {
        Some(failure) => format!(
            "{}: {} ({})",
            task.status,
            shorten(&failure.message, 200),
            shorten(&failure.code, 60)
        ),
        None => task.status.to_string(),
    }
}

async fn answer(args: TaskAnswerArgs) -> anyhow::Result<Exit> {
    // An answer to a question is whoever's who works here; only decisions are the approver's.
    let target = match &args.text {
        Some(_) => Target::find(&args.server.connection)?,
        None => Target::find_approver(&args.server.connection)?,
    };
    let client = Client::new(target)?;
    match &args.text {
        Some(text) => say(&client, &args.id, text).await?,
        None => {
            let which = match (&args.request, args.all) {
                (Some(request), _) => DecisionTarget::Named(request),
                (None, true) => DecisionTarget::All,
                (None, false) => DecisionTarget::TheOnly,
            };
            let reason = args.reason.as_deref();
            decide(&client, &args.id, which, args.approve, reason).await?;
        }
    }
    let task = client.task(&args.id).await?;
    shown(&task, args.server.json)?;
    Ok(task.status.reading())
}

/// Answers a Task's question.
pub(crate) async fn say(client: &Client, task: &str, text: &str) -> anyhow::Result<()> {
    let body = json!({"kind": "input", "message": user_message(text)});
    let key = fresh_key()?;
    client
        .post(
            &["v1", "tasks", task, "messages"],
            Write { body, key: &key },
        )
        .await?;
    Ok(())
}

/// Which of the decisions that a Task waits for are meant.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DecisionTarget<'a> {
    /// The one that there is.
    TheOnly,
    /// The one of this request.
    Named(&'a str),
    /// All of them.
    All,
}

/// Approves or denies what a Task waits for.
pub(crate) async fn decide(
    client: &Client,
    task: &str,
    which: DecisionTarget<'_>,
    approved: bool,
    reason: Option<&str>,
) -> anyhow::Result<()> {
    let path = ["v1", "tasks", task, "permission-requests"];
    let (pending, _) = client.list(&path, &[("status", "pending")], 200).await?;
    let id = |request: &Value| request.get("id").and_then(Value::as_str).map(str::to_owned);
    let waiting: Vec<String> = pending.iter().filter_map(id).collect();
    let chosen: Vec<String> = match which {
        DecisionTarget::Named(name) => waiting.iter().filter(|id| *id == name).cloned().collect(),
        DecisionTarget::TheOnly | DecisionTarget::All => waiting.clone(),
    };
    if let (DecisionTarget::TheOnly, [_, _, ..]) = (which, chosen.as_slice()) {
        let what = crate::command::approvals::describe_request;
        for (id, request) in waiting.iter().zip(&pending) {
            inform(format_args!("{id}  {}", shorten(&what(request), 200)));
        }
        let message = format!("task `{task}` waits for {} decisions", chosen.len());
        let hint = "nothing was decided; name one with --request ID, or say --all";
        return Err(Problem::new(message, hint).answers_no().into());
    }
    if chosen.is_empty() {
        let message = match which {
            DecisionTarget::Named(name) => format!("task `{task}` does not wait for `{name}`"),
            DecisionTarget::TheOnly | DecisionTarget::All => {
                format!("task `{task}` does not wait for a decision")
            }
        };
        let hint = format!("`reprise task get {task}` shows where it stands");
        return Err(Problem::new(message, hint).answers_no().into());
    }
    let mut body = json!({"approved": approved});
    if let (Some(reason), Value::Object(body)) = (reason, &mut body) {
        body.insert("reason".to_owned(), Value::String(reason.to_owned()));
    }
    for request in chosen {
        let key = fresh_key()?;
        let path = ["v1", "permission-requests", &request, "respond"];
        let body = body.clone();
        client.post(&path, Write { body, key: &key }).await?;
    }
    Ok(())
}

async fn export(args: TaskExportArgs) -> anyhow::Result<Exit> {
    let client = Client::new(Target::find(&args.connection)?)?;
    let bytes = client
        .get_bytes(&["v1", "tasks", &args.id, "bundle"], &[])
        .await?;
    let hint = "name a file that does not exist yet, on a disk with room";
    let what = format!("`{}`", args.out.display());
    if args.out == Path::new("-") {
        std::io::stdout().write_all(&bytes)?;
        return Ok(Exit::Ok);
    }
    // Read back before it is called a bundle.
    let bundle = runs::replay::Bundle::read(&bytes).or_hint(
        "what the server sent",
        "check that the address is that of a Reprise server",
    )?;
    let mut file = std::fs::File::create_new(&args.out).or_hint(&what, hint)?;
    file.write_all(&bytes)
        .and_then(|()| file.sync_all())
        .or_hint(&what, hint)?;
    if args.json {
        Output::stdout().json(&json!({
            "task_id": bundle.task_id(), "file": args.out, "bytes": bytes.len(),
            "log_sha256": bundle.log_sha256(),
        }))?;
        return Ok(Exit::Ok);
    }
    inform(format_args!(
        "wrote {} to {what}, {} bytes; to replay it: reprise replay --bundle {}",
        bundle.task_id(),
        bytes.len(),
        args.out.display()
    ));
    Ok(Exit::Ok)
}

async fn retry(args: TaskRetryArgs) -> anyhow::Result<Exit> {
    let client = args.server.client()?;
    let mut body = Map::new();
    body.extend(
        args.reason
            .map(|reason| ("reason".to_owned(), Value::String(reason))),
    );
    let body = Value::Object(body);
    let key = fresh_key()?;
    let path = ["v1", "tasks", &args.id, "retry"];
    let task = Task::read(client.post(&path, Write { body, key: &key }).await?)?;
    if args.watch {
        return watch(&client, &task.id, args.server.json).await;
    }
    shown(&task, args.server.json)?;
    Ok(match task.status {
        TaskStatus::Known(Status::Failed | Status::Canceled) => Exit::No,
        ref other => other.reading(),
    })
}

async fn cancel(args: TaskCancelArgs) -> anyhow::Result<Exit> {
    let client = args.server.client()?;
    let mut tasks = Vec::new();
    for id in &args.ids {
        tasks.push(stop(&client, id, args.reason.as_deref()).await?);
    }
    match (tasks.as_slice(), args.server.json) {
        ([task], _) => shown(task, args.server.json)?,
        (tasks, true) => {
            Output::stdout().json(&tasks.iter().map(|task| &task.raw).collect::<Vec<_>>())?;
        }
        (tasks, false) => {
            for task in tasks {
                shown(task, false)?;
            }
        }
    }
    let is_known = tasks.iter().all(|task| task.status.reading() == Exit::Ok);
    Ok(if is_known { Exit::Ok } else { Exit::No })
}

/// Cancels a Task.
pub(crate) async fn stop(
    client: &Client,
    task: &str,
    reason: Option<&str>,
) -> anyhow::Result<Task> {
    let body = json!({"reason": reason});
    let key = fresh_key()?;
    let answer = client
        .post(&["v1", "tasks", task, "cancel"], Write { body, key: &key })
        .await?;
    Task::read(answer)
}

fn shown(task: &Task, json: bool) -> anyhow::Result<()> {
    let mut out = Output::stdout();
    if json {
        return out.json(&task.raw);
    }
    if is_quiet() {
        return out.line(shorten(&task.id, 120));
    }
    let status = task.status.to_string();
    let status = match paint(&task.status) {
        Some(paint) => out.paint(paint, &status),
        None => status,
    };
    out.line(format_args!("{}  {status}", shorten(&task.id, 120)))?;
    if let Some(failure) = &task.failure {
        inform(format_args!(
            "{}: {}",
            shorten(&failure.code, 60),
            shorten(&failure.message, 200)
        ));
    }
    advise(task);
    Ok(())
}
