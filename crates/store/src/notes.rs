//! The store's own notes, rows of `meta`: what a log was made with, and digests and marks that nothing else tells.
//!
//! Invariant: tables of the present version have every note. They are written in the transaction that sets that version, so
//! that one that is missing was taken away, and is never mistaken for one that was never written.

use std::path::Path;

use canon::sha256;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::directory::OpenError;
use crate::schema::{self, Sealed, has_table};
use crate::{claims, leases, projection, recent, shape};

/// The name of the log, and its secret: made with the log, and nothing else tells them.
pub(crate) const MADE_WITH_THE_LOG: [&str; 2] = ["log", "secret"];

/// The counter of lease epochs.
pub(crate) const LEASE_EPOCH: &str = "lease_epoch";
/// 1 when every API key is recorded by events.
pub(crate) const KEYS_RECORDED: &str = "keys_recorded";
/// 1 when there was a file that says how far the log had come.
pub(crate) const KEEPS_HEAD: &str = "keeps_head";
/// The time of claims, as it was last written down; [`NO_COMMIT`] before the first commit.
pub(crate) const CLAIM_TIME: &str = "claim_time";
/// What the clock said when the time of claims was last written down; [`UNKNOWN`] before.
pub(crate) const CLAIM_CLOCK: &str = "claim_clock";
/// Up to which position claims are known to be lost; absent where none are.
pub(crate) const CLAIMS_LOST_TO: &str = "claims_lost_to";

/// Begins the names of notes about purges whose content is still there, each with the position of its event; absent where
/// none is.
pub(crate) const ERASURE_OWED: &str = "erasure_owed_";
/// A number that changes with each purge; absent unless the write-ahead log may hold what one took out.
pub(crate) const ERASURE_UNWIPED: &str = "erasure_unwiped";

/// 1 when pages were let go that belong to nothing until the database is written anew; absent otherwise.
pub(crate) const PAGES_LET_GO: &str = "pages_let_go";

pub(crate) const NO_COMMIT: i64 = i64::MIN;
pub(crate) const UNKNOWN: i64 = i64::MAX;

/// Every note that a log has.
const ALL: [&str; 9] = [
    "log",
    "secret",
    LEASE_EPOCH,
    Sealed::Secret.name(),
    Sealed::ApiKeys.name(),
    KEYS_RECORDED,
    KEEPS_HEAD,
    CLAIM_TIME,
    CLAIM_CLOCK,
];

/// Returns a note that is a number; none when it is missing or something else.
pub(crate) fn number(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    let found = connection
        .prepare_cached("SELECT value FROM meta WHERE name = ?1")?
        .query_row([name], |row| Ok(row.get(0).ok()))
        .optional()?;
    Ok(found.flatten())
}

/// Writes a note.
pub(crate) fn put(connection: &Connection, name: &str, value: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO meta(name, value) VALUES (?1, ?2)")?
        .execute((name, value))
        .map(drop)
}

/// Returns the values of all notes whose names begin so.
pub(crate) fn starting_with(connection: &Connection, name: &str) -> rusqlite::Result<Vec<i64>> {
    connection
        .prepare_cached("SELECT value FROM meta WHERE substr(name, 1, ?2) = ?1 ORDER BY value")?
        .query_map((name, name.len()), |row| row.get(0))?
        .collect()
}

/// Removes a note.
pub(crate) fn remove(connection: &Connection, name: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM meta WHERE name = ?1")?
        .execute([name])
        .map(drop)
}

/// Removes a note that still has this value.
pub(crate) fn remove_value(
    connection: &Connection,
    name: &str,
    value: i64,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM meta WHERE name = ?1 AND value = ?2")?
        .execute((name, value))
        .map(drop)
}

/// Returns the notes that a log lacks; nothing is asked of one that no newer program opened yet.
pub(crate) fn missing(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    if !schema::has_notes(connection)? {
        return Ok(Vec::new());
    }
    let mut select = connection.prepare("SELECT 1 FROM meta WHERE name = ?1")?;
    let mut missing = Vec::new();
    for name in ALL {
        if !select.exists([name])? {
            missing.push(format!("the note `{name}`"));
        }
    }
    Ok(missing)
}

/// Refuses a log that lacks a table.
pub(crate) fn check_tables(directory: &Path, connection: &Connection) -> Result<(), OpenError> {
    let mut missing = Vec::new();
    let fault = |error: rusqlite::Error| OpenError::fault(directory, error);
    for table in schema::tables(connection).map_err(fault)? {
        if !has_table(connection, table).map_err(fault)? {
            missing.push(format!("the table `{table}`"));
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(OpenError::incomplete(directory, missing)),
    }
}

/// Writes what earlier programs did not, and refuses a log that lacks what it had.
pub(crate) fn complete(directory: &Path, connection: &mut Connection) -> Result<(), OpenError> {
    let fault = |error: rusqlite::Error| OpenError::fault(directory, error);
    check_tables(directory, connection)?;
    let missing = missing(connection).map_err(fault)?;
    if !missing.is_empty() {
        return Err(OpenError::incomplete(directory, missing));
    }
    shape::refuse(directory, connection)?;
    if schema::has_recent(connection).map_err(fault)?
        && !lacks_additions(connection).map_err(fault)?
    {
        return Ok(());
    }
    let fill = |connection: &mut Connection| {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        fill(&transaction)?;
        transaction.commit()
    };
    fill(connection).map_err(fault)
}

/// Writes what is missing, in the transaction under way. Returns the notes that were.
pub(crate) fn fill(connection: &Connection) -> rusqlite::Result<Vec<&'static str>> {
    add(connection)?;
    if !recent::is_there(connection)? {
        schema::add_recent(connection)?;
        projection::note_messages(connection)?;
    }
    let mut filled = Vec::new();
    for name in ALL {
        let mut select = connection.prepare_cached("SELECT 1 FROM meta WHERE name = ?1")?;
        if select.exists([name])? || MADE_WITH_THE_LOG.contains(&name) {
            continue;
        }
        match name {
            LEASE_EPOCH => {
                let newest = "SELECT ifnull(max(epoch), 0) FROM leases";
                let newest = connection.query_row(newest, [], |row| row.get(0))?;
                put(connection, name, newest)?;
            }
            KEYS_RECORDED | KEEPS_HEAD => put(connection, name, 0)?,
            CLAIM_TIME => put(connection, name, claims::safe_time(connection)?)?,
            CLAIM_CLOCK => put(connection, name, UNKNOWN)?,
            name if name == Sealed::Secret.name() => {
                let select = "SELECT value FROM meta WHERE name = 'secret'";
                let secret: Vec<u8> = connection.query_row(select, [], |row| row.get(0))?;
                schema::keep_seal(connection, Sealed::Secret, sha256(&secret))?;
            }
            _ => schema::seal_api_keys(connection)?,
        }
        filled.push(name);
    }
    if !schema::has_notes(connection)? {
        claims::seal(connection)?;
    }
    schema::set_complete(connection)?;
    Ok(filled)
}

/// Writes notes again that were taken away: what they said is told by the rest, as far as it is. Sets right what else is not
/// as this program makes it. Returns the names of the notes, and what was wrong besides.
///
/// # Errors
/// The name or the secret is missing, or a table: nothing tells what was in it.
pub(crate) fn repair(
    directory: &Path,
    connection: &mut Connection,
) -> Result<(Vec<String>, Vec<String>), OpenError> {
    let fault = |error: rusqlite::Error| OpenError::fault(directory, error);
    check_tables(directory, connection)?;
    let flaws = shape::repair(directory, connection)?;
    // Refuses one without its name or its secret.
    schema::meta(directory, connection)?;
    let missing = missing(connection).map_err(fault)?;
    let write = |connection: &mut Connection| {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let filled = fill(&transaction)?;
        if !missing.is_empty() {
            // Marks are not told by anything; what they would allow is the more careful of the two.
            for name in filled {
                if [KEYS_RECORDED, KEEPS_HEAD].contains(&name) {
                    put(&transaction, name, 1)?;
                }
            }
        }
        transaction.commit()
    };
    write(connection).map_err(fault)?;
    Ok((missing, flaws))
}

/// What earlier programs of this format did not make, each under a condition of its own. They leave it as it is: what was
/// counted is behind then, and whoever knows it catches up; claims without a checksum are not checked.
fn add(connection: &Connection) -> rusqlite::Result<()> {
    for addition in ADDITIONS {
        if !addition.is_there(connection)? {
            (addition.make)(connection)?;
        }
    }
    Ok(())
}

fn lacks_additions(connection: &Connection) -> rusqlite::Result<bool> {
    for addition in ADDITIONS {
        if !addition.is_there(connection)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Something that tables of this version may lack, because they were made before it was thought of.
struct Addition {
    what: Added,
    make: fn(&Connection) -> rusqlite::Result<()>,
}

enum Added {
    Table(&'static str),
    Column(&'static str, &'static str),
}

impl Addition {
    fn is_there(&self, connection: &Connection) -> rusqlite::Result<bool> {
        match self.what {
            Added::Table(table) => has_table(connection, table),
            Added::Column(table, column) => schema::has_column(connection, table, column),
        }
    }
}

/// True for a table that a log may lack, because a start makes it.
pub(crate) fn is_added(table: &str) -> bool {
    ADDITIONS
        .iter()
        .any(|addition| matches!(addition.what, Added::Table(added) if added == table))
}

const ADDITIONS: &[Addition] = &[
    Addition {
        what: Added::Table("usage"),
        make: |connection| {
            connection.execute_batch(
                "CREATE TABLE usage(workspace INTEGER PRIMARY KEY, bytes INTEGER NOT NULL) STRICT",
            )?;
            projection::forget(connection, projection::USAGE)
        },
    },
    Addition {
        what: Added::Table("field_segments"),
        make: |connection| connection.execute_batch(projection::NO_SEGMENTS),
    },
    Addition {
        what: Added::Table("holders"),
        make: |connection| connection.execute_batch(leases::HOLDERS),
    },
    Addition {
        what: Added::Column("claims", "checksum"),
        make: |connection| connection.execute_batch("ALTER TABLE claims ADD COLUMN checksum BLOB"),
    },
];
