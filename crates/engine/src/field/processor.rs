//! Carries out the messages of one field: in order, decided together, committed together.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use canon::{Digest, Value};
use domain::{
    Blob, Command, FieldEntry, FieldId, FieldRoom, Order, Position, Refusal as DomainRefusal,
    WorkspaceId, WriteField,
};
use field::{
    Administration, Call, CallSeed, Caller, Code, Decision, Detection, Embedding, Entry, Envelope,
    Event, Field, Message, MessageDecision, Notification, OPERATOR, Operation, Refusal, STANDARD,
    SYSTEM, Salted, StoredAnswer, administer, decide, salted_bytes,
};
use futures_util::future::join_all;
use tokio::sync::{broadcast, oneshot};

use super::FieldRefused;
use super::listen::{ListenerGuard, Listeners};
use super::purge::{asks_to_purge, erased, is_purge, say_erased};
use super::vote::OVERDUE;
use crate::engine::Engine;
use crate::port::{Erased, Scope};
use crate::refused::Refused;
use crate::turn::{CommandOutcome, Lease};

/// Messages that are decided together.
pub(super) const BATCH_LEN_MAX: usize = 64;
/// Messages that wait for one field.
const WAITING_MAX: usize = 4_096;
/// How often a batch is decided again because somebody else wrote to the field.
const STALE_TRIES: usize = 20;
/// Operations that a listener may be behind before it misses some.
const PUSHED_MAX: usize = 1_024;

type Answer = Result<Value, FieldRefused>;

/// Who sends a message.
pub(super) struct Sender {
    /// The actor in events.
    pub(super) actor: String,
    /// What the key may do.
    pub(super) caller: Caller,
}

impl Sender {
    /// The field itself.
    pub(super) fn field() -> Self {
        Self {
            actor: SYSTEM.to_owned(),
            caller: Caller {
                key: SYSTEM.to_owned(),
                ceiling: OPERATOR,
                agents: Vec::new(),
            },
        }
    }
}

/// Something that waits to be done.
pub(super) struct QueuedJob {
    pub(super) sender: Sender,
    pub(super) task: Job,
    pub(super) reply: oneshot::Sender<Answer>,
}

/// What is to be done.
pub(super) enum Job {
    /// Carry out a message.
    Message(Envelope),
    /// Take a unit back.
    Retract {
        /// Who does it.
        agent_id: String,
        /// The unit.
        unit_id: String,
        /// Why.
        reason: String,
    },
    /// Give a unit that waits for it its vector.
    Enrich {
        /// The unit.
        unit_id: String,
        /// Its vector.
        embedding: Embedding,
    },
    /// Give up on a vote.
    Escalate {
        /// The conflict.
        conflict_id: String,
    },
}

impl Job {
    fn operation(&self) -> Option<Operation> {
        match self {
            Job::Message(envelope) => Some(envelope.operation()),
            Job::Retract { .. } | Job::Enrich { .. } | Job::Escalate { .. } => None,
        }
    }

    fn asks_to_purge(&self) -> bool {
        matches!(self, Job::Message(envelope) if asks_to_purge(envelope))
    }
}

/// A field in memory.
pub(crate) struct CachedField {
    pub(crate) field: Field,
    /// The version of its document: the number of its entries.
    pub(crate) version: u64,
    /// The key of its document, once it has one.
    pub(crate) key: Option<Position>,
    /// The position of the event that the version stands for, where segments are kept.
    pub(crate) position: Position,
    /// How far segments of its fold are kept.
    pub(crate) kept: u64,
}

/// What was pushed after one operation.
#[derive(Debug, Clone)]
pub(crate) struct PushBatch {
    /// The sequence of the operation's last entry.
    pub(crate) seq: u64,
    /// For whom what.
    pub(crate) notifications: Vec<Notification>,
}

/// Where the messages of a field are carried out.
pub(crate) struct FieldProcessor {
    pub(super) workspace_id: WorkspaceId,
    pub(super) name: String,
    waiting: Mutex<Queue>,
    /// None until it is read from the log, and after a commit that came to nothing.
    held: tokio::sync::Mutex<Option<CachedField>>,
    pushed: broadcast::Sender<Arc<PushBatch>>,
    listeners: Arc<Listeners>,
    /// True while somebody comes back to units without a vector.
    pub(super) enriching: AtomicBool,
    /// True while somebody waits for a vote to be overdue.
    pub(super) awaiting_votes: AtomicBool,
}

#[derive(Default)]
struct Queue {
    queue: VecDeque<QueuedJob>,
    /// True while somebody works off the queue.
    is_running: bool,
}

impl std::fmt::Debug for FieldProcessor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl FieldProcessor {
    pub(super) fn new(workspace_id: WorkspaceId, name: String) -> Self {
        Self {
            workspace_id,
            name,
            waiting: Mutex::default(),
            held: tokio::sync::Mutex::default(),
            pushed: broadcast::Sender::new(PUSHED_MAX),
            listeners: Arc::default(),
            enriching: AtomicBool::new(false),
            awaiting_votes: AtomicBool::new(false),
        }
    }

    /// Returns what is pushed from now on, to this agent among others, while the seat is held.
    pub(super) fn listen(
        &self,
        agent_id: &str,
    ) -> (broadcast::Receiver<Arc<PushBatch>>, ListenerGuard) {
        let seat = ListenerGuard::take(&self.listeners, agent_id);
        (self.pushed.subscribe(), seat)
    }

    pub(super) fn is_watched(&self) -> bool {
        self.pushed.receiver_count() > 0
    }

    pub(super) async fn held(&self) -> tokio::sync::MutexGuard<'_, Option<CachedField>> {
        self.held.lock().await
    }

    /// Returns units that wait for a vector, with their texts; none of a field that is not in memory.
    pub(super) async fn pending(&self, most: usize) -> Vec<(String, String)> {
        let held = self.held.lock().await;
        let Some(held) = &*held else {
            return Vec::new();
        };
        let field = &held.field;
        let pending = field.pending_enrichment().filter_map(|unit| {
            let text = field.text_of(unit)?;
            Some((unit.to_owned(), text.content.clone()))
        });
        pending.take(most).collect()
    }

    fn waiting(&self) -> MutexGuard<'_, Queue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_batch(&self) -> Vec<QueuedJob> {
        let mut waiting = self.waiting();
        let count = waiting.queue.len().min(BATCH_LEN_MAX);
        if count == 0 {
            waiting.is_running = false;
        }
        waiting.queue.drain(..count).collect()
    }
}

/// Frees the queue, whatever ended the work: those who still wait are answered by that.
struct QueueGuard(Arc<FieldProcessor>);

impl Drop for QueueGuard {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        if waiting.is_running {
            waiting.is_running = false;
            waiting.queue.clear();
        }
    }
}

/// What came of one message, to be answered after the commit.
enum Outcome {
    Refused(Refusal),
    Repeated(Message),
    /// Entries to be written: their number in the list of commands.
    Written(usize),
}

/// A batch as it was decided.
struct Plan {
    held: CachedField,
    outcomes: Vec<Outcome>,
    commands: Vec<Command>,
    answers: Vec<Value>,
    /// The entries of each command.
    entries: Vec<Vec<Entry>>,
    /// The last decision, which nothing rests on yet: applied once it is durable.
    last: Option<Decision>,
}

impl Engine {
    /// Queues a message and waits for its answer.
    pub(super) async fn ask(
        &self,
        processor: &Arc<FieldProcessor>,
        sender: Sender,
        envelope: Envelope,
    ) -> Answer {
        self.enqueue(processor, sender, Job::Message(envelope))
            .await
    }

    /// Has the field itself do something, and waits until it is done.
    pub(super) async fn administer_field(
        &self,
        processor: &Arc<FieldProcessor>,
        task: Job,
    ) -> Answer {
        self.enqueue(processor, Sender::field(), task).await
    }

    pub(super) async fn enqueue(
        &self,
        processor: &Arc<FieldProcessor>,
        sender: Sender,
        task: Job,
    ) -> Answer {
        let (reply, answer) = oneshot::channel();
        let starts = {
            let mut waiting = processor.waiting();
            if waiting.queue.len() >= WAITING_MAX {
                return Err(Refused::Busy {
                    what: "pending_commands_max",
                }
                .into());
            }
            waiting.queue.push_back(QueuedJob {
                sender,
                task,
                reply,
            });
            !std::mem::replace(&mut waiting.is_running, true)
        };
        if starts {
            self.carry_out_waiting(processor);
        }
        answer.await.unwrap_or_else(|_| {
            let detail = "a message to a field was not processed to its end".to_owned();
            Err(Refused::Internal { detail }.into())
        })
    }

    /// Beside the caller: a client that goes away takes nobody else's message with it.
    fn carry_out_waiting(&self, processor: &Arc<FieldProcessor>) {
        let (engine, processor) = (self.clone(), Arc::clone(processor));
        self.shared.spawn.spawn(Box::pin(async move {
            let guard = QueueGuard(processor);
            loop {
                let batch = guard.0.next_batch();
                if batch.is_empty() {
                    return;
                }
                engine.carry_out_batch(&guard.0, batch).await;
            }
        }));
    }

    async fn carry_out_batch(&self, processor: &Arc<FieldProcessor>, mut batch: Vec<QueuedJob>) {
        let mut held = processor.held().await;
        let mut tries = 0;
        while !batch.is_empty() {
            let state = match held.take() {
                Some(state) => state,
                None => match self.open_field(processor).await {
                    Ok(state) => state,
                    Err(refused) => return answer_all(batch, &refused),
                },
            };
            batch = self.after_overdue(&state.field, batch);
            let embeddings = self.embeddings(&state.field, &batch).await;
            let failed = |embedding: &Embedding| matches!(embedding, Embedding::Failed(_));
            if embeddings.iter().any(failed) {
                self.enrich_later(processor);
            }
            let fresh = self
                .fresh(batch.len())
                .into_iter()
                .zip(embeddings)
                .collect();
            let work = processor_name(processor);
            let planned = self
                .run_blocking(move || plan(state, work, batch, fresh))
                .await;
            let (plan, asked) = match planned {
                Ok(planned) => planned,
                // The messages are gone with the work, and those who wait are told by that.
                Err(refused) => {
                    tracing::error!(
                        field = processor.name,
                        error = refused.for_the_log(),
                        "a batch was lost"
                    );
                    return;
                }
            };
            (*held, batch) = self.commit_batch(processor, plan, asked, &mut tries).await;
            *held = match held.take() {
                Some(state) => self.note_place(processor, state).await,
                None => None,
            };
            if held.as_ref().is_some_and(CachedField::has_votes) {
                self.await_votes(processor);
            }
        }
    }

    /// Reads a field, and comes back to units that were left without a vector.
    pub(super) async fn open_field(
        &self,
        processor: &Arc<FieldProcessor>,
    ) -> Result<CachedField, Refused> {
        let held = self.load_field(processor).await?;
        if held.field.pending_enrichment().next().is_some() {
            self.enrich_later(processor);
        }
        if held.has_votes() {
            self.await_votes(processor);
        }
        Ok(held)
    }

    /// Keeps a segment of the fold, where it is time for one: nobody else writes to the field meanwhile.
    async fn note_place(
        &self,
        processor: &FieldProcessor,
        mut held: CachedField,
    ) -> Option<CachedField> {
        if !held.is_due() {
            return Some(held);
        }
        let place = async {
            let id = FieldId::of(&processor.workspace_id, &processor.name);
            let document = self.shared_document(id.as_str()).await?;
            let document = document.filter(|document| document.version == held.version);
            let Some(key) = document.map(|document| document.key) else {
                return Ok(held);
            };
            let last = self.shared.store.last_event(Scope::Linked(key)).await?;
            held.key = Some(key);
            held.position = last.unwrap_or(held.position);
            self.keep_segment(held).await
        };
        let kept: Result<CachedField, Refused> = place.await;
        if let Err(refused) = &kept {
            let error = refused.for_the_log();
            tracing::warn!(
                field = processor.name,
                error,
                "a segment of a field cannot be kept"
            );
        }
        // A field that was lost on the way is read again.
        kept.ok()
    }

    /// Commits what was decided and answers. Returns the field, when it is still what the log says, and the messages that
    /// must be decided again.
    async fn commit_batch(
        &self,
        processor: &FieldProcessor,
        plan: Plan,
        asked: Vec<QueuedJob>,
        tries: &mut usize,
    ) -> (Option<CachedField>, Vec<QueuedJob>) {
        let Plan {
            mut held,
            outcomes,
            commands,
            mut answers,
            entries,
            last,
        } = plan;
        let count = commands.len();
        let written = commands
            .into_iter()
            .map(|command| self.order(command, None, Lease::None));
        let written: Vec<Result<CommandOutcome, Refused>> = join_all(written).await;
        let failed = written.iter().position(Result::is_err);
        // Each rests on the one before, so that what follows a failure was not written either.
        let done = failed.unwrap_or(count);
        let is_last = failed.is_none_or(|failed| failed + 1 == count);
        let mut intact = is_last;
        if failed.is_none()
            && let Some(last) = &last
        {
            held.version += last.steps.len() as u64;
            intact = commit(&mut held.field, last);
        }
        let listeners = processor.listeners.agents();
        if intact && !listeners.is_empty() {
            for entries in entries.iter().take(done) {
                let notifications = held.field.notifications(entries, &listeners);
                let seq = entries.last().map_or(0, |entry| entry.seq);
                if !notifications.is_empty() {
                    // That nobody listens is fine.
                    let _ = processor
                        .pushed
                        .send(Arc::new(PushBatch { seq, notifications }));
                }
            }
        }
        let purges = |entries: &Vec<Entry>| entries.iter().any(is_purge);
        let repeats = asked.iter().zip(&outcomes).any(|(asked, outcome)| {
            matches!(outcome, Outcome::Repeated(_)) && asked.task.asks_to_purge()
        });
        let mut erasing = Ok(Erased::Gone);
        if repeats || entries.iter().take(done).any(purges) {
            let digests = entries.iter().take(done).flatten().flat_map(erased);
            let digests = digests.copied().collect();
            erasing = self.erase_for(processor, &mut held, digests).await;
            if let Err(refused) = &erasing {
                tracing::error!(
                    field = processor.name,
                    error = refused.for_the_log(),
                    "a purge is not finished"
                );
                // The next reading of the log finishes it.
                intact = false;
            }
        }
        let mut again = Vec::new();
        let mut refused = written.into_iter().nth(done).and_then(Result::err);
        let is_stale = matches!(refused, Some(Refused::Domain(DomainRefusal::Stale)));
        if is_stale {
            intact = false;
            *tries += 1;
            if *tries <= STALE_TRIES {
                refused = None;
            } else {
                refused = Some(Refused::Busy { what: "field" });
            }
        }
        // Everything from the failed message on is decided again, except the failed one itself when its failure is final.
        let mut rests = false;
        for (asked, outcome) in asked.into_iter().zip(outcomes) {
            if rests {
                again.push(asked);
                continue;
            }
            let operation = asked.task.operation();
            let answer = match outcome {
                Outcome::Refused(refusal) => Err(refusal.into()),
                Outcome::Repeated(message) => {
                    let kept = self.answered_before(&message, operation).await;
                    let answer = kept.map(|kept| held.field.rebuild_answer(kept));
                    match asked.task.asks_to_purge() {
                        true => answer.and_then(|answer| after_purge(answer, &erasing)),
                        false => answer,
                    }
                }
                Outcome::Written(number) if number < done => {
                    let answer = answers.get_mut(number).map(Value::take).unwrap_or_default();
                    match entries.get(number).is_some_and(purges) {
                        true => after_purge(answer, &erasing),
                        false => Ok(answer),
                    }
                }
                Outcome::Written(_) => {
                    rests = true;
                    match refused.take() {
                        Some(refused) => Err(refused.into()),
                        None => {
                            again.push(asked);
                            continue;
                        }
                    }
                }
            };
            // Whoever no longer waits was disconnected.
            let _ = asked.reply.send(answer);
        }
        (intact.then_some(held), again)
    }

    /// Erases what a purge of a field says, once its document is known.
    async fn erase_for(
        &self,
        processor: &FieldProcessor,
        held: &mut CachedField,
        digests: Vec<Digest>,
    ) -> Result<Erased, Refused> {
        if held.key.is_none() {
            let id = FieldId::of(&processor.workspace_id, &processor.name);
            let document = self.shared_document(id.as_str()).await?;
            held.key = document.map(|document| document.key);
        }
        self.erase(held, digests).await
    }

    /// Reads what is kept of the answer that was given to a message before.
    async fn answered_before(&self, message: &Message, operation: Option<Operation>) -> Answer {
        let operation = operation.map_or("message", Operation::as_str);
        let lost = |detail: &str| Refused::Internal {
            detail: format!("the answer to a {operation} cannot be repeated: {detail}"),
        };
        let digest = message
            .answer_sha256
            .ok_or_else(|| lost("it was not kept"))?;
        let bytes = self
            .shared
            .store
            .blob(digest)
            .await
            .map_err(Refused::from)?;
        let Some(bytes) = bytes else {
            let message =
                "the answer to this message showed text that was purged since, and is gone with it";
            return Err(super::refusal(Code::UnitNotFound, message));
        };
        let kept: Salted<Value> =
            serde_json::from_slice(&bytes).map_err(|error| lost(&error.to_string()))?;
        Ok(kept.value)
    }

    fn fresh(&self, count: usize) -> Vec<CallSeed> {
        let one = || CallSeed {
            now: self.shared.clock.now(),
            nonce: *canon::sha256(self.shared.ids.salt().as_bytes()).as_bytes(),
        };
        std::iter::repeat_with(one).take(count).collect()
    }
}

/// Completes the answer of a purge by what came of erasing.
fn after_purge(mut answer: Value, erasing: &Result<Erased, Refused>) -> Answer {
    match erasing {
        Ok(erased) => {
            say_erased(&mut answer, *erased);
            Ok(answer)
        }
        Err(refused) => Err(refused.clone().into()),
    }
}

fn answer_all(batch: Vec<QueuedJob>, refused: &Refused) {
    for asked in batch {
        let _ = asked.reply.send(Err(refused.clone().into()));
    }
}

fn processor_name(processor: &FieldProcessor) -> (WorkspaceId, String) {
    (processor.workspace_id.clone(), processor.name.clone())
}

/// Applies what was decided; false when it cannot be, which is a bug that a reading of the log makes good.
fn commit(field: &mut Field, decision: &Decision) -> bool {
    let applied = field.commit(decision);
    if let Err(error) = &applied {
        tracing::error!(%error, "what was decided on a field cannot be applied to it");
    }
    applied.is_ok()
}

/// Decides a batch, each message on what those before it leave.
fn plan(
    held: CachedField,
    place: (WorkspaceId, String),
    batch: Vec<QueuedJob>,
    fresh: Vec<(CallSeed, Embedding)>,
) -> (Plan, Vec<QueuedJob>) {
    let mut plan = Plan {
        held,
        outcomes: Vec::with_capacity(batch.len()),
        commands: Vec::new(),
        answers: Vec::new(),
        entries: Vec::new(),
        last: None,
    };
    for (asked, (fresh, embedding)) in batch.iter().zip(fresh) {
        let outcome = plan.decide(&place, asked, &fresh, embedding);
        plan.outcomes.push(outcome);
    }
    (plan, batch)
}

impl Plan {
    fn decide(
        &mut self,
        place: &(WorkspaceId, String),
        asked: &QueuedJob,
        fresh: &CallSeed,
        embedding: Embedding,
    ) -> Outcome {
        let operation = asked.task.operation();
        if let Some(last) = self.last.take() {
            self.held.version += last.steps.len() as u64;
            if !commit(&mut self.held.field, &last) {
                let message = "internal error";
                return Outcome::Refused(Refusal::new(Code::InternalError, message, operation));
            }
        }
        let founds = self.held.version == 0 && operation == Some(Operation::Register);
        if founds && asked.sender.caller.ceiling < OPERATOR {
            let message =
                "this field does not exist yet: only a key with `field:admin` can create it";
            return Outcome::Refused(Refusal::new(Code::Forbidden, message, operation));
        }
        let mut answer = None;
        let decision = match &asked.task {
            Job::Message(envelope) => {
                let call = Call {
                    envelope,
                    caller: Some(&asked.sender.caller),
                    fresh,
                    embedding,
                    detection: Detection::Here,
                };
                match decide(&self.held.field, &call) {
                    Ok(MessageDecision::New(mut decision)) => {
                        let kept = match &decision.kept {
                            StoredAnswer::Whole => &decision.answer,
                            StoredAnswer::WithoutText(kept) => kept,
                        };
                        let kept = Blob::new(salted_bytes(&salt(fresh), kept));
                        decision.keep_answer(kept.digest);
                        answer = Some(kept);
                        Ok(decision)
                    }
                    Ok(MessageDecision::Repeated(message)) => return Outcome::Repeated(message),
                    Err(refusal) => Err(refusal),
                }
            }
            Job::Retract {
                agent_id,
                unit_id,
                reason,
            } => {
                let act = Administration::Retract {
                    caller: Some(asked.sender.caller.clone()),
                    agent_id: agent_id.clone(),
                    unit_id: unit_id.clone(),
                    reason: reason.clone(),
                };
                administer(&self.held.field, &act, fresh)
            }
            Job::Escalate { conflict_id } => {
                let act = Administration::Escalate {
                    conflict_id: conflict_id.clone(),
                    reason: OVERDUE.to_owned(),
                };
                administer(&self.held.field, &act, fresh)
            }
            Job::Enrich { unit_id, .. } => {
                let unit_id = unit_id.clone();
                let act = Administration::Enrich { unit_id, embedding };
                administer(&self.held.field, &act, fresh)
            }
        };
        let mut decision = match decision {
            Ok(decision) => decision,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        let mut entries = entries_of(&decision);
        if let Some(first) = entries.first_mut() {
            first.blobs.extend(answer);
        }
        let order = WriteField {
            workspace_id: place.0.clone(),
            name: place.1.clone(),
            version: self.held.version,
            room: room_of(&decision, &asked.sender.caller),
            entries,
        };
        self.commands.push(Command {
            actor: asked.sender.actor.clone(),
            idempotency_key: None,
            order: Order::WriteField(Box::new(order)),
        });
        // Applying needs the steps alone, and an answer can be large.
        self.answers.push(std::mem::take(&mut decision.answer));
        let entries = decision.steps.iter().map(|(entry, _)| entry.clone());
        self.entries.push(entries.collect());
        self.last = Some(decision);
        Outcome::Written(self.commands.len() - 1)
    }
}

/// Returns which room an operation needs. A purge must always be possible, and so must be to give up on a vote; neither a
/// reading nor what a key does that may only look takes room from those who write.
fn room_of(decision: &Decision, caller: &Caller) -> FieldRoom {
    let mut entries = decision.steps.iter().map(|(entry, _)| entry);
    let is_free =
        |entry: &Entry| is_purge(entry) || matches!(entry.event, Event::ConflictEscalated { .. });
    if entries.clone().any(is_free) {
        return FieldRoom::Free;
    }
    let reads =
        |entry: &Entry| matches!(entry.event, Event::Attuned { .. } | Event::Replayed { .. });
    match caller.ceiling < STANDARD || entries.all(reads) {
        true => FieldRoom::Apart,
        false => FieldRoom::Taken,
    }
}

/// Returns the salt of what is kept for a call.
fn salt(fresh: &CallSeed) -> String {
    let digest = canon::sha256_parts([fresh.nonce.as_slice(), b"kept"]);
    digest.hex().chars().take(32).collect()
}

/// Returns the entries of a decision as they are stored, with what lies beside them.
fn entries_of(decision: &Decision) -> Vec<FieldEntry> {
    let stored = decision.steps.iter().map(|(entry, content)| {
        let mut blobs = Vec::new();
        let mut vector_sha256 = None;
        if let Some(content) = content {
            if let Some(text) = &content.text {
                blobs.push(Blob::new(text.bytes()));
            }
            if let Some(vector) = &content.vector {
                let salt = content.text.as_ref().map(|text| text.salt.clone());
                let kept = Salted {
                    salt: salt.unwrap_or_default(),
                    value: vector,
                };
                let blob = Blob::new(kept.bytes());
                vector_sha256 = Some(blob.digest);
                blobs.push(blob);
            }
        }
        FieldEntry {
            members: entry.members(vector_sha256),
            blobs,
        }
    });
    stored.collect()
}
