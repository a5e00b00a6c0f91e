//! The source of a replay: a sealed log, read once.

use std::collections::BTreeMap;
use std::sync::Arc;

use canon::{Digest, Map, Value, sha256};
use domain::{BLOB_MEMBER, Event, Kind, Status, TaskId};
use receipts::{Receipt, event_log_digest};

use super::failure::{Failure, Unavailable};
use super::request::Spec;
use crate::workflow::{Answers, EffectAnswer, Start};

/// A log that is not the sealed log of one Task.
#[derive(Debug, Clone, thiserror::Error)]
#[error("not the sealed log of a task: {0}")]
pub struct ReadSourceError(String);

/// Where an effect stands in the log.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Places {
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
    events: Vec<Event>,
    kinds: Vec<Kind>,
    effects: BTreeMap<String, Places>,
    blobs: BTreeMap<Digest, Vec<u8>>,
    /// The request, when the source is a replay itself: it holds values that events only describe.
    inherited: Option<Spec>,
}

/// Returns the digests of everything a log keeps beside itself.
///
/// # Errors
/// The bytes are no events.
pub fn blobs_named(events: &[Arc<[u8]>]) -> Result<Vec<Digest>, ReadSourceError> {
    let mut named = Vec::new();
    for bytes in events {
        let event = Event::parse(bytes).map_err(|error| ReadSourceError(error.to_string()))?;
        named.extend(named_by(&event).into_iter().map(|(_, digest)| digest));
    }
    named.sort_unstable();
    named.dedup();
    Ok(named)
}

/// Returns what an event keeps in blobs: the member, and the digest.
fn named_by(event: &Event) -> Vec<(String, Digest)> {
    let digest = |value: &Value| value.as_str().and_then(|text| Digest::parse(text).ok());
    let mut named = Vec::new();
    if let Some(Value::Object(listed)) = event.payload.get(BLOB_MEMBER) {
        for (member, descriptor) in listed {
            if let Some(digest) = descriptor.get("sha256").and_then(digest) {
                named.push((member.clone(), digest));
            }
        }
    }
    let has_bytes = event.payload.get("bytes").is_some_and(Value::is_u64);
    let content = match event.kind() {
        Ok(Kind::CheckpointCreated) => event.payload.get("state_sha256"),
        Ok(Kind::ArtifactCreated | Kind::ArtifactUpdated) if has_bytes => {
            event.payload.get("sha256")
        }
        _ => None,
    };
    if let Some(digest) = content.and_then(digest) {
        named.push((String::new(), digest));
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
        let fail = |problem: &str| ReadSourceError(problem.to_owned());
        let mut parsed = Vec::with_capacity(events.len());
        let mut kinds = Vec::with_capacity(events.len());
        let mut status = None;
        for bytes in events {
            let event = Event::parse(bytes).map_err(|error| ReadSourceError(error.to_string()))?;
            if event.is_header() {
                return Err(fail("its events were pruned"));
            }
            let kind = event
                .kind()
                .map_err(|error| ReadSourceError(error.to_string()))?;
            let end = match kind {
                Kind::TaskStatusChanged if event.replay.is_none() => event
                    .payload
                    .get("to")
                    .and_then(|to| serde_json::from_value::<Status>(to.clone()).ok())
                    .filter(|to| to.is_terminal()),
                _ => None,
            };
            parsed.push(event);
            kinds.push(kind);
            if end.is_some() {
                status = end;
                break;
            }
        }
        let task_id = match (parsed.first(), kinds.first()) {
            (Some(first), Some(Kind::TaskSubmitted)) => first.task_id.clone(),
            _ => None,
        };
        let task_id = task_id.ok_or_else(|| fail("it does not begin with `task.submitted`"))?;
        if parsed
            .iter()
            .any(|event| event.task_id.as_ref() != Some(&task_id))
        {
            return Err(fail("it holds events of another task"));
        }
        let status = status.ok_or_else(|| fail("the task has not ended"))?;
        let sealed = events.get(..parsed.len()).unwrap_or_default();
        let log_sha256 = event_log_digest(sealed.iter().map(|bytes| &**bytes));
        let effects = places(&parsed, &kinds);
        Ok(Self {
            task_id,
            receipt,
            status,
            log_sha256,
            events: parsed,
            kinds,
            effects,
            blobs,
            inherited,
        })
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

    pub(super) fn places(&self, key: &str) -> Places {
        self.effects.get(key).copied().unwrap_or_default()
    }

    /// Returns the place of an event by its id.
    pub fn index_of(&self, event_id: &str) -> Option<usize> {
        self.events.iter().position(|event| &*event.id == event_id)
    }

    /// Returns the effect key that an event belongs to.
    pub(super) fn key_of(&self, index: usize) -> Option<&str> {
        self.events.get(index)?.payload.get("effect_key")?.as_str()
    }

    /// True when an override key names something of this source.
    pub fn knows(&self, key: &str) -> bool {
        if let Some(event) = key.strip_prefix("event:") {
            return self.index_of(event).is_some();
        }
        if let Some(checkpoint) = key.strip_prefix("host:checkpoint:") {
            return self.checkpoint(checkpoint).is_some();
        }
        self.effects.contains_key(key) || self.lifecycle_event(key).is_some()
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
                    Some((index, event.payload.get("checkpoint_id")?.as_str()?))
                }
                _ => None,
            })
    }

    /// Returns the canonical key of a recorded call id, such as `mcp:<server>:<tool call id>`.
    pub fn resolve_alias(&self, alias: &str) -> Option<String> {
        self.events
            .iter()
            .zip(&self.kinds)
            .find_map(|(event, kind)| {
                let text = |pointer: &str| event.payload.get(pointer).and_then(Value::as_str);
                let key = text("effect_key")?;
                let call_id = match kind {
                    Kind::AgentToolUse => text("tool_call_id")?,
                    Kind::EffectRecorded if key.starts_with("llm:") => {
                        let own = event.payload.get("value").and_then(|value| value.get("id"));
                        let ids = [text("provider_request_id"), own.and_then(Value::as_str)];
                        let id = alias.strip_prefix("llm:")?;
                        return ids.contains(&Some(id)).then(|| key.to_owned());
                    }
                    _ => return None,
                };
                // A key without its scope and number, and the call id instead.
                let prefix = key.rsplitn(3, ':').nth(2)?;
                (alias.strip_prefix(prefix)?.strip_prefix(':')? == call_id).then(|| key.to_owned())
            })
    }

    /// Returns the payload of an event with its blobs filled in.
    pub(super) fn payload(&self, index: usize) -> Map<String, Value> {
        let Some(event) = self.events.get(index) else {
            return Map::new();
        };
        let mut payload = event.payload.clone();
        if let Some(Value::Object(listed)) = payload.remove(BLOB_MEMBER) {
            for (member, _) in listed {
                if let Some(value) = self.blob_value(event, &member) {
                    payload.insert(member, value);
                }
            }
        }
        payload
    }

    fn blob_value(&self, event: &Event, member: &str) -> Option<Value> {
        let digest = domain::blob_reference(&event.payload, member)?;
        serde_json::from_slice(self.blobs.get(&digest)?).ok()
    }

    /// Returns bytes that are kept beside the log.
    pub fn blob(&self, digest: Digest) -> Option<&[u8]> {
        self.blobs.get(&digest).map(Vec::as_slice)
    }

    /// Returns the recorded answer at a place.
    pub(super) fn answer(&self, index: usize) -> Option<EffectAnswer> {
        let event = self.events.get(index)?;
        let value = match event.payload.get("value") {
            Some(value) => value.clone(),
            None => match self.blob_value(event, "value") {
                Some(value) => value,
                // An override of the replay that this source is: only its request holds the value.
                None => self
                    .inherited
                    .as_ref()
                    .and_then(|spec| spec.overrides.get(self.key_of(index)?)?.inline().cloned())
                    .unwrap_or_default(),
            },
        };
        Some(EffectAnswer {
            ok: event.payload.get("outcome").and_then(Value::as_str) == Some("ok"),
            value,
            model: event
                .payload
                .get("model")
                .filter(|model| !model.is_null())
                .and_then(|model| serde_json::from_value(model.clone()).ok()),
        })
    }

    /// Returns the answers that were recorded before a place.
    pub(super) fn answers_before(&self, index: usize) -> Answers {
        self.effects
            .iter()
            .filter_map(|(key, places)| {
                let recorded = places.recorded.filter(|recorded| *recorded < index)?;
                Some((key.clone(), self.answer(recorded)?))
            })
            .collect()
    }

    /// Returns what the workflow starts from, and the place of the event that holds the input.
    pub(super) fn start(&self, payload_of: impl Fn(usize) -> Map<String, Value>) -> (Start, usize) {
        let submitted = payload_of(0);
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
            .and_then(|event| event.payload.get("workflow"))
            .and_then(Value::as_str)
            .unwrap_or_default();
        let digest = self
            .own(Kind::TaskStarted)
            .and_then(|index| self.event(index))
            .and_then(|event| event.payload.get("workflow_sha256"))
            .and_then(Value::as_str)
            .and_then(|text| Digest::parse(text).ok());
        (name, digest)
    }

    /// Checks everything the log needs before anything is run: its digest in the receipt, and every blob from a place
    /// on, so that the first thing missing is told by its place and not by luck.
    pub(super) fn check(&self, from: usize) -> Option<Failure> {
        let stated = self.receipt.as_ref().and_then(stated_log_digest);
        if stated.is_some_and(|stated| stated != self.log_sha256) {
            let first = Unavailable {
                what: "event",
                id: None,
                key: None,
                event_id: self.events.first().map(|event| event.id.to_string()),
                sequence: Some(1),
                reason: "log_corrupt",
            };
            return Some(Failure::Unavailable {
                first: Box::new(first),
                also: 0,
            });
        }
        let mut missing = self
            .events
            .iter()
            .enumerate()
            .filter(|(index, event)| *index >= from || holds_input(event))
            .flat_map(|(index, event)| {
                named_by(event)
                    .into_iter()
                    .map(move |(_, digest)| (index, event, digest))
            })
            // A checkpoint is needed only by who restarts from it.
            .filter(|(index, ..)| {
                self.kind(*index) != Some(Kind::CheckpointCreated)
                    || (from > 0 && *index + 1 == from)
            })
            .filter_map(|(index, event, digest)| {
                let reason = match self.blobs.get(&digest) {
                    None => "missing",
                    Some(bytes) if sha256(bytes) != digest => "hash_mismatch",
                    Some(_) => return None,
                };
                Some(Unavailable {
                    what: "artifact",
                    id: Some(digest.to_string()),
                    key: self.key_of(index).map(str::to_owned),
                    event_id: Some(event.id.to_string()),
                    sequence: Some(index as u64 + 1),
                    reason,
                })
            });
        let first = missing.next()?;
        let also = missing.count() as u64;
        Some(Failure::Unavailable {
            first: Box::new(first),
            also,
        })
    }
}

fn holds_input(event: &Event) -> bool {
    matches!(event.kind(), Ok(Kind::TaskSubmitted | Kind::UserMessage))
}

/// Returns the digest of the event log that a receipt states.
fn stated_log_digest(receipt: &Receipt) -> Option<Digest> {
    receipt
        .as_map()
        .get("replay_input")?
        .get("materials")?
        .as_array()?
        .iter()
        .find(|material| material.get("kind").and_then(Value::as_str) == Some("event_log"))
        // The receipt of a replay names the log of its own source.
        .filter(|_| !receipt.is_replay())
        .and_then(|material| Digest::parse(material.get("sha256")?.as_str()?).ok())
}

fn places(events: &[Event], kinds: &[Kind]) -> BTreeMap<String, Places> {
    let mut effects: BTreeMap<String, Places> = BTreeMap::new();
    for (index, (event, kind)) in events.iter().zip(kinds).enumerate() {
        let Some(key) = event.payload.get("effect_key").and_then(Value::as_str) else {
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
