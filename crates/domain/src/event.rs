//! The event: what is drafted, what is stored, byte for byte.
//!
//! A stored event is the RFC 8785 form of the protocol's Event with every member present. Those bytes are
//! hashed, listed and streamed as they are. Nothing ever writes them again but pruning, which leaves a header: the same
//! event with a payload that says only what its bytes hashed to.

use std::ops::Deref;
use std::sync::Arc;

use canon::{Digest, Map, Value, append, append_string, len_hint, sha256};
use serde::{Deserialize, Serialize};

use crate::{Kind, Position, ReceiptId, SessionId, TaskId, Timestamp, Visibility, WorkspaceId};

/// About how long an event is without its payload.
const ENVELOPE_BYTES: usize = 768;

/// How many digits the position has in the id of an event.
const ID_DIGITS: usize = 16;

/// The name of a log: eight characters, random at its creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventName(Box<str>);

impl EventName {
    /// Takes the name of a log.
    pub fn new(log: &str) -> Self {
        Self(log.into())
    }

    /// Returns the name of the log.
    pub fn log(&self) -> &str {
        &self.0
    }

    /// Returns the id of the event at a position of this log.
    pub fn id(&self, position: Position) -> String {
        // Each event has two or three of them: digits are put in their places.
        let mut digits = [b'0'; ID_DIGITS];
        let mut rest = position.0;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        match str::from_utf8(&digits) {
            Ok(digits) if rest == 0 => ["event_", &self.0, "_", digits].concat(),
            _ => format!("event_{}_{:016}", self.0, position.0),
        }
    }

    /// Returns the position that an id of this log names.
    pub fn position(&self, id: &str) -> Option<Position> {
        let digits = id
            .strip_prefix("event_")?
            .strip_prefix(&*self.0)?
            .strip_prefix('_')?;
        if digits.len() != ID_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        digits.parse().ok().map(Position)
    }
}

/// Points at a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceRef {
    /// The kind of resource.
    pub object: Box<str>,
    /// Its id.
    pub id: Box<str>,
}

impl ResourceRef {
    /// Points at a resource of a kind.
    pub fn new(object: &str, id: &str) -> Self {
        Self {
            object: object.into(),
            id: id.into(),
        }
    }
}

/// An event before its commit: everything but position, sequence and time.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// What happened.
    pub kind: Kind,
    /// The one resource it happened to.
    pub resource: ResourceRef,
    /// The Workspace it happened in.
    pub workspace_id: Option<WorkspaceId>,
    /// The Session it happened in.
    pub session_id: Option<SessionId>,
    /// The Task whose log it belongs to.
    pub task_id: Option<TaskId>,
    /// Who caused it.
    pub actor: Option<String>,
    /// The client's idempotency key, on the first event of a command.
    pub idempotency_key: Option<String>,
    /// The Receipt it is about or covered by.
    pub receipt_id: Option<ReceiptId>,
    /// The facts. Shared with the event that it becomes.
    pub payload: Arc<Map<String, Value>>,
    /// A payload member that names a sibling draft, by its distance (the next draft is 1): sealing fills in that
    /// event's id.
    pub sibling: Option<(&'static str, u64)>,
    /// Where it comes from, when a replay emits it.
    pub replay: Option<Box<ReplayMark>>,
}

/// Says which event of a source Task an event of its replay repeats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayMark {
    /// `exact`, `with_overrides` or `from_checkpoint`.
    pub mode: String,
    /// The event it repeats; none when the replay left its record.
    pub original_event_id: Option<Box<str>>,
    /// The override that produced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_key: Option<String>,
    /// The delta of the receipt that accounts for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_delta_id: Option<String>,
    /// The last event of the source that had been consumed; none before the first.
    pub replay_cursor: Option<Box<str>>,
    /// The replay.
    pub replay_task_id: TaskId,
    /// What it replays.
    pub source_task_id: TaskId,
}

/// An event as stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its id.
    pub id: Box<str>,
    /// The protocol's word for what happened.
    #[serde(rename = "event")]
    pub kind: Box<str>,
    /// The resource it happened to.
    pub resource: ResourceRef,
    /// Its number among the events of that resource, from 1.
    pub sequence: u64,
    /// When it was committed.
    pub created_at: Timestamp,
    /// The facts. Copies of an event share them.
    pub payload: Arc<Map<String, Value>>,
    /// The Workspace it happened in.
    pub workspace_id: Option<WorkspaceId>,
    /// The Session it happened in.
    pub session_id: Option<SessionId>,
    /// The Task whose log it belongs to.
    pub task_id: Option<TaskId>,
    /// Who caused it.
    pub actor: Option<String>,
    /// The client's idempotency key.
    pub idempotency_key: Option<String>,
    /// The event before it of the same resource.
    pub previous_event_id: Option<Box<str>>,
    /// The Receipt it is about.
    pub receipt_id: Option<ReceiptId>,
    /// Where it comes from: only events that a replay emits carry it, with `replayed`.
    #[serde(default)]
    pub replay: Option<Box<ReplayMark>>,
}

/// An event without its payload. What is ignored is passed over without recursion, so that no depth stops it.
#[derive(Deserialize)]
struct Envelope {
    id: Box<str>,
    #[serde(rename = "event")]
    kind: Box<str>,
    resource: ResourceRef,
    sequence: u64,
    created_at: Timestamp,
    workspace_id: Option<WorkspaceId>,
    session_id: Option<SessionId>,
    task_id: Option<TaskId>,
    actor: Option<String>,
    idempotency_key: Option<String>,
    previous_event_id: Option<Box<str>>,
    receipt_id: Option<ReceiptId>,
    #[serde(default)]
    replay: Option<Box<ReplayMark>>,
}

/// The payload of an event, as it stands there or with what was beside it filled in.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// As it stands in the event.
    Plain(Arc<Event>),
    /// Filled in.
    Filled(Map<String, Value>),
}

impl Deref for Content {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Self::Target {
        match self {
            Content::Plain(event) => &event.payload,
            Content::Filled(payload) => payload,
        }
    }
}

/// Stored bytes that are not an event.
#[derive(Debug, thiserror::Error)]
#[error("not a stored event: {0}")]
pub struct ParseEventError(String);

impl ParseEventError {
    /// Says what is wrong.
    pub fn new(problem: impl Into<String>) -> Self {
        Self(problem.into())
    }
}

impl Event {
    /// Reads stored bytes.
    ///
    /// # Errors
    /// The bytes are not the JSON form of an event.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseEventError> {
        // Once for all of it: a reader of bytes looks at each text again.
        let text =
            std::str::from_utf8(bytes).map_err(|error| ParseEventError(error.to_string()))?;
        serde_json::from_str(text).map_err(|error| ParseEventError(error.to_string()))
    }

    /// Returns the stored bytes: the RFC 8785 form, written member by member in its order.
    pub fn to_bytes(&self) -> Vec<u8> {
        let members = self.payload.iter();
        let payload: usize = members
            .map(|(name, value)| name.len() + 4 + len_hint(value))
            .sum();
        let mut out = Vec::with_capacity(ENVELOPE_BYTES + payload);
        let time = self.created_at.to_string();
        out.extend_from_slice(b"{\"actor\":");
        optional(&mut out, self.actor.as_deref());
        out.extend_from_slice(b",\"created_at\":");
        append_string(&mut out, &time);
        out.extend_from_slice(b",\"event\":");
        append_string(&mut out, &self.kind);
        out.extend_from_slice(b",\"id\":");
        append_string(&mut out, &self.id);
        out.extend_from_slice(b",\"idempotency_key\":");
        optional(&mut out, self.idempotency_key.as_deref());
        out.extend_from_slice(b",\"metadata\":{},\"object\":\"event\",\"payload\":");
        append_object(&mut out, &self.payload);
        out.extend_from_slice(b",\"previous_event_id\":");
        optional(&mut out, self.previous_event_id.as_deref());
        out.extend_from_slice(b",\"receipt_id\":");
        optional(&mut out, self.receipt_id.as_ref().map(ReceiptId::as_str));
        if let Some(mark) = &self.replay {
            out.extend_from_slice(b",\"replay\":");
            append_mark(&mut out, mark);
            out.extend_from_slice(b",\"replayed\":true");
        }
        out.extend_from_slice(b",\"resource\":{\"id\":");
        append_string(&mut out, &self.resource.id);
        out.extend_from_slice(b",\"object\":");
        append_string(&mut out, &self.resource.object);
        out.extend_from_slice(b"},\"sequence\":");
        out.extend_from_slice(self.sequence.to_string().as_bytes());
        out.extend_from_slice(b",\"session_id\":");
        optional(&mut out, self.session_id.as_ref().map(SessionId::as_str));
        out.extend_from_slice(b",\"span_id\":null,\"task_id\":");
        optional(&mut out, self.task_id.as_ref().map(TaskId::as_str));
        out.extend_from_slice(b",\"trace_id\":null,\"updated_at\":");
        append_string(&mut out, &time);
        out.extend_from_slice(b",\"workspace_id\":");
        optional(
            &mut out,
            self.workspace_id.as_ref().map(WorkspaceId::as_str),
        );
        out.push(b'}');
        out
    }

    /// Returns what pruning leaves of this event, whose stored bytes are given.
    #[must_use]
    pub fn header(&self, bytes: &[u8]) -> Self {
        let mut payload = Map::new();
        payload.insert(PRUNED_MEMBER.to_owned(), true.into());
        payload.insert("sha256".to_owned(), sha256(bytes).to_string().into());
        Self {
            payload: Arc::new(payload),
            ..self.clone()
        }
    }

    /// Reads the envelope of stored bytes whose payload need not be readable, however deep it is. The payload is empty.
    ///
    /// # Errors
    /// The bytes have no readable envelope.
    pub fn envelope(bytes: &[u8]) -> Result<Self, ParseEventError> {
        let text =
            std::str::from_utf8(bytes).map_err(|error| ParseEventError(error.to_string()))?;
        let envelope: Envelope =
            serde_json::from_str(text).map_err(|error| ParseEventError(error.to_string()))?;
        Ok(Self {
            id: envelope.id,
            kind: envelope.kind,
            resource: envelope.resource,
            sequence: envelope.sequence,
            created_at: envelope.created_at,
            payload: Arc::default(),
            workspace_id: envelope.workspace_id,
            session_id: envelope.session_id,
            task_id: envelope.task_id,
            actor: envelope.actor,
            idempotency_key: envelope.idempotency_key,
            previous_event_id: envelope.previous_event_id,
            receipt_id: envelope.receipt_id,
            replay: envelope.replay,
        })
    }

    /// Returns what stands in the place of an event of which not even the envelope can be read: a header that says what was
    /// stored there hashed to. It happened to nothing but itself; what it may have belonged to is for the caller to fill in.
    pub fn lost(id: &str, created_at: Timestamp, stored: Digest) -> Self {
        let mut payload = Map::new();
        payload.insert(PRUNED_MEMBER.to_owned(), true.into());
        payload.insert("sha256".to_owned(), stored.to_string().into());
        Self {
            id: id.into(),
            kind: Kind::EventLost.as_str().into(),
            resource: ResourceRef::new("event", id),
            sequence: 1,
            created_at,
            payload: Arc::new(payload),
            workspace_id: None,
            session_id: None,
            task_id: None,
            actor: None,
            idempotency_key: None,
            previous_event_id: None,
            receipt_id: None,
            replay: None,
        }
    }

    /// True when this stands in the place of an event of which not even the envelope could be read.
    pub fn is_lost(&self) -> bool {
        self.is_header() && *self.kind == *Kind::EventLost.as_str()
    }

    /// True when pruning left only a header of this event.
    pub fn is_header(&self) -> bool {
        pruned_digest(&self.payload).is_some()
    }

    /// Returns who may read what the event holds. A word that nobody knows hides it.
    pub fn visibility(&self) -> Visibility {
        let word = self.payload.get("visibility");
        word.map_or(Visibility::Public, |word| {
            Visibility::deserialize(word).unwrap_or(Visibility::ReceiptOnly)
        })
    }

    /// Returns the Task that what the event creates belongs to, where its own log is sealed already.
    pub fn owner(&self) -> Option<&str> {
        self.payload.get("task_id")?.as_str()
    }

    /// Returns the key of the effect that the event is about, whatever its kind.
    pub fn effect_key(&self) -> Option<&str> {
        self.payload.get("effect_key")?.as_str()
    }

    /// True when the payload is what the request for a replay put in the place of the recorded one. It is a caller's data:
    /// whatever it looks like, it names no blob, and nobody reads one by what it says.
    pub fn is_substituted(&self) -> bool {
        let mark = self.replay.as_ref();
        let key = mark.and_then(|mark| mark.override_key.as_deref());
        key.is_some_and(|key| key.starts_with(EVENT_OVERRIDE))
    }

    /// Returns the kind, when this program knows it.
    ///
    /// # Errors
    /// The kind was written by a newer program.
    pub fn kind(&self) -> Result<Kind, crate::UnknownKind> {
        Kind::parse(&self.kind)
    }
}

/// How the key of an override begins that replaces the payload of an event.
pub const EVENT_OVERRIDE: &str = "event:";

/// The payload member that only headers have. Callers' own data lies deeper and cannot reach it; the one
/// exception, the payload that an override gives an event, is refused in this shape.
const PRUNED_MEMBER: &str = "pruned";

/// Returns the digest of the bytes that an event had before it was pruned; none when this is no header's payload.
pub fn pruned_digest(payload: &Map<String, Value>) -> Option<Digest> {
    if payload.len() != 2 || payload.get(PRUNED_MEMBER) != Some(&Value::Bool(true)) {
        return None;
    }
    Digest::parse(payload.get("sha256")?.as_str()?).ok()
}

fn optional(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => append_string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

fn append_mark(out: &mut Vec<u8>, mark: &ReplayMark) {
    out.extend_from_slice(b"{\"mode\":");
    append_string(out, &mark.mode);
    out.extend_from_slice(b",\"original_event_id\":");
    optional(out, mark.original_event_id.as_deref());
    if let Some(key) = &mark.override_key {
        out.extend_from_slice(b",\"override_key\":");
        append_string(out, key);
    }
    if let Some(delta) = &mark.receipt_delta_id {
        out.extend_from_slice(b",\"receipt_delta_id\":");
        append_string(out, delta);
    }
    out.extend_from_slice(b",\"replay_cursor\":");
    optional(out, mark.replay_cursor.as_deref());
    out.extend_from_slice(b",\"replay_task_id\":");
    append_string(out, mark.replay_task_id.as_str());
    out.extend_from_slice(b",\"source_task_id\":");
    append_string(out, mark.source_task_id.as_str());
    out.push(b'}');
}

fn append_object(out: &mut Vec<u8>, map: &Map<String, Value>) {
    // The map sorts by UTF-8 bytes, the canonical form by UTF-16; our own payload names are ASCII, where both
    // agree.
    out.push(b'{');
    for (index, (name, value)) in map.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        append_string(out, name);
        out.push(b':');
        append(out, value, canon::Profile::Jcs);
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use canon::{Integers, jcs, read};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_name_positions_of_their_own_log_only() {
        let log = EventName::new("ab12cd34");
        let id = log.id(Position(42));
        assert_eq!(id, "event_ab12cd34_0000000000000042");
        assert_eq!(log.position(&id), Some(Position(42)));
        for position in [0, 9_999_999_999_999_999, 10_000_000_000_000_000, u64::MAX] {
            let id = format!("event_ab12cd34_{position:016}");
            assert_eq!(log.id(Position(position)), id);
        }
        for other in [
            "event_zz12cd34_0000000000000042",
            "event_ab12cd34_42",
            "stream",
            "event_ab12cd34_00000000000000x2",
        ] {
            assert_eq!(log.position(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn stored_bytes_are_canonical_and_read_back(
            text in any::<String>(), sequence in 1u64..1 << 53, micros in 0i64..4_000_000_000_000_000, actor in any::<Option<String>>(),
            mark in proptest::option::of((any::<Option<String>>(), any::<bool>())),
        ) {
            let replay = mark.map(|(key, matched)| Box::new(ReplayMark {
                mode: "exact".to_owned(),
                original_event_id: matched.then(|| "event_x_1".into()),
                override_key: key.clone(),
                receipt_delta_id: key,
                replay_cursor: matched.then(|| "event_x_1".into()),
                replay_task_id: TaskId::from_body("replay_1"),
                source_task_id: TaskId::from_body("1"),
            }));
            let event = Event {
                id: "event_ab12cd34_0000000000000001".into(),
                kind: "user.message".into(),
                resource: ResourceRef::new("message", "message_1"),
                sequence,
                created_at: Timestamp::from_micros(micros),
                payload: serde_json::json!({"text": text, "nested": {"é": [1, text.clone()]}}).as_object().unwrap().clone().into(),
                workspace_id: Some(WorkspaceId::local()),
                session_id: None,
                task_id: None,
                actor,
                idempotency_key: Some(text.clone()),
                previous_event_id: None,
                receipt_id: None,
                replay,
            };
            let bytes = event.to_bytes();
            let value = read(&bytes, Integers::Safe).unwrap();
            prop_assert_eq!(jcs(&value), bytes.clone());
            prop_assert_eq!(&Event::parse(&bytes).unwrap(), &event);
            let header = event.header(&bytes);
            prop_assert!(header.is_header() && !event.is_header());
            prop_assert_eq!(pruned_digest(&header.payload), Some(sha256(&bytes)));
            let stored = header.to_bytes();
            prop_assert_eq!(jcs(&read(&stored, Integers::Safe).unwrap()), stored.clone());
            prop_assert_eq!(Event { payload: event.payload.clone(), ..Event::parse(&stored).unwrap() }, event);
        }
    }
}
