//! How calls through a session end.

use crate::gate::Decision;
use crate::precheck::Refusal;
use crate::request::Response;

/// Governance itself failed: the record, or a rule of our own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("governance failed: {message}")]
pub struct Fault {
    message: String,
}

impl Fault {
    /// Says what failed.
    pub fn new(message: String) -> Self {
        Self { message }
    }

    /// Returns what failed.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// Why a call gave no response.
#[derive(Debug, thiserror::Error)]
pub enum CreateError<E> {
    /// Contracts block the response, or a limit the request.
    #[error("blocked by contract")]
    Contract(Box<Decision>),
    /// The session was stopped for good.
    #[error("the session was killed: {cause}")]
    Killed {
        /// Why.
        cause: String,
    },
    /// The session was ended.
    #[error("the session was ended")]
    Inactive,
    /// The provider or model is excluded.
    #[error("the contracts exclude this model: {pattern}")]
    ProviderIncompatible {
        /// The pattern that matched.
        pattern: String,
    },
    /// The request has a member that cannot be judged.
    #[error("the request has `{member}`, which cannot be judged")]
    Unsupported {
        /// Its name.
        member: String,
    },
    /// The provider failed; passed on as it is.
    #[error("the provider failed")]
    Provider(E),
    /// Governance itself failed.
    #[error(transparent)]
    Fault(Fault),
}

impl<E> CreateError<E> {
    /// P1 to P4; a block becomes a fault here, because it has a decision of its own.
    pub(super) fn refused(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Killed { cause } => Self::Killed { cause },
            Refusal::Inactive => Self::Inactive,
            Refusal::ProviderIncompatible { pattern } => Self::ProviderIncompatible { pattern },
            Refusal::Unsupported { member } => Self::Unsupported { member },
            Refusal::Blocked { detail, .. } => Self::Fault(Fault::new(detail)),
        }
    }
}

impl<E> From<Fault> for CreateError<E> {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Why an execution gave no output.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// No executor of this name.
    #[error("the session has no executor `{0}`")]
    UnknownTool(String),
    /// A check refused it.
    #[error("the execution was refused")]
    Refused(crate::execute::ExecutionRefusal),
    /// The executor failed; passed on as it is.
    #[error("the tool failed: {0}")]
    Tool(super::execute::ToolError),
    /// The executor did not end in time: what it did is not known.
    #[error("the tool did not end in time")]
    TimedOut,
    /// Governance itself failed.
    #[error(transparent)]
    Fault(Fault),
}

/// Why a label was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// Not 1 to 128 letters, digits, `-` and `_`.
    #[error("a label has 1 to 128 letters, digits, `-` and `_`")]
    Malformed,
    /// The session has 64 labels.
    #[error("a session has at most 64 labels")]
    TooMany,
}

/// A response that was released.
#[derive(Debug, Clone, PartialEq)]
pub struct Released {
    /// The response, without the calls that were taken out.
    pub response: Response,
    /// The record; none in log-only.
    pub decision: Option<Decision>,
}

impl Released {
    pub(super) fn whole(response: Response, decision: Decision) -> Self {
        Self {
            response,
            decision: Some(decision),
        }
    }

    pub(super) fn logged(response: Response) -> Self {
        Self {
            response,
            decision: None,
        }
    }

    pub(super) fn stripped(
        mut response: Response,
        decision: Decision,
        removed: &[usize],
        substitute: Option<&str>,
    ) -> Self {
        let calls = std::mem::take(&mut response.calls);
        let kept = calls
            .into_iter()
            .enumerate()
            .filter(|(index, _)| !removed.contains(index));
        response.calls = kept.map(|(_, call)| call).collect();
        if let Some(text) = substitute {
            response.finish_reason = crate::contract::FinishReason::Stop;
            if response.content.as_deref().is_none_or(str::is_empty) {
                response.content = Some(text.to_owned());
            }
        }
        Self {
            response,
            decision: Some(decision),
        }
    }
}
