//! Tables, indexes, settings of connections, and what is made once per log: its name and its secret.
//!
//! Keys are integers; text ids are looked up in one place, `documents.id`. Each index exists for a query in
//! `read`: a list or a stream reads the rows it returns and no others, however long the log is. Messages are listed by
//! Session alone, from a table that gathers what recent commits brought ([`crate::recent`]): the indexes of documents are
//! without them, and an append writes three pages less.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use canon::Digest;
use domain::Position;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use crate::directory::{OpenError, database, private};
use crate::{leases, notes};

/// The version of the tables, kept in the database itself; the data directory's format covers all files. Since 5 every note
/// is there ([`crate::notes`]), since 6 links gather before they are moved ([`crate::recent`]). A program that does not know of
/// those would not find them, and would leave out what others look for: it must not work here.
const SCHEMA_VERSION: i64 = 6;

/// Every note is there, and links are where they are found by.
const SCHEMA_BEFORE_RECENT: i64 = 5;

/// The same tables, before the first program that keeps every note worked on them.
const SCHEMA_WITHOUT_NOTES: i64 = 4;

/// That of formats 2 and 3, which [`crate::migrate`] brings forward.
const SCHEMA_BEFORE_4: i64 = 2;

/// Small enough that a lone commit writes little, large enough that rows of some thousand bytes leave few gaps.
pub(crate) const PAGE_BYTES: u32 = 4096;

const WRITER_CACHE_KIB: i64 = 4096;
const READER_CACHE_KIB: i64 = 1024;
const STATEMENTS_MAX: usize = 64;

/// How long a writer waits for another process, which is an API key being stored.
pub(crate) const BUSY: Duration = Duration::from_secs(10);

const TABLES: &str = "
    CREATE TABLE meta(name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;

    CREATE TABLE events(id INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
    CREATE TABLE event_links(
        link INTEGER NOT NULL,
        first INTEGER NOT NULL,
        PRIMARY KEY(link, first)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE documents(
        key INTEGER PRIMARY KEY,
        id BLOB NOT NULL UNIQUE,
        kind INTEGER NOT NULL,
        version INTEGER NOT NULL,
        tip INTEGER NOT NULL,
        workspace INTEGER,
        session INTEGER,
        task INTEGER,
        open INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        body BLOB NOT NULL,
        further BLOB
    ) STRICT;
    CREATE INDEX documents_kind ON documents(kind) WHERE kind <> 4;
    CREATE INDEX documents_workspace ON documents(workspace, kind) WHERE workspace IS NOT NULL AND kind <> 4;
    CREATE INDEX documents_task ON documents(task, kind) WHERE task IS NOT NULL;
    CREATE INDEX documents_open ON documents(kind) WHERE open = 1;
    CREATE INDEX documents_workspace_open ON documents(workspace, kind) WHERE open = 1 AND workspace IS NOT NULL;
    CREATE INDEX documents_session_open ON documents(session, kind) WHERE open = 1 AND session IS NOT NULL;

    CREATE TABLE document_links(
        link INTEGER NOT NULL,
        kind INTEGER NOT NULL,
        key INTEGER NOT NULL,
        PRIMARY KEY(link, kind, key)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE claims(
        scope BLOB PRIMARY KEY,
        body BLOB NOT NULL,
        answer INTEGER NOT NULL,
        expires_at INTEGER NOT NULL,
        checksum BLOB
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX claims_expiry ON claims(expires_at);

    CREATE TABLE leases(name INTEGER PRIMARY KEY, holder TEXT NOT NULL, epoch INTEGER NOT NULL) STRICT;

    CREATE TABLE packs(id INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
    CREATE TABLE blobs(
        digest BLOB PRIMARY KEY,
        pack INTEGER NOT NULL,
        block INTEGER NOT NULL,
        number INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE leaves(idx INTEGER PRIMARY KEY, receipt INTEGER NOT NULL UNIQUE, hash BLOB NOT NULL) STRICT;

    CREATE TABLE tree_hashes(
        level INTEGER NOT NULL,
        idx INTEGER NOT NULL,
        hash BLOB NOT NULL,
        PRIMARY KEY(level, idx)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE tree(
        one INTEGER PRIMARY KEY CHECK (one = 1),
        size INTEGER NOT NULL,
        peaks BLOB NOT NULL,
        last INTEGER NOT NULL
    ) STRICT;

    CREATE TABLE heads(root BLOB PRIMARY KEY, size INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE usage(workspace INTEGER PRIMARY KEY, bytes INTEGER NOT NULL) STRICT;

    CREATE TABLE field_segments(
        field INTEGER NOT NULL,
        after INTEGER NOT NULL,
        last INTEGER NOT NULL,
        position INTEGER NOT NULL,
        bytes BLOB NOT NULL,
        PRIMARY KEY(field, after)
    ) STRICT;

    CREATE TABLE projections(name TEXT PRIMARY KEY, shape INTEGER NOT NULL) STRICT, WITHOUT ROWID;

    CREATE TABLE api_keys(
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        digest BLOB NOT NULL,
        actor TEXT NOT NULL,
        workspaces TEXT,
        scopes TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        revoked_at INTEGER,
        expires_at INTEGER
    ) STRICT;
    CREATE INDEX api_keys_digest ON api_keys(digest);
";

/// The tables that 6 added.
const RECENT_TABLES: &str = "
    CREATE TABLE session_messages(
        session INTEGER NOT NULL,
        key INTEGER NOT NULL,
        PRIMARY KEY(session, key)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE recent_links(
        number INTEGER NOT NULL,
        link INTEGER NOT NULL,
        kind INTEGER NOT NULL,
        PRIMARY KEY(number, link, kind)
    ) STRICT, WITHOUT ROWID;
";

/// The index of what a Session has, and how it was made before 6, when it listed Messages too.
const SESSION_INDEX: &str = "CREATE INDEX documents_session ON documents(session, kind) WHERE session IS NOT NULL AND kind <> 4";
const SESSION_INDEX_BEFORE: &str =
    "CREATE INDEX documents_session ON documents(session, kind) WHERE session IS NOT NULL";

/// What a digest is kept of, because nothing else would tell that it changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sealed {
    /// The secret of the log.
    Secret,
    /// The table of API keys.
    ApiKeys,
}

impl Sealed {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Sealed::Secret => "secret_sha256",
            Sealed::ApiKeys => "api_keys_sha256",
        }
    }
}

/// Returns the digest that was kept; none in a log that no newer program opened.
pub(crate) fn seal_of(connection: &Connection, what: Sealed) -> rusqlite::Result<Option<Digest>> {
    let select = "SELECT value FROM meta WHERE name = ?1";
    let found = connection.query_row(select, [what.name()], |row| row.get(0));
    Ok(found.optional()?.map(Digest::from_bytes))
}

pub(crate) fn keep_seal(
    connection: &Connection,
    what: Sealed,
    digest: Digest,
) -> rusqlite::Result<()> {
    let insert = "INSERT OR REPLACE INTO meta(name, value) VALUES (?1, ?2)";
    connection
        .execute(insert, (what.name(), digest.as_bytes()))
        .map(drop)
}

/// Keeps the digest of the API keys, in the transaction that changed them.
pub(crate) fn seal_api_keys(connection: &Connection) -> rusqlite::Result<()> {
    keep_seal(connection, Sealed::ApiKeys, digest_of_api_keys(connection)?)
}

/// Returns the digest of all API keys as they are stored.
pub(crate) fn digest_of_api_keys(connection: &Connection) -> rusqlite::Result<Digest> {
    let mut select = connection.prepare("SELECT * FROM api_keys ORDER BY number")?;
    let columns = select.column_count();
    let mut rows = select.query([])?;
    let mut text = String::new();
    while let Some(row) = rows.next()? {
        for column in 0..columns {
            text.push_str(&format!("{:?}\n", row.get_ref(column)?));
        }
    }
    Ok(canon::sha256(text.as_bytes()))
}

/// True when a log has a table of this name.
pub(crate) fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1")?
        .exists([name])
}

/// True when a table has a column of this name.
pub(crate) fn has_column(
    connection: &Connection,
    table: &str,
    column: &str,
) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2")?
        .exists([table, column])
}

/// Returns the names of the tables that a log must have, but for what a start makes again.
pub(crate) fn tables(
    connection: &Connection,
) -> rusqlite::Result<impl Iterator<Item = &'static str>> {
    let recent = match has_recent(connection)? {
        true => RECENT_TABLES,
        false => "",
    };
    let made = [TABLES, recent].map(|text| text.split("CREATE TABLE ").skip(1));
    let names = made.into_iter().flatten();
    let names = names.filter_map(|text| text.split('(').next());
    Ok(names.filter(|name| !notes::is_added(name)))
}

/// True when links gather in this log before they are moved.
pub(crate) fn has_recent(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(version(connection)? == SCHEMA_VERSION)
}

/// Brings the tables of versions 4 and 5 to 6, in the transaction that says so: Messages leave the index of documents for a
/// table of their own. Reads that index and no event.
pub(crate) fn add_recent(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(RECENT_TABLES)?;
    connection.execute_batch(
        "INSERT INTO session_messages(session, key) \
             SELECT session, key FROM documents INDEXED BY documents_session \
             WHERE session IS NOT NULL AND kind = 4 ORDER BY session, key; \
         DROP INDEX documents_session",
    )?;
    connection.execute_batch(SESSION_INDEX)
}

/// Makes tables as they were before 6 of new ones, to compare others with.
pub(crate) fn without_recent(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "DROP TABLE session_messages; DROP TABLE recent_links; DROP INDEX documents_session",
    )?;
    connection.execute_batch(SESSION_INDEX_BEFORE)
}

/// True when every API key was recorded by events once.
pub(crate) fn keys_are_recorded(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(notes::number(connection, notes::KEYS_RECORDED)? == Some(1))
}

/// Notes that every API key is recorded by events.
pub(crate) fn note_keys_recorded(connection: &Connection) -> rusqlite::Result<()> {
    notes::put(connection, notes::KEYS_RECORDED, 1)
}

/// True when API keys can have an end; those of formats before 4 may not.
pub(crate) fn keys_expire(connection: &Connection) -> rusqlite::Result<bool> {
    has_column(connection, "api_keys", "expires_at")
}

/// True when programs that write down how far the log has come worked here: then the file must be there.
pub(crate) fn keeps_head(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(notes::number(connection, notes::KEEPS_HEAD)? == Some(1))
}

/// Made by the first prune of a log; most logs have none of it. `pruned` says of a Task how many headers stand for its
/// events and what they hash to; `unnamed` lists blobs that pruned events named and that may not be needed any more.
const PRUNING_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS pruned(
        task INTEGER PRIMARY KEY,
        events INTEGER NOT NULL,
        headers BLOB NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS unnamed(digest BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;
";

/// Makes the tables that pruning needs, when they are missing.
pub(crate) fn prepare_pruning(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(PRUNING_TABLES)
}

/// True when a log was ever pruned.
pub(crate) fn has_pruning(connection: &Connection) -> rusqlite::Result<bool> {
    connection
        .prepare("SELECT 1 FROM sqlite_schema WHERE name = 'pruned'")?
        .exists([])
}

/// Returns the Tasks that were pruned: how many headers stand for their events, and what these hash to.
pub(crate) fn pruned(
    connection: &Connection,
) -> rusqlite::Result<BTreeMap<Position, (u64, Digest)>> {
    if !has_pruning(connection)? {
        return Ok(BTreeMap::new());
    }
    let mut select = connection.prepare("SELECT task, events, headers FROM pruned")?;
    let rows = select.query_map([], |row| {
        let headers = Digest::from_bytes(row.get(2)?);
        Ok((Position(row.get(0)?), (row.get(1)?, headers)))
    })?;
    rows.collect()
}

/// Made by the first repair of a log; most logs have none of it. `repaired` lists the headers that stand for what could
/// not be read, with what each hashes to; `lost_blobs` the blobs whose bytes were not theirs.
const REPAIR_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS repaired(position INTEGER PRIMARY KEY, header BLOB NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS lost_blobs(digest BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;
";

/// Makes the tables that a repair needs, when they are missing.
pub(crate) fn prepare_repair(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(REPAIR_TABLES)
}

/// True when a log was ever repaired.
pub(crate) fn has_repair(connection: &Connection) -> rusqlite::Result<bool> {
    connection
        .prepare("SELECT 1 FROM sqlite_schema WHERE name = 'lost_blobs'")?
        .exists([])
}

/// Returns the positions whose events could not be read, and what the headers in their place hash to.
pub(crate) fn repaired(connection: &Connection) -> rusqlite::Result<BTreeMap<Position, Digest>> {
    if !has_repair(connection)? {
        return Ok(BTreeMap::new());
    }
    let mut select = connection.prepare("SELECT position, header FROM repaired")?;
    let rows = select.query_map([], |row| {
        Ok((Position(row.get(0)?), Digest::from_bytes(row.get(1)?)))
    })?;
    rows.collect()
}

/// Returns the blobs that a repair found to be lost.
pub(crate) fn lost_blobs(connection: &Connection) -> rusqlite::Result<BTreeSet<Digest>> {
    if !has_repair(connection)? {
        return Ok(BTreeSet::new());
    }
    let mut select = connection.prepare("SELECT digest FROM lost_blobs")?;
    let rows = select.query_map([], |row| Ok(Digest::from_bytes(row.get(0)?)))?;
    rows.collect()
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Writes, syncing at each commit or (tests only) not.
    Writer {
        /// True to sync the log at each commit.
        full_sync: bool,
    },
    /// Reads only.
    Reader,
}

/// Opens a connection to the database of a directory.
pub(crate) fn connect(directory: &Path, role: Role) -> rusqlite::Result<Connection> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if matches!(role, Role::Writer { .. }) {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
        // SQLite gives its other files the mode of this one, and would make this one readable for others. One that is there is
        // left alone: closing it here would give back every lock that this process has on it.
        let file = database(directory);
        if !file.exists() {
            let made = private().create(true).append(true).open(file);
            made.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        }
    }
    let connection = Connection::open_with_flags(database(directory), flags)?;
    configure(&connection, role)?;
    Ok(connection)
}

/// Makes a database file with our tables and nothing in them, for rebuilding; no crash safety.
pub(crate) fn scratch(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.pragma_update(None, "journal_mode", "OFF")?;
    connection.pragma_update(None, "synchronous", "OFF")?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    make_tables(&connection)?;
    Ok(connection)
}

pub(crate) fn configure(connection: &Connection, role: Role) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    // Otherwise the planner looks at the value of each `LIMIT ?` and compiles the statement again every time.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // Otherwise whoever closes last moves the write-ahead log into the database and removes it, even one who only looked.
    checkpoint_on_close(connection, false)?;
    connection.pragma_update(None, "foreign_keys", false)?;
    match role {
        Role::Writer { full_sync } => {
            connection.pragma_update(None, "page_size", PAGE_BYTES)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            let synchronous = if full_sync { "FULL" } else { "NORMAL" };
            connection.pragma_update(None, "synchronous", synchronous)?;
            connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
            // Checkpoints have a thread of their own.
            connection.pragma_update(None, "wal_autocheckpoint", 0)?;
            secure_delete(connection, SecureDelete::InPages)?;
        }
        Role::Reader => {
            connection.pragma_update(None, "query_only", true)?;
            connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
        }
    }
    Ok(())
}

/// How thoroughly SQLite writes zeros over what it deletes or moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecureDelete {
    /// In pages that are written anyway, which costs nothing to speak of: a page that is divided keeps no copies.
    InPages,
    /// Also in pages that become free.
    Everywhere,
}

/// Has SQLite write zeros over what it deletes.
pub(crate) fn secure_delete(connection: &Connection, how: SecureDelete) -> rusqlite::Result<()> {
    let how = match how {
        SecureDelete::InPages => "FAST",
        SecureDelete::Everywhere => "ON",
    };
    connection.pragma_update_and_check(None, "secure_delete", how, |_| Ok(()))
}

/// Lets the last connection that closes empty the write-ahead log and remove it, or not.
pub(crate) fn checkpoint_on_close(connection: &Connection, on: bool) -> rusqlite::Result<()> {
    let off = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !on);
    off.map(drop)
}

/// What was made once, when the log was.
#[derive(Debug, Clone)]
pub(crate) struct Meta {
    /// Eight characters.
    pub(crate) name: String,
    /// Keys the digests of claims.
    pub(crate) secret: [u8; 32],
}

/// Makes the tables of a new database file, which say of which version they are; notes are not there yet.
pub(crate) fn make_tables(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(TABLES)?;
    connection.execute_batch(RECENT_TABLES)?;
    connection.execute_batch(SESSION_INDEX)?;
    connection.execute_batch(leases::HOLDERS)?;
    connection.pragma_update(None, "user_version", SCHEMA_WITHOUT_NOTES)
}

/// True when every note was written.
pub(crate) fn has_notes(connection: &Connection) -> rusqlite::Result<bool> {
    Ok([SCHEMA_BEFORE_RECENT, SCHEMA_VERSION].contains(&version(connection)?))
}

/// Says that the tables are complete and every note was written, in the transaction that did.
pub(crate) fn set_complete(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "user_version", SCHEMA_VERSION)
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// True when a database has the tables of formats 2 and 3, whatever the directory says: a migration that was killed may
/// have got that far.
pub(crate) fn is_older(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(version(connection)? == SCHEMA_BEFORE_4)
}

/// Refuses a database whose tables this program does not read.
pub(crate) fn check_version(directory: &Path, connection: &Connection) -> Result<(), OpenError> {
    let found = version(connection).map_err(|error| OpenError::fault(directory, error))?;
    let place = || directory.to_owned();
    match found {
        // 0: nothing was written yet, which whoever looks for a log will find.
        0 | SCHEMA_WITHOUT_NOTES | SCHEMA_BEFORE_RECENT | SCHEMA_VERSION => Ok(()),
        SCHEMA_BEFORE_4 => Err(OpenError::NotMigrated { directory: place() }),
        other => Err(OpenError::OtherTables {
            directory: place(),
            found: other,
        }),
    }
}

/// Refuses a database that an earlier program must be working on: it is shared with somebody, and whoever came alone would
/// have brought it forward.
pub(crate) fn refuse_older_beside(
    directory: &Path,
    connection: &Connection,
) -> Result<(), OpenError> {
    let found = version(connection).map_err(|error| OpenError::fault(directory, error))?;
    match found {
        SCHEMA_WITHOUT_NOTES | SCHEMA_BEFORE_RECENT => Err(OpenError::OlderBeside {
            directory: directory.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Makes tables, name, secret and notes when the database is new, and completes one of an earlier program.
pub(crate) fn prepare(directory: &Path, connection: &mut Connection) -> Result<(), OpenError> {
    make(directory, connection)?;
    notes::complete(directory, connection)
}

/// Makes tables, name, secret and notes when the database is new.
pub(crate) fn make(directory: &Path, connection: &mut Connection) -> Result<(), OpenError> {
    let fault = |error: rusqlite::Error| OpenError::fault(directory, error);
    check_version(directory, connection)?;
    if version(connection).map_err(fault)? != 0 {
        return Ok(());
    }
    let (name, secret) = random().map_err(|error| OpenError::fault(directory, error))?;
    let create = |connection: &mut Connection| {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        make_tables(&transaction)?;
        let mut insert = transaction.prepare("INSERT INTO meta(name, value) VALUES (?1, ?2)")?;
        insert.execute(("log", name))?;
        insert.execute(("secret", secret))?;
        drop(insert);
        notes::fill(&transaction)?;
        transaction.commit()
    };
    create(connection).map_err(fault)
}

fn random() -> Result<(String, [u8; 32]), getrandom::Error> {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)?;
    let mut name = String::new();
    while name.len() < 8 {
        let mut byte = [0];
        getrandom::fill(&mut byte)?;
        // 252 is the last multiple of 36: above it the first letters would come up more often.
        let [byte] = byte;
        if byte < 252
            && let Some(letter) = LETTERS.get(usize::from(byte) % LETTERS.len())
        {
            name.push(char::from(*letter));
        }
    }
    Ok((name, secret))
}

/// Reads name and secret.
pub(crate) fn meta(directory: &Path, connection: &Connection) -> Result<Meta, OpenError> {
    let fault = |error: rusqlite::Error| OpenError::fault(directory, error);
    let no_log = || OpenError::NoLog {
        directory: directory.to_owned(),
    };
    let has_tables: bool = connection
        .query_row(
            "SELECT count(*) FROM sqlite_schema WHERE name = 'meta'",
            [],
            |row| row.get::<_, i64>(0),
        )
        .map_err(fault)?
        == 1;
    if !has_tables {
        return Err(no_log());
    }
    let mut select = connection
        .prepare("SELECT value FROM meta WHERE name = ?1")
        .map_err(fault)?;
    // They are made with the tables.
    let lacks = |name: &str| OpenError::incomplete(directory, vec![format!("the note `{name}`")]);
    let name = select
        .query_row(["log"], |row| row.get(0))
        .optional()
        .map_err(fault)?
        .ok_or_else(|| lacks("log"))?;
    let secret = select
        .query_row(["secret"], |row| row.get(0))
        .optional()
        .map_err(fault)?
        .ok_or_else(|| lacks("secret"))?;
    Ok(Meta { name, secret })
}
