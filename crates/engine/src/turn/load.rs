//! What a turn reads before it decides: the documents that commands name, and claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use canon::Digest;
use domain::{ChainId, Document, Documents as _, Move, Order, Scratch, State, TrustChainId};

use super::Item;
use super::plan::At;
use crate::engine::Shared;
use crate::port::ClaimScope;
use crate::refused::Refused;

/// Returns the Task that an order may end.
pub(super) fn may_end(order: &Order) -> Option<&str> {
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
) -> Result<BTreeMap<ClaimScope, (Digest, At)>, Refused> {
    let scopes: Vec<ClaimScope> = batch
        .iter()
        .filter_map(|item| Some(item.claim?.scope))
        .collect();
    if scopes.is_empty() {
        return Ok(BTreeMap::new());
    }
    let claims = shared.store.claims(scopes).await?.into_iter().flatten();
    Ok(claims
        .map(|claim| (claim.scope, (claim.body, At::Known(claim.answer))))
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
