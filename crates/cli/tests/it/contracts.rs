//! `reprise contracts`: the real program on real folders.

use std::fs;
use std::time::{Duration, Instant};

use testing::process::{PATIENCE, run_to_end};

use crate::world::World;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/refund-desk");

#[test]
fn the_example_compiles_and_its_pack_holds() {
    let world = World::new();
    let text = world.ok(&["contracts", "check", &format!("{EXAMPLE}/contracts")]);
    assert!(text.contains("ok: 4 contracts, sha256:"), "{text}");
    let junit = world.home.path().join("report.xml");
    let sarif = world.home.path().join("report.sarif");
    let (junit_name, sarif_name) = (junit.display().to_string(), sarif.display().to_string());
    let args = [
        "contracts",
        "test",
        EXAMPLE,
        "--junit",
        &junit_name,
        "--sarif",
        &sarif_name,
    ];
    let text = world.ok(&args);
    assert!(text.ends_with("3 cases, 0 failed\n"), "{text}");
    assert!(fs::read_to_string(&junit).unwrap().contains("tests=\"3\""));
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&sarif).unwrap()).unwrap();
    assert_eq!(report["runs"][0]["results"], serde_json::json!([]));
}

#[test]
fn findings_are_listed_with_their_places_and_exit_1() {
    let world = World::new();
    let folder = world.home.path().join("c");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), "tool: a\nside_effct: read\n").unwrap();
    fs::write(
        folder.join("session.yaml"),
        "schema_version: \"1.0\"\nagent: [x]\n",
    )
    .unwrap();
    let found = run_to_end(world.command(&["contracts", "check", "c"]));
    assert_eq!(found.code, 1, "{found:?}");
    assert!(found.stdout.contains("c/a.yaml:2:1: error[unknown_key]: unknown key `side_effct`: did you mean `side_effect`?"), "{found:?}");
    assert!(
        found
            .stdout
            .contains("c/session.yaml:2:8: error[wrong_type]"),
        "{found:?}"
    );
    let json = run_to_end(world.command(&["contracts", "check", "c", "--json"]));
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["findings"].as_array().unwrap().len(), 3);
    assert_eq!(
        run_to_end(world.command(&["contracts", "check", "missing"])).code,
        2
    );
}

#[test]
fn a_case_that_is_not_as_expected_fails_in_every_report() {
    let world = World::new();
    let pack = world.home.path().join("pack");
    fs::create_dir_all(pack.join("contracts")).unwrap();
    fs::create_dir_all(pack.join("golden/negative")).unwrap();
    fs::write(
        pack.join("contracts/a.yaml"),
        "tool: a\nside_effect: read\n",
    )
    .unwrap();
    let case = "steps: [{ respond: { calls: [{ tool: NAME }] } }]";
    fs::write(pack.join("golden/good.yaml"), case.replace("NAME", "a")).unwrap();
    fs::write(pack.join("golden/bad.yaml"), case.replace("NAME", "b")).unwrap();
    fs::write(
        pack.join("golden/negative/lax.yaml"),
        case.replace("NAME", "a"),
    )
    .unwrap();
    let found = run_to_end(world.command(&[
        "contracts",
        "test",
        "pack",
        "--junit",
        "j.xml",
        "--sarif",
        "s.json",
    ]));
    assert_eq!(found.code, 1, "{found:?}");
    assert!(
        found
            .stdout
            .contains("FAIL bad\n    step 1: `b` was blocked: [\"unmatched_tool_blocked\"]"),
        "{found:?}"
    );
    assert!(
        found
            .stdout
            .contains("FAIL negative/lax\n    step 1: nothing was blocked"),
        "{found:?}"
    );
    assert!(found.stdout.ends_with("3 cases, 2 failed\n"), "{found:?}");
    let junit = fs::read_to_string(world.home.path().join("j.xml")).unwrap();
    assert!(junit.contains("failures=\"2\""), "{junit}");
    let sarif = fs::read_to_string(world.home.path().join("s.json")).unwrap();
    let sarif: serde_json::Value = serde_json::from_str(&sarif).unwrap();
    assert_eq!(sarif["runs"][0]["results"].as_array().unwrap().len(), 2);
}

#[test]
fn a_draft_compiles_marks_its_guesses_and_overwrites_nothing() {
    let world = World::new();
    let tools = r#"[
      {"type":"function","function":{"name":"find_order","description":"Find\nan order","parameters":{
        "type":"object","required":["id"],"properties":{"id":{"type":"string"},"max":{"type":"integer"}}}}},
      {"name":"refund","input_schema":{"type":"object"}},
      {"name":"wipe","inputSchema":{},"annotations":{"destructiveHint":true}},
      {"name":"../evil"}
    ]"#;
    fs::write(world.home.path().join("tools.json"), tools).unwrap();
    let written =
        run_to_end(world.command(&["contracts", "init", "tools.json", "--output", "draft"]));
    assert_eq!(written.code, 1, "one was left out: {written:?}");
    assert_eq!(written.stdout.lines().count(), 4, "{written:?}");
    let contract = fs::read_to_string(world.home.path().join("draft/find_order.yaml")).unwrap();
    assert!(
        contract.starts_with("# Find an order\ntool: \"find_order\"\nside_effect: read # GUESS"),
        "{contract}"
    );
    let checked = world.ok(&["contracts", "check", "draft"]);
    assert!(
        checked.contains("can never be called: its risk gate is `block`"),
        "{checked}"
    );
    let again =
        run_to_end(world.command(&["contracts", "init", "tools.json", "--output", "draft"]));
    assert_eq!(again.code, 1, "{again:?}");
    assert!(
        again.stderr.contains("kept `draft/refund.yaml`: it exists"),
        "{again:?}"
    );
}

#[test]
fn a_decision_is_explained_check_by_check() {
    let world = World::new();
    let digest = format!("sha256:{}", "0".repeat(64));
    let failure = |check: &str, reason: &str| serde_json::json!({"check": check, "reason": reason, "detail": "assess_return", "path": null, "operator": null, "expected": null});
    let decision = serde_json::json!({
        "action": "rejected", "gate": "reject_all", "attempt": 1, "stateVersion": 2, "controlRevision": 0,
        "compiled": digest, "reason": "precondition_not_met", "detail": null, "contract_file": "pay_back.yaml",
        "calls": [{"call_id": "c1", "tool_name": "pay_back", "arguments_digest": digest, "verdict": "block",
            "reason": "precondition_not_met", "all_reasons": ["precondition_not_met"], "detail": null,
            "contract_file": "pay_back.yaml", "failures": [failure("V7", "precondition_not_met")]}]
    });
    fs::write(world.home.path().join("d.json"), decision.to_string()).unwrap();
    let text = world.ok(&["contracts", "explain", "d.json"]);
    assert!(text.contains("pay_back (c1) blocked"), "{text}");
    let line = |check: &str| {
        text.lines()
            .find(|line| line.trim_start().starts_with(check))
            .unwrap()
            .to_owned()
    };
    assert!(line("V6 ").contains("held"), "{text}");
    assert!(
        line("V7 ").contains("failed") && line("V7 ").contains("(assess_return)"),
        "{text}"
    );
    assert!(line("V15").contains("not reached"), "{text}");
    assert_eq!(
        run_to_end(world.command(&["contracts", "explain", "d.json", "--call", "other"])).code,
        2
    );
}

#[test]
fn schemas_are_printed_for_editors() {
    let world = World::new();
    for kind in ["contract", "session"] {
        let text = world.ok(&["contracts", "schema", kind]);
        let schema: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(schema["additionalProperties"], false);
    }
}

/// A pack of one contract and one case.
fn pack(world: &World, contract: &str, case: &str) {
    let pack = world.home.path().join("pack");
    fs::create_dir_all(pack.join("contracts")).unwrap();
    fs::create_dir_all(pack.join("golden")).unwrap();
    fs::write(pack.join("contracts/a.yaml"), contract).unwrap();
    fs::write(pack.join("golden/case.yaml"), case).unwrap();
}

#[test]
fn a_case_that_shows_nothing_fails() {
    let world = World::new();
    for (case, problem) in [
        ("steps: []", "the case has no response to judge"),
        (
            "steps: [{}, { respond: { calls: [{ tool: a }] } }]",
            "step 1 says nothing",
        ),
        (
            "steps: [{ respond: { calls: [{ tool: a }] }, expect: [{}] }]",
            "`expect` says either",
        ),
        (
            "steps: [{ respond: { calls: [{ tool: a }] }, expect: [{ allow: true, block: [x] }] }]",
            "`expect` says either",
        ),
        (
            "steps: [{ respond: { calls: [{ tool: a }] } }, { expect: [{ allow: true }] }]",
            "has no response",
        ),
    ] {
        pack(&world, "tool: a\nside_effect: read\n", case);
        let found = run_to_end(world.command(&["contracts", "test", "pack"]));
        assert_eq!(found.code, 1, "{case}: {found:?}");
        assert!(found.stdout.contains(problem), "{case}: {found:?}");
    }
}

#[test]
fn numbers_of_a_case_keep_their_digits() {
    let world = World::new();
    let contract = "tool: a\nside_effect: read\nargument_value_invariants:\n  - { path: $.n, lte: 9007199254740992 }\n";
    let case = "steps: [{ respond: { calls: [{ tool: a, arguments: { n: 9007199254740993 } }] }, expect: [{ block: [response_format_invalid] }] }]";
    pack(&world, contract, case);
    let found = run_to_end(world.command(&["contracts", "test", "pack"]));
    assert_eq!(found.code, 0, "{found:?}");
}

#[test]
fn a_case_that_calls_nothing_and_a_folder_behind_a_link_fail() {
    let world = World::new();
    let contract = "tool: a\nside_effect: read\n";
    for case in [
        "steps: [{ respond: { calls: [] } }]",
        "steps: [{ respond: { calls: [] }, expect: [] }]",
        "steps: [{ respond: { content: \"hello\" } }]",
    ] {
        pack(&world, contract, case);
        let found = run_to_end(world.command(&["contracts", "test", "pack"]));
        assert_eq!(found.code, 1, "{case}: {found:?}");
        assert!(found.stdout.contains("shows nothing"), "{found:?}");
    }
    // Cases behind a link would silently not be run.
    pack(
        &world,
        contract,
        "steps: [{ respond: { calls: [{ tool: a }] } }]",
    );
    world.ok(&["contracts", "test", "pack"]);
    let elsewhere = world.home.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let link = world.home.path().join("pack/golden/more");
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    let refused = run_to_end(world.command(&["contracts", "test", "pack"]));
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("is a link"), "{refused:?}");
    fs::remove_file(&link).unwrap();
    let golden = world.home.path().join("pack/golden");
    fs::rename(&golden, elsewhere.join("golden")).unwrap();
    std::os::unix::fs::symlink(elsewhere.join("golden"), &golden).unwrap();
    let refused = run_to_end(world.command(&["contracts", "test", "pack"]));
    assert_eq!(refused.code, 2, "{refused:?}");
}

#[test]
fn a_case_that_cannot_be_read_fails_and_the_others_are_run() {
    let world = World::new();
    let case = "steps: [{ respond: { calls: [{ tool: a }] } }]";
    pack(&world, "tool: a\nside_effect: read\n", case);
    let golden = world.home.path().join("pack/golden");
    fs::write(golden.join("broken.yaml"), "stepz: 1\n").unwrap();
    fs::write(golden.join("wrong.yaml"), "steps: 5\n").unwrap();
    let found = run_to_end(world.command(&["contracts", "test", "pack", "--junit", "report.xml"]));
    assert_eq!(found.code, 1, "{found:?}");
    for line in ["FAIL broken", "`stepz`", "FAIL wrong", "3 cases, 2 failed"] {
        assert!(found.stdout.contains(line), "{line}: {found:?}");
    }
    let report = fs::read_to_string(world.home.path().join("report.xml")).unwrap();
    assert!(report.contains("failures=\"2\""), "{report}");
}

#[test]
fn executions_and_costs_are_part_of_a_case() {
    let world = World::new();
    let contract = "tool: a\nside_effect: read\nexecution_constraints:\n  arguments:\n    - { path: $.n, lte: 5 }\n";
    let case = "price: { input: \"1000000\", output: \"0\" }\nsteps:\n\
        \x20 - respond: { calls: [{ tool: a, arguments: { n: 9 } }], usage: { input: 1, output: 1 } }\n\
        \x20 - execute: { tool: a, refused: execution_constraint_violated }\n\
        \x20 - execute: { tool: a, arguments: { n: 1 }, refused: execution_constraint_violated }\n";
    pack(&world, contract, case);
    let session = world.home.path().join("pack/contracts/session.yaml");
    fs::write(
        &session,
        "schema_version: \"1.0\"\nsession_limits: { max_cost_per_session: 2 }\n",
    )
    .unwrap();
    let found = run_to_end(world.command(&["contracts", "test", "pack"]));
    assert_eq!(found.code, 0, "{found:?}");
    // A second and a third response: one dollar each, and the third is over the limit.
    let more = format!(
        "{case}  - respond: {{ usage: {{ input: 1, output: 0 }} }}\n  - respond: {{ usage: {{ input: 1, output: 0 }} }}\n"
    );
    pack(&world, contract, &more);
    let found = run_to_end(world.command(&["contracts", "test", "pack"]));
    assert!(found.stdout.contains("max_cost"), "{found:?}");
    let wrong = case.replace(
        "{ tool: a, refused: execution_constraint_violated }",
        "{ tool: a, outcome: success }",
    );
    pack(&world, contract, &wrong);
    let found = run_to_end(world.command(&["contracts", "test", "pack"]));
    assert!(found.stdout.contains("`a` is not run: $.n"), "{found:?}");
}

#[test]
fn a_pack_file_is_read_or_refused() {
    let world = World::new();
    pack(
        &world,
        "tool: a\nside_effect: read\n",
        "steps: [{ respond: { calls: [{ tool: a }] } }]",
    );
    let file = world.home.path().join("pack/pack.yaml");
    for (text, code) in [
        ("schema_version: \"1.0\"\nname: mine\n", 0),
        ("contracts: contracts\n", 0),
        ("pass_threshold: 0.5\n", 2),
        ("schema_version: \"2.0\"\n", 2),
        ("contracts: ../elsewhere\n", 2),
    ] {
        fs::write(&file, text).unwrap();
        let found = run_to_end(world.command(&["contracts", "test", "pack"]));
        assert_eq!(found.code, code, "{text}: {found:?}");
    }
}

#[test]
fn a_draft_names_the_tools_it_leaves_out() {
    let world = World::new();
    let tools = r#"[{"name":"find"},{"name":"a/b"},{"description":"nameless"}]"#;
    fs::write(world.home.path().join("tools.json"), tools).unwrap();
    let found = run_to_end(world.command(&["contracts", "init", "tools.json"]));
    assert_eq!(found.code, 1, "{found:?}");
    assert!(found.stdout.contains("find.yaml"), "{found:?}");
    assert!(found.stderr.contains("left out tool 2 `a/b`"), "{found:?}");
    assert!(
        found.stderr.contains("left out tool 3 `(no name)`"),
        "{found:?}"
    );
}

/// The refund desk as a server: a payment out of turn is refused, one in turn is asked about, and the record says all of it.
#[test]
fn the_example_runs_under_its_contracts() {
    let world = World::new();
    let home = world.home.path();
    for name in ["reprise.toml", "answers.yaml", "persona.yaml"] {
        fs::copy(format!("{EXAMPLE}/{name}"), home.join(name)).unwrap();
    }
    for folder in ["contracts", "desk"] {
        fs::create_dir(home.join(folder)).unwrap();
    }
    for entry in fs::read_dir(format!("{EXAMPLE}/contracts")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), home.join("contracts").join(entry.file_name())).unwrap();
    }
    let _server = world.serve_with(&["--listen", "127.0.0.1:0", "--config", "reprise.toml"]);
    world.ok(&["persona", "apply", "persona.yaml"]);
    let submit = [
        "task",
        "submit",
        "I sent order A-17 back",
        "--persona",
        "return-desk",
        "--json",
    ];
    let task = world.json(&submit)["id"].as_str().unwrap().to_owned();
    let deadline = Instant::now() + PATIENCE;
    while world.json(&["task", "get", &task, "--json"])["status"] != "AUTH_REQUIRED" {
        assert!(
            Instant::now() < deadline,
            "{}",
            world.ok(&["task", "get", &task])
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!home.join("desk/paid.txt").exists(), "nobody has approved");
    world.ok(&[
        "task",
        "answer",
        &task,
        "--approve",
        "--reason",
        "looks right",
    ]);
    let watched = world.ok(&["task", "watch", &task]);
    assert_eq!(
        fs::read_to_string(home.join("desk/paid.txt")).unwrap(),
        "A-17 20000 EUR\n"
    );
    assert!(
        watched.contains("refused by contract: illegal_phase_transition"),
        "{watched}"
    );
    assert!(watched.contains("rejected: block pay_back"), "{watched}");
    assert!(
        watched.contains("not offered: assess_return (wrong_phase)"),
        "{watched}"
    );
    let receipt = world.json(&["receipt", "show", &task, "--json"]);
    let facts = &receipt["metadata"]["governance"];
    assert_eq!(
        (&facts["allowed"], &facts["blocked"], &facts["asked"]),
        (&3.into(), &1.into(), &1.into())
    );
    fs::write(home.join("desk.json"), r#"{"role":"desk","trainee":false}"#).unwrap();
    let backtest = [
        "contracts",
        "backtest",
        "contracts",
        "--principal",
        "desk.json",
        "--json",
    ];
    // The run is judged by what the tools printed, as it was on the server: only the first call is out of turn.
    let report = world.json(&backtest);
    let counts = ["allowed", "asked", "blocked"].map(|name| report["calls"][name].clone());
    assert_eq!(
        counts,
        [2.into(), 1.into(), serde_json::Value::from(1)],
        "{report}"
    );
    // It was refused then as well: under the contracts of the run nothing differs.
    assert_eq!(report["runs_blocked"], 0, "{report}");
    assert_eq!(report["runs"][0]["first_blocked"], serde_json::Value::Null);
    assert_eq!(
        report["changes"],
        serde_json::json!({"as_before": 4, "stopped": 0, "now_asked": 0, "loosened": 0}),
        "{report}"
    );
    let strict = run_to_end(world.command(&[
        "contracts",
        "backtest",
        "contracts",
        "--principal",
        "desk.json",
        "--max-blocked",
        "0",
    ]));
    assert_eq!(strict.code, 0, "{strict:?}");
    assert!(strict.stdout.contains("4 calls as before"), "{strict:?}");
    world.ok(&["replay", &task]);
    assert_eq!(
        fs::read_to_string(home.join("desk/paid.txt"))
            .unwrap()
            .lines()
            .count(),
        1
    );
}

/// Contracts that do not hold stop the start: a server that ran without them would let everything through.
#[test]
fn contracts_that_do_not_compile_stop_the_start() {
    let world = World::new();
    let home = world.home.path();
    fs::create_dir(home.join("rules")).unwrap();
    fs::write(
        home.join("rules/pay.yaml"),
        "tool: pay\nside_effect: sideways\n",
    )
    .unwrap();
    fs::write(
        home.join("reprise.toml"),
        "[[contracts]]\nname = 'desk'\nfolder = 'rules'\n",
    )
    .unwrap();
    let mut command = world.command(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--config",
        "reprise.toml",
    ]);
    let said = testing::process::Server::start(&mut command).err().unwrap();
    assert_eq!(said.code, 2, "{said:?}");
    assert!(
        said.stderr.contains("contracts `desk` do not compile"),
        "{said:?}"
    );
    assert!(said.stderr.contains("pay.yaml:2"), "{said:?}");
}

const DESK_CONFIG: &str = r#"
[[providers]]
id = "script"
kind = "scripted"
file = "answers.yaml"

[[tools]]
name = "find"
folder = "work"
argv = ["sh", "-c", "printf '{\"ok\":true}'"]

[[tools]]
name = "pay"
folder = "work"
argv = ["sh", "-c", "printf '{}'", "{amount}"]
[tools.parameters]
type = "object"
[tools.parameters.properties]
amount = { type = "string" }
"#;

const DESK_ANSWERS: &str = r#"
answers:
  - when: { key: "llm:main:1" }
    tool_calls: [{ name: find }]
  - when: { key: "llm:main:2" }
    tool_calls: [{ name: pay, arguments: { amount: "900" } }]
  - when: { key: "llm:main:3" }
    tool_calls: [{ name: pay, arguments: { amount: "900" } }]
  - answer: done
"#;

#[test]
fn recorded_runs_are_judged_again() {
    let world = World::new();
    let write = |name: &str, text: &str| {
        let path = world.home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("reprise.toml", DESK_CONFIG);
    // Long enough to be kept beside the log.
    write(
        "answers.yaml",
        &DESK_ANSWERS.replacen("\"900\"", &format!("\"{}\"", "9".repeat(5_000)), 1),
    );
    write("work/.keep", "");
    fs::create_dir_all(world.home.path().join("runs")).unwrap();
    write(
        "payer.yaml",
        "name: payer\nversion: '1'\nentry_workflow: agent\ndescription: Pays\nautonomy_tier: act_auto\nreceipt_policy: required\ntools: [find, pay]\n",
    );
    let server = world.serve_with(&["--listen", "127.0.0.1:0", "--config", "reprise.toml"]);
    world.ok(&["persona", "apply", "payer.yaml"]);
    let submitted = world.run(&["task", "submit", "Go", "--persona", "payer", "--json"]);
    let task: serde_json::Value = serde_json::from_str(&submitted.stdout).unwrap();
    let id = task["id"].as_str().unwrap().to_owned();
    world.run(&["task", "watch", &id]);
    world.ok(&["task", "export", &id, "runs/one.bundle"]);
    world.ok(&["log", "export", "out"]);

    write("rules/find.yaml", "tool: find\nside_effect: read\n");
    write("rules/pay.yaml", "tool: pay\nside_effect: write\n");
    for place in ["runs/one.bundle", "runs", "out", "reprise-data"] {
        let report = world.json(&["contracts", "backtest", "rules", place, "--json"]);
        assert_eq!(
            report["runs"][0]["task_id"],
            id.as_str(),
            "{place}: {report}"
        );
        assert_eq!(report["calls"]["allowed"], 3, "{place}: {report}");
        assert_eq!(report["calls"]["not_judgeable"], 0, "{place}: {report}");
    }
    // A draft from what was recorded: it compiles, and says what was seen.
    for (place, out) in [("runs/one.bundle", "draft-1"), ("reprise-data", "draft-2")] {
        world.ok(&["contracts", "init", place, "--output", out]);
        world.ok(&["contracts", "check", out]);
        let pay = fs::read_to_string(world.home.path().join(out).join("pay.yaml")).unwrap();
        assert!(pay.contains("side_effect: financial # GUESS"), "{pay}");
        assert!(pay.contains("Called 2 times in 1 recorded run"), "{pay}");
        assert!(pay.contains("#   - requires_prior_tool: \"find\""), "{pay}");
        assert!(
            pay.contains(r#"path: "$[\"amount\"]", type: string"#),
            "{pay}"
        );
    }
    drop(server);
    // Stricter: a second payment is one too many.
    write(
        "rules/pay.yaml",
        "tool: pay\nside_effect: write\nforbids_after: [pay]\n",
    );
    let report = world.json(&["contracts", "backtest", "rules", "runs", "--json"]);
    let first = &report["runs"][0]["first_blocked"];
    assert_eq!(
        (&first["tool"], &first["turn"]),
        (&"pay".into(), &3.into()),
        "{report}"
    );
    assert_eq!(first["reasons"][0], "forbidden_tool");
    assert_eq!(report["runs_blocked"], 1);
    let text = run_to_end(world.command(&[
        "contracts",
        "backtest",
        "rules",
        "runs",
        "--max-blocked",
        "0",
    ]));
    assert_eq!(text.code, 1, "{text:?}");
    assert!(
        text.stdout
            .contains("1 run judged: 1 would have been stopped"),
        "{text:?}"
    );
    assert!(text.stdout.contains("forbidden_tool"), "{text:?}");
    let text = run_to_end(world.command(&[
        "contracts",
        "backtest",
        "rules",
        "runs",
        "--max-blocked",
        "1",
    ]));
    assert_eq!(text.code, 0, "{text:?}");
    // Everything lies before a date in the future; then there is nothing to judge.
    let later = run_to_end(world.command(&[
        "contracts",
        "backtest",
        "rules",
        "runs",
        "--since",
        "2999-01-01",
    ]));
    assert_eq!(later.code, 2, "{later:?}");
    // Content that is gone makes a gap: nothing behind it counts as allowed.
    fs::remove_dir_all(world.home.path().join("out/blobs")).unwrap();
    let report = world.json(&["contracts", "backtest", "rules", "out", "--json"]);
    assert!(
        !report["runs"][0]["gaps"].as_array().unwrap().is_empty(),
        "{report}"
    );
    assert!(report["calls"]["allowed"].as_u64().unwrap() < 3, "{report}");
    assert_eq!(report["calls"]["blocked"], 0, "{report}");
    let strict = [
        "contracts",
        "backtest",
        "rules",
        "out",
        "--max-not-judgeable",
        "0",
    ];
    assert_eq!(run_to_end(world.command(&strict)).code, 1);
}

#[test]
fn cases_in_folders_inside_each_other_are_run() {
    let world = World::new();
    let write = |name: &str, text: &str| {
        let path = world.home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("pack/contracts/pay.yaml", "tool: pay\nside_effect: write\n");
    let case = "steps:\n  - respond: { calls: [{ tool: pay, arguments: {} }] }\n";
    write("pack/golden/a.yaml", case);
    write("pack/golden/refunds/large/b.yaml", case);
    let ok = run_to_end(world.command(&["contracts", "test", "pack"]));
    assert_eq!(ok.code, 0, "{ok:?}");
    assert!(ok.stdout.contains("ok refunds/large/b"), "{ok:?}");
    // It is allowed: where a block is expected that is a failure.
    write("pack/golden/negative/refunds/c.yaml", case);
    let failed = run_to_end(world.command(&["contracts", "test", "pack"]));
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(
        failed.stdout.contains("FAIL negative/refunds/c"),
        "{failed:?}"
    );
    // Contracts that would not be read are refused.
    write(
        "pack/contracts/more/note.yaml",
        "tool: note\nside_effect: write\n",
    );
    let unread = run_to_end(world.command(&["contracts", "test", "pack"]));
    assert_eq!(unread.code, 2, "{unread:?}");
    assert!(unread.stderr.contains("are not read"), "{unread:?}");
}

#[test]
fn a_configuration_with_contracts_that_do_not_compile_cannot_be_used() {
    let world = World::new();
    let home = world.home.path();
    fs::create_dir(home.join("rules")).unwrap();
    let contract = home.join("rules/pay.yaml");
    fs::write(&contract, "tool: pay\nside_effect: sideways\n").unwrap();
    let config = "[[contracts]]\nname = 'desk'\nfolder = 'rules'\n";
    fs::write(home.join("reprise.toml"), config).unwrap();
    let check = ["serve", "--check-config", "--config", "reprise.toml"];
    let refused = run_to_end(world.command(&check));
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("pay.yaml:2"), "{refused:?}");
    fs::write(&contract, "tool: pay\nside_effect: write\n").unwrap();
    let taken = run_to_end(world.command(&check));
    assert_eq!(taken.code, 0, "{taken:?}");
}

#[test]
fn a_tool_that_has_the_name_of_another_file_gets_no_contract() {
    let world = World::new();
    let tools = r#"[{"name":"Session"},{"name":"workflow"},{"name":"pay"}]"#;
    fs::write(world.home.path().join("tools.json"), tools).unwrap();
    let init = run_to_end(world.command(&["contracts", "init", "tools.json", "--json"]));
    assert_eq!(init.code, 1, "{init:?}");
    let answer: serde_json::Value = serde_json::from_str(&init.stdout).unwrap();
    let names: Vec<_> = answer["left_out"]
        .as_array()
        .unwrap()
        .iter()
        .map(|left| left["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["Session", "workflow"], "{answer}");
    assert!(init.stderr.contains("rename the tool"), "{init:?}");
    world.ok(&["contracts", "check", "contracts-draft"]);
}

#[test]
fn a_workflow_is_checked_with_the_contracts_of_its_roles() {
    let world = World::new();
    let write = |name: &str, text: &str| {
        let path = world.home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let workflow = "schema_version: \"1.0\"\nworkflow: two\nroles:\n  - { name: desk, session_contract: desk/session.yaml }\n\
        \x20 - { name: payer, session_contract: payer/session.yaml }\nhandoffs: [ { from: desk, to: payer } ]\n";
    write("job/workflow.yaml", workflow);
    for role in ["desk", "payer"] {
        write(
            &format!("job/{role}/session.yaml"),
            "schema_version: \"1.0\"\n",
        );
    }
    write("job/payer/pay.yaml", "tool: pay\nside_effect: write\n");
    let report = world.json(&["contracts", "check", "job", "--json"]);
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["workflow"]["name"], "two");
    assert!(report["workflow"]["roles"]["payer"].is_string(), "{report}");
    write("job/payer/pay.yaml", "tool: pay\nside_effect: sideways\n");
    let bad = run_to_end(world.command(&["contracts", "check", "job"]));
    assert_eq!(bad.code, 1, "{bad:?}");
    assert!(bad.stdout.contains("payer/pay.yaml:2"), "{bad:?}");
    write(
        "job/workflow.yaml",
        &workflow.replace("to: payer", "to: nobody"),
    );
    let bad = run_to_end(world.command(&["contracts", "check", "job"]));
    assert_eq!(bad.code, 1, "{bad:?}");
    assert!(
        bad.stdout.contains("`nobody` is declared nowhere"),
        "{bad:?}"
    );
}
