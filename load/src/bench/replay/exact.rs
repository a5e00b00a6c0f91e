//! Exact replay in memory: from the bytes of a bundle to the canonical bytes of the receipt.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use canon::Value;
use runs::replay::{self, Progress, ReceiptIssuer, Replayed, Source, Spec};
use runs::workflow::{Registry, builtin};

use super::run::{Bundle, Recorded};
use crate::noise::Watch;
use crate::report::{Budget, Line, Report, Unit};
use crate::samples::Samples;

const ROUNDS: usize = 15;
const SECONDS_MAX: f64 = 0.100;
const EVENTS_MIN: usize = 10_000;

pub(super) fn run(name: &'static str, recorded: &Recorded, report: &mut Report) -> Result<()> {
    let bundle = &recorded.bundle;
    ensure!(
        bundle.events.len() >= EVENTS_MIN,
        "only {} events",
        bundle.events.len()
    );
    let workflows = Registry::new(builtin());
    let file = bundle.file()?;
    let [mut replays, mut readings] = [Samples::default(), Samples::default()];
    let watch = Watch::start(&[])?;
    let mut first = None;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let (receipt, left) = replay_exactly(&file, &workflows)?;
        replays.add(began.elapsed());
        drop(left);
        ensure!(
            *first.get_or_insert_with(|| receipt.clone()) == receipt,
            "two replays left two receipts"
        );
        let began = Instant::now();
        read_and_hash(bundle)?;
        readings.add(began.elapsed());
    }
    report.add(Line {
        name,
        value: replays.median(),
        unit: Unit::Seconds,
        peer: Some(("events parsed and hashed", readings.median())),
        budget: Some(Budget::Value(SECONDS_MAX)),
        noise: Some(watch.stop(&[])?),
    });
    Ok(())
}

/// Replays a bundle; returns the receipt's bytes, and what can be thrown away after them.
pub(super) fn replay_exactly(
    file: &[u8],
    workflows: &Registry,
) -> Result<(Vec<u8>, (Source, Replayed))> {
    let source = replay::Bundle::read(file)?.into_source()?;
    let spec = Spec::exact();
    let secrets = BTreeMap::new();
    let progress = replay::run(&source, workflows, &spec, &secrets, BTreeMap::new());
    let Progress::Ended(replayed) = progress else {
        bail!("an exact replay needs something from outside");
    };
    if let Some(failure) = &replayed.end.broken {
        bail!("the replay failed: {}", failure.message());
    }
    ensure!(replayed.result_equal, "the replay ended otherwise");
    let issuing = ReceiptIssuer {
        id: "load".to_owned(),
        name: None,
        ordinal: 1,
    };
    let receipt = replay::receipt(&source, &spec, &replayed, &issuing)?;
    Ok((receipt.bytes(), (source, replayed)))
}

/// The least that anybody does who reads the bundle: every event as a value, every byte hashed.
fn read_and_hash(bundle: &Bundle) -> Result<()> {
    for event in &bundle.events {
        std::hint::black_box(serde_json::from_slice::<Value>(event)?);
        std::hint::black_box(canon::sha256(event));
    }
    for blob in bundle.blobs.values() {
        std::hint::black_box(canon::sha256(blob));
    }
    Ok(())
}
