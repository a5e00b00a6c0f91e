//! Replay through the engine on a synced store: beside inserting the same events, and what another client waits
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use domain::{Position, SessionId};
use engine::port::{Clock, Commit, SealedTurn, Store, StoredEvent};
use engine::{Caller, Engine, Request, Settle};
use fastrand::Rng;
use receipts::Receipt;
use runs::workflow::{Registry, builtin};
use server::world::SystemClock;
use store::{Options, SqliteStore};

use super::exact;
use super::run::{Recorded, events_of, receipt_of, replay_of, session};
use crate::Bench;
use crate::crowd::MESSAGE_BYTES;
use crate::log::message;
use crate::noise::Watch;
use crate::report::{Budget, Line, Report, Unit};
use crate::samples::Samples;
use crate::text::printable;

const ROUNDS: usize = 5;
/// What a replay may add to the longest wait of another client.
const WAIT_SECONDS_MAX: f64 = 0.010;
/// Between two appends of the other client.
const PAUSE: Duration = Duration::from_millis(1);

/// The names of the lines about one source.
#[derive(Debug)]
pub(super) struct Names {
    server: &'static str,
    median: &'static str,
    p99: &'static str,
    max: &'static str,
    added: &'static str,
}

pub(super) const SMALL: Names = Names {
    server: "replay.server.small",
    median: "replay.wait.small.median",
    p99: "replay.wait.small.p99",
    max: "replay.wait.small.max",
    added: "replay.wait.small.added",
};
pub(super) const LARGE: Names = Names {
    server: "replay.server.4k",
    median: "replay.wait.4k.median",
    p99: "replay.wait.4k.p99",
    max: "replay.wait.4k.max",
    added: "replay.wait.4k.added",
};

pub(super) async fn run(
    names: &Names,
    bench: &Bench,
    recorded: Recorded,
    report: &mut Report,
) -> Result<()> {
    let Recorded { log, task, bundle } = recorded;
    let (engine, store) = (log.engine(), log.store());
    let first = replay_of(engine, store, &task).await?;
    // The server must come to what the bundle alone comes to.
    let workflows = Registry::new(builtin());
    let (offline, _) = exact::replay_exactly(&bundle.file()?, &workflows)?;
    let served = Receipt::read(&receipt_of(store, &first).await?)?;
    ensure!(
        served.hash() == Receipt::read(&offline)?.hash(),
        "server and bundle give two receipts"
    );
    let events = events_of(store, first.key).await?;
    let writer = session(engine).await?;
    let [mut replays, mut inserts] = [Samples::default(), Samples::default()];
    let [mut alone, mut beside] = [Samples::default(), Samples::default()];
    let [mut alone_longest, mut beside_longest] = [Samples::default(), Samples::default()];
    let watch = Watch::start(&[])?;
    for round in 0..ROUNDS {
        let commits = engine.metrics().commits.load(Ordering::Relaxed);
        let began = Instant::now();
        replay_of(engine, store, &task).await?;
        let took = began.elapsed();
        replays.add(took);
        let commits = engine.metrics().commits.load(Ordering::Relaxed) - commits;
        let piece = events.len().div_ceil(usize::try_from(commits)?.max(1));
        let fresh = bench.path(&format!("{}-{round}", names.server));
        inserts.add(insert(&fresh, &events, piece).await?);

        let waits = appending(engine, &writer, async {
            tokio::time::sleep(took).await;
            Ok(())
        });
        let waits = waits.await?;
        alone_longest.add(Duration::from_secs_f64(waits.max()));
        alone.append(waits);
        let waits = appending(engine, &writer, async {
            replay_of(engine, store, &task).await.map(drop)
        });
        let waits = waits.await?;
        beside_longest.add(Duration::from_secs_f64(waits.max()));
        beside.append(waits);
    }
    let noise = Some(watch.stop(&[])?);
    log.close().await?;
    let line = |name, value, peer, budget| Line {
        name,
        value,
        unit: Unit::Seconds,
        peer,
        budget,
        noise,
    };
    let inserted = ("same events inserted", inserts.median());
    report.add(line(names.server, replays.median(), Some(inserted), None));
    let without = |value| Some(("without a replay", value));
    let (median, p99) = (beside.median(), beside.p99());
    report.add(line(names.median, median, without(alone.median()), None));
    report.add(line(names.p99, p99, without(alone.p99()), None));
    report.add(line(names.max, beside.max(), without(alone.max()), None));
    // The longest wait of a round, on a shared disk, is often the disk's; a round without a replay has the same one.
    let added = beside_longest.median() - alone_longest.median();
    let budget = Some(Budget::Value(WAIT_SECONDS_MAX));
    report.add(line(names.added, added.max(0.0), None, budget));
    Ok(())
}

/// Appends Messages, one after the other, while something else goes on; returns how long each took.
async fn appending(
    engine: &Engine,
    session: &SessionId,
    meanwhile: impl Future<Output = Result<()>>,
) -> Result<Samples> {
    let is_over = Arc::new(AtomicBool::new(false));
    let client = tokio::spawn({
        let (engine, session, is_over) = (engine.clone(), session.clone(), Arc::clone(&is_over));
        async move {
            let mut rng = Rng::with_seed(6);
            let mut waits = Samples::default();
            while !is_over.load(Ordering::Relaxed) {
                let request = Request::AppendMessage {
                    session_id: session.clone(),
                    message: message(printable(&mut rng, MESSAGE_BYTES)),
                };
                let began = Instant::now();
                let caller = Caller::system();
                engine
                    .dispatch(&caller, request, None, Settle::Window)
                    .await?;
                waits.add(began.elapsed());
                tokio::time::sleep(PAUSE).await;
            }
            anyhow::Ok(waits)
        }
    });
    let result = meanwhile.await;
    is_over.store(true, Ordering::Relaxed);
    let waits = client.await.context("the other client")??;
    result?;
    Ok(waits)
}

/// Commits events to a fresh store, in pieces, and nothing else.
async fn insert(data: &std::path::Path, events: &[StoredEvent], piece: usize) -> Result<Duration> {
    let store = SqliteStore::open(data, Options::default())?;
    let pieces: Vec<Vec<StoredEvent>> = events.chunks(piece).map(<[_]>::to_vec).collect();
    let began = Instant::now();
    for events in pieces {
        let commit = Commit {
            expected: Vec::new(),
            fences: Vec::new(),
            holder: "load".into(),
            blobs: Vec::new(),
            event_count: events.len() as u64,
            now: SystemClock.now(),
            seal: Box::new(move |first: Position| {
                let placed = (0..).zip(events).map(|(offset, event)| StoredEvent {
                    position: first.plus(offset),
                    ..event
                });
                Ok(SealedTurn {
                    events: placed.collect(),
                    ..SealedTurn::default()
                })
            }),
        };
        store.commit(commit).await?;
    }
    Ok(began.elapsed())
}
