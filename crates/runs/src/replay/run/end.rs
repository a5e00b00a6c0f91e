//! How a replay ends, and whether that is how its source ended.

use canon::Value;
use domain::{Kind, Status, payload};

use super::Runner;
use super::emit::Class;
use crate::message_text;
use crate::replay::failure::{Divergence, Failure};
use crate::replay::outcome::End;
use crate::workflow::Step;

impl Runner<'_> {
    /// True when the source was ended from outside before it came to this step.
    pub(super) fn was_stopped_before(&self, step: &Step) -> bool {
        if self.deviated || self.source.status == Status::Completed {
            return false;
        }
        match step {
            Step::Request { effects, .. } => effects
                .iter()
                .all(|effect| self.source.places(&effect.key).requested.is_none()),
            Step::Done { .. } => true,
            Step::Failed { code, .. } => {
                self.source_failure().get("code").and_then(Value::as_str) != Some(code)
            }
        }
    }

    /// Ends where the source ended without the workflow's doing.
    pub(super) fn end_as_source(&mut self) -> Result<Box<End>, Failure> {
        let failure = self.source_failure();
        let summary = (0..self.source.len())
            .rev()
            .find(|index| self.source.kind(*index) == Some(Kind::OutcomeRecorded))
            .map(|index| self.source.payload(index))
            .and_then(|payload| {
                let said = payload::OutcomeRecorded::of(&payload);
                said.summary().map(str::to_owned)
            })
            .unwrap_or_default();
        let end = End {
            status: self.source.status,
            text: None,
            summary,
            failure,
            broken: None,
        };
        self.finish(end)
    }

    pub(super) fn finish(&mut self, end: End) -> Result<Box<End>, Failure> {
        if !self.deviated && end.status != self.source.status {
            return Err(Failure::Diverged(Box::new(Divergence {
                key: None,
                event: Some(format!("end as {}", end.status.as_str())),
                sequence: Some(self.source.len() as u64),
                expected_sha256: None,
                found_sha256: None,
                what: "event",
            })));
        }
        self.pass(self.source.len(), Some(&end))?;
        self.lifecycle_time("time:completed_at", 0);
        Ok(Box::new(end))
    }

    pub(super) fn equals_source(&self, end: &End) -> bool {
        if end.status != self.source.status {
            return false;
        }
        self.source_text() == end.text && self.source_failure() == end.failure
    }

    /// Returns what the source said at its end.
    fn source_text(&self) -> Option<String> {
        let last = |wanted: Kind, own: bool| {
            (0..self.source.len()).rev().find(|index| {
                self.source.kind(*index) == Some(wanted)
                    && self
                        .source
                        .event(*index)
                        .is_some_and(|event| !own || event.replay.is_none())
                    && (own || matches!(self.class(*index), Class::Caused))
            })
        };
        // A replay's outcome holds its words; that of any other Task points at them.
        let outcome = last(Kind::OutcomeRecorded, true).map(|index| self.source.payload(index));
        let messages = outcome.as_ref().and_then(|outcome| outcome.get("messages"));
        if let Some(Value::Array(messages)) = messages {
            let message = messages.first().and_then(Value::as_object);
            return message.map(message_text);
        }
        last(Kind::AgentMessage, false).map(|index| message_text(&self.source.payload(index)))
    }

    pub(super) fn source_failure(&self) -> Value {
        (0..self.source.len())
            .rev()
            .find(|index| self.source.kind(*index) == Some(Kind::TaskFailed))
            .and_then(|index| self.source.payload(index).remove("failure"))
            .unwrap_or_default()
    }
}
