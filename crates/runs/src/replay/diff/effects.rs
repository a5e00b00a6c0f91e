//! Effects that differ between two runs, and what the request of a replay replaced beside them: times, events, states.

use std::collections::BTreeMap;

use canon::{Value, jcs, sha256};
use domain::Kind;
use domain::payload::{self, Said};
use serde::Serialize;
use serde_json::json;

use super::align::Aligned;
use super::change::{self, Change, members};
use super::ignored::{self, Comparison};
use super::requests::{RequestOfRun, checkpoint_states, is_answer_public};
use super::text::TextDiff;
use super::{Difference, Reveal, applied, is_public};
use crate::message_text;
use crate::replay::keys::{kind_of, readable};
use crate::replay::source::Source;

/// An effect that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effect {
    /// Its key.
    pub key: String,
    /// What it is, in the words of overrides.
    pub kind: String,
    /// Which of the runs have it.
    pub what: Difference,
    /// What was asked, when that differs.
    pub request: Option<Digests>,
    /// The messages and members of what was asked that differ.
    pub request_changes: Vec<Change>,
    /// What was answered, when that differs.
    pub value: Option<Digests>,
    /// The members of the answers that differ, when their words do not.
    pub value_changes: Vec<Change>,
    /// `ok` or `error`, when that differs.
    pub outcome: Option<(Option<String>, Option<String>)>,
    /// The difference of the words of the answers.
    pub text: Option<TextDiff>,
    /// True when the request of a replay replaced the answer.
    pub overridden: bool,
    /// `stale_input` for a recorded answer to another request, `refreshed` for one that was performed live.
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

impl Digests {
    fn unless_equal(before: Option<String>, after: Option<String>) -> Option<Self> {
        (before != after).then_some(Self {
            before_sha256: before,
            after_sha256: after,
        })
    }
}

/// Returns what differs, in the order of the first run.
pub(super) fn differing(comparison: &Comparison<'_>, aligned: &Aligned<'_>) -> Vec<Effect> {
    let (of_a, of_b) = (comparison.a.effects(), comparison.b.effects());
    let only_b = of_b
        .iter()
        .map(|(key, _)| *key)
        .filter(|key| !of_a.iter().any(|(known, _)| known == key));
    let keys = of_a.iter().map(|(key, _)| *key).chain(only_b);
    let effects = keys.filter_map(|key| {
        let place = comparison.a.places(key);
        let place = place.requested.or(place.recorded);
        Some((place, effect(comparison, aligned, key)?))
    });
    let mut found: Vec<(Option<usize>, Effect)> = effects.chain(replaced(comparison)).collect();
    found.sort_by_key(|(place, _)| place.unwrap_or(usize::MAX));
    found.into_iter().map(|(_, effect)| effect).collect()
}

fn effect(comparison: &Comparison<'_>, aligned: &Aligned<'_>, key: &str) -> Option<Effect> {
    let (side_a, side_b) = (Side::of(comparison.a, key), Side::of(comparison.b, key));
    let what = match (side_a.exists(), side_b.exists()) {
        (true, true) => Difference::Changed,
        (true, false) if aligned.lies_before(&side_a) => return None,
        (true, false) => Difference::Missing,
        (false, true) if aligned.lies_before(&side_b) => return None,
        (false, _) => Difference::Added,
    };
    let request = Digests::unless_equal(side_a.request(), side_b.request())
        .filter(|_| !comparison.same_request(key));
    let value = Digests::unless_equal(side_a.value_digest(), side_b.value_digest())
        .filter(|_| !comparison.same_value(key));
    let outcomes = (
        side_a.text(|said| said.outcome()),
        side_b.text(|said| said.outcome()),
    );
    let outcome = (outcomes.0 != outcomes.1).then_some(outcomes);
    if what == Difference::Changed && request.is_none() && value.is_none() && outcome.is_none() {
        return None;
    }
    let reveal = comparison.reveal;
    let (value_a, value_b) = (side_a.value(reveal), side_b.value(reveal));
    let text = match (&value_a, &value_b) {
        (Some(before), Some(after)) => TextDiff::between(&readable(before), &readable(after)),
        (Some(before), None) if !side_b.exists() => TextDiff::between(&readable(before), ""),
        (None, Some(after)) if !side_a.exists() => TextDiff::between("", &readable(after)),
        _ => None,
    };
    let value_changes = match (&value_a, &value_b) {
        (Some(before), Some(after)) if text.is_none() => members("value", before, after),
        _ => Vec::new(),
    };
    let kind = side_a.text(|said| said.kind());
    let kind = kind.or_else(|| side_b.text(|said| said.kind()));
    let note = side_b.text(|said| said.replay_note());
    let note = note.or_else(|| side_a.text(|said| said.replay_note()));
    Some(Effect {
        key: key.to_owned(),
        kind: kind.unwrap_or_default(),
        what,
        request_changes: match request {
            Some(_) => request_changes(comparison, key),
            None => Vec::new(),
        },
        request,
        value,
        value_changes,
        outcome,
        text,
        overridden: side_a.overridden() || side_b.overridden(),
        note,
    })
}

/// Returns which messages were added or changed, and the other members of the requests that differ.
fn request_changes(comparison: &Comparison<'_>, key: &str) -> Vec<Change> {
    let asked = |side: &BTreeMap<String, RequestOfRun>| {
        let asked = side.get(key).filter(|asked| asked.matches)?;
        let is_told = comparison.reveal == Reveal::All || asked.is_open;
        is_told.then(|| ignored::request(&asked.wanted))
    };
    let (Some(mut a), Some(mut b)) = (asked(&comparison.asked_a), asked(&comparison.asked_b))
    else {
        return Vec::new();
    };
    let take = |request: &mut Value| match request {
        Value::Object(members) => match members.remove("messages") {
            Some(Value::Array(messages)) => messages,
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    let mut changes = change::messages(&take(&mut a), &take(&mut b));
    changes.extend(members("request", &a, &b));
    changes
}

/// Returns what requests replaced beside answers: times of the run's life, events as they are told, states that were
/// restored.
fn replaced(comparison: &Comparison<'_>) -> Vec<(Option<usize>, Effect)> {
    let found = comparison.replaced_keys().into_iter().filter_map(|key| {
        let before = Replacement::of(comparison, comparison.a, &key)?;
        let after = Replacement::of(comparison, comparison.b, &key)?;
        if before.value == after.value {
            return None;
        }
        let digest = |value: &Option<Value>| Some(sha256(&jcs(value.as_ref()?)).to_string());
        let is_told = comparison.reveal == Reveal::All || (before.is_open && after.is_open);
        let text = TextDiff::between(&words(&before.value), &words(&after.value));
        let effect = Effect {
            kind: kind_of(&key).unwrap_or_default().to_owned(),
            what: Difference::Changed,
            request: None,
            request_changes: Vec::new(),
            value: Digests::unless_equal(digest(&before.value), digest(&after.value)),
            value_changes: match (&before.value, &after.value) {
                (Some(a @ Value::Object(_)), Some(b @ Value::Object(_))) if is_told => {
                    members("value", a, b)
                }
                _ => Vec::new(),
            },
            outcome: None,
            text: text.filter(|_| is_told),
            overridden: true,
            note: None,
            key,
        };
        Some((before.place, effect))
    });
    found.collect()
}

/// Returns the words of what was replaced. An object has none: its members are told.
fn words(value: &Option<Value>) -> String {
    match value {
        None => "as recorded".to_owned(),
        Some(Value::Object(payload)) => message_text(payload),
        Some(value) => readable(value),
    }
}

/// What one of the runs has in the place of something that a request replaced.
pub(super) struct Replacement {
    place: Option<usize>,
    pub(super) value: Option<Value>,
    is_open: bool,
}

impl Replacement {
    /// None for what is told as an effect, or cannot be compared with the other run.
    pub(super) fn of(comparison: &Comparison<'_>, run: &Source, key: &str) -> Option<Self> {
        let places = run.places(key);
        if places.requested.or(places.recorded).is_some() {
            return None;
        }
        let is_source = comparison.source().is_some_and(|of| std::ptr::eq(run, of));
        let given = run.request().and_then(|spec| spec.overrides.get(key));
        let given = given.filter(|_| !is_source && applied(run).iter().any(|name| name == key));
        let is_open = given.is_none_or(is_public);
        let value = given.and_then(|given| given.inline()).cloned();
        if let Some(id) = key.strip_prefix("host:checkpoint:") {
            // Only the source has the state.
            let source = comparison.source()?;
            let replay = match std::ptr::eq(source, comparison.a) {
                true => comparison.b,
                false => comparison.a,
            };
            let (restored, kept) = checkpoint_states(source, replay, id)?;
            return Some(Self {
                place: source.checkpoint(id),
                value: Some(if is_source { kept } else { restored }),
                is_open,
            });
        }
        if let Some(id) = key.strip_prefix("event:") {
            let place = match is_source {
                true => run.index_of(id),
                false => (0..run.len()).find(|index| {
                    let mark = run.event(*index).and_then(|event| event.replay.as_ref());
                    mark.is_some_and(|mark| mark.original_event_id.as_deref() == Some(id))
                }),
            };
            // An answer is compared as such.
            if place.and_then(|index| run.kind(index)) == Some(Kind::EffectRecorded) {
                return None;
            }
            let told = place.map(|index| Value::Object(run.payload(index)));
            return Some(Self {
                place,
                value: value.or(told),
                is_open,
            });
        }
        let place = run.lifecycle_event(key)?;
        let recorded = run.event(place).filter(|_| is_source);
        Some(Self {
            place: Some(place),
            value: value.or_else(|| recorded.map(|event| json!(event.created_at))),
            is_open,
        })
    }
}

/// An effect in one of the runs.
pub(super) struct Side<'a> {
    source: &'a Source,
    key: &'a str,
    pub(super) requested: Option<usize>,
    pub(super) recorded: Option<usize>,
}

impl<'a> Side<'a> {
    fn of(source: &'a Source, key: &'a str) -> Self {
        let places = source.places(key);
        Self {
            source,
            key,
            requested: places.requested,
            recorded: places.recorded,
        }
    }

    fn exists(&self) -> bool {
        self.requested.or(self.recorded).is_some()
    }

    fn said<T>(&self, read: impl Fn(Said<'a, payload::ReplayedEffect>) -> Option<T>) -> Option<T> {
        let places = [self.recorded, self.requested].into_iter().flatten();
        let mut events = places.filter_map(|place| self.source.event(place));
        events.find_map(|event| read(payload::ReplayedEffect::of(&event.payload)))
    }

    fn text(
        &self,
        read: fn(Said<'a, payload::ReplayedEffect>) -> Option<&'a str>,
    ) -> Option<String> {
        self.said(read).map(str::to_owned)
    }

    fn value_digest(&self) -> Option<String> {
        self.said(|said| said.value_sha256())
            .map(|digest| digest.to_string())
    }

    fn request(&self) -> Option<String> {
        let event = self.source.event(self.requested?)?;
        let digest = payload::EffectRequested::of(&event.payload).request_sha256()?;
        Some(digest.to_string())
    }

    /// Returns what counts of the answer, as far as it may be told.
    fn value(&self, reveal: Reveal) -> Option<Value> {
        if reveal == Reveal::Public && !is_answer_public(self.source, self.key) {
            return None;
        }
        let answer = self.source.answer(self.recorded?)?;
        Some(ignored::answer(self.key, &answer.value))
    }

    fn overridden(&self) -> bool {
        let event = self.recorded.and_then(|place| self.source.event(place));
        let mark = event.and_then(|event| event.replay.as_ref());
        mark.is_some_and(|mark| mark.override_key.is_some())
            && self.text(|said| said.replay_note()).as_deref() != Some("refreshed")
    }
}
