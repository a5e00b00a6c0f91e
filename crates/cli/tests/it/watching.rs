//! `reprise task watch`: every event once, also across a crash of the server.

use serde_json::Value;
use testing::process::{Process, Stream};

use crate::world::World;

/// Starts to watch and returns the watcher with the ids it has told until `kind` came.
fn watch_until(world: &World, task: &str, kind: &str) -> (Process, Vec<String>) {
    let mut watching = Process::start(
        &mut world.command(&["task", "watch", task, "--json"]),
        Stream::Stdout,
    );
    let mut ids = Vec::new();
    loop {
        let event = read(&watching.line().expect("the watch goes on"));
        ids.push(event["id"].as_str().unwrap().to_owned());
        if event["event"] == kind {
            return (watching, ids);
        }
    }
}

fn read(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}

/// What a watcher is told who comes when all is over.
fn history(world: &World, task: &str) -> Vec<String> {
    let said = world.run(&["task", "watch", task, "--json"]);
    said.stdout
        .lines()
        .map(|line| read(line)["id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn ap_sse_05_a_watch_goes_on_where_a_killed_server_left_it() {
    let world = World::new();
    let server = world.serve();
    let address = server.address();
    let task = world.submit("ask");
    let (mut watching, mut ids) = watch_until(&world, &task, "task.input_required");
    server.kill();
    let _server = world.serve_with(&["--listen", &address]);
    world.ok(&["task", "answer", &task, "Go on"]);
    while let Some(line) = watching.line() {
        ids.push(read(&line)["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(watching.wait().code(), Some(0));
    assert_eq!(ids, history(&world, &task));
}

/// The life of a replay is told in words, whichever way it ends.
#[test]
fn a_watch_of_a_replay_shows_no_json() {
    let world = World::new();
    let _server = world.serve();
    let task = world.submit("agent");
    world.ok(&["task", "watch", &task]);
    let calls = r#"{"choices":[{"message":{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"x","arguments":"{}"}}]}}]}"#;
    std::fs::write(world.home.path().join("calls.json"), calls).unwrap();
    for (args, words) in [
        (
            ["--mode", "exact"],
            ["exact of task_", "the same result as the source"],
        ),
        (
            ["--override", "llm:main:1=calls.json"],
            ["with_overrides of task_", "replay_dependency_unavailable: "],
        ),
    ] {
        let replay = world.run(&[&["replay", &task, "--json"][..], &args].concat());
        let replay = read(&replay.stdout);
        let said = world.run(&["task", "watch", replay["task_id"].as_str().unwrap()]);
        for word in words {
            assert!(said.stdout.contains(word), "no `{word}`: {}", said.stdout);
        }
        assert!(!said.stdout.contains("{\""), "{}", said.stdout);
    }
}

#[test]
fn a_watch_of_a_canceled_task_ends_with_1_after_a_drain_and_a_restart() {
    let world = World::new();
    let server = world.serve();
    let address = server.address();
    let task = world.submit("hold");
    let (mut watching, mut ids) = watch_until(&world, &task, "vendor.effect_requested");
    let (status, _) = server.stop();
    assert_eq!(status.code(), Some(0));
    let _server = world.serve_with(&["--listen", &address]);
    world.ok(&["task", "cancel", &task]);
    while let Some(line) = watching.line() {
        ids.push(read(&line)["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(watching.wait().code(), Some(1));
    assert_eq!(ids, history(&world, &task));
}

#[test]
fn submit_and_watch_in_one_command_shows_one_line_per_event() {
    let world = World::new();
    let _server = world.serve();
    let said = world.run(&["task", "submit", "Hello", "--watch"]);
    assert_eq!(said.code, 0, "{said:?}");
    let kinds: Vec<&str> = said
        .stdout
        .lines()
        .map(|line| line.split_whitespace().nth(1).unwrap())
        .collect();
    insta::assert_snapshot!(kinds.join("\n"));
    assert!(said.stderr.contains("COMPLETED"), "{said:?}");
}
