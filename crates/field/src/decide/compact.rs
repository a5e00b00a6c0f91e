//! COMPACT: archives, summarises or purges units. The log keeps every entry.

use std::collections::{BTreeMap, BTreeSet};

use canon::Value;
use serde_json::json;

use super::{Embedding, Synthesis, Work};
use crate::caller;
use crate::error::{Check, Code, Fault};
use crate::event::{Effect, Event, Merged, Outcome, UnitText};
use crate::kind::{CompactStrategy, MemoryType, RelationType, Strategy, UnitStatus};
use crate::state::{Conflict, Unit};
use crate::text;

/// Which units are meant; every member restricts.
struct Filter {
    max_age: Option<u64>,
    session: Option<String>,
    types: Vec<MemoryType>,
    status: Vec<UnitStatus>,
}

/// What was made of units that are purged.
#[derive(Default)]
struct Derived {
    /// Purged with them.
    purged: Vec<String>,
    /// Not purged, because they are in dispute.
    kept: Vec<String>,
}

impl Filter {
    fn is_empty(&self) -> bool {
        self.max_age.is_none()
            && self.session.is_none()
            && self.types.is_empty()
            && self.status.is_empty()
    }

    fn selects(&self, unit: &Unit, epoch: u64) -> bool {
        let is_old = |age: u64| unit.epoch < epoch.saturating_sub(age);
        self.max_age.is_none_or(is_old)
            && (self.session.is_none() || self.session == unit.session)
            && (self.types.is_empty() || self.types.contains(&unit.kind))
            && (self.status.is_empty() || self.status.contains(&unit.status))
    }
}

impl<'a> Work<'a> {
    pub(super) fn compact(&mut self) -> Check<Value> {
        let stated = self.peek("strategy").and_then(CompactStrategy::parse);
        // What is not offered is refused before authority is asked for, as with operations.
        if let Some(strategy) = stated.filter(|strategy| !self.field.config.compacts(*strategy)) {
            let message = format!("strategy `{strategy}` is not offered at this level");
            return Err(Fault::new(Code::UnsupportedOperation, message));
        }
        if let Some(strategy) = stated {
            self.require(caller::to_compact(strategy))?;
        }
        let payload = self.payload();
        let strategy = payload.required_choice("strategy", CompactStrategy::parse)?;
        let purges = strategy == CompactStrategy::Purge;
        let filter = self.read_compact_filter()?;
        let reason = payload.line("reason")?;
        if purges && filter.is_empty() {
            return Err(Fault::request(
                "`filter` selects everything: a purge must name what it erases",
            ));
        }
        // What must be forgotten is forgotten wherever it is, also in a session that is over or of others.
        if !purges {
            self.check_session_takes_writes()?;
        }
        let is_held = |unit: &&Unit| match purges {
            true => self.field.is_kept_from_purges(unit),
            false => self.field.is_disputed(unit, None),
        };
        let (held, mut selected): (Vec<&Unit>, Vec<&Unit>) = self
            .field
            .units
            .iter()
            .filter(|unit| !unit.is_purged())
            .filter(|unit| purges || !unit.archived)
            .filter(|unit| filter.selects(unit, self.epoch))
            .filter(|unit| purges || self.field.sees(self.agent(), unit))
            .partition(is_held);
        let derived = match purges {
            true => self.add_derived(&mut selected),
            false => Derived::default(),
        };
        let reclaimed: usize = selected
            .iter()
            .filter_map(|unit| unit.text.as_ref())
            .map(|text| text.bytes().len())
            .sum();
        let erased = match strategy {
            CompactStrategy::Purge => self.field.text_digests(&selected),
            CompactStrategy::Archive | CompactStrategy::Summarize => Vec::new(),
        };
        self.log(Event::Compacted {
            strategy,
            unit_ids: selected.iter().map(|unit| unit.id.clone()).collect(),
            reason,
            erased,
        });
        if purges {
            self.end_conflicts_with_drafts(&selected);
        }
        let created = if strategy == CompactStrategy::Summarize {
            self.summarize(&selected)
        } else {
            0
        };
        let mut answer = json!({
            "status": "ok",
            "units_affected": selected.len(),
            "synthesis_units_created": created,
            "storage_reclaimed_bytes": purges.then_some(reclaimed),
        });
        if let Some(members) = answer.as_object_mut().filter(|_| purges) {
            members.insert("derived_units".into(), derived.purged.into());
            members.insert("derived_units_kept".into(), derived.kept.into());
            let held: Vec<&str> = held.iter().map(|unit| unit.id.as_str()).collect();
            members.insert("units_kept".into(), held.into());
        }
        Ok(answer)
    }

    /// Ends the open conflicts of purged units, all of them with drafts, as a MERGE by the sender does: what is purged does not
    /// prevail, and the other unit stands as it did before.
    fn end_conflicts_with_drafts(&mut self, purged: &[&Unit]) {
        let field = self.field;
        let gone: BTreeSet<&str> = purged.iter().map(|unit| unit.id.as_str()).collect();
        let ended: BTreeSet<usize> = purged
            .iter()
            .flat_map(|unit| unit.conflicts.iter().copied())
            .filter(|row| field.conflicts.get(*row).is_some_and(Conflict::is_open))
            .collect();
        for row in &ended {
            let Some(conflict) = field.conflicts.get(*row) else {
                continue;
            };
            let (Some(a), Some(b)) = (field.at(conflict.a), field.at(conflict.b)) else {
                continue;
            };
            let (winner, loser) = match gone.contains(b.id.as_str()) {
                true => (a, b),
                false => (b, a),
            };
            let mut effects: Vec<Effect> = self.superseding(&loser.id).into_iter().collect();
            let is_free = || {
                let mut others = winner
                    .conflicts
                    .iter()
                    .filter(|other| !ended.contains(other));
                !others.any(|other| field.conflicts.get(*other).is_some_and(Conflict::is_open))
            };
            if self.status_of(&winner.id) == Some(UnitStatus::Contested) && is_free() {
                effects.push(Effect {
                    unit_id: winner.id.clone(),
                    status: winner.uncontested,
                });
            }
            self.log(Event::Merged(Merged {
                conflict_id: conflict.id.clone(),
                strategy: Strategy::Authority,
                outcome: Outcome::Resolved,
                winner_id: Some(winner.id.clone()),
                new_unit_id: None,
                rationale: "A unit of the conflict was purged.".into(),
                effects,
            }));
        }
    }

    /// Adds what the field itself made of the words of selected units: the summaries of COMPACT, the syntheses of MERGE, and
    /// what was made of those. Units that agents recorded are their own words, whatever they quote.
    fn add_derived(&self, selected: &mut Vec<&'a Unit>) -> Derived {
        let field = self.field;
        let mut known: BTreeSet<&str> = selected.iter().map(|unit| unit.id.as_str()).collect();
        let mut derived = Derived::default();
        let mut next = 0;
        while let Some(unit) = selected.get(next).copied() {
            next += 1;
            let sources = unit.incoming.iter();
            let sources = sources.filter(|(kind, _)| *kind == RelationType::Elaborates);
            for made in sources.filter_map(|(_, row)| field.at(*row)) {
                if made.is_purged() || !field.was_made_here(made) || !known.insert(&made.id) {
                    continue;
                }
                // One that is in dispute waits for the end of that, like every unit.
                if field.is_kept_from_purges(made) {
                    derived.kept.push(made.id.clone());
                } else {
                    derived.purged.push(made.id.clone());
                    selected.push(made);
                }
            }
        }
        derived
    }

    fn read_compact_filter(&self) -> Check<Filter> {
        let Some(filter) = self.payload().object("filter", "filter.")? else {
            return Ok(Filter {
                max_age: None,
                session: None,
                types: Vec::new(),
                status: Vec::new(),
            });
        };
        let len_max = self.field.config.limits.list_len_max;
        Ok(Filter {
            max_age: filter.integer("max_age_epochs", 0)?,
            session: filter.id("session_id")?,
            types: filter.choices("types", MemoryType::parse, len_max)?,
            status: filter.choices("status", UnitStatus::parse, len_max)?,
        })
    }

    /// Writes one synthesis per task and session, in the order of their first units; returns how many.
    fn summarize(&mut self, selected: &[&Unit]) -> usize {
        let mut places: BTreeMap<(&Option<String>, &Option<String>), usize> = BTreeMap::new();
        let mut groups: Vec<Vec<&Unit>> = Vec::new();
        for unit in selected {
            let place = *places
                .entry((&unit.task, &unit.session))
                .or_insert(groups.len());
            match groups.get_mut(place) {
                Some(group) => group.push(unit),
                None => groups.push(vec![unit]),
            }
        }
        let created = groups.len();
        // A model outside has not seen these texts: they wait for their vectors unless the built-in one is used.
        let embedding = match &self.call.embedding {
            Embedding::BuiltIn => Embedding::BuiltIn,
            Embedding::Given(_) | Embedding::Failed(_) => {
                Embedding::Failed("made by the field".into())
            }
        };
        for group in groups {
            let Some(first) = group.first() else { continue };
            let score = group
                .iter()
                .map(|unit| unit.score.unwrap_or(0.0))
                .fold(1.0, f64::min);
            let text = UnitText {
                salt: self.next_salt(),
                content: digest(&group, self.field.config.limits.content_bytes_max),
                purpose: "Summary of archived units".into(),
                question: None,
                reasoning: Some("The lowest score of the units that were summarised.".into()),
                evidence: None,
                assumptions: None,
                descriptions: Vec::new(),
            };
            let synthesis = Synthesis {
                unit_id: self.next_id("mem"),
                task_id: first.task.clone(),
                session_id: first.session.clone(),
                sources: group.iter().map(|unit| unit.id.clone()).collect(),
                score,
                text,
                embedding: embedding.clone(),
            };
            self.record_synthesis(synthesis);
        }
        created
    }
}

/// Returns the first sentence of each unit, as many as fit.
fn digest(group: &[&Unit], bytes_max: usize) -> String {
    let mut digest = format!("Summary of {} units.", group.len());
    for unit in group {
        let sentence = unit
            .text
            .as_ref()
            .map(|text| text::summary(&text.content))
            .unwrap_or_default();
        let line = format!(
            "\n{} by {}: {}",
            unit.kind,
            unit.author,
            text::start(&sentence, 200)
        );
        if digest.len() + line.len() > bytes_max {
            break;
        }
        digest.push_str(&line);
    }
    digest
}
