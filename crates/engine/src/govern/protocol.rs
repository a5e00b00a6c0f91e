//! Requests of the protocol that concern governed sessions: they go the way of every input.

use std::sync::Arc;

use canon::Value;
use domain::{Document, GovernedOperation, PermissionId, State};

use super::is_governed;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::refused::Refused;

impl Engine {
    /// Returns the request about a governed session that a request of the protocol is: its approvals and its cancellation
    /// go the same way, whichever way they come in.
    pub(crate) async fn as_governed(
        &self,
        caller: &Caller,
        request: &domain::Request,
    ) -> Result<Option<(Arc<Document>, GovernedOperation)>, Refused> {
        use domain::Request;
        let task_id = match request {
            Request::CancelTask { id, .. } => id.clone(),
            Request::RespondPermission { id, .. } => {
                self.visible_permission(caller, id).await?.task_id
            }
            _ => return Ok(None),
        };
        let Some(document) = self.shared_document(task_id.as_str()).await? else {
            return Ok(None);
        };
        let is_open = matches!(&document.state, State::Task(task)
            if is_governed(task) && !task.status.is_terminal());
        if !is_open {
            return Ok(None);
        }
        let operation = match request {
            Request::CancelTask { reason, .. } => GovernedOperation::Kill {
                reason: Some(reason.clone().unwrap_or_else(|| "canceled".to_owned())),
            },
            Request::RespondPermission {
                id,
                approved,
                remarks,
                ..
            } => {
                let Some(proposal_id) = self.proposal_of(&document, id).await? else {
                    return Ok(None);
                };
                let text = |name: &str| remarks.get(name).and_then(Value::as_str);
                GovernedOperation::Decide(domain::Decide {
                    proposal_id,
                    approve: *approved == Some(true),
                    decided_by: caller.actor.clone(),
                    reason: text("reason").or(text("note")).map(str::to_owned),
                })
            }
            _ => return Ok(None),
        };
        Ok(Some((document, operation)))
    }

    /// Finds the proposal that waits for a permission request.
    async fn proposal_of(
        &self,
        document: &Document,
        request: &PermissionId,
    ) -> Result<Option<String>, Refused> {
        self.read_session(document, |session| session.proposal_of(request))
            .await
    }
}
