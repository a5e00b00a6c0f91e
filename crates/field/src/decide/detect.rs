//! DETECT, and the automatic search for contradictions that RECORD shares with it.
//!
//! Automatic detection looks at pairs of committed units that stand, of the same type and task, by different agents,
//! without a relation and without an earlier conflict between them. Two such units contradict each other when their
//! words are nearly the same and they differ in a number, or one of them denies.

use std::collections::BTreeMap;

use canon::Value;
use serde_json::json;

use super::{Embedding, Work};
use crate::conflict_list::Page;
use crate::error::{Check, Code, Fault};
use crate::event::Event;
use crate::kind::{ConflictStatus, ConflictType, DetectMode, MemoryType, Method, Mode};
use crate::state::{Conflict, Field, Row, Unit};
use crate::stored_answer;
use crate::text::Claims;
use crate::vector::{Model, Sparse, Vector};

/// How close two texts must be to contradict each other.
const COSINE_MIN: f64 = 0.80;

/// Ids of units that contradict a new one, the closest ones if there are many, in the order in which they were recorded.
pub(super) type UnitIds = Vec<String>;

/// What a search for contradictions found before the message was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    pub(super) unit_ids: Vec<String>,
    /// Units of the field that were compared, in the order of the log.
    pub(super) units_seen: usize,
}

/// A unit that is about to be recorded.
pub(super) struct NewUnit<'a> {
    pub(super) kind: MemoryType,
    pub(super) task: &'a str,
    pub(super) author: &'a str,
    pub(super) content: &'a str,
    pub(super) related: &'a [&'a str],
}

impl NewUnit<'_> {
    /// Returns the contradictions among units recorded at or after row `from`, and of `known` those that still count.
    ///
    /// Nothing if there are more units to compare than the limit allows.
    pub(super) fn find(
        &self,
        field: &Field,
        embedding: &Embedding,
        from: usize,
        known: &[String],
    ) -> Option<UnitIds> {
        let vector = match embedding {
            Embedding::BuiltIn => Vector::hash_1024(self.content),
            Embedding::Given(vector) => vector.clone(),
            Embedding::Failed(_) => return None,
        };
        let rows = field.by_task.get(self.task).map_or(&[][..], Vec::as_slice);
        let most = field.config.limits.detect_pairs_max;
        let candidates: Vec<(Row, &Unit)> = rows
            .iter()
            .filter_map(|row| field.at(*row).map(|unit| (*row, unit)))
            .filter(|(row, unit)| {
                let is_recent = usize::try_from(*row).is_ok_and(|row| row >= from);
                (is_recent || known.contains(&unit.id)) && self.may_contradict(field, unit)
            })
            .take(most.saturating_add(1))
            .collect();
        if candidates.len() > most {
            return None;
        }
        let (claims, query) = (Claims::of(self.content), Sparse::of(&vector));
        let found = candidates.into_iter().filter_map(|(row, unit)| {
            // Words first: they rule most units out and cost less than a vector.
            let theirs = unit.claims.as_ref();
            if !theirs.is_some_and(|theirs| claims.contradict(theirs)) {
                return None;
            }
            let cosine = field.search.cosine_at(&vector.model, &query, row)?;
            (cosine >= COSINE_MIN).then_some((cosine, row, unit))
        });
        let mut found: Vec<(f64, Row, &Unit)> = found.collect();
        // The closest are kept, and then stand in the order in which they were recorded.
        found.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        found.truncate(field.config.limits.found_per_record_max);
        found.sort_unstable_by_key(|(_, row, _)| *row);
        Some(
            found
                .into_iter()
                .map(|(_, _, unit)| unit.id.clone())
                .collect(),
        )
    }

    fn may_contradict(&self, field: &Field, unit: &Unit) -> bool {
        unit.kind == self.kind
            && counts(unit)
            && unit.author != self.author
            && field.sees(self.author, unit)
            && !self.related.contains(&unit.id.as_str())
    }
}

/// Looks for contradictions to a RECORD before it is decided, so that the decision itself need not search.
///
/// Nothing if the message is not a RECORD with a task, or there is more to compare than the limit allows.
pub fn find_contradictions(
    field: &Field,
    envelope: &crate::envelope::Envelope,
    embedding: &Embedding,
) -> Option<Findings> {
    let payload = &envelope.payload;
    let related: Vec<&str> = payload
        .get("relations")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|relation| relation.get("target_id").and_then(Value::as_str))
        .collect();
    let unit = NewUnit {
        kind: MemoryType::parse(payload.get("type")?.as_str()?)?,
        task: payload.get("intent")?.get("task_id")?.as_str()?,
        author: &envelope.agent_id,
        content: payload.get("content")?.as_str()?,
        related: &related,
    };
    Some(Findings {
        unit_ids: unit.find(field, embedding, 0, &[])?,
        units_seen: field.units.len(),
    })
}

fn counts(unit: &Unit) -> bool {
    unit.mode == Mode::Committed && unit.is_standing() && !unit.is_purged()
}

/// Returns whether two units were in conflict before; both know theirs in ascending order, and anybody may give one many.
fn had_conflict(one: &Unit, other: &Unit) -> bool {
    let (few, many) = match one.conflicts.len() <= other.conflicts.len() {
        true => (one, other),
        false => (other, one),
    };
    few.conflicts
        .iter()
        .any(|row| many.conflicts.binary_search(row).is_ok())
}

fn are_close(one: &Vector, other: &Vector) -> bool {
    one.cosine(other).is_some_and(|cosine| cosine >= COSINE_MIN)
}

/// What DETECT lists.
struct Filter {
    status: Vec<ConflictStatus>,
    types: Vec<ConflictType>,
    agents: Vec<String>,
}

impl Filter {
    fn lets(&self, field: &Field, conflict: &Conflict) -> bool {
        let involves = |agent: &String| {
            [conflict.a, conflict.b]
                .iter()
                .any(|row| field.at(*row).is_some_and(|unit| unit.author == *agent))
        };
        (self.status.is_empty() || self.status.contains(&conflict.status))
            && (self.types.is_empty() || self.types.contains(&conflict.kind))
            && (self.agents.is_empty() || self.agents.iter().any(involves))
    }
}

impl Work<'_> {
    pub(super) fn detect(&mut self) -> Check<Value> {
        let payload = self.payload();
        let mode = payload.required_choice("mode", DetectMode::parse)?;
        if !self.detects(mode) {
            let message = format!("mode `{mode}` is not offered at this level");
            return Err(Fault::request(message));
        }
        let target = payload.id("target_id")?;
        if mode == DetectMode::Check && target.is_none() {
            return Err(payload.missing("target_id"));
        }
        let filter = self.read_filter()?;
        let page = self.read_page()?;
        let known = target
            .as_deref()
            .and_then(|id| self.field.visible(self.agent(), id));
        if mode == DetectMode::Check && known.is_none() {
            let message = "there is no unit under `target_id`";
            return Err(Fault::new(Code::UnitNotFound, message));
        }
        if mode != DetectMode::List {
            self.check_session_takes_writes()?;
        }
        let (pairs, scanned) = match (mode, known) {
            (DetectMode::Check, Some((row, _))) => self.search_pairs(Some(row)),
            (DetectMode::Scan, _) => self.search_pairs(None),
            _ => (Vec::new(), 0),
        };
        let target_row = known
            .map(|(row, _)| row)
            .filter(|_| mode == DetectMode::Check);
        let found = pairs.len();
        let new = self.log_detection(mode, target, &pairs, &filter);
        let field = self.field;
        let known = field.conflicts.iter().enumerate();
        let known = known
            .filter(|(_, conflict)| mode == DetectMode::List || conflict.is_open())
            .filter(|(_, conflict)| {
                target_row.is_none_or(|row| row == conflict.a || row == conflict.b)
            })
            .filter(|(_, conflict)| field.sees_conflict(self.agent(), conflict))
            .filter(|(_, conflict)| filter.lets(field, conflict));
        let new = new.iter().enumerate();
        let new = new.map(|(number, conflict)| (field.conflicts.len() + number, conflict));
        let listed = page.cut(field, known.chain(new));
        let coverage = json!({"units_scanned": scanned, "new_conflicts_found": found});
        let named: Vec<Value> = listed.shown.iter().map(stored_answer::conflict).collect();
        let mut members = json!({"conflicts": named, "scan_coverage": coverage});
        listed.name_rest(&mut members);
        self.kept = stored_answer::without_text(stored_answer::DETECT, members);
        let mut answer = json!({"status": "ok", "scan_coverage": coverage});
        listed.name_rest(&mut answer);
        if let Some(members) = answer.as_object_mut() {
            members.insert("conflicts".into(), listed.shown.into());
        }
        Ok(answer)
    }

    fn read_page(&self) -> Check<Page> {
        let payload = self.payload();
        let limit = payload.integer("limit", 1)?;
        let cursor = payload.id("cursor")?;
        Page::of(self.field, limit, cursor.as_deref())
            .ok_or_else(|| payload.wrong("cursor", "a conflict that an answer ended with"))
    }

    fn read_filter(&self) -> Check<Filter> {
        let len_max = self.field.config.limits.list_len_max;
        let Some(filter) = self.payload().object("filter", "filter.")? else {
            return Ok(Filter {
                status: Vec::new(),
                types: Vec::new(),
                agents: Vec::new(),
            });
        };
        Ok(Filter {
            status: filter.choices("status", ConflictStatus::parse, len_max)?,
            types: filter.choices("types", ConflictType::parse, len_max)?,
            agents: filter.texts("involving_agents", len_max)?,
        })
    }

    /// Writes the DETECT entry and, after it, one entry per new conflict.
    fn log_detection(
        &mut self,
        mode: DetectMode,
        target_id: Option<String>,
        pairs: &[(Row, Row)],
        filter: &Filter,
    ) -> Vec<Conflict> {
        let kind = self.field.config.conflict_type;
        // The entry comes first and names the conflicts, so it is completed when their ids are known.
        self.log(Event::Detected {
            mode,
            target_id,
            conflict_ids: Vec::new(),
        });
        let mut created = Vec::new();
        let mut shown = Vec::new();
        for (a, b) in pairs {
            let (Some(unit_a), Some(unit_b)) = (self.field.at(*a), self.field.at(*b)) else {
                continue;
            };
            let id = self.create_conflict(
                (&unit_a.id, &unit_b.id),
                Mode::Committed,
                kind,
                Method::Semantic,
            );
            let conflict = Conflict {
                id: id.clone(),
                kind,
                status: ConflictStatus::Detected,
                a: *a,
                b: *b,
                detected_by: Method::Semantic,
                votes: BTreeMap::new(),
                first_vote: None,
                resolution: None,
            };
            if filter.lets(self.field, &conflict) {
                shown.push(conflict);
            }
            created.push(id);
        }
        if let Some((entry, _)) = self.steps.first_mut()
            && let Event::Detected { conflict_ids, .. } = &mut entry.event
        {
            *conflict_ids = created;
        }
        shown
    }

    /// Returns pairs that contradict each other, and how many units were looked at before the limit was reached.
    fn search_pairs(&self, target: Option<Row>) -> (Vec<(Row, Row)>, usize) {
        let field = self.field;
        let mut groups: BTreeMap<(&str, MemoryType), Vec<Row>> = BTreeMap::new();
        let wanted = target.and_then(|row| field.at(row));
        for (task, rows) in &field.by_task {
            if wanted.is_some_and(|unit| unit.task.as_ref() != Some(task)) {
                continue;
            }
            for (row, unit) in rows
                .iter()
                .filter_map(|row| field.at(*row).map(|unit| (*row, unit)))
            {
                let fits = wanted.is_none_or(|wanted| wanted.kind == unit.kind);
                if fits && counts(unit) && field.sees(self.agent(), unit) {
                    groups.entry((task, unit.kind)).or_default().push(row);
                }
            }
        }
        let mut pairs_left = field.config.limits.detect_pairs_max;
        let (mut pairs, mut scanned) = (Vec::new(), 0);
        for rows in groups.values() {
            for (index, later) in rows.iter().enumerate() {
                let before = rows.get(..index).unwrap_or_default();
                let partners: Vec<Row> = match target {
                    Some(target) if target == *later => before.to_vec(),
                    Some(target) => before
                        .iter()
                        .copied()
                        .filter(|row| *row == target)
                        .collect(),
                    None => before.to_vec(),
                };
                if partners.len() > pairs_left {
                    return (pairs, scanned);
                }
                pairs_left -= partners.len();
                scanned += 1;
                let found = partners
                    .into_iter()
                    .filter(|row| self.is_contradiction(*row, *later));
                pairs.extend(found.map(|row| (row, *later)));
            }
        }
        pairs.sort_unstable_by_key(|(a, b)| (*b, *a));
        // The next DETECT finds the others.
        pairs.truncate(field.config.limits.found_per_scan_max);
        (pairs, scanned)
    }

    fn is_contradiction(&self, a: Row, b: Row) -> bool {
        let field = self.field;
        let (Some(one), Some(other)) = (field.at(a), field.at(b)) else {
            return false;
        };
        let points = |from: &Unit, to: &Unit| {
            from.relations
                .iter()
                .any(|relation| relation.target_id == to.id && !relation.unbound)
        };
        if one.author == other.author || points(one, other) || points(other, one) {
            return false;
        }
        let (Some(claims), Some(others)) = (&one.claims, &other.claims) else {
            return false;
        };
        claims.contradict(others) && !had_conflict(one, other) && self.close_rows(a, b, one, other)
    }

    fn close_rows(&self, a: Row, b: Row, one: &Unit, other: &Unit) -> bool {
        let model_of = |unit: &Unit| unit.embedded_by.clone().unwrap_or_else(Model::hash_1024);
        let (model, theirs) = (model_of(one), model_of(other));
        if model != theirs {
            return false;
        }
        let search = &self.field.search;
        match (search.vector(a, &model), search.vector(b, &model)) {
            (Some(one), Some(other)) => are_close(&one, &other),
            _ => false,
        }
    }
}
