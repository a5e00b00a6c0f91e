//! Closing a Session: what has to be done before the turn that closes it.

use domain::{
    CancelTask, Command, Document, GovernedOperation, Order, Position, Refusal, ResourceKind,
    SessionId, State, TaskId,
};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::{ListQuery, Scope};
use crate::refused::Refused;
use crate::turn::{CLOSED_WITH_MAX, ClaimRequest, CommandOutcome, Lease, SESSION_CLOSED};

impl Engine {
    /// Ends open Tasks of a Session until few enough are left for one commit, and reads the logs of those: the turn that
    /// closes the Session ends them.
    pub(super) async fn end_surplus(
        &self,
        caller: &Caller,
        session: &SessionId,
    ) -> Result<(), Refused> {
        let (document, _) = self.visible_session(caller, session).await?;
        let mut after = Position::START;
        let mut kept = 0;
        loop {
            let open = self
                .shared
                .store
                .list(ListQuery {
                    kind: ResourceKind::Task,
                    scope: Scope::Session(document.key),
                    open_only: true,
                    after,
                    limit: 200,
                })
                .await?;
            let Some(last) = open.last() else {
                return Ok(());
            };
            after = last.key;
            for task in open.iter().filter(|task| ends_with_session(task)) {
                if kept < CLOSED_WITH_MAX {
                    kept += 1;
                    self.load_task_log(task.key).await?;
                } else if let Ok(id) = TaskId::parse(&task.id) {
                    self.end_closed(caller, id).await?;
                }
            }
        }
    }

    async fn end_closed(&self, caller: &Caller, id: TaskId) -> Result<(), Refused> {
        let command = Command {
            actor: caller.actor.clone(),
            idempotency_key: None,
            order: self.canceling(id),
        };
        match self.order(command, None, Lease::None).await {
            // Or it ended by itself.
            Ok(_) | Err(Refused::Domain(Refusal::Conflict { .. })) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Closes the Session of a governed Task that is open: its program is stopped in the same commit. None when the Session
    /// has no such Task, or has none any more.
    pub(super) async fn close_governed(
        &self,
        caller: &Caller,
        session: &SessionId,
        claim: Option<ClaimRequest>,
        key: Option<String>,
    ) -> Result<Option<CommandOutcome>, Refused> {
        let document = match self.governed_task(caller, session.as_str(), None).await {
            Ok(document) => document,
            Err(Refused::Domain(Refusal::NotFound { .. })) => return Ok(None),
            Err(other) => return Err(other),
        };
        let is_open = matches!(&document.state, State::Task(task) if !task.status.is_terminal());
        if !is_open {
            return Ok(None);
        }
        self.end_surplus(caller, session).await?;
        let kill = GovernedOperation::Kill {
            reason: Some(SESSION_CLOSED.to_owned()),
        };
        let taken = self
            .take_input(caller, &document, kill, claim, key.clone(), Some(session))
            .await;
        match taken {
            Ok(governed) => Ok(governed.done()),
            // One that cannot be read is not gone on with, and can always be stopped: as any Task is.
            Err(refused) if refused.is_unreadable() => {
                let fault = refused.for_the_log();
                tracing::warn!(task.id = %document.id, %fault, "a governed session is closed unread");
                let id = TaskId::parse(&document.id).map_err(|_| refused)?;
                let before = self.canceling(id);
                let command = Command {
                    actor: caller.actor.clone(),
                    idempotency_key: key,
                    order: Order::CloseSession(session.clone()),
                };
                let closed = self.order_both(Some(before), command, claim, Lease::None);
                closed.await.map(Some)
            }
            Err(other) => Err(other),
        }
    }

    /// Returns the order that ends a Task because its Session is closed.
    fn canceling(&self, id: TaskId) -> Order {
        Order::CancelTask(CancelTask {
            id,
            ids: self.end_ids(),
            receipt: None,
            reason: Some(SESSION_CLOSED.to_owned()),
        })
    }
}

/// True for a Task that is canceled when its Session is closed. Replays go on, because they add nothing to the
/// conversation; a governed session is stopped in its own way.
fn ends_with_session(document: &Document) -> bool {
    matches!(&document.state, State::Task(task)
        if task.replay.is_none() && !crate::govern::is_governed(task))
}
