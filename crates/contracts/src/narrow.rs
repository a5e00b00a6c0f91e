//! Narrowing: tools that cannot legally be called now are taken out of the request.
//!
//! A tool goes only when every call of it would be blocked by a check that does not look at arguments. Validation
//! never consults the result: it computes again.

use serde::{Deserialize, Serialize};

use crate::compile::ToolRules;
use crate::contract::RiskGate;
use crate::reason::NarrowReason;
use crate::request::OfferedTool;
use crate::rules::{Permission, Rules};
use crate::state::State;

/// What stayed and what went.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Narrowing {
    /// The tools that stay, in the order offered.
    pub allowed: Vec<String>,
    /// The tools that go, in the order offered.
    pub removed: Vec<RemovedTool>,
}

/// A tool that is not shown to the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemovedTool {
    /// The tool.
    pub tool: String,
    /// Why.
    pub reason: NarrowReason,
    /// More about why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The contract, if the tool has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract_file: Option<String>,
}

impl Narrowing {
    /// Returns why a tool was removed.
    pub fn removed(&self, tool: &str) -> Option<&RemovedTool> {
        self.removed.iter().find(|removed| removed.tool == tool)
    }

    /// Returns the sentence that tells a model about removed tools; none when nothing was removed.
    pub fn feedback(&self) -> Option<String> {
        let shown = self.removed.iter();
        let shown =
            shown.map(|entry| format!("{} ({})", entry.tool, entry.reason.shown_to_model()));
        feedback(shown.collect())
    }
}

/// Returns the sentence that tells a model about tools it must not call.
pub(crate) fn feedback(tools: Vec<String>) -> Option<String> {
    let list = tools.join("; ");
    (!tools.is_empty())
        .then(|| format!("These tools are not available now: {list}. Do not call them."))
}

/// Decides which of the offered tools the model may see.
pub fn narrow(rules: &Rules, state: &State, offered: &[OfferedTool]) -> Narrowing {
    let mut narrowing = Narrowing::default();
    for tool in offered {
        match removal(rules, state, tool) {
            None => narrowing.allowed.push(tool.name.clone()),
            Some((reason, detail)) => {
                let contract = rules.compiled().contract(&tool.name);
                narrowing.removed.push(RemovedTool {
                    tool: tool.name.clone(),
                    reason,
                    detail,
                    contract_file: contract.map(|contract| contract.file.clone()),
                });
            }
        }
    }
    narrowing
}

/// Says whether a narrowing is what [`narrow`] would return, without making another one.
pub(crate) fn is_narrowed(
    rules: &Rules,
    state: &State,
    offered: &[OfferedTool],
    narrowing: &Narrowing,
) -> bool {
    let mut allowed = narrowing.allowed.iter();
    let mut removed = narrowing.removed.iter();
    let as_before = |tool: &OfferedTool| match removal(rules, state, tool) {
        None => allowed.next() == Some(&tool.name),
        Some((reason, detail)) => removed.next().is_some_and(|entry| {
            entry.tool == tool.name && entry.reason == reason && entry.detail == detail
        }),
    };
    offered.iter().all(as_before) && allowed.next().is_none() && removed.next().is_none()
}

/// Returns the first reason to remove a tool, in the order of the reasons.
fn removal(
    rules: &Rules,
    state: &State,
    tool: &OfferedTool,
) -> Option<(NarrowReason, Option<String>)> {
    let compiled = rules.compiled();
    let name = tool.name.as_str();
    let known = compiled.tools.get(name);
    let plain = |reason| Some((reason, None));
    match known {
        None if !tool.hosted && rules.options().unmatched == Permission::Block => {
            return plain(NarrowReason::NoContract);
        }
        _ if tool.hosted => {
            if let Some(reason) = hosted_removal(known) {
                return plain(reason);
            }
        }
        Some(known) if known.gate == RiskGate::Block => return plain(NarrowReason::RiskGate),
        Some(_) | None => {}
    }
    if rules.denied_by(name).is_some() {
        return plain(NarrowReason::PolicyDenied);
    }
    if state
        .filter
        .as_ref()
        .is_some_and(|filter| !filter.contains(name))
    {
        return plain(NarrowReason::ManualFilter);
    }
    if let Some(known) = known {
        if let Some(detail) = crate::judge::phase_problem(compiled, state, &known.contract) {
            return Some((NarrowReason::WrongPhase, Some(detail)));
        }
        let unmet = known.preconditions.iter().find(|index| {
            let prior = state.prior.get(**index);
            !prior.is_some_and(crate::state::PriorCalls::can_be_met)
        });
        if let Some(index) = unmet {
            let needed = compiled.preconditions.get(*index);
            let needed = needed.map(|entry| entry.prior_tool.name.clone());
            return Some((NarrowReason::PreconditionNotMet, needed));
        }
    }
    if is_forbidden(rules, state, name) {
        return plain(NarrowReason::ForbiddenInState);
    }
    let gates = compiled.session.label_gates.iter();
    let mut closing = gates.filter(|gate| state.labels.contains(&gate.label) && gate.closes(name));
    if closing.next().is_some() {
        return plain(NarrowReason::LabelGate);
    }
    limit_reached(rules, state, name).map(|detail| (NarrowReason::LimitReached, Some(detail)))
}

/// Says why a tool that the provider runs is removed: it cannot be judged before it happens, and only an explicit contract lets it
/// stay.
pub(crate) fn hosted_removal(known: Option<&ToolRules>) -> Option<NarrowReason> {
    let Some(known) = known else {
        return Some(NarrowReason::NoContract);
    };
    let is_open = known.contract.gate == Some(RiskGate::Allow);
    (!is_open || known.contract.reads_arguments()).then_some(NarrowReason::RiskGate)
}

fn is_forbidden(rules: &Rules, state: &State, name: &str) -> bool {
    state.forbidden.contains(name)
        || state.uncommitted(None).any(|(call, ..)| {
            let contract = rules.compiled().contract(&call.tool);
            contract.is_some_and(|contract| {
                contract
                    .forbids_after
                    .iter()
                    .any(|named| named.name == name)
            })
        })
}

fn limit_reached(rules: &Rules, state: &State, name: &str) -> Option<String> {
    let limits = &rules.compiled().session.limits;
    let uncommitted = || state.uncommitted(None).map(|(call, ..)| call);
    if let Some(max) = limits.tool_calls_max {
        let used = state.tool_calls + uncommitted().count() as u64;
        if used >= max {
            return Some("max_tool_calls".to_owned());
        }
    }
    let (max, _) = limits.calls_per_tool.get(name)?;
    let committed = state
        .tool_call_counts
        .get(name)
        .copied()
        .unwrap_or_default();
    let used = committed + uncommitted().filter(|call| call.tool == name).count() as u64;
    (used >= *max).then(|| "max_calls_per_tool".to_owned())
}
