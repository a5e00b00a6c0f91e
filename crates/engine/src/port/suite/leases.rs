//! Leases that run out: heartbeats, claims, taking over from one holder. Times are values here, nothing waits.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use domain::{Position, Timestamp};

use super::model::bare;
use super::{Model, Subject, wait};
use crate::port::{CommitError, Fence, Heartbeat, LeaseOwners, LeaseRequest, SealedTurn, Store};

const SECOND: i64 = 1_000_000;
const START: i64 = 1_800_000_000 * SECOND;
const LASTS: Duration = Duration::from_secs(10);

type Held = Vec<(Position, u64)>;

/// Says that a holder is there, some seconds after the start; it lasts for ten.
pub(super) fn beat(store: &dyn Store, holder: &str, at: i64) -> Held {
    let beat = Heartbeat {
        holder: holder.into(),
        now: Timestamp::from_micros(START + at * SECOND),
        lasts: LASTS,
    };
    wait(store.heartbeat(beat)).unwrap()
}

pub(super) fn claim(store: &dyn Store, holder: &str, at: i64, leases: &Held) -> Held {
    let wanted = LeaseRequest {
        holder: holder.into(),
        now: Timestamp::from_micros(START + at * SECOND),
        leases: leases.clone(),
    };
    wait(store.claim(wanted)).unwrap()
}

/// True when a commit at this epoch is refused.
pub(super) fn is_stale(store: &dyn Store, (lease, epoch): (Position, u64)) -> bool {
    let mut commit = bare(10, SealedTurn::default());
    commit.fences.push(Fence { lease, epoch });
    match wait(store.commit(commit)) {
        Ok(_) => false,
        Err(CommitError::Fenced(name)) if name == lease => true,
        Err(error) => panic!("{error}"),
    }
}

/// Submits Tasks; returns their keys and versions.
pub(super) fn tasks(store: &dyn Store, count: usize) -> (Model, Held) {
    let mut model = Model::new(store);
    for order in [Model::workspace, Model::session] {
        let order = order(&mut model);
        model.run(store, order).unwrap();
    }
    let mut tasks = Vec::new();
    for _ in 0..count {
        let order = model.task(0);
        model.run(store, order).unwrap();
        let documents = model.documents();
        let task = documents
            .iter()
            .rfind(|document| document.state.is_open() && document.links.task.is_some())
            .unwrap();
        tasks.push((task.key, task.version));
    }
    (model, tasks)
}

fn names(held: &Held) -> Vec<Position> {
    held.iter().map(|(name, _)| *name).collect()
}

/// What a holder has is its own as long as it says that it is there. Then others may have it, and it finds its epoch stale.
pub fn a_holder_that_is_late_loses_what_it_holds<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let (_, tasks) = tasks(&*store, 3);
    assert_eq!(claim(&*store, "a", 0, &tasks), vec![], "nobody knows it");
    assert_eq!(beat(&*store, "a", 0), vec![]);
    let first: Held = tasks[..2].to_vec();
    let of_a = claim(&*store, "a", 0, &first);
    assert_eq!(names(&of_a), names(&first));
    assert!(of_a[1].1 > of_a[0].1);
    assert_eq!(claim(&*store, "a", 0, &first), vec![], "it has them");

    beat(&*store, "b", 5);
    let of_b = claim(&*store, "b", 5, &tasks);
    assert_eq!(names(&of_b), vec![tasks[2].0], "the others are held");
    assert_eq!(beat(&*store, "a", 8), of_a, "still its own");
    beat(&*store, "b", 12);
    assert_eq!(claim(&*store, "b", 12, &tasks), vec![], "it was there at 8");
    assert!(of_a.iter().all(|lease| !is_stale(&*store, *lease)));

    beat(&*store, "b", 18);
    let taken = claim(&*store, "b", 18, &tasks);
    assert_eq!(names(&taken), names(&of_a));
    let newest = of_a.iter().chain(&of_b).map(|(_, epoch)| *epoch).max();
    assert!(taken.iter().all(|(_, epoch)| Some(*epoch) > newest));
    assert!(of_a.iter().all(|lease| is_stale(&*store, *lease)));
    assert!(taken.iter().all(|lease| !is_stale(&*store, *lease)));
    // It comes back, and learns that nothing is left.
    assert_eq!(beat(&*store, "a", 19), vec![]);
    assert_eq!(claim(&*store, "a", 19, &tasks), vec![]);
    assert_eq!(beat(&*store, "b", 19).len(), 3);

    drop(store);
    let subject = subject.reopen();
    let store = subject.store();
    beat(&*store, "c", 28);
    assert_eq!(claim(&*store, "c", 28, &tasks), vec![], "b was there at 19");
    beat(&*store, "c", 29);
    assert_eq!(names(&claim(&*store, "c", 29, &tasks)), names(&tasks));
    assert!(taken.iter().all(|lease| is_stale(&*store, *lease)));
    // Whoever is late itself gets nothing, whatever is free.
    wait(store.leave("c".into())).unwrap();
    assert_eq!(claim(&*store, "b", 40, &tasks), vec![]);
}

/// A lease is of what its holder has seen: not of something that went on since, and not of nothing.
pub fn only_what_is_as_it_was_seen_is_claimed<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let (_, tasks) = tasks(&*store, 1);
    beat(&*store, "a", 0);
    let (key, version) = tasks[0];
    let wrong = vec![
        (key, version + 1),
        (key, 0),
        (Position::START, 0),
        (Position(9_999), 1),
    ];
    assert_eq!(claim(&*store, "a", 0, &wrong), vec![]);
    let twice = vec![(key, version), (key, version)];
    assert_eq!(claim(&*store, "a", 0, &twice).len(), 1);
}

/// Whoever knows that a holder is gone need not wait, and harms no other.
pub fn taking_over_one_holder_leaves_the_others_alone<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let (_, tasks) = tasks(&*store, 3);
    for holder in ["a", "b", "c"] {
        beat(&*store, holder, 0);
    }
    let of_a = claim(&*store, "a", 0, &tasks[..2].to_vec());
    let of_b = claim(&*store, "b", 0, &tasks);
    assert_eq!(of_b.len(), 1);
    let whose = LeaseOwners::Holder("a".into());
    let taken = wait(store.take_over(whose.clone(), "c".into())).unwrap();
    assert_eq!(names(&taken), names(&of_a));
    assert!(of_a.iter().all(|lease| is_stale(&*store, *lease)));
    assert!(taken.iter().all(|lease| !is_stale(&*store, *lease)));
    assert!(!is_stale(&*store, of_b[0]));
    assert_eq!(beat(&*store, "c", 1), taken);
    assert_eq!(beat(&*store, "b", 1), of_b);
    assert_eq!(wait(store.take_over(whose, "c".into())).unwrap(), vec![]);
    assert_eq!(
        claim(&*store, "a", 1, &tasks),
        vec![],
        "it must say so first"
    );
}

/// A holder that stops by itself leaves its work to whoever comes next, at once.
pub fn a_holder_that_leaves_gives_everything_back<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let (_, tasks) = tasks(&*store, 2);
    beat(&*store, "a", 0);
    beat(&*store, "b", 0);
    let of_a = claim(&*store, "a", 0, &tasks);
    wait(store.leave("a".into())).unwrap();
    assert!(of_a.iter().all(|lease| is_stale(&*store, *lease)));
    let of_b = claim(&*store, "b", 0, &tasks);
    assert_eq!(of_b.len(), 2);
    assert!(of_b[0].1 > of_a[1].1);
    wait(store.leave("a".into())).unwrap();
    assert_eq!(beat(&*store, "b", 1), of_b, "leaving twice takes nothing");
}

/// A clock that jumps makes a holder late too early, and never lets two write. One that was set back keeps nothing held.
pub fn leases_and_a_clock_that_jumps<S: Subject>(make: impl Fn() -> S) {
    const DAY: i64 = 24 * 3_600;
    let subject = make();
    let store = subject.store();
    let (_, tasks) = tasks(&*store, 1);
    beat(&*store, "a", 0);
    let of_a = claim(&*store, "a", 0, &tasks);
    // Somebody whose clock runs ahead takes it away; the first one finds out.
    beat(&*store, "b", DAY);
    let of_b = claim(&*store, "b", DAY, &tasks);
    assert_eq!(of_b.len(), 1);
    assert!(is_stale(&*store, of_a[0]));
    assert_eq!(beat(&*store, "a", 1), vec![]);
    // The clock is set right, and the one who had it is gone: what it said holds nothing up for a day.
    beat(&*store, "a", 2);
    let again = claim(&*store, "a", 2, &tasks);
    assert_eq!(again.len(), 1);
    assert!(is_stale(&*store, of_b[0]));
    assert!(!is_stale(&*store, again[0]));
    // Nobody can hold something for longer than a sign of life lasts at most.
    let forever = Heartbeat {
        holder: "c".into(),
        now: Timestamp::from_micros(START),
        lasts: Duration::MAX,
    };
    wait(store.heartbeat(forever)).unwrap();
    wait(store.leave("a".into())).unwrap();
    assert_eq!(claim(&*store, "c", 0, &tasks).len(), 1);
    let end = i64::try_from(Heartbeat::LASTS_MAX.as_secs()).unwrap();
    beat(&*store, "a", end);
    assert_eq!(claim(&*store, "a", end, &tasks).len(), 1);
}

/// Holders that want the same at the same time: each lease is given to one of them.
pub fn each_lease_is_claimed_once<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let (_, tasks) = tasks(&*store, 24);
    claimed_once(&[store], &tasks);
}

/// Has several holders claim the same leases, through one handle or several.
pub(super) fn claimed_once(handles: &[Arc<dyn Store>], tasks: &Held) {
    let taken: Vec<Held> = thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|number: usize| {
                let store = &*handles[number % handles.len()];
                scope.spawn(move || {
                    let holder = format!("holder-{number}");
                    beat(store, &holder, 0);
                    let pages = tasks.chunks(5).cycle().skip(number).take(5);
                    pages
                        .flat_map(|page| claim(store, &holder, 0, &page.to_vec()))
                        .collect()
                })
            })
            .collect();
        let threads = threads.into_iter();
        threads.map(|thread| thread.join().unwrap()).collect()
    });
    let mut all: Held = taken.into_iter().flatten().collect();
    all.sort_unstable();
    assert_eq!(names(&all), names(tasks));
    let mut epochs: Vec<u64> = all.iter().map(|(_, epoch)| *epoch).collect();
    epochs.sort_unstable();
    epochs.dedup();
    assert_eq!(epochs.len(), tasks.len(), "no epoch is given out twice");
    let store = &*handles[0];
    assert!(all.iter().all(|lease| !is_stale(store, *lease)));
}
