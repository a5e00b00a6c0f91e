//! The life of a connection: who holds a place, and for how long.
//!
//! A place is free for whoever connects, so it is lent, not given. A connection that makes no progress loses it: soon as
//! long as it has not carried an authenticated request, later when it has. And when places are short, whether of all or of
//! one address, the connection that has been quiet the longest makes room for the new one, unless it has authenticated.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;

use crate::gate::Credential;

/// No request is being answered.
const WAITING: u8 = 0;
/// One is.
const ANSWERING: u8 = 1;
/// Its answer is whole, and may not be sent yet.
const ANSWERED: u8 = 2;
/// What follows is not HTTP.
const UPGRADED: u8 = 3;

/// One connection, as those see it who serve it and those who count it.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    address: IpAddr,
    begun: Instant,
    /// When something last moved: milliseconds since the beginning.
    moved_ms: AtomicU64,
    /// The key of its first authenticated request.
    key: OnceLock<Credential>,
    /// What becomes of a request of HTTP/1: [`WAITING`], [`ANSWERING`], [`ANSWERED`] or [`UPGRADED`].
    exchange: AtomicU8,
    /// True once it was told to end: it makes room for one, not for all that come before it is gone.
    is_ending: AtomicBool,
    must_end: Notify,
}

impl ConnectionState {
    fn new(address: IpAddr) -> Self {
        Self {
            address,
            begun: Instant::now(),
            moved_ms: AtomicU64::new(0),
            key: OnceLock::new(),
            exchange: AtomicU8::new(WAITING),
            is_ending: AtomicBool::new(false),
            must_end: Notify::new(),
        }
    }

    /// Notes that a request came, or that a piece of an answer was taken.
    pub(crate) fn note_progress(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(now, Ordering::Relaxed);
    }

    /// Notes that a request is being answered.
    pub(crate) fn answering(&self) {
        self.exchange.store(ANSWERING, Ordering::Relaxed);
    }

    /// Notes that the whole answer was handed over, though it may not be sent yet.
    fn answered(&self) {
        let (from, to, any) = (ANSWERING, ANSWERED, Ordering::Relaxed);
        // One that is no longer HTTP stays so.
        let _ = self.exchange.compare_exchange(from, to, any, any);
    }

    /// Notes that what follows is not HTTP.
    pub(crate) fn upgraded(&self) {
        self.exchange.store(UPGRADED, Ordering::Relaxed);
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

    /// Notes that a request came with a valid key. True when it is the first one.
    fn authenticated(&self, key: Credential) -> bool {
        self.key.set(key).is_ok()
    }

    fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        self.must_end.notify_one();
    }

    pub(crate) fn is_known(&self) -> bool {
        self.key.get().is_some()
    }

    /// Returns when something last moved.
    pub(crate) fn last_progress(&self) -> Instant {
        self.begun + Duration::from_millis(self.moved_ms.load(Ordering::Relaxed))
    }

    /// Waits until the connection has lost its place: it was quiet for too long, or another one needs it.
    pub(crate) async fn over(&self, patience: IdleLimits) {
        loop {
            let limit = match self.is_known() {
                true => patience.known,
                false => patience.unknown,
            };
            let until = self.last_progress() + limit;
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
pub(crate) struct IdleLimits {
    /// Before it carried an authenticated request.
    pub(crate) unknown: Duration,
    /// After it did.
    pub(crate) known: Duration,
}

/// All open connections.
#[derive(Debug)]
pub(crate) struct Connections {
    places: usize,
    open: Mutex<Open>,
}

/// The part of all places that connections of known callers may have. The rest is for whoever is to become known, so that
/// no caller and no crowd of them keeps a new one out.
fn places_of_known(places: usize) -> usize {
    (places - places / 4).max(1)
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    lives: BTreeMap<u64, Arc<ConnectionState>>,
}

/// A connection in the list of all; dropping it takes it out.
#[derive(Debug)]
pub(crate) struct ConnectionEntry {
    connections: Arc<Connections>,
    number: u64,
    pub(crate) life: Arc<ConnectionState>,
}

/// The place of a connection among all; whoever holds it keeps the connection counted.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    _listed: ConnectionEntry,
    _place: OwnedSemaphorePermit,
}

impl ConnectionSlot {
    pub(crate) fn new(listed: ConnectionEntry, place: OwnedSemaphorePermit) -> Arc<Self> {
        Arc::new(Self {
            _listed: listed,
            _place: place,
        })
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        self.connections.lock().lives.remove(&self.number);
    }
}

impl Connections {
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            places,
            open: Mutex::default(),
        })
    }

    /// Takes note that a connection carried a request with a valid key. When known callers have more than their part of
    /// all places, the one that has most gives one back: its quietest.
    pub(crate) fn authenticated(&self, life: &ConnectionState, key: Credential) {
        if !life.authenticated(key) {
            return;
        }
        let open = self.lock();
        let mut of_key: BTreeMap<Credential, Vec<&Arc<ConnectionState>>> = BTreeMap::new();
        let known = open.lives.values().filter_map(|life| {
            let is_ending = life.is_ending.load(Ordering::Relaxed);
            (!is_ending).then_some((*life.key.get()?, life))
        });
        let mut count = 0;
        for (key, life) in known {
            of_key.entry(key).or_default().push(life);
            count += 1;
        }
        if count <= places_of_known(self.places) {
            return;
        }
        let largest = of_key.values().max_by_key(|lives| lives.len());
        let quietest =
            largest.and_then(|lives| lives.iter().min_by_key(|life| life.last_progress()));
        if let Some(life) = quietest {
            life.end();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in. When its address has more than its share of connections that have not authenticated, or
    /// all places are taken, the quietest of them has to go.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr, per_address: usize) -> ConnectionEntry {
        let life = Arc::new(ConnectionState::new(address));
        let mut open = self.lock();
        let quietest = |of: &dyn Fn(&ConnectionState) -> bool| {
            let unknown = open
                .lives
                .values()
                .filter(|life| !life.is_known() && !life.is_ending.load(Ordering::Relaxed));
            let those: Vec<&Arc<ConnectionState>> = unknown.filter(|life| of(life)).collect();
            let first = those.iter().min_by_key(|life| life.last_progress());
            (those.len(), first.map(|life| Arc::clone(life)))
        };
        let (of_address, own) = quietest(&|life| life.address == address);
        let leaves = if of_address >= per_address.max(1) {
            own
        } else if open.lives.len() >= self.places {
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
        ConnectionEntry {
            connections: Arc::clone(self),
            number,
            life,
        }
    }
}

/// The body of an answer that tells its connection when a piece of it is taken.
pub(crate) struct WatchedBody {
    body: Body,
    life: Arc<ConnectionState>,
}

impl WatchedBody {
    pub(crate) fn new(body: Body, life: Arc<ConnectionState>) -> Self {
        Self { body, life }
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        self.life.answered();
    }
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            self.life.note_progress();
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

    const PATIENCE: IdleLimits = IdleLimits {
        unknown: Duration::from_secs(10),
        known: Duration::from_secs(60),
    };

    async fn is_over(life: &ConnectionState) -> bool {
        let soon = Duration::from_millis(1);
        tokio::time::timeout(soon, life.over(PATIENCE))
            .await
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_stands_still_ends_sooner_when_nobody_knows_it() {
        let connections = Connections::new(10);
        let unknown = connections.admit(address(1), 10);
        let known = connections.admit(address(1), 10);
        connections.authenticated(&known.life, Credential::of("ann"));
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(!is_over(&unknown.life).await);
        unknown.life.note_progress();
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
        let connections = Connections::new(3);
        let mut held = Vec::new();
        for last in [1, 1, 2] {
            held.push(connections.admit(address(last), 2));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        held[0].life.note_progress();
        // The second of the first address has been quiet for longer than the first.
        held.push(connections.admit(address(1), 2));
        assert!(is_over(&held[1].life).await);
        drop(held.remove(1));
        // All places are taken, and the oldest of all is known.
        connections.authenticated(&held[0].life, Credential::of("ann"));
        held.push(connections.admit(address(3), 2));
        assert!(!is_over(&held[0].life).await);
        assert!(is_over(&held[1].life).await);
        assert!(!is_over(&held[2].life).await);
    }

    #[tokio::test(start_paused = true)]
    async fn f7_whoever_has_most_gives_back_its_quietest_and_a_quarter_stays_for_the_unknown() {
        let connections = Connections::new(8);
        let mut greedy = Vec::new();
        for number in 0..6 {
            let listed = connections.admit(address(1), 8);
            tokio::time::sleep(Duration::from_millis(10)).await;
            listed.life.note_progress();
            connections.authenticated(&listed.life, Credential::of("greedy"));
            greedy.push((number, listed));
        }
        for (_, listed) in &greedy {
            assert!(!is_over(&listed.life).await, "six of eight are its to have");
        }
        let modest = connections.admit(address(2), 8);
        connections.authenticated(&modest.life, Credential::of("modest"));
        assert!(
            is_over(&greedy[0].1.life).await,
            "the quietest of the one with most"
        );
        assert!(!is_over(&greedy[1].1.life).await);
        assert!(!is_over(&modest.life).await);
        // The same connection again is nothing new.
        connections.authenticated(&modest.life, Credential::of("modest"));
        assert!(!is_over(&greedy[1].1.life).await);
    }
}
