//! What the engine needs from the world.
//!
//! The store, the clock, ids, spawning, and the performing of effects. Each port is as small as the engine can
//! live with; an in-memory store lives beside the trait and is the first implementation.

mod memory;
mod store;
#[cfg(feature = "test-util")]
pub mod suite;
mod world;

pub use memory::MemoryStore;
pub use store::{
    ApiKey, Claim, ClaimScope, Commit, CommitError, Committed, Expected, Fence, LeaseName,
    ListQuery, NewestQuery, News, ReadEvents, Scope, Seal, SealedTurn, Store, StoreFault,
    StoredEvent, Tree, TreeAppend,
};
pub use world::{BoxFuture, Clock, Deltas, Ids, KeepSecretError, Performer, SecretKeeper, Spawn};
