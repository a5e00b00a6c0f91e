//! The bytes that one run of fifty turns leaves on disk, beside what callers and effects handed in, and where they go.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use canon::{Digest, Value};
use engine::port::BlobStore;
use fastrand::Rng;
use runs::replay;

use super::run::{agent, define, events_of};
use crate::Bench;
use crate::log::Log;
use crate::program::stored_bytes;
use crate::report::{Budget, Line, Report, Unit};
use crate::script::{Hurried, LARGE, Script, persona};
use crate::text::printable;

const TURNS: u64 = 50;
/// 4 KiB at five a second: most models are slower and would leave more pieces.
const PIECES: usize = 8;
/// What a slow one leaves.
const PIECES_MANY: usize = 40;
const RATIO_MAX: f64 = 1.3;
/// Pieces of an answer are stored beside the whole of it.
const STREAMED_RATIO_MAX: f64 = 1.5;

pub(super) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let empty = {
        let data = bench.path("replay-stored-empty");
        Log::open(&data).await?.close().await?;
        stored_bytes(&data)?
    };
    let budget = |ratio| Some(Budget::Ratio(ratio));
    let runs = [
        ("replay.stored", 0, budget(RATIO_MAX)),
        ("replay.stored.deltas", PIECES, budget(STREAMED_RATIO_MAX)),
        ("replay.stored.deltas.40", PIECES_MANY, None),
    ];
    for (name, pieces, budget) in runs {
        let data = bench.path(name);
        let (handed_in, parts) = record(&data, pieces).await?;
        let stored = stored_bytes(&data)? - empty;
        report.add(Line {
            name,
            value: stored,
            unit: Unit::Bytes,
            peer: Some(("handed in", handed_in as f64)),
            budget,
            noise: None,
        });
        for (what, Part { count, bytes }) in parts {
            let share = bytes as f64 / handed_in as f64;
            eprintln!(
                "        {what}: {count} in {bytes} bytes, {share:.2}× of what was handed in"
            );
        }
    }
    Ok(())
}

/// Things of one sort, before the store packs them.
#[derive(Debug, Default)]
struct Part {
    count: usize,
    bytes: usize,
}

/// Records one run; returns the bytes handed in, and what the log holds by sort.
async fn record(data: &Path, pieces: usize) -> Result<(u64, BTreeMap<String, Part>)> {
    let script = Arc::new(Script::new(TURNS, LARGE, pieces));
    let log = Log::open_at(data, Arc::clone(&script) as _, Arc::new(Hurried)).await?;
    let mut rng = Rng::with_seed(7);
    let input = printable(&mut rng, *LARGE.start());
    let handed_in = input.len() + canon::jcs(&persona(TURNS)?.1).len();
    let persona_id = define(log.engine(), TURNS).await?;
    let task = agent(log.engine(), log.store(), &persona_id, input).await?;
    let events = events_of(log.store(), task.key).await?;
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    let mut add = |what: String, bytes: usize| {
        let part = parts.entry(what).or_default();
        part.count += 1;
        part.bytes += bytes;
    };
    let mut stored = Vec::with_capacity(events.len());
    for event in events {
        let value: Value = serde_json::from_slice(&event.bytes)?;
        let kind = value.get("event").and_then(Value::as_str).context("kind")?;
        let payload = value.get("payload").map(canon::jcs).unwrap_or_default();
        add(format!("{kind}, payload"), payload.len());
        add("envelopes".to_owned(), event.bytes.len() - payload.len());
        stored.push(event.bytes);
    }
    let named: Vec<Digest> = replay::blobs_named(&stored)?;
    for digest in named {
        let blob = log.store().blob(digest).await?.context("a blob")?;
        add("blobs".to_owned(), blob.len());
    }
    log.close().await?;
    Ok((handed_in as u64 + script.given_bytes(), parts))
}
