//! Projections: folds of the log that are kept beside it, so that lists and proofs need not read it.
//!
//! # Adding one
//!
//! 1. Its tables go into `schema` and `derived`, and a type here says how it takes the next block of the log.
//! 2. It gets a row in [`all`]: a log that was written without it, or in another shape, is folded when it is next opened.
//! 3. `verify` gets a check of it. `log rebuild --write` folds it again like the others.
//!
//! Each says whether it is written in the transaction of the commit that it follows from, so that an acknowledged write is
//! in the next list, or follows behind: then it knows how far it is, and whoever reads it has it catch up to what is
//! needed. A projection is disposable; what it says can always be folded again.

use std::collections::BTreeSet;

use canon::Digest;
use domain::{Event, Kind, Position, ResourceKind, State, payload};
use engine::port::StoreFault;
use receipts::merkle::{self, Frontier};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::block::Block;
use crate::derived;
use crate::fault::fault;
use crate::recent::{self, NewLinks};
use crate::row::{DocumentRow, further, sql};
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

    /// Looks at what is stored before its tables are emptied: what the log does not tell any more, or must not contradict.
    fn begin(&mut self, _: &Connection) -> Result<(), StoreFault> {
        Ok(())
    }

    /// Empties its tables.
    fn clear(&self) -> &'static str;

    /// Takes the next block of the log. The documents are there already.
    fn feed(
        &mut self,
        connection: &Connection,
        number: u64,
        block: &Block,
    ) -> Result<(), StoreFault>;

    /// Passes events that cannot be read, from the first to the last of them.
    fn pass(&mut self, _: &Connection, _: (Position, Position)) -> Result<(), StoreFault> {
        Ok(())
    }

    /// Writes down what it gathered, at the end of the log.
    fn finish(&mut self, _: &Connection) -> Result<(), StoreFault> {
        Ok(())
    }
}

fn all() -> [Box<dyn Projection>; 7] {
    [
        Box::new(EventLinks::default()),
        Box::new(DocumentLinks),
        Box::new(SessionMessages),
        Box::new(SealedHeads),
        Box::new(StoredBytes(Usage::default())),
        Box::new(ReceiptTree {
            frontier: Frontier::EMPTY,
            last: Position::START,
            heads: None,
            least: 0,
        }),
        Box::new(FieldSegments),
    ]
}

/// Feeds a new block to those that are written in its commit. Returns how many rows gathered.
pub(crate) fn commit(
    connection: &Connection,
    new_links: NewLinks,
    number: u64,
    block: &Block,
) -> Result<u64, StoreFault> {
    // Spelled out instead of going through all of them: this is the path of every commit. Heads and Messages the writer has
    // at hand.
    link_documents(connection, block)?;
    recent::add_block(connection, new_links, number, block.links()).map_err(fault)
}

/// Feeds a block of another database to those that say what it is linked to.
pub(crate) fn link(connection: &Connection, number: u64, block: &Block) -> Result<(), StoreFault> {
    link_events(connection, number, block)?;
    link_documents(connection, block)
}

fn link_events(connection: &Connection, number: u64, block: &Block) -> Result<(), StoreFault> {
    let mut insert = connection.prepare_cached(LINK_EVENT).map_err(fault)?;
    for link in block.links() {
        insert.execute([sql(link.0), sql(number)]).map_err(fault)?;
    }
    Ok(())
}

fn link_documents(connection: &Connection, block: &Block) -> Result<(), StoreFault> {
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
    begin(&transaction, &mut missing)?;
    fold(&transaction, &mut missing)?;
    transaction.commit().map_err(fault)
}

/// Folds all of them again, in the transaction under way.
pub(crate) fn rebuild(connection: &Connection) -> Result<(), StoreFault> {
    rebuild_after(connection, "")
}

/// Makes every index again from its table, and folds all of them again, in the transaction under way.
pub(crate) fn rebuild_with_indexes(connection: &Connection) -> Result<(), StoreFault> {
    rebuild_after(connection, "REINDEX")
}

fn rebuild_after(connection: &Connection, before_fold: &str) -> Result<(), StoreFault> {
    let mut all = all();
    begin(connection, &mut all)?;
    // Recent links go as a whole, which works also where single rows are damaged: nothing in the table is looked for.
    derived::renew(connection)
        .and_then(|()| connection.execute_batch("DELETE FROM recent_links"))
        .and_then(|()| connection.execute_batch(before_fold))
        .map_err(fault)?;
    fold(connection, &mut all)
}

fn begin(
    connection: &Connection,
    projections: &mut [Box<dyn Projection>],
) -> Result<(), StoreFault> {
    projections
        .iter_mut()
        .try_for_each(|projection| projection.begin(connection))
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
    // How far a block reaches that cannot be read is known when the next one begins.
    let mut unread: Option<Position> = None;
    let pass = |projections: &mut [Box<dyn Projection>], lost: (Position, Position)| {
        projections
            .iter_mut()
            .try_for_each(|projection| projection.pass(connection, lost))
    };
    Table::Events.each(connection, 0, |first, bytes| {
        if let Some(lost) = unread.take() {
            pass(projections, (lost, Position(first.0.saturating_sub(1))))?;
        }
        match Block::decode(first, bytes) {
            Ok(block) => {
                for projection in projections.iter_mut() {
                    projection.feed(connection, first.0, &block)?;
                }
            }
            // `log verify` names it.
            Err(_) => unread = Some(first),
        }
        Ok::<bool, StoreFault>(true)
    })?;
    if let Some(lost) = unread {
        pass(projections, (lost, Position(u64::MAX)))?;
    }
    for projection in projections {
        projection.finish(connection)?;
        let (name, _) = projection.name();
        let written = projection.written();
        tracing::debug!(name, ?written, "folded a projection");
        note(connection, &**projection).map_err(fault)?;
    }
    Ok(())
}

const LINK_EVENT: &str = "INSERT INTO event_links(link, first) VALUES (?1, ?2)";

/// Which blocks hold events that belong to a resource: streams and event lists walk it. Of a block that cannot be read
/// nothing else tells whose events were in it: its rows stay.
#[derive(Default)]
struct EventLinks {
    kept: BTreeSet<(i64, i64)>,
}

impl Projection for EventLinks {
    fn name(&self) -> (&'static str, u32) {
        ("event links", 1)
    }

    fn written(&self) -> WriteTime {
        WriteTime::InCommit
    }

    fn begin(&mut self, connection: &Connection) -> Result<(), StoreFault> {
        let mut unreadable = BTreeSet::new();
        Table::Events.each(connection, 0, |first, bytes| {
            if Block::decode(first, bytes).is_err() {
                unreadable.insert(sql(first.0));
            }
            Ok::<bool, StoreFault>(true)
        })?;
        if unreadable.is_empty() {
            return Ok(());
        }
        let read = || {
            let both = "SELECT link, first FROM event_links \
                 UNION ALL SELECT link, number FROM recent_links WHERE kind = 0";
            let mut select = connection.prepare(both)?;
            let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<rusqlite::Result<Vec<(i64, i64)>>>()
        };
        let mut rows = read().map_err(|error| {
            StoreFault::new(format!(
                "a block cannot be read, and neither can the index that says whose events were in it: {error}; \
                 restore a backup"
            ))
        })?;
        rows.retain(|(_, first)| unreadable.contains(first));
        self.kept.extend(rows);
        Ok(())
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
        link_events(connection, number, block)
    }

    fn finish(&mut self, connection: &Connection) -> Result<(), StoreFault> {
        let mut insert = connection.prepare_cached(LINK_EVENT).map_err(fault)?;
        for (link, first) in &self.kept {
            insert.execute([link, first]).map_err(fault)?;
        }
        Ok(())
    }
}

/// Which documents are linked to a resource beyond the Workspace, Session and Task, for which they have columns. The
/// documents name their further links too, also where the event that created one is lost.
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

    fn feed(&mut self, _: &Connection, _: u64, _: &Block) -> Result<(), StoreFault> {
        Ok(())
    }

    fn finish(&mut self, connection: &Connection) -> Result<(), StoreFault> {
        let list = || {
            let text = "SELECT key, kind, further FROM documents WHERE further IS NOT NULL";
            let mut select = connection.prepare(text)?;
            let insert = "INSERT INTO document_links(link, kind, key) VALUES (?1, ?2, ?3)";
            let mut insert = connection.prepare(insert)?;
            let mut rows = select.query([])?;
            while let Some(row) = rows.next()? {
                let (key, kind): (i64, i64) = (row.get(0)?, row.get(1)?);
                for link in further(row.get(2)?) {
                    insert.execute([sql(link.0), kind, key])?;
                }
            }
            Ok(())
        };
        list().map_err(fault)
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
/// head that was ever signed, and have no leaf less than it had: a shorter one would grow on into another tree than the one
/// that was signed. Where an event cannot be read, the document of its receipt says what it issued.
struct ReceiptTree {
    frontier: Frontier,
    last: Position,
    /// Size and root of each signed head.
    heads: Option<BTreeSet<(u64, Digest)>>,
    /// How many leaves there were.
    least: u64,
}

impl Projection for ReceiptTree {
    fn name(&self) -> (&'static str, u32) {
        (RECEIPT_TREE, 1)
    }

    fn written(&self) -> WriteTime {
        WriteTime::Behind
    }

    fn begin(&mut self, connection: &Connection) -> Result<(), StoreFault> {
        let size = connection
            .query_row("SELECT size FROM tree WHERE one = 1", [], |row| row.get(0))
            .optional();
        self.least = size.map_err(fault)?.unwrap_or(0);
        Ok(())
    }

    fn clear(&self) -> &'static str {
        "DELETE FROM leaves; DELETE FROM tree_hashes; DELETE FROM tree"
    }

    fn feed(&mut self, connection: &Connection, _: u64, block: &Block) -> Result<(), StoreFault> {
        for stored in &block.events {
            let position = stored.position;
            let event = Event::parse(&stored.bytes).ok();
            let Some(event) = event.filter(|event| !event.is_lost()) else {
                self.add_documents(connection, (position, position))?;
                continue;
            };
            let is_imported = match event.kind() {
                Ok(Kind::ReceiptIssued) => false,
                Ok(Kind::ReceiptImported) => true,
                _ => continue,
            };
            match payload::Receipt::of(&event.payload).receipt_hash() {
                Some(hash) => self.add(connection, position, hash, is_imported)?,
                // A repair left its envelope.
                None if self.add_documents(connection, (position, position))? > 0 => {}
                None => {
                    return Err(StoreFault::new(format!(
                        "the event at position {} issues a receipt without a hash; run `reprise log verify`",
                        position.0
                    )));
                }
            }
        }
        Ok(())
    }

    fn pass(
        &mut self,
        connection: &Connection,
        lost: (Position, Position),
    ) -> Result<(), StoreFault> {
        self.add_documents(connection, lost).map(drop)
    }

    fn finish(&mut self, connection: &Connection) -> Result<(), StoreFault> {
        let size = self.frontier.size();
        let signed = self.heads(connection)?.last().map_or(0, |head| head.0);
        let least = self.least.max(signed);
        if size < least {
            return Err(StoreFault::new(format!(
                "the receipts that can be read give a tree of {size} leaves where there was one of {least}: the tree stays as \
                 it is and nothing was written; restore a backup"
            )));
        }
        if self.last == Position::START {
            return Ok(());
        }
        tree::put_state(connection, size, self.frontier.peaks(), self.last).map_err(fault)
    }
}

impl ReceiptTree {
    /// Adds the receipts whose documents were created from one position to another; returns how many.
    fn add_documents(
        &mut self,
        connection: &Connection,
        (first, last): (Position, Position),
    ) -> Result<usize, StoreFault> {
        let read = || {
            let text = format!(
                "SELECT {} FROM documents WHERE key BETWEEN ?1 AND ?2 AND kind = ?3 ORDER BY key",
                DocumentRow::COLUMNS
            );
            let mut select = connection.prepare_cached(&text)?;
            let values = (sql(first.0), sql(last.0), ResourceKind::Receipt.number());
            let rows = select.query_map(values, DocumentRow::read)?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        };
        let rows = read().map_err(fault)?;
        for row in &rows {
            if let State::Receipt(receipt) = row.document()?.state {
                self.add(connection, row.key, receipt.receipt_hash, receipt.imported)?;
            }
        }
        Ok(rows.len())
    }

    /// Adds a receipt. One of another server has its leaf in the log of that server.
    fn add(
        &mut self,
        connection: &Connection,
        position: Position,
        hash: Digest,
        is_imported: bool,
    ) -> Result<(), StoreFault> {
        self.last = position;
        if is_imported {
            return Ok(());
        }
        let index = self.frontier.size();
        let frontier = std::mem::replace(&mut self.frontier, Frontier::EMPTY);
        let (grown, kept) = merkle::append(frontier, merkle::leaf(&hash));
        self.frontier = grown;
        tree::put_leaf(connection, index, (position, hash)).map_err(fault)?;
        for kept in kept {
            let kept = (kept.level, kept.index, kept.hash);
            tree::put_hash(connection, kept).map_err(fault)?;
        }
        let (size, root) = (self.frontier.size(), self.frontier.root());
        let [least, most] = [0, u8::MAX].map(|byte| (size, Digest::from_bytes([byte; 32])));
        let mut heads = self.heads(connection)?.range(least..=most);
        if heads.any(|head| head.1 != root) {
            return Err(StoreFault::new(format!(
                "the receipts of the log do not give the head of size {size} that was signed; run `reprise log verify`"
            )));
        }
        Ok(())
    }

    fn heads(&mut self, connection: &Connection) -> Result<&BTreeSet<(u64, Digest)>, StoreFault> {
        match self.heads {
            Some(ref heads) => Ok(heads),
            None => Ok(self.heads.insert(tree::sealed_heads(connection)?)),
        }
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
