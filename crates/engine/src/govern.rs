//! Governed sessions on the server: programs elsewhere ask before they call a model and after they ran a tool.
//!
//! A session is a Task whose inputs come through here instead of from a worker. What is kept in memory is a fold of the
//! Task's own log (`govern/fold.rs`) and may be gone at any time. An input is judged on it before the turn, and the turn
//! refuses it when the Task has gone on since: then it is judged again. So two programs that drive one session see each
//! other's every step, and what was answered is durable.

mod fold;
mod open;
mod tend;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use canon::{Digest, Map, Value};
use domain::{
    Command, Document, EffectIntent, EffectResult, Event, GOVERNED, Govern, GovernTask,
    GovernedAnswer, GovernedInput, GovernedOperation, Kind, Move, NewMessage, Order, PermissionId,
    Position, Problem, Refusal, ResourceKind, Role, SessionId, State, Status, Task, TaskId,
    Timestamp, WorkspaceId,
};
use runs::workflow::governed::{Contracts, Ended, Taken, awaited};
use serde_json::json;
use tokio::sync::Notify;

use crate::caller::Caller;
use crate::dispatch::Idempotency;
use crate::engine::Engine;
use crate::port::{ReadEvents, Scope};
use crate::refused::Refused;
use crate::turn::{ClaimRequest, Done, Lease};
use fold::Folded;

/// What this process knows of open governed sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    known: Mutex<BTreeMap<Position, Arc<Known>>>,
    contracts: Mutex<BTreeMap<Digest, Contracts>>,
    /// Wakes whoever looks after what is overdue.
    some: Notify,
}

/// An open governed session.
#[derive(Debug)]
struct Known {
    id: TaskId,
    /// Held while an input is judged and committed; empty where the log has to be read again.
    folded: tokio::sync::Mutex<Option<Folded>>,
    signs: Mutex<Signs>,
}

/// What says whether a session needs looking after.
#[derive(Debug, Clone, Copy)]
struct Signs {
    /// When its program was last heard.
    heard: Timestamp,
    /// When people's time to answer is over.
    deadline: Option<Timestamp>,
    /// False until its log was read: it may have a deadline.
    is_folded: bool,
}

impl Sessions {
    /// Compiled sets that are kept; others are compiled again.
    const CONTRACTS_MAX: usize = 64;

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Position, Arc<Known>>> {
        // Each change is one call on the map.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what a commit made of Tasks.
    pub(crate) fn after_commit(&self, changed: &[Arc<Document>], now: Timestamp) {
        for document in changed {
            self.found(document, now);
        }
    }

    /// Takes note of a Task, whoever left it.
    pub(crate) fn found(&self, document: &Document, now: Timestamp) {
        let State::Task(task) = &document.state else {
            return;
        };
        if !is_governed(task) {
            return;
        }
        let mut known = self.lock();
        if task.status.is_terminal() {
            known.remove(&document.key);
        } else if !known.contains_key(&document.key)
            && let Ok(id) = TaskId::parse(&document.id)
        {
            known.insert(document.key, Arc::new(Known::new(id, now)));
            self.some.notify_one();
        }
    }

    fn find(&self, document: &Document, now: Timestamp) -> Result<Arc<Known>, Refused> {
        let id = TaskId::parse(&document.id).map_err(|error| Refused::Internal {
            detail: error.to_string(),
        })?;
        let found = self.lock().get(&document.key).map(Arc::clone);
        // One that has ended is read for this once.
        Ok(found.unwrap_or_else(|| Arc::new(Known::new(id, now))))
    }

    /// Returns compiled contracts, compiled once for all sessions with the same files.
    fn compiled(&self, files: Digest) -> Option<Contracts> {
        let known = self.contracts.lock();
        let known = known.unwrap_or_else(PoisonError::into_inner);
        known.get(&files).cloned()
    }

    fn keep_compiled(&self, files: Digest, contracts: Contracts) {
        let known = self.contracts.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if known.len() >= Self::CONTRACTS_MAX {
            known.clear();
        }
        known.insert(files, contracts);
    }
}

impl Known {
    fn new(id: TaskId, now: Timestamp) -> Self {
        Self {
            id,
            folded: tokio::sync::Mutex::new(None),
            signs: Mutex::new(Signs {
                heard: now,
                deadline: None,
                is_folded: false,
            }),
        }
    }

    fn signs(&self) -> MutexGuard<'_, Signs> {
        self.signs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True for a Task that is a governed session, and not a replay of one.
pub(crate) fn is_governed(task: &Task) -> bool {
    task.workflow == GOVERNED && task.replay.is_none() && task.imported.is_none()
}

/// What an input came to.
pub(crate) struct Governed {
    answer: Result<Value, Problem>,
    /// None when there was nothing to record.
    done: Option<Done>,
}

/// How often an input is judged again because its Task has gone on.
const STALE_TRIES: usize = 50;

impl Engine {
    /// Carries out a request about a governed session and returns its answer, and whether it made something.
    ///
    /// # Errors
    /// See [`Refused`].
    pub async fn govern(
        &self,
        caller: &Caller,
        request: Govern,
        idempotency: Option<Idempotency>,
    ) -> Result<(Value, bool), Refused> {
        if self.is_draining() {
            return Err(Refused::Draining);
        }
        let request = domain::Request::Govern(request);
        for scope in request.scopes() {
            caller.require(scope)?;
        }
        let added = crate::quota::added(&request);
        let domain::Request::Govern(request) = request else {
            return Err(no_session());
        };
        match request {
            Govern::Open(new) => self.open_governed(caller, *new, idempotency).await,
            Govern::Do {
                session,
                workspace_id,
                operation,
            } => {
                let document = self
                    .governed_task(caller, &session, workspace_id.as_ref())
                    .await?;
                let workspace = crate::read::workspace_of(&document);
                let claim = idempotency
                    .as_ref()
                    .map(|given| self.claim(caller, workspace.as_ref(), given));
                let name = operation.name();
                if let Some(claim) = claim
                    && let Some(done) = self.claimed(claim).await?
                {
                    let answer = self
                        .recorded_answer(document.key, done.answer, name)
                        .await?;
                    return Ok((answer?, false));
                }
                if let Some(bytes) = added {
                    self.may_store(workspace.as_ref(), bytes).await?;
                }
                let key = idempotency.map(|given| given.key);
                let governed = self
                    .take_input(caller, &document, *operation, claim, key, None)
                    .await?;
                Ok((governed.answer?, true))
            }
        }
    }

    /// Finds the Task of a governed session that the caller may see: by the session's own id in one of the caller's
    /// Workspaces, or by the id of its Session.
    pub(crate) async fn governed_task(
        &self,
        caller: &Caller,
        session: &str,
        workspace: Option<&WorkspaceId>,
    ) -> Result<Arc<Document>, Refused> {
        let mut ids = Vec::new();
        if domain::is_governed_id(session) {
            let own = match (workspace, caller.workspaces()) {
                (Some(named), _) => vec![named.clone()],
                (None, Some(bound)) => bound.to_vec(),
                (None, None) => vec![WorkspaceId::local()],
            };
            ids.extend(own.iter().map(|id| TaskId::governed(id, session)));
        }
        if SessionId::parse(session).is_ok()
            && let Some(document) = self.shared_document(session).await?
            && let State::Session(of) = &document.state
        {
            let payload = self.payload(of.metadata).await?;
            let own = payload
                .get("metadata")
                .and_then(|metadata| metadata.get("replay_session_id"))
                .and_then(Value::as_str);
            ids.extend(own.map(|own| TaskId::governed(&of.workspace_id, own)));
        }
        for id in ids {
            let Some(document) = self.shared_document(id.as_str()).await? else {
                continue;
            };
            let seen = matches!(&document.state, State::Task(task)
                if is_governed(task) && caller.sees(Some(&task.workspace_id)));
            if seen {
                return Ok(document);
            }
        }
        Err(no_session())
    }

    /// Refuses to go on unless the caller may see a governed session.
    ///
    /// # Errors
    /// There is none of this name for the caller.
    pub async fn sees_governed(
        &self,
        caller: &Caller,
        session: &str,
        workspace: Option<&WorkspaceId>,
    ) -> Result<(), Refused> {
        self.governed_task(caller, session, workspace)
            .await
            .map(drop)
    }

    /// Has a session take an input: judged on its newest state, and durable with everything it brings about. An input that
    /// ends it may close its Session in the same commit: then that is what is answered.
    pub(crate) async fn take_input(
        &self,
        caller: &Caller,
        document: &Document,
        operation: GovernedOperation,
        claim: Option<ClaimRequest>,
        idempotency_key: Option<String>,
        closes: Option<&SessionId>,
    ) -> Result<Governed, Refused> {
        let shared = &self.shared;
        let known = shared.governed.find(document, shared.clock.now())?;
        if caller.key_id.is_some() {
            known.signs().heard = shared.clock.now();
        }
        let mut slot = known.folded.lock().await;
        for _ in 0..STALE_TRIES {
            let current = self.shared_document(known.id.as_str()).await?;
            let current = current.ok_or_else(no_session)?;
            let State::Task(task) = &current.state else {
                return Err(no_session());
            };
            // Taken out as long as it may be ahead of the log: whoever is stopped here leaves nothing wrong behind.
            let mut folded = self.folded(slot.take(), &current, task).await?;
            let input = GovernedInput {
                at: shared.clock.now().max(folded.last),
                actor: caller.actor.clone(),
                key_id: caller.key_id.clone(),
                request_id: PermissionId::from_body(&shared.ids.body()),
                operation: folded.kept(operation.clone()),
            };
            if task.status.is_terminal() {
                let answer = ended_answer(&folded, task, &input);
                return Ok(Governed { answer, done: None });
            }
            if matches!(input.operation, GovernedOperation::Decide(_))
                && task.created_by == caller.actor
            {
                *slot = Some(folded);
                return Err(Refused::ApproverMustDiffer);
            }
            let taken = folded.session.take(&input);
            if !taken.changed {
                let answer = taken.answer;
                *slot = Some(folded);
                return Ok(Governed { answer, done: None });
            }
            if taken.end.is_some() {
                self.know_task_log(current.key).await?;
            }
            let order = GovernTask {
                id: known.id.clone(),
                version: current.version,
                answer: answered(&taken, &input),
                moves: self.moves(folded.inputs, &input, &taken),
            };
            let order = Order::GovernTask(Box::new(order));
            let (before, order) = match closes {
                Some(session) => (Some(order), Order::CloseSession(session.clone())),
                None => (None, order),
            };
            let command = Command {
                actor: caller.actor.clone(),
                idempotency_key: idempotency_key.clone(),
                order,
            };
            match self.order_both(before, command, claim, Lease::None).await {
                Ok(done) if done.changed => {
                    folded.committed(&done.written, current.key, input.at);
                    let mut signs = known.signs();
                    signs.deadline = folded.session.next_deadline();
                    signs.is_folded = true;
                    drop(signs);
                    *slot = Some(folded);
                    let (answer, done) = (taken.answer, Some(done));
                    return Ok(Governed { answer, done });
                }
                // The same request came twice at once, and the other one was first.
                Ok(_) if closes.is_some() => {
                    let answer = Ok(Value::Null);
                    return Ok(Governed { answer, done: None });
                }
                Ok(done) => {
                    let name = operation.name();
                    let answer = self.recorded_answer(current.key, done.answer, name).await?;
                    return Ok(Governed { answer, done: None });
                }
                Err(Refused::Domain(Refusal::Stale)) => {}
                Err(other) => return Err(other),
            }
        }
        Err(Refused::Busy { what: "session" })
    }

    /// Writes down an input and what it brought about, in the order in which a replay comes to it.
    fn moves(&self, inputs: u64, input: &GovernedInput, taken: &Taken) -> Vec<Move> {
        let ids = &self.shared.ids;
        let effect = awaited(inputs + 1);
        let mut moves = vec![Move::RecordEffect(EffectResult {
            key: effect.key,
            kind: effect.kind.record_kind().to_owned(),
            ok: true,
            value: serde_json::to_value(input).unwrap_or_default(),
            provider_request_id: None,
            model: None,
            observed: None,
            interrupted_through: None,
        })];
        for note in &taken.notes {
            let payload = note.payload.clone();
            moves.push(match note.kind {
                Kind::ToolApprovalRequired => Move::Pose {
                    request: input.request_id.clone(),
                    payload,
                },
                kind => Move::Note { kind, payload },
            });
        }
        for (request, reason) in &taken.withdrawn {
            moves.push(Move::Withdraw {
                request: request.clone(),
                reason: (*reason).to_owned(),
            });
        }
        match &taken.end {
            None => moves.push(Move::RequestEffect(intent(inputs + 2))),
            Some(Ended::Canceled { reason }) => {
                moves.push(Move::RequestEffect(intent(inputs + 2)));
                moves.push(Move::Cancel {
                    ids: self.end_ids(),
                    reason: reason.clone(),
                });
            }
            Some(Ended::Completed { text }) => {
                let message = NewMessage {
                    id: domain::MessageId::from_body(&ids.body()),
                    salt: ids.salt(),
                    role: Role::Assistant,
                    parts: vec![json!({"type": "text", "text": text, "visibility": "public"})],
                    metadata: Map::new(),
                };
                let messages = vec![message.id.clone()];
                moves.push(Move::Say(message));
                moves.push(Move::Complete {
                    ids: self.end_ids(),
                    summary: text.clone(),
                    messages,
                });
            }
            Some(Ended::Failed { code, message }) => moves.push(Move::Fail {
                ids: self.end_ids(),
                code: (*code).to_owned(),
                message: message.clone(),
                details: Map::new(),
            }),
        }
        moves
    }

    /// Finds what a session answered to an input: the commit that recorded it also says so.
    async fn recorded_answer(
        &self,
        task: Position,
        at: Position,
        operation: &str,
    ) -> Result<Result<Value, Problem>, Refused> {
        let query = ReadEvents {
            scope: Scope::Task(task),
            after: Position(at.0.saturating_sub(1)),
            limit: 32,
        };
        for stored in self.shared.store.events(query).await? {
            let mut event = Event::parse(&stored.bytes).map_err(|error| Refused::Internal {
                detail: error.to_string(),
            })?;
            let is_answer = event.kind() == Ok(Kind::ContractDecided)
                && event.payload.get("operation").and_then(Value::as_str) == Some(operation);
            if is_answer {
                crate::view::resolve_blobs(&*self.shared.store, &mut event.payload).await?;
                return Ok(answer_in(&event.payload));
            }
        }
        Err(Refused::Internal {
            detail: "an input was recorded without its answer".to_owned(),
        })
    }

    /// Returns the request about a governed session that a request of the protocol is: its approvals and its cancellation
    /// go the same way, whichever door they come by.
    pub(crate) async fn as_governed(
        &self,
        caller: &Caller,
        request: &domain::Request,
    ) -> Result<Option<(Arc<Document>, GovernedOperation)>, Refused> {
        use domain::Request;
        let task_id = match request {
            Request::CancelTask { id, .. } => id.clone(),
            Request::RespondPermission { id, .. } => {
                self.visible_permission(caller, id).await?.task_id
            }
            _ => return Ok(None),
        };
        let Some(document) = self.shared_document(task_id.as_str()).await? else {
            return Ok(None);
        };
        let is_open = matches!(&document.state, State::Task(task)
            if is_governed(task) && !task.status.is_terminal());
        if !is_open {
            return Ok(None);
        }
        let operation = match request {
            Request::CancelTask { reason, .. } => GovernedOperation::Kill {
                reason: Some(reason.clone().unwrap_or_else(|| "canceled".to_owned())),
            },
            Request::RespondPermission {
                id,
                approved,
                remarks,
                ..
            } => {
                let Some(proposal_id) = self.proposal_of(&document, id).await? else {
                    return Ok(None);
                };
                let text = |name: &str| remarks.get(name).and_then(Value::as_str);
                GovernedOperation::Decide(domain::Decide {
                    proposal_id,
                    approve: *approved == Some(true),
                    decided_by: caller.actor.clone(),
                    reason: text("reason").or(text("note")).map(str::to_owned),
                })
            }
            _ => return Ok(None),
        };
        Ok(Some((document, operation)))
    }

    /// Finds the proposal that waits for a permission request.
    async fn proposal_of(
        &self,
        document: &Document,
        request: &PermissionId,
    ) -> Result<Option<String>, Refused> {
        let known = self
            .shared
            .governed
            .find(document, self.shared.clock.now())?;
        let mut slot = known.folded.lock().await;
        let State::Task(task) = &document.state else {
            return Ok(None);
        };
        let folded = self.folded(slot.take(), document, task).await?;
        let found = folded.session.proposal_of(request);
        *slot = Some(folded);
        Ok(found)
    }

    /// Shows a governed session.
    ///
    /// # Errors
    /// There is none of this name for the caller.
    pub async fn governed(
        &self,
        caller: &Caller,
        session: &str,
        workspace: Option<&WorkspaceId>,
        with_pending: bool,
    ) -> Result<Value, Refused> {
        caller.require("tasks:read")?;
        let document = self.governed_task(caller, session, workspace).await?;
        let State::Task(task) = &document.state else {
            return Err(no_session());
        };
        let (session_id, status) = (task.session_id.clone(), task.status);
        let mut shown = self
            .read_folded(&document, |folded| {
                let mut shown = folded.session.shown();
                if let (Value::Object(members), true) = (&mut shown, with_pending) {
                    members.insert("pending".to_owned(), folded.session.pending());
                }
                shown
            })
            .await?;
        if let Value::Object(members) = &mut shown {
            let protocol =
                json!({"session_id": session_id, "task_id": &*document.id, "status": status});
            members.insert("protocol".to_owned(), protocol);
        }
        Ok(shown)
    }

    /// Shows a proposal; while people are asked, waits for their answer up to a time.
    ///
    /// # Errors
    /// There is no such session or proposal for the caller.
    pub async fn governed_proposal(
        &self,
        caller: &Caller,
        (session, workspace): (&str, Option<&WorkspaceId>),
        proposal: &str,
        wait: Duration,
    ) -> Result<Value, Refused> {
        caller.require("tasks:read")?;
        let document = self.governed_task(caller, session, workspace).await?;
        let mut watch = self.watch_task(document.key);
        let mut late = self.shared.clock.sleep(wait);
        let mut is_late = wait.is_zero();
        loop {
            let document = self.shared_document(&document.id).await?;
            let document = document.ok_or_else(no_session)?;
            let now = self.shared.clock.now();
            let found = self
                .read_folded(&document, |folded| folded.session.proposal(proposal, now))
                .await?;
            let Some((shown, waits)) = found else {
                let problem = Problem::new(404, "unknown_proposal", "no such proposal");
                return Err(Refused::Governed(Box::new(problem)));
            };
            if !waits || is_late || self.is_draining() {
                return Ok(shown);
            }
            tokio::select! {
                biased;
                () = &mut late => is_late = true,
                () = watch.changed() => {}
            }
        }
    }

    /// Lists the approvals of governed sessions that wait, oldest first.
    ///
    /// # Errors
    /// As [`Engine::list`].
    pub async fn governed_approvals(
        &self,
        caller: &Caller,
        after: Position,
        limit: usize,
    ) -> Result<(Vec<Value>, Option<Position>), Refused> {
        let request = crate::read::ListRequest {
            kind: ResourceKind::Permission,
            workspace_id: None,
            session_id: None,
            task_id: None,
            after,
            limit,
        };
        let now = self.shared.clock.now();
        let order = crate::read::Order::OldestFirst;
        let keep = |_: &Document| crate::read::Look::Keep;
        let page = self
            .list_where(caller, request, order, true, keep, |view| {
                shown_approval(view, now).is_some()
            })
            .await?;
        let shown = page
            .views
            .iter()
            .filter_map(|view| shown_approval(view, now));
        Ok((shown.collect(), page.next))
    }

    async fn read_folded<T>(
        &self,
        document: &Document,
        read: impl FnOnce(&Folded) -> T,
    ) -> Result<T, Refused> {
        let known = self
            .shared
            .governed
            .find(document, self.shared.clock.now())?;
        let mut slot = known.folded.lock().await;
        // Whoever had it before may have written meanwhile.
        let current = self.shared_document(&document.id).await?;
        let current = current.ok_or_else(no_session)?;
        let State::Task(task) = &current.state else {
            return Err(no_session());
        };
        let folded = self.folded(slot.take(), &current, task).await?;
        let found = read(&folded);
        *slot = Some(folded);
        Ok(found)
    }
}

impl Governed {
    /// Returns what was carried out, if anything was.
    pub(crate) fn done(self) -> Option<Done> {
        self.done
    }

    /// Returns what was carried out, for answers that show a resource of the protocol.
    pub(crate) fn into_done(self, unchanged: Done) -> Result<Done, Refused> {
        self.answer?;
        Ok(self.done.unwrap_or(unchanged))
    }
}

/// Shows a permission request as the approval of a proposal; none when it is something else, or its time is over.
fn shown_approval(view: &crate::view::View, now: Timestamp) -> Option<Value> {
    let State::Permission(request) = &view.document.state else {
        return None;
    };
    if request.answer != domain::Answer::Pending {
        return None;
    }
    let asked = view.payload(request.asked)?.get("request")?;
    let governed = asked.get("governed")?;
    let expires_at = governed.get("expires_at")?.as_str()?;
    if Timestamp::parse(expires_at).is_ok_and(|expires| now >= expires) {
        return None;
    }
    Some(json!({
        "id": &*view.document.id,
        "session_id": governed.get("session_id"),
        "proposal_id": governed.get("proposal_id"),
        "workspace_id": request.workspace_id,
        "task_id": request.task_id,
        "status": "pending",
        "expires_at": expires_at,
        "approval_requests": governed.get("approval_requests"),
    }))
}

fn no_session() -> Refused {
    Refused::Domain(Refusal::NotFound {
        object: ResourceKind::Session.object(),
        param: None,
    })
}

fn intent(number: u64) -> EffectIntent {
    let effect = awaited(number);
    EffectIntent {
        request_sha256: effect.request_digest(),
        kind: effect.kind.record_kind().to_owned(),
        repeatable: effect.repeatable,
        key: effect.key,
        parts: None,
    }
}

/// Returns the answer to a permission request that an input is.
fn answered(taken: &Taken, input: &GovernedInput) -> Option<GovernedAnswer> {
    let (request, approved) = taken.decided.clone()?;
    let GovernedOperation::Decide(decide) = &input.operation else {
        return None;
    };
    let mut remarks = Map::new();
    remarks.insert("decided_by".to_owned(), decide.decided_by.clone().into());
    if let Some(reason) = &decide.reason {
        remarks.insert("reason".to_owned(), reason.clone().into());
    }
    Some(GovernedAnswer {
        request,
        approved,
        remarks,
        key_id: input.key_id.clone(),
    })
}

/// Answers for a session that is over: what only tells how it ended is still answered.
fn ended_answer(folded: &Folded, task: &Task, input: &GovernedInput) -> Result<Value, Problem> {
    let killed = task.status == Status::Canceled;
    match &input.operation {
        GovernedOperation::Kill { .. } => return Ok(json!({"killed": killed})),
        GovernedOperation::Restore => return Ok(folded.session.shown()),
        GovernedOperation::Heartbeat { .. } if folded.session.is_over() => {
            let (state_version, control_revision) = folded.session.versions();
            return Ok(json!({
                "state_version": state_version,
                "control_revision": control_revision,
                "killed": killed,
            }));
        }
        _ => {}
    }
    Err(folded.session.over().unwrap_or_else(|| match task.status {
        Status::Failed => {
            let message = "the session was given up: its program was not heard for ten minutes";
            Problem::new(410, "session_lost", message)
        }
        _ => Problem::new(410, "killed", "the session was killed"),
    }))
}

fn answer_in(payload: &Map<String, Value>) -> Result<Value, Problem> {
    let Some(problem) = payload.get("problem") else {
        return Ok(payload.get("answer").cloned().unwrap_or_default());
    };
    let text = |name: &str| {
        problem
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let status = problem.get("status").and_then(Value::as_u64);
    let status = status.and_then(|status| u16::try_from(status).ok());
    let members = problem.get("members").and_then(Value::as_object);
    Err(Problem {
        members: members.cloned().unwrap_or_default(),
        ..Problem::new(status.unwrap_or(409), text("code"), text("message"))
    })
}
