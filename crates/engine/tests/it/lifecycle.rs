//! Tasks from submit to their end, through waits, cancels, crashes and drains.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use canon::Map;
use domain::{PermissionId, Refusal, ResourceKind, State, Status, TaskId};
use engine::{
    Caller, Engine, EventRange, Filters, Idempotency, ListRequest, Refused, Request, Settle,
    TaskMessageKind,
};

use crate::support::{
    engine_on, events_of, kinds, new_session, reach, status, status_in, store, submit,
    task_request, text, write,
};

#[tokio::test]
async fn ap_tax_06_the_default_agent_completes_in_three_turns_and_says_so_in_order() {
    let engine = engine_on(store()).await;
    let session = new_session(&engine).await;
    let before = engine.metrics().turns.load(Ordering::Relaxed);
    let answer = write(&engine, task_request(&session, "agent", "hello"))
        .await
        .unwrap();
    assert_eq!(status_in(&answer), Status::Completed);
    assert_eq!(engine.metrics().turns.load(Ordering::Relaxed) - before, 3);
    let id = TaskId::parse(&answer.view.document.id).unwrap();
    let events = events_of(&engine, &id).await;
    assert_eq!(
        kinds(&events),
        [
            "task.submitted",
            "user.message",
            "session.message_appended",
            "task.started",
            "task.status_changed",
            "vendor.effect_requested",
            "vendor.effect_recorded",
            "agent.message",
            "session.message_appended",
            "vendor.outcome_recorded",
            "task.completed",
            "task.status_changed",
            "receipt.issued",
        ]
    );
    let mut own = events
        .iter()
        .filter(|event| &*event.resource.id == id.as_str());
    let mut previous = None;
    for (sequence, event) in (1..).zip(&mut own) {
        assert_eq!(event.sequence, sequence, "AP-EVT-03");
        assert_eq!(event.previous_event_id, previous);
        previous = Some(event.id.clone());
    }
}

async fn pending(engine: &Engine, task: &TaskId) -> Vec<PermissionId> {
    let request = ListRequest {
        kind: ResourceKind::Permission,
        filters: Filters {
            task_id: Some(task.to_string()),
            ..Filters::default()
        },
        after: domain::Position::START,
        limit: 10,
    };
    let page = engine.list(&Caller::system(), request).await.unwrap();
    page.views
        .iter()
        .map(|view| PermissionId::parse(&view.document.id).unwrap())
        .collect()
}

fn input(id: &TaskId, answer: &str) -> Request {
    Request::SendTaskMessage {
        id: id.clone(),
        kind: TaskMessageKind::Input,
        message: text(answer),
    }
}

#[tokio::test]
async fn ap_task_11_input_is_taken_once_the_same_again_changes_nothing_another_is_refused() {
    let engine = engine_on(store()).await;
    let (_, id, first) = submit(&engine, "ask").await;
    assert_eq!(first, Status::InputRequired);
    assert_eq!(pending(&engine, &id).await.len(), 1, "AP-PRM-01");
    let answered = write(&engine, input(&id, "blue")).await.unwrap();
    assert!(answered.changed);
    reach(&engine, &id, Status::Completed).await;
    let again = write(&engine, input(&id, "blue")).await.unwrap();
    assert!(!again.changed);
    assert_eq!(again.view.document.id, answered.view.document.id);
    let other = write(&engine, input(&id, "red")).await.unwrap_err();
    assert!(
        matches!(
            other,
            Refused::Domain(Refusal::Conflict {
                reason: "already_answered",
                ..
            })
        ),
        "{other:?}"
    );
    let events = events_of(&engine, &id).await;
    assert!(kinds(&events).contains(&"user.input_submitted"));
}

fn respond(id: &PermissionId, approved: bool) -> Request {
    Request::RespondPermission {
        id: id.clone(),
        approved: Some(approved),
        answer: None,
        remarks: Map::new(),
    }
}

#[tokio::test]
async fn ap_prm_02_approval_goes_on_and_ap_prm_03_another_decision_is_refused() {
    let engine = engine_on(store()).await;
    let (_, id, first) = submit(&engine, "approve").await;
    assert_eq!(first, Status::AuthRequired);
    let request = pending(&engine, &id).await.remove(0);
    write(&engine, respond(&request, true)).await.unwrap();
    reach(&engine, &id, Status::Completed).await;
    assert!(
        !write(&engine, respond(&request, true))
            .await
            .unwrap()
            .changed
    );
    let other = write(&engine, respond(&request, false)).await.unwrap_err();
    assert!(
        matches!(other, Refused::Domain(Refusal::Conflict { .. })),
        "{other:?}"
    );
    let events = events_of(&engine, &id).await;
    let kinds = kinds(&events);
    let at = |kind| kinds.iter().position(|known| *known == kind).unwrap();
    assert!(at("user.tool_confirmation") < at("tool.approved"));
    assert!(at("tool.approved") < at("task.completed"));
}

#[tokio::test]
async fn a_denial_fails_the_task_and_names_the_reason() {
    let engine = engine_on(store()).await;
    let (_, id, _) = submit(&engine, "approve").await;
    let request = pending(&engine, &id).await.remove(0);
    write(&engine, respond(&request, false)).await.unwrap();
    reach(&engine, &id, Status::Failed).await;
    let view = engine
        .get(&Caller::system(), ResourceKind::Task, id.as_str())
        .await
        .unwrap();
    let State::Task(task) = &view.document.state else {
        panic!()
    };
    let failure = &view.payload(task.failure.unwrap()).unwrap()["failure"];
    assert_eq!(failure["code"], "approval_denied", "AP-TASK-10");
}

#[tokio::test]
async fn ap_life_08_cancel_is_final_and_repeating_it_changes_nothing() {
    let engine = engine_on(store()).await;
    let (_, id, first) = submit(&engine, "hold").await;
    assert_eq!(first, Status::Working);
    let cancel = Request::CancelTask {
        id: id.clone(),
        reason: Some("enough".to_owned()),
    };
    assert_eq!(
        status_in(&write(&engine, cancel.clone()).await.unwrap()),
        Status::Canceled
    );
    let count = events_of(&engine, &id).await.len();
    assert!(!write(&engine, cancel).await.unwrap().changed);
    let events = events_of(&engine, &id).await;
    assert_eq!(events.len(), count);
    let kinds = kinds(&events);
    let at = |kind| kinds.iter().position(|known| *known == kind).unwrap();
    assert!(
        at("user.cancel_requested") < at("task.canceled"),
        "AP-TAX-07"
    );
}

#[tokio::test]
async fn ap_life_05_a_finished_task_takes_no_input_and_cancel_is_a_conflict() {
    let engine = engine_on(store()).await;
    let (_, id, _) = submit(&engine, "agent").await;
    let refused = write(&engine, input(&id, "late")).await.unwrap_err();
    assert!(matches!(
        refused,
        Refused::Domain(Refusal::InvalidTransition {
            status: Status::Completed
        })
    ));
    let cancel = Request::CancelTask {
        id: id.clone(),
        reason: None,
    };
    let refused = write(&engine, cancel).await.unwrap_err();
    assert!(matches!(
        refused,
        Refused::Domain(Refusal::Conflict {
            status: Some(Status::Completed),
            ..
        })
    ));
    let (_, waiting, _) = submit(&engine, "approve").await;
    let request = pending(&engine, &waiting).await.remove(0);
    write(
        &engine,
        Request::CancelTask {
            id: waiting.clone(),
            reason: None,
        },
    )
    .await
    .unwrap();
    let refused = write(&engine, respond(&request, true)).await.unwrap_err();
    assert!(matches!(
        refused,
        Refused::Domain(Refusal::InvalidTransition {
            status: Status::Canceled
        })
    ));
}

#[tokio::test]
async fn ap_task_04_a_new_process_goes_on_where_the_old_one_died() {
    let before = store();
    let engine = engine_on(before.clone()).await;
    let (_, held, _) = submit(&engine, "hold").await;
    let (_, asked, _) = submit(&engine, "ask").await;
    let request = pending(&engine, &asked).await.remove(0);
    // What a crash leaves: everything committed, nobody working.
    let engine = engine_on(Arc::new(before.reopened())).await;
    assert_eq!(status(&engine, &held).await, Status::Working);
    reach(&engine, &asked, Status::InputRequired).await;
    assert_eq!(
        pending(&engine, &asked).await,
        [request],
        "the same request is asked again"
    );
    write(&engine, input(&asked, "green")).await.unwrap();
    reach(&engine, &asked, Status::Completed).await;
    let events = events_of(&engine, &asked).await;
    let reasons: Vec<_> = events
        .iter()
        .filter_map(|event| event.payload.get("reason")?.as_str())
        .collect();
    assert!(reasons.contains(&"recovered"), "{reasons:?}");
    let cancel = Request::CancelTask {
        id: held.clone(),
        reason: None,
    };
    assert_eq!(
        status_in(&write(&engine, cancel).await.unwrap()),
        Status::Canceled
    );
}

#[tokio::test]
async fn a_drain_changes_no_state_and_refuses_new_work() {
    let before = store();
    let engine = engine_on(before.clone()).await;
    let (session, held, _) = submit(&engine, "hold").await;
    let count = events_of(&engine, &held).await.len();
    engine.drain().await;
    let refused = write(&engine, task_request(&session, "agent", "late"))
        .await
        .unwrap_err();
    assert!(matches!(refused, Refused::Draining));
    let engine = engine_on(Arc::new(before.reopened())).await;
    assert_eq!(status(&engine, &held).await, Status::Working);
    assert_eq!(events_of(&engine, &held).await.len(), count);
}

#[tokio::test]
async fn a_drain_with_nothing_to_wait_for_does_not_wait() {
    let engine = engine_on(store()).await;
    let (_, _, status) = submit(&engine, "agent").await;
    assert_eq!(status, Status::Completed);
    // Everything runs on this thread: whoever is ready gets its turn when this one yields.
    let everybody_had_a_turn = async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = engine.drain() => {}
        () = everybody_had_a_turn => panic!("an idle engine waits for its drain window"),
    }
}

#[tokio::test]
async fn ap_idem_07_twenty_equal_submits_with_one_key_make_one_task() {
    let engine = engine_on(store()).await;
    let session = new_session(&engine).await;
    let submit = |body: &str| {
        let engine = engine.clone();
        let request = task_request(&session, "agent", body);
        let idempotency = Idempotency {
            key: "once".to_owned(),
            method: "POST".to_owned(),
            target: "/v1/tasks".to_owned(),
            body: body.into(),
        };
        tokio::spawn(async move {
            let system = Caller::system();
            engine
                .dispatch(&system, request, Some(idempotency), Settle::Window)
                .await
                .map(|answer| answer.view.document.id)
        })
    };
    let answers: Vec<_> = (0..20).map(|_| submit("same")).collect();
    let mut ids = std::collections::BTreeSet::new();
    for answer in answers {
        ids.insert(answer.await.unwrap().unwrap());
    }
    assert_eq!(ids.len(), 1);
    assert!(
        matches!(
            submit("other").await.unwrap(),
            Err(Refused::IdempotencyKeyReused)
        ),
        "AP-IDEM-05"
    );
}

#[tokio::test]
async fn ap_sse_05_a_stream_delivers_history_then_live_once_and_ends_with_its_task() {
    let engine = engine_on(store()).await;
    let (_, id, _) = submit(&engine, "ask").await;
    let range = |after: Option<String>| EventRange {
        filters: Filters {
            task_id: Some(id.to_string()),
            ..Filters::default()
        },
        after_event_id: after,
        limit: 1,
    };
    let mut stream = engine.stream(&Caller::system(), range(None)).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    assert!(first.replayed, "AP-SSE-12");
    write(&engine, input(&id, "x")).await.unwrap();
    let mut seen = vec![first];
    while let Some(frame) = stream.next().await.unwrap() {
        seen.push(frame);
    }
    assert!(!seen.last().unwrap().replayed);
    let all: Vec<_> = events_of(&engine, &id)
        .await
        .into_iter()
        .map(|event| event.id)
        .collect();
    let streamed: Vec<_> = seen
        .iter()
        .map(|frame| domain::Event::parse(&frame.event.bytes).unwrap().id)
        .collect();
    assert_eq!(streamed, all);
    let mut rest = engine
        .stream(&Caller::system(), range(Some(all[2].to_string())))
        .await
        .unwrap();
    let next = rest.next().await.unwrap().unwrap();
    assert_eq!(domain::Event::parse(&next.event.bytes).unwrap().id, all[3]);
    let unknown = engine
        .stream(&Caller::system(), range(Some("event_other_1".to_owned())))
        .await
        .unwrap_err();
    assert!(matches!(unknown, Refused::CursorExpired), "AP-SSE-06");
}

#[tokio::test]
async fn a_named_limit_bounds_the_tasks_that_are_open() {
    let engine = crate::support::engine_with(store(), |limits| limits.open_tasks_max = 2).await;
    submit(&engine, "hold").await;
    let (_, second, _) = submit(&engine, "hold").await;
    let session = new_session(&engine).await;
    let refused = write(&engine, task_request(&session, "agent", "one too many"))
        .await
        .unwrap_err();
    assert!(
        matches!(
            refused,
            Refused::OverShare {
                limit: "open_tasks_max",
                held: 2,
                max: 2
            }
        ),
        "{refused:?}"
    );
    write(
        &engine,
        Request::CancelTask {
            id: second,
            reason: None,
        },
    )
    .await
    .unwrap();
    let answer = write(&engine, task_request(&session, "agent", "now it fits"))
        .await
        .unwrap();
    assert_eq!(status_in(&answer), Status::Completed);
}

#[tokio::test]
async fn a_drained_engine_lets_go_of_its_store() {
    let store = store();
    let engine = engine_on(store.clone()).await;
    submit(&engine, "agent").await;
    engine.drain().await;
    drop(engine);
    let ours_alone = async {
        while Arc::strong_count(&store) > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), ours_alone).await;
    waited.expect("something of the engine still holds the store");
}
