//! A single-thread executor that picks the next ready task by the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use engine::port::BoxFuture;

/// Ids of tasks that can make progress.
#[derive(Debug, Default)]
pub(crate) struct Ready(Mutex<BTreeSet<u64>>);

impl Ready {
    fn insert(&self, id: u64) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id);
    }

    fn take(&self, rng: &mut fastrand::Rng) -> Option<u64> {
        let mut ready = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.is_empty() {
            return None;
        }
        let id = ready.iter().copied().nth(rng.usize(..ready.len()))?;
        ready.remove(&id);
        Some(id)
    }
}

struct TaskWaker {
    id: u64,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.insert(self.id);
    }
}

/// Where new tasks arrive; shared with the engine through its spawn port.
#[derive(Default)]
pub(crate) struct Inbox(Mutex<Vec<BoxFuture<'static, ()>>>);

impl Inbox {
    pub(crate) fn push(&self, future: BoxFuture<'static, ()>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(future);
    }

    fn drain(&self) -> Vec<BoxFuture<'static, ()>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

/// Runs tasks of one engine's life. Dropping it is the crash.
#[derive(Default)]
pub(crate) struct Executor {
    tasks: BTreeMap<u64, BoxFuture<'static, ()>>,
    next: u64,
    ready: Arc<Ready>,
    pub(crate) inbox: Arc<Inbox>,
}

impl Executor {
    /// Lets one ready task make a step. False when none is ready.
    pub(crate) fn step(&mut self, rng: &mut fastrand::Rng) -> bool {
        for future in self.inbox.drain() {
            self.tasks.insert(self.next, future);
            self.ready.insert(self.next);
            self.next += 1;
        }
        let Some(id) = self.ready.take(rng) else {
            return false;
        };
        let Some(task) = self.tasks.get_mut(&id) else {
            return true;
        };
        let waker = Waker::from(Arc::new(TaskWaker {
            id,
            ready: Arc::clone(&self.ready),
        }));
        if Pin::new(task).poll(&mut Context::from_waker(&waker)) == Poll::Ready(()) {
            self.tasks.remove(&id);
        }
        true
    }
}
