//! One bad thing stays one bad thing: commands that cannot be sealed, results that are in hand, busy neighbours.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use canon::{Map, Value};
use domain::{Event, Kind, ModelUse, Position, State, Status, TaskId};
use engine::port::{Performer, ReadEvents, Scope, Store};
use engine::{Engine, InputSpec, NewTask, Parts, Request, Settle};
use runs::workflow::{
    Answers, EffectAnswer, EffectKind, EffectRequest, Machine, Note, Registry, Start, Step,
    Workflow, builtin,
};
use serde_json::json;

use crate::rig::{Outside, World, completion};
use crate::support::{limits, new_session, parts, reach, status, task_request, text, write};
use crate::watched::{Watched, watched};

/// Asks a tool once and then tells what no log can hold.
#[derive(Debug)]
struct Poison;

impl Workflow for Poison {
    fn name(&self) -> &'static str {
        "poison"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn description(&self) -> &'static str {
        "Tells what cannot be recorded."
    }

    fn begin(&self, _start: &Start) -> Box<dyn Machine> {
        Box::new(Poisoned { asked: false })
    }

    fn restore(&self, _: &Start, _: &Value, _: &Answers) -> Result<Box<dyn Machine>, String> {
        Err("no checkpoints".to_owned())
    }
}

struct Poisoned {
    asked: bool,
}

impl Machine for Poisoned {
    fn step(&mut self, _answers: &[EffectAnswer]) -> Step {
        if !std::mem::replace(&mut self.asked, true) {
            return Step::Request {
                notes: Vec::new(),
                checkpoint: false,
                effects: vec![EffectRequest {
                    repeatable: false,
                    ..EffectRequest::repeatable(
                        "tool:main:1",
                        EffectKind::LocalTool,
                        json!({"name": "once"}),
                    )
                }],
            };
        }
        Step::Done {
            // A change of status that says neither from what nor to what.
            notes: vec![Note {
                kind: Kind::TaskStatusChanged,
                payload: Map::new(),
            }],
            text: "done".to_owned(),
            summary: "done".to_owned(),
            products: Vec::new(),
        }
    }

    fn state(&self) -> Value {
        Value::Null
    }
}

fn poisoned() -> Registry {
    let poison: Arc<dyn Workflow> = Arc::new(Poison);
    Registry::new(builtin().into_iter().chain([poison]))
}

#[tokio::test(start_paused = true)]
async fn c1_a_task_that_cannot_be_advanced_fails_after_eight_attempts_and_its_tool_ran_once() {
    let outside = Outside::new();
    outside.answer("tool:main:1", json!({"did": "it"}));
    let world = World::with(outside, poisoned()).await;
    let session = world.session().await;
    let id = world
        .submit(&session, Some("poison"), None, "go".into())
        .await;
    // Neighbours of the failing command are not harmed, whatever turn they share with it.
    for number in 0..200 {
        let request = Request::AppendMessage {
            session_id: session.clone(),
            message: text(&format!("message {number}")),
        };
        world.write(request).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let ended = world.ended(&id).await;
    assert_eq!(ended.status, Status::Failed);
    let failure = ended.payload("task.failed")["failure"].clone();
    assert_eq!(failure["code"], "cannot_advance");
    assert_eq!(failure["details"]["attempts"], 8);
    assert!(
        failure["details"]["fault"]
            .as_str()
            .unwrap()
            .contains("task.status_changed"),
        "{failure}"
    );
    assert_eq!(world.outside.calls(), ["tool:main:1"], "performed once");
    assert_eq!(ended.record("tool:main:1").payload["outcome"], "ok");
    assert!(ended.task.receipt_id.is_some());
}

#[tokio::test(start_paused = true)]
async fn c1_a_task_that_cannot_be_advanced_can_be_canceled_and_holds_no_worker() {
    let outside = Outside::new();
    outside.answer("tool:main:1", json!({}));
    let world = World::with(outside, poisoned()).await;
    let session = world.session().await;
    let mut stuck = Vec::new();
    // More than there are workers.
    for _ in 0..12 {
        let id = world
            .submit(&session, Some("poison"), None, "go".into())
            .await;
        stuck.push(id);
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    let other = world.plain("hello").await;
    assert_eq!(other.status, Status::Completed);
    for id in &stuck {
        let cancel = Request::CancelTask {
            id: id.clone(),
            reason: None,
        };
        world.write(cancel).await.unwrap();
        assert_eq!(world.task(id).await.status, Status::Canceled);
    }
}

#[tokio::test]
async fn c1_token_counts_that_no_receipt_can_hold_are_named_and_left_out() {
    for tokens in [9_007_199_254_740_993, u64::MAX] {
        let outside = Outside::new();
        let mut answer = completion("llm:main:1", json!({"role": "assistant", "content": "hi"}));
        answer.model = Some(ModelUse {
            input_tokens: tokens,
            output_tokens: tokens,
            ..answer.model.unwrap()
        });
        outside.perform_as("llm:main:1", answer);
        let world = World::new(outside).await;
        let ended = world.plain("hello").await;
        assert!(ended.status.is_terminal(), "{:?}", ended.status);
        let receipt = world.receipt(&ended).await;
        let redactions = receipt.as_map()["redactions"].to_string();
        if ended.status == Status::Completed {
            assert!(redactions.contains("consumed/input_tokens"), "{redactions}");
        }
    }
}

/// An engine whose outside is the given one, on the given store.
async fn engine_of(store: &Arc<Watched>, outside: &Arc<Outside>) -> Engine {
    engine_with(limits().workers_max, store, outside).await
}

async fn engine_with(workers: usize, store: &Arc<Watched>, outside: &Arc<Outside>) -> Engine {
    let mut parts = Parts {
        performer: Arc::clone(outside) as Arc<dyn Performer>,
        workflows: crate::rig::registry("1"),
        ..parts(Arc::clone(store) as Arc<dyn Store>)
    };
    parts.limits.workers_max = workers;
    parts.limits.batch_len_max = 4;
    parts.limits.settle_window = Duration::from_secs(1);
    Engine::start(parts).await.unwrap()
}

async fn submit_steps(engine: &Engine, steps: Value) -> TaskId {
    let request = Request::SubmitTask(NewTask {
        session_id: new_session(engine).await,
        workspace_id: None,
        persona_id: None,
        branch_id: None,
        parent_task_id: None,
        input: InputSpec::Object(json!({"steps": steps}).as_object().unwrap().clone()),
        metadata: json!({"workflow": "steps"}).as_object().unwrap().clone(),
    });
    let answer = write(engine, request).await.unwrap();
    TaskId::parse(&answer.view.document.id).unwrap()
}

#[tokio::test(start_paused = true)]
async fn c2_a_result_waits_for_a_full_disk_and_is_not_asked_for_again() {
    let (store, outside) = (watched(), Outside::new());
    outside
        .answer("tool:main:1", json!({"did": "it"}))
        .delay("tool:main:1", 5_000);
    let engine = engine_of(&store, &outside).await;
    let steps = json!([[{"key": "tool:main:1", "kind": "tool", "repeatable": false}]]);
    let id = submit_steps(&engine, steps).await;
    reach(&engine, &id, Status::Working).await;
    store.is_full.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(outside.calls(), ["tool:main:1"]);
    store.is_full.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(status(&engine, &id).await, Status::Completed);
    assert_eq!(outside.calls(), ["tool:main:1"], "performed once");
}

#[tokio::test(start_paused = true)]
async fn c2_a_result_waits_for_a_log_that_cannot_be_read() {
    let (store, outside) = (watched(), Outside::new());
    outside
        .answer("tool:main:1", json!({"did": "it"}))
        .delay("tool:main:1", 5_000);
    // Nobody begins it here, so that whoever ends it has to read how it came about.
    let idle = engine_with(0, &store, &outside).await;
    let steps = json!([[{"key": "tool:main:1", "kind": "tool", "repeatable": false}]]);
    let id = submit_steps(&idle, steps).await;
    idle.drain().await;
    let engine = engine_of(&store, &outside).await;
    reach(&engine, &id, Status::Working).await;
    store.is_unreadable.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(600)).await;
    store.is_unreadable.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(status(&engine, &id).await, Status::Completed);
    assert_eq!(outside.calls(), ["tool:main:1"], "performed once");
}

#[tokio::test]
async fn c6_a_waiting_submit_looks_only_when_its_own_task_changed() {
    let (store, outside) = (watched(), Outside::new());
    let engine = engine_of(&store, &outside).await;
    let session = new_session(&engine).await;
    let busy = new_session(&engine).await;
    let caller = engine::Caller::system();
    let submit = engine.dispatch(
        &caller,
        task_request(&session, "hold", "hello"),
        None,
        Settle::Window,
    );
    let mut submit = std::pin::pin!(submit);
    let began = Instant::now();
    let mut appended = 0;
    let reads = loop {
        let request = Request::AppendMessage {
            session_id: busy.clone(),
            message: text("busy"),
        };
        tokio::select! {
            biased;
            answer = &mut submit => {
                answer.unwrap();
                break store.document_reads.load(Ordering::Relaxed);
            }
            done = write(&engine, request) => drop(done.unwrap()),
        }
        appended += 1;
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "the window did not end"
        );
    };
    assert!(appended > 60, "{appended}");
    // What the appends read themselves is in a cache.
    assert!(
        reads < 30 + appended / 4,
        "{reads} reads for {appended} appends"
    );
}

#[tokio::test]
async fn c7_the_end_of_a_task_reads_nothing_and_a_cancel_of_a_finished_one_neither() {
    let (store, outside) = (watched(), Outside::new());
    let engine = engine_of(&store, &outside).await;
    let steps: Vec<Value> = (1..=300)
        .map(|n| json!([{"key": format!("host:fact:main:{n}"), "kind": "host"}]))
        .collect();
    for n in 1..=300 {
        outside.answer(&format!("host:fact:main:{n}"), json!(n));
    }
    let id = submit_steps(&engine, Value::Array(steps)).await;
    reach(&engine, &id, Status::Completed).await;
    assert_eq!(
        store.events_read.load(Ordering::Relaxed),
        0,
        "all was folded"
    );
    let cancel = Request::CancelTask {
        id: id.clone(),
        reason: None,
    };
    write(&engine, cancel).await.unwrap_err();
    assert_eq!(store.events_read.load(Ordering::Relaxed), 0);
    // The receipt commits to the whole log all the same.
    let document = store.documents(vec![id.as_str().into()]).await.unwrap();
    let document = document[0].clone().unwrap();
    let State::Task(task) = &document.state else {
        panic!("not a task");
    };
    let query = ReadEvents {
        scope: Scope::Task(document.key),
        after: Position::START,
        limit: usize::MAX,
    };
    let events = store.store.events(query).await.unwrap();
    assert!(events.len() > 600, "{}", events.len());
    let covered = events.iter().map(|event| &*event.bytes).filter(|bytes| {
        let event = Event::parse(bytes).unwrap();
        &*event.kind != "receipt.issued"
    });
    let expected = receipts::event_log_digest(covered);
    let id = task.receipt_id.clone().unwrap();
    let form = engine
        .receipt(&engine::Caller::system(), id.as_str())
        .await
        .unwrap();
    let receipt = receipts::Receipt::read(&form.bytes.unwrap()).unwrap();
    let log = &receipt.as_map()["replay_input"]["materials"][0];
    assert_eq!(log["sha256"], expected.to_string());
}

#[tokio::test]
async fn c16_the_input_of_a_large_tool_call_is_in_the_receipt() {
    let outside = Outside::new();
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(10_000));
    outside
        .tools(crate::rig::two_tools())
        .uses("llm:main:1", &[("c", "look", &large)])
        .answer("mcp:eyes:main:1", json!({"seen": 1}))
        .says("llm:main:2", "seen");
    let world = World::new(outside).await;
    let ended = world.agent(json!({"tools": ["look"]}), "go").await;
    assert_eq!(ended.status, Status::Completed);
    let receipt = world.receipt(&ended).await;
    let calls = &receipt.as_map()["side_effects"]["tool_calls"];
    let expected = canon::sha256(&canon::jcs(&serde_json::from_str::<Value>(&large).unwrap()));
    assert_eq!(calls[0]["input_hash"], expected.to_string(), "{calls}");
}

#[tokio::test(start_paused = true)]
async fn u12_a_streamed_answer_is_four_events_a_second_of_four_kibibytes() {
    let outside = Outside::new();
    let piece = "é".repeat(600);
    let pieces: Vec<&str> = std::iter::repeat_n(piece.as_str(), 40).collect();
    outside
        .streams_every("llm:main:1", &pieces, 120)
        .says("llm:main:1", &piece.repeat(40));
    let world = World::new(outside).await;
    let ended = world.plain("go on").await;
    let deltas = ended.of_kind("vendor.message_delta");
    // 40 pieces in 4.8 seconds.
    assert!(deltas.len() <= 21, "{}", deltas.len());
    let mut joined = String::new();
    for delta in &deltas {
        let text = delta.payload["text"].as_str().unwrap();
        assert!(text.len() <= 4_096);
        joined.push_str(text);
    }
    assert_eq!(joined, piece.repeat(40), "nothing of it is missing");
}

#[tokio::test]
async fn an_answer_faster_than_its_pieces_may_be_is_shown_whole() {
    let outside = Outside::new();
    let long = "word ".repeat(4_000);
    outside
        .streams_every("llm:main:1", &[&long], 10)
        .says("llm:main:1", &long);
    let world = World::new(outside).await;
    let ended = world.plain("go on").await;
    let deltas = ended.of_kind("vendor.message_delta");
    let text = |delta: &&domain::Event| delta.payload["text"].as_str().unwrap().to_owned();
    assert!(deltas.iter().all(|delta| text(delta).len() <= 4_096));
    assert_eq!(deltas.iter().map(text).collect::<String>(), long);
}

/// Counts what is done aside.
#[derive(Debug, Default)]
struct Counting(std::sync::atomic::AtomicUsize);

impl engine::port::Spawn for Counting {
    fn spawn(&self, future: engine::port::BoxFuture<'static, ()>) {
        tokio::spawn(future);
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        drop(tokio::task::spawn_blocking(work));
    }
}

#[tokio::test]
async fn c18_long_pure_work_is_done_aside() {
    let spawn = Arc::new(Counting::default());
    let world = World::spawning(
        Outside::new(),
        Arc::clone(&spawn) as Arc<dyn engine::port::Spawn>,
        crate::rig::registry("1"),
    )
    .await;
    let (a, b) = (world.plain("one").await, world.plain("two").await);
    let before = spawn.0.load(Ordering::Relaxed);
    let caller = engine::Caller::system();
    world.engine.diff(&caller, &a.id, &b.id).await.unwrap();
    // Two records are made ready and compared.
    assert_eq!(spawn.0.load(Ordering::Relaxed) - before, 3);
    let before = spawn.0.load(Ordering::Relaxed);
    let replayed = world.replay(&a.id, json!({"mode": "exact"})).await;
    assert_eq!(replayed.status, Status::Completed);
    // A record is made ready; it is run, and its receipt is built.
    assert!(spawn.0.load(Ordering::Relaxed) - before >= 3);
}

#[tokio::test]
async fn a_worker_does_not_depend_on_what_happens_to_its_session() {
    let (store, outside) = (watched(), Outside::new());
    let engine = engine_of(&store, &outside).await;
    let steps: Vec<Value> = (1..=5)
        .map(|n| json!([{"key": format!("host:fact:main:{n}"), "kind": "host"}]))
        .collect();
    for n in 1..=5 {
        outside.answer(&format!("host:fact:main:{n}"), json!(n));
    }
    let id = submit_steps(&engine, Value::Array(steps)).await;
    reach(&engine, &id, Status::Completed).await;
    let commits = store.expected.lock().unwrap().clone();
    let alone = commits
        .iter()
        .filter(|expected| expected.len() == 1 && *expected[0] == *id.as_str());
    assert!(alone.count() >= 4, "{commits:?}");
}
