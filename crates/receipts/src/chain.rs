//! The head of a chain: the hash of its latest entry and how many entries it has.
//!
//! Serves the receipts of a session and trust records alike. The head is its own small value, so that
//! adding an entry never reads the ones before.

use canon::Digest;

/// Where a chain stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The hash that the next entry must name; none before the first.
    pub hash: Option<Digest>,
    /// How many entries this chain has itself.
    pub count: u64,
}

impl Head {
    /// The head of a chain without entries.
    pub const EMPTY: Self = Self {
        hash: None,
        count: 0,
    };

    /// Returns the head after an entry that named this head and has the given hash.
    #[must_use]
    pub const fn advanced(self, hash: Digest) -> Self {
        Self {
            hash: Some(hash),
            count: self.count + 1,
        }
    }
}
