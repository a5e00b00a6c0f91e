//! Messages in requests.

use canon::{Map, Value};
use domain::Role;
use serde_json::json;

use super::{Members, PARTS_MAX};
use crate::InputError;

/// A Message to be.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageInput {
    /// Who speaks.
    pub role: Role,
    /// Checked parts.
    pub parts: Vec<Value>,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// A Message to a Task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskMessage {
    /// What it is for.
    pub kind: TaskMessageKind,
    /// The Message.
    pub message: MessageInput,
}

/// What a Message to a Task is for (C-14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskMessageKind {
    /// Answers a question.
    Input,
    /// Stops the current step.
    Interrupt,
    /// Decides an approval.
    ToolConfirmation,
}

pub(crate) const ROLES: [&str; 5] = ["user", "assistant", "system", "tool", "agent"];
pub(crate) const TASK_MESSAGE_KINDS: [&str; 3] = ["input", "interrupt", "tool_confirmation"];

/// Reads `{message: {…}}`, or the message itself (C-32).
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn append_message(body: &Map<String, Value>) -> Result<MessageInput, InputError> {
    let members = Members::of(body);
    match members.object("message")? {
        Some(message) => read(&Members::at(message, "message")),
        None if is_message(body) => read(&members),
        None => Err(members.missing("message")),
    }
}

/// Reads a Message to a Task, in either form.
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn task_message(body: &Map<String, Value>) -> Result<TaskMessage, InputError> {
    let members = Members::of(body);
    let kind = members
        .word("kind", &TASK_MESSAGE_KINDS, |word| match word {
            "input" => Some(TaskMessageKind::Input),
            "interrupt" => Some(TaskMessageKind::Interrupt),
            "tool_confirmation" => Some(TaskMessageKind::ToolConfirmation),
            _ => None,
        })?
        .ok_or_else(|| members.missing("kind"))?;
    let message = append_message(body)?;
    Ok(TaskMessage { kind, message })
}

/// True when an object means to be a Message: it says who speaks and what.
pub(super) fn is_message(map: &Map<String, Value>) -> bool {
    map.contains_key("role") && (map.contains_key("parts") || map.contains_key("content"))
}

/// Reads the members of a Message.
pub(super) fn read(members: &Members<'_>) -> Result<MessageInput, InputError> {
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
    Ok(MessageInput {
        role,
        parts,
        metadata: members.metadata()?,
    })
}
