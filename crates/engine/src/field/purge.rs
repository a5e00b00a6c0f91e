//! What a purge erases beside the log: texts, vectors and answers, after the entry that says so and before the answer. A process
//! that dies in between does it when the field is read again.

use canon::{Digest, Value};
use field::{CompactStrategy, Entry, Envelope, Event, Field, Operation};

use super::processor::CachedField;
use crate::engine::Engine;
use crate::port::Erased;
use crate::refused::Refused;

/// Messages that one batch can hold: as many purges may have been cut short together.
const CUT_SHORT_MAX: usize = super::processor::BATCH_LEN_MAX;

/// Returns whether an entry is a purge, also one that found nothing to erase.
pub(super) fn is_purge(entry: &Entry) -> bool {
    matches!(&entry.event, Event::Compacted { strategy, .. } if *strategy == CompactStrategy::Purge)
}

/// Returns whether a message asks for a purge.
pub(super) fn asks_to_purge(envelope: &Envelope) -> bool {
    let strategy = envelope.payload().get("strategy");
    let strategy = strategy.and_then(Value::as_str);
    envelope.operation() == Operation::Compact && strategy == Some(CompactStrategy::Purge.as_str())
}

/// Adds to the answer of a purge whether any file still holds the words: it is asked again each time it is answered.
pub(super) fn say_erased(answer: &mut Value, erased: Erased) {
    let said = match erased {
        Erased::Gone => "complete",
        Erased::Held => "pending",
    };
    if let Some(members) = answer.as_object_mut() {
        members.insert("erasure".to_owned(), said.into());
    }
}

/// Returns what an entry says is erased.
pub(super) fn erased(entry: &Entry) -> &[Digest] {
    match &entry.event {
        Event::Compacted { erased, .. } => erased,
        _ => &[],
    }
}

/// Returns what the last purges of a field erase: those before them came to their end before these began.
fn last_erased(field: &Field) -> Vec<Digest> {
    let entries = field.log().entries().iter().rev().map(erased);
    let purges = entries.filter(|erased| !erased.is_empty());
    purges.take(CUT_SHORT_MAX).flatten().copied().collect()
}

impl Engine {
    /// Erases what entries of a field say. What is kept of its fold goes too, and is made again by the next reading of its
    /// log.
    pub(super) async fn erase(
        &self,
        held: &mut CachedField,
        digests: Vec<Digest>,
    ) -> Result<Erased, Refused> {
        let Some(key) = held.key else {
            let detail = "a field without a document is to erase something".to_owned();
            return Err(Refused::Internal { detail });
        };
        let _alone = self.shared.fields.segments.write().await;
        let forgets = !digests.is_empty();
        let erased = self.shared.store.erase_blobs(key, digests).await?;
        if forgets {
            held.kept = held.version;
        }
        Ok(erased)
    }

    /// Comes to an end with a purge that was cut short.
    pub(super) async fn finish_purge(&self, held: &mut CachedField) -> Result<(), Refused> {
        let digests = last_erased(&held.field);
        if digests.is_empty() {
            return Ok(());
        }
        let found = self.shared.store.blobs_as_stored(digests.clone()).await?;
        match found.iter().any(Option::is_some) {
            true => self.erase(held, digests).await.map(drop),
            false => Ok(()),
        }
    }
}
