//! Records of finished Tasks: who may have them, and what they show.

use serde_json::{Value, json};

use crate::fixture::{Server, id, key, refused};

fn override_with(text: &str) -> Value {
    let value = json!({"choices": [{"message": {"role": "assistant", "content": text}}]});
    json!({
        "mode": "with_overrides",
        "override": {"llm:main:1": {"kind": "llm_provider_response", "value": value}},
    })
}

#[tokio::test]
async fn a_bundle_needs_every_scope_of_what_it_holds() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = id(&api.task(&session, "agent").await);
    let path = format!("/v1/tasks/{task}/bundle");
    let response = api.request("GET", &path).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/jsonl");
    assert_eq!(response.headers()["content-disposition"], "attachment");
    let bytes = response.bytes().await.unwrap();
    let bundle = runs::replay::Bundle::read(&bytes).unwrap();
    assert_eq!(bundle.task_id().as_str(), task);

    for missing in ["tasks:read", "receipts:read", "internal:read"] {
        let scopes: Vec<&str> = [
            "tasks:read",
            "receipts:read",
            "internal:read",
            "events:read",
        ]
        .into_iter()
        .filter(|scope| *scope != missing)
        .collect();
        let name = missing.split(':').next().unwrap();
        server.add_key(key(name, name, &scopes, None)).await;
        let got = server.client_with(name).get(&path).await;
        refused(&got, 403, "permission_denied", None);
        assert_eq!(
            got.1["error"]["details"]["required_scopes"],
            json!([missing])
        );
    }
    server
        .add_key(key("elsewhere", "eve", &["*"], Some(&["workspace_other"])))
        .await;
    let eve = server.client_with("elsewhere");
    refused(&eve.get(&path).await, 404, "resource_not_found", None);
    refused(
        &api.get("/v1/tasks/task_x/bundle").await,
        404,
        "resource_not_found",
        None,
    );
    let held = id(&api.task(&session, "hold").await);
    let got = api.get(&format!("/v1/tasks/{held}/bundle")).await;
    refused(&got, 409, "conflict", None);
}

#[tokio::test]
async fn a_diff_names_both_tasks_and_hides_what_is_hidden() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = id(&api.task(&session, "replay-fixture").await);
    let replay = format!("/v1/tasks/{task}/replay");
    let exact = id(&api.post(&replay, json!({})).await.1);
    let changed = id(&api.post(&replay, override_with("hidden-4711")).await.1);
    for replayed in [&exact, &changed] {
        api.wait_for(replayed, "COMPLETED").await;
    }
    let diff = |other: &str| format!("/v1/tasks/{task}/diff?other={other}");

    let (status, equal) = api.get(&diff(&exact)).await;
    assert_eq!((status, &equal["equal"]), (200, &json!(true)), "{equal}");
    let (_, differs) = api.get(&diff(&changed)).await;
    assert_eq!(differs["equal"], false);
    assert_eq!(differs["relation"], "replay");
    assert_eq!(differs["first_divergence"]["a"]["effect_key"], "llm:main:1");
    assert_eq!(
        differs["effects"][0]["text"]["after"],
        json!(["hidden-4711"])
    );

    // An override is receipt_only unless it says otherwise: its words are for who may read everything.
    let scopes = ["tasks:read", "events:read", "internal:read"];
    server.add_key(key("bob", "bob", &scopes, None)).await;
    let bob = server.client_with("bob");
    let (status, narrow) = bob.get(&diff(&changed)).await;
    assert_eq!(status, 200);
    assert!(!narrow.to_string().contains("hidden-4711"), "{narrow}");
    assert_eq!(
        narrow["effects"][0]["value"],
        differs["effects"][0]["value"]
    );
    assert_eq!(narrow["effects"][0]["text"], Value::Null);

    refused(
        &api.get(&format!("/v1/tasks/{task}/diff")).await,
        400,
        "invalid_request",
        Some("other"),
    );
    for unknown in ["task_unknown", "session_1"] {
        refused(
            &api.get(&diff(unknown)).await,
            404,
            "resource_not_found",
            Some("other"),
        );
    }
    refused(
        &api.get(&format!("/v1/tasks/task_x/diff?other={task}"))
            .await,
        404,
        "resource_not_found",
        None,
    );
    let held = id(&api.task(&session, "hold").await);
    refused(&api.get(&diff(&held)).await, 409, "conflict", None);
    server
        .add_key(key("carl", "carl", &["tasks:read"], None))
        .await;
    let carl = server.client_with("carl");
    refused(
        &carl.get(&diff(&exact)).await,
        403,
        "permission_denied",
        None,
    );
}
