//! Messages in requests.

use canon::{Map, Value};
use domain::{MessageSpec, Request, Role, TaskMessageKind};
use serde_json::json;

use super::{Incoming, Members, PARTS_MAX};
use crate::InputError;

pub(crate) const ROLES: [&str; 5] = ["user", "assistant", "system", "tool", "agent"];
pub(crate) const TASK_MESSAGE_KINDS: [&str; 3] = ["input", "interrupt", "tool_confirmation"];

/// Reads a Message to a Session.
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn append_message(incoming: &Incoming<'_>) -> Result<Request, InputError> {
    Ok(Request::AppendMessage {
        session_id: incoming.session_id()?,
        message: message(&incoming.members())?,
    })
}

/// Reads a Message to a Task (C-14).
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn task_message(incoming: &Incoming<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    let kind = members
        .word("kind", &TASK_MESSAGE_KINDS, |word| match word {
            "input" => Some(TaskMessageKind::Input),
            "interrupt" => Some(TaskMessageKind::Interrupt),
            "tool_confirmation" => Some(TaskMessageKind::ToolConfirmation),
            _ => None,
        })?
        .ok_or_else(|| members.missing("kind"))?;
    Ok(Request::SendTaskMessage {
        id: incoming.task_id()?,
        kind,
        message: message(&members)?,
    })
}

/// Reads `{message: {…}}`, or the message itself (C-32).
fn message(members: &Members<'_>) -> Result<MessageSpec, InputError> {
    match members.object("message")? {
        Some(message) => read(&Members::at(message, "message")),
        None if is_message(members.map()) => read(members),
        None => Err(members.missing("message")),
    }
}

/// True when an object means to be a Message: it says who speaks and what.
pub(super) fn is_message(map: &Map<String, Value>) -> bool {
    map.contains_key("role") && (map.contains_key("parts") || map.contains_key("content"))
}

/// Reads the members of a Message.
pub(super) fn read(members: &Members<'_>) -> Result<MessageSpec, InputError> {
    let role = members
        .word("role", &ROLES, Role::parse)?
        .ok_or_else(|| members.missing("role"))?;
    let parts = match (
        members.array("parts", PARTS_MAX)?,
        members.map().get("content"),
    ) {
        (Some(parts), _) => parts.to_vec(),
        (None, Some(Value::String(text))) => {
            vec![json!({"type": "text", "text": text, "visibility": "public"})]
        }
        (None, Some(_)) => return Err(members.wrong("content", "must be a string")),
        (None, None) => return Err(members.missing("parts")),
    };
    let parts = domain::check_parts(&parts).map_err(|error| {
        let place = match error.member {
            "parts" => format!("parts.{}", error.index),
            member => format!("parts.{}.{member}", error.index),
        };
        InputError::invalid(members.param(&place), error.to_string())
    })?;
    Ok(MessageSpec {
        role,
        parts,
        metadata: members.metadata()?,
    })
}
