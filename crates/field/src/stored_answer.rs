//! What is kept of answers, so that a message sent again is answered as it was before.
//!
//! Reads repeat what units say, many times over. What is kept of their answers names units, conflicts and entries, with
//! what may change about them, and the words are looked up when the answer is given again. So a reader does not fill the
//! store with what others wrote, and a purge finds nothing to erase there.

use std::collections::BTreeSet;

use canon::{Digest, Value};
use serde_json::json;

use crate::event::Event;
use crate::kind::{ConflictStatus, Format, MemoryType, UnitStatus};
use crate::render;
use crate::replay;
use crate::state::{Conflict, Field, Unit};
use crate::stored::Salted;

/// The member by which a kept answer is told from a whole one: the operation that it answers.
const KEPT_OF: &str = "kept_of";
pub(crate) const ATTUNE: &str = "ATTUNE";
pub(crate) const DETECT: &str = "DETECT";
pub(crate) const REPLAY: &str = "REPLAY";
/// Stands where the words of a purged unit stood.
pub(crate) const PURGED: &str = "(content purged)";

/// What is kept of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum StoredAnswer {
    /// All of it: it repeats no text of units.
    Whole,
    /// This instead, from which [`Field::rebuild_answer`] makes the answer.
    WithoutText(Value),
}

/// Returns what is kept of an answer with these members.
pub(crate) fn without_text(operation: &str, mut members: Value) -> StoredAnswer {
    if let Some(members) = members.as_object_mut() {
        members.insert(KEPT_OF.to_owned(), operation.into());
    }
    StoredAnswer::WithoutText(members)
}

/// Returns what is kept of a conflict as it is shown.
pub(crate) fn conflict(shown: &Value) -> Value {
    json!([shown.get("id"), shown.get("status")])
}

fn text_at(value: &Value, place: usize) -> &str {
    let found = value.get(place).and_then(Value::as_str);
    found.unwrap_or_default()
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    let found = value.get(name).and_then(Value::as_array);
    found.into_iter().flatten()
}

impl Field {
    /// Returns the answer of which this was kept. Words that were purged since are not in it.
    pub fn rebuild_answer(&self, kept: Value) -> Value {
        match kept.get(KEPT_OF).and_then(Value::as_str) {
            Some(ATTUNE) => self.attuned_again(&kept),
            Some(DETECT) => self.detected_again(&kept),
            Some(REPLAY) => replay::rebuild_answer(self, &kept),
            _ => kept,
        }
    }

    fn detected_again(&self, kept: &Value) -> Value {
        let mut answer = json!({
            "status": "ok",
            "conflicts": self.conflicts_again(kept),
            "scan_coverage": kept.get("scan_coverage"),
        });
        for name in ["conflicts_total", "next_cursor"] {
            if let (Some(members), Some(value)) = (answer.as_object_mut(), kept.get(name)) {
                members.insert(name.to_owned(), value.clone());
            }
        }
        answer
    }

    fn attuned_again(&self, kept: &Value) -> Value {
        let records = list(kept, "record").map(|one| {
            let format = Format::parse(text_at(one, 2)).unwrap_or(Format::IdsOnly);
            let status = UnitStatus::parse(text_at(one, 1));
            let unit = self.unit(text_at(one, 0));
            let score = one.get(3).and_then(Value::as_u64).unwrap_or_default();
            let score = u32::try_from(score).unwrap_or(u32::MAX);
            let shown = unit.map(|unit| shown_at(unit, format, status));
            record(shown.unwrap_or_default(), score, text_at(one, 4), format)
        });
        json!({
            "status": "ok",
            "record": records.collect::<Vec<Value>>(),
            "conflicts": self.conflicts_again(kept),
            "context_budget": kept.get("context_budget"),
            "epoch": kept.get("epoch"),
        })
    }

    fn conflicts_again(&self, kept: &Value) -> Vec<Value> {
        let found = list(kept, "conflicts").filter_map(|one| {
            let conflict = self.conflict(text_at(one, 0))?;
            let status = ConflictStatus::parse(text_at(one, 1)).unwrap_or(conflict.status);
            // How it ended is part of it only once it had ended.
            let ended = conflict.resolution.clone();
            let conflict = Conflict {
                status,
                resolution: ended.filter(|_| status == ConflictStatus::Resolved),
                ..conflict.clone()
            };
            Some(render::conflict(self, &conflict))
        });
        found.collect()
    }

    /// Returns whether the field wrote a unit itself, for a MERGE or COMPACT: its entry is not the one of a message.
    pub(crate) fn was_made_here(&self, unit: &Unit) -> bool {
        let recorded = self.log.unit_named(&unit.id);
        let recorded = recorded.and_then(|(_, node)| self.log.entry(node.record?));
        unit.kind == MemoryType::Synthesis && recorded.is_some_and(|entry| entry.message.is_none())
    }

    /// Returns the digests of all that lies beside the log and repeats the text of units.
    pub(crate) fn text_digests(&self, units: &[&Unit]) -> Vec<Digest> {
        let mut digests = Vec::new();
        for unit in units {
            let recorded = self.log.unit_named(&unit.id);
            let recorded = recorded.and_then(|(_, node)| self.log.entry(node.record?));
            if let Some(Event::Recorded(recorded)) = recorded.map(|entry| &entry.event) {
                digests.push(recorded.text_sha256);
            }
            let row = self.unit_rows.get(&unit.id).copied();
            let model = unit.embedded_by.as_ref();
            let vector = row
                .zip(model)
                .and_then(|(row, model)| self.search.vector(row, model));
            if let Some(vector) = vector {
                // Under the salt of its text when it came with that, under none when it came later.
                let salt = unit.text.as_ref().map(|text| text.salt.clone());
                for salt in [salt.unwrap_or_default(), String::new()] {
                    let value = &vector;
                    digests.push(canon::sha256(&Salted { salt, value }.bytes()));
                }
            }
        }
        digests.extend(self.whole_answers(units));
        digests.sort_unstable();
        digests.dedup();
        digests
    }

    /// Returns the digests of answers that were kept whole and may repeat the text of units.
    fn whole_answers(&self, units: &[&Unit]) -> Vec<Digest> {
        let names: BTreeSet<&str> = units.iter().map(|unit| unit.id.as_str()).collect();
        let entries = self.log.entries().iter();
        let shows = |event: &Event| match event {
            Event::Attuned { unit_ids, .. } => {
                unit_ids.iter().any(|unit| names.contains(unit.as_str()))
            }
            // A summary can quote any unit.
            Event::Replayed { .. } => true,
            _ => false,
        };
        let messages = entries
            .filter(|entry| shows(&entry.event))
            .filter_map(|entry| entry.message.as_ref());
        messages
            .filter(|message| !message.answer_without_text)
            .filter_map(|message| message.answer_sha256)
            .collect()
    }
}

/// Returns a unit as it was shown when it had a status.
fn shown_at(unit: &Unit, format: Format, status: Option<UnitStatus>) -> Value {
    let status = status.unwrap_or(unit.status);
    let shown = render::unit(unit, status, format);
    let mut shown = shown.unwrap_or_else(|| render::unit_without_text(unit, status));
    if let Some(members) = shown.as_object_mut()
        && unit.is_purged()
        && format != Format::IdsOnly
    {
        members.insert("content".to_owned(), PURGED.into());
    }
    shown
}

/// Returns one result of ATTUNE.
pub(crate) fn record(shown: Value, score: u32, reason: &str, format: Format) -> Value {
    json!({
        "memory_unit": shown,
        "relevance_score": f64::from(score) / 10_000.0,
        "relevance_reason": reason,
        "format": if format == Format::Full { "full" } else { "summary" },
    })
}
