//! Working on Tasks: a queue, a pool, recovery, and the loop that drives one workflow.
//!
//! A worker steps the workflow over the effects that are recorded already and goes on where they end; a fresh Task
//! is the case with none. Progress is buffered as moves and flushed before anything is performed, so that the
//! result of one effect and the intent of the next share a commit.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use canon::{Digest, Map, Value};
use domain::{
    AdvanceTask, Command, Document, EffectIntent, EffectResult, Event, Kind, Move, NewMessage,
    OutcomeId, PermissionId, Position, ResourceKind, Role, State, Status, Task, TaskId,
};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::engine::Engine;
use crate::port::{Fence, ListQuery, Performed, ReadEvents, Scope};
use crate::refused::Refused;
use crate::turn::Lease;
use crate::view;
use crate::workflow::{self, Effect, EffectAnswer, EffectKind, Step};

/// The queue of Tasks and who is on them.
#[derive(Debug)]
pub(crate) struct Work {
    queue: mpsc::UnboundedSender<Job>,
    /// Tasks queued or being worked on, each with the sender that stops its worker.
    active: Mutex<BTreeMap<Position, watch::Sender<bool>>>,
    permits: std::sync::Arc<Semaphore>,
    workers_max: usize,
    closed: watch::Sender<bool>,
    /// Told whenever a worker stops.
    left: watch::Sender<u64>,
}

/// A Task to work on.
#[derive(Debug)]
pub(crate) struct Job {
    key: Position,
    id: TaskId,
    /// The epoch of a lease taken over from an earlier process.
    epoch: Option<u64>,
    stop: watch::Receiver<bool>,
}

impl Work {
    pub(crate) fn new(workers_max: usize) -> (Self, mpsc::UnboundedReceiver<Job>) {
        let (queue, jobs) = mpsc::unbounded_channel();
        let work = Self {
            queue,
            active: Mutex::default(),
            permits: std::sync::Arc::new(Semaphore::new(workers_max)),
            workers_max,
            closed: watch::Sender::new(false),
            left: watch::Sender::new(0),
        };
        (work, jobs)
    }

    fn active(&self) -> MutexGuard<'_, BTreeMap<Position, watch::Sender<bool>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reacts to what a turn changed: new work is queued, ended work is stopped. Runs in commit order, in the
    /// turn itself, so that no client's disappearance can lose a Task.
    pub(crate) fn after_commit(&self, changed: &[Document]) {
        for document in changed {
            let State::Task(task) = &document.state else {
                continue;
            };
            match task.status {
                Status::Submitted | Status::Working => self.enqueue(document, None),
                Status::InputRequired
                | Status::AuthRequired
                | Status::Completed
                | Status::Failed
                | Status::Canceled => {
                    // The worker, if one is left, learns that there is nothing more to do.
                    if let Some(stop) = self.active().remove(&document.key) {
                        stop.send_replace(true);
                    }
                }
            }
        }
    }

    fn enqueue(&self, document: &Document, epoch: Option<u64>) {
        let mut active = self.active();
        if active.contains_key(&document.key) {
            return;
        }
        let Ok(id) = TaskId::parse(&document.id) else {
            return;
        };
        let stop = watch::Sender::new(false);
        let job = Job {
            key: document.key,
            id,
            epoch,
            stop: stop.subscribe(),
        };
        active.insert(document.key, stop);
        // Fails only when the engine is gone.
        let _ = self.queue.send(job);
    }

    /// True when a Task that is queued now would be begun at once.
    pub(crate) fn has_free_worker(&self) -> bool {
        self.permits.available_permits() > 0
    }

    /// Stops claiming.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Resolves once no worker is busy.
    pub(crate) fn idle(&self) -> impl Future<Output = ()> + use<> {
        let permits = std::sync::Arc::clone(&self.permits);
        let all = self.workers_max;
        let mut left = self.left.subscribe();
        async move {
            while permits.available_permits() < all {
                if left.changed().await.is_err() {
                    return;
                }
            }
        }
    }

    /// Stops every worker where it stands; nothing is recorded. Returns the Tasks that were not finished.
    pub(crate) fn stop_all(&self) -> Vec<Position> {
        let active = std::mem::take(&mut *self.active());
        for stop in active.values() {
            stop.send_replace(true);
        }
        active.into_keys().collect()
    }
}

impl Engine {
    /// Finds what an earlier process left: open Tasks, with the leases of those that were being worked on.
    pub(crate) async fn recover(&self) -> Result<Vec<(Document, Option<u64>)>, Refused> {
        let shared = &self.shared;
        let leases: BTreeMap<Position, u64> = shared
            .store
            .take_over(shared.holder.clone())
            .await?
            .into_iter()
            .collect();
        let mut found = Vec::new();
        let mut after = Position::START;
        loop {
            let query = ListQuery {
                kind: ResourceKind::Task,
                scope: Scope::All,
                open_only: true,
                after,
                limit: 1_000,
            };
            let page = shared.store.list(query).await?;
            let Some(last) = page.last() else { break };
            after = last.key;
            found.extend(page.into_iter().map(|document| {
                let epoch = leases.get(&document.key).copied();
                (document, epoch)
            }));
        }
        self.resume_waiting(&found).await?;
        Ok(found)
    }

    /// Moves Tasks that waited when the earlier process ended back to WORKING, before anybody can look: their
    /// workers then ask again under the same request (AP-TASK-04).
    async fn resume_waiting(&self, found: &[(Document, Option<u64>)]) -> Result<(), Refused> {
        let waiting: Vec<TaskId> = found
            .iter()
            .filter(|(document, _)| matches!(&document.state, State::Task(task) if task.status.is_waiting()))
            .filter_map(|(document, _)| TaskId::parse(&document.id).ok())
            .collect();
        for some in waiting.chunks(
            self.shared
                .limits
                .batch_len_max
                .min(self.shared.limits.pending_commands_max),
        ) {
            let orders = some.iter().map(|id| {
                let order = domain::Order::AdvanceTask(AdvanceTask {
                    id: id.clone(),
                    moves: vec![Move::Recover],
                });
                let command = Command {
                    actor: "system".to_owned(),
                    idempotency_key: None,
                    order,
                };
                self.order(command, None, Lease::None)
            });
            for done in futures_util::future::join_all(orders).await {
                done?;
            }
        }
        Ok(())
    }

    /// Hands jobs to workers until a drain begins.
    pub(crate) async fn work(
        self,
        jobs: mpsc::UnboundedReceiver<Job>,
        recovered: Vec<(Document, Option<u64>)>,
    ) {
        self.hand_out(jobs, recovered).await;
        // It held a permit while it waited for a job: a drain that counts them must hear that it came back.
        self.shared.work.left.send_modify(|count| *count += 1);
    }

    async fn hand_out(
        &self,
        mut jobs: mpsc::UnboundedReceiver<Job>,
        recovered: Vec<(Document, Option<u64>)>,
    ) {
        let shared = &self.shared;
        for (document, epoch) in &recovered {
            // A Task that waited was queued by the turn that moved it.
            if !matches!(&document.state, State::Task(task) if task.status.is_waiting()) {
                shared.work.enqueue(document, *epoch);
            }
        }
        drop(recovered);
        let mut closed = shared.work.closed.subscribe();
        loop {
            let permit = tokio::select! {
                biased;
                _ = closed.wait_for(|closed| *closed) => return,
                permit = std::sync::Arc::clone(&shared.work.permits).acquire_owned() => permit,
            };
            let Ok(permit) = permit else { return };
            shared
                .metrics
                .queued
                .store(jobs.len() as u64, Ordering::Relaxed);
            let job = tokio::select! {
                biased;
                _ = closed.wait_for(|closed| *closed) => return,
                job = jobs.recv() => job,
            };
            let Some(job) = job else { return };
            let engine = self.clone();
            shared.spawn.spawn(Box::pin(async move {
                engine
                    .shared
                    .metrics
                    .running
                    .fetch_add(1, Ordering::Relaxed);
                engine.work_on(job).await;
                engine
                    .shared
                    .metrics
                    .running
                    .fetch_sub(1, Ordering::Relaxed);
                drop(permit);
                engine.shared.work.left.send_modify(|count| *count += 1);
            }));
        }
    }

    /// Works on one Task until it ends, waits, or is stopped. A fault of the store is waited out: the Task is
    /// taken up again from the log.
    async fn work_on(&self, job: Job) {
        const FAULT_PAUSE: Duration = Duration::from_secs(1);
        let Job {
            key,
            id,
            mut epoch,
            mut stop,
        } = job;
        loop {
            let mut run = Run {
                engine: self,
                key,
                id: id.clone(),
                epoch,
                moves: Vec::new(),
            };
            let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
            let ended = tokio::select! {
                biased;
                () = stopped => return,
                ended = run.drive() => ended,
            };
            epoch = run.epoch;
            match ended {
                // Look once more: a wait that began here and its answer may have been committed in one turn, and
                // then nobody was told that there is work again.
                Ok(Ended::Flushed) => {}
                // The turn that brought this about is about to say so.
                Ok(Ended::NothingToDo) => {
                    drop(stop.wait_for(|stop| *stop).await);
                    return;
                }
                // The Task has ended or gone to another worker: not ours any more.
                Err(Refused::Domain(refusal)) => {
                    tracing::debug!(task.id = %id, %refusal, "work stopped");
                    return;
                }
                Err(fault) => {
                    tracing::warn!(task.id = %id, %fault, "work interrupted, will go on from the log");
                    self.shared.clock.sleep(FAULT_PAUSE).await;
                }
            }
        }
    }
}

/// How an attempt at a Task ended.
enum Ended {
    /// With a commit: the Task has ended or waits, as far as the attempt knows.
    Flushed,
    /// At once: the Task has ended or waits.
    NothingToDo,
}

/// One attempt at a Task.
struct Run<'a> {
    engine: &'a Engine,
    key: Position,
    id: TaskId,
    epoch: Option<u64>,
    moves: Vec<Move>,
}

/// The effects a Task's log holds.
#[derive(Default)]
struct Record {
    requested: BTreeMap<String, Digest>,
    recorded: BTreeMap<String, EffectAnswer>,
    workflow: Option<Digest>,
}

impl Run<'_> {
    async fn drive(&mut self) -> Result<Ended, Refused> {
        let Some(task) = self.load().await? else {
            return Ok(Ended::NothingToDo);
        };
        if task.status.is_waiting() || task.status.is_terminal() {
            return Ok(Ended::NothingToDo);
        }
        self.advance(&task).await.map(|()| Ended::Flushed)
    }

    async fn advance(&mut self, task: &Task) -> Result<(), Refused> {
        let workflows = &self.engine.shared.workflows;
        let Some(workflow) = workflows.find(&task.workflow) else {
            let message = format!("this server has no workflow `{}`", task.workflow);
            return self.fail("workflow_unavailable", message, Map::new()).await;
        };
        let digest = workflow::digest(workflow.as_ref());
        match task.status {
            Status::Submitted => self.moves.push(Move::Start {
                workflow_digest: digest,
            }),
            Status::InputRequired | Status::AuthRequired => self.moves.push(Move::Recover),
            Status::Working => {}
            Status::Completed | Status::Failed | Status::Canceled => return Ok(()),
        }
        // A Task that has not begun has no record; everything else starts with reading it.
        let record = match task.status {
            Status::Submitted => Record::default(),
            _ => self.record().await?,
        };
        if record.workflow.is_some_and(|recorded| recorded != digest) {
            let message = format!(
                "workflow `{}` has changed since this task began",
                task.workflow
            );
            return self.fail("workflow_changed", message, Map::new()).await;
        }
        let input = self.input(task).await?;
        let mut step = workflow.begin(&input);
        loop {
            match step {
                Step::Request { state, effects } => {
                    let Some(answers) = self.effects(task, &record, effects).await? else {
                        return Ok(());
                    };
                    step = workflow.resume(&state, &answers);
                }
                Step::Done { text, summary } => return self.complete(text, summary).await,
                Step::Failed { code, message } => {
                    return self.fail(&code, message, Map::new()).await;
                }
            }
        }
    }

    async fn load(&self) -> Result<Option<Task>, Refused> {
        let documents = self
            .engine
            .shared
            .store
            .documents(vec![self.id.as_str().into()])
            .await?;
        Ok(documents
            .into_iter()
            .flatten()
            .find_map(|document| match document.state {
                State::Task(task) => Some(task),
                _ => None,
            }))
    }

    async fn record(&self) -> Result<Record, Refused> {
        let mut record = Record::default();
        let mut after = Position::START;
        loop {
            let query = ReadEvents {
                scope: Scope::Task(self.key),
                after,
                limit: 512,
            };
            let page = self.engine.shared.store.events(query).await?;
            let Some(last) = page.last() else {
                return Ok(record);
            };
            after = last.position;
            for stored in &page {
                let mut event = Event::parse(&stored.bytes).map_err(|error| Refused::Internal {
                    detail: format!("task {}: {error}", self.id),
                })?;
                self.note(&mut record, &mut event).await?;
            }
        }
    }

    async fn note(&self, record: &mut Record, event: &mut Event) -> Result<(), Refused> {
        let key = |event: &Event| {
            event
                .payload
                .get("effect_key")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let digest = |event: &Event, member: &str| {
            event
                .payload
                .get(member)
                .and_then(Value::as_str)
                .and_then(|text| Digest::parse(text).ok())
        };
        match event.kind() {
            Ok(Kind::TaskStarted) => record.workflow = digest(event, "workflow_sha256"),
            Ok(Kind::EffectRequested) => {
                if let Some(digest) = digest(event, "request_sha256") {
                    record.requested.insert(key(event), digest);
                }
            }
            Ok(Kind::EffectRecorded) => {
                view::resolve_blobs(&*self.engine.shared.store, &mut event.payload).await?;
                let ok = event.payload.get("outcome").and_then(Value::as_str) == Some("ok");
                let value = event.payload.get("value").cloned().unwrap_or_default();
                record
                    .recorded
                    .insert(key(event), EffectAnswer { ok, value });
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns what the workflow may see of the input: the public text of a Message, or the structured value.
    async fn input(&self, task: &Task) -> Result<Value, Refused> {
        let payload = view::payload(&*self.engine.shared.store, task.input).await?;
        if task.input == task.submitted {
            return Ok(payload.get("input").cloned().unwrap_or_default());
        }
        let parts = payload
            .get("parts")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default();
        Ok(domain::public_text(parts).into())
    }

    /// Returns the results of effects, or none when the Task now waits for somebody.
    async fn effects(
        &mut self,
        task: &Task,
        record: &Record,
        effects: Vec<Effect>,
    ) -> Result<Option<Vec<EffectAnswer>>, Refused> {
        let mut answers: Vec<Option<EffectAnswer>> = vec![None; effects.len()];
        let mut to_perform = Vec::new();
        for (index, (effect, slot)) in effects.into_iter().zip(&mut answers).enumerate() {
            let digest = effect.request_digest();
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
                    .map(|()| None);
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
                    repeatable: effect.kind.is_repeatable(),
                }));
            } else if !effect.kind.is_repeatable() {
                let message = format!(
                    "the result of `{}` is unknown and it cannot be repeated",
                    effect.key
                );
                let details = details([("effect_key", effect.key.as_str())]);
                return self
                    .fail("effect_result_unknown", message, details)
                    .await
                    .map(|()| None);
            }
            if let EffectKind::Ask(ask) = effect.kind {
                let request = match &task.waits_for {
                    Some(request) => request.clone(),
                    None => PermissionId::from_body(&self.engine.shared.ids.body()),
                };
                let action = effect.request.get("action").cloned().unwrap_or_default();
                self.moves.push(Move::Ask {
                    request,
                    ask,
                    effect_key: effect.key,
                    request_body: effect.request,
                    action,
                });
                self.flush().await?;
                return Ok(None);
            }
            to_perform.push((index, effect));
        }
        if !to_perform.is_empty() {
            self.flush().await?;
            self.perform(to_perform, &mut answers).await?;
        }
        Ok(Some(answers.into_iter().flatten().collect()))
    }

    async fn perform(
        &mut self,
        effects: Vec<(usize, Effect)>,
        answers: &mut [Option<EffectAnswer>],
    ) -> Result<(), Refused> {
        let performer = &self.engine.shared.performer;
        let mut running: FuturesUnordered<_> = effects
            .into_iter()
            .map(|(index, effect)| {
                let (key, kind) = (effect.key.clone(), effect.kind);
                let performed = performer.perform(effect);
                async move { (index, key, kind, performed.await) }
            })
            .collect();
        while let Some((index, key, kind, performed)) = running.next().await {
            let Performed {
                ok,
                value,
                provider_request_id,
            } = performed;
            self.moves.push(Move::RecordEffect(EffectResult {
                key,
                kind: kind.record_kind().to_owned(),
                ok,
                value: value.clone(),
                provider_request_id,
            }));
            if let Some(slot) = answers.get_mut(index) {
                *slot = Some(EffectAnswer { ok, value });
            }
            // The last result travels with what the workflow does next.
            if !running.is_empty() {
                self.flush().await?;
            }
        }
        Ok(())
    }

    async fn complete(&mut self, text: String, summary: String) -> Result<(), Refused> {
        let ids = &self.engine.shared.ids;
        let message = NewMessage {
            id: domain::MessageId::from_body(&ids.body()),
            salt: ids.salt(),
            role: Role::Assistant,
            parts: vec![json!({"type": "text", "text": text, "visibility": "public"})],
            metadata: Map::new(),
        };
        let messages = vec![message.id.clone()];
        let outcome_id = OutcomeId::from_body(&ids.body());
        self.moves.push(Move::Say(message));
        self.moves.push(Move::Complete {
            outcome_id,
            summary,
            messages,
        });
        self.flush().await
    }

    async fn fail(
        &mut self,
        code: &str,
        message: String,
        details: Map<String, Value>,
    ) -> Result<(), Refused> {
        // Intents that were never flushed are dropped: nothing was performed. Results are kept: they happened.
        self.moves.retain(|step| {
            matches!(
                step,
                Move::Start { .. } | Move::Recover | Move::RecordEffect(_)
            )
        });
        let outcome_id = OutcomeId::from_body(&self.engine.shared.ids.body());
        self.moves.push(Move::Fail {
            outcome_id,
            code: code.to_owned(),
            message,
            details,
        });
        self.flush().await
    }

    /// Commits what has collected. Nothing is performed before this returns.
    async fn flush(&mut self) -> Result<(), Refused> {
        if self.moves.is_empty() {
            return Ok(());
        }
        let lease = match self.epoch {
            Some(epoch) => Lease::Hold(Fence {
                lease: self.key,
                epoch,
            }),
            None => Lease::Take(self.key),
        };
        let order = AdvanceTask {
            id: self.id.clone(),
            moves: std::mem::take(&mut self.moves),
        };
        let command = Command {
            actor: "agent".to_owned(),
            idempotency_key: None,
            order: domain::Order::AdvanceTask(order),
        };
        let done = self.engine.order(command, None, lease).await?;
        if done.epoch.is_some() {
            self.epoch = done.epoch;
        }
        Ok(())
    }
}

fn details<const N: usize>(members: [(&str, &str); N]) -> Map<String, Value> {
    members
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}
