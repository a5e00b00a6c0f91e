//! The agent's loop: what it asks for, what it does with the answers, and that its replay is the same.

use domain::Status;
use serde_json::{Value, json};

use crate::rig::{Outside, World, completion, deltas, expected_kinds, saying, two_tools, with};

/// Replays a finished Task exactly and checks that nothing differs and nothing was performed.
async fn assert_replays(world: &World, source: &crate::rig::Finished) {
    let before = world.outside.call_count();
    let replay = world.replay(&source.id, json!({})).await;
    assert_eq!(replay.status, source.status, "{:?}", replay.events.last());
    let completed = replay.payload("replay.completed");
    assert_eq!(completed["result_equal"], true);
    assert_eq!(completed["overrides_applied"], json!([]));
    let replayed: Vec<&str> = replay.replayed().iter().map(|event| &*event.kind).collect();
    assert_eq!(replayed, expected_kinds(source));
    assert_eq!(completed["events_replayed"], replayed.len());
    assert_eq!(replay.text(), source.text());
    assert_eq!(world.outside.call_count(), before, "nothing is performed");
    assert!(deltas(&world.receipt(&replay).await).is_empty());
}

#[tokio::test]
async fn parallel_tools_run_at_once_and_are_recorded_as_they_end() {
    let outside = Outside::new();
    outside
        .tools(two_tools())
        .uses(
            "llm:main:1",
            &[
                ("c1", "look", r#"{"at":"a"}"#),
                ("c2", "look", r#"{"at":"b"}"#),
                ("c3", "send", r#"{"to":"c"}"#),
            ],
        )
        .answer(
            "mcp:eyes:main:1",
            json!({"content": [{"type": "text", "text": "slow"}]}),
        )
        .answer(
            "mcp:eyes:main:2",
            json!({"content": [{"type": "text", "text": "fast"}]}),
        )
        .answer("host:tool.send:main:1", json!({"sent": true}))
        .says("llm:main:2", "done")
        .delay("mcp:eyes:main:1", 60)
        .delay("host:tool.send:main:1", 20);
    let world = World::new(outside).await;
    let persona = json!({"tools": ["look", "send"], "system_prompt": "Be kind."});
    let source = world.agent(persona, "look around").await;
    assert_eq!(source.status, Status::Completed);
    assert_eq!(source.text(), "done");
    let recorded: Vec<&Value> = source
        .of_kind("vendor.effect_recorded")
        .iter()
        .map(|event| &event.payload["effect_key"])
        .collect();
    // All three ran at once: the order of the records is the order in which they ended.
    assert_eq!(
        recorded,
        [
            "host:tools:main:1",
            "llm:main:1",
            "mcp:eyes:main:2",
            "host:tool.send:main:1",
            "mcp:eyes:main:1",
            "llm:main:2",
        ]
    );
    // The model reads them in the order of its calls.
    let request = world.outside.request("llm:main:2").unwrap();
    let messages = request["messages"].as_array().unwrap();
    let read: Vec<(&str, &str)> = messages
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| {
            (
                message["tool_call_id"].as_str().unwrap(),
                message["content"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        read,
        [("c1", "slow"), ("c2", "fast"), ("c3", r#"{"sent":true}"#)]
    );
    assert_eq!(
        messages[0],
        json!({"role": "system", "content": "Be kind."})
    );
    assert_eq!(
        messages[1],
        json!({"role": "user", "content": "look around"})
    );
    let used: Vec<&Value> = source
        .of_kind("agent.tool_use")
        .iter()
        .map(|event| &event.payload["effect_key"])
        .collect();
    assert_eq!(
        used,
        [
            "mcp:eyes:main:1",
            "mcp:eyes:main:2",
            "host:tool.send:main:1"
        ]
    );
    assert_eq!(source.of_kind("agent.tool_result").len(), 3);
    assert_replays(&world, &source).await;
}

#[tokio::test]
async fn a_tier_that_only_looks_never_acts_and_the_model_is_told() {
    for tier in ["shadow", "suggest"] {
        let outside = Outside::new();
        outside
            .tools(two_tools())
            .uses("llm:main:1", &[("c1", "look", "{}"), ("c2", "send", "{}")])
            .answer("mcp:eyes:main:1", json!({"seen": 1}))
            .says("llm:main:2", "I would have sent it");
        let world = World::new(outside).await;
        let source = world
            .agent(
                json!({"tools": ["look", "send"], "autonomy_tier": tier}),
                "go",
            )
            .await;
        assert_eq!(source.status, Status::Completed, "{tier}");
        assert!(
            !world
                .outside
                .calls()
                .contains(&"host:tool.send:main:1".to_owned())
        );
        let denied = source.of_kind("tool.denied");
        assert_eq!(denied.len(), 1);
        assert_eq!(denied[0].payload["tool_call_id"], "c2");
        let request = world.outside.request("llm:main:2").unwrap();
        let told = request["messages"].as_array().unwrap().last().unwrap();
        assert!(told["content"].as_str().unwrap().contains(tier), "{told}");
        assert_replays(&world, &source).await;
    }
}

#[tokio::test]
async fn approval_is_asked_for_each_acting_tool_and_a_denial_is_told_to_the_model() {
    let outside = Outside::new();
    outside
        .tools(two_tools())
        .uses(
            "llm:main:1",
            &[
                ("c1", "send", r#"{"n":1}"#),
                ("c2", "look", "{}"),
                ("c3", "send", r#"{"n":2}"#),
            ],
        )
        .answer("mcp:eyes:main:1", json!({"seen": 1}))
        .answer("host:tool.send:main:1", json!({"sent": 1}))
        .answer("host:tool.send:main:2", json!({"sent": 2}))
        .says("llm:main:2", "one was sent");
    let world = World::new(outside).await;
    let session = world.session().await;
    let persona = world
        .persona(json!({"tools": ["look", "send"], "autonomy_tier": "act_with_approval"}))
        .await;
    let id = world
        .submit(&session, None, Some(&persona), "go".into())
        .await;
    world.approve(&id, true).await;
    world.approve(&id, false).await;
    let source = world.ended(&id).await;
    assert_eq!(source.status, Status::Completed);
    let calls = world.outside.calls();
    assert!(
        calls.contains(&"host:tool.send:main:1".to_owned()),
        "{calls:?}"
    );
    assert!(
        !calls.contains(&"host:tool.send:main:2".to_owned()),
        "{calls:?}"
    );
    let asked = source.of_kind("tool.approval_required");
    assert_eq!(asked.len(), 2);
    assert_eq!(
        asked[1].payload["action"],
        json!({"name": "send", "input": {"n": 2}})
    );
    assert_replays(&world, &source).await;
    // The decision is an effect like any other: with a yes the second one is asked for, and no record answers it.
    let body = with(&[("host:approval:2", "host_fact", json!({"approved": true}))]);
    let replay = world.replay(&id, body).await;
    assert_eq!(replay.status, Status::Failed);
    let failed = replay.payload("replay.failed");
    assert_eq!(
        failed["details"]["first_unavailable"]["key"],
        "host:tool.send:main:2"
    );
    let body = with(&[("host:approval:1", "host_fact", json!({"approved": false}))]);
    let replay = world.replay(&id, body).await;
    assert_eq!(replay.status, Status::Completed);
    assert_eq!(deltas(&world.receipt(&replay).await).len(), 1);
}

#[tokio::test]
async fn every_limit_stops_the_loop_and_is_named() {
    for (limits, limit, calls) in [
        (json!({"steps_max": 2}), "steps_max", 2),
        (json!({"tokens_max": 15}), "tokens_max", 1),
        (json!({"cost_micros_max": 14}), "cost_micros_max", 2),
        (json!({"tool_calls_max": 1}), "tool_calls_max", 2),
    ] {
        let outside = Outside::new();
        outside.tools(two_tools());
        for turn in 1..10 {
            outside.uses(&format!("llm:main:{turn}"), &[("c", "look", "{}")]);
            outside.answer(&format!("mcp:eyes:main:{turn}"), json!({"turn": turn}));
        }
        let world = World::new(outside).await;
        let source = world
            .agent(json!({"tools": ["look"], "limits": limits}), "go")
            .await;
        assert_eq!(source.status, Status::Failed, "{limit}");
        let failure = &source.payload("task.failed")["failure"];
        assert_eq!(failure["code"], "limit_exceeded");
        assert_eq!(failure["details"]["limit"], limit);
        let asked = world.outside.calls();
        let asked = asked.iter().filter(|key| key.starts_with("llm:")).count();
        assert_eq!(asked, calls, "{limit}");
        assert_replays(&world, &source).await;
    }
}

/// A limit on tool calls that is noticed after the tools have acted is none.
#[tokio::test]
async fn tools_beyond_their_limit_are_not_used() {
    let outside = Outside::new();
    outside.tools(two_tools()).uses(
        "llm:main:1",
        &[
            ("a", "send", "{}"),
            ("b", "send", "{}"),
            ("c", "send", "{}"),
        ],
    );
    let world = World::new(outside).await;
    let persona = json!({"tools": ["send"], "limits": {"tool_calls_max": 2}});
    let source = world.agent(persona, "go").await;
    assert_eq!(source.status, Status::Failed);
    let calls = world.outside.calls();
    assert!(
        !calls.iter().any(|key| key.starts_with("host:tool.send")),
        "{calls:?}"
    );
    assert_replays(&world, &source).await;
}

#[tokio::test]
async fn a_limit_on_cost_needs_a_known_price() {
    let outside = Outside::new();
    let mut performed = completion("llm:main:1", json!({"role": "assistant", "content": "hi"}));
    performed.model.as_mut().unwrap().cost_micros = None;
    outside.perform_as("llm:main:1", performed);
    let world = World::new(outside).await;
    let source = world
        .agent(json!({"limits": {"cost_micros_max": 100}}), "go")
        .await;
    assert_eq!(
        source.payload("task.failed")["failure"]["code"],
        "price_unknown"
    );
    assert_replays(&world, &source).await;
}

#[tokio::test]
async fn calls_that_make_no_sense_are_told_to_the_model_and_not_performed() {
    let outside = Outside::new();
    outside
        .tools(two_tools())
        .uses(
            "llm:main:1",
            &[
                ("c1", "look", r#"{"at":"#),
                ("c2", "look", "[1]"),
                ("c3", "dig", "{}"),
                ("c4", "look", r#"{"big": 12345678901234567890}"#),
                ("c5", "look", r#"{"twice": 1, "twice": 2}"#),
                ("c6", "look", ""),
            ],
        )
        .answer("mcp:eyes:main:1", json!({"seen": 1}))
        .says("llm:main:2", "sorry");
    let world = World::new(outside).await;
    let source = world.agent(json!({"tools": ["look"]}), "go").await;
    assert_eq!(source.status, Status::Completed);
    let calls = world.outside.calls();
    let performed: Vec<&String> = calls.iter().filter(|key| key.starts_with("mcp:")).collect();
    assert_eq!(performed, ["mcp:eyes:main:1"], "only c6 can be performed");
    let results = source.of_kind("agent.tool_result");
    let statuses: Vec<(&Value, &Value)> = results
        .iter()
        .map(|event| (&event.payload["tool_call_id"], &event.payload["status"]))
        .collect();
    assert_eq!(statuses.len(), 6);
    for (id, status) in statuses {
        assert_eq!(*status, if id == "c6" { "ok" } else { "error" }, "{id}");
    }
    assert_eq!(source.of_kind("tool.failed").len(), 5);
    // Every stored event can be read by the strictest reader.
    for bytes in world.bytes(&source.id).await {
        let value = canon::read(&bytes, canon::Integers::Safe).unwrap();
        assert_eq!(canon::jcs(&value), *bytes);
    }
    assert_replays(&world, &source).await;
}

#[tokio::test]
async fn errors_of_tools_are_told_and_errors_of_the_model_end_the_run() {
    let outside = Outside::new();
    outside
        .tools(two_tools())
        .uses("llm:main:1", &[("c1", "look", "{}"), ("c2", "look", "{}")])
        .fails("mcp:eyes:main:1", "tool_timeout")
        .answer(
            "mcp:eyes:main:2",
            json!({"isError": true, "content": [{"type": "text", "text": "no"}]}),
        )
        .fails("llm:main:2", "provider_error");
    let world = World::new(outside).await;
    let source = world.agent(json!({"tools": ["look"]}), "go").await;
    assert_eq!(source.status, Status::Failed);
    assert_eq!(source.record("mcp:eyes:main:1").payload["outcome"], "error");
    assert_eq!(source.record("mcp:eyes:main:2").payload["outcome"], "ok");
    assert_eq!(source.of_kind("tool.failed").len(), 2);
    let failure = &source.payload("task.failed")["failure"];
    assert_eq!(failure["code"], "model_call_failed");
    assert_eq!(failure["details"]["error"]["code"], "provider_error");
    assert_replays(&world, &source).await;
    let replay = world.replay(&source.id, json!({})).await;
    assert_eq!(&replay.payload("task.failed")["failure"], failure);
    // The answer that would have saved it.
    let body = with(&[("llm:main:2", "llm_provider_response", saying("saved"))]);
    let replay = world.replay(&source.id, body).await;
    assert_eq!(
        (replay.status, replay.text().as_str()),
        (Status::Completed, "saved")
    );
}

#[tokio::test]
async fn answers_that_no_model_should_give_fail_the_task_with_a_code() {
    for (answer, code) in [
        (json!({}), "model_answer_unreadable"),
        (
            json!({"choices": [{"message": {"content": null}}]}),
            "model_answer_unreadable",
        ),
        (
            json!({"choices": [{"message": {"content": 7}}]}),
            "model_answer_unreadable",
        ),
        (json!("text"), "model_answer_unreadable"),
    ] {
        let outside = Outside::new();
        outside.answer("llm:main:1", answer);
        let world = World::new(outside).await;
        let source = world.plain("go").await;
        assert_eq!(source.payload("task.failed")["failure"]["code"], code);
        assert_replays(&world, &source).await;
    }
}

/// AP-MEM-03: what was remembered is recorded; what is remembered since is not seen, unless asked for.
#[tokio::test]
async fn ap_mem_03_memory_of_the_run_is_the_memory_of_its_replay() {
    let outside = Outside::new();
    outside.says("llm:main:1", "I remember");
    let world = World::new(outside).await;
    let session = world.session().await;
    let persona = world.persona(json!({"memory": "session"})).await;
    let append = |words: &str| engine::Request::AppendMessage {
        session_id: session.clone(),
        message: crate::support::text(words),
    };
    world.write(append("before")).await.unwrap();
    let id = world
        .submit(&session, None, Some(&persona), "what was it?".into())
        .await;
    let source = world.ended(&id).await;
    let request = world.outside.request("llm:main:1").unwrap();
    assert_eq!(request["messages"][0]["content"], "before");
    assert_eq!(source.of_kind("agent.memory_read")[0].payload["count"], 1);
    world.write(append("after")).await.unwrap();
    assert_replays(&world, &source).await;
    // Refreshed: the memory is another one, the model is asked something else, and the record stands in for its answer.
    let body = json!({"mode": "with_overrides", "refresh": ["memory"]});
    let replay = world.replay(&id, body).await;
    assert_eq!(replay.status, Status::Completed);
    let record = replay.record("host:memory.read:main:1");
    assert!(
        record.payload["value"].to_string().contains("after"),
        "{:?}",
        record.payload
    );
    let receipt = world.receipt(&replay).await;
    assert_eq!(
        receipt.as_map()["replay_input"]["determinism"],
        "best_effort"
    );
    let deltas = deltas(&receipt);
    assert_eq!(deltas.len(), 1);
    assert_eq!(deltas[0]["override_key"], "host:memory.read:main:1");
    assert_eq!(deltas[0]["reason"], "refreshed by request");
}

/// The newest Messages are remembered, in order, and none that truncation dropped.
#[tokio::test]
async fn the_memory_is_the_end_of_the_transcript() {
    let outside = Outside::new();
    outside.says("llm:main:1", "I remember");
    let world = World::new(outside).await;
    let session = world.session().await;
    let persona = world.persona(json!({"memory": "session"})).await;
    let append = async |words: String| {
        let message = crate::support::text(&words);
        let session_id = session.clone();
        let request = engine::Request::AppendMessage {
            session_id,
            message,
        };
        world.write(request).await.unwrap();
    };
    for number in 0..110 {
        append(format!("kept {number}")).await;
    }
    for number in 0..30 {
        append(format!("dropped {number}")).await;
    }
    let truncate = engine::Request::TruncateSession {
        id: session.clone(),
        keep_first: 110,
        reason: None,
    };
    world.write(truncate).await.unwrap();
    for number in 0..95 {
        append(format!("later {number}")).await;
    }
    let id = world
        .submit(&session, None, Some(&persona), "what was it?".into())
        .await;
    let source = world.ended(&id).await;
    let request = world.outside.request("llm:main:1").unwrap();
    let messages = request["messages"].as_array().unwrap();
    let told: Vec<&str> = messages
        .iter()
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    let kept = (5..110).map(|number| format!("kept {number}"));
    let expected: Vec<String> = kept
        .chain((0..95).map(|number| format!("later {number}")))
        .chain(["what was it?".to_owned()])
        .collect();
    assert_eq!(told, expected);
    assert_replays(&world, &source).await;
}

/// B6: the record of a secret is a handle. Names that are no plain words are encoded in the key.
#[tokio::test]
async fn tools_that_need_secrets_get_handles_and_nothing_else_is_recorded() {
    let outside = Outside::new();
    outside
        .tools(json!([{"name": "send", "repeatable": true, "secrets": ["mail key", "token"]}]))
        .answer("secret:token", json!({"vault_id": "vault_1", "version": 1}))
        .answer(
            "secret:mail%20key",
            json!({"vault_id": "vault_1", "version": 4}),
        )
        .uses("llm:main:1", &[("c1", "send", "{}")])
        .answer("host:tool.send:main:1", json!({"sent": true}))
        .says("llm:main:2", "sent");
    let world = World::new(outside).await;
    let source = world.agent(json!({"tools": ["send"]}), "go").await;
    assert_eq!(
        source.status,
        Status::Completed,
        "{:?}",
        source.events.last()
    );
    let handle = &source.record("secret:mail%20key").payload["value"];
    assert_eq!(*handle, json!({"vault_id": "vault_1", "version": 4}));
    assert_replays(&world, &source).await;
}

/// S3: a tool that may be repeated after a crash, and changes something, is not one that changes nothing.
#[tokio::test]
async fn u22_an_idempotent_delete_asks_and_is_denied_under_suggest() {
    let outside = Outside::new();
    outside
        .tools(json!([{"name": "delete_file", "repeatable": true, "read_only": false}]))
        .uses("llm:main:1", &[("c", "delete_file", "{}")])
        .answer("host:tool.delete_file:main:1", json!({"deleted": true}))
        .says("llm:main:2", "done");
    let world = World::new(outside).await;
    let persona =
        |tier: &str| json!({"tools": ["delete_file"], "autonomy_tier": tier, "name": tier});
    let source = world.agent(persona("suggest"), "tidy up").await;
    assert_eq!(source.of_kind("tool.denied").len(), 1);
    assert!(
        !world
            .outside
            .calls()
            .iter()
            .any(|key| key.contains("delete"))
    );
    assert_replays(&world, &source).await;

    let session = world.session().await;
    let persona = world.persona(persona("act_with_approval")).await;
    let id = world
        .submit(&session, None, Some(&persona), "tidy up".into())
        .await;
    world.reach(&id, Status::AuthRequired).await;
    assert!(
        !world
            .outside
            .calls()
            .iter()
            .any(|key| key.contains("delete"))
    );
    world.approve(&id, true).await;
    let source = world.ended(&id).await;
    assert!(
        world
            .outside
            .calls()
            .iter()
            .any(|key| key.contains("delete"))
    );
    assert_replays(&world, &source).await;
}
