//! From errors of the database and the disk to faults of the store.

use std::io;

use engine::port::{CommitError, StoreFault};
use rusqlite::ErrorCode;

/// Says what failed; a full disk is told apart.
pub(crate) fn fault(error: rusqlite::Error) -> StoreFault {
    let message = format!("database: {error}");
    if error.sqlite_error_code() == Some(ErrorCode::DiskFull) {
        StoreFault::full(message)
    } else {
        StoreFault::new(message)
    }
}

pub(crate) fn commit_fault(error: rusqlite::Error) -> CommitError {
    CommitError::Fault(fault(error))
}

/// The same for files.
pub(crate) fn file_fault(what: &str, error: io::Error) -> StoreFault {
    let message = format!("{what}: {error}");
    if matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    ) {
        StoreFault::full(message)
    } else {
        StoreFault::new(message)
    }
}

/// What a write that is not a turn reports.
pub(crate) fn only_fault(error: CommitError) -> StoreFault {
    match error {
        CommitError::Fault(fault) => fault,
        CommitError::Conflict | CommitError::Fenced(_) | CommitError::Impossible(_) => {
            StoreFault::new(error.to_string())
        }
    }
}

pub(crate) fn closed() -> StoreFault {
    StoreFault::new("the store is closed")
}
