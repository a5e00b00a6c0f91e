//! What a purge erases beside the log: texts, vectors and answers, after the entry that says so and before the answer. A process
//! that dies in between does it when the field is read again.

use canon::Digest;
use field::{Entry, Event, Field};

use super::desk::Held;
use crate::engine::Engine;
use crate::refused::Refused;

/// Returns what an entry says is erased.
pub(super) fn erased(entry: &Entry) -> &[Digest] {
    match &entry.event {
        Event::Compacted { erased, .. } => erased,
        _ => &[],
    }
}

/// Returns what the last purge of a field erases: those before it came to their end before it began.
fn last_erased(field: &Field) -> &[Digest] {
    let entries = field.log().entries().iter().rev().map(erased);
    let mut purges = entries.filter(|erased| !erased.is_empty());
    purges.next().unwrap_or_default()
}

impl Engine {
    /// Erases what entries of a field say. What is kept of its fold goes too, and is made again by the next reading of its
    /// log.
    pub(super) async fn erase(&self, held: &mut Held, digests: Vec<Digest>) -> Result<(), Refused> {
        let Some(key) = held.key else {
            let detail = "a field without a document is to erase something".to_owned();
            return Err(Refused::Internal { detail });
        };
        let _alone = self.shared.fields.segments.write().await;
        self.shared.store.erase_blobs(key, digests).await?;
        held.kept = held.version;
        Ok(())
    }

    /// Comes to an end with a purge that was cut short.
    pub(super) async fn finish_purge(&self, held: &mut Held) -> Result<(), Refused> {
        let digests = last_erased(&held.field);
        if digests.is_empty() {
            return Ok(());
        }
        let digests = digests.to_vec();
        let found = self.shared.store.blobs_as_stored(digests.clone()).await?;
        match found.iter().any(Option::is_some) {
            true => self.erase(held, digests).await,
            false => Ok(()),
        }
    }
}
