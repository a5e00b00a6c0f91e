//! What is refused before a replay begins, row by row of the table of section B2, and what is accepted.

use canon::{Value, jcs, sha256};
use domain::{
    ArtifactKind, Position, Refusal, ResourceKind, Status, TaskId, Visibility, WorkspaceId,
};
use engine::{Caller, Filters, ListRequest, NewArtifact, Refused, Request, Settle};
use runs::replay::RequestError;
use serde_json::json;

use crate::rig::{Finished, Outside, World, deltas, replay_request, saying, two_tools, with};
use crate::support::key;

/// A Task with a model call, tools, checkpoints and a product.
async fn source(world: &World) -> Finished {
    world
        .outside
        .tools(two_tools())
        .uses("llm:main:1", &[("call_7", "look", "{}")]);
    world
        .outside
        .answer("mcp:eyes:main:1", json!({"seen": 1}))
        .says("llm:main:2", "seen");
    world.agent(json!({"tools": ["look"]}), "go").await
}

/// The param of a 400.
async fn invalid(world: &World, id: &TaskId, body: Value) -> String {
    match world.try_replay(id, body.clone()).await {
        Err(Refused::Replay(error)) => match *error {
            RequestError::Invalid { param, .. } => param,
            other => panic!("{body}: {other:?}"),
        },
        other => panic!("{body}: {other:?}"),
    }
}

/// B2: a persona may forbid it.
#[tokio::test]
async fn b02_a_persona_that_forbids_replay_is_obeyed() {
    let world = World::new(Outside::new()).await;
    world.outside.says("llm:main:1", "hello");
    let source = world.agent(json!({"forbids_replay": true}), "go").await;
    match world.try_replay(&source.id, json!({})).await {
        Err(Refused::Domain(Refusal::Policy { reason, .. })) => {
            assert_eq!(reason, "persona_forbids_replay");
        }
        other => panic!("{other:?}"),
    }
}

/// A run that goes on live has the authority of its persona and of those who approved, and no other.
#[tokio::test]
async fn b07_a_request_that_goes_on_live_grants_nothing() {
    let world = World::new(Outside::new()).await;
    let source = source(&world).await;
    let checkpoint = source.payload("vendor.checkpoint_created")["checkpoint_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let state = format!("host:checkpoint:{checkpoint}");
    let submitted = format!("event:{}", source.event_id("task.submitted"));
    let given = |kind: &str, value: Value| json!({"kind": kind, "value": value});
    let tools = given("host_fact", two_tools());
    let yes = given("host_fact", json!({"approved": true}));
    let token = given("secret_value", json!("t0ken"));
    let persona = given("event_payload", json!({"persona": {}}));
    let mut tier = given("checkpoint_value", json!("act_auto"));
    tier["target"] = json!("/autonomy_tier");
    let both: &[&str] = &["model", "tools"];
    let cases: [(&str, Value, &[&str]); 6] = [
        ("host:tools:main:1", tools, &["tools"]),
        ("host:approval:1", yes, &["tools"]),
        ("secret:token", token, &["tools"]),
        (&submitted, persona, both),
        (&state, tier, both),
        (&state, given("checkpoint_value", json!({})), both),
    ];
    for (key, given, refused_for) in cases {
        let mut body = json!({"mode": "with_overrides", "override": {key: given}});
        if key == state {
            body["mode"] = json!("from_checkpoint");
            body["checkpoint_id"] = json!(checkpoint);
        }
        for word in both {
            body["refresh"] = json!([word]);
            let answer = world.try_replay(&source.id, body.clone()).await;
            match (answer, refused_for.contains(word)) {
                (Err(Refused::Replay(error)), true) => match *error {
                    RequestError::Forbidden { param, .. } => {
                        assert_eq!(param, format!("override.{key}"));
                    }
                    other => panic!("{body}: {other:?}"),
                },
                (Ok(_), false) => {}
                (other, _) => panic!("{body}: {other:?}"),
            }
        }
        // Without going on live, everything can be changed.
        body["refresh"] = json!([]);
        world.try_replay(&source.id, body).await.unwrap();
    }
    let mut prompt = given("checkpoint_value", json!("Be brief."));
    prompt["target"] = json!("/system_prompt");
    let body = json!({"mode": "from_checkpoint", "checkpoint_id": checkpoint, "refresh": both,
        "override": {&state: prompt}});
    world.try_replay(&source.id, body).await.unwrap();
    // What a replay recorded may have been put there by a request.
    let replay = world.replay(&source.id, json!({})).await;
    let body = json!({"mode": "with_overrides", "refresh": ["model"]});
    match world.try_replay(&replay.id, body).await {
        Err(Refused::Replay(error)) => match *error {
            RequestError::Forbidden { param, .. } => assert_eq!(param, "refresh"),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn ap_rpl_09_ap_rpl_10_ap_rpl_11_ap_rpl_22_every_wrong_member_is_named() {
    let world = World::new(Outside::new()).await;
    let source = source(&world).await;
    let llm = |given: Value| json!({"mode": "with_overrides", "override": {"llm:main:1": given}});
    let at = |key: &str, given: Value| json!({"mode": "with_overrides", "override": {key: given}});
    let answer = saying("x");
    let other_record = source.record("llm:main:2").id.to_string();
    let started = source.event_id("task.started");
    for (body, param) in [
        (json!({"mode": "loose"}), "mode"),
        (json!({"mode": 7}), "mode"),
        (
            json!({"override": {"llm:main:1": {"kind": "llm_provider_response", "value": 1}}}),
            "override",
        ),
        (
            json!({"mode": "with_overrides", "override": []}),
            "override",
        ),
        (json!({"mode": "from_checkpoint"}), "checkpoint_id"),
        (json!({"checkpoint_id": "checkpoint_x_1"}), "checkpoint_id"),
        (
            json!({"mode": "with_overrides", "checkpoint_event_id": "e"}),
            "checkpoint_event_id",
        ),
        (llm(json!({"value": 1})), "override.llm:main:1.kind"),
        (
            llm(json!({"kind": "guess", "value": 1})),
            "override.llm:main:1.kind",
        ),
        (
            llm(json!({"kind": 1, "value": 1})),
            "override.llm:main:1.kind",
        ),
        (
            llm(json!({"kind": "mcp_tool_return", "value": 1})),
            "override.llm:main:1.kind",
        ),
        (
            at(
                "mcp:eyes:main:1",
                json!({"kind": "tool_result", "value": 1}),
            ),
            "override.mcp:eyes:main:1.kind",
        ),
        (
            at("host:x:main:1", json!({"kind": "time", "value": 1})),
            "override.host:x:main:1.kind",
        ),
        (
            at("time:x", json!({"kind": "host_fact", "value": 1})),
            "override.time:x.kind",
        ),
        (
            at("event:e", json!({"kind": "host_fact", "value": {}})),
            "override.event:e.kind",
        ),
        (
            at("secret:s", json!({"kind": "host_fact", "value": 1})),
            "override.secret:s.kind",
        ),
        (
            at(
                "host:checkpoint:c",
                json!({"kind": "host_fact", "value": 1}),
            ),
            "override.host:checkpoint:c.kind",
        ),
        (
            at("what:ever", json!({"kind": "host_fact", "value": 1})),
            "override.what:ever",
        ),
        (
            at("llm:", json!({"kind": "llm_provider_response", "value": 1})),
            "override.llm:",
        ),
        (
            llm(json!({"kind": "llm_provider_response"})),
            "override.llm:main:1.value",
        ),
        (
            llm(json!({"kind": "llm_provider_response", "value": 1, "artifact_id": "artifact_1"})),
            "override.llm:main:1.value",
        ),
        (
            llm(json!({"kind": "llm_provider_response", "value": answer, "sha256": "sha256:AA"})),
            "override.llm:main:1.sha256",
        ),
        (
            llm(
                json!({"kind": "llm_provider_response", "value": answer, "sha256": "a".repeat(64)}),
            ),
            "override.llm:main:1.sha256",
        ),
        (
            llm(json!({"kind": "llm_provider_response", "value": answer, "visibility": "secret"})),
            "override.llm:main:1.visibility",
        ),
        (
            llm(json!({"kind": "llm_provider_response", "value": answer, "target": "other"})),
            "override.llm:main:1.target",
        ),
        (
            llm(
                json!({"kind": "llm_provider_response", "value": answer, "event_id": other_record}),
            ),
            "override.llm:main:1.event_id",
        ),
        (
            llm(json!({"kind": "llm_provider_response", "value": answer, "event_id": started})),
            "override.llm:main:1.event_id",
        ),
        (
            llm(json!({"kind": "llm_provider_response", "value": answer, "reason": 1})),
            "override.llm:main:1.reason",
        ),
        (llm(json!(7)), "override.llm:main:1"),
        (
            at(
                "secret:s",
                json!({"kind": "secret_value", "value": "v", "visibility": "public"}),
            ),
            "override.secret:s.visibility",
        ),
        (
            at(
                "secret:s",
                json!({"kind": "secret_value", "value": "v", "visibility": "internal"}),
            ),
            "override.secret:s.visibility",
        ),
        (
            at(
                "secret:s",
                json!({"kind": "secret_value", "artifact_id": "artifact_1"}),
            ),
            "override.secret:s.artifact_id",
        ),
        (
            at(
                "time:started_at",
                json!({"kind": "time", "value": "yesterday"}),
            ),
            "override.time:started_at.value",
        ),
        (
            at("time:started_at", json!({"kind": "time", "value": 7})),
            "override.time:started_at.value",
        ),
        (
            at(
                &format!("event:{started}"),
                json!({"kind": "event_payload", "value": "words"}),
            ),
            &format!("override.event:{started}.value"),
        ),
        (
            at(
                &format!("event:{started}"),
                json!({"kind": "event_payload", "value": {"blobs": {}}}),
            ),
            &format!("override.event:{started}.value"),
        ),
        (json!({"refresh": ["memory"]}), "refresh"),
        (
            json!({"mode": "with_overrides", "refresh": ["everything"]}),
            "refresh",
        ),
        (
            json!({"mode": "with_overrides", "refresh": "memory"}),
            "refresh",
        ),
        (
            json!({"metadata": {"replay_policy": {"on_stale_input": "ask"}}}),
            "metadata.replay_policy.on_stale_input",
        ),
        (json!({"metadata": 7}), "metadata"),
        (json!({"reason": 7}), "reason"),
        (json!({"module": "main.harn"}), "module"),
        (json!({"module_ref": "main.harn"}), "module_ref"),
    ] {
        assert_eq!(
            invalid(&world, &source.id, body.clone()).await,
            param,
            "{body}"
        );
    }
    // Two names for one dependency.
    let twice = with(&[
        ("mcp:eyes:main:1", "mcp_tool_return", json!(1)),
        ("mcp:eyes:call_7", "mcp_tool_return", json!(2)),
    ]);
    assert!(
        invalid(&world, &source.id, twice)
            .await
            .starts_with("override.mcp:eyes:")
    );
    // Nothing of all this left anything behind.
    let request = ListRequest {
        kind: ResourceKind::Task,
        filters: Filters::default(),
        after: Position::START,
        limit: 100,
    };
    let tasks = world.engine.list(&Caller::system(), request).await.unwrap();
    assert_eq!(tasks.views.len(), 1);
}

#[tokio::test]
async fn unknown_and_unfinished_sources_are_refused() {
    let world = World::new(Outside::new()).await;
    let nobody = TaskId::parse("task_nobody").unwrap();
    let refused = world.try_replay(&nobody, json!({})).await.unwrap_err();
    assert!(
        matches!(refused, Refused::Domain(Refusal::NotFound { .. })),
        "{refused:?}"
    );
    // AP-RPL-25.
    let session = world.session().await;
    let held = world
        .submit(&session, Some("hold"), None, "wait".into())
        .await;
    let refused = world.try_replay(&held, json!({})).await.unwrap_err();
    assert!(
        matches!(
            &refused,
            Refused::Domain(Refusal::Conflict {
                reason: "source_not_finished",
                ..
            })
        ),
        "{refused:?}"
    );
}

#[tokio::test]
async fn hidden_sources_missing_scopes_and_secrets_without_the_right_to_vaults_are_refused() {
    let world = World::new(Outside::new()).await;
    let source = source(&world).await;
    let caller = |scopes: &[&str], workspaces: Option<Vec<String>>| {
        Caller::from_key(&engine::port::ApiKey {
            workspaces,
            ..key("user:a", scopes)
        })
    };
    let ask = |caller: Caller, body: Value| {
        let (engine, request) = (
            world.engine.clone(),
            replay_request(&source.id, body, false),
        );
        async move {
            engine
                .dispatch(&caller, request, None, Settle::Window)
                .await
        }
    };
    let elsewhere = WorkspaceId::from_body("elsewhere").to_string();
    let refused = ask(caller(&["*"], Some(vec![elsewhere])), json!({}))
        .await
        .unwrap_err();
    assert!(
        matches!(refused, Refused::Domain(Refusal::NotFound { .. })),
        "{refused:?}"
    );
    let refused = ask(caller(&["*:read"], None), json!({})).await.unwrap_err();
    assert!(
        matches!(
            refused,
            Refused::PermissionDenied {
                scope: "tasks:write"
            }
        ),
        "{refused:?}"
    );
    let secret = with(&[("secret:token", "secret_value", json!("s3cr3t"))]);
    let writer = caller(&["*:read", "tasks:write"], None);
    let refused = ask(writer.clone(), secret).await.unwrap_err();
    assert!(
        matches!(
            refused,
            Refused::PermissionDenied {
                scope: "vaults:write"
            }
        ),
        "{refused:?}"
    );
    assert!(ask(writer, json!({})).await.is_ok());
}

#[tokio::test]
async fn checkpoints_are_named_by_id_or_by_event() {
    let world = World::new(Outside::new()).await;
    let source = source(&world).await;
    let created = source.of_kind("vendor.checkpoint_created");
    assert_eq!(created.len(), 1);
    let id = created[0].payload["checkpoint_id"].as_str().unwrap();
    let place = source
        .events
        .iter()
        .position(|event| event.id == created[0].id)
        .unwrap();
    let before = source.events[place - 1].id.to_string();
    // B4: the event names itself, its artifact and the digest of the state.
    assert_eq!(created[0].payload["event_id"], *created[0].id);
    let body = |id: Option<&str>, event: Option<&str>| json!({"mode": "from_checkpoint", "checkpoint_id": id, "checkpoint_event_id": event});
    let not_found = |error: Refused| match error {
        Refused::Replay(error) => match *error {
            RequestError::NotFound { param, .. } => param,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let refused = world
        .try_replay(&source.id, body(Some("checkpoint_9"), None))
        .await;
    assert_eq!(not_found(refused.unwrap_err()), "checkpoint_id");
    let far = source.event_id("task.submitted");
    match world.try_replay(&source.id, body(None, Some(&far))).await {
        Err(Refused::Replay(error)) => match *error {
            RequestError::Invalid { param, details, .. } => {
                assert_eq!(param, "checkpoint_event_id");
                assert_eq!(details["nearest_checkpoint_id"], Value::Null);
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    let later = source.event_id("task.completed");
    match world.try_replay(&source.id, body(None, Some(&later))).await {
        Err(Refused::Replay(error)) => match *error {
            RequestError::Invalid { details, .. } => {
                assert_eq!(details["nearest_checkpoint_id"], id)
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    for body in [
        body(Some(id), None),
        body(None, Some(&created[0].id)),
        body(None, Some(&before)),
        body(Some(id), Some(&before)),
    ] {
        let replay = world.replay(&source.id, body.clone()).await;
        assert_eq!(replay.status, Status::Completed, "{body}");
        assert_eq!(replay.payload("replay.started")["checkpoint_id"], id);
    }
}

#[tokio::test]
async fn two_checkpoint_members_must_name_one_boundary() {
    let world = World::new(Outside::new()).await;
    let step = |n: u64| json!([{"key": format!("host:x:main:{n}"), "kind": "host"}]);
    for n in 1..4 {
        world.outside.answer(&format!("host:x:main:{n}"), json!(n));
    }
    let source = world
        .steps(json!({"steps": [step(1), step(2), step(3)], "checkpoints": true}))
        .await;
    let created = source.of_kind("vendor.checkpoint_created");
    assert_eq!(created.len(), 2);
    let body = json!({
        "mode": "from_checkpoint",
        "checkpoint_id": created[0].payload["checkpoint_id"],
        "checkpoint_event_id": created[1].id,
    });
    assert_eq!(
        invalid(&world, &source.id, body).await,
        "checkpoint_event_id"
    );
}

#[tokio::test]
async fn ap_rpl_22_digests_are_checked_and_placeholders_are_not() {
    let world = World::new(Outside::new()).await;
    let source = source(&world).await;
    let value = saying("other");
    let digest = sha256(&jcs(&value));
    let body = |sha256: &str| {
        json!({"mode": "with_overrides", "override": {"llm:main:1": {
            "kind": "llm_provider_response", "value": value, "sha256": sha256,
        }}})
    };
    let wrong = sha256(b"something else").to_string();
    match world.try_replay(&source.id, body(&wrong)).await {
        Err(Refused::Replay(error)) => match *error {
            RequestError::DigestMismatch { key, expected } => {
                assert_eq!(key, "llm:main:1");
                assert_eq!(expected, Some(digest));
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    for stated in [digest.to_string(), format!("sha256:{}", "b".repeat(64))] {
        let replay = world.replay(&source.id, body(&stated)).await;
        let deltas = deltas(&world.receipt(&replay).await);
        assert_eq!(
            deltas[0]["after_sha256"],
            digest.to_string(),
            "the true digest is written"
        );
    }
    // The digest of a secret is told to nobody, not even to who sent it.
    let secret = json!({"mode": "with_overrides", "override": {"secret:s": {
        "kind": "secret_value", "value": "s3cr3t", "sha256": wrong,
    }}});
    match world.try_replay(&source.id, secret).await {
        Err(Refused::Replay(error)) => assert!(
            matches!(*error, RequestError::DigestMismatch { expected: None, .. }),
            "{error:?}"
        ),
        other => panic!("{other:?}"),
    }
}

/// The contract's example carries an event id of another run: the key decides, and the mismatch is told.
#[tokio::test]
async fn foreign_event_ids_are_accepted_and_listed() {
    let world = World::new(Outside::new()).await;
    let source = source(&world).await;
    let body = json!({"mode": "with_overrides", "override": {"llm:main:1": {
        "kind": "llm_provider_response", "event_id": "event_01JZ7001", "value": saying("Done."),
    }}});
    let replay = world.replay(&source.id, body).await;
    assert_eq!(
        replay.payload("replay.started")["event_id_unmatched"],
        json!(["llm:main:1"])
    );
    let deltas = deltas(&world.receipt(&replay).await);
    assert_eq!(deltas[0]["event_id"], *source.record("llm:main:1").id);
    assert_eq!(replay.text(), "Done.");
}

pub(crate) async fn artifact(world: &World, bytes: &[u8]) -> String {
    let register = Request::RegisterArtifact(NewArtifact {
        kind: ArtifactKind::Dataset,
        mime_type: "application/json".to_owned(),
        uri: None,
        visibility: Visibility::Public,
        sha256: None,
        workspace_id: None,
        session_id: None,
        task_id: None,
        metadata: canon::Map::new(),
    });
    let id = world.write(register).await.unwrap().view.document.id;
    world.upload(&id, bytes).await;
    id.to_string()
}

#[tokio::test]
async fn ap_rpl_10_values_come_inline_or_from_artifacts() {
    let world = World::new(Outside::new()).await;
    let source = source(&world).await;
    let body = |artifact: &str, sha256: Option<String>| {
        let mut given = json!({"kind": "llm_provider_response", "artifact_id": artifact});
        if let Some(sha256) = sha256 {
            given["sha256"] = sha256.into();
        }
        json!({"mode": "with_overrides", "override": {"llm:main:1": given}})
    };
    match world
        .try_replay(&source.id, body("artifact_nobody", None))
        .await
    {
        Err(Refused::Replay(error)) => assert!(
            matches!(&*error, RequestError::NotFound { param, .. } if param == "override.llm:main:1.artifact_id"),
            "{error:?}"
        ),
        other => panic!("{other:?}"),
    }
    let words = artifact(&world, b"not json").await;
    assert_eq!(
        invalid(&world, &source.id, body(&words, None)).await,
        "override.llm:main:1.artifact_id"
    );
    // Written with white space: the digest is that of the bytes.
    let bytes = serde_json::to_vec_pretty(&saying("from an artifact")).unwrap();
    let good = artifact(&world, &bytes).await;
    let digest = sha256(&bytes).to_string();
    let replay = world
        .replay(&source.id, body(&good, Some(digest.clone())))
        .await;
    assert_eq!(replay.text(), "from an artifact");
    let deltas = deltas(&world.receipt(&replay).await);
    assert_eq!(deltas[0]["artifact_id"], good);
    assert_eq!(deltas[0]["after_sha256"], digest);
    let wrong = sha256(b"x").to_string();
    match world.try_replay(&source.id, body(&good, Some(wrong))).await {
        Err(Refused::Replay(error)) => {
            assert!(
                matches!(*error, RequestError::DigestMismatch { .. }),
                "{error:?}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn ap_rpl_08_recorded_call_ids_are_aliases_and_the_rest_is_listed() {
    let world = World::new(Outside::new()).await;
    let source = source(&world).await;
    // A completion whose record is too large for its event.
    let body = with(&[
        ("mcp:eyes:call_7", "mcp_tool_return", json!({"seen": 2})),
        (
            "llm:chatcmpl-llm-main-2",
            "llm_provider_response",
            saying("by its id"),
        ),
        ("host:tool.nobody:main:1", "tool_result", json!(1)),
    ]);
    let replay = world.replay(&source.id, body).await;
    let started = replay.payload("replay.started");
    assert_eq!(
        started["unmatched_keys"],
        json!(["host:tool.nobody:main:1"])
    );
    let completed = replay.payload("replay.completed");
    assert_eq!(
        completed["overrides_applied"],
        json!(["llm:main:2", "mcp:eyes:main:1"])
    );
    assert_eq!(
        completed["overrides_unused"],
        json!(["host:tool.nobody:main:1"])
    );
    assert_eq!(replay.text(), "by its id");
    let by_request = with(&[(
        "llm:req-llm-main-2",
        "llm_provider_response",
        saying("by its request"),
    )]);
    assert_eq!(
        world.replay(&source.id, by_request).await.text(),
        "by its request"
    );
}

#[tokio::test]
async fn ap_rpl_08_a_call_id_that_was_given_twice_names_neither() {
    let world = World::new(Outside::new()).await;
    world.outside.tools(two_tools()).says("llm:main:3", "seen");
    for turn in 1..3 {
        let key = format!("llm:main:{turn}");
        world.outside.uses(&key, &[("c", "look", "{}")]);
        let key = format!("mcp:eyes:main:{turn}");
        world.outside.answer(&key, json!({"turn": turn}));
    }
    let source = world.agent(json!({"tools": ["look"]}), "go").await;
    let body = |key: &str| with(&[(key, "mcp_tool_return", json!({"seen": 2}))]);
    let param = invalid(&world, &source.id, body("mcp:eyes:c")).await;
    assert_eq!(param, "override.mcp:eyes:c");
    let replay = world.replay(&source.id, body("mcp:eyes:main:2")).await;
    let applied = &replay.payload("replay.completed")["overrides_applied"];
    assert_eq!(applied, &json!(["mcp:eyes:main:2"]));
}

#[tokio::test]
async fn call_ids_of_large_answers_are_aliases_too() {
    let world = World::new(Outside::new()).await;
    world.outside.says("llm:main:1", &"long ".repeat(2_000));
    let source = world.plain("go").await;
    assert!(
        source.record("llm:main:1").payload.get("value").is_none(),
        "it lies in a blob"
    );
    let body = with(&[(
        "llm:chatcmpl-llm-main-1",
        "llm_provider_response",
        saying("short"),
    )]);
    let replay = world.replay(&source.id, body).await;
    assert_eq!(replay.text(), "short");
}

#[tokio::test]
async fn equal_requests_with_one_key_make_one_replay() {
    let world = World::new(Outside::new()).await;
    let source = source(&world).await;
    let ask = |key: &str, body: Value| {
        let idempotency = engine::Idempotency {
            key: key.to_owned(),
            method: "POST".to_owned(),
            target: "/v1/tasks/x/replay".to_owned(),
            body: body.clone(),
        };
        let (engine, request) = (
            world.engine.clone(),
            replay_request(&source.id, body, false),
        );
        async move {
            engine
                .dispatch(
                    &Caller::system(),
                    request,
                    Some(idempotency),
                    Settle::Window,
                )
                .await
        }
    };
    let secret = with(&[("secret:s", "secret_value", json!("s3cr3t"))]);
    let first = ask("k", secret.clone()).await.unwrap();
    let again = ask("k", secret.clone()).await.unwrap();
    assert!(!again.changed);
    assert_eq!(first.view.document.id, again.view.document.id);
    let other = with(&[("secret:s", "secret_value", json!("other"))]);
    assert!(matches!(
        ask("k", other).await,
        Err(Refused::IdempotencyKeyReused)
    ));
    let second = ask("l", secret).await.unwrap();
    assert_eq!(
        *second.view.document.id,
        *format!("{}_2", first.view.document.id)
    );
    assert_eq!(world.engine.replay_secrets_kept(), 0);
    let bytes = world.every_byte().await;
    assert!(!bytes.windows(6).any(|window| window == b"s3cr3t"));
}
