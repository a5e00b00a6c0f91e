//! Checkpoints: what a person is asked, and which answers count.
//!
//! An approval covers one call with exactly these arguments under exactly these contracts. Whatever is odd about an
//! answer makes it a denial.

use std::collections::BTreeMap;

use canon::Digest;
use domain::Timestamp;
use serde::{Deserialize, Serialize};

use crate::contract::{Checkpoint, ContextSource};
use crate::event::Call;
use crate::invariant::Truth;
use crate::pattern::Steps;
use crate::rules::Rules;
use crate::state::State;
use crate::value::Value;

/// How many checkpoints a session may trigger.
pub const CHECKPOINTS_MAX: u64 = 10;

/// What a person is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// Names the question.
    pub checkpoint_id: String,
    /// The session.
    pub session_id: String,
    /// The tool.
    pub tool_name: String,
    /// The exact arguments.
    pub arguments: serde_json::Value,
    /// What else the contract shows.
    pub context: Vec<ContextValue>,
    /// Why somebody is asked.
    pub reason: String,
    /// How long the answer may take.
    pub timeout_seconds: u64,
    /// When the question was asked.
    pub requested_at: Timestamp,
}

/// Something the approver sees beside the arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextValue {
    /// What it is.
    pub label: String,
    /// The value; null when there is none.
    pub value: serde_json::Value,
}

/// What a person answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalResponse {
    /// The question.
    pub checkpoint_id: String,
    /// `approve` or `deny`.
    pub decision: String,
    /// Who decided.
    pub decided_by: String,
    /// When.
    pub decided_at: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Yes, to these arguments under these contracts.
    Approved {
        /// The arguments that were shown.
        arguments: Digest,
        /// The contracts that asked.
        compiled: Digest,
    },
    /// No, or an answer that does not count.
    Denied {
        /// Why it is a no.
        detail: Option<String>,
    },
    /// None in time.
    TimedOut,
}

/// Answers by the provider's call id.
pub type Answers = BTreeMap<String, Answer>;

/// Says whether a checkpoint applies to a call. What cannot be evaluated counts as holding: ask rather than skip.
pub(crate) fn applies(checkpoint: &Checkpoint, arguments: &Value, steps: &Steps) -> bool {
    let entries = checkpoint.when.iter();
    Truth::all(entries.map(|entry| entry.test(arguments, steps))) != Truth::False
}

/// Writes the question about a call.
pub fn question(
    rules: &Rules,
    state: &State,
    call: &Call,
    checkpoint_id: &str,
    at: Timestamp,
) -> Option<ApprovalRequest> {
    let contract = rules.compiled().contract(&call.tool)?;
    let checkpoint = contract.checkpoint.as_ref()?;
    let limits = crate::json::Limits::ARGUMENTS;
    let arguments = crate::json::read(&call.arguments, limits, crate::json::Numbers::Any).ok()?;
    let context = checkpoint.context.iter().map(|entry| {
        let value = match &entry.source {
            ContextSource::Argument(path) => path.find(&arguments),
            ContextSource::Slot(slot) => state.slot(&slot.name),
        };
        ContextValue {
            label: entry.label.clone(),
            value: value.map_or(serde_json::Value::Null, Value::to_serde),
        }
    });
    Some(ApprovalRequest {
        checkpoint_id: checkpoint_id.to_owned(),
        session_id: state.session_id.clone(),
        tool_name: call.tool.clone(),
        arguments: arguments.to_serde(),
        context: context.collect(),
        reason: checkpoint.reason.clone(),
        timeout_seconds: checkpoint.timeout_seconds,
        requested_at: at,
    })
}

/// Decides what an answer is worth. `received_at` is by the clock that stamped the question.
pub fn read_answer(
    rules: &Rules,
    state: &State,
    asked: &ApprovalRequest,
    call: &Call,
    answer: &ApprovalResponse,
    received_at: Timestamp,
) -> Answer {
    let denied = |detail: &str| Answer::Denied {
        detail: Some(detail.to_owned()),
    };
    let allowed = i64::try_from(asked.timeout_seconds.saturating_mul(1_000_000));
    let deadline = asked
        .requested_at
        .as_micros()
        .saturating_add(allowed.unwrap_or(i64::MAX));
    if received_at.as_micros() >= deadline {
        return Answer::TimedOut;
    }
    if answer.checkpoint_id != asked.checkpoint_id {
        return denied("wrong_checkpoint_id");
    }
    if answer.decided_by.trim().is_empty() {
        return denied("decided_by_missing");
    }
    let agents = [
        state.agent.as_ref(),
        rules.compiled().session.agent.as_ref(),
    ];
    if agents
        .into_iter()
        .flatten()
        .any(|agent| *agent == answer.decided_by)
    {
        return denied("decided_by_agent");
    }
    match answer.decision.as_str() {
        "approve" => Answer::Approved {
            arguments: call.arguments_digest,
            compiled: rules.compiled().digest(),
        },
        "deny" => Answer::Denied { detail: None },
        _ => denied("malformed_decision"),
    }
}
