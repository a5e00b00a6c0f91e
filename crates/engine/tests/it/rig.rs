//! A world for runs and their replays: a clock that stands still unless told otherwise, ids that count, and an outside that answers by effect
//! key, so that the same test gives the same bytes, whoever performs an effect and however often.

mod outside;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use canon::{Digest, Map, Value, jcs};
use domain::{
    CreatePersona, Event, PersonaSpec, Position, ResourceKind, SessionId, State, Status, Task,
    TaskId, Timestamp,
};
use engine::port::{
    BlobStore, BoxFuture, Clock, Ids, MemoryStore, Performer, ReadEvents, Scope, Spawn, Store,
};
use engine::{Caller, Engine, InputSpec, NewTask, Parts, Refused, ReplayTask, Request, Settle};
use receipts::Receipt;
use runs::replay::{self, Progress, ReceiptIssuer, Source, Spec};
use runs::workflow::{Registry, Workflow, builtin};
use serde_json::json;

pub(crate) use outside::{Outside, completion};
use steps::Steps;

use crate::support::{TokioSpawn, limits, new_session, parts, text};

/// Time that passes only by being read, if at all.
#[derive(Debug)]
struct Reading {
    now_us: AtomicI64,
    step_us: i64,
}

impl Clock for Reading {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now_us.fetch_add(self.step_us, Ordering::Relaxed))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Box::pin(std::future::pending());
        }
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Ids of one world, in the order they are asked for; they go on over restarts.
#[derive(Debug, Clone, Default)]
struct Counted(Arc<AtomicU64>);

impl Ids for Counted {
    fn body(&self) -> String {
        format!("{:08}", self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn salt(&self) -> String {
        self.body()
    }
}

/// An engine, its store and its outside.
pub(crate) struct World {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) outside: Arc<Outside>,
    pub(crate) engine: Engine,
    ids: Counted,
}

/// A Task that has ended.
#[derive(Debug, Clone)]
pub(crate) struct Finished {
    pub(crate) id: TaskId,
    pub(crate) status: Status,
    pub(crate) task: Task,
    pub(crate) events: Vec<Event>,
}

impl Finished {
    pub(crate) fn kinds(&self) -> Vec<&str> {
        self.events.iter().map(|event| &*event.kind).collect()
    }

    /// The payload of the only event of a kind that is the Task's own.
    pub(crate) fn payload(&self, kind: &str) -> Value {
        let mut found = self
            .events
            .iter()
            .filter(|event| &*event.kind == kind && event.replay.is_none());
        let event = found
            .next()
            .unwrap_or_else(|| panic!("no {kind} in {:?}", self.kinds()));
        assert!(found.next().is_none(), "two {kind}");
        Value::Object((*event.payload).clone())
    }

    pub(crate) fn of_kind(&self, kind: &str) -> Vec<&Event> {
        self.events
            .iter()
            .filter(|event| &*event.kind == kind)
            .collect()
    }

    /// What the agent said last.
    pub(crate) fn text(&self) -> String {
        let said = self.of_kind("agent.message");
        said.last().map_or_else(String::new, |event| {
            domain::public_text(
                event.payload["parts"]
                    .as_array()
                    .map_or(&[][..], |parts| parts),
            )
        })
    }

    /// Events that a replay repeated or emitted, without those of its own life.
    pub(crate) fn replayed(&self) -> Vec<&Event> {
        self.events
            .iter()
            .filter(|event| event.replay.is_some())
            .collect()
    }

    /// The id of the first event of a kind.
    pub(crate) fn event_id(&self, kind: &str) -> String {
        self.of_kind(kind)[0].id.to_string()
    }

    /// The event that recorded an effect.
    pub(crate) fn record(&self, key: &str) -> &Event {
        self.events
            .iter()
            .find(|event| {
                &*event.kind == "vendor.effect_recorded" && event.payload["effect_key"] == key
            })
            .unwrap_or_else(|| panic!("no record of {key}"))
    }
}

pub(crate) fn registry(steps_version: &'static str) -> Registry {
    let steps: Arc<dyn Workflow> = Arc::new(Steps(steps_version));
    Registry::new(builtin().into_iter().chain([steps]))
}

async fn start(
    store: &Arc<MemoryStore>,
    outside: &Arc<Outside>,
    ids: &Counted,
    spawn: &Arc<dyn Spawn>,
    workflows: Registry,
) -> Engine {
    let parts = Parts {
        clock: Arc::new(Reading {
            now_us: AtomicI64::new(1_777_144_570_000_000),
            step_us: outside.step_us.load(Ordering::Relaxed),
        }),
        ids: Arc::new(ids.clone()),
        spawn: Arc::clone(spawn),
        performer: Arc::clone(outside) as Arc<dyn Performer>,
        workflows,
        ..parts(Arc::clone(store) as Arc<dyn Store>)
    };
    Engine::start(parts).await.unwrap()
}

impl World {
    pub(crate) async fn new(outside: Arc<Outside>) -> Self {
        Self::with(outside, registry("1")).await
    }

    pub(crate) async fn with(outside: Arc<Outside>, workflows: Registry) -> Self {
        Self::spawning(outside, Arc::new(TokioSpawn), workflows).await
    }

    pub(crate) async fn spawning(
        outside: Arc<Outside>,
        spawn: Arc<dyn Spawn>,
        workflows: Registry,
    ) -> Self {
        let store = Arc::new(MemoryStore::new("replays1", [7; 32]));
        Self::on(store, &outside, &Counted::default(), spawn, workflows).await
    }

    /// What a crash and a restart leave: everything committed, nobody working. The program may be another one.
    pub(crate) async fn reopened_with(&self, workflows: Registry) -> Self {
        let store = Arc::new(self.store.reopened());
        let spawn = Arc::new(TokioSpawn);
        Self::on(store, &self.outside, &self.ids, spawn, workflows).await
    }

    async fn on(
        store: Arc<MemoryStore>,
        outside: &Arc<Outside>,
        ids: &Counted,
        spawn: Arc<dyn Spawn>,
        workflows: Registry,
    ) -> Self {
        let engine = start(&store, outside, ids, &spawn, workflows).await;
        Self {
            store,
            outside: Arc::clone(outside),
            engine,
            ids: ids.clone(),
        }
    }

    /// Another world that begins with a copy of what a store holds.
    pub(crate) async fn resumed(&self, store: MemoryStore, outside: &Arc<Outside>) -> Self {
        self.resumed_on(store, outside, Arc::new(TokioSpawn)).await
    }

    pub(crate) async fn resumed_on(
        &self,
        store: MemoryStore,
        outside: &Arc<Outside>,
        spawn: Arc<dyn Spawn>,
    ) -> Self {
        Self::on(Arc::new(store), outside, &self.ids, spawn, registry("1")).await
    }

    pub(crate) async fn session(&self) -> SessionId {
        new_session(&self.engine).await
    }

    pub(crate) async fn write(&self, request: Request) -> Result<engine::Answer, Refused> {
        self.engine
            .dispatch(
                &crate::support::caller_of(&request),
                request,
                None,
                Settle::Window,
            )
            .await
    }

    /// Gives every worker something to do that does not end by itself, and returns the tasks.
    pub(crate) async fn occupy(&self, session: &SessionId) -> Vec<TaskId> {
        const KEY: &str = "host:busy:main:1";
        self.outside.delay(KEY, 3_600_000);
        let steps = json!({"steps": [[{"key": KEY, "kind": "host", "repeatable": true}]]});
        let mut busy = Vec::new();
        for _ in 0..limits().workers_max {
            let id = self
                .submit(session, Some("steps"), None, steps.clone())
                .await;
            self.reach(&id, Status::Working).await;
            busy.push(id);
        }
        busy
    }

    /// Gives an artifact its content.
    pub(crate) async fn upload(&self, artifact: &str, bytes: &[u8]) {
        let id = domain::ArtifactId::parse(artifact).unwrap();
        let mut content = self.engine.begin_upload();
        content.push(bytes).await.unwrap();
        let caller = engine::Caller::system();
        let attached = self.engine.attach(&caller, &id, content, None).await;
        attached.unwrap();
    }

    /// Defines an agent and returns its id. Members given replace the defaults.
    pub(crate) async fn persona(&self, members: Value) -> String {
        self.try_persona(members).await.unwrap()
    }

    pub(crate) async fn try_persona(&self, members: Value) -> Result<String, Refused> {
        let mut persona = json!({
            "name": "tester",
            "version": "1",
            "entry_workflow": "agent",
            "description": "an agent under test",
            "autonomy_tier": "act_auto",
            "receipt_policy": "required",
        });
        for (name, value) in members.as_object().unwrap() {
            persona[name] = value.clone();
        }
        let persona: PersonaSpec = serde_json::from_value(persona).unwrap();
        let order = CreatePersona {
            persona,
            metadata: Map::new(),
        };
        let answer = self.write(Request::CreatePersona(Box::new(order))).await?;
        Ok(answer.view.document.id.to_string())
    }

    /// Submits a Task and returns its id at once.
    pub(crate) async fn submit(
        &self,
        session: &SessionId,
        workflow: Option<&str>,
        persona: Option<&str>,
        input: Value,
    ) -> TaskId {
        let input = match input {
            Value::String(words) => InputSpec::Message(text(&words)),
            Value::Object(map) => InputSpec::Object(map),
            other => panic!("{other}"),
        };
        let mut metadata = Map::new();
        if let Some(workflow) = workflow {
            metadata.insert("workflow".to_owned(), workflow.into());
        }
        let request = Request::SubmitTask(NewTask {
            session_id: session.clone(),
            workspace_id: None,
            persona_id: persona.map(str::to_owned),
            branch_id: None,
            parent_task_id: None,
            input,
            metadata,
        });
        let answer = self.write(request).await.unwrap();
        TaskId::parse(&answer.view.document.id).unwrap()
    }

    /// Runs steps of the test workflow to their end.
    pub(crate) async fn steps(&self, input: Value) -> Finished {
        let session = self.session().await;
        let id = self.submit(&session, Some("steps"), None, input).await;
        self.ended(&id).await
    }

    /// Runs the agent under a persona to its end.
    pub(crate) async fn agent(&self, persona: Value, input: &str) -> Finished {
        let session = self.session().await;
        let persona = self.persona(persona).await;
        let id = self
            .submit(&session, None, Some(&persona), input.into())
            .await;
        self.ended(&id).await
    }

    /// Runs an agent that looks once and says that it has.
    pub(crate) async fn looked(&self) -> Finished {
        self.outside
            .tools(two_tools())
            .uses("llm:main:1", &[("c", "look", "{}")])
            .answer("mcp:eyes:main:1", json!({"seen": 1}))
            .says("llm:main:2", "seen");
        self.agent(json!({"tools": ["look"]}), "go").await
    }

    /// Runs the agent without any persona.
    pub(crate) async fn plain(&self, input: &str) -> Finished {
        let session = self.session().await;
        let id = self.submit(&session, None, None, input.into()).await;
        self.ended(&id).await
    }

    pub(crate) async fn task(&self, id: &TaskId) -> Task {
        let view = self
            .engine
            .get(&Caller::system(), ResourceKind::Task, id.as_str())
            .await
            .unwrap();
        match view.document.state {
            State::Task(task) => task,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for a Task's end.
    pub(crate) async fn ended(&self, id: &TaskId) -> Finished {
        let mut news = self.store.news();
        loop {
            let task = self.task(id).await;
            if task.status.is_terminal() {
                return Finished {
                    id: id.clone(),
                    status: task.status,
                    events: self.log(id).await,
                    task,
                };
            }
            if !heard(&mut news).await {
                let log = self.log(id).await;
                let kinds: Vec<_> = log.iter().map(|event| &event.kind).collect();
                panic!("task {id} is stuck at {:?}: {kinds:?}", task.status);
            }
        }
    }

    pub(crate) async fn reach(&self, id: &TaskId, status: Status) {
        let mut news = self.store.news();
        while self.task(id).await.status != status {
            assert!(heard(&mut news).await, "no news for a long time");
        }
    }

    /// The whole log of a Task as stored.
    pub(crate) async fn bytes(&self, id: &TaskId) -> Vec<Arc<[u8]>> {
        let documents = self
            .store
            .documents(vec![id.as_str().into()])
            .await
            .unwrap();
        let key = documents[0].as_ref().unwrap().key;
        let query = ReadEvents {
            scope: Scope::Task(key),
            after: Position::START,
            limit: usize::MAX,
        };
        let events = self.store.events(query).await.unwrap();
        events.into_iter().map(|event| event.bytes).collect()
    }

    /// The log of a Task in another store, empty when it is not there yet.
    pub(crate) async fn resumed_log(&self, store: &MemoryStore, id: &TaskId) -> Vec<Event> {
        let documents = store.documents(vec![id.as_str().into()]).await.unwrap();
        let Some(document) = &documents[0] else {
            return Vec::new();
        };
        let query = ReadEvents {
            scope: Scope::Task(document.key),
            after: Position::START,
            limit: usize::MAX,
        };
        let events = store.events(query).await.unwrap();
        events
            .iter()
            .map(|event| Event::parse(&event.bytes).unwrap())
            .collect()
    }

    pub(crate) async fn log(&self, id: &TaskId) -> Vec<Event> {
        let bytes = self.bytes(id).await;
        bytes
            .iter()
            .map(|bytes| Event::parse(bytes).unwrap())
            .collect()
    }

    /// Asks for a replay and waits for its end.
    pub(crate) async fn replay(&self, source: &TaskId, body: Value) -> Finished {
        let id = self.replay_id(source, body).await;
        self.ended(&id).await
    }

    pub(crate) async fn replay_id(&self, source: &TaskId, body: Value) -> TaskId {
        let answer = self.try_replay(source, body).await.unwrap();
        TaskId::parse(&answer.view.document.id).unwrap()
    }

    pub(crate) async fn try_replay(
        &self,
        source: &TaskId,
        body: Value,
    ) -> Result<engine::Answer, Refused> {
        self.write(replay_request(source, body, false)).await
    }

    pub(crate) async fn conformance_replay(&self, source: &TaskId, body: Value) -> Finished {
        let answer = self
            .write(replay_request(source, body, true))
            .await
            .unwrap();
        let id = TaskId::parse(&answer.view.document.id).unwrap();
        self.ended(&id).await
    }

    /// The receipt of a Task.
    pub(crate) async fn receipt(&self, task: &Finished) -> Receipt {
        let id = task.task.receipt_id.as_ref().expect("a receipt");
        let form = self
            .engine
            .receipt(&Caller::system(), id.as_str())
            .await
            .unwrap();
        Receipt::read(&form.bytes.unwrap()).unwrap()
    }

    /// The unanswered requests of a Task, in the order in which they were made.
    pub(crate) async fn pending(&self, task: &TaskId) -> Vec<domain::PermissionId> {
        let awaited: Vec<_> = self.task(task).await.awaited().cloned().collect();
        let mut pending = Vec::new();
        for id in awaited {
            let view = self
                .engine
                .get(&Caller::system(), ResourceKind::Permission, id.as_str())
                .await
                .unwrap();
            if let domain::State::Permission(request) = &view.document.state
                && request.answer == domain::Answer::Pending
            {
                pending.push(id);
            }
        }
        pending
    }

    /// Answers the first pending approval of a Task.
    pub(crate) async fn approve(&self, task: &TaskId, approved: bool) {
        self.reach(task, Status::AuthRequired).await;
        let id = self.pending(task).await.remove(0);
        let request = Request::RespondPermission {
            id,
            approved: Some(approved),
            answer: None,
            remarks: Map::new(),
        };
        self.write(request).await.unwrap();
    }

    pub(crate) async fn cancel(&self, task: &TaskId) {
        let request = Request::CancelTask {
            id: task.clone(),
            reason: None,
        };
        self.write(request).await.unwrap();
    }

    /// Everything that the store holds, event by event and blob by blob.
    pub(crate) async fn every_byte(&self) -> Vec<u8> {
        let query = ReadEvents {
            scope: Scope::All,
            after: Position::START,
            limit: usize::MAX,
        };
        let mut all = Vec::new();
        let mut digests = BTreeSet::new();
        for event in self.store.events(query).await.unwrap() {
            all.extend_from_slice(&event.bytes);
            all.push(b'\n');
            collect_digests(&serde_json::from_slice(&event.bytes).unwrap(), &mut digests);
        }
        for digest in digests {
            if let Some(bytes) = self.store.blob(digest).await.unwrap() {
                all.extend_from_slice(&bytes);
                all.push(b'\n');
            }
        }
        for kind in ResourceKind::ALL {
            let query = engine::port::ListQuery {
                kind,
                scope: Scope::All,
                open_only: false,
                after: Position::START,
                limit: usize::MAX,
            };
            for document in self.store.list(query).await.unwrap() {
                all.extend_from_slice(&serde_json::to_vec(&document.state).unwrap());
            }
        }
        all
    }

    /// What an export of a finished Task holds: its events, the blobs they name, and its receipt.
    pub(crate) async fn exported(&self, task: &Finished) -> Exported {
        let events = self.bytes(&task.id).await;
        let mut blobs = BTreeMap::new();
        for digest in replay::blobs_named(&events).unwrap() {
            if let Some(bytes) = self.store.blob(digest).await.unwrap() {
                blobs.insert(digest, bytes.to_vec());
            }
        }
        Exported {
            events,
            blobs,
            receipt: self.receipt(task).await,
        }
    }
}

/// Waits for a commit; false when none comes. Only a real runtime has the time to tell.
async fn heard(news: &mut tokio::sync::broadcast::Receiver<engine::port::News>) -> bool {
    if tokio::runtime::Handle::try_current().is_err() {
        news.recv().await.ok();
        return true;
    }
    tokio::time::timeout(Duration::from_secs(20), news.recv())
        .await
        .is_ok()
}

pub(crate) fn replay_request(source: &TaskId, body: Value, conformance: bool) -> Request {
    Request::ReplayTask(ReplayTask {
        id: source.clone(),
        body,
        conformance,
        session_id: None,
    })
}

/// A finished Task outside any store.
#[derive(Clone)]
pub(crate) struct Exported {
    pub(crate) events: Vec<Arc<[u8]>>,
    pub(crate) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(crate) receipt: Receipt,
}

impl Exported {
    pub(crate) fn source(&self) -> Source {
        Source::read(
            &self.events,
            self.blobs.clone(),
            Some(self.receipt.clone()),
            None,
        )
        .unwrap()
    }

    /// Replays through the pure functions alone. Returns the receipt, unsigned.
    pub(crate) fn replay(&self, body: &Value, workflows: &Registry) -> (replay::Replayed, Receipt) {
        let source = self.source();
        let (spec, secrets) = replay::read(body, &source, &BTreeMap::new(), false).unwrap();
        let replayed = run_pure(&source, workflows, &spec, &secrets);
        let issuing = ReceiptIssuer {
            id: "reprise-test".to_owned(),
            name: None,
            ordinal: 1,
        };
        let receipt = replay::receipt(&source, &spec, &replayed, &issuing).unwrap();
        (replayed, receipt)
    }
}

pub(crate) fn run_pure(
    source: &Source,
    workflows: &Registry,
    spec: &Spec,
    secrets: &BTreeMap<String, Value>,
) -> replay::Replayed {
    match replay::run(source, workflows, spec, secrets, BTreeMap::new()) {
        Progress::Ended(replayed) => replayed,
        Progress::Needs(paused) => panic!("it needs {:?}", paused.effect()),
    }
}

fn collect_digests(value: &Value, digests: &mut BTreeSet<Digest>) {
    match value {
        Value::String(text) => digests.extend(Digest::parse(text).ok()),
        Value::Array(items) => items.iter().for_each(|item| collect_digests(item, digests)),
        Value::Object(map) => map.values().for_each(|item| collect_digests(item, digests)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A receipt without its signatures, as canonical bytes.
pub(crate) fn unsigned(receipt: &Receipt) -> Vec<u8> {
    let mut map = receipt.as_map().clone();
    map.insert("signatures".to_owned(), json!([]));
    jcs(&Value::Object(map))
}

/// A request with overrides: key, kind and value of each.
pub(crate) fn with(overrides: &[(&str, &str, Value)]) -> Value {
    let given: Map<String, Value> = overrides
        .iter()
        .map(|(key, kind, value)| ((*key).to_owned(), json!({"kind": kind, "value": value})))
        .collect();
    json!({"mode": "with_overrides", "override": given})
}

/// A chat completion that says something.
pub(crate) fn saying(content: &str) -> Value {
    json!({"id": "changed", "choices": [{"message": {"role": "assistant", "content": content}}]})
}

/// Two tools: one that may be repeated and one that may not.
pub(crate) fn two_tools() -> Value {
    json!([
        {"name": "look", "description": "looks", "parameters": {"type": "object"}, "repeatable": true, "read_only": true, "server": "eyes"},
        {"name": "send", "description": "sends", "parameters": {"type": "object"}, "repeatable": false},
    ])
}

pub(crate) fn deltas(receipt: &Receipt) -> Vec<Value> {
    receipt.as_map()["deltas"].as_array().unwrap().clone()
}

/// The source kinds that a replay repeats, in order: what belongs to a Task's own life is told, not repeated.
pub(crate) fn expected_kinds(source: &Finished) -> Vec<String> {
    let sealed = source
        .events
        .iter()
        .position(|event| {
            &*event.kind == "task.status_changed"
                && event.replay.is_none()
                && ["COMPLETED", "FAILED", "CANCELED"]
                    .contains(&event.payload["to"].as_str().unwrap_or_default())
        })
        .unwrap();
    source.events[..=sealed]
        .iter()
        .map(|event| {
            let group = event.kind.split('.').next().unwrap();
            match group {
                "task" | "receipt" | "replay" => "replay.event_replayed".to_owned(),
                _ => event.kind.to_string(),
            }
        })
        .collect()
}
