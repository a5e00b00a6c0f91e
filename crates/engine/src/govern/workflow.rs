//! Workflows of governed sessions.
//!
//! A workflow is a Task of its own, and what a session does to it is written in one commit with what the session did. Whoever
//! judges an input of a session holds the session first and its workflow second, always in this order.

use std::sync::Arc;

use canon::Value;
use domain::{
    Command, Document, GOVERNED_WORKFLOW, GovernTask, GovernedInput, GovernedOperation,
    HandoffAction, NewPlace, NewWorkflow, Order, Party, Problem, Refusal, SessionId, State, Task,
    TaskId, Timestamp, WorkflowStart, WorkspaceId,
};
use runs::workflow::governed::{GovernedWorkflow, JoinedSession, Subject};
use serde_json::json;
use tokio::sync::OwnedMutexGuard;

use super::fold::GovernedFold;
use super::input::{check_separation, separation_refused};
use super::open::GovernedTask;
use super::{OpenProgram, is_governed, named_workspaces, no_session};
use crate::caller::Caller;
use crate::dispatch::Idempotency;
use crate::engine::Engine;
use crate::refused::Refused;
use crate::turn::{CommitContents, Lease};

/// A workflow that nobody else moves.
pub(super) struct LockedWorkflow {
    known: Arc<OpenProgram>,
    slot: OwnedMutexGuard<Option<GovernedFold>>,
    /// Out of its slot as long as it may be ahead of the log.
    folded: GovernedFold,
    document: Arc<Document>,
    /// When it was told something that is not durable yet.
    told_at: Option<Timestamp>,
}

impl LockedWorkflow {
    /// True when nothing is written to it any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(&self.document.state, State::Task(task) if task.status.is_terminal())
    }

    /// Refuses whoever would both work and decide in the workflow's sessions.
    pub(super) fn check_separation(&self, input: &GovernedInput) -> Result<(), Refused> {
        match &self.document.state {
            State::Task(task) => check_separation(self.folded.parties(), task, input),
            _ => Err(no_workflow()),
        }
    }

    /// Returns who sent an input of a session, where the workflow does not know yet that they take part.
    pub(super) fn new_party(&self, input: &GovernedInput) -> Option<Party> {
        self.folded.parties().new_party(input)
    }

    /// Tells a session how its workflow stands, where that is news.
    pub(super) fn notify_session(
        &self,
        session: &GovernedFold,
        input: &mut GovernedInput,
    ) -> Result<(), Refused> {
        let workflow = self.folded.workflow()?;
        let view = workflow.view();
        if session.session()?.workflow_view().as_ref() != Some(&view) {
            input.workflow = Some(view);
        }
        if let GovernedOperation::Offer(offer) = &mut input.operation {
            offer.handoff_id = workflow.next_handoff();
        }
        Ok(())
    }
}

impl Engine {
    /// Begins a workflow, or goes on with the one that has its id.
    pub(super) async fn open_workflow(
        &self,
        caller: &Caller,
        new: NewWorkflow,
        idempotency: Option<Idempotency>,
    ) -> Result<(Value, bool), Refused> {
        let wanted = new.workspace_id.clone();
        let (workspace, claim, done) = self.begins_in(caller, wanted, &idempotency).await?;
        if let Some(document) = done {
            let shown = self.shown_workflow(&document).await?;
            return Ok((shown, false));
        }
        let id = match &new.workflow_id {
            Some(id) => id.clone(),
            None => format!("wf_{}", self.shared.ids.body()),
        };
        let task_id = TaskId::governed_workflow(&workspace, &id);
        let existing = self.shared_document(task_id.as_str()).await?;
        let Some(source) = &new.source else {
            // A workflow that is there needs no file.
            let document = existing.ok_or_else(no_workflow)?;
            return self.same_workflow(caller, &document, new.digest).await;
        };
        let digest = GovernedWorkflow::admit(source, new.role.as_deref())?;
        if new.digest.is_some_and(|given| given != digest) {
            let message = "the workflow file does not compile to the digest that was given";
            let problem = Problem::new(409, "digest_mismatch", message);
            return Err(problem.with("compiled_digest", digest).into());
        }
        if let Some(document) = existing {
            return self.same_workflow(caller, &document, Some(digest)).await;
        }
        self.shared.work.may_open(&workspace, &caller.actor)?;
        self.may_store(Some(&workspace), 1).await?;
        let start = WorkflowStart {
            workflow_id: id.clone(),
            at: self.shared.clock.now(),
            sha256: digest,
            source: source.clone(),
            role: new.role.clone(),
        };
        let session_id = SessionId::governed_workflow(&workspace, &id);
        let begins = GovernedTask {
            workflow: GOVERNED_WORKFLOW,
            named: ("replay_workflow_id", &id),
        };
        let order = self.beginning(&workspace, session_id, task_id.clone(), begins, &start)?;
        let command = Command {
            actor: caller.actor.clone(),
            idempotency_key: idempotency.map(|given| given.key),
            order: Order::OpenGoverned(Box::new(order)),
        };
        match self.order(command, claim, Lease::None).await {
            Ok(done) => {
                let document = self.answered_with(&done).await?;
                let shown = self.shown_workflow(&document).await?;
                Ok((shown, done.changed))
            }
            Err(Refused::Domain(Refusal::Stale)) => {
                let document = self.shared_document(task_id.as_str()).await?;
                let document = document.ok_or_else(no_session)?;
                self.same_workflow(caller, &document, Some(digest)).await
            }
            Err(other) => Err(other),
        }
    }

    async fn same_workflow(
        &self,
        caller: &Caller,
        document: &Document,
        digest: Option<canon::Digest>,
    ) -> Result<(Value, bool), Refused> {
        let own = self
            .read_folded(document, |folded| folded.workflow().map(|of| of.digest()))
            .await??;
        if digest.is_some_and(|given| given != own) {
            let message = "the workflow began under another file";
            let problem = Problem::new(409, "invalid_option", message);
            return Err(problem.with("compiled_digest", own).into());
        }
        self.joins(caller, document).await?;
        self.shown_workflow(document)
            .await
            .map(|shown| (shown, false))
    }

    /// Finds the workflow that a new session asks for; that of a first session is begun where its file is given.
    pub(super) async fn workflow_asked(
        &self,
        caller: &Caller,
        workspace: &WorkspaceId,
        asked: &NewPlace,
    ) -> Result<(String, Arc<Document>), Refused> {
        let of_offer = asked.handoff_id.as_deref().map(|id| {
            let parts = domain::handoff_parts(id);
            parts.map(|(workflow, _)| workflow.to_owned())
        });
        let id = match (of_offer, &asked.workflow_id) {
            (Some(None), _) => return Err(no_handoff()),
            (Some(Some(of)), Some(id)) if of != *id => return Err(no_handoff()),
            (Some(Some(of)), _) => of,
            (None, Some(id)) => id.clone(),
            (None, None) => format!("wf_{}", self.shared.ids.body()),
        };
        let task_id = TaskId::governed_workflow(workspace, &id);
        if let Some(document) = self.shared_document(task_id.as_str()).await? {
            return Ok((id, document));
        }
        if asked.source.is_none() || asked.handoff_id.is_some() {
            return Err(no_workflow());
        }
        let new = NewWorkflow {
            workflow_id: Some(id.clone()),
            workspace_id: Some(workspace.clone()),
            digest: None,
            source: asked.source.clone(),
            role: asked.role.clone(),
        };
        Box::pin(self.open_workflow(caller, new, None)).await?;
        let document = self.shared_document(task_id.as_str()).await?;
        Ok((id, document.ok_or_else(no_workflow)?))
    }

    /// Refuses an id that another workflow has given to one of its sessions: it is opened there or nowhere.
    pub(super) async fn must_be_free(
        &self,
        workspace: &WorkspaceId,
        session_id: &str,
        of: Option<&str>,
    ) -> Result<(), Refused> {
        let governed = &self.shared.governed;
        // Each is read once after a start; from then on its places are known.
        for id in governed.unread_workflows() {
            if let Some(document) = self.shared_document(id.as_str()).await? {
                self.read_folded(&document, |_| ()).await?;
            }
        }
        let id = TaskId::governed(workspace, session_id);
        match governed.place_of(&id).filter(|holder| of != Some(holder)) {
            None => Ok(()),
            Some(holder) => {
                let message = "the id belongs to a session of a workflow: open it there";
                let problem = Problem::new(409, "id_in_use", message);
                Err(problem.with("workflow_id", holder).into())
            }
        }
    }

    /// Refuses to take a handoff for a session that is there already, or that another workflow has a place for.
    pub(super) async fn may_take(
        &self,
        caller: &Caller,
        document: &Document,
        operation: &GovernedOperation,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<tokio::sync::MutexGuard<'_, ()>>, Refused> {
        let (GovernedOperation::Accept { session_id, .. }, State::Task(task)) =
            (operation, &document.state)
        else {
            return Ok(None);
        };
        let workspace = &task.workspace_id;
        let id = TaskId::governed(workspace, session_id);
        let naming = self.shared.governed.naming(&id).await;
        if let Some(given) = idempotency {
            let claim = self.claim(caller, Some(workspace), given);
            if self.claimed(claim).await?.is_some() {
                // Answered as it was.
                return Ok(Some(naming));
            }
        }
        if self.shared_document(id.as_str()).await?.is_some() {
            let message = "a session of this id is there already";
            return Err(Problem::new(409, "id_in_use", message).into());
        }
        let own = self
            .read_folded(document, |folded| {
                folded.workflow().map(|of| of.id().to_owned())
            })
            .await??;
        self.must_be_free(workspace, session_id, Some(&own)).await?;
        Ok(Some(naming))
    }

    /// Lets a session begin in a workflow: what the workflow is told, and what the session begins with.
    pub(super) async fn join_workflow(
        &self,
        caller: &Caller,
        document: &Document,
        session_id: &str,
        asked: Option<&NewPlace>,
        now: Timestamp,
    ) -> Result<(LockedWorkflow, Option<GovernTask>, JoinedSession), Refused> {
        let mut held = self.hold(&document.id).await?;
        if held.is_over() {
            return Err(Problem::new(410, "ended", "the workflow has ended").into());
        }
        let key = caller.key_id.as_deref();
        if held.folded.parties().is_decider(&caller.actor, key) {
            *held.slot = Some(held.folded);
            return Err(separation_refused(
                "whoever decides in a session does not work in its workflow",
            ));
        }
        let role = asked.and_then(|asked| asked.role.as_deref());
        let handoff = asked.and_then(|asked| asked.handoff_id.as_deref());
        let now = now.max(held.folded.last);
        let joining = held.folded.workflow()?.join(session_id, role, handoff, now);
        let joining = match joining {
            Ok(joining) => joining,
            Err(problem) => {
                *held.slot = Some(held.folded);
                return Err(problem.into());
            }
        };
        let told = self.record_news(caller, &mut held, &joining.news, None)?;
        Ok((held, told, joining))
    }

    /// Holds the workflow of a session, if it works in one.
    pub(super) async fn hold_workflow(
        &self,
        folded: &GovernedFold,
        task: &Task,
    ) -> Result<Option<LockedWorkflow>, Refused> {
        let Subject::Session(session) = &folded.subject else {
            return Ok(None);
        };
        match session.workflow_id() {
            None => Ok(None),
            Some(id) => {
                let id = TaskId::governed_workflow(&task.workspace_id, id);
                self.hold(id.as_str()).await.map(Some)
            }
        }
    }

    async fn hold(&self, task_id: &str) -> Result<LockedWorkflow, Refused> {
        let document = self.shared_document(task_id).await?;
        let document = document.ok_or_else(no_workflow)?;
        let known = self
            .shared
            .governed
            .find(&document, self.shared.clock.now())?;
        let mut slot = Arc::clone(&known.folded).lock_owned().await;
        let document = self.shared_document(task_id).await?;
        let document = document.ok_or_else(no_workflow)?;
        let State::Task(task) = &document.state else {
            return Err(no_workflow());
        };
        let folded = self.folded(slot.take(), &document, task).await?;
        Ok(LockedWorkflow {
            known,
            slot,
            folded,
            document,
            told_at: None,
        })
    }

    /// Writes down what a workflow is told: by whoever joins it, else by the server itself.
    pub(super) fn record_news(
        &self,
        caller: &Caller,
        held: &mut LockedWorkflow,
        news: &[Value],
        party: Option<Party>,
    ) -> Result<Option<GovernTask>, Refused> {
        if news.is_empty() && party.is_none() {
            return Ok(None);
        }
        let hear = GovernedOperation::Hear {
            events: news.to_vec(),
            parties: party.into_iter().collect(),
        };
        let input = self.input(caller, &held.folded, hear);
        let taken = held.folded.subject.take(&input);
        if let Err(problem) = &taken.answer {
            return Err(Refused::Internal {
                detail: format!("a workflow cannot be told what happened: {problem}"),
            });
        }
        held.told_at = Some(input.at);
        let id = TaskId::parse(&held.document.id).map_err(|error| Refused::Internal {
            detail: error.to_string(),
        })?;
        Ok(Some(GovernTask {
            id,
            version: held.document.version,
            answer: None,
            moves: self.moves(held.folded.inputs, &input, &taken),
            workflow: None,
        }))
    }

    /// Lets a workflow go after what it was told is durable. Sessions that were stopped with another one are woken.
    pub(super) fn unlock_workflow(
        &self,
        held: LockedWorkflow,
        written: &CommitContents,
        durable: bool,
    ) {
        let LockedWorkflow {
            known,
            mut slot,
            mut folded,
            document,
            told_at,
        } = held;
        if told_at.is_some() && !durable {
            // It is ahead of the log: it is read again.
            return;
        }
        if let Some(at) = told_at {
            folded.committed(written, document.key, at);
            let mut liveness = known.liveness();
            liveness.heard = at;
            liveness.deadline = folded.next_deadline(at);
            liveness.is_folded = true;
            drop(liveness);
            if let (Ok(workflow), State::Task(task)) = (folded.workflow(), &document.state) {
                self.wake_stopped(&task.workspace_id, workflow);
                self.note_places(document.key, task, &folded);
            }
        }
        *slot = Some(folded);
    }

    /// Has sessions that were stopped with another one end soon; whatever they are asked until then, they hear it first.
    pub(super) fn wake_stopped(&self, workspace: &WorkspaceId, workflow: &GovernedWorkflow) {
        let stopped = workflow.stopped_sessions();
        if stopped.is_empty() {
            return;
        }
        let ids = stopped.iter().map(|id| TaskId::governed(workspace, id));
        let ids: std::collections::BTreeSet<TaskId> = ids.collect();
        let now = self.shared.clock.now();
        for known in self.shared.governed.lock().values() {
            if ids.contains(&known.id) {
                known.liveness().deadline = Some(now);
            }
        }
    }

    /// Tells a workflow that was silent for long which of its sessions are not there any more.
    pub(super) async fn report_missing_sessions(
        &self,
        system: &Caller,
        document: &Document,
    ) -> Result<(), Refused> {
        let State::Task(task) = &document.state else {
            return Ok(());
        };
        if &*task.workflow != GOVERNED_WORKFLOW {
            return Ok(());
        }
        let open = self
            .read_folded(document, |folded| {
                folded.workflow().map(GovernedWorkflow::open_sessions)
            })
            .await??;
        let mut events = Vec::new();
        for session_id in open {
            let id = TaskId::governed(&task.workspace_id, &session_id);
            let found = self.shared_document(id.as_str()).await?;
            let is_there = found.is_some_and(|document| {
                matches!(&document.state, State::Task(task) if !task.status.is_terminal())
            });
            if !is_there {
                events.push(json!({"event": "ended", "session_id": session_id}));
            }
        }
        if !events.is_empty() {
            let operation = GovernedOperation::Hear {
                events,
                parties: Vec::new(),
            };
            self.take_input(system, document, operation, None, None, None)
                .await?;
        }
        Ok(())
    }

    /// Finds the Task of a workflow that the caller may see.
    async fn workflow_task(
        &self,
        caller: &Caller,
        id: &str,
        workspace: Option<&WorkspaceId>,
    ) -> Result<Arc<Document>, Refused> {
        for workspace in named_workspaces(caller, workspace) {
            let id = TaskId::governed_workflow(&workspace, id);
            let Some(document) = self.shared_document(id.as_str()).await? else {
                continue;
            };
            let seen = matches!(&document.state, State::Task(task)
                if is_governed(task) && caller.sees(Some(&task.workspace_id)));
            if seen {
                return Ok(document);
            }
        }
        let problem = Problem::new(404, "workflow_not_found", "no such workflow");
        Err(problem.into())
    }

    /// Finds the workflow in which an offer was made.
    pub(super) async fn workflow_of_handoff(
        &self,
        caller: &Caller,
        handoff_id: &str,
        workspace: Option<&WorkspaceId>,
    ) -> Result<Arc<Document>, Refused> {
        let parts = domain::handoff_parts(handoff_id);
        let (id, _) = parts.ok_or_else(no_handoff)?;
        let found = self.workflow_task(caller, id, workspace).await;
        found.map_err(|_| no_handoff())
    }

    /// Refuses to go on unless the caller may see a workflow, named by its id or by one of its handoffs.
    ///
    /// # Errors
    /// There is none of this name for the caller.
    pub async fn sees_workflow(
        &self,
        caller: &Caller,
        named: &str,
        is_handoff: bool,
        workspace: Option<&WorkspaceId>,
    ) -> Result<(), Refused> {
        let found = match is_handoff {
            true => self.workflow_of_handoff(caller, named, workspace).await,
            false => self.workflow_task(caller, named, workspace).await,
        };
        found.map(drop)
    }

    pub(super) fn handoff_operation(
        &self,
        handoff_id: String,
        action: HandoffAction,
    ) -> GovernedOperation {
        match action {
            HandoffAction::Accept { session_id } => {
                let made = || format!("gs_{}", self.shared.ids.body());
                GovernedOperation::Accept {
                    handoff_id,
                    session_id: session_id.unwrap_or_else(made),
                }
            }
            HandoffAction::Decline => GovernedOperation::CloseOffer {
                handoff_id,
                declined: true,
            },
            HandoffAction::Cancel => GovernedOperation::CloseOffer {
                handoff_id,
                declined: false,
            },
        }
    }

    /// Shows a workflow of governed sessions.
    ///
    /// # Errors
    /// There is none of this name for the caller.
    pub async fn governed_workflow(
        &self,
        caller: &Caller,
        id: &str,
        workspace: Option<&WorkspaceId>,
    ) -> Result<Value, Refused> {
        caller.require("tasks:read")?;
        let document = self.workflow_task(caller, id, workspace).await?;
        self.shown_workflow(&document).await
    }

    async fn shown_workflow(&self, document: &Document) -> Result<Value, Refused> {
        let State::Task(task) = &document.state else {
            return Err(no_workflow());
        };
        let now = self.shared.clock.now();
        let mut shown = self
            .read_folded(document, |folded| folded.workflow().map(|of| of.shown(now)))
            .await??;
        if let Value::Object(members) = &mut shown {
            let protocol = json!({
                "session_id": task.session_id,
                "task_id": &*document.id,
                "workspace_id": task.workspace_id,
            });
            members.insert("protocol".to_owned(), protocol);
        }
        Ok(shown)
    }
}

fn no_workflow() -> Refused {
    let message = "no such workflow: begin it with its file first";
    Problem::new(422, "workflow_not_found", message).into()
}

fn no_handoff() -> Refused {
    Problem::new(404, "unknown_handoff", "no such handoff").into()
}
