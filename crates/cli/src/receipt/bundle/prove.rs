//! The proof that a receipt is in the tree of a bundle's checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use canon::{Digest, Value};
use receipts::merkle::{self, Frontier};
use receipts::note::Checkpoint;
use receipts::tiles::{self, TILE_WIDTH};
use serde_json::json;

use super::super::file::read_receipt;
use super::super::names_file;
use super::files::{Lines, optional};
use super::{HINT, ReceiptReferences};
use crate::exit::{OrHint, Problem};

/// Computes the proof that a receipt, named by id, task or file, is in the tree of a bundle's checkpoint.
pub(crate) fn prove(directory: &Path, name: &str) -> anyhow::Result<Value> {
    let wanted = match names_file(name) {
        true => {
            let handed = read_receipt(name.as_ref())?;
            let hint = "name a file that holds one receipt as JSON or CBOR";
            Some(
                receipts::Receipt::read(&handed.bytes)
                    .or_hint(format_args!("`{name}`"), hint)?
                    .hash(),
            )
        }
        false => None,
    };
    let missing = |what: &str| Problem::new(what.to_owned(), HINT).answers_no();
    let checkpoint = optional(&directory.join("checkpoint"))?;
    let Some(checkpoint) = checkpoint else {
        return Err(missing("the bundle has no checkpoint: no head was sealed yet").into());
    };
    let note = receipts::note::Note::read(&checkpoint).or_hint("the checkpoint", HINT)?;
    let head = Checkpoint::read(note.text()).or_hint("the checkpoint", HINT)?;
    let mut lines = Lines::open(directory.join("receipts.jsonl"))?;
    let mut frontier = Frontier::EMPTY;
    let mut tree: BTreeMap<(u8, u64), Vec<Digest>> = BTreeMap::new();
    let mut found = None;
    while frontier.size() < head.size
        && let Some((line, _, _)) = lines.next()?
    {
        let receipt = receipts::stream::check(line).or_hint("receipts.jsonl", HINT)?;
        let is_task = || {
            serde_json::from_slice::<ReceiptReferences>(line)
                .is_ok_and(|leads| leads.identifiers.task_id == name)
        };
        let is_it = match wanted {
            Some(hash) => receipt.hash == hash,
            None => receipt.receipt_id == name || is_task(),
        };
        if is_it {
            found = Some((
                frontier.size(),
                receipt.receipt_id.clone().into_owned(),
                receipt.hash,
            ));
        }
        let (grown, kept) = merkle::append(frontier, merkle::leaf(&receipt.hash));
        frontier = grown;
        for hash in kept {
            let tile = tree
                .entry((hash.level, hash.index / TILE_WIDTH))
                .or_default();
            tile.push(hash.hash);
        }
    }
    let Some((index, receipt_id, receipt_hash)) = found else {
        let message = format!("`{name}` is not among the receipts that the checkpoint covers");
        return Err(missing(&message).into());
    };
    if frontier.size() < head.size {
        return Err(missing("the bundle has fewer receipts than its checkpoint covers").into());
    }
    let read = |tile: tiles::Tile| {
        tree.get(&(tile.level, tile.index))
            .map(|hashes| tiles::tile_bytes(hashes))
    };
    let path = tiles::inclusion(read, index, head.size).or_hint("the proof", HINT)?;
    Ok(json!({
        "object": "receipt_proof",
        "receipt_id": receipt_id,
        "receipt_hash": receipt_hash,
        "leaf_index": index,
        "tree_size": head.size,
        "root": frontier.root(),
        "path": path,
        "checkpoint": String::from_utf8_lossy(&checkpoint),
    }))
}
