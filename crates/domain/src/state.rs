//! The state of every kind of resource, as stored.
//!
//! A state holds what must be looked up; content stays in the event (or blob) that brought it, and the
//! state says at which position. What can be computed at read, such as a Session's activity, is not here.

use std::collections::BTreeMap;

use canon::{Digest, Value};
use serde::{Deserialize, Serialize};

use crate::{
    BranchId, MessageId, OutcomeId, PermissionId, PersonaId, Position, ReceiptId, Role, SessionId,
    Status, TaskId, TaskPersona, Timestamp, Visibility, WorkspaceId,
};

/// The kinds of resource that have documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// Workspaces.
    Workspace,
    /// Sessions.
    Session,
    /// Tasks.
    Task,
    /// Branches.
    Branch,
    /// Messages.
    Message,
    /// Artifacts.
    Artifact,
    /// Outcomes.
    Outcome,
    /// Permission requests.
    Permission,
    /// Vaults.
    Vault,
    /// Receipts.
    Receipt,
    /// Chains of receipts, one per Session.
    Chain,
    /// Sealed heads of the receipt log.
    Batch,
    /// Chains of trust records, one per Session.
    TrustChain,
    /// Personas.
    Persona,
    /// API keys.
    Key,
    /// Memory fields.
    Field,
}

impl ResourceKind {
    /// Every kind. The index of a kind in this list is its number in stored data: only append.
    pub const ALL: [ResourceKind; 16] = [
        ResourceKind::Workspace,
        ResourceKind::Session,
        ResourceKind::Task,
        ResourceKind::Branch,
        ResourceKind::Message,
        ResourceKind::Artifact,
        ResourceKind::Outcome,
        ResourceKind::Permission,
        ResourceKind::Vault,
        ResourceKind::Receipt,
        ResourceKind::Chain,
        ResourceKind::Batch,
        ResourceKind::TrustChain,
        ResourceKind::Persona,
        ResourceKind::Key,
        ResourceKind::Field,
    ];

    /// Returns the value of `object`.
    pub const fn object(self) -> &'static str {
        match self {
            ResourceKind::Workspace => WorkspaceId::OBJECT,
            ResourceKind::Session => SessionId::OBJECT,
            ResourceKind::Task => TaskId::OBJECT,
            ResourceKind::Branch => BranchId::OBJECT,
            ResourceKind::Message => MessageId::OBJECT,
            ResourceKind::Artifact => crate::ArtifactId::OBJECT,
            ResourceKind::Outcome => OutcomeId::OBJECT,
            ResourceKind::Permission => PermissionId::OBJECT,
            ResourceKind::Vault => crate::VaultId::OBJECT,
            ResourceKind::Receipt => ReceiptId::OBJECT,
            ResourceKind::Chain => crate::ChainId::OBJECT,
            ResourceKind::Batch => crate::BatchId::OBJECT,
            ResourceKind::TrustChain => crate::TrustChainId::OBJECT,
            ResourceKind::Persona => PersonaId::OBJECT,
            ResourceKind::Key => Key::OBJECT,
            ResourceKind::Field => crate::FieldId::OBJECT,
        }
    }

    /// Returns the number under which the kind is stored.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// The state of one resource.
#[expect(
    clippy::large_enum_variant,
    reason = "documents are shared behind an Arc, so that none is moved"
)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "object", rename_all = "snake_case")]
pub enum State {
    /// A Workspace.
    Workspace(Workspace),
    /// A Session.
    Session(Session),
    /// A Task.
    Task(Task),
    /// A Branch.
    Branch(Branch),
    /// A Message.
    Message(Message),
    /// An Artifact.
    Artifact(Artifact),
    /// An Outcome.
    Outcome(Outcome),
    /// A permission request.
    Permission(Permission),
    /// A Vault.
    Vault(Vault),
    /// A Receipt.
    Receipt(Receipt),
    /// The chain of a Session's receipts.
    #[serde(rename = "receipt_chain")]
    Chain(Chain),
    /// A sealed head of the receipt log.
    #[serde(rename = "receipt_batch")]
    Batch(Batch),
    /// The chain of a Session's trust records.
    TrustChain(TrustChain),
    /// A Persona.
    Persona(Persona),
    /// An API key.
    #[serde(rename = "api_key")]
    Key(Key),
    /// A memory field.
    Field(Field),
}

impl State {
    /// Returns the kind.
    pub const fn kind(&self) -> ResourceKind {
        match self {
            State::Workspace(_) => ResourceKind::Workspace,
            State::Session(_) => ResourceKind::Session,
            State::Task(_) => ResourceKind::Task,
            State::Branch(_) => ResourceKind::Branch,
            State::Message(_) => ResourceKind::Message,
            State::Artifact(_) => ResourceKind::Artifact,
            State::Outcome(_) => ResourceKind::Outcome,
            State::Permission(_) => ResourceKind::Permission,
            State::Vault(_) => ResourceKind::Vault,
            State::Receipt(_) => ResourceKind::Receipt,
            State::Chain(_) => ResourceKind::Chain,
            State::Batch(_) => ResourceKind::Batch,
            State::TrustChain(_) => ResourceKind::TrustChain,
            State::Persona(_) => ResourceKind::Persona,
            State::Key(_) => ResourceKind::Key,
            State::Field(_) => ResourceKind::Field,
        }
    }

    /// True while somebody still has to do something: a Task that is not terminal, a pending request.
    /// Open documents are indexed, so that a start finds its work without reading history.
    pub const fn is_open(&self) -> bool {
        match self {
            State::Task(task) => !task.status.is_terminal(),
            State::Permission(request) => matches!(request.answer, Answer::Pending),
            State::Session(session) => session.replaying.is_some(),
            State::Workspace(_)
            | State::Branch(_)
            | State::Message(_)
            | State::Artifact(_)
            | State::Outcome(_)
            | State::Vault(_)
            | State::Receipt(_)
            | State::Chain(_)
            | State::Batch(_)
            | State::TrustChain(_)
            | State::Persona(_)
            | State::Key(_)
            | State::Field(_) => false,
        }
    }
}

/// A memory that agents share. What is in it is folded from its events by whoever serves it; this says where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// The Workspace that it belongs to.
    pub workspace_id: WorkspaceId,
    /// Its name there.
    pub name: String,
    /// Its logical clock.
    pub epoch: u64,
}

/// An API key as events tell of it. What authenticates is a table of the store; it must agree with this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The actor in events of whoever uses it.
    pub actor: String,
    /// The Workspaces that it is bound to; none for all.
    pub workspaces: Option<Vec<String>>,
    /// What it may do.
    pub scopes: Vec<String>,
    /// SHA-256 of what the store compares keys with, which is itself a digest of the key's text.
    pub fingerprint: Digest,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Since when it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

impl Key {
    /// The value of `object`.
    pub const OBJECT: &'static str = "api_key";
}

/// The isolation boundary of files, tools, Sessions and logs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workspace {
    /// Display name.
    pub name: String,
    /// Logical root or URI; not necessarily a directory.
    pub root: String,
    /// The branch that is the main path.
    pub default_branch_id: BranchId,
    /// Declared capabilities.
    pub capabilities: Vec<String>,
    /// The quota that applies, by id.
    pub quota_id: Option<String>,
    /// Position of the event that holds the caller's own members.
    pub metadata: Position,
}

/// A conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its Workspace.
    pub workspace_id: WorkspaceId,
    /// The first Session of its line of forks, when it is a fork.
    pub root_session_id: Option<SessionId>,
    /// The Session it was forked from.
    pub parent_session_id: Option<SessionId>,
    /// Its branch, when it was forked onto one.
    pub branch_id: Option<BranchId>,
    /// The mode asked for at creation.
    pub mode_id: Option<String>,
    /// The Persona whose Tasks it takes unless they name another.
    pub persona_id: Option<PersonaId>,
    /// Provider and model preferences, as given.
    pub model_policy: Option<Value>,
    /// The caller's summary.
    pub summary: Option<String>,
    /// Position of the event that holds the caller's own members.
    pub metadata: Position,
    /// How many Messages were ever appended.
    pub appended: u64,
    /// Ranges of Messages that truncation dropped, ascending and disjoint.
    pub dropped: Vec<TruncatedRange>,
    /// True once closed.
    pub closed: bool,
    /// True when it was made here for Tasks that were taken over from another log.
    #[serde(default, skip_serializing_if = "is_false")]
    pub imported: bool,
    /// The blob that says what it replays, while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaying: Option<Digest>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands members over by reference"
)]
fn is_false(value: &bool) -> bool {
    !*value
}

/// A run of Messages that truncation dropped from a Session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TruncatedRange {
    /// Messages with a greater key…
    pub after: Position,
    /// …up to and including this key are dropped.
    pub through: Position,
    /// How many they are.
    pub count: u64,
}

impl Session {
    /// Returns how many Messages a reader of the transcript sees.
    pub fn message_count(&self) -> u64 {
        self.appended
            .saturating_sub(self.dropped.iter().map(|range| range.count).sum())
    }

    /// True when a Message with this key was dropped by truncation.
    pub fn drops(&self, key: Position) -> bool {
        self.dropped
            .iter()
            .any(|range| range.after < key && key <= range.through)
    }
}

/// A unit of agent work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its Session.
    pub session_id: SessionId,
    /// Its Workspace.
    pub workspace_id: WorkspaceId,
    /// Where it stands.
    pub status: Status,
    /// The actor who submitted it.
    pub created_by: String,
    /// The registered name of the workflow that runs it.
    pub workflow: String,
    /// The Persona it runs under, as that was when the Task was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persona: Option<TaskPersona>,
    /// Its branch.
    pub branch_id: Option<BranchId>,
    /// The Task it came from.
    pub parent_task_id: Option<TaskId>,
    /// Position of `task.submitted`, which holds the metadata and a structured input.
    pub submitted: Position,
    /// Position of the event that holds the input: the Message, or `task.submitted` itself.
    pub input: Position,
    /// The request it waits for, while it waits.
    pub waits_for: Option<PermissionId>,
    /// The other requests, when it asked about several things at once. Answered ones stay here until it works again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_also: Option<Box<FurtherRequests>>,
    /// How many requests it has made; the ordinal of the next is one more.
    pub requests: u64,
    /// When it first worked.
    pub started_at: Option<Timestamp>,
    /// When it completed or failed.
    pub completed_at: Option<Timestamp>,
    /// When it was canceled.
    pub canceled_at: Option<Timestamp>,
    /// Its Outcome.
    pub outcome_id: Option<OutcomeId>,
    /// Its Receipt.
    pub receipt_id: Option<ReceiptId>,
    /// Position of `task.failed`, which says why.
    pub failure: Option<Position>,
    /// What it replays, when it is a replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplayOf>,
    /// Where its log is, when it was taken over from another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Imported>,
    /// Interrupts that no step has been told of yet: positions of the events that asked for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interrupts: Vec<Position>,
    /// What the next move of its worker is judged by. None before it starts, once it has ended, for a replay, and for a Task
    /// that a program without these rules began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<Box<Ledger>>,
}

/// What the worker of a Task has told. Does not grow with the Task's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Digest of the workflow's name and version.
    pub workflow: Digest,
    /// Effects that were requested and have no result yet, in the order of their requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<String>,
    /// The highest number of an effect that was requested, by what stands before the number in its key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub last: BTreeMap<String, u64>,
}

impl Ledger {
    /// The ledger of a Task that starts under a workflow.
    pub fn new(workflow: Digest) -> Self {
        Self {
            workflow,
            open: Vec::new(),
            last: BTreeMap::new(),
        }
    }

    /// Notes that an effect was requested. False when one with this number or a later one was requested before: a key has
    /// one request and one result.
    pub fn request(&mut self, key: &str) -> bool {
        let (family, number) = split_key(key);
        if self.last.get(family).is_some_and(|last| number <= *last) {
            return false;
        }
        self.last.insert(family.to_owned(), number);
        self.open.push(key.to_owned());
        true
    }

    /// Notes the result of an effect. False when it was not requested, or has a result.
    pub fn record(&mut self, key: &str) -> bool {
        let open = self.open.iter().position(|open| open == key);
        open.map(|index| self.open.remove(index)).is_some()
    }
}

/// Splits an effect's key, such as `llm:main:3`, before its number. One without a number can be requested once.
fn split_key(key: &str) -> (&str, u64) {
    let numbered = key
        .rsplit_once(':')
        .and_then(|(family, number)| Some((family, number.parse().ok()?)));
    numbered.unwrap_or((key, 0))
}

impl Task {
    /// Returns the requests that it made before it began to wait; some of them may be answered already.
    pub fn awaited(&self) -> impl Iterator<Item = &PermissionId> {
        let others = self.waits_also.iter().flat_map(|others| &others.0);
        self.waits_for.iter().chain(others)
    }

    /// Adds a request to those that it waits for.
    pub(crate) fn add_awaited(&mut self, request: PermissionId) {
        self.waits_also.get_or_insert_default().0.push(request);
    }
}

/// Requests beside the first one, behind a pointer: most Tasks have none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FurtherRequests(Vec<PermissionId>);

/// What this log knows of a Task that ran under another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Imported {
    /// The blob that holds its bundle.
    pub bundle: Digest,
    /// When it was submitted there.
    pub submitted_at: Timestamp,
}

/// What a replay Task replays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplayOf {
    /// The source.
    pub source_task_id: TaskId,
    /// The blob that holds the request.
    pub request: Digest,
    /// How many replays of the source there were before it, and itself.
    pub ordinal: u64,
}

/// A marker of lineage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Branch {
    /// Its Workspace.
    pub workspace_id: WorkspaceId,
    /// What it branches.
    pub kind: BranchKind,
    /// What it starts from.
    pub base_ref: String,
    /// The branch it leaves; none for a Workspace's default branch.
    pub parent_branch_id: Option<BranchId>,
    /// The Session it belongs to.
    pub session_id: Option<SessionId>,
    /// The Task it belongs to.
    pub task_id: Option<TaskId>,
    /// Who made it.
    pub created_by: String,
    /// Position of the event that holds the caller's own members.
    pub metadata: Position,
}

/// What a Branch branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BranchKind {
    /// Files of a Workspace.
    Workspace,
    /// A conversation.
    Session,
    /// One Task.
    Task,
    /// A copy to experiment in.
    Sandbox,
}

impl BranchKind {
    /// Returns the protocol's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            BranchKind::Workspace => "workspace",
            BranchKind::Session => "session",
            BranchKind::Task => "task",
            BranchKind::Sandbox => "sandbox",
        }
    }

    /// Reads the protocol's word.
    pub fn parse(text: &str) -> Option<Self> {
        [
            BranchKind::Workspace,
            BranchKind::Session,
            BranchKind::Task,
            BranchKind::Sandbox,
        ]
        .into_iter()
        .find(|kind| kind.as_str() == text)
    }
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The Session it was appended to.
    pub session_id: SessionId,
    /// The Task it came with, if any.
    pub task_id: Option<TaskId>,
    /// Who speaks.
    pub role: Role,
    /// Position of the event that holds parts and metadata; for a copy, the original's.
    pub source: Position,
}

/// Durable content that Messages and Outcomes refer to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Artifact {
    /// What it is.
    pub kind: ArtifactKind,
    /// Its media type.
    pub mime_type: String,
    /// Where it lives, when it lives elsewhere.
    pub uri: Option<String>,
    /// Who may see it.
    pub visibility: Visibility,
    /// Digest stated at registration or computed at upload.
    pub sha256: Option<Digest>,
    /// Its length, once bytes were uploaded.
    pub bytes: Option<u64>,
    /// Its Workspace.
    pub workspace_id: WorkspaceId,
    /// Its Session.
    pub session_id: Option<SessionId>,
    /// Its Task.
    pub task_id: Option<TaskId>,
    /// Position of `artifact.created`, which holds the metadata.
    pub source: Position,
}

/// What an Artifact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArtifactKind {
    /// A file.
    File,
    /// A patch.
    Patch,
    /// An image.
    Image,
    /// A log.
    Log,
    /// A diff.
    Diff,
    /// A receipt.
    Receipt,
    /// A snapshot.
    Snapshot,
    /// A data set.
    Dataset,
    /// Anything else.
    Other,
}

impl ArtifactKind {
    /// Every kind.
    pub const ALL: [ArtifactKind; 9] = [
        ArtifactKind::File,
        ArtifactKind::Patch,
        ArtifactKind::Image,
        ArtifactKind::Log,
        ArtifactKind::Diff,
        ArtifactKind::Receipt,
        ArtifactKind::Snapshot,
        ArtifactKind::Dataset,
        ArtifactKind::Other,
    ];

    /// Returns the protocol's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            ArtifactKind::File => "file",
            ArtifactKind::Patch => "patch",
            ArtifactKind::Image => "image",
            ArtifactKind::Log => "log",
            ArtifactKind::Diff => "diff",
            ArtifactKind::Receipt => "receipt",
            ArtifactKind::Snapshot => "snapshot",
            ArtifactKind::Dataset => "dataset",
            ArtifactKind::Other => "other",
        }
    }

    /// Reads the protocol's word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// The result of a finished Task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The Task.
    pub task_id: TaskId,
    /// Its Session.
    pub session_id: SessionId,
    /// Its Workspace.
    pub workspace_id: WorkspaceId,
    /// How it ended: `Completed`, `Failed` or `Canceled`.
    pub status: Status,
    /// The Receipt that proves it.
    pub receipt_id: Option<ReceiptId>,
    /// Position of `vendor.outcome_recorded`, which holds summary and references.
    pub source: Position,
}

/// A question or an approval that a Task waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Permission {
    /// The Task that waits.
    pub task_id: TaskId,
    /// Its Session.
    pub session_id: SessionId,
    /// Its Workspace.
    pub workspace_id: WorkspaceId,
    /// What is asked for.
    pub ask: Ask,
    /// The effect whose result the answer is.
    pub effect_key: String,
    /// What the action is called; none when the request names none.
    #[serde(default)]
    pub action: Option<String>,
    /// Position of the event that asked.
    pub asked: Position,
    /// What was answered.
    pub answer: Answer,
}

/// What a permission request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ask {
    /// Input: the Task is INPUT_REQUIRED.
    Input,
    /// Approval: the Task is AUTH_REQUIRED.
    Approval,
}

impl Ask {
    /// Returns the status of a Task that waits for this.
    pub const fn status(self) -> Status {
        match self {
            Ask::Input => Status::InputRequired,
            Ask::Approval => Status::AuthRequired,
        }
    }
}

/// What was answered to a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredAnswer", into = "StoredAnswer")]
pub enum Answer {
    /// Nothing yet.
    Pending,
    /// Yes, or the input.
    Approved {
        /// Position of the answering event.
        at: Position,
        /// Digest of what was answered, to tell a repetition from another answer.
        digest: Digest,
    },
    /// No.
    Denied {
        /// Position of the answering event.
        at: Position,
        /// Digest of what was answered.
        digest: Digest,
    },
    /// Nobody answered, and nobody will: the Task ended, was interrupted, or the time was over.
    Withdrawn {
        /// Position of the event that says so.
        at: Position,
    },
}

/// An answer as documents hold it. A withdrawn request was a denied one at first, told by a digest that no answer has:
/// documents of every age say it so.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum StoredAnswer {
    Pending,
    Approved { at: Position, digest: Digest },
    Denied { at: Position, digest: Digest },
}

impl StoredAnswer {
    /// Not the digest of any answer: those are taken over JSON objects.
    fn withdrawn() -> Digest {
        canon::sha256(b"withdrawn")
    }
}

impl From<StoredAnswer> for Answer {
    fn from(stored: StoredAnswer) -> Self {
        match stored {
            StoredAnswer::Pending => Answer::Pending,
            StoredAnswer::Approved { at, digest } => Answer::Approved { at, digest },
            StoredAnswer::Denied { at, digest } if digest == StoredAnswer::withdrawn() => {
                Answer::Withdrawn { at }
            }
            StoredAnswer::Denied { at, digest } => Answer::Denied { at, digest },
        }
    }
}

impl From<Answer> for StoredAnswer {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Pending => StoredAnswer::Pending,
            Answer::Approved { at, digest } => StoredAnswer::Approved { at, digest },
            Answer::Denied { at, digest } => StoredAnswer::Denied { at, digest },
            Answer::Withdrawn { at } => StoredAnswer::Denied {
                at,
                digest: StoredAnswer::withdrawn(),
            },
        }
    }
}

/// The proof of a finished Task. Its bytes are a blob.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// The Task.
    pub task_id: TaskId,
    /// Its Session.
    pub session_id: SessionId,
    /// Its Workspace.
    pub workspace_id: WorkspaceId,
    /// The hash that stands in the receipt and in the receipt log.
    pub receipt_hash: Digest,
    /// Digest of the canonical bytes, signatures included: the blob.
    pub content: Digest,
    /// The hash of its predecessor in the Session's chain.
    pub previous: Option<Digest>,
    /// The predecessor itself.
    #[serde(default)]
    pub previous_id: Option<ReceiptId>,
    /// Position of the last verification.
    pub verified: Option<Position>,
    /// True when another server issued it: it is in no chain and no tree of this log.
    #[serde(default, skip_serializing_if = "is_false")]
    pub imported: bool,
}

/// The newest Receipt of a Session, so that the next one can name it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    /// The Session.
    pub session_id: SessionId,
    /// Its newest Receipt.
    pub receipt_id: ReceiptId,
    /// The hash of that Receipt.
    pub receipt_hash: Digest,
    /// How many there are.
    pub count: u64,
}

/// A signed head of the receipt log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// How many receipts it covers.
    pub size: u64,
    /// The root over them.
    pub root: Digest,
    /// Position of the event that holds the signed checkpoint.
    pub source: Position,
    /// Positions of the events that hold witnesses' signatures.
    pub cosigned: Vec<Position>,
}

/// The newest trust record of a Session, so that the next one can name it. The records are its events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrustChain {
    /// The Session.
    pub session_id: SessionId,
    /// The hash of its newest record.
    pub entry_hash: Digest,
    /// How many there are.
    pub count: u64,
}

/// A named place for secrets. Holds none itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vault {
    /// Its Workspace; none for all of them.
    pub workspace_id: Option<WorkspaceId>,
    /// The backend.
    pub provider: String,
    /// What may be done with its secrets.
    pub capabilities: Vec<String>,
    /// Position of the event that holds the caller's own members.
    pub metadata: Position,
}

/// The definition of an agent. What it says is in the event at `source`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Persona {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Digest of all that it says, to tell a repetition from another definition.
    pub content: Digest,
    /// Position of the event that holds the definition and the caller's own members.
    pub source: Position,
}
