//! What a workflow tells and makes besides its effects: notes, checkpoints, Artifacts, its answer.

use canon::{Value, jcs, sha256};
use domain::{Kind, Visibility, payload};
use serde_json::json;

use super::Runner;
use crate::replay::failure::Failure;
use crate::replay::outcome::FinalArtifact;
use crate::workflow::{Note, ProducedArtifact};
use crate::{members, message_text};

impl Runner<'_> {
    pub(super) fn notes(&mut self, notes: Vec<Note>) -> Result<(), Failure> {
        for Note { kind, mut payload } in notes {
            let place = self.next_of(kind);
            let key = payload.get("effect_key").and_then(Value::as_str);
            let key = key.map(str::to_owned);
            let given = key.as_ref().and_then(|key| self.spec.overrides.get(key));
            let is_replaced = given.is_some()
                || key
                    .as_ref()
                    .is_some_and(|key| self.asked_live.contains(key));
            let is_same = place.is_some_and(|index| {
                self.source.is_substituted(index)
                    || self.source.has_payload(index, &payload)
                    || (!is_replaced && self.source.hides_output(index))
            });
            if place.is_some() && !is_same && !self.deviated {
                return Err(self.differs(kind, place, &Value::Object(payload)));
            }
            // What a tool returned is its answer once more, and as public as that (B12-22).
            if let (Some(given), Some(output)) = (given, payload.get_mut("output"))
                && given.visibility != Visibility::Public
            {
                *output = json!({
                    "redacted": true,
                    "visibility": given.visibility.as_str(),
                    "sha256": given.digest(),
                });
            }
            let cause = key.filter(|_| is_replaced && kind == Kind::AgentToolResult);
            self.emit(kind, place, (!is_same).then_some(payload), cause.as_ref())?;
        }
        Ok(())
    }

    pub(super) fn checkpoint(&mut self, state: &Value) -> Result<(), Failure> {
        let Some(place) = self.next_of(Kind::CheckpointCreated) else {
            // A checkpoint off the record is of no use to anybody.
            return Ok(());
        };
        let found = sha256(&jcs(state));
        let recorded = self
            .source
            .event(place)
            .and_then(|event| payload::CheckpointCreated::of(&event.payload).state_sha256());
        let is_same = recorded == Some(found);
        if is_same || self.source.is_substituted(place) {
            return self.emit(Kind::CheckpointCreated, Some(place), None, None);
        }
        if !self.deviated {
            return Err(self.differs(Kind::CheckpointCreated, Some(place), state));
        }
        // The same boundary of a run that has changed: its own state goes with it.
        let bytes = jcs(state);
        let mut payload = self.source.payload(place);
        payload.insert("state_sha256".to_owned(), json!(found));
        payload.insert("bytes".to_owned(), json!(bytes.len()));
        self.emit(Kind::CheckpointCreated, Some(place), Some(payload), None)?;
        if let Some(last) = self.replayed.emissions.last_mut() {
            last.content = Some(bytes);
        }
        Ok(())
    }

    pub(super) fn products(&mut self, products: Vec<ProducedArtifact>) -> Result<(), Failure> {
        for product in products {
            let place = self.next_of(Kind::ArtifactCreated);
            let digest = sha256(&product.bytes);
            let recorded = place
                .and_then(|index| self.source.event(index))
                .and_then(|event| payload::ArtifactCreated::of(&event.payload).sha256());
            let is_same = recorded == Some(digest)
                || place.is_some_and(|index| self.source.is_substituted(index));
            if !is_same && !self.deviated {
                let found = Value::String(digest.to_string());
                return Err(self.differs(Kind::ArtifactCreated, place, &found));
            }
            let payload = json!({
                "kind": product.kind,
                "mime_type": product.mime_type,
                "uri": null,
                "visibility": "public",
                "sha256": digest,
                "bytes": product.bytes.len(),
                "metadata": {},
            });
            self.emit(
                Kind::ArtifactCreated,
                place,
                (!is_same).then(|| members(payload)),
                None,
            )?;
            let artifact = FinalArtifact {
                kind: product.kind.as_str().to_owned(),
                sha256: Some(digest),
            };
            self.made(artifact, (!is_same).then_some(product.bytes));
        }
        Ok(())
    }

    /// Notes that the last event makes an Artifact, unless it was replaced by one that makes none.
    pub(super) fn made(&mut self, artifact: FinalArtifact, content: Option<Vec<u8>>) {
        let Some(last) = self.replayed.emissions.last_mut() else {
            return;
        };
        let was_replaced = last
            .original
            .is_some_and(|index| self.source.is_substituted(index));
        if last.override_key.is_some() || was_replaced {
            return;
        }
        self.replayed.artifacts.push(artifact);
        last.artifact = Some(self.replayed.artifacts.len() as u64);
        last.content = content;
    }

    pub(super) fn message(&mut self, text: &str) -> Result<(), Failure> {
        let place = self.next_of(Kind::AgentMessage);
        let source_text = place.map(|index| message_text(&self.source.payload(index)));
        let is_same = source_text.as_deref() == Some(text)
            || place.is_some_and(|index| self.source.is_substituted(index));
        if !is_same && !self.deviated {
            return Err(self.differs(Kind::AgentMessage, place, &Value::String(text.to_owned())));
        }
        let payload = (!is_same).then(|| {
            // Another text is another message, and no Session holds it.
            members(json!({
                "message_id": null,
                "role": "assistant",
                "parts": [{"type": "text", "text": text, "visibility": "public"}],
                "metadata": {},
            }))
        });
        self.emit(Kind::AgentMessage, place, payload, None)?;
        if let Some(place) = self.next_of(Kind::SessionMessageAppended) {
            self.emit(Kind::SessionMessageAppended, Some(place), None, None)?;
        }
        Ok(())
    }
}
