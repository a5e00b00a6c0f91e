//! A provider on loopback that says what it is told to say, and short ways to ask.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response, Uri};
use effects::{Config, Confinement, Outside, Vault};
use engine::port::{Deltas, Performer};
use futures_util::StreamExt;
use runs::workflow::{Effect, EffectKind, EffectOutcome, Handles};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What the provider does with one request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// A status, headers and a whole body.
    Whole(u16, Vec<(&'static str, &'static str)>, String),
    /// An event stream in these pieces.
    Stream(Vec<String>),
    /// An event stream that breaks off after these pieces.
    Broken(Vec<String>),
    /// Never answers.
    Hang,
    /// Answers and then goes silent in the middle of the stream.
    Stall(Vec<String>),
}

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    pub(crate) bytes: u64,
}

/// A provider with a list of replies, used in order.
#[derive(Debug, Clone)]
pub(crate) struct Fake {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Fake {
    pub(crate) async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let replies = Arc::new(Mutex::new(replies.into_iter().collect::<VecDeque<_>>()));
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let list = Arc::clone(&seen);
        let app = Router::new().fallback(move |uri: Uri, headers: HeaderMap, body: Bytes| {
            let reply = replies.lock().unwrap().pop_front();
            list.lock().unwrap().push(Seen {
                path: uri.path().to_owned(),
                headers,
                bytes: body.len() as u64,
                body: serde_json::from_slice(&body).unwrap_or_default(),
            });
            answer(reply.expect("one more request than replies"))
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, seen }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

async fn answer(reply: Reply) -> Response<Body> {
    let stream = |pieces: Vec<String>| {
        futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>))
    };
    let events = |body| {
        Response::builder()
            .header("content-type", "text/event-stream")
            .header("x-request-id", "req_from_header")
            .body(body)
            .unwrap()
    };
    match reply {
        Reply::Whole(status, headers, body) => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            response.body(Body::from(body)).unwrap()
        }
        Reply::Stream(pieces) => events(Body::from_stream(stream(pieces))),
        Reply::Broken(pieces) => {
            let end = futures_util::stream::once(async {
                // Lets what came before leave the process.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                Err(std::io::Error::other("breaks off"))
            });
            events(Body::from_stream(stream(pieces).chain(end)))
        }
        Reply::Stall(pieces) => events(Body::from_stream(
            stream(pieces).chain(futures_util::stream::pending()),
        )),
        Reply::Hang => std::future::pending::<Result<Response<Body>, Infallible>>()
            .await
            .unwrap(),
    }
}

/// Data lines of an event stream, as one text.
pub(crate) fn events(list: &[Value]) -> String {
    list.iter()
        .map(|event| {
            let name = event["type"].as_str().unwrap_or("message");
            format!("event: {name}\ndata: {event}\n\n")
        })
        .collect()
}

/// Cuts a text into pieces of this many bytes.
pub(crate) fn cut(text: &str, size: usize) -> Vec<String> {
    assert!(
        text.is_ascii(),
        "cut only what every byte of is a character"
    );
    text.as_bytes()
        .chunks(size)
        .map(|piece| String::from_utf8(piece.to_vec()).unwrap())
        .collect()
}

pub(crate) fn config(text: &str) -> Config {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Python where every tool can read it; one of a version manager lies in somebody's home.
pub(crate) fn python() -> &'static str {
    let system = "/usr/bin/python3";
    if std::path::Path::new(system).exists() {
        system
    } else {
        "python3"
    }
}

/// The starter of these tests, and nothing to keep from anybody.
pub(crate) fn confinement() -> Confinement {
    Confinement {
        starter: env!("CARGO_BIN_EXE_confined-starter").into(),
        out_of_reach: Vec::new(),
    }
}

pub(crate) fn outside(text: &str) -> Outside {
    Outside::new(config(text), None, confinement()).unwrap()
}

pub(crate) fn outside_with(text: &str, vault: &Vault) -> Outside {
    Outside::new(config(text), Some(vault.clone()), confinement()).unwrap()
}

/// A vault with secrets in a folder that lives as long as it is held.
pub(crate) fn vault(secrets: &[(&str, &str)]) -> (tempfile::TempDir, Vault) {
    let folder = tempfile::tempdir().unwrap();
    let vault = Vault::open(folder.path().join("vault"), "local").unwrap();
    for (name, value) in secrets {
        vault.put(name, &(*value).into()).unwrap();
    }
    (folder, vault)
}

pub(crate) fn effect(key: &str, kind: EffectKind, request: Value) -> Effect {
    Effect {
        key: key.to_owned(),
        kind,
        request,
        repeatable: true,
        secrets: Handles::default(),
    }
}

pub(crate) async fn perform(outside: &Outside, kind: EffectKind, request: Value) -> EffectOutcome {
    let effect = effect("llm:main:1", kind, request);
    outside.perform(effect, Deltas::none()).await
}

/// Performs an effect as a run would that has just recorded the handles of these secrets.
pub(crate) async fn perform_with_secrets(
    outside: &Outside,
    kind: EffectKind,
    request: Value,
    names: &[&str],
) -> EffectOutcome {
    let handles = handles(outside, names).await;
    perform_with(outside, kind, request, &handles).await
}

pub(crate) async fn perform_with(
    outside: &Outside,
    kind: EffectKind,
    request: Value,
    handles: &Handles,
) -> EffectOutcome {
    let effect = Effect {
        secrets: handles.clone(),
        ..effect("llm:main:1", kind, request)
    };
    outside.perform(effect, Deltas::none()).await
}

/// Asks for the handles of secrets, as a run does before it uses tools.
pub(crate) async fn handles(outside: &Outside, names: &[&str]) -> Handles {
    let mut handles = Vec::new();
    for name in names {
        let asked = perform(outside, EffectKind::Secret, json!({"name": name})).await;
        assert!(asked.ok, "{asked:?}");
        handles.push(((*name).to_owned(), asked.value));
    }
    handles.into_iter().collect()
}

/// Asks a model and returns the result with the pieces that were shown.
pub(crate) async fn ask(outside: &Outside, request: Value) -> (EffectOutcome, Vec<String>) {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let effect = effect("llm:main:1", EffectKind::Model, request);
    let performed = outside
        .perform(effect, Deltas::to(move |piece| drop(sender.send(piece))))
        .await;
    let mut pieces = Vec::new();
    while let Some(piece) = receiver.recv().await {
        pieces.push(piece);
    }
    (performed, pieces)
}

pub(crate) fn hello() -> Value {
    json!({"messages": [{"role": "user", "content": "hello"}]})
}

/// A conversation with every kind of message.
pub(crate) fn conversation() -> Value {
    json!({
        "model": "asked-model",
        "messages": [
            {"role": "system", "content": "be short"},
            {"role": "user", "content": "what time is it?"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{\"zone\":\"UTC\"}"}},
                {"id": "call_2", "type": "function", "function": {"name": "clock", "arguments": "{not json"}},
            ]},
            {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
            {"role": "tool", "tool_call_id": "call_2", "content": "error"},
        ],
        "tools": [{"type": "function", "function": {
            "name": "clock", "description": "tells the time",
            "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
        }}],
        "max_tokens": 77,
        "temperature": 0.5,
    })
}

#[track_caller]
pub(crate) fn assert_error(performed: &EffectOutcome, code: &str) {
    assert!(!performed.ok, "{performed:?}");
    assert_eq!(performed.value["code"], code, "{performed:?}");
    assert!(performed.model.is_none());
}

/// Waits until a process has ended; one that only nobody has collected yet has.
pub(crate) async fn is_gone(process: &str) -> bool {
    let file = std::path::Path::new("/proc")
        .join(process.trim())
        .join("stat");
    let began = std::time::Instant::now();
    while let Ok(text) = std::fs::read_to_string(&file) {
        let state = text
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        if state == Some('Z') {
            break;
        }
        if began.elapsed() > std::time::Duration::from_secs(5) {
            return false;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    true
}
