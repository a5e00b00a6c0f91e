//! Tables that are folded from the rest of the log, made again where their own pages are damaged.
//!
//! SQLite empties a table by walking its pages, so that one whose first page is broken can be neither read nor emptied. Here the
//! schema forgets such a table, and it is created again for the fold to fill. The pages that it had belong to nothing from
//! then on. A note says so, until the database was written again without them.

use rusqlite::Connection;

use crate::notes;
use crate::schema::has_table;

/// The tables that hold nothing but what a fold puts into them. The state of the receipt tree is none of them: a fold is held
/// to the size that it tells.
const TABLES: [&str; 9] = [
    "event_links",
    "recent_links",
    "session_messages",
    "document_links",
    "heads",
    "leaves",
    "tree_hashes",
    "usage",
    "field_segments",
];

/// Makes those again whose pages are damaged, empty, in the transaction under way.
pub(crate) fn renew(connection: &Connection) -> rusqlite::Result<()> {
    for table in TABLES {
        if has_table(connection, table)? && !is_whole(connection, table) {
            renew_table(connection, table)?;
            notes::put(connection, notes::PAGES_LET_GO, 1)?;
            tracing::warn!(table, "made a damaged table again");
        }
    }
    Ok(())
}

fn is_whole(connection: &Connection, table: &str) -> bool {
    let check = format!("PRAGMA main.integrity_check({table})");
    let first = connection.query_row(&check, [], |row| row.get::<_, String>(0));
    first.is_ok_and(|first| first == "ok")
}

fn renew_table(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    let text = "SELECT sql FROM main.sqlite_schema WHERE tbl_name = ?1 AND sql IS NOT NULL ORDER BY type DESC";
    let mut select = connection.prepare(text)?;
    let made = select.query_map([table], |row| row.get::<_, String>(0))?;
    let made = made.collect::<rusqlite::Result<Vec<_>>>()?;
    connection.pragma_update(None, "writable_schema", true)?;
    let forgotten = connection.execute(
        "DELETE FROM main.sqlite_schema WHERE tbl_name = ?1",
        [table],
    );
    // Reads the schema again, also where that failed.
    connection.pragma_update(None, "writable_schema", "RESET")?;
    forgotten?;
    made.iter()
        .try_for_each(|text| connection.execute_batch(text))
}

/// True when all that a database finds wrong with itself is that pages belong to nothing, and these were let go here.
pub(crate) fn explains(connection: &Connection, problems: &[String]) -> rusqlite::Result<bool> {
    let mut lines = problems.iter().flat_map(|problem| problem.lines());
    let are_unused = lines.all(|line| line.starts_with("***") || line.ends_with("never used"));
    Ok(are_unused && lets_go(connection)?)
}

fn lets_go(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(notes::number(connection, notes::PAGES_LET_GO)?.is_some())
}

/// Writes the database again, without the pages that belong to nothing, when some were let go. Not within a transaction.
pub(crate) fn compact(connection: &Connection) -> rusqlite::Result<()> {
    if !lets_go(connection)? {
        return Ok(());
    }
    connection.execute_batch("VACUUM")?;
    notes::remove(connection, notes::PAGES_LET_GO)
}
