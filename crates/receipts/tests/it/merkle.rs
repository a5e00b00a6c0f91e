//! The log against a naive tree written from the definition, and against an independent crate.
//!
//! That crate keeps its nodes in one in-order array, which fits neither a stored frontier nor tiles;
//! so it serves as an oracle only.

use std::collections::BTreeMap;

use canon::{Digest, sha256, sha256_parts};
use ct_merkle::{ConsistencyProof, InclusionProof, RootHash, mem_backed_tree::MemoryBackedTree};
use proptest::prelude::*;
use receipts::{
    merkle::{self, Frontier},
    tiles::{self, ProofError, TILE_WIDTH, Tile},
};
use sha2::Sha256;

fn entry(index: u64) -> Digest {
    sha256(&index.to_be_bytes())
}

/// The hash of a list of leaves, as RFC 6962 defines it.
fn tree_hash(leaves: &[Digest]) -> Digest {
    match leaves {
        [] => sha256(b""),
        [leaf] => *leaf,
        _ => {
            let (left, right) = leaves.split_at(split(leaves.len()));
            sha256_parts([
                &[1][..],
                tree_hash(left).as_bytes(),
                tree_hash(right).as_bytes(),
            ])
        }
    }
}

/// The largest power of two below a length.
fn split(length: usize) -> usize {
    let mut size = 1;
    while size * 2 < length {
        size *= 2;
    }
    size
}

/// PATH of RFC 6962.
fn naive_path(index: usize, leaves: &[Digest]) -> Vec<Digest> {
    if leaves.len() <= 1 {
        return Vec::new();
    }
    let (left, right) = leaves.split_at(split(leaves.len()));
    let (mut path, sibling) = if index < left.len() {
        (naive_path(index, left), right)
    } else {
        (naive_path(index - left.len(), right), left)
    };
    path.push(tree_hash(sibling));
    path
}

/// SUBPROOF of RFC 6962.
fn naive_proof(old: usize, leaves: &[Digest], is_whole: bool) -> Vec<Digest> {
    if old == leaves.len() {
        return if is_whole {
            Vec::new()
        } else {
            vec![tree_hash(leaves)]
        };
    }
    let (left, right) = leaves.split_at(split(leaves.len()));
    let (mut proof, sibling) = if old <= left.len() {
        (naive_proof(old, left, is_whole), right)
    } else {
        (naive_proof(old - left.len(), right, false), left)
    };
    proof.push(tree_hash(sibling));
    proof
}

/// All places of a small tree; of a larger one both ends, the borders of subtrees and every seventh.
fn places(size: usize) -> impl Iterator<Item = usize> {
    (0..size).filter(move |place| {
        size <= 40
            || *place < 3
            || place + 3 > size
            || place.is_power_of_two()
            || (place + 1).is_power_of_two()
            || place % 7 == 0
    })
}

/// A log as a server keeps it: the frontier and the hashes of the tiles.
struct Log {
    frontier: Frontier,
    hashes: BTreeMap<(u8, u64), Digest>,
    leaves: Vec<Digest>,
}

impl Log {
    fn with(size: u64) -> Self {
        let mut log = Self {
            frontier: Frontier::EMPTY,
            hashes: BTreeMap::new(),
            leaves: Vec::new(),
        };
        for index in 0..size {
            log.push(index);
        }
        log
    }

    fn push(&mut self, index: u64) {
        let leaf = merkle::leaf(&entry(index));
        // Through its parts, as after a restart.
        let (size, peaks) = (self.frontier.size(), self.frontier.peaks().to_vec());
        let frontier = Frontier::from_parts(size, peaks).unwrap();
        let (frontier, stored) = merkle::append(frontier, leaf);
        for hash in stored {
            assert!(
                self.hashes
                    .insert((hash.level, hash.index), hash.hash)
                    .is_none()
            );
        }
        self.frontier = frontier;
        self.leaves.push(leaf);
    }

    fn read(&self, tile: Tile) -> Option<Vec<u8>> {
        let first = tile.index * TILE_WIDTH;
        let hashes: Option<Vec<Digest>> = (first..first + u64::from(tile.width))
            .map(|index| self.hashes.get(&(tile.level, index)).copied())
            .collect();
        hashes.map(|hashes| tiles::tile_bytes(&hashes))
    }
}

#[test]
fn roots_and_inclusion_equal_the_definition_for_all_sizes_to_200() {
    let log = Log::with(200);
    let mut growing = Log::with(0);
    for size in 0..=200 {
        let leaves = &log.leaves[..size];
        let root = tree_hash(leaves);
        assert_eq!(growing.frontier.root(), root, "{size}");
        let rebuilt = tiles::frontier(|tile| log.read(tile), size as u64).unwrap();
        assert_eq!(rebuilt, growing.frontier);
        for index in places(size) {
            let path = tiles::inclusion(|tile| log.read(tile), index as u64, size as u64).unwrap();
            assert_eq!(path, naive_path(index, leaves), "{index} of {size}");
            assert!(merkle::verify_inclusion(
                &leaves[index],
                index as u64,
                size as u64,
                &path,
                &root
            ));
        }
        if size < 200 {
            growing.push(size as u64);
        }
    }
}

#[test]
fn consistency_equals_the_definition_for_all_sizes_to_200() {
    let log = Log::with(200);
    let roots: Vec<Digest> = (0..=200)
        .map(|size| tree_hash(&log.leaves[..size]))
        .collect();
    for new in 0..=200_usize {
        for old in places(new + 1) {
            let proof = tiles::consistency(|tile| log.read(tile), old as u64, new as u64).unwrap();
            if old > 0 {
                assert_eq!(
                    proof,
                    naive_proof(old, &log.leaves[..new], true),
                    "{old} {new}"
                );
            }
            assert!(merkle::verify_consistency(
                old as u64,
                new as u64,
                &roots[old],
                &roots[new],
                &proof
            ));
        }
    }
}

#[test]
fn wrong_proofs_are_refused() {
    let log = Log::with(100);
    let root = |size: usize| tree_hash(&log.leaves[..size]);
    for (old, new) in [
        (1, 2),
        (3, 7),
        (7, 8),
        (8, 9),
        (64, 100),
        (65, 100),
        (99, 100),
    ] {
        let proof = tiles::consistency(|tile| log.read(tile), old as u64, new as u64).unwrap();
        let holds = |old_root: &Digest, new_root: &Digest, proof: &[Digest]| {
            merkle::verify_consistency(old as u64, new as u64, old_root, new_root, proof)
        };
        assert!(holds(&root(old), &root(new), &proof));
        assert!(!holds(&root(old - 1), &root(new), &proof));
        assert!(!holds(&root(old), &root(new - 1), &proof));
        for index in 0..proof.len() {
            let mut changed = proof.clone();
            changed[index] = entry(0);
            assert!(!holds(&root(old), &root(new), &changed));
            changed.remove(index);
            assert!(!holds(&root(old), &root(new), &changed));
        }
        let longer = [proof.clone(), vec![entry(0)]].concat();
        assert!(!holds(&root(old), &root(new), &longer));
        assert!(!merkle::verify_consistency(
            new as u64,
            old as u64,
            &root(new),
            &root(old),
            &proof
        ));
    }
    for (index, size) in [(0, 1), (0, 2), (5, 7), (99, 100), (64, 100)] {
        let path = tiles::inclusion(|tile| log.read(tile), index, size).unwrap();
        let leaf = log.leaves[usize::try_from(index).unwrap()];
        let root = root(usize::try_from(size).unwrap());
        let holds = |leaf: &Digest, index, size, path: &[Digest]| {
            merkle::verify_inclusion(leaf, index, size, path, &root)
        };
        assert!(holds(&leaf, index, size, &path));
        assert!(!holds(&entry(0), index, size, &path));
        assert!(!holds(&leaf, size, size, &path));
        assert!(!holds(&leaf, index, 0, &path));
        assert!(!holds(
            &leaf,
            index,
            size,
            &[path.clone(), vec![entry(0)]].concat()
        ));
        for at in 0..path.len() {
            let mut changed = path.clone();
            changed[at] = entry(0);
            assert!(!holds(&leaf, index, size, &changed));
            changed.remove(at);
            assert!(!holds(&leaf, index, size, &changed));
        }
    }
    // A proof that ends too early: the claimed size is larger than what was hashed.
    assert!(!merkle::verify_consistency(2, 3, &root(2), &root(2), &[]));
    assert!(!merkle::verify_inclusion(
        &log.leaves[0],
        0,
        2,
        &[],
        &log.leaves[0]
    ));
    // The empty tree has one root; a proof from it proves nothing about another.
    assert!(!merkle::verify_consistency(0, 5, &entry(0), &root(5), &[]));
    assert!(!merkle::verify_consistency(
        5,
        5,
        &root(5),
        &root(5),
        &[entry(0)]
    ));
}

#[test]
fn questions_beyond_the_tree_and_lost_tiles_are_errors() {
    let log = Log::with(300);
    let read = |tile| log.read(tile);
    assert_eq!(tiles::inclusion(read, 5, 5), Err(ProofError::OutOfRange(5)));
    assert_eq!(
        tiles::consistency(read, 6, 5),
        Err(ProofError::OutOfRange(5))
    );
    let lost = |tile: Tile| (tile.level == 0).then(|| log.read(tile)).flatten();
    let partial = Tile {
        level: 1,
        index: 0,
        width: 1,
    };
    assert_eq!(
        tiles::inclusion(lost, 299, 300),
        Err(ProofError::TileMissing(partial))
    );
    let short = |tile: Tile| {
        log.read(tile)
            .map(|bytes| bytes[..bytes.len() - 1].to_vec())
    };
    assert!(matches!(
        tiles::inclusion(short, 3, 300),
        Err(ProofError::TileMissing(_))
    ));
    assert!(tiles::inclusion(|_| None, 3, u64::MAX).is_err());
    assert!(Frontier::from_parts(3, vec![entry(0)]).is_none());
}

#[test]
fn a_grown_log_may_answer_with_wider_tiles() {
    let log = Log::with(256);
    let wide = |tile: Tile| log.read(Tile { width: 256, ..tile });
    for size in [1, 2, 100, 255] {
        let path = tiles::inclusion(wide, size - 1, size).unwrap();
        let size = usize::try_from(size).unwrap();
        assert_eq!(path, naive_path(size - 1, &log.leaves[..size]));
    }
}

#[test]
fn the_tiles_to_fetch_are_known_beforehand() {
    let path = |tile: &Tile| tile.path();
    let paths = |tiles: Vec<Tile>| tiles.iter().map(path).collect::<Vec<_>>();
    assert_eq!(
        paths(tiles::inclusion_tiles(3, 70_000).unwrap()),
        [
            "tile/0/000",
            "tile/0/273.p/112",
            "tile/1/000",
            "tile/1/001.p/17"
        ]
    );
    assert_eq!(
        paths(tiles::inclusion_tiles(0, 1).unwrap()),
        Vec::<String>::new()
    );
    assert_eq!(
        paths(tiles::consistency_tiles(1, 2).unwrap()),
        ["tile/0/000.p/2"]
    );
}

#[test]
fn tile_paths_are_written_in_groups_of_three_and_read_back() {
    let tile = |level, index, width| Tile {
        level,
        index,
        width,
    };
    for (tile, path) in [
        (tile(0, 0, 256), "tile/0/000"),
        (tile(0, 999, 255), "tile/0/999.p/255"),
        (tile(1, 1000, 256), "tile/1/x001/000"),
        (tile(0, 1_234_067, 256), "tile/0/x001/x234/067"),
        (tile(7, 5, 1), "tile/7/005.p/1"),
        (
            tile(0, u64::MAX, 256),
            "tile/0/x018/x446/x744/x073/x709/x551/615",
        ),
    ] {
        assert_eq!(tile.path(), path);
        assert_eq!(Tile::parse(path), Some(tile));
    }
    assert_eq!(tiles::entries_path(1000, 3), "tile/entries/x001/000.p/3");
    assert_eq!(
        tiles::parse_entries_path("tile/entries/x001/000.p/3"),
        Some((1000, 3))
    );
    for path in [
        "tile/0/0",
        "tile/0/0000",
        "tile/00/000",
        "tile/64/000",
        "tile/0/1000",
        "tile/0/x000/001",
        "tile/0/001/000",
        "tile/0/x001",
        "tile/0/000.p/0",
        "tile/0/000.p/256",
        "tile/0/000.p/01",
        "tile/0/000.p/",
        "tile/0/",
        "tile/0/xx01/000",
        "tile/0/+01",
        "tile/entries/000",
        "/tile/0/000",
        "tile/0/x018/x446/x744/x073/x709/x551/616",
    ] {
        assert_eq!(Tile::parse(path), None, "{path}");
    }
    assert_eq!(tiles::parse_entries_path("tile/0/000"), None);
}

#[test]
fn tiles_and_bundles_hold_raw_hashes() {
    let hashes = [entry(0), entry(1)];
    let bytes = tiles::tile_bytes(&hashes);
    assert_eq!(
        bytes,
        [hashes[0].as_bytes().as_slice(), hashes[1].as_bytes()].concat()
    );
    let bundle = tiles::entry_bundle(&hashes);
    assert_eq!(bundle.len(), 68);
    assert_eq!(bundle[..2], [0, 32]);
    // A leaf is the hash of the entry as it stands in the bundle.
    assert_eq!(
        merkle::leaf(&hashes[1]),
        sha256(&[&[0], &bundle[36..]].concat())
    );
}

#[test]
fn an_independent_implementation_agrees() {
    let log = Log::with(70);
    let mut other = MemoryBackedTree::<Sha256, Vec<u8>>::new();
    for index in 0..70 {
        other.push(entry(index).as_bytes().to_vec());
    }
    let root = other.root();
    assert_eq!(root.as_bytes().as_slice(), log.frontier.root().as_bytes());
    for index in 0..70 {
        let path = tiles::inclusion(|tile| log.read(tile), index, 70).unwrap();
        let theirs = other.prove_inclusion(usize::try_from(index).unwrap());
        assert_eq!(theirs.as_bytes(), tiles::tile_bytes(&path));
        let ours = InclusionProof::<Sha256>::from_bytes(tiles::tile_bytes(&path));
        root.verify_inclusion(&entry(index).as_bytes().to_vec(), index, &ours)
            .unwrap();
    }
    for old in 1..70 {
        let proof = tiles::consistency(|tile| log.read(tile), old, 70).unwrap();
        let ours = ConsistencyProof::<Sha256>::try_from_bytes(tiles::tile_bytes(&proof)).unwrap();
        let old_root = tree_hash(&log.leaves[..usize::try_from(old).unwrap()]);
        let old_root = RootHash::<Sha256>::new((*old_root.as_bytes()).into(), old);
        root.verify_consistency(&old_root, &ours).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn larger_logs_equal_the_definition(size in 200..2000_u64, a in any::<u64>(), b in any::<u64>()) {
        let log = Log::with(size);
        let leaves = &log.leaves;
        let (index, old) = (a % size, b % size + 1);
        let count = |value: u64| usize::try_from(value).unwrap();
        prop_assert_eq!(log.frontier.root(), tree_hash(leaves));
        let path = tiles::inclusion(|tile| log.read(tile), index, size).unwrap();
        prop_assert_eq!(path, naive_path(count(index), leaves));
        let proof = tiles::consistency(|tile| log.read(tile), old, size).unwrap();
        prop_assert_eq!(proof, naive_proof(count(old), leaves, true));
        let past = tiles::frontier(|tile| log.read(tile), old).unwrap();
        prop_assert_eq!(past.root(), tree_hash(&leaves[..count(old)]));
    }
}

/// Beyond 65,536 leaves the third level of tiles is in use.
#[test]
fn three_levels_of_tiles_hold_together() {
    let size = 65_536 + 300;
    let log = Log::with(size);
    assert!(log.hashes.contains_key(&(2, 0)));
    for (index, old) in [
        (0, 1),
        (65_535, 65_536),
        (65_536, 65_537),
        (size - 1, size - 1),
    ] {
        let path = tiles::inclusion(|tile| log.read(tile), index, size).unwrap();
        let leaf = log.leaves[usize::try_from(index).unwrap()];
        let root = log.frontier.root();
        assert!(merkle::verify_inclusion(&leaf, index, size, &path, &root));
        let proof = tiles::consistency(|tile| log.read(tile), old, size).unwrap();
        let past = tiles::frontier(|tile| log.read(tile), old).unwrap().root();
        assert!(merkle::verify_consistency(old, size, &past, &root, &proof));
    }
}
