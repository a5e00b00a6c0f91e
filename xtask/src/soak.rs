//! Long runs: soak and benchmarks. Never part of the test command.

use anyhow::{Context, Result};

use crate::shell::{cargo, step};

/// Runs many seeds of the simulator, as it is shipped.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let seeds = match arguments.first() {
        Some(text) => text
            .parse::<u64>()
            .with_context(|| format!("`{text}` is not a number of seeds"))?,
        None => 20_000,
    };
    let mut command = cargo();
    command.args([
        "run",
        "--profile",
        "dist",
        "--package",
        "simulator",
        "--",
        &seeds.to_string(),
        "1001",
    ]);
    step("soak: simulator", &mut command)
}

/// Damages input for decoders, as they are shipped.
pub(crate) fn fuzz(arguments: &[String]) -> Result<()> {
    let (seconds, targets) = match arguments.split_first() {
        Some((first, rest)) if first.parse::<u64>().is_ok() => (first.as_str(), rest),
        _ => ("300", arguments),
    };
    let mut command = cargo();
    command
        .args(["run", "--profile", "dist", "--package", "fuzzing", "--"])
        .arg(seconds)
        .args(targets);
    step("fuzz", &mut command)
}

/// The figures of the last run that was kept, from the root of the tree.
const FIGURES: &str = "load/figures.toml";

/// Builds the program and the load program as they are shipped and runs the latter.
pub(crate) fn bench(arguments: &[String]) -> Result<()> {
    let mut build = cargo();
    build.args([
        "build",
        "--profile",
        "dist",
        "--package",
        "reprise",
        "--bin",
        "reprise",
    ]);
    step("bench: build the program", &mut build)?;
    let mut command = cargo();
    command
        .args(["run", "--profile", "dist", "--package", "load", "--"])
        .args(["--figures", FIGURES])
        .args(arguments);
    step("bench", &mut command)
}
