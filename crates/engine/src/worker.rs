//! Working on Tasks: a queue, a pool, recovery. What a worker does with one Task is in `run`.

mod perform;
mod replay;
mod run;
pub(crate) mod session_replay;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::{
    AdvanceTask, Command, Document, Move, Position, Refusal, ResourceKind, SessionId, State,
    Status, TaskId,
};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::engine::Engine;
use crate::port::{ListQuery, Scope};
use crate::refused::Refused;
use crate::turn::Lease;
use run::{Ended, Run};

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
    /// Sessions that replay others, on their way to be worked on, and those that are on it.
    sessions: mpsc::UnboundedSender<SessionId>,
    replaying: Mutex<BTreeSet<Position>>,
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
    pub(crate) fn new(
        workers_max: usize,
    ) -> (
        Self,
        mpsc::UnboundedReceiver<Job>,
        mpsc::UnboundedReceiver<SessionId>,
    ) {
        let (queue, jobs) = mpsc::unbounded_channel();
        let (sessions, replays) = mpsc::unbounded_channel();
        let work = Self {
            queue,
            active: Mutex::default(),
            permits: std::sync::Arc::new(Semaphore::new(workers_max)),
            workers_max,
            closed: watch::Sender::new(false),
            left: watch::Sender::new(0),
            sessions,
            replaying: Mutex::default(),
        };
        (work, jobs, replays)
    }

    fn active(&self) -> MutexGuard<'_, BTreeMap<Position, watch::Sender<bool>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reacts to what a turn changed: new work is queued, ended work is stopped. Runs in commit order, in the
    /// turn itself, so that no client's disappearance can lose a Task.
    pub(crate) fn after_commit(&self, changed: &[Document]) {
        for document in changed {
            if let State::Session(session) = &document.state {
                self.replay_session(document, session.replaying.is_some());
            }
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

    /// Returns how many Tasks are queued or being worked on.
    pub(crate) fn active_count(&self) -> usize {
        self.active().len()
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
            let mut run = Run::new(self, key, id.clone(), epoch);
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
                // The log went on since it was read: go on from there.
                Err(Refused::Domain(Refusal::Stale)) => {}
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
