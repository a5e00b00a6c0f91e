//! Tools as recorded runs show them: what was offered, what was called with which values, and what came before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use contracts::backtest::RecordEntry;
use contracts::{Decimal, ProposedCall, Response};
use runs::replay::{Exchange, Source, exchanges};
use serde_json::{Value, json};

use super::recorded::{self, SkippedRuns};

/// Texts of an argument that are kept; more of them are not a choice.
const TEXTS_MAX: usize = 5;
/// The longest of them.
const TEXT_CHARS_MAX: usize = 40;

/// What recorded runs show of a tool.
#[derive(Debug, Default)]
pub(super) struct ObservedTool {
    /// The schema that it was offered with last.
    pub(super) schema: Option<Value>,
    pub(super) calls: usize,
    pub(super) runs: usize,
    pub(super) arguments: BTreeMap<String, ObservedArgument>,
    /// The tools that had returned before every one of its calls; none before the first.
    pub(super) after: Option<BTreeSet<String>>,
}

/// What was given for an argument.
#[derive(Debug, Default)]
pub(super) struct ObservedArgument {
    /// In how many calls it was there.
    pub(super) calls: usize,
    pub(super) kinds: BTreeSet<&'static str>,
    /// The smallest and the largest number.
    pub(super) numbers: Option<(Decimal, Decimal)>,
    /// Short texts; none when there were too many, or long ones.
    pub(super) texts: Option<BTreeSet<String>>,
}

/// Reads what runs show of tools.
pub(super) fn read(path: &Path) -> anyhow::Result<(BTreeMap<String, ObservedTool>, SkippedRuns)> {
    let (mut seen, mut left_out) = (BTreeMap::new(), SkippedRuns::default());
    recorded::read(path, &mut left_out, &mut |source| look(source, &mut seen))?;
    Ok((seen, left_out))
}

fn look(source: &Source, seen: &mut BTreeMap<String, ObservedTool>) {
    let mut run = Run::default();
    for exchange in exchanges(source) {
        match exchange {
            Exchange::Tools(list) => offered(list.as_ref(), seen),
            Exchange::Prepared { request, .. } => {
                for tool in &request.offered_tools {
                    offer(&tool.name, tool.schema.as_ref(), seen);
                }
            }
            Exchange::Answered {
                response: Some(response),
                ..
            } => {
                run.settle(None, &[], seen);
                run.answered(response);
            }
            Exchange::Entry(RecordEntry::Asked {
                proposal: Some(name),
                ..
            }) => run.waits(name),
            Exchange::Entry(RecordEntry::Judged {
                refused, proposal, ..
            }) => run.settle(proposal.as_deref(), &refused, seen),
            Exchange::Entry(RecordEntry::Denied { call_id }) => {
                run.open.retain(|call| call.id != call_id);
            }
            Exchange::Entry(RecordEntry::Ended {
                call_id,
                ok: Some(true),
                ..
            }) => {
                run.settle(None, &[], seen);
                run.returned.extend(run.names.get(&call_id).cloned());
            }
            Exchange::Answered { .. } | Exchange::Discarded { .. } | Exchange::Entry(_) => {}
        }
    }
    run.settle(None, &[], seen);
    for name in run.called {
        seen.entry(name).or_default().runs += 1;
    }
}

/// A run as far as it was read: only calls that were made show how a tool is used.
#[derive(Default)]
struct Run {
    /// The calls of the last answer, until it is known which of them were refused.
    open: Vec<Proposed>,
    /// Answers that people were asked about.
    waiting: BTreeMap<String, Vec<Proposed>>,
    names: BTreeMap<String, String>,
    returned: BTreeSet<String>,
    called: BTreeSet<String>,
}

struct Proposed {
    id: String,
    tool: String,
    arguments: String,
    /// What had returned when the model proposed it.
    after: BTreeSet<String>,
}

impl Run {
    fn answered(&mut self, response: Response) {
        let is_named = |call: &ProposedCall| !call.id.is_empty() && !call.name.is_empty();
        for call in response.calls.into_iter().filter(is_named) {
            self.names.insert(call.id.clone(), call.name.clone());
            self.open.push(Proposed {
                id: call.id,
                tool: call.name,
                arguments: call.arguments,
                after: self.returned.clone(),
            });
        }
    }

    /// People are asked: what they never answer was not made.
    fn waits(&mut self, name: String) {
        let open = std::mem::take(&mut self.open);
        self.waiting.insert(name, open);
    }

    fn settle(
        &mut self,
        name: Option<&str>,
        refused: &[String],
        seen: &mut BTreeMap<String, ObservedTool>,
    ) {
        let waiting = name.and_then(|name| self.waiting.remove(name));
        let calls = waiting.unwrap_or_else(|| std::mem::take(&mut self.open));
        for call in calls.iter().filter(|call| !refused.contains(&call.id)) {
            let tool = seen.entry(call.tool.clone()).or_default();
            tool.call(&call.arguments, &call.after);
            self.called.insert(call.tool.clone());
        }
    }
}

fn offered(list: Option<&Value>, seen: &mut BTreeMap<String, ObservedTool>) {
    let tools = list.and_then(|list| list.get("tools")?.as_array());
    for tool in tools.into_iter().flatten() {
        if let Some(name) = tool.get("name").and_then(Value::as_str) {
            offer(name, tool.get("parameters"), seen);
        }
    }
}

fn offer(name: &str, schema: Option<&Value>, seen: &mut BTreeMap<String, ObservedTool>) {
    let seen = seen.entry(name.to_owned()).or_default();
    let schema = schema.filter(|schema| schema.is_object());
    seen.schema = schema.cloned().or_else(|| seen.schema.take());
}

impl ObservedTool {
    fn call(&mut self, arguments: &str, returned: &BTreeSet<String>) {
        self.calls += 1;
        self.after = Some(match self.after.take() {
            None => returned.clone(),
            Some(before) => before.intersection(returned).cloned().collect(),
        });
        let Ok(Value::Object(arguments)) = serde_json::from_str(arguments) else {
            return;
        };
        for (name, value) in &arguments {
            let is_first = !self.arguments.contains_key(name);
            let seen = self.arguments.entry(name.clone()).or_default();
            if is_first {
                seen.texts = Some(BTreeSet::new());
            }
            seen.give(value);
        }
    }

    /// A schema that says what was seen, where none was recorded.
    pub(super) fn schema(&self) -> Value {
        if let Some(schema) = &self.schema {
            return schema.clone();
        }
        let properties = self.arguments.iter().filter_map(|(name, seen)| {
            let mut kinds = seen.kinds.iter();
            let kind = kinds.next().filter(|_| kinds.next().is_none())?;
            Some((name.clone(), json!({"type": kind})))
        });
        let required = self.arguments.iter();
        let required = required.filter(|(_, seen)| seen.calls == self.calls);
        let required: Vec<&String> = required.map(|(name, _)| name).collect();
        let properties: serde_json::Map<String, Value> = properties.collect();
        json!({"type": "object", "properties": properties, "required": required})
    }
}

impl ObservedArgument {
    fn give(&mut self, value: &Value) {
        self.calls += 1;
        self.kinds.insert(match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        });
        // Every integer is a number.
        if self.kinds.contains("number") {
            self.kinds.remove("integer");
        }
        match value {
            Value::Number(number) => {
                let Ok(number) = Decimal::parse(&number.to_string()) else {
                    return;
                };
                let (least, most) = self.numbers.unwrap_or((number, number));
                self.numbers = Some((least.min(number), most.max(number)));
            }
            Value::String(text) => {
                let is_short = text.chars().count() <= TEXT_CHARS_MAX;
                if let Some(texts) = self.texts.as_mut().filter(|_| is_short) {
                    texts.insert(contracts::redact::text(text, &[]));
                }
                let fits = |texts: &BTreeSet<String>| is_short && texts.len() <= TEXTS_MAX;
                self.texts = self.texts.take().filter(fits);
            }
            _ => {}
        }
    }

    /// Says what was seen, in a few words.
    pub(super) fn note(&self) -> Option<String> {
        if let Some((least, most)) = self.numbers {
            return Some(match least == most {
                true => format!("seen: {least}"),
                false => format!("seen: {least} to {most}"),
            });
        }
        let texts = self.texts.as_ref().filter(|texts| !texts.is_empty())?;
        let texts: Vec<String> = texts
            .iter()
            .map(|text| Value::from(text.as_str()).to_string())
            .collect();
        Some(format!("seen: {}", texts.join(", ")))
    }
}
