//! Running totals: what an aggregate holds, and what one more call would make of it.

use std::collections::BTreeSet;

use crate::decimal::Decimal;
use crate::session::{Aggregate, Metric};
use crate::value::Value;

/// What an aggregate holds.
#[derive(Debug, Clone)]
pub(crate) enum Total {
    /// None: the sum has too many digits to be exact, and passes every bound.
    Sum(Option<Decimal>),
    Count(u64),
    Distinct(BTreeSet<Vec<u8>>),
    Max(Option<Decimal>),
}

/// What a call adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Addend {
    Number(Decimal),
    One,
    Key(Vec<u8>),
}

impl Addend {
    /// Returns what a call adds to an aggregate, or nothing when the value is not there or cannot be added.
    pub(crate) fn of(aggregate: &Aggregate, arguments: &Value) -> Option<Self> {
        let found = || aggregate.path.as_ref()?.find(arguments);
        match aggregate.metric {
            Metric::Count => Some(Addend::One),
            Metric::Sum | Metric::Max => found()?.as_decimal().map(Addend::Number),
            Metric::CountDistinct => found()?.key().map(Addend::Key),
        }
    }
}

impl Total {
    pub(crate) fn new(metric: Metric) -> Self {
        match metric {
            Metric::Sum => Total::Sum(Some(Decimal::ZERO)),
            Metric::Count => Total::Count(0),
            Metric::CountDistinct => Total::Distinct(BTreeSet::new()),
            Metric::Max => Total::Max(None),
        }
    }

    pub(crate) fn add(&mut self, addend: &Addend) {
        match (self, addend) {
            (Total::Sum(sum), Addend::Number(number)) => {
                *sum = sum.and_then(|sum| sum.checked_add(*number));
            }
            (Total::Count(count), Addend::One) => *count = count.saturating_add(1),
            (Total::Distinct(keys), Addend::Key(key)) => {
                keys.insert(key.clone());
            }
            (Total::Max(max), Addend::Number(number)) => *max = (*max).max(Some(*number)),
            (
                Total::Sum(_) | Total::Count(_) | Total::Distinct(_) | Total::Max(_),
                Addend::Number(_) | Addend::One | Addend::Key(_),
            ) => {}
        }
    }

    /// Says whether the total would stay within a bound with these addends. Costs what the addends cost.
    pub(crate) fn stays_within<'a>(
        &self,
        bound: Decimal,
        addends: impl Iterator<Item = &'a Addend>,
    ) -> bool {
        let count = |len: usize| Decimal::from(u64::try_from(len).unwrap_or(u64::MAX));
        match self {
            Total::Sum(sum) => {
                let sum = addends.fold(*sum, |sum, addend| match addend {
                    Addend::Number(number) => sum.and_then(|sum| sum.checked_add(*number)),
                    Addend::One | Addend::Key(_) => None,
                });
                sum.is_some_and(|sum| sum <= bound)
            }
            Total::Count(calls) => {
                let more = u64::try_from(addends.count()).unwrap_or(u64::MAX);
                Decimal::from(calls.saturating_add(more)) <= bound
            }
            Total::Distinct(keys) => {
                let new = addends.filter_map(|addend| match addend {
                    Addend::Key(key) if !keys.contains(key) => Some(key),
                    Addend::Key(_) | Addend::Number(_) | Addend::One => None,
                });
                let new: BTreeSet<&Vec<u8>> = new.collect();
                count(keys.len() + new.len()) <= bound
            }
            Total::Max(max) => {
                let numbers = addends.map(|addend| match addend {
                    Addend::Number(number) => Some(*number),
                    Addend::One | Addend::Key(_) => None,
                });
                let max = numbers.fold(*max, Ord::max);
                max.is_none_or(|max| max <= bound)
            }
        }
    }
}
