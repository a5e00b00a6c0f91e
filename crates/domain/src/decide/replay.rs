//! Replays: accepting one, repeating the events of its source, ending.
//!
//! What is repeated was computed before; here it becomes events of the replay Task. They happen to that Task alone,
//! so that the source, its Session's transcript and everything else stay as they are.

use canon::jcs;
use serde_json::{Value, json};

use super::content::line_of;
use super::task::{Ending, Messages, end};
use super::{Desk, Place};
use crate::{
    AdvanceTask, ArtifactId, Blob, EndReplay, Kind, Refusal, ReplayedEvent, ResourceRef, Status,
    SubmitReplay, TaskId,
};

pub(super) fn submit(desk: &mut Desk<'_>, order: &SubmitReplay) -> Result<ResourceRef, Refusal> {
    let source = desk.task(&order.source)?;
    if !source.status.is_terminal() {
        return Err(Refusal::Conflict {
            reason: "source_not_finished",
            message: format!(
                "only a finished task can be replayed; this one is {}",
                source.status.as_str()
            ),
            status: Some(source.status),
        });
    }
    // Somebody else was faster: the id of the next replay is another one.
    if desk.documents.document(order.id.as_str()).is_some() {
        return Err(Refusal::Stale);
    }
    // Also in a closed Session: nothing is added to the conversation.
    let (_, session) = desk.session(&order.session_id)?;
    let place = Place {
        workspace_id: Some(session.workspace_id.clone()),
        session_id: Some(order.session_id.clone()),
        task_id: Some(order.id.clone()),
    };
    let request = Blob::new(jcs(&json!({"request": order.request, "salt": order.salt})));
    let mut metadata = order.metadata.clone();
    metadata.insert(
        "replay".to_owned(),
        json!({"mode": order.mode, "source_task_id": order.source}),
    );
    let subject = ResourceRef::new(TaskId::OBJECT, order.id.as_str());
    let mut payload = json!({
        "workflow": source.workflow,
        "branch_id": order.new_branch,
        "parent_task_id": order.source,
        "metadata": metadata,
        "input_position": source.input,
        "input": order.input,
        "persona": order.persona,
        "replay": {
            "mode": order.mode,
            "source_task_id": order.source,
            "request_sha256": request.digest,
            "ordinal": order.ordinal,
        },
    });
    if let Value::Object(payload) = &mut payload {
        payload.retain(|name, value| {
            !(value.is_null() && ["input", "persona"].contains(&name.as_str()))
        });
        if let Some(persona) = &source.persona {
            payload.insert("persona_id".to_owned(), json!(persona.id));
            payload.insert("persona_version".to_owned(), json!(persona.version));
            payload.insert("autonomy_tier".to_owned(), json!(persona.autonomy_tier));
            payload.insert("receipt_policy".to_owned(), json!(persona.receipt_policy));
        }
    }
    desk.draft(Kind::TaskSubmitted, subject.clone(), &place, payload);
    if let Some(branch) = &order.new_branch {
        let payload = json!({
            "kind": "task",
            "base_ref": order.source,
            "parent_branch_id": line_of(desk, session)?,
            "task_id": order.source,
            "metadata": {},
        });
        // Not of the Task's own log: a Branch outlives it.
        let place = Place {
            task_id: None,
            ..place
        };
        let branch = ResourceRef::new("branch", branch.as_str());
        desk.draft(Kind::BranchCreated, branch, &place, payload);
    }
    desk.blobs.push(request);
    Ok(subject)
}

/// Drafts one event of the replayed run.
pub(super) fn emit(desk: &mut Desk<'_>, id: &TaskId, place: &Place, event: &ReplayedEvent) {
    let resource = match &event.artifact {
        Some(artifact) => ResourceRef::new(ArtifactId::OBJECT, artifact.as_str()),
        None => ResourceRef::new(TaskId::OBJECT, id.as_str()),
    };
    let draft = desk.draft(event.kind, resource, place, event.payload.clone().into());
    draft.replay = Some(Box::new(event.mark.clone()));
    if event.actor.is_some() {
        draft.actor.clone_from(&event.actor);
    }
    if let Some(content) = &event.content {
        desk.blobs.push(Blob::new(content.clone()));
    }
}

pub(super) fn end_replay(
    desk: &mut Desk<'_>,
    order: &AdvanceTask,
    place: &Place,
    status: Status,
    ending: &EndReplay,
) {
    let kind = if ending.completed {
        Kind::ReplayCompleted
    } else {
        Kind::ReplayFailed
    };
    desk.draft(
        kind,
        ResourceRef::new(TaskId::OBJECT, order.id.as_str()),
        place,
        Value::Object(ending.payload.clone()),
    );
    let end_of_task = Ending {
        status: ending.status,
        summary: ending.summary.clone(),
        messages: Messages::Whole(ending.messages.clone()),
        failure: ending.failure.clone(),
    };
    end(desk, &order.id, status, &ending.ids, place, end_of_task);
    if let Some(ends) = &mut desk.ends {
        ends.receipt.clone_from(&ending.receipt);
    }
}
