//! Taking a run up again: `task retry`, and replays that are asked to go on live.

use std::fs;

use serde_json::{Value, json};
use testing::process::Server;

use crate::world::World;

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
fn u8_a_run_that_goes_on_tells_the_shared_memory_what_it_came_to() {
    let world = world();
    let server = serve(&world, DOWN);
    let persona = format!("{PERSONA}memory: field\n");
    fs::write(world.home.path().join("writer.yaml"), persona).unwrap();
    world.ok(&["persona", "apply", "writer.yaml"]);
    world.ok(&["field", "register", "ann", "--role", "analyst"]);
    let failed = submit(&world);
    let task = failed["id"].as_str().unwrap();
    world.run(&["task", "watch", task]);
    server.stop();

    let server = serve(&world, UP);
    let said = world.run(&["task", "retry", task, "--json"]);
    let again: Value = serde_json::from_str(&said.stdout).unwrap();
    let id = again["id"].as_str().unwrap();
    world.run(&["task", "watch", id]);
    let again = world.json(&["task", "get", id, "--json"]);
    assert_eq!(again["status"], "COMPLETED", "{again}");
    assert_eq!(notes(&world), 1, "what was done is served from the record");
    let told = world.json(&["field", "replay", "task", id, "--agent", "ann", "--json"]);
    assert_eq!(told["timeline"][0]["event_type"], "RECORD", "{told}");
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
        said.stderr.contains("the run never asks for `llm:main:9`"),
        "{said:?}"
    );
    assert_eq!(count(), before);

    // The same in a session, by an artifact, and with a key that may not see everything.
    let session = world.json(&["task", "get", task, "--json"])["session_id"].clone();
    let session = session.as_str().unwrap();
    fs::write(world.home.path().join("answer.json"), "{}").unwrap();
    let artifact = world.ok(&["artifact", "put", "answer.json", "-q"]);
    let by_artifact = format!("{task}/llm:main:9={}", artifact.trim());
    let by_text = format!("{task}/llm:main:9=bar");
    let mut little = vec!["key", "create", "--actor", "little", "-q"];
    for scope in [
        "tasks:read",
        "tasks:write",
        "events:read",
        "sessions:read",
        "sessions:write",
        "artifacts:read",
    ] {
        little.extend(["--scope", scope]);
    }
    let little = world.ok(&little);
    let forks: [&[&str]; 3] = [
        &["replay", session, "--set", &by_text],
        &["replay", session, "--override-artifact", &by_artifact],
        &["replay", session, "--set", &by_text, "--key", little.trim()],
    ];
    for args in forks {
        let said = world.run(args);
        assert_eq!(said.code, 1, "{args:?}: {said:?}");
        assert!(
            said.stderr.contains("never asks for `llm:main:9`"),
            "{args:?}: {said:?}"
        );
        assert_eq!(count(), before, "{args:?}");
    }
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

const ASKS: &str = "name: asker\nversion: '1'\nentry_workflow: agent\ndescription: Asks first\n\
    autonomy_tier: act_with_approval\nreceipt_policy: required\nsystem_prompt: You write.\n\
    model: { provider: script }\ntools: [note]\n";

fn asking_world() -> World {
    let world = world();
    let home = world.home.path();
    fs::write(home.join("asker.yaml"), ASKS).unwrap();
    world
}

fn call(key: &str, tool: &str) -> String {
    format!(
        "when: {{ key: \"{key}\" }}\n    answer: One more.\n    tool_calls:\n      - name: {tool}\n        arguments: {{}}\n"
    )
}

fn serve_answers(world: &World, answers: &[String]) -> Server {
    let answers: String = answers
        .iter()
        .map(|answer| format!("  - {answer}\n"))
        .collect();
    fs::write(
        world.home.path().join("answers.yaml"),
        format!("answers:\n{answers}"),
    )
    .unwrap();
    world.serve_with(&["--listen", "127.0.0.1:0", "--config", "reprise.toml"])
}

fn until(world: &World, task: &str, status: &str) -> Value {
    let mut shown = Value::Null;
    for _ in 0..600 {
        shown = world.json(&["task", "get", task, "--json"]);
        if shown["status"] == status {
            return shown;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{task} stays {shown}");
}

fn start(world: &World) -> String {
    world.ok(&["persona", "apply", "asker.yaml"]);
    let said = world.run(&["task", "submit", "Note it", "--persona", "asker", "--json"]);
    let task: Value = serde_json::from_str(&said.stdout).unwrap();
    task["id"].as_str().unwrap().to_owned()
}

/// U8: what was approved in the failed run was about that run; a next step that needs consent asks for it, and goes on,
/// whatever happens to the server meanwhile.
#[test]
fn u8_a_run_that_is_taken_up_again_asks_for_what_it_does_next() {
    let world = asking_world();
    let down = format!("when: {{ key: \"llm:main:2\" }}\n    {DOWN}");
    let server = serve_answers(&world, &[call("llm:main:1", "note"), down]);
    let task = start(&world);
    until(&world, &task, "AUTH_REQUIRED");
    world.ok(&["task", "answer", &task, "--approve", "--reason", "go"]);
    until(&world, &task, "FAILED");
    assert_eq!(notes(&world), 1);
    server.stop();

    let answers = [
        call("llm:main:1", "note"),
        call("llm:main:2", "note"),
        format!("when: {{ key: \"llm:main:3\" }}\n    {UP}"),
    ];
    let server = serve_answers(&world, &answers);
    let said = world.run(&["task", "retry", &task, "--json"]);
    let again: Value = serde_json::from_str(&said.stdout).unwrap();
    let again = again["id"].as_str().unwrap();
    until(&world, again, "AUTH_REQUIRED");
    let waiting = world.json(&["approvals", "list", "--json"]);
    assert_eq!(waiting.as_array().map(Vec::len), Some(1), "{waiting}");
    assert_eq!(waiting[0]["task_id"], again);
    assert_eq!(notes(&world), 1, "nothing is done before somebody consents");
    server.kill();

    let server = serve_answers(&world, &answers);
    until(&world, again, "AUTH_REQUIRED");
    world.ok(&[
        "task",
        "answer",
        again,
        "--approve",
        "--reason",
        "once more",
    ]);
    let done = until(&world, again, "COMPLETED");
    assert_eq!(done["parent_task_id"], task);
    assert_eq!(notes(&world), 2, "the first note is served from the record");
    let told = world.ok(&["task", "show", again]);
    assert!(
        told.contains("once more") && told.contains("It is noted."),
        "{told}"
    );
    world.ok(&["receipt", "verify", again]);
    world.ok(&["log", "verify"]);
    server.stop();
}
