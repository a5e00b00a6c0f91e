//! Published data, and facts from which the tests make their own receipts.

use std::sync::LazyLock;

use canon::{Digest, Integers, Map, Value, jcs, sha256};
use receipts::*;
use serde_json::json;

/// Reads published data that is not part of this repository; none when the test is left out.
pub(crate) fn published(path: &str) -> Option<Vec<u8>> {
    testing::published(&format!("data/{path}"))
}

pub(crate) fn published_object(path: &str) -> Option<Map<String, Value>> {
    published(path).map(|bytes| canon::read_object(&bytes, Integers::Safe).unwrap())
}

pub(crate) const TASK_FIXTURE: &str = "receipts/fixtures/valid/task-receipt.json";
pub(crate) const REPLAY_FIXTURE: &str = "replay/fixtures/valid/task-replay-receipt.json";

/// A digest of one repeated hex digit, as the fixtures have them.
pub(crate) fn repeated(digit: char) -> Digest {
    Digest::parse(&digit.to_string().repeat(64)).unwrap()
}

pub(crate) fn signer() -> Signer {
    // RFC 8032, test 1.
    let mut secret = [0; 32];
    let hex = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
    for (index, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[index * 2..index * 2 + 2], 16).unwrap();
    }
    Signer::new("key_1", &secret)
}

pub(crate) fn key_set() -> KeySet {
    KeySet::new(vec![PublicKey {
        key_id: "key_1".to_owned(),
        bytes: signer().public(),
        not_before: None,
        expires: None,
        retired: None,
    }])
    .unwrap()
}

/// The facts of a task that edited a file, with approval.
pub(crate) fn task_facts() -> TaskFacts {
    let owned = str::to_owned;
    let model = |name: &str, version: Option<&str>, reason: Option<&str>| ModelRef {
        provider: owned("local"),
        model: owned(name),
        version: version.map(owned),
        reason: reason.map(owned),
    };
    let stored = |kind, id: &str, uri: &str, digit| Material {
        kind,
        id: owned(id),
        content_type: Some(owned("application/json")),
        content: MaterialContent::Stored {
            uri: owned(uri),
            sha256: repeated(digit),
        },
    };
    TaskFacts {
        receipt_id: owned("receipt_7"),
        issuer: Issuer {
            id: owned("harness_lab"),
            name: Some(owned("Lab")),
            version: owned("agents-protocol-2026-04-25"),
            public_key_id: Some(owned("key_1")),
        },
        issued_at: owned("2026-04-25T19:17:33Z"),
        identifiers: Identifiers {
            tenant_id: Some(owned("tenant_1")),
            persona_ref: Some(owned("persona_editor@3")),
            workspace_ref: owned("workspace_2"),
            session_id: owned("session_4"),
            task_id: owned("task_5"),
            branch_id: Some(owned("branch_1")),
            trace_id: Some(owned("trace_6")),
        },
        lifecycle: Lifecycle {
            created_at: Some(owned("2026-04-25T19:16:10.5Z")),
            started_at: Some(owned("2026-04-25T19:16:14.000001Z")),
            completed_at: owned("2026-04-25T21:17:33+02:00"),
            end: TaskEnd::Succeeded,
        },
        approvals: vec![Approval {
            approval_id: Some(owned("approval_8")),
            actor: owned("user_ada"),
            action: owned("file.write"),
            decision: Decision::Approved,
            decided_at: owned("2026-04-25T19:17:02Z"),
            quorum: Some(Quorum {
                required: 1,
                satisfied: 1,
            }),
            evidence_hash: Some(repeated('a')),
        }],
        trust: Trust {
            start_tier: Tier::Suggest,
            end_tier: Tier::ActWithApproval,
            policy_ref: Some(owned("policy_9")),
        },
        limit: Some(BudgetLimit {
            usd: Some(Micros(2_000_000)),
            input_tokens: Some(200_000),
            output_tokens: Some(50_000),
            tool_calls: Some(100),
            wall_time_ms: Some(600_000),
        }),
        consumed: Budget {
            usd: Micros(37_500),
            input_tokens: 1700,
            output_tokens: 310,
            tool_calls: 4,
            wall_time_ms: 79_000,
        },
        replay_input: ReplayInput {
            determinism: Determinism::ByteDeterministic,
            event_log: EventLog {
                id: owned("event_log_task_5"),
                uri: owned("artifact://artifact_log"),
                sha256: repeated('9'),
            },
            materials: vec![
                stored(
                    MaterialKind::LlmProviderResponse,
                    "llm:main:1",
                    "artifact://artifact_response",
                    'b',
                ),
                stored(
                    MaterialKind::McpToolReturn,
                    "mcp:git:main:1",
                    "artifact://artifact_return",
                    'c',
                ),
            ],
        },
        model_calls: vec![ModelCall {
            model: model("small", Some("2"), None),
            input_tokens: 1700,
            output_tokens: 310,
            cost: Some(Micros(37_500)),
            price_table: None,
        }],
        alternatives: vec![model("large", None, Some("too slow"))],
        route_policy_reason: owned("cheapest that fits"),
        currency: owned("USD"),
        side_effects: SideEffects {
            fs_writes: vec![FileWrite {
                path: owned("notes/über.md"),
                operation: FileOperation::Modify,
                before_sha256: Some(repeated('d')),
                after_sha256: Some(repeated('e')),
            }],
            network_egress: vec![NetworkEgress {
                destination: owned("forge.example"),
                purpose: owned("send the change"),
                bytes_sent: Some(900),
            }],
            tool_calls: vec![ToolCall {
                tool: owned("edit"),
                call_id: owned("call_1"),
                status: ToolStatus::Succeeded,
                input_hash: Some(repeated('f')),
                output_hash: None,
                sandbox: None,
            }],
            handoffs: Vec::new(),
        },
        final_artifacts: vec![FinalArtifact {
            artifact_id: owned("artifact_change"),
            kind: owned("change"),
            sha256: Some(repeated('1')),
        }],
        redactions: vec![Redaction {
            field: owned("/replay_input/materials/1/content"),
            reason: owned("kept as an artifact"),
            proof_hash: Some(repeated('b')),
        }],
        previous_receipt_hash: None,
        merkle_root: None,
        metadata: Map::from_iter([(owned("operator"), "night shift".into())]),
    }
}

/// The facts of a replay of that task with two overrides.
pub(crate) fn replay_facts() -> ReplayFacts {
    let owned = str::to_owned;
    let task = task_facts();
    let applied = |key: &str, event: &str, before, after| Applied {
        key: owned(key),
        operation: DeltaOperation::Replace,
        event_id: Some(owned(event)),
        before_sha256: Some(repeated(before)),
        after_sha256: Some(repeated(after)),
        artifact_id: None,
        reason: owned("what if"),
    };
    ReplayFacts {
        receipt_id: replay_receipt_id(Some("receipt_7"), "task_5", 1),
        issuer: task.issuer,
        issued_at: task.issued_at,
        identifiers: Identifiers {
            task_id: replay_task_id("task_5", 1),
            ..task.identifiers
        },
        lifecycle: task.lifecycle,
        trust: task.trust,
        replay_input: ReplayInput {
            materials: vec![Material {
                kind: MaterialKind::LlmProviderResponse,
                id: owned("llm:main:1"),
                content_type: None,
                content: MaterialContent::Overridden {
                    sha256: repeated('a'),
                },
            }],
            ..task.replay_input
        },
        live: LivePart::default(),
        chosen_model: Some(task.model_calls[0].model.clone()),
        currency: task.currency,
        final_artifacts: vec![FinalArtifact {
            artifact_id: replay_artifact_id("task_replay_5", 1),
            kind: owned("change"),
            sha256: Some(repeated('d')),
        }],
        applied: vec![
            applied("time:started_at", "event_2", '2', 'b'),
            applied("llm:main:1", "event_3", '1', 'a'),
        ],
        redactions: Vec::new(),
        source_receipt_hash: Some(repeated('e')),
        source: owned("replay"),
        source_task_id: owned("task_5"),
        replay_mode: owned("with_overrides"),
    }
}

/// A receipt in which every member of the format occurs.
pub(crate) fn everything() -> Map<String, Value> {
    // Made once: signing takes long without optimisation.
    static MADE: LazyLock<Map<String, Value>> = LazyLock::new(make_everything);
    MADE.clone()
}

fn make_everything() -> Map<String, Value> {
    let digest = repeated('7').to_string();
    let mut map = build_task(&task_facts())
        .unwrap()
        .signed(&signer())
        .as_map()
        .clone();
    let replay = build_replay(&replay_facts()).unwrap();
    map.insert("deltas".to_owned(), replay.as_map()["deltas"].clone());
    map["deltas"][0]["artifact_id"] = json!("artifact_1");
    map["deltas"][1]["before_sha256"] = Value::Null;
    map["lifecycle"]["failure"] = json!({"code": "x", "deep": {"list": [1, 2.5, null, "x"]}});
    map["signatures"][0]["signed_at"] = json!("2026-04-25T19:17:34Z");
    map["chain"]["merkle_root"] = json!(digest);
    map["chain"]["previous_receipt_hash"] = json!(digest);
    map["replay_input"]["unavailable_reason"] = json!("none");
    map["replay_input"]["materials"][0]["metadata"] = json!({"any": []});
    map["replay_input"]["materials"][1]["bytes_base64"] = json!("AA==");
    let metadata_only = json!({"kind": "host_fact", "metadata": {}});
    let materials = map["replay_input"]["materials"].as_array_mut().unwrap();
    materials.push(metadata_only);
    materials.push(json!({"kind": "artifact", "bytes_base64": "AA==", "sha256": digest}));
    map["model_route"]["chosen_model"]["reason"] = json!("best");
    map["cost"]["provider_breakdown"][0]["metadata"] = json!({"price_table": "2026-04"});
    map["side_effects"]["fs_writes"][0]["before_sha256"] = Value::Null;
    map["side_effects"]["network_egress"][0]["metadata"] = json!({});
    map["side_effects"]["tool_calls"][0]["metadata"] = json!({});
    map["side_effects"]["tool_calls"][0]["output_hash"] = json!(digest);
    map["side_effects"]["a2a_handoffs"] =
        json!([{"target_agent": "a", "task_id": "t", "status": "completed", "receipt_id": "r"}]);
    reseal(&mut map);
    map
}

/// Sets the hash that fits the content, the way the format describes it.
pub(crate) fn reseal(map: &mut Map<String, Value>) {
    let mut content = map.clone();
    content.remove("signatures");
    if let Some(Value::Object(chain)) = content.get_mut("chain") {
        chain.remove("receipt_hash");
    }
    let hash = sha256(&jcs(&Value::Object(content))).to_string();
    if let Some(Value::Object(chain)) = map.get_mut("chain")
        && chain.contains_key("receipt_hash")
    {
        chain.insert("receipt_hash".to_owned(), hash.into());
    }
}

/// The places of all values in a document, as JSON Pointers, the root first.
pub(crate) fn pointers(value: &Value) -> Vec<String> {
    fn walk(value: &Value, at: &str, out: &mut Vec<String>) {
        out.push(at.to_owned());
        match value {
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    walk(item, &format!("{at}/{index}"), out);
                }
            }
            Value::Object(map) => {
                for (name, member) in map {
                    walk(member, &format!("{at}/{name}"), out);
                }
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    walk(value, "", &mut out);
    out
}

/// Removes the value at a pointer from its parent.
pub(crate) fn remove(value: &mut Value, pointer: &str) {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    match value.pointer_mut(parent).unwrap() {
        Value::Object(map) => {
            map.remove(name).unwrap();
        }
        Value::Array(items) => {
            items.remove(name.parse().unwrap());
        }
        _ => unreachable!("a parent is a container"),
    }
}
