//! Clients side by side append Messages over HTTP: how many a second, and how many syncs each costs.
//!
//! Syncs are counted by `strace` outside the process, in a run of its own because stopping at each sync slows the
//! server down: turns per commit of the run without it show whether that changed the grouping.

use std::time::Duration;

use anyhow::Result;

use crate::Bench;
use crate::crowd::{Act, Crowd};
use crate::disk::Disk;
use crate::noise::Watch;
use crate::program::Program;
use crate::report::{Budget, Line, Report, Unit};

const WARM_UP: Duration = Duration::from_millis(500);
const LENGTH: Duration = Duration::from_secs(3);
const DISK_LENGTH: Duration = Duration::from_millis(500);

const SYNCS_PER_COMMIT_MAX: f64 = 0.1;

/// Clients, the names of their lines, and what they must keep.
const CROWDS: [(u64, [&str; 5], Option<Budget>); 3] = [
    (
        1,
        [
            "commits.1",
            "commits.1.median",
            "commits.1.p99",
            "commits.1.turns",
            "commits.1.syncs",
        ],
        None,
    ),
    (
        8,
        [
            "commits.8",
            "commits.8.median",
            "commits.8.p99",
            "commits.8.turns",
            "commits.8.syncs",
        ],
        None,
    ),
    (
        64,
        [
            "commits.64",
            "commits.64.median",
            "commits.64.p99",
            "commits.64.turns",
            "commits.64.syncs",
        ],
        Some(Budget::Value(SYNCS_PER_COMMIT_MAX)),
    ),
];

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let mut disk = Disk::create(&bench.path("commits-disk"))?;
    let program = Program::start(bench, &bench.path("commits")).await?;
    let trace = bench.path("commits-trace");
    let traced = Program::start_traced(bench, &bench.path("commits-traced"), trace).await?;
    for (clients, [rate, median, p99, turns, syncs], budget) in CROWDS {
        let mut crowd = Crowd::new(&program, clients).await?;
        crowd.work(Act::Append, WARM_UP).await?;
        let watch = Watch::start(&program.pids())?;
        let appends = disk.appends_per_second(DISK_LENGTH)?;
        let turns_before = program.counter("reprise_turns_total").await?;
        let work = crowd.work(Act::Append, LENGTH).await?;
        let turns_taken = program.counter("reprise_turns_total").await? - turns_before;
        let noise = Some(watch.stop(&program.pids())?);
        report.add(Line {
            name: rate,
            value: work.per_second(),
            unit: Unit::PerSecond,
            peer: Some(("synced appends", appends)),
            budget: None,
            noise,
        });
        for (name, value) in [(median, work.samples.median()), (p99, work.samples.p99())] {
            report.add(Line {
                name,
                value,
                unit: Unit::Seconds,
                peer: None,
                budget: None,
                noise,
            });
        }
        drop(crowd);
        report.add(Line {
            name: turns,
            value: turns_taken / work.count(),
            unit: Unit::Count,
            peer: None,
            budget: None,
            noise: None,
        });
        let (all, writer) = syncs_per_commit(&traced, clients).await?;
        report.add(Line {
            name: syncs,
            value: all,
            unit: Unit::Count,
            peer: Some(("by the writer", writer)),
            budget,
            // Waiting makes turns larger or smaller, never a commit without its sync.
            noise: None,
        });
    }
    traced.stop()?;
    program.stop()
}

/// Returns the syncs of the whole process and of the writer, each per acknowledged commit.
async fn syncs_per_commit(traced: &Program, clients: u64) -> Result<(f64, f64)> {
    let mut crowd = Crowd::new(traced, clients).await?;
    crowd.work(Act::Append, WARM_UP).await?;
    let before = traced.syncs()?;
    let work = crowd.work(Act::Append, LENGTH).await?;
    // Every commit of the crowd was acknowledged, so every sync it needed is in the trace.
    let after = traced.syncs()?;
    let per_commit = |count: usize| count as f64 / work.count();
    Ok((
        per_commit(after.all - before.all),
        per_commit(after.writer - before.writer),
    ))
}
