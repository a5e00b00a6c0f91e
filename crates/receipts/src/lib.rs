//! Receipts: what a finished task leaves as proof, and how anyone can check it without us.
//!
//! Facts go in, canonical bytes come out ([`build_task`], [`build_replay`]); bytes and evidence go in,
//! a list of results comes out ([`verify()`]). Around that: the hash chain, the Merkle log with its
//! tiles and checkpoints, Ed25519 signatures and key sets, the CBOR archive form and trust records.
//!
//! Pure: no clock, no randomness, no storage, no network. Whoever calls decides what is issued when,
//! where it is kept and which keys are trusted.

mod build;
pub mod cbor;
mod chain;
pub mod export;
mod facts;
mod fit;
mod format;
mod keys;
pub mod merkle;
pub mod note;
mod receipt;
mod redact;
mod replay;
mod shape;
pub mod stream;
pub mod tiles;
mod time;
pub mod trust;
pub mod verify;
pub mod walk;

pub use build::{BuildError, build_task, event_log_digest};
pub use chain::Head;
pub use facts::*;
pub use format::FORMAT;
pub use keys::{ED25519, KeyRetirement, KeySet, KeySetError, PublicKey, Signer};
pub use receipt::{ReadReceiptError, Receipt, StatedSignature};
pub use replay::{build_replay, delta_ids, replay_artifact_id, replay_receipt_id, replay_task_id};
pub use shape::ShapeError;
pub use time::parse as seconds_of;
pub use verify::verify;
