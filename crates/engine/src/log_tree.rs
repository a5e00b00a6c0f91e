//! The receipt log: leaves are assigned after commits, in position order, and heads are sealed over them.
//!
//! Receipts never contain their place, so that a commit does not wait for the tree. Whoever asks for a proof makes
//! it catch up. The lock in this process stands for the one store lease; the store's check of the size keeps two
//! processes from assigning the same index.

use std::collections::BTreeMap;
use std::time::Duration;

use canon::{Digest, Value};
use domain::{
    BatchId, Command, CosignHead, Document, Order, Position, Request, ResourceKind, Scratch,
    SealHead, State, Timestamp, decide, payload, seal,
};
use receipts::merkle::{self, Frontier};
use receipts::note::{Checkpoint, Note, NoteKey, SignatureLine};
use receipts::tiles::{self, Tile};

use crate::caller::Caller;
use crate::dispatch::{Answer, Settle};
use crate::engine::Engine;
use crate::port::{
    BoxFuture, Commit, ListQuery, NewestQuery, Scope, SealedTurn, Store, StoreFault, StoredEvent,
    Tree, TreeAppend,
};
use crate::receipt::Authority;
use crate::refused::Refused;
use crate::turn::Lease;

/// The proof that a receipt is in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Proof {
    /// The hash that was logged.
    pub receipt_hash: Digest,
    /// The index of its leaf.
    pub leaf_index: u64,
    /// The sealed head that covers it.
    pub batch: Document,
    /// The size of that head.
    pub size: u64,
    /// Its root.
    pub root: Digest,
    /// The hashes from the leaf to the root.
    pub path: Vec<Digest>,
}

/// Why a receipt was not proven.
#[derive(Debug)]
pub(crate) enum ProofFailure {
    /// Somebody or something refused.
    Refused(Refused),
    /// The stored tree does not hold together: a verdict for whoever verifies, a fault for whoever wants a proof.
    Broken(String),
}

impl From<Refused> for ProofFailure {
    fn from(refused: Refused) -> Self {
        ProofFailure::Refused(refused)
    }
}

impl From<StoreFault> for ProofFailure {
    fn from(fault: StoreFault) -> Self {
        ProofFailure::Refused(fault.into())
    }
}

impl From<ProofFailure> for Refused {
    fn from(unproven: ProofFailure) -> Self {
        match unproven {
            ProofFailure::Refused(refused) => refused,
            ProofFailure::Broken(detail) => Refused::Internal { detail },
        }
    }
}

/// How many leaves one append takes.
const APPEND_LEN_MAX: usize = 1_000;

impl Engine {
    /// Keeps the tree close behind the log until the process ends.
    pub(crate) async fn maintain_tree(self) {
        let limits = &self.shared.limits;
        let mut since_head = Duration::ZERO;
        while !self.is_draining() {
            self.shared.clock.sleep(limits.leaf_interval).await;
            since_head += limits.leaf_interval;
            let done = async {
                let tree = self.assign_leaves().await?;
                let covered = self.newest_batch().await?.map_or(0, |(_, size, _)| size);
                let open = tree.size.saturating_sub(covered);
                if open >= limits.head_leaves_max
                    || (open > 0 && since_head >= limits.head_interval)
                {
                    since_head = Duration::ZERO;
                    self.seal_head().await?;
                }
                Ok::<(), Refused>(())
            };
            if let Err(error) = done.await {
                tracing::warn!(%error, "the receipt log lags behind");
            }
        }
    }

    /// Gives every receipt that has none a leaf. Returns where the tree stands.
    async fn assign_leaves(&self) -> Result<Tree, Refused> {
        let _one_at_a_time = self.shared.tree.lock().await;
        self.assign_leaves_locked().await
    }

    async fn assign_leaves_locked(&self) -> Result<Tree, Refused> {
        let store = &self.shared.store;
        let mut tree = store.tree().await?;
        loop {
            let query = ListQuery {
                kind: ResourceKind::Receipt,
                scope: Scope::All,
                open_only: false,
                after: tree.last,
                limit: APPEND_LEN_MAX,
            };
            let waiting = store.list(query).await?;
            let Some(last) = waiting.last().map(|document| document.key) else {
                return Ok(tree);
            };
            let leaves: Vec<(Position, Digest)> = waiting
                .iter()
                .filter_map(|document| match &document.state {
                    // Another server issued it, in its own log.
                    State::Receipt(receipt) if receipt.imported => None,
                    State::Receipt(receipt) => Some((document.key, receipt.receipt_hash)),
                    _ => None,
                })
                .collect();
            let append = grow(&tree, leaves, last)?;
            let after = append.after.clone();
            // Another size: somebody else appended. Where it stands now is what counts.
            tree = if store.append_leaves(append).await? {
                after
            } else {
                store.tree().await?
            };
        }
    }

    /// Returns the newest sealed head with its size and root.
    pub async fn newest_batch(&self) -> Result<Option<(Document, u64, Digest)>, Refused> {
        let query = NewestQuery::one(ResourceKind::Batch);
        let newest = self.shared.store.newest(query).await?;
        Ok(newest
            .into_iter()
            .find_map(|document| match &document.state {
                State::Batch(batch) => {
                    let (size, root) = (batch.size, batch.root);
                    Some((document, size, root))
                }
                _ => None,
            }))
    }

    /// Seals a head over everything that was issued, unless the newest one covers it already.
    ///
    /// # Errors
    /// The store failed.
    pub async fn seal_head(&self) -> Result<(), Refused> {
        let _one_at_a_time = self.shared.tree.lock().await;
        let tree = self.assign_leaves_locked().await?;
        let newest = self.newest_batch().await?;
        if tree.size == 0
            || newest
                .as_ref()
                .is_some_and(|(_, size, _)| *size >= tree.size)
        {
            return Ok(());
        }
        let id = BatchId::from_body(&self.shared.ids.body());
        let newest = newest.map(|(_, _, root)| root);
        let command = head_of(&tree, &self.shared.authority, id, newest, None)?;
        self.order(command, None, Lease::None).await.map(drop)
    }

    /// Returns the newest signed checkpoint with the witnesses' signatures that were added to it.
    ///
    /// # Errors
    /// The store failed.
    pub async fn checkpoint(&self) -> Result<Option<String>, Refused> {
        newest_checkpoint(&*self.shared.store).await
    }

    /// Returns the signed checkpoint of a head.
    ///
    /// # Errors
    /// The store failed.
    pub async fn checkpoint_of(&self, document: &Document) -> Result<String, Refused> {
        checkpoint_in(&*self.shared.store, document).await
    }

    /// Says which witnesses may sign heads.
    pub fn set_witnesses(&self, keys: Vec<NoteKey>) {
        let witnesses = &self.shared.witnesses;
        *witnesses
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = keys;
    }

    /// Checks that a line is the cosignature of a configured witness on a head. One under the name of the log would make
    /// the whole checkpoint unverifiable, and one of nobody would take the place of another.
    fn check_witness(&self, head: &str, line: &SignatureLine) -> Result<(), String> {
        if line.name() == self.shared.authority.origin {
            return Err("the log signs under that name itself".to_owned());
        }
        let witnesses = &self.shared.witnesses;
        let witnesses = witnesses
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut named = witnesses
            .iter()
            .filter(|key| key.name() == line.name())
            .peekable();
        if named.peek().is_none() {
            return Err(format!("no witness `{}` is configured", line.name()));
        }
        let note = Note::read(head.as_bytes()).map_err(|error| error.to_string())?;
        let mut alone = Note::new(note.text()).map_err(|error| error.to_string())?;
        alone.add(line.clone());
        match named.any(|key| alone.verify(key).is_ok()) {
            true => Ok(()),
            false => Err(format!(
                "it is not a signature of `{}` on this head",
                line.name()
            )),
        }
    }

    /// Adds the signature line of a witness to a head: [`Request::CosignHead`] without a key, because a line that is there
    /// is not added again.
    ///
    /// # Errors
    /// As [`Engine::dispatch`].
    pub fn cosign<'a>(
        &'a self,
        caller: &'a Caller,
        id: BatchId,
        line: &str,
    ) -> BoxFuture<'a, Result<Answer, Refused>> {
        let line = line.to_owned();
        let request = Request::CosignHead { id, line };
        // As with [`Engine::start`]: it takes a turn.
        Box::pin(self.dispatch(caller, request, None, Settle::Window))
    }

    /// Checks a signature line and compares it with those that the head has.
    pub(crate) async fn build_cosignature(
        &self,
        caller: &Caller,
        id: BatchId,
        line: &str,
    ) -> Result<CosignHead, Refused> {
        let batch = self
            .visible(caller, ResourceKind::Batch, id.as_str())
            .await?;
        let State::Batch(state) = &batch.state else {
            return Err(no_batch());
        };
        let invalid = |message: String| {
            Refused::Domain(domain::Refusal::Invalid {
                param: "line",
                message,
            })
        };
        let parsed =
            SignatureLine::parse(line.trim_end()).map_err(|error| invalid(error.to_string()))?;
        let line = parsed.write().trim_end().to_owned();
        let known = self.checkpoint_of(&batch).await?;
        let is_new = known.lines().all(|existing| existing != line);
        if is_new {
            self.check_witness(&known, &parsed).map_err(invalid)?;
            if known.lines().count() >= receipts::note::NOTE_SIGNATURES_MAX {
                return Err(Refused::Busy {
                    what: "signatures of a checkpoint",
                });
            }
        }
        Ok(CosignHead {
            id,
            line,
            compared: state.cosigned.len(),
            is_new,
        })
    }

    /// Proves that a receipt is in the log, sealing a head if none covers it yet.
    pub(crate) async fn prove(
        &self,
        key: Position,
        receipt_hash: Digest,
    ) -> Result<Proof, ProofFailure> {
        let mut index = self.shared.store.leaf_index(key).await?;
        if index.is_none() {
            self.assign_leaves().await?;
            index = self.shared.store.leaf_index(key).await?;
        }
        let Some(leaf_index) = index else {
            return Err(ProofFailure::Broken("a receipt without a leaf".to_owned()));
        };
        let mut newest = self.newest_batch().await?;
        if newest
            .as_ref()
            .is_none_or(|(_, size, _)| *size <= leaf_index)
        {
            self.seal_head().await?;
            newest = self.newest_batch().await?;
        }
        let Some((batch, size, root)) = newest else {
            return Err(ProofFailure::Broken("no sealed head".to_owned()));
        };
        let broken = |error: tiles::ProofError| ProofFailure::Broken(error.to_string());
        let needed = tiles::inclusion_tiles(leaf_index, size).map_err(broken)?;
        let fetched = self.fetch_tiles(needed).await?;
        let path = tiles::inclusion(
            |tile| fetched.get(&(tile.level, tile.index)).cloned(),
            leaf_index,
            size,
        )
        .map_err(broken)?;
        Ok(Proof {
            receipt_hash,
            leaf_index,
            batch,
            size,
            root,
            path,
        })
    }

    /// Proves that a smaller head is the beginning of a larger one.
    ///
    /// # Errors
    /// There are no such heads; the store failed.
    pub async fn prove_consistency(
        &self,
        old_size: u64,
        new_size: u64,
    ) -> Result<Vec<Digest>, Refused> {
        let refuse = |error: tiles::ProofError| {
            Refused::Domain(domain::Refusal::Invalid {
                param: "from",
                message: error.to_string(),
            })
        };
        let stands = self.shared.store.tree().await?.size;
        if new_size > stands || old_size > new_size {
            return Err(refuse(tiles::ProofError::OutOfRange(stands)));
        }
        let needed = tiles::consistency_tiles(old_size, new_size).map_err(refuse)?;
        let fetched = self.fetch_tiles(needed).await?;
        tiles::consistency(
            |tile| fetched.get(&(tile.level, tile.index)).cloned(),
            old_size,
            new_size,
        )
        .map_err(refuse)
    }

    async fn fetch_tiles(&self, tiles: Vec<Tile>) -> Result<BTreeMap<(u8, u64), Vec<u8>>, Refused> {
        let mut fetched = BTreeMap::new();
        for tile in tiles {
            let hashes = self.tile_hashes(tile).await?;
            fetched.insert((tile.level, tile.index), tiles::tile_bytes(&hashes));
        }
        Ok(fetched)
    }

    async fn tile_hashes(&self, tile: Tile) -> Result<Vec<Digest>, Refused> {
        let first = tile.index.saturating_mul(tiles::TILE_WIDTH);
        Ok(self
            .shared
            .store
            .tree_hashes(tile.level, first, usize::from(tile.width))
            .await?)
    }

    /// Returns a tile in the C2SP layout; none unless a sealed head covers all of it.
    ///
    /// # Errors
    /// The store failed.
    pub async fn tile(&self, tile: Tile) -> Result<Option<Vec<u8>>, Refused> {
        let sealed = self.newest_batch().await?.map_or(0, |(_, size, _)| size);
        if Tile::at(tile.level, tile.index, sealed).is_none_or(|there| there.width < tile.width) {
            return Ok(None);
        }
        Ok(Some(tiles::tile_bytes(&self.tile_hashes(tile).await?)))
    }

    /// Returns a bundle of entries in the C2SP layout; none unless a sealed head covers all of it.
    ///
    /// # Errors
    /// The store failed.
    pub async fn entries(&self, index: u64, width: u16) -> Result<Option<Vec<u8>>, Refused> {
        let sealed = self.newest_batch().await?.map_or(0, |(_, size, _)| size);
        if Tile::at(0, index, sealed).is_none_or(|there| there.width < width) {
            return Ok(None);
        }
        let first = index.saturating_mul(tiles::TILE_WIDTH);
        Ok(Some(tiles::entry_bundle(
            &self.shared.store.leaves(first, usize::from(width)).await?,
        )))
    }
}

/// Returns the newest signed checkpoint of a store's receipt log with the witnesses' signatures that were added to it.
///
/// # Errors
/// The store failed.
pub async fn newest_checkpoint(store: &dyn Store) -> Result<Option<String>, Refused> {
    let newest = store.newest(NewestQuery::one(ResourceKind::Batch)).await?;
    match newest.first() {
        Some(document) => checkpoint_in(store, document).await.map(Some),
        None => Ok(None),
    }
}

/// Returns what the signing keys were when the newest head was signed; none when there is no head, or it does not say.
///
/// # Errors
/// The store failed.
pub async fn newest_keys(store: &dyn Store) -> Result<Option<Digest>, Refused> {
    let newest = store.newest(NewestQuery::one(ResourceKind::Batch)).await?;
    let Some(State::Batch(batch)) = newest.first().map(|document| &document.state) else {
        return Ok(None);
    };
    let payload = crate::view::payload(store, batch.source).await?;
    Ok(payload::TreeHeadSealed::of(&payload).keys())
}

/// True when the log names a key that signed: in a receipt, a decision or a head.
///
/// # Errors
/// The store failed.
pub async fn names_signing_key(store: &dyn Store) -> Result<bool, Refused> {
    for kind in [
        ResourceKind::Batch,
        ResourceKind::Receipt,
        ResourceKind::TrustChain,
    ] {
        if !store.newest(NewestQuery::one(kind)).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn no_batch() -> Refused {
    Refused::Internal {
        detail: "the document is not a receipt batch".to_owned(),
    }
}

async fn checkpoint_in(store: &dyn Store, document: &Document) -> Result<String, Refused> {
    let State::Batch(batch) = &document.state else {
        return Err(no_batch());
    };
    let sealed = crate::view::payload(store, batch.source).await?;
    let checkpoint = payload::TreeHeadSealed::of(&sealed).checkpoint();
    let mut checkpoint = checkpoint.unwrap_or_default().to_owned();
    for position in &batch.cosigned {
        let cosigned = crate::view::payload(store, *position).await?;
        let line = payload::TreeHeadCosigned::of(&cosigned).line();
        checkpoint.push_str(line.unwrap_or_default());
        checkpoint.push('\n');
    }
    Ok(checkpoint)
}

/// Seals the first head under a new origin of a log that has lost what was acknowledged. Says what was lost, so that
/// whoever saw a head of the old origin finds out why it is not continued.
///
/// # Errors
/// The store failed.
pub async fn seal_first(
    store: &dyn Store,
    authority: &Authority,
    (id, now): (BatchId, Timestamp),
    begins: HeadReason,
) -> Result<Position, Refused> {
    let internal = |detail: String| Refused::Internal { detail };
    let tree = store.tree().await?;
    let newest = store.newest(NewestQuery::one(ResourceKind::Batch)).await?;
    let newest = newest.first().and_then(|document| match &document.state {
        State::Batch(batch) => Some(batch.root),
        _ => None,
    });
    let command = head_of(&tree, authority, id, newest, Some(begins))?;
    let decision =
        decide(&Scratch::default(), &command).map_err(|refusal| internal(refusal.to_string()))?;
    let log = store.name().clone();
    let drafts = decision.drafts;
    let commit = Commit {
        expected: Vec::new(),
        fences: Vec::new(),
        holder: "recovery".into(),
        blobs: decision.blobs,
        event_count: drafts.len() as u64,
        now,
        seal: Box::new(move |first| {
            let mut scratch = Scratch::default();
            let events = seal(&log, &mut scratch, &drafts, first, now)?;
            Ok(SealedTurn {
                events: events.into_iter().map(StoredEvent::from).collect(),
                documents: scratch.iter_shared().cloned().collect(),
                ..SealedTurn::default()
            })
        }),
    };
    match store.commit(commit).await {
        Ok(committed) => Ok(committed.first),
        Err(error) => Err(internal(error.to_string())),
    }
}

/// What begins with a head.
#[derive(Debug, Clone, PartialEq)]
pub enum HeadReason {
    /// A new origin, after a loss.
    Recovery(Value),
    /// Another signing key, by a statement that both keys signed.
    Rotation(Value),
}

/// Signs a head over the whole tree.
fn head_of(
    tree: &Tree,
    authority: &Authority,
    id: BatchId,
    previous_root: Option<Digest>,
    begins: Option<HeadReason>,
) -> Result<Command, Refused> {
    let root = frontier(tree)?.root();
    let checkpoint = Checkpoint {
        origin: authority.origin.clone(),
        size: tree.size,
        root,
        extensions: Vec::new(),
    };
    let internal = |error: receipts::note::NoteError| Refused::Internal {
        detail: error.to_string(),
    };
    let mut note = Note::new(checkpoint.text()).map_err(internal)?;
    note.sign(&authority.origin, &authority.signer)
        .map_err(internal)?;
    let order = SealHead {
        id,
        size: tree.size,
        root,
        previous_root,
        checkpoint: note.write(),
        recovered: match &begins {
            Some(HeadReason::Recovery(said)) => Some(said.clone()),
            Some(HeadReason::Rotation(_)) | None => None,
        },
        rotation: match begins {
            Some(HeadReason::Rotation(said)) => Some(said),
            Some(HeadReason::Recovery(_)) | None => None,
        },
        keys: Some(authority.keys.state()),
    };
    Ok(Command {
        actor: "system".to_owned(),
        idempotency_key: None,
        order: Order::SealHead(order),
    })
}

fn frontier(tree: &Tree) -> Result<Frontier, Refused> {
    Frontier::from_parts(tree.size, tree.peaks.clone()).ok_or_else(|| Refused::Internal {
        detail: "the stored tree does not fit its size".to_owned(),
    })
}

/// Computes what appending leaves does to the tree.
fn grow(
    tree: &Tree,
    leaves: Vec<(Position, Digest)>,
    last: Position,
) -> Result<TreeAppend, Refused> {
    let mut grown = frontier(tree)?;
    let mut hashes = Vec::new();
    for (_, receipt_hash) in &leaves {
        let (next, stored) = merkle::append(grown, merkle::leaf(receipt_hash));
        grown = next;
        hashes.extend(
            stored
                .into_iter()
                .map(|hash| (hash.level, hash.index, hash.hash)),
        );
    }
    let after = Tree {
        size: grown.size(),
        peaks: grown.peaks().to_vec(),
        last,
    };
    Ok(TreeAppend {
        expected_size: tree.size,
        leaves,
        hashes,
        after,
    })
}
