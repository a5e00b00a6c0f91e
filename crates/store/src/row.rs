//! Events and documents as rows: what is stored, column by column, and back.
//!
//! The same [`DocumentRow::of`] writes a document and checks one: what verification compares is what a commit
//! would have stored.

use std::sync::Arc;

use canon::sha256;
use domain::{Document, Links, Position, State, Timestamp};
use engine::port::{StoreFault, StoredEvent};
use rusqlite::{Row, ToSql};

/// A position as SQLite keeps it. Positions beyond its integers cannot exist.
pub(crate) fn sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn sql_link(link: Option<Position>) -> Option<i64> {
    link.map(|position| sql(position.0))
}

fn link(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Position>> {
    Ok(row.get::<_, Option<u64>>(column)?.map(Position))
}

/// An event as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    /// Where it stands.
    pub position: Position,
    /// Key of the resource it happened to.
    pub resource: Position,
    /// What it belongs to.
    pub links: Links,
    /// Tells decayed bytes; see [`EventRow::checksum_of`]. Proves nothing against people: receipts do that.
    pub checksum: i64,
    /// The stored bytes.
    pub bytes: Arc<[u8]>,
}

impl EventRow {
    pub(crate) const COLUMNS: &str =
        "position, resource, workspace, session, task, checksum, bytes";

    /// Returns the first eight bytes of the SHA-256 of an event's bytes.
    pub fn checksum_of(bytes: &[u8]) -> i64 {
        let [a, b, c, d, e, f, g, h, ..] = *sha256(bytes).as_bytes();
        i64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            position: Position(row.get(0)?),
            resource: Position(row.get(1)?),
            links: Links {
                workspace: link(row, 2)?,
                session: link(row, 3)?,
                task: link(row, 4)?,
            },
            checksum: row.get(5)?,
            bytes: row.get_ref(6)?.as_blob()?.into(),
        })
    }

    pub(crate) fn into_stored(self) -> StoredEvent {
        StoredEvent {
            position: self.position,
            links: self.links,
            resource: self.resource,
            bytes: self.bytes,
        }
    }
}

/// A document as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentRow {
    /// Position of the event that created it.
    pub key: Position,
    /// Its public id.
    pub id: Box<str>,
    /// The number of its kind, see [`domain::ResourceKind::number`].
    pub kind: u8,
    /// How many events it folds.
    pub version: u64,
    /// Position of the last of them.
    pub tip: Position,
    /// What it belongs to.
    pub links: Links,
    /// True while it is listed among the open ones.
    pub open: bool,
    /// When it was created, in microseconds.
    pub created_at: i64,
    /// When it was last changed, in microseconds.
    pub updated_at: i64,
    /// The JSON of its state.
    pub body: Vec<u8>,
}

/// Returns the stored bytes of a document's state.
///
/// # Panics
/// Never: a state has no map with keys other than strings and no number outside JSON.
pub fn document_bytes(document: &Document) -> Vec<u8> {
    #[expect(
        clippy::expect_used,
        reason = "writing a state to memory cannot fail: its types all have a JSON form"
    )]
    serde_json::to_vec(&document.state).expect("a state has a JSON form")
}

impl DocumentRow {
    pub(crate) const COLUMNS: &str =
        "key, id, kind, version, tip, workspace, session, task, open, created_at, updated_at, body";

    /// Returns the row that a document is stored as.
    pub fn of(document: &Document) -> Self {
        Self {
            key: document.key,
            id: document.id.clone(),
            kind: document.state.kind().number(),
            version: document.version,
            tip: document.tip,
            links: document.links,
            open: document.state.is_open(),
            created_at: document.created_at.as_micros(),
            updated_at: document.updated_at.as_micros(),
            body: document_bytes(document),
        }
    }

    /// Returns the document that a row stores.
    ///
    /// # Errors
    /// The row is damaged: the body is no state, or not of the row's kind.
    pub fn document(&self) -> Result<Document, StoreFault> {
        let damaged = |problem: String| {
            StoreFault::new(format!(
                "document `{}` is damaged: {problem}; run `reprise log verify`",
                self.id
            ))
        };
        let state: State =
            serde_json::from_slice(&self.body).map_err(|error| damaged(error.to_string()))?;
        if state.kind().number() != self.kind {
            return Err(damaged("its body is of another kind".to_owned()));
        }
        Ok(Document {
            key: self.key,
            id: self.id.clone(),
            version: self.version,
            tip: self.tip,
            links: self.links,
            created_at: Timestamp::from_micros(self.created_at),
            updated_at: Timestamp::from_micros(self.updated_at),
            state,
        })
    }

    /// Names the columns in which two rows differ.
    pub(crate) fn difference(&self, other: &Self) -> Vec<&'static str> {
        let columns = [
            ("key", self.key == other.key),
            ("id", self.id == other.id),
            ("kind", self.kind == other.kind),
            ("version", self.version == other.version),
            ("tip", self.tip == other.tip),
            ("links", self.links == other.links),
            ("open", self.open == other.open),
            ("created_at", self.created_at == other.created_at),
            ("updated_at", self.updated_at == other.updated_at),
            ("body", self.body == other.body),
        ];
        let different = columns.into_iter().filter(|(_, equal)| !equal);
        different.map(|(name, _)| name).collect()
    }

    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            key: Position(row.get(0)?),
            id: row.get::<_, String>(1)?.into(),
            kind: row.get(2)?,
            version: row.get(3)?,
            tip: Position(row.get(4)?),
            links: Links {
                workspace: link(row, 5)?,
                session: link(row, 6)?,
                task: link(row, 7)?,
            },
            open: row.get(8)?,
            created_at: row.get(9)?,
            updated_at: row.get(10)?,
            body: row.get(11)?,
        })
    }

    /// Writes the row: a new one whole, a known one in what can change. Answers false, or a constraint
    /// violation, when key and id are not of one document.
    pub(crate) fn put(&self, connection: &rusqlite::Connection) -> rusqlite::Result<bool> {
        // Links and creation never change: leaving them out spares their indexes.
        let mut statement = connection.prepare_cached(
            "INSERT INTO documents(key, id, kind, version, tip, workspace, session, task, open, created_at, \
             updated_at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) \
             ON CONFLICT(key) DO UPDATE SET version = excluded.version, tip = excluded.tip, \
             open = excluded.open, updated_at = excluded.updated_at, body = excluded.body \
             WHERE id = excluded.id",
        )?;
        let links = self.links;
        let values: [&dyn ToSql; 12] = [
            &sql(self.key.0),
            &&*self.id,
            &self.kind,
            &sql(self.version),
            &sql(self.tip.0),
            &sql_link(links.workspace),
            &sql_link(links.session),
            &sql_link(links.task),
            &self.open,
            &self.created_at,
            &self.updated_at,
            &self.body,
        ];
        Ok(statement.execute(values)? == 1)
    }
}
