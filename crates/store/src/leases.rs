//! Leases and their holders, in the transaction under way. Epochs come from one counter that never goes back.

use domain::Position;
use engine::port::{Heartbeat, LeaseName, LeaseOwners, LeaseRequest};
use rusqlite::{Connection, OptionalExtension};

use crate::row::sql;

/// Who is there, and until when. A holder without a row is late.
pub(crate) const HOLDERS: &str =
    "CREATE TABLE holders(holder TEXT PRIMARY KEY, ends_at INTEGER NOT NULL) STRICT, WITHOUT ROWID";

/// Leases with their epochs.
pub(crate) type LeaseEpochs = Vec<(LeaseName, u64)>;

/// Makes leases of others a holder's.
pub(crate) fn take_over(
    connection: &Connection,
    whose: &LeaseOwners,
    holder: &str,
    mut next_epoch: impl FnMut() -> u64,
) -> rusqlite::Result<LeaseEpochs> {
    let names: Vec<u64> = match whose {
        LeaseOwners::Everybody => {
            connection.execute("DELETE FROM holders", [])?;
            connection
                .prepare_cached("SELECT name FROM leases ORDER BY name")?
                .query_map([], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?
        }
        LeaseOwners::Holder(other) => {
            forget(connection, other)?;
            connection
                .prepare_cached("SELECT name FROM leases WHERE holder = ?1 ORDER BY name")?
                .query_map([other], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?
        }
    };
    let mut taken = Vec::with_capacity(names.len());
    for name in names {
        let epoch = next_epoch();
        put(connection, Position(name), holder, epoch)?;
        taken.push((Position(name), epoch));
    }
    Ok(taken)
}

/// Notes that a holder is there, forgets those that are late and hold nothing, and returns what the holder holds.
pub(crate) fn heartbeat(
    connection: &Connection,
    beat: &Heartbeat,
) -> rusqlite::Result<LeaseEpochs> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO holders(holder, ends_at) VALUES (?1, ?2)")?
        .execute((&*beat.holder, beat.ends_at()))?;
    // There are as many as there are processes, and those that were killed since somebody last looked.
    let known: Vec<(String, i64)> = connection
        .prepare_cached("SELECT holder, ends_at FROM holders")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut holds = connection.prepare_cached("SELECT 1 FROM leases WHERE holder = ?1")?;
    for (holder, ends_at) in known {
        if Heartbeat::is_late(ends_at, beat.now.as_micros())
            && *holder != *beat.holder
            && !holds.exists([&holder])?
        {
            forget(connection, &holder)?;
        }
    }
    connection
        .prepare_cached("SELECT name, epoch FROM leases WHERE holder = ?1 ORDER BY name")?
        .query_map([&*beat.holder], |row| {
            Ok((Position(row.get(0)?), row.get(1)?))
        })?
        .collect()
}

/// Takes those of the wanted leases that are free.
pub(crate) fn claim(
    connection: &Connection,
    wanted: &LeaseRequest,
    mut next_epoch: impl FnMut() -> u64,
) -> rusqlite::Result<LeaseEpochs> {
    let mut taken = Vec::new();
    if is_late(connection, &wanted.holder, wanted)? {
        return Ok(taken);
    }
    let version = "SELECT version FROM documents WHERE key = ?1";
    let mut version = connection.prepare_cached(version)?;
    let mut holder = connection.prepare_cached("SELECT holder FROM leases WHERE name = ?1")?;
    for (name, seen) in &wanted.leases {
        let found: Option<u64> = version
            .query_row([sql(name.0)], |row| row.get(0))
            .optional()?;
        if found != Some(*seen) {
            continue;
        }
        let held: Option<String> = holder
            .query_row([sql(name.0)], |row| row.get(0))
            .optional()?;
        let is_free = match held {
            Some(holder) => is_late(connection, &holder, wanted)?,
            None => true,
        };
        if is_free {
            let epoch = next_epoch();
            put(connection, *name, &wanted.holder, epoch)?;
            taken.push((*name, epoch));
        }
    }
    Ok(taken)
}

/// Gives everything back that a holder has, and forgets it.
pub(crate) fn leave(connection: &Connection, holder: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM leases WHERE holder = ?1")?
        .execute([holder])?;
    forget(connection, holder)
}

fn put(connection: &Connection, name: Position, holder: &str, epoch: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO leases(name, holder, epoch) VALUES (?1, ?2, ?3)")?
        .execute((sql(name.0), holder, sql(epoch)))
        .map(drop)
}

fn forget(connection: &Connection, holder: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM holders WHERE holder = ?1")?
        .execute([holder])
        .map(drop)
}

fn is_late(connection: &Connection, holder: &str, wanted: &LeaseRequest) -> rusqlite::Result<bool> {
    let ends_at: Option<i64> = connection
        .prepare_cached("SELECT ends_at FROM holders WHERE holder = ?1")?
        .query_row([holder], |row| row.get(0))
        .optional()?;
    Ok(ends_at.is_none_or(|ends_at| Heartbeat::is_late(ends_at, wanted.now.as_micros())))
}
