//! Laying what the run brings about over what the source emitted, in the source's order.

use canon::{Digest, Map, Value, jcs, sha256};
use domain::{Event, InReplay, Kind, payload};
use serde_json::json;

use super::Runner;
use crate::replay::failure::{Divergence, Failure};
use crate::replay::outcome::{Emission, End, FinalArtifact};

/// What an event of the source is to its replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Of the Task's own life: told, not repeated.
    Lifecycle,
    /// Brought about by the workflow: must come again.
    Caused,
    /// A piece of a model call's text.
    Delta,
    /// From outside: repeated as it is.
    Passive,
    /// From outside: how somebody decided.
    Decision,
}

impl Runner<'_> {
    /// Emits an event that the workflow brought about, after everything of the source that came before it.
    pub(super) fn emit(
        &mut self,
        kind: Kind,
        place: Option<usize>,
        payload: Option<Map<String, Value>>,
        override_key: Option<&String>,
    ) -> Result<(), Failure> {
        if place.is_none() && !self.deviated {
            return Err(Failure::Diverged(Box::new(Divergence {
                key: payload
                    .as_ref()
                    .and_then(|payload| payload.get("effect_key")?.as_str().map(str::to_owned)),
                event: Some(kind.as_str().to_owned()),
                sequence: None,
                expected_sha256: None,
                found_sha256: payload.map(|payload| sha256(&jcs(&Value::Object(payload)))),
                what: "extra",
            })));
        }
        let mut payload = payload;
        let mut override_key = override_key.cloned();
        if let Some(index) = place {
            if index < self.next && !self.deviated {
                let found = Value::Object(self.source.payload(index));
                return Err(self.differs(kind, place, &found));
            }
            self.pass(index, None)?;
            if let Some(consumed) = self.consumed.get_mut(index) {
                *consumed = true;
            }
            self.next = self.next.max(index + 1);
            self.replayed.cursor = self.replayed.cursor.max(Some(index));
            if let Some((key, given)) = self.take_event_override(index) {
                payload = Some(given);
                override_key = Some(key);
            }
        }
        self.replayed.emissions.push(Emission {
            kind,
            original: place,
            cursor: self.replayed.cursor,
            payload,
            override_key,
            artifact: None,
            content: None,
        });
        Ok(())
    }

    /// Repeats what lies before a place and was not brought about by the workflow.
    pub(super) fn pass(&mut self, until: usize, end: Option<&End>) -> Result<(), Failure> {
        while self.next < until {
            let index = self.next;
            match self.class(index) {
                Class::Lifecycle => {
                    let id = self.event_id(Some(index));
                    let kind = self.source.kind(index).map(Kind::as_str);
                    let payload = payload::EventReplayed::default().original_event_id(json!(id));
                    let payload = payload.original_event(kind).into_members();
                    self.repeat(Kind::ReplayEventReplayed, index, Some(payload));
                    self.told_another_time(index);
                }
                Class::Decision if self.is_decided_otherwise(index) => {}
                Class::Passive | Class::Decision => self.passive(index, end),
                Class::Delta => {
                    // Pieces of an answer that was replaced would tell something else than the answer.
                    let key = self.source.key_of(index).unwrap_or_default();
                    let is_replaced =
                        self.spec.overrides.contains_key(key) || self.asked_live.contains(key);
                    if !is_replaced {
                        self.repeat(Kind::MessageDelta, index, None);
                    }
                }
                Class::Caused if self.consumed.get(index) == Some(&true) || self.deviated => {}
                Class::Caused => {
                    return Err(Failure::Diverged(Box::new(Divergence {
                        key: self.source.key_of(index).map(str::to_owned),
                        event: self.source.kind(index).map(|kind| kind.as_str().to_owned()),
                        sequence: Some(index as u64 + 1),
                        expected_sha256: Some(sha256(&jcs(&Value::Object(
                            self.source.payload(index),
                        )))),
                        found_sha256: None,
                        what: "missing",
                    })));
                }
            }
            self.next = index + 1;
        }
        Ok(())
    }

    fn repeat(&mut self, kind: Kind, index: usize, payload: Option<Map<String, Value>>) {
        let (payload, override_key) = match self.take_event_override(index) {
            Some((key, given)) => (Some(given), Some(key)),
            None => (payload, None),
        };
        self.replayed.cursor = self.replayed.cursor.max(Some(index));
        self.replayed.emissions.push(Emission {
            kind,
            original: Some(index),
            cursor: self.replayed.cursor,
            payload,
            override_key,
            artifact: None,
            content: None,
        });
    }

    /// Marks the event of a reading of the clock that the request replaces.
    fn told_another_time(&mut self, index: usize) {
        let key = self.source.lifecycle_key(index);
        let key = key.filter(|key| self.replayed.is_applied(key) || *key == "time:completed_at");
        let key = key.filter(|key| self.spec.overrides.contains_key(*key));
        if let (Some(key), Some(last)) = (key, self.replayed.emissions.last_mut()) {
            last.override_key.get_or_insert_with(|| key.to_owned());
        }
    }

    /// True where an event stands between a question and its answer that the request replaces, or that is asked again.
    fn is_decided_otherwise(&self, index: usize) -> bool {
        self.spec
            .overrides
            .keys()
            .chain(&self.asked_live)
            .any(|key| {
                let places = self.source.places(key);
                key.starts_with("host:approval:")
                    && places.asked.is_some_and(|asked| asked < index)
                    && places.recorded.is_some_and(|recorded| index < recorded)
            })
    }

    fn passive(&mut self, index: usize, end: Option<&End>) {
        let Some(kind) = self.source.kind(index) else {
            return;
        };
        let mut payload = None;
        if kind == Kind::OutcomeRecorded
            && self.deviated
            && let Some(end) = end
        {
            let mut changed = self.source.payload(index);
            changed.insert("status".to_owned(), json!(end.status));
            changed.insert("summary".to_owned(), json!(end.summary));
            changed.insert("failure".to_owned(), end.failure.clone());
            payload = Some(changed);
        }
        let mut made = None;
        if kind == Kind::ArtifactCreated {
            let (artifact, changed) = self.uploaded(index);
            made = Some(artifact);
            payload = changed;
        }
        self.repeat(kind, index, payload);
        if let Some(artifact) = made {
            self.made(artifact, None);
        }
    }

    /// Returns an Artifact that somebody registered, with the bytes it got later.
    fn uploaded(&self, index: usize) -> (FinalArtifact, Option<Map<String, Value>>) {
        let mut payload = self.source.payload(index);
        let id = self.source.event(index).map(|event| &event.resource.id);
        let updated = (index..self.source.len()).find(|later| {
            self.source.kind(*later) == Some(Kind::ArtifactUpdated)
                && self.source.event(*later).map(|event| &event.resource.id) == id
        });
        if let Some(event) = updated.and_then(|later| self.source.event(later)) {
            for member in ["sha256", "bytes"] {
                if let Some(value) = event.payload.get(member) {
                    payload.insert(member.to_owned(), value.clone());
                }
            }
        }
        let text = |name: &str| payload.get(name).and_then(Value::as_str);
        let artifact = FinalArtifact {
            kind: text("kind").unwrap_or("other").to_owned(),
            sha256: text("sha256").and_then(|text| Digest::parse(text).ok()),
        };
        (artifact, Some(payload))
    }

    /// Returns the next event of a kind that the workflow brought about and that has not come again yet.
    pub(super) fn next_of(&mut self, kind: Kind) -> Option<usize> {
        let ahead = self.ahead.get_mut(&kind)?;
        // What has been passed never comes back, so that each event is looked at once.
        while let Some(index) = ahead.front().copied() {
            if index >= self.next && self.consumed.get(index) == Some(&false) {
                return Some(index);
            }
            ahead.pop_front();
        }
        None
    }

    pub(super) fn class(&self, index: usize) -> Class {
        match (self.source.kind(index), self.source.event(index)) {
            (Some(kind), Some(event)) => class_of(kind, event),
            _ => Class::Passive,
        }
    }

    pub(super) fn differs(&self, kind: Kind, place: Option<usize>, found: &Value) -> Failure {
        let expected = place.map(|index| sha256(&jcs(&Value::Object(self.source.payload(index)))));
        Failure::Diverged(Box::new(Divergence {
            key: place
                .and_then(|index| self.source.key_of(index))
                .map(str::to_owned),
            event: Some(kind.as_str().to_owned()),
            sequence: place.map(|index| index as u64 + 1),
            expected_sha256: expected,
            found_sha256: Some(sha256(&jcs(found))),
            what: if place.is_some() { "event" } else { "extra" },
        }))
    }
}

/// Returns what an event of the source is to its replay.
pub(super) fn class_of(kind: Kind, event: &Event) -> Class {
    let by_agent = event.actor.as_deref() == Some("agent");
    match kind.in_replay() {
        InReplay::Lifecycle => Class::Lifecycle,
        InReplay::Delta => Class::Delta,
        InReplay::Caused => Class::Caused,
        InReplay::CausedByAgent | InReplay::CausedOrDecided if by_agent => Class::Caused,
        InReplay::CausedByAgent | InReplay::Passive => Class::Passive,
        InReplay::CausedOrDecided | InReplay::Decision => Class::Decision,
    }
}
