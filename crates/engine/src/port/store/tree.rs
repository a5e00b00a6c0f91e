//! The tree over the receipts.

use canon::Digest;
use domain::Position;

use super::StoreFault;
use crate::port::BoxFuture;

/// The receipt log's tree. It follows the log, and whoever needs more of it has it catch up.
pub trait TreeStore: Send + Sync {
    /// Reads where the receipt log's tree stands.
    fn tree(&self) -> BoxFuture<'_, Result<Tree, StoreFault>>;

    /// Appends leaves to the tree, durably. False when the tree has another size than the caller believed.
    fn append_leaves(&self, append: TreeAppend) -> BoxFuture<'_, Result<bool, StoreFault>>;

    /// Returns the size of a sealed head with a root, however many there are.
    fn head_size(&self, root: Digest) -> BoxFuture<'_, Result<Option<u64>, StoreFault>>;

    /// Returns the index of the leaf of a Receipt, by the Receipt's key.
    fn leaf_index(&self, receipt: Position) -> BoxFuture<'_, Result<Option<u64>, StoreFault>>;

    /// Reads receipt hashes of leaves, ascending from an index; fewer at the end of the tree.
    fn leaves(&self, first: u64, count: usize) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>>;

    /// Reads hashes of a tile level, ascending from an index; fewer at the end of the level.
    fn tree_hashes(
        &self,
        level: u8,
        first: u64,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Digest>, StoreFault>>;
}

/// Where the receipt log's tree stands. Stored, so that a start never hashes the log again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The number of leaves.
    pub size: u64,
    /// The roots of its complete subtrees, largest first.
    pub peaks: Vec<Digest>,
    /// Key of the Receipt of the last leaf; Receipts after it have no leaf yet.
    pub last: Position,
}

/// Leaves to append to the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeAppend {
    /// The size of the tree before.
    pub expected_size: u64,
    /// Keys and hashes of the Receipts, in key order: one leaf each.
    pub leaves: Vec<(Position, Digest)>,
    /// Hashes that tiles keep: level, index in the level, hash.
    pub hashes: Vec<(u8, u64, Digest)>,
    /// The tree after.
    pub after: Tree,
}
