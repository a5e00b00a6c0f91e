//! Reading Tasks that were taken over from another log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use domain::Event;
use engine::port::{MemoryStore, Store};
use engine::{Caller, EventRange, Filters, Request};

use crate::support::{engine_on, events_of, submit, write};
use crate::watched::watched;

#[tokio::test]
async fn a_page_of_a_task_that_was_taken_over_does_not_cost_its_whole_bundle() {
    let caller = Caller::system();
    let elsewhere = MemoryStore::new("elsewher", [9; 32]);
    let elsewhere = engine_on(Arc::new(elsewhere) as Arc<dyn Store>).await;
    let (_, task, _) = submit(&elsewhere, "agent").await;
    let mut theirs = events_of(&elsewhere, &task).await;
    // The receipt is about the log before it.
    assert_eq!(&*theirs.pop().unwrap().kind, "receipt.issued");
    let bundle = elsewhere.bundle(&caller, &task).await.unwrap();
    let store = watched();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let import = Request::ImportTask {
        bundle: Arc::new(bundle),
        workspace_id: None,
    };
    write(&engine, import).await.unwrap();
    let mut range = EventRange {
        filters: Filters {
            task_id: Some(task.to_string()),
            ..Filters::default()
        },
        after_event_id: None,
        limit: 2,
    };
    let before = store.blob_reads.load(Ordering::Relaxed);
    let mut shown: Vec<Box<str>> = Vec::new();
    while shown.len() < theirs.len() {
        let page = engine.events(&caller, range.clone()).await.unwrap();
        let events = page.events.iter();
        shown.extend(events.map(|event| Event::parse(&event.bytes).unwrap().id));
        range.after_event_id = shown.last().map(ToString::to_string);
    }
    let backwards = EventRange {
        after_event_id: Some(theirs[2].id.to_string()),
        ..range
    };
    let page = engine.newest_events(&caller, backwards).await.unwrap();
    let read = store.blob_reads.load(Ordering::Relaxed) - before;
    let ids: Vec<Box<str>> = theirs.into_iter().map(|event| event.id).collect();
    assert_eq!(shown[..ids.len()], ids);
    let last = Event::parse(&page.events[0].bytes).unwrap();
    assert_eq!(last.id, ids[1]);
    assert_eq!(read, 1, "the bundle is read once, not once a page");
}
