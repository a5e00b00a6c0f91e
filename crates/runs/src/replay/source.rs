//! The source of a replay: a sealed log, read once.

use std::collections::BTreeMap;
use std::sync::Arc;

use canon::{Digest, Map, Value, jcs};
use domain::payload::{Said, SubmittedReplay};
use domain::{BLOB_MEMBER, Event, Kind, NamedBlob, Status, TaskId, payload};
use receipts::{Receipt, event_log_digest};

use super::failure::{Failure, Unavailable};
use super::request::Spec;
use crate::workflow::{Answers, EffectAnswer, Start};

/// A log that is not the sealed log of one Task.
#[derive(Debug, Clone, thiserror::Error)]
#[error("not the sealed log of a task: {0}")]
pub struct ReadSourceError(String);

impl ReadSourceError {
    pub(super) fn new(problem: impl ToString) -> Self {
        Self(problem.to_string())
    }
}

/// Where an effect stands in the log.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EffectPlaces {
    pub(super) requested: Option<usize>,
    pub(super) asked: Option<usize>,
    pub(super) recorded: Option<usize>,
}

/// A finished Task as its log tells it.
#[derive(Debug)]
pub struct Source {
    /// The Task.
    pub task_id: TaskId,
    /// Its Receipt.
    pub receipt: Option<Receipt>,
    /// How it ended.
    pub status: Status,
    /// Digest of its sealed log.
    pub log_sha256: Digest,
    /// What the Receipt hashes to.
    pub(super) receipt_hash: Option<Digest>,
    pub(super) events: Vec<Event>,
    kinds: Vec<Kind>,
    effects: BTreeMap<String, EffectPlaces>,
    pub(super) blobs: BTreeMap<Digest, Vec<u8>>,
    /// The request, when the source is a replay itself: it holds values that events only describe.
    inherited: Option<Spec>,
    /// The Receipt that there should be, and what is wrong with it.
    pub(super) lacking: Option<(String, &'static str)>,
    /// The digest of the log by somebody else's word.
    pub(super) claimed: Option<Digest>,
}

/// The times that the server itself reads around a workflow.
pub(super) const LIFECYCLE_KEYS: [&str; 3] =
    ["time:created_at", "time:started_at", "time:completed_at"];

/// Returns the digests of everything a log keeps beside itself.
///
/// # Errors
/// The bytes are no events.
pub fn blobs_named(events: &[Arc<[u8]>]) -> Result<Vec<Digest>, ReadSourceError> {
    let mut named = Vec::new();
    for bytes in events {
        let event = Event::parse(bytes).map_err(ReadSourceError::new)?;
        let kind = event.kind().ok();
        named.extend(named_by(&event, kind).into_iter().map(|(_, digest)| digest));
    }
    named.sort_unstable();
    named.dedup();
    Ok(named)
}

/// Returns what an event keeps in blobs: the member, and the digest. An event whose payload came with a request keeps
/// nothing, whatever it says: a digest is no right to read what it is the digest of.
pub(super) fn named_by(event: &Event, kind: Option<Kind>) -> Vec<(String, Digest)> {
    match event.is_substituted() {
        true => Vec::new(),
        false => names_in(&event.payload, kind),
    }
}

/// Returns what a payload would keep in blobs if its event were the log's own.
pub(super) fn names_in(payload: &Map<String, Value>, kind: Option<Kind>) -> Vec<(String, Digest)> {
    let mut named: Vec<_> = domain::external_members(payload)
        .map(|moved| (moved.member.to_owned(), moved.digest))
        .collect();
    let named_blob = kind.map_or(NamedBlob::None, Kind::named_blob);
    match named_blob {
        NamedBlob::State | NamedBlob::Content => {
            named.extend(
                named_blob
                    .stated_in(payload)
                    .map(|digest| (String::new(), digest)),
            );
        }
        // A request is salted and travels on its own; the others are not of a Task's own log.
        NamedBlob::Request | NamedBlob::Plan | NamedBlob::Receipt | NamedBlob::Bundle => {}
        NamedBlob::None | NamedBlob::Entry => {}
    }
    named
}

impl Source {
    /// Reads a sealed log: the events of one Task from its first to the one that says how it ended. What comes after
    /// that, such as the issue of its receipt, is no part of it.
    ///
    /// # Errors
    /// The log is not that of one finished Task, from its beginning.
    pub fn read(
        events: &[Arc<[u8]>],
        blobs: BTreeMap<Digest, Vec<u8>>,
        receipt: Option<Receipt>,
        inherited: Option<Spec>,
    ) -> Result<Self, ReadSourceError> {
        let mut parsed = Vec::with_capacity(events.len());
        for bytes in events {
            let event = Event::parse(bytes).map_err(ReadSourceError::new)?;
            if event.is_header() {
                return Err(ReadSourceError::new("its events were pruned"));
            }
            let is_last = end_told_by(&event).is_some();
            parsed.push(event);
            if is_last {
                break;
            }
        }
        let sealed = events.get(..parsed.len()).unwrap_or_default();
        let log_sha256 = event_log_digest(sealed.iter().map(|bytes| &**bytes));
        Self::of(parsed, log_sha256, blobs, receipt, inherited)
    }

    /// Returns everything that the log keeps beside itself.
    pub fn into_blobs(self) -> BTreeMap<Digest, Vec<u8>> {
        self.blobs
    }

    /// Takes the events of a sealed log, the last of which says how the Task ended.
    pub(super) fn of(
        events: Vec<Event>,
        log_sha256: Digest,
        blobs: BTreeMap<Digest, Vec<u8>>,
        receipt: Option<Receipt>,
        inherited: Option<Spec>,
    ) -> Result<Self, ReadSourceError> {
        let ended = check_sealed(events.iter())?;
        Ok(Self {
            receipt_hash: receipt.as_ref().map(Receipt::hash),
            receipt,
            inherited,
            ..Self::bare(ended, events, log_sha256, blobs)?
        })
    }

    /// Takes the events of a Task that has not ended, in the state that its document says. Good for reading, and for
    /// nothing that needs a whole record.
    pub(super) fn unfinished(
        events: Vec<Event>,
        log_sha256: Digest,
        blobs: BTreeMap<Digest, Vec<u8>>,
        status: Status,
    ) -> Result<Self, ReadSourceError> {
        let task_id = check_one_task(events.iter())?;
        Self::bare((task_id, status), events, log_sha256, blobs)
    }

    /// Returns a source without a receipt.
    fn bare(
        (task_id, status): (TaskId, Status),
        events: Vec<Event>,
        log_sha256: Digest,
        blobs: BTreeMap<Digest, Vec<u8>>,
    ) -> Result<Self, ReadSourceError> {
        let kinds = events
            .iter()
            .map(|event| event.kind().map_err(ReadSourceError::new))
            .collect::<Result<Vec<Kind>, _>>()?;
        let effects = places(&events, &kinds);
        Ok(Self {
            task_id,
            receipt_hash: None,
            receipt: None,
            status,
            log_sha256,
            events,
            kinds,
            effects,
            blobs,
            inherited: None,
            lacking: None,
            claimed: None,
        })
    }

    /// Says that the Task has a Receipt which cannot be read, and why.
    #[must_use]
    pub fn with_missing_receipt(mut self, id: String, reason: &'static str) -> Self {
        self.lacking = Some((id, reason));
        self
    }

    /// Says which digest the log must have, beside what its receipt says.
    pub(super) fn claiming(mut self, log_sha256: Digest) -> Self {
        self.claimed = Some(log_sha256);
        self
    }

    /// Returns the events of the log.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns one event.
    pub fn event(&self, index: usize) -> Option<&Event> {
        self.events.get(index)
    }

    pub(super) fn kind(&self, index: usize) -> Option<Kind> {
        self.kinds.get(index).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    pub(super) fn places(&self, key: &str) -> EffectPlaces {
        self.effects.get(key).copied().unwrap_or_default()
    }

    /// Returns the place of an event by its id.
    pub fn index_of(&self, event_id: &str) -> Option<usize> {
        self.events.iter().position(|event| &*event.id == event_id)
    }

    /// Returns the effect key that an event belongs to.
    pub(super) fn key_of(&self, index: usize) -> Option<&str> {
        self.events.get(index)?.effect_key()
    }

    /// True when an override key names something of this source.
    pub fn has_key(&self, key: &str) -> bool {
        if let Some(event) = key.strip_prefix("event:") {
            return self.index_of(event).is_some();
        }
        if let Some(checkpoint) = key.strip_prefix("host:checkpoint:") {
            return self.checkpoint(checkpoint).is_some();
        }
        self.effects.contains_key(key) || self.lifecycle_event(key).is_some()
    }

    /// True when an override key names something of this source, by its name or by the id of a call.
    pub fn names(&self, key: &str) -> bool {
        self.has_key(key) || !self.aliased(key).is_empty()
    }

    /// Returns the event that tells one of the times that the server itself reads.
    pub(super) fn lifecycle_event(&self, key: &str) -> Option<usize> {
        match key {
            "time:created_at" => Some(0),
            "time:started_at" => self.own(Kind::TaskStarted),
            "time:completed_at" => self.len().checked_sub(1),
            _ => None,
        }
    }

    /// Returns the key of the reading of the clock that an event tells.
    pub(super) fn lifecycle_key(&self, index: usize) -> Option<&'static str> {
        LIFECYCLE_KEYS
            .into_iter()
            .find(|key| self.lifecycle_event(key) == Some(index))
    }

    fn own(&self, kind: Kind) -> Option<usize> {
        (0..self.len()).find(|index| {
            self.kind(*index) == Some(kind)
                && self
                    .event(*index)
                    .is_some_and(|event| event.replay.is_none())
        })
    }

    /// Returns where a checkpoint stands.
    pub fn checkpoint(&self, id: &str) -> Option<usize> {
        self.checkpoints()
            .find(|(_, checkpoint)| *checkpoint == id)
            .map(|(index, _)| index)
    }

    /// Returns the checkpoints with their places, in order.
    pub fn checkpoints(&self) -> impl Iterator<Item = (usize, &str)> {
        self.events
            .iter()
            .zip(&self.kinds)
            .enumerate()
            .filter_map(|(index, (event, kind))| match kind {
                Kind::CheckpointCreated => {
                    let said = payload::CheckpointCreated::of(&event.payload);
                    Some((index, said.checkpoint_id()?))
                }
                _ => None,
            })
    }

    /// Returns the state that a checkpoint keeps, when it is available.
    pub(super) fn checkpoint_state(&self, index: usize) -> Option<Value> {
        let event = self.events.get(index)?;
        let digest = payload::CheckpointCreated::of(&event.payload).state_sha256()?;
        serde_json::from_slice(self.blobs.get(&digest)?).ok()
    }

    /// True when the Task is a replay itself.
    pub(super) fn is_replay(&self) -> bool {
        let submitted = self.events.first();
        submitted.is_some_and(|event| replay_in(event).is_some())
    }

    /// Returns the Task that this one replays.
    pub fn replays(&self) -> Option<TaskId> {
        replay_in(self.events.first()?)?.source_task_id()
    }

    /// Returns the keys of the calls with a recorded id, such as `mcp:<server>:<tool call id>`. Ids are the provider's:
    /// it may give one twice.
    pub(super) fn aliased(&self, alias: &str) -> Vec<String> {
        let mut keys: Vec<String> = self
            .events
            .iter()
            .zip(&self.kinds)
            .enumerate()
            .filter_map(|(index, (event, kind))| {
                let text = |pointer: &str| event.payload.get(pointer).and_then(Value::as_str);
                let key = text("effect_key")?;
                let call_id = match kind {
                    Kind::AgentToolUse => text("tool_call_id")?,
                    Kind::EffectRecorded if key.starts_with("llm:") => {
                        let id = alias.strip_prefix("llm:")?;
                        let own = self.answer(index);
                        let own = own.as_ref().and_then(|answer| answer.value.get("id"));
                        let ids = [text("provider_request_id"), own.and_then(Value::as_str)];
                        return ids.contains(&Some(id)).then(|| key.to_owned());
                    }
                    _ => return None,
                };
                // A key without its scope and number, and the call id instead.
                let prefix = key.rsplitn(3, ':').nth(2)?;
                (alias.strip_prefix(prefix)?.strip_prefix(':')? == call_id).then(|| key.to_owned())
            })
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// True for an event of a replay whose payload came from a request: no workflow would say it again.
    pub(super) fn is_substituted(&self, index: usize) -> bool {
        let event = self.events.get(index);
        event.is_some_and(Event::is_substituted)
    }

    /// True for an event of a replay that does not show what a tool returned, because a request put it there.
    pub(super) fn hides_output(&self, index: usize) -> bool {
        let event = self.events.get(index);
        event.is_some_and(|event| {
            let output = payload::ToolResult::of(&event.payload).output();
            let is_hidden = output.and_then(|output| output.get("redacted")).is_some();
            is_hidden && event.replay.is_some()
        })
    }

    fn substituted_by(&self, index: usize) -> Option<&str> {
        let mark = self.events.get(index)?.replay.as_ref()?;
        mark.override_key.as_deref()
    }

    /// Returns the request, when this is a replay whose request is at hand.
    pub(super) fn request(&self) -> Option<&Spec> {
        self.inherited.as_ref()
    }

    /// Returns the payload that the request of this replay gave an event, which may not be public.
    fn substitute(&self, index: usize) -> Option<&Map<String, Value>> {
        let key = self.substituted_by(index)?;
        let given = self.inherited.as_ref()?.overrides.get(key)?;
        given
            .inline()
            .filter(|_| key.starts_with("event:"))?
            .as_object()
    }

    /// Returns the payload of an event with its blobs filled in.
    pub(super) fn payload(&self, index: usize) -> Map<String, Value> {
        if let Some(given) = self.substitute(index) {
            return given.clone();
        }
        let Some(event) = self.events.get(index) else {
            return Map::new();
        };
        let mut payload = Map::clone(&event.payload);
        if let Some(Value::Object(listed)) = payload.remove(BLOB_MEMBER) {
            for (member, _) in listed {
                // In its place may stand where to fetch it, which says nothing about it.
                payload.remove(&member);
                if let Some(value) = self.blob_value(event, &member) {
                    payload.insert(member, value);
                }
            }
        }
        payload
    }

    /// True when an event says exactly this, its blobs included.
    pub(super) fn has_payload(&self, index: usize, said: &Map<String, Value>) -> bool {
        if let Some(given) = self.substitute(index) {
            return given == said;
        }
        let Some(event) = self.events.get(index) else {
            return false;
        };
        // Nothing is put together that only has to be compared.
        match event.payload.get(BLOB_MEMBER) {
            None => *event.payload == *said,
            Some(Value::Object(listed)) => {
                let is_kept = |member: &String| {
                    let digest = domain::blob_reference(&event.payload, member);
                    let bytes = digest.and_then(|digest| self.blobs.get(&digest));
                    let said = said.get(member).map(jcs);
                    said.is_some() && said.as_ref() == bytes
                };
                let mut plain = event
                    .payload
                    .iter()
                    .filter(|(name, _)| *name != BLOB_MEMBER && !listed.contains_key(*name));
                let count = listed.len() + plain.clone().count();
                let is_same = count == said.len()
                    && plain.all(|(name, value)| said.get(name) == Some(value))
                    && listed.keys().all(is_kept);
                is_same || self.payload(index) == *said
            }
            Some(_) => self.payload(index) == *said,
        }
    }

    fn blob_value(&self, event: &Event, member: &str) -> Option<Value> {
        let digest = domain::blob_reference(&event.payload, member)?;
        serde_json::from_slice(self.blobs.get(&digest)?).ok()
    }

    /// Returns bytes that are kept beside the log.
    pub fn blob(&self, digest: Digest) -> Option<&[u8]> {
        self.blobs.get(&digest).map(Vec::as_slice)
    }

    /// Returns the recorded answer at a place; none when it is told by its digest alone.
    pub(super) fn answer(&self, index: usize) -> Option<EffectAnswer> {
        let event = self.events.get(index)?;
        if let Some(given) = self.substitute(index) {
            return Some(answer_in(given));
        }
        let value = self.recorded_value(index)?;
        let said = payload::EffectRecorded::of(&event.payload);
        let model = said.model();
        Some(EffectAnswer {
            ok: said.outcome() == Some("ok"),
            value,
            model: model.and_then(|model| serde::Deserialize::deserialize(model).ok()),
        })
    }

    /// Returns the value that was recorded at a place, when it is available.
    pub(super) fn recorded_value(&self, index: usize) -> Option<Value> {
        let event = self.events.get(index)?;
        if let Some(value) = payload::EffectRecorded::of(&event.payload).value() {
            return Some(value.clone());
        }
        // An override of the replay that this source is: only its request holds the value.
        let inherited = || {
            let spec = self.inherited.as_ref()?;
            spec.overrides.get(self.key_of(index)?)?.inline().cloned()
        };
        self.blob_value(event, "value").or_else(inherited)
    }

    /// Returns the effect keys with their places, in the order of the log.
    pub(super) fn effects(&self) -> Vec<(&str, EffectPlaces)> {
        let mut effects: Vec<(&str, EffectPlaces)> = self
            .effects
            .iter()
            .map(|(key, places)| (key.as_str(), *places))
            .collect();
        effects.sort_by_key(|(_, places)| places.requested.or(places.recorded).or(places.asked));
        effects
    }

    /// Returns the answers that were recorded before a place.
    ///
    /// # Errors
    /// One of them is not told.
    pub(super) fn answers_before(&self, index: usize) -> Result<Answers, Failure> {
        let mut recorded: Vec<(usize, &String)> = self
            .effects
            .iter()
            .filter_map(|(key, places)| Some((places.recorded?, key)))
            .filter(|(place, _)| *place < index)
            .collect();
        recorded.sort_unstable();
        recorded
            .into_iter()
            .map(|(place, key)| match self.answer(place) {
                Some(answer) => Ok((key.clone(), answer)),
                None => Err(self.redacted(place)),
            })
            .collect()
    }

    /// Says that the answer at a place was never told to the log.
    pub(super) fn redacted(&self, place: usize) -> Failure {
        let first = Unavailable {
            what: "host",
            id: None,
            key: self.key_of(place).map(str::to_owned),
            event_id: self.events.get(place).map(|event| event.id.to_string()),
            sequence: Some(place as u64 + 1),
            reason: "redacted",
        };
        Failure::Unavailable {
            first: Box::new(first),
            also: 0,
        }
    }

    /// Returns what the workflow starts from, and the place of the event that holds the input.
    pub(super) fn start(&self, payload_of: impl Fn(usize) -> Map<String, Value>) -> (Start, usize) {
        // A replay tells in its own log what it was given instead of its source's beginning.
        let given = (0..self.len())
            .find(|index| {
                self.event(*index)
                    .is_some_and(|event| event.replay.is_some())
            })
            .filter(|index| self.kind(*index) == Some(Kind::ReplayEventReplayed))
            .filter(|index| self.substitute(*index).is_some());
        let submitted = payload_of(given.unwrap_or(0));
        let message = if submitted.contains_key("input") {
            None
        } else {
            self.kinds
                .iter()
                .position(|kind| *kind == Kind::UserMessage)
        };
        let payload = message.map(&payload_of);
        (
            Start::read(&submitted, payload.as_ref()),
            message.unwrap_or(0),
        )
    }

    pub(super) fn has_started(&self) -> bool {
        self.own(Kind::TaskStarted).is_some()
    }

    /// Returns the name and the digest of the workflow that ran.
    pub fn workflow(&self) -> (&str, Option<Digest>) {
        let name = self
            .events
            .first()
            .and_then(|event| payload::TaskSubmitted::of(&event.payload).workflow())
            .unwrap_or_default();
        let digest = self
            .own(Kind::TaskStarted)
            .and_then(|index| self.event(index))
            .and_then(|event| payload::TaskStarted::of(&event.payload).workflow_sha256())
            .and_then(Value::as_str)
            .and_then(|text| Digest::parse(text).ok());
        (name, digest)
    }
}

/// Returns what the first event of a replay says of it.
pub(super) fn replay_in(submitted: &Event) -> Option<Said<'_, SubmittedReplay>> {
    payload::TaskSubmitted::of(&submitted.payload).replay()
}

/// Returns the answer that the payload of a record holds.
pub(super) fn answer_in(payload: &Map<String, Value>) -> EffectAnswer {
    let said = payload::EffectRecorded::of(payload);
    EffectAnswer {
        ok: said.outcome() != Some("error"),
        value: said.value().cloned().unwrap_or_default(),
        model: None,
    }
}

/// Checks that these are the events of one finished Task, from its beginning to the one that says how it ended; returns
/// the Task and its end.
pub(super) fn check_sealed<'a>(
    events: impl DoubleEndedIterator<Item = &'a Event> + Clone,
) -> Result<(TaskId, Status), ReadSourceError> {
    let task_id = check_one_task(events.clone())?;
    let mut backwards = events.rev();
    let status = backwards.next().and_then(end_told_by);
    let status = status.ok_or_else(|| ReadSourceError::new("the task has not ended"))?;
    if backwards.any(|event| end_told_by(event).is_some()) {
        return Err(ReadSourceError::new(
            "something follows the end of the task",
        ));
    }
    Ok((task_id, status))
}

/// Checks that these are the events of one Task from its beginning; returns the Task.
fn check_one_task<'a>(
    mut events: impl Iterator<Item = &'a Event> + Clone,
) -> Result<TaskId, ReadSourceError> {
    let first = events.clone().next();
    let first = first.filter(|first| &*first.kind == Kind::TaskSubmitted.as_str());
    let task_id = first.and_then(|first| first.task_id.clone());
    let task_id =
        task_id.ok_or_else(|| ReadSourceError::new("it does not begin with `task.submitted`"))?;
    if events.any(|event| event.task_id.as_ref() != Some(&task_id)) {
        return Err(ReadSourceError::new("it holds events of another task"));
    }
    Ok(task_id)
}

/// Returns the state in which a Task ended, from the event that says so.
pub(super) fn end_told_by(event: &Event) -> Option<Status> {
    if &*event.kind != Kind::TaskStatusChanged.as_str() || event.replay.is_some() {
        return None;
    }
    let to = payload::StatusChanged::of(&event.payload).to()?;
    to.is_terminal().then_some(to)
}

fn places(events: &[Event], kinds: &[Kind]) -> BTreeMap<String, EffectPlaces> {
    let mut effects: BTreeMap<String, EffectPlaces> = BTreeMap::new();
    for (index, (event, kind)) in events.iter().zip(kinds).enumerate() {
        let Some(key) = event.effect_key() else {
            continue;
        };
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "other kinds only point at an effect"
        )]
        match kind {
            Kind::EffectRequested => {
                effects
                    .entry(key.to_owned())
                    .or_default()
                    .requested
                    .get_or_insert(index);
            }
            Kind::InputRequested | Kind::ToolApprovalRequired => {
                effects
                    .entry(key.to_owned())
                    .or_default()
                    .asked
                    .get_or_insert(index);
            }
            Kind::EffectRecorded => {
                effects
                    .entry(key.to_owned())
                    .or_default()
                    .recorded
                    .get_or_insert(index);
            }
            _ => {}
        }
    }
    effects
}
