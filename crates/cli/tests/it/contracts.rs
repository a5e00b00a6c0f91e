//! `reprise contracts`: the real program on real folders.

use std::fs;
use std::time::{Duration, Instant};

use crate::world::{PATIENCE, World, said};

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
    let found = said(world.command(&["contracts", "check", "c"]));
    assert_eq!(found.code, 1, "{found:?}");
    assert!(found.stdout.contains("c/a.yaml:2:1: error[unknown_key]: unknown key `side_effct`: did you mean `side_effect`?"), "{found:?}");
    assert!(
        found
            .stdout
            .contains("c/session.yaml:2:8: error[wrong_type]"),
        "{found:?}"
    );
    let json = said(world.command(&["contracts", "check", "c", "--json"]));
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["findings"].as_array().unwrap().len(), 3);
    assert_eq!(
        said(world.command(&["contracts", "check", "missing"])).code,
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
    let found = said(world.command(&[
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
    let text = world.ok(&["contracts", "init", "tools.json", "--output", "draft"]);
    assert_eq!(text.lines().count(), 4, "{text}");
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
    let again = said(world.command(&["contracts", "init", "tools.json", "--output", "draft"]));
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
        said(world.command(&["contracts", "explain", "d.json", "--call", "other"])).code,
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
    let said = crate::world::Server::start(&mut command).err().unwrap();
    assert_eq!(said.code, 2, "{said:?}");
    assert!(
        said.stderr.contains("contracts `desk` do not compile"),
        "{said:?}"
    );
    assert!(said.stderr.contains("pay.yaml:2"), "{said:?}");
}
