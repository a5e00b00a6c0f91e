//! Documents as rows: what is stored, column by column, and back.
//!
//! The same [`DocumentRow::of`] writes a document and checks one: what verification compares is what a commit
//! would have stored.

use domain::{Document, Links, Position, State, Timestamp};
use engine::port::StoreFault;
use rusqlite::{Row, ToSql};

use crate::codec;

/// A position as SQLite keeps it. Positions beyond its integers cannot exist.
pub(crate) fn sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn sql_link(link: Option<Position>) -> Option<i64> {
    link.map(|position| sql(position.0))
}

/// Between the prefix of an id and the bytes of its body. No text contains it.
const ID_MARK: u8 = 0xff;
const ID_BODY_BYTES: usize = 16;

/// Returns the stored form of an id: `task_` and 32 hexadecimal digits become `task`, a mark and 16 bytes; any other
/// id is its own text.
pub(crate) fn id_bytes(id: &str) -> Vec<u8> {
    if let Some((prefix, digits)) = id.rsplit_once('_')
        && digits.len() == 2 * ID_BODY_BYTES
        && digits
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
        && let Ok(body) = u128::from_str_radix(digits, 16)
    {
        return [prefix.as_bytes(), &[ID_MARK], &body.to_be_bytes()].concat();
    }
    id.as_bytes().to_vec()
}

fn id_text(stored: &[u8]) -> Box<str> {
    if let Some((rest, body)) = stored.split_last_chunk::<ID_BODY_BYTES>()
        && let Some((&ID_MARK, prefix)) = rest.split_last()
    {
        let prefix = String::from_utf8_lossy(prefix);
        return format!("{prefix}_{:032x}", u128::from_be_bytes(*body)).into();
    }
    String::from_utf8_lossy(stored).into()
}

/// Further links as stored: eight bytes each; null for none, which nearly all documents have.
pub(crate) fn further_bytes(links: &[Position]) -> Option<Vec<u8>> {
    let bytes = links.iter().flat_map(|link| link.0.to_be_bytes());
    (!links.is_empty()).then(|| bytes.collect())
}

pub(crate) fn further(stored: Option<Vec<u8>>) -> Box<[Position]> {
    let stored = stored.unwrap_or_default();
    let (links, _) = stored.as_chunks();
    let links = links.iter().copied();
    links
        .map(|link| Position(u64::from_be_bytes(link)))
        .collect()
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
    /// Columns that hold what is never written there, though it can be read: whoever looks a document up by them misses it.
    pub odd: Vec<&'static str>,
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
    pub(crate) const COLUMNS: &str = "key, id, kind, version, tip, workspace, session, task, open, created_at, updated_at, body, further";

    /// Returns the row that a document is stored as.
    pub fn of(document: &Document) -> Self {
        Self {
            key: document.key,
            id: document.id.clone(),
            kind: document.state.kind().number(),
            version: document.version,
            tip: document.tip,
            links: document.links.clone(),
            open: document.state.is_open(),
            created_at: document.created_at.as_micros(),
            updated_at: document.updated_at.as_micros(),
            body: document_bytes(document),
            odd: Vec::new(),
        }
    }

    /// Returns the document that a row stores.
    ///
    /// # Errors
    /// The row is damaged: the body is no state, or not of the row's kind.
    pub fn document(&self) -> Result<Document, StoreFault> {
        let damaged = |problem: String| {
            StoreFault::new(format!(
                "document `{}` is damaged: {problem}; `reprise log rebuild --write` makes it again from its events",
                self.id
            ))
        };
        if !self.odd.is_empty() {
            let columns = self.odd.join(", ");
            return Err(damaged(format!(
                "its index does not match its content ({columns})"
            )));
        }
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
            links: self.links.clone(),
            created_at: Timestamp::from_micros(self.created_at),
            updated_at: Timestamp::from_micros(self.updated_at),
            state,
        })
    }

    /// The body without a Task's ledger, which older programs did not write: Tasks that they began have none until they
    /// end. None when there is nothing to leave out.
    fn body_of_older(&self) -> Option<Vec<u8>> {
        let mut document = self.document().ok()?;
        let State::Task(task) = &mut document.state else {
            return None;
        };
        task.ledger.take()?;
        Some(document_bytes(&document))
    }

    /// Names the columns in which a stored row differs from what its events fold to, which is this one.
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
            (
                "body",
                self.body == other.body || self.body_of_older().as_ref() == Some(&other.body),
            ),
        ];
        let different = columns
            .into_iter()
            .filter(|(name, equal)| !equal || other.odd.contains(name));
        different.map(|(name, _)| name).collect()
    }

    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let mut odd = Vec::new();
        // What stands there instead is named by verification, which goes on; nobody else gets the document.
        let mut number = |column: usize, name: &'static str| -> rusqlite::Result<u64> {
            let stored: i64 = row.get(column)?;
            Ok(u64::try_from(stored).unwrap_or_else(|_| {
                odd.push(name);
                0
            }))
        };
        let (version, tip) = (number(3, "version")?, number(4, "tip")?);
        let kind = number(2, "kind")?;
        let open = number(8, "open")?;
        let mut link = |column: usize| -> rusqlite::Result<Option<Position>> {
            let stored: Option<i64> = row.get(column)?;
            match stored.map(u64::try_from) {
                None => Ok(None),
                Some(Ok(link)) => Ok(Some(Position(link))),
                Some(Err(_)) => {
                    odd.push("links");
                    Ok(None)
                }
            }
        };
        let [workspace, session, task] = [link(5)?, link(6)?, link(7)?];
        let stored_id = row.get_ref(1)?.as_blob()?;
        let id = id_text(stored_id);
        let stored_further: Option<Vec<u8>> = row.get(12)?;
        let further = further(stored_further.clone());
        let forms = [
            ("id", id_bytes(&id) == stored_id),
            ("links", further_bytes(&further) == stored_further),
            ("open", open <= 1),
            ("kind", kind < u64::from(u8::MAX)),
        ];
        odd.extend(
            forms
                .iter()
                .filter(|(_, fits)| !fits)
                .map(|(name, _)| *name),
        );
        Ok(Self {
            key: Position(row.get(0)?),
            id,
            kind: u8::try_from(kind).unwrap_or(u8::MAX),
            version,
            tip: Position(tip),
            links: Links {
                workspace,
                session,
                task,
                further,
            },
            open: open == 1,
            created_at: row.get(9)?,
            updated_at: row.get(10)?,
            body: {
                let stored = row.get_ref(11)?.as_blob()?;
                // Damaged bytes are no state either: whoever needs one is told so, and verification goes on.
                codec::decompress(stored).unwrap_or_else(|_| stored.to_vec())
            },
            odd,
        })
    }

    fn stored_body(&self) -> rusqlite::Result<Vec<u8>> {
        codec::compress(&self.body)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
    }

    /// Writes the row of a document that must be at this version so far; at 0 it must not be there. Answers false, or a
    /// constraint violation, when it is not so. Looking and writing are one: a commit does this for every document.
    pub(crate) fn put_after(
        &self,
        connection: &rusqlite::Connection,
        version: u64,
    ) -> rusqlite::Result<bool> {
        if version == 0 {
            return self.insert(connection);
        }
        // What is open is indexed, and seldom changes: leaving it out spares these indexes.
        let same = "UPDATE documents SET version = ?1, tip = ?2, updated_at = ?3, body = ?4 \
             WHERE key = ?5 AND id = ?6 AND version = ?7 AND open = ?8";
        let other = "UPDATE documents SET version = ?1, tip = ?2, updated_at = ?3, body = ?4, open = ?8 \
             WHERE key = ?5 AND id = ?6 AND version = ?7";
        let body = self.stored_body()?;
        let values: [&dyn ToSql; 8] = [
            &sql(self.version),
            &sql(self.tip.0),
            &self.updated_at,
            &body,
            &sql(self.key.0),
            &id_bytes(&self.id),
            &sql(version),
            &self.open,
        ];
        Ok(connection.prepare_cached(same)?.execute(values)? == 1
            || connection.prepare_cached(other)?.execute(values)? == 1)
    }

    fn insert(&self, connection: &rusqlite::Connection) -> rusqlite::Result<bool> {
        let insert = "INSERT INTO documents(key, id, kind, version, tip, workspace, session, task, open, created_at, \
             updated_at, body, further) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
        self.execute(connection, insert)
    }

    /// Writes the row: a new one whole, a known one in what can change. Answers false, or a constraint
    /// violation, when key and id are not of one document.
    pub(crate) fn put(&self, connection: &rusqlite::Connection) -> rusqlite::Result<bool> {
        // Links and creation never change: leaving them out spares their indexes.
        let put = "INSERT INTO documents(key, id, kind, version, tip, workspace, session, task, open, created_at, \
             updated_at, body, further) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) \
             ON CONFLICT(key) DO UPDATE SET version = excluded.version, tip = excluded.tip, \
             open = excluded.open, updated_at = excluded.updated_at, body = excluded.body \
             WHERE id = excluded.id";
        self.execute(connection, put)
    }

    fn execute(
        &self,
        connection: &rusqlite::Connection,
        statement: &str,
    ) -> rusqlite::Result<bool> {
        let mut statement = connection.prepare_cached(statement)?;
        let links = &self.links;
        let body = self.stored_body()?;
        let values: [&dyn ToSql; 13] = [
            &sql(self.key.0),
            &id_bytes(&self.id),
            &self.kind,
            &sql(self.version),
            &sql(self.tip.0),
            &sql_link(links.workspace),
            &sql_link(links.session),
            &sql_link(links.task),
            &self.open,
            &self.created_at,
            &self.updated_at,
            &body,
            &further_bytes(&links.further),
        ];
        Ok(statement.execute(values)? == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(ledger: &serde_json::Value) -> DocumentRow {
        let state = serde_json::json!({
            "object": "task", "session_id": "session_1", "workspace_id": "workspace_local", "status": "WORKING", "created_by": "a",
            "workflow": "agent", "branch_id": null, "parent_task_id": null, "submitted": 2, "input": 2,
            "waits_for": null, "requests": 0, "started_at": null, "completed_at": null, "canceled_at": null,
            "outcome_id": null, "receipt_id": null, "failure": null, "ledger": ledger,
        });
        let state = serde_json::from_value(state).unwrap();
        let time = Timestamp::from_micros(1);
        DocumentRow::of(&Document {
            key: Position(1),
            id: "task_1".into(),
            version: 1,
            tip: Position(1),
            links: Links::default(),
            created_at: time,
            updated_at: time,
            state,
        })
    }

    #[test]
    fn a_stored_task_may_lack_its_ledger_and_may_not_have_another() {
        let digest = canon::sha256(b"w");
        let folded = task(&serde_json::json!({"workflow": digest, "open": ["llm:main:1"]}));
        let older = task(&serde_json::Value::Null);
        let other = task(&serde_json::json!({"workflow": digest}));
        assert!(folded.difference(&older).is_empty());
        assert_eq!(folded.difference(&other), ["body"]);
        assert_eq!(older.difference(&folded), ["body"]);
        let mut elsewhere = older;
        elsewhere.body.push(b' ');
        assert_eq!(folded.difference(&elsewhere), ["body"]);
    }

    #[test]
    fn ids_come_back() {
        let packed = "chain_session_01a1df3c006b71e69ea20a83bb97dc88";
        assert_eq!(id_bytes(packed).len(), "chain_session".len() + 17);
        for id in [
            packed,
            "task_00000000000000000000000000000001",
            "_00000000000000000000000000000001",
            // Not as we write them: letters, length, case, sign.
            "workspace_local",
            "task_01a1df3c006b71e69ea20a83bb97dc8",
            "task_01A1DF3C006B71E69EA20A83BB97DC88",
            "task_+1a1df3c006b71e69ea20a83bb97dc88",
            "task_01a1df3c006b71e69ea20a83bb97dc88_",
            "01a1df3c006b71e69ea20a83bb97dc88",
            "",
            "\u{ff}0123456789abcdef",
        ] {
            assert_eq!(&*id_text(&id_bytes(id)), id);
        }
    }
}
