//! Reading everything, as stored: the ground that verify, rebuild and export stand on.
//!
//! An audit sees the log as of the moment it was opened, beside a process that writes or without one. It judges
//! nothing: rows and blobs come as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use canon::Digest;
use domain::{EventName, Position};
use engine::port::{StoreFault, StoredEvent, Tree};
use rusqlite::{Connection, OptionalExtension};

use crate::blob;
use crate::block::Block;
use crate::directory::{self, OpenError};
use crate::fault::fault;
use crate::loss::Loss;
use crate::notes;
use crate::row::{DocumentRow, sql};
use crate::schema;
use crate::table::Table;
use crate::tree;
use crate::view::View;

/// How many rows are read at a time.
const CHUNK: usize = 512;

/// Why a log could not be read to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// It could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database failed.
    #[error(transparent)]
    Fault(#[from] StoreFault),
    /// A file failed.
    #[error("`{}`: {error}", file.display())]
    File {
        /// The file or directory.
        file: PathBuf,
        /// What happened.
        error: io::Error,
    },
}

impl AuditError {
    pub(crate) fn file(file: &Path) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |error| AuditError::File { file, error }
    }
}

/// Events that cannot be read: they are stored together, and that is damaged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("events {} to {} cannot be read: their block is damaged ({problem})", first.0, last.0)]
pub struct DamagedBlock {
    /// The position of the first.
    pub first: Position,
    /// The position of the last.
    pub last: Position,
    /// What is wrong.
    pub problem: String,
}

/// A whole log, open for reading.
#[derive(Debug)]
pub struct Audit {
    directory: PathBuf,
    view: View,
    name: EventName,
    head: Position,
}

impl Audit {
    /// Opens the log of a directory as it is now.
    ///
    /// # Errors
    /// There is no log, a newer program wrote it, or the disk fails.
    pub fn open(directory: &Path) -> Result<Self, AuditError> {
        let view = View::open(directory)?;
        let connection = &view.connection;
        let meta = schema::meta(directory, connection)?;
        notes::check_tables(directory, connection)?;
        let head = head(connection)?;
        Ok(Self {
            directory: directory.to_owned(),
            view,
            name: EventName::new(&meta.name),
            head,
        })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.view.connection
    }

    /// Returns what the log has lost, as far as it can be read nevertheless.
    pub fn loss(&self) -> Option<Loss> {
        self.view.loss
    }

    /// Returns why nothing says how far the log had come.
    pub(crate) fn unreadable_head(&self) -> Option<&OpenError> {
        self.view.unreadable.as_ref()
    }

    /// True when a file says how far the log had come, readable or not.
    pub(crate) fn has_head(&self) -> bool {
        self.view.has_head
    }

    /// True when a copy in a temporary folder is read, because the directory cannot be written.
    pub fn is_copy(&self) -> bool {
        self.view.is_copy()
    }

    /// True when somebody began to work in a directory that was opened while nobody did: what was read may be torn, and
    /// opening it again helps.
    pub fn is_stale(&self) -> bool {
        self.view.is_stale()
    }

    /// Returns the name of the log.
    pub fn name(&self) -> &EventName {
        &self.name
    }

    /// Returns the position of the last event.
    pub fn head(&self) -> Position {
        self.head
    }

    /// Returns some events after a position, ascending; none at the end.
    ///
    /// # Errors
    /// The database fails.
    pub fn events(
        &self,
        after: Position,
    ) -> Result<Vec<Result<StoredEvent, DamagedBlock>>, AuditError> {
        let next = after.plus(1);
        let start = Table::Events.holding(self.connection(), next.0)?;
        let mut found: Vec<Result<StoredEvent, DamagedBlock>> = Vec::new();
        let add = |first: Position, bytes: &[u8]| -> Result<bool, AuditError> {
            // What is lost reaches to the block that follows.
            if let Some(Err(lost)) = found.last_mut() {
                lost.last = Position(first.0.saturating_sub(1));
            }
            match Block::decode(first, bytes) {
                Ok(block) => {
                    let events = block.events.into_iter();
                    found.extend(events.filter(|event| event.position >= next).map(Ok));
                }
                Err(problem) if first >= next => found.push(Err(DamagedBlock {
                    first,
                    last: self.head,
                    problem,
                })),
                Err(_) => {}
            }
            // Not before it is known how far a damaged one reaches.
            Ok(found.len() < CHUNK || matches!(found.last(), Some(Err(_))))
        };
        Table::Events.each(self.connection(), start.unwrap_or(next.0), add)?;
        Ok(found)
    }

    /// Returns some documents after a key, ascending; none at the end.
    ///
    /// # Errors
    /// The database fails.
    pub fn documents(&self, after: Position) -> Result<Vec<DocumentRow>, AuditError> {
        Ok(documents(self.connection(), after)?)
    }

    /// Returns the keys of some documents after a key, ascending; none at the end.
    ///
    /// # Errors
    /// The database fails.
    pub(crate) fn document_keys(&self, after: Position) -> Result<Vec<Position>, AuditError> {
        let text = "SELECT key FROM documents WHERE key > ?1 ORDER BY key LIMIT ?2";
        let mut select = self.connection().prepare_cached(text).map_err(fault)?;
        let rows = select
            .query_map((sql(after.0), CHUNK), |row| Ok(Position(row.get(0)?)))
            .map_err(fault)?;
        Ok(rows.collect::<rusqlite::Result<_>>().map_err(fault)?)
    }

    /// Returns the digests that blobs are stored under, ascending.
    ///
    /// # Errors
    /// The database or the disk fails.
    pub fn blobs(&self) -> Result<BTreeSet<Digest>, AuditError> {
        blobs(&self.directory, self.connection())
    }

    /// Returns the files in the blobs' folder that do not stand where a blob would.
    ///
    /// # Errors
    /// The disk fails.
    pub fn strays(&self) -> Result<Vec<PathBuf>, AuditError> {
        blob::strays(&self.directory).map_err(AuditError::file(&directory::blobs(&self.directory)))
    }

    /// Returns what is stored under a digest, whether it hashes to it or not.
    ///
    /// # Errors
    /// The database or the disk fails.
    pub fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, AuditError> {
        Ok(blob::find_unchecked(
            &self.directory,
            self.connection(),
            digest,
        )?)
    }

    /// Returns the Tasks that were pruned: how many headers stand for their events, and what these hash to together.
    ///
    /// # Errors
    /// The database fails.
    pub fn pruned(&self) -> Result<BTreeMap<Position, (u64, Digest)>, AuditError> {
        Ok(schema::pruned(self.connection()).map_err(fault)?)
    }

    /// Returns the positions whose events could not be read, and what the headers in their place hash to.
    ///
    /// # Errors
    /// The database fails.
    pub fn repaired(&self) -> Result<BTreeMap<Position, Digest>, AuditError> {
        Ok(schema::repaired(self.connection()).map_err(fault)?)
    }

    /// Returns the blobs that a repair found to be lost.
    ///
    /// # Errors
    /// The database fails.
    pub fn lost_blobs(&self) -> Result<BTreeSet<Digest>, AuditError> {
        Ok(schema::lost_blobs(self.connection()).map_err(fault)?)
    }

    /// Returns the document with a key.
    ///
    /// # Errors
    /// The database fails.
    pub fn document(&self, key: Position) -> Result<Option<DocumentRow>, AuditError> {
        let columns = DocumentRow::COLUMNS;
        let text = format!("SELECT {columns} FROM documents WHERE key = ?1");
        let row = self
            .connection()
            .prepare_cached(&text)
            .and_then(|mut select| select.query_row([sql(key.0)], DocumentRow::read).optional());
        Ok(row.map_err(fault)?)
    }

    /// Returns where the receipt log's tree stands.
    ///
    /// # Errors
    /// The database fails.
    pub fn tree(&self) -> Result<Tree, AuditError> {
        Ok(tree::tree(self.connection())?)
    }

    /// Returns some leaves from an index, ascending: the key and the hash of each receipt; none at the end.
    ///
    /// # Errors
    /// The database fails.
    pub fn leaves(&self, first: u64) -> Result<Vec<(Position, Digest)>, AuditError> {
        Ok(tree::leaves(self.connection(), first, CHUNK)?)
    }

    /// Returns how many leaves are stored, and the first and the last index of them.
    ///
    /// # Errors
    /// The database fails.
    pub fn leaf_range(&self) -> Result<(u64, Option<(i64, i64)>), AuditError> {
        let select = "SELECT count(*), min(idx), max(idx) FROM leaves";
        let found = self.connection().query_row(select, [], |row| {
            let ends: (Option<i64>, Option<i64>) = (row.get(1)?, row.get(2)?);
            Ok((row.get(0)?, ends.0.zip(ends.1)))
        });
        Ok(found.map_err(fault)?)
    }

    /// Returns how many hashes are kept for tiles.
    ///
    /// # Errors
    /// The database fails.
    pub fn tree_hash_count(&self) -> Result<u64, AuditError> {
        let count = self
            .connection()
            .query_row("SELECT count(*) FROM tree_hashes", [], |row| row.get(0));
        Ok(count.map_err(fault)?)
    }

    /// Returns a hash that tiles keep.
    ///
    /// # Errors
    /// The database fails.
    pub fn tree_hash(&self, level: u8, index: u64) -> Result<Option<Digest>, AuditError> {
        let found = self
            .connection()
            .prepare_cached("SELECT hash FROM tree_hashes WHERE level = ?1 AND idx = ?2")
            .and_then(|mut select| {
                select
                    .query_row((level, sql(index)), |row| {
                        Ok(Digest::from_bytes(row.get(0)?))
                    })
                    .optional()
            });
        Ok(found.map_err(fault)?)
    }

    /// Returns what the database finds wrong with itself: pages, indexes, types.
    ///
    /// # Errors
    /// The database fails.
    pub fn integrity(&self) -> Result<Vec<String>, AuditError> {
        let mut check = self
            .connection()
            .prepare("PRAGMA integrity_check")
            .map_err(fault)?;
        let rows = check.query_map([], |row| row.get(0)).map_err(fault)?;
        let mut problems: Vec<String> = rows.collect::<rusqlite::Result<_>>().map_err(fault)?;
        problems.retain(|problem| problem != "ok");
        Ok(problems)
    }
}

/// Returns the position of the last event.
pub(crate) fn head(connection: &Connection) -> Result<Position, StoreFault> {
    let Some((first, block)) = Table::Events.held(connection, u64::MAX)? else {
        return Ok(Position::START);
    };
    let block = Block::decode(Position(first), &block).unwrap_or_default();
    match block.events.last() {
        Some(last) => Ok(last.position),
        // A damaged block tells its place and not its length; the document that its last event changed does.
        None => {
            let tip = "SELECT ifnull(max(tip), 0) FROM documents";
            let tip = connection.query_row(tip, [], |row| row.get(0));
            Ok(Position(first.max(tip.map_err(fault)?)))
        }
    }
}

/// Returns the digests that blobs are stored under, in the database and in files.
pub(crate) fn blobs(
    directory: &Path,
    connection: &Connection,
) -> Result<BTreeSet<Digest>, AuditError> {
    let mut select = connection
        .prepare_cached("SELECT digest FROM blobs")
        .map_err(fault)?;
    let rows = select
        .query_map([], |row| Ok(Digest::from_bytes(row.get(0)?)))
        .map_err(fault)?;
    let mut digests: BTreeSet<Digest> = rows.collect::<rusqlite::Result<_>>().map_err(fault)?;
    let files = blob::files(directory).map_err(AuditError::file(&directory::blobs(directory)))?;
    digests.extend(files);
    Ok(digests)
}

pub(crate) fn documents(
    connection: &Connection,
    after: Position,
) -> Result<Vec<DocumentRow>, StoreFault> {
    let columns = DocumentRow::COLUMNS;
    let text = format!("SELECT {columns} FROM documents WHERE key > ?1 ORDER BY key LIMIT ?2");
    let mut select = connection.prepare_cached(&text).map_err(fault)?;
    let rows = select
        .query_map((sql(after.0), CHUNK), DocumentRow::read)
        .map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}
