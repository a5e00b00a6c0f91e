//! The test command: everything CI runs, from a fresh clone.
//!
//! What the tests need beyond Rust is installed under the target directory; where that is impossible, the test
//! that needs it is reported as skipped with the reason, never silently passed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::shell::{cargo, root, step, target};
use crate::tidy;

/// Format, lint and tidy.
pub(crate) fn check() -> Result<()> {
    step("format", cargo().args(["fmt", "--all", "--check"]))?;
    tidy::run()?;
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "--deny",
        "warnings",
    ];
    step("lint", cargo().args(clippy))
}

/// Everything.
pub(crate) fn run() -> Result<()> {
    check()?;
    let mut tests = cargo();
    tests.args(["test", "--workspace", "--all-features"]);
    // Tests that drive programs from PyPI find them here, and say so when they are missing.
    match python_tools() {
        Ok(bin) => {
            tests.env("REPRISE_TEST_PYTHON_BIN", bin);
        }
        Err(reason) => {
            eprintln!("    skipped: tests with programs from PyPI, because {reason:#}");
            tests.env("REPRISE_TEST_PYTHON_SKIP", format!("{reason:#}"));
        }
    }
    match npm_tools() {
        Ok(bin) => {
            tests.env("REPRISE_TEST_NPM_BIN", bin);
        }
        Err(reason) => {
            eprintln!("    skipped: tests with programs from npm, because {reason:#}");
            tests.env("REPRISE_TEST_NPM_SKIP", format!("{reason:#}"));
        }
    }
    step("tests", &mut tests)
}

/// Installs the programs that tests run from PyPI into a virtual environment under the target directory.
fn python_tools() -> Result<PathBuf> {
    let requirements = root().join("xtask/requirements.txt");
    let environment = target().join("python-tools");
    let bin = environment.join("bin");
    let stamp = environment.join("requirements.txt");
    if same(&requirements, &stamp) {
        return Ok(bin);
    }
    step(
        "install: virtual environment",
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(&environment),
    )?;
    let mut pip = Command::new(bin.join("pip"));
    pip.args([
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--requirement",
    ])
    .arg(&requirements);
    step("install: programs from PyPI", &mut pip)?;
    std::fs::copy(&requirements, &stamp)?;
    Ok(bin)
}

/// Installs the programs that tests run from npm under the target directory.
fn npm_tools() -> Result<PathBuf> {
    let wanted = root().join("xtask/package.json");
    let folder = target().join("npm-tools");
    let bin = folder.join("node_modules/.bin");
    let stamp = folder.join("installed.json");
    if same(&wanted, &stamp) {
        return Ok(bin);
    }
    std::fs::create_dir_all(&folder)?;
    std::fs::copy(&wanted, folder.join("package.json"))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts"])
        .current_dir(&folder);
    step("install: programs from npm", &mut npm)?;
    std::fs::copy(&wanted, &stamp)?;
    Ok(bin)
}

fn same(one: &Path, other: &Path) -> bool {
    match (std::fs::read(one), std::fs::read(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}
