//! The append-only Merkle log over receipt hashes, RFC 6962: appending with a frontier, roots, and the
//! checks of inclusion and consistency proofs.
//!
//! Proofs are made in `tiles`. Nothing here reads the log: an append needs the frontier only.

use canon::{Digest, sha256, sha256_parts};

/// Returns the leaf for a receipt hash.
pub fn leaf(receipt_hash: &Digest) -> Digest {
    sha256_parts([&[0][..], receipt_hash.as_bytes()])
}

/// Returns the parent of two nodes.
pub fn node(left: &Digest, right: &Digest) -> Digest {
    sha256_parts([&[1][..], left.as_bytes(), right.as_bytes()])
}

/// The size of a log and the roots of its complete subtrees, largest first.
///
/// It is all that an append and a root need, and at most 64 hashes long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    peaks: Vec<Digest>,
}

/// A hash that tiles keep: of a complete subtree whose height is a multiple of eight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredHash {
    /// The level of the tile.
    pub level: u8,
    /// The place in that level, counted over all its tiles.
    pub index: u64,
    /// The hash.
    pub hash: Digest,
}

impl Frontier {
    /// The frontier of a log without entries.
    pub const EMPTY: Self = Self {
        size: 0,
        peaks: Vec::new(),
    };

    /// Takes a stored frontier.
    ///
    /// Returns nothing if the number of hashes does not fit the size.
    pub fn from_parts(size: u64, peaks: Vec<Digest>) -> Option<Self> {
        let fits = usize::try_from(size.count_ones()) == Ok(peaks.len());
        fits.then_some(Self { size, peaks })
    }

    /// Returns the number of leaves.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the roots of the complete subtrees, largest first.
    pub fn peaks(&self) -> &[Digest] {
        &self.peaks
    }

    /// Returns the root of the whole tree.
    pub fn root(&self) -> Digest {
        fold_peaks(&self.peaks)
    }
}

/// Adds a leaf; returns the new frontier and the hashes to store in tiles.
pub fn append(mut frontier: Frontier, leaf: Digest) -> (Frontier, Vec<StoredHash>) {
    let mut stored = vec![StoredHash {
        level: 0,
        index: frontier.size,
        hash: leaf,
    }];
    let mut hash = leaf;
    // Each trailing one bit of the size is a complete subtree that this leaf helps to double.
    for height in 1..=frontier.size.trailing_ones() {
        if let Some(left) = frontier.peaks.pop() {
            hash = node(&left, &hash);
        }
        if height % TILE_HEIGHT == 0 {
            stored.push(StoredHash {
                level: u8::try_from(height / TILE_HEIGHT).unwrap_or(u8::MAX),
                index: frontier.size >> height,
                hash,
            });
        }
    }
    frontier.peaks.push(hash);
    frontier.size += 1;
    (frontier, stored)
}

/// How many levels of the tree one tile spans.
pub(crate) const TILE_HEIGHT: u32 = 8;

/// Joins the roots of complete subtrees, largest first, to the root of their tree.
pub(crate) fn fold_peaks(peaks: &[Digest]) -> Digest {
    let mut from_right = peaks.iter().rev();
    match from_right.next() {
        None => sha256(b""),
        Some(last) => from_right.fold(*last, |right, left| node(left, &right)),
    }
}

/// Tells whether a proof shows the leaf at this index in the tree with this size and root.
pub fn verify_inclusion(
    leaf: &Digest,
    index: u64,
    size: u64,
    path: &[Digest],
    root: &Digest,
) -> bool {
    inclusion_root(leaf, index, size, path) == Some(*root)
}

/// Returns the root that an inclusion path leads to; none when it is no path from this leaf in a tree of this size.
pub fn inclusion_root(leaf: &Digest, index: u64, size: u64, path: &[Digest]) -> Option<Digest> {
    if index >= size {
        return None;
    }
    let (mut at, mut last) = (index, size - 1);
    let mut hash = *leaf;
    for sibling in path {
        if last == 0 {
            return None;
        }
        if at & 1 == 1 || at == last {
            hash = node(sibling, &hash);
            skip_lone_levels(&mut at, &mut last);
        } else {
            hash = node(&hash, sibling);
        }
        at >>= 1;
        last >>= 1;
    }
    (last == 0).then_some(hash)
}

/// Tells whether a proof shows the older tree to be the beginning of the newer one.
pub fn verify_consistency(
    old_size: u64,
    new_size: u64,
    old_root: &Digest,
    new_root: &Digest,
    path: &[Digest],
) -> bool {
    if old_size > new_size {
        return false;
    }
    if old_size == new_size {
        return path.is_empty() && old_root == new_root;
    }
    if old_size == 0 {
        // Every tree extends the empty one; its root is still a known value.
        return path.is_empty() && *old_root == sha256(b"");
    }
    // A complete old tree is itself the first step and is left out of the proof.
    let own = old_size.is_power_of_two().then_some(old_root);
    let mut steps = own.into_iter().chain(path);
    let Some(first) = steps.next() else {
        return false;
    };
    let (mut at, mut last) = (old_size - 1, new_size - 1);
    let shared = at.trailing_ones();
    at >>= shared;
    last >>= shared;
    let (mut old_hash, mut new_hash) = (*first, *first);
    for step in steps {
        if last == 0 {
            return false;
        }
        if at & 1 == 1 || at == last {
            old_hash = node(step, &old_hash);
            new_hash = node(step, &new_hash);
            skip_lone_levels(&mut at, &mut last);
        } else {
            new_hash = node(&new_hash, step);
        }
        at >>= 1;
        last >>= 1;
    }
    last == 0 && old_hash == *old_root && new_hash == *new_root
}

/// Climbs the levels at which the right edge of the tree has no sibling.
fn skip_lone_levels(at: &mut u64, last: &mut u64) {
    while *at & 1 == 0 && *at != 0 {
        *at >>= 1;
        *last >>= 1;
    }
}
