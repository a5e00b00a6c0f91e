//! The in-memory store with a layer in front of it: what tests use to count calls, to delay them and to let them fail.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use canon::Digest;
use domain::{Blob, Document, EventName, Position};
use tokio::sync::broadcast;

use super::{
    ApiKey, BlobStore, BoxFuture, Claim, ClaimScope, Commit, CommitError, Committed, Erased,
    Heartbeat, KeyStore, LastEvents, LeaseName, LeaseOwners, LeaseRequest, LeaseStore, ListQuery,
    MemoryStore, NewestQuery, News, ReadEvents, Scope, SegmentStore, Store, StoreFault,
    StoredEvent, Tree, TreeAppend, TreeStore,
};

/// What is asked of a store, so far as layers treat it differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Documents by id.
    Documents,
    /// A range of events.
    Events,
    /// Anything else that a reader of a resource can cause.
    Read,
    /// The bytes of a blob.
    Blob,
    /// Everything else but commits.
    Other,
}

/// What stands in front of a store.
pub trait Layer: fmt::Debug + Send + Sync + 'static {
    /// Answers a call, as a rule with what the store answers.
    fn call<'a, T: Send + 'a>(
        &'a self,
        call: Call,
        answer: impl FnOnce() -> BoxFuture<'a, Result<T, StoreFault>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreFault>>;

    /// Commits, or fails to.
    fn commit<'a>(
        &'a self,
        store: &'a MemoryStore,
        commit: Commit,
    ) -> BoxFuture<'a, Result<Committed, CommitError>>;

    /// Hears how many events a range gave.
    fn gave(&self, _events: usize) {}
}

/// A store in memory, asked through a layer.
#[derive(Debug)]
pub struct Layered<L> {
    /// The store.
    pub store: Arc<MemoryStore>,
    /// What stands in front of it.
    pub layer: L,
}

impl<L> Deref for Layered<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.layer
    }
}

impl<L: Layer> Store for Layered<L> {
    fn name(&self) -> &EventName {
        self.store.name()
    }

    fn secret(&self) -> &[u8; 32] {
        self.store.secret()
    }

    fn head(&self) -> Position {
        self.store.head()
    }

    fn health(&self) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.store.health()
    }

    fn news(&self) -> broadcast::Receiver<News> {
        self.store.news()
    }

    fn documents(
        &self,
        ids: Vec<Box<str>>,
    ) -> BoxFuture<'_, Result<Vec<Option<Document>>, StoreFault>> {
        self.layer
            .call(Call::Documents, move || self.store.documents(ids))
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>> {
        self.layer.call(Call::Read, move || self.store.list(query))
    }

    fn events(&self, query: ReadEvents) -> BoxFuture<'_, Result<Vec<StoredEvent>, StoreFault>> {
        let events = self
            .layer
            .call(Call::Events, move || self.store.events(query));
        Box::pin(async move {
            let events = events.await?;
            self.layer.gave(events.len());
            Ok(events)
        })
    }

    fn last_events(
        &self,
        query: LastEvents,
    ) -> BoxFuture<'_, Result<Vec<StoredEvent>, StoreFault>> {
        self.layer
            .call(Call::Read, move || self.store.last_events(query))
    }

    fn events_at(
        &self,
        positions: Vec<Position>,
    ) -> BoxFuture<'_, Result<Vec<Option<StoredEvent>>, StoreFault>> {
        self.layer
            .call(Call::Read, move || self.store.events_at(positions))
    }

    fn last_event(&self, scope: Scope) -> BoxFuture<'_, Result<Option<Position>, StoreFault>> {
        self.layer
            .call(Call::Read, move || self.store.last_event(scope))
    }

    fn claims(
        &self,
        scopes: Vec<ClaimScope>,
    ) -> BoxFuture<'_, Result<Vec<Option<Claim>>, StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.claims(scopes))
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, CommitError>> {
        self.layer.commit(&self.store, commit)
    }

    fn newest(&self, query: NewestQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.newest(query))
    }
}

impl<L: Layer> BlobStore for Layered<L> {
    fn put_blob(&self, blob: Blob) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.put_blob(blob))
    }

    fn erase_blobs(
        &self,
        field: Position,
        digests: Vec<Digest>,
    ) -> BoxFuture<'_, Result<Erased, StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.erase_blobs(field, digests))
    }

    fn blob(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        self.layer.call(Call::Blob, move || self.store.blob(digest))
    }

    fn blob_as_stored(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        self.layer
            .call(Call::Blob, move || self.store.blob_as_stored(digest))
    }
}

impl<L: Layer> LeaseStore for Layered<L> {
    fn take_over(
        &self,
        whose: LeaseOwners,
        holder: Box<str>,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.take_over(whose, holder))
    }

    fn heartbeat(
        &self,
        beat: Heartbeat,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.heartbeat(beat))
    }

    fn claim(
        &self,
        wanted: LeaseRequest,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.claim(wanted))
    }

    fn leave(&self, holder: Box<str>) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.leave(holder))
    }
}

/// Fields are read from the log.
impl<L: Layer> SegmentStore for Layered<L> {}

impl<L: Layer> TreeStore for Layered<L> {
    fn tree(&self) -> BoxFuture<'_, Result<Tree, StoreFault>> {
        self.layer.call(Call::Other, move || self.store.tree())
    }

    fn append_leaves(&self, append: TreeAppend) -> BoxFuture<'_, Result<bool, StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.append_leaves(append))
    }

    fn head_size(&self, root: Digest) -> BoxFuture<'_, Result<Option<u64>, StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.head_size(root))
    }

    fn leaf_index(&self, receipt: Position) -> BoxFuture<'_, Result<Option<u64>, StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.leaf_index(receipt))
    }

    fn leaves(&self, first: u64, count: usize) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.leaves(first, count))
    }

    fn tree_hashes(
        &self,
        level: u8,
        first: u64,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>> {
        self.layer.call(Call::Other, move || {
            self.store.tree_hashes(level, first, count)
        })
    }
}

impl<L: Layer> KeyStore for Layered<L> {
    fn api_key(&self, digest: Digest) -> BoxFuture<'_, Result<Option<ApiKey>, StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.api_key(digest))
    }

    fn api_keys(&self) -> BoxFuture<'_, Result<Vec<ApiKey>, StoreFault>> {
        self.layer.call(Call::Other, move || self.store.api_keys())
    }

    fn put_api_key(&self, key: ApiKey) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.layer
            .call(Call::Other, move || self.store.put_api_key(key))
    }
}
