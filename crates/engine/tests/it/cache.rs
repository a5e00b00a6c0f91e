//! Reads from memory: they spare the store, and they tell what it would tell.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use domain::{ResourceKind, SessionId, Status};
use engine::port::Store;
use engine::{Activity, Caller, Engine, Extra, Request, Settle, View};

use crate::support::{engine_on, new_session, reach, store, submit, task_request, text, write};
use crate::watched::watched;

async fn get(engine: &Engine, kind: ResourceKind, id: &str) -> View {
    engine.get(&Caller::system(), kind, id).await.unwrap()
}

fn append(session: &SessionId, words: &str) -> Request {
    Request::AppendMessage {
        session_id: session.clone(),
        message: text(words),
    }
}

#[tokio::test]
async fn reading_what_was_just_written_asks_no_store() {
    let store = watched();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let (session, task, status) = submit(&engine, "agent").await;
    assert_eq!(status, Status::Completed);
    let message = write(&engine, append(&session, "more")).await.unwrap();
    let before = store.reads.load(Ordering::Relaxed);
    get(&engine, ResourceKind::Session, session.as_str()).await;
    get(&engine, ResourceKind::Task, task.as_str()).await;
    get(&engine, ResourceKind::Message, &message.view.document.id).await;
    write(&engine, append(&session, "and more")).await.unwrap();
    assert_eq!(store.reads.load(Ordering::Relaxed) - before, 0);
}

/// A Session in which nobody decided anything has no chain of decisions, and every turn of its Tasks wants to know.
#[tokio::test]
async fn a_turn_does_not_look_again_for_what_was_not_there() {
    let store = watched();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let (session, _, status) = submit(&engine, "agent").await;
    assert_eq!(status, Status::Completed);
    let before = store.document_reads.load(Ordering::Relaxed);
    let again = task_request(&session, "agent", "again");
    write(&engine, again).await.unwrap();
    assert_eq!(store.document_reads.load(Ordering::Relaxed) - before, 0);
}

#[tokio::test]
async fn what_was_read_once_after_a_start_is_known() {
    let store = watched();
    let first = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let (session, task, _) = submit(&first, "ask").await;
    first.drain().await;
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let wanted = [
        get(&engine, ResourceKind::Session, session.as_str()).await,
        get(&engine, ResourceKind::Task, task.as_str()).await,
    ];
    let before = store.reads.load(Ordering::Relaxed);
    let found = [
        get(&engine, ResourceKind::Session, session.as_str()).await,
        get(&engine, ResourceKind::Task, task.as_str()).await,
    ];
    assert_eq!(store.reads.load(Ordering::Relaxed) - before, 0);
    assert_eq!(found, wanted);
}

#[tokio::test]
async fn a_session_is_shown_as_the_store_would_show_it() {
    let store = store();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let session = new_session(&engine).await;
    let check = async |expect: Activity| {
        let found = get(&engine, ResourceKind::Session, session.as_str()).await;
        // It has seen nothing yet, so that all it says is the store's.
        let fresh = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
        let wanted = get(&fresh, ResourceKind::Session, session.as_str()).await;
        assert_eq!(found, wanted);
        let Extra::Session { activity, .. } = found.extra else {
            panic!("not a session");
        };
        assert_eq!(activity, expect);
    };
    check(Activity::Idle).await;
    let mut asked = Vec::new();
    for words in ["one", "two"] {
        let request = task_request(&session, "ask", words);
        let answer = write(&engine, request).await.unwrap();
        asked.push(domain::TaskId::parse(&answer.view.document.id).unwrap());
    }
    check(Activity::Paused).await;
    let request = task_request(&session, "hold", "work");
    let caller = Caller::system();
    let settle = Settle::FirstWorking;
    let held = engine.dispatch(&caller, request, None, settle).await;
    let held = domain::TaskId::parse(&held.unwrap().view.document.id).unwrap();
    check(Activity::Active).await;
    for id in [held].into_iter().chain(asked) {
        let cancel = Request::CancelTask {
            id: id.clone(),
            reason: None,
        };
        write(&engine, cancel).await.unwrap();
        reach(&engine, &id, Status::Canceled).await;
    }
    write(&engine, append(&session, "at last")).await.unwrap();
    check(Activity::Idle).await;
    write(&engine, Request::CloseSession(session.clone()))
        .await
        .unwrap();
    check(Activity::Closed).await;
}

#[tokio::test]
async fn what_another_process_commits_is_seen_by_the_next_read() {
    let store = store();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let other = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let session = new_session(&engine).await;
    for round in 0..4 {
        // Sometimes the first one has committed last, sometimes it lags behind.
        if round % 2 == 0 {
            write(&engine, append(&session, "mine")).await.unwrap();
        }
        write(&other, append(&session, "yours")).await.unwrap();
        let close = round == 3;
        if close {
            write(&other, Request::CloseSession(session.clone()))
                .await
                .unwrap();
        }
        let found = get(&engine, ResourceKind::Session, session.as_str()).await;
        let Extra::Session {
            last_event_id,
            activity,
        } = found.extra
        else {
            panic!("not a session");
        };
        assert_eq!(last_event_id, Some(store.name().id(store.head())));
        assert_eq!(activity == Activity::Closed, close);
    }
}
