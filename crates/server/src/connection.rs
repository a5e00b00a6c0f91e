//! The life of a connection: who holds a place, and for how long.
//!
//! A place is free for whoever connects, so it is lent, not given. A connection that makes no progress loses it: soon as
//! long as it has not carried an authenticated request, later when it has. And when places are short, whether of all or of
//! one address, the connection that has been quiet the longest makes room for the new one, unless it has authenticated.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::Instant;

/// No request is being answered.
const WAITING: u8 = 0;
/// One is.
const ANSWERING: u8 = 1;
/// Its answer is whole, and may not be sent yet.
const ANSWERED: u8 = 2;

/// One connection, as those see it who serve it and those who count it.
#[derive(Debug)]
pub(crate) struct Life {
    address: IpAddr,
    begun: Instant,
    /// When something last moved: milliseconds since the beginning.
    moved_ms: AtomicU64,
    is_authenticated: AtomicBool,
    /// What becomes of a request of HTTP/1: [`WAITING`], [`ANSWERING`] or [`ANSWERED`].
    exchange: AtomicU8,
    /// True once it was told to end: it makes room for one, not for all that come before it is gone.
    is_ending: AtomicBool,
    must_end: Notify,
}

impl Life {
    fn new(address: IpAddr) -> Self {
        Self {
            address,
            begun: Instant::now(),
            moved_ms: AtomicU64::new(0),
            is_authenticated: AtomicBool::new(false),
            exchange: AtomicU8::new(WAITING),
            is_ending: AtomicBool::new(false),
            must_end: Notify::new(),
        }
    }

    /// Notes that a request came, or that a piece of an answer was taken.
    pub(crate) fn moved(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(now, Ordering::Relaxed);
    }

    /// Notes that a request is being answered.
    pub(crate) fn answering(&self) {
        self.exchange.store(ANSWERING, Ordering::Relaxed);
    }

    /// Notes that the whole answer was handed over, though it may not be sent yet.
    fn answered(&self) {
        self.exchange.store(ANSWERED, Ordering::Relaxed);
    }

    /// Notes that all that was handed over is sent; tells whether that was the end of an answer.
    pub(crate) fn sent(&self) -> bool {
        let is_end = self.exchange.load(Ordering::Relaxed) == ANSWERED;
        if is_end {
            self.exchange.store(WAITING, Ordering::Relaxed);
        }
        is_end
    }

    /// Returns whether no request is being answered.
    pub(crate) fn is_waiting(&self) -> bool {
        self.exchange.load(Ordering::Relaxed) == WAITING
    }

    /// Notes that a request came with a valid key.
    pub(crate) fn authenticated(&self) {
        self.is_authenticated.store(true, Ordering::Relaxed);
    }

    fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        self.must_end.notify_one();
    }

    fn is_known(&self) -> bool {
        self.is_authenticated.load(Ordering::Relaxed)
    }

    /// Returns when something last moved.
    pub(crate) fn last_moved(&self) -> Instant {
        self.begun + Duration::from_millis(self.moved_ms.load(Ordering::Relaxed))
    }

    /// Waits until the connection has lost its place: it was quiet for too long, or another one needs it.
    pub(crate) async fn over(&self, patience: Patience) {
        loop {
            let limit = match self.is_known() {
                true => patience.known,
                false => patience.unknown,
            };
            let until = self.last_moved() + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::select! {
                () = self.must_end.notified() => return,
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }
}

/// How long a connection may stand still.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Before it carried an authenticated request.
    pub(crate) unknown: Duration,
    /// After it did.
    pub(crate) known: Duration,
}

/// All open connections.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    lives: BTreeMap<u64, Arc<Life>>,
}

/// A connection in the list of all; dropping it takes it out.
#[derive(Debug)]
pub(crate) struct Listed {
    connections: Arc<Connections>,
    number: u64,
    pub(crate) life: Arc<Life>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.connections.lock().lives.remove(&self.number);
    }
}

impl Connections {
    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in. When its address has more than its share of connections that have not authenticated, or
    /// all places are taken, the quietest of them has to go.
    pub(crate) fn take_in(
        self: &Arc<Self>,
        address: IpAddr,
        places: usize,
        per_address: usize,
    ) -> Listed {
        let life = Arc::new(Life::new(address));
        let mut open = self.lock();
        let quietest = |of: &dyn Fn(&Life) -> bool| {
            let unknown = open
                .lives
                .values()
                .filter(|life| !life.is_known() && !life.is_ending.load(Ordering::Relaxed));
            let those: Vec<&Arc<Life>> = unknown.filter(|life| of(life)).collect();
            let first = those.iter().min_by_key(|life| life.last_moved());
            (those.len(), first.map(|life| Arc::clone(life)))
        };
        let (of_address, own) = quietest(&|life| life.address == address);
        let leaves = if of_address >= per_address.max(1) {
            own
        } else if open.lives.len() >= places {
            quietest(&|_| true).1
        } else {
            None
        };
        if let Some(life) = leaves {
            life.end();
        }
        let number = open.next;
        open.next += 1;
        open.lives.insert(number, Arc::clone(&life));
        Listed {
            connections: Arc::clone(self),
            number,
            life,
        }
    }
}

/// The body of an answer that tells its connection when a piece of it is taken.
pub(crate) struct Watched {
    body: Body,
    life: Arc<Life>,
}

impl Watched {
    pub(crate) fn new(body: Body, life: Arc<Life>) -> Self {
        Self { body, life }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.life.answered();
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            self.life.moved();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    const PATIENCE: Patience = Patience {
        unknown: Duration::from_secs(10),
        known: Duration::from_secs(60),
    };

    async fn is_over(life: &Life) -> bool {
        let soon = Duration::from_millis(1);
        tokio::time::timeout(soon, life.over(PATIENCE))
            .await
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_stands_still_ends_sooner_when_nobody_knows_it() {
        let connections = Arc::new(Connections::default());
        let unknown = connections.take_in(address(1), 10, 10);
        let known = connections.take_in(address(1), 10, 10);
        known.life.authenticated();
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(!is_over(&unknown.life).await);
        unknown.life.moved();
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(!is_over(&unknown.life).await);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(is_over(&unknown.life).await);
        assert!(!is_over(&known.life).await);
        tokio::time::sleep(Duration::from_secs(41)).await;
        assert!(is_over(&known.life).await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_quietest_unknown_connection_makes_room() {
        let connections = Arc::new(Connections::default());
        let mut held = Vec::new();
        for last in [1, 1, 2] {
            held.push(connections.take_in(address(last), 3, 2));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        held[0].life.moved();
        // The second of the first address has been quiet for longer than the first.
        held.push(connections.take_in(address(1), 10, 2));
        assert!(is_over(&held[1].life).await);
        drop(held.remove(1));
        // All places are taken, and the oldest of all is known.
        held[0].life.authenticated();
        held.push(connections.take_in(address(3), 3, 2));
        assert!(!is_over(&held[0].life).await);
        assert!(is_over(&held[1].life).await);
        assert!(!is_over(&held[2].life).await);
    }
}
