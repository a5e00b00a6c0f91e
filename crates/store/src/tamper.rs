//! Changing a stored log behind its back, for tests: as decay would, or a bug of ours.
//!
//! Blocks are written again in their own place, whole and with a checksum that fits, unless bytes are flipped.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "this is test code, compiled only with the feature for tests"
)]

use std::path::Path;

use canon::Digest;
use domain::Position;
use engine::port::StoredEvent;
use rusqlite::{Connection, OptionalExtension};

use crate::block::Block;
use crate::codec;
use crate::directory::database;
use crate::row::id_bytes;
use crate::table::Table;

/// A database that is about to be harmed.
#[derive(Debug)]
pub struct Tamper {
    connection: Connection,
}

impl Tamper {
    /// Opens the database of a directory, beside whoever works in it.
    pub fn open(directory: &Path) -> Self {
        let connection = Connection::open(database(directory)).unwrap();
        connection
            .busy_timeout(std::time::Duration::from_secs(10))
            .unwrap();
        Self { connection }
    }

    /// Runs a statement that must change one row.
    pub fn execute(&self, sql: &str) {
        assert_eq!(self.connection.execute(sql, []).unwrap(), 1, "{sql}");
    }

    /// Runs a statement and returns how many rows it changed.
    pub fn run(&self, sql: &str) -> usize {
        self.connection.execute(sql, []).unwrap()
    }

    /// Counts the rows of a table.
    pub fn count(&self, table: &str) -> u64 {
        let select = format!("SELECT count(*) FROM {table}");
        self.connection
            .query_row(&select, [], |row| row.get(0))
            .unwrap()
    }

    /// Swaps the pages of two indexes, so that neither says what its table says.
    pub fn swap_indexes(&self, one: &str, other: &str) {
        let (first, second) = (self.root_page(one), self.root_page(other));
        let set = |name: &str, page: u32| {
            let update = "UPDATE sqlite_schema SET rootpage = ?2 WHERE name = ?1";
            self.connection.execute(update, (name, page)).unwrap();
        };
        self.connection
            .pragma_update(None, "writable_schema", true)
            .unwrap();
        set(one, second);
        set(other, first);
        let version: i64 = self
            .connection
            .pragma_query_value(None, "schema_version", |row| row.get(0))
            .unwrap();
        self.connection
            .pragma_update(None, "schema_version", version + 1)
            .unwrap();
    }

    /// Returns the first page of a table or an index.
    pub fn root_page(&self, name: &str) -> u32 {
        let select = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
        self.connection
            .query_row(select, [name], |row| row.get(0))
            .unwrap()
    }

    /// Returns the events of the block that holds a position.
    pub fn events(&self, position: Position) -> Vec<StoredEvent> {
        let first = self.block_of(position);
        self.read(Table::Events, first).events
    }

    /// Returns every event, ascending.
    pub fn all_events(&self) -> Vec<StoredEvent> {
        let mut events = Vec::new();
        Table::Events
            .each(&self.connection, 0, |first, bytes| {
                events.extend(Block::decode(first, bytes).unwrap().events);
                Ok::<_, engine::port::StoreFault>(true)
            })
            .unwrap();
        events
    }

    /// Returns the key of a document.
    pub fn key(&self, id: &str) -> Position {
        let sql = "SELECT key FROM documents WHERE id = ?1";
        let key = self
            .connection
            .query_row(sql, [id_bytes(id)], |row| row.get(0));
        Position(key.unwrap())
    }

    /// Changes an event.
    pub fn event(&self, position: Position, change: impl FnOnce(&mut StoredEvent)) {
        self.change(Table::Events, self.block_of(position), |block| {
            let mut events = block.events.iter_mut();
            change(events.find(|event| event.position == position).unwrap());
        });
    }

    /// Changes the stored bytes of the block that holds an event.
    pub fn raw(&self, position: Position, change: impl FnOnce(&mut Vec<u8>)) {
        let first = self.block_of(position);
        let mut bytes = Table::Events
            .bytes(&self.connection, first)
            .unwrap()
            .unwrap();
        change(&mut bytes);
        self.write(Table::Events, first, &bytes);
    }

    /// Writes all blocks from the one that holds an event to the last as one, as large as that may be.
    pub fn join(&self, position: Position) {
        let first = self.block_of(position);
        let mut joined = Block::default();
        let mut numbers = Vec::new();
        Table::Events
            .each(&self.connection, first, |number, bytes| {
                let block = Block::decode(number, bytes).unwrap();
                self.run(&format!(
                    "UPDATE blobs SET block = {first}, number = number + {} WHERE pack = 0 AND block = {}",
                    joined.blobs.len(),
                    number.0
                ));
                joined.events.extend(block.events);
                joined.blobs.extend(block.blobs);
                numbers.push(number.0);
                Ok::<_, engine::port::StoreFault>(true)
            })
            .unwrap();
        for number in numbers.into_iter().skip(1) {
            self.remove(Table::Events, number);
        }
        self.run(&format!("DELETE FROM event_links WHERE first >= {first}"));
        self.run(&format!(
            "DELETE FROM recent_links WHERE number >= {first} AND kind = 0"
        ));
        for link in joined.links() {
            let insert = "INSERT INTO event_links(link, first) VALUES (?1, ?2)";
            let values = [link.0, first].map(crate::row::sql);
            self.connection.execute(insert, values).unwrap();
        }
        Table::Events.put(&self.connection, first, &joined).unwrap();
    }

    /// Drops the block that holds an event; returns the positions that are gone.
    pub fn lose(&self, position: Position) -> Vec<Position> {
        let gone = self.events(position);
        self.remove(Table::Events, self.block_of(position));
        gone.into_iter().map(|event| event.position).collect()
    }

    /// Changes the content of a small blob; false when it is a file or not there.
    pub fn blob(&self, digest: &Digest, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let sql = "SELECT pack, block, number FROM blobs WHERE digest = ?1";
        let place = self
            .connection
            .query_row(sql, [digest.as_bytes()], |row| {
                Ok((row.get::<_, bool>(0)?, row.get(1)?, row.get::<_, usize>(2)?))
            })
            .optional();
        let Some((in_pack, number, place)) = place.unwrap() else {
            return false;
        };
        let table = if in_pack { Table::Packs } else { Table::Events };
        self.change(table, number, |block| {
            change(block.blobs.get_mut(place).unwrap());
        });
        true
    }

    /// Changes the JSON of a document.
    pub fn document(&self, id: &str, change: impl FnOnce(&mut String)) {
        let sql = "SELECT body FROM documents WHERE id = ?1";
        let body: Vec<u8> = self
            .connection
            .query_row(sql, [id_bytes(id)], |row| row.get(0))
            .unwrap();
        let mut text = String::from_utf8(codec::decompress(&body).unwrap()).unwrap();
        change(&mut text);
        let body = codec::compress(text.as_bytes()).unwrap();
        let sql = "UPDATE documents SET body = ?2 WHERE id = ?1";
        let changed = self.connection.execute(sql, (id_bytes(id), body));
        assert_eq!(changed.unwrap(), 1);
    }

    /// Sets columns of a document.
    pub fn set(&self, id: &str, columns: &str) {
        let sql = format!("UPDATE documents SET {columns} WHERE id = ?1");
        let changed = self.connection.execute(&sql, [id_bytes(id)]);
        assert_eq!(changed.unwrap(), 1, "{sql}");
    }

    /// Drops a document.
    pub fn lose_document(&self, id: &str) {
        let sql = "DELETE FROM documents WHERE id = ?1";
        assert_eq!(self.connection.execute(sql, [id_bytes(id)]).unwrap(), 1);
    }

    fn block_of(&self, position: Position) -> u64 {
        Table::Events
            .holding(&self.connection, position.0)
            .unwrap()
            .unwrap()
    }

    fn read(&self, table: Table, number: u64) -> Block {
        let block = table.block(&self.connection, number);
        block.unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn change(&self, table: Table, number: u64, change: impl FnOnce(&mut Block)) {
        let changed = table.change(&self.connection, number, |block| {
            change(block);
            Ok(())
        });
        changed.unwrap();
    }

    fn write(&self, table: Table, number: u64, bytes: &[u8]) {
        table.put_bytes(&self.connection, number, bytes).unwrap();
    }

    fn remove(&self, table: Table, number: u64) {
        let sql = match table {
            Table::Events => "DELETE FROM events WHERE id = ?1",
            Table::Packs => "DELETE FROM packs WHERE id = ?1",
        };
        let removed = self.connection.execute(sql, [crate::row::sql(number)]);
        assert_eq!(removed.unwrap(), 1);
    }
}

/// Returns where this process writes a large blob before it has its name.
pub fn place_of_unnamed(directory: &Path, digest: &canon::Digest) -> std::path::PathBuf {
    crate::incoming::own_path(directory, &digest.hex())
}
