//! Waiting until something happens to one Task.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::Position;
use tokio::sync::watch;

use crate::engine::{Engine, Shared};
use crate::turn::Written;

/// Who waits for which Task. A turn tells those whose Task it changed and nobody else.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    by_task: Mutex<BTreeMap<Position, watch::Sender<()>>>,
}

impl Waiters {
    /// Tells what was committed, once it can be read.
    pub(crate) fn after_commit(&self, written: &Written) {
        let waiters = self.lock();
        if waiters.is_empty() {
            return;
        }
        for (stored, _) in written.events() {
            let keys = [stored.links.task, Some(stored.resource)];
            for key in keys.into_iter().flatten() {
                if let Some(waiter) = waiters.get(&key) {
                    waiter.send_replace(());
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Position, watch::Sender<()>>> {
        // Each change is one call on the map.
        self.by_task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hears of the commits that touch one Task, and of no others.
#[derive(Debug)]
pub(crate) struct TaskWatch {
    shared: Arc<Shared>,
    key: Position,
    changes: watch::Receiver<()>,
}

impl Engine {
    /// Watches a Task from now on: whoever looks at it afterwards misses nothing that this process commits.
    pub(crate) fn watch_task(&self, key: Position) -> TaskWatch {
        let shared = Arc::clone(&self.shared);
        let mut waiters = shared.waiters.lock();
        let changes = waiters
            .entry(key)
            .or_insert_with(|| watch::Sender::new(()))
            .subscribe();
        drop(waiters);
        TaskWatch {
            shared,
            key,
            changes,
        }
    }
}

impl TaskWatch {
    /// Returns when there is a reason to look at the Task again. Safe to drop and call again.
    pub(crate) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            // Invariant: the sender stays as long as there is a receiver.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for TaskWatch {
    fn drop(&mut self) {
        let mut waiters = self.shared.waiters.lock();
        if waiters
            .get(&self.key)
            .is_some_and(|waiter| waiter.receiver_count() <= 1)
        {
            waiters.remove(&self.key);
        }
    }
}
