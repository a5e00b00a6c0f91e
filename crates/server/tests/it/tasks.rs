//! AP-TASK, AP-LIFE, AP-OUT, AP-PRM.

use serde_json::{Value, json};

use crate::fixture::{APPROVER_KEY, Server, id, refused};

#[tokio::test]
async fn ap_task_01_02_ap_life_09_a_quick_task_answers_terminal() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let body = json!({"session_id": session, "input": {"role": "user", "content": "hello"}});
    let (status, task) = api.post("/v1/tasks", body).await;
    assert_eq!(status, 202);
    assert_eq!(task["status"], "COMPLETED", "C-20");
    assert_eq!(task["created_by"], "ann");
    assert_eq!(task["input"].get("object"), None, "C-15");
    assert_eq!(task["input"]["role"], "user");
    assert_eq!(task["input"]["parts"][0]["text"], "hello");
    assert!(
        task["started_at"].is_string() && task["completed_at"].is_string(),
        "AP-TASK-09"
    );
    assert_eq!(task["canceled_at"], Value::Null);
    let (_, outcomes) = api
        .get(&format!("/v1/outcomes?task_id={}", id(&task)))
        .await;
    assert_eq!(outcomes["data"].as_array().unwrap().len(), 1, "AP-OUT-02");
    let (_, outcome) = api
        .get(&format!(
            "/v1/outcomes/{}",
            task["outcome_id"].as_str().unwrap()
        ))
        .await;
    assert_eq!(outcome["status"], "SUCCEEDED", "C-06");
    assert_eq!(outcome["messages"][0]["role"], "assistant");
    assert_eq!(outcome, outcomes["data"][0]);
}

#[tokio::test]
async fn what_a_task_names_and_is_not_there_is_refused_by_its_name() {
    let server = Server::start().await;
    let api = server.client();
    let path = format!("/v1/sessions/{}/tasks", api.session().await);
    let persona = api
        .post(&path, json!({"input": {}, "persona_id": "persona_x"}))
        .await;
    refused(&persona, 404, "resource_not_found", Some("persona_id"));
    let workflow = api
        .post(&path, json!({"input": {}, "metadata": {"workflow": "x"}}))
        .await;
    refused(&workflow, 400, "invalid_request", Some("metadata.workflow"));
    let unknown = api
        .post(
            "/v1/tasks",
            json!({"session_id": "session_none", "input": {}}),
        )
        .await;
    refused(&unknown, 404, "resource_not_found", Some("session_id"));
}

#[tokio::test]
async fn c_08_a_cancel_that_comes_too_late_says_what_the_task_is() {
    let server = Server::start().await;
    let api = server.client();
    let done = api.task(&api.session().await, "agent").await;
    let late = api
        .post(&format!("/v1/tasks/{}/cancel", id(&done)), json!({}))
        .await;
    refused(&late, 409, "conflict", None);
    let details = &late.1["error"]["details"];
    assert_eq!(details["reason"], "invalid_state_transition");
    assert_eq!(details["status"], "COMPLETED");
}

#[tokio::test]
async fn c_14_interrupts_and_confirmations_reach_the_task() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let hold = api.task(&session, "hold").await;
    let path = format!("/v1/tasks/{}", id(&hold));
    let stop = json!({"kind": "interrupt", "message": {"role": "user", "content": "wait"}});
    let (status, message) = api.post(&format!("{path}/messages"), stop).await;
    assert_eq!((status, &message["object"]), (201, &json!("message")));
    assert!(
        api.text(&format!("{path}/events"))
            .await
            .contains("user.cancel_requested")
    );
    // The step is dropped, which the next one tells.
    let mut events = String::new();
    for _ in 0..200 {
        events = api.text(&format!("{path}/events")).await;
        if events.contains("host:hold:main:2") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(events.contains(r#""code":"interrupted""#), "{events}");
    assert!(events.contains("host:hold:main:2"), "{events}");
    let approve = api.task(&session, "approve").await;
    assert_eq!(approve["status"], "AUTH_REQUIRED", "C-10");
    let yes = json!({"kind": "tool_confirmation", "message": {"role": "user", "parts": [{"type": "json", "value": {"approved": true}}]}});
    let path = format!("/v1/tasks/{}/messages", id(&approve));
    refused(
        &api.post(&path, yes.clone()).await,
        403,
        "permission_denied",
        None,
    );
    let approver = server.client_with(APPROVER_KEY);
    let (status, got) = approver.post(&path, yes).await;
    assert_eq!(status, 201, "{got}");
    assert_eq!(got["object"], "message");
    assert_eq!(got["parts"][0]["value"], json!({"approved": true}));
    api.wait_for(&id(&approve), "COMPLETED").await;
}

#[tokio::test]
async fn ap_prm_03_the_same_decision_by_another_way_changes_nothing() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = id(&api.task(&session, "approve").await);
    let (_, list) = api
        .get(&format!("/v1/tasks/{task}/permission-requests"))
        .await;
    let path = format!("/v1/permission-requests/{}/respond", id(&list["data"][0]));
    assert_eq!(api.post(&path, json!({"approved": true})).await.0, 200);
    let say = |approved: bool| {
        json!({"kind": "tool_confirmation", "message": {
            "role": "user", "parts": [{"type": "json", "value": {"approved": approved}}],
        }})
    };
    let path = format!("/v1/tasks/{task}/messages");
    let approver = server.client_with(APPROVER_KEY);
    let (status, same) = approver.post(&path, say(true)).await;
    assert_eq!((status, &same["status"]), (200, &json!("approved")));
    refused(
        &approver.post(&path, say(false)).await,
        409,
        "conflict",
        None,
    );
}

#[tokio::test]
async fn ap_prm_01_to_04_approvals() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "approve").await;
    let (_, pending) = api
        .get(&format!("/v1/tasks/{}/permission-requests", id(&task)))
        .await;
    let request = &pending["data"][0];
    assert_eq!(request["status"], "pending");
    assert_eq!(request["source"], "hitl");
    assert_eq!(request["action"]["name"], "act");
    assert_eq!(request["response"], Value::Null);
    let path = format!("/v1/permission-requests/{}/respond", id(request));
    for silent in [json!({}), json!({"reason": "?"}), json!({"answer": "yes"})] {
        refused(
            &api.post(&path, silent).await,
            400,
            "invalid_request",
            Some("approved"),
        );
    }
    let (status, answered) = api
        .post(&path, json!({"outcome": "approve", "reviewer": "ann"}))
        .await;
    assert_eq!((status, &answered["status"]), (200, &json!("approved")));
    assert_eq!(
        answered["response"],
        json!({"approved": true, "reviewer": "ann"})
    );
    api.wait_for(&id(&task), "COMPLETED").await;
    let (status, again) = api.post(&path, json!({"approved": true})).await;
    assert_eq!((status, again), (200, answered), "AP-PRM-03");
    refused(
        &api.post(&path, json!({"approved": false})).await,
        409,
        "conflict",
        None,
    );
    let events = api
        .text(&format!("/v1/tasks/{}/events?limit=200", id(&task)))
        .await;
    for kind in [
        "user.tool_confirmation",
        "tool.approved",
        "task.status_changed",
    ] {
        assert!(events.contains(kind), "{kind}");
    }
    let denied = api.task(&session, "approve").await;
    let (_, list) = api
        .get(&format!("/v1/permission-requests?task_id={}", id(&denied)))
        .await;
    let path = format!("/v1/permission-requests/{}/respond", id(&list["data"][0]));
    let (_, no) = api
        .post(&path, json!({"approved": false, "reason": "no"}))
        .await;
    assert_eq!(no["status"], "denied");
    let failed = api.wait_for(&id(&denied), "FAILED").await;
    assert_eq!(failed["failure"]["code"], "approval_denied", "AP-TASK-10");
    refused(
        &api.post(
            "/v1/permission-requests/permission_x/respond",
            json!({"approved": true}),
        )
        .await,
        404,
        "resource_not_found",
        None,
    );
}

#[tokio::test]
async fn a_question_can_be_answered_through_its_request() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "ask").await;
    let (_, list) = api
        .get(&format!("/v1/permission-requests?session_id={session}"))
        .await;
    let path = format!("/v1/permission-requests/{}/respond", id(&list["data"][0]));
    let (status, answered) = api.post(&path, json!({"answer": "blue"})).await;
    assert_eq!(
        (status, &answered["response"]["answer"]),
        (200, &json!("blue"))
    );
    api.wait_for(&id(&task), "COMPLETED").await;
}

#[tokio::test]
async fn c_20_respond_async_does_not_wait_for_the_end() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let started = std::time::Instant::now();
    let request = api
        .request("POST", &format!("/v1/sessions/{session}/tasks"))
        .header("Prefer", "wait=5, respond-async")
        .json(&json!({"input": {}, "metadata": {"workflow": "hold"}}));
    let (status, task) = api.send(request).await;
    assert_eq!((status, &task["status"]), (202, &json!("WORKING")));
    assert!(started.elapsed() < std::time::Duration::from_millis(240));
}
