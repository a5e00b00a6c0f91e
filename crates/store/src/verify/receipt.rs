//! Receipts against the events that issued them, their chains, and the tree over them.
//!
//! Says nothing about signatures: which keys count is not in the log.

use std::collections::BTreeMap;

use canon::{Digest, sha256};
use domain::{Document, Event, Kind, Position, ResourceKind, State, payload};
use receipts::merkle::{self, Frontier};
use receipts::walk::Walk;

use super::Check;
use crate::audit::AuditError;
use crate::fold::ProblemSubject;

/// What an event says of the receipt it issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Issued {
    position: Position,
    id: Box<str>,
    session: Option<Box<str>>,
    hash: Digest,
    /// Digest of the bytes.
    pub(super) content: Digest,
    /// True when another server issued it: it is in no chain and no tree of this log, and replays hang off it.
    imported: bool,
}

impl Issued {
    pub(super) fn read(event: &Event, position: Position) -> Option<Self> {
        let said = payload::Receipt::of(&event.payload);
        Some(Self {
            position,
            id: event.resource.id.clone(),
            session: event.session_id.as_ref().map(|id| id.as_str().into()),
            hash: said.receipt_hash()?,
            content: said.content_sha256()?,
            imported: event.kind() == Ok(Kind::ReceiptImported),
        })
    }

    /// Returns what the document of a receipt says, when the event that issued it is lost.
    pub(super) fn of_document(document: &Document) -> Option<Self> {
        let State::Receipt(receipt) = &document.state else {
            return None;
        };
        Some(Self {
            position: document.key,
            id: document.id.clone(),
            session: Some(receipt.session_id.as_str().into()),
            hash: receipt.receipt_hash,
            content: receipt.content,
            imported: receipt.imported,
        })
    }
}

impl Check<'_> {
    pub(super) fn receipts(&mut self) -> Result<(), AuditError> {
        let issued = std::mem::take(&mut self.issued);
        // Behind an issue that cannot be read, chains and tree cannot be judged.
        for key in self.damaged.difference(&self.gone) {
            let document = self.folded.find_key(self.audit, *key)?;
            if document.is_some_and(|document| document.state.kind() == ResourceKind::Receipt) {
                return Ok(());
            }
        }
        let mut walk = Walk::default();
        for receipt in &issued {
            self.report.receipts += 1;
            if receipt.imported {
                walk.add_known(receipt.hash);
                self.foreign(receipt)?;
                continue;
            }
            let bytes = self.audit.blob(&receipt.content)?;
            let Some(bytes) = bytes.filter(|bytes| sha256(bytes) == receipt.content) else {
                // A lost or damaged blob was reported with the blobs.
                walk.pass(receipt.session.as_deref(), receipt.hash);
                continue;
            };
            let problem = match walk.step(&bytes) {
                Err(refusal) => Some(refusal.to_string()),
                Ok(step) if *step.receipt.receipt_id != *receipt.id => Some(format!(
                    "its bytes are those of `{}`",
                    step.receipt.receipt_id
                )),
                Ok(step) if step.receipt.hash != receipt.hash => Some(format!(
                    "its hash is `{}`, the event that issued it says `{}`",
                    step.receipt.hash, receipt.hash
                )),
                Ok(step) => step.link.err().map(|broken| {
                    let name = |hash: Option<Digest>| {
                        hash.map_or_else(|| "none".to_owned(), |hash| hash.to_string())
                    };
                    format!(
                        "{}: it names `{}` as the receipt before it, which is `{}`",
                        broken.code.as_str(),
                        name(broken.found),
                        name(broken.expected)
                    )
                }),
            };
            if let Some(problem) = problem {
                let what = ProblemSubject::Document(receipt.position, receipt.id.clone());
                self.report(what, problem);
            }
        }
        self.tree(&issued)
    }

    /// A receipt of another server must be whole, and the one that its event speaks of.
    fn foreign(&mut self, receipt: &Issued) -> Result<(), AuditError> {
        let bytes = self.audit.blob(&receipt.content)?;
        // A lost or damaged blob was reported with the blobs.
        let Some(bytes) = bytes.filter(|bytes| sha256(bytes) == receipt.content) else {
            return Ok(());
        };
        let problem = match receipts::stream::check(&bytes) {
            Err(refusal) => Some(refusal.to_string()),
            Ok(checked) if *checked.receipt_id != *receipt.id || checked.hash != receipt.hash => {
                Some("its bytes are those of another receipt".to_owned())
            }
            Ok(_) => None,
        };
        if let Some(problem) = problem {
            let what = ProblemSubject::Document(receipt.position, receipt.id.clone());
            self.report(what, problem);
        }
        Ok(())
    }

    /// The tree must be what the receipts' hashes give, in the order of their events. It may lag behind.
    fn tree(&mut self, all: &[Issued]) -> Result<(), AuditError> {
        let issued: Vec<&Issued> = all.iter().filter(|receipt| !receipt.imported).collect();
        let stored = self.audit.tree()?;
        let mut frontier = Frontier::EMPTY;
        let mut heads = self.heads();
        let mut leaves = Leaves::default();
        let mut problem = None;
        let mut hashes = 0;
        for (receipt, index) in issued.iter().zip(0..stored.size) {
            let leaf = leaves.next(|first| self.audit.leaves(first))?;
            if leaf != Some((receipt.position, receipt.hash)) {
                problem = Some(format!("leaf {index} is not that of `{}`", receipt.id));
                break;
            }
            let (grown, kept) = merkle::append(frontier, merkle::leaf(&receipt.hash));
            frontier = grown;
            if let Some((id, root)) = heads.remove(&frontier.size())
                && root != frontier.root()
            {
                let size = frontier.size();
                problem = Some(format!(
                    "its receipts do not give the head `{id}` of size {size} that was signed"
                ));
                break;
            }
            for hash in kept {
                hashes += 1;
                if self.audit.tree_hash(hash.level, hash.index)? != Some(hash.hash) {
                    let (level, index) = (hash.level, hash.index);
                    problem = Some(format!(
                        "hash {index} of level {level} is not that of its leaves"
                    ));
                }
            }
            if problem.is_some() {
                break;
            }
        }
        let size = usize::try_from(stored.size).unwrap_or(usize::MAX);
        let place = |index: usize| issued.get(index).map(|receipt| receipt.position);
        // It may have passed receipts of other servers since its last leaf, and nothing else.
        let ends_early = place(size.wrapping_sub(1)).is_some_and(|last| last > stored.last);
        let ends_late = place(size).is_some_and(|next| next <= stored.last);
        let ends_nowhere = stored.last != Position::START
            && all.iter().all(|receipt| receipt.position != stored.last);
        let problem = problem.or_else(|| {
            let issued = issued.len() as u64;
            if stored.size > issued {
                let size = stored.size;
                Some(format!("has {size} leaves for {issued} receipts"))
            } else if stored.peaks != frontier.peaks() {
                Some("its peaks are not those of its leaves".to_owned())
            } else if ends_early || ends_late || ends_nowhere {
                Some("ends at another receipt than its last leaf".to_owned())
            } else {
                None
            }
        });
        if problem.is_none()
            && let Some((size, (id, _))) = heads.split_off(&(stored.size + 1)).pop_first()
        {
            let problem = format!("the head `{id}` of size {size} covers more than it has");
            self.report(ProblemSubject::Tree, problem);
        }
        if problem.is_none() {
            let (count, ends) = self.audit.leaf_range()?;
            let last = i64::try_from(stored.size)
                .unwrap_or(i64::MAX)
                .saturating_sub(1);
            if count != stored.size {
                self.report(
                    ProblemSubject::Tree,
                    "has leaves beyond its size".to_owned(),
                );
            } else if ends.is_some_and(|ends| ends != (0, last)) {
                // They are in order and as many as they must be: one stands behind a gap.
                let problem = "its leaves are not numbered from 0 without a gap: `reprise log rebuild --write` numbers them again";
                self.report(ProblemSubject::Tree, problem.to_owned());
            }
            if self.audit.tree_hash_count()? != hashes {
                let problem = "has hashes that are not of its leaves: `reprise log rebuild --write` makes them again";
                self.report(ProblemSubject::Tree, problem.to_owned());
            }
        }
        if let Some(problem) = problem {
            self.report(ProblemSubject::Tree, problem);
        }
        Ok(())
    }
}

impl Check<'_> {
    /// Returns the signed heads by size: id and root.
    fn heads(&self) -> BTreeMap<u64, (Box<str>, Digest)> {
        let heads = self.folded.heads().into_iter();
        let heads = heads.filter(|(key, _)| !self.damaged.contains(key));
        let heads = heads.map(|(_, (id, size, root))| (size, (id, root)));
        heads.collect()
    }
}

/// Leaves one by one, read in chunks.
#[derive(Default)]
struct Leaves {
    read: u64,
    chunk: std::vec::IntoIter<(Position, Digest)>,
}

impl Leaves {
    fn next(
        &mut self,
        read: impl FnOnce(u64) -> Result<Vec<(Position, Digest)>, AuditError>,
    ) -> Result<Option<(Position, Digest)>, AuditError> {
        if self.chunk.len() == 0 {
            self.chunk = read(self.read)?.into_iter();
        }
        let leaf = self.chunk.next();
        self.read += u64::from(leaf.is_some());
        Ok(leaf)
    }
}
