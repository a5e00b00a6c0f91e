//! The byte functions of a session whose judge is a server: its answers are what happens, and what does not fit its question
//! releases nothing.

use contracts::bytes::{
    Handle, Output, answer, compile, control, execute, judge, open, plan, read, settle,
};
use serde_json::{Value, json};

use crate::support::at;

const REQUEST: &[u8] = br#"{"model":"gpt","messages":[],"tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}},{"type":"function","function":{"name":"drop","parameters":{}}}]}"#;

fn value(output: &Output) -> Value {
    serde_json::from_slice(&output.json).unwrap()
}

fn now(seconds: i64) -> i64 {
    at(seconds).as_micros()
}

fn response(tool: &str) -> Vec<u8> {
    let function = json!({"name": tool, "arguments": "{\"id\":1}"});
    let call = json!({"id": "c1", "type": "function", "function": function});
    let message = json!({"role": "assistant", "content": "so", "tool_calls": [call]});
    let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
    json!({"id": "r", "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
        .to_string()
        .into_bytes()
}

fn session(more: Value) -> Handle {
    let contracts = json!([
        {"tool": "look", "side_effect": "read"},
        {"tool": "drop", "side_effect": "write",
         "preconditions": [{"requires_prior_tool": "look", "with_output": [{"path": "$.found", "equals": true}]}]},
    ]);
    let files = json!({"contracts": contracts}).to_string();
    let (_, files) = compile(files.as_bytes());
    let mut options = json!({"sessionId": "s", "server": true, "answersCheckpoints": true, "tools": ["look", "drop"]});
    if let (Value::Object(options), Value::Object(more)) = (&mut options, more) {
        options.extend(more);
    }
    let (output, handle) = open(files.as_ref(), options.to_string().as_bytes(), now(0));
    assert!(value(&output)["compiled_digest"].is_string());
    handle.unwrap()
}

/// Asks the model as far as a proposal.
fn proposed(session: &mut Handle, tool: &str) -> (u64, Value) {
    let asked = value(&plan(session, "openai-chat", REQUEST, now(1)));
    let attempt = asked["attempt"].as_u64().unwrap();
    assert_eq!(
        asked["preflight"]["offered_tools"][0]["schema"]["type"],
        "object"
    );
    assert_eq!(asked["preflight"]["model"], "gpt");
    let removed = json!([{"tool": "drop", "reason": "precondition_not_met"}]);
    let said = json!({"allowed_tools": ["look"], "removed": removed}).to_string();
    let id = format!("preflight.{attempt}");
    let planned = answer(session, &id, said.as_bytes(), now(1));
    let sent: Value = serde_json::from_slice(planned.body.as_ref().unwrap()).unwrap();
    assert_eq!(
        sent["tools"].as_array().unwrap().len(),
        1,
        "as the server says"
    );
    let judged = judge(session, attempt, &response(tool), false, now(2));
    assert_eq!(value(&judged)["action"], "proposed");
    assert!(
        judged.body.is_none(),
        "nothing is released before the verdict"
    );
    (attempt, value(&judged)["proposal"].clone())
}

fn decision(action: &str, verdict: &str, reason: Option<&str>) -> Value {
    let digest = format!("sha256:{}", "0".repeat(64));
    let reasons: Vec<&str> = reason.into_iter().collect();
    let call = json!({
        "call_id": "c1", "tool_name": "look", "arguments_digest": digest, "verdict": verdict, "reason": reason,
        "all_reasons": reasons, "detail": null, "contract_file": null, "failures": [],
    });
    json!({
        "action": action, "gate": "reject_all", "attempt": 1, "stateVersion": 0, "controlRevision": 0, "compiled": digest,
        "reason": reason, "detail": null, "contract_file": null, "calls": [call],
    })
}

fn said(status: &str, verdict: &str, decision: &Value) -> String {
    let verdicts = json!([{"call_id": "c1", "verdict": verdict}]);
    json!({"proposal_id": "proposal_1", "status": status, "verdicts": verdicts, "decision": decision})
        .to_string()
}

#[test]
fn the_verdict_of_the_server_is_what_happens() {
    let mut session = session(json!({}));
    let (attempt, proposal) = proposed(&mut session, "look");
    assert_eq!(proposal["tool_calls"][0]["arguments"], "{\"id\":1}");
    assert_eq!(
        proposal["content"],
        Value::Null,
        "no contract looks at texts"
    );
    assert!(proposal["content_digest"].is_string());
    assert_eq!(proposal["usage"]["output"], 2);
    let id = format!("proposal.{attempt}");
    let allowed = said("allowed", "allow", &decision("released", "allow", None));
    let judged = answer(&mut session, &id, allowed.as_bytes(), now(3));
    assert_eq!(value(&judged)["action"], "released");
    assert_eq!(judged.body, Some(response("look")));
    let again = answer(&mut session, &id, allowed.as_bytes(), now(3));
    assert_eq!(value(&again)["error"]["type"], "ReplayFaultError", "once");

    let ticket = value(&execute(
        &mut session,
        "look",
        br#"{"id":1}"#,
        Some("c1"),
        now(4),
    ));
    assert_eq!(ticket["proposal_id"], "proposal_1");
    let ended =
        json!({"outcome": "success", "output": "{\"found\":true,\"secret\":1}"}).to_string();
    let settled = settle(
        &mut session,
        ticket["ticket"].as_u64().unwrap(),
        ended.as_bytes(),
    );
    let report = &value(&settled)["report"];
    assert_eq!(
        report["output_fields"],
        json!({"$.found": true}),
        "only what rules read"
    );
    assert_eq!(
        (&report["call_id"], &report["outcome"]),
        (&json!("c1"), &json!("success"))
    );
    let state = value(&read(&mut session, "state", 0));
    assert_eq!(state["value"]["toolCallCounts"], json!({"look": 1}));
}

#[test]
fn what_the_server_blocks_is_blocked_although_the_session_would_allow_it() {
    let mut session = session(json!({"maxRetries": 1}));
    let (attempt, _) = proposed(&mut session, "look");
    let id = format!("proposal.{attempt}");
    let blocked = said(
        "blocked",
        "block",
        &decision("rejected", "block", Some("forbidden_tool")),
    );
    let judged = value(&answer(&mut session, &id, blocked.as_bytes(), now(3)));
    assert_eq!(judged["action"], "retried");
    assert_eq!(judged["decision"]["action"], "retried");
    assert_eq!(
        judged["preflight"]["model"], "gpt",
        "another preflight first"
    );
    let told = value(&read(&mut session, "diagnostics", 0));
    let names = told["value"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"]);
    assert!(
        names
            .collect::<Vec<_>>()
            .contains(&&json!("verdict_differs")),
        "{told}"
    );
}

#[test]
fn an_answer_that_does_not_fit_releases_nothing() {
    let released = decision("released", "allow", None);
    for odd in [
        said("allowed", "block", &released),
        said("blocked", "allow", &released),
        said("killed", "allow", &Value::Null),
        said("allowed", "allow", &Value::Null),
        said("allowed", "allow", &decision("retried", "allow", None)),
        said("allowed", "allow", &decision("stripped", "allow", None)),
        said("allowed", "allow", &released).replace("c1", "c2"),
        said("allowed", "allow", &released)
            .replace(r#"[{"call_id":"c1","verdict":"allow"}]"#, "[]"),
        said("pending_approval", "ask", &Value::Null),
        "null".to_owned(),
        "{".to_owned(),
    ] {
        let mut session = session(json!({}));
        let (attempt, _) = proposed(&mut session, "look");
        let id = format!("proposal.{attempt}");
        let judged = answer(&mut session, &id, odd.as_bytes(), now(3));
        assert!(judged.body.is_none(), "{odd}");
        assert_eq!(value(&judged)["error"]["type"], "ReplayFaultError", "{odd}");
        assert_eq!(
            value(&judged)["error"]["retrySafe"],
            false,
            "it was proposed: {odd}"
        );
        let refused = value(&execute(&mut session, "look", br#"{"id":1}"#, None, now(4)));
        assert_eq!(refused["error"]["type"], "ReplayContractError", "{odd}");
    }
}

#[test]
fn a_session_whose_server_is_lost_judges_the_same_response_itself() {
    let mut session = session(json!({}));
    let (attempt, _) = proposed(&mut session, "drop");
    control(&mut session, "judge_locally", b"true", now(3));
    let judged = value(&judge(
        &mut session,
        attempt,
        &response("drop"),
        false,
        now(3),
    ));
    assert_eq!(
        judged["error"]["decision"]["reason"],
        "precondition_not_met"
    );
}

#[test]
fn what_contracts_look_at_is_handed_in() {
    let looks = json!([{"tool": "look", "side_effect": "read",
        "assertions": {"input_invariants": [{"path": "$.system", "exists": false}]},
        "response_format_invariants": {"content": "required"}}]);
    let files = json!({"contracts": looks}).to_string();
    let (_, files) = compile(files.as_bytes());
    let options = json!({"sessionId": "s", "server": true, "tools": ["look"]}).to_string();
    let (_, handle) = open(files.as_ref(), options.as_bytes(), now(0));
    let mut session = handle.unwrap();
    let asked = value(&plan(&mut session, "openai-chat", REQUEST, now(1)));
    assert_eq!(asked["preflight"]["request"]["messages"], json!([]));
    let (_, proposal) = proposed(&mut session, "look");
    assert_eq!(proposal["content"], "so");
    assert_eq!(proposal["content_digest"], json!(canon::sha256(b"so")));
}
