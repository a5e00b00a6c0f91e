//! The summary of a replay: one paragraph of plain words, the same at every depth.
//!
//! What the target is and how it stands; the key events, up to ten, as who did what; who ended which conflict, how and
//! when; and the size of the chain. Whatever the reader may not see is not counted in, nor told in other words: of a hidden
//! event it says its type alone, as the timeline does.

use super::AnswerParts;
use super::wording::{contradicts, describe, named};
use crate::event::{Entry, Event, Outcome};
use crate::kind::{CompactStrategy, Mode, TargetType, UnitStatus};

const SENTENCES_MAX: usize = 10;

/// Writes the summary.
pub(super) fn write(story: &AnswerParts<'_, '_>) -> String {
    let entries = |places: &[crate::log::EntryNumber]| -> Vec<&Entry> {
        places
            .iter()
            .filter_map(|place| story.log.entry(*place))
            .collect()
    };
    let (chain, key) = (entries(&story.chain), entries(&story.key));
    let seen: Vec<&Entry> = chain
        .iter()
        .filter(|entry| story.sees(entry))
        .copied()
        .collect();
    // What hidden events made of it is not told, and not denied either.
    let known = match seen.len() == chain.len() {
        true => "",
        false => " as far as you see",
    };
    let mut text = standing(story, &seen, known);
    let shown = key
        .iter()
        .take(SENTENCES_MAX)
        .map(|entry| describe_entry(story, entry));
    let mut sentences: Vec<String> = shown.collect();
    if key.len() > SENTENCES_MAX {
        sentences.push(format!("{} more key events", key.len() - SENTENCES_MAX));
    }
    if !sentences.is_empty() {
        text.push(' ');
        text.push_str(&sentences.join("; "));
        text.push('.');
    }
    let seen = key.iter().filter(|entry| story.sees(entry));
    for (entry, strategy) in seen.filter_map(|entry| resolution(entry)) {
        let by = entry.agent_id.as_str();
        text.push_str(&format!(
            " Resolved by {by} using {strategy} strategy at epoch {}.",
            entry.epoch
        ));
    }
    if let (Some(first), Some(last)) = (chain.first(), chain.last()) {
        text.push_str(&format!(
            " {} events by {} agents, from epoch {} to epoch {}.",
            chain.len(),
            super::agents(story).len(),
            first.epoch,
            last.epoch
        ));
    }
    text
}

fn resolution<'a>(entry: &&'a Entry) -> Option<(&'a Entry, &'static str)> {
    match &entry.event {
        Event::Merged(merged) if merged.outcome == Outcome::Resolved => {
            Some((entry, merged.strategy.as_str()))
        }
        _ => None,
    }
}

/// Returns what the target is and where it stands, as the visible part of the chain tells it.
fn standing(story: &AnswerParts<'_, '_>, chain: &[&Entry], known: &str) -> String {
    let id = story.target.id.as_str();
    match story.target.kind {
        TargetType::MemoryUnit | TargetType::Decision => unit_standing(story, id, chain, known),
        TargetType::Conflict => {
            let mut merges = chain.iter().rev().filter_map(|entry| match &entry.event {
                Event::Merged(merged) if merged.conflict_id == id => Some(match merged.outcome {
                    Outcome::Resolved => "resolved",
                    Outcome::Escalated => "escalated",
                    Outcome::PendingVote => "being voted on",
                }),
                Event::ConflictEscalated { conflict_id, .. } if conflict_id == id => {
                    Some("escalated")
                }
                _ => None,
            });
            let status = merges.next();
            let between = chain.iter().find_map(|entry| match &entry.event {
                Event::ConflictCreated {
                    conflict_id,
                    unit_a,
                    unit_b,
                    ..
                } if conflict_id == id => Some((unit_a, unit_b)),
                _ => None,
            });
            match (between, status) {
                (Some((a, b)), status) => format!(
                    "Conflict {id} between {} and {} is {}{known}.",
                    named(story, a),
                    named(story, b),
                    status.unwrap_or("detected")
                ),
                (None, Some(status)) => format!("Conflict {id} is {status}{known}."),
                (None, None) => format!("Conflict {id} belongs to a session that you do not see."),
            }
        }
        TargetType::Task => {
            if !story.sees_task(id) {
                return format!("Task {id} belongs to a session that you do not see.");
            }
            let units = chain.iter().filter(|entry| {
                matches!(&entry.event, Event::Recorded(recorded) if recorded.task_id.as_deref() == Some(id))
            });
            let state = chain.iter().rev().find_map(|entry| match &entry.event {
                Event::Coordinated {
                    action, task_id, ..
                } if task_id == id => Some(*action),
                _ => None,
            });
            let last = state.map_or(String::new(), |action| format!(", last {action}"));
            format!("Task {id} has {}{last}{known}.", recorded(units.count()))
        }
        TargetType::Session => {
            if !(story.reader.sees)(Some(id)) {
                return format!("You do not see what is in session {id}.");
            }
            let records = chain
                .iter()
                .filter(|entry| matches!(entry.event, Event::Recorded(_)));
            format!("Session {id} has {}.", recorded(records.count()))
        }
    }
}

fn recorded(count: usize) -> String {
    match count {
        1 => "1 recorded unit".to_owned(),
        count => format!("{count} recorded units"),
    }
}

fn unit_standing(story: &AnswerParts<'_, '_>, id: &str, chain: &[&Entry], known: &str) -> String {
    let (mut status, mut kind, mut extra) = (UnitStatus::Active, "unit", "");
    for entry in chain {
        match &entry.event {
            Event::Recorded(recorded) if recorded.unit_id == id => {
                kind = recorded.kind.as_str();
                status = recorded.status;
                if recorded.mode == Mode::Draft {
                    status = UnitStatus::Draft;
                }
            }
            Event::Retracted { unit_id, .. } if unit_id == id => status = UnitStatus::Retracted,
            Event::Enriched { unit_id, .. }
                if unit_id == id && status == UnitStatus::PendingEnrichment =>
            {
                status = UnitStatus::Active;
            }
            Event::Compacted {
                strategy, unit_ids, ..
            } if unit_ids.iter().any(|unit| unit == id) => {
                extra = match strategy {
                    CompactStrategy::Purge => ", its content purged",
                    CompactStrategy::Archive | CompactStrategy::Summarize => ", archived",
                };
            }
            _ => {}
        }
        let mut own = entry
            .event
            .effects()
            .iter()
            .filter(|effect| effect.unit_id == id);
        if let Some(effect) = own.next_back() {
            status = effect.status;
        }
    }
    if !story.sees_unit(id) {
        return format!("Memory unit {id} belongs to a session that you do not see.");
    }
    format!("Memory unit {id}, a {kind}, is {status}{extra}{known}.")
}

/// Returns one key event as who did what.
fn describe_entry(story: &AnswerParts<'_, '_>, entry: &Entry) -> String {
    if !story.sees(entry) {
        return format!("(redacted) {}", entry.event.event_type());
    }
    let agent = &entry.agent_id;
    match &entry.event {
        Event::Recorded(recorded) => {
            let relation = if contradicts(recorded) {
                " with contradicts relation"
            } else {
                ""
            };
            let kind = recorded.kind;
            match (story.reader.text_of)(&recorded.unit_id) {
                Some(text) => format!(
                    "{agent} recorded {kind}: {}{relation}",
                    story.quoted(&recorded.unit_id, text)
                ),
                None => format!("{agent} recorded {kind} (content purged){relation}"),
            }
        }
        _ => {
            let description = describe(story, entry);
            let mut characters = description.chars();
            let lower: String = characters
                .next()
                .into_iter()
                .flat_map(char::to_lowercase)
                .chain(characters)
                .collect();
            format!("{agent}: {lower}")
        }
    }
}
