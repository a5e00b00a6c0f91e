//! Commands: orders with everything in them that deciding needs, ids and salts included.

mod govern;
mod import;

use std::sync::Arc;

use canon::{Digest, Map, Value};
use serde::{Deserialize, Serialize};

use crate::{
    ArtifactId, ArtifactKind, Ask, BatchId, Blob, BranchId, FieldId, Kind, MessageId, NewArtifact,
    NewBranch, NewVault, NewWorkspace, OutcomeId, PermissionId, PersonaId, PersonaSnapshot,
    PersonaSpec, Position, ReceiptId, ReplayMark, Role, SessionId, Status, TaskId, Timestamp,
    VaultId, WorkspaceId, payload,
};

pub use govern::{GovernTask, GovernedAnswer, OpenGoverned};
pub use import::{ImportTask, ImportedReceipt};

/// An order and who gave it.
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    /// The actor, as it will stand in events.
    pub actor: String,
    /// The client's idempotency key, as it will stand in the first event.
    pub idempotency_key: Option<String>,
    /// What to do.
    pub order: Order,
}

/// What a command asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Creates a Workspace and its default Branch.
    CreateWorkspace(CreateWorkspace),
    /// Changes members of a Workspace.
    UpdateWorkspace(UpdateWorkspace),
    /// Creates a Session with its first Messages.
    CreateSession(CreateSession),
    /// Changes members of a Session.
    UpdateSession(UpdateSession),
    /// Closes a Session for good.
    CloseSession(SessionId),
    /// Copies a Session's Messages into a new Session.
    ForkSession(ForkSession),
    /// Notes that a Session repeats another one.
    RecordSessionReplay(RecordSessionReplay),
    /// Drops a Session's later Messages.
    TruncateSession(TruncateSession),
    /// Appends a Message to a Session.
    AppendMessage(AppendMessage),
    /// Accepts a Task.
    SubmitTask(SubmitTask),
    /// Accepts a replay of a finished Task.
    SubmitReplay(SubmitReplay),
    /// Takes over a finished Task of another log, to be replayed here.
    ImportTask(Box<ImportTask>),
    /// Cancels a Task.
    CancelTask(CancelTask),
    /// Tells a running Task to stop its current step; the Task stays.
    InterruptTask(InterruptTask),
    /// Answers what a Task waits for.
    AnswerRequest(AnswerRequest),
    /// Creates a Branch of a Session.
    CreateBranch(CreateBranch),
    /// Registers an Artifact.
    RegisterArtifact(RegisterArtifact),
    /// Gives an Artifact its bytes, which are stored already.
    AttachContent(AttachContent),
    /// Creates a Vault.
    CreateVault(CreateVault),
    /// A worker's progress on a Task.
    AdvanceTask(AdvanceTask),
    /// Records that a Receipt was verified.
    RecordVerification(RecordVerification),
    /// Records a signed head of the receipt log.
    SealHead(SealHead),
    /// Adds a witness's signature to a head.
    CosignHead(CosignHead),
    /// Defines a Persona.
    CreatePersona(CreatePersona),
    /// Changes what may be changed of a Persona.
    UpdatePersona(UpdatePersona),
    /// Begins a governed session: its Session and its Task, which works at once.
    OpenGoverned(Box<OpenGoverned>),
    /// Records an input of a governed session and what it brought about.
    GovernTask(Box<GovernTask>),
    /// Appends to the log of a memory field.
    WriteField(Box<WriteField>),
}

/// See [`Order::WriteField`]. Its id follows from Workspace and name.
#[derive(Debug, Clone, PartialEq)]
pub struct WriteField {
    /// The Workspace of the field.
    pub workspace_id: WorkspaceId,
    /// The name of the field there.
    pub name: String,
    /// The version of its document that the entries were decided on; 0 when there was none.
    pub version: u64,
    /// What happened, in order.
    pub entries: Vec<FieldEntry>,
    /// Whether there must be room for it.
    pub room: FieldRoom,
}

/// The member of a field's entry that says that it does not take room from what is written: a memory is read far more
/// often than written, and every reading is an entry.
pub const COUNTED_APART: &str = "counted_apart";

/// What an operation on a field means for the room that its Workspace has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FieldRoom {
    /// It takes some, if there is any.
    #[default]
    Taken,
    /// It is counted apart, up to the same limit.
    Apart,
    /// It is always possible: it erases.
    Free,
}

/// One entry of a field's log.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldEntry {
    /// What it says, its `epoch` among the members.
    pub members: Map<String, Value>,
    /// Texts, vectors and answers that it names.
    pub blobs: Vec<Blob>,
}

impl WriteField {
    /// Returns the id that follows from Workspace and name.
    pub fn id(&self) -> FieldId {
        FieldId::of(&self.workspace_id, &self.name)
    }
}

/// See [`Order::CreatePersona`]. Its id follows from its name and version.
#[derive(Debug, Clone, PartialEq)]
pub struct CreatePersona {
    /// The definition.
    pub persona: PersonaSpec,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

impl CreatePersona {
    /// Returns the id that follows from name and version.
    pub fn id(&self) -> PersonaId {
        PersonaId::of(&self.persona.name, &self.persona.version)
    }
}

/// See [`Order::UpdatePersona`].
#[derive(Debug, Clone, PartialEq)]
pub struct UpdatePersona {
    /// The Persona.
    pub id: PersonaId,
    /// The version of its document that the change was made on.
    pub document_version: u64,
    /// The whole definition after the change.
    pub persona: PersonaSpec,
    /// The caller's own members after the change.
    pub metadata: Map<String, Value>,
}

/// See [`Order::RecordVerification`].
#[derive(Debug, Clone, PartialEq)]
pub struct RecordVerification {
    /// The Receipt.
    pub id: ReceiptId,
    /// The verdict.
    pub valid: bool,
    /// The first failing code.
    pub reason: Option<String>,
    /// Every check.
    pub details: Value,
}

/// See [`Order::SealHead`].
#[derive(Debug, Clone, PartialEq)]
pub struct SealHead {
    /// Its id.
    pub id: BatchId,
    /// How many receipts it covers.
    pub size: u64,
    /// The root over them.
    pub root: Digest,
    /// The root of the head before it.
    pub previous_root: Option<Digest>,
    /// The signed checkpoint.
    pub checkpoint: String,
    /// What the log had lost before it went on under a new origin; this head is the first one under it.
    pub recovered: Option<Value>,
    /// The statement by which another key took over; this head is the first one that it signed.
    pub rotation: Option<Value>,
    /// What the signing keys were when it was signed, as a digest: a key file of another state is not this log's newest.
    pub keys: Option<Digest>,
}

/// See [`Order::CosignHead`].
#[derive(Debug, Clone, PartialEq)]
pub struct CosignHead {
    /// The head.
    pub id: BatchId,
    /// The witness's signature line.
    pub line: String,
    /// How many lines of witnesses it was compared with, because documents do not hold them: all that the head has.
    pub compared: usize,
    /// False when it is one of these.
    pub is_new: bool,
}

/// See [`Order::CreateWorkspace`].
#[derive(Debug, Clone, PartialEq)]
pub struct CreateWorkspace {
    /// Its id.
    pub id: WorkspaceId,
    /// The id of its default Branch.
    pub branch_id: BranchId,
    /// What was asked for.
    pub new: NewWorkspace,
}

/// See [`Order::UpdateWorkspace`]. Absent members stay as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateWorkspace {
    /// The Workspace.
    pub id: WorkspaceId,
    /// New name.
    pub name: Option<String>,
    /// New capabilities.
    pub capabilities: Option<Vec<String>>,
    /// New quota; the inner none removes it.
    pub quota_id: Option<Option<String>>,
    /// New metadata, replacing the old.
    pub metadata: Option<Map<String, Value>>,
}

/// A Message to be created.
#[derive(Debug, Clone, PartialEq)]
pub struct NewMessage {
    /// Its id.
    pub id: MessageId,
    /// Random text that keeps digests of private parts from being guessed.
    pub salt: String,
    /// Who speaks.
    pub role: Role,
    /// Its parts, as [`crate::check_parts`] returned them.
    pub parts: Vec<Value>,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// See [`Order::CreateSession`].
#[derive(Debug, Clone, PartialEq)]
pub struct CreateSession {
    /// Its id.
    pub id: SessionId,
    /// Its Workspace.
    pub workspace_id: WorkspaceId,
    /// The mode, as given.
    pub mode_id: Option<String>,
    /// The Persona of its Tasks, which was seen to exist: Personas are never removed.
    pub persona_id: Option<PersonaId>,
    /// Provider and model preferences, as given.
    pub model_policy: Option<Value>,
    /// The first Messages, in order.
    pub initial_messages: Vec<NewMessage>,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// See [`Order::UpdateSession`]. Absent members stay as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateSession {
    /// The Session.
    pub id: SessionId,
    /// New summary; the inner none removes it.
    pub summary: Option<Option<String>>,
    /// New model policy; the inner none removes it.
    pub model_policy: Option<Option<Value>>,
    /// New metadata, replacing the old.
    pub metadata: Option<Map<String, Value>>,
}

/// A Message to be copied into a fork.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageCopy {
    /// The id of the copy.
    pub id: MessageId,
    /// The Message it copies.
    pub of: MessageId,
    /// Who speaks.
    pub role: Role,
    /// Position of the event that holds the content.
    pub source: Position,
}

/// See [`Order::ForkSession`].
#[derive(Debug, Clone, PartialEq)]
pub struct ForkSession {
    /// The Session to fork.
    pub parent: SessionId,
    /// The version of it that `messages` was read from.
    pub parent_version: u64,
    /// The id of the fork.
    pub id: SessionId,
    /// The event up to which Messages were taken.
    pub at_event_id: Option<String>,
    /// The Branch the fork lives on.
    pub branch_id: Option<BranchId>,
    /// The Branch to make for it instead.
    pub new_branch: Option<BranchId>,
    /// The parent's last Receipt at the fork point.
    pub chain: Option<(ReceiptId, Digest)>,
    /// What to copy, in order.
    pub messages: Vec<MessageCopy>,
    /// What the fork shall replay, when it is made for that.
    pub replay: Option<SessionReplay>,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// What a fork shall replay.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionReplay {
    /// The plan.
    pub plan: Blob,
    /// What the secrets are kept under that the request told and the plan does not.
    pub salt: String,
}

/// See [`Order::RecordSessionReplay`].
#[derive(Debug, Clone, PartialEq)]
pub struct RecordSessionReplay {
    /// The Session that repeats.
    pub id: SessionId,
    /// What it repeats and how far it came.
    pub payload: payload::SessionReplayed,
}

/// See [`Order::TruncateSession`].
#[derive(Debug, Clone, PartialEq)]
pub struct TruncateSession {
    /// The Session.
    pub id: SessionId,
    /// The version of it that the other members were read from.
    pub version: u64,
    /// How many Messages to keep.
    pub keep_first: u64,
    /// Key of the last Message kept; the start when none is.
    pub after: Position,
    /// Key of the last Message there is.
    pub through: Position,
    /// Id of the last Message kept.
    pub tip: Option<MessageId>,
    /// Why, as given.
    pub reason: Option<String>,
}

/// See [`Order::AppendMessage`].
#[derive(Debug, Clone, PartialEq)]
pub struct AppendMessage {
    /// The Session.
    pub session_id: SessionId,
    /// The Message.
    pub message: NewMessage,
}

/// What a Task works on.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskInput {
    /// A Message, which also joins the Session's transcript.
    Message(NewMessage),
    /// A structured value.
    Object(Map<String, Value>),
}

/// See [`Order::SubmitTask`].
#[derive(Debug, Clone, PartialEq)]
pub struct SubmitTask {
    /// Its id.
    pub id: TaskId,
    /// Its Session.
    pub session_id: SessionId,
    /// The Workspace the request names, if it names one.
    pub workspace_id: Option<WorkspaceId>,
    /// The Branch it runs on.
    pub branch_id: Option<BranchId>,
    /// The Task it comes from.
    pub parent_task_id: Option<TaskId>,
    /// The registered name of its workflow.
    pub workflow: String,
    /// The Persona it runs under, as that is now.
    pub persona: Option<PersonaSnapshot>,
    /// What it works on.
    pub input: TaskInput,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// See [`Order::SubmitReplay`].
#[derive(Debug, Clone, PartialEq)]
pub struct SubmitReplay {
    /// Its id, which follows from the source's.
    pub id: TaskId,
    /// Which replay of the source it is, from 1.
    pub ordinal: u64,
    /// The Task to replay.
    pub source: TaskId,
    /// The Session it runs in.
    pub session_id: SessionId,
    /// The Branch to make for it, when it must not run on its Session's.
    pub new_branch: Option<BranchId>,
    /// `exact`, `with_overrides` or `from_checkpoint`.
    pub mode: String,
    /// Whether models or tools are asked again.
    pub goes_live: bool,
    /// The structured input of the source; null when it works on a Message.
    pub input: Value,
    /// The persona the source ran under; null without one.
    pub persona: Value,
    /// The request as it was accepted. Kept beside the log: it may hold what is not public, though never a secret.
    pub request: Value,
    /// Random text that keeps the digest of the request from being guessed.
    pub salt: String,
    /// The caller's own members.
    pub metadata: Map<String, Value>,
}

/// See [`Order::CancelTask`].
#[derive(Debug, Clone, PartialEq)]
pub struct CancelTask {
    /// The Task.
    pub id: TaskId,
    /// The ids of what its end leaves.
    pub ids: EndIds,
    /// The Receipt, when the Task is a replay.
    pub receipt: Option<Arc<[u8]>>,
    /// Why, as given.
    pub reason: Option<String>,
}

/// The ids of what the end of a Task leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct EndIds {
    /// Its Outcome.
    pub outcome_id: OutcomeId,
    /// Its Receipt.
    pub receipt_id: ReceiptId,
}

/// See [`Order::InterruptTask`].
#[derive(Debug, Clone, PartialEq)]
pub struct InterruptTask {
    /// The Task.
    pub id: TaskId,
    /// What the user said, which also joins the transcript.
    pub message: NewMessage,
}

/// See [`Order::AnswerRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerRequest {
    /// The request.
    pub id: PermissionId,
    /// The answer.
    pub reply: RequestReply,
    /// Who answered, why, and for how long, as given.
    pub remarks: Map<String, Value>,
    /// The id of the API key that it came with.
    pub key_id: Option<String>,
    /// When it came: an answer to one of several questions counts from then, not from when the last one is answered.
    pub answered_at: Option<Timestamp>,
}

/// An answer to a permission request.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestReply {
    /// A Message, which also joins the transcript. Answers a question.
    Message(NewMessage),
    /// A bare value. Answers a question.
    Value(Value),
    /// Yes. With a question pending, an answer without content.
    Approve,
    /// No.
    Deny,
    /// A decision that came as a Message, which also joins the transcript.
    Confirm {
        /// The decision.
        approved: bool,
        /// What carried it.
        message: NewMessage,
    },
}

/// See [`Order::CreateBranch`].
#[derive(Debug, Clone, PartialEq)]
pub struct CreateBranch {
    /// Its id.
    pub id: BranchId,
    /// What was asked for.
    pub new: NewBranch,
}

/// See [`Order::RegisterArtifact`].
#[derive(Debug, Clone, PartialEq)]
pub struct RegisterArtifact {
    /// Its id.
    pub id: ArtifactId,
    /// The Workspace it belongs to.
    pub workspace_id: WorkspaceId,
    /// What was asked for.
    pub new: NewArtifact,
}

/// See [`Order::AttachContent`].
#[derive(Debug, Clone, PartialEq)]
pub struct AttachContent {
    /// The Artifact.
    pub id: ArtifactId,
    /// Digest of the bytes.
    pub sha256: Digest,
    /// Their length.
    pub bytes: u64,
}

/// See [`Order::CreateVault`].
#[derive(Debug, Clone, PartialEq)]
pub struct CreateVault {
    /// Its id.
    pub id: VaultId,
    /// What was asked for.
    pub new: NewVault,
}

/// See [`Order::AdvanceTask`].
#[derive(Debug, Clone, PartialEq)]
pub struct AdvanceTask {
    /// The Task.
    pub id: TaskId,
    /// Digest of the name and version of the workflow that these moves are of; none for what no workflow says.
    pub workflow: Option<Digest>,
    /// What happened, in order.
    pub moves: Vec<Move>,
}

/// One thing that happened to a Task under its worker.
#[derive(Debug, Clone, PartialEq)]
pub enum Move {
    /// Work begins.
    Start {
        /// Digest of the workflow's name and version.
        workflow_digest: Digest,
    },
    /// A new process took over a Task that was waiting.
    Recover,
    /// An effect is about to be performed.
    RequestEffect(EffectIntent),
    /// An effect was performed.
    RecordEffect(EffectResult),
    /// The Task asks somebody and waits.
    Ask {
        /// The request's id; an id already known asks the same again.
        request: PermissionId,
        /// What is asked for.
        ask: Ask,
        /// The effect whose result the answer is.
        effect_key: String,
        /// The question, or what the action would do.
        request_body: Value,
        /// The action to approve.
        action: Value,
    },
    /// The workflow tells what it does: a tool it uses, a result it got.
    Note {
        /// What happened.
        kind: Kind,
        /// The facts.
        payload: Map<String, Value>,
    },
    /// Somebody is asked for approval while the Task goes on.
    Pose {
        /// The request's id.
        request: PermissionId,
        /// The facts, as a required approval tells them.
        payload: Map<String, Value>,
    },
    /// Nobody will answer a request any more.
    Withdraw {
        /// The request.
        request: PermissionId,
        /// Why.
        reason: String,
    },
    /// The Task is stopped by what it was told.
    Cancel {
        /// The ids of what its end leaves.
        ids: EndIds,
        /// Why.
        reason: String,
    },
    /// A recovered Task waits on for the same request.
    WaitAgain,
    /// A piece of text that a model call has streamed.
    Delta {
        /// The model call.
        effect_key: String,
        /// Its number among the pieces of this call, from 0.
        index: u64,
        /// The text.
        text: String,
    },
    /// The workflow stands at a boundary from which it can be restarted.
    Checkpoint {
        /// Its number in this Task, from 1.
        number: u64,
        /// The state, in canonical data.
        state: Value,
    },
    /// The agent says something.
    Say(NewMessage),
    /// The workflow leaves an Artifact.
    Produce(Product),
    /// A replay begins.
    StartReplay(payload::ReplayStarted),
    /// A replay repeats an event of its source, or emits one that the source does not have.
    Replay(Box<ReplayedEvent>),
    /// A replay ends.
    EndReplay(Box<EndReplay>),
    /// The Task ends well.
    Complete {
        /// The ids of what its end leaves.
        ids: EndIds,
        /// One line for people.
        summary: String,
        /// Messages that make up the result.
        messages: Vec<MessageId>,
    },
    /// The Task ends badly.
    Fail {
        /// The ids of what its end leaves.
        ids: EndIds,
        /// A stable word for programs.
        code: String,
        /// What went wrong, for people.
        message: String,
        /// More facts.
        details: Map<String, Value>,
    },
}

/// An Artifact that a workflow leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Product {
    /// Its id.
    pub id: ArtifactId,
    /// What it is.
    pub kind: ArtifactKind,
    /// Its media type.
    pub mime_type: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// See [`Move::Replay`].
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayedEvent {
    /// What happened.
    pub kind: Kind,
    /// Who caused the event that it repeats.
    pub actor: Option<String>,
    /// The Artifact that it re-creates; everything else happens to the replay itself.
    pub artifact: Option<ArtifactId>,
    /// New content of that Artifact.
    pub content: Option<Vec<u8>>,
    /// The facts.
    pub payload: Map<String, Value>,
    /// Which event of the source it repeats.
    pub mark: ReplayMark,
}

/// See [`Move::EndReplay`].
#[derive(Debug, Clone, PartialEq)]
pub struct EndReplay {
    /// The ids of what its end leaves.
    pub ids: EndIds,
    /// How the Task ends.
    pub status: Status,
    /// True when the replay did what it was asked for, whatever the Task's end.
    pub completed: bool,
    /// The payload of `replay.completed` or `replay.failed`.
    pub payload: payload::ReplayEnded,
    /// One line for people.
    pub summary: String,
    /// The Messages of the result, whole: they are in no transcript.
    pub messages: Value,
    /// Why the Task failed, null otherwise.
    pub failure: Value,
    /// The Receipt, unsigned; none when the source cannot be read, so that it is that of a Task like any other.
    pub receipt: Option<Arc<[u8]>>,
}

/// The intent to perform an effect.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectIntent {
    /// Its stable key.
    pub key: String,
    /// The record kind.
    pub kind: String,
    /// Digest of the canonical request.
    pub request_sha256: Digest,
    /// True when performing it twice does no harm.
    pub repeatable: bool,
    /// The digests of a model request's messages, after those of an earlier request.
    pub parts: Option<RequestParts>,
}

/// The messages of a model request by their digests. A transcript is not repeated every turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestParts {
    /// The effect whose whole list comes first.
    pub base: Option<String>,
    /// What comes after it.
    pub added: Vec<Digest>,
}

/// What a model call used. Receipts and budgets are computed from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelUse {
    /// Who serves the model.
    pub provider: String,
    /// Its name there.
    pub model: String,
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// The price in millionths; none when it is not known.
    pub cost_micros: Option<u64>,
    /// The price table that was used.
    pub price_table: Option<String>,
    /// True when the provider told counts that cannot be counts. The tokens here are estimates then, for limits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub usage_unknown: bool,
}

/// What an effect was seen to do outside, by whoever performed it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Files that changed in the declared working folder.
    pub fs_writes: Vec<FileChange>,
    /// Hosts that our own clients contacted.
    pub network_egress: Vec<Egress>,
    /// Lists that cannot be told, such as `fs_writes`: their being empty says nothing.
    pub not_observed: Vec<String>,
    /// The limits that a program was confined to; none for what is no program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Value>,
}

/// One changed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// The path inside the declared working folder.
    pub path: String,
    /// `create`, `modify` or `delete`.
    pub operation: String,
    /// Digest before; none when there was no such file, or when it held a secret and nothing else.
    pub before_sha256: Option<Digest>,
    /// Digest after; none when there is no such file, or when it holds a secret and nothing else.
    pub after_sha256: Option<Digest>,
}

/// One contacted host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Egress {
    /// The host name, never a whole address.
    pub destination: String,
    /// What for, such as `model` or `mcp`.
    pub purpose: String,
    /// How much was sent, if known.
    pub bytes_sent: Option<u64>,
}

/// The result of an effect.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectResult {
    /// Its stable key.
    pub key: String,
    /// The record kind.
    pub kind: String,
    /// True for `ok`, false for `error`.
    pub ok: bool,
    /// What it returned, or the error.
    pub value: Value,
    /// The provider's own id of the call.
    pub provider_request_id: Option<String>,
    /// For a model call: what was used.
    pub model: Option<ModelUse>,
    /// What it was seen to do outside.
    pub observed: Option<Box<Observed>>,
    /// The last interrupt that this result tells the workflow of, when it was dropped for one.
    pub interrupted_through: Option<Position>,
}
