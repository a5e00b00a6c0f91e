//! Vectors that a model outside makes: asked for before messages are decided, and again later for units that are left without.
//!
//! A field never waits for a model that does not answer: a unit without a vector is kept as `pending_enrichment` and found by
//! its words, the model is left alone for a while, and whoever made the units wait comes back to them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use domain::Timestamp;
use field::{Embedding, Field, Level, Model, Operation, Vector, text_to_embed};

use super::processor::{FieldProcessor, Job, QueuedJob};
use crate::engine::Engine;
use crate::port::Embedder;

/// How long a model that failed is left alone.
const REST: Duration = Duration::from_secs(5);
/// The first and the longest wait before units without a vector are tried again.
const WAIT_FIRST: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Units that are tried at once.
const ENRICHED_MAX: usize = 32;

impl Engine {
    fn embedder(&self) -> Option<&Arc<dyn Embedder>> {
        let offered = self.fields().level >= Level::Standard;
        self.shared.fields.embedder.get().filter(|_| offered)
    }

    /// Returns the vectors for a batch of messages, each in its place.
    pub(super) async fn embeddings(&self, field: &Field, batch: &[QueuedJob]) -> Vec<Embedding> {
        let Some(embedder) = self.embedder() else {
            return batch.iter().map(QueuedJob::embedding).collect();
        };
        let texts = batch.iter().map(|asked| match &asked.task {
            Job::Message(envelope) => text_to_embed(field, envelope),
            Job::Retract { .. } | Job::Enrich { .. } | Job::Escalate { .. } => None,
        });
        let texts: Vec<Option<String>> = texts.collect();
        let mut made = self
            .vectors(embedder, texts.iter().flatten().cloned().collect())
            .await;
        let one = |(asked, text): (&QueuedJob, &Option<String>)| match (text, &asked.task) {
            (Some(_), _) => match &mut made {
                Ok(made) => made.next().unwrap_or_else(|| {
                    Embedding::Failed("the model returned no usable vector".to_owned())
                }),
                Err(reason) => Embedding::Failed(reason.clone()),
            },
            // What a compaction writes is known only when it is decided.
            (None, Job::Message(envelope)) if envelope.operation() == Operation::Compact => {
                Embedding::Failed("summaries get their vectors later".to_owned())
            }
            (None, _) => asked.embedding(),
        };
        batch.iter().zip(&texts).map(one).collect()
    }

    async fn vectors(
        &self,
        embedder: &Arc<dyn Embedder>,
        texts: Vec<String>,
    ) -> Result<std::vec::IntoIter<Embedding>, String> {
        if texts.is_empty() {
            return Ok(Vec::new().into_iter());
        }
        if self.rests() {
            return Err("the model did not answer a moment ago".to_owned());
        }
        let count = texts.len();
        let made = embedder.embed(texts).await.and_then(|made| {
            let whole = made.len() == count;
            whole
                .then_some(made)
                .ok_or_else(|| "the model returned the wrong number of vectors".to_owned())
        });
        let made = match made {
            Ok(made) => made,
            Err(reason) => {
                let now = self.shared.clock.now().as_micros();
                let rest = i64::try_from(REST.as_micros()).unwrap_or(i64::MAX);
                let until = Timestamp::from_micros(now.saturating_add(rest));
                let rests = &self.shared.fields.rests_until;
                *rests.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
                tracing::warn!(reason, "vectors for a field cannot be computed");
                return Err(reason);
            }
        };
        let model = embedder.model();
        let model = Model {
            name: model.name,
            sha256: model.sha256,
        };
        let given = made.iter().map(|components| {
            let vector = Vector::quantized(model.clone(), components);
            let unusable = || Embedding::Failed("the model returned no usable vector".to_owned());
            vector.map_or_else(unusable, Embedding::Given)
        });
        Ok(given.collect::<Vec<_>>().into_iter())
    }

    fn rests(&self) -> bool {
        let until = self.shared.fields.rests_until.lock();
        let until = *until.unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| self.shared.clock.now() < until)
    }

    /// Comes back to units that are left without a vector, until there are none.
    pub(super) fn enrich_later(&self, processor: &Arc<FieldProcessor>) {
        let Some(embedder) = self.embedder().cloned() else {
            return;
        };
        if processor.enriching.swap(true, Ordering::AcqRel) {
            return;
        }
        let (engine, processor) = (self.clone(), Arc::clone(processor));
        self.shared.spawn.spawn(Box::pin(async move {
            let mut wait = WAIT_FIRST;
            loop {
                engine.shared.clock.sleep(wait).await;
                if engine.is_draining() {
                    break;
                }
                let pending = processor.pending(ENRICHED_MAX).await;
                if pending.is_empty() {
                    break;
                }
                let (ids, texts): (Vec<String>, Vec<String>) = pending.into_iter().unzip();
                let Ok(made) = engine.vectors(&embedder, texts).await else {
                    wait = (wait * 2).min(WAIT_MAX);
                    continue;
                };
                let mut enriched = false;
                for (unit_id, embedding) in ids.into_iter().zip(made) {
                    let task = Job::Enrich { unit_id, embedding };
                    // A unit that was replaced or purged meanwhile needs none any more.
                    enriched |= engine.administer_field(&processor, task).await.is_ok();
                }
                wait = if enriched {
                    WAIT_FIRST
                } else {
                    (wait * 2).min(WAIT_MAX)
                };
            }
            processor.enriching.store(false, Ordering::Release);
        }));
    }
}

impl QueuedJob {
    /// Returns what this brings along: nothing but the built-in model, or the vector of an enrichment.
    fn embedding(&self) -> Embedding {
        match &self.task {
            Job::Message(_) | Job::Retract { .. } | Job::Escalate { .. } => Embedding::BuiltIn,
            Job::Enrich { embedding, .. } => embedding.clone(),
        }
    }
}
