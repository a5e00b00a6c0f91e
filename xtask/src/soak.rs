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
        .args(arguments);
    step("bench", &mut command)
}
