//! What must hold of a log at every moment.

mod replays;

use std::collections::{BTreeMap, BTreeSet};

use canon::{Digest, Integers, jcs, read, sha256};
use domain::{
    Document, Event, Links, Position, ResourceKind, State, Status, apply, blob_reference,
};
use engine::port::{
    BlobStore, ListQuery, MemoryStore, NewestQuery, ReadEvents, Scope, Store, StoredEvent,
    TreeStore,
};
use receipts::merkle::Frontier;

use crate::clients::{Ledger, Reader};
pub use replays::Replays;
pub(crate) use replays::{ISSUER, check_replays};

/// Checks a whole store; the first thing that is wrong comes back.
pub(crate) async fn check(store: &MemoryStore, ledger: &Ledger) -> Result<(), String> {
    let query = ReadEvents {
        scope: Scope::All,
        after: Position::START,
        limit: usize::MAX,
    };
    let events = store
        .events(query)
        .await
        .map_err(|error| error.to_string())?;
    let mut folded: BTreeMap<Box<str>, Document> = BTreeMap::new();
    for stored in &events {
        fold(store, &mut folded, stored).await?;
    }
    check_documents(store, &folded).await?;
    check_ledger(ledger, &folded)
}

/// Checks what one life of the engine did: readers missed nothing, and nothing became unknown that was in hand.
pub(crate) async fn check_life(
    store: &MemoryStore,
    began_at: Position,
    readers: &[Reader],
) -> Result<(), String> {
    let query = ReadEvents {
        scope: Scope::All,
        after: Position::START,
        limit: usize::MAX,
    };
    let events = store
        .events(query)
        .await
        .map_err(|error| error.to_string())?;
    for reader in readers {
        let given = reader.given();
        let Some(last) = given.last().copied() else {
            continue;
        };
        // Both Workspaces are all there are; what belongs to none is nobody's.
        let held = events
            .iter()
            .filter(|event| event.position <= last && event.links.workspace.is_some())
            .map(|event| event.position);
        let held: Vec<Position> = held.collect();
        if given != held {
            let missed = held.iter().find(|position| !given.contains(position));
            return Err(format!(
                "a reader of two workspaces (pages: {}) was given {} events of {} up to {}; the first missing is {missed:?}",
                reader.pages,
                given.len(),
                held.len(),
                last.0
            ));
        }
    }
    let mut requested: BTreeMap<(Box<str>, String), Position> = BTreeMap::new();
    let mut workflows: BTreeMap<Box<str>, String> = BTreeMap::new();
    for stored in &events {
        let event = Event::parse(&stored.bytes).map_err(|error| error.to_string())?;
        let text = |pointer: &str| {
            let value = canon::Value::Object((*event.payload).clone());
            let text = value.pointer(pointer).and_then(canon::Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let task = event.resource.id.clone();
        match &*event.kind {
            "task.submitted" => drop(workflows.insert(task, text("/workflow"))),
            "vendor.effect_requested" => {
                requested.insert((task, text("/effect_key")), stored.position);
            }
            // A replay fails as its source did.
            "task.failed" if stored.position > began_at && !task.starts_with("task_replay_") => {
                let code = text("/failure/code");
                let poisoned = workflows.get(&task).map(String::as_str) == Some("poison");
                if code == "cannot_advance" && !poisoned {
                    return Err(format!(
                        "task `{task}` cannot be advanced: {}",
                        text("/failure/message")
                    ));
                }
                let key = text("/failure/details/effect_key");
                let intended = requested.get(&(task.clone(), key));
                if code == "effect_result_unknown"
                    && intended.is_none_or(|position| *position > began_at)
                {
                    return Err(format!("task `{task}` lost a result that this life had"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

async fn fold(
    store: &MemoryStore,
    folded: &mut BTreeMap<Box<str>, Document>,
    stored: &StoredEvent,
) -> Result<(), String> {
    let value = read(&stored.bytes, Integers::Safe).map_err(|error| error.to_string())?;
    if jcs(&value) != *stored.bytes {
        return Err(format!("event at {} is not canonical", stored.position.0));
    }
    let event = Event::parse(&stored.bytes).map_err(|error| error.to_string())?;
    if store.name().position(&event.id) != Some(stored.position) {
        return Err(format!(
            "event `{}` stands at {}",
            event.id, stored.position.0
        ));
    }
    let known = folded.remove(&event.resource.id);
    let previous = known.as_ref().map(|document| store.name().id(document.tip));
    if event.previous_event_id.as_deref() != previous.as_deref() {
        return Err(format!(
            "event `{}` does not link to its predecessor",
            event.id
        ));
    }
    if let Some(Document {
        state: State::Task(task),
        ..
    }) = &known
        && task.status.is_terminal()
    {
        return Err(format!("event `{}` follows the end of its task", event.id));
    }
    for member in [
        "parts", "metadata", "input", "value", "answer", "request", "persona",
    ] {
        if let Some(digest) = blob_reference(&event.payload, member) {
            let bytes = store
                .blob(digest)
                .await
                .map_err(|error| error.to_string())?;
            if bytes.as_deref().map(sha256) != Some(digest) {
                return Err(format!(
                    "blob {digest} of event `{}` is missing or altered",
                    event.id
                ));
            }
        }
    }
    // Links of a new document are checked against the stored one below.
    let document = apply(
        store.name(),
        known,
        &event,
        stored.position,
        stored.links.clone(),
    )
    .map_err(|error| error.to_string())?;
    folded.insert(document.id.clone(), document);
    check_closed(folded, &event)
}

/// A Session is closed when nobody works for it or waits in it any more (U9), and stays so. Replays say nothing in it.
fn check_closed(folded: &BTreeMap<Box<str>, Document>, event: &Event) -> Result<(), String> {
    if !matches!(&*event.kind, "session.closed" | "task.submitted") {
        return Ok(());
    }
    let session = event.session_id.as_ref().map(|id| id.as_str());
    let is_closed = folded
        .get(session.unwrap_or_default())
        .is_some_and(|document| matches!(&document.state, State::Session(of) if of.closed));
    let left = folded.values().find(|document| {
        matches!(&document.state, State::Task(task)
            if Some(task.session_id.as_str()) == session
                && task.replay.is_none()
                && !task.status.is_terminal())
    });
    match left {
        Some(task) if is_closed => Err(format!(
            "task `{}` is open in a session that is closed",
            task.id
        )),
        _ => Ok(()),
    }
}

async fn check_documents(
    store: &MemoryStore,
    folded: &BTreeMap<Box<str>, Document>,
) -> Result<(), String> {
    let mut count = 0;
    for kind in ResourceKind::ALL {
        let query = ListQuery {
            kind,
            scope: Scope::All,
            open_only: false,
            after: Position::START,
            limit: usize::MAX,
        };
        for document in store.list(query).await.map_err(|error| error.to_string())? {
            count += 1;
            let expected = folded.get(&document.id);
            let same = expected.is_some_and(|expected| {
                // An artifact's own links may be wider than its event's.
                Document {
                    links: Links::default(),
                    ..expected.clone()
                } == Document {
                    links: Links::default(),
                    ..document.clone()
                }
            });
            if !same {
                return Err(format!("document `{}` differs from the fold", document.id));
            }
        }
    }
    if count != folded.len() {
        return Err(format!(
            "{count} documents are stored, {} are folded",
            folded.len()
        ));
    }
    Ok(())
}

fn check_ledger(ledger: &Ledger, folded: &BTreeMap<Box<str>, Document>) -> Result<(), String> {
    if let Some(contradiction) = ledger.contradictions.first() {
        return Err(contradiction.clone());
    }
    for (key, id) in &ledger.acknowledged {
        if !folded.contains_key(id) {
            return Err(format!("`{id}` was acknowledged for {key} and is gone"));
        }
    }
    for (id, status) in &ledger.ended {
        match folded.get(id).map(|document| &document.state) {
            Some(State::Task(task)) if task.status == *status => {}
            other => {
                return Err(format!(
                    "task `{id}` was acknowledged as {status:?} and is {other:?}"
                ));
            }
        }
    }
    Ok(())
}

/// What must hold once nothing is left to do: every Task has ended, each key made one resource, replays are what they
/// replay.
pub(crate) async fn check_end(store: &MemoryStore, ledger: &Ledger) -> Result<Replays, String> {
    let query = ListQuery {
        kind: ResourceKind::Task,
        scope: Scope::All,
        open_only: true,
        after: Position::START,
        limit: usize::MAX,
    };
    let open = store.list(query).await.map_err(|error| error.to_string())?;
    if let Some(stuck) = open.first() {
        let status = match &stuck.state {
            State::Task(task) => task.status,
            _ => Status::Submitted,
        };
        return Err(format!(
            "task `{}` is stuck at {}",
            stuck.id,
            status.as_str()
        ));
    }
    check_receipts(store).await?;
    let query = ReadEvents {
        scope: Scope::All,
        after: Position::START,
        limit: usize::MAX,
    };
    let events = store
        .events(query)
        .await
        .map_err(|error| error.to_string())?;
    let mut used = BTreeSet::new();
    for stored in &events {
        let event = Event::parse(&stored.bytes).map_err(|error| error.to_string())?;
        if let Some(key) = event.idempotency_key
            && !used.insert(key.clone())
        {
            return Err(format!("idempotency key {key} was carried out twice"));
        }
    }
    for key in ledger.acknowledged.keys() {
        // A cancel or an answer that found its task ended, or a session's own messages, may write nothing.
        let optional = key.contains("/cancel") || key.contains("/answer");
        if !used.contains(key) && !optional {
            return Err(format!("{key} was acknowledged without an event"));
        }
    }
    check_replays(store).await
}

/// Every ended Task has one receipt, receipts of a Session form one chain, and the tree is over all of them.
async fn check_receipts(store: &MemoryStore) -> Result<(), String> {
    let all = |kind| ListQuery {
        kind,
        scope: Scope::All,
        open_only: false,
        after: Position::START,
        limit: usize::MAX,
    };
    let fault = |error: engine::port::StoreFault| error.to_string();
    let tasks = store.list(all(ResourceKind::Task)).await.map_err(fault)?;
    let issued = store
        .list(all(ResourceKind::Receipt))
        .await
        .map_err(fault)?;
    if tasks.len() != issued.len() {
        return Err(format!(
            "{} tasks have ended and {} receipts were issued",
            tasks.len(),
            issued.len()
        ));
    }
    let mut chains: BTreeMap<String, Digest> = BTreeMap::new();
    let mut known = BTreeSet::new();
    let mut frontier = Frontier::EMPTY;
    for document in &issued {
        let State::Receipt(state) = &document.state else {
            continue;
        };
        let bytes = store
            .blob(state.content)
            .await
            .map_err(fault)?
            .unwrap_or_default();
        let checked = receipts::stream::check(&bytes)
            .map_err(|error| format!("{}: {error:?}", document.id))?;
        let stated = receipts::Receipt::read(&bytes).map_err(|error| error.to_string())?;
        // A replay's hangs off its source's and leaves the chain alone.
        let before = match stated.is_replay() {
            true => stated
                .previous_hash()
                .filter(|source| known.contains(source)),
            false => chains.insert(state.session_id.to_string(), state.receipt_hash),
        };
        known.insert(state.receipt_hash);
        if stated.previous_hash() != before || checked.hash != state.receipt_hash {
            return Err(format!(
                "receipt `{}` does not follow its predecessor",
                document.id
            ));
        }
        frontier =
            receipts::merkle::append(frontier, receipts::merkle::leaf(&state.receipt_hash)).0;
    }
    let tree = store.tree().await.map_err(fault)?;
    if tree.size != frontier.size() || tree.peaks != frontier.peaks() {
        return Err(format!(
            "the tree has {} leaves of {}",
            tree.size,
            frontier.size()
        ));
    }
    let newest = store
        .newest(NewestQuery::one(ResourceKind::Batch))
        .await
        .map_err(fault)?;
    match newest.into_iter().map(|document| document.state).next() {
        Some(State::Batch(batch)) if batch.size == tree.size && batch.root == frontier.root() => {
            Ok(())
        }
        None if tree.size == 0 => Ok(()),
        other => Err(format!("the newest head is {other:?}")),
    }
}
