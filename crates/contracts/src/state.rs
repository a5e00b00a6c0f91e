//! The state of a governed session: a fold of its events.
//!
//! Preconditions, slots, totals and envelopes are folded values, so a verdict costs the same after ten steps and after
//! a hundred thousand. Blocked, stripped and retried material never gets in here.

mod apply;
mod commit;
mod prior;
mod recent;
mod snapshot;
mod total;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use canon::Digest;
use domain::Timestamp;

use crate::decimal::Decimal;
use crate::event::{Call, CallKey};
use crate::narrow::Narrowing;
use crate::value::Value;

pub use apply::ImpossibleEvent;
pub use snapshot::{CompletedStep, Costs, Snapshot};

pub(crate) use apply::micros;
pub(crate) use prior::PriorCalls;
pub(crate) use recent::Recent;
pub(crate) use total::{Addend, Total};

/// Everything that verdicts of a session depend on, besides its rules.
#[derive(Debug, Clone)]
pub struct State {
    pub(crate) session_id: String,
    pub(crate) agent: Option<String>,
    pub(crate) started_at: Timestamp,
    /// The latest moment that an event named: time never runs backwards in here.
    pub(crate) clock: Timestamp,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) state_version: u64,
    pub(crate) control_revision: u64,
    pub(crate) phase: Option<String>,
    /// Commits of calls so far: the number of a commit says which of two is the later one.
    pub(crate) commits: u64,
    pub(crate) tool_calls: u64,
    pub(crate) tool_call_counts: BTreeMap<String, u64>,
    pub(crate) total_cost: Money,
    pub(crate) actual_cost: Money,
    pub(crate) usage_unknown: bool,
    pub(crate) forbidden: BTreeSet<String>,
    /// The latest known output of each tool, only the fields that some rule looks at.
    pub(crate) facts: BTreeMap<String, BTreeMap<String, Value>>,
    /// Earlier calls, by precondition.
    pub(crate) prior: Vec<PriorCalls>,
    pub(crate) slots: BTreeMap<String, Slot>,
    pub(crate) totals: Vec<Total>,
    pub(crate) envelopes: Vec<Option<Decimal>>,
    pub(crate) labels: BTreeSet<String>,
    pub(crate) filter: Option<BTreeSet<String>>,
    /// Released calls whose execution was not reported yet, or whose outcome is unknown.
    pub(crate) pending: BTreeMap<CallKey, Pending>,
    /// Calls that counted when they were released, because their contract asks for no report, and were not begun since.
    pub(crate) counted: BTreeMap<CallKey, CountedCall>,
    /// Those that were begun.
    pub(crate) begun: BTreeMap<CallKey, Call>,
    /// Responses that wait for people.
    pub(crate) waiting: BTreeMap<String, WaitingResponse>,
    /// The latest call of each id, for outputs.
    pub(crate) calls: BTreeMap<String, CallRecord>,
    pub(crate) recent: Recent,
    /// Release times of the calls that the rate limit counts.
    pub(crate) releases: VecDeque<(Timestamp, CallKey)>,
    pub(crate) attempts: u64,
    pub(crate) checkpoints: u64,
    pub(crate) unguarded: u64,
    pub(crate) blocks_in_a_row: u64,
    pub(crate) blocks: u64,
    pub(crate) errors_in_a_row: u64,
    pub(crate) errors: u64,
    pub(crate) shadow_evaluations: u64,
    pub(crate) bypassed: bool,
    pub(crate) last_narrowing: Option<Narrowing>,
}

/// Whether a session still works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lifecycle {
    /// It does.
    Open,
    /// It was stopped for good.
    Killed {
        /// Why.
        cause: String,
    },
    /// It was ended in order.
    Restored,
}

/// A sum of money, or the knowledge that it cannot be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Money {
    Exact(Decimal),
    /// Some attempt had no known cost: at least this much.
    AtLeast(Decimal),
}

impl Money {
    pub(crate) fn known(self) -> Decimal {
        match self {
            Money::Exact(sum) | Money::AtLeast(sum) => sum,
        }
    }

    pub(crate) fn plus(self, cost: Option<Decimal>) -> Self {
        let sum = cost.and_then(|cost| self.known().checked_add(cost));
        match (self, sum) {
            (Money::Exact(_), Some(sum)) => Money::Exact(sum),
            (Money::AtLeast(_), Some(sum)) => Money::AtLeast(sum),
            (Money::Exact(sum) | Money::AtLeast(sum), None) => Money::AtLeast(sum),
        }
    }
}

/// A named value that calls must agree on.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    /// None: cleared, because its latest source was missing or is not known yet.
    pub(crate) value: Option<Value>,
    /// The commit that set it.
    pub(crate) set_by: u64,
}

/// Where a call stands in the session: step, then place in its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct CallOrder {
    pub(crate) step: u64,
    pub(crate) index: usize,
}

/// A released call that is not settled.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    pub(crate) call: Call,
    pub(crate) arguments: Option<Value>,
    pub(crate) order: CallOrder,
    pub(crate) since: Timestamp,
    pub(crate) status: PendingStatus,
    /// The phase that it was allowed to move to.
    pub(crate) moves_to: Option<String>,
}

/// How far a pending call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PendingStatus {
    Released,
    Started,
    Unknown,
}

/// A call that counted when it was released.
#[derive(Debug, Clone)]
pub(crate) struct CountedCall {
    pub(crate) call: Call,
    pub(crate) order: CallOrder,
    pub(crate) since: Timestamp,
}

/// How long a released call waits for its execution.
const EXPIRY_MICROS: i64 = 600_000_000;

impl CountedCall {
    /// Says whether it was not begun in time: then it is not begun any more.
    pub(crate) fn is_late(&self, now: Timestamp) -> bool {
        now.as_micros().saturating_sub(self.since.as_micros()) >= EXPIRY_MICROS
    }
}

/// A response that waits for people.
#[derive(Debug, Clone)]
pub(crate) struct WaitingResponse {
    pub(crate) since: Timestamp,
    pub(crate) asked: u64,
    pub(crate) calls: Vec<(Call, Option<Value>, Option<String>)>,
}

/// What is kept of a released call until its output is known.
#[derive(Debug, Clone)]
pub(crate) struct CallRecord {
    pub(crate) tool: String,
    pub(crate) order: CallOrder,
    pub(crate) progress: Progress,
}

/// What became of a call whose output may still come.
#[derive(Debug, Clone)]
pub(crate) enum Progress {
    /// Not committed: an output for it is not believed.
    Pending,
    /// Committed; the arguments are kept until the output is known.
    Committed {
        arguments: Option<Value>,
        commit: u64,
    },
    /// Committed, with this output.
    Known { output: Digest },
    /// Failed or expired.
    Withdrawn,
}

impl State {
    /// Says whether the session still works.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Returns the number of commits.
    pub fn state_version(&self) -> u64 {
        self.state_version
    }

    /// Returns the number of control actions.
    pub fn control_revision(&self) -> u64 {
        self.control_revision
    }

    /// Returns the current phase; none without a phase machine.
    pub fn phase(&self) -> Option<&str> {
        self.phase.as_deref()
    }

    /// Returns the labels, sorted.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(String::as_str)
    }

    /// Returns the number of attempts made.
    pub fn attempts(&self) -> u64 {
        self.attempts
    }

    /// Returns the number of committed steps.
    pub fn steps(&self) -> u64 {
        self.recent.steps()
    }

    /// Returns the calls that are not settled, oldest first.
    pub fn unsettled(&self) -> impl Iterator<Item = (&CallKey, &Call)> {
        self.pending
            .iter()
            .map(|(key, pending)| (key, &pending.call))
    }

    /// Returns the released calls that may be executed or are: those that are not settled, and those that counted at once.
    pub fn released(&self) -> impl Iterator<Item = (&CallKey, &Call)> {
        let counted = self.counted.iter();
        let counted = counted.map(|(key, counted)| (key, &counted.call));
        self.unsettled().chain(counted).chain(self.begun.iter())
    }

    /// Says whether a call counted when it was released.
    pub fn has_counted(&self, call: &CallKey) -> bool {
        self.counted.contains_key(call) || self.begun.contains_key(call)
    }

    /// Returns how many calls have an unknown outcome.
    pub fn unknown_outcomes(&self) -> usize {
        let unknown = |pending: &&Pending| pending.status == PendingStatus::Unknown;
        self.pending.values().filter(unknown).count()
    }

    /// Returns the calls that were not started for 600 seconds and therefore expire.
    pub fn expired(&self, now: Timestamp) -> Vec<CallKey> {
        let now = now.max(self.clock);
        let late = |pending: &Pending| {
            let age = now.as_micros().saturating_sub(pending.since.as_micros());
            pending.status == PendingStatus::Released && age >= EXPIRY_MICROS
        };
        let late = self.pending.iter().filter(|(_, pending)| late(pending));
        late.map(|(key, _)| key.clone()).collect()
    }

    /// Returns the value of a slot, if it is set.
    pub(crate) fn slot(&self, name: &str) -> Option<&Value> {
        self.slots.get(name)?.value.as_ref()
    }

    /// Returns every call that takes room without being committed: pending, unknown, and waiting for people, except
    /// those of one response.
    pub(crate) fn uncommitted(
        &self,
        except: Option<&str>,
    ) -> impl Iterator<Item = (&Call, Option<&Value>, Option<&str>, Timestamp)> {
        let pending = self.pending.values().map(|pending| {
            let moves_to = pending.moves_to.as_deref();
            (
                &pending.call,
                pending.arguments.as_ref(),
                moves_to,
                pending.since,
            )
        });
        let others = self
            .waiting
            .iter()
            .filter(move |(name, _)| Some(name.as_str()) != except);
        let waiting = others.flat_map(|(_, waiting)| {
            let calls = waiting.calls.iter();
            calls.map(|(call, arguments, moves_to)| {
                (call, arguments.as_ref(), moves_to.as_deref(), waiting.since)
            })
        });
        pending.chain(waiting)
    }
}
