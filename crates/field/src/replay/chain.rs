//! The causal chain: which events led to where a target stands.
//!
//! What a unit points at are its reasons, and they are followed without end. What points at a unit counts only where it
//! acts on it: replaces, supports, informs, blocks, or contradicts it. Each visited unit has a horizon, the epoch up to
//! which events on it count: for the target that is now, for a reason the epoch of the unit that used it.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::{Target, is_idle_read};
use crate::config::Limits;
use crate::error::{Check, Code, Fault};
use crate::event::Event;
use crate::kind::{MemoryType, RelationType, TargetType};
use crate::log::{ConflictNode, EntryNumber, Log, UnitNode};

/// Returns the whole chain and the key events of a target, both in order.
pub(super) fn collect(
    log: &Log,
    target: &Target,
    limits: &Limits,
) -> Check<(Vec<EntryNumber>, Vec<EntryNumber>)> {
    let unknown = || {
        let kind = target.kind.as_str().replace('_', " ");
        Fault::new(
            Code::UnitNotFound,
            format!("there is no {kind} under `target_id`"),
        )
    };
    let visits = limits.replay_visit_max;
    let (chain, key) = match target.kind {
        TargetType::MemoryUnit | TargetType::Decision => {
            let (node, unit) = log.unit_named(&target.id).ok_or_else(unknown)?;
            let record = unit.record.ok_or_else(unknown)?;
            if target.kind == TargetType::Decision && !is_decision(log, record) {
                return Err(unknown());
            }
            let chain = events_of(log, &horizons(log, [(node, log.now())], visits)?);
            let key = key_of_unit(log, node, visits)?;
            let key = key.intersection(&chain).copied().collect();
            (chain, key)
        }
        TargetType::Conflict => {
            let conflict = log.conflict_named(&target.id).ok_or_else(unknown)?;
            if !conflict.created {
                return Err(unknown());
            }
            let horizon = conflict.end.unwrap_or(log.now());
            let seeds = conflict.units.iter().map(|unit| (*unit, horizon));
            let mut chain = events_of(log, &horizons(log, seeds, visits)?);
            let mut key: BTreeSet<EntryNumber> = conflict.events.iter().copied().collect();
            key.extend(records(log, conflict.new.iter()));
            chain.extend(&key);
            key.extend(records(log, &conflict.units));
            (chain, key)
        }
        TargetType::Task => {
            let of_task = log.of_task(&target.id);
            if of_task.is_empty() {
                return Err(unknown());
            }
            let units: Vec<u32> = of_task
                .iter()
                .filter_map(|place| recorded_node(log, *place))
                .collect();
            let seeds = units.iter().map(|unit| (*unit, log.now()));
            let mut chain = events_of(log, &horizons(log, seeds, visits)?);
            chain.extend(of_task);
            let mut key: BTreeSet<EntryNumber> = of_task.iter().copied().collect();
            for unit in units.iter().filter_map(|unit| log.unit(*unit)) {
                key.extend(&unit.touched);
                key.extend(conflicts(log, unit).flat_map(|conflict| &conflict.events));
            }
            (chain, key)
        }
        TargetType::Session => {
            let of_session = log.of_session(&target.id);
            if of_session.is_empty() {
                return Err(unknown());
            }
            let chain: BTreeSet<EntryNumber> = of_session.iter().copied().collect();
            let key = of_session
                .iter()
                .copied()
                .filter(|place| {
                    log.entry(*place)
                        .is_some_and(|entry| !is_idle_read(&entry.event))
                })
                .collect();
            (chain, key)
        }
    };
    Ok((ordered(log, chain), ordered(log, key)))
}

fn ordered(log: &Log, places: BTreeSet<EntryNumber>) -> Vec<EntryNumber> {
    let mut places: Vec<EntryNumber> = places.into_iter().collect();
    places.sort_by_key(|place| log.order(*place));
    places
}

fn too_many(visits_max: usize) -> Fault {
    let message = format!("the chain visits more than {visits_max} units");
    Fault::new(Code::ReplayTooLarge, message).advising(None)
}

/// Returns the units of a chain, each with its horizon.
///
/// A unit that is taken has the largest horizon that it will ever get, because every unit pushed later has a smaller
/// or equal one: each is visited once.
fn horizons(
    log: &Log,
    seeds: impl IntoIterator<Item = (u32, u64)>,
    visits_max: usize,
) -> Check<BTreeMap<u32, u64>> {
    let mut reached = BTreeMap::new();
    let mut work: BinaryHeap<(u64, u32)> = seeds
        .into_iter()
        .map(|(node, horizon)| (horizon, node))
        .collect();
    while let Some((horizon, node)) = work.pop() {
        let Some(unit) = log.unit(node) else { continue };
        if unit.record.is_none() || unit.epoch > horizon || reached.contains_key(&node) {
            continue;
        }
        if reached.len() >= visits_max {
            return Err(too_many(visits_max));
        }
        reached.insert(node, horizon);
        for (_, target) in &unit.outgoing {
            work.push((unit.epoch, *target));
        }
        for (kind, source) in &unit.incoming {
            if acts_on_target(*kind) && log.unit(*source).is_some_and(|unit| unit.epoch <= horizon)
            {
                work.push((horizon, *source));
            }
        }
        for conflict in conflicts(log, unit) {
            if !began_by(log, conflict, horizon) {
                continue;
            }
            let while_open = conflict.end.map_or(horizon, |end| end.min(horizon));
            for other in conflict.units.iter().filter(|other| **other != node) {
                work.push((while_open, *other));
            }
            if let (Some(new), Some(end)) = (conflict.new, conflict.end)
                && end <= horizon
            {
                work.push((horizon, new));
            }
        }
    }
    Ok(reached)
}

fn acts_on_target(kind: RelationType) -> bool {
    match kind {
        RelationType::Supersedes
        | RelationType::Supports
        | RelationType::Informs
        | RelationType::Blocks => true,
        // A contradiction acts through its conflict; the rest are consequences.
        RelationType::Contradicts
        | RelationType::DependsOn
        | RelationType::CausedBy
        | RelationType::Elaborates
        | RelationType::Answers => false,
    }
}

fn began_by(log: &Log, conflict: &ConflictNode, horizon: u64) -> bool {
    conflict
        .events
        .first()
        .and_then(|place| log.entry(*place))
        .is_some_and(|entry| entry.epoch <= horizon)
}

fn conflicts<'a>(log: &'a Log, unit: &'a UnitNode) -> impl Iterator<Item = &'a ConflictNode> {
    unit.conflicts.iter().filter_map(|node| log.conflict(*node))
}

fn events_of(log: &Log, reached: &BTreeMap<u32, u64>) -> BTreeSet<EntryNumber> {
    let mut events = BTreeSet::new();
    for (node, horizon) in reached {
        let Some(unit) = log.unit(*node) else {
            continue;
        };
        events.extend(unit.record);
        let of_conflicts = conflicts(log, unit).flat_map(|conflict| &conflict.events);
        let within = unit.touched.iter().chain(of_conflicts).filter(|place| {
            log.entry(**place)
                .is_some_and(|entry| entry.epoch <= *horizon)
        });
        events.extend(within);
    }
    events
}

/// Returns the units that a unit replaced and those that replaced it, however far; its siblings are not among them.
fn line(log: &Log, start: u32, visits_max: usize) -> Check<BTreeSet<u32>> {
    let mut line: BTreeSet<u32> = BTreeSet::from([start]);
    for to_older in [true, false] {
        let mut seen = BTreeSet::from([start]);
        let mut work = vec![start];
        while let Some(node) = work.pop() {
            if seen.len() > visits_max {
                return Err(too_many(visits_max));
            }
            let next = if to_older {
                replaced_by(log, node)
            } else {
                replacing(log, node)
            };
            work.extend(next.into_iter().filter(|next| seen.insert(*next)));
        }
        line.extend(seen);
    }
    Ok(line)
}

fn supersedes(relations: &[(RelationType, u32)]) -> impl Iterator<Item = u32> {
    relations
        .iter()
        .filter(|(kind, _)| *kind == RelationType::Supersedes)
        .map(|(_, node)| *node)
}

/// The units that `node` replaced: by its relations, or as the synthesis of their conflict.
fn replaced_by(log: &Log, node: u32) -> Vec<u32> {
    let Some(unit) = log.unit(node) else {
        return Vec::new();
    };
    let merged = unit
        .synthesis_of
        .iter()
        .filter_map(|conflict| log.conflict(*conflict))
        .flat_map(|conflict| conflict.units.iter().copied());
    supersedes(&unit.outgoing).chain(merged).collect()
}

/// The units that replaced `node`.
fn replacing(log: &Log, node: u32) -> Vec<u32> {
    let Some(unit) = log.unit(node) else {
        return Vec::new();
    };
    let merged = conflicts(log, unit).filter_map(|conflict| conflict.new);
    supersedes(&unit.incoming).chain(merged).collect()
}

fn key_of_unit(log: &Log, node: u32, visits_max: usize) -> Check<BTreeSet<EntryNumber>> {
    let mut key = BTreeSet::new();
    for unit in line(log, node, visits_max)?
        .iter()
        .filter_map(|node| log.unit(*node))
    {
        key.extend(unit.record);
        key.extend(&unit.touched);
        for conflict in conflicts(log, unit) {
            key.extend(&conflict.events);
            key.extend(records(log, &conflict.units));
            key.extend(records(log, conflict.new.iter()));
        }
    }
    Ok(key)
}

fn records<'a>(
    log: &'a Log,
    nodes: impl IntoIterator<Item = &'a u32> + 'a,
) -> impl Iterator<Item = EntryNumber> + 'a {
    nodes
        .into_iter()
        .filter_map(|node| log.unit(*node).and_then(|unit| unit.record))
}

fn recorded_node(log: &Log, place: EntryNumber) -> Option<u32> {
    match &log.entry(place)?.event {
        Event::Recorded(recorded) => log.unit_named(&recorded.unit_id).map(|(node, _)| node),
        _ => None,
    }
}

fn is_decision(log: &Log, record: EntryNumber) -> bool {
    log.entry(record).is_some_and(|entry| {
        matches!(&entry.event, Event::Recorded(recorded) if recorded.kind == MemoryType::Decision)
    })
}
