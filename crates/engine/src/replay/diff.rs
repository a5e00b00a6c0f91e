//! Where two runs part: the first event that differs, what was asked and answered differently, how each ended, what
//! each used.
//!
//! Pure, over two sealed logs. A replay and its source are laid side by side by the ids that the replay's events carry;
//! other runs by effect keys and by the order of each kind of event. Ids, positions and times of a run are its own and
//! no difference. Pieces of streamed text are not compared: the whole answer is.

mod align;
mod text;

use canon::{Digest, Value, jcs, sha256};
use domain::{INLINE_BYTES_MAX, Kind, Status, TaskId};
use serde::Serialize;
use serde_json::json;

use super::keys::readable;
use super::source::Source;
use align::Aligned;

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
    pub first_divergence: Option<Parting>,
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
pub struct Parting {
    /// How.
    pub what: How,
    /// The event of the first run.
    pub a: Option<Place>,
    /// The event of the second run.
    pub b: Option<Place>,
    /// The members of the payload that differ.
    pub members: Vec<String>,
    /// The override that brought it about.
    pub override_key: Option<String>,
}

/// How something differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Both have it, differently.
    Changed,
    /// Only the first has it.
    Missing,
    /// Only the second has it.
    Added,
}

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Its id.
    pub event_id: String,
    /// Its number in the log, from 1.
    pub sequence: u64,
    /// Its kind; for an event that a replay only tells, the kind of what it tells.
    pub event: String,
    /// The effect it belongs to.
    pub effect_key: Option<String>,
}

/// Something that the runs were given differently.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// `workflow`, `workflow_version`, `input` or `persona`.
    pub what: &'static str,
    /// Of the first run; a digest in place of a large value.
    pub before: Value,
    /// Of the second.
    pub after: Value,
    /// The difference of the words.
    pub text: Option<TextDiff>,
}

/// An effect that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effect {
    /// Its key.
    pub key: String,
    /// What it is, in the words of overrides.
    pub kind: String,
    /// Which of the runs have it.
    pub what: How,
    /// What was asked, when that differs.
    pub request: Option<Digests>,
    /// What was answered, when that differs.
    pub value: Option<Digests>,
    /// `ok` or `error`, when that differs.
    pub outcome: Option<(Option<String>, Option<String>)>,
    /// The difference of the words of the answers.
    pub text: Option<TextDiff>,
    /// True when the request of a replay replaced the answer.
    pub overridden: bool,
    /// `stale_input` for a recorded answer to another request, `refreshed` for one that was performed anew.
    pub note: Option<String>,
}

/// Digests of both sides; none for what is not there or not told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Digests {
    /// Of the first run.
    pub before_sha256: Option<String>,
    /// Of the second.
    pub after_sha256: Option<String>,
}

/// Compares two runs.
pub fn between(a: &Source, b: &Source, reveal: Reveal) -> Diff {
    let relation = relation(a, b);
    let aligned = Aligned::new(a, b, relation);
    let first_divergence = aligned.first_divergence();
    let inputs = inputs(a, b, &aligned);
    let effects = effects(a, b, &aligned, reveal);
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
    let replay = source.event(0)?.payload.get("replay")?;
    let text = |name: &str| replay.get(name).and_then(Value::as_str);
    Some((text("source_task_id")?, text("mode").unwrap_or_default()))
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
fn failure(source: &Source) -> Value {
    (0..source.len())
        .rev()
        .find(|index| {
            source.kind(*index) == Some(Kind::TaskFailed)
                && source
                    .event(*index)
                    .is_some_and(|event| event.replay.is_none())
        })
        .and_then(|index| source.payload(index).remove("failure"))
        .unwrap_or_default()
}

/// Returns what a run answered, when it completed.
pub fn answer(source: &Source) -> Option<String> {
    if source.status != Status::Completed {
        return None;
    }
    let index = (0..source.len()).rev().find(|index| {
        source.kind(*index) == Some(Kind::AgentMessage)
            && source
                .event(*index)
                .is_some_and(|event| event.actor.as_deref() == Some("agent"))
    })?;
    Some(align::message_text(&source.payload(index)))
}

fn usage(source: &Source) -> Usage {
    let mut usage = Usage::default();
    for (key, places) in source.effects() {
        let event = places.recorded.and_then(|place| source.event(place));
        let Some(payload) = event.map(|event| &event.payload) else {
            continue;
        };
        let text = |name: &str| payload.get(name).and_then(Value::as_str);
        if text("kind") != Some("llm_provider_response") || text("outcome") != Some("ok") {
            continue;
        }
        usage.model_calls += 1;
        let Some(model) = payload.get("model").filter(|model| model.is_object()) else {
            usage.use_unknown.push(key.to_owned());
            continue;
        };
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

fn inputs(a: &Source, b: &Source, aligned: &Aligned<'_>) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut compare = |what: &'static str, before: Value, after: Value| {
        if before != after {
            let text = TextDiff::between(&readable(&before), &readable(&after));
            changes.push(Change {
                what,
                before: shown(before),
                after: shown(after),
                text,
            });
        }
    };
    let ((name_a, version_a), (name_b, version_b)) = (a.workflow(), b.workflow());
    compare("workflow", name_a.into(), name_b.into());
    compare("workflow_version", json!(version_a), json!(version_b));
    let start = |source: &Source| source.start(|index| source.payload(index)).0;
    let (start_a, start_b) = (start(a), start(b));
    // A replay from a checkpoint does not tell again what lies before it.
    if aligned.begins_at_start() {
        compare("input", start_a.input, start_b.input);
    }
    compare("persona", json!(start_a.persona), json!(start_b.persona));
    changes
}

/// Returns a value, or its digest when it is large.
fn shown(value: Value) -> Value {
    let bytes = jcs(&value);
    if bytes.len() <= INLINE_BYTES_MAX {
        return value;
    }
    json!({"sha256": sha256(&bytes), "bytes": bytes.len()})
}

fn effects(a: &Source, b: &Source, aligned: &Aligned<'_>, reveal: Reveal) -> Vec<Effect> {
    let of_a = a.effects();
    let of_b = b.effects();
    let only_b = of_b
        .iter()
        .map(|(key, _)| *key)
        .filter(|key| !of_a.iter().any(|(known, _)| known == key));
    let keys: Vec<&str> = of_a.iter().map(|(key, _)| *key).chain(only_b).collect();
    let sides = keys
        .into_iter()
        .map(|key| (key, Side::of(a, key), Side::of(b, key)));
    sides
        .filter_map(|(key, side_a, side_b)| {
            let what = match (side_a.exists, side_b.exists) {
                (true, true) => How::Changed,
                (true, false) if aligned.lies_before(&side_a) => return None,
                (true, false) => How::Missing,
                (false, true) if aligned.lies_before(&side_b) => return None,
                (false, _) => How::Added,
            };
            let request = Digests::unless_equal(side_a.request(), side_b.request());
            let value =
                Digests::unless_equal(side_a.text("value_sha256"), side_b.text("value_sha256"));
            let outcomes = (side_a.text("outcome"), side_b.text("outcome"));
            let outcome = (outcomes.0 != outcomes.1).then_some(outcomes);
            if what == How::Changed && request.is_none() && value.is_none() && outcome.is_none() {
                return None;
            }
            let text = match (side_a.words(reveal), side_b.words(reveal)) {
                (Some(before), Some(after)) => TextDiff::between(&before, &after),
                (Some(before), None) if !side_b.exists => TextDiff::between(&before, ""),
                (None, Some(after)) if !side_a.exists => TextDiff::between("", &after),
                _ => None,
            };
            let kind = side_a.text("kind").or_else(|| side_b.text("kind"));
            let note = side_b
                .text("replay_note")
                .or_else(|| side_a.text("replay_note"));
            Some(Effect {
                key: key.to_owned(),
                kind: kind.unwrap_or_default(),
                what,
                request,
                value,
                outcome,
                text,
                overridden: side_a.overridden() || side_b.overridden(),
                note,
            })
        })
        .collect()
}

/// An effect in one of the runs.
struct Side<'a> {
    source: &'a Source,
    exists: bool,
    requested: Option<usize>,
    recorded: Option<usize>,
}

impl<'a> Side<'a> {
    fn of(source: &'a Source, key: &str) -> Self {
        let places = source.places(key);
        Self {
            source,
            exists: places.requested.or(places.recorded).is_some(),
            requested: places.requested,
            recorded: places.recorded,
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        let places = [self.recorded, self.requested].into_iter().flatten();
        let mut events = places.filter_map(|place| self.source.event(place));
        events.find_map(|event| Some(event.payload.get(name)?.as_str()?.to_owned()))
    }

    fn request(&self) -> Option<String> {
        let event = self.source.event(self.requested?)?;
        Some(event.payload.get("request_sha256")?.as_str()?.to_owned())
    }

    /// Returns the words of the answer, as far as they may be told.
    fn words(&self, reveal: Reveal) -> Option<String> {
        let is_public = self.text("visibility").is_none_or(|word| word == "public");
        if reveal == Reveal::Public && !is_public {
            return None;
        }
        self.source
            .recorded_value(self.recorded?)
            .map(|value| readable(&value))
    }

    fn overridden(&self) -> bool {
        let event = self.recorded.and_then(|place| self.source.event(place));
        let mark = event.and_then(|event| event.replay.as_ref());
        mark.is_some_and(|mark| mark.override_key.is_some())
            && self.text("replay_note").as_deref() != Some("refreshed")
    }
}

impl Digests {
    fn unless_equal(before: Option<String>, after: Option<String>) -> Option<Self> {
        (before != after).then_some(Self {
            before_sha256: before,
            after_sha256: after,
        })
    }
}
