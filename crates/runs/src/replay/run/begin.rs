//! Where a replay begins: at the source's beginning or at one of its checkpoints, once everything it needs is there.

use canon::{Value, jcs, sha256};
use domain::payload;
use serde_json::json;

use super::{Begun, Runner};
use crate::replay::failure::{Divergence, Failure, Unavailable};
use crate::replay::request::OverrideValue;
use crate::workflow::{self, Registry};

impl Runner<'_> {
    /// Checks everything that is needed, and returns the machine before its first step.
    pub(super) fn begin(&mut self, workflows: &Registry) -> Result<Begun, Failure> {
        let boundary = self
            .spec
            .checkpoint
            .as_deref()
            .and_then(|id| self.source.checkpoint(id));
        let from = boundary.map_or(0, |place| place + 1);
        if let Some(failure) = self.source.check(from, &self.spec.overrides) {
            return Err(failure);
        }
        if let Some(failure) = self.unreadable_override() {
            return Err(failure);
        }
        self.lifecycle_time("time:created_at", from);
        if !self.source.has_started() {
            return self.end_as_source().map(Begun::Ended);
        }
        let (name, recorded) = self.source.workflow();
        let Some(workflow) = workflows.recorded(name, recorded) else {
            // The oldest, so that a version which is added later changes no receipt.
            let oldest = workflows.recorded(name, None);
            let found = oldest.map(|workflow| workflow::digest(workflow.as_ref()));
            return Err(Failure::Diverged(Box::new(Divergence {
                key: None,
                event: Some(format!("workflow {name}")),
                sequence: self
                    .source
                    .lifecycle_event("time:started_at")
                    .map(|index| index as u64 + 1),
                expected_sha256: recorded,
                found_sha256: found,
                what: "kind",
            })));
        };
        self.lifecycle_time("time:started_at", from);
        let (start, input) = self.source.start(|index| self.payload(index));
        let machine = match boundary {
            None => {
                self.event_override_applied(input);
                workflow.begin(&start)
            }
            Some(place) => {
                self.next = from;
                self.replayed.cursor = Some(place);
                let state = self.checkpoint_state(place)?;
                let past = self.source.answers_before(place)?;
                workflow
                    .restore(&start, &state, &past)
                    .map_err(|message| self.cannot_restore(place, message))?
            }
        };
        Ok(Begun::Machine {
            machine,
            restored: boundary.is_some(),
        })
    }

    /// Finds an override whose value cannot be had any more.
    fn unreadable_override(&self) -> Option<Failure> {
        self.spec.overrides.iter().find_map(|(key, given)| {
            let (what, id, reason) = match &given.given {
                OverrideValue::Inline(_) => return None,
                OverrideValue::Artifact { value: Some(_), .. } => return None,
                OverrideValue::Artifact { artifact_id, .. } => {
                    ("artifact", Some(artifact_id.clone()), "missing")
                }
                OverrideValue::Secret if self.secrets.contains_key(key) => return None,
                // The process that was told the secret has ended.
                OverrideValue::Secret => ("host", None, "policy"),
            };
            let first = Unavailable {
                what,
                id,
                key: Some(key.clone()),
                event_id: None,
                sequence: None,
                reason,
            };
            Some(Failure::Unavailable {
                first: Box::new(first),
                also: 0,
            })
        })
    }

    /// The server's own readings of the clock: an override of one becomes a member of the receipt.
    pub(super) fn lifecycle_time(&mut self, key: &str, from: usize) {
        let Some(place) = self.source.lifecycle_event(key) else {
            return;
        };
        if place < from || !self.spec.overrides.contains_key(key) {
            return;
        }
        let before = self
            .source
            .event(place)
            .map(|event| sha256(&jcs(&json!(event.created_at))));
        self.apply(key, Some(place), before);
    }

    fn checkpoint_state(&mut self, place: usize) -> Result<Value, Failure> {
        let payload = self.payload(place);
        let said = payload::CheckpointCreated::of(&payload);
        let digest = said.state_sha256();
        let recorded = || {
            let state = digest.and_then(|digest| self.source.blob(digest));
            let state = state.and_then(|bytes| serde_json::from_slice(bytes).ok());
            state.ok_or_else(|| self.no_checkpoint(place, "missing"))
        };
        let key = format!(
            "host:checkpoint:{}",
            said.checkpoint_id().unwrap_or_default()
        );
        let Some(given) = self.spec.overrides.get(&key) else {
            return recorded();
        };
        let value = given.inline().cloned().unwrap_or_default();
        let state = match given.target.as_deref() {
            None | Some("") => value,
            Some(pointer) => {
                let mut state: Value = recorded()?;
                let Some(member) = state.pointer_mut(pointer) else {
                    return Err(Failure::OverrideInvalid {
                        key,
                        message: format!("the state has no member `{pointer}`"),
                    });
                };
                *member = value;
                state
            }
        };
        self.apply(&key, Some(place), digest);
        self.deviated = true;
        Ok(state)
    }

    fn no_checkpoint(&self, place: usize, reason: &'static str) -> Failure {
        let payload = self.payload(place);
        let first = Unavailable {
            what: "artifact",
            id: payload
                .get("artifact_id")
                .and_then(Value::as_str)
                .map(str::to_owned),
            key: None,
            event_id: self.event_id(Some(place)),
            sequence: Some(place as u64 + 1),
            reason,
        };
        Failure::Unavailable {
            first: Box::new(first),
            also: 0,
        }
    }

    fn cannot_restore(&self, place: usize, message: String) -> Failure {
        let mut applied = self.replayed.applied.iter().map(|applied| &applied.key);
        match applied.find(|key| key.starts_with("host:checkpoint:")) {
            Some(key) => Failure::OverrideInvalid {
                key: key.clone(),
                message,
            },
            None => self.no_checkpoint(place, "hash_mismatch"),
        }
    }
}
