//! Which blobs are named, and by what.
//!
//! A name is a digest anywhere in the text of an event, of a document, or of a blob that an event moved content into. Whoever
//! looks for what can go must not overlook a name; a digest that names no blob, such as that of a request, keeps nothing
//! alive, because nothing is stored under it. Two things name what they do not need: a receipt tells digests of what it proves, and
//! a verdict on it repeats them.

use std::collections::BTreeSet;

use canon::Digest;
use domain::{Event, Kind, NamedBlob, Position, ResourceKind, Retention, State};
use engine::port::StoreFault;

use super::{Prune, PruneProgress, keeps_payload, parse};
use crate::audit::{self, AuditError};
use crate::block::Block;
use crate::fault::fault;
use crate::row::DocumentRow;
use crate::table::Table;
use crate::{blob, read, schema};

impl Prune<'_> {
    /// Returns the blobs that the events of a Task name which would become headers.
    pub(super) fn names_of(
        &self,
        task: Position,
        blocks: &BTreeSet<u64>,
    ) -> Result<BTreeSet<Digest>, AuditError> {
        let mut names = BTreeSet::new();
        let mut seen = BTreeSet::new();
        self.each_event(task, blocks, |event, bytes| {
            if keeps_payload(event) {
                return Ok(());
            }
            names.extend(digests(bytes));
            self.follow(moved(event), &mut seen, &mut |digest| {
                names.insert(digest);
            })
        })?;
        Ok(names)
    }

    /// Returns those of the given blobs that nothing names once Tasks are pruned.
    pub(super) fn unreferenced(
        &self,
        tasks: &BTreeSet<Position>,
        mut names: BTreeSet<Digest>,
        progress: PruneProgress<'_>,
    ) -> Result<BTreeSet<Digest>, AuditError> {
        if names.is_empty() {
            return Ok(names);
        }
        let mut pruned = self.pruned_tasks()?;
        pruned.extend(tasks);
        // What is left whole of them goes on naming what it names.
        pruned.retain(|task| !self.refused.contains(task));
        self.named_by_documents(&pruned, &mut names)?;
        let mut seen = BTreeSet::new();
        let mut count = 0;
        let special = words_that_keep_less_than_they_name();
        Table::Events.each(self.connection, 0, |first, bytes| {
            let block = Block::decode(first, bytes);
            let block = block.map_err(|damage| StoreFault::new(damage.to_string()))?;
            for stored in &block.events {
                let text = str::from_utf8(&stored.bytes).unwrap_or_default();
                let goes = stored.links.task.is_some_and(|task| pruned.contains(&task));
                // The whole log goes through here: only what may be special is parsed.
                if goes || special.iter().any(|word| text.contains(word)) {
                    let event = parse(&stored.bytes)?;
                    match event.kind().map(Kind::retention) {
                        Ok(Retention::Receipt) => {
                            let content = NamedBlob::Receipt.digest(&event);
                            content.map(|content| names.remove(&content));
                            continue;
                        }
                        Ok(Retention::Verdict) => continue,
                        Ok(Retention::Header | Retention::Counted) | Err(_) if goes => continue,
                        Ok(Retention::Header | Retention::Counted | Retention::Whole) | Err(_) => {}
                    }
                }
                for digest in digests(&stored.bytes) {
                    names.remove(&digest);
                }
                if text.contains("\"blobs\":{") || text.contains("\"bundle_sha256\":") {
                    let moved = moved(&parse(&stored.bytes)?);
                    self.follow(moved, &mut seen, &mut |digest| {
                        names.remove(&digest);
                    })?;
                }
            }
            count += block.events.len() as u64;
            progress("events looked through for blobs", count);
            Ok::<_, AuditError>(true)
        })?;
        Ok(names)
    }

    /// Takes out what documents name. Bytes of Artifacts stay as long as these do, except the state of a checkpoint: it is
    /// there for replays of its Task. So is the request of a replay.
    fn named_by_documents(
        &self,
        pruned: &BTreeSet<Position>,
        names: &mut BTreeSet<Digest>,
    ) -> Result<(), AuditError> {
        let mut after = Position::START;
        loop {
            let rows = audit::documents(self.connection, after)?;
            let Some(last) = rows.last() else {
                return Ok(());
            };
            after = last.key;
            for row in rows {
                let of_pruned = row.links.task.is_some_and(|task| pruned.contains(&task));
                let is_replay =
                    row.kind == ResourceKind::Task.number() && pruned.contains(&row.key);
                if is_replay || (of_pruned && self.is_checkpoint(&row)?) {
                    continue;
                }
                for digest in digests(&row.body) {
                    names.remove(&digest);
                }
            }
        }
    }

    fn is_checkpoint(&self, row: &DocumentRow) -> Result<bool, AuditError> {
        if row.kind != ResourceKind::Artifact.number() {
            return Ok(false);
        }
        let State::Artifact(artifact) = row.document()?.state else {
            return Ok(false);
        };
        let source = read::events_at(self.connection, &[artifact.source])?;
        let source = source.into_iter().flatten().next();
        let event = source.map(|stored| parse(&stored.bytes)).transpose()?;
        Ok(event.is_some_and(|event| event.kind() == Ok(Kind::CheckpointCreated)))
    }

    fn pruned_tasks(&self) -> Result<BTreeSet<Position>, AuditError> {
        let rows = schema::pruned(self.connection).map_err(fault)?;
        Ok(rows.into_keys().collect())
    }

    /// Tells every digest in blobs, and in the blobs that these name in turn.
    fn follow(
        &self,
        mut next: Vec<Digest>,
        seen: &mut BTreeSet<Digest>,
        found: &mut dyn FnMut(Digest),
    ) -> Result<(), AuditError> {
        while let Some(digest) = next.pop() {
            if !seen.insert(digest) {
                continue;
            }
            let bytes = blob::find_unchecked(self.directory, self.connection, &digest)?;
            for named in digests(&bytes.unwrap_or_default()) {
                found(named);
                next.push(named);
            }
        }
        Ok(())
    }
}

/// Returns the blobs that an event moved content into, and the bundle of a Task that it brought from another log.
fn moved(event: &Event) -> Vec<Digest> {
    let listed = domain::external_members(&event.payload).map(|moved| moved.digest);
    let named = event.kind().map_or(NamedBlob::None, Kind::named_blob);
    let bundle = match named {
        NamedBlob::Bundle => named.digest(event),
        NamedBlob::None
        | NamedBlob::Entry
        | NamedBlob::Content
        | NamedBlob::State
        | NamedBlob::Receipt
        | NamedBlob::Request
        | NamedBlob::Plan => None,
    };
    listed.chain(bundle).collect()
}

/// Returns how the stored bytes of an event begin its kind, for those kinds that repeat digests of what they do not keep.
/// Callers' own members may look alike: who finds one parses.
fn words_that_keep_less_than_they_name() -> Vec<String> {
    let kinds = Kind::ALL.iter().filter(|kind| match kind.retention() {
        Retention::Receipt | Retention::Verdict => true,
        Retention::Header | Retention::Counted | Retention::Whole => false,
    });
    kinds.map(|kind| format!("\"event\":\"{kind}\"")).collect()
}

/// Returns the digests in a text; bytes that are no text have none.
fn digests(bytes: &[u8]) -> Vec<Digest> {
    const PREFIX: &str = "sha256:";
    const LEN: usize = PREFIX.len() + 64;
    let text = str::from_utf8(bytes).unwrap_or_default();
    let places = text.match_indices(PREFIX);
    places
        .filter_map(|(at, _)| Digest::parse(text.get(at..at + LEN)?).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_found_wherever_they_stand() {
        let [one, two] = [b"1", b"2"].map(|bytes| canon::sha256(bytes));
        let text = format!("{{\"a\":\"{one}\",\"é\":[\"sha256:x\",\"{two}\"]}} sha256:");
        assert_eq!(digests(text.as_bytes()), [one, two]);
        assert_eq!(digests(&[0xff, 0xfe]), []);
    }
}
