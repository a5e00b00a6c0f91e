//! What the last commits left, in memory, so that most reads need not ask the store.
//!
//! Never the truth. A turn that decides on what is in here has every version checked by its commit. A reader is answered
//! from here only while the cache is as far as the store: what was acknowledged is seen by the next read, and whoever heard
//! of a commit from a stream finds it, here or in the store. Events never change, so that those are always right.

mod recent;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::{Activity, Document, Event, Position, State, Task};

use crate::engine::Engine;
use crate::refused::Refused;
use crate::turn::CommitContents;
use crate::view::content_positions;
pub(crate) use recent::Recent;

/// Documents, contents and Sessions as they last were.
#[derive(Debug)]
pub(crate) struct Cache {
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// The last event that a turn of this process committed.
    head: Position,
    /// How often something was forgotten: what was read before that may be older than what was forgotten.
    forgotten: u64,
    /// None for what was looked for and is not there.
    documents: Recent<Box<str>, Option<Arc<Document>>>,
    /// Events that hold contents of documents.
    contents: Recent<Position, Arc<Event>>,
    sessions: Recent<Position, SessionState>,
}

/// What a Session shows that its own document does not hold.
#[derive(Debug)]
struct SessionState {
    last_event: Option<Position>,
    /// How often one of its Tasks changed since it is in here.
    changes: u64,
    /// Its open Tasks, each with whether it waits for somebody; none when not all of them are known.
    open: Option<BTreeMap<Position, bool>>,
}

/// Permits whoever read from the store to put that into the cache, unless the cache has forgotten something meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    forgotten: u64,
    changes: u64,
}

/// What is known of a Session without asking the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CachedSession {
    pub(crate) last_event: Option<Position>,
    pub(crate) activity: Option<Activity>,
    pub(crate) ticket: Ticket,
}

const DOCUMENTS_MAX: usize = 8_192;
const SESSIONS_MAX: usize = 4_096;
const CONTENT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What an event takes beside its text.
const EVENT_BYTES: usize = 512;

impl Cache {
    /// Begins with nothing, as far as a store is.
    pub(crate) fn new(head: Position) -> Self {
        let known = Known {
            head,
            forgotten: 0,
            documents: Recent::new(DOCUMENTS_MAX),
            contents: Recent::new(CONTENT_BYTES_MAX),
            sessions: Recent::new(SESSIONS_MAX),
        };
        Self {
            known: Mutex::new(known),
        }
    }

    /// Returns a document as it was when a turn last saw it. Good for what its events never change.
    pub(crate) fn last_seen(&self, id: &str) -> Option<Arc<Document>> {
        self.lock().documents.get(id).cloned().flatten()
    }

    /// The same for a turn, which need not look again for what was not there while the store's last event is this one.
    pub(crate) fn looked_for(&self, id: &str, head: Position) -> Option<Option<Arc<Document>>> {
        let mut known = self.lock();
        let is_current = known.head == head;
        let found = known.documents.get(id).cloned();
        found.filter(|document| document.is_some() || is_current)
    }

    /// Returns a document as it is when the store's last event is this one, or what permits to put it in.
    pub(crate) fn document(&self, id: &str, head: Position) -> Result<Arc<Document>, Ticket> {
        let mut known = self.lock();
        let ticket = known.ticket(0);
        if known.head != head {
            return Err(ticket);
        }
        known.documents.get(id).cloned().flatten().ok_or(ticket)
    }

    /// Puts in what was read from the store.
    pub(crate) fn keep(&self, ticket: Ticket, document: &Arc<Document>) {
        let mut known = self.lock();
        let newest = known.documents.get(&*document.id);
        let newest = newest.and_then(Option::as_ref);
        let is_older = newest.is_some_and(|newest| newest.version >= document.version);
        if ticket.forgotten == known.forgotten && !is_older {
            known.put(document);
        }
    }

    /// Returns an event that holds the content of a document.
    pub(crate) fn content(&self, position: Position) -> Option<Arc<Event>> {
        self.lock().contents.get(&position).cloned()
    }

    /// Puts in an event that was read from the store, with the length of its text.
    pub(crate) fn keep_content(&self, position: Position, event: &Arc<Event>, len: usize) {
        let mut known = self.lock();
        let bytes = EVENT_BYTES + len;
        known.contents.insert(position, Arc::clone(event), bytes);
    }

    /// Returns what is known of a Session when the store's last event is this one.
    pub(crate) fn session(&self, key: Position, head: Position) -> CachedSession {
        let mut known = self.lock();
        let is_current = known.head == head;
        let pulse = known.sessions.get(&key);
        let changes = pulse.map_or(0, |pulse| pulse.changes);
        let current = pulse.filter(|_| is_current);
        CachedSession {
            last_event: current.and_then(|pulse| pulse.last_event),
            activity: current.and_then(SessionState::activity),
            ticket: known.ticket(changes),
        }
    }

    /// Puts in what was read of a Session.
    pub(crate) fn keep_session(
        &self,
        ticket: Ticket,
        key: Position,
        last_event: Option<Position>,
        open: &[Document],
    ) {
        let mut known = self.lock();
        let pulse = known.sessions.get_mut(&key);
        let changes = pulse.as_ref().map_or(0, |pulse| pulse.changes);
        if ticket.forgotten != known.forgotten || ticket.changes != changes {
            return;
        }
        let tasks = open.iter().filter_map(|document| {
            let task = task_of(document)?;
            Some((document.key, task.status.is_waiting()))
        });
        let open = Some(tasks.collect());
        let pulse = known.sessions.get_mut(&key);
        // An event that a turn committed is newer than what was read, or the same.
        let last_event = pulse.and_then(|pulse| pulse.last_event).or(last_event);
        let pulse = SessionState {
            last_event,
            changes,
            open,
        };
        if known.sessions.insert(key, pulse, 1) {
            known.forgotten += 1;
        }
    }

    /// Takes in what a turn has looked for and found, or not.
    pub(crate) fn insert(&self, looked_for: Vec<Box<str>>, found: &[Option<Arc<Document>>]) {
        let mut known = self.lock();
        for (id, document) in looked_for.into_iter().zip(found) {
            known.note(id, document.clone());
        }
    }

    /// Takes in what a turn has committed, before anybody is answered.
    pub(crate) fn after_commit(&self, written: &CommitContents) {
        let events = written.events();
        let (Some((first, _)), Some((last, _))) = (events.first(), events.last()) else {
            return;
        };
        let mut known = self.lock();
        if first.position != known.head.plus(1) {
            // Somebody else has committed in between.
            known.clear();
        }
        known.head = last.position;
        for (stored, _) in events {
            if let Some(session) = stored.links.session {
                let is_new = stored.position == session;
                known.pulse(session, is_new).last_event = Some(stored.position);
            }
        }
        for document in written.documents() {
            known.put(document);
            if let Some(task) = task_of(document)
                && let Some(session) = document.links.session
            {
                known.pulse(session, false).note(document.key, task);
            }
            for position in content_positions(document) {
                if let Some((stored, event)) = written.appended(position) {
                    let bytes = EVENT_BYTES + stored.bytes.len();
                    known.contents.insert(position, Arc::clone(event), bytes);
                }
            }
        }
    }

    /// Forgets everything: something in here was not so any more.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Each change leaves whole entries.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn ticket(&self, changes: u64) -> Ticket {
        Ticket {
            forgotten: self.forgotten,
            changes,
        }
    }

    fn put(&mut self, document: &Arc<Document>) {
        self.note(document.id.clone(), Some(Arc::clone(document)));
    }

    fn note(&mut self, id: Box<str>, document: Option<Arc<Document>>) {
        if self.documents.insert(id, document, 1) {
            self.forgotten += 1;
        }
    }

    fn pulse(&mut self, session: Position, is_new: bool) -> &mut SessionState {
        let (pulse, has_forgotten) = self.sessions.get_or_insert(session, 1, || SessionState {
            last_event: None,
            changes: 0,
            // A Session that begins has no Tasks.
            open: is_new.then(BTreeMap::new),
        });
        self.forgotten += u64::from(has_forgotten);
        pulse
    }

    fn clear(&mut self) {
        self.forgotten += 1;
        self.documents.clear();
        self.sessions.clear();
    }
}

impl SessionState {
    fn note(&mut self, key: Position, task: &Task) {
        self.changes += 1;
        if let Some(open) = &mut self.open {
            match task.status.is_terminal() {
                true => drop(open.remove(&key)),
                false => drop(open.insert(key, task.status.is_waiting())),
            }
        }
    }

    fn activity(&self) -> Option<Activity> {
        let open = self.open.as_ref()?;
        Some(Activity::of(open.values().copied()))
    }
}

fn task_of(document: &Document) -> Option<&Task> {
    match &document.state {
        State::Task(task) => Some(task),
        _ => None,
    }
}

impl Engine {
    pub(crate) async fn document(&self, id: &str) -> Result<Option<Document>, Refused> {
        let found = self.shared_document(id).await?;
        Ok(found.map(Arc::unwrap_or_clone))
    }

    /// Reads a document: from memory while that is as far as the store, else from the store.
    pub(crate) async fn shared_document(&self, id: &str) -> Result<Option<Arc<Document>>, Refused> {
        let shared = &self.shared;
        let ticket = match shared.cache.document(id, shared.store.head()) {
            Ok(document) => return Ok(Some(document)),
            Err(ticket) => ticket,
        };
        let found = shared.store.document(id).await?.map(Arc::new);
        if let Some(document) = &found {
            shared.cache.keep(ticket, document);
        }
        Ok(found)
    }

    /// Reads events that hold contents of documents: from memory where they are there, else from the store. None for
    /// positions where there is no event.
    pub(crate) async fn contents(
        &self,
        positions: Vec<Position>,
    ) -> Result<Vec<(Position, Arc<Event>)>, Refused> {
        let shared = &self.shared;
        let mut found = Vec::with_capacity(positions.len());
        let mut wanted = Vec::new();
        for position in positions {
            match shared.cache.content(position) {
                Some(event) => found.push((position, event)),
                None => wanted.push(position),
            }
        }
        if !wanted.is_empty() {
            let stored = shared.store.events_at(wanted).await?;
            for stored in stored.into_iter().flatten() {
                let event = Event::parse(&stored.bytes).map_err(|error| Refused::Internal {
                    detail: error.to_string(),
                })?;
                let event = Arc::new(event);
                let len = stored.bytes.len();
                shared.cache.keep_content(stored.position, &event, len);
                found.push((stored.position, event));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_there_is_only_known_as_long_as_nobody_else_commits() {
        let cache = Cache::new(Position(7));
        assert_eq!(cache.looked_for("trust_1", Position(7)), None);
        cache.insert(vec!["trust_1".into()], &[None]);
        assert_eq!(cache.looked_for("trust_1", Position(7)), Some(None));
        assert_eq!(cache.looked_for("trust_1", Position(8)), None);
        // A reader asks the store in any case.
        assert!(cache.document("trust_1", Position(7)).is_err());
        cache.clear();
        assert_eq!(cache.looked_for("trust_1", Position(7)), None);
    }
}
