//! Where two runs part: the first event that differs, what was asked and answered differently, how each ended, what
//! each used.
//!
//! Pure, over two sealed logs. A replay and its source are laid side by side by the ids that the replay's events carry;
//! other runs by effect keys and by the order of each kind of event. Ids, positions and times of a run are its own and
//! no difference, and neither are provider bookkeeping fields (`ignored.rs`); a time that a request changed is one.
//! Pieces of streamed text are not compared: the whole answer is.

mod align;
mod change;
mod effects;
mod ignored;
pub(super) mod requests;
mod text;

use canon::{Digest, Value};
use domain::{Kind, Status, TaskId, payload};
use serde::Serialize;
use serde_json::json;

use super::request::Override;
use super::source::{Source, replay_in};
use crate::workflow::{Registry, Start};
use align::Aligned;
use change::members;
use ignored::Comparison;

pub use change::Change;
pub use effects::{Digests, Effect};

pub use text::{TEXT_LINES_MAX, TextDiff};

/// What may be told of values that are not public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reveal {
    /// Their digests.
    Public,
    /// Everything.
    All,
}

/// The difference between two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    /// `run_diff`.
    pub object: &'static str,
    /// True when nothing below differs.
    pub equal: bool,
    /// What the runs are to each other.
    pub relation: Relation,
    /// The first run.
    pub a: Run,
    /// The second run.
    pub b: Run,
    /// Where they part.
    pub first_divergence: Option<FirstDifference>,
    /// What they were given differently.
    pub inputs: Vec<Change>,
    /// What they asked or were answered differently, in the order of the first run.
    pub effects: Vec<Effect>,
    /// How the words of their end differ.
    pub answer: Option<TextDiff>,
    /// What the second used more than the first.
    pub usage: UsageDifference,
}

/// What two runs are to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// The second replays the first.
    Replay,
    /// The first replays the second.
    Source,
    /// Both replay the same run.
    SameSource,
    /// Nothing.
    None,
}

/// One of the two.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// The Task.
    pub task_id: TaskId,
    /// The workflow that ran.
    pub workflow: String,
    /// How it ended.
    pub status: Status,
    /// Why it failed; null otherwise.
    pub failure: Value,
    /// What it answered.
    pub answer: Option<String>,
    /// Events of its sealed log.
    pub events: usize,
    /// The digest of that log.
    pub log_sha256: Digest,
    /// Its receipt.
    pub receipt_id: Option<String>,
    /// For a replay: what it replays.
    pub source_task_id: Option<String>,
    /// For a replay: how.
    pub mode: Option<String>,
    /// What its model calls used, as its log states it.
    pub usage: Usage,
}

/// Tokens and money.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Model calls that were answered.
    pub model_calls: u64,
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// The price of the calls whose price is known, in millionths of a dollar.
    pub cost_micros: u64,
    /// Models whose price is not known, as `provider/model`: they are in no sum.
    pub price_unknown: Vec<String>,
    /// Model calls of which the log states no use, such as overridden ones.
    pub use_unknown: Vec<String>,
}

/// What the second run used more than the first; negative when less.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UsageDifference {
    /// Model calls.
    pub model_calls: i64,
    /// Tokens read.
    pub input_tokens: i64,
    /// Tokens written.
    pub output_tokens: i64,
    /// Millionths of a dollar; none when a price of either run is not known.
    pub cost_micros: Option<i64>,
}

/// The first place where two runs differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FirstDifference {
    /// How.
    pub what: Difference,
    /// The event of the first run.
    pub a: Option<EventRef>,
    /// The event of the second run.
    pub b: Option<EventRef>,
    /// The members of the payload that differ.
    pub members: Vec<String>,
    /// The override that brought it about.
    pub override_key: Option<String>,
}

/// How something differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// Both have it, differently.
    Changed,
    /// Only the first has it.
    Missing,
    /// Only the second has it.
    Added,
}

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventRef {
    /// Its id.
    pub event_id: String,
    /// Its number in the log, from 1.
    pub sequence: u64,
    /// Its kind; for an event that a replay only tells, the kind of what it tells.
    pub event: String,
    /// The effect it belongs to.
    pub effect_key: Option<String>,
}

/// Compares two runs.
///
/// What was asked is not stored in words: the workflows say it again, over the recorded answers.
pub fn compare(a: &Source, b: &Source, workflows: &Registry, reveal: Reveal) -> Diff {
    let relation = relation(a, b);
    let comparison = Comparison::new(a, b, relation, workflows, reveal);
    let aligned = Aligned::new(&comparison);
    let first_divergence = aligned.first_divergence(&comparison);
    let inputs = inputs(&comparison, &aligned);
    let effects = effects::differing(&comparison, &aligned);
    let (a, b) = (run(a), run(b));
    let answer = match (&a.answer, &b.answer) {
        (None, None) => None,
        (before, after) => TextDiff::between(
            before.as_deref().unwrap_or_default(),
            after.as_deref().unwrap_or_default(),
        ),
    };
    let same_end = a.status == b.status && a.failure == b.failure && a.answer == b.answer;
    Diff {
        object: "run_diff",
        equal: first_divergence.is_none() && inputs.is_empty() && effects.is_empty() && same_end,
        relation,
        usage: usage_difference(&a.usage, &b.usage),
        a,
        b,
        first_divergence,
        inputs,
        effects,
        answer,
    }
}

/// Returns what a replay replays, and how.
fn replay_of(source: &Source) -> Option<(&str, &str)> {
    let replay = replay_in(source.event(0)?)?;
    let text = |name: &str| replay.members().get(name).and_then(Value::as_str);
    Some((text("source_task_id")?, replay.mode().unwrap_or_default()))
}

fn relation(a: &Source, b: &Source) -> Relation {
    let of_a = replay_of(a).map(|(source, _)| source);
    let of_b = replay_of(b).map(|(source, _)| source);
    if of_b == Some(a.task_id.as_str()) {
        Relation::Replay
    } else if of_a == Some(b.task_id.as_str()) {
        Relation::Source
    } else if of_a.is_some() && of_a == of_b {
        Relation::SameSource
    } else {
        Relation::None
    }
}

fn run(source: &Source) -> Run {
    let replay = replay_of(source);
    Run {
        task_id: source.task_id.clone(),
        workflow: source.workflow().0.to_owned(),
        status: source.status,
        failure: failure(source),
        answer: answer(source),
        events: source.len(),
        log_sha256: source.log_sha256,
        receipt_id: source
            .receipt
            .as_ref()
            .map(|receipt| receipt.id().to_owned()),
        source_task_id: replay.map(|(source, _)| source.to_owned()),
        mode: replay.map(|(_, mode)| mode.to_owned()),
        usage: usage(source),
    }
}

/// Returns why a Task failed, by its own word and not by one that it repeats.
pub(super) fn failure(source: &Source) -> Value {
    (0..source.len())
        .rev()
        .find(|index| source.kind(*index) == Some(Kind::TaskFailed) && is_own(source, *index))
        .and_then(|index| source.payload(index).remove("failure"))
        .unwrap_or_default()
}

/// Returns what a run answered, when it completed: the words of its result. A replay's outcome holds them, whatever its
/// request made the event say that tells them.
pub fn answer(source: &Source) -> Option<String> {
    if source.status != Status::Completed {
        return None;
    }
    let last = |wanted: fn(&Source, usize) -> bool| {
        let index = (0..source.len()).rev().find(|index| wanted(source, *index));
        index.map(|index| source.payload(index))
    };
    let outcome = last(|source, index| {
        source.kind(index) == Some(Kind::OutcomeRecorded) && is_own(source, index)
    });
    let messages = outcome.as_ref().and_then(|outcome| outcome.get("messages"));
    if let Some(Value::Array(messages)) = messages {
        let message = messages.first().and_then(Value::as_object);
        return message.map(crate::message_text);
    }
    let message = last(|source, index| {
        source.kind(index) == Some(Kind::AgentMessage)
            && source
                .event(index)
                .is_some_and(|event| event.actor.as_deref() == Some("agent"))
    });
    message.as_ref().map(crate::message_text)
}

/// True for an event of the Task's own life, which repeats none of a source.
fn is_own(source: &Source, index: usize) -> bool {
    let event = source.event(index);
    event.is_some_and(|event| event.replay.is_none())
}

pub(super) fn usage(source: &Source) -> Usage {
    let mut usage = Usage::default();
    for (key, places) in source.effects() {
        let event = places.recorded.and_then(|place| source.event(place));
        let Some(payload) = event.map(|event| &event.payload) else {
            continue;
        };
        let said = payload::EffectRecorded::of(payload);
        if said.kind() != Some("llm_provider_response") || said.outcome() != Some("ok") {
            continue;
        }
        usage.model_calls += 1;
        let Some(model) = said.model().filter(|model| model.is_object()) else {
            usage.use_unknown.push(key.to_owned());
            continue;
        };
        if model.get("usage_unknown") == Some(&Value::Bool(true)) {
            usage.use_unknown.push(key.to_owned());
        }
        let number = |name: &str| model.get(name).and_then(Value::as_u64);
        usage.input_tokens += number("input_tokens").unwrap_or(0);
        usage.output_tokens += number("output_tokens").unwrap_or(0);
        match number("cost_micros") {
            Some(cost) => usage.cost_micros += cost,
            None => {
                let word =
                    |name: &str| model.get(name).and_then(Value::as_str).unwrap_or("unknown");
                let name = format!("{}/{}", word("provider"), word("model"));
                if !usage.price_unknown.contains(&name) {
                    usage.price_unknown.push(name);
                }
            }
        }
    }
    usage
}

fn usage_difference(a: &Usage, b: &Usage) -> UsageDifference {
    let minus = |b: u64, a: u64| {
        let difference = i128::from(b) - i128::from(a);
        i64::try_from(difference).unwrap_or(i64::MAX)
    };
    let is_priced = a.price_unknown.is_empty() && b.price_unknown.is_empty();
    UsageDifference {
        model_calls: minus(b.model_calls, a.model_calls),
        input_tokens: minus(b.input_tokens, a.input_tokens),
        output_tokens: minus(b.output_tokens, a.output_tokens),
        cost_micros: is_priced.then(|| minus(b.cost_micros, a.cost_micros)),
    }
}

/// Returns what the runs were given differently, each only by its members that differ.
fn inputs(comparison: &Comparison<'_>, aligned: &Aligned<'_>) -> Vec<Change> {
    let (a, b) = (comparison.a, comparison.b);
    let mut changes = Vec::new();
    let mut compare = |what: &'static str, before: Value, after: Value| {
        changes.extend(members(what, &before, &after));
    };
    let ((name_a, version_a), (name_b, version_b)) = (a.workflow(), b.workflow());
    compare("workflow", name_a.into(), name_b.into());
    compare("workflow_version", json!(version_a), json!(version_b));
    let (start_a, start_b) = (given(a), given(b));
    // A replay from a checkpoint does not tell again what lies before it.
    if aligned.begins_at_start() {
        compare("input", start_a.input, start_b.input);
    }
    compare("persona", json!(start_a.persona), json!(start_b.persona));
    let hides = |source: &Source| comparison.reveal == Reveal::Public && !is_input_public(source);
    if hides(a) || hides(b) {
        changes.iter_mut().for_each(Change::hide);
    }
    changes
}

/// Returns what a run started from. The id of a persona follows from its name and version.
fn given(source: &Source) -> Start {
    let (mut start, _) = source.start(|index| source.payload(index));
    if let Some(Value::Object(persona)) = &mut start.persona {
        persona.remove("id");
    }
    start
}

/// True unless the request of a replay gave it something that is not public to begin with.
pub(super) fn is_input_public(source: &Source) -> bool {
    let overrides = source
        .request()
        .into_iter()
        .flat_map(|spec| &spec.overrides);
    let mut events = overrides.filter(|(key, _)| key.starts_with("event:"));
    events.all(|(_, given)| is_public(given))
}

fn is_public(given: &Override) -> bool {
    given.visibility == domain::Visibility::Public
}

/// Returns the keys of the overrides that a replay delivered.
fn applied(source: &Source) -> Vec<String> {
    let ended = (0..source.len())
        .rev()
        .find(|index| source.kind(*index) == Some(Kind::ReplayCompleted) && is_own(source, *index));
    let payload = ended.map(|index| source.payload(index)).unwrap_or_default();
    let keys = payload::ReplayEnded::of(&payload).overrides_applied();
    keys.unwrap_or_default()
}
