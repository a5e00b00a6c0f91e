//! Random runs of the agent: their exact replays are exact, their receipts are the same everywhere, and a random change
//! never breaks anything.

use std::sync::Arc;

use canon::Value;
use domain::Status;
use proptest::prelude::*;
use serde_json::json;

use crate::hand::Hand;
use crate::rig::{
    Finished, Outside, World, deltas, expected_kinds, registry, saying, two_tools, unsigned,
};

#[derive(Debug, Clone)]
struct Call {
    tool: &'static str,
    arguments: &'static str,
    /// What comes of it: a value, an error, a result that says that it is one.
    outcome: u8,
    dawdles: u32,
}

#[derive(Debug, Clone)]
struct Script {
    turns: Vec<Vec<Call>>,
    /// Words, an error, or nonsense.
    end: u8,
    tier: &'static str,
    approves: Vec<bool>,
    tool_calls_max: Option<u64>,
}

fn call() -> impl Strategy<Value = Call> {
    let tool = prop_oneof![4 => Just("look"), 3 => Just("send"), 1 => Just("dig")];
    let arguments = prop_oneof![3 => Just("{}"), 2 => Just(r#"{"a":[1,"é"]}"#), 1 => Just("{"), 1 => Just("[]")];
    (tool, arguments, 0u8..4, 0u32..6).prop_map(|(tool, arguments, outcome, dawdles)| Call {
        tool,
        arguments,
        outcome,
        dawdles,
    })
}

fn script() -> impl Strategy<Value = Script> {
    (
        prop::collection::vec(prop::collection::vec(call(), 1..4), 0..4),
        0u8..5,
        prop_oneof![3 => Just("act_auto"), 2 => Just("act_with_approval"), 1 => Just("suggest")],
        prop::collection::vec(any::<bool>(), 8),
        prop::option::weighted(0.2, 0u64..6),
    )
        .prop_map(|(turns, end, tier, approves, tool_calls_max)| Script {
            turns,
            end,
            tier,
            approves,
            tool_calls_max,
        })
}

fn outside(script: &Script) -> Arc<Outside> {
    let outside = Outside::new();
    outside.tools(two_tools());
    let (mut looks, mut sends) = (0, 0);
    for (turn, calls) in script.turns.iter().enumerate() {
        let listed: Vec<(String, &str, &str)> = calls
            .iter()
            .enumerate()
            .map(|(index, call)| (format!("call_{turn}_{index}"), call.tool, call.arguments))
            .collect();
        let listed: Vec<(&str, &str, &str)> = listed
            .iter()
            .map(|(id, tool, arguments)| (id.as_str(), *tool, *arguments))
            .collect();
        outside.uses(&format!("llm:main:{}", turn + 1), &listed);
        // Whether a call counts depends on its arguments; more answers than needed do no harm.
        for call in calls {
            let key = match call.tool {
                "look" => {
                    looks += 1;
                    format!("mcp:eyes:main:{looks}")
                }
                "send" => {
                    sends += 1;
                    format!("host:tool.send:main:{sends}")
                }
                _ => continue,
            };
            outside.dawdle(&key, call.dawdles);
            match call.outcome {
                0 => outside.fails(&key, "tool_failed"),
                1 => outside.answer(&key, json!({"isError": true, "content": []})),
                2 => outside.answer(&key, json!({"large": "y".repeat(5_000), "of": key.clone()})),
                _ => outside.answer(&key, json!({"of": key.clone()})),
            };
        }
    }
    let last = format!("llm:main:{}", script.turns.len() + 1);
    match script.end {
        0 => outside.fails(&last, "provider_error"),
        1 => outside.answer(&last, json!({"choices": []})),
        _ => outside.says(&last, "the end"),
    };
    outside
}

/// Runs a script in a world of its own.
fn run(script: &Script) -> (Hand, World, Finished) {
    let mut hand = Hand::default();
    let spawner = hand.spawner();
    let world = hand.turn(
        World::spawning(outside(script), spawner, registry("1")),
        || {},
    );
    let persona = json!({
        "tools": ["look", "send"],
        "autonomy_tier": script.tier,
        "limits": {"tool_calls_max": script.tool_calls_max},
    });
    let source = hand.turn(
        async {
            let session = world.session().await;
            let persona = world.persona(persona).await;
            let id = world
                .submit(&session, None, Some(&persona), "go".into())
                .await;
            let mut answers = script.approves.iter().cycle();
            loop {
                match world.task(&id).await.status {
                    Status::AuthRequired => world.approve(&id, *answers.next().unwrap()).await,
                    status if status.is_terminal() => return world.ended(&id).await,
                    _ => tokio::task::yield_now().await,
                }
            }
        },
        || {},
    );
    (hand, world, source)
}

/// A change that names something of a run, or nothing.
fn change(source: &Finished, which: u8, value: u8) -> Value {
    let keys: Vec<(String, &str)> = source
        .of_kind("vendor.effect_requested")
        .iter()
        .map(|event| {
            let kind = event.payload["kind"].as_str().unwrap();
            (
                event.payload["effect_key"].as_str().unwrap().to_owned(),
                kind,
            )
        })
        .chain(
            source
                .events
                .iter()
                .map(|event| (format!("event:{}", event.id), "event_payload")),
        )
        .chain([
            ("time:started_at".to_owned(), "time"),
            ("time:nobody".to_owned(), "time"),
            ("llm:main:99".to_owned(), "llm_provider_response"),
            ("mcp:eyes:call_0_0".to_owned(), "mcp_tool_return"),
        ])
        .collect();
    let (key, kind) = &keys[usize::from(which) % keys.len()];
    let value = match (*kind, value % 6) {
        ("time", _) => json!("2030-01-01T00:00:00Z"),
        ("event_payload", 0) => json!({}),
        ("event_payload", 1) => {
            json!({"effect_key": "llm:main:1", "outcome": "ok", "value": saying("x")})
        }
        ("event_payload", _) => {
            json!({"parts": [{"type": "text", "text": "z", "visibility": "public"}], "outcome": "error"})
        }
        (_, 0) => Value::Null,
        (_, 1) => saying("changed"),
        (_, 2) => {
            json!({"choices": [{"message": {"tool_calls": [{"id": "n", "function": {"name": "look", "arguments": "{}"}}]}}]})
        }
        (_, 3) => json!({"approved": false}),
        (_, 4) => json!({"tools": []}),
        (_, _) => json!([1, "two", {"three": 3}]),
    };
    json!({"mode": "with_overrides", "override": {key.clone(): {"kind": kind, "value": value}}})
}

/// Each case is several whole runs; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    let given = std::env::var("PROPTEST_CASES").ok();
    given.and_then(|cases| cases.parse().ok()).unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// AP-RPL-05, AP-RPL-20.
    #[test]
    fn exact_replays_of_random_runs_are_exact(script in script()) {
        let (mut hand, world, source) = run(&script);
        let calls = world.outside.call_count();
        let replay = hand.turn(world.replay(&source.id, json!({})), || {});
        prop_assert_eq!(world.outside.call_count(), calls);
        prop_assert_eq!(replay.status, source.status);
        let completed = replay.payload("replay.completed");
        prop_assert_eq!(&completed["result_equal"], &json!(true));
        let kinds: Vec<String> = replay.replayed().iter().map(|event| event.kind.to_string()).collect();
        prop_assert_eq!(kinds, expected_kinds(&source));
        for (event, original) in replay.replayed().iter().zip(&source.events) {
            let same = event.payload == original.payload || &*event.kind == "replay.event_replayed";
            prop_assert!(same, "{}: {:?}", event.kind, event.payload);
        }
        // The same run in another world leaves the same log, and its replay the same receipt.
        let (mut other_hand, other, again) = run(&script);
        let second = other_hand.turn(other.replay(&again.id, json!({})), || {});
        let bytes = hand.turn(world.bytes(&source.id), || {});
        prop_assert_eq!(&bytes, &other_hand.turn(other.bytes(&again.id), || {}));
        let one = hand.turn(world.receipt(&replay), || {});
        let two = other_hand.turn(other.receipt(&second), || {});
        prop_assert_eq!(unsigned(&one), unsigned(&two));
        // And anybody who has the log comes to it too.
        let exported = hand.turn(world.exported(&source), || {});
        let (_, pure) = exported.replay(&json!({}), &registry("1"));
        prop_assert_eq!(unsigned(&one), pure.bytes());
    }

    /// AP-RPL-15: whatever is changed, deltas are the applied overrides, and the log stays readable.
    #[test]
    fn random_changes_break_nothing(script in script(), which in any::<u8>(), value in any::<u8>()) {
        let (mut hand, world, source) = run(&script);
        let calls = world.outside.call_count();
        let body = change(&source, which, value);
        let replay = hand.turn(world.replay(&source.id, body.clone()), || {});
        prop_assert_eq!(world.outside.call_count(), calls);
        let receipt = hand.turn(world.receipt(&replay), || {});
        let found: Vec<Value> = deltas(&receipt).iter().map(|delta| delta["override_key"].clone()).collect();
        let ended = replay.of_kind("replay.completed");
        if let Some(completed) = ended.iter().find(|event| event.replay.is_none()) {
            prop_assert_eq!(&completed.payload["overrides_applied"], &json!(found));
        } else {
            replay.payload("replay.failed");
            prop_assert_eq!(replay.status, Status::Failed);
        }
        prop_assert!(found.len() <= 1);
        let mut cursor = "";
        for event in replay.replayed() {
            let mark = event.replay.as_ref().unwrap();
            let now = mark.replay_cursor.as_deref().unwrap_or_default();
            prop_assert!(now >= cursor);
            cursor = now;
            if let Some(key) = &mark.override_key {
                prop_assert!(found.contains(&json!(key)));
            }
        }
        let exported = hand.turn(world.exported(&source), || {});
        let (_, pure) = exported.replay(&body, &registry("1"));
        prop_assert_eq!(unsigned(&receipt), pure.bytes());
        // The replay of that replay is exact, unless it needs what the log does not tell.
        let again = hand.turn(world.replay(&replay.id, json!({})), || {});
        prop_assert_eq!(again.status, replay.status, "{:?}", again.payload("task.failed"));
        if ended.iter().any(|event| event.replay.is_none()) {
            let broken = again.of_kind("replay.failed");
            prop_assert!(broken.is_empty(), "{body}: {:?}", broken[0].payload);
            prop_assert_eq!(&again.payload("replay.completed")["result_equal"], &json!(true));
        }
    }
}
