//! What is kept of the folds of fields: a projection that follows the log, made by whoever folds them.

use domain::Position;

use super::{BoxFuture, StoreFault};

/// Keeps segments of the folds of fields; a store that keeps none has every field read from the log.
pub trait SegmentStore {
    /// Reads the segment of a field that begins right after a sequence, by the field's key.
    fn field_segment(
        &self,
        _field: Position,
        _after: u64,
    ) -> BoxFuture<'_, Result<Option<StoredSegment>, StoreFault>> {
        Box::pin(async { Ok(None) })
    }

    /// Keeps a segment, in the place of those that reach into it or beyond.
    fn put_field_segment(&self, _segment: FieldSegment) -> BoxFuture<'_, Result<(), StoreFault>> {
        Box::pin(async { Ok(()) })
    }

    /// Forgets the segments of a field.
    fn drop_field_segments(&self, _field: Position) -> BoxFuture<'_, Result<(), StoreFault>> {
        Box::pin(async { Ok(()) })
    }
}

/// A segment as a store has it, or why what it has is not the segment that was handed over.
pub type StoredSegment = Result<FieldSegment, UnusableSegment>;

/// A segment that is not what was handed over, or cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnusableSegment(pub Box<str>);

/// A stretch of a field's log as reading it made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSegment {
    /// The key of the field's document.
    pub field: Position,
    /// The sequence of the entry before its first.
    pub after: u64,
    /// The sequence of its last entry.
    pub last: u64,
    /// The position of the event of that entry.
    pub position: Position,
    /// What the crate `field` made of them.
    pub bytes: Vec<u8>,
}
