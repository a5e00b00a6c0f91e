//! What programs read: one JSON document from every command that answers, ids alone from lists, exit codes, colours.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use testing::process::{Process, Stream, run_to_end, run_with_stdin};

use crate::world::World;

fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

#[test]
fn quiet_lists_print_the_ids_alone() {
    let world = World::new();
    run_with_stdin(world.command(&["vault", "set", "token"]), "value\n");
    let _server = world.serve();
    let task = world.submit("approve");
    let session = world.json(&["task", "get", &task, "--json"]);
    let session = session["session_id"].as_str().unwrap();
    fs::write(world.home.path().join("note.txt"), "one\n").unwrap();
    let artifact = world.ok(&["artifact", "put", "note.txt", "-q"]);
    fs::write(
        world.home.path().join("p.yaml"),
        "name: p\nversion: '1'\nentry_workflow: agent\ndescription: d\nautonomy_tier: suggest\nreceipt_policy: required\n",
    )
    .unwrap();
    let persona = world.ok(&["persona", "apply", "p.yaml", "-q"]);
    assert_eq!(lines(&world.ok(&["session", "list", "-q"])), [session]);
    assert_eq!(world.ok(&["artifact", "list", "-q"]), artifact);
    assert_eq!(world.ok(&["persona", "list", "-q"]), persona);
    assert_eq!(lines(&world.ok(&["vault", "list", "-q"])), ["token"]);
    let asked = world.json(&["approvals", "list", "--json"]);
    assert_eq!(
        lines(&world.ok(&["approvals", "list", "-q"])),
        [asked[0]["id"].as_str().unwrap()]
    );
    let keys = world.json(&["key", "list", "--json"]);
    let keys: Vec<&str> = keys
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key["id"].as_str().unwrap())
        .collect();
    assert_eq!(keys.len(), 2);
    assert_eq!(lines(&world.ok(&["key", "list", "-q"])), keys);
    // A list that finds nothing prints nothing.
    assert_eq!(world.ok(&["task", "list", "--status", "failed", "-q"]), "");
}

#[test]
fn colours_are_used_where_they_are_wanted() {
    let world = World::new();
    let _server = world.serve();
    let task = world.submit("agent");
    let plain = world.ok(&["task", "get", &task]);
    assert!(!plain.contains('\u{1b}'), "{plain}");
    let painted = world.ok(&["task", "get", &task, "--color", "always"]);
    assert!(painted.contains('\u{1b}'), "{painted}");
    let mut command = world.command(&["task", "get", &task, "--color=never"]);
    command.env("CLICOLOR_FORCE", "1");
    assert!(!run_to_end(command).stdout.contains('\u{1b}'));
    assert_eq!(world.run(&["task", "list", "--color", "maybe"]).code, 2);
}

#[test]
fn ctrl_c_while_watching_ends_with_130_and_leaves_the_task_alone() {
    let world = World::new();
    let _server = world.serve();
    let task = world.submit("hold");
    let mut watching = Process::start(
        &mut world.command(&["task", "watch", &task]),
        Stream::Stdout,
    );
    watching.line().expect("the first event");
    watching.signal("INT");
    assert_eq!(watching.wait().code(), Some(130));
    let task = world.json(&["task", "get", &task, "--json"]);
    assert_eq!(task["status"], "WORKING");
}

#[test]
fn drafts_decisions_and_schemas_are_told_in_json() {
    let world = World::new();
    let tools = json!([
        {"name": "find_order", "description": "Finds", "input_schema": {"type": "object"}},
        {"name": "not a name"},
    ]);
    fs::write(world.home.path().join("tools.json"), tools.to_string()).unwrap();
    let said = world.run(&["contracts", "init", "tools.json", "-o", "drafts", "--json"]);
    assert_eq!(said.code, 1, "{said:?}");
    let mut told: Value = serde_json::from_str(&said.stdout).unwrap();
    let why = told["left_out"][0]["why"].take();
    assert!(why.as_str().unwrap().contains("letters"), "{why}");
    assert_eq!(
        told,
        json!({
            "written": ["drafts/find_order.yaml", "drafts/session.yaml"], "kept": [],
            "left_out": [{"place": 2, "name": "not a name", "why": null}],
        })
    );
    let again = world.run(&["contracts", "init", "tools.json", "-o", "drafts", "--json"]);
    let told: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(
        told["kept"],
        json!(["drafts/find_order.yaml", "drafts/session.yaml"])
    );

    let digest = format!("sha256:{}", "0".repeat(64));
    let failure = json!({
        "check": "V7", "reason": "precondition_not_met", "detail": "assess_return", "path": null, "operator": null,
        "expected": null,
    });
    let decision = json!({
        "action": "rejected", "gate": "reject_all", "attempt": 1, "stateVersion": 2, "controlRevision": 0,
        "compiled": digest, "reason": "precondition_not_met", "detail": null, "contract_file": "pay_back.yaml",
        "calls": [{"call_id": "c1", "tool_name": "pay_back", "arguments_digest": digest, "verdict": "block",
            "reason": "precondition_not_met", "all_reasons": ["precondition_not_met"], "detail": null,
            "contract_file": "pay_back.yaml", "failures": [failure]}],
    });
    fs::write(world.home.path().join("d.json"), decision.to_string()).unwrap();
    let told = world.json(&["contracts", "explain", "d.json", "--json"]);
    assert_eq!(told["action"], "rejected");
    let call = &told["calls"][0];
    assert_eq!(call["verdict"], "block");
    let check = |name: &str| {
        let checks = call["checks"].as_array().unwrap().iter();
        let mut found = checks.filter(|check| check["check"] == name);
        found.next().unwrap().clone()
    };
    assert_eq!(check("V6")["result"], "held");
    assert_eq!(check("V7")["result"], "failed");
    assert!(
        check("V7")["why"][0]
            .as_str()
            .unwrap()
            .contains("assess_return")
    );
    assert_eq!(check("V15")["result"], "not_reached");
    assert_eq!(
        world.json(&["contracts", "schema", "session", "--json"]),
        world.json(&["contracts", "schema", "session"])
    );
}

/// An auditor sees tools, decisions and tokens without reading JSON; a name that is nothing is told as that.
#[test]
fn a_receipt_is_told_in_words() {
    let world = World::new();
    let server = world.serve();
    let task = world.submit("approve");
    world.ok(&["approvals", "approve", &task, "--reason", "seen"]);
    world.ok(&["task", "watch", &task]);
    let shown = world.ok(&["receipt", "show", &task]);
    assert!(shown.contains("approved by approver"), "{shown}");
    let task = world.submit("agent");
    let shown = world.ok(&["receipt", "show", &task]);
    assert!(
        shown.contains(" read, ") && shown.contains(" written"),
        "{shown}"
    );
    drop(server);
    // What judges says no only about what it has seen.
    for (args, code) in [
        (["receipt", "show", "nope"], 1),
        (["receipt", "trust", "nope"], 2),
    ] {
        let said = world.run(&args);
        assert_eq!(said.code, code, "{said:?}");
        assert!(
            said.stderr.contains("`nope` is neither a file nor the id"),
            "{said:?}"
        );
    }
    fs::write(world.home.path().join("x.toml"), "[a]\n").unwrap();
    let said = world.run(&["receipt", "show", "x.toml"]);
    assert!(
        said.stderr.contains("`x.toml` is not a receipt"),
        "{said:?}"
    );
}

#[test]
fn a_capture_that_cannot_start_changes_nothing_and_says_what_to_do() {
    let world = World::new();
    let home = world.home.path();
    fs::write(home.join("prompt.md"), "Hello\n").unwrap();
    fs::write(home.join("report.md"), "# A report\n").unwrap();
    let capture = |more: &[&str]| {
        let args = [
            "sidecar",
            "capture",
            "--kind",
            "agent-run",
            "--input",
            "prompt=prompt.md",
            "--root",
            ".",
        ];
        world.run(&[&args, more].concat())
    };
    assert_eq!(capture(&["--report", "report.md", "--", "true"]).code, 0);
    let before = fs::read(home.join("report.replay.json")).unwrap();
    let said = capture(&["--report", "report.md", "--overwrite", "--", "nosuchcmd"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("its name and PATH"), "{said:?}");
    assert_eq!(fs::read(home.join("report.replay.json")).unwrap(), before);
    assert!(!fs::exists(home.join("report.replay.json.replaced")).unwrap());
    let said = capture(&["--report", "nope.md", "--", "sh", "-c", "exit 7"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("exit status: 7"), "{said:?}");
    let said = world.run(&["sidecar", "keygen", "report.md"]);
    assert!(said.stderr.contains("nothing is overwritten"), "{said:?}");

    // A run of a server is described by its record.
    let _server = world.serve();
    let task = world.submit("agent");
    fs::write(home.join("second.md"), "# Another\n").unwrap();
    let said = capture(&["--no-run", "--task", &task, "--report", "second.md"]);
    assert_eq!(said.code, 0, "{said:?}");
    let sidecar = fs::read_to_string(home.join("second.replay.json")).unwrap();
    let sidecar: Value = serde_json::from_str(&sidecar).unwrap();
    assert_eq!(sidecar["tool"]["name"], "reprise", "{sidecar}");
    assert_eq!(sidecar["tool"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(sidecar["finished_at"].is_string(), "{sidecar}");
    let said = capture(&["--no-run", "--report", "second.md", "--overwrite"]);
    assert!(said.stderr.contains("give --task"), "{said:?}");
}

#[test]
fn captures_and_keys_of_sidecars_are_told_in_json() {
    let world = World::new();
    let home = world.home.path();
    for args in [
        &["init", "-q"][..],
        &["config", "user.email", "a@example.org"],
        &["config", "user.name", "A"],
    ] {
        let done = Command::new("git").args(args).current_dir(home).status();
        assert!(done.unwrap().success());
    }
    fs::write(home.join("prompt.md"), "Hello\n").unwrap();
    fs::write(home.join("report.md"), "# A report\n").unwrap();
    let made = world.json(&["sidecar", "keygen", "seed.key", "--json"]);
    let public = made["public_key"].as_str().unwrap();
    assert!(public.starts_with("ed25519:"), "{made}");
    assert_eq!(made["seed_file"], "seed.key");
    let captured = world.run(&[
        "sidecar",
        "capture",
        "--kind",
        "agent-run",
        "--report",
        "report.md",
        "--input",
        "prompt=prompt.md",
        "--sign",
        "seed.key",
        "--root",
        ".",
        "--json",
        "--",
        "sh",
        "-c",
        "echo said by the command; exit 3",
    ]);
    assert_eq!(captured.code, 3, "{captured:?}");
    let told: Value = serde_json::from_str(&captured.stdout).unwrap();
    assert_eq!(told["exit_code"], 3);
    assert_eq!(told["report"], "report.md");
    let sidecar = told["sidecar"].as_str().unwrap();
    assert!(fs::exists(home.join(sidecar)).unwrap(), "{told}");
    assert!(captured.stderr.contains("said by the command"));
    let filled = world.run(&[
        "sidecar",
        "backfill",
        "--kind",
        "critique",
        "--token",
        "prompt.md",
        "--n",
        "1",
        "report.md",
        "--json",
    ]);
    let told: Value = serde_json::from_str(&filled.stdout).unwrap();
    assert_eq!(told[0]["result"], "skipped", "{told}");
}
