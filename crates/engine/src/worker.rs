//! Working on Tasks: who gets a worker when, recovery, and what becomes of a Task that cannot be advanced. What a worker
//! does with one Task is in `run`.

mod paused;
mod perform;
mod queue;
mod replay;
mod run;
pub(crate) mod session_replay;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::{
    AdvanceTask, Command, Document, Move, Position, Refusal, ResourceKind, SessionId, State,
    Status, Task, TaskId, WorkspaceId,
};
use tokio::sync::{Notify, mpsc, watch};

use crate::engine::Engine;
use crate::govern::is_governed;
use crate::limits::Limits;
use crate::port::{Commit, CommitError, LeaseName, LeaseOwners, ListQuery, Scope, SealedTurn};
use crate::refused::Refused;
use crate::turn::Lease;
use paused::PausedRuns;
use queue::{Job, Open, Queue};
use run::{AttemptEnd, Run};

/// The Tasks that there is work on, and who is on them.
#[derive(Debug)]
pub(crate) struct Work {
    queue: Mutex<Queue>,
    open: Mutex<Open>,
    /// Wakes whoever hands out jobs.
    wake: Notify,
    closed: watch::Sender<bool>,
    /// Counts workers that have stopped.
    left: watch::Sender<u64>,
    /// Tasks that waited and whose last event is not after this one have yet to be recovered; none when 0.
    recovers_through: AtomicU64,
    /// Sessions that replay others, on their way to be worked on, and those that are on it.
    sessions: mpsc::UnboundedSender<SessionId>,
    replaying: Mutex<BTreeSet<Position>>,
    /// Runs that wait for people.
    paused: PausedRuns,
}

/// What a worker is told while it works.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Signal {
    /// Nothing is left to do here.
    pub(crate) stop: bool,
    /// The last interrupt that the Task has not taken up.
    pub(crate) interrupt: Option<Position>,
}

/// How often a Task that cannot be advanced is tried.
const ATTEMPTS_MAX: u32 = 8;

/// Returns how long to wait after an attempt that failed.
fn pause_after(attempts: u32) -> Duration {
    Duration::from_millis(250 << attempts.saturating_sub(1).min(8))
}

impl Work {
    pub(crate) fn new(limits: &Limits) -> (Self, mpsc::UnboundedReceiver<SessionId>) {
        let (sessions, replays) = mpsc::unbounded_channel();
        let work = Self {
            recovers_through: AtomicU64::new(0),
            queue: Mutex::new(Queue::new(limits.workers_max)),
            open: Mutex::new(Open::new(limits.open_tasks_max)),
            wake: Notify::new(),
            closed: watch::Sender::new(false),
            left: watch::Sender::new(0),
            sessions,
            replaying: Mutex::default(),
            paused: PausedRuns::default(),
        };
        (work, replays)
    }

    /// Reacts to what a turn changed: new work is queued, ended work is stopped. Runs in commit order, in the
    /// turn itself, so that no client's disappearance can lose a Task.
    pub(crate) fn after_commit(&self, changed: &[Arc<Document>]) {
        for document in changed {
            if let State::Session(session) = &document.state {
                self.replay_session(document, session.replaying.is_some());
            }
            let State::Task(task) = &document.state else {
                continue;
            };
            self.open().changed(document, task);
            if is_governed(task) {
                // A program elsewhere works on it.
                continue;
            }
            match task.status {
                Status::Submitted | Status::Working => self.enqueue(document, task, None),
                Status::InputRequired | Status::AuthRequired => self.queue().forget(document.key),
                Status::Completed | Status::Failed | Status::Canceled => {
                    self.queue().forget(document.key);
                    drop(self.paused.take(document.key));
                }
            }
        }
    }

    fn enqueue(&self, document: &Document, task: &Task, epoch: Option<u64>) {
        if self.queue().add(document, task, epoch) {
            self.wake.notify_one();
        }
    }

    fn recovers_through(&self, last: Option<Position>) {
        let last = last.map_or(0, |position| position.0);
        self.recovers_through.store(last, Ordering::Release);
    }

    /// True for a Task that waited when an earlier process crashed, until it has gone through WORKING.
    pub(crate) fn is_recovering(&self, document: &Document) -> bool {
        let last = self.recovers_through.load(Ordering::Acquire);
        document.tip.0 <= last
            && matches!(&document.state, State::Task(task) if task.status.is_waiting())
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Each call leaves the counts right.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses somebody who has as many open Tasks as are their share.
    pub(crate) fn may_open(&self, workspace: &WorkspaceId, actor: &str) -> Result<(), Refused> {
        self.open().may_add(workspace, actor)
    }

    /// True when there are as many open Tasks as there may be.
    pub(crate) fn is_full(&self) -> bool {
        self.open().is_full()
    }

    /// Gives back the worker of a Task that only waits, for as long as what is returned lives.
    pub(crate) fn park(&self, key: Position) -> ParkedTask<'_> {
        self.queue().park(key);
        self.left.send_modify(|count| *count += 1);
        self.wake.notify_one();
        ParkedTask { work: self, key }
    }

    /// Returns how many Tasks wait for a worker.
    pub(crate) fn waiting_count(&self) -> usize {
        self.queue().waiting_count()
    }

    /// Returns how many Tasks are being worked on.
    pub(crate) fn running_count(&self) -> usize {
        self.queue().running_count()
    }

    /// True when a Task that is queued now would be begun at once.
    pub(crate) fn has_free_worker(&self) -> bool {
        self.queue().has_free_worker()
    }

    /// Stops claiming.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Resolves once no worker is busy.
    pub(crate) async fn idle(&self) {
        let mut left = self.left.subscribe();
        while self.queue().active_count() > 0 {
            if left.changed().await.is_err() {
                return;
            }
        }
    }

    /// Stops every worker where it stands; nothing is recorded. Returns the Tasks that were not finished.
    pub(crate) fn stop_all(&self) -> Vec<Position> {
        self.queue().stop_all()
    }
}

/// A Task that has begun and needs no worker for now.
#[derive(Debug)]
pub(crate) struct ParkedTask<'a> {
    work: &'a Work,
    key: Position,
}

impl Drop for ParkedTask<'_> {
    fn drop(&mut self) {
        self.work.queue().unpark(self.key);
    }
}

/// What an earlier process left.
#[derive(Debug)]
pub(crate) struct InheritedLeases {
    /// Its leases, which are this process's now.
    leases: BTreeMap<Position, u64>,
}

/// The lease that says that a process is there. One that stops gives it back, one that is killed cannot.
const PRESENCE: LeaseName = Position::START;

impl Engine {
    /// Takes over what an earlier process left, and makes it known that this one is there. Reads no history: how many
    /// Tasks are open does not matter.
    pub(crate) async fn take_over(&self) -> Result<InheritedLeases, Refused> {
        let shared = &self.shared;
        let leases = shared
            .store
            .take_over(LeaseOwners::Everybody, shared.holder.clone());
        let leases = leases.await?;
        let leases: BTreeMap<Position, u64> = leases.into_iter().collect();
        if leases.contains_key(&PRESENCE) {
            // It did not stop by itself.
            shared.work.recovers_through(Some(shared.store.head()));
        } else {
            let turn = SealedTurn {
                leases_taken: vec![PRESENCE],
                ..SealedTurn::default()
            };
            self.commit_leases(turn)
                .await
                .map_err(|error| match error {
                    CommitError::Fault(fault) => Refused::from(fault),
                    other => Refused::Internal {
                        detail: format!("the store was not taken over: {other}"),
                    },
                })?;
        }
        Ok(InheritedLeases { leases })
    }

    /// Gives back the leases of Tasks that were not finished, and says that this process has stopped by itself.
    pub(crate) async fn release_leases(
        &self,
        unfinished: Vec<Position>,
    ) -> Result<(), CommitError> {
        let mut leases_released = unfinished;
        leases_released.push(PRESENCE);
        let turn = SealedTurn {
            leases_released,
            ..SealedTurn::default()
        };
        self.commit_leases(turn).await
    }

    /// Commits beside the turn, which takes commands: leases are no fold, and no event stands for them.
    async fn commit_leases(&self, turn: SealedTurn) -> Result<(), CommitError> {
        let commit = Commit {
            expected: Vec::new(),
            fences: Vec::new(),
            holder: self.shared.holder.clone(),
            blobs: Vec::new(),
            event_count: 0,
            seal: Box::new(|_| Ok(turn)),
            now: self.shared.clock.now(),
        };
        self.shared.store.commit(commit).await.map(drop)
    }

    /// Finds the open Tasks that an earlier process left: those it worked on are queued, those that waited when it
    /// crashed go through WORKING once (AP-TASK-04). After a clean stop they wait on, and nothing is written.
    async fn recover(&self, left: &InheritedLeases) -> Result<(), Refused> {
        let shared = &self.shared;
        let mut after = Position::START;
        loop {
            let query = ListQuery {
                kind: ResourceKind::Task,
                scope: Scope::All,
                open_only: true,
                after,
                limit: shared.limits.batch_len_max.max(1),
            };
            let page = shared.store.list(query).await?;
            let Some(last) = page.last() else { break };
            after = last.key;
            let mut waiting = Vec::new();
            for document in &page {
                let State::Task(task) = &document.state else {
                    continue;
                };
                shared.work.open().insert_open(document, task);
                if is_governed(task) {
                    shared.governed.insert_open(document, shared.clock.now());
                    continue;
                }
                if !task.status.is_waiting() {
                    let epoch = left.leases.get(&document.key).copied();
                    shared.work.enqueue(document, task, epoch);
                } else if shared.work.is_recovering(document) {
                    waiting.extend(TaskId::parse(&document.id));
                }
            }
            self.wait_again(waiting).await?;
        }
        shared.work.open().set_complete();
        shared.work.recovers_through(None);
        Ok(())
    }

    /// Moves Tasks that waited to WORKING and back, all in one commit.
    async fn wait_again(&self, waiting: Vec<TaskId>) -> Result<(), Refused> {
        let orders = waiting.into_iter().map(|id| {
            let order = domain::Order::AdvanceTask(AdvanceTask {
                id,
                workflow: None,
                moves: vec![Move::Recover, Move::WaitAgain],
            });
            let command = Command {
                actor: "system".to_owned(),
                idempotency_key: None,
                order,
            };
            self.order_own(command, Lease::None)
        });
        for done in futures_util::future::join_all(orders).await {
            match done.map_err(|not_done| not_done.refused) {
                // Somebody answered or canceled it in the meantime.
                Ok(_) | Err(Refused::Domain(_)) => {}
                Err(refused) => return Err(refused),
            }
        }
        Ok(())
    }

    /// Recovers what is left, then and meanwhile hands jobs to workers until a drain begins.
    pub(crate) async fn work(self, left: InheritedLeases) {
        let shared = &self.shared;
        let recovering = self.clone();
        shared.spawn.spawn(Box::pin(async move {
            let mut attempts = 0;
            while let Err(fault) = recovering.recover(&left).await {
                tracing::warn!(fault = %fault.for_the_log(), "open tasks were not all found, will look again");
                if recovering.is_draining() {
                    return;
                }
                attempts += 1;
                recovering.shared.clock.sleep(pause_after(attempts)).await;
            }
        }));
        let mut closed = shared.work.closed.subscribe();
        loop {
            loop {
                let Some(job) = shared.work.queue().next() else {
                    break;
                };
                let engine = self.clone();
                shared
                    .spawn
                    .spawn(Box::pin(async move { engine.work_on(job).await }));
            }
            tokio::select! {
                biased;
                _ = closed.wait_for(|closed| *closed) => return,
                () = shared.work.wake.notified() => {}
            }
        }
    }

    /// Has a worker on a Task, and gives it back.
    async fn work_on(self, mut job: Job) {
        let pause = self.attempt(&mut job).await;
        let work = &self.shared.work;
        work.queue().finish(&job);
        work.left.send_modify(|count| *count += 1);
        work.wake.notify_one();
        let Some(pause) = pause else { return };
        // Nobody is kept busy while the Task waits for its next attempt.
        let mut signals = job.signals.clone();
        let stopped = async { drop(signals.wait_for(|signal| signal.stop).await) };
        tokio::select! {
            biased;
            () = stopped => {}
            () = self.shared.clock.sleep(pause) => {
                work.queue().requeue(job);
                work.wake.notify_one();
            }
        }
    }

    /// Works on one Task until it ends, waits, or is stopped. When it cannot be advanced, returns how long to wait
    /// before the next attempt; after the last one it fails.
    async fn attempt(&self, job: &mut Job) -> Option<Duration> {
        loop {
            let mut run = Run::new(self, job);
            let mut signals = job.signals.clone();
            let stopped = async { drop(signals.wait_for(|signal| signal.stop).await) };
            let ended = tokio::select! {
                biased;
                () = stopped => return None,
                ended = run.drive() => ended,
            };
            job.epoch = run.epoch;
            if run.has_recorded {
                job.attempts = 0;
            }
            let fault = match ended {
                // Look once more: a wait that began here and its answer may have been committed in one turn, and
                // then nobody was told that there is work again.
                Ok(AttemptEnd::Flushed) => continue,
                // The turn that brought this about is about to say so.
                Ok(AttemptEnd::NothingToDo) => {
                    drop(job.signals.wait_for(|signal| signal.stop).await);
                    return None;
                }
                // The log went on since it was read: go on from there.
                Err(Refused::Domain(Refusal::Stale)) => continue,
                Err(Refused::Domain(Refusal::Conflict {
                    reason: "lease_lost",
                    ..
                })) => {
                    tracing::info!(task.id = %job.id, "another worker has taken the task over");
                    self.shared.work.queue().forget(job.key);
                    return None;
                }
                Err(Refused::Draining) => return None,
                Err(fault) => fault,
            };
            job.attempts += 1;
            tracing::warn!(task.id = %job.id, attempt = job.attempts, fault = %fault.for_the_log(), "task was not advanced");
            if job.attempts < ATTEMPTS_MAX {
                return Some(pause_after(job.attempts));
            }
            return self.give_up(job, &fault).await;
        }
    }

    /// Fails a Task that cannot be advanced. Where even that is impossible, it is left to a cancel or the next start.
    async fn give_up(&self, job: &mut Job, fault: &Refused) -> Option<Duration> {
        let mut run = Run::new(self, job);
        let mut signals = job.signals.clone();
        let stopped = async { drop(signals.wait_for(|signal| signal.stop).await) };
        let failed = tokio::select! {
            biased;
            () = stopped => return None,
            failed = run.cannot_advance(ATTEMPTS_MAX, fault) => failed,
        };
        if let Err(refused) = failed {
            tracing::error!(task.id = %job.id, fault = %refused.for_the_log(), "task can neither be advanced nor failed");
            self.shared.work.queue().forget(job.key);
        }
        None
    }
}
