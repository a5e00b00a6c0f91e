//! One attempt at a Task: steps its workflow over what is recorded, then performs what is not.
//!
//! Progress is buffered as moves and flushed before anything is performed, so that the result of one effect and the
//! intent of the next share a commit. A run that waits for people is kept as it stands (`paused`), and goes on with what
//! the log says since.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use canon::{Digest, Map, Value};
use domain::{
    AdvanceTask, ArtifactId, Command, EffectIntent, Event, InRecovery, Kind, Move, NewMessage,
    PermissionId, Position, Product, RequestParts, Role, State, Status, Task, TaskId, payload,
};
use serde_json::json;
use tokio::sync::watch;

use super::Signal;
use super::paused::{PausedRun, Progress, weight_of};
use super::queue::Job;
use crate::engine::Engine;
use crate::port::{Fence, StoredEvent};
use crate::read::next_page;
use crate::receipt::TaskFold;
use crate::refused::Refused;
use crate::turn::{Lease, RefusedCommand};
use crate::view;
use runs::workflow::{
    self, Answers, EffectAnswer, EffectKind, EffectRequest, Machine, Note, ProducedArtifact, Start,
    Step, Transcript,
};

/// How an attempt at a Task ended.
pub(super) enum AttemptEnd {
    /// With a commit: the Task has ended or waits, as far as the attempt knows.
    Flushed,
    /// At once: the Task has ended or waits.
    NothingToDo,
}

/// One attempt at a Task.
pub(super) struct Run<'a> {
    pub(super) engine: &'a Engine,
    pub(super) key: Position,
    pub(super) id: TaskId,
    /// The epoch of the Task's lease, once it is held.
    pub(super) epoch: Option<u64>,
    pub(super) moves: Vec<Move>,
    progress: Progress,
    /// How pieces of streamed text are marked, when a replay goes on live.
    pub(super) streams_as: Option<domain::ReplayMark>,
    /// True once the result of an effect is durable: the attempt has come to something.
    pub(super) has_recorded: bool,
    pub(super) signals: watch::Receiver<Signal>,
    /// The last interrupt that a step was dropped for.
    pub(super) interrupted: Option<Position>,
}

/// The effects a Task's log holds.
#[derive(Default)]
pub(super) struct Record {
    requested: BTreeMap<String, Digest>,
    recorded: Answers,
    workflow: Option<Digest>,
}

impl Record {
    /// Returns what it says of some effects.
    fn of(&self, effects: &[EffectRequest]) -> Self {
        let keys = || effects.iter().map(|effect| &effect.key);
        let requested = keys().filter_map(|key| self.requested.get_key_value(key));
        let recorded = keys().filter_map(|key| self.recorded.get_key_value(key));
        Self {
            requested: requested.map(|(key, at)| (key.clone(), *at)).collect(),
            recorded: recorded
                .map(|(key, at)| (key.clone(), at.clone()))
                .collect(),
            workflow: self.workflow,
        }
    }
}

/// A run that stands at a step: what it asks for, and what its log says of that and of what follows.
struct Standing {
    machine: Box<dyn Machine>,
    effects: Vec<EffectRequest>,
    record: Record,
}

/// What there is for the effects of a step.
enum Gathered {
    /// The result of each.
    Answers(Vec<EffectAnswer>),
    /// Nothing yet: people have to be asked.
    Questions(Vec<EffectRequest>),
    /// Nothing: the Task has failed.
    Failed,
}

impl<'a> Run<'a> {
    pub(super) fn new(engine: &'a Engine, job: &Job) -> Self {
        Self {
            engine,
            key: job.key,
            id: job.id.clone(),
            epoch: job.epoch,
            moves: Vec::new(),
            progress: Progress::default(),
            streams_as: None,
            has_recorded: false,
            signals: job.signals.clone(),
            interrupted: None,
        }
    }

    /// Works until the Task ends or waits.
    pub(super) async fn drive(&mut self) -> Result<AttemptEnd, Refused> {
        let Some(task) = self.load().await? else {
            return Ok(AttemptEnd::NothingToDo);
        };
        if task.status.is_waiting() || task.status.is_terminal() {
            return Ok(AttemptEnd::NothingToDo);
        }
        if let Some(of) = task.replay.clone() {
            self.replay(&task, &of).await?;
        } else {
            self.advance(&task).await?;
        }
        Ok(AttemptEnd::Flushed)
    }

    async fn advance(&mut self, task: &Task) -> Result<(), Refused> {
        let standing = match self.resume().await? {
            Some(standing) => Some(standing),
            None => self.begin(task).await?,
        };
        let Some(standing) = standing else {
            return Ok(());
        };
        let Standing {
            mut machine,
            mut effects,
            record,
        } = standing;
        loop {
            let asks = |effect: &EffectRequest| matches!(effect.kind, EffectKind::Ask(_));
            let step = effects.iter().any(asks).then(|| effects.clone());
            let answers = match self.effects(&record, effects).await? {
                Gathered::Answers(answers) => answers,
                Gathered::Questions(questions) => {
                    let asked = self.push_questions(task, questions).await?;
                    if let (Some(effects), Some(asked)) = (step, asked) {
                        // Before the commit: whoever is told of it may be answered before this worker goes on.
                        let known = record.of(&effects);
                        let paused = PausedRun {
                            machine,
                            effects,
                            known,
                            asked,
                            progress: self.progress.clone(),
                        };
                        self.engine.shared.work.paused.put(self.key, paused);
                    }
                    return self.flush().await;
                }
                Gathered::Failed => return Ok(()),
            };
            let held = answers.iter().map(|answer| weight_of(&answer.value));
            self.progress.weight += held.sum::<usize>();
            effects = match self.step(&mut *machine, &record, &answers).await? {
                Some(effects) => effects,
                None => return Ok(()),
            };
        }
    }

    /// Takes up the run that waited, if it is still known, with what was recorded since.
    async fn resume(&mut self) -> Result<Option<Standing>, Refused> {
        let Some(paused) = self.engine.shared.work.paused.take(self.key) else {
            return Ok(None);
        };
        // What the run was told is on record with its question: both are in one commit. Nobody else asks under this id.
        let asked = self.engine.shared_document(paused.asked.as_str()).await?;
        if asked.is_none() {
            return Ok(None);
        }
        let mut record = paused.known;
        let mut after = paused.progress.through;
        while let Some(events) = self.next_events(&mut after).await? {
            for (_, mut event) in events {
                self.note(&mut record, &mut event).await?;
            }
        }
        self.progress = paused.progress;
        self.progress.through = after;
        Ok(Some(Standing {
            machine: paused.machine,
            effects: paused.effects,
            record,
        }))
    }

    /// Begins a run over what is recorded of it; none when that is impossible, and the Task has failed.
    async fn begin(&mut self, task: &Task) -> Result<Option<Standing>, Refused> {
        let workflows = &self.engine.shared.workflows;
        let Some(newest) = workflows.find(&task.workflow) else {
            let message = format!("this server has no workflow `{}`", task.workflow);
            self.fail("workflow_unavailable", message, Map::new())
                .await?;
            return Ok(None);
        };
        match task.status {
            Status::Submitted => self.moves.push(Move::Start {
                workflow_digest: workflow::digest(newest.as_ref()),
            }),
            Status::InputRequired | Status::AuthRequired => self.moves.push(Move::Recover),
            Status::Working => {}
            Status::Completed | Status::Failed | Status::Canceled => return Ok(None),
        }
        // A Task that has not begun has no record; everything else starts with reading it.
        let record = match task.status {
            Status::Submitted => Record::default(),
            _ => self.record().await?,
        };
        // A Task goes on under the version that it began with.
        let workflow = match record.workflow {
            Some(_) => workflows.recorded(&task.workflow, record.workflow),
            None => Some(newest),
        };
        let Some(workflow) = workflow else {
            let message = format!(
                "workflow `{}` has changed since this task began",
                task.workflow
            );
            self.fail("workflow_changed", message, Map::new()).await?;
            return Ok(None);
        };
        self.progress.workflow = Some(workflow::digest(workflow.as_ref()));
        let start = start_of(self.engine, task).await?;
        let held = start.persona.iter().chain([&start.input]).map(weight_of);
        self.progress.weight += held.sum::<usize>();
        let mut machine = workflow.begin(&start);
        let effects = self.step(&mut *machine, &record, &[]).await?;
        Ok(effects.map(|effects| Standing {
            machine,
            effects,
            record,
        }))
    }

    /// Takes the next step: returns the effects that it asks for, or ends the Task.
    async fn step(
        &mut self,
        machine: &mut dyn Machine,
        record: &Record,
        answers: &[EffectAnswer],
    ) -> Result<Option<Vec<EffectRequest>>, Refused> {
        match machine.step(answers) {
            Step::Request {
                notes,
                checkpoint,
                effects,
            } => {
                self.progress.checkpoints += u64::from(checkpoint);
                // What a step tells is committed with its first intent: either both are in the log or neither.
                let is_new = effects
                    .iter()
                    .all(|effect| !record.requested.contains_key(&effect.key));
                if is_new {
                    self.push_notes(notes);
                    if checkpoint {
                        self.moves.push(Move::Checkpoint {
                            number: self.progress.checkpoints,
                            state: machine.state(),
                        });
                    }
                }
                Ok(Some(effects))
            }
            Step::Done {
                notes,
                text,
                summary,
                products,
            } => {
                self.push_notes(notes);
                self.complete(text, summary, products).await?;
                Ok(None)
            }
            Step::Failed {
                notes,
                code,
                message,
                details,
            } => {
                self.push_notes(notes);
                self.fail(&code, message, details).await?;
                Ok(None)
            }
        }
    }

    fn push_notes(&mut self, notes: Vec<Note>) {
        self.moves.extend(
            notes
                .into_iter()
                .map(|Note { kind, payload }| Move::Note { kind, payload }),
        );
    }

    pub(super) async fn load(&self) -> Result<Option<Task>, Refused> {
        let document = self.engine.shared_document(self.id.as_str()).await?;
        Ok(document.and_then(|document| match &document.state {
            State::Task(task) => Some(task.clone()),
            _ => None,
        }))
    }

    async fn record(&mut self) -> Result<Record, Refused> {
        let mut record = Record::default();
        // Whoever reads the whole log spares the turn that ends the Task from doing so.
        let mut fold = TaskFold::default();
        let mut after = Position::START;
        while let Some(events) = self.next_events(&mut after).await? {
            for (stored, mut event) in events {
                fold.add(stored.position, &stored.bytes, &event);
                self.note(&mut record, &mut event).await?;
            }
        }
        self.progress.through = after;
        self.engine.shared.folds.offer(self.key, fold);
        Ok(record)
    }

    /// Reads the next events of the Task's own log after a position; none when there are no more.
    pub(super) async fn next_events(
        &self,
        after: &mut Position,
    ) -> Result<Option<Vec<(StoredEvent, Event)>>, Refused> {
        let store = &*self.engine.shared.store;
        let Some(page) = next_page(store, self.key, after).await? else {
            return Ok(None);
        };
        page.into_iter()
            .map(|stored| Event::parse(&stored.bytes).map(|event| (stored, event)))
            .collect::<Result<_, _>>()
            .map(Some)
            .map_err(|error| Refused::Internal {
                detail: format!("task {}: {error}", self.id),
            })
    }

    async fn note(&self, record: &mut Record, event: &mut Event) -> Result<(), Refused> {
        let key = |event: &Event| event.effect_key().unwrap_or_default().to_owned();
        match event.kind().map_or(InRecovery::Unneeded, Kind::in_recovery) {
            InRecovery::Unneeded => {}
            InRecovery::Workflow => {
                let digest = payload::TaskStarted::of(&event.payload).workflow_sha256();
                let digest = digest.and_then(Value::as_str);
                record.workflow = digest.and_then(|text| Digest::parse(text).ok());
            }
            InRecovery::Intent => {
                let digest = payload::EffectRequested::of(&event.payload).request_sha256();
                if let Some(digest) = digest {
                    record.requested.insert(key(event), digest);
                }
            }
            InRecovery::Result => {
                view::resolve_blobs(
                    &*self.engine.shared.store,
                    Arc::make_mut(&mut event.payload),
                )
                .await?;
                record
                    .recorded
                    .insert(key(event), EffectAnswer::recorded(event));
            }
        }
        Ok(())
    }

    /// Gathers the results of effects.
    async fn effects(
        &mut self,
        record: &Record,
        effects: Vec<EffectRequest>,
    ) -> Result<Gathered, Refused> {
        let mut answers: Vec<Option<EffectAnswer>> = vec![None; effects.len()];
        let mut to_perform = Vec::new();
        let mut to_ask = Vec::new();
        for (index, (effect, slot)) in effects.into_iter().zip(&mut answers).enumerate() {
            let digest = effect.request_digest();
            let parts = self.request_parts(&effect);
            let requested = record.requested.get(&effect.key);
            if requested.is_some_and(|recorded| *recorded != digest) {
                let message = format!(
                    "effect `{}` asks for something else than was recorded",
                    effect.key
                );
                let details = details([("effect_key", effect.key.as_str())]);
                return self
                    .fail("effect_diverged", message, details)
                    .await
                    .map(|()| Gathered::Failed);
            }
            if let Some(answer) = record.recorded.get(&effect.key) {
                *slot = Some(answer.clone());
                continue;
            }
            if requested.is_none() {
                self.moves.push(Move::RequestEffect(EffectIntent {
                    key: effect.key.clone(),
                    kind: effect.kind.record_kind().to_owned(),
                    request_sha256: digest,
                    repeatable: effect.repeatable,
                    parts,
                }));
            } else if !effect.repeatable {
                let message = format!(
                    "the result of `{}` is unknown and it cannot be repeated",
                    effect.key
                );
                let details = details([("effect_key", effect.key.as_str())]);
                return self
                    .fail("effect_result_unknown", message, details)
                    .await
                    .map(|()| Gathered::Failed);
            }
            match effect.kind {
                EffectKind::Ask(_) => to_ask.push(effect),
                _ => to_perform.push((index, effect.into_effect())),
            }
        }
        // A step asks people or performs something, never both: whoever waits performs nothing.
        if !to_ask.is_empty() {
            return Ok(Gathered::Questions(to_ask));
        }
        if !to_perform.is_empty() {
            self.flush().await?;
            self.perform(to_perform, &mut answers).await?;
        }
        Ok(Gathered::Answers(answers.into_iter().flatten().collect()))
    }

    /// Asks people; the Task waits for all of their answers.
    pub(super) async fn ask(
        &mut self,
        task: &Task,
        questions: Vec<EffectRequest>,
    ) -> Result<(), Refused> {
        self.push_questions(task, questions).await?;
        self.flush().await
    }

    /// Collects questions to people. Returns the id of one that was not asked before.
    async fn push_questions(
        &mut self,
        task: &Task,
        questions: Vec<EffectRequest>,
    ) -> Result<Option<PermissionId>, Refused> {
        let mut new = None;
        for effect in questions {
            let EffectKind::Ask(ask) = effect.kind else {
                continue;
            };
            let request = match self.earlier_request(task, &effect.key).await? {
                Some(request) => request,
                None => {
                    let made = PermissionId::from_body(&self.engine.shared.ids.body());
                    new.insert(made).clone()
                }
            };
            let action = effect.request.get("action").cloned().unwrap_or_default();
            self.moves.push(Move::Ask {
                request,
                ask,
                effect_key: effect.key,
                request_body: effect.request,
                action,
            });
        }
        Ok(new)
    }

    /// Finds the request under which a Task that goes on after a restart asked for this before.
    async fn earlier_request(
        &self,
        task: &Task,
        effect_key: &str,
    ) -> Result<Option<PermissionId>, Refused> {
        for id in task.awaited() {
            let document = self.engine.shared_document(id.as_str()).await?;
            let state = document.as_ref().map(|document| &document.state);
            if let Some(State::Permission(request)) = state
                && request.effect_key == effect_key
            {
                return Ok(Some(id.clone()));
            }
        }
        Ok(None)
    }

    /// Tells a model request's messages by their digests, after those of the request before it.
    fn request_parts(&mut self, effect: &EffectRequest) -> Option<RequestParts> {
        let messages = effect.messages.as_ref()?;
        let since = self
            .progress
            .last_request
            .as_ref()
            .and_then(|(key, earlier)| {
                let added = messages.added_since(earlier)?;
                Some((Some(key.clone()), added))
            });
        let (base, added) = match since {
            Some(since) => since,
            None => (None, messages.added_since(&Transcript::default())?),
        };
        self.progress.last_request = Some((effect.key.clone(), messages.clone()));
        Some(RequestParts { base, added })
    }

    async fn complete(
        &mut self,
        text: String,
        summary: String,
        products: Vec<ProducedArtifact>,
    ) -> Result<(), Refused> {
        let ids = &self.engine.shared.ids;
        for produced in products {
            self.moves.push(Move::Produce(Product {
                id: ArtifactId::from_body(&ids.body()),
                kind: produced.kind,
                mime_type: produced.mime_type.to_owned(),
                bytes: produced.bytes,
            }));
        }
        let message = NewMessage {
            id: domain::MessageId::from_body(&ids.body()),
            salt: ids.salt(),
            role: Role::Assistant,
            parts: vec![json!({"type": "text", "text": text, "visibility": "public"})],
            metadata: Map::new(),
        };
        let messages = vec![message.id.clone()];
        let ids = self.engine.end_ids();
        self.moves.push(Move::Say(message));
        self.moves.push(Move::Complete {
            ids,
            summary,
            messages,
        });
        self.flush().await
    }

    pub(super) async fn fail(
        &mut self,
        code: &str,
        message: String,
        details: Map<String, Value>,
    ) -> Result<(), Refused> {
        // Intents that were never flushed are dropped: nothing was performed. Results are kept: they happened.
        self.moves.retain(|step| {
            matches!(
                step,
                Move::Start { .. } | Move::Recover | Move::RecordEffect(_) | Move::Note { .. }
            )
        });
        let ids = self.engine.end_ids();
        self.moves.push(Move::Fail {
            ids,
            code: code.to_owned(),
            message,
            details,
        });
        self.flush().await
    }

    /// Fails the Task because nothing else can be done with it.
    pub(super) async fn cannot_advance(
        &mut self,
        attempts: u32,
        fault: &Refused,
    ) -> Result<(), Refused> {
        /// What a failure shows of a fault.
        const FAULT_CHARS_MAX: usize = 500;
        let Some(task) = self.load().await? else {
            return Ok(());
        };
        if task.status.is_terminal() {
            return Ok(());
        }
        let fault: String = fault.for_the_log().chars().take(FAULT_CHARS_MAX).collect();
        let message = format!("the task cannot be advanced: {fault}");
        let details = [
            ("attempts".to_owned(), attempts.into()),
            ("fault".to_owned(), fault.into()),
        ];
        self.fail("cannot_advance", message, details.into_iter().collect())
            .await
    }

    /// Commits what has collected. Nothing is performed before this returns. A result that is in it is not lost
    /// whatever happens: see [`Run::commit`] and [`Run::save_results`].
    pub(super) async fn flush(&mut self) -> Result<(), Refused> {
        if self.moves.is_empty() {
            return Ok(());
        }
        let moves = std::mem::take(&mut self.moves);
        let ends = moves.iter().any(|step| {
            matches!(
                step,
                Move::Complete { .. } | Move::Fail { .. } | Move::EndReplay(_)
            )
        });
        if ends && let Err(refused) = self.engine.load_task_log(self.key).await {
            // This only spares the turn the reading. What is in hand is not dropped for it.
            tracing::warn!(task.id = %self.id, fault = %refused.for_the_log(), "the log of a task that ends was not read");
        }
        match self.commit(moves).await {
            Ok(()) => Ok(()),
            Err((refused @ Refused::Internal { .. }, moves)) => {
                self.save_results(moves, &refused).await?;
                Err(refused)
            }
            Err((refused, _)) => Err(refused),
        }
    }

    /// Commits moves. What may pass is waited out, with the same moves in hand: a busy or full store must not turn what
    /// was performed into something unknown. Gives the moves back when they are refused.
    async fn commit(&mut self, moves: Vec<Move>) -> Result<(), (Refused, Vec<Move>)> {
        const PAUSE_MIN: Duration = Duration::from_millis(50);
        const PAUSE_MAX: Duration = Duration::from_secs(30);
        /// A store that fails for half an hour, and is not merely full, will not get better.
        const FAULTS_MAX: u32 = 64;
        let records = moves.iter().any(is_result);
        let mut pause = PAUSE_MIN;
        let mut faults = 0;
        let order = AdvanceTask {
            id: self.id.clone(),
            workflow: self.progress.workflow,
            moves,
        };
        let mut command = Command {
            actor: "agent".to_owned(),
            idempotency_key: None,
            order: domain::Order::AdvanceTask(order),
        };
        loop {
            let lease = match self.epoch {
                Some(epoch) => Lease::Hold(Fence {
                    lease: self.key,
                    epoch,
                }),
                None => Lease::Take(self.key),
            };
            let RefusedCommand {
                refused,
                command: again,
            } = *match self.engine.order_own(command, lease).await {
                Ok(done) => {
                    if done.epoch.is_some() {
                        self.epoch = done.epoch;
                    }
                    self.has_recorded |= records;
                    if let Some((last, _)) = done.written.events().last() {
                        self.progress.through = last.position;
                    }
                    return Ok(());
                }
                Err(not_done) => not_done,
            };
            faults += u32::from(matches!(refused, Refused::Store { .. }));
            let may_pass = match &refused {
                Refused::Full => true,
                Refused::Busy { what } => *what != "conflicts",
                Refused::Store { .. } => faults < FAULTS_MAX,
                _ => false,
            };
            let again = match again {
                Some(again) if may_pass => again,
                Some(Command {
                    order: domain::Order::AdvanceTask(order),
                    ..
                }) => return Err((refused, order.moves)),
                _ => return Err((refused, Vec::new())),
            };
            tracing::warn!(task.id = %self.id, fault = %refused.for_the_log(), "not committed yet, will be repeated");
            command = again;
            self.engine.shared.clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Records the results among moves that cannot be committed together, each by itself. One that cannot be recorded at
    /// all is recorded as an error that says so: performing it again would not make it recordable.
    async fn save_results(&mut self, moves: Vec<Move>, refused: &Refused) -> Result<(), Refused> {
        for step in moves.into_iter().filter(is_result) {
            let Err((again, mut moves)) = self.commit(vec![step]).await else {
                continue;
            };
            let Refused::Internal { .. } = again else {
                return Err(again);
            };
            let Some(Move::RecordEffect(result)) = moves.first_mut() else {
                return Err(again);
            };
            result.ok = false;
            result.value = json!({
                "code": "result_unrecordable",
                "message": "the effect was performed, but its result cannot be recorded",
            });
            result.model = None;
            result.observed = None;
            result.provider_request_id = None;
            tracing::warn!(task.id = %self.id, effect.key = %result.key, fault = %refused.for_the_log(), "result cannot be recorded");
            self.commit(moves).await.map_err(|(refused, _)| refused)?;
        }
        Ok(())
    }
}

fn is_result(step: &Move) -> bool {
    matches!(step, Move::RecordEffect(_))
}

/// Returns what a Task's workflow starts from.
pub(super) async fn start_of(engine: &Engine, task: &Task) -> Result<Start, Refused> {
    let submitted = engine.payload(task.submitted).await?;
    let given = if task.input == task.submitted {
        None
    } else {
        Some(engine.payload(task.input).await?)
    };
    Ok(Start::read(&submitted, given.as_ref()))
}

fn details<const N: usize>(members: [(&str, &str); N]) -> Map<String, Value> {
    members
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}
