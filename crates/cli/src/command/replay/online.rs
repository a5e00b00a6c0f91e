//! A replay on a server: upload what is large, ask, wait, tell.

use std::collections::BTreeMap;
use std::io::Write as _;

use canon::{Value, jcs};
use runs::replay::{ReadArtifact, question};
use serde_json::json;

use super::keys::{RecordedKeys, recorded};
use super::report::Report;
use super::request::{Large, Names, PreparedRequest, given_keys, own, prepare};
use super::{ReplayArgs, trial};
use crate::client::{Client, Cursor, Flow, Target, Task, Write, follow, fresh_key};
use crate::exit::{Exit, Problem, is_refused};
use crate::output::{Output, Progress, inform};

/// Replays and tells.
pub(super) async fn run(args: &ReplayArgs, task: &str) -> anyhow::Result<Exit> {
    let client = Client::new(Target::find(&args.connection)?)?;
    let changes = given_keys(args).next().is_some();
    let asked = match changes {
        true => Some(recorded(&client, task).await?),
        false => None,
    };
    let mut prepared = prepare(args, Names::Keys, |key| {
        question(&asked.as_ref()?.source, key)
    })?;
    if let Some(asked) = &asked {
        rehearse(&client, args, asked, &prepared).await?;
    }
    let source = client.task(task).await?;
    for large in prepared.take_large() {
        let workspace = member(&source, "workspace_id");
        let id = upload(&client, &source.session_id, workspace, &large).await?;
        prepared.place(&large.key, &id);
    }
    let body = prepared.value();
    let mode = body.get("mode").and_then(Value::as_str);
    let mode = mode.unwrap_or("exact").to_owned();
    let key = fresh_key()?;
    let path = ["v1", "tasks", task, "replay"];
    let accepted = Task::read(client.post(&path, Write { body, key: &key }).await?)?;
    if args.no_wait {
        let mut out = Output::stdout();
        if args.json {
            out.json(&accepted.raw)?;
        } else {
            out.line(format_args!("{}  {}", accepted.id, accepted.status))?;
            inform(format_args!(
                "to follow it: reprise task watch {}",
                accepted.id
            ));
        }
        return Ok(Exit::Ok);
    }
    let mut report = Report {
        task: accepted.id.clone(),
        source: task.to_owned(),
        mode,
        wants_live: !args.refresh.is_empty(),
        wants_all: changes,
        ..Report::default()
    };
    let progress = Progress::begin("replaying");
    let ended = follow(&client, &accepted.id, &mut Cursor::default(), |event| {
        report.event(event);
        Ok(Flow::Continue)
    })
    .await?;
    drop(progress);
    report.status = ended.status.to_string();
    if report.failure.is_null() {
        report.failure = ended.raw.get("failure").cloned().unwrap_or_default();
    }
    report.receipt = member(&ended, "receipt_id");
    if args.receipt {
        let bytes = receipt(&client, report.receipt.as_deref()).await?;
        std::io::stdout().write_all(&bytes)?;
        return Ok(report.exit());
    }
    report.answer = answer(&client, &ended).await?;
    report.source_answer = answer(&client, &source).await?;
    let mut next = vec![format!("reprise diff {task} {}", report.task)];
    if let Some(receipt) = &report.receipt {
        next.push(format!("reprise receipt show {receipt}"));
    }
    report.print(args.json, &next)?;
    Ok(report.exit())
}

/// Reads the artifacts that take the place of answers.
pub(super) async fn read_artifacts(
    client: &Client,
    args: &ReplayArgs,
) -> anyhow::Result<BTreeMap<String, ReadArtifact>> {
    let mut artifacts = BTreeMap::new();
    for (_, id) in &args.override_artifact {
        let path = ["v1", "artifacts", id, "content"];
        artifacts.insert(id.clone(), own(client.get_bytes(&path, &[]).await?));
    }
    Ok(artifacts)
}

/// Refuses changes that the run would never ask for, before the server knows of a replay.
async fn rehearse(
    client: &Client,
    args: &ReplayArgs,
    recorded: &RecordedKeys,
    prepared: &PreparedRequest,
) -> anyhow::Result<()> {
    if !recorded.is_whole {
        return trial::check_names(&recorded.source, given_keys(args));
    }
    let mut artifacts = read_artifacts(client, args).await?;
    let body = prepared.clone().into_local(&mut artifacts);
    trial::check(&recorded.source, &body, &artifacts, false)
}

fn member(task: &Task, name: &str) -> Option<String> {
    Some(task.raw.get(name)?.as_str()?.to_owned())
}

/// Keeps a large value as an Artifact. The Task itself is sealed: it belongs to the Session.
pub(super) async fn upload(
    client: &Client,
    session: &str,
    workspace: Option<String>,
    large: &Large,
) -> anyhow::Result<String> {
    let mut body = json!({
        "kind": "other",
        "mime_type": "application/json",
        // What nobody may read nobody may put into a run.
        "visibility": "internal",
        "session_id": session,
        "workspace_id": workspace,
        "metadata": {"override_key": large.key},
    });
    let key = fresh_key()?;
    let write = |body: &Value| Write {
        body: body.clone(),
        key: &key,
    };
    let artifact = match client.post(&["v1", "artifacts"], write(&body)).await {
        // Nothing is added to a session that is closed: the value then belongs to the workspace alone.
        Err(error) if is_refused(&error, &["conflict"]) => {
            if let Value::Object(body) = &mut body {
                body.remove("session_id");
            }
            client.post(&["v1", "artifacts"], write(&body)).await?
        }
        artifact => artifact?,
    };
    let Some(id) = artifact.get("id").and_then(Value::as_str) else {
        return Err(Problem::new(
            "the server's answer is not an artifact",
            "check that the address is that of an Agents Protocol server",
        )
        .into());
    };
    client
        .put(&["v1", "artifacts", id, "content"], &large.bytes)
        .await?;
    Ok(id.to_owned())
}

/// Returns what a Task said at its end.
pub(super) async fn answer(client: &Client, task: &Task) -> anyhow::Result<Option<String>> {
    let Some(id) = member(task, "outcome_id") else {
        return Ok(None);
    };
    let outcome = client.get(&["v1", "outcomes", &id], &[]).await?;
    let messages = outcome.get("messages").and_then(Value::as_array);
    let last = messages.and_then(|messages| messages.last());
    let parts = last.and_then(|message| message.get("parts")?.as_array());
    Ok(parts.map(|parts| domain::public_text(parts)))
}

/// Returns the canonical bytes of a receipt without its signatures, the part that every server writes alike.
async fn receipt(client: &Client, id: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let none = || {
        Problem::new(
            "the replay left no receipt",
            "`reprise task get` shows how it ended",
        )
    };
    let id = id.ok_or_else(none)?;
    let mut shown = client.get(&["v1", "receipts", id], &[]).await?;
    let mut bare = shown
        .pointer_mut("/wire/payload")
        .map(Value::take)
        .ok_or_else(none)?;
    if let Value::Object(members) = &mut bare {
        members.insert("signatures".to_owned(), json!([]));
    }
    Ok(jcs(&bare))
}
