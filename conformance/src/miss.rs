//! How a check ends when it is not plainly satisfied.
//!
//! Owns the ways out and the helpers that build them. A check judges with [`need`]; a step that only prepares the
//! ground turns a refusal into [`Miss::Unseen`], so that one broken rule does not fail the ids that merely stand on it.

use crate::report::Verdict;

/// The end of a check that is not an unconditional `ok`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The server did something else than the requirement says.
    Fail { expected: String, found: String },
    /// The behaviour could not be observed at all.
    Unseen(String),
    /// Everything observed was right, but this part of the stated check could not be observed.
    Part(String),
    /// The server does something else, because texts that bind it contradict each other and it follows another one.
    Differs(String),
}

/// What a check returns.
pub(crate) type Checked = Result<(), Miss>;

/// Ends the check with a failure.
pub(crate) fn fail<T>(expected: impl Into<String>, found: impl Into<String>) -> Result<T, Miss> {
    Err(Miss::Fail {
        expected: expected.into(),
        found: found.into(),
    })
}

/// Fails unless `holds`.
pub(crate) fn need(holds: bool, expected: impl Into<String>, found: impl Into<String>) -> Checked {
    if holds { Ok(()) } else { fail(expected, found) }
}

/// Ends the check as not covered.
pub(crate) fn unseen<T>(reason: impl Into<String>) -> Result<T, Miss> {
    Err(Miss::Unseen(reason.into()))
}

/// Ends the check as satisfied except for a part nobody could see.
pub(crate) fn all_but(part: impl Into<String>) -> Checked {
    Err(Miss::Part(part.into()))
}

impl Miss {
    /// Returns what was there instead.
    pub(crate) fn found(self) -> String {
        match self {
            Self::Fail { found, .. }
            | Self::Unseen(found)
            | Self::Part(found)
            | Self::Differs(found) => found,
        }
    }

    /// Returns what a report says of it, with every text redacted.
    pub(crate) fn verdict(&self, redact: impl Fn(&str) -> String) -> Verdict {
        match self {
            Self::Part(part) => Verdict::Ok {
                unseen: Some(redact(part)),
            },
            Self::Fail { expected, found } => Verdict::Fail {
                expected: redact(expected),
                found: redact(found),
            },
            Self::Differs(decision) => Verdict::Differs {
                decision: redact(decision),
            },
            Self::Unseen(reason) => Verdict::NotCovered {
                reason: redact(reason),
            },
        }
    }

    /// Turns any ending of a preparing step into "not covered".
    pub(crate) fn while_preparing(self, step: &str) -> Self {
        match self {
            Self::Fail { expected, found } => Self::Unseen(format!(
                "could not {step}: expected {expected}, found {found}"
            )),
            Self::Unseen(reason) | Self::Part(reason) | Self::Differs(reason) => {
                Self::Unseen(reason)
            }
        }
    }
}
