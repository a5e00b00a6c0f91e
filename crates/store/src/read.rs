//! The reads of the port as SQL, each on one connection.
//!
//! Every statement names the index it walks, so that a planner cannot choose a scan; a test looks at the plans.

use canon::Digest;
use domain::{Document, Position, ResourceKind, Timestamp};
use engine::port::{
    ApiKey, Claim, ClaimScope, LastEvents, ListQuery, NewestQuery, ReadEvents, Scope, StoreFault,
    StoredEvent,
};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params_from_iter};

use crate::block::Block;
use crate::fault::fault;
use crate::recent;
use crate::row::{DocumentRow, id_bytes, sql};
use crate::table::Table;

/// Reads several things as of one commit, or as of the transaction under way.
fn snapshot<T>(
    connection: &Connection,
    read: impl FnOnce(&Connection) -> Result<T, StoreFault>,
) -> Result<T, StoreFault> {
    if !connection.is_autocommit() {
        return read(connection);
    }
    let transaction = connection.unchecked_transaction().map_err(fault)?;
    let value = read(&transaction)?;
    transaction.commit().map_err(fault)?;
    Ok(value)
}

pub(crate) fn documents(
    connection: &Connection,
    ids: &[Box<str>],
) -> Result<Vec<Option<Document>>, StoreFault> {
    snapshot(connection, |connection| {
        ids.iter().map(|id| document(connection, id)).collect()
    })
}

pub(crate) fn document(connection: &Connection, id: &str) -> Result<Option<Document>, StoreFault> {
    let row = document_row(connection, id)?;
    row.map(|row| row.document()).transpose()
}

pub(crate) fn document_row(
    connection: &Connection,
    id: &str,
) -> Result<Option<DocumentRow>, StoreFault> {
    connection
        .prepare_cached(&document_query())
        .and_then(|mut select| {
            select
                .query_row([id_bytes(id)], DocumentRow::read)
                .optional()
        })
        .map_err(fault)
}

pub(crate) fn newest(
    connection: &Connection,
    query: NewestQuery,
) -> Result<Vec<Document>, StoreFault> {
    let before = query.before.map_or(i64::MAX, |before| sql(before.0));
    if let Some(session) = messages_of(query.kind, query.scope) {
        return messages(connection, &MESSAGES_BEFORE, session, before, query.limit);
    }
    select_documents(
        connection,
        &newest_query(query.kind, query.scope),
        [
            i64::from(query.kind.number()),
            before,
            sql(query.limit as u64),
        ],
        query.scope,
    )
}

fn newest_query(kind: ResourceKind, scope: Scope) -> String {
    if let Scope::Linked(_) = scope {
        return linked_query("<", "", "DESC");
    }
    let (index, filter) = indexed(kind, scope);
    format!(
        "SELECT {} FROM documents {index} \
         WHERE kind = ?1 AND key < ?2{filter} ORDER BY key DESC LIMIT ?3",
        DocumentRow::COLUMNS
    )
}

fn document_query() -> String {
    format!(
        "SELECT {} FROM documents WHERE id = ?1",
        DocumentRow::COLUMNS
    )
}

pub(crate) fn list(connection: &Connection, query: ListQuery) -> Result<Vec<Document>, StoreFault> {
    if let Some(session) = messages_of(query.kind, query.scope).filter(|_| !query.open_only) {
        let after = sql(query.after.0);
        return messages(connection, &MESSAGES_AFTER, session, after, query.limit);
    }
    if query.open_only {
        return list_open(connection, query);
    }
    let values = list_values(query);
    select_documents(connection, &list_query(query), values, query.scope)
}

fn list_values(query: ListQuery) -> [i64; 3] {
    let (kind, limit) = (query.kind.number(), query.limit as u64);
    [i64::from(kind), sql(query.after.0), sql(limit)]
}

/// Lists what is open without what is damaged: one Task that cannot be read must not keep all others from being worked on.
fn list_open(connection: &Connection, mut query: ListQuery) -> Result<Vec<Document>, StoreFault> {
    let (statement, limit) = (list_query(query), query.limit);
    let mut found = Vec::new();
    loop {
        query.limit = limit.saturating_sub(found.len());
        let rows = select_rows(connection, &statement, list_values(query), query.scope)?;
        let is_end = rows.len() < query.limit;
        for row in rows {
            query.after = row.key;
            match row.document() {
                Ok(document) => found.push(document),
                Err(fault) => tracing::error!(%fault, "left out of the open documents"),
            }
        }
        if is_end || found.len() >= limit {
            return Ok(found);
        }
    }
}

/// Returns the Session when its Messages are asked for: no index of documents has them.
fn messages_of(kind: ResourceKind, scope: Scope) -> Option<Position> {
    match (kind, scope) {
        (ResourceKind::Message, Scope::Session(session)) => Some(session),
        _ => None,
    }
}

fn messages(
    connection: &Connection,
    keys: &ByLink,
    session: Position,
    bound: i64,
    limit: usize,
) -> Result<Vec<Document>, StoreFault> {
    snapshot(connection, |connection| {
        let mut keys = keys.prepare(connection)?;
        let keys = keys.query_map([sql(session.0), bound, sql(limit as u64)], |row| row.get(0));
        let mut select = connection.prepare_cached(&keyed_query()).map_err(fault)?;
        let mut found = Vec::new();
        for key in keys.map_err(fault)? {
            let key: i64 = key.map_err(fault)?;
            let row = select.query_row([key], DocumentRow::read).optional();
            // A link is only a hint: what it leads to says itself whose it is. A list without it would look complete.
            let of_session = row.map_err(fault)?.filter(|row| {
                row.kind == ResourceKind::Message.number() && row.links.session == Some(session)
            });
            let Some(row) = of_session else {
                return Err(StoreFault::new(format!(
                    "the list of messages of the session at position {} is damaged at {key}; run `reprise log verify`",
                    session.0
                )));
            };
            found.push(row.document()?);
        }
        Ok(found)
    })
}

fn keyed_query() -> String {
    let columns = DocumentRow::COLUMNS;
    format!("SELECT {columns} FROM documents WHERE key = ?1")
}

fn select_documents(
    connection: &Connection,
    statement: &str,
    values: [i64; 3],
    scope: Scope,
) -> Result<Vec<Document>, StoreFault> {
    let rows = select_rows(connection, statement, values, scope)?;
    rows.iter().map(DocumentRow::document).collect()
}

fn select_rows(
    connection: &Connection,
    statement: &str,
    values: [i64; 3],
    scope: Scope,
) -> Result<Vec<DocumentRow>, StoreFault> {
    let values = values.into_iter().chain(scope_key(scope));
    let mut select = connection.prepare_cached(statement).map_err(fault)?;
    let rows = select.query_map(params_from_iter(values), DocumentRow::read);
    rows.and_then(Iterator::collect).map_err(fault)
}

fn list_query(query: ListQuery) -> String {
    let open = if query.open_only { " AND open = 1" } else { "" };
    if let Scope::Linked(_) = query.scope {
        return linked_query(">", open, "");
    }
    let (index, filter) = match query.open_only {
        true => {
            let index = match query.scope {
                Scope::Workspace(_) => "documents_workspace_open",
                Scope::Session(_) => "documents_session_open",
                // What belongs to one Task is little.
                Scope::Task(_) => "documents_task",
                Scope::All | Scope::Linked(_) => "documents_open",
            };
            (format!("INDEXED BY {index}"), in_scope(query.scope))
        }
        false => indexed(query.kind, query.scope),
    };
    format!(
        "SELECT {} FROM documents {index} \
         WHERE kind = ?1 AND key > ?2{open}{filter} ORDER BY key LIMIT ?3",
        DocumentRow::COLUMNS
    )
}

/// Walks the documents that are linked to one, from a key on or backwards from it.
fn linked_query(beyond: &str, filter: &str, order: &str) -> String {
    format!(
        "SELECT {} FROM (SELECT key AS linked FROM document_links WHERE link = ?4 AND kind = ?1 AND key {beyond} ?2) \
         CROSS JOIN documents ON key = linked{filter} ORDER BY linked {order} LIMIT ?3",
        DocumentRow::COLUMNS
    )
}

/// Returns the index that finds documents of a kind in a scope, and the conditions that belong to it.
fn indexed(kind: ResourceKind, scope: Scope) -> (String, String) {
    // Messages are in the index of Tasks alone; those of a Session have a table. Nobody lists them more widely, and whoever did
    // would walk all documents.
    let is_without = !matches!(scope, Scope::Task(_));
    if is_without && kind == ResourceKind::Message {
        return ("NOT INDEXED".to_owned(), in_scope(scope));
    }
    let column = scope_column(scope).unwrap_or("kind");
    // The planner must see the condition of the index in the query to use it.
    let bound = if is_without { " AND kind <> 4" } else { "" };
    (
        format!("INDEXED BY documents_{column}"),
        format!("{bound}{}", in_scope(scope)),
    )
}

fn in_scope(scope: Scope) -> String {
    scope_column(scope).map_or(String::new(), |column| format!(" AND {column} = ?4"))
}

fn scope_column(scope: Scope) -> Option<&'static str> {
    match scope {
        Scope::All | Scope::Linked(_) => None,
        Scope::Workspace(_) => Some("workspace"),
        Scope::Session(_) => Some("session"),
        Scope::Task(_) => Some("task"),
    }
}

fn scope_key(scope: Scope) -> Option<i64> {
    match scope {
        Scope::All => None,
        Scope::Workspace(key) | Scope::Session(key) | Scope::Task(key) | Scope::Linked(key) => {
            Some(sql(key.0))
        }
    }
}

/// A statement that walks what is linked to a resource: what was moved and what has gathered since ([`crate::recent`]), merged
/// in one order. One statement reads both as of one commit.
struct ByLink {
    text: &'static str,
    /// The same for a log that no newer program has worked on: there everything stands in one place.
    older: &'static str,
}

impl ByLink {
    fn prepare<'a>(&self, connection: &'a Connection) -> Result<CachedStatement<'a>, StoreFault> {
        let prepared = match connection.prepare_cached(self.text) {
            // Only now is it asked for: a read of any other log shall not pay for it.
            Err(_) if !recent::is_there(connection).map_err(fault)? => {
                connection.prepare_cached(self.older)
            }
            prepared => prepared,
        };
        prepared.map_err(fault)
    }
}

/// Finds the blocks with events of a link, from one on.
const LINKED: ByLink = ByLink {
    text: "SELECT first FROM event_links WHERE link = ?1 AND first >= ?2 \
         UNION SELECT number FROM recent_links WHERE number >= ?2 AND link = ?1 AND kind = 0 ORDER BY 1",
    older: "SELECT first FROM event_links WHERE link = ?1 AND first >= ?2 ORDER BY first",
};

/// Finds them backwards, from a position that they begin before.
const LINKED_BEFORE: ByLink = ByLink {
    text: "SELECT first FROM event_links WHERE link = ?1 AND first < ?2 \
         UNION SELECT number FROM recent_links WHERE number < ?2 AND link = ?1 AND kind = 0 ORDER BY 1 DESC",
    older: "SELECT first FROM event_links WHERE link = ?1 AND first < ?2 ORDER BY first DESC",
};

/// Finds the Messages of a Session, from a key on.
const MESSAGES_AFTER: ByLink = ByLink {
    text: "SELECT key FROM session_messages WHERE session = ?1 AND key > ?2 \
         UNION SELECT number FROM recent_links WHERE number > ?2 AND link = ?1 AND kind = 4 ORDER BY 1 LIMIT ?3",
    older: "SELECT key FROM documents INDEXED BY documents_session \
         WHERE kind = 4 AND session = ?1 AND key > ?2 ORDER BY key LIMIT ?3",
};

/// Finds them backwards.
const MESSAGES_BEFORE: ByLink = ByLink {
    text: "SELECT key FROM session_messages WHERE session = ?1 AND key < ?2 \
         UNION SELECT number FROM recent_links WHERE number < ?2 AND link = ?1 AND kind = 4 ORDER BY 1 DESC LIMIT ?3",
    older: "SELECT key FROM documents INDEXED BY documents_session \
         WHERE kind = 4 AND session = ?1 AND key < ?2 ORDER BY key DESC LIMIT ?3",
};

/// Returns where the block begins that may hold a position, of those with events of a link; 0 when all come after it.
fn linked_start(connection: &Connection, link: i64, position: u64) -> Result<i64, StoreFault> {
    let mut select = LINKED_BEFORE.prepare(connection)?;
    let start = select.query_row([link, sql(position.saturating_add(1))], |row| row.get(0));
    Ok(start.optional().map_err(fault)?.unwrap_or(0))
}

pub(crate) fn events(
    blocks: &Connection,
    query: ReadEvents,
) -> Result<Vec<StoredEvent>, StoreFault> {
    snapshot(blocks, |connection| {
        let next = query.after.0.saturating_add(1);
        let mut found = Vec::new();
        // False when there are enough.
        let mut add = |first: Position, bytes: &[u8]| -> Result<bool, StoreFault> {
            let events = decode(first, bytes)?.events.into_iter();
            let fitting = events
                .filter(|event| event.position.0 >= next && query.scope.contains(&event.links));
            found.extend(fitting.take(query.limit - found.len()));
            Ok(found.len() < query.limit)
        };
        let Some(link) = scope_key(query.scope) else {
            let start = Table::Events.holding(connection, next)?.unwrap_or(next);
            Table::Events.each(connection, start, add)?;
            return Ok(found);
        };
        let start = linked_start(connection, link, next)?;
        let mut select = LINKED.prepare(connection)?;
        let mut firsts = select.query([link, start]).map_err(fault)?;
        while let Some(row) = firsts.next().map_err(fault)? {
            let first = row.get(0).map_err(fault)?;
            if !add(Position(first), &block_bytes(connection, first)?)? {
                break;
            }
        }
        Ok(found)
    })
}

/// Reads events backwards: block after block from the one on that holds the last position before the bound.
pub(crate) fn last_events(
    blocks: &Connection,
    query: LastEvents,
) -> Result<Vec<StoredEvent>, StoreFault> {
    snapshot(blocks, |connection| {
        let before = query.before.map_or(u64::MAX, |before| before.0);
        let mut found = Vec::new();
        // False when there are enough.
        let mut add = |first: u64, bytes: &[u8]| -> Result<bool, StoreFault> {
            let events = decode(Position(first), bytes)?.events.into_iter().rev();
            let fitting = events
                .filter(|event| event.position.0 < before && query.scope.contains(&event.links));
            found.extend(fitting.take(query.limit - found.len()));
            Ok(found.len() < query.limit)
        };
        let Some(link) = scope_key(query.scope) else {
            let mut last = before.saturating_sub(1);
            while let Some((first, bytes)) = Table::Events.held(connection, last)? {
                if !add(first, &bytes)? || first == 0 {
                    break;
                }
                last = first - 1;
            }
            return Ok(found);
        };
        let mut select = LINKED_BEFORE.prepare(connection)?;
        let mut firsts = select.query([link, sql(before)]).map_err(fault)?;
        while let Some(row) = firsts.next().map_err(fault)? {
            let first = row.get(0).map_err(fault)?;
            if !add(first, &block_bytes(connection, first)?)? {
                break;
            }
        }
        Ok(found)
    })
}

pub(crate) fn events_at(
    blocks: &Connection,
    positions: &[Position],
) -> Result<Vec<Option<StoredEvent>>, StoreFault> {
    snapshot(blocks, |connection| {
        let mut block = Block::default();
        let mut found = Vec::with_capacity(positions.len());
        for position in positions {
            // What is read together was often written together.
            if event_in(&block, *position).is_none()
                && let Some((first, bytes)) = Table::Events.held(connection, position.0)?
            {
                block = decode(Position(first), &bytes)?;
            }
            found.push(event_in(&block, *position).cloned());
        }
        Ok(found)
    })
}

fn event_in(block: &Block, position: Position) -> Option<&StoredEvent> {
    let offset = position.0.checked_sub(block.events.first()?.position.0)?;
    block.events.get(usize::try_from(offset).ok()?)
}

pub(crate) fn last_event(
    connection: &Connection,
    scope: Scope,
) -> Result<Option<Position>, StoreFault> {
    snapshot(connection, |connection| {
        let last_in = |first: u64, bytes: &[u8]| -> Result<Option<Position>, StoreFault> {
            let events = decode(Position(first), bytes)?.events;
            let mut fitting = events.iter().rev();
            let last = fitting.find(|event| scope.contains(&event.links));
            Ok(last.map(|event| event.position))
        };
        let Some(link) = scope_key(scope) else {
            let last = Table::Events.held(connection, u64::MAX)?;
            return last.map_or(Ok(None), |(first, bytes)| last_in(first, &bytes));
        };
        // A block may hold events that only refer to it, in another role than the scope's.
        let mut select = LINKED_BEFORE.prepare(connection)?;
        let mut firsts = select.query([link, i64::MAX]).map_err(fault)?;
        while let Some(row) = firsts.next().map_err(fault)? {
            let first = row.get(0).map_err(fault)?;
            if let Some(last) = last_in(first, &block_bytes(connection, first)?)? {
                return Ok(Some(last));
            }
        }
        Ok(None)
    })
}

fn block_bytes(connection: &Connection, first: u64) -> Result<Vec<u8>, StoreFault> {
    Ok(Table::Events.bytes(connection, first)?.unwrap_or_default())
}

fn decode(first: Position, bytes: &[u8]) -> Result<Block, StoreFault> {
    Block::decode(first, bytes).map_err(|problem| {
        StoreFault::new(format!(
            "the block of events from position {} on is damaged: {problem}; run `reprise log verify`",
            first.0
        ))
    })
}

const CLAIM: &str = "SELECT body, answer, expires_at FROM claims WHERE scope = ?1";

/// Reads claims; those that expired at the given time or before, by the time of claims, count as absent.
pub(crate) fn claims(
    connection: &Connection,
    scopes: &[ClaimScope],
    now: i64,
) -> Result<Vec<Option<Claim>>, StoreFault> {
    snapshot(connection, |connection| {
        let mut select = connection.prepare_cached(CLAIM).map_err(fault)?;
        let mut read = |scope: &ClaimScope| {
            let claim = select
                .query_row([scope.0.as_bytes()], |row| {
                    Ok(Claim {
                        scope: *scope,
                        body: Digest::from_bytes(row.get(0)?),
                        answer: Position(row.get(1)?),
                        expires_at: Timestamp::from_micros(row.get(2)?),
                    })
                })
                .optional()
                .map_err(fault)?;
            Ok(claim.filter(|claim| claim.expires_at.as_micros() > now))
        };
        scopes.iter().map(&mut read).collect()
    })
}

const BLOB: &str = "SELECT pack, block, number FROM blobs WHERE digest = ?1";

/// True when a small blob is stored.
pub(crate) fn has_blob(connection: &Connection, digest: &Digest) -> rusqlite::Result<bool> {
    connection.prepare_cached(BLOB)?.exists([digest.as_bytes()])
}

/// Reads a small blob, unchecked. Of a damaged block it returns the bytes of the block: they are what is stored.
pub(crate) fn blob(blocks: &Connection, digest: &Digest) -> Result<Option<Vec<u8>>, StoreFault> {
    snapshot(blocks, |connection| {
        let read = |row: &Row<'_>| {
            let table = if row.get(0)? {
                Table::Packs
            } else {
                Table::Events
            };
            Ok((table, row.get(1)?, row.get::<_, usize>(2)?))
        };
        let place = connection
            .prepare_cached(BLOB)
            .and_then(|mut select| select.query_row([digest.as_bytes()], read).optional())
            .map_err(fault)?;
        let Some((table, block, number)) = place else {
            return Ok(None);
        };
        let bytes = table.bytes(connection, block)?.unwrap_or_default();
        let content = Block::decode(Position(block), &bytes)
            .ok()
            .and_then(|mut block| Some(std::mem::take(block.blobs.get_mut(number)?)));
        Ok(Some(content.unwrap_or(bytes)))
    })
}

const API_KEY: &str = "SELECT id, digest, actor, workspaces, scopes, created_at, revoked_at, expires_at FROM api_keys";
const API_KEY_BY_DIGEST: &str = "SELECT id, digest, actor, workspaces, scopes, created_at, revoked_at, expires_at \
     FROM api_keys WHERE digest = ?1 ORDER BY number LIMIT 1";

pub(crate) fn api_key(
    connection: &Connection,
    digest: &Digest,
) -> Result<Option<ApiKey>, StoreFault> {
    connection
        .prepare_cached(API_KEY_BY_DIGEST)
        .and_then(|mut select| {
            select
                .query_row([digest.as_bytes()], read_api_key)
                .optional()
        })
        .map_err(fault)
}

pub(crate) fn api_keys(connection: &Connection) -> Result<Vec<ApiKey>, StoreFault> {
    let mut select = connection
        .prepare_cached(&format!("{API_KEY} ORDER BY number"))
        .map_err(fault)?;
    let rows = select.query_map([], read_api_key).map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

fn read_api_key(row: &Row<'_>) -> rusqlite::Result<ApiKey> {
    let list = |column, text: String| {
        serde_json::from_str::<Vec<String>>(&text).map_err(|error| {
            let kind = rusqlite::types::Type::Text;
            rusqlite::Error::FromSqlConversionFailure(column, kind, error.into())
        })
    };
    let workspaces: Option<String> = row.get(3)?;
    Ok(ApiKey {
        id: row.get(0)?,
        digest: Digest::from_bytes(row.get(1)?),
        actor: row.get(2)?,
        workspaces: workspaces.map(|text| list(3, text)).transpose()?,
        scopes: list(4, row.get(4)?)?,
        created_at: Timestamp::from_micros(row.get(5)?),
        revoked_at: row.get::<_, Option<i64>>(6)?.map(Timestamp::from_micros),
        expires_at: row.get::<_, Option<i64>>(7)?.map(Timestamp::from_micros),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{schema, tree};

    #[test]
    fn no_read_scans_or_sorts() {
        let connection = schema::scratch(":memory:".as_ref()).unwrap();
        let scopes = [
            Scope::All,
            Scope::Workspace(Position(1)),
            Scope::Session(Position(1)),
            Scope::Task(Position(1)),
            Scope::Linked(Position(1)),
        ];
        let mut statements = vec![
            document_query(),
            newest_query(ResourceKind::Batch, Scope::All),
            newest_query(ResourceKind::Message, Scope::All),
            newest_query(ResourceKind::Message, Scope::Linked(Position::START)),
            keyed_query(),
            tree::TREE.to_owned(),
            tree::LEAF_INDEX.to_owned(),
            tree::HEAD_SIZE.to_owned(),
            tree::LEAVES.to_owned(),
            tree::TREE_HASHES.to_owned(),
            CLAIM.to_owned(),
            BLOB.to_owned(),
            API_KEY_BY_DIGEST.to_owned(),
        ];
        for by_link in [LINKED, LINKED_BEFORE, MESSAGES_AFTER, MESSAGES_BEFORE] {
            statements.push(by_link.text.to_owned());
        }
        for table in Table::ALL {
            let texts = [table.select(), table.select_from(), table.select_last()];
            statements.extend(texts.map(str::to_owned));
        }
        for scope in scopes {
            for kind in [ResourceKind::Task, ResourceKind::Message] {
                for open_only in [true, false] {
                    statements.push(list_query(ListQuery {
                        kind,
                        scope,
                        open_only,
                        after: Position::START,
                        limit: 1,
                    }));
                }
            }
        }
        for statement in statements {
            let mut explain = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {statement}"))
                .unwrap();
            let parameters = vec![rusqlite::types::Null; explain.parameter_count()];
            let plan: Vec<String> = explain
                .query_map(params_from_iter(parameters), |row| row.get("detail"))
                .unwrap()
                .map(Result::unwrap)
                .collect();
            let plan = plan.join("; ");
            assert!(!plan.contains("SCAN"), "{statement}\n{plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{statement}\n{plan}");
            // The whole key of the index is used: what is equal first, then the range.
            let index = statement.split("INDEXED BY ").nth(1);
            let range = match statement.contains("DESC") {
                true => "rowid<?",
                false => "rowid>?",
            };
            let key = match index.and_then(|rest| rest.split(' ').next()) {
                None => continue,
                Some("documents_kind" | "documents_open") => format!("(kind=? AND {range})"),
                Some(index) => {
                    let scope = index.strip_prefix("documents_").unwrap();
                    let scope = scope.strip_suffix("_open").unwrap_or(scope);
                    format!("({scope}=? AND kind=? AND {range})")
                }
            };
            assert!(plan.contains(&key), "{statement}\n{plan}");
            let scoped = statement.contains("?4")
                && statement.contains("documents_")
                && !statement.contains("open = 1");
            assert!(!scoped || !plan.contains("documents_kind"), "{statement}");
        }
    }
}
