//! Governed sessions over HTTP: what is asked for is in force or refused, and what cannot be checked is not taken.

use engine::{Demands, Least};
use serde_json::{Value, json};

use crate::fixture::{APPROVER_KEY, Got, Server};
use crate::governed::{Desk, body, problem};

const SESSIONS: &str = "/api/v1/replay/sessions";

fn with(id: &str, more: Value) -> Value {
    let mut body = body(id);
    let members = body.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    body
}

/// A session with one tool.
async fn paying(server: &Server, id: &str) -> Desk {
    let contract = "tool: pay\nside_effect: write\nargument_value_invariants: [ { path: \"$.amount\", lte: 100 } ]\n";
    let files = json!([{"file": "pay.yaml", "text": contract}]);
    let new = json!({"session_id": id, "contracts": {"contracts": files}});
    Desk::open_with(server, new).await
}

async fn prepared(desk: &Desk, more: Value) -> Got {
    let version = desk.state().await["stateVersion"].clone();
    let mut body = json!({"expected_state_version": version, "provider": "openai", "model": "gpt-x",
        "offered_tools": [{"name": "pay", "schema": {}}]});
    let members = body.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    desk.post("/preflight", body).await
}

/// Proposes one call with everything else as it should be.
async fn proposed(desk: &Desk, more: Value) -> Got {
    let (status, ready) = prepared(desk, json!({})).await;
    assert_eq!(status, 200, "{ready}");
    let mut body = json!({"prepared_request_id": ready["prepared_request_id"], "finish_reason": "tool_calls",
        "tool_calls": [{"id": "c", "name": "pay", "arguments": "{\"amount\":1}"}]});
    let members = body.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    desk.post("/proposals", body).await
}

#[tokio::test]
async fn a_second_opener_gets_what_it_asks_for_or_is_refused_by_name() {
    let server = Server::start().await;
    let api = server.client();
    let first = with("twice", json!({"mode": "shadow", "labels": ["a", "b"]}));
    let (status, opened) = api.post(SESSIONS, first.clone()).await;
    assert_eq!(
        (status, &opened["mode"]),
        (201, &json!("shadow")),
        "{opened}"
    );
    let mut bare = first.clone();
    for member in ["mode", "labels", "agent", "pricing", "principal"] {
        bare.as_object_mut().unwrap().remove(member);
    }
    for same in [
        first.clone(),
        bare,
        with(
            "twice",
            json!({"mode": "shadow", "labels": ["b"], "gate": "reject_all"}),
        ),
    ] {
        let (status, again) = api.post(SESSIONS, same).await;
        assert_eq!((status, &again["mode"]), (200, &json!("shadow")), "{again}");
    }
    for (member, value) in [
        ("mode", json!("enforce")),
        ("labels", json!(["a", "c"])),
        ("principal", json!({"role": "desk", "trainee": true})),
        ("gate", json!("strip_blocked")),
        ("unmatched_policy", json!("allow")),
        ("capture_level", json!("full")),
        (
            "pricing",
            json!({"openai/gpt-x": {"input": "1", "output": "3"}}),
        ),
        (
            "provider_constraints",
            json!({"block_incompatible": ["openai/*"]}),
        ),
    ] {
        let mut other = first.clone();
        other[member] = value;
        let refused = api.post(SESSIONS, other).await;
        problem(&refused, 409, "invalid_option");
        assert_eq!(refused.1["differs"], json!([member]), "{}", refused.1);
    }
}

#[tokio::test]
async fn what_the_operator_demands_binds_sessions_that_were_open_before() {
    let server = Server::start().await;
    let weak = Desk::open_with(&server, with("weak", json!({"mode": "shadow"}))).await;
    let strong = Desk::open(&server, "strong").await;
    let ready = weak.preflight().await;
    server.engine.set_demands(Demands {
        mode: Least::Enforce,
        ..Demands::default()
    });
    let refused = weak
        .propose_as(&ready, &[("c", "send_note", json!({"text": "x"}))])
        .await;
    problem(&refused, 403, "weaker_than_demanded");
    let version = weak.state().await["stateVersion"].clone();
    let refused = weak.preflight_at(&version).await;
    problem(&refused, 403, "weaker_than_demanded");
    let mut again = body("weak");
    again.as_object_mut().unwrap().remove("mode");
    let refused = weak.api.post(SESSIONS, again).await;
    problem(&refused, 403, "weaker_than_demanded");
    // It can still be ended, and others go on.
    assert_eq!(weak.post("/restore", json!({})).await.0, 200);
    strong.preflight().await;
}

#[tokio::test]
async fn a_schema_is_read_where_it_stands_and_demanded_where_it_is_checked() {
    let server = Server::start().await;
    let desk = paying(&server, "schemas").await;
    let missing = prepared(&desk, json!({"offered_tools": ["pay"]})).await;
    problem(&missing, 422, "schema_required");
    assert_eq!(missing.1["tools"], json!(["pay"]), "{}", missing.1);
    let names = json!({"offered_tools": ["pay"], "request": {"tools": ["pay"]}});
    problem(&prepared(&desk, names).await, 422, "schema_required");
    let schema = json!({"type": "object", "properties": {"amount": {"maximum": 10}}});
    for tool in [
        json!({"type": "function", "function": {"name": "pay", "parameters": schema}}),
        json!({"name": "pay", "input_schema": schema}),
        json!({"type": "function", "name": "pay", "parameters": schema}),
    ] {
        let more = json!({"offered_tools": ["pay"], "request": {"tools": [tool]}});
        let (status, ready) = prepared(&desk, more).await;
        assert_eq!(status, 200, "{ready}");
        let (_, judged) = desk
            .propose_as(&ready, &[("c", "pay", json!({"amount": 50}))])
            .await;
        let verdict = &judged["verdicts"][0];
        assert_eq!(verdict["reason"], "argument_value_mismatch", "{judged}");
    }
    // A contract that does not check the schema needs none.
    let contract = "tool: pay\nside_effect: write\nschema_derived: false\n";
    let files = json!([{"file": "pay.yaml", "text": contract}]);
    let new = json!({"session_id": "free", "contracts": {"contracts": files}});
    let desk = Desk::open_with(&server, new).await;
    let ready = prepared(&desk, json!({"offered_tools": ["pay"]})).await;
    assert_eq!(ready.0, 200, "{}", ready.1);
}

#[tokio::test]
async fn r15_an_answer_that_is_not_whole_is_blocked_in_the_words_of_every_provider() {
    let server = Server::start().await;
    let desk = paying(&server, "words").await;
    for word in [
        "max_tokens",
        "LENGTH",
        "model_context_window_exceeded",
        "max_output_tokens",
        "refusal",
        "content_filter",
    ] {
        let (status, judged) = proposed(&desk, json!({"finish_reason": word})).await;
        assert_eq!(status, 200, "{judged}");
        let reason = &judged["verdicts"][0]["reason"];
        assert_eq!(reason, "response_format_invalid", "{word}: {judged}");
    }
    let (status, answer) = proposed(&desk, json!({"finish_reason": "half_done"})).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("finish_reason"), "{answer}");
    let (_, judged) = proposed(&desk, json!({"finish_reason": "tool_use"})).await;
    assert_eq!(judged["status"], "allowed", "{judged}");
}

#[tokio::test]
async fn r13_arguments_that_come_as_an_object_are_judged_exactly_or_refused() {
    let server = Server::start().await;
    let desk = paying(&server, "exact").await;
    for number in ["100.00000000000000000001", "1e-400"] {
        let (_, ready) = prepared(&desk, json!({})).await;
        let id = ready["prepared_request_id"].as_str().unwrap();
        let text = format!(
            r#"{{"prepared_request_id":"{id}","finish_reason":"tool_calls","tool_calls":[{{"id":"c","name":"pay","arguments":{{"amount":{number}}}}}]}}"#
        );
        let request = desk.api.request("POST", &desk.path("/proposals"));
        let request = request.header("content-type", "application/json");
        let answer = request.body(text).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 400);
        let answer = answer.text().await.unwrap();
        assert!(answer.contains(number), "{answer}");
    }
    let calls = json!([{"id": "c", "name": "pay", "arguments": {"amount": 99.5}}]);
    let (_, judged) = proposed(&desk, json!({"tool_calls": calls})).await;
    assert_eq!(judged["status"], "allowed", "{judged}");
}

#[tokio::test]
async fn a_misspelt_member_is_refused_by_name() {
    let server = Server::start().await;
    let api = server.client();
    let (status, answer) = api
        .post(SESSIONS, with("misspelt", json!({"lables": ["mnpi"]})))
        .await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("lables"), "{answer}");
    let desk = paying(&server, "spelt").await;
    let (status, answer) = proposed(&desk, json!({"finishReason": "length"})).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("finishReason"), "{answer}");
    let bea = desk.with(server.client_with(APPROVER_KEY));
    let decision = json!({"decision": "approve", "decided_by": "bea", "only": ["c"]});
    let (status, answer) = bea.post("/proposals/proposal_1/approve", decision).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("only"), "{answer}");
}
