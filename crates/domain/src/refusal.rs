//! Why a well-formed command changed nothing.

use crate::Status;

/// A domain answer of "no". Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The named resource does not exist, or the caller may not know that it does.
    #[error("no such {object}")]
    NotFound {
        /// The kind of resource.
        object: &'static str,
        /// The request member that named it, when it was not the path.
        param: Option<&'static str>,
    },
    /// A member has a value that this command does not take.
    #[error("{message}")]
    Invalid {
        /// The member.
        param: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// The resource is in a state that excludes the command.
    #[error("{message}")]
    Conflict {
        /// A stable word for programs.
        reason: &'static str,
        /// What stands in the way.
        message: String,
        /// The Task's status, when a Task stands in the way.
        status: Option<Status>,
    },
    /// An attempt to move a Task where its lifecycle does not go.
    #[error("{}", excluded_by(*status))]
    InvalidTransition {
        /// The status that excludes the move.
        status: Status,
    },
    /// A policy or a missing capability forbids it.
    #[error("{message}")]
    Policy {
        /// A stable word for programs.
        reason: &'static str,
        /// What forbids it.
        message: String,
    },
    /// The command was built on documents that have changed since: build it again.
    #[error("the resource changed meanwhile")]
    Stale,
}

impl Refusal {
    pub(crate) fn not_found(object: &'static str) -> Self {
        Refusal::NotFound {
            object,
            param: None,
        }
    }
}

fn excluded_by(status: Status) -> String {
    if status.is_terminal() {
        format!("the task is already {}", status.as_str())
    } else {
        format!("not possible while the task is {}", status.as_str())
    }
}
