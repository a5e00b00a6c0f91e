//! Segments of the folds of fields: a projection that follows behind. The engine makes them of what it has in memory and
//! hands them over; what they hold is its own. They are disposable: a log without them, or with fewer, says the same.
//!
//! The columns of a row are there to find it. What counts is what a segment says of itself, in the frame with the checksum:
//! a row that says something else is not used.

use domain::Position;
use engine::port::{FieldSegment, StoreFault, StoredSegment, UnusableSegment};
use rusqlite::{Connection, OptionalExtension};

use crate::codec;
use crate::fault::fault;
use crate::row::sql;

/// What the content of a frame begins with. Before this form there was no such mark, and the first byte was at most 2.
const MARK: &[u8] = b"fs3";
/// The largest first byte of the forms without a mark.
const UNMARKED_MAX: u8 = 2;

/// The columns of a row but for its bytes: field, after, last, position.
type Place = [i64; 4];

fn place(segment: &FieldSegment) -> Place {
    let FieldSegment {
        field,
        after,
        last,
        position,
        ..
    } = segment;
    [field.0, *after, *last, position.0].map(sql)
}

/// Returns what is compressed: the mark, the place and what the engine handed over.
fn sealed(segment: &FieldSegment) -> Vec<u8> {
    let place = place(segment).map(i64::to_le_bytes);
    [MARK, place.as_flattened(), &segment.bytes].concat()
}

/// Why a row cannot be used.
enum Unusable {
    /// It was written before segments said their place.
    Older,
    /// It is not what was written.
    Damaged(Box<str>),
}

/// Reads a row, which must say what its bytes say.
fn opened(row: Place, frame: &[u8]) -> Result<FieldSegment, Unusable> {
    let damaged = |problem: &str| Unusable::Damaged(problem.into());
    let content = codec::decompress(frame).map_err(|error| damaged(&error))?;
    let Some(rest) = content.strip_prefix(MARK) else {
        let is_older = content.first().is_some_and(|form| *form <= UNMARKED_MAX);
        return Err(match is_older {
            true => Unusable::Older,
            false => damaged("it is not a segment"),
        });
    };
    let (said, bytes) = rest
        .split_at_checked(size_of::<Place>())
        .ok_or_else(|| damaged("it is cut off"))?;
    if said != row.map(i64::to_le_bytes).as_flattened() {
        return Err(damaged("its row is not the one it was written to"));
    }
    let numbers = row.map(u64::try_from);
    let [Ok(field), Ok(after), Ok(last), Ok(position)] = numbers else {
        return Err(damaged("its place is out of range"));
    };
    Ok(FieldSegment {
        field: Position(field),
        after,
        last,
        position: Position(position),
        bytes: bytes.to_vec(),
    })
}

/// Reads the segment of a field that begins right after a sequence.
pub(crate) fn next(
    connection: &Connection,
    field: Position,
    after: u64,
) -> Result<Option<StoredSegment>, StoreFault> {
    let select = "SELECT last, position, bytes FROM field_segments WHERE field = ?1 AND after = ?2";
    let found: Option<(i64, i64, Vec<u8>)> = connection
        .prepare_cached(select)
        .and_then(|mut select| {
            let row = select.query_row([sql(field.0), sql(after)], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            });
            row.optional()
        })
        .map_err(fault)?;
    Ok(found.map(|(last, position, frame)| {
        let row = [sql(field.0), sql(after), last, position];
        opened(row, &frame).map_err(|unusable| match unusable {
            Unusable::Older => UnusableSegment("it has an older form".into()),
            Unusable::Damaged(problem) => UnusableSegment(problem),
        })
    }))
}

/// Keeps a segment, in the place of those that reach into it or beyond.
pub(crate) fn put(connection: &Connection, segment: &FieldSegment) -> Result<(), StoreFault> {
    let frame = codec::compress(&sealed(segment))
        .map_err(|error| StoreFault::new(format!("a segment cannot be compressed: {error}")))?;
    let [field, after, last, position] = place(segment);
    let delete = "DELETE FROM field_segments WHERE field = ?1 AND (last > ?2 OR after >= ?2)";
    connection
        .prepare_cached(delete)
        .and_then(|mut delete| delete.execute([field, after]))
        .map_err(fault)?;
    let insert = "INSERT INTO field_segments(field, after, last, position, bytes) VALUES (?1, ?2, ?3, ?4, ?5)";
    connection
        .prepare_cached(insert)
        .and_then(|mut insert| insert.execute((field, after, last, position, frame)))
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

/// Says which segments cannot be read, are not what was written, or say something that the log does not.
pub(crate) fn check(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let select = "SELECT s.field, s.after, s.last, s.position, s.bytes, d.version FROM field_segments s \
         LEFT JOIN documents d ON d.key = s.field ORDER BY s.field, s.after";
    let mut select = connection.prepare(select)?;
    let mut rows = select.query([])?;
    let mut problems = Vec::new();
    while let Some(row) = rows.next()? {
        let place: Place = [row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?];
        let [field, after, last, _] = place;
        let frame: Vec<u8> = row.get(4)?;
        let version: Option<i64> = row.get(5)?;
        let is_behind = version.is_some_and(|version| last <= version) && after < last;
        let problem = match opened(place, &frame) {
            Err(Unusable::Damaged(problem)) => problem,
            Ok(_) | Err(Unusable::Older) if !is_behind => "the log does not go that far".into(),
            Ok(_) | Err(Unusable::Older) => continue,
        };
        problems.push(format!(
            "what is kept of the field with key {field} after its entry {after} is damaged: {problem}; `log rebuild --write` drops it"
        ));
    }
    Ok(problems)
}
