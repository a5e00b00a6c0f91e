//! Dispatch: from an authenticated caller's request to a durable answer.
//!
//! Below every transport and above every turn. The order of work is always the same: scopes; the Workspace, from what
//! the request names and the caller may see; the idempotency claim, so that a repeated request gets its first answer
//! also where building it again would be refused; ids and the command; its turn, which writes the claim with the
//! commit, or nothing; after a submit the settle window. The answer is built from what the turn wrote, or from the
//! store when it wrote nothing: equal requests with one key get equal answers because it is always rebuilt.

mod answer;
mod close;
mod import;
mod order;
pub(crate) mod replay;
mod session;
mod session_replay;
mod task;
mod upload;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use canon::{Digest, Value, jcs};
use domain::{
    Command, Event, MessageId, Order, Position, Refusal, Request, ResourceRef, State, Status, View,
    WorkspaceId, payload,
};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::sync::watch;

use crate::caller::Caller;
use crate::engine::{Engine, Shared};
use crate::port::{BoxFuture, ClaimScope};
use crate::quota::{self, Added, QuotaReservation};
use crate::refused::Refused;
use crate::transfer::Upload;
use crate::turn::{ClaimRequest, CommandOutcome, CommitContents, Lease};

/// An idempotency key with what it is scoped to besides actor and Workspace.
#[derive(Debug, Clone, PartialEq)]
pub struct Idempotency {
    /// The client's key.
    pub key: String,
    /// The method, such as `POST`.
    pub method: String,
    /// The canonical target.
    pub target: String,
    /// The request body; an absent one is an empty object.
    pub body: Value,
}

/// How long a submit waits before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// Until the Task ends or waits, or the settle window has passed.
    Window,
    /// Until the Task works.
    FirstWorking,
}

/// How a write goes on after its claim was looked up.
pub(crate) enum Entered {
    /// It was carried out before.
    Before(CommandOutcome),
    /// It is carried out now.
    Now {
        /// What its commit claims.
        claim: Option<ClaimRequest>,
        /// The client's key, for its event.
        key: Option<String>,
        /// Kept for content that is stored before the turn.
        room: Option<QuotaReservation>,
    },
}

/// A carried out request.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The resource that answers.
    pub view: View,
    /// The payload of the event that the answer stands for, when one does.
    pub event: Option<Arc<Event>>,
    /// False when nothing changed: a repetition, or everything was as ordered.
    pub changed: bool,
}

impl Engine {
    /// Carries out a write.
    ///
    /// # Errors
    /// See [`Refused`]. Nothing was written then.
    pub async fn dispatch(
        &self,
        caller: &Caller,
        request: Request,
        idempotency: Option<Idempotency>,
        settle: Settle,
    ) -> Result<Answer, Refused> {
        self.admit(caller, &request)?;
        let submits = matches!(request, Request::SubmitTask(_) | Request::ReplayTask(_));
        let to_task = matches!(request, Request::SendTaskMessage { .. });
        let done = self.carry_out(caller, request, idempotency, None).await?;
        let event = self.answering_event(&done).await?;
        let subject = match &event {
            Some(event) if !done.changed && done.subject.id.is_empty() => event.resource.clone(),
            _ => done.subject.clone(),
        };
        // A Task that was submitted has gone on since.
        let mut written = done.written;
        if submits {
            let key = written.document(&subject.id).map(|document| document.key);
            self.settle(&subject.id, key, settle).await?;
            written = CommitContents::default();
        }
        let view = if to_task {
            self.message_of(caller, &subject, event.as_deref(), &written)
                .await?
        } else {
            self.answer_view(caller, &subject, &written).await?
        };
        Ok(Answer {
            view,
            event,
            changed: done.changed,
        })
    }

    /// Refuses whoever may not ask for this at all, and everybody once a drain has begun. The first thing that happens to
    /// a write, whichever way it goes on.
    pub(crate) fn admit(&self, caller: &Caller, request: &Request) -> Result<(), Refused> {
        if self.is_draining() {
            return Err(Refused::Draining);
        }
        for scope in request.scopes() {
            caller.require(scope)?;
        }
        Ok(())
    }

    /// Looks for the first answer to a request in its Workspace, and for room for what it adds if there is none.
    pub(crate) async fn enter(
        &self,
        caller: &Caller,
        workspace: Option<&WorkspaceId>,
        idempotency: Option<Idempotency>,
        added: Added,
    ) -> Result<Entered, Refused> {
        let claim = idempotency
            .as_ref()
            .map(|given| self.claim(caller, workspace, given));
        if let Some(claim) = claim
            && let Some(done) = self.claimed(claim).await?
        {
            return Ok(Entered::Before(done));
        }
        let room = match added {
            Added::Little => None,
            Added::AtLeast(bytes) => {
                self.may_store(workspace, bytes).await?;
                None
            }
            Added::BeforeItsTurn(bytes) => self.reserve(workspace, bytes).await?,
        };
        Ok(Entered::Now {
            claim,
            key: idempotency.map(|given| given.key),
            room,
        })
    }

    async fn answering_event(&self, done: &CommandOutcome) -> Result<Option<Arc<Event>>, Refused> {
        match done.written.event(done.answer) {
            Some(event) => Ok(Some(Arc::clone(event))),
            None => Ok(self.event_at(done.answer).await?.map(Arc::new)),
        }
    }

    pub(crate) async fn event_at(&self, position: Position) -> Result<Option<Event>, Refused> {
        let stored = self.shared.store.event_at(position).await?;
        stored
            .map(|stored| Event::parse(&stored.bytes))
            .transpose()
            .map_err(|error| Refused::Internal {
                detail: error.to_string(),
            })
    }

    async fn answer_view(
        &self,
        caller: &Caller,
        subject: &ResourceRef,
        written: &CommitContents,
    ) -> Result<View, Refused> {
        let document = match written.document(&subject.id) {
            Some(document) => Some(Arc::clone(document)),
            None => self.shared_document(&subject.id).await?,
        };
        let document = document.map(Arc::unwrap_or_clone);
        let document = document.ok_or_else(|| Refused::Internal {
            detail: format!("`{}` was written and cannot be found", subject.id),
        })?;
        self.view(caller, document, written).await
    }

    /// A Message sent to a Task answers with the Message, whatever resource it went to.
    async fn message_of(
        &self,
        caller: &Caller,
        subject: &ResourceRef,
        event: Option<&Event>,
        written: &CommitContents,
    ) -> Result<View, Refused> {
        if &*subject.object == MessageId::OBJECT {
            return self.answer_view(caller, subject, written).await;
        }
        let mut id = event
            .and_then(|event| payload::Answered::of(&event.payload).message_id())
            .map(str::to_owned);
        if id.is_none() {
            // Nothing changed: the request was answered before, and its answering event names the Message.
            let request = self.answer_view(caller, subject, written).await?;
            id = request
                .payloads
                .values()
                .find_map(|payload| payload::Answered::of(payload).message_id())
                .map(str::to_owned);
        }
        match id {
            Some(id) => {
                let message = ResourceRef::new(MessageId::OBJECT, &id);
                self.answer_view(caller, &message, written).await
            }
            None => self.answer_view(caller, subject, written).await,
        }
    }

    fn carry_out<'a>(
        &'a self,
        caller: &'a Caller,
        request: Request,
        idempotency: Option<Idempotency>,
        content: Option<Box<Upload>>,
    ) -> BoxFuture<'a, Result<CommandOutcome, Refused>> {
        // A future is compiled where it is boxed: here, and not in each crate that waits for it.
        Box::pin(self.enter_and_order(caller, request, idempotency, content))
    }

    async fn enter_and_order(
        &self,
        caller: &Caller,
        mut request: Request,
        idempotency: Option<Idempotency>,
        content: Option<Box<Upload>>,
    ) -> Result<CommandOutcome, Refused> {
        /// How often a command is built again because the documents it was built on changed.
        const STALE_TRIES: usize = 50;
        let workspace = self.workspace(caller, &request).await?;
        let added = quota::added(&request);
        let entered = self.enter(caller, workspace.as_ref(), idempotency, added);
        let (claim, key, _room) = match entered.await? {
            Entered::Before(done) => return Ok(done),
            Entered::Now { claim, key, room } => (claim, key, room),
        };
        if let (Request::AttachContent { id, .. }, Some(content)) = (&request, content) {
            Box::pin(self.keep_content(caller, id, content)).await?;
        }
        if let Request::CloseSession(id) = &request {
            let closed = self.close_governed(caller, id, claim, key.clone());
            if let Some(done) = Box::pin(closed).await? {
                return Ok(done);
            }
        }
        if let Some((document, operation)) = self.as_governed(caller, &request).await? {
            let taken = self.take_input(caller, &document, operation, claim, key.clone(), None);
            let unchanged = CommandOutcome {
                subject: subject_of(&request).unwrap_or_else(|| ResourceRef::new("", "")),
                answer: document.key,
                changed: false,
                epoch: None,
                written: CommitContents::default(),
            };
            let done = Box::pin(taken).await;
            let done = done.and_then(|governed| governed.into_done(unchanged));
            let is_cancel = matches!(request, Request::CancelTask { .. });
            match done {
                // A session that cannot be read is not gone on with, and can always be stopped: as any Task is.
                Err(refused) if is_cancel && refused.is_unreadable() => {
                    let fault = refused.for_the_log();
                    tracing::warn!(task.id = %document.id, %fault, "a governed session is canceled unread");
                }
                done => return done,
            }
        }
        let again = rests_on_versions(&request).then(|| request.clone());
        let mut tries = 0;
        loop {
            let order = self.build(caller, request, workspace.clone()).await?;
            let salt = match &order {
                Order::SubmitReplay(order) => Some(order.salt.clone()),
                Order::ForkSession(order) => order.replay.as_ref().map(|of| of.salt.clone()),
                _ => None,
            };
            let command = Command {
                actor: caller.actor.clone(),
                idempotency_key: key.clone(),
                order,
            };
            let done = self.order(command, claim, Lease::None).await;
            if let (Some(salt), Err(_) | Ok(CommandOutcome { changed: false, .. })) = (&salt, &done)
            {
                self.shared.forget_secrets(salt);
            }
            match (done, &again) {
                (Err(Refused::Domain(Refusal::Stale)), Some(again)) if tries < STALE_TRIES => {
                    tries += 1;
                    request = again.clone();
                }
                (Err(Refused::Domain(Refusal::Stale)), _) => {
                    return Err(Refused::Busy { what: "session" });
                }
                (other, _) => return other,
            }
        }
    }

    /// Returns the answer that was given to a request with this key before.
    pub(crate) async fn claimed(
        &self,
        claim: ClaimRequest,
    ) -> Result<Option<CommandOutcome>, Refused> {
        let found = self.shared.store.claims(vec![claim.scope]).await?;
        let now = self.shared.clock.now();
        let found = found.into_iter().flatten().next();
        let Some(found) = found.filter(|found| found.expires_at > now) else {
            return Ok(None);
        };
        if found.body != claim.body {
            return Err(Refused::IdempotencyKeyReused);
        }
        Ok(Some(CommandOutcome {
            // Whose resource it is stands in the event at that position.
            subject: ResourceRef::new("", ""),
            answer: found.answer,
            changed: false,
            epoch: None,
            written: CommitContents::default(),
        }))
    }

    pub(crate) fn claim(
        &self,
        caller: &Caller,
        workspace: Option<&WorkspaceId>,
        given: &Idempotency,
    ) -> ClaimRequest {
        let workspace = workspace.map(WorkspaceId::as_str).unwrap_or_default();
        let scope = [
            caller.actor.as_str(),
            workspace,
            given.method.as_str(),
            given.target.as_str(),
            given.key.as_str(),
        ];
        ClaimRequest {
            scope: ClaimScope(self.mac(scope.iter().map(|part| part.as_bytes()))),
            body: self.mac([jcs(&given.body).as_slice()]),
        }
    }

    /// Keyed digest over parts, each preceded by its length, so that no two lists run together.
    pub(crate) fn mac<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> Digest {
        #[expect(clippy::expect_used, reason = "HMAC takes keys of every length")]
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(self.shared.store.secret())
            .expect("any key length");
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        Digest::from_bytes(mac.finalize().into_bytes().into())
    }

    /// Waits until a submitted Task is worth showing: never before WORKING while a worker is free (AP-LIFE-09),
    /// and for a short window until it ends or waits (C-20). Waits on the log.
    async fn settle(&self, id: &str, key: Option<Position>, settle: Settle) -> Result<(), Refused> {
        let key = match key {
            Some(key) => key,
            None => match self.shared_document(id).await? {
                Some(document) => document.key,
                None => return Ok(()),
            },
        };
        let mut watch = self.watch_task(key);
        let mut window = self.shared.clock.sleep(self.shared.limits.settle_window);
        let mut start_window = self.shared.clock.sleep(self.shared.limits.start_window);
        let mut window_over = false;
        loop {
            let found = self.shared_document(id).await?;
            let Some(State::Task(task)) = found.as_ref().map(|document| &document.state) else {
                return Ok(());
            };
            match task.status {
                Status::Submitted if window_over && !self.shared.work.has_free_worker() => {
                    return Ok(());
                }
                Status::Submitted => {}
                Status::Working if window_over || settle == Settle::FirstWorking => return Ok(()),
                Status::Working => {}
                Status::InputRequired
                | Status::AuthRequired
                | Status::Completed
                | Status::Failed
                | Status::Canceled => {
                    return Ok(());
                }
            }
            tokio::select! {
                biased;
                // Time first: news may always be there.
                () = &mut start_window => return Ok(()),
                () = &mut window, if !window_over => window_over = true,
                () = watch.changed() => {}
            }
        }
    }

    /// How long a client that was refused for being busy should wait.
    pub const RETRY_AFTER: Duration = Duration::from_secs(1);
}

/// Returns the resource that answers a request which a governed session may take.
fn subject_of(request: &Request) -> Option<ResourceRef> {
    match request {
        Request::CancelTask { id, .. } => Some(id.resource()),
        Request::RespondPermission { id, .. } => Some(id.resource()),
        _ => None,
    }
}

/// True for a request whose command holds what was read at some version: it is built again when that has passed.
fn rests_on_versions(request: &Request) -> bool {
    matches!(
        request,
        Request::ForkSession { .. }
            | Request::TruncateSession { .. }
            | Request::CloseSession(_)
            | Request::ReplayTask(_)
            | Request::ReplaySession(_)
            | Request::UpdatePersona { .. }
            | Request::CosignHead { .. }
    )
}

/// Who waits for which Task. A turn tells those whose Task it changed and nobody else.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    by_task: Mutex<BTreeMap<Position, watch::Sender<()>>>,
}

impl Waiters {
    /// Tells what was committed, once it can be read.
    pub(crate) fn after_commit(&self, written: &CommitContents) {
        let waiters = self.lock();
        if waiters.is_empty() {
            return;
        }
        for (stored, _) in written.events() {
            let keys = [stored.links.task, Some(stored.resource)];
            for key in keys.into_iter().flatten() {
                if let Some(waiter) = waiters.get(&key) {
                    waiter.send_replace(());
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Position, watch::Sender<()>>> {
        // Each change is one call on the map.
        self.by_task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hears of the commits that touch one Task, and of no others.
#[derive(Debug)]
pub(crate) struct TaskWatch {
    shared: Arc<Shared>,
    key: Position,
    changes: watch::Receiver<()>,
}

impl Engine {
    /// Watches a Task from now on: whoever looks at it afterwards misses nothing that this process commits.
    pub(crate) fn watch_task(&self, key: Position) -> TaskWatch {
        let shared = Arc::clone(&self.shared);
        let mut waiters = shared.waiters.lock();
        let changes = waiters
            .entry(key)
            .or_insert_with(|| watch::Sender::new(()))
            .subscribe();
        drop(waiters);
        TaskWatch {
            shared,
            key,
            changes,
        }
    }
}

impl TaskWatch {
    /// Returns when there is a reason to look at the Task again. Safe to drop and call again.
    pub(crate) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            // Invariant: the sender stays as long as there is a receiver.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for TaskWatch {
    fn drop(&mut self) {
        let mut waiters = self.shared.waiters.lock();
        if waiters
            .get(&self.key)
            .is_some_and(|waiter| waiter.receiver_count() <= 1)
        {
            waiters.remove(&self.key);
        }
    }
}
