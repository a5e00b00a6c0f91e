//! A log in this process: engine and store as the server puts them together, without the server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use canon::Map;
use domain::{ResourceKind, Role, SessionId, State, Status};
use engine::port::{Clock, Performer, Store};
use engine::{
    Answer, Caller, Engine, InputSpec, Limits, MessageSpec, NewSession, NewTask, Offline, Parts,
    Request, Settle,
};
use runs::workflow::{Registry, builtin};
use serde_json::json;
use server::world::{RandomIds, SystemClock, TokioSpawn};
use store::{Options, SqliteStore};

/// How long an engine may take to end.
const CLOSING: Duration = Duration::from_secs(30);

/// An open log.
#[derive(Debug)]
pub(crate) struct Log {
    engine: Engine,
    store: Arc<SqliteStore>,
}

impl Log {
    /// Opens a log whose effects are performed by the built-in offline model.
    pub(crate) async fn open(data: &Path) -> Result<Self> {
        Self::open_with(data, Arc::new(Offline)).await
    }

    /// Opens a log with a performer of its own.
    pub(crate) async fn open_with(data: &Path, performer: Arc<dyn Performer>) -> Result<Self> {
        Self::open_at(data, performer, Arc::new(SystemClock)).await
    }

    /// Opens a log with a performer and a clock of its own.
    pub(crate) async fn open_at(
        data: &Path,
        performer: Arc<dyn Performer>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let store = Arc::new(SqliteStore::open(data, Options::default())?);
        let engine = start(Arc::clone(&store) as Arc<dyn Store>, performer, clock).await?;
        Ok(Self { engine, store })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn store(&self) -> &SqliteStore {
        &self.store
    }

    /// Makes a Session with its first Messages.
    pub(crate) async fn session(&self, messages: Vec<String>) -> Result<SessionId> {
        let request = Request::CreateSession(NewSession {
            workspace_id: None,
            mode_id: None,
            persona_id: None,
            model_policy: None,
            initial_messages: messages.into_iter().map(message).collect(),
            metadata: Map::new(),
        });
        let answer = self.dispatch(request).await?;
        SessionId::parse(&answer.view.document.id).context("not a session id")
    }

    /// Appends a Message.
    pub(crate) async fn append(&self, session: &SessionId, text: String) -> Result<()> {
        let request = Request::AppendMessage {
            session_id: session.clone(),
            message: message(text),
        };
        self.dispatch(request).await.map(drop)
    }

    /// Runs a Task to its end; returns the id and the bytes of its receipt.
    pub(crate) async fn receipt_of_task(
        &self,
        session: &SessionId,
        input: String,
    ) -> Result<(String, Vec<u8>)> {
        let task = self.task(session, input).await?;
        let view = self
            .engine
            .get(&Caller::system(), ResourceKind::Task, &task)
            .await?;
        let id = match view.document.state {
            State::Task(domain::Task {
                receipt_id: Some(id),
                ..
            }) => id.to_string(),
            _ => bail!("task `{task}` has no receipt"),
        };
        let form = self.engine.receipt(&Caller::system(), &id).await?;
        Ok((id, form.bytes.context("a receipt without bytes")?))
    }

    /// Proves that a receipt is in the log.
    pub(crate) async fn prove(&self, receipt: &str) -> Result<()> {
        self.engine
            .receipt_proof(&Caller::system(), receipt)
            .await?;
        Ok(())
    }

    /// Runs a Task of the default agent to its end; returns its id.
    pub(crate) async fn task(&self, session: &SessionId, input: String) -> Result<Box<str>> {
        let request = Request::SubmitTask(NewTask {
            session_id: session.clone(),
            workspace_id: None,
            persona_id: None,
            branch_id: None,
            parent_task_id: None,
            input: InputSpec::Message(message(input)),
            metadata: Map::new(),
        });
        let id = self.dispatch(request).await?.view.document.id;
        for _ in 0..1_000 {
            let view = self
                .engine
                .get(&Caller::system(), ResourceKind::Task, &id)
                .await?;
            match view.document.state {
                State::Task(task) if task.status == Status::Completed => return Ok(id),
                State::Task(task) if task.status.is_terminal() => {
                    bail!("task `{id}` ended as {:?}", task.status)
                }
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        bail!("task `{id}` does not end")
    }

    /// Reads a Session and a Task.
    pub(crate) async fn read(&self, session: &SessionId, task: Option<&str>) -> Result<()> {
        let caller = Caller::system();
        let engine = &self.engine;
        engine
            .get(&caller, ResourceKind::Session, session.as_str())
            .await?;
        if let Some(task) = task {
            engine.get(&caller, ResourceKind::Task, task).await?;
        }
        Ok(())
    }

    /// Submits Tasks that wait for an answer, in Sessions of a hundred.
    pub(crate) async fn open_tasks(&self, count: usize) -> Result<()> {
        const PER_SESSION: usize = 100;
        for _ in 0..count.div_ceil(PER_SESSION) {
            let session = self.session(Vec::new()).await?;
            let ask = |number: usize| {
                let request = Request::SubmitTask(NewTask {
                    session_id: session.clone(),
                    workspace_id: None,
                    persona_id: None,
                    branch_id: None,
                    parent_task_id: None,
                    input: InputSpec::Message(message(format!("question {number}"))),
                    metadata: [("workflow".to_owned(), json!("ask"))]
                        .into_iter()
                        .collect(),
                });
                self.dispatch(request)
            };
            let asked = futures_util::future::join_all((0..PER_SESSION).map(ask)).await;
            asked.into_iter().collect::<Result<Vec<_>>>()?;
        }
        Ok(())
    }

    /// Returns the number of events.
    pub(crate) fn head(&self) -> u64 {
        self.store.head().0
    }

    async fn dispatch(&self, request: Request) -> Result<Answer> {
        let caller = Caller::system();
        let answer = self
            .engine
            .dispatch(&caller, request, None, Settle::Window)
            .await?;
        Ok(answer)
    }

    /// Stops the engine and waits until the store has moved its write-ahead log into the database.
    pub(crate) async fn close(self) -> Result<()> {
        let Self { engine, store } = self;
        engine.drain().await;
        drop(engine);
        let ours_alone = async {
            while Arc::strong_count(&store) > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(CLOSING, ours_alone)
            .await
            .context("the engine does not let go of its store")?;
        // The last owner waits for the store's threads.
        drop(store);
        Ok(())
    }
}

/// Who signs in logs that are made here.
const ISSUER: &str = "load";
const KEY_ID: &str = "key-1";
const SEED: [u8; 32] = [1; 32];

/// Puts the key that signed a log here beside it, so that the program can go on with it.
pub(crate) fn write_signing_keys(data: &Path) -> Result<()> {
    let keys = json!({
        "format": "reprise-signing-keys",
        "version": 2,
        "issuer": ISSUER,
        "origin": format!("{ISSUER}/receipts"),
        "active": KEY_ID,
        "keys": [{"key_id": KEY_ID, "seed": URL_SAFE_NO_PAD.encode(SEED)}],
    });
    files::write_durably(data, "signing-keys.json", keys.to_string().as_bytes())?;
    Ok(())
}

/// Starts an engine on a store, with the program's own workflows.
pub(crate) async fn start(
    store: Arc<dyn Store>,
    performer: Arc<dyn Performer>,
    clock: Arc<dyn Clock>,
) -> Result<Engine> {
    let engine = Engine::start(Parts {
        store,
        clock,
        ids: Arc::new(RandomIds),
        spawn: Arc::new(TokioSpawn),
        performer,
        secrets: None,
        workflows: Registry::new(builtin()),
        authority: engine::Authority::with_one_key(ISSUER, KEY_ID, &SEED)?,
        limits: limits(),
    })
    .await?;
    Ok(engine)
}

pub(crate) fn message(text: String) -> MessageSpec {
    MessageSpec {
        role: Role::User,
        parts: vec![json!({"type": "text", "text": text, "visibility": "public"})],
        metadata: Map::new(),
    }
}

/// The program's defaults, with room for more open Tasks than `history` leaves waiting.
fn limits() -> Limits {
    Limits {
        batch_len_max: 256,
        pending_commands_max: 4_096,
        workers_max: 64,
        open_tasks_max: 20_000,
        stored_bytes_max: u64::MAX,
        streams_max: 1_024,
        fork_messages_max: 10_000,
        settle_window: Duration::from_millis(250),
        start_window: Duration::from_secs(2),
        idempotency_window: Duration::from_secs(86_400),
        leaf_interval: Duration::from_secs(1),
        head_leaves_max: 1_000,
        head_interval: Duration::from_secs(60),
        receipt_window: Duration::from_secs(2),
        drain_window: Duration::from_secs(5),
    }
}
