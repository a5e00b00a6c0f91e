//! Secrets of replays (B6): they appear nowhere and do not mix.

use std::collections::BTreeSet;

use canon::{jcs, sha256};
use domain::Status;
use engine::Caller;
use runs::workflow::EffectOutcome;
use serde_json::json;

use super::{effect, first_unavailable};
use crate::rig::{Outside, World, deltas, with};

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

/// Whatever looks like a credential in a failure stays out of the receipt of its replay too.
#[tokio::test]
async fn failures_that_hold_secrets_are_redacted_in_replay_receipts() {
    let world = World::new(Outside::new()).await;
    let secret = "Bearer abcdefgh12345678";
    world.outside.perform_as(
        "llm:main:1",
        EffectOutcome::error("provider_error", format!("refused {secret}")),
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
