//! Erasing content for good, and remembering what is still owed of that.
//!
//! A purge is an event that names what it erases. The transaction that writes the event notes that the content is to be
//! taken out. Taking it out replaces that note by another: the write-ahead log may still hold it. Emptying that log removes
//! the second note. Whoever opens the directory alone does what the notes say, so that a process that dies anywhere in
//! between forgets nothing. Somebody who reads an older state keeps the log from being emptied; it is tried again until
//! that reader is gone.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use canon::Digest;
use domain::{Event, Kind, NamedBlob, Position};
use engine::port::{Erased, StoreFault, StoredEvent};
use memchr::memmem::Finder;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::Writer;
use crate::fault::fault;
use crate::schema::SecureDelete;
use crate::{blob, erase, notes, read, row, schema, segments};

/// How long somebody waits for the write-ahead log to be emptied before hearing that it is not.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is tried while somebody waits, and how often afterwards.
const SOON: Duration = Duration::from_millis(50);
const LATER: Duration = Duration::from_secs(1);

type Answer = oneshot::Sender<Result<Erased, StoreFault>>;

/// A purge whose content is still there.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingPurge {
    field: Position,
    event: Position,
}

/// What the writer knows of unfinished purges.
#[derive(Debug, Default)]
pub(super) struct Purges {
    /// Those that this process wrote down and did not take out yet.
    owed: Vec<PendingPurge>,
    /// The value of the note that the write-ahead log may hold what was taken out.
    unwiped: Option<i64>,
    /// Who waits for the log to be emptied, until when.
    waiting: Vec<(Instant, Answer)>,
    again_at: Option<Instant>,
}

impl Purges {
    pub(super) fn add(&mut self, owed: Vec<PendingPurge>) {
        self.owed.extend(owed);
    }
}

/// Notes which of some events are purges, in the transaction that writes them.
pub(super) fn note(
    connection: &Connection,
    events: &[StoredEvent],
) -> rusqlite::Result<Vec<PendingPurge>> {
    let mut owed = Vec::new();
    for event in events {
        if erased_by(event).is_empty() {
            continue;
        }
        notes::put(
            connection,
            &owed_name(event.position),
            row::sql(event.position.0),
        )?;
        owed.push(PendingPurge {
            field: event.resource,
            event: event.position,
        });
    }
    Ok(owed)
}

fn owed_name(event: Position) -> String {
    format!("{}{}", notes::ERASURE_OWED, event.0)
}

/// Returns what an event says is erased.
fn erased_by(event: &StoredEvent) -> Vec<Digest> {
    // Few events are purges, and parsing all would cost more than writing them. In canonical bytes this stands nowhere
    // else: inside a text its quotes would be escaped.
    static MEMBER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(r#""erased":["#));
    if MEMBER.find(&event.bytes).is_none() {
        return Vec::new();
    }
    let Ok(event) = Event::parse(&event.bytes) else {
        return Vec::new();
    };
    let named = event.kind().map_or(NamedBlob::None, Kind::named_blob);
    named.erased(&event)
}

impl Writer {
    /// Removes content for good, and the segments of a field that may repeat it. Removing what is gone does nothing: after a
    /// crash in between it is asked for again. Answers when no file holds it any more, or after a while that one still does.
    pub(crate) fn erase(&mut self, field: Position, digests: &[Digest], answer: Answer) {
        match self.erase_blobs(field, digests) {
            Ok(()) => {
                self.purges
                    .waiting
                    .push((Instant::now() + PATIENCE, answer));
                self.wipe();
            }
            Err(fault) => drop(answer.send(Err(fault))),
        }
    }

    fn erase_blobs(&mut self, field: Position, digests: &[Digest]) -> Result<(), StoreFault> {
        for digest in digests {
            blob::remove_file(&self.directory, digest)?;
        }
        let secure =
            |connection: &Connection, how| schema::secure_delete(connection, how).map_err(fault);
        secure(&self.connection, SecureDelete::Everywhere)?;
        let taken = self.take_out_small(field, digests);
        secure(&self.connection, SecureDelete::InPages)?;
        taken
    }

    fn take_out_small(&mut self, field: Position, digests: &[Digest]) -> Result<(), StoreFault> {
        let mut unwiped = None;
        for some in digests.chunks(erase::AT_ONCE) {
            self.project(|connection| {
                unwiped = Some(note_unwiped(connection)?);
                segments::forget(connection, field)?;
                erase::erase_blobs(connection, some)
                    .map(drop)
                    .map_err(fault)
            })?;
        }
        let (done, owed): (Vec<PendingPurge>, Vec<PendingPurge>) =
            std::mem::take(&mut self.purges.owed)
                .into_iter()
                .partition(|owed| owed.field == field);
        self.purges.owed = owed;
        let settled = self.project(|connection| {
            unwiped = Some(note_unwiped(connection)?);
            done.iter()
                .try_for_each(|owed| notes::remove(connection, &owed_name(owed.event)))
                .map_err(fault)
        });
        self.purges.unwiped = unwiped.or(self.purges.unwiped);
        if settled.is_err() {
            self.purges.owed.extend(done);
        }
        settled
    }

    /// Finishes what processes before this one owed. Only for whoever works alone in the directory: others may be at it.
    pub(crate) fn finish_purges(&mut self) -> Result<(), StoreFault> {
        self.purges.unwiped =
            notes::number(&self.connection, notes::ERASURE_UNWIPED).map_err(fault)?;
        let owed = notes::starting_with(&self.connection, notes::ERASURE_OWED).map_err(fault)?;
        let positions: Vec<Position> = owed
            .iter()
            .filter_map(|value| u64::try_from(*value).ok())
            .map(Position)
            .collect();
        let events = read::events_at(&self.connection, &positions)?;
        for (position, event) in positions.into_iter().zip(events) {
            // One that a repair took away names nothing any more.
            let field = event
                .as_ref()
                .map_or(Position::START, |event| event.resource);
            let digests = event.as_ref().map(erased_by).unwrap_or_default();
            self.purges.owed.push(PendingPurge {
                field,
                event: position,
            });
            self.erase_blobs(field, &digests)?;
        }
        self.wipe();
        Ok(())
    }

    /// Returns how long the writer may sleep while it owes something.
    pub(crate) fn sleeps_at_most(&self) -> Option<Duration> {
        let again_at = self.purges.unwiped.and(self.purges.again_at)?;
        Some(again_at.saturating_duration_since(Instant::now()))
    }

    /// Tries again to empty the write-ahead log, where that is owed and it is time.
    pub(crate) fn wipe_when_due(&mut self) {
        if self.sleeps_at_most() == Some(Duration::ZERO) {
            self.wipe();
        }
    }

    fn wipe(&mut self) {
        let Some(unwiped) = self.purges.unwiped else {
            return self.answer_all(Erased::Gone);
        };
        let busy = self.checkpoints.start_over(&self.connection);
        if !busy {
            // Another process may have written a newer one meanwhile, and that stays.
            let removed = self.project(|connection| {
                notes::remove_value(connection, notes::ERASURE_UNWIPED, unwiped).map_err(fault)
            });
            if let Err(error) = removed {
                // The bytes are gone; the next start empties the log once more.
                tracing::warn!(%error, "that a purge is finished cannot be noted");
            }
            self.purges.unwiped = None;
            self.purges.again_at = None;
            return self.answer_all(Erased::Gone);
        }
        let now = Instant::now();
        let waiting = std::mem::take(&mut self.purges.waiting);
        for (until, answer) in waiting {
            if until > now {
                self.purges.waiting.push((until, answer));
                continue;
            }
            tracing::warn!(
                "somebody who reads the database keeps purged content in the write-ahead log; it is erased when they are done"
            );
            // Whoever went away needs no answer.
            let _ = answer.send(Ok(Erased::Held));
        }
        let pause = if self.purges.waiting.is_empty() {
            LATER
        } else {
            SOON
        };
        self.purges.again_at = Some(now + pause);
    }

    fn answer_all(&mut self, erased: Erased) {
        for (_, answer) in self.purges.waiting.drain(..) {
            let _ = answer.send(Ok(erased));
        }
    }
}

/// Notes that the write-ahead log may hold what the transaction under way takes out; returns the value of the note.
fn note_unwiped(connection: &Connection) -> Result<i64, StoreFault> {
    let before = notes::number(connection, notes::ERASURE_UNWIPED).map_err(fault)?;
    let value = before.unwrap_or(0).wrapping_add(1);
    notes::put(connection, notes::ERASURE_UNWIPED, value).map_err(fault)?;
    Ok(value)
}
