//! Governed sessions over HTTP: people who decide, in time, too late, and while something else comes in.

use std::time::Duration;

use serde_json::json;

use crate::fixture::{APPROVER_KEY, Server, key};
use crate::governed::{Desk, body, contracts, offered, payment, problem};
use crate::governed_parties::{asked, two_members};

#[tokio::test]
async fn an_approval_is_seen_and_answered_by_somebody_else() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "ask").await;
    let proposal = desk.asked().await;
    let asked = &proposal["approval_requests"][0];
    assert_eq!(asked["tool_name"], "pay_back");
    assert_eq!(asked["arguments"], payment(20_000));
    assert_eq!(
        asked["context"][1],
        json!({"label": "amount assessed", "value": 20_000})
    );
    let bea = server.client_with(APPROVER_KEY);
    let (_, list) = bea.get("/api/v1/replay/approvals?status=pending").await;
    assert_eq!(
        list["data"][0]["proposal_id"], proposal["proposal_id"],
        "{list}"
    );
    assert_eq!(list["data"][0]["session_id"], "ask");
    // Both doors show one set of requests.
    let (_, requests) = bea.get("/v1/permission-requests?status=pending").await;
    assert_eq!(requests["data"][0]["id"], list["data"][0]["id"]);

    let path = format!(
        "/proposals/{}/approve",
        proposal["proposal_id"].as_str().unwrap()
    );
    let yes = json!({"decision": "approve", "decided_by": "ann"});
    // The key that proposes lacks the right; with the right it may still not decide.
    problem(
        &desk.post(&path, yes.clone()).await,
        403,
        "permission_denied",
    );
    let scopes = ["*", "approvals:write"];
    // Another key of the same person, beside the first.
    let mut too = key("rk_ann_too", "ann", &scopes, None);
    too.id = "key_ann_too".to_owned();
    server.add_key(too).await;
    let own = desk.with(server.client_with("rk_ann_too"));
    problem(&own.post(&path, yes).await, 403, "approver_must_differ");
    let by_agent = json!({"decision": "approve", "decided_by": "return-desk"});
    let other = desk.with(server.client_with(APPROVER_KEY));
    problem(
        &other.post(&path, by_agent).await,
        400,
        "malformed_decision",
    );

    // Whoever waits hears of the decision.
    let waiting = desk.path(&format!(
        "/proposals/{}?wait=20",
        proposal["proposal_id"].as_str().unwrap()
    ));
    let started = std::time::Instant::now();
    let (heard, decided) = tokio::join!(desk.api.get(&waiting), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        desk.decide(&server, &proposal, "approve").await
    });
    assert_eq!(decided, (200, json!({"status": "approved"})));
    assert_eq!(heard.1["status"], "approved", "{heard:?}");
    assert_eq!(
        heard.1["approval_response"]["decided_by"],
        "bea@shop.example"
    );
    assert!(started.elapsed() < Duration::from_secs(10));
    let settled = desk.decide(&server, &proposal, "deny").await;
    problem(&settled, 409, "settled");
    assert_eq!(settled.1["proposal_status"], "approved");
    let (_, list) = bea.get("/api/v1/replay/approvals").await;
    assert_eq!(list["data"], json!([]));
    let (_, trust) = bea.get("/v1/events").await;
    assert!(trust.to_string().contains("vendor.trust_recorded"));
}

#[tokio::test]
async fn a_denial_blocks_and_the_protocols_own_door_decides_too() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "deny").await;
    let proposal = desk.asked().await;
    let denied = desk.decide(&server, &proposal, "deny").await;
    assert_eq!(denied, (200, json!({"status": "denied"})));
    let id = proposal["proposal_id"].as_str().unwrap();
    let (_, shown) = desk.api.get(&desk.path(&format!("/proposals/{id}"))).await;
    assert_eq!(shown["status"], "denied");
    assert_eq!(shown["verdicts"][0]["reason"], "checkpoint_denied");
    assert_eq!(desk.state().await["currentPhase"], "assessed");

    let second = desk.propose(&[("c4", "pay_back", payment(19_000))]).await;
    let bea = server.client_with(APPROVER_KEY);
    let (_, list) = bea.get("/v1/permission-requests?status=pending").await;
    let request = list["data"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/permission-requests/{request}/respond");
    let (status, answered) = bea.post(&path, json!({"approved": true})).await;
    assert_eq!(
        (status, &answered["status"]),
        (200, &json!("approved")),
        "{answered}"
    );
    let id = second["proposal_id"].as_str().unwrap();
    let (_, shown) = desk.api.get(&desk.path(&format!("/proposals/{id}"))).await;
    assert_eq!(shown["status"], "approved", "{shown}");
}

#[tokio::test]
async fn an_approval_after_the_time_is_late_and_nothing_is_released() {
    let server = Server::start().await;
    let mut body = body("late");
    body["contracts"] = contracts("timeout_seconds: 600", "timeout_seconds: 1");
    let desk = Desk::open_with(&server, body).await;
    let proposal = desk.asked().await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let late = desk.decide(&server, &proposal, "approve").await;
    problem(&late, 409, "settled");
    assert_eq!(late.1["proposal_status"], "expired");
    let id = proposal["proposal_id"].as_str().unwrap();
    let (_, shown) = desk.api.get(&desk.path(&format!("/proposals/{id}"))).await;
    assert_eq!(shown["status"], "expired");
    assert_eq!(
        shown["verdicts"][0]["reason"], "checkpoint_timeout",
        "{shown}"
    );
    assert_eq!(desk.state().await["pending"], json!([]));
    // Nobody has to come for it: the server settles what is overdue by itself.
    let second = desk.propose(&[("c4", "pay_back", payment(19_000))]).await;
    assert_eq!(second["status"], "pending_approval");
    let bea = server.client_with(APPROVER_KEY);
    for _ in 0..100 {
        let (_, open) = bea.get("/v1/permission-requests?status=pending").await;
        if open["data"] == json!([]) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the question was never settled");
}

#[tokio::test]
async fn a_label_that_comes_while_a_person_decides_closes_the_tool() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "label").await;
    let proposal = desk.asked().await;
    let (status, labels) = desk
        .post("/labels", json!({"label": "fraud_suspected"}))
        .await;
    assert_eq!(
        (status, labels),
        (200, json!({"labels": ["fraud_suspected"]}))
    );
    let decided = desk.decide(&server, &proposal, "approve").await;
    assert_eq!(
        decided,
        (200, json!({"status": "blocked", "reason": "label_gate"}))
    );
    assert_eq!(desk.state().await["pending"], json!([]));
}

#[tokio::test]
async fn r40_a_call_that_was_refused_does_not_come_back_with_a_decision_about_another() {
    const FILES: [(&str, &str); 4] = [
        (
            "note.yaml",
            "tool: note\nside_effect: write\ncheckpoint: { reason: small }\n",
        ),
        (
            "find.yaml",
            "tool: find\nside_effect: read\nbinds: [ { slot: order, from: arguments, path: \"$.order\" } ]\n",
        ),
        (
            "pay.yaml",
            "tool: pay\nside_effect: financial\nargument_value_invariants: [ { path: \"$.order\", ref: order } ]\n",
        ),
        (
            "pay_asked.yaml",
            "tool: pay_asked\nside_effect: financial\nargument_value_invariants: [ { path: \"$.order\", ref: order } ]\ncheckpoint: { reason: money }\n",
        ),
    ];
    let server = Server::start().await;
    let files = FILES.map(|(file, text)| json!({"file": file, "text": text}));
    let order = json!({"order": "A"});
    for (number, (gate, tool, decision)) in [
        ("strip_partial", "pay", "approve"),
        ("strip_partial", "pay_asked", "approve"),
        ("strip_partial", "pay_asked", "deny"),
        ("strip_blocked", "pay", "deny"),
        ("strip_blocked", "pay_asked", "approve"),
    ]
    .into_iter()
    .enumerate()
    {
        let new = json!({"session_id": format!("refused-{number}"), "gate": gate, "contracts": {"contracts": files}});
        let desk = Desk::open_with(&server, new).await;
        let propose = async |calls: serde_json::Value| {
            let version = desk.state().await["stateVersion"].clone();
            let preflight = json!({"expected_state_version": version, "provider": "openai", "model": "m",
                "offered_tools": offered(&["note", "find", "pay", "pay_asked"])});
            let (status, ready) = desk.post("/preflight", preflight).await;
            assert_eq!(status, 200, "{ready}");
            let proposal = json!({"prepared_request_id": ready["prepared_request_id"],
                "finish_reason": "tool_calls", "tool_calls": calls});
            desk.post("/proposals", proposal).await.1
        };
        let asked = propose(json!([{"id": "n", "name": "note", "arguments": "{}"},
            {"id": "p", "name": tool, "arguments": order.to_string()}]))
        .await;
        assert_eq!(asked["verdicts"][1]["verdict"], "block", "{asked}");
        let found = json!([{"id": "f", "name": "find", "arguments": order.to_string()}]);
        let found = propose(found).await;
        let (status, reported) = desk.report(&found, json!({})).await;
        assert_eq!(status, 200, "{reported}");
        let (status, decided) = desk.decide(&server, &asked, decision).await;
        assert_eq!(status, 200, "{decided}");
        let id = asked["proposal_id"].as_str().unwrap();
        let (_, shown) = desk.api.get(&desk.path(&format!("/proposals/{id}"))).await;
        assert_eq!(shown["verdicts"][1], asked["verdicts"][1], "{shown}");
        assert_ne!(shown["status"], "pending_approval", "{shown}");
        let approved = decision == "approve";
        let first = if approved { "allow" } else { "block" };
        assert_eq!(shown["verdicts"][0]["verdict"], first, "{shown}");
        // Nothing is left to ask, and nothing of the refused call can be reported.
        let bea = server.client_with(APPROVER_KEY);
        let (_, open) = bea.get("/v1/permission-requests?status=pending").await;
        assert_eq!(open["data"], json!([]));
        let report = json!({"proposal_id": id, "call_id": "p", "outcome": "success",
            "arguments_digest": shown["verdicts"][1]["arguments_digest"]});
        let (status, refused) = desk.post("/receipts", report).await;
        assert!(status >= 400, "{refused}");
    }
}

#[tokio::test]
async fn a_session_that_waits_for_people_is_stopped_with_the_one_it_came_from() {
    let server = Server::start().await;
    for (job, asked_first) in [("waiting", true), ("alone", false)] {
        let (root, child) = two_members(&server, job).await;
        let proposal = asked(&child).await;
        assert_eq!(root.post("/kill", json!({})).await.0, 200);
        let (status, shown) = root
            .api
            .get(&format!("/api/v1/replay/workflows/{job}"))
            .await;
        assert_eq!(
            (status, &shown["status"]),
            (200, &json!("killed")),
            "{shown}"
        );
        // The workflow has ended before its child hears of it.
        let workflow = shown["protocol"]["task_id"].as_str().unwrap();
        root.api.wait_for(workflow, "CANCELED").await;
        if asked_first {
            problem(
                &child.post("/labels", json!({"label": "x"})).await,
                410,
                "killed",
            );
        }
        let task = child.state().await["protocol"]["task_id"].clone();
        root.api.wait_for(task.as_str().unwrap(), "CANCELED").await;
        let late = child.decide(&server, &proposal, "approve").await;
        problem(&late, 410, "killed");
        let beat = child.post("/heartbeat", json!({})).await;
        assert_eq!(
            (beat.0, &beat.1["killed"]),
            (200, &json!(true)),
            "{}",
            beat.1
        );
        assert_eq!(
            child.post("/kill", json!({})).await,
            (200, json!({"killed": true}))
        );
        let path = format!("/proposals/{}", proposal["proposal_id"].as_str().unwrap());
        let (_, shown) = child.api.get(&child.path(&path)).await;
        assert_eq!(shown["status"], "killed", "{shown}");
    }
    let bea = server.client_with(APPROVER_KEY);
    let (_, waiting) = bea.get("/api/v1/replay/approvals?status=pending").await;
    assert_eq!(waiting["data"], json!([]), "{waiting}");
}
