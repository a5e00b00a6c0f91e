//! What is read most, written straight from where it stands: no member of it is copied first.
//!
//! Members are in the order of their names, as a map would write them.

use std::borrow::Cow;

use canon::Value;
use domain::{
    Activity, BranchId, Extra, Message, OutcomeId, PersonaId, ReceiptId, Session, SessionId, Task,
    TaskId, Timestamp, WorkspaceId,
};
use serde::Serialize;

use super::{Source, created_at};

#[derive(Debug, Serialize)]
pub(super) struct ShownSession<'a> {
    branch_id: Option<&'a BranchId>,
    created_at: Timestamp,
    expires_at: (),
    id: &'a str,
    last_event_id: Option<&'a str>,
    live_clients: [(); 0],
    live_controller_id: (),
    metadata: Cow<'a, Value>,
    mode_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_policy: Option<&'a Value>,
    object: &'static str,
    parent_session_id: Option<&'a SessionId>,
    persona_id: Option<&'a PersonaId>,
    root_session_id: Option<&'a SessionId>,
    state: &'static str,
    summary: Option<&'a str>,
    transcript: Transcript,
    updated_at: Timestamp,
    workspace_id: &'a WorkspaceId,
}

#[derive(Debug, Serialize)]
struct Transcript {
    message_count: u64,
    messages_url: String,
    object: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct ShownTask<'a> {
    assigned_agent_id: (),
    branch_id: Option<&'a BranchId>,
    canceled_at: Option<Timestamp>,
    completed_at: Option<Timestamp>,
    created_at: Timestamp,
    created_by: &'a str,
    failure: Cow<'a, Value>,
    id: &'a str,
    input: Input<'a>,
    metadata: Cow<'a, Value>,
    object: &'static str,
    outcome_id: Option<&'a OutcomeId>,
    parent_task_id: Option<&'a TaskId>,
    persona_id: Option<&'a PersonaId>,
    quota_id: (),
    receipt_id: Option<&'a ReceiptId>,
    session_id: &'a SessionId,
    started_at: Option<Timestamp>,
    status: &'static str,
    updated_at: Timestamp,
    workspace_id: &'a WorkspaceId,
}

/// C-15: a Message without `object`, or the object that was given.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Input<'a> {
    Message {
        created_at: Timestamp,
        id: Option<&'a Value>,
        parts: Cow<'a, Value>,
        role: Option<&'a Value>,
    },
    Object(Cow<'a, Value>),
}

#[derive(Debug, Serialize)]
pub(super) struct ShownMessage<'a> {
    created_at: Timestamp,
    id: &'a str,
    metadata: Cow<'a, Value>,
    object: &'static str,
    parts: Cow<'a, Value>,
    role: &'static str,
    session_id: &'a SessionId,
    task_id: Option<&'a TaskId>,
    updated_at: Timestamp,
    workspace_id: Option<&'a WorkspaceId>,
}

pub(super) fn session<'a>(source: Source<'a>, state: &'a Session) -> ShownSession<'a> {
    let (activity, last_event_id) = match source.extra {
        Extra::Session {
            activity,
            last_event_id,
        } => (*activity, last_event_id.as_deref()),
        _ => (Activity::Idle, None),
    };
    let id = &source.document.id;
    ShownSession {
        branch_id: state.branch_id.as_ref(),
        created_at: source.document.created_at,
        expires_at: (),
        id,
        last_event_id,
        live_clients: [],
        live_controller_id: (),
        metadata: source.metadata(state.metadata),
        mode_id: state.mode_id.as_deref().unwrap_or("ask"),
        model_policy: state.model_policy.as_ref(),
        object: SessionId::OBJECT,
        parent_session_id: state.parent_session_id.as_ref(),
        persona_id: state.persona_id.as_ref(),
        root_session_id: state.root_session_id.as_ref(),
        state: activity.as_str(),
        summary: state.summary.as_deref(),
        transcript: Transcript {
            message_count: state.message_count(),
            messages_url: format!("/v1/sessions/{id}/messages"),
            object: "transcript_summary",
        },
        updated_at: source.document.updated_at,
        workspace_id: &state.workspace_id,
    }
}

pub(super) fn task<'a>(source: Source<'a>, state: &'a Task) -> ShownTask<'a> {
    let created_at = created_at(source.document);
    let input = match source.payload(state.input, "parts") {
        Some(parts) => Input::Message {
            created_at,
            id: source.payload(state.input, "message_id"),
            parts: Cow::Borrowed(parts),
            role: source.payload(state.input, "role"),
        },
        None => Input::Object(match source.payload(state.input, "input") {
            Some(input) => Cow::Borrowed(input),
            None => Cow::Owned(source.pruned_or_empty(state.input)),
        }),
    };
    ShownTask {
        assigned_agent_id: (),
        branch_id: state.branch_id.as_ref(),
        canceled_at: state.canceled_at,
        completed_at: state.completed_at,
        created_at,
        created_by: &state.created_by,
        failure: match state.failure {
            Some(position) => Cow::Owned(source.failure(position)),
            None => Cow::Owned(Value::Null),
        },
        id: &source.document.id,
        input,
        metadata: source.metadata(state.submitted),
        object: TaskId::OBJECT,
        outcome_id: state.outcome_id.as_ref(),
        parent_task_id: state.parent_task_id.as_ref(),
        persona_id: state.persona.as_ref().map(|persona| &persona.id),
        quota_id: (),
        receipt_id: state.receipt_id.as_ref(),
        session_id: &state.session_id,
        started_at: state.started_at,
        status: state.status.as_str(),
        updated_at: source.document.updated_at,
        workspace_id: &state.workspace_id,
    }
}

pub(super) fn message<'a>(source: Source<'a>, state: &'a Message) -> ShownMessage<'a> {
    ShownMessage {
        created_at: source.document.created_at,
        id: &source.document.id,
        metadata: source.metadata(state.source),
        object: domain::MessageId::OBJECT,
        parts: source.parts(state.source),
        role: state.role.as_str(),
        session_id: &state.session_id,
        task_id: state.task_id.as_ref(),
        updated_at: source.document.updated_at,
        workspace_id: match source.extra {
            Extra::Message { workspace_id } => workspace_id.as_ref(),
            _ => None,
        },
    }
}
