//! Bytes on disk for what callers and effects handed in: runs of fifty turns of 4 KiB each way, and fifty Messages.
//!
//! The files of a closed data directory, less those of one that holds nothing but what a start makes. The store
//! compresses, so that the kind of text matters: each run has a line with what its values are when each is compressed
//! by itself.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use engine::port::{BoxFuture, Deltas, Performer};
use fastrand::Rng;
use runs::workflow::{Effect, EffectOutcome};
use serde_json::json;

use crate::Bench;
use crate::log::Log;
use crate::program::stored_bytes;
use crate::report::{Budget, Line, Report, Unit};
use crate::text::{printable, prose, unicode};

const TURNS: usize = 50;
/// Lengths are spread evenly around the mean.
const PAYLOAD_BYTES_MEAN: usize = 4_096;
const PAYLOAD_BYTES_SPREAD: usize = 2_048;

const RATIO_MAX: f64 = 1.3;

/// The level of zstd that is its default.
const LEVEL: i32 = 3;

type Write = fn(&mut Rng, usize) -> String;

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let empty = {
        let data = bench.path("stored-empty");
        Log::open(&data).await?.close().await?;
        stored_bytes(&data)?
    };
    let kinds: [(&str, &str, Write); 3] = [
        ("stored.run", "stored.run.alone", printable),
        ("stored.unicode", "stored.unicode.alone", unicode),
        ("stored.prose", "stored.prose.alone", prose),
    ];
    for (name, alone, write) in kinds {
        let data = bench.path(name);
        let values = run_turns(&data, write).await?;
        let handed_in: usize = values.iter().map(Vec::len).sum();
        let stored = stored_bytes(&data)? - empty;
        report.add(line(name, stored, handed_in, Some(RATIO_MAX)));
        let mut compressed = 0;
        for value in &values {
            compressed += zstd::bulk::compress(value, LEVEL)?.len();
        }
        report.add(line(alone, compressed as f64, handed_in, None));
    }

    let data = bench.path("stored-messages");
    let log = Log::open(&data).await?;
    let session = log.session(Vec::new()).await?;
    let mut rng = Rng::with_seed(4);
    let mut handed_in = 0;
    for _ in 0..TURNS {
        let text = payload(&mut rng, printable);
        handed_in += text.len();
        log.append(&session, text).await?;
    }
    log.close().await?;
    let stored = stored_bytes(&data)? - empty;
    report.add(line("stored.messages", stored, handed_in, Some(RATIO_MAX)));
    Ok(())
}

/// Runs Tasks of the default agent, one after another; returns the distinct values handed in.
async fn run_turns(data: &std::path::Path, write: Write) -> Result<Vec<Vec<u8>>> {
    let model = Arc::new(Model {
        write,
        answers: Mutex::default(),
    });
    let log = Log::open_with(data, Arc::clone(&model) as Arc<dyn Performer>).await?;
    let session = log.session(Vec::new()).await?;
    let mut rng = Rng::with_seed(4);
    let mut values = Vec::new();
    for _ in 0..TURNS {
        let input = payload(&mut rng, write);
        values.push(input.clone().into_bytes());
        log.task(&session, input).await?;
    }
    log.close().await?;
    values.append(&mut model.answers());
    Ok(values)
}

fn line(name: &'static str, value: f64, peer: usize, ratio_max: Option<f64>) -> Line {
    Line {
        name,
        value,
        unit: Unit::Bytes,
        peer: Some(("handed in", peer as f64)),
        budget: ratio_max.map(Budget::Ratio),
        noise: None,
    }
}

fn payload(rng: &mut Rng, write: Write) -> String {
    let least = PAYLOAD_BYTES_MEAN - PAYLOAD_BYTES_SPREAD;
    let most = PAYLOAD_BYTES_MEAN + PAYLOAD_BYTES_SPREAD;
    let len = rng.usize(least..=most);
    write(rng, len)
}

/// A model that never says the same twice, and keeps what it said.
#[derive(Debug)]
struct Model {
    write: Write,
    answers: Mutex<Vec<Vec<u8>>>,
}

impl Model {
    fn answers(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Performer for Model {
    fn perform(&self, _effect: Effect, _deltas: Deltas) -> BoxFuture<'static, EffectOutcome> {
        let mut answers = self.answers();
        let mut rng = Rng::with_seed(1_000 + answers.len() as u64);
        let content = payload(&mut rng, self.write);
        let value = json!({
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
        });
        answers.push(canon::jcs(&value));
        Box::pin(std::future::ready(EffectOutcome::ok(value)))
    }
}
