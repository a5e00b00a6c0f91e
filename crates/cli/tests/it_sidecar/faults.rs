//! Bad input and a world that fails: a clear line and the right status each time.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::world::World;

fn captured() -> World {
    let world = World::framework();
    world.capture_eval(&[], &["true"]).expect(0);
    world
}

fn check(world: &World, field: usize, reason: &str) {
    let ran = world
        .run(&["sidecar", "verify", "--json", "docs/report.md"])
        .expect(1);
    let found = &ran.json()["checks"][field];
    assert_eq!(
        (&found["reason"], &found["actual"]),
        (&json!(reason), &json!(null)),
        "{found}"
    );
}

#[test]
fn missing_moved_and_misplaced_inputs_fail_their_own_check() {
    let world = captured();
    fs::rename(world.at("tokens/demo.yml"), world.at("tokens/moved.yml")).unwrap();
    check(&world, 0, "file_missing");
    fs::create_dir(world.at("tokens/demo.yml")).unwrap();
    check(&world, 0, "unreadable");
}

#[cfg(unix)]
#[test]
fn unreadable_inputs_fail_their_own_check() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = captured();
    let token = world.at("tokens/demo.yml");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o000)).unwrap();
    let missing = fs::read(&token).is_ok();
    let missing = missing.then_some("this user may read every file");
    if let Some(_running) = testing::group("permissions", missing) {
        check(&world, 0, "unreadable");
    }
    // A pipe can be neither hashed nor waited for.
    fs::remove_file(&token).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(&token)
        .status()
        .unwrap();
    assert!(made.success());
    check(&world, 0, "unreadable");
}

/// RB-VER-05: a link out of the root is not followed, by verify or by capture.
#[cfg(unix)]
#[test]
fn links_out_of_the_root_are_refused() {
    let outside = World::empty().with("demo.yml", "id: demo\npalette: [black, white]\n");
    let world = captured();
    fs::remove_file(world.at("tokens/demo.yml")).unwrap();
    std::os::unix::fs::symlink(outside.at("demo.yml"), world.at("tokens/demo.yml")).unwrap();
    check(&world, 0, "path_outside_root");
    world
        .capture_eval(&["--overwrite"], &["true"])
        .expect(2)
        .says("leads out of the root");
    assert!(
        world.exists("docs/report.replay.json"),
        "inputs are checked before the old one is removed"
    );
    fs::remove_dir_all(world.at("tokens")).unwrap();
    std::os::unix::fs::symlink(outside.path(), world.at("tokens")).unwrap();
    check(&world, 0, "path_outside_root");
    // A link inside the root is followed.
    fs::remove_file(world.at("tokens")).unwrap();
    world.write("real/demo.yml", "id: demo\npalette: [black, white]\n");
    std::os::unix::fs::symlink("real", world.at("tokens")).unwrap();
    world
        .run(&["sidecar", "verify", "docs/report.md"])
        .expect(0);
    // A tree with a link in it is refused.
    let world = World::agent();
    std::os::unix::fs::symlink("a.txt", world.at("data/link")).unwrap();
    world
        .capture_agent(&[], &["true"])
        .expect(2)
        .says("`link` is a symbolic link");
}

#[test]
fn inputs_outside_the_root_are_refused_at_capture() {
    let outside = World::empty().with("x.md", "x");
    let world = World::agent();
    let path = outside.at("x.md");
    let input = format!("x={}", path.display());
    world
        .capture_agent(&["--input", &input], &["true"])
        .expect(2)
        .says("is outside the root");
    world
        .capture_agent(&["--input", "x=../x.md"], &["true"])
        .expect(2)
        .says("is outside the root");
    world
        .capture_agent(&["--input", "x=gone.md"], &["true"])
        .expect(2)
        .says("`gone.md`");
    assert!(!world.exists("out/report.replay.json"));
}

#[test]
fn enormous_structured_inputs_are_refused_and_raw_ones_are_not() {
    let world = captured();
    let token = OpenOptions::new()
        .write(true)
        .open(world.at("tokens/demo.yml"))
        .unwrap();
    token.set_len(40 << 20).unwrap();
    check(&world, 0, "too_large");
    world
        .capture_eval(&["--overwrite"], &["true"])
        .expect(2)
        .says("for a structured input");
    let world = World::agent();
    let data = OpenOptions::new()
        .write(true)
        .open(world.at("prompts/task.md"))
        .unwrap();
    data.set_len(40 << 20).unwrap();
    world.capture_agent(&[], &["true"]).expect(0);
    world.run(&["sidecar", "verify", "out/report.md"]).expect(0);
}

#[test]
fn an_input_that_changes_while_it_is_hashed_is_noticed() {
    let world = World::agent();
    world.capture_agent(&[], &["true"]).expect(0);
    let path = world.at("prompts/task.md");
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    file.set_len(48 << 20).unwrap();
    let done = AtomicBool::new(false);
    let ran = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                (&file).write_all(b"x").unwrap();
                std::thread::yield_now();
            }
        });
        let ran = world.run(&["sidecar", "verify", "--json", "out/report.md"]);
        done.store(true, Ordering::Relaxed);
        ran
    });
    assert_eq!(ran.json()["checks"][0]["reason"], "changed_while_reading");
    ran.expect(1);
}

#[test]
fn broken_structured_inputs_are_told_apart() {
    let world = captured();
    for (text, reason) in [
        ("a: 1\na: 2\n", "parse_error"),
        ("a: [1\n", "parse_error"),
        ("{\"a\": 1, \"a\": 1}", "parse_error"),
        ("%YAML 1.1\n---\na: yes\n", "unsupported_construct"),
        ("a: !!timestamp 2026-08-03\n", "unsupported_construct"),
        ("a: \"\\ud83d\"\n", "unsupported_construct"),
    ] {
        world.write("tokens/demo.yml", text);
        check(&world, 0, reason);
    }
    world.write("tokens/demo.yml", b"a: \xff\n");
    check(&world, 0, "parse_error");
    // CRLF and a byte order mark change nothing in a structured input, everything in a raw one.
    world.write(
        "tokens/demo.yml",
        "\u{feff}id: demo\r\npalette: [black, white]\r\n",
    );
    world
        .run(&["sidecar", "verify", "docs/report.md"])
        .expect(0);
    let world = World::agent();
    world.capture_agent(&[], &["true"]).expect(0);
    world.write("prompts/task.md", "Do it.\r\n");
    world
        .run(&["sidecar", "verify", "out/report.md"])
        .expect(1)
        .says("FAIL  inputs/0");
}

#[test]
fn sidecars_that_give_no_verdict_say_why() {
    let world = captured();
    let good = world.read("docs/report.replay.json");
    let verify = |text: &str| {
        world.write("docs/report.replay.json", text);
        world
            .run(&["sidecar", "verify", "docs/report.md"])
            .expect(2)
    };
    verify("not json")
        .says("error: invalid_sidecar: `docs/report.replay.json`: not a JSON sidecar");
    verify("").says("invalid_sidecar");
    verify(&good.replace("\"kind\"", "\"kind\": \"x\",\n  \"kind\""))
        .says("duplicate member name `kind`");
    verify(&format!("\u{feff}{good}")).says("invalid_sidecar");
    verify(&good.replace("\"schema_version\": 1", "\"schema_version\": 2"))
        .says("unsupported_schema_version")
        .says("schema_version 2 is newer than 1");
    verify(&good.replace("eval-live", "critique")).says("/brief must be null");
    verify(&good.replace("\"n\": 3", "\"n\": 0"))
        .says("/sampling/n must be an integer of 1 or more");
    fs::remove_file(world.at("docs/report.replay.json")).unwrap();
    world
        .run(&["sidecar", "verify", "docs/report.md"])
        .expect(2)
        .says("no sidecar at");
    fs::create_dir(world.at("docs/report.replay.json")).unwrap();
    world
        .run(&["sidecar", "verify", "docs/report.md"])
        .expect(2)
        .says("not a regular file");
}

#[test]
fn unknown_members_warn_and_are_refused_when_strict() {
    let world = captured();
    let text = world
        .read("docs/report.replay.json")
        .replace("\"n\": 3", "\"n\": 3, \"warmup\": 1");
    world.write("docs/report.replay.json", text);
    world
        .run(&["sidecar", "verify", "docs/report.md"])
        .expect(0)
        .says("warning: unknown_member:/sampling/warmup");
    world
        .run(&["sidecar", "verify", "--strict", "docs/report.md"])
        .expect(2)
        .says("/sampling/warmup");
}

#[test]
fn reports_that_cannot_take_a_block_leave_no_sidecar() {
    let world = captured();
    let once = world.read("docs/report.md");
    for (text, line) in [
        (once.clone() + &once, "the report has 2 replay blocks"),
        (
            "# R\n\n```yaml ahd-replay\n".to_owned(),
            "has no closing fence",
        ),
    ] {
        world.write("docs/report.md", &text);
        world
            .capture_eval(&["--overwrite"], &["true"])
            .expect(2)
            .says(line);
        assert!(!world.exists("docs/report.replay.json"));
        assert_eq!(world.read("docs/report.md"), text);
    }
    fs::remove_file(world.at("docs/report.md")).unwrap();
    world
        .capture_eval(&[], &["true"])
        .expect(2)
        .says("cannot use the report `docs/report.md`");
    assert!(!world.exists("docs/report.replay.json"));
    let text = "\u{feff}# R\r\n\r\nBody\r\n";
    world.write("docs/report.md", text);
    world.capture_eval(&[], &["true"]).expect(0);
    let report = world.read("docs/report.md");
    assert!(
        report.starts_with("\u{feff}# R\r\n\r\n```yaml ahd-replay\r\n")
            && report.ends_with("\r\n\r\nBody\r\n")
    );
}

/// A report that verify could not read again is not recorded; a pipe is not waited for.
#[cfg(unix)]
#[test]
fn reports_that_are_no_moderate_files_are_refused() {
    let world = World::agent();
    let report = OpenOptions::new()
        .write(true)
        .open(world.at("out/report.md"))
        .unwrap();
    report.set_len(65 << 20).unwrap();
    world
        .capture_agent(&[], &["true"])
        .expect(2)
        .says("for a report");
    fs::remove_file(world.at("out/report.md")).unwrap();
    world
        .capture_agent(&[], &["mkfifo", "out/report.md"])
        .expect(2)
        .says("cannot use the report `out/report.md`: not a regular file");
    assert!(!world.exists("out/report.replay.json"));
    // A place outside the root is told before anything runs.
    let outside = World::empty().with("r.md", "# R\n");
    let report = outside.at("r.md");
    world
        .run(&[
            "sidecar",
            "capture",
            "--kind",
            "agent-run",
            "--root",
            ".",
            "--report",
            report.to_str().unwrap(),
            "--",
            "touch",
            "ran",
        ])
        .expect(2)
        .says("is outside the root");
    assert!(!world.exists("ran"));
}

/// A crash in the middle of capture: the program is killed while the command runs.
#[cfg(unix)]
#[test]
fn a_crash_leaves_no_sidecar_and_an_untouched_report() {
    let world = World::agent();
    let before = world.read("out/report.md");
    let ran = world.capture_agent(&[], &["sh", "-c", "kill -9 $PPID; sleep 1"]);
    assert_eq!(ran.code, None);
    assert!(!world.exists("out/report.replay.json"));
    assert_eq!(world.read("out/report.md"), before);
    let left: Vec<_> = fs::read_dir(world.at("out")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// A sidecar that cannot be written leaves nothing half-written.
#[cfg(unix)]
#[test]
fn a_directory_that_vanishes_during_the_run_is_a_fault() {
    let world = World::agent();
    world.write("gone/keep", "");
    world
        .run(&[
            "sidecar",
            "capture",
            "--kind",
            "x",
            "--sidecar",
            "gone/x.replay.json",
            "--",
            "rm",
            "-r",
            "gone",
        ])
        .expect(2)
        .says("cannot write");
}

/// RB-CAP-02 says that a failing git means no commit; it does not say that nobody is told.
#[test]
fn a_repository_that_git_refuses_is_told() {
    let world = World::agent();
    let refused = [("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")];
    let capture = [
        "sidecar",
        "capture",
        "--kind",
        "x",
        "--sidecar",
        "x.replay.json",
        "--",
        "true",
    ];
    world
        .run_in(&world.path(), &capture, &refused)
        .expect(0)
        .says("warning: no commit is recorded: fatal: detected dubious ownership");
    assert_eq!(world.json("x.replay.json")["tool"]["commit"], json!(null));
    let verify = ["sidecar", "verify", "--at-commit=HEAD", "x.replay.json"];
    world
        .run_in(&world.path(), &verify, &refused)
        .expect(2)
        .says("detected dubious ownership");
    let empty = World::empty();
    empty.git(&["init", "-q"]);
    empty
        .run(&capture)
        .expect(0)
        .says("warning: no commit is recorded");
}

#[test]
fn a_shallow_clone_says_what_is_missing() {
    let world = captured();
    world.write("tokens/demo.yml", "id: later\n");
    world.commit_all();
    let clone = World::empty();
    let url = format!("file://{}", world.path().display());
    clone.git(&["clone", "-q", "--depth", "1", &url, "c"]);
    let cwd = clone.at("c");
    clone
        .run_in(&cwd, &["sidecar", "verify", "docs/report.md"], &[])
        .expect(1);
    clone
        .run_in(
            &cwd,
            &["sidecar", "verify", "--at-commit", "docs/report.md"],
            &[],
        )
        .expect(2)
        .says("git fetch --unshallow");
    fs::remove_file(cwd.join("docs/report.replay.json")).unwrap();
    clone
        .run_in(
            &cwd,
            &[
                "sidecar",
                "backfill",
                "--kind",
                "eval-live",
                "--token",
                "tokens/demo.yml",
                "--n",
                "1",
                "docs/report.md",
            ],
            &[],
        )
        .expect(2)
        .says("the clone is shallow");
}

/// A pipe that nobody reads is no panic, and no verdict either.
#[test]
fn a_closed_pipe_does_not_change_the_verdict() {
    let world = captured();
    let program = env!("CARGO_BIN_EXE_reprise");
    let script = format!("{{ '{program}' sidecar verify docs/report.md; echo $? >&2; }} | true");
    let status = || {
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .current_dir(world.path())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(status(), "0\n");
    world.write("tokens/demo.yml", "id: other\n");
    assert_eq!(status(), "1\n");
}
