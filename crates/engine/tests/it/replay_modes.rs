//! The run itself, by subject.

mod checkpoints;
mod exact;
mod live;
mod overrides;
mod secrets;
mod unavailable;

use canon::Value;
use serde_json::json;

use crate::rig::{Finished, World};

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
