//! The logical clock of whoever speaks to a field: never behind an answer that it got.

use std::sync::atomic::{AtomicU64, Ordering};

use canon::Value;

/// A clock that moves by answers.
#[derive(Debug)]
pub(super) struct Clock(AtomicU64);

impl Clock {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns the epoch that the next message carries.
    pub(super) fn epoch(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Moves to at least the epoch of an answer.
    pub(super) fn hear(&self, answer: &Value) {
        if let Some(epoch) = answer.get("epoch").and_then(Value::as_u64) {
            self.0.fetch_max(epoch, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[test]
fn ak_clk_10_whoever_speaks_is_never_behind_what_it_heard() {
    let clock = Clock::new();
    assert_eq!(clock.epoch(), 0);
    for (answer, epoch) in [
        (serde_json::json!({"epoch": 7}), 7),
        (serde_json::json!({"epoch": 3}), 7),
        (serde_json::json!({"status": "ok"}), 7),
        (serde_json::json!({"epoch": 12}), 12),
    ] {
        clock.hear(&answer);
        assert_eq!(clock.epoch(), epoch);
    }
}
