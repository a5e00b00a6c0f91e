//! Receipts, their chains, and heads of the receipt log.
//!
//! The receipt itself is built elsewhere, once its Task's last event has its bytes; here it becomes events.

use canon::Digest;

use super::{Decider, Documents, Place};
use crate::kind::Payload;
use crate::payload::{self, detail};
use crate::{
    ChainId, CosignHead, Draft, ReceiptId, RecordVerification, Refusal, ResourceRef, SealHead,
    State, TaskId,
};

/// A receipt that was built and signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedReceipt {
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
pub fn issue_receipt(documents: &dyn Documents, actor: &str, issued: &SignedReceipt) -> Vec<Draft> {
    let mut decider = Decider {
        documents,
        actor,
        drafts: Vec::new(),
        blobs: Vec::new(),
        ends: None,
        unreadable: None,
    };
    let Ok(task) = decider.task(&issued.task_id) else {
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
            let source_task = replayed.and_then(|id| decider.task(id).ok());
            (
                source,
                source_task.and_then(|task| task.receipt_id.as_ref()),
            )
        }
    };
    let said = Payload::ReceiptIssued(payload::Receipt {
        receipt_id: detail(&issued.receipt_id),
        receipt_hash: issued.receipt_hash,
        previous_receipt_hash: previous,
        previous_receipt_id: Some(previous_id.cloned()),
        content_sha256: issued.content,
        bytes: detail(issued.bytes),
    });
    decider
        .draft(said, issued.receipt_id.resource(), &place)
        .receipt_id = Some(issued.receipt_id.clone());
    if issued.source.is_some() {
        return decider.drafts;
    }
    // The Task's log ends with its receipt; the chain belongs to the Session.
    let place = Place {
        task_id: None,
        ..place
    };
    let chained = Payload::ReceiptChained(payload::ReceiptChained {
        receipt_id: issued.receipt_id.clone(),
        receipt_hash: issued.receipt_hash,
        count: count + 1,
    });
    decider.draft(chained, chain_id.resource(), &place);
    decider.drafts
}

pub(super) fn record_verification(
    decider: &mut Decider<'_>,
    order: &RecordVerification,
) -> Result<ResourceRef, Refusal> {
    let subject = order.id.resource();
    let Some(State::Receipt(receipt)) = decider
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
    let said = payload::Verified {
        receipt_id: detail(&order.id),
        valid: detail(order.valid),
        reason: detail(&order.reason),
        value: detail(&order.details),
    };
    let said = if order.valid {
        Payload::ReceiptVerified(said)
    } else {
        Payload::ReceiptVerificationFailed(said)
    };
    decider.draft(said, subject.clone(), &place).receipt_id = Some(order.id.clone());
    Ok(subject)
}

pub(super) fn seal_head(
    decider: &mut Decider<'_>,
    order: &SealHead,
) -> Result<ResourceRef, Refusal> {
    let subject = order.id.resource();
    let sealed = Payload::TreeHeadSealed(payload::TreeHeadSealed {
        batch_id: detail(&order.id),
        size: order.size,
        root: order.root,
        previous_root: detail(order.previous_root),
        checkpoint: detail(&order.checkpoint),
        recovered: order.recovered.as_ref().map(detail),
        rotation: order.rotation.as_ref().map(detail),
        keys: order.keys.map(detail),
    });
    decider.draft(sealed, subject.clone(), &Place::default());
    Ok(subject)
}

pub(super) fn cosign(
    decider: &mut Decider<'_>,
    order: &CosignHead,
) -> Result<ResourceRef, Refusal> {
    let subject = order.id.resource();
    let known = decider.documents.document(order.id.as_str());
    match known.map(|document| &document.state) {
        Some(State::Batch(batch)) if batch.cosigned.len() != order.compared => {
            return Err(Refusal::Stale);
        }
        Some(State::Batch(_)) if order.is_new => {}
        Some(State::Batch(_)) => return Ok(subject),
        _ => return Err(Refusal::not_found("receipt_batch")),
    }
    let cosigned = Payload::TreeHeadCosigned(payload::TreeHeadCosigned {
        line: detail(&order.line),
    });
    decider.draft(cosigned, subject.clone(), &Place::default());
    Ok(subject)
}
