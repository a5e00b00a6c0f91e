//! A store that counts what it is asked and fails when told to: the in-memory one behind it does the work.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use engine::port::{
    BoxFuture, Call, Commit, CommitError, Committed, Layer, Layered, MemoryStore, Store, StoreFault,
};

pub(crate) type Watched = Layered<Watch>;

#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Reads of documents so far.
    pub(crate) document_reads: AtomicUsize,
    /// Reads of all kinds so far that a reader of a resource can cause.
    pub(crate) reads: AtomicUsize,
    /// Reads of blobs so far.
    pub(crate) blob_reads: AtomicUsize,
    /// Events read so far.
    pub(crate) events_read: AtomicUsize,
    /// The documents that each commit expected to be as they were.
    pub(crate) expected: Mutex<Vec<Vec<Box<str>>>>,
    /// While set, no commit works.
    pub(crate) is_full: AtomicBool,
    /// While set, no document and no event can be read.
    pub(crate) is_unreadable: AtomicBool,
    /// Commits that rest on this document find that another writer was faster.
    pub(crate) conflicting: Mutex<Option<Box<str>>>,
    /// How many did.
    pub(crate) conflicts: AtomicUsize,
    /// How many positions another node takes before the next commit.
    pub(crate) taken: AtomicUsize,
    /// What happens before some later read of events.
    between: Mutex<Option<Between>>,
}

struct Between {
    reads: usize,
    happens: BoxFuture<'static, ()>,
}

impl std::fmt::Debug for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Between").finish_non_exhaustive()
    }
}

/// Makes an empty one.
pub(crate) fn watched() -> Arc<Watched> {
    Arc::new(Layered {
        store: crate::support::store(),
        layer: Watch::default(),
    })
}

impl Watch {
    /// Lets something happen before the n-th read of events from now on.
    pub(crate) fn before_events(
        &self,
        reads: usize,
        happens: impl Future<Output = ()> + Send + 'static,
    ) {
        *self.between.lock().unwrap() = Some(Between {
            reads,
            happens: Box::pin(happens),
        });
    }

    fn fails(&self) -> Result<(), StoreFault> {
        match self.is_unreadable.load(Ordering::Relaxed) {
            true => Err(StoreFault::new("the disk cannot be read")),
            false => Ok(()),
        }
    }

    /// Takes what happens before this read of events.
    fn due(&self) -> Option<BoxFuture<'static, ()>> {
        let mut between = self.between.lock().unwrap();
        let waiting = between.as_mut()?;
        waiting.reads -= 1;
        match waiting.reads {
            0 => between.take().map(|due| due.happens),
            _ => None,
        }
    }
}

impl Layer for Watch {
    fn call<'a, T: Send + 'a>(
        &'a self,
        call: Call,
        answer: impl FnOnce() -> BoxFuture<'a, Result<T, StoreFault>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreFault>> {
        match call {
            Call::Documents => {
                self.document_reads.fetch_add(1, Ordering::Relaxed);
                self.reads.fetch_add(1, Ordering::Relaxed);
            }
            Call::Read => {
                self.reads.fetch_add(1, Ordering::Relaxed);
            }
            Call::Blob => {
                self.blob_reads.fetch_add(1, Ordering::Relaxed);
            }
            Call::Events | Call::Other => {}
        }
        Box::pin(async move {
            if call == Call::Events
                && let Some(due) = self.due()
            {
                due.await;
            }
            if matches!(call, Call::Documents | Call::Events) {
                self.fails()?;
            }
            answer().await
        })
    }

    fn commit<'a>(
        &'a self,
        store: &'a MemoryStore,
        commit: Commit,
    ) -> BoxFuture<'a, Result<Committed, CommitError>> {
        if self.is_full.load(Ordering::Relaxed) {
            let fault = CommitError::Fault(StoreFault::full("no space left on device"));
            return Box::pin(std::future::ready(Err(fault)));
        }
        let conflicting = self.conflicting.lock().unwrap().clone();
        if commit
            .expected
            .iter()
            .any(|expected| Some(&expected.id) == conflicting.as_ref())
        {
            self.conflicts.fetch_add(1, Ordering::Relaxed);
            return Box::pin(std::future::ready(Err(CommitError::Conflict)));
        }
        store.skip(self.taken.swap(0, Ordering::Relaxed) as u64);
        let expected = commit.expected.iter();
        let expected = expected.map(|expected| expected.id.clone()).collect();
        self.expected.lock().unwrap().push(expected);
        store.commit(commit)
    }

    fn gave(&self, events: usize) {
        self.events_read.fetch_add(events, Ordering::Relaxed);
    }
}
