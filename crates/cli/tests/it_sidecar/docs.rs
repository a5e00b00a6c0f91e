//! The examples of `docs/replay-blocks.md`, pasted into a shell.

use std::path::Path;
use std::process::Output;

use crate::recorded::serve;
use crate::world::World;

const DOCUMENT: &str = include_str!("../../../../docs/replay-blocks.md");

/// Returns what a reader would paste of a section.
fn script(section: &str) -> String {
    let mut sections = DOCUMENT.split("\n## ");
    let example = sections.find(|text| text.starts_with(section)).unwrap();
    let blocks = example.split("```sh\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap())
        .collect()
}

fn paste(place: &World, script: &str) -> Output {
    shell("sh", "-eu", script, &place.at("repo"))
}

fn shell(shell: &str, flags: &str, script: &str, directory: &Path) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_reprise")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    std::process::Command::new(shell)
        .args([flags, "-c", script])
        .current_dir(directory)
        .env("PATH", path)
        .output()
        .unwrap()
}

#[test]
fn the_worked_example_works_as_printed() {
    let script = script("A worked example");
    assert_eq!(script.matches("reprise sidecar").count(), 7);
    let place = World::empty().with("repo/.keep", "");
    let output = paste(&place, &script);
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{out}\n{err}");
    for line in [
        "# Demo run\n\n```yaml ahd-replay\n",
        "  ok    block  `out/report.md`\n",
        "clean: 5 of 5 ok\n",
        "clean: 2 of 2 ok\n",
        "  FAIL  inputs/1  `agent.yml`: hash_mismatch\n",
        "drift: 1 of 2 FAIL\nexit status 1\n",
        "git worktree add --detach DIR ",
        "  same                  outputs/0 `out/answer.txt`\n",
    ] {
        assert!(out.contains(line), "no {line} in\n{out}\n{err}");
    }
    assert!(place.exists("again/out/report.rerun.replay.json"));
}

#[test]
fn agents_and_traces_work_as_printed() {
    let place = World::empty().with("repo/.keep", "");
    let script = script("A worked example") + &script("What can be recorded");
    let output = paste(&place, &script);
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{out}\n{err}");
    let printed = "\
trace    1 events, jsonl, session s-17

  ok    inputs/0  `prompts/task.md`
  ok    trace  `out/trace.jsonl`
  ok    agent  `scout` agrees by canonical-json
  ok    agent/tools/0  `read` agrees by canonical-json
  ok    agent/policy  `scout` agrees by raw-bytes
  warning: dirty_tree
  not checked: report; give --outputs
  not checked: block; give --outputs

clean: 5 of 5 ok
";
    assert!(out.ends_with(printed), "{out}\n{err}");
    assert!(DOCUMENT.contains(printed));
}

/// The job of the CI snippet: green while everything agrees, red on drift and on a sidecar that is none.
#[test]
fn the_gate_closes_on_drift() {
    let snippet = DOCUMENT.split("        run: |\n").nth(1).unwrap();
    let script: String = snippet
        .split("```")
        .next()
        .unwrap()
        .lines()
        .map(|line| format!("{}\n", line.trim_start()))
        .collect();
    let world = World::agent();
    world.capture_agent(&[], &["true"]).expect(0);
    world.write("a b/second run.md", "# Two\n");
    world
        .run(&[
            "sidecar",
            "capture",
            "--kind",
            "agent-run",
            "--report",
            "a b/second run.md",
            "--input",
            "config=agent.yml:canonical-json",
            "--",
            "true",
        ])
        .expect(0);
    world.commit_all();
    let gate = || shell("bash", "-e", &script, &world.path()).status.code();
    assert_eq!(gate(), Some(0));
    assert!(world.exists("junit/a b-second run.replay.json.xml"));
    world.write("agent.yml", "model: y\n");
    assert_eq!(gate(), Some(1));
    world.write("agent.yml", "model: x\nsteps: 3\n");
    assert_eq!(gate(), Some(0));
    world.write("out/report.replay.json", "{}");
    assert_eq!(gate(), Some(1));
}

/// RB-REC-01 as a reader meets it.
#[test]
fn the_recorded_run_works_as_printed() {
    let place = World::empty().with("repo/.keep", "");
    let _server = serve(&place, "reprise-data");
    let script = script("A worked example") + &script("A recorded run");
    let output = paste(&place, &script);
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{out}\n{err}");
    for line in [
        "  ok    recording/receipt  `receipt_",
        "  ok    recording/task  `task_",
        "  ok    recording/proof  `leaf 0 of 1`\n",
        "  ok    recording/checkpoint  `reprise-",
        "  ok    recording/signature  `key_",
        "  ok    signature  `",
        "clean: 7 of 7 ok\n",
    ] {
        assert!(out.contains(line), "no {line} in\n{out}\n{err}");
    }
}
