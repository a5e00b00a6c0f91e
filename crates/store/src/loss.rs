//! Does a log still hold what was acknowledged? Looked at before anybody works in a directory or judges it.
//!
//! Changes nothing: what is refused here is evidence, and whoever mends it needs it as it is.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use canon::sha256;
use domain::{Event, Position};
use engine::port::Scope;
use rusqlite::Connection;

use crate::directory::{self, OpenError};
use crate::head_file::{self, HeadRecord};
use crate::read;
use crate::schema;
use crate::wal::{self, Wal};

/// How many events a frame of the write-ahead log can hold at most, compressed: so far new positions keep away from
/// lost ones when nothing says what those were.
const EVENTS_A_FRAME: u64 = 1_024;

/// What a log has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The write-ahead log is damaged, and later commits lie behind the damage.
    Damaged {
        /// How many frames are good.
        good: u64,
        /// How many follow.
        behind: u64,
    },
    /// The write-ahead log ends too early.
    Frames {
        /// How many frames are good.
        good: u64,
        /// How many were committed.
        kept: u64,
    },
    /// The log ends too early.
    Shorter {
        /// The position of its last event.
        found: Position,
        /// The newest position that was acknowledged.
        kept: Position,
    },
    /// Another event stands where the newest acknowledged one stood.
    Other {
        /// Its position.
        kept: Position,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Damaged { good, behind } => write!(
                f,
                "`reprise.db-wal` is damaged: {good} frames are good, then one is not, and later commits are among the \
                 {behind} frames from there on"
            ),
            Loss::Frames { good, kept } => write!(
                f,
                "`reprise.db-wal` has {good} good frames, and {kept} were committed"
            ),
            Loss::Shorter { found, kept } => write!(
                f,
                "the log ends at position {}, and position {} was acknowledged",
                found.0, kept.0
            ),
            Loss::Other { kept } => write!(
                f,
                "the event at position {} is not the one that was acknowledged",
                kept.0
            ),
        }
    }
}

/// Looks at the write-ahead log of a directory in which nobody works. Returns what it holds, and what is lost of it.
pub(crate) fn of_files(
    directory: &Path,
    kept: Option<&HeadRecord>,
) -> Result<(Wal, Option<Loss>), OpenError> {
    let wal = wal::read(directory).map_err(|error| OpenError::fault(directory, error))?;
    let kept = kept.and_then(|kept| kept.wal);
    let loss = match (wal, kept) {
        (Wal::Damaged { frames, behind, .. }, _) => Some(Loss::Damaged {
            good: frames,
            behind,
        }),
        // It started over since, or it did not: then only the header tells, and that is not readable.
        (Wal::Whole { salts, frames }, Some((known, kept)))
            if salts.is_none_or(|salts| salts == known) && frames < kept =>
        {
            Some(Loss::Frames { good: frames, kept })
        }
        (Wal::None | Wal::Whole { .. }, _) => None,
    };
    Ok((wal, loss))
}

/// Looks whether a log reaches as far as it did. What cannot be read is not judged here.
pub(crate) fn of_log(blocks: &Connection, kept: &HeadRecord) -> Option<Loss> {
    let found = match has_tables(blocks) {
        true => read::last_event(blocks, Scope::All).ok()?,
        false => None,
    };
    let found = found.unwrap_or(Position::START);
    let kept_at = kept.position;
    if found < kept_at {
        return Some(Loss::Shorter {
            found,
            kept: kept_at,
        });
    }
    let digest = kept.event?;
    let events = read::events_at(blocks, &[kept_at]).ok()?;
    let same = events.into_iter().flatten().next().is_some_and(|event| {
        // Pruning puts a header in the place of an event.
        sha256(&event.bytes) == digest
            || Event::parse(&event.bytes).is_ok_and(|event| event.is_header())
    });
    (!same).then_some(Loss::Other { kept: kept_at })
}

/// Says of a directory without a database what it has lost, when a file beside it tells; else what was found.
pub(crate) fn or_loss(found: OpenError, directory: &Path) -> OpenError {
    match (&found, head_file::read(directory)) {
        (OpenError::NoLog { .. }, Ok(Some(kept))) if kept.position > Position::START => {
            let loss = Loss::Shorter {
                found: Position::START,
                kept: kept.position,
            };
            OpenError::lost(directory, loss)
        }
        _ => found,
    }
}

/// Refuses a directory in which nobody works when it has lost something.
pub(crate) fn refuse(directory: &Path, kept: Option<&HeadRecord>) -> Result<Wal, OpenError> {
    let (wal, loss) = of_files(directory, kept)?;
    // Somebody may have begun to work here, and then the file changes under the reader.
    match loss {
        Some(loss) if !directory::is_held(directory) => Err(OpenError::lost(directory, loss)),
        _ => Ok(wal),
    }
}

/// Refuses a log whose file that says how far it had come is gone.
pub(crate) fn refuse_without_head(
    directory: &Path,
    connection: &Connection,
) -> Result<(), OpenError> {
    // Where there are no tables yet, there is nothing to be missing.
    let had_one = has_tables(connection)
        && schema::keeps_head(connection).map_err(|error| OpenError::fault(directory, error))?;
    match had_one {
        true => Err(OpenError::MissingHead {
            file: head_file::path(directory),
        }),
        false => Ok(()),
    }
}

/// Returns behind which position a log goes on that has lost something: no id that was ever given out comes back.
pub(crate) fn resume_after(found: Position, kept: Option<&HeadRecord>, wal: Wal) -> Position {
    match (kept, wal) {
        (Some(kept), _) => found.max(kept.position),
        (None, Wal::Damaged { behind, .. }) => found.plus(behind.saturating_mul(EVENTS_A_FRAME)),
        (None, Wal::None | Wal::Whole { .. }) => found,
    }
}

/// Copies the files that a loss is about, durably, into a folder of their own; returns its place.
pub(crate) fn keep_aside(directory: &Path) -> io::Result<PathBuf> {
    let free = (1..).map(|number: u32| directory.join(format!("lost-{number}")));
    let folder = free
        .into_iter()
        .find(|folder| !folder.exists())
        .unwrap_or_else(|| directory.join("lost"));
    directory::make_directory(&folder)?;
    for file in [wal::path(directory), head_file::path(directory)] {
        let Some(name) = file.file_name() else {
            continue;
        };
        let mut from = match File::open(&file) {
            Ok(from) => from,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut to = directory::private()
            .write(true)
            .create_new(true)
            .open(folder.join(name))?;
        io::copy(&mut from, &mut to)?;
        to.sync_all()?;
    }
    directory::sync_directory(&folder)?;
    Ok(folder)
}

/// True when a database has our tables: the commit that made them may be among what is lost.
pub(crate) fn has_tables(connection: &Connection) -> bool {
    let events = "SELECT 1 FROM sqlite_schema WHERE name = 'events'";
    connection
        .prepare(events)
        .and_then(|mut select| select.exists([]))
        // What cannot be read at all is for others to report.
        .unwrap_or(true)
}
