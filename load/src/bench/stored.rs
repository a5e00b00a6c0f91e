//! Bytes on disk for what callers and effects handed in: a run of fifty turns of 4 KiB each way, and fifty Messages.
//!
//! The files of a closed data directory, less those of one that holds nothing but what a start makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use engine::port::{BoxFuture, Deltas, Performed, Performer};
use engine::workflow::Effect;
use fastrand::Rng;
use serde_json::json;

use crate::Bench;
use crate::log::Log;
use crate::program::stored_bytes;
use crate::report::{Budget, Line, Report, Unit};
use crate::text::printable;

const TURNS: usize = 50;
/// Lengths are spread evenly around the mean.
const PAYLOAD_BYTES_MEAN: usize = 4_096;
const PAYLOAD_BYTES_SPREAD: usize = 2_048;

const RATIO_MAX: f64 = 1.3;

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let empty = {
        let data = bench.path("stored-empty");
        Log::open(&data).await?.close().await?;
        stored_bytes(&data)?
    };
    let mut rng = Rng::with_seed(4);

    let data = bench.path("stored-run");
    let model = Arc::new(Model::default());
    let log = Log::open_with(&data, Arc::clone(&model) as Arc<dyn Performer>).await?;
    let session = log.session(Vec::new()).await?;
    let mut handed_in = 0;
    for _ in 0..TURNS {
        let input = payload(&mut rng);
        handed_in += input.len() as u64;
        log.task(&session, input).await?;
    }
    log.close().await?;
    handed_in += model.answered_bytes.load(Ordering::Relaxed);
    let line = |name, value, peer| Line {
        name,
        value,
        unit: Unit::Bytes,
        peer: Some(("handed in", peer)),
        budget: Some(Budget::Ratio(RATIO_MAX)),
        noise: None,
    };
    let stored = stored_bytes(&data)? - empty;
    report.add(line("stored.run", stored, handed_in as f64));

    let data = bench.path("stored-messages");
    let log = Log::open(&data).await?;
    let session = log.session(Vec::new()).await?;
    let mut handed_in = 0;
    for _ in 0..TURNS {
        let text = payload(&mut rng);
        handed_in += text.len();
        log.append(&session, text).await?;
    }
    log.close().await?;
    let stored = stored_bytes(&data)? - empty;
    report.add(line("stored.messages", stored, handed_in as f64));
    Ok(())
}

fn payload(rng: &mut Rng) -> String {
    let least = PAYLOAD_BYTES_MEAN - PAYLOAD_BYTES_SPREAD;
    let most = PAYLOAD_BYTES_MEAN + PAYLOAD_BYTES_SPREAD;
    let len = rng.usize(least..=most);
    printable(rng, len)
}

/// A model that never says the same twice, and counts the bytes of what it says.
#[derive(Debug, Default)]
struct Model {
    calls: AtomicU64,
    answered_bytes: AtomicU64,
}

impl Performer for Model {
    fn perform(&self, _effect: Effect, _deltas: Deltas) -> BoxFuture<'static, Performed> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut rng = Rng::with_seed(1_000 + call);
        let content = payload(&mut rng);
        let value = json!({
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
        });
        let bytes = canon::jcs(&value).len() as u64;
        self.answered_bytes.fetch_add(bytes, Ordering::Relaxed);
        Box::pin(std::future::ready(Performed::ok(value)))
    }
}
