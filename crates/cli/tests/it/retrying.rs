//! Taking a run up again: `task retry`, and replays that are asked to go on live.

use std::fs;

use serde_json::{Value, json};

use crate::world::{Server, World};

const CONFIG: &str = r#"
[[providers]]
id = "script"
kind = "scripted"
file = "answers.yaml"

[[tools]]
name = "note"
description = "Writes a line."
argv = ["sh", "-c", "echo done >> notes.txt; echo noted"]
folder = "files"
"#;

const PERSONA: &str = "name: writer\nversion: '1'\nentry_workflow: agent\ndescription: Writes notes\n\
    autonomy_tier: act_auto\nreceipt_policy: required\nsystem_prompt: You write.\n\
    model: { provider: script }\ntools: [note]\n";

const FIRST: &str = "answers:\n  - when: { key: \"llm:main:1\" }\n    answer: Let me note that.\n    tool_calls:\n      \
    - name: note\n        arguments: {}\n";

fn serve(world: &World, second: &str) -> Server {
    let answers = format!("{FIRST}  - {second}\n");
    fs::write(world.home.path().join("answers.yaml"), answers).unwrap();
    world.serve_with(&["--listen", "127.0.0.1:0", "--config", "reprise.toml"])
}

fn world() -> World {
    let world = World::new();
    let home = world.home.path();
    fs::write(home.join("reprise.toml"), CONFIG).unwrap();
    fs::write(home.join("writer.yaml"), PERSONA).unwrap();
    fs::create_dir(home.join("files")).unwrap();
    world
}

fn notes(world: &World) -> usize {
    let text = fs::read_to_string(world.home.path().join("files/notes.txt"));
    text.unwrap_or_default().lines().count()
}

const DOWN: &str = "error: { code: provider_error, message: overloaded, status: 500 }";
const UP: &str = "answer: It is noted.";

fn submit(world: &World) -> Value {
    let said = world.run(&["task", "submit", "Note it", "--persona", "writer", "--json"]);
    serde_json::from_str(&said.stdout).unwrap()
}

#[test]
fn u8_a_run_that_failed_goes_on_from_its_checkpoint_and_repeats_nothing() {
    let world = world();
    let server = serve(&world, DOWN);
    world.ok(&["persona", "apply", "writer.yaml"]);
    let failed = submit(&world);
    let task = failed["id"].as_str().unwrap();
    world.run(&["task", "watch", task]);
    assert_eq!(
        world.json(&["task", "get", task, "--json"])["status"],
        "FAILED"
    );
    assert_eq!(notes(&world), 1);

    // Still down: the attempt fails as well, and the tool is not used again.
    let said = world.run(&["task", "retry", task, "--watch"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert_eq!(notes(&world), 1);
    server.stop();

    let server = serve(&world, UP);
    let said = world.run(&[
        "task",
        "retry",
        task,
        "--reason",
        "the provider is back",
        "--json",
    ]);
    assert_eq!(said.code, 0, "{said:?}");
    let again: Value = serde_json::from_str(&said.stdout).unwrap();
    let id = again["id"].as_str().unwrap();
    world.run(&["task", "watch", id]);
    let again = world.json(&["task", "get", id, "--json"]);
    assert_eq!(again["status"], "COMPLETED", "{again}");
    assert_eq!(again["parent_task_id"], task);
    assert_eq!(again["metadata"]["reason"], "the provider is back");
    assert_eq!(notes(&world), 1, "what was done is served from the record");
    let told = world.ok(&["task", "show", id]);
    assert!(told.contains("It is noted."), "{told}");

    // What did not fail is not taken up.
    let done = submit(&world);
    let done = done["id"].as_str().unwrap();
    world.ok(&["task", "watch", done]);
    let said = world.run(&["task", "retry", done]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("only a task that failed"), "{said:?}");
    world.ok(&["log", "verify"]);
    server.stop();
}

#[test]
fn u8_a_refresh_that_asked_nothing_says_so_and_one_from_a_key_asks() {
    let world = world();
    let _server = serve(&world, UP);
    world.ok(&["persona", "apply", "writer.yaml"]);
    let task = submit(&world);
    let task = task["id"].as_str().unwrap();
    world.ok(&["task", "watch", task]);
    let said = world.run(&["replay", task, "--refresh", "model"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("nothing was asked"), "{said:?}");
    let said = world.run(&[
        "replay",
        task,
        "--refresh",
        "model",
        "--refresh-from",
        "llm:main:2",
        "--json",
    ]);
    assert_eq!(said.code, 0, "{said:?}");
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(report["refreshed"], json!(["llm:main:2"]));
    assert_eq!(notes(&world), 1);
    let said = world.run(&[
        "replay",
        task,
        "--refresh",
        "model",
        "--refresh-from",
        "llm:main:9",
    ]);
    assert_ne!(said.code, 0, "{said:?}");
    // A request in a file and flags go together.
    fs::write(
        world.home.path().join("request.json"),
        r#"{"mode": "with_overrides"}"#,
    )
    .unwrap();
    let args = [
        "replay",
        task,
        "--request",
        "request.json",
        "--refresh",
        "model",
        "--refresh-from",
        "llm:main:2",
    ];
    assert_eq!(world.run(&args).code, 0);
}

#[test]
fn a_key_that_the_run_does_not_have_changes_nothing_and_leaves_nothing() {
    let world = world();
    let _server = serve(&world, UP);
    world.ok(&["persona", "apply", "writer.yaml"]);
    let task = submit(&world);
    let task = task["id"].as_str().unwrap();
    world.ok(&["task", "watch", task]);
    let count = || {
        world
            .json(&["task", "list", "--json"])
            .as_array()
            .unwrap()
            .len()
    };
    let before = count();
    let said = world.run(&["replay", task, "--set", "llm:main:9=bar"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stderr.contains("the run has no `llm:main:9`"),
        "{said:?}"
    );
    assert_eq!(count(), before);
    world.ok(&["task", "export", task, "run.bundle"]);
    let said = world.run(&[
        "replay",
        "--bundle",
        "run.bundle",
        "--set",
        "llm:main:9=bar",
    ]);
    assert_eq!(said.code, 1, "{said:?}");
    world.ok(&["replay", task, "--set", "llm:main:2=Other"]);
}
