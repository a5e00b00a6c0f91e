//! Answers that were given, so that a message sent twice is answered twice and done once.
//!
//! An answer is not in the log: it can hold the text of units, and a purge must erase that. A purge replaces the text in
//! remembered answers; the digest of the request, which the log keeps, still tells the same message from another.

use std::collections::{BTreeMap, BTreeSet};

use canon::{Map, Value};

use crate::event::{Message, UnitText};
use crate::replay::recorded_start;

const PURGED: &str = "(content purged)";

type Key = (String, String);

/// The answers of accepted messages, by sender and message id.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    answers: BTreeMap<Key, Value>,
    /// Where the text of each unit stands.
    showing: BTreeMap<String, BTreeSet<Key>>,
    /// REPLAY answers: their summaries can quote any unit.
    summaries: BTreeSet<Key>,
}

fn key_of(message: &Message) -> Key {
    (message.agent_id.clone(), message.id.clone())
}

impl Answers {
    /// Remembers what was answered to a message.
    pub fn remember(&mut self, message: &Message, answer: &Value) {
        let key = key_of(message);
        for unit in units_shown(answer) {
            self.showing
                .entry(unit.to_owned())
                .or_default()
                .insert(key.clone());
        }
        if answer.get("summary").is_some() {
            self.summaries.insert(key.clone());
        }
        self.answers.insert(key, answer.clone());
    }

    /// Returns what was answered to a message.
    pub fn get(&self, message: &Message) -> Option<&Value> {
        self.answers.get(&key_of(message))
    }

    /// Takes the text of a purged unit out of every answer.
    pub fn erase(&mut self, unit: &str, text: &UnitText) {
        let keys = self.showing.remove(unit).unwrap_or_default();
        let start = recorded_start(text);
        for key in keys.union(&self.summaries) {
            if let Some(answer) = self.answers.get_mut(key) {
                erase_in(answer, unit, &start);
            }
        }
    }
}

fn list<'a>(answer: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    answer
        .get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn units_shown(answer: &Value) -> impl Iterator<Item = &str> {
    let records = list(answer, "record").filter_map(|record| record.get("memory_unit")?.get("id"));
    let events = list(answer, "timeline").filter_map(|event| event.get("memory_unit_id"));
    records.chain(events).filter_map(Value::as_str)
}

fn erase_in(answer: &mut Value, unit: &str, start: &str) {
    let Some(members) = answer.as_object_mut() else {
        return;
    };
    for record in members
        .get_mut("record")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let shown = record.get_mut("memory_unit").and_then(Value::as_object_mut);
        if let Some(shown) = shown.filter(|shown| is(shown, "id", unit)) {
            shown.retain(|name, _| ["id", "type", "status", "epoch"].contains(&name.as_str()));
            shown.insert("content".into(), PURGED.into());
        }
    }
    for event in members
        .get_mut("timeline")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let event = event.as_object_mut();
        let Some(event) = event
            .filter(|event| is(event, "memory_unit_id", unit) && is(event, "event_type", "RECORD"))
        else {
            continue;
        };
        if let Some(Value::String(description)) = event.get_mut("description")
            && let Some((kind, _)) = description.split_once(':')
        {
            *description = format!("{kind} {PURGED}");
        }
    }
    if let (Some(Value::String(summary)), false) = (members.get_mut("summary"), start.is_empty()) {
        *summary = summary.replace(start, PURGED);
    }
}

fn is(members: &Map<String, Value>, name: &str, text: &str) -> bool {
    members.get(name).and_then(Value::as_str) == Some(text)
}
