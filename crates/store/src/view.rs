//! Opening a log to look at it: nothing in its directory is written, and none needs to be writable.
//!
//! Beside a process that works in the directory, a view is one transaction of the database. Where nobody works and
//! everything is in the database file, the file is read as it lies, without locks; should somebody begin to work there
//! meanwhile, [`View::is_stale`] tells. Where a process left a write-ahead log behind, SQLite would keep an index of it in a
//! file beside it; here the index is kept in memory, again without locks. Files that cannot be opened for that are copied.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use crate::directory::{self, OpenError, database};
use crate::head_file;
use crate::loss::{self, Loss};
use crate::schema::{self, Role};
use crate::wal::{self, Wal};

/// A log, open for looking.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) connection: Connection,
    /// Why the log is not what was acknowledged, when it can be read nevertheless.
    pub(crate) loss: Option<Loss>,
    /// Why nothing says how far the log had come.
    pub(crate) unreadable: Option<OpenError>,
    /// True when there is a file that says it, readable or not.
    pub(crate) has_head: bool,
    /// The copy that is looked at instead of the directory, gone with the view.
    copy: Option<TempDir>,
    /// What the database file was when it was opened without locks.
    still: Option<Stamp>,
    directory: PathBuf,
}

type Stamp = (u64, Option<SystemTime>);

impl View {
    /// Opens the log of a directory as it is now.
    pub(crate) fn open(directory: &Path) -> Result<Self, OpenError> {
        directory::check(directory).map_err(|error| loss::or_loss(error, directory))?;
        // Before the log, which may only be ahead of it.
        let (kept, unreadable) = match head_file::read(directory) {
            Ok(kept) => (kept, None),
            Err(error @ OpenError::UnreadableHead { .. }) => (None, Some(error)),
            Err(error) => return Err(error),
        };
        let wal = if directory::is_held(directory) {
            None
        } else {
            Some(loss::refuse(directory, kept.as_ref())?)
        };
        let fault = |error: rusqlite::Error| OpenError::fault(directory, error);
        let (connection, copy, still) = match wal {
            None => (open_shared(directory).map_err(fault)?, None, None),
            Some(Wal::None) => {
                let stamp = stamp(directory);
                let connection = open_immutable(directory).map_err(fault)?;
                (connection, None, Some(stamp))
            }
            Some(Wal::Whole { .. } | Wal::Damaged { .. }) => {
                let stamp = stamp(directory);
                match without_index(directory) {
                    Ok(connection) => (connection, None, Some(stamp)),
                    Err(error) => {
                        let copy = copy(directory).map_err(|_| fault(error))?;
                        (open_shared(copy.path()).map_err(fault)?, Some(copy), None)
                    }
                }
            }
        };
        schema::check_version(directory, &connection)?;
        let has_head = kept.is_some() || unreadable.is_some();
        let loss = kept.and_then(|kept| loss::of_log(&connection, &kept));
        if let Some(loss) = loss
            && !loss::has_tables(&connection)
        {
            // Its tables are lost too: there is nothing to look at.
            return Err(OpenError::lost(directory, loss));
        }
        Ok(Self {
            has_head,
            connection,
            loss,
            unreadable,
            copy,
            still,
            directory: directory.to_owned(),
        })
    }

    /// True when a copy is looked at.
    pub(crate) fn is_copy(&self) -> bool {
        self.copy.is_some()
    }

    /// True when somebody wrote what was opened without locks: what was read may be torn.
    pub(crate) fn is_stale(&self) -> bool {
        self.still
            .is_some_and(|still| still != stamp(&self.directory))
    }
}

/// Opens the database beside whoever works in it; one transaction to the end, so that what is committed meanwhile stays
/// out of sight.
fn open_shared(directory: &Path) -> rusqlite::Result<Connection> {
    let connection = schema::connect(directory, Role::Reader)?;
    begin(connection)
}

/// Opens a database that nobody writes, as on a medium that cannot be written.
fn open_immutable(directory: &Path) -> rusqlite::Result<Connection> {
    let connection = open_uri(directory, "immutable=1", OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    schema::configure(&connection, Role::Reader)?;
    begin(connection)
}

/// Opens a database with its write-ahead log, and keeps the index of that in memory: what asks for the database alone needs
/// no index that others could share, and this way of opening it takes no locks.
fn without_index(directory: &Path) -> rusqlite::Result<Connection> {
    // SQLite would go on with a file that it may only read, and ask for an index after all.
    let writable = fs::OpenOptions::new().write(true).open(database(directory));
    writable.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let connection = open_uri(
        directory,
        "vfs=unix-none",
        OpenFlags::SQLITE_OPEN_READ_WRITE,
    )?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    schema::configure(&connection, Role::Reader)?;
    begin(connection)
}

fn open_uri(directory: &Path, options: &str, mode: OpenFlags) -> rusqlite::Result<Connection> {
    let mut uri = "file:".to_owned();
    for byte in database(directory).as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02x}")),
        }
    }
    uri.push('?');
    uri.push_str(options);
    let flags = mode | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(uri, flags)
}

fn begin(connection: Connection) -> rusqlite::Result<Connection> {
    connection.execute_batch("BEGIN")?;
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(connection)
}

/// Copies the database with its write-ahead log, not the blobs.
fn copy(directory: &Path) -> std::io::Result<TempDir> {
    let copy = tempfile::Builder::new().prefix("reprise-").tempdir()?;
    for (from, to) in [
        (database(directory), database(copy.path())),
        (wal::path(directory), wal::path(copy.path())),
    ] {
        std::io::copy(&mut fs::File::open(from)?, &mut fs::File::create(to)?)?;
    }
    Ok(copy)
}

fn stamp(directory: &Path) -> Stamp {
    let metadata = fs::metadata(database(directory));
    let len = metadata.as_ref().map_or(0, fs::Metadata::len);
    // A log beside it means that it will be written; whatever is written later changes one or the other.
    let wal = fs::metadata(wal::path(directory)).map_or(0, |wal| wal.len());
    (len + wal, metadata.and_then(|found| found.modified()).ok())
}
