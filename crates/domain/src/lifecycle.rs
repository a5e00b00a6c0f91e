//! The states of a Task and the moves between them.

use serde::{Deserialize, Serialize};

/// Where a Task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Accepted durably, not begun.
    Submitted,
    /// A worker is on it.
    Working,
    /// Waits for input.
    InputRequired,
    /// Waits for authorization or approval.
    AuthRequired,
    /// Ended well.
    Completed,
    /// Ended badly.
    Failed,
    /// Ended by request.
    Canceled,
}

impl Status {
    /// Every status, in lifecycle order.
    pub const ALL: [Status; 7] = [
        Status::Submitted,
        Status::Working,
        Status::InputRequired,
        Status::AuthRequired,
        Status::Completed,
        Status::Failed,
        Status::Canceled,
    ];

    /// Returns the protocol's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Submitted => "SUBMITTED",
            Status::Working => "WORKING",
            Status::InputRequired => "INPUT_REQUIRED",
            Status::AuthRequired => "AUTH_REQUIRED",
            Status::Completed => "COMPLETED",
            Status::Failed => "FAILED",
            Status::Canceled => "CANCELED",
        }
    }

    /// Reads the protocol's word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// True when nothing can follow.
    pub const fn is_terminal(self) -> bool {
        match self {
            Status::Completed | Status::Failed | Status::Canceled => true,
            Status::Submitted | Status::Working | Status::InputRequired | Status::AuthRequired => {
                false
            }
        }
    }

    /// True when the Task waits for somebody outside.
    pub const fn is_waiting(self) -> bool {
        match self {
            Status::InputRequired | Status::AuthRequired => true,
            Status::Submitted
            | Status::Working
            | Status::Completed
            | Status::Failed
            | Status::Canceled => false,
        }
    }

    /// True when the protocol's table has this move.
    pub const fn allows(self, to: Status) -> bool {
        match self {
            Status::Submitted => matches!(to, Status::Working | Status::Canceled | Status::Failed),
            Status::Working => !matches!(to, Status::Submitted | Status::Working),
            Status::InputRequired | Status::AuthRequired => {
                matches!(to, Status::Working | Status::Failed | Status::Canceled)
            }
            Status::Completed | Status::Failed | Status::Canceled => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ap_life_02_only_the_listed_moves_exist() {
        let mut table = String::new();
        for from in Status::ALL {
            let to: Vec<_> = Status::ALL
                .into_iter()
                .filter(|to| from.allows(*to))
                .map(Status::as_str)
                .collect();
            table.push_str(&format!("{} -> {}\n", from.as_str(), to.join(" ")));
        }
        insta::assert_snapshot!(table, @r"
        SUBMITTED -> WORKING FAILED CANCELED
        WORKING -> INPUT_REQUIRED AUTH_REQUIRED COMPLETED FAILED CANCELED
        INPUT_REQUIRED -> WORKING FAILED CANCELED
        AUTH_REQUIRED -> WORKING FAILED CANCELED
        COMPLETED -> 
        FAILED -> 
        CANCELED -> 
        ");
    }

    #[test]
    fn ap_life_05_terminal_states_allow_nothing() {
        for from in Status::ALL {
            assert_eq!(
                from.is_terminal(),
                !Status::ALL.into_iter().any(|to| from.allows(to))
            );
        }
    }
}
