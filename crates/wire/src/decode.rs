//! Request bodies: from JSON to plain data, or the member that is wrong and why.
//!
//! Unknown members are ignored. Every string and list is bounded here, before anything is stored.

mod content;
mod members;
mod message;
mod persona;
mod task;
mod unserved;

pub use content::{
    NewArtifact, NewBranch, NewVault, NewWorkspace, create_branch, create_vault, create_workspace,
    register_artifact, update_workspace,
};
pub use members::Members;
pub use message::{MessageInput, TaskMessage, TaskMessageKind, append_message, task_message};
pub use persona::{create_persona, update_persona};
pub use task::{
    Input, NewSession, NewTask, Response, Truncation, cancel_task, create_session, fork_session,
    respond_permission, submit_task, truncate_session, update_session,
};
pub use unserved::{UNSERVED, Unserved, Why, asked};

/// Names, roots, references and reasons.
pub const TEXT_BYTES_MAX: usize = 1_024;
/// URIs.
pub const URI_BYTES_MAX: usize = 2_048;
/// Media types.
pub const MIME_TYPE_BYTES_MAX: usize = 255;
/// Summaries.
pub const SUMMARY_BYTES_MAX: usize = 2_048;
/// Items of a capability list.
pub const CAPABILITIES_MAX: usize = 32;
/// One capability.
pub const CAPABILITY_BYTES_MAX: usize = 64;
/// Canonical bytes of `metadata`.
pub const METADATA_BYTES_MAX: usize = 16 * 1024;
/// Parts of one Message.
pub const PARTS_MAX: usize = 256;
/// Items of a list of ids or names.
pub const LIST_LEN_MAX: usize = 256;
/// A persona's name, version and workflow.
pub const NAME_BYTES_MAX: usize = 200;
/// A persona's system prompt.
pub const PROMPT_BYTES_MAX: usize = 128 * 1024;

#[cfg(test)]
mod tests;
