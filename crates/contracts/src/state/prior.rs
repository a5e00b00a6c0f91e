//! Earlier calls that a precondition looks for: the latest of each set of shared values, and whether it satisfies.
//!
//! What a precondition asks of an output is fixed when contracts compile, so one bit per latest call answers every
//! later question. The number of bits that are set answers narrowing.

use std::collections::BTreeMap;

use crate::contract::{Precondition, Source};
use crate::invariant::Truth;
use crate::pattern::Steps;
use crate::value::Value;

/// The calls that one precondition may find.
#[derive(Debug, Clone, Default)]
pub(crate) struct PriorCalls {
    latest: BTreeMap<Vec<u8>, Latest>,
    satisfying: usize,
}

#[derive(Debug, Clone, Copy)]
struct Latest {
    commit: u64,
    satisfies: bool,
}

impl PriorCalls {
    /// Says whether the call that these arguments lead to satisfies the precondition.
    pub(crate) fn is_met(&self, precondition: &Precondition, arguments: &Value) -> bool {
        let pairs = precondition.same_as_prior.iter();
        let key = key(pairs.map(|pair| pair.argument.find(arguments)));
        let latest = key.and_then(|key| self.latest.get(&key));
        latest.is_some_and(|latest| latest.satisfies)
    }

    /// Says whether some arguments could satisfy the precondition.
    pub(crate) fn can_be_met(&self) -> bool {
        self.satisfying > 0
    }

    /// Takes in a committed call, or its output; returns true when that changed an answer.
    pub(crate) fn record(
        &mut self,
        precondition: &Precondition,
        commit: u64,
        arguments: &Value,
        output: Option<&Value>,
    ) -> bool {
        let pairs = precondition.same_as_prior.iter();
        let values = pairs.map(|pair| match pair.prior_from {
            Source::Arguments => pair.prior.find(arguments),
            Source::Output => output.and_then(|output| pair.prior.find(output)),
        });
        let Some(key) = key(values) else {
            return false;
        };
        let holds = |output: &Value| {
            let conditions = precondition.with_output.iter();
            Truth::all(conditions.map(|condition| condition.test(output, &Steps::unbounded())))
                == Truth::True
        };
        let satisfies = precondition.with_output.is_empty() || output.is_some_and(holds);
        let before = self.latest.get(&key).copied();
        if before.is_some_and(|before| before.commit > commit) {
            return false;
        }
        self.latest.insert(key, Latest { commit, satisfies });
        let satisfied = before.is_some_and(|before| before.satisfies);
        self.satisfying = self.satisfying + usize::from(satisfies) - usize::from(satisfied);
        satisfied != satisfies || before.is_none()
    }
}

/// Joins values into one key; nothing when one is missing or equals nothing.
fn key<'a>(values: impl Iterator<Item = Option<&'a Value>>) -> Option<Vec<u8>> {
    let mut key = Vec::new();
    for value in values {
        if !value?.push_key(&mut key) {
            return None;
        }
    }
    Some(key)
}
