//! What is missing or altered is named by its place (B10).

use canon::{Value, sha256};
use domain::{Blob, Status};
use engine::Caller;
use engine::port::BlobStore;
use serde_json::json;

use super::{chained_source, effect, first_unavailable};
use crate::rig::{Finished, Outside, World, registry};

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
    let artifact = crate::replay_request::artifact(&world, b"\"other\"").await;
    damage(&world, &json!(sha256(b"\"other\"")), b"altered").await;
    let body = json!({"mode": "with_overrides", "override": {"llm:main:1": {"kind": "llm_provider_response", "artifact_id": artifact}}});
    match world.try_replay(&source.id, body).await {
        // What is stored is not what it says: there is no such artifact.
        Err(engine::Refused::Replay(_)) => {}
        other => panic!("{other:?}"),
    }
}

/// Between acceptance and run the source may become unreadable: the replay says so in its own words.
#[tokio::test]
async fn b10_a_source_that_is_gone_when_the_replay_begins_fails_it() {
    let world = World::new(Outside::new()).await;
    let source = chained_source(&world).await;
    let session = world.session().await;
    let busy = world.occupy(&session).await;
    let id = world.replay_id(&source.id, json!({})).await;
    assert_eq!(world.task(&id).await.status, Status::Submitted);
    world.store.damage(source.id.as_str(), None);
    world.cancel(&busy[0]).await;
    let replay = world.ended(&id).await;
    let first = first_unavailable(&replay);
    assert_eq!(
        (first["type"].as_str(), first["id"].as_str()),
        (Some("event"), Some(source.id.as_str()))
    );
    assert_eq!(replay.payload("replay.started")["mode"], "exact");
    assert!(replay.task.receipt_id.is_some());
}
