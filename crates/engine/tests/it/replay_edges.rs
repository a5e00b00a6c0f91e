//! The edge cases of section B12, one test each, by number.

use domain::{Status, TaskId};
use engine::{Caller, Refused, Request};
use serde_json::{Value, json};

use crate::rig::{
    Finished, Outside, World, deltas, expected_kinds, registry, saying, unsigned, with,
};
use crate::support::recorded_verdict;

fn effect(key: &str, kind: &str) -> Value {
    json!({"key": key, "kind": kind})
}

async fn one_host_fact(world: &World) -> Finished {
    world.outside.answer("host:x:main:1", json!("x"));
    world
        .steps(json!({"steps": [[effect("host:x:main:1", "host")]]}))
        .await
}

fn assert_same(source: &Finished, replay: &Finished) {
    assert_eq!(replay.status, source.status);
    assert_eq!(replay.payload("replay.completed")["result_equal"], true);
    let kinds: Vec<String> = replay
        .replayed()
        .iter()
        .map(|event| event.kind.to_string())
        .collect();
    assert_eq!(kinds, expected_kinds(source));
}

#[tokio::test]
async fn b12_01_another_version_of_the_workflow_is_a_divergence() {
    let world = World::new(Outside::new()).await;
    let source = one_host_fact(&world).await;
    let upgraded = world.reopened_with(registry("2")).await;
    let replay = upgraded.replay(&source.id, json!({})).await;
    assert_eq!(replay.status, Status::Failed);
    let failed = replay.payload("replay.failed");
    assert_eq!(failed["code"], "replay_divergence");
    let divergence = &failed["details"]["divergence"];
    assert_eq!(divergence["what"], "kind");
    assert_ne!(divergence["expected_sha256"], divergence["found_sha256"]);
    // With the old version it works again.
    let downgraded = upgraded.reopened_with(registry("1")).await;
    assert_same(&source, &downgraded.replay(&source.id, json!({})).await);
    // A workflow that is gone altogether.
    let without = world
        .reopened_with(runs::workflow::Registry::new(runs::workflow::builtin()))
        .await;
    let replay = without.replay(&source.id, json!({})).await;
    assert_eq!(
        replay.payload("replay.failed")["details"]["divergence"]["what"],
        "kind"
    );
}

#[tokio::test]
async fn b12_02_failed_and_canceled_sources_end_as_they_ended() {
    let world = World::new(Outside::new()).await;
    world.outside.answer("host:x:main:1", json!(1));
    let failed = world
        .steps(json!({"steps": [[effect("host:x:main:1", "host")]], "fails": true}))
        .await;
    assert_eq!(failed.status, Status::Failed);
    let replay = world.replay(&failed.id, json!({})).await;
    assert_same(&failed, &replay);
    assert_eq!(
        replay.payload("task.failed")["failure"],
        failed.payload("task.failed")["failure"]
    );
    let receipt = world.receipt(&replay).await;
    assert_eq!(receipt.as_map()["lifecycle"]["final_state"], "FAILED");
    assert_eq!(receipt.as_map()["lifecycle"]["failure"]["code"], "told_to");
    // Canceled in the middle of parallel effects: one had ended, one had not.
    world.outside.delay("host:slow:main:1", 60_000);
    let session = world.session().await;
    let steps = json!({"steps": [[effect("host:x:main:1", "host"), effect("host:slow:main:1", "host")], [effect("host:never:main:1", "host")]]});
    let id = world.submit(&session, Some("steps"), None, steps).await;
    world.cancel(&id).await;
    let canceled = world.ended(&id).await;
    assert_eq!(canceled.of_kind("vendor.effect_recorded").len(), 1);
    let replay = world.replay(&id, json!({})).await;
    assert_eq!(replay.status, Status::Canceled);
    assert_same(&canceled, &replay);
    let receipt = world.receipt(&replay).await;
    assert_eq!(receipt.as_map()["lifecycle"]["final_state"], "CANCELED");
    // Canceled while it waited for somebody.
    let id = world
        .submit(&session, Some("approve"), None, "act".into())
        .await;
    world.reach(&id, Status::AuthRequired).await;
    world.cancel(&id).await;
    let canceled = world.ended(&id).await;
    assert_same(&canceled, &world.replay(&id, json!({})).await);
    // Canceled on hold.
    let id = world
        .submit(&session, Some("hold"), None, "wait".into())
        .await;
    world.cancel(&id).await;
    let canceled = world.ended(&id).await;
    assert_same(&canceled, &world.replay(&id, json!({})).await);
}

/// A Task that was canceled before a worker came to it has a log without a beginning.
#[tokio::test]
async fn b12_02_canceled_before_it_began() {
    let world = World::new(Outside::new()).await;
    let session = world.session().await;
    let busy = world.occupy(&session).await;
    let id = world.submit(&session, None, None, "go".into()).await;
    assert_eq!(world.task(&id).await.status, Status::Submitted);
    world.cancel(&id).await;
    let canceled = world.ended(&id).await;
    assert!(!canceled.kinds().contains(&"task.started"));
    for id in busy {
        world.cancel(&id).await;
    }
    assert_same(&canceled, &world.replay(&id, json!({})).await);
    // The server's own readings are its effects all the same.
    let body = with(&[("time:created_at", "time", json!("2020-01-01T00:00:00Z"))]);
    let replay = world.replay(&id, body).await;
    assert_eq!(deltas(&world.receipt(&replay).await).len(), 1);
}

#[tokio::test]
async fn b12_03_recorded_answers_are_fed_at_once() {
    let world = World::new(Outside::new()).await;
    let session = world.session().await;
    let asked = world
        .submit(&session, Some("ask"), None, "what?".into())
        .await;
    world.reach(&asked, Status::InputRequired).await;
    let answer = Request::SendTaskMessage {
        id: asked.clone(),
        kind: engine::TaskMessageKind::Input,
        message: crate::support::text("green"),
    };
    world.write(answer).await.unwrap();
    let approved = world
        .submit(&session, Some("approve"), None, "act".into())
        .await;
    world.approve(&approved, false).await;
    for id in [asked, approved] {
        let source = world.ended(&id).await;
        let replay = world.replay(&id, json!({})).await;
        assert_same(&source, &replay);
        let own: Vec<&Value> = replay
            .events
            .iter()
            .filter(|event| event.replay.is_none() && &*event.kind == "task.status_changed")
            .map(|event| &event.payload["to"])
            .collect();
        assert_eq!(own, ["WORKING", source.status.as_str()], "it never waits");
        // Nothing new waits for anybody.
        assert_eq!(replay.task.requests, 0);
    }
}

#[tokio::test]
async fn b12_04_a_running_replay_can_be_canceled() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .answer("host:x:main:1", json!("x"))
        .answer("llm:main:1", json!("y"));
    let source = world
        .steps(json!({"steps": [[effect("host:x:main:1", "host")], [{"key": "llm:main:1", "kind": "model", "chained": true}]]}))
        .await;
    // It goes on live and the model does not answer.
    world.outside.delay("llm:main:1", 60_000);
    let mut body = with(&[
        ("host:x:main:1", "host_fact", json!("z")),
        ("secret:s", "secret_value", json!("s3cr3t")),
    ]);
    body["refresh"] = json!(["model"]);
    let id = world.replay_id(&source.id, body).await;
    assert_eq!(world.task(&id).await.status, Status::Working);
    assert_eq!(world.engine.replay_secrets_kept(), 1);
    world.cancel(&id).await;
    let replay = world.ended(&id).await;
    assert_eq!(replay.status, Status::Canceled);
    assert_eq!(world.engine.replay_secrets_kept(), 0);
    let receipt = world.receipt(&replay).await;
    assert_eq!(receipt.as_map()["subject"]["object"], "replay_segment");
    assert_eq!(receipt.as_map()["lifecycle"]["final_state"], "CANCELED");
    // AP-RPL-15: what was applied before is a delta; what nothing asked for is none.
    let deltas = deltas(&receipt);
    assert_eq!(deltas.len(), 1, "{deltas:?}");
    assert_eq!(deltas[0]["override_key"], "host:x:main:1");
    assert_eq!(deltas[0]["before_sha256"], json!(canon::sha256(b"\"x\"")));
    assert_eq!(deltas[0]["after_sha256"], json!(canon::sha256(b"\"z\"")));
    let record = replay.record("host:x:main:1").replay.as_ref().unwrap();
    assert_eq!(deltas[0]["delta_id"], json!(record.receipt_delta_id));
    let verdict = recorded_verdict(&world.engine, &Caller::system(), receipt.id(), None).await;
    let verdict = verdict.unwrap();
    assert_eq!(verdict.event.unwrap().payload["valid"], true);
}

#[tokio::test]
async fn b12_05_a_replay_can_be_replayed() {
    let world = World::new(Outside::new()).await;
    let source = world.looked().await;
    let first = world.replay(&source.id, json!({})).await;
    let second = world.replay(&first.id, json!({})).await;
    assert_eq!(
        second.id.as_str(),
        first
            .id
            .as_str()
            .replace("task_replay_", "task_replay_replay_")
    );
    assert_same(&first, &second);
    assert_eq!(second.text(), "seen");
    assert_eq!(second.task.parent_task_id.as_ref(), Some(&first.id));
    let receipt = world.receipt(&second).await;
    assert_eq!(
        receipt.as_map()["chain"]["previous_receipt_hash"],
        json!(world.receipt(&first).await.hash())
    );
    // A changed one: its events tell only digests, its request has the values.
    let body = with(&[
        ("mcp:eyes:main:1", "mcp_tool_return", json!({"seen": 2})),
        ("llm:main:2", "llm_provider_response", saying("changed")),
    ]);
    let changed = world.replay(&source.id, body).await;
    assert_eq!(changed.text(), "changed");
    let again = world.replay(&changed.id, json!({})).await;
    assert_same(&changed, &again);
    assert_eq!(again.text(), "changed");
    assert!(deltas(&world.receipt(&again).await).is_empty());
    // However often: each log keeps what its events do not show.
    let third = world.replay(&again.id, json!({})).await;
    assert_same(&again, &third);
    assert_eq!(third.text(), "changed");
    // And changed once more.
    let body = with(&[("llm:main:2", "llm_provider_response", saying("twice"))]);
    assert_eq!(world.replay(&changed.id, body).await.text(), "twice");
    // From an end that only a part of the run led to.
    let checkpoint = &source.of_kind("vendor.checkpoint_created")[0].payload["checkpoint_id"];
    let body = json!({"mode": "from_checkpoint", "checkpoint_id": checkpoint});
    let part = world.replay(&source.id, body).await;
    let again = world.replay(&part.id, json!({})).await;
    assert_eq!(
        again.status,
        Status::Failed,
        "its beginning is not in its log"
    );
    let failed = again.payload("replay.failed");
    assert_eq!(failed["code"], "replay_dependency_unavailable", "{failed}");
    // A failed one fails again, for the same reason.
    let body = with(&[("llm:main:2", "llm_provider_response", json!({}))]);
    let failed = world.replay(&source.id, body).await;
    assert_eq!(failed.status, Status::Failed);
    let again = world.replay(&failed.id, json!({})).await;
    assert_same(&failed, &again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn b12_06_concurrent_replays_are_independent_and_numbered() {
    let world = World::new(Outside::new()).await;
    let source = one_host_fact(&world).await;
    let mut running = Vec::new();
    for _ in 0..16 {
        let engine = world.engine.clone();
        let request = crate::rig::replay_request(&source.id, json!({}), false);
        running.push(tokio::spawn(async move {
            engine
                .dispatch(&Caller::system(), request, None, engine::Settle::Window)
                .await
                .unwrap()
        }));
    }
    let mut ids = Vec::new();
    for replay in running {
        ids.push(TaskId::parse(&replay.await.unwrap().view.document.id).unwrap());
    }
    ids.sort();
    let base = format!("task_replay_{}", &source.id.as_str()[5..]);
    let mut expected: Vec<TaskId> = std::iter::once(base.clone())
        .chain((2..17).map(|number| format!("{base}_{number}")))
        .map(|id| TaskId::parse(&id).unwrap())
        .collect();
    expected.sort();
    assert_eq!(ids, expected);
    for id in &ids {
        assert_same(&source, &world.ended(id).await);
    }
}

/// Ids of replays of replays can meet; then the later one takes the next number.
#[tokio::test]
async fn b12_06_ids_that_meet_get_the_next_number() {
    let world = World::new(Outside::new()).await;
    let source = one_host_fact(&world).await;
    let first = world.replay(&source.id, json!({})).await;
    let second = world.replay(&source.id, json!({})).await;
    let of_first = [
        world.replay(&first.id, json!({})).await,
        world.replay(&first.id, json!({})).await,
    ];
    let of_second = world.replay(&second.id, json!({})).await;
    assert_same(&second, &of_second);
    assert!(of_first.iter().all(|replay| replay.id != of_second.id));
}

#[tokio::test]
async fn b12_07_a_truncated_session_takes_nothing_from_a_tasks_log() {
    let world = World::new(Outside::new()).await;
    world.outside.says("llm:main:1", "hello");
    let session = world.session().await;
    let persona = world.persona(json!({"memory": "session"})).await;
    let id = world
        .submit(&session, None, Some(&persona), "hi".into())
        .await;
    let source = world.ended(&id).await;
    let truncate = Request::TruncateSession {
        id: session.clone(),
        keep_first: 0,
        reason: None,
    };
    world.write(truncate).await.unwrap();
    world.write(Request::CloseSession(session)).await.unwrap();
    assert_same(&source, &world.replay(&id, json!({})).await);
}

#[tokio::test]
async fn b12_08_errors_are_replayed_as_errors() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .fails("host:x:main:1", "timeout")
        .fails("mcp:s:main:1", "500");
    let source = world
        .steps(json!({"steps": [[effect("host:x:main:1", "host"), effect("mcp:s:main:1", "mcp")]]}))
        .await;
    assert!(source.text().contains("false"));
    let replay = world.replay(&source.id, json!({})).await;
    assert_same(&source, &replay);
    assert_eq!(replay.text(), source.text());
    assert_eq!(replay.record("host:x:main:1").payload["outcome"], "error");
}

#[tokio::test]
async fn b12_09_streamed_pieces_are_repeated_as_they_were_and_not_for_another_answer() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .says("llm:main:1", "a long answer")
        .streams("llm:main:1", &["a long", " answer"]);
    let source = world.plain("go").await;
    let pieces = source.of_kind("vendor.message_delta");
    assert_eq!(pieces.len(), 2);
    let replay = world.replay(&source.id, json!({})).await;
    assert_same(&source, &replay);
    let repeated: Vec<&Value> = replay
        .of_kind("vendor.message_delta")
        .iter()
        .map(|event| &event.payload["text"])
        .collect();
    assert_eq!(repeated, ["a long", " answer"]);
    let body = with(&[("llm:main:1", "llm_provider_response", saying("short"))]);
    let replay = world.replay(&source.id, body).await;
    assert_eq!(replay.text(), "short");
    assert!(replay.of_kind("vendor.message_delta").is_empty());
}

// b12_10 (duplicate members are 400) is a matter of reading the body: crates/server/tests/it/replay.rs.

#[tokio::test]
async fn b12_11_null_is_a_value() {
    let world = World::new(Outside::new()).await;
    let source = one_host_fact(&world).await;
    let replay = world
        .replay(
            &source.id,
            with(&[("host:x:main:1", "host_fact", Value::Null)]),
        )
        .await;
    assert_eq!(replay.text(), r#"[["host:x:main:1",true,null]]"#);
    assert_eq!(deltas(&world.receipt(&replay).await).len(), 1);
}

#[tokio::test]
async fn b12_12_large_values_come_from_artifacts() {
    let world = World::new(Outside::new()).await;
    let source = one_host_fact(&world).await;
    let large = json!("x".repeat(5_000));
    match world
        .try_replay(
            &source.id,
            with(&[("host:x:main:1", "host_fact", large.clone())]),
        )
        .await
    {
        Err(Refused::Replay(error)) => assert!(
            matches!(&*error, runs::replay::RequestError::TooLarge { param } if param == "override.host:x:main:1.value"),
            "{error:?}"
        ),
        other => panic!("{other:?}"),
    }
    let artifact =
        super::replay_request::artifact(&world, &serde_json::to_vec(&large).unwrap()).await;
    for visibility in ["receipt_only", "internal", "public"] {
        let body = json!({"mode": "with_overrides", "override": {"host:x:main:1": {"kind": "host_fact", "artifact_id": artifact, "visibility": visibility}}});
        let replay = world.replay(&source.id, body).await;
        assert_eq!(replay.status, Status::Completed);
        assert_eq!(replay.payload("replay.completed")["result_equal"], false);
        let again = world.replay(&replay.id, json!({})).await;
        assert_same(&replay, &again);
    }
}

#[tokio::test]
async fn b12_13_overrides_of_what_is_not_reached_are_unused() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .answer("host:x:main:1", json!("yes"))
        .answer("host:y:main:1", json!("deep"));
    let source = world
        .steps(json!({"steps": [[effect("host:x:main:1", "host")], [{"key": "host:y:main:1", "kind": "host", "when": "yes"}]]}))
        .await;
    let body = with(&[
        ("host:x:main:1", "host_fact", json!("no")),
        ("host:y:main:1", "host_fact", json!("unseen")),
    ]);
    let replay = world.replay(&source.id, body).await;
    assert_eq!(replay.status, Status::Completed);
    let completed = replay.payload("replay.completed");
    assert_eq!(completed["overrides_unused"], json!(["host:y:main:1"]));
    assert_eq!(deltas(&world.receipt(&replay).await).len(), 1);
    assert!(!replay.text().contains("host:y"));
}

#[tokio::test]
async fn b12_14_a_handoff_is_a_recorded_fact() {
    let world = World::new(Outside::new()).await;
    world.outside.answer(
        "host:handoff:main:1",
        json!({"agent": "other", "receipt_id": "receipt_far"}),
    );
    let source = world
        .steps(json!({"steps": [[effect("host:handoff:main:1", "host")]]}))
        .await;
    let calls = world.outside.call_count();
    let replay = world.replay(&source.id, json!({})).await;
    assert_same(&source, &replay);
    assert_eq!(world.outside.call_count(), calls);
    assert_eq!(
        world.receipt(&replay).await.as_map()["side_effects"]["a2a_handoffs"],
        json!([])
    );
}

#[tokio::test]
async fn b12_15_randomness_is_a_recorded_seed() {
    let world = World::new(Outside::new()).await;
    let source = world
        .steps(json!({"steps": [[effect("host:random:main:1", "random")]]}))
        .await;
    let replay = world.replay(&source.id, json!({})).await;
    assert_same(&source, &replay);
    assert_eq!(replay.text(), source.text());
    let other = world
        .steps(json!({"steps": [[effect("host:random:main:1", "random")]]}))
        .await;
    assert_ne!(other.text(), source.text());
}

/// What a restart leaves of a replay that was written in part goes on without repeating anything.
#[tokio::test]
async fn b12_16_a_restart_repeats_no_event() {
    let world = World::new(Outside::new()).await;
    // More events than one commit takes.
    let mut steps = Vec::new();
    for n in 1..200 {
        world.outside.answer(&format!("host:x:main:{n}"), json!(n));
        steps.push(json!([effect(&format!("host:x:main:{n}"), "host")]));
    }
    let source = world.steps(json!({"steps": steps})).await;
    let undisturbed = world.resumed(world.store.reopened(), &world.outside).await;
    let expected = undisturbed.replay(&source.id, json!({})).await;
    assert_same(&source, &expected);
    // Stop it in the middle: after any of its commits.
    let id = expected.id.clone();
    let mut snapshots = Vec::new();
    let (engine, request) = (
        world.engine.clone(),
        crate::rig::replay_request(&source.id, json!({}), false),
    );
    let mut news = engine::port::Store::news(&*world.store);
    let running = tokio::spawn(async move {
        engine
            .dispatch(&Caller::system(), request, None, engine::Settle::Window)
            .await
            .unwrap()
    });
    while let Ok(Ok(_)) =
        tokio::time::timeout(std::time::Duration::from_millis(500), news.recv()).await
    {
        snapshots.push(world.store.reopened());
    }
    running.await.unwrap();
    assert!(snapshots.len() > 3, "{}", snapshots.len());
    let mut parts = 0;
    for snapshot in snapshots {
        let resumed = world.resumed(snapshot, &world.outside).await;
        let documents = engine::port::Store::documents(&*resumed.store, vec![id.as_str().into()])
            .await
            .unwrap();
        if documents[0].is_none() {
            continue;
        }
        parts += 1;
        let replay = resumed.ended(&id).await;
        assert_eq!(replay.kinds(), expected.kinds());
        assert_eq!(
            unsigned(&resumed.receipt(&replay).await),
            unsigned(&undisturbed.receipt(&expected).await)
        );
    }
    assert!(parts > 3, "{parts}");
}

// b12_17 (a log beyond retention is 410) belongs to `log prune`.

#[tokio::test]
async fn b12_18_a_persona_can_demand_a_branch() {
    let world = World::new(Outside::new()).await;
    world.outside.says("llm:main:1", "hello");
    let source = world.agent(json!({"isolated_replay": true}), "go").await;
    let replay = world.replay(&source.id, json!({})).await;
    assert_same(&source, &replay);
    let branch = replay.task.branch_id.clone().expect("a branch");
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
        domain::State::Branch(branch) => {
            assert_eq!(branch.base_ref, source.id.as_str());
            assert_eq!(branch.kind, domain::BranchKind::Task);
        }
        other => panic!("{other:?}"),
    }
    let source = world.agent(json!({"name": "open"}), "go").await;
    assert_eq!(
        world.replay(&source.id, json!({})).await.task.branch_id,
        None
    );
}

#[tokio::test]
async fn b12_19_a_label_that_is_read_twice_has_two_keys() {
    let world = World::new(Outside::new()).await;
    let source = world
        .steps(json!({"steps": [[effect("time:deadline", "time")], [effect("time:deadline:2", "time")]]}))
        .await;
    let body = with(&[("time:deadline:2", "time", json!("2030-01-01T00:00:00Z"))]);
    let replay = world.replay(&source.id, body).await;
    assert_eq!(replay.status, Status::Completed);
    let found = deltas(&world.receipt(&replay).await);
    assert_eq!(
        found[0]["path"],
        "/replay_input/materials/event_log/time:deadline:2"
    );
    assert_eq!(replay.text().matches("2030-01-01").count(), 1);
}

#[tokio::test]
async fn b12_20_slashes_and_tildes_are_escaped_in_paths() {
    let world = World::new(Outside::new()).await;
    let keys = ["host:fs.read:main/review.2:1", "host:a~b:main:1"];
    for key in keys {
        world.outside.answer(key, json!(1));
    }
    let source = world
        .steps(json!({"steps": [[effect(keys[0], "host")], [effect(keys[1], "host")]]}))
        .await;
    let body = with(&[
        (keys[0], "host_fact", json!(2)),
        (keys[1], "host_fact", json!(2)),
    ]);
    let replay = world.replay(&source.id, body).await;
    let found = deltas(&world.receipt(&replay).await);
    assert_eq!(found[0]["path"], "/replay_input/materials/host:a~0b:main:1");
    assert_eq!(
        found[1]["path"],
        "/replay_input/materials/host:fs.read:main~1review.2:1"
    );
}

/// C-11: a replay writes new events; the old ones are found by `original_event_id`.
#[tokio::test]
async fn b12_21_replayed_events_have_ids_of_their_own() {
    let world = World::new(Outside::new()).await;
    let source = one_host_fact(&world).await;
    let replay = world.replay(&source.id, json!({})).await;
    for event in replay.replayed() {
        assert!(source.events.iter().all(|original| original.id != event.id));
        let original = event
            .replay
            .as_ref()
            .unwrap()
            .original_event_id
            .as_deref()
            .unwrap();
        assert!(source.events.iter().any(|event| &*event.id == original));
        assert!(
            world
                .engine
                .event(&Caller::system(), original)
                .await
                .is_ok()
        );
    }
}

/// C-49: visibility governs the material; what the workflow makes of it is a message like any other.
#[tokio::test]
async fn b12_22_visibility_governs_the_event_of_the_effect() {
    let world = World::new(Outside::new()).await;
    world.outside.says("llm:main:1", "old");
    let source = world.plain("go").await;
    for (visibility, shown) in [
        ("public", true),
        ("internal", false),
        ("receipt_only", false),
    ] {
        let body = json!({"mode": "with_overrides", "override": {"llm:main:1": {
            "kind": "llm_provider_response", "value": saying("new words"), "visibility": visibility,
        }}});
        let replay = world.replay(&source.id, body).await;
        let record = &replay.record("llm:main:1").payload;
        assert_eq!(record.contains_key("value"), shown, "{visibility}");
        assert!(record.contains_key("value_sha256"));
        assert_eq!(replay.text(), "new words");
    }
}

/// The public event of a tool's answer shows as much of it as the answer's own event (B1).
#[tokio::test]
async fn b12_22_visibility_governs_what_a_tool_returned_too() {
    let world = World::new(Outside::new()).await;
    let source = world.looked().await;
    for (visibility, shown) in [("public", true), ("receipt_only", false)] {
        let body = json!({"mode": "with_overrides", "override": {"mcp:eyes:main:1": {
            "kind": "mcp_tool_return", "value": {"seen": "a secret plan"}, "visibility": visibility,
        }}});
        let replay = world.replay(&source.id, body).await;
        assert_eq!(replay.status, Status::Completed);
        let result = replay.of_kind("agent.tool_result")[0];
        let output = result.payload["output"].to_string();
        assert_eq!(output.contains("a secret plan"), shown, "{output}");
        assert_eq!(output.contains("sha256:"), !shown, "{output}");
        // AP-RPL-13: the substitution produced this event too.
        let mark = result.replay.as_ref().unwrap();
        assert_eq!(mark.override_key.as_deref(), Some("mcp:eyes:main:1"));
        assert!(mark.receipt_delta_id.is_some());
        let again = world.replay(&replay.id, json!({})).await;
        assert_same(&replay, &again);
    }
}

/// AP-RPL-13: the event of a time that was replaced says so.
#[tokio::test]
async fn ap_rpl_13_events_name_the_time_that_was_replaced() {
    let world = World::new(Outside::new()).await;
    world.outside.says("llm:main:1", "old");
    let source = world.plain("go").await;
    let labels = ["created_at", "started_at", "completed_at"];
    let keys = labels.map(|label| format!("time:{label}"));
    let time = json!("2026-01-01T00:00:00Z");
    let given: Vec<(&str, &str, Value)> = keys
        .iter()
        .map(|key| (key.as_str(), "time", time.clone()))
        .collect();
    let replay = world.replay(&source.id, with(&given)).await;
    let named: Vec<&str> = replay
        .events
        .iter()
        .filter_map(|event| event.replay.as_ref()?.override_key.as_deref())
        .collect();
    assert_eq!(named, keys);
    let marks = replay
        .events
        .iter()
        .filter_map(|event| event.replay.as_ref());
    assert_eq!(
        marks.filter(|mark| mark.receipt_delta_id.is_some()).count(),
        3
    );
}

/// Who decided what is not told of a run in which the request decided otherwise.
#[tokio::test]
async fn events_of_a_decision_are_not_repeated_when_it_is_replaced() {
    let world = World::new(Outside::new()).await;
    let session = world.session().await;
    let id = world
        .submit(&session, Some("approve"), None, "act".into())
        .await;
    world.approve(&id, true).await;
    let source = world.ended(&id).await;
    let told = [
        "user.tool_confirmation",
        "tool.approved",
        "vendor.trust_recorded",
    ];
    let count = |finished: &Finished| {
        let kinds = finished.kinds();
        kinds.iter().filter(|kind| told.contains(kind)).count()
    };
    assert_eq!(count(&source), 3);
    assert_eq!(count(&world.replay(&id, json!({})).await), 3);
    let denied = with(&[("host:approval:1", "host_fact", json!({"approved": false}))]);
    let replay = world.replay(&id, denied).await;
    assert_eq!(
        replay.payload("replay.completed")["overrides_applied"],
        json!(["host:approval:1"])
    );
    assert_eq!(count(&replay), 0, "{:?}", replay.kinds());
}

/// What somebody attached to a Task while it ran is made again, with the bytes it got.
#[tokio::test]
async fn uploaded_artifacts_are_made_again() {
    let world = World::new(Outside::new()).await;
    let session = world.session().await;
    let id = world
        .submit(&session, Some("approve"), None, "act".into())
        .await;
    world.reach(&id, Status::AuthRequired).await;
    let register = Request::RegisterArtifact(engine::NewArtifact {
        kind: domain::ArtifactKind::File,
        mime_type: "text/plain".to_owned(),
        uri: None,
        visibility: domain::Visibility::Public,
        sha256: None,
        workspace_id: None,
        session_id: None,
        task_id: Some(id.clone()),
        metadata: canon::Map::new(),
    });
    let artifact = world.write(register).await.unwrap().view.document.id;
    world.upload(&artifact, b"evidence").await;
    world.approve(&id, true).await;
    let source = world.ended(&id).await;
    let replay = world.replay(&id, json!({})).await;
    assert_same(&source, &replay);
    let receipt = world.receipt(&replay).await;
    let made = receipt.as_map()["final_artifacts"][0].clone();
    let new = made["artifact_id"].as_str().unwrap();
    assert_ne!(*new, *artifact);
    let mut content = world
        .engine
        .artifact_content(&Caller::system(), new)
        .await
        .unwrap();
    let all = content.1.next().await.unwrap().unwrap();
    assert_eq!(all, b"evidence");
}

#[tokio::test]
async fn u9_nothing_goes_on_live_in_a_closed_session() {
    let outside = Outside::new();
    outside.fails("llm:main:1", "provider_error");
    let world = World::new(outside).await;
    let session = world.session().await;
    let id = world.submit(&session, None, None, "go".into()).await;
    let failed = world.ended(&id).await;
    assert_eq!(failed.status, Status::Failed);
    world.write(Request::CloseSession(session)).await.unwrap();
    let calls = world.outside.call_count();
    let live = json!({"mode": "with_overrides", "refresh": ["model"]});
    for body in [json!({"retry": true}), live] {
        let refused = world.try_replay(&id, body.clone()).await.unwrap_err();
        let Refused::Domain(domain::Refusal::Conflict { reason, .. }) = refused else {
            panic!("{body}: {refused:?}");
        };
        assert_eq!(reason, "session_closed", "{body}");
    }
    // What was recorded can still be run again.
    assert_same(&failed, &world.replay(&id, json!({})).await);
    assert_eq!(world.outside.call_count(), calls, "nothing was performed");
}
