//! The run itself: where each answer comes from (B3), checkpoints (B4), time (B5), secrets (B6), refresh (B7), events
//! and deltas (B8), receipts (B9) and failures (B10).

use std::collections::BTreeSet;

use canon::{Value, jcs, sha256};
use domain::{Blob, Status};
use engine::Caller;
use engine::port::{Performed, Store};
use serde_json::json;

use crate::rig::{
    Finished, Outside, World, deltas, expected_kinds, registry, saying, two_tools, unsigned, with,
};

fn effect(key: &str, kind: &str) -> Value {
    json!({"key": key, "kind": kind})
}

/// Three steps; each request of the later ones depends on what came before.
fn chained() -> Value {
    json!({"steps": [
        [{"key": "llm:main:1", "kind": "model"}],
        [{"key": "host:tool.a:main:1", "kind": "tool", "chained": true}],
        [{"key": "mcp:s:main:1", "kind": "mcp", "chained": true}],
    ]})
}

async fn chained_source(world: &World) -> Finished {
    world
        .outside
        .answer("llm:main:1", json!("one"))
        .answer("host:tool.a:main:1", json!("two"))
        .answer("mcp:s:main:1", json!("three"));
    world.steps(chained()).await
}

fn first_unavailable(replay: &Finished) -> Value {
    let failed = replay.payload("replay.failed");
    assert_eq!(failed["code"], "replay_dependency_unavailable", "{failed}");
    let failure = replay.payload("task.failed")["failure"].clone();
    assert_eq!(failure["code"], failed["code"]);
    assert_eq!(failure["details"], failed["details"]);
    failed["details"]["first_unavailable"].clone()
}

fn divergence(replay: &Finished) -> Value {
    let failed = replay.payload("replay.failed");
    assert_eq!(failed["code"], "replay_divergence", "{failed}");
    assert_eq!(
        replay.payload("task.failed")["failure"]["code"],
        "replay_divergence"
    );
    failed["details"]["divergence"].clone()
}

/// AP-RPL-01, -02, -03, -04, -05, -12, -13, -14: an exact replay, event by event.
#[tokio::test]
async fn ap_rpl_01_an_exact_replay_repeats_every_event_and_touches_nothing() {
    let world = World::new(Outside::new()).await;
    let source = chained_source(&world).await;
    let calls = world.outside.call_count();
    let replay = world.replay(&source.id, json!({})).await;
    assert_eq!(world.outside.call_count(), calls);
    assert_eq!(
        replay.id.as_str(),
        format!("task_replay_{}", &source.id.as_str()[5..])
    );
    assert_eq!(replay.task.parent_task_id.as_ref(), Some(&source.id));
    assert_eq!(replay.task.session_id, source.task.session_id);
    assert_eq!(replay.task.workspace_id, source.task.workspace_id);
    let own: Vec<&str> = replay
        .events
        .iter()
        .filter(|event| event.replay.is_none())
        .map(|event| &*event.kind)
        .collect();
    assert_eq!(
        own,
        [
            "task.submitted",
            "task.started",
            "task.status_changed",
            "replay.started",
            "replay.completed",
            "vendor.outcome_recorded",
            "task.completed",
            "task.status_changed",
            "receipt.issued",
        ]
    );
    let started = replay.payload("replay.started");
    assert_eq!(started["source_task_id"], source.id.as_str());
    assert_eq!(started["mode"], "exact");
    assert_eq!(started["override_keys"], json!([]));
    let replayed = replay.replayed();
    let kinds: Vec<String> = replayed
        .iter()
        .map(|event| event.kind.to_string())
        .collect();
    assert_eq!(kinds, expected_kinds(&source));
    let mut cursor = String::new();
    for (event, original) in replayed.iter().zip(&source.events) {
        let mark = event.replay.as_ref().unwrap();
        assert_eq!(mark.original_event_id.as_deref(), Some(&*original.id));
        assert_eq!(mark.replay_cursor.as_deref(), Some(&*original.id));
        assert_eq!(mark.source_task_id, source.id);
        assert_eq!(mark.replay_task_id, replay.id);
        assert_eq!(mark.mode, "exact");
        let now = mark.replay_cursor.as_deref().unwrap().to_owned();
        assert!(now >= cursor, "AP-RPL-12");
        cursor = now;
        if &*event.kind == "replay.event_replayed" {
            assert_eq!(event.payload["original_event"], *original.kind);
            assert_eq!(event.payload["original_event_id"], *original.id);
        } else {
            assert_eq!(event.payload, original.payload);
        }
    }
    let metadata = replay.payload("task.submitted")["metadata"]["replay"].clone();
    assert_eq!(
        metadata,
        json!({"mode": "exact", "source_task_id": source.id})
    );
}

/// B9, AP-RPL-20: the receipt is a function of source and request; what the server stored is what anybody computes.
#[tokio::test]
async fn ap_rpl_20_receipts_have_exactly_their_members_and_are_the_same_everywhere() {
    let world = World::new(Outside::new()).await;
    let source = chained_source(&world).await;
    let exported = world.exported(&source).await;
    for body in [
        json!({}),
        with(&[("llm:main:1", "llm_provider_response", json!("other"))]),
        with(&[("time:completed_at", "time", json!("2026-04-25T19:17:33Z"))]),
    ] {
        // Each in a world of its own, so that each is the first replay of its source.
        let one = world.resumed(world.store.reopened(), &world.outside).await;
        let two = world.resumed(world.store.reopened(), &world.outside).await;
        let first = one.replay(&source.id, body.clone()).await;
        let second = two.replay(&source.id, body.clone()).await;
        let (first, second) = (one.receipt(&first).await, two.receipt(&second).await);
        assert_eq!(unsigned(&first), unsigned(&second), "{body}");
        let (_, pure) = exported.replay(&body, &registry("1"));
        let pure = String::from_utf8(pure.bytes()).unwrap();
        assert_eq!(String::from_utf8(unsigned(&first)).unwrap(), pure, "{body}");
        let members: BTreeSet<&str> = first.as_map().keys().map(String::as_str).collect();
        let expected = "schema receipt_id subject issuer issued_at identifiers lifecycle trust \
            autonomy_budget replay_input model_route cost side_effects final_artifacts chain deltas \
            redactions signatures metadata";
        assert_eq!(members, expected.split_whitespace().collect());
        let map = first.as_map();
        assert_eq!(map["subject"]["object"], "replay_segment");
        assert_eq!(
            map["chain"]["previous_receipt_hash"],
            json!(exported.receipt.hash())
        );
        assert_eq!(
            map["metadata"],
            json!({"source": "replay", "source_task_id": source.id, "replay_mode": body.get("mode").cloned().unwrap_or_else(|| json!("exact"))})
        );
        assert_eq!(map["autonomy_budget"].as_object().unwrap().len(), 1);
        assert_eq!(map["cost"]["total"], 0);
        assert_eq!(map["replay_input"]["materials"][0]["kind"], "event_log");
        let verdict = one
            .engine
            .verify_receipt(&Caller::system(), first.id(), &Default::default(), None)
            .await
            .unwrap();
        assert_eq!(verdict.event.unwrap().payload["valid"], true);
    }
    // The second replay of one source differs in its ids alone.
    let first = world.replay(&source.id, json!({})).await;
    let second = world.replay(&source.id, json!({})).await;
    assert_eq!(second.id.as_str(), format!("{}_2", first.id));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (a, b) = (world.receipt(&first).await, world.receipt(&second).await);
    let renamed = text(unsigned(&b))
        .replace(second.id.as_str(), first.id.as_str())
        .replace(b.id(), a.id())
        .replace(&b.hash().to_string(), &a.hash().to_string());
    assert_eq!(renamed, text(unsigned(&a)));
}

/// B3, the row of exact: a request that differs fails as divergence, a missing record as unavailable.
#[tokio::test]
async fn b03_exact_fails_rather_than_goes_on() {
    let world = World::new(Outside::new()).await;
    let source = chained_source(&world).await;
    let exported = world.exported(&source).await;
    // Without its receipt nothing says what the log must be: then it can be another one.
    let altered = |from: &str, to: &str| {
        let mut altered = exported.clone();
        altered.events = altered
            .events
            .iter()
            .map(|bytes| {
                let text = String::from_utf8(bytes.to_vec()).unwrap();
                if text.contains("\"event\":\"vendor.effect_") {
                    return text.replace(from, to).into_bytes().into();
                }
                text.into_bytes().into()
            })
            .collect();
        engine::replay::Source::read(&altered.events, altered.blobs, None, None).unwrap()
    };
    let spec = engine::replay::Spec::exact();
    let run = |source: &engine::replay::Source| {
        crate::rig::run_pure(source, &registry("1"), &spec, &Default::default())
    };
    let same = run(&altered("nothing", "nothing"));
    assert!(same.result_equal && same.end.broken.is_none());
    // Another answer leads to another next request.
    let replayed = run(&altered("\"value\":\"one\"", "\"value\":\"eins\""));
    let failure = replayed.end.broken.expect("a failure");
    assert_eq!(failure.code(), "replay_divergence");
    let details = failure.details(None);
    assert_eq!(details["divergence"]["what"], "request");
    assert_eq!(details["divergence"]["key"], "host:tool.a:main:1");
    // No record of a key that is asked for.
    let replayed = run(&altered("mcp:s:main:1", "mcp:s:main:9"));
    let failure = replayed.end.broken.expect("a failure");
    assert_eq!(
        failure.details(None)["first_unavailable"]["key"],
        "mcp:s:main:1"
    );
    // Another answer at the very end leads to other words.
    let replayed = run(&altered("\"value\":\"three\"", "\"value\":\"drei\""));
    let failure = replayed.end.broken.expect("a failure");
    assert_eq!(failure.details(None)["divergence"]["what"], "event");
}

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
        let artifact = super::replay_request::artifact(&world, &bytes).await;
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
    let content = world
        .engine
        .artifact_content(&Caller::system(), id)
        .await
        .unwrap();
    assert_eq!(artifacts[0]["sha256"], sha256(&content.1).to_string());
}

#[tokio::test]
async fn the_payload_of_any_event_can_be_replaced() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .tools(two_tools())
        .uses("llm:main:1", &[("c", "look", "{}")]);
    world
        .outside
        .answer("mcp:eyes:main:1", json!({"seen": 1}))
        .says("llm:main:2", "seen");
    let source = world.agent(json!({"tools": ["look"]}), "go").await;
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
        Value::Object(shown.payload.clone()),
        json!({"a": 1, "effect_key": "mcp:eyes:main:1"})
    );
    assert_eq!(
        shown.replay.as_ref().unwrap().override_key.as_deref(),
        Some(key.as_str())
    );
}

/// B5: three clocks.
#[tokio::test]
async fn times_of_the_receipt_are_recorded_and_can_be_replaced() {
    let world = World::new(Outside::new()).await;
    let source = world.plain("go").await;
    let original = world.receipt(&source).await;
    let body = with(&[
        ("time:created_at", "time", json!("2020-01-01T00:00:00Z")),
        ("time:started_at", "time", json!("2020-01-01T00:00:01Z")),
        ("time:completed_at", "time", json!("2020-01-01T00:00:02Z")),
        ("time:never", "time", json!("2020-01-01T00:00:03Z")),
    ]);
    let replay = world.replay(&source.id, body).await;
    let receipt = world.receipt(&replay).await;
    let lifecycle = &receipt.as_map()["lifecycle"];
    assert_eq!(lifecycle["created_at"], "2020-01-01T00:00:00Z");
    assert_eq!(lifecycle["started_at"], "2020-01-01T00:00:01Z");
    assert_eq!(lifecycle["completed_at"], "2020-01-01T00:00:02Z");
    assert_ne!(
        original.as_map()["lifecycle"]["created_at"],
        lifecycle["created_at"]
    );
    let found = deltas(&receipt);
    let paths: Vec<&str> = found
        .iter()
        .map(|delta| delta["path"].as_str().unwrap())
        .collect();
    assert_eq!(
        paths,
        [
            "/lifecycle/completed_at",
            "/lifecycle/created_at",
            "/lifecycle/started_at"
        ]
    );
    assert_eq!(found[2]["event_id"], source.event_id("task.started"));
    // A clock is no answer: everything else is as it was.
    let completed = replay.payload("replay.completed");
    assert_eq!(completed["result_equal"], true);
    assert_eq!(completed["overrides_unused"], json!(["time:never"]));
}

/// B6, AP-RPL-16: the value of a secret is nowhere, and neither is its digest.
#[tokio::test]
async fn ap_rpl_16_a_secret_appears_nowhere() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .answer("secret:token", json!({"vault_id": "vault_1", "version": 3}));
    let source = world
        .steps(json!({"steps": [[effect("secret:token", "secret")], [effect("host:x:main:1", "host")]]}))
        .await;
    world.outside.answer("host:x:main:1", json!(1));
    let value = "planted-5up3r-s3cr3t";
    let body = with(&[("secret:token", "secret_value", json!(value))]);
    let replay = world.replay(&source.id, body).await;
    let found = deltas(&world.receipt(&replay).await);
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0]["path"],
        "/replay_input/materials/event_log/secret:token"
    );
    assert!(found[0].get("after_sha256").is_none() && found[0].get("before_sha256").is_none());
    let all = String::from_utf8_lossy(&world.every_byte().await).into_owned();
    assert!(all.contains("secret:token"), "the scan sees something");
    assert!(!all.contains(value));
    for digest in [sha256(value.as_bytes()), sha256(&jcs(&json!(value)))] {
        assert!(!all.contains(&digest.hex()), "not even a digest");
    }
    // A replay of that replay has nobody to ask: it says so and does not make something up.
    let again = world.replay(&replay.id, json!({})).await;
    let first = first_unavailable(&again);
    assert_eq!(first["key"], "secret:token");
    assert_eq!(
        (first["type"].as_str(), first["reason"].as_str()),
        (Some("host"), Some("redacted"))
    );
    // With the secret it can.
    let body = with(&[("secret:token", "secret_value", json!(value))]);
    assert_eq!(world.replay(&replay.id, body).await.status, source.status);
}

/// The secret of one request never reaches another, however they are interleaved.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn secrets_of_concurrent_replays_do_not_mix() {
    let world = World::new(Outside::new()).await;
    world.outside.answer("host:raw:main:1", json!("none"));
    let source = world
        .steps(json!({"steps": [[effect("host:raw:main:1", "host")]]}))
        .await;
    let mut running = Vec::new();
    for number in 0..20 {
        // Every second one replaces an answer besides, so that its end tells which request it was.
        let body = with(&[
            (
                "secret:token",
                "secret_value",
                json!(format!("planted-{number}")),
            ),
            ("host:raw:main:1", "host_fact", json!(number)),
        ]);
        let engine = world.engine.clone();
        let request = crate::rig::replay_request(&source.id, body, false);
        running.push(tokio::spawn(async move {
            engine
                .dispatch(&Caller::system(), request, None, engine::Settle::Window)
                .await
                .unwrap()
        }));
    }
    let mut ids = BTreeSet::new();
    for replay in running {
        let id = domain::TaskId::parse(&replay.await.unwrap().view.document.id).unwrap();
        let replay = world.ended(&id).await;
        assert_eq!(replay.status, Status::Completed);
        ids.insert(id);
    }
    assert_eq!(ids.len(), 20);
    // Forgotten right after the commit that anybody can see.
    for _ in 0..1_000 {
        if world.engine.replay_secrets_kept() == 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(
        world.engine.replay_secrets_kept(),
        0,
        "nothing is kept beyond its use"
    );
    let all = String::from_utf8_lossy(&world.every_byte().await).into_owned();
    assert!(!all.contains("planted-"));
}

/// B7: what is refreshed is read anew, told as such, and accounted for.
#[tokio::test]
async fn b07_refreshed_reads_are_substitutions() {
    let world = World::new(Outside::new()).await;
    for key in ["host:fs.read:main:1", "secret:token"] {
        world.outside.answer(key, json!("old"));
    }
    let source = world
        .steps(json!({"steps": [[effect("host:fs.read:main:1", "host"), effect("host:random:main:1", "random")],
            [effect("time:now", "time")], [effect("secret:token", "secret")]]}))
        .await;
    let calls = world.outside.call_count();
    // AP-RPL-17: all of them have changed since, and an exact replay does not see it.
    for key in ["host:fs.read:main:1", "secret:token"] {
        world.outside.answer(key, json!("new"));
    }
    let replay = world.replay(&source.id, json!({})).await;
    assert_eq!(replay.text(), source.text());
    assert_eq!(world.outside.call_count(), calls);
    for (refresh, keys) in [
        ("host", vec!["host:fs.read:main:1", "host:random:main:1"]),
        ("secrets", vec!["secret:token"]),
        ("time", vec!["time:now"]),
    ] {
        let body = json!({"mode": "with_overrides", "refresh": [refresh]});
        let replay = world.replay(&source.id, body).await;
        assert_eq!(replay.status, Status::Completed, "{refresh}");
        assert_eq!(
            replay.payload("replay.started")["refresh"],
            json!([refresh])
        );
        let receipt = world.receipt(&replay).await;
        assert_eq!(
            receipt.as_map()["replay_input"]["determinism"],
            "best_effort"
        );
        let found = deltas(&receipt);
        let listed: Vec<&str> = found
            .iter()
            .map(|delta| delta["override_key"].as_str().unwrap())
            .collect();
        assert_eq!(listed, keys);
        for delta in &found {
            assert_eq!(delta["reason"], "refreshed by request");
            assert_eq!(delta["operation"], "replace");
        }
    }
    let calls = world.outside.calls();
    let read = calls
        .iter()
        .filter(|key| *key == "host:fs.read:main:1")
        .count();
    assert_eq!(read, 2, "once in the run, once refreshed");
}

/// B7: a run that has left its record goes on with the outside, from there and not before, on a branch of its own.
#[tokio::test]
async fn b07_a_replay_goes_on_live_from_a_change() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .tools(two_tools())
        .uses("llm:main:1", &[("c1", "look", "{}")])
        .answer("mcp:eyes:main:1", json!({"seen": "a cat"}))
        .says("llm:main:2", "a cat");
    let source = world.agent(json!({"tools": ["look", "send"]}), "go").await;
    assert_eq!(source.text(), "a cat");
    world
        .outside
        .uses("llm:main:2", &[("d1", "send", "{}"), ("d2", "send", "{}")])
        .answer("host:tool.send:main:1", json!({"sent": 1}))
        .answer("host:tool.send:main:2", json!({"sent": 2}))
        .says("llm:main:3", "sent")
        .streams("llm:main:3", &["se", "nt"]);
    let calls = world.outside.call_count();
    // Without a change there is nothing to go on from.
    let refresh = json!({"mode": "with_overrides", "refresh": ["model", "tools"]});
    let replay = world.replay(&source.id, refresh.clone()).await;
    assert_eq!(replay.text(), "a cat");
    assert_eq!(world.outside.call_count(), calls);
    // With one, from the first request that was not recorded.
    let mut body = with(&[(
        "mcp:eyes:main:1",
        "mcp_tool_return",
        json!({"seen": "a dog"}),
    )]);
    body["refresh"] = refresh["refresh"].clone();
    let replay = world.replay(&source.id, body.clone()).await;
    assert_eq!(
        (replay.status, replay.text().as_str()),
        (Status::Completed, "sent")
    );
    assert_eq!(
        world.outside.calls()[calls..],
        [
            "llm:main:2",
            "host:tool.send:main:1",
            "host:tool.send:main:2",
            "llm:main:3"
        ]
    );
    let request = world.outside.request("llm:main:2").unwrap();
    assert!(request["messages"].to_string().contains("a dog"));
    let branch = replay.task.branch_id.clone().expect("a branch of its own");
    let view = world
        .engine
        .get(
            &Caller::system(),
            domain::ResourceKind::Branch,
            branch.as_str(),
        )
        .await
        .unwrap();
    match view.document.state {
        domain::State::Branch(branch) => assert_eq!(branch.base_ref, source.id.as_str()),
        other => panic!("{other:?}"),
    }
    let receipt = world.receipt(&replay).await;
    assert_eq!(
        receipt.as_map()["replay_input"]["determinism"],
        "best_effort"
    );
    let found = deltas(&receipt);
    let listed: Vec<&str> = found
        .iter()
        .map(|delta| delta["override_key"].as_str().unwrap())
        .collect();
    assert_eq!(
        listed,
        [
            "host:tool.send:main:1",
            "host:tool.send:main:2",
            "llm:main:2",
            "llm:main:3",
            "mcp:eyes:main:1"
        ]
    );
    // B8: whatever the run emits besides its own life is marked, pieces of streamed text included.
    for event in &replay.events {
        let group = event.kind.split('.').next().unwrap();
        let own = ["task", "replay", "receipt"].contains(&group)
            || &*event.kind == "vendor.outcome_recorded";
        assert!(own || event.replay.is_some(), "{}", event.kind);
    }
    assert_eq!(replay.of_kind("vendor.message_delta").len(), 2);
    // Model calls alone: the tools have no record.
    body["refresh"] = json!(["model"]);
    let replay = world.replay(&source.id, body).await;
    assert_eq!(first_unavailable(&replay)["key"], "host:tool.send:main:1");
}

/// B4: a boundary, and everything after it.
#[tokio::test]
async fn b04_a_checkpoint_restores_what_was_and_repeats_the_rest() {
    let world = World::new(Outside::new()).await;
    world.outside.tools(two_tools());
    for turn in 1..4 {
        world
            .outside
            .uses(&format!("llm:main:{turn}"), &[("c", "look", "{}")]);
        world
            .outside
            .answer(&format!("mcp:eyes:main:{turn}"), json!({"turn": turn}));
    }
    world.outside.says("llm:main:4", "enough");
    let persona = json!({"tools": ["look"], "system_prompt": "Be brief."});
    let source = world.agent(persona, "go").await;
    let created = source.of_kind("vendor.checkpoint_created");
    assert_eq!(created.len(), 3, "one for each turn after the first");
    for (number, checkpoint) in created.iter().enumerate() {
        let id = checkpoint.payload["checkpoint_id"].as_str().unwrap();
        assert_eq!(
            id,
            format!("checkpoint_{}_{}", &source.id.as_str()[5..], number + 1)
        );
        // The state is an artifact that is not public.
        let artifact = checkpoint.payload["artifact_id"].as_str().unwrap();
        let view = world
            .engine
            .get(&Caller::system(), domain::ResourceKind::Artifact, artifact)
            .await
            .unwrap();
        match view.document.state {
            domain::State::Artifact(artifact) => {
                assert_eq!(artifact.visibility, domain::Visibility::ReceiptOnly);
            }
            other => panic!("{other:?}"),
        }
        let body = json!({"mode": "from_checkpoint", "checkpoint_id": id});
        let replay = world.replay(&source.id, body).await;
        assert_eq!(replay.status, Status::Completed, "{id}");
        assert_eq!(replay.payload("replay.completed")["result_equal"], true);
        assert_eq!(replay.text(), "enough");
        // AP-RPL-07: nothing of before the boundary.
        let boundary = source
            .events
            .iter()
            .position(|event| event.id == checkpoint.id)
            .unwrap();
        let kinds: Vec<String> = replay
            .replayed()
            .iter()
            .map(|event| event.kind.to_string())
            .collect();
        assert_eq!(kinds, expected_kinds(&source)[boundary + 1..]);
    }
    let id = created[1].payload["checkpoint_id"].as_str().unwrap();
    // What lies before is never consumed.
    let body = json!({"mode": "from_checkpoint", "checkpoint_id": id, "override": {
        "llm:main:1": {"kind": "llm_provider_response", "value": saying("too late")},
        "time:started_at": {"kind": "time", "value": "2020-01-01T00:00:00Z"},
        "llm:main:3": {"kind": "llm_provider_response", "value": saying("earlier")},
    }});
    let replay = world.replay(&source.id, body).await;
    let completed = replay.payload("replay.completed");
    assert_eq!(
        completed["overrides_unused"],
        json!(["llm:main:1", "time:started_at"])
    );
    assert_eq!(completed["overrides_applied"], json!(["llm:main:3"]));
    assert_eq!(replay.text(), "earlier");
    // The state itself: a member of it, or all.
    let key = format!("host:checkpoint:{id}");
    let body = json!({"mode": "from_checkpoint", "checkpoint_id": id, "override": {
        key.clone(): {"kind": "checkpoint_value", "target": "/system_prompt", "value": "Be long."},
    }});
    let replay = world.replay(&source.id, body).await;
    assert_eq!(replay.status, Status::Completed);
    assert_eq!(
        replay.record("llm:main:3").payload["replay_note"],
        "stale_input"
    );
    let found = deltas(&world.receipt(&replay).await);
    assert_eq!(found[0]["path"], format!("/replay_input/materials/{key}"));
    assert_eq!(
        found[0]["before_sha256"],
        created[1].payload["state_sha256"]
    );
    for (target, value) in [("/nobody", json!(1)), ("", json!({"no": "state"}))] {
        let body = json!({"mode": "from_checkpoint", "checkpoint_id": id, "override": {
            key.clone(): {"kind": "checkpoint_value", "target": target, "value": value},
        }});
        let replay = world.replay(&source.id, body).await;
        assert_eq!(
            replay.payload("replay.failed")["code"],
            "replay_override_invalid",
            "{target}"
        );
    }
}

/// A boundary in the middle of a changed run would be a lie: its state is not what the source's says.
#[tokio::test]
async fn b04_checkpoints_of_a_changed_run_are_not_repeated() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .tools(two_tools())
        .uses("llm:main:1", &[("c", "look", "{}")]);
    world
        .outside
        .answer("mcp:eyes:main:1", json!({"seen": 1}))
        .says("llm:main:2", "seen");
    let source = world.agent(json!({"tools": ["look"]}), "go").await;
    assert_eq!(source.of_kind("vendor.checkpoint_created").len(), 1);
    let body = with(&[("mcp:eyes:main:1", "mcp_tool_return", json!({"seen": 2}))]);
    let replay = world.replay(&source.id, body).await;
    assert_eq!(replay.status, Status::Completed);
    assert_eq!(replay.of_kind("vendor.checkpoint_created").len(), 0);
}

async fn damage(world: &World, digest: &Value, bytes: &[u8]) {
    let digest = canon::Digest::parse(digest.as_str().unwrap()).unwrap();
    let blob = Blob {
        digest,
        bytes: bytes.to_vec(),
    };
    world.store.put_blob(blob).await.unwrap();
}

fn value_blob(source: &Finished, key: &str) -> Value {
    source.record(key).payload["blobs"]["value"]["sha256"].clone()
}

/// B10, AP-RPL-18: the first thing missing is named by its place, not by luck.
#[tokio::test]
async fn b10_ap_rpl_18_altered_blobs_are_named_by_position() {
    let world = World::new(Outside::new()).await;
    let large = |n: u64| json!({"n": n, "fill": "x".repeat(6_000)});
    let mut steps = Vec::new();
    for n in 1..5 {
        let key = format!("host:x:main:{n}");
        world.outside.answer(&key, large(n));
        steps.push(json!([effect(&key, "host")]));
    }
    let source = world
        .steps(json!({"steps": steps, "checkpoints": true}))
        .await;
    assert_eq!(source.status, Status::Completed);
    damage(&world, &value_blob(&source, "host:x:main:4"), b"altered").await;
    damage(&world, &value_blob(&source, "host:x:main:2"), b"altered").await;
    let replay = world.replay(&source.id, json!({})).await;
    let first = first_unavailable(&replay);
    let record = source.record("host:x:main:2");
    let place = source
        .events
        .iter()
        .position(|event| event.id == record.id)
        .unwrap();
    assert_eq!(
        first,
        json!({"type": "artifact", "id": value_blob(&source, "host:x:main:2"), "key": "host:x:main:2",
            "event_id": record.id, "sequence": place + 1, "reason": "hash_mismatch"})
    );
    let failed = replay.payload("replay.failed");
    assert_eq!(failed["details"]["also_unavailable_count"], 1);
    // The receipt tells it too, and is as good as any.
    let receipt = world.receipt(&replay).await;
    assert_eq!(receipt.as_map()["lifecycle"]["final_state"], "FAILED");
    assert_eq!(
        receipt.as_map()["lifecycle"]["failure"]["code"],
        failed["code"]
    );
    assert_eq!(
        receipt.as_map()["lifecycle"]["failure"]["details"],
        failed["details"]
    );
    // What lies before a boundary is needed to restore it.
    let created = source.of_kind("vendor.checkpoint_created");
    let body =
        json!({"mode": "from_checkpoint", "checkpoint_id": created[1].payload["checkpoint_id"]});
    let replay = world.replay(&source.id, body).await;
    assert_eq!(first_unavailable(&replay)["key"], "host:x:main:2");
}

#[tokio::test]
async fn b10_missing_blobs_checkpoints_receipts_and_records_are_named() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .answer("host:x:main:1", json!("x".repeat(6_000)))
        .answer("host:x:main:2", json!(2));
    let source = world
        .steps(json!({"steps": [[effect("host:x:main:1", "host")], [effect("host:x:main:2", "host")]], "checkpoints": true}))
        .await;
    let exported = world.exported(&source).await;
    let run = |exported: &crate::rig::Exported, body: Value| {
        let (replayed, receipt) = exported.replay(&body, &registry("1"));
        let failure = replayed.end.broken.expect("a failure");
        let map = receipt.as_map();
        assert_eq!(map["lifecycle"]["failure"]["code"], failure.code());
        (failure.code(), failure.details(None))
    };
    // Missing.
    let mut without = exported.clone();
    let digest =
        canon::Digest::parse(value_blob(&source, "host:x:main:1").as_str().unwrap()).unwrap();
    assert!(without.blobs.remove(&digest).is_some());
    let (code, details) = run(&without, json!({}));
    assert_eq!(code, "replay_dependency_unavailable");
    assert_eq!(details["first_unavailable"]["reason"], "missing");
    assert_eq!(details["first_unavailable"]["key"], "host:x:main:1");
    // A checkpoint's state.
    let checkpoint = source.of_kind("vendor.checkpoint_created")[0]
        .payload
        .clone();
    let mut without = exported.clone();
    let digest = canon::Digest::parse(checkpoint["state_sha256"].as_str().unwrap()).unwrap();
    assert!(without.blobs.remove(&digest).is_some());
    let (_, details) = run(
        &without,
        json!({"mode": "from_checkpoint", "checkpoint_id": checkpoint["checkpoint_id"]}),
    );
    assert_eq!(details["first_unavailable"]["type"], "artifact");
    // A log that is not the one the receipt speaks of.
    let mut altered = exported.clone();
    let last = altered.events.len() - 3;
    let text = String::from_utf8(altered.events[last].to_vec()).unwrap();
    altered.events[last] = text.replacen("2026", "2027", 1).into_bytes().into();
    let (_, details) = run(&altered, json!({}));
    assert_eq!(details["first_unavailable"]["type"], "event");
    assert_eq!(details["first_unavailable"]["reason"], "log_corrupt");
    // The receipt itself, damaged in the store.
    let content = {
        let id = source.task.receipt_id.clone().unwrap();
        let view = world
            .engine
            .receipt(&Caller::system(), id.as_str())
            .await
            .unwrap()
            .view;
        match view.document.state {
            domain::State::Receipt(receipt) => receipt.content,
            other => panic!("{other:?}"),
        }
    };
    damage(&world, &json!(content), b"{}").await;
    let replay = world.replay(&source.id, json!({})).await;
    let first = first_unavailable(&replay);
    assert_eq!(first["type"], "receipt");
    assert_eq!(
        first["id"],
        source.task.receipt_id.clone().unwrap().as_str()
    );
}

/// An artifact of an override may go between the acceptance and the run.
#[tokio::test]
async fn b10_an_override_whose_artifact_is_gone_is_named() {
    let world = World::new(Outside::new()).await;
    let source = chained_source(&world).await;
    let artifact = super::replay_request::artifact(&world, b"\"other\"").await;
    damage(&world, &json!(sha256(b"\"other\"")), b"altered").await;
    let body = json!({"mode": "with_overrides", "override": {"llm:main:1": {"kind": "llm_provider_response", "artifact_id": artifact}}});
    match world.try_replay(&source.id, body).await {
        // What is stored is not what it says: there is no such artifact.
        Err(engine::Refused::Replay(_)) => {}
        other => panic!("{other:?}"),
    }
}

/// Whatever looks like a credential in a failure stays out of the receipt of its replay too.
#[tokio::test]
async fn failures_that_hold_secrets_are_redacted_in_replay_receipts() {
    let world = World::new(Outside::new()).await;
    let secret = "Bearer abcdefgh12345678";
    world.outside.perform_as(
        "llm:main:1",
        Performed::error("provider_error", format!("refused {secret}")),
    );
    let source = world.plain("go").await;
    assert_eq!(source.status, Status::Failed);
    let original = String::from_utf8(world.receipt(&source).await.bytes()).unwrap();
    assert!(!original.contains("abcdefgh12345678"));
    let replay = world.replay(&source.id, json!({})).await;
    assert_eq!(replay.status, Status::Failed);
    let receipt = world.receipt(&replay).await;
    let text = String::from_utf8(receipt.bytes()).unwrap();
    assert!(!text.contains("abcdefgh12345678"), "{text}");
    assert_eq!(receipt.as_map()["redactions"].as_array().unwrap().len(), 2);
}

/// Between acceptance and run the source may become unreadable: the replay says so in its own words.
#[tokio::test]
async fn b10_a_source_that_is_gone_when_the_replay_begins_fails_it() {
    let world = World::new(Outside::new()).await;
    let source = chained_source(&world).await;
    let session = world.session().await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(
            world
                .submit(&session, Some("hold"), None, "wait".into())
                .await,
        );
    }
    let id = world.replay_id(&source.id, json!({})).await;
    assert_eq!(world.task(&id).await.status, Status::Submitted);
    world.store.damage(source.id.as_str(), None);
    world.cancel(&held[0]).await;
    let replay = world.ended(&id).await;
    let first = first_unavailable(&replay);
    assert_eq!(
        (first["type"].as_str(), first["id"].as_str()),
        (Some("event"), Some(source.id.as_str()))
    );
    assert_eq!(replay.payload("replay.started")["mode"], "exact");
    assert!(replay.task.receipt_id.is_some());
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

/// A decision that is replayed is not taken again: nobody signs for it a second time.
#[tokio::test]
async fn replays_leave_the_trust_chain_alone() {
    let world = World::new(Outside::new()).await;
    let session = world.session().await;
    let id = world
        .submit(&session, Some("approve"), None, "act".into())
        .await;
    world.approve(&id, true).await;
    let source = world.ended(&id).await;
    let before = world
        .engine
        .trust_chain(&Caller::system(), session.as_str())
        .await
        .unwrap();
    let replay = world.replay(&id, json!({})).await;
    let (recorded, repeated) = (
        source.of_kind("vendor.trust_recorded"),
        replay.of_kind("vendor.trust_recorded"),
    );
    assert_eq!((recorded.len(), repeated.len()), (1, 1));
    assert_eq!(recorded[0].payload, repeated[0].payload);
    let after = world
        .engine
        .trust_chain(&Caller::system(), session.as_str())
        .await
        .unwrap();
    assert_eq!(before, after);
}
