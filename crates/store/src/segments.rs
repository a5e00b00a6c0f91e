//! Segments of the folds of fields: a projection that follows behind. The engine makes them of what it has in memory and
//! hands them over; what they hold is its own. They are disposable: a log without them, or with fewer, says the same.

use domain::Position;
use engine::port::{FieldSegment, StoreFault};
use rusqlite::{Connection, OptionalExtension};

use crate::codec;
use crate::fault::fault;
use crate::row::sql;

/// Reads the segment of a field that begins right after a sequence. One whose bytes are damaged is not there.
pub(crate) fn next(
    connection: &Connection,
    field: Position,
    after: u64,
) -> Result<Option<FieldSegment>, StoreFault> {
    let select = "SELECT last, position, bytes FROM field_segments WHERE field = ?1 AND after = ?2";
    let found: Option<(u64, u64, Vec<u8>)> = connection
        .prepare_cached(select)
        .and_then(|mut select| {
            let row = select.query_row([sql(field.0), sql(after)], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            });
            row.optional()
        })
        .map_err(fault)?;
    Ok(found.and_then(|(last, position, frame)| {
        Some(FieldSegment {
            field,
            after,
            last,
            position: Position(position),
            bytes: codec::decompress(&frame).ok()?,
        })
    }))
}

/// Keeps a segment, in the place of those that reach into it or beyond.
pub(crate) fn put(connection: &Connection, segment: &FieldSegment) -> Result<(), StoreFault> {
    let frame = codec::compress(&segment.bytes)
        .map_err(|error| StoreFault::new(format!("a segment cannot be compressed: {error}")))?;
    let field = sql(segment.field.0);
    let after = sql(segment.after);
    connection
        .prepare_cached("DELETE FROM field_segments WHERE field = ?1 AND last > ?2")
        .and_then(|mut delete| delete.execute([field, after]))
        .map_err(fault)?;
    let insert = "INSERT INTO field_segments(field, after, last, position, bytes) VALUES (?1, ?2, ?3, ?4, ?5)";
    connection
        .prepare_cached(insert)
        .and_then(|mut insert| {
            insert.execute((
                field,
                after,
                sql(segment.last),
                sql(segment.position.0),
                frame,
            ))
        })
        .map(drop)
        .map_err(fault)
}

/// Forgets the segments of a field.
pub(crate) fn forget(connection: &Connection, field: Position) -> Result<(), StoreFault> {
    connection
        .prepare_cached("DELETE FROM field_segments WHERE field = ?1")
        .and_then(|mut delete| delete.execute([sql(field.0)]))
        .map(drop)
        .map_err(fault)
}

/// Says which segments cannot be read, or say something that the log does not.
pub(crate) fn check(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let select = "SELECT s.field, s.after, s.last, s.bytes, d.version FROM field_segments s \
         LEFT JOIN documents d ON d.key = s.field ORDER BY s.field, s.after";
    let mut select = connection.prepare(select)?;
    let mut rows = select.query([])?;
    let mut problems = Vec::new();
    while let Some(row) = rows.next()? {
        let (field, after, last): (u64, u64, u64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let frame: Vec<u8> = row.get(3)?;
        let version: Option<u64> = row.get(4)?;
        let is_behind = version.is_some_and(|version| last <= version) && after < last;
        if !is_behind || codec::decompress(&frame).is_err() {
            problems.push(format!(
                "what is kept of the field with key {field} after its entry {after} is damaged; `log rebuild --write` drops it"
            ));
        }
    }
    Ok(problems)
}
