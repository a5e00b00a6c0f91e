//! `sidecar rerun`.

use serde_json::json;

use crate::world::World;

/// An agent whose script is committed and captured with a stable and an unstable output.
fn captured(script: &str) -> World {
    // The stable output is committed before the run, as results of earlier runs often are.
    let world = World::agent()
        .with("run.sh", script)
        .with("out/copy.txt", "Do it.\n");
    world.commit_all();
    let path = world.path();
    let arguments = [
        "sidecar",
        "capture",
        "--kind",
        "agent-run",
        "--report",
        "out/report.md",
        "--input",
        "prompt=prompts/task.md",
        "--stable-output",
        "copy=out/copy.txt",
        "--output",
        "time=out/time.txt",
        "--env",
        "LANG_TAG",
        "--",
        "sh",
        "run.sh",
    ];
    world
        .run_in(&path, &arguments, &[("LANG_TAG", "de"), ("SALT", "1")])
        .expect(0);
    world.commit_all();
    world
}

const SCRIPT: &str = "cp prompts/task.md out/copy.txt\necho \"$LANG_TAG $SALT\" > out/time.txt\n";

fn exec(world: &World, more: &[&str]) -> crate::world::Ran {
    let arguments = [
        &["sidecar", "rerun", "--exec", "--json", "--worktree"],
        more,
        &["out/report.md"],
    ]
    .concat();
    world.run_in(
        &world.path(),
        &arguments,
        &[("SALT", "2"), ("LANG_TAG", "xx")],
    )
}

/// RB-RUN-01: prints the steps and runs nothing.
#[test]
fn without_exec_the_steps_are_printed() {
    let world = captured(SCRIPT);
    let commit = world.json("out/report.replay.json")["tool"]["commit"].clone();
    let before = world.git(&["worktree", "list"]);
    let ran = world.run(&["sidecar", "rerun", "out/report.md"]).expect(0);
    let commit = commit.as_str().unwrap();
    assert_eq!(
        ran.out,
        format!(
            "git worktree add --detach DIR {commit}\ncd DIR\n\
             : build sh unknown here, as its documentation says\nexport LANG_TAG=de\nsh run.sh\n"
        )
    );
    assert_eq!(world.git(&["worktree", "list"]), before);
    let steps = world
        .run(&["sidecar", "rerun", "--json", "out/report.md"])
        .expect(0)
        .json();
    assert_eq!(steps["executed"], false);
    assert_eq!(steps["steps"][4], "sh run.sh");
}

/// RB-RUN-04, RB-RUN-08, RB-RUN-09.
#[test]
fn exec_runs_in_a_worktree_and_compares() {
    let world = captured(SCRIPT);
    let place = World::empty();
    let worktree = place.at("w");
    let ran = exec(&world, &[worktree.to_str().unwrap()]).expect(0);
    let outcome = ran.json();
    let lines: Vec<String> = outcome["comparison"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| format!("{}: {}", line["result"], line["subject"]).replace('"', ""))
        .collect();
    assert_eq!(lines[0], "same: inputs/0 `prompts/task.md`");
    assert!(lines[1].starts_with("same: platform "), "{lines:?}");
    assert!(
        lines.contains(&"same: outputs/1 `out/copy.txt`".to_owned()),
        "{lines:?}"
    );
    assert!(
        lines.contains(&"differs (expected): outputs/0 `out/time.txt`".to_owned()),
        "{lines:?}"
    );
    // The recorded variable is set from the sidecar, the other comes from the caller.
    assert_eq!(
        std::fs::read_to_string(worktree.join("out/time.txt")).unwrap(),
        "de 2\n"
    );
    assert_eq!(
        world.read("out/time.txt"),
        "de 1\n",
        "the checkout is not touched"
    );
    assert_eq!(world.git(&["status", "--porcelain"]), "");
    let new = worktree.join("out/report.rerun.replay.json");
    assert_eq!(outcome["new_sidecar"], new.to_str().unwrap());
    let text = std::fs::read_to_string(&new).unwrap();
    let sidecar: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(sidecar["parent"]["relation"], "rerun");
    assert_eq!(sidecar["parent"]["path"], "out/report.replay.json");
    exec(&world, &[worktree.to_str().unwrap()])
        .expect(2)
        .says("is not empty; --worktree names a new directory");
    let verified = world
        .run(&["sidecar", "verify", "--outputs", new.to_str().unwrap()])
        .expect(0);
    assert!(verified.out.contains("ok    outputs/1"), "{}", verified.out);
}

#[test]
fn a_stable_output_that_differs_is_a_no() {
    let world = captured(
        "cp prompts/task.md out/copy.txt\necho $SALT >> out/copy.txt\necho > out/time.txt\n",
    );
    let place = World::empty();
    let worktree = place.at("w");
    let ran = exec(&world, &[worktree.to_str().unwrap()]).expect(1);
    assert!(ran.out.contains("differs (was stable)"), "{}", ran.out);
    // An output that was committed and is not written again does not count as the same.
    let world =
        captured("test $SALT = 2 || cp prompts/task.md out/copy.txt\necho > out/time.txt\n");
    let worktree = place.at("w2");
    let ran = exec(&world, &[worktree.to_str().unwrap()]).expect(1);
    assert!(
        ran.out.contains("`out/copy.txt`, not written"),
        "{}",
        ran.out
    );
}

/// RB-RUN-03.
#[test]
fn drift_stops_a_rerun_unless_forced() {
    let world = captured(SCRIPT);
    let text = world.read("out/report.replay.json");
    let hash = world.json("out/report.replay.json")["inputs"][0]["hash"]
        .as_str()
        .unwrap()
        .to_owned();
    world.write(
        "out/report.replay.json",
        text.replace(&hash, &format!("sha256:{}", "0".repeat(64))),
    );
    let ran = world.run(&["sidecar", "rerun", "out/report.md"]).expect(1);
    assert!(
        ran.err.contains("FAIL  inputs/0") && ran.out.is_empty(),
        "{}",
        ran.err
    );
    let told = world.run(&["sidecar", "rerun", "--json", "out/report.md"]);
    let told = told.expect(1).json();
    assert_eq!(told["executed"], false);
    assert_eq!(told["failed"][0]["field"], "inputs/0");
    assert_eq!(told["failed"][0]["reason"], "hash_mismatch");
    let ran = world
        .run(&["sidecar", "rerun", "--force", "out/report.md"])
        .expect(0);
    assert!(
        ran.err.contains("warning: drift") && ran.out.contains("sh run.sh"),
        "{}",
        ran.err
    );
}

/// RB-RUN-02.
#[test]
fn what_was_not_recorded_cannot_be_rerun() {
    let world = World::framework();
    world
        .run(&[
            "sidecar",
            "backfill",
            "--kind",
            "critique",
            "--token",
            "tokens/demo.yml",
            "--n",
            "1",
            "docs/report.md",
        ])
        .expect(0);
    world
        .run(&["sidecar", "rerun", "docs/report.md"])
        .expect(2)
        .says("not rerunnable");
}

/// RB-RUN-07.
#[test]
fn redacted_arguments_must_be_supplied() {
    let world = World::agent();
    // Told by its length: a script that held the password would be redacted too.
    let script = "test \"${#2}\" = 15 && echo fine > out/answer.txt";
    world
        .capture_agent(
            &["--output", "answer=out/answer.txt"],
            &["sh", "-c", script, "x", "--", "--password=pw-1"],
        )
        .expect(0);
    world.commit_all();
    assert!(!world.read("out/report.replay.json").contains("pw-1\""));
    let place = World::empty();
    let (one, two) = (place.at("1"), place.at("2"));
    let arguments = |worktree: &std::path::Path, supply: &[&str]| {
        let worktree = worktree.to_str().unwrap().to_owned();
        let mut all: Vec<String> = ["sidecar", "rerun", "--exec", "--worktree"]
            .map(str::to_owned)
            .to_vec();
        all.push(worktree);
        all.extend(supply.iter().map(ToString::to_string));
        all.push("out/report.md".to_owned());
        all
    };
    let run = |all: Vec<String>| {
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        world.run_in(&world.path(), &all, &[("PW", "pw-1")])
    };
    run(arguments(&one, &[]))
        .expect(2)
        .says("must be supplied: --supply password=VARIABLE");
    assert!(!one.exists());
    run(arguments(&one, &["--supply", "password=NONE"]))
        .expect(2)
        .says("variable `NONE`");
    let ran = run(arguments(&two, &["--supply", "password=PW"])).expect(0);
    assert!(
        ran.out.contains("same                  outputs/0"),
        "{}",
        ran.out
    );
    let new = std::fs::read_to_string(two.join("out/report.rerun.replay.json")).unwrap();
    assert!(
        new.contains("<redacted:password>") && !new.contains("--password=pw-1\""),
        "{new}"
    );
}

/// RB-RUN-05: interpreter and script of another machine; paths into the checkout.
#[test]
fn foreign_paths_are_replaced_and_shown() {
    let world = World::agent().with("bin/run.sh", "echo \"$1\" > out/answer.txt; echo > \"$2\"");
    world.commit_all();
    let log = world.at("out/log.txt");
    world.write(
        "argv.json",
        json!(["/opt/other/bin/sh", "/builds/x/bin/run.sh", "a b", log]).to_string(),
    );
    world
        .run(&[
            "sidecar",
            "capture",
            "--kind",
            "agent-run",
            "--report",
            "out/report.md",
            "--input",
            "prompt=prompts/task.md",
            "--no-run",
            "--argv-json",
            "argv.json",
            "--invoked-at",
            "2026-01-02T03:04:05Z",
        ])
        .expect(0);
    let place = World::empty();
    let worktree = place.at("w");
    let ran = exec(&world, &[worktree.to_str().unwrap()]).expect(0);
    let outcome = ran.json();
    let to: Vec<_> = outcome["substitutions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["to"].clone())
        .collect();
    assert_eq!(
        to,
        [
            json!("sh"),
            json!(worktree.join("bin/run.sh")),
            json!(worktree.join("out/log.txt"))
        ]
    );
    assert!(
        ran.err.contains("substituted `sh` for `/opt/other/bin/sh`"),
        "{}",
        ran.err
    );
    assert_eq!(
        std::fs::read_to_string(worktree.join("out/answer.txt")).unwrap(),
        "a b\n"
    );
    assert!(!log.exists() && worktree.join("out/log.txt").exists());
}

/// RB-RUN-06: the vector is executed as a vector.
#[test]
fn no_shell_reads_the_arguments() {
    let world = World::agent();
    world
        .capture_agent(&[], &["echo", "$(touch pwned); `touch pwned`; a  b"])
        .expect(0);
    world.commit_all();
    let place = World::empty();
    let worktree = place.at("w");
    let ran = exec(&world, &[worktree.to_str().unwrap()]).expect(0);
    assert!(
        ran.err.contains("$(touch pwned); `touch pwned`; a  b\n"),
        "{}",
        ran.err
    );
    assert!(!worktree.join("pwned").exists() && !world.exists("pwned"));
}

#[test]
fn without_a_commit_a_prepared_directory_is_needed() {
    let world = World::empty().with("p.md", "x").with("r.md", "# R\n");
    world
        .run(&[
            "sidecar",
            "capture",
            "--kind",
            "agent-run",
            "--report",
            "r.md",
            "--input",
            "p=p.md",
            "--",
            "cat",
            "p.md",
        ])
        .expect(0);
    world
        .run(&["sidecar", "rerun", "r.md"])
        .expect(0)
        .says(": install cat unknown\ncat p.md\n");
    world
        .run(&["sidecar", "rerun", "--exec", "r.md"])
        .expect(2)
        .says("name it with --worktree");
    let path = world.path();
    world
        .run(&[
            "sidecar",
            "rerun",
            "--exec",
            "--worktree",
            path.to_str().unwrap(),
            "r.md",
        ])
        .expect(2)
        .says("must not be the checkout");
    let place = World::empty().with("p.md", "y");
    let prepared = place.path();
    let arguments = [
        "sidecar",
        "rerun",
        "--exec",
        "--worktree",
        prepared.to_str().unwrap(),
        "r.md",
    ];
    world.run(&arguments).expect(1).says("FAIL  inputs/0");
    place.write("p.md", "x");
    world.run(&arguments).expect(0).says("x");
    assert!(place.exists("r.rerun.replay.json"));
}

/// An AHD run is recorded again in the general form, because schema 1 has no parent.
#[test]
fn an_ahd_rerun_writes_a_general_sidecar() {
    let world = World::framework();
    world.capture_eval(&[], &["true"]).expect(0);
    world.write("tokens/extra.yml", "later: 1\n");
    world.commit_all();
    let place = World::empty();
    let worktree = place.at("w");
    let ran = world.run(&[
        "sidecar",
        "rerun",
        "--exec",
        "--worktree",
        worktree.to_str().unwrap(),
        "docs/report.md",
    ]);
    ran.expect(0).says("not reported");
    let new = worktree.join("docs/report.rerun.replay.json");
    let sidecar: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&new).unwrap()).unwrap();
    assert_eq!(sidecar["kind"], "ahd.eval-live");
    assert_eq!(sidecar["profile"], "ahd-js-1");
    assert_eq!(sidecar["inputs"][0]["role"], "token");
    assert!(
        !worktree.join("tokens/extra.yml").exists(),
        "the worktree is of the recorded commit"
    );
    world
        .run(&["sidecar", "verify", new.to_str().unwrap()])
        .expect(0);
}

/// Section 10.1: the mode of a brief is found by verifying.
#[test]
fn a_markdown_brief_is_imported_by_its_bytes() {
    let world = World::framework();
    world.write("brief.md", "# Brief\n\nMake it: simple\n- one\n");
    world.commit_all();
    let arguments = [
        "sidecar",
        "capture",
        "--kind",
        "eval-image",
        "--report",
        "docs/report.md",
        "--token",
        "tokens/demo.yml",
        "--brief",
        "brief.md",
        "--n",
        "1",
        "--node-version",
        "v1",
        "--",
        "true",
    ];
    world.run(&arguments).expect(0);
    let place = World::empty();
    let worktree = place.at("w");
    let arguments = [
        "sidecar",
        "rerun",
        "--exec",
        "--worktree",
        worktree.to_str().unwrap(),
        "docs/report.md",
    ];
    world
        .run(&arguments)
        .expect(0)
        .says("same                  inputs/1 `brief.md`");
    let new = worktree.join("docs/report.rerun.replay.json");
    let sidecar: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&new).unwrap()).unwrap();
    assert_eq!(sidecar["inputs"][1]["mode"], "raw-bytes");
}

/// Section 10.2: the environment is compared by rerun; the new sidecar says nothing that nobody looked at.
#[test]
fn the_environment_is_compared_and_not_assumed() {
    let world = World::agent();
    let image = format!("img@sha256:{}", "a".repeat(64));
    let facts = [
        "--env",
        "LANG_TAG",
        "--timezone",
        "Europe/Berlin",
        "--locale",
        "C",
        "--container-image",
        &image,
        "--network",
        "none",
        "--runtime",
        "sh=5",
        "--agent-name",
        "a",
        "--agent-config",
        "agent.yml",
    ];
    let arguments = [
        &[
            "sidecar",
            "capture",
            "--kind",
            "agent-run",
            "--report",
            "out/report.md",
        ][..],
        &["--input", "prompt=prompts/task.md"],
        &facts,
        &["--", "true"],
    ]
    .concat();
    let env = [("LANG_TAG", "de")];
    world.run_in(&world.path(), &arguments, &env).expect(0);
    world.commit_all();
    let place = World::empty();
    let worktree = place.at("w");
    let arguments = [
        "sidecar",
        "rerun",
        "--exec",
        "--worktree",
        worktree.to_str().unwrap(),
        "out/report.md",
    ];
    let env = [("TZ", "UTC"), ("LC_ALL", "C"), ("LANG", "xx")];
    let ran = world.run_in(&world.path(), &arguments, &env).expect(0);
    for line in [
        "  same                  environment LANG_TAG\n",
        "  changed               time zone Europe/Berlin\n",
        "  same                  locale C\n",
        &format!("  not known             container image {image}\n"),
        "  not known             network none\n",
        "  not known             runtime sh 5\n",
    ] {
        assert!(ran.out.contains(line), "no {line} in {}", ran.out);
    }
    let new = std::fs::read_to_string(worktree.join("out/report.rerun.replay.json")).unwrap();
    let new: serde_json::Value = serde_json::from_str(&new).unwrap();
    assert_eq!(
        new["environment"],
        json!({"env": {"LANG_TAG": "de"}, "timezone": "UTC", "locale": "C"})
    );
    assert_eq!(new["agent"], json!({"name": "a"}));
    assert_eq!(new.get("runtime"), None);
}

/// What lies behind a link is not of the run, and is not removed before it.
#[cfg(unix)]
#[test]
fn outputs_behind_a_link_out_of_the_worktree_are_left_alone() {
    let results = World::empty().with("answer.txt", "precious");
    let world = World::agent();
    world
        .capture_agent(
            &["--output", "answer=res/answer.txt"],
            &["sh", "-c", "mkdir res; echo > res/answer.txt"],
        )
        .expect(0);
    // The commit that is rerun holds a link where the outputs were.
    std::fs::remove_dir_all(world.at("res")).unwrap();
    std::os::unix::fs::symlink(results.path(), world.at("res")).unwrap();
    let commit = world.commit_all();
    let mut sidecar = world.json("out/report.replay.json");
    sidecar["tool"]["commit"] = json!(commit);
    world.write("out/report.replay.json", sidecar.to_string());
    let place = World::empty();
    let worktree = place.at("w");
    exec(&world, &[worktree.to_str().unwrap()])
        .expect(2)
        .says("output `res/answer.txt` leads out of the worktree");
    assert_eq!(results.read("answer.txt"), "precious");
}
