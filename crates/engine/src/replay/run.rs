//! Running a workflow over its record.
//!
//! The workflow says what it wants; its record, an override or, where the request allows it, the outside answers. What
//! the run emits is laid over what the source emitted, in the source's order.

use std::collections::BTreeMap;

use canon::{Digest, Map, Value, jcs, sha256};
use domain::{Kind, Status};
use receipts::{Applied, DeltaOperation};
use serde_json::json;

use super::failure::{Divergence, Failure, Unavailable};
use super::outcome::{Emission, End, FinalArtifact, Replayed};
use super::request::{Given, Override, Refresh, Spec};
use super::source::{Source, answer_in};
use crate::workflow::{
    self, Answers, EffectAnswer, EffectKind, Machine, Note, Produced, Registry, Step, Wanted,
};

/// How far a replay came.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// To its end.
    Ended(Replayed),
    /// To an effect that the request lets it perform anew.
    Needs {
        /// What it emitted so far, the intent included.
        so_far: Replayed,
        /// What to perform.
        effect: Box<Wanted>,
    },
}

/// Replays a source. `live` holds what was performed anew before.
pub fn run(
    source: &Source,
    workflows: &Registry,
    spec: &Spec,
    secrets: &BTreeMap<String, Value>,
    live: &Answers,
) -> Progress {
    let mut runner = Runner::new(source, spec, secrets, live);
    match runner.all(workflows) {
        Ok(Stop::Needs(effect)) => {
            let end = End {
                status: Status::Working,
                text: None,
                summary: String::new(),
                failure: Value::Null,
                broken: None,
            };
            Progress::Needs {
                so_far: runner.into_replayed(end, false),
                effect,
            }
        }
        Ok(Stop::Ended(end)) => {
            let equal = runner.equals_source(&end);
            Progress::Ended(runner.into_replayed(*end, equal))
        }
        Err(failure) => {
            let cursor = runner.cursor.and_then(|index| source.event(index));
            let details = failure.details(cursor.map(|event| &*event.id));
            let end = End {
                status: Status::Failed,
                text: None,
                summary: failure.message(),
                failure: json!({
                    "code": failure.code(),
                    "message": failure.message(),
                    "details": details,
                }),
                broken: Some(failure),
            };
            Progress::Ended(runner.into_replayed(end, false))
        }
    }
}

enum Stop {
    Ended(Box<End>),
    Needs(Box<Wanted>),
}

/// Where the answer to an effect comes from.
enum Found {
    Record {
        place: usize,
        /// What was recorded there; none when the request replaces that event.
        answer: Option<EffectAnswer>,
        stale: bool,
    },
    Override,
    Live(EffectAnswer),
    /// To be performed.
    Needed,
    /// The source stopped here too.
    Nowhere,
}

/// What an event of the source is to its replay.
enum Class {
    /// Of the Task's own life: told, not repeated.
    Lifecycle,
    /// Brought about by the workflow: must come again.
    Caused,
    /// A piece of a model call's text.
    Delta,
    /// From outside: repeated as it is.
    Passive,
}

struct Runner<'a> {
    source: &'a Source,
    spec: &'a Spec,
    secrets: &'a BTreeMap<String, Value>,
    live: &'a Answers,
    emissions: Vec<Emission>,
    /// The first event of the source that has not been passed.
    next: usize,
    cursor: Option<usize>,
    consumed: Vec<bool>,
    applied: BTreeMap<String, Applied>,
    reused: Vec<usize>,
    artifacts: Vec<FinalArtifact>,
    /// True once an answer other than the recorded one was delivered.
    deviated: bool,
    refreshed: bool,
}

impl<'a> Runner<'a> {
    fn new(
        source: &'a Source,
        spec: &'a Spec,
        secrets: &'a BTreeMap<String, Value>,
        live: &'a Answers,
    ) -> Self {
        Self {
            source,
            spec,
            secrets,
            live,
            emissions: Vec::with_capacity(source.len()),
            next: 0,
            cursor: None,
            consumed: vec![false; source.len()],
            applied: BTreeMap::new(),
            reused: Vec::new(),
            artifacts: Vec::new(),
            deviated: false,
            refreshed: false,
        }
    }

    fn all(&mut self, workflows: &Registry) -> Result<Stop, Failure> {
        let boundary = self
            .spec
            .checkpoint
            .as_deref()
            .and_then(|id| self.source.checkpoint(id));
        let from = boundary.map_or(0, |place| place + 1);
        if let Some(failure) = self.source.check(from, &self.spec.overrides) {
            return Err(failure);
        }
        if let Some(failure) = self.unreadable_override() {
            return Err(failure);
        }
        self.lifecycle_time("time:created_at", from);
        if !self.source.has_started() {
            return self.end_as_source();
        }
        let (name, recorded) = self.source.workflow();
        let workflow = workflows.find(name);
        let found = workflow.map(|workflow| workflow::digest(workflow.as_ref()));
        let Some(workflow) = workflow.filter(|_| recorded.is_none() || found == recorded) else {
            return Err(Failure::Diverged(Box::new(Divergence {
                key: None,
                event: Some(format!("workflow {name}")),
                sequence: self
                    .source
                    .lifecycle_event("time:started_at")
                    .map(|index| index as u64 + 1),
                expected_sha256: recorded,
                found_sha256: found,
                what: "kind",
            })));
        };
        self.lifecycle_time("time:started_at", from);
        let (start, input) = self.source.start(|index| self.payload(index));
        let mut machine = match boundary {
            None => {
                self.event_override_applied(input);
                workflow.begin(&start)
            }
            Some(place) => {
                self.next = from;
                self.cursor = Some(place);
                let state = self.checkpoint_state(place)?;
                let past = self.source.answers_before(place)?;
                workflow
                    .restore(&start, &state, &past)
                    .map_err(|message| self.cannot_restore(place, message))?
            }
        };
        self.work(machine.as_mut(), boundary.is_some())
    }

    /// Finds an override whose value cannot be had any more.
    fn unreadable_override(&self) -> Option<Failure> {
        self.spec.overrides.iter().find_map(|(key, given)| {
            let (what, id, reason) = match &given.given {
                Given::Inline(_) => return None,
                Given::Artifact { value: Some(_), .. } => return None,
                Given::Artifact { artifact_id, .. } => {
                    ("artifact", Some(artifact_id.clone()), "missing")
                }
                Given::Secret if self.secrets.contains_key(key) => return None,
                // The process that was told the secret has ended.
                Given::Secret => ("host", None, "policy"),
            };
            let first = Unavailable {
                what,
                id,
                key: Some(key.clone()),
                event_id: None,
                sequence: None,
                reason,
            };
            Some(Failure::Unavailable {
                first: Box::new(first),
                also: 0,
            })
        })
    }

    fn work(&mut self, machine: &mut dyn Machine, restored: bool) -> Result<Stop, Failure> {
        // The first step after a restore stands behind its checkpoint already.
        let mut behind_checkpoint = restored;
        let mut answers: Vec<EffectAnswer> = Vec::new();
        loop {
            let step = machine.step(&answers);
            if self.was_stopped_before(&step) {
                return self.end_as_source();
            }
            match step {
                Step::Request {
                    notes,
                    checkpoint,
                    effects,
                } => {
                    self.notes(notes)?;
                    if checkpoint && !behind_checkpoint {
                        self.checkpoint(&machine.state())?;
                    }
                    behind_checkpoint = false;
                    match self.effects(effects)? {
                        Delivered::All(delivered) => answers = delivered,
                        Delivered::Needs(effect) => return Ok(Stop::Needs(Box::new(effect))),
                        Delivered::Nothing => return self.end_as_source(),
                    }
                }
                Step::Done {
                    notes,
                    text,
                    summary,
                    products,
                } => {
                    self.notes(notes)?;
                    self.products(products)?;
                    self.message(&text)?;
                    return self.finish(End {
                        status: Status::Completed,
                        text: Some(text),
                        summary,
                        failure: Value::Null,
                        broken: None,
                    });
                }
                Step::Failed {
                    notes,
                    code,
                    message,
                    details,
                } => {
                    self.notes(notes)?;
                    return self.finish(End {
                        status: Status::Failed,
                        text: None,
                        summary: message.clone(),
                        failure: json!({"code": code, "message": message, "details": details}),
                        broken: None,
                    });
                }
            }
        }
    }

    /// True when the source was ended from outside before it came to this step.
    fn was_stopped_before(&self, step: &Step) -> bool {
        if self.deviated || self.source.status == Status::Completed {
            return false;
        }
        match step {
            Step::Request { effects, .. } => effects
                .iter()
                .all(|effect| self.source.places(&effect.key).requested.is_none()),
            Step::Done { .. } => true,
            Step::Failed { code, .. } => {
                self.source_failure().get("code").and_then(Value::as_str) != Some(code)
            }
        }
    }

    fn source_failure(&self) -> Value {
        (0..self.source.len())
            .rev()
            .find(|index| self.source.kind(*index) == Some(Kind::TaskFailed))
            .and_then(|index| self.source.payload(index).remove("failure"))
            .unwrap_or_default()
    }

    /// Answers the effects of one step.
    fn effects(&mut self, effects: Vec<Wanted>) -> Result<Delivered, Failure> {
        let mut found = Vec::with_capacity(effects.len());
        for effect in &effects {
            let asked = effect.request_digest();
            let answer = self.look_up(effect, asked)?;
            self.requested(effect, asked, &answer)?;
            found.push(Some(answer));
        }
        // In the order in which they were recorded; what was not recorded comes last.
        let mut order: Vec<usize> = (0..found.len()).collect();
        order.sort_by_key(|index| {
            effects
                .get(*index)
                .and_then(|effect| self.source.places(&effect.key).recorded)
                .unwrap_or(usize::MAX)
        });
        let is_stopped = found
            .iter()
            .any(|found| matches!(found, Some(Found::Nowhere)));
        let mut answers: Vec<Option<EffectAnswer>> = vec![None; found.len()];
        for index in order {
            let found = found.get_mut(index).and_then(Option::take);
            let (Some(effect), Some(found)) = (effects.get(index), found) else {
                continue;
            };
            // One after the other: each result is told before the next effect begins.
            if matches!(found, Found::Needed) {
                return Ok(Delivered::Needs(effect.clone()));
            }
            let answer = self.deliver(effect, found)?;
            if let Some(slot) = answers.get_mut(index) {
                *slot = answer;
            }
        }
        if is_stopped {
            return Ok(Delivered::Nothing);
        }
        Ok(Delivered::All(answers.into_iter().flatten().collect()))
    }

    fn refreshes(&self, kind: EffectKind) -> bool {
        let refresh = match kind {
            EffectKind::Time => Refresh::Time,
            EffectKind::Memory => Refresh::Memory,
            EffectKind::Secret => Refresh::Secrets,
            EffectKind::Host | EffectKind::Random => Refresh::Host,
            EffectKind::Model | EffectKind::McpTool | EffectKind::LocalTool => return false,
            EffectKind::Hold | EffectKind::Ask(_) => return false,
        };
        self.spec.refresh.contains(&refresh)
    }

    /// True when a run that has left its record may go on with the outside.
    fn goes_on_live(&self, kind: EffectKind) -> bool {
        let refresh = match kind {
            EffectKind::Model => Refresh::Model,
            EffectKind::McpTool | EffectKind::LocalTool => Refresh::Tools,
            _ => return false,
        };
        self.deviated && self.spec.refresh.contains(&refresh)
    }

    fn live(&self, key: &str) -> Found {
        match self.live.get(key) {
            Some(answer) => Found::Live(answer.clone()),
            None => Found::Needed,
        }
    }

    fn look_up(&self, effect: &Wanted, asked: Digest) -> Result<Found, Failure> {
        if self.spec.overrides.contains_key(&effect.key) {
            return Ok(Found::Override);
        }
        if self.refreshes(effect.kind) {
            return Ok(self.live(&effect.key));
        }
        let places = self.source.places(&effect.key);
        let Some(place) = places.recorded else {
            if self.goes_on_live(effect.kind) {
                return Ok(self.live(&effect.key));
            }
            if !self.deviated
                && places.requested.is_some()
                && self.source.status != Status::Completed
            {
                return Ok(Found::Nowhere);
            }
            let first = Unavailable {
                what: if effect.kind == EffectKind::Memory {
                    "memory"
                } else {
                    "host"
                },
                id: None,
                key: Some(effect.key.clone()),
                event_id: self
                    .source
                    .event(self.next)
                    .map(|event| event.id.to_string()),
                sequence: Some(self.next as u64 + 1),
                reason: "not_recorded",
            };
            return Err(Failure::Unavailable {
                first: Box::new(first),
                also: 0,
            });
        };
        let answer = match self.event_override(place) {
            Some(_) => None,
            None => match self.source.answer(place) {
                None => return Err(self.source.redacted(place)),
                answer => answer,
            },
        };
        let recorded = places
            .requested
            .and_then(|index| self.request_digest(index));
        if recorded.is_none_or(|recorded| recorded == asked) {
            return Ok(Found::Record {
                place,
                answer,
                stale: false,
            });
        }
        if self.goes_on_live(effect.kind) {
            return Ok(self.live(&effect.key));
        }
        if self.deviated && !self.spec.stale_input_fails {
            return Ok(Found::Record {
                place,
                answer,
                stale: true,
            });
        }
        Err(Failure::Diverged(Box::new(Divergence {
            key: Some(effect.key.clone()),
            event: None,
            sequence: places.requested.map(|index| index as u64 + 1),
            expected_sha256: recorded,
            found_sha256: Some(asked),
            what: "request",
        })))
    }

    fn request_digest(&self, index: usize) -> Option<Digest> {
        let event = self.source.event(index)?;
        Digest::parse(event.payload.get("request_sha256")?.as_str()?).ok()
    }

    fn requested(&mut self, effect: &Wanted, digest: Digest, found: &Found) -> Result<(), Failure> {
        let places = self.source.places(&effect.key);
        let is_same = places
            .requested
            .is_some_and(|index| self.request_digest(index) == Some(digest));
        let payload = if is_same {
            None
        } else {
            let mut payload = json!({
                "effect_key": effect.key,
                "kind": effect.kind.record_kind(),
                "request_sha256": digest,
                "repeatable": effect.repeatable,
            });
            if let (Found::Record { stale: true, .. }, Value::Object(payload)) =
                (found, &mut payload)
            {
                payload.insert("replay_note".to_owned(), "stale_input".into());
            }
            Some(members(payload))
        };
        self.emit(Kind::EffectRequested, places.requested, payload, None)?;
        if let (EffectKind::Ask(_), Some(asked)) = (effect.kind, places.asked) {
            let kind = self.source.kind(asked).unwrap_or(Kind::InputRequested);
            self.emit(kind, Some(asked), None, None)?;
        }
        Ok(())
    }

    /// Hands an answer over and emits what says so.
    fn deliver(&mut self, effect: &Wanted, found: Found) -> Result<Option<EffectAnswer>, Failure> {
        match found {
            Found::Record {
                place,
                answer,
                stale,
            } => {
                let payload = stale.then(|| {
                    let mut payload = self
                        .source
                        .event(place)
                        .map(|event| event.payload.clone())
                        .unwrap_or_default();
                    payload.insert("replay_note".to_owned(), "stale_input".into());
                    payload
                });
                let by_event = self.event_override(place);
                self.emit(Kind::EffectRecorded, Some(place), payload, None)?;
                if let Some(given) = by_event {
                    let payload = given.inline().and_then(Value::as_object);
                    return Ok(payload.map(answer_in));
                }
                self.reused.push(place);
                Ok(answer)
            }
            Found::Override => self.deliver_override(effect).map(Some),
            Found::Live(answer) => {
                let places = self.source.places(&effect.key);
                let digest = sha256(&jcs(&answer.value));
                let payload = json!({
                    "effect_key": effect.key,
                    "kind": effect.kind.record_kind(),
                    "outcome": if answer.ok { "ok" } else { "error" },
                    "value": answer.value,
                    "value_sha256": digest,
                    "visibility": "public",
                    "model": answer.model,
                    "replay_note": "refreshed",
                });
                self.refreshed = true;
                self.deviated = true;
                let applied = Applied {
                    key: effect.key.clone(),
                    operation: operation(places.recorded),
                    event_id: self.event_id(places.recorded),
                    before_sha256: self.recorded_digest(&effect.key),
                    after_sha256: Some(digest),
                    artifact_id: None,
                    reason: "refreshed by request".to_owned(),
                };
                self.applied.insert(effect.key.clone(), applied);
                self.emit(
                    Kind::EffectRecorded,
                    places.recorded,
                    Some(members(payload)),
                    Some(&effect.key),
                )?;
                Ok(Some(answer))
            }
            Found::Needed | Found::Nowhere => Ok(None),
        }
    }

    fn deliver_override(&mut self, effect: &Wanted) -> Result<EffectAnswer, Failure> {
        let key = &effect.key;
        let Some(given) = self.spec.overrides.get(key) else {
            return Err(Failure::OverrideInvalid {
                key: key.clone(),
                message: format!("`{key}` is overridden by nothing"),
            });
        };
        let value = match given.inline().or_else(|| self.secrets.get(key)) {
            Some(value) => value.clone(),
            None => Value::Null,
        };
        let mut payload = json!({
            "effect_key": key,
            "kind": effect.kind.record_kind(),
            "outcome": "ok",
            "visibility": given.visibility.as_str(),
        });
        if let Value::Object(payload) = &mut payload {
            // Not even the digest of a secret is told.
            if let Some(digest) = given.digest() {
                payload.insert("value_sha256".to_owned(), json!(digest));
            }
            if given.visibility == domain::Visibility::Public {
                payload.insert("value".to_owned(), value.clone());
            } else {
                payload.insert("redacted".to_owned(), true.into());
            }
        }
        let recorded = self.source.places(key).recorded;
        self.apply(key, recorded, self.recorded_digest(key));
        self.deviated = true;
        self.emit(
            Kind::EffectRecorded,
            recorded,
            Some(members(payload)),
            Some(key),
        )?;
        Ok(EffectAnswer {
            ok: true,
            value,
            model: None,
        })
    }

    fn recorded_digest(&self, key: &str) -> Option<Digest> {
        let event = self.source.event(self.source.places(key).recorded?)?;
        Digest::parse(event.payload.get("value_sha256")?.as_str()?).ok()
    }

    fn event_id(&self, place: Option<usize>) -> Option<String> {
        place
            .and_then(|index| self.source.event(index))
            .map(|event| event.id.to_string())
    }

    /// Notes that an override was delivered.
    fn apply(&mut self, key: &str, place: Option<usize>, before: Option<Digest>) {
        let Some(given) = self.spec.overrides.get(key) else {
            return;
        };
        let artifact_id = match &given.given {
            Given::Artifact { artifact_id, .. } => Some(artifact_id.clone()),
            Given::Inline(_) | Given::Secret => None,
        };
        let reason = given.reason.clone().or_else(|| self.spec.reason.clone());
        let applied = Applied {
            key: key.to_owned(),
            operation: operation(place),
            event_id: given.event_id.clone().or_else(|| self.event_id(place)),
            before_sha256: before,
            after_sha256: given.placeholder.or_else(|| given.digest()),
            artifact_id,
            reason: reason.unwrap_or_else(|| "override".to_owned()),
        };
        self.applied.insert(key.to_owned(), applied);
    }

    /// The server's own readings of the clock: an override of one becomes a member of the receipt.
    fn lifecycle_time(&mut self, key: &str, from: usize) {
        let Some(place) = self.source.lifecycle_event(key) else {
            return;
        };
        if place < from || !self.spec.overrides.contains_key(key) {
            return;
        }
        let before = self
            .source
            .event(place)
            .map(|event| sha256(&jcs(&json!(event.created_at))));
        self.apply(key, Some(place), before);
    }

    fn checkpoint_state(&mut self, place: usize) -> Result<Value, Failure> {
        let payload = self.payload(place);
        let text = |name: &str| {
            payload
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let digest = Digest::parse(text("state_sha256")).ok();
        let state = digest
            .and_then(|digest| self.source.blob(digest))
            .and_then(|bytes| serde_json::from_slice(bytes).ok());
        let mut state: Value = state.ok_or_else(|| self.no_checkpoint(place, "missing"))?;
        let key = format!("host:checkpoint:{}", text("checkpoint_id"));
        let Some(given) = self.spec.overrides.get(&key) else {
            return Ok(state);
        };
        let value = given.inline().cloned().unwrap_or_default();
        match given.target.as_deref() {
            None | Some("") => state = value,
            Some(pointer) => match state.pointer_mut(pointer) {
                Some(member) => *member = value,
                None => {
                    return Err(Failure::OverrideInvalid {
                        key,
                        message: format!("the state has no member `{pointer}`"),
                    });
                }
            },
        }
        self.apply(&key, Some(place), digest);
        self.deviated = true;
        Ok(state)
    }

    fn no_checkpoint(&self, place: usize, reason: &'static str) -> Failure {
        let payload = self.payload(place);
        let first = Unavailable {
            what: "artifact",
            id: payload
                .get("artifact_id")
                .and_then(Value::as_str)
                .map(str::to_owned),
            key: None,
            event_id: self.event_id(Some(place)),
            sequence: Some(place as u64 + 1),
            reason,
        };
        Failure::Unavailable {
            first: Box::new(first),
            also: 0,
        }
    }

    fn cannot_restore(&self, place: usize, message: String) -> Failure {
        match self
            .applied
            .keys()
            .find(|key| key.starts_with("host:checkpoint:"))
        {
            Some(key) => Failure::OverrideInvalid {
                key: key.clone(),
                message,
            },
            None => self.no_checkpoint(place, "hash_mismatch"),
        }
    }

    fn notes(&mut self, notes: Vec<Note>) -> Result<(), Failure> {
        for Note { kind, payload } in notes {
            let place = self.next_of(kind);
            let is_same = place.is_some_and(|index| {
                self.source.is_substituted(index) || self.source.tells(index, &payload)
            });
            if place.is_some() && !is_same && !self.deviated {
                return Err(self.differs(kind, place, &Value::Object(payload)));
            }
            self.emit(kind, place, (!is_same).then_some(payload), None)?;
        }
        Ok(())
    }

    fn checkpoint(&mut self, state: &Value) -> Result<(), Failure> {
        let Some(place) = self.next_of(Kind::CheckpointCreated) else {
            // A checkpoint off the record is of no use to anybody.
            return Ok(());
        };
        let found = sha256(&jcs(state));
        let recorded = self
            .source
            .event(place)
            .and_then(|event| event.payload.get("state_sha256"))
            .and_then(Value::as_str);
        let is_same = recorded.and_then(|text| Digest::parse(text).ok()) == Some(found);
        if !is_same && !self.source.is_substituted(place) {
            if self.deviated {
                // Its state is not what the source's checkpoint holds.
                return Ok(());
            }
            return Err(self.differs(Kind::CheckpointCreated, Some(place), state));
        }
        self.emit(Kind::CheckpointCreated, Some(place), None, None)
    }

    fn products(&mut self, products: Vec<Produced>) -> Result<(), Failure> {
        for product in products {
            let place = self.next_of(Kind::ArtifactCreated);
            let digest = sha256(&product.bytes);
            let recorded = place
                .and_then(|index| self.source.event(index))
                .and_then(|event| event.payload.get("sha256"))
                .and_then(Value::as_str);
            let is_same = recorded == Some(digest.to_string().as_str())
                || place.is_some_and(|index| self.source.is_substituted(index));
            if !is_same && !self.deviated {
                let found = Value::String(digest.to_string());
                return Err(self.differs(Kind::ArtifactCreated, place, &found));
            }
            let payload = json!({
                "kind": product.kind,
                "mime_type": product.mime_type,
                "uri": null,
                "visibility": "public",
                "sha256": digest,
                "bytes": product.bytes.len(),
                "metadata": {},
            });
            self.emit(
                Kind::ArtifactCreated,
                place,
                (!is_same).then(|| members(payload)),
                None,
            )?;
            let artifact = FinalArtifact {
                kind: product.kind.as_str().to_owned(),
                sha256: Some(digest),
            };
            self.made(artifact, (!is_same).then_some(product.bytes));
        }
        Ok(())
    }

    /// Notes that the last event makes an Artifact, unless it was replaced by one that makes none.
    fn made(&mut self, artifact: FinalArtifact, content: Option<Vec<u8>>) {
        let Some(last) = self.emissions.last_mut() else {
            return;
        };
        let was_replaced = last
            .original
            .is_some_and(|index| self.source.is_substituted(index));
        if last.override_key.is_some() || was_replaced {
            return;
        }
        self.artifacts.push(artifact);
        last.artifact = Some(self.artifacts.len() as u64);
        last.content = content;
    }

    fn message(&mut self, text: &str) -> Result<(), Failure> {
        let place = self.next_of(Kind::AgentMessage);
        let source_text = place.map(|index| message_text(&self.source.payload(index)));
        let is_same = source_text.as_deref() == Some(text)
            || place.is_some_and(|index| self.source.is_substituted(index));
        if !is_same && !self.deviated {
            return Err(self.differs(Kind::AgentMessage, place, &Value::String(text.to_owned())));
        }
        let payload = (!is_same).then(|| {
            let message_id = place
                .and_then(|index| self.source.event(index))
                .and_then(|event| event.payload.get("message_id").cloned());
            members(json!({
                "message_id": message_id,
                "role": "assistant",
                "parts": [{"type": "text", "text": text, "visibility": "public"}],
                "metadata": {},
            }))
        });
        self.emit(Kind::AgentMessage, place, payload, None)?;
        if let Some(place) = self.next_of(Kind::SessionMessageAppended) {
            self.emit(Kind::SessionMessageAppended, Some(place), None, None)?;
        }
        Ok(())
    }

    /// Ends where the source ended without the workflow's doing.
    fn end_as_source(&mut self) -> Result<Stop, Failure> {
        let failure = self.source_failure();
        let summary = (0..self.source.len())
            .rev()
            .find(|index| self.source.kind(*index) == Some(Kind::OutcomeRecorded))
            .map(|index| self.source.payload(index))
            .and_then(|payload| payload.get("summary")?.as_str().map(str::to_owned))
            .unwrap_or_default();
        let end = End {
            status: self.source.status,
            text: None,
            summary,
            failure,
            broken: None,
        };
        self.finish(end)
    }

    fn finish(&mut self, end: End) -> Result<Stop, Failure> {
        if !self.deviated && end.status != self.source.status {
            return Err(Failure::Diverged(Box::new(Divergence {
                key: None,
                event: Some(format!("end as {}", end.status.as_str())),
                sequence: Some(self.source.len() as u64),
                expected_sha256: None,
                found_sha256: None,
                what: "event",
            })));
        }
        self.pass(self.source.len(), Some(&end))?;
        self.lifecycle_time("time:completed_at", 0);
        Ok(Stop::Ended(Box::new(end)))
    }

    fn equals_source(&self, end: &End) -> bool {
        if end.status != self.source.status {
            return false;
        }
        self.source_text() == end.text && self.source_failure() == end.failure
    }

    /// Returns what the source said at its end.
    fn source_text(&self) -> Option<String> {
        let last = |wanted: Kind, own: bool| {
            (0..self.source.len()).rev().find(|index| {
                self.source.kind(*index) == Some(wanted)
                    && self
                        .source
                        .event(*index)
                        .is_some_and(|event| !own || event.replay.is_none())
                    && (own || matches!(self.class(*index), Class::Caused))
            })
        };
        // A replay's outcome holds its words; that of any other Task points at them.
        let outcome = last(Kind::OutcomeRecorded, true).map(|index| self.source.payload(index));
        let messages = outcome.as_ref().and_then(|outcome| outcome.get("messages"));
        if let Some(Value::Array(messages)) = messages {
            let message = messages.first().and_then(Value::as_object);
            return message.map(message_text);
        }
        last(Kind::AgentMessage, false).map(|index| message_text(&self.source.payload(index)))
    }

    fn differs(&self, kind: Kind, place: Option<usize>, found: &Value) -> Failure {
        let expected = place.map(|index| sha256(&jcs(&Value::Object(self.source.payload(index)))));
        Failure::Diverged(Box::new(Divergence {
            key: place
                .and_then(|index| self.source.key_of(index))
                .map(str::to_owned),
            event: Some(kind.as_str().to_owned()),
            sequence: place.map(|index| index as u64 + 1),
            expected_sha256: expected,
            found_sha256: Some(sha256(&jcs(found))),
            what: if place.is_some() { "event" } else { "extra" },
        }))
    }

    /// Returns the next event of a kind that the workflow brought about and that has not come again yet.
    fn next_of(&self, kind: Kind) -> Option<usize> {
        (self.next..self.source.len()).find(|index| {
            self.source.kind(*index) == Some(kind)
                && matches!(self.class(*index), Class::Caused)
                && self.consumed.get(*index) == Some(&false)
        })
    }

    /// Emits an event that the workflow brought about, after everything of the source that came before it.
    fn emit(
        &mut self,
        kind: Kind,
        place: Option<usize>,
        payload: Option<Map<String, Value>>,
        override_key: Option<&String>,
    ) -> Result<(), Failure> {
        if place.is_none() && !self.deviated {
            return Err(Failure::Diverged(Box::new(Divergence {
                key: payload
                    .as_ref()
                    .and_then(|payload| payload.get("effect_key")?.as_str().map(str::to_owned)),
                event: Some(kind.as_str().to_owned()),
                sequence: None,
                expected_sha256: None,
                found_sha256: payload.map(|payload| sha256(&jcs(&Value::Object(payload)))),
                what: "extra",
            })));
        }
        let mut payload = payload;
        let mut override_key = override_key.cloned();
        if let Some(index) = place {
            if index < self.next && !self.deviated {
                let found = Value::Object(self.source.payload(index));
                return Err(self.differs(kind, place, &found));
            }
            self.pass(index, None)?;
            if let Some(consumed) = self.consumed.get_mut(index) {
                *consumed = true;
            }
            self.next = self.next.max(index + 1);
            self.cursor = self.cursor.max(Some(index));
            if let Some((key, given)) = self.take_event_override(index) {
                payload = Some(given);
                override_key = Some(key);
            }
        }
        self.emissions.push(Emission {
            kind,
            original: place,
            cursor: self.cursor,
            payload,
            override_key,
            artifact: None,
            content: None,
        });
        Ok(())
    }

    /// Repeats what lies before a place and was not brought about by the workflow.
    fn pass(&mut self, until: usize, end: Option<&End>) -> Result<(), Failure> {
        while self.next < until {
            let index = self.next;
            match self.class(index) {
                Class::Lifecycle => {
                    let id = self.event_id(Some(index));
                    let kind = self.source.kind(index).map(Kind::as_str);
                    let payload = json!({"original_event_id": id, "original_event": kind});
                    self.repeat(Kind::ReplayEventReplayed, index, Some(members(payload)));
                }
                Class::Passive => self.passive(index, end),
                Class::Delta => {
                    // Pieces of an answer that was replaced would tell something else than the answer.
                    let key = self.source.key_of(index).unwrap_or_default();
                    let replaced =
                        self.spec.overrides.contains_key(key) || self.live.contains_key(key);
                    if !replaced {
                        self.repeat(Kind::MessageDelta, index, None);
                    }
                }
                Class::Caused if self.consumed.get(index) == Some(&true) || self.deviated => {}
                Class::Caused => {
                    return Err(Failure::Diverged(Box::new(Divergence {
                        key: self.source.key_of(index).map(str::to_owned),
                        event: self.source.kind(index).map(|kind| kind.as_str().to_owned()),
                        sequence: Some(index as u64 + 1),
                        expected_sha256: Some(sha256(&jcs(&Value::Object(
                            self.source.payload(index),
                        )))),
                        found_sha256: None,
                        what: "missing",
                    })));
                }
            }
            self.next = index + 1;
        }
        Ok(())
    }

    fn repeat(&mut self, kind: Kind, index: usize, payload: Option<Map<String, Value>>) {
        let (payload, override_key) = match self.take_event_override(index) {
            Some((key, given)) => (Some(given), Some(key)),
            None => (payload, None),
        };
        self.cursor = self.cursor.max(Some(index));
        self.emissions.push(Emission {
            kind,
            original: Some(index),
            cursor: self.cursor,
            payload,
            override_key,
            artifact: None,
            content: None,
        });
    }

    fn passive(&mut self, index: usize, end: Option<&End>) {
        let Some(kind) = self.source.kind(index) else {
            return;
        };
        let mut payload = None;
        if kind == Kind::OutcomeRecorded
            && self.deviated
            && let Some(end) = end
        {
            let mut changed = self.source.payload(index);
            changed.insert("status".to_owned(), json!(end.status));
            changed.insert("summary".to_owned(), json!(end.summary));
            changed.insert("failure".to_owned(), end.failure.clone());
            payload = Some(changed);
        }
        let mut made = None;
        if kind == Kind::ArtifactCreated {
            let (artifact, changed) = self.uploaded(index);
            made = Some(artifact);
            payload = changed;
        }
        self.repeat(kind, index, payload);
        if let Some(artifact) = made {
            self.made(artifact, None);
        }
    }

    /// Returns an Artifact that somebody registered, with the bytes it got later.
    fn uploaded(&self, index: usize) -> (FinalArtifact, Option<Map<String, Value>>) {
        let mut payload = self.source.payload(index);
        let id = self.source.event(index).map(|event| &event.resource.id);
        let updated = (index..self.source.len()).find(|later| {
            self.source.kind(*later) == Some(Kind::ArtifactUpdated)
                && self.source.event(*later).map(|event| &event.resource.id) == id
        });
        if let Some(event) = updated.and_then(|later| self.source.event(later)) {
            for member in ["sha256", "bytes"] {
                if let Some(value) = event.payload.get(member) {
                    payload.insert(member.to_owned(), value.clone());
                }
            }
        }
        let text = |name: &str| payload.get(name).and_then(Value::as_str);
        let artifact = FinalArtifact {
            kind: text("kind").unwrap_or("other").to_owned(),
            sha256: text("sha256").and_then(|text| Digest::parse(text).ok()),
        };
        (artifact, Some(payload))
    }

    fn class(&self, index: usize) -> Class {
        let (Some(kind), Some(event)) = (self.source.kind(index), self.source.event(index)) else {
            return Class::Passive;
        };
        let by_agent = event.actor.as_deref() == Some("agent");
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "whatever a workflow cannot bring about comes from outside"
        )]
        match kind {
            Kind::EffectRequested
            | Kind::EffectRecorded
            | Kind::InputRequested
            | Kind::ToolApprovalRequired
            | Kind::CheckpointCreated
            | Kind::AgentToolUse
            | Kind::AgentToolResult
            | Kind::AgentMemoryRead
            | Kind::ToolFailed => Class::Caused,
            Kind::AgentMessage
            | Kind::SessionMessageAppended
            | Kind::ArtifactCreated
            | Kind::ToolDenied
                if by_agent =>
            {
                Class::Caused
            }
            Kind::MessageDelta => Class::Delta,
            other => {
                let group = other.as_str().split('.').next().unwrap_or_default();
                if ["task", "receipt", "replay"].contains(&group) {
                    Class::Lifecycle
                } else {
                    Class::Passive
                }
            }
        }
    }

    fn event_override(&self, index: usize) -> Option<&'a Override> {
        let id = &self.source.event(index)?.id;
        if self.spec.overrides.is_empty() {
            return None;
        }
        self.spec.overrides.get(&format!("event:{id}"))
    }

    /// Returns the payload of an event, replaced if the request says so, with its blobs filled in.
    fn payload(&self, index: usize) -> Map<String, Value> {
        match self.event_override(index).and_then(Override::inline) {
            Some(Value::Object(payload)) => payload.clone(),
            _ => self.source.payload(index),
        }
    }

    fn event_override_applied(&mut self, index: usize) {
        if self.event_override(index).is_some() {
            self.deviated = true;
        }
    }

    fn take_event_override(&mut self, index: usize) -> Option<(String, Map<String, Value>)> {
        let given = self.event_override(index)?;
        let id = self.source.event(index)?.id.clone();
        let payload = given.inline()?.as_object()?.clone();
        let key = format!("event:{id}");
        let before = sha256(&jcs(&Value::Object(self.source.payload(index))));
        self.apply(&key, Some(index), Some(before));
        self.deviated = true;
        // What is not public is told by its digest.
        let mut shown = if given.visibility == domain::Visibility::Public {
            payload
        } else {
            members(json!({
                "redacted": true,
                "visibility": given.visibility.as_str(),
                "sha256": given.digest(),
            }))
        };
        // Whatever it says now, it belongs to the same effect (AP-RPL-08).
        shown.remove("effect_key");
        if let Some(effect_key) = self.source.key_of(index) {
            shown.insert("effect_key".to_owned(), effect_key.into());
        }
        Some((key, shown))
    }

    fn into_replayed(self, end: End, result_equal: bool) -> Replayed {
        let unused = self
            .spec
            .overrides
            .keys()
            .filter(|key| !self.applied.contains_key(*key))
            .cloned()
            .collect();
        Replayed {
            emissions: self.emissions,
            end,
            applied: self.applied.into_values().collect(),
            unused,
            reused: self.reused,
            artifacts: self.artifacts,
            result_equal,
            refreshed: self.refreshed,
            cursor: self.cursor,
        }
    }
}

enum Delivered {
    All(Vec<EffectAnswer>),
    Needs(Wanted),
    Nothing,
}

const fn operation(place: Option<usize>) -> DeltaOperation {
    match place {
        Some(_) => DeltaOperation::Replace,
        None => DeltaOperation::Add,
    }
}

fn message_text(payload: &Map<String, Value>) -> String {
    let parts = payload
        .get("parts")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    domain::public_text(parts)
}

fn members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}
