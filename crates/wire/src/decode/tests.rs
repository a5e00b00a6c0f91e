//! Decoding: one table of bad bodies with the member each is blamed on, and the forms that must be taken.

mod bounds;

use canon::{Map, Value};
use domain::{InputSpec, Request, Role, TaskId, TaskMessageKind};
use serde_json::json;

use super::*;
use crate::InputError;

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Reads a body as a request to these parameters.
fn read(decode: Decode, params: &[(&str, &str)], body: &Value) -> Result<Request, InputError> {
    let params: Vec<(String, String)> = params
        .iter()
        .map(|(name, value)| (String::from(*name), String::from(*value)))
        .collect();
    decode(&DecodeInput {
        params: &params,
        body: &map(body.clone()),
        settings: Settings {
            initial_messages_max: 2,
            replay_conformance: false,
        },
    })
}

/// Every parameter that a target may have, but a Session.
const TARGET: &[(&str, &str)] = &[
    ("workspace_id", "workspace_1"),
    ("task_id", "task_1"),
    ("request_id", "permission_1"),
    ("persona_id", "persona_1"),
    ("receipt_id", "receipt_1"),
    ("batch_id", "batch_1"),
];

const SESSION: &[(&str, &str)] = &[("session_id", "session_1")];

fn taken(decode: Decode, body: Value) -> Request {
    read(decode, &[TARGET, SESSION].concat(), &body).unwrap()
}

/// Checks that a body is refused, and which member is blamed.
fn refused(decode: Decode, cases: &[(Value, &str)]) {
    refused_at(&[TARGET, SESSION].concat(), decode, cases);
}

fn refused_at(params: &[(&str, &str)], decode: Decode, cases: &[(Value, &str)]) {
    for (body, blamed) in cases {
        match read(decode, params, body) {
            Err(InputError::Invalid { param, .. } | InputError::Unknown { param, .. }) => {
                assert_eq!(param, *blamed, "{body}");
            }
            Err(other) => panic!("{body}: {other:?}"),
            Ok(taken) => panic!("{body} was taken as {taken:?}"),
        }
    }
}

/// A body that each decoder takes.
fn sample(decode: &str) -> Value {
    match decode {
        "createPersona" => json!({
            "name": "a", "version": "1", "entry_workflow": "agent", "description": "d",
            "autonomy_tier": "suggest", "receipt_policy": "required",
        }),
        "createWorkspace" => json!({"name": "n", "root": "r"}),
        "truncateSession" => json!({"keep_first": 1}),
        "appendSessionMessage" => json!({"role": "user", "content": "x"}),
        "appendTaskMessage" => {
            json!({"kind": "input", "message": {"role": "user", "content": "x"}})
        }
        "submitTask" | "submitSessionTask" => json!({"session_id": "session_1", "input": {}}),
        "respondPermissionRequest" => json!({"approved": true}),
        "createSessionBranch" => json!({"kind": "session", "base_ref": "main"}),
        "registerArtifact" => {
            json!({"kind": "file", "mime_type": "text/plain", "visibility": "public"})
        }
        "createVault" => json!({"provider": "env", "capabilities": []}),
        "preflightReplayRequest" => {
            json!({"expected_state_version": 0, "provider": "openai", "model": "m"})
        }
        "proposeReplayResponse" => json!({"prepared_request_id": "prepared_1"}),
        "approveReplayProposal" => json!({"decision": "deny", "decided_by": "ann"}),
        "reportReplayExecution" => json!({
            "proposal_id": "proposal_1", "call_id": "c", "outcome": "success",
            "arguments_digest": format!("sha256:{}", "0".repeat(64)),
        }),
        "addReplayLabel" => json!({"label": "a"}),
        "offerReplayHandoff" => json!({"to_role": "reader"}),
        "setReplayToolFilter" => json!({"tools": null}),
        "cosignReceiptBatch" => json!({"line": "a line"}),
        "captureReplayCalls" => json!({"captures": []}),
        _ => json!({}),
    }
}

/// A row that asks for less than the engine does would read a body for nothing; one that asks for more would refuse what
/// another transport lets through.
#[test]
fn u10_the_row_of_an_operation_asks_for_the_scopes_of_its_request() {
    let mut count = 0;
    for operation in crate::openapi::operations() {
        let Some(decode) = operation.decode else {
            continue;
        };
        let request = taken(decode, sample(operation.id));
        let needed = request.scopes();
        let access = operation.access;
        // The verdict alone is for readers too: the row asks for what every answer takes.
        let needed = match operation.id {
            "verifyReceipt" => &needed[..1],
            _ => needed,
        };
        if access.one_of.is_empty() {
            assert_eq!(access.all_of, needed, "{}", operation.id);
        } else {
            assert!(
                needed.iter().all(|scope| access.one_of.contains(scope)),
                "{}",
                operation.id
            );
        }
        count += 1;
    }
    assert!(count >= 20, "{count} decoders");
}

#[test]
fn governed_bodies_are_blamed_on_their_member_and_what_is_too_large_is_told() {
    refused(
        create_governed,
        &[
            (json!({"session_id": "a/b"}), "session_id"),
            (json!({"mode": "strict"}), "mode"),
            (json!({"gate": 1}), "gate"),
            (json!({"labels": [1]}), "labels.0"),
            (json!({"compiled_digest": "abc"}), "compiled_digest"),
            (json!({"contracts": []}), "contracts"),
            (
                json!({"contracts": {"contracts": [{"file": "a.yaml"}]}}),
                "contracts.contracts.0.text",
            ),
        ],
    );
    refused(
        propose,
        &[
            (json!({}), "prepared_request_id"),
            (
                json!({"prepared_request_id": "p", "tool_calls": [{"id": "c", "name": "t"}]}),
                "tool_calls.0.arguments",
            ),
            (
                json!({"prepared_request_id": "p", "usage": {"input": -1}}),
                "usage.input",
            ),
        ],
    );
    refused(
        set_filter,
        &[(json!({}), "tools"), (json!({"tools": [1]}), "tools.0")],
    );
    refused(
        approve,
        &[
            (json!({"decided_by": "a"}), "decision"),
            (json!({"decision": "maybe", "decided_by": "a"}), "decision"),
            (json!({"decision": "deny"}), "decided_by"),
        ],
    );
    let call = json!({"id": "c", "name": "t", "arguments": "{}"});
    let long = json!({"id": "c", "name": "t", "arguments": "x".repeat((1 << 20) + 1)});
    let whole = json!({"id": "c", "name": "t", "arguments": "x".repeat(1 << 20)});
    for (calls, blamed) in [
        (vec![call; 129], "tool_calls"),
        (vec![long], "tool_calls.0.arguments"),
        // Each is within its bound, and the response is not.
        (vec![whole; 17], "content"),
    ] {
        let body = json!({"prepared_request_id": "p", "tool_calls": calls});
        match read(propose, SESSION, &body) {
            Err(InputError::TooLarge { param, .. }) => assert_eq!(param, blamed),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ap_rest_05_wrong_workspaces_are_blamed_on_their_member() {
    let long = "x".repeat(1_025);
    refused(
        create_workspace,
        &[
            (json!({}), "name"),
            (json!({"name": "n"}), "root"),
            (json!({"name": 1, "root": "r"}), "name"),
            (json!({"name": long, "root": "r"}), "name"),
            (json!({"name": "n", "root": null}), "root"),
            (
                json!({"name": "n", "root": "r", "metadata": []}),
                "metadata",
            ),
            (
                json!({"name": "n", "root": "r", "packages": [1]}),
                "packages.0",
            ),
            (
                json!({"name": "n", "root": "r", "metadata": {"x": "y".repeat(20_000)}}),
                "metadata",
            ),
        ],
    );
    refused(
        update_workspace,
        &[
            (json!({"capabilities": ["a", 2]}), "capabilities.1"),
            (json!({"capabilities": vec!["a"; 33]}), "capabilities"),
            (json!({"capabilities": ["a".repeat(65)]}), "capabilities.0"),
            (json!({"quota_id": 1}), "quota_id"),
        ],
    );
}

#[test]
fn ap_rest_05_wrong_sessions_are_blamed_on_their_member() {
    refused(
        create_session,
        &[
            (json!({"workspace_id": 1}), "workspace_id"),
            (json!({"workspace_id": "session_1"}), "workspace_id"),
            (json!({"mode_id": "dance"}), "mode_id"),
            (
                json!({"model_policy": {"provider": "p"}}),
                "model_policy.model",
            ),
            (
                json!({"model_policy": {"provider": "", "model": "m"}}),
                "model_policy.provider",
            ),
            (
                json!({"model_policy": {"provider": "p", "model": "m", "x": 1}}),
                "model_policy.x",
            ),
            (
                json!({"model_policy": {"provider": "p", "model": "m", "reasoning_effort": "huge"}}),
                "model_policy.reasoning_effort",
            ),
            (
                json!({"initial_messages": [{"role": "user", "parts": []}, 1]}),
                "initial_messages.1",
            ),
            (
                json!({"initial_messages": [{"role": "user", "parts": [{"type": "text"}]}]}),
                "initial_messages.0.parts.0.text",
            ),
            (
                json!({"initial_messages": vec![json!({"role": "user", "parts": []}); 3]}),
                "initial_messages",
            ),
            (json!({"vault_ids": "v"}), "vault_ids"),
        ],
    );
    refused(
        update_session,
        &[
            (json!({"summary": "s".repeat(2_049)}), "summary"),
            (json!({"summary": 1}), "summary"),
        ],
    );
    refused(
        truncate_session,
        &[
            (json!({}), "keep_first"),
            (json!({"keep_first": -1}), "keep_first"),
            (json!({"keep_first": 1.5}), "keep_first"),
            (json!({"keep_first": "1"}), "keep_first"),
            (json!({"keep_first": 1, "reason": 7}), "reason"),
        ],
    );
    refused(fork_session, &[(json!({"branch_id": "main"}), "branch_id")]);
}

#[test]
fn ap_msg_02_and_ap_part_02_wrong_messages_are_blamed_on_their_member() {
    refused(
        append_message,
        &[
            (json!({}), "message"),
            (json!({"message": "hi"}), "message"),
            (json!({"message": {}}), "message.role"),
            (
                json!({"message": {"role": "dragon", "parts": []}}),
                "message.role",
            ),
            (json!({"message": {"role": "user"}}), "message.parts"),
            (
                json!({"message": {"role": "user", "parts": {}}}),
                "message.parts",
            ),
            (
                json!({"message": {"role": "user", "parts": [7]}}),
                "message.parts.0",
            ),
            (
                json!({"message": {"role": "user", "parts": [{"type": "text", "text": "a", "visibility": "secret"}]}}),
                "message.parts.0.visibility",
            ),
            (
                json!({"message": {"role": "user", "content": 7}}),
                "message.content",
            ),
            (
                json!({"message": {"role": "user", "parts": vec![json!({"type": "json", "value": 1}); 257]}}),
                "message.parts",
            ),
            (
                json!({"role": "user", "parts": [{"type": "json"}]}),
                "parts.0.value",
            ),
        ],
    );
    refused(
        task_message,
        &[
            (json!({"message": {"role": "user", "parts": []}}), "kind"),
            (
                json!({"kind": "shout", "message": {"role": "user", "parts": []}}),
                "kind",
            ),
            (json!({"kind": "input"}), "message"),
        ],
    );
}

#[test]
fn c_31_c_32_short_forms_of_a_message_are_taken() {
    let message = |body| match taken(append_message, body) {
        Request::AppendMessage { message, .. } => message,
        other => panic!("{other:?}"),
    };
    let bare = message(json!({"role": "user", "content": "hi"}));
    let whole = json!({"message": {"role": "user", "parts": [{"type": "text", "text": "hi"}]}});
    assert_eq!(bare, message(whole));
    assert_eq!(bare.role, Role::User);
    assert_eq!(bare.parts[0]["visibility"], "public");
}

#[test]
fn c_14_three_kinds_of_task_message_are_taken() {
    for (word, kind) in [
        ("input", TaskMessageKind::Input),
        ("interrupt", TaskMessageKind::Interrupt),
        ("tool_confirmation", TaskMessageKind::ToolConfirmation),
    ] {
        let body = json!({"kind": word, "message": {"role": "user", "content": "x"}});
        let request = taken(task_message, body);
        assert!(
            matches!(&request, Request::SendTaskMessage { kind: read, .. } if *read == kind),
            "{request:?}"
        );
    }
}

#[test]
fn ap_task_05_to_07_sessions_and_inputs_of_tasks() {
    refused_at(
        TARGET,
        submit_task,
        &[
            (json!({"input": {}}), "session_id"),
            (json!({"session_id": "x", "input": {}}), "session_id"),
            (json!({"session_id": null, "input": {}}), "session_id"),
            (json!({"session_id": "session_1"}), "input"),
            (
                json!({"session_id": "session_1", "input": "do it"}),
                "input",
            ),
            (json!({"session_id": "session_1", "input": [1]}), "input"),
            (
                json!({"session_id": "session_1", "input": {"role": "user", "parts": [1]}}),
                "input.parts.0",
            ),
            (
                json!({"session_id": "session_1", "input": {}, "branch_id": "b"}),
                "branch_id",
            ),
            (
                json!({"session_id": "session_1", "input": {}, "persona_id": 1}),
                "persona_id",
            ),
        ],
    );
    refused(
        submit_task,
        &[(
            json!({"session_id": "session_2", "input": {}}),
            "session_id",
        )],
    );
    let task = |body| match taken(submit_task, body) {
        Request::SubmitTask(task) => task,
        other => panic!("{other:?}"),
    };
    let object = task(json!({"input": {"goal": "x"}}));
    assert!(matches!(object.input, InputSpec::Object(_)));
    let message = task(
        json!({"session_id": "session_1", "input": {"role": "user", "content": "x"}, "parent_task_id": "task_1"}),
    );
    assert!(matches!(message.input, InputSpec::Message(_)));
    assert_eq!(message.parent_task_id, Some(TaskId::from_body("1")));
}

#[test]
fn ap_prm_02_and_04_responses_need_a_decision_or_an_answer() {
    refused(
        respond_permission,
        &[
            (json!({}), "approved"),
            (json!({"reason": "because"}), "approved"),
            (json!({"approved": "yes"}), "approved"),
            (json!({"approved": null}), "approved"),
            (json!({"outcome": "maybe"}), "outcome"),
            (json!({"approved": true, "outcome": "deny"}), "outcome"),
            (json!({"approved": true, "scope": "galaxy"}), "scope"),
            (json!({"approved": true, "remember": 1}), "remember"),
        ],
    );
    let response = |body| match taken(respond_permission, body) {
        Request::RespondPermission {
            approved,
            answer,
            remarks,
            ..
        } => (approved, answer, remarks),
        other => panic!("{other:?}"),
    };
    for word in ["approved", "approve", "selected"] {
        assert_eq!(response(json!({"outcome": word})).0, Some(true), "{word}");
    }
    for word in ["denied", "deny", "rejected"] {
        assert_eq!(response(json!({"outcome": word})).0, Some(false), "{word}");
    }
    let (approved, answer, remarks) =
        response(json!({"answer": null, "reviewer": "ann", "scope": null}));
    assert_eq!(approved, None);
    assert_eq!(answer, Some(Value::Null));
    assert_eq!(remarks, map(json!({"reviewer": "ann"})));
}

#[test]
fn ap_art_01_wrong_artifacts_are_blamed_on_their_member() {
    let good = json!({"kind": "file", "mime_type": "text/plain", "visibility": "public"});
    let with = |name: &str, value: Value| {
        let mut body = map(good.clone());
        body.insert(name.to_owned(), value);
        Value::Object(body)
    };
    let without = |name: &str| {
        let mut body = map(good.clone());
        body.remove(name);
        Value::Object(body)
    };
    refused(
        register_artifact,
        &[
            (without("kind"), "kind"),
            (without("mime_type"), "mime_type"),
            (without("visibility"), "visibility"),
            (with("kind", json!("poem")), "kind"),
            (with("mime_type", json!("text/plain\n")), "mime_type"),
            (with("mime_type", json!("")), "mime_type"),
            (with("sha256", json!("beef")), "sha256"),
            (with("uri", json!("u".repeat(2_049))), "uri"),
            (with("task_id", json!("artifact_1")), "task_id"),
        ],
    );
    let hex = "AB".repeat(32);
    for text in [hex.clone(), format!("sha256:{hex}")] {
        let Request::RegisterArtifact(artifact) =
            taken(register_artifact, with("sha256", json!(text)))
        else {
            panic!("another request");
        };
        assert_eq!(artifact.sha256.unwrap().hex(), hex.to_lowercase());
    }
}

#[test]
fn ap_vault_02_descriptions_of_vaults_hold_no_secrets() {
    refused(
        create_vault,
        &[
            (json!({"capabilities": []}), "provider"),
            (json!({"provider": "env"}), "capabilities"),
            (
                json!({"provider": "env", "capabilities": ["read"], "metadata": {"client_secret": "s"}}),
                "metadata",
            ),
            (
                json!({"provider": "env", "capabilities": ["access_token"]}),
                "capabilities",
            ),
        ],
    );
    taken(
        create_vault,
        json!({"provider": "env", "capabilities": ["read"], "workspace_id": null}),
    );
}

#[test]
fn ap_br_01_wrong_branches_are_blamed_on_their_member() {
    refused(
        create_branch,
        &[
            (json!({"base_ref": "main"}), "kind"),
            (json!({"kind": "tree", "base_ref": "main"}), "kind"),
            (json!({"kind": "session"}), "base_ref"),
            (
                json!({"kind": "session", "base_ref": "main", "task_id": 1}),
                "task_id",
            ),
        ],
    );
}
