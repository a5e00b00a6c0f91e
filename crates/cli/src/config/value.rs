//! Numbers with bounds, so that a wrong one is an error with its line and not a surprise at work.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A whole number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub(crate) struct Bounded<const MIN: u32, const MAX: u32>(pub(crate) u32);

/// How many: at least one.
pub(crate) type Count = Bounded<1, 1_000_000>;
/// How many, or none.
pub(crate) type Rate = Bounded<0, 1_000_000>;
/// A conformance level of the memory protocol that is offered.
pub(crate) type FieldLevel = Bounded<0, 3>;
/// How large: up to a gibibyte.
pub(crate) type Size = Bounded<1_024, 1_073_741_824>;
/// How much, in mebibytes; or none said.
pub(crate) type Mebibytes = Bounded<0, 1_000_000_000>;
/// How long a wait may be, also not at all.
pub(crate) type WindowMs = Bounded<0, 3_600_000>;
/// How long until somebody loses patience.
pub(crate) type TimeoutMs = Bounded<100, 3_600_000>;
/// How often a stream sends a heartbeat: not in the first seconds, and before clients give up (AP-SSE-09).
pub(crate) type HeartbeatMs = Bounded<5_000, 25_000>;
/// How long something promised for a day is kept: at least that day (AP-IDEM-03), at most a year.
pub(crate) type RetentionS = Bounded<86_400, 31_622_400>;

/// How long a vote may take, or without end; at most a year.
pub(crate) type VoteTimeoutS = Bounded<0, 31_622_400>;

impl<const MIN: u32, const MAX: u32> Bounded<MIN, MAX> {
    /// Returns it as a number of things.
    pub(crate) fn count(self) -> usize {
        self.0 as usize
    }

    /// Returns it as milliseconds.
    pub(crate) fn milliseconds(self) -> Duration {
        Duration::from_millis(self.0.into())
    }

    /// Returns it as seconds.
    pub(crate) fn seconds(self) -> Duration {
        Duration::from_secs(self.0.into())
    }
}

impl<const MIN: u32, const MAX: u32> TryFrom<i64> for Bounded<MIN, MAX> {
    type Error = String;

    fn try_from(value: i64) -> Result<Self, String> {
        match u32::try_from(value) {
            Ok(value) if (MIN..=MAX).contains(&value) => Ok(Self(value)),
            Ok(_) | Err(_) => Err(format!("{value} is not from {MIN} to {MAX}")),
        }
    }
}

impl<const MIN: u32, const MAX: u32> From<Bounded<MIN, MAX>> for i64 {
    fn from(value: Bounded<MIN, MAX>) -> Self {
        value.0.into()
    }
}
