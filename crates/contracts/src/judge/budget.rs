//! Pass 3: prohibitions and budgets (V15 to V23), as calls of a response use them up one after another.
//!
//! Holds only what was added to the committed state: what is pending, and what this response was allowed so far. So
//! its size is that of the open work, not of the past.

use std::collections::{BTreeMap, BTreeSet};

use canon::Digest;

use super::JudgeContext;
use super::calls::ReadCall;
use super::verdict::{Failure, Verdict};
use crate::compile::{Compiled, ToolRules};
use crate::reason::{BlockReason, Check};
use crate::rules::Rules;
use crate::session::{Aggregate, Direction, Metric};
use crate::state::{Addend, State};
use crate::value::Value;

/// The room that is left.
#[derive(Debug)]
pub(super) struct CallBudget<'a> {
    rules: &'a Rules,
    state: &'a State,
    now: i64,
    calls: u64,
    calls_by_tool: BTreeMap<&'a str, u64>,
    forbidden: BTreeSet<&'a str>,
    addends: BTreeMap<usize, Vec<Addend>>,
    /// Calls of the rate limit that are not among the releases of the state.
    rated: u64,
    /// Calls that are in no step yet.
    prints: Vec<(&'a str, Digest)>,
}

impl<'a> CallBudget<'a> {
    pub(super) fn new(rules: &'a Rules, state: &'a State, occasion: JudgeContext<'a>) -> Self {
        let mut room = Self {
            rules,
            state,
            now: occasion.now.max(state.clock).as_micros(),
            calls: state.tool_calls,
            calls_by_tool: BTreeMap::new(),
            forbidden: BTreeSet::new(),
            addends: BTreeMap::new(),
            rated: 0,
            prints: Vec::new(),
        };
        for pending in state.pending.values() {
            room.add(&pending.call.tool, pending.arguments.as_ref());
        }
        for (name, waiting) in &state.waiting {
            if Some(name.as_str()) == occasion.proposal {
                continue;
            }
            for (call, arguments, _) in &waiting.calls {
                room.add(&call.tool, arguments.as_ref());
                room.add_unreleased(&call.tool, call.arguments_digest);
            }
        }
        room
    }

    /// Takes the room that an allowed call uses.
    pub(super) fn take(&mut self, call: &'a ReadCall<'a>, digest: Digest) {
        self.add(call.name(), call.arguments());
        self.add_unreleased(call.name(), digest);
    }

    /// The calls of the session, made or open, and what this response was allowed so far.
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    fn compiled(&self) -> &'a Compiled {
        self.rules.compiled()
    }

    fn add(&mut self, tool: &'a str, arguments: Option<&Value>) {
        self.calls += 1;
        *self.calls_by_tool.entry(tool).or_default() += 1;
        let Some(known) = self.compiled().tools.get(tool) else {
            return;
        };
        let forbidden = known.contract.forbids_after.iter();
        self.forbidden
            .extend(forbidden.map(|named| named.name.as_str()));
        let arguments = arguments.unwrap_or(&Value::Null);
        for index in &known.aggregates {
            let aggregate = self.compiled().session.aggregates.get(*index);
            let addend = aggregate.and_then(|aggregate| Addend::of(aggregate, arguments));
            self.addends.entry(*index).or_default().extend(addend);
        }
    }

    fn add_unreleased(&mut self, tool: &'a str, digest: Digest) {
        let rate = self.compiled().session.limits.rate.as_ref();
        self.rated += u64::from(rate.is_some_and(|rate| rate.counts(tool)));
        self.prints.push((tool, digest));
    }

    /// Runs every check of the pass on one call.
    pub(super) fn check(&self, call: &ReadCall<'_>, verdict: &mut Verdict) {
        let tool = call.name();
        let limit = BlockReason::SessionLimitExceeded;
        let mut fail = |check, reason, detail: &str| {
            verdict.fail(Failure::new(Some(check), reason).with_detail(detail));
        };
        for gate in &self.compiled().session.label_gates {
            if self.state.labels.contains(&gate.label) && gate.closes(tool) {
                fail(Check::V15, BlockReason::LabelGate, &gate.label);
            }
        }
        if self.forbidden.contains(tool) {
            fail(Check::V16, BlockReason::ForbiddenTool, "not_committed");
        }
        let limits = &self.compiled().session.limits;
        if limits
            .tool_calls_max
            .is_some_and(|max| self.calls + 1 > max)
        {
            fail(Check::V17, limit, "max_tool_calls");
        }
        if limits
            .calls_per_tool
            .get(tool)
            .is_some_and(|(max, _)| self.used_by(tool) + 1 > *max)
        {
            fail(Check::V18, limit, "max_calls_per_tool");
        }
        if let Some(rate) = limits.rate.as_ref().filter(|rate| rate.counts(tool)) {
            let start = self
                .now
                .saturating_sub(crate::state::micros(rate.per_seconds));
            let recent = self.state.releases.iter().rev();
            let recent = recent
                .take_while(|(time, _)| time.as_micros() > start)
                .count() as u64;
            if recent + self.rated + 1 > rate.calls_max {
                fail(Check::V18r, limit, "rate");
            }
        }
        if let Some(loops) = limits.loops {
            let digest = call.digest();
            let here = self
                .prints
                .iter()
                .filter(|print| **print == (tool, digest))
                .count() as u64;
            if self.state.recent.count(tool, digest) + here + 1 >= loops.threshold {
                fail(Check::V19, BlockReason::LoopDetected, "loop");
            }
        }
        if let Some(known) = self.compiled().tools.get(tool) {
            self.aggregates(known, call, verdict);
            self.envelopes(known, call, verdict);
        }
    }

    fn used_by(&self, tool: &str) -> u64 {
        let committed = self.state.tool_call_counts.get(tool);
        let open = self.calls_by_tool.get(tool);
        committed.copied().unwrap_or_default() + open.copied().unwrap_or_default()
    }

    /// V20 and V21.
    fn aggregates(&self, known: &ToolRules, call: &ReadCall<'_>, verdict: &mut Verdict) {
        let arguments = call.arguments().unwrap_or(&Value::Null);
        for index in &known.aggregates {
            let Some(aggregate) = self.compiled().session.aggregates.get(*index) else {
                continue;
            };
            let Some(addend) = Addend::of(aggregate, arguments) else {
                let failure = Failure::new(Some(Check::V20), BlockReason::AggregatePathMissing);
                verdict.fail(failure.with_detail(&aggregate.name));
                continue;
            };
            if self.passes_bound(*index, aggregate, addend) {
                let failure = Failure::new(Some(Check::V21), BlockReason::AggregateLimitExceeded);
                verdict.fail(failure.with_detail(&aggregate.name));
            }
        }
    }

    fn passes_bound(&self, index: usize, aggregate: &Aggregate, addend: Addend) -> bool {
        // A negative amount would buy room for a larger one.
        let negative = matches!(&addend, Addend::Number(number) if number.is_negative());
        if aggregate.metric == Metric::Sum && negative && !aggregate.allow_negative {
            return true;
        }
        let open = self
            .addends
            .get(&index)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let addends = open.iter().chain(std::iter::once(&addend));
        let total = self.state.totals.get(index);
        !total.is_some_and(|total| total.stays_within(aggregate.lte, addends))
    }

    /// V22 and V23.
    fn envelopes(&self, known: &ToolRules, call: &ReadCall<'_>, verdict: &mut Verdict) {
        let arguments = call.arguments().unwrap_or(&Value::Null);
        for (index, path) in &known.constrained {
            let Some(envelope) = self.compiled().session.envelopes.get(*index) else {
                continue;
            };
            let Some(reference) = self.state.envelopes.get(*index).copied().flatten() else {
                let failure = Failure::new(Some(Check::V22), BlockReason::EnvelopeNotEstablished);
                verdict.fail(failure.with_detail(&envelope.name));
                continue;
            };
            let found = path.find(arguments);
            let inside =
                found
                    .and_then(Value::as_decimal)
                    .is_some_and(|value| match envelope.direction {
                        Direction::AtMost => value <= reference,
                        Direction::AtLeast => value >= reference,
                    });
            if !inside {
                let failure = Failure::new(Some(Check::V23), BlockReason::EnvelopeViolation);
                let mut failure = failure.at(path, found).with_detail(&envelope.name);
                failure.expected = Some(reference.to_string());
                verdict.fail(failure);
            }
        }
    }
}
