//! Messages of a Session: order, truncation, forks, private and large parts.

use std::sync::Arc;
use std::time::Duration;

use canon::Map;
use domain::{Event, Position, ResourceKind, Role, SessionId, State};
use engine::{Caller, Engine, MessageSpec, Request};
use serde_json::{Value, json};

use crate::support::{caller, engine_on, engine_with, new_session, store, text, write};

async fn append(engine: &Engine, session: &SessionId, words: &str) -> String {
    let request = Request::AppendMessage {
        session_id: session.clone(),
        message: text(words),
    };
    write(engine, request)
        .await
        .unwrap()
        .view
        .document
        .id
        .into()
}

async fn transcript(engine: &Engine, session: &SessionId) -> Vec<String> {
    let page = engine
        .transcript(&Caller::system(), session.as_str(), Position::START, 200)
        .await
        .unwrap();
    page.views
        .iter()
        .map(|view| {
            let State::Message(message) = &view.document.state else {
                panic!()
            };
            view.payload(message.source).unwrap()["parts"][0]["text"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect()
}

async fn truncate(engine: &Engine, session: &SessionId, keep_first: u64) -> (u64, u64) {
    let request = Request::TruncateSession {
        id: session.clone(),
        keep_first,
        reason: None,
    };
    let event = write(engine, request).await.unwrap().event.unwrap();
    let count = |member: &str| event.payload[member].as_u64().unwrap();
    (count("kept_turn_count"), count("removed_turn_count"))
}

#[tokio::test]
async fn ap_sess_05_truncation_keeps_the_first_messages_also_after_growing_again() {
    let engine = engine_on(store()).await;
    let session = new_session(&engine).await;
    for words in ["a", "b", "c", "d"] {
        append(&engine, &session, words).await;
    }
    assert_eq!(truncate(&engine, &session, 2).await, (2, 2));
    assert_eq!(transcript(&engine, &session).await, ["a", "b"]);
    append(&engine, &session, "e").await;
    append(&engine, &session, "f").await;
    assert_eq!(transcript(&engine, &session).await, ["a", "b", "e", "f"]);
    assert_eq!(truncate(&engine, &session, 3).await, (3, 1));
    assert_eq!(transcript(&engine, &session).await, ["a", "b", "e"]);
    assert_eq!(truncate(&engine, &session, 9).await, (3, 0), "AP-SESS-11");
    assert_eq!(truncate(&engine, &session, 1).await, (1, 2));
    append(&engine, &session, "g").await;
    assert_eq!(transcript(&engine, &session).await, ["a", "g"]);
    assert_eq!(truncate(&engine, &session, 0).await, (0, 2));
    assert_eq!(transcript(&engine, &session).await, [] as [&str; 0]);
}

#[tokio::test]
async fn ap_sess_07_a_fork_has_the_messages_and_ap_sess_06_survives_the_parents_truncation() {
    let engine = engine_on(store()).await;
    let parent = new_session(&engine).await;
    for words in ["a", "b", "c"] {
        append(&engine, &parent, words).await;
    }
    let fork = |at_event_id| Request::ForkSession {
        id: parent.clone(),
        at_event_id,
        branch_id: None,
        metadata: Map::new(),
    };
    let whole = write(&engine, fork(None)).await.unwrap();
    let whole_id = SessionId::parse(&whole.view.document.id).unwrap();
    truncate(&engine, &parent, 1).await;
    assert_eq!(transcript(&engine, &whole_id).await, ["a", "b", "c"]);
    let State::Session(state) = &whole.view.document.state else {
        panic!()
    };
    assert_eq!(state.parent_session_id.as_ref(), Some(&parent));
    assert_eq!(state.root_session_id.as_ref(), Some(&parent));
    append(&engine, &whole_id, "d").await;
    assert_eq!(transcript(&engine, &whole_id).await, ["a", "b", "c", "d"]);
    let grandchild = Request::ForkSession {
        id: whole_id.clone(),
        at_event_id: None,
        branch_id: None,
        metadata: Map::new(),
    };
    let grandchild = write(&engine, grandchild).await.unwrap();
    let State::Session(state) = &grandchild.view.document.state else {
        panic!()
    };
    assert_eq!(state.root_session_id.as_ref(), Some(&parent));
    let child = SessionId::parse(&grandchild.view.document.id).unwrap();
    assert_eq!(transcript(&engine, &child).await, ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn ap_sess_03_concurrent_appends_have_one_order() {
    let engine = engine_on(store()).await;
    let session = new_session(&engine).await;
    let appends: Vec<_> = (0..50)
        .map(|number| {
            let (engine, session) = (engine.clone(), session.clone());
            tokio::spawn(async move { append(&engine, &session, &number.to_string()).await })
        })
        .collect();
    for append in appends {
        append.await.unwrap();
    }
    let once = transcript(&engine, &session).await;
    assert_eq!(once.len(), 50);
    assert_eq!(transcript(&engine, &session).await, once);
}

#[tokio::test]
async fn ap_priv_01_private_parts_are_descriptors_in_events_and_for_readers_without_the_scope() {
    let engine = engine_on(store()).await;
    let session = new_session(&engine).await;
    let part = |visibility: &str| json!({"type": "text", "text": format!("{visibility} words"), "visibility": visibility});
    let message = MessageSpec {
        role: Role::User,
        parts: vec![part("public"), part("internal"), part("receipt_only")],
        metadata: Map::new(),
    };
    let request = Request::AppendMessage {
        session_id: session.clone(),
        message,
    };
    let answer = write(&engine, request).await.unwrap();
    let id = answer.view.document.id.clone();
    let State::Message(state) = &answer.view.document.state else {
        panic!()
    };
    let shown = |parts: &Value| -> Vec<bool> {
        parts
            .as_array()
            .unwrap()
            .iter()
            .map(|part| part.get("text").is_some())
            .collect()
    };
    assert_eq!(
        shown(&answer.view.payload(state.source).unwrap()["parts"]),
        [true, true, false]
    );
    let reader = caller("reader", &["sessions:read", "events:read"]);
    let view = engine
        .get(&reader, ResourceKind::Message, &id)
        .await
        .unwrap();
    assert_eq!(
        shown(&view.payload(state.source).unwrap()["parts"]),
        [true, false, false]
    );
    let stored = engine
        .store()
        .events_at(vec![state.source])
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    let bytes = String::from_utf8(stored.bytes.to_vec()).unwrap();
    assert!(!bytes.contains("internal words") && !bytes.contains("receipt_only words"));
}

#[tokio::test]
async fn large_parts_leave_the_event_and_come_back_on_read() {
    let engine = engine_on(store()).await;
    let session = new_session(&engine).await;
    let words = "long ".repeat(5_000);
    append(&engine, &session, &words).await;
    assert_eq!(transcript(&engine, &session).await, [words]);
    let head = engine.store().head();
    let event = engine
        .store()
        .events_at(vec![Position(head.0 - 1)])
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    assert!(event.bytes.len() < 1_500, "{}", event.bytes.len());
    let event = Event::parse(&event.bytes).unwrap();
    assert!(event.payload.contains_key("blobs"));
}

/// Every read is a trip to another thread and back: an append that is alone makes none, before or after its commit.
#[tokio::test]
async fn an_answer_is_what_a_reader_finds_and_is_not_read_back() {
    let quiet = |limits: &mut engine::Limits| limits.leaf_interval = Duration::from_secs(3_600);
    let first = store();
    let session = new_session(&engine_on(first.clone()).await).await;
    let store = Arc::new(first.reopened());
    let engine = engine_with(store.clone(), quiet).await;
    // Whoever comes first finds nothing known.
    append(&engine, &session, "a").await;
    let reads = store.reads();
    let request = Request::AppendMessage {
        session_id: session.clone(),
        message: text("b"),
    };
    let answer = write(&engine, request).await.unwrap();
    assert_eq!(store.reads(), reads);
    // It has seen nothing of it: what it finds is the store's.
    let other = Arc::new(store.reopened());
    let fresh = engine_with(other.clone(), quiet).await;
    let reads = other.reads();
    let read = fresh
        .get(
            &Caller::system(),
            ResourceKind::Message,
            &answer.view.document.id,
        )
        .await
        .unwrap();
    assert_eq!(answer.view, read);
    assert!(other.reads() > reads);
}
