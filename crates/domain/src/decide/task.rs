//! Tasks as their clients see them: submit, cancel, interrupt, answer.

use canon::{Digest, Value, jcs, sha256};
use serde_json::json;

use super::{Decider, EndedTask, Place};
use crate::kind::Payload;
use crate::payload::{self, Detail, detail};
use crate::{
    Answer, AnswerRequest, Ask, CancelTask, EndIds, InterruptTask, Permission, PermissionId,
    ReceiptPolicy, Refusal, RequestReply, ResourceRef, Status, SubmitTask, Task, TaskId, TaskInput,
    TaskPersona, TrustChainId,
};

pub(super) fn submit(
    decider: &mut Decider<'_>,
    order: &SubmitTask,
) -> Result<ResourceRef, Refusal> {
    let (_, session) = decider
        .open_session(&order.session_id)
        .map_err(|refusal| in_param(refusal, "session", "session_id"))?;
    if let Some(named) = &order.workspace_id
        && *named != session.workspace_id
    {
        return Err(Refusal::Invalid {
            param: "workspace_id",
            message: format!(
                "session `{}` is not in workspace `{named}`",
                order.session_id
            ),
        });
    }
    if let Some(branch) = &order.branch_id {
        decider
            .branch(branch.as_str())
            .map_err(|refusal| in_param(refusal, "branch", "branch_id"))?;
    }
    if let Some(parent) = &order.parent_task_id {
        decider
            .task(parent)
            .map_err(|refusal| in_param(refusal, "task", "parent_task_id"))?;
    }
    let place = Place {
        workspace_id: Some(session.workspace_id.clone()),
        session_id: Some(order.session_id.clone()),
        task_id: Some(order.id.clone()),
    };
    Ok(submit_into(decider, order, &place))
}

/// Drafts a Task in a Session that takes it.
pub(super) fn submit_into(
    decider: &mut Decider<'_>,
    order: &SubmitTask,
    place: &Place,
) -> ResourceRef {
    let subject = order.id.resource();
    let mut submitted = payload::TaskSubmitted::new(&order.workflow, &order.metadata);
    submitted.branch_id.clone_from(&order.branch_id);
    submitted.parent_task_id.clone_from(&order.parent_task_id);
    if let Some(persona) = &order.persona {
        // What the Task's document needs stands beside the copy, which may move into a blob.
        submitted.runs_under(&TaskPersona {
            id: persona.id.clone(),
            version: persona.version.clone(),
            autonomy_tier: persona.autonomy_tier,
            receipt_policy: persona.receipt_policy,
        });
        submitted.persona = Some(detail(persona));
    }
    match &order.input {
        TaskInput::Object(input) => {
            submitted.input = Some(detail(input));
            decider.draft(Payload::TaskSubmitted(submitted), subject.clone(), place);
        }
        TaskInput::Message(message) => {
            decider
                .draft(Payload::TaskSubmitted(submitted), subject.clone(), place)
                .sibling = Some(("input_event_id", 1));
            decider.message(message, &order.session_id, place);
        }
    }
    subject
}

fn in_param(refusal: Refusal, object: &'static str, param: &'static str) -> Refusal {
    match refusal {
        Refusal::NotFound { .. } => Refusal::NotFound {
            object,
            param: Some(param),
        },
        Refusal::Invalid { .. }
        | Refusal::Conflict { .. }
        | Refusal::InvalidTransition { .. }
        | Refusal::Policy { .. }
        | Refusal::Stale => refusal,
    }
}

pub(super) fn cancel(
    decider: &mut Decider<'_>,
    order: &CancelTask,
) -> Result<ResourceRef, Refusal> {
    let task = decider.task(&order.id)?;
    let subject = order.id.resource();
    match task.status {
        Status::Canceled => return Ok(subject),
        Status::Completed | Status::Failed => {
            return Err(Refusal::Conflict {
                reason: "invalid_state_transition",
                message: format!("the task is already {}", task.status.as_str()),
                status: Some(task.status),
            });
        }
        Status::Submitted | Status::Working | Status::InputRequired | Status::AuthRequired => {}
    }
    let place = Place::of_task(&order.id, task);
    let requested = Payload::UserCancelRequested(payload::CancelRequested {
        scope: detail("task"),
        reason: Some(detail(&order.reason)),
        message_id: None,
        pending: None,
    });
    decider.draft(requested, subject.clone(), &place);
    withdraw(decider, task, &place, "the task ended");
    let summary = match &order.reason {
        Some(reason) => format!("Canceled: {reason}"),
        None => "Canceled".to_owned(),
    };
    let ending = TaskEnd {
        status: Status::Canceled,
        summary,
        messages: Messages::Ids(json!([])),
        failure: Value::Null,
    };
    end(decider, &order.id, task.status, &order.ids, &place, ending);
    if let Some(ends) = &mut decider.ends {
        ends.receipt.clone_from(&order.receipt);
    }
    Ok(subject)
}

pub(super) fn interrupt(
    decider: &mut Decider<'_>,
    order: &InterruptTask,
) -> Result<ResourceRef, Refusal> {
    let task = decider.task(&order.id)?;
    if task.status.is_terminal() {
        return Err(Refusal::InvalidTransition {
            status: task.status,
        });
    }
    if task.replay.is_some() {
        return Err(Refusal::Conflict {
            reason: "replay",
            message: "a replay repeats what happened and cannot be interrupted".to_owned(),
            status: Some(task.status),
        });
    }
    if task.interrupts.len() >= INTERRUPTS_MAX {
        return Err(Refusal::Conflict {
            reason: "too_many_interrupts",
            message: "the task has not taken up the interrupts before this one".to_owned(),
            status: Some(task.status),
        });
    }
    let place = Place::of_task(&order.id, task);
    decider.message(&order.message, &task.session_id, &place);
    let pending = match task.status.is_waiting() {
        true => pending(decider, task),
        false => Vec::new(),
    };
    let requested = Payload::UserCancelRequested(payload::CancelRequested {
        scope: detail("step"),
        reason: None,
        message_id: Some(detail(&order.message.id)),
        // What waits can be told at once; whoever works is told when its step has been dropped.
        pending: pending.is_empty().then_some(true),
    });
    decider.draft(requested, order.id.resource(), &place);
    if !pending.is_empty() {
        withdraw(decider, task, &place, "interrupted");
        for request in pending {
            let effect_key = &decider.permission(request.as_str())?.effect_key;
            let value = interrupted(&public_text(&order.message.parts));
            let recorded = Payload::EffectRecorded(payload::EffectRecorded {
                effect_key: Some(json!(effect_key)),
                kind: detail("host_fact"),
                outcome: detail("error"),
                value_sha256: detail(sha256(&jcs(&value))),
                value: Detail::of(value),
                visibility: detail("public"),
                provider_request_id: None,
                model: None,
                side_effects: None,
                interrupted_through: None,
            });
            decider.draft(recorded, order.id.resource(), &place);
        }
        change_status(
            decider,
            order.id.resource(),
            &place,
            task.status,
            Status::Working,
            Some("interrupted"),
        );
    }
    Ok(order.message.id.resource())
}

/// Interrupts that a Task may have been sent without having taken them up.
const INTERRUPTS_MAX: usize = 16;

/// Returns the result of an effect that was dropped for an interrupt: what a workflow is told, and what it goes on with.
pub fn interrupted(input: &str) -> Value {
    json!({
        "code": "interrupted",
        "message": "interrupted before it was done; whether it happened is not known",
        "input": input,
    })
}

/// Returns the requests of a Task that nobody has answered.
fn pending<'t>(decider: &Decider<'_>, task: &'t Task) -> Vec<&'t PermissionId> {
    let is_pending = |id: &&PermissionId| {
        let known = decider.permission(id.as_str());
        known.map_or(true, |request| request.answer == Answer::Pending)
    };
    task.awaited().filter(is_pending).collect()
}

/// Drafts the end of pending requests that nobody will answer.
pub(super) fn withdraw(decider: &mut Decider<'_>, task: &Task, place: &Place, reason: &str) {
    for request in pending(decider, task) {
        let withdrawn = Payload::RequestWithdrawn(payload::Withdrawn {
            reason: detail(reason),
        });
        decider.draft(withdrawn, request.resource(), place);
        if let Ok(known) = decider.permission(request.as_str()) {
            record_trust(decider, request, known, task, place, ("canceled", None));
        }
    }
}

/// Drafts the record of a decision. Sealing adds the member `record`: it needs the time, the key and the head of the
/// chain.
pub(super) fn record_trust(
    decider: &mut Decider<'_>,
    id: &PermissionId,
    request: &Permission,
    task: &Task,
    place: &Place,
    (decision, key_id): (&str, Option<&str>),
) {
    let asked = match request.ask {
        Ask::Input => "input",
        Ask::Approval => "approval",
    };
    let chain = TrustChainId::of(&task.session_id);
    let agent = task.persona.as_ref().map(TaskPersona::reference);
    let recorded = Payload::TrustRecorded(payload::TrustRecorded {
        request_id: detail(id),
        agent: detail(agent.as_ref().unwrap_or(&task.workflow)),
        action: detail(request.action.as_deref().unwrap_or(asked)),
        decision: detail(decision),
        key_id: key_id.map(detail),
        record: None,
    });
    decider.draft(recorded, chain.resource(), place);
}

/// The Messages of a result.
pub(super) enum Messages {
    /// By their ids: they are in the transcript.
    Ids(Value),
    /// Whole: they are nowhere else.
    Whole(Value),
}

/// How a Task ends.
pub(super) struct TaskEnd {
    pub(super) status: Status,
    pub(super) summary: String,
    pub(super) messages: Messages,
    pub(super) failure: Value,
}

/// Drafts Outcome, terminal event and transition, in this order.
pub(super) fn end(
    decider: &mut Decider<'_>,
    id: &TaskId,
    from: Status,
    ids: &EndIds,
    place: &Place,
    ending: TaskEnd,
) {
    let subject = id.resource();
    let (message_ids, messages) = match ending.messages {
        Messages::Ids(ids) => (Some(Detail::of(ids)), None),
        Messages::Whole(messages) => (None, Some(Detail::of(messages))),
    };
    // AP-PERS-05: under this policy nothing is issued, so nothing may name a Receipt.
    let without = decider.task(id).is_ok_and(|task| {
        let persona = task.persona.as_ref();
        persona.is_some_and(|persona| persona.receipt_policy == ReceiptPolicy::Disabled)
    });
    let receipt_id = (!without).then(|| ids.receipt_id.clone());
    let outcome = Payload::OutcomeRecorded(payload::OutcomeRecorded {
        outcome_id: detail(&ids.outcome_id),
        receipt_id: receipt_id.clone(),
        status: ending.status,
        summary: detail(&ending.summary),
        message_ids,
        messages,
        failure: detail(&ending.failure),
    });
    decider.draft(outcome, ids.outcome_id.resource(), place);
    let ended = payload::TaskEnded {
        outcome_id: Some(ids.outcome_id.clone()),
        receipt_id: receipt_id.clone(),
        failure: Detail::of(ending.failure),
    };
    let ended = match ending.status {
        Status::Completed => Payload::TaskCompleted(ended),
        Status::Canceled => Payload::TaskCanceled(ended),
        Status::Failed
        | Status::Submitted
        | Status::Working
        | Status::InputRequired
        | Status::AuthRequired => Payload::TaskFailed(ended),
    };
    decider.draft(ended, subject.clone(), place);
    change_status(decider, subject, place, from, ending.status, None);
    decider.ends = receipt_id.map(|receipt_id| EndedTask {
        task_id: id.clone(),
        receipt_id,
        receipt: None,
    });
}

pub(super) fn change_status(
    decider: &mut Decider<'_>,
    subject: ResourceRef,
    place: &Place,
    from: Status,
    to: Status,
    reason: Option<&str>,
) {
    let reason = reason.map(str::to_owned);
    let changed = Payload::TaskStatusChanged(payload::StatusChanged { from, to, reason });
    decider.draft(changed, subject, place);
}

pub(super) fn answer(
    decider: &mut Decider<'_>,
    order: &AnswerRequest,
) -> Result<ResourceRef, Refusal> {
    let request = decider.permission(order.id.as_str())?;
    let task = decider.task(&request.task_id)?;
    let subject = order.id.resource();
    check_reply(request, &order.reply)?;
    let digest = reply_digest(&order.reply);
    match request.answer {
        Answer::Pending => {}
        Answer::Approved { digest: known, .. } | Answer::Denied { digest: known, .. }
            if known == digest =>
        {
            return Ok(subject);
        }
        // Nobody has answered: the Task is what stands in the way.
        Answer::Withdrawn { .. } => {
            return Err(Refusal::InvalidTransition {
                status: task.status,
            });
        }
        Answer::Approved { .. } | Answer::Denied { .. } => {
            return Err(Refusal::Conflict {
                reason: "already_answered",
                message: format!(
                    "permission request `{}` has already been answered differently",
                    order.id
                ),
                status: Some(task.status),
            });
        }
    }
    if task.status.is_terminal() {
        return Err(Refusal::InvalidTransition {
            status: task.status,
        });
    }
    // A replay goes on when its Session is closed: a decision without words adds nothing to it.
    let says_something = matches!(
        order.reply,
        RequestReply::Message(_) | RequestReply::Confirm { .. }
    );
    if task.replay.is_none() || says_something {
        decider.open_session(&task.session_id)?;
    }
    let place = Place::of_task(&request.task_id, task);
    let approved = match &order.reply {
        RequestReply::Message(_) | RequestReply::Value(_) | RequestReply::Approve => true,
        RequestReply::Deny => false,
        RequestReply::Confirm { approved, .. } => *approved,
    };
    let mut value = json!({"approved": approved});
    if let (Ask::Approval, Some(at), Value::Object(value)) =
        (request.ask, order.answered_at, &mut value)
    {
        value.insert("answered_at".to_owned(), json!(at));
    }
    let mut said = payload::Answered {
        request_id: detail(&order.id),
        effect_key: detail(&request.effect_key),
        approved,
        answer_sha256: digest,
        remarks: detail(&order.remarks),
        message_id: None,
        answer: None,
    };
    match &order.reply {
        RequestReply::Message(message) => {
            decider.message(message, &task.session_id, &place);
            said.message_id = Some(detail(&message.id));
            let text = public_text(&message.parts);
            value = json!({"approved": approved, "message_id": message.id, "text": text});
        }
        RequestReply::Value(answer) => {
            said.answer = Some(detail(answer));
            value = json!({"approved": approved, "answer": answer});
        }
        RequestReply::Confirm { message, .. } => {
            decider.message(message, &task.session_id, &place);
            said.message_id = Some(detail(&message.id));
        }
        RequestReply::Approve | RequestReply::Deny => {}
    }
    let said = match request.ask {
        Ask::Input => Payload::UserInputSubmitted(said),
        Ask::Approval => Payload::UserToolConfirmation(said),
    };
    decider.draft(said, subject.clone(), &place);
    let decision = if approved { "approved" } else { "denied" };
    let decision = (decision, order.key_id.as_deref());
    record_trust(decider, &order.id, request, task, &place, decision);
    if request.ask == Ask::Approval {
        let said = payload::Decided::default().request_id(order.id.as_str());
        let said = if approved {
            Payload::ToolApproved(said)
        } else {
            Payload::ToolDenied(said)
        };
        decider.draft(said, subject.clone(), &place);
    }
    let task_resource = request.task_id.resource();
    let recorded = Payload::EffectRecorded(payload::EffectRecorded {
        effect_key: Some(json!(request.effect_key)),
        kind: detail("host_fact"),
        outcome: detail("ok"),
        value_sha256: detail(sha256(&jcs(&value))),
        value: Detail::of(value),
        visibility: detail("public"),
        provider_request_id: None,
        model: None,
        side_effects: None,
        interrupted_through: None,
    });
    decider.draft(recorded, task_resource.clone(), &place);
    let is_last = pending(decider, task).iter().all(|id| **id == order.id);
    if task.status.is_waiting() && is_last {
        change_status(
            decider,
            task_resource,
            &place,
            task.status,
            Status::Working,
            Some("answered"),
        );
    }
    Ok(subject)
}

fn check_reply(request: &Permission, reply: &RequestReply) -> Result<(), Refusal> {
    match (request.ask, reply) {
        (Ask::Approval, RequestReply::Message(_) | RequestReply::Value(_)) => {
            Err(Refusal::Invalid {
                param: "approved",
                message: "this request asks for a decision: send `approved` or `outcome`"
                    .to_owned(),
            })
        }
        (
            Ask::Approval,
            RequestReply::Approve | RequestReply::Deny | RequestReply::Confirm { .. },
        )
        | (
            Ask::Input,
            RequestReply::Message(_)
            | RequestReply::Value(_)
            | RequestReply::Approve
            | RequestReply::Deny
            | RequestReply::Confirm { .. },
        ) => Ok(()),
    }
}

/// The digest that tells a repeated answer from another one. Ids, salts and remarks are left out.
fn reply_digest(reply: &RequestReply) -> Digest {
    let value = match reply {
        RequestReply::Message(message) => {
            json!({"message": {"role": message.role, "parts": message.parts}})
        }
        RequestReply::Value(value) => json!({"answer": value}),
        RequestReply::Approve => json!({"approved": true}),
        RequestReply::Deny => json!({"approved": false}),
        // The same decision by another way is the same answer.
        RequestReply::Confirm { approved, .. } => json!({"approved": approved}),
    };
    sha256(&jcs(&value))
}

/// Joins the public text of a Message: what a workflow may see of an answer.
pub fn public_text(parts: &[Value]) -> String {
    let texts: Vec<&str> = parts
        .iter()
        .filter(|part| part.get("visibility").and_then(Value::as_str) == Some("public"))
        .filter_map(|part| part.get("text").and_then(Value::as_str))
        .collect();
    texts.join("\n")
}
