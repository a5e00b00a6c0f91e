//! Is the database built as this program builds it, and do its notes say what they can say?
//!
//! A dropped index is not damage that SQLite knows of: lists that need it fail, or miss what is there. A trigger changes what
//! is written. A note that was changed has consequences long after. Each flaw is named by `log verify`, refused by whoever
//! would write, and set right by `log repair --apply` where something tells what it should be.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use domain::{Event, Position};
use engine::port::Scope;
use rusqlite::{Connection, TransactionBehavior};

use crate::directory::OpenError;
use crate::{claims, notes, read, schema};

/// Beyond this a counter was not counted there.
const COUNTER_MAX: i64 = 1 << 53;

/// Something that is not as this program makes it.
pub(crate) struct Flaw {
    pub(crate) problem: String,
    mend: Mend,
}

enum Mend {
    Sql(String),
    Note(&'static str, i64),
    /// A table of somebody else: it harms nothing, and what is in it is not ours to throw away.
    Nothing,
}

impl Flaw {
    /// True when nobody may work in the log before it is mended.
    pub(crate) fn refuses(&self) -> bool {
        !matches!(self.mend, Mend::Nothing)
    }
}

/// Refuses a log with flaws.
pub(crate) fn refuse(directory: &Path, connection: &Connection) -> Result<(), OpenError> {
    let flaws = flaws(connection).map_err(|error| OpenError::fault(directory, error))?;
    let refused = flaws.into_iter().filter(Flaw::refuses);
    let problems: Vec<String> = refused.map(|flaw| flaw.problem).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(OpenError::Flawed {
            directory: directory.to_owned(),
            problems,
        }),
    }
}

/// Sets right what can be; returns what was wrong with it.
pub(crate) fn repair(
    directory: &Path,
    connection: &mut Connection,
) -> Result<Vec<String>, OpenError> {
    let mend = |connection: &mut Connection| {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut mended = Vec::new();
        for flaw in flaws(&transaction)? {
            match flaw.mend {
                Mend::Sql(text) => transaction.execute_batch(&text)?,
                Mend::Note(name, value) => notes::put(&transaction, name, value)?,
                Mend::Nothing => continue,
            }
            mended.push(flaw.problem);
        }
        transaction.commit()?;
        Ok(mended)
    };
    mend(connection).map_err(|error: rusqlite::Error| OpenError::fault(directory, error))
}

/// Returns what [`repair`] would set right.
pub(crate) fn repairable(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let found = flaws(connection)?.into_iter().filter(Flaw::refuses);
    Ok(found.map(|flaw| flaw.problem).collect())
}

/// Returns every flaw: of tables and indexes first, then of notes.
pub(crate) fn flaws(connection: &Connection) -> rusqlite::Result<Vec<Flaw>> {
    let mut flaws = schema_flaws(connection)?;
    if schema::has_notes(connection)? {
        flaws.extend(noted(connection)?);
    }
    Ok(flaws)
}

/// Returns what is in a database by name: its type, and how it was made.
fn parts(connection: &Connection) -> rusqlite::Result<BTreeMap<String, (String, String)>> {
    let select = "SELECT name, type, ifnull(sql, '') FROM sqlite_schema \
         WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
    let mut select = connection.prepare(select)?;
    let rows = select.query_map([], |row| {
        let text: String = row.get(2)?;
        let text: Vec<&str> = text.split_whitespace().collect();
        Ok((row.get(0)?, (row.get(1)?, text.join(" "))))
    })?;
    rows.collect()
}

/// Compares tables, indexes, triggers and views with those of a new log. Missing tables are for
/// [`notes::check_tables`]; columns that were added later stand at another place in an older log.
pub(crate) fn schema_flaws(connection: &Connection) -> rusqlite::Result<Vec<Flaw>> {
    let new = Connection::open_in_memory()?;
    schema::make_tables(&new)?;
    schema::prepare_pruning(&new)?;
    schema::prepare_repair(&new)?;
    if !schema::has_recent(connection)? {
        schema::without_recent(&new)?;
    }
    let mut found = parts(connection)?;
    let mut flaws = Vec::new();
    for (name, (kind, text)) in parts(&new)? {
        let known = found.remove(&name);
        if kind != "index" {
            continue;
        }
        let flaw = match known {
            Some(known) if known == (kind, text.clone()) => continue,
            Some((kind, _)) => Flaw {
                problem: format!("the {kind} `{name}` is not the index of that name"),
                mend: Mend::Sql(format!("{}; {text}", drop_of(&kind, &name))),
            },
            None => Flaw {
                problem: format!("the index `{name}` is missing"),
                mend: Mend::Sql(text),
            },
        };
        flaws.push(flaw);
    }
    for (name, (kind, _)) in found {
        let mend = match kind.as_str() {
            "table" => Mend::Nothing,
            kind => Mend::Sql(drop_of(kind, &name)),
        };
        flaws.push(Flaw {
            problem: format!("the {kind} `{name}` was not made by this program"),
            mend,
        });
    }
    Ok(flaws)
}

fn drop_of(kind: &str, name: &str) -> String {
    format!("DROP {kind} \"{}\"", name.replace('"', "\"\""))
}

/// Judges the notes that are there; missing ones are for [`notes::missing`].
fn noted(connection: &Connection) -> rusqlite::Result<Vec<Flaw>> {
    let mut flaws = Vec::new();
    let mut flaw = |name: &'static str, why: &str, value: i64| {
        flaws.push(Flaw {
            problem: format!("the note `{name}` {why}"),
            mend: Mend::Note(name, value),
        });
    };
    let is_there = |name: &str| {
        let select = "SELECT 1 FROM meta WHERE name = ?1";
        connection.prepare_cached(select)?.exists([name])
    };
    for name in [notes::KEYS_RECORDED, notes::KEEPS_HEAD] {
        let value = notes::number(connection, name)?;
        if is_there(name)? && !matches!(value, Some(0 | 1)) {
            // What the more careful of the two allows.
            flaw(name, "is neither 0 nor 1", 1);
        }
    }
    if is_there(notes::LEASE_EPOCH)? {
        let newest = "SELECT ifnull(max(epoch), 0) FROM leases WHERE epoch <= ?1";
        let newest: i64 = connection.query_row(newest, [COUNTER_MAX], |row| row.get(0))?;
        match notes::number(connection, notes::LEASE_EPOCH)? {
            Some(epoch) if (newest..=COUNTER_MAX).contains(&epoch) => {}
            Some(epoch) if (0..newest).contains(&epoch) => {
                let why = "is below an epoch that was given out";
                flaw(notes::LEASE_EPOCH, why, newest);
            }
            _ => flaw(notes::LEASE_EPOCH, "is not a count of leases", newest),
        }
    }
    let latest = latest(connection)?;
    if is_there(notes::CLAIM_TIME)? {
        let time = notes::number(connection, notes::CLAIM_TIME)?;
        if time.is_none_or(|time| time > latest) {
            let why = "lies in the future of the clock, of the events and of every idempotency key: keys in use would be \
                 forgotten";
            flaw(notes::CLAIM_TIME, why, claims::safe_time(connection)?);
        }
    }
    if is_there(notes::CLAIM_CLOCK)? {
        let clock = notes::number(connection, notes::CLAIM_CLOCK)?;
        if clock.is_none_or(|clock| clock > latest && clock != notes::UNKNOWN) {
            let why = "lies in the future of the clock and of the events";
            flaw(notes::CLAIM_CLOCK, why, notes::UNKNOWN);
        }
    }
    Ok(flaws)
}

/// Returns the latest time that a note can tell: as long after the clock, the first and the last event and the end of every
/// claim as claims live at least. A clock that was wrong once is in the events of that time.
fn latest(connection: &Connection) -> rusqlite::Result<i64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| i64::try_from(now.as_micros()).unwrap_or(i64::MAX));
    let time = |position: Option<Position>| {
        let events = read::events_at(connection, &[position?]).ok()?;
        let event = events.into_iter().flatten().next()?;
        let event = Event::parse(&event.bytes).ok()?;
        Some(event.created_at.as_micros())
    };
    // An event that cannot be read tells nothing here, and is named elsewhere.
    let first = time(Some(Position(1)));
    let last = time(read::last_event(connection, Scope::All).ok().flatten());
    let end = "SELECT max(expires_at) FROM claims";
    let end: Option<i64> = connection.query_row(end, [], |row| row.get(0))?;
    let known = [first, last, end].into_iter().flatten();
    let latest = known.fold(now, i64::max);
    Ok(latest.saturating_add(claims::LIVES_MICROS))
}
