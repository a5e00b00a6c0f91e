//! Blocks as rows: one block, one row, by its number.
//!
//! Every frame stands alone: reading a block reads one row, and writing it again changes nothing else.

use domain::Position;
use engine::port::StoreFault;
use rusqlite::{Connection, OptionalExtension};

use crate::block::Block;
use crate::codec;
use crate::fault::fault;
use crate::row::sql;

/// A table of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// Events, by the position of the first, with blobs of their commit.
    Events,
    /// Blobs that share no block with events, by a number.
    Packs,
}

impl Table {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 2] = [Self::Events, Self::Packs];

    /// Reads one block.
    pub(crate) fn select(self) -> &'static str {
        match self {
            Table::Events => "SELECT bytes FROM events WHERE id = ?1",
            Table::Packs => "SELECT bytes FROM packs WHERE id = ?1",
        }
    }

    /// Reads blocks from one on.
    pub(crate) fn select_from(self) -> &'static str {
        match self {
            Table::Events => "SELECT id, bytes FROM events WHERE id >= ?1 ORDER BY id",
            Table::Packs => "SELECT id, bytes FROM packs WHERE id >= ?1 ORDER BY id",
        }
    }

    /// Reads the last block at or before a number.
    pub(crate) fn select_last(self) -> &'static str {
        match self {
            Table::Events => "SELECT id, bytes FROM events WHERE id <= ?1 ORDER BY id DESC LIMIT 1",
            Table::Packs => "SELECT id, bytes FROM packs WHERE id <= ?1 ORDER BY id DESC LIMIT 1",
        }
    }

    /// Writes a block, or writes it again in its own place.
    pub(crate) fn put(
        self,
        connection: &Connection,
        number: u64,
        block: &Block,
    ) -> rusqlite::Result<()> {
        let stored = codec::compress(&block.content())
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        self.put_bytes(connection, number, &stored)
    }

    /// Writes a block that will stay as it is.
    pub(crate) fn put_merged(
        self,
        connection: &Connection,
        number: u64,
        block: &Block,
    ) -> rusqlite::Result<()> {
        let stored = codec::compress_well(&block.content())
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        self.put_bytes(connection, number, &stored)
    }

    /// Writes the stored bytes of a block.
    pub(crate) fn put_bytes(
        self,
        connection: &Connection,
        number: u64,
        bytes: &[u8],
    ) -> rusqlite::Result<()> {
        let put = match self {
            Table::Events => "INSERT OR REPLACE INTO events(id, bytes) VALUES (?1, ?2)",
            Table::Packs => "INSERT OR REPLACE INTO packs(id, bytes) VALUES (?1, ?2)",
        };
        let mut put = connection.prepare_cached(put)?;
        put.execute((sql(number), bytes)).map(drop)
    }

    /// Removes a block.
    pub(crate) fn remove(self, connection: &Connection, number: u64) -> rusqlite::Result<()> {
        let remove = match self {
            Table::Events => "DELETE FROM events WHERE id = ?1",
            Table::Packs => "DELETE FROM packs WHERE id = ?1",
        };
        let mut remove = connection.prepare_cached(remove)?;
        remove.execute([sql(number)]).map(drop)
    }

    /// Returns the number of the last block that begins at or before a number.
    pub(crate) fn holding(
        self,
        connection: &Connection,
        number: u64,
    ) -> Result<Option<u64>, StoreFault> {
        Ok(self.held(connection, number)?.map(|(number, _)| number))
    }

    /// Returns the last block that begins at or before a number, and its number.
    pub(crate) fn held(
        self,
        connection: &Connection,
        number: u64,
    ) -> Result<Option<(u64, Vec<u8>)>, StoreFault> {
        let read = || {
            let mut select = connection.prepare_cached(self.select_last())?;
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            select.query_row([sql(number)], read).optional()
        };
        read().map_err(fault)
    }

    /// Returns the stored bytes of a block; none when there is no such block.
    pub(crate) fn bytes(
        self,
        connection: &Connection,
        number: u64,
    ) -> Result<Option<Vec<u8>>, StoreFault> {
        let read = || {
            let mut select = connection.prepare_cached(self.select())?;
            select.query_row([sql(number)], |row| row.get(0)).optional()
        };
        read().map_err(fault)
    }

    /// Calls for each block from a number on, ascending, until told to stop.
    pub(crate) fn each<E: From<StoreFault>>(
        self,
        connection: &Connection,
        number: u64,
        mut found: impl FnMut(Position, &[u8]) -> Result<bool, E>,
    ) -> Result<(), E> {
        let text = self.select_from();
        let mut select = connection.prepare_cached(text).map_err(fault)?;
        let mut rows = select.query([sql(number)]).map_err(fault)?;
        while let Some(row) = rows.next().map_err(fault)? {
            let number = row.get(0).map_err(fault)?;
            let bytes = row.get_ref(1).map_err(fault)?;
            let bytes = bytes.as_blob().map_err(|error| fault(error.into()))?;
            if !found(Position(number), bytes)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads a block that must be there.
    ///
    /// # Errors
    /// It is damaged or missing; or the database fails.
    pub(crate) fn block(self, connection: &Connection, number: u64) -> Result<Block, StoreFault> {
        let read = match self.bytes(connection, number)? {
            Some(bytes) => Block::decode(Position(number), &bytes),
            None => Err("it is missing".to_owned()),
        };
        read.map_err(|problem| {
            StoreFault::new(format!(
                "block {number} is damaged: {problem}; run `reprise log verify`"
            ))
        })
    }

    /// Changes a block in its own place, in the transaction under way.
    pub(crate) fn change(
        self,
        connection: &Connection,
        number: u64,
        change: impl FnOnce(&mut Block) -> Result<(), StoreFault>,
    ) -> Result<(), StoreFault> {
        let mut block = self.block(connection, number)?;
        change(&mut block)?;
        self.put(connection, number, &block).map_err(fault)
    }
}
