//! AP-RPL over HTTP: what is accepted and how, what is refused and why, and what a client sees of it.

use std::time::Duration;

use canon::{jcs, sha256};
use serde_json::{Value, json};

use crate::fixture::{Api, Frames, Server, config, id, key, limits, refused};

/// A server, a client and a finished Task of the default agent.
async fn started() -> (Server, Api, Value) {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = finished(&api, &session, "agent").await;
    (server, api, task)
}

async fn finished(api: &Api, session: &str, workflow: &str) -> Value {
    let task = api.task(session, workflow).await;
    api.wait_for(&id(&task), "COMPLETED").await
}

fn path(task: &Value) -> String {
    format!("/v1/tasks/{}/replay", id(task))
}

/// Waits for the end of a Task.
async fn ended(api: &Api, task: &Value) -> Value {
    for _ in 0..300 {
        let (_, now) = api.get(&format!("/v1/tasks/{}", id(task))).await;
        if ["COMPLETED", "FAILED", "CANCELED"].contains(&now["status"].as_str().unwrap()) {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{task} never ended");
}

async fn replay(api: &Api, task: &Value, body: Value) -> Value {
    let (status, replay) = api.post(&path(task), body.clone()).await;
    assert_eq!(status, 202, "{body}: {replay}");
    ended(api, &replay).await
}

async fn events(api: &Api, task: &Value) -> Vec<Value> {
    let (_, list) = api
        .get(&format!("/v1/tasks/{}/events?limit=200", id(task)))
        .await;
    list["data"].as_array().unwrap().clone()
}

async fn receipt(api: &Api, task: &Value) -> Value {
    let (status, receipt) = api
        .get(&format!(
            "/v1/receipts/{}",
            task["receipt_id"].as_str().unwrap()
        ))
        .await;
    assert_eq!(status, 200, "{receipt}");
    receipt
}

async fn answer(api: &Api, task: &Value) -> String {
    let (_, outcome) = api
        .get(&format!(
            "/v1/outcomes/{}",
            task["outcome_id"].as_str().unwrap()
        ))
        .await;
    outcome["messages"][0]["parts"][0]["text"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn saying(content: &str) -> Value {
    json!({"id": "c", "choices": [{"message": {"role": "assistant", "content": content}}]})
}

fn llm(given: Value) -> Value {
    json!({"mode": "with_overrides", "override": {"llm:main:1": given}})
}

/// AP-RPL-01, -02, -03, -04, -13.
#[tokio::test]
async fn ap_rpl_01_to_04_an_empty_body_is_an_exact_replay() {
    let (_server, api, task) = started().await;
    // No body at all, an empty object, and the mode by name.
    let (status, first) = api.send(api.request("POST", &path(&task))).await;
    assert_eq!(status, 202, "{first}");
    assert_eq!(first["object"], "task");
    assert_ne!(first["id"], task["id"]);
    assert_eq!(first["parent_task_id"], task["id"]);
    assert_eq!(first["session_id"], task["session_id"]);
    assert_eq!(first["workspace_id"], task["workspace_id"]);
    assert_eq!(
        first["metadata"]["replay"],
        json!({"mode": "exact", "source_task_id": task["id"]})
    );
    let mut replays = vec![ended(&api, &first).await];
    for body in [
        json!({}),
        json!({"mode": "exact"}),
        json!({"mode": null, "override": {}}),
        json!({"mode": "with_overrides"}),
    ] {
        replays.push(replay(&api, &task, body).await);
    }
    let said = answer(&api, &task).await;
    for done in &replays {
        assert_eq!(done["status"], "COMPLETED");
        assert_eq!(answer(&api, done).await, said);
        let events = events(&api, done).await;
        let kinds: Vec<&str> = events
            .iter()
            .map(|event| event["event"].as_str().unwrap())
            .collect();
        for kind in [
            "task.submitted",
            "task.started",
            "replay.started",
            "replay.completed",
            "task.completed",
            "receipt.issued",
        ] {
            assert!(kinds.contains(&kind), "{kinds:?}");
        }
        for event in &events {
            let own = event["replay"].is_null();
            assert_eq!(event["replayed"] == json!(true), !own);
            if !own {
                assert_eq!(event["replay"]["source_task_id"], task["id"]);
                assert_eq!(event["replay"]["replay_task_id"], done["id"]);
                let original = event["replay"]["original_event_id"].as_str().unwrap();
                assert_eq!(api.get(&format!("/v1/events/{original}")).await.0, 200);
            }
        }
    }
    let ids: Vec<String> = replays.iter().map(id).collect();
    assert!(ids[1].ends_with("_2") && ids[4].ends_with("_5"), "{ids:?}");
}

/// B8: the conversation is what it was.
#[tokio::test]
async fn replayed_messages_join_no_transcript() {
    let (_server, api, task) = started().await;
    let session = task["session_id"].as_str().unwrap();
    let messages = format!("/v1/sessions/{session}/messages?limit=200");
    let (_, before) = api.get(&messages).await;
    replay(&api, &task, json!({})).await;
    replay(
        &api,
        &task,
        llm(json!({"kind": "llm_provider_response", "value": saying("other")})),
    )
    .await;
    assert_eq!(api.get(&messages).await.1, before);
}

/// AP-RPL-21: the contract's example, as it stands there, against a Task of a fresh server.
#[tokio::test]
async fn ap_rpl_21_the_contracts_example_changes_the_answer_and_leaves_one_delta() {
    let contract = testing::published("data/openapi-agents-protocol-2026-04-25.yaml");
    let Some(contract) = contract else {
        return;
    };
    let contract: Value = serde_saphyr::from_slice(&contract).unwrap();
    let example = contract["components"]["schemas"]["ReplayTaskRequest"]["examples"][0].clone();
    let value = &example["override"]["llm:main:1"]["value"];
    let says = value["choices"][0]["message"]["content"].as_str().unwrap();
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    // By a Message, by a structured value, and by the fixture's own workflow.
    for (workflow, changes) in [("agent", true), ("replay-fixture", false)] {
        let task = finished(&api, &session, workflow).await;
        let done = replay(&api, &task, example.clone()).await;
        assert_eq!(done["status"], "COMPLETED");
        let receipt = receipt(&api, &done).await;
        let deltas = receipt["deltas"].as_array().unwrap();
        assert_eq!(deltas.len(), 1);
        assert_eq!(deltas[0]["override_key"], "llm:main:1");
        assert_eq!(deltas[0]["after_sha256"], sha256(&jcs(value)).to_string());
        if changes {
            assert_ne!(answer(&api, &task).await, says);
            assert_eq!(answer(&api, &done).await, says);
        }
        let (_, verdict) = api
            .post(
                &format!(
                    "/v1/receipts/{}/verify",
                    done["receipt_id"].as_str().unwrap()
                ),
                json!({}),
            )
            .await;
        assert_eq!(verdict["valid"], true, "{verdict}");
    }
}

/// B2, row by row, with status, code and param.
#[tokio::test]
async fn b02_every_refusal_has_its_status_code_and_param() {
    let (server, api, task) = started().await;
    let refuse = async |body: Value, status: u16, code: &str, param: &str| {
        refused(
            &api.post(&path(&task), body).await,
            status,
            code,
            Some(param),
        );
    };
    let invalid =
        async |body: Value, param: &str| refuse(body, 400, "invalid_request", param).await;
    refused(
        &api.post("/v1/tasks/task_nobody/replay", json!({})).await,
        404,
        "resource_not_found",
        None,
    );
    let session = api.session().await;
    let open = api.task(&session, "hold").await;
    refused(
        &api.post(&path(&open), json!({})).await,
        409,
        "conflict",
        None,
    );
    invalid(json!({"mode": "loose"}), "mode").await;
    invalid(json!({"mode": "exact", "override": {"llm:main:1": {"kind": "llm_provider_response", "value": 1}}}), "override").await;
    invalid(json!({"mode": "from_checkpoint"}), "checkpoint_id").await;
    invalid(json!({"checkpoint_id": "c"}), "checkpoint_id").await;
    refuse(
        json!({"mode": "from_checkpoint", "checkpoint_id": "c"}),
        404,
        "resource_not_found",
        "checkpoint_id",
    )
    .await;
    invalid(llm(json!({"value": 1})), "override.llm:main:1.kind").await;
    invalid(
        llm(json!({"kind": "time", "value": 1})),
        "override.llm:main:1.kind",
    )
    .await;
    invalid(
        llm(json!({"kind": "llm_provider_response"})),
        "override.llm:main:1.value",
    )
    .await;
    let both = json!({"kind": "llm_provider_response", "value": 1, "artifact_id": "artifact_x"});
    invalid(llm(both), "override.llm:main:1.value").await;
    let digest =
        |text: &str| llm(json!({"kind": "llm_provider_response", "value": 1, "sha256": text}));
    invalid(digest("sha256:zz"), "override.llm:main:1.sha256").await;
    let (status, error) = api
        .post(&path(&task), digest(&sha256(b"x").to_string()))
        .await;
    refused(
        &(status, error.clone()),
        422,
        "policy_violation",
        Some("override.llm:main:1.sha256"),
    );
    assert_eq!(
        error["error"]["details"]["expected"],
        sha256(b"1").to_string()
    );
    let foreign = json!({"kind": "llm_provider_response", "artifact_id": "artifact_x"});
    refuse(
        llm(foreign),
        404,
        "resource_not_found",
        "override.llm:main:1.artifact_id",
    )
    .await;
    let started = events(&api, &task)
        .await
        .iter()
        .find(|event| event["event"] == "task.started")
        .unwrap()["id"]
        .clone();
    let other = json!({"kind": "llm_provider_response", "value": 1, "event_id": started});
    invalid(llm(other), "override.llm:main:1.event_id").await;
    let secret = |visibility: &str| json!({"mode": "with_overrides", "override": {"secret:s": {"kind": "secret_value", "value": "v", "visibility": visibility}}});
    invalid(secret("public"), "override.secret:s.visibility").await;
    invalid(json!({"refresh": ["model"]}), "refresh").await;
    invalid(json!({"module": "x"}), "module").await;
    // B12.12: too large to be inline.
    let large = json!({"kind": "llm_provider_response", "value": "x".repeat(5_000)});
    refuse(
        llm(large),
        413,
        "payload_too_large",
        "override.llm:main:1.value",
    )
    .await;
    // Who may what.
    server
        .add_key(key("reader", "rob", &["*:read"], None))
        .await;
    refused(
        &server
            .client_with("reader")
            .post(&path(&task), json!({}))
            .await,
        403,
        "permission_denied",
        None,
    );
    server
        .add_key(key("writer", "wim", &["*:read", "tasks:write"], None))
        .await;
    let writer = server.client_with("writer");
    refused(
        &writer.post(&path(&task), secret("receipt_only")).await,
        403,
        "permission_denied",
        None,
    );
    assert_eq!(writer.post(&path(&task), json!({})).await.0, 202);
    server
        .add_key(key(
            "stranger",
            "sam",
            &["*"],
            Some(&["workspace_elsewhere"]),
        ))
        .await;
    refused(
        &server
            .client_with("stranger")
            .post(&path(&task), json!({}))
            .await,
        404,
        "resource_not_found",
        None,
    );
}

#[tokio::test]
async fn b12_10_members_that_are_given_twice_are_refused() {
    let (_server, api, task) = started().await;
    let given = r#"{"kind":"llm_provider_response","value":1}"#;
    let body = format!(
        r#"{{"mode":"with_overrides","override":{{"llm:main:1":{given},"llm:main:1":{given}}}}}"#
    );
    let request = api
        .request("POST", &path(&task))
        .header("content-type", "application/json");
    let (status, error) = api.send(request.body(body)).await;
    assert_eq!(status, 400, "{error}");
    assert_eq!(error["error"]["code"], "invalid_request");
}

/// Idempotency applies as to any write, and keeps no secret.
#[tokio::test]
async fn equal_replays_under_one_key_are_one_and_without_one_are_many() {
    let (server, api, task) = started().await;
    let value = "planted-Zq81-secret";
    let body = json!({"mode": "with_overrides", "override": {"secret:s": {"kind": "secret_value", "value": value}}});
    let (first, again) = (
        api.post_with_key(&path(&task), "k", body.clone()).await,
        api.post_with_key(&path(&task), "k", body.clone()).await,
    );
    assert_eq!((first.0, again.0), (202, 202));
    assert_eq!(first.1["id"], again.1["id"]);
    let mut other = body.clone();
    other["override"]["secret:s"]["value"] = "another".into();
    let got = api.post_with_key(&path(&task), "k", other).await;
    assert_eq!(
        (got.0, &got.1["error"]["code"]),
        (409, &json!("idempotency_key_reused"))
    );
    assert_ne!(api.post(&path(&task), body).await.1["id"], first.1["id"]);
    // Nothing that can be read over the wire holds it.
    ended(&api, &first.1).await;
    for path in [
        "/v1/events?limit=200",
        "/v1/tasks?limit=200",
        "/v1/outcomes?limit=200",
        "/v1/artifacts?limit=200",
    ] {
        assert!(!api.text(path).await.contains(value), "{path}");
    }
    let receipt = receipt(&api, &ended(&api, &first.1).await).await;
    assert!(!receipt.to_string().contains(value));
    drop(server);
}

/// AP-RPL-14, C-18: both live and from history, events of the run carry `replay`, those of its life do not.
#[tokio::test]
async fn ap_rpl_14_streams_mark_what_was_replayed() {
    let (_server, api, task) = started().await;
    let done = replay(&api, &task, json!({})).await;
    let stream = |task: &Value| api.request("GET", &format!("/v1/tasks/{}/stream", id(task)));
    let history = Frames::open(stream(&done)).await.all().await;
    let own: Vec<&str> = history
        .iter()
        .filter(|frame| frame.data["replay"].is_null())
        .map(|frame| frame.event.as_str())
        .collect();
    assert_eq!(own[0], "task.submitted");
    assert!(own.contains(&"replay.started") && own.contains(&"replay.completed"));
    assert!(
        history.iter().all(|frame| frame.data["replayed"] == true),
        "history is marked"
    );
    let told = history
        .iter()
        .filter(|frame| frame.data["replay"].is_object())
        .count();
    assert_eq!(told + own.len(), history.len());
    // Live: open before it runs. One worker, which is busy.
    let server = Server::start_on(
        std::sync::Arc::new(engine::port::MemoryStore::new("testlog1", [7; 32])),
        config(),
        engine::Limits {
            workers_max: 1,
            ..limits()
        },
    )
    .await;
    let api = server.client();
    let session = api.session().await;
    let task = finished(&api, &session, "agent").await;
    let held = api.busy(&session).await;
    let (status, waiting) = api.post(&path(&task), json!({})).await;
    assert_eq!((status, &waiting["status"]), (202, &json!("SUBMITTED")));
    let mut live =
        Frames::open(api.request("GET", &format!("/v1/tasks/{}/stream", id(&waiting)))).await;
    assert_eq!(live.next().await.unwrap().event, "task.submitted");
    api.post(&format!("/v1/tasks/{}/cancel", id(&held)), json!({}))
        .await;
    for frame in live.all().await {
        let is_run = frame.data["replay"].is_object();
        assert_eq!(frame.data["replayed"], json!(is_run), "{}", frame.event);
    }
}

/// B12.4 over the wire: a replay is a Task, and Tasks can be canceled.
#[tokio::test]
async fn a_replay_that_waits_for_a_worker_can_be_canceled() {
    let server = Server::start_on(
        std::sync::Arc::new(engine::port::MemoryStore::new("testlog1", [7; 32])),
        config(),
        engine::Limits {
            workers_max: 1,
            ..limits()
        },
    )
    .await;
    let api = server.client();
    let session = api.session().await;
    let task = finished(&api, &session, "agent").await;
    api.busy(&session).await;
    let body = llm(json!({"kind": "llm_provider_response", "value": saying("never said")}));
    let (_, waiting) = api.post(&path(&task), body).await;
    let (status, canceled) = api
        .post(&format!("/v1/tasks/{}/cancel", id(&waiting)), json!({}))
        .await;
    assert_eq!((status, &canceled["status"]), (200, &json!("CANCELED")));
    let receipt = receipt(&api, &canceled).await;
    assert_eq!(receipt["subject"]["object"], "replay_segment");
    assert_eq!(receipt["lifecycle"]["final_state"], "CANCELED");
    assert_eq!(receipt["deltas"], json!([]));
    let (_, verdict) = api
        .post(&format!("/v1/receipts/{}/verify", id(&receipt)), json!({}))
        .await;
    assert_eq!(verdict["valid"], true, "{verdict}");
}

/// AP-RPL-23, AP-RPL-19: what was recorded is there after a restart, and so is its replay.
#[tokio::test]
async fn ap_rpl_19_and_23_replay_works_after_a_restart_and_its_cursor_reads_the_source() {
    let (server, api, task) = started().await;
    let done = replay(&api, &task, json!({})).await;
    let again = server.reopened().await;
    let api = again.client();
    let second = replay(&api, &task, json!({})).await;
    assert_eq!(second["status"], "COMPLETED");
    assert_eq!(id(&second), format!("{}_2", id(&done)));
    // The cursor of a replayed event is one of the source's log.
    let replayed = events(&api, &second).await;
    let cursor = replayed
        .iter()
        .find(|event| event["event"] == "agent.message")
        .unwrap()["replay"]["replay_cursor"]
        .clone();
    let rest = format!(
        "/v1/tasks/{}/events?after_event_id={}",
        id(&task),
        cursor.as_str().unwrap()
    );
    let (status, rest) = api.get(&rest).await;
    assert_eq!(status, 200, "{rest}");
    let all = events(&api, &task).await;
    let place = all.iter().position(|event| event["id"] == cursor).unwrap();
    assert_eq!(
        rest["data"].as_array().unwrap().len(),
        all.len() - place - 1
    );
}

/// AP-RPL-18 over the wire.
#[tokio::test]
async fn ap_rpl_18_a_failed_replay_names_what_is_missing() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let body = json!({"input": {"role": "user", "content": "long ".repeat(2_000)}});
    let (_, task) = api
        .post(&format!("/v1/sessions/{session}/tasks"), body)
        .await;
    let task = api.wait_for(&id(&task), "COMPLETED").await;
    let submitted = events(&api, &task).await;
    let holder = submitted
        .iter()
        .find(|event| event["payload"]["blobs"].is_object())
        .expect("a blob");
    let blobs = holder["payload"]["blobs"].as_object().unwrap();
    let digest = blobs.values().next().unwrap()["sha256"].as_str().unwrap();
    let blob = domain::Blob {
        digest: canon::Digest::parse(digest).unwrap(),
        bytes: b"\"altered\"".to_vec(),
    };
    engine::port::BlobStore::put_blob(&*server.store, blob)
        .await
        .unwrap();
    let done = replay(&api, &task, json!({})).await;
    assert_eq!(done["status"], "FAILED");
    assert_eq!(done["failure"]["code"], "replay_dependency_unavailable");
    let first = &done["failure"]["details"]["first_unavailable"];
    assert_eq!(first["type"], "artifact");
    assert_eq!(first["event_id"], holder["id"]);
    assert_eq!(first["reason"], "hash_mismatch");
    let failed = events(&api, &done).await;
    let failed = failed
        .iter()
        .find(|event| event["event"] == "replay.failed")
        .unwrap();
    assert_eq!(failed["payload"]["details"], done["failure"]["details"]);
}
