//! Counts that an operator watches. Plain atomics: the surface gives them names and a format.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of one engine.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Turns taken, those that changed nothing included.
    pub turns: AtomicU64,
    /// Durable commits of turns: one sync each, shared by all commands of the turn.
    pub commits: AtomicU64,
    /// Commands answered, refusals included.
    pub commands: AtomicU64,
    /// Commands refused.
    pub refusals: AtomicU64,
    /// Turns repeated after a conflict.
    pub conflicts: AtomicU64,
    /// Events appended.
    pub events: AtomicU64,
    /// Tasks waiting for a worker.
    pub queued: AtomicU64,
    /// Tasks being worked on.
    pub running: AtomicU64,
    /// Streams open.
    pub streams: AtomicU64,
    /// Time from a turn's first read to its durable commit.
    pub turn_seconds: Histogram,
}

/// A histogram over fixed bounds.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; 12],
    sum_us: AtomicU64,
    count: AtomicU64,
}

impl Histogram {
    /// Upper bounds of the buckets in microseconds; the last bucket has none.
    pub const BOUNDS_US: [u64; 11] = [
        100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 500_000, 2_500_000,
    ];

    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let index = Self::BOUNDS_US
            .iter()
            .position(|bound| us <= *bound)
            .unwrap_or(Self::BOUNDS_US.len());
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_us.fetch_add(us, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns cumulative counts per bound, the sum in seconds, and the total count.
    pub fn snapshot(&self) -> (Vec<(f64, u64)>, f64, u64) {
        let mut total = 0;
        let buckets = Self::BOUNDS_US
            .iter()
            .zip(&self.buckets)
            .map(|(bound, bucket)| {
                total += bucket.load(Ordering::Relaxed);
                (*bound as f64 / 1e6, total)
            })
            .collect();
        (
            buckets,
            self.sum_us.load(Ordering::Relaxed) as f64 / 1e6,
            self.count.load(Ordering::Relaxed),
        )
    }
}
