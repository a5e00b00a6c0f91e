//! Replaying a Session: its finished Tasks, one after the other, in a fork of it.
//!
//! The fork starts empty and gets the Messages that belong to no Task, in their order; what the Tasks said is told by
//! their replays. The first replay that fails ends it. The fork itself says when it is done, and how far it came.

use std::collections::BTreeMap;

use canon::{Map, Value};
use domain::{
    BranchId, Command, Document, MessageId, Order, Position, Refusal, ResourceKind, SessionId,
    State, TaskId, WorkspaceId,
};
use serde_json::json;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::{ListQuery, Scope};
use crate::refused::Refused;
use crate::replay::RequestError;
use crate::request::{ReplaySession, ReplayTask, Request};
use crate::turn::Lease;

/// What a replay of a Session will do.
struct Plan {
    /// Tasks to replay, with the request of each, in the order in which they were accepted.
    tasks: Vec<(TaskId, Value)>,
    /// Tasks that are left out, and why.
    skipped: Vec<Value>,
}

impl Engine {
    pub(super) async fn build_session_replay(
        &self,
        caller: &Caller,
        request: &ReplaySession,
    ) -> Result<(Option<WorkspaceId>, Order), Refused> {
        let (document, session) = self.visible_session(caller, &request.id).await?;
        let plan = self.plan(&document, request).await?;
        // Everything that can be refused is refused now, Task by Task.
        for (id, body) in &plan.tasks {
            let replay = ReplayTask {
                id: id.clone(),
                body: body.clone(),
                conformance: request.conformance,
                session_id: None,
            };
            self.check_replay(caller, &replay).await?;
        }
        let limit = self.shared.limits.fork_messages_max;
        let messages = self
            .transcript_documents(document.key, &session, Position::START, limit + 1)
            .await?;
        if messages.len() > limit {
            return Err(Refused::Domain(Refusal::Policy {
                reason: "fork_messages_max",
                message: format!("the session has more than {limit} messages (fork_messages_max)"),
            }));
        }
        let messages = messages
            .into_iter()
            .filter_map(|message| match message.state {
                State::Message(state) if state.task_id.is_none() => Some(domain::MessageCopy {
                    id: MessageId::from_body(&self.shared.ids.body()),
                    of: MessageId::parse(&message.id).ok()?,
                    role: state.role,
                    source: state.source,
                }),
                _ => None,
            })
            .collect();
        let mut metadata = Map::new();
        metadata.insert(
            "replay".to_owned(),
            json!({"source_session_id": request.id, "mode": request.body.get("mode")}),
        );
        let order = domain::ForkSession {
            parent: request.id.clone(),
            parent_version: document.version,
            id: SessionId::from_body(&self.shared.ids.body()),
            at_event_id: None,
            branch_id: None,
            new_branch: Some(BranchId::from_body(&self.shared.ids.body())),
            chain: None,
            messages,
            metadata,
        };
        Ok((Some(session.workspace_id), Order::ForkSession(order)))
    }

    /// Runs the replays of an accepted Session replay beside the caller.
    pub(super) fn begin_session_replay(
        &self,
        caller: &Caller,
        request: ReplaySession,
        fork: SessionId,
    ) {
        let (engine, caller) = (self.clone(), caller.clone());
        self.shared.spawn.spawn(Box::pin(async move {
            if let Err(error) = engine.replay_session(&caller, &request, &fork).await {
                tracing::warn!(session.id = %fork, %error, "the replay of a session was not finished");
            }
        }));
    }

    async fn replay_session(
        &self,
        caller: &Caller,
        request: &ReplaySession,
        fork: &SessionId,
    ) -> Result<(), Refused> {
        let (document, _) = self.visible_session(caller, &request.id).await?;
        let plan = self.plan(&document, request).await?;
        let mut done = Vec::new();
        let mut failed = false;
        for (id, body) in plan.tasks {
            let replay = ReplayTask {
                id: id.clone(),
                body,
                conformance: request.conformance,
                session_id: Some(fork.clone()),
            };
            let order = Box::pin(self.carry_out(caller, Request::ReplayTask(replay), None)).await?;
            let replay_id = order.subject.id;
            self.until_ended(&replay_id).await?;
            let (status, broken) = self.how_it_ended(&replay_id).await?;
            done.push(json!({"source_task_id": id, "replay_task_id": replay_id, "status": status}));
            if broken {
                failed = true;
                break;
            }
        }
        let payload = json!({
            "source_session_id": request.id,
            "tasks": done,
            "skipped": plan.skipped,
            "completed": !failed,
        });
        let order = domain::RecordSessionReplay {
            id: fork.clone(),
            payload: match payload {
                Value::Object(payload) => payload,
                _ => Map::new(),
            },
        };
        let command = Command {
            actor: caller.actor.clone(),
            idempotency_key: None,
            order: Order::RecordSessionReplay(order),
        };
        self.order(command, None, Lease::None).await.map(drop)
    }

    async fn until_ended(&self, id: &str) -> Result<(), Refused> {
        let mut news = self.shared.store.news();
        loop {
            match self.document(id).await?.map(|document| document.state) {
                Some(State::Task(task)) if !task.status.is_terminal() => {}
                _ => return Ok(()),
            }
            // Lagging is as good a reason to look again as news.
            let _ = news.recv().await;
        }
    }

    /// Returns the state of a replay, and whether the replay itself failed.
    async fn how_it_ended(&self, id: &str) -> Result<(String, bool), Refused> {
        let document = self.document(id).await?;
        let Some(State::Task(task)) = document.map(|document| document.state) else {
            return Ok(("UNKNOWN".to_owned(), true));
        };
        let code = match task.failure {
            Some(position) => crate::view::payload(&*self.shared.store, position)
                .await?
                .get("failure")
                .and_then(|failure| failure.get("code")?.as_str().map(str::to_owned)),
            None => None,
        };
        let broken = code.is_some_and(|code| code.starts_with("replay_"));
        Ok((
            task.status.as_str().to_owned(),
            broken || !task.status.is_terminal(),
        ))
    }

    async fn plan(&self, session: &Document, request: &ReplaySession) -> Result<Plan, Refused> {
        let invalid = |param: &str, message: &str| {
            Refused::Replay(Box::new(RequestError::Invalid {
                param: param.to_owned(),
                message: message.to_owned(),
                details: Map::new(),
            }))
        };
        let mode = match request.body.get("mode") {
            None | Some(Value::Null) => "exact",
            Some(Value::String(mode)) if mode == "exact" || mode == "with_overrides" => mode,
            Some(_) => {
                return Err(invalid(
                    "mode",
                    "a session is replayed exact or with_overrides",
                ));
            }
        };
        let mut overrides: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
        let given = request.body.get("override").and_then(Value::as_object);
        for (name, value) in given.into_iter().flatten() {
            let Some((task, key)) = name.split_once('/') else {
                return Err(invalid(
                    &format!("override.{name}"),
                    "must be `<task id>/<key>` in the replay of a session",
                ));
            };
            overrides
                .entry(task)
                .or_default()
                .insert(key.to_owned(), value.clone());
        }
        let mut plan = Plan {
            tasks: Vec::new(),
            skipped: Vec::new(),
        };
        let mut after = Position::START;
        loop {
            let query = ListQuery {
                kind: ResourceKind::Task,
                scope: Scope::Session(session.key),
                open_only: false,
                after,
                limit: 500,
            };
            let page = self.shared.store.list(query).await?;
            let Some(last) = page.last() else { break };
            after = last.key;
            for document in page {
                let State::Task(task) = document.state else {
                    continue;
                };
                let why = if task.replay.is_some() {
                    Some("is a replay")
                } else if !task.status.is_terminal() {
                    Some("is not finished")
                } else if task.parent_task_id.is_some() {
                    Some("comes from another task")
                } else {
                    None
                };
                if let Some(why) = why {
                    plan.skipped
                        .push(json!({"task_id": document.id, "reason": why}));
                    continue;
                }
                let Ok(id) = TaskId::parse(&document.id) else {
                    continue;
                };
                let mut body = json!({"mode": mode});
                if let Value::Object(body) = &mut body {
                    if let Some(given) = overrides.remove(&*document.id) {
                        body.insert("override".to_owned(), Value::Object(given));
                    }
                    for member in ["reason", "refresh", "metadata"] {
                        if let Some(value) = request.body.get(member) {
                            body.insert(member.to_owned(), value.clone());
                        }
                    }
                }
                plan.tasks.push((id, body));
            }
        }
        match overrides.keys().next() {
            None => Ok(plan),
            Some(task) => Err(invalid(
                &format!("override.{task}"),
                "names no task of this session that is replayed",
            )),
        }
    }
}
