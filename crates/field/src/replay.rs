//! REPLAY: why a unit, decision, conflict, task or session stands as it does.
//!
//! Reads the log alone: entries, the index of causes over them, and the text of units for the words of a description.
//! Nothing that later operations could have changed is looked at, so the answer is the same after every derived state
//! was thrown away. The whole answer or none: a chain that is too large is refused, never cut.

mod chain;
mod graph;
mod summary;
mod wording;

use canon::Value;
use serde_json::json;

use crate::config::Limits;
use crate::error::{Check, Code, Fault};
use crate::event::{Entry, Event, SYSTEM, UnitText};
use crate::kind::{Depth, TargetType};
use crate::log::{EntryNumber, Log};
use crate::state::Field;
use crate::stored_answer::{self, StoredAnswer};

pub use graph::Graph;
pub(crate) use wording::recorded_start;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The kind of thing.
    pub kind: TargetType,
    /// Its id.
    pub id: String,
    /// How much to show.
    pub depth: Depth,
}

/// What a reader may see, and where the words come from.
pub struct Reader<'a> {
    /// Returns the text of a unit; nothing if it was purged.
    pub text_of: &'a dyn Fn(&str) -> Option<&'a UnitText>,
    /// Returns whether what belongs to a session may be seen.
    pub sees: &'a dyn Fn(Option<&str>) -> bool,
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

/// The agent of an event that the reader may not see.
const REDACTED: &str = "redacted";

/// Everything that the answer is made of.
pub(crate) struct AnswerParts<'a, 'r> {
    pub(crate) log: &'a Log,
    pub(crate) reader: &'a Reader<'r>,
    pub(crate) target: &'a Target,
    pub(crate) chain: Vec<EntryNumber>,
    pub(crate) key: Vec<EntryNumber>,
    pub(crate) quotes: Quotes,
}

/// How the summary quotes units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quotes {
    /// With their words.
    Words,
    /// With their ids between marks, for words that are looked up later.
    Marks,
}

/// Stands before and after the id of a unit in a summary that is kept without words.
const MARK: char = '\u{1}';

impl AnswerParts<'_, '_> {
    pub(crate) fn sees(&self, entry: &Entry) -> bool {
        (self.reader.sees)(entry.session_id.as_deref())
    }

    /// Returns whether a unit may be named: it is visible, or nobody recorded it.
    pub(crate) fn sees_unit(&self, id: &str) -> bool {
        self.log
            .unit_named(id)
            .and_then(|(_, node)| node.record)
            .and_then(|place| self.log.entry(place))
            .is_none_or(|entry| self.sees(entry))
    }

    /// Returns whether a task may be named: it is of no session, or of one that is visible.
    pub(crate) fn sees_task(&self, id: &str) -> bool {
        (self.reader.sees)(self.log.session_of_task(id))
    }

    /// Returns how a unit begins, or what stands for that.
    pub(crate) fn quoted(&self, unit: &str, text: &UnitText) -> String {
        match self.quotes {
            Quotes::Words => recorded_start(text),
            Quotes::Marks => format!("{MARK}{unit}{MARK}"),
        }
    }
}

/// Reads the causal chain of a target; `hides` says whether there is anything that the reader may not see.
pub(crate) fn replay(
    log: &Log,
    reader: &Reader<'_>,
    target: &Target,
    limits: &Limits,
    hides: bool,
) -> Check<(Value, StoredAnswer)> {
    let (chain, key) = chain::collect(log, target, limits)?;
    let mut story = AnswerParts {
        log,
        reader,
        target,
        chain,
        key,
        quotes: Quotes::Words,
    };
    let lighter = match target.depth {
        Depth::FullTrace => Some("use detailed or summary"),
        Depth::Detailed => Some("use summary"),
        Depth::Summary => None,
    };
    let too_large = |what: String| Fault::new(Code::ReplayTooLarge, what).advising(lighter);
    let shown: &[EntryNumber] = match target.depth {
        Depth::Summary => &[],
        Depth::Detailed => &story.key,
        Depth::FullTrace => &story.chain,
    };
    if shown.len() > limits.replay_events_max {
        return Err(too_large(format!(
            "the timeline has {} events, more than {}",
            shown.len(),
            limits.replay_events_max
        )));
    }
    let timeline: Vec<Value> = shown
        .iter()
        .filter_map(|place| log.entry(*place))
        .map(|entry| shown_event(&story, entry))
        .collect();
    let answer = json!({
        "status": "ok",
        "timeline": timeline,
        "summary": summary::write(&story),
        "agents_involved": agents(&story),
        "total_events": story.chain.len(),
    });
    if target.depth != Depth::Summary && canon::jcs(&answer).len() > limits.replay_bytes_max {
        let max = limits.replay_bytes_max;
        return Err(too_large(format!("the answer is larger than {max} bytes")));
    }
    let places = shown.to_vec();
    let kept = kept(&mut story, &places, hides, &answer);
    Ok((answer, kept))
}

/// Returns what is kept of an answer: of each event its sequence, and of those that hide something the event itself.
fn kept(
    story: &mut AnswerParts<'_, '_>,
    shown: &[EntryNumber],
    hides: bool,
    answer: &Value,
) -> StoredAnswer {
    let is_marked = |value: &Value| value.as_str().is_some_and(|text| text.contains(MARK));
    if answer.get("summary").is_none_or(is_marked) {
        // Marks of somebody else would be taken for ours.
        return StoredAnswer::Whole;
    }
    let everything = Reader {
        text_of: story.reader.text_of,
        sees: &|_| true,
    };
    let whole = AnswerParts {
        reader: &everything,
        chain: Vec::new(),
        key: Vec::new(),
        ..*story
    };
    let entries = shown.iter().filter_map(|place| story.log.entry(*place));
    let events = answer.get("timeline").and_then(Value::as_array);
    let events = events.into_iter().flatten();
    let timeline: Vec<Value> = entries
        .zip(events)
        .map(
            |(entry, event)| match !hides || *event == shown_event(&whole, entry) {
                true => entry.seq.into(),
                false => event.clone(),
            },
        )
        .collect();
    story.quotes = Quotes::Marks;
    let members = json!({
        "timeline": timeline,
        "summary": summary::write(story),
        "agents_involved": answer.get("agents_involved"),
        "total_events": answer.get("total_events"),
    });
    stored_answer::without_text(stored_answer::REPLAY, members)
}

/// Returns the answer of which this was kept.
pub(crate) fn rebuild_answer(field: &Field, kept: &Value) -> Value {
    let reader = Reader {
        text_of: &|unit| field.text_of(unit),
        sees: &|_| true,
    };
    // The words of an event do not depend on what was asked for.
    let target = Target {
        kind: TargetType::Session,
        id: String::new(),
        depth: Depth::Summary,
    };
    let story = AnswerParts {
        log: &field.log,
        reader: &reader,
        target: &target,
        chain: Vec::new(),
        key: Vec::new(),
        quotes: Quotes::Words,
    };
    let entries = field.log.entries();
    let event = |kept: &Value| {
        let place = kept
            .as_u64()
            .map(|seq| entries.partition_point(|entry| entry.seq < seq));
        let entry = place.and_then(|place| entries.get(place));
        entry.map_or_else(|| kept.clone(), |entry| shown_event(&story, entry))
    };
    let timeline = kept.get("timeline").and_then(Value::as_array);
    let timeline: Vec<Value> = timeline.into_iter().flatten().map(event).collect();
    let summary = kept.get("summary").and_then(Value::as_str);
    let pieces = summary.unwrap_or_default().split(MARK).enumerate();
    let summary: String = pieces
        .map(|(number, piece)| match number % 2 {
            0 => piece.to_owned(),
            _ => match field.text_of(piece) {
                Some(text) => recorded_start(text),
                None => stored_answer::PURGED.to_owned(),
            },
        })
        .collect();
    json!({
        "status": "ok",
        "timeline": timeline,
        "summary": summary,
        "agents_involved": kept.get("agents_involved"),
        "total_events": kept.get("total_events"),
    })
}

fn shown_event(story: &AnswerParts<'_, '_>, entry: &Entry) -> Value {
    if !story.sees(entry) {
        return json!({
            "epoch": entry.epoch,
            "event_type": entry.event.event_type(),
            "agent_id": REDACTED,
            "description": "(redacted)",
            "memory_unit_id": null,
            "task_id": null,
            "timestamp": entry.at,
        });
    }
    // A unit is as visible as its RECORD, which need not be looked up when it is the event itself.
    let is_record = matches!(entry.event, Event::Recorded(_));
    let unit = entry.event.memory_unit_id();
    json!({
        "epoch": entry.epoch,
        "event_type": entry.event.event_type(),
        "agent_id": entry.agent_id,
        "description": wording::describe(story, entry),
        "memory_unit_id": unit.filter(|unit| is_record || story.sees_unit(unit)),
        "task_id": entry.event.task_id().filter(|task| story.sees_task(task)),
        "timestamp": entry.at,
    })
}

/// Returns the agents of the whole chain in the order in which they appear.
fn agents<'a>(story: &AnswerParts<'a, '_>) -> Vec<&'a str> {
    let mut seen = std::collections::BTreeSet::new();
    let mut agents = Vec::new();
    for entry in story
        .chain
        .iter()
        .filter_map(|place| story.log.entry(*place))
    {
        let agent = entry.agent_id.as_str();
        if story.sees(entry) && agent != SYSTEM && seen.insert(agent) {
            agents.push(agent);
        }
    }
    agents
}

/// Returns whether an event only read and found nothing new.
fn is_idle_read(event: &Event) -> bool {
    match event {
        Event::Attuned { .. } | Event::Subscribed { .. } | Event::Replayed { .. } => true,
        Event::Detected { conflict_ids, .. } => conflict_ids.is_empty(),
        _ => false,
    }
}

impl Log {
    /// Reads the causal chain of a target, as the REPLAY operation does, for whoever holds a log alone.
    ///
    /// # Errors
    /// The target does not exist, or its chain is larger than the limits allow.
    pub fn replay(
        &self,
        target: &Target,
        reader: &Reader<'_>,
        limits: &Limits,
    ) -> Result<Value, crate::error::Refusal> {
        replay(self, reader, target, limits, true)
            .map(|(answer, _)| answer)
            .map_err(|fault| fault.of(Some(crate::kind::Operation::Replay)))
    }
}
