//! From formats 2 and 3 to the present one.
//!
//! A new database is made beside the old one from what that holds; the old one is kept as a backup, whole. Each step can
//! be the last of a process: whoever opens the directory next begins again with what is there. The order is what makes it
//! so: the new database is complete and durable before anything else changes; the backup has its name before the format
//! has its number, so that no older program works on what is about to change; the database gets its name last.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use domain::{Event, Position, links};
use engine::port::{StoreFault, StoredEvent};
use rusqlite::{Connection, OptionalExtension};

use crate::backup::{self, Database};
use crate::block::Block;
use crate::directory::{self, FORMAT_VERSION, OpenError, database, make_private, sync_directory};
use crate::fault::fault;
use crate::head_file::HeadRecord;
use crate::row::{further_bytes, id_bytes, sql};
use crate::schema::{self, Role};
use crate::table::Table;
use crate::{head_file, legacy, loss, notes, projection, tree};

/// Where the new database is made.
const FOLDER: &str = "migrating";

/// How often it is said how far it is.
const EVENTS_A_STEP: u64 = 10_000;

/// How far a migration is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Migration {
    /// The old database holds everything in one file.
    Begun,
    /// This many events were written to the new database.
    Copied(u64),
    /// The new database is complete.
    Complete,
    /// The old one is kept.
    BackedUp,
    /// The directory says that it has the new format.
    Numbered,
    /// The new database is in its place.
    Replaced,
}

/// What was migrated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// How many events there are.
    pub events: u64,
    /// Where the directory is kept as it was.
    pub backup: PathBuf,
}

/// Brings a directory to the format of this program; none when it has it. Nobody may work in it.
///
/// # Errors
/// Another process holds it, there is no log, it has lost something, or the disk fails.
pub fn migrate(
    directory: &Path,
    progress: &mut dyn FnMut(Migration),
) -> Result<Option<Migrated>, OpenError> {
    directory::check(directory)?;
    let _lock = directory::claim(directory)?;
    let kept = head_file::read(directory)?;
    if let (_, Some(loss)) = loss::of_files(directory, kept.as_ref())? {
        return Err(OpenError::lost(directory, loss));
    }
    bring_forward(directory, kept.as_ref(), progress)
}

/// The same for a directory that is claimed and whose write-ahead log was looked at.
pub(crate) fn bring_forward(
    directory: &Path,
    kept: Option<&HeadRecord>,
    progress: &mut dyn FnMut(Migration),
) -> Result<Option<Migrated>, OpenError> {
    let failed = |error: io::Error| OpenError::fault(directory, error);
    if !database(directory).exists() {
        return Ok(None);
    }
    let broken = |error: rusqlite::Error| OpenError::fault(directory, error);
    let folder = directory.join(FOLDER);
    let is_older = schema::connect(directory, Role::Reader)
        .and_then(|connection| schema::is_older(&connection))
        .map_err(broken)?;
    if !is_older {
        // What a killed migration left behind its last step.
        return match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(None),
        };
    }
    tracing::info!(
        "bringing the data directory to format {FORMAT_VERSION}; it will be kept as it is in a backup"
    );
    let old = schema::connect(directory, Role::Writer { full_sync: true }).map_err(broken)?;
    let truncate = "PRAGMA wal_checkpoint(TRUNCATE)";
    let busy = old.query_row(truncate, [], |row| row.get::<_, i64>(0));
    if busy.map_err(broken)? != 0 {
        let problem = "another process reads the database";
        return Err(OpenError::fault(directory, problem));
    }
    progress(Migration::Begun);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    make_private(&folder).map_err(failed)?;
    let finished = database(&folder);
    let new = schema::scratch(&finished).map_err(broken)?;
    let events = Copying::new(&old, &new)
        .and_then(|copying| copying.run(directory, progress))
        .map_err(|problem| OpenError::fault(directory, problem))?;
    if let Some(loss) = kept.and_then(|kept| loss::of_log(&new, kept)) {
        return Err(OpenError::lost(directory, loss));
    }
    new.close().map_err(|(_, error)| broken(error))?;
    let durable = File::open(&finished).and_then(|file| file.sync_all());
    durable
        .and_then(|()| sync_directory(&folder))
        .map_err(failed)?;
    progress(Migration::Complete);
    schema::checkpoint_on_close(&old, true).map_err(broken)?;
    old.close().map_err(|(_, error)| broken(error))?;
    let name = format!("backup-before-format-{FORMAT_VERSION}");
    let backup = backup::make(directory, &name, Database::IsReplaced).map_err(failed)?;
    progress(Migration::BackedUp);
    directory::adopt(directory)?;
    progress(Migration::Numbered);
    backup::replace_database(directory, &finished).map_err(failed)?;
    progress(Migration::Replaced);
    fs::remove_dir_all(&folder).map_err(failed)?;
    tracing::info!(
        "the data directory has format {FORMAT_VERSION} now; it is kept as it was in `{}`: remove that when you no longer need it",
        backup.display()
    );
    Ok(Some(Migrated { events, backup }))
}

/// Tables that are as they were: their rows are copied.
const SAME: &[(&str, &str)] = &[
    ("meta", "name, value"),
    ("claims", "scope, body, answer, expires_at"),
    ("leases", "name, holder, epoch"),
    ("blobs", "digest, pack, block, number"),
    ("leaves", "idx, receipt, hash"),
    ("tree_hashes", "level, idx, hash"),
    ("tree", "one, size, peaks, last"),
    (
        "documents",
        "key, id, kind, version, tip, workspace, session, task, open, created_at, updated_at, body",
    ),
];

/// API keys as the first programs kept them, and those that let them expire.
const API_KEYS: (&str, &str) = (
    "api_keys",
    "number, id, digest, actor, workspaces, scopes, created_at, revoked_at",
);
const API_KEYS_THAT_EXPIRE: (&str, &str) = (
    "api_keys",
    "number, id, digest, actor, workspaces, scopes, created_at, revoked_at, expires_at",
);

/// Tables that the first repair of a log makes.
const OF_REPAIR: &[(&str, &str)] = &[("repaired", "position, header"), ("lost_blobs", "digest")];

/// Tables that the first prune of a log makes.
const OF_PRUNING: &[(&str, &str)] = &[("pruned", "task, events, headers"), ("unnamed", "digest")];

/// Fills the new database from the old one.
struct Copying<'a> {
    old: &'a Connection,
    new: &'a Connection,
    events: u64,
    /// Further links of events that created a document.
    further: BTreeMap<Position, Box<[Position]>>,
}

impl<'a> Copying<'a> {
    fn new(old: &'a Connection, new: &'a Connection) -> Result<Self, StoreFault> {
        new.execute_batch("BEGIN").map_err(fault)?;
        Ok(Self {
            old,
            new,
            events: 0,
            further: BTreeMap::new(),
        })
    }

    fn run(
        mut self,
        directory: &Path,
        progress: &mut dyn FnMut(Migration),
    ) -> Result<u64, StoreFault> {
        let mut tables = SAME.to_vec();
        if schema::has_pruning(self.old).map_err(fault)? {
            schema::prepare_pruning(self.new).map_err(fault)?;
            tables.extend(OF_PRUNING);
        }
        if schema::has_repair(self.old).map_err(fault)? {
            schema::prepare_repair(self.new).map_err(fault)?;
            tables.extend(OF_REPAIR);
        }
        tables.push(match schema::keys_expire(self.old).map_err(fault)? {
            true => API_KEYS_THAT_EXPIRE,
            false => API_KEYS,
        });
        for (table, columns) in tables {
            self.copy(table, columns).map_err(fault)?;
        }
        for table in [Table::Events, Table::Packs] {
            legacy::each(self.old, table, |number, bytes, block| {
                let before = self.events;
                match block {
                    Ok(block) => self.block(table, number, block)?,
                    Err(problem) => {
                        tracing::warn!(
                            "block {number} of `{}` is damaged and stays so: {problem}",
                            directory.display()
                        );
                        self.damaged(table, number, bytes).map_err(fault)?;
                    }
                }
                if before == 0 || before / EVENTS_A_STEP < self.events / EVENTS_A_STEP {
                    progress(Migration::Copied(self.events));
                }
                Ok::<(), StoreFault>(())
            })?;
        }
        self.link_documents().map_err(fault)?;
        projection::list_messages(self.new).map_err(fault)?;
        tree::put_heads(self.new)?;
        projection::note_migrated(self.new).map_err(fault)?;
        notes::fill(self.new).map_err(fault)?;
        self.new.execute_batch("COMMIT").map_err(fault)?;
        Ok(self.events)
    }

    fn copy(&self, table: &str, columns: &str) -> rusqlite::Result<()> {
        let count = columns.split(',').count();
        let places = vec!["?"; count].join(", ");
        let insert = format!("INSERT INTO {table}({columns}) VALUES ({places})");
        let mut insert = self.new.prepare(&insert)?;
        let mut select = self
            .old
            .prepare(&format!("SELECT {columns} FROM {table}"))?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            for column in 0..count {
                let value: rusqlite::types::Value = row.get(column)?;
                insert.raw_bind_parameter(column + 1, value)?;
            }
            insert.raw_execute()?;
        }
        Ok(())
    }

    fn block(&mut self, table: Table, number: u64, mut block: Block) -> Result<(), StoreFault> {
        for stored in &mut block.events {
            self.link(stored)?;
            self.events += 1;
        }
        table.put(self.new, number, &block).map_err(fault)?;
        projection::link(self.new, number, &block)
    }

    /// Adds the further links of an event, which older formats had no place for.
    fn link(&mut self, stored: &mut StoredEvent) -> Result<(), StoreFault> {
        // What is no event is for `log verify` to report.
        let Ok(event) = Event::parse(&stored.bytes) else {
            return Ok(());
        };
        let further = links(&event, |id| self.key(id).ok().flatten()).further;
        if further.is_empty() {
            return Ok(());
        }
        if stored.position == stored.resource {
            self.further.insert(stored.position, further.clone());
        }
        stored.links.further = further;
        Ok(())
    }

    fn key(&self, id: &str) -> rusqlite::Result<Option<Position>> {
        let mut select = self
            .old
            .prepare_cached("SELECT key FROM documents WHERE id = ?1")?;
        let key = select
            .query_row([id_bytes(id)], |row| row.get(0))
            .optional();
        Ok(key?.map(Position))
    }

    /// Keeps a block as it is that cannot be read, under the links that it had.
    fn damaged(&self, table: Table, number: u64, bytes: &[u8]) -> rusqlite::Result<()> {
        table.put_bytes(self.new, number, bytes)?;
        if table == Table::Packs {
            return Ok(());
        }
        let mut select = self
            .old
            .prepare_cached("SELECT link FROM event_links WHERE first = ?1")?;
        let links = select.query_map([sql(number)], |row| row.get::<_, i64>(0))?;
        let mut insert = self
            .new
            .prepare_cached("INSERT INTO event_links(link, first) VALUES (?1, ?2)")?;
        for link in links {
            insert.execute([link?, sql(number)])?;
        }
        Ok(())
    }

    fn link_documents(&self) -> rusqlite::Result<()> {
        let set = "UPDATE documents SET further = ?2 WHERE key = ?1";
        let mut set = self.new.prepare(set)?;
        for (key, further) in &self.further {
            set.execute((sql(key.0), further_bytes(further)))?;
        }
        Ok(())
    }
}
