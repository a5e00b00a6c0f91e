//! Running a workflow over its record.
//!
//! The workflow says what it wants; its record, an override or, where the request allows it, the outside answers. What
//! the run emits is laid over what the source emitted, in the source's order. A run that needs the outside stops and
//! goes on from there when the result is handed in: nothing is computed twice.

mod begin;
mod canceled;
mod effects;
mod emit;
mod end;
mod notes;
mod overrides;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use canon::Value;
use domain::{Kind, Status};
use serde_json::json;

use super::failure::{Failure, Unavailable};
use super::outcome::{End, Replayed};
use super::request::Spec;
use super::source::Source;
use crate::workflow::EffectOutcome;
use crate::workflow::{EffectRequest, Machine, Registry, Step};
pub use canceled::canceled;
use effects::{Delivered, Delivery};
use emit::{Class, class_of};

/// What was performed live, by the keys of the effects.
pub type LiveResults = BTreeMap<String, EffectOutcome>;

/// How far a replay came.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one of them at a time, and it usually is the large one"
)]
pub enum Progress<'a> {
    /// To its end.
    Ended(Replayed),
    /// To an effect that the request lets it perform live.
    Needs(Box<PausedReplay<'a>>),
}

/// Replays a source. `live` holds what was performed live before.
pub fn run<'a>(
    source: &'a Source,
    workflows: &Registry,
    spec: &'a Spec,
    secrets: &'a BTreeMap<String, Value>,
    live: LiveResults,
) -> Progress<'a> {
    let mut runner = Runner::new(source, spec, secrets, live);
    match runner.begin(workflows) {
        Ok(Begun::Machine { machine, restored }) => {
            let running = Running {
                runner,
                machine,
                behind_checkpoint: restored,
                delivery: None,
            };
            running.go_on()
        }
        Ok(Begun::Ended(end)) => runner.ended(end),
        Err(failure) => runner.broken(failure),
    }
}

/// A replay that waits for an effect to be performed.
pub struct PausedReplay<'a> {
    running: Running<'a>,
    effect: EffectRequest,
}

impl<'a> PausedReplay<'a> {
    /// Returns what to perform.
    pub fn effect(&self) -> &EffectRequest {
        &self.effect
    }

    /// Returns what people must be asked before the run can go on. A step asks people or performs something, never both.
    pub fn questions(&self) -> Vec<EffectRequest> {
        let delivery = self.running.delivery.as_ref();
        let questions = delivery.into_iter().flat_map(Delivery::questions);
        questions.cloned().collect()
    }

    /// Returns what the run came to so far, the intent included.
    pub fn so_far(&self) -> &Replayed {
        &self.running.runner.replayed
    }

    /// Goes on with what performing the effect gave.
    pub fn resume(self, performed: EffectOutcome) -> Progress<'a> {
        let mut running = self.running;
        if let Some(delivery) = &mut running.delivery {
            delivery.performed(performed);
        }
        running.go_on()
    }

    /// Ends the run here: the effect was performed before, and nobody knows its result.
    pub fn without_result(self) -> Replayed {
        let runner = self.running.runner;
        let cursor = runner.replayed.cursor;
        let effect = Unavailable {
            what: "host",
            id: None,
            key: Some(self.effect.key),
            event_id: runner.event_id(cursor),
            sequence: cursor.map(|index| index as u64 + 1),
            reason: "not_recorded",
        };
        let end = End::failed_with(
            Failure::ResultUnknown(Box::new(effect)),
            runner.event_id(cursor).as_deref(),
        );
        runner.into_replayed(end, false)
    }
}

impl fmt::Debug for PausedReplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paused")
            .field("effect", &self.effect)
            .field("so_far", self.so_far())
            .finish_non_exhaustive()
    }
}

/// Where a replay begins.
enum Begun {
    Machine {
        machine: Box<dyn Machine>,
        restored: bool,
    },
    /// The source ended before its workflow began.
    Ended(Box<End>),
}

/// How a stretch of a run ended.
enum Stop {
    Ended(Box<End>),
    Needs(EffectRequest),
}

/// A machine between two of its steps.
struct Running<'a> {
    runner: Runner<'a>,
    machine: Box<dyn Machine>,
    /// True for the first step after a restore, which stands behind its checkpoint already.
    behind_checkpoint: bool,
    /// The effects of the last step; none before the first.
    delivery: Option<Delivery>,
}

impl<'a> Running<'a> {
    fn go_on(mut self) -> Progress<'a> {
        match self.work() {
            Ok(Stop::Needs(effect)) => Progress::Needs(Box::new(PausedReplay {
                running: self,
                effect,
            })),
            Ok(Stop::Ended(end)) => self.runner.ended(end),
            Err(failure) => self.runner.broken(failure),
        }
    }

    fn work(&mut self) -> Result<Stop, Failure> {
        let runner = &mut self.runner;
        loop {
            let answers = match &mut self.delivery {
                None => Vec::new(),
                Some(delivery) => match runner.deliver_all(delivery)? {
                    Delivered::All(answers) => answers,
                    Delivered::Needs(effect) => return Ok(Stop::Needs(effect)),
                    Delivered::Nothing => return runner.end_as_source().map(Stop::Ended),
                },
            };
            let step = self.machine.step(&answers);
            if runner.was_stopped_before(&step) {
                return runner.end_as_source().map(Stop::Ended);
            }
            match step {
                Step::Request {
                    notes,
                    checkpoint,
                    effects,
                } => {
                    runner.notes(notes)?;
                    let behind_checkpoint = std::mem::take(&mut self.behind_checkpoint);
                    if checkpoint && !behind_checkpoint {
                        runner.checkpoint(&self.machine.state())?;
                    }
                    self.delivery = Some(runner.look_all_up(effects)?);
                }
                Step::Done {
                    notes,
                    text,
                    summary,
                    products,
                } => {
                    runner.notes(notes)?;
                    runner.products(products)?;
                    runner.message(&text)?;
                    let end = End {
                        text: Some(text),
                        summary,
                        ..End::plain(Status::Completed)
                    };
                    return runner.finish(end).map(Stop::Ended);
                }
                Step::Failed {
                    notes,
                    code,
                    message,
                    details,
                } => {
                    runner.notes(notes)?;
                    let end = End {
                        summary: message.clone(),
                        failure: json!({"code": code, "message": message, "details": details}),
                        ..End::plain(Status::Failed)
                    };
                    return runner.finish(end).map(Stop::Ended);
                }
            }
        }
    }
}

struct Runner<'a> {
    source: &'a Source,
    spec: &'a Spec,
    secrets: &'a BTreeMap<String, Value>,
    /// What was performed live before and has not been asked for yet.
    live: LiveResults,
    /// The effects that were asked for and are not answered from the record.
    asked_live: BTreeSet<String>,
    /// What the run came to so far.
    replayed: Replayed,
    /// The first event of the source that has not been passed.
    next: usize,
    /// What the workflow brought about in the source, by kind, from where the run stands.
    ahead: BTreeMap<Kind, VecDeque<usize>>,
    consumed: Vec<bool>,
    /// True once an answer other than the recorded one was delivered.
    deviated: bool,
    /// True once a model or a tool was asked live: from there on the record no longer applies.
    live_since: bool,
    /// True while the calls of an answer rest on somebody's recorded decision.
    rests_on_decision: bool,
}

impl<'a> Runner<'a> {
    fn new(
        source: &'a Source,
        spec: &'a Spec,
        secrets: &'a BTreeMap<String, Value>,
        live: LiveResults,
    ) -> Self {
        let mut ahead: BTreeMap<Kind, VecDeque<usize>> = BTreeMap::new();
        for (index, event) in source.events().iter().enumerate() {
            if let Some(kind) = source.kind(index)
                && class_of(kind, event) == Class::Caused
            {
                ahead.entry(kind).or_default().push_back(index);
            }
        }
        let mut replayed = Replayed::nothing(Status::Working);
        replayed.emissions.reserve(source.len());
        replayed.refreshed = !spec.refresh.is_empty();
        Self {
            source,
            spec,
            secrets,
            live,
            asked_live: BTreeSet::new(),
            replayed,
            next: 0,
            ahead,
            consumed: vec![false; source.len()],
            deviated: false,
            live_since: false,
            rests_on_decision: false,
        }
    }

    fn ended(self, end: Box<End>) -> Progress<'a> {
        let result_equal = self.equals_source(&end);
        Progress::Ended(self.into_replayed(*end, result_equal))
    }

    fn broken(self, failure: Failure) -> Progress<'a> {
        let cursor = self.replayed.cursor;
        let cursor = cursor.and_then(|index| self.source.event(index));
        let end = End::failed_with(failure, cursor.map(|event| &*event.id));
        Progress::Ended(self.into_replayed(end, false))
    }

    fn into_replayed(self, end: End, result_equal: bool) -> Replayed {
        let keys = self.spec.overrides.keys();
        let unused = keys
            .filter(|key| !self.replayed.is_applied(key))
            .cloned()
            .collect();
        Replayed {
            end,
            unused,
            result_equal,
            ..self.replayed
        }
    }
}
