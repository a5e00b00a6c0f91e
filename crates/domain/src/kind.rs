//! The kinds of events: the protocol's list and our `vendor.` additions.
//!
//! A kind is essential when it changes the document of its resource, otherwise an annotation: a reader
//! passes over an annotation it does not know and stops at an essential kind it does not know.

use std::fmt;

macro_rules! kinds {
    ($($name:ident = $text:literal,)*) => {
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
            /// The word is none of ours: the log was written by a newer program.
            pub fn parse(text: &str) -> Result<Self, UnknownKind> {
                match text {
                    $($text => Ok(Kind::$name),)*
                    other => Err(UnknownKind(other.chars().take(80).collect())),
                }
            }
        }
    };
}

/// An event kind that this program does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown event kind `{0}`")]
pub struct UnknownKind(String);

kinds! {
    UserMessage = "user.message",
    UserInputSubmitted = "user.input_submitted",
    UserToolConfirmation = "user.tool_confirmation",
    UserCancelRequested = "user.cancel_requested",
    AgentMessage = "agent.message",
    AgentToolUse = "agent.tool_use",
    AgentToolResult = "agent.tool_result",
    AgentMemoryRead = "agent.memory_read",
    TaskSubmitted = "task.submitted",
    TaskStarted = "task.started",
    TaskInputRequired = "task.input_required",
    TaskAuthRequired = "task.auth_required",
    TaskCompleted = "task.completed",
    TaskFailed = "task.failed",
    TaskCanceled = "task.canceled",
    TaskStatusChanged = "task.status_changed",
    SessionCreated = "session.created",
    SessionClosed = "session.closed",
    SessionMessageAppended = "session.message_appended",
    SessionTruncated = "session.truncated",
    SessionThreadForked = "session.thread_forked",
    SessionReplayed = "session.replayed",
    BranchCreated = "branch.created",
    ArtifactCreated = "artifact.created",
    ArtifactUpdated = "artifact.updated",
    ToolApprovalRequired = "tool.approval_required",
    ToolApproved = "tool.approved",
    ToolDenied = "tool.denied",
    ToolFailed = "tool.failed",
    ReceiptIssued = "receipt.issued",
    ReceiptVerified = "receipt.verified",
    ReceiptVerificationFailed = "receipt.verification_failed",
    ReplayStarted = "replay.started",
    ReplayEventReplayed = "replay.event_replayed",
    ReplayCompleted = "replay.completed",
    ReplayFailed = "replay.failed",
    WorkspaceCreated = "vendor.workspace_created",
    WorkspaceUpdated = "vendor.workspace_updated",
    SessionUpdated = "vendor.session_updated",
    MessageCopied = "vendor.message_copied",
    VaultCreated = "vendor.vault_created",
    InputRequested = "vendor.input_requested",
    RequestWithdrawn = "vendor.request_withdrawn",
    OutcomeRecorded = "vendor.outcome_recorded",
    EffectRequested = "vendor.effect_requested",
    EffectRecorded = "vendor.effect_recorded",
    MessageDelta = "vendor.message_delta",
    CheckpointCreated = "vendor.checkpoint_created",
    ReceiptChained = "vendor.receipt_chained",
    TrustRecorded = "vendor.trust_recorded",
    TreeHeadSealed = "vendor.tree_head_sealed",
    TreeHeadCosigned = "vendor.tree_head_cosigned",
    TaskImported = "vendor.task_imported",
    ReceiptImported = "vendor.receipt_imported",
    PersonaCreated = "vendor.persona_created",
    PersonaUpdated = "vendor.persona_updated",
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
}
