//! Governed sessions over HTTP: the cycle of preflight, proposal and receipt, people who decide, control actions, and what
//! is left in the log.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::{APPROVER_KEY, Api, Got, Server, key};

const FILES: [(&str, &str); 4] = [
    (
        "find_order.yaml",
        include_str!("../../../../examples/refund-desk/contracts/find_order.yaml"),
    ),
    (
        "assess_return.yaml",
        include_str!("../../../../examples/refund-desk/contracts/assess_return.yaml"),
    ),
    (
        "pay_back.yaml",
        include_str!("../../../../examples/refund-desk/contracts/pay_back.yaml"),
    ),
    (
        "send_note.yaml",
        include_str!("../../../../examples/refund-desk/contracts/send_note.yaml"),
    ),
];
const SESSION: &str = include_str!("../../../../examples/refund-desk/contracts/session.yaml");

/// The contracts of the example, with something replaced.
fn contracts(replaced: &str, by: &str) -> Value {
    let files = FILES.iter().map(|(file, text)| {
        let text = text.replace(replaced, by);
        json!({"file": file, "text": text})
    });
    json!({"contracts": files.collect::<Vec<_>>(), "session": {"file": "session.yaml", "text": SESSION}})
}

fn body(id: &str) -> Value {
    json!({
        "session_id": id,
        "agent": "return-desk",
        "contracts": contracts("", ""),
        "principal": {"role": "desk", "trainee": false},
        "pricing": {"openai/gpt-x": {"input": "1", "output": "2"}},
    })
}

/// A program that drives a session.
struct Desk {
    api: Api,
    id: String,
}

impl Desk {
    async fn open(server: &Server, id: &str) -> Self {
        Self::open_with(server, body(id)).await
    }

    async fn open_with(server: &Server, body: Value) -> Self {
        let api = server.client();
        let (status, opened) = api.post("/api/v1/replay/sessions", body).await;
        assert_eq!(status, 201, "{opened}");
        assert_eq!(opened["state_version"], 0);
        let id = opened["session_id"].as_str().unwrap().to_owned();
        Self { api, id }
    }

    fn with(&self, api: Api) -> Self {
        let id = self.id.clone();
        Self { api, id }
    }

    fn path(&self, rest: &str) -> String {
        format!("/api/v1/replay/sessions/{}{rest}", self.id)
    }

    async fn post(&self, rest: &str, body: Value) -> Got {
        self.api.post(&self.path(rest), body).await
    }

    async fn state(&self) -> Value {
        let (status, state) = self.api.get(&self.path("?include=pending")).await;
        assert_eq!(status, 200, "{state}");
        state
    }

    async fn preflight(&self) -> Value {
        let state = self.state().await;
        let got = self.preflight_at(&state["stateVersion"]).await;
        assert_eq!(got.0, 200, "{}", got.1);
        got.1
    }

    async fn preflight_at(&self, version: &Value) -> Got {
        let schema = json!({"type": "object", "properties": {"amount_cents": {"type": "integer"}}});
        let body = json!({
            "expected_state_version": version,
            "offered_tools": [
                "find_order", "assess_return", {"name": "pay_back", "schema": schema}, "send_note",
            ],
            "request_digest": "sha256:aa",
            "provider": "openai",
            "model": "gpt-x",
        });
        self.post("/preflight", body).await
    }

    async fn propose_as(&self, prepared: &Value, calls: &[(&str, &str, Value)]) -> Got {
        let calls = calls.iter().map(
            |(id, name, arguments)| json!({"id": id, "name": name, "arguments": arguments.to_string()}),
        );
        let body = json!({
            "prepared_request_id": prepared["prepared_request_id"],
            "finish_reason": "tool_calls",
            "content_digest": null,
            "tool_calls": calls.collect::<Vec<_>>(),
            "usage": {"input": 1_000, "output": 100},
        });
        self.post("/proposals", body).await
    }

    async fn propose(&self, calls: &[(&str, &str, Value)]) -> Value {
        let prepared = self.preflight().await;
        let (status, proposal) = self.propose_as(&prepared, calls).await;
        assert_eq!(status, 200, "{proposal}");
        proposal
    }

    async fn report(&self, proposal: &Value, output: Value) -> Got {
        self.post("/receipts", receipt(proposal, output)).await
    }

    /// Brings a session as far as an assessed return.
    async fn assessed(&self, amount: u64) {
        let found = self
            .propose(&[("c1", "find_order", json!({"order_id": "A"}))])
            .await;
        assert_eq!(found["status"], "allowed", "{found}");
        assert_eq!(self.report(&found, json!({})).await.0, 200);
        let arguments = json!({"order_id": "A"});
        let assessed = self.propose(&[("c2", "assess_return", arguments)]).await;
        let output = json!({
            "$.accepted": true, "$.days_since_delivery": 4, "$.amount_cents": amount,
        });
        let (status, answer) = self.report(&assessed, output).await;
        assert_eq!(
            (status, &answer["committed"]),
            (200, &json!(true)),
            "{answer}"
        );
        assert_eq!(self.state().await["currentPhase"], "assessed");
    }

    /// Proposes a payment that a person must look at.
    async fn asked(&self) -> Value {
        self.assessed(20_000).await;
        let proposal = self.propose(&[("c3", "pay_back", payment(20_000))]).await;
        assert_eq!(proposal["status"], "pending_approval", "{proposal}");
        proposal
    }

    async fn decide(&self, server: &Server, proposal: &Value, decision: &str) -> Got {
        let path = format!(
            "/proposals/{}/approve",
            proposal["proposal_id"].as_str().unwrap()
        );
        let body =
            json!({"decision": decision, "decided_by": "bea@shop.example", "reason": "seen"});
        let bea = self.with(server.client_with(APPROVER_KEY));
        bea.post(&path, body).await
    }

    async fn task(&self) -> Value {
        let id = self.state().await["protocol"]["task_id"].clone();
        let (status, task) = self
            .api
            .get(&format!("/v1/tasks/{}", id.as_str().unwrap()))
            .await;
        assert_eq!(status, 200);
        task
    }
}

fn payment(amount: u64) -> Value {
    json!({"order_id": "A", "amount_cents": amount, "currency": "EUR"})
}

fn receipt(proposal: &Value, output: Value) -> Value {
    let verdict = &proposal["verdicts"][0];
    json!({
        "proposal_id": proposal["proposal_id"],
        "call_id": verdict["call_id"],
        "arguments_digest": verdict["arguments_digest"],
        "outcome": "success",
        "output_fields": output,
        "output_digest": "sha256:bb",
        "started_at": "2026-01-01T00:00:00Z",
        "ended_at": "2026-01-01T00:00:01Z",
    })
}

#[track_caller]
fn problem(got: &Got, status: u16, code: &str) {
    assert_eq!(
        (got.0, got.1["code"].as_str()),
        (status, Some(code)),
        "{}",
        got.1
    );
}

#[tokio::test]
async fn a_session_goes_from_preflight_to_a_verified_receipt_and_is_replayed() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "desk-1").await;
    let prepared = desk.preflight().await;
    assert_eq!(
        prepared["allowed_tools"],
        json!(["find_order", "send_note"])
    );
    assert_eq!(prepared["removed"][0]["tool"], "assess_return");
    assert_eq!(prepared["removed"][0]["reason"], "wrong_phase");
    desk.assessed(12_000).await;
    let paid = desk.propose(&[("c3", "pay_back", payment(12_000))]).await;
    assert_eq!(paid["status"], "allowed");
    assert_eq!(
        desk.state().await["pending"][0]["proposal_id"],
        paid["proposal_id"]
    );
    assert_eq!(desk.report(&paid, json!({})).await.1["committed"], true);
    let state = desk.state().await;
    assert_eq!(state["currentPhase"], "paid");
    assert_eq!(state["labels"], json!(["money_moved"]));
    assert_eq!(state["principal"], Value::Null);
    assert_eq!(state["exactCosts"]["actual"], "0.0036");
    assert_eq!(state["health"]["protectionLevel"], "govern");
    // Once money moved, it does not move again.
    let again = desk.propose(&[("c4", "pay_back", payment(100))]).await;
    assert_eq!(again["status"], "blocked");
    let reasons = again["verdicts"][0]["all_reasons"]
        .as_array()
        .unwrap()
        .clone();
    assert!(reasons.contains(&json!("forbidden_tool")), "{again}");

    let (status, ended) = desk.post("/restore", json!({})).await;
    assert_eq!(
        (status, &ended["totalStepCount"]),
        (200, &json!(3)),
        "{ended}"
    );
    problem(
        &desk.post("/labels", json!({"label": "late"})).await,
        410,
        "restored",
    );
    problem(&desk.preflight_at(&json!(9)).await, 410, "restored");
    let task = desk.task().await;
    assert_eq!(task["status"], "COMPLETED");
    let receipt = task["receipt_id"].as_str().unwrap();
    let (_, verified) = desk
        .api
        .post(&format!("/v1/receipts/{receipt}/verify"), json!({}))
        .await;
    assert_eq!(verified["valid"], true, "{verified}");
    let (_, shown) = desk.api.get(&format!("/v1/receipts/{receipt}")).await;
    let governance = &shown["metadata"]["governance"];
    assert_eq!(
        (&governance["allowed"], &governance["blocked"]),
        (&json!(3), &json!(1))
    );

    let path = format!("/v1/tasks/{}/replay", task["id"].as_str().unwrap());
    let (status, replay) = desk.api.post(&path, json!({"mode": "exact"})).await;
    assert_eq!(status, 202, "{replay}");
    let replay = desk
        .api
        .wait_for(replay["id"].as_str().unwrap(), "COMPLETED")
        .await;
    assert_eq!(replay["metadata"]["replay"]["source_task_id"], task["id"]);
}

#[tokio::test]
async fn a_repeated_receipt_is_accepted_and_another_one_is_refused_and_recorded() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "r").await;
    let found = desk
        .propose(&[("c1", "find_order", json!({"order_id": "A"}))])
        .await;
    let first = desk.report(&found, json!({})).await;
    assert_eq!(first.0, 200);
    let head = server.store_head();
    assert_eq!(desk.report(&found, json!({})).await, first);
    assert_eq!(
        server.store_head(),
        head,
        "the same content changes nothing"
    );
    let other = desk.report(&found, json!({"$.x": 1})).await;
    problem(&other, 409, "settled");
    assert!(server.store_head() > head, "other content is recorded");

    // What was executed with other arguments leaves the call unknown, and the session degraded.
    let note = desk
        .propose(&[("n1", "send_note", json!({"text": "hi"}))])
        .await;
    let mut report = receipt(&note, json!({}));
    report["arguments_digest"] = json!(format!("sha256:{}", "0".repeat(64)));
    problem(
        &desk.post("/receipts", report).await,
        409,
        "arguments_differ",
    );
    assert_eq!(desk.state().await["health"]["status"], "degraded");
    let mut unknown = receipt(&note, json!({}));
    unknown["call_id"] = json!("nobody");
    problem(&desk.post("/receipts", unknown).await, 409, "not_allowed");
    // A later report settles it.
    assert_eq!(desk.report(&note, json!({})).await.1["committed"], true);
    assert_eq!(desk.state().await["health"]["status"], "healthy");
}

#[tokio::test]
async fn two_workers_of_one_session_are_serialised() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "race").await;
    let (one, two) = (desk.preflight().await, desk.preflight().await);
    assert_ne!(one["prepared_request_id"], two["prepared_request_id"]);
    let note = |id: &'static str| [(id, "send_note", json!({"text": id}))];
    let (first, second) = (note("a"), note("b"));
    let (first, second) = tokio::join!(
        desk.propose_as(&one, &first),
        desk.propose_as(&two, &second)
    );
    let mut statuses = [first.0, second.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "{first:?} {second:?}");
    let loser = if first.0 == 409 { &first } else { &second };
    problem(loser, 409, "stale");
    assert_eq!(loser.1["same_response"], false);
    assert_eq!(loser.1["state_version"], 1);
    // Both asked the model: both cost.
    assert_eq!(desk.state().await["attemptCount"], 2);
    problem(&desk.propose_as(&one, &note("c")).await, 409, "consumed");
    problem(&desk.preflight_at(&json!(0)).await, 409, "stale");
    let unknown = json!({"prepared_request_id": "prepared_99"});
    problem(
        &desk.propose_as(&unknown, &note("d")).await,
        409,
        "unknown_prepared_request",
    );

    // When only a control action came in between, the same response is proposed again.
    let prepared = desk.preflight().await;
    assert_eq!(desk.post("/labels", json!({"label": "x"})).await.0, 200);
    let stale = desk.propose_as(&prepared, &note("e")).await;
    problem(&stale, 409, "stale");
    assert_eq!(stale.1["same_response"], true);
    assert_eq!(desk.state().await["attemptCount"], 2);
}

#[tokio::test]
async fn many_workers_lose_nothing() {
    let server = Server::start().await;
    let desk = Desk::open_with(&server, {
        let files =
            json!({"contracts": [{"file": "t.yaml", "text": "tool: t\nside_effect: read\n"}]});
        json!({"session_id": "many", "contracts": files})
    })
    .await;
    let labels = (0..24).map(|number| {
        let desk = desk.with(desk.api.clone());
        async move {
            let label = format!("label-{number}");
            assert_eq!(desk.post("/labels", json!({"label": label})).await.0, 200);
        }
    });
    futures_util::future::join_all(labels).await;
    let state = desk.state().await;
    assert_eq!(state["controlRevision"], 24);
    assert_eq!(state["labels"].as_array().unwrap().len(), 24);
}

#[tokio::test]
async fn a_session_goes_on_after_a_crash_between_proposal_and_receipt() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "crash").await;
    desk.assessed(20_000).await;
    let proposal = desk.propose(&[("c3", "pay_back", payment(20_000))]).await;
    let before = desk.state().await;
    let after = server.reopened().await;
    let desk = desk.with(after.client());
    assert_eq!(desk.state().await, before);
    let id = proposal["proposal_id"].as_str().unwrap();
    let (_, shown) = desk.api.get(&desk.path(&format!("/proposals/{id}"))).await;
    assert_eq!(shown["status"], "pending_approval");
    let approved = desk.decide(&after, &proposal, "approve").await;
    assert_eq!(approved, (200, json!({"status": "approved"})));
    let again = after.reopened().await;
    let desk = desk.with(again.client());
    let pending = desk.state().await["pending"].clone();
    assert_eq!(pending[0]["tool_name"], "pay_back", "{pending}");
    assert_eq!(desk.report(&proposal, json!({})).await.1["committed"], true);
    assert_eq!(desk.state().await["currentPhase"], "paid");
    // The prepared request is used once, whatever process it was used in.
    let used = json!({"prepared_request_id": "prepared_1"});
    let got = desk
        .propose_as(&used, &[("x", "send_note", json!({"text": "x"}))])
        .await;
    problem(&got, 409, "consumed");
}

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
    server
        .add_key(key("rk_ann_too", "ann", &scopes, None))
        .await;
    let own = desk.with(server.client_with("rk_ann_too"));
    problem(&own.post(&path, yes).await, 403, "permission_denied");
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
async fn a_session_is_created_once_and_only_under_its_contracts() {
    let server = Server::start().await;
    let api = server.client();
    let desk = Desk::open(&server, "once").await;
    desk.propose(&[("c", "send_note", json!({"text": "x"}))])
        .await;
    let (status, resumed) = api.post("/api/v1/replay/sessions", body("once")).await;
    assert_eq!(
        (status, &resumed["state_version"]),
        (200, &json!(1)),
        "{resumed}"
    );
    let mut other = body("once");
    other["contracts"] = contracts("lte: 40000", "lte: 30000");
    let refused = api.post("/api/v1/replay/sessions", other.clone()).await;
    problem(&refused, 409, "invalid_option");
    other["session_id"] = json!("wrong-digest");
    other["compiled_digest"] = resumed["compiled_digest"].clone();
    problem(
        &api.post("/api/v1/replay/sessions", other).await,
        409,
        "digest_mismatch",
    );
    // The principal is judged and never kept.
    let mut nobody = body("nobody");
    nobody["principal"] = json!({"role": "desk", "trainee": true, "name": "s3cret-name"});
    let trainee = Desk::open_with(&server, nobody.clone()).await;
    trainee.assessed(100).await;
    let denied = trainee.propose(&[("c", "pay_back", payment(100))]).await;
    assert_eq!(denied["verdicts"][0]["reason"], "policy_denied", "{denied}");
    let (_, events) = api.get("/v1/events?limit=200").await;
    assert!(!events.to_string().contains("s3cret-name"));
    nobody["session_id"] = json!("nobody-2");
    nobody.as_object_mut().unwrap().remove("principal");
    let refused = api.post("/api/v1/replay/sessions", nobody).await;
    problem(&refused, 422, "policy_without_principal");
    let broken =
        json!({"contracts": {"contracts": [{"file": "a.yaml", "text": "tool: a\nside: x\n"}]}});
    let refused = api.post("/api/v1/replay/sessions", broken).await;
    problem(&refused, 422, "compilation_failed");
    assert!(!refused.1["findings"].as_array().unwrap().is_empty());
    let unknown = json!({"compiled_digest": "ab".repeat(32)});
    problem(
        &api.post("/api/v1/replay/sessions", unknown).await,
        422,
        "unknown_contracts",
    );
    problem(
        &api.post("/api/v1/replay/sessions", json!({})).await,
        422,
        "no_contracts",
    );
    let mut in_workflow = body("in-workflow");
    in_workflow["workflow"] = json!({"type": "root", "role": "desk"});
    let refused = api.post("/api/v1/replay/sessions", in_workflow).await;
    problem(&refused, 422, "workflow_not_found");
    let (status, observer) = api
        .post("/api/v1/replay/sessions", json!({"mode": "log-only"}))
        .await;
    assert_eq!(status, 201, "R46: {observer}");
}

#[tokio::test]
async fn a_foreign_workspace_sees_nothing_and_a_repeated_request_is_answered_again() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "mine").await;
    let (_, workspace) = desk
        .api
        .post("/v1/workspaces", json!({"name": "b", "root": "/"}))
        .await;
    let workspace = workspace["id"].as_str().unwrap().to_owned();
    let scopes = ["*", "approvals:write"];
    server
        .add_key(key("rk_foreign", "eve", &scopes, Some(&[&workspace])))
        .await;
    let eve = desk.with(server.client_with("rk_foreign"));
    for rest in ["", "/proposals/proposal_1"] {
        assert_eq!(eve.api.get(&eve.path(rest)).await.0, 404);
    }
    for rest in [
        "/kill",
        "/labels",
        "/preflight",
        "/proposals/proposal_1/approve",
    ] {
        let body = json!({"label": "x", "decision": "deny", "decided_by": "eve"});
        assert_eq!(eve.post(rest, body).await.0, 404, "{rest}");
    }
    // The same id in another Workspace is another session.
    let own = Desk::open_with(&server, {
        let mut own = body("mine");
        own["workspace_id"] = json!(workspace);
        own
    })
    .await;
    assert_eq!(eve.post("/labels", json!({"label": "hers"})).await.0, 200);
    assert_eq!(desk.state().await["labels"], json!([]));
    let (_, theirs) = own
        .api
        .get(&own.path(&format!("?in_workspace={workspace}")))
        .await;
    assert_eq!(theirs["labels"], json!(["hers"]), "{theirs}");

    let body = json!({"label": "twice"});
    let path = desk.path("/labels");
    let first = desk.api.post_with_key(&path, "k1", body.clone()).await;
    let head = server.store_head();
    let again = desk.api.post_with_key(&path, "k1", body).await;
    assert_eq!((first.clone(), server.store_head()), (again, head));
    let other = desk
        .api
        .post_with_key(&path, "k1", json!({"label": "other"}))
        .await;
    problem(&other, 409, "idempotency_key_reused");
    // The session's own Session id leads to it as well.
    let session = desk.state().await["protocol"]["session_id"].clone();
    let path = format!("/api/v1/replay/sessions/{}", session.as_str().unwrap());
    assert_eq!(desk.api.get(&path).await.1["sessionId"], "mine");
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

fn pay(id: &str, contract: &str) -> Value {
    json!({"session_id": id, "contracts": {"contracts": [{"file": "pay.yaml", "text": contract}]}})
}

const ASKING: &str = "tool: pay\nside_effect: write\ncheckpoint: { reason: large }\n";

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
    let offered = |version: u64| json!({"expected_state_version": version, "offered_tools": ["pay"], "provider": "o", "model": "m"});
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
