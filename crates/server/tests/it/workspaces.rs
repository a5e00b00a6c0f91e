//! AP-WS, AP-BR, AP-VAULT, AP-ENV.

use serde_json::json;

use crate::fixture::{Server, id, key, refused};

#[tokio::test]
async fn ap_ws_01_02_05_workspaces_are_created_read_and_changed() {
    let server = Server::start().await;
    let api = server.client();
    let body = json!({"name": "w", "root": "harn://conformance/x", "metadata": {"a": [1, {"b": null}]}, "color": "red"});
    let (status, workspace) = api.post("/v1/workspaces", body).await;
    assert_eq!(status, 201);
    assert_eq!(workspace["object"], "workspace");
    assert_eq!(
        workspace["metadata"],
        json!({"a": [1, {"b": null}]}),
        "AP-ENV-05"
    );
    assert_eq!(workspace.get("color"), None, "AP-ENV-05");
    let path = format!("/v1/workspaces/{}", id(&workspace));
    assert_eq!(api.get(&path).await, (200, workspace.clone()));
    let change =
        json!({"name": "v", "capabilities": ["a"], "quota_id": null, "metadata": {"c": 1}});
    let (status, changed) = api.patch(&path, change).await;
    assert_eq!(status, 200);
    assert_eq!(changed["name"], "v");
    assert_eq!(changed["capabilities"], json!(["a"]));
    assert_eq!(changed["quota_id"], json!(null));
    assert_eq!(changed["metadata"], json!({"c": 1}));
    assert_eq!(changed["root"], "harn://conformance/x");
    let branch = changed["default_branch_id"].as_str().unwrap();
    let (_, branch) = api.get(&format!("/v1/branches/{branch}")).await;
    assert_eq!(branch["kind"], "workspace");
    let (status, session) = api
        .post("/v1/sessions", json!({"workspace_id": id(&workspace)}))
        .await;
    assert_eq!((status, &session["workspace_id"]), (201, &workspace["id"]));
    let task = api.task(&id(&session), "agent").await;
    assert_eq!(task["workspace_id"], workspace["id"], "AP-WS-03");
}

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
async fn ap_br_01_02_04_branches() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let path = format!("/v1/sessions/{session}/branches");
    let body = json!({"kind": "session", "base_ref": "main", "metadata": {"x": 1}});
    let (status, branch) = api.post(&path, body).await;
    assert_eq!(status, 201);
    assert_eq!(branch["parent_branch_id"], "branch_local", "AP-BR-03");
    assert_eq!(branch["created_by"], "ann");
    let read = api.get(&format!("/v1/branches/{}", id(&branch))).await;
    assert_eq!(read, (200, branch.clone()));
    let child = json!({"kind": "sandbox", "base_ref": "x", "parent_branch_id": branch["id"]});
    let (_, child) = api.post(&path, child).await;
    assert_eq!(child["parent_branch_id"], branch["id"]);
    let (_, list) = api.get(&path).await;
    assert_eq!(list["data"], json!([branch, child]));
    let events = api.text(&format!("/v1/sessions/{session}/events")).await;
    assert!(events.contains("\"event\":\"branch.created\""));
    refused(
        &api.post(&path, json!({"kind": "x", "base_ref": "m"})).await,
        400,
        "invalid_request",
        Some("kind"),
    );
    let lost = json!({"kind": "task", "base_ref": "m", "task_id": "task_none"});
    refused(
        &api.post(&path, lost).await,
        404,
        "resource_not_found",
        Some("task_id"),
    );
}

#[tokio::test]
async fn ap_vault_01_02_vaults_show_no_secrets() {
    let server = Server::start().await;
    let api = server.client();
    let body =
        json!({"provider": "env", "capabilities": ["read"], "workspace_id": "workspace_local"});
    let (status, vault) = api.post("/v1/vaults", body).await;
    assert_eq!(status, 201);
    assert_eq!(
        api.get(&format!("/v1/vaults/{}", id(&vault))).await,
        (200, vault.clone())
    );
    let (_, list) = api.get("/v1/vaults?workspace_id=workspace_local").await;
    assert_eq!(list["data"], json!([vault]));
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
async fn ap_env_06_07_pages_have_no_gap_and_no_overlap() {
    let server = Server::start().await;
    let api = server.client();
    let mut made = Vec::new();
    for _ in 0..7 {
        made.push(api.session().await);
    }
    let mut seen = Vec::new();
    let mut path = "/v1/sessions?limit=3".to_owned();
    loop {
        let (_, page) = api.get(&path).await;
        assert_eq!(page["object"], "list");
        assert_eq!(page["page"]["next_cursor"], page["next_cursor"], "C-12");
        assert_eq!(page["page"]["has_more"], page["has_more"], "C-12");
        seen.extend(page["data"].as_array().unwrap().iter().map(id));
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/v1/sessions?limit=3&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, made);
    for bad in ["0", "201", "x", "-1", "", "1.0", "%2B5"] {
        let got = api.get(&format!("/v1/tasks?limit={bad}")).await;
        refused(&got, 400, "invalid_request", Some("limit"));
    }
    refused(
        &api.get("/v1/tasks?limit=1&limit=2").await,
        400,
        "invalid_request",
        Some("limit"),
    );
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

#[tokio::test]
async fn ap_env_01_04_08_every_resource_has_its_envelope() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    api.task(&session, "agent").await;
    api.task(&session, "approve").await;
    let artifact = json!({"kind": "file", "mime_type": "text/plain", "visibility": "public"});
    api.post("/v1/artifacts", artifact).await;
    api.post(
        "/v1/vaults",
        json!({"provider": "env", "capabilities": [], "workspace_id": "workspace_local"}),
    )
    .await;
    let lists = [
        "/v1/workspaces",
        "/v1/sessions",
        "/v1/tasks",
        "/v1/artifacts",
        "/v1/outcomes",
        "/v1/vaults",
        "/v1/skills",
        "/v1/permission-requests",
        "/v1/events",
        &format!("/v1/sessions/{session}/messages"),
    ];
    for path in lists {
        let (_, list) = api.get(path).await;
        let data = list["data"].as_array().unwrap();
        assert!(!data.is_empty(), "{path}");
        for resource in data {
            let id = id(resource);
            assert!(
                id.bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)),
                "{id}"
            );
            assert!(resource["metadata"].is_object(), "{path}");
            assert!(
                resource["object"]
                    .as_str()
                    .unwrap()
                    .bytes()
                    .all(|byte| byte == b'_' || byte.is_ascii_lowercase())
            );
            for name in ["created_at", "updated_at"] {
                let time = resource[name].as_str().unwrap();
                assert!(
                    time.ends_with('Z') && domain::Timestamp::parse(time).is_ok(),
                    "{time}"
                );
            }
            if path != "/v1/skills" && path != "/v1/vaults" {
                assert!(resource["workspace_id"].is_string(), "C-44 {path}");
            }
        }
    }
}
