//! What callers share: workers, streams, open Tasks, bytes in flight.
//!
//! One caller alone may have everything. Above that a quarter more is kept for callers that hold less than their share, so
//! that whoever comes first never keeps the others out.

use std::collections::BTreeMap;

use crate::refused::Refused;

/// How much each caller holds of something that is bounded.
#[derive(Debug)]
pub struct Shares<K> {
    max: usize,
    total: usize,
    held: BTreeMap<K, usize>,
}

/// Why a caller gets no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoShare {
    /// It has its share or more: it has to give something back first.
    Own {
        /// How much it holds.
        held: usize,
    },
    /// It has less than its share, and everything is taken all the same: later is better.
    All,
}

impl NoShare {
    /// Says so of a limit.
    pub(crate) fn of(self, limit: &'static str, max: usize) -> Refused {
        match self {
            NoShare::Own { held } => Refused::OverShare { limit, held, max },
            NoShare::All => Refused::Busy { what: limit },
        }
    }
}

impl<K: Ord + Clone> Shares<K> {
    /// Shares out this much.
    pub fn new(max: usize) -> Self {
        Self {
            max,
            total: 0,
            held: BTreeMap::new(),
        }
    }

    /// Returns how much is shared out.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Returns how much all hold.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Returns how much one caller holds.
    pub fn amount_of(&self, key: &K) -> usize {
        self.held.get(key).copied().unwrap_or(0)
    }

    /// Says whether a caller may have more.
    ///
    /// # Errors
    /// It may not.
    pub fn may_take(&self, key: &K, amount: usize) -> Result<(), NoShare> {
        let callers = self.held.len() + usize::from(!self.held.contains_key(key));
        let held = self.amount_of(key) as u64;
        may_take(
            self.max as u64,
            self.total as u64,
            (held, callers),
            amount as u64,
        )
    }

    /// Gives a caller more, if it may have it.
    ///
    /// # Errors
    /// It may not.
    pub fn take(&mut self, key: &K, amount: usize) -> Result<(), NoShare> {
        self.may_take(key, amount)?;
        self.add(key, amount);
        Ok(())
    }

    /// Notes that a caller holds more, whatever the limit says.
    pub fn add(&mut self, key: &K, amount: usize) {
        self.total += amount;
        *self.held.entry(key.clone()).or_default() += amount;
    }

    /// Takes something back.
    pub fn release(&mut self, key: &K, amount: usize) {
        self.total = self.total.saturating_sub(amount);
        if let Some(held) = self.held.get_mut(key) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                self.held.remove(key);
            }
        }
    }
}

/// Says whether one of so many callers may have more, when it holds this much and all of them together that much.
pub(crate) fn may_take(
    max: u64,
    total: u64,
    (held, callers): (u64, usize),
    amount: u64,
) -> Result<(), NoShare> {
    let total = total.saturating_add(amount);
    if total <= max {
        return Ok(());
    }
    let share = (max / (callers as u64).max(1)).max(1);
    if callers == 1 || held >= share {
        let held = usize::try_from(held).unwrap_or(usize::MAX);
        return Err(NoShare::Own { held });
    }
    match total <= max.saturating_add(max.div_ceil(4)) {
        true => Ok(()),
        false => Err(NoShare::All),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u25_a_lone_caller_has_everything_and_the_last_quarter_is_for_those_below_their_share() {
        let mut shares = Shares::new(8);
        for _ in 0..8 {
            shares.take(&"greedy", 1).unwrap();
        }
        assert_eq!(shares.take(&"greedy", 1), Err(NoShare::Own { held: 8 }));
        shares.take(&"a", 1).unwrap();
        assert_eq!(shares.take(&"greedy", 1), Err(NoShare::Own { held: 8 }));
        shares.take(&"b", 1).unwrap();
        assert_eq!(shares.take(&"c", 1), Err(NoShare::All), "8 and a quarter");
        shares.release(&"greedy", 1);
        shares.take(&"c", 1).unwrap();
        assert_eq!((shares.total(), shares.amount_of(&"greedy")), (10, 7));
        for _ in 0..7 {
            shares.release(&"greedy", 1);
        }
        shares.take(&"greedy", 1).unwrap();
        assert_eq!(shares.total(), 4);
    }
}
