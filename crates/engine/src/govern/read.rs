//! What can be read of governed sessions.

use std::time::Duration;

use canon::Value;
use domain::{
    Document, GovernedFiles, Position, Problem, ResourceKind, State, Timestamp, WorkspaceId,
    payload,
};
use runs::workflow::governed::GovernedSession;
use serde_json::json;

use super::fold::GovernedFold;
use super::no_session;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::read::{Filters, ListRequest};
use crate::refused::Refused;

/// A request for approval that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingApproval {
    /// Its id.
    pub id: String,
    /// The event that asked, as it is stored.
    pub event: Value,
    /// The Task that waits: its id, its Session, its Workspace and its status.
    pub task: Value,
}

impl Engine {
    /// Shows a governed session.
    ///
    /// # Errors
    /// There is none of this name for the caller.
    pub async fn governed(
        &self,
        caller: &Caller,
        session: &str,
        workspace: Option<&WorkspaceId>,
        with_pending: bool,
    ) -> Result<Value, Refused> {
        caller.require("tasks:read")?;
        let document = self.governed_task(caller, session, workspace).await?;
        let State::Task(task) = &document.state else {
            return Err(no_session());
        };
        let (session_id, status) = (task.session_id.clone(), task.status);
        let mut shown = self
            .read_session(&document, |session| {
                let mut shown = session.shown();
                if let (Value::Object(members), true) = (&mut shown, with_pending) {
                    members.insert("pending".to_owned(), session.pending());
                }
                shown
            })
            .await?;
        if let Value::Object(members) = &mut shown {
            let protocol =
                json!({"session_id": session_id, "task_id": &*document.id, "status": status});
            members.insert("protocol".to_owned(), protocol);
        }
        Ok(shown)
    }

    /// Shows a proposal; while people are asked, waits for their answer up to a time.
    ///
    /// # Errors
    /// There is no such session or proposal for the caller.
    pub async fn governed_proposal(
        &self,
        caller: &Caller,
        (session, workspace): (&str, Option<&WorkspaceId>),
        proposal: &str,
        wait: Duration,
    ) -> Result<Value, Refused> {
        caller.require("tasks:read")?;
        let document = self.governed_task(caller, session, workspace).await?;
        let mut watch = self.watch_task(document.key);
        let mut late = self.shared.clock.sleep(wait);
        let mut is_late = wait.is_zero();
        loop {
            let document = self.shared_document(&document.id).await?;
            let document = document.ok_or_else(no_session)?;
            let now = self.shared.clock.now();
            let found = self
                .read_session(&document, |session| session.proposal(proposal, now))
                .await?;
            let Some((shown, waits)) = found else {
                let problem = Problem::new(404, "unknown_proposal", "no such proposal");
                return Err(Refused::Governed(Box::new(problem)));
            };
            if !waits || is_late || self.is_draining() {
                return Ok(shown);
            }
            tokio::select! {
                biased;
                () = &mut late => is_late = true,
                () = watch.changed() => {}
            }
        }
    }

    /// Lists the approvals of governed sessions that wait, oldest first, or those that somebody decided on, newest first.
    ///
    /// # Errors
    /// As [`Engine::list`].
    pub async fn governed_approvals(
        &self,
        caller: &Caller,
        after: Position,
        limit: usize,
        decided: bool,
    ) -> Result<(Vec<Value>, Option<Position>), Refused> {
        let request = permissions(after, limit);
        let now = self.shared.clock.now();
        let order = match decided {
            false => crate::read::ListOrder::OldestFirst,
            true => crate::read::ListOrder::NewestFirst,
        };
        let keep = |_: &Document| crate::read::Selection::Keep;
        let show = |view: &domain::View| match decided {
            false => shown_approval(view, now),
            true => shown_decision(view),
        };
        let page = self
            .list_where(caller, request, order, !decided, keep, |view| {
                show(view).is_some()
            })
            .await?;
        let shown = page.views.iter().filter_map(show);
        Ok((shown.collect(), page.next))
    }

    /// Finds the contracts that the operator configured for an agent: the set whose session file names it.
    ///
    /// # Errors
    /// There is none, there are several, or the set is not what it was when the server started.
    pub async fn governed_plan(&self, caller: &Caller, agent: &str) -> Result<Value, Refused> {
        caller.require("tasks:write")?;
        let mut found = None;
        for texts in self.shared.contract_sets() {
            let files = GovernedFiles {
                files: texts.files.clone(),
                session: texts.session.clone(),
            };
            let compiled = self.compiled(&caller.actor, &files).await;
            let digest = match &compiled {
                Ok(contracts) if contracts.agent() != Some(agent) => continue,
                Ok(contracts) => Some(contracts.digest()),
                // Whose it is cannot be told: it may be this agent's.
                Err(_) => None,
            };
            if digest != Some(texts.sha256) {
                let message = "the configured contracts cannot be used as they were approved";
                let problem = Problem::new(404, "APPROVED_ARTIFACT_INVALID", message);
                return Err(problem
                    .with("governance_attachment", "artifact_invalid")
                    .into());
            }
            if found.replace((texts, files)).is_some() {
                let message = "several configured sets of contracts name this agent";
                return Err(Problem::new(404, "several_plans", message).into());
            }
        }
        let Some((texts, files)) = found else {
            let message = "no configured set of contracts names this agent";
            let problem = Problem::new(404, "no_plan", message);
            return Err(problem.with("governance_attachment", "no_plan").into());
        };
        Ok(json!({
            "governance_attachment": "attached",
            "name": texts.name,
            "agent": agent,
            "compiled_digest": texts.sha256,
            "contracts": {"contracts": files.files, "session": files.session},
        }))
    }

    /// Lists requests for approval that wait, of governed sessions and of every other Task, oldest first.
    ///
    /// # Errors
    /// The store fails.
    pub async fn waiting_approvals(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<(Vec<WaitingApproval>, Option<Position>), Refused> {
        let request = permissions(after, limit);
        let order = crate::read::ListOrder::OldestFirst;
        let waits = |document: &Document| match &document.state {
            State::Permission(request)
                if request.answer == domain::Answer::Pending
                    && request.ask == domain::Ask::Approval =>
            {
                crate::read::Selection::Keep
            }
            _ => crate::read::Selection::Skip,
        };
        let page = self
            .list_where(&Caller::system(), request, order, true, waits, |_| true)
            .await?;
        let mut waiting = Vec::new();
        for view in &page.views {
            let State::Permission(request) = &view.document.state else {
                continue;
            };
            let stored = self.shared.store.event_at(request.asked).await?;
            let event = stored.and_then(|stored| serde_json::from_slice(&stored.bytes).ok());
            let task = self.shared_document(request.task_id.as_str()).await?;
            let status = task.and_then(|document| match &document.state {
                State::Task(task) => Some(task.status),
                _ => None,
            });
            waiting.push(WaitingApproval {
                id: view.document.id.to_string(),
                event: event.unwrap_or_default(),
                task: json!({
                    "id": request.task_id,
                    "session_id": request.session_id,
                    "workspace_id": request.workspace_id,
                    "status": status,
                }),
            });
        }
        Ok((waiting, page.next))
    }

    pub(super) async fn read_session<T>(
        &self,
        document: &Document,
        read: impl FnOnce(&GovernedSession) -> T,
    ) -> Result<T, Refused> {
        self.read_folded(document, |folded| folded.session().map(read))
            .await?
    }

    pub(super) async fn read_folded<T>(
        &self,
        document: &Document,
        read: impl FnOnce(&GovernedFold) -> T,
    ) -> Result<T, Refused> {
        let known = self
            .shared
            .governed
            .find(document, self.shared.clock.now())?;
        let mut slot = self.hold_known(&known).await?;
        // Whoever had it before may have written meanwhile.
        let current = self.shared_document(&document.id).await?;
        let current = current.ok_or_else(no_session)?;
        let State::Task(task) = &current.state else {
            return Err(no_session());
        };
        let folded = self.folded(slot.take(), &current, task).await?;
        let found = read(&folded);
        *slot = Some(folded);
        Ok(found)
    }
}

/// All permission requests from a place on.
fn permissions(after: Position, limit: usize) -> ListRequest {
    ListRequest {
        kind: ResourceKind::Permission,
        filters: Filters::default(),
        after,
        limit,
    }
}

/// Shows what somebody decided about a proposal, and with whose key; none when it is something else, or nobody did.
fn shown_decision(view: &domain::View) -> Option<Value> {
    let State::Permission(request) = &view.document.state else {
        return None;
    };
    let (status, at) = match request.answer {
        domain::Answer::Pending | domain::Answer::Withdrawn { .. } => return None,
        domain::Answer::Approved { at, .. } => ("approved", at),
        domain::Answer::Denied { at, .. } => ("denied", at),
    };
    let governed = asked_in(view, request)?;
    let remarks = payload::Answered::of(view.payload(at)?).remarks()?;
    let mut shown = asked_about(view, request, governed, status);
    if let Value::Object(members) = &mut shown {
        for name in ["decided_by", "actor", "key_id", "reason"] {
            let said = remarks.get(name).cloned().unwrap_or_default();
            members.insert(name.to_owned(), said);
        }
    }
    Some(shown)
}

/// Shows a permission request as the approval of a proposal; none when it is something else, or its time is over.
fn shown_approval(view: &domain::View, now: Timestamp) -> Option<Value> {
    let State::Permission(request) = &view.document.state else {
        return None;
    };
    if request.answer != domain::Answer::Pending {
        return None;
    }
    let governed = asked_in(view, request)?;
    let expires_at = governed.get("expires_at")?.as_str()?;
    if Timestamp::parse(expires_at).is_ok_and(|expires| now >= expires) {
        return None;
    }
    Some(asked_about(view, request, governed, "pending"))
}

/// Returns what a governed session asks; none of what somebody else does.
fn asked_in<'v>(view: &'v domain::View, request: &domain::Permission) -> Option<&'v Value> {
    let asked = payload::Asked::of(view.payload(request.asked)?);
    asked.request()?.get("governed")
}

fn asked_about(
    view: &domain::View,
    request: &domain::Permission,
    governed: &Value,
    status: &str,
) -> Value {
    json!({
        "id": &*view.document.id,
        "session_id": governed.get("session_id"),
        "proposal_id": governed.get("proposal_id"),
        "workspace_id": request.workspace_id,
        "task_id": request.task_id,
        "status": status,
        "expires_at": governed.get("expires_at"),
        "approval_requests": governed.get("approval_requests"),
    })
}
