//! Putting an engine together, starting and draining it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use canon::Value;
use domain::{BranchId, Command, CreateWorkspace, Document, Order, State, TaskId, WorkspaceId};
use tokio::sync::{mpsc, oneshot};

use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::port::{Clock, Commit, Ids, Performer, SealedTurn, SecretKeeper, Spawn, Store};
use crate::receipt::Authority;
use crate::refused::Refused;
use crate::turn::{self, Cache, ClaimRequest, Done, Item, Lease};
use crate::worker::{Work, session_replay};
use runs::workflow::Registry;

/// What an engine is made of.
#[derive(Debug)]
pub struct Parts {
    /// Where everything is kept.
    pub store: Arc<dyn Store>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Ids and salts.
    pub ids: Arc<dyn Ids>,
    /// Tasks beside the caller.
    pub spawn: Arc<dyn Spawn>,
    /// The outside.
    pub performer: Arc<dyn Performer>,
    /// Where secrets are kept; none when this program keeps none.
    pub secrets: Option<Arc<dyn SecretKeeper>>,
    /// The workflows on offer.
    pub workflows: Registry,
    /// Who signs receipts.
    pub authority: Authority,
    /// What is bounded.
    pub limits: Limits,
}

/// A running engine. Clones share it.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    turns: mpsc::Sender<Item>,
}

/// What turns, workers and reads share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) spawn: Arc<dyn Spawn>,
    pub(crate) performer: Arc<dyn Performer>,
    pub(crate) secrets: Option<Arc<dyn SecretKeeper>>,
    pub(crate) workflows: Registry,
    pub(crate) authority: Arc<Authority>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    pub(crate) work: Work,
    /// What the last turns saw.
    pub(crate) cache: Cache,
    /// Who takes leases: this process.
    pub(crate) holder: Box<str>,
    /// Held while leaves are assigned or a head is sealed: both are done by one at a time.
    pub(crate) tree: tokio::sync::Mutex<()>,
    /// The keys of the witnesses whose signatures on heads are taken.
    pub(crate) witnesses: std::sync::RwLock<Vec<receipts::note::NoteKey>>,
    draining: AtomicBool,
    /// Secrets that running replays were told. Never written anywhere.
    replay_secrets: Mutex<BTreeMap<String, ReplaySecrets>>,
}

/// What one request for a replay told, under the salt of that request: two that race for one id must not mix.
struct ReplaySecrets {
    /// The Task; none while it is only planned.
    task: Option<TaskId>,
    values: BTreeMap<String, Value>,
}

impl Shared {
    fn replay_secrets(&self) -> MutexGuard<'_, BTreeMap<String, ReplaySecrets>> {
        self.replay_secrets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep_secrets(
        &self,
        salt: &str,
        task: Option<&TaskId>,
        values: BTreeMap<String, Value>,
    ) {
        if !values.is_empty() {
            let task = task.cloned();
            let secrets = ReplaySecrets { task, values };
            self.replay_secrets().insert(salt.to_owned(), secrets);
        }
    }

    /// Says which Task it is that was planned under a salt.
    pub(crate) fn give_secrets(&self, salt: &str, task: &TaskId) {
        if let Some(secrets) = self.replay_secrets().get_mut(salt) {
            secrets.task = Some(task.clone());
        }
    }

    pub(crate) fn secrets_under(&self, salt: &str) -> BTreeMap<String, Value> {
        let kept = self.replay_secrets();
        kept.get(salt)
            .map(|secrets| secrets.values.clone())
            .unwrap_or_default()
    }

    /// Forgets what a request told that made no Task, or was planned under a salt and not carried out.
    pub(crate) fn forget_secrets(&self, salt: &str) {
        let planned = session_replay::salt_of(salt, None);
        self.replay_secrets()
            .retain(|kept, _| kept != salt && !kept.starts_with(&planned));
    }

    /// Forgets what replays that have ended were told, however they ended.
    pub(crate) fn forget_secrets_of_ended(&self, changed: &[Document]) {
        for document in changed {
            if let State::Task(task) = &document.state
                && task.replay.is_some()
                && task.status.is_terminal()
            {
                self.replay_secrets().retain(|_, secrets| {
                    secrets.task.as_ref().map(TaskId::as_str) != Some(&*document.id)
                });
            }
        }
    }

    /// Returns how many requests' secrets are kept.
    pub(crate) fn secrets_kept(&self) -> usize {
        self.replay_secrets().len()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("store", &self.shared.store)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts taking turns, makes sure that the local Workspace exists, takes over what an earlier process left,
    /// and starts working.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub async fn start(parts: Parts) -> Result<Self, Refused> {
        let Parts {
            store,
            clock,
            ids,
            spawn,
            performer,
            secrets,
            workflows,
            authority,
            limits,
        } = parts;
        let (turns, items) = mpsc::channel(limits.pending_commands_max);
        let (work, jobs, sessions) = Work::new(limits.workers_max);
        let shared = Arc::new(Shared {
            store,
            clock,
            holder: ids.body().into(),
            ids,
            spawn,
            performer,
            secrets,
            workflows,
            authority: Arc::new(authority),
            limits,
            metrics: Metrics::default(),
            work,
            cache: Cache::default(),
            tree: tokio::sync::Mutex::new(()),
            witnesses: std::sync::RwLock::default(),
            draining: AtomicBool::new(false),
            replay_secrets: Mutex::default(),
        });
        shared
            .spawn
            .spawn(Box::pin(turn::run(Arc::clone(&shared), items)));
        let engine = Self { shared, turns };
        engine.ensure_local_workspace().await?;
        let recovered = engine.recover().await?;
        engine
            .shared
            .spawn
            .spawn(Box::pin(engine.clone().work(jobs, recovered)));
        let unfinished = engine.open_session_replays().await?;
        let replays = engine.clone().replay_sessions(sessions, unfinished);
        engine.shared.spawn.spawn(Box::pin(replays));
        engine
            .shared
            .spawn
            .spawn(Box::pin(engine.clone().tend_tree()));
        Ok(engine)
    }

    async fn ensure_local_workspace(&self) -> Result<(), Refused> {
        let known = self
            .shared
            .store
            .documents(vec![WorkspaceId::local().as_str().into()])
            .await?;
        if known.into_iter().flatten().next().is_some() {
            return Ok(());
        }
        let order = Order::CreateWorkspace(CreateWorkspace {
            id: WorkspaceId::local(),
            branch_id: BranchId::from_body("local"),
            name: "local".to_owned(),
            root: "reprise://local".to_owned(),
            metadata: canon::Map::new(),
        });
        let command = Command {
            actor: "system".to_owned(),
            idempotency_key: None,
            order,
        };
        self.order(command, None, Lease::None).await.map(drop)
    }

    /// Puts a command into the next turn and waits until it is durable or refused.
    pub(crate) async fn order(
        &self,
        command: Command,
        claim: Option<ClaimRequest>,
        lease: Lease,
    ) -> Result<Done, Refused> {
        let (reply, answer) = oneshot::channel();
        let item = Item {
            command,
            claim,
            lease,
            reply,
        };
        match self.turns.try_send(item) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                return Err(Refused::Busy {
                    what: "pending_commands_max",
                });
            }
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(Refused::Draining),
        }
        answer.await.unwrap_or(Err(Refused::Draining))
    }

    /// True once a drain has begun.
    pub fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::Acquire)
    }

    /// Stops claiming Tasks, waits a bounded time for those being worked on, and gives their leases back. No Task
    /// changes its state through this; a later process goes on with what is left.
    pub async fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
        self.shared.work.close();
        let idle = self.shared.work.idle();
        let late = self.shared.clock.sleep(self.shared.limits.drain_window);
        tokio::select! {
            biased;
            () = idle => {}
            () = late => {}
        }
        // What was issued is sealed before the process leaves.
        if let Err(error) = self.seal_head().await {
            tracing::warn!(%error, "the receipt log was not sealed; the next start does it");
        }
        let unfinished = self.shared.work.stop_all();
        if unfinished.is_empty() {
            return;
        }
        let turn = SealedTurn {
            leases_released: unfinished,
            ..SealedTurn::default()
        };
        let commit = Commit {
            expected: Vec::new(),
            fences: Vec::new(),
            holder: self.shared.holder.clone(),
            blobs: Vec::new(),
            event_count: 0,
            seal: Box::new(|_| Ok(turn)),
            now: self.shared.clock.now(),
        };
        // The next process takes leases over anyway; giving them back only spares it the surprise.
        if let Err(error) = self.shared.store.commit(commit).await {
            tracing::warn!(%error, "leases were not given back");
        }
    }

    /// The engine's counters.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Returns how many running replays were told secrets. Those of ended ones are gone.
    pub fn replay_secrets_kept(&self) -> usize {
        self.shared.secrets_kept()
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// The workflows on offer.
    pub fn workflows(&self) -> &Registry {
        &self.shared.workflows
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }
}
