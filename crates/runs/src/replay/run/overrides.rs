//! Overrides: the ones that replace whole events, and the account of those that were delivered.

use canon::{Digest, Map, Value, jcs, sha256};
use domain::payload;
use receipts::{Applied, DeltaOperation};
use serde_json::json;

use super::Runner;
use crate::members;
use crate::replay::request::{Override, OverrideValue};

impl<'a> Runner<'a> {
    pub(super) fn event_override(&self, index: usize) -> Option<&'a Override> {
        let id = &self.source.event(index)?.id;
        if self.spec.overrides.is_empty() {
            return None;
        }
        self.spec.overrides.get(&format!("event:{id}"))
    }

    /// Returns the payload of an event, replaced if the request says so, with its blobs filled in.
    pub(super) fn payload(&self, index: usize) -> Map<String, Value> {
        match self.event_override(index).and_then(Override::inline) {
            Some(Value::Object(payload)) => payload.clone(),
            _ => self.source.payload(index),
        }
    }

    pub(super) fn event_override_applied(&mut self, index: usize) {
        if self.event_override(index).is_some() {
            self.deviated = true;
        }
    }

    pub(super) fn take_event_override(
        &mut self,
        index: usize,
    ) -> Option<(String, Map<String, Value>)> {
        let given = self.event_override(index)?;
        let id = self.source.event(index)?.id.clone();
        let payload = given.inline()?.as_object()?.clone();
        let key = format!("event:{id}");
        let before = sha256(&jcs(&Value::Object(self.source.payload(index))));
        self.apply(&key, Some(index), Some(before));
        self.deviated = true;
        // What is not public is told by its digest.
        let mut shown = if given.visibility == domain::Visibility::Public {
            payload
        } else {
            members(json!({
                "redacted": true,
                "visibility": given.visibility.as_str(),
                "sha256": given.digest(),
            }))
        };
        // Whatever it says now, it belongs to the same effect (AP-RPL-08).
        shown.remove("effect_key");
        if let Some(effect_key) = self.source.key_of(index) {
            shown.insert("effect_key".to_owned(), effect_key.into());
        }
        Some((key, shown))
    }

    /// Notes that an override was delivered.
    pub(super) fn apply(&mut self, key: &str, place: Option<usize>, before: Option<Digest>) {
        let Some(given) = self.spec.overrides.get(key) else {
            return;
        };
        let artifact_id = match &given.given {
            OverrideValue::Artifact { artifact_id, .. } => Some(artifact_id.clone()),
            OverrideValue::Inline(_) | OverrideValue::Secret => None,
        };
        let reason = given.reason.clone().or_else(|| self.spec.reason.clone());
        let applied = Applied {
            key: key.to_owned(),
            operation: operation(place),
            event_id: given.event_id.clone().or_else(|| self.event_id(place)),
            before_sha256: before,
            after_sha256: given.placeholder.or_else(|| given.digest()),
            artifact_id,
            reason: reason.unwrap_or_else(|| "override".to_owned()),
        };
        self.replayed.apply(applied);
    }

    pub(super) fn recorded_digest(&self, key: &str) -> Option<Digest> {
        let event = self.source.event(self.source.places(key).recorded?)?;
        payload::EffectRecorded::of(&event.payload).value_sha256()
    }

    pub(super) fn event_id(&self, place: Option<usize>) -> Option<String> {
        place
            .and_then(|index| self.source.event(index))
            .map(|event| event.id.to_string())
    }
}

pub(super) const fn operation(place: Option<usize>) -> DeltaOperation {
    match place {
        Some(_) => DeltaOperation::Replace,
        None => DeltaOperation::Add,
    }
}
