//! ATTUNE: what an agent should know now, ranked, within its budget.

use std::collections::{BTreeMap, BTreeSet};

use canon::Value;
use serde_json::json;

use super::{Embedding, Work};
use crate::config::Level;
use crate::envelope::Envelope;
use crate::error::{Check, Fault};
use crate::event::Event;
use crate::kind::Format;
use crate::relevance::{Ranked, Scope};
use crate::render;
use crate::state::{Conflict, Field, Row, Unit};
use crate::stored_answer;
use crate::vector::Vector;

/// What an ATTUNE says.
struct Request {
    role: String,
    max_units: u64,
    max_tokens: Option<u64>,
    since_epoch: Option<u64>,
    interests: Vec<String>,
    task: Option<String>,
    threshold: Option<f64>,
    recency_weight: Option<f64>,
    include_own: bool,
    include_archived: bool,
    committed_only: bool,
    format: Format,
}

/// What an ATTUNE shows.
#[derive(Default)]
struct Filled {
    records: Vec<Value>,
    rows: Vec<Row>,
    /// Of each record what is kept.
    kept: Vec<Value>,
    conflicts: Vec<Value>,
    /// Open conflicts of what is returned and of the requester's own units that are not listed.
    conflicts_omitted: usize,
    tokens: u64,
}

/// What an ATTUNE compares units with.
pub(super) struct Query {
    pub(super) text: String,
    /// Where the text comes from, in words.
    source: &'static str,
}

/// Returns the hint, else the interests of the message and of its sender, else the role.
pub(super) fn query(field: &Field, envelope: &Envelope) -> Query {
    let payload = &envelope.payload;
    let text = |value: Option<&Value>| {
        value
            .and_then(Value::as_str)
            .filter(|text| !text.trim().is_empty())
            .map(str::to_owned)
    };
    if let Some(text) = text(payload.get("context_hint")) {
        let source = "the request";
        return Query { text, source };
    }
    let scope = payload.get("scope");
    let stated = scope
        .and_then(|scope| scope.get("interests"))
        .and_then(Value::as_array);
    let stated = stated.into_iter().flatten().filter_map(Value::as_str);
    let registered = field
        .active(&envelope.agent_id)
        .map(|agent| agent.interests.as_slice());
    let registered = registered.unwrap_or_default().iter().map(String::as_str);
    let interests: Vec<&str> = stated.chain(registered).collect();
    if !interests.is_empty() {
        return Query {
            text: interests.join(" "),
            source: "the interests of the requester",
        };
    }
    Query {
        text: text(scope.and_then(|scope| scope.get("role"))).unwrap_or_default(),
        source: "the role",
    }
}

impl Work<'_> {
    pub(super) fn attune(&mut self) -> Check<Value> {
        let request = self.read_scope()?;
        let registered = self.sender.map(|agent| agent.interests.as_slice());
        let mut interests: Vec<&str> = request
            .interests
            .iter()
            .chain(registered.unwrap_or_default())
            .map(String::as_str)
            .collect();
        interests.sort_unstable();
        interests.dedup();
        let query = query(self.field, self.call.envelope);
        let vector = match &self.call.embedding {
            _ if self.field.config.level < Level::Standard => None,
            Embedding::BuiltIn => Some(Vector::hash_1024(&query.text)),
            Embedding::Given(vector) => Some(vector.clone()),
            // Words alone then: an answer without vectors is better than none.
            Embedding::Failed(_) => None,
        };
        let scope = Scope {
            agent: self.agent(),
            role: &request.role,
            committed_only: request.committed_only,
            interests,
            task: request.task.as_deref(),
            query: &query.text,
            query_source: query.source,
            vector: vector.as_ref(),
            recency_weight: request.recency_weight,
            since_epoch: request.since_epoch,
            include_own: request.include_own,
            include_archived: request.include_archived,
            threshold: request.threshold,
            // The clock before this message, so that the same field gives the same scores.
            epoch: self.last_write(),
        };
        let max = usize::try_from(request.max_units).unwrap_or(usize::MAX);
        let max = max.min(self.field.config.limits.attune_units_max);
        let ranking = self.field.rank(&scope, max);
        let filled = self.fill(&ranking.best, &request);
        let mut budget = json!({
            "units_returned": filled.records.len(),
            "units_available": ranking.available,
            "tokens_used": request.max_tokens.map(|_| filled.tokens),
            "tokens_budget": request.max_tokens,
        });
        if let (Some(members), 1..) = (budget.as_object_mut(), filled.conflicts_omitted) {
            members.insert("conflicts_omitted".into(), filled.conflicts_omitted.into());
        }
        self.kept = stored_answer::without_text(
            stored_answer::ATTUNE,
            json!({
                "record": filled.kept,
                "conflicts": filled.conflicts.iter().map(stored_answer::conflict).collect::<Vec<_>>(),
                "context_budget": budget,
                "epoch": self.epoch,
            }),
        );
        let answer = json!({
            "status": "ok",
            "record": filled.records,
            "conflicts": filled.conflicts,
            "context_budget": budget,
            "epoch": self.epoch,
        });
        let unit_ids = filled
            .rows
            .iter()
            .filter_map(|row| self.field.at(*row))
            .map(|unit| unit.id.clone())
            .collect();
        self.log(Event::Attuned {
            role: request.role,
            max_units: request.max_units,
            since_epoch: request.since_epoch,
            unit_ids,
        });
        Ok(answer)
    }

    /// Returns the epoch of the newest unit that the requester may see: neither readings nor what is hidden may make
    /// knowledge look older.
    fn last_write(&self) -> u64 {
        self.field.newest_seen(self.agent())
    }

    fn read_scope(&self) -> Check<Request> {
        let payload = self.payload();
        let scope = payload
            .object("scope", "scope.")?
            .ok_or_else(|| payload.missing("scope"))?;
        let role = scope.required_line("role")?;
        let max_units = scope
            .integer("max_units", 1)?
            .ok_or_else(|| scope.missing("max_units"))?;
        let len_max = self.field.config.limits.list_len_max;
        scope.texts("temporal_layers", len_max)?;
        payload.text("context_hint")?;
        let format = payload
            .choice("format", Format::parse)?
            .unwrap_or(Format::Full);
        Ok(Request {
            role,
            max_units,
            max_tokens: scope.integer("max_tokens", 1)?,
            since_epoch: self.since_epoch()?,
            interests: scope.texts("interests", len_max)?,
            task: scope.id("active_task_id")?,
            threshold: scope.share("relevance_threshold")?,
            recency_weight: scope.share("recency_weight")?,
            include_own: scope.flag("include_own")?,
            include_archived: scope.flag("include_archived")?,
            committed_only: scope.flag("committed_only")?,
            format,
        })
    }

    fn since_epoch(&self) -> Check<Option<u64>> {
        let payload = self.payload();
        let outer = payload.integer("since_epoch", 0)?;
        let inner = match payload.object("scope", "scope.")? {
            Some(scope) => scope.integer("since_epoch", 0)?,
            None => None,
        };
        match (outer, inner) {
            (Some(one), Some(other)) if one != other => Err(Fault::request(
                "`since_epoch` and `scope.since_epoch` differ",
            )),
            _ => Ok(outer.or(inner)),
        }
    }

    /// Renders ranked units until the budget is used up, in full, else as a summary, each with the newest of its open
    /// conflicts between what agents stand for. What is left is filled by conflicts with drafts, of which anybody may begin
    /// many, and by those of the requester's own units, the newest first.
    fn fill(&self, ranked: &[Ranked], request: &Request) -> Filled {
        let mut filled = Filled::default();
        let budget = request.max_tokens.unwrap_or(u64::MAX);
        let limits = &self.field.config.limits;
        let mut conflicts: BTreeMap<usize, Value> = BTreeMap::new();
        for item in ranked {
            let Some(unit) = self.field.at(item.row) else {
                continue;
            };
            let named: Vec<(usize, Value)> = self
                .open_conflicts(unit, true)
                .take(limits.conflicts_per_unit_max)
                .filter(|row| !conflicts.contains_key(row))
                .filter_map(|row| Some((row, self.shown_conflict(row)?)))
                .collect();
            let beside: u64 = named.iter().map(|(_, shown)| tokens_of(shown)).sum();
            let formats = match request.format {
                Format::Full => &[Format::Full, Format::Summary][..],
                Format::Summary => &[Format::Summary],
                Format::IdsOnly => &[Format::IdsOnly],
            };
            let sees = |conflict: &Conflict| self.field.sees_conflict(self.agent(), conflict);
            let status = self.field.status_for(unit, sees);
            let fitting = formats.iter().find_map(|format| {
                let shown = render::unit(unit, status, *format);
                let shown = shown.unwrap_or_else(|| render::unit_without_text(unit, status));
                // As it is returned, with its score and its reason.
                let shown = stored_answer::record(shown, item.score, &item.reason, *format);
                let tokens = tokens_of(&shown) + beside;
                (filled.tokens + tokens <= budget).then_some((*format, shown, tokens))
            });
            let Some((format, shown, tokens)) = fitting else {
                break;
            };
            filled.tokens += tokens;
            filled.rows.push(item.row);
            filled
                .kept
                .push(json!([unit.id, status, format, item.score, item.reason]));
            filled.records.push(shown);
            conflicts.extend(named);
        }
        let own = self.field.by_author.get(self.agent());
        let own = own.into_iter().flatten().rev();
        let concerned: Vec<Row> = filled.rows.iter().chain(own).copied().collect();
        let mut relevant: BTreeSet<usize> = BTreeSet::new();
        // Those between what agents stand for come first.
        for with_drafts in [false, true] {
            for unit in concerned.iter().filter_map(|row| self.field.at(*row)) {
                let all = self.open_conflicts(unit, request.committed_only);
                let (drafts, committed): (Vec<usize>, Vec<usize>) =
                    all.partition(|row| self.is_row_with_draft(*row));
                relevant.extend(drafts.iter().chain(&committed));
                let most = limits.conflicts_per_unit_max;
                let rows = match with_drafts {
                    false => committed.into_iter().take(most),
                    true => drafts
                        .into_iter()
                        .take(most.saturating_sub(committed.len())),
                };
                for row in rows
                    .filter(|row| !conflicts.contains_key(row))
                    .collect::<Vec<_>>()
                {
                    let Some(shown) = self.shown_conflict(row) else {
                        continue;
                    };
                    let tokens = tokens_of(&shown);
                    let fits = filled.tokens + tokens <= budget;
                    if fits && conflicts.len() < limits.conflicts_listed_max {
                        filled.tokens += tokens;
                        conflicts.insert(row, shown);
                    }
                }
            }
        }
        filled.conflicts_omitted = relevant.len().saturating_sub(conflicts.len());
        filled.conflicts = conflicts.into_values().collect();
        filled
    }

    /// Returns the conflicts of a unit that are not resolved and that the requester may see, the newest first.
    fn open_conflicts<'u>(
        &'u self,
        unit: &'u Unit,
        committed_only: bool,
    ) -> impl Iterator<Item = usize> + 'u {
        let rows = unit.conflicts.iter().rev().copied();
        rows.filter(move |row| {
            self.field.conflicts.get(*row).is_some_and(|conflict| {
                conflict.is_open()
                    && self.field.sees_conflict(self.agent(), conflict)
                    && !(committed_only && self.field.is_with_draft(conflict))
            })
        })
    }

    fn is_row_with_draft(&self, row: usize) -> bool {
        let conflict = self.field.conflicts.get(row);
        conflict.is_some_and(|conflict| self.field.is_with_draft(conflict))
    }

    fn shown_conflict(&self, row: usize) -> Option<Value> {
        let conflict = self.field.conflicts.get(row)?;
        Some(render::conflict(self.field, conflict))
    }
}

/// An estimate: four bytes of JSON are about one token.
fn tokens_of(shown: &Value) -> u64 {
    let bytes = u64::try_from(canon::jcs(shown).len()).unwrap_or(u64::MAX);
    bytes.div_ceil(4)
}
