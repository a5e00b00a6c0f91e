//! Simulated clients: they write under idempotency keys, repeat themselves, and remember what was acknowledged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use canon::Map;
use domain::{
    Position, ResourceKind, Role, SessionId, State, Status, TaskId, Timestamp, WorkspaceId,
};
use engine::port::{ApiKey, Clock, ListQuery, Scope};
use engine::{
    Caller, Engine, EventRange, Filters, Idempotency, InputSpec, MessageSpec, NewSession, NewTask,
    Refused, ReplaySession, ReplayTask, Request, Settle, TaskMessageKind,
};
use serde_json::json;

use crate::fields::FieldReplies;
use crate::world::Dice;

/// The idempotency key under which the second Workspace is made.
const OTHER_WORKSPACE: &str = "client1/workspace";

/// What clients were told, over all lives of the engine.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Idempotency key to the id it was answered with.
    pub(crate) acknowledged: BTreeMap<String, Box<str>>,
    /// Answers that contradict an earlier answer for the same key.
    pub(crate) contradictions: Vec<String>,
    /// Statuses that were acknowledged as terminal.
    pub(crate) ended: BTreeMap<Box<str>, Status>,
    /// What was said to the field that clients share.
    pub(crate) told: FieldReplies,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct SharedLedger(Arc<Mutex<Ledger>>);

impl SharedLedger {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acknowledge(&self, key: &str, id: &str) {
        let mut ledger = self.lock();
        if let Some(known) = ledger.acknowledged.get(key) {
            if **known != *id {
                let text = format!("{key} was answered with {known} and with {id}");
                ledger.contradictions.push(text);
            }
            return;
        }
        ledger.acknowledged.insert(key.to_owned(), id.into());
    }
}

/// One client: a session of its own and a list of things to do in it. It survives the engine's crashes, as real
/// clients do, by repeating what was not acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) number: u32,
    pub(crate) actions: u32,
    pub(crate) dice: Dice,
    pub(crate) ledger: SharedLedger,
}

impl Client {
    /// Does what is left to do against one life of the engine.
    pub(crate) async fn run(self, engine: Engine) {
        let Some(session) = self.session(&engine).await else {
            return;
        };
        for action in 0..self.actions {
            self.act(&engine, &session, action).await;
        }
        // What is said to a field costs more than the rest: some seeds do it, and then in every life.
        if self.actions.is_multiple_of(3) {
            self.share(&engine).await;
        }
        if self.number == 1 && self.actions.is_multiple_of(2) {
            self.close(&engine, session).await;
        }
    }

    /// Closes its Session while Tasks of it are open.
    async fn close(&self, engine: &Engine, session: SessionId) {
        for workflow in ["hold", "ask", "careful"] {
            let key = format!("client{}/left/{workflow}", self.number);
            self.write(engine, &key, task(&session, workflow)).await;
        }
        let key = format!("client{}/close", self.number);
        self.write(engine, &key, Request::CloseSession(session))
            .await;
    }

    async fn write(&self, engine: &Engine, key: &str, request: Request) -> Option<Box<str>> {
        let known = self.ledger.lock().acknowledged.get(key).cloned();
        // Mostly an acknowledged write is not repeated, but sometimes it is: nothing may come of it.
        if known.is_some() && !self.dice.one_in(3) {
            return known;
        }
        let idempotency = Idempotency {
            key: key.to_owned(),
            method: "POST".to_owned(),
            target: "/simulated".to_owned(),
            body: json!({"key": key}),
        };
        let caller = Caller::system();
        match engine
            .dispatch(&caller, request, Some(idempotency), Settle::Window)
            .await
        {
            Ok(answer) => {
                let id = answer.view.document.id.clone();
                self.ledger.acknowledge(key, &id);
                if let State::Task(task) = &answer.view.document.state
                    && task.status.is_terminal()
                {
                    self.ledger.lock().ended.insert(id.clone(), task.status);
                }
                Some(id)
            }
            Err(Refused::Internal { .. } | Refused::Domain(_) | Refused::Busy { .. }) => None,
            Err(_) => None,
        }
    }

    /// One client has a Workspace of its own, the others share the local one.
    async fn workspace(&self, engine: &Engine) -> Option<Option<WorkspaceId>> {
        if self.number != 1 {
            return Some(None);
        }
        let request = Request::CreateWorkspace(domain::NewWorkspace {
            name: "other".to_owned(),
            root: "sim://other".to_owned(),
            metadata: Map::new(),
        });
        let id = self.write(engine, OTHER_WORKSPACE, request).await?;
        WorkspaceId::parse(&id).ok().map(Some)
    }

    async fn session(&self, engine: &Engine) -> Option<SessionId> {
        let request = Request::CreateSession(NewSession {
            workspace_id: self.workspace(engine).await?,
            mode_id: None,
            persona_id: None,
            model_policy: None,
            initial_messages: vec![message("first")],
            metadata: Map::new(),
        });
        let id = self
            .write(engine, &format!("client{}/session", self.number), request)
            .await?;
        SessionId::parse(&id).ok()
    }

    async fn act(&self, engine: &Engine, session: &SessionId, action: u32) {
        let key = format!("client{}/{action}", self.number);
        // What an action is depends on its number alone: a repetition asks for the same.
        match (self.number * 7 + action) % 10 {
            0..=2 => {
                let words = if action.is_multiple_of(5) {
                    "long ".repeat(1_000)
                } else {
                    key.clone()
                };
                let request = Request::AppendMessage {
                    session_id: session.clone(),
                    message: message(&words),
                };
                self.write(engine, &key, request).await;
            }
            // Long logs are slow to check: one in some runs is enough.
            4 if self.actions == 8 => {
                if let Some(id) = self.write(engine, &key, task(session, "talk")).await
                    && let Ok(id) = TaskId::parse(&id)
                {
                    self.replay_task(engine, &key, &id).await;
                }
            }
            3 | 4 => {
                let workflow = match action % 4 {
                    0 => "agent",
                    1 => "poison",
                    _ => "careful",
                };
                self.write(engine, &key, task(session, workflow)).await;
            }
            5 => {
                if let Some(id) = self.write(engine, &key, task(session, "ask")).await {
                    self.answer(engine, &key, &id).await;
                }
            }
            6 => {
                if let Some(id) = self.write(engine, &key, task(session, "hold")).await
                    && let Ok(id) = TaskId::parse(&id)
                {
                    let interrupt = Request::SendTaskMessage {
                        id: id.clone(),
                        kind: TaskMessageKind::Interrupt,
                        message: message("rather this"),
                    };
                    self.write(engine, &format!("{key}/interrupt"), interrupt)
                        .await;
                    let cancel = Request::CancelTask { id, reason: None };
                    self.write(engine, &format!("{key}/cancel"), cancel).await;
                }
            }
            7 => {
                let keep_first = u64::from(action);
                let request = Request::TruncateSession {
                    id: session.clone(),
                    keep_first,
                    reason: None,
                };
                self.write(engine, &key, request).await;
            }
            8 => {
                if let Some(id) = self.finished(engine, session).await {
                    self.replay_task(engine, &key, &id).await;
                }
            }
            _ => {
                let request = Request::ReplaySession(ReplaySession {
                    id: session.clone(),
                    body: json!({"reason": key}),
                    conformance: false,
                });
                self.write(engine, &key, request).await;
            }
        }
    }

    /// Replays a Task, exactly and with an answer changed.
    async fn replay_task(&self, engine: &Engine, key: &str, task: &TaskId) {
        for (number, body) in [
            json!({}),
            json!({"mode": "with_overrides", "override": {"llm:main:1": {
                "kind": "llm_provider_response",
                "value": {"id": "c", "choices": [{"message": {"role": "assistant", "content": "else"}}]},
            }}}),
        ]
        .into_iter()
        .enumerate()
        {
            let request = Request::ReplayTask(ReplayTask {
                id: task.clone(),
                body,
                conformance: false,
                session_id: None,
            });
            self.write(engine, &format!("{key}/{number}"), request).await;
        }
    }

    /// Chooses one of the finished Tasks of the Session, which may be a replay itself.
    async fn finished(&self, engine: &Engine, session: &SessionId) -> Option<TaskId> {
        let document = engine.store().document(session.as_str()).await.ok()??;
        let query = ListQuery {
            kind: ResourceKind::Task,
            scope: Scope::Session(document.key),
            open_only: false,
            after: domain::Position::START,
            limit: usize::MAX,
        };
        let tasks = engine.store().list(query).await.ok()?;
        let finished = tasks.iter().filter(
            |document| matches!(&document.state, State::Task(task) if task.status.is_terminal()),
        );
        let finished: Vec<_> = finished.collect();
        let chosen = self.dice.below(u32::try_from(finished.len()).ok()?.max(1));
        TaskId::parse(&finished.get(chosen as usize)?.id).ok()
    }

    async fn answer(&self, engine: &Engine, key: &str, id: &str) {
        let Ok(id) = TaskId::parse(id) else { return };
        let request = Request::SendTaskMessage {
            id,
            kind: TaskMessageKind::Input,
            message: message("the answer"),
        };
        self.write(engine, &format!("{key}/answer"), request).await;
    }
}

fn message(words: &str) -> MessageSpec {
    MessageSpec {
        role: Role::User,
        parts: vec![json!({"type": "text", "text": words, "visibility": "public"})],
        metadata: Map::new(),
    }
}

fn task(session: &SessionId, workflow: &str) -> Request {
    Request::SubmitTask(NewTask {
        session_id: session.clone(),
        workspace_id: None,
        persona_id: None,
        branch_id: None,
        parent_task_id: None,
        input: InputSpec::Message(message("do it")),
        metadata: [("workflow".to_owned(), workflow.into())]
            .into_iter()
            .collect(),
    })
}

/// Ends everything that would stay open for good, so that the end of a run can be checked. Only what waits for a
/// client is ended; what a worker can end must end by itself, in bounded time.
pub(crate) async fn finish_all(engine: &Engine, clock: impl Clock) {
    let caller = Caller::system();
    for _ in 0..60 {
        let query = ListQuery {
            kind: ResourceKind::Task,
            scope: Scope::All,
            open_only: true,
            after: domain::Position::START,
            limit: usize::MAX,
        };
        let Ok(open) = engine.store().list(query).await else {
            return;
        };
        for document in open {
            let State::Task(state) = &document.state else {
                continue;
            };
            let Ok(id) = TaskId::parse(&document.id) else {
                continue;
            };
            // A replay ends by itself, whatever it repeats.
            if (state.workflow == "hold" && state.replay.is_none()) || state.status.is_waiting() {
                let request = Request::CancelTask { id, reason: None };
                let _ = engine
                    .dispatch(&caller, request, None, Settle::Window)
                    .await;
            }
        }
        clock.sleep(Duration::from_secs(1)).await;
    }
}

/// A reader whose key is bound to two Workspaces. What it was given, in order, must be what the log holds.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    pub(crate) ledger: SharedLedger,
    pub(crate) given: Arc<Mutex<Vec<Position>>>,
    /// By pages instead of a stream.
    pub(crate) pages: bool,
}

impl Reader {
    /// Reads as long as the engine lives.
    pub(crate) async fn run(self, engine: Engine, clock: impl Clock) {
        let other = loop {
            let known = self
                .ledger
                .lock()
                .acknowledged
                .get(OTHER_WORKSPACE)
                .cloned();
            match known {
                Some(id) => break id,
                None => clock.sleep(Duration::from_millis(300)).await,
            }
        };
        let (digest, made_at) = (canon::sha256(b"reader"), Timestamp::from_micros(0));
        let caller = Caller::from_key(&ApiKey {
            workspaces: Some(vec![WorkspaceId::local().to_string(), other.to_string()]),
            ..ApiKey::new("reader", digest, "reader", ["*"], made_at)
        });
        let mut range = EventRange {
            filters: Filters::default(),
            after_event_id: None,
            limit: 5,
        };
        if !self.pages {
            let Ok(mut stream) = engine.stream(&caller, range).await else {
                return;
            };
            while let Ok(Some(frame)) = stream.next().await {
                self.give(frame.event.position);
            }
            return;
        }
        loop {
            let Ok(page) = engine.events(&caller, range.clone()).await else {
                return;
            };
            for event in &page.events {
                self.give(event.position);
            }
            if let Some(last) = page.events.last() {
                range.after_event_id = Some(engine.store().name().id(last.position));
            }
            if !page.has_more {
                clock.sleep(Duration::from_millis(700)).await;
            }
        }
    }

    fn give(&self, position: Position) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.push(position);
    }

    /// Returns what it was given.
    pub(crate) fn given(&self) -> Vec<Position> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.clone()
    }
}
