//! A whole log of receipts, one after the other in the order of their leaves: bytes, links and tree.
//!
//! Keeps a hash per receipt and a head per chain, never the receipts. Signatures and checkpoints are for the caller,
//! who compares the root when the size is that of a signed head.

use std::collections::{BTreeMap, BTreeSet};

use canon::Digest;

use crate::merkle::{self, Frontier};
use crate::stream::{self, CheckedReceipt, Refusal};
use crate::verify::Code;

/// The receipts walked so far.
#[derive(Debug, Clone)]
pub struct Walk {
    frontier: Frontier,
    heads: BTreeMap<String, Digest>,
    known: BTreeSet<Digest>,
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            frontier: Frontier::EMPTY,
            heads: BTreeMap::new(),
            known: BTreeSet::new(),
        }
    }
}

/// A link that does not lead to the receipt before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrokenLink {
    /// Missing or another one.
    pub code: Code,
    /// The hash of the receipt before; none when there is none.
    pub expected: Option<Digest>,
    /// The hash that the receipt names.
    pub found: Option<Digest>,
}

/// What a step found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step<'a> {
    /// The receipt, its bytes checked.
    pub receipt: CheckedReceipt<'a>,
    /// Whether its link holds.
    pub link: Result<(), BrokenLink>,
}

impl Walk {
    /// Takes the next receipt: checks its bytes and its link, and adds its leaf.
    ///
    /// # Errors
    /// The bytes are not a receipt that holds together; it gets no leaf.
    pub fn step<'a>(&mut self, bytes: &'a [u8]) -> Result<Step<'a>, Refusal> {
        let receipt = stream::check(bytes)?;
        let link = self.link(&receipt);
        let session = (!receipt.is_replay).then_some(&*receipt.session_id);
        self.pass(session, receipt.hash);
        Ok(Step { receipt, link })
    }

    /// Adds the leaf of a receipt that is not there to be read, such as a lost one whose hash is known from elsewhere.
    /// The session is that of the chain it advanced.
    pub fn pass(&mut self, session: Option<&str>, hash: Digest) {
        let frontier = std::mem::replace(&mut self.frontier, Frontier::EMPTY);
        self.frontier = merkle::append(frontier, merkle::leaf(&hash)).0;
        self.known.insert(hash);
        let Some(session) = session else { return };
        match self.heads.get_mut(session) {
            Some(head) => *head = hash,
            None => {
                self.heads.insert(session.to_owned(), hash);
            }
        }
    }

    /// Takes note of a receipt of another log, off which replays here may hang. It gets no leaf.
    pub fn add_known(&mut self, hash: Digest) {
        self.known.insert(hash);
    }

    /// Returns the number of leaves.
    pub fn size(&self) -> u64 {
        self.frontier.size()
    }

    /// Returns the root over them.
    pub fn root(&self) -> Digest {
        self.frontier.root()
    }

    /// Returns the tree.
    pub fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    fn link(&self, receipt: &CheckedReceipt<'_>) -> Result<(), BrokenLink> {
        let found = receipt.previous_hash;
        let head = match receipt.is_replay {
            true => None,
            false => self.heads.get(&*receipt.session_id).copied(),
        };
        let broken = |code| BrokenLink {
            code,
            expected: head,
            found,
        };
        match (head, found) {
            (Some(head), Some(found)) if head == found => Ok(()),
            (Some(_), _) => Err(broken(Code::ChainMismatch)),
            // The first of a chain, or one that hangs off: a fork and a replay name a receipt of another chain.
            (None, None) => Ok(()),
            (None, Some(other)) if self.known.contains(&other) => Ok(()),
            (None, Some(_)) => Err(broken(Code::PreviousReceiptMissing)),
        }
    }
}
