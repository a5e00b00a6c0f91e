//! Content on its way in and out, piece by piece: whatever its length, little of it is in memory.

use std::sync::Arc;

use canon::Digest;
use domain::Blob;
use sha2::{Digest as _, Sha256};

use crate::port::{Incoming, Store};
use crate::refused::Refused;

/// What is held of one transfer.
const PIECE_BYTES: usize = 256 * 1024;

/// Content that arrives. It is hashed as it does; dropping it leaves nothing behind.
#[derive(Debug)]
pub struct Upload {
    store: Arc<dyn Store>,
    hasher: Sha256,
    bytes: u64,
    /// What was not handed on yet: all of it as long as there is little.
    buffer: Vec<u8>,
    /// Where the rest is; none when the store takes content only whole.
    incoming: Option<Box<dyn Incoming>>,
    is_whole: bool,
}

impl Upload {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            hasher: Sha256::new(),
            bytes: 0,
            buffer: Vec::new(),
            incoming: None,
            is_whole: false,
        }
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// The store has no room, or failed.
    pub async fn push(&mut self, piece: &[u8]) -> Result<(), Refused> {
        self.hasher.update(piece);
        self.bytes += piece.len() as u64;
        self.buffer.extend_from_slice(piece);
        if self.buffer.len() < PIECE_BYTES || self.is_whole {
            return Ok(());
        }
        if self.incoming.is_none() {
            self.incoming = self.store.incoming().await?;
            self.is_whole = self.incoming.is_none();
        }
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), Refused> {
        if let Some(incoming) = &mut self.incoming {
            incoming.append(std::mem::take(&mut self.buffer)).await?;
        }
        Ok(())
    }

    /// Returns the digest and the length of what has arrived.
    pub fn arrived(&self) -> (Digest, u64) {
        let digest = Digest::from_bytes(self.hasher.clone().finalize().into());
        (digest, self.bytes)
    }

    /// Stores it under its digest, durably.
    pub(crate) async fn keep(mut self) -> Result<(), Refused> {
        let (digest, _) = self.arrived();
        self.flush().await?;
        match self.incoming.take() {
            Some(incoming) => incoming.keep(digest).await?,
            None => {
                let bytes = std::mem::take(&mut self.buffer);
                self.store.put_blob(Blob { digest, bytes }).await?;
            }
        }
        Ok(())
    }
}

/// Content that is sent. The last piece leaves only if all of it hashes to its digest.
#[derive(Debug)]
pub struct Download {
    store: Arc<dyn Store>,
    digest: Digest,
    hasher: Sha256,
    sent: u64,
    bytes: u64,
}

impl Download {
    pub(crate) fn new(store: Arc<dyn Store>, digest: Digest, bytes: u64) -> Self {
        Self {
            store,
            digest,
            hasher: Sha256::new(),
            sent: 0,
            bytes,
        }
    }

    /// Returns how long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the next piece; none at the end.
    ///
    /// # Errors
    /// The content is gone or damaged, or the store failed.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Refused> {
        if self.sent >= self.bytes {
            return Ok(None);
        }
        let found = self
            .store
            .blob_piece(self.digest, self.sent, PIECE_BYTES)
            .await?;
        let piece = found.ok_or(Refused::ContentUnavailable { reason: "redacted" })?;
        self.hasher.update(&piece);
        self.sent += piece.len() as u64;
        let is_short = piece.is_empty() || self.sent > self.bytes;
        let is_last = self.sent >= self.bytes;
        let hash = || Digest::from_bytes(self.hasher.clone().finalize().into());
        if is_short || is_last && hash() != self.digest {
            return Err(Refused::Store {
                detail: format!(
                    "blob `{}` is damaged: its bytes hash to something else; run `reprise log verify`",
                    self.digest
                ),
            });
        }
        Ok(Some(piece))
    }
}
