//! Folding stored events again, by the functions that made them.
//!
//! An event is right when sealing what it says, at its place, gives its bytes and its columns once more.

use std::fmt;

use canon::{Digest, Integers, jcs, read};
use domain::{
    Draft, Event, EventName, FurtherLink, Kind, Position, Retention, Scratch, Sealed, seal,
};
use engine::port::StoredEvent;

/// Something in a log that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What it is about.
    pub what: ProblemSubject,
    /// What is wrong.
    pub problem: String,
}

/// What a problem is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProblemSubject {
    /// The event at a position.
    Event(Position),
    /// The document with a key and an id.
    Document(Position, Box<str>),
    /// The blob under a digest.
    Blob(Digest),
    /// The tree of the receipt log.
    Tree,
    /// The database file itself.
    Database,
    /// The end of the log.
    Log,
    /// The files beside the database.
    Files,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = &self.problem;
        match &self.what {
            ProblemSubject::Event(position) => {
                write!(f, "event at position {}: {problem}", position.0)
            }
            ProblemSubject::Document(_, id) => write!(f, "document `{id}`: {problem}"),
            ProblemSubject::Blob(digest) => write!(f, "blob `{digest}`: {problem}"),
            ProblemSubject::Tree => write!(f, "receipt log: {problem}"),
            ProblemSubject::Database => write!(f, "database: {problem}"),
            ProblemSubject::Log => write!(f, "log: {problem}"),
            ProblemSubject::Files => write!(f, "files: {problem}"),
        }
    }
}

/// Reads an event's bytes; says why they are none of this log at this position.
pub(crate) fn read_event(log: &EventName, row: &StoredEvent) -> Result<Event, String> {
    let value = read(&row.bytes, Integers::Safe).map_err(|error| error.to_string())?;
    if jcs(&value) != *row.bytes {
        return Err("its bytes are not canonical".to_owned());
    }
    let event = Event::parse(&row.bytes).map_err(|error| error.to_string())?;
    let id = log.id(row.position);
    if *event.id != *id {
        return Err(format!("its id is `{}`, expected `{id}`", event.id));
    }
    Ok(event)
}

/// True for a header of an event that cannot be folded without its payload: its document is kept as it is stored.
pub(crate) fn is_unfoldable(event: &Event) -> bool {
    event.is_header() && event.kind().map(Kind::retention) != Ok(Retention::Counted)
}

/// Seals an event once more, on the documents before it, and folds it into them.
pub(crate) fn reseal(
    log: &EventName,
    scratch: &mut Scratch,
    event: &Event,
    position: Position,
) -> Result<Sealed, String> {
    let draft = Draft {
        kind: event.kind().map_err(|error| error.to_string())?,
        resource: event.resource.clone(),
        workspace_id: event.workspace_id.clone(),
        session_id: event.session_id.clone(),
        task_id: event.task_id.clone(),
        actor: event.actor.clone(),
        idempotency_key: event.idempotency_key.clone(),
        receipt_id: event.receipt_id.clone(),
        payload: event.payload.clone(),
        sibling: None,
        replay: event.replay.clone(),
    };
    let mut sealed = seal(log, scratch, &[draft], position, event.created_at)
        .map_err(|error| error.to_string())?;
    sealed.pop().ok_or_else(|| "was not sealed".to_owned())
}

/// The documents that sealing an event may look at.
pub(crate) fn named(event: &Event) -> impl Iterator<Item = &str> {
    let further = event.kind().map_or(FurtherLink::None, Kind::further_link);
    let named = [
        Some(&*event.resource.id),
        event.workspace_id.as_ref().map(|id| id.as_str()),
        event.session_id.as_ref().map(|id| id.as_str()),
        event.task_id.as_ref().map(|id| id.as_str()),
        event.owner(),
    ];
    named.into_iter().flatten().chain(further.ids(event))
}
