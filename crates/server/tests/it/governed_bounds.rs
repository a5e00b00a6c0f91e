//! Governed sessions over HTTP: what patterns may cost, what rules see of a request, and the Workspace that a session begins in.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::{Got, Server};
use crate::governed::{Desk, body, problem};

const SESSIONS: &str = "/api/v1/replay/sessions";

fn one_tool(id: &str, contract: &str) -> Value {
    let files = json!([{"file": "pay.yaml", "text": contract}]);
    json!({"session_id": id, "contracts": {"contracts": files}})
}

async fn prepared(desk: &Desk, more: Value) -> Got {
    let version = desk.state().await["stateVersion"].clone();
    let mut body = json!({"expected_state_version": version, "provider": "openai", "model": "gpt-x",
        "offered_tools": [{"name": "pay", "schema": {}}]});
    let members = body.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    desk.post("/preflight", body).await
}

async fn proposed(desk: &Desk, ready: &Value, arguments: &Value) -> Value {
    let body = json!({"prepared_request_id": ready["prepared_request_id"], "finish_reason": "tool_calls",
        "tool_calls": [{"id": "c", "name": "pay", "arguments": arguments.to_string()}]});
    let (status, proposal) = desk.post("/proposals", body).await;
    assert_eq!(status, 200, "{proposal}");
    proposal
}

#[tokio::test]
async fn what_is_begun_in_a_workspace_that_the_query_names_is_in_it() {
    let server = Server::start().await;
    let api = server.client();
    let other = json!({"name": "b", "root": "/"});
    let (_, other) = api.post("/v1/workspaces", other).await;
    let other = other["id"].as_str().unwrap();
    let path = format!("{SESSIONS}?in_workspace={other}");
    let (status, opened) = api.post(&path, body("there")).await;
    assert_eq!(status, 201, "{opened}");
    assert_eq!(opened["protocol"]["workspace_id"], other);
    assert_eq!(api.get(&format!("{SESSIONS}/there")).await.0, 404);
    let there = format!("{SESSIONS}/there?in_workspace={other}");
    assert_eq!(api.get(&there).await.0, 200);

    let source = "schema_version: \"1.0\"\nworkflow: w\nroles: [{name: desk, session_contract: session.yaml}]\n";
    let workflow = json!({"workflow_id": "wf-there", "source": {"file": "w.yaml", "text": source}});
    let path = format!("/api/v1/replay/workflows?in_workspace={other}");
    let (status, begun) = api.post(&path, workflow.clone()).await;
    assert_eq!(status, 201, "{begun}");
    assert_eq!(api.get("/api/v1/replay/workflows/wf-there").await.0, 404);

    let mut twice = body("twice");
    twice["workspace_id"] = json!("workspace_local");
    let path = format!("{SESSIONS}?in_workspace={other}");
    let refused = api.post(&path, twice.clone()).await;
    assert_eq!(refused.0, 400, "{}", refused.1);
    twice["workspace_id"] = json!(other);
    assert_eq!(api.post(&path, twice).await.0, 201);
    let unknown = "?in_workspace=workspace_0000000000000000000000nope";
    for path in [SESSIONS, "/api/v1/replay/workflows"] {
        let body = match path == SESSIONS {
            true => body("nowhere"),
            false => workflow.clone(),
        };
        let refused = api.post(&format!("{path}{unknown}"), body).await;
        assert_eq!(refused.0, 404, "{}", refused.1);
    }
}

#[tokio::test]
async fn patterns_that_cost_too_much_together_are_refused_by_file() {
    let server = Server::start().await;
    let api = server.client();
    let mut contract = "tool: pay\nside_effect: write\nargument_value_invariants:\n".to_owned();
    for index in 0..200 {
        contract.push_str(&format!(
            "  - {{path: \"$.x\", regex: \"\\\\w{{20}}z{index}\"}}\n"
        ));
    }
    let began = Instant::now();
    let refused = api.post(SESSIONS, one_tool("large", &contract)).await;
    problem(&refused, 422, "compilation_failed");
    let findings = refused.1["findings"].to_string();
    assert!(findings.contains("pay.yaml:"), "{findings}");
    assert!(findings.contains("too large together"), "{findings}");
    assert!(began.elapsed() < Duration::from_secs(20));

    let desk = Desk::open_with(
        &server,
        one_tool("schemas", "tool: pay\nside_effect: write\n"),
    )
    .await;
    let names = (0..100).map(|index| {
        (
            format!("x{index}"),
            json!({"pattern": format!("\\w{{20}}z{index}")}),
        )
    });
    let properties: serde_json::Map<String, Value> = names.collect();
    let schema = json!({"type": "object", "properties": properties});
    let offered = json!({"offered_tools": [{"name": "pay", "schema": schema}]});
    let refused = prepared(&desk, offered).await;
    problem(&refused, 422, "schema_invalid");
    let said = refused.1["schemas"].to_string();
    assert!(
        said.contains("$.x") && said.contains("too large together"),
        "{said}"
    );
}

#[tokio::test]
async fn a_text_that_a_pattern_would_look_at_for_long_is_refused_unread() {
    let server = Server::start().await;
    let contract = "tool: pay\nside_effect: write\nargument_value_invariants: [{path: \"$.x\", regex: \"[ab]*a[ab]{480}c|b\"}]\n";
    let desk = Desk::open_with(&server, one_tool("long", contract)).await;
    let (_, ready) = prepared(&desk, json!({})).await;
    let proposal = proposed(&desk, &ready, &json!({"x": "ab"})).await;
    assert_eq!(proposal["status"], "allowed", "{proposal}");

    let desk = Desk::open_with(&server, one_tool("longer", contract)).await;
    let (_, ready) = prepared(&desk, json!({})).await;
    let began = Instant::now();
    let proposal = proposed(&desk, &ready, &json!({"x": "ab".repeat(25_000)})).await;
    assert_eq!(proposal["status"], "blocked", "{proposal}");
    assert_eq!(proposal["verdicts"][0]["reason"], "argument_value_mismatch");
    assert_eq!(
        proposal["verdicts"][0]["detail"], "too_costly",
        "{proposal}"
    );
    assert!(began.elapsed() < Duration::from_secs(20));

    // The same from the schema that the tool is offered with.
    let desk = Desk::open_with(
        &server,
        one_tool("offered", "tool: pay\nside_effect: write\n"),
    )
    .await;
    let schema = json!({"properties": {"x": {"pattern": "[ab]*a[ab]{480}c|b"}}});
    let (_, ready) = prepared(
        &desk,
        json!({"offered_tools": [{"name": "pay", "schema": schema}]}),
    )
    .await;
    let proposal = proposed(&desk, &ready, &json!({"x": "ab".repeat(25_000)})).await;
    assert_eq!(
        proposal["verdicts"][0]["detail"], "too_costly",
        "{proposal}"
    );
}

/// Proposes a call of a tool that demands something of the request, and says whether it was allowed.
async fn allowed(server: &Server, id: &str, demands: &str, more: Value) -> Result<bool, Value> {
    let contract =
        format!("tool: pay\nside_effect: read\nassertions: {{input_invariants: [{demands}]}}\n");
    let desk = Desk::open_with(server, one_tool(id, &contract)).await;
    let (status, ready) = prepared(&desk, more).await;
    if status != 200 {
        return Err(ready);
    }
    let proposal = proposed(&desk, &ready, &json!({})).await;
    Ok(proposal["status"] == "allowed")
}

#[tokio::test]
async fn rules_see_a_request_as_one_shape_whoever_reads_it() {
    let server = Server::start().await;
    let desk = r#"{path: "$.system", equals: "desk"}"#;
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let parts = json!([{"type": "text", "text": "desk"}]);
    let anthropic = |request: Value| json!({"provider": "anthropic", "request": request});
    let function =
        |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {}}});
    let cases = [
        (
            desk,
            json!({"request": {"messages": [message("system", "desk")]}}),
            true,
        ),
        (
            desk,
            json!({"request": {"messages": [message("developer", "desk")]}}),
            true,
        ),
        (
            desk,
            json!({"request": {"messages": [message("system", "evil")]}}),
            false,
        ),
        (
            desk,
            json!({"request": {"system": "desk", "messages": [message("system", "evil")]}}),
            false,
        ),
        (
            desk,
            json!({"request": {"system": "desk", "messages": []}}),
            false,
        ),
        (
            desk,
            json!({"request": {"instructions": "desk", "input": "hello"}}),
            true,
        ),
        (
            desk,
            anthropic(json!({"system": parts, "messages": []})),
            true,
        ),
        (
            desk,
            anthropic(json!({"system": "desk", "messages": []})),
            true,
        ),
        (
            desk,
            anthropic(json!({"system": "evil", "messages": []})),
            false,
        ),
        // As a wrapped client sends it.
        (
            desk,
            json!({"request": {"provider": "openai", "model": "gpt-x", "system": "desk", "messages": [], "tools": ["pay"]}}),
            true,
        ),
        (
            r#"{path: "$.messages", length_lte: 2}"#,
            json!({"request": {"input": [1, 2, 3]}}),
            false,
        ),
        (
            r#"{path: "$.messages[0].content", equals: "ok"}"#,
            json!({"request": {"input": "ok"}}),
            true,
        ),
        (
            r#"{path: "$.tools[0]", equals: "pay"}"#,
            json!({"request": {"messages": [], "tools": [function("pay")]}}),
            true,
        ),
        (
            r#"{path: "$.tools", length_lte: 1}"#,
            json!({"request": {"messages": [], "tools": [function("pay"), function("b")]}}),
            false,
        ),
        (
            r#"{path: "$.temperature", exists: true}"#,
            json!({"request": {"messages": [], "temperature": 1}}),
            false,
        ),
    ];
    for (index, (demands, more, expected)) in cases.into_iter().enumerate() {
        let shown = format!("{demands} {more}");
        let found = allowed(&server, &format!("seen-{index}"), demands, more).await;
        assert_eq!(found, Ok(expected), "{shown}");
    }
    let refused = [
        ("n", json!({"messages": [], "n": 2})),
        ("functions", json!({"messages": [], "functions": []})),
        (
            "instructions",
            json!({"messages": [], "instructions": "evil"}),
        ),
        ("input", json!({"messages": [], "input": "evil"})),
        ("background", json!({"input": "x", "background": true})),
        ("prompt", json!({"input": "x", "prompt": {"id": "p"}})),
        (
            "previous_response_id",
            json!({"input": "x", "previous_response_id": "resp_1"}),
        ),
    ];
    for (index, (member, request)) in refused.into_iter().enumerate() {
        let id = format!("refused-{index}");
        let refused = allowed(&server, &id, desk, json!({"request": request})).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused["code"], "unsupported_request", "{refused}");
        assert_eq!(refused["member"], member, "{refused}");
    }
    let hosted = json!({"request": {"messages": [], "tools": [{"type": "mcp", "server_label": "x", "server_url": "u"}]}});
    let refused = allowed(&server, "hosted", desk, hosted).await.unwrap_err();
    assert_eq!(refused["code"], "unsupported_request", "{refused}");
    let other = json!({"provider": "acme", "request": {"messages": []}});
    let refused = allowed(&server, "other", desk, other).await.unwrap_err();
    assert_eq!(refused["code"], "provider_unknown", "{refused}");
    let refused = allowed(&server, "list", desk, json!({"request": [1]})).await;
    assert_eq!(refused.unwrap_err()["param"], "request");
}
