//! The phase machine: exactly one start, every phase reachable, a way out of every phase.
//!
//! Cycles are legal as long as a terminal phase can be reached from them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Phases, check_unique};
use crate::decode::{self, Fields, Named};
use crate::finding::{Code, Findings, Place, shown};
use crate::yaml::Node;

const PHASES_MAX: usize = 256;
const TRANSITIONS_MAX: usize = 4_096;

struct Phase {
    name: Named,
    initial: bool,
    terminal: bool,
}

pub(super) fn decode(
    phases: Option<&Node>,
    transitions: Option<&Node>,
    findings: &mut Findings,
) -> Option<Phases> {
    let Some(node) = phases else {
        if let Some(node) = transitions {
            let message = "`transitions` need `phases`";
            findings.error(node.at, Code::Contradiction, message);
        }
        return None;
    };
    let list = decode::list_of(Some(node), PHASES_MAX, findings, phase);
    let names = list
        .iter()
        .map(|phase| (phase.name.name.as_str(), phase.name.at));
    check_unique(names, "phase", findings);
    let successors = successors(transitions, &list, findings);
    let has_end = list.iter().any(|phase| phase.terminal);
    if !has_end {
        let message = "at least one phase is `terminal`";
        findings.error(node.at, Code::BadValue, message);
    }
    let initial: Vec<&Phase> = list.iter().filter(|phase| phase.initial).collect();
    let [start] = initial.as_slice() else {
        let message = format!("exactly one phase is `initial`, found {}", initial.len());
        findings.error(node.at, Code::BadValue, message);
        return None;
    };
    let machine = Phases {
        initial: start.name.name.clone(),
        names: list.iter().map(|phase| phase.name.name.clone()).collect(),
        successors: successors?,
    };
    // Without an end no phase has a way to one.
    if has_end {
        check_ways(&machine, &list, findings);
    }
    Some(machine)
}

fn phase(node: &Node, findings: &mut Findings) -> Option<Phase> {
    let mut fields = Fields::of(node, findings)?;
    let name = fields.required("name", findings);
    let name = name.and_then(|node| decode::named(node, findings));
    let mut flag = |name| {
        let node = fields.optional(name);
        node.and_then(|node| decode::boolean(node, findings)) == Some(true)
    };
    let (initial, terminal) = (flag("initial"), flag("terminal"));
    fields.finish(findings);
    Some(Phase {
        name: name?,
        initial,
        terminal,
    })
}

fn successors(
    node: Option<&Node>,
    list: &[Phase],
    findings: &mut Findings,
) -> Option<BTreeMap<String, BTreeSet<String>>> {
    let mut all = BTreeMap::new();
    let Some(node) = node else {
        return Some(all);
    };
    let find = |name: &str| list.iter().find(|phase| phase.name.name == name);
    let check = |name: &str, at: Place, findings: &mut Findings| {
        if find(name).is_none() {
            let message = format!("phase {} is declared nowhere", shown(name));
            findings.error(at, Code::UnknownName, message);
        }
    };
    let mut count = 0;
    for (from, targets) in decode::map(node, findings)? {
        check(&from.name, from.at, findings);
        let targets = decode::list_of(Some(targets), TRANSITIONS_MAX, findings, decode::named);
        count += targets.len();
        for target in &targets {
            check(&target.name, target.at, findings);
        }
        let terminal = find(&from.name).is_some_and(|phase| phase.terminal);
        if terminal && !targets.is_empty() {
            let message = format!("phase {} is terminal and has successors", shown(&from.name));
            findings.error(from.at, Code::Contradiction, message);
        }
        let targets = targets.into_iter().map(|target| target.name).collect();
        all.insert(from.name.clone(), targets);
    }
    if count > TRANSITIONS_MAX {
        findings.error(node.at, Code::TooLarge, "more than 4,096 transitions");
    }
    Some(all)
}

fn check_ways(machine: &Phases, list: &[Phase], findings: &mut Findings) {
    let from_start = reachable(machine, &machine.initial);
    for phase in list {
        let name = phase.name.name.as_str();
        let at = phase.name.at;
        if name != machine.initial && !from_start.contains(name) {
            let message = format!("no transition leads to phase {}", shown(name));
            findings.error(at, Code::UnreachablePhase, message);
        }
        let ahead = reachable(machine, name);
        let mut terminals = list.iter().filter(|phase| phase.terminal);
        if phase.terminal || terminals.any(|end| ahead.contains(end.name.name.as_str())) {
            continue;
        }
        if ahead.contains(name) {
            let message = format!(
                "circular transitions: phase {} lies on a cycle without a way to a terminal phase",
                shown(name)
            );
            findings.error(at, Code::CircularTransitions, message);
        } else {
            let message = format!(
                "dead end: no terminal phase can be reached from {}",
                shown(name)
            );
            findings.error(at, Code::DeadEnd, message);
        }
    }
}

/// Returns the phases that one or more moves from a phase lead to.
fn reachable<'a>(machine: &'a Phases, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let next = |name: &str| machine.successors.get(name).into_iter().flatten();
    let mut open: Vec<&str> = next(from).map(String::as_str).collect();
    while let Some(name) = open.pop() {
        if found.insert(name) {
            open.extend(next(name).map(String::as_str));
        }
    }
    found
}
