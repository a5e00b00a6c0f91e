//! Exact replays (B3, B8), their receipts (B9) and times (B5).

use std::collections::BTreeSet;

use engine::Caller;
use serde_json::json;

use super::chained_source;
use crate::rig::{Outside, World, deltas, expected_kinds, registry, unsigned, with};
use crate::support::recorded_verdict;

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
        let verdict = recorded_verdict(&one.engine, &Caller::system(), first.id(), None).await;
        let verdict = verdict.unwrap();
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
        runs::replay::Source::read(&altered.events, altered.blobs, None, None).unwrap()
    };
    let spec = runs::replay::Spec::exact();
    let run = |source: &runs::replay::Source| {
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
