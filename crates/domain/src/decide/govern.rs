//! Governed sessions: a Task whose inputs come from a program elsewhere.
//!
//! What an input brings about was judged before, on a version of the Task that must still be its newest.

use canon::{jcs, sha256};
use serde_json::json;

use super::task::{change_status, record_trust, submit_into};
use super::{Decider, Place, advance, session};
use crate::kind::Payload;
use crate::payload::{self, detail};
use crate::{
    AdvanceTask, Answer, GovernTask, GovernedAnswer, OpenGoverned, PermissionId, Refusal,
    ResourceRef, State, Status, Task,
};

/// Who brings about what follows from an input: the session itself.
const SESSION: &str = "agent";

pub(super) fn open(
    decider: &mut Decider<'_>,
    order: &OpenGoverned,
) -> Result<ResourceRef, Refusal> {
    let exists = |id: &str| decider.documents.document(id).is_some();
    if exists(order.session.id.as_str()) || exists(order.task.id.as_str()) {
        // Somebody was faster: there is a session to go on with.
        return Err(Refusal::Stale);
    }
    session::create(decider, &order.session)?;
    let place = Place {
        workspace_id: Some(order.session.workspace_id.clone()),
        session_id: Some(order.session.id.clone()),
        task_id: Some(order.task.id.clone()),
    };
    let subject = submit_into(decider, &order.task, &place);
    let started = Payload::TaskStarted(payload::TaskStarted {
        workflow: detail(&order.task.workflow),
        workflow_sha256: Some(json!(order.workflow_digest)),
    });
    decider.draft(started, subject.clone(), &place);
    let (from, to) = (Status::Submitted, Status::Working);
    change_status(decider, subject.clone(), &place, from, to, None);
    advance::intend(decider, subject.clone(), &place, &order.awaits);
    if let Some(told) = &order.workflow {
        govern(decider, told)?;
    }
    Ok(subject)
}

pub(super) fn govern(
    decider: &mut Decider<'_>,
    order: &GovernTask,
) -> Result<ResourceRef, Refusal> {
    let task = decider.task(&order.id)?;
    let version = decider.documents.document(order.id.as_str());
    if version.map(|document| document.version) != Some(order.version) {
        return Err(Refusal::Stale);
    }
    let mut subject = order.id.resource();
    let place = Place::of_task(&order.id, task);
    if let Some(given) = &order.answer {
        answer(decider, given, task, &place)?;
        subject = given.request.resource();
    }
    let caller = std::mem::replace(&mut decider.actor, SESSION);
    let advanced = advance::advance(
        decider,
        &AdvanceTask {
            id: order.id.clone(),
            workflow: task.ledger.as_ref().map(|ledger| ledger.workflow),
            moves: order.moves.clone(),
        },
    );
    decider.actor = caller;
    advanced?;
    if let Some(told) = &order.workflow {
        govern(decider, told)?;
    }
    Ok(subject)
}

fn answer(
    decider: &mut Decider<'_>,
    given: &GovernedAnswer,
    task: &Task,
    place: &Place,
) -> Result<(), Refusal> {
    let request = decider.permission(given.request.as_str())?;
    if request.answer != Answer::Pending {
        return Err(Refusal::Stale);
    }
    let subject = given.request.resource();
    let digest = sha256(&jcs(&json!({"approved": given.approved})));
    let said = Payload::UserToolConfirmation(payload::Answered {
        request_id: detail(&given.request),
        effect_key: detail(&request.effect_key),
        approved: given.approved,
        answer_sha256: digest,
        remarks: detail(&given.remarks),
        message_id: None,
        answer: None,
    });
    decider.draft(said, subject.clone(), place);
    let decision = if given.approved { "approved" } else { "denied" };
    let decision = (decision, given.key_id.as_deref());
    record_trust(decider, &given.request, request, task, place, decision);
    let said = payload::Decided::default().request_id(given.request.as_str());
    let said = match given.approved {
        true => Payload::ToolApproved(said),
        false => Payload::ToolDenied(said),
    };
    decider.draft(said, subject, place);
    Ok(())
}

/// Drafts the end of a request that nobody will answer.
pub(super) fn withdraw(
    decider: &mut Decider<'_>,
    id: &PermissionId,
    task: &Task,
    place: &Place,
    reason: &str,
) {
    let document = decider.documents.document(id.as_str());
    let Some(State::Permission(request)) = document.map(|document| &document.state) else {
        return;
    };
    if request.answer == Answer::Pending {
        let withdrawn = Payload::RequestWithdrawn(payload::Withdrawn {
            reason: detail(reason),
        });
        decider.draft(withdrawn, id.resource(), place);
        record_trust(decider, id, request, task, place, ("canceled", None));
    }
}
