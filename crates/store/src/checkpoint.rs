//! Moving the write-ahead log into the database, beside the writer instead of in its way.
//!
//! A passive pass copies what is committed while commits go on. Only under load without a pause does the log
//! outgrow that: then the writer copies the short rest itself, so that the log starts over.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;

use crate::schema::{PAGE_BYTES, Role, connect};

/// How much log waits before a pass is worth its two syncs.
const PASS_BYTES: u32 = 4 * 1024 * 1024;
const PASS_FRAMES: u32 = PASS_BYTES / PAGE_BYTES;

/// How long the log may become before the writer helps.
const LOG_BYTES_MAX: u32 = 64 * 1024 * 1024;
const LOG_FRAMES_MAX: u32 = LOG_BYTES_MAX / PAGE_BYTES;

/// How far writer and passes are, in frames of the log.
#[derive(Debug, Default)]
struct Progress {
    written: AtomicU32,
    copied: AtomicU32,
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
        match pass(connection) {
            Ok(copied) => progress.copied.store(copied, Ordering::Relaxed),
            // The log stays as it is and is read from there; the next pass tries again.
            Err(error) => tracing::warn!(%error, "checkpoint failed"),
        }
    }
}

/// Copies what can be copied without waiting for anybody; returns how many frames of the log are copied.
fn pass(connection: &Connection) -> rusqlite::Result<u32> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
        Ok(u32::try_from(row.get::<_, i64>(2)?).unwrap_or(0))
    })
}

impl Progress {
    fn wrote(&self, frames: u32) {
        let before = self.written.swap(frames, Ordering::Relaxed);
        if frames < before {
            // The log started over.
            self.copied.store(0, Ordering::Relaxed);
        }
    }

    fn waiting(&self) -> u32 {
        let written = self.written.load(Ordering::Relaxed);
        written.saturating_sub(self.copied.load(Ordering::Relaxed))
    }
}

impl Checkpoints {
    /// Called by the writer after each commit.
    pub(crate) fn committed(&mut self, writer: &Connection) {
        let written = self.progress.written.load(Ordering::Relaxed);
        let waiting = self.progress.waiting();
        if written < LOG_FRAMES_MAX {
            self.help_at = LOG_FRAMES_MAX;
        }
        if waiting >= PASS_FRAMES {
            // Full means that a pass is asked for already.
            let _ = self.wake.try_send(());
        } else if written >= self.help_at {
            // A reader can hold this pass up: then not again at once.
            self.help_at = written.saturating_add(PASS_FRAMES);
            match pass(writer) {
                Ok(copied) => self.progress.copied.store(copied, Ordering::Relaxed),
                Err(error) => tracing::warn!(%error, "checkpoint failed"),
            }
        }
    }
}

impl Thread {
    /// Waits for the thread; the writer's end must be gone.
    pub(crate) fn join(self) {
        let _ = self.0.join();
    }
}
