//! One log in one directory: the store port on SQLite, and offline checks of what it holds.
//!
//! ```text
//! reprise-data/
//!   lock         held by the one process that writes; names its pid
//!   format       the version of everything here
//!   reprise.db   events, documents, claims, leases, keys, small blobs
//!   blobs/ab/…   large blobs, by digest
//! ```
//!
//! One thread writes, a few read, one moves the write-ahead log into the database. Nothing here knows what an
//! event means, except the offline checks, which fold events as the engine does.

mod audit;
mod blob;
mod checkpoint;
mod directory;
mod export;
mod fault;
mod fold;
mod read;
mod readers;
mod rebuild;
mod row;
mod schema;
mod sqlite;
mod tree;
mod verify;
mod write;

pub use audit::{Audit, AuditError};
pub use directory::{FORMAT_VERSION, OpenError};
pub use export::{Evidence, Exported, export};
pub use fold::{Problem, What};
pub use rebuild::{Rebuilt, rebuild};
pub use row::{DocumentRow, EventRow, document_bytes};
pub use sqlite::{Options, SqliteStore};
pub use verify::{Report, verify};
