//! What a commit and a start cost in a log of a million events, beside an empty one.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use domain::SessionId;
use fastrand::Rng;

use crate::Bench;
use crate::crowd::MESSAGE_BYTES;
use crate::log::Log;
use crate::noise::Watch;
use crate::program::Program;
use crate::report::{Line, Report, Unit};
use crate::samples::Samples;
use crate::text::printable;

const EVENTS: u64 = 1_000_000;
/// Messages of one Session, which are one turn: few syncs make the history.
const MESSAGES: usize = 2_000;
const HISTORY_MESSAGE_BYTES: usize = 64;

const ROUNDS: usize = 60;
const BLOCK: usize = 25;
const WARM_UP: usize = 10;

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let (empty, full) = (bench.path("history-empty"), bench.path("history-full"));
    build(&full).await?;
    // Opened again: neither caches nor the write-ahead log of the building help.
    let (empty_log, full_log) = (Log::open(&empty).await?, Log::open(&full).await?);
    let sides = [
        (&empty_log, empty_log.session(Vec::new()).await?),
        (&full_log, full_log.session(Vec::new()).await?),
    ];
    let mut samples = [Samples::default(), Samples::default()];
    let mut rng = Rng::with_seed(6);
    let mut watch = Watch::start(&[])?;
    for round in 0..WARM_UP + ROUNDS {
        if round == WARM_UP {
            samples = [Samples::default(), Samples::default()];
            watch = Watch::start(&[])?;
        }
        for ((log, session), samples) in sides.iter().zip(&mut samples) {
            append(log, session, &mut rng, samples).await?;
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
    empty_log.close().await?;
    full_log.close().await?;

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

async fn build(data: &Path) -> Result<()> {
    let log = Log::open(data).await?;
    let mut rng = Rng::with_seed(5);
    let began = Instant::now();
    while log.head() < EVENTS {
        let texts = (0..MESSAGES).map(|_| printable(&mut rng, HISTORY_MESSAGE_BYTES));
        log.session(texts.collect()).await?;
    }
    eprintln!(
        "    {} events in {:.0} s",
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
