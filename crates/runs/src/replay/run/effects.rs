//! The effects of a step: where each answer comes from, and handing them over in the order in which they were recorded.

use std::collections::VecDeque;

use canon::{Digest, Map, Value, jcs, sha256};
use domain::{BLOB_MEMBER, Kind, Status, payload};
use receipts::Applied;
use serde_json::json;

use super::Runner;
use super::overrides::operation;
use crate::replay::failure::{Divergence, Failure, Unavailable};
use crate::replay::live;
use crate::replay::request::Refresh;
use crate::replay::source::answer_in;
use crate::workflow::EffectOutcome;
use crate::workflow::{EffectAnswer, EffectKind, EffectRequest};

/// Where the answer to an effect comes from.
enum Found {
    Record {
        place: usize,
        /// What was recorded there; none when the request replaces that event.
        answer: Option<EffectAnswer>,
        stale: bool,
    },
    Override,
    Live(EffectOutcome),
    /// To be performed.
    Needed,
    /// The source stopped here too.
    Nowhere,
}

/// The effects of one step, on their way back to the workflow.
pub(super) struct Delivery {
    /// What has not been handed over, with its place in the step.
    waiting: VecDeque<(usize, EffectRequest, Found)>,
    answers: Vec<Option<EffectAnswer>>,
    is_stopped: bool,
}

/// The note of an answer that was recorded for another request.
const STALE: &str = "stale_input";

impl Delivery {
    /// Returns the questions that nobody has answered.
    pub(super) fn questions(&self) -> impl Iterator<Item = &EffectRequest> {
        let unanswered = self.waiting.iter();
        let unanswered = unanswered.filter(|(.., found)| matches!(found, Found::Needed));
        unanswered
            .map(|(_, effect, _)| effect)
            .filter(|effect| matches!(effect.kind, EffectKind::Ask(_)))
    }

    /// Takes what performing the effect gave that all others wait for.
    pub(super) fn performed(&mut self, performed: EffectOutcome) {
        if let Some((.., found)) = self.waiting.front_mut() {
            *found = Found::Live(performed);
        }
    }
}

/// How far the effects of a step came.
pub(super) enum Delivered {
    All(Vec<EffectAnswer>),
    /// This one must be performed.
    Needs(EffectRequest),
    /// The source ended before they were answered.
    Nothing,
}

impl Runner<'_> {
    /// Finds the answers to the effects of one step.
    pub(super) fn look_all_up(&mut self, effects: Vec<EffectRequest>) -> Result<Delivery, Failure> {
        let mut waiting = Vec::with_capacity(effects.len());
        for (index, effect) in effects.into_iter().enumerate() {
            let asked = effect.request_digest();
            let found = self.look_up(&effect, asked)?;
            self.requested(&effect, asked, &found)?;
            waiting.push((index, effect, found));
        }
        // People are asked when everything is requested.
        for (_, effect, _) in &waiting {
            self.asked(effect)?;
        }
        let is_stopped = waiting
            .iter()
            .any(|(.., found)| matches!(found, Found::Nowhere));
        let answers = vec![None; waiting.len()];
        // In the order in which they were recorded; what was not recorded comes last.
        waiting.sort_by_key(|(_, effect, _)| {
            let recorded = self.source.places(&effect.key).recorded;
            recorded.unwrap_or(usize::MAX)
        });
        Ok(Delivery {
            waiting: waiting.into(),
            answers,
            is_stopped,
        })
    }

    /// Hands over what is available, up to an effect that must be performed first: each result is told before the next
    /// effect begins.
    pub(super) fn deliver_all(&mut self, delivery: &mut Delivery) -> Result<Delivered, Failure> {
        while let Some((index, effect, found)) = delivery.waiting.pop_front() {
            if matches!(found, Found::Needed) {
                let needed = effect.clone();
                delivery.waiting.push_front((index, effect, found));
                return Ok(Delivered::Needs(needed));
            }
            let answer = self.deliver(&effect, found)?;
            if let Some(slot) = delivery.answers.get_mut(index) {
                *slot = answer;
            }
        }
        if delivery.is_stopped {
            return Ok(Delivered::Nothing);
        }
        let answers = std::mem::take(&mut delivery.answers);
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
    fn goes_on_live(&self, effect: &EffectRequest) -> bool {
        let refresh = match effect.kind {
            EffectKind::Model => Refresh::Model,
            EffectKind::McpTool | EffectKind::LocalTool => Refresh::Tools,
            // What a run comes to is told to the memory that agents share as a tool would tell it.
            EffectKind::Memory if effect.key.starts_with("host:field.write:") => Refresh::Tools,
            EffectKind::Time => return self.deviated && self.judges_live(effect),
            _ => return false,
        };
        self.deviated && self.spec.refresh.contains(&refresh)
    }

    /// True for a time that contracts judge by in a run that goes on live: that of the record says nothing about calls that
    /// are made now.
    fn judges_live(&self, effect: &EffectRequest) -> bool {
        let is_live = [Refresh::Model, Refresh::Tools].iter();
        effect.key.starts_with("time:contracts:")
            && is_live
                .copied()
                .any(|refresh| self.spec.refresh.contains(&refresh))
    }

    /// Asks the outside, unless somebody decided on the call in the recorded run: that was about that one call, and nobody has
    /// decided on another.
    fn go_live(&mut self, effect: &EffectRequest) -> Result<Found, Failure> {
        let is_tool = matches!(effect.kind, EffectKind::McpTool | EffectKind::LocalTool);
        if is_tool && self.rests_on_decision {
            return Err(self.not_recorded(effect));
        }
        Ok(self.live(&effect.key))
    }

    /// Returns what was performed live before, or says that it must be.
    fn live(&mut self, key: &str) -> Found {
        self.asked_live.insert(key.to_owned());
        match self.live.remove(key) {
            Some(performed) => Found::Live(performed),
            None => Found::Needed,
        }
    }

    fn look_up(&mut self, effect: &EffectRequest, asked: Digest) -> Result<Found, Failure> {
        if self.spec.overrides.contains_key(&effect.key) {
            return Ok(Found::Override);
        }
        if self.refreshes(effect.kind) {
            return Ok(self.live(&effect.key));
        }
        if self.spec.refresh_from.as_deref() == Some(effect.key.as_str()) {
            self.deviated = true;
            self.live_since = true;
        }
        if self.spec.retry
            && let Some(found) = self.look_up_again(effect, asked)
        {
            return found;
        }
        if self.spec.retry
            && matches!(effect.kind, EffectKind::Ask(_))
            && !self.is_decided(effect, asked)
        {
            self.deviated = true;
            return Ok(self.live(&effect.key));
        }
        if effect.kind == EffectKind::Model {
            self.rests_on_decision = false;
        }
        let goes_on_live = self.goes_on_live(effect);
        if goes_on_live && (self.live_since || effect.kind == EffectKind::Time) {
            return self.go_live(effect);
        }
        let places = self.source.places(&effect.key);
        let Some(place) = places.recorded else {
            if goes_on_live {
                self.live_since = true;
                return self.go_live(effect);
            }
            if !self.deviated
                && places.requested.is_some()
                && self.source.status != Status::Completed
            {
                return Ok(Found::Nowhere);
            }
            return Err(self.not_recorded(effect));
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
        let is_same = recorded.is_none_or(|recorded| recorded == asked);
        // Somebody decided on that very action in that very run. Once a run has left its record, the action would be
        // performed again, and on that nobody has decided.
        let is_decision = matches!(effect.kind, EffectKind::Ask(_));
        if is_decision && self.deviated && self.spec.refresh.contains(&Refresh::Tools) {
            return Err(self.not_recorded(effect));
        }
        if is_same {
            self.rests_on_decision |= is_decision;
            return Ok(Found::Record {
                place,
                answer,
                stale: false,
            });
        }
        if goes_on_live {
            self.live_since = true;
            return self.go_live(effect);
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

    /// Where the answer comes from in a run that is taken up again: a result that is on record stays, whatever was asked
    /// live before it; what failed is asked again. None where the usual rules decide.
    fn look_up_again(
        &mut self,
        effect: &EffectRequest,
        asked: Digest,
    ) -> Option<Result<Found, Failure>> {
        if matches!(effect.kind, EffectKind::Ask(_) | EffectKind::Hold) {
            return None;
        }
        let places = self.source.places(&effect.key);
        let place = places.recorded?;
        let answer = self.source.answer(place)?;
        let recorded = places
            .requested
            .and_then(|index| self.request_digest(index));
        if recorded.is_some_and(|recorded| recorded != asked) {
            return None;
        }
        if effect.kind == EffectKind::Model {
            self.rests_on_decision = false;
        }
        if answer.ok || answer.interruption().is_some() {
            return Some(Ok(Found::Record {
                place,
                answer: Some(answer),
                stale: false,
            }));
        }
        self.deviated = true;
        self.live_since = true;
        Some(self.go_live(effect))
    }

    /// True when a run that is taken up again can rest on what somebody decided in the recorded one: it is the same question
    /// at the same point. Otherwise people are asked.
    fn is_decided(&self, effect: &EffectRequest, asked: Digest) -> bool {
        let places = self.source.places(&effect.key);
        let recorded = places
            .requested
            .and_then(|index| self.request_digest(index));
        !self.deviated
            && places.recorded.is_some()
            && recorded.is_none_or(|recorded| recorded == asked)
    }

    fn not_recorded(&self, effect: &EffectRequest) -> Failure {
        let first = Unavailable {
            what: match effect.kind {
                EffectKind::Memory => "memory",
                _ => "host",
            },
            id: None,
            key: Some(effect.key.clone()),
            event_id: self.event_id(Some(self.next)),
            sequence: Some(self.next as u64 + 1),
            reason: "not_recorded",
        };
        Failure::Unavailable {
            first: Box::new(first),
            also: 0,
        }
    }

    fn request_digest(&self, index: usize) -> Option<Digest> {
        let event = self.source.event(index)?;
        payload::EffectRequested::of(&event.payload).request_sha256()
    }

    fn requested(
        &mut self,
        effect: &EffectRequest,
        digest: Digest,
        found: &Found,
    ) -> Result<(), Failure> {
        let places = self.source.places(&effect.key);
        let is_same = places
            .requested
            .is_some_and(|index| self.request_digest(index) == Some(digest));
        let payload = if is_same {
            None
        } else {
            let payload = payload::ReplayedEffect::default()
                .effect_key(effect.key.as_str())
                .kind(effect.kind.record_kind())
                .request_sha256(json!(digest))
                .repeatable(effect.repeatable);
            let payload = match found {
                Found::Record { stale: true, .. } => payload.replay_note(STALE),
                _ => payload,
            };
            Some(payload.into_members())
        };
        self.emit(Kind::EffectRequested, places.requested, payload, None)
    }

    fn asked(&mut self, effect: &EffectRequest) -> Result<(), Failure> {
        let places = self.source.places(&effect.key);
        // Whoever is asked in this run is asked by an event of its own.
        if self.asked_live.contains(&effect.key) {
            return Ok(());
        }
        if let (EffectKind::Ask(_), Some(asked)) = (effect.kind, places.asked) {
            let kind = self.source.kind(asked).unwrap_or(Kind::InputRequested);
            self.emit(kind, Some(asked), None, None)?;
        }
        Ok(())
    }

    /// Hands an answer over and emits what says so.
    fn deliver(
        &mut self,
        effect: &EffectRequest,
        found: Found,
    ) -> Result<Option<EffectAnswer>, Failure> {
        match found {
            Found::Record {
                place,
                answer,
                stale,
            } => {
                let payload = stale.then(|| {
                    let event = self.source.event(place);
                    let recorded = event.map(|event| Map::clone(&event.payload));
                    let payload = payload::ReplayedEffect::from(recorded.unwrap_or_default());
                    payload.replay_note(STALE).into_members()
                });
                let by_event = self.event_override(place);
                self.emit(Kind::EffectRecorded, Some(place), payload, None)?;
                if let Some(given) = by_event {
                    let payload = given.inline().and_then(Value::as_object);
                    return Ok(payload.map(answer_in));
                }
                self.replayed.reused.push(place);
                Ok(answer)
            }
            Found::Override => self.deliver_override(effect).map(Some),
            Found::Live(performed) => self.deliver_live(effect, performed).map(Some),
            Found::Needed | Found::Nowhere => Ok(None),
        }
    }

    fn deliver_live(
        &mut self,
        effect: &EffectRequest,
        performed: EffectOutcome,
    ) -> Result<EffectAnswer, Failure> {
        let recorded = self.source.places(&effect.key).recorded;
        let digest = sha256(&jcs(&performed.value));
        let is_decision = matches!(effect.kind, EffectKind::Ask(_));
        self.deviated = true;
        self.replayed.apply(Applied {
            key: effect.key.clone(),
            operation: operation(recorded),
            event_id: self.event_id(recorded),
            before_sha256: self.recorded_digest(&effect.key),
            after_sha256: Some(digest),
            artifact_id: None,
            reason: live::reason(is_decision).to_owned(),
        });
        // What somebody said stands in the log by itself.
        if !is_decision {
            let payload = live::payload(effect, &performed, digest);
            self.emit(
                Kind::EffectRecorded,
                recorded,
                Some(payload),
                Some(&effect.key),
            )?;
        }
        let EffectOutcome {
            ok, value, model, ..
        } = performed;
        Ok(EffectAnswer { ok, value, model })
    }

    fn deliver_override(&mut self, effect: &EffectRequest) -> Result<EffectAnswer, Failure> {
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
        let is_public = given.visibility == domain::Visibility::Public;
        let mut payload = payload::ReplayedEffect::default()
            .effect_key(key.as_str())
            .kind(effect.kind.record_kind())
            .outcome("ok")
            .visibility(given.visibility.as_str());
        // Not even the digest of a secret is told.
        if let Some(digest) = given.digest() {
            payload = payload.value_sha256(json!(digest));
        }
        payload = match is_public {
            true => payload.value(value.clone()),
            false => payload.redacted(true),
        };
        let mut payload = payload.into_members();
        // Kept beside the log, as large values are, so that this replay can be replayed itself.
        let kept = (!is_public && given.digest().is_some()).then(|| jcs(&value));
        if let Some(bytes) = &kept {
            let descriptor = json!({"sha256": sha256(bytes), "bytes": bytes.len()});
            payload.insert(BLOB_MEMBER.to_owned(), json!({"value": descriptor}));
        }
        let recorded = self.source.places(key).recorded;
        self.apply(key, recorded, self.recorded_digest(key));
        self.deviated = true;
        self.emit(Kind::EffectRecorded, recorded, Some(payload), Some(key))?;
        if let Some(last) = self.replayed.emissions.last_mut() {
            last.content = kept;
        }
        Ok(EffectAnswer {
            ok: true,
            value,
            model: None,
        })
    }
}
