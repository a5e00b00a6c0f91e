//! Who has how many Tasks open: accepted and not ended, those included that wait for somebody.

use std::collections::{BTreeMap, BTreeSet};

use domain::{Document, Position, Task, WorkspaceId};

use super::queue::Caller;
use crate::refused::Refused;
use crate::share::Shares;

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
            self.shares.give_back(&caller, 1);
        }
        if let Some(ended) = &mut self.ended {
            ended.insert(key);
        }
    }

    /// Takes note of a Task that an earlier process left open.
    pub(super) fn found(&mut self, document: &Document, task: &Task) {
        let has_ended = |ended: &BTreeSet<Position>| ended.contains(&document.key);
        if !self.ended.as_ref().is_some_and(has_ended) {
            self.is_open(document.key, task);
        }
    }

    /// Takes note that there are no more of them.
    pub(super) fn all_found(&mut self) {
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
    use domain::{State, Status};

    use super::super::queue::tests::document;
    use super::*;

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
        open.found(&document, &waiting);
        open.all_found();
        assert!(!open.is_full());
        assert!(open.may_add(&workspace, "ann").is_ok());
    }
}
