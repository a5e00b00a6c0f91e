//! `reprise replay --list`: what of a run can be changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use canon::{Value, jcs};
use runs::replay::{self, Key, Source, readable};
use serde_json::json;

use super::{ReplayArgs, source_of};
use crate::client::{Client, Page, Target};
use crate::exit::{Exit, Problem, is_refused};
use crate::output::{Output, Paint, Table, inform, shorten};

/// Lists the keys of a Task on a server.
pub(super) async fn online(args: &ReplayArgs, task: &str) -> anyhow::Result<Exit> {
    let client = Client::new(Target::find(&args.connection)?)?;
    show(
        &recorded(&client, task).await?.source,
        args.json,
        Some(task),
    )
}

/// What a key may read of a run.
pub(super) struct RecordedKeys {
    pub(super) source: Source,
    /// False where only its events could be read, without what is not public.
    pub(super) is_whole: bool,
}

/// Reads the record of a Task: all of it if this key may, else its events alone.
pub(super) async fn recorded(client: &Client, task: &str) -> anyhow::Result<RecordedKeys> {
    let path = ["v1", "tasks", task, "bundle"];
    match client.get_bytes(&path, &[]).await {
        Ok(bytes) => Ok(RecordedKeys {
            source: source_of(&bytes, "what the server sent")?,
            is_whole: true,
        }),
        Err(error) if is_refused(&error, &["permission_denied", "policy_violation"]) => {
            Ok(RecordedKeys {
                source: of_events(client, task).await?,
                is_whole: false,
            })
        }
        Err(error) => Err(error),
    }
}

async fn of_events(client: &Client, task: &str) -> anyhow::Result<Source> {
    let mut events: Vec<Arc<[u8]>> = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let mut query = vec![("limit", "200")];
        if let Some(after) = &after {
            query.push(("after_event_id", after));
        }
        let page = client.get(&["v1", "tasks", task, "events"], &query).await?;
        let page = Page::read(&page)?;
        let last = page.data.last().and_then(|event| event.get("id")?.as_str());
        after = last.map(str::to_owned);
        events.extend(page.data.iter().map(|event| jcs(event).into()));
        if page.next.is_none() || after.is_none() {
            break;
        }
    }
    Source::read(&events, BTreeMap::new(), None, None).map_err(|error| {
        Problem::new(
            format!("`{task}` cannot be replayed: {error}"),
            format!("`reprise task get {task}` shows where it stands"),
        )
        .answers_no()
        .into()
    })
}

/// Prints them.
pub(super) fn show(source: &Source, as_json: bool, task: Option<&str>) -> anyhow::Result<Exit> {
    let keys = replay::keys(source);
    let mut out = Output::stdout();
    if as_json {
        out.json(&json!(keys))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["KEY", "KIND", "EVENT", "RECORDED"]);
    for key in &keys {
        let paint = (!key.ok).then_some(Paint::Bad);
        table.row([
            (shorten(&key.key, 100), None),
            (key.kind.to_owned(), Some(Paint::Quiet)),
            (key.sequence.to_string(), Some(Paint::Quiet)),
            (preview(key), paint),
        ]);
    }
    table.print(&mut out, "")?;
    let command = match task {
        Some(task) => format!("reprise replay {task}"),
        None => "reprise replay --bundle FILE".to_owned(),
    };
    inform(format_args!(
        "to change one: {command} --set KEY=TEXT, or --override KEY=FILE for JSON"
    ));
    let checkpoint = keys
        .iter()
        .find_map(|key| key.key.strip_prefix("host:checkpoint:"));
    if let Some(checkpoint) = checkpoint {
        inform(format_args!(
            "to start later: {command} --from {checkpoint}"
        ));
    }
    Ok(Exit::Ok)
}

fn preview(key: &Key) -> String {
    let text = match &key.value {
        None if !key.recorded => return "(nothing recorded)".to_owned(),
        None => return elsewhere(key),
        Some(value @ (Value::Object(_) | Value::Array(_))) if key.kind == "checkpoint_value" => {
            value.to_string()
        }
        Some(value) => readable(value),
    };
    let prefix = match (key.ok, key.overridden) {
        (_, true) => "overridden: ",
        (true, false) => "",
        (false, false) => "error: ",
    };
    shorten(&format!("{prefix}{text}"), 80)
}

/// Says where a value is that cannot be shown here.
fn elsewhere(key: &Key) -> String {
    match (&key.value_sha256, key.kind) {
        (_, "secret_value") => "(a secret: its value is kept nowhere)".to_owned(),
        (Some(digest), _) => {
            let digest = shorten(digest, 20);
            format!("(not visible to this key: {digest}; a key with `internal:read` sees it)")
        }
        (None, _) => "(not stated)".to_owned(),
    }
}
