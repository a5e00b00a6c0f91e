//! Requests: from what a transport was given to the [`Request`] that the engine takes, or the member that is wrong and why.
//!
//! Which decoder belongs to which operation stands in the operation's row ([`crate::openapi::Operation::decode`]). Unknown
//! members are ignored. Every string and list is bounded here, before anything is stored.

mod content;
pub(crate) mod governed;
mod members;
mod persona;
mod receipt;
mod task;
mod unserved;
pub(crate) mod workflow;

pub use content::{
    create_branch, create_vault, create_workspace, register_artifact, update_workspace,
};
pub use governed::{
    add_label, approve, capture, captures, create_governed, heartbeat, kill, preflight, propose,
    report, report_bypass, restore, set_filter,
};
pub use members::Members;
pub use persona::{create_persona, update_persona};
pub use receipt::{cosign_head, verify_receipt};
pub use task::{
    append_message, cancel_task, close_session, create_session, fork_session, replay_session,
    replay_task, respond_permission, retry_task, submit_task, task_message, truncate_session,
    update_session,
};
pub use unserved::{Reason, UNSERVED, Unserved, requested_unserved};
pub use workflow::{
    accept_handoff, cancel_handoff, create_workflow, decline_handoff, offer_handoff,
};

use canon::{Map, Value};
use domain::{Request, SessionId, TaskId};

use crate::InputError;

/// What a decoder is given.
#[derive(Debug, Clone, Copy)]
pub struct DecodeInput<'a> {
    /// The parameters of the target by name, such as `session_id`.
    pub params: &'a [(String, String)],
    /// The members of the body.
    pub body: &'a Map<String, Value>,
    /// What the server is set to.
    pub settings: Settings,
}

/// What decoding depends on besides the request.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Initial Messages that a Session may have.
    pub initial_messages_max: usize,
    /// True when replays are conformance runs.
    pub replay_conformance: bool,
}

/// Reads a request.
pub type Decode = fn(&DecodeInput<'_>) -> Result<Request, InputError>;

impl<'a> DecodeInput<'a> {
    fn members(&self) -> Members<'a> {
        Members::of(self.body)
    }

    fn param(&self, name: &str) -> Option<&'a str> {
        let found = self.params.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Reads a parameter of the target as an id. What is no id of the kind names nothing.
    fn id<T, E>(
        &self,
        name: &str,
        object: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, InputError> {
        parse(self.param(name).unwrap_or_default()).map_err(|_| InputError::Unknown {
            object,
            param: String::new(),
        })
    }

    fn session_id(&self) -> Result<SessionId, InputError> {
        self.id("session_id", SessionId::OBJECT, SessionId::parse)
    }

    fn task_id(&self) -> Result<TaskId, InputError> {
        self.id("task_id", TaskId::OBJECT, TaskId::parse)
    }
}

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
/// Whole numbers: beyond it readers of JSON disagree.
pub const COUNT_MAX: u64 = (1 << 53) - 1;
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
