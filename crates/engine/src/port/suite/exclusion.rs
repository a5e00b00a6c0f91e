//! Who was there first: versions, claims, leases, and writers at the same time.

use std::sync::Arc;
use std::thread;

use canon::sha256;
use domain::{Blob, Decision, Position, ResourceKind, Timestamp};

use super::model::bare;
use super::{Model, Subject, agrees, wait};
use crate::port::{
    Claim, ClaimScope, Commit, CommitError, ExpectedVersion, Fence, LeaseOwners, ListQuery,
    ReadEvents, Scope, SealedTurn, Store,
};

pub(super) fn claim(name: &[u8], expires_at: i64) -> Claim {
    Claim {
        scope: ClaimScope(sha256(name)),
        body: sha256(b"body"),
        answer: Position(1),
        expires_at: Timestamp::from_micros(expires_at),
    }
}

fn started<S: Subject>(subject: &S) -> (Arc<dyn Store>, Model) {
    let store = subject.store();
    let mut model = Model::new(&*store);
    let order = model.workspace();
    model.run(&*store, order).unwrap();
    let order = model.session();
    model.run(&*store, order).unwrap();
    (store, model)
}

/// Makes a commit that would leave a trace everywhere.
fn loud_commit(model: &mut Model) -> (Commit, Decision, Claim, Blob) {
    let order = model.append(3);
    let decision = model.decide(order).unwrap();
    let mut commit = model.commit_of(&decision);
    let claim = claim(b"loud", i64::MAX);
    let blob = Blob::new(b"loud".to_vec());
    commit.blobs.push(blob.clone());
    let seal = commit.seal;
    commit.seal = Box::new(move |first| {
        let mut turn = seal(first)?;
        turn.claims.push(claim);
        turn.leases_taken.push(Position(77));
        Ok(turn)
    });
    (commit, decision, claim, blob)
}

/// Checks that a refused commit of [`loud_commit`] left no trace, then that the same commit can succeed.
fn refused_without_trace(
    store: &dyn Store,
    model: &mut Model,
    break_it: impl FnOnce(&mut Commit),
) -> CommitError {
    let mut news = store.news();
    let (mut commit, _, claim, blob) = loud_commit(model);
    break_it(&mut commit);
    let error = wait(store.commit(commit)).unwrap_err();
    agrees(store, model);
    let claims = wait(store.claims(vec![claim.scope])).unwrap();
    assert_eq!(claims, vec![None]);
    assert_eq!(wait(store.blob(blob.digest)).unwrap(), None);
    assert!(news.try_recv().is_err(), "no news of what did not happen");

    let (commit, decision, claim, blob) = loud_commit(model);
    let committed = wait(store.commit(commit)).unwrap();
    model.committed(&decision, &committed);
    agrees(store, model);
    let claims = wait(store.claims(vec![claim.scope])).unwrap();
    assert_eq!(claims, vec![Some(claim)]);
    assert_eq!(wait(store.blob(blob.digest)).unwrap(), Some(blob.bytes));
    error
}

/// A commit that believed another version changes nothing at all.
pub fn a_version_conflict_writes_nothing<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let (store, mut model) = started(&subject);
    let error = refused_without_trace(&*store, &mut model, |commit| {
        commit.expected[1].version += 1;
    });
    assert!(matches!(error, CommitError::Conflict), "{error}");
}

/// A commit that believed a document absent changes nothing when it is there.
pub fn a_document_that_must_not_exist_and_does_is_a_conflict<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let (store, mut model) = started(&subject);
    let known = model.documents()[0].id.clone();
    let error = refused_without_trace(&*store, &mut model, |commit| {
        let version = 0;
        commit.expected.push(ExpectedVersion { id: known, version });
    });
    assert!(matches!(error, CommitError::Conflict), "{error}");
}

/// Events that cannot follow are a bug of the caller and harm nobody else.
pub fn an_impossible_event_writes_nothing<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let (store, mut model) = started(&subject);
    let order = model.append(1);
    let decision = model.decide(order).unwrap();
    // The same drafts on an empty log: a session changes that was never created.
    let impossible = Model::new(&*store).commit_of(&decision).seal;
    let error = refused_without_trace(&*store, &mut model, |commit| commit.seal = impossible);
    assert!(matches!(error, CommitError::Impossible(_)), "{error}");
}

/// A claim that is in use, or made twice in one turn, is a conflict.
pub fn a_claim_in_use_is_a_conflict<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let (store, mut model) = started(&subject);
    let used = claim(b"used", i64::MAX);
    let with = |claims: &[Claim]| SealedTurn {
        claims: claims.to_vec(),
        ..SealedTurn::default()
    };
    wait(store.commit(bare(10, with(&[used])))).unwrap();
    let other = Claim {
        body: sha256(b"another body"),
        ..used
    };
    let error = refused_without_trace(&*store, &mut model, |commit| {
        let seal = std::mem::replace(&mut commit.seal, Box::new(|_| unreachable!()));
        commit.seal = Box::new(move |first| {
            let mut turn = seal(first)?;
            turn.claims.push(other);
            Ok(turn)
        });
    });
    assert!(matches!(error, CommitError::Conflict), "{error}");
    let claims = wait(store.claims(vec![used.scope])).unwrap();
    assert_eq!(claims, vec![Some(used)], "the first claim stands");
    let twice = claim(b"twice", i64::MAX);
    let error = wait(store.commit(bare(11, with(&[twice, twice])))).unwrap_err();
    assert!(matches!(error, CommitError::Conflict), "{error}");
}

/// Claims that expired are absent, many at once as well, and their scopes can be claimed again.
pub fn an_expired_claim_is_gone_and_its_scope_free<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let mut claims: Vec<Claim> = (0..300u32)
        .map(|number| claim(&number.to_be_bytes(), 1_000))
        .collect();
    claims.push(claim(b"longer", 1_001));
    let scopes: Vec<ClaimScope> = claims.iter().map(|claim| claim.scope).collect();
    let turn = |claims: Vec<Claim>| SealedTurn {
        claims,
        ..SealedTurn::default()
    };
    wait(store.commit(bare(10, turn(claims.clone())))).unwrap();
    let found = wait(store.claims(scopes.clone())).unwrap();
    assert!(
        found
            .iter()
            .eq(claims.iter().copied().map(Some).collect::<Vec<_>>().iter())
    );

    wait(store.commit(bare(1_000, turn(vec![])))).unwrap();
    let found = wait(store.claims(scopes.clone())).unwrap();
    let left: Vec<Claim> = found.into_iter().flatten().collect();
    assert_eq!(left, vec![claims[300]]);

    // The clock may step back; what is gone stays gone.
    let again = Claim {
        answer: Position(2),
        ..claims[299]
    };
    wait(store.commit(bare(
        20,
        turn(vec![Claim {
            expires_at: Timestamp::from_micros(5_000),
            ..again
        }]),
    )))
    .unwrap();
    let found = wait(store.claims(vec![again.scope, claims[0].scope])).unwrap();
    assert_eq!(found[0].map(|claim| claim.answer), Some(Position(2)));
    assert_eq!(found[1], None);
    // One that has not expired is in the way still.
    let error = wait(store.commit(bare(1_000, turn(vec![claims[300]])))).unwrap_err();
    assert!(matches!(error, CommitError::Conflict), "{error}");
}

/// A clock that runs ahead for a while, or behind, takes no claim away: not one that was made before, not one that was
/// made meanwhile, and not one that is made afterwards. Time that passes does.
pub fn claims_outlive_a_clock_that_jumps<S: Subject>(make: impl Fn() -> S) {
    const SECOND: i64 = 1_000_000;
    const WINDOW: i64 = 600 * SECOND;
    const JUMP: i64 = 2 * 24 * 3_600 * SECOND;
    const START: i64 = 1_800_000_000 * SECOND;
    let subject = make();
    let store = subject.store();
    let mut scopes = Vec::new();
    let jumps = [0, JUMP, SECOND, -JUMP, 2 * SECOND, 3 * SECOND];
    for (number, at) in jumps.into_iter().enumerate() {
        let clock = START + at;
        let claim = claim(&number.to_be_bytes(), clock + WINDOW);
        let turn = SealedTurn {
            claims: vec![claim],
            ..SealedTurn::default()
        };
        wait(store.commit(bare(clock, turn))).unwrap();
        scopes.push(claim.scope);
        let found = wait(store.claims(scopes.clone())).unwrap();
        let found = found.iter().filter(|claim| claim.is_some()).count();
        assert_eq!(found, scopes.len(), "after a jump by {at}");
    }
    drop(store);
    let subject = subject.reopen();
    let store = subject.store();
    let found = wait(store.claims(scopes.clone())).unwrap();
    assert!(found.iter().all(Option::is_some), "after a restart");
    for number in 0..jumps.len() {
        let again = claim(&number.to_be_bytes(), START + WINDOW);
        let turn = SealedTurn {
            claims: vec![again],
            ..SealedTurn::default()
        };
        let error = wait(store.commit(bare(START + 4 * SECOND, turn))).unwrap_err();
        assert!(matches!(error, CommitError::Conflict), "{error}");
    }
    // Commits follow each other, and in the end the window has passed.
    for minute in 0..20 {
        let clock = START + minute * 60 * SECOND;
        wait(store.commit(bare(clock, SealedTurn::default()))).unwrap();
    }
    let found = wait(store.claims(scopes)).unwrap();
    assert!(found.iter().all(Option::is_none), "{found:?}");
}

fn take(store: &dyn Store, name: u64) -> Result<u64, CommitError> {
    let turn = SealedTurn {
        leases_taken: vec![Position(name)],
        ..SealedTurn::default()
    };
    let committed = wait(store.commit(bare(10, turn)))?;
    assert_eq!(committed.leases[0].0, Position(name));
    Ok(committed.leases[0].1)
}

fn release(store: &dyn Store, name: u64) {
    let turn = SealedTurn {
        leases_released: vec![Position(name)],
        ..SealedTurn::default()
    };
    wait(store.commit(bare(10, turn))).unwrap();
}

fn fenced(store: &dyn Store, lease: u64, epoch: u64) -> bool {
    let lease = Position(lease);
    let mut commit = bare(10, SealedTurn::default());
    commit.fences.push(Fence { lease, epoch });
    match wait(store.commit(commit)) {
        Ok(_) => false,
        Err(CommitError::Fenced(name)) if name == lease => true,
        Err(error) => panic!("{error}"),
    }
}

/// A commit under a fence succeeds while the lease has that epoch, and only then.
pub fn a_commit_needs_the_epochs_it_names<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let (store, mut model) = started(&subject);
    assert!(fenced(&*store, 5, 0), "a lease that nobody took");
    let epoch = take(&*store, 5).unwrap();
    assert!(!fenced(&*store, 5, epoch));
    assert!(fenced(&*store, 5, epoch + 1));
    let error = refused_without_trace(&*store, &mut model, |commit| {
        let lease = Position(5);
        let epoch = epoch - 1;
        commit.fences.push(Fence { lease, epoch });
    });
    assert!(matches!(error, CommitError::Fenced(Position(5))), "{error}");
    release(&*store, 5);
    assert!(fenced(&*store, 5, epoch), "a lease that was given back");
}

/// A lease has one holder; epochs of one store never repeat and never go back.
pub fn a_lease_that_is_held_cannot_be_taken<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let (store, mut model) = started(&subject);
    let first = take(&*store, 5).unwrap();
    let second = take(&*store, 6).unwrap();
    assert!(second > first);
    let error = refused_without_trace(&*store, &mut model, |commit| {
        let seal = std::mem::replace(&mut commit.seal, Box::new(|_| unreachable!()));
        commit.seal = Box::new(move |position| {
            let mut turn = seal(position)?;
            turn.leases_taken.push(Position(5));
            Ok(turn)
        });
    });
    assert!(matches!(error, CommitError::Fenced(Position(5))), "{error}");
    assert!(!fenced(&*store, 5, first), "the holder keeps its epoch");
    release(&*store, 5);
    let third = take(&*store, 5).unwrap();
    assert!(third > second);
}

/// A new process makes every lease its own: old epochs are worth nothing.
pub fn taking_over_gives_every_lease_a_new_epoch<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let old = [take(&*store, 9).unwrap(), take(&*store, 4).unwrap()];
    let gone = take(&*store, 7).unwrap();
    release(&*store, 7);
    let taken = wait(store.take_over(LeaseOwners::Everybody, "next".into())).unwrap();
    let names: Vec<u64> = taken.iter().map(|(name, _)| name.0).collect();
    assert_eq!(names, vec![4, 9]);
    for (name, epoch) in &taken {
        assert!(*epoch > gone, "{epoch}");
        assert!(!fenced(&*store, name.0, *epoch));
        assert!(old.iter().all(|old| fenced(&*store, name.0, *old)));
    }
    drop(store);
    let subject = subject.reopen();
    let store = subject.store();
    let before = wait(store.take_over(LeaseOwners::Everybody, "third".into())).unwrap();
    for (_, epoch) in &before {
        assert!(taken.iter().all(|(_, known)| epoch > known), "{epoch}");
    }
    release(&*store, 4);
    release(&*store, 9);
    assert_eq!(
        wait(store.take_over(LeaseOwners::Everybody, "fourth".into())).unwrap(),
        vec![]
    );
    let next = take(&*store, 4).unwrap();
    assert!(before.iter().all(|(_, epoch)| next > *epoch));
}

/// Writers that want the same document take turns: each commit is there once, in order.
pub fn concurrent_commits_are_each_there_once<S: Subject>(make: impl Fn() -> S) {
    const WRITERS: u64 = 6;
    const COMMITS: u64 = 8;
    let subject = make();
    let (store, model) = started(&subject);
    let session = model.documents()[2].clone();
    let write = |writer: u64| {
        let mut conflicts = 0;
        for number in 0..COMMITS {
            loop {
                let ids = vec![session.id.clone(), model.documents()[0].id.clone()];
                let known = wait(store.documents(ids)).unwrap().into_iter().flatten();
                let fresh = 1_000 * (writer + 1) + number;
                let mut own = Model::with_documents(&*store, fresh, known);
                let order = own.append(2);
                match own.run(&*store, order) {
                    Ok(_) => break,
                    Err(CommitError::Conflict) => conflicts += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        conflicts
    };
    let conflicts: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || write(writer)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    let total = WRITERS * COMMITS;
    let ids = vec![session.id.clone()];
    let after = wait(store.documents(ids)).unwrap()[0].clone().unwrap();
    assert_eq!(
        after.version,
        1 + total,
        "each commit is one more version ({conflicts} conflicts)"
    );
    let messages = wait(store.list(ListQuery {
        kind: ResourceKind::Message,
        scope: Scope::Session(session.key),
        open_only: false,
        after: Position::START,
        limit: 1_000,
    }))
    .unwrap();
    assert_eq!(messages.len() as u64, total);
    // Positions may have holes: they ascend, and there are as many events as were committed.
    let events = wait(store.events(ReadEvents {
        scope: Scope::All,
        after: Position::START,
        limit: 1_000,
    }))
    .unwrap();
    assert_eq!(events.len() as u64, 3 + 2 * total);
    assert!(events.is_sorted_by(|one, next| one.position < next.position));
    assert_eq!(
        events.last().map(|event| event.position),
        Some(store.head())
    );
}
