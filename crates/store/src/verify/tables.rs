//! The tables that answers are made from and that no document holds: links, secret, leases, keys, claims.

use std::collections::{BTreeMap, BTreeSet};

use canon::{Digest, sha256};
use domain::{Position, ResourceKind, State};
use engine::port::{ListQuery, Scope};
use rusqlite::{Connection, OptionalExtension};

use crate::audit::AuditError;
use crate::block::Block;
use crate::claims::{self, ClaimedEvents};
use crate::fault::fault;
use crate::fold::{Problem, ProblemSubject};
use crate::notes;
use crate::read;
use crate::recent;
use crate::row::further;
use crate::schema::{self, Sealed};
use crate::table::Table;
use crate::tree;
use crate::usage;

/// How many documents are read at a time.
const CHUNK: usize = 512;

/// How many links are named when they differ.
const NAMED_MAX: usize = 20;

/// Checks them all. `head` is the position of the last event; where events are not as they were, the index of them cannot
/// be judged.
pub(super) fn check(
    blocks: &Connection,
    head: Position,
    claimed: ClaimedEvents,
    events_are_sound: bool,
) -> Result<Vec<Problem>, AuditError> {
    let missing = notes::missing(blocks).map_err(fault)?;
    let mut problems: Vec<Problem> = missing.into_iter().map(lacks).collect();
    problems.extend(meta(blocks)?);
    if events_are_sound {
        problems.extend(links(blocks)?);
        problems.extend(heads(blocks)?);
        problems.extend(document_links(blocks)?);
        problems.extend(messages(blocks)?);
        problems.extend(usage::check(blocks)?.map(problem));
        problems.extend(field_segments(blocks)?);
    }
    problems.extend(unreachable(blocks)?);
    problems.extend(leases(blocks)?);
    problems.extend(keys(blocks)?);
    problems.extend(claims(blocks, claimed)?);
    let ahead = "SELECT count(*) FROM claims WHERE answer > ?1";
    let ahead: u64 = blocks
        .query_row(ahead, [crate::row::sql(head.0)], |row| row.get(0))
        .map_err(fault)?;
    if ahead > 0 {
        problems.push(problem(format!(
            "{ahead} idempotency keys name events that are not there"
        )));
    }
    Ok(problems)
}

fn problem(problem: String) -> Problem {
    Problem {
        what: ProblemSubject::Database,
        problem,
    }
}

fn lacks(what: String) -> Problem {
    let hint = "restore a backup, or let `reprise log repair --apply` write it again where the rest tells it";
    problem(format!("{what} is missing, which every log has: {hint}"))
}

/// A sum that does not depend on the order: equal for equal sets, whatever their size, without holding them.
#[derive(Default, PartialEq, Eq)]
struct Sum(u128, u64);

impl Sum {
    fn add(&mut self, link: u64, first: u64) {
        let mut bytes = [0; 16];
        let (one, other) = bytes.split_at_mut(8);
        one.copy_from_slice(&link.to_be_bytes());
        other.copy_from_slice(&first.to_be_bytes());
        let digest = sha256(&bytes);
        let half = digest.as_bytes().first_chunk().copied();
        self.0 = self.0.wrapping_add(half.map_or(0, u128::from_be_bytes));
        self.1 += 1;
    }
}

/// What stands twice where it may stand once: each index is spread over two tables.
#[derive(Default)]
struct Found {
    once: BTreeSet<(u64, u64)>,
    again: BTreeSet<(u64, u64)>,
}

impl Found {
    fn add(&mut self, link: u64, number: u64) {
        if !self.once.insert((link, number)) {
            self.again.insert((link, number));
        }
    }
}

/// The index of events must name, for each resource that has any, exactly the blocks that hold its events.
fn links(blocks: &Connection) -> Result<Vec<Problem>, AuditError> {
    let mut unreadable = BTreeSet::new();
    let mut needed = Sum::default();
    each_needed(blocks, &mut unreadable, |link, first| {
        needed.add(link, first)
    })?;
    let mut stored = Sum::default();
    each_stored(blocks, &unreadable, |link, first| stored.add(link, first))?;
    if needed == stored {
        return Ok(Vec::new());
    }
    // Only now are they held, to say which.
    let (mut wanted, mut found) = (BTreeSet::new(), Found::default());
    each_needed(blocks, &mut unreadable, |link, first| {
        wanted.insert((link, first));
    })?;
    each_stored(blocks, &unreadable, |link, first| found.add(link, first))?;
    let missing = wanted.difference(&found.once).map(|(link, first)| {
        format!("the index of events lacks the block at position {first} for the resource with key {link}")
    });
    let extra = found.once.difference(&wanted).map(|(link, first)| {
        format!("the index of events names position {first} for the resource with key {link}, which is not so")
    });
    let again = found.again.iter().map(|(link, first)| {
        format!("the index of events names position {first} twice for the resource with key {link}")
    });
    let said = missing.chain(extra).chain(again);
    Ok(said.take(NAMED_MAX).map(problem).collect())
}

/// The Messages of each Session must be listed under it, and nothing else.
fn messages(connection: &Connection) -> Result<Vec<Problem>, AuditError> {
    // A log that no newer program opened has them in an index.
    if !recent::is_there(connection).map_err(fault)? {
        return Ok(Vec::new());
    }
    let needed = "SELECT session, key FROM documents WHERE kind = 4 AND session IS NOT NULL";
    let stored = "SELECT session, key FROM session_messages \
         UNION ALL SELECT link, number FROM recent_links WHERE kind = 4";
    let sum = |text: &str| {
        let mut sum = Sum::default();
        each(connection, text, |session, key| sum.add(session, key))?;
        Ok::<Sum, AuditError>(sum)
    };
    let mut problems = Vec::new();
    if sum(needed)? != sum(stored)? {
        let (mut wanted, mut found) = (BTreeSet::new(), Found::default());
        each(connection, needed, |session, key| {
            wanted.insert((session, key));
        })?;
        each(connection, stored, |session, key| found.add(session, key))?;
        let wrong = wanted.symmetric_difference(&found.once);
        problems.extend(wrong.map(|(session, key)| {
            format!("the index of messages is wrong about that with key {key} under the session with key {session}")
        }));
        problems.extend(found.again.iter().map(|(session, key)| {
            format!("the index of messages names that with key {key} twice under the session with key {session}")
        }));
    }
    let foreign = "SELECT link, number FROM recent_links WHERE kind NOT IN (0, 4)";
    each(connection, foreign, |link, number| {
        problems.push(format!(
            "among the newest links is one of {number} to {link} that is of no kind"
        ));
    })?;
    Ok(problems.into_iter().take(NAMED_MAX).map(problem).collect())
}

/// Goes through the rows of a statement that are two numbers. What is none of ours stands for none of ours.
fn each(
    connection: &Connection,
    text: &str,
    mut each: impl FnMut(u64, u64),
) -> Result<(), AuditError> {
    let mut run = || {
        let mut select = connection.prepare(text)?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let [one, other] = [row.get::<_, i64>(0)?, row.get(1)?].map(i64::cast_unsigned);
            each(one, other);
        }
        Ok(())
    };
    Ok(run().map_err(fault)?)
}

/// What is kept of fields must be readable, and not ahead of them.
fn field_segments(connection: &Connection) -> Result<Vec<Problem>, AuditError> {
    // A log that no newer program opened has none.
    if !schema::has_table(connection, "field_segments").map_err(fault)? {
        return Ok(Vec::new());
    }
    let found = crate::segments::check(connection).map_err(fault)?;
    Ok(found.into_iter().take(NAMED_MAX).map(problem).collect())
}

/// The index of documents must list each under its further links, and nothing else.
fn document_links(connection: &Connection) -> Result<Vec<Problem>, AuditError> {
    let run = || -> rusqlite::Result<Vec<Problem>> {
        let mut wanted = BTreeSet::new();
        let text = "SELECT key, kind, further FROM documents WHERE further IS NOT NULL";
        let mut select = connection.prepare(text)?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let (key, kind): (u64, u8) = (row.get(0)?, row.get(1)?);
            let links = further(row.get(2)?);
            wanted.extend(links.iter().map(|link| (link.0, kind, key)));
        }
        let mut select = connection.prepare("SELECT link, kind, key FROM document_links")?;
        let found = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let found = found.collect::<rusqlite::Result<BTreeSet<(u64, u8, u64)>>>()?;
        let different = wanted.symmetric_difference(&found);
        let said = different.map(|(link, _, key)| {
            problem(format!(
                "the index of documents is wrong about the resource with key {key} under that with key {link}"
            ))
        });
        Ok(said.take(NAMED_MAX).collect())
    };
    Ok(run().map_err(fault)?)
}

fn each_needed(
    blocks: &Connection,
    unreadable: &mut BTreeSet<u64>,
    mut each: impl FnMut(u64, u64),
) -> Result<(), AuditError> {
    Table::Events.each(blocks, 0, |first, bytes| -> Result<bool, AuditError> {
        match Block::decode(first, bytes) {
            Ok(block) => block.links().iter().for_each(|link| each(link.0, first.0)),
            // Said already.
            Err(_) => {
                unreadable.insert(first.0);
            }
        }
        Ok(true)
    })
}

fn each_stored(
    connection: &Connection,
    unreadable: &BTreeSet<u64>,
    mut each: impl FnMut(u64, u64),
) -> Result<(), AuditError> {
    let moved = "SELECT link, first FROM event_links".to_owned();
    let text = match recent::is_there(connection).map_err(fault)? {
        true => format!("{moved} UNION ALL SELECT link, number FROM recent_links WHERE kind = 0"),
        // No newer program has worked on it.
        false => moved,
    };
    self::each(connection, &text, |link, first| {
        if !unreadable.contains(&first) {
            each(link, first);
        }
    })
}

fn meta(connection: &Connection) -> Result<Vec<Problem>, AuditError> {
    let mut problems = Vec::new();
    let secret: Option<Vec<u8>> = value(connection, "secret")?;
    let known = schema::seal_of(connection, Sealed::Secret).map_err(fault)?;
    match (secret, known) {
        (None, _) => problems.push("the secret of the log is not a secret".to_owned()),
        (Some(secret), Some(known)) if sha256(&secret) != known => {
            problems.push("the secret of the log is not the one that it was made with".to_owned());
        }
        (Some(_), _) => {}
    }
    Ok(problems.into_iter().map(problem).collect())
}

fn value<T: rusqlite::types::FromSql>(
    connection: &Connection,
    name: &str,
) -> Result<Option<T>, AuditError> {
    let found = connection
        .query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| {
            // One of another type is as good as none.
            Ok(row.get(0).ok())
        })
        .optional();
    Ok(found.map_err(fault)?.flatten())
}

/// Every key is the position of an event: a document before the first one is read by nobody who goes through them all.
fn unreachable(connection: &Connection) -> Result<Option<Problem>, AuditError> {
    let count = "SELECT count(*) FROM documents WHERE key < 1";
    let count: u64 = connection
        .query_row(count, [], |row| row.get(0))
        .map_err(fault)?;
    let said = || problem(format!("{count} documents have keys that no event has"));
    Ok((count > 0).then(said))
}

/// A lease is of something that is there, at an epoch that was given out. That at 0 is the process's own.
fn leases(connection: &Connection) -> Result<Vec<Problem>, AuditError> {
    let wrong = "SELECT leases.name FROM leases LEFT JOIN documents ON documents.key = leases.name \
         WHERE (leases.name > 0 AND documents.key IS NULL) OR leases.epoch < 1 \
         OR leases.epoch > (SELECT value FROM meta WHERE name = 'lease_epoch') ORDER BY 1 LIMIT 20";
    let run = || {
        let mut select = connection.prepare(wrong)?;
        let rows = select.query_map([], |row| row.get::<_, i64>(0))?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    };
    let found = run().map_err(fault)?;
    let said = found.into_iter().map(|name| {
        problem(format!(
            "lease {name} is of nothing that is there, or at an epoch that was never given out"
        ))
    });
    Ok(said.collect())
}

/// Sealed heads are found by their roots: exactly those that there are.
fn heads(connection: &Connection) -> Result<Vec<Problem>, AuditError> {
    let sealed = tree::sealed_heads(connection)?;
    let sealed: BTreeMap<Digest, u64> = sealed
        .into_iter()
        .map(|(size, root)| (root, size))
        .collect();
    let run = || {
        let mut select = connection.prepare("SELECT root, size FROM heads")?;
        let rows =
            select.query_map([], |row| Ok((Digest::from_bytes(row.get(0)?), row.get(1)?)))?;
        rows.collect::<rusqlite::Result<BTreeMap<Digest, u64>>>()
    };
    let found = run().map_err(fault)?;
    let wrong = "the index of sealed heads is not that of the heads".to_owned();
    Ok((found != sealed)
        .then(|| problem(wrong))
        .into_iter()
        .collect())
}

/// A claim must be what was written: whoever repeats a request gets its first answer by it.
fn claims(connection: &Connection, claimed: ClaimedEvents) -> Result<Vec<Problem>, AuditError> {
    let mut problems = Vec::new();
    let changed = claims::changed(connection)?;
    if changed > 0 {
        let said = format!("{changed} idempotency keys are not what was stored");
        problems.push(problem(said));
    }
    let missing = claimed.missing(connection)?;
    if let Some(first) = missing.first() {
        problems.push(problem(format!(
            "{} idempotency keys are missing, the first that of the event at position {}: those requests would be carried \
             out again when they are repeated; restore a backup, or let `reprise log repair --apply` note the loss",
            missing.len(),
            first.0
        )));
    }
    Ok(problems)
}

fn keys(connection: &Connection) -> Result<Vec<Problem>, AuditError> {
    let mut problems = Vec::new();
    if let Err(error) = read::api_keys(connection) {
        problems.push(problem(format!("an API key cannot be read: {error}")));
    }
    let known: Option<Digest> = schema::seal_of(connection, Sealed::ApiKeys).map_err(fault)?;
    let found = schema::digest_of_api_keys(connection).map_err(fault)?;
    if known.is_some_and(|known| known != found) {
        problems.push(problem(
            "the API keys are not those that were stored last".to_owned(),
        ));
    }
    let stored = read::api_keys(connection).unwrap_or_default();
    let mut recorded = recorded(connection)?;
    let are_recorded = schema::keys_are_recorded(connection).map_err(fault)?;
    for key in stored {
        let told = recorded.remove(&*key.id);
        if told.is_none() && are_recorded {
            let id = &key.id;
            problems.push(problem(format!("API key `{id}` was made by no event")));
        }
        if told.is_some_and(|told| told != key.recorded()) {
            let id = &key.id;
            problems.push(problem(format!(
                "API key `{id}` is not what its events say of it"
            )));
        }
    }
    for id in recorded.into_keys() {
        problems.push(problem(format!(
            "API key `{id}` is missing, though events tell of it"
        )));
    }
    Ok(problems)
}

/// Returns what events tell of API keys, by id.
fn recorded(connection: &Connection) -> Result<BTreeMap<Box<str>, domain::Key>, AuditError> {
    let mut recorded = BTreeMap::new();
    let mut after = Position::START;
    loop {
        let query = ListQuery {
            kind: ResourceKind::Key,
            scope: Scope::All,
            open_only: false,
            after,
            limit: CHUNK,
        };
        // One that cannot be read was reported already.
        let Ok(page) = read::list(connection, query) else {
            return Ok(recorded);
        };
        let Some(last) = page.last() else {
            return Ok(recorded);
        };
        after = last.key;
        for document in page {
            if let State::Key(key) = document.state {
                recorded.insert(document.id, key);
            }
        }
    }
}

/// Counts the API keys that were made before keys had events.
pub(super) fn keys_without_events(connection: &Connection) -> Result<u64, AuditError> {
    if schema::keys_are_recorded(connection).map_err(fault)? {
        // Those are problems.
        return Ok(0);
    }
    let recorded = recorded(connection)?;
    let keys = read::api_keys(connection).unwrap_or_default();
    let without = keys.iter().filter(|key| !recorded.contains_key(&*key.id));
    Ok(without.count() as u64)
}
