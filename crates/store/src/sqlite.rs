//! The store port on SQLite: who may open a directory how, and where each call runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use canon::Digest;
use domain::{Blob, Document, EventName, Position};
use engine::port::{
    ApiKey, BlobStore, BoxFuture, Claim, ClaimScope, Commit, CommitError, Committed, Erased,
    FieldSegment, Heartbeat, Incoming, KeyStore, LastEvents, LeaseName, LeaseOwners, LeaseRequest,
    LeaseStore, ListQuery, NewestQuery, News, ReadEvents, Scope, SegmentStore, StorageUse, Store,
    StoreFault, StoredEvent, StoredSegment, Tree, TreeAppend, TreeStore,
};
use rusqlite::Connection;
use tokio::sync::{broadcast, oneshot};

use crate::directory::{self, Lock, OpenError, Presence};
use crate::fault::{closed, fault};
use crate::head_file::{self, HeadRecord};
use crate::incoming::{self, IncomingFile};
use crate::loss::{self, Loss};
use crate::schema::{self, Meta, Role};
use crate::sharing::Watch;
use crate::threads::{FileWriters, Readers};
use crate::wal::Wal;
use crate::write::{Published, Writer};
use crate::{blob, checkpoint, claims, migrate, projection, read, rebuild, recent, segments, tree};

/// How to open a store.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Sync at each commit. False only where a test must see the difference: a power cut then loses commits
    /// that were acknowledged.
    pub full_sync: bool,
    /// Pretends that the disk has room for this many pages of the database, for tests.
    pub pages_max: Option<u32>,
    /// Works beside other processes that open the directory shared as well, all of one machine. One that does not share has
    /// the directory to itself: neither gets in while the other is there.
    pub shared: bool,
    /// How many links gather before they are moved to where they are found by: fewer in tests.
    pub recent_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            full_sync: true,
            pages_max: None,
            shared: false,
            recent_max: recent::ROWS_MAX,
        }
    }
}

/// What a directory had lost that was opened nevertheless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedLoss {
    /// Why it was refused.
    pub loss: Loss,
    /// The position of the last event that can be read.
    pub found: Position,
    /// The newest position that was acknowledged; none when nothing says so.
    pub acknowledged: Option<Position>,
    /// Size and root of the newest head of the receipt log that was signed.
    pub tree: Option<(u64, Digest)>,
    /// Where the files are kept as they were found.
    pub aside: PathBuf,
}

/// Refuses a claimed directory whose log does not reach as far as it did, or where nothing says so any more.
fn refuse_loss(directory: &Path, kept: Option<&HeadRecord>) -> Result<(), OpenError> {
    if let Some(loss) = lost_of_log(directory, kept)? {
        return Err(OpenError::lost(directory, loss));
    }
    if kept.is_some() || !directory::database(directory).exists() {
        return Ok(());
    }
    let connection = schema::connect(directory, Role::Reader)
        .map_err(|error| OpenError::fault(directory, error))?;
    loss::refuse_without_head(directory, &connection)
}

/// Looks whether the log of a claimed directory reaches as far as it did.
fn lost_of_log(directory: &Path, kept: Option<&HeadRecord>) -> Result<Option<Loss>, OpenError> {
    let Some(kept) = kept else { return Ok(None) };
    if !directory::database(directory).exists() {
        let (found, kept) = (Position::START, kept.position);
        return Ok((kept > found).then_some(Loss::Shorter { found, kept }));
    }
    let connection = schema::connect(directory, Role::Reader)
        .map_err(|error| OpenError::fault(directory, error))?;
    Ok(loss::of_log(&connection, kept))
}

/// Does what whoever opens a directory alone does first, and connects to its database.
fn prepare(directory: &Path, role: Role) -> Result<Connection, OpenError> {
    directory::adopt(directory)?;
    incoming::clear(directory)
        .and_then(|()| rebuild::clear_left(directory))
        .map_err(|error| OpenError::fault(directory, error))?;
    let tightened = directory::restrict_permissions(directory)
        .map_err(|error| OpenError::fault(directory, error))?;
    for path in tightened {
        let path = path.display();
        tracing::warn!("closed `{path}` to other users: what is in the log could be read there");
    }
    let mut connection =
        schema::connect(directory, role).map_err(|error| OpenError::fault(directory, error))?;
    schema::prepare(directory, &mut connection)?;
    projection::complete(&mut connection)
        .map_err(|problem| OpenError::fault(directory, problem))?;
    // SQLite syncs what is in its files; that the new file has a name is ours to sync.
    directory::sync_directory(directory).map_err(|error| OpenError::fault(directory, error))?;
    Ok(connection)
}

fn last_position(directory: &Path) -> Result<Position, OpenError> {
    let connection = schema::connect(directory, Role::Reader)
        .map_err(|error| OpenError::fault(directory, error))?;
    if !loss::has_tables(&connection) {
        return Ok(Position::START);
    }
    let last = read::last_event(&connection, Scope::All)
        .map_err(|problem| OpenError::fault(directory, problem))?;
    Ok(last.unwrap_or(Position::START))
}

/// A log in a directory.
pub struct SqliteStore {
    directory: Arc<Path>,
    name: EventName,
    secret: [u8; 32],
    published: Arc<Published>,
    readers: Readers,
    writing: Option<Writing>,
}

type Job = Box<dyn FnOnce(&mut Writer) + Send>;

/// What only a process has that works in the directory.
struct Writing {
    jobs: mpsc::Sender<Job>,
    writer: JoinHandle<()>,
    files: FileWriters,
    presence: Presence,
    /// Looks for commits of others, where there may be some.
    watch: Option<Watch>,
    lock: Lock,
}

impl SqliteStore {
    /// Opens a directory to work in it, alone or beside others who share it; makes it when it is missing.
    ///
    /// # Errors
    /// Another process holds it, a newer program wrote it, or the disk fails.
    pub fn open(directory: &Path, options: Options) -> Result<Self, OpenError> {
        let lock = match options.shared {
            true => directory::join(directory)?,
            false => directory::claim(directory)?,
        };
        if !lock.is_alone() {
            // Whoever was there first has looked for losses, and goes on writing.
            return Self::work(directory, options, lock, Wal::None, Position::START);
        }
        let kept = head_file::read(directory)?;
        let (mut wal, loss) = loss::of_files(directory, kept.as_ref())?;
        if let Some(loss) = loss {
            return Err(OpenError::lost(directory, loss));
        }
        if migrate::bring_forward(directory, kept.as_ref(), &mut |_| {})?.is_some() {
            wal = Wal::None;
        }
        refuse_loss(directory, kept.as_ref())?;
        Self::work(directory, options, lock, wal, Position::START)
    }

    /// Opens a directory that has lost what was acknowledged, and goes on from what can still be read. What is damaged is
    /// kept aside. New events take positions that were never given out. None when nothing is lost.
    ///
    /// # Errors
    /// Another process holds it, a newer program wrote it, or the disk fails.
    pub fn open_accepting_loss(
        directory: &Path,
        options: Options,
    ) -> Result<Option<(Self, AcceptedLoss)>, OpenError> {
        directory::check(directory)?;
        let options = Options {
            shared: false,
            ..options
        };
        let lock = directory::claim(directory)?;
        let kept = head_file::read(directory)?;
        let (wal, loss) = loss::of_files(directory, kept.as_ref())?;
        if loss.is_none() {
            migrate::bring_forward(directory, None, &mut |_| {})?;
        }
        let loss = match loss {
            None => lost_of_log(directory, kept.as_ref())?,
            known => known,
        };
        let Some(loss) = loss else { return Ok(None) };
        let aside =
            loss::keep_aside(directory).map_err(|error| OpenError::fault(directory, error))?;
        // What was damaged is kept: what SQLite makes of the rest is what there is.
        migrate::bring_forward(directory, None, &mut |_| {})?;
        let found = last_position(directory)?;
        let after = loss::resume_after(found, kept.as_ref(), wal);
        let store = Self::work(directory, options, lock, Wal::None, after)?;
        let lost = AcceptedLoss {
            loss,
            found,
            acknowledged: kept.map(|kept| kept.position),
            tree: kept.and_then(|kept| kept.tree),
            aside,
        };
        Ok(Some((store, lost)))
    }

    /// Begins to work in a claimed directory: new events stand behind a position, wherever the last one stands.
    fn work(
        directory: &Path,
        options: Options,
        mut lock: Lock,
        wal: Wal,
        after: Position,
    ) -> Result<Self, OpenError> {
        let fault = |error: rusqlite::Error| OpenError::fault(directory, error);
        let role = Role::Writer {
            full_sync: options.full_sync,
        };
        let is_alone = lock.is_alone();
        let mut prepared = match is_alone {
            true => Some(prepare(directory, role)?),
            false => None,
        };
        if options.shared {
            // Not with a connection at hand: somebody else may put another file in the place of the database meanwhile.
            drop(prepared.take());
            lock.share(directory)?;
        }
        let mut connection = match prepared {
            Some(prepared) => prepared,
            None => {
                let mut connection = schema::connect(directory, role).map_err(fault)?;
                schema::refuse_older_beside(directory, &connection)?;
                schema::prepare(directory, &mut connection)?;
                connection
            }
        };
        if let Some(pages) = options.pages_max {
            let limit =
                connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()));
            limit.map_err(fault)?;
        }
        let are_gone = claims::are_gone(&connection)
            .map_err(|problem| OpenError::fault(directory, problem))?;
        if are_gone {
            tracing::warn!(
                "the idempotency keys of the newest events are gone: a request that is repeated may be carried out twice; \
                 see `reprise log verify`"
            );
        }
        let meta = schema::meta(directory, &connection)?;
        let (checkpoints, checkpoint_thread) =
            checkpoint::start(directory, &mut connection).map_err(fault)?;
        let presence = lock
            .presence(directory)
            .map_err(|error| OpenError::fault(directory, error))?;
        let place = (directory, presence.clone());
        let failed = |problem: StoreFault| OpenError::fault(directory, problem);
        let (mut writer, published) =
            Writer::new(place, connection, checkpoints, wal, after, options).map_err(failed)?;
        if is_alone && let Err(error) = writer.finish_purges() {
            // Its note stays: the next start tries again.
            tracing::error!(%error, "a purge that was cut short cannot be finished");
        }
        let watch = options
            .shared
            .then(|| Watch::start(directory, Arc::clone(&published)));
        let watch = watch.transpose().map_err(failed)?;
        let (jobs, queue) = mpsc::channel::<Job>();
        let writer = thread::Builder::new()
            .name("store-write".to_owned())
            .spawn(move || {
                let mut writer = writer;
                loop {
                    let job = match writer.sleeps_at_most() {
                        None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                        Some(most) => queue.recv_timeout(most),
                    };
                    match job {
                        Ok(job) => job(&mut writer),
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => break,
                    }
                    writer.wipe_when_due();
                }
                writer.close(checkpoint_thread);
            })
            .map_err(|error| OpenError::fault(directory, error))?;
        let writing = Writing {
            jobs,
            writer,
            files: FileWriters::file_writers(directory),
            presence,
            watch,
            lock,
        };
        Ok(Self::new(directory, meta, published, Some(writing)))
    }

    /// Opens a directory to look into it, beside the process that works in it or without one. Nothing can be
    /// written. The head is that of the moment of opening, and no news arrive.
    ///
    /// # Errors
    /// There is no log, a newer program wrote it, or the disk fails.
    pub fn open_reader(directory: &Path) -> Result<Self, OpenError> {
        directory::check(directory)?;
        let kept = head_file::read(directory)?;
        if !directory::is_held(directory) {
            loss::refuse(directory, kept.as_ref())?;
        }
        let fault = |problem: StoreFault| OpenError::fault(directory, problem);
        let connection = schema::connect(directory, Role::Reader)
            .map_err(|error| OpenError::fault(directory, error))?;
        let meta = schema::meta(directory, &connection)?;
        schema::check_version(directory, &connection)?;
        if let Some(loss) = kept.and_then(|kept| loss::of_log(&connection, &kept)) {
            return Err(OpenError::lost(directory, loss));
        }
        let head = read::last_event(&connection, Scope::All).map_err(fault)?;
        let published = Arc::new(Published::new(head.unwrap_or(Position::START)));
        Ok(Self::new(directory, meta, published, None))
    }

    fn new(
        directory: &Path,
        meta: Meta,
        published: Arc<Published>,
        writing: Option<Writing>,
    ) -> Self {
        Self {
            directory: directory.into(),
            name: EventName::new(&meta.name),
            secret: meta.secret,
            published,
            readers: Readers::readers(directory),
            writing,
        }
    }

    /// Ends the threads, moves the write-ahead log into the database and gives the directory back. Dropping
    /// does the same.
    pub fn close(self) {
        drop(self);
    }

    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreFault> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, StoreFault>> {
        let (answer, result) = oneshot::channel();
        self.readers.submit(Box::new(move |connection| {
            // An asker who went away needs no answer.
            let _ = answer.send(connection.and_then(read));
        }));
        Box::pin(async move { result.await.unwrap_or_else(|_| Err(closed())) })
    }

    fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&mut Writer) -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, StoreFault> {
        let Some(writing) = &self.writing else {
            return Err(read_only());
        };
        let (answer, result) = oneshot::channel();
        let job: Job = Box::new(move |writer| {
            let _ = answer.send(write(writer));
        });
        writing.jobs.send(job).map_err(|_| closed())?;
        Ok(result)
    }

    fn write_or_fault<T: Send + 'static>(
        &self,
        write: impl FnOnce(&mut Writer) -> Result<T, StoreFault> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, StoreFault>> {
        let asked = self.write(write);
        Box::pin(async move { asked?.await.unwrap_or_else(|_| Err(closed())) })
    }

    fn write_files(&self, blobs: Vec<Blob>) -> BoxFuture<'_, Result<(), StoreFault>> {
        let Some(writing) = &self.writing else {
            return Box::pin(async { Err(read_only()) });
        };
        let directory = Arc::clone(&self.directory);
        let presence = writing.presence.clone();
        let (answer, result) = oneshot::channel();
        writing.files.submit(Box::new(move |ready| {
            let write = |()| {
                // A directory that is not there must not be made again.
                presence.check()?;
                let mut blobs = blobs.iter();
                blobs.try_for_each(|blob| blob::write_file(&directory, blob))
            };
            let _ = answer.send(ready.copied().and_then(write));
        }));
        Box::pin(async move { result.await.unwrap_or_else(|_| Err(closed())) })
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.readers.close();
        if let Some(Writing {
            jobs,
            writer,
            files,
            watch,
            lock,
            ..
        }) = self.writing.take()
        {
            drop(watch);
            files.close();
            drop(jobs);
            // A thread that panicked has said so already.
            let _ = writer.join();
            drop(lock);
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("directory", &self.directory)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Store for SqliteStore {
    fn name(&self) -> &EventName {
        &self.name
    }

    fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    fn head(&self) -> Position {
        Position(self.published.head.load(Ordering::Acquire))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), StoreFault>> {
        Box::pin(async move {
            let writing = self.writing.as_ref().ok_or_else(read_only)?;
            writing.presence.check()?;
            if let Some(fault) = self.published.stopped.get() {
                return Err(fault.clone());
            }
            if writing.writer.is_finished() {
                return Err(StoreFault::unavailable("the writer thread has ended"));
            }
            // Only then is it worth a write to find out whether there is room again.
            if self.published.full.load(Ordering::Relaxed) {
                self.write_or_fault(Writer::probe).await?;
            }
            Ok(())
        })
    }

    fn news(&self) -> broadcast::Receiver<News> {
        self.published.news.subscribe()
    }

    fn stored(&self, workspace: Position) -> Option<StorageUse> {
        self.published.with_usage(|usage| usage.of(workspace))
    }

    fn stored_apart(&self, workspace: Position) -> Option<StorageUse> {
        self.published
            .with_usage(|usage| usage.separate_use_of(workspace))
    }

    fn documents(
        &self,
        ids: Vec<Box<str>>,
    ) -> BoxFuture<'_, Result<Vec<Option<Document>>, StoreFault>> {
        self.read(move |connection| read::documents(connection, &ids))
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>> {
        self.read(move |connection| read::list(connection, query))
    }

    fn events(&self, query: ReadEvents) -> BoxFuture<'_, Result<Vec<StoredEvent>, StoreFault>> {
        self.read(move |connection| read::events(connection, query))
    }

    fn last_events(
        &self,
        query: LastEvents,
    ) -> BoxFuture<'_, Result<Vec<StoredEvent>, StoreFault>> {
        self.read(move |connection| read::last_events(connection, query))
    }

    fn events_at(
        &self,
        positions: Vec<Position>,
    ) -> BoxFuture<'_, Result<Vec<Option<StoredEvent>>, StoreFault>> {
        self.read(move |connection| read::events_at(connection, &positions))
    }

    fn last_event(&self, scope: Scope) -> BoxFuture<'_, Result<Option<Position>, StoreFault>> {
        self.read(move |connection| read::last_event(connection, scope))
    }

    fn claims(
        &self,
        scopes: Vec<ClaimScope>,
    ) -> BoxFuture<'_, Result<Vec<Option<Claim>>, StoreFault>> {
        let time = self.published.claim_time.load(Ordering::Relaxed);
        self.read(move |connection| read::claims(connection, &scopes, time))
    }

    fn commit(&self, mut commit: Commit) -> BoxFuture<'_, Result<Committed, CommitError>> {
        let (small, large) = commit.blobs.into_iter().partition(blob::is_small);
        commit.blobs = small;
        let answer = async |asked: Result<oneshot::Receiver<_>, StoreFault>| {
            let closed = |_| Err(CommitError::Fault(closed()));
            asked
                .map_err(CommitError::Fault)?
                .await
                .unwrap_or_else(closed)
        };
        if large.is_empty() {
            let asked = self.write(move |writer| writer.commit(commit));
            return Box::pin(async move { answer(asked).await });
        }
        Box::pin(async move {
            // First the content, then the commit that refers to it: what a crash leaves between is only unused.
            self.write_files(large).await.map_err(CommitError::Fault)?;
            answer(self.write(move |writer| writer.commit(commit))).await
        })
    }

    fn newest(&self, query: NewestQuery) -> BoxFuture<'_, Result<Vec<Document>, StoreFault>> {
        self.read(move |connection| read::newest(connection, query))
    }
}

impl BlobStore for SqliteStore {
    fn put_blob(&self, blob: Blob) -> BoxFuture<'_, Result<(), StoreFault>> {
        if blob::is_small(&blob) {
            self.write_or_fault(move |writer| writer.put_blob(&blob))
        } else {
            self.write_files(vec![blob])
        }
    }

    fn incoming(&self) -> BoxFuture<'_, Result<Option<Box<dyn Incoming>>, StoreFault>> {
        let opened = self.writing.as_ref().ok_or_else(read_only).map(|writing| {
            let file = IncomingFile::new(
                Arc::clone(&self.directory),
                writing.presence.clone(),
                writing.files.clone(),
            );
            Some(Box::new(file) as Box<dyn Incoming>)
        });
        Box::pin(async { opened })
    }

    fn erase_blobs(
        &self,
        field: Position,
        digests: Vec<Digest>,
    ) -> BoxFuture<'_, Result<Erased, StoreFault>> {
        let (answer, result) = oneshot::channel();
        let asked = self.write(move |writer| writer.erase(field, &digests, answer));
        Box::pin(async move {
            asked?;
            result.await.unwrap_or_else(|_| Err(closed()))
        })
    }

    fn blob_piece(
        &self,
        digest: Digest,
        offset: u64,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        let directory = Arc::clone(&self.directory);
        self.read(move |connection| blob::piece(&directory, connection, &digest, offset, bytes_max))
    }

    fn blob(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        let directory = Arc::clone(&self.directory);
        self.read(move |connection| blob::find(&directory, connection, &digest))
    }

    fn blob_as_stored(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        let directory = Arc::clone(&self.directory);
        self.read(move |connection| blob::find_unchecked(&directory, connection, &digest))
    }

    fn blobs_as_stored(
        &self,
        digests: Vec<Digest>,
    ) -> BoxFuture<'_, Result<Vec<Option<Vec<u8>>>, StoreFault>> {
        let directory = Arc::clone(&self.directory);
        self.read(move |connection| {
            let find = |digest| blob::find_unchecked(&directory, connection, digest);
            digests.iter().map(find).collect()
        })
    }
}

impl LeaseStore for SqliteStore {
    fn take_over(
        &self,
        whose: LeaseOwners,
        holder: Box<str>,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        self.write_or_fault(move |writer| writer.take_over(&whose, &holder))
    }

    fn heartbeat(
        &self,
        beat: Heartbeat,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        self.write_or_fault(move |writer| writer.heartbeat(&beat))
    }

    fn claim(
        &self,
        wanted: LeaseRequest,
    ) -> BoxFuture<'_, Result<Vec<(LeaseName, u64)>, StoreFault>> {
        self.write_or_fault(move |writer| writer.claim(&wanted))
    }

    fn leave(&self, holder: Box<str>) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.write_or_fault(move |writer| writer.leave(&holder))
    }
}

impl SegmentStore for SqliteStore {
    fn field_segment(
        &self,
        field: Position,
        after: u64,
    ) -> BoxFuture<'_, Result<Option<StoredSegment>, StoreFault>> {
        self.read(move |connection| segments::next(connection, field, after))
    }

    fn put_field_segment(&self, segment: FieldSegment) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.write_or_fault(move |writer| {
            writer.project(|connection| segments::put(connection, &segment))
        })
    }

    fn drop_field_segments(&self, field: Position) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.write_or_fault(move |writer| {
            writer.project(|connection| segments::forget(connection, field))
        })
    }
}

impl TreeStore for SqliteStore {
    fn tree(&self) -> BoxFuture<'_, Result<Tree, StoreFault>> {
        self.read(tree::tree)
    }

    fn append_leaves(&self, append: TreeAppend) -> BoxFuture<'_, Result<bool, StoreFault>> {
        self.write_or_fault(move |writer| writer.append_leaves(&append))
    }

    fn head_size(&self, root: Digest) -> BoxFuture<'_, Result<Option<u64>, StoreFault>> {
        self.read(move |connection| tree::head_size(connection, &root))
    }

    fn leaf_index(&self, receipt: Position) -> BoxFuture<'_, Result<Option<u64>, StoreFault>> {
        self.read(move |connection| tree::leaf_index(connection, receipt))
    }

    fn leaves(&self, first: u64, count: usize) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>> {
        self.read(move |connection| {
            let leaves = tree::leaves(connection, first, count)?;
            Ok(leaves.into_iter().map(|(_, hash)| hash).collect())
        })
    }

    fn tree_hashes(
        &self,
        level: u8,
        first: u64,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>> {
        self.read(move |connection| tree::hashes(connection, level, first, count))
    }
}

impl KeyStore for SqliteStore {
    fn api_key(&self, digest: Digest) -> BoxFuture<'_, Result<Option<ApiKey>, StoreFault>> {
        self.read(move |connection| read::api_key(connection, &digest))
    }

    fn api_keys(&self) -> BoxFuture<'_, Result<Vec<ApiKey>, StoreFault>> {
        self.read(read::api_keys)
    }

    fn put_api_key(&self, key: ApiKey) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.write_or_fault(move |writer| writer.put_api_key(&key))
    }

    fn keys_are_recorded(&self) -> BoxFuture<'_, Result<bool, StoreFault>> {
        self.read(|connection| schema::keys_are_recorded(connection).map_err(fault))
    }

    fn note_keys_recorded(&self) -> BoxFuture<'_, Result<(), StoreFault>> {
        self.write_or_fault(Writer::note_keys_recorded)
    }
}

fn read_only() -> StoreFault {
    StoreFault::new("this process opened the data directory for reading only")
}
