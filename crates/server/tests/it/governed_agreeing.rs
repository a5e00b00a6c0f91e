//! Governed sessions over HTTP: what is said in two places agrees, and whoever decides is known.

use serde_json::{Value, json};

use crate::fixture::{APPROVER_KEY, Got, Server, key};
use crate::governed::{Desk, body, offered, problem};

const SESSIONS: &str = "/api/v1/replay/sessions";
const PAY: &str = "tool: pay\nside_effect: write\nschema_derived: false\n";

fn files(contract: &str, session: Option<&str>) -> Value {
    let mut files = json!({"contracts": [{"file": "pay.yaml", "text": contract}]});
    if let Some(text) = session {
        files["session"] = json!({"file": "session.yaml", "text": text});
    }
    files
}

fn request(version: &Value, tools: Value) -> Value {
    json!({"expected_state_version": version, "offered_tools": tools, "provider": "openai", "model": "m"})
}

async fn prepared(desk: &Desk, more: Value) -> Got {
    let mut body = request(&desk.state().await["stateVersion"], offered(&["pay"]));
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    desk.post("/preflight", body).await
}

#[tokio::test]
async fn r46_a_call_that_nobody_judged_says_so_and_can_be_reported() {
    let server = Server::start().await;
    let new = json!({"session_id": "watched", "mode": "log-only"});
    let desk = Desk::open_with(&server, new).await;
    let (_, ready) = prepared(&desk, json!({})).await;
    let arguments = json!({"cents": 5});
    let (status, proposal) = desk.propose_as(&ready, &[("c", "pay", arguments)]).await;
    assert_eq!((status, &proposal["status"]), (200, &json!("allowed")));
    // No contract lists errors here: whatever is expected is taken.
    let (_, ready) = prepared(&desk, json!({})).await;
    let (_, second) = desk.propose_as(&ready, &[("d", "pay", json!({}))]).await;
    let mut expected = crate::governed::receipt(&second, json!({}));
    expected["outcome"] = json!("expected_error");
    expected["error_code"] = json!("sold_out");
    let (status, taken) = desk.post("/receipts", expected).await;
    assert_eq!(status, 200, "{taken}");
    let verdict = &proposal["verdicts"][0];
    assert_eq!(verdict["judged"], false, "{proposal}");
    assert!(verdict["arguments_digest"].is_string(), "{proposal}");
    // What became of it is taken, as that of a judged call is, and taken once.
    let reported = desk.report(&proposal, json!({})).await;
    assert_eq!(reported.0, 200, "{}", reported.1);
    assert_eq!(desk.report(&proposal, json!({})).await, reported);
    let mut other = crate::governed::receipt(&proposal, json!({}));
    other["outcome"] = json!("error");
    problem(&desk.post("/receipts", other).await, 409, "settled");
    let server = server.reopened().await;
    let desk = desk.with(server.client());
    assert_eq!(desk.report(&proposal, json!({})).await, reported);
}

const WORKFLOW: &str = "schema_version: \"1.0\"\nworkflow: job\nroles:\n  - { name: desk, session_contract: desk/session.yaml }\n";

#[tokio::test]
async fn a_session_of_a_role_is_under_the_session_file_of_the_role() {
    let server = Server::start().await;
    let source = json!({"file": "workflow.yaml", "text": WORKFLOW});
    let place = json!({"type": "root", "workflow_id": "w", "role": "desk", "source": source});
    let session = "schema_version: \"1.0\"\n";
    let mut new = json!({"session_id": "s", "contracts": files(PAY, None), "workflow": place});
    let api = server.client();
    let refused = api.post(SESSIONS, new.clone()).await;
    problem(&refused, 422, "session_contract_differs");
    for other in ["till/session.yaml", "desk/other.yaml", "session.yml"] {
        new["contracts"]["session"] = json!({"file": other, "text": session});
        let refused = api.post(SESSIONS, new.clone()).await;
        problem(&refused, 422, "session_contract_differs");
        assert_eq!(refused.1["session_contract"], "desk/session.yaml");
    }
    // None of them has taken the place.
    let (_, shown) = api.get("/api/v1/replay/workflows/w").await;
    assert_eq!(shown["sessions"], json!([]), "{shown}");
    new["contracts"]["session"]["file"] = json!("contracts/desk/session.yaml");
    let (status, opened) = api.post(SESSIONS, new).await;
    assert_eq!(status, 201, "{opened}");
}

#[tokio::test]
async fn a_model_is_excluded_in_any_case_and_the_request_names_the_same() {
    let server = Server::start().await;
    let session = "schema_version: \"1.0\"\nprovider_constraints: { block_incompatible: [\"openai/gpt-3.5-*\"] }\n";
    let new = json!({"session_id": "models", "contracts": files(PAY, Some(session))});
    let desk = Desk::open_with(&server, new).await;
    for (provider, model) in [("openai", "GPT-3.5-Turbo"), ("OpenAI", "gpt-3.5-turbo")] {
        let refused = prepared(&desk, json!({"provider": provider, "model": model})).await;
        problem(&refused, 403, "provider_incompatible");
    }
    let sent = json!({"request": {"model": "gpt-3.5-turbo", "messages": []}});
    problem(&prepared(&desk, sent).await, 409, "model_differs");
    let sent = json!({"request": {"model": "m", "messages": []}});
    assert_eq!(prepared(&desk, sent).await.0, 200);
}

#[tokio::test]
async fn a_tool_is_offered_with_one_schema() {
    let server = Server::start().await;
    let contract = "tool: pay\nside_effect: write\n";
    let new = json!({"session_id": "schemas", "contracts": files(contract, None)});
    let desk = Desk::open_with(&server, new).await;
    let strict = json!({"type": "object", "required": ["reason"]});
    let function = json!({"type": "function", "function": {"name": "pay", "parameters": strict}});
    let own = |schema: Value| json!([{"name": "pay", "schema": schema}]);
    let sent = |tools: Value, offered: Value| json!({"offered_tools": offered, "request": {"tools": tools, "messages": []}});
    for two in [
        sent(json!([function]), own(json!({}))),
        sent(json!([{"name": "pay"}]), own(strict.clone())),
        sent(
            json!([function, {"name": "pay", "input_schema": {}}]),
            json!(["pay"]),
        ),
        json!({"offered_tools": [{"name": "pay", "schema": {}, "parameters": strict}]}),
    ] {
        let (status, refused) = prepared(&desk, two).await;
        assert_eq!(status, 400, "{refused}");
    }
    // Once, or twice the same: the strict one is checked.
    for one in [
        sent(json!([function]), json!(["pay"])),
        sent(json!([function]), own(strict.clone())),
    ] {
        let (status, ready) = prepared(&desk, one).await;
        assert_eq!(status, 200, "{ready}");
        let (_, judged) = desk.propose_as(&ready, &[("c", "pay", json!({}))]).await;
        assert_eq!(judged["status"], "blocked", "{judged}");
    }
}

#[tokio::test]
async fn a_program_cannot_use_up_the_labels_of_those_who_watch_it() {
    let server = Server::start().await;
    let session =
        "schema_version: \"1.0\"\nlabel_gates: [ { label: fraud, block_tools: [pay] } ]\n";
    let labels: Vec<String> = (0..64).map(|number| format!("l{number}")).collect();
    let new =
        json!({"session_id": "full", "contracts": files(PAY, Some(session)), "labels": labels});
    let desk = Desk::open_with(&server, new).await;
    let label = |name: &str| json!({"label": name});
    problem(
        &desk.post("/labels", label("own")).await,
        409,
        "too_many_labels",
    );
    let bea = desk.with(server.client_with(APPROVER_KEY));
    assert_eq!(bea.post("/labels", label("fraud")).await.0, 200);
    let (_, ready) = prepared(&desk, json!({})).await;
    assert_eq!(ready["removed"][0]["reason"], "label_gate", "{ready}");
    for number in 0..15 {
        assert_eq!(
            bea.post("/labels", label(&format!("m{number}"))).await.0,
            200
        );
    }
    problem(
        &bea.post("/labels", label("last")).await,
        409,
        "too_many_labels",
    );
    // Each of them has a share of their own: a key that nobody watches with leaves the others theirs.
    let mut cleo = key("rk_cleo", "cleo", &["*"], None);
    cleo.id = "key_cleo".to_owned();
    server.add_key(cleo).await;
    let cleo = desk.with(server.client_with("rk_cleo"));
    assert_eq!(cleo.post("/labels", label("other")).await.0, 200);
}

#[tokio::test]
async fn labels_of_calls_and_of_a_parent_leave_the_shares_of_others_as_they_are() {
    let server = Server::start().await;
    let labels: Vec<String> = (0..60).map(|number| format!("l{number}")).collect();
    let own: Vec<String> = (0..40).map(|number| format!("o{number}")).collect();
    let contract = format!("{PAY}adds_labels: [{}]\n", labels.join(", "));
    let new = json!({"session_id": "many", "contracts": files(&contract, None), "labels": own});
    let desk = Desk::open_with(&server, new).await;
    let (_, ready) = prepared(&desk, json!({"offered_tools": offered(&["pay"])})).await;
    let (_, judged) = desk
        .propose_as(&ready, &[("c", "pay", json!({"n": 1}))])
        .await;
    assert_eq!(judged["status"], "allowed", "{judged}");
    assert_eq!(desk.report(&judged, json!({})).await.0, 200);
    assert_eq!(desk.state().await["labels"].as_array().unwrap().len(), 100);
    let bea = desk.with(server.client_with(APPROVER_KEY));
    for api in [&bea, &desk] {
        let label = json!({"label": format!("more_{}", api.state().await["labels"].as_array().unwrap().len())});
        let (status, all) = api.post("/labels", label).await;
        assert_eq!(status, 200, "{all}");
    }
}

#[tokio::test]
async fn one_entry_of_a_tool_has_one_name_and_one_schema() {
    let server = Server::start().await;
    let new =
        json!({"session_id": "forms", "contracts": files("tool: pay\nside_effect: write\n", None)});
    let desk = Desk::open_with(&server, new).await;
    let strict = json!({"type": "object", "required": ["q"]});
    for (entry, wrong) in [
        (
            json!({"type": "function", "name": "pay", "parameters": strict, "function": {"name": "pay", "parameters": {}}}),
            "two schemas",
        ),
        (
            json!({"type": "function", "name": "pay", "parameters": {}, "function": {"name": "pay", "parameters": strict}}),
            "two schemas",
        ),
        (
            json!({"name": "pay", "input_schema": strict, "function": {"name": "pay", "parameters": {}}}),
            "two schemas",
        ),
        (
            json!({"input_schema": strict, "function": {"name": "pay"}, "parameters": {}}),
            "two schemas",
        ),
        (
            json!({"name": "pay", "parameters": {}, "function": {"name": "other", "parameters": strict}}),
            "two names",
        ),
    ] {
        let more = json!({"offered_tools": ["pay"], "request": {"messages": [], "tools": [entry]}});
        let (status, refused) = prepared(&desk, more).await;
        assert_eq!(status, 400, "{refused}");
        assert!(refused.to_string().contains(wrong), "{refused}");
    }
    let twice =
        json!({"offered_tools": [{"name": "pay", "schema": {}}, {"name": "pay", "schema": {}}]});
    let (status, refused) = prepared(&desk, twice).await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused.to_string().contains("offered twice"), "{refused}");
}

#[tokio::test]
async fn a_provider_or_model_that_is_not_known_evades_no_constraint() {
    let server = Server::start().await;
    let session = "schema_version: \"1.0\"\nprovider_constraints: { block_incompatible: [\"OpenAI/gpt-3.5-*\"] }\n";
    let new = json!({"session_id": "models", "contracts": files(PAY, Some(session))});
    let desk = Desk::open_with(&server, new).await;
    let named = |provider: &str, model: &str| json!({"provider": provider, "model": model});
    for provider in ["azure", "openai ", "", "OpenAI\u{a0}"] {
        let refused = prepared(&desk, named(provider, "gpt-3.5-turbo")).await;
        problem(&refused, 422, "provider_unknown");
    }
    for model in [" gpt-3.5-turbo", "", "gpt\u{2011}3.5-turbo"] {
        problem(
            &prepared(&desk, named("openai", model)).await,
            422,
            "model_unknown",
        );
    }
    let excluded = prepared(&desk, named("OPENAI", "GPT-3.5-turbo")).await;
    problem(&excluded, 403, "provider_incompatible");
    for request in [
        json!({"model": ["gpt-3.5-turbo"], "messages": []}),
        json!({"model": 5, "messages": []}),
    ] {
        let mut more = named("openai", "gpt-4o");
        more["request"] = request;
        problem(&prepared(&desk, more).await, 409, "model_differs");
    }
    let mut more = named("openai", "gpt-4o");
    more["request"] = json!({"provider": "anthropic", "messages": []});
    problem(
        &prepared(&desk, more.clone()).await,
        409,
        "provider_differs",
    );
    more["request"] = json!({"provider": "OpenAI", "model": null, "messages": []});
    let (status, ready) = prepared(&desk, more).await;
    assert_eq!(status, 200, "{ready}");
}

#[tokio::test]
async fn u21_who_decided_is_known_whatever_name_comes_with_the_decision() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "signed").await;
    let proposal = desk.asked().await;
    let id = proposal["proposal_id"].as_str().unwrap();
    let bea = desk.with(server.client_with(APPROVER_KEY));
    let yes = json!({"decision": "approve", "decided_by": "ceo@shop.example"});
    assert_eq!(
        bea.post(&format!("/proposals/{id}/approve"), yes).await.0,
        200
    );
    let (_, shown) = desk.api.get(&desk.path(&format!("/proposals/{id}"))).await;
    let response = &shown["approval_response"];
    assert_eq!(response["decided_by"], "ceo@shop.example", "{shown}");
    assert_eq!(response["actor"], "bea", "{shown}");
    assert!(response["key_id"].is_string(), "{shown}");
    // In the list of what was decided, in the protocol's own form, and in the record.
    let (_, list) = bea.api.get("/api/v1/replay/approvals?status=decided").await;
    assert_eq!(list["data"][0]["actor"], "bea", "{list}");
    assert_eq!(list["data"][0]["status"], "approved", "{list}");
    let (_, waiting) = bea.api.get("/api/v1/replay/approvals").await;
    assert_eq!(waiting["data"], json!([]), "{waiting}");
    let request = list["data"][0]["id"].as_str().unwrap();
    let (_, shown) = bea
        .api
        .get(&format!("/v1/permission-requests/{request}"))
        .await;
    assert_eq!(shown["response"]["actor"], "bea", "{shown}");
    let task = desk.state().await["protocol"]["task_id"].clone();
    let path = format!("/v1/tasks/{}/events?limit=200", task.as_str().unwrap());
    let (_, events) = desk.api.get(&path).await;
    let mut events = events["data"].as_array().unwrap().iter();
    let told = events.find(|event| event["payload"]["operation"] == "decide");
    let told = &told.unwrap()["payload"];
    assert_eq!(told["decided"]["actor"], "bea", "{told}");
    assert!(told["decision"].is_object(), "{told}");
}

#[tokio::test]
async fn an_open_session_is_opened_again_without_its_contracts() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "again").await;
    let api = server.client();
    let (status, opened) = api.post(SESSIONS, body("again")).await;
    assert_eq!(status, 200, "{opened}");
    let alone = json!({"session_id": "again"});
    assert_eq!(
        api.post(SESSIONS, alone.clone()).await,
        (200, opened.clone())
    );
    let mut named = json!({"session_id": "again", "compiled_digest": opened["compiled_digest"]});
    assert_eq!(api.post(SESSIONS, named.clone()).await, (200, opened));
    named["compiled_digest"] = json!(format!("sha256:{}", "0".repeat(64)));
    problem(&api.post(SESSIONS, named).await, 422, "unknown_contracts");
    // One that is over is not opened again, and says so.
    desk.post("/restore", json!({})).await;
    problem(&api.post(SESSIONS, alone).await, 410, "restored");
    let unknown = json!({"session_id": "never"});
    problem(&api.post(SESSIONS, unknown).await, 422, "no_contracts");
}

#[tokio::test]
async fn whoever_decided_neither_keeps_a_session_alive_nor_ends_it() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "apart").await;
    let proposal = desk.asked().await;
    assert_eq!(desk.decide(&server, &proposal, "approve").await.0, 200);
    let bea = desk.with(server.client_with(APPROVER_KEY));
    let started = json!({"started": [{"proposal_id": proposal["proposal_id"], "call_id": "c3"}]});
    for (path, body) in [
        ("/heartbeat", started.clone()),
        ("/heartbeat", json!({})),
        ("/restore", json!({})),
    ] {
        problem(&bea.post(path, body).await, 403, "approver_must_differ");
    }
    assert_eq!(desk.post("/heartbeat", started).await.0, 200);
    // Whoever watches can always stop it.
    assert_eq!(bea.post("/kill", json!({})).await.0, 200);
}

#[tokio::test]
async fn a_heartbeat_takes_no_member_that_nobody_knows() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "beats").await;
    for odd in [
        json!({"startd": []}),
        json!({"started": [{"proposal_id": "proposal_1", "call_id": "c", "at": 1}]}),
    ] {
        let (status, refused) = desk.post("/heartbeat", odd).await;
        assert_eq!(status, 400, "{refused}");
    }
    assert_eq!(
        desk.post("/heartbeat", json!({"controlRevision": 0}))
            .await
            .0,
        200
    );
}

#[tokio::test]
async fn one_thing_has_one_name() {
    let server = Server::start().await;
    let desk = Desk::open_with(
        &server,
        json!({"session_id": "names", "contracts": files(PAY, None)}),
    )
    .await;
    let (_, ready) = prepared(&desk, json!({})).await;
    for alias in ["prepared_01", "prepared_+1", "prepared_ 1", "Prepared_1"] {
        let other = json!({"prepared_request_id": alias});
        let refused = desk.propose_as(&other, &[("c", "pay", json!({}))]).await;
        problem(&refused, 409, "unknown_prepared_request");
    }
    let (status, proposal) = desk.propose_as(&ready, &[("c", "pay", json!({}))]).await;
    assert_eq!(status, 200, "{proposal}");
    let mut report = crate::governed::receipt(&proposal, json!({}));
    report["proposal_id"] = json!("proposal_01");
    problem(
        &desk.post("/receipts", report).await,
        404,
        "unknown_proposal",
    );
    let alias = desk.api.get(&desk.path("/proposals/proposal_001")).await;
    problem(&alias, 404, "unknown_proposal");
    assert_eq!(desk.report(&proposal, json!({})).await.0, 200);
    for odd in [".", ".."] {
        let new = json!({"session_id": odd, "contracts": files(PAY, None)});
        let (status, refused) = server.client().post(SESSIONS, new).await;
        assert_eq!(status, 400, "{refused}");
    }
    for odd in ["", "pay\n.yaml", "a\u{202e}b/pay.yaml", "\u{0}/pay.yaml"] {
        let files = json!({"contracts": [{"file": odd, "text": PAY}]});
        let (status, refused) = server
            .client()
            .post(SESSIONS, json!({"contracts": files}))
            .await;
        assert_eq!(status, 400, "{odd:?} {refused}");
    }
}

#[tokio::test]
async fn what_a_call_returned_that_counted_at_its_release_is_known_to_rules() {
    let server = Server::start().await;
    let look = "tool: look\nside_effect: read\nschema_derived: false\ncommit_requirement: none\n";
    let pay = "tool: pay\nside_effect: write\nschema_derived: false\n\
        preconditions: [ { requires_prior_tool: look, with_output: [ { path: \"$.ok\", equals: true } ] } ]\n";
    let files = json!({"contracts": [{"file": "look.yaml", "text": look}, {"file": "pay.yaml", "text": pay}]});
    let desk = Desk::open_with(
        &server,
        json!({"session_id": "returned", "contracts": files}),
    )
    .await;
    let tools = json!({"offered_tools": offered(&["look", "pay"])});
    let (_, ready) = prepared(&desk, tools.clone()).await;
    let (_, looked) = desk.propose_as(&ready, &[("a", "look", json!({}))]).await;
    let (_, ready) = prepared(&desk, tools.clone()).await;
    let (_, early) = desk.propose_as(&ready, &[("b", "pay", json!({}))]).await;
    assert_eq!(
        early["verdicts"][0]["reason"], "precondition_not_met",
        "{early}"
    );
    assert_eq!(desk.report(&looked, json!({"$.ok": true})).await.0, 200);
    let (_, ready) = prepared(&desk, tools).await;
    let (_, paid) = desk.propose_as(&ready, &[("c", "pay", json!({}))]).await;
    assert_eq!(paid["status"], "allowed", "{paid}");
    // The same after a restart, which folds the record.
    let shown = desk.state().await;
    let server = server.reopened().await;
    assert_eq!(desk.with(server.client()).state().await, shown);
}

#[tokio::test]
async fn what_people_say_no_to_is_stripped_and_the_rest_is_released_where_the_gate_says_so() {
    let server = Server::start().await;
    let ask =
        "tool: ask\nside_effect: write\nschema_derived: false\ncheckpoint: { reason: look }\n";
    let files = json!({"contracts": [{"file": "ask.yaml", "text": ask}, {"file": "pay.yaml", "text": PAY}]});
    for (gate, released) in [("strip_partial", true), ("reject_all", false)] {
        let new = json!({"session_id": gate, "contracts": files, "gate": gate});
        let desk = Desk::open_with(&server, new).await;
        let (_, ready) = prepared(&desk, json!({"offered_tools": offered(&["ask", "pay"])})).await;
        let calls = [("a", "ask", json!({})), ("b", "pay", json!({}))];
        let (_, proposal) = desk.propose_as(&ready, &calls).await;
        assert_eq!(proposal["status"], "pending_approval", "{proposal}");
        assert_eq!(
            desk.decide(&server, &proposal, "deny").await.1,
            json!({"status": "denied"})
        );
        let id = proposal["proposal_id"].as_str().unwrap();
        let (_, shown) = desk.api.get(&desk.path(&format!("/proposals/{id}"))).await;
        let action = if released { "stripped" } else { "rejected" };
        assert_eq!(shown["decision"]["action"], action, "{shown}");
        let pending = desk.state().await["pending"].clone();
        let calls = pending.as_array().unwrap().iter();
        let calls: Vec<&str> = calls.filter_map(|call| call["call_id"].as_str()).collect();
        let expected: &[&str] = if released { &["b"] } else { &[] };
        assert_eq!(calls, expected, "{pending}");
    }
}

#[tokio::test]
async fn a_call_its_usage_and_its_output_have_no_members_that_nobody_reads() {
    let server = Server::start().await;
    let new = json!({"session_id": "members", "contracts": files(PAY, None)});
    let desk = Desk::open_with(&server, new).await;
    let (_, ready) = prepared(&desk, json!({})).await;
    let proposal = |call: Value, usage: Value| {
        json!({"prepared_request_id": ready["prepared_request_id"], "finish_reason": "tool_calls",
            "tool_calls": [call], "usage": usage})
    };
    let call = json!({"id": "c", "name": "pay", "arguments": "{}"});
    let odd = json!({"id": "c", "name": "pay", "arguments": "{}", "input": {"n": 5}});
    let used = json!({"input": 1, "output": 1});
    let more = json!({"input": 1, "output": 1, "cache_creation_input_tokens": 90});
    for (body, param) in [
        (proposal(odd, used.clone()), "tool_calls.0.input"),
        (
            proposal(call.clone(), more),
            "usage.cache_creation_input_tokens",
        ),
    ] {
        let (status, refused) = desk.post("/proposals", body).await;
        assert_eq!(
            (status, &refused["param"]),
            (400, &json!(param)),
            "{refused}"
        );
    }
    let (status, judged) = desk.post("/proposals", proposal(call, used)).await;
    assert_eq!(status, 200, "{judged}");
    for fields in [json!({"$.a": 1, "b": 2}), json!({"$.a": 1, "$..b": 2})] {
        let (status, refused) = desk.report(&judged, fields).await;
        assert_eq!(status, 400, "{refused}");
        assert!(refused.to_string().contains("is not a path"), "{refused}");
    }
    assert_eq!(
        desk.report(&judged, json!({"$.a": 1, "$.b": 2})).await.0,
        200
    );
}

#[tokio::test]
async fn a_permission_request_describes_every_call_that_it_is_about() {
    let server = Server::start().await;
    let contract = |tool: &str, reason: &str| {
        let text = format!(
            "tool: {tool}\nside_effect: write\nschema_derived: false\ncheckpoint: {{ reason: {reason} }}\n"
        );
        json!({"file": format!("{tool}.yaml"), "text": text})
    };
    let files = json!({"contracts": [contract("note", "small"), contract("pay", "money")]});
    let new = json!({"session_id": "both", "contracts": files});
    let desk = Desk::open_with(&server, new).await;
    let tools = json!({"offered_tools": offered(&["note", "pay"])});
    let (_, ready) = prepared(&desk, tools).await;
    let calls = [
        ("a", "note", json!({"text": "x"})),
        ("b", "pay", json!({"cents": 1_000_000})),
        ("c", "pay", json!({"cents": 2})),
    ];
    let (_, asked) = desk.propose_as(&ready, &calls).await;
    assert_eq!(asked["status"], "pending_approval", "{asked}");
    let bea = server.client_with(APPROVER_KEY);
    let (_, list) = bea.get("/v1/permission-requests?status=pending").await;
    let request = &list["data"][0];
    let inputs = calls.map(|(_, name, input)| json!({"name": name, "input": input}));
    assert_eq!(request["action"]["name"], "note, pay", "{request}");
    assert_eq!(
        request["action"]["input"],
        json!({"calls": inputs}),
        "{request}"
    );
    assert_eq!(
        request["request"]["reason"], "3 calls: small; money",
        "{request}"
    );
}
