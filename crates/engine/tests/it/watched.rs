//! A store that counts what it is asked and fails when told to: the in-memory one behind it does the work.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use canon::Digest;
use domain::{Blob, Document, EventName, Position};
use engine::port::{
    ApiKey, BlobStore, BoxFuture, Claim, ClaimScope, Commit, CommitError, Committed, Erased,
    Heartbeat, KeyStore, LastEvents, LeaseName, LeaseStore, ListQuery, MemoryStore, NewestQuery,
    News, ReadEvents, Scope, SegmentStore, Store, StoreFault, StoredEvent, Tree, TreeAppend,
    TreeStore, Wanted, Whose,
};
use tokio::sync::broadcast;

#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) inner: Arc<MemoryStore>,
    /// Reads of documents so far.
    pub(crate) document_reads: AtomicUsize,
    /// Reads of all kinds so far that a reader of a resource can cause.
    pub(crate) reads: AtomicUsize,
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

impl Watched {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: crate::support::store(),
            document_reads: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            events_read: AtomicUsize::new(0),
            expected: Mutex::default(),
            is_full: AtomicBool::new(false),
            is_unreadable: AtomicBool::new(false),
            conflicting: Mutex::default(),
            conflicts: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            between: Mutex::default(),
        })
    }

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

impl Store for Watched {
    fn name(&self) -> &EventName {
        self.inner.name()
    }

    fn secret(&self) -> &[u8; 32] {
        self.inner.secret()
    }

    fn head(&self) -> Position {
        self.inner.head()
    }

    fn news(&self) -> broadcast::Receiver<News> {
        self.inner.news()
    }

    fn documents(
        &self,
        ids: Vec<Box<str>>,
    ) -> BoxFuture<'_, Result<Vec<Option<Document>>, StoreFault>> {
        self.document_reads.fetch_add(1, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            self.fails()?;
            self.inner.documents(ids).await
        })
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.list(query)
    }

    fn last_events(
        &self,
        query: LastEvents,
    ) -> BoxFuture<'_, Result<Vec<StoredEvent>, StoreFault>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.last_events(query)
    }

    fn events(&self, query: ReadEvents) -> BoxFuture<'_, Result<Vec<StoredEvent>, StoreFault>> {
        Box::pin(async move {
            if let Some(due) = self.due() {
                due.await;
            }
            self.fails()?;
            let events = self.inner.events(query).await?;
            self.events_read.fetch_add(events.len(), Ordering::Relaxed);
            Ok(events)
        })
    }

    fn events_at(
        &self,
        positions: Vec<Position>,
    ) -> BoxFuture<'_, Result<Vec<Option<StoredEvent>>, StoreFault>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.events_at(positions)
    }

    fn last_event(&self, scope: Scope) -> BoxFuture<'_, Result<Option<Position>, StoreFault>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.last_event(scope)
    }

    fn claims(
        &self,
        scopes: Vec<ClaimScope>,
    ) -> BoxFuture<'_, Result<Vec<Option<Claim>>, StoreFault>> {
        self.inner.claims(scopes)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, CommitError>> {
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
        self.inner
            .skip(self.taken.swap(0, Ordering::Relaxed) as u64);
        let expected = commit.expected.iter();
        let expected = expected.map(|expected| expected.id.clone()).collect();
        self.expected.lock().unwrap().push(expected);
        self.inner.commit(commit)
    }

    fn newest(&self, query: NewestQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>> {
        self.inner.newest(query)
    }

    fn health(&self) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.inner.health()
    }
}

impl BlobStore for Watched {
    fn put_blob(&self, blob: Blob) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.inner.put_blob(blob)
    }

    fn erase_blobs(
        &self,
        field: Position,
        digests: Vec<Digest>,
    ) -> BoxFuture<'_, Result<Erased, StoreFault>> {
        self.inner.erase_blobs(field, digests)
    }

    fn blob(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        self.inner.blob(digest)
    }

    fn blob_as_stored(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        self.inner.blob_as_stored(digest)
    }
}

impl LeaseStore for Watched {
    fn take_over(
        &self,
        whose: Whose,
        holder: Box<str>,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        self.inner.take_over(whose, holder)
    }

    fn heartbeat(
        &self,
        beat: Heartbeat,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        self.inner.heartbeat(beat)
    }

    fn claim(&self, wanted: Wanted) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        self.inner.claim(wanted)
    }

    fn leave(&self, holder: Box<str>) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.inner.leave(holder)
    }
}

/// Fields are read from the log.
impl SegmentStore for Watched {}

impl TreeStore for Watched {
    fn tree(&self) -> BoxFuture<'_, Result<Tree, StoreFault>> {
        self.inner.tree()
    }

    fn append_leaves(&self, append: TreeAppend) -> BoxFuture<'_, Result<bool, StoreFault>> {
        self.inner.append_leaves(append)
    }

    fn head_size(&self, root: Digest) -> BoxFuture<'_, Result<Option<u64>, StoreFault>> {
        self.inner.head_size(root)
    }

    fn leaf_index(&self, receipt: Position) -> BoxFuture<'_, Result<Option<u64>, StoreFault>> {
        self.inner.leaf_index(receipt)
    }

    fn leaves(&self, first: u64, count: usize) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>> {
        self.inner.leaves(first, count)
    }

    fn tree_hashes(
        &self,
        level: u8,
        first: u64,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>> {
        self.inner.tree_hashes(level, first, count)
    }
}

impl KeyStore for Watched {
    fn api_key(&self, digest: Digest) -> BoxFuture<'_, Result<Option<ApiKey>, StoreFault>> {
        self.inner.api_key(digest)
    }

    fn api_keys(&self) -> BoxFuture<'_, Result<Vec<ApiKey>, StoreFault>> {
        self.inner.api_keys()
    }

    fn put_api_key(&self, key: ApiKey) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.inner.put_api_key(key)
    }
}
