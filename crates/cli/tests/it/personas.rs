//! `reprise persona` against a real server.

use serde_json::json;
use testing::process::run_with_stdin;

use crate::world::World;

const FILE: &str = "\
name: reviewer
version: 1
entry_workflow: ask
description: Reviews a change
autonomy_tier: suggest
receipt_policy: required
system_prompt: |
  You review changes.
  Be brief.
tools: []
limits: {steps_max: 8}
";

fn write(world: &World, name: &str, text: &str) {
    std::fs::write(world.home.path().join(name), text).unwrap();
}

#[test]
fn a_persona_is_applied_listed_shown_and_run() {
    let world = World::new();
    let _server = world.serve();
    write(&world, "reviewer.yaml", FILE);
    let said = world.run(&["persona", "apply", "reviewer.yaml"]);
    assert_eq!(said.code, 0, "{said:?}");
    let (id, name) = said.stdout.trim().split_once("  ").unwrap();
    assert_eq!(name, "reviewer@1");
    assert!(said.stderr.contains("--persona reviewer\n"), "{said:?}");

    // The same again, by the same content in another format.
    let again = world.json(&["persona", "apply", "reviewer.yaml", "--json"]);
    assert_eq!(again["id"], id);
    let toml = "name = 'reviewer'\nversion = '1'\nentry_workflow = 'ask'\ndescription = 'Reviews a change'\n\
        autonomy_tier = 'suggest'\nreceipt_policy = 'required'\nsystem_prompt = \"You review changes.\\nBe brief.\\n\"\n\
        tools = []\nlimits = {steps_max = 8}\n";
    write(&world, "reviewer.toml", toml);
    let again = world.json(&["persona", "apply", "reviewer.toml", "--json"]);
    assert_eq!(again["id"], id);

    // Another content needs another version.
    write(&world, "other.yml", &FILE.replace("Be brief", "Be long"));
    let said = world.run(&["persona", "apply", "other.yml"]);
    assert_eq!((said.code, said.stdout.as_str()), (1, ""), "{said:?}");
    assert!(said.stderr.contains("another `version`"), "{said:?}");
    let command = world.command(&["persona", "apply", "-", "--json"]);
    let next = run_with_stdin(command, &FILE.replace("version: 1", "version: 2"));
    assert_eq!(next.code, 0, "{next:?}");
    let next: serde_json::Value = serde_json::from_str(&next.stdout).unwrap();

    let table = world.ok(&["persona", "list"]);
    assert!(table.starts_with("PERSONA "), "{table}");
    assert_eq!(table.lines().count(), 3, "{table}");
    let listed = world.json(&["persona", "list", "--json"]);
    assert_eq!(listed[0]["id"], id);
    let one = world.run(&["persona", "list", "--limit", "1"]);
    assert!(one.stderr.contains("there are more"), "{one:?}");

    for (words, version) in [(id, "1"), ("reviewer@1", "1"), ("reviewer", "2")] {
        let shown = world.json(&["persona", "show", words, "--json"]);
        assert_eq!(shown["version"], version, "{words}");
    }
    let shown = world.ok(&["persona", "show", "reviewer@1"]);
    for word in [id, "reviewer", "suggest", "Be brief."] {
        assert!(shown.contains(word), "{shown}");
    }

    // Its workflow asks; its name means the newest version.
    for (words, persona) in [("reviewer@1", json!(id)), ("reviewer", next["id"].clone())] {
        let task = world.json(&["task", "submit", "Look", "--persona", words, "--json"]);
        assert_eq!(task["persona_id"], persona);
        assert_eq!(task["status"], "INPUT_REQUIRED");
    }
    // A caller cannot choose another one.
    let other = [
        "task",
        "submit",
        "Look",
        "--persona",
        id,
        "--workflow",
        "agent",
    ];
    let refused = world.run(&other);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("run `ask`"), "{refused:?}");
    let task = world.json(&["task", "submit", "Look", "--persona", id, "--json"]);
    let shown = world.ok(&["task", "get", task["id"].as_str().unwrap()]);
    assert!(shown.contains("reviewer@1"), "{shown}");
}

#[test]
fn wrong_files_and_names_are_errors_with_a_line_and_a_hint() {
    let world = World::new();
    let _server = world.serve();
    write(&world, "typo.yaml", &FILE.replace("tools:", "tolls:"));
    write(&world, "tier.yaml", &FILE.replace("suggest", "suggests"));
    write(&world, "twice.yaml", &format!("{FILE}name: x\n"));
    write(&world, "flow.yaml", &FILE.replace("ask", "none-such"));
    write(&world, "short.yaml", "name: x\n");
    write(&world, "broken.json", "{\n  \"name\": \"x\",\n}");
    write(&world, "broken.toml", "name = 'x'\nversion = 1\n");
    write(&world, "persona.txt", FILE);
    let commands: [&[&str]; 13] = [
        &["persona", "apply", "typo.yaml"],
        &["persona", "apply", "tier.yaml"],
        &["persona", "apply", "twice.yaml"],
        &["persona", "apply", "flow.yaml"],
        &["persona", "apply", "short.yaml"],
        &["persona", "apply", "broken.json"],
        &["persona", "apply", "broken.toml"],
        &["persona", "apply", "persona.txt"],
        &["persona", "apply", "absent.yaml"],
        &["persona", "show", "nobody"],
        &["persona", "show", "nobody@1"],
        &["task", "submit", "x", "--persona", "nobody"],
        &["task", "submit", "x", "--persona", "persona_none"],
    ];
    let mut texts = String::new();
    for command in commands {
        let said = world.run(command);
        // What is not there is an answer; what is wrong is a fault.
        let is_missing = command
            .iter()
            .any(|word| word.contains("nobody") || word.contains("none"));
        let code = if is_missing { 1 } else { 2 };
        assert_eq!((said.code, said.stdout.as_str()), (code, ""), "{said:?}");
        assert!(
            said.stderr.starts_with("error: ") && said.stderr.contains("\nhint: "),
            "{said:?}"
        );
        texts.push_str(&format!(
            "$ reprise {}\n{}\n",
            command.join(" "),
            said.stderr
        ));
    }
    insta::assert_snapshot!(texts);
    assert_eq!(world.json(&["persona", "list", "--json"]), json!([]));
}

/// AP-PERS-05: the log of a task without a receipt is whole, verifies and rebuilds.
#[test]
fn a_log_with_personas_and_without_receipts_verifies_and_rebuilds() {
    let world = World::new();
    let server = world.serve();
    let silent = FILE
        .replace("required", "disabled")
        .replace("ask", "agent")
        .replace("Be brief.", &"Be brief. ".repeat(1_000));
    write(&world, "silent.yaml", &silent);
    let persona = world.json(&["persona", "apply", "silent.yaml", "--json"]);
    assert_eq!(persona["receipt_policy"], "disabled");
    let task = world.json(&["task", "submit", "x", "--persona", "reviewer", "--json"]);
    assert_eq!(task["status"], "COMPLETED");
    assert_eq!(task.get("receipt_id"), Some(&serde_json::Value::Null));
    let watched = world.run(&["task", "watch", task["id"].as_str().unwrap()]);
    assert_eq!(watched.code, 0, "{watched:?}");
    let said = world.run(&["receipt", "show", task["id"].as_str().unwrap()]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("ended without a receipt"), "{said:?}");
    world.submit("agent");
    drop(server);
    for command in ["verify", "rebuild"] {
        world.ok(&["log", command]);
    }
    world.ok(&["log", "export", "out"]);
    let verified = world.ok(&["receipt", "verify", "--bundle", "out", "--unsigned"]);
    assert!(
        verified.contains("1 task ran under a persona"),
        "{verified}"
    );
}
