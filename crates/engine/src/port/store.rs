//! The store port: the few calls that every backend answers alike.
//!
//! Reads see committed data only. State changes in one way, [`Store::commit`]: it checks what the caller
//! believed (document versions, claims, leases), reserves positions, lets the caller seal its events with
//! them, and makes everything durable before it returns. Four more calls write what is not folded from events:
//! [`Store::put_blob`] content before the commit that names it, [`Store::append_leaves`] the tree of receipts, which
//! follows the log, [`Store::take_over`] leases at a start, [`Store::put_api_key`] keys.

use std::fmt;
use std::sync::Arc;

use canon::Digest;
use domain::{
    Blob, Document, EventName, ImpossibleEvent, Links, Position, ResourceKind, Timestamp,
};
use tokio::sync::broadcast;

use super::{BoxFuture, News};

/// Content on its way into a store. Dropping it leaves nothing behind.
pub trait Incoming: std::fmt::Debug + Send + Sync {
    /// Adds the next bytes.
    fn append(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), StoreFault>>;

    /// Stores all that was added under the digest that it has, durably.
    fn keep(self: Box<Self>, digest: Digest) -> BoxFuture<'static, Result<(), StoreFault>>;
}

/// A store of one log: events, the documents folded from them, and what is not folded (claims, leases, keys,
/// blobs).
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// Returns the name of the log, which is part of every event id.
    fn name(&self) -> &EventName;

    /// Returns the secret of this log, made at its creation and never shown: keys the digests of claims.
    fn secret(&self) -> &[u8; 32];

    /// Returns the position of the last committed event; the start when there is none.
    fn head(&self) -> Position;

    /// Says whether anything can be written, or why not.
    fn health(&self) -> BoxFuture<'_, Result<(), StoreFault>>;

    /// Subscribes to commits. Lossy: a subscriber that lags is told so and reads the log instead.
    fn news(&self) -> broadcast::Receiver<News>;

    /// Returns how much a Workspace has stored, by its key; none when this store does not count.
    fn stored(&self, _workspace: Position) -> Option<Stored> {
        None
    }

    /// Reads documents by id; absent ones are none, in the order asked.
    fn documents(
        &self,
        ids: Vec<Box<str>>,
    ) -> BoxFuture<'_, Result<Vec<Option<Document>>, StoreFault>>;

    /// Lists documents of a kind, ordered by creation.
    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>>;

    /// Reads events of a scope after a position, ascending.
    fn events(&self, query: ReadEvents) -> BoxFuture<'_, Result<Vec<StoredEvent>, StoreFault>>;

    /// Reads the newest events of a scope, descending.
    fn last_events(&self, query: LastEvents)
    -> BoxFuture<'_, Result<Vec<StoredEvent>, StoreFault>>;

    /// Reads events by position; absent ones are none, in the order asked.
    fn events_at(
        &self,
        positions: Vec<Position>,
    ) -> BoxFuture<'_, Result<Vec<Option<StoredEvent>>, StoreFault>>;

    /// Returns the position of the last event of a scope.
    fn last_event(&self, scope: Scope) -> BoxFuture<'_, Result<Option<Position>, StoreFault>>;

    /// Reads claims; absent or expired ones are none, in the order asked.
    fn claims(
        &self,
        scopes: Vec<ClaimScope>,
    ) -> BoxFuture<'_, Result<Vec<Option<Claim>>, StoreFault>>;

    /// Writes one turn, durably, or changes nothing.
    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, CommitError>>;

    /// Stores content under its digest, durably. Storing what is there already does nothing.
    fn put_blob(&self, blob: Blob) -> BoxFuture<'_, Result<(), StoreFault>>;

    /// Opens a place for content whose digest is known only when all of it has arrived; none when this store takes
    /// content only whole.
    fn incoming(&self) -> BoxFuture<'_, Result<Option<Box<dyn Incoming>>, StoreFault>> {
        Box::pin(async { Ok(None) })
    }

    /// Reads a part of content: at most this many bytes from an offset on, unchecked. None when it is not there.
    fn blob_piece(
        &self,
        digest: Digest,
        offset: u64,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        Box::pin(async move {
            let whole = self.blob_as_stored(digest).await?;
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let piece = |whole: Vec<u8>| whole.into_iter().skip(start).take(bytes_max).collect();
            Ok(whole.map(piece))
        })
    }

    /// Reads content by digest.
    fn blob(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>>;

    /// Reads what is stored under a digest, whether it hashes to it or not: for verdicts on damaged content.
    fn blob_as_stored(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>>;

    /// Reads several at once, in the order asked.
    fn blobs_as_stored(
        &self,
        digests: Vec<Digest>,
    ) -> BoxFuture<'_, Result<Vec<Option<Vec<u8>>>, StoreFault>> {
        Box::pin(async move {
            let mut found = Vec::with_capacity(digests.len());
            for digest in digests {
                found.push(self.blob_as_stored(digest).await?);
            }
            Ok(found)
        })
    }

    /// Makes every lease in the store this holder's, each with a new epoch. Only a process that holds the data
    /// directory may call this, and it does so before it works.
    fn take_over(
        &self,
        holder: Box<str>,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>>;

    /// Lists documents, newest first.
    fn newest(&self, query: NewestQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>>;

    /// Reads where the receipt log's tree stands.
    fn tree(&self) -> BoxFuture<'_, Result<Tree, StoreFault>>;

    /// Appends leaves to the tree, durably. False when the tree has another size than the caller believed.
    fn append_leaves(&self, append: TreeAppend) -> BoxFuture<'_, Result<bool, StoreFault>>;

    /// Returns the size of a sealed head with a root, however many there are.
    fn head_size(&self, root: Digest) -> BoxFuture<'_, Result<Option<u64>, StoreFault>>;

    /// Returns the index of the leaf of a Receipt, by the Receipt's key.
    fn leaf_index(&self, receipt: Position) -> BoxFuture<'_, Result<Option<u64>, StoreFault>>;

    /// Reads receipt hashes of leaves, ascending from an index; fewer at the end of the tree.
    fn leaves(&self, first: u64, count: usize) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>>;

    /// Reads hashes of a tile level, ascending from an index; fewer at the end of the level.
    fn tree_hashes(
        &self,
        level: u8,
        first: u64,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>>;

    /// Reads the segment of a field's fold that begins right after a sequence, by the field's key; none when there is none
    /// or this store keeps none.
    fn field_segment(
        &self,
        _field: Position,
        _after: u64,
    ) -> BoxFuture<'_, Result<Option<FieldSegment>, StoreFault>> {
        Box::pin(async { Ok(None) })
    }

    /// Keeps a segment, in the place of those that reach into it or beyond.
    fn put_field_segment(&self, _segment: FieldSegment) -> BoxFuture<'_, Result<(), StoreFault>> {
        Box::pin(async { Ok(()) })
    }

    /// Forgets the segments of a field.
    fn drop_field_segments(&self, _field: Position) -> BoxFuture<'_, Result<(), StoreFault>> {
        Box::pin(async { Ok(()) })
    }

    /// Finds an API key by the digest of its text.
    fn api_key(&self, digest: Digest) -> BoxFuture<'_, Result<Option<ApiKey>, StoreFault>>;

    /// Lists API keys, oldest first.
    fn api_keys(&self) -> BoxFuture<'_, Result<Vec<ApiKey>, StoreFault>>;

    /// Adds an API key, or replaces the one with the same id.
    fn put_api_key(&self, key: ApiKey) -> BoxFuture<'_, Result<(), StoreFault>>;

    /// Returns whether every API key was recorded by events once: then one without events was made by nobody.
    fn keys_are_recorded(&self) -> BoxFuture<'_, Result<bool, StoreFault>> {
        Box::pin(async { Ok(false) })
    }

    /// Notes that they are.
    fn note_keys_recorded(&self) -> BoxFuture<'_, Result<(), StoreFault>> {
        Box::pin(async { Ok(()) })
    }
}

/// The world failed: disk, database, file system.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct StoreFault {
    message: String,
    kind: FaultKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultKind {
    Other,
    Full,
    Unavailable,
}

impl StoreFault {
    /// Says what failed.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            kind: FaultKind::Other,
        }
    }

    /// Says that there is no room left.
    pub fn full(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            kind: FaultKind::Full,
        }
    }

    /// True when there is no room left: reads go on, and writes may work again later.
    pub fn is_full(&self) -> bool {
        self.kind == FaultKind::Full
    }

    /// Says that nothing can be written until somebody looks after it.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            kind: FaultKind::Unavailable,
        }
    }

    /// True when nothing can be written until somebody looks after it.
    pub fn is_unavailable(&self) -> bool {
        self.kind == FaultKind::Unavailable
    }
}

/// A stored event with what is needed to filter it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    /// Where it stands.
    pub position: Position,
    /// What it belongs to.
    pub links: Links,
    /// Key of the resource it happened to.
    pub resource: Position,
    /// The canonical bytes.
    pub bytes: Arc<[u8]>,
}

/// Which events, or which documents, by the key of what they belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All of them.
    All,
    /// Those of a Workspace.
    Workspace(Position),
    /// Those of a Session.
    Session(Position),
    /// Those of a Task.
    Task(Position),
    /// Those that are linked to a document further, see [`domain::FurtherLink`].
    Linked(Position),
}

impl Scope {
    /// True when something with these links is in the scope.
    pub fn contains(self, links: &Links) -> bool {
        match self {
            Scope::All => true,
            Scope::Workspace(key) => links.workspace == Some(key),
            Scope::Session(key) => links.session == Some(key),
            Scope::Task(key) => links.task == Some(key),
            Scope::Linked(key) => links.further.contains(&key),
        }
    }
}

/// A list of documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListQuery {
    /// Of this kind.
    pub kind: ResourceKind,
    /// In this scope.
    pub scope: Scope,
    /// Only those still open (see [`domain::State::is_open`]).
    pub open_only: bool,
    /// Created after this key.
    pub after: Position,
    /// The maximum number to return.
    pub limit: usize,
}

/// The newest documents of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewestQuery {
    /// Of this kind.
    pub kind: ResourceKind,
    /// In this scope.
    pub scope: Scope,
    /// Created before this key; none for no bound.
    pub before: Option<Position>,
    /// The maximum number to return.
    pub limit: usize,
}

impl NewestQuery {
    /// Asks for the newest of all documents of a kind.
    pub const fn one(kind: ResourceKind) -> Self {
        Self {
            kind,
            scope: Scope::All,
            before: None,
            limit: 1,
        }
    }
}

/// A range of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadEvents {
    /// In this scope.
    pub scope: Scope,
    /// After this position.
    pub after: Position,
    /// The maximum number to return.
    pub limit: usize,
}

/// The newest events of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastEvents {
    /// In this scope.
    pub scope: Scope,
    /// Before this position; none for no bound.
    pub before: Option<Position>,
    /// The maximum number to return.
    pub limit: usize,
}

/// The digest of actor, workspace, method, target and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimScope(pub Digest);

/// An idempotency key in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Whose and for what.
    pub scope: ClaimScope,
    /// Keyed digest of the canonical body.
    pub body: Digest,
    /// Position of the event the answer is rebuilt from.
    pub answer: Position,
    /// When it may be forgotten: for a commit by its own clock, when read by the store's (see [`super::ClaimTime`]).
    pub expires_at: Timestamp,
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

/// A document version the caller has seen; 0 for a document that must not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The document.
    pub id: Box<str>,
    /// Its version.
    pub version: u64,
}

/// What sealing gives the store to write.
#[derive(Debug, Default)]
pub struct SealedTurn {
    /// The events, ascending from the first reserved position.
    pub events: Vec<StoredEvent>,
    /// The documents as these events left them, each once.
    pub documents: Vec<Arc<Document>>,
    /// Content that only sealing could make.
    pub blobs: Vec<Blob>,
    /// New claims.
    pub claims: Vec<Claim>,
    /// Leases to take for the holder. Epochs come from one counter of the store that never goes back. A lease
    /// that anybody holds cannot be taken: the commit is refused as fenced.
    pub leases_taken: Vec<LeaseName>,
    /// Leases to give back.
    pub leases_released: Vec<LeaseName>,
    /// API keys as these events left them.
    pub api_keys: Vec<ApiKey>,
}

/// Seals a turn, given the first reserved position. Runs inside the transaction; must be quick and pure.
pub type Seal = Box<dyn FnOnce(Position) -> Result<SealedTurn, ImpossibleEvent> + Send>;

/// One turn's writes.
pub struct Commit {
    /// Document versions that must still hold.
    pub expected: Vec<Expected>,
    /// Leases that must still be held.
    pub fences: Vec<Fence>,
    /// Who takes leases.
    pub holder: Box<str>,
    /// Content that events refer to, durable with them.
    pub blobs: Vec<Blob>,
    /// How many positions to reserve.
    pub event_count: u64,
    /// Makes events and documents.
    pub seal: Seal,
    /// Now: claims that expired before this may be dropped.
    pub now: Timestamp,
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commit")
            .field("expected", &self.expected)
            .field("event_count", &self.event_count)
            .finish()
    }
}

/// What a commit did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The position of its first event.
    pub first: Position,
    /// Leases taken, with their epochs.
    pub leases: Vec<(LeaseName, u64)>,
}

/// How much is stored: events, and the content that they name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Bytes of the Workspace that was asked for.
    pub of_workspace: u64,
    /// Bytes of all Workspaces.
    pub total: u64,
    /// How many Workspaces have stored anything.
    pub workspaces: usize,
}

/// Why a commit wrote nothing.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A document version, a new claim or a new document is not as expected: read again and repeat the turn.
    #[error("another writer was there first")]
    Conflict,
    /// A lease is held at another epoch, or cannot be taken because it is held.
    #[error("lease {} is held by another worker", .0.0)]
    Fenced(LeaseName),
    /// Sealing failed: a bug of this program.
    #[error(transparent)]
    Impossible(ImpossibleEvent),
    /// The world failed. Nothing was written, or the store cannot tell and refuses further commits.
    #[error(transparent)]
    Fault(StoreFault),
}

/// Where the receipt log's tree stands. Stored, so that a start never hashes the log again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The number of leaves.
    pub size: u64,
    /// The roots of its complete subtrees, largest first.
    pub peaks: Vec<Digest>,
    /// Key of the Receipt of the last leaf; Receipts after it have no leaf yet.
    pub last: Position,
}

/// Leaves to append to the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeAppend {
    /// The size of the tree before.
    pub expected_size: u64,
    /// Keys and hashes of the Receipts, in key order: one leaf each.
    pub leaves: Vec<(Position, Digest)>,
    /// Hashes that tiles keep: level, index in the level, hash.
    pub hashes: Vec<(u8, u64, Digest)>,
    /// The tree after.
    pub after: Tree,
}

/// A stretch of a field's log as reading it made of it: a projection that follows behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSegment {
    /// The key of the field's document.
    pub field: Position,
    /// The sequence of the entry before its first.
    pub after: u64,
    /// The sequence of its last entry.
    pub last: u64,
    /// The position of the event of that entry.
    pub position: Position,
    /// What the crate `field` made of them.
    pub bytes: Vec<u8>,
}

/// A credential: who it is and what it may do. Its text is not stored, only the digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// A public id to name it by.
    pub id: String,
    /// SHA-256 of the key's text.
    pub digest: Digest,
    /// The actor in events.
    pub actor: String,
    /// Workspaces it may see; none for all.
    pub workspaces: Option<Vec<String>>,
    /// What it may do, such as `tasks:write`; `*` for everything.
    pub scopes: Vec<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
}

impl ApiKey {
    /// Returns what events tell of it.
    pub fn recorded(&self) -> domain::Key {
        domain::Key {
            actor: self.actor.clone(),
            workspaces: self.workspaces.clone(),
            scopes: self.scopes.clone(),
            fingerprint: canon::sha256(self.digest.as_bytes()),
            expires_at: self.expires_at,
            revoked_at: self.revoked_at,
        }
    }

    /// True from its end on.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}
