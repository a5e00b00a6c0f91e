//! What callers share, over the wire (U25): a lone key has everything, and nobody keeps others out.

use std::sync::Arc;

use engine::port::MemoryStore;
use serde_json::json;

use crate::fixture::{Server, config, key, limits, refused};

async fn server(change: impl FnOnce(&mut engine::Limits)) -> Server {
    let mut limits = limits();
    change(&mut limits);
    let store = Arc::new(MemoryStore::new("testlog1", [7; 32]));
    let server = Server::start_on(store, config(), limits).await;
    for name in ["greedy", "modest"] {
        let key = key(
            &format!("rk_{name}"),
            name,
            &["*"],
            Some(&["workspace_local"]),
        );
        server.add_key(key).await;
    }
    server
}

/// F7: tasks that hold have no worker, whoever submitted them.
#[tokio::test]
async fn f7_tasks_that_hold_keep_no_worker_from_others_nor_from_their_own_caller() {
    let server = server(|limits| limits.workers_max = 2).await;
    let (greedy, modest) = (
        server.client_with("rk_greedy"),
        server.client_with("rk_modest"),
    );
    let session = greedy.session().await;
    for _ in 0..8 {
        let task = greedy.task(&session, "hold").await;
        assert_eq!(task["status"], "WORKING");
    }
    for api in [&modest, &greedy] {
        let session = api.session().await;
        let task = api.task(&session, "agent").await;
        assert_eq!(task["status"], "COMPLETED");
    }
}

#[tokio::test]
async fn u25_open_tasks_are_shared_out_and_those_that_wait_count() {
    let server = server(|limits| limits.open_tasks_max = 4).await;
    let (greedy, modest) = (
        server.client_with("rk_greedy"),
        server.client_with("rk_modest"),
    );
    let session = greedy.session().await;
    for _ in 0..4 {
        greedy.task(&session, "ask").await;
    }
    let path = format!("/v1/sessions/{session}/tasks");
    let body = json!({"input": {}, "metadata": {"workflow": "ask"}});
    let got = greedy.post(&path, body.clone()).await;
    refused(&got, 429, "rate_limited", None);
    let details = &got.1["error"]["details"];
    assert_eq!(details["limit"], "open_tasks_max");
    assert_eq!((&details["held"], &details["max"]), (&json!(4), &json!(4)));
    assert_eq!(details["setting"], "limits.open_tasks_max");
    // The last quarter is for whoever has less than its share.
    let session = modest.session().await;
    modest.task(&session, "ask").await;
    let got = modest
        .post(&format!("/v1/sessions/{session}/tasks"), body)
        .await;
    refused(&got, 503, "service_unavailable", None);
}

#[tokio::test]
async fn u25_streams_are_shared_out_by_key() {
    let server = server(|limits| limits.streams_max = 4).await;
    let (greedy, modest) = (
        server.client_with("rk_greedy"),
        server.client_with("rk_modest"),
    );
    let mut open = Vec::new();
    for _ in 0..4 {
        let stream = greedy.request("GET", "/v1/events/stream").send().await;
        open.push(stream.unwrap());
    }
    let got = greedy.get("/v1/events/stream").await;
    refused(&got, 429, "rate_limited", None);
    assert_eq!(got.1["error"]["details"]["limit"], "streams_max");
    let other = modest.request("GET", "/v1/events/stream").send().await;
    assert_eq!(other.unwrap().status(), 200);
    // What is closed can be opened again.
    open.pop();
    for tries in 0.. {
        let again = greedy.request("GET", "/v1/events/stream").send().await;
        if again.unwrap().status() == 200 {
            break;
        }
        assert!(tries < 100, "a closed stream is still counted");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
