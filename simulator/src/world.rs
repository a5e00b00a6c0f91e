//! Time, ids, spawning and the outside, all from the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use domain::{Event, Timestamp};
use engine::Offline;
use engine::port::{
    BoxFuture, Clock, Deltas, Ids, MemoryStore, Performer, ReadEvents, Scope, Spawn, Store,
};
use runs::workflow::{Effect, EffectKind, EffectOutcome};

use crate::executor::Inbox;

/// The generator, shared by everything that chooses.
#[derive(Debug, Clone)]
pub(crate) struct Dice(Arc<Mutex<fastrand::Rng>>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, fastrand::Rng> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&self, n: u32) -> bool {
        self.lock().u32(..n) == 0
    }

    pub(crate) fn below(&self, n: u32) -> u32 {
        self.lock().u32(..n)
    }
}

/// Virtual time. The time sleepers see only grows; the time events see may step back.
#[derive(Debug)]
pub(crate) struct SimClock {
    elapsed_us: AtomicU64,
    skew_us: AtomicI64,
    sleepers: Mutex<BTreeMap<(u64, u64), Waker>>,
    next: AtomicU64,
}

impl SimClock {
    const EPOCH_US: i64 = 1_767_225_600_000_000;

    pub(crate) fn new() -> Self {
        Self {
            elapsed_us: AtomicU64::new(0),
            skew_us: AtomicI64::new(0),
            sleepers: Mutex::default(),
            next: AtomicU64::new(0),
        }
    }

    /// Moves the wall clock by a while, ahead or back.
    pub(crate) fn jump(&self, micros: i64) {
        self.skew_us.fetch_add(micros, Ordering::Relaxed);
    }

    /// Moves to the next moment somebody waits for. False when nobody does.
    pub(crate) fn advance(&self) -> bool {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(((deadline, _), waker)) = sleepers.pop_first() else {
            return false;
        };
        self.elapsed_us.fetch_max(deadline, Ordering::Relaxed);
        waker.wake();
        true
    }

    /// Forgets everybody who waits: their engine is gone.
    pub(crate) fn forget(&self) {
        self.sleepers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

#[derive(Debug, Clone)]
pub(crate) struct SharedClock(pub(crate) Arc<SimClock>);

impl Clock for SharedClock {
    fn now(&self) -> Timestamp {
        let elapsed = self.0.elapsed_us.fetch_add(1, Ordering::Relaxed);
        let skew = self.0.skew_us.load(Ordering::Relaxed);
        let signed = |micros: u64| i64::try_from(micros).unwrap_or(i64::MAX);
        Timestamp::from_micros(SimClock::EPOCH_US + signed(elapsed) + skew)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let deadline = self
            .0
            .elapsed_us
            .load(Ordering::Relaxed)
            .saturating_add(micros);
        let key = (deadline, self.0.next.fetch_add(1, Ordering::Relaxed));
        Box::pin(Sleep {
            clock: Arc::clone(&self.0),
            key,
        })
    }
}

struct Sleep {
    clock: Arc<SimClock>,
    key: (u64, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.clock.elapsed_us.load(Ordering::Relaxed) >= self.key.0 {
            return Poll::Ready(());
        }
        let mut sleepers = self
            .clock
            .sleepers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        sleepers.insert(self.key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clock
            .sleepers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.key);
    }
}

/// Ids in the order they are asked for.
#[derive(Debug, Default, Clone)]
pub(crate) struct SimIds(Arc<AtomicU64>);

impl Ids for SimIds {
    fn body(&self) -> String {
        format!("{:010}", self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn salt(&self) -> String {
        self.body()
    }
}

#[derive(Debug)]
pub(crate) struct SimSpawn(pub(crate) Arc<Inbox>);

impl Spawn for SimSpawn {
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.0.push(future);
    }
}

/// Yields to the executor a number of times, so that other tasks come in between.
pub(crate) async fn dawdle(times: u32) {
    for _ in 0..times {
        let mut yielded = false;
        std::future::poll_fn(|context| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// The outside: late, failing, and watchful. Checks that the intent of what it is asked to do is durable.
#[derive(Debug, Clone)]
pub(crate) struct SimPerformer {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) dice: Dice,
    pub(crate) clock: SharedClock,
    /// Set when an effect was performed whose intent was not in the log.
    pub(crate) too_early: Arc<AtomicBool>,
    /// What must not be repeated and was performed, over all lives; set beside it when something was performed again.
    pub(crate) done_once: Arc<(Mutex<BTreeSet<String>>, AtomicBool)>,
}

impl Performer for SimPerformer {
    fn perform(&self, effect: Effect, deltas: Deltas) -> BoxFuture<'static, EffectOutcome> {
        let this = self.clone();
        Box::pin(async move {
            if !this.is_intended(&effect).await {
                this.too_early.store(true, Ordering::Relaxed);
            }
            if effect.kind == EffectKind::LocalTool {
                let name = format!("{} {}", effect.key, effect.request_digest());
                let (done, twice) = &*this.done_once;
                if !done
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(name)
                {
                    twice.store(true, Ordering::Relaxed);
                }
                this.clock
                    .sleep(Duration::from_millis(u64::from(this.dice.below(2_000))))
                    .await;
                return EffectOutcome::ok(effect.request);
            }
            let late = this.dice.below(6);
            dawdle(late).await;
            if this.dice.one_in(4) {
                this.clock
                    .sleep(Duration::from_millis(u64::from(this.dice.below(400))))
                    .await;
            }
            if effect.kind == EffectKind::Model && this.dice.one_in(12) {
                return EffectOutcome::error("provider_error", "the provider answered 500");
            }
            Offline.perform(effect, deltas).await
        })
    }
}

impl SimPerformer {
    async fn is_intended(&self, effect: &Effect) -> bool {
        let query = ReadEvents {
            scope: Scope::All,
            after: domain::Position::START,
            limit: usize::MAX,
        };
        let Ok(events) = self.store.events(query).await else {
            return false;
        };
        let digest = effect.request_digest().to_string();
        events
            .iter()
            // Most events are others: looking for the digest is cheaper than reading each.
            .filter(|stored| str::from_utf8(&stored.bytes).is_ok_and(|text| text.contains(&digest)))
            .filter_map(|stored| Event::parse(&stored.bytes).ok())
            .any(|event| {
                &*event.kind == "vendor.effect_requested"
                    && event
                        .payload
                        .get("effect_key")
                        .is_some_and(|key| *key == effect.key)
                    && event
                        .payload
                        .get("request_sha256")
                        .is_some_and(|recorded| *recorded == digest)
            })
    }
}
