//! Pre-check: limits and the shape of the request, before tokens are spent.
//!
//! The first failure decides. P1 and P2 hold in every mode and come before anything else; P3 to P9 refuse only where
//! verdicts block.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::narrow::Narrowing;
use crate::reason::{BlockReason, words};
use crate::request::{Request, ToolChoice};
use crate::rules::Rules;
use crate::state::{Lifecycle, Money, State};
use crate::workflow::Seat;

words! {
    /// The checks before the model is asked.
    PreCheck {
        /// Killed.
        P1 = "P1",
        /// Restored.
        P2 = "P2",
        /// Provider constraints.
        P3 = "P3",
        /// A request that cannot be judged.
        P4 = "P4",
        /// Steps.
        P5 = "P5",
        /// Attempts.
        P6 = "P6",
        /// Cost.
        P7 = "P7",
        /// Price or usage unknown.
        P8 = "P8",
        /// A forced tool that was removed.
        P9 = "P9",
    }
}

/// Why the model was not asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// P1.
    Killed {
        /// Why the session was killed.
        cause: String,
    },
    /// P2.
    Inactive,
    /// P3: the pattern that matched.
    ProviderIncompatible {
        /// The pattern.
        pattern: String,
    },
    /// P4: the member that cannot be judged.
    Unsupported {
        /// Its name.
        member: String,
    },
    /// P5 to P9.
    Blocked {
        /// The check.
        check: PreCheck,
        /// The block reason.
        reason: BlockReason,
        /// Which limit, or which tool.
        detail: String,
        /// The file of the rule.
        contract_file: Option<String>,
    },
}

impl Refusal {
    /// Returns the check that refused.
    pub fn check(&self) -> PreCheck {
        match self {
            Refusal::Killed { .. } => PreCheck::P1,
            Refusal::Inactive => PreCheck::P2,
            Refusal::ProviderIncompatible { .. } => PreCheck::P3,
            Refusal::Unsupported { .. } => PreCheck::P4,
            Refusal::Blocked { check, .. } => *check,
        }
    }

    /// Says whether the refusal counts as a block.
    pub fn is_block(&self) -> bool {
        match self {
            Refusal::Blocked { .. } => true,
            Refusal::Killed { .. }
            | Refusal::Inactive
            | Refusal::ProviderIncompatible { .. }
            | Refusal::Unsupported { .. } => false,
        }
    }
}

/// P1 and P2.
///
/// # Errors
/// The session is killed or restored.
pub fn check_open(state: &State) -> Result<(), Refusal> {
    match state.lifecycle() {
        Lifecycle::Open => Ok(()),
        Lifecycle::Killed { cause } => Err(Refusal::Killed {
            cause: cause.clone(),
        }),
        Lifecycle::Restored => Err(Refusal::Inactive),
    }
}

/// The limits of the workflow, checked together with the session's own.
///
/// # Errors
/// One is reached.
pub fn check_workflow(seat: Option<&Seat>) -> Result<(), Refusal> {
    match seat.and_then(Seat::limit_reached) {
        None => Ok(()),
        Some(detail) => Err(Refusal::Blocked {
            check: PreCheck::P7,
            reason: BlockReason::SessionLimitExceeded,
            detail: detail.to_owned(),
            contract_file: None,
        }),
    }
}

/// P1 to P9, in this order.
///
/// # Errors
/// The first check that fails.
pub fn precheck(
    rules: &Rules,
    state: &State,
    request: &Request,
    narrowing: &Narrowing,
) -> Result<(), Refusal> {
    check_open(state)?;
    let model = format!("{}/{}", request.provider, request.model);
    if let Some(pattern) = model_excluded(rules, &request.provider, &request.model) {
        return Err(Refusal::ProviderIncompatible { pattern });
    }
    if let Some(member) = unsupported(request) {
        return Err(Refusal::Unsupported { member });
    }
    let limits = &rules.compiled().session.limits;
    if limits.steps_max.is_some_and(|max| state.steps() >= max) {
        return Err(limit(rules, PreCheck::P5, "max_steps"));
    }
    check_attempt(rules, state)?;
    if limits.cost_max.is_some() {
        if rules.options().prices.get(&model).is_none() {
            return Err(limit(rules, PreCheck::P8, "price_unknown"));
        }
        if state.usage_unknown || matches!(state.actual_cost, Money::AtLeast(_)) {
            return Err(limit(rules, PreCheck::P8, "usage_unknown"));
        }
    }
    check_choice(request, narrowing)
}

/// P6 and P7, which hold before every attempt, retries included.
///
/// # Errors
/// A limit is reached.
pub fn check_attempt(rules: &Rules, state: &State) -> Result<(), Refusal> {
    let limits = &rules.compiled().session.limits;
    check_attempts(rules, state, 0)?;
    if limits
        .cost_max
        .is_some_and(|max| state.actual_cost.known() >= max)
    {
        return Err(limit(rules, PreCheck::P7, "max_cost"));
    }
    Ok(())
}

/// P6 beside requests that are under way: each of them is an attempt that is not counted yet.
///
/// # Errors
/// The limit is reached.
pub fn check_attempts(rules: &Rules, state: &State, under_way: u64) -> Result<(), Refusal> {
    let made = state.attempts.saturating_add(under_way);
    let max = rules.compiled().session.limits.attempts_max;
    match max.is_some_and(|max| made >= max) {
        true => Err(limit(rules, PreCheck::P6, "max_attempts")),
        false => Ok(()),
    }
}

/// Returns the warned patterns that a model matches.
pub fn provider_warnings(rules: &Rules, provider: &str, model: &str) -> Vec<String> {
    let model = format!("{provider}/{model}");
    let warned = rules.providers().warn.iter();
    warned
        .filter(|pattern| excludes(rules, pattern, &model))
        .cloned()
        .collect()
}

/// Returns the pattern that excludes a model.
pub fn model_excluded(rules: &Rules, provider: &str, model: &str) -> Option<String> {
    let model = format!("{provider}/{model}");
    let mut blocked = rules.providers().block.iter();
    blocked
        .find(|pattern| excludes(rules, pattern, &model))
        .cloned()
}

/// Returns the pattern that excludes a provider as a whole, which is known before any model is.
pub fn provider_excluded(rules: &Rules, provider: &str) -> Option<String> {
    let whole = |pattern: &&String| {
        let parts = pattern.split_once('/');
        parts.is_some_and(|(name, model)| model == "*" && excludes(rules, name, provider))
    };
    rules.providers().block.iter().find(whole).cloned()
}

fn limit(rules: &Rules, check: PreCheck, detail: &str) -> Refusal {
    let file = &rules.compiled().session.file;
    Refusal::Blocked {
        check,
        reason: BlockReason::SessionLimitExceeded,
        detail: detail.to_owned(),
        contract_file: (!file.is_empty()).then(|| file.clone()),
    }
}

const TOOLS_MAX: usize = 1_024;

fn unsupported(request: &Request) -> Option<String> {
    if let Some(member) = &request.unsupported {
        return Some(member.clone());
    }
    let mut names = BTreeSet::new();
    let twice = request
        .tools
        .iter()
        .any(|tool| !names.insert(tool.name.as_str()));
    let bad_name = |name: &str| name.is_empty() || name.len() > 128;
    let odd = twice
        || request.tools.len() > TOOLS_MAX
        || request.tools.iter().any(|tool| bad_name(&tool.name));
    odd.then(|| "tools".to_owned())
}

pub(crate) fn check_choice(request: &Request, narrowing: &Narrowing) -> Result<(), Refusal> {
    let refuse = |tool: &str| {
        let removed = narrowing.removed(tool)?;
        Some(Refusal::Blocked {
            check: PreCheck::P9,
            reason: removed.reason.block_reason(),
            detail: format!("tool_choice:{tool}"),
            contract_file: removed.contract_file.clone(),
        })
    };
    let refusal = match &request.choice {
        ToolChoice::Auto | ToolChoice::None | ToolChoice::Required => None,
        ToolChoice::Named(tool) => refuse(tool),
        ToolChoice::AllowedOnly(tools) => {
            let all_removed = tools.iter().all(|tool| narrowing.removed(tool).is_some());
            let first = tools.first().filter(|_| all_removed);
            first.and_then(|tool| refuse(tool))
        }
    };
    refusal.map_or(Ok(()), Err)
}

/// Matches a model against a pattern. Providers may take a name in any case, so a pattern excludes it in any case.
fn excludes(rules: &Rules, pattern: &str, model: &str) -> bool {
    if rules.options().case_of_models_counts {
        return matches(pattern, model);
    }
    matches(&pattern.to_ascii_lowercase(), &model.to_ascii_lowercase())
}

/// Matches a text against a pattern in which `*` stands for any run of characters.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    // Without a star the whole text is the pattern.
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) if !part.is_empty() => rest = after,
            Some(_) => {}
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_any_run() {
        for (pattern, text, expected) in [
            ("openai/gpt-3.5-*", "openai/gpt-3.5-turbo", true),
            ("openai/gpt-3.5-*", "openai/gpt-3.5", false),
            ("anthropic/*-haiku-*", "anthropic/claude-haiku-4", true),
            ("anthropic/*-haiku-*", "anthropic/claude-opus-4", false),
            ("openai/*", "openai/", true),
            ("openai/a", "openai/ab", false),
            ("*a*a", "aa", true),
            ("*a*a", "a", false),
            ("a**b", "ab", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
