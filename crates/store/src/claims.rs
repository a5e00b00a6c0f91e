//! Idempotency keys in use, called claims: whoever repeats a request gets its first answer by them.
//!
//! They are not a fold of events, but events tell that there were claims: the first event of a command carries the client's key.
//! One that is younger than any setting lets claims end must have its claim, or that was taken away.

use std::collections::VecDeque;

use canon::sha256;
use domain::{Event, Position};
use engine::port::{Claim, ClaimTime, CommitError, Scope, StoreFault};
use rusqlite::Connection;

use crate::block::Block;
use crate::fault::{commit_fault, fault};
use crate::row::sql;
use crate::table::Table;
use crate::{notes, read, schema};

/// How many expired claims a commit drops beyond twice those it adds, so that they never pile up and never hold
/// a commit up.
const DROPPED_MAX: usize = 64;

/// How often the time of claims is written down: a start goes on from there, so that claims live so much longer at most.
const TIME_KEPT_MICROS: i64 = 60_000_000;

/// How long claims live at least, whatever the setting.
pub(crate) const LIVES_MICROS: i64 = 24 * HOUR_MICROS;

const HOUR_MICROS: i64 = 60 * 60 * 1_000_000;

/// For how long an event's claim is missed: an hour less than claims live at least, for clocks that jump.
const MISSED_MICROS: i64 = LIVES_MICROS - HOUR_MICROS;

/// How many events a start looks at.
const TAIL: u64 = 64;

/// Writes the claims of a commit and drops some that ended. `kept` is the time of claims as this process last wrote it down.
pub(crate) fn put(
    connection: &Connection,
    (time, kept): (&mut ClaimTime, &mut Option<i64>),
    claims: &[Claim],
    clock: i64,
    has_events: bool,
) -> Result<(), CommitError> {
    let now = time.advance(clock);
    // Events tell what the clock said; commits without any are few, and say so here.
    if !has_events || kept.is_none_or(|kept| now.saturating_sub(kept) >= TIME_KEPT_MICROS) {
        notes::put(connection, notes::CLAIM_TIME, now).map_err(commit_fault)?;
        notes::put(connection, notes::CLAIM_CLOCK, clock).map_err(commit_fault)?;
        *kept = Some(now);
    }
    // Only commits that add claims drop some: the others need not look, and there are never more to drop.
    if claims.is_empty() {
        return Ok(());
    }
    let dropped_max = DROPPED_MAX + 2 * claims.len();
    connection
        .prepare_cached(
            "DELETE FROM claims WHERE scope IN \
             (SELECT scope FROM claims WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
        )
        .and_then(|mut delete| delete.execute((now, sql(dropped_max as u64))))
        .map_err(commit_fault)?;
    let mut insert = connection
        .prepare_cached(
            "INSERT INTO claims(scope, body, answer, expires_at, checksum) VALUES (?1, ?2, ?3, ?4, ?6) \
             ON CONFLICT(scope) DO UPDATE SET body = excluded.body, answer = excluded.answer, \
             expires_at = excluded.expires_at, checksum = excluded.checksum WHERE expires_at <= ?5",
        )
        .map_err(commit_fault)?;
    for claim in claims {
        let end = time.end(clock, claim.expires_at.as_micros());
        let (scope, body) = (claim.scope.0.as_bytes(), claim.body.as_bytes());
        let written = insert
            .execute((
                scope,
                body,
                sql(claim.answer.0),
                end,
                now,
                checksum(scope, body, claim.answer.0, end),
            ))
            .map_err(commit_fault)?;
        if written == 0 {
            return Err(CommitError::Conflict);
        }
    }
    Ok(())
}

/// Returns a time of claims at which none that is stored has ended, for a log that lost its own: a claim may always be kept
/// longer.
pub(crate) fn safe_time(connection: &Connection) -> rusqlite::Result<i64> {
    let first = "SELECT min(expires_at) FROM claims";
    let first: Option<i64> = connection.query_row(first, [], |row| row.get(0))?;
    Ok(first.map_or(notes::NO_COMMIT, |first| first.saturating_sub(1)))
}

/// Returns what is kept of a claim to notice that it changed.
fn checksum(scope: &[u8], body: &[u8], answer: u64, end: i64) -> [u8; 8] {
    let mut bytes = Vec::with_capacity(80);
    bytes.extend_from_slice(scope);
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(&answer.to_be_bytes());
    bytes.extend_from_slice(&end.to_be_bytes());
    let digest = sha256(&bytes);
    digest.as_bytes().first_chunk().copied().unwrap_or_default()
}

/// A claim as it is stored, with what was kept of it.
fn each(
    connection: &Connection,
    mut found: impl FnMut(&[u8], &[u8], u64, i64, Option<&[u8]>) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let select = "SELECT scope, body, answer, expires_at, checksum FROM claims";
    let mut select = connection.prepare(select)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (scope, body) = (row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?);
        let kept = row.get_ref(4)?.as_blob_or_null()?;
        found(scope, body, row.get(2)?, row.get(3)?, kept)?;
    }
    Ok(())
}

/// Keeps checksums of claims that an earlier program wrote without them.
pub(crate) fn seal(connection: &Connection) -> rusqlite::Result<()> {
    let mut open = Vec::new();
    each(connection, |scope, body, answer, end, kept| {
        if kept.is_none() {
            open.push((scope.to_vec(), checksum(scope, body, answer, end)));
        }
        Ok(())
    })?;
    let mut update = connection.prepare("UPDATE claims SET checksum = ?2 WHERE scope = ?1")?;
    for (scope, checksum) in open {
        update.execute((scope, checksum))?;
    }
    Ok(())
}

/// Counts claims that are not what was written.
pub(crate) fn changed(connection: &Connection) -> Result<u64, StoreFault> {
    // Before that, some may have none.
    let all_have_checksums = schema::has_notes(connection).map_err(fault)?;
    if !schema::has_column(connection, "claims", "checksum").map_err(fault)? {
        return Ok(0);
    }
    let mut changed = 0;
    each(connection, |scope, body, answer, end, kept| {
        let is_same = match kept {
            Some(kept) => kept == checksum(scope, body, answer, end),
            None => !all_have_checksums,
        };
        changed += u64::from(!is_same);
        Ok(())
    })
    .map_err(fault)?;
    Ok(changed)
}

/// The events whose claims must be there, gathered while the log is read from its beginning or from somewhere near its end.
#[derive(Debug, Default)]
pub(crate) struct ClaimedEvents {
    /// How far the clock has gone forward, by the times of events.
    age: i64,
    last: Option<i64>,
    /// Events with a client's key, and what `age` was at each.
    events: VecDeque<(Position, i64)>,
}

impl ClaimedEvents {
    /// Takes the next event.
    pub(crate) fn add(&mut self, position: Position, event: &Event) {
        let time = event.created_at.as_micros();
        let step = time.saturating_sub(self.last.unwrap_or(time)).max(0);
        self.age = self.age.saturating_add(step);
        self.last = Some(time);
        if event.idempotency_key.is_some() {
            self.events.push_back((position, self.age));
        }
        self.forget(0);
    }

    /// Forgets events that are so old that their claims may have ended.
    fn forget(&mut self, later: i64) {
        let now = self.age.saturating_add(later);
        while let Some((_, at)) = self.events.front()
            && now.saturating_sub(*at) >= MISSED_MICROS
        {
            self.events.pop_front();
        }
    }

    /// Leaves the events whose claims cannot have ended, and are not known to be lost.
    fn settle(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let clock = notes::number(connection, notes::CLAIM_CLOCK)?.unwrap_or(notes::UNKNOWN);
        self.forget(clock.saturating_sub(self.last.unwrap_or(clock)).max(0));
        let lost = notes::number(connection, notes::CLAIMS_LOST_TO)?.unwrap_or(0);
        self.events.retain(|(position, _)| sql(position.0) > lost);
        Ok(())
    }

    /// Returns the events, by position, whose claims are missing. The answer of a claim is an event of its command, so that
    /// each must have one before the next event with a key.
    pub(crate) fn missing(mut self, connection: &Connection) -> Result<Vec<Position>, StoreFault> {
        self.settle(connection).map_err(fault)?;
        let Some((first, _)) = self.events.front() else {
            return Ok(Vec::new());
        };
        let read = || {
            let select = "SELECT answer FROM claims WHERE answer >= ?1 ORDER BY answer";
            let mut select = connection.prepare(select)?;
            let rows = select.query_map([sql(first.0)], |row| row.get(0))?;
            rows.collect::<rusqlite::Result<Vec<u64>>>()
        };
        let answers = read().map_err(fault)?;
        let nexts = self.events.iter().skip(1).map(|(next, _)| next.0);
        let nexts = nexts.chain([u64::MAX]);
        let missing = self
            .events
            .iter()
            .zip(nexts)
            .filter(|((position, _), next)| {
                let at = answers.partition_point(|answer| *answer < position.0);
                answers.get(at).is_none_or(|answer| answer >= next)
            });
        Ok(missing.map(|((position, _), _)| *position).collect())
    }
}

/// True when there is no claim at all though the newest events tell of some. Costs the same in the longest log. Events that
/// cannot be read tell of none.
pub(crate) fn are_gone(connection: &Connection) -> Result<bool, StoreFault> {
    let any = connection
        .prepare("SELECT 1 FROM claims LIMIT 1")
        .and_then(|mut select| select.exists([]));
    if any.map_err(fault)? {
        return Ok(false);
    }
    let Some(last) = read::last_event(connection, Scope::All)? else {
        return Ok(false);
    };
    let after = last.0.saturating_sub(TAIL);
    let first = Table::Events.holding(connection, after + 1)?;
    let mut claimed = ClaimedEvents::default();
    Table::Events.each(connection, first.unwrap_or(after + 1), |first, bytes| {
        let block = Block::decode(first, bytes).unwrap_or_default();
        let newest = block.events.iter().filter(|event| event.position.0 > after);
        for stored in newest {
            if let Ok(event) = Event::parse(&stored.bytes) {
                claimed.add(stored.position, &event);
            }
        }
        Ok::<bool, StoreFault>(true)
    })?;
    claimed.settle(connection).map_err(fault)?;
    Ok(!claimed.events.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::{EventName, Timestamp};

    const HOUR: i64 = 3_600_000_000;

    fn log(claim_clock: i64, answers: &[u64]) -> Connection {
        let connection = schema::scratch(":memory:".as_ref()).unwrap();
        let secret = "INSERT INTO meta(name, value) VALUES ('log', 'a'), ('secret', x'00')";
        connection.execute_batch(secret).unwrap();
        notes::fill(&connection).unwrap();
        notes::put(&connection, notes::CLAIM_CLOCK, claim_clock).unwrap();
        for answer in answers {
            let insert =
                "INSERT INTO claims(scope, body, answer, expires_at) VALUES (?1, x'', ?2, 0)";
            let scope = answer.to_be_bytes();
            connection.execute(insert, (scope, sql(*answer))).unwrap();
        }
        connection
    }

    fn claimed(events: &[(u64, i64, bool)]) -> ClaimedEvents {
        let mut claimed = ClaimedEvents::default();
        for (position, time, has_key) in events {
            let id = EventName::new("abcdefgh").id(Position(*position));
            let mut event = Event::lost(&id, Timestamp::from_micros(*time), sha256(b""));
            event.idempotency_key = has_key.then(|| "key".to_owned());
            claimed.add(Position(*position), &event);
        }
        claimed
    }

    #[test]
    fn a_claim_is_missed_while_it_cannot_have_ended() {
        let young = [
            (1, 0, true),
            (2, 0, false),
            (3, HOUR, true),
            (4, HOUR, false),
        ];
        let check = |events: &[(u64, i64, bool)], clock, answers: &[u64], expected: &[u64]| {
            let connection = log(clock, answers);
            let missing = claimed(events).missing(&connection).unwrap();
            let missing: Vec<u64> = missing.iter().map(|position| position.0).collect();
            assert_eq!(missing, expected, "{events:?} {clock} {answers:?}");
        };
        check(&young, 0, &[1, 3], &[]);
        // The answer is any event of the command.
        check(&young, 0, &[2, 4], &[]);
        check(&young, 0, &[2], &[3]);
        check(&young, 0, &[4], &[1]);
        check(&young, 0, &[], &[1, 3]);
        // Time that commits without events saw counts too.
        check(&young, 23 * HOUR, &[], &[3]);
        check(&young, 24 * HOUR, &[], &[]);
        check(&young, notes::UNKNOWN, &[], &[]);
        // And time that went by between events; a clock that goes back makes nothing younger.
        check(&[(1, 0, true), (2, 23 * HOUR, false)], 0, &[], &[]);
        check(
            &[(1, 0, true), (2, 30 * HOUR, false), (3, 0, true)],
            0,
            &[],
            &[3],
        );
    }

    #[test]
    fn what_a_repair_noted_is_not_missed_again() {
        let connection = log(0, &[]);
        notes::put(&connection, notes::CLAIMS_LOST_TO, 1).unwrap();
        let events = [(1, 0, true), (2, 0, true)];
        assert_eq!(
            claimed(&events).missing(&connection).unwrap(),
            [Position(2)]
        );
    }
}
