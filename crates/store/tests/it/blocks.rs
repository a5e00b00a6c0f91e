//! Whatever was written comes back, through every reader, and pruning reaches as far as it must and no further.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use canon::Digest;
use domain::{
    AdvanceTask, Blob, EndIds, Links, Move, Order, OutcomeId, Position, ReceiptId, ResourceKind,
    SessionId, SubmitTask, TaskId, TaskInput, Timestamp,
};
use engine::port::suite::{Model, wait};
use engine::port::{
    BlobStore, Commit, CommitError, Committed, ReadEvents, Scope, SealedTurn, Store, StoredEvent,
};
use proptest::prelude::*;
use store::tamper::Tamper;
use store::{Audit, SqliteStore, prune, rebuild};

use crate::erase::{found_in, noise};
use crate::home::{open, verify};

/// Text that does not compress by itself; the same for the same seed.
fn text(seed: u64, len: usize) -> String {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let letters = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        char::from(b'#' + (state >> 33) as u8 % 57)
    });
    letters.take(len).collect()
}

/// Far from the events: a link to the next position could not be told from none, and there is no such link.
const SESSION: Position = Position(1_000_000);

fn key(task: u64) -> Position {
    Position(SESSION.0 + task)
}

/// A log of events that mean nothing, and what must be in it.
struct Log<'a> {
    home: &'a Path,
    store: Option<SqliteStore>,
    events: Vec<StoredEvent>,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

impl<'a> Log<'a> {
    fn new(home: &'a Path) -> Self {
        Self {
            home,
            store: Some(open(home)),
            events: Vec::new(),
            blobs: BTreeMap::new(),
        }
    }

    fn store(&self) -> &SqliteStore {
        self.store.as_ref().unwrap()
    }

    fn away<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        drop(self.store.take());
        let value = work(self);
        self.store = Some(open(self.home));
        value
    }

    /// Commits events of Tasks, and blobs; takes a lease when the commit is to be rolled back.
    fn commit(
        &mut self,
        parts: &[(Option<u64>, String)],
        blobs: Vec<Blob>,
        lease: Option<Position>,
    ) -> Result<Committed, CommitError> {
        let first = self.events.len() as u64 + 1;
        let events: Vec<StoredEvent> = parts
            .iter()
            .zip(first..)
            .map(|((task, text), position)| StoredEvent {
                position: Position(position),
                resource: Position(position),
                links: Links {
                    workspace: None,
                    session: Some(SESSION),
                    task: task.map(key),
                    // Of the Tasks beside it, so that the index leads to events that belong there in another role.
                    further: (1..=task.unwrap_or(0) % 3).map(key).collect(),
                },
                bytes: format!("{{\"event\":\"piece\",\"number\":{position},\"text\":\"{text}\"}}")
                    .into_bytes()
                    .into(),
            })
            .collect();
        let sealed = events.clone();
        let committed = wait(self.store().commit(Commit {
            expected: vec![],
            fences: vec![],
            holder: "test".into(),
            blobs: blobs.clone(),
            event_count: events.len() as u64,
            now: Timestamp::from_micros(1),
            seal: Box::new(move |_| {
                Ok(SealedTurn {
                    events: sealed,
                    leases_taken: lease.into_iter().collect(),
                    ..SealedTurn::default()
                })
            }),
        }))?;
        self.events.extend(events);
        let blobs = blobs.into_iter().map(|blob| (blob.digest, blob.bytes));
        self.blobs.extend(blobs);
        Ok(committed)
    }

    /// Everything is there, however it is asked for.
    #[track_caller]
    fn check(&self) {
        let store = self.store();
        let tasks: BTreeSet<Position> = self
            .events
            .iter()
            .filter_map(|event| event.links.task)
            .collect();
        let linked = (0..4).map(key).map(Scope::Linked);
        let scopes = tasks.into_iter().map(Scope::Task).chain(linked);
        for scope in scopes.chain([Scope::All, Scope::Session(SESSION)]) {
            let own: Vec<&StoredEvent> = self
                .events
                .iter()
                .filter(|event| scope.contains(&event.links))
                .collect();
            for limit in [3, usize::MAX / 2] {
                let mut after = Position::START;
                let mut read = Vec::new();
                loop {
                    let query = ReadEvents {
                        scope,
                        after,
                        limit,
                    };
                    let page = wait(store.events(query)).unwrap();
                    let Some(last) = page.last() else { break };
                    after = last.position;
                    read.extend(page);
                }
                let own = own.iter().copied();
                assert!(read.iter().eq(own), "{scope:?} by {limit}");
            }
            let last = wait(store.last_event(scope)).unwrap();
            assert_eq!(last, own.last().map(|event| event.position));
        }
        // One by one, far apart.
        let count = self.events.len();
        for at in 0..count {
            let event = &self.events[at * 37 % count.max(1)];
            let read = wait(store.events_at(vec![event.position])).unwrap();
            assert!(read == [Some(event.clone())], "{:?}", event.position);
        }
        let backwards: Vec<Position> = self.events.iter().rev().map(|it| it.position).collect();
        let read = wait(store.events_at(backwards)).unwrap();
        assert!(read.iter().flatten().eq(self.events.iter().rev()));
        for (digest, bytes) in &self.blobs {
            assert!(wait(store.blob(*digest)).unwrap().as_ref() == Some(bytes));
        }
        let audit = Audit::open(self.home).unwrap();
        assert_eq!(audit.head(), Position(count as u64));
        let mut read = Vec::new();
        loop {
            let after = Position(read.len() as u64);
            let page = audit.events(after).unwrap();
            if page.is_empty() {
                break;
            }
            read.extend(page.into_iter().map(Result::unwrap));
        }
        assert!(read == self.events);
        for (digest, bytes) in &self.blobs {
            assert!(audit.blob(digest).unwrap().as_ref() == Some(bytes));
        }
        assert!(Tamper::open(self.home).all_events() == self.events);
    }
}

fn rows(home: &Path) -> usize {
    let positions = Tamper::open(home).all_events().into_iter();
    let blocks: BTreeSet<Position> = positions
        .map(|event| Tamper::open(home).events(event.position)[0].position)
        .collect();
    blocks.len()
}

/// Commits of a lone client are merged behind it, with their blobs; one that is damaged by then keeps to itself.
#[test]
fn small_blocks_become_one_and_a_damaged_one_stays_alone() {
    let home = tempfile::tempdir().unwrap();
    let mut log = Log::new(home.path());
    for seed in 0..120 {
        let blob = Blob::new(text(1_000 + seed, 300).into());
        log.commit(&[(Some(seed % 3), text(seed, 700))], vec![blob], None)
            .unwrap();
    }
    log.check();
    let merged = rows(home.path());
    assert!(merged < 80, "{merged} blocks of 120 commits");

    // A run is begun and one of its blocks damaged: nothing is merged then, and nothing else is lost.
    let damaged = log.events.len() as u64 + 5;
    for seed in 120..240 {
        log.commit(&[(Some(seed % 3), text(seed, 700))], vec![], None)
            .unwrap();
        if log.events.len() as u64 == damaged {
            Tamper::open(home.path()).raw(Position(damaged), |bytes| {
                if let Some(byte) = bytes.get_mut(20) {
                    *byte ^= 1;
                }
            });
        }
    }
    let intact = (1..=log.events.len() as u64).filter(|position| *position != damaged);
    for position in intact {
        let read = wait(log.store().events_at(vec![Position(position)])).unwrap();
        assert_eq!(read[0].as_ref().unwrap().position.0, position);
    }
    assert!(wait(log.store().events_at(vec![Position(damaged)])).is_err());
}

/// A block that was merged leaves nothing behind: what is erased afterwards is in no page that became free before.
#[test]
fn what_is_erased_after_a_merge_is_in_no_file() {
    let home = tempfile::tempdir().unwrap();
    let mut log = Log::new(home.path());
    // Much alike, so that the merged block is smaller and pages become free that nothing takes at once.
    let blob = |seed| Blob::new([noise(0, 5_000), noise(seed, 100)].concat());
    let blobs: Vec<Blob> = (1..=24).map(blob).collect();
    for (blob, seed) in blobs.iter().zip(0..) {
        log.commit(
            &[(Some(seed % 3), text(seed, 100))],
            vec![blob.clone()],
            None,
        )
        .unwrap();
    }
    assert!(rows(home.path()) < 5);
    let digests: Vec<Digest> = blobs.iter().map(|blob| blob.digest).collect();
    wait(log.store().erase_blobs(Position(1), digests)).unwrap();
    for blob in &blobs {
        let found = found_in(home.path(), &blob.bytes);
        assert_eq!(found, <[std::path::PathBuf; 0]>::default());
    }
    log.blobs.clear();
    log.check();
}

#[derive(Debug, Clone)]
enum Step {
    /// Pieces: which Task, which text, how long; blobs likewise.
    Commit(Vec<(u8, u8, usize)>, Vec<(u8, usize)>),
    /// The same, rolled back.
    Fail(Vec<(u8, u8, usize)>),
    Reopen,
    /// Another text for an event that was written, in its own place.
    Change(usize, u8, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![20 => 0usize..900, 4 => 900usize..9_000, 1 => 9_000usize..70_000];
    let pieces = || prop_oneof![6 => 1..=1usize, 2 => 1..=4usize];
    let pieces = move || {
        let piece = (0u8..4, 0u8..6, len());
        pieces().prop_flat_map(move |count| prop::collection::vec(piece.clone(), count))
    };
    // Most commits are of one Task.
    let of_one = (0u8..4, pieces()).prop_map(|(task, mut pieces)| {
        pieces.iter_mut().for_each(|piece| piece.0 = task);
        pieces
    });
    let commit = prop_oneof![4 => of_one.boxed(), 1 => pieces().boxed()];
    let blobs = prop::collection::vec((0u8..6, len()), 0..2);
    prop_oneof![
        24 => (commit.clone(), blobs).prop_map(|(pieces, blobs)| Step::Commit(pieces, blobs)),
        2 => commit.prop_map(Step::Fail),
        1 => Just(Step::Reopen),
        1 => (any::<usize>(), 0u8..6, len()).prop_map(|(at, seed, len)| Step::Change(at, seed, len)),
    ]
}

fn parts(pieces: &[(u8, u8, usize)]) -> Vec<(Option<u64>, String)> {
    let part = |(task, seed, len): &(u8, u8, usize)| {
        // One in four belongs to no Task.
        let task = (*task > 0).then_some(u64::from(*task));
        (task, text(u64::from(*seed), *len))
    };
    pieces.iter().map(part).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_committed_in_whatever_turns_comes_back_through_every_reader(
        steps in prop::collection::vec(step(), 1..90),
    ) {
        let home = tempfile::tempdir().unwrap();
        let mut log = Log::new(home.path());
        let lease = Position(1);
        log.commit(&[], vec![], Some(lease)).unwrap();
        for step in steps {
            match step {
                Step::Commit(pieces, blobs) => {
                    let blob = |(seed, len): (u8, usize)| Blob::new(text(u64::from(seed), len).into());
                    let blobs = blobs.into_iter().map(blob).collect();
                    log.commit(&parts(&pieces), blobs, None).unwrap();
                }
                Step::Fail(pieces) => {
                    // Whoever has it keeps it: what was written before that is noticed goes.
                    let failed = log.commit(&parts(&pieces), vec![], Some(lease));
                    prop_assert!(matches!(failed, Err(CommitError::Fenced(_))));
                }
                Step::Reopen => log.away(|_| ()),
                Step::Change(at, seed, len) => log.away(|log| {
                    let count = log.events.len().max(1);
                    if let Some(event) = log.events.get_mut(at % count) {
                        event.bytes = text(u64::from(seed), len).into_bytes().into();
                        let bytes = event.bytes.clone();
                        Tamper::open(log.home).event(event.position, |event| event.bytes = bytes);
                        // Otherwise the store would see that the newest event is another.
                        std::fs::remove_file(log.home.join("head")).unwrap();
                        let never_had_one = "UPDATE meta SET value = 0 WHERE name = 'keeps_head'";
                        Tamper::open(log.home).execute(never_had_one);
                    }
                }),
            }
        }
        log.check();
        log.away(|_| ());
        log.check();
    }
}

/// A log with Tasks that mean something: they can be verified and pruned.
struct Tasks {
    home: tempfile::TempDir,
    store: Option<SqliteStore>,
    model: Model,
}

impl Tasks {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let store = open(home.path());
        let mut model = Model::new(&store);
        let order = model.workspace();
        model.run(&store, order).unwrap();
        let order = model.session();
        model.run(&store, order).unwrap();
        Self {
            home,
            store: Some(store),
            model,
        }
    }

    fn run(&mut self, order: Order) {
        self.model.run(self.store.as_ref().unwrap(), order).unwrap();
    }

    fn advance(&mut self, id: &TaskId, step: Move) {
        let moves = vec![step];
        let id = id.clone();
        let workflow = Some(canon::sha256(b"workflow"));
        self.run(Order::AdvanceTask(AdvanceTask {
            id,
            workflow,
            moves,
        }));
    }

    fn submit(&mut self) -> TaskId {
        let documents = self.model.documents();
        let mut of_kind = documents.iter();
        let session = of_kind.find(|known| known.state.kind() == ResourceKind::Session);
        let id = TaskId::from_body(&self.model.body());
        self.run(Order::SubmitTask(SubmitTask {
            id: id.clone(),
            session_id: SessionId::parse(&session.unwrap().id).unwrap(),
            workspace_id: None,
            branch_id: None,
            parent_task_id: None,
            workflow: "echo".to_owned(),
            persona: None,
            input: TaskInput::Object(canon::Map::new()),
            metadata: canon::Map::new(),
        }));
        let workflow_digest = canon::sha256(b"workflow");
        self.advance(&id, Move::Start { workflow_digest });
        id
    }

    fn stream(&mut self, id: &TaskId, index: u64, text: String) {
        let effect_key = "llm:main:1".to_owned();
        self.advance(
            id,
            Move::Delta {
                effect_key,
                index,
                text,
            },
        );
    }

    fn complete(&mut self, id: &TaskId) {
        let ids = EndIds {
            outcome_id: OutcomeId::from_body(&self.model.body()),
            receipt_id: ReceiptId::from_body(&self.model.body()),
        };
        let summary = "done".to_owned();
        let messages = vec![];
        self.advance(
            id,
            Move::Complete {
                ids,
                summary,
                messages,
            },
        );
    }

    /// Two Tasks that take turns in streaming; the first one is done.
    fn streamed() -> (Self, [TaskId; 2]) {
        let mut tasks = Self::new();
        let ids = [tasks.submit(), tasks.submit()];
        for index in 0..30 {
            for (id, seed) in ids.iter().zip([0, 1_000]) {
                tasks.stream(
                    id,
                    index,
                    format!("planted{seed} {}", text(seed + index, 200)),
                );
            }
        }
        tasks.complete(&ids[0]);
        (tasks, ids)
    }
}

/// AP-RPL-19: a Task is pruned as a whole, those beside it stay, and whoever read it before reads what is there now.
#[test]
fn ap_rpl_19_pruning_writes_blocks_again_and_leaves_others_alone() {
    let (mut tasks, [one, _]) = Tasks::streamed();
    drop(tasks.store.take());
    let directory = tasks.home.path().to_owned();
    let key = Tamper::open(&directory).key(one.as_str());
    let reader = SqliteStore::open_reader(&directory).unwrap();
    let positions = || -> Vec<Position> {
        let events = tasks.model.events().iter();
        events.map(|event| event.position).collect()
    };
    let read = wait(reader.events_at(positions())).unwrap();
    assert!(read.iter().flatten().eq(tasks.model.events()));

    let before = Timestamp::from_micros(tasks.model.now().as_micros() + 1);
    let did = prune(&directory, before, &mut |_, _| {}).unwrap();
    assert!(did.events > 30, "{did:?}");
    assert_eq!(verify(&directory).problems, vec![]);
    assert_eq!(rebuild(&directory, &mut |_, _| {}).unwrap().problems, []);
    let now = Tamper::open(&directory).all_events();
    let mut headers = 0;
    for (before, now) in tasks.model.events().iter().zip(&now) {
        match before.links.task == Some(key) {
            true => headers += u64::from(before != now),
            false => assert!(before == now, "{:?}", before.position),
        }
    }
    assert_eq!(headers, did.events);
    let read = wait(reader.events_at(positions())).unwrap();
    assert!(read.iter().flatten().eq(&now));
    for scope in [Scope::All, Scope::Task(key)] {
        let query = ReadEvents {
            scope,
            after: Position::START,
            limit: 1_000,
        };
        let own = now.iter().filter(|event| scope.contains(&event.links));
        assert!(wait(reader.events(query)).unwrap().iter().eq(own));
    }
    drop(reader);
    // While somebody reads, what is replaced stays in the write-ahead log; the next stop takes it away.
    open(&directory).close();
    for file in std::fs::read_dir(&directory).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap_or_default();
        // Short enough that no compression cuts it.
        let planted = text(3, 200);
        let piece = &planted.as_bytes()[40..60];
        assert!(!bytes.windows(20).any(|window| window == piece));
    }
}
