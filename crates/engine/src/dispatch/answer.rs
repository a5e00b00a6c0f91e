//! Orders about what is said to a Task: messages, and answers to what it asks.

use canon::{Map, Value};
use domain::{
    Answer, AnswerRequest, Ask, InterruptTask, MessageSpec, Order, PermissionId, Position, Refusal,
    RequestReply, ResourceKind, State, Task, TaskId, TaskMessageKind,
};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::{ListQuery, Scope};
use crate::refused::Refused;

impl Engine {
    pub(super) async fn build_task_message(
        &self,
        caller: &Caller,
        id: TaskId,
        kind: TaskMessageKind,
        message: MessageSpec,
    ) -> Result<Order, Refused> {
        let (document, task) = self.visible_task(caller, &id).await?;
        self.session_must_be_open(caller, &task).await?;
        // The request that waits, or the last one that was answered: a repeated answer must find it.
        let ask = match kind {
            TaskMessageKind::Interrupt if crate::govern::is_governed(&task) => {
                return Err(Refused::Domain(Refusal::Conflict {
                    reason: "governed",
                    message: "the program of a governed session cannot be interrupted from here"
                        .to_owned(),
                    status: Some(task.status),
                }));
            }
            TaskMessageKind::Interrupt => {
                let message = self.new_message(message);
                return Ok(Order::InterruptTask(InterruptTask { id, message }));
            }
            // Its log is made of what its program and those who decide say to the session, and of nothing else.
            TaskMessageKind::Input | TaskMessageKind::ToolConfirmation
                if crate::govern::is_governed(&task) =>
            {
                return Err(Refused::Domain(Refusal::Conflict {
                    reason: "governed",
                    message:
                        "a governed session takes decisions through its approvals, not by message"
                            .to_owned(),
                    status: Some(task.status),
                }));
            }
            TaskMessageKind::Input => Ask::Input,
            TaskMessageKind::ToolConfirmation => Ask::Approval,
        };
        let named = message
            .parts
            .iter()
            .find_map(|part| part.pointer("/value/request_id")?.as_str());
        let found = self.request_of(document.key, ask, named).await?;
        let Some(request) = found else {
            return Err(Refused::Domain(if task.status.is_terminal() {
                Refusal::InvalidTransition {
                    status: task.status,
                }
            } else {
                Refusal::Conflict {
                    reason: "not_waiting",
                    message: format!(
                        "the task is {} and is not waiting for input",
                        task.status.as_str()
                    ),
                    status: Some(task.status),
                }
            }));
        };
        let reply = match ask {
            Ask::Input => RequestReply::Message(self.new_message(message)),
            Ask::Approval => {
                let mut parts = message.parts.iter();
                let decision = parts.find_map(|part| part.pointer("/value/approved")?.as_bool());
                let Some(approved) = decision else {
                    return Err(Refused::Domain(Refusal::Invalid {
                        param: "message.parts",
                        message:
                            "a tool confirmation needs a `json` part with a boolean `approved`"
                                .to_owned(),
                    }));
                };
                let message = self.new_message(message);
                RequestReply::Confirm { approved, message }
            }
        };
        must_differ(caller, ask, &reply, &task)?;
        Ok(Order::AnswerRequest(AnswerRequest {
            id: request,
            reply,
            remarks: Map::new(),
            key_id: caller.key_id.clone(),
            answered_at: Some(self.shared.clock.now()),
        }))
    }

    pub(super) async fn build_answer(
        &self,
        caller: &Caller,
        id: PermissionId,
        approved: Option<bool>,
        answer: Option<Value>,
        remarks: Map<String, Value>,
    ) -> Result<AnswerRequest, Refused> {
        let permission = self.visible_permission(caller, &id).await?;
        let reply = match (permission.ask, approved, answer) {
            (_, Some(false), _) => RequestReply::Deny,
            (Ask::Input, _, Some(answer)) => RequestReply::Value(answer),
            (Ask::Approval, None, Some(answer)) => RequestReply::Value(answer),
            (_, Some(true) | None, _) => RequestReply::Approve,
        };
        let (_, task) = self.visible_task(caller, &permission.task_id).await?;
        self.session_must_be_open(caller, &task).await?;
        must_differ(caller, permission.ask, &reply, &task)?;
        let key_id = caller.key_id.clone();
        Ok(AnswerRequest {
            id,
            reply,
            remarks,
            key_id,
            answered_at: Some(self.shared.clock.now()),
        })
    }

    /// Closing a Session ends its Tasks: that is what stands in the way of an answer then, not how the Task ended.
    async fn session_must_be_open(&self, caller: &Caller, task: &Task) -> Result<(), Refused> {
        if !task.status.is_terminal() {
            return Ok(());
        }
        let id = &task.session_id;
        match self.visible_session(caller, id).await {
            Ok((_, session)) if session.closed => Err(Refused::Domain(Refusal::Conflict {
                reason: "session_closed",
                message: format!("session `{id}` is closed"),
                status: Some(task.status),
            })),
            // The Session of an imported Task is not here.
            Ok(_) | Err(Refused::Domain(Refusal::NotFound { .. })) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Finds the request that a message answers: the one that it names, the one that waits, or the last one that was
    /// answered. Where several wait, one must be named: a message that comes twice must not answer two of them.
    async fn request_of(
        &self,
        task: Position,
        ask: Ask,
        named: Option<&str>,
    ) -> Result<Option<PermissionId>, Refused> {
        let mut after = Position::START;
        let (mut last, mut waiting) = (None, Vec::new());
        loop {
            let query = ListQuery {
                kind: ResourceKind::Permission,
                scope: Scope::Task(task),
                open_only: false,
                after,
                limit: 200,
            };
            let page = self.shared.store.list(query).await?;
            let Some(end) = page.last() else {
                break;
            };
            after = end.key;
            for document in &page {
                let State::Permission(request) = &document.state else {
                    continue;
                };
                if request.ask != ask || named.is_some_and(|named| *named != *document.id) {
                    continue;
                }
                last = PermissionId::parse(&document.id).ok();
                if request.answer == Answer::Pending {
                    waiting.extend(last.clone());
                }
            }
        }
        match (waiting.len(), named) {
            (0, Some(named)) if last.is_none() => Err(Refused::Domain(Refusal::Invalid {
                param: "message.parts",
                message: format!("the task has no request `{named}` of this kind"),
            })),
            (0, _) => Ok(last),
            (1, _) => Ok(waiting.pop()),
            (count, _) => Err(Refused::Domain(Refusal::Conflict {
                reason: "several_requests",
                message: format!(
                    "the task waits for {count} answers: name the request in `request_id`, or answer each by its id"
                ),
                status: None,
            })),
        }
    }
}

/// Approving is for somebody else than whoever submitted the Task (U21). A key has one actor, so that the same key is the
/// same actor.
fn must_differ(
    caller: &Caller,
    ask: Ask,
    reply: &RequestReply,
    task: &Task,
) -> Result<(), Refused> {
    let approves = matches!(
        reply,
        RequestReply::Approve | RequestReply::Confirm { approved: true, .. }
    );
    match ask == Ask::Approval && approves && task.created_by == caller.actor {
        true => Err(Refused::ApproverMustDiffer),
        false => Ok(()),
    }
}
