//! Moving the write-ahead log into the database, beside the writer instead of in its way.
//!
//! A passive pass copies what is committed while commits go on. After a pause it copies all, and the log starts
//! over in its own place. Under load without a pause it never copies all: when the log has become long, the
//! writer copies the short rest itself, between two commits.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;

use crate::schema::{BUSY, PAGE_BYTES, Role, connect};

/// How much log waits before a pass is worth its two syncs.
const PASS_BYTES: u32 = 4 * 1024 * 1024;
const PASS_FRAMES: u32 = PASS_BYTES / PAGE_BYTES;

/// How long the log may become before the writer helps. Its file keeps this length: writing over it syncs faster
/// than letting it grow.
const LOG_BYTES_MAX: u32 = 32 * 1024 * 1024;
const LOG_FRAMES_MAX: u32 = LOG_BYTES_MAX / PAGE_BYTES;

/// How much the writer copies itself, which holds commits up for a few milliseconds. When passes do not come down
/// to that before the log is twice as long, it copies whatever is left.
const REST_FRAMES: u32 = 256;

/// How long readers are waited for when the log is to be emptied. Those of this process are done sooner.
const READERS_WAIT: Duration = Duration::from_millis(20);

/// How often in a row a pass is made to leave no more than that.
const ROUNDS_MAX: u32 = 4;

/// How far writer and passes are, in frames of the log.
#[derive(Debug, Default)]
struct Progress {
    written: AtomicU32,
    copied: AtomicU32,
    /// Held during a pass: SQLite refuses a second one instead of waiting.
    passing: Mutex<()>,
}

/// The writer's end.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    progress: Arc<Progress>,
    wake: SyncSender<()>,
    help_at: u32,
}

/// The thread's handle.
#[derive(Debug)]
pub(crate) struct Thread(JoinHandle<()>);

/// Starts the thread and hooks the writer's connection up to it.
pub(crate) fn start(
    directory: &Path,
    writer: &mut Connection,
) -> rusqlite::Result<(Checkpoints, Thread)> {
    let progress = Arc::new(Progress::default());
    let seen = Arc::clone(&progress);
    writer.wal_hook(Some(move |_: &mut _, frames| {
        seen.wrote(u32::try_from(frames).unwrap_or(0));
        Ok(())
    }))?;
    let connection = connect(directory, Role::Writer { full_sync: true })?;
    let (wake, woken) = sync_channel(1);
    let seen = Arc::clone(&progress);
    let thread = thread::Builder::new()
        .name("store-checkpoint".to_owned())
        .spawn(move || run(&connection, &seen, &woken))
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let checkpoints = Checkpoints {
        progress,
        wake,
        help_at: LOG_FRAMES_MAX,
    };
    Ok((checkpoints, Thread(thread)))
}

fn run(connection: &Connection, progress: &Progress, woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        for _ in 0..ROUNDS_MAX {
            progress.pass(connection);
            let written = progress.written.load(Ordering::Relaxed);
            if written < LOG_FRAMES_MAX || progress.waiting() <= REST_FRAMES {
                break;
            }
        }
    }
}

impl Progress {
    fn wrote(&self, frames: u32) {
        let before = self.written.swap(frames, Ordering::Relaxed);
        if frames < before {
            // The log started over.
            self.copied.store(0, Ordering::Relaxed);
        }
    }

    /// Copies what can be copied without waiting for anybody.
    fn pass(&self, connection: &Connection) {
        let _passing = self.passing.lock().unwrap_or_else(PoisonError::into_inner);
        let copied = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
            row.get::<_, i64>(2)
        });
        match copied.map(u32::try_from) {
            Ok(Ok(copied)) => self.copied.store(copied, Ordering::Relaxed),
            // Another process makes one.
            Ok(Err(_)) => {}
            // The log stays as it is and is read from there; a later pass tries again.
            Err(error) => tracing::warn!(%error, "checkpoint failed"),
        }
    }

    fn waiting(&self) -> u32 {
        let written = self.written.load(Ordering::Relaxed);
        written.saturating_sub(self.copied.load(Ordering::Relaxed))
    }
}

impl Checkpoints {
    /// Returns how many frames of the log the last commit left.
    pub(crate) fn frames(&self) -> u32 {
        self.progress.written.load(Ordering::Relaxed)
    }

    /// Moves all of the log into the database and empties it, so that nothing older is left in its file. Returns whether
    /// somebody keeps it from that, who is waited for only briefly: commits wait meanwhile.
    pub(crate) fn start_over(&self, writer: &Connection) -> bool {
        let passing = &self.progress.passing;
        let _passing = passing.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = writer.busy_timeout(READERS_WAIT).and_then(|()| {
            writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
                row.get::<_, bool>(0)
            })
        });
        if let Err(error) = writer.busy_timeout(BUSY) {
            tracing::warn!(%error, "the database does not wait for others as long as it should");
        }
        busy.unwrap_or_else(|error| {
            tracing::warn!(%error, "the write-ahead log cannot be emptied");
            true
        })
    }

    /// Called by the writer after each commit.
    pub(crate) fn committed(&mut self, writer: &Connection) {
        let written = self.progress.written.load(Ordering::Relaxed);
        let waiting = self.progress.waiting();
        let long = written >= LOG_FRAMES_MAX;
        if !long {
            self.help_at = LOG_FRAMES_MAX;
        }
        let short_rest = long && waiting <= REST_FRAMES;
        if short_rest || written >= 2 * LOG_FRAMES_MAX {
            if written >= self.help_at {
                // A reader can hold this up: then not again at every commit.
                self.help_at = written.saturating_add(PASS_FRAMES);
                self.progress.pass(writer);
            }
        } else if long || waiting >= PASS_FRAMES {
            // Full means that a pass is asked for already.
            let _ = self.wake.try_send(());
        }
    }
}

impl Thread {
    /// Waits for the thread; the writer's end must be gone.
    pub(crate) fn join(self) {
        let _ = self.0.join();
    }
}
