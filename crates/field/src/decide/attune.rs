//! ATTUNE: what an agent should know now, ranked, within its budget.

use canon::{Map, Value};
use serde_json::json;

use super::{Embedding, Work};
use crate::config::Level;
use crate::envelope::Envelope;
use crate::error::{Check, Fault};
use crate::event::Event;
use crate::kind::Format;
use crate::relevance::{Ranked, Scope};
use crate::render;
use crate::state::{Field, Unit};
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
        let (records, rows, tokens) = self.fill(&ranking.best, &request);
        let conflicts = self.relevant_conflicts(&rows);
        let answer = json!({
            "status": "ok",
            "record": records,
            "conflicts": conflicts,
            "context_budget": {
                "units_returned": records.len(),
                "units_available": ranking.available,
                "tokens_used": request.max_tokens.map(|_| tokens),
                "tokens_budget": request.max_tokens,
            },
            "epoch": self.epoch,
        });
        let unit_ids = rows
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

    /// Returns the epoch of the newest unit: reads must not make knowledge look older.
    fn last_write(&self) -> u64 {
        self.field.units.last().map_or(0, |unit| unit.epoch)
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

    /// Renders ranked units until the budget is used up: in full, else as a summary.
    fn fill(&self, ranked: &[Ranked], request: &Request) -> (Vec<Value>, Vec<u32>, u64) {
        let (mut records, mut rows, mut used) = (Vec::new(), Vec::new(), 0);
        let budget = request.max_tokens.unwrap_or(u64::MAX);
        for item in ranked {
            let Some(unit) = self.field.at(item.row) else {
                continue;
            };
            let formats = match request.format {
                Format::Full => &[Format::Full, Format::Summary][..],
                Format::Summary => &[Format::Summary],
                Format::IdsOnly => &[Format::IdsOnly],
            };
            let fitting = formats.iter().find_map(|format| {
                let shown = render::unit(unit, *format).unwrap_or_else(|| without_text(unit));
                let tokens = tokens_of(&shown);
                (used + tokens <= budget).then_some((*format, shown, tokens))
            });
            let Some((format, shown, tokens)) = fitting else {
                break;
            };
            used += tokens;
            rows.push(item.row);
            records.push(json!({
                "memory_unit": shown,
                "relevance_score": f64::from(item.score) / 10_000.0,
                "relevance_reason": item.reason,
                "format": if format == Format::Full { "full" } else { "summary" },
            }));
        }
        (records, rows, used)
    }

    /// Returns open conflicts that name a returned unit or one that the requester recorded.
    fn relevant_conflicts(&self, rows: &[u32]) -> Vec<Value> {
        let own = self.field.by_author.get(self.agent());
        let mut found: Vec<usize> = rows
            .iter()
            .chain(own.into_iter().flatten())
            .filter_map(|row| self.field.at(*row))
            .flat_map(|unit| unit.conflicts.iter().copied())
            .collect();
        found.sort_unstable();
        found.dedup();
        found
            .into_iter()
            .filter_map(|row| self.field.conflicts.get(row))
            .filter(|conflict| {
                conflict.is_open() && self.field.sees_conflict(self.agent(), conflict)
            })
            .map(|conflict| render::conflict(self.field, conflict))
            .collect()
    }
}

/// A unit whose text is not at hand: what the log alone says.
fn without_text(unit: &Unit) -> Value {
    let mut shown = render::unit(unit, Format::IdsOnly).unwrap_or(Value::Object(Map::new()));
    if let Some(members) = shown.as_object_mut() {
        members.insert("content".into(), Value::Null);
    }
    shown
}

/// An estimate: four bytes of JSON are about one token.
fn tokens_of(shown: &Value) -> u64 {
    let bytes = u64::try_from(canon::jcs(shown).len()).unwrap_or(u64::MAX);
    bytes.div_ceil(4)
}
