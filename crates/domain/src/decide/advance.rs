//! A worker's progress on a Task, move by move.
//!
//! A worker is not trusted to keep the order: it may be another process, or one that was stopped for an hour. Each move is
//! judged by what the log says ([`Ledger`]): an intent comes before its result, a key has one request and one result,
//! checkpoints count up, and a Task goes on under the version of the workflow that it began with.

use canon::{Map, jcs, sha256};
use serde_json::{Value, json};

use super::task::{Messages, TaskEnd, change_status, end, withdraw};
use super::{Decider, Place};
use super::{govern, replay};
use crate::kind::Payload;
use crate::payload::{self, detail};
use crate::{
    AdvanceTask, Answer, Ask, Blob, EffectIntent, Kind, Ledger, Move, Product, Refusal,
    ResourceRef, Status, Task, TaskId, Visibility,
};

pub(super) fn advance(
    decider: &mut Decider<'_>,
    order: &AdvanceTask,
) -> Result<ResourceRef, Refusal> {
    let task = decider.task(&order.id)?;
    let subject = order.id.resource();
    let place = Place::of_task(&order.id, task);
    let mut status = task.status;
    let mut ledger = task.ledger.clone();
    let mut asks = false;
    for (index, step) in order.moves.iter().enumerate() {
        // Several questions are asked in a row: the Task waits for all of them.
        let asks_more = asks && matches!(step, Move::Ask { ask, .. } if ask.status() == status);
        let next = match asks_more {
            true => Some(status),
            false => target(step, status, task.status),
        };
        let next = next.ok_or(Refusal::InvalidTransition { status })?;
        asks = matches!(step, Move::Ask { .. });
        if let Move::Ask { request, .. } = step
            && decider
                .permission(request.as_str())
                .is_ok_and(|known| known.answer != Answer::Pending)
        {
            // Answered between the worker's look at the log and now: it must look again.
            return Err(Refusal::Stale);
        }
        if task.replay.is_none() {
            let before = order.moves.get(..index).unwrap_or_default();
            check_order(decider, order, &mut ledger, before, step)?;
        }
        perform(decider, order, task, &place, step, status);
        status = next;
    }
    Ok(subject)
}

/// Refuses a move that does not follow from what was recorded, and notes one that does.
fn check_order(
    decider: &Decider<'_>,
    order: &AdvanceTask,
    ledger: &mut Option<Box<Ledger>>,
    before: &[Move],
    step: &Move,
) -> Result<(), Refusal> {
    if let Move::Start { workflow_digest } = step {
        *ledger = Some(Box::new(Ledger::new(*workflow_digest)));
    }
    // A program without these rules began it.
    let Some(ledger) = ledger else {
        return Ok(());
    };
    let by_workflow = match step {
        Move::Recover | Move::WaitAgain | Move::Fail { .. } => order.workflow.is_some(),
        _ => true,
    };
    if by_workflow && order.workflow != Some(ledger.workflow) {
        return Err(out_of_order(
            "the task goes on under the version of its workflow that it began with".to_owned(),
        ));
    }
    match step {
        Move::RequestEffect(intent) if !ledger.request(&intent.key) => Err(out_of_order(format!(
            "effect `{}` was requested before",
            intent.key
        ))),
        Move::RecordEffect(result) if !ledger.record(&result.key) => Err(out_of_order(format!(
            "effect `{}` was not requested, or has a result",
            result.key
        ))),
        Move::Checkpoint { number, .. } => check_checkpoint(decider, &order.id, before, *number),
        _ => Ok(()),
    }
}

/// A checkpoint has the number after the last one, which an earlier move of the order may have made.
fn check_checkpoint(
    decider: &Decider<'_>,
    id: &TaskId,
    before: &[Move],
    number: u64,
) -> Result<(), Refusal> {
    let is_there = |number: u64| decider.artifact(id.checkpoint(number).as_str()).is_ok();
    let last = before.iter().rev().find_map(|step| match step {
        Move::Checkpoint { number, .. } => Some(*number),
        _ => None,
    });
    let follows = match (last, number.checked_sub(1)) {
        (_, None) => false,
        (Some(last), Some(before)) => last == before,
        (None, Some(0)) => true,
        (None, Some(before)) => is_there(before),
    };
    match follows && !is_there(number) {
        true => Ok(()),
        false => Err(out_of_order(format!(
            "checkpoint {number} is not the one after the last"
        ))),
    }
}

fn out_of_order(message: String) -> Refusal {
    Refusal::Conflict {
        reason: "out_of_order",
        message,
        status: None,
    }
}

/// Returns where a move leads from a status, or none when it is not possible there. `before` is the status that the Task
/// had before the order.
fn target(step: &Move, from: Status, before: Status) -> Option<Status> {
    let working = from == Status::Working;
    match step {
        Move::Start { .. } => (from == Status::Submitted).then_some(Status::Working),
        Move::Recover => from.is_waiting().then_some(Status::Working),
        Move::WaitAgain => (working && before.is_waiting()).then_some(before),
        // While a Task waits nothing else may happen to it.
        Move::RequestEffect(_)
        | Move::RecordEffect(_)
        | Move::Note { .. }
        | Move::Delta { .. }
        | Move::Checkpoint { .. }
        | Move::Produce(_)
        | Move::StartReplay(_)
        | Move::Replay(_)
        | Move::Pose { .. }
        | Move::Withdraw { .. }
        | Move::Say(_) => working.then_some(Status::Working),
        Move::Ask { ask, .. } => working.then_some(ask.status()),
        Move::Complete { .. } => working.then_some(Status::Completed),
        Move::EndReplay(end) => working.then_some(end.status),
        Move::Cancel { .. } => from.allows(Status::Canceled).then_some(Status::Canceled),
        Move::Fail { .. } => from.allows(Status::Failed).then_some(Status::Failed),
    }
}

fn perform(
    decider: &mut Decider<'_>,
    order: &AdvanceTask,
    task: &Task,
    place: &Place,
    step: &Move,
    status: Status,
) {
    let subject = order.id.resource();
    match step {
        Move::Start { workflow_digest } => {
            let started = Payload::TaskStarted(payload::TaskStarted {
                workflow: detail(&task.workflow),
                workflow_sha256: Some(json!(workflow_digest)),
            });
            decider.draft(started, subject.clone(), place);
            change_status(decider, subject, place, status, Status::Working, None);
        }
        Move::WaitAgain => change_status(
            decider,
            subject,
            place,
            status,
            task.status,
            Some("recovered"),
        ),
        Move::Recover => change_status(
            decider,
            subject,
            place,
            status,
            Status::Working,
            Some("recovered"),
        ),
        Move::RequestEffect(intent) => intend(decider, subject, place, intent),
        Move::Pose { request, payload } => {
            let kind = Kind::ToolApprovalRequired;
            decider.draft_open(kind, payload.clone(), request.resource(), place);
        }
        Move::Withdraw { request, reason } => {
            govern::withdraw(decider, request, task, place, reason);
        }
        Move::Cancel { ids, reason } => {
            let ending = TaskEnd {
                status: Status::Canceled,
                summary: format!("Canceled: {reason}"),
                messages: Messages::Ids(json!([])),
                failure: Value::Null,
            };
            end(decider, &order.id, status, ids, place, ending);
        }
        Move::RecordEffect(result) => {
            let recorded = Payload::EffectRecorded(payload::EffectRecorded {
                effect_key: Some(json!(result.key)),
                kind: detail(&result.kind),
                outcome: detail(if result.ok { "ok" } else { "error" }),
                value_sha256: detail(sha256(&jcs(&result.value))),
                value: detail(&result.value),
                visibility: detail("public"),
                provider_request_id: Some(detail(&result.provider_request_id)),
                model: Some(detail(&result.model)),
                side_effects: result.observed.as_ref().map(detail),
                interrupted_through: result.interrupted_through,
            });
            decider.draft(recorded, subject, place);
        }
        Move::Ask {
            request,
            ask,
            effect_key,
            request_body,
            action,
        } => {
            let name = action.get("name").and_then(Value::as_str);
            let asked = payload::Asked {
                request_id: detail(request),
                effect_key: effect_key.clone(),
                action_name: name.filter(|name| !name.is_empty()).map(str::to_owned),
                request: detail(request_body),
                action: detail(action),
            };
            let waits = payload::TaskWaits {
                request_id: request.clone(),
                effect_key: detail(effect_key),
            };
            let (asked, waits) = match ask {
                Ask::Input => (
                    Payload::InputRequested(asked),
                    Payload::TaskInputRequired(waits),
                ),
                Ask::Approval => (
                    Payload::ToolApprovalRequired(asked),
                    Payload::TaskAuthRequired(waits),
                ),
            };
            // After a restart the same request is asked again: it exists, only the Task's part is repeated.
            if decider.permission(request.as_str()).is_err() {
                decider.draft(asked, request.resource(), place);
            }
            decider.draft(waits, subject.clone(), place);
            if status != ask.status() {
                change_status(decider, subject, place, status, ask.status(), None);
            }
        }
        Move::Note { kind, payload } => {
            decider.draft_open(*kind, payload.clone(), subject, place);
        }
        Move::Delta {
            effect_key,
            index,
            text,
        } => {
            let piece = Payload::MessageDelta(payload::MessageDelta {
                effect_key: detail(effect_key),
                index: detail(index),
                text: detail(text),
            });
            decider.draft(piece, subject, place);
        }
        Move::Checkpoint { number, state } => checkpoint(decider, &order.id, place, *number, state),
        Move::Produce(product) => produce(decider, &order.id, place, product),
        Move::StartReplay(payload) => {
            let started = Payload::ReplayStarted(payload.clone());
            decider.draft(started, subject, place);
        }
        Move::Replay(event) => replay::emit(decider, &order.id, place, event),
        Move::EndReplay(ending) => replay::end_replay(decider, order, place, status, ending),
        Move::Say(message) => decider.message(message, &task.session_id, place),
        Move::Complete {
            ids,
            summary,
            messages,
        } => {
            let ending = TaskEnd {
                status: Status::Completed,
                summary: summary.clone(),
                messages: Messages::Ids(json!(messages)),
                failure: Value::Null,
            };
            end(decider, &order.id, status, ids, place, ending);
        }
        Move::Fail {
            ids,
            code,
            message,
            details,
        } => {
            withdraw(decider, task, place, "the task ended");
            let ending = TaskEnd {
                status: Status::Failed,
                summary: message.clone(),
                messages: Messages::Ids(json!([])),
                failure: json!({"code": code, "message": message, "details": details}),
            };
            end(decider, &order.id, status, ids, place, ending);
        }
    }
}

/// Drafts the intent to have an effect performed.
pub(super) fn intend(
    decider: &mut Decider<'_>,
    subject: ResourceRef,
    place: &Place,
    intent: &EffectIntent,
) {
    let requested = Payload::EffectRequested(payload::EffectRequested {
        effect_key: Some(json!(intent.key)),
        kind: detail(&intent.kind),
        request_sha256: detail(intent.request_sha256),
        repeatable: detail(intent.repeatable),
        request_parts: intent.parts.as_ref().map(detail),
    });
    decider.draft(requested, subject, place);
}

/// Drafts a checkpoint: the Artifact that holds the state, which is also what says that it exists.
fn checkpoint(decider: &mut Decider<'_>, task: &TaskId, place: &Place, number: u64, state: &Value) {
    let artifact = task.checkpoint(number);
    let id = artifact.as_str().strip_prefix("artifact_");
    let blob = Blob::new(jcs(state));
    let created = Payload::CheckpointCreated(payload::CheckpointCreated {
        checkpoint_id: detail(id),
        artifact_id: detail(&artifact),
        state_sha256: Some(blob.digest),
        bytes: Some(blob.bytes.len() as u64),
        task_id: Some(task.clone()),
    });
    // The boundary is the event itself.
    decider.draft(created, artifact.resource(), place).sibling = Some(("event_id", 0));
    decider.blobs.push(blob);
}

fn produce(decider: &mut Decider<'_>, task: &TaskId, place: &Place, product: &Product) {
    let blob = Blob::new(product.bytes.clone());
    let created = Payload::ArtifactCreated(payload::ArtifactCreated {
        kind: product.kind,
        mime_type: product.mime_type.clone(),
        uri: None,
        visibility: Visibility::Public,
        sha256: Some(blob.digest),
        bytes: Some(blob.bytes.len() as u64),
        task_id: Some(task.clone()),
        metadata: detail(Map::new()),
    });
    decider.draft(created, product.id.resource(), place);
    decider.blobs.push(blob);
}
