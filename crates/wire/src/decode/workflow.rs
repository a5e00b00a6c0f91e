//! Bodies about workflows of governed sessions and the handoffs in them.

use domain::{
    Govern, GovernedOperation, HandoffAction, NewOffer, NewPlace, NewWorkflow, Request,
    WorkspaceId, is_governed_id,
};

use super::governed::{TOOLS_MAX, WORD_BYTES_MAX, digest, file, refuse_unknown, session_operation};
use super::{DecodeInput, Members, NAME_BYTES_MAX};
use crate::InputError;

/// The id of a handoff contains that of its workflow.
const WORKFLOW_ID_BYTES_MAX: usize = 100;
/// The summary of a handoff.
pub(crate) const HANDOFF_SUMMARY_BYTES_MAX: usize = 16 * 1024;

/// Reads a new workflow.
///
/// # Errors
/// Names the member that is wrong.
pub fn create_workflow(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    refuse_unknown(
        &members,
        &[
            "workflow_id",
            "workspace_id",
            "compiled_digest",
            "source",
            "role",
        ],
    )?;
    let new = NewWorkflow {
        workflow_id: workflow_id(&members, "workflow_id")?,
        workspace_id: members.id("workspace_id", WorkspaceId::OBJECT, WorkspaceId::parse)?,
        digest: digest(&members, "compiled_digest")?,
        source: source(&members)?,
        role: members.string_or_null("role", NAME_BYTES_MAX)?,
    };
    Ok(Request::Govern(Govern::OpenWorkflow(Box::new(new))))
}

/// Reads the place in a workflow that a new session asks for.
pub(super) fn place(members: &Members<'_>) -> Result<Option<NewPlace>, InputError> {
    if !members.has("workflow") || members.map().get("workflow").is_some_and(|of| of.is_null()) {
        return Ok(None);
    }
    let Some(given) = members.object("workflow")? else {
        return Ok(None);
    };
    let inner = Members::at(given, members.param("workflow"));
    refuse_unknown(
        &inner,
        &[
            "type",
            "workflow_id",
            "workflowId",
            "handoff_id",
            "handoffId",
            "role",
            "source",
        ],
    )?;
    // The option of programs is spelt in their way; it may be sent as it is.
    let either = |one: &'static str, other: &'static str| match inner.has(one) {
        true => one,
        false => other,
    };
    let kind = inner.word("type", &["root", "child"], |word| Some(word == "child"))?;
    let is_child = kind.ok_or_else(|| inner.missing("type"))?;
    let handoff = either("handoff_id", "handoffId");
    let handoff_id = inner.string_or_null(handoff, WORD_BYTES_MAX)?;
    match (is_child, &handoff_id) {
        (true, None) => return Err(inner.missing("handoff_id")),
        (false, Some(_)) => {
            return Err(inner.wrong(handoff, "belongs to a child, not to the first session"));
        }
        (true, Some(_)) | (false, None) => {}
    }
    Ok(Some(NewPlace {
        workflow_id: workflow_id(&inner, either("workflow_id", "workflowId"))?,
        role: inner.string_or_null("role", NAME_BYTES_MAX)?,
        handoff_id,
        source: source(&inner)?,
    }))
}

fn workflow_id(members: &Members<'_>, name: &str) -> Result<Option<String>, InputError> {
    let id = members.string_or_null(name, WORD_BYTES_MAX)?;
    let good = |id: &str| id.len() <= WORKFLOW_ID_BYTES_MAX && is_governed_id(id);
    match id.as_deref().is_none_or(good) {
        true => Ok(id),
        false => Err(members.wrong(name, "has 1 to 100 letters, digits, `.`, `_`, `:`, `-`")),
    }
}

/// A workflow file is sent as `source`, `{ "file", "text" }`.
fn source(members: &Members<'_>) -> Result<Option<domain::ContractText>, InputError> {
    let given = members.map().get("source").filter(|of| !of.is_null());
    let Some(given) = given else { return Ok(None) };
    let mut unknown = Vec::new();
    let source = file(given, members.param("source"), &mut unknown)?;
    match unknown.first() {
        None => Ok(Some(source)),
        Some(name) => Err(InputError::invalid(
            name.clone(),
            "is not a member of a file",
        )),
    }
}

/// Reads an offer of a session's work.
///
/// # Errors
/// Names the member that is wrong.
pub fn offer_handoff(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    refuse_unknown(
        &members,
        &["to_role", "summary", "carry", "expires_in_seconds"],
    )?;
    let carry = members.strings("carry", TOOLS_MAX, WORD_BYTES_MAX)?;
    let offer = NewOffer {
        handoff_id: String::new(),
        to_role: members.required_string("to_role", NAME_BYTES_MAX)?,
        summary: members
            .string_or_null("summary", HANDOFF_SUMMARY_BYTES_MAX)?
            .unwrap_or_default(),
        carry: carry.unwrap_or_default(),
        expires_in_seconds: members.count("expires_in_seconds")?,
    };
    Ok(session_operation(incoming, GovernedOperation::Offer(offer)))
}

fn on_handoff(incoming: &DecodeInput<'_>, action: HandoffAction) -> Request {
    Request::Govern(Govern::Handoff {
        handoff_id: incoming.param("handoff_id").unwrap_or_default().to_owned(),
        workspace_id: None,
        action,
    })
}

/// Reads who takes an offer.
///
/// # Errors
/// Names the member that is wrong.
pub fn accept_handoff(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    let session_id = members.string_or_null("session_id", WORD_BYTES_MAX)?;
    if session_id.as_deref().is_some_and(|id| !is_governed_id(id)) {
        let message = "has 1 to 128 letters, digits, `.`, `_`, `:`, `-`";
        return Err(members.wrong("session_id", message));
    }
    Ok(on_handoff(incoming, HandoffAction::Accept { session_id }))
}

/// Reads which offer is refused.
///
/// # Errors
/// None: the path says it.
pub fn decline_handoff(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    Ok(on_handoff(incoming, HandoffAction::Decline))
}

/// Reads which offer is taken back.
///
/// # Errors
/// None: the path says it.
pub fn cancel_handoff(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    Ok(on_handoff(incoming, HandoffAction::Cancel))
}
