//! AP-AUTH, AP-AUTHZ.

use std::time::Duration;

use domain::Timestamp;
use serde_json::{Value, json};

use crate::fixture::{KEY, Server, VERSION, config, id, key, refused};

#[tokio::test]
async fn ap_auth_01_03_a_wrong_credential_is_refused_and_not_repeated() {
    let server = Server::start().await;
    let http = server.client().http;
    let request = || {
        http.get(format!("{}/v1/tasks", server.url))
            .header("Harn-Agents-Protocol-Version", VERSION)
    };
    let wrong = "rk_presented_by_nobody";
    let cases = [
        request(),
        request().bearer_auth(wrong),
        request().bearer_auth(""),
        request().header("Authorization", format!("Basic {KEY}")),
        request().header("Authorization", KEY),
        request().bearer_auth(KEY).bearer_auth(wrong),
        http.get(format!("{}/v1/tasks?access_token={KEY}", server.url))
            .header("Harn-Agents-Protocol-Version", VERSION),
    ];
    for case in cases {
        let response = case.send().await.unwrap();
        assert_eq!(response.status(), 401);
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        let body = response.text().await.unwrap();
        assert!(!body.contains(wrong) && !body.contains(KEY));
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["error"]["code"], "unauthenticated");
        assert_eq!(body["error"]["type"], "auth_error");
    }
}

#[tokio::test]
async fn ap_auth_03_a_credential_in_the_content_never_enters_the_log() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let leak =
        json!({"role": "user", "content": format!("my key is {KEY}."), "metadata": {KEY: KEY}});
    // The same, with its first letter escaped: other bytes, the same text.
    let hidden = leak.to_string().replace("rk_", "\\u0072k_");
    let path = format!("/v1/sessions/{session}/messages");
    for body in [leak.to_string(), hidden] {
        let sent = api.request("POST", &path).body(body);
        let response = sent.send().await.unwrap();
        assert_eq!(response.status(), 201);
        let message: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        assert_eq!(message["parts"][0]["text"], "my key is [redacted:api_key].");
    }
    let got = api.post_with_key("/v1/sessions", KEY, json!({})).await;
    refused(&got, 400, "invalid_request", Some("Idempotency-Key"));
    for path in ["/v1/events?limit=200", "/v1/sessions", &path, "/metrics"] {
        assert!(!api.text(path).await.contains(KEY), "{path}");
    }
}

#[tokio::test]
async fn ap_auth_02_ap_oauth_03_scopes_decide_and_say_what_is_missing() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    server
        .add_key(key("rk_reader", "reader", &["*:read"], None))
        .await;
    server.add_key(key("rk_nobody", "nobody", &[], None)).await;
    let reader = server.client_with("rk_reader");
    assert_eq!(reader.get("/v1/tasks").await.0, 200);
    let artifact = json!({"kind": "file", "mime_type": "a/b", "visibility": "public"});
    let writes = [
        (
            "/v1/workspaces".to_owned(),
            json!({"name": "n", "root": "r"}),
            "workspaces:write",
        ),
        ("/v1/sessions".to_owned(), json!({}), "sessions:write"),
        (
            format!("/v1/sessions/{session}/tasks"),
            json!({"input": {}}),
            "tasks:write",
        ),
        ("/v1/artifacts".to_owned(), artifact, "artifacts:write"),
        (
            "/v1/vaults".to_owned(),
            json!({"provider": "e", "capabilities": []}),
            "vaults:write",
        ),
        (
            "/v1/personas".to_owned(),
            crate::personas::body("scoped"),
            "personas:write",
        ),
    ];
    for (path, body, scope) in writes {
        let got = reader.post(&path, body).await;
        refused(&got, 403, "permission_denied", None);
        assert_eq!(got.1["error"]["details"]["required_scopes"], json!([scope]));
    }
    let nobody = server.client_with("rk_nobody");
    for path in [
        "/v1/tasks",
        "/v1/sessions",
        "/v1/events",
        "/v1/events/stream",
        "/v1/artifacts",
        "/v1/vaults",
        "/v1/personas",
        "/v1/skills",
        "/v1/connectors",
        "/v1/workspaces",
        "/v1/outcomes",
        "/v1/permission-requests",
        "/v1/receipts/x",
    ] {
        refused(&nobody.get(path).await, 403, "permission_denied", None);
    }
    let (_, other) = {
        server.add_key(key("rk_eve", "eve", &["*"], None)).await;
        let body = json!({"session_id": session, "input": {}});
        server.client_with("rk_eve").post("/v1/tasks", body).await
    };
    assert_eq!(other["created_by"], "eve");
}

#[tokio::test]
async fn ap_auth_04_a_revoked_key_is_refused_within_a_second() {
    let server = Server::start().await;
    let mut bob = key("rk_bob", "bob", &["*"], None);
    server.add_key(bob.clone()).await;
    let api = server.client_with("rk_bob");
    assert_eq!(api.get("/v1/tasks").await.0, 200);
    bob.revoked_at = Some(Timestamp::from_micros(1));
    server.add_key(bob).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    refused(&api.get("/v1/tasks").await, 401, "unauthenticated", None);
}

#[tokio::test]
async fn ap_authz_02_a_foreign_resource_is_like_none() {
    let server = Server::start().await;
    let api = server.client();
    let (_, workspace) = api
        .post("/v1/workspaces", json!({"name": "o", "root": "r"}))
        .await;
    server
        .add_key(key(
            "rk_bob",
            "bob",
            &["*"],
            Some(&[workspace["id"].as_str().unwrap()]),
        ))
        .await;
    let bob = server.client_with("rk_bob");
    let session = api.session().await;
    let task = api.task(&session, "approve").await;
    let (_, message) = api
        .post(
            &format!("/v1/sessions/{session}/messages"),
            json!({"role": "user", "content": "x"}),
        )
        .await;
    let (_, artifact) = api
        .post(
            "/v1/artifacts",
            json!({"kind": "file", "mime_type": "a/b", "visibility": "public"}),
        )
        .await;
    let (_, vault) = api
        .post(
            "/v1/vaults",
            json!({"provider": "e", "capabilities": [], "workspace_id": "workspace_local"}),
        )
        .await;
    let (_, requests) = api
        .get(&format!("/v1/tasks/{}/permission-requests", id(&task)))
        .await;
    let (_, events) = api.get(&format!("/v1/sessions/{session}/events")).await;
    let done = api.task(&session, "agent").await;
    let cases = [
        (
            "GET",
            "/v1/workspaces/{}",
            "workspace_local".to_owned(),
            "workspace_none",
        ),
        ("GET", "/v1/sessions/{}", session.clone(), "session_none"),
        (
            "GET",
            "/v1/sessions/{}/messages",
            session.clone(),
            "session_none",
        ),
        (
            "GET",
            "/v1/sessions/{}/events",
            session.clone(),
            "session_none",
        ),
        (
            "GET",
            "/v1/sessions/{}/events/stream",
            session.clone(),
            "session_none",
        ),
        (
            "POST",
            "/v1/sessions/{}/close",
            session.clone(),
            "session_none",
        ),
        ("GET", "/v1/tasks/{}", id(&task), "task_none"),
        ("GET", "/v1/tasks/{}/stream", id(&task), "task_none"),
        ("GET", "/v1/tasks/{}/receipts", id(&task), "task_none"),
        ("POST", "/v1/tasks/{}/cancel", id(&task), "task_none"),
        ("GET", "/v1/messages/{}", id(&message), "message_none"),
        ("GET", "/v1/artifacts/{}", id(&artifact), "artifact_none"),
        (
            "GET",
            "/v1/artifacts/{}/content",
            id(&artifact),
            "artifact_none",
        ),
        ("GET", "/v1/vaults/{}", id(&vault), "vault_none"),
        ("GET", "/v1/events/{}", id(&events["data"][0]), "event_none"),
        (
            "GET",
            "/v1/branches/{}",
            "branch_local".to_owned(),
            "branch_none",
        ),
        (
            "GET",
            "/v1/outcomes/{}",
            done["outcome_id"].as_str().unwrap().to_owned(),
            "outcome_none",
        ),
        (
            "GET",
            "/v1/tasks?session_id={}",
            session.clone(),
            "session_none",
        ),
        (
            "GET",
            "/v1/events?after_event_id={}",
            id(&events["data"][0]),
            "event_none",
        ),
    ];
    let bare = |got: (u16, Value)| {
        let mut body = got.1;
        body["error"]["request_id"] = Value::Null;
        (got.0, body)
    };
    for (method, path, foreign, random) in cases {
        let hidden = bob
            .send(bob.request(method, &path.replace("{}", &foreign)))
            .await;
        let absent = bob
            .send(bob.request(method, &path.replace("{}", random)))
            .await;
        assert_eq!(hidden.0, 404, "{path} {}", hidden.1);
        assert_eq!(bare(hidden), bare(absent), "{path}");
    }
    let respond = |id: &str| format!("/v1/permission-requests/{id}/respond");
    let yes = json!({"approved": true});
    let hidden = bob
        .post(&respond(&id(&requests["data"][0])), yes.clone())
        .await;
    let absent = bob.post(&respond("permission_none"), yes).await;
    assert_eq!(bare(hidden), bare(absent));
    // In a body: a reference to what is hidden is a reference to nothing.
    let hidden = bob
        .post("/v1/tasks", json!({"session_id": session, "input": {}}))
        .await;
    let absent = bob
        .post(
            "/v1/tasks",
            json!({"session_id": "session_none", "input": {}}),
        )
        .await;
    assert_eq!(bare(hidden), bare(absent));
    assert_eq!(
        bob.get("/v1/events").await.1["data"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["workspace_id"] != workspace["id"])
            .count(),
        0
    );
}

#[tokio::test]
async fn ap_err_05_too_many_requests_are_told_when_to_come_back() {
    let mut narrow = config();
    narrow.rate_limit = Some(server::RateLimit {
        per_second: 1,
        burst: 2,
    });
    let server = Server::start_with(narrow).await;
    let api = server.client();
    assert_eq!(api.get("/v1/tasks").await.0, 200);
    assert_eq!(api.get("/v1/tasks").await.0, 200);
    let response = api.request("GET", "/v1/tasks").send().await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "1");
    refused(&api.get("/v1/tasks").await, 429, "rate_limited", None);
}
