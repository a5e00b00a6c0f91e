//! Tools that can never be called, whatever the arguments: a warning, because it is seldom meant.

use std::collections::BTreeSet;

use super::{Compiled, ToolRules};
use crate::contract::RiskGate;
use crate::finding::{Code, Finding, Findings, shown};

pub(super) fn warnings(compiled: &Compiled) -> Vec<Finding> {
    let mut never: BTreeSet<&str> = BTreeSet::new();
    let mut all = Vec::new();
    // Each round may close tools that need one closed before; it ends when a round closes none.
    loop {
        let before = never.len();
        for (tool, rules) in &compiled.tools {
            if never.contains(tool.as_str()) {
                continue;
            }
            if let Some(why) = closed(compiled, rules, &never) {
                never.insert(tool);
                let mut findings = Findings::new(&rules.contract.file);
                let message = format!("tool {} can never be called: {why}", shown(tool));
                findings.warning(rules.contract.tool_at, Code::NeverCallable, message);
                all.extend(findings.into_list());
            }
        }
        if never.len() == before {
            return all;
        }
    }
}

fn closed(compiled: &Compiled, rules: &ToolRules, never: &BTreeSet<&str>) -> Option<String> {
    let contract = &rules.contract;
    if rules.gate == RiskGate::Block {
        return Some("its risk gate is `block`".to_owned());
    }
    let limits = &compiled.session.limits;
    if limits
        .calls_per_tool
        .get(&contract.tool)
        .is_some_and(|(max, _)| *max == 0)
    {
        return Some("`max_calls_per_tool` is 0".to_owned());
    }
    if let Some(machine) = &compiled.session.phases {
        let legal = |phase: &String| {
            let listed = contract.valid_in_phases.as_ref();
            let valid = listed.is_none_or(|list| list.iter().any(|named| named.name == *phase));
            let target = contract.advances_to.as_ref();
            let moves =
                target.is_none_or(|to| to.name == *phase || machine.allows(phase, &to.name));
            valid && moves
        };
        if !machine.names.iter().any(legal) {
            return Some("no phase allows it and the phase it advances to".to_owned());
        }
    }
    let prior = contract
        .preconditions
        .iter()
        .map(|entry| &entry.prior_tool.name);
    for name in prior {
        if *name == contract.tool {
            return Some("it needs an earlier call of itself".to_owned());
        }
        if never.contains(name.as_str()) {
            return Some(format!(
                "it needs {}, which can never be called",
                shown(name)
            ));
        }
    }
    None
}
