//! The store of a simulation: the in-memory one behind delays and failures.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use canon::Digest;
use domain::{Blob, Document, EventName, Position};
use engine::port::{
    ApiKey, BlobStore, BoxFuture, Claim, ClaimScope, Commit, CommitError, Committed, Erased,
    Heartbeat, KeyStore, LastEvents, LeaseName, LeaseStore, ListQuery, MemoryStore, NewestQuery,
    News, ReadEvents, Scope, SegmentStore, Store, StoreFault, StoredEvent, Tree, TreeAppend,
    TreeStore, Wanted, Whose,
};
use tokio::sync::broadcast;

use crate::world::{Dice, dawdle};

/// Delays every call and fails some: a commit may be lost (nothing written), or its answer may be (written, and
/// the process dies before it learns so).
pub(crate) struct FaultyStore {
    pub(crate) inner: Arc<MemoryStore>,
    pub(crate) dice: Dice,
    /// Set when the process must die before anything else happens.
    pub(crate) must_crash: Arc<AtomicBool>,
    pub(crate) faults: bool,
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").finish_non_exhaustive()
    }
}

impl FaultyStore {
    fn later<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a MemoryStore) -> BoxFuture<'a, Result<T, StoreFault>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreFault>> {
        Box::pin(async move {
            dawdle(self.dice.below(3)).await;
            if self.faults && self.dice.one_in(400) {
                return Err(StoreFault::new("simulated: the disk cannot be read"));
            }
            call(&self.inner).await
        })
    }
}

impl Store for FaultyStore {
    fn name(&self) -> &EventName {
        self.inner.name()
    }

    fn secret(&self) -> &[u8; 32] {
        self.inner.secret()
    }

    fn head(&self) -> Position {
        self.inner.head()
    }

    fn health(&self) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.inner.health()
    }

    fn news(&self) -> broadcast::Receiver<News> {
        self.inner.news()
    }

    fn documents(
        &self,
        ids: Vec<Box<str>>,
    ) -> BoxFuture<'_, Result<Vec<Option<Document>>, StoreFault>> {
        self.later(move |store| store.documents(ids))
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>> {
        self.later(move |store| store.list(query))
    }

    fn events(&self, query: ReadEvents) -> BoxFuture<'_, Result<Vec<StoredEvent>, StoreFault>> {
        self.later(move |store| store.events(query))
    }

    fn last_events(
        &self,
        query: LastEvents,
    ) -> BoxFuture<'_, Result<Vec<StoredEvent>, StoreFault>> {
        self.later(move |store| store.last_events(query))
    }

    fn events_at(
        &self,
        positions: Vec<Position>,
    ) -> BoxFuture<'_, Result<Vec<Option<StoredEvent>>, StoreFault>> {
        self.later(move |store| store.events_at(positions))
    }

    fn last_event(&self, scope: Scope) -> BoxFuture<'_, Result<Option<Position>, StoreFault>> {
        self.later(move |store| store.last_event(scope))
    }

    fn claims(
        &self,
        scopes: Vec<ClaimScope>,
    ) -> BoxFuture<'_, Result<Vec<Option<Claim>>, StoreFault>> {
        self.later(move |store| store.claims(scopes))
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, CommitError>> {
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
                self.inner.skip(1 + u64::from(self.dice.below(3)));
            }
            let committed = self.inner.commit(commit).await;
            if self.faults && self.dice.one_in(50) {
                // Durable, and the process dies before it knows.
                self.must_crash.store(true, Ordering::Relaxed);
                std::future::pending::<()>().await;
            }
            dawdle(self.dice.below(3)).await;
            committed
        })
    }

    fn newest(&self, query: NewestQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>> {
        self.later(move |store| store.newest(query))
    }
}

impl BlobStore for FaultyStore {
    fn put_blob(&self, blob: Blob) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.later(move |store| store.put_blob(blob))
    }

    fn erase_blobs(
        &self,
        field: Position,
        digests: Vec<Digest>,
    ) -> BoxFuture<'_, Result<Erased, StoreFault>> {
        self.later(move |store| store.erase_blobs(field, digests))
    }

    fn blob(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        self.later(move |store| store.blob(digest))
    }

    fn blob_as_stored(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        self.later(move |store| store.blob_as_stored(digest))
    }
}

impl LeaseStore for FaultyStore {
    fn take_over(
        &self,
        whose: Whose,
        holder: Box<str>,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        self.later(move |store| store.take_over(whose, holder))
    }

    fn heartbeat(
        &self,
        beat: Heartbeat,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        self.later(move |store| store.heartbeat(beat))
    }

    fn claim(&self, wanted: Wanted) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        self.later(move |store| store.claim(wanted))
    }

    fn leave(&self, holder: Box<str>) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.later(move |store| store.leave(holder))
    }
}

/// Fields are read from the log.
impl SegmentStore for FaultyStore {}

impl TreeStore for FaultyStore {
    fn tree(&self) -> BoxFuture<'_, Result<Tree, StoreFault>> {
        self.later(|store| store.tree())
    }

    fn append_leaves(&self, append: TreeAppend) -> BoxFuture<'_, Result<bool, StoreFault>> {
        self.later(move |store| store.append_leaves(append))
    }

    fn head_size(&self, root: Digest) -> BoxFuture<'_, Result<Option<u64>, StoreFault>> {
        self.later(move |store| store.head_size(root))
    }

    fn leaf_index(&self, receipt: Position) -> BoxFuture<'_, Result<Option<u64>, StoreFault>> {
        self.later(move |store| store.leaf_index(receipt))
    }

    fn leaves(&self, first: u64, count: usize) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>> {
        self.later(move |store| store.leaves(first, count))
    }

    fn tree_hashes(
        &self,
        level: u8,
        first: u64,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>> {
        self.later(move |store| store.tree_hashes(level, first, count))
    }
}

impl KeyStore for FaultyStore {
    fn api_key(&self, digest: Digest) -> BoxFuture<'_, Result<Option<ApiKey>, StoreFault>> {
        self.later(move |store| store.api_key(digest))
    }

    fn api_keys(&self) -> BoxFuture<'_, Result<Vec<ApiKey>, StoreFault>> {
        self.later(|store| store.api_keys())
    }

    fn put_api_key(&self, key: ApiKey) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.later(move |store| store.put_api_key(key))
    }
}
