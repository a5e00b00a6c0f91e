//! Tasks of the default agent, from submit to COMPLETED: how many a second, and how many turns one takes.

use std::time::Duration;

use anyhow::Result;

use crate::Bench;
use crate::crowd::{Act, Crowd};
use crate::noise::Watch;
use crate::program::Program;
use crate::report::{Budget, Line, Report, Unit};

const LENGTH: Duration = Duration::from_secs(2);
const TURNS_MAX: f64 = 3.0;

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let program = Program::start(bench, &bench.path("tasks")).await?;
    for (clients, name) in [(1, "tasks.1"), (16, "tasks.16")] {
        let mut crowd = Crowd::new(&program, clients).await?;
        crowd.work(Act::Append, LENGTH / 4).await?;
        let watch = Watch::start(&program.pids())?;
        let appends = crowd.work(Act::Append, LENGTH).await?;
        let before = turns_and_events(&program).await?;
        let tasks = crowd.work(Act::Task, LENGTH).await?;
        let after = turns_and_events(&program).await?;
        let noise = Some(watch.stop(&program.pids())?);
        report.add(Line {
            name,
            value: tasks.per_second(),
            unit: Unit::PerSecond,
            peer: Some(("messages", appends.per_second())),
            budget: None,
            noise,
        });
        // Side by side they share turns; alone a Task shows what it takes.
        if clients == 1 {
            report.add(Line {
                name: "tasks.1.median",
                value: tasks.samples.median(),
                unit: Unit::Seconds,
                peer: Some(("message", appends.samples.median())),
                budget: None,
                noise,
            });
            let per_task = |name, count: f64, budget| Line {
                name,
                value: count / tasks.count(),
                unit: Unit::Count,
                peer: None,
                budget,
                noise: None,
            };
            let [turns, events] = [after.0 - before.0, after.1 - before.1];
            let budget = Some(Budget::Value(TURNS_MAX));
            report.add(per_task("tasks.turns", turns, budget));
            report.add(per_task("tasks.events", events, None));
        }
    }
    program.stop()
}

async fn turns_and_events(program: &Program) -> Result<(f64, f64)> {
    Ok((
        program.counter("reprise_turns_total").await?,
        program.counter("reprise_events_total").await?,
    ))
}
