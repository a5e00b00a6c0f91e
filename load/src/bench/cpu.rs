//! What one operation costs the server's processor with 64 clients side by side, beside a peer in the same run.
//!
//! Counted by the scheduler over all threads of the server, so that a busy machine stretches the run and not the figure.
//! Peers and paths take turns, because caches that others use make everything dearer.

use std::time::Duration;

use anyhow::Result;

use crate::Bench;
use crate::bare::Bare;
use crate::crowd::{Act, Crowd};
use crate::noise::Watch;
use crate::program::Program;
use crate::report::{Budget, Line, Report, Unit};

const CLIENTS: u64 = 64;
const ROUNDS: usize = 4;
const WARM_UP: Duration = Duration::from_millis(500);
const LENGTH: Duration = Duration::from_millis(750);

const APPEND_S_MAX: f64 = 50e-6;
const TASK_S_MAX: f64 = 250e-6;
const READ_RATIO_MAX: f64 = 2.0;

/// What something cost, and how often it was done.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    seconds: f64,
    count: f64,
}

impl Spent {
    fn each(self) -> f64 {
        self.seconds / self.count
    }
}

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    const PATHS: [Act; 5] = [
        Act::Health,
        Act::ReadTask,
        Act::ReadSession,
        Act::Append,
        Act::Task,
    ];
    let program = Program::start(bench, &bench.path("cpu")).await?;
    let bare = Bare::start()?;
    let mut crowd = Crowd::new(&program, CLIENTS).await?;
    let mut posts = Crowd::bare(&bare.address, CLIENTS).await?;
    for act in PATHS {
        crowd.work(act, WARM_UP).await?;
    }
    posts.work(Act::Append, WARM_UP).await?;
    let [pid, other] = program.pids();
    let pids = [pid, other, bare.pid()];
    let watch = Watch::start(&pids)?;
    let mut spent = [Spent::default(); PATHS.len()];
    let mut post = Spent::default();
    for _ in 0..ROUNDS {
        for (act, spent) in PATHS.into_iter().zip(&mut spent) {
            let before = program.cpu_seconds();
            spent.count += crowd.work(act, LENGTH).await?.count();
            spent.seconds += program.cpu_seconds() - before;
        }
        let before = bare.cpu_seconds();
        post.count += posts.work(Act::Append, LENGTH).await?.count();
        post.seconds += bare.cpu_seconds() - before;
    }
    let noise = Some(watch.stop(&pids)?);
    let [health, task, session, append, run] = spent.map(Spent::each);
    let mut add = |name, value, peer, budget| {
        report.add(Line {
            name,
            value,
            unit: Unit::Seconds,
            peer: Some(peer),
            budget: Some(budget),
            noise,
        });
    };
    let post = ("bare POST", post.each());
    let health = ("health", health);
    let twice = Budget::Ratio(READ_RATIO_MAX);
    add("cpu.append", append, post, Budget::Value(APPEND_S_MAX));
    add("cpu.task", run, post, Budget::Value(TASK_S_MAX));
    add("cpu.read.task", task, health, twice);
    add("cpu.read.session", session, health, twice);
    program.stop()
}
