//! Reads of a Task over HTTP, beside a request that touches nothing.

use std::time::Duration;

use anyhow::Result;

use crate::Bench;
use crate::crowd::{Act, Crowd};
use crate::noise::Watch;
use crate::program::Program;
use crate::report::{Line, Report, Unit};
use crate::samples::Samples;

/// How often reads and their peer take turns.
const ROUNDS: usize = 8;
const LENGTH: Duration = Duration::from_millis(200);

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let program = Program::start(bench, &bench.path("reads")).await?;
    for (clients, [rate, median, p99]) in [
        (1, ["reads.1", "reads.1.median", "reads.1.p99"]),
        (16, ["reads.16", "reads.16.median", "reads.16.p99"]),
    ] {
        let mut crowd = Crowd::new(&program, clients).await?;
        crowd.work(Act::ReadTask, LENGTH).await?;
        let watch = Watch::start(&program.pids())?;
        let (mut reads, mut health) = (Samples::default(), Samples::default());
        let (mut reads_rate, mut health_rate) = (0.0, 0.0);
        for _ in 0..ROUNDS {
            let work = crowd.work(Act::ReadTask, LENGTH).await?;
            reads_rate += work.per_second() / ROUNDS as f64;
            reads.append(work.samples);
            let work = crowd.work(Act::Health, LENGTH).await?;
            health_rate += work.per_second() / ROUNDS as f64;
            health.append(work.samples);
        }
        let noise = Some(watch.stop(&program.pids())?);
        let lines = [
            (rate, Unit::PerSecond, reads_rate, health_rate),
            (median, Unit::Seconds, reads.median(), health.median()),
            (p99, Unit::Seconds, reads.p99(), health.p99()),
        ];
        for (name, unit, value, peer) in lines {
            report.add(Line {
                name,
                value,
                unit,
                peer: Some(("health", peer)),
                budget: None,
                noise,
            });
        }
    }
    program.stop()
}
