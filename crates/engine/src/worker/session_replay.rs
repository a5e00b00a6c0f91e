//! Working on the replay of a Session: its Tasks one after the other, as they were planned when it was accepted.
//!
//! The plan is a blob that the fork names from its first event until the one that says how far it came, so that a process
//! that takes over goes on with the same plan. What is done already is found by its source. Secrets are in no plan: a
//! replay that needs one which died with its process fails and says so.

use std::collections::BTreeMap;
use std::time::Duration;

use canon::{Map, Value};
use domain::{
    Command, Document, Order, Position, Refusal, ResourceKind, SessionId, State, SubmitReplay,
    TaskId, payload,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;

use super::Work;
use crate::dispatch::replay::{goes_live, replay_id};
use crate::engine::Engine;
use crate::port::{ListQuery, Scope};
use crate::refused::Refused;
use crate::turn::Lease;
use runs::replay::Spec;

/// What a replay of a Session will do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Who asked for it.
    pub(crate) actor: String,
    /// The Session that is replayed.
    pub(crate) source_session_id: SessionId,
    /// Begins the salts of its Tasks' requests.
    pub(crate) salt: String,
    /// Tasks to replay, in the order in which they were accepted.
    pub(crate) tasks: Vec<PlannedReplay>,
    /// Tasks that are left out, and why.
    pub(crate) skipped: Vec<Value>,
}

/// A Task to replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlannedReplay {
    /// The Task.
    pub(crate) task_id: TaskId,
    /// The mode, in the contract's word.
    pub(crate) mode: String,
    /// The accepted request, without secrets.
    pub(crate) request: Value,
    /// The caller's own members.
    pub(crate) metadata: Map<String, Value>,
}

/// Returns the salt of one of the requests of a plan; without a number, how all of them begin.
pub(crate) fn salt_of(salt: &str, number: Option<usize>) -> String {
    match number {
        Some(number) => format!("{salt}/{number}"),
        None => format!("{salt}/"),
    }
}

impl Work {
    /// Reacts to a Session that a turn left: one that replays is worked on, once.
    pub(super) fn replay_session(&self, document: &Document, replays: bool) {
        let mut replaying = self
            .replaying
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if !replays {
            replaying.remove(&document.key);
        } else if let Ok(id) = SessionId::parse(&document.id)
            && replaying.insert(document.key)
        {
            // Fails only when the engine is gone.
            let _ = self.sessions.send(id);
        }
    }
}

impl Engine {
    /// Finds the Sessions that an earlier process had not finished replaying.
    pub(crate) async fn open_session_replays(&self) -> Result<Vec<Document>, Refused> {
        let mut found: Vec<Document> = Vec::new();
        loop {
            let query = ListQuery {
                kind: ResourceKind::Session,
                scope: Scope::All,
                open_only: true,
                after: found.last().map_or(Position::START, |last| last.key),
                limit: 500,
            };
            let page = self.shared.store.list(query).await?;
            if page.is_empty() {
                return Ok(found);
            }
            found.extend(page);
        }
    }

    /// Works on replays of Sessions until a drain begins.
    pub(crate) async fn replay_sessions(
        self,
        mut sessions: mpsc::UnboundedReceiver<SessionId>,
        unfinished: Vec<Document>,
    ) {
        for document in &unfinished {
            self.shared.work.replay_session(document, true);
        }
        drop(unfinished);
        let mut closed = self.shared.work.closed.subscribe();
        loop {
            let session = tokio::select! {
                biased;
                _ = closed.wait_for(|closed| *closed) => return,
                session = sessions.recv() => session,
            };
            let Some(session) = session else { return };
            let engine = self.clone();
            self.shared.spawn.spawn(Box::pin(async move {
                engine.replay_session(&session).await;
            }));
        }
    }

    /// Replays one Session to its end. A fault is waited out: what is done is found in the log.
    async fn replay_session(&self, fork: &SessionId) {
        const FAULT_PAUSE: Duration = Duration::from_secs(1);
        while let Err(fault) = self.resume_replay(fork).await {
            if self.is_draining() {
                return;
            }
            tracing::warn!(session.id = %fork, %fault, "the replay of a session was interrupted and will resume");
            self.shared.clock.sleep(FAULT_PAUSE).await;
        }
    }

    async fn resume_replay(&self, fork: &SessionId) -> Result<(), Refused> {
        let document = self.document(fork.as_str()).await?;
        let Some((key, session)) = document.and_then(|document| match document.state {
            State::Session(session) => Some((document.key, session)),
            _ => None,
        }) else {
            return Ok(());
        };
        let Some(digest) = session.replaying else {
            return Ok(());
        };
        let bytes = self.shared.store.blob(digest).await?;
        let plan: Option<Plan> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let Some(plan) = plan else {
            let payload = payload::SessionReplayed::default()
                .source_session_id(json!(session.parent_session_id))
                .tasks(json!([]))
                .skipped(json!([]))
                .completed(false)
                .reason("the plan of this replay is gone");
            return self.record_replay(fork, "system", payload).await;
        };
        let mut done = Vec::new();
        let mut known = self.replays_in(key).await?;
        let mut completed = true;
        for (number, planned) in plan.tasks.iter().enumerate() {
            let source = &planned.task_id;
            let id = match known.remove(source) {
                Some(id) => Ok(id),
                None if self.is_draining() => return Err(Refused::Draining),
                None => self.submit_planned(&plan, number, planned, fork).await,
            };
            let id = match id {
                Ok(id) => id,
                // It was possible when it was planned: whatever happened since is told, and ends it.
                Err(Refused::Domain(refusal)) => {
                    done.push(json!({"source_task_id": source, "replay_task_id": null, "status": "REFUSED", "reason": refusal.to_string()}));
                    completed = false;
                    break;
                }
                Err(fault) => return Err(fault),
            };
            self.until_ended(id.as_str()).await?;
            let (status, broken) = self.how_it_ended(id.as_str()).await?;
            done.push(json!({"source_task_id": source, "replay_task_id": id, "status": status}));
            if broken {
                completed = false;
                break;
            }
        }
        let payload = payload::SessionReplayed::default()
            .source_session_id(json!(plan.source_session_id))
            .tasks(done)
            .skipped(json!(plan.skipped))
            .completed(completed);
        self.record_replay(fork, &plan.actor, payload).await?;
        self.shared.forget_secrets(&plan.salt);
        Ok(())
    }

    /// Returns the replays that a Session holds, by their sources.
    async fn replays_in(&self, key: Position) -> Result<BTreeMap<TaskId, TaskId>, Refused> {
        let mut found = BTreeMap::new();
        let mut after = Position::START;
        loop {
            let query = ListQuery {
                kind: ResourceKind::Task,
                scope: Scope::Session(key),
                open_only: false,
                after,
                limit: 500,
            };
            let page = self.shared.store.list(query).await?;
            let Some(last) = page.last() else {
                return Ok(found);
            };
            after = last.key;
            for document in page {
                if let (State::Task(task), Ok(id)) = (document.state, TaskId::parse(&document.id))
                    && let Some(of) = task.replay
                {
                    found.entry(of.source_task_id).or_insert(id);
                }
            }
        }
    }

    async fn submit_planned(
        &self,
        plan: &Plan,
        number: usize,
        planned: &PlannedReplay,
        fork: &SessionId,
    ) -> Result<TaskId, Refused> {
        if self.shared.work.is_full() {
            return Err(Refused::Busy {
                what: "open_tasks_max",
            });
        }
        let gone = || {
            Refused::Domain(Refusal::NotFound {
                object: TaskId::OBJECT,
                param: None,
            })
        };
        let document = self.document(planned.task_id.as_str()).await?;
        let Some(State::Task(source)) = document.map(|document| document.state) else {
            return Err(gone());
        };
        let (input, persona) = self.input_and_persona(&source).await?;
        let spec: Spec =
            serde_json::from_value(planned.request.clone()).map_err(|error| Refused::Internal {
                detail: error.to_string(),
            })?;
        let salt = salt_of(&plan.salt, Some(number));
        loop {
            let ordinal = self.next_ordinal(&planned.task_id).await?;
            let id = replay_id(&planned.task_id, ordinal)?;
            self.shared.give_secrets(&salt, &id);
            let order = SubmitReplay {
                id: id.clone(),
                ordinal,
                source: planned.task_id.clone(),
                session_id: fork.clone(),
                new_branch: self.branch_for(&spec, &persona),
                mode: planned.mode.clone(),
                goes_live: goes_live(&spec),
                input: input.clone(),
                persona: persona.clone(),
                request: planned.request.clone(),
                salt: salt.clone(),
                metadata: planned.metadata.clone(),
            };
            let command = Command {
                actor: plan.actor.clone(),
                idempotency_key: None,
                order: Order::SubmitReplay(order),
            };
            match self.order(command, None, Lease::None).await {
                Ok(_) => return Ok(id),
                // Somebody else's replay of the same Task got that number.
                Err(Refused::Domain(Refusal::Stale)) => {}
                Err(refused) => return Err(refused),
            }
        }
    }

    async fn until_ended(&self, id: &str) -> Result<(), Refused> {
        let Some(document) = self.document(id).await? else {
            return Ok(());
        };
        let mut watch = self.watch_task(document.key);
        loop {
            match self.document(id).await?.map(|document| document.state) {
                Some(State::Task(task)) if !task.status.is_terminal() => {}
                _ => return Ok(()),
            }
            watch.changed().await;
        }
    }

    /// Returns the state of a replay, and whether the replay itself failed.
    async fn how_it_ended(&self, id: &str) -> Result<(String, bool), Refused> {
        let document = self.document(id).await?;
        let Some(State::Task(task)) = document.map(|document| document.state) else {
            return Ok(("UNKNOWN".to_owned(), true));
        };
        let code = match task.failure {
            Some(position) => payload::TaskEnded::of(&self.payload(position).await?)
                .failure()
                .and_then(|failure| failure.get("code")?.as_str().map(str::to_owned)),
            None => None,
        };
        let broken = code.is_some_and(|code| code.starts_with("replay_"));
        Ok((
            task.status.as_str().to_owned(),
            broken || !task.status.is_terminal(),
        ))
    }

    async fn record_replay(
        &self,
        fork: &SessionId,
        actor: &str,
        payload: payload::SessionReplayed,
    ) -> Result<(), Refused> {
        let order = domain::RecordSessionReplay {
            id: fork.clone(),
            payload,
        };
        let command = Command {
            actor: actor.to_owned(),
            idempotency_key: None,
            order: Order::RecordSessionReplay(order),
        };
        self.order(command, None, Lease::None).await.map(drop)
    }
}
