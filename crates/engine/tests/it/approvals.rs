//! What waiting for people costs, and what a run that waited rests on: its log, whoever has written it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use canon::{Map, Value};
use domain::{ResourceKind, State, Status, TaskId};
use engine::port::{Performer, Store};
use engine::{Caller, Engine, InputSpec, NewTask, Parts, Request};
use serde_json::json;

use crate::rig::{Outside, registry};
use crate::support::{events_of, new_session, parts, reach, write};
use crate::watched::{Watched, watched};

async fn engine_on(store: &Arc<Watched>, outside: &Arc<Outside>) -> Engine {
    let parts = Parts {
        performer: Arc::clone(outside) as Arc<dyn Performer>,
        workflows: registry("1"),
        ..parts(Arc::clone(store) as Arc<dyn Store>)
    };
    Engine::start(parts).await.unwrap()
}

async fn submit(engine: &Engine, steps: Value) -> TaskId {
    let input = json!({"steps": steps, "checkpoints": true});
    let request = Request::SubmitTask(NewTask {
        session_id: new_session(engine).await,
        workspace_id: None,
        persona_id: None,
        branch_id: None,
        parent_task_id: None,
        input: InputSpec::Object(input.as_object().unwrap().clone()),
        metadata: json!({"workflow": "steps"}).as_object().unwrap().clone(),
    });
    let answer = write(engine, request).await.unwrap();
    TaskId::parse(&answer.view.document.id).unwrap()
}

/// Steps that use a tool and then ask, as often as that.
fn rounds(count: usize) -> Value {
    let tool =
        |n| json!([{"key": format!("host:tool:main:{n}"), "kind": "host", "repeatable": false}]);
    let ask =
        |n| json!([{"key": format!("host:approval:main:{n}"), "kind": "approve", "chained": true}]);
    (1..=count).flat_map(|n| [tool(n), ask(n)]).collect()
}

async fn approve(engine: &Engine, task: &TaskId) {
    reach(engine, task, Status::AuthRequired).await;
    let caller = Caller::system();
    let view = engine.get(&caller, ResourceKind::Task, task.as_str()).await;
    let State::Task(state) = view.unwrap().document.state else {
        panic!("not a task");
    };
    let request = Request::RespondPermission {
        id: state.waits_for.unwrap(),
        approved: Some(true),
        answer: None,
        remarks: Map::new(),
    };
    write(engine, request).await.unwrap();
}

/// Each effect was performed once, and has one intent and one result.
async fn check_record(engine: &Engine, task: &TaskId, outside: &Outside, rounds: usize) {
    let tools: Vec<String> = (1..=rounds)
        .map(|n| format!("host:tool:main:{n}"))
        .collect();
    assert_eq!(outside.calls(), tools);
    let events = events_of(engine, task).await;
    for kind in ["vendor.effect_requested", "vendor.effect_recorded"] {
        let of_kind = events.iter().filter(|event| &*event.kind == kind);
        let mut keys: Vec<&str> = of_kind.map(|event| event.effect_key().unwrap()).collect();
        keys.retain(|key| key.starts_with("host:tool:"));
        assert_eq!(keys, tools, "{kind}");
    }
}

#[tokio::test]
async fn an_approval_costs_the_same_however_many_came_before_it() {
    const ROUNDS: usize = 40;
    let (store, outside) = (watched(), Outside::new());
    let engine = engine_on(&store, &outside).await;
    let task = submit(&engine, rounds(ROUNDS)).await;
    let mut costs = Vec::new();
    for round in 0..ROUNDS {
        reach(&engine, &task, Status::AuthRequired).await;
        let before = store.events_read.load(Ordering::Relaxed);
        approve(&engine, &task).await;
        match round + 1 < ROUNDS {
            true => reach(&engine, &task, Status::AuthRequired).await,
            false => reach(&engine, &task, Status::Completed).await,
        }
        costs.push(store.events_read.load(Ordering::Relaxed) - before);
    }
    check_record(&engine, &task, &outside, ROUNDS).await;
    let most = costs.iter().max().unwrap();
    assert!(*most < 20, "events read for each approval: {costs:?}");
}

/// A process that waits knows less than the log once another one has gone on with the Task: it reads what is new to it.
#[tokio::test]
async fn a_run_that_waited_goes_on_from_what_another_process_recorded() {
    const ROUNDS: usize = 14;
    let (store, outside) = (watched(), Outside::new());
    let first = engine_on(&store, &outside).await;
    let task = submit(&first, rounds(ROUNDS)).await;
    for _ in 0..10 {
        approve(&first, &task).await;
    }
    reach(&first, &task, Status::AuthRequired).await;
    let second = engine_on(&store, &outside).await;
    approve(&second, &task).await;
    approve(&second, &task).await;
    reach(&second, &task, Status::AuthRequired).await;
    second.drain().await;
    let before = store.events_read.load(Ordering::Relaxed);
    approve(&first, &task).await;
    reach(&first, &task, Status::AuthRequired).await;
    let read = store.events_read.load(Ordering::Relaxed) - before;
    assert!(read < 60, "{read} events read");
    approve(&first, &task).await;
    reach(&first, &task, Status::Completed).await;
    check_record(&first, &task, &outside, ROUNDS).await;
}

/// The result of the tool and the question share a commit: a run that was kept for the question must not rest on a result
/// that is not in the log.
#[tokio::test(start_paused = true)]
async fn a_run_whose_question_was_not_committed_is_begun_again() {
    const TOOL: &str = "host:tool:main:1";
    let (store, outside) = (watched(), Outside::new());
    outside.delay(TOOL, 5_000);
    let engine = engine_on(&store, &outside).await;
    let steps = json!([
        [{"key": TOOL, "kind": "host"}],
        [{"key": "host:approval:main:1", "kind": "approve"}],
    ]);
    let task = submit(&engine, steps).await;
    reach(&engine, &task, Status::Working).await;
    *store.conflicting.lock().unwrap() = Some(task.as_str().into());
    let lost = async {
        while outside.call_count() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let lost = tokio::time::timeout(Duration::from_secs(60), lost).await;
    *store.conflicting.lock().unwrap() = None;
    lost.expect("its result was not committed, so the tool is used again");
    approve(&engine, &task).await;
    reach(&engine, &task, Status::Completed).await;
    let events = events_of(&engine, &task).await;
    let mut recorded = events.iter().filter(|event| {
        &*event.kind == "vendor.effect_recorded" && event.effect_key() == Some(TOOL)
    });
    assert!(recorded.next().is_some(), "the result is on record");
    assert!(recorded.next().is_none(), "and once");
}
