//! Accepting the replay of a Session: its finished Tasks, one after the other, in a fork of it.
//!
//! The fork starts empty and gets the Messages that belong to no Task, in their order; what the Tasks said is told by
//! their replays. What will be replayed is decided here, and is part of the fork from its first event on; the fork itself
//! says when it is done, and how far it came.

use std::collections::BTreeMap;

use canon::{Map, Value, jcs};
use domain::{
    Blob, BranchId, Document, MessageId, Order, Position, Refusal, ReplaySession, ReplayTask,
    ResourceKind, SessionId, SessionReplay, State, TaskId,
};
use serde_json::json;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::{ListQuery, Scope};
use crate::refused::Refused;
use crate::worker::session_replay::{Plan, PlannedReplay, salt_of};
use runs::replay::RequestError;

/// What a request asks for.
#[derive(Default)]
struct ReplaySelection {
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
    ) -> Result<Order, Refused> {
        let (document, session) = self.visible_session(caller, &request.id).await?;
        let wanted = self.wanted(&document, request).await?;
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
        let (plan, salt) = self.plan(caller, request, wanted).await?;
        let mut metadata = Map::new();
        metadata.insert(
            "replay".to_owned(),
            json!({"source_session_id": request.id, "mode": wanted_mode(request)?}),
        );
        let order = domain::ForkSession {
            parent: request.id.clone(),
            parent_version: document.version,
            id: SessionId::from_body(&self.shared.ids.body()),
            at_event_id: None,
            branch_id: None,
            new_branch: Some(BranchId::from_body(&self.shared.ids.body())),
            chain: None,
            replay: Some(SessionReplay {
                plan: Blob::new(plan),
                salt,
            }),
            messages,
            metadata,
        };
        Ok(Order::ForkSession(order))
    }

    /// Refuses what can be refused, Task by Task, and keeps the secrets that no plan may hold. Returns the plan and the salt
    /// that they are kept under.
    async fn plan(
        &self,
        caller: &Caller,
        request: &ReplaySession,
        wanted: ReplaySelection,
    ) -> Result<(Vec<u8>, String), Refused> {
        let mut plan = Plan {
            actor: caller.actor.clone(),
            source_session_id: request.id.clone(),
            salt: self.shared.ids.salt(),
            tasks: Vec::new(),
            skipped: wanted.skipped,
        };
        let mut told = Vec::new();
        for (number, (id, body)) in wanted.tasks.into_iter().enumerate() {
            let replay = ReplayTask {
                id,
                body,
                conformance: request.conformance,
                session_id: None,
            };
            let (order, secrets) = self.check_replay(caller, &replay).await?;
            told.push((salt_of(&plan.salt, Some(number)), secrets));
            plan.tasks.push(PlannedReplay {
                task_id: order.source,
                mode: order.mode,
                request: order.request,
                metadata: order.metadata,
            });
        }
        let value = serde_json::to_value(&plan).map_err(|error| Refused::Internal {
            detail: error.to_string(),
        })?;
        for (salt, secrets) in told {
            self.shared.keep_secrets(&salt, None, secrets);
        }
        Ok((jcs(&value), plan.salt))
    }

    async fn wanted(
        &self,
        session: &Document,
        request: &ReplaySession,
    ) -> Result<ReplaySelection, Refused> {
        let mode = wanted_mode(request)?;
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
        let mut plan = ReplaySelection::default();
        let mut imported = Vec::new();
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
                match task.imported {
                    Some(of) => imported.push((of.submitted_at, (id, body))),
                    None => plan.tasks.push((id, body)),
                }
            }
        }
        // Tasks of another log may have come in any order; they were all accepted before any of this log's own.
        imported.sort_by_key(|(at, _)| *at);
        let imported = imported.into_iter().map(|(_, task)| task);
        plan.tasks.splice(..0, imported);
        match overrides.keys().next() {
            None => Ok(plan),
            Some(task) => Err(invalid(
                &format!("override.{task}"),
                "names no task of this session that is replayed",
            )),
        }
    }
}

fn wanted_mode(request: &ReplaySession) -> Result<&str, Refused> {
    match request.body.get("mode") {
        None | Some(Value::Null) => Ok("exact"),
        Some(Value::String(mode)) if mode == "exact" || mode == "with_overrides" => Ok(mode),
        Some(_) => Err(invalid(
            "mode",
            "a session can be replayed `exact` or `with_overrides`",
        )),
    }
}

fn invalid(param: &str, message: &str) -> Refused {
    Refused::Replay(Box::new(RequestError::Invalid {
        param: param.to_owned(),
        message: message.to_owned(),
        details: Map::new(),
    }))
}
