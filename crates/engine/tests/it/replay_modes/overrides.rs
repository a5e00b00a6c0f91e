//! Answers that the request replaces (B3), and what follows from them.

use canon::{Value, jcs, sha256};
use domain::Status;
use engine::Caller;
use serde_json::json;

use super::{chained_source, divergence, effect, first_unavailable};
use crate::rig::{Outside, World, deltas, saying, with};

/// B3, the row of with_overrides. AP-RPL-06, AP-RPL-15.
#[tokio::test]
async fn b03_ap_rpl_06_an_override_changes_what_depends_on_it_and_nothing_else() {
    let world = World::new(Outside::new()).await;
    let source = chained_source(&world).await;
    let calls = world.outside.call_count();
    let body = with(&[("llm:main:1", "llm_provider_response", json!("other"))]);
    let replay = world.replay(&source.id, body).await;
    assert_eq!(replay.status, Status::Completed);
    assert_eq!(world.outside.call_count(), calls);
    assert_eq!(
        replay.text(),
        json!([
            ["llm:main:1", true, "other"],
            ["host:tool.a:main:1", true, "two"],
            ["mcp:s:main:1", true, "three"]
        ])
        .to_string()
    );
    let completed = replay.payload("replay.completed");
    assert_eq!(completed["overrides_applied"], json!(["llm:main:1"]));
    assert_eq!(completed["result_equal"], false);
    // The answers of later steps belong to other requests.
    for key in ["host:tool.a:main:1", "mcp:s:main:1"] {
        let record = replay.record(key);
        assert_eq!(record.payload["replay_note"], "stale_input", "{key}");
        assert_eq!(
            record.replay.as_ref().unwrap().original_event_id.as_deref(),
            Some(&*source.record(key).id)
        );
    }
    // B12.22: receipt_only by default, so the event tells the digest.
    let record = replay.record("llm:main:1");
    let mark = record.replay.as_ref().unwrap();
    assert_eq!(mark.override_key.as_deref(), Some("llm:main:1"));
    assert_eq!(mark.receipt_delta_id.as_deref(), Some("delta_llm_main_1"));
    assert!(record.payload.get("value").is_none());
    let digest = sha256(&jcs(&json!("other"))).to_string();
    assert_eq!(record.payload["value_sha256"], digest);
    let deltas = deltas(&world.receipt(&replay).await);
    assert_eq!(
        deltas,
        [json!({
            "delta_id": "delta_llm_main_1",
            "operation": "replace",
            "path": "/replay_input/materials/llm:main:1",
            "override_key": "llm:main:1",
            "event_id": source.record("llm:main:1").id,
            "before_sha256": sha256(&jcs(&json!("one"))),
            "after_sha256": digest,
            "reason": "override",
        })]
    );
    let outcome = replay.payload("vendor.outcome_recorded");
    assert_eq!(outcome["messages"][0]["parts"][0]["text"], replay.text());
}

#[tokio::test]
async fn b03_stale_inputs_fail_when_the_request_says_so() {
    let world = World::new(Outside::new()).await;
    let source = chained_source(&world).await;
    let mut body = with(&[("llm:main:1", "llm_provider_response", json!("other"))]);
    body["metadata"] = json!({"replay_policy": {"on_stale_input": "fail"}});
    let replay = world.replay(&source.id, body).await;
    let divergence = divergence(&replay);
    assert_eq!(divergence["key"], "host:tool.a:main:1");
    assert_eq!(divergence["what"], "request");
    // What was applied before the failure is accounted for.
    assert_eq!(deltas(&world.receipt(&replay).await).len(), 1);
    let own: Vec<&str> = replay
        .events
        .iter()
        .filter(|event| event.replay.is_none())
        .map(|event| &*event.kind)
        .skip(4)
        .collect();
    // B10: the order of the end.
    assert_eq!(
        own,
        [
            "replay.failed",
            "vendor.outcome_recorded",
            "task.failed",
            "task.status_changed",
            "receipt.issued"
        ]
    );
}

/// B3: a path that an override opens needs what was never recorded; an override can give it.
#[tokio::test]
async fn b03_a_path_that_was_never_taken_needs_its_own_answers() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .answer("host:x:main:1", json!("no"))
        .answer("host:y:main:1", json!("never"));
    let source = world
        .steps(json!({"steps": [
            [effect("host:x:main:1", "host")],
            [{"key": "host:y:main:1", "kind": "host", "when": "yes"}],
        ]}))
        .await;
    let opens = ("host:x:main:1", "host_fact", json!("yes"));
    let replay = world
        .replay(&source.id, with(std::slice::from_ref(&opens)))
        .await;
    let first = first_unavailable(&replay);
    assert_eq!(first["type"], "host");
    assert_eq!(first["key"], "host:y:main:1");
    assert_eq!(first["reason"], "not_recorded");
    assert_eq!(deltas(&world.receipt(&replay).await).len(), 1);
    let gives = ("host:y:main:1", "host_fact", json!("given"));
    let replay = world.replay(&source.id, with(&[opens, gives])).await;
    assert_eq!(replay.status, Status::Completed);
    let record = replay.record("host:y:main:1");
    assert_eq!(record.replay.as_ref().unwrap().original_event_id, None);
    let deltas = deltas(&world.receipt(&replay).await);
    assert_eq!(deltas[1]["operation"], "add");
    assert_eq!(deltas[1]["before_sha256"], Value::Null);
    assert!(deltas[1].get("event_id").is_none());
}

/// Every kind of override reaches what it names. The order of deltas is that of their keys.
#[tokio::test]
async fn every_kind_of_override_is_applied_by_value_and_by_artifact() {
    let world = World::new(Outside::new()).await;
    let effects = [
        ("llm:main:1", "model", "llm_provider_response"),
        ("mcp:s:main:1", "mcp", "mcp_tool_return"),
        ("host:tool.a:main:1", "tool", "tool_result"),
        ("host:fs.read:main:1", "host", "host_fact"),
        ("host:random:main:1", "random", "host_fact"),
        ("host:memory.read:main:1", "memory", "host_fact"),
        ("time:deadline", "time", "time"),
        ("secret:token", "secret", "secret_value"),
    ];
    for (key, kind, _) in effects {
        if !["random", "memory", "time"].contains(&kind) {
            world.outside.answer(key, json!({"recorded": key}));
        }
    }
    let steps: Vec<Value> = effects
        .iter()
        .map(|(key, kind, _)| json!([effect(key, kind)]))
        .collect();
    let source = world.steps(json!({"steps": steps, "product": "set"})).await;
    assert_eq!(
        source.status,
        Status::Completed,
        "{:?}",
        source.payload("task.failed")
    );
    let mut keys = Vec::new();
    for (key, _, kind) in effects {
        let value = json!({"changed": key});
        let replay = world
            .replay(&source.id, with(&[(key, kind, value.clone())]))
            .await;
        assert_eq!(replay.status, Status::Completed, "{key}");
        let deltas = deltas(&world.receipt(&replay).await);
        assert_eq!(deltas.len(), 1, "{key}");
        assert_eq!(deltas[0]["override_key"], key);
        assert_eq!(deltas[0]["operation"], "replace");
        if kind == "secret_value" {
            assert!(
                deltas[0].get("before_sha256").is_none() && deltas[0].get("after_sha256").is_none()
            );
            continue;
        }
        keys.push(key);
        assert_eq!(
            deltas[0]["before_sha256"],
            source.record(key).payload["value_sha256"]
        );
        assert!(replay.text().contains(&value.to_string()), "{key}");
        let bytes = serde_json::to_vec(&value).unwrap();
        let artifact = crate::replay_request::artifact(&world, &bytes).await;
        let body = json!({"mode": "with_overrides", "override": {key: {"kind": kind, "artifact_id": artifact, "reason": "why not"}}});
        let replay = world.replay(&source.id, body).await;
        let deltas = crate::rig::deltas(&world.receipt(&replay).await);
        assert_eq!(deltas[0]["artifact_id"], artifact, "{key}");
        assert_eq!(deltas[0]["reason"], "why not");
        assert!(replay.text().contains(&value.to_string()), "{key}");
    }
    // All at once, in the order of their bytes.
    let all: Vec<(&str, &str, Value)> = effects
        .iter()
        .map(|(key, _, kind)| (*key, *kind, json!(0)))
        .collect();
    let replay = world.replay(&source.id, with(&all)).await;
    let receipt = world.receipt(&replay).await;
    let listed: Vec<String> = deltas(&receipt)
        .iter()
        .map(|delta| delta["override_key"].as_str().unwrap().to_owned())
        .collect();
    let mut sorted = listed.clone();
    sorted.sort();
    assert_eq!((listed.len(), &listed), (effects.len(), &sorted));
    // C-24: times and secrets are no material; the log comes first, then what was replaced.
    let materials: Vec<&str> = receipt.as_map()["replay_input"]["materials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|material| material["id"].as_str().unwrap())
        .collect();
    keys.retain(|key| !key.starts_with("time:"));
    keys.sort_unstable();
    assert_eq!(materials[0], format!("event_log_{}", source.id));
    assert_eq!(materials[1..], keys);
    // The product holds what it was told: other content, another artifact.
    let artifacts = receipt.as_map()["final_artifacts"].as_array().unwrap();
    let id = artifacts[0]["artifact_id"].as_str().unwrap();
    assert_eq!(id, format!("artifact_{}_1", &replay.id.as_str()[5..]));
    let mut content = world
        .engine
        .artifact_content(&Caller::system(), id)
        .await
        .unwrap();
    let all = content.1.next().await.unwrap().unwrap();
    assert_eq!(artifacts[0]["sha256"], sha256(&all).to_string());
}

#[tokio::test]
async fn the_payload_of_any_event_can_be_replaced() {
    let world = World::new(Outside::new()).await;
    let source = world.looked().await;
    // The record of an effect: its value is the answer.
    let record = source.record("llm:main:2").id.to_string();
    let key = format!("event:{record}");
    let payload = json!({"effect_key": "llm:main:2", "outcome": "ok", "value": saying("replaced")});
    let replay = world
        .replay(
            &source.id,
            with(&[(&key, "event_payload", payload.clone())]),
        )
        .await;
    assert_eq!(
        (replay.status, replay.text().as_str()),
        (Status::Completed, "replaced")
    );
    let receipt = world.receipt(&replay).await;
    let found = deltas(&receipt);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["path"], format!("/events/{record}/payload"));
    assert_eq!(found[0]["after_sha256"], json!(sha256(&jcs(&payload))));
    // The recorded answer was not used, so it is no material.
    let materials = receipt.as_map()["replay_input"]["materials"].to_string();
    assert!(!materials.contains("\"llm:main:2\""), "{materials}");
    // The input: everything depends on it.
    let input = source.event_id("user.message");
    let payload = json!({"role": "user", "parts": [{"type": "text", "text": "stay", "visibility": "public"}]});
    let key = format!("event:{input}");
    let replay = world
        .replay(&source.id, with(&[(&key, "event_payload", payload)]))
        .await;
    assert_eq!(replay.status, Status::Completed);
    assert_eq!(
        replay.record("llm:main:1").payload["replay_note"],
        "stale_input"
    );
    assert_eq!(deltas(&world.receipt(&replay).await).len(), 1);
    // A tool's result as the agent tells it: told differently, decided the same.
    let told = source.event_id("agent.tool_result");
    let key = format!("event:{told}");
    let body = json!({"mode": "with_overrides", "override": {key.clone(): {"kind": "event_payload", "value": {"a": 1}, "visibility": "public"}}});
    let replay = world.replay(&source.id, body).await;
    assert_eq!(replay.status, Status::Completed);
    let shown = replay.of_kind("agent.tool_result")[0];
    // It still says which effect it is about.
    assert_eq!(
        Value::Object((*shown.payload).clone()),
        json!({"a": 1, "effect_key": "mcp:eyes:main:1"})
    );
    assert_eq!(
        shown.replay.as_ref().unwrap().override_key.as_deref(),
        Some(key.as_str())
    );
}

/// An event that makes an artifact, replaced by one that makes none.
#[tokio::test]
async fn the_event_of_an_artifact_can_be_replaced_too() {
    let world = World::new(Outside::new()).await;
    world.outside.answer("host:x:main:1", json!(1));
    let source = world
        .steps(json!({"steps": [[effect("host:x:main:1", "host")]], "product": "set"}))
        .await;
    let key = format!("event:{}", source.event_id("artifact.created"));
    for visibility in ["public", "receipt_only"] {
        let body = json!({"mode": "with_overrides", "override": {key.clone(): {"kind": "event_payload", "value": {"no": "artifact"}, "visibility": visibility}}});
        let replay = world.replay(&source.id, body).await;
        assert_eq!(replay.status, Status::Completed);
        let receipt = world.receipt(&replay).await;
        assert_eq!(deltas(&receipt).len(), 1);
        assert_eq!(receipt.as_map()["final_artifacts"], json!([]));
        let again = world.replay(&replay.id, json!({})).await;
        assert_eq!(again.payload("replay.completed")["result_equal"], true);
    }
}
