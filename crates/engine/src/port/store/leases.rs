//! Who may write about a Task.

use domain::Position;

use super::StoreFault;
use crate::port::BoxFuture;

/// Leases beyond those that commits take and give back.
pub trait LeaseStore: Send + Sync {
    /// Makes every lease in the store this holder's, each with a new epoch. Only a process that holds the data
    /// directory may call this, and it does so before it works.
    fn take_over(
        &self,
        holder: Box<str>,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>>;
}

/// The name of a lease: the key of the Task it is about.
pub type LeaseName = Position;

/// A worker's right to write about a Task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// The lease.
    pub lease: LeaseName,
    /// The epoch the worker holds; another epoch in the store refuses the commit.
    pub epoch: u64,
}
