//! What a start does with Tasks that waited (U1, AP-TASK-04).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::{Status, TaskId};
use engine::port::{MemoryStore, Store};
use engine::{Engine, Request, TaskMessageKind};

use crate::support::{engine_on, events_of, kinds, reach, status, store, submit, text, write};

async fn waiting(engine: &Engine, count: usize) -> Vec<TaskId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let (_, id, first) = submit(engine, "ask").await;
        assert_eq!(first, Status::InputRequired);
        ids.push(id);
    }
    ids
}

#[tokio::test]
async fn u1_ten_clean_restarts_write_nothing_for_waiting_tasks() {
    let mut store: Arc<MemoryStore> = store();
    let mut engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let ids = waiting(&engine, 5).await;
    engine.drain().await;
    let head = store.head();
    for _ in 0..10 {
        store = Arc::new(store.reopened());
        engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        for id in &ids {
            assert_eq!(status(&engine, id).await, Status::InputRequired);
        }
        engine.drain().await;
        assert_eq!(store.head(), head, "no event was added");
    }
    // They can still be answered.
    store = Arc::new(store.reopened());
    engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let answer = Request::SendTaskMessage {
        id: ids[0].clone(),
        kind: TaskMessageKind::Input,
        message: text("blue"),
    };
    write(&engine, answer).await.unwrap();
    reach(&engine, &ids[0], Status::Completed).await;
}

#[tokio::test]
async fn u1_after_a_crash_each_waiting_task_goes_through_working_once_many_a_commit() {
    let store: Arc<MemoryStore> = store();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let ids = waiting(&engine, 40).await;
    let mut before = 0;
    for id in &ids {
        before += events_of(&engine, id).await.len();
    }
    drop(engine);
    let mut store = store;
    for crash in 1..=2 {
        store = Arc::new(store.reopened());
        let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
        // Until its pair is there, a Task is seen at work.
        assert_eq!(status(&engine, &ids[39]).await, Status::Working);
        for id in &ids {
            reach(&engine, id, Status::InputRequired).await;
        }
        let mut after = 0;
        for id in &ids {
            let events = events_of(&engine, id).await;
            after += events.len();
            let kinds = kinds(&events);
            assert_eq!(
                kinds[kinds.len() - 2..],
                ["task.status_changed", "task.status_changed"]
            );
        }
        assert_eq!(after, before + 2 * ids.len() * crash, "two events each");
        let commits = engine.metrics().commits.load(Ordering::Relaxed);
        assert!(commits <= 4, "{commits} commits");
    }
}
