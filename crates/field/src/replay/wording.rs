//! The words of a timeline: one template per type of event, so that the bytes of an answer are stable.

use super::AnswerParts;
use crate::event::{Entry, Event, Merged, Outcome, Recorded, UnitText};
use crate::kind::{Method, RelationType, Strategy, TargetType};
use crate::text;

const START_CHARACTERS: usize = 80;
const HIDDEN: &str = "(redacted)";

/// Returns the beginning of a unit's content as descriptions show it.
pub(crate) fn recorded_start(text: &UnitText) -> String {
    text::start(&text.content, START_CHARACTERS)
}

/// Returns whether a unit contradicts another one by its own word.
pub(super) fn contradicts(recorded: &Recorded) -> bool {
    recorded
        .relations
        .iter()
        .any(|relation| relation.kind == RelationType::Contradicts)
}

/// Returns what an event of the timeline says.
pub(super) fn describe(story: &AnswerParts<'_, '_>, entry: &Entry) -> String {
    match &entry.event {
        Event::Registered { role, .. } => format!("Registered as {role}"),
        Event::Deregistered { agent_id, .. } => format!("Deregistered {agent_id}"),
        Event::Recorded(recorded) => {
            let word = if contradicts(recorded) {
                "Recorded contradicting"
            } else {
                "Recorded"
            };
            let kind = recorded.kind;
            match (story.reader.text_of)(&recorded.unit_id) {
                Some(text) => format!("{word} {kind}: {}", recorded_start(text)),
                None => format!("{word} {kind} (content purged)"),
            }
        }
        Event::ConflictCreated {
            detected_by,
            unit_a,
            unit_b,
            ..
        } => match method_word(*detected_by) {
            None => "Explicit conflict created from contradicts relation".to_owned(),
            Some(method) => format!(
                "{method} conflict detected between {} and {}",
                named(story, unit_a),
                named(story, unit_b)
            ),
        },
        Event::ConflictEscalated { reason, .. } => format!("Escalated: {reason}"),
        Event::Merged(merged) => merged_words(story, merged),
        Event::Compacted {
            strategy, unit_ids, ..
        } => format!("Compacted by {strategy}: {} units", unit_ids.len()),
        Event::Retracted { reason, .. } => format!("Retracted: {reason}"),
        Event::Enriched { model, .. } => format!("Enriched by {}", model.name),
        Event::Attuned { unit_ids, .. } => format!("Attuned: {} units", unit_ids.len()),
        Event::Detected {
            mode, conflict_ids, ..
        } => format!("Detected ({mode}): {} new conflicts", conflict_ids.len()),
        Event::Subscribed { action, .. } => format!("Subscription {action}"),
        Event::Replayed {
            target_type,
            target_id,
            ..
        } => match target_type {
            TargetType::Task => format!("Replayed task {}", task(story, target_id)),
            _ => format!("Replayed {target_type} {}", named(story, target_id)),
        },
        Event::HandedOff {
            action,
            task_id,
            to_agent,
            ..
        } => format!("Handoff {action}: {} to {to_agent}", task(story, task_id)),
        Event::Coordinated {
            action, task_id, ..
        } => format!("Task {action}: {}", task(story, task_id)),
        Event::SessionChanged {
            action, session_id, ..
        } => format!("Session {action}: {session_id}"),
        Event::AgentFailed { agent_id, reason } => format!("Failed {agent_id}: {reason}"),
    }
}

fn method_word(method: Method) -> Option<&'static str> {
    match method {
        Method::Explicit => None,
        Method::Semantic => Some("Semantic"),
        Method::Logical => Some("Logical"),
        Method::Temporal => Some("Temporal"),
    }
}

/// Returns the id of a unit, unless the reader may not see it.
pub(super) fn named<'a>(story: &AnswerParts<'_, '_>, unit: &'a str) -> &'a str {
    if story.sees_unit(unit) { unit } else { HIDDEN }
}

/// Returns the id of a task, unless the reader may not see it.
fn task<'a>(story: &AnswerParts<'_, '_>, task: &'a str) -> &'a str {
    if story.sees_task(task) { task } else { HIDDEN }
}

fn merged_words(story: &AnswerParts<'_, '_>, merged: &Merged) -> String {
    let winner = merged
        .winner_id
        .as_deref()
        .map_or(HIDDEN, |unit| named(story, unit));
    match (merged.outcome, merged.strategy) {
        (Outcome::Escalated, _) => "Escalated for human review".to_owned(),
        (Outcome::PendingVote, _) => format!("Vote for {winner}"),
        (Outcome::Resolved, Strategy::Synthesis) => {
            let new = merged
                .new_unit_id
                .as_deref()
                .map_or(HIDDEN, |unit| named(story, unit));
            let units = units_of(story, &merged.conflict_id);
            format!("Resolved via synthesis: {new} replaces {units}")
        }
        (Outcome::Resolved, strategy) => format!("Resolved via {strategy}: {winner} prevails"),
    }
}

/// Returns the names of the two units of a conflict.
fn units_of(story: &AnswerParts<'_, '_>, conflict: &str) -> String {
    let created = story
        .log
        .conflict_named(conflict)
        .into_iter()
        .flat_map(|conflict| &conflict.events)
        .filter_map(|place| story.log.entry(*place))
        .find_map(|entry| match &entry.event {
            Event::ConflictCreated {
                conflict_id,
                unit_a,
                unit_b,
                ..
            } if conflict_id == conflict => Some((unit_a, unit_b)),
            _ => None,
        });
    match created {
        Some((a, b)) => format!("{} and {}", named(story, a), named(story, b)),
        None => HIDDEN.to_owned(),
    }
}
