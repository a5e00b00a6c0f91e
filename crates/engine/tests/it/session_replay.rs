//! Replays of Sessions (B11) that outlive their process: the engine is stopped after every commit of one, in turn, and what
//! comes out must be what comes out undisturbed.

use std::sync::Arc;

use canon::Value;
use domain::{Event, Position, ResourceKind, SessionId, Status, TaskId};
use engine::port::{ListQuery, MemoryStore, ReadEvents, Scope, Store};
use engine::{Caller, ReplaySession, Request};
use serde_json::json;

use crate::hand::Hand;
use crate::replay_crash::ask;
use crate::rig::{Outside, World, registry, saying, unsigned};
use crate::support::text;

/// What a replay of a Session left.
#[derive(Debug, PartialEq)]
struct Left {
    /// The payload of `session.replayed`.
    told: Value,
    /// The unsigned receipts of its Tasks, in order.
    receipts: Vec<String>,
    /// How many Tasks the fork holds.
    tasks: usize,
}

fn outside() -> Arc<Outside> {
    let outside = Outside::new();
    outside.says("llm:main:1", "so it is");
    outside.answer("secret:token", json!({"vault_id": "vault_1", "version": 3}));
    outside
}

/// A Session with three finished Tasks, one of which needs a secret, and a Message between them.
async fn talked(world: &World) -> (SessionId, Vec<TaskId>) {
    let session = world.session().await;
    let mut tasks = Vec::new();
    let secret = json!({"steps": [[{"key": "secret:token", "kind": "secret"}]]});
    for (workflow, input) in [
        (None, json!("one")),
        (Some("steps"), secret),
        (None, json!("three")),
    ] {
        let id = world.submit(&session, workflow, None, input).await;
        assert_eq!(world.ended(&id).await.status, Status::Completed);
        tasks.push(id);
        let message = Request::AppendMessage {
            session_id: session.clone(),
            message: text("go on"),
        };
        world.write(message).await.unwrap();
    }
    (session, tasks)
}

/// Asks for a replay, again if need be, and waits until its fork says that it is done.
async fn replayed(world: &World, session: &SessionId, body: Value) -> Left {
    let request = Request::ReplaySession(ReplaySession {
        id: session.clone(),
        body,
        conformance: false,
    });
    let fork = ask(world, "replay", request).await.unwrap();
    until_replayed(world, &fork).await
}

async fn until_replayed(world: &World, fork: &str) -> Left {
    let mut news = world.store.news();
    while events_of(&world.store, fork, "session.replayed")
        .await
        .is_empty()
    {
        news.recv().await.ok();
    }
    let query = ListQuery {
        kind: ResourceKind::Task,
        scope: Scope::Session(key(&world.store, fork).await),
        open_only: false,
        after: Position::START,
        limit: usize::MAX,
    };
    let tasks = world.store.list(query).await.unwrap();
    let mut receipts = Vec::new();
    for task in &tasks {
        let task = world.ended(&TaskId::parse(&task.id).unwrap()).await;
        let receipt = unsigned(&world.receipt(&task).await);
        receipts.push(String::from_utf8(receipt).unwrap());
    }
    let told = events_of(&world.store, fork, "session.replayed").await;
    assert_eq!(told.len(), 1);
    Left {
        told: Value::Object((*told[0].payload).clone()),
        receipts,
        tasks: tasks.len(),
    }
}

async fn key(store: &MemoryStore, id: &str) -> Position {
    let documents = store.documents(vec![id.into()]).await.unwrap();
    documents[0].as_ref().unwrap().key
}

async fn events_of(store: &MemoryStore, fork: &str, kind: &str) -> Vec<Event> {
    let query = ReadEvents {
        scope: Scope::Session(key(store, fork).await),
        after: Position::START,
        limit: usize::MAX,
    };
    let events = store.events(query).await.unwrap();
    let events = events
        .iter()
        .map(|event| Event::parse(&event.bytes).unwrap());
    events.filter(|event| &*event.kind == kind).collect()
}

/// Plays a Session replay undisturbed and returns what the store held after each of its commits.
fn undisturbed(body: &Value) -> (World, SessionId, Vec<TaskId>, Vec<MemoryStore>, Left) {
    let mut hand = Hand::default();
    let starts = World::spawning(outside(), hand.spawner(), registry("1"));
    let world = hand.turn(starts, || {});
    let (session, tasks) = hand.turn(talked(&world), || {});
    let mut snapshots = vec![world.store.reopened()];
    let mut head = world.store.head();
    let left = hand.turn(replayed(&world, &session, body.clone()), || {
        if world.store.head() != head {
            head = world.store.head();
            snapshots.push(world.store.reopened());
        }
    });
    (world, session, tasks, snapshots, left)
}

fn next_life(world: &World, hand: &mut Hand, store: MemoryStore) -> World {
    let (outside, spawner) = (outside(), hand.spawner());
    hand.turn(world.resumed_on(store, &outside, spawner), || {})
}

/// B11, B12.16: wherever the process ends, the next one goes on with the plan that was accepted: each Task is replayed once,
/// in order, and the end is told once.
#[test]
fn b11_every_crash_of_a_session_replay_ends_as_if_there_had_been_none() {
    let body = json!({"reason": "to see"});
    let (world, session, tasks, snapshots, expected) = undisturbed(&body);
    assert_eq!(expected.told["completed"], true, "{:?}", expected.told);
    assert_eq!(expected.tasks, 3);
    let sources: Vec<&Value> = expected.told["tasks"].as_array().unwrap().iter().collect();
    for (source, told) in tasks.iter().zip(sources) {
        assert_eq!(told["source_task_id"], source.as_str());
    }
    assert!(snapshots.len() > 7, "{} commits", snapshots.len());
    for (number, snapshot) in snapshots.into_iter().enumerate() {
        let mut hand = Hand::default();
        let resumed = next_life(&world, &mut hand, snapshot);
        let left = hand.turn(replayed(&resumed, &session, body.clone()), || {});
        assert_eq!(left, expected, "crash after commit {number}");
        // And once more: what is done is done.
        let again = resumed.store.reopened();
        let mut hand = Hand::default();
        let head = again.head();
        let third = next_life(&world, &mut hand, again);
        let left = hand.turn(replayed(&third, &session, body.clone()), || {});
        assert_eq!((&left, third.store.head()), (&expected, head));
    }
}

/// B6: the secret of an override is in no plan. A process that takes over has lost it, and the replay that needs it says so.
#[test]
fn b11_a_secret_is_in_no_plan_and_is_lost_with_its_process() {
    let mut hand = Hand::default();
    let starts = World::spawning(outside(), hand.spawner(), registry("1"));
    let world = hand.turn(starts, || {});
    let (session, tasks) = hand.turn(talked(&world), || {});
    let value = "planted-5up3r-s3cr3t";
    let body = json!({"mode": "with_overrides", "override": {
        format!("{}/secret:token", tasks[1]): {"kind": "secret_value", "value": value},
        format!("{}/llm:main:1", tasks[2]): {"kind": "llm_provider_response", "value": saying("else")},
    }});
    let before = world.store.reopened();
    let left = hand.turn(replayed(&world, &session, body.clone()), || {});
    assert_eq!(left.told["completed"], true, "{:?}", left.told);
    assert!(
        left.receipts[1].contains("secret:token"),
        "{}",
        left.receipts[1]
    );
    assert!(
        left.receipts[2].contains("llm:main:1"),
        "{}",
        left.receipts[2]
    );
    // Whoever waits for the end may be quicker than whoever forgets.
    hand.turn(
        async {
            for _ in 0..50 {
                tokio::task::yield_now().await
            }
        },
        || {},
    );
    assert_eq!(world.engine.replay_secrets_kept(), 0);
    let all = String::from_utf8_lossy(&hand.turn(world.every_byte(), || {})).into_owned();
    assert!(all.contains("secret:token"), "the scan sees something");
    assert!(!all.contains(value));

    // Accepted, and the process dies before the first Task is submitted.
    let mut hand = Hand::default();
    let second = next_life(&world, &mut hand, before);
    let request = Request::ReplaySession(ReplaySession {
        id: session.clone(),
        body: body.clone(),
        conformance: false,
    });
    let mut accepted = None;
    let head = second.store.head();
    hand.turn(ask(&second, "replay", request), || {
        if accepted.is_none() && second.store.head() != head {
            accepted = Some(second.store.reopened());
        }
    })
    .unwrap();
    let mut hand = Hand::default();
    let third = next_life(&world, &mut hand, accepted.unwrap());
    let left = hand.turn(replayed(&third, &session, body), || {});
    assert_eq!(left.told["completed"], false, "{:?}", left.told);
    assert_eq!(left.tasks, 2, "it ends at the first that fails");
    assert!(
        left.receipts[1].contains("\"key\":\"secret:token\""),
        "{}",
        left.receipts[1]
    );
}

/// A refused request keeps nothing.
#[tokio::test]
async fn b11_a_refused_session_replay_leaves_no_secret_behind() {
    let world = World::new(outside()).await;
    let (session, tasks) = talked(&world).await;
    let body = json!({"mode": "with_overrides", "override": {
        format!("{}/secret:token", tasks[1]): {"kind": "secret_value", "value": "planted"},
        format!("{}/llm:main:1", tasks[2]): {"kind": "no_kind", "value": 1},
    }});
    let request = Request::ReplaySession(ReplaySession {
        id: session,
        body,
        conformance: false,
    });
    let caller = Caller::system();
    let refused = world
        .engine
        .dispatch(&caller, request, None, engine::Settle::Window)
        .await;
    assert!(refused.is_err());
    assert_eq!(world.engine.replay_secrets_kept(), 0);
}

#[tokio::test]
async fn b11_the_fork_names_its_source_and_its_mode() {
    let world = World::new(outside()).await;
    let (session, _) = talked(&world).await;
    for (body, mode) in [
        (json!({}), "exact"),
        (json!({"mode": "with_overrides"}), "with_overrides"),
    ] {
        let request = Request::ReplaySession(ReplaySession {
            id: session.clone(),
            body,
            conformance: false,
        });
        let view = world.write(request).await.unwrap().view;
        let domain::State::Session(fork) = &view.document.state else {
            panic!("{view:?}")
        };
        let metadata = &view.payload(fork.metadata).unwrap()["metadata"];
        let expected = json!({"source_session_id": session, "mode": mode});
        assert_eq!(metadata["replay"], expected);
    }
}
