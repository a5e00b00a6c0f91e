//! Running Tasks of the scripted agent, and what one leaves.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use canon::{Digest, Map};
use domain::{Document, Position, SessionId, State, Status, TaskId};
use engine::port::{News, Performer, ReadEvents, Scope, Store, StoredEvent};
use engine::{Caller, Engine, InputSpec, NewSession, NewTask, ReplayTask, Request, Settle};
use receipts::Receipt;
use runs::replay;
use serde_json::json;
use tokio::sync::broadcast;

use crate::log::{Log, message};
use crate::script::{Script, persona};

/// No run takes longer, on however busy a machine.
const LONGEST: Duration = Duration::from_secs(300);

/// What a replay needs of a finished Task, as bytes.
#[derive(Debug)]
pub(super) struct Bundle {
    pub(super) events: Vec<Arc<[u8]>>,
    pub(super) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(super) receipt: Vec<u8>,
}

impl Bundle {
    /// Returns the same as a file.
    pub(super) fn file(&self) -> Result<Vec<u8>> {
        let receipt = Receipt::read(&self.receipt)?;
        let bundle = replay::Bundle::new(&self.events, self.blobs.clone(), Some(receipt))?;
        Ok(bundle.to_bytes())
    }
}

/// A log that holds a finished Task of the scripted agent.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) log: Log,
    pub(super) task: TaskId,
    pub(super) bundle: Bundle,
}

impl Recorded {
    pub(super) async fn make(
        data: &Path,
        turns: u64,
        lengths: RangeInclusive<usize>,
    ) -> Result<Self> {
        let script = Arc::new(Script::new(turns, lengths, 0));
        let log = Log::open_with(data, script as Arc<dyn Performer>).await?;
        let persona = define(log.engine(), turns).await?;
        let task = agent(log.engine(), log.store(), &persona, "Look.".to_owned()).await?;
        let bundle = bundle(log.store(), &task).await?;
        Ok(Self {
            log,
            task: TaskId::parse(&task.id)?,
            bundle,
        })
    }
}

/// Defines the scripted agent's persona; returns its id.
pub(super) async fn define(engine: &Engine, turns: u64) -> Result<String> {
    let (order, _) = persona(turns)?;
    let id = order.id().to_string();
    let request = Request::CreatePersona(Box::new(order));
    dispatch(engine, request).await?;
    Ok(id)
}

/// Makes an empty Session.
pub(super) async fn session(engine: &Engine) -> Result<SessionId> {
    let request = Request::CreateSession(NewSession {
        workspace_id: None,
        mode_id: None,
        persona_id: None,
        model_policy: None,
        initial_messages: Vec::new(),
        metadata: Map::new(),
    });
    let document = dispatch(engine, request).await?;
    SessionId::parse(&document.id).context("not a session id")
}

/// Runs a Task under a persona to its end, in a Session of its own.
pub(super) async fn agent(
    engine: &Engine,
    store: &dyn Store,
    persona: &str,
    input: String,
) -> Result<Document> {
    let session_id = session(engine).await?;
    let request = Request::SubmitTask(NewTask {
        session_id,
        workspace_id: None,
        persona_id: Some(persona.to_owned()),
        branch_id: None,
        parent_task_id: None,
        input: InputSpec::Message(message(input)),
        metadata: Map::new(),
    });
    to_the_end(engine, store, request).await
}

/// Replays a Task exactly, to its end.
pub(super) async fn replay_of(
    engine: &Engine,
    store: &dyn Store,
    task: &TaskId,
) -> Result<Document> {
    let request = Request::ReplayTask(ReplayTask {
        id: task.clone(),
        body: json!({"mode": "exact"}),
        conformance: false,
        session_id: None,
    });
    to_the_end(engine, store, request).await
}

async fn to_the_end(engine: &Engine, store: &dyn Store, request: Request) -> Result<Document> {
    let mut news = store.news();
    let document = dispatch(engine, request).await?;
    let ended = until_receipt(&mut news, document.key);
    let is_heard = tokio::time::timeout(LONGEST, ended).await;
    let documents = store.documents(vec![document.id.clone()]).await?;
    let document = documents.into_iter().flatten().next().context("no task")?;
    match &document.state {
        State::Task(task) if task.status == Status::Completed => Ok(document),
        State::Task(task) => bail!(
            "task `{}` is {:?} (heard of its receipt: {})",
            document.id,
            task.status,
            is_heard.is_ok()
        ),
        _ => bail!("`{}` is not a task", document.id),
    }
}

/// Resolves when the receipt of a Task is committed: by the commit itself, not by asking again and again.
async fn until_receipt(news: &mut broadcast::Receiver<News>, task: Position) {
    while let Ok(news) = news.recv().await {
        if news
            .events()
            .iter()
            .any(|event| issues_receipt(event, task))
        {
            return;
        }
    }
}

fn issues_receipt(event: &StoredEvent, task: Position) -> bool {
    const WORD: &[u8] = b"\"event\":\"receipt.issued\"";
    // The kind is the third member; whatever comes later is content.
    let head = event.bytes.get(..160).unwrap_or(&event.bytes);
    event.links.task == Some(task) && head.windows(WORD.len()).any(|window| window == WORD)
}

async fn dispatch(engine: &Engine, request: Request) -> Result<Document> {
    let caller = Caller::system();
    let answer = engine
        .dispatch(&caller, request, None, Settle::FirstWorking)
        .await?;
    Ok(answer.view.document)
}

/// Reads the events of a Task.
pub(super) async fn events_of(store: &dyn Store, key: Position) -> Result<Vec<StoredEvent>> {
    let mut events = Vec::new();
    let mut after = Position::START;
    loop {
        let query = ReadEvents {
            scope: Scope::Task(key),
            after,
            limit: 512,
        };
        let page = store.events(query).await?;
        let Some(last) = page.last() else {
            return Ok(events);
        };
        after = last.position;
        events.extend(page);
    }
}

/// Reads the bytes of a Task's receipt.
pub(super) async fn receipt_of(store: &dyn Store, task: &Document) -> Result<Vec<u8>> {
    let State::Task(domain::Task {
        receipt_id: Some(id),
        ..
    }) = &task.state
    else {
        bail!("task `{}` has no receipt", task.id);
    };
    let documents = store.documents(vec![id.as_str().into()]).await?;
    let content = documents
        .into_iter()
        .flatten()
        .find_map(|document| match document.state {
            State::Receipt(receipt) => Some(receipt.content),
            _ => None,
        });
    let bytes = store.blob(content.context("no receipt")?).await?;
    bytes.context("a receipt without bytes")
}

async fn bundle(store: &dyn Store, task: &Document) -> Result<Bundle> {
    let events: Vec<Arc<[u8]>> = events_of(store, task.key)
        .await?
        .into_iter()
        .map(|event| event.bytes)
        .collect();
    let mut blobs = BTreeMap::new();
    for digest in replay::blobs_named(&events)? {
        let bytes = store.blob(digest).await?;
        blobs.insert(digest, bytes.context("a blob is missing")?);
    }
    Ok(Bundle {
        receipt: receipt_of(store, task).await?,
        events,
        blobs,
    })
}
