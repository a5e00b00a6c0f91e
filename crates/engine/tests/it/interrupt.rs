//! Interrupts: the running step is dropped, and what came with the interrupt is the next input (U7).

use std::time::Duration;

use domain::{Status, TaskId};
use engine::{Refused, Request, TaskMessageKind};
use serde_json::json;

use crate::rig::{Finished, Outside, World, two_tools};
use crate::support::text;

fn interrupt(id: &TaskId, words: &str) -> Request {
    Request::SendTaskMessage {
        id: id.clone(),
        kind: TaskMessageKind::Interrupt,
        message: text(words),
    }
}

/// Runs an interrupted Task again from its record, and compares what both came to.
async fn replays(world: &World, source: &Finished) {
    let calls = world.outside.call_count();
    let replay = world.replay(&source.id, json!({"mode": "exact"})).await;
    assert_eq!(replay.status, source.status, "{:?}", replay.kinds());
    replay.payload("replay.completed");
    assert_eq!(world.outside.call_count(), calls, "nothing was performed");
    let said = |run: &Finished| {
        let records = run
            .events
            .iter()
            .filter(|event| &*event.kind == "vendor.effect_recorded");
        records
            .map(|event| event.payload["value_sha256"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(said(&replay), said(source));
}

#[tokio::test]
async fn u7_a_model_call_is_dropped_and_the_message_is_the_next_input() {
    let outside = Outside::new();
    outside
        .delay("llm:main:1", 3_600_000)
        .says("llm:main:1", "never")
        .says("llm:main:2", "as you wish");
    let world = World::new(outside).await;
    let session = world.session().await;
    let id = world.submit(&session, None, None, "go".into()).await;
    world.reach(&id, Status::Working).await;
    world.write(interrupt(&id, "rather do this")).await.unwrap();
    let ended = world.ended(&id).await;
    assert_eq!(ended.status, Status::Completed);
    assert_eq!(ended.text(), "as you wish");
    let dropped = ended.record("llm:main:1");
    assert_eq!(dropped.payload["outcome"], "error");
    assert_eq!(dropped.payload["value"]["code"], "interrupted");
    assert_eq!(dropped.payload["value"]["input"], "rather do this");
    let request = world.outside.messages("llm:main:2");
    assert_eq!(
        request.last().unwrap(),
        &json!({"role": "user", "content": "rather do this"})
    );
    assert!(ended.task.interrupts.is_empty());
    replays(&world, &ended).await;
}

#[tokio::test]
async fn u7_a_tool_is_dropped_and_the_agent_is_told_that_it_may_have_happened() {
    let outside = Outside::new();
    outside
        .tools(two_tools())
        .uses("llm:main:1", &[("c", "look", "{}")])
        .delay("mcp:eyes:main:1", 3_600_000)
        .answer("mcp:eyes:main:1", json!({"seen": 1}))
        .says("llm:main:2", "stopped");
    let world = World::new(outside).await;
    let persona = world.persona(json!({"tools": ["look"]})).await;
    let session = world.session().await;
    let id = world
        .submit(&session, None, Some(&persona), "go".into())
        .await;
    while !world
        .outside
        .calls()
        .contains(&"mcp:eyes:main:1".to_owned())
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.write(interrupt(&id, "stop looking")).await.unwrap();
    let ended = world.ended(&id).await;
    assert_eq!(ended.status, Status::Completed);
    assert_eq!(ended.record("mcp:eyes:main:1").payload["outcome"], "error");
    let messages = world.outside.messages("llm:main:2");
    let told = &messages[messages.len() - 2];
    assert_eq!(told["role"], "tool");
    assert!(told["content"].to_string().contains("not known"), "{told}");
    assert_eq!(messages.last().unwrap()["content"], "stop looking");
    replays(&world, &ended).await;
}

#[tokio::test]
async fn u7_the_question_of_a_waiting_task_is_withdrawn() {
    let world = World::new(Outside::new()).await;
    let session = world.session().await;
    let id = world
        .submit(&session, Some("ask"), None, "one".into())
        .await;
    world.reach(&id, Status::InputRequired).await;
    let first = world.task(&id).await.waits_for.unwrap();
    world.write(interrupt(&id, "two")).await.unwrap();
    world.reach(&id, Status::InputRequired).await;
    let second = world.task(&id).await.waits_for.unwrap();
    assert_ne!(first, second);
    let late = Request::RespondPermission {
        id: first,
        approved: Some(true),
        answer: None,
        remarks: canon::Map::new(),
    };
    let refused = world.write(late).await.unwrap_err();
    assert!(matches!(refused, Refused::Domain(_)), "{refused:?}");
    let answer = Request::SendTaskMessage {
        id: id.clone(),
        kind: TaskMessageKind::Input,
        message: text("blue"),
    };
    world.write(answer).await.unwrap();
    let ended = world.ended(&id).await;
    assert_eq!(ended.text(), "You told me: blue");
    assert_eq!(ended.of_kind("vendor.request_withdrawn").len(), 1);
    replays(&world, &ended).await;
}

#[tokio::test]
async fn u7_an_interrupt_that_nobody_took_up_survives_a_crash() {
    let outside = Outside::new();
    outside.says("llm:main:2", "after the crash");
    let world = World::new(outside).await;
    let session = world.session().await;
    let busy = world.occupy(&session).await;
    // Nobody is free for it: it is interrupted before it has begun.
    let id = world.submit(&session, None, None, "go".into()).await;
    world.write(interrupt(&id, "now this")).await.unwrap();
    assert_eq!(world.task(&id).await.interrupts.len(), 1);
    let world = world.reopened_with(crate::rig::registry("1")).await;
    for id in busy {
        let cancel = Request::CancelTask { id, reason: None };
        world.write(cancel).await.unwrap();
    }
    let ended = world.ended(&id).await;
    assert_eq!(ended.text(), "after the crash");
    let calls = world.outside.calls();
    assert!(!calls.contains(&"llm:main:1".to_owned()), "{calls:?}");
    let messages = world.outside.messages("llm:main:2");
    assert_eq!(messages.last().unwrap()["content"], "now this");
}

#[tokio::test]
async fn u7_a_task_that_holds_goes_on_holding() {
    let world = World::new(Outside::new()).await;
    let session = world.session().await;
    let id = world.submit(&session, Some("hold"), None, "x".into()).await;
    world.reach(&id, Status::Working).await;
    world.write(interrupt(&id, "wait")).await.unwrap();
    while !world
        .outside
        .calls()
        .contains(&"host:hold:main:2".to_owned())
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(world.task(&id).await.status, Status::Working);
}
