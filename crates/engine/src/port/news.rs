//! News of commits: what was just committed, for whoever waits for it.
//!
//! A subscriber that stalls holds up nobody and pins little: the channel carries references that die when newer events
//! take their room, and whoever comes too late reads the log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::broadcast;

use super::StoredEvent;

/// How many commits a lagging subscriber may miss before it must read the log.
const COMMITS_MAX: usize = 1024;

/// How many bytes of events are kept for subscribers, whatever their number.
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// What an event takes beside its bytes.
const EVENT_BYTES: usize = size_of::<StoredEvent>();

/// Tells subscribers what was committed.
#[derive(Debug, Clone, Default)]
pub struct News {
    events: Weak<Vec<StoredEvent>>,
}

impl News {
    /// Returns the events of one commit, ascending. None: something was committed, look into the log.
    pub fn events(&self) -> Arc<Vec<StoredEvent>> {
        self.events.upgrade().unwrap_or_default()
    }
}

/// The end that a store sends from.
#[derive(Debug)]
pub struct Publisher {
    sender: broadcast::Sender<News>,
    recent: Mutex<Recent>,
}

#[derive(Debug, Default)]
struct Recent {
    commits: VecDeque<(Arc<Vec<StoredEvent>>, usize)>,
    bytes: usize,
}

impl Default for Publisher {
    fn default() -> Self {
        Self {
            sender: broadcast::Sender::new(COMMITS_MAX),
            recent: Mutex::default(),
        }
    }
}

impl Publisher {
    /// Adds a subscriber.
    pub fn subscribe(&self) -> broadcast::Receiver<News> {
        self.sender.subscribe()
    }

    /// Tells everybody what was committed.
    pub fn publish(&self, events: Vec<StoredEvent>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if self.sender.receiver_count() == 0 {
            *recent = Recent::default();
            return;
        }
        let bytes = events.iter().map(|event| event.bytes.len() + EVENT_BYTES);
        let bytes = bytes.sum();
        let events = Arc::new(events);
        let news = News {
            events: Arc::downgrade(&events),
        };
        recent.bytes += bytes;
        recent.commits.push_back((events, bytes));
        // The newest stays, however large it is: whoever waits for it is awake already.
        while recent.commits.len() > COMMITS_MAX
            || (recent.bytes > BYTES_MAX && recent.commits.len() > 1)
        {
            if let Some((_, bytes)) = recent.commits.pop_front() {
                recent.bytes -= bytes;
            }
        }
        drop(recent);
        // That the last one left meanwhile is fine.
        let _ = self.sender.send(news);
    }
}

#[cfg(test)]
mod tests {
    use domain::{Links, Position};

    use super::*;

    #[test]
    fn a_subscriber_that_stalls_pins_bounded_memory() {
        let publisher = Publisher::default();
        let event = |position: u64, len: usize| StoredEvent {
            position: Position(position),
            links: Links::default(),
            resource: Position(position),
            bytes: vec![0; len].into(),
        };
        publisher.publish(vec![event(1, 10)]);
        let mut stalled = publisher.subscribe();
        let mut pinned = Vec::new();
        for position in 2..202 {
            let events = vec![event(position, 1 << 20)];
            pinned.push(Arc::downgrade(&events[0].bytes));
            publisher.publish(events);
        }
        let alive = pinned
            .iter()
            .filter(|bytes| bytes.strong_count() > 0)
            .count();
        assert!(alive <= BYTES_MAX >> 20, "{alive} MiB are pinned");
        // It hears of every commit, and what is gone it reads from the log.
        let mut heard = 0;
        let mut held = 0;
        while let Ok(news) = stalled.try_recv() {
            heard += 1;
            held += news.events().len();
        }
        assert_eq!((heard, held), (200, alive));
        drop(stalled);
        publisher.publish(vec![event(300, 1)]);
        let alive = pinned
            .iter()
            .filter(|bytes| bytes.strong_count() > 0)
            .count();
        assert_eq!(alive, 0, "nobody listens any more");
    }
}
