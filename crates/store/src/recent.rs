//! Links of recent commits, gathered.
//!
//! A commit of many clients brings a row for each of their Sessions. In a table that is ordered by Session, each of these rows
//! stands in a page of its own, and nearly every commit writes all of those pages again. So a commit appends its rows here, in
//! the order of time and to a page or two, and when enough of them have gathered the next commit moves them, sorted, in its own
//! transaction: no sync more, no thread, and nothing that a crash could lose.
//!
//! A row is here or where it is moved to, and never in both. Whoever reads by a link reads both places in one statement; what
//! is here is so little that it needs no index.

use domain::{Position, ResourceKind};
use rusqlite::Connection;

use crate::row::sql;
use crate::schema;

/// How many rows gather. A read by a link goes through all of them at most, which takes some ten microseconds; a move writes a
/// page or two for each Session that has rows here.
pub(crate) const ROWS_MAX: u64 = 512;

/// The kind of a row that says of a block which resource it holds events of. The others have the kind of their document, and
/// no Workspace is among those.
pub(crate) const OF_BLOCK: u8 = 0;
/// The kind of a row that says of a Message to which Session it belongs.
pub(crate) const OF_MESSAGE: u8 = ResourceKind::Message.number();

const INSERT: &str = "INSERT INTO recent_links(number, link, kind) VALUES (?1, ?2, ?3)";

/// False in a log that no newer program has worked on.
pub(crate) fn is_there(connection: &Connection) -> rusqlite::Result<bool> {
    schema::has_table(connection, "recent_links")
}

/// Where new rows go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewLinks {
    /// Here, to be moved later.
    Gather,
    /// To where they would be moved: what gathers here is damaged, and must not stop everybody who writes.
    Move,
}

impl NewLinks {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Gather => Self::Move,
            Self::Move => Self::Gather,
        }
    }
}

/// Adds what a block holds events of; returns how many rows gathered.
pub(crate) fn add_block(
    connection: &Connection,
    new: NewLinks,
    first: u64,
    links: impl IntoIterator<Item = Position>,
) -> rusqlite::Result<u64> {
    let moved = "INSERT OR IGNORE INTO event_links(link, first) VALUES (?1, ?2)";
    let mut rows = 0;
    for link in links {
        rows += add(connection, new, (first, link, OF_BLOCK), moved)?;
    }
    Ok(rows)
}

/// Adds a new Message of a Session; returns how many rows gathered.
pub(crate) fn add_message(
    connection: &Connection,
    new: NewLinks,
    key: Position,
    session: Position,
) -> rusqlite::Result<u64> {
    let moved = "INSERT OR IGNORE INTO session_messages(session, key) VALUES (?1, ?2)";
    add(connection, new, (key.0, session, OF_MESSAGE), moved)
}

fn add(
    connection: &Connection,
    new: NewLinks,
    (number, link, kind): (u64, Position, u8),
    moved: &str,
) -> rusqlite::Result<u64> {
    match new {
        NewLinks::Gather => {
            let mut insert = connection.prepare_cached(INSERT)?;
            insert.execute((sql(number), sql(link.0), kind))?;
            Ok(1)
        }
        NewLinks::Move => {
            let mut insert = connection.prepare_cached(moved)?;
            insert.execute([sql(link.0), sql(number)])?;
            Ok(0)
        }
    }
}

/// Takes back that a block holds events of a resource, wherever that is said.
pub(crate) fn remove_block(
    connection: &Connection,
    first: u64,
    link: Position,
) -> rusqlite::Result<()> {
    let here = "DELETE FROM recent_links WHERE number = ?1 AND link = ?2 AND kind = ?3";
    let mut here = connection.prepare_cached(here)?;
    if here.execute((sql(first), sql(link.0), OF_BLOCK))? == 0 {
        let moved = "DELETE FROM event_links WHERE first = ?1 AND link = ?2";
        let mut moved = connection.prepare_cached(moved)?;
        moved.execute([sql(first), sql(link.0)])?;
    }
    Ok(())
}

/// Returns which resources a block holds events of, wherever that is said.
pub(crate) fn links_of_block(
    connection: &Connection,
    first: u64,
) -> rusqlite::Result<Vec<Position>> {
    let moved = "SELECT link FROM event_links WHERE first = ?1";
    let text = match is_there(connection)? {
        true => format!(
            "{moved} UNION SELECT link FROM recent_links WHERE number = ?1 AND kind = 0 ORDER BY 1"
        ),
        // No newer program has worked on it.
        false => format!("{moved} ORDER BY link"),
    };
    let mut select = connection.prepare_cached(&text)?;
    let rows = select.query_map([sql(first)], |row| Ok(Position(row.get(0)?)))?;
    rows.collect()
}

/// Counts the rows.
pub(crate) fn count(connection: &Connection) -> rusqlite::Result<u64> {
    connection
        .prepare_cached("SELECT count(*) FROM recent_links")?
        .query_row([], |row| row.get(0))
}

/// Moves all rows to where they are found by their links, in the transaction under way.
pub(crate) fn move_all(connection: &Connection) -> rusqlite::Result<()> {
    // Sorted, so that each page is written to once. A row that is there already is damage. It goes with
    // the move, which must not stop everybody who writes.
    let moves = [
        ("event_links(link, first)", OF_BLOCK),
        ("session_messages(session, key)", OF_MESSAGE),
    ];
    let mut moved = 0;
    for (into, kind) in moves {
        let text = format!(
            "INSERT OR IGNORE INTO {into} SELECT link, number FROM recent_links WHERE kind = ?1 ORDER BY link, number"
        );
        moved += connection.prepare_cached(&text)?.execute([kind])?;
    }
    let removed = connection
        .prepare_cached("DELETE FROM recent_links")?
        .execute([])?;
    if moved != removed {
        tracing::error!(
            rows = removed.abs_diff(moved),
            "recent links were there twice or of no known kind; run `reprise log verify`"
        );
    }
    Ok(())
}
