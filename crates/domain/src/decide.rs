//! From a command to event drafts, or a refusal.
//!
//! Reads documents, writes nothing. One file per family of commands; this one dispatches and holds what they
//! share.

mod advance;
mod content;
mod field;
mod govern;
mod import;
mod key;
mod persona;
mod receipt;
mod replay;
mod session;
pub(crate) mod task;

use std::sync::Arc;

use canon::{Map, Value};
pub use key::{KeyChange, change_key};
pub use receipt::{SignedReceipt, issue_receipt};
pub use task::{interrupted, public_text};

use crate::kind::Payload;
use crate::part::hide_private_parts;
use crate::payload::{self, Detail, detail};
use crate::{
    Artifact, Blob, Branch, Command, Document, Draft, Kind, NewMessage, Order, Permission,
    ReceiptId, Refusal, ResourceRef, Role, Session, SessionId, State, Task, TaskId, Workspace,
    WorkspaceId, externalize,
};

/// The documents a command is decided on.
pub trait Documents {
    /// Returns the document of an id, if there is one.
    fn document(&self, id: &str) -> Option<&Document>;
}

/// What a command leads to.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The events to append, in order. None: everything is already as ordered.
    pub drafts: Vec<Draft>,
    /// Content that the events refer to.
    pub blobs: Vec<Blob>,
    /// The resource that answers the command.
    pub subject: ResourceRef,
    /// The Task that these events end, and the Receipt that must be issued with them; none also when the Task's
    /// Persona wants no Receipt.
    pub ends: Option<EndedTask>,
}

/// A Task that ends, and its Receipt to be.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedTask {
    /// The Task.
    pub task_id: TaskId,
    /// The Receipt's id.
    pub receipt_id: ReceiptId,
    /// The Receipt itself, unsigned, when it does not depend on the events of this commit: that of a replay.
    pub receipt: Option<Arc<[u8]>>,
}

/// Decides a command.
///
/// # Errors
/// The command is not possible as things stand.
pub fn decide(documents: &dyn Documents, command: &Command) -> Result<Decision, Refusal> {
    let mut decider = Decider {
        documents,
        actor: &command.actor,
        drafts: Vec::new(),
        blobs: Vec::new(),
        ends: None,
        unreadable: None,
    };
    let subject = match &command.order {
        Order::CreateWorkspace(order) => content::create_workspace(&mut decider, order),
        Order::UpdateWorkspace(order) => content::update_workspace(&mut decider, order),
        Order::CreateSession(order) => session::create(&mut decider, order),
        Order::UpdateSession(order) => session::update(&mut decider, order),
        Order::CloseSession(id) => session::close(&mut decider, id),
        Order::ForkSession(order) => session::fork(&mut decider, order),
        Order::RecordSessionReplay(order) => session::replayed(&mut decider, order),
        Order::TruncateSession(order) => session::truncate(&mut decider, order),
        Order::AppendMessage(order) => session::append_message(&mut decider, order),
        Order::SubmitTask(order) => task::submit(&mut decider, order),
        Order::ImportTask(order) => import::import(&mut decider, order),
        Order::SubmitReplay(order) => replay::submit(&mut decider, order),
        Order::CancelTask(order) => task::cancel(&mut decider, order),
        Order::InterruptTask(order) => task::interrupt(&mut decider, order),
        Order::AnswerRequest(order) => task::answer(&mut decider, order),
        Order::CreateBranch(order) => content::create_branch(&mut decider, order),
        Order::RegisterArtifact(order) => content::register_artifact(&mut decider, order),
        Order::AttachContent(order) => content::attach(&mut decider, order),
        Order::CreateVault(order) => content::create_vault(&mut decider, order),
        Order::AdvanceTask(order) => advance::advance(&mut decider, order),
        Order::RecordVerification(order) => receipt::record_verification(&mut decider, order),
        Order::SealHead(order) => receipt::seal_head(&mut decider, order),
        Order::CosignHead(order) => receipt::cosign(&mut decider, order),
        Order::CreatePersona(order) => persona::create(&mut decider, order),
        Order::UpdatePersona(order) => persona::update(&mut decider, order),
        Order::OpenGoverned(order) => govern::open(&mut decider, order),
        Order::GovernTask(order) => govern::govern(&mut decider, order),
        Order::WriteField(order) => field::write(&mut decider, order),
    }?;
    let Decider {
        mut drafts,
        blobs,
        ends,
        unreadable,
        ..
    } = decider;
    if let Some(message) = unreadable {
        return Err(Refusal::Invalid { param: "", message });
    }
    if let Some(first) = drafts.first_mut() {
        first.idempotency_key.clone_from(&command.idempotency_key);
    }
    Ok(Decision {
        drafts,
        blobs,
        subject,
        ends,
    })
}

/// Where drafts and blobs of one decision collect.
struct Decider<'a> {
    documents: &'a dyn Documents,
    actor: &'a str,
    drafts: Vec<Draft>,
    blobs: Vec<Blob>,
    ends: Option<EndedTask>,
    /// Why one of the drafts could not be read back from the log, when one could not.
    unreadable: Option<String>,
}

/// The most bytes of a payload, after its content was moved into blobs.
const PAYLOAD_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What an event belongs to.
#[derive(Clone, Default)]
struct Place {
    workspace_id: Option<WorkspaceId>,
    session_id: Option<SessionId>,
    task_id: Option<TaskId>,
}

impl<'a> Decider<'a> {
    /// Drafts an event. Its kind follows from what it says.
    fn draft(&mut self, payload: Payload, resource: ResourceRef, place: &Place) -> &mut Draft {
        self.draft_open(payload.kind(), payload.into_members(), resource, place)
    }

    /// Drafts an event whose members come from outside: from a workflow, or from the event that a replay repeats.
    fn draft_open(
        &mut self,
        kind: Kind,
        members: Map<String, Value>,
        resource: ResourceRef,
        place: &Place,
    ) -> &mut Draft {
        let (payload, blobs) = externalize(members);
        self.blobs.extend(blobs);
        // Nothing is written that cannot be read: the event is one more object around its payload.
        let depth = 1 + payload.values().map(canon::depth).max().unwrap_or_default();
        if depth >= canon::DEPTH_MAX {
            self.unreadable.get_or_insert_with(|| {
                format!("a `{}` event would nest too deeply", kind.as_str())
            });
        } else if payload.values().any(canon::holds_unsafe_integer) {
            self.unreadable.get_or_insert_with(|| {
                let kind = kind.as_str();
                format!("a `{kind}` event would hold a whole number beyond ±(2^53−1)")
            });
        } else if payload_bytes(&payload) > PAYLOAD_BYTES_MAX {
            self.unreadable.get_or_insert_with(|| {
                let kind = kind.as_str();
                format!("a `{kind}` event would be longer than {PAYLOAD_BYTES_MAX} bytes")
            });
        }
        self.drafts.push(Draft {
            kind,
            resource,
            workspace_id: place.workspace_id.clone(),
            session_id: place.session_id.clone(),
            task_id: place.task_id.clone(),
            actor: Some(self.actor.to_owned()),
            idempotency_key: None,
            receipt_id: None,
            payload: Arc::new(payload),
            sibling: None,
            replay: None,
        });
        let last = self.drafts.len() - 1;
        #[expect(
            clippy::indexing_slicing,
            reason = "a draft was pushed two lines above"
        )]
        &mut self.drafts[last]
    }

    /// Drafts a Message and its place in the transcript.
    fn message(&mut self, message: &NewMessage, session_id: &SessionId, place: &Place) {
        let (parts, blobs) = hide_private_parts(message.parts.clone(), &message.salt);
        self.blobs.extend(blobs);
        let said = payload::Message {
            message_id: detail(&message.id),
            role: message.role,
            parts: Detail::of(Value::Array(parts)),
            metadata: detail(&message.metadata),
        };
        let said = match message.role {
            Role::User | Role::System | Role::Tool => Payload::UserMessage(said),
            Role::Assistant | Role::Agent => Payload::AgentMessage(said),
        };
        self.draft(said, message.id.resource(), place);
        let appended = Payload::SessionMessageAppended(payload::MessageAppended {
            message_id: detail(&message.id),
            role: detail(message.role),
        });
        self.draft(appended, session_id.resource(), place);
    }

    fn workspace(&self, id: &WorkspaceId) -> Result<&'a Workspace, Refusal> {
        match self
            .documents
            .document(id.as_str())
            .map(|document| &document.state)
        {
            Some(State::Workspace(workspace)) => Ok(workspace),
            _ => Err(Refusal::not_found("workspace")),
        }
    }

    fn session(&self, id: &SessionId) -> Result<(&'a Document, &'a Session), Refusal> {
        match self.documents.document(id.as_str()) {
            Some(document) => match &document.state {
                State::Session(session) => Ok((document, session)),
                _ => Err(Refusal::not_found("session")),
            },
            None => Err(Refusal::not_found("session")),
        }
    }

    fn open_session(&self, id: &SessionId) -> Result<(&'a Document, &'a Session), Refusal> {
        let (document, session) = self.session(id)?;
        if session.closed {
            return Err(Refusal::Conflict {
                reason: "session_closed",
                message: format!("session `{id}` is closed"),
                status: None,
            });
        }
        Ok((document, session))
    }

    fn task(&self, id: &TaskId) -> Result<&'a Task, Refusal> {
        match self
            .documents
            .document(id.as_str())
            .map(|document| &document.state)
        {
            Some(State::Task(task)) => Ok(task),
            _ => Err(Refusal::not_found("task")),
        }
    }

    fn branch(&self, id: &str) -> Result<&'a Branch, Refusal> {
        match self.documents.document(id).map(|document| &document.state) {
            Some(State::Branch(branch)) => Ok(branch),
            _ => Err(Refusal::not_found("branch")),
        }
    }

    fn artifact(&self, id: &str) -> Result<&'a Artifact, Refusal> {
        match self.documents.document(id).map(|document| &document.state) {
            Some(State::Artifact(artifact)) => Ok(artifact),
            _ => Err(Refusal::not_found("artifact")),
        }
    }

    fn permission(&self, id: &str) -> Result<&'a Permission, Refusal> {
        match self.documents.document(id).map(|document| &document.state) {
            Some(State::Permission(permission)) => Ok(permission),
            _ => Err(Refusal::not_found("permission_request")),
        }
    }
}

/// Returns about how many bytes a payload takes: texts, names and a few bytes for all else.
fn payload_bytes(payload: &Map<String, Value>) -> usize {
    fn bytes(value: &Value) -> usize {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 8,
            Value::String(text) => text.len() + 3,
            Value::Array(list) => list.iter().map(bytes).sum::<usize>() + 2,
            Value::Object(map) => payload_bytes(map),
        }
    }
    let members = payload.iter();
    members
        .map(|(name, value)| name.len() + 4 + bytes(value))
        .sum::<usize>()
        + 2
}

impl Place {
    fn of_session(id: &SessionId, session: &Session) -> Self {
        Place {
            workspace_id: Some(session.workspace_id.clone()),
            session_id: Some(id.clone()),
            task_id: None,
        }
    }

    fn of_task(id: &TaskId, task: &Task) -> Self {
        Place {
            workspace_id: Some(task.workspace_id.clone()),
            session_id: Some(task.session_id.clone()),
            task_id: Some(id.clone()),
        }
    }
}
