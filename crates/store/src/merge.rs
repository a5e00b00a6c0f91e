//! Small blocks become one: the log of a lone client would otherwise have a row for every commit.
//!
//! A commit writes blocks of its own, so that it costs what it brings. What lone commits bring repeats itself from one to
//! the next: pieces of an answer stand in the answer, ids and envelopes in every event. So when enough small blocks stand side by
//! side, the next commit writes them again as one, in its own transaction: no sync and no thread more. Commits of
//! many clients together are large already and are left as they are.
//!
//! Nothing depends on it. A run of small blocks that a process did not live to merge stays as it is.

use canon::Digest;
use domain::Position;
use engine::port::StoreFault;
use rusqlite::Connection;

use crate::block::Block;
use crate::fault::fault;
use crate::recent::{self, NewLinks};
use crate::row::sql;
use crate::schema::{self, SecureDelete};
use crate::table::Table;

/// Blocks with less content than this are merged.
const SMALL_BYTES: usize = 32 * 1024;

/// How much content makes a merge worth its while. Reading one event decompresses all of it.
const RUN_BYTES: usize = 112 * 1024;

/// How many events a merged block has at most: what is lost with it is named event by event.
const RUN_EVENTS_MAX: u64 = 256;

/// A block as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WrittenBlock {
    first: u64,
    events: u64,
    /// Of its blobs, by number.
    digests: Vec<Digest>,
    content_bytes: usize,
}

impl WrittenBlock {
    /// None for a block without events, which stands elsewhere.
    pub(crate) fn of(block: &Block, digests: &[Digest]) -> Option<Self> {
        let events = block.events.iter().map(|event| event.bytes.len());
        let blobs = block.blobs.iter().map(Vec::len);
        Some(Self {
            first: block.events.first()?.position.0,
            events: block.events.len() as u64,
            digests: digests.to_vec(),
            content_bytes: events.chain(blobs).sum(),
        })
    }
}

/// Small blocks that stand side by side at the end of the log.
#[derive(Debug, Default)]
pub(crate) struct Run {
    blocks: Vec<WrittenBlock>,
    content_bytes: usize,
    events: u64,
}

impl Run {
    /// Takes in what a commit wrote.
    pub(crate) fn add(&mut self, written: Vec<WrittenBlock>) {
        for block in written {
            let last = self.blocks.last();
            let is_next = last.is_none_or(|last| last.first + last.events == block.first);
            if !is_next || block.content_bytes >= SMALL_BYTES {
                *self = Self::default();
            }
            if block.content_bytes < SMALL_BYTES {
                self.push(block);
            }
        }
    }

    fn push(&mut self, block: WrittenBlock) {
        self.content_bytes += block.content_bytes;
        self.events += block.events;
        self.blocks.push(block);
    }

    /// Returns the run when it is to be merged, as far as one block may reach, and begins another one with the rest: one that
    /// cannot be merged is not tried again.
    pub(crate) fn take_due(&mut self) -> Option<Self> {
        if self.content_bytes < RUN_BYTES && self.events < RUN_EVENTS_MAX {
            return None;
        }
        let mut due = Self::default();
        let mut rest = Self::default();
        for block in std::mem::take(self).blocks {
            let fits = due.events + block.events <= RUN_EVENTS_MAX;
            match fits && rest.blocks.is_empty() {
                true => due.push(block),
                false => rest.push(block),
            }
        }
        *self = rest;
        Some(due)
    }

    /// Writes the blocks as one, in the transaction under way. Does nothing when they are not what they were.
    pub(crate) fn merge(&self, connection: &Connection) -> Result<(), StoreFault> {
        let [first, others @ ..] = self.blocks.as_slice() else {
            return Ok(());
        };
        if others.is_empty() {
            return Ok(());
        }
        let mut merged = Block::default();
        let mut links = Vec::new();
        for put in &self.blocks {
            let stored = Table::Events.bytes(connection, put.first)?;
            let block = stored.and_then(|stored| Block::decode(Position(put.first), &stored).ok());
            let Some(block) = block.filter(|block| {
                block.events.len() as u64 == put.events && block.blobs.len() == put.digests.len()
            }) else {
                tracing::warn!(
                    block = put.first,
                    "a block that was just written cannot be read; run `reprise log verify`"
                );
                return Ok(());
            };
            let linked = block.links().into_iter();
            links.extend(linked.map(|link| (put.first, link)));
            merged.events.extend(block.events);
            merged.blobs.extend(block.blobs);
        }
        // Pages that become free must keep no copy: what is erased or pruned later is looked for in the merged block only.
        schema::secure_delete(connection, SecureDelete::Everywhere).map_err(fault)?;
        let written = self.write(connection, first.first, &merged, &links);
        schema::secure_delete(connection, SecureDelete::InPages).map_err(fault)?;
        written
    }

    /// Puts a block in the place of those that it is made of.
    fn write(
        &self,
        connection: &Connection,
        first: u64,
        merged: &Block,
        links: &[(u64, Position)],
    ) -> Result<(), StoreFault> {
        let execute = |text: &str, values: &[&dyn rusqlite::ToSql]| {
            connection
                .prepare_cached(text)
                .and_then(|mut statement| statement.execute(values))
                .map(drop)
                .map_err(fault)
        };
        for (number, link) in links {
            // Some may have been moved since, others not.
            recent::remove_block(connection, *number, *link).map_err(fault)?;
        }
        for put in self.blocks.iter().skip(1) {
            Table::Events.remove(connection, put.first).map_err(fault)?;
        }
        Table::Events
            .put_merged(connection, first, merged)
            .map_err(fault)?;
        recent::add_block(connection, NewLinks::Gather, first, merged.links()).map_err(fault)?;
        let places = self.blocks.iter();
        let places =
            places.flat_map(|put| put.digests.iter().map(move |digest| (digest, put.first)));
        for ((digest, block), number) in places.zip(0i64..) {
            // One that was erased since has no row any more, or that of a copy that was stored afterwards.
            let update = "UPDATE blobs SET block = ?2, number = ?3 \
                 WHERE digest = ?1 AND pack = 0 AND block = ?4";
            let digest: &[u8] = digest.as_bytes();
            execute(update, &[&digest, &sql(first), &number, &sql(block)])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(first: u64, events: u64) -> WrittenBlock {
        WrittenBlock {
            first,
            events,
            digests: Vec::new(),
            content_bytes: 100 * usize::try_from(events).unwrap_or(0),
        }
    }

    #[test]
    fn a_run_is_merged_up_to_so_many_events_and_the_rest_begins_the_next() {
        let mut run = Run::default();
        run.add((0..255).map(|at| written(1 + at, 1)).collect());
        assert!(run.take_due().is_none());
        run.add(vec![written(256, 60), written(316, 3)]);
        let due = run.take_due().expect("there are enough");
        assert_eq!((due.blocks.len(), due.events), (255, 255));
        assert_eq!((run.blocks.len(), run.events), (2, 63));
        assert_eq!(run.content_bytes, 6_300);
        // It goes on where it was divided.
        run.add(vec![written(319, 200)]);
        let due = run.take_due().expect("there are enough");
        assert_eq!((due.blocks.len(), due.events), (2, 63));
        assert_eq!((run.blocks.len(), run.events), (1, 200));
    }
}
