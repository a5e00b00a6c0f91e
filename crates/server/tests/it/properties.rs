//! Whatever a client sends, the answer is documented and never a server error.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};
use wire::openapi::{Body, operations};

use crate::fixture::{Api, Server, check_error, id};

/// Any JSON, with the protocol's own words often enough to get past the first check.
fn any_json() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "user",
        "text",
        "file",
        "session",
        "public",
        "internal",
        "input",
        "approved",
        "agent",
        "ask",
        "text/plain",
        "workspace_local",
        "session_x",
        "task_x",
        "branch_local",
        "suggest",
        "required",
        "",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i32>().prop_map(Value::from),
        any::<f64>().prop_filter_map("finite", |number| serde_json::Number::from_f64(number)
            .map(Value::Number)),
        "\\PC{0,12}".prop_map(Value::String),
        words.prop_map(Value::from),
    ];
    let names = prop::sample::select(vec![
        "name",
        "root",
        "metadata",
        "workspace_id",
        "session_id",
        "task_id",
        "input",
        "message",
        "role",
        "parts",
        "content",
        "type",
        "text",
        "value",
        "visibility",
        "kind",
        "base_ref",
        "mime_type",
        "uri",
        "sha256",
        "provider",
        "capabilities",
        "keep_first",
        "reason",
        "approved",
        "outcome",
        "answer",
        "initial_messages",
        "model_policy",
        "model",
        "workflow",
        "at_event_id",
        "branch_id",
        "client_id",
        "path",
        "summary",
        "persona_id",
        "version",
        "entry_workflow",
        "description",
        "autonomy_tier",
        "receipt_policy",
        "tools",
        "limits",
    ]);
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec((names.clone(), inner), 0..6).prop_map(|members| {
                Value::Object(
                    members
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect::<Map<_, _>>(),
                )
            }),
        ]
    })
}

async fn one(api: &Api, method: &str, path: &str, body: &Value, expect: &[u16]) {
    let response = api.request(method, path).json(body).send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    if expect.contains(&status) {
        return;
    }
    assert!(
        (400..500).contains(&status),
        "{method} {path} {body}: {status} {text}"
    );
    let body: Value = serde_json::from_str(&text).unwrap();
    match wire::openapi::is_governed_path(path) {
        true => assert_eq!(body["status"], status, "{body}"),
        false => check_error(status, &body),
    }
}

#[test]
fn ap_rest_05_arbitrary_bodies_never_break_a_write() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (server, ids) = runtime.block_on(async {
        let server = Server::start().await;
        let api = server.client();
        let session = api.session().await;
        let task = id(&api.task(&session, "hold").await);
        let approve = id(&api.task(&session, "approve").await);
        let (_, requests) = api
            .get(&format!("/v1/tasks/{approve}/permission-requests"))
            .await;
        let body = json!({"kind": "file", "mime_type": "a/b", "visibility": "public"});
        let (_, artifact) = api.post("/v1/artifacts", body).await;
        let (_, persona) = api.post("/v1/personas", crate::personas::body("p")).await;
        let ids = [
            ("{persona_id}", id(&persona)),
            ("{session_id}", session),
            ("{task_id}", task),
            ("{request_id}", id(&requests["data"][0])),
            ("{artifact_id}", id(&artifact)),
            ("{workspace_id}", "workspace_local".to_owned()),
        ];
        (server, ids)
    });
    let api = server.client();
    let writes: Vec<(String, String, Vec<u16>)> = operations()
        .filter(|operation| operation.writes() && operation.body != Body::Octets)
        // Other protocols have errors of their own shape, and tests of their own.
        .filter(|operation| operation.protocol == wire::openapi::Protocol::Agents)
        .map(|operation| {
            let path = ids
                .iter()
                .fold(operation.path.to_owned(), |path, (name, id)| {
                    path.replace(name, id)
                });
            let expect = [operation.status]
                .iter()
                .chain(operation.also)
                .copied()
                .collect();
            (
                operation.method.to_uppercase(),
                path.replace(['{', '}'], ""),
                expect,
            )
        })
        .collect();
    assert!(writes.len() > 25);
    let mut runner = TestRunner::new(Config {
        cases: 48,
        failure_persistence: None,
        ..Config::default()
    });
    runner
        .run(&any_json(), |body| {
            runtime.block_on(async {
                for (method, path, expect) in &writes {
                    // Closing would end the fun for the others.
                    if !path.ends_with("/close") {
                        one(&api, method, path, &body, expect).await;
                    }
                }
            });
            Ok(())
        })
        .unwrap();
}
