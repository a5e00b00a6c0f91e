//! Orders about Tasks: submitting one, and what is said to one.

use canon::{Map, Value};
use domain::{
    Answer, AnswerRequest, Ask, BranchId, InputSpec, InterruptTask, MessageSpec, NewTask, Order,
    PermissionId, PersonaId, Position, Refusal, RequestReply, ResourceKind, State, SubmitTask,
    Task, TaskId, TaskInput, TaskMessageKind,
};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::{ListQuery, Scope};
use crate::refused::Refused;

impl Engine {
    pub(super) async fn build_task(&self, caller: &Caller, new: NewTask) -> Result<Order, Refused> {
        let (_, session) = self.visible_session(caller, &new.session_id).await?;
        self.shared
            .work
            .may_open(&session.workspace_id, &caller.actor)?;
        // Its own, or else the Session's.
        let of_session = session.persona_id.as_ref().map(PersonaId::as_str);
        let persona = self
            .persona_named(caller, new.persona_id.as_deref().or(of_session))
            .await?;
        let branch = new.branch_id.as_ref().map(BranchId::as_str);
        // Readers of this Workspace must not learn of another one's.
        let place = (caller, Some(&session.workspace_id));
        self.must_be_in(place, ResourceKind::Branch, branch, "branch_id")
            .await?;
        let parent = new.parent_task_id.as_ref().map(TaskId::as_str);
        self.must_be_in(place, ResourceKind::Task, parent, "parent_task_id")
            .await?;
        if let InputSpec::Message(message) = &new.input {
            self.references_must_exist(place, message).await?;
        }
        let entry = persona.as_ref().map(|known| &*known.spec.entry_workflow);
        let workflow = match new.metadata.get("workflow") {
            // A persona says how its agent runs, approvals included: no caller gets around it.
            Some(asked) if entry.is_some_and(|entry| asked.as_str() != Some(entry)) => {
                return Err(Refused::Domain(Refusal::Policy {
                    reason: "persona_workflow",
                    message: format!(
                        "tasks of this persona run `{}`: leave out `metadata.workflow`",
                        entry.unwrap_or_default()
                    ),
                }));
            }
            None => match &persona {
                Some(persona) => self.entry_workflow(persona)?,
                None => "agent",
            },
            Some(asked) => {
                let name = asked.as_str().unwrap_or_default();
                self.offered(name, "metadata.workflow")?;
                name
            }
        };
        let workflow = workflow.to_owned();
        Ok(Order::SubmitTask(SubmitTask {
            id: TaskId::from_body(&self.shared.ids.body()),
            session_id: new.session_id,
            workspace_id: new.workspace_id,
            branch_id: new.branch_id,
            parent_task_id: new.parent_task_id,
            workflow,
            persona: persona.map(|known| self.snapshot(known)).transpose()?,
            input: match new.input {
                InputSpec::Message(message) => TaskInput::Message(self.new_message(message)),
                InputSpec::Object(map) => TaskInput::Object(map),
            },
            metadata: new.metadata,
        }))
    }

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
