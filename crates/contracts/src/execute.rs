//! Execution checks: what an executor is actually given is what was allowed, and still allowed.
//!
//! A refused execution leaves the call pending; the executor does not run.

use std::fmt;

use domain::Timestamp;
use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::event::{Call, CallKey};
use crate::invariant::Operator;
use crate::json;
use crate::judge::Failure;
use crate::pattern::TOO_COSTLY;
use crate::reason::{BlockReason, words};
use crate::rules::Rules;
use crate::state::{Lifecycle, PendingStatus, State};
use crate::value::Value;

words! {
    /// The checks before an executor runs.
    ExecutionCheck {
        /// Not killed.
        X1 = "X1",
        /// Allowed, not executed yet, same arguments.
        X2 = "X2",
        /// Execution constraints.
        X3 = "X3",
    }
}

/// Why an executor does not run.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecutionRefusal {
    /// X1.
    Killed {
        /// Why the session was killed.
        cause: String,
    },
    /// The session was ended.
    Inactive,
    /// X2: no allowed call with these arguments waits for its execution.
    NoPendingCall,
    /// X3: the constraints that do not hold.
    Constraints {
        /// The call, which stays pending.
        call: CallKey,
        /// What does not hold.
        failures: Vec<Failure>,
    },
}

impl ExecutionRefusal {
    /// Returns the check that refused; none for an ended session.
    pub fn check(&self) -> Option<ExecutionCheck> {
        match self {
            ExecutionRefusal::Killed { .. } => Some(ExecutionCheck::X1),
            ExecutionRefusal::Inactive => None,
            ExecutionRefusal::NoPendingCall => Some(ExecutionCheck::X2),
            ExecutionRefusal::Constraints { .. } => Some(ExecutionCheck::X3),
        }
    }

    /// Returns the block reason.
    pub fn reason(&self) -> Option<BlockReason> {
        match self {
            ExecutionRefusal::Killed { .. } => Some(BlockReason::Killed),
            ExecutionRefusal::Inactive => None,
            ExecutionRefusal::NoPendingCall | ExecutionRefusal::Constraints { .. } => {
                Some(BlockReason::ExecutionConstraintViolated)
            }
        }
    }

    /// Returns the detail that records show.
    pub fn detail(&self) -> Option<String> {
        match self {
            ExecutionRefusal::Killed { cause } => Some(cause.clone()),
            ExecutionRefusal::Inactive => None,
            ExecutionRefusal::NoPendingCall => Some("no_pending_call".to_owned()),
            ExecutionRefusal::Constraints { failures, .. } => {
                failures.first().and_then(|failure| failure.path.clone())
            }
        }
    }
}

/// Checks an execution and returns the call that it is.
///
/// # Errors
/// The first check that fails.
pub fn check_execution(
    rules: &Rules,
    state: &State,
    tool: &str,
    call_id: Option<&str>,
    arguments: &str,
    now: Timestamp,
) -> Result<CallKey, ExecutionRefusal> {
    match state.lifecycle() {
        Lifecycle::Open => {}
        Lifecycle::Killed { cause } => {
            return Err(ExecutionRefusal::Killed {
                cause: cause.clone(),
            });
        }
        Lifecycle::Restored => return Err(ExecutionRefusal::Inactive),
    }
    let parsed = json::read_arguments(arguments);
    let arguments = parsed.map_err(|_| ExecutionRefusal::NoPendingCall)?;
    let digest = canon::sha256(canonical::text(&arguments).as_bytes());
    let is_it = |key: &CallKey, call: &Call| {
        let same = call.tool == tool && call.arguments_digest == digest;
        same && call_id.is_none_or(|id| key.id == id)
    };
    let pending = state.pending.iter().filter(|(key, pending)| {
        pending.status == PendingStatus::Released && is_it(key, &pending.call)
    });
    let pending = pending.map(|(key, pending)| (pending.order, key));
    let counted = state
        .counted
        .iter()
        .filter(|(key, counted)| is_it(key, &counted.call) && !counted.is_late(now));
    let found = pending.chain(counted.map(|(key, counted)| (counted.order, key)));
    // Ids may come again in later steps: a named call is the latest, an unnamed one the oldest.
    let found = match call_id {
        Some(_) => found.max_by_key(|(order, _)| *order),
        None => found.min_by_key(|(order, _)| *order),
    };
    let Some((_, key)) = found else {
        return Err(ExecutionRefusal::NoPendingCall);
    };
    let failures = constraints(rules, state, tool, &arguments);
    if failures.is_empty() {
        return Ok(key.clone());
    }
    Err(ExecutionRefusal::Constraints {
        call: key.clone(),
        failures,
    })
}

fn constraints(rules: &Rules, state: &State, tool: &str, arguments: &Value) -> Vec<Failure> {
    let contract = rules.compiled().contract(tool);
    let list = contract.map(|contract| contract.execution_constraints.as_slice());
    let new = || Failure::new(None, BlockReason::ExecutionConstraintViolated);
    let mut failures = Vec::new();
    let steps = rules.options().steps();
    for invariant in list.unwrap_or_default() {
        for (operator, found) in invariant.failures(arguments, &steps) {
            let mut failure = new().at(invariant.path(), found).under(operator);
            if operator.is_pattern() && steps.are_spent() {
                failure = failure.with_detail(TOO_COSTLY);
            }
            failures.push(failure);
        }
        if let Some((slot, found)) = invariant.slot(arguments) {
            let bound = state.slot(slot);
            let equal = bound
                .zip(found)
                .is_some_and(|(bound, found)| found.equals(bound));
            if !equal {
                let operator = Operator::Ref(slot.to_owned());
                failures.push(new().at(invariant.path(), found).under(&operator));
            }
        }
    }
    failures
}
