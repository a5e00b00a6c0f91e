//! What a replay comes to: the events it emits and how it ends.

use canon::{Digest, Map, Value};
use domain::{
    ArtifactId, EVENT_OVERRIDE, Kind, ReplayMark, ReplayedEvent, Status, TaskId, payload,
};
use receipts::Applied;
use serde_json::json;

use super::failure::Failure;
use super::source::{Source, names_in};

/// One event of a replay, in the order of emission.
#[derive(Debug, Clone, PartialEq)]
pub struct Emission {
    /// What happened.
    pub kind: Kind,
    /// The event of the source that it repeats.
    pub original: Option<usize>,
    /// The last event of the source that had been consumed.
    pub cursor: Option<usize>,
    /// Its own facts; none when they are the source's.
    pub payload: Option<Map<String, Value>>,
    /// The override that produced it.
    pub override_key: Option<String>,
    /// The Artifact that it makes again: its number, from 1.
    pub artifact: Option<u64>,
    /// The content of that Artifact, when it is not the source's.
    pub content: Option<Vec<u8>>,
}

/// How a replayed run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// The state of the replay Task.
    pub status: Status,
    /// What the agent said.
    pub text: Option<String>,
    /// One line for people.
    pub summary: String,
    /// Why the Task failed, as it stands in events; null otherwise.
    pub failure: Value,
    /// Why the replay itself failed.
    pub broken: Option<Failure>,
}

impl End {
    /// An end with nothing to say.
    pub(super) fn plain(status: Status) -> Self {
        Self {
            status,
            text: None,
            summary: String::new(),
            failure: Value::Null,
            broken: None,
        }
    }

    /// The end of a replay that cannot go on.
    pub(super) fn failed_with(failure: Failure, cursor: Option<&str>) -> Self {
        Self {
            summary: failure.message(),
            failure: json!({
                "code": failure.code(),
                "message": failure.message(),
                "details": failure.details(cursor),
            }),
            broken: Some(failure),
            ..Self::plain(Status::Failed)
        }
    }
}

/// An Artifact of the replayed result.
#[derive(Debug, Clone, PartialEq)]
pub struct FinalArtifact {
    /// What it is.
    pub kind: String,
    /// Digest of its content.
    pub sha256: Option<Digest>,
}

/// A replay, computed.
#[derive(Debug, Clone, PartialEq)]
pub struct Replayed {
    /// Its events, without those of its own lifecycle.
    pub emissions: Vec<Emission>,
    /// Its end.
    pub end: End,
    /// The overrides that were delivered, by key.
    pub applied: Vec<Applied>,
    /// The keys of the others.
    pub unused: Vec<String>,
    /// The effects that were used from the record, by the position of the record in the source.
    pub reused: Vec<usize>,
    /// The Artifacts of the result, in order.
    pub artifacts: Vec<FinalArtifact>,
    /// True when it ended as the source did, with the same words.
    pub result_equal: bool,
    /// True when something may be read or performed live: then no one can promise the same bytes again.
    pub refreshed: bool,
    /// The last event of the source that was consumed.
    pub cursor: Option<usize>,
}

impl Replayed {
    /// A replay that has come to nothing yet.
    pub(super) fn nothing(status: Status) -> Self {
        Self {
            emissions: Vec::new(),
            end: End::plain(status),
            applied: Vec::new(),
            unused: Vec::new(),
            reused: Vec::new(),
            artifacts: Vec::new(),
            result_equal: false,
            refreshed: false,
            cursor: None,
        }
    }

    /// Notes that an override or something read live was delivered.
    pub(super) fn apply(&mut self, applied: Applied) {
        match self.place_of(&applied.key) {
            Ok(place) => {
                if let Some(known) = self.applied.get_mut(place) {
                    *known = applied;
                }
            }
            Err(place) => self.applied.insert(place, applied),
        }
    }

    /// True when something was delivered under a key.
    pub(super) fn is_applied(&self, key: &str) -> bool {
        self.place_of(key).is_ok()
    }

    fn place_of(&self, key: &str) -> Result<usize, usize> {
        self.applied
            .binary_search_by(|applied| applied.key.as_str().cmp(key))
    }

    /// Returns an emission as the domain writes it.
    pub fn event(
        &self,
        source: &Source,
        emission: &Emission,
        replay_task_id: &TaskId,
        mode: &str,
    ) -> ReplayedEvent {
        let id = |index: usize| source.event(index).map(|event| event.id.clone());
        let mut payload = match (&emission.payload, emission.original) {
            (Some(payload), _) => payload.clone(),
            (None, Some(index)) => source
                .event(index)
                .map(|event| Map::clone(&event.payload))
                .unwrap_or_default(),
            (None, None) => Map::new(),
        };
        let actor = emission
            .original
            .and_then(|index| source.event(index))
            .and_then(|event| event.actor.clone());
        if emission.artifact.is_some() {
            payload.insert("task_id".to_owned(), json!(replay_task_id));
        }
        let mut mark = self.mark(source, replay_task_id, mode);
        mark.original_event_id = emission.original.and_then(id);
        mark.replay_cursor = emission.cursor.and_then(id);
        mark.override_key.clone_from(&emission.override_key);
        mark.receipt_delta_id = emission
            .override_key
            .as_deref()
            .and_then(|key| self.delta_id(key));
        ReplayedEvent {
            kind: emission.kind,
            actor,
            content: emission.content.clone(),
            artifact: emission.artifact.map(|number| {
                let id = receipts::replay_artifact_id(replay_task_id.as_str(), number);
                let body = id.strip_prefix("artifact_").unwrap_or(&id);
                ArtifactId::from_body(body)
            }),
            payload,
            mark,
        }
    }

    /// Returns a blob that an event of the replay would name though neither the source's record nor the replay itself
    /// holds it. Such an event is not written: it would reach for what belongs to somebody else.
    pub fn foreign(source: &Source, event: &ReplayedEvent) -> Option<Digest> {
        let is_data = event
            .mark
            .override_key
            .as_deref()
            .is_some_and(|key| key.starts_with(EVENT_OVERRIDE));
        if is_data {
            return None;
        }
        let own = event.content.as_deref().map(canon::sha256);
        let mut named = names_in(&event.payload, Some(event.kind)).into_iter();
        named
            .find(|(_, digest)| source.blob(*digest).is_none() && own != Some(*digest))
            .map(|(_, digest)| digest)
    }

    /// Returns the mark of an event that repeats none of the source, where this run stands.
    pub fn mark(&self, source: &Source, replay_task_id: &TaskId, mode: &str) -> ReplayMark {
        let cursor = self.cursor.and_then(|index| source.event(index));
        ReplayMark {
            mode: mode.to_owned(),
            original_event_id: None,
            override_key: None,
            receipt_delta_id: None,
            replay_cursor: cursor.map(|event| event.id.clone()),
            replay_task_id: replay_task_id.clone(),
            source_task_id: source.task_id.clone(),
        }
    }

    fn delta_id(&self, key: &str) -> Option<String> {
        let place = self.place_of(key).ok()?;
        let keys = self.applied.iter().map(|applied| applied.key.as_str());
        receipts::delta_ids(keys).into_iter().nth(place)
    }

    /// Returns the payload of `replay.completed` or `replay.failed`.
    pub fn ended(&self, source: &Source) -> payload::ReplayEnded {
        let cursor = self.cursor.and_then(|index| source.event(index));
        if let Some(failure) = &self.end.broken {
            return failed_payload(&source.task_id, failure, cursor.map(|event| &*event.id));
        }
        let applied: Vec<&str> = self.applied.iter().map(|applied| &*applied.key).collect();
        payload::ReplayEnded::default()
            .source_task_id(source.task_id.as_str())
            .events_replayed(self.emissions.len() as u64)
            .overrides_applied(applied)
            .overrides_unused(json!(self.unused))
            .result_equal(self.result_equal)
    }
}

/// Returns the payload of `replay.failed`.
pub fn failed_payload(
    source: &TaskId,
    failure: &Failure,
    cursor: Option<&str>,
) -> payload::ReplayEnded {
    payload::ReplayEnded::default()
        .source_task_id(source.as_str())
        .code(failure.code())
        .message(failure.message())
        .details(json!(failure.details(cursor)))
}
