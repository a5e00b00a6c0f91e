//! What must hold of replays once nothing is left to do.
//!
//! The oracle is the pure replay: the bundle of the source, taken from the store by other code than the engine's, written as
//! a file and read again, gives the receipt and the events that the engine must have come to over all its crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use canon::{Value, jcs};
use domain::{
    Document, Event, Kind, Position, ReplayOf, ResourceKind, State, Status, Task, TaskId,
};
use engine::port::{BlobStore, ListQuery, MemoryStore, ReadEvents, Scope, Store};
use receipts::Receipt;
use runs::replay::{
    self, Bundle, Progress, ReceiptIssuer, Replayed, Source, Spec, bundle_names, receipt,
    request_names, run,
};
use serde_json::json;

use crate::talker::workflows;

/// The id under which simulated engines issue receipts.
pub(crate) const ISSUER: &str = "simulated";

/// How many replays there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replays {
    /// Of Tasks.
    pub tasks: usize,
    /// Of Sessions.
    pub sessions: usize,
}

/// Checks every replay in a store.
pub(crate) async fn check_replays(store: &MemoryStore) -> Result<Replays, String> {
    let mut found = Replays::default();
    for document in list(store, ResourceKind::Task).await? {
        if let State::Task(task) = &document.state
            && let Some(of) = &task.replay
        {
            found.tasks += 1;
            let problem = |problem| {
                let (id, workflow) = (&document.id, &task.workflow);
                format!("replay `{id}` of `{workflow}`: {problem}")
            };
            check_task(store, &document, task, of)
                .await
                .map_err(problem)?;
        }
    }
    for document in list(store, ResourceKind::Session).await? {
        let problem = |problem| format!("session `{}`: {problem}", document.id);
        found.sessions += check_session(store, &document).await.map_err(problem)?;
    }
    Ok(found)
}

async fn check_task(
    store: &MemoryStore,
    document: &Document,
    task: &Task,
    of: &ReplayOf,
) -> Result<(), String> {
    let source = source(store, &of.source_task_id).await?;
    let request = blob(store, of.request).await?;
    let mut request: Value = read(&request)?;
    let spec = request.get_mut("request").map(Value::take);
    let spec: Spec = serde_json::from_value(spec.unwrap_or_default()).map_err(text)?;
    let none = BTreeMap::new();
    let computed = match run(&source, &workflows(), &spec, &none, BTreeMap::new()) {
        Progress::Ended(computed) => computed,
        Progress::Needs(paused) => {
            return Err(format!("it would perform `{}`", paused.effect().key));
        }
    };
    // A client may have canceled it on its way.
    let canceled = task.status == Status::Canceled && computed.end.status != Status::Canceled;
    check_events(store, document, &source, &spec, &computed, canceled).await?;
    let ended = match canceled {
        true => {
            let log = events(store, Scope::Task(document.key)).await?;
            let told = log.into_iter().filter(|event| {
                let mark = event.replay.as_ref();
                mark.is_some_and(|mark| mark.override_key.is_some())
            });
            replay::canceled(&source, &spec, told.collect())
        }
        false => computed,
    };
    if ended.end.status != task.status {
        return Err(format!(
            "ended {:?}, not {:?}",
            task.status, ended.end.status
        ));
    }
    let issuing = ReceiptIssuer {
        id: ISSUER.to_owned(),
        name: None,
        ordinal: of.ordinal,
    };
    let expected = receipt(&source, &spec, &ended, &issuing).map_err(text)?;
    let stored = receipt_of(store, task).await?;
    if unsigned(&stored) != unsigned(&expected) {
        let (expected, stored) = (show(&unsigned(&expected)), show(&unsigned(&stored)));
        return Err(format!(
            "its receipt is {stored}\nthe pure replay gives {expected}"
        ));
    }
    Ok(())
}

/// The events of a replay are those of the computed run, each once and in order.
async fn check_events(
    store: &MemoryStore,
    document: &Document,
    source: &Source,
    spec: &Spec,
    computed: &Replayed,
    canceled: bool,
) -> Result<(), String> {
    let id = TaskId::parse(&document.id).map_err(text)?;
    let expected = computed.emissions.iter().map(|emission| {
        let event = computed.event(source, emission, &id, spec.mode.as_str());
        (event.kind.as_str().to_owned(), event.mark)
    });
    let expected: Vec<_> = expected.collect();
    let stored = events(store, Scope::Task(document.key)).await?;
    let stored: Vec<_> = stored
        .into_iter()
        .filter_map(|event| Some((event.kind.to_string(), *event.replay?)))
        .collect();
    let enough = match canceled {
        true => expected.get(..stored.len()).unwrap_or_default(),
        false => &expected,
    };
    match stored == enough {
        true => Ok(()),
        false => Err(format!(
            "it tells {} events again where {} were computed, or others",
            stored.len(),
            expected.len()
        )),
    }
}

/// The replay of a Session ends in one `session.replayed` that tells what its plan says, each Task once.
async fn check_session(store: &MemoryStore, document: &Document) -> Result<usize, String> {
    let State::Session(session) = &document.state else {
        return Ok(0);
    };
    let all = events(store, Scope::Session(document.key)).await?;
    let of_session = all.iter().filter(|event| event.resource.id == document.id);
    let of_session: Vec<&Event> = of_session.collect();
    let told: Vec<&&Event> = of_session
        .iter()
        .filter(|event| event.kind() == Ok(Kind::SessionReplayed))
        .collect();
    let plan = of_session
        .first()
        .and_then(|created| created.payload.get("replay_plan_sha256"));
    let Some(plan) = plan else {
        return match told.is_empty() {
            true => Ok(0),
            false => Err("says that it replayed, and was never asked to".to_owned()),
        };
    };
    if session.replaying.is_some() {
        return Err("is still replaying".to_owned());
    }
    let [told] = told.as_slice() else {
        return Err(format!("says {} times that it is done", told.len()));
    };
    let plan = canon::Digest::parse(plan.as_str().unwrap_or_default()).map_err(text)?;
    let plan: Value = read(&blob(store, plan).await?)?;
    let ids = |value: &Value, member: &str| -> Vec<String> {
        let tasks = value.get("tasks").and_then(Value::as_array);
        let tasks = tasks.into_iter().flatten();
        tasks
            .filter_map(|task| Some(task.get(member)?.as_str()?.to_owned()))
            .collect()
    };
    let planned = ids(&plan, "task_id");
    let payload = Value::Object((*told.payload).clone());
    let done = ids(&payload, "source_task_id");
    let replays = ids(&payload, "replay_task_id");
    let completed = payload.get("completed") == Some(&Value::Bool(true));
    if planned.get(..done.len()) != Some(done.as_slice()) || (completed && done != planned) {
        return Err(format!("planned {planned:?} and did {done:?}"));
    }
    let mut held = BTreeSet::new();
    for task in list(store, ResourceKind::Task).await? {
        if task.links.session == Some(document.key)
            && matches!(&task.state, State::Task(task) if task.replay.is_some())
        {
            held.insert(task.id.to_string());
        }
    }
    let distinct: BTreeSet<String> = replays.iter().cloned().collect();
    match distinct == held && distinct.len() == done.len() {
        true => Ok(1),
        false => Err(format!("tells of {replays:?} and holds {held:?}")),
    }
}

/// Returns a finished Task as a source, by way of its bundle as a file.
async fn source(store: &MemoryStore, id: &TaskId) -> Result<Source, String> {
    let document = store.document(id.as_str()).await.map_err(text)?;
    let document = document.ok_or_else(|| format!("its source `{id}` is gone"))?;
    let State::Task(task) = &document.state else {
        return Err(format!("`{id}` is not a task"));
    };
    let query = ReadEvents {
        scope: Scope::Task(document.key),
        after: Position::START,
        limit: usize::MAX,
    };
    let events = store.events(query).await.map_err(text)?;
    let events: Vec<Arc<[u8]>> = events.into_iter().map(|event| event.bytes).collect();
    let mut named = bundle_names(&events).map_err(text)?;
    if let Some(of) = &task.replay {
        named.extend(request_names(&blob(store, of.request).await?));
    }
    let mut blobs = BTreeMap::new();
    for digest in named {
        if let Some(bytes) = store.blob(digest).await.map_err(text)? {
            blobs.insert(digest, bytes);
        }
    }
    let receipt = receipt_of(store, task).await?;
    let bundle = Bundle::new(&events, blobs, Some(receipt)).map_err(text)?;
    let bundle = Bundle::read(&bundle.to_bytes()).map_err(text)?;
    bundle.into_source().map_err(text)
}

async fn receipt_of(store: &MemoryStore, task: &Task) -> Result<Receipt, String> {
    let id = task.receipt_id.as_ref().ok_or("it has no receipt")?;
    let document = store.document(id.as_str()).await.map_err(text)?;
    match document.map(|document| document.state) {
        Some(State::Receipt(receipt)) => {
            Receipt::read(&blob(store, receipt.content).await?).map_err(text)
        }
        _ => Err(format!("its receipt `{id}` is gone")),
    }
}

async fn list(store: &MemoryStore, kind: ResourceKind) -> Result<Vec<Document>, String> {
    let query = ListQuery {
        kind,
        scope: Scope::All,
        open_only: false,
        after: Position::START,
        limit: usize::MAX,
    };
    store.list(query).await.map_err(text)
}

async fn events(store: &MemoryStore, scope: Scope) -> Result<Vec<Event>, String> {
    let query = ReadEvents {
        scope,
        after: Position::START,
        limit: usize::MAX,
    };
    let events = store.events(query).await.map_err(text)?;
    let events = events.iter().map(|event| Event::parse(&event.bytes));
    events.collect::<Result<_, _>>().map_err(text)
}

async fn blob(store: &MemoryStore, digest: canon::Digest) -> Result<Vec<u8>, String> {
    let bytes = store.blob(digest).await.map_err(text)?;
    bytes.ok_or_else(|| format!("blob {digest} is gone"))
}

fn read(bytes: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(bytes).map_err(text)
}

fn unsigned(receipt: &Receipt) -> Vec<u8> {
    let mut map = receipt.as_map().clone();
    map.insert("signatures".to_owned(), json!([]));
    jcs(&Value::Object(map))
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
