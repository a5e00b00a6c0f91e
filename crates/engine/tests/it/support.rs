//! A small world for tests: the system's clock, counted ids, tokio's executor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use canon::Map;
use domain::{Event, ResourceKind, Role, SessionId, State, Status, TaskId, Timestamp};
use engine::port::{ApiKey, BoxFuture, Clock, Ids, MemoryStore, Spawn, Store};
use engine::{
    Answer, Caller, Engine, EventRange, Filters, Idempotency, InputSpec, Limits, MessageSpec,
    NewSession, NewTask, Offline, Parts, Refused, Request, Settle,
};
use runs::workflow::{Registry, builtin};
use serde_json::json;

#[derive(Debug)]
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Ids stay unique over restarts in one test process, as real ones do.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
pub(crate) struct CountedIds;

impl Ids for CountedIds {
    fn body(&self) -> String {
        format!("{:08}", NEXT_ID.fetch_add(1, Ordering::Relaxed))
    }

    fn salt(&self) -> String {
        self.body()
    }
}

#[derive(Debug)]
pub(crate) struct TokioSpawn;

impl Spawn for TokioSpawn {
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        tokio::spawn(future);
    }
}

pub(crate) fn limits() -> Limits {
    Limits {
        batch_len_max: 64,
        pending_commands_max: 1_000,
        workers_max: 4,
        open_tasks_max: 1_000,
        stored_bytes_max: u64::MAX,
        streams_max: 100,
        fork_messages_max: 100,
        settle_window: Duration::from_millis(250),
        start_window: Duration::from_secs(10),
        idempotency_window: Duration::from_secs(86_400),
        leaf_interval: Duration::from_millis(200),
        head_leaves_max: 100,
        head_interval: Duration::from_secs(60),
        receipt_window: Duration::from_secs(2),
        drain_window: Duration::from_millis(200),
    }
}

pub(crate) fn store() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new("testlog1", [7; 32]))
}

pub(crate) async fn engine_on(store: Arc<dyn Store>) -> Engine {
    engine_with(store, |_| {}).await
}

pub(crate) async fn engine_with(store: Arc<dyn Store>, change: impl FnOnce(&mut Limits)) -> Engine {
    let mut parts = parts(store);
    change(&mut parts.limits);
    Engine::start(parts).await.unwrap()
}

/// What an engine of most tests is made of.
pub(crate) fn parts(store: Arc<dyn Store>) -> Parts {
    Parts {
        store,
        clock: Arc::new(SystemClock),
        ids: Arc::new(CountedIds),
        spawn: Arc::new(TokioSpawn),
        performer: Arc::new(Offline),
        secrets: None,
        workflows: Registry::new(builtin()),
        authority: engine::Authority::with_one_key("reprise-test", "key-1", &[1; 32]).unwrap(),
        limits: limits(),
    }
}

pub(crate) async fn write(engine: &Engine, request: Request) -> Result<Answer, Refused> {
    engine
        .dispatch(&caller_of(&request), request, None, Settle::Window)
        .await
}

/// Has a receipt verified and the verdict recorded.
pub(crate) async fn recorded_verdict(
    engine: &Engine,
    caller: &Caller,
    id: &str,
    idempotency: Option<Idempotency>,
) -> Result<Answer, Refused> {
    let request = Request::VerifyReceipt {
        id: domain::ReceiptId::parse(id).unwrap(),
        check: domain::ReceiptCheck::default(),
    };
    engine
        .dispatch(caller, request, idempotency, Settle::Window)
        .await
}

/// The caller of a request: another one than whoever submits decides.
pub(crate) fn caller_of(request: &Request) -> Caller {
    match request {
        Request::RespondPermission { .. } => caller("approver", &["*", engine::APPROVE]),
        _ => Caller::system(),
    }
}

/// A caller of every Workspace.
pub(crate) fn caller(actor: &str, scopes: &[&str]) -> Caller {
    Caller::from_key(&key(actor, scopes))
}

/// A key of every Workspace.
pub(crate) fn key(actor: &str, scopes: &[&str]) -> ApiKey {
    let (id, digest) = (format!("key_{actor}"), canon::sha256(actor.as_bytes()));
    let scopes = scopes.iter().copied();
    ApiKey::new(id, digest, actor, scopes, Timestamp::from_micros(0))
}

pub(crate) fn text(text: &str) -> MessageSpec {
    MessageSpec {
        role: Role::User,
        parts: vec![json!({"type": "text", "text": text, "visibility": "public"})],
        metadata: Map::new(),
    }
}

pub(crate) async fn new_session(engine: &Engine) -> SessionId {
    let request = Request::CreateSession(NewSession {
        workspace_id: None,
        mode_id: None,
        persona_id: None,
        model_policy: None,
        initial_messages: vec![],
        metadata: Map::new(),
    });
    SessionId::parse(&write(engine, request).await.unwrap().view.document.id).unwrap()
}

pub(crate) fn task_request(session_id: &SessionId, workflow: &str, input: &str) -> Request {
    Request::SubmitTask(NewTask {
        session_id: session_id.clone(),
        workspace_id: None,
        persona_id: None,
        branch_id: None,
        parent_task_id: None,
        input: InputSpec::Message(text(input)),
        metadata: json!({"workflow": workflow}).as_object().unwrap().clone(),
    })
}

pub(crate) async fn submit(engine: &Engine, workflow: &str) -> (SessionId, TaskId, Status) {
    let session = new_session(engine).await;
    let answer = write(engine, task_request(&session, workflow, "hello"))
        .await
        .unwrap();
    let id = TaskId::parse(&answer.view.document.id).unwrap();
    (session, id, status_in(&answer))
}

pub(crate) fn status_in(answer: &Answer) -> Status {
    match &answer.view.document.state {
        State::Task(task) => task.status,
        other => panic!("not a task: {other:?}"),
    }
}

pub(crate) async fn status(engine: &Engine, id: &TaskId) -> Status {
    let view = engine
        .get(&Caller::system(), ResourceKind::Task, id.as_str())
        .await
        .unwrap();
    match view.document.state {
        State::Task(task) => task.status,
        other => panic!("not a task: {other:?}"),
    }
}

/// Waits on the log until a Task has a status.
pub(crate) async fn reach(engine: &Engine, id: &TaskId, wanted: Status) {
    let mut news = engine.store().news();
    while status(engine, id).await != wanted {
        tokio::time::timeout(Duration::from_secs(10), news.recv())
            .await
            .expect("no news for ten seconds")
            .ok();
    }
}

pub(crate) async fn events_of(engine: &Engine, task: &TaskId) -> Vec<Event> {
    let range = EventRange {
        filters: Filters {
            task_id: Some(task.to_string()),
            ..Filters::default()
        },
        after_event_id: None,
        limit: 1_000,
    };
    let page = engine.events(&Caller::system(), range).await.unwrap();
    page.events
        .iter()
        .map(|event| Event::parse(&event.bytes).unwrap())
        .collect()
}

pub(crate) fn kinds(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| &*event.kind).collect()
}
