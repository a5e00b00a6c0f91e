//! Bodies about Sessions, Tasks, Messages to them, and the answers that Tasks wait for.

use canon::{Map, Value};
use domain::{
    BranchId, InputSpec, MessageSpec, NewSession, NewTask, PermissionId, ReplaySession, ReplayTask,
    Request, Role, SessionId, TaskId, TaskMessageKind, UpdateSession, WorkspaceId,
};
use serde_json::json;

use super::{DecodeInput, Members, PARTS_MAX, SUMMARY_BYTES_MAX, TEXT_BYTES_MAX, unserved};
use crate::InputError;

const ROLES: [&str; 5] = ["user", "assistant", "system", "tool", "agent"];
const TASK_MESSAGE_KINDS: [&str; 3] = ["input", "interrupt", "tool_confirmation"];
pub(crate) const MODES: [&str; 4] = ["ask", "architect", "code", "shadow"];
pub(crate) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
pub(crate) const OUTCOMES: [&str; 6] = [
    "approved", "approve", "selected", "denied", "deny", "rejected",
];
pub(crate) const RULE_SCOPES: [&str; 4] = ["session", "workspace", "user", "always"];
pub(crate) const CLASSES: [&str; 6] = ["read", "write", "exec", "net", "llm", "custom"];

/// Reads a new Session.
///
/// # Errors
/// Names the member that is wrong.
pub fn create_session(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    for name in ["vault_ids", "memory_ids", "skill_ids"] {
        members.names(name)?;
    }
    let listed = members
        .array("initial_messages", incoming.settings.initial_messages_max)?
        .unwrap_or_default();
    let initial_messages = listed.iter().enumerate().map(|(index, item)| {
        let message = Members::within(item, format!("initial_messages.{index}"))?;
        read_message(&message)
    });
    let initial_messages = initial_messages.collect::<Result<_, _>>()?;
    if members.map().get("workspace_id") == Some(&Value::Null) {
        return Err(members.wrong("workspace_id", "must be a string"));
    }
    let new = NewSession {
        workspace_id: members.id("workspace_id", WorkspaceId::OBJECT, WorkspaceId::parse)?,
        mode_id: members.word_or_null("mode_id", &MODES)?,
        persona_id: members.string_or_null("persona_id", domain::ID_BYTES_MAX)?,
        model_policy: model_policy(&members)?.flatten(),
        initial_messages,
        metadata: members.metadata()?,
    };
    unserved::refuse("CreateSessionRequest", &members)?;
    Ok(Request::CreateSession(new))
}

/// Reads a change of a Session.
///
/// # Errors
/// Names the member that is wrong.
pub fn update_session(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    let update = UpdateSession {
        id: incoming.session_id()?,
        summary: members.nullable_string("summary", SUMMARY_BYTES_MAX)?,
        model_policy: model_policy(&members)?,
        metadata: members.metadata_if_any()?,
    };
    unserved::refuse("UpdateSessionRequest", &members)?;
    Ok(Request::UpdateSession(update))
}

/// Reads which Session is closed.
///
/// # Errors
/// It has no such id.
pub fn close_session(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    Ok(Request::CloseSession(incoming.session_id()?))
}

fn model_policy(members: &Members<'_>) -> Result<Option<Option<Value>>, InputError> {
    if members.map().get("model_policy") == Some(&Value::Null) {
        return Ok(Some(None));
    }
    let Some(policy) = members.object("model_policy")? else {
        return Ok(None);
    };
    let inner = Members::at(policy, members.param("model_policy"));
    for name in ["provider", "model"] {
        if inner.required_string(name, TEXT_BYTES_MAX)?.is_empty() {
            return Err(inner.wrong(name, "must not be empty"));
        }
    }
    inner.word("reasoning_effort", &EFFORTS, |word| Some(word.to_owned()))?;
    let known = ["provider", "model", "reasoning_effort"];
    if let Some(name) = policy.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(inner.wrong(name, "is not a member of a model policy"));
    }
    Ok(Some(Some(Value::Object(policy.clone()))))
}

/// Reads a fork: the event to fork at, the Branch, the caller's own members.
///
/// # Errors
/// Names the member that is wrong.
pub fn fork_session(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    Ok(Request::ForkSession {
        id: incoming.session_id()?,
        at_event_id: members.string_or_null("at_event_id", domain::ID_BYTES_MAX)?,
        branch_id: members.id("branch_id", BranchId::OBJECT, BranchId::parse)?,
        metadata: members.metadata()?,
    })
}

/// Reads a truncation.
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn truncate_session(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    Ok(Request::TruncateSession {
        id: incoming.session_id()?,
        keep_first: members.required_count("keep_first")?,
        reason: members.string("reason", TEXT_BYTES_MAX)?,
    })
}

/// Reads a replay of a Session. What its body says is judged against the Session's record.
///
/// # Errors
/// The Session has no such id.
pub fn replay_session(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    bounded_remarks(incoming)?;
    Ok(Request::ReplaySession(ReplaySession {
        id: incoming.session_id()?,
        body: Value::Object(incoming.body.clone()),
        conformance: incoming.settings.replay_conformance,
    }))
}

/// Reads a replay of a Task. What its body says is judged against the Task's record.
///
/// # Errors
/// The Task has no such id.
pub fn replay_task(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    bounded_remarks(incoming)?;
    Ok(Request::ReplayTask(ReplayTask {
        id: incoming.task_id()?,
        body: Value::Object(incoming.body.clone()),
        conformance: incoming.settings.replay_conformance,
        session_id: None,
    }))
}

/// What a caller adds to a replay of his own accord is as long as elsewhere.
fn bounded_remarks(incoming: &DecodeInput<'_>) -> Result<(), InputError> {
    let members = incoming.members();
    members.string_or_null("reason", TEXT_BYTES_MAX)?;
    match members.map().get("metadata") {
        Some(Value::Object(_)) => members.metadata().map(drop),
        _ => Ok(()),
    }
}

/// Reads that a Task is taken up again. Where it goes on its record says.
///
/// # Errors
/// The Task has no such id, or a member is wrong.
pub fn retry_task(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    let mut body = Map::new();
    if let Some(reason) = members.string("reason", TEXT_BYTES_MAX)? {
        body.insert("reason".to_owned(), reason.into());
    }
    body.insert("metadata".to_owned(), Value::Object(members.metadata()?));
    body.insert("retry".to_owned(), true.into());
    Ok(Request::ReplayTask(ReplayTask {
        id: incoming.task_id()?,
        body: Value::Object(body),
        conformance: false,
        session_id: None,
    }))
}

/// Reads a new Task. The Session comes from the path, from the body, or from both if they agree (AP-TASK-05).
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn submit_task(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let path_session = match incoming.param("session_id") {
        None => None,
        Some(_) => Some(incoming.session_id()?),
    };
    let members = incoming.members();
    for name in ["session_id", "workspace_id"] {
        if members.map().get(name) == Some(&Value::Null) {
            return Err(members.wrong(name, "must be a string"));
        }
    }
    let named = members.id("session_id", SessionId::OBJECT, SessionId::parse);
    let session_id = match (path_session, named) {
        (Some(path), Ok(None)) => path,
        (Some(path), Ok(Some(named))) if path == named => path,
        (Some(_), Ok(Some(_)) | Err(InputError::Unknown { .. })) => {
            return Err(members.wrong("session_id", "is not the session in the path"));
        }
        (None, Ok(Some(named))) => named,
        (None, Ok(None)) => return Err(members.missing("session_id")),
        (_, Err(error)) => return Err(error),
    };
    let input = members
        .object("input")?
        .ok_or_else(|| members.missing("input"))?;
    let input = if is_message(input) {
        InputSpec::Message(read_message(&Members::at(input, "input"))?)
    } else {
        InputSpec::Object(input.clone())
    };
    Ok(Request::SubmitTask(NewTask {
        session_id,
        workspace_id: members.id("workspace_id", WorkspaceId::OBJECT, WorkspaceId::parse)?,
        persona_id: members.string_or_null("persona_id", domain::ID_BYTES_MAX)?,
        branch_id: members.id("branch_id", BranchId::OBJECT, BranchId::parse)?,
        parent_task_id: members.id("parent_task_id", TaskId::OBJECT, TaskId::parse)?,
        input,
        metadata: members.metadata()?,
    }))
}

/// Reads why a Task is canceled.
///
/// # Errors
/// The reason is not text.
pub fn cancel_task(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    Ok(Request::CancelTask {
        id: incoming.task_id()?,
        reason: incoming
            .members()
            .string_or_null("reason", TEXT_BYTES_MAX)?,
    })
}

/// Reads an answer to a permission request. Silence is not a denial (AP-PRM-04).
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn respond_permission(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    let approved = members.boolean("approved")?;
    let outcome = members.word("outcome", &OUTCOMES, |word| {
        Some(matches!(word, "approved" | "approve" | "selected"))
    })?;
    let approved = match (approved, outcome) {
        (Some(approved), Some(outcome)) if approved != outcome => {
            return Err(members.wrong("outcome", "contradicts `approved`"));
        }
        (approved, outcome) => approved.or(outcome),
    };
    let answer = members.map().get("answer").cloned();
    if approved.is_none() && answer.is_none() {
        let message = "a response needs `approved` or `outcome`, or `answer` to a question";
        return Err(members.wrong("approved", message));
    }
    for name in [
        "reviewer",
        "reason",
        "expires_at",
        "action_pattern",
        "target_pattern",
    ] {
        members.string_or_null(name, TEXT_BYTES_MAX)?;
    }
    members.word_or_null("scope", &RULE_SCOPES)?;
    members.word_or_null("class", &CLASSES)?;
    if members.map().get("remember") != Some(&Value::Null) {
        members.boolean("remember")?;
    }
    members.metadata()?;
    unserved::refuse("PermissionResponseRequest", &members)?;
    let kept = [
        "reviewer", "reason", "metadata", "scope", "remember", "class",
    ];
    let remarks = kept
        .into_iter()
        .filter_map(|name| {
            let value = members.map().get(name).filter(|value| !value.is_null())?;
            Some((name.to_owned(), value.clone()))
        })
        .collect();
    Ok(Request::RespondPermission {
        id: incoming.id("request_id", PermissionId::OBJECT, PermissionId::parse)?,
        approved,
        answer,
        remarks,
    })
}

/// Reads a Message to a Session.
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn append_message(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    Ok(Request::AppendMessage {
        session_id: incoming.session_id()?,
        message: message(&incoming.members())?,
    })
}

/// Reads a Message to a Task (C-14).
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn task_message(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
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
        Some(message) => read_message(&Members::at(message, "message")),
        None if is_message(members.map()) => read_message(members),
        None => Err(members.missing("message")),
    }
}

/// True when an object means to be a Message: it says who speaks and what.
fn is_message(map: &Map<String, Value>) -> bool {
    map.contains_key("role") && (map.contains_key("parts") || map.contains_key("content"))
}

/// Reads the members of a Message.
fn read_message(members: &Members<'_>) -> Result<MessageSpec, InputError> {
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
