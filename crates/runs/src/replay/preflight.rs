//! What is checked before a replay runs: the log against its receipt, the receipt against its hash, and every blob, so that
//! the first thing missing is told by its place and not by luck (B10).

use std::collections::{BTreeMap, BTreeSet};

use canon::{Digest, Value, sha256};
use domain::{Kind, payload};
use receipts::Receipt;

use super::failure::{Failure, Unavailable};
use super::request::Override;
use super::source::{Source, names_in};

impl Source {
    /// Checks everything that a replay from a place on refers to. What is overridden is not needed.
    pub(super) fn check(
        &self,
        from: usize,
        overrides: &BTreeMap<String, Override>,
    ) -> Option<Failure> {
        let first = self.receipt_problem().or_else(|| self.log_problem());
        if let Some(first) = first {
            return Some(Failure::Unavailable {
                first: Box::new(first),
                also: 0,
            });
        }
        let mut sound = BTreeSet::new();
        let mut missing = self
            .events
            .iter()
            .enumerate()
            .filter(|(index, event)| {
                // The boundary itself counts, and to restore it the workflow goes over what it was told before.
                let is_used = index + 1 >= from || self.is_needed_again(*index);
                // What a request said in the replay that is replayed now may come again as an event of the run's own,
                // which then names what it looks like: that must be in this very record.
                event.is_substituted() || (is_used && !self.is_replaced(*index, overrides))
            })
            .flat_map(|(index, event)| {
                names_in(&event.payload, self.kind(index))
                    .into_iter()
                    .map(move |(_, digest)| (index, event, digest))
            })
            .filter_map(|(index, event, digest)| {
                let reason = match self.blobs.get(&digest) {
                    None => "missing",
                    Some(bytes) => match sound.contains(&digest) || sha256(bytes) == digest {
                        true => {
                            sound.insert(digest);
                            return None;
                        }
                        false => "hash_mismatch",
                    },
                };
                Some(Unavailable {
                    what: "artifact",
                    id: Some(digest.to_string()),
                    key: self.key_of(index).map(str::to_owned),
                    event_id: Some(event.id.to_string()),
                    sequence: Some(index as u64 + 1),
                    reason,
                })
            });
        let first = missing.next()?;
        let also = missing.count() as u64;
        Some(Failure::Unavailable {
            first: Box::new(first),
            also,
        })
    }

    /// Says why what it tells cannot be believed, if that is so: the log is not the one that was sealed, or content is not what its
    /// digest says. Content that is not there is no damage.
    pub fn damage(&self) -> Option<&'static str> {
        let stated = self.receipt_problem().or_else(|| self.log_problem());
        let stated = stated.map(|problem| problem.reason);
        let mut blobs = self.blobs.iter();
        stated.or_else(|| {
            let is_other = blobs.any(|(digest, bytes)| sha256(bytes) != *digest);
            is_other.then_some("hash_mismatch")
        })
    }

    fn receipt_problem(&self) -> Option<Unavailable> {
        let stated = self.receipt.as_ref().and_then(Receipt::stated_hash);
        let (id, reason) = match (&self.lacking, &self.receipt) {
            (Some((id, reason)), _) => (id.as_str(), *reason),
            (None, Some(receipt)) if stated != self.receipt_hash => (receipt.id(), "hash_mismatch"),
            _ => return None,
        };
        Some(Unavailable {
            what: "receipt",
            id: Some(id.to_owned()),
            key: None,
            event_id: None,
            sequence: None,
            reason,
        })
    }

    fn log_problem(&self) -> Option<Unavailable> {
        let stated = self.receipt.as_ref().and_then(stated_log_digest);
        let mut stated = stated.into_iter().chain(self.claimed);
        stated
            .any(|stated| stated != self.log_sha256)
            .then(|| Unavailable {
                what: "event",
                id: None,
                key: None,
                event_id: self.events.first().map(|event| event.id.to_string()),
                sequence: Some(1),
                reason: "log_corrupt",
            })
    }

    fn is_needed_again(&self, index: usize) -> bool {
        matches!(
            self.kind(index),
            Some(Kind::TaskSubmitted | Kind::UserMessage | Kind::EffectRecorded)
        )
    }

    fn is_replaced(&self, index: usize, overrides: &BTreeMap<String, Override>) -> bool {
        let Some(event) = self.events.get(index).filter(|_| !overrides.is_empty()) else {
            return false;
        };
        let whole = match self.kind(index) {
            Some(Kind::EffectRecorded) => {
                let key = event.effect_key();
                key.is_some_and(|key| overrides.contains_key(key))
            }
            Some(Kind::CheckpointCreated) => payload::CheckpointCreated::of(&event.payload)
                .checkpoint_id()
                .and_then(|id| overrides.get(&format!("host:checkpoint:{id}")))
                .is_some_and(|given| given.target.as_deref().is_none_or(str::is_empty)),
            _ => false,
        };
        whole || overrides.contains_key(&format!("event:{}", event.id))
    }
}

/// Returns the digest of the event log that a receipt states.
pub(super) fn stated_log_digest(receipt: &Receipt) -> Option<Digest> {
    receipt
        .as_map()
        .get("replay_input")?
        .get("materials")?
        .as_array()?
        .iter()
        .find(|material| material.get("kind").and_then(Value::as_str) == Some("event_log"))
        // The receipt of a replay names the log of its own source.
        .filter(|_| !receipt.is_replay())
        .and_then(|material| Digest::parse(material.get("sha256")?.as_str()?).ok())
}
