//! Equal requests with one key, at the same time and across a kill: one resource (AP-IDEM-06, AP-IDEM-07, AP-IDEM-09).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::sync::Barrier;
use tokio::task::JoinHandle;

use crate::client::{Answer, Api, Ask, Lost, text};
use crate::history::History;
use crate::host::{Host, generator};

const EQUAL: usize = 20;

/// A write, and how to count what it made.
struct Case {
    name: &'static str,
    ask: Ask,
    count: Count,
}

enum Count {
    /// The length of a list.
    List(String),
    /// Events of a kind about one resource.
    Events(&'static str, String),
}

impl Count {
    async fn now(&self, api: &Api) -> usize {
        match self {
            Count::List(path) => api.list(path).await.len(),
            Count::Events(kind, resource) => {
                let history = History::of(api).await;
                let is_one = |event: &&serde_json::Value| {
                    event["event"] == *kind && event["resource"]["id"] == json!(resource)
                };
                history.events.iter().filter(is_one).count()
            }
        }
    }
}

/// One write of each kind, all with the same key: it is scoped by what it is used for.
async fn cases(api: &Api) -> Vec<Case> {
    let session = api.session().await;
    let artifact = text(&api.ok(&Ask::artifact("to fill")).await["id"]);
    let task = api.ok(&Ask::task(&session, "approve", "May I?")).await;
    let task = text(&task["id"]);
    let requests = format!("/v1/tasks/{task}/permission-requests");
    let waits = |list: &serde_json::Value| list["data"][0]["id"].is_string();
    let request = text(&api.until(&requests, waits).await["data"][0]["id"]);
    let (tasks, messages) = (api.session().await, api.session().await);
    let case = |name, ask: Ask, count| Case {
        name,
        ask: ask.with_key("equal"),
        count,
    };
    let list = |path: &str| Count::List(path.to_owned());
    vec![
        case(
            "task",
            Ask::task(&tasks, "agent", "Do it once"),
            Count::List(format!("/v1/sessions/{tasks}/tasks")),
        ),
        case(
            "message",
            Ask::message(&messages, "Said once"),
            Count::List(format!("/v1/sessions/{messages}/messages")),
        ),
        case(
            "artifact",
            Ask::artifact("made once"),
            list("/v1/artifacts"),
        ),
        case(
            "content of an artifact",
            Ask::put(
                &format!("/v1/artifacts/{artifact}/content"),
                vec![1; 200_000],
            ),
            Count::Events("artifact.updated", artifact),
        ),
        case(
            "workspace",
            Ask::post(
                "/v1/workspaces",
                json!({"name": "once", "root": "reprise://once"}),
            ),
            list("/v1/workspaces"),
        ),
        case(
            "session",
            Ask::post("/v1/sessions", json!({"metadata": {"opened": "once"}})),
            list("/v1/sessions"),
        ),
        case(
            "branch",
            Ask::post(
                &format!("/v1/sessions/{session}/branches"),
                json!({"kind": "session", "base_ref": "main"}),
            ),
            Count::List(format!("/v1/sessions/{session}/branches")),
        ),
        case(
            "vault",
            Ask::post(
                "/v1/vaults",
                json!({"provider": "env", "capabilities": ["read"]}),
            ),
            list("/v1/vaults"),
        ),
        case(
            "permission answer",
            Ask::post(
                &format!("/v1/permission-requests/{request}/respond"),
                json!({"approved": true, "reason": "once"}),
            ),
            Count::Events("user.tool_confirmation", request),
        ),
    ]
}

type Sent = JoinHandle<Result<Answer, Lost>>;

/// Sends a request many times at once, each over a connection of its own; counts those that have ended.
fn send_all(host: &Host, ask: &Ask, ended: &Arc<AtomicUsize>) -> Vec<Sent> {
    let barrier = Arc::new(Barrier::new(EQUAL));
    (0..EQUAL)
        .map(|_| {
            let (api, ask) = (host.api(), ask.clone());
            let (barrier, ended) = (Arc::clone(&barrier), Arc::clone(ended));
            tokio::spawn(async move {
                // Connected before all of them begin.
                api.bytes(&Ask::get("/healthz")).await;
                barrier.wait().await;
                let sent = api.send(&ask).await;
                ended.fetch_add(1, Ordering::Relaxed);
                sent
            })
        })
        .collect()
}

async fn ids(name: &str, sent: Vec<Sent>, may_be_lost: bool) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for answer in sent {
        match answer.await.unwrap() {
            Ok(answer) => {
                let body = String::from_utf8_lossy(&answer.bytes);
                assert!((200..300).contains(&answer.status), "{name}: {body}");
                ids.insert(text(&answer.json()["id"]));
            }
            Err(lost) => assert!(may_be_lost, "{name}: {lost:?}"),
        }
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ap_idem_07_equal_requests_at_the_same_time_make_one_resource() {
    let host = Host::new();
    let api = host.api();
    for case in cases(&api).await {
        let before = case.count.now(&api).await;
        let sent = send_all(&host, &case.ask, &Arc::default());
        let ids = ids(case.name, sent, false).await;
        assert_eq!(ids.len(), 1, "{}: {ids:?}", case.name);
        let after = case.count.now(&api).await;
        assert_eq!(after - before, 1, "{}", case.name);
    }
    host.must_verify();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ap_idem_09_so_does_a_retry_after_a_kill_in_the_middle() {
    let mut rng = generator();
    let mut host = Host::new();
    for case in cases(&host.api()).await {
        let before = case.count.now(&host.api()).await;
        let ended = Arc::default();
        let first = send_all(&host, &case.ask, &ended);
        let moment = rng.usize(1..EQUAL);
        while ended.load(Ordering::Relaxed) < moment {
            tokio::task::yield_now().await;
        }
        host.kill();
        host.start();
        let mut all = ids(case.name, first, true).await;
        let again = send_all(&host, &case.ask, &Arc::default());
        all.extend(ids(case.name, again, false).await);
        assert_eq!(all.len(), 1, "{}: {all:?}", case.name);
        let after = case.count.now(&host.api()).await;
        assert_eq!(after - before, 1, "{}", case.name);
    }
    host.must_verify();
}
