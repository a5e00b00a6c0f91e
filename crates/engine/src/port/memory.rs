//! The store in memory: the first implementation, stricter than production.
//!
//! One lock around plain maps. Everything is checked on every commit (positions ascend from the reserved one,
//! versions count up, links point at events before), so that a test on it finds what a database would let pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use canon::Digest;
use domain::{Blob, Document, EventName, Position, State, Timestamp};
use tokio::sync::broadcast;

use super::{
    ApiKey, BlobStore, BoxFuture, Claim, ClaimScope, ClaimTime, Commit, CommitError, Committed,
    Erased, Heartbeat, KeyStore, LastEvents, LeaseName, LeaseOwners, LeaseRequest, LeaseStore,
    ListQuery, NewestQuery, News, Publisher, ReadEvents, Scope, SegmentStore, Store, StoreFault,
    StoredEvent, Tree, TreeAppend, TreeStore,
};

/// A log in memory.
pub struct MemoryStore {
    name: EventName,
    secret: [u8; 32],
    inner: Mutex<Inner>,
    news: Publisher,
    reads: AtomicU64,
}

#[derive(Default, Clone)]
struct Inner {
    head: u64,
    events: BTreeMap<Position, StoredEvent>,
    documents: BTreeMap<Box<str>, Document>,
    claims: BTreeMap<ClaimScope, Claim>,
    claim_time: ClaimTime,
    leases: BTreeMap<LeaseName, (Box<str>, u64)>,
    /// When each holder is late.
    holders: BTreeMap<Box<str>, i64>,
    epoch: u64,
    blobs: BTreeMap<Digest, Vec<u8>>,
    api_keys: Vec<ApiKey>,
    tree: Option<Tree>,
    leaves: Vec<(Position, Digest)>,
    tree_hashes: BTreeMap<(u8, u64), Digest>,
}

impl MemoryStore {
    /// Makes an empty log.
    pub fn new(name: &str, secret: [u8; 32]) -> Self {
        Self {
            name: EventName::new(name),
            secret,
            inner: Mutex::default(),
            news: Publisher::default(),
            reads: AtomicU64::new(0),
        }
    }

    /// Returns another store with the same content, as a crash and a restart would leave it: subscribers are
    /// gone, everything committed is there.
    pub fn reopened(&self) -> Self {
        let mut inner = self.lock().clone();
        inner.claim_time = ClaimTime::resume(inner.claim_time.time());
        Self {
            name: self.name.clone(),
            secret: self.secret,
            inner: Mutex::new(inner),
            news: Publisher::default(),
            reads: AtomicU64::new(0),
        }
    }

    /// Removes all content behind the log's back.
    pub fn forget_blobs(&self) {
        self.lock().blobs.clear();
    }

    /// Replaces or removes a document behind the log's back, as damage does.
    pub fn damage(&self, id: &str, document: Option<Document>) {
        let documents = &mut self.lock().documents;
        match document {
            Some(document) => documents.insert(id.into(), document),
            None => documents.remove(id),
        };
    }

    /// Takes positions that no event will have, as a commit of another node would that came to nothing: whoever guessed
    /// the next position must seal again.
    pub fn skip(&self, positions: u64) {
        self.lock().head += positions;
    }

    /// Returns how often documents or events were read: a store on a disk answers each from another thread.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn read(&self) -> MutexGuard<'_, Inner> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Checks come before changes, so that a panic cannot leave the maps half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

impl Store for MemoryStore {
    fn name(&self) -> &EventName {
        &self.name
    }

    fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    fn head(&self) -> Position {
        Position(self.lock().head)
    }

    fn health(&self) -> BoxFuture<'_, Result<(), StoreFault>> {
        ready(Ok(()))
    }

    fn news(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }

    fn documents(
        &self,
        ids: Vec<Box<str>>,
    ) -> BoxFuture<'_, Result<Vec<Option<Document>>, StoreFault>> {
        let inner = self.read();
        ready(Ok(ids
            .iter()
            .map(|id| inner.documents.get(id).cloned())
            .collect()))
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>> {
        let mut found: Vec<Document> = self
            .read()
            .documents
            .values()
            .filter(|document| {
                document.state.kind() == query.kind
                    && query.scope.contains(&document.links)
                    && document.key > query.after
                    && (!query.open_only || document.state.is_open())
            })
            .cloned()
            .collect();
        found.sort_by_key(|document| document.key);
        found.truncate(query.limit);
        ready(Ok(found))
    }

    fn events(&self, query: ReadEvents) -> BoxFuture<'_, Result<Vec<StoredEvent>, StoreFault>> {
        let found = self
            .read()
            .events
            .range(query.after.plus(1)..)
            .map(|(_, event)| event)
            .filter(|event| query.scope.contains(&event.links))
            .take(query.limit)
            .cloned()
            .collect();
        ready(Ok(found))
    }

    fn last_events(
        &self,
        query: LastEvents,
    ) -> BoxFuture<'_, Result<Vec<StoredEvent>, StoreFault>> {
        let before = query.before.unwrap_or(Position(u64::MAX));
        let found = self
            .read()
            .events
            .range(..before)
            .rev()
            .map(|(_, event)| event)
            .filter(|event| query.scope.contains(&event.links))
            .take(query.limit)
            .cloned()
            .collect();
        ready(Ok(found))
    }

    fn events_at(
        &self,
        positions: Vec<Position>,
    ) -> BoxFuture<'_, Result<Vec<Option<StoredEvent>>, StoreFault>> {
        let inner = self.read();
        ready(Ok(positions
            .iter()
            .map(|position| inner.events.get(position).cloned())
            .collect()))
    }

    fn last_event(&self, scope: Scope) -> BoxFuture<'_, Result<Option<Position>, StoreFault>> {
        let inner = self.read();
        let last = inner
            .events
            .values()
            .rev()
            .find(|event| scope.contains(&event.links));
        ready(Ok(last.map(|event| event.position)))
    }

    fn claims(
        &self,
        scopes: Vec<ClaimScope>,
    ) -> BoxFuture<'_, Result<Vec<Option<Claim>>, StoreFault>> {
        let inner = self.lock();
        ready(Ok(scopes
            .iter()
            .map(|scope| inner.claims.get(scope).copied())
            .collect()))
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, CommitError>> {
        let (committed, events) = match self.lock().commit(commit) {
            Ok(done) => done,
            Err(error) => return ready(Err(error)),
        };
        self.news.publish(events);
        ready(Ok(committed))
    }

    fn newest(&self, query: NewestQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>> {
        let mut found: Vec<Document> = self
            .read()
            .documents
            .values()
            .filter(|document| {
                document.state.kind() == query.kind
                    && query.scope.contains(&document.links)
                    && query.before.is_none_or(|before| document.key < before)
            })
            .cloned()
            .collect();
        found.sort_by_key(|document| std::cmp::Reverse(document.key));
        found.truncate(query.limit);
        ready(Ok(found))
    }
}

impl BlobStore for MemoryStore {
    fn put_blob(&self, blob: Blob) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.lock().blobs.insert(blob.digest, blob.bytes);
        ready(Ok(()))
    }

    fn erase_blobs(
        &self,
        _: Position,
        digests: Vec<Digest>,
    ) -> BoxFuture<'_, Result<Erased, StoreFault>> {
        let blobs = &mut self.lock().blobs;
        blobs.retain(|digest, _| !digests.contains(digest));
        ready(Ok(Erased::Gone))
    }

    fn blob(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        ready(Ok(self.lock().blobs.get(&digest).cloned()))
    }

    fn blob_as_stored(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        self.blob(digest)
    }
}

impl LeaseStore for MemoryStore {
    fn take_over(
        &self,
        whose: LeaseOwners,
        holder: Box<str>,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        let inner = &mut *self.lock();
        let is_meant = |known: &str| match &whose {
            LeaseOwners::Everybody => true,
            LeaseOwners::Holder(other) => **other == *known,
        };
        inner.holders.retain(|known, _| !is_meant(known));
        let mut taken = Vec::new();
        for (name, lease) in &mut inner.leases {
            if is_meant(&lease.0) {
                inner.epoch += 1;
                *lease = (holder.clone(), inner.epoch);
                taken.push((*name, inner.epoch));
            }
        }
        ready(Ok(taken))
    }

    fn heartbeat(
        &self,
        beat: Heartbeat,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        let inner = &mut *self.lock();
        let now = beat.now.as_micros();
        inner.holders.insert(beat.holder.clone(), beat.ends_at());
        let leases = &inner.leases;
        inner.holders.retain(|known, ends_at| {
            !Heartbeat::is_late(*ends_at, now)
                || *known == beat.holder
                || leases.values().any(|(holder, _)| holder == known)
        });
        let own = leases.iter().filter(|(_, lease)| lease.0 == beat.holder);
        ready(Ok(own.map(|(name, lease)| (*name, lease.1)).collect()))
    }

    fn claim(
        &self,
        wanted: LeaseRequest,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        let inner = &mut *self.lock();
        let now = wanted.now.as_micros();
        let holders = &inner.holders;
        let is_late = |holder: &str| {
            let ends_at = holders.get(holder);
            ends_at.is_none_or(|ends_at| Heartbeat::is_late(*ends_at, now))
        };
        let mut taken = Vec::new();
        if is_late(&wanted.holder) {
            return ready(Ok(taken));
        }
        for (name, version) in wanted.leases {
            let mut documents = inner.documents.values();
            let is_as_seen = documents.any(|known| known.key == name && known.version == version);
            let held = inner.leases.get(&name);
            if is_as_seen && held.is_none_or(|(holder, _)| is_late(holder)) {
                inner.epoch += 1;
                let lease = (wanted.holder.clone(), inner.epoch);
                inner.leases.insert(name, lease);
                taken.push((name, inner.epoch));
            }
        }
        ready(Ok(taken))
    }

    fn leave(&self, holder: Box<str>) -> BoxFuture<'_, Result<(), StoreFault>> {
        let inner = &mut *self.lock();
        inner.holders.remove(&holder);
        inner.leases.retain(|_, (known, _)| *known != holder);
        ready(Ok(()))
    }
}

/// Fields are read from the log.
impl SegmentStore for MemoryStore {}

impl TreeStore for MemoryStore {
    fn tree(&self) -> BoxFuture<'_, Result<Tree, StoreFault>> {
        let empty = Tree {
            size: 0,
            peaks: Vec::new(),
            last: Position::START,
        };
        ready(Ok(self.lock().tree.clone().unwrap_or(empty)))
    }

    fn append_leaves(&self, append: TreeAppend) -> BoxFuture<'_, Result<bool, StoreFault>> {
        let mut inner = self.lock();
        if inner.leaves.len() as u64 != append.expected_size {
            return ready(Ok(false));
        }
        inner.leaves.extend(append.leaves);
        assert_eq!(
            inner.leaves.len() as u64,
            append.after.size,
            "as many leaves as the tree has"
        );
        inner.tree_hashes.extend(
            append
                .hashes
                .into_iter()
                .map(|(level, index, hash)| ((level, index), hash)),
        );
        inner.tree = Some(append.after);
        ready(Ok(true))
    }

    fn head_size(&self, root: Digest) -> BoxFuture<'_, Result<Option<u64>, StoreFault>> {
        let inner = self.lock();
        let mut heads = inner
            .documents
            .values()
            .filter_map(|document| match &document.state {
                State::Batch(batch) => Some((batch.root, batch.size)),
                _ => None,
            });
        let found = heads.find(|(known, _)| *known == root);
        ready(Ok(found.map(|(_, size)| size)))
    }

    fn leaf_index(&self, receipt: Position) -> BoxFuture<'_, Result<Option<u64>, StoreFault>> {
        let index = self
            .lock()
            .leaves
            .iter()
            .position(|(key, _)| *key == receipt);
        ready(Ok(index.map(|index| index as u64)))
    }

    fn leaves(&self, first: u64, count: usize) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>> {
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        ready(Ok(self
            .lock()
            .leaves
            .iter()
            .skip(first)
            .take(count)
            .map(|(_, hash)| *hash)
            .collect()))
    }

    fn tree_hashes(
        &self,
        level: u8,
        first: u64,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>> {
        let inner = self.lock();
        let hashes = inner.tree_hashes.range((level, first)..=(level, u64::MAX));
        ready(Ok(hashes.take(count).map(|(_, hash)| *hash).collect()))
    }
}

impl KeyStore for MemoryStore {
    fn api_key(&self, digest: Digest) -> BoxFuture<'_, Result<Option<ApiKey>, StoreFault>> {
        ready(Ok(self
            .lock()
            .api_keys
            .iter()
            .find(|key| key.digest == digest)
            .cloned()))
    }

    fn api_keys(&self) -> BoxFuture<'_, Result<Vec<ApiKey>, StoreFault>> {
        ready(Ok(self.lock().api_keys.clone()))
    }

    fn put_api_key(&self, key: ApiKey) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.lock().put_api_key(key);
        ready(Ok(()))
    }
}

impl Inner {
    fn put_api_key(&mut self, key: ApiKey) {
        match self.api_keys.iter_mut().find(|known| known.id == key.id) {
            Some(known) => *known = key,
            None => self.api_keys.push(key),
        }
    }

    fn commit(&mut self, commit: Commit) -> Result<(Committed, Vec<StoredEvent>), CommitError> {
        for expected in &commit.expected {
            let version = self
                .documents
                .get(&expected.id)
                .map_or(0, |document| document.version);
            if version != expected.version {
                return Err(CommitError::Conflict);
            }
        }
        for fence in &commit.fences {
            if self.leases.get(&fence.lease).map(|(_, epoch)| *epoch) != Some(fence.epoch) {
                return Err(CommitError::Fenced(fence.lease));
            }
        }
        let first = Position(self.head + 1);
        let turn = (commit.seal)(first).map_err(CommitError::Impossible)?;
        // Every check comes before the first change: a refused commit changes nothing.
        let clock = commit.now.as_micros();
        let mut time = self.claim_time;
        let now = time.advance(clock);
        self.claims
            .retain(|_, claim| claim.expires_at.as_micros() > now);
        let mut scopes = BTreeSet::new();
        if turn
            .claims
            .iter()
            .any(|claim| self.claims.contains_key(&claim.scope) || !scopes.insert(claim.scope))
        {
            return Err(CommitError::Conflict);
        }
        let mut taken = BTreeSet::new();
        if let Some(held) = turn
            .leases_taken
            .iter()
            .find(|name| self.leases.contains_key(name) || !taken.insert(**name))
        {
            return Err(CommitError::Fenced(*held));
        }
        self.claim_time = time;
        for mut claim in turn.claims {
            let end = time.end(clock, claim.expires_at.as_micros());
            claim.expires_at = Timestamp::from_micros(end);
            self.claims.insert(claim.scope, claim);
        }
        for (event, position) in turn.events.iter().zip(first.0..) {
            assert_eq!(
                event.position.0, position,
                "events ascend from the reserved position"
            );
            assert!(
                event
                    .links
                    .keys()
                    .all(|key| key == event.position || self.events.contains_key(&key)),
                "links point at what an event created before"
            );
            self.events.insert(event.position, event.clone());
        }
        assert_eq!(
            turn.events.len() as u64,
            commit.event_count,
            "as many events as positions were reserved"
        );
        self.head += commit.event_count;
        for document in turn.documents {
            assert!(
                self.events.contains_key(&document.tip),
                "a document's tip is an event"
            );
            let document = Arc::unwrap_or_clone(document);
            let (id, version) = (document.id.clone(), document.version);
            let before = self.documents.insert(id, document);
            assert!(
                before.is_none_or(|before| before.version < version),
                "a document's version counts up"
            );
        }
        for blob in commit.blobs.into_iter().chain(turn.blobs) {
            self.blobs.insert(blob.digest, blob.bytes);
        }
        let mut leases = Vec::new();
        for name in turn.leases_taken {
            self.epoch += 1;
            if self
                .leases
                .insert(name, (commit.holder.clone(), self.epoch))
                .is_some()
            {
                return Err(CommitError::Fenced(name));
            }
            leases.push((name, self.epoch));
        }
        for name in &turn.leases_released {
            self.leases.remove(name);
        }
        for key in turn.api_keys {
            self.put_api_key(key);
        }
        Ok((Committed { first, leases }, turn.events))
    }
}
