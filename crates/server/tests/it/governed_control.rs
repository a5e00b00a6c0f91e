//! Governed sessions over HTTP: control actions, limits, captures, and what outsiders send.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::{APPROVER_KEY, Server};
use crate::governed::{Desk, body, offered, payment, problem};

fn pay(id: &str, contract: &str) -> Value {
    json!({"session_id": id, "contracts": {"contracts": [{"file": "pay.yaml", "text": contract}]}})
}

const ASKING: &str = "tool: pay\nside_effect: write\ncheckpoint: { reason: large }\n";

#[tokio::test]
async fn labels_stay_filters_come_and_go_and_a_bypass_is_kept() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "control").await;
    for _ in 0..2 {
        let (status, labels) = desk.post("/labels", json!({"label": "mnpi"})).await;
        assert_eq!((status, labels), (200, json!({"labels": ["mnpi"]})));
    }
    problem(
        &desk.post("/labels", json!({"label": "no good"})).await,
        400,
        "malformed_label",
    );
    let request = desk.api.request("DELETE", &desk.path("/labels"));
    assert_eq!(desk.api.send(request).await.0, 405);
    let narrowed = desk
        .post("/tool-filter", json!({"tools": ["send_note"]}))
        .await;
    assert_eq!(narrowed, (200, json!({"control_revision": 2})));
    assert_eq!(
        desk.preflight().await["allowed_tools"],
        json!(["send_note"])
    );
    let widened = desk.post("/tool-filter", json!({"tools": null})).await;
    assert_eq!(widened, (200, json!({"control_revision": 3})));
    for _ in 0..2 {
        let bypass = json!({"detected_at": "2026-01-01T00:00:00Z", "detail": "fetch"});
        let reported = desk.post("/report-bypass", bypass).await;
        assert_eq!(reported, (200, json!({"authority_state": "compromised"})));
    }
    assert_eq!(desk.state().await["controlRevision"], 4);
    let beat = desk.post("/heartbeat", json!({"controlRevision": 4})).await;
    let expected = json!({"state_version": 0, "control_revision": 4, "killed": false});
    assert_eq!(beat, (200, expected));
}

/// U9: the program of a governed session is stopped by the commit that closes its session, other tasks in it as well.
#[tokio::test]
async fn u9_closing_the_session_of_a_program_stops_it() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "close").await;
    desk.asked().await;
    let task = desk.task().await;
    let session = task["session_id"].as_str().unwrap();
    let waiting = desk.api.task(session, "ask").await;
    let waiting = waiting["id"].as_str().unwrap();
    desk.api.wait_for(waiting, "INPUT_REQUIRED").await;
    let close = || {
        let path = format!("/v1/sessions/{session}/close");
        let request = desk.api.request("POST", &path).json(&json!({}));
        desk.api.send(request.header("Idempotency-Key", "close-1"))
    };
    let (status, closed) = close().await;
    assert_eq!((status, &closed["state"]), (200, &json!("CLOSED")));
    assert_eq!(closed["id"], session);
    assert_eq!(close().await, (200, closed));
    assert_eq!(desk.task().await["status"], "CANCELED");
    assert_eq!(desk.state().await["killed"], true);
    let (_, other) = desk.api.get(&format!("/v1/tasks/{waiting}")).await;
    assert_eq!(other["status"], "CANCELED");
    let (_, open) = desk.api.get("/v1/permission-requests?status=pending").await;
    assert_eq!(open["data"], json!([]));
    // Nothing comes after the end.
    let path = format!("/v1/sessions/{session}/events?limit=200");
    let (_, events) = desk.api.get(&path).await;
    let last = events["data"].as_array().unwrap().last().unwrap();
    assert_eq!(last["event"], "session.closed");
    let path = format!("/v1/tasks/{}/replay", task["id"].as_str().unwrap());
    let (status, replay) = desk.api.post(&path, json!({"mode": "exact"})).await;
    assert_eq!(status, 202, "{replay}");
    desk.api
        .wait_for(replay["id"].as_str().unwrap(), "CANCELED")
        .await;
}

#[tokio::test]
async fn a_kill_is_final_and_withdraws_what_waits() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "kill").await;
    let proposal = desk.asked().await;
    let killed = desk.post("/kill", json!({"reason": "stop"})).await;
    assert_eq!(killed, (200, json!({"killed": true})));
    assert_eq!(
        desk.post("/kill", json!({})).await,
        (200, json!({"killed": true}))
    );
    problem(&desk.preflight_at(&json!(2)).await, 410, "killed");
    problem(
        &desk.decide(&server, &proposal, "approve").await,
        410,
        "killed",
    );
    let id = proposal["proposal_id"].as_str().unwrap();
    let (_, shown) = desk.api.get(&desk.path(&format!("/proposals/{id}"))).await;
    assert_eq!(shown["status"], "killed");
    let beat = desk.post("/heartbeat", json!({})).await;
    assert_eq!((beat.0, &beat.1["killed"]), (200, &json!(true)));
    let (_, open) = desk.api.get("/v1/permission-requests?status=pending").await;
    assert_eq!(open["data"], json!([]));
    let task = desk.task().await;
    assert_eq!(task["status"], "CANCELED");
    let path = format!("/v1/tasks/{}/replay", task["id"].as_str().unwrap());
    let (status, replay) = desk.api.post(&path, json!({"mode": "exact"})).await;
    assert_eq!(status, 202, "{replay}");
    desk.api
        .wait_for(replay["id"].as_str().unwrap(), "CANCELED")
        .await;

    // A cancel of the task is a kill of the session.
    let desk = Desk::open(&server, "kill-2").await;
    let task = desk.task().await;
    let path = format!("/v1/tasks/{}/cancel", task["id"].as_str().unwrap());
    assert_eq!(
        desk.api.post(&path, json!({"reason": "enough"})).await.0,
        200
    );
    assert_eq!(desk.state().await["killed"], true);
}

#[tokio::test]
async fn five_blocked_responses_kill_and_the_next_call_is_told() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "breaker").await;
    for number in 0..5 {
        let blocked = desk
            .propose(&[("c", "pay_back", payment(100 + number))])
            .await;
        assert_eq!(blocked["status"], "blocked");
        assert_eq!(blocked["verdicts"][0]["reason"], "illegal_phase_transition");
    }
    problem(&desk.preflight_at(&json!(0)).await, 410, "killed");
    assert_eq!(desk.task().await["status"], "CANCELED");
}

#[tokio::test]
async fn captures_are_kept_redacted_by_both_paths() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "captured").await;
    let record =
        json!({"session_id": "captured", "request": "mail ann@mail.example", "attempt": 1});
    let kept = desk.post("/captures", json!({"captures": [record]})).await;
    assert_eq!(kept, (200, json!({"accepted": 1})));
    let both = json!({"captures": [record, record]});
    let kept = desk.api.post("/api/v1/captures", both).await;
    assert_eq!(kept, (200, json!({"accepted": 2})));
    let unknown = json!({"captures": [{"session_id": "nobody"}]});
    assert_eq!(desk.api.post("/api/v1/captures", unknown).await.0, 404);
    let task = desk.task().await;
    let path = format!(
        "/v1/tasks/{}/events?limit=200",
        task["id"].as_str().unwrap()
    );
    let (_, events) = desk.api.get(&path).await;
    let events = events.to_string();
    assert!(events.contains("[REDACTED:email]"), "{events}");
    assert!(!events.contains("ann@mail.example"));
}

#[tokio::test]
async fn what_limits_refuse_before_the_model_is_asked_is_a_contract_error() {
    let server = Server::start().await;
    let mut new = body("unpriced");
    new.as_object_mut().unwrap().remove("pricing");
    let desk = Desk::open_with(&server, new).await;
    let refused = desk.preflight_at(&json!(0)).await;
    problem(&refused, 403, "session_limit_exceeded");
    assert_eq!(refused.1["decision"]["detail"], "price_unknown");
    assert_eq!(desk.state().await["totalBlockCount"], 1);
    // Shadow blocks nothing and says what would have been.
    let mut shadow = body("shadow");
    shadow["mode"] = json!("shadow");
    let desk = Desk::open_with(&server, shadow).await;
    let prepared = desk.preflight().await;
    assert_eq!(prepared["removed"], json!([]));
    let (_, released) = desk
        .propose_as(&prepared, &[("c", "pay_back", payment(5))])
        .await;
    assert_eq!(released["status"], "allowed");
    assert_eq!(released["verdicts"][0]["verdict"], "block");
    assert_eq!(desk.state().await["health"]["protectionLevel"], "monitor");
}

#[tokio::test]
async fn whole_costs_read_back_as_they_were_judged() {
    let server = Server::start().await;
    let contract = "tool: pay\nside_effect: read\n";
    let desk = Desk::open_with(&server, pay("whole", contract)).await;
    let (status, answer) = desk.post("/restore", json!({})).await;
    assert_eq!(status, 200, "{answer}");
    // The fold of the log is held to every verdict in it.
    desk.state().await;
    let task = desk.state().await["protocol"]["task_id"].clone();
    let path = format!("/v1/tasks/{}/replay", task.as_str().unwrap());
    let (status, replay) = desk.api.post(&path, json!({"mode": "exact"})).await;
    assert_eq!(status, 202, "{replay}");
    let path = format!("/v1/tasks/{}", replay["id"].as_str().unwrap());
    for _ in 0..200 {
        let (_, task) = desk.api.get(&path).await;
        if task["status"] == "COMPLETED" {
            return;
        }
        assert_ne!(task["status"], "FAILED", "{task}");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the replay did not end");
}

#[tokio::test]
async fn messages_and_numbers_from_outside_leave_a_session_usable() {
    let server = Server::start().await;
    let desk = Desk::open_with(&server, pay("odd", ASKING)).await;
    let offered = |version: u64| json!({"expected_state_version": version, "offered_tools": offered(&["pay"]), "provider": "o", "model": "m"});
    let (status, prepared) = desk.post("/preflight", offered(0)).await;
    assert_eq!(status, 200, "{prepared}");
    let propose = |arguments: &str| {
        json!({"prepared_request_id": prepared["prepared_request_id"], "finish_reason": "tool_calls",
            "tool_calls": [{"id": "c", "name": "pay", "arguments": arguments}]})
    };
    // No event can hold it: nothing is written.
    let (status, answer) = desk.post("/proposals", propose(r#"{"x":1e21}"#)).await;
    assert_eq!(status, 400, "{answer}");
    let (status, answer) = desk.post("/proposals", propose(r#"{"x":1}"#)).await;
    assert_eq!(
        (status, &answer["status"]),
        (200, &json!("pending_approval")),
        "{answer}"
    );
    let task = desk.state().await["protocol"]["task_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let confirmed = json!({"kind": "tool_confirmation", "role": "user",
        "parts": [{"type": "json", "value": {"approved": true}}]});
    let bea = server.client_with(APPROVER_KEY);
    let (status, answer) = bea
        .post(&format!("/v1/tasks/{task}/messages"), confirmed)
        .await;
    assert_eq!(
        (status, answer["error"]["details"]["reason"].as_str()),
        (409, Some("governed")),
        "{answer}"
    );
    desk.state().await;
    let (status, answer) = desk.post("/kill", json!({})).await;
    assert_eq!(status, 200, "{answer}");
}
