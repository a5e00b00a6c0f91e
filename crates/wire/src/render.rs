//! Resources as the protocol shows them.
//!
//! Every member of the contract is present: null, an empty list or an empty object when there is nothing to say. The
//! two members that the contract types as never null and never empty, `mode_id` and `model_policy` of a Session, get
//! their default or are left out.

use std::collections::BTreeMap;

use canon::{Map, Value};
use domain::{
    Answer, Artifact, Branch, Chain, Document, Message, Outcome, Permission, Position, Session,
    State, Status, Task, Timestamp, Vault, Workspace, pruned_digest,
};
use serde_json::json;

mod persona;

use crate::receipt;

/// A document and the payloads of the events it points to.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// What its events left.
    pub document: &'a Document,
    /// The payloads, by position.
    pub payloads: &'a BTreeMap<Position, Map<String, Value>>,
}

/// What a document does not hold and its reader computed.
#[derive(Debug, Clone, PartialEq)]
pub enum Extra {
    /// Nothing.
    None,
    /// For a Session.
    Session {
        /// The value of `state`.
        state: &'static str,
        /// Its newest event.
        last_event_id: Option<String>,
    },
    /// For a Message.
    Message {
        /// The Workspace of its Session.
        workspace_id: Option<String>,
    },
    /// For an Artifact.
    Artifact {
        /// The receipt of the Task that made it.
        receipt_id: Option<String>,
    },
    /// For an Outcome.
    Outcome {
        /// The Messages of the result, rendered.
        messages: Vec<Value>,
    },
}

impl<'a> Source<'a> {
    pub(crate) fn payload(&self, position: Position, member: &str) -> Option<&'a Value> {
        self.payloads.get(&position)?.get(member)
    }

    fn payload_or_null(&self, position: Position, member: &str) -> Value {
        self.payload(position, member).cloned().unwrap_or_default()
    }

    fn metadata(&self, position: Position) -> Value {
        match self.payload(position, "metadata") {
            Some(Value::Object(map)) => Value::Object(map.clone()),
            _ => self.pruned(position).unwrap_or_else(|| json!({})),
        }
    }

    /// Says that there was content and that it was pruned (AP-PRIV-03); none when it is there.
    fn pruned(&self, position: Position) -> Option<Value> {
        let digest = pruned_digest(self.payloads.get(&position)?)?;
        Some(json!({"redacted": true, "reason": "pruned", "sha256": digest}))
    }

    fn parts(&self, position: Position) -> Value {
        match (self.payload(position, "parts"), self.pruned(position)) {
            (Some(parts), _) => parts.clone(),
            (None, Some(Value::Object(mut pruned))) => {
                // Which parts it had, and for whom, is gone too.
                pruned.insert("type".to_owned(), "pruned".into());
                pruned.insert("visibility".to_owned(), "public".into());
                json!([pruned])
            }
            (None, _) => json!([]),
        }
    }

    fn failure(&self, position: Position) -> Value {
        match self.pruned(position) {
            Some(pruned) => {
                json!({"code": "pruned", "message": "why it failed was pruned with its events", "details": pruned})
            }
            None => self.payload_or_null(position, "failure"),
        }
    }
}

/// Returns a resource.
pub fn resource(source: Source<'_>, extra: Extra) -> Value {
    let (metadata, members) = match &source.document.state {
        State::Workspace(state) => workspace(source, state),
        State::Session(state) => session(source, state, extra),
        State::Task(state) => task(source, state),
        State::Branch(state) => branch(source, state),
        State::Message(state) => message(source, state, extra),
        State::Artifact(state) => artifact(source, state, extra),
        State::Outcome(state) => outcome(source, state, extra),
        State::Permission(state) => permission(source, state),
        State::Vault(state) => vault(source, state),
        // A reader of receipts has their bytes and calls `receipt` instead.
        State::Receipt(_) => return receipt::receipt(source, None),
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
    (source.metadata(state.metadata), members)
}

fn session(source: Source<'_>, state: &Session, extra: Extra) -> (Value, Value) {
    let (word, last_event_id) = match extra {
        Extra::Session {
            state,
            last_event_id,
        } => (state, last_event_id),
        _ => ("IDLE", None),
    };
    let id = &source.document.id;
    let mut members = json!({
        "workspace_id": state.workspace_id,
        "mode_id": state.mode_id.as_deref().unwrap_or("ask"),
        "state": word,
        "transcript": {
            "object": "transcript_summary",
            "message_count": state.message_count(),
            "messages_url": format!("/v1/sessions/{id}/messages"),
        },
        "persona_id": state.persona_id,
        "root_session_id": state.root_session_id,
        "parent_session_id": state.parent_session_id,
        "branch_id": state.branch_id,
        "last_event_id": last_event_id,
        "live_clients": [],
        "live_controller_id": null,
        "summary": state.summary,
        "expires_at": null,
    });
    if let (Some(policy), Value::Object(members)) = (&state.model_policy, &mut members) {
        members.insert("model_policy".to_owned(), policy.clone());
    }
    (source.metadata(state.metadata), members)
}

fn task(source: Source<'_>, state: &Task) -> (Value, Value) {
    // C-15: a Message without `object`, or the object that was given.
    let input = if source.payload(state.input, "parts").is_none() {
        let input = source.payload(state.input, "input").cloned();
        input
            .or_else(|| source.pruned(state.input))
            .unwrap_or_else(|| json!({}))
    } else {
        json!({
            "id": source.payload_or_null(state.input, "message_id"),
            "role": source.payload_or_null(state.input, "role"),
            "parts": source.parts(state.input),
            "created_at": created_at(source.document),
        })
    };
    let failure = match state.failure {
        Some(position) => source.failure(position),
        None => Value::Null,
    };
    let members = json!({
        "session_id": state.session_id,
        "workspace_id": state.workspace_id,
        "status": state.status.as_str(),
        "input": input,
        "created_by": state.created_by,
        "persona_id": state.persona.as_ref().map(|persona| &persona.id),
        "branch_id": state.branch_id,
        "parent_task_id": state.parent_task_id,
        "assigned_agent_id": null,
        "receipt_id": state.receipt_id,
        "outcome_id": state.outcome_id,
        "quota_id": null,
        "started_at": state.started_at,
        "completed_at": state.completed_at,
        "canceled_at": state.canceled_at,
        "failure": failure,
    });
    (source.metadata(state.submitted), members)
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
    (source.metadata(state.metadata), members)
}

fn message(source: Source<'_>, state: &Message, extra: Extra) -> (Value, Value) {
    let workspace_id = match extra {
        Extra::Message { workspace_id } => workspace_id,
        _ => None,
    };
    let members = json!({
        "workspace_id": workspace_id,
        "session_id": state.session_id,
        "task_id": state.task_id,
        "role": state.role.as_str(),
        "parts": source.parts(state.source),
    });
    (source.metadata(state.source), members)
}

fn artifact(source: Source<'_>, state: &Artifact, extra: Extra) -> (Value, Value) {
    let receipt_id = match extra {
        Extra::Artifact { receipt_id } => receipt_id,
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
    (source.metadata(state.source), members)
}

fn outcome(source: Source<'_>, state: &Outcome, extra: Extra) -> (Value, Value) {
    let messages = match extra {
        Extra::Outcome { messages } if !messages.is_empty() => messages,
        // A replay's Messages are in no transcript: its Outcome holds them whole.
        _ => source
            .payload(state.source, "messages")
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
    let summary = source.payload(state.source, "summary");
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
        "summary": summary.and_then(Value::as_str).unwrap_or_default(),
        "messages": messages,
        "artifacts": [],
        "handoffs": [],
        "receipt_id": state.receipt_id,
        "failure": failure,
        "cost": {},
        "metrics": {},
    });
    (source.metadata(state.source), members)
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
        Answer::Denied { at, .. } => ("denied", Some(at)),
    };
    let response = answered.map(|at| {
        let mut response = json!({"approved": status == "approved"});
        if let Value::Object(members) = &mut response {
            for name in ["answer", "message_id", "reason"] {
                if let Some(value) = source.payload(at, name) {
                    members.insert(name.to_owned(), value.clone());
                }
            }
            if let Some(Value::Object(remarks)) = source.payload(at, "remarks") {
                members.extend(remarks.clone());
            }
        }
        response
    });
    let asked = |member: &str| {
        let known = source.payload(state.asked, member).cloned();
        known.or_else(|| source.pruned(state.asked))
    };
    let members = json!({
        "session_id": state.session_id,
        "task_id": state.task_id,
        "workspace_id": state.workspace_id,
        "status": status,
        "source": "hitl",
        "action": asked("action"),
        "request": asked("request"),
        "response": response,
    });
    (source.metadata(state.asked), members)
}

fn vault(source: Source<'_>, state: &Vault) -> (Value, Value) {
    let members = json!({
        "workspace_id": state.workspace_id,
        "provider": state.provider,
        "capabilities": state.capabilities,
    });
    (source.metadata(state.metadata), members)
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
    let member = |name: &str| payload.get(name).cloned().unwrap_or_default();
    json!({
        "object": "session.truncate_result",
        "session_id": session.get("id"),
        "kept_turn_count": member("kept_turn_count"),
        "removed_turn_count": member("removed_turn_count"),
        "new_tip_turn_id": member("new_tip_turn_id"),
        "session": session,
    })
}

#[cfg(test)]
mod tests;
