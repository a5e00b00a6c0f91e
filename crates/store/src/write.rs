//! The writer: one transaction after another on the one connection that writes.
//!
//! Invariant: what was answered is committed, and what is committed was answered in order: head, news, answer,
//! all after the commit. When it cannot know whether a commit happened, it writes nothing any more.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use canon::{Digest, sha256};
use domain::{Blob, Document, Position, ResourceKind, State};
use engine::port::{
    ApiKey, ClaimTime, Commit, CommitError, Committed, ExpectedVersion, Fence, Heartbeat,
    LeaseOwners, LeaseRequest, NewestQuery, Publisher, Scope, SealedTurn, StoreFault, StoredEvent,
    TreeAppend,
};
use rusqlite::{Connection, ErrorCode, OptionalExtension};

use crate::block::Block;
use crate::checkpoint::{self, Checkpoints};
use crate::directory::{self, Presence};
use crate::fault::{commit_fault, fault, file_fault, only_fault};
use crate::head_file::{HeadRecord, HeadWriter};
use crate::leases::{self, LeaseEpochs};
use crate::merge::{Run, WrittenBlock};
use crate::recent::NewLinks;
use crate::row::{DocumentRow, id_bytes, sql};
use crate::sqlite::Options;
use crate::table::Table;
use crate::usage::Usage;
use crate::wal::Wal;
use crate::{blob, claims, notes, projection, read, recent, schema, sharing, tree};

mod purge;

use purge::{PendingPurge, Purges};

/// What readers see of the writer.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) head: AtomicU64,
    /// Claims that expired by then are gone, dropped already or not.
    pub(crate) claim_time: AtomicI64,
    pub(crate) news: Publisher,
    /// Why nothing is written any more.
    pub(crate) stopped: OnceLock<StoreFault>,
    /// True when the last write found no room.
    pub(crate) full: AtomicBool,
    /// How much Workspaces have stored; none where nobody counts.
    pub(crate) usage: Mutex<Option<Usage>>,
}

/// How much room there must be before a disk that was full counts as usable: more than a commit takes.
const ROOM_BYTES: usize = 1 << 20;

impl Published {
    pub(crate) fn new(head: Position) -> Self {
        Self {
            head: AtomicU64::new(head.0),
            claim_time: AtomicI64::new(i64::MIN),
            news: Publisher::default(),
            stopped: OnceLock::new(),
            full: AtomicBool::new(false),
            usage: Mutex::new(None),
        }
    }

    /// Writes down what was counted, in the transaction under way.
    fn keep_usage(&self, connection: &Connection) -> Result<(), CommitError> {
        let written = self.with_usage(|usage| usage.write(connection));
        written.unwrap_or(Ok(())).map_err(commit_fault)
    }

    /// Does something with what was counted.
    pub(crate) fn with_usage<T>(&self, work: impl FnOnce(&mut Usage) -> T) -> Option<T> {
        let mut usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        usage.as_mut().map(work)
    }
}

/// Returns where the log of a database stands, as the file beside it says it.
pub(crate) fn head_record(connection: &Connection) -> Result<HeadRecord, StoreFault> {
    Ok(Counters::read(connection)?.kept())
}

/// Numbers that only the writer gives out. Read once; each transaction works on a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counters {
    head: u64,
    /// The digest of the event at the head.
    newest: Option<Digest>,
    /// Size and root of the newest signed head of the receipt log.
    tree: Option<(u64, Digest)>,
    epoch: u64,
    claim_time: ClaimTime,
    /// The time of claims as this process last wrote it down.
    claim_time_kept: Option<i64>,
    pack: u64,
    /// How many links have gathered.
    recent: u64,
}

impl Counters {
    fn read(connection: &Connection) -> Result<Self, StoreFault> {
        let epoch = "SELECT value FROM meta WHERE name = 'lease_epoch'";
        let last = read::last_event(connection, Scope::All)?;
        let event = match last {
            Some(last) => read::events_at(connection, &[last])?
                .into_iter()
                .flatten()
                .next(),
            None => None,
        };
        let claim_time = notes::number(connection, notes::CLAIM_TIME).map_err(fault)?;
        let claim_time = claim_time.filter(|time| *time != notes::NO_COMMIT);
        let tree = read::newest(connection, NewestQuery::one(ResourceKind::Batch))?;
        Ok(Self {
            head: last.map_or(0, |last| last.0),
            newest: event.map(|event| sha256(&event.bytes)),
            tree: tree.iter().find_map(sealed_head),
            epoch: connection
                .query_row(epoch, [], |row| row.get(0))
                .map_err(fault)?,
            claim_time: ClaimTime::resume(claim_time),
            claim_time_kept: None,
            pack: Table::Packs.holding(connection, u64::MAX)?.unwrap_or(0),
            recent: recent::count(connection).map_err(fault)?,
        })
    }

    /// Goes on from what other processes committed. Nothing goes back: whoever has more of something has committed it, or has
    /// seen it there.
    fn catch_up(&mut self, connection: &Connection) -> Result<(), StoreFault> {
        let found = Self::read(connection)?;
        let clock = notes::number(connection, notes::CLAIM_CLOCK).map_err(fault)?;
        let mut claim_time = self.claim_time;
        claim_time.catch_up(
            found.claim_time.time(),
            clock.filter(|clock| *clock != notes::UNKNOWN),
        );
        *self = Self {
            head: found.head.max(self.head),
            claim_time,
            claim_time_kept: self.claim_time_kept,
            ..found
        };
        Ok(())
    }

    fn kept(&self) -> HeadRecord {
        HeadRecord {
            position: Position(self.head),
            event: self.newest,
            tree: self.tree,
            wal: None,
        }
    }

    fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// Writes down which epochs were given out, in the transaction that did.
    fn keep_epoch(&self, connection: &Connection) -> Result<(), CommitError> {
        connection
            .prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'lease_epoch'")
            .and_then(|mut update| update.execute([sql(self.epoch)]))
            .map(drop)
            .map_err(commit_fault)
    }
}

/// A transaction under way.
struct Transaction<'a> {
    connection: &'a Connection,
    counters: Counters,
    new_links: NewLinks,
}

/// What the thread that writes holds.
pub(crate) struct Writer {
    directory: Arc<Path>,
    presence: Presence,
    connection: Connection,
    counters: Counters,
    checkpoints: Checkpoints,
    keeper: HeadWriter,
    published: Arc<Published>,
    /// Where several processes write: the `data_version` that the counters are of.
    shared: Option<i64>,
    /// Small blocks at the end of the log.
    run: Run,
    /// How many links gather before they are moved.
    recent_max: u64,
    /// How many must have gathered before moving them is tried again.
    recent_again: u64,
    /// Where links go.
    new_links: NewLinks,
    purges: Purges,
}

impl Writer {
    pub(crate) fn new(
        (directory, presence): (&Path, Presence),
        connection: Connection,
        checkpoints: Checkpoints,
        wal: Wal,
        after: Position,
        options: Options,
    ) -> Result<(Self, Arc<Published>), StoreFault> {
        // Before the counters: what is committed in between is read again.
        let is_shared = options.shared;
        let shared = is_shared.then(|| sharing::data_version(&connection));
        let shared = shared.transpose().map_err(fault)?;
        let mut counters = Counters::read(&connection)?;
        if after.0 > counters.head {
            (counters.head, counters.newest) = (after.0, None);
        }
        let kept = HeadRecord {
            wal: match wal {
                Wal::Whole {
                    salts: Some(salts),
                    frames,
                } if !is_shared => Some((salts, frames)),
                Wal::None | Wal::Whole { .. } | Wal::Damaged { .. } => None,
            },
            ..counters.kept()
        };
        let keeper = HeadWriter::open(directory, kept)
            .map_err(|error| file_fault("the position of the newest event", error))?;
        // Only now: a process that dies before has a log that never had the file.
        if !schema::keeps_head(&connection).map_err(fault)? {
            notes::put(&connection, notes::KEEPS_HEAD, 1).map_err(fault)?;
        }
        let published = Arc::new(Published {
            usage: Mutex::new(Some(Usage::read(&connection)?)),
            ..Published::new(Position(counters.head))
        });
        let claim_time = counters.claim_time.time().unwrap_or(i64::MIN);
        published.claim_time.store(claim_time, Ordering::Relaxed);
        let writer = Self {
            directory: directory.into(),
            presence,
            connection,
            counters,
            checkpoints,
            keeper,
            published: Arc::clone(&published),
            shared,
            run: Run::default(),
            recent_max: options.recent_max,
            recent_again: 0,
            new_links: NewLinks::Gather,
            purges: Purges::default(),
        };
        Ok((writer, published))
    }

    /// Writes one turn.
    pub(crate) fn commit(&mut self, commit: Commit) -> Result<Committed, CommitError> {
        let directory = Arc::clone(&self.directory);
        let published = Arc::clone(&self.published);
        let is_due = published.with_usage(|usage| usage.is_due()) == Some(true);
        let run = self.run.take_due();
        let recent_due = self.recent_max.max(self.recent_again);
        let mut is_tidy = true;
        let worked = self.transact(|transaction| {
            if is_due {
                published.keep_usage(transaction.connection)?;
            }
            let is_full = transaction.counters.recent > recent_due;
            if transaction.new_links == NewLinks::Gather && (run.is_some() || is_full) {
                is_tidy = tidy(transaction, run.as_ref(), recent_due)?;
            }
            turn(&directory, transaction, commit)
        });
        if !is_tidy {
            // Not before as many links again have gathered.
            self.recent_again = self.counters.recent + self.recent_max;
        }
        if matches!(&worked, Err(CommitError::Fault(fault)) if !fault.is_full() && !fault.is_unavailable())
        {
            // Damage, as a rule. If it is where links are put, it refuses this turn and not the next.
            self.new_links = self.new_links.other();
        }
        let (committed, events, written, owed) = worked?;
        self.run.add(written);
        self.purges.add(owed);
        self.published.with_usage(|usage| {
            if is_due {
                usage.written();
            }
            usage.add(&events);
        });
        let claim_time = self.counters.claim_time.time().unwrap_or(i64::MIN);
        self.published
            .claim_time
            .store(claim_time, Ordering::Relaxed);
        self.published
            .head
            .fetch_max(self.counters.head, Ordering::AcqRel);
        // Others commit in between, and whoever follows the log would take what it is told for all there is.
        let told = match self.shared {
            Some(_) => Vec::new(),
            None => events,
        };
        self.published.news.publish(told);
        Ok(committed)
    }

    /// Stores a small blob by itself.
    pub(crate) fn put_blob(&mut self, blob: &Blob) -> Result<(), StoreFault> {
        self.transact(|transaction| {
            let new = new_blobs(transaction.connection, [blob]).map_err(commit_fault)?;
            put_blocks(transaction, &[], new).map(drop)
        })
        .map_err(only_fault)
    }

    /// Writes something that is of no use, to find out whether there is room again.
    pub(crate) fn probe(&mut self) -> Result<(), StoreFault> {
        directory::probe(&self.directory, ROOM_BYTES)
            .map_err(|error| file_fault("room on the disk", error))?;
        self.transact(|transaction| {
            let same = "UPDATE meta SET value = value WHERE name = 'lease_epoch'";
            let updated = transaction.connection.execute(same, []);
            updated.map(drop).map_err(commit_fault)
        })
        .map_err(only_fault)
    }

    /// Appends leaves to the receipt log's tree; false when it has another size than expected.
    pub(crate) fn append_leaves(&mut self, append: &TreeAppend) -> Result<bool, StoreFault> {
        self.transact(|transaction| tree::append(transaction.connection, append))
            .map_err(only_fault)
    }

    /// Writes to a projection that follows behind.
    pub(crate) fn project(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<(), StoreFault>,
    ) -> Result<(), StoreFault> {
        self.transact(|transaction| work(transaction.connection).map_err(CommitError::Fault))
            .map_err(only_fault)
    }

    /// Gives leases of others to a holder, each with a new epoch.
    pub(crate) fn take_over(
        &mut self,
        whose: &LeaseOwners,
        holder: &str,
    ) -> Result<LeaseEpochs, StoreFault> {
        if *whose == LeaseOwners::Everybody && self.shared.is_some() {
            // Nobody can tell that the others are gone.
            let said = "other processes may work in this data directory: take over from one holder, or claim";
            return Err(StoreFault::new(said));
        }
        self.take_leases(|connection, next| leases::take_over(connection, whose, holder, next))
    }

    /// Takes leases that are free.
    pub(crate) fn claim(&mut self, wanted: &LeaseRequest) -> Result<LeaseEpochs, StoreFault> {
        self.take_leases(|connection, next| leases::claim(connection, wanted, next))
    }

    fn take_leases(
        &mut self,
        take: impl FnOnce(&Connection, &mut dyn FnMut() -> u64) -> rusqlite::Result<LeaseEpochs>,
    ) -> Result<LeaseEpochs, StoreFault> {
        self.transact(|transaction| {
            let Transaction {
                connection,
                counters,
                new_links: _,
            } = transaction;
            let taken = take(connection, &mut || counters.next_epoch()).map_err(commit_fault)?;
            counters.keep_epoch(connection)?;
            Ok(taken)
        })
        .map_err(only_fault)
    }

    /// Notes that a holder is there; returns what it holds.
    pub(crate) fn heartbeat(&mut self, beat: &Heartbeat) -> Result<LeaseEpochs, StoreFault> {
        self.transact(|transaction| {
            leases::heartbeat(transaction.connection, beat).map_err(commit_fault)
        })
        .map_err(only_fault)
    }

    /// Forgets a holder and what it holds.
    pub(crate) fn leave(&mut self, holder: &str) -> Result<(), StoreFault> {
        self.transact(|transaction| {
            leases::leave(transaction.connection, holder).map_err(commit_fault)
        })
        .map_err(only_fault)
    }

    /// Adds or replaces an API key.
    pub(crate) fn put_api_key(&mut self, key: &ApiKey) -> Result<(), StoreFault> {
        self.transact(|transaction| {
            upsert_api_key(transaction.connection, key).map_err(commit_fault)
        })
        .map_err(only_fault)
    }

    /// Notes that every API key is recorded by events.
    pub(crate) fn note_keys_recorded(&mut self) -> Result<(), StoreFault> {
        self.transact(|transaction| {
            schema::note_keys_recorded(transaction.connection).map_err(commit_fault)
        })
        .map_err(only_fault)
    }

    /// Moves the whole log into the database. The readers are gone already.
    pub(crate) fn close(mut self, checkpoint_thread: checkpoint::Thread) {
        let published = Arc::clone(&self.published);
        if published.with_usage(|usage| usage.is_ahead()) == Some(true) {
            // What is not written down is counted again by the next start.
            let _ = self.transact(|transaction| published.keep_usage(transaction.connection));
        }
        let Self {
            connection,
            checkpoints,
            keeper,
            shared,
            ..
        } = self;
        drop(checkpoints);
        checkpoint_thread.join();
        if shared.is_some() {
            // The others go on: the file is theirs now, and so is the write-ahead log.
            return;
        }
        if let Err(error) = keeper.close() {
            tracing::warn!(%error, "the position of the newest event cannot be kept");
        }
        let close = schema::checkpoint_on_close(&connection, true);
        if let Err(error) = close
            .and_then(|()| connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())))
        {
            // Nothing is lost: the next start reads the log as it is.
            tracing::warn!(%error, "the last checkpoint failed");
        }
    }

    fn transact<T>(
        &mut self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, CommitError>,
    ) -> Result<T, CommitError> {
        let worked = self.transact_once(work);
        let full = matches!(&worked, Err(CommitError::Fault(fault)) if fault.is_full());
        self.published.full.store(full, Ordering::Relaxed);
        worked
    }

    fn transact_once<T>(
        &mut self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, CommitError>,
    ) -> Result<T, CommitError> {
        if let Some(fault) = self.published.stopped.get() {
            return Err(CommitError::Fault(fault.clone()));
        }
        self.presence.check().map_err(CommitError::Fault)?;
        self.execute("BEGIN IMMEDIATE").map_err(commit_fault)?;
        if let Err(fault) = self.catch_up() {
            self.roll_back();
            return Err(CommitError::Fault(fault));
        }
        let mut transaction = Transaction {
            connection: &self.connection,
            counters: self.counters,
            new_links: self.new_links,
        };
        let worked = work(&mut transaction);
        let counters = transaction.counters;
        let value = match worked {
            Ok(value) => value,
            Err(error) => {
                self.roll_back();
                return Err(error);
            }
        };
        if let Err(error) = self.execute("COMMIT") {
            self.roll_back();
            // These two come before the commit is written. After any other, it may be in the log file and
            // come back with the next start: whatever followed it now could contradict it.
            let known = matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy)
            );
            if !known {
                self.stop(&format!("a commit ended in an error ({error})"));
            }
            return Err(commit_fault(error));
        }
        self.counters = counters;
        // Where others write, the log may have started over since: its length would be that of another one.
        let frames = self.shared.is_none().then(|| self.checkpoints.frames());
        self.keeper
            .committed(counters.kept(), frames.map(u64::from));
        self.checkpoints.committed(&self.connection);
        Ok(value)
    }

    /// Goes on from what other processes committed since the last transaction. The transaction under way keeps them out.
    fn catch_up(&mut self) -> Result<(), StoreFault> {
        let Some(seen) = self.shared else {
            return Ok(());
        };
        let version = sharing::data_version(&self.connection).map_err(fault)?;
        if version == seen {
            return Ok(());
        }
        self.counters.catch_up(&self.connection)?;
        let connection = &self.connection;
        self.published
            .with_usage(|usage| usage.catch_up(connection))
            .unwrap_or(Ok(()))?;
        self.shared = Some(version);
        Ok(())
    }

    fn roll_back(&mut self) {
        // SQLite rolls back by itself after some errors.
        if !self.connection.is_autocommit()
            && let Err(error) = self.execute("ROLLBACK")
        {
            self.stop(&format!("a turn could not be rolled back ({error})"));
        }
    }

    fn stop(&mut self, cause: &str) {
        let message = format!(
            "{cause}, so the store accepts no more writes; reads still work; check the disk, then restart"
        );
        tracing::error!("{message}");
        // The first cause stands.
        let _ = self.published.stopped.set(StoreFault::unavailable(message));
    }

    fn execute(&self, statement: &str) -> rusqlite::Result<()> {
        self.connection
            .prepare_cached(statement)?
            .execute([])
            .map(drop)
    }
}

/// Writes a key in the transaction under way.
fn upsert_api_key(connection: &Connection, key: &ApiKey) -> rusqlite::Result<()> {
    let list = |names: &Vec<String>| {
        serde_json::to_string(names)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
    };
    connection.execute(
        "INSERT INTO api_keys(id, digest, actor, workspaces, scopes, created_at, revoked_at, expires_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT(id) DO UPDATE SET \
         digest = excluded.digest, actor = excluded.actor, workspaces = excluded.workspaces, \
         scopes = excluded.scopes, created_at = excluded.created_at, revoked_at = excluded.revoked_at, \
         expires_at = excluded.expires_at",
        (
            &key.id,
            key.digest.as_bytes(),
            &key.actor,
            key.workspaces.as_ref().map(list).transpose()?,
            list(&key.scopes)?,
            key.created_at.as_micros(),
            key.revoked_at.map(domain::Timestamp::as_micros),
            key.expires_at.map(domain::Timestamp::as_micros),
        ),
    )?;
    schema::seal_api_keys(connection)
}

/// Merges small blocks and moves links that have gathered, in the transaction under way. Nothing depends on either: where
/// damage keeps it from being done, everything stays as it is, and whoever writes goes on. Returns whether it was done.
fn tidy(
    transaction: &mut Transaction<'_>,
    run: Option<&Run>,
    recent_max: u64,
) -> Result<bool, CommitError> {
    let connection = transaction.connection;
    let execute = |statement: &str| {
        let executed = connection
            .prepare_cached(statement)
            .and_then(|mut cached| cached.execute([]));
        executed.map(drop).map_err(commit_fault)
    };
    execute("SAVEPOINT tidy")?;
    match tidied(connection, transaction.counters.recent, run, recent_max) {
        Ok(recent) => {
            execute("RELEASE tidy")?;
            transaction.counters.recent = recent;
            Ok(true)
        }
        // SQLite has rolled back everything.
        Err(fault) if connection.is_autocommit() => Err(CommitError::Fault(fault)),
        Err(fault) => {
            execute("ROLLBACK TO tidy")?;
            execute("RELEASE tidy")?;
            tracing::error!(%fault, "links or blocks of recent commits cannot be put in order; run `reprise log verify`");
            Ok(false)
        }
    }
}

/// Does so, and returns how many links have gathered then.
fn tidied(
    connection: &Connection,
    mut recent: u64,
    run: Option<&Run>,
    recent_max: u64,
) -> Result<u64, StoreFault> {
    if let Some(run) = run {
        run.merge(connection)?;
        recent = recent::count(connection).map_err(fault)?;
    }
    // After a merge, which takes out much of what would be moved.
    if recent > recent_max {
        recent::move_all(connection).map_err(fault)?;
        recent = 0;
    }
    Ok(recent)
}

type Done = (
    Committed,
    Vec<StoredEvent>,
    Vec<WrittenBlock>,
    Vec<PendingPurge>,
);

fn turn(
    directory: &Path,
    transaction: &mut Transaction<'_>,
    commit: Commit,
) -> Result<Done, CommitError> {
    let connection = transaction.connection;
    check_fences(connection, &commit.fences)?;
    let first = Position(transaction.counters.head + 1);
    let seal = commit.seal;
    let sealed = catch_unwind(AssertUnwindSafe(|| seal(first)))
        .map_err(|_| bug("sealing a turn panicked"))?;
    let turn = match sealed {
        Ok(turn) => turn,
        Err(impossible) => {
            // What it was decided on may have changed, which is no fault of anybody.
            check(connection, &commit.expected)?;
            return Err(CommitError::Impossible(impossible));
        }
    };
    check_positions(&turn, first, commit.event_count)?;
    let (small, large): (Vec<&Blob>, Vec<&Blob>) =
        turn.blobs.iter().partition(|blob| blob::is_small(blob));
    for blob in large {
        // Sealing made it just now: it becomes a file here, durable before the commit that names it.
        blob::write_file(directory, blob).map_err(CommitError::Fault)?;
    }
    let counters = &mut transaction.counters;
    let time = (&mut counters.claim_time, &mut counters.claim_time_kept);
    let clock = commit.now.as_micros();
    claims::put(
        connection,
        time,
        &turn.claims,
        clock,
        commit.event_count > 0,
    )?;
    let new = new_blobs(connection, commit.blobs.iter().chain(small)).map_err(commit_fault)?;
    put_documents(connection, &turn.documents, &commit.expected)?;
    let gathered = add_messages(transaction, &turn.documents, first)?;
    transaction.counters.recent += gathered;
    let written = put_blocks(transaction, &turn.events, new)?;
    let mut leases = Vec::with_capacity(turn.leases_taken.len());
    for name in turn.leases_taken {
        let epoch = transaction.counters.next_epoch();
        let inserted = connection
            .prepare_cached("INSERT INTO leases(name, holder, epoch) VALUES (?1, ?2, ?3)")
            .and_then(|mut insert| insert.execute((sql(name.0), &*commit.holder, sql(epoch))));
        match inserted {
            Ok(_) => leases.push((name, epoch)),
            Err(error) if is_violation(&error) => return Err(CommitError::Fenced(name)),
            Err(error) => return Err(commit_fault(error)),
        }
    }
    if !leases.is_empty() {
        transaction.counters.keep_epoch(connection)?;
    }
    for name in turn.leases_released {
        connection
            .prepare_cached("DELETE FROM leases WHERE name = ?1")
            .and_then(|mut delete| delete.execute([sql(name.0)]))
            .map_err(commit_fault)?;
    }
    for key in &turn.api_keys {
        upsert_api_key(connection, key).map_err(commit_fault)?;
    }
    if let Some(newest) = turn.events.last() {
        transaction.counters.newest = Some(sha256(&newest.bytes));
    }
    let heads = turn.documents.iter();
    let heads: Vec<(u64, Digest)> = heads.filter_map(|document| sealed_head(document)).collect();
    for (size, root) in &heads {
        tree::put_head(connection, *size, root).map_err(commit_fault)?;
    }
    if let Some(tree) = heads.last().copied() {
        transaction.counters.tree = Some(tree);
    }
    transaction.counters.head += commit.event_count;
    let owed = purge::note(connection, &turn.events).map_err(commit_fault)?;
    Ok((Committed { first, leases }, turn.events, written, owed))
}

pub(crate) fn sealed_head(document: &Document) -> Option<(u64, Digest)> {
    match &document.state {
        State::Batch(batch) => Some((batch.size, batch.root)),
        _ => None,
    }
}

/// Writes documents, each at the version that it is expected to have, and checks those that are not written.
fn put_documents(
    connection: &Connection,
    documents: &[Arc<Document>],
    expected: &[ExpectedVersion],
) -> Result<(), CommitError> {
    let mut versions: HashMap<&str, u64> = HashMap::with_capacity(expected.len());
    for expected in expected {
        let known = versions.insert(&expected.id, expected.version);
        if known.is_some_and(|known| known != expected.version) {
            return Err(CommitError::Conflict);
        }
    }
    for document in documents {
        let row = DocumentRow::of(document);
        let put = match versions.remove(&*document.id) {
            Some(version) => row.put_after(connection, version),
            None => row.put(connection),
        };
        match put {
            Ok(true) => {}
            Ok(false) => return Err(CommitError::Conflict),
            Err(error) if is_violation(&error) => return Err(CommitError::Conflict),
            Err(error) => return Err(commit_fault(error)),
        }
    }
    let unwritten = expected.iter();
    check(
        connection,
        unwritten.filter(|expected| versions.contains_key(&*expected.id)),
    )
}

/// Lists new Messages under their Sessions: those that an event of this commit created. Returns how many they are.
fn add_messages(
    transaction: &Transaction<'_>,
    documents: &[Arc<Document>],
    first: Position,
) -> Result<u64, CommitError> {
    let connection = transaction.connection;
    let mut rows = 0;
    for document in documents {
        let is_new = document.key >= first && document.state.kind() == ResourceKind::Message;
        if let Some(session) = document.links.session.filter(|_| is_new) {
            rows += recent::add_message(connection, transaction.new_links, document.key, session)
                .map_err(commit_fault)?;
        }
    }
    Ok(rows)
}

fn check<'a>(
    connection: &Connection,
    expected: impl IntoIterator<Item = &'a ExpectedVersion>,
) -> Result<(), CommitError> {
    let mut select = connection
        .prepare_cached("SELECT version FROM documents WHERE id = ?1")
        .map_err(commit_fault)?;
    for expected in expected {
        let version: Option<u64> = select
            .query_row([id_bytes(&expected.id)], |row| row.get(0))
            .optional()
            .map_err(commit_fault)?;
        if version.unwrap_or(0) != expected.version {
            return Err(CommitError::Conflict);
        }
    }
    Ok(())
}

fn check_fences(connection: &Connection, fences: &[Fence]) -> Result<(), CommitError> {
    let mut select = connection
        .prepare_cached("SELECT epoch FROM leases WHERE name = ?1")
        .map_err(commit_fault)?;
    for fence in fences {
        let epoch: Option<u64> = select
            .query_row([sql(fence.lease.0)], |row| row.get(0))
            .optional()
            .map_err(commit_fault)?;
        if epoch != Some(fence.epoch) {
            return Err(CommitError::Fenced(fence.lease));
        }
    }
    Ok(())
}

fn check_positions(turn: &SealedTurn, first: Position, count: u64) -> Result<(), CommitError> {
    let ascending = turn
        .events
        .iter()
        .zip(first.0..)
        .all(|(event, position)| event.position.0 == position);
    if !ascending || turn.events.len() as u64 != count {
        return Err(bug("a turn was sealed to other positions than reserved"));
    }
    Ok(())
}

/// Returns the blobs that are not stored yet, each once.
fn new_blobs<'a>(
    connection: &Connection,
    blobs: impl IntoIterator<Item = &'a Blob>,
) -> rusqlite::Result<Vec<&'a Blob>> {
    let mut seen = BTreeSet::new();
    let mut new = Vec::new();
    for blob in blobs {
        if seen.insert(blob.digest) && !read::has_blob(connection, &blob.digest)? {
            new.push(blob);
        }
    }
    Ok(new)
}

/// Writes events and blobs that belong together; returns the blocks that have events.
fn put_blocks(
    transaction: &mut Transaction<'_>,
    events: &[StoredEvent],
    blobs: Vec<&Blob>,
) -> Result<Vec<WrittenBlock>, CommitError> {
    let connection = transaction.connection;
    let mut digests = blobs.iter().map(|blob| blob.digest);
    let mut written = Vec::new();
    let contents = blobs.iter().map(|blob| blob.bytes.clone()).collect();
    for block in Block::divide(events, contents) {
        let (table, number) = match block.events.first() {
            Some(first) => (Table::Events, first.position.0),
            None => {
                transaction.counters.pack += 1;
                (Table::Packs, transaction.counters.pack)
            }
        };
        table
            .put(connection, number, &block)
            .map_err(commit_fault)?;
        let gathered = projection::commit(connection, transaction.new_links, number, &block);
        transaction.counters.recent += gathered.map_err(CommitError::Fault)?;
        let insert = "INSERT INTO blobs(digest, pack, block, number) VALUES (?1, ?2, ?3, ?4)";
        let mut insert = connection.prepare_cached(insert).map_err(commit_fault)?;
        let digests: Vec<Digest> = digests.by_ref().take(block.blobs.len()).collect();
        for (digest, place) in digests.iter().zip(0i64..) {
            let in_pack = table == Table::Packs;
            insert
                .execute((digest.as_bytes(), in_pack, sql(number), place))
                .map_err(commit_fault)?;
        }
        written.extend(WrittenBlock::of(&block, &digests));
    }
    Ok(written)
}

fn is_violation(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation)
}

fn bug(problem: &str) -> CommitError {
    CommitError::Fault(StoreFault::new(format!(
        "{problem}, which is a bug of this program; nothing was written"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Role, connect, prepare};
    use crate::{checkpoint, read};
    use domain::Timestamp;
    use engine::port::Claim;

    fn writer(directory: &std::path::Path) -> Writer {
        let lock = crate::directory::claim(directory).unwrap();
        let presence = lock.presence(directory).unwrap();
        let mut connection = connect(directory, Role::Writer { full_sync: false }).unwrap();
        prepare(directory, &mut connection).unwrap();
        let (checkpoints, _) = checkpoint::start(directory, &mut connection).unwrap();
        let place = (directory, presence);
        let (wal, after) = (Wal::None, Position::START);
        Writer::new(
            place,
            connection,
            checkpoints,
            wal,
            after,
            Options::default(),
        )
        .unwrap()
        .0
    }

    fn commit(seal: engine::port::Seal) -> Commit {
        Commit {
            expected: vec![],
            fences: vec![],
            holder: "test".into(),
            blobs: vec![Blob::new(b"trace".to_vec())],
            event_count: 0,
            now: Timestamp::from_micros(1),
            seal,
        }
    }

    fn message(result: Result<Committed, CommitError>) -> String {
        match result {
            Err(CommitError::Fault(fault)) => fault.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_panic_while_sealing_writes_nothing_and_harms_nobody_else() {
        let home = tempfile::tempdir().unwrap();
        let mut writer = writer(home.path());
        let error = message(writer.commit(commit(Box::new(|_| panic!("sealing")))));
        assert!(error.contains("bug of this program"), "{error}");
        let digest = canon::sha256(b"trace");
        assert_eq!(read::blob(&writer.connection, &digest).unwrap(), None);
        writer
            .commit(commit(Box::new(|_| Ok(SealedTurn::default()))))
            .unwrap();
        assert!(read::blob(&writer.connection, &digest).unwrap().is_some());
    }

    #[test]
    fn a_turn_with_other_positions_than_reserved_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let mut writer = writer(home.path());
        let event = |position| StoredEvent {
            position: Position(position),
            links: domain::Links::default(),
            resource: Position(position),
            bytes: (*b"{}").into(),
        };
        for positions in [vec![1], vec![1, 3], vec![2, 3], vec![1, 2, 3]] {
            let events = positions.iter().copied().map(event).collect();
            let mut wrong = commit(Box::new(move |_| {
                Ok(SealedTurn {
                    events,
                    ..SealedTurn::default()
                })
            }));
            wrong.event_count = 2;
            let error = message(writer.commit(wrong));
            assert!(error.contains("other positions"), "{positions:?}: {error}");
        }
        assert_eq!(writer.counters.head, 0);
    }

    #[test]
    fn after_a_commit_of_unknown_outcome_nothing_is_written_any_more() {
        let home = tempfile::tempdir().unwrap();
        let mut writer = writer(home.path());
        // An error out of the commit itself that is neither a full disk nor a busy database.
        writer.connection.commit_hook(Some(|| true)).unwrap();
        message(writer.commit(commit(Box::new(|_| Ok(SealedTurn::default())))));
        writer.connection.commit_hook(None::<fn() -> bool>).unwrap();
        let error = message(writer.commit(commit(Box::new(|_| Ok(SealedTurn::default())))));
        assert!(error.contains("restart"), "{error}");
        let fault = writer.put_blob(&Blob::new(vec![1])).unwrap_err();
        assert!(fault.to_string().contains("reads still work"), "{fault}");
        let digest = canon::sha256(b"trace");
        assert_eq!(read::blob(&writer.connection, &digest).unwrap(), None);
    }

    #[test]
    fn expired_claims_do_not_pile_up() {
        let home = tempfile::tempdir().unwrap();
        let mut writer = writer(home.path());
        let mut number = 0u64;
        for now in 0..300 {
            let claims: Vec<Claim> = (0..10)
                .map(|_| {
                    number += 1;
                    Claim {
                        scope: engine::port::ClaimScope(canon::sha256(&number.to_be_bytes())),
                        body: canon::sha256(b""),
                        answer: Position(1),
                        expires_at: Timestamp::from_micros(now + 20),
                    }
                })
                .collect();
            let mut turn = commit(Box::new(move |_| {
                Ok(SealedTurn {
                    claims,
                    ..SealedTurn::default()
                })
            }));
            turn.now = Timestamp::from_micros(now);
            writer.commit(turn).unwrap();
        }
        let left: u64 = writer
            .connection
            .query_row("SELECT count(*) FROM claims", [], |row| row.get(0))
            .unwrap();
        assert_eq!(left, 200);
    }
}
