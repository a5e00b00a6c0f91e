//! Facts of general kinds: recorded by their flags, shown or compared by verify.

use serde_json::json;

use crate::world::World;

fn sha256(text: &str) -> String {
    canon::sha256(text.as_bytes()).to_string()
}

/// Section 10.2: the agent by name, version, configuration, tool schemas and policy.
#[test]
fn the_agent_is_recorded_by_what_defines_it() {
    let world = World::agent()
        .with("tools/read.json", "{\"type\": \"object\"}\n")
        .with("tools/write.yml", "type: string\n")
        .with("policy.cedar", "permit(principal, action, resource);\n")
        .with("policy.yml", "# allow all\ndefault: allow\n");
    world.commit_all();
    let flags = [
        "--agent-name",
        "scout",
        "--agent-version",
        "3",
        "--agent-config",
        "agent.yml",
        "--agent-tool",
        "read=tools/read.json",
        "--agent-tool",
        "write=tools/write.yml",
        "--agent-policy",
        "policy.cedar",
    ];
    world.capture_agent(&flags, &["true"]).expect(0);
    assert_eq!(
        world.json("out/report.replay.json")["agent"],
        json!({
            "name": "scout", "version": "3",
            "config_hash": sha256(r#"{"model":"x","steps":3}"#),
            "tools": [
                {"name": "read", "schema_hash": sha256(r#"{"type":"object"}"#)},
                {"name": "write", "schema_hash": sha256(r#"{"type":"string"}"#)},
            ],
            "policy_hash": sha256("permit(principal, action, resource);\n"),
        })
    );
    let verify = |more: &[&str]| {
        let mut arguments = vec!["sidecar", "verify", "out/report.md"];
        arguments.extend(more);
        world.run(&arguments)
    };
    let all = [
        "--agent",
        "agent.yml",
        "--agent-tool",
        "write=tools/write.yml",
        "--agent-policy",
        "policy.cedar",
    ];
    verify(&all)
        .expect(0)
        .says("  ok    agent  `scout` agrees by canonical-json\n")
        .says("  ok    agent/tools/1  `write` agrees by canonical-json\n")
        .says("  ok    agent/policy  `scout` agrees by raw-bytes\n");
    // Another value of each fails at its own line.
    world.write("tools/write.yml", "type: number\n");
    world.write("policy.cedar", "forbid(principal, action, resource);\n");
    verify(&all)
        .expect(1)
        .says("  FAIL  agent/tools/1  `write`: hash_mismatch\n")
        .says("  FAIL  agent/policy  `scout`: hash_mismatch\n")
        .says("drift: 2 of 6 FAIL");
    // What was not recorded does not pass for agreement.
    verify(&["--agent-tool", "run=tools/read.json"])
        .expect(1)
        .says("  FAIL  agent/tools  `run`: not_recorded\n");
    verify(&["--agent-policy", "gone"])
        .expect(2)
        .says("error: unreadable_agent: cannot read `gone`");
    // A structured policy counts by its value.
    let structured = [
        "--overwrite",
        "--agent-name",
        "s",
        "--agent-policy",
        "policy.yml",
    ];
    world.capture_agent(&structured, &["true"]).expect(0);
    let agent = world.json("out/report.replay.json")["agent"].clone();
    let policy = sha256(r#"{"default":"allow"}"#);
    assert_eq!(agent, json!({"name": "s", "policy_hash": policy}));
    verify(&["--agent", "agent.yml"])
        .expect(1)
        .says("  FAIL  agent  `s`: not_recorded\n");
}

#[test]
fn flags_about_an_agent_are_checked_before_the_run() {
    let world = World::agent().with("t.json", "{\"a\": 1, \"a\": 2}");
    let touch = ["touch", "ran"];
    for (flags, line) in [
        (&["--agent-tool", "t=t.json"][..], "--agent-name"),
        (
            &["--agent-name", "a", "--agent-tool", "t=t.json"],
            "cannot hash `t.json`: duplicate key `a`",
        ),
        (
            &["--agent-name", "a", "--agent-tool", "t"],
            "expected NAME=FILE",
        ),
        (
            &["--agent-name", "a", "--agent-policy", "gone"],
            "cannot read `gone`",
        ),
        (
            &[
                "--agent-name",
                "a",
                "--agent-tool",
                "t=agent.yml",
                "--agent-tool",
                "t=agent.yml",
            ],
            "names `t` twice",
        ),
        (&["--trace-format", "jsonl"], "--trace"),
        (&["--trace", "../x"], "is outside the root"),
        (&["--trace", "out/report.md"], "holds the report"),
        (
            &["--trace", "x", "--trace-events", "many"],
            "a number or `lines`",
        ),
        (&["--exit-code", "0"], "--no-run"),
        (&["--tool-binary", "gone"], "cannot hash `gone`"),
        (
            &["--tool-repository", "https://me:pw123@example.org/r"],
            "looks like a credential",
        ),
        (
            &[
                "--model",
                "id=m,provider=p,endpoint=https://me:pw1@example.org",
            ],
            "looks like a credential",
        ),
    ] {
        world.capture_agent(flags, &touch).expect(2).says(line);
    }
    assert!(!world.exists("ran") && !world.exists("out/report.replay.json"));
    let framework = World::framework();
    for flags in [
        ["--agent-name", "a"],
        ["--trace", "t"],
        ["--tool-repository", "r"],
        ["--tool-binary", "package.json"],
    ] {
        framework
            .capture_eval(&flags, &["true"])
            .expect(2)
            .says("has no member");
    }
}

/// RB-CAP-05 for what defines the agent and the tool.
#[test]
fn an_agent_that_changes_during_the_run_leaves_no_sidecar() {
    let world = World::agent().with("policy.txt", "a").with("tool.bin", "b");
    let agent = ["--agent-name", "a", "--agent-policy", "policy.txt"];
    world
        .capture_agent(&agent, &["sh", "-c", "echo b > policy.txt"])
        .expect(2)
        .says("what defines the agent changed while the command ran");
    world
        .capture_agent(
            &["--tool-binary", "tool.bin"],
            &["sh", "-c", "echo > tool.bin"],
        )
        .expect(2)
        .says("--tool-binary changed while the command ran");
    assert!(!world.exists("out/report.replay.json"));
}

/// Section 10.2: a trace with its events, session and format; the run itself writes it.
#[test]
fn the_trace_is_recorded_as_the_run_left_it() {
    let world = World::agent();
    let text = "{\"e\": 1}\n\n{\"e\": 2}\r\n \n{\"e\": 3}";
    world.write("events.txt", text);
    world.commit_all();
    let flags = [
        "--trace",
        "out/trace.jsonl",
        "--trace-format",
        "jsonl",
        "--trace-session",
        "s-17",
        "--trace-events",
        "lines",
    ];
    let write = ["cp", "events.txt", "out/trace.jsonl"];
    world.capture_agent(&flags, &write).expect(0);
    let sidecar = world.json("out/report.replay.json");
    assert_eq!(
        sidecar["trace"],
        json!({"path": "out/trace.jsonl", "hash": sha256(text), "events": 3,
            "session_id": "s-17", "format": "jsonl"})
    );
    world
        .run(&["sidecar", "verify", "out/report.md"])
        .expect(0)
        .says("trace    3 events, jsonl, session s-17\n")
        .says("  ok    trace  `out/trace.jsonl`\n");
    // A trace of an earlier run is no dirt, and a number is taken as it is.
    let flags = [
        "--overwrite",
        "--trace",
        "out/trace.jsonl",
        "--trace-events",
        "7",
    ];
    world.capture_agent(&flags, &write).expect(0);
    let sidecar = world.json("out/report.replay.json");
    assert_eq!(sidecar["trace"]["events"], 7);
    assert_eq!(sidecar["tool"]["dirty"], false);
    // The recorded commit is from before the trace: there it can be neither missing nor another.
    world.commit_all();
    world
        .run(&[
            "sidecar",
            "verify",
            "--at-commit",
            "--outputs",
            "out/report.md",
        ])
        .expect(0)
        .says("  note  trace  `out/trace.jsonl`: not_checked: the run wrote it later\n")
        .says("  note  report  `out/report.md`: not_checked: the run wrote it later\n");
    world
        .run(&["sidecar", "verify", "--at-commit=HEAD", "out/report.md"])
        .expect(0)
        .says("  ok    trace");
    world.run(&["sidecar", "rerun", "out/report.md"]).expect(0);
    world.write("out/trace.jsonl", "{}\n");
    world
        .run(&["sidecar", "verify", "out/report.md"])
        .expect(1)
        .says("  FAIL  trace  `out/trace.jsonl`: hash_mismatch\n");
}

#[test]
fn the_tool_is_recorded_with_its_source_and_its_program() {
    let world = World::agent().with("tool.bin", "program");
    let flags = [
        "--tool-name",
        "scout",
        "--tool-version",
        "1.2",
        "--tool-repository",
        "https://example.org/scout",
        "--tool-binary",
        "tool.bin",
    ];
    world.capture_agent(&flags, &["true"]).expect(0);
    let tool = world.json("out/report.replay.json")["tool"].clone();
    assert_eq!(tool["repository"], "https://example.org/scout");
    assert_eq!(tool["binary_hash"], sha256("program"));
}

/// Section 10.2: what is not compared is shown.
#[test]
fn recorded_facts_are_shown() {
    let world = World::agent();
    world.write("ids.txt", "r-1\nr-2\n");
    let facts = [
        "--run-id",
        "night-7",
        "--model",
        "id=m,provider=p,reported=m-1,calls=2,tokens-in=30,tokens-out=4,endpoint=https://p.example",
        "--request-ids",
        "ids.txt",
        "--n",
        "2",
        "--temperature",
        "0.7",
        "--sample-seed",
        "1",
        "--sample-seed",
        "2",
    ];
    let command = ["sh", "-c", "exit 3", "--api-key", "k-1"];
    world.capture_agent(&facts, &command).expect(3);
    let ran = world.run(&["sidecar", "verify", "out/report.md"]).expect(0);
    let ended = world.json("out/report.replay.json")["finished_at"].clone();
    for line in [
        &format!("ended    {}, exit status 3\n", ended.as_str().unwrap()),
        "run      night-7\n",
        "cwd      .\n",
        "model    m by p, 2 request ids, reported as m-1, at https://p.example, 2 calls, 30 tokens in, 4 tokens out\n",
        "sampling n 2, temperature 0.7, seeds 1 2\n",
        "redacted /argv/4: credential\n",
    ] {
        assert!(ran.out.contains(line), "no {line} in {}", ran.out);
    }
    assert!(!ran.out.contains("r-1"), "{}", ran.out);
}

#[test]
fn a_described_run_says_how_it_ended() {
    let world = World::agent().with("argv.json", "[\"agent\"]");
    let arguments = |time: &'static str| {
        [
            "sidecar",
            "capture",
            "--kind",
            "agent-run",
            "--sidecar",
            "x.replay.json",
            "--no-run",
            "--argv-json",
            "argv.json",
            "--invoked-at",
            "2026-01-02T03:04:05Z",
            "--finished-at",
            time,
            "--exit-code",
            "-1",
        ]
    };
    world
        .run(&arguments("later"))
        .expect(2)
        .says("/finished_at must be a UTC time");
    world
        .run(&arguments("2026-01-02T04:04:05Z"))
        .expect(0)
        .says("warning: no --input is given");
    let sidecar = world.json("x.replay.json");
    assert_eq!(sidecar["finished_at"], "2026-01-02T04:04:05Z");
    assert_eq!(sidecar["exit_code"], -1);
}

/// A sidecar comes from strangers: nothing in it forges a line of the verdict or steers the terminal.
#[test]
fn a_hostile_sidecar_cannot_forge_lines() {
    let world = World::agent();
    world.capture_agent(&[], &["true"]).expect(0);
    let mut sidecar = world.json("out/report.replay.json");
    sidecar["inputs"][0]["path"] = json!("x`\n  ok    inputs/0  `prompts/task.md\u{1b}[2K");
    sidecar["tool"]["name"] = json!("t\nclean: 3 of 3 ok");
    sidecar["x\n  ok    y"] = json!(1);
    world.write("out/report.replay.json", sidecar.to_string());
    let ran = world.run(&["sidecar", "verify", "out/report.md"]).expect(1);
    assert!(!ran.out.contains('\u{1b}'), "{}", ran.out);
    let lines = |start: &str| {
        ran.out
            .lines()
            .filter(|line| line.starts_with(start))
            .count()
    };
    assert_eq!((lines("  ok  "), lines("clean"), lines("drift")), (2, 0, 1));
    // Steps are pasted into shells.
    sidecar["inputs"][0]["path"] = json!("prompts/task.md");
    sidecar["tool"]["version"] = json!("1\ntouch pwned; $(touch pwned)");
    world.write("out/report.replay.json", sidecar.to_string());
    let ran = world.run(&["sidecar", "rerun", "out/report.md"]).expect(0);
    let steps = ran.out.replace("git worktree", ": ").replace("cd DIR", ":");
    let pasted = std::process::Command::new("sh")
        .args(["-c", &steps])
        .current_dir(world.path())
        .status()
        .unwrap();
    assert!(pasted.success() && !world.exists("pwned"), "{}", ran.out);
}
