//! Bodies about Sessions, Tasks and the answers that Tasks wait for.

use canon::{Map, Value};
use domain::{BranchId, SessionId, TaskId, UpdateSession, WorkspaceId};

use super::message::{self, MessageInput};
use super::{Members, SUMMARY_BYTES_MAX, TEXT_BYTES_MAX, unserved};
use crate::InputError;

pub(crate) const MODES: [&str; 4] = ["ask", "architect", "code", "shadow"];
pub(crate) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
pub(crate) const OUTCOMES: [&str; 6] = [
    "approved", "approve", "selected", "denied", "deny", "rejected",
];
pub(crate) const RULE_SCOPES: [&str; 4] = ["session", "workspace", "user", "always"];
pub(crate) const CLASSES: [&str; 6] = ["read", "write", "exec", "net", "llm", "custom"];

/// A Session to be.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSession {
    /// Its Workspace; none for the local one (C-33).
    pub workspace_id: Option<WorkspaceId>,
    /// The mode.
    pub mode_id: Option<String>,
    /// The persona.
    pub persona_id: Option<String>,
    /// Provider and model.
    pub model_policy: Option<Value>,
    /// Its first Messages.
    pub initial_messages: Vec<MessageInput>,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// Reads a Session to be.
///
/// # Errors
/// Names the member that is wrong.
pub fn create_session(
    body: &Map<String, Value>,
    initial_messages_max: usize,
) -> Result<NewSession, InputError> {
    let members = Members::of(body);
    for name in ["vault_ids", "memory_ids", "skill_ids"] {
        members.names(name)?;
    }
    let listed = members
        .array("initial_messages", initial_messages_max)?
        .unwrap_or_default();
    let initial_messages = listed.iter().enumerate().map(|(index, item)| {
        let place = format!("initial_messages.{index}");
        match item {
            Value::Object(map) => message::read(&Members::at(map, place)),
            _ => Err(InputError::invalid(place, "must be an object")),
        }
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
    Ok(new)
}

/// Reads a change of a Session.
///
/// # Errors
/// Names the member that is wrong.
pub fn update_session(
    id: SessionId,
    body: &Map<String, Value>,
) -> Result<UpdateSession, InputError> {
    let members = Members::of(body);
    let update = UpdateSession {
        id,
        summary: members.nullable_string("summary", SUMMARY_BYTES_MAX)?,
        model_policy: model_policy(&members)?,
        metadata: members.metadata_if_any()?,
    };
    unserved::refuse("UpdateSessionRequest", &members)?;
    Ok(update)
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
#[expect(
    clippy::type_complexity,
    reason = "three members, read once, by one caller"
)]
pub fn fork_session(
    body: &Map<String, Value>,
) -> Result<(Option<String>, Option<BranchId>, Map<String, Value>), InputError> {
    let members = Members::of(body);
    Ok((
        members.string_or_null("at_event_id", domain::ID_BYTES_MAX)?,
        members.id("branch_id", BranchId::OBJECT, BranchId::parse)?,
        members.metadata()?,
    ))
}

/// A truncation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncation {
    /// How many Messages to keep.
    pub keep_first: u64,
    /// Why.
    pub reason: Option<String>,
}

/// Reads a truncation.
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn truncate_session(body: &Map<String, Value>) -> Result<Truncation, InputError> {
    let members = Members::of(body);
    Ok(Truncation {
        keep_first: members.required_count("keep_first")?,
        reason: members.string("reason", TEXT_BYTES_MAX)?,
    })
}

/// A Task to be.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// Its Session.
    pub session_id: SessionId,
    /// The Workspace the request names.
    pub workspace_id: Option<WorkspaceId>,
    /// The persona.
    pub persona_id: Option<String>,
    /// The Branch it runs on.
    pub branch_id: Option<BranchId>,
    /// The Task it comes from.
    pub parent_task_id: Option<TaskId>,
    /// What it works on.
    pub input: Input,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// What a Task works on.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A Message.
    Message(MessageInput),
    /// Any JSON object.
    Object(Map<String, Value>),
}

/// Reads a Task to be. The Session comes from the path, from the body, or from both if they agree (AP-TASK-05).
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn submit_task(
    path_session: Option<SessionId>,
    body: &Map<String, Value>,
) -> Result<NewTask, InputError> {
    let members = Members::of(body);
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
            return Err(members.wrong("session_id", "is not the session of the path"));
        }
        (None, Ok(Some(named))) => named,
        (None, Ok(None)) => return Err(members.missing("session_id")),
        (_, Err(error)) => return Err(error),
    };
    let input = members
        .object("input")?
        .ok_or_else(|| members.missing("input"))?;
    let input = if message::is_message(input) {
        Input::Message(message::read(&Members::at(input, "input"))?)
    } else {
        Input::Object(input.clone())
    };
    Ok(NewTask {
        session_id,
        workspace_id: members.id("workspace_id", WorkspaceId::OBJECT, WorkspaceId::parse)?,
        persona_id: members.string_or_null("persona_id", domain::ID_BYTES_MAX)?,
        branch_id: members.id("branch_id", BranchId::OBJECT, BranchId::parse)?,
        parent_task_id: members.id("parent_task_id", TaskId::OBJECT, TaskId::parse)?,
        input,
        metadata: members.metadata()?,
    })
}

/// Reads why a Task is canceled.
///
/// # Errors
/// The reason is no text.
pub fn cancel_task(body: &Map<String, Value>) -> Result<Option<String>, InputError> {
    Members::of(body).string_or_null("reason", TEXT_BYTES_MAX)
}

/// An answer to a permission request.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// The decision.
    pub approved: Option<bool>,
    /// The answer to a question.
    pub answer: Option<Value>,
    /// Who decided, why, for how long, as given.
    pub remarks: Map<String, Value>,
}

/// Reads an answer to a permission request. Silence is not a denial (AP-PRM-04).
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn respond_permission(body: &Map<String, Value>) -> Result<Response, InputError> {
    let members = Members::of(body);
    let approved = members.boolean("approved")?;
    let outcome = members.word("outcome", &OUTCOMES, |word| {
        Some(matches!(word, "approved" | "approve" | "selected"))
    })?;
    let approved = match (approved, outcome) {
        (Some(approved), Some(outcome)) if approved != outcome => {
            return Err(members.wrong("outcome", "says the opposite of `approved`"));
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
    Ok(Response {
        approved,
        answer,
        remarks,
    })
}
