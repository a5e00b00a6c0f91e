//! Contracts in the agent, several things at once: questions, attempts, limits of time, and what a receipt says of all that.

use std::time::Duration;

use canon::Value;
use domain::{Request, Status, TaskId, TaskMessageKind};
use engine::Refused;
use serde_json::json;

use crate::contracts::{calling, governance, replays_the_same, texts, tools_shown};
use crate::rig::{Finished, Outside, World, two_tools};

const LOOK: &str = "tool: look\nside_effect: read\n\
    retries: { max_attempts: 3, retry_on: [busy] }\ntimeouts: { total_ms: 1500 }\n";
const SEND: &str = "tool: send\nside_effect: write\n\
    checkpoint:\n  reason: \"every mail is looked at\"\n  timeout_seconds: 60\n";

struct Desk {
    world: World,
    id: TaskId,
}

/// Begins a run of a persona under contracts, whose model first wants these calls and then says that it is done.
async fn begin(
    outside: &std::sync::Arc<Outside>,
    files: &[&str],
    persona: Value,
    calls: &[(&str, &str, &str)],
) -> Desk {
    outside
        .tools(two_tools())
        .perform_as("llm:main:1", calling("llm:main:1", calls))
        .says("llm:main:2", "done");
    for number in 1..=3 {
        let sent = json!({"exit_code": 0, "stdout": "sent"});
        outside.answer(&format!("host:tool.send:main:{number}"), sent);
    }
    let world = World::new(std::sync::Arc::clone(outside)).await;
    world.engine.set_contracts([texts(files)]);
    let session = world.session().await;
    let persona = world.persona(persona).await;
    let id = world
        .submit(&session, None, Some(&persona), "go".into())
        .await;
    Desk { world, id }
}

fn mails() -> [(&'static str, &'static str, &'static str); 3] {
    [
        ("c1", "send", r#"{"to":"ann"}"#),
        ("c2", "send", r#"{"to":"bob"}"#),
        ("c3", "send", r#"{"to":"eve"}"#),
    ]
}

fn persona() -> Value {
    json!({"tools": ["look", "send"], "contracts": "mail"})
}

impl Desk {
    async fn answer(&self, id: &domain::PermissionId, approved: bool) {
        let request = Request::RespondPermission {
            id: id.clone(),
            approved: Some(approved),
            answer: None,
            remarks: canon::Map::new(),
        };
        self.world.write(request).await.unwrap();
    }

    fn sent(&self) -> usize {
        let calls = self.world.outside.calls();
        let sent = calls.iter().filter(|key| key.starts_with("host:tool.send"));
        sent.count()
    }

    async fn governance(&self, task: &Finished) -> Value {
        governance(&self.world.receipt(task).await)
    }
}

#[tokio::test]
async fn all_questions_about_an_answer_are_asked_together_and_answered_in_any_order() {
    let desk = begin(&Outside::new(), &[LOOK, SEND], persona(), &mails()).await;
    desk.world.reach(&desk.id, Status::AuthRequired).await;
    let pending = desk.world.pending(&desk.id).await;
    assert_eq!(pending.len(), 3, "every mail is asked about at once");
    for place in [2, 0] {
        desk.answer(&pending[place], true).await;
        let task = desk.world.task(&desk.id).await;
        assert_eq!(task.status, Status::AuthRequired, "one is still open");
        assert_eq!(desk.sent(), 0, "nothing happens before the last answer");
    }
    // The same answer again changes nothing; another one is a conflict.
    desk.answer(&pending[0], true).await;
    desk.answer(&pending[1], true).await;
    let task = desk.world.ended(&desk.id).await;
    assert_eq!(task.status, Status::Completed);
    assert_eq!(desk.sent(), 3);
    assert_eq!(task.of_kind("tool.approval_required").len(), 3);
    let facts = desk.governance(&task).await;
    assert_eq!(
        (&facts["asked"], &facts["allowed"], &facts["blocked"]),
        (&json!(3), &json!(3), &json!(0))
    );
    replays_the_same(&desk.world, &task).await;
}

#[tokio::test]
async fn one_no_among_several_answers_stops_the_answer_it_belongs_to() {
    let desk = begin(&Outside::new(), &[LOOK, SEND], persona(), &mails()).await;
    desk.world.reach(&desk.id, Status::AuthRequired).await;
    for (place, id) in desk.world.pending(&desk.id).await.iter().enumerate() {
        desk.answer(id, place != 1).await;
    }
    let task = desk.world.ended(&desk.id).await;
    assert_eq!((task.status, desk.sent()), (Status::Completed, 0));
    assert_eq!(desk.governance(&task).await["asked"], 3);
    replays_the_same(&desk.world, &task).await;
}

/// R40, and recovery: what was answered before a crash counts, and only the rest is waited for.
#[tokio::test]
async fn a_crash_between_two_answers_loses_neither_question_nor_answer() {
    let desk = begin(&Outside::new(), &[LOOK, SEND], persona(), &mails()).await;
    desk.world.reach(&desk.id, Status::AuthRequired).await;
    let before = desk.world.pending(&desk.id).await;
    desk.answer(&before[1], true).await;
    let Desk { world, id } = desk;
    let world = world.reopened_with(crate::rig::registry("1")).await;
    world.reach(&id, Status::AuthRequired).await;
    let desk = Desk { world, id };
    let after = desk.world.pending(&desk.id).await;
    assert_eq!(after, [before[0].clone(), before[2].clone()]);
    for id in &after {
        desk.answer(id, true).await;
    }
    let task = desk.world.ended(&desk.id).await;
    assert_eq!((task.status, desk.sent()), (Status::Completed, 3));
    assert_eq!(task.of_kind("tool.approval_required").len(), 3);
    replays_the_same(&desk.world, &task).await;
}

#[tokio::test]
async fn withdrawn_questions_count_and_all_of_them_are_withdrawn() {
    let desk = begin(&Outside::new(), &[LOOK, SEND], persona(), &mails()).await;
    desk.world.reach(&desk.id, Status::AuthRequired).await;
    let pending = desk.world.pending(&desk.id).await;
    desk.answer(&pending[0], true).await;
    let stop = Request::SendTaskMessage {
        id: desk.id.clone(),
        kind: TaskMessageKind::Interrupt,
        message: crate::support::text("never mind"),
    };
    desk.world.write(stop).await.unwrap();
    let task = desk.world.ended(&desk.id).await;
    assert_eq!((task.status, desk.sent()), (Status::Completed, 0));
    assert_eq!(task.of_kind("vendor.request_withdrawn").len(), 2);
    assert_eq!(desk.governance(&task).await["asked"], 3);
    replays_the_same(&desk.world, &task).await;

    let desk = begin(&Outside::new(), &[LOOK, SEND], persona(), &mails()).await;
    desk.world.reach(&desk.id, Status::AuthRequired).await;
    desk.world.cancel(&desk.id).await;
    let task = desk.world.ended(&desk.id).await;
    assert_eq!(task.of_kind("vendor.request_withdrawn").len(), 3);
    assert_eq!(desk.governance(&task).await["asked"], 3);
}

/// A message names no request: it must not answer one of several by chance.
#[tokio::test]
async fn a_confirmation_by_message_names_its_request_when_several_wait() {
    let desk = begin(&Outside::new(), &[LOOK, SEND], persona(), &mails()).await;
    desk.world.reach(&desk.id, Status::AuthRequired).await;
    let pending = desk.world.pending(&desk.id).await;
    let say = |value: Value| {
        let mut message = crate::support::text("");
        message.parts = vec![json!({"type": "json", "value": value, "visibility": "public"})];
        Request::SendTaskMessage {
            id: desk.id.clone(),
            kind: TaskMessageKind::ToolConfirmation,
            message,
        }
    };
    let refused = desk.world.write(say(json!({"approved": true}))).await;
    assert!(
        matches!(
            &refused,
            Err(Refused::Domain(domain::Refusal::Conflict {
                reason: "several_requests",
                ..
            }))
        ),
        "{refused:?}"
    );
    let named = json!({"approved": false, "request_id": pending[1]});
    desk.world.write(say(named)).await.unwrap();
    let left = desk.world.pending(&desk.id).await;
    assert_eq!(left, [pending[0].clone(), pending[2].clone()]);
}

/// The tier's questions come together too. A release is good for ten minutes.
#[tokio::test]
async fn calls_that_were_released_ten_minutes_ago_are_not_made() {
    let free = "tool: send\nside_effect: write\n";
    for (leap, sent) in [(1_000_000, 3), (601_000_000, 0)] {
        let outside = Outside::new();
        outside.time_leaps(leap);
        let mut persona = persona();
        persona["autonomy_tier"] = json!("act_with_approval");
        let desk = begin(&outside, &[LOOK, free], persona, &mails()).await;
        desk.world.reach(&desk.id, Status::AuthRequired).await;
        let pending = desk.world.pending(&desk.id).await;
        assert_eq!(pending.len(), 3);
        for id in pending.iter().rev() {
            desk.answer(id, true).await;
        }
        let task = desk.world.ended(&desk.id).await;
        assert_eq!((task.status, desk.sent()), (Status::Completed, sent));
        if sent == 0 {
            let denied = task.of_kind("tool.denied");
            let why = denied.last().unwrap().payload["reason"].to_string();
            assert!(why.contains("no_pending_call"), "{why}");
        }
        replays_the_same(&desk.world, &task).await;
    }
}

#[tokio::test]
async fn contracts_say_how_often_and_how_long() {
    let outside = Outside::new();
    outside
        .fails("mcp:eyes:main:1", "busy")
        .fails("mcp:eyes:main:2", "busy")
        .answer("mcp:eyes:main:3", json!({"structuredContent": {"seen": 1}}));
    let desk = begin(&outside, &[LOOK, SEND], persona(), &[("c1", "look", "{}")]).await;
    let task = desk.world.ended(&desk.id).await;
    assert_eq!(task.status, Status::Completed);
    let request = desk.world.outside.request("mcp:eyes:main:3").unwrap();
    assert_eq!(request["timeout_ms"], 1500);
    let uses = task.of_kind("agent.tool_use");
    let attempts: Vec<&Value> = uses.iter().map(|event| &event.payload["attempt"]).collect();
    assert_eq!(attempts, [&json!(1), &json!(2), &json!(3)]);
    assert_eq!(task.of_kind("agent.tool_result").len(), 1);
    replays_the_same(&desk.world, &task).await;

    // Not more often than that, and not after another failure.
    for (code, calls) in [("busy", 3), ("broken", 1)] {
        let outside = Outside::new();
        for number in 1..=4 {
            outside.fails(&format!("mcp:eyes:main:{number}"), code);
        }
        let desk = begin(&outside, &[LOOK, SEND], persona(), &[("c1", "look", "{}")]).await;
        let task = desk.world.ended(&desk.id).await;
        let made = desk.world.outside.calls();
        let made = made
            .iter()
            .filter(|key| key.starts_with("mcp:eyes"))
            .count();
        assert_eq!((task.status, made), (Status::Completed, calls), "{code}");
    }
}

#[tokio::test]
async fn the_receipt_of_a_task_that_is_canceled_while_a_tool_runs_lists_the_call() {
    let free = "tool: send\nside_effect: write\n";
    let outside = Outside::new();
    outside.delay("host:tool.send:main:1", 60_000);
    let desk = begin(&outside, &[LOOK, free], persona(), &mails()[..1]).await;
    while desk.sent() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    desk.world.cancel(&desk.id).await;
    let task = desk.world.ended(&desk.id).await;
    let receipt = desk.world.receipt(&task).await;
    let calls = &receipt.as_map()["side_effects"]["tool_calls"];
    assert_eq!(calls.as_array().map(Vec::len), Some(1), "{calls}");
    assert_eq!(calls[0]["tool"], "send");
    assert_eq!(calls[0]["status"], "canceled");
}

/// A connection that broke may have broken after the deed: the call counts as made.
#[tokio::test]
async fn a_call_whose_connection_broke_is_unknown() {
    let once = "tool: look\nside_effect: write\nforbids_after: [look]\n";
    for (code, shown) in [
        ("mcp_timeout", vec!["send"]),
        ("mcp_protocol_error", vec!["look", "send"]),
    ] {
        let outside = Outside::new();
        outside.fails("mcp:eyes:main:1", code);
        let desk = begin(&outside, &[once, SEND], persona(), &[("c1", "look", "{}")]).await;
        let task = desk.world.ended(&desk.id).await;
        assert_eq!(task.status, Status::Completed);
        assert_eq!(tools_shown(&desk.world, "llm:main:2"), shown, "{code}");
    }
}
