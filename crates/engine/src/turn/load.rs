//! What a turn reads before it decides: the documents that commands name, claims, and what Tasks have done that may end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use canon::Digest;
use domain::{
    ChainId, Document, Documents as _, Move, Order, Position, Scratch, State, Task, TrustChainId,
};

use super::Item;
use super::close::Closing;
use super::plan::{CommitContents, TurnPosition};
use crate::engine::{Engine, Shared};
use crate::port::ClaimScope;
use crate::read::next_page;
use crate::receipt::TaskFold;
use crate::refused::Refused;

/// Returns the Task that an order may end.
fn may_end(order: &Order) -> Option<&str> {
    match order {
        Order::CancelTask(order) => Some(order.id.as_str()).filter(|_| order.receipt.is_none()),
        Order::AdvanceTask(order) => ends(&order.moves).then_some(order.id.as_str()),
        Order::GovernTask(order) => ends(&order.moves).then_some(order.id.as_str()),
        _ => None,
    }
}

fn ends(moves: &[Move]) -> bool {
    let ends = |step: &Move| {
        matches!(
            step,
            Move::Complete { .. } | Move::Fail { .. } | Move::Cancel { .. }
        )
    };
    moves.iter().any(ends)
}

pub(super) async fn load_claims(
    shared: &Shared,
    batch: &[Item],
) -> Result<BTreeMap<ClaimScope, (Digest, TurnPosition)>, Refused> {
    let scopes: Vec<ClaimScope> = batch
        .iter()
        .filter_map(|item| Some(item.claim?.scope))
        .collect();
    if scopes.is_empty() {
        return Ok(BTreeMap::new());
    }
    let claims = shared.store.claims(scopes).await?.into_iter().flatten();
    Ok(claims
        .map(|claim| (claim.scope, (claim.body, TurnPosition::Known(claim.answer))))
        .collect())
}

/// Loads the documents that commands name, and those that these belong to.
pub(super) async fn load(shared: &Shared, batch: &[Item]) -> Result<Scratch, Refused> {
    let mut scratch = Scratch::default();
    let wanted = batch.iter().flat_map(orders).flat_map(named).collect();
    load_more(shared, &mut scratch, wanted).await?;
    Ok(scratch)
}

/// Returns the orders of an item.
pub(super) fn orders(item: &Item) -> impl Iterator<Item = &Order> {
    item.before.iter().chain([&item.command.order])
}

/// Loads further documents, and those that these belong to.
pub(super) async fn load_more(
    shared: &Shared,
    scratch: &mut Scratch,
    mut wanted: Vec<Box<str>>,
) -> Result<(), Refused> {
    let mut absent: BTreeSet<Box<str>> = BTreeSet::new();
    let head = shared.store.head();
    while !wanted.is_empty() {
        let mut found = Vec::new();
        let mut unknown = Vec::new();
        for id in wanted {
            if scratch.document(&id).is_some() || absent.contains(&id) {
                continue;
            }
            match shared.cache.looked_for(&id, head) {
                Some(Some(document)) => {
                    scratch.insert_shared(Arc::clone(&document));
                    found.push(document);
                }
                Some(None) => drop(absent.insert(id)),
                None => unknown.push(id),
            }
        }
        if !unknown.is_empty() {
            unknown.sort_unstable();
            unknown.dedup();
            let read = shared.store.documents(unknown.clone()).await?;
            let read: Vec<Option<Arc<Document>>> =
                read.into_iter().map(|known| known.map(Arc::new)).collect();
            for (id, document) in unknown.iter().zip(&read) {
                match document {
                    Some(document) => {
                        scratch.insert_shared(Arc::clone(document));
                        found.push(Arc::clone(document));
                    }
                    None => drop(absent.insert(id.clone())),
                }
            }
            shared.cache.insert(unknown, &read);
        }
        let is_new = |id: &str| scratch.document(id).is_none() && !absent.contains(id);
        wanted = found
            .iter()
            .flat_map(|document| belongs_to(document, is_new))
            .collect();
    }
    Ok(())
}

/// Returns the ids that deciding an order looks at, new resources excepted.
fn named(order: &Order) -> Vec<Box<str>> {
    fn some<'a>(ids: impl IntoIterator<Item = Option<&'a str>>) -> Vec<Box<str>> {
        ids.into_iter().flatten().map(Into::into).collect()
    }
    match order {
        // The local Workspace has a fixed id: creating it again must be seen.
        Order::CreateWorkspace(order) => some([Some(order.id.as_str())]),
        Order::UpdateWorkspace(order) => some([Some(order.id.as_str())]),
        Order::CreateSession(order) => some([Some(order.workspace_id.as_str())]),
        Order::UpdateSession(order) => some([Some(order.id.as_str())]),
        Order::CloseSession(id) => some([Some(id.as_str())]),
        Order::ForkSession(order) => some([
            Some(order.parent.as_str()),
            order.branch_id.as_ref().map(|id| id.as_str()),
        ]),
        Order::RecordSessionReplay(order) => some([Some(order.id.as_str())]),
        Order::TruncateSession(order) => some([Some(order.id.as_str())]),
        Order::AppendMessage(order) => some([Some(order.session_id.as_str())]),
        Order::SubmitTask(order) => some([
            Some(order.session_id.as_str()),
            order.branch_id.as_ref().map(|id| id.as_str()),
            order.parent_task_id.as_ref().map(|id| id.as_str()),
        ]),
        Order::SubmitReplay(order) => some([
            Some(order.source.as_str()),
            Some(order.session_id.as_str()),
            // Its id follows from the source's: somebody may have been faster.
            Some(order.id.as_str()),
        ]),
        Order::ImportTask(order) => some([
            Some(order.id.as_str()),
            Some(order.session_id.as_str()),
            Some(order.workspace_id.as_str()),
            Some(order.receipt.id.as_str()),
        ]),
        Order::CancelTask(order) => some([Some(order.id.as_str())]),
        Order::InterruptTask(order) => some([Some(order.id.as_str())]),
        Order::AnswerRequest(order) => some([Some(order.id.as_str())]),
        Order::CreateBranch(order) => some([
            Some(order.new.session_id.as_str()),
            order.new.parent_branch_id.as_ref().map(|id| id.as_str()),
            order.new.task_id.as_ref().map(|id| id.as_str()),
        ]),
        Order::RegisterArtifact(order) => some([
            Some(order.workspace_id.as_str()),
            order.new.session_id.as_ref().map(|id| id.as_str()),
            order.new.task_id.as_ref().map(|id| id.as_str()),
        ]),
        Order::AttachContent(order) => some([Some(order.id.as_str())]),
        Order::CreateVault(order) => some([
            Some(order.id.as_str()),
            order.new.workspace_id.as_ref().map(|id| id.as_str()),
        ]),
        Order::AdvanceTask(order) => {
            let numbers = order.moves.iter().filter_map(|step| match step {
                Move::Checkpoint { number, .. } => Some(*number),
                _ => None,
            });
            // A checkpoint follows the one before it.
            let checkpoints = numbers.flat_map(|number| [number.saturating_sub(1), number]);
            let checkpoints = checkpoints.filter(|number| *number > 0);
            let mut ids = some([Some(order.id.as_str())]);
            ids.extend(checkpoints.map(|number| order.id.checkpoint(number).as_str().into()));
            ids
        }
        Order::RecordVerification(order) => some([Some(order.id.as_str())]),
        Order::SealHead(_) => Vec::new(),
        Order::CosignHead(order) => some([Some(order.id.as_str())]),
        // Its id follows from its name and version: defining it again must be seen.
        Order::CreatePersona(order) => some([Some(order.id().as_str())]),
        Order::UpdatePersona(order) => some([Some(order.id.as_str())]),
        // Their ids follow from the session's own: somebody may have been faster.
        Order::OpenGoverned(order) => some([
            Some(order.session.workspace_id.as_str()),
            Some(order.session.id.as_str()),
            Some(order.task.id.as_str()),
            order.workflow.as_ref().map(|told| told.id.as_str()),
        ]),
        Order::GovernTask(order) => {
            let requests = order.moves.iter().filter_map(|step| match step {
                Move::Withdraw { request, .. } => Some(request.as_str()),
                _ => None,
            });
            let answered = order.answer.as_ref().map(|answer| answer.request.as_str());
            let told = order.workflow.as_ref().map(|told| told.id.as_str());
            let own = [Some(order.id.as_str()), answered, told];
            some(own.into_iter().chain(requests.map(Some)))
        }
        Order::WriteField(order) => {
            some([Some(order.id().as_str()), Some(order.workspace_id.as_str())])
        }
    }
}

/// Returns the ids of the documents a document belongs to or waits for, as far as they are new.
fn belongs_to(document: &Document, is_new: impl Fn(&str) -> bool) -> Vec<Box<str>> {
    let (chain, trust);
    let ids: Vec<&str> = match &document.state {
        State::Session(session) => vec![session.workspace_id.as_str()],
        State::Task(task) => {
            chain = ChainId::of(&task.session_id);
            trust = TrustChainId::of(&task.session_id);
            let mut ids = vec![
                task.workspace_id.as_str(),
                task.session_id.as_str(),
                chain.as_str(),
                trust.as_str(),
            ];
            // The receipt of a replay hangs off its source's.
            ids.extend(
                task.replay
                    .as_ref()
                    .map(|replay| replay.source_task_id.as_str()),
            );
            ids.extend(task.awaited().map(|id| id.as_str()));
            ids
        }
        State::Permission(request) => {
            vec![
                request.task_id.as_str(),
                request.session_id.as_str(),
                request.workspace_id.as_str(),
            ]
        }
        State::Artifact(artifact) => {
            let mut ids = vec![artifact.workspace_id.as_str()];
            ids.extend(artifact.session_id.as_ref().map(|id| id.as_str()));
            ids.extend(artifact.task_id.as_ref().map(|id| id.as_str()));
            ids
        }
        State::Receipt(receipt) => vec![receipt.session_id.as_str(), receipt.workspace_id.as_str()],
        State::Field(field) => vec![field.workspace_id.as_str()],
        State::Workspace(_)
        | State::Branch(_)
        | State::Message(_)
        | State::Outcome(_)
        | State::Vault(_)
        | State::Chain(_)
        | State::Batch(_)
        | State::TrustChain(_)
        | State::Persona(_)
        | State::Key(_) => vec![],
    };
    let new = ids.into_iter().filter(|id| is_new(id));
    new.map(Into::into).collect()
}

/// Folds of Tasks that commands may end, by Task id.
pub(super) type FoldsById = BTreeMap<Box<str>, Arc<TaskFold>>;

/// Folds of open Tasks: what their receipts will say, kept up to date commit by commit.
///
/// Never the truth, like every cache: what is missing here is read from the log, once, and outside of turns wherever
/// somebody knows beforehand that a Task may end ([`Engine::load_task_log`]).
#[derive(Debug)]
pub(crate) struct Folds {
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    tasks: BTreeMap<Position, Entry>,
    /// The last event that a turn of this process committed.
    head: Position,
}

#[derive(Debug, Clone)]
struct Entry {
    fold: Arc<TaskFold>,
    /// False when events may have been committed that are not in it.
    is_current: bool,
}

impl Default for Folds {
    fn default() -> Self {
        let known = Known {
            tasks: BTreeMap::new(),
            head: Position::START,
        };
        Self {
            known: Mutex::new(known),
        }
    }
}

impl Folds {
    /// Tasks beyond that are read from the log when they end.
    const LEN_MAX: usize = 8_192;

    /// Adds what a turn has committed.
    pub(super) fn after_commit(&self, written: &CommitContents) {
        let events = written.events();
        let (Some((first, _)), Some((last, _))) = (events.first(), events.last()) else {
            return;
        };
        let mut known = self.lock();
        if first.position != known.head.plus(1) {
            // Somebody else has committed in between.
            for entry in known.tasks.values_mut() {
                entry.is_current = false;
            }
        }
        known.head = last.position;
        // Nobody will ask for those any more: what they end with is in their receipts already. That of a replay is computed
        // from its source.
        let is_done = |task: &Task| task.status.is_terminal() || task.replay.is_some();
        let documents = written.documents().iter();
        let done = documents.filter(|document| task_of(document).is_some_and(is_done));
        let done: BTreeSet<Position> = done.map(|document| document.key).collect();
        for key in &done {
            known.tasks.remove(key);
        }
        for (stored, event) in events {
            let Some(key) = stored.links.task.filter(|key| !done.contains(key)) else {
                continue;
            };
            if stored.position == key {
                known.put(key, Arc::default(), true);
            }
            if let Some(entry) = known.tasks.get_mut(&key)
                && entry.is_current
            {
                Arc::make_mut(&mut entry.fold).add(stored.position, &stored.bytes, event);
            }
        }
    }

    /// Takes what somebody has read of a Task's log, up to a point.
    pub(crate) fn offer(&self, key: Position, fold: TaskFold) {
        let mut known = self.lock();
        if !known.tasks.contains_key(&key) {
            known.put(key, Arc::new(fold), false);
        }
    }

    fn find(&self, key: Position, head: Position) -> Option<Entry> {
        let known = self.lock();
        let mut entry = known.tasks.get(&key)?.clone();
        entry.is_current &= known.head == head;
        Some(entry)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Each change leaves whole entries.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn put(&mut self, key: Position, fold: Arc<TaskFold>, is_current: bool) {
        if self.tasks.len() >= Folds::LEN_MAX {
            self.tasks.clear();
        }
        self.tasks.insert(key, Entry { fold, is_current });
    }
}

impl Engine {
    /// Reads the log of a Task that may end soon, so that the turn that ends it does not have to.
    ///
    /// # Errors
    /// The store failed, or holds what is no event.
    pub(crate) async fn load_task_log(&self, key: Position) -> Result<(), Refused> {
        let shared = &self.shared;
        if shared.folds.find(key, Position::START).is_none() {
            let mut fold = TaskFold::default();
            catch_up(shared, key, &mut fold).await?;
            shared.folds.offer(key, fold);
        }
        Ok(())
    }
}

/// Returns the folds of Tasks that may end in this turn: their receipts commit to them.
pub(super) async fn load_folds(
    shared: &Shared,
    base: &Scratch,
    batch: &[Item],
    closing: &Closing,
) -> Result<FoldsById, Refused> {
    let mut folds = FoldsById::new();
    let ordered = batch.iter().flat_map(orders).filter_map(may_end);
    for id in ordered.chain(closing.tasks()) {
        let Some(document) = base.document(id) else {
            continue;
        };
        let ended = task_of(document).is_none_or(|task| task.status.is_terminal());
        if ended || folds.contains_key(id) {
            continue;
        }
        let known = shared.folds.find(document.key, shared.store.head());
        let fold = match known {
            Some(entry) if entry.is_current => entry.fold,
            other => {
                let mut fold = other.map(|entry| entry.fold).unwrap_or_default();
                catch_up(shared, document.key, Arc::make_mut(&mut fold)).await?;
                let mut known = shared.folds.lock();
                known.put(document.key, Arc::clone(&fold), true);
                fold
            }
        };
        folds.insert(id.into(), fold);
    }
    Ok(folds)
}

/// Adds what the log holds after a fold.
async fn catch_up(shared: &Shared, key: Position, fold: &mut TaskFold) -> Result<(), Refused> {
    let mut after = fold.through();
    while let Some(page) = next_page(&*shared.store, key, &mut after).await? {
        for stored in &page {
            fold.read(stored).map_err(|error| Refused::Internal {
                detail: format!("the event at {}: {error}", stored.position.0),
            })?;
        }
    }
    Ok(())
}

fn task_of(document: &Document) -> Option<&Task> {
    match &document.state {
        State::Task(task) => Some(task),
        _ => None,
    }
}
