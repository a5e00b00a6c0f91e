//! Votes that take too long, where the field is set to give up on them: then the conflict is the operator's.
//!
//! Whatever is decided on a field is decided after its overdue votes were given up, so that a late vote does not count
//! because nobody looked. Where nobody says anything to the field, somebody waits for the end of the vote.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use field::Field;
use tokio::sync::oneshot;

use super::processor::{CachedField, FieldProcessor, Job, QueuedJob, Sender};
use crate::engine::Engine;

/// What the log says of a vote that was given up.
pub(super) const OVERDUE: &str = "the vote took too long";
/// The shortest and the longest wait before votes are looked at again: the clock may be set meanwhile.
const WAIT_MIN: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a fault is waited out.
const FAULT_PAUSE: Duration = Duration::from_secs(1);

impl CachedField {
    /// True when the field is to give up on a vote some time.
    pub(super) fn has_votes(&self) -> bool {
        self.field.votes().next().is_some()
    }
}

impl Engine {
    /// Puts the end of overdue votes before a batch of messages.
    pub(super) fn after_overdue(&self, field: &Field, batch: Vec<QueuedJob>) -> Vec<QueuedJob> {
        let now = self.shared.clock.now();
        let mut votes = field.votes().filter(|(_, end)| *end <= now).peekable();
        if votes.peek().is_none() {
            return batch;
        }
        let given_up = votes.map(|(conflict_id, _)| QueuedJob {
            sender: Sender::field(),
            task: Job::Escalate {
                conflict_id: conflict_id.to_owned(),
            },
            // Nobody waits for the answer.
            reply: oneshot::channel().0,
        });
        given_up
            .collect::<Vec<_>>()
            .into_iter()
            .chain(batch)
            .collect()
    }

    /// Waits until a vote is overdue and has the field give up on it, until there are no votes.
    pub(super) fn await_votes(&self, processor: &Arc<FieldProcessor>) {
        if processor.awaiting_votes.swap(true, Ordering::AcqRel) {
            return;
        }
        let (engine, processor) = (self.clone(), Arc::clone(processor));
        self.shared.spawn.spawn(Box::pin(async move {
            while !engine.is_draining() {
                let Some((conflict_id, wait)) = engine.next_vote(&processor).await else {
                    return;
                };
                if !wait.is_zero() {
                    let wait = wait.clamp(WAIT_MIN, WAIT_MAX);
                    engine.shared.clock.sleep(wait).await;
                    continue;
                }
                // Refused where it was decided meanwhile, or given up before a message.
                let task = Job::Escalate { conflict_id };
                if let Err(refused) = engine.administer_field(&processor, task).await
                    && matches!(refused, super::FieldRefused::Engine(_))
                {
                    tracing::warn!(field = processor.name, error = %refused, "a vote was not given up");
                    engine.shared.clock.sleep(FAULT_PAUSE).await;
                }
            }
        }));
    }

    /// Returns the vote that ends first and how long that is from now. None leaves the processor to whoever finds the next one.
    async fn next_vote(&self, processor: &Arc<FieldProcessor>) -> Option<(String, Duration)> {
        let held = processor.held().await;
        let votes = held.as_ref().map(|held| held.field.votes());
        let next = votes.into_iter().flatten().min_by_key(|(_, end)| *end);
        let Some((conflict_id, end)) = next else {
            // While the field is held: a vote that comes now finds nobody waiting.
            processor.awaiting_votes.store(false, Ordering::Release);
            return None;
        };
        let now = self.shared.clock.now().as_micros();
        let wait = end.as_micros().saturating_sub(now);
        let wait = Duration::from_micros(u64::try_from(wait).unwrap_or_default());
        Some((conflict_id.to_owned(), wait))
    }
}
