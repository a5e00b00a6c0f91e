//! Content by its digest.

use canon::Digest;
use domain::{Blob, Position};

use super::StoreFault;
use crate::port::BoxFuture;

/// Content on its way into a store. Dropping it leaves nothing behind.
pub trait Incoming: std::fmt::Debug + Send + Sync {
    /// Adds the next bytes.
    fn append(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), StoreFault>>;

    /// Stores all that was added under the digest that it has, durably.
    fn keep(self: Box<Self>, digest: Digest) -> BoxFuture<'static, Result<(), StoreFault>>;
}

/// What came of erasing content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Erased {
    /// No file of the store holds it any more.
    Gone,
    /// Nobody is given it any more, but somebody who reads an older state keeps a file from losing the bytes. The store
    /// remembers that, also after a crash, and erases them when it can.
    Held,
}

/// Content, stored under its digest. It is durable before a commit names it.
pub trait BlobStore: Send + Sync {
    /// Stores content under its digest, durably. Storing what is there already does nothing.
    fn put_blob(&self, blob: Blob) -> BoxFuture<'_, Result<(), StoreFault>>;

    /// Removes content for good, durably, and what is kept of the fold of a field that may repeat it. What is not there
    /// is left alone. Says whether the bytes of this and of every erasure before it are gone, and waits a little for that.
    fn erase_blobs(
        &self,
        field: Position,
        digests: Vec<Digest>,
    ) -> BoxFuture<'_, Result<Erased, StoreFault>>;

    /// Opens a place for content whose digest is known only when all of it has arrived; none when this store takes
    /// content only whole.
    fn incoming(&self) -> BoxFuture<'_, Result<Option<Box<dyn Incoming>>, StoreFault>> {
        Box::pin(async { Ok(None) })
    }

    /// Reads a part of content: at most this many bytes from an offset on, unchecked. None when it is not there.
    fn blob_piece(
        &self,
        digest: Digest,
        offset: u64,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>> {
        Box::pin(async move {
            let whole = self.blob_as_stored(digest).await?;
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let piece = |whole: Vec<u8>| whole.into_iter().skip(start).take(bytes_max).collect();
            Ok(whole.map(piece))
        })
    }

    /// Reads content by digest.
    fn blob(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>>;

    /// Reads what is stored under a digest, whether it hashes to it or not: for verdicts on damaged content.
    fn blob_as_stored(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreFault>>;

    /// Reads several at once, in the order asked.
    fn blobs_as_stored(
        &self,
        digests: Vec<Digest>,
    ) -> BoxFuture<'_, Result<Vec<Option<Vec<u8>>>, StoreFault>> {
        Box::pin(async move {
            let mut found = Vec::with_capacity(digests.len());
            for digest in digests {
                found.push(self.blob_as_stored(digest).await?);
            }
            Ok(found)
        })
    }
}
