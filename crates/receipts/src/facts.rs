//! What a finished task leaves behind, as plain data: the input from which a receipt is built.
//!
//! Whoever fills these needs to know nothing of the receipt format. Money is counted in millionths,
//! times are RFC 3339 texts, lists are in event order.

use canon::{Digest, Map, Value};

/// Declares a list of words with the text of each.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = concat!("Written as `", $text, "`.")] $variant,)+
        }

        impl $name {
            /// Returns the word as it is written.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}
pub(crate) use words;

words! {
    /// How much the agent may do by itself.
    Tier {
        Shadow = "shadow",
        Suggest = "suggest",
        ActWithApproval = "act_with_approval",
        ActAuto = "act_auto",
    }
}

words! {
    /// How a permission request ended.
    Decision {
        Approved = "approved",
        Denied = "denied",
        Canceled = "canceled",
        Timeout = "timeout",
    }
}

words! {
    /// What was done to a file.
    FileOperation {
        Create = "create",
        Modify = "modify",
        Delete = "delete",
        Rename = "rename",
    }
}

words! {
    /// How a tool call ended.
    ToolStatus {
        Succeeded = "succeeded",
        Failed = "failed",
        Canceled = "canceled",
    }
}

words! {
    /// How a handoff to another agent stands.
    HandoffStatus {
        Accepted = "accepted",
        Rejected = "rejected",
        Failed = "failed",
        Completed = "completed",
    }
}

words! {
    /// What a piece of replay material is.
    MaterialKind {
        LlmProviderResponse = "llm_provider_response",
        McpToolReturn = "mcp_tool_return",
        EventLog = "event_log",
        Artifact = "artifact",
        HostFact = "host_fact",
    }
}

/// Everything that goes into the receipt of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskFacts {
    /// The id of the receipt.
    pub receipt_id: String,
    /// Who issues it.
    pub issuer: Issuer,
    /// The time stamp of the terminal commit.
    pub issued_at: String,
    /// What it belongs to.
    pub identifiers: Identifiers,
    /// When it ran and how it ended.
    pub lifecycle: Lifecycle,
    /// The permission requests of the task.
    pub approvals: Vec<Approval>,
    /// The tiers at start and end.
    pub trust: Trust,
    /// What it was allowed to consume; none if no limit was set.
    pub limit: Option<BudgetLimit>,
    /// What it consumed.
    pub consumed: Budget,
    /// What a replay needs.
    pub replay_input: ReplayInput,
    /// The model calls; route and cost are derived from them.
    pub model_calls: Vec<ModelCall>,
    /// Models that were weighed and not used.
    pub alternatives: Vec<ModelRef>,
    /// Why the model was chosen; not used if no model was called.
    pub route_policy_reason: String,
    /// The currency of all prices, three capital letters.
    pub currency: String,
    /// What was observed outside.
    pub side_effects: SideEffects,
    /// The artifacts of the outcome, in creation order.
    pub final_artifacts: Vec<FinalArtifact>,
    /// What was left out, and why.
    pub redactions: Vec<Redaction>,
    /// The hash of the predecessor in the session's chain.
    pub previous_receipt_hash: Option<Digest>,
    /// The root of the newest sealed batch, if the profile embeds it.
    pub merkle_root: Option<Digest>,
    /// Members set by the operator.
    pub metadata: Map<String, Value>,
}

/// Everything that goes into the receipt of a replay.
///
/// All of it is a function of the source log, the source receipt and the request, so that every
/// server gives the same bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayFacts {
    /// The id of the receipt; see [`crate::replay_receipt_id`].
    pub receipt_id: String,
    /// Who issues it; its `public_key_id` is not written.
    pub issuer: Issuer,
    /// The time of issue of the source receipt, with overrides applied.
    pub issued_at: String,
    /// Those of the source, with the id of the replay task.
    pub identifiers: Identifiers,
    /// The times of the source with overrides applied, and the end of the replay.
    pub lifecycle: Lifecycle,
    /// The tiers of the source receipt.
    pub trust: Trust,
    /// What the replay used. The order of the materials is set by the builder.
    pub replay_input: ReplayInput,
    /// What the replay performed itself; nothing, unless it went on live.
    pub live: LivePart,
    /// The chosen model of the source; none if it called no model.
    pub chosen_model: Option<ModelRef>,
    /// The currency of the source.
    pub currency: String,
    /// The artifacts made again.
    pub final_artifacts: Vec<FinalArtifact>,
    /// The overrides that were applied; the builder orders and names them.
    pub applied: Vec<Applied>,
    /// What was left out, and why.
    pub redactions: Vec<Redaction>,
    /// The hash of the source receipt, if there is one.
    pub source_receipt_hash: Option<Digest>,
    /// The member `metadata.source`: `replay`, or the text of a conformance run.
    pub source: String,
    /// The task that was replayed.
    pub source_task_id: String,
    /// The mode of the replay.
    pub replay_mode: String,
}

/// What a replay performed itself, from where it went on beyond its record.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LivePart {
    /// The model calls, in order.
    pub model_calls: Vec<ModelCall>,
    /// What it used up.
    pub consumed: Budget,
    /// What it was seen to do outside.
    pub side_effects: SideEffects,
}

/// Who issues a receipt. The kind is always `harness`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    /// The configured id.
    pub id: String,
    /// The configured name.
    pub name: Option<String>,
    /// The protocol version, never a build number: that would make bytes differ between builds.
    pub version: String,
    /// The key that signs at this time.
    pub public_key_id: Option<String>,
}

/// What a receipt belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identifiers {
    /// The tenant.
    pub tenant_id: Option<String>,
    /// The persona as `<id>@<version>`.
    pub persona_ref: Option<String>,
    /// The workspace.
    pub workspace_ref: String,
    /// The session.
    pub session_id: String,
    /// The task.
    pub task_id: String,
    /// The branch.
    pub branch_id: Option<String>,
    /// The trace.
    pub trace_id: Option<String>,
}

/// When a task ran and how it ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Lifecycle {
    /// When it was accepted.
    pub created_at: Option<String>,
    /// When it started; none if it never did.
    pub started_at: Option<String>,
    /// The time of the terminal event, however it ended.
    pub completed_at: String,
    /// How it ended.
    pub end: TaskEnd,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskEnd {
    /// It did what it was asked.
    Succeeded,
    /// It did not.
    Failed(Failure),
    /// Someone stopped it.
    Canceled,
}

/// Why a task failed.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// A stable code.
    pub code: String,
    /// A message for people.
    pub message: String,
    /// What else is known.
    pub details: Option<Map<String, Value>>,
}

/// One permission request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// The id of the request.
    pub approval_id: Option<String>,
    /// Who decided.
    pub actor: String,
    /// What about.
    pub action: String,
    /// How.
    pub decision: Decision,
    /// When.
    pub decided_at: String,
    /// How many had to agree and how many did.
    pub quorum: Option<Quorum>,
    /// The entry hash of the trust record.
    pub evidence_hash: Option<Digest>,
}

/// How many had to agree and how many did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quorum {
    /// How many had to.
    pub required: u64,
    /// How many did.
    pub satisfied: u64,
}

/// The tiers at start and at the terminal commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// At start.
    pub start_tier: Tier,
    /// At the end.
    pub end_tier: Tier,
    /// The policy that set them.
    pub policy_ref: Option<String>,
}

/// An amount of money in millionths of the currency.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);

/// What a task consumed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// Money.
    pub usd: Micros,
    /// Tokens read by models.
    pub input_tokens: u64,
    /// Tokens written by models.
    pub output_tokens: u64,
    /// Tool calls.
    pub tool_calls: u64,
    /// Time from start to end.
    pub wall_time_ms: u64,
}

/// What a task was allowed to consume; none means no limit of that kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BudgetLimit {
    /// Money.
    pub usd: Option<Micros>,
    /// Tokens read by models.
    pub input_tokens: Option<u64>,
    /// Tokens written by models.
    pub output_tokens: Option<u64>,
    /// Tool calls.
    pub tool_calls: Option<u64>,
    /// Time from start to end.
    pub wall_time_ms: Option<u64>,
}

/// What a replay needs, and what it can promise with it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayInput {
    /// What can be promised.
    pub determinism: Determinism,
    /// The sealed event log, always the first material.
    pub event_log: EventLog,
    /// One per recorded effect that is a material.
    pub materials: Vec<Material>,
}

/// What a replay can promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Determinism {
    /// Every effect is recorded and the workflow is deterministic.
    ByteDeterministic,
    /// All observed events are recorded, but the executor is opaque.
    BestEffort,
    /// Recording was off or material was dropped, for this reason.
    Unavailable(String),
}

/// The sealed event log of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventLog {
    /// `event_log_<task id>`.
    pub id: String,
    /// Where it can be read.
    pub uri: String,
    /// See [`crate::event_log_digest`].
    pub sha256: Digest,
}

/// One piece of replay material.
#[derive(Debug, Clone, PartialEq)]
pub struct Material {
    /// What it is.
    pub kind: MaterialKind,
    /// The effect key.
    pub id: String,
    /// The media type, if known.
    pub content_type: Option<String>,
    /// Where the content is.
    pub content: MaterialContent,
}

/// Where the content of a material is.
#[derive(Debug, Clone, PartialEq)]
pub enum MaterialContent {
    /// In an artifact.
    Stored {
        /// Where it can be read.
        uri: String,
        /// Its digest.
        sha256: Digest,
    },
    /// In the receipt itself; the builder computes the digest.
    Inline(Vec<u8>),
    /// In an override of a replay request, under the id of the material.
    Overridden {
        /// Its digest.
        sha256: Digest,
    },
}

/// One call of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCall {
    /// Which model.
    pub model: ModelRef,
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// The price; none if it is not known, which the receipt then says.
    pub cost: Option<Micros>,
    /// The version of the price table that was used.
    pub price_table: Option<String>,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRef {
    /// Who serves it.
    pub provider: String,
    /// Its name there.
    pub model: String,
    /// Its version, if known.
    pub version: Option<String>,
    /// Why it was chosen or not.
    pub reason: Option<String>,
}

/// What was observed outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SideEffects {
    /// Changed files.
    pub fs_writes: Vec<FileWrite>,
    /// Contacted hosts.
    pub network_egress: Vec<NetworkEgress>,
    /// Tool calls.
    pub tool_calls: Vec<ToolCall>,
    /// Handoffs to other agents.
    pub handoffs: Vec<Handoff>,
}

/// One changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWrite {
    /// The path relative to the workspace.
    pub path: String,
    /// What was done.
    pub operation: FileOperation,
    /// The digest before; none if unknown or not to be told.
    pub before_sha256: Option<Digest>,
    /// The digest after; none if unknown or not to be told.
    pub after_sha256: Option<Digest>,
}

/// One contacted host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkEgress {
    /// The host name, never a whole address.
    pub destination: String,
    /// What for.
    pub purpose: String,
    /// How much was sent, if known.
    pub bytes_sent: Option<u64>,
}

/// One tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The name of the tool.
    pub tool: String,
    /// The id of the call.
    pub call_id: String,
    /// How it ended.
    pub status: ToolStatus,
    /// The digest of the arguments.
    pub input_hash: Option<Digest>,
    /// The digest of the result.
    pub output_hash: Option<Digest>,
    /// The limits that its program was confined to.
    pub sandbox: Option<Value>,
}

/// One handoff to another agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handoff {
    /// To whom.
    pub target_agent: String,
    /// The task there.
    pub task_id: String,
    /// How it stands.
    pub status: HandoffStatus,
    /// The receipt that the other agent gave.
    pub receipt_id: Option<String>,
}

/// One artifact of the outcome. Its address is `artifact://` and its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalArtifact {
    /// The id.
    pub artifact_id: String,
    /// The kind.
    pub kind: String,
    /// The digest of the bytes.
    pub sha256: Option<Digest>,
}

/// One omission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redaction {
    /// A JSON Pointer into the receipt; it may name a member that is absent.
    pub field: String,
    /// Why it was left out.
    pub reason: String,
    /// A digest of what was left out; never of a secret or of anything that can be guessed.
    pub proof_hash: Option<Digest>,
}

words! {
    /// What an override did.
    DeltaOperation {
        Add = "add",
        Replace = "replace",
        Remove = "remove",
    }
}

/// One override that was applied in a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The override key; it also decides the path of the delta.
    pub key: String,
    /// What it did.
    pub operation: DeltaOperation,
    /// The event that it stands for.
    pub event_id: Option<String>,
    /// The digest of the recorded value; none if there was none. Not written for secrets.
    pub before_sha256: Option<Digest>,
    /// The digest of the new value; none if it was removed. Not written for secrets.
    pub after_sha256: Option<Digest>,
    /// The artifact that the value came from.
    pub artifact_id: Option<String>,
    /// Why.
    pub reason: String,
}
