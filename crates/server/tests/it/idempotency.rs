//! AP-IDEM.

use serde_json::{Value, json};

use crate::fixture::{Api, Server, id, key, refused};

async fn session_tasks(api: &Api) -> String {
    format!("/v1/sessions/{}/tasks", api.session().await)
}

#[tokio::test]
async fn ap_idem_04_05_same_key_same_body_or_conflict() {
    let server = Server::start().await;
    let api = server.client();
    let path = session_tasks(&api).await;
    let (status, first) = api
        .post_with_key(&path, "k", json!({"input": {"a": 1, "b": 2}}))
        .await;
    assert_eq!(status, 202);
    let reordered = api
        .request("POST", &path)
        .header("Idempotency-Key", "k")
        .body("{ \"input\" : {\"b\":2.0, \"a\":1} }");
    let (status, second) = api.send(reordered).await;
    assert_eq!((status, second["id"].clone()), (202, first["id"].clone()));
    let other = api
        .post_with_key(&path, "k", json!({"input": {"a": 2}}))
        .await;
    refused(
        &other,
        409,
        "idempotency_key_reused",
        Some("Idempotency-Key"),
    );
    let (_, tasks) = api.get(&path).await;
    assert_eq!(tasks["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn ap_idem_02_keys_are_scoped_to_actor_workspace_and_target() {
    let server = Server::start().await;
    let api = server.client();
    let (one, two) = (session_tasks(&api).await, session_tasks(&api).await);
    let body = json!({"input": {}});
    let (_, first) = api.post_with_key(&one, "k", body.clone()).await;
    let (_, second) = api.post_with_key(&two, "k", body.clone()).await;
    assert_ne!(first["id"], second["id"]);
    server.add_key(key("rk_eve", "eve", &["*"], None)).await;
    let (_, third) = server
        .client_with("rk_eve")
        .post_with_key(&one, "k", body.clone())
        .await;
    assert_ne!(first["id"], third["id"]);
    // The query is no part of the target, and neither is the spelling of the path.
    let (_, again) = api
        .post_with_key(&format!("{one}?x=1"), "k", body.clone())
        .await;
    assert_eq!(again["id"], first["id"]);
    let spelled = one.replace("session_", "%73ession_");
    let (_, again) = api.post_with_key(&spelled, "k", body).await;
    assert_eq!(again["id"], first["id"]);
}

#[tokio::test]
async fn ap_idem_08_keys_have_1_to_255_characters_and_come_once() {
    let server = Server::start().await;
    let api = server.client();
    let long = "k".repeat(256);
    for bad in ["", long.as_str(), "k\u{e9}"] {
        let got = api.post_with_key("/v1/sessions", bad, json!({})).await;
        refused(&got, 400, "invalid_request", Some("Idempotency-Key"));
        let got = api.post_with_key("/v1/memories", bad, json!({})).await;
        refused(&got, 400, "invalid_request", Some("Idempotency-Key"));
    }
    let twice = api
        .request("POST", "/v1/sessions")
        .header("Idempotency-Key", "a")
        .header("Idempotency-Key", "a")
        .json(&json!({}));
    refused(
        &api.send(twice).await,
        400,
        "invalid_request",
        Some("Idempotency-Key"),
    );
    assert_eq!(
        api.post_with_key("/v1/sessions", &"k".repeat(255), json!({}))
            .await
            .0,
        201
    );
}

#[tokio::test]
async fn ap_idem_10_refusals_do_not_claim_the_key() {
    let server = Server::start().await;
    let api = server.client();
    let path = session_tasks(&api).await;
    refused(
        &api.post_with_key(&path, "k", json!({})).await,
        400,
        "invalid_request",
        Some("input"),
    );
    let unknown = json!({"input": {}, "branch_id": "branch_x"});
    refused(
        &api.post_with_key(&path, "k", unknown).await,
        404,
        "resource_not_found",
        Some("branch_id"),
    );
    assert_eq!(
        api.post_with_key(&path, "k", json!({"input": {}})).await.0,
        202
    );
}

#[tokio::test]
async fn ap_idem_07_twenty_equal_posts_make_one_resource_of_each_kind() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    api.post(
        &format!("/v1/sessions/{session}/messages"),
        json!({"role": "user", "content": "first"}),
    )
    .await;
    let hold = id(&api.task(&session, "hold").await);
    let ask = id(&api.task(&session, "ask").await);
    let approve = id(&api.task(&session, "approve").await);
    let (_, requests) = api
        .get(&format!("/v1/tasks/{approve}/permission-requests"))
        .await;
    let request = id(&requests["data"][0]);
    let say = json!({"role": "user", "content": "x"});
    let kinds: Vec<(String, Value)> = vec![
        (
            "/v1/workspaces".to_owned(),
            json!({"name": "n", "root": "r"}),
        ),
        ("/v1/sessions".to_owned(), json!({})),
        (format!("/v1/sessions/{session}/messages"), say.clone()),
        (
            format!("/v1/sessions/{session}/tasks"),
            json!({"input": {}}),
        ),
        (
            "/v1/tasks".to_owned(),
            json!({"session_id": session, "input": {}}),
        ),
        (
            format!("/v1/sessions/{session}/branches"),
            json!({"kind": "session", "base_ref": "m"}),
        ),
        (format!("/v1/sessions/{session}/fork"), json!({})),
        (
            format!("/v1/sessions/{session}/truncate"),
            json!({"keep_first": 1}),
        ),
        (
            "/v1/artifacts".to_owned(),
            json!({"kind": "file", "mime_type": "a/b", "visibility": "public"}),
        ),
        (
            "/v1/vaults".to_owned(),
            json!({"provider": "e", "capabilities": []}),
        ),
        (
            format!("/v1/tasks/{hold}/messages"),
            json!({"kind": "interrupt", "message": say}),
        ),
        (
            format!("/v1/tasks/{ask}/messages"),
            json!({"kind": "input", "message": say}),
        ),
        (
            format!("/v1/permission-requests/{request}/respond"),
            json!({"approved": true}),
        ),
        (format!("/v1/tasks/{hold}/cancel"), json!({})),
        (format!("/v1/sessions/{session}/close"), json!({})),
    ];
    for (path, body) in kinds {
        let before = server.store_head();
        let sending = (0..20).map(|_| {
            let (api, path, body) = (api.clone(), path.clone(), body.clone());
            tokio::spawn(async move { api.post_with_key(&path, "same", body).await })
        });
        let mut ids = std::collections::BTreeSet::new();
        for sent in sending.collect::<Vec<_>>() {
            let (status, answer) = sent.await.unwrap();
            assert!(status < 300, "{path}: {answer}");
            ids.insert(
                answer
                    .get("id")
                    .or(answer.get("session_id"))
                    .unwrap()
                    .to_string(),
            );
        }
        assert_eq!(ids.len(), 1, "{path}");
        let firsts = server.events_with_key_after(before, "same").await;
        assert_eq!(firsts, 1, "{path}: one command took effect");
    }
}

#[tokio::test]
async fn ap_idem_03_keys_outlive_the_process() {
    let server = Server::start().await;
    let api = server.client();
    let path = session_tasks(&api).await;
    let (_, first) = api.post_with_key(&path, "k", json!({"input": {}})).await;
    let again = server.reopened().await;
    let (status, second) = again
        .client()
        .post_with_key(&path, "k", json!({"input": {}}))
        .await;
    assert_eq!((status, second["id"].clone()), (202, first["id"].clone()));
}

/// Sends what the published contract does not describe.
async fn send(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap())
}

/// What a request was answered stays its answer, whatever has become of what it was built from: building it again would be
/// refused in each of these cases.
#[tokio::test]
async fn u10_a_repeated_request_gets_its_first_answer_where_building_it_again_would_be_refused() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let persona = json!({
        "name": "a", "version": "1", "entry_workflow": "agent", "description": "d",
        "autonomy_tier": "suggest", "receipt_policy": "required",
    });
    let persona_id = id(&api.post("/v1/personas", persona.clone()).await.1);
    let artifact = json!({"kind": "file", "mime_type": "a/b", "visibility": "public"});
    let artifact = id(&api.post("/v1/artifacts", artifact).await.1);
    let upload = || {
        let path = format!("/v1/artifacts/{artifact}/content");
        let request = api.request("PUT", &path).header("Idempotency-Key", "same");
        request.body("content")
    };
    let source = id(&api.task(&session, "agent").await);
    api.wait_for(&source, "COMPLETED").await;
    let say = json!({"role": "user", "content": "x"});
    let requests: Vec<(String, Value)> = vec![
        (format!("/v1/sessions/{session}/fork"), json!({})),
        (
            format!("/v1/sessions/{session}/tasks"),
            json!({"input": {}, "persona_id": persona_id}),
        ),
        (format!("/v1/sessions/{session}/messages"), say.clone()),
        (format!("/v1/sessions/{session}/replay"), json!({})),
        (format!("/v1/tasks/{source}/replay"), json!({})),
    ];
    let post = |path: &str, key: &str, body: &Value| {
        let request = api.request("POST", path).header("Idempotency-Key", key);
        send(request.json(body))
    };
    let mut first = Vec::new();
    for (path, body) in &requests {
        let (status, answer) = post(path, "same", body).await;
        assert!(status < 300, "{path}: {answer}");
        first.push((status, id(&answer)));
    }
    assert_eq!(api.send(upload()).await.0, 200);

    // More messages than a fork takes, a changed persona, a closed session, and a server that takes no more tasks.
    for _ in 0..101 {
        let path = format!("/v1/sessions/{session}/messages");
        assert_eq!(api.post(&path, say.clone()).await.0, 201);
    }
    let changed = json!({"receipt_policy": "disabled"});
    let path = format!("/v1/personas/{persona_id}");
    assert_eq!(api.patch(&path, changed).await.0, 200);
    let path = format!("/v1/sessions/{session}/close");
    assert_eq!(api.post(&path, json!({})).await.0, 200);
    server.store.forget_blobs();
    for ((path, body), first) in requests.iter().zip(&first) {
        let new_key = post(path, "another", body).await;
        let is_replay = path.ends_with("/replay");
        assert!(new_key.0 >= 400 || is_replay, "{path}: {}", new_key.1);
        let (status, answer) = post(path, "same", body).await;
        assert!(status < 300, "{path}: {answer}");
        assert_eq!((status, id(&answer)), *first, "{path}");
    }
    assert_eq!(api.send(upload()).await.0, 200);
}

/// The same bundle under the same key is answered before it is read again.
#[tokio::test]
async fn u10_a_repeated_import_gets_its_first_answer_after_its_bundle_is_gone() {
    let server = Server::start().await;
    let api = server.client();
    let source = id(&api.task(&api.session().await, "agent").await);
    api.wait_for(&source, "COMPLETED").await;
    let bundle = api.text(&format!("/v1/tasks/{source}/bundle")).await;
    let other = Server::start().await;
    let api = other.client();
    let import = |key: &str| {
        let request = api.request("POST", "/v1/tasks/import");
        send(request.header("Idempotency-Key", key).body(bundle.clone()))
    };
    let (status, first) = import("same").await;
    assert_eq!(status, 201, "{first}");
    other.store.forget_blobs();
    refused(&import("another").await, 409, "conflict", None);
    let (status, again) = import("same").await;
    assert_eq!((status, id(&again)), (200, id(&first)));
}

/// A claim belongs to an actor, who may have several keys: the one that asks needs the right, also for an answer that was
/// given before.
#[tokio::test]
async fn u10_a_first_answer_is_for_keys_that_have_the_scope() {
    let server = Server::start().await;
    let api = server.client();
    let task = id(&api.task(&api.session().await, "approve").await);
    let (_, requests) = api
        .get(&format!("/v1/tasks/{task}/permission-requests"))
        .await;
    let path = format!(
        "/v1/permission-requests/{}/respond",
        id(&requests["data"][0])
    );
    server
        .add_key(key("rk_yes", "carl", &["*", "approvals:write"], None))
        .await;
    let mut weaker = key("rk_no", "carl", &["*"], None);
    weaker.id = "key_weaker".to_owned();
    server.add_key(weaker).await;
    let yes = json!({"approved": true});
    let answered = server
        .client_with("rk_yes")
        .post_with_key(&path, "k", yes.clone())
        .await;
    assert_eq!(answered.0, 200, "{}", answered.1);
    let weak = server
        .client_with("rk_no")
        .post_with_key(&path, "k", yes)
        .await;
    refused(&weak, 403, "permission_denied", None);
}
