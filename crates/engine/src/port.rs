//! What the engine needs from the world.
//!
//! The store, the clock, ids, spawning, and the performing of effects. Each port is as small as the engine can
//! live with; an in-memory store lives beside the trait and is the first implementation.

mod claim_time;
mod embed;
mod layered;
mod memory;
mod news;
mod store;
#[cfg(feature = "test-util")]
pub mod suite;
mod world;

pub use claim_time::ClaimTime;
pub use embed::{Embedder, EmbeddingModel};
pub use layered::{Call, Layer, Layered};
pub use memory::MemoryStore;
pub use news::{News, Publisher};
pub use store::{
    ApiKey, BlobStore, Claim, ClaimScope, Commit, CommitError, Committed, Erased, ExpectedVersion,
    Fence, FieldSegment, Heartbeat, Incoming, KeyStore, LastEvents, LeaseName, LeaseOwners,
    LeaseRequest, LeaseStore, ListQuery, NewestQuery, ReadEvents, Scope, Seal, SealedTurn,
    SegmentStore, StorageUse, Store, StoreFault, StoredEvent, StoredSegment, Tree, TreeAppend,
    TreeStore, UnusableSegment,
};
pub use world::{BoxFuture, Clock, Deltas, Ids, KeepSecretError, Performer, SecretKeeper, Spawn};
