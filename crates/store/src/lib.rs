//! One log in one directory: the store port on SQLite, and offline checks of what it holds.
//!
//! ```text
//! reprise-data/
//!   lock         held by the one process that writes; names its pid
//!   format       the version of everything here
//!   head         how far the log had come, written after each commit
//!   reprise.db   events and small blobs in compressed blocks, documents, claims, leases, keys
//!   blobs/ab/…   large blobs, by digest
//! ```
//!
//! One thread writes, a few read, one moves the write-ahead log into the database. Nothing here knows what an
//! event means, except the offline checks, which fold events as the engine does.

mod audit;
mod backup;
mod blob;
mod block;
mod checkpoint;
mod claims;
mod codec;
mod derived;
mod directory;
mod erase;
mod export;
mod fault;
mod fold;
mod head_file;
mod incoming;
mod leases;
mod legacy;
mod loss;
mod merge;
mod migrate;
mod notes;
mod projection;
mod prune;
mod read;
mod rebuild;
mod recent;
mod repair;
mod row;
mod schema;
mod segments;
mod shape;
mod sharing;
mod sqlite;
mod table;
#[cfg(any(test, feature = "test-util"))]
pub mod tamper;
mod threads;
mod tree;
mod usage;
mod verify;
mod view;
mod wal;
mod write;

pub use audit::{Audit, AuditError, DamagedBlock};
pub use directory::{FORMAT_VERSION, OpenError};
pub use export::{Content, Evidence, Exported, SealManifest, export};
pub use fold::{Problem, ProblemSubject};
pub use head_file::HeadRecord;
pub use loss::Loss;
pub use migrate::{Migrated, Migration, migrate};
pub use prune::{PruneProgress, Pruned, prunable, prune, sweep};
pub use rebuild::{Rebuilt, rebuild, rebuild_and_write};
pub use repair::{Repair, Unreadable, repair, repairable};
pub use row::{DocumentRow, document_bytes};
pub use sqlite::{AcceptedLoss, Options, SqliteStore};
pub use verify::{Report, verify};
