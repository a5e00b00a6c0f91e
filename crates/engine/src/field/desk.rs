//! The desk of one field: its messages in order, decided together, committed together.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use canon::{Digest, Value};
use domain::{
    Blob, Command, FieldEntry, FieldId, FieldRoom, Order, Position, Refusal as DomainRefusal,
    WorkspaceId, WriteField,
};
use field::{
    Administration, Call, Caller, Code, Decided, Decision, Detection, Embedding, Entry, Envelope,
    Event, Field, Fresh, Kept, KeptAnswer, Message, Notification, OPERATOR, Operation, Refusal,
    STANDARD, SYSTEM, administer, decide, kept_bytes,
};
use futures_util::future::join_all;
use tokio::sync::{broadcast, oneshot};

use super::FieldRefused;
use super::listen::{Listeners, Seat};
use super::purge::{asks_to_purge, erased, is_purge, say_erased};
use crate::engine::Engine;
use crate::port::{Erased, Scope};
use crate::refused::Refused;
use crate::turn::{Done, Lease};

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

/// Something that waits to be done.
pub(super) struct Asked {
    sender: Sender,
    pub(super) task: Task,
    reply: oneshot::Sender<Answer>,
}

/// What is to be done.
pub(super) enum Task {
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
}

impl Task {
    fn operation(&self) -> Option<Operation> {
        match self {
            Task::Message(envelope) => Some(envelope.operation()),
            Task::Retract { .. } | Task::Enrich { .. } => None,
        }
    }

    fn asks_to_purge(&self) -> bool {
        matches!(self, Task::Message(envelope) if asks_to_purge(envelope))
    }
}

/// A field in memory.
pub(crate) struct Held {
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
pub(crate) struct Pushed {
    /// The sequence of the operation's last entry.
    pub(crate) seq: u64,
    /// For whom what.
    pub(crate) notifications: Vec<Notification>,
}

/// Where the messages of a field are carried out.
pub(crate) struct Desk {
    pub(super) workspace_id: WorkspaceId,
    pub(super) name: String,
    waiting: Mutex<Waiting>,
    /// None until it is read from the log, and after a commit that came to nothing.
    held: tokio::sync::Mutex<Option<Held>>,
    pushed: broadcast::Sender<Arc<Pushed>>,
    listeners: Arc<Listeners>,
    /// True while somebody comes back to units without a vector.
    pub(super) enriching: AtomicBool,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Asked>,
    /// True while somebody works off the queue.
    is_tended: bool,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Desk {
    pub(super) fn new(workspace_id: WorkspaceId, name: String) -> Self {
        Self {
            workspace_id,
            name,
            waiting: Mutex::default(),
            held: tokio::sync::Mutex::default(),
            pushed: broadcast::Sender::new(PUSHED_MAX),
            listeners: Arc::default(),
            enriching: AtomicBool::new(false),
        }
    }

    /// Returns what is pushed from now on, to this agent among others, while the seat is held.
    pub(super) fn listen(&self, agent_id: &str) -> (broadcast::Receiver<Arc<Pushed>>, Seat) {
        let seat = Seat::take(&self.listeners, agent_id);
        (self.pushed.subscribe(), seat)
    }

    pub(super) fn is_watched(&self) -> bool {
        self.pushed.receiver_count() > 0
    }

    pub(super) async fn held(&self) -> tokio::sync::MutexGuard<'_, Option<Held>> {
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

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_batch(&self) -> Vec<Asked> {
        let mut waiting = self.waiting();
        let count = waiting.queue.len().min(BATCH_LEN_MAX);
        if count == 0 {
            waiting.is_tended = false;
        }
        waiting.queue.drain(..count).collect()
    }
}

/// Gives the desk up, whatever ended the work: those who still wait are answered by that.
struct Tending(Arc<Desk>);

impl Drop for Tending {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        if waiting.is_tended {
            waiting.is_tended = false;
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
    held: Held,
    outcomes: Vec<Outcome>,
    commands: Vec<Command>,
    answers: Vec<Value>,
    /// The entries of each command.
    entries: Vec<Vec<Entry>>,
    /// The last decision, which nothing rests on yet: applied once it is durable.
    last: Option<Decision>,
}

impl Engine {
    /// Puts a message on the desk and waits for its answer.
    pub(super) async fn ask(&self, desk: &Arc<Desk>, sender: Sender, envelope: Envelope) -> Answer {
        self.put_on_desk(desk, sender, Task::Message(envelope))
            .await
    }

    /// Has the field itself do something, and waits until it is done.
    pub(super) async fn administer_field(&self, desk: &Arc<Desk>, task: Task) -> Answer {
        let sender = Sender {
            actor: SYSTEM.to_owned(),
            caller: Caller {
                key: SYSTEM.to_owned(),
                ceiling: OPERATOR,
                agents: Vec::new(),
            },
        };
        self.put_on_desk(desk, sender, task).await
    }

    pub(super) async fn put_on_desk(&self, desk: &Arc<Desk>, sender: Sender, task: Task) -> Answer {
        let (reply, answer) = oneshot::channel();
        let starts = {
            let mut waiting = desk.waiting();
            if waiting.queue.len() >= WAITING_MAX {
                return Err(Refused::Busy {
                    what: "pending_commands_max",
                }
                .into());
            }
            waiting.queue.push_back(Asked {
                sender,
                task,
                reply,
            });
            !std::mem::replace(&mut waiting.is_tended, true)
        };
        if starts {
            // Beside the caller: a client that goes away takes nobody else's message with it.
            let (engine, desk) = (self.clone(), Arc::clone(desk));
            self.shared.spawn.spawn(Box::pin(async move {
                let tending = Tending(desk);
                loop {
                    let batch = tending.0.next_batch();
                    if batch.is_empty() {
                        return;
                    }
                    engine.carry_out_batch(&tending.0, batch).await;
                }
            }));
        }
        answer.await.unwrap_or_else(|_| {
            let detail = "a message to a field came to no end".to_owned();
            Err(Refused::Internal { detail }.into())
        })
    }

    async fn carry_out_batch(&self, desk: &Arc<Desk>, mut batch: Vec<Asked>) {
        let mut held = desk.held().await;
        let mut tries = 0;
        while !batch.is_empty() {
            let state = match held.take() {
                Some(state) => state,
                None => match self.open_field(desk).await {
                    Ok(state) => state,
                    Err(refused) => return answer_all(batch, &refused),
                },
            };
            let embeddings = self.embeddings(&state.field, &batch).await;
            let failed = |embedding: &Embedding| matches!(embedding, Embedding::Failed(_));
            if embeddings.iter().any(failed) {
                self.enrich_later(desk);
            }
            let fresh = self
                .fresh(batch.len())
                .into_iter()
                .zip(embeddings)
                .collect();
            let work = desk_name(desk);
            let planned = self
                .run_blocking(move || plan(state, work, batch, fresh))
                .await;
            let (plan, asked) = match planned {
                Ok(planned) => planned,
                // The messages are gone with the work, and those who wait are told by that.
                Err(refused) => {
                    tracing::error!(
                        field = desk.name,
                        error = refused.for_the_log(),
                        "a batch was lost"
                    );
                    return;
                }
            };
            (*held, batch) = self.commit_batch(desk, plan, asked, &mut tries).await;
            *held = match held.take() {
                Some(state) => self.note_place(desk, state).await,
                None => None,
            };
        }
    }

    /// Reads a field, and comes back to units that were left without a vector.
    pub(super) async fn open_field(&self, desk: &Arc<Desk>) -> Result<Held, Refused> {
        let held = self.load_field(desk).await?;
        if held.field.pending_enrichment().next().is_some() {
            self.enrich_later(desk);
        }
        Ok(held)
    }

    /// Keeps a segment of the fold, where it is time for one: nobody else writes to the field meanwhile.
    async fn note_place(&self, desk: &Desk, mut held: Held) -> Option<Held> {
        if !held.is_due() {
            return Some(held);
        }
        let place = async {
            let id = FieldId::of(&desk.workspace_id, &desk.name);
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
        let kept: Result<Held, Refused> = place.await;
        if let Err(refused) = &kept {
            let error = refused.for_the_log();
            tracing::warn!(
                field = desk.name,
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
        desk: &Desk,
        plan: Plan,
        asked: Vec<Asked>,
        tries: &mut usize,
    ) -> (Option<Held>, Vec<Asked>) {
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
        let written: Vec<Result<Done, Refused>> = join_all(written).await;
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
        let listeners = desk.listeners.agents();
        if intact && !listeners.is_empty() {
            for entries in entries.iter().take(done) {
                let notifications = held.field.notifications(entries, &listeners);
                let seq = entries.last().map_or(0, |entry| entry.seq);
                if !notifications.is_empty() {
                    // That nobody listens is fine.
                    let _ = desk.pushed.send(Arc::new(Pushed { seq, notifications }));
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
            erasing = self.erase_for(desk, &mut held, digests).await;
            if let Err(refused) = &erasing {
                tracing::error!(
                    field = desk.name,
                    error = refused.for_the_log(),
                    "a purge is not at its end"
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
                    let answer = kept.map(|kept| held.field.answer_again(kept));
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
        desk: &Desk,
        held: &mut Held,
        digests: Vec<Digest>,
    ) -> Result<Erased, Refused> {
        if held.key.is_none() {
            let id = FieldId::of(&desk.workspace_id, &desk.name);
            let document = self.shared_document(id.as_str()).await?;
            held.key = document.map(|document| document.key);
        }
        self.erase(held, digests).await
    }

    /// Reads what is kept of the answer that was given to a message before.
    async fn answered_before(&self, message: &Message, operation: Option<Operation>) -> Answer {
        let operation = operation.map_or("message", Operation::as_str);
        let lost = |detail: &str| Refused::Internal {
            detail: format!("the answer to a {operation} cannot be given again: {detail}"),
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
                "the answer to this message showed what was purged since, and is gone with it";
            return Err(super::refusal(Code::UnitNotFound, message));
        };
        let kept: Kept<Value> =
            serde_json::from_slice(&bytes).map_err(|error| lost(&error.to_string()))?;
        Ok(kept.value)
    }

    fn fresh(&self, count: usize) -> Vec<Fresh> {
        let one = || Fresh {
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

fn answer_all(batch: Vec<Asked>, refused: &Refused) {
    for asked in batch {
        let _ = asked.reply.send(Err(refused.clone().into()));
    }
}

fn desk_name(desk: &Desk) -> (WorkspaceId, String) {
    (desk.workspace_id.clone(), desk.name.clone())
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
    held: Held,
    place: (WorkspaceId, String),
    batch: Vec<Asked>,
    fresh: Vec<(Fresh, Embedding)>,
) -> (Plan, Vec<Asked>) {
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
        asked: &Asked,
        fresh: &Fresh,
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
            let message = "this field does not exist yet: only a key with `field:admin` brings one into being";
            return Outcome::Refused(Refusal::new(Code::Forbidden, message, operation));
        }
        let mut answer = None;
        let decision = match &asked.task {
            Task::Message(envelope) => {
                let call = Call {
                    envelope,
                    caller: Some(&asked.sender.caller),
                    fresh,
                    embedding,
                    detection: Detection::Here,
                };
                match decide(&self.held.field, &call) {
                    Ok(Decided::New(mut decision)) => {
                        let kept = match &decision.kept {
                            KeptAnswer::Whole => &decision.answer,
                            KeptAnswer::WithoutText(kept) => kept,
                        };
                        let kept = Blob::new(kept_bytes(&salt(fresh), kept));
                        decision.keep_answer(kept.digest);
                        answer = Some(kept);
                        Ok(decision)
                    }
                    Ok(Decided::Repeated(message)) => return Outcome::Repeated(message),
                    Err(refusal) => Err(refusal),
                }
            }
            Task::Retract {
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
            Task::Enrich { unit_id, .. } => {
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

/// Returns which room an operation needs. A purge must always be possible, and neither a reading nor what a key does that
/// may only look takes room from those who write.
fn room_of(decision: &Decision, caller: &Caller) -> FieldRoom {
    let mut entries = decision.steps.iter().map(|(entry, _)| entry);
    if entries.clone().any(is_purge) {
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
fn salt(fresh: &Fresh) -> String {
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
                let kept = Kept {
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
