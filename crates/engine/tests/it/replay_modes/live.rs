//! Refreshed reads and runs that go on live (B7).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use canon::{Value, sha256};
use domain::{FileChange, ModelUse, Observed, Status};
use engine::Caller;
use runs::workflow::{
    EffectAnswer, EffectOutcome, Machine, Registry, Start, Step, Workflow, builtin,
};
use serde_json::json;

use super::{effect, first_unavailable};
use crate::rig::{Finished, Outside, World, completion, deltas, two_tools, with};

/// B7: what is refreshed is read live, reported as such, and accounted for.
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

/// A workflow that counts the steps of its machines.
#[derive(Debug)]
struct Counting {
    of: Arc<dyn Workflow>,
    steps: Arc<AtomicUsize>,
}

impl Workflow for Counting {
    fn name(&self) -> &'static str {
        self.of.name()
    }

    fn version(&self) -> &'static str {
        self.of.version()
    }

    fn description(&self) -> &'static str {
        self.of.description()
    }

    fn begin(&self, start: &Start) -> Box<dyn Machine> {
        Box::new(Counted(self.of.begin(start), Arc::clone(&self.steps)))
    }
}

struct Counted(Box<dyn Machine>, Arc<AtomicUsize>);

impl Machine for Counted {
    fn step(&mut self, results: &[EffectAnswer]) -> Step {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.step(results)
    }

    fn state(&self) -> Value {
        self.0.state()
    }
}

/// A run that goes on live steps its machine as often as a run that is recorded, however much it performs.
#[tokio::test]
async fn b07_going_on_live_costs_what_it_performs_and_no_more() {
    let steps = Arc::new(AtomicUsize::new(0));
    let counting = builtin().into_iter().map(|of| {
        let steps = Arc::clone(&steps);
        Arc::new(Counting { of, steps }) as Arc<dyn Workflow>
    });
    let world = World::with(Outside::new(), Registry::new(counting)).await;
    let persona = json!({"tools": ["look"]});
    world
        .outside
        .tools(two_tools())
        .uses("llm:main:1", &[("c1", "look", "{}")])
        .answer("mcp:eyes:main:1", json!({"seen": 0}))
        .says("llm:main:2", "nothing");
    let source = world.agent(persona.clone(), "go").await;
    for turns in [4_usize, 16] {
        for turn in 2..=turns {
            world
                .outside
                .uses(&format!("llm:main:{turn}"), &[("c", "look", "{}")])
                .answer(&format!("mcp:eyes:main:{turn}"), json!({"seen": turn}));
        }
        world
            .outside
            .says(&format!("llm:main:{}", turns + 1), "enough");
        let before = steps.load(Ordering::Relaxed);
        let ordinary = world.agent(persona.clone(), "go").await;
        let recorded = steps.load(Ordering::Relaxed) - before;
        assert_eq!(ordinary.text(), "enough");
        let mut body = with(&[("mcp:eyes:main:1", "mcp_tool_return", json!({"seen": 1}))]);
        body["refresh"] = json!(["model", "tools"]);
        let replay = world.replay(&source.id, body).await;
        assert_eq!(replay.text(), "enough", "{:?}", replay.kinds());
        let live = steps.load(Ordering::Relaxed) - before - recorded;
        assert_eq!(live, recorded, "{turns} turns");
    }
}

fn observed_write(path: &str) -> Observed {
    Observed {
        fs_writes: vec![FileChange {
            path: path.to_owned(),
            operation: "create".to_owned(),
            before_sha256: None,
            after_sha256: Some(sha256(b"new")),
        }],
        network_egress: Vec::new(),
        not_observed: vec!["network_egress".to_owned()],
        sandbox: None,
    }
}

/// A source that looked once; an outside that, when something else was seen, sends twice and then says so.
async fn looked(world: &World) -> Finished {
    world
        .outside
        .tools(two_tools())
        .uses("llm:main:1", &[("c1", "look", "{}")])
        .answer("mcp:eyes:main:1", json!({"seen": "a cat"}))
        .says("llm:main:2", "a cat");
    let source = world.agent(json!({"tools": ["look", "send"]}), "go").await;
    assert_eq!(source.text(), "a cat");
    let unpriced = ModelUse {
        provider: "other".to_owned(),
        model: "other-2".to_owned(),
        input_tokens: 3,
        output_tokens: 4,
        cost_micros: None,
        price_table: None,
        usage_unknown: false,
    };
    world
        .outside
        .uses(
            "llm:main:2",
            &[("d1", "send", r#"{"to":"me"}"#), ("d2", "send", "{}")],
        )
        .perform_as(
            "host:tool.send:main:1",
            EffectOutcome {
                observed: Some(observed_write("sent.txt")),
                ..EffectOutcome::ok(json!({"sent": 1}))
            },
        )
        .fails("host:tool.send:main:2", "no_stamp")
        .perform_as(
            "llm:main:3",
            EffectOutcome {
                model: Some(unpriced),
                ..completion(
                    "llm:main:3",
                    json!({"role": "assistant", "content": "sent"}),
                )
            },
        );
    source
}

fn dog(refresh: Value) -> Value {
    let mut body = with(&[(
        "mcp:eyes:main:1",
        "mcp_tool_return",
        json!({"seen": "a dog"}),
    )]);
    if !refresh.is_null() {
        body["refresh"] = refresh;
    }
    body
}

/// B9, where a replay performed something: its receipt tells what that cost and did, and nothing of what was recorded.
#[tokio::test]
async fn b09_the_receipt_of_a_live_replay_tells_what_it_did() {
    let world = World::new(Outside::new()).await;
    let source = looked(&world).await;
    let replay = world
        .replay(&source.id, dog(json!(["model", "tools"])))
        .await;
    assert_eq!(replay.text(), "sent");
    let receipt = world.receipt(&replay).await;
    let receipt = Value::Object(receipt.as_map().clone());
    assert_eq!(receipt["replay_input"]["determinism"], "best_effort");
    assert_eq!(
        receipt["cost"],
        json!({
            "currency": "USD",
            "total": 0.000_007,
            "provider_breakdown": [{
                "provider": "test",
                "model": "test-1",
                "amount": 0.000_007,
                "input_tokens": 10,
                "output_tokens": 5,
            }],
        })
    );
    // B5: the clocks of a replay's receipt are the recorded ones, so no time passed by them.
    assert_eq!(
        receipt["autonomy_budget"],
        json!({"consumed": {
            "usd": 0.000_007,
            "input_tokens": 13,
            "output_tokens": 9,
            "tool_calls": 2,
            "wall_time_ms": 0,
        }})
    );
    let route = &receipt["model_route"];
    assert_eq!(
        route["chosen_model"],
        json!({"provider": "other", "model": "other-2"})
    );
    assert_eq!(
        route["alternatives_considered"],
        json!([{"provider": "test", "model": "test-1", "reason": "also used"}])
    );
    assert_eq!(
        route["route_policy_reason"],
        "called live from where the replay left its record"
    );
    let effects = &receipt["side_effects"];
    let calls = effects["tool_calls"].as_array().unwrap();
    let told: Vec<(&str, &str, &str)> = calls
        .iter()
        .map(|call| {
            let text = |name: &str| call[name].as_str().unwrap();
            (text("tool"), text("call_id"), text("status"))
        })
        .collect();
    assert_eq!(
        told,
        [("send", "d1", "succeeded"), ("send", "d2", "failed")]
    );
    assert_eq!(
        calls[0]["input_hash"],
        sha256(br#"{"to":"me"}"#).to_string()
    );
    assert_eq!(
        calls[0]["output_hash"],
        sha256(br#"{"sent":1}"#).to_string()
    );
    assert_eq!(effects["fs_writes"][0]["path"], "sent.txt");
    assert_eq!(effects["network_egress"], json!([]));
    // What nobody looked at is named, and so is what has no price.
    let named: Vec<(&str, &str)> = receipt["redactions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            (
                entry["field"].as_str().unwrap(),
                entry["reason"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        named,
        [
            ("/side_effects/fs_writes", "not_observed"),
            ("/side_effects/network_egress", "not_observed"),
            ("/cost/provider_breakdown/other/other-2", "price_unknown"),
        ]
    );
}

/// B9: whoever performs nothing has nothing to tell, whatever the request allowed.
#[tokio::test]
async fn b09_a_replay_that_performs_nothing_tells_of_nothing() {
    let world = World::new(Outside::new()).await;
    let source = looked(&world).await;
    for body in [
        json!({}),
        dog(Value::Null),
        json!({"mode": "with_overrides", "refresh": ["model", "tools", "time", "host"]}),
    ] {
        let replay = world.replay(&source.id, body.clone()).await;
        let receipt = world.receipt(&replay).await;
        let receipt = Value::Object(receipt.as_map().clone());
        assert_eq!(receipt["cost"]["total"], 0, "{body}");
        assert_eq!(receipt["cost"]["provider_breakdown"], json!([]), "{body}");
        let consumed = receipt["autonomy_budget"]["consumed"].as_object().unwrap();
        assert!(consumed.values().all(|value| *value == json!(0)), "{body}");
        let effects = receipt["side_effects"].as_object().unwrap();
        assert!(effects.values().all(|list| *list == json!([])), "{body}");
        assert_eq!(receipt["redactions"], json!([]), "{body}");
        assert_eq!(
            receipt["model_route"]["route_policy_reason"],
            "replayed from recorded provider response",
            "{body}"
        );
    }
}

/// A live replay that somebody stops has done what it did.
#[tokio::test]
async fn b09_a_live_replay_that_is_canceled_tells_what_it_did() {
    let world = World::new(Outside::new()).await;
    let source = looked(&world).await;
    world.outside.delay("llm:main:3", 600_000);
    let id = world
        .replay_id(&source.id, dog(json!(["model", "tools"])))
        .await;
    while world.outside.calls().last().map(String::as_str) != Some("llm:main:3") {
        tokio::task::yield_now().await;
    }
    world.cancel(&id).await;
    let replay = world.ended(&id).await;
    assert_eq!(replay.status, Status::Canceled);
    let receipt = world.receipt(&replay).await;
    let map = receipt.as_map();
    assert_eq!(map["cost"]["total"], 0.000_007);
    let calls = map["side_effects"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["tool"], "send");
    assert_eq!(map["autonomy_budget"]["consumed"]["tool_calls"], 2);
}

/// A decision is on one action of one run. A run that does something else asks nobody, and therefore does not do it.
#[tokio::test]
async fn b07_an_approval_of_the_record_approves_nothing_else() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .tools(two_tools())
        .uses("llm:main:1", &[("c1", "send", "{\"to\":\"a friend\"}")]);
    world
        .outside
        .answer("host:tool.send:main:1", json!({"sent": 1}))
        .says("llm:main:2", "sent");
    let session = world.session().await;
    let persona = json!({"tools": ["send"], "autonomy_tier": "act_with_approval"});
    let persona = world.persona(persona).await;
    let id = world
        .submit(&session, None, Some(&persona), "go".into())
        .await;
    world.approve(&id, true).await;
    let source = world.ended(&id).await;
    assert_eq!(source.status, Status::Completed);
    let calls = world.outside.call_count();
    let call = json!({"id": "c9", "type": "function", "function": {"name": "send", "arguments": "{\"to\":\"everybody\"}"}});
    let value = json!({"id": "x", "choices": [{"message": {"role": "assistant", "content": "", "tool_calls": [call]}}]});
    let mut body = with(&[("llm:main:1", "llm_provider_response", value)]);
    body["refresh"] = json!(["model", "tools"]);
    let replay = world.replay(&source.id, body.clone()).await;
    let first = first_unavailable(&replay);
    assert_eq!(
        (&first["key"], &first["reason"]),
        (&json!("host:approval:1"), &json!("not_recorded"))
    );
    assert_eq!(world.outside.call_count(), calls, "nothing was performed");
    // Where nothing is performed, the recorded answer stands in, and is marked.
    body["refresh"] = json!([]);
    let replay = world.replay(&source.id, body).await;
    assert_eq!(
        replay.record("host:approval:1").payload["replay_note"],
        "stale_input"
    );
    assert_eq!(world.outside.call_count(), calls);
}

/// Nor does it let the same action happen again: a changed turn that repeats it beside something new is live, and on a
/// second time nobody decided.
#[tokio::test]
async fn b07_an_approval_of_the_record_performs_nothing_a_second_time() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .tools(two_tools())
        .uses("llm:main:1", &[("c1", "look", "{}"), ("c2", "send", "{}")])
        .answer("mcp:eyes:main:1", json!({"seen": "nothing"}))
        .answer("host:tool.send:main:1", json!({"sent": 1}))
        .says("llm:main:2", "sent");
    let session = world.session().await;
    let persona = json!({"tools": ["look", "send"], "autonomy_tier": "act_with_approval"});
    let persona = world.persona(persona).await;
    let id = world
        .submit(&session, None, Some(&persona), "go".into())
        .await;
    world.approve(&id, true).await;
    let source = world.ended(&id).await;
    assert_eq!(source.status, Status::Completed);
    let calls = world.outside.call_count();
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let calls_now = [call("c1", "look", "{\"x\":1}"), call("c2", "send", "{}")];
    let value = json!({"id": "x", "choices": [{"message": {"role": "assistant", "content": "", "tool_calls": calls_now}}]});
    let mut body = with(&[("llm:main:1", "llm_provider_response", value)]);
    body["refresh"] = json!(["model", "tools"]);
    let replay = world.replay(&source.id, body).await;
    let first = first_unavailable(&replay);
    assert_eq!(first["reason"], "not_recorded");
    let again = world.outside.calls()[calls..].to_vec();
    assert!(!again.iter().any(|key| key.contains("send")), "{again:?}");
}

/// Once something was performed live, the record no longer applies: what follows is performed too, even if the
/// same was asked before.
#[tokio::test]
async fn b07_from_the_first_live_effect_on_everything_is_live() {
    let world = World::new(Outside::new()).await;
    world
        .outside
        .tools(two_tools())
        .uses("llm:main:1", &[("c1", "send", "{\"n\":1}")])
        .uses("llm:main:2", &[("c2", "look", "{}")])
        .answer("host:tool.send:main:1", json!({"sent": 1}))
        .answer("mcp:eyes:main:1", json!({"seen": "nothing"}))
        .says("llm:main:3", "nothing there");
    let source = world.agent(json!({"tools": ["look", "send"]}), "go").await;
    assert_eq!(source.text(), "nothing there");
    let calls = world.outside.call_count();
    world
        .outside
        .answer("mcp:eyes:main:1", json!({"seen": "a letter"}))
        .says("llm:main:3", "a letter");
    let call = json!({"id": "c9", "type": "function", "function": {"name": "send", "arguments": "{\"n\":2}"}});
    let value = json!({"id": "x", "choices": [{"message": {"role": "assistant", "content": "", "tool_calls": [call]}}]});
    let mut body = with(&[("llm:main:1", "llm_provider_response", value)]);
    body["refresh"] = json!(["model", "tools"]);
    let replay = world.replay(&source.id, body).await;
    assert_eq!(replay.text(), "a letter");
    assert_eq!(
        world.outside.calls()[calls..],
        [
            "host:tool.send:main:1",
            "llm:main:2",
            "mcp:eyes:main:1",
            "llm:main:3"
        ]
    );
}

/// B7: whoever lets something be refreshed cannot be promised the same bytes again, also when nothing was.
#[tokio::test]
async fn b07_with_refresh_determinism_is_best_effort() {
    let world = World::new(Outside::new()).await;
    world.outside.says("llm:main:1", "hello");
    let source = world.plain("go").await;
    let body = json!({"mode": "with_overrides", "refresh": ["model", "tools"]});
    let receipt = world.receipt(&world.replay(&source.id, body).await).await;
    let input = &receipt.as_map()["replay_input"];
    assert_eq!(input["determinism"], "best_effort");
}
