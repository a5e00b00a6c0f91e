//! A directory in which several processes work: how one learns of what the others committed.
//!
//! SQLite's `data_version` of a connection changes when another connection has committed. The writer asks for it inside each
//! transaction, before it believes its own counters. Everybody else is told by a thread that asks every few milliseconds.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use engine::port::{Scope, StoreFault};
use rusqlite::Connection;

use crate::fault::fault;
use crate::read;
use crate::schema::{Role, connect};
use crate::write::Published;

/// How often the thread asks. A look costs some microseconds and touches no disk.
const PAUSE: Duration = Duration::from_millis(5);

/// Returns a number that changes whenever somebody else has committed since the last look through this connection.
pub(crate) fn data_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("PRAGMA data_version")?
        .query_row([], |row| row.get(0))
}

/// The thread that looks for commits of other processes. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start(directory: &Path, published: Arc<Published>) -> Result<Self, StoreFault> {
        let connection = connect(directory, Role::Reader).map_err(fault)?;
        let (stop, stopped) = sync_channel::<()>(1);
        let thread = thread::Builder::new()
            .name("store-watch".to_owned())
            .spawn(move || {
                let mut seen = None;
                let mut fails = false;
                while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                    let looked = look(&connection, &mut seen, &published);
                    if let Err(error) = &looked
                        && !fails
                    {
                        tracing::warn!(%error, "what other processes commit cannot be seen; will retry");
                    }
                    fails = looked.is_err();
                }
            })
            .map_err(|error| StoreFault::new(format!("cannot start a thread to watch: {error}")))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

fn look(
    connection: &Connection,
    seen: &mut Option<i64>,
    published: &Published,
) -> Result<(), StoreFault> {
    let version = data_version(connection).map_err(fault)?;
    if *seen == Some(version) {
        return Ok(());
    }
    let last = read::last_event(connection, Scope::All)?.map_or(0, |last| last.0);
    // Not before it is read: what could not be read is looked at again.
    *seen = Some(version);
    if published.head.fetch_max(last, Ordering::AcqRel) < last {
        // What it was stands in the log.
        published.news.publish(Vec::new());
    }
    Ok(())
}
