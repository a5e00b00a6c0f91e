//! The table of event kinds: one row says everything that is decided by the kind of an event alone.
//!
//! # Adding a kind
//!
//! 1. Add a row to the table below: name, word, payload (a type of `payload.rs`) and a value for each column. Columns are
//!    plain enums; whoever uses one matches all of it, so a new *value* does not compile until each reader has decided.
//! 2. Add an arm to `apply` (what it does to its document), which does not compile without it.
//! 3. Draft it in `decide/…`.
//!
//! Words are stored and stay for good. A kind that this program does not know stops whoever folds the log: it may
//! change its document.

use std::fmt;

use canon::{Digest, Map, Value};
use serde::Deserialize as _;

use crate::{Event, payload};

macro_rules! kinds {
    ($($name:ident $text:literal $payload:ident $replay:ident $diff:ident $receipt:ident $recovery:ident $retention:ident $blob:ident $link:ident;)*) => {
        /// What an event says happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $(#[doc = concat!("`", $text, "`")] $name,)*
        }

        impl Kind {
            /// Every kind this log can hold, in the order of the protocol's list.
            pub const ALL: &[Kind] = &[$(Kind::$name,)*];

            /// Returns the protocol's word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Kind::$name => $text,)*
                }
            }

            /// Reads the protocol's word.
            ///
            /// # Errors
            /// The word is not one of ours: the log was written by a newer program.
            pub fn parse(text: &str) -> Result<Self, UnknownKind> {
                match text {
                    $($text => Ok(Kind::$name),)*
                    other => Err(UnknownKind(other.chars().take(80).collect())),
                }
            }

            /// Returns how a replay treats events of this kind.
            pub const fn in_replay(self) -> InReplay {
                match self {
                    $(Kind::$name => InReplay::$replay,)*
                }
            }

            /// Returns what a comparison of two runs looks at.
            pub const fn in_diff(self) -> InDiff {
                match self {
                    $(Kind::$name => InDiff::$diff,)*
                }
            }

            /// Returns what of such an event enters its Task's receipt.
            pub const fn in_receipt(self) -> InReceipt {
                match self {
                    $(Kind::$name => InReceipt::$receipt,)*
                }
            }

            /// Returns what a worker that takes over a Task needs of such an event.
            pub const fn in_recovery(self) -> InRecovery {
                match self {
                    $(Kind::$name => InRecovery::$recovery,)*
                }
            }

            /// Returns what pruning leaves of such an event.
            pub const fn retention(self) -> Retention {
                match self {
                    $(Kind::$name => Retention::$retention,)*
                }
            }

            /// Returns which blob such an event names, besides the content that was moved out of its payload.
            pub const fn named_blob(self) -> NamedBlob {
                match self {
                    $(Kind::$name => NamedBlob::$blob,)*
                }
            }

            /// Returns what such an event belongs to, besides the Workspace, Session and Task of its envelope.
            pub const fn further_link(self) -> FurtherLink {
                match self {
                    $(Kind::$name => FurtherLink::$link,)*
                }
            }
        }

        /// What an event says, typed by its kind.
        #[derive(Debug, Clone, PartialEq)]
        pub(crate) enum Payload {
            $($name(payload::$payload),)*
        }

        impl Payload {
            /// Returns the kind whose payload this is.
            pub(crate) const fn kind(&self) -> Kind {
                match self {
                    $(Payload::$name(_) => Kind::$name,)*
                }
            }

            /// Reads the payload of an event.
            pub(crate) fn read(kind: Kind, members: &Map<String, Value>) -> Result<Self, serde_json::Error> {
                match kind {
                    $(Kind::$name => payload::$payload::deserialize(members).map(Payload::$name),)*
                }
            }

            /// Returns the members to write.
            pub(crate) fn into_members(self) -> Map<String, Value> {
                match self {
                    $(Payload::$name(payload) => payload.into_members(),)*
                }
            }
        }
    };
}

/// How a replay treats an event of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InReplay {
    /// Belongs to the Task's own life: reported, not repeated.
    Lifecycle,
    /// Caused by the workflow: must come again.
    Caused,
    /// Caused by the workflow if the agent is its actor, from outside otherwise.
    CausedByAgent,
    /// A piece of a model call's text.
    Delta,
    /// From outside: repeated as it is.
    Passive,
    /// From outside: how somebody decided. Left out where the request decides otherwise.
    Decision,
    /// Caused by the workflow if the agent is its actor, otherwise a decision.
    CausedOrDecided,
}

/// What a comparison of two runs looks at. Ids, times and places never count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InDiff {
    /// That it happened, and nothing more.
    Occurrence,
    /// The whole payload.
    Payload,
    /// The kind of effect and the digest of its request.
    Request,
    /// The kind of effect, its outcome and the digest of its value.
    Result,
    /// Role and public text.
    Message,
    /// Kind and media type, and for the agent's own the digest.
    Artifact,
    /// The digest of the bytes.
    Content,
    /// Nothing, unless its state was replaced: the state follows from answers, which are compared.
    Checkpoint,
    /// What the run was given.
    Submission,
    /// The workflow's version.
    Start,
    /// Agent, action and decision: the record itself is signed and chained, so no two are alike.
    Decision,
    /// Status, summary and failure.
    Outcome,
    /// Nothing, not even that it happened.
    Ignored,
}

/// What of an event enters the receipt of its Task. The digest of the log covers every event in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InReceipt {
    /// Nothing but its place in the digest of the log.
    Digest,
    /// A material, a model or tool call, side effects.
    Effect,
    /// Name and arguments of a tool call.
    ToolUse,
    /// A decision by a person.
    Answer,
    /// A request that ended without an answer.
    Withdrawal,
    /// The trust record of a decision.
    Trust,
    /// An Artifact.
    Artifact,
    /// The bytes of an Artifact.
    Content,
    /// Why the Task failed.
    Failure,
    /// What contracts decided about tool calls.
    Governance,
}

/// What a worker that takes over a Task needs of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InRecovery {
    /// Nothing.
    Unneeded,
    /// The version of the workflow.
    Workflow,
    /// That an effect was about to be performed.
    Intent,
    /// The result of an effect.
    Result,
}

/// What pruning leaves of an event of an old Task, and which digests in it keep blobs alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// A header. Its document stays as it is stored, because the fold needs the payload.
    Header,
    /// A header that still folds: the document only counts it.
    Counted,
    /// All of it: chains of other Tasks run through it. What it names stays.
    Whole,
    /// All of it. It repeats digests of what it proves and keeps only its own bytes.
    Receipt,
    /// A verdict on a receipt: it repeats digests and keeps nothing.
    Verdict,
}

/// Which blob an event names in its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedBlob {
    /// None.
    None,
    /// The bytes of an Artifact, once they are stored.
    Content,
    /// The state of a checkpoint.
    State,
    /// The bytes of a receipt.
    Receipt,
    /// The request of a replay.
    Request,
    /// The plan of a Session's replay.
    Plan,
    /// The bundle of a Task from another log.
    Bundle,
    /// What lies beside an entry of a memory field: its text, its vector, the answer kept for whoever asks again.
    Entry,
}

impl NamedBlob {
    /// Returns the digest that an event states for this blob; none when its payload came with the request for a replay,
    /// because what a caller says names nothing.
    pub fn digest(self, event: &Event) -> Option<Digest> {
        match event.is_substituted() {
            true => None,
            false => self.stated_in(&event.payload),
        }
    }

    /// Returns the digests of all blobs that an event names so, where it can be several.
    pub fn digests(self, event: &Event) -> Vec<Digest> {
        if self != NamedBlob::Entry || event.is_substituted() {
            return self.digest(event).into_iter().collect();
        }
        let payload = &event.payload;
        let inside = |of: &str, name: &str| payload.get(of)?.get(name);
        let stated = [
            inside("data", "text_sha256"),
            payload.get("vector_sha256"),
            inside("message", "answer_sha256"),
        ];
        let stated = stated.into_iter().flatten().filter_map(Value::as_str);
        stated.filter_map(|text| Digest::parse(text).ok()).collect()
    }

    /// Returns the digests of blobs that an event says were erased: what a purge takes out of a memory field.
    pub fn erased(self, event: &Event) -> Vec<Digest> {
        if self != NamedBlob::Entry || event.is_substituted() {
            return Vec::new();
        }
        let erased = event
            .payload
            .get("data")
            .and_then(|data| data.get("erased"));
        let erased = erased.and_then(Value::as_array).into_iter().flatten();
        let erased = erased.filter_map(Value::as_str);
        erased.filter_map(|text| Digest::parse(text).ok()).collect()
    }

    /// Returns the digest that a payload states for this blob, whoever wrote it.
    pub fn stated_in(self, payload: &Map<String, Value>) -> Option<Digest> {
        let member = |name: &str| payload.get(name);
        let stated = match self {
            NamedBlob::None | NamedBlob::Entry => None,
            // Of what is only registered, a log holds no bytes.
            NamedBlob::Content => {
                member("sha256").filter(|_| member("bytes").is_some_and(Value::is_u64))
            }
            NamedBlob::State => member("state_sha256"),
            NamedBlob::Receipt => member("content_sha256"),
            NamedBlob::Request => member("replay").and_then(|of| of.get("request_sha256")),
            NamedBlob::Plan => member("replay_plan_sha256"),
            NamedBlob::Bundle => member("bundle_sha256"),
        };
        Digest::parse(stated?.as_str()?).ok()
    }
}

/// What an event belongs to besides what its envelope names. It is listed there too, and so is the resource that it
/// creates. Nothing is stored in the event for it: links follow from the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FurtherLink {
    /// Nothing.
    None,
    /// The Task that a replay repeats.
    ReplaySource,
    /// The resource that it happened to, so that all that happened to it is a list.
    Itself,
}

impl FurtherLink {
    /// Returns the ids that an event names; none of a header, whose payload is gone, and none that a caller put there.
    pub fn ids(self, event: &Event) -> impl Iterator<Item = &str> {
        let payload = (!event.is_substituted()).then_some(&event.payload);
        let id = payload.and_then(|payload| match self {
            FurtherLink::None => None,
            FurtherLink::ReplaySource => payload.get("replay")?.get("source_task_id")?.as_str(),
            FurtherLink::Itself => Some(&*event.resource.id),
        });
        id.into_iter()
    }
}

/// An event kind that this program does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown event kind `{0}`")]
pub struct UnknownKind(String);

kinds! {
//  kind                       word                           payload            replay           diff        receipt     recovery  retention  blob     link
    UserMessage                "user.message"                 Message            Passive          Message     Digest      Unneeded  Header     None     None;
    UserInputSubmitted         "user.input_submitted"         Answered           Decision         Payload     Answer      Unneeded  Header     None     None;
    UserToolConfirmation       "user.tool_confirmation"       Answered           Decision         Payload     Answer      Unneeded  Header     None     None;
    UserCancelRequested        "user.cancel_requested"        CancelRequested    Passive          Payload     Digest      Unneeded  Header     None     None;
    AgentMessage               "agent.message"                Message            CausedByAgent    Message     Digest      Unneeded  Header     None     None;
    AgentToolUse               "agent.tool_use"               ToolUse            Caused           Payload     ToolUse     Unneeded  Header     None     None;
    AgentToolResult            "agent.tool_result"            ToolResult         Caused           Payload     Digest      Unneeded  Header     None     None;
    AgentMemoryRead            "agent.memory_read"            MemoryRead         Caused           Payload     Digest      Unneeded  Header     None     None;
    TaskSubmitted              "task.submitted"               TaskSubmitted      Lifecycle        Submission  Digest      Unneeded  Header     Request  ReplaySource;
    TaskStarted                "task.started"                 TaskStarted        Lifecycle        Start       Digest      Workflow  Header     None     None;
    TaskInputRequired          "task.input_required"          TaskWaits          Lifecycle        Occurrence  Digest      Unneeded  Header     None     None;
    TaskAuthRequired           "task.auth_required"           TaskWaits          Lifecycle        Occurrence  Digest      Unneeded  Header     None     None;
    TaskCompleted              "task.completed"               TaskEnded          Lifecycle        Occurrence  Digest      Unneeded  Header     None     None;
    TaskFailed                 "task.failed"                  TaskEnded          Lifecycle        Occurrence  Failure     Unneeded  Header     None     None;
    TaskCanceled               "task.canceled"                TaskEnded          Lifecycle        Occurrence  Digest      Unneeded  Header     None     None;
    TaskStatusChanged          "task.status_changed"          StatusChanged      Lifecycle        Occurrence  Digest      Unneeded  Header     None     None;
    SessionCreated             "session.created"              SessionCreated     Passive          Payload     Digest      Unneeded  Header     Plan     None;
    SessionClosed              "session.closed"               SessionClosed      Passive          Payload     Digest      Unneeded  Header     None     None;
    SessionMessageAppended     "session.message_appended"     MessageAppended    CausedByAgent    Payload     Digest      Unneeded  Counted    None     None;
    SessionTruncated           "session.truncated"            SessionTruncated   Passive          Payload     Digest      Unneeded  Header     None     None;
    SessionThreadForked        "session.thread_forked"        SessionForked      Passive          Payload     Digest      Unneeded  Header     None     None;
    SessionReplayed            "session.replayed"             SessionReplayed    Passive          Payload     Digest      Unneeded  Header     None     None;
    BranchCreated              "branch.created"               BranchCreated      Passive          Payload     Digest      Unneeded  Header     None     None;
    ArtifactCreated            "artifact.created"             ArtifactCreated    CausedByAgent    Artifact    Artifact    Unneeded  Header     Content  None;
    ArtifactUpdated            "artifact.updated"             ArtifactUpdated    Passive          Content     Content     Unneeded  Header     Content  None;
    ToolApprovalRequired       "tool.approval_required"       Asked              Caused           Payload     Digest      Unneeded  Header     None     None;
    ToolApproved               "tool.approved"                Decided            Decision         Payload     Digest      Unneeded  Header     None     None;
    ToolDenied                 "tool.denied"                  Decided            CausedOrDecided  Payload     Digest      Unneeded  Header     None     None;
    ToolFailed                 "tool.failed"                  ToolResult         Caused           Payload     Digest      Unneeded  Header     None     None;
    ReceiptIssued              "receipt.issued"               Receipt            Lifecycle        Occurrence  Digest      Unneeded  Receipt    Receipt  None;
    ReceiptVerified            "receipt.verified"             Verified           Lifecycle        Occurrence  Digest      Unneeded  Verdict    None     None;
    ReceiptVerificationFailed  "receipt.verification_failed"  Verified           Lifecycle        Occurrence  Digest      Unneeded  Verdict    None     None;
    ReplayStarted              "replay.started"               ReplayStarted      Lifecycle        Occurrence  Digest      Unneeded  Header     None     None;
    ReplayEventReplayed        "replay.event_replayed"        EventReplayed      Lifecycle        Occurrence  Digest      Unneeded  Header     None     None;
    ReplayCompleted            "replay.completed"             ReplayEnded        Lifecycle        Occurrence  Digest      Unneeded  Header     None     None;
    ReplayFailed               "replay.failed"                ReplayEnded        Lifecycle        Occurrence  Digest      Unneeded  Header     None     None;
    WorkspaceCreated           "vendor.workspace_created"     WorkspaceCreated   Passive          Payload     Digest      Unneeded  Header     None     None;
    WorkspaceUpdated           "vendor.workspace_updated"     WorkspaceUpdated   Passive          Payload     Digest      Unneeded  Header     None     None;
    SessionUpdated             "vendor.session_updated"       SessionUpdated     Passive          Payload     Digest      Unneeded  Header     None     None;
    MessageCopied              "vendor.message_copied"        MessageCopied      Passive          Payload     Digest      Unneeded  Header     None     None;
    VaultCreated               "vendor.vault_created"         VaultCreated       Passive          Payload     Digest      Unneeded  Header     None     None;
    InputRequested             "vendor.input_requested"       Asked              Caused           Payload     Digest      Unneeded  Header     None     None;
    RequestWithdrawn           "vendor.request_withdrawn"     Withdrawn          Passive          Payload     Withdrawal  Unneeded  Header     None     None;
    OutcomeRecorded            "vendor.outcome_recorded"      OutcomeRecorded    Passive          Outcome     Digest      Unneeded  Header     None     None;
    EffectRequested            "vendor.effect_requested"      EffectRequested    Caused           Request     Digest      Intent    Header     None     None;
    EffectRecorded             "vendor.effect_recorded"       EffectRecorded     Caused           Result      Effect      Result    Header     None     None;
    MessageDelta               "vendor.message_delta"         MessageDelta       Delta            Ignored     Digest      Unneeded  Header     None     None;
    CheckpointCreated          "vendor.checkpoint_created"    CheckpointCreated  Caused           Checkpoint  Digest      Unneeded  Header     State    None;
    ReceiptChained             "vendor.receipt_chained"       ReceiptChained     Passive          Payload     Digest      Unneeded  Header     None     None;
    TrustRecorded              "vendor.trust_recorded"        TrustRecorded      Decision         Decision    Trust       Unneeded  Whole      None     None;
    TreeHeadSealed             "vendor.tree_head_sealed"      TreeHeadSealed     Passive          Payload     Digest      Unneeded  Header     None     None;
    TreeHeadCosigned           "vendor.tree_head_cosigned"    TreeHeadCosigned   Passive          Payload     Digest      Unneeded  Header     None     None;
    TaskImported               "vendor.task_imported"         TaskImported       Passive          Payload     Digest      Unneeded  Header     Bundle   None;
    ReceiptImported            "vendor.receipt_imported"      Receipt            Passive          Payload     Digest      Unneeded  Receipt    Receipt  None;
    ContractDecided            "vendor.contract_decided"      ContractDecided    Caused           Payload     Governance  Unneeded  Header     None     None;
    PersonaCreated             "vendor.persona_created"       Persona            Passive          Payload     Digest      Unneeded  Header     None     None;
    PersonaUpdated             "vendor.persona_updated"       Persona            Passive          Payload     Digest      Unneeded  Header     None     None;
    KeyCreated                 "vendor.key_created"           KeyCreated         Passive          Payload     Digest      Unneeded  Header     None     None;
    KeyGranted                 "vendor.key_granted"           KeyGranted         Passive          Payload     Digest      Unneeded  Header     None     None;
    KeyRevoked                 "vendor.key_revoked"           KeyRevoked         Passive          Payload     Digest      Unneeded  Header     None     None;
    EventLost                  "vendor.event_lost"            EventLost          Passive          Ignored     Digest      Unneeded  Header     None     None;
    FieldEntry                 "vendor.field_entry"           FieldEntry         Passive          Payload     Digest      Unneeded  Whole      Entry    Itself;
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ap_tax_02_every_word_reads_back_and_additions_carry_the_prefix() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.as_str()), Ok(*kind));
            let group = kind.as_str().split('.').next().unwrap();
            let known = [
                "user", "agent", "task", "session", "branch", "artifact", "tool", "receipt",
                "replay", "vendor",
            ];
            assert!(known.contains(&group), "{kind}");
        }
        assert!(Kind::parse("task.vanished").is_err());
    }

    /// A replay reports the life of a Task, of receipts and of replays instead of repeating it.
    #[test]
    fn groups_of_the_protocol_that_are_not_repeated_are_lifecycle() {
        for kind in Kind::ALL {
            let group = kind.as_str().split('.').next().unwrap();
            let is_lifecycle = ["task", "receipt", "replay"].contains(&group);
            assert_eq!(
                kind.in_replay() == InReplay::Lifecycle,
                is_lifecycle,
                "{kind}"
            );
        }
    }
}
