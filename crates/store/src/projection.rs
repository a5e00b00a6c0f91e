//! Projections: folds of the log that are kept beside it, so that lists and proofs need not read it.
//!
//! # Adding one
//!
//! 1. Its tables go into `schema`, and a type here says how it takes the next block of the log.
//! 2. It gets a row in [`all`]: a log that was written without it, or in another shape, is folded when it is next opened.
//! 3. `verify` gets a check of it. `log rebuild --write` folds it again like the others.
//!
//! Each says whether it is written in the transaction of the commit that it follows from, so that an acknowledged write is
//! in the next list, or follows behind: then it knows how far it is, and whoever reads it has it catch up to what is
//! needed. A projection is disposable; what it says can always be folded again.

use std::collections::BTreeSet;

use canon::Digest;
use domain::{Event, Kind, Position, payload};
use engine::port::StoreFault;
use receipts::merkle::{self, Frontier};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::block::Block;
use crate::fault::fault;
use crate::recent;
use crate::row::sql;
use crate::table::Table;
use crate::tree;
use crate::usage::Usage;

/// When a projection is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteTime {
    /// In the transaction of the commit.
    InCommit,
    /// Afterwards.
    Behind,
}

pub(crate) trait Projection {
    /// Its name, and the number of its shape: one of another number is folded again.
    fn name(&self) -> (&'static str, u32);

    fn written(&self) -> WriteTime;

    /// Empties its tables.
    fn clear(&self) -> &'static str;

    /// Takes the next block of the log. The documents are there already.
    fn feed(
        &mut self,
        connection: &Connection,
        number: u64,
        block: &Block,
    ) -> Result<(), StoreFault>;

    /// Writes down what it gathered, at the end of the log.
    fn finish(&mut self, _: &Connection) -> Result<(), StoreFault> {
        Ok(())
    }
}

fn all() -> [Box<dyn Projection>; 7] {
    [
        Box::new(EventLinks),
        Box::new(DocumentLinks),
        Box::new(SessionMessages),
        Box::new(SealedHeads),
        Box::new(StoredBytes(Usage::default())),
        Box::new(ReceiptTree {
            frontier: Frontier::EMPTY,
            last: Position::START,
            heads: None,
        }),
        Box::new(FieldSegments),
    ]
}

/// Feeds a new block to those that are written in its commit. Returns how many rows gathered.
pub(crate) fn commit(
    connection: &Connection,
    number: u64,
    block: &Block,
) -> Result<u64, StoreFault> {
    // Spelled out instead of going through all of them: this is the path of every commit. Heads and Messages the writer has
    // at hand.
    DocumentLinks.feed(connection, number, block)?;
    recent::add_block(connection, number, block.links()).map_err(fault)
}

/// Feeds a block of another database to those that say what it is linked to.
pub(crate) fn link(connection: &Connection, number: u64, block: &Block) -> Result<(), StoreFault> {
    EventLinks.feed(connection, number, block)?;
    DocumentLinks.feed(connection, number, block)
}

/// Lists the Messages of each Session, in a database whose documents came from another one.
pub(crate) fn list_messages(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .execute(
            "INSERT INTO session_messages(session, key) SELECT session, key FROM documents \
             WHERE kind = 4 AND session IS NOT NULL ORDER BY session, key",
            [],
        )
        .map(drop)
}

/// Says that the Messages of each Session are listed, in the transaction that did it for a log of an earlier program.
pub(crate) fn note_messages(connection: &Connection) -> rusqlite::Result<()> {
    note(connection, &SessionMessages)
}

/// Folds those of a log that are missing or have another shape.
pub(crate) fn complete(connection: &mut Connection) -> Result<(), StoreFault> {
    let mut missing = Vec::new();
    for projection in all() {
        let (name, shape) = projection.name();
        let known: Option<u32> = connection
            .query_row(
                "SELECT shape FROM projections WHERE name = ?1",
                [name],
                |row| row.get(0),
            )
            .optional()
            .map_err(fault)?;
        if known != Some(shape) {
            missing.push(projection);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(fault)?;
    fold(&transaction, &mut missing)?;
    transaction.commit().map_err(fault)
}

/// Folds all of them again, in the transaction under way.
pub(crate) fn rebuild(connection: &Connection) -> Result<(), StoreFault> {
    clear_recent(connection)?;
    fold(connection, &mut all())
}

/// Empties the table of recent links as a whole, which works also where it is damaged: nothing in it is looked for.
pub(crate) fn clear_recent(connection: &Connection) -> Result<(), StoreFault> {
    connection
        .execute_batch("DELETE FROM recent_links")
        .map_err(fault)
}

/// Has one of them folded again by the next start.
pub(crate) fn forget(connection: &Connection, name: &str) -> rusqlite::Result<()> {
    connection
        .execute("DELETE FROM projections WHERE name = ?1", [name])
        .map(drop)
}

/// Says which of them are there, in a database that was filled through [`commit`] and got the tree of another one. Those
/// that follow behind are folded by the first start.
pub(crate) fn note_migrated(connection: &Connection) -> rusqlite::Result<()> {
    all()
        .iter()
        .filter(|projection| {
            projection.written() == WriteTime::InCommit || projection.name().0 == RECEIPT_TREE
        })
        .try_for_each(|projection| note(connection, &**projection))
}

/// True when one of them was folded.
pub(crate) fn is_there(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    connection
        .prepare("SELECT 1 FROM projections WHERE name = ?1")?
        .exists([name])
}

fn note(connection: &Connection, projection: &dyn Projection) -> rusqlite::Result<()> {
    let note = "INSERT OR REPLACE INTO projections(name, shape) VALUES (?1, ?2)";
    connection.execute(note, projection.name()).map(drop)
}

fn fold(
    connection: &Connection,
    projections: &mut [Box<dyn Projection>],
) -> Result<(), StoreFault> {
    for projection in projections.iter() {
        let text = projection.clear();
        connection.execute_batch(text).map_err(fault)?;
    }
    Table::Events.each(connection, 0, |first, bytes| {
        // What cannot be read is in no projection; `log verify` names it.
        if let Ok(block) = Block::decode(first, bytes) {
            for projection in projections.iter_mut() {
                projection.feed(connection, first.0, &block)?;
            }
        }
        Ok::<bool, StoreFault>(true)
    })?;
    for projection in projections {
        projection.finish(connection)?;
        let (name, _) = projection.name();
        let written = projection.written();
        tracing::debug!(name, ?written, "folded a projection");
        note(connection, &**projection).map_err(fault)?;
    }
    Ok(())
}

/// Which blocks hold events that belong to a resource: streams and event lists walk it.
struct EventLinks;

impl Projection for EventLinks {
    fn name(&self) -> (&'static str, u32) {
        ("event links", 1)
    }

    fn written(&self) -> WriteTime {
        WriteTime::InCommit
    }

    fn clear(&self) -> &'static str {
        "DELETE FROM event_links; DELETE FROM recent_links WHERE kind = 0"
    }

    fn feed(
        &mut self,
        connection: &Connection,
        number: u64,
        block: &Block,
    ) -> Result<(), StoreFault> {
        let insert = "INSERT INTO event_links(link, first) VALUES (?1, ?2)";
        let mut insert = connection.prepare_cached(insert).map_err(fault)?;
        for link in block.links() {
            insert.execute([sql(link.0), sql(number)]).map_err(fault)?;
        }
        Ok(())
    }
}

/// Which documents are linked to a resource beyond the Workspace, Session and Task, for which they have columns.
struct DocumentLinks;

impl Projection for DocumentLinks {
    fn name(&self) -> (&'static str, u32) {
        ("document links", 1)
    }

    fn written(&self) -> WriteTime {
        WriteTime::InCommit
    }

    fn clear(&self) -> &'static str {
        "DELETE FROM document_links"
    }

    fn feed(&mut self, connection: &Connection, _: u64, block: &Block) -> Result<(), StoreFault> {
        for event in &block.events {
            // A document is linked as the event that created it.
            if event.position != event.resource || event.links.further.is_empty() {
                continue;
            }
            let insert = "INSERT INTO document_links(link, kind, key) \
                 SELECT ?1, kind, key FROM documents WHERE key = ?2";
            let mut insert = connection.prepare_cached(insert).map_err(fault)?;
            for link in &event.links.further {
                insert
                    .execute([sql(link.0), sql(event.position.0)])
                    .map_err(fault)?;
            }
        }
        Ok(())
    }
}

/// Which Messages a Session has. The writer puts them down with their documents.
struct SessionMessages;

impl Projection for SessionMessages {
    fn name(&self) -> (&'static str, u32) {
        ("session messages", 1)
    }

    fn written(&self) -> WriteTime {
        WriteTime::InCommit
    }

    fn clear(&self) -> &'static str {
        "DELETE FROM session_messages; DELETE FROM recent_links WHERE kind <> 0"
    }

    fn feed(&mut self, _: &Connection, _: u64, _: &Block) -> Result<(), StoreFault> {
        Ok(())
    }

    fn finish(&mut self, connection: &Connection) -> Result<(), StoreFault> {
        list_messages(connection).map_err(fault)
    }
}

/// The sizes of the sealed heads of the receipt log, by their roots.
struct SealedHeads;

impl Projection for SealedHeads {
    fn name(&self) -> (&'static str, u32) {
        ("sealed heads", 1)
    }

    fn written(&self) -> WriteTime {
        WriteTime::InCommit
    }

    fn clear(&self) -> &'static str {
        "DELETE FROM heads"
    }

    fn feed(&mut self, _: &Connection, _: u64, _: &Block) -> Result<(), StoreFault> {
        Ok(())
    }

    fn finish(&mut self, connection: &Connection) -> Result<(), StoreFault> {
        tree::put_heads(connection)
    }
}

/// The name of the tree of receipts.
const RECEIPT_TREE: &str = "receipt tree";

/// The name of the count of what Workspaces have stored.
pub(crate) const USAGE: &str = "stored bytes";

/// How much each Workspace has stored. The writer counts on in memory.
struct StoredBytes(Usage);

impl Projection for StoredBytes {
    fn name(&self) -> (&'static str, u32) {
        (USAGE, 1)
    }

    fn written(&self) -> WriteTime {
        WriteTime::Behind
    }

    fn clear(&self) -> &'static str {
        "DELETE FROM usage"
    }

    fn feed(&mut self, _: &Connection, _: u64, block: &Block) -> Result<(), StoreFault> {
        self.0.add(&block.events);
        Ok(())
    }

    fn finish(&mut self, connection: &Connection) -> Result<(), StoreFault> {
        self.0.write(connection).map_err(fault)
    }
}

/// The Merkle tree over the receipts: leaves in the order of their events, and the hashes that tiles keep. The engine feeds
/// it as receipts are issued, and whoever asks for a proof has it catch up. Folded from the log it must reproduce every
/// head that was ever signed.
struct ReceiptTree {
    frontier: Frontier,
    last: Position,
    /// Size and root of each signed head.
    heads: Option<BTreeSet<(u64, Digest)>>,
}

impl Projection for ReceiptTree {
    fn name(&self) -> (&'static str, u32) {
        (RECEIPT_TREE, 1)
    }

    fn written(&self) -> WriteTime {
        WriteTime::Behind
    }

    fn clear(&self) -> &'static str {
        "DELETE FROM leaves; DELETE FROM tree_hashes; DELETE FROM tree"
    }

    fn feed(&mut self, connection: &Connection, _: u64, block: &Block) -> Result<(), StoreFault> {
        for stored in &block.events {
            let Ok(event) = Event::parse(&stored.bytes) else {
                continue;
            };
            let kind = event.kind();
            if !matches!(kind, Ok(Kind::ReceiptIssued | Kind::ReceiptImported)) {
                continue;
            }
            self.last = stored.position;
            // One of another server has its leaf in the log of that server.
            if kind == Ok(Kind::ReceiptImported) {
                continue;
            }
            let Some(hash) = payload::Receipt::of(&event.payload).receipt_hash() else {
                return Err(StoreFault::new(format!(
                    "the event at position {} issues a receipt without a hash; run `reprise log verify`",
                    stored.position.0
                )));
            };
            let index = self.frontier.size();
            let frontier = std::mem::replace(&mut self.frontier, Frontier::EMPTY);
            let (grown, kept) = merkle::append(frontier, merkle::leaf(&hash));
            self.frontier = grown;
            tree::put_leaf(connection, index, (stored.position, hash)).map_err(fault)?;
            for kept in kept {
                let kept = (kept.level, kept.index, kept.hash);
                tree::put_hash(connection, kept).map_err(fault)?;
            }
            self.check_heads(connection)?;
        }
        Ok(())
    }

    fn finish(&mut self, connection: &Connection) -> Result<(), StoreFault> {
        if self.last == Position::START {
            return Ok(());
        }
        let (size, peaks) = (self.frontier.size(), self.frontier.peaks());
        tree::put_state(connection, size, peaks, self.last).map_err(fault)
    }
}

impl ReceiptTree {
    fn check_heads(&mut self, connection: &Connection) -> Result<(), StoreFault> {
        let heads = match &mut self.heads {
            Some(heads) => heads,
            None => self.heads.insert(tree::sealed_heads(connection)?),
        };
        let size = self.frontier.size();
        let root = self.frontier.root();
        let [least, most] = [0, u8::MAX].map(|byte| (size, Digest::from_bytes([byte; 32])));
        if heads.range(least..=most).any(|head| head.1 != root) {
            return Err(StoreFault::new(format!(
                "the receipts of the log do not give the head of size {size} that was signed; run `reprise log verify`"
            )));
        }
        Ok(())
    }
}

/// Forgets all segments, also in a log that no newer program opened.
pub(crate) const NO_SEGMENTS: &str = "
    CREATE TABLE IF NOT EXISTS field_segments(
        field INTEGER NOT NULL,
        after INTEGER NOT NULL,
        last INTEGER NOT NULL,
        position INTEGER NOT NULL,
        bytes BLOB NOT NULL,
        PRIMARY KEY(field, after)
    ) STRICT;
    DELETE FROM field_segments;
";

/// What the engine keeps of the folds of fields. It is read by whoever needs a field, catches up with the log then, and keeps
/// what it lacked; folding it here only empties it.
struct FieldSegments;

impl Projection for FieldSegments {
    fn name(&self) -> (&'static str, u32) {
        ("field segments", 1)
    }

    fn written(&self) -> WriteTime {
        WriteTime::Behind
    }

    fn clear(&self) -> &'static str {
        NO_SEGMENTS
    }

    fn feed(&mut self, _: &Connection, _: u64, _: &Block) -> Result<(), StoreFault> {
        Ok(())
    }
}
