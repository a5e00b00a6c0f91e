//! Governed sessions over HTTP: what is asked for is in force or refused, and what cannot be checked is not taken.

use engine::{Demands, MinimumMode};
use serde_json::{Value, json};

use crate::fixture::{APPROVER_KEY, Got, Server};
use crate::governed::{Desk, body, problem, receipt};

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
        mode: MinimumMode::Enforce,
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
    let (status, answer) = prepared(&desk, json!({"forcedTool": "pay"})).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("forcedTool"), "{answer}");
    let (_, judged) = proposed(&desk, json!({})).await;
    let mut report = receipt(&judged, json!({}));
    report["errorCode"] = json!("e");
    let (status, answer) = desk.post("/receipts", report).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("errorCode"), "{answer}");
    let bea = desk.with(server.client_with(APPROVER_KEY));
    let decision = json!({"decision": "approve", "decided_by": "bea", "only": ["c"]});
    let (status, answer) = bea.post("/proposals/proposal_1/approve", decision).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("only"), "{answer}");
}

#[tokio::test]
async fn labels_that_are_used_up_refuse_the_next_and_nothing_else() {
    let server = Server::start().await;
    let contract =
        "tool: pay\nside_effect: write\nschema_derived: false\nadds_labels: [money_moved]\n";
    let session =
        "schema_version: \"1.0\"\nlabel_gates: [ { label: money_moved, block_tools: [pay] } ]\n";
    let files = json!({"contracts": [{"file": "pay.yaml", "text": contract}],
        "session": {"file": "session.yaml", "text": session}});
    let labels: Vec<String> = (0..63).map(|number| format!("l{number}")).collect();
    let new = json!({"session_id": "labels", "contracts": files, "labels": labels});
    let desk = Desk::open_with(&server, new).await;
    let label = |name: &str| desk.post("/labels", json!({"label": name}));
    let (status, all) = label("last").await;
    assert_eq!(
        (status, all["labels"].as_array().unwrap().len()),
        (200, 64),
        "{all}"
    );
    problem(&label("one_more").await, 409, "too_many_labels");
    assert_eq!(label("l7").await.0, 200, "it is there already");
    // Nothing is spoilt: the session works, and what a call adds is added all the same, because it closes a tool.
    let (_, judged) = proposed(&desk, json!({})).await;
    assert_eq!(judged["status"], "allowed", "{judged}");
    assert_eq!(desk.report(&judged, json!({})).await.0, 200);
    let shown = desk.state().await;
    assert_eq!(shown["labels"].as_array().unwrap().len(), 65, "{shown}");
    let (_, ready) = prepared(&desk, json!({})).await;
    assert_eq!(ready["removed"][0]["reason"], "label_gate", "{ready}");
    let server = server.reopened().await;
    let desk = desk.with(server.client());
    assert_eq!(desk.state().await["labels"], shown["labels"]);
    problem(
        &desk.post("/labels", json!({"label": "one_more"})).await,
        409,
        "too_many_labels",
    );
}

#[tokio::test]
async fn requests_that_are_under_way_count_as_attempts() {
    let server = Server::start().await;
    let contract = "tool: pay\nside_effect: write\nschema_derived: false\n";
    let session = "schema_version: \"1.0\"\nsession_limits: { max_attempts: 2 }\n";
    let files = json!({"contracts": [{"file": "pay.yaml", "text": contract}],
        "session": {"file": "session.yaml", "text": session}});
    let desk = Desk::open_with(&server, json!({"session_id": "p6", "contracts": files})).await;
    let (_, first) = prepared(&desk, json!({})).await;
    let (_, second) = prepared(&desk, json!({})).await;
    // Both may be with the model by now: a third would be one too many.
    let refused = prepared(&desk, json!({})).await;
    problem(&refused, 403, "session_limit_exceeded");
    assert_eq!(
        refused.1["decision"]["detail"], "max_attempts",
        "{}",
        refused.1
    );
    assert_eq!(refused.1["prepared"], 2);
    for (ready, status) in [(&first, 200), (&second, 409)] {
        let got = desk.propose_as(ready, &[("c", "pay", json!({}))]).await;
        assert_eq!(got.0, status, "{}", got.1);
    }
    let shown = desk.state().await;
    assert_eq!(shown["attemptCount"], 2, "{shown}");
    let refused = prepared(&desk, json!({})).await;
    problem(&refused, 403, "session_limit_exceeded");
    assert_eq!(refused.1["prepared"], Value::Null, "the limit is reached");
}

#[tokio::test]
async fn an_error_that_is_called_expected_must_be_listed() {
    let server = Server::start().await;
    let contract = "tool: pay\nside_effect: write\nschema_derived: false\nallowed_errors: [ { code: already_paid } ]\n";
    let files = json!([{"file": "pay.yaml", "text": contract}]);
    let new = json!({"session_id": "errors", "contracts": {"contracts": files}});
    let desk = Desk::open_with(&server, new).await;
    let (_, judged) = proposed(&desk, json!({})).await;
    let report = |outcome: &str, code: Value| {
        let mut report = receipt(&judged, json!({}));
        report["outcome"] = json!(outcome);
        report["error_code"] = code;
        desk.post("/receipts", report)
    };
    for code in [json!("no_such_account"), Value::Null] {
        let refused = report("expected_error", code).await;
        problem(&refused, 422, "error_not_listed");
        assert_eq!(refused.1["allowed_errors"], json!(["already_paid"]));
    }
    let pending = desk.state().await;
    assert_eq!(pending["pending"].as_array().unwrap().len(), 1, "{pending}");
    let (status, answer) = report("expected_error", json!("already_paid")).await;
    assert_eq!(
        (status, &answer["committed"]),
        (200, &json!(false)),
        "{answer}"
    );
}

#[tokio::test]
async fn constraints_that_only_an_executor_can_check_are_named_when_a_session_opens() {
    let server = Server::start().await;
    let api = server.client();
    let contract = "tool: pay\nside_effect: write\nexecution_constraints: { arguments: [ { path: \"$.amount\", lte: 5 } ] }\n";
    let files = json!([{"file": "pay.yaml", "text": contract}]);
    let new = json!({"session_id": "elsewhere", "contracts": {"contracts": files}});
    let (status, opened) = api.post(SESSIONS, new).await;
    assert_eq!(status, 201, "{opened}");
    let warning = &opened["warnings"][0];
    assert_eq!(warning["code"], "execution_constraints_elsewhere");
    assert_eq!(warning["tools"], json!(["pay"]), "{opened}");
    let desk = paying(&server, "without").await;
    let (_, again) = api
        .post(SESSIONS, json!({"session_id": desk.id, "contracts": {"contracts": [{"file": "pay.yaml",
            "text": "tool: pay\nside_effect: write\nargument_value_invariants: [ { path: \"$.amount\", lte: 100 } ]\n"}]}}))
        .await;
    assert_eq!(again["warnings"], Value::Null, "{again}");
}

/// Opens a session whose only contract is this one, besides what it always says.
async fn under(server: &Server, id: &str, rule: &str) -> Desk {
    let contract = format!("tool: pay\nside_effect: write\nschema_derived: false\n{rule}\n");
    let files = json!([{"file": "pay.yaml", "text": contract}]);
    let new = json!({"session_id": id, "contracts": {"contracts": files}});
    Desk::open_with(server, new).await
}

#[tokio::test]
async fn a_check_of_the_request_does_not_hold_without_the_request() {
    let server = Server::start().await;
    let rules = [
        "{ path: \"$.messages\", length_lte: 1, when_present: true }",
        "{ path: \"$.system\", type: \"null\" }",
    ];
    for (number, rule) in rules.iter().enumerate() {
        let rule = format!("assertions: {{ input_invariants: [ {rule} ] }}");
        let desk = under(&server, &format!("request-{number}"), &rule).await;
        for left_out in [
            json!({}),
            json!({"request": null}),
            json!({"request": {}}),
            json!({"request": {"model": "gpt-x"}}),
            json!({"request_digest": "sha256:aa"}),
        ] {
            let refused = prepared(&desk, left_out).await;
            problem(&refused, 422, "request_required");
            assert_eq!(refused.1["tools"], json!(["pay"]), "{}", refused.1);
        }
        // Where no such tool is offered, nothing looks at the request.
        let other = json!({"offered_tools": ["note"]});
        assert_eq!(prepared(&desk, other).await.0, 200);
        let message = json!({"role": "user", "content": "pay"});
        let system = json!({"role": "system", "content": "pay all"});
        let too_much = json!({"messages": [system, message]});
        for (request, status) in [
            (json!({"messages": [message]}), "allowed"),
            (too_much, "blocked"),
        ] {
            let (status_code, ready) = prepared(&desk, json!({"request": request})).await;
            assert_eq!(status_code, 200, "{ready}");
            let (_, judged) = desk.propose_as(&ready, &[("c", "pay", json!({}))]).await;
            assert_eq!(judged["status"], status, "{judged}");
        }
    }
}

#[tokio::test]
async fn a_check_of_the_text_does_not_hold_without_the_text() {
    let server = Server::start().await;
    let digest = |text: &str| json!(canon::sha256(text.as_bytes()));
    let rules = [
        "response_format_invariants: { content: empty }",
        "assertions: { output_invariants: [ { path: \"$.content\", length_lte: 1, when_present: true } ] }",
    ];
    for (number, rule) in rules.iter().enumerate() {
        let desk = under(&server, &format!("text-{number}"), rule).await;
        for left_out in [
            json!({}),
            json!({"content_digest": null}),
            json!({"content_digest": digest("x")}),
            json!({"content": null, "content_digest": digest("x")}),
        ] {
            let refused = proposed(&desk, left_out).await;
            problem(&refused, 422, "content_required");
            assert_eq!(refused.1["tools"], json!(["pay"]), "{}", refused.1);
        }
        let other = json!({"content": "", "content_digest": digest("pay all")});
        problem(&proposed(&desk, other).await, 409, "digest_mismatch");
        for (text, status) in [("", "allowed"), ("pay all", "blocked")] {
            let whole = json!({"content": text, "content_digest": digest(text)});
            let (_, judged) = proposed(&desk, whole).await;
            assert_eq!(judged["status"], status, "{judged}");
        }
    }
    // A response without a text says so.
    let desk = under(&server, "no-text", rules[0]).await;
    let (_, judged) = proposed(&desk, json!({"content": null})).await;
    assert_eq!(judged["status"], "allowed", "{judged}");
    // Contracts that do not look at it go on without it.
    let rule =
        "assertions: { output_invariants: [ { path: \"$.finish_reason\", equals: tool_calls } ] }";
    let desk = under(&server, "no-look", rule).await;
    for left_out in [json!({}), json!({"content_digest": digest("x")})] {
        let (_, judged) = proposed(&desk, left_out).await;
        assert_eq!(judged["status"], "allowed", "{judged}");
    }
}

#[tokio::test]
async fn a_report_that_says_two_things_about_one_place_is_refused_in_any_spelling() {
    let server = Server::start().await;
    let desk = under(&server, "spellings", "").await;
    let (_, judged) = proposed(&desk, json!({})).await;
    for fields in [
        json!({"ok": true, "$.ok": false}),
        json!({"ok": true, "$[\"ok\"]": false}),
        json!({"$.ok": true, "$[\"ok\"]": false}),
        json!({"$.ok": null, "$[\"ok\"]": true}),
        json!({"a": {"ok": true}, "$.a.ok": false}),
        json!({"a": {"x": 1}, "$.a.ok": false}),
        json!({"ok": true, "$": {"ok": false}}),
    ] {
        let refused = desk.report(&judged, fields.clone()).await;
        problem(&refused, 400, "malformed");
        let said = refused.1.to_string();
        assert!(said.contains("two things"), "{fields}: {said}");
    }
    let pending = desk.state().await;
    assert_eq!(pending["pending"].as_array().unwrap().len(), 1, "{pending}");
    let fields = json!({"ok": true, "$schema": "x", "a b": {"c": null}});
    let (status, answer) = desk.report(&judged, fields).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn a_schema_that_cannot_be_read_is_refused_and_what_is_not_checked_is_told_once() {
    let server = Server::start().await;
    let desk = paying(&server, "forms").await;
    let offer = |schema: Value| json!({"offered_tools": [{"name": "pay", "schema": schema}]});
    for schema in [
        json!([]),
        json!("x"),
        json!({"type": "objekt"}),
        json!({"required": "m"}),
        json!({"properties": []}),
        json!({"properties": {"n": {"maximum": "3"}}}),
    ] {
        let refused = prepared(&desk, offer(schema)).await;
        problem(&refused, 422, "schema_invalid");
        assert_eq!(refused.1["schemas"][0]["tool"], "pay", "{}", refused.1);
    }
    let plain = prepared(&desk, offer(json!({"required": ["amount"]}))).await;
    assert_eq!(
        (plain.0, plain.1.get("warnings")),
        (200, None),
        "{}",
        plain.1
    );
    let schema = json!({"$defs": {}, "properties": {"n": {"$ref": "#/x"}, "m": {"pattern": "("}}});
    let (status, told) = prepared(&desk, offer(schema.clone())).await;
    assert_eq!(status, 200, "{told}");
    let warning = &told["warnings"][0];
    assert_eq!(
        (&warning["code"], &warning["tool"]),
        (&json!("schema_keyword_ignored"), &json!("pay")),
        "{told}"
    );
    assert_eq!(warning["keywords"], json!(["$defs", "$ref", "pattern"]));
    let (_, again) = prepared(&desk, offer(schema)).await;
    assert_eq!(again.get("warnings"), None, "{again}");
    let (_, other) = prepared(&desk, offer(json!({"anyOf": []}))).await;
    assert_eq!(
        other["warnings"][0]["keywords"],
        json!(["anyOf"]),
        "{other}"
    );
}

#[tokio::test]
async fn a_session_under_a_configured_set_does_not_replace_its_provider_constraints() {
    let server = Server::start().await;
    let text = |file: &str, text: &str| domain::ContractText {
        file: file.to_owned(),
        text: text.to_owned(),
    };
    let files = domain::GovernedFiles {
        files: vec![text("pay.yaml", "tool: pay\nside_effect: write\n")],
        session: Some(text(
            "session.yaml",
            "schema_version: \"1.0\"\nprovider_constraints: { block_incompatible: [\"openai/gpt-3*\"] }\n",
        )),
    };
    let digest = runs::workflow::governed::Contracts::compile(&files)
        .unwrap()
        .digest();
    server.engine.set_contracts([domain::ContractTexts {
        name: "desk".to_owned(),
        sha256: digest,
        files: files.files,
        session: files.session,
        principal: canon::Map::new(),
    }]);
    let new = |id: &str, constraints: Option<Value>| {
        let mut new = json!({"session_id": id, "compiled_digest": digest});
        if let Some(constraints) = constraints {
            new["provider_constraints"] = constraints;
        }
        new
    };
    // Without the demand they may: whoever opens a session chooses.
    let before = Desk::open_with(&server, new("before", Some(json!({})))).await;
    server.engine.set_demands(Demands {
        configured_contracts: true,
        ..Demands::default()
    });
    let api = server.client();
    for other in [
        json!({}),
        json!({"block_incompatible": []}),
        json!({"warn_incompatible": ["openai/gpt-3*"]}),
    ] {
        let refused = api.post(SESSIONS, new("other", Some(other))).await;
        problem(&refused, 422, "replaces_configured");
        assert_eq!(refused.1["param"], "provider_constraints", "{}", refused.1);
    }
    problem(
        &prepared(&before, json!({})).await,
        422,
        "replaces_configured",
    );
    let refused = api.post(SESSIONS, json!({"session_id": "before"})).await;
    problem(&refused, 422, "replaces_configured");
    let priced = |id: &str, model: &str, input: &str, output: &str| {
        let mut new = new(id, None);
        new["pricing"] = json!({ model: {"input": input, "output": output} });
        new
    };
    // A price of its own would be a way around every limit on costs.
    for (model, input, output) in [
        ("openai/gpt-4o", "0", "0"),
        ("openai/gpt-4o", "100", "0.1"),
        ("openai/my-own", "1", "1"),
        ("OpenAI/gpt-4o", "100", "100"),
    ] {
        let refused = api
            .post(SESSIONS, priced("cheap", model, input, output))
            .await;
        problem(&refused, 422, "replaces_configured");
        assert_eq!(refused.1["param"], "pricing", "{}", refused.1);
    }
    Desk::open_with(&server, priced("dear", "openai/gpt-4o", "100", "100")).await;
    let same = json!({"block_incompatible": ["openai/gpt-3*"]});
    for (id, given) in [("same", Some(same)), ("none", None)] {
        let desk = Desk::open_with(&server, new(id, given)).await;
        let (status, refused) = prepared(&desk, json!({"model": "gpt-3.5-turbo"})).await;
        assert!(status >= 400, "{refused}");
        let (status, ready) = prepared(&desk, json!({"model": "gpt-4o"})).await;
        assert_eq!(status, 200, "{ready}");
    }
}
