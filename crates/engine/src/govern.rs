//! Governed sessions on the server: programs elsewhere ask before they call a model and after they ran a tool.
//!
//! A session is a Task whose inputs come through here instead of from a worker. What is kept in memory is a fold of the
//! Task's own log (`govern/fold.rs`) and may be gone at any time. An input is judged on it before the turn, and the turn
//! refuses it when the Task has gone on since: then it is judged again. So two programs that drive one session see each
//! other's every step, and what was answered is durable.

mod demand;
mod fold;
mod input;
mod judge_limits;
mod open;
mod places;
mod protocol;
mod read;
mod upkeep;
mod workflow;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use canon::{Digest, Value};
use domain::{
    Document, EffectIntent, GOVERNED, GOVERNED_WORKFLOW, Govern, Position, Problem, Refusal,
    ResourceKind, SessionId, State, Task, TaskId, Timestamp, WorkspaceId,
};
use runs::workflow::governed::{Contracts, awaited};
use tokio::sync::Notify;

use crate::caller::Caller;
use crate::dispatch::{Entered, Idempotency};
use crate::engine::Engine;
use crate::port::BoxFuture;
use crate::quota::Added;
use crate::refused::Refused;
use crate::turn::CommandOutcome;
use fold::GovernedFold;
use places::Places;

pub use demand::{Demands, MinimumMode};
pub use read::WaitingApproval;

/// What this process knows of open governed sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    known: Mutex<BTreeMap<Position, Arc<OpenProgram>>>,
    contracts: Mutex<BTreeMap<Digest, Contracts>>,
    judge_limits: judge_limits::JudgeLimits,
    /// Held while an id is given to a session, by opening it or by taking a handoff for it: one id, one of both.
    naming: [tokio::sync::Mutex<()>; 32],
    /// The ids that open workflows gave to their sessions.
    places: Mutex<Places>,
    /// Wakes whoever looks after what is overdue.
    pub(crate) some: Notify,
}

/// An open governed session, or a workflow of some.
#[derive(Debug)]
struct OpenProgram {
    id: TaskId,
    /// Held while an input is judged and committed; empty where the log has to be read again.
    folded: Arc<tokio::sync::Mutex<Option<GovernedFold>>>,
    liveness: Mutex<Liveness>,
}

/// What says whether a session needs looking after.
#[derive(Debug, Clone, Copy)]
struct Liveness {
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
    /// What their patterns may take in memory, as they are counted: those of open sessions come on top.
    const PATTERNS_BYTES_MAX: u64 = 32 << 20;

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Position, Arc<OpenProgram>>> {
        // Each change is one call on the map.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what a commit made of Tasks.
    pub(crate) fn after_commit(&self, changed: &[Arc<Document>], now: Timestamp) {
        for document in changed {
            self.insert_open(document, now);
        }
    }

    /// Takes note of a Task, whoever left it.
    pub(crate) fn insert_open(&self, document: &Document, now: Timestamp) {
        let State::Task(task) = &document.state else {
            return;
        };
        if !is_governed(task) {
            return;
        }
        let mut known = self.lock();
        if task.status.is_terminal() {
            known.remove(&document.key);
            self.places().forget(document.key);
        } else if !known.contains_key(&document.key)
            && let Ok(id) = TaskId::parse(&document.id)
        {
            if &*task.workflow == GOVERNED_WORKFLOW {
                self.places().found(document.key, id.clone());
            }
            known.insert(document.key, Arc::new(OpenProgram::new(id, now)));
            self.some.notify_one();
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        // A change that is half done leaves an id taken or a workflow unread: both are safe.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, document: &Document, now: Timestamp) -> Result<Arc<OpenProgram>, Refused> {
        let id = TaskId::parse(&document.id).map_err(|error| Refused::Internal {
            detail: error.to_string(),
        })?;
        let found = self.lock().get(&document.key).map(Arc::clone);
        // One that has ended is read for this once.
        Ok(found.unwrap_or_else(|| Arc::new(OpenProgram::new(id, now))))
    }

    /// Keeps others from giving an id away at the same time.
    async fn naming(&self, id: &TaskId) -> tokio::sync::MutexGuard<'_, ()> {
        let sum = id.as_str().bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        let [first, ..] = &self.naming;
        let lock = self.naming.get(sum % self.naming.len());
        lock.unwrap_or(first).lock().await
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
        let bytes = contracts.patterns_bytes();
        let kept: u64 = known.values().map(Contracts::patterns_bytes).sum();
        if known.len() >= Self::CONTRACTS_MAX
            || kept.saturating_add(bytes) > Self::PATTERNS_BYTES_MAX
        {
            known.clear();
        }
        if bytes <= Self::PATTERNS_BYTES_MAX {
            known.insert(files, contracts);
        }
    }
}

impl OpenProgram {
    fn new(id: TaskId, now: Timestamp) -> Self {
        Self {
            id,
            folded: Arc::new(tokio::sync::Mutex::new(None)),
            liveness: Mutex::new(Liveness {
                heard: now,
                deadline: None,
                is_folded: false,
            }),
        }
    }

    fn liveness(&self) -> MutexGuard<'_, Liveness> {
        self.liveness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True for a Task that is driven from outside: a governed session or a workflow of some, and not a replay of one.
pub(crate) fn is_governed(task: &Task) -> bool {
    [GOVERNED, GOVERNED_WORKFLOW].contains(&&*task.workflow)
        && task.replay.is_none()
        && task.imported.is_none()
}

/// True for a governed session.
fn is_session(task: &Task) -> bool {
    is_governed(task) && &*task.workflow == GOVERNED
}

/// What an input came to.
pub(crate) struct Governed {
    answer: Result<Value, Problem>,
    /// None when there was nothing to record.
    done: Option<CommandOutcome>,
}

impl Engine {
    /// Carries out a request about a governed session and returns its answer, and whether it made something. Beside
    /// [`Engine::dispatch`], whose answers are resources: this one's is what the session said, and its command is built
    /// while the session is held. Drain, scopes, claim and room are asked for by the same functions.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn govern<'a>(
        &'a self,
        caller: &'a Caller,
        request: Govern,
        idempotency: Option<Idempotency>,
    ) -> BoxFuture<'a, Result<(Value, bool), Refused>> {
        // A future is compiled where it is boxed: here, and not in each crate that waits for it.
        Box::pin(self.answer_governed(caller, request, idempotency))
    }

    async fn answer_governed(
        &self,
        caller: &Caller,
        request: Govern,
        idempotency: Option<Idempotency>,
    ) -> Result<(Value, bool), Refused> {
        let request = domain::Request::Govern(request);
        self.admit(caller, &request)?;
        let added = crate::quota::added(&request);
        let domain::Request::Govern(request) = request else {
            return Err(no_session());
        };
        match request {
            Govern::Open(new) => self.open_governed(caller, *new, idempotency).await,
            Govern::OpenWorkflow(new) => self.open_workflow(caller, *new, idempotency).await,
            Govern::Handoff {
                handoff_id,
                workspace_id,
                action,
            } => {
                let document = self
                    .workflow_of_handoff(caller, &handoff_id, workspace_id.as_ref())
                    .await?;
                let operation = self.handoff_operation(handoff_id, action);
                let naming = self.may_take(caller, &document, &operation, idempotency.as_ref());
                let _naming = naming.await?;
                self.operate(caller, &document, operation, idempotency, added)
                    .await
            }
            Govern::Do {
                session,
                workspace_id,
                operation,
            } => {
                let document = self
                    .governed_task(caller, &session, workspace_id.as_ref())
                    .await?;
                self.operate(caller, &document, *operation, idempotency, added)
                    .await
            }
        }
    }

    async fn operate(
        &self,
        caller: &Caller,
        document: &Document,
        operation: domain::GovernedOperation,
        idempotency: Option<Idempotency>,
        added: Added,
    ) -> Result<(Value, bool), Refused> {
        let workspace = crate::caller::workspace_of(document);
        let entered = self.enter(caller, workspace.as_ref(), idempotency, added);
        let (claim, key) = match entered.await? {
            Entered::Before(done) => {
                let name = operation.name();
                let answer = self.recorded_answer(document.key, done.answer, name);
                return Ok((answer.await??, false));
            }
            Entered::Now { claim, key, .. } => (claim, key),
        };
        let governed = self
            .take_input(caller, document, operation, claim, key, None)
            .await?;
        Ok((governed.answer?, true))
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
            let own = named_workspaces(caller, workspace);
            ids.extend(own.iter().map(|id| TaskId::governed(id, session)));
        }
        if SessionId::parse(session).is_ok()
            && let Some(document) = self.shared_document(session).await?
            && let State::Session(of) = &document.state
        {
            let payload = self.payload(of.metadata).await?;
            let own = domain::payload::SessionCreated::of(&payload)
                .metadata()
                .and_then(|metadata| metadata.get("replay_session_id"))
                .and_then(Value::as_str);
            ids.extend(own.map(|own| TaskId::governed(&of.workspace_id, own)));
        }
        for id in ids {
            let Some(document) = self.shared_document(id.as_str()).await? else {
                continue;
            };
            let seen = matches!(&document.state, State::Task(task)
                if is_session(task) && caller.sees(Some(&task.workspace_id)));
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
}

impl Governed {
    /// Returns what was carried out, if anything was.
    pub(crate) fn done(self) -> Option<CommandOutcome> {
        self.done
    }

    /// Returns what was carried out, for answers that show a resource of the protocol.
    pub(crate) fn into_done(self, unchanged: CommandOutcome) -> Result<CommandOutcome, Refused> {
        self.answer?;
        Ok(self.done.unwrap_or(unchanged))
    }
}

/// The Workspaces in which an own id is looked for.
fn named_workspaces(caller: &Caller, named: Option<&WorkspaceId>) -> Vec<WorkspaceId> {
    match (named, caller.workspaces()) {
        (Some(named), _) => vec![named.clone()],
        (None, Some(bound)) => bound.to_vec(),
        (None, None) => vec![WorkspaceId::local()],
    }
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
