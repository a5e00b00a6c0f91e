//! Which Task gets a worker next. Callers share workers: one that runs less than its share comes first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{MutexGuard, PoisonError};

use domain::{Document, Position, Task, TaskId, WorkspaceId};
use tokio::sync::watch;

use super::{Signal, Work};
use crate::share::Shares;

/// Whose work it is: the actor who submitted it, in its Workspace.
pub(super) type Caller = (WorkspaceId, String);

/// A Task to work on.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) key: Position,
    pub(super) id: TaskId,
    caller: Caller,
    /// The epoch of its lease, when it is held.
    pub(super) epoch: Option<u64>,
    /// Attempts in a row that came to nothing.
    pub(super) attempts: u32,
    pub(super) signals: watch::Receiver<Signal>,
}

/// Jobs that wait, and what the others occupy.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: BTreeMap<Caller, VecDeque<Job>>,
    waiting_count: usize,
    /// Workers, shared out by caller.
    running: Shares<Caller>,
    /// Tasks that have a worker, and those that have begun and only wait.
    at_work: BTreeMap<Position, Caller>,
    resting: BTreeMap<Position, Caller>,
    /// Tasks queued, being worked on or between two attempts, each with what its worker is told by.
    active: BTreeMap<Position, watch::Sender<Signal>>,
}

impl Work {
    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        // Each call leaves the counts right.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    pub(super) fn new(workers_max: usize) -> Self {
        Self {
            waiting: BTreeMap::new(),
            waiting_count: 0,
            running: Shares::new(workers_max),
            at_work: BTreeMap::new(),
            resting: BTreeMap::new(),
            active: BTreeMap::new(),
        }
    }

    /// Queues a Task unless it is known already. True when somebody has to look.
    pub(super) fn add(&mut self, document: &Document, task: &Task, epoch: Option<u64>) -> bool {
        let interrupt = task.interrupts.last().copied();
        if let Some(signal) = self.active.get(&document.key) {
            signal.send_if_modified(|signal| {
                std::mem::replace(&mut signal.interrupt, interrupt) != interrupt
            });
            return false;
        }
        let Ok(id) = TaskId::parse(&document.id) else {
            return false;
        };
        let signal = watch::Sender::new(Signal {
            stop: false,
            interrupt,
        });
        let job = Job {
            key: document.key,
            id,
            caller: (task.workspace_id.clone(), task.created_by.clone()),
            epoch,
            attempts: 0,
            signals: signal.subscribe(),
        };
        self.active.insert(document.key, signal);
        self.push(job);
        true
    }

    /// Queues a Task for its next attempt, unless there is nothing to do any more.
    pub(super) fn again(&mut self, job: Job) {
        if self.active.contains_key(&job.key) {
            self.push(job);
        }
    }

    fn push(&mut self, job: Job) {
        self.waiting_count += 1;
        let jobs = self.waiting.entry(job.caller.clone()).or_default();
        jobs.push_back(job);
    }

    /// Takes the job that comes next, if a worker is free for it. The last workers, a quarter more than one caller can
    /// have, are for callers that have less than their share.
    pub(super) fn next(&mut self) -> Option<Job> {
        let running = |caller: &&Caller| self.running.held(caller);
        let caller = self.waiting.keys().min_by_key(running)?.clone();
        self.running.take(&caller, 1).ok()?;
        let job = self.waiting.get_mut(&caller).and_then(VecDeque::pop_front);
        if self.waiting.get(&caller).is_none_or(VecDeque::is_empty) {
            self.waiting.remove(&caller);
        }
        let Some(job) = job else {
            // Invariant: nobody is listed without a job.
            self.running.give_back(&caller, 1);
            return None;
        };
        self.waiting_count -= 1;
        self.at_work.insert(job.key, caller);
        Some(job)
    }

    /// Takes note that a worker is free again.
    pub(super) fn left(&mut self, job: &Job) {
        self.resting.remove(&job.key);
        if let Some(caller) = self.at_work.remove(&job.key) {
            self.running.give_back(&caller, 1);
        }
    }

    /// Gives back the worker of a Task that only waits from here on.
    pub(super) fn rest(&mut self, key: Position) {
        if let Some(caller) = self.at_work.remove(&key) {
            self.running.give_back(&caller, 1);
            self.resting.insert(key, caller);
        }
    }

    /// Counts a Task again that goes on after a rest. It does not wait for its turn: it has begun.
    pub(super) fn go_on(&mut self, key: Position) {
        if let Some(caller) = self.resting.remove(&key) {
            self.running.add(&caller, 1);
            self.at_work.insert(key, caller);
        }
    }

    /// Lets go of a Task; its worker, if one is left, learns that there is nothing more to do.
    pub(super) fn forget(&mut self, key: Position) {
        if let Some(signal) = self.active.remove(&key) {
            signal.send_modify(|signal| signal.stop = true);
        }
    }

    pub(super) fn stop_all(&mut self) -> Vec<Position> {
        let active = std::mem::take(&mut self.active);
        for signal in active.values() {
            signal.send_modify(|signal| signal.stop = true);
        }
        active.into_keys().collect()
    }

    pub(super) fn waiting_count(&self) -> usize {
        self.waiting_count
    }

    pub(super) fn running_count(&self) -> usize {
        self.running.total()
    }

    /// Returns how many Tasks have begun and not been left, those included that rest.
    pub(super) fn begun_count(&self) -> usize {
        self.at_work.len() + self.resting.len()
    }

    pub(super) fn has_free_worker(&self) -> bool {
        self.running.total() < self.running.max()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use domain::{Links, Status, Timestamp};

    use super::*;

    pub(in crate::worker) fn document(key: u64, actor: &str) -> Document {
        let state = serde_json::json!({
            "object": "task", "session_id": "session_1", "workspace_id": "workspace_1", "status": Status::Submitted,
            "created_by": actor, "workflow": "agent", "branch_id": null, "parent_task_id": null, "submitted": key,
            "input": key, "waits_for": null, "requests": 0, "started_at": null, "completed_at": null,
            "canceled_at": null, "outcome_id": null, "receipt_id": null, "failure": null,
        });
        Document {
            key: Position(key),
            id: format!("task_{key}").into(),
            version: 1,
            tip: Position(key),
            links: Links::default(),
            created_at: Timestamp::from_micros(0),
            updated_at: Timestamp::from_micros(0),
            state: serde_json::from_value(state).unwrap(),
        }
    }

    fn add(queue: &mut Queue, key: u64, actor: &str) {
        let document = document(key, actor);
        let domain::State::Task(task) = &document.state else {
            panic!("not a task");
        };
        assert!(queue.add(&document, task, None));
    }

    #[test]
    fn f7_one_caller_has_all_workers_and_still_leaves_room_for_others() {
        let mut queue = Queue::new(8);
        for key in 1..=20 {
            add(&mut queue, key, "greedy");
        }
        let greedy: Vec<Job> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(greedy.len(), 8, "a lone caller has them all");
        assert!(!queue.has_free_worker());
        for (key, actor) in [(101, "a"), (102, "a"), (103, "b"), (104, "c")] {
            add(&mut queue, key, actor);
        }
        let others: Vec<u64> = std::iter::from_fn(|| queue.next())
            .map(|job| job.key.0)
            .collect();
        assert_eq!(others, [101, 103], "a quarter more, the emptiest first");
        for job in &greedy[..2] {
            queue.left(job);
        }
        let next: Vec<u64> = std::iter::from_fn(|| queue.next())
            .map(|job| job.key.0)
            .collect();
        assert_eq!(next, [104, 102], "whoever has least comes first");
        for job in &greedy[2..] {
            queue.left(job);
        }
        assert_eq!(queue.next().map(|job| job.key.0), Some(9));
    }

    #[test]
    fn f7_a_task_that_only_waits_has_no_worker() {
        let mut queue = Queue::new(1);
        for key in 1..=3 {
            add(&mut queue, key, "holder");
        }
        let held = queue.next().unwrap();
        assert!(queue.next().is_none());
        queue.rest(held.key);
        let next = queue.next().unwrap();
        assert_eq!(next.key.0, 2);
        queue.go_on(held.key);
        assert_eq!(queue.running_count(), 2);
        queue.left(&held);
        queue.left(&next);
        queue.rest(next.key);
        assert_eq!(queue.running_count(), 0);
        assert_eq!(queue.next().map(|job| job.key.0), Some(3));
    }
}
