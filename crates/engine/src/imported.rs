//! Tasks that were taken over from another log: what is read of them is read from their bundle.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use canon::{Digest, Value, sha256};
use domain::{
    Document, Event, Imported, Kind, Links, Position, State, TaskId, blob_reference, payload,
};

use crate::cache::Recent;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::{Scope, StoredEvent};
use crate::read::{EventPage, EventRange};
use crate::record::unreadable;
use crate::refused::Refused;
use runs::replay::{Bundle, Failure};

/// The logs of Tasks that were taken over and are being read, by their bundles: a page of one does not cost the reading of
/// all of it. What a digest names never changes.
#[derive(Debug)]
pub(crate) struct ImportedLogs(Mutex<Recent<Digest, Arc<ImportedLog>>>);

/// What all of them may hold together.
const LOGS_BYTES_MAX: usize = 32 * 1024 * 1024;
/// What an event takes beside its text.
const EVENT_BYTES: usize = 128;

/// The events of a bundle.
#[derive(Debug)]
pub(crate) struct ImportedLog {
    events: Vec<Box<[u8]>>,
    /// Where each stands, by its id.
    places: BTreeMap<Box<str>, usize>,
}

impl ImportedLog {
    fn of(bundle: &Bundle) -> Self {
        let events = bundle.events();
        let ids = events.map(|(_, event)| event.id.clone());
        Self {
            places: ids.zip(0..).collect(),
            events: bundle.events().map(|(bytes, _)| bytes.into()).collect(),
        }
    }

    fn weight(&self) -> usize {
        let events = self.events.iter();
        events.map(|event| EVENT_BYTES + event.len()).sum()
    }
}

impl Default for ImportedLogs {
    fn default() -> Self {
        Self(Mutex::new(Recent::new(LOGS_BYTES_MAX)))
    }
}

impl ImportedLogs {
    fn find(&self, bundle: Digest) -> Option<Arc<ImportedLog>> {
        self.lock().get(&bundle).cloned()
    }

    /// Keeps a log, unless it would take the room of all others.
    fn keep(&self, bundle: Digest, log: &Arc<ImportedLog>) {
        let weight = log.weight();
        let mut logs = self.lock();
        if weight <= logs.weight_max() {
            logs.insert(bundle, Arc::clone(log), weight);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Recent<Digest, Arc<ImportedLog>>> {
        // Each change leaves whole entries.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A Task that was taken over, with its own log.
struct ImportedTask {
    key: Position,
    links: Links,
    log: Arc<ImportedLog>,
}

impl ImportedTask {
    /// Returns the place of an event in its own log.
    fn place(&self, id: &str) -> Option<usize> {
        self.log.places.get(id).copied()
    }

    /// Returns an event of its own log. It has a place in that log alone; here it stands where its Task does.
    fn event(&self, bytes: &[u8]) -> StoredEvent {
        StoredEvent {
            position: self.key,
            links: self.links.clone(),
            resource: self.key,
            bytes: bytes.into(),
        }
    }
}

impl Engine {
    /// Reads the bundle of a Task that was taken over; what is wrong with it otherwise.
    pub(crate) async fn imported_bundle(
        &self,
        id: &TaskId,
        submitted: Position,
        imported: &Imported,
    ) -> Result<Result<Bundle, Failure>, Refused> {
        let bytes = self.shared.store.blob_as_stored(imported.bundle).await?;
        let Some(bytes) = bytes else {
            let event = self.event_at(submitted).await?;
            let pruned = event.is_some_and(|event| event.is_header());
            let reason = if pruned { "pruned" } else { "missing" };
            return Ok(Err(unreadable(id, reason)));
        };
        let expected = imported.bundle;
        let bundle = self
            .run_blocking(move || {
                (sha256(&bytes) == expected)
                    .then(|| Bundle::read(&bytes).ok())
                    .flatten()
            })
            .await?;
        Ok(bundle.ok_or_else(|| unreadable(id, "log_corrupt")))
    }

    /// Reads the events of a Task that was taken over, its own first, under their own ids; after them comes what this
    /// log tells of its arrival. None when the range is not one of them.
    pub(crate) async fn events_of_imported(
        &self,
        scopes: &[Scope],
        range: &EventRange,
    ) -> Result<Option<EventPage>, Refused> {
        let Some(taken) = self.imported_task(scopes, range).await? else {
            return Ok(None);
        };
        let begin = match &range.after_event_id {
            None => 0,
            Some(after) => match taken.place(after) {
                Some(place) => place + 1,
                // One of this log, or none at all.
                None => return Ok(None),
            },
        };
        let more = range.limit + 1;
        let theirs = taken.log.events.iter().skip(begin).take(more);
        let mut events: Vec<StoredEvent> = theirs.map(|bytes| taken.event(bytes)).collect();
        let room = more - events.len();
        if room > 0 {
            let scope = Scope::Task(taken.key);
            let own = self.read_scopes(&[scope], Position::START, room).await?;
            events.extend(own);
        }
        let has_more = events.len() > range.limit;
        events.truncate(range.limit);
        Ok(Some(EventPage { events, has_more }))
    }

    /// The same backwards: what this log tells of its arrival comes first.
    pub(crate) async fn newest_events_of_imported(
        &self,
        caller: &Caller,
        scopes: &[Scope],
        range: &EventRange,
    ) -> Result<Option<EventPage>, Refused> {
        let Some(taken) = self.imported_task(scopes, range).await? else {
            return Ok(None);
        };
        let cursor = range.after_event_id.as_deref();
        let more = range.limit + 1;
        let place = cursor.and_then(|cursor| taken.place(cursor));
        let mut events = match (cursor, place) {
            (_, Some(_)) => Vec::new(),
            (cursor, None) => {
                let before = match cursor {
                    None => None,
                    Some(id) => {
                        let event = self.visible_event(caller, id, Some("after_event_id"));
                        Some(event.await?.position)
                    }
                };
                let scope = Scope::Task(taken.key);
                self.read_scopes_back(&[scope], before, more).await?
            }
        };
        let theirs = &taken.log.events;
        let older = theirs.get(..place.unwrap_or(theirs.len()));
        let older = older.into_iter().flatten().rev();
        let room = more - events.len();
        events.extend(older.take(room).map(|bytes| taken.event(bytes)));
        let has_more = events.len() > range.limit;
        events.truncate(range.limit);
        Ok(Some(EventPage { events, has_more }))
    }

    /// Finds the Task of a range, and its bundle, when it was taken over.
    async fn imported_task(
        &self,
        scopes: &[Scope],
        range: &EventRange,
    ) -> Result<Option<ImportedTask>, Refused> {
        let ([Scope::Task(key)], Some(id)) = (scopes, &range.filters.task_id) else {
            return Ok(None);
        };
        let document = self.document(id).await?;
        let Some(Document {
            state: State::Task(task),
            links,
            ..
        }) = document
        else {
            return Ok(None);
        };
        let (Some(imported), Ok(id)) = (&task.imported, TaskId::parse(id)) else {
            return Ok(None);
        };
        let logs = &self.shared.imported;
        let log = match logs.find(imported.bundle) {
            Some(log) => log,
            None => {
                let bundle = self.imported_bundle(&id, task.submitted, imported).await?;
                let Ok(bundle) = bundle else {
                    return Ok(None);
                };
                let log = Arc::new(ImportedLog::of(&bundle));
                logs.keep(imported.bundle, &log);
                log
            }
        };
        Ok(Some(ImportedTask {
            key: *key,
            links,
            log,
        }))
    }

    /// Returns the bundle that a Task's receipt is about: its own when it was taken over, or its source's. None also when
    /// retention took it.
    pub(crate) async fn bundle_behind(
        &self,
        document: &Document,
    ) -> Result<Option<Bundle>, Refused> {
        let State::Task(task) = &document.state else {
            return Ok(None);
        };
        if let Some(imported) = &task.imported {
            let Ok(id) = TaskId::parse(&document.id) else {
                return Ok(None);
            };
            let bundle = self.imported_bundle(&id, task.submitted, imported).await?;
            return Ok(bundle.ok());
        }
        let Some(of) = &task.replay else {
            return Ok(None);
        };
        match self.document(of.source_task_id.as_str()).await? {
            Some(Document {
                state: State::Task(source),
                ..
            }) => match &source.imported {
                Some(imported) => {
                    let id = &of.source_task_id;
                    let bundle = self.imported_bundle(id, source.submitted, imported).await?;
                    Ok(bundle.ok())
                }
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }
}

/// Returns the sealed log as its receipt names it: the stored bytes of each event and a line feed.
pub(crate) fn lines(bundle: &Bundle) -> Vec<u8> {
    let mut log = Vec::new();
    for (bytes, _) in bundle.events() {
        log.extend_from_slice(bytes);
        log.push(b'\n');
    }
    log
}

/// Returns the digest of what an `artifact://` address names, when a bundle holds it.
pub(crate) fn digest_in(bundle: &Bundle, uri: &str) -> Option<Digest> {
    let name = uri.strip_prefix("artifact://")?;
    if name.strip_prefix("event_log_") == Some(bundle.task_id().as_str()) {
        return Some(sha256(&lines(bundle)));
    }
    if let Some((_, event)) = bundle.events().find(|(_, event)| *event.id == *name) {
        let value = resolved(bundle, event, "value")?;
        return Some(sha256(&canon::jcs(&value)));
    }
    let content = bundle
        .events()
        .filter(|(_, event)| {
            *event.resource.id == *name
                && matches!(
                    event.kind(),
                    Ok(Kind::ArtifactCreated | Kind::ArtifactUpdated)
                )
        })
        .filter_map(|(_, event)| payload::ArtifactUpdated::of(&event.payload).sha256())
        .last()?;
    bundle.blobs().get(&content).map(|bytes| sha256(bytes))
}

/// Returns a member of an event's payload, from its blob when it was moved there.
pub(crate) fn resolved(bundle: &Bundle, event: &Event, member: &str) -> Option<Value> {
    if let Some(value) = event.payload.get(member) {
        return Some(value.clone());
    }
    let digest = blob_reference(&event.payload, member)?;
    serde_json::from_slice(bundle.blobs().get(&digest)?).ok()
}
