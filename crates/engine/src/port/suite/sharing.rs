//! Two handles on one log, as two processes have them: what one commits the other sees, and they never contradict each other.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use canon::sha256;
use domain::{Position, ResourceKind};

use super::leases::{beat, claim, claimed_once, is_stale, tasks};
use super::model::bare;
use super::{Model, Subject, wait};
use crate::port::{
    CommitError, LeaseOwners, ListQuery, ReadEvents, Scope, SealedTurn, Store, TreeAppend,
};

/// A store that several processes can have open.
pub trait SharedSubject: Subject {
    /// Returns a second handle on the same log.
    fn second_handle(&self) -> Arc<dyn Store>;
}

/// Waits for what has to come by itself.
fn comes(what: &str, is_there: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_there() {
        assert!(began.elapsed() < Duration::from_secs(10), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// What one handle commits is read through the other at once, and its head and its subscribers follow.
pub fn a_handle_follows_what_the_other_commits<S: SharedSubject>(make: impl Fn() -> S) {
    let subject = make();
    let (one, other) = (subject.store(), subject.second_handle());
    let mut news = other.news();
    let mut model = Model::new(&*one);
    for number in 0..6 {
        let order = match number {
            0 => model.workspace(),
            1 => model.session(),
            _ => model.append(3),
        };
        // In turns, so that each has to take up where the other stopped.
        let store = match number % 2 {
            0 => &one,
            _ => &other,
        };
        model.run(&**store, order).unwrap();
        let ids = model.documents().into_iter().map(|document| document.id);
        let ids: Vec<Box<str>> = ids.collect();
        for store in [&one, &other] {
            let found = wait(store.documents(ids.clone())).unwrap();
            let found: Vec<_> = found.into_iter().flatten().collect();
            assert_eq!(found, model.documents());
        }
        let head = model.events().last().unwrap().position;
        comes("the head of both", || {
            one.head() == head && other.head() == head
        });
    }
    let read = ReadEvents {
        scope: Scope::All,
        after: Position::START,
        limit: 100,
    };
    assert_eq!(wait(other.events(read)).unwrap(), model.events());
    // A subscriber hears of each commit, or that it has to look.
    assert!(wait(news.recv()).is_ok());
    let mut late = other.news();
    let order = model.append(3);
    model.run(&*one, order).unwrap();
    assert!(wait(late.recv()).is_ok());
}

/// Writers through both handles take turns: no position is given out twice, and none is left out.
pub fn two_handles_leave_no_hole<S: SharedSubject>(make: impl Fn() -> S) {
    const WRITERS: u64 = 4;
    const COMMITS: u64 = 12;
    let subject = make();
    let handles = [subject.store(), subject.second_handle()];
    let mut model = Model::new(&*handles[0]);
    for order in [Model::workspace, Model::session] {
        let order = order(&mut model);
        model.run(&*handles[0], order).unwrap();
    }
    let session = model.documents()[2].clone();
    let ids = vec![model.documents()[0].id.clone(), session.id.clone()];
    let write = |writer: u64| {
        let store = &*handles[usize::from(!writer.is_multiple_of(2))];
        for number in 0..COMMITS {
            loop {
                let known = wait(store.documents(ids.clone())).unwrap();
                let fresh = 1_000 * (writer + 1) + number;
                let known = known.into_iter().flatten();
                let mut own = Model::with_documents(store, fresh, known);
                let order = own.append(2);
                match own.run(store, order) {
                    Ok(_) => break,
                    Err(CommitError::Conflict) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || write(writer)))
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
    let head = Position(3 + 2 * WRITERS * COMMITS);
    for store in &handles {
        comes("the head of both", || store.head() == head);
        let positions = (1..=head.0).map(Position).collect();
        let events = wait(store.events_at(positions)).unwrap();
        assert!(events.iter().all(Option::is_some), "no position is empty");
        let messages = wait(store.list(ListQuery {
            kind: ResourceKind::Message,
            scope: Scope::Session(session.key),
            open_only: false,
            after: Position::START,
            limit: 1_000,
        }));
        assert_eq!(messages.unwrap().len() as u64, WRITERS * COMMITS);
    }
    // What each Workspace has stored is counted whoever stored it.
    let workspace = model.documents()[0].key;
    let counted = handles.each_ref().map(|store| {
        beat(&**store, "counter", 0);
        store.stored(workspace)
    });
    assert_eq!(counted[0], counted[1]);
    let [one, other] = handles;
    drop((one, other));
    let subject = subject.reopen();
    assert_eq!(subject.store().stored(workspace), counted[0]);
}

/// What one handle believed is checked against what the other wrote: versions, claims, the tree.
pub fn what_the_other_handle_changed_is_a_conflict<S: SharedSubject>(make: impl Fn() -> S) {
    let subject = make();
    let (one, other) = (subject.store(), subject.second_handle());
    let mut model = Model::new(&*one);
    for order in [Model::workspace, Model::session] {
        let order = order(&mut model);
        model.run(&*one, order).unwrap();
    }
    let mut believed = model.clone();
    let order = model.append(1);
    model.run(&*other, order).unwrap();
    let order = believed.append(1);
    let error = believed.run(&*one, order).unwrap_err();
    assert!(matches!(error, CommitError::Conflict), "{error}");

    let used = super::exclusion::claim(b"used", i64::MAX);
    let turn = || SealedTurn {
        claims: vec![used],
        ..SealedTurn::default()
    };
    wait(one.commit(bare(10, turn()))).unwrap();
    let error = wait(other.commit(bare(10, turn()))).unwrap_err();
    assert!(matches!(error, CommitError::Conflict), "{error}");
    let found = wait(other.claims(vec![used.scope])).unwrap();
    assert_eq!(found, vec![Some(used)]);

    let mut after = wait(one.tree()).unwrap();
    after.size = 1;
    after.peaks = vec![sha256(b"leaf")];
    after.last = Position(1);
    let append = TreeAppend {
        expected_size: 0,
        leaves: vec![(Position(1), sha256(b"leaf"))],
        hashes: vec![(0, 0, sha256(b"leaf"))],
        after,
    };
    assert!(wait(one.append_leaves(append.clone())).unwrap());
    assert!(!wait(other.append_leaves(append)).unwrap());
}

/// Epochs come from one counter, whoever asks; a lease that was taken elsewhere is fenced here.
pub fn leases_hold_across_handles<S: SharedSubject>(make: impl Fn() -> S) {
    let subject = make();
    let (one, other) = (subject.store(), subject.second_handle());
    let (_, tasks) = tasks(&*one, 24);
    beat(&*one, "a", 0);
    beat(&*other, "b", 0);
    let some = tasks[..3].to_vec();
    let of_a = claim(&*one, "a", 0, &some);
    assert_eq!(of_a.len(), 3);
    assert_eq!(claim(&*other, "b", 0, &some), vec![]);
    let taken = wait(other.take_over(LeaseOwners::Holder("a".into()), "b".into())).unwrap();
    assert_eq!(taken.len(), 3);
    for (old, new) in of_a.iter().zip(&taken) {
        assert!(new.1 > of_a[2].1);
        assert!(is_stale(&*one, *old));
        assert!(!is_stale(&*one, *new));
    }
    assert_eq!(beat(&*one, "a", 1), vec![], "it learns that it lost them");
    wait(other.leave("b".into())).unwrap();
    claimed_once(&[one, other], &tasks);
}

/// The time that claims live by is one time: two that write do not make it pass twice as fast.
pub fn claims_live_as_long_whoever_writes<S: SharedSubject>(make: impl Fn() -> S) {
    const SECOND: i64 = 1_000_000;
    const START: i64 = 1_800_000_000 * SECOND;
    const WINDOW: i64 = 3_600 * SECOND;
    let subject = make();
    let (one, other) = (subject.store(), subject.second_handle());
    let claim = super::exclusion::claim(b"kept", START + WINDOW);
    let turn = SealedTurn {
        claims: vec![claim],
        ..SealedTurn::default()
    };
    wait(one.commit(bare(START, turn))).unwrap();
    for second in (20..3_580).step_by(20) {
        let store = match second % 40 {
            0 => &one,
            _ => &other,
        };
        let now = START + i64::from(second) * SECOND;
        wait(store.commit(bare(now, SealedTurn::default()))).unwrap();
        let found = wait(store.claims(vec![claim.scope])).unwrap();
        assert!(found[0].is_some(), "after {second} seconds");
    }
    for second in (3_600..3_800).step_by(20) {
        for store in [&one, &other] {
            let now = START + i64::from(second) * SECOND;
            wait(store.commit(bare(now, SealedTurn::default()))).unwrap();
        }
    }
    for store in [&one, &other] {
        let found = wait(store.claims(vec![claim.scope])).unwrap();
        assert_eq!(found[0], None);
    }
}
