//! Retention: what is left of the log of a Task that is finished and old enough.
//!
//! Each event becomes a header in its own place, which says what the event's bytes hashed to; the blobs that nothing else
//! names go. Receipts and trust records stay whole: they prove what is gone, and chains of other Tasks run through them.
//! Documents stay.
//!
//! A Task is reduced in one transaction. Before the first, the blobs that its events name are noted down; after the last,
//! those that nothing names any more are removed. A run that is killed in between has lost nothing else, and the next one
//! goes on with its notes.

mod naming;
mod planned;

use std::collections::BTreeSet;
use std::path::Path;

use canon::Digest;
use domain::{Document, Event, Position, ResourceKind, Retention, State, Timestamp};
use engine::port::{ListQuery, ReadEvents, Scope, StoreFault, StoredEvent};
use rusqlite::{Connection, TransactionBehavior};
use sha2::{Digest as _, Sha256};

use crate::audit::AuditError;
use crate::directory::{self, OpenError};
use crate::fault::fault;
use crate::head_file::HeadRecord;
use crate::row::sql;
use crate::schema::{self, Role};
use crate::table::Table;
use crate::{blob, erase, head_file, loss, migrate, projection, read};

/// How many rows are read at a time.
const CHUNK: usize = 512;
/// After how many pages of the write-ahead log it is moved into the database.
const CHECKPOINT_PAGES: u32 = 1_000;

/// What was pruned, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// How many Tasks.
    pub tasks: u64,
    /// How many events became headers.
    pub events: u64,
    /// How many blobs went.
    pub blobs: u64,
    /// How many bytes events and blobs had more than is left of them, before compression.
    pub bytes: u64,
    /// How many Tasks were left alone, old enough, because a replay of them has not ended.
    pub in_use: u64,
}

/// Told how far it is: what is done, and how many.
pub type PruneProgress<'a> = &'a mut dyn FnMut(&'static str, u64);

/// Prunes finished Tasks whose last event is older than a time. Nobody else may work in the directory meanwhile.
///
/// # Errors
/// The directory is in use or holds no log, a block is damaged, or the disk fails. What was pruned before stays so.
pub fn prune(
    directory: &Path,
    before: Timestamp,
    progress: PruneProgress<'_>,
) -> Result<Pruned, AuditError> {
    let (_lock, connection) = claimed(directory)?;
    let mut prune = Prune {
        directory,
        connection: &connection,
        pruned: Pruned::default(),
    };
    let tasks = prune.choose(before)?;
    prune.note(&tasks)?;
    for task in &tasks {
        prune.reduce(*task)?;
        progress("events pruned", prune.pruned.events);
    }
    let unneeded = prune.unreferenced(&BTreeSet::new(), prune.noted()?, progress)?;
    prune.sweep(unneeded)?;
    let pruned = prune.pruned;
    closed(&connection)?;
    Ok(pruned)
}

/// Takes a directory to remove things from it.
pub(crate) fn claimed(directory: &Path) -> Result<(directory::Lock, Connection), AuditError> {
    directory::check(directory)?;
    let lock = directory::claim(directory)?;
    let kept = head_file::read(directory)?;
    let connection = opened(directory, kept.as_ref(), schema::prepare)?.0;
    if kept.is_none() {
        loss::refuse_without_head(directory, &connection)?;
    }
    Ok((lock, connection))
}

/// Opens the database of a claimed directory to change what is there, once it is prepared.
pub(crate) fn opened<T>(
    directory: &Path,
    kept: Option<&HeadRecord>,
    prepare: impl FnOnce(&Path, &mut Connection) -> Result<T, OpenError>,
) -> Result<(Connection, T), AuditError> {
    loss::of_files(directory, kept)?
        .1
        .map_or(Ok(()), |loss| Err(OpenError::lost(directory, loss)))?;
    migrate::bring_forward(directory, kept, &mut |_| {})?;
    directory::adopt(directory)?;
    let open = |error: rusqlite::Error| OpenError::fault(directory, error);
    let mut connection =
        schema::connect(directory, Role::Writer { full_sync: true }).map_err(open)?;
    let prepared = prepare(directory, &mut connection)?;
    // What is removed must not be found in free pages either.
    let set =
        |name: &str, value: u32| connection.pragma_update_and_check(None, name, value, |_| Ok(()));
    set("secure_delete", 1).map_err(open)?;
    set("wal_autocheckpoint", CHECKPOINT_PAGES).map_err(open)?;
    schema::prepare_pruning(&connection).map_err(open)?;
    // What is taken away counts no more: the next start counts what is left.
    projection::forget(&connection, projection::USAGE).map_err(open)?;
    Ok((connection, prepared))
}

/// Moves what was done into the database file.
pub(crate) fn closed(connection: &Connection) -> Result<(), AuditError> {
    let truncate = "PRAGMA wal_checkpoint(TRUNCATE)";
    connection
        .query_row(truncate, [], |_| Ok(()))
        .map_err(fault)?;
    Ok(schema::checkpoint_on_close(connection, true).map_err(fault)?)
}

/// Removes the blobs that nothing names: what refused uploads and killed processes left. Nobody else may work in the
/// directory meanwhile. Reads the whole log.
///
/// # Errors
/// The directory is in use or holds no log, a block is damaged, or the disk fails.
pub fn sweep(directory: &Path, progress: PruneProgress<'_>) -> Result<Pruned, AuditError> {
    let (_lock, connection) = claimed(directory)?;
    let mut prune = Prune {
        directory,
        connection: &connection,
        pruned: Pruned::default(),
    };
    let unneeded = prune.unreferenced(&BTreeSet::new(), prune.stored()?, progress)?;
    prune.sweep(unneeded)?;
    let pruned = prune.pruned;
    closed(&connection)?;
    Ok(pruned)
}

/// Says what [`prune`] would do; beside a process that works in the directory, or without one.
///
/// # Errors
/// There is no log, a block is damaged, or the disk fails.
pub fn prunable(
    directory: &Path,
    before: Timestamp,
    progress: PruneProgress<'_>,
) -> Result<Pruned, AuditError> {
    directory::check(directory)?;
    let connection = schema::connect(directory, Role::Reader)
        .map_err(|error| OpenError::fault(directory, error))?;
    schema::check_version(directory, &connection)?;
    connection.execute_batch("BEGIN").map_err(fault)?;
    let mut prune = Prune {
        directory,
        connection: &connection,
        pruned: Pruned::default(),
    };
    let tasks = prune.choose(before)?;
    let mut names = prune.noted()?;
    for task in &tasks {
        names.extend(prune.names_of(*task)?);
        prune.count(*task)?;
    }
    for digest in prune.unreferenced(&tasks, names, progress)? {
        if let Some(bytes) = blob::find_unchecked(directory, &connection, &digest)? {
            prune.pruned.blobs += 1;
            prune.pruned.bytes += bytes.len() as u64;
        }
    }
    Ok(prune.pruned)
}

/// True for events that stay whole. Their payloads are digests, ids and signatures.
fn keeps_payload(event: &Event) -> bool {
    event.is_header()
        || event.kind().is_ok_and(|kind| match kind.retention() {
            Retention::Whole | Retention::Receipt => true,
            Retention::Header | Retention::Counted | Retention::Verdict => false,
        })
}

struct Prune<'a> {
    directory: &'a Path,
    connection: &'a Connection,
    pruned: Pruned,
}

impl Prune<'_> {
    /// Finds the Tasks to prune, by key.
    fn choose(&mut self, before: Timestamp) -> Result<BTreeSet<Position>, AuditError> {
        let mut in_use = BTreeSet::new();
        self.each_task(true, |_, id, task| {
            in_use.insert(Box::from(id));
            in_use.extend(task.replay.map(|of| of.source_task_id.as_str().into()));
            Ok(())
        })?;
        self.planned(&mut in_use)?;
        let mut chosen = BTreeSet::new();
        let mut waiting = 0;
        self.each_task(false, |key, id, task| {
            let last = read::last_event(self.connection, Scope::Task(key))?;
            let ends = [key, last.unwrap_or(key)];
            let ends = read::events_at(self.connection, &ends)?;
            let [Some(first), Some(last)] = ends.as_slice() else {
                return Ok(());
            };
            let is_old = parse(&last.bytes)?.created_at < before;
            if !task.status.is_terminal() || !is_old || parse(&first.bytes)?.is_header() {
                return Ok(());
            }
            if in_use.contains(id) {
                waiting += 1;
            } else {
                chosen.insert(key);
            }
            Ok(())
        })?;
        self.pruned.in_use = waiting;
        Ok(chosen)
    }

    fn each_task(
        &self,
        open_only: bool,
        mut found: impl FnMut(Position, &str, domain::Task) -> Result<(), AuditError>,
    ) -> Result<(), AuditError> {
        self.each_document(ResourceKind::Task, open_only, |document| {
            match document.state {
                State::Task(task) => found(document.key, &document.id, task),
                _ => Ok(()),
            }
        })
    }

    fn each_document(
        &self,
        kind: ResourceKind,
        open_only: bool,
        mut found: impl FnMut(Document) -> Result<(), AuditError>,
    ) -> Result<(), AuditError> {
        let mut after = Position::START;
        loop {
            let query = ListQuery {
                kind,
                scope: Scope::All,
                open_only,
                after,
                limit: CHUNK,
            };
            let page = read::list(self.connection, query)?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = last.key;
            page.into_iter().try_for_each(&mut found)?;
        }
    }

    fn each_event(
        &self,
        task: Position,
        mut found: impl FnMut(&Event, &[u8]) -> Result<(), AuditError>,
    ) -> Result<(), AuditError> {
        let mut after = Position::START;
        loop {
            let query = ReadEvents {
                scope: Scope::Task(task),
                after,
                limit: CHUNK,
            };
            let page = read::events(self.connection, query)?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = last.position;
            for stored in &page {
                found(&parse(&stored.bytes)?, &stored.bytes)?;
            }
        }
    }

    /// Notes down which blobs the events of Tasks name, before they can no longer be asked.
    fn note(&self, tasks: &BTreeSet<Position>) -> Result<(), AuditError> {
        for task in tasks {
            let names = self.names_of(*task)?;
            self.transact(|connection| {
                let mut insert =
                    connection.prepare_cached("INSERT OR IGNORE INTO unnamed VALUES (?1)")?;
                for digest in &names {
                    insert.execute([digest.as_bytes()])?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns every blob that is stored.
    fn stored(&self) -> Result<BTreeSet<Digest>, AuditError> {
        let read = || {
            let mut select = self.connection.prepare("SELECT digest FROM blobs")?;
            let rows = select.query_map([], |row| Ok(Digest::from_bytes(row.get(0)?)))?;
            rows.collect::<rusqlite::Result<BTreeSet<_>>>()
        };
        let mut digests = read().map_err(fault)?;
        let files = blob::files(self.directory);
        digests.extend(files.map_err(AuditError::file(&directory::blobs(self.directory)))?);
        Ok(digests)
    }

    /// Returns the blobs that were noted down.
    fn noted(&self) -> Result<BTreeSet<Digest>, AuditError> {
        if !schema::has_pruning(self.connection).map_err(fault)? {
            return Ok(BTreeSet::new());
        }
        let read = || {
            let mut select = self.connection.prepare("SELECT digest FROM unnamed")?;
            let rows = select.query_map([], |row| Ok(Digest::from_bytes(row.get(0)?)))?;
            rows.collect::<rusqlite::Result<_>>()
        };
        Ok(read().map_err(fault)?)
    }

    fn count(&mut self, task: Position) -> Result<(), AuditError> {
        let (mut events, mut bytes) = (0, 0);
        self.each_event(task, |event, stored| {
            if !keeps_payload(event) {
                events += 1;
                bytes += less(stored, &event.header(stored).to_bytes());
            }
            Ok(())
        })?;
        self.pruned.tasks += 1;
        self.pruned.events += events;
        self.pruned.bytes += bytes;
        Ok(())
    }

    /// Puts headers in the place of a Task's events, and notes what they hash to together.
    fn reduce(&mut self, task: Position) -> Result<(), AuditError> {
        let mut done = Pruned::default();
        self.transact(|connection| {
            let mut headers = Headers::default();
            for first in read::linked_blocks(connection, task).map_err(inside)? {
                let reduced = Table::Events.change(connection, first, |block| {
                    for stored in &mut block.events {
                        if let Some(header) = header_of(stored, task)? {
                            headers.add(&header);
                            done.bytes += less(&stored.bytes, &header);
                            stored.bytes = header.into();
                        }
                    }
                    Ok(())
                });
                reduced.map_err(inside)?;
            }
            done.events = headers.count;
            let insert = "INSERT INTO pruned(task, events, headers) VALUES (?1, ?2, ?3)";
            connection
                .prepare_cached(insert)?
                .execute((sql(task.0), sql(headers.count), headers.digest().as_bytes()))
                .map(drop)
        })?;
        self.pruned.tasks += 1;
        self.pruned.events += done.events;
        self.pruned.bytes += done.bytes;
        Ok(())
    }

    /// Removes blobs, and the notes with them.
    fn sweep(&mut self, unneeded: BTreeSet<Digest>) -> Result<(), AuditError> {
        let unneeded: Vec<Digest> = unneeded.into_iter().collect();
        for some in unneeded.chunks(erase::AT_ONCE) {
            let mut done = Pruned::default();
            for digest in some {
                // A file first and its note afterwards: a file without a note would stay for good.
                if let Some(len) = blob::remove_file(self.directory, digest)? {
                    done.blobs += 1;
                    done.bytes += len;
                }
            }
            self.transact(|connection| {
                let mut forget =
                    connection.prepare_cached("DELETE FROM unnamed WHERE digest = ?1")?;
                for digest in some {
                    forget.execute([digest.as_bytes()])?;
                }
                let taken = erase::erase_blobs(connection, some)?;
                done.blobs += taken.blobs;
                done.bytes += taken.bytes;
                Ok(())
            })?;
            self.pruned.blobs += done.blobs;
            self.pruned.bytes += done.bytes;
        }
        // What is still noted is named by something that stays.
        self.transact(|connection| connection.execute("DELETE FROM unnamed", []).map(drop))
    }

    fn transact(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<(), AuditError> {
        let run = || {
            let transaction = rusqlite::Transaction::new_unchecked(
                self.connection,
                TransactionBehavior::Immediate,
            )?;
            work(&transaction)?;
            transaction.commit()
        };
        Ok(run().map_err(fault)?)
    }
}

fn parse(bytes: &[u8]) -> Result<Event, StoreFault> {
    Event::parse(bytes)
        .map_err(|error| StoreFault::new(format!("{error}; run `reprise log verify`")))
}

fn less(before: &[u8], after: &[u8]) -> u64 {
    (before.len() as u64).saturating_sub(after.len() as u64)
}

/// An error of ours inside a transaction.
pub(crate) fn inside(error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(error.into())
}

/// Returns what is left of an event when a Task is pruned, if it is one of its events and does not stay whole.
fn header_of(stored: &StoredEvent, task: Position) -> Result<Option<Vec<u8>>, StoreFault> {
    if stored.links.task != Some(task) {
        return Ok(None);
    }
    let event = parse(&stored.bytes)?;
    Ok((!keeps_payload(&event)).then(|| event.header(&stored.bytes).to_bytes()))
}

/// What headers hash to together, one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Headers {
    pub(crate) count: u64,
    hasher: Sha256,
}

impl Headers {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.count += 1;
        self.hasher.update(bytes);
        self.hasher.update(b"\n");
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::from_bytes(self.hasher.clone().finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use canon::sha256;

    use super::*;

    #[test]
    fn headers_hash_as_lines() {
        let mut headers = Headers::default();
        headers.add(b"one");
        headers.add(b"two");
        assert_eq!(headers.digest(), sha256(b"one\ntwo\n"));
        assert_eq!(headers.count, 2);
    }
}
