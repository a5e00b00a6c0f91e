//! Who may write about a Task, when several could.
//!
//! A lease is held by a holder, at an epoch. A holder is a process: it says with each heartbeat until when it is there. What a
//! holder that is late holds is free for the taking, at a new epoch. Times are values that callers bring, so that nothing
//! here waits: a clock that jumps can make a holder late too early or too late, and then its epoch is stale and its commits are
//! refused; there are never two who can write.

use std::time::Duration;

use domain::{Position, Timestamp};

use super::StoreFault;
use crate::port::BoxFuture;

/// Leases beyond those that commits take and give back.
pub trait LeaseStore: Send + Sync {
    /// Makes leases of others this holder's, each with a new epoch, whether those others are late or not: the caller knows that
    /// they are gone, or means to stop them.
    fn take_over(
        &self,
        whose: LeaseOwners,
        holder: Box<str>,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>>;

    /// Says that a holder is there, and until when it must say so again. Returns the leases that are still its own: what it
    /// works on and does not find here was taken by somebody else.
    fn heartbeat(
        &self,
        beat: Heartbeat,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>>;

    /// Takes those of the wanted leases that nobody holds, or only somebody who is late, each with a new epoch. Returns what was
    /// taken; a holder that is late itself gets nothing.
    fn claim(
        &self,
        wanted: LeaseRequest,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>>;

    /// Gives everything back that a holder has, and forgets it.
    fn leave(&self, holder: Box<str>) -> BoxFuture<'_, Result<(), StoreFault>>;
}

/// The name of a lease: the key of the Task it is about.
pub type LeaseName = Position;

/// Whose leases are taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseOwners {
    /// Everybody's. Only for a process that has the store to itself, before it works.
    Everybody,
    /// Those of one holder.
    Holder(Box<str>),
}

/// A sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Whose.
    pub holder: Box<str>,
    /// What the holder's clock says.
    pub now: Timestamp,
    /// How long it lasts, up to [`Heartbeat::LASTS_MAX`].
    pub lasts: Duration,
}

impl Heartbeat {
    /// The longest that a sign of life lasts. One that says more than that from now on was given by a clock that has been
    /// set back since, and counts for nothing.
    pub const LASTS_MAX: Duration = Duration::from_secs(600);

    /// Returns when the holder is late, in microseconds.
    pub fn ends_at(&self) -> i64 {
        let lasts = self.lasts.min(Self::LASTS_MAX).as_micros();
        let lasts = i64::try_from(lasts).unwrap_or(i64::MAX);
        self.now.as_micros().saturating_add(lasts)
    }

    /// True when a holder whose last sign of life ends at a time is late at another, both in microseconds.
    pub fn is_late(ends_at: i64, now: i64) -> bool {
        let longest = i64::try_from(Self::LASTS_MAX.as_micros()).unwrap_or(i64::MAX);
        ends_at <= now || ends_at > now.saturating_add(longest)
    }
}

/// Leases that a holder wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Who wants them.
    pub holder: Box<str>,
    /// What its clock says.
    pub now: Timestamp,
    /// Each with the version of the document that the holder has seen: what has changed since is not taken.
    pub leases: Vec<(LeaseName, u64)>,
}

/// A worker's right to write about a Task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// The lease.
    pub lease: LeaseName,
    /// The epoch the worker holds; another epoch in the store refuses the commit.
    pub epoch: u64,
}
