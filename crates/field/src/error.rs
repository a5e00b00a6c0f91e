//! Refusals: the error codes of the protocol, whether trying again can help, and what to do instead.
//!
//! A refusal never changes the field, never advances its clock and is never logged. Messages name the member that is
//! wrong, never what it held.

use canon::Value;
use serde_json::json;

use crate::kind::Operation;

/// Why a message was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// RECORD without a purpose.
    MissingIntent,
    /// A committed RECORD without score or reasoning.
    MissingConfidence,
    /// A score that is not a number from 0 to 1.
    InvalidConfidence,
    /// A memory type that is not listed.
    InvalidType,
    /// The sender is not registered.
    AgentNotRegistered,
    /// The id belongs to an active agent.
    AgentIdTaken,
    /// MERGE names no conflict.
    ConflictNotFound,
    /// A unit or another named thing does not exist.
    UnitNotFound,
    /// The state machine has no such step.
    InvalidTransition,
    /// The field does not offer this.
    UnsupportedOperation,
    /// An embedding failed; the unit is kept.
    EnrichmentFailed,
    /// Detection was late; the unit is kept.
    DetectionTimeout,
    /// The strategy could not decide.
    MergeFailed,
    /// The causal chain is larger than an answer may be.
    ReplayTooLarge,
    /// There is no room left.
    StorageFull,
    /// The clock is exhausted.
    EpochOverflow,
    /// Anything else.
    InternalError,
    /// The envelope is malformed.
    InvalidEnvelope,
    /// The payload is malformed.
    InvalidRequest,
    /// The credential is missing or bad.
    Unauthenticated,
    /// The authority or the visibility does not suffice.
    Forbidden,
}

/// One row of the error table: name, recoverable, suggested action, HTTP status.
type Row = (&'static str, bool, Option<&'static str>, u16);

impl Code {
    /// Every code.
    pub const ALL: &'static [Self] = &[
        Self::MissingIntent,
        Self::MissingConfidence,
        Self::InvalidConfidence,
        Self::InvalidType,
        Self::AgentNotRegistered,
        Self::AgentIdTaken,
        Self::ConflictNotFound,
        Self::UnitNotFound,
        Self::InvalidTransition,
        Self::UnsupportedOperation,
        Self::EnrichmentFailed,
        Self::DetectionTimeout,
        Self::MergeFailed,
        Self::ReplayTooLarge,
        Self::StorageFull,
        Self::EpochOverflow,
        Self::InternalError,
        Self::InvalidEnvelope,
        Self::InvalidRequest,
        Self::Unauthenticated,
        Self::Forbidden,
    ];

    const fn row(self) -> Row {
        match self {
            Self::MissingIntent => ("MISSING_INTENT", true, Some("resubmit with intent"), 422),
            Self::MissingConfidence => (
                "MISSING_CONFIDENCE",
                true,
                Some("resubmit with confidence"),
                422,
            ),
            Self::InvalidConfidence => (
                "INVALID_CONFIDENCE",
                true,
                Some("correct and resubmit"),
                422,
            ),
            Self::InvalidType => ("INVALID_TYPE", true, Some("use a supported type"), 422),
            Self::AgentNotRegistered => (
                "AGENT_NOT_REGISTERED",
                true,
                Some("call REGISTER first"),
                403,
            ),
            Self::AgentIdTaken => ("AGENT_ID_TAKEN", true, Some("use another id"), 409),
            Self::ConflictNotFound => ("CONFLICT_NOT_FOUND", false, None, 404),
            Self::UnitNotFound => ("UNIT_NOT_FOUND", false, None, 404),
            Self::InvalidTransition => {
                ("INVALID_TRANSITION", true, Some("check current state"), 409)
            }
            Self::UnsupportedOperation => ("UNSUPPORTED_OPERATION", false, None, 501),
            Self::EnrichmentFailed => ("ENRICHMENT_FAILED", true, Some("none needed"), 200),
            Self::DetectionTimeout => ("DETECTION_TIMEOUT", true, Some("none needed"), 200),
            Self::MergeFailed => ("MERGE_FAILED", true, Some("try another strategy"), 409),
            Self::ReplayTooLarge => (
                "REPLAY_TOO_LARGE",
                true,
                Some("use detailed or summary"),
                413,
            ),
            Self::StorageFull => (
                "STORAGE_FULL",
                false,
                Some("run COMPACT or expand storage"),
                507,
            ),
            Self::EpochOverflow => (
                "EPOCH_OVERFLOW",
                false,
                Some("restart with checkpoint"),
                500,
            ),
            Self::InternalError => ("INTERNAL_ERROR", false, None, 500),
            Self::InvalidEnvelope => ("INVALID_ENVELOPE", true, Some("fix the envelope"), 400),
            Self::InvalidRequest => ("INVALID_REQUEST", true, Some("fix the payload"), 400),
            Self::Unauthenticated => ("UNAUTHENTICATED", true, Some("authenticate"), 401),
            Self::Forbidden => ("FORBIDDEN", false, None, 403),
        }
    }

    /// Returns the code on the wire.
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Returns whether the sender can do something about it.
    pub const fn recoverable(self) -> bool {
        self.row().1
    }

    /// Returns what the sender should do, where the table has an advice.
    pub const fn suggested_action(self) -> Option<&'static str> {
        self.row().2
    }

    /// Returns the status of an HTTP answer; the two codes with 200 only ever appear as warnings.
    pub const fn http_status(self) -> u16 {
        self.row().3
    }
}

/// A refused message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct Refusal {
    code: Code,
    message: String,
    operation: Option<Operation>,
    recoverable: bool,
    suggested_action: Option<&'static str>,
}

impl Refusal {
    /// Makes the refusal of a message; `operation` is that of the message, or of the path when it cannot be read.
    pub fn new(code: Code, message: impl Into<String>, operation: Option<Operation>) -> Self {
        Self {
            code,
            message: message.into(),
            operation,
            recoverable: code.recoverable(),
            suggested_action: code.suggested_action(),
        }
    }

    /// Says that it passes, and what helps: for what a server refuses for now, whatever the code says of such faults.
    #[must_use]
    pub fn temporary(mut self, suggested_action: &'static str) -> Self {
        self.recoverable = true;
        self.suggested_action = Some(suggested_action);
        self
    }

    /// Says to which operation it belongs, where that is not known yet.
    pub fn about(mut self, operation: Operation) -> Self {
        self.operation.get_or_insert(operation);
        self
    }

    /// Returns the code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns what is wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the object that goes to the sender.
    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "code": self.code.as_str(),
            "message": self.message,
            "operation": self.operation.map(Operation::as_str),
            "recoverable": self.recoverable,
            "suggested_action": self.suggested_action,
        });
        let rejects = matches!(
            self.operation,
            Some(Operation::Register | Operation::Record)
        );
        if let (true, Some(members)) = (rejects, object.as_object_mut()) {
            members.insert("status".into(), "rejected".into());
            members.insert("rejection_reason".into(), self.message.clone().into());
        }
        object
    }
}

/// What is wrong, before it is known to which message it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    code: Code,
    message: String,
    suggested_action: Option<&'static str>,
}

/// The result of one check.
pub(crate) type Check<T> = Result<T, Fault>;

impl Fault {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            suggested_action: code.suggested_action(),
        }
    }

    pub(crate) fn advising(self, suggested_action: Option<&'static str>) -> Self {
        Self {
            suggested_action,
            ..self
        }
    }

    pub(crate) fn request(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, message)
    }

    pub(crate) fn of(self, operation: Option<Operation>) -> Refusal {
        Refusal {
            code: self.code,
            message: self.message,
            operation,
            recoverable: self.code.recoverable(),
            suggested_action: self.suggested_action,
        }
    }
}
