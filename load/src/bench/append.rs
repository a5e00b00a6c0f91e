//! One client appends a Message: at the engine API, and over HTTP beside a request that commits nothing; all against
//! a block appended and synced. They take turns in short blocks, so that a disturbance meets all of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use domain::SessionId;
use fastrand::Rng;

use crate::Bench;
use crate::crowd::{Act, MESSAGE_BYTES, Worker};
use crate::disk::Disk;
use crate::log::Log;
use crate::noise::Watch;
use crate::program::Program;
use crate::report::{Budget, Line, Report, Unit};
use crate::samples::Samples;
use crate::text::printable;

const ROUNDS: usize = 80;
const BLOCK: usize = 25;
/// The first rounds fill caches and are not counted.
const WARM_UP: usize = 10;

const RATIO_MAX: f64 = 2.0;

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let mut disk = Disk::create(&bench.path("append-disk"))?;
    let log = Arc::new(Log::open(&bench.path("append-engine")).await?);
    let session = log.session(Vec::new()).await?;
    let program = Program::start(bench, &bench.path("append-http")).await?;
    let mut worker = Worker::new(&program, 1).await?;
    let mut rng = Rng::with_seed(2);
    let [mut synced, mut engine, mut http, mut refused] = fresh();
    let mut watch = Watch::start(&program.pids())?;
    for round in 0..WARM_UP + ROUNDS {
        if round == WARM_UP {
            [synced, engine, http, refused] = fresh();
            watch = Watch::start(&program.pids())?;
        }
        for _ in 0..BLOCK {
            let start = Instant::now();
            disk.append()?;
            synced.add(start.elapsed());
        }
        let texts = (0..BLOCK).map(|_| printable(&mut rng, MESSAGE_BYTES));
        for took in append(&log, &session, texts.collect()).await? {
            engine.add(took);
        }
        for _ in 0..BLOCK {
            let start = Instant::now();
            worker.act(Act::Append).await?;
            http.add(start.elapsed());
        }
        for _ in 0..BLOCK {
            let start = Instant::now();
            worker.act(Act::Refused).await?;
            refused.add(start.elapsed());
        }
    }
    let noise = Some(watch.stop(&program.pids())?);
    program.stop()?;
    let log = Arc::into_inner(log).context("the log is still in use")?;
    log.close().await?;
    let line = |name, value, peer, budget| Line {
        name,
        value,
        unit: Unit::Seconds,
        peer: Some(peer),
        budget,
        noise,
    };
    let sync = ("sync", synced.median());
    let sync_p99 = ("sync p99", synced.p99());
    report.add(line(
        "append.engine",
        engine.median(),
        sync,
        Some(Budget::Ratio(RATIO_MAX)),
    ));
    report.add(line("append.engine.p99", engine.p99(), sync_p99, None));
    report.add(line("append.http", http.median(), sync, None));
    report.add(line("append.http.p99", http.p99(), sync_p99, None));
    let no_op = ("refused POST", refused.median());
    report.add(line("append.http.no-op", http.median(), no_op, None));
    Ok(())
}

/// Appends one after another, in a task of the executor as every connection of the server is: the thread that runs the
/// benchmark would have to be woken for each answer.
async fn append(log: &Arc<Log>, session: &SessionId, texts: Vec<String>) -> Result<Vec<Duration>> {
    let (log, session) = (Arc::clone(log), session.clone());
    let client = tokio::spawn(async move {
        let mut took = Vec::with_capacity(texts.len());
        for text in texts {
            let start = Instant::now();
            log.append(&session, text).await?;
            took.push(start.elapsed());
        }
        anyhow::Ok(took)
    });
    client.await?
}

fn fresh() -> [Samples; 4] {
    std::array::from_fn(|_| Samples::default())
}
