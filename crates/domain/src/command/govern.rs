//! Orders about governed sessions.

use canon::{Digest, Map, Value};

use super::{CreateSession, EffectIntent, Move, SubmitTask};
use crate::{PermissionId, TaskId};

/// See [`super::Order::OpenGoverned`].
#[derive(Debug, Clone, PartialEq)]
pub struct OpenGoverned {
    /// The Session; its id follows from the governed session's own.
    pub session: CreateSession,
    /// The Task; its id does too.
    pub task: SubmitTask,
    /// Digest of the workflow's name and version.
    pub workflow_digest: Digest,
    /// The first input it waits for.
    pub awaits: EffectIntent,
    /// What its workflow is told with it.
    pub workflow: Option<GovernTask>,
}

/// See [`super::Order::GovernTask`].
#[derive(Debug, Clone, PartialEq)]
pub struct GovernTask {
    /// The Task.
    pub id: TaskId,
    /// The version of it that the input was judged on: when it has gone on since, the input must be judged again.
    pub version: u64,
    /// The permission request that the input answers, if it answers one.
    pub answer: Option<GovernedAnswer>,
    /// The input, and what it brought about.
    pub moves: Vec<Move>,
    /// What its workflow is told with it: both happen, or neither.
    pub workflow: Option<Box<GovernTask>>,
}

/// The answer to a permission request of a governed session.
#[derive(Debug, Clone, PartialEq)]
pub struct GovernedAnswer {
    /// The request.
    pub request: PermissionId,
    /// The decision.
    pub approved: bool,
    /// Who decided and why, as given.
    pub remarks: Map<String, Value>,
    /// The id of the API key that it came with.
    pub key_id: Option<String>,
}
