//! The store port: the few calls that every backend answers alike.
//!
//! Reads see committed data only. State changes in one way, [`Store::commit`]: it checks what the caller
//! believed (document versions, claims, leases), reserves positions, lets the caller seal its events with
//! them, and makes everything durable before it returns. Beside the log a store has five subjects, each with a
//! trait of its own and its own few writes of what is not folded from events: content ([`BlobStore`]), before the commit
//! that names it; the tree of receipts ([`TreeStore`]), which follows the log; leases and who is there to hold them ([`LeaseStore`]); API keys
//! ([`KeyStore`]); and segments of folded fields ([`SegmentStore`]), which follow the log too.

mod blobs;
mod keys;
mod leases;
mod segments;
mod tree;

use std::fmt;
use std::sync::Arc;

use canon::Digest;
use domain::{
    Blob, Document, EventName, ImpossibleEvent, Links, Position, ResourceKind, Sealed, Timestamp,
};
use tokio::sync::broadcast;

use super::{BoxFuture, News};

pub use blobs::{BlobStore, Erased, Incoming};
pub use keys::{ApiKey, KeyStore};
pub use leases::{Fence, Heartbeat, LeaseName, LeaseOwners, LeaseRequest, LeaseStore};
pub use segments::{FieldSegment, SegmentStore, StoredSegment, UnusableSegment};
pub use tree::{Tree, TreeAppend, TreeStore};

/// A store of one log: events, the documents folded from them, and what is not folded (claims, leases, keys,
/// blobs).
pub trait Store:
    BlobStore + LeaseStore + TreeStore + KeyStore + SegmentStore + Send + Sync + fmt::Debug + 'static
{
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
    fn stored(&self, _workspace: Position) -> Option<StorageUse> {
        None
    }

    /// The same of what is counted apart.
    fn stored_apart(&self, _workspace: Position) -> Option<StorageUse> {
        None
    }

    /// Reads documents by id; absent ones are none, in the order asked.
    fn documents(
        &self,
        ids: Vec<Box<str>>,
    ) -> BoxFuture<'_, Result<Vec<Option<Document>>, StoreFault>>;

    /// Reads one document by id.
    fn document(&self, id: &str) -> BoxFuture<'_, Result<Option<Document>, StoreFault>> {
        let found = self.documents(vec![id.into()]);
        Box::pin(async move { Ok(found.await?.into_iter().flatten().next()) })
    }

    /// Reads one event by position.
    fn event_at(
        &self,
        position: Position,
    ) -> BoxFuture<'_, Result<Option<StoredEvent>, StoreFault>> {
        let found = self.events_at(vec![position]);
        Box::pin(async move { Ok(found.await?.into_iter().flatten().next()) })
    }

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

    /// Lists documents, newest first.
    fn newest(&self, query: NewestQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>>;
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

impl From<Sealed> for StoredEvent {
    fn from(sealed: Sealed) -> Self {
        Self {
            position: sealed.position,
            links: sealed.links,
            resource: sealed.resource,
            bytes: sealed.bytes.into(),
        }
    }
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
    /// Who sent the key, and with which request.
    pub scope: ClaimScope,
    /// Keyed digest of the canonical body.
    pub body: Digest,
    /// Position of the event the answer is rebuilt from.
    pub answer: Position,
    /// When it may be forgotten: for a commit by its own clock, when read by the store's (see [`super::ClaimTime`]).
    pub expires_at: Timestamp,
}

/// A document version the caller has seen; 0 for a document that must not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedVersion {
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
    pub expected: Vec<ExpectedVersion>,
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
pub struct StorageUse {
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
