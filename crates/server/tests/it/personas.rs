//! Personas: defined, changed, run under, and what their policies leave.

use serde_json::{Value, json};

use crate::fixture::{Api, Server, id, key, refused};

/// A definition with nothing but what it must have.
pub(crate) fn body(name: &str) -> Value {
    json!({
        "name": name, "version": "1", "entry_workflow": "agent", "description": "Does it",
        "autonomy_tier": "suggest", "receipt_policy": "required",
    })
}

fn with(mut body: Value, members: Value) -> Value {
    let members = members.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(members);
    body
}

async fn persona(api: &Api, members: Value) -> String {
    let (status, made) = api.post("/v1/personas", with(body("p"), members)).await;
    assert_eq!(status, 201, "{made}");
    id(&made)
}

/// Submits a Task to a new Session, with the workflow that follows from its persona.
async fn submit(api: &Api, members: Value) -> Value {
    let session = api.session().await;
    submit_to(api, &session, members).await
}

async fn submit_to(api: &Api, session: &str, members: Value) -> Value {
    let path = format!("/v1/sessions/{session}/tasks");
    let (status, task) = api.post(&path, with(json!({"input": {}}), members)).await;
    assert_eq!(status, 202, "{task}");
    task
}

async fn submitted(api: &Api, task: &Value) -> Value {
    let (_, events) = api.get(&format!("/v1/tasks/{}/events", id(task))).await;
    assert_eq!(events["data"][0]["event"], "task.submitted");
    events["data"][0]["payload"].clone()
}

async fn receipts(api: &Api, task: &Value) -> Vec<Value> {
    let (_, list) = api.get(&format!("/v1/tasks/{}/receipts", id(task))).await;
    list["data"].as_array().unwrap().clone()
}

#[tokio::test]
async fn ap_pers_01_required_members_and_words() {
    let server = Server::start().await;
    let api = server.client();
    let (status, made) = api.post("/v1/personas", body("reviewer")).await;
    assert_eq!(status, 201);
    for (name, value) in body("reviewer").as_object().unwrap() {
        assert_eq!(made[name], *value);
        let mut without = body("reviewer");
        without.as_object_mut().unwrap().remove(name);
        let got = api.post("/v1/personas", without).await;
        refused(&got, 400, "invalid_request", Some(name));
    }
    for (name, value) in [
        ("autonomy_tier", "act"),
        ("receipt_policy", "sometimes"),
        ("entry_workflow", "none-such"),
        ("module_ref", "harn://a/b@1"),
        ("name", ""),
    ] {
        let got = api
            .post("/v1/personas", with(body("x"), json!({name: value})))
            .await;
        refused(&got, 400, "invalid_request", Some(name));
    }
    let (_, list) = api.get("/v1/personas").await;
    assert_eq!(list["data"], json!([made]));
}

#[tokio::test]
async fn ap_pers_02_optional_members_come_back_and_survive_a_restart() {
    let server = Server::start().await;
    let api = server.client();
    let full = with(
        body("reviewer"),
        json!({
            "tools": ["git.diff"], "capabilities": ["read"], "owner": "platform",
            // Larger than an event: it is a blob and comes back all the same.
            "system_prompt": "Review. ".repeat(2_000),
            "model": {"provider": "scripted", "model": "m", "max_tokens": 100, "temperature": 1},
            "limits": {"steps_max": 4, "tokens_max": 1000, "cost_micros_max": 5000, "tool_calls_max": 9},
            "memory": "session", "isolated_replay": true, "metadata": {"team": "a"},
        }),
    );
    let (_, made) = api.post("/v1/personas", full.clone()).await;
    for (name, value) in full.as_object().unwrap() {
        assert_eq!(made[name], *value, "{name}");
    }
    let again = server.reopened().await;
    let path = format!("/v1/personas/{}", id(&made));
    assert_eq!(again.client().get(&path).await, (200, made.clone()));
    let (_, card) = again.client().get("/v1/agent-card").await;
    assert_eq!(card["persona_ids"], json!([id(&made)]));

    let (_, plain) = api.post("/v1/personas", body("plain")).await;
    assert_eq!(plain["memory"], "none");
    assert_eq!(plain["isolated_replay"], false);
    for name in ["tools", "triggers", "evals"] {
        assert_eq!(plain[name], json!([]), "{name}");
    }
    for name in ["model", "limits", "model_policy"] {
        assert_eq!(plain[name], json!({}), "{name}");
    }
    for name in ["owner", "quota_id", "system_prompt"] {
        assert_eq!(plain.get(name), Some(&Value::Null), "{name}");
    }
}

#[tokio::test]
async fn the_same_definition_again_is_the_same_persona_and_another_one_a_conflict() {
    let server = Server::start().await;
    let api = server.client();
    let (_, first) = api
        .post_with_key("/v1/personas", "k", body("reviewer"))
        .await;
    let head = server.store_head();
    for key in ["k", "other"] {
        let (status, again) = api
            .post_with_key("/v1/personas", key, body("reviewer"))
            .await;
        assert_eq!((status, &again), (201, &first));
    }
    assert_eq!(server.store_head(), head, "nothing was written");
    let other = with(body("reviewer"), json!({"description": "Does more"}));
    let got = api.post("/v1/personas", other.clone()).await;
    refused(&got, 409, "conflict", None);
    assert_eq!(got.1["error"]["details"]["reason"], "persona_exists");
    let message = got.1["error"]["message"].as_str().unwrap();
    assert!(message.contains("`reviewer`"), "{message}");
    let reused = api.post_with_key("/v1/personas", "k", other.clone()).await;
    refused(
        &reused,
        409,
        "idempotency_key_reused",
        Some("Idempotency-Key"),
    );
    let (status, next) = api
        .post("/v1/personas", with(other, json!({"version": "2"})))
        .await;
    assert_eq!(status, 201);
    assert_ne!(next["id"], first["id"]);
    let (_, page) = api.get("/v1/personas?limit=1").await;
    assert_eq!(page["data"], json!([first]));
    let cursor = page["page"]["next_cursor"].as_str().unwrap();
    let (_, page) = api
        .get(&format!("/v1/personas?limit=1&cursor={cursor}"))
        .await;
    assert_eq!(page["data"], json!([next]));
}

#[tokio::test]
async fn a_change_reaches_what_may_change() {
    let server = Server::start().await;
    let api = server.client();
    let members = json!({"metadata": {"a": 1}, "system_prompt": "Be brief."});
    let persona = persona(&api, members.clone()).await;
    let path = format!("/v1/personas/{persona}");
    let change = json!({"description": "d", "receipt_policy": "optional", "quota_id": null, "metadata": {"b": 2}, "colour": "q"});
    let (status, changed) = api.patch(&path, change.clone()).await;
    assert_eq!(status, 200, "{changed}");
    assert_eq!(changed["description"], "d");
    assert_eq!(changed["receipt_policy"], "optional");
    assert_eq!(changed["quota_id"], Value::Null);
    assert_eq!(changed["metadata"], json!({"b": 2}));
    assert_eq!(changed["system_prompt"], "Be brief.");
    let head = server.store_head();
    assert_eq!(api.patch(&path, change).await, (200, changed.clone()));
    assert_eq!(api.patch(&path, json!({})).await, (200, changed.clone()));
    assert_eq!(server.store_head(), head, "nothing was written");
    assert_eq!(api.get(&path).await, (200, changed));
    // What the file says is no longer what the server has.
    let got = api.post("/v1/personas", with(body("p"), members)).await;
    refused(&got, 409, "conflict", None);
    let got = api.patch(&path, json!({"receipt_policy": "x"})).await;
    refused(&got, 400, "invalid_request", Some("receipt_policy"));
    for unknown in ["persona_none", "none", "session_1"] {
        let path = format!("/v1/personas/{unknown}");
        refused(&api.get(&path).await, 404, "resource_not_found", None);
        let got = api.patch(&path, json!({})).await;
        refused(&got, 404, "resource_not_found", None);
    }
}

#[tokio::test]
async fn ap_pers_07_an_unknown_persona_is_refused() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    for unknown in ["persona_none", "reviewer", &session] {
        let got = api
            .post(
                "/v1/tasks",
                json!({"session_id": session, "input": {}, "persona_id": unknown}),
            )
            .await;
        refused(&got, 404, "resource_not_found", Some("persona_id"));
        let got = api
            .post("/v1/sessions", json!({"persona_id": unknown}))
            .await;
        refused(&got, 404, "resource_not_found", Some("persona_id"));
    }
}

#[tokio::test]
async fn a_task_runs_under_its_own_persona_or_its_sessions() {
    let server = Server::start().await;
    let api = server.client();
    let asks = persona(&api, json!({"name": "asks", "entry_workflow": "ask"})).await;
    let plain = persona(&api, json!({"name": "plain"})).await;
    let (_, session) = api.post("/v1/sessions", json!({"persona_id": asks})).await;
    assert_eq!(session["persona_id"], json!(asks));
    let session = id(&session);

    let task = submit_to(&api, &session, json!({})).await;
    assert_eq!(task["persona_id"], json!(asks));
    api.wait_for(&id(&task), "INPUT_REQUIRED").await;
    assert_eq!(submitted(&api, &task).await["workflow"], "ask");

    let task = submit_to(&api, &session, json!({"persona_id": plain})).await;
    assert_eq!(task["persona_id"], json!(plain));
    api.wait_for(&id(&task), "COMPLETED").await;

    // A persona is a floor: no caller has its tasks run another way.
    let body = |workflow: &str| json!({"input": {"goal": "x"}, "metadata": {"workflow": workflow}});
    let path = format!("/v1/sessions/{session}/tasks");
    let got = api.post(&path, body("agent")).await;
    refused(&got, 422, "policy_violation", None);
    assert_eq!(got.1["error"]["details"]["reason"], "persona_workflow");
    assert_eq!(api.post(&path, body("ask")).await.0, 202);

    let (_, fork) = api
        .post(&format!("/v1/sessions/{session}/fork"), json!({}))
        .await;
    assert_eq!(fork["persona_id"], json!(asks));
    let task = submit(&api, json!({})).await;
    assert_eq!(task.get("persona_id"), Some(&Value::Null));
}

#[tokio::test]
async fn a_task_keeps_the_persona_as_it_was() {
    let server = Server::start().await;
    let api = server.client();
    let members = json!({
        "entry_workflow": "hold", "tools": ["git.diff"], "system_prompt": "Be brief.",
        "limits": {"steps_max": 3}, "model": {"model": "m"}, "memory": "session",
    });
    let persona = persona(&api, members).await;
    let task = submit(&api, json!({"persona_id": persona})).await;
    let expected = json!({
        "id": persona, "name": "p", "version": "1", "autonomy_tier": "suggest", "receipt_policy": "required",
        "tools": ["git.diff"], "system_prompt": "Be brief.", "model": {"model": "m"},
        "limits": {"steps_max": 3}, "memory": "session", "isolated_replay": false,
    });
    assert_eq!(submitted(&api, &task).await["persona"], expected);
    let path = format!("/v1/personas/{persona}");
    let (status, _) = api
        .patch(&path, json!({"receipt_policy": "disabled"}))
        .await;
    assert_eq!(status, 200);
    assert_eq!(submitted(&api, &task).await["persona"], expected);
    let later = submit(&api, json!({"persona_id": persona})).await;
    for (task, count) in [(&task, 1), (&later, 0)] {
        api.post(&format!("/v1/tasks/{}/cancel", id(task)), json!({}))
            .await;
        assert_eq!(receipts(&api, task).await.len(), count, "{task}");
    }
}

#[tokio::test]
async fn ap_pers_05_under_a_disabled_policy_no_task_leaves_a_receipt() {
    let server = Server::start().await;
    let api = server.client();
    let silent = persona(&api, json!({"receipt_policy": "disabled"})).await;
    let session = api.session().await;
    let task = submit_to(&api, &session, json!({"persona_id": silent})).await;
    let task = api.wait_for(&id(&task), "COMPLETED").await;
    assert_eq!(task.get("receipt_id"), Some(&Value::Null));
    assert_eq!(receipts(&api, &task).await, Vec::<Value>::new());
    let outcome = task["outcome_id"].as_str().unwrap();
    let (_, outcome) = api.get(&format!("/v1/outcomes/{outcome}")).await;
    assert_eq!(outcome.get("receipt_id"), Some(&Value::Null));
    let (_, events) = api.get(&format!("/v1/tasks/{}/events", id(&task))).await;
    let last = events["data"].as_array().unwrap().last().unwrap();
    assert_eq!(last["event"], "task.status_changed");
    // Denied: a failure leaves none either.
    let members = json!({"name": "q", "receipt_policy": "disabled", "entry_workflow": "approve"});
    let asking = persona(&api, members).await;
    let failing = submit_to(&api, &session, json!({"persona_id": asking})).await;
    api.wait_for(&id(&failing), "AUTH_REQUIRED").await;
    let (_, requests) = api
        .get(&format!("/v1/tasks/{}/permission-requests", id(&failing)))
        .await;
    let path = format!(
        "/v1/permission-requests/{}/respond",
        id(&requests["data"][0])
    );
    api.post(&path, json!({"approved": false})).await;
    let failing = api.wait_for(&id(&failing), "FAILED").await;
    assert_eq!(failing.get("receipt_id"), Some(&Value::Null));

    // The session's chain begins with the first receipt there is.
    let proven = api.task(&session, "agent").await;
    let proven = api.wait_for(&id(&proven), "COMPLETED").await;
    let listed = receipts(&api, &proven).await;
    assert_eq!(listed.len(), 1);
    assert_eq!(
        listed[0]["chain"].get("previous_receipt_hash"),
        Some(&Value::Null)
    );
}

#[tokio::test]
async fn a_receipt_names_the_persona_and_its_tier() {
    let server = Server::start().await;
    let api = server.client();
    // So large that the copy is a blob, which a receipt does not read.
    let members =
        json!({"autonomy_tier": "act_with_approval", "system_prompt": "x".repeat(10_000)});
    let persona = persona(&api, members).await;
    let task = submit(&api, json!({"persona_id": persona})).await;
    let task = api.wait_for(&id(&task), "COMPLETED").await;
    let path = format!("/v1/receipts/{}", task["receipt_id"].as_str().unwrap());
    let (_, receipt) = api.get(&path).await;
    let reference = format!("{persona}@1");
    assert_eq!(receipt["identifiers"]["persona_ref"], json!(reference));
    assert_eq!(
        receipt["trust"],
        json!({"start_tier": "act_with_approval", "end_tier": "act_with_approval", "policy_ref": reference})
    );
    let (status, verdict) = api.post(&format!("{path}/verify"), json!({})).await;
    assert_eq!((status, &verdict["valid"]), (200, &json!(true)));
}

#[tokio::test]
async fn a_caller_bound_to_a_workspace_runs_under_personas_and_defines_none() {
    let server = Server::start().await;
    let api = server.client();
    let persona = persona(&api, json!({})).await;
    server
        .add_key(key("rk_bob", "bob", &["*"], Some(&["workspace_local"])))
        .await;
    let bob = server.client_with("rk_bob");
    let (_, list) = bob.get("/v1/personas").await;
    assert_eq!(list["data"][0]["id"], json!(persona));
    let path = format!("/v1/personas/{persona}");
    assert_eq!(bob.get(&path).await.0, 200);
    let task = submit(&bob, json!({"persona_id": persona})).await;
    assert_eq!(task["persona_id"], json!(persona));
    let got = bob.post("/v1/personas", body("mine")).await;
    refused(&got, 403, "permission_denied", None);
    let got = bob.patch(&path, json!({"description": "x"})).await;
    refused(&got, 403, "permission_denied", None);
}
