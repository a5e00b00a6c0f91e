//! The store of a simulation: the in-memory one behind delays and failures.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::port::{
    BoxFuture, Call, Commit, CommitError, Committed, Layer, MemoryStore, Store, StoreFault,
};

use crate::world::{Dice, dawdle};

/// Delays every call and fails some: a commit may be lost (nothing written), or its answer may be (written, and
/// the process dies before it learns so).
pub(crate) struct Faults {
    pub(crate) dice: Dice,
    /// Set when the process must die before anything else happens.
    pub(crate) must_crash: Arc<AtomicBool>,
    pub(crate) faults: bool,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").finish_non_exhaustive()
    }
}

impl Layer for Faults {
    fn call<'a, T: Send + 'a>(
        &'a self,
        _: Call,
        answer: impl FnOnce() -> BoxFuture<'a, Result<T, StoreFault>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreFault>> {
        Box::pin(async move {
            dawdle(self.dice.below(3)).await;
            if self.faults && self.dice.one_in(400) {
                return Err(StoreFault::new("simulated: the disk cannot be read"));
            }
            answer().await
        })
    }

    fn commit<'a>(
        &'a self,
        store: &'a MemoryStore,
        commit: Commit,
    ) -> BoxFuture<'a, Result<Committed, CommitError>> {
        Box::pin(async move {
            dawdle(self.dice.below(4)).await;
            if self.faults && self.dice.one_in(40) {
                let fault = match self.dice.one_in(2) {
                    true => StoreFault::new("simulated: the append was lost"),
                    false => StoreFault::full("simulated: the disk is full"),
                };
                return Err(CommitError::Fault(fault));
            }
            if self.faults && self.dice.one_in(60) {
                // Another node was there first, as far as the engine can tell.
                return Err(CommitError::Conflict);
            }
            if self.faults && self.dice.one_in(20) {
                // Another node took positions meanwhile: the turn is sealed again, to others than it guessed.
                store.skip(1 + u64::from(self.dice.below(3)));
            }
            let committed = store.commit(commit).await;
            if self.faults && self.dice.one_in(50) {
                // Durable, and the process dies before it knows.
                self.must_crash.store(true, Ordering::Relaxed);
                std::future::pending::<()>().await;
            }
            dawdle(self.dice.below(3)).await;
            committed
        })
    }
}
