//! Contracts in the agent: what they forbid does not happen, what they ask is asked, and a replay judges the same.

use std::sync::Arc;

use canon::Value;
use domain::{ContractText, ContractTexts, Status};
use engine::Refused;
use serde_json::json;

use crate::rig::{Finished, Outside, World, completion, two_tools, with};

/// Reading is free; sending needs a look before, and is asked about when it goes to everybody.
const LOOK: &str = "tool: look\nside_effect: read\n";
const SEND: &str = "tool: send\nside_effect: write\n\
    preconditions:\n  - requires_prior_tool: look\n\
    argument_value_invariants:\n  - { path: \"$.to\", one_of: [\"ann\", \"all\"] }\n\
    checkpoint:\n  reason: \"a mail to everybody\"\n  when: [{ path: \"$.to\", equals: \"all\" }]\n  timeout_seconds: 60\n";

pub(crate) fn texts(files: &[&str]) -> ContractTexts {
    let sources: Vec<contracts::Source> = files
        .iter()
        .map(|text| contracts::Source {
            file: format!(
                "{}.yaml",
                text.lines().next().unwrap().trim_start_matches("tool: ")
            ),
            text: (*text).to_owned(),
        })
        .collect();
    let compiled = contracts::compile(&sources, None).unwrap();
    ContractTexts {
        name: "mail".to_owned(),
        sha256: compiled.digest(),
        files: sources
            .into_iter()
            .map(|source| ContractText {
                file: source.file,
                text: source.text,
            })
            .collect(),
        session: None,
        principal: canon::Map::new(),
    }
}

/// A model's answer that calls tools, with the reason that providers give for stopping.
pub(crate) fn calling(key: &str, calls: &[(&str, &str, &str)]) -> runs::workflow::EffectOutcome {
    let calls: Vec<Value> = calls
        .iter()
        .map(|(id, name, arguments)| {
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
    let mut performed = completion(key, message);
    performed.value["choices"][0]["finish_reason"] = json!("tool_calls");
    performed
}

async fn world(answers: &[&[(&str, &str, &str)]]) -> World {
    world_with(&Outside::new(), answers).await
}

async fn world_with(outside: &Arc<Outside>, answers: &[&[(&str, &str, &str)]]) -> World {
    outside
        .tools(two_tools())
        .answer("mcp:eyes:main:1", json!({"structuredContent": {"seen": 1}}))
        .answer(
            "host:tool.send:main:1",
            json!({"exit_code": 0, "stdout": "sent"}),
        );
    for (turn, calls) in answers.iter().enumerate() {
        let key = format!("llm:main:{}", turn + 1);
        outside.perform_as(&key, calling(&key, calls));
    }
    outside.says(&format!("llm:main:{}", answers.len() + 1), "done");
    let world = World::new(Arc::clone(outside)).await;
    world.engine.set_contracts([texts(&[LOOK, SEND])]);
    world
}

fn persona() -> Value {
    json!({"tools": ["look", "send"], "contracts": "mail"})
}

pub(crate) fn governance(receipt: &receipts::Receipt) -> Value {
    receipt.as_map()["metadata"]["governance"].clone()
}

pub(crate) fn tools_shown(world: &World, key: &str) -> Vec<String> {
    let request = world.outside.request(key).unwrap();
    let tools = request["tools"].as_array().cloned().unwrap_or_default();
    let name = |tool: &Value| tool["function"]["name"].as_str().unwrap().to_owned();
    tools.iter().map(name).collect()
}

pub(crate) async fn replays_the_same(world: &World, source: &Finished) {
    let replay = world.replay(&source.id, json!({"mode": "exact"})).await;
    assert_eq!(
        replay.status,
        Status::Completed,
        "{:?}",
        replay.payload("replay.failed")
    );
    let decided = |task: &Finished| -> Vec<Value> {
        let events = task.of_kind("vendor.contract_decided");
        events
            .iter()
            .map(|event| Value::Object((*event.payload).clone()))
            .collect()
    };
    assert_eq!(decided(source), decided(&replay));
}

#[tokio::test]
async fn a_call_that_contracts_forbid_is_not_made_and_is_not_even_offered() {
    let world = world(&[
        &[("c1", "send", r#"{"to":"ann"}"#)],
        &[("c2", "look", "{}")],
        &[("c3", "send", r#"{"to":"ann"}"#)],
    ])
    .await;
    let task = world.agent(persona(), "go").await;
    assert_eq!(task.status, Status::Completed);
    assert_eq!(
        tools_shown(&world, "llm:main:1"),
        ["look"],
        "sending needs a look before"
    );
    assert_eq!(tools_shown(&world, "llm:main:3"), ["look", "send"]);
    let sent = world
        .outside
        .calls()
        .iter()
        .filter(|key| key.starts_with("host:tool.send"))
        .count();
    assert_eq!(sent, 1, "the first one was refused");
    let denied = task.of_kind("tool.denied");
    assert_eq!(denied.len(), 1);
    let reason = denied[0].payload["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("refused by contract: precondition_not_met"),
        "{reason}"
    );
    let receipt = world.receipt(&task).await;
    let facts = governance(&receipt);
    assert_eq!(facts["allowed"], 2);
    assert_eq!(facts["blocked"], 1);
    assert_eq!(facts["asked"], 0);
    assert_eq!(facts["contract_sha256"], json!(texts(&[LOOK, SEND]).sha256));
    replays_the_same(&world, &task).await;
}

#[tokio::test]
async fn a_call_that_counts_when_it_is_released_is_made_all_the_same() {
    let world = world(&[
        &[("c1", "look", "{}")],
        &[("c2", "send", r#"{"to":"ann"}"#)],
    ])
    .await;
    let look = "tool: look\nside_effect: read\ncommit_requirement: none\n";
    world.engine.set_contracts([texts(&[look, SEND])]);
    let task = world.agent(persona(), "go").await;
    assert_eq!(task.status, Status::Completed);
    let denied = task.of_kind("tool.denied");
    assert!(denied.is_empty(), "{:?}", denied.first());
    for tool in ["mcp:eyes", "host:tool.send"] {
        let calls = world.outside.calls();
        let made = calls.iter().filter(|key| key.starts_with(tool)).count();
        assert_eq!(made, 1, "{tool}");
    }
    replays_the_same(&world, &task).await;
}

#[tokio::test]
async fn a_checkpoint_asks_with_the_exact_arguments_and_binds_the_answer_to_them() {
    for approved in [true, false] {
        let world = world(&[
            &[("c1", "look", "{}")],
            &[("c2", "send", r#"{"to":"all"}"#)],
        ])
        .await;
        let session = world.session().await;
        let persona = world.persona(persona()).await;
        let id = world
            .submit(&session, None, Some(&persona), "go".into())
            .await;
        world.approve(&id, approved).await;
        let task = world.ended(&id).await;
        assert_eq!(task.status, Status::Completed);
        let asked = task.payload("tool.approval_required");
        assert_eq!(
            asked["request"]["action"],
            json!({"name": "send", "input": {"to": "all"}})
        );
        assert_eq!(asked["request"]["reason"], "a mail to everybody");
        let digest = canon::sha256(br#"{"to":"all"}"#);
        assert_eq!(
            asked["request"]["contract"]["arguments_sha256"],
            json!(digest)
        );
        let sent = world
            .outside
            .calls()
            .iter()
            .any(|key| key.starts_with("host:tool.send"));
        assert_eq!(sent, approved);
        let facts = governance(&world.receipt(&task).await);
        assert_eq!(facts["asked"], 1);
        assert_eq!(facts["blocked"], u64::from(!approved));
        replays_the_same(&world, &task).await;
    }
}

#[tokio::test]
async fn an_answer_that_comes_too_late_does_not_count() {
    let outside = Outside::new();
    // The question is good for a minute.
    outside.time_leaps(61_000_000);
    let world = world_with(
        &outside,
        &[
            &[("c1", "look", "{}")],
            &[("c2", "send", r#"{"to":"all"}"#)],
        ],
    )
    .await;
    let session = world.session().await;
    let persona = world.persona(persona()).await;
    let id = world
        .submit(&session, None, Some(&persona), "go".into())
        .await;
    world.approve(&id, true).await;
    let task = world.ended(&id).await;
    assert!(
        !world
            .outside
            .calls()
            .iter()
            .any(|key| key.starts_with("host:tool.send"))
    );
    let reason = task.of_kind("tool.denied").last().unwrap().payload["reason"].clone();
    assert!(
        reason.as_str().unwrap().contains("checkpoint_timeout"),
        "{reason}"
    );
}

/// A replay that changes the model's answer is judged again: the changed call is refused.
#[tokio::test]
async fn a_replay_judges_what_it_changed() {
    let world = world(&[
        &[("c1", "look", "{}")],
        &[("c2", "send", r#"{"to":"ann"}"#)],
    ])
    .await;
    let source = world.agent(persona(), "go").await;
    assert_eq!(governance(&world.receipt(&source).await)["blocked"], 0);
    let changed = calling("llm:main:2", &[("c2", "send", r#"{"to":"eve"}"#)]).value;
    let replay = world
        .replay(
            &source.id,
            with(&[("llm:main:2", "llm_provider_response", changed)]),
        )
        .await;
    let decisions = replay.of_kind("vendor.contract_decided");
    let blocked = decisions.iter().any(|event| {
        event.payload.get("decision").unwrap_or(&Value::Null)["reason"] == "argument_value_mismatch"
    });
    assert!(blocked, "{decisions:?}");
}

#[tokio::test]
async fn a_persona_cannot_name_contracts_that_are_not_there() {
    let world = World::new(Outside::new()).await;
    let refused = world
        .try_persona(json!({"contracts": "mail"}))
        .await
        .unwrap_err();
    assert!(
        matches!(
            &refused,
            Refused::Domain(domain::Refusal::Invalid {
                param: "contracts",
                ..
            })
        ),
        "{refused:?}"
    );
}

#[tokio::test]
async fn contracts_are_recorded_with_the_task_and_need_no_configuration_later() {
    let world = world(&[&[("c1", "look", "{}")]]).await;
    let source = world.agent(persona(), "go").await;
    let bare = world.reopened_with(crate::rig::registry("1")).await;
    replays_the_same(&bare, &source).await;
}

/// Once sent, never again; a call whose result nobody knows counts as sent, whatever id the model gives the next one.
#[tokio::test]
async fn a_call_of_unknown_result_is_not_forgotten_when_its_id_comes_again() {
    let send = ("c1", "send", r#"{"to":"ann"}"#);
    let world = world(&[&[send], &[send], &[send]]).await;
    world.outside.fails("host:tool.send:main:1", "tool_timeout");
    let once = "tool: send\nside_effect: write\nforbids_after: [send]\n";
    let again = World::new(Arc::clone(&world.outside)).await;
    again.engine.set_contracts([texts(&[LOOK, once])]);
    let task = again.agent(persona(), "go").await;
    assert_eq!(task.of_kind("tool.denied").len(), 2, "{:?}", task.kinds());
    let sent = world.outside.calls();
    let sent: Vec<_> = sent
        .iter()
        .filter(|key| key.starts_with("host:tool.send"))
        .collect();
    assert_eq!(sent.len(), 1, "{sent:?}");
}

/// Whoever replays live cannot tell the contracts what happened, and an approval is good for the call that it was about.
#[tokio::test]
async fn a_live_replay_gets_around_no_contract() {
    let world = world(&[
        &[("c1", "look", "{}")],
        &[("c2", "send", r#"{"to":"all"}"#)],
    ])
    .await;
    let session = world.session().await;
    let persona_id = world.persona(persona()).await;
    let id = world
        .submit(&session, None, Some(&persona_id), "go".into())
        .await;
    world.approve(&id, true).await;
    let source = world.ended(&id).await;
    let sent = || {
        let calls = world.outside.calls();
        calls
            .iter()
            .filter(|key| key.starts_with("host:tool.send"))
            .count()
    };
    assert_eq!((source.status, sent()), (Status::Completed, 1));
    for (key, kind, value) in [
        ("mcp:eyes:main:1", "mcp_tool_return", json!({"seen": 2})),
        (
            "time:contracts:main:2",
            "time",
            json!("2026-01-01T00:00:00Z"),
        ),
    ] {
        let mut body = with(&[(key, kind, value)]);
        body["refresh"] = json!(["model", "tools"]);
        let refused = world.try_replay(&source.id, body).await.unwrap_err();
        let is_policy = matches!(
            &refused,
            Refused::Domain(domain::Refusal::Policy {
                reason: "contracts_live",
                ..
            })
        );
        assert!(is_policy, "{refused:?}");
    }
    let body = json!({"mode": "with_overrides", "refresh": ["tools"], "refresh_from": "host:tool.send:main:1"});
    let replay = world.replay(&source.id, body).await;
    assert_eq!((replay.status, sent()), (Status::Failed, 1));
    // Under other contracts than it had, it does not go on live at all.
    let other = world.reopened_with(crate::rig::registry("1")).await;
    let body =
        json!({"mode": "with_overrides", "refresh": ["model"], "refresh_from": "llm:main:3"});
    let refused = other.try_replay(&source.id, body).await.unwrap_err();
    assert!(
        matches!(&refused, Refused::Domain(domain::Refusal::Policy { .. })),
        "{refused:?}"
    );
}
