//! The receipt log's tree, and what only sealing can make.

use canon::{Digest, sha256};
use domain::{Blob, ImpossibleEvent, Kind, Position, ResourceKind, State};
use receipts::merkle::{self, Frontier};

use super::model::bare;
use super::{Model, Subject, wait};
use crate::port::{CommitError, NewestQuery, SealedTurn, Store, Tree, TreeAppend};

/// The newest document of a kind is the one created last, whatever changed since.
pub fn the_newest_of_a_kind_is_the_last_created<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let mut model = Model::new(&*store);
    let steps = [(0, 0, 0), (1, 0, 0), (5, 0, 1), (6, 0, 0), (9, 0, 0)];
    let more = [(1, 0, 0), (15, 0, 1), (15, 0, 2), (16, 0, 3)];
    for step in steps.into_iter().chain(more) {
        model.step(&*store, step);
        for kind in ResourceKind::ALL {
            let documents = model.documents();
            let newest = documents
                .into_iter()
                .rfind(|known| known.state.kind() == kind);
            let found = wait(store.newest(NewestQuery::one(kind))).unwrap();
            assert_eq!(found, Vec::from_iter(newest), "{kind:?}");
        }
    }
    let receipts = wait(store.newest(NewestQuery::one(ResourceKind::Receipt)));
    assert_eq!(receipts.unwrap().len(), 1);
}

/// A sealed head is found by its root, and no other is.
pub fn heads_are_found_by_their_roots<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let mut model = Model::new(&*store);
    for step in [(0, 0, 0), (1, 0, 0), (15, 0, 1), (15, 0, 2), (15, 0, 3)] {
        model.step(&*store, step);
    }
    drop(store);
    let subject = subject.reopen();
    let store = subject.store();
    let mut seen = 0;
    for document in model.documents() {
        if let State::Batch(batch) = document.state {
            seen += 1;
            let size = wait(store.head_size(batch.root)).unwrap();
            assert_eq!(size, Some(batch.size));
        }
    }
    assert!(seen > 1, "{seen}");
    assert_eq!(wait(store.head_size(sha256(b"none"))).unwrap(), None);
}

/// What sealing makes is there with its commit and never without it.
pub fn content_made_by_sealing_is_stored_with_the_commit<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let blobs: Vec<Blob> = [0, 1, 131_072, 131_073, 2_000_000]
        .into_iter()
        .map(|size| Blob::new(vec![3; size]))
        .collect();
    let turn = SealedTurn {
        blobs: blobs.clone(),
        ..SealedTurn::default()
    };
    wait(store.commit(bare(10, turn))).unwrap();
    for blob in &blobs {
        let found = wait(store.blob(blob.digest)).unwrap();
        assert_eq!(found.as_deref(), Some(&*blob.bytes), "{}", blob.bytes.len());
    }
    let mut refused = bare(11, SealedTurn::default());
    refused.seal = Box::new(|_| Err(ImpossibleEvent::new("event", Kind::ReceiptIssued, "no")));
    refused.blobs = vec![Blob::new(b"never".to_vec())];
    let error = wait(store.commit(refused)).unwrap_err();
    assert!(matches!(error, CommitError::Impossible(_)), "{error}");
    assert_eq!(wait(store.blob(sha256(b"never"))).unwrap(), None);
    drop(store);
    let subject = subject.reopen();
    let store = subject.store();
    for blob in blobs {
        assert_eq!(wait(store.blob(blob.digest)).unwrap(), Some(blob.bytes));
    }
}

/// A tree as the engine grows it.
struct Grown {
    frontier: Frontier,
    leaves: Vec<(Position, Digest)>,
    hashes: Vec<(u8, u64, Digest)>,
}

impl Grown {
    fn new() -> Self {
        Self {
            frontier: Frontier::EMPTY,
            leaves: Vec::new(),
            hashes: Vec::new(),
        }
    }

    fn grow(&mut self, count: u64) -> TreeAppend {
        let expected_size = self.frontier.size();
        let (leaves, hashes) = (self.leaves.len(), self.hashes.len());
        for number in expected_size..expected_size + count {
            let hash = sha256(&number.to_be_bytes());
            let frontier = self.frontier.clone();
            let (frontier, kept) = merkle::append(frontier, merkle::leaf(&hash));
            self.frontier = frontier;
            self.leaves.push((Position(10 * number + 7), hash));
            self.hashes
                .extend(kept.iter().map(|kept| (kept.level, kept.index, kept.hash)));
        }
        TreeAppend {
            expected_size,
            leaves: self.leaves[leaves..].to_vec(),
            hashes: self.hashes[hashes..].to_vec(),
            after: self.tree(),
        }
    }

    fn tree(&self) -> Tree {
        Tree {
            size: self.frontier.size(),
            peaks: self.frontier.peaks().to_vec(),
            last: self
                .leaves
                .last()
                .map_or(Position::START, |(position, _)| *position),
        }
    }

    fn check(&self, store: &dyn Store) {
        assert_eq!(wait(store.tree()).unwrap(), self.tree());
        let hashes: Vec<Digest> = self.leaves.iter().map(|(_, hash)| *hash).collect();
        for (first, count) in [
            (0, 1),
            (0, 1_000),
            (3, 256),
            (255, 2),
            (self.leaves.len(), 5),
        ] {
            let expected: Vec<Digest> = hashes.iter().skip(first).take(count).copied().collect();
            let found = wait(store.leaves(first as u64, count)).unwrap();
            assert_eq!(found, expected, "{count} from {first}");
        }
        for (index, (receipt, _)) in self.leaves.iter().enumerate().step_by(41) {
            let found = wait(store.leaf_index(*receipt)).unwrap();
            assert_eq!(found, Some(index as u64));
            assert_eq!(wait(store.leaf_index(receipt.plus(1))).unwrap(), None);
        }
        for level in 0..3 {
            let of_level = |(its, _, _): &&(u8, u64, Digest)| *its == level;
            let own = self
                .hashes
                .iter()
                .filter(of_level)
                .map(|(_, _, hash)| *hash);
            let own: Vec<Digest> = own.collect();
            assert_eq!(wait(store.tree_hashes(level, 0, 5_000)).unwrap(), own);
            let some: Vec<Digest> = own.into_iter().skip(2).take(3).collect();
            assert_eq!(wait(store.tree_hashes(level, 2, 3)).unwrap(), some);
        }
    }
}

/// Leaves and hashes read back by index, over several appends and levels.
pub fn leaves_read_back_and_get_one_index_each<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let mut grown = Grown::new();
    for count in [1, 2, 253, 1, 300] {
        let append = grown.grow(count);
        assert!(wait(store.append_leaves(append)).unwrap());
        grown.check(&*store);
    }
}

/// Two who append at once: the second is told, and nothing of its leaves is there.
pub fn a_tree_of_another_size_is_not_appended_to<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let mut grown = Grown::new();
    let first = grown.grow(3);
    assert!(wait(store.append_leaves(first.clone())).unwrap());
    assert!(!wait(store.append_leaves(first)).unwrap());
    let mut ahead = Grown::new();
    ahead.grow(4);
    let ahead = ahead.grow(1);
    assert!(!wait(store.append_leaves(ahead)).unwrap());
    grown.check(&*store);
}

/// A restart reads the tree; it does not make it again.
pub fn the_tree_is_the_same_after_reopening<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let mut grown = Grown::new();
    let append = grown.grow(259);
    assert!(wait(subject.store().append_leaves(append)).unwrap());
    let subject = subject.reopen();
    grown.check(&*subject.store());
    let append = grown.grow(2);
    assert!(wait(subject.store().append_leaves(append)).unwrap());
    grown.check(&*subject.store());
}
