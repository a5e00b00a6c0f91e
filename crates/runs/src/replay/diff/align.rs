//! Laying two logs side by side.

use std::collections::BTreeMap;

use canon::{Map, Value};
use domain::{Event, InDiff, Kind, payload};
use serde_json::json;

use super::effects::{Replacement, Side};
use super::ignored::Comparison;
use super::{Difference, EventRef, FirstDifference, Relation, replay_of};
use crate::message_text;
use crate::replay::source::Source;

/// The fact that stands for a time that a request replaced.
const TIME: &str = "time";

/// Two logs, event by event.
pub(super) struct Aligned<'a> {
    pairs: Vec<(Option<Item<'a>>, Option<Item<'a>>)>,
    /// Events of the whole run that a replay from a checkpoint does not tell again, by their number.
    skipped: usize,
}

/// An event as it is compared.
#[derive(Clone)]
struct Item<'a> {
    index: usize,
    event: &'a Event,
    kind: &'a str,
    facts: Map<String, Value>,
    /// The time of the run's life that it tells, when a request replaced that.
    time_key: Option<&'static str>,
}

impl<'a> Aligned<'a> {
    pub(super) fn new(comparison: &Comparison<'a>) -> Self {
        let (a, b, relation) = (comparison.a, comparison.b, comparison.relation);
        // A replay tells its source's events; of a source everything counts, also when it is a replay itself.
        let (mut items_a, mut items_b) = match relation {
            Relation::Replay => (whole(a), items_of_source(b)),
            Relation::Source => (items_of_source(a), whole(b)),
            Relation::SameSource | Relation::None => (run_of(a), run_of(b)),
        };
        let skipped = match relation {
            Relation::Replay => skip(&mut items_a, &items_b),
            Relation::Source => skip(&mut items_b, &items_a),
            Relation::SameSource | Relation::None => 0,
        };
        for key in comparison.replaced_keys() {
            replace_time(&mut items_a, comparison, a, &key);
            replace_time(&mut items_b, comparison, b, &key);
        }
        let names_a = names(&items_a, relation, Relation::Replay);
        let names_b = names(&items_b, relation, Relation::Source);
        Self {
            pairs: pair((items_a, names_a), (items_b, names_b)),
            skipped,
        }
    }

    pub(super) fn first_divergence(&self, comparison: &Comparison<'_>) -> Option<FirstDifference> {
        self.pairs.iter().find_map(|(a, b)| {
            let (what, members) = match (a, b) {
                (Some(a), Some(b)) => {
                    let mut members = differing(&a.facts, &b.facts);
                    let key = a.effect_key().unwrap_or_default();
                    members.retain(|name| match name.as_str() {
                        "request_sha256" => !comparison.same_request(key),
                        "value_sha256" => !comparison.same_value(key),
                        _ => true,
                    });
                    if members.is_empty() && a.kind == b.kind {
                        return None;
                    }
                    (Difference::Changed, members)
                }
                (Some(_), None) => (Difference::Missing, Vec::new()),
                (None, Some(_)) => (Difference::Added, Vec::new()),
                (None, None) => return None,
            };
            let items = || [b, a].into_iter().flatten();
            let mut marks = items().filter_map(|item| item.event.replay.as_ref());
            let time_key = items().find_map(|item| item.time_key);
            Some(FirstDifference {
                what,
                a: a.as_ref().map(Item::place),
                b: b.as_ref().map(Item::place),
                members,
                override_key: marks
                    .find_map(|mark| mark.override_key.clone())
                    .or_else(|| time_key.map(str::to_owned)),
            })
        })
    }

    pub(super) fn begins_at_start(&self) -> bool {
        self.skipped == 0
    }

    /// True for an effect that a replay from a checkpoint had behind it when it began.
    pub(super) fn lies_before(&self, side: &Side<'_>) -> bool {
        let place = side.recorded.or(side.requested);
        place.is_some_and(|place| place < self.skipped)
    }
}

impl Item<'_> {
    fn effect_key(&self) -> Option<&str> {
        self.event.effect_key()
    }

    fn place(&self) -> EventRef {
        EventRef {
            event_id: self.event.id.to_string(),
            sequence: self.index as u64 + 1,
            event: self.kind.to_owned(),
            effect_key: self.effect_key().map(str::to_owned),
        }
    }

    fn original(&self) -> Option<&str> {
        self.event.replay.as_ref()?.original_event_id.as_deref()
    }
}

fn run_of(source: &Source) -> Vec<Item<'_>> {
    match replay_of(source) {
        Some(_) => items_of_source(source),
        None => whole(source),
    }
}

/// Returns everything in a log.
fn whole(source: &Source) -> Vec<Item<'_>> {
    items(source, |event| Some(&event.kind))
}

/// Returns what a replay tells of its source.
fn items_of_source(source: &Source) -> Vec<Item<'_>> {
    items(source, |event| {
        event.replay.as_ref()?;
        match event.kind() {
            Ok(Kind::ReplayEventReplayed) => {
                payload::EventReplayed::of(&event.payload).original_event()
            }
            _ => Some(&event.kind),
        }
    })
}

fn items<'a>(source: &'a Source, kind: impl Fn(&'a Event) -> Option<&'a str>) -> Vec<Item<'a>> {
    let events = source.events().iter().enumerate();
    events
        .filter(|(index, _)| source.kind(*index).map(Kind::in_diff) != Some(InDiff::Ignored))
        .filter_map(|(index, event)| {
            let kind = kind(event)?;
            Some(Item {
                index,
                event,
                kind,
                facts: facts(source, index, kind),
                time_key: None,
            })
        })
        .collect()
}

/// Makes a replaced time a fact of the event that tells it: times are none otherwise.
fn replace_time(items: &mut [Item<'_>], comparison: &Comparison<'_>, run: &Source, key: &str) {
    let of_kind = |kind: Kind| items.iter().position(|item| item.kind == kind.as_str());
    let (label, place) = match key {
        "time:created_at" => ("time:created_at", of_kind(Kind::TaskSubmitted)),
        "time:started_at" => ("time:started_at", of_kind(Kind::TaskStarted)),
        "time:completed_at" => ("time:completed_at", items.len().checked_sub(1)),
        _ => return,
    };
    let found = Replacement::of(comparison, run, key);
    if let (Some(item), Some(found)) = (place.and_then(|place| items.get_mut(place)), found) {
        item.facts
            .insert(TIME.to_owned(), found.value.unwrap_or_default());
        item.time_key = Some(label);
    }
}

/// Takes away what lies before the first event that a replay from a checkpoint tells again.
fn skip(whole: &mut Vec<Item<'_>>, told: &[Item<'_>]) -> usize {
    let is_from_checkpoint = told
        .first()
        .and_then(|item| item.event.replay.as_ref())
        .is_some_and(|mark| mark.mode == "from_checkpoint");
    if !is_from_checkpoint {
        return 0;
    }
    let first = told.iter().find_map(Item::original);
    let first = first.and_then(|id| whole.iter().position(|item| *item.event.id == *id));
    let skipped = whole.drain(..first.unwrap_or(0)).next_back();
    skipped.map_or(0, |item| item.index + 1)
}

/// Names the events of one run so that the other's have the same names. `own` is the relation in which this run is the
/// one that the other tells of.
fn names(items: &[Item<'_>], relation: Relation, own: Relation) -> Vec<String> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    items
        .iter()
        .map(|item| {
            let original = match relation {
                Relation::None => None,
                related if related == own => Some(&*item.event.id),
                _ => item.original(),
            };
            if let Some(original) = original {
                return original.to_owned();
            }
            let name = format!("{} {}", item.kind, item.effect_key().unwrap_or_default());
            let count = counts.entry(name.clone()).or_default();
            *count += 1;
            format!("{name} {count}")
        })
        .collect()
}

type Named<'a> = (Vec<Item<'a>>, Vec<String>);
type Pair<'a> = (Option<Item<'a>>, Option<Item<'a>>);

/// Puts events of the same name together, in the order of both runs where that is one.
fn pair<'a>((a, names_a): Named<'a>, (b, names_b): Named<'a>) -> Vec<Pair<'a>> {
    let in_a: BTreeMap<&str, usize> = names_a.iter().map(String::as_str).zip(0..).collect();
    let in_b: BTreeMap<&str, usize> = names_b.iter().map(String::as_str).zip(0..).collect();
    let mut pairs = Vec::with_capacity(a.len().max(b.len()));
    let mut next_b = 0;
    for (item, name) in a.iter().zip(&names_a) {
        let partner = in_b.get(name.as_str()).copied();
        // What only the second run has comes before what both have.
        if partner.is_some() {
            while let (Some(other), Some(name)) = (b.get(next_b), names_b.get(next_b)) {
                if in_a.contains_key(name.as_str()) {
                    break;
                }
                pairs.push((None, Some(other.clone())));
                next_b += 1;
            }
        }
        pairs.push((
            Some(item.clone()),
            partner.and_then(|at| b.get(at)).cloned(),
        ));
        if partner == Some(next_b) {
            next_b += 1;
        }
        // Partners that were taken out of order.
        while names_b
            .get(next_b)
            .and_then(|name| in_a.get(name.as_str()))
            .is_some_and(|at| a.get(*at).is_some_and(|taken| taken.index <= item.index))
        {
            next_b += 1;
        }
    }
    let rest = b.iter().zip(&names_b).skip(next_b);
    let rest = rest.filter(|(_, name)| !in_a.contains_key(name.as_str()));
    pairs.extend(rest.map(|(item, _)| (None, Some(item.clone()))));
    pairs
}

/// Returns what counts of an event: not its ids, its times or its place.
fn facts(source: &Source, index: usize, kind: &str) -> Map<String, Value> {
    let Some(event) = source.event(index) else {
        return Map::new();
    };
    let only = |names: &[&str]| {
        let taken = names.iter().filter_map(|name| {
            let value = event.payload.get(*name)?;
            Some(((*name).to_owned(), value.clone()))
        });
        taken.collect::<Map<String, Value>>()
    };
    // What a newer program recorded is compared whole.
    match Kind::parse(kind).map_or(InDiff::Payload, Kind::in_diff) {
        InDiff::Occurrence | InDiff::Ignored => Map::new(),
        InDiff::Request => only(&["kind", "request_sha256"]),
        InDiff::Result => only(&["kind", "outcome", "value_sha256"]),
        InDiff::Message => {
            let payload = source.payload(index);
            if !is_message(&payload) {
                return without_ids(payload);
            }
            let role = payload.get("role").cloned().unwrap_or_default();
            let text = json!(message_text(&payload));
            Map::from_iter([("role".to_owned(), role), ("text".to_owned(), text)])
        }
        InDiff::Artifact if event.actor.as_deref() == Some("agent") => {
            only(&["kind", "mime_type", "sha256"])
        }
        // Somebody else's bytes come later.
        InDiff::Artifact => only(&["kind", "mime_type"]),
        InDiff::Content => only(&["sha256"]),
        InDiff::Checkpoint if !source.is_substituted(index) => Map::new(),
        // A replay reports only that these happened; what they say is the run's.
        InDiff::Submission => submitted(source),
        InDiff::Start => {
            let version = source.workflow().1;
            Map::from_iter([("workflow_version".to_owned(), json!(version))])
        }
        InDiff::Decision => only(&["agent", "action", "decision"]),
        InDiff::Outcome => only(&["status", "summary", "failure"]),
        InDiff::Checkpoint | InDiff::Payload => without_ids(source.payload(index)),
    }
}

/// Returns what a run was given with its first event. An input that is a Message has an event of its own.
fn submitted(source: &Source) -> Map<String, Value> {
    let (_, place) = source.start(|index| source.payload(index));
    let start = super::given(source);
    let mut given = Map::new();
    given.insert("workflow".to_owned(), source.workflow().0.into());
    given.insert("persona".to_owned(), json!(start.persona));
    if place == 0 {
        given.insert("input".to_owned(), start.input);
    }
    given
}

fn without_ids(mut members: Map<String, Value>) -> Map<String, Value> {
    drop_ids(&mut members);
    members
}

fn drop_ids(members: &mut Map<String, Value>) {
    members.retain(|name, _| {
        !(name == "id"
            || ["_id", "_ids", "_at", "_position"]
                .iter()
                .any(|end| name.ends_with(end)))
    });
    members.values_mut().for_each(drop_ids_in);
}

fn drop_ids_in(value: &mut Value) {
    match value {
        Value::Object(members) => drop_ids(members),
        Value::Array(items) => items.iter_mut().for_each(drop_ids_in),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn differing(a: &Map<String, Value>, b: &Map<String, Value>) -> Vec<String> {
    let names = a
        .keys()
        .chain(b.keys().filter(|name| !a.contains_key(*name)));
    let differing = names.filter(|name| a.get(*name) != b.get(*name));
    differing.cloned().collect()
}

fn is_message(payload: &Map<String, Value>) -> bool {
    let parts = payload::Message::of(payload).parts();
    parts.is_some_and(Value::is_array)
}
