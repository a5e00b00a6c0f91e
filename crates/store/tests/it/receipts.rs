//! Receipts in the log: each change to bytes, chain, leaves and tree is named.

use std::path::Path;

use canon::Digest;
use domain::{Document, ResourceKind, State};
use engine::port::suite::{Model, wait};
use engine::port::{NewestQuery, Store, Tree, TreeAppend, TreeStore};
use receipts::merkle::{self, Frontier};
use store::ProblemSubject;
use store::tamper::Tamper;

use crate::home::{filled, open, tamper, verify};

/// The receipts of a model, by creation.
fn receipts_of(model: &Model) -> Vec<(Document, domain::Receipt)> {
    let documents = model.documents().into_iter();
    documents
        .filter_map(|document| match document.state.clone() {
            State::Receipt(receipt) => Some((document, receipt)),
            _ => None,
        })
        .collect()
}

/// Appends a leaf for each of the first receipts, as the engine does.
fn append_leaves(directory: &Path, model: &Model, count: usize) {
    let mut frontier = Frontier::EMPTY;
    let mut append = TreeAppend {
        expected_size: 0,
        leaves: vec![],
        hashes: vec![],
        after: Tree {
            size: 0,
            peaks: vec![],
            last: domain::Position::START,
        },
    };
    for (document, receipt) in receipts_of(model).into_iter().take(count) {
        let (grown, kept) = merkle::append(frontier, merkle::leaf(&receipt.receipt_hash));
        frontier = grown;
        append.leaves.push((document.key, receipt.receipt_hash));
        let kept = kept.iter().map(|kept| (kept.level, kept.index, kept.hash));
        append.hashes.extend(kept);
        append.after.last = document.key;
    }
    append.after.size = frontier.size();
    append.after.peaks = frontier.peaks().to_vec();
    let store = open(directory);
    assert!(wait(store.append_leaves(append)).unwrap());
    store.close();
}

/// A log with receipts, all of them or all but the last in the tree.
fn with_tree(directory: &Path, missing: usize) -> Vec<(Document, domain::Receipt)> {
    let model = filled(directory);
    let receipts = receipts_of(&model);
    assert!(receipts.len() >= 2, "{}", receipts.len());
    append_leaves(directory, &model, receipts.len() - missing);
    let report = verify(directory);
    assert_eq!(report.problems, vec![]);
    assert_eq!(report.receipts, receipts.len() as u64);
    receipts
}

fn hex(digest: &Digest) -> String {
    format!("x'{}'", digest.hex())
}

/// Verifies and returns what the problems are about and say.
fn problems(directory: &Path) -> Vec<(ProblemSubject, String)> {
    let problems = verify(directory).problems.into_iter();
    problems.map(|found| (found.what, found.problem)).collect()
}

#[test]
fn a_tree_that_lags_behind_its_receipts_is_no_problem() {
    let home = tempfile::tempdir().unwrap();
    with_tree(home.path(), 1);
}

#[test]
fn a_lost_or_damaged_receipt_is_named_once() {
    let home = tempfile::tempdir().unwrap();
    let receipts = with_tree(home.path(), 0);
    let digest = receipts[0].1.content;
    let at = format!("WHERE digest = {}", hex(&digest));
    let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1);
    assert!(Tamper::open(home.path()).blob(&digest, cut));
    let found = problems(home.path());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, ProblemSubject::Blob(digest));
    tamper(home.path(), &format!("DELETE FROM blobs {at}"));
    let found = problems(home.path());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, ProblemSubject::Event(receipts[0].0.key));
}

#[test]
fn a_receipt_in_anothers_place_is_named() {
    let home = tempfile::tempdir().unwrap();
    let receipts = with_tree(home.path(), 0);
    // An event that issues another receipt's bytes, with a checksum that fits, as a bug of ours would leave it.
    let (first, second) = (&receipts[0], &receipts[1]);
    Tamper::open(home.path()).event(second.0.key, |event| {
        let bytes = String::from_utf8(event.bytes.to_vec()).unwrap();
        let changed = bytes.replace(&second.1.content.to_string(), &first.1.content.to_string());
        assert_ne!(changed, bytes);
        event.bytes = changed.into_bytes().into();
    });
    let found = problems(home.path());
    let named = |found: &(ProblemSubject, String)| found.1.contains(&*first.0.id);
    assert!(found.iter().any(named), "{found:?}");
}

#[test]
fn changed_leaves_hashes_and_peaks_are_named() {
    let home = tempfile::tempdir().unwrap();
    let receipts = with_tree(home.path(), 0);
    let size = receipts.len();
    let last = receipts[size - 1].0.key.0;
    let cases = [
        (
            "UPDATE leaves SET hash = zeroblob(32) WHERE idx = 1",
            "leaf 1",
        ),
        ("UPDATE leaves SET receipt = 999999 WHERE idx = 0", "leaf 0"),
        (
            "UPDATE tree_hashes SET hash = zeroblob(32) WHERE level = 0 AND idx = 1",
            "hash 1 of level 0",
        ),
        (
            "DELETE FROM tree_hashes WHERE level = 0 AND idx = 0",
            "hash 0 of level 0",
        ),
        ("UPDATE tree SET peaks = zeroblob(length(peaks))", "peaks"),
        ("UPDATE tree SET last = last + 1", "last leaf"),
        ("UPDATE tree SET size = size + 1", "leaves for"),
        ("UPDATE tree SET size = size - 1", "peaks"),
        (
            "INSERT INTO leaves(idx, receipt, hash) VALUES (1000, 999999, zeroblob(32))",
            "beyond its size",
        ),
        (
            "UPDATE leaves SET idx = idx + 1 WHERE idx = (SELECT max(idx) FROM leaves)",
            "without a gap",
        ),
        (
            "INSERT INTO tree_hashes(level, idx, hash) VALUES (3, 7, zeroblob(32))",
            "hashes that are not of its leaves",
        ),
    ];
    for (sql, expected) in cases {
        let copy = tempfile::tempdir().unwrap();
        for file in ["format", "head", "reprise.db"] {
            std::fs::copy(home.path().join(file), copy.path().join(file)).unwrap();
        }
        copy_blobs(home.path(), copy.path());
        tamper(copy.path(), sql);
        let found = problems(copy.path());
        assert_eq!(found.len(), 1, "{sql} {found:?}");
        assert_eq!(found[0].0, ProblemSubject::Tree, "{sql}");
        assert!(found[0].1.contains(expected), "{sql}: {}", found[0].1);
    }
    assert!(last > 0);
    let store = open(home.path());
    let newest = wait(store.newest(NewestQuery::one(ResourceKind::Receipt))).unwrap();
    assert_eq!(newest[0].key.0, last);
}

fn copy_blobs(from: &Path, to: &Path) {
    let Ok(shelves) = std::fs::read_dir(from.join("blobs")) else {
        return;
    };
    for shelf in shelves {
        let shelf = shelf.unwrap();
        let target = to.join("blobs").join(shelf.file_name());
        std::fs::create_dir_all(&target).unwrap();
        for file in std::fs::read_dir(shelf.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), target.join(file.file_name())).unwrap();
        }
    }
}
