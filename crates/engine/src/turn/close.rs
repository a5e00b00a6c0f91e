//! What closing a Session ends: its open Tasks, in the closing commit, so that no moment has a closed Session with a Task
//! that somebody still works on or waits for.

use std::collections::BTreeMap;

use domain::{
    CancelTask, Command, Document, Documents as _, EndIds, Order, OutcomeId, Position, ReceiptId,
    Refusal, ResourceKind, Scratch, SessionId, State, Task, TaskId,
};

use super::Item;
use super::load::load_more;
use crate::engine::Shared;
use crate::govern::is_governed;
use crate::port::{ListQuery, Scope};
use crate::refused::Refused;

/// The reason that canceled Tasks of a closed Session give.
pub(crate) const SESSION_CLOSED: &str = "session_closed";

/// Tasks that are ended in the commit that closes their Session. Those beyond are ended before.
pub(crate) const CLOSED_WITH_MAX: usize = 128;

/// The open Tasks of the Sessions that a turn closes, as they were before it.
#[derive(Debug, Default)]
pub(super) struct Closing {
    sessions: BTreeMap<Box<str>, Vec<Box<str>>>,
}

impl Closing {
    /// Finds them and loads their documents.
    pub(super) async fn load(
        shared: &Shared,
        base: &mut Scratch,
        batch: &[Item],
    ) -> Result<Self, Refused> {
        let mut closing = Self::default();
        for session in batch.iter().filter_map(closes) {
            let Some(document) = base.document(session.as_str()) else {
                continue;
            };
            if closing.sessions.contains_key(session.as_str()) {
                continue;
            }
            let open = open_tasks(shared, document.key).await?;
            load_more(shared, base, open.clone()).await?;
            closing.sessions.insert(session.as_str().into(), open);
        }
        Ok(closing)
    }

    pub(super) fn tasks(&self) -> impl Iterator<Item = &str> {
        self.sessions.values().flatten().map(|id| &**id)
    }

    /// Returns the commands that go with an item: what ends the open Tasks of a Session that it closes, those that were
    /// submitted in this very turn included.
    ///
    /// # Errors
    /// There are more than one commit takes, or one that must be ended in another way: whoever closes ends them first.
    pub(super) fn ends(
        &self,
        shared: &Shared,
        scratch: &Scratch,
        item: &Item,
    ) -> Result<Vec<Command>, Refused> {
        let with = |order: Order| Command {
            actor: item.command.actor.clone(),
            idempotency_key: None,
            order,
        };
        let mut commands = Vec::new();
        if let Some(session) = closes(item) {
            let known = self.sessions.get(session.as_str());
            if known.is_some_and(|tasks| tasks.len() > CLOSED_WITH_MAX) {
                return Err(Refused::Domain(Refusal::Stale));
            }
            for (document, task) in open_in(scratch, session) {
                if is_governed(task) {
                    let ended = match &item.before {
                        Some(Order::GovernTask(order)) => Some(&order.id),
                        Some(Order::CancelTask(order)) => Some(&order.id),
                        _ => None,
                    };
                    if ended.is_some_and(|id| *id.as_str() == *document.id) {
                        continue;
                    }
                    return Err(Refused::Domain(Refusal::Stale));
                }
                let Ok(id) = TaskId::parse(&document.id) else {
                    continue;
                };
                commands.push(with(Order::CancelTask(CancelTask {
                    id,
                    ids: EndIds {
                        outcome_id: OutcomeId::from_body(&shared.ids.body()),
                        receipt_id: ReceiptId::from_body(&shared.ids.body()),
                    },
                    receipt: None,
                    reason: Some(SESSION_CLOSED.to_owned()),
                })));
            }
        }
        commands.extend(item.before.clone().map(with));
        Ok(commands)
    }
}

fn closes(item: &Item) -> Option<&SessionId> {
    match &item.command.order {
        Order::CloseSession(id) => Some(id),
        _ => None,
    }
}

/// Returns the Tasks that a Session's end would end, as things stand in a turn.
fn open_in<'s>(
    scratch: &'s Scratch,
    session: &'s SessionId,
) -> impl Iterator<Item = (&'s Document, &'s Task)> {
    scratch
        .iter()
        .filter_map(move |document| match &document.state {
            State::Task(task)
                if task.session_id == *session
                    && task.replay.is_none()
                    && !task.status.is_terminal() =>
            {
                Some((document, task))
            }
            _ => None,
        })
}

/// Reads the ids of the open Tasks of a Session, replays excepted; one more than a commit takes at most.
async fn open_tasks(shared: &Shared, session: Position) -> Result<Vec<Box<str>>, Refused> {
    let mut ids = Vec::new();
    let mut after = Position::START;
    loop {
        let query = ListQuery {
            kind: ResourceKind::Task,
            scope: Scope::Session(session),
            open_only: true,
            after,
            limit: 200,
        };
        let page = shared.store.list(query).await?;
        let Some(last) = page.last() else {
            return Ok(ids);
        };
        after = last.key;
        for document in page {
            if ids.len() > CLOSED_WITH_MAX {
                return Ok(ids);
            }
            if matches!(&document.state, State::Task(task) if task.replay.is_none()) {
                ids.push(document.id);
            }
        }
    }
}
