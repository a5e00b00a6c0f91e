//! What a committed call and a known output change.

use canon::Digest;

use super::{Addend, CallOrder, CallRecord, Progress, Slot, State};
use crate::compile::{Compiled, ToolRules};
use crate::contract::Source;
use crate::decimal::Decimal;
use crate::event::Call;
use crate::json::{self, JsonError, Limits, Numbers};
use crate::session::Direction;
use crate::value::Value;

/// An output as state reads it.
#[derive(Debug)]
pub(super) enum Output {
    /// JSON, or any other text as a string.
    Value(Value),
    /// Too large to be taken in: every path is missing.
    Missing,
}

impl Output {
    pub(super) fn read(text: &str) -> Self {
        match json::read(text, Limits::OUTPUT, Numbers::Any) {
            Ok(value) => Output::Value(value),
            Err(JsonError::TooLarge) => Output::Missing,
            Err(
                JsonError::Syntax
                | JsonError::DuplicateKey
                | JsonError::ProtoKey
                | JsonError::InexactNumber,
            ) => Output::Value(Value::from(text)),
        }
    }

    fn value(&self) -> &Value {
        const NOTHING: &Value = &Value::Null;
        match self {
            Output::Value(value) => value,
            Output::Missing => NOTHING,
        }
    }
}

impl State {
    /// Commits a call: counters, phase, prohibitions, slots, totals, envelopes and labels, in this order.
    pub(super) fn commit(
        &mut self,
        compiled: &Compiled,
        call: &Call,
        arguments: Option<Value>,
        order: CallOrder,
    ) {
        self.commits += 1;
        let commit = self.commits;
        self.tool_calls += 1;
        *self.tool_call_counts.entry(call.tool.clone()).or_default() += 1;
        if let Some(rules) = compiled.tools.get(&call.tool) {
            self.move_phase(compiled, rules);
            let forbidden = rules.contract.forbids_after.iter();
            self.forbidden
                .extend(forbidden.map(|named| named.name.clone()));
            let arguments = arguments.as_ref().unwrap_or(&Value::Null);
            self.bind(rules, Source::Arguments, Some(arguments), commit);
            // What the output will say is not known: an old value must not pass for a new one.
            self.bind(rules, Source::Output, None, commit);
            self.add_to_totals(compiled, rules, arguments);
            self.establish(compiled, rules, Source::Arguments, arguments);
            let labels = rules.contract.adds_labels.iter();
            self.labels.extend(labels.cloned());
            self.record_prior(compiled, rules, commit, arguments, None);
        }
        let record = CallRecord {
            tool: call.tool.clone(),
            order,
            progress: Progress::Committed { arguments, commit },
        };
        self.calls.insert(call.id.clone(), record);
    }

    /// Takes in the output of a committed call; returns true when that changed a fact, a slot or an envelope.
    pub(super) fn take_output(&mut self, compiled: &Compiled, id: &str, text: &str) -> bool {
        let Some(record) = self.calls.get_mut(id) else {
            return false;
        };
        let Progress::Committed { arguments, commit } = &mut record.progress else {
            return false;
        };
        let arguments = arguments.take().unwrap_or(Value::Null);
        let (tool, commit) = (record.tool.clone(), *commit);
        record.progress = Progress::Known {
            output: digest(text),
        };
        let Some(rules) = compiled.tools.get(&tool) else {
            return false;
        };
        let output = Output::read(text);
        let value = output.value();
        let paths = compiled.output_paths(&tool);
        let fields = paths.iter().filter_map(|path| {
            let found = path.find(value)?;
            // A root that was too large is not `null`.
            matches!(output, Output::Value(_)).then(|| (path.to_string(), found.clone()))
        });
        let fields = fields.collect();
        let mut changed = false;
        if !paths.is_empty() && self.facts.get(&tool) != Some(&fields) {
            self.facts.insert(tool.clone(), fields);
            changed = true;
        }
        match &output {
            Output::Value(value) => {
                changed |= self.record_prior(compiled, rules, commit, &arguments, Some(value));
                changed |= self.bind(rules, Source::Output, Some(value), commit);
                changed |= self.establish(compiled, rules, Source::Output, value);
            }
            Output::Missing => {
                changed |= self.bind(rules, Source::Output, None, commit);
            }
        }
        changed
    }

    fn move_phase(&mut self, compiled: &Compiled, rules: &ToolRules) {
        let machine = compiled.session.phases.as_ref();
        let target = rules.contract.advances_to.as_ref();
        if let (Some(machine), Some(target), Some(phase)) = (machine, target, &self.phase)
            && machine.allows(phase, &target.name)
        {
            self.phase = Some(target.name.clone());
        }
    }

    fn bind(&mut self, rules: &ToolRules, from: Source, root: Option<&Value>, commit: u64) -> bool {
        let mut changed = false;
        for bind in rules.contract.binds.iter().filter(|bind| bind.from == from) {
            let slot = self.slots.get(&bind.slot.name);
            // The output of an older call does not replace what a newer one bound.
            if slot.is_some_and(|slot| slot.set_by > commit) {
                continue;
            }
            let value = root.and_then(|root| bind.path.find(root)).cloned();
            changed |= slot.and_then(|slot| slot.value.as_ref()) != value.as_ref();
            let set_by = commit;
            self.slots
                .insert(bind.slot.name.clone(), Slot { value, set_by });
        }
        changed
    }

    fn add_to_totals(&mut self, compiled: &Compiled, rules: &ToolRules, arguments: &Value) {
        for index in &rules.aggregates {
            let aggregate = compiled.session.aggregates.get(*index);
            let total = self.totals.get_mut(*index);
            if let (Some(aggregate), Some(total)) = (aggregate, total)
                && let Some(addend) = Addend::of(aggregate, arguments)
            {
                total.add(&addend);
            }
        }
    }

    fn establish(
        &mut self,
        compiled: &Compiled,
        rules: &ToolRules,
        from: Source,
        root: &Value,
    ) -> bool {
        let mut changed = false;
        for index in &rules.establishes {
            let envelope = compiled.session.envelopes.get(*index);
            let reference = self.envelopes.get_mut(*index);
            let (Some(envelope), Some(reference)) = (envelope, reference) else {
                continue;
            };
            let value = envelope
                .establish_path
                .find(root)
                .and_then(Value::as_decimal);
            let Some(value) = value.filter(|_| envelope.establish_from == from) else {
                continue;
            };
            let tighter = match (*reference, envelope.direction) {
                (None, Direction::AtMost | Direction::AtLeast) => value,
                (Some(old), Direction::AtMost) => old.min(value),
                (Some(old), Direction::AtLeast) => old.max(value),
            };
            changed |= *reference != Some(tighter);
            *reference = Some::<Decimal>(tighter);
        }
        changed
    }

    fn record_prior(
        &mut self,
        compiled: &Compiled,
        rules: &ToolRules,
        commit: u64,
        arguments: &Value,
        output: Option<&Value>,
    ) -> bool {
        let mut changed = false;
        for index in &rules.awaited_by {
            let precondition = compiled.preconditions.get(*index);
            let prior = self.prior.get_mut(*index);
            if let (Some(precondition), Some(prior)) = (precondition, prior) {
                changed |= prior.record(precondition, commit, arguments, output);
            }
        }
        changed
    }
}

pub(super) fn digest(text: &str) -> Digest {
    canon::sha256(text.as_bytes())
}
