//! Receipts, their chains, and heads of the receipt log.
//!
//! The receipt itself is built elsewhere, once its Task's last event has its bytes; here it becomes events.

use canon::Digest;
use serde_json::json;

use super::{Desk, Documents, Place};
use crate::{
    ChainId, CosignHead, Draft, Kind, ReceiptId, RecordVerification, Refusal, ResourceRef,
    SealHead, State, TaskId,
};

/// A receipt that was built and signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// Its id.
    pub receipt_id: ReceiptId,
    /// The Task it proves.
    pub task_id: TaskId,
    /// The hash in it.
    pub receipt_hash: Digest,
    /// Digest of its bytes.
    pub content: Digest,
    /// Their length.
    pub bytes: u64,
    /// For a replay's Receipt, which hangs off its source and leaves the Session's chain alone: the hash of the
    /// source's Receipt.
    pub source: Option<Option<Digest>>,
}

/// Drafts the events of a new Receipt: two, or one for a replay's, so that positions can be reserved before it
/// exists.
pub fn issue_receipt(documents: &dyn Documents, actor: &str, issued: &Issued) -> Vec<Draft> {
    let mut desk = Desk {
        documents,
        actor,
        drafts: Vec::new(),
        blobs: Vec::new(),
        ends: None,
        unreadable: None,
    };
    let Ok(task) = desk.task(&issued.task_id) else {
        return Vec::new();
    };
    let place = Place::of_task(&issued.task_id, task);
    let chain_id = ChainId::of(&task.session_id);
    let (previous, previous_id, count) = match documents
        .document(chain_id.as_str())
        .map(|document| &document.state)
    {
        Some(State::Chain(chain)) => (
            Some(chain.receipt_hash),
            Some(&chain.receipt_id),
            chain.count,
        ),
        _ => (None, None, 0),
    };
    let (previous, previous_id) = match issued.source {
        None => (previous, previous_id),
        Some(source) => {
            let replayed = task.replay.as_ref().map(|replay| &replay.source_task_id);
            let source_task = replayed.and_then(|id| desk.task(id).ok());
            (
                source,
                source_task.and_then(|task| task.receipt_id.as_ref()),
            )
        }
    };
    desk.draft(
        Kind::ReceiptIssued,
        ResourceRef::new("receipt", issued.receipt_id.as_str()),
        &place,
        json!({
            "receipt_id": issued.receipt_id,
            "receipt_hash": issued.receipt_hash,
            "previous_receipt_hash": previous,
            "previous_receipt_id": previous_id,
            "content_sha256": issued.content,
            "bytes": issued.bytes,
        }),
    )
    .receipt_id = Some(issued.receipt_id.clone());
    if issued.source.is_some() {
        return desk.drafts;
    }
    // The Task's log ends with its receipt; the chain belongs to the Session.
    let place = Place {
        task_id: None,
        ..place
    };
    desk.draft(
        Kind::ReceiptChained,
        ResourceRef::new("receipt_chain", chain_id.as_str()),
        &place,
        json!({"receipt_id": issued.receipt_id, "receipt_hash": issued.receipt_hash, "count": count + 1}),
    );
    desk.drafts
}

pub(super) fn record_verification(
    desk: &mut Desk<'_>,
    order: &RecordVerification,
) -> Result<ResourceRef, Refusal> {
    let subject = ResourceRef::new("receipt", order.id.as_str());
    let Some(State::Receipt(receipt)) = desk
        .documents
        .document(order.id.as_str())
        .map(|document| &document.state)
    else {
        return Err(Refusal::not_found("receipt"));
    };
    // Without the Task: its log is sealed (AP-EVT-08).
    let place = Place {
        workspace_id: Some(receipt.workspace_id.clone()),
        session_id: Some(receipt.session_id.clone()),
        task_id: None,
    };
    let kind = if order.valid {
        Kind::ReceiptVerified
    } else {
        Kind::ReceiptVerificationFailed
    };
    let payload = json!({"receipt_id": order.id, "valid": order.valid, "reason": order.reason, "value": order.details});
    desk.draft(kind, subject.clone(), &place, payload)
        .receipt_id = Some(order.id.clone());
    Ok(subject)
}

pub(super) fn seal_head(desk: &mut Desk<'_>, order: &SealHead) -> Result<ResourceRef, Refusal> {
    let subject = ResourceRef::new("receipt_batch", order.id.as_str());
    desk.draft(
        Kind::TreeHeadSealed,
        subject.clone(),
        &Place::default(),
        json!({
            "batch_id": order.id,
            "size": order.size,
            "root": order.root,
            "previous_root": order.previous_root,
            "checkpoint": order.checkpoint,
        }),
    );
    Ok(subject)
}

pub(super) fn cosign(desk: &mut Desk<'_>, order: &CosignHead) -> Result<ResourceRef, Refusal> {
    let subject = ResourceRef::new("receipt_batch", order.id.as_str());
    match desk
        .documents
        .document(order.id.as_str())
        .map(|document| &document.state)
    {
        Some(State::Batch(_)) => {}
        _ => return Err(Refusal::not_found("receipt_batch")),
    }
    desk.draft(
        Kind::TreeHeadCosigned,
        subject.clone(),
        &Place::default(),
        json!({"line": order.line}),
    );
    Ok(subject)
}
