//! The benchmarks by name, one file each.

mod append;
mod commits;
mod cpu;
mod fanout;
mod field;
mod history;
mod reads;
mod receipts;
mod replay;
mod sidecar;
mod start;
mod stored;
mod tasks;

use anyhow::{Result, bail};

use crate::Bench;
use crate::report::Report;

/// The names, in the order they run.
pub(crate) const NAMES: [&str; 13] = [
    "append", "commits", "cpu", "tasks", "reads", "fanout", "start", "stored", "history",
    "receipts", "sidecar", "replay", "field",
];

/// Parts of them that can be asked for alone.
pub(crate) const PARTS: [&str; 2] = ["replay.exact", "replay.stored"];

/// Runs one.
pub(crate) async fn run(name: &str, bench: &Bench, report: &mut Report) -> Result<()> {
    match name {
        "append" => append::run(bench, report).await,
        "commits" => commits::run(bench, report).await,
        "cpu" => cpu::run(bench, report).await,
        "tasks" => tasks::run(bench, report).await,
        "reads" => reads::run(bench, report).await,
        "fanout" => fanout::run(bench, report).await,
        "start" => start::run(bench, report).await,
        "stored" => stored::run(bench, report).await,
        "history" => history::run(bench, report).await,
        "receipts" => receipts::run(bench, report).await,
        "field" => field::run(bench, report).await,
        "sidecar" => sidecar::run(bench, report).await,
        "replay" => replay::run(bench, report).await,
        "replay.exact" => replay::run_exact(bench, report).await,
        "replay.stored" => replay::run_stored(bench, report).await,
        _ => bail!("`{name}` is not a benchmark"),
    }
}
