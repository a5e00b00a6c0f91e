//! Tasks of another log, taken over with their ids so that they can be replayed here.
//!
//! Their events stay in their bundle, byte for byte: they have their places in another log, and their sequences
//! continue resources that this log does not have. Here one event says that the Task is there and where its log is,
//! and one that its Receipt is there, which this server did not issue.

use canon::Value;
use serde_json::json;

use super::{Desk, Place};
use crate::{ImportTask, Kind, Refusal, ResourceRef, SessionId, State, TaskId};

/// What is taken from `task.submitted`: all that the Task's document and its replays need. Its Branch is not here.
const SUBMITTED: [&str; 8] = [
    "workflow",
    "parent_task_id",
    "persona_id",
    "persona_version",
    "autonomy_tier",
    "receipt_policy",
    "persona",
    "input",
];

/// What is taken from the Message that was its input.
const MESSAGE: [&str; 3] = ["message_id", "role", "parts"];

pub(super) fn import(desk: &mut Desk<'_>, order: &ImportTask) -> Result<ResourceRef, Refusal> {
    let subject = ResourceRef::new(TaskId::OBJECT, order.id.as_str());
    if let Some(known) = desk.documents.document(order.id.as_str()) {
        return match &known.state {
            State::Task(task)
                if task.workspace_id == order.workspace_id
                    && task.imported.as_ref().map(|known| known.bundle) == Some(order.bundle) =>
            {
                Ok(subject)
            }
            _ => Err(taken("task_exists", "task", order.id.as_str())),
        };
    }
    desk.workspace(&order.workspace_id)
        .map_err(|_| Refusal::NotFound {
            object: "workspace",
            param: Some("workspace_id"),
        })?;
    let receipt = &order.receipt;
    if desk.documents.document(receipt.id.as_str()).is_some() {
        return Err(taken("receipt_exists", "receipt", receipt.id.as_str()));
    }
    let place = Place {
        workspace_id: Some(order.workspace_id.clone()),
        session_id: Some(order.session_id.clone()),
        task_id: None,
    };
    begin_session(desk, order, &place)?;
    let place = Place {
        task_id: Some(order.id.clone()),
        ..place
    };
    desk.draft(Kind::TaskImported, subject.clone(), &place, payload(order))
        .receipt_id = Some(receipt.id.clone());
    desk.draft(
        Kind::ReceiptImported,
        ResourceRef::new("receipt", receipt.id.as_str()),
        &place,
        json!({
            "receipt_id": receipt.id,
            "receipt_hash": receipt.hash,
            "previous_receipt_hash": receipt.previous,
            "content_sha256": receipt.content.digest,
            "bytes": receipt.content.bytes.len(),
        }),
    )
    .receipt_id = Some(receipt.id.clone());
    desk.blobs.push(receipt.content.clone());
    desk.blobs.extend(order.blobs.iter().cloned());
    Ok(subject)
}

/// Makes the Session, unless an earlier import made it.
fn begin_session(desk: &mut Desk<'_>, order: &ImportTask, place: &Place) -> Result<(), Refusal> {
    let id = order.session_id.as_str();
    let Some(known) = desk.documents.document(id) else {
        let payload = json!({
            "workspace_id": order.workspace_id,
            "imported": true,
            "metadata": {"imported": true},
        });
        let session = ResourceRef::new(SessionId::OBJECT, id);
        desk.draft(Kind::SessionCreated, session, place, payload);
        return Ok(());
    };
    match &known.state {
        State::Session(session)
            if session.imported && session.workspace_id == order.workspace_id =>
        {
            Ok(())
        }
        _ => Err(taken("session_exists", "session", id)),
    }
}

fn payload(order: &ImportTask) -> Value {
    let mut payload = json!({
        "created_by": order.created_by,
        "status": order.status,
        "submitted_at": order.submitted_at,
        "started_at": order.started_at,
        "ended_at": order.ended_at,
        "bundle_sha256": order.bundle,
        "bundle_bytes": order.bundle_bytes,
        "receipt_id": order.receipt.id,
    });
    let Value::Object(members) = &mut payload else {
        return payload;
    };
    if !order.failure.is_null() {
        members.insert("failure".to_owned(), order.failure.clone());
    }
    let mut metadata = match order.submitted.get("metadata") {
        Some(Value::Object(metadata)) => metadata.clone(),
        _ => canon::Map::new(),
    };
    metadata.insert("imported".to_owned(), true.into());
    members.insert("metadata".to_owned(), Value::Object(metadata));
    let from = |source: &canon::Map<String, Value>, names: &[&str]| -> Vec<(String, Value)> {
        let taken = names.iter().filter_map(|name| {
            let value = source.get(*name).filter(|value| !value.is_null())?;
            Some(((*name).to_owned(), value.clone()))
        });
        taken.collect()
    };
    members.extend(from(&order.submitted, &SUBMITTED));
    if let Some(message) = &order.message {
        members.extend(from(message, &MESSAGE));
    }
    payload
}

fn taken(reason: &'static str, object: &str, id: &str) -> Refusal {
    Refusal::Conflict {
        reason,
        message: format!("there is another {object} `{id}` here"),
        status: None,
    }
}
