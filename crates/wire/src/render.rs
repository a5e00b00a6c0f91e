//! Resources as the protocol shows them.
//!
//! Every member of the contract is present: null, an empty list or an empty object when there is nothing to say. The
//! two members that the contract types as never null and never empty, `mode_id` and `model_policy` of a Session, get
//! their default or are left out.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use canon::{Map, Value};
use domain::payload::Said;
use domain::{
    Activity, Answer, Artifact, Branch, BranchId, Chain, Content, Document, Extra, Message,
    Outcome, OutcomeId, Permission, PersonaId, Position, ReceiptId, Role, Session, SessionId,
    State, Status, Task, TaskId, Timestamp, Vault, View, Workspace, WorkspaceId, payload,
    pruned_digest,
};
use serde::Serialize;
use serde_json::json;

mod persona;

use crate::receipt;

/// A view whose members are borrowed for as long as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) document: &'a Document,
    pub(crate) payloads: &'a BTreeMap<Position, Content>,
    pub(crate) extra: &'a Extra,
}

impl<'a> Source<'a> {
    pub(crate) fn of(view: &'a View) -> Self {
        Self {
            document: &view.document,
            payloads: &view.payloads,
            extra: &view.extra,
        }
    }

    /// Returns what the event at a position says, none of it when its payload is not at hand.
    pub(crate) fn said<P>(&self, position: Position) -> Said<'a, P> {
        static NOTHING: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        let payload = self.payloads.get(&position);
        Said::new(payload.map_or(&*NOTHING, |payload| payload))
    }

    fn metadata(&self, position: Position) -> Cow<'a, Value> {
        // Whatever has metadata states it under this name.
        match self.said::<payload::SessionUpdated>(position).metadata() {
            Some(metadata @ Value::Object(_)) => Cow::Borrowed(metadata),
            _ => Cow::Owned(self.pruned_or_empty(position)),
        }
    }

    fn pruned_or_empty(&self, position: Position) -> Value {
        self.pruned(position).unwrap_or_else(|| json!({}))
    }

    /// Says that there was content and that it was pruned (AP-PRIV-03); none when it is there.
    fn pruned(&self, position: Position) -> Option<Value> {
        let digest = pruned_digest(self.payloads.get(&position)?)?;
        Some(json!({"redacted": true, "reason": "pruned", "sha256": digest}))
    }

    fn parts(&self, position: Position) -> Cow<'a, Value> {
        if let Some(parts) = self.said::<payload::Message>(position).parts() {
            return Cow::Borrowed(parts);
        }
        Cow::Owned(match self.pruned(position) {
            Some(Value::Object(mut pruned)) => {
                // Which parts it had, and for whom, is gone too.
                pruned.insert("type".to_owned(), "pruned".into());
                pruned.insert("visibility".to_owned(), "public".into());
                json!([pruned])
            }
            _ => json!([]),
        })
    }

    fn failure(&self, position: Position) -> Value {
        match self.pruned(position) {
            Some(pruned) => {
                json!({"code": "pruned", "message": "why it failed was pruned with its events", "details": pruned})
            }
            None => {
                let failure = self.said::<payload::TaskEnded>(position).failure();
                failure.cloned().unwrap_or_default()
            }
        }
    }
}

/// A resource, ready to be written. As text it is the same as through [`Resource::value`].
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Resource<'a>(Shown<'a>);

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Shown<'a> {
    Session(Box<ShownSession<'a>>),
    Task(Box<ShownTask<'a>>),
    Message(Box<ShownMessage<'a>>),
    Other(Value),
}

impl Resource<'_> {
    /// Returns it as a value.
    pub fn value(self) -> Value {
        match self.0 {
            Shown::Other(value) => value,
            // It has a JSON form: names that are texts, and no number outside JSON.
            written => serde_json::to_value(written).unwrap_or_default(),
        }
    }

    /// Returns its text.
    pub fn bytes(&self) -> Vec<u8> {
        /// Most are shorter, and a vector that grows is copied each time.
        const MOST_BYTES: usize = 2_048;
        let mut out = Vec::with_capacity(MOST_BYTES);
        match serde_json::to_writer(&mut out, self) {
            Ok(()) => out,
            Err(_) => Vec::new(),
        }
    }
}

/// Returns a resource.
pub fn resource(view: &View) -> Resource<'_> {
    let source = Source::of(view);
    Resource(match &source.document.state {
        State::Session(state) => Shown::Session(Box::new(shown_session(source, state))),
        State::Task(state) => Shown::Task(Box::new(shown_task(source, state))),
        State::Message(state) => Shown::Message(Box::new(shown_message(source, state))),
        _ => Shown::Other(other(source)),
    })
}

fn other(source: Source<'_>) -> Value {
    let (metadata, members) = match &source.document.state {
        State::Workspace(state) => workspace(source, state),
        // They are written as they stand.
        State::Session(_) | State::Task(_) | State::Message(_) => return Value::Null,
        State::Branch(state) => branch(source, state),
        State::Artifact(state) => artifact(source, state),
        State::Outcome(state) => outcome(source, state),
        State::Permission(state) => permission(source, state),
        State::Vault(state) => vault(source, state),
        // A reader of receipts has their bytes and calls `receipt` instead.
        State::Receipt(_) => return receipt::of_source(source, None),
        State::Chain(state) => chain(state),
        State::TrustChain(state) => {
            let members = json!({"entry_hash": state.entry_hash, "count": state.count});
            (json!({}), members)
        }
        State::Batch(state) => receipt::batch(source, state),
        State::Persona(state) => persona::persona(source, state),
        State::Key(state) => (json!({}), json!(state)),
        State::Field(state) => (json!({}), json!(state)),
    };
    let document = source.document;
    let envelope = Envelope {
        id: &document.id,
        object: document.state.kind().object(),
        created_at: created_at(document),
        updated_at: document.updated_at,
        metadata,
    };
    envelope.with(members)
}

/// A Task of another log was created there, before it came here.
fn created_at(document: &Document) -> Timestamp {
    let imported = match &document.state {
        State::Task(task) => task.imported.as_ref(),
        _ => None,
    };
    imported.map_or(document.created_at, |imported| imported.submitted_at)
}

/// The five members that every resource has.
#[derive(Debug, Clone)]
pub(crate) struct Envelope<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'a str,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) metadata: Value,
}

impl Envelope<'_> {
    /// Puts the envelope around a resource's own members.
    pub(crate) fn with(self, members: Value) -> Value {
        let mut whole = match members {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        whole.insert("id".to_owned(), self.id.into());
        whole.insert("object".to_owned(), self.object.into());
        whole.insert("created_at".to_owned(), self.created_at.to_string().into());
        whole.insert("updated_at".to_owned(), self.updated_at.to_string().into());
        whole.insert("metadata".to_owned(), self.metadata);
        Value::Object(whole)
    }
}

fn workspace(source: Source<'_>, state: &Workspace) -> (Value, Value) {
    let members = json!({
        "name": state.name,
        "root": state.root,
        "default_branch_id": state.default_branch_id,
        "host": null,
        "repository": null,
        "tenant_id": null,
        "capabilities": state.capabilities,
        "connectors": [],
        "quota_id": state.quota_id,
        "workspace_id": source.document.id,
    });
    (source.metadata(state.metadata).into_owned(), members)
}

fn branch(source: Source<'_>, state: &Branch) -> (Value, Value) {
    let members = json!({
        "workspace_id": state.workspace_id,
        "kind": state.kind.as_str(),
        "base_ref": state.base_ref,
        "parent_branch_id": state.parent_branch_id,
        "session_id": state.session_id,
        "task_id": state.task_id,
        "worktree_uri": null,
        "created_by": state.created_by,
        "merged_into": null,
    });
    (source.metadata(state.metadata).into_owned(), members)
}

fn artifact(source: Source<'_>, state: &Artifact) -> (Value, Value) {
    let receipt_id = match source.extra {
        Extra::Artifact { receipt_id } => receipt_id.as_ref(),
        _ => None,
    };
    let members = json!({
        "kind": state.kind.as_str(),
        "mime_type": state.mime_type,
        "uri": state.uri,
        "visibility": state.visibility.as_str(),
        // C-07: the only digest without its prefix.
        "sha256": state.sha256.map(|digest| digest.hex()),
        "workspace_id": state.workspace_id,
        "session_id": state.session_id,
        "task_id": state.task_id,
        "receipt_id": receipt_id,
    });
    (source.metadata(state.source).into_owned(), members)
}

fn outcome(source: Source<'_>, state: &Outcome) -> (Value, Value) {
    let said = source.said::<payload::OutcomeRecorded>(state.source);
    let messages: Vec<Value> = match source.extra {
        Extra::Outcome { messages } if !messages.is_empty() => {
            let shown = messages.iter().map(|message| resource(message).value());
            shown.collect()
        }
        // A replay's Messages are in no transcript: its Outcome holds them whole.
        _ => said
            .messages()
            .and_then(Value::as_array)
            .map(|whole| {
                let document = source.document;
                whole
                    .iter()
                    .zip(1..)
                    .map(|(message, number)| replayed_message(document, state, message, number))
                    .collect()
            })
            .unwrap_or_default(),
    };

    let failure = if state.status == Status::Failed {
        source.failure(state.source)
    } else {
        Value::Null
    };
    let members = json!({
        "task_id": state.task_id,
        "session_id": state.session_id,
        "workspace_id": state.workspace_id,
        "status": outcome_word(state.status),
        "summary": said.summary().unwrap_or_default(),
        "messages": messages,
        "artifacts": [],
        "handoffs": [],
        "receipt_id": state.receipt_id,
        "failure": failure,
        "cost": {},
        "metrics": {},
    });
    (source.metadata(state.source).into_owned(), members)
}

fn replayed_message(document: &Document, state: &Outcome, message: &Value, number: usize) -> Value {
    let body = document.id.strip_prefix("outcome_").unwrap_or(&document.id);
    json!({
        "id": format!("message_{body}_{number}"),
        "object": "message",
        "created_at": document.created_at,
        "updated_at": document.updated_at,
        "metadata": {},
        "workspace_id": state.workspace_id,
        "session_id": state.session_id,
        "task_id": state.task_id,
        "role": message.get("role"),
        "parts": message.get("parts"),
    })
}

/// C-06: a Task that COMPLETED has an Outcome that SUCCEEDED.
fn outcome_word(status: Status) -> &'static str {
    match status {
        Status::Completed => "SUCCEEDED",
        Status::Canceled => "CANCELED",
        Status::Failed
        | Status::Submitted
        | Status::Working
        | Status::InputRequired
        | Status::AuthRequired => "FAILED",
    }
}

fn permission(source: Source<'_>, state: &Permission) -> (Value, Value) {
    let (status, answered) = match state.answer {
        Answer::Pending => ("pending", None),
        Answer::Approved { at, .. } => ("approved", Some(at)),
        // The contract has no word for it.
        Answer::Denied { at, .. } | Answer::Withdrawn { at } => ("denied", Some(at)),
    };
    let response = answered.map(|at| {
        let mut response = json!({"approved": status == "approved"});
        if let Value::Object(members) = &mut response {
            let said = source.said::<payload::Answered>(at);
            let withdrawn = source.said::<payload::Withdrawn>(at);
            let given = [
                ("answer", said.answer().cloned()),
                ("message_id", said.message_id().map(Value::from)),
                ("reason", withdrawn.reason().cloned()),
            ];
            let given = given
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)));
            members.extend(given);
            if let Some(Value::Object(remarks)) = said.remarks() {
                members.extend(remarks.clone());
            }
        }
        response
    });
    let said = source.said::<payload::Asked>(state.asked);
    let asked = |member: Option<&Value>| member.cloned().or_else(|| source.pruned(state.asked));
    let members = json!({
        "session_id": state.session_id,
        "task_id": state.task_id,
        "workspace_id": state.workspace_id,
        "status": status,
        "source": "hitl",
        "action": asked(said.action()),
        "request": asked(said.request()),
        "response": response,
    });
    (source.metadata(state.asked).into_owned(), members)
}

fn vault(source: Source<'_>, state: &Vault) -> (Value, Value) {
    let members = json!({
        "workspace_id": state.workspace_id,
        "provider": state.provider,
        "capabilities": state.capabilities,
    });
    (source.metadata(state.metadata).into_owned(), members)
}

fn chain(state: &Chain) -> (Value, Value) {
    let members = json!({
        "receipt_id": state.receipt_id,
        "receipt_hash": state.receipt_hash,
        "count": state.count,
    });
    (json!({}), members)
}

/// Returns the answer to a truncation, from the payload of its event and the Session after it (C-40).
pub fn truncate_result(payload: &Map<String, Value>, session: Value) -> Value {
    let said = payload::SessionTruncated::of(payload);
    json!({
        "object": "session.truncate_result",
        "session_id": session.get("id"),
        "kept_turn_count": said.kept_turn_count(),
        "removed_turn_count": said.removed_turn_count(),
        "new_tip_turn_id": said.new_tip_turn_id(),
        "session": session,
    })
}

// What is read most is written straight from where it stands: no member of it is copied first. Members are in the order of
// their names, as a map would write them.

#[derive(Debug, Serialize)]
struct ShownSession<'a> {
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
struct ShownTask<'a> {
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
        id: Option<&'a str>,
        parts: Cow<'a, Value>,
        role: Option<Role>,
    },
    Object(Cow<'a, Value>),
}

#[derive(Debug, Serialize)]
struct ShownMessage<'a> {
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

fn shown_session<'a>(source: Source<'a>, state: &'a Session) -> ShownSession<'a> {
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

fn shown_task<'a>(source: Source<'a>, state: &'a Task) -> ShownTask<'a> {
    let created_at = created_at(source.document);
    let message = source.said::<payload::Message>(state.input);
    let input = match message.parts() {
        Some(parts) => Input::Message {
            created_at,
            id: message.message_id(),
            parts: Cow::Borrowed(parts),
            role: message.role(),
        },
        None => Input::Object(
            match source.said::<payload::TaskSubmitted>(state.input).input() {
                Some(input) => Cow::Borrowed(input),
                None => Cow::Owned(source.pruned_or_empty(state.input)),
            },
        ),
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

fn shown_message<'a>(source: Source<'a>, state: &'a Message) -> ShownMessage<'a> {
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

#[cfg(test)]
mod tests;
