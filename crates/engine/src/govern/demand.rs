//! What the operator demands of governed sessions: whoever opens one chooses within it.

use canon::{Map, Value};
use domain::{GovernedStart, NewGoverned, Problem};
use runs::workflow::governed::ReplacedOption;

use crate::engine::Engine;

/// What every session must hold to. By default everything is left to whoever opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demands {
    /// The weakest mode that is taken.
    pub mode: MinimumMode,
    /// Tools without a contract must be blocked.
    pub blocks_unmatched: bool,
    /// Contracts must be a configured set: those that a session brings along are refused.
    pub configured_contracts: bool,
}

/// The weakest mode of a session, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum MinimumMode {
    /// Nothing is judged.
    #[default]
    LogOnly,
    /// Everything is judged and nothing is blocked.
    Shadow,
    /// What contracts forbid is blocked.
    Enforce,
}

impl MinimumMode {
    const fn as_str(self) -> &'static str {
        match self {
            MinimumMode::LogOnly => "log-only",
            MinimumMode::Shadow => "shadow",
            MinimumMode::Enforce => "enforce",
        }
    }
}

impl Demands {
    /// Refuses a session that would be weaker than the operator demands.
    pub(super) fn check(&self, new: &NewGoverned) -> Result<(), Problem> {
        self.hold_for(&new.options, new.contracts.is_some())
    }

    fn hold_for(&self, options: &Map<String, Value>, own_contracts: bool) -> Result<(), Problem> {
        let word = |name: &str| options.get(name).and_then(Value::as_str);
        let mode = match word("mode") {
            Some("log-only") => MinimumMode::LogOnly,
            Some("shadow") => MinimumMode::Shadow,
            // The default.
            _ => MinimumMode::Enforce,
        };
        let weaker = |param: &str, demanded: &str| {
            let message = format!("the operator demands `{param}`: {demanded}");
            let problem = Problem::new(403, "weaker_than_demanded", message);
            Err(problem.with("param", param).with("demanded", demanded))
        };
        if mode < self.mode {
            return weaker("mode", self.mode.as_str());
        }
        if self.blocks_unmatched && word("unmatchedPolicy") == Some("allow") {
            return weaker("unmatched_policy", "block");
        }
        if self.configured_contracts && own_contracts {
            return weaker("contracts", "a configured set, named by its digest");
        }
        Ok(())
    }

    /// Refuses options in place of what a configured set says: it would bind nobody.
    pub(super) fn leave_contracts(&self, replaced: Option<ReplacedOption>) -> Result<(), Problem> {
        let Some(replaced) = replaced.filter(|_| self.configured_contracts) else {
            return Ok(());
        };
        let (param, differs) = match replaced {
            ReplacedOption::Providers => (
                "provider_constraints",
                "`provider_constraints` differ from those of the set",
            ),
            ReplacedOption::Prices => (
                "pricing",
                "`pricing` has a price below the one of the product's table, or a model that is not in it",
            ),
        };
        let message = format!(
            "the operator demands a configured set of contracts, and {differs}: leave it out"
        );
        Err(Problem::new(422, "replaces_configured", message).with("param", param))
    }
}

impl Engine {
    /// Refuses to go on with a session that is weaker than the operator demands by now. Whether it brought its contracts along
    /// is not recorded: they count as configured while a set with their digest is.
    pub(super) fn still_admitted(
        &self,
        start: &GovernedStart,
        replaced: Option<ReplacedOption>,
    ) -> Result<(), Problem> {
        let own_contracts = self.shared.contracts_of(start.sha256).is_none();
        let demands = self.shared.demands();
        demands.hold_for(&start.options, own_contracts)?;
        demands.leave_contracts(replaced)
    }
}
