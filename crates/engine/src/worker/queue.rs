//! What callers share: the workers, and how many Tasks may be open.
//!
//! Of those who wait, one that runs less than its share gets the next worker. A Task is open from when it is accepted until it
//! ends, also while it waits for somebody.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{MutexGuard, PoisonError};

use domain::{Document, Position, Task, TaskId, WorkspaceId};
use tokio::sync::watch;

use super::{Signal, Work};
use crate::refused::Refused;
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
    pub(super) fn requeue(&mut self, job: Job) {
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
        let running = |caller: &&Caller| self.running.amount_of(caller);
        let caller = self.waiting.keys().min_by_key(running)?.clone();
        self.running.take(&caller, 1).ok()?;
        let job = self.waiting.get_mut(&caller).and_then(VecDeque::pop_front);
        if self.waiting.get(&caller).is_none_or(VecDeque::is_empty) {
            self.waiting.remove(&caller);
        }
        let Some(job) = job else {
            // Invariant: nobody is listed without a job.
            self.running.release(&caller, 1);
            return None;
        };
        self.waiting_count -= 1;
        self.at_work.insert(job.key, caller);
        Some(job)
    }

    /// Takes note that a worker is free again.
    pub(super) fn finish(&mut self, job: &Job) {
        self.resting.remove(&job.key);
        if let Some(caller) = self.at_work.remove(&job.key) {
            self.running.release(&caller, 1);
        }
    }

    /// Gives back the worker of a Task that only waits from here on.
    pub(super) fn park(&mut self, key: Position) {
        if let Some(caller) = self.at_work.remove(&key) {
            self.running.release(&caller, 1);
            self.resting.insert(key, caller);
        }
    }

    /// Counts a Task again that goes on after a rest. It does not wait for its turn: it has begun.
    pub(super) fn unpark(&mut self, key: Position) {
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
    pub(super) fn active_count(&self) -> usize {
        self.at_work.len() + self.resting.len()
    }

    pub(super) fn has_free_worker(&self) -> bool {
        self.running.total() < self.running.max()
    }
}

/// The open Tasks and whose they are.
#[derive(Debug)]
pub(super) struct Open {
    shares: Shares<Caller>,
    tasks: BTreeMap<Position, Caller>,
    /// Tasks that ended while those of an earlier process were still being looked for; none once all are found.
    ended: Option<BTreeSet<Position>>,
}

impl Open {
    pub(super) fn new(tasks_max: usize) -> Self {
        Self {
            shares: Shares::new(tasks_max),
            tasks: BTreeMap::new(),
            ended: Some(BTreeSet::new()),
        }
    }

    /// Takes note of what a commit made of a Task.
    pub(super) fn changed(&mut self, document: &Document, task: &Task) {
        let key = document.key;
        if !task.status.is_terminal() {
            return self.is_open(key, task);
        }
        if let Some(caller) = self.tasks.remove(&key) {
            self.shares.release(&caller, 1);
        }
        if let Some(ended) = &mut self.ended {
            ended.insert(key);
        }
    }

    /// Takes note of a Task that an earlier process left open.
    pub(super) fn insert_open(&mut self, document: &Document, task: &Task) {
        let has_ended = |ended: &BTreeSet<Position>| ended.contains(&document.key);
        if !self.ended.as_ref().is_some_and(has_ended) {
            self.is_open(document.key, task);
        }
    }

    /// Takes note that there are no more of them.
    pub(super) fn set_complete(&mut self) {
        self.ended = None;
    }

    fn is_open(&mut self, key: Position, task: &Task) {
        if self.tasks.contains_key(&key) {
            return;
        }
        let caller = (task.workspace_id.clone(), task.created_by.clone());
        self.shares.add(&caller, 1);
        self.tasks.insert(key, caller);
    }

    /// Says whether somebody may have one more.
    pub(super) fn may_add(&self, workspace: &WorkspaceId, actor: &str) -> Result<(), Refused> {
        let caller = (workspace.clone(), actor.to_owned());
        let may = self.shares.may_take(&caller, 1);
        may.map_err(|no| no.of("open_tasks_max", self.shares.max()))
    }

    /// True when all have as many as there may be.
    pub(super) fn is_full(&self) -> bool {
        self.shares.total() >= self.shares.max()
    }
}

#[cfg(test)]
mod tests {
    use domain::{Links, State, Status, Timestamp};

    use super::*;

    fn document(key: u64, actor: &str) -> Document {
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
            queue.finish(job);
        }
        let next: Vec<u64> = std::iter::from_fn(|| queue.next())
            .map(|job| job.key.0)
            .collect();
        assert_eq!(next, [104, 102], "whoever has least comes first");
        for job in &greedy[2..] {
            queue.finish(job);
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
        queue.park(held.key);
        let next = queue.next().unwrap();
        assert_eq!(next.key.0, 2);
        queue.unpark(held.key);
        assert_eq!(queue.running_count(), 2);
        queue.finish(&held);
        queue.finish(&next);
        queue.park(next.key);
        assert_eq!(queue.running_count(), 0);
        assert_eq!(queue.next().map(|job| job.key.0), Some(3));
    }

    fn with_status(key: u64, actor: &str, status: Status) -> (Document, Task) {
        let document = document(key, actor);
        let State::Task(mut task) = document.state.clone() else {
            panic!("not a task");
        };
        task.status = status;
        (document, task)
    }

    #[test]
    fn f15_tasks_that_wait_count_and_ended_ones_do_not() {
        let mut open = Open::new(2);
        let workspace = WorkspaceId::parse("workspace_1").unwrap();
        let mut change = |key, actor: &str, status| {
            let (document, task) = with_status(key, actor, status);
            open.changed(&document, &task);
            (
                open.may_add(&workspace, "ann").is_ok(),
                open.may_add(&workspace, "bob").is_ok(),
            )
        };
        assert_eq!(change(1, "ann", Status::Submitted), (true, true));
        assert_eq!(change(2, "ann", Status::InputRequired), (false, true));
        assert_eq!(change(3, "bob", Status::Working), (false, false));
        assert_eq!(change(2, "ann", Status::Completed), (false, false));
        assert_eq!(change(1, "ann", Status::Canceled), (true, true));
    }

    #[test]
    fn a_task_that_ends_while_it_is_looked_for_is_not_counted() {
        let mut open = Open::new(1);
        let workspace = WorkspaceId::parse("workspace_1").unwrap();
        let (document, ended) = with_status(7, "ann", Status::Failed);
        let (_, waiting) = with_status(7, "ann", Status::AuthRequired);
        open.changed(&document, &ended);
        open.insert_open(&document, &waiting);
        open.set_complete();
        assert!(!open.is_full());
        assert!(open.may_add(&workspace, "ann").is_ok());
    }
}
