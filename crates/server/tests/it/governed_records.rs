//! Governed sessions over HTTP: what is refused outright, what requests at the same time get, and what receipts tell.

use engine::{Demands, MinimumMode};
use serde_json::{Value, json};

use crate::fixture::Server;
use crate::governed::{Desk, body, contracts, payment, problem, receipt};

#[tokio::test]
async fn u10_equal_requests_at_the_same_time_all_get_the_first_answer() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "twins").await;
    let prepared = desk.preflight().await;
    let body = json!({
        "prepared_request_id": prepared["prepared_request_id"],
        "finish_reason": "tool_calls",
        "tool_calls": [{"id": "c1", "name": "find_order", "arguments": "{\"order_id\":\"A\"}"}],
        "usage": {"input": 10, "output": 1},
    });
    let path = desk.path("/proposals");
    let ask = || desk.api.post_with_key(&path, "same", body.clone());
    let answers = futures_util::future::join_all((0..6).map(|_| ask())).await;
    for answer in &answers {
        assert_eq!(answer.0, 200, "{}", answer.1);
        assert_eq!(answer.1, answers[0].1);
    }
    // Without the key the request that comes second is told so.
    let again = desk.post("/proposals", body.clone()).await;
    problem(&again, 409, "consumed");
    assert_eq!(desk.state().await["attemptCount"], 1);

    // Also for a session whose id the server makes.
    let mut new = crate::governed::body("unnamed");
    new.as_object_mut().unwrap().remove("session_id");
    let path = "/api/v1/replay/sessions";
    let open = || desk.api.post_with_key(path, "open", new.clone());
    let opened = futures_util::future::join_all((0..6).map(|_| open())).await;
    for (status, answer) in &opened {
        assert!([200, 201].contains(status), "{answer}");
        assert_eq!(answer, &opened[0].1);
    }
}

#[tokio::test]
async fn members_beside_the_files_are_refused_all_at_once() {
    let server = Server::start().await;
    let mut new = body("strict");
    new["contracts"]["sesion"] = json!({"file": "session.yaml", "text": "x"});
    new["contracts"]["contracts"][0]["txt"] = json!("tool: x");
    new["contracts"]["contracts"][1]["text"] = json!("tool: assess_return\nside: read\n");
    let api = server.client();
    let refused = api.post("/api/v1/replay/sessions", new).await;
    problem(&refused, 422, "compilation_failed");
    let findings = refused.1["findings"].to_string();
    for named in ["contracts.sesion", "contracts.contracts.0.txt", "`side`"] {
        assert!(findings.contains(named), "{named}: {findings}");
    }
    assert_eq!(api.get("/api/v1/replay/sessions/strict").await.0, 404);
}

#[tokio::test]
async fn a_session_that_cannot_be_read_can_be_canceled() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "unreadable").await;
    let task = desk.state().await["protocol"]["task_id"].clone();
    let task = task.as_str().unwrap();
    server.store.forget_blobs();
    let after = server.reopened().await;
    let desk = desk.with(after.client());
    // Nothing is judged on what cannot be read.
    let request = desk.api.request("POST", &desk.path("/labels"));
    let answer = request.body(r#"{"label":"x"}"#).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 500);
    let cancel = format!("/v1/tasks/{task}/cancel");
    let (status, canceled) = desk.api.post(&cancel, json!({"reason": "enough"})).await;
    assert_eq!(
        (status, &canceled["status"]),
        (200, &json!("CANCELED")),
        "{canceled}"
    );
}

#[tokio::test]
async fn nobody_opens_a_session_weaker_than_the_operator_demands() {
    let server = Server::start().await;
    server.engine.set_demands(Demands {
        mode: MinimumMode::Shadow,
        blocks_unmatched: true,
        configured_contracts: false,
    });
    let api = server.client();
    let mut new = body("floor");
    for (member, word) in [("mode", "log-only"), ("unmatched_policy", "allow")] {
        new[member] = json!(word);
        let refused = api.post("/api/v1/replay/sessions", new.clone()).await;
        problem(&refused, 403, "weaker_than_demanded");
        assert_eq!(refused.1["param"], member, "{}", refused.1);
        new.as_object_mut().unwrap().remove(member);
    }
    new["mode"] = json!("shadow");
    assert_eq!(api.post("/api/v1/replay/sessions", new).await.0, 201);
    assert_eq!(
        api.post("/api/v1/replay/sessions", body("strong")).await.0,
        201
    );

    let server = Server::start().await;
    server.engine.set_demands(Demands {
        configured_contracts: true,
        ..Demands::default()
    });
    let refused = server
        .client()
        .post("/api/v1/replay/sessions", body("own"))
        .await;
    problem(&refused, 403, "weaker_than_demanded");
    assert_eq!(refused.1["param"], "contracts");
}

#[tokio::test]
async fn u4_the_receipt_lists_every_released_call_with_what_became_of_it() {
    let server = Server::start().await;
    let mut new = body("listed");
    new["contracts"] = contracts("", "");
    let desk = Desk::open_with(&server, new).await;
    desk.assessed(12_000).await;
    let failed = desk
        .propose(&[("n1", "send_note", json!({"text": "a"}))])
        .await;
    let mut report = receipt(&failed, json!({}));
    report["outcome"] = json!("error");
    report["error_code"] = json!("smtp");
    assert_eq!(desk.post("/receipts", report).await.0, 200);
    let blocked = desk.propose(&[("p0", "pay_back", payment(90_000))]).await;
    assert_eq!(blocked["status"], "blocked", "{blocked}");
    let open = desk.propose(&[("p1", "pay_back", payment(12_000))]).await;
    assert_eq!(open["status"], "allowed", "{open}");
    assert_eq!(desk.post("/kill", json!({"reason": "stop"})).await.0, 200);

    let task = desk.task().await;
    let id = task["receipt_id"].as_str().unwrap().to_owned();
    let (_, shown) = desk.api.get(&format!("/v1/receipts/{id}")).await;
    let calls = shown["side_effects"]["tool_calls"]
        .as_array()
        .unwrap()
        .clone();
    let calls: Vec<(&str, &str, &str)> = calls
        .iter()
        .map(|call| {
            let text = |name: &str| call[name].as_str().unwrap_or_default();
            (text("tool"), text("call_id"), text("status"))
        })
        .collect();
    assert_eq!(
        calls,
        [
            ("find_order", "c1", "succeeded"),
            ("assess_return", "c2", "succeeded"),
            ("send_note", "n1", "failed"),
            // Nobody said what became of it: it may have had its effect.
            ("pay_back", "p1", "canceled"),
        ],
        "{shown}"
    );
    let governance = &shown["metadata"]["governance"];
    assert_eq!(governance["allowed"], 4, "{governance}");
    assert_eq!(governance["blocked"], 1, "{governance}");
    let (_, verified) = desk
        .api
        .post(&format!("/v1/receipts/{id}/verify"), json!({}))
        .await;
    assert_eq!(verified["valid"], true, "{verified}");

    // The report that comes after the kill is refused, and kept beside the closed record.
    let late = desk.report(&open, json!({})).await;
    problem(&late, 410, "killed");
    assert_eq!(late.1["recorded"], true, "{}", late.1);
    let head = server.store_head();
    problem(&desk.report(&open, json!({})).await, 410, "killed");
    assert_eq!(server.store_head(), head, "once is enough");
    let session = desk.state().await["protocol"]["session_id"].clone();
    let path = format!("/v1/sessions/{}/messages", session.as_str().unwrap());
    let (_, messages) = desk.api.get(&path).await;
    let kept: Vec<&Value> = messages["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|message| message["metadata"].get("late_report"))
        .collect();
    assert_eq!(kept.len(), 1, "{messages}");
    assert_eq!(kept[0]["outcome"], "success");
    assert_eq!(kept[0]["call_id"], "p1");
    // What was reported before is answered as it was, also after the end.
    let mut known = receipt(&failed, json!({}));
    known["outcome"] = json!("error");
    known["error_code"] = json!("smtp");
    assert_eq!(desk.post("/receipts", known).await.0, 200);
    let (_, verified) = desk
        .api
        .post(&format!("/v1/receipts/{id}/verify"), json!({}))
        .await;
    assert_eq!(verified["valid"], true, "{verified}");
}

#[tokio::test]
async fn r35_what_is_larger_than_contracts_may_be_is_413() {
    let mut config = crate::fixture::config();
    config.body_bytes_max = 1 << 20;
    let server = Server::start_with(config).await;
    let api = server.client();
    let padded = format!("tool: a\nside_effect: read\n#{}\n", "x".repeat(256 * 1024));
    let large = json!({"contracts": {"contracts": [{"file": "a.yaml", "text": padded}]}});
    let (status, refused) = api.post("/api/v1/replay/sessions", large).await;
    assert_eq!(status, 413, "{refused}");
    let file = json!({"file": "a.yaml", "text": "tool: a\nside_effect: read\n"});
    let many = json!({"contracts": {"contracts": vec![file.clone(); 1_001]}});
    let (status, refused) = api.post("/api/v1/replay/sessions", many).await;
    assert_eq!(status, 413, "{refused}");
    let principal = json!({"name": "x".repeat(64 * 1024)});
    let new = json!({"contracts": {"contracts": [file]}, "principal": principal});
    let (status, refused) = api.post("/api/v1/replay/sessions", new).await;
    assert_eq!(status, 413, "{refused}");
}

#[tokio::test]
async fn a_plan_is_the_configured_set_that_names_the_agent() {
    let server = Server::start().await;
    let api = server.client();
    let path = "/api/v1/replay/plans?agent=return-desk";
    problem(&api.get(path).await, 404, "no_plan");
    let texts = |name: &str, agent: &str| {
        let file = |file: &str, text: String| domain::ContractText {
            file: file.to_owned(),
            text,
        };
        let tool = file("a.yaml", "tool: a\nside_effect: read\n".to_owned());
        let session = file(
            "session.yaml",
            format!("schema_version: \"1.0\"\nagent: {agent}\n"),
        );
        let files = domain::GovernedFiles {
            files: vec![tool],
            session: Some(session),
        };
        let compiled = runs::workflow::governed::Contracts::compile(&files).unwrap();
        domain::ContractTexts {
            name: name.to_owned(),
            sha256: compiled.digest(),
            files: files.files,
            session: files.session,
            principal: canon::Map::new(),
        }
    };
    let mut changed = texts("changed", "other");
    changed.sha256 = canon::sha256(b"something else");
    let sets = [
        texts("desk", "return-desk"),
        texts("b", "b"),
        texts("b2", "b"),
        changed,
    ];
    server.engine.set_contracts(sets);
    let (status, plan) = api.get(path).await;
    assert_eq!((status, &plan["name"]), (200, &json!("desk")), "{plan}");
    // What it names is enough to open a session.
    let new = json!({"agent": "return-desk", "compiled_digest": plan["compiled_digest"]});
    assert_eq!(api.post("/api/v1/replay/sessions", new).await.0, 201);
    problem(
        &api.get("/api/v1/replay/plans?agent=b").await,
        404,
        "several_plans",
    );
    let invalid = api.get("/api/v1/replay/plans?agent=other").await;
    problem(&invalid, 404, "APPROVED_ARTIFACT_INVALID");
    assert_eq!(api.get("/api/v1/replay/plans").await.0, 400);
}
