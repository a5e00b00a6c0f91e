//! What tests of several crates share: programs that they start, and groups of tests that need what a clone does not have:
//! published data, rights, programs.
//!
//! A test of a group that cannot run is noted as left out, with the reason, and passes; if its group is demanded, it
//! fails. `cargo xtask test` sets where notes go, counts them per group, and fails when nothing of a demanded group ran.

pub mod process;

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The environment variable that lists the groups that must run, separated by commas.
pub const DEMAND: &str = "REPRISE_TEST_DEMAND";
/// The environment variable that names the file for notes.
pub const NOTES: &str = "REPRISE_TEST_NOTES";

/// A test of a group that runs. Notes at its end how long it took.
#[derive(Debug)]
pub struct Running {
    group: &'static str,
    began: Instant,
}

impl Drop for Running {
    fn drop(&mut self) {
        note("ran", self.group, &self.began.elapsed().as_millis());
    }
}

/// Lets a test of a group begin; none when it must be left out. Hold what is returned until the test ends.
///
/// # Panics
/// The group is demanded and cannot run.
pub fn group(name: &'static str, missing: Option<impl Display>) -> Option<Running> {
    let Some(reason) = missing else {
        return Some(Running {
            group: name,
            began: Instant::now(),
        });
    };
    let demanded = std::env::var(DEMAND).unwrap_or_default();
    assert!(
        !demanded.split(',').any(|group| group == name),
        "the tests of group `{name}` are demanded, and this one cannot run: {reason}"
    );
    eprintln!("left out (group `{name}`): {reason}");
    note("left out", name, &reason);
    None
}

/// Group `published`: reads a file of the published specifications, which are not part of this repository. They stand
/// beside the checkout, or where `REPRISE_TEST_SPEC` says.
pub fn published(path: &str) -> Option<Vec<u8>> {
    let file = published_path(path)?;
    let bytes = std::fs::read(&file);
    let missing = bytes
        .as_ref()
        .err()
        .map(|error| format!("`{path}`: {error}"));
    group("published", missing)?;
    bytes.ok()
}

/// Group `published`: returns where a file or folder of the published specifications is.
pub fn published_path(path: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/spec");
    let folder = std::env::var_os("REPRISE_TEST_SPEC").map_or(beside, PathBuf::from);
    let path = folder.join(path);
    let missing = (!path.exists()).then(|| format!("`{}` does not exist", path.display()));
    group("published", missing)?;
    Some(path)
}

/// Group `strace`: tests that look at system calls.
pub fn strace() -> Option<Running> {
    let probe = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "true"])
        .output();
    let can = probe.is_ok_and(|output| output.status.success());
    group(
        "strace",
        (!can).then_some("strace is missing or may not trace here"),
    )
}

/// Group `root`: tests that mount a small file system. Give what mounting gave.
pub fn mounted<T>(disk: Option<T>) -> Option<(T, Running)> {
    let missing = disk
        .is_none()
        .then_some("mounting a file system needs more rights than this user has");
    let running = group("root", missing)?;
    disk.map(|disk| (disk, running))
}

/// A program that the test command installs: group, environment variable of its folder, name. None when it is not there.
pub fn installed(name: &'static str, folder: &str, program: &str) -> Option<(PathBuf, Running)> {
    let found = std::env::var_os(folder)
        .map(|folder| PathBuf::from(folder).join(program))
        .filter(|program| program.exists());
    let missing = found.is_none().then(|| {
        std::env::var(format!("{folder}_MISSING"))
            .unwrap_or_else(|_| format!("{folder} is not set; `cargo xtask test` sets it"))
    });
    let running = group(name, missing)?;
    found.map(|program| (program, running))
}

fn note(what: &str, group: &str, detail: &dyn Display) {
    let Some(file) = std::env::var_os(NOTES) else {
        return;
    };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    let line = format!("{what}\t{group}\t{test}\t{detail}\n");
    let file = OpenOptions::new().create(true).append(true).open(file);
    if let Ok(mut file) = file {
        // One write, so that lines of tests that run side by side stay whole.
        let _ = file.write_all(line.as_bytes());
    }
}
