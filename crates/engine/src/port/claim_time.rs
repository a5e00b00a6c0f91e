//! The time that claims live by: it goes on as the clock does, and does not jump with it.

/// The longest step that is taken for the passing of time. Longer ones are jumps of the clock, or a pause without
/// commits; either way no claim is forgotten early, and a claim may always be kept longer.
const STEP_MAX_MICROS: i64 = 60_000_000;

/// A count of microseconds that commits drive. It never goes back, and a clock that jumps moves it by a minute at most:
/// what was claimed before a jump, during it and after it is kept for its whole window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClaimTime {
    time: Option<i64>,
    clock: Option<i64>,
}

impl ClaimTime {
    /// Goes on from a time that was kept; none in a new log.
    pub fn resume(time: Option<i64>) -> Self {
        Self { time, clock: None }
    }

    /// Returns the time; none before the first commit.
    pub fn time(self) -> Option<i64> {
        self.time
    }

    /// Moves to a commit, given what the clock says. Returns the time.
    pub fn advance(&mut self, clock: i64) -> i64 {
        let before = self.clock.unwrap_or(clock);
        let step = clock.saturating_sub(before);
        let time = self.time.unwrap_or(clock);
        let time = time.saturating_add(step.clamp(0, STEP_MAX_MICROS));
        // A clock that trembles does not age anything: what it goes back it must come forward again.
        let trembles = (-STEP_MAX_MICROS..0).contains(&step);
        *self = Self {
            time: Some(time),
            clock: Some(if trembles { before } else { clock }),
        };
        time
    }

    /// Goes on from a time that another process wrote down, and what the clock said then, where that is later.
    pub fn catch_up(&mut self, time: Option<i64>, clock: Option<i64>) {
        if time > self.time {
            *self = Self { time, clock };
        }
    }

    /// Returns when a claim ends that a commit at the given clock lets end at another.
    pub fn end(self, clock: i64, end: i64) -> i64 {
        let window = end.saturating_sub(clock).max(0);
        self.time.unwrap_or(clock).saturating_add(window)
    }
}
