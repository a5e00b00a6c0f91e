//! Tasks of another log, taken over with their ids so that they can be replayed here.
//!
//! Their events stay in their bundle, byte for byte: they have their places in another log, and their sequences
//! continue resources that this log does not have. Here one event says that the Task is there and where its log is,
//! and one that its Receipt is there, which this server did not issue.

use canon::{Map, Value};

use super::{Decider, Place};
use crate::kind::Payload;
use crate::payload::{self, detail};
use crate::{ImportTask, Kind, Refusal, ResourceRef, State};

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

pub(super) fn import(
    decider: &mut Decider<'_>,
    order: &ImportTask,
) -> Result<ResourceRef, Refusal> {
    let subject = order.id.resource();
    if let Some(known) = decider.documents.document(order.id.as_str()) {
        return match &known.state {
            State::Task(task)
                if task.workspace_id == order.workspace_id
                    && task.imported.as_ref().map(|known| known.bundle) == Some(order.bundle) =>
            {
                Ok(subject)
            }
            _ => Err(already_exists("task_exists", "task", order.id.as_str())),
        };
    }
    decider
        .workspace(&order.workspace_id)
        .map_err(|_| Refusal::NotFound {
            object: "workspace",
            param: Some("workspace_id"),
        })?;
    let receipt = &order.receipt;
    if decider.documents.document(receipt.id.as_str()).is_some() {
        return Err(already_exists(
            "receipt_exists",
            "receipt",
            receipt.id.as_str(),
        ));
    }
    let place = Place {
        workspace_id: Some(order.workspace_id.clone()),
        session_id: Some(order.session_id.clone()),
        task_id: None,
    };
    begin_session(decider, order, &place)?;
    let place = Place {
        task_id: Some(order.id.clone()),
        ..place
    };
    decider
        .draft_open(Kind::TaskImported, members(order), subject.clone(), &place)
        .receipt_id = Some(receipt.id.clone());
    let imported = Payload::ReceiptImported(payload::Receipt {
        receipt_id: detail(&receipt.id),
        receipt_hash: receipt.hash,
        previous_receipt_hash: receipt.previous,
        previous_receipt_id: None,
        content_sha256: receipt.content.digest,
        bytes: detail(receipt.content.bytes.len()),
    });
    decider
        .draft(imported, receipt.id.resource(), &place)
        .receipt_id = Some(receipt.id.clone());
    decider.blobs.push(receipt.content.clone());
    decider.blobs.extend(order.blobs.iter().cloned());
    Ok(subject)
}

/// Makes the Session, unless an earlier import made it.
fn begin_session(
    decider: &mut Decider<'_>,
    order: &ImportTask,
    place: &Place,
) -> Result<(), Refusal> {
    let id = order.session_id.as_str();
    let Some(known) = decider.documents.document(id) else {
        let metadata = Map::from_iter([("imported".to_owned(), Value::Bool(true))]);
        let created = Payload::SessionCreated(payload::SessionCreated {
            imported: Some(true),
            ..payload::SessionCreated::new(&order.workspace_id, &metadata)
        });
        decider.draft(created, order.session_id.resource(), place);
        return Ok(());
    };
    match &known.state {
        State::Session(session)
            if session.imported && session.workspace_id == order.workspace_id =>
        {
            Ok(())
        }
        _ => Err(already_exists("session_exists", "session", id)),
    }
}

/// Returns what is said of the Task here, and what is taken as its own log has it.
fn members(order: &ImportTask) -> Map<String, Value> {
    let mut metadata = match order.submitted.get("metadata") {
        Some(Value::Object(metadata)) => metadata.clone(),
        _ => Map::new(),
    };
    metadata.insert("imported".to_owned(), true.into());
    let imported = Payload::TaskImported(payload::TaskImported {
        created_by: order.created_by.clone(),
        status: order.status,
        submitted_at: order.submitted_at,
        started_at: order.started_at,
        ended_at: order.ended_at,
        bundle_sha256: order.bundle,
        bundle_bytes: detail(order.bundle_bytes),
        receipt_id: Some(order.receipt.id.clone()),
        failure: (!order.failure.is_null()).then(|| detail(&order.failure)),
        metadata: detail(metadata),
    });
    let mut members = imported.into_members();
    let from = |source: &Map<String, Value>, names: &[&str]| -> Vec<(String, Value)> {
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
    members
}

fn already_exists(reason: &'static str, object: &str, id: &str) -> Refusal {
    Refusal::Conflict {
        reason,
        message: format!("there is another {object} `{id}` here"),
        status: None,
    }
}
