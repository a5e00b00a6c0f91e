//! The examples of `docs/replay-blocks.md`, pasted into a shell.

use std::path::Path;
use std::process::Output;

use crate::recorded::Server;
use crate::world::World;

/// Returns what a reader would paste of a section.
fn script(section: &str) -> String {
    let text = include_str!("../../../../docs/replay-blocks.md");
    let mut sections = text.split("\n## ");
    let example = sections.find(|text| text.starts_with(section)).unwrap();
    let blocks = example.split("```sh\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap())
        .collect()
}

fn paste(place: &World, script: &str) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_reprise")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    std::process::Command::new("sh")
        .args(["-c", &format!("set -eu\n{script}")])
        .current_dir(place.at("repo"))
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
        "clean: 4 of 4 ok\n",
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

/// RB-REC-01 as a reader meets it.
#[test]
fn the_recorded_run_works_as_printed() {
    let place = World::empty().with("repo/.keep", "");
    let _server = Server::start(&place, "reprise-data");
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
