//! Facts read back from a published receipt, so that building can be compared with it.

use canon::{Digest, Map, Value};
use receipts::*;

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn maybe(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn digest(value: &Value) -> Option<Digest> {
    value.as_str().map(|text| Digest::parse(text).unwrap())
}

fn micros(value: &Value) -> Micros {
    Micros((value.as_f64().unwrap() * 1e6).round() as u64)
}

fn each<T>(list: &Value, read: impl Fn(&Value) -> T) -> Vec<T> {
    list.as_array().unwrap().iter().map(read).collect()
}

/// Finds the word that is written so.
fn word<T: Copy>(value: &Value, words: &[T], write: fn(T) -> &'static str) -> T {
    let is_it = |word: &&T| write(**word) == value.as_str().unwrap();
    *words.iter().find(is_it).unwrap()
}

fn tier(value: &Value) -> Tier {
    let tiers = [
        Tier::Shadow,
        Tier::Suggest,
        Tier::ActWithApproval,
        Tier::ActAuto,
    ];
    word(value, &tiers, Tier::as_str)
}

fn model(value: &Value) -> ModelRef {
    ModelRef {
        provider: text(&value["provider"]),
        model: text(&value["model"]),
        version: maybe(&value["version"]),
        reason: maybe(&value["reason"]),
    }
}

fn issuer(value: &Value) -> Issuer {
    Issuer {
        id: text(&value["id"]),
        name: maybe(&value["name"]),
        version: text(&value["version"]),
        public_key_id: maybe(&value["public_key_id"]),
    }
}

fn identifiers(value: &Value) -> Identifiers {
    Identifiers {
        tenant_id: maybe(&value["tenant_id"]),
        persona_ref: maybe(&value["persona_ref"]),
        workspace_ref: text(&value["workspace_ref"]),
        session_id: text(&value["session_id"]),
        task_id: text(&value["task_id"]),
        branch_id: maybe(&value["branch_id"]),
        trace_id: maybe(&value["trace_id"]),
    }
}

fn lifecycle(value: &Value) -> Lifecycle {
    assert_eq!(value["final_state"], "SUCCEEDED");
    Lifecycle {
        created_at: maybe(&value["created_at"]),
        started_at: maybe(&value["started_at"]),
        completed_at: text(&value["completed_at"]),
        end: TaskEnd::Succeeded,
    }
}

fn trust(value: &Value) -> Trust {
    Trust {
        start_tier: tier(&value["start_tier"]),
        end_tier: tier(&value["end_tier"]),
        policy_ref: maybe(&value["policy_ref"]),
    }
}

/// The first material is the event log.
fn replay_input(value: &Value) -> ReplayInput {
    assert_eq!(value["determinism"], "byte_deterministic");
    let (log, rest) = value["materials"]
        .as_array()
        .unwrap()
        .split_first()
        .unwrap();
    let kinds = [
        MaterialKind::LlmProviderResponse,
        MaterialKind::McpToolReturn,
    ];
    let material = |value: &Value| {
        let sha256 = digest(&value["sha256"]).unwrap();
        Material {
            kind: word(&value["kind"], &kinds, MaterialKind::as_str),
            id: text(&value["id"]),
            content_type: maybe(&value["content_type"]),
            content: match maybe(&value["uri"]) {
                Some(uri) => MaterialContent::Stored { uri, sha256 },
                None => MaterialContent::Overridden { sha256 },
            },
        }
    };
    ReplayInput {
        determinism: Determinism::ByteDeterministic,
        event_log: EventLog {
            id: text(&log["id"]),
            uri: text(&log["uri"]),
            sha256: digest(&log["sha256"]).unwrap(),
        },
        materials: rest.iter().map(material).collect(),
    }
}

fn artifacts(value: &Value) -> Vec<FinalArtifact> {
    each(value, |artifact| FinalArtifact {
        artifact_id: text(&artifact["artifact_id"]),
        kind: text(&artifact["kind"]),
        sha256: digest(&artifact["sha256"]),
    })
}

fn redactions(value: &Value) -> Vec<Redaction> {
    each(value, |redaction| Redaction {
        field: text(&redaction["field"]),
        reason: text(&redaction["reason"]),
        proof_hash: digest(&redaction["proof_hash"]),
    })
}

pub(crate) fn task_facts(map: &Map<String, Value>) -> TaskFacts {
    let (consumed, limit) = (
        &map["autonomy_budget"]["consumed"],
        &map["autonomy_budget"]["limit"],
    );
    let effects = &map["side_effects"];
    let chosen = &map["model_route"]["chosen_model"];
    TaskFacts {
        receipt_id: text(&map["receipt_id"]),
        issuer: issuer(&map["issuer"]),
        issued_at: text(&map["issued_at"]),
        identifiers: identifiers(&map["identifiers"]),
        lifecycle: lifecycle(&map["lifecycle"]),
        approvals: each(&map["approvals"], |approval| Approval {
            approval_id: maybe(&approval["approval_id"]),
            actor: text(&approval["actor"]),
            action: text(&approval["action"]),
            decision: word(
                &approval["decision"],
                &[Decision::Approved],
                Decision::as_str,
            ),
            decided_at: text(&approval["decided_at"]),
            quorum: Some(Quorum {
                required: approval["quorum_proof"]["required"].as_u64().unwrap(),
                satisfied: approval["quorum_proof"]["satisfied"].as_u64().unwrap(),
            }),
            evidence_hash: digest(&approval["evidence_hash"]),
        }),
        trust: trust(&map["trust"]),
        limit: Some(BudgetLimit {
            usd: Some(micros(&limit["usd"])),
            input_tokens: limit["input_tokens"].as_u64(),
            output_tokens: limit["output_tokens"].as_u64(),
            tool_calls: limit["tool_calls"].as_u64(),
            wall_time_ms: limit["wall_time_ms"].as_u64(),
        }),
        consumed: Budget {
            usd: micros(&consumed["usd"]),
            input_tokens: consumed["input_tokens"].as_u64().unwrap(),
            output_tokens: consumed["output_tokens"].as_u64().unwrap(),
            tool_calls: consumed["tool_calls"].as_u64().unwrap(),
            wall_time_ms: consumed["wall_time_ms"].as_u64().unwrap(),
        },
        replay_input: replay_input(&map["replay_input"]),
        model_calls: each(&map["cost"]["provider_breakdown"], |cost| ModelCall {
            model: model(chosen),
            input_tokens: cost["input_tokens"].as_u64().unwrap(),
            output_tokens: cost["output_tokens"].as_u64().unwrap(),
            cost: Some(micros(&cost["amount"])),
            price_table: None,
        }),
        alternatives: each(&map["model_route"]["alternatives_considered"], model),
        route_policy_reason: text(&map["model_route"]["route_policy_reason"]),
        currency: text(&map["cost"]["currency"]),
        side_effects: SideEffects {
            fs_writes: each(&effects["fs_writes"], |write| FileWrite {
                path: text(&write["path"]),
                operation: word(
                    &write["operation"],
                    &[FileOperation::Modify],
                    FileOperation::as_str,
                ),
                before_sha256: digest(&write["before_sha256"]),
                after_sha256: digest(&write["after_sha256"]),
            }),
            network_egress: each(&effects["network_egress"], |egress| NetworkEgress {
                destination: text(&egress["destination"]),
                purpose: text(&egress["purpose"]),
                bytes_sent: egress["bytes_sent"].as_u64(),
            }),
            tool_calls: each(&effects["tool_calls"], |call| ToolCall {
                tool: text(&call["tool"]),
                call_id: text(&call["call_id"]),
                status: word(
                    &call["status"],
                    &[ToolStatus::Succeeded],
                    ToolStatus::as_str,
                ),
                input_hash: digest(&call["input_hash"]),
                output_hash: digest(&call["output_hash"]),
                sandbox: None,
            }),
            handoffs: Vec::new(),
        },
        final_artifacts: artifacts(&map["final_artifacts"]),
        redactions: redactions(&map["redactions"]),
        previous_receipt_hash: digest(&map["chain"]["previous_receipt_hash"]),
        merkle_root: digest(&map["chain"]["merkle_root"]),
        metadata: map["metadata"].as_object().unwrap().clone(),
    }
}

pub(crate) fn replay_facts(map: &Map<String, Value>) -> ReplayFacts {
    let source_task_id = text(&map["metadata"]["source_task_id"]);
    let mut identifiers = identifiers(&map["identifiers"]);
    // Derived, so that the rule is compared too.
    identifiers.task_id = replay_task_id(&source_task_id, 1);
    let receipt_id = text(&map["receipt_id"]).replacen("replay_", "", 1);
    let mut applied = each(&map["deltas"], |delta| Applied {
        key: text(&delta["override_key"]),
        operation: word(
            &delta["operation"],
            &[DeltaOperation::Replace],
            DeltaOperation::as_str,
        ),
        event_id: maybe(&delta["event_id"]),
        before_sha256: digest(&delta["before_sha256"]),
        after_sha256: digest(&delta["after_sha256"]),
        artifact_id: maybe(&delta["artifact_id"]),
        reason: text(&delta["reason"]),
    });
    // The builder orders them.
    applied.reverse();
    ReplayFacts {
        receipt_id: replay_receipt_id(Some(&receipt_id), &source_task_id, 1),
        issuer: Issuer {
            public_key_id: Some("not to be written".to_owned()),
            ..issuer(&map["issuer"])
        },
        issued_at: text(&map["issued_at"]),
        identifiers,
        lifecycle: lifecycle(&map["lifecycle"]),
        trust: trust(&map["trust"]),
        replay_input: replay_input(&map["replay_input"]),
        live: LivePart::default(),
        chosen_model: Some(model(&map["model_route"]["chosen_model"])),
        currency: text(&map["cost"]["currency"]),
        final_artifacts: artifacts(&map["final_artifacts"]),
        applied,
        redactions: redactions(&map["redactions"]),
        source_receipt_hash: digest(&map["chain"]["previous_receipt_hash"]),
        source: text(&map["metadata"]["source"]),
        source_task_id,
        replay_mode: text(&map["metadata"]["replay_mode"]),
    }
}
