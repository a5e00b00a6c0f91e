//! Governed sessions over HTTP: the cycle of preflight, proposal and receipt, people who decide, control actions, and what
//! is left in the log.

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
pub(crate) fn contracts(replaced: &str, by: &str) -> Value {
    let files = FILES.iter().map(|(file, text)| {
        let text = text.replace(replaced, by);
        json!({"file": file, "text": text})
    });
    json!({"contracts": files.collect::<Vec<_>>(), "session": {"file": "session.yaml", "text": SESSION}})
}

pub(crate) fn body(id: &str) -> Value {
    json!({
        "session_id": id,
        "agent": "return-desk",
        "contracts": contracts("", ""),
        "principal": {"role": "desk", "trainee": false},
        "pricing": {"openai/gpt-x": {"input": "1", "output": "2"}},
    })
}

/// Tools that are offered with a schema that demands nothing.
pub(crate) fn offered(names: &[&str]) -> Value {
    let tools = names.iter().map(|name| json!({"name": name, "schema": {}}));
    tools.collect()
}

/// A program that drives a session.
pub(crate) struct Desk {
    pub(crate) api: Api,
    pub(crate) id: String,
}

impl Desk {
    pub(crate) async fn open(server: &Server, id: &str) -> Self {
        Self::open_with(server, body(id)).await
    }

    pub(crate) async fn open_with(server: &Server, body: Value) -> Self {
        let api = server.client();
        let (status, opened) = api.post("/api/v1/replay/sessions", body).await;
        assert_eq!(status, 201, "{opened}");
        assert_eq!(opened["state_version"], 0);
        let id = opened["session_id"].as_str().unwrap().to_owned();
        Self { api, id }
    }

    pub(crate) fn with(&self, api: Api) -> Self {
        let id = self.id.clone();
        Self { api, id }
    }

    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/api/v1/replay/sessions/{}{rest}", self.id)
    }

    pub(crate) async fn post(&self, rest: &str, body: Value) -> Got {
        self.api.post(&self.path(rest), body).await
    }

    pub(crate) async fn state(&self) -> Value {
        let (status, state) = self.api.get(&self.path("?include=pending")).await;
        assert_eq!(status, 200, "{state}");
        state
    }

    pub(crate) async fn preflight(&self) -> Value {
        let state = self.state().await;
        let got = self.preflight_at(&state["stateVersion"]).await;
        assert_eq!(got.0, 200, "{}", got.1);
        got.1
    }

    pub(crate) async fn preflight_at(&self, version: &Value) -> Got {
        let schema = json!({"type": "object", "properties": {"amount_cents": {"type": "integer"}}});
        let body = json!({
            "expected_state_version": version,
            "offered_tools": [
                {"name": "find_order", "schema": null}, {"name": "assess_return", "input_schema": {}},
                {"name": "pay_back", "schema": schema}, {"name": "send_note", "parameters": {}},
            ],
            "request_digest": "sha256:aa",
            "provider": "openai",
            "model": "gpt-x",
        });
        self.post("/preflight", body).await
    }

    pub(crate) async fn propose_as(&self, prepared: &Value, calls: &[(&str, &str, Value)]) -> Got {
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

    pub(crate) async fn propose(&self, calls: &[(&str, &str, Value)]) -> Value {
        let prepared = self.preflight().await;
        let (status, proposal) = self.propose_as(&prepared, calls).await;
        assert_eq!(status, 200, "{proposal}");
        proposal
    }

    pub(crate) async fn report(&self, proposal: &Value, output: Value) -> Got {
        self.post("/receipts", receipt(proposal, output)).await
    }

    /// Brings a session as far as an assessed return.
    pub(crate) async fn assessed(&self, amount: u64) {
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
    pub(crate) async fn asked(&self) -> Value {
        self.assessed(20_000).await;
        let proposal = self.propose(&[("c3", "pay_back", payment(20_000))]).await;
        assert_eq!(proposal["status"], "pending_approval", "{proposal}");
        proposal
    }

    pub(crate) async fn decide(&self, server: &Server, proposal: &Value, decision: &str) -> Got {
        let path = format!(
            "/proposals/{}/approve",
            proposal["proposal_id"].as_str().unwrap()
        );
        let body =
            json!({"decision": decision, "decided_by": "bea@shop.example", "reason": "seen"});
        let bea = self.with(server.client_with(APPROVER_KEY));
        bea.post(&path, body).await
    }

    pub(crate) async fn task(&self) -> Value {
        let id = self.state().await["protocol"]["task_id"].clone();
        let (status, task) = self
            .api
            .get(&format!("/v1/tasks/{}", id.as_str().unwrap()))
            .await;
        assert_eq!(status, 200);
        task
    }
}

pub(crate) fn payment(amount: u64) -> Value {
    json!({"order_id": "A", "amount_cents": amount, "currency": "EUR"})
}

pub(crate) fn receipt(proposal: &Value, output: Value) -> Value {
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
pub(crate) fn problem(got: &Got, status: u16, code: &str) {
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
    in_workflow["workflow"] = json!({"type": "root", "workflowId": "nowhere", "role": "desk"});
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
