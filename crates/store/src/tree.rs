//! The receipt log's tree as rows: leaves, the hashes that tiles keep, and where the tree stands.
//!
//! Computes no hash. The size that an append expects is checked in its transaction, so that a leaf gets one index
//! however many append.

use std::collections::BTreeSet;

use canon::Digest;
use domain::{Position, ResourceKind};
use engine::port::{CommitError, StoreFault, Tree, TreeAppend};
use rusqlite::{Connection, OptionalExtension};

use crate::fault::{commit_fault, fault};
use crate::row::{DocumentRow, sql};
use crate::write::sealed_head;

const HASH_BYTES: usize = 32;

pub(crate) const TREE: &str = "SELECT size, peaks, last FROM tree WHERE one = 1";
pub(crate) const LEAF_INDEX: &str = "SELECT idx FROM leaves WHERE receipt = ?1";
pub(crate) const LEAVES: &str =
    "SELECT receipt, hash FROM leaves WHERE idx >= ?1 ORDER BY idx LIMIT ?2";
pub(crate) const TREE_HASHES: &str =
    "SELECT hash FROM tree_hashes WHERE level = ?1 AND idx >= ?2 ORDER BY idx LIMIT ?3";

/// Reads where the tree stands.
pub(crate) fn tree(connection: &Connection) -> Result<Tree, StoreFault> {
    let row = connection
        .prepare_cached(TREE)
        .and_then(|mut select| {
            let read =
                |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?, row.get(2)?));
            select.query_row([], read).optional()
        })
        .map_err(fault)?;
    let Some((size, peaks, last)) = row else {
        return Ok(Tree {
            size: 0,
            peaks: Vec::new(),
            last: Position::START,
        });
    };
    let (peaks, rest) = peaks.as_chunks::<HASH_BYTES>();
    if !rest.is_empty() {
        return Err(StoreFault::new(
            "the receipt log's tree is damaged: its peaks are not hashes; run `reprise log verify`",
        ));
    }
    Ok(Tree {
        size,
        peaks: peaks.iter().copied().map(Digest::from_bytes).collect(),
        last: Position(last),
    })
}

pub(crate) const HEAD_SIZE: &str = "SELECT size FROM heads WHERE root = ?1";

/// Returns the size of a sealed head with a root.
pub(crate) fn head_size(connection: &Connection, root: &Digest) -> Result<Option<u64>, StoreFault> {
    connection
        .prepare_cached(HEAD_SIZE)
        .and_then(|mut select| {
            select
                .query_row([root.as_bytes()], |row| row.get(0))
                .optional()
        })
        .map_err(fault)
}

/// Writes down a sealed head by its root. Another one of the same root has the same size.
pub(crate) fn put_head(connection: &Connection, size: u64, root: &Digest) -> rusqlite::Result<()> {
    let insert = "INSERT OR IGNORE INTO heads(root, size) VALUES (?1, ?2)";
    connection
        .prepare_cached(insert)?
        .execute((root.as_bytes(), sql(size)))
        .map(drop)
}

/// Writes down every sealed head by its root.
pub(crate) fn put_heads(connection: &Connection) -> Result<(), StoreFault> {
    for (size, root) in sealed_heads(connection)? {
        put_head(connection, size, &root).map_err(fault)?;
    }
    Ok(())
}

/// Returns size and root of each sealed head. One that cannot be read is left out: `log verify` finds it.
pub(crate) fn sealed_heads(connection: &Connection) -> Result<BTreeSet<(u64, Digest)>, StoreFault> {
    let text = format!(
        "SELECT {} FROM documents INDEXED BY documents_kind WHERE kind = ?1 AND kind <> 4",
        DocumentRow::COLUMNS
    );
    let read = || {
        let mut select = connection.prepare(&text)?;
        let mut rows = select.query([ResourceKind::Batch.number()])?;
        let mut heads = BTreeSet::new();
        while let Some(row) = rows.next()? {
            let document = DocumentRow::read(row)?.document();
            heads.extend(document.ok().as_ref().and_then(sealed_head));
        }
        Ok(heads)
    };
    read().map_err(fault)
}

/// Returns the index of the leaf of a Receipt.
pub(crate) fn leaf_index(
    connection: &Connection,
    receipt: Position,
) -> Result<Option<u64>, StoreFault> {
    connection
        .prepare_cached(LEAF_INDEX)
        .and_then(|mut select| {
            select
                .query_row([sql(receipt.0)], |row| row.get(0))
                .optional()
        })
        .map_err(fault)
}

/// Reads leaves: the key and the hash of each Receipt, ascending from an index.
pub(crate) fn leaves(
    connection: &Connection,
    first: u64,
    count: usize,
) -> Result<Vec<(Position, Digest)>, StoreFault> {
    let read =
        |row: &rusqlite::Row<'_>| Ok((Position(row.get(0)?), Digest::from_bytes(row.get(1)?)));
    connection
        .prepare_cached(LEAVES)
        .and_then(|mut select| {
            select
                .query_map((sql(first), sql(count as u64)), read)?
                .collect()
        })
        .map_err(fault)
}

/// Reads hashes of a tile level, ascending from an index.
pub(crate) fn hashes(
    connection: &Connection,
    level: u8,
    first: u64,
    count: usize,
) -> Result<Vec<Digest>, StoreFault> {
    connection
        .prepare_cached(TREE_HASHES)
        .and_then(|mut select| {
            let values = (level, sql(first), sql(count as u64));
            select
                .query_map(values, |row| Ok(Digest::from_bytes(row.get(0)?)))?
                .collect()
        })
        .map_err(fault)
}

/// Appends leaves in the transaction under way; false, and nothing written, when the tree has another size.
pub(crate) fn append(connection: &Connection, append: &TreeAppend) -> Result<bool, CommitError> {
    let now = tree(connection).map_err(CommitError::Fault)?;
    if now.size != append.expected_size {
        return Ok(false);
    }
    if append.expected_size + append.leaves.len() as u64 != append.after.size {
        return Err(CommitError::Fault(StoreFault::new(
            "a tree grew by another number of leaves than it was given, which is a bug of this program; nothing was written",
        )));
    }
    let write = || -> rusqlite::Result<()> {
        for (leaf, index) in append.leaves.iter().zip(append.expected_size..) {
            put_leaf(connection, index, *leaf)?;
        }
        for hash in &append.hashes {
            put_hash(connection, *hash)?;
        }
        let after = &append.after;
        put_state(connection, after.size, &after.peaks, after.last)
    };
    write().map_err(commit_fault)?;
    Ok(true)
}

/// Writes a leaf: the key and the hash of its Receipt.
pub(crate) fn put_leaf(
    connection: &Connection,
    index: u64,
    (receipt, hash): (Position, Digest),
) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT INTO leaves(idx, receipt, hash) VALUES (?1, ?2, ?3)")?
        .execute((sql(index), sql(receipt.0), hash.as_bytes()))
        .map(drop)
}

/// Writes a hash that tiles keep: its level, its index there, itself.
pub(crate) fn put_hash(
    connection: &Connection,
    (level, index, hash): (u8, u64, Digest),
) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT INTO tree_hashes(level, idx, hash) VALUES (?1, ?2, ?3)")?
        .execute((level, sql(index), hash.as_bytes()))
        .map(drop)
}

/// Writes where the tree stands.
pub(crate) fn put_state(
    connection: &Connection,
    size: u64,
    peaks: &[Digest],
    last: Position,
) -> rusqlite::Result<()> {
    let peaks = peaks.iter().flat_map(|peak| peak.as_bytes());
    let peaks: Vec<u8> = peaks.copied().collect();
    connection
        .prepare_cached(
            "INSERT INTO tree(one, size, peaks, last) VALUES (1, ?1, ?2, ?3) ON CONFLICT(one) \
             DO UPDATE SET size = excluded.size, peaks = excluded.peaks, last = excluded.last",
        )?
        .execute((sql(size), peaks, sql(last.0)))
        .map(drop)
}
