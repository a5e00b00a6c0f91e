//! Requests per actor: a bucket that fills with time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::config::RateLimit;
use crate::failure::Failure;

/// Actors to keep a bucket for; a full bucket is forgotten first.
const BUCKETS_MAX: usize = 10_000;

/// One bucket per actor.
#[derive(Debug)]
pub(crate) struct Buckets {
    limit: RateLimit,
    left: Mutex<BTreeMap<String, (Instant, f64)>>,
}

impl Buckets {
    pub(crate) fn new(limit: RateLimit) -> Self {
        Self {
            limit,
            left: Mutex::default(),
        }
    }

    /// Takes one request from an actor's bucket.
    pub(crate) fn take(&self, actor: &str, now: Instant) -> Result<(), Failure> {
        let burst = f64::from(self.limit.burst.max(1));
        let per_second = f64::from(self.limit.per_second.max(1));
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let filled = |since: Instant, level: f64| {
            (level + now.duration_since(since).as_secs_f64() * per_second).min(burst)
        };
        if left.len() >= BUCKETS_MAX {
            left.retain(|_, (since, level)| filled(*since, *level) < burst);
        }
        let (since, level) = left.get(actor).copied().unwrap_or((now, burst));
        let level = filled(since, level);
        if level < 1.0 {
            let seconds = ((1.0 - level) / per_second).ceil().max(1.0);
            return Err(Failure::rate_limited(seconds as u64));
        }
        left.insert(actor.to_owned(), (now, level - 1.0));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ap_err_05_a_bucket_empties_and_fills_again() {
        let buckets = Buckets::new(RateLimit {
            per_second: 2,
            burst: 3,
        });
        let start = Instant::now();
        for _ in 0..3 {
            assert!(buckets.take("ann", start).is_ok());
        }
        let refused = buckets.take("ann", start).unwrap_err();
        assert_eq!(refused.retry_after_s, Some(1));
        assert!(buckets.take("bob", start).is_ok());
        assert!(
            buckets
                .take("ann", start + Duration::from_millis(500))
                .is_ok()
        );
        assert!(
            buckets
                .take("ann", start + Duration::from_millis(500))
                .is_err()
        );
    }
}
