//! What is committed reads back: by id, by list, by stream, after a restart.

use domain::{Document, Links, Position, ResourceKind};
use proptest::test_runner::{Config, TestRunner};

use super::model::bare;
use super::{Model, Subject, steps, wait};
use crate::port::{
    ClaimScope, LastEvents, LeaseOwners, ListQuery, NewestQuery, ReadEvents, Scope, SealedTurn,
    Store, StoredEvent,
};

/// An empty log answers none to everything.
pub fn absent_things_read_as_none<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let digest = canon::sha256(b"nothing");
    assert_eq!(store.head(), Position::START);
    let documents = wait(store.documents(vec!["task_1".into(), "".into()]));
    assert_eq!(documents.unwrap(), vec![None, None]);
    assert_eq!(wait(store.documents(vec![])).unwrap(), vec![]);
    let events = wait(store.events_at(vec![Position(1), Position(u64::MAX)]));
    assert_eq!(events.unwrap(), vec![None, None]);
    let claims = wait(store.claims(vec![ClaimScope(digest)]));
    assert_eq!(claims.unwrap(), vec![None]);
    assert_eq!(wait(store.blob(digest)).unwrap(), None);
    assert_eq!(wait(store.api_key(digest)).unwrap(), None);
    assert_eq!(wait(store.api_keys()).unwrap(), vec![]);
    assert_eq!(
        wait(store.take_over(LeaseOwners::Holder("you".into()), "me".into())).unwrap(),
        vec![]
    );
    assert_eq!(wait(store.tree()).unwrap().size, 0);
    assert_eq!(wait(store.leaf_index(Position(1))).unwrap(), None);
    assert_eq!(wait(store.leaves(0, 10)).unwrap(), vec![]);
    assert_eq!(wait(store.tree_hashes(0, 0, 10)).unwrap(), vec![]);
    for scope in [Scope::All, Scope::Session(Position(1))] {
        assert_eq!(wait(store.last_event(scope)).unwrap(), None);
        assert_eq!(stream(&*store, scope, 10), vec![]);
        for kind in ResourceKind::ALL {
            assert_eq!(wait(store.newest(NewestQuery::one(kind))).unwrap(), vec![]);
            assert_eq!(list(&*store, kind, scope, false, 10), vec![]);
        }
    }
}

/// Documents and events read back as committed, in the order asked for.
pub fn a_commit_reads_back<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let mut model = Model::new(&*store);
    let order = model.workspace();
    let first = model.run(&*store, order).unwrap();
    assert_eq!(first.first, Position(1));
    let order = model.session();
    model.run(&*store, order).unwrap();
    let order = model.append(10);
    let last = model.run(&*store, order).unwrap();
    assert_eq!(last.first, Position(4));
    assert_eq!(store.head(), Position(5));

    let mut documents = model.documents();
    documents.reverse();
    let mut ids: Vec<Box<str>> = documents.iter().map(|known| known.id.clone()).collect();
    ids.insert(1, "task_unknown".into());
    let mut expected: Vec<Option<Document>> = documents.into_iter().map(Some).collect();
    expected.insert(1, None);
    assert_eq!(wait(store.documents(ids)).unwrap(), expected);

    let found = wait(store.events_at(vec![Position(5), Position(9), Position(1)])).unwrap();
    let events = model.events();
    assert_eq!(
        found,
        vec![Some(events[4].clone()), None, Some(events[0].clone())]
    );
    assert_eq!(stream(&*store, Scope::All, 100), events);
}

/// Every list and stream holds exactly what a filter over everything finds, page by page.
pub fn lists_and_streams_agree_with_a_naive_filter<S: Subject>(make: impl Fn() -> S) {
    let config = Config {
        cases: 8,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&steps(60), |steps| {
            let subject = make();
            let store = subject.store();
            let mut model = Model::new(&*store);
            for step in [(0, 0, 0), (1, 0, 0), (5, 0, 0), (5, 0, 1), (6, 0, 0)] {
                model.step(&*store, step);
            }
            for step in steps {
                model.step(&*store, step);
            }
            agrees(&*store, &model);
            Ok(())
        })
        .unwrap();
}

/// Checks every read of a store against a model of what it must hold.
///
/// # Panics
/// They differ.
pub fn agrees(store: &dyn Store, model: &Model) {
    let documents = model.documents();
    let events = model.events();
    let head = events
        .last()
        .map_or(Position::START, |event| event.position);
    assert_eq!(store.head(), head);
    // Each kind of scope, for its first and its last member, and one that holds nothing.
    let mut scopes = vec![Scope::All, Scope::Task(Position(999_999))];
    for (kind, scope) in [
        (
            ResourceKind::Workspace,
            Scope::Workspace as fn(Position) -> Scope,
        ),
        (ResourceKind::Session, Scope::Session),
        (ResourceKind::Task, Scope::Task),
    ] {
        let mut of_kind = documents.iter().filter(|known| known.state.kind() == kind);
        scopes.extend(of_kind.next().map(|known| scope(known.key)));
        scopes.extend(of_kind.next_back().map(|known| scope(known.key)));
    }
    for scope in scopes {
        let expected: Vec<StoredEvent> = events
            .iter()
            .filter(|event| scope.contains(&event.links))
            .cloned()
            .collect();
        assert_eq!(
            wait(store.last_event(scope)).unwrap(),
            expected.last().map(|event| event.position),
            "{scope:?}"
        );
        assert_eq!(stream(store, scope, 1_000), expected, "{scope:?}");
        assert_eq!(stream(store, scope, 7), expected, "{scope:?}");
        let backwards: Vec<StoredEvent> = expected.iter().rev().cloned().collect();
        assert_eq!(stream_back(store, scope, 1_000), backwards, "{scope:?}");
        assert_eq!(stream_back(store, scope, 7), backwards, "{scope:?}");
        for (kind, open) in ResourceKind::ALL
            .into_iter()
            .flat_map(|kind| [(kind, false), (kind, true)])
        {
            let expected: Vec<Document> = documents
                .iter()
                .filter(|known| known.state.kind() == kind && scope.contains(&known.links))
                .filter(|known| !open || known.state.is_open())
                .cloned()
                .collect();
            for page in [2, 1_000] {
                let found = list(store, kind, scope, open, page);
                assert_eq!(found, expected, "{scope:?} {kind:?} open {open} by {page}");
            }
            if !open {
                newest_are_the_end_of(&expected, store, kind, scope);
            }
        }
    }
    let ids = documents.iter().map(|known| known.id.clone()).collect();
    let expected: Vec<Option<Document>> = documents.into_iter().map(Some).collect();
    assert_eq!(wait(store.documents(ids)).unwrap(), expected);
}

/// `expected` is everything of a kind in a scope, oldest first.
fn newest_are_the_end_of(
    expected: &[Document],
    store: &dyn Store,
    kind: ResourceKind,
    scope: Scope,
) {
    let known = expected.iter().map(|known| Some(known.key));
    for before in known.chain([None]) {
        for limit in [1, 2, 1_000] {
            let older = expected
                .iter()
                .rev()
                .filter(|known| before.is_none_or(|before| known.key < before));
            let query = NewestQuery {
                kind,
                scope,
                before,
                limit,
            };
            let found = wait(store.newest(query)).unwrap();
            let older: Vec<Document> = older.take(limit).cloned().collect();
            assert_eq!(found, older, "{query:?}");
        }
    }
}

fn list(
    store: &dyn Store,
    kind: ResourceKind,
    scope: Scope,
    open_only: bool,
    limit: usize,
) -> Vec<Document> {
    let mut found: Vec<Document> = Vec::new();
    loop {
        let page = wait(store.list(ListQuery {
            kind,
            scope,
            open_only,
            after: found.last().map_or(Position::START, |last| last.key),
            limit,
        }))
        .unwrap();
        assert!(page.len() <= limit, "a page is no longer than asked for");
        if page.is_empty() {
            return found;
        }
        found.extend(page);
    }
}

fn stream(store: &dyn Store, scope: Scope, limit: usize) -> Vec<StoredEvent> {
    let mut found: Vec<StoredEvent> = Vec::new();
    loop {
        let after = found.last().map_or(Position::START, |last| last.position);
        let page = wait(store.events(ReadEvents {
            scope,
            after,
            limit,
        }))
        .unwrap();
        assert!(page.len() <= limit, "a page is no longer than asked for");
        if page.is_empty() {
            return found;
        }
        found.extend(page);
    }
}

fn stream_back(store: &dyn Store, scope: Scope, limit: usize) -> Vec<StoredEvent> {
    let mut found: Vec<StoredEvent> = Vec::new();
    loop {
        let before = found.last().map(|last| last.position);
        let page = wait(store.last_events(LastEvents {
            scope,
            before,
            limit,
        }))
        .unwrap();
        assert!(page.len() <= limit, "a page is no longer than asked for");
        if page.is_empty() {
            return found;
        }
        found.extend(page);
    }
}

/// An event and the document that it creates are found by each thing that they are linked to, in its own role.
pub fn things_are_listed_by_whatever_they_are_linked_to<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let mut model = Model::new(&*store);
    let order = model.workspace();
    model.run(&*store, order).unwrap();
    let order = model.session();
    model.run(&*store, order).unwrap();
    let documents = model.documents();
    let of = |kind| documents.iter().find(|known| known.state.kind() == kind);
    let workspace = of(ResourceKind::Workspace).unwrap().clone();
    let session = of(ResourceKind::Session).unwrap().clone();
    let mut made = Vec::new();
    for (number, further) in [
        vec![workspace.key],
        vec![workspace.key, session.key],
        vec![],
        vec![session.key],
    ]
    .into_iter()
    .enumerate()
    {
        let position = store.head().plus(1);
        let links = Links {
            session: Some(session.key),
            further: further.into(),
            ..Links::default()
        };
        let document = Document {
            key: position,
            id: format!("unit_{number}").into(),
            // Created and changed in one turn.
            version: 2,
            links: links.clone(),
            ..session.clone()
        };
        let event = StoredEvent {
            position,
            resource: position,
            links,
            bytes: format!("{{\"number\":{number}}}").into_bytes().into(),
        };
        let mut commit = bare(
            20,
            SealedTurn {
                events: vec![event],
                documents: vec![document.clone().into()],
                ..SealedTurn::default()
            },
        );
        commit.event_count = 1;
        wait(store.commit(commit)).unwrap();
        made.push(document);
    }
    let check = |store: &dyn Store| {
        for (scope, expected) in [
            (Scope::Linked(workspace.key), vec![0, 1]),
            (Scope::Linked(session.key), vec![1, 3]),
            (Scope::Linked(made[0].key), vec![]),
            // In another role than that of the scope nothing belongs to it.
            (Scope::Task(workspace.key), vec![]),
            (Scope::Task(session.key), vec![]),
        ] {
            let expected: Vec<&Document> = expected.iter().map(|at: &usize| &made[*at]).collect();
            let list = |after, limit| {
                let query = ListQuery {
                    kind: ResourceKind::Session,
                    scope,
                    open_only: false,
                    after,
                    limit,
                };
                wait(store.list(query)).unwrap()
            };
            assert!(
                list(Position::START, 9).iter().eq(expected.clone()),
                "{scope:?}"
            );
            if let [first, second] = expected[..] {
                assert_eq!(list(Position::START, 1), std::slice::from_ref(first));
                assert_eq!(list(first.key, 9), std::slice::from_ref(second));
            }
            let newest = NewestQuery {
                kind: ResourceKind::Session,
                scope,
                before: None,
                limit: 9,
            };
            let newest = wait(store.newest(newest)).unwrap();
            assert!(
                newest.iter().eq(expected.iter().rev().copied()),
                "{scope:?}"
            );
            let query = ReadEvents {
                scope,
                after: Position::START,
                limit: 9,
            };
            let events = wait(store.events(query)).unwrap();
            let events = events.iter().map(|event| event.position);
            assert!(events.eq(expected.iter().map(|document| document.key)));
            let last = wait(store.last_event(scope)).unwrap();
            assert_eq!(last, expected.last().map(|document| document.key));
        }
    };
    check(&*store);
    drop(store);
    check(&*subject.reopen().store());
}

/// After a clean stop everything is there, and work goes on where it stopped.
pub fn reopening_shows_the_same<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let name = store.name().clone();
    let secret = *store.secret();
    let mut model = Model::new(&*store);
    let order = model.workspace();
    model.run(&*store, order).unwrap();
    let order = model.session();
    model.run(&*store, order).unwrap();
    for len in [10, 6_000] {
        let order = model.append(len);
        model.run(&*store, order).unwrap();
    }
    let claim = super::exclusion::claim(b"kept", 50);
    let turn = SealedTurn {
        claims: vec![claim],
        leases_taken: vec![Position(3)],
        ..SealedTurn::default()
    };
    let epoch = wait(store.commit(bare(10, turn))).unwrap().leases[0].1;
    let large = domain::Blob::new(vec![5; 300_000]);
    wait(store.put_blob(large.clone())).unwrap();
    let key = super::extras::api_key("kept", b"text");
    wait(store.put_api_key(key.clone())).unwrap();
    drop(store);

    let subject = subject.reopen();
    let store = subject.store();
    assert_eq!(*store.name(), name);
    assert_eq!(*store.secret(), secret);
    agrees(&*store, &model);
    let claims = wait(store.claims(vec![claim.scope])).unwrap();
    let kept = claims[0].map(|found| (found.body, found.answer));
    assert_eq!(kept, Some((claim.body, claim.answer)));
    assert_eq!(wait(store.blob(large.digest)).unwrap(), Some(large.bytes));
    assert_eq!(wait(store.api_keys()).unwrap(), vec![key]);
    let taken = wait(store.take_over(LeaseOwners::Holder("suite".into()), "next".into())).unwrap();
    assert_eq!(taken.len(), 1);
    assert!(taken[0].1 > epoch, "epochs go on from {epoch}: {taken:?}");
    let order = model.append(1);
    let next = model.run(&*store, order).unwrap();
    assert_eq!(next.first, Position(8));
    agrees(&*store, &model);
}
