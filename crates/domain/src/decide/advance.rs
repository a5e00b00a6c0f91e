//! A worker's progress on a Task, move by move.

use canon::{jcs, sha256};
use serde_json::{Value, json};

use super::replay;
use super::task::{Ending, Messages, change_status, end, withdraw};
use super::{Desk, Place};
use crate::{
    AdvanceTask, Answer, ArtifactId, Ask, Blob, Kind, Move, Product, Refusal, ResourceRef, Status,
    Task, TaskId, Visibility,
};

pub(super) fn advance(desk: &mut Desk<'_>, order: &AdvanceTask) -> Result<ResourceRef, Refusal> {
    let task = desk.task(&order.id)?;
    let subject = ResourceRef::new("task", order.id.as_str());
    let place = Place::of_task(&order.id, task);
    let mut status = task.status;
    for step in &order.moves {
        let next = target(step, status).ok_or(Refusal::InvalidTransition { status })?;
        if let Move::Ask { request, .. } = step
            && desk
                .permission(request.as_str())
                .is_ok_and(|known| known.answer != Answer::Pending)
        {
            // Answered between the worker's look at the log and now: it must look again.
            return Err(Refusal::Stale);
        }
        perform(desk, order, task, &place, step, status);
        status = next;
    }
    Ok(subject)
}

/// Returns where a move leads from a status, or none when it is not possible there.
fn target(step: &Move, from: Status) -> Option<Status> {
    let working = from == Status::Working;
    match step {
        Move::Start { .. } => (from == Status::Submitted).then_some(Status::Working),
        Move::Recover => from.is_waiting().then_some(Status::Working),
        // While a Task waits nothing else may happen to it.
        Move::RequestEffect(_)
        | Move::RecordEffect(_)
        | Move::Note { .. }
        | Move::Delta { .. }
        | Move::Checkpoint { .. }
        | Move::Produce(_)
        | Move::StartReplay(_)
        | Move::Replay(_)
        | Move::Say(_) => working.then_some(Status::Working),
        Move::Ask { ask, .. } => working.then_some(ask.status()),
        Move::Complete { .. } => working.then_some(Status::Completed),
        Move::EndReplay(end) => working.then_some(end.status),
        Move::Fail { .. } => from.allows(Status::Failed).then_some(Status::Failed),
    }
}

fn perform(
    desk: &mut Desk<'_>,
    order: &AdvanceTask,
    task: &Task,
    place: &Place,
    step: &Move,
    status: Status,
) {
    let subject = ResourceRef::new("task", order.id.as_str());
    match step {
        Move::Start { workflow_digest } => {
            desk.draft(
                Kind::TaskStarted,
                subject.clone(),
                place,
                json!({"workflow": task.workflow, "workflow_sha256": workflow_digest}),
            );
            change_status(desk, subject, place, status, Status::Working, None);
        }
        Move::Recover => change_status(
            desk,
            subject,
            place,
            status,
            Status::Working,
            Some("recovered"),
        ),
        Move::RequestEffect(intent) => {
            let mut payload = json!({
                "effect_key": intent.key,
                "kind": intent.kind,
                "request_sha256": intent.request_sha256,
                "repeatable": intent.repeatable,
            });
            if let (Some(parts), Value::Object(payload)) = (&intent.parts, &mut payload) {
                payload.insert("request_parts".to_owned(), json!(parts));
            }
            desk.draft(Kind::EffectRequested, subject, place, payload);
        }
        Move::RecordEffect(result) => {
            let mut payload = json!({
                "effect_key": result.key,
                "kind": result.kind,
                "outcome": if result.ok { "ok" } else { "error" },
                "value_sha256": sha256(&jcs(&result.value)),
                "value": result.value,
                "visibility": "public",
                "provider_request_id": result.provider_request_id,
                "model": result.model,
            });
            if let (Some(observed), Value::Object(payload)) = (&result.observed, &mut payload) {
                payload.insert("side_effects".to_owned(), json!(observed));
            }
            desk.draft(Kind::EffectRecorded, subject, place, payload);
        }
        Move::Ask {
            request,
            ask,
            effect_key,
            request_body,
            action,
        } => {
            let resource = ResourceRef::new("permission_request", request.as_str());
            let (asked, waiting) = match ask {
                Ask::Input => (Kind::InputRequested, Kind::TaskInputRequired),
                Ask::Approval => (Kind::ToolApprovalRequired, Kind::TaskAuthRequired),
            };
            // After a restart the same request is asked again: it exists, only the Task's part is repeated.
            if desk.permission(request.as_str()).is_err() {
                desk.draft(
                    asked,
                    resource,
                    place,
                    json!({
                        "request_id": request,
                        "effect_key": effect_key,
                        "action_name": action.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()),
                        "request": request_body,
                        "action": action,
                    }),
                );
            }
            desk.draft(
                waiting,
                subject.clone(),
                place,
                json!({"request_id": request, "effect_key": effect_key}),
            );
            change_status(desk, subject, place, status, ask.status(), None);
        }
        Move::Note { kind, payload } => {
            desk.draft(*kind, subject, place, payload.clone().into());
        }
        Move::Delta {
            effect_key,
            index,
            text,
        } => {
            desk.draft(
                Kind::MessageDelta,
                subject,
                place,
                json!({"effect_key": effect_key, "index": index, "text": text}),
            );
        }
        Move::Checkpoint { number, state } => checkpoint(desk, &order.id, place, *number, state),
        Move::Produce(product) => produce(desk, &order.id, place, product),
        Move::StartReplay(payload) => {
            desk.draft(Kind::ReplayStarted, subject, place, payload.clone().into());
        }
        Move::Replay(event) => replay::emit(desk, &order.id, place, event),
        Move::EndReplay(ending) => replay::end_replay(desk, order, place, status, ending),
        Move::Say(message) => desk.message(message, &task.session_id, place),
        Move::Complete {
            ids,
            summary,
            messages,
        } => {
            let ending = Ending {
                status: Status::Completed,
                summary: summary.clone(),
                messages: Messages::Ids(json!(messages)),
                failure: Value::Null,
            };
            end(desk, &order.id, status, ids, place, ending);
        }
        Move::Fail {
            ids,
            code,
            message,
            details,
        } => {
            withdraw(desk, task, place);
            let ending = Ending {
                status: Status::Failed,
                summary: message.clone(),
                messages: Messages::Ids(json!([])),
                failure: json!({"code": code, "message": message, "details": details}),
            };
            end(desk, &order.id, status, ids, place, ending);
        }
    }
}

/// Drafts a checkpoint: the Artifact that holds the state, which is also what says that it exists.
fn checkpoint(desk: &mut Desk<'_>, task: &TaskId, place: &Place, number: u64, state: &Value) {
    let body = task.as_str().strip_prefix("task_").unwrap_or_default();
    let id = format!("checkpoint_{body}_{number}");
    let artifact = ArtifactId::from_body(&id);
    let blob = Blob::new(jcs(state));
    desk.draft(
        Kind::CheckpointCreated,
        ResourceRef::new(ArtifactId::OBJECT, artifact.as_str()),
        place,
        json!({
            "checkpoint_id": id,
            "artifact_id": artifact,
            "state_sha256": blob.digest,
            "bytes": blob.bytes.len(),
            "task_id": task,
        }),
    )
    // The boundary is the event itself.
    .sibling = Some(("event_id", 0));
    desk.blobs.push(blob);
}

fn produce(desk: &mut Desk<'_>, task: &TaskId, place: &Place, product: &Product) {
    let blob = Blob::new(product.bytes.clone());
    desk.draft(
        Kind::ArtifactCreated,
        ResourceRef::new(ArtifactId::OBJECT, product.id.as_str()),
        place,
        json!({
            "kind": product.kind,
            "mime_type": product.mime_type,
            "uri": null,
            "visibility": Visibility::Public,
            "sha256": blob.digest,
            "bytes": blob.bytes.len(),
            "task_id": task,
            "metadata": {},
        }),
    );
    desk.blobs.push(blob);
}
