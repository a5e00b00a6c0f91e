//! Putting an engine together, starting and draining it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use canon::{Digest, Value};
use domain::{
    BranchId, Command, ContractTexts, CreateWorkspace, Document, Order, State, TaskId, Timestamp,
    WorkspaceId,
};
use tokio::sync::{mpsc, oneshot};

use crate::cache::Cache;
use crate::dispatch::Waiters;
use crate::field::Fields;
use crate::govern::{Demands, Sessions};
use crate::imported::ImportedLogs;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::port::{BoxFuture, Clock, Ids, Performer, SecretKeeper, Spawn, Store};
use crate::quota::Pending;
use crate::receipt::Authority;
use crate::refused::Refused;
use crate::share::Shares;
use crate::turn::{self, Folds, Item, Lease, Queues};
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
    pub(crate) clients: mpsc::Sender<Item>,
    /// What workers and the engine itself order does not wait behind clients.
    pub(crate) workers: mpsc::Sender<Item>,
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
    /// Who waits for which Task.
    pub(crate) waiters: Waiters,
    /// What the receipts of open Tasks will say.
    pub(crate) folds: Folds,
    /// The logs of Tasks that were taken over, as far as they are being read.
    pub(crate) imported: ImportedLogs,
    /// The memory fields in use.
    pub(crate) fields: Fields,
    /// Who takes leases: this process.
    pub(crate) holder: Box<str>,
    /// Held while leaves are assigned or a head is sealed: both are done by one at a time.
    pub(crate) tree: tokio::sync::Mutex<()>,
    /// The keys of the witnesses whose signatures on heads are taken.
    pub(crate) witnesses: std::sync::RwLock<Vec<receipts::note::NoteKey>>,
    /// Room for what is on its way into a commit.
    pub(crate) reserved: Mutex<Pending>,
    /// Who has how many streams open, by key.
    streams: Mutex<Shares<String>>,
    /// The sets of contracts that personas may name.
    contracts: OnceLock<BTreeMap<String, ContractTexts>>,
    /// When the log began.
    began_at: OnceLock<Timestamp>,
    /// What the operator demands of governed sessions.
    demands: OnceLock<Demands>,
    /// What is known of open governed sessions.
    pub(crate) governed: Sessions,
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
    pub(crate) fn streams(&self) -> MutexGuard<'_, Shares<String>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a set of contracts that a persona names.
    pub(crate) fn contracts(&self, name: &str) -> Option<&ContractTexts> {
        self.contracts.get()?.get(name)
    }

    /// Finds a set of contracts by its digest.
    pub(crate) fn contracts_of(&self, digest: Digest) -> Option<&ContractTexts> {
        let mut sets = self.contracts.get()?.values();
        sets.find(|texts| texts.sha256 == digest)
    }

    /// Returns the configured sets of contracts.
    pub(crate) fn contract_sets(&self) -> impl Iterator<Item = &ContractTexts> {
        self.contracts.get().into_iter().flat_map(BTreeMap::values)
    }

    /// Returns what the operator demands of governed sessions.
    pub(crate) fn demands(&self) -> Demands {
        self.demands.get().copied().unwrap_or_default()
    }

    /// Returns the names of the sets of contracts.
    pub(crate) fn contract_names(&self) -> Vec<&str> {
        let sets = self.contracts.get().into_iter();
        sets.flat_map(BTreeMap::keys).map(String::as_str).collect()
    }

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
    pub(crate) fn forget_secrets_of_ended(&self, changed: &[Arc<Document>]) {
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
    pub fn start(parts: Parts) -> BoxFuture<'static, Result<Self, Refused>> {
        // A future is compiled where it is boxed: turns and workers here, and not in whatever crate starts them.
        Box::pin(Self::begin(parts))
    }

    async fn begin(parts: Parts) -> Result<Self, Refused> {
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
        let (clients, client_items) = mpsc::channel(limits.pending_commands_max);
        let (workers, worker_items) = mpsc::channel(limits.batch_len_max.max(1));
        let queues = Queues {
            clients: client_items,
            workers: worker_items,
        };
        let (work, sessions) = Work::new(&limits);
        let streams = Shares::new(limits.streams_max);
        let cache = Cache::new(store.head());
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
            cache,
            waiters: Waiters::default(),
            folds: Folds::default(),
            imported: ImportedLogs::default(),
            fields: Fields::default(),
            tree: tokio::sync::Mutex::new(()),
            witnesses: std::sync::RwLock::default(),
            reserved: Mutex::default(),
            streams: Mutex::new(streams),
            contracts: OnceLock::new(),
            began_at: OnceLock::new(),
            demands: OnceLock::new(),
            governed: Sessions::default(),
            draining: AtomicBool::new(false),
            replay_secrets: Mutex::default(),
        });
        shared
            .spawn
            .spawn(Box::pin(turn::run(Arc::clone(&shared), queues)));
        let engine = Self {
            shared,
            clients,
            workers,
        };
        engine.ensure_local_workspace().await?;
        engine.note_beginning().await?;
        let left = engine.take_over().await?;
        engine
            .shared
            .spawn
            .spawn(Box::pin(engine.clone().work(left)));
        let unfinished = engine.open_session_replays().await?;
        let replays = engine.clone().replay_sessions(sessions, unfinished);
        engine.shared.spawn.spawn(Box::pin(replays));
        engine
            .shared
            .spawn
            .spawn(Box::pin(engine.clone().maintain_tree()));
        engine
            .shared
            .spawn
            .spawn(Box::pin(engine.clone().maintain_governed_sessions()));
        Ok(engine)
    }

    /// Says which sets of contracts personas may name, once, before anything is served.
    pub fn set_contracts(&self, sets: impl IntoIterator<Item = ContractTexts>) {
        let sets = sets.into_iter().map(|set| (set.name.clone(), set));
        // A second call changes nothing: what runs are judged by does not change while the server runs.
        let _ = self.shared.contracts.set(sets.collect());
    }

    /// Returns when the log began: what a server has by itself is as old as that, however often it is started.
    pub fn began_at(&self) -> Timestamp {
        let known = self.shared.began_at.get().copied();
        known.unwrap_or_else(|| self.shared.clock.now())
    }

    async fn note_beginning(&self) -> Result<(), Refused> {
        let local = self.shared_document(WorkspaceId::local().as_str()).await?;
        if let Some(local) = local {
            // Set once, here.
            let _ = self.shared.began_at.set(local.created_at);
        }
        Ok(())
    }

    /// Says what governed sessions must hold to, once and before any is opened.
    pub fn set_demands(&self, demands: Demands) {
        // A second call changes nothing, as with contracts.
        let _ = self.shared.demands.set(demands);
    }

    async fn ensure_local_workspace(&self) -> Result<(), Refused> {
        let id = WorkspaceId::local();
        if self.shared.store.document(id.as_str()).await?.is_some() {
            return Ok(());
        }
        let order = Order::CreateWorkspace(CreateWorkspace {
            id: WorkspaceId::local(),
            branch_id: BranchId::from_body("local"),
            new: domain::NewWorkspace {
                name: "local".to_owned(),
                root: "reprise://local".to_owned(),
                metadata: canon::Map::new(),
            },
        });
        let command = Command {
            actor: "system".to_owned(),
            idempotency_key: None,
            order,
        };
        self.order(command, None, Lease::None).await.map(drop)
    }

    /// Has long pure work done where it keeps no other task waiting.
    ///
    /// # Errors
    /// The work came to no end, which is a bug.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refused> {
        let (sender, result) = oneshot::channel();
        let work = Box::new(move || drop(sender.send(work())));
        self.shared.spawn.spawn_blocking(work);
        result.await.map_err(|_| Refused::Internal {
            detail: "blocking work did not finish".to_owned(),
        })
    }

    /// True once a drain has begun.
    pub fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::Acquire)
    }

    /// Says whether anything can be written, or why not.
    ///
    /// # Errors
    /// Nothing can.
    pub async fn health(&self) -> Result<(), Refused> {
        Ok(self.shared.store.health().await?)
    }

    /// Stops claiming Tasks, waits a bounded time for those being worked on, and gives their leases back. No Task
    /// changes its state through this; a later process goes on with what is left.
    pub async fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
        self.shared.work.close();
        // Whoever waits for a first governed session has waited for nothing.
        self.shared.governed.some.notify_one();
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
        // The next process takes leases over anyway; giving them back spares it the search for what went wrong.
        if let Err(error) = self.release_leases(unfinished).await {
            tracing::warn!(%error, "leases were not released; the next start will treat this as a crash");
        }
    }

    /// The engine's counters.
    pub fn metrics(&self) -> &Metrics {
        let (metrics, work) = (&self.shared.metrics, &self.shared.work);
        let gauge = |count: usize| count as u64;
        metrics
            .queued
            .store(gauge(work.waiting_count()), Ordering::Relaxed);
        metrics
            .running
            .store(gauge(work.running_count()), Ordering::Relaxed);
        metrics
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
