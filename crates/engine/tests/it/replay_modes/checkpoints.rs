//! Replays from a checkpoint (B4).

use domain::Status;
use engine::Caller;
use serde_json::json;

use crate::rig::{Outside, World, deltas, expected_kinds, saying, two_tools, with};

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

/// The boundaries of a changed run are its own: they hold its state, and it can be replayed from them.
#[tokio::test]
async fn b04_b08_checkpoints_of_a_changed_run_hold_its_own_state() {
    let world = World::new(Outside::new()).await;
    let source = world.looked().await;
    let theirs = &source.of_kind("vendor.checkpoint_created")[0].payload;
    let body = with(&[("mcp:eyes:main:1", "mcp_tool_return", json!({"seen": 2}))]);
    let replay = world.replay(&source.id, body).await;
    assert_eq!(replay.status, Status::Completed);
    let own = &replay.of_kind("vendor.checkpoint_created")[0].payload;
    assert_eq!(own["checkpoint_id"], theirs["checkpoint_id"]);
    assert_ne!(own["state_sha256"], theirs["state_sha256"]);
    let body = json!({"mode": "from_checkpoint", "checkpoint_id": own["checkpoint_id"]});
    let from = world.replay(&replay.id, body).await;
    assert_eq!(from.status, Status::Completed, "{:?}", from.events.last());
    assert_eq!(from.text(), "seen");
}
