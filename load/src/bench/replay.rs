//! What recording and replaying cost: a run of ten thousand events again in memory and through the server, the
//! overhead of recording one effect, and the bytes of a run of fifty turns.

mod exact;
mod record;
mod run;
mod server;
mod stored;

use anyhow::Result;

use crate::Bench;
use crate::report::Report;
use crate::script::{LARGE, SMALL};

/// Seven events each: two effects with intent and result, the use of the tool and its result, a checkpoint.
const TURNS: u64 = 1_430;

/// Only the part in memory, for who works on it.
pub(crate) async fn run_exact(bench: &Bench, report: &mut Report) -> Result<()> {
    for (name, lengths) in [("replay.exact.small", SMALL), ("replay.exact.4k", LARGE)] {
        let recorded = run::Recorded::make(&bench.path(name), TURNS, lengths).await?;
        exact::run(name, &recorded, report)?;
        recorded.log.close().await?;
    }
    Ok(())
}

/// Only what a run leaves on disk.
pub(crate) async fn run_stored(bench: &Bench, report: &mut Report) -> Result<()> {
    stored::run(bench, report).await
}

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let small = run::Recorded::make(&bench.path("replay-small"), TURNS, SMALL).await?;
    let large = run::Recorded::make(&bench.path("replay-large"), TURNS, LARGE).await?;
    exact::run("replay.exact.small", &small, report)?;
    exact::run("replay.exact.4k", &large, report)?;
    server::run(&server::SMALL, bench, small, report).await?;
    server::run(&server::LARGE, bench, large, report).await?;
    record::run(bench, report).await?;
    stored::run(bench, report).await
}
