//! Every way in which the engine says no to a caller.

use domain::Refusal;

use crate::port::StoreFault;
use runs::replay::Failure;

/// Why a request was not carried out.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refused {
    /// The domain says no.
    #[error(transparent)]
    Domain(#[from] Refusal),
    /// A governed session says no.
    #[error(transparent)]
    Governed(Box<domain::Problem>),
    /// A replay is asked for in a way that cannot be accepted.
    #[error(transparent)]
    Replay(Box<runs::replay::RequestError>),
    /// The caller lacks a scope.
    #[error("this needs the scope `{scope}`")]
    PermissionDenied {
        /// The scope.
        scope: &'static str,
    },
    /// Whoever submitted a Task does not approve what it asks.
    #[error("the actor who submitted a task cannot approve what it asks for: another actor must")]
    ApproverMustDiffer,
    /// The idempotency key was used with another body.
    #[error("the idempotency key was used before with a different body")]
    IdempotencyKeyReused,
    /// The event cursor names nothing that can be read.
    #[error("the cursor is unknown or no longer available")]
    CursorExpired,
    /// The Task exists, its log is no longer available.
    #[error("{}", unavailable(reason))]
    RecordGone {
        /// A stable word for programs: `pruned`, `missing` or `log_corrupt`.
        reason: &'static str,
    },
    /// The Artifact exists, its bytes are not available.
    #[error("the artifact's content is not available: {reason}")]
    ContentUnavailable {
        /// A stable word for programs.
        reason: &'static str,
    },
    /// A named limit is reached; later may be better.
    #[error("{what} is at its limit")]
    Busy {
        /// The limit's name.
        what: &'static str,
    },
    /// The caller holds its share of something that is bounded.
    #[error(
        "this caller holds {held} of the {max} that `{limit}` allows all callers together: release some first, or \
         raise `limits.{limit}`"
    )]
    OverShare {
        /// The limit's name.
        limit: &'static str,
        /// How much the caller holds.
        held: usize,
        /// How much there is.
        max: usize,
    },
    /// The server is shutting down.
    #[error("the server is draining")]
    Draining,
    /// There is no room to write.
    #[error("the disk is full")]
    Full,
    /// Nothing can be written until somebody looks after the store.
    #[error("the server cannot write at the moment")]
    Unavailable {
        /// For the log.
        detail: String,
    },
    /// The store failed, which may pass. Details go to the log, not to the caller.
    #[error("internal error")]
    Store {
        /// For the log.
        detail: String,
    },
    /// A memory field cannot be read from its log. Details go to the log.
    #[error(
        "this field cannot be read, because its log is damaged: its operator runs `reprise log verify`, which says what is \
         wrong, and then `reprise log rebuild --write`, or `reprise log repair` where events are lost"
    )]
    FieldUnreadable {
        /// For the log.
        detail: String,
    },
    /// A bug was caught, or what is stored makes no sense. Details go to the log, not to the caller.
    #[error("internal error")]
    Internal {
        /// For the log.
        detail: String,
    },
}

fn unavailable(reason: &str) -> String {
    match reason {
        "pruned" => "this task's events were pruned: only their headers are left".to_owned(),
        reason => format!("the events of this task cannot be read: {reason}"),
    }
}

impl Refused {
    /// True when no rule says no, and what is stored cannot be read.
    pub(crate) fn is_unreadable(&self) -> bool {
        match self {
            Refused::Internal { .. }
            | Refused::FieldUnreadable { .. }
            | Refused::RecordGone { .. }
            | Refused::ContentUnavailable { .. } => true,
            Refused::Governed(problem) => problem.status >= 500,
            _ => false,
        }
    }
}

impl From<domain::Problem> for Refused {
    fn from(problem: domain::Problem) -> Self {
        Refused::Governed(Box::new(problem))
    }
}

impl From<Failure> for Refused {
    /// Says why a record cannot be had.
    fn from(failure: Failure) -> Self {
        Refused::RecordGone {
            reason: match failure {
                Failure::Unavailable { first, .. } | Failure::ResultUnknown(first) => first.reason,
                Failure::Diverged(_) | Failure::OverrideInvalid { .. } => "log_corrupt",
            },
        }
    }
}

impl From<StoreFault> for Refused {
    fn from(fault: StoreFault) -> Self {
        if fault.is_full() {
            Refused::Full
        } else if fault.is_unavailable() {
            Refused::Unavailable {
                detail: fault.to_string(),
            }
        } else {
            Refused::Store {
                detail: fault.to_string(),
            }
        }
    }
}

impl Refused {
    /// Says what happened, with what only an operator may read.
    pub(crate) fn for_the_log(&self) -> String {
        match self {
            Refused::Internal { detail }
            | Refused::Store { detail }
            | Refused::FieldUnreadable { detail } => detail.clone(),
            other => other.to_string(),
        }
    }
}
