//! The turn: many commands, one commit.
//!
//! Takes what waits, reads the documents it names, decides each command on a scratch copy (later commands see what
//! earlier ones changed), seals and commits once, then answers all. Clients that come together share one sync;
//! a client alone pays one. A refusal writes nothing and leaves its neighbours alone; a conflict repeats the turn.
//!
//! Invariant: no answer leaves before the commit that it depends on, refusals included, because a refusal may rest
//! on a neighbour's change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use canon::Digest;
use domain::{
    Blob, ChainId, Command, Decision, Document, Documents, EventName, ImpossibleEvent, Move, Order,
    Position, Refusal, ResourceRef, Scratch, Sealed, State, Timestamp, decide,
};
use tokio::sync::{mpsc, oneshot};

use crate::engine::Shared;
use crate::port::{
    Claim, ClaimScope, Commit, CommitError, Committed, Expected, Fence, LeaseName, ReadEvents,
    Scope, Seal, SealedTurn, StoredEvent,
};
use crate::receipt::{Authority, Step};
use crate::refused::Refused;

/// A command on its way into a turn.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) command: Command,
    pub(crate) claim: Option<ClaimRequest>,
    pub(crate) lease: Lease,
    pub(crate) reply: oneshot::Sender<Result<Done, Refused>>,
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
pub(crate) struct Done {
    /// The resource that answers.
    pub(crate) subject: ResourceRef,
    /// Position of the event the answer is rebuilt from.
    pub(crate) answer: Position,
    /// False when everything was as ordered before, or the key had been used.
    pub(crate) changed: bool,
    /// The epoch of the lease taken.
    pub(crate) epoch: Option<u64>,
}

/// Takes turns until every sender is gone.
pub(crate) async fn run(shared: Arc<Shared>, mut items: mpsc::Receiver<Item>) {
    let mut cache = Cache::default();
    let mut batch = Vec::new();
    while items
        .recv_many(&mut batch, shared.limits.batch_len_max)
        .await
        > 0
    {
        take(&shared, &mut cache, std::mem::take(&mut batch)).await;
    }
}

/// Documents known from the last turns. What it says is checked by version at every commit.
#[derive(Debug, Default)]
struct Cache {
    documents: BTreeMap<Box<str>, Document>,
}

impl Cache {
    const LEN_MAX: usize = 8_192;

    fn insert(&mut self, document: Document) {
        if self.documents.len() >= Self::LEN_MAX {
            self.documents.clear();
        }
        self.documents.insert(document.id.clone(), document);
    }
}

async fn take(shared: &Arc<Shared>, cache: &mut Cache, mut batch: Vec<Item>) {
    let began = shared.clock.now();
    loop {
        let turn = match prepare(shared, cache, &batch).await {
            Ok(turn) => turn,
            Err(refused) => return refuse_all(shared, batch, &refused),
        };
        let documents = Arc::clone(&turn.documents);
        let committed = match turn.commit {
            Some(commit) => shared.store.commit(commit).await,
            None => Ok(Committed {
                first: Position::START,
                leases: Vec::new(),
            }),
        };
        match committed {
            Ok(committed) => {
                let changed = documents.get().map(Vec::as_slice).unwrap_or_default();
                for document in changed {
                    cache.insert(document.clone());
                }
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
                return answer_all(shared, batch, turn.outcomes, &committed);
            }
            Err(CommitError::Conflict) => {
                shared.metrics.conflicts.fetch_add(1, Ordering::Relaxed);
                cache.documents.clear();
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
                cache.documents.clear();
                return refuse_all(
                    shared,
                    batch,
                    &Refused::Internal {
                        detail: error.to_string(),
                    },
                );
            }
            Err(CommitError::Fault(fault)) => {
                cache.documents.clear();
                return refuse_all(shared, batch, &Refused::from(fault));
            }
        }
    }
}

fn refuse_all(shared: &Shared, batch: Vec<Item>, refused: &Refused) {
    if let Refused::Internal { detail } = refused {
        tracing::error!(%detail, commands = batch.len(), "turn failed");
    }
    for item in batch {
        shared.metrics.commands.fetch_add(1, Ordering::Relaxed);
        shared.metrics.refusals.fetch_add(1, Ordering::Relaxed);
        // A caller that has left needs no answer.
        let _ = item.reply.send(Err(refused.clone()));
    }
}

fn answer_all(shared: &Shared, batch: Vec<Item>, outcomes: Vec<Outcome>, committed: &Committed) {
    for (item, outcome) in batch.into_iter().zip(outcomes) {
        shared.metrics.commands.fetch_add(1, Ordering::Relaxed);
        let answer = match outcome {
            Outcome::Refused(refused) => {
                shared.metrics.refusals.fetch_add(1, Ordering::Relaxed);
                Err(refused)
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
                Ok(Done {
                    subject,
                    answer: answer.resolve(committed.first),
                    changed,
                    epoch,
                })
            }
        };
        let _ = item.reply.send(answer);
    }
}

/// What will be answered once the turn is committed.
#[derive(Debug)]
enum Outcome {
    Refused(Refused),
    Done {
        subject: ResourceRef,
        answer: At,
        changed: bool,
    },
}

/// A position that may belong to the turn itself.
#[derive(Debug, Clone, Copy)]
enum At {
    /// Known already.
    Known(Position),
    /// The n-th event of this turn.
    Offset(u64),
}

impl At {
    fn resolve(self, first: Position) -> Position {
        match self {
            At::Known(position) => position,
            At::Offset(offset) => first.plus(offset),
        }
    }
}

/// A turn that is decided and ready to be committed.
struct Turn {
    outcomes: Vec<Outcome>,
    /// Nothing to write when none.
    commit: Option<Commit>,
    is_written: bool,
    event_count: u64,
    /// The documents as the commit left them, filled in when it seals.
    documents: Arc<OnceLock<Vec<Document>>>,
}

async fn prepare(shared: &Shared, cache: &Cache, batch: &[Item]) -> Result<Turn, Refused> {
    let base = load(shared, cache, batch).await?;
    let mut histories = load_histories(shared, &base, batch).await?;
    let now = shared.clock.now();
    let mut claimed = load_claims(shared, batch, now).await?;
    let guess = shared.store.head().plus(1);
    let mut scratch = base.clone();
    let mut plan = Plan::new(shared, now);
    let mut outcomes = Vec::with_capacity(batch.len());
    for item in batch {
        outcomes.push(plan.decide(&mut scratch, &mut claimed, &mut histories, item, guess)?);
    }
    let documents = Arc::new(OnceLock::new());
    let event_count = plan.event_count;
    let is_empty = event_count == 0 && plan.claims.is_empty();
    let expiry_us = i64::try_from(shared.limits.idempotency_window.as_micros()).unwrap_or(i64::MAX);
    plan.expires_at = Timestamp::from_micros(now.as_micros().saturating_add(expiry_us));
    let commit = (!is_empty).then(|| Commit {
        expected: expected(&base, &scratch),
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
        seal: plan.into_seal(base, scratch, guess, Arc::clone(&documents)),
    });
    Ok(Turn {
        outcomes,
        is_written: commit.is_some(),
        commit,
        event_count,
        documents,
    })
}

/// Everything decided so far in a turn.
struct Plan {
    log: EventName,
    authority: Arc<Authority>,
    now: Timestamp,
    expires_at: Timestamp,
    steps: Vec<Step>,
    event_count: u64,
    sealed: SealedSteps,
    blobs: Vec<Blob>,
    claims: Vec<(ClaimRequest, At)>,
    leases_taken: Vec<LeaseName>,
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
        }
    }

    fn decide(
        &mut self,
        scratch: &mut Scratch,
        claimed: &mut BTreeMap<ClaimScope, (Digest, At)>,
        histories: &mut Histories,
        item: &Item,
        guess: Position,
    ) -> Result<Outcome, Refused> {
        if let Some(claim) = item.claim
            && let Some((body, answer)) = claimed.get(&claim.scope)
        {
            if *body != claim.body {
                return Ok(Outcome::Refused(Refused::IdempotencyKeyReused));
            }
            // Whose resource it is stands in the event at that position.
            let subject = ResourceRef::new("", "");
            return Ok(Outcome::Done {
                subject,
                answer: *answer,
                changed: false,
            });
        }
        let Decision {
            drafts,
            blobs,
            subject,
            ends,
        } = match decide(scratch, &item.command) {
            Ok(decision) => decision,
            Err(refusal) => return Ok(Outcome::Refused(Refused::Domain(refusal))),
        };
        let changed = !drafts.is_empty();
        let about_subject = drafts
            .iter()
            .position(|draft| draft.resource == subject)
            .unwrap_or(0);
        let answer = if changed {
            At::Offset(self.event_count + about_subject as u64)
        } else {
            At::Known(
                scratch
                    .document(&subject.id)
                    .map_or(Position::START, |document| document.key),
            )
        };
        let history = ends
            .as_ref()
            .and_then(|(task, _)| histories.remove(task.as_str()))
            .unwrap_or_default();
        let step = Step {
            drafts,
            ends,
            history,
        };
        let first = guess.plus(self.event_count);
        self.sealed
            .add(&self.log, &self.authority, scratch, &step, first, self.now)
            .map_err(|error| Refused::Internal {
                detail: error.to_string(),
            })?;
        self.event_count += step.event_count();
        self.steps.push(step);
        self.blobs.extend(blobs);
        if let Lease::Take(name) = item.lease {
            self.leases_taken.push(name);
        }
        if let Some(claim) = item.claim {
            claimed.insert(claim.scope, (claim.body, answer));
            self.claims.push((claim, answer));
        }
        Ok(Outcome::Done {
            subject,
            answer,
            changed,
        })
    }

    /// Returns the closure that the store runs once it has reserved positions. Usually the guess was right and
    /// everything is sealed already; on several nodes it may not be, and sealing is pure, so it is done again.
    fn into_seal(
        self,
        base: Scratch,
        sealed_scratch: Scratch,
        guess: Position,
        documents: Arc<OnceLock<Vec<Document>>>,
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
            let changed: Vec<Document> = scratch
                .iter()
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
            let turn = SealedTurn {
                leases_released: released.collect(),
                events: sealed.events.into_iter().map(stored).collect(),
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
            let _ = documents.set(changed);
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
        step: &Step,
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
        | State::Batch(_) => false,
    }
}

fn stored(sealed: Sealed) -> StoredEvent {
    StoredEvent {
        position: sealed.position,
        links: sealed.links,
        resource: sealed.resource,
        bytes: sealed.bytes.into(),
    }
}

/// Every document that was read must be as it was; every document that is created must not exist.
fn expected(base: &Scratch, changed: &Scratch) -> Vec<Expected> {
    let read = base.iter().map(|document| Expected {
        id: document.id.clone(),
        version: document.version,
    });
    let created = changed
        .iter()
        .filter(|document| base.document(&document.id).is_none());
    read.chain(created.map(|document| Expected {
        id: document.id.clone(),
        version: 0,
    }))
    .collect()
}

/// Stored events of Tasks that commands may end, by Task id.
type Histories = BTreeMap<Box<str>, Arc<[Arc<[u8]>]>>;

/// Reads the logs of Tasks that may end in this turn: their receipts commit to them.
async fn load_histories(
    shared: &Shared,
    base: &Scratch,
    batch: &[Item],
) -> Result<Histories, Refused> {
    let mut histories = Histories::new();
    for id in batch.iter().filter_map(|item| may_end(&item.command.order)) {
        let Some(document) = base.document(id) else {
            continue;
        };
        if histories.contains_key(id) {
            continue;
        }
        let mut events: Vec<Arc<[u8]>> = Vec::new();
        let mut after = Position::START;
        loop {
            let query = ReadEvents {
                scope: Scope::Task(document.key),
                after,
                limit: 512,
            };
            let page = shared.store.events(query).await?;
            let Some(last) = page.last() else { break };
            after = last.position;
            events.extend(page.into_iter().map(|event| event.bytes));
        }
        histories.insert(id.into(), events.into());
    }
    Ok(histories)
}

/// Returns the Task that an order may end.
fn may_end(order: &Order) -> Option<&str> {
    match order {
        Order::CancelTask(order) => Some(order.id.as_str()),
        Order::AdvanceTask(order) => {
            let ends = order
                .moves
                .iter()
                .any(|step| matches!(step, Move::Complete { .. } | Move::Fail { .. }));
            ends.then_some(order.id.as_str())
        }
        _ => None,
    }
}

async fn load_claims(
    shared: &Shared,
    batch: &[Item],
    now: Timestamp,
) -> Result<BTreeMap<ClaimScope, (Digest, At)>, Refused> {
    let scopes: Vec<ClaimScope> = batch
        .iter()
        .filter_map(|item| Some(item.claim?.scope))
        .collect();
    if scopes.is_empty() {
        return Ok(BTreeMap::new());
    }
    let claims = shared
        .store
        .claims(scopes)
        .await?
        .into_iter()
        .flatten()
        .filter(|claim| claim.expires_at > now);
    Ok(claims
        .map(|claim| (claim.scope, (claim.body, At::Known(claim.answer))))
        .collect())
}

/// Loads the documents that commands name, and those that these belong to.
async fn load(shared: &Shared, cache: &Cache, batch: &[Item]) -> Result<Scratch, Refused> {
    let mut scratch = Scratch::default();
    let mut seen = BTreeSet::new();
    let mut wanted: Vec<Box<str>> = batch
        .iter()
        .flat_map(|item| named(&item.command.order))
        .collect();
    while !wanted.is_empty() {
        let mut next = Vec::new();
        let mut missing = Vec::new();
        for id in wanted {
            if !seen.insert(id.clone()) {
                continue;
            }
            match cache.documents.get(&id) {
                Some(document) => {
                    next.extend(belongs_to(document));
                    scratch.insert(document.clone());
                }
                None => missing.push(id),
            }
        }
        if !missing.is_empty() {
            for document in shared.store.documents(missing).await?.into_iter().flatten() {
                next.extend(belongs_to(&document));
                scratch.insert(document);
            }
        }
        wanted = next;
    }
    Ok(scratch)
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
        Order::TruncateSession(order) => some([Some(order.id.as_str())]),
        Order::AppendMessage(order) => some([Some(order.session_id.as_str())]),
        Order::SubmitTask(order) => some([
            Some(order.session_id.as_str()),
            order.branch_id.as_ref().map(|id| id.as_str()),
            order.parent_task_id.as_ref().map(|id| id.as_str()),
        ]),
        Order::CancelTask(order) => some([Some(order.id.as_str())]),
        Order::InterruptTask(order) => some([Some(order.id.as_str())]),
        Order::AnswerRequest(order) => some([Some(order.id.as_str())]),
        Order::CreateBranch(order) => some([
            Some(order.session_id.as_str()),
            order.parent_branch_id.as_ref().map(|id| id.as_str()),
            order.task_id.as_ref().map(|id| id.as_str()),
        ]),
        Order::RegisterArtifact(order) => some([
            Some(order.workspace_id.as_str()),
            order.session_id.as_ref().map(|id| id.as_str()),
            order.task_id.as_ref().map(|id| id.as_str()),
        ]),
        Order::AttachContent(order) => some([Some(order.id.as_str())]),
        Order::CreateVault(order) => some([order.workspace_id.as_ref().map(|id| id.as_str())]),
        Order::AdvanceTask(order) => some([Some(order.id.as_str())]),
        Order::RecordVerification(order) => some([Some(order.id.as_str())]),
        Order::SealHead(_) => Vec::new(),
        Order::CosignHead(order) => some([Some(order.id.as_str())]),
    }
}

/// Returns the ids of the documents a document belongs to or waits for.
fn belongs_to(document: &Document) -> Vec<Box<str>> {
    let chain;
    let ids: Vec<&str> = match &document.state {
        State::Session(session) => vec![session.workspace_id.as_str()],
        State::Task(task) => {
            chain = ChainId::of(&task.session_id);
            let mut ids = vec![
                task.workspace_id.as_str(),
                task.session_id.as_str(),
                chain.as_str(),
            ];
            ids.extend(task.waits_for.as_ref().map(|id| id.as_str()));
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
            ids
        }
        State::Receipt(receipt) => vec![receipt.session_id.as_str(), receipt.workspace_id.as_str()],
        State::Workspace(_)
        | State::Branch(_)
        | State::Message(_)
        | State::Outcome(_)
        | State::Vault(_)
        | State::Chain(_)
        | State::Batch(_) => vec![],
    };
    ids.into_iter().map(Into::into).collect()
}
