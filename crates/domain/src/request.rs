//! What callers ask for, in plain data.
//!
//! Transports decode into [`Request`], the engine takes it: a request exists once. Ids of new resources are made by the
//! engine, which builds a [`crate::Command`] of it.

use std::sync::Arc;

use canon::{Digest, Map, Value};

use crate::{
    ArtifactId, ArtifactKind, BatchId, BranchId, BranchKind, CreatePersona, Govern,
    GovernedOperation, PermissionId, PersonaChange, PersonaId, ReceiptId, Role, SessionId, TaskId,
    UpdateSession, UpdateWorkspace, Visibility, WorkspaceId,
};

/// A write.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Creates a Workspace.
    CreateWorkspace(NewWorkspace),
    /// Changes a Workspace.
    UpdateWorkspace(UpdateWorkspace),
    /// Creates a Session.
    CreateSession(NewSession),
    /// Changes a Session.
    UpdateSession(UpdateSession),
    /// Closes a Session.
    CloseSession(SessionId),
    /// Forks a Session.
    ForkSession {
        /// The Session to fork.
        id: SessionId,
        /// Copy Messages up to this event only.
        at_event_id: Option<String>,
        /// The Branch of the fork.
        branch_id: Option<BranchId>,
        /// The caller's own members.
        metadata: Map<String, Value>,
    },
    /// Truncates a Session.
    TruncateSession {
        /// The Session.
        id: SessionId,
        /// How many Messages to keep.
        keep_first: u64,
        /// Why.
        reason: Option<String>,
    },
    /// Appends a Message.
    AppendMessage {
        /// The Session.
        session_id: SessionId,
        /// The Message.
        message: MessageSpec,
    },
    /// Submits a Task.
    SubmitTask(NewTask),
    /// Replays a Task.
    ReplayTask(ReplayTask),
    /// Replays a Session.
    ReplaySession(ReplaySession),
    /// Takes over a finished Task of another log.
    ImportTask {
        /// Its bundle.
        bundle: Arc<Vec<u8>>,
        /// The Workspace to put it into; the local one when none is given.
        workspace_id: Option<WorkspaceId>,
    },
    /// Cancels a Task.
    CancelTask {
        /// The Task.
        id: TaskId,
        /// Why.
        reason: Option<String>,
    },
    /// Sends a Message to a Task.
    SendTaskMessage {
        /// The Task.
        id: TaskId,
        /// What the Message is for.
        kind: TaskMessageKind,
        /// The Message.
        message: MessageSpec,
    },
    /// Answers a permission request.
    RespondPermission {
        /// The request.
        id: PermissionId,
        /// The decision; none when only an answer was given.
        approved: Option<bool>,
        /// The answer to a question.
        answer: Option<Value>,
        /// Who decided, why, for how long.
        remarks: Map<String, Value>,
    },
    /// Creates a Branch.
    CreateBranch(NewBranch),
    /// Registers an Artifact.
    RegisterArtifact(NewArtifact),
    /// Attaches content that has arrived to an Artifact.
    AttachContent {
        /// The Artifact.
        id: ArtifactId,
        /// Digest of the content.
        sha256: Digest,
        /// Its length.
        bytes: u64,
    },
    /// Creates a Vault.
    CreateVault(NewVault),
    /// Makes the Vault of the server itself, the only one that keeps values.
    CreateLocalVault,
    /// Verifies a Receipt and records the verdict.
    VerifyReceipt {
        /// The Receipt.
        id: ReceiptId,
        /// What is asked of it.
        check: ReceiptCheck,
    },
    /// Adds the signature of a witness to a head of the receipt log.
    CosignHead {
        /// The head.
        id: BatchId,
        /// The signature line.
        line: String,
    },
    /// Defines a Persona.
    CreatePersona(Box<CreatePersona>),
    /// Changes a Persona.
    UpdatePersona {
        /// The Persona.
        id: PersonaId,
        /// The change.
        change: PersonaChange,
    },
    /// Begins a governed session, or does something with one.
    Govern(Govern),
}

impl Request {
    /// Returns the scopes that are all needed; none where they depend on what the answer is to. The row of the operation
    /// says the same, so that they can be asked for before a body is read.
    pub fn scopes(&self) -> &'static [&'static str] {
        match self {
            Request::CreateWorkspace(_) | Request::UpdateWorkspace(_) => &["workspaces:write"],
            Request::CreateSession(_)
            | Request::UpdateSession(_)
            | Request::CloseSession(_)
            | Request::ForkSession { .. }
            | Request::TruncateSession { .. }
            | Request::AppendMessage { .. }
            | Request::CreateBranch(_) => &["sessions:write"],
            Request::SubmitTask(_) | Request::ReplayTask(_) | Request::CancelTask { .. } => {
                &["tasks:write"]
            }
            Request::ReplaySession(_) => &["tasks:write", "sessions:write"],
            Request::SendTaskMessage { kind, .. } => match kind {
                TaskMessageKind::Input | TaskMessageKind::Interrupt => &["tasks:write"],
                TaskMessageKind::ToolConfirmation => &["approvals:write"],
            },
            Request::RespondPermission { .. } => &[],
            // Only administrators are given this one: `*:write` does not hold it.
            Request::ImportTask { .. } => &["tasks:import"],
            Request::RegisterArtifact(_) | Request::AttachContent { .. } => &["artifacts:write"],
            Request::CreateVault(_) | Request::CreateLocalVault => &["vaults:write"],
            // The verdict alone is there for readers too: that is no write.
            Request::VerifyReceipt { .. } => &["receipts:read", "receipts:write"],
            Request::CosignHead { .. } => &["receipts:write"],
            Request::CreatePersona(_) | Request::UpdatePersona { .. } => &["personas:write"],
            Request::Govern(Govern::Open(_) | Govern::OpenWorkflow(_)) => {
                &["sessions:write", "tasks:write"]
            }
            Request::Govern(Govern::Handoff { .. }) => &["tasks:write"],
            Request::Govern(Govern::Do { operation, .. }) => match &**operation {
                GovernedOperation::Decide(_) => &["approvals:write"],
                GovernedOperation::Preflight(_)
                | GovernedOperation::Propose(_)
                | GovernedOperation::Report(_)
                | GovernedOperation::AddLabel { .. }
                | GovernedOperation::SetFilter { .. }
                | GovernedOperation::ReportBypass { .. }
                | GovernedOperation::Kill { .. }
                | GovernedOperation::Restore
                | GovernedOperation::Heartbeat { .. }
                | GovernedOperation::Capture { .. }
                | GovernedOperation::Offer(_)
                | GovernedOperation::Hear { .. }
                | GovernedOperation::Accept { .. }
                | GovernedOperation::CloseOffer { .. }
                | GovernedOperation::Resume
                | GovernedOperation::Tick
                | GovernedOperation::Lose => &["tasks:write"],
            },
        }
    }
}

/// A new Workspace.
#[derive(Debug, Clone, PartialEq)]
pub struct NewWorkspace {
    /// Display name.
    pub name: String,
    /// Logical root.
    pub root: String,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// A new Message.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageSpec {
    /// Who speaks.
    pub role: Role,
    /// Parts as [`crate::check_parts`] returned them.
    pub parts: Vec<Value>,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// A new Session.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSession {
    /// Its Workspace; the local one when none is given.
    pub workspace_id: Option<WorkspaceId>,
    /// The mode.
    pub mode_id: Option<String>,
    /// The persona, by id.
    pub persona_id: Option<String>,
    /// Provider and model preferences.
    pub model_policy: Option<Value>,
    /// Its first Messages.
    pub initial_messages: Vec<MessageSpec>,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// A new Task.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// Its Session.
    pub session_id: SessionId,
    /// The Workspace the request names.
    pub workspace_id: Option<WorkspaceId>,
    /// The persona, by id.
    pub persona_id: Option<String>,
    /// The Branch it runs on.
    pub branch_id: Option<BranchId>,
    /// The Task it comes from.
    pub parent_task_id: Option<TaskId>,
    /// What it works on.
    pub input: InputSpec,
    /// The caller's own members; `workflow` chooses the workflow.
    pub metadata: Map<String, Value>,
}

/// A new replay of a Task.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayTask {
    /// The Task to replay.
    pub id: TaskId,
    /// The request body of the replay contract.
    pub body: Value,
    /// True for a conformance run.
    pub conformance: bool,
    /// The Session to run in, when it is not the source's.
    pub session_id: Option<SessionId>,
}

/// A new replay of a Session.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplaySession {
    /// The Session to replay.
    pub id: SessionId,
    /// The request body: as for a Task, with overrides under `<task id>/<key>`.
    pub body: Value,
    /// True for a conformance run.
    pub conformance: bool,
}

/// The input of a new Task.
#[derive(Debug, Clone, PartialEq)]
pub enum InputSpec {
    /// A Message.
    Message(MessageSpec),
    /// A structured value.
    Object(Map<String, Value>),
}

/// What a Message to a Task is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskMessageKind {
    /// Answers a question.
    Input,
    /// Stops the current step.
    Interrupt,
    /// Decides an approval, by a `json` part with a boolean `approved`.
    ToolConfirmation,
}

/// A new Artifact.
#[derive(Debug, Clone, PartialEq)]
pub struct NewArtifact {
    /// What it is.
    pub kind: ArtifactKind,
    /// Its media type.
    pub mime_type: String,
    /// Where it lives.
    pub uri: Option<String>,
    /// Who may see it.
    pub visibility: Visibility,
    /// Its digest.
    pub sha256: Option<Digest>,
    /// Its Workspace; the local one when neither this nor Session nor Task is given.
    pub workspace_id: Option<WorkspaceId>,
    /// Its Session.
    pub session_id: Option<SessionId>,
    /// Its Task.
    pub task_id: Option<TaskId>,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// What a caller asks of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReceiptCheck {
    /// A key, by id or thumbprint, that must have signed.
    pub trust_anchor: Option<String>,
    /// The time at which keys must have been valid, RFC 3339.
    pub at_time: Option<String>,
    /// Whether only the document is asked about, not who signed it. Such an answer is never `valid`.
    pub integrity_only: bool,
}

/// A new Branch.
#[derive(Debug, Clone, PartialEq)]
pub struct NewBranch {
    /// The Session it belongs to.
    pub session_id: SessionId,
    /// What it branches.
    pub kind: BranchKind,
    /// What it starts from.
    pub base_ref: String,
    /// The Branch it leaves; the Workspace's default Branch when none is given.
    pub parent_branch_id: Option<BranchId>,
    /// The Task it belongs to.
    pub task_id: Option<TaskId>,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// A new Vault.
#[derive(Debug, Clone, PartialEq)]
pub struct NewVault {
    /// Its Workspace; none for all.
    pub workspace_id: Option<WorkspaceId>,
    /// The backend.
    pub provider: String,
    /// What may be done with its secrets.
    pub capabilities: Vec<String>,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}
