//! Sessions and their transcripts.

use canon::Value;
use serde_json::json;

use super::content::line_of;
use super::{Desk, Place};
use crate::{
    AppendMessage, ChainId, CreateSession, ForkSession, Kind, RecordSessionReplay, Refusal,
    ResourceRef, SessionId, TruncateSession, UpdateSession,
};

pub(super) fn create(desk: &mut Desk<'_>, order: &CreateSession) -> Result<ResourceRef, Refusal> {
    desk.workspace(&order.workspace_id)?;
    let subject = ResourceRef::new("session", order.id.as_str());
    let place = Place {
        workspace_id: Some(order.workspace_id.clone()),
        session_id: Some(order.id.clone()),
        task_id: None,
    };
    desk.draft(
        Kind::SessionCreated,
        subject.clone(),
        &place,
        json!({
            "workspace_id": order.workspace_id,
            "mode_id": order.mode_id,
            "persona_id": order.persona_id,
            "model_policy": order.model_policy,
            "metadata": order.metadata,
        }),
    );
    for message in &order.initial_messages {
        desk.message(message, &order.id, &place);
    }
    Ok(subject)
}

pub(super) fn update(desk: &mut Desk<'_>, order: &UpdateSession) -> Result<ResourceRef, Refusal> {
    let (_, session) = desk.session(&order.id)?;
    let subject = ResourceRef::new("session", order.id.as_str());
    let mut payload = canon::Map::new();
    if let Some(summary) = &order.summary {
        payload.insert("summary".to_owned(), json!(summary));
    }
    if let Some(policy) = &order.model_policy {
        payload.insert("model_policy".to_owned(), json!(policy));
    }
    if let Some(metadata) = &order.metadata {
        payload.insert("metadata".to_owned(), json!(metadata));
    }
    if !payload.is_empty() {
        let place = Place::of_session(&order.id, session);
        desk.draft(
            Kind::SessionUpdated,
            subject.clone(),
            &place,
            payload.into(),
        );
    }
    Ok(subject)
}

pub(super) fn close(desk: &mut Desk<'_>, id: &SessionId) -> Result<ResourceRef, Refusal> {
    let (_, session) = desk.session(id)?;
    let subject = ResourceRef::new("session", id.as_str());
    if !session.closed {
        desk.draft(
            Kind::SessionClosed,
            subject.clone(),
            &Place::of_session(id, session),
            json!({}),
        );
    }
    Ok(subject)
}

pub(super) fn fork(desk: &mut Desk<'_>, order: &ForkSession) -> Result<ResourceRef, Refusal> {
    let (document, parent) = desk.session(&order.parent)?;
    if document.version != order.parent_version {
        return Err(Refusal::Stale);
    }
    if let Some(branch) = &order.branch_id {
        desk.branch(branch.as_str())
            .map_err(|_| Refusal::NotFound {
                object: "branch",
                param: Some("branch_id"),
            })?;
    }
    if let Some(branch) = &order.new_branch {
        let payload = json!({
            "kind": "session",
            "base_ref": order.parent,
            "parent_branch_id": line_of(desk, parent)?,
            "task_id": null,
            "metadata": {},
        });
        let place = Place::of_session(&order.parent, parent);
        let branch = ResourceRef::new("branch", branch.as_str());
        desk.draft(Kind::BranchCreated, branch, &place, payload);
    }
    let branch_id = order.new_branch.as_ref().or(order.branch_id.as_ref());
    let subject = ResourceRef::new("session", order.id.as_str());
    let root = parent.root_session_id.as_ref().unwrap_or(&order.parent);
    desk.draft(
        Kind::SessionThreadForked,
        ResourceRef::new("session", order.parent.as_str()),
        &Place::of_session(&order.parent, parent),
        json!({"session_id": order.id, "at_event_id": order.at_event_id, "copied": order.messages.len()}),
    );
    let place = Place {
        workspace_id: Some(parent.workspace_id.clone()),
        session_id: Some(order.id.clone()),
        task_id: None,
    };
    let mut payload = json!({
        "workspace_id": parent.workspace_id,
        "mode_id": parent.mode_id,
        "persona_id": parent.persona_id,
        "model_policy": parent.model_policy,
        "parent_session_id": order.parent,
        "root_session_id": root,
        "branch_id": branch_id,
        "copied": order.messages.len(),
        "metadata": order.metadata,
    });
    if let (Some(replay), Value::Object(payload)) = (&order.replay, &mut payload) {
        payload.insert("replay_plan_sha256".to_owned(), json!(replay.plan.digest));
        desk.blobs.push(replay.plan.clone());
    }
    desk.draft(Kind::SessionCreated, subject.clone(), &place, payload);
    // The first receipt of the fork follows the parent's last one (A5).
    if let Some((receipt_id, receipt_hash)) = &order.chain {
        desk.draft(
            Kind::ReceiptChained,
            ResourceRef::new("receipt_chain", ChainId::of(&order.id).as_str()),
            &place,
            json!({"receipt_id": receipt_id, "receipt_hash": receipt_hash, "count": 0}),
        );
    }
    for copy in &order.messages {
        desk.draft(
            Kind::MessageCopied,
            ResourceRef::new("message", copy.id.as_str()),
            &place,
            json!({"message_id": copy.id, "source_message_id": copy.of, "source_position": copy.source, "role": copy.role}),
        );
    }
    Ok(subject)
}

/// Notes on a Session that it has repeated another one, and how far that came. Once.
pub(super) fn replayed(
    desk: &mut Desk<'_>,
    order: &RecordSessionReplay,
) -> Result<ResourceRef, Refusal> {
    let (_, session) = desk.session(&order.id)?;
    let subject = ResourceRef::new("session", order.id.as_str());
    if session.replaying.is_none() {
        return Ok(subject);
    }
    let place = Place::of_session(&order.id, session);
    desk.draft(
        Kind::SessionReplayed,
        subject.clone(),
        &place,
        order.payload.clone().into(),
    );
    Ok(subject)
}

pub(super) fn truncate(
    desk: &mut Desk<'_>,
    order: &TruncateSession,
) -> Result<ResourceRef, Refusal> {
    let (document, session) = desk.session(&order.id)?;
    if document.version != order.version {
        return Err(Refusal::Stale);
    }
    let count = session.message_count();
    let kept = count.min(order.keep_first);
    let subject = ResourceRef::new("session", order.id.as_str());
    // Recorded even when nothing is removed: the answer of a truncation is rebuilt from its event.
    desk.draft(
        Kind::SessionTruncated,
        subject.clone(),
        &Place::of_session(&order.id, session),
        json!({
            "keep_first": order.keep_first,
            "kept_turn_count": kept,
            "removed_turn_count": count - kept,
            "new_tip_turn_id": order.tip,
            "after_position": order.after,
            "through_position": order.through,
            "reason": order.reason,
        }),
    );
    Ok(subject)
}

pub(super) fn append_message(
    desk: &mut Desk<'_>,
    order: &AppendMessage,
) -> Result<ResourceRef, Refusal> {
    let (_, session) = desk.open_session(&order.session_id)?;
    desk.message(
        &order.message,
        &order.session_id,
        &Place::of_session(&order.session_id, session),
    );
    Ok(ResourceRef::new("message", order.message.id.as_str()))
}
