//! Tasks as their clients see them: submit, cancel, interrupt, answer.

use canon::{Digest, Value, jcs, sha256};
use serde_json::json;

use super::{Desk, Ends, Place};
use crate::{
    Answer, AnswerRequest, Ask, CancelTask, EndIds, InterruptTask, Kind, Permission, PermissionId,
    ReceiptPolicy, Refusal, RequestReply, ResourceRef, Status, SubmitTask, Task, TaskId, TaskInput,
    TaskPersona, TrustChainId,
};

pub(super) fn submit(desk: &mut Desk<'_>, order: &SubmitTask) -> Result<ResourceRef, Refusal> {
    let (_, session) = desk
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
        desk.branch(branch.as_str())
            .map_err(|refusal| in_param(refusal, "branch", "branch_id"))?;
    }
    if let Some(parent) = &order.parent_task_id {
        desk.task(parent)
            .map_err(|refusal| in_param(refusal, "task", "parent_task_id"))?;
    }
    let subject = ResourceRef::new("task", order.id.as_str());
    let place = Place {
        workspace_id: Some(session.workspace_id.clone()),
        session_id: Some(order.session_id.clone()),
        task_id: Some(order.id.clone()),
    };
    let mut payload = json!({
        "workflow": order.workflow,
        "branch_id": order.branch_id,
        "parent_task_id": order.parent_task_id,
        "metadata": order.metadata,
    });
    if let (Some(persona), Value::Object(payload)) = (&order.persona, &mut payload) {
        // What the Task's document needs stands beside the copy, which may move into a blob.
        payload.insert("persona_id".to_owned(), json!(persona.id));
        payload.insert("persona_version".to_owned(), json!(persona.version));
        payload.insert("autonomy_tier".to_owned(), json!(persona.autonomy_tier));
        payload.insert("receipt_policy".to_owned(), json!(persona.receipt_policy));
        payload.insert("persona".to_owned(), json!(persona));
    }
    match &order.input {
        TaskInput::Object(input) => {
            if let Value::Object(payload) = &mut payload {
                payload.insert("input".to_owned(), Value::Object(input.clone()));
            }
            desk.draft(Kind::TaskSubmitted, subject.clone(), &place, payload);
        }
        TaskInput::Message(message) => {
            desk.draft(Kind::TaskSubmitted, subject.clone(), &place, payload)
                .sibling = Some(("input_event_id", 1));
            desk.message(message, &order.session_id, &place);
        }
    }
    Ok(subject)
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

pub(super) fn cancel(desk: &mut Desk<'_>, order: &CancelTask) -> Result<ResourceRef, Refusal> {
    let task = desk.task(&order.id)?;
    let subject = ResourceRef::new("task", order.id.as_str());
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
    desk.draft(
        Kind::UserCancelRequested,
        subject.clone(),
        &place,
        json!({"scope": "task", "reason": order.reason}),
    );
    withdraw(desk, task, &place);
    let summary = match &order.reason {
        Some(reason) => format!("Canceled: {reason}"),
        None => "Canceled".to_owned(),
    };
    let ending = Ending {
        status: Status::Canceled,
        summary,
        messages: Messages::Ids(json!([])),
        failure: Value::Null,
    };
    end(desk, &order.id, task.status, &order.ids, &place, ending);
    if let Some(ends) = &mut desk.ends {
        ends.receipt.clone_from(&order.receipt);
    }
    Ok(subject)
}

pub(super) fn interrupt(
    desk: &mut Desk<'_>,
    order: &InterruptTask,
) -> Result<ResourceRef, Refusal> {
    let task = desk.task(&order.id)?;
    if task.status.is_terminal() {
        return Err(Refusal::InvalidTransition {
            status: task.status,
        });
    }
    let place = Place::of_task(&order.id, task);
    desk.message(&order.message, &task.session_id, &place);
    desk.draft(
        Kind::UserCancelRequested,
        ResourceRef::new("task", order.id.as_str()),
        &place,
        json!({"scope": "step", "message_id": order.message.id}),
    );
    Ok(ResourceRef::new("message", order.message.id.as_str()))
}

/// Drafts the end of a pending request whose Task ends without its answer.
pub(super) fn withdraw(desk: &mut Desk<'_>, task: &Task, place: &Place) {
    if let Some(request) = &task.waits_for {
        let resource = ResourceRef::new("permission_request", request.as_str());
        desk.draft(
            Kind::RequestWithdrawn,
            resource,
            place,
            json!({"reason": "the task ended"}),
        );
        if let Ok(known) = desk.permission(request.as_str()) {
            record_trust(desk, request, known, task, place, "canceled");
        }
    }
}

/// Drafts the record of a decision. Sealing adds the member `record`: it needs the time, the key and the head of the
/// chain.
fn record_trust(
    desk: &mut Desk<'_>,
    id: &PermissionId,
    request: &Permission,
    task: &Task,
    place: &Place,
    decision: &str,
) {
    let asked = match request.ask {
        Ask::Input => "input",
        Ask::Approval => "approval",
    };
    let chain = TrustChainId::of(&task.session_id);
    desk.draft(
        Kind::TrustRecorded,
        ResourceRef::new(TrustChainId::OBJECT, chain.as_str()),
        place,
        json!({
            "request_id": id,
            "agent": task.persona.as_ref().map_or_else(|| task.workflow.clone(), TaskPersona::reference),
            "action": request.action.as_deref().unwrap_or(asked),
            "decision": decision,
        }),
    );
}

/// The Messages of a result.
pub(super) enum Messages {
    /// By their ids: they are in the transcript.
    Ids(Value),
    /// Whole: they are nowhere else.
    Whole(Value),
}

/// How a Task ends.
pub(super) struct Ending {
    pub(super) status: Status,
    pub(super) summary: String,
    pub(super) messages: Messages,
    pub(super) failure: Value,
}

/// Drafts Outcome, terminal event and transition, in this order.
pub(super) fn end(
    desk: &mut Desk<'_>,
    id: &TaskId,
    from: Status,
    ids: &EndIds,
    place: &Place,
    ending: Ending,
) {
    let subject = ResourceRef::new("task", id.as_str());
    let kind = match ending.status {
        Status::Completed => Kind::TaskCompleted,
        Status::Canceled => Kind::TaskCanceled,
        Status::Failed
        | Status::Submitted
        | Status::Working
        | Status::InputRequired
        | Status::AuthRequired => Kind::TaskFailed,
    };
    let (member, messages) = match ending.messages {
        Messages::Ids(ids) => ("message_ids", ids),
        Messages::Whole(messages) => ("messages", messages),
    };
    // AP-PERS-05: under this policy nothing is issued, so nothing may name a Receipt.
    let without = desk.task(id).is_ok_and(|task| {
        let persona = task.persona.as_ref();
        persona.is_some_and(|persona| persona.receipt_policy == ReceiptPolicy::Disabled)
    });
    let receipt_id = (!without).then(|| ids.receipt_id.clone());
    desk.draft(
        Kind::OutcomeRecorded,
        ResourceRef::new("outcome", ids.outcome_id.as_str()),
        place,
        json!({
            "outcome_id": ids.outcome_id,
            "receipt_id": receipt_id,
            "status": ending.status,
            "summary": ending.summary,
            member: messages,
            "failure": ending.failure,
        }),
    );
    desk.draft(
        kind,
        subject.clone(),
        place,
        json!({"outcome_id": ids.outcome_id, "receipt_id": receipt_id, "failure": ending.failure}),
    );
    change_status(desk, subject, place, from, ending.status, None);
    desk.ends = receipt_id.map(|receipt_id| Ends {
        task_id: id.clone(),
        receipt_id,
        receipt: None,
    });
}

pub(super) fn change_status(
    desk: &mut Desk<'_>,
    subject: ResourceRef,
    place: &Place,
    from: Status,
    to: Status,
    reason: Option<&str>,
) {
    let mut payload = json!({"from": from, "to": to});
    if let (Some(reason), Value::Object(payload)) = (reason, &mut payload) {
        payload.insert("reason".to_owned(), reason.into());
    }
    desk.draft(Kind::TaskStatusChanged, subject, place, payload);
}

pub(super) fn answer(desk: &mut Desk<'_>, order: &AnswerRequest) -> Result<ResourceRef, Refusal> {
    let request = desk.permission(order.id.as_str())?;
    let task = desk.task(&request.task_id)?;
    let subject = ResourceRef::new("permission_request", order.id.as_str());
    check_reply(request, &order.reply)?;
    let digest = reply_digest(&order.reply);
    match request.answer {
        Answer::Pending => {}
        Answer::Approved { digest: known, .. } | Answer::Denied { digest: known, .. }
            if known == digest =>
        {
            return Ok(subject);
        }
        // Withdrawn by the end of the Task: nobody has answered, the Task is what stands in the way.
        Answer::Denied { digest: known, .. } if known == withdrawn_digest() => {
            return Err(Refusal::InvalidTransition {
                status: task.status,
            });
        }
        Answer::Approved { .. } | Answer::Denied { .. } => {
            return Err(Refusal::Conflict {
                reason: "already_answered",
                message: format!(
                    "permission request `{}` has another answer already",
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
    let place = Place::of_task(&request.task_id, task);
    let approved = match &order.reply {
        RequestReply::Message(_) | RequestReply::Value(_) | RequestReply::Approve => true,
        RequestReply::Deny => false,
        RequestReply::Confirm { approved, .. } => *approved,
    };
    let mut value = json!({"approved": approved});
    let mut payload = json!({
        "request_id": order.id,
        "effect_key": request.effect_key,
        "approved": approved,
        "answer_sha256": digest,
        "remarks": order.remarks,
    });
    if let (Value::Object(value), Value::Object(payload)) = (&mut value, &mut payload) {
        match &order.reply {
            RequestReply::Message(message) => {
                desk.message(message, &task.session_id, &place);
                payload.insert("message_id".to_owned(), json!(message.id));
                value.insert("message_id".to_owned(), json!(message.id));
                value.insert("text".to_owned(), json!(public_text(&message.parts)));
            }
            RequestReply::Value(answer) => {
                payload.insert("answer".to_owned(), answer.clone());
                value.insert("answer".to_owned(), answer.clone());
            }
            RequestReply::Confirm { message, .. } => {
                desk.message(message, &task.session_id, &place);
                payload.insert("message_id".to_owned(), json!(message.id));
            }
            RequestReply::Approve | RequestReply::Deny => {}
        }
    }
    let kind = match request.ask {
        Ask::Input => Kind::UserInputSubmitted,
        Ask::Approval => Kind::UserToolConfirmation,
    };
    desk.draft(kind, subject.clone(), &place, payload);
    let decision = if approved { "approved" } else { "denied" };
    record_trust(desk, &order.id, request, task, &place, decision);
    if request.ask == Ask::Approval {
        let kind = if approved {
            Kind::ToolApproved
        } else {
            Kind::ToolDenied
        };
        desk.draft(
            kind,
            subject.clone(),
            &place,
            json!({"request_id": order.id}),
        );
    }
    let task_resource = ResourceRef::new("task", request.task_id.as_str());
    desk.draft(
        Kind::EffectRecorded,
        task_resource.clone(),
        &place,
        json!({
            "effect_key": request.effect_key,
            "kind": "host_fact",
            "outcome": "ok",
            "value_sha256": sha256(&jcs(&value)),
            "value": value,
            "visibility": "public",
        }),
    );
    if task.status.is_waiting() {
        change_status(
            desk,
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

pub(crate) fn withdrawn_digest() -> Digest {
    sha256(b"withdrawn")
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
