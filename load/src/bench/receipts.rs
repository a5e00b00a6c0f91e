//! What proofs cost: checking a whole log, proving one receipt right after its commit, writing canonical bytes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use canon::Value;
use fastrand::Rng;
use receipts::{merkle, stream};

use crate::Bench;
use crate::log::Log;
use crate::noise::Watch;
use crate::report::{Budget, Line, Report, Unit};
use crate::samples::Samples;
use crate::text::printable;

/// Tasks whose receipts are checked, over and over.
const TASKS: usize = 500;
/// Receipts of the bundle in the budget.
const BUNDLE: usize = 100_000;

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let log = Log::open(&bench.path("receipts")).await?;
    let mut rng = Rng::with_seed(9);
    let session = log.session(vec![]).await?;
    let mut proofs = Samples::default();
    let mut issued = Vec::with_capacity(TASKS);
    let watch = Watch::start(&[])?;
    for _ in 0..TASKS {
        let receipt = log
            .receipt_of_task(&session, printable(&mut rng, 200))
            .await?;
        let began = Instant::now();
        log.prove(&receipt.0).await?;
        proofs.add(began.elapsed());
        issued.push(receipt.1);
    }
    let noise = Some(watch.stop(&[])?);
    report.add(Line {
        name: "receipts.proof",
        value: proofs.median(),
        unit: Unit::Seconds,
        peer: None,
        budget: Some(Budget::Value(0.010)),
        noise,
    });
    log.close().await?;
    check_bundle(&issued, report)?;
    write_canonical(&issued, report)
}

/// Shape, canonical form and hash of each receipt in one pass over its bytes, and the tree over all of them.
fn check_bundle(issued: &[Vec<u8>], report: &mut Report) -> Result<()> {
    let watch = Watch::start(&[])?;
    let began = Instant::now();
    let mut frontier = merkle::Frontier::EMPTY;
    for bytes in issued.iter().cycle().take(BUNDLE) {
        let checked = stream::check(bytes).map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;
        frontier = merkle::append(frontier, merkle::leaf(&checked.hash)).0;
    }
    let took = began.elapsed();
    let hashing = hash_alone(issued);
    let noise = Some(watch.stop(&[])?);
    report.add(Line {
        name: "receipts.bundle",
        value: took.as_secs_f64(),
        unit: Unit::Seconds,
        peer: Some(("sha256 alone", hashing.as_secs_f64())),
        budget: Some(Budget::Value(2.0)),
        noise,
    });
    Ok(())
}

fn hash_alone(issued: &[Vec<u8>]) -> Duration {
    let began = Instant::now();
    for bytes in issued.iter().cycle().take(BUNDLE) {
        std::hint::black_box(canon::sha256(bytes));
    }
    began.elapsed()
}

/// The canonical writer beside the plain serializer, on the same values, in bytes per second.
fn write_canonical(issued: &[Vec<u8>], report: &mut Report) -> Result<()> {
    let values: Vec<Value> = issued
        .iter()
        .map(|bytes| serde_json::from_slice(bytes))
        .collect::<Result<_, _>>()
        .context("a receipt is JSON")?;
    let total: usize = issued.iter().map(Vec::len).sum();
    let watch = Watch::start(&[])?;
    let (mut canonical, mut plain) = (Duration::MAX, Duration::MAX);
    for _ in 0..20 {
        let began = Instant::now();
        for value in &values {
            std::hint::black_box(canon::jcs(value));
        }
        canonical = canonical.min(began.elapsed());
        let began = Instant::now();
        for value in &values {
            std::hint::black_box(serde_json::to_vec(value)?);
        }
        plain = plain.min(began.elapsed());
    }
    let noise = Some(watch.stop(&[])?);
    let [canonical, plain] = [canonical, plain].map(|took| total as f64 / took.as_secs_f64());
    report.add(Line {
        name: "receipts.canonical",
        value: canonical,
        unit: Unit::PerSecond,
        peer: Some(("plain serializer", plain)),
        budget: None,
        noise,
    });
    Ok(())
}
