//! What counts as a difference between two runs, and what is shown of it.

use canon::Value;
use engine::{Caller, Request, TaskMessageKind};
use serde_json::json;

use crate::rig::{Finished, Outside, World, completion, saying, two_tools, with};
use crate::support::{caller, text};

async fn compare(world: &World, a: &Finished, b: &Finished) -> Value {
    let diff = world.engine.diff(&Caller::system(), &a.id, &b.id).await;
    serde_json::to_value(diff.unwrap()).unwrap()
}

/// A provider's answer with its own books: ids, times, fingerprints and counts that no two calls share.
fn answered(world: &World, key: &str, call: &str, message: Value) {
    let mut performed = completion(key, message);
    let value = &mut performed.value;
    value["id"] = json!(format!("chatcmpl-{call}"));
    value["created"] = json!(call.len());
    value["system_fingerprint"] = json!(format!("fp-{call}"));
    value["usage"] = json!({"total_tokens": call.len()});
    world.outside.perform_as(key, performed);
}

fn calls_look(call: &str, arguments: &str) -> Value {
    json!({"role": "assistant", "content": "Let me see.", "tool_calls": [
        {"id": call, "type": "function", "function": {"name": "look", "arguments": arguments}}]})
}

/// Lets a model look with a tool and then answer.
async fn looked(world: &World, call: &str, arguments: &str, seen: &str, says: &str) -> Finished {
    world.outside.tools(two_tools()).answer(
        "mcp:eyes:main:1",
        json!({"content": [{"type": "text", "text": seen}]}),
    );
    answered(world, "llm:main:1", call, calls_look(call, arguments));
    let last = json!({"role": "assistant", "content": says});
    answered(world, "llm:main:2", &format!("{call}-end"), last);
    world.agent(json!({"tools": ["look"]}), "go").await
}

fn effect<'a>(diff: &'a Value, key: &str) -> &'a Value {
    let effects = diff["effects"].as_array().unwrap();
    let found = effects.iter().find(|effect| effect["key"] == key);
    found.unwrap_or_else(|| panic!("no {key} in {diff:#}"))
}

#[tokio::test]
async fn what_a_provider_keeps_its_books_by_is_no_difference() {
    let world = World::new(Outside::new()).await;
    let one = looked(&world, "c1", "{}", "rain", "It rains.").await;
    let two = looked(&world, "second", "{}", "rain", "It rains.").await;
    let diff = compare(&world, &one, &two).await;
    assert_eq!(diff["equal"], true, "{diff:#}");

    let other = looked(&world, "third", "{}", "sun", "It rains.").await;
    let diff = compare(&world, &one, &other).await;
    assert_eq!(diff["equal"], false);
    let place = &diff["first_divergence"]["a"];
    assert_eq!(place["effect_key"], "mcp:eyes:main:1", "{diff:#}");
    let keys: Vec<&Value> = diff["effects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|effect| &effect["key"])
        .collect();
    assert_eq!(keys, ["mcp:eyes:main:1", "llm:main:2"], "{diff:#}");
    // It was asked something else and answered the same.
    assert_eq!(effect(&diff, "llm:main:2")["value"], Value::Null);

    // Which tool was called, and how, counts.
    let other = looked(&world, "c1", "{\"far\":true}", "rain", "It rains.").await;
    let diff = compare(&world, &one, &other).await;
    let text = &effect(&diff, "llm:main:1")["text"];
    assert_eq!(text["before"], json!(["calls look({})"]), "{diff:#}");
    assert_eq!(text["after"], json!(["calls look({\"far\":true})"]));
}

#[tokio::test]
async fn what_somebody_answered_counts_and_the_id_of_the_message_does_not() {
    let world = World::new(Outside::new()).await;
    let mut runs = Vec::new();
    for answer in ["green", "green", "red"] {
        let session = world.session().await;
        let id = world.submit(&session, Some("ask"), None, "go".into()).await;
        world.reach(&id, domain::Status::InputRequired).await;
        let request = Request::SendTaskMessage {
            id: id.clone(),
            kind: TaskMessageKind::Input,
            message: text(answer),
        };
        world.write(request).await.unwrap();
        runs.push(world.ended(&id).await);
    }
    let diff = compare(&world, &runs[0], &runs[1]).await;
    assert_eq!(diff["equal"], true, "{diff:#}");
    let diff = compare(&world, &runs[0], &runs[2]).await;
    assert_eq!(diff["equal"], false);
}

#[tokio::test]
async fn a_changed_request_is_told_by_its_words() {
    let world = World::new(Outside::new()).await;
    let source = looked(&world, "c1", "{}", "rain", "It rains.").await;
    let seen = json!({"content": [{"type": "text", "text": "sun"}]});
    let body = with(&[("mcp:eyes:main:1", "mcp_tool_return", seen)]);
    let replay = world.replay(&source.id, body).await;
    let diff = compare(&world, &source, &replay).await;
    let asked = effect(&diff, "llm:main:2");
    assert_eq!(asked["note"], "stale_input");
    let changes = asked["request_changes"].as_array().unwrap();
    assert_eq!(changes.len(), 1, "{diff:#}");
    assert_eq!(changes[0]["what"], "message");
    assert_eq!(changes[0]["member"], "3");
    assert_eq!(changes[0]["role"], "tool");
    assert_eq!(changes[0]["text"]["before"], json!(["rain"]));
    assert_eq!(changes[0]["text"]["after"], json!(["sun"]));

    // A model that calls a tool instead of answering: the next request has two messages more.
    let more = looked(&world, "c1", "{}", "rain", "It rains.").await;
    let body = with(&[("llm:main:1", "llm_provider_response", saying("No tools."))]);
    let without = world.replay(&more.id, body).await;
    let diff = compare(&world, &without, &more).await;
    assert_eq!(effect(&diff, "llm:main:2")["what"], "added", "{diff:#}");

    // Another model, asked the same.
    let most =
        |most: u64| json!({"version": format!("most-{most}"), "model": {"max_tokens": most}});
    let one = world.agent(most(1), "go").await;
    let two = world.agent(most(2), "go").await;
    let diff = compare(&world, &one, &two).await;
    let changes = &effect(&diff, "llm:main:1")["request_changes"];
    assert_eq!(changes[0]["what"], "request", "{diff:#}");
    assert_eq!(changes[0]["member"], "max_tokens");
    assert_eq!(changes[0]["after"], 2);
}

#[tokio::test]
async fn a_replay_from_a_checkpoint_tells_what_it_asked() {
    let world = World::new(Outside::new()).await;
    let source = looked(&world, "c1", "{}", "rain", "It rains.").await;
    let checkpoint =
        source.of_kind("vendor.checkpoint_created")[0].payload["checkpoint_id"].clone();
    let key = format!("host:checkpoint:{}", checkpoint.as_str().unwrap());
    let body = json!({"mode": "from_checkpoint", "checkpoint_id": checkpoint, "override": {
        key.clone(): {"kind": "checkpoint_value", "target": "/system_prompt", "value": "Be brief."}}});
    let replay = world.replay(&source.id, body).await;
    let diff = compare(&world, &source, &replay).await;
    let state = effect(&diff, &key);
    assert_eq!(state["overridden"], true);
    assert_eq!(state["value_changes"][0]["member"], "system_prompt");
    // The prompt of a restored run takes effect with the run's beginning.
    let asked = effect(&diff, "llm:main:2");
    let first = &asked["request_changes"][0];
    assert_eq!(
        (&first["member"], &first["role"]),
        (&json!("1"), &json!("system")),
        "{diff:#}"
    );
    assert_eq!(first["text"]["after"], json!(["Be brief."]));
}

#[tokio::test]
async fn the_first_difference_is_what_was_given() {
    let world = World::new(Outside::new()).await;
    let persona = |version: &str, prompt: &str| json!({"version": version, "system_prompt": format!("One.\n{prompt}\nThree."), "limits": {"steps_max": 3}});
    let one = world.agent(persona("1", "Two."), "go").await;
    let two = world.agent(persona("2", "Zwei."), "go").await;
    let diff = compare(&world, &one, &two).await;
    let parting = &diff["first_divergence"];
    assert_eq!(parting["a"]["event"], "task.submitted", "{diff:#}");
    assert_eq!(parting["a"]["sequence"], 1);
    assert_eq!(parting["members"], json!(["persona"]));
    let given = diff["inputs"].as_array().unwrap();
    let named: Vec<(&Value, &Value)> = given
        .iter()
        .map(|change| (&change["what"], &change["member"]))
        .collect();
    let persona = json!("persona");
    assert!(
        named.contains(&(&persona, &json!("system_prompt"))),
        "{given:#?}"
    );
    for (what, member) in &named {
        let member = member.as_str().unwrap();
        assert_eq!(*what, &persona);
        assert!(["version", "system_prompt"].contains(&member), "{member}");
    }
    let prompt = given
        .iter()
        .find(|change| change["member"] == "system_prompt")
        .unwrap();
    assert_eq!(prompt["text"]["before"], json!(["Two."]));
    assert_eq!(prompt["text"]["after"], json!(["Zwei."]));

    // Words have an event of their own.
    let three = world.plain("go").await;
    let four = world.plain("stay").await;
    let diff = compare(&world, &three, &four).await;
    assert_eq!(
        diff["first_divergence"]["a"]["event"], "user.message",
        "{diff:#}"
    );
}

#[tokio::test]
async fn a_message_that_is_told_otherwise_is_no_other_answer() {
    let world = World::new(Outside::new()).await;
    world.outside.says("llm:main:1", "All done.");
    let source = world.plain("go").await;
    let id = source.event_id("agent.message");
    let key = format!("event:{id}");
    let told = json!({"role": "assistant", "parts": [{"type": "text", "text": "payload changed", "visibility": "public"}]});
    let replay = world
        .replay(&source.id, with(&[(&key, "event_payload", told)]))
        .await;
    assert_eq!(replay.payload("replay.completed")["result_equal"], true);
    for (a, b, side) in [(&source, &replay, "b"), (&replay, &source, "a")] {
        let diff = compare(&world, a, b).await;
        assert_eq!(diff[side]["answer"], "All done.", "{diff:#}");
        assert_eq!(diff["answer"], Value::Null);
        // What was replaced is told all the same.
        assert_eq!(diff["equal"], false);
        assert_eq!(diff["first_divergence"]["a"]["event"], "agent.message");
        assert_eq!(diff["first_divergence"]["members"], json!(["text"]));
        let event = effect(&diff, &key);
        assert_eq!(event["overridden"], true);
        let words = &event["text"]["after"];
        assert_eq!(
            words,
            &json!([if side == "b" {
                "payload changed"
            } else {
                "All done."
            }])
        );
    }
}

#[tokio::test]
async fn a_changed_time_is_a_difference() {
    let world = World::new(Outside::new()).await;
    let source = world.plain("go").await;
    let later = json!("2030-01-01T00:00:00Z");
    let body = with(&[("time:started_at", "time", later)]);
    let replay = world.replay(&source.id, body).await;
    let diff = compare(&world, &source, &replay).await;
    assert_eq!(diff["equal"], false, "{diff:#}");
    let time = effect(&diff, "time:started_at");
    assert_eq!(
        (&time["kind"], &time["overridden"]),
        (&json!("time"), &json!(true))
    );
    assert_eq!(time["text"]["after"], json!(["2030-01-01T00:00:00Z"]));
    let started = source.of_kind("task.started")[0].created_at;
    assert_eq!(time["text"]["before"], json!([started]));
    let parting = &diff["first_divergence"];
    assert_eq!(parting["a"]["event"], "task.started");
    assert_eq!(parting["override_key"], "time:started_at");

    // Beside another replay of the same run, which left it as it was.
    let plain = world.replay(&source.id, json!({})).await;
    let diff = compare(&world, &plain, &replay).await;
    assert_eq!(diff["equal"], false, "{diff:#}");
    assert_eq!(
        effect(&diff, "time:started_at")["text"]["before"],
        json!(["as recorded"])
    );
    // A replay of it is equal to it, and the recorded time is no change.
    let again = world.replay(&replay.id, json!({})).await;
    let diff = compare(&world, &replay, &again).await;
    assert_eq!(diff["equal"], true, "{diff:#}");
    let body = with(&[("time:started_at", "time", json!(started))]);
    let same = world.replay(&source.id, body).await;
    assert_eq!(compare(&world, &source, &same).await["equal"], true);
}

/// Who may not see everything sees that a request differs, and no word of what it was made of.
#[tokio::test]
async fn words_that_are_not_public_are_told_to_nobody_else() {
    let world = World::new(Outside::new()).await;
    let source = looked(&world, "c1", "{}", "rain", "It rains.").await;
    let input = source.event_id("user.message");
    let told = json!({"role": "user", "parts": [{"type": "text", "text": "planted words", "visibility": "public"}]});
    let seen = json!({"content": [{"type": "text", "text": "planted sight"}]});
    let body = with(&[
        (&format!("event:{input}"), "event_payload", told),
        ("mcp:eyes:main:1", "mcp_tool_return", seen),
    ]);
    let replay = world.replay(&source.id, body).await;
    let narrow = caller("narrow", &["tasks:read", "events:read"]);
    let shown = async |caller: &Caller| {
        let diff = world.engine.diff(caller, &source.id, &replay.id).await;
        serde_json::to_string(&diff.unwrap()).unwrap()
    };
    let all = shown(&Caller::system()).await;
    assert!(all.contains("planted words") && all.contains("planted sight"));
    let public = shown(&narrow).await;
    assert!(!public.contains("planted"), "{public}");
}
