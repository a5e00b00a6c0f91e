//! Sessions and their transcripts.

use canon::Map;

use super::content::line_of;
use super::{Decider, Place};
use crate::kind::Payload;
use crate::payload::{self, detail};
use crate::{
    AppendMessage, BranchKind, ChainId, CreateSession, ForkSession, Kind, RecordSessionReplay,
    Refusal, ResourceRef, SessionId, TruncateSession, UpdateSession,
};

pub(super) fn create(
    decider: &mut Decider<'_>,
    order: &CreateSession,
) -> Result<ResourceRef, Refusal> {
    decider.workspace(&order.workspace_id)?;
    let subject = order.id.resource();
    let place = Place {
        workspace_id: Some(order.workspace_id.clone()),
        session_id: Some(order.id.clone()),
        task_id: None,
    };
    let created = Payload::SessionCreated(payload::SessionCreated {
        mode_id: Some(order.mode_id.clone()),
        persona_id: Some(order.persona_id.clone()),
        model_policy: Some(order.model_policy.clone()),
        ..payload::SessionCreated::new(&order.workspace_id, &order.metadata)
    });
    decider.draft(created, subject.clone(), &place);
    for message in &order.initial_messages {
        decider.message(message, &order.id, &place);
    }
    Ok(subject)
}

pub(super) fn update(
    decider: &mut Decider<'_>,
    order: &UpdateSession,
) -> Result<ResourceRef, Refusal> {
    let (_, session) = decider.open_session(&order.id)?;
    let subject = order.id.resource();
    let members = payload::SessionUpdated {
        summary: order.summary.clone(),
        model_policy: order.model_policy.clone(),
        metadata: order.metadata.as_ref().map(detail),
    }
    .into_members();
    if !members.is_empty() {
        let place = Place::of_session(&order.id, session);
        decider.draft_open(Kind::SessionUpdated, members, subject.clone(), &place);
    }
    Ok(subject)
}

pub(super) fn close(decider: &mut Decider<'_>, id: &SessionId) -> Result<ResourceRef, Refusal> {
    let (_, session) = decider.session(id)?;
    let subject = id.resource();
    if !session.closed {
        let place = Place::of_session(id, session);
        decider.draft(
            Payload::SessionClosed(payload::SessionClosed::default()),
            subject.clone(),
            &place,
        );
    }
    Ok(subject)
}

pub(super) fn fork(decider: &mut Decider<'_>, order: &ForkSession) -> Result<ResourceRef, Refusal> {
    let (document, parent) = decider.session(&order.parent)?;
    if document.version != order.parent_version {
        return Err(Refusal::Stale);
    }
    if let Some(branch) = &order.branch_id {
        decider
            .branch(branch.as_str())
            .map_err(|_| Refusal::NotFound {
                object: "branch",
                param: Some("branch_id"),
            })?;
    }
    if let Some(branch) = &order.new_branch {
        let created = Payload::BranchCreated(payload::BranchCreated {
            kind: BranchKind::Session,
            base_ref: order.parent.to_string(),
            parent_branch_id: Some(Some(line_of(decider, parent)?)),
            task_id: Some(None),
            metadata: detail(Map::new()),
        });
        let place = Place::of_session(&order.parent, parent);
        decider.draft(created, branch.resource(), &place);
    }
    let branch_id = order.new_branch.as_ref().or(order.branch_id.as_ref());
    let subject = order.id.resource();
    let root = parent.root_session_id.as_ref().unwrap_or(&order.parent);
    let forked = Payload::SessionThreadForked(payload::SessionForked {
        session_id: detail(&order.id),
        at_event_id: detail(&order.at_event_id),
        copied: detail(order.messages.len()),
    });
    let of_parent = Place::of_session(&order.parent, parent);
    decider.draft(forked, order.parent.resource(), &of_parent);
    let place = Place {
        workspace_id: Some(parent.workspace_id.clone()),
        session_id: Some(order.id.clone()),
        task_id: None,
    };
    let plan = order.replay.as_ref().map(|replay| &replay.plan);
    let created = Payload::SessionCreated(payload::SessionCreated {
        mode_id: Some(parent.mode_id.clone()),
        persona_id: Some(parent.persona_id.clone()),
        model_policy: Some(parent.model_policy.clone()),
        parent_session_id: Some(order.parent.clone()),
        root_session_id: Some(root.clone()),
        branch_id: Some(branch_id.cloned()),
        copied: Some(order.messages.len() as u64),
        replay_plan_sha256: plan.map(|plan| plan.digest),
        ..payload::SessionCreated::new(&parent.workspace_id, &order.metadata)
    });
    decider.blobs.extend(plan.cloned());
    decider.draft(created, subject.clone(), &place);
    // The first receipt of the fork follows the parent's last one (A5).
    if let Some((receipt_id, receipt_hash)) = &order.chain {
        let chained = Payload::ReceiptChained(payload::ReceiptChained {
            receipt_id: receipt_id.clone(),
            receipt_hash: *receipt_hash,
            count: 0,
        });
        decider.draft(chained, ChainId::of(&order.id).resource(), &place);
    }
    for copy in &order.messages {
        let copied = Payload::MessageCopied(payload::MessageCopied {
            message_id: detail(&copy.id),
            source_message_id: detail(&copy.of),
            source_position: copy.source,
            role: copy.role,
        });
        decider.draft(copied, copy.id.resource(), &place);
    }
    Ok(subject)
}

/// Notes on a Session that it has repeated another one, and how far that came. Once.
pub(super) fn replayed(
    decider: &mut Decider<'_>,
    order: &RecordSessionReplay,
) -> Result<ResourceRef, Refusal> {
    let (_, session) = decider.session(&order.id)?;
    let subject = order.id.resource();
    if session.replaying.is_none() {
        return Ok(subject);
    }
    let place = Place::of_session(&order.id, session);
    let replayed = Payload::SessionReplayed(order.payload.clone());
    decider.draft(replayed, subject.clone(), &place);
    Ok(subject)
}

pub(super) fn truncate(
    decider: &mut Decider<'_>,
    order: &TruncateSession,
) -> Result<ResourceRef, Refusal> {
    let (document, session) = decider.open_session(&order.id)?;
    if document.version != order.version {
        return Err(Refusal::Stale);
    }
    let count = session.message_count();
    let kept = count.min(order.keep_first);
    let subject = order.id.resource();
    // Recorded even when nothing is removed: the answer of a truncation is rebuilt from its event.
    let truncated = Payload::SessionTruncated(payload::SessionTruncated {
        keep_first: detail(order.keep_first),
        kept_turn_count: detail(kept),
        removed_turn_count: count - kept,
        new_tip_turn_id: detail(&order.tip),
        after_position: order.after,
        through_position: order.through,
        reason: detail(&order.reason),
    });
    let place = Place::of_session(&order.id, session);
    decider.draft(truncated, subject.clone(), &place);
    Ok(subject)
}

pub(super) fn append_message(
    decider: &mut Decider<'_>,
    order: &AppendMessage,
) -> Result<ResourceRef, Refusal> {
    let (_, session) = decider.open_session(&order.session_id)?;
    decider.message(
        &order.message,
        &order.session_id,
        &Place::of_session(&order.session_id, session),
    );
    Ok(order.message.id.resource())
}
