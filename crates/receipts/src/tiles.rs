//! Tiles of the Merkle log in the C2SP tlog-tiles layout, and the proofs made from them.
//!
//! A tile holds up to 256 hashes of one level; levels are eight tree levels apart. Where tiles are
//! kept is the caller's business: proofs take a function that returns the bytes of a tile.

use std::collections::{BTreeMap, BTreeSet};

use canon::Digest;

use crate::merkle::{Frontier, TILE_HEIGHT, fold_peaks, node};

/// How many hashes a full tile holds.
pub const TILE_WIDTH: u64 = 1 << TILE_HEIGHT;

const HASH_BYTES: usize = 32;

/// The place of a tile and how many of its hashes are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tile {
    /// The level, 0 for leaves.
    pub level: u8,
    /// The place within the level.
    pub index: u64,
    /// The number of hashes, 1 to 256; below 256 the tile is partial.
    pub width: u16,
}

/// A proof could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// The question is about leaves that the tree does not have.
    #[error("no such leaves in a tree of size {0}")]
    OutOfRange(u64),
    /// A tile that the proof needs is missing or shorter than asked for.
    #[error("tile `{}` is missing or short", .0.path())]
    TileMissing(Tile),
}

impl Tile {
    /// Returns the path below the log's address: `tile/<level>/<index>[.p/<width>]`.
    pub fn path(&self) -> String {
        format!("tile/{}/{}", self.level, place(self.index, self.width))
    }

    /// Reads a path as [`Tile::path`] writes it; any other text gives nothing.
    pub fn parse(path: &str) -> Option<Self> {
        let (level, rest) = path.strip_prefix("tile/")?.split_once('/')?;
        let (index, width) = parse_place(rest)?;
        let tile = Self {
            level: level.parse().ok().filter(|level| *level < 64)?,
            index,
            width,
        };
        (tile.path() == path).then_some(tile)
    }

    /// Returns the tile at this place in a tree of this size, as wide as it is there.
    ///
    /// Nothing if the tree does not reach it.
    pub fn at(level: u8, index: u64, size: u64) -> Option<Self> {
        let hashes = size.checked_shr(u32::from(level) * TILE_HEIGHT)?;
        let width = hashes.checked_sub(index.checked_mul(TILE_WIDTH)?)?;
        let width = u16::try_from(width.min(TILE_WIDTH)).ok()?;
        (width > 0).then_some(Self {
            level,
            index,
            width,
        })
    }
}

/// Returns the path of a bundle of entries: `tile/entries/<index>[.p/<width>]`.
pub fn entries_path(index: u64, width: u16) -> String {
    format!("tile/entries/{}", place(index, width))
}

/// Reads a path as [`entries_path`] writes it: index and width.
pub fn parse_entries_path(path: &str) -> Option<(u64, u16)> {
    let (index, width) = parse_place(path.strip_prefix("tile/entries/")?)?;
    (entries_path(index, width) == path).then_some((index, width))
}

/// Returns the bytes of a tile.
pub fn tile_bytes(hashes: &[Digest]) -> Vec<u8> {
    hashes
        .iter()
        .flat_map(|hash| hash.as_bytes())
        .copied()
        .collect()
}

/// Returns the bytes of a bundle of entries; an entry is the raw receipt hash.
pub fn entry_bundle(receipt_hashes: &[Digest]) -> Vec<u8> {
    const LENGTH: [u8; 2] = [0, HASH_BYTES as u8];
    let entries = receipt_hashes.iter();
    entries
        .flat_map(|hash| LENGTH.iter().chain(hash.as_bytes()))
        .copied()
        .collect()
}

/// Makes the proof that the leaf at `index` is in the tree of this size, from the leaf upwards.
///
/// `read` gets a tile and returns its bytes; it may return more hashes than the width asks for, as a
/// log that has grown since does.
///
/// # Errors
/// The index lies outside the tree, or a tile is missing.
pub fn inclusion(
    read: impl Fn(Tile) -> Option<Vec<u8>>,
    index: u64,
    size: u64,
) -> Result<Vec<Digest>, ProofError> {
    hash_ranges(read, &inclusion_ranges(index, size)?, size)
}

/// Lists the tiles that [`inclusion`] reads, for callers that must fetch them beforehand.
///
/// # Errors
/// The index lies outside the tree.
pub fn inclusion_tiles(index: u64, size: u64) -> Result<Vec<Tile>, ProofError> {
    Ok(tiles_of(&inclusion_ranges(index, size)?, size))
}

/// Makes the proof that the tree of the old size is the beginning of the one of the new size.
///
/// # Errors
/// The old size is larger than the new one, or a tile is missing.
pub fn consistency(
    read: impl Fn(Tile) -> Option<Vec<u8>>,
    old_size: u64,
    new_size: u64,
) -> Result<Vec<Digest>, ProofError> {
    hash_ranges(read, &consistency_ranges(old_size, new_size)?, new_size)
}

/// Lists the tiles that [`consistency`] reads.
///
/// # Errors
/// The old size is larger than the new one.
pub fn consistency_tiles(old_size: u64, new_size: u64) -> Result<Vec<Tile>, ProofError> {
    Ok(tiles_of(&consistency_ranges(old_size, new_size)?, new_size))
}

/// Rebuilds the frontier of a tree of this size from tiles, also of a size long past.
///
/// # Errors
/// A tile is missing.
pub fn frontier(read: impl Fn(Tile) -> Option<Vec<u8>>, size: u64) -> Result<Frontier, ProofError> {
    let ranges: Vec<Range> = peaks(Range { from: 0, to: size })
        .map(|peak| peak.range())
        .collect();
    let peaks = hash_ranges(read, &ranges, size)?;
    Frontier::from_parts(size, peaks).ok_or(ProofError::OutOfRange(size))
}

/// Leaves `from..to` that are one subtree in the sense of RFC 6962.
#[derive(Clone, Copy)]
struct Range {
    from: u64,
    to: u64,
}

/// A complete subtree of 2^height leaves, the index-th of its height.
#[derive(Clone, Copy)]
struct Peak {
    height: u32,
    index: u64,
}

impl Range {
    /// Splits as RFC 6962 does: the left part is the largest power of two below the length.
    fn split(self) -> Option<(Self, Self)> {
        let length = self.to - self.from;
        (length > 1).then(|| {
            let middle = self.from + (1 << (length - 1).ilog2());
            let left = Self {
                from: self.from,
                to: middle,
            };
            let right = Self {
                from: middle,
                to: self.to,
            };
            (left, right)
        })
    }
}

impl Peak {
    fn range(self) -> Range {
        Range {
            from: self.index << self.height,
            to: (self.index + 1) << self.height,
        }
    }

    /// Returns the tile that holds this subtree, as wide as a tree of this size has it, and the
    /// positions of the subtree's hashes in it.
    fn in_tile(self, size: u64) -> Option<(Tile, std::ops::Range<usize>)> {
        let level = u8::try_from(self.height / TILE_HEIGHT).ok()?;
        let inner = self.height % TILE_HEIGHT;
        let first = self.index << inner;
        let tile = Tile::at(level, first / TILE_WIDTH, size)?;
        let offset = usize::try_from(first % TILE_WIDTH).ok()?;
        Some((tile, offset..offset + (1 << inner)))
    }
}

/// The complete subtrees that make up a range, largest and leftmost first.
fn peaks(range: Range) -> impl Iterator<Item = Peak> {
    let length = range.to - range.from;
    let heights = (0..u64::BITS).rev();
    let mut at = range.from;
    heights
        .filter(move |height| length >> height & 1 == 1)
        .map(move |height| {
            let peak = Peak {
                height,
                index: at >> height,
            };
            at += 1 << height;
            peak
        })
}

fn inclusion_ranges(index: u64, size: u64) -> Result<Vec<Range>, ProofError> {
    if index >= size {
        return Err(ProofError::OutOfRange(size));
    }
    let mut ranges = Vec::new();
    let mut range = Range { from: 0, to: size };
    while let Some((left, right)) = range.split() {
        let (inside, sibling) = if index < left.to {
            (left, right)
        } else {
            (right, left)
        };
        ranges.push(sibling);
        range = inside;
    }
    ranges.reverse();
    Ok(ranges)
}

fn consistency_ranges(old_size: u64, new_size: u64) -> Result<Vec<Range>, ProofError> {
    if old_size > new_size {
        return Err(ProofError::OutOfRange(new_size));
    }
    let mut ranges = Vec::new();
    let mut range = Range {
        from: 0,
        to: new_size,
    };
    if old_size == 0 || old_size == new_size {
        return Ok(ranges);
    }
    // Walks down to the subtree that ends where the old tree ends; what hangs off the way is the
    // proof.
    while range.to != old_size
        && let Some((left, right)) = range.split()
    {
        if old_size <= left.to {
            ranges.push(right);
            range = left;
        } else {
            ranges.push(left);
            range = right;
        }
    }
    // If that subtree is the whole old tree, the verifier has its hash already.
    if range.from != 0 {
        ranges.push(range);
    }
    ranges.reverse();
    Ok(ranges)
}

fn tiles_of(ranges: &[Range], size: u64) -> Vec<Tile> {
    let places = ranges.iter().copied().flat_map(peaks);
    let tiles: BTreeSet<Tile> = places
        .filter_map(|peak| peak.in_tile(size).map(|(tile, _)| tile))
        .collect();
    tiles.into_iter().collect()
}

fn hash_ranges(
    read: impl Fn(Tile) -> Option<Vec<u8>>,
    ranges: &[Range],
    size: u64,
) -> Result<Vec<Digest>, ProofError> {
    let mut tiles: BTreeMap<Tile, Vec<Digest>> = BTreeMap::new();
    for tile in tiles_of(ranges, size) {
        let hashes = read(tile).as_deref().map(split_hashes).unwrap_or_default();
        if hashes.len() < usize::from(tile.width) {
            return Err(ProofError::TileMissing(tile));
        }
        tiles.insert(tile, hashes);
    }
    let hash_of = |peak: Peak| {
        let (tile, positions) = peak.in_tile(size)?;
        Some(complete_root(tiles.get(&tile)?.get(positions)?))
    };
    let hash_range = |range: &Range| {
        let hashes: Option<Vec<Digest>> = peaks(*range).map(hash_of).collect();
        hashes.map(|hashes| fold_peaks(&hashes))
    };
    let hashes: Option<Vec<Digest>> = ranges.iter().map(hash_range).collect();
    hashes.ok_or(ProofError::OutOfRange(size))
}

fn split_hashes(bytes: &[u8]) -> Vec<Digest> {
    let chunks = bytes.as_chunks::<HASH_BYTES>().0.iter();
    chunks.map(|chunk| Digest::from_bytes(*chunk)).collect()
}

/// The root over a power of two of hashes.
fn complete_root(hashes: &[Digest]) -> Digest {
    match hashes {
        [one] => *one,
        [] => fold_peaks(&[]),
        _ => {
            let (left, right) = hashes.split_at(hashes.len() / 2);
            node(&complete_root(left), &complete_root(right))
        }
    }
}

/// Writes an index in groups of three digits, all but the last marked with `x`.
fn place(index: u64, width: u16) -> String {
    let mut text = format!("{:03}", index % 1000);
    let mut rest = index / 1000;
    while rest > 0 {
        text = format!("x{:03}/{text}", rest % 1000);
        rest /= 1000;
    }
    if u64::from(width) < TILE_WIDTH {
        text.push_str(&format!(".p/{width}"));
    }
    text
}

/// Reads what [`place`] writes; more than that too, so the caller compares the round trip.
fn parse_place(text: &str) -> Option<(u64, u16)> {
    let (index, width) = match text.split_once(".p/") {
        Some((index, width)) => (index, width.parse().ok().filter(|width| *width > 0)?),
        None => (text, u16::try_from(TILE_WIDTH).ok()?),
    };
    let mut value = 0_u64;
    for group in index.split('/') {
        let digits: u64 = group.trim_start_matches('x').parse().ok()?;
        value = value.checked_mul(1000)?.checked_add(digits)?;
    }
    Some((value, width))
}
