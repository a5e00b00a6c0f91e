//! `reprise replay --list`: what of a run can be changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use canon::{Value, jcs};
use engine::replay::{self, Key, Source, readable};
use serde_json::json;

use super::ReplayArgs;
use crate::client::{Client, Page, Target};
use crate::exit::{Exit, Problem};
use crate::output::{Output, Paint, Table, shorten, talk};

/// Lists the keys of a Task on a server, from its events alone.
pub(super) async fn online(args: &ReplayArgs, task: &str) -> anyhow::Result<Exit> {
    let client = Client::new(Target::find(&args.connection)?)?;
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
    let source = Source::read(&events, BTreeMap::new(), None, None).map_err(|error| {
        Problem::new(
            format!("`{task}` cannot be replayed: {error}"),
            format!("`reprise task get {task}` shows where it stands"),
        )
        .answers_no()
    })?;
    show(&source, args.json, Some(task))
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
    talk(format_args!(
        "to change one: {command} --set KEY=TEXT, or --override KEY=FILE for JSON"
    ));
    let checkpoint = keys
        .iter()
        .find_map(|key| key.key.strip_prefix("host:checkpoint:"));
    if let Some(checkpoint) = checkpoint {
        talk(format_args!(
            "to start later: {command} --from {checkpoint}"
        ));
    }
    Ok(Exit::Ok)
}

fn preview(key: &Key) -> String {
    let text = match &key.value {
        None if key.ok => "(not shown here; `reprise task export` has it)".to_owned(),
        None => "(nothing recorded)".to_owned(),
        Some(Value::Object(_) | Value::Array(_)) if key.kind == "checkpoint_value" => {
            key.value.as_ref().map(Value::to_string).unwrap_or_default()
        }
        Some(value) => readable(value),
    };
    match key.ok || key.value.is_none() {
        true => shorten(&text, 80),
        false => shorten(&format!("error: {text}"), 80),
    }
}
