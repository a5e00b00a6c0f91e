//! Replays: accepting one, repeating the events of its source, ending.
//!
//! What is repeated was computed before; here it becomes events of the replay Task. They happen to that Task alone,
//! so that the source, its Session's transcript and everything else stay as they are.

use canon::{Map, jcs};
use serde_json::{Value, json};

use super::content::line_of;
use super::task::{Messages, TaskEnd, end};
use super::{Decider, Place};
use crate::kind::Payload;
use crate::payload::{self, detail};
use crate::{
    AdvanceTask, Blob, BranchKind, EndReplay, Refusal, ReplayedEvent, ResourceRef, Status,
    SubmitReplay, TaskId,
};

pub(super) fn submit(
    decider: &mut Decider<'_>,
    order: &SubmitReplay,
) -> Result<ResourceRef, Refusal> {
    let source = decider.task(&order.source)?;
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
    if decider.documents.document(order.id.as_str()).is_some() {
        return Err(Refusal::Stale);
    }
    // From the record alone also in a closed Session: nothing is performed, and nothing is added to the conversation.
    let (_, session) = match order.goes_live {
        true => decider.open_session(&order.session_id)?,
        false => decider.session(&order.session_id)?,
    };
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
    let subject = order.id.resource();
    let given = |value: &Value| (!value.is_null()).then(|| detail(value));
    let mut submitted = payload::TaskSubmitted::new(&source.workflow, &metadata);
    submitted.branch_id.clone_from(&order.new_branch);
    submitted.parent_task_id = Some(order.source.clone());
    submitted.input_position = Some(source.input);
    submitted.input = given(&order.input);
    submitted.persona = given(&order.persona);
    submitted.replay = Some(payload::SubmittedReplay {
        mode: detail(&order.mode),
        source_task_id: order.source.clone(),
        request_sha256: request.digest,
        ordinal: order.ordinal,
    });
    if let Some(persona) = &source.persona {
        submitted.runs_under(persona);
    }
    decider.draft(Payload::TaskSubmitted(submitted), subject.clone(), &place);
    if let Some(branch) = &order.new_branch {
        let created = Payload::BranchCreated(payload::BranchCreated {
            kind: BranchKind::Task,
            base_ref: order.source.to_string(),
            parent_branch_id: Some(Some(line_of(decider, session)?)),
            task_id: Some(Some(order.source.clone())),
            metadata: detail(Map::new()),
        });
        // Not of the Task's own log: a Branch outlives it.
        let place = Place {
            task_id: None,
            ..place
        };
        decider.draft(created, branch.resource(), &place);
    }
    decider.blobs.push(request);
    Ok(subject)
}

/// Drafts one event of the replayed run.
pub(super) fn emit(decider: &mut Decider<'_>, id: &TaskId, place: &Place, event: &ReplayedEvent) {
    let resource = match &event.artifact {
        Some(artifact) => artifact.resource(),
        None => id.resource(),
    };
    let draft = decider.draft_open(event.kind, event.payload.clone(), resource, place);
    draft.replay = Some(Box::new(event.mark.clone()));
    if event.actor.is_some() {
        draft.actor.clone_from(&event.actor);
    }
    if let Some(content) = &event.content {
        decider.blobs.push(Blob::new(content.clone()));
    }
}

pub(super) fn end_replay(
    decider: &mut Decider<'_>,
    order: &AdvanceTask,
    place: &Place,
    status: Status,
    ending: &EndReplay,
) {
    let said = ending.payload.clone();
    let said = if ending.completed {
        Payload::ReplayCompleted(said)
    } else {
        Payload::ReplayFailed(said)
    };
    decider.draft(said, order.id.resource(), place);
    let end_of_task = TaskEnd {
        status: ending.status,
        summary: ending.summary.clone(),
        messages: Messages::Whole(ending.messages.clone()),
        failure: ending.failure.clone(),
    };
    end(decider, &order.id, status, &ending.ids, place, end_of_task);
    if let Some(ends) = &mut decider.ends {
        ends.receipt.clone_from(&ending.receipt);
    }
}
