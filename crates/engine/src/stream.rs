//! Event streams: history from the log, then live, without a gap and without a repetition.
//!
//! News of commits only saves reading: a subscriber that lags, or joins late, is served from the log. A slow
//! reader therefore never loses an event; it only reads later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use domain::{Position, Refusal, State};
use tokio::sync::broadcast;

use crate::caller::Caller;
use crate::engine::{Engine, Shared};
use crate::port::{News, Scope, StoredEvent};
use crate::read::EventRange;
use crate::refused::Refused;

/// How many events one read of the log takes.
const READ_LEN: usize = 256;

/// One event on its way to a reader.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// The event.
    pub event: StoredEvent,
    /// True when it was committed before the stream was opened.
    pub replayed: bool,
}

/// An open stream. Dropping it closes it.
#[derive(Debug)]
pub struct EventStream {
    engine: Engine,
    scopes: Vec<Scope>,
    /// Everything up to here was delivered or buffered.
    cursor: Position,
    /// What the log held when the stream was opened.
    opened_at: Position,
    news: broadcast::Receiver<News>,
    buffer: VecDeque<StoredEvent>,
    /// True while the log may hold more than was read.
    behind: bool,
    /// The Task whose end ends the stream.
    task: Option<Box<str>>,
    /// True when events of the Task were delivered since its end was last asked for.
    ask_for_end: bool,
    _open: OpenStream,
}

/// Counts a stream while it is open.
#[derive(Debug)]
pub(crate) struct OpenStream {
    shared: Arc<Shared>,
    key: String,
}

impl OpenStream {
    /// Takes a caller's share of the streams.
    pub(crate) fn of(shared: &Arc<Shared>, caller: &Caller) -> Result<Self, Refused> {
        let key = caller.key_id.clone().unwrap_or_default();
        let taken = shared.streams().take(&key, 1);
        taken.map_err(|no| no.of("streams_max", shared.limits.streams_max))?;
        shared.metrics.streams.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(shared);
        Ok(Self { shared, key })
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.shared.streams().release(&self.key, 1);
        self.shared.metrics.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Engine {
    /// Returns how many streams are open.
    pub fn open_streams(&self) -> u64 {
        self.shared.metrics.streams.load(Ordering::Relaxed)
    }

    /// Opens a stream. Without a cursor it starts at the beginning of the history. A stream of one Task ends after
    /// the last event of its sealed log; others stay open.
    ///
    /// # Errors
    /// The cursor cannot be used ([`Refused::CursorExpired`]); a filter does not exist; the caller lacks the
    /// scope; there are too many streams.
    pub async fn stream(&self, caller: &Caller, range: EventRange) -> Result<EventStream, Refused> {
        caller.require("events:read")?;
        let shared = &self.shared;
        let open = OpenStream::of(shared, caller)?;
        let scopes = self.scopes(caller, &range.filters).await?;
        let cursor = match &range.after_event_id {
            None => Position::START,
            Some(id) => match self.visible_event(caller, id, None).await {
                Ok(event) => event.position,
                Err(Refused::Domain(Refusal::NotFound { .. })) => {
                    return Err(Refused::CursorExpired);
                }
                Err(other) => return Err(other),
            },
        };
        // Subscribed before the head is read: what is committed in between is delivered by both and skipped once.
        let news = shared.store.news();
        Ok(EventStream {
            engine: self.clone(),
            scopes,
            cursor,
            opened_at: shared.store.head(),
            news,
            buffer: VecDeque::new(),
            behind: true,
            ask_for_end: range.filters.task_id.is_some(),
            task: range.filters.task_id.map(Into::into),
            _open: open,
        })
    }
}

impl EventStream {
    /// Returns the next event; none at the end of a finished Task's log or when the server drains.
    ///
    /// Safe to drop and call again: nothing is lost.
    ///
    /// # Errors
    /// The store failed.
    pub async fn next(&mut self) -> Result<Option<Frame>, Refused> {
        loop {
            if let Some(frame) = self.pop() {
                return Ok(Some(frame));
            }
            if self.behind {
                self.read().await?;
                continue;
            }
            if self.ask_for_end {
                if self.is_over().await? {
                    return Ok(None);
                }
                // Not before it is known: whoever drops this future and calls again must ask again.
                self.ask_for_end = false;
                continue;
            }
            match self.news.recv().await {
                Ok(news) => self.take(&news),
                Err(broadcast::error::RecvError::Lagged(_)) => self.behind = true,
                Err(broadcast::error::RecvError::Closed) => return Ok(None),
            }
        }
    }

    /// Returns the next event if it is at hand: never waits and never reads.
    pub fn next_ready(&mut self) -> Option<Frame> {
        // Whether the Task has ended is asked when nothing more is at hand.
        while self.buffer.is_empty() && !self.behind {
            match self.news.try_recv() {
                Ok(news) => self.take(&news),
                Err(broadcast::error::TryRecvError::Lagged(_)) => self.behind = true,
                // `next` tells a quiet log from a closed one.
                Err(
                    broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed,
                ) => return None,
            }
        }
        self.pop()
    }

    /// Returns how much is at hand that is not delivered yet: events that were read, and commits that were heard of.
    pub fn at_hand(&self) -> usize {
        self.buffer.len() + self.news.len()
    }

    fn pop(&mut self) -> Option<Frame> {
        let event = self.buffer.pop_front()?;
        let replayed = event.position <= self.opened_at;
        Some(Frame { event, replayed })
    }

    async fn read(&mut self) -> Result<(), Refused> {
        let head = self.engine.shared.store.head();
        // What is damaged fails the whole read: what stands before it is delivered all the same.
        let mut limit = READ_LEN;
        let events = loop {
            let read = self.engine.read_scopes(&self.scopes, self.cursor, limit);
            match read.await {
                Ok(events) => break events,
                Err(refused) if limit == 1 => return Err(refused),
                Err(_) => limit /= 2,
            }
        };
        if events.len() < limit {
            self.behind = false;
            self.cursor = self.cursor.max(head);
        }
        if let Some(last) = events.last() {
            self.cursor = self.cursor.max(last.position);
            self.ask_for_end = self.task.is_some();
        }
        self.buffer.extend(events);
        Ok(())
    }

    fn take(&mut self, news: &News) {
        let events = news.events();
        let Some(last) = events.last() else {
            // Somebody else committed: the log knows what.
            self.behind = true;
            return;
        };
        for event in events.iter() {
            let wanted = event.position > self.cursor
                && self.scopes.iter().any(|scope| scope.contains(&event.links));
            if wanted {
                self.buffer.push_back(event.clone());
                self.ask_for_end = self.task.is_some();
            }
        }
        self.cursor = self.cursor.max(last.position);
    }

    /// True when the stream is of a Task whose log is sealed; asked only when everything known was delivered.
    async fn is_over(&mut self) -> Result<bool, Refused> {
        let Some(id) = &self.task else {
            return Ok(false);
        };
        let Some(document) = self.engine.shared.store.document(id).await? else {
            return Ok(true);
        };
        let State::Task(task) = &document.state else {
            return Ok(true);
        };
        // The terminal commit may have come after the last read: deliver it first.
        if task.status.is_terminal() && document.tip > self.cursor {
            self.behind = true;
            return Ok(false);
        }
        Ok(task.status.is_terminal())
    }
}
