//! Blocks as rows: a block is cut where pages end.
//!
//! SQLite puts a row that does not fit into what is left of a page on the next one, and a long one on pages of its
//! own; with rows of some thousand bytes that leaves a fifth of the file empty. Blocks are only ever added at the end
//! of their table, so the room that is left is known and a block is cut to fill it. That is a guess about another
//! program's pages: where it is wrong, a page is less full, and nothing else.

use domain::Position;
use engine::port::StoreFault;
use rusqlite::{Connection, OptionalExtension};

use crate::fault::fault;
use crate::row::sql;
use crate::schema::PAGE_BYTES;

/// A table of blocks: `id` is the block's number and the number of the row in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// Events, by the position of the first, with blobs of their commit.
    Events,
    /// Blobs that share no block with events, by a number.
    Packs,
}

const PART_BITS: u32 = 16;
const PARTS_MAX: i64 = 1 << PART_BITS;
/// No log gets there; what a client asks for may be beyond it.
const NUMBER_MAX: u64 = (1 << (63 - PART_BITS)) - 2;

fn first_id(number: u64) -> i64 {
    sql(number.min(NUMBER_MAX)) << PART_BITS
}

/// What a page has for rows, and the longest row that is not continued on another page.
const PAGE_ROOM: usize = PAGE_BYTES as usize - 8;
const ROW_BYTES_MAX: usize = PAGE_BYTES as usize - 39;
/// What a row takes beside its bytes, at most: its place in the page, lengths, id.
const ROW_EXTRA: usize = 17;
/// Less than this is not worth a row.
const ROW_BYTES_MIN: usize = 40;

/// How many bytes are left in the last page of a table. None are known to be at a start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Room(usize);

impl Table {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 2] = [Self::Events, Self::Packs];

    fn insert(self) -> &'static str {
        match self {
            Table::Events => "INSERT INTO events(id, bytes) VALUES (?1, ?2)",
            Table::Packs => "INSERT INTO packs(id, bytes) VALUES (?1, ?2)",
        }
    }

    /// Reads the rows of one block, or of all from one on.
    pub(crate) fn select(self) -> &'static str {
        match self {
            Table::Events => "SELECT id, bytes FROM events WHERE id >= ?1 AND id < ?2 ORDER BY id",
            Table::Packs => "SELECT id, bytes FROM packs WHERE id >= ?1 AND id < ?2 ORDER BY id",
        }
    }

    /// Reads rows backwards from an id.
    pub(crate) fn before(self) -> &'static str {
        match self {
            Table::Events => "SELECT id, bytes FROM events WHERE id <= ?1 ORDER BY id DESC",
            Table::Packs => "SELECT id, bytes FROM packs WHERE id <= ?1 ORDER BY id DESC",
        }
    }

    /// Finds the last row at or before an id.
    pub(crate) fn last(self) -> &'static str {
        match self {
            Table::Events => "SELECT id FROM events WHERE id <= ?1 ORDER BY id DESC LIMIT 1",
            Table::Packs => "SELECT id FROM packs WHERE id <= ?1 ORDER BY id DESC LIMIT 1",
        }
    }

    /// Writes a block behind all others of the table.
    pub(crate) fn append(
        self,
        connection: &Connection,
        number: u64,
        mut bytes: &[u8],
        room: &mut Room,
    ) -> rusqlite::Result<()> {
        let mut insert = connection.prepare_cached(self.insert())?;
        let first = first_id(number);
        for id in first..first + PARTS_MAX {
            if room.0 < ROW_EXTRA + ROW_BYTES_MIN {
                room.0 = PAGE_ROOM;
            }
            let len = bytes.len().min(ROW_BYTES_MAX).min(room.0 - ROW_EXTRA);
            let (row, rest) = bytes.split_at(len);
            insert.execute((id, row))?;
            room.0 -= len + ROW_EXTRA;
            bytes = rest;
            if bytes.is_empty() {
                return Ok(());
            }
        }
        let problem = "a block has more rows than it may have, which is a bug of this program";
        Err(rusqlite::Error::ToSqlConversionFailure(problem.into()))
    }

    /// Removes a block; returns how many rows it had.
    pub(crate) fn remove(self, connection: &Connection, number: u64) -> rusqlite::Result<usize> {
        let delete = match self {
            Table::Events => "DELETE FROM events WHERE id >= ?1 AND id < ?2",
            Table::Packs => "DELETE FROM packs WHERE id >= ?1 AND id < ?2",
        };
        let first = first_id(number);
        connection.execute(delete, [first, first + PARTS_MAX])
    }

    /// Writes a block again in its own place.
    pub(crate) fn replace(
        self,
        connection: &Connection,
        number: u64,
        bytes: &[u8],
    ) -> rusqlite::Result<()> {
        self.remove(connection, number)?;
        self.append(connection, number, bytes, &mut Room::default())
    }

    /// Returns the number of the last block that begins at or before a number.
    pub(crate) fn holding(
        self,
        connection: &Connection,
        number: u64,
    ) -> Result<Option<u64>, StoreFault> {
        // Every id of the block itself, the largest part included.
        let id = first_id(number) | (PARTS_MAX - 1);
        connection
            .prepare_cached(self.last())
            .and_then(|mut select| {
                let found = select
                    .query_row([id], |row| row.get::<_, i64>(0))
                    .optional()?;
                Ok(found.map(number_of))
            })
            .map_err(fault)
    }

    /// Returns the last block that begins at or before a number, and its number: one walk backwards, because blocks
    /// have few rows.
    pub(crate) fn held(
        self,
        connection: &Connection,
        number: u64,
    ) -> Result<Option<(u64, Vec<u8>)>, StoreFault> {
        let read = || {
            let mut select = connection.prepare_cached(self.before())?;
            let mut rows = select.query([first_id(number) | (PARTS_MAX - 1)])?;
            let mut parts: Vec<Vec<u8>> = Vec::new();
            let mut found = None;
            while let Some(row) = rows.next()? {
                let id: i64 = row.get(0)?;
                // A block whose first rows are lost ends where the one before it begins.
                if found.is_some_and(|number| number != number_of(id)) {
                    break;
                }
                found = Some(number_of(id));
                parts.push(row.get_ref(1)?.as_blob()?.to_vec());
                if id & (PARTS_MAX - 1) == 0 {
                    break;
                }
            }
            parts.reverse();
            Ok(found.map(|number| (number, parts.concat())))
        };
        read().map_err(fault)
    }

    /// Returns the bytes of a block; none when there is no such block. A lost row makes them too few.
    pub(crate) fn bytes(
        self,
        connection: &Connection,
        number: u64,
    ) -> Result<Option<Vec<u8>>, StoreFault> {
        let first = first_id(number);
        let read = || {
            let mut select = connection.prepare_cached(self.select())?;
            let mut rows = select.query([first, first + PARTS_MAX])?;
            let mut bytes: Option<Vec<u8>> = None;
            while let Some(row) = rows.next()? {
                let part = row.get_ref(1)?.as_blob()?;
                bytes.get_or_insert_default().extend_from_slice(part);
            }
            Ok(bytes)
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
        let mut select = connection.prepare_cached(self.select()).map_err(fault)?;
        let mut rows = select.query([first_id(number), i64::MAX]).map_err(fault)?;
        let mut block: Option<(u64, Vec<u8>)> = None;
        while let Some(row) = rows.next().map_err(fault)? {
            let number = number_of(row.get(0).map_err(fault)?);
            let part = row.get_ref(1).map_err(fault)?;
            let part = part.as_blob().map_err(|error| fault(error.into()))?;
            match &mut block {
                Some((known, bytes)) if *known == number => bytes.extend_from_slice(part),
                other => {
                    let done = other.replace((number, part.to_vec()));
                    if let Some((number, bytes)) = done
                        && !found(Position(number), &bytes)?
                    {
                        return Ok(());
                    }
                }
            }
        }
        match block {
            Some((number, bytes)) => found(Position(number), &bytes).map(drop),
            None => Ok(()),
        }
    }
}

fn number_of(id: i64) -> u64 {
    u64::try_from(id >> PART_BITS).unwrap_or(0)
}
