//! A running server and a client for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use domain::Timestamp;
use engine::port::{ApiKey, BoxFuture, Deltas, KeyStore, MemoryStore, Performer, Store};
use engine::{Engine, Limits, Offline, Parts};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use runs::workflow::{Effect, EffectKind, EffectOutcome, Registry, builtin};
use serde_json::{Value, json};
use server::world::{RandomIds, SystemClock, TokioSpawn};
use server::{Config, bind};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::contract;

pub(crate) const VERSION: &str = "agents-protocol-2026-04-25";
pub(crate) const KEY: &str = "rk_test_0123456789abcdef";
/// The key of somebody who decides what tasks of the first key ask approval for.
pub(crate) const APPROVER_KEY: &str = "rk_approver_0123456789abcdef";

/// The words at which the model does not come to an end: its task keeps a worker until it is canceled.
const BUSY: &str = "stay busy";

/// The outside of these tests.
#[derive(Debug)]
struct Outside;

impl Performer for Outside {
    fn perform(&self, effect: Effect, deltas: Deltas) -> BoxFuture<'static, EffectOutcome> {
        let is_busy = effect.kind == EffectKind::Model && effect.request.to_string().contains(BUSY);
        match is_busy {
            true => Box::pin(std::future::pending()),
            false => Offline.perform(effect, deltas),
        }
    }
}

/// A server that stops with the test.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    pub(crate) store: Arc<MemoryStore>,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
}

pub(crate) fn limits() -> Limits {
    Limits {
        batch_len_max: 64,
        pending_commands_max: 1_024,
        workers_max: 8,
        open_tasks_max: 1_000,
        stored_bytes_max: u64::MAX,
        streams_max: 64,
        fork_messages_max: 100,
        settle_window: Duration::from_millis(250),
        start_window: Duration::from_secs(5),
        idempotency_window: Duration::from_secs(86_400),
        leaf_interval: Duration::from_millis(200),
        head_leaves_max: 1_000,
        head_interval: Duration::from_secs(60),
        receipt_window: Duration::from_secs(2),
        drain_window: Duration::from_millis(300),
    }
}

pub(crate) fn config() -> Config {
    let mut config = Config::local("127.0.0.1:0".parse().unwrap());
    config.body_bytes_max = 64 * 1024;
    config.artifact_bytes_max = 128 * 1024;
    config.shutdown_timeout = Duration::from_secs(2);
    config
}

/// A key of an actor with scopes, bound to Workspaces or not.
pub(crate) fn key(text: &str, actor: &str, scopes: &[&str], workspaces: Option<&[&str]>) -> ApiKey {
    let (id, digest) = (format!("key_{actor}"), canon::sha256(text.as_bytes()));
    let scopes = scopes.iter().copied();
    ApiKey {
        workspaces: workspaces.map(|list| list.iter().map(ToString::to_string).collect()),
        ..ApiKey::new(id, digest, actor, scopes, Timestamp::from_micros(0))
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(config()).await
    }

    pub(crate) async fn start_with(config: Config) -> Self {
        let store = Arc::new(MemoryStore::new("testlog1", [7; 32]));
        Self::start_on(store, config, limits()).await
    }

    pub(crate) async fn start_on(store: Arc<MemoryStore>, config: Config, limits: Limits) -> Self {
        store
            .put_api_key(key(KEY, "ann", &["*"], None))
            .await
            .unwrap();
        let approver = key(APPROVER_KEY, "bea", &["*", "approvals:write"], None);
        store.put_api_key(approver).await.unwrap();
        let engine = Engine::start(Parts {
            store: store.clone(),
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
            spawn: Arc::new(TokioSpawn),
            performer: Arc::new(Outside),
            secrets: None,
            workflows: Registry::new(builtin()),
            authority: engine::Authority::with_one_key("harness_test", "key_test", &[9; 32])
                .unwrap(),
            limits,
        })
        .await
        .unwrap();
        let bound = bind(config).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let (url, address) = (bound.url(), bound.address());
        let serving = engine.clone();
        let served = tokio::spawn(async move {
            bound
                .serve(serving, async {
                    let _ = stopped.await;
                })
                .await;
        });
        Self {
            url,
            address,
            engine,
            store,
            stop: Some(stop),
            served,
        }
    }

    /// Asks the server to stop, without waiting.
    pub(crate) fn begin_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Waits until the server has stopped.
    pub(crate) async fn stopped(self) {
        self.served.await.unwrap();
    }

    pub(crate) fn client(&self) -> Api {
        self.client_with(KEY)
    }

    pub(crate) fn client_with(&self, key: &str) -> Api {
        Api {
            url: self.url.clone(),
            key: key.to_owned(),
            http: Client::builder().no_proxy().build().unwrap(),
        }
    }

    pub(crate) async fn add_key(&self, key: ApiKey) {
        self.store.put_api_key(key).await.unwrap();
    }
}

/// An HTTP client with credential and version.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) url: String,
    key: String,
    pub(crate) http: Client,
}

/// A status and a JSON body.
pub(crate) type Got = (u16, Value);

impl Api {
    /// Submits a task that keeps a worker until it is canceled.
    pub(crate) async fn busy(&self, session: &str) -> Value {
        let body = json!({"input": {"role": "user", "content": BUSY}});
        let (status, task) = self
            .post(&format!("/v1/sessions/{session}/tasks"), body)
            .await;
        assert_eq!(
            (status, &task["status"]),
            (202, &json!("WORKING")),
            "{task}"
        );
        task
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method: Method = method.parse().unwrap();
        // One person with two keys, as on the command line.
        let key = match path.ends_with("/respond") && self.key == KEY {
            true => APPROVER_KEY,
            false => &self.key,
        };
        self.http
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(key)
            .header("Harn-Agents-Protocol-Version", VERSION)
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Got {
        let request = request.build().unwrap();
        let (method, path) = (request.method().clone(), request.url().path().to_owned());
        let response = self.http.execute(request).await.unwrap();
        let status = response.status().as_u16();
        assert_ne!(status, 500, "{response:?}");
        let id = response.headers().get("x-request-id").cloned();
        let text = response.text().await.unwrap();
        let body: Value = if text.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("not JSON: {text}"))
        };
        if !text.is_empty() {
            contract::check(method.as_str(), &path, status, &text);
        }
        if status >= 400 && wire::openapi::is_governed_path(&path) {
            assert_eq!(body["status"], status, "{body}");
            assert_eq!(body["request_id"], id.unwrap().to_str().unwrap());
        } else if status >= 400 {
            check_error(status, &body);
            assert_eq!(body["error"]["request_id"], id.unwrap().to_str().unwrap());
        }
        (status, body)
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        self.send(self.request("GET", path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Got {
        self.send(self.request("POST", path).json(&body)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> Got {
        self.send(self.request("PATCH", path).json(&body)).await
    }

    pub(crate) async fn post_with_key(&self, path: &str, key: &str, body: Value) -> Got {
        let request = self.request("POST", path).header("Idempotency-Key", key);
        self.send(request.json(&body)).await
    }

    pub(crate) async fn text(&self, path: &str) -> String {
        let response = self.request("GET", path).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.text().await.unwrap()
    }

    /// Creates a Session and returns its id.
    pub(crate) async fn session(&self) -> String {
        let (status, session) = self.post("/v1/sessions", json!({})).await;
        assert_eq!(status, 201, "{session}");
        id(&session)
    }

    /// Submits a Task that runs a workflow and returns it.
    pub(crate) async fn task(&self, session: &str, workflow: &str) -> Value {
        let body = json!({"input": {"goal": "x"}, "metadata": {"workflow": workflow}});
        let (status, task) = self
            .post(&format!("/v1/sessions/{session}/tasks"), body)
            .await;
        assert_eq!(status, 202, "{task}");
        task
    }

    /// Polls a Task until it has a status.
    pub(crate) async fn wait_for(&self, task: &str, status: &str) -> Value {
        for _ in 0..200 {
            let (_, now) = self.get(&format!("/v1/tasks/{task}")).await;
            if now["status"] == status {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("task {task} never became {status}");
    }
}

pub(crate) fn id(resource: &Value) -> String {
    resource["id"].as_str().unwrap().to_owned()
}

/// Checks the shape of an error and that code, type and status go together (AP-ERR-01, AP-ERR-03).
pub(crate) fn check_error(status: u16, body: &Value) {
    let error = &body["error"];
    let code = wire::Code::ALL
        .iter()
        .find(|code| error["code"] == code.as_str())
        .unwrap_or_else(|| panic!("unknown code in {body}"));
    // Statuses that no code of the protocol has go with the one for requests.
    let without_code = [405, 408, 414, 415, 421, 431, 501, 505];
    assert!(
        code.status() == status
            || without_code.contains(&status) && *code == wire::Code::InvalidRequest,
        "{status} {body}"
    );
    assert_eq!(error["type"], code.kind(), "{body}");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    assert!(error["param"].is_string() || error["param"].is_null());
    assert!(error["details"].is_object());
    assert!(error["request_id"].as_str().unwrap().starts_with("req_"));
}

/// Asserts an error's status, code and param.
#[track_caller]
pub(crate) fn refused(got: &Got, status: u16, code: &str, param: Option<&str>) {
    assert_eq!(got.0, status, "{}", got.1);
    assert_eq!(got.1["error"]["code"], code, "{}", got.1);
    assert_eq!(got.1["error"]["param"], json!(param), "{}", got.1);
}

/// One frame of a server-sent event stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SseFrame {
    pub(crate) id: String,
    pub(crate) event: String,
    pub(crate) data: Value,
}

/// Reads frames from a response until one more is there, the stream ends, or time is up.
pub(crate) struct Frames {
    response: reqwest::Response,
    pub(crate) raw: Vec<u8>,
    at: usize,
}

impl Frames {
    pub(crate) async fn open(request: RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let kind = response.headers()["content-type"].to_str().unwrap();
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        Self {
            response,
            raw: Vec::new(),
            at: 0,
        }
    }

    /// Returns the next frame; none at the end. Comments are passed over.
    pub(crate) async fn next(&mut self) -> Option<SseFrame> {
        loop {
            let rest = &self.raw[self.at..];
            if let Some(end) = rest.windows(2).position(|pair| pair == b"\n\n") {
                let text = String::from_utf8(rest[..end].to_vec()).unwrap();
                self.at += end + 2;
                if text.starts_with(':') {
                    continue;
                }
                return Some(parse(&text));
            }
            let chunk = tokio::time::timeout(Duration::from_secs(5), self.response.chunk());
            match chunk.await.expect("a frame within five seconds").unwrap() {
                Some(chunk) => self.raw.extend_from_slice(&chunk),
                None => return None,
            }
        }
    }

    pub(crate) async fn all(mut self) -> Vec<SseFrame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }
}

fn parse(text: &str) -> SseFrame {
    let member = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no `{name}` in {text}"))
            .to_owned()
    };
    SseFrame {
        id: member("id: "),
        event: member("event: "),
        data: serde_json::from_str(&member("data: ")).unwrap(),
    }
}

impl Server {
    /// Where the log ends.
    pub(crate) fn store_head(&self) -> domain::Position {
        self.store.head()
    }

    /// Counts events after a position that carry an idempotency key: one per command that took effect.
    pub(crate) async fn events_with_key_after(&self, after: domain::Position, key: &str) -> usize {
        let query = engine::port::ReadEvents {
            scope: engine::port::Scope::All,
            after,
            limit: usize::MAX,
        };
        let events = self.store.events(query).await.unwrap();
        let carries = |bytes: &[u8]| domain::Event::parse(bytes).unwrap().idempotency_key;
        events
            .iter()
            .filter(|event| carries(&event.bytes).as_deref() == Some(key))
            .count()
    }

    /// Another server on what this one has committed so far, as after a crash.
    pub(crate) async fn reopened(&self) -> Server {
        Server::start_on(Arc::new(self.store.reopened()), config(), limits()).await
    }
}
