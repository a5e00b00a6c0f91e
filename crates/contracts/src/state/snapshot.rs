//! What a program sees of a session: immutable, without the principal.

use std::collections::BTreeMap;

use domain::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Lifecycle, State};
use crate::compile::Compiled;
use crate::decimal::Decimal;
use crate::narrow::Narrowing;
use crate::redact;

/// A session as a program sees it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The session.
    pub session_id: String,
    /// The agent.
    pub agent: Option<String>,
    /// Always null, whatever was supplied.
    pub principal: (),
    /// When it began.
    pub started_at: Timestamp,
    /// Commits.
    pub state_version: u64,
    /// Control actions.
    pub control_revision: u64,
    /// The phase; null without a phase machine.
    pub current_phase: Option<String>,
    /// Committed steps.
    pub total_step_count: u64,
    /// Committed calls.
    pub total_tool_calls: u64,
    /// Committed calls by tool.
    pub tool_call_counts: BTreeMap<String, u64>,
    /// Cost of committed steps, as the nearest double.
    pub total_cost: f64,
    /// Cost of every attempt, as the nearest double.
    pub actual_cost: f64,
    /// Both costs exactly.
    pub exact_costs: Costs,
    /// Tools that committed, pending or unknown calls forbid.
    pub forbidden_tools: Vec<String>,
    /// Output fields that some contract refers to, by tool, redacted.
    pub satisfied_preconditions: BTreeMap<String, serde_json::Value>,
    /// The last committed step.
    pub last_step: Option<CompletedStep>,
    /// The last narrowing.
    pub last_narrowing: Option<Narrowing>,
    /// Stopped for good.
    pub killed: bool,
    /// Calls that went through without backing.
    pub total_unguarded_calls: u64,
    /// Blocked responses in a row.
    pub consecutive_block_count: u64,
    /// Blocked responses.
    pub total_block_count: u64,
    /// Labels, sorted.
    pub labels: Vec<String>,
    /// Attempts.
    pub attempt_count: u64,
    /// Checkpoints triggered.
    pub checkpoint_count: u64,
}

/// Costs as exact decimal texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// Of committed steps.
    pub total: Decimal,
    /// Of every attempt.
    pub actual: Decimal,
    /// True when some attempt had no known cost, so that both are lower bounds.
    pub incomplete: bool,
}

/// A committed step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompletedStep {
    /// Its number, from 1.
    pub index: u64,
    /// The phase before.
    pub phase_before: Option<String>,
    /// The phase after.
    pub phase_after: Option<String>,
    /// The called tools.
    pub tools: Vec<String>,
    /// What it cost; null when not known.
    pub cost: Option<Decimal>,
}

impl State {
    /// Returns what a program sees.
    pub fn snapshot(&self, compiled: &Compiled) -> Snapshot {
        let double = |money: Decimal| money.to_string().parse().unwrap_or(f64::INFINITY);
        let (total, actual) = (self.total_cost.known(), self.actual_cost.known());
        let mut forbidden = self.forbidden.clone();
        for (call, ..) in self.uncommitted(None) {
            let contract = compiled.contract(&call.tool);
            let names = contract
                .into_iter()
                .flat_map(|contract| &contract.forbids_after);
            forbidden.extend(names.map(|named| named.name.clone()));
        }
        let facts = self.facts.iter().map(|(tool, fields)| {
            let fields = fields.iter().map(|(path, value)| {
                let value = redact::value(&value.to_serde(), &[]);
                (path.clone(), value)
            });
            (tool.clone(), fields.collect())
        });
        Snapshot {
            session_id: self.session_id.clone(),
            agent: self.agent.clone(),
            principal: (),
            started_at: self.started_at,
            state_version: self.state_version,
            control_revision: self.control_revision,
            current_phase: self.phase.clone(),
            total_step_count: self.recent.steps(),
            total_tool_calls: self.tool_calls,
            tool_call_counts: self.tool_call_counts.clone(),
            total_cost: double(total),
            actual_cost: double(actual),
            exact_costs: Costs {
                total,
                actual,
                incomplete: matches!(self.actual_cost, super::Money::AtLeast(_)),
            },
            forbidden_tools: forbidden.into_iter().collect(),
            satisfied_preconditions: facts.collect(),
            last_step: self.recent.last().cloned(),
            last_narrowing: self.last_narrowing.clone(),
            killed: matches!(self.lifecycle, Lifecycle::Killed { .. }),
            total_unguarded_calls: self.unguarded,
            consecutive_block_count: self.blocks_in_a_row,
            total_block_count: self.blocks,
            labels: self.labels.iter().cloned().collect(),
            attempt_count: self.attempts,
            checkpoint_count: self.checkpoints,
        }
    }
}
