//! Crash recovery: the engine is stopped after every commit of a long run and its replays, in turn. What comes out must
//! be what comes out undisturbed.

use std::collections::BTreeMap;
use std::sync::Arc;

use canon::Value;
use domain::{Egress, Event, Observed, Status, TaskId};
use engine::port::{MemoryStore, Store};
use engine::{Idempotency, InputSpec, NewSession, NewTask, Refused, Request, Settle};
use runs::workflow::EffectOutcome;
use serde_json::json;

use crate::hand::Hand;
use crate::rig::{Finished, Outside, World, registry, replay_request, two_tools, unsigned, with};
use crate::support::text;

fn outside() -> Arc<Outside> {
    let outside = Outside::new();
    outside
        .tools(two_tools())
        .uses(
            "llm:main:1",
            &[
                ("a", "look", r#"{"n":1}"#),
                ("b", "look", r#"{"n":2}"#),
                ("c", "look", r#"{"n":3}"#),
            ],
        )
        .answer("mcp:eyes:main:1", json!({"seen": 1}))
        .answer("mcp:eyes:main:2", json!({"seen": "x".repeat(5_000)}))
        .fails("mcp:eyes:main:3", "timeout")
        .dawdle("mcp:eyes:main:1", 9)
        .dawdle("mcp:eyes:main:3", 4)
        .uses("llm:main:2", &[("d", "send", "{}"), ("e", "look", "{}")])
        .answer("host:tool.send:main:1", json!({"sent": true}))
        .dawdle("host:tool.send:main:1", 3)
        .answer("mcp:eyes:main:4", json!({"seen": 4}))
        .uses(
            "llm:main:3",
            &[("f", "dig", "{}"), ("g", "look", "{broken")],
        )
        .says("llm:main:4", "all done");
    outside
}

/// What the client of this test wants, whatever happens in between: it repeats itself under its keys.
async fn wanted(world: &World) -> Vec<Finished> {
    let persona = world
        .persona(json!({"tools": ["look", "send"], "autonomy_tier": "act_with_approval", "memory": "session"}))
        .await;
    let session = Request::CreateSession(NewSession {
        workspace_id: None,
        mode_id: None,
        persona_id: None,
        model_policy: None,
        initial_messages: vec![text("earlier")],
        metadata: canon::Map::new(),
    });
    let session = ask(world, "session", session).await.unwrap();
    let task = Request::SubmitTask(NewTask {
        session_id: domain::SessionId::parse(&session).unwrap(),
        workspace_id: None,
        persona_id: Some(persona),
        branch_id: None,
        parent_task_id: None,
        input: InputSpec::Message(text("go")),
        metadata: canon::Map::new(),
    });
    let source = TaskId::parse(&ask(world, "task", task).await.unwrap()).unwrap();
    loop {
        let task = world.task(&source).await;
        if task.status.is_terminal() {
            break;
        }
        if let (Status::AuthRequired, Some(id)) = (task.status, task.waits_for) {
            let request = Request::RespondPermission {
                id,
                approved: Some(true),
                answer: None,
                remarks: canon::Map::new(),
            };
            // The Task may have gone on in between.
            ask(world, "answer", request).await.ok();
        }
        tokio::task::yield_now().await;
    }
    let mut finished = vec![world.ended(&source).await];
    let changed = with(&[("mcp:eyes:main:1", "mcp_tool_return", json!({"seen": 7}))]);
    let mut live = with(&[("mcp:eyes:main:4", "mcp_tool_return", json!({"seen": 8}))]);
    live["refresh"] = json!(["model", "tools"]);
    for (key, body) in [("exact", json!({})), ("changed", changed), ("live", live)] {
        let id = ask(world, key, replay_request(&source, body, false))
            .await
            .unwrap();
        finished.push(world.ended(&TaskId::parse(&id).unwrap()).await);
    }
    finished
}

pub(crate) async fn ask(world: &World, key: &str, request: Request) -> Result<Box<str>, Refused> {
    let idempotency = Idempotency {
        key: key.to_owned(),
        method: "POST".to_owned(),
        target: "/test".to_owned(),
        body: json!({"key": key}),
    };
    let caller = crate::support::caller_of(&request);
    let answer = world
        .engine
        .dispatch(&caller, request, Some(idempotency), Settle::Window)
        .await?;
    Ok(answer.view.document.id)
}

/// Logs as they can be compared: ids, positions and digests by the order in which they first appear, without what a
/// recovery adds: the step back from waiting and the one into it again, wherever these are told.
fn normal(tasks: &[Finished]) -> Vec<String> {
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut recovery: Vec<String> = Vec::new();
    let mut lines = Vec::new();
    for task in tasks {
        for event in &task.events {
            let told = event
                .replay
                .as_ref()
                .and_then(|mark| mark.original_event_id.as_deref());
            if told.is_some_and(|original| recovery.iter().any(|id| id == original)) {
                continue;
            }
            if event.payload.get("reason").and_then(Value::as_str) == Some("recovered") {
                recovery.push(event.id.to_string());
                continue;
            }
            lines.push(line(event, &mut names));
        }
    }
    lines
}

fn line(event: &Event, names: &mut BTreeMap<String, usize>) -> String {
    let mut payload = (*event.payload).clone();
    for member in ["input_position", "record", "events_replayed"] {
        payload.remove(member);
    }
    let mut value = json!({
        "kind": event.kind,
        "object": event.resource.object,
        "resource": event.resource.id,
        "actor": event.actor,
        "payload": payload,
        "replay": event.replay,
        "receipt_id": event.receipt_id,
    });
    rename(&mut value, names);
    value.to_string()
}

fn rename(value: &mut Value, names: &mut BTreeMap<String, usize>) {
    match value {
        Value::String(text) => {
            let mut digits = 0;
            let is_id = text.starts_with("sha256:")
                || text.bytes().any(|byte| {
                    digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
                    digits == 8
                });
            if is_id {
                let next = names.len();
                let number = *names.entry(text.clone()).or_insert(next);
                *text = format!("#{number}");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, names)),
        Value::Object(map) => map.values_mut().for_each(|item| rename(item, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Runs everything and keeps what the store held after each commit.
fn undisturbed(outside: &Arc<Outside>) -> (World, Vec<MemoryStore>, Vec<Finished>) {
    let mut hand = Hand::default();
    let spawner = hand.spawner();
    let world = hand.turn(
        World::spawning(Arc::clone(outside), spawner, registry("1")),
        || {},
    );
    let mut snapshots = vec![world.store.reopened()];
    let mut head = world.store.head();
    let finished = hand.turn(wanted(&world), || {
        if world.store.head() != head {
            head = world.store.head();
            snapshots.push(world.store.reopened());
        }
    });
    (world, snapshots, finished)
}

/// Effects of a Task: those with a result, and those that were meant.
fn effects(events: &[Event]) -> (Vec<String>, Vec<String>) {
    let of = |kind: &str| {
        events
            .iter()
            .filter(|event| &*event.kind == kind)
            .map(|event| event.payload["effect_key"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    (of("vendor.effect_recorded"), of("vendor.effect_requested"))
}

/// AP-TASK-04. A finished effect is never performed twice; one whose result is unknown is repeated if that does no harm,
/// and otherwise ends the Task by name.
#[test]
fn every_crash_of_a_long_run_ends_as_if_there_had_been_none() {
    let (world, snapshots, expected) = undisturbed(&outside());
    let statuses: Vec<Status> = expected.iter().map(|task| task.status).collect();
    assert_eq!(statuses, [Status::Completed; 4]);
    let lines = normal(&expected);
    assert!(snapshots.len() > 20, "{} commits", snapshots.len());
    let source = expected[0].id.clone();
    let key = "host:tool.send:main:1";
    let (mut waited, mut unknown) = (0, 0);
    for (number, snapshot) in snapshots.into_iter().enumerate() {
        let second_life = outside();
        let mut hand = Hand::default();
        let events = hand.turn(world.resumed_log(&snapshot, &source), || {});
        let waits = |event: &Event| event.payload.get("to") == Some(&json!("AUTH_REQUIRED"));
        waited += u32::from(events.last().is_some_and(waits));
        let (recorded, requested) = effects(&events);
        let resumed = hand.turn(
            world.resumed_on(snapshot, &second_life, hand.spawner()),
            || {},
        );
        let finished = hand.turn(wanted(&resumed), || {});
        let calls = second_life.calls();
        let acted = calls.iter().filter(|call| *call == key).count();
        let is_done = recorded.iter().any(|done| done == key);
        // The replay of whatever came out is that, exactly.
        assert_eq!(finished[1].status, finished[0].status, "commit {number}");
        assert_eq!(
            finished[1].payload("replay.completed")["result_equal"],
            true
        );
        if requested.iter().any(|meant| meant == key) && !is_done {
            unknown += 1;
            assert_eq!(finished[0].status, Status::Failed, "commit {number}");
            let failure = &finished[0].payload("task.failed")["failure"];
            assert_eq!(failure["code"], "effect_result_unknown");
            assert_eq!(failure["details"]["effect_key"], key);
            assert_eq!(acted, 0, "commit {number}");
            continue;
        }
        let found = normal(&finished);
        for (line, (expected, found)) in lines.iter().zip(&found).enumerate() {
            assert_eq!(found, expected, "crash after commit {number}, line {line}");
        }
        assert_eq!(found.len(), lines.len(), "crash after commit {number}");
        assert_eq!(acted, usize::from(!is_done), "commit {number}");
        // The live replay performs some of these once more, in its own name.
        let live = effects(&finished[3].events).0;
        for key in calls {
            let again = recorded.contains(&key) && !live.contains(&key);
            assert!(
                !again,
                "crash after commit {number}: {key} was performed twice"
            );
        }
    }
    assert!(waited > 0, "some crash hit a task that waited");
    assert!(
        unknown > 0,
        "some crash hit an effect that cannot be repeated"
    );
}

/// Live replays perform things too: each result is in the log before the next effect begins, and what cannot be
/// repeated is not.
#[test]
fn a_live_replay_performs_nothing_twice() {
    let script = || {
        let outside = outside();
        outside
            .uses("llm:main:3", &[("x", "send", "{}"), ("y", "send", "{}")])
            .perform_as(
                "host:tool.send:main:2",
                EffectOutcome {
                    observed: Some(Observed {
                        network_egress: vec![Egress {
                            destination: "example.org".to_owned(),
                            purpose: "tool".to_owned(),
                            bytes_sent: Some(2),
                        }],
                        ..Observed::default()
                    }),
                    ..EffectOutcome::ok(json!({"sent": 2}))
                },
            )
            .answer("host:tool.send:main:3", json!({"sent": 3}))
            .dawdle("host:tool.send:main:2", 3)
            .dawdle("host:tool.send:main:3", 3);
        outside
    };
    let mut hand = Hand::default();
    let spawner = hand.spawner();
    let outside = script();
    let world = hand.turn(
        World::spawning(Arc::clone(&outside), spawner, registry("1")),
        || {},
    );
    // Without approvals this time: a live run can ask nobody.
    outside
        .uses("llm:main:3", &[("g", "look", "{}")])
        .answer("mcp:eyes:main:5", json!(5));
    let source = hand.turn(world.agent(json!({"tools": ["look", "send"]}), "go"), || {});
    assert_eq!(source.status, Status::Completed);
    let begin = world.store.reopened();
    let mut body = with(&[("mcp:eyes:main:4", "mcp_tool_return", json!({"seen": 8}))]);
    body["refresh"] = json!(["model", "tools"]);
    let mut snapshots = Vec::new();
    let live = script();
    let mut hand = Hand::default();
    let first = hand.turn(world.resumed_on(begin, &live, hand.spawner()), || {});
    let mut head = first.store.head();
    let expected = hand.turn(first.replay(&source.id, body), || {
        if first.store.head() != head {
            head = first.store.head();
            snapshots.push(first.store.reopened());
        }
    });
    assert_eq!(expected.status, Status::Completed, "{:?}", expected.kinds());
    let told = hand.turn(first.receipt(&expected), || {});
    let effects_told = &told.as_map()["side_effects"];
    assert_eq!(
        effects_told["network_egress"][0]["destination"],
        "example.org"
    );
    assert_eq!(
        told.as_map()["cost"]["provider_breakdown"][0]["provider"],
        "test"
    );
    let mut failed = 0;
    for (number, snapshot) in snapshots.into_iter().enumerate() {
        let second_life = script();
        let mut hand = Hand::default();
        let events = hand.turn(world.resumed_log(&snapshot, &expected.id), || {});
        let (recorded, requested) = effects(&events);
        let resumed = hand.turn(
            world.resumed_on(snapshot, &second_life, hand.spawner()),
            || {},
        );
        let replay = hand.turn(resumed.ended(&expected.id), || {});
        for key in second_life.calls() {
            assert!(
                !recorded.contains(&key),
                "commit {number}: {key} was performed twice"
            );
        }
        let unknown: Vec<&String> = requested
            .iter()
            .filter(|key| key.starts_with("host:tool.send") && !recorded.contains(key))
            .collect();
        if let Some(first) = unknown.first() {
            failed += 1;
            let details = replay.payload("replay.failed")["details"].clone();
            assert_eq!(
                details["first_unavailable"]["key"],
                first.as_str(),
                "commit {number}"
            );
            let failed = replay.payload("replay.failed");
            let message = failed["message"].as_str().unwrap();
            assert!(message.contains("cannot be repeated"), "{message}");
            // The Task says the same as its event.
            let failure = replay.payload("task.failed")["failure"].clone();
            assert_eq!(failure["details"], details, "commit {number}");
            assert!(details["replay_cursor"].is_string(), "{details}");
        } else {
            assert_eq!(replay.kinds(), expected.kinds(), "commit {number}");
            let receipts = hand.turn(
                async {
                    (
                        resumed.receipt(&replay).await,
                        first.receipt(&expected).await,
                    )
                },
                || {},
            );
            assert_eq!(
                unsigned(&receipts.0),
                unsigned(&receipts.1),
                "commit {number}"
            );
        }
    }
    assert!(failed > 1, "{failed}");
}
