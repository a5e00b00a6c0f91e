//! The worked example of `docs/replay-blocks.md`, pasted into a shell.

use std::path::Path;

use crate::world::World;

#[test]
fn the_worked_example_works_as_printed() {
    let text = include_str!("../../../../docs/replay-blocks.md");
    let example = text
        .split("\n## ")
        .find(|section| section.starts_with("A worked example"))
        .unwrap();
    let mut script = "set -eu\n".to_owned();
    for block in example.split("```sh\n").skip(1) {
        script.push_str(block.split("```").next().unwrap());
    }
    assert_eq!(script.matches("reprise sidecar").count(), 7);
    let place = World::empty().with("repo/.keep", "");
    let program = Path::new(env!("CARGO_BIN_EXE_reprise")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(place.at("repo"))
        .env("PATH", path)
        .output()
        .unwrap();
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
