//! The turn: many commands, one commit.
//!
//! Takes what waits, reads the documents it names, decides each command on a scratch copy (later commands see what
//! earlier ones changed), seals and commits once, then answers all. Clients that come together share one sync;
//! a client alone pays one. A refusal writes nothing and leaves its neighbours alone; a conflict repeats the turn.
//! What cannot be read or sealed for one command is no reason to refuse the others: they are taken one by one then.
//!
//! Workers have a queue of their own: however many clients press, what was performed gets recorded.
//!
//! Invariant: no answer leaves before the commit that it depends on, refusals included, because a refusal may rest
//! on a neighbour's change.

mod close;
mod load;
mod plan;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use canon::Digest;
use domain::{Command, Order, Position, Refusal, ResourceRef, State, TaskId};
use tokio::sync::{mpsc, oneshot};

use crate::engine::{Engine, Shared};
use crate::port::{ClaimScope, CommitError, Committed, Fence, LeaseName};
use crate::refused::Refused;
pub(crate) use close::{CLOSED_WITH_MAX, SESSION_CLOSED};
pub(crate) use load::Folds;
pub(crate) use plan::CommitContents;
#[cfg(feature = "test-util")]
pub(crate) use plan::SealStep;
use plan::{Outcome, prepare};

/// A command on its way into a turn.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) command: Command,
    /// What is carried out just before it, in its commit or not at all.
    pub(crate) before: Option<Order>,
    pub(crate) claim: Option<ClaimRequest>,
    pub(crate) lease: Lease,
    pub(crate) reply: oneshot::Sender<Result<CommandOutcome, RefusedCommand>>,
}

/// A command that was refused, given back so that it can be repeated.
#[derive(Debug)]
pub(crate) struct RefusedCommand {
    pub(crate) refused: Refused,
    /// None when nobody knows what became of it: the engine is gone.
    pub(crate) command: Option<Command>,
}

/// Where commands wait for their turn.
#[derive(Debug)]
pub(crate) struct Queues {
    /// Those of clients.
    pub(crate) clients: mpsc::Receiver<Item>,
    /// Those of workers and of the engine itself.
    pub(crate) workers: mpsc::Receiver<Item>,
}

/// The idempotency key of a command, digested.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClaimRequest {
    pub(crate) scope: ClaimScope,
    pub(crate) body: Digest,
}

/// What a command has to do with its Task's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// Nothing: a client's command.
    None,
    /// A worker that begins: takes it.
    Take(LeaseName),
    /// A worker that goes on: must still hold it.
    Hold(Fence),
}

/// A carried out command.
#[derive(Debug, Clone)]
pub(crate) struct CommandOutcome {
    /// The resource that answers.
    pub(crate) subject: ResourceRef,
    /// Position of the event the answer is rebuilt from.
    pub(crate) answer: Position,
    /// False when everything was as ordered before, or the key had been used.
    pub(crate) changed: bool,
    /// The epoch of the lease taken.
    pub(crate) epoch: Option<u64>,
    /// What its commit wrote, its neighbours' part included: an answer need not read it back.
    pub(crate) written: CommitContents,
}

impl Engine {
    /// Puts a client's command into the next turn and waits until it is durable or refused.
    pub(crate) async fn order(
        &self,
        command: Command,
        claim: Option<ClaimRequest>,
        lease: Lease,
    ) -> Result<CommandOutcome, Refused> {
        self.order_both(None, command, claim, lease).await
    }

    /// The same, with an order that is carried out just before the command, in its commit or not at all.
    pub(crate) async fn order_both(
        &self,
        before: Option<Order>,
        command: Command,
        claim: Option<ClaimRequest>,
        lease: Lease,
    ) -> Result<CommandOutcome, Refused> {
        if let Order::CancelTask(cancel) = &command.order {
            self.know_log_of(&cancel.id).await?;
        }
        let (reply, answer) = oneshot::channel();
        let item = Item {
            command,
            before,
            claim,
            lease,
            reply,
        };
        match self.clients.try_send(item) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                return Err(Refused::Busy {
                    what: "pending_commands_max",
                });
            }
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(Refused::Draining),
        }
        match answer.await {
            Ok(done) => done.map_err(|not_done| not_done.refused),
            Err(_) => Err(Refused::Draining),
        }
    }

    /// Puts a command of the engine's own into the next turn, waiting for its place, and waits until it is durable or
    /// refused. Gives a refused command back.
    pub(crate) async fn order_own(
        &self,
        command: Command,
        lease: Lease,
    ) -> Result<CommandOutcome, Box<RefusedCommand>> {
        let (reply, answer) = oneshot::channel();
        let item = Item {
            command,
            before: None,
            claim: None,
            lease,
            reply,
        };
        let gone = |command| {
            Box::new(RefusedCommand {
                refused: Refused::Draining,
                command,
            })
        };
        if let Err(mpsc::error::SendError(item)) = self.workers.send(item).await {
            return Err(gone(Some(item.command)));
        }
        match answer.await {
            Ok(done) => done.map_err(Box::new),
            Err(_) => Err(gone(None)),
        }
    }

    /// Reads the log of a Task that somebody wants to cancel, unless it has ended.
    async fn know_log_of(&self, id: &TaskId) -> Result<(), Refused> {
        match self.document(id.as_str()).await? {
            Some(document) => match &document.state {
                State::Task(task) if !task.status.is_terminal() => {
                    self.load_task_log(document.key).await
                }
                _ => Ok(()),
            },
            None => Ok(()),
        }
    }
}

/// How often a turn is repeated because somebody else committed first.
const CONFLICTS_MAX: u32 = 16;

/// Takes turns until every sender is gone.
pub(crate) async fn run(shared: Arc<Shared>, mut queues: Queues) {
    let most = shared.limits.batch_len_max.max(1);
    let mut batch = Vec::new();
    loop {
        let first = tokio::select! {
            biased;
            first = queues.workers.recv() => first,
            first = queues.clients.recv() => first,
        };
        // Items are large: a batch that grows would copy them again and again.
        let waiting = 1 + queues.workers.len() + queues.clients.len();
        batch.reserve(waiting.min(most));
        batch.extend(first);
        // Half of a turn at most for workers, when clients wait too.
        fill(&mut batch, &mut queues.workers, most.div_ceil(2));
        fill(&mut batch, &mut queues.clients, most);
        fill(&mut batch, &mut queues.workers, most);
        if batch.is_empty() {
            // The engine is gone, and with it both senders.
            return;
        }
        take(&shared, std::mem::take(&mut batch)).await;
    }
}

fn fill(batch: &mut Vec<Item>, queue: &mut mpsc::Receiver<Item>, most: usize) {
    while batch.len() < most {
        let Ok(item) = queue.try_recv() else { return };
        batch.push(item);
    }
}

/// Takes the commands of a turn that failed as a whole one by one, so that only those fail whose fault it is.
async fn take_apart(shared: &Arc<Shared>, batch: Vec<Item>, refused: &Refused) {
    if batch.len() <= 1 {
        return refuse_all(shared, batch, refused);
    }
    for item in batch {
        Box::pin(take(shared, vec![item])).await;
    }
}

async fn take(shared: &Arc<Shared>, mut batch: Vec<Item>) {
    let began = shared.clock.now();
    let mut conflicts = 0;
    loop {
        let turn = match prepare(shared, &batch).await {
            Ok(turn) => turn,
            Err(refused) => return take_apart(shared, batch, &refused).await,
        };
        let written = turn.written.clone();
        let committed = match turn.commit {
            Some(commit) => shared.store.commit(commit).await,
            None => Ok(Committed {
                first: Position::START,
                leases: Vec::new(),
            }),
        };
        drop(turn.rooms);
        match committed {
            Ok(committed) => {
                let changed = written.documents();
                shared.cache.after_commit(&written);
                shared.folds.after_commit(&written);
                shared.metrics.turns.fetch_add(1, Ordering::Relaxed);
                shared
                    .metrics
                    .commits
                    .fetch_add(u64::from(turn.is_written), Ordering::Relaxed);
                shared
                    .metrics
                    .events
                    .fetch_add(turn.event_count, Ordering::Relaxed);
                let micros = shared
                    .clock
                    .now()
                    .as_micros()
                    .saturating_sub(began.as_micros());
                let took = Duration::from_micros(u64::try_from(micros).unwrap_or(0));
                shared.metrics.turn_seconds.observe(took);
                // Workers learn of the change before clients do, so that a client that acts on the answer finds
                // its Task queued.
                shared.work.after_commit(changed);
                shared.governed.after_commit(changed, shared.clock.now());
                shared.forget_secrets_of_ended(changed);
                shared.waiters.after_commit(&written);
                return answer_all(shared, batch, turn.outcomes, &committed, &written);
            }
            Err(CommitError::Conflict) => {
                shared.metrics.conflicts.fetch_add(1, Ordering::Relaxed);
                shared.cache.clear();
                conflicts += 1;
                if conflicts == CONFLICTS_MAX {
                    let busy = Refused::Busy { what: "conflicts" };
                    return take_apart(shared, batch, &busy).await;
                }
                if conflicts > 1 {
                    let pause = Duration::from_millis(1 << conflicts.min(6));
                    shared.clock.sleep(pause).await;
                }
            }
            Err(CommitError::Fenced(lease)) => {
                let (fenced, rest): (Vec<_>, Vec<_>) =
                    batch.into_iter().partition(|item| match item.lease {
                        Lease::None => false,
                        Lease::Take(name) => name == lease,
                        Lease::Hold(fence) => fence.lease == lease,
                    });
                let lost = Refused::Domain(Refusal::Conflict {
                    reason: "lease_lost",
                    message: "the task is held by another worker".to_owned(),
                    status: None,
                });
                let stuck = fenced.is_empty();
                refuse_all(shared, fenced, &lost);
                if stuck {
                    let detail = format!("lease {} is fenced, and no command names it", lease.0);
                    return refuse_all(shared, rest, &Refused::Internal { detail });
                }
                if rest.is_empty() {
                    return;
                }
                batch = rest;
            }
            Err(CommitError::Impossible(error)) => {
                shared.cache.clear();
                let detail = error.to_string();
                return take_apart(shared, batch, &Refused::Internal { detail }).await;
            }
            Err(CommitError::Fault(fault)) => {
                shared.cache.clear();
                return refuse_all(shared, batch, &Refused::from(fault));
            }
        }
    }
}

fn refuse_all(shared: &Shared, batch: Vec<Item>, refused: &Refused) {
    if let Refused::Internal { detail } | Refused::Store { detail } = refused {
        tracing::error!(%detail, commands = batch.len(), "turn failed");
    }
    for item in batch {
        shared.metrics.commands.fetch_add(1, Ordering::Relaxed);
        shared.metrics.refusals.fetch_add(1, Ordering::Relaxed);
        // A caller that has left needs no answer.
        let _ = item.reply.send(Err(RefusedCommand {
            refused: refused.clone(),
            command: Some(item.command),
        }));
    }
}

fn answer_all(
    shared: &Shared,
    batch: Vec<Item>,
    outcomes: Vec<Outcome>,
    committed: &Committed,
    written: &CommitContents,
) {
    for (item, outcome) in batch.into_iter().zip(outcomes) {
        shared.metrics.commands.fetch_add(1, Ordering::Relaxed);
        let answer = match outcome {
            Outcome::Refused(refused) => {
                shared.metrics.refusals.fetch_add(1, Ordering::Relaxed);
                Err(RefusedCommand {
                    refused,
                    command: Some(item.command),
                })
            }
            Outcome::Done {
                subject,
                answer,
                changed,
            } => {
                let epoch = match item.lease {
                    Lease::Take(name) => committed
                        .leases
                        .iter()
                        .find(|(lease, _)| *lease == name)
                        .map(|(_, epoch)| *epoch),
                    Lease::None | Lease::Hold(_) => None,
                };
                Ok(CommandOutcome {
                    subject,
                    answer: answer.resolve(committed.first),
                    changed,
                    epoch,
                    written: written.clone(),
                })
            }
        };
        let _ = item.reply.send(answer);
    }
}
