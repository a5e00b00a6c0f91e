//! What holds when others write to the same log: no gap for readers of several Workspaces, bounded conflicts, positions that
//! were taken meanwhile, and nothing left of what was refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use canon::{Map, sha256};
use domain::{
    ArtifactId, ArtifactKind, Event, NewArtifact, NewWorkspace, SessionId, Visibility, WorkspaceId,
};
use engine::port::{ApiKey, BlobStore, Store};
use engine::{Caller, Engine, EventRange, Filters, NewSession, Refused, Request};

use crate::support::{engine_on, key, new_session, text, write};
use crate::watched::watched;

async fn session_in(engine: &Engine, workspace_id: Option<WorkspaceId>) -> SessionId {
    let request = Request::CreateSession(NewSession {
        workspace_id,
        mode_id: None,
        persona_id: None,
        model_policy: None,
        initial_messages: vec![],
        metadata: Map::new(),
    });
    SessionId::parse(&write(engine, request).await.unwrap().view.document.id).unwrap()
}

async fn append(engine: &Engine, session_id: &SessionId) -> Result<(), Refused> {
    let request = Request::AppendMessage {
        session_id: session_id.clone(),
        message: text("hello"),
    };
    write(engine, request).await.map(drop)
}

/// C3: what is committed between the reads of two Workspaces is behind no cursor.
#[tokio::test]
async fn c3_a_key_of_two_workspaces_misses_nothing_that_is_committed_between_its_reads() {
    let store = watched();
    let engine = engine_on(Arc::clone(&store) as _).await;
    let request = Request::CreateWorkspace(NewWorkspace {
        name: "other".to_owned(),
        root: "test://other".to_owned(),
        metadata: Map::new(),
    });
    let other = write(&engine, request).await.unwrap().view.document.id;
    let other = WorkspaceId::parse(&other).unwrap();
    let sessions = [
        session_in(&engine, None).await,
        session_in(&engine, Some(other.clone())).await,
    ];
    let caller = Caller::from_key(&ApiKey {
        workspaces: Some(vec![WorkspaceId::local().to_string(), other.to_string()]),
        ..key("reader", &["*"])
    });
    let start = store.head();
    let mut range = EventRange {
        filters: Filters::default(),
        after_event_id: Some(store.name().id(start)),
        limit: 100,
    };
    // After the read of one Workspace and before that of the other, both grow.
    let writer = engine.clone();
    store.before_events(2, async move {
        for session in &sessions {
            append(&writer, session).await.unwrap();
        }
    });
    let mut given = Vec::new();
    for _ in 0..4 {
        let page = engine.events(&caller, range.clone()).await.unwrap();
        given.extend(page.events.iter().map(|event| event.position));
        if let Some(last) = given.last() {
            range.after_event_id = Some(store.name().id(*last));
        }
    }
    let head = store.head();
    assert!(head > start, "nothing was committed between the reads");
    let all: Vec<_> = (start.0 + 1..=head.0).map(domain::Position).collect();
    assert_eq!(given, all);
}

/// C12: bytes that are refused are stored nowhere.
#[tokio::test]
async fn c12_a_refused_upload_leaves_nothing_behind() {
    let store = watched();
    let engine = engine_on(Arc::clone(&store) as _).await;
    let request = Request::RegisterArtifact(NewArtifact {
        kind: ArtifactKind::File,
        mime_type: "text/plain".to_owned(),
        uri: None,
        visibility: Visibility::Public,
        sha256: Some(sha256(b"what was announced")),
        workspace_id: None,
        session_id: None,
        task_id: None,
        metadata: Map::new(),
    });
    let artifact = write(&engine, request).await.unwrap().view.document.id;
    let id = ArtifactId::parse(&artifact).unwrap();
    let upload = async |bytes: &[u8]| {
        let mut content = engine.begin_upload();
        content.push(bytes).await?;
        let attached = engine.attach(&Caller::system(), &id, content, None).await;
        attached.map(drop)
    };
    let other = vec![7; 200_000];
    let refused = upload(&other).await.unwrap_err();
    assert!(matches!(refused, Refused::Domain(_)), "{refused:?}");
    assert_eq!(store.blob(sha256(&other)).await.unwrap(), None);
    upload(b"what was announced").await.unwrap();
    let stored = store.blob(sha256(b"what was announced")).await.unwrap();
    assert!(stored.is_some());
}

/// C14: a conflict that does not go away ends in a refusal of its own command, and others are carried out.
#[tokio::test(start_paused = true)]
async fn c14_a_conflict_that_stays_is_refused_and_holds_up_nobody() {
    let store = watched();
    let engine = engine_on(Arc::clone(&store) as _).await;
    let (stuck, free) = (new_session(&engine).await, new_session(&engine).await);
    *store.conflicting.lock().unwrap() = Some(stuck.as_str().into());
    let both = async { tokio::join!(append(&engine, &stuck), append(&engine, &free)) };
    let (refused, done) = tokio::time::timeout(Duration::from_secs(60), both)
        .await
        .expect("every conflict ends");
    assert!(matches!(refused, Err(Refused::Busy { .. })), "{refused:?}");
    done.unwrap();
    let conflicts = store.conflicts.load(Ordering::Relaxed);
    assert!((2..100).contains(&conflicts), "{conflicts}");
    *store.conflicting.lock().unwrap() = None;
    append(&engine, &stuck).await.unwrap();
}

/// Positions that another node took between guess and commit: the turn is sealed again, to those that it got.
#[tokio::test]
async fn a_turn_is_sealed_again_when_its_positions_were_taken() {
    let store = watched();
    let engine = engine_on(Arc::clone(&store) as _).await;
    let session = new_session(&engine).await;
    for taken in 1..4 {
        let before = store.head();
        store.taken.store(taken, Ordering::Relaxed);
        append(&engine, &session).await.unwrap();
        let first = before.plus(taken as u64 + 1);
        let events = store.events_at(vec![before.plus(1), first]).await.unwrap();
        let [None, Some(event)] = &events[..] else {
            panic!("{events:?}");
        };
        let event = Event::parse(&event.bytes).unwrap();
        assert_eq!(*event.id, *store.name().id(first));
    }
    // What follows builds on it.
    append(&engine, &session).await.unwrap();
}
