//! The reads of the port as SQL, each on one connection.
//!
//! Every statement names the index it walks, so that a planner cannot choose a scan; a test looks at the plans.

use canon::Digest;
use domain::{Document, Position, ResourceKind, Timestamp};
use engine::port::{
    ApiKey, Claim, ClaimScope, ListQuery, ReadEvents, Scope, StoreFault, StoredEvent,
};
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use crate::fault::fault;
use crate::row::{DocumentRow, EventRow, sql};

/// Reads several things as of one commit.
fn snapshot<T>(
    connection: &Connection,
    read: impl FnOnce(&Connection) -> Result<T, StoreFault>,
) -> Result<T, StoreFault> {
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
    let row = connection
        .prepare_cached(&document_query())
        .and_then(|mut select| select.query_row([id], DocumentRow::read).optional())
        .map_err(fault)?;
    row.map(|row| row.document()).transpose()
}

pub(crate) fn newest(
    connection: &Connection,
    kind: ResourceKind,
) -> Result<Option<Document>, StoreFault> {
    let row = connection
        .prepare_cached(&newest_query())
        .and_then(|mut select| {
            select
                .query_row([kind.number()], DocumentRow::read)
                .optional()
        })
        .map_err(fault)?;
    row.map(|row| row.document()).transpose()
}

fn newest_query() -> String {
    format!(
        "SELECT {} FROM documents INDEXED BY documents_kind \
         WHERE kind = ?1 AND key > 0 ORDER BY key DESC LIMIT 1",
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
    let values = [
        i64::from(query.kind.number()),
        sql(query.after.0),
        sql(query.limit as u64),
    ];
    let values = values.into_iter().chain(scope_key(query.scope));
    let mut select = connection
        .prepare_cached(&list_query(query.scope, query.open_only))
        .map_err(fault)?;
    let rows = select
        .query_map(params_from_iter(values), DocumentRow::read)
        .map_err(fault)?;
    rows.map(|row| row.map_err(fault)?.document()).collect()
}

fn list_query(scope: Scope, open_only: bool) -> String {
    let column = scope_column(scope);
    let filter = column.map_or(String::new(), |column| format!(" AND {column} = ?4"));
    // Open documents are few whatever their scope: one index finds them, the scope is checked on each.
    let (index, open) = if open_only {
        ("open", " AND open = 1")
    } else {
        (column.unwrap_or("kind"), "")
    };
    format!(
        "SELECT {} FROM documents INDEXED BY documents_{index} \
         WHERE kind = ?1 AND key > ?2{open}{filter} ORDER BY key LIMIT ?3",
        DocumentRow::COLUMNS
    )
}

fn scope_column(scope: Scope) -> Option<&'static str> {
    match scope {
        Scope::All => None,
        Scope::Workspace(_) => Some("workspace"),
        Scope::Session(_) => Some("session"),
        Scope::Task(_) => Some("task"),
    }
}

fn scope_key(scope: Scope) -> Option<i64> {
    match scope {
        Scope::All => None,
        Scope::Workspace(key) | Scope::Session(key) | Scope::Task(key) => Some(sql(key.0)),
    }
}

pub(crate) fn events(
    connection: &Connection,
    query: ReadEvents,
) -> Result<Vec<StoredEvent>, StoreFault> {
    let values = [sql(query.after.0), sql(query.limit as u64)];
    let values = values.into_iter().chain(scope_key(query.scope));
    let mut select = connection
        .prepare_cached(&events_query(query.scope))
        .map_err(fault)?;
    let rows = select
        .query_map(params_from_iter(values), EventRow::read)
        .map_err(fault)?;
    rows.map(|row| row.map(EventRow::into_stored).map_err(fault))
        .collect()
}

fn events_query(scope: Scope) -> String {
    let (index, filter) = events_index(scope, "?3");
    format!(
        "SELECT {} FROM events {index} WHERE position > ?1{filter} ORDER BY position LIMIT ?2",
        EventRow::COLUMNS
    )
}

fn events_index(scope: Scope, parameter: &str) -> (String, String) {
    match scope_column(scope) {
        None => ("NOT INDEXED".to_owned(), String::new()),
        Some(column) => (
            format!("INDEXED BY events_{column}"),
            format!(" AND {column} = {parameter}"),
        ),
    }
}

pub(crate) fn events_at(
    connection: &Connection,
    positions: &[Position],
) -> Result<Vec<Option<StoredEvent>>, StoreFault> {
    snapshot(connection, |connection| {
        let mut select = connection.prepare_cached(&event_query()).map_err(fault)?;
        let mut read = |position: &Position| {
            select
                .query_row([sql(position.0)], EventRow::read)
                .optional()
                .map(|row| row.map(EventRow::into_stored))
                .map_err(fault)
        };
        positions.iter().map(&mut read).collect()
    })
}

fn event_query() -> String {
    format!(
        "SELECT {} FROM events WHERE position = ?1",
        EventRow::COLUMNS
    )
}

pub(crate) fn last_event(
    connection: &Connection,
    scope: Scope,
) -> Result<Option<Position>, StoreFault> {
    connection
        .prepare_cached(&last_event_query(scope))
        .and_then(|mut select| {
            select
                .query_row(params_from_iter(scope_key(scope)), |row| row.get(0))
                .optional()
        })
        .map(|position| position.map(Position))
        .map_err(fault)
}

fn last_event_query(scope: Scope) -> String {
    let (index, filter) = events_index(scope, "?1");
    format!(
        "SELECT position FROM events {index} WHERE position > 0{filter} ORDER BY position DESC LIMIT 1"
    )
}

const CLAIM: &str = "SELECT body, answer, expires_at FROM claims WHERE scope = ?1";

/// Reads claims; those that expired at the given time or before count as absent.
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

const BLOB: &str = "SELECT bytes FROM blobs WHERE digest = ?1";

/// Reads a small blob, unchecked.
pub(crate) fn blob(
    connection: &Connection,
    digest: &Digest,
) -> Result<Option<Vec<u8>>, StoreFault> {
    connection
        .prepare_cached(BLOB)
        .and_then(|mut select| {
            select
                .query_row([digest.as_bytes()], |row| row.get(0))
                .optional()
        })
        .map_err(fault)
}

const API_KEY: &str =
    "SELECT id, digest, actor, workspaces, scopes, created_at, revoked_at FROM api_keys";
const API_KEY_BY_DIGEST: &str = "SELECT id, digest, actor, workspaces, scopes, created_at, revoked_at \
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
        ];
        let mut statements = vec![
            document_query(),
            newest_query(),
            tree::TREE.to_owned(),
            tree::LEAF_INDEX.to_owned(),
            tree::LEAVES.to_owned(),
            tree::TREE_HASHES.to_owned(),
            event_query(),
            CLAIM.to_owned(),
            BLOB.to_owned(),
            API_KEY_BY_DIGEST.to_owned(),
        ];
        for scope in scopes {
            statements.extend([
                events_query(scope),
                last_event_query(scope),
                list_query(scope, true),
                list_query(scope, false),
            ]);
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
            let key = match index.and_then(|rest| rest.split(' ').next()) {
                None => continue,
                Some("documents_kind" | "documents_open") => "(kind=? AND rowid>?)".to_owned(),
                Some(index) => match index.split_once('_').unwrap() {
                    ("documents", scope) => format!("({scope}=? AND kind=? AND rowid>?)"),
                    (_, scope) => format!("({scope}=? AND rowid>?)"),
                },
            };
            assert!(plan.contains(&key), "{statement}\n{plan}");
            let scoped = statement.contains("?4") && !statement.contains("open = 1");
            assert!(!scoped || !plan.contains("documents_kind"), "{statement}");
        }
    }
}
