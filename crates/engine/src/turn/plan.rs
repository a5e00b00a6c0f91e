//! Deciding a turn: each command on a scratch copy, sealed at the positions it will most likely get. A Task that its events
//! end gets its receipt.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use canon::Digest;
use domain::{
    Blob, Command, Decision, Document, Documents, Draft, EndedTask, Event, EventName,
    ImpossibleEvent, Kind, Move, Order, Position, ResourceRef, Scratch, Sealed, State, Timestamp,
    decide, seal,
};
use receipts::Receipt;

use super::close::Closing;
use super::load::{FoldsById, load, load_claims, load_folds};
use super::{ClaimRequest, Item, Lease};
use crate::engine::Shared;
use crate::port::{
    Claim, ClaimScope, Commit, ExpectedVersion, LeaseName, Seal, SealedTurn, StoredEvent,
};
use crate::quota::{self, QuotaReservation};
use crate::receipt::{self, Authority, TaskFold};
use crate::refused::Refused;
use crate::trust;

/// How many events a receipt adds to the commit that ends a Task: its issue, and its place in the Session's chain.
const RECEIPT_EVENTS: u64 = 2;

/// A replay's receipt hangs off its source and leaves the chain alone.
const REPLAY_RECEIPT_EVENTS: u64 = 1;

/// What will be answered once the turn is committed.
#[derive(Debug)]
pub(super) enum Outcome {
    Refused(Refused),
    Done {
        subject: ResourceRef,
        answer: TurnPosition,
        changed: bool,
    },
}

/// A position that may belong to the turn itself.
#[derive(Debug, Clone, Copy)]
pub(super) enum TurnPosition {
    /// Known already.
    Known(Position),
    /// The n-th event of this turn.
    Offset(u64),
}

impl TurnPosition {
    pub(super) fn resolve(self, first: Position) -> Position {
        match self {
            TurnPosition::Known(position) => position,
            TurnPosition::Offset(offset) => first.plus(offset),
        }
    }
}

/// A turn that is decided and ready to be committed.
pub(super) struct Turn {
    pub(super) outcomes: Vec<Outcome>,
    /// Nothing to write when none.
    pub(super) commit: Option<Commit>,
    pub(super) is_written: bool,
    pub(super) event_count: u64,
    /// Filled in when the commit seals.
    pub(super) written: CommitContents,
    /// Kept until the store has counted what was written.
    pub(super) rooms: Vec<QuotaReservation>,
}

/// What a commit writes: its events, and the documents as it leaves them. Empty until it seals. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct CommitContents {
    sealed: Arc<OnceLock<EventsAndDocuments>>,
}

/// An event as it is stored, and what its bytes say.
pub(crate) type Appended = (StoredEvent, Arc<Event>);

type EventsAndDocuments = (Vec<Appended>, Vec<Arc<Document>>);

impl CommitContents {
    /// Returns the event at a position, when the commit wrote it.
    pub(crate) fn event(&self, position: Position) -> Option<&Arc<Event>> {
        self.appended(position).map(|(_, event)| event)
    }

    /// The same, with its stored bytes.
    pub(crate) fn appended(&self, position: Position) -> Option<&Appended> {
        let events = self.events();
        let (first, _) = events.first()?;
        let offset = position.0.checked_sub(first.position.0)?;
        events.get(usize::try_from(offset).ok()?)
    }

    /// Returns a document, when the commit wrote it.
    pub(crate) fn document(&self, id: &str) -> Option<&Arc<Document>> {
        let documents = self.documents();
        // In the order of their ids, as the scratch copy keeps them.
        let at = documents.binary_search_by(|document| (*document.id).cmp(id));
        at.ok().and_then(|at| documents.get(at))
    }

    pub(crate) fn documents(&self) -> &[Arc<Document>] {
        self.sealed.get().map_or(&[], |(_, documents)| documents)
    }

    pub(crate) fn events(&self) -> &[Appended] {
        self.sealed.get().map_or(&[], |(events, _)| events)
    }
}

/// Reads what commands name, decides them all and returns what to commit.
pub(super) async fn prepare(shared: &Arc<Shared>, batch: &[Item]) -> Result<Turn, Refused> {
    let mut base = load(shared, batch).await?;
    let closing = Closing::load(shared, &mut base, batch).await?;
    let mut folds = load_folds(shared, &base, batch, &closing).await?;
    let now = shared.clock.now();
    let mut claimed = load_claims(shared, batch).await?;
    let guess = shared.store.head().plus(1);
    let mut scratch = base.clone();
    let mut plan = Plan::new(shared, now);
    let mut outcomes = Vec::with_capacity(batch.len());
    for item in batch {
        let asked = (item, closing.ends(shared, &scratch, item));
        outcomes.push(plan.decide(shared, &mut scratch, &mut claimed, &mut folds, asked, guess));
    }
    let written = CommitContents::default();
    let rooms = std::mem::take(&mut plan.rooms);
    let event_count = plan.event_count;
    let is_empty = event_count == 0 && plan.claims.is_empty();
    let expiry_us = i64::try_from(shared.limits.idempotency_window.as_micros()).unwrap_or(i64::MAX);
    plan.expires_at = Timestamp::from_micros(now.as_micros().saturating_add(expiry_us));
    let commit = (!is_empty).then(|| Commit {
        expected: expected(&base, &scratch, &plan.looked.0.take()),
        fences: batch
            .iter()
            .filter_map(|item| match item.lease {
                Lease::Hold(fence) => Some(fence),
                Lease::None | Lease::Take(_) => None,
            })
            .collect(),
        holder: shared.holder.clone(),
        blobs: std::mem::take(&mut plan.blobs),
        event_count,
        now,
        seal: plan.into_seal(base, scratch, guess, written.clone()),
    });
    Ok(Turn {
        outcomes,
        is_written: commit.is_some(),
        commit,
        event_count,
        written,
        rooms,
    })
}

/// Everything decided so far in a turn.
struct Plan {
    log: EventName,
    authority: Arc<Authority>,
    now: Timestamp,
    expires_at: Timestamp,
    steps: Vec<SealStep>,
    event_count: u64,
    sealed: SealedSteps,
    blobs: Vec<Blob>,
    claims: Vec<(ClaimRequest, TurnPosition)>,
    leases_taken: Vec<LeaseName>,
    looked: Looked,
    /// Room for what the turn stores.
    rooms: Vec<QuotaReservation>,
}

/// True for work on a Task. Finding one after a crash and letting it wait again is not: whoever starts first does that.
fn needs_lease(order: &Order) -> bool {
    let Order::AdvanceTask(order) = order else {
        return false;
    };
    let is_recovery = |step: &Move| matches!(step, Move::Recover | Move::WaitAgain);
    !order.moves.iter().all(is_recovery)
}

/// The documents that decisions have looked at: those they rest on.
#[derive(Debug, Default)]
struct Looked(RefCell<BTreeSet<Box<str>>>);

impl Looked {
    fn at<'a>(&'a self, documents: &'a Scratch) -> LookingAt<'a> {
        LookingAt {
            looked: self,
            documents,
        }
    }
}

struct LookingAt<'a> {
    looked: &'a Looked,
    documents: &'a Scratch,
}

impl Documents for LookingAt<'_> {
    fn document(&self, id: &str) -> Option<&Document> {
        let mut looked = self.looked.0.borrow_mut();
        if !looked.contains(id) {
            looked.insert(id.into());
        }
        self.documents.document(id)
    }
}

/// The decided events of one command, and the Task they end.
#[derive(Debug, Clone)]
pub(crate) struct SealStep {
    pub(crate) drafts: Vec<Draft>,
    pub(crate) ends: Option<EndedTask>,
    /// What the ended Task's earlier events come to.
    pub(crate) fold: Arc<TaskFold>,
}

impl SealStep {
    pub(crate) fn event_count(&self) -> u64 {
        let receipt = match &self.ends {
            Some(ends) if ends.receipt.is_some() => REPLAY_RECEIPT_EVENTS,
            Some(_) => RECEIPT_EVENTS,
            None => 0,
        };
        self.drafts.len() as u64 + receipt
    }

    /// Seals the step; `earlier` are the events of the same turn before it.
    ///
    /// # Errors
    /// The command cannot be carried out. The scratch documents must be rolled back then.
    pub(crate) fn seal(
        &self,
        log: &EventName,
        authority: &Authority,
        scratch: &mut Scratch,
        earlier: &[Sealed],
        first: Position,
        stamp: Timestamp,
    ) -> Result<(Vec<Sealed>, Option<Blob>), ImpossibleEvent> {
        let mut sealed = Vec::with_capacity(self.drafts.len());
        for (index, draft) in (0..).zip(&self.drafts) {
            let draft = trust::complete(draft, scratch, authority, stamp)?;
            let drafts = std::slice::from_ref(draft.as_ref());
            sealed.extend(seal(log, scratch, drafts, first.plus(index), stamp)?);
        }
        let Some(EndedTask {
            task_id,
            receipt_id,
            receipt: prepared,
        }) = &self.ends
        else {
            return Ok((sealed, None));
        };
        let broken = |problem: String| {
            ImpossibleEvent::new(receipt_id.as_str(), Kind::ReceiptIssued, problem)
        };
        let (receipt, source) = if let Some(prepared) = prepared {
            let receipt = Receipt::read(prepared)
                .map_err(|error| broken(error.to_string()))?
                .signed(&authority.signer);
            let source = Some(receipt.previous_hash());
            (receipt, source)
        } else {
            let document = scratch.document(task_id.as_str());
            let Some((document, State::Task(task))) =
                document.map(|document| (document, &document.state))
            else {
                return Err(broken(format!("`{task_id}` is not a task")));
            };
            let mut fold = TaskFold::clone(&self.fold);
            for event in earlier.iter().chain(&sealed) {
                if event.links.task == Some(document.key) {
                    fold.add(event.position, &event.bytes, &event.event);
                }
            }
            let receipt =
                receipt::of_task(scratch, authority, document, task, receipt_id, fold, stamp)
                    .map_err(|error| broken(error.to_string()))?;
            (receipt, None)
        };
        let (issued, blob) = receipt::issue(scratch, task_id, receipt_id, &receipt, source);
        let first = first.plus(self.drafts.len() as u64);
        sealed.extend(seal(log, scratch, &issued, first, stamp)?);
        Ok((sealed, Some(blob)))
    }
}

/// Sealed events, and the receipts that sealing made.
#[derive(Default)]
struct SealedSteps {
    events: Vec<Sealed>,
    receipts: Vec<Blob>,
}

impl Plan {
    fn new(shared: &Shared, now: Timestamp) -> Self {
        Self {
            log: shared.store.name().clone(),
            authority: Arc::clone(&shared.authority),
            now,
            expires_at: now,
            steps: Vec::new(),
            event_count: 0,
            sealed: SealedSteps::default(),
            blobs: Vec::new(),
            claims: Vec::new(),
            leases_taken: Vec::new(),
            looked: Looked::default(),
            rooms: Vec::new(),
        }
    }

    fn decide(
        &mut self,
        shared: &Arc<Shared>,
        scratch: &mut Scratch,
        claimed: &mut BTreeMap<ClaimScope, (Digest, TurnPosition)>,
        folds: &mut FoldsById,
        (item, ends): (&Item, Result<Vec<Command>, Refused>),
        guess: Position,
    ) -> Outcome {
        if let Some(claim) = item.claim
            && let Some((body, answer)) = claimed.get(&claim.scope)
        {
            if *body != claim.body {
                return Outcome::Refused(Refused::IdempotencyKeyReused);
            }
            // Whose resource it is stands in the event at that position.
            let subject = ResourceRef::new("", "");
            return Outcome::Done {
                subject,
                answer: *answer,
                changed: false,
            };
        }
        if item.lease == Lease::None && needs_lease(&item.command.order) {
            return Outcome::Refused(Refused::Internal {
                detail: "a task is advanced only by whoever holds its lease".to_owned(),
            });
        }
        let ends = match ends {
            Ok(ends) => ends,
            Err(refused) => return Outcome::Refused(refused),
        };
        let (step, blobs, subject) = match self.step(scratch, folds, &item.command) {
            Ok(decided) => decided,
            Err(refused) => return Outcome::Refused(refused),
        };
        let mut steps = Vec::with_capacity(ends.len() + 1);
        let mut added = Vec::new();
        // None looks at what the others change, so that all can be decided on how things stand.
        for command in &ends {
            match self.step(scratch, folds, command) {
                Ok((step, blobs, _)) => {
                    steps.push(step);
                    added.extend(blobs);
                }
                Err(refused) => return Outcome::Refused(refused),
            }
        }
        added.extend(blobs);
        let earlier: u64 = steps.iter().map(SealStep::event_count).sum();
        let about_subject = step
            .drafts
            .iter()
            .position(|draft| draft.resource == subject)
            .unwrap_or(0);
        let answer = if step.drafts.is_empty() {
            TurnPosition::Known(
                scratch
                    .document(&subject.id)
                    .map_or(Position::START, |document| document.key),
            )
        } else {
            TurnPosition::Offset(self.event_count + earlier + about_subject as u64)
        };
        let changed = earlier > 0 || !step.drafts.is_empty();
        steps.push(step);
        let before = (
            self.sealed.events.len(),
            self.sealed.receipts.len(),
            self.event_count,
        );
        scratch.mark();
        let sealed = self.seal_together(scratch, &steps, guess);
        let sealed = sealed.map_err(|error| {
            let detail = error.to_string();
            tracing::error!(%detail, "a command cannot be sealed and is refused");
            Refused::Internal { detail }
        });
        let kept = sealed.and_then(|()| self.count(shared, &item.command.order, &added, before.0));
        if let Err(refused) = kept {
            // Its neighbours see nothing of it.
            scratch.roll_back();
            self.sealed.events.truncate(before.0);
            self.sealed.receipts.truncate(before.1);
            self.event_count = before.2;
            return Outcome::Refused(refused);
        }
        self.steps.extend(steps);
        self.blobs.extend(added);
        if let Lease::Take(name) = item.lease {
            self.leases_taken.push(name);
        }
        if let Some(claim) = item.claim {
            claimed.insert(claim.scope, (claim.body, answer));
            self.claims.push((claim, answer));
        }
        Outcome::Done {
            subject,
            answer,
            changed,
        }
    }

    /// Counts what a command will store, and refuses it when its Workspace has no room for it.
    fn count(
        &mut self,
        shared: &Arc<Shared>,
        order: &Order,
        blobs: &[Blob],
        first: usize,
    ) -> Result<(), Refused> {
        let events = self.sealed.events.get(first..).unwrap_or_default();
        let Some(workspace) = events.iter().find_map(|event| event.links.workspace) else {
            return Ok(());
        };
        let own: usize = events.iter().map(|event| event.bytes.len()).sum();
        let content: usize = blobs.iter().map(|blob| blob.bytes.len()).sum();
        let bytes = (own + content) as u64;
        self.rooms.push(match quota::room_for(order) {
            Some(room) => shared.reserve(room, workspace, bytes)?,
            None => shared.reserve_anyway(workspace, bytes),
        });
        Ok(())
    }

    /// Decides one command, and returns what there is to seal, its blobs and what answers it.
    fn step(
        &self,
        scratch: &Scratch,
        folds: &mut FoldsById,
        command: &Command,
    ) -> Result<(SealStep, Vec<Blob>, ResourceRef), Refused> {
        let Decision {
            drafts,
            blobs,
            subject,
            ends,
        } = decide(&self.looked.at(scratch), command).map_err(Refused::Domain)?;
        let fold = ends
            .as_ref()
            .filter(|ends| ends.receipt.is_none())
            .and_then(|ends| folds.remove(ends.task_id.as_str()))
            .unwrap_or_default();
        Ok((SealStep { drafts, ends, fold }, blobs, subject))
    }

    /// Seals steps that belong together. After an error some of them are sealed: the caller takes all back.
    fn seal_together(
        &mut self,
        scratch: &mut Scratch,
        steps: &[SealStep],
        guess: Position,
    ) -> Result<(), ImpossibleEvent> {
        for step in steps {
            let first = guess.plus(self.event_count);
            self.sealed
                .add(&self.log, &self.authority, scratch, step, first, self.now)?;
            self.event_count += step.event_count();
        }
        Ok(())
    }

    /// Returns the closure that the store runs once it has reserved positions. Usually the guess was right and
    /// everything is sealed already; on several nodes it may not be, and sealing is pure, so it is done again.
    fn into_seal(
        self,
        base: Scratch,
        sealed_scratch: Scratch,
        guess: Position,
        written: CommitContents,
    ) -> Seal {
        Box::new(move |first| {
            let (scratch, sealed) = if first == guess {
                (sealed_scratch, self.sealed)
            } else {
                let mut scratch = base.clone();
                let mut sealed = SealedSteps::default();
                let mut offset = 0;
                for step in &self.steps {
                    sealed.add(
                        &self.log,
                        &self.authority,
                        &mut scratch,
                        step,
                        first.plus(offset),
                        self.now,
                    )?;
                    offset += step.event_count();
                }
                (scratch, sealed)
            };
            let changed: Vec<Arc<Document>> = scratch
                .iter_shared()
                .filter(|document| {
                    base.document(&document.id)
                        .is_none_or(|before| before.version != document.version)
                })
                .cloned()
                .collect();
            let released = changed
                .iter()
                .filter(|document| ends_work(document))
                .map(|document| document.key);
            let events: Vec<Appended> = sealed.events.into_iter().map(stored).collect();
            let turn = SealedTurn {
                api_keys: Vec::new(),
                leases_released: released.collect(),
                events: events.iter().map(|(stored, _)| stored.clone()).collect(),
                blobs: sealed.receipts,
                claims: self
                    .claims
                    .iter()
                    .map(|(claim, answer)| Claim {
                        scope: claim.scope,
                        body: claim.body,
                        answer: answer.resolve(first),
                        expires_at: self.expires_at,
                    })
                    .collect(),
                leases_taken: self.leases_taken,
                documents: changed.clone(),
            };
            // Filled once per commit; a second filling cannot happen.
            let _ = written.sealed.set((events, changed));
            Ok(turn)
        })
    }
}

impl SealedSteps {
    fn add(
        &mut self,
        log: &EventName,
        authority: &Authority,
        scratch: &mut Scratch,
        step: &SealStep,
        first: Position,
        now: Timestamp,
    ) -> Result<(), ImpossibleEvent> {
        let (events, receipt) = step.seal(log, authority, scratch, &self.events, first, now)?;
        self.events.extend(events);
        self.receipts.extend(receipt);
        Ok(())
    }
}

/// True when no worker is on the Task any more.
fn ends_work(document: &Document) -> bool {
    match &document.state {
        State::Task(task) => task.status.is_terminal() || task.status.is_waiting(),
        State::Workspace(_)
        | State::Session(_)
        | State::Branch(_)
        | State::Message(_)
        | State::Artifact(_)
        | State::Outcome(_)
        | State::Permission(_)
        | State::Vault(_)
        | State::Receipt(_)
        | State::Chain(_)
        | State::Batch(_)
        | State::TrustChain(_)
        | State::Persona(_)
        | State::Key(_)
        | State::Field(_) => false,
    }
}

fn stored(sealed: Sealed) -> Appended {
    let stored = StoredEvent {
        position: sealed.position,
        links: sealed.links,
        resource: sealed.resource,
        bytes: sealed.bytes.into(),
    };
    (stored, Arc::new(sealed.event))
}

/// Every document that a decision rests on or that is changed must be as it was; every document that is created must
/// not exist. What was only read along with them may have gone on elsewhere.
fn expected(
    base: &Scratch,
    changed: &Scratch,
    looked: &BTreeSet<Box<str>>,
) -> Vec<ExpectedVersion> {
    let matters = |document: &&Document| {
        let after = changed.document(&document.id);
        looked.contains(&document.id) || after.is_none_or(|after| after.version != document.version)
    };
    let read = base.iter().filter(matters).map(|document| ExpectedVersion {
        id: document.id.clone(),
        version: document.version,
    });
    let created = changed
        .iter()
        .filter(|document| base.document(&document.id).is_none());
    read.chain(created.map(|document| ExpectedVersion {
        id: document.id.clone(),
        version: 0,
    }))
    .collect()
}

#[cfg(test)]
mod tests {
    use domain::{AdvanceTask, TaskId};

    use super::*;

    #[test]
    fn only_recovery_advances_a_task_without_its_lease() {
        let advance = |moves| {
            needs_lease(&Order::AdvanceTask(AdvanceTask {
                id: TaskId::from_body("1"),
                workflow: None,
                moves,
            }))
        };
        assert!(!advance(vec![Move::Recover, Move::WaitAgain]));
        let start = Move::Start {
            workflow_digest: canon::sha256(b"workflow"),
        };
        assert!(advance(vec![start.clone()]));
        assert!(advance(vec![Move::Recover, start]));
    }
}
