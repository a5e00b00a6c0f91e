//! What a commit, a Task, a read and a start cost in a long log with many open Tasks, beside an empty one.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use domain::SessionId;
use fastrand::Rng;

use crate::Bench;
use crate::crowd::MESSAGE_BYTES;
use crate::log::{Log, write_signing_keys};
use crate::noise::{Watch, cpu_seconds};
use crate::program::Program;
use crate::report::{Budget, Line, Report, Unit};
use crate::samples::Samples;
use crate::text::printable;

/// Tasks that wait for an answer.
const OPEN_TASKS: usize = 10_000;
/// Messages of one Session, which are one turn: few syncs make the history.
const MESSAGES: usize = 2_000;
const HISTORY_MESSAGE_BYTES: usize = 64;

const ROUNDS: usize = 60;
const BLOCK: usize = 25;
const TASKS: usize = 5;
/// Many, because each takes less than a microsecond.
const READS: usize = 2_000;
const WARM_UP: usize = 10;

const RATIO_MAX: f64 = 1.1;

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let (empty, full) = (bench.path("history-empty"), bench.path("history-full"));
    build(bench, &full).await?;
    // Opened again: neither caches nor the write-ahead log of the building help.
    let (empty_log, full_log) = (Log::open(&empty).await?, Log::open(&full).await?);
    let sides = [
        (&empty_log, empty_log.session(Vec::new()).await?),
        (&full_log, full_log.session(Vec::new()).await?),
    ];
    let mut samples = [Samples::default(), Samples::default()];
    let mut costs = [Costs::default(), Costs::default()];
    let mut rng = Rng::with_seed(6);
    let mut watch = Watch::start(&[])?;
    for round in 0..WARM_UP + ROUNDS {
        if round == WARM_UP {
            samples = [Samples::default(), Samples::default()];
            costs = [Costs::default(), Costs::default()];
            watch = Watch::start(&[])?;
        }
        for (side, (samples, costs)) in sides.iter().zip(samples.iter_mut().zip(&mut costs)) {
            let (log, session) = side;
            let began = cpu_now();
            append(log, session, &mut rng, samples).await?;
            let appended = cpu_now();
            let mut last = None;
            for _ in 0..TASKS {
                let text = printable(&mut rng, MESSAGE_BYTES);
                last = Some(log.task(session, text).await?);
            }
            let ran = cpu_now();
            for _ in 0..READS {
                log.read(session, last.as_deref()).await?;
            }
            costs.append += appended - began;
            costs.task += ran - appended;
            costs.read += cpu_now() - ran;
        }
    }
    let noise = Some(watch.stop(&[])?);
    let [in_empty, in_full] = &samples;
    let line = |name, value, peer| Line {
        name,
        value,
        unit: Unit::Seconds,
        peer: Some(("in an empty log", peer)),
        budget: None,
        noise,
    };
    report.add(line("history.append", in_full.median(), in_empty.median()));
    report.add(line("history.append.p99", in_full.p99(), in_empty.p99()));
    let [in_empty, in_full] = &costs;
    for (name, in_full, in_empty, count) in [
        ("history.append.cpu", in_full.append, in_empty.append, BLOCK),
        ("history.task.cpu", in_full.task, in_empty.task, TASKS),
        ("history.read.cpu", in_full.read, in_empty.read, 2 * READS),
    ] {
        let count = (ROUNDS * count) as f64;
        report.add(Line {
            budget: Some(Budget::Ratio(RATIO_MAX)),
            ..line(name, in_full / count, in_empty / count)
        });
    }
    empty_log.close().await?;
    full_log.close().await?;

    for data in [&empty, &full] {
        write_signing_keys(data)?;
    }
    let mut starts = [Samples::default(), Samples::default()];
    for _ in 0..10 {
        for (data, samples) in [&empty, &full].into_iter().zip(&mut starts) {
            let start = Instant::now();
            let program = Program::start(bench, data).await?;
            samples.add(start.elapsed());
            program.stop()?;
        }
    }
    let [in_empty, in_full] = &starts;
    report.add(line("history.start", in_full.median(), in_empty.median()));
    Ok(())
}

/// What one side cost the processor.
#[derive(Debug, Default)]
struct Costs {
    append: f64,
    task: f64,
    read: f64,
}

fn cpu_now() -> f64 {
    cpu_seconds(std::process::id())
}

async fn build(bench: &Bench, data: &Path) -> Result<()> {
    let log = Log::open(data).await?;
    let mut rng = Rng::with_seed(5);
    let began = Instant::now();
    while log.head() < bench.events {
        let texts = (0..MESSAGES).map(|_| printable(&mut rng, HISTORY_MESSAGE_BYTES));
        log.session(texts.collect()).await?;
    }
    log.open_tasks(OPEN_TASKS).await?;
    eprintln!(
        "    {} events, {OPEN_TASKS} open Tasks in {:.0} s",
        log.head(),
        began.elapsed().as_secs_f64()
    );
    log.close().await
}

async fn append(
    log: &Log,
    session: &SessionId,
    rng: &mut Rng,
    samples: &mut Samples,
) -> Result<()> {
    for _ in 0..BLOCK {
        let text = printable(rng, MESSAGE_BYTES);
        let start = Instant::now();
        log.append(session, text).await?;
        samples.add(start.elapsed());
    }
    Ok(())
}
