//! The ten functions as a binding calls them: JSON in, JSON and bytes out, and no panic whatever comes.

use contracts::bytes::{
    self, CompiledFiles, Handle, Output, answer, compile, control, execute, failed, judge, open,
    plan, read, settle,
};
use contracts::json::{Limits, Numbers};
use fastrand::Rng;
use serde_json::{Value, json};

use crate::support::{TOOLS, at, desk_files, file, payment};

fn value(output: &Output) -> Value {
    serde_json::from_slice(&output.json).unwrap()
}

fn desk() -> CompiledFiles {
    let source = |source: &contracts::Source| json!({"file": source.file, "text": source.text});
    let contracts: Vec<Value> = desk_files().iter().map(source).collect();
    let files = json!({"contracts": contracts, "session": source(&file("session"))}).to_string();
    let (output, files) = compile(files.as_bytes());
    assert_eq!(value(&output)["findings"], json!([]));
    files.unwrap()
}

fn options() -> Value {
    json!({
        "sessionId": "s1",
        "principal": {"role": "desk", "trainee": false},
        "tools": TOOLS,
        "answersCheckpoints": true,
        "pricing": {"openai/gpt-test": {"input": 0.1, "output": "0.2"}},
    })
}

fn handle(change: impl FnOnce(&mut Value)) -> Handle {
    let mut options = options();
    change(&mut options);
    let (output, handle) = open(Some(&desk()), options.to_string().as_bytes(), now(0));
    handle.unwrap_or_else(|| panic!("{}", value(&output)))
}

fn now(seconds: i64) -> i64 {
    at(seconds).as_micros()
}

fn request() -> Vec<u8> {
    let tools: Vec<Value> = TOOLS
        .iter()
        .map(|name| json!({"name": name, "input_schema": {}}))
        .collect();
    json!({"model": "claude", "messages": [], "tools": tools})
        .to_string()
        .into_bytes()
}

fn response(tool: &str, arguments: &str) -> Vec<u8> {
    format!(r#"{{"id":"m","content":[{{"type":"tool_use","id":"t1","name":"{tool}","input":{arguments}}}],"stop_reason":"tool_use","usage":{{"input_tokens":1,"output_tokens":1}}}}"#)
        .into_bytes()
}

/// Turns off the cost limit of the example, because the model has no price here.
fn with_price(options: &mut Value) {
    options["pricing"] = json!({"anthropic/claude": {"input": "1", "output": "1"}});
}

#[test]
fn a_call_goes_through_all_ten_functions() {
    let mut session = handle(with_price);
    let planned = plan(&mut session, "anthropic-messages", &request(), now(1));
    let attempt = value(&planned)["attempt"].as_u64().unwrap();
    let body: Value = serde_json::from_slice(planned.body.as_ref().unwrap()).unwrap();
    assert_eq!(body["tools"].as_array().unwrap().len(), 2);
    let came = response("find_order", r#"{"order_id":"A"}"#);
    let judged = judge(&mut session, attempt, &came, false, now(2));
    assert_eq!(value(&judged)["action"], "released");
    assert_eq!(judged.body.as_deref(), Some(came.as_slice()));
    let ticket = execute(
        &mut session,
        "find_order",
        br#"{"order_id":"A"}"#,
        Some("t1"),
        now(3),
    );
    let ticket = value(&ticket)["ticket"].as_u64().unwrap();
    let settled = settle(
        &mut session,
        ticket,
        br#"{"outcome":"success","output":"{}"}"#,
    );
    assert_eq!(value(&settled)["state_version"], 2);
    let labelled = control(&mut session, "add_label", b"\"vip\"", now(4));
    assert_eq!(value(&labelled)["labels"], json!(["vip"]));
    let state = value(&read(&mut session, "state", 0));
    assert_eq!(state["value"]["currentPhase"], "order_known");
    assert_eq!(state["value"]["principal"], Value::Null);
    assert_eq!(
        value(&read(&mut session, "health", 0))["value"]["status"],
        "healthy"
    );
    let records = value(&read(&mut session, "records", 2));
    assert_eq!(records["value"][0]["seq"], 2);
    let planned = value(&plan(
        &mut session,
        "anthropic-messages",
        &request(),
        now(5),
    ));
    let attempt = planned["attempt"].as_u64().unwrap();
    assert_eq!(
        value(&failed(&mut session, attempt, "provider", now(6))),
        json!({})
    );
    let none = value(&answer(&mut session, "nothing", b"null", now(7)));
    assert_eq!(none["error"]["type"], "ReplayFaultError");
}

#[test]
fn r31_errors_have_the_names_of_their_classes() {
    let mut session = handle(with_price);
    let planned = value(&plan(
        &mut session,
        "anthropic-messages",
        &request(),
        now(1),
    ));
    let attempt = planned["attempt"].as_u64().unwrap();
    let blocked = value(&judge(
        &mut session,
        attempt,
        &response("pay_back", &payment("A", 9000)),
        false,
        now(2),
    ));
    let error = &blocked["error"];
    assert_eq!(error["type"], "ReplayContractError");
    assert_eq!(error["decision"]["reason"], "illegal_phase_transition");
    assert_eq!(error["contractFile"], "pay_back.yaml");
    assert!(!error["failures"].as_array().unwrap().is_empty());
    assert!(!error["message"].as_str().unwrap().contains("time"));
    let odd = value(&plan(
        &mut session,
        "anthropic-messages",
        br#"{"model":"claude","messages":[],"thread":"t"}"#,
        now(2),
    ));
    assert_eq!(
        (&odd["error"]["type"], &odd["error"]["member"]),
        (&json!("ReplayUnsupportedError"), &json!("thread"))
    );
    let label = value(&control(
        &mut session,
        "add_label",
        b"\"not a label\"",
        now(2),
    ));
    assert_eq!(
        (&label["error"]["type"], &label["error"]["condition"]),
        (&json!("ReplayConfigError"), &json!("invalid_option"))
    );
    let refused = value(&execute(&mut session, "pay_back", b"{}", None, now(3)));
    assert_eq!(
        refused["error"]["decision"]["reason"],
        "execution_constraint_violated"
    );
    control(&mut session, "kill", b"\"enough\"", now(4));
    let killed = value(&plan(
        &mut session,
        "anthropic-messages",
        &request(),
        now(5),
    ));
    assert_eq!(
        (&killed["error"]["type"], &killed["error"]["cause_of_kill"]),
        (&json!("ReplayKillError"), &json!("enough"))
    );
    let mut session = handle(with_price);
    control(&mut session, "restore", b"null", now(4));
    let over = value(&plan(
        &mut session,
        "anthropic-messages",
        &request(),
        now(5),
    ));
    assert_eq!(over["error"]["type"], "ReplayInactiveError");
    let mut session = handle(|options| {
        with_price(options);
        options["providerConstraints"] = json!({"block_incompatible": ["anthropic/*"]});
    });
    let excluded = value(&plan(
        &mut session,
        "anthropic-messages",
        &request(),
        now(5),
    ));
    assert_eq!(excluded["error"]["condition"], "provider_incompatible");
}

#[test]
fn r4_everything_wrong_with_options_is_said_at_once() {
    let files = desk();
    let odd = json!({"sessionId": 7, "gate": "open", "maxRetries": 1.5, "colour": "red", "pricing": {"m": {"input": "x"}}});
    let (output, none) = open(Some(&files), odd.to_string().as_bytes(), 0);
    assert!(none.is_none());
    let error = &value(&output)["error"];
    assert_eq!(error["condition"], "invalid_option");
    assert_eq!(error["findings"].as_array().unwrap().len(), 5);
    let mut six = options();
    six["maxRetries"] = json!(6);
    assert!(
        open(Some(&files), six.to_string().as_bytes(), 0)
            .1
            .is_none()
    );
    let (output, _) = open(Some(&files), br#"{"sessionId":"s"}"#, 0);
    assert_eq!(
        value(&output)["error"]["condition"],
        "policy_without_principal"
    );
}

#[test]
fn r46_only_log_only_needs_no_contracts() {
    assert!(open(None, br#"{"sessionId":"s"}"#, 0).1.is_none());
    let (_, session) = open(None, br#"{"sessionId":"s","mode":"log-only"}"#, 0);
    let mut session = session.unwrap();
    let planned = plan(&mut session, "anthropic-messages", &request(), now(1));
    assert_eq!(planned.body.as_deref(), Some(request().as_slice()));
    let came = response("anything", "{}");
    let judged = judge(&mut session, 1, &came, false, now(1));
    assert_eq!(judged.body.as_deref(), Some(came.as_slice()));
    assert_eq!(
        value(&read(&mut session, "state", 0))["value"]["totalToolCalls"],
        1
    );
}

#[test]
fn r3_files_may_be_parsed_documents() {
    let parsed = br#"{"contracts":[{"tool":"a","side_effect":"read","argument_value_invariants":[{"path":"$.n","lte":9007199254740993}]},{"file":"b.yaml","text":"tool: b\nside_effect: read"}],"session":{"schema_version":"1.0"}}"#;
    let (output, files) = compile(parsed);
    let from_text = compile(br#"{"contracts":[{"file":"a.yaml","text":"tool: a\nside_effect: read\nargument_value_invariants:\n  - { path: $.n, lte: 9007199254740993 }"},{"tool":"b","side_effect":"read"}],"session":{"file":"session.yaml","text":"schema_version: \"1.0\""}}"#);
    assert_eq!(
        bytes::digest(&files.unwrap()),
        bytes::digest(&from_text.1.unwrap()),
        "{}",
        value(&output)
    );
    let twice = br#"{"contracts":[{"tool":"a","side_effect":"read"},{"file":"a.yaml","text":"tool: a\nside_effect: read"}]}"#;
    let (output, none) = compile(twice);
    assert!(none.is_none());
    assert_eq!(value(&output)["error"]["condition"], "compilation_failed");
}

/// Bytes that begin as something right and go wrong somewhere.
fn damaged(rng: &mut Rng, right: &[u8]) -> Vec<u8> {
    let mut bytes = right.to_vec();
    for _ in 0..rng.usize(1..4) {
        match rng.u8(0..4) {
            0 => bytes.truncate(rng.usize(0..=bytes.len())),
            1 if !bytes.is_empty() => {
                let place = rng.usize(0..bytes.len());
                bytes[place] = rng.u8(..);
            }
            2 => {
                let piece = [
                    &b"\"a\":1,\"a\":2,"[..],
                    b"1e400",
                    b"[[[[[[",
                    b"\\ud800",
                    b"\n\n",
                    b"null",
                ];
                let place = rng.usize(0..=bytes.len());
                bytes.splice(
                    place..place,
                    piece[rng.usize(0..piece.len())].iter().copied(),
                );
            }
            _ => {
                let from = rng.usize(0..=bytes.len());
                let tail = bytes[from..].to_vec();
                bytes.extend(tail);
            }
        }
    }
    bytes
}

#[test]
fn no_bytes_make_a_function_panic_or_release_a_blocked_call() {
    let files = desk();
    let stream = b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[]}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"pay_back\",\"input\":{}}}\n\nevent: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let mut rng = Rng::with_seed(7);
    for _ in 0..3_000 {
        let mut right = options();
        with_price(&mut right);
        let _ = compile(&damaged(
            &mut rng,
            br#"{"contracts":[{"tool":"a","side_effect":"read"}]}"#,
        ));
        let _ = open(
            Some(&files),
            &damaged(&mut rng, right.to_string().as_bytes()),
            0,
        );
        let (_, session) = open(Some(&files), right.to_string().as_bytes(), 0);
        let mut session = session.unwrap();
        let wires = ["openai-chat", "openai-responses", "anthropic-messages"];
        let _ = plan(
            &mut session,
            wires[rng.usize(0..3)],
            &damaged(&mut rng, &request()),
            1,
        );
        let planned = value(&plan(&mut session, "anthropic-messages", &request(), 1));
        let attempt = planned["attempt"].as_u64().unwrap();
        let sse = rng.bool();
        let right = if sse {
            stream.to_vec()
        } else {
            response("pay_back", &payment("A", 1))
        };
        let came = damaged(&mut rng, &right);
        let judged = judge(&mut session, attempt, &came, sse, 2);
        if let Some(released) = judged.body {
            let text = String::from_utf8_lossy(&released);
            // What is released names the tool only where no reader finds a call of it.
            let calls = text.contains("tool_use\"") && text.contains("\"pay_back\"");
            assert!(
                !calls,
                "{}\n{text}",
                value(&Output {
                    json: judged.json,
                    body: None
                })
            );
        }
        let _ = answer(
            &mut session,
            "x",
            &damaged(&mut rng, b"{\"decision\":\"approve\"}"),
            3,
        );
        let _ = execute(&mut session, "pay_back", &came, None, 3);
        let _ = settle(&mut session, 1, &came);
        let _ = control(&mut session, "narrow", &came, 3);
        for what in [
            "state",
            "health",
            "narrowing",
            "delta",
            "records",
            "diagnostics",
            "captures",
            "?",
        ] {
            let output = read(&mut session, what, rng.u64(0..3));
            let text = std::str::from_utf8(&output.json).unwrap();
            assert!(contracts::json::read(text, Limits::MESSAGE, Numbers::Any).is_ok());
        }
    }
}
