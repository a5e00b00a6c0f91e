//! The gate: verdicts become a release, a stripped release, an error, or another question to the model.
//!
//! Decides nothing about calls; that is done. Outside enforcement everything is released and the difference is told.

use canon::Digest;
use domain::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decimal::Decimal;
use crate::event::{Event, Release, Responded};
use crate::execute::ExecutionRefusal;
use crate::judge::{Failure, Judgement, Status, Verdict};
use crate::narrow::{self, Narrowing, RemovedTool};
use crate::precheck::Refusal;
use crate::reason::{BlockReason, words};
use crate::rules::{Feedback, Gate, Rules};
use crate::state::State;
use std::fmt;

/// The text that stands in for a response of which nothing is left. It names no tool and no rule.
pub const SUBSTITUTE: &str = "This action is not available right now.";

words! {
    /// What became of a response.
    Action {
        /// Released as it was.
        Released = "released",
        /// Released without its blocked calls.
        Stripped = "stripped",
        /// Refused.
        Rejected = "rejected",
        /// Refused, and the model is asked again.
        Retried = "retried",
    }
}

/// The record of a decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// What became of the response.
    pub action: Action,
    /// The gate in force.
    pub gate: Gate,
    /// The attempt, from 1; 0 before any.
    pub attempt: u64,
    /// The commits that the verdicts saw.
    #[serde(rename = "stateVersion")]
    pub state_version: u64,
    /// The control actions that the verdicts saw.
    #[serde(rename = "controlRevision")]
    pub control_revision: u64,
    /// The contracts that were in force.
    pub compiled: Digest,
    /// The reason: that of the first blocked call, or of the refusal before the model.
    pub reason: Option<BlockReason>,
    /// More about it.
    pub detail: Option<String>,
    /// The file of the rule.
    pub contract_file: Option<String>,
    /// The calls, in the order of the response; empty before the model was asked.
    pub calls: Vec<DecidedCall>,
}

/// What was decided about one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecidedCall {
    /// The provider's id.
    pub call_id: String,
    /// The tool.
    pub tool_name: String,
    /// The digest of the canonical arguments.
    pub arguments_digest: Digest,
    /// The answer.
    pub verdict: Status,
    /// The reason of a block.
    pub reason: Option<BlockReason>,
    /// Every distinct reason, in the order of the checks.
    pub all_reasons: Vec<BlockReason>,
    /// More about the first.
    pub detail: Option<String>,
    /// The file of the tool's contract.
    pub contract_file: Option<String>,
    /// Every check that did not hold.
    pub failures: Vec<FailureRecord>,
}

/// A failed check as it is recorded. What was found is left out: it may be private.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRecord {
    /// The check's number.
    pub check: Option<crate::reason::Check>,
    /// The reason it yields.
    pub reason: BlockReason,
    /// More about it.
    pub detail: Option<String>,
    /// Where it looked.
    pub path: Option<String>,
    /// What did not hold there.
    pub operator: Option<String>,
    /// The operand, as JSON.
    pub expected: Option<String>,
}

/// What happens to a judged response.
#[derive(Debug, Clone, PartialEq)]
pub enum Settlement {
    /// People must be asked first.
    Wait,
    /// The response is passed on as it is.
    Release(Decision),
    /// The response is passed on without these calls, given by their place.
    Strip {
        /// The record.
        decision: Decision,
        /// The places of the calls that go.
        removed: Vec<usize>,
        /// True when no call is left, so that the finish reason changes and a text must be there.
        empty: bool,
    },
    /// The caller gets a contract error.
    Reject(Decision),
    /// The model is asked again.
    Retry {
        /// The record.
        decision: Decision,
        /// What the model is told, if it is told anything.
        feedback: Option<String>,
    },
}

/// Turns verdicts into what happens.
pub fn settle(rules: &Rules, judgement: &Judgement, attempt: u64, retries_left: u32) -> Settlement {
    if judgement.needing_approval().next().is_some() {
        return Settlement::Wait;
    }
    let blocked: Vec<usize> = judgement
        .verdicts()
        .iter()
        .enumerate()
        .filter(|(_, verdict)| verdict.status() == Status::Block)
        .map(|(index, _)| index)
        .collect();
    let decide = |action| decision(rules, judgement, action, attempt);
    if blocked.is_empty() || !rules.enforces() {
        return Settlement::Release(decide(Action::Released));
    }
    let all = blocked.len() == judgement.verdicts().len();
    let lost = match rules.options().gate {
        Gate::RejectAll => true,
        Gate::StripPartial | Gate::StripBlocked => all,
    };
    if lost && retries_left > 0 && can_retry(judgement) {
        return Settlement::Retry {
            decision: decide(Action::Retried),
            feedback: retry_feedback(rules, judgement),
        };
    }
    match rules.options().gate {
        Gate::StripPartial if !all => Settlement::Strip {
            decision: decide(Action::Stripped),
            removed: blocked,
            empty: false,
        },
        Gate::StripBlocked => Settlement::Strip {
            decision: decide(Action::Stripped),
            removed: blocked,
            empty: all,
        },
        Gate::RejectAll | Gate::StripPartial => Settlement::Reject(decide(Action::Rejected)),
    }
}

/// Says whether asking the model again can help: no blocked call has a reason that it cannot mend.
fn can_retry(judgement: &Judgement) -> bool {
    let mut reasons = judgement.blocked().flat_map(Verdict::all_reasons);
    reasons.all(BlockReason::is_retried)
}

fn retry_feedback(rules: &Rules, judgement: &Judgement) -> Option<String> {
    if rules.options().feedback != Feedback::Inject {
        return None;
    }
    let blocked = judgement.blocked().filter_map(|verdict| {
        let reason = verdict.reason()?;
        Some(format!("{} ({reason})", verdict.call().tool))
    });
    narrow::feedback(blocked.collect())
}

fn decision(rules: &Rules, judgement: &Judgement, action: Action, attempt: u64) -> Decision {
    let first = judgement.blocked().next();
    let failure = first.and_then(Verdict::first_failure);
    Decision {
        action,
        gate: rules.options().gate,
        attempt,
        state_version: judgement.state_version(),
        control_revision: judgement.control_revision(),
        compiled: rules.compiled().digest(),
        reason: failure.map(|failure| failure.reason),
        detail: failure.and_then(|failure| failure.detail.clone()),
        contract_file: first.and_then(|verdict| contract_file(rules, verdict)),
        calls: judgement
            .verdicts()
            .iter()
            .map(|verdict| decided(rules, verdict))
            .collect(),
    }
}

/// The file of the call's contract, else the session file if the rule stands there.
fn contract_file(rules: &Rules, verdict: &Verdict) -> Option<String> {
    let own = verdict.contract_file().map(ToOwned::to_owned);
    let session = &rules.compiled().session().file;
    own.or_else(|| (!session.is_empty()).then(|| session.clone()))
}

fn decided(rules: &Rules, verdict: &Verdict) -> DecidedCall {
    let failure = verdict.first_failure();
    let blocked = verdict.status() == Status::Block;
    DecidedCall {
        call_id: verdict.call_id().to_owned(),
        tool_name: verdict.call().tool.clone(),
        arguments_digest: verdict.arguments_digest(),
        verdict: verdict.status(),
        reason: verdict.reason(),
        all_reasons: verdict.all_reasons(),
        detail: failure.and_then(|failure| failure.detail.clone()),
        contract_file: if blocked {
            contract_file(rules, verdict)
        } else {
            verdict.contract_file().map(ToOwned::to_owned)
        },
        failures: verdict.failures().iter().map(recorded).collect(),
    }
}

fn recorded(failure: &Failure) -> FailureRecord {
    FailureRecord {
        check: failure.check,
        reason: failure.reason,
        detail: failure.detail.clone(),
        path: failure.path.clone(),
        operator: failure.operator.map(ToOwned::to_owned),
        expected: failure.expected.clone(),
    }
}

/// The record of a refusal before the model was asked; none for P1 to P4, which are errors of their own.
pub fn refused(rules: &Rules, state: &State, refusal: &Refusal) -> Option<Decision> {
    let Refusal::Blocked {
        reason,
        detail,
        contract_file,
        ..
    } = refusal
    else {
        return None;
    };
    Some(Decision {
        reason: Some(*reason),
        detail: Some(detail.clone()),
        contract_file: contract_file.clone(),
        ..empty_decision(rules, state)
    })
}

/// The record of a response that cannot be read as one thing: it is blocked as a whole, whatever the gate.
pub(crate) fn unreadable(rules: &Rules, state: &State, attempt: u64, detail: &str) -> Decision {
    Decision {
        action: Action::Rejected,
        attempt,
        reason: Some(BlockReason::ResponseFormatInvalid),
        detail: Some(detail.to_owned()),
        ..empty_decision(rules, state)
    }
}

/// The record of an execution that X2 or X3 refused: a decision about that one call.
pub(crate) fn execution_refused(
    rules: &Rules,
    state: &State,
    (tool, call_id): (&str, Option<&str>),
    arguments: &str,
    refusal: &ExecutionRefusal,
) -> Decision {
    let contract = rules.compiled().contract(tool);
    let contract_file = contract.map(|contract| contract.file.clone());
    let failures = match refusal {
        ExecutionRefusal::Constraints { failures, .. } => failures.iter().map(recorded).collect(),
        ExecutionRefusal::Killed { .. }
        | ExecutionRefusal::Inactive
        | ExecutionRefusal::NoPendingCall => Vec::new(),
    };
    let found = match refusal {
        ExecutionRefusal::Constraints { call, .. } => Some(call.id.as_str()),
        ExecutionRefusal::Killed { .. }
        | ExecutionRefusal::Inactive
        | ExecutionRefusal::NoPendingCall => call_id,
    };
    let canonical = crate::json::read_arguments(arguments);
    let text = canonical.map_or_else(
        |_| arguments.to_owned(),
        |value| crate::canonical::text(&value),
    );
    let call = DecidedCall {
        call_id: found.unwrap_or_default().to_owned(),
        tool_name: tool.to_owned(),
        arguments_digest: canon::sha256(text.as_bytes()),
        verdict: Status::Block,
        reason: refusal.reason(),
        all_reasons: refusal.reason().into_iter().collect(),
        detail: refusal.detail(),
        contract_file: contract_file.clone(),
        failures,
    };
    Decision {
        action: Action::Rejected,
        reason: refusal.reason(),
        detail: refusal.detail(),
        contract_file,
        calls: vec![call],
        ..empty_decision(rules, state)
    }
}

fn empty_decision(rules: &Rules, state: &State) -> Decision {
    Decision {
        action: Action::Rejected,
        gate: rules.options().gate,
        attempt: 0,
        state_version: state.state_version(),
        control_revision: state.control_revision(),
        compiled: rules.compiled().digest(),
        reason: None,
        detail: None,
        contract_file: None,
        calls: Vec::new(),
    }
}

impl Decision {
    /// Makes the decision about a retried response final, because a limit stopped the retry.
    pub fn stop_retry(mut self, refusal: &Refusal) -> Self {
        if let Refusal::Blocked { detail, .. } = refusal {
            self.detail = Some(format!("retry_stopped:{detail}"));
        }
        self.action = Action::Rejected;
        self
    }
}

/// What an attempt cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptCost {
    /// When the response was settled.
    pub at: Timestamp,
    /// The exact cost; none when it is not known.
    pub cost: Option<Decimal>,
}

/// Returns the event that a settlement is; none while people are asked.
pub fn settled(
    rules: &Rules,
    judgement: &Judgement,
    settlement: &Settlement,
    attempt: AttemptCost,
    proposal: Option<&str>,
) -> Option<Event> {
    let kept = |removed: &[usize]| {
        let verdicts = judgement.verdicts().iter().enumerate();
        let kept = verdicts.filter(|(index, _)| !removed.contains(index));
        kept.map(|(_, verdict)| verdict.call().clone()).collect()
    };
    let release = match settlement {
        Settlement::Wait => return None,
        Settlement::Release(_) if rules.enforces() => Release::Step {
            calls: kept(&[]),
            stripped: 0,
        },
        Settlement::Release(_) => Release::Shadow {
            calls: kept(&[]),
            would_block: judgement.blocked().count() as u64,
        },
        Settlement::Strip { removed, .. } => Release::Step {
            calls: kept(removed),
            stripped: removed.len() as u64,
        },
        Settlement::Reject(_) | Settlement::Retry { .. } => Release::Blocked,
    };
    let limited = rules.compiled().session().limits.cost_max.is_some();
    Some(Event::Responded(Responded {
        at: attempt.at,
        proposal: proposal.map(ToOwned::to_owned),
        cost: attempt.cost,
        usage_unknown: limited && attempt.cost.is_none(),
        release,
    }))
}

/// What shadow mode would have done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowDelta {
    /// The tools that would have been removed.
    pub would_have_narrowed: Vec<WouldNarrow>,
    /// The calls that would have been blocked.
    pub would_have_blocked: Vec<WouldBlock>,
    /// The phase before the call.
    pub current_phase: Option<String>,
    /// The phases that may follow it.
    pub legal_next_phases: Vec<String>,
}

/// A tool that would have been removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldNarrow {
    /// The tool.
    pub tool: String,
    /// Why.
    pub reason: crate::reason::NarrowReason,
}

/// A call that would have been blocked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldBlock {
    /// The tool.
    pub tool_name: String,
    /// Why.
    pub reason: BlockReason,
    /// More about why.
    pub detail: Option<String>,
}

/// Tells what enforcement would have done to a call.
pub fn shadow_delta(
    rules: &Rules,
    state: &State,
    narrowing: &Narrowing,
    judgement: &Judgement,
) -> ShadowDelta {
    let blocked = judgement.blocked().filter_map(|verdict| {
        let failure = verdict.first_failure()?;
        Some(WouldBlock {
            tool_name: verdict.call().tool.clone(),
            reason: failure.reason,
            detail: failure.detail.clone(),
        })
    });
    delta(rules, state, narrowing, blocked.collect())
}

/// The difference that enforcement would have made to a response that cannot be read: no call of it is known, and the whole
/// would have been blocked. Without a detail the provider failed, and there was nothing to block.
pub(crate) fn unread_delta(
    rules: &Rules,
    state: &State,
    narrowing: &Narrowing,
    detail: Option<&str>,
) -> ShadowDelta {
    let blocked = detail.map(|detail| WouldBlock {
        tool_name: String::new(),
        reason: BlockReason::ResponseFormatInvalid,
        detail: Some(detail.to_owned()),
    });
    delta(rules, state, narrowing, blocked.into_iter().collect())
}

fn delta(
    rules: &Rules,
    state: &State,
    narrowing: &Narrowing,
    would_have_blocked: Vec<WouldBlock>,
) -> ShadowDelta {
    let narrowed = narrowing
        .removed
        .iter()
        .map(|RemovedTool { tool, reason, .. }| WouldNarrow {
            tool: tool.clone(),
            reason: *reason,
        });
    ShadowDelta {
        would_have_narrowed: narrowed.collect(),
        would_have_blocked,
        current_phase: state.phase().map(ToOwned::to_owned),
        legal_next_phases: rules.compiled().legal_next_phases(state.phase()),
    }
}
