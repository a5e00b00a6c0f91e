//! The ids that open workflows gave to their sessions, some of which have not begun.
//!
//! Kept beside the folds, so that opening a session costs the same however many workflows are open: after a start each workflow is
//! read once, and from then on every fold of it says which places it has.

use std::collections::BTreeMap;

use domain::{Position, TaskId, WorkspaceId};
use runs::workflow::governed::GovernedWorkflow;

use super::Sessions;

/// An index of open workflows by the sessions in them.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Workflows whose places are not known yet.
    unread: BTreeMap<Position, TaskId>,
    /// The workflow of each session, by the session's Task.
    of: BTreeMap<TaskId, String>,
    /// The sessions of each workflow.
    sessions: BTreeMap<Position, Vec<TaskId>>,
}

impl Places {
    /// Takes note of an open workflow.
    pub(super) fn found(&mut self, workflow: Position, id: TaskId) {
        if !self.sessions.contains_key(&workflow) {
            self.unread.insert(workflow, id);
        }
    }

    /// Forgets a workflow that has ended, and its places.
    pub(super) fn forget(&mut self, workflow: Position) {
        self.unread.remove(&workflow);
        for session in self.sessions.remove(&workflow).unwrap_or_default() {
            self.of.remove(&session);
        }
    }
}

impl Sessions {
    /// Takes note of the places of a workflow that was read; one that is not open has none to keep.
    pub(super) fn note_places(
        &self,
        key: Position,
        workspace: &WorkspaceId,
        workflow: &GovernedWorkflow,
    ) {
        let open = self.lock();
        if !open.contains_key(&key) {
            return;
        }
        let mut places = self.places();
        let Places {
            unread,
            of,
            sessions,
        } = &mut *places;
        unread.remove(&key);
        let known = sessions.entry(key).or_default();
        // Sessions come into a workflow and never leave it.
        if known.len() == workflow.session_count() {
            return;
        }
        known.clear();
        for session in workflow.sessions() {
            let id = TaskId::governed(workspace, session);
            of.insert(id.clone(), workflow.id().to_owned());
            known.push(id);
        }
    }

    /// Returns the open workflows whose places are not known yet.
    pub(super) fn unread_workflows(&self) -> Vec<TaskId> {
        self.places().unread.values().cloned().collect()
    }

    /// Returns the workflow that has a place for a session.
    pub(super) fn place_of(&self, session: &TaskId) -> Option<String> {
        self.places().of.get(session).cloned()
    }
}
