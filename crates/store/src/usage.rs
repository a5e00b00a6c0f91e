//! How much each Workspace has stored: its events, and the content that they name. Counted by what events say, so that it
//! is a fold of the log; what is stored once and named twice counts twice.
//!
//! The writer counts in memory and writes it down now and then, with the position up to which it is counted: a start after a
//! crash counts the few events behind it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use domain::{COUNTED_APART, Event, Kind, NamedBlob, Position, payload};
use engine::port::{StorageUse, StoreFault, StoredEvent};
use memchr::memmem::Finder;
use rusqlite::Connection;

use crate::block::Block;
use crate::fault::fault;
use crate::projection;
use crate::row::sql;
use crate::schema;
use crate::table::Table;

/// After how many events, or how many bytes, what was counted is written down.
const EVENTS_MAX: u64 = 2_048;
const BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The row that says how far was counted. No Workspace has this key.
const UP_TO: u64 = 0;
/// Set in the key of a row that says how much of a Workspace is counted apart.
const APART: u64 = 1 << 62;

/// What was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// By the key of the Workspace; what is counted apart has a mark in it.
    workspaces: BTreeMap<u64, u64>,
    total: u64,
    total_apart: u64,
    workspaces_apart: usize,
    up_to: u64,
    /// What is not written down yet.
    events: u64,
    bytes: u64,
    changed: BTreeSet<u64>,
}

impl Usage {
    /// Reads what was written down, and counts what came after it.
    pub(crate) fn read(connection: &Connection) -> Result<Self, StoreFault> {
        let mut usage = Self::read_stored(connection).map_err(fault)?;
        usage.catch_up(connection)?;
        Ok(usage)
    }

    /// Counts what came after it, whoever committed it.
    pub(crate) fn catch_up(&mut self, connection: &Connection) -> Result<(), StoreFault> {
        let usage = self;
        let next = usage.up_to + 1;
        let first = Table::Events.holding(connection, next)?.unwrap_or(next);
        Table::Events.each(connection, first, |first, bytes| {
            // What cannot be read counts nothing; `log verify` names it.
            if let Ok(block) = Block::decode(first, bytes) {
                let counted = usage.up_to;
                let events = block.events.iter();
                usage.add(events.filter(|event| event.position.0 > counted));
            }
            Ok::<bool, StoreFault>(true)
        })
    }

    /// Reads what was written down.
    fn read_stored(connection: &Connection) -> rusqlite::Result<Self> {
        let mut usage = Self::default();
        let mut select = connection.prepare("SELECT workspace, bytes FROM usage")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let (workspace, bytes): (u64, u64) = (row.get(0)?, row.get(1)?);
            if workspace == UP_TO {
                usage.up_to = bytes;
            } else {
                usage.count(workspace, bytes);
            }
        }
        Ok(usage)
    }

    /// Counts events, which follow those that were counted.
    pub(crate) fn add<'a>(&mut self, events: impl IntoIterator<Item = &'a StoredEvent>) {
        for event in events {
            self.up_to = event.position.0;
            self.events += 1;
            let Some(workspace) = event.links.workspace else {
                continue;
            };
            let (bytes, is_apart) = bytes_of(event);
            let key = match is_apart {
                true => workspace.0 | APART,
                false => workspace.0,
            };
            self.bytes += bytes;
            self.count(key, bytes);
            self.changed.insert(key);
        }
    }

    fn count(&mut self, key: u64, bytes: u64) {
        let is_apart = key & APART != 0;
        if is_apart {
            self.total_apart += bytes;
            self.workspaces_apart += usize::from(!self.workspaces.contains_key(&key));
        } else {
            self.total += bytes;
        }
        *self.workspaces.entry(key).or_default() += bytes;
    }

    /// True when enough was counted to be written down.
    pub(crate) fn is_due(&self) -> bool {
        self.events >= EVENTS_MAX || self.bytes >= BYTES_MAX
    }

    /// True when something was counted that is not written down.
    pub(crate) fn is_ahead(&self) -> bool {
        self.events > 0
    }

    /// Writes it down, in the transaction under way.
    pub(crate) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        let insert = "INSERT OR REPLACE INTO usage(workspace, bytes) VALUES (?1, ?2)";
        let mut insert = connection.prepare_cached(insert)?;
        insert.execute([sql(UP_TO), sql(self.up_to)])?;
        for workspace in &self.changed {
            let bytes = self.workspaces.get(workspace).copied().unwrap_or(0);
            insert.execute([sql(*workspace), sql(bytes)])?;
        }
        Ok(())
    }

    /// Notes that it is written down.
    pub(crate) fn written(&mut self) {
        (self.events, self.bytes) = (0, 0);
        self.changed.clear();
    }

    /// Says how much a Workspace has, and all of them.
    pub(crate) fn of(&self, workspace: Position) -> StorageUse {
        StorageUse {
            of_workspace: self.workspaces.get(&workspace.0).copied().unwrap_or(0),
            total: self.total,
            workspaces: self.workspaces.len() - self.workspaces_apart,
        }
    }

    /// Says the same of what is counted apart.
    pub(crate) fn separate_use_of(&self, workspace: Position) -> StorageUse {
        let key = workspace.0 | APART;
        StorageUse {
            of_workspace: self.workspaces.get(&key).copied().unwrap_or(0),
            total: self.total_apart,
            workspaces: self.workspaces_apart,
        }
    }
}

/// Says what is wrong with what was written down.
pub(crate) fn check(connection: &Connection) -> Result<Option<String>, StoreFault> {
    // A log that no newer program has worked on since it was made or pruned has none.
    if !projection::is_there(connection, projection::USAGE).map_err(fault)? {
        return Ok(None);
    }
    if !schema::has_table(connection, "usage").map_err(fault)? {
        let said =
            "the table `usage` is missing; the next start counts again what workspaces have stored";
        return Ok(Some(said.to_owned()));
    }
    let kept = Usage::read_stored(connection).map_err(fault)?;
    let mut counted = Usage::default();
    Table::Events.each(connection, 0, |first, bytes| {
        if let Ok(block) = Block::decode(first, bytes) {
            let events = block.events.iter();
            counted.add(events.filter(|event| event.position.0 <= kept.up_to));
        }
        Ok::<bool, StoreFault>(first.0 <= kept.up_to)
    })?;
    let wrong = "the count of what each workspace has stored is not that of its events";
    Ok((kept.workspaces != counted.workspaces).then(|| wrong.to_owned()))
}

/// Returns how much an event takes, with the content that it names, and whether that is counted apart.
fn bytes_of(stored: &StoredEvent) -> (u64, bool) {
    let own = stored.bytes.len() as u64;
    if !may_name(&stored.bytes) {
        return (own, false);
    }
    let Ok(event) = Event::parse(&stored.bytes) else {
        return (own, false);
    };
    if event.is_header() || event.is_substituted() {
        return (own, false);
    }
    let stated = |value: &canon::Value| value.get("bytes").and_then(canon::Value::as_u64);
    let moved: u64 = domain::external_members(&event.payload)
        .filter_map(|moved| moved.bytes)
        .sum();
    let parts = payload::Message::of(&event.payload).parts();
    let parts = parts.and_then(canon::Value::as_array);
    let parts = parts.into_iter().flatten();
    let parts: u64 = parts
        .filter(|part| part.get("redacted") == Some(&canon::Value::Bool(true)))
        .filter_map(stated)
        .sum();
    let named = event.kind().map_or(NamedBlob::None, Kind::named_blob);
    let content = match named.digest(&event) {
        Some(_) => ["bytes", "bundle_bytes"]
            .iter()
            .find_map(|name| event.payload.get(*name)?.as_u64()),
        None if named == NamedBlob::Entry => {
            payload::FieldEntry::of(&event.payload).content_bytes()
        }
        None => None,
    };
    let bytes = own
        .saturating_add(moved)
        .saturating_add(parts)
        .saturating_add(content.unwrap_or(0));
    let is_apart = named == NamedBlob::Entry
        && event.payload.get(COUNTED_APART) == Some(&canon::Value::Bool(true));
    (bytes, is_apart)
}

/// False for an event that names no content, without reading it: most do not, and every commit asks.
fn may_name(bytes: &[u8]) -> bool {
    static DIGEST: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(r#"sha256":"#));
    static APART: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(COUNTED_APART));
    let (has_digest, is_apart) = (DIGEST.find(bytes).is_some(), APART.find(bytes).is_some());
    if !has_digest && !is_apart {
        return false;
    }
    let Ok(text) = str::from_utf8(bytes) else {
        return false;
    };
    // A quote within a text is escaped: what is found is a member.
    let kind = text.split_once("\",\"event\":\"");
    let kind = kind.and_then(|(_, rest)| rest.split('"').next());
    let named = kind.map(|kind| Kind::parse(kind).map_or(NamedBlob::None, Kind::named_blob));
    if named == Some(NamedBlob::Entry) && is_apart {
        return true;
    }
    has_digest
        && (named != Some(NamedBlob::None)
            || text.contains("\"blobs\":{")
            || text.contains("\"redacted\":true"))
}
