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

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use canon::Digest;
use domain::{Document, Event, Position, ResourceKind, Retention, State, Timestamp};
use engine::port::{ListQuery, Scope, StoreFault, StoredEvent};
use rusqlite::{Connection, TransactionBehavior};
use sha2::{Digest as _, Sha256};

use crate::audit::AuditError;
use crate::block::Block;
use crate::directory::{self, OpenError};
use crate::fault::fault;
use crate::head_file::HeadRecord;
use crate::row::sql;
use crate::schema::{self, Role};
use crate::table::Table;
use crate::{blob, erase, head_file, loss, migrate, projection, read, recent};

/// How many rows are read at a time.
const CHUNK: usize = 512;
/// After how many pages of the write-ahead log it is moved into the database.
const CHECKPOINT_PAGES: u32 = 1_000;

/// What was pruned, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
    /// What was left alone, old enough, because not all of it can be read, and why.
    pub problems: Vec<String>,
}

/// Told how far it is: what is done, and how many.
pub type PruneProgress<'a> = &'a mut dyn FnMut(&'static str, u64);

/// Prunes finished Tasks whose last event is older than a time. Nobody else may work in the directory meanwhile. A Task whose
/// events cannot all be found and read is left alone and named; the others are pruned.
///
/// # Errors
/// The directory is in use or holds no log, or the disk fails. What was pruned before stays so.
pub fn prune(
    directory: &Path,
    before: Timestamp,
    progress: PruneProgress<'_>,
) -> Result<Pruned, AuditError> {
    let (_lock, connection) = claimed(directory)?;
    let mut prune = Prune::new(directory, &connection);
    let tasks = prune.choose(before)?;
    prune.note(&tasks)?;
    for (task, blocks) in &tasks {
        prune.reduce(*task, blocks)?;
        progress("events pruned", prune.pruned.events);
    }
    let noted = prune.noted()?;
    if let Some(unneeded) = prune.unneeded(&BTreeSet::new(), noted, progress)? {
        prune.sweep(unneeded)?;
    }
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
    let mut prune = Prune::new(directory, &connection);
    let unneeded = prune.unreferenced(&BTreeSet::new(), prune.stored()?, progress)?;
    prune.sweep(unneeded)?;
    let pruned = prune.pruned;
    closed(&connection)?;
    Ok(pruned)
}

/// Says what [`prune`] would do; beside a process that works in the directory, or without one.
///
/// # Errors
/// There is no log, or the disk fails.
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
    let mut prune = Prune::new(directory, &connection);
    let tasks = prune.choose(before)?;
    let mut names = prune.noted()?;
    for (task, blocks) in &tasks {
        names.extend(prune.names_of(*task, blocks)?);
        prune.count(*task, blocks)?;
    }
    let tasks = tasks.into_keys().collect();
    for digest in prune.unneeded(&tasks, names, progress)?.unwrap_or_default() {
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
    /// Tasks that are left alone because not all of their events can be read.
    refused: BTreeSet<Position>,
}

/// Where the events of Tasks stand: the numbers of the blocks, by Task.
type Blocks = BTreeMap<Position, BTreeSet<u64>>;

/// A Task that is finished and old enough.
struct Candidate {
    id: Box<str>,
    version: u64,
    tip: Position,
    in_use: bool,
    blocks: BTreeSet<u64>,
    /// True when one of its events is not a header yet and does not stay whole.
    is_whole: bool,
    /// Sequence and position of the last event of its own that was seen.
    seen: (u64, Position),
    /// True when a repair left not even the envelope of one of its events: nobody knows which it was.
    has_gaps: bool,
    /// Where the sequence of its own events has a hole.
    hole: Option<String>,
    /// What cannot be read and was not repaired.
    unreadable: Option<String>,
}

impl Candidate {
    /// Takes the next event that is about the Task or belongs to it.
    fn take(&mut self, task: Position, first: u64, stored: &StoredEvent) {
        let event = match Event::parse(&stored.bytes) {
            Ok(event) => event,
            Err(error) => {
                let problem = format!("the event at position {}: {error}", stored.position.0);
                self.unreadable.get_or_insert(problem);
                return;
            }
        };
        if stored.resource == task {
            let expected = self.seen.0 + 1;
            if event.sequence != expected {
                let before = stored.position.0;
                let problem =
                    format!("number {expected} of them is missing before position {before}");
                self.hole.get_or_insert(problem);
            }
            self.seen = (event.sequence, stored.position);
        }
        if stored.links.task == Some(task) {
            self.blocks.insert(first);
            self.has_gaps |= event.is_lost();
            self.is_whole |= !keeps_payload(&event);
        }
    }

    /// Returns why not all of its events were found.
    fn problem(&self) -> Option<String> {
        let is_cut = self.seen != (self.version, self.tip);
        let end = || format!("the last of them, at position {}, is missing", self.tip.0);
        let hole = self.hole.clone().or_else(|| is_cut.then(end));
        let hole = hole.filter(|_| !self.has_gaps);
        self.unreadable.clone().or(hole)
    }
}

impl<'a> Prune<'a> {
    fn new(directory: &'a Path, connection: &'a Connection) -> Self {
        Self {
            directory,
            connection,
            pruned: Pruned::default(),
            refused: BTreeSet::new(),
        }
    }

    /// Finds the Tasks to prune, and where their events stand. Those that were pruned before are looked at again: one that
    /// has whole events nevertheless is to be finished.
    fn choose(&mut self, before: Timestamp) -> Result<Blocks, AuditError> {
        let mut in_use: BTreeSet<Box<str>> = BTreeSet::new();
        self.each_task(true, |document, task| {
            in_use.insert(document.id.clone());
            in_use.extend(task.replay.map(|of| of.source_task_id.as_str().into()));
            Ok(())
        })?;
        self.planned(&mut in_use)?;
        let mut candidates = BTreeMap::new();
        self.each_task(false, |document, task| {
            if !task.status.is_terminal() || document.updated_at >= before {
                return Ok(());
            }
            // One that cannot be read is found again where everything is read.
            let last = read::last_event(self.connection, Scope::Task(document.key));
            let last = last.ok().flatten();
            let last =
                last.and_then(|last| read::events_at(self.connection, &[last]).ok()?.pop()?);
            let last = last.and_then(|last| Event::parse(&last.bytes).ok());
            if last.is_some_and(|last| last.created_at >= before) {
                return Ok(());
            }
            let candidate = Candidate {
                in_use: in_use.contains(&document.id),
                id: document.id,
                version: document.version,
                tip: document.tip,
                blocks: BTreeSet::new(),
                is_whole: false,
                seen: (0, Position::START),
                has_gaps: false,
                hole: None,
                unreadable: None,
            };
            candidates.insert(document.key, candidate);
            Ok(())
        })?;
        self.locate(&mut candidates)?;
        let mut chosen = Blocks::new();
        for (task, candidate) in candidates {
            if let Some(problem) = candidate.problem() {
                self.refused.insert(task);
                let id = &candidate.id;
                let advice = "run `reprise log verify`";
                self.pruned.problems.push(format!(
                    "task `{id}` is not pruned, because not all of its events can be read: {problem}; {advice}"
                ));
            } else if candidate.is_whole && candidate.in_use {
                self.pruned.in_use += 1;
            } else if candidate.is_whole {
                chosen.insert(task, candidate.blocks);
            }
        }
        Ok(chosen)
    }

    /// Looks where the events of Tasks stand, in the log itself: an event that the index lacks would stay whole.
    fn locate(&self, candidates: &mut BTreeMap<Position, Candidate>) -> Result<(), AuditError> {
        if candidates.is_empty() {
            return Ok(());
        }
        Table::Events.each(
            self.connection,
            0,
            |first, bytes| -> Result<_, AuditError> {
                match Block::decode(first, bytes) {
                    Ok(block) => {
                        for stored in &block.events {
                            let tasks = [stored.links.task, Some(stored.resource)];
                            let tasks: BTreeSet<Position> = tasks.into_iter().flatten().collect();
                            for task in tasks {
                                if let Some(candidate) = candidates.get_mut(&task) {
                                    candidate.take(task, first.0, stored);
                                }
                            }
                        }
                    }
                    Err(damage) => {
                        for task in
                            recent::links_of_block(self.connection, first.0).map_err(fault)?
                        {
                            if let Some(candidate) = candidates.get_mut(&task) {
                                let problem = format!("block {} is damaged: {damage}", first.0);
                                candidate.unreadable.get_or_insert(problem);
                            }
                        }
                    }
                }
                Ok(true)
            },
        )
    }

    /// Returns the blobs that nothing names once Tasks are pruned; none, which is said, when not every event can be asked.
    fn unneeded(
        &mut self,
        tasks: &BTreeSet<Position>,
        names: BTreeSet<Digest>,
        progress: PruneProgress<'_>,
    ) -> Result<Option<BTreeSet<Digest>>, AuditError> {
        match self.unreferenced(tasks, names, progress) {
            Err(AuditError::Fault(error)) => {
                self.pruned.problems.push(format!(
                    "blobs are not removed, because not everything that may name them can be read: {error}; the next run \
                     removes them once `reprise log verify` finds nothing wrong"
                ));
                Ok(None)
            }
            unneeded => unneeded.map(Some),
        }
    }

    fn each_task(
        &self,
        open_only: bool,
        mut found: impl FnMut(Document, domain::Task) -> Result<(), AuditError>,
    ) -> Result<(), AuditError> {
        self.each_document(ResourceKind::Task, open_only, |document| {
            match document.state.clone() {
                State::Task(task) => found(document, task),
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
        blocks: &BTreeSet<u64>,
        mut found: impl FnMut(&Event, &[u8]) -> Result<(), AuditError>,
    ) -> Result<(), AuditError> {
        for first in blocks {
            for stored in Table::Events.block(self.connection, *first)?.events {
                if stored.links.task == Some(task) {
                    found(&parse(&stored.bytes)?, &stored.bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Notes down which blobs the events of Tasks name, before they can no longer be asked.
    fn note(&self, tasks: &Blocks) -> Result<(), AuditError> {
        for (task, blocks) in tasks {
            let names = self.names_of(*task, blocks)?;
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

    fn count(&mut self, task: Position, blocks: &BTreeSet<u64>) -> Result<(), AuditError> {
        let (mut events, mut bytes) = (0, 0);
        self.each_event(task, blocks, |event, stored| {
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

    /// Puts headers in the place of a Task's events, and notes what they hash to together with those that it had.
    fn reduce(&mut self, task: Position, blocks: &BTreeSet<u64>) -> Result<(), AuditError> {
        let mut done = Pruned::default();
        let repaired = schema::repaired(self.connection).map_err(fault)?;
        self.transact(|connection| {
            let mut headers = Headers::default();
            for first in blocks {
                let reduced = Table::Events.change(connection, *first, |block| {
                    let events = block.events.iter_mut();
                    for stored in events.filter(|stored| stored.links.task == Some(task)) {
                        let event = parse(&stored.bytes)?;
                        if event.is_header() && !repaired.contains_key(&stored.position) {
                            headers.add(&stored.bytes);
                        }
                        if !keeps_payload(&event) {
                            let header = event.header(&stored.bytes).to_bytes();
                            headers.add(&header);
                            done.events += 1;
                            done.bytes += less(&stored.bytes, &header);
                            stored.bytes = header.into();
                        }
                    }
                    Ok(())
                });
                reduced.map_err(inside)?;
            }
            let note = "INSERT OR REPLACE INTO pruned(task, events, headers) VALUES (?1, ?2, ?3)";
            connection
                .prepare_cached(note)?
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
