//! AP-WS, AP-BR, AP-VAULT, AP-ENV.

use serde_json::json;

use crate::fixture::{Server, key, refused};

#[tokio::test]
async fn ap_ws_04_a_bound_caller_sees_its_own_workspace_only() {
    let server = Server::start().await;
    let api = server.client();
    let (_, other) = api
        .post("/v1/workspaces", json!({"name": "o", "root": "r"}))
        .await;
    let hidden = api.session().await;
    server
        .add_key(key(
            "rk_bob",
            "bob",
            &["*"],
            Some(&[other["id"].as_str().unwrap()]),
        ))
        .await;
    let bob = server.client_with("rk_bob");
    assert_eq!(bob.get("/v1/sessions").await.1["data"], json!([]));
    refused(
        &bob.get(&format!("/v1/sessions/{hidden}")).await,
        404,
        "resource_not_found",
        None,
    );
    let (_, seen) = bob.get("/v1/workspaces").await;
    assert_eq!(seen["data"].as_array().unwrap().len(), 1);
    let denied = bob
        .post("/v1/workspaces", json!({"name": "n", "root": "r"}))
        .await;
    refused(&denied, 403, "permission_denied", None);
    let elsewhere = bob.post("/v1/sessions", json!({})).await;
    refused(&elsewhere, 404, "resource_not_found", Some("workspace_id"));
}

#[tokio::test]
async fn ap_ws_06_paths_that_leave_the_root_are_refused() {
    let server = Server::start().await;
    let api = server.client();
    for path in ["../x", "/etc/passwd", "a/../../b", "a%2F..%2Fb", "..\\x"] {
        let url = format!("/v1/workspaces/workspace_local/files?path={path}");
        refused(&api.get(&url).await, 400, "invalid_request", Some("path"));
        let put = api.request("PUT", &url).json(&json!({"content": "x"}));
        refused(&api.send(put).await, 400, "invalid_request", Some("path"));
    }
}

#[tokio::test]
async fn a_branch_of_a_task_that_is_not_there_is_refused() {
    let server = Server::start().await;
    let api = server.client();
    let path = format!("/v1/sessions/{}/branches", api.session().await);
    let lost = json!({"kind": "task", "base_ref": "m", "task_id": "task_none"});
    refused(
        &api.post(&path, lost).await,
        404,
        "resource_not_found",
        Some("task_id"),
    );
}

#[tokio::test]
async fn ap_vault_02_secret_material_in_metadata_is_refused_and_not_recorded() {
    let server = Server::start().await;
    let api = server.client();
    let secret =
        json!({"provider": "env", "capabilities": [], "metadata": {"private_key": "s3cret"}});
    refused(
        &api.post("/v1/vaults", secret).await,
        400,
        "invalid_request",
        Some("metadata"),
    );
    assert!(!api.text("/v1/events").await.contains("s3cret"));
}

#[tokio::test]
async fn c_12_what_a_page_says_stands_beside_it_and_odd_limits_and_cursors_are_refused() {
    let server = Server::start().await;
    let api = server.client();
    for _ in 0..2 {
        api.session().await;
    }
    let (_, page) = api.get("/v1/sessions?limit=1").await;
    assert!(page["next_cursor"].is_string(), "{page}");
    assert_eq!(page["page"]["next_cursor"], page["next_cursor"]);
    assert_eq!(page["page"]["has_more"], page["has_more"]);
    for bad in [
        "limit=-1",
        "limit=",
        "limit=1.0",
        "limit=%2B5",
        "limit=1&limit=2",
    ] {
        let got = api.get(&format!("/v1/tasks?{bad}")).await;
        refused(&got, 400, "invalid_request", Some("limit"));
    }
    refused(
        &api.get("/v1/tasks?cursor=zzz").await,
        400,
        "invalid_request",
        Some("cursor"),
    );
    refused(
        &api.get("/v1/tasks?session_id=session_x").await,
        404,
        "resource_not_found",
        Some("session_id"),
    );
}
