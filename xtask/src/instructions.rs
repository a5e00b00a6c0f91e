//! Benchmarks by instruction count. Counts do not move with a busy machine, so that a limit on them is a gate.
//!
//! They live in a workspace of their own (`load/instructions`): the test command compiles them, and runs them nowhere. The
//! program that runs them under valgrind is installed below the target directory, in the version that they ask for.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, root, step, target};

const PACKAGE: &str = "load/instructions/Cargo.toml";

/// Runs all of them; fails when one is over its limit.
pub(crate) fn run() -> Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        bail!("valgrind is missing; install it (`apt-get install valgrind`) and run this again");
    }
    let runner = runner()?;
    let mut bench = cargo();
    bench
        .args(["bench", "--manifest-path", PACKAGE, "--target-dir"])
        .arg(target().join("instructions"))
        .env("GUNGRAUN_RUNNER", runner);
    step("bench: instructions", &mut bench)
}

/// Runs the benchmark of verdicts, which has a workspace of its own too: it alone needs another authorizer.
pub(crate) fn verdicts() -> Result<()> {
    let mut bench = cargo();
    bench
        .args(["run", "--release", "--locked", "--manifest-path"])
        .args(["load/verdicts/Cargo.toml", "--target-dir"])
        .arg(target().join("verdicts"));
    step("bench: verdicts", &mut bench)
}

/// Installs the runner unless it is there.
fn runner() -> Result<PathBuf> {
    let version = version(&root().join(PACKAGE))?;
    let tools = target().join("tools").join(format!("gungraun-{version}"));
    let program = tools.join("bin/gungraun-runner");
    if !program.is_file() {
        let mut install = cargo();
        install
            .args(["install", "--locked", "--quiet", "gungraun-runner"])
            .args(["--version", &format!("={version}"), "--root"])
            .arg(&tools);
        step("install: gungraun-runner", &mut install)?;
    }
    Ok(program)
}

/// The version that the benchmarks ask for: library and runner must agree to the last digit.
fn version(manifest: &Path) -> Result<String> {
    let text = std::fs::read_to_string(manifest)
        .with_context(|| format!("cannot read {}", manifest.display()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("gungraun = \"="));
    let version = line.and_then(|rest| rest.strip_suffix('"'));
    let version = version.with_context(|| format!("{PACKAGE} names no version of gungraun"))?;
    Ok(version.to_owned())
}
