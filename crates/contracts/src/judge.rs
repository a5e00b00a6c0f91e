//! Judging a response: every proposed call gets a verdict.
//!
//! Permissions read what is committed; prohibitions and budgets also read what is pending and what this response was
//! already allowed. So no order of calls inside a response unlocks another, and none slips under a budget.
//!
//! Four passes. Within a pass every check runs and every failure is kept; a call that failed does not enter the next.

mod alone;
mod budget;
mod calls;
mod verdict;

use std::collections::BTreeSet;

use domain::Timestamp;

use crate::checkpoint::{Answer, Answers, CHECKPOINTS_MAX, applies};
use crate::compile::Compiled;
use crate::contract::Contract;
use crate::pattern::Steps;
use crate::reason::{BlockReason, Check};
use crate::request::{Request, Response};
use crate::rules::{Gate, Rules};
use crate::state::{Lifecycle, State};
use crate::workflow::Seat;

pub(crate) use alone::phase_problem;
pub use verdict::{Failure, Judgement, Status, Verdict};

use budget::CallBudget;
use calls::ReadCall;

/// What a response is judged against, besides rules and state.
#[derive(Debug, Clone, Copy)]
pub struct JudgeContext<'a> {
    /// The request that was sent.
    pub request: &'a Request,
    /// The time of the verdict.
    pub now: Timestamp,
    /// The name under which this response already waits for people, if it does.
    pub proposal: Option<&'a str>,
    /// What people answered so far.
    pub answers: &'a Answers,
}

/// Judges every call of a response.
pub fn judge(
    rules: &Rules,
    state: &State,
    response: &Response,
    occasion: JudgeContext<'_>,
) -> Judgement {
    judge_in(rules, state, response, occasion, None)
}

/// The same for a session of a workflow: what another session holds is busy.
pub fn judge_in(
    rules: &Rules,
    state: &State,
    response: &Response,
    occasion: JudgeContext<'_>,
    seat: Option<&Seat>,
) -> Judgement {
    judge_again(rules, state, response, occasion, seat, &[])
}

/// The same for a response that was judged before and waited for people since. What was refused then stays refused: calls are
/// judged again so that they may fail, and nobody was asked about the others. They take no room either.
pub fn judge_again(
    rules: &Rules,
    state: &State,
    response: &Response,
    occasion: JudgeContext<'_>,
    seat: Option<&Seat>,
    before: &[Verdict],
) -> Judgement {
    let proposed = calls::read(response);
    let mut verdicts: Vec<Verdict> = proposed
        .iter()
        .map(|call| Verdict::new(rules, call))
        .collect();
    if let Lifecycle::Killed { cause } = state.lifecycle() {
        for verdict in &mut verdicts {
            let failure = Failure::new(None, BlockReason::Killed).with_detail(cause);
            verdict.fail(failure);
        }
        return Judgement::new(state, verdicts);
    }
    let context = Context {
        rules,
        state,
        response,
        occasion,
        proposed: &proposed,
        seat,
        steps: &rules.options().steps(),
    };
    context.first_pass(&mut verdicts);
    for (verdict, before) in verdicts.iter_mut().zip(before) {
        if before.status() == Status::Block {
            *verdict = before.clone();
        }
    }
    context.second_pass(&mut verdicts);
    context.third_pass(&mut verdicts);
    context.fourth_pass(&mut verdicts);
    Judgement::new(state, verdicts)
}

/// Everything that checks read.
#[derive(Debug, Clone, Copy)]
struct Context<'a> {
    rules: &'a Rules,
    state: &'a State,
    response: &'a Response,
    occasion: JudgeContext<'a>,
    proposed: &'a [ReadCall<'a>],
    seat: Option<&'a Seat>,
    /// What patterns may still take, for all calls together.
    steps: &'a Steps,
}

impl<'a> Context<'a> {
    fn compiled(&self) -> &'a Compiled {
        self.rules.compiled()
    }

    /// Returns the calls that have not failed yet.
    fn surviving<'v>(
        &self,
        verdicts: &'v mut [Verdict],
    ) -> impl Iterator<Item = (&'a ReadCall<'a>, &'v mut Verdict)> {
        let pairs = self.proposed.iter().zip(verdicts);
        pairs.filter(|(_, verdict)| verdict.failures().is_empty())
    }

    /// Pass 1: checks that look at one call by itself.
    fn first_pass(&self, verdicts: &mut [Verdict]) {
        let view = alone::ResponseView::new(self.response, self.proposed);
        for (call, verdict) in self.proposed.iter().zip(verdicts) {
            alone::check(self, &view, call, verdict);
        }
    }

    /// Pass 2: the calls that move the phase agree on one target, with each other and with what is pending.
    fn second_pass(&self, verdicts: &mut [Verdict]) {
        let target = |call: &ReadCall<'_>| {
            let contract = self.compiled().contract(call.name())?;
            let target = contract.advances_to.as_ref()?;
            (self.state.phase() != Some(&target.name)).then_some(target.name.as_str())
        };
        let movers: Vec<&str> = self
            .surviving(verdicts)
            .filter_map(|(call, _)| target(call))
            .collect();
        if movers.is_empty() {
            return;
        }
        let uncommitted = self.state.uncommitted(self.occasion.proposal);
        let pending = uncommitted.filter_map(|(_, _, moves_to, _)| moves_to);
        let targets: BTreeSet<&str> = movers.into_iter().chain(pending).collect();
        if targets.len() < 2 {
            return;
        }
        let detail = targets.into_iter().collect::<Vec<_>>().join(",");
        for (call, verdict) in self.surviving(verdicts) {
            if target(call).is_some() {
                let reason = BlockReason::AmbiguousPhaseTransition;
                verdict.fail(Failure::new(Some(Check::V14), reason).with_detail(&detail));
            }
        }
    }

    /// Pass 3: prohibitions and budgets, in the order of the response.
    fn third_pass(&self, verdicts: &mut [Verdict]) {
        let mut room = CallBudget::new(self.rules, self.state, self.occasion);
        for (call, verdict) in self.surviving(verdicts) {
            let reason = BlockReason::SessionLimitExceeded;
            if let Some(seat) = self.seat
                && !seat.has_room(room.calls() + 1)
            {
                verdict.fail(Failure::new(Some(Check::V17), reason).with_detail("workflow"));
            }
            let shared = self.seat.zip(call.arguments());
            let shared =
                shared.and_then(|(seat, arguments)| seat.resource_refusal(call.name(), arguments));
            if let Some(detail) = shared {
                verdict.fail(Failure::new(Some(Check::V17), reason).with_detail(detail));
            }
            room.check(call, verdict);
            if verdict.failures().is_empty() {
                room.take(call, verdict.arguments_digest());
            }
        }
    }

    /// Pass 4: people. Nobody is asked about a response that is lost already.
    fn fourth_pass(&self, verdicts: &mut [Verdict]) {
        let budget_used = self.checkpoints_used();
        let mut triggered = budget_used;
        let mut questions = Vec::new();
        for (index, (call, verdict)) in self.proposed.iter().zip(verdicts.iter_mut()).enumerate() {
            if !verdict.failures().is_empty() || !self.needs_person(call) {
                continue;
            }
            if triggered >= CHECKPOINTS_MAX {
                let reason = BlockReason::CheckpointBudgetExceeded;
                verdict.fail(Failure::new(Some(Check::V24), reason));
                continue;
            }
            triggered += 1;
            questions.push(index);
        }
        let rejects_all = self.rules.options().gate == Gate::RejectAll;
        for index in questions {
            let lost = rejects_all
                && verdicts
                    .iter()
                    .any(|verdict| !verdict.failures().is_empty());
            if lost {
                return;
            }
            let Some(verdict) = verdicts.get_mut(index) else {
                continue;
            };
            self.read_answer(verdict);
        }
    }

    /// Checkpoints that other responses triggered: those of this one are not counted twice.
    fn checkpoints_used(&self) -> u64 {
        let own = self
            .occasion
            .proposal
            .and_then(|name| self.state.waiting.get(name));
        let own = own.map_or(0, |waiting| waiting.asked);
        self.state.checkpoints.saturating_sub(own)
    }

    fn needs_person(&self, call: &ReadCall<'_>) -> bool {
        // Nobody is asked where verdicts block nothing.
        let contract = self.compiled().contract(call.name());
        let checkpoint = contract.and_then(|contract| contract.checkpoint.as_ref());
        self.rules.enforces()
            && checkpoint
                .zip(call.arguments())
                .is_some_and(|(checkpoint, arguments)| applies(checkpoint, arguments, self.steps))
    }

    fn read_answer(&self, verdict: &mut Verdict) {
        let Some(answer) = self.occasion.answers.get(verdict.call_id()) else {
            return verdict.ask();
        };
        let denied = BlockReason::CheckpointDenied;
        match answer {
            Answer::Approved {
                arguments,
                compiled,
            } => {
                // An approval counts for what the person saw, and for nothing else.
                let same = *arguments == verdict.arguments_digest()
                    && *compiled == self.compiled().digest();
                if !same {
                    let failure = Failure::new(Some(Check::V25), denied);
                    verdict.fail(failure.with_detail("approval_of_something_else"));
                }
            }
            Answer::Denied { detail } => {
                let mut failure = Failure::new(Some(Check::V25), denied);
                if let Some(detail) = detail {
                    failure = failure.with_detail(detail);
                }
                verdict.fail(failure);
            }
            Answer::TimedOut => {
                let reason = BlockReason::CheckpointTimeout;
                verdict.fail(Failure::new(Some(Check::V25), reason));
            }
        }
    }
}

/// Returns the file of a contract, for records.
fn file_of(contract: Option<&Contract>) -> Option<String> {
    contract.map(|contract| contract.file.clone())
}
