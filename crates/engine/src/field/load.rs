//! Reading a field: the segments of its fold that are kept, then the events behind them in order, with the texts that lie
//! beside them. Segments are a projection that follows behind: what they lack is read from the log and kept for the next
//! start.

use std::sync::Arc;

use canon::Digest;
use domain::{Document, Event, FieldId, Kind, Position};
use field::{Content, Entry, Field};

use super::processor::{CachedField, FieldProcessor};
use crate::engine::Engine;
use crate::port::{FieldSegment, ReadEvents, Scope, StoredEvent};
use crate::refused::Refused;

/// Events that are read at once.
const PAGE_LEN: usize = 500;
/// Entries after which a segment is kept: a start reads at most about this many events.
const SEGMENT_LEN: u64 = 1_024;

impl Engine {
    /// Folds the log of a field; one that does not exist is empty.
    pub(super) async fn load_field(
        &self,
        processor: &FieldProcessor,
    ) -> Result<CachedField, Refused> {
        let id = FieldId::of(&processor.workspace_id, &processor.name);
        let Some(document) = self.shared_document(id.as_str()).await? else {
            return Ok(self.empty_field());
        };
        let held = self.read_segments(&document).await?;
        let from_segments = held.version > 0;
        let mut held = match self.read_log(&document, held).await {
            // The log does not go on where the segments end: it may be sound, and they are not.
            Err(Refused::FieldUnreadable { detail }) if from_segments => {
                let held = self.without_segments(&document, detail).await?;
                self.read_log(&document, held).await?
            }
            read => read?,
        };
        self.finish_purge(&mut held).await?;
        Ok(held)
    }

    /// Folds the events behind what was read of a field, each of which follows the one before it.
    async fn read_log(
        &self,
        document: &Document,
        mut held: CachedField,
    ) -> Result<CachedField, Refused> {
        let mut after = held.position;
        loop {
            let query = ReadEvents {
                scope: Scope::Linked(document.key),
                after,
                limit: PAGE_LEN,
            };
            let page = self.shared.store.events(query).await?;
            let Some(last) = page.last() else {
                break;
            };
            after = last.position;
            let (entries, newest) = read(&page, held.version)?;
            let contents = self.contents_beside(&entries).await?;
            held = self
                .run_blocking(move || {
                    for ((entry, ..), content) in entries.iter().zip(&contents) {
                        apply(&mut held, entry, content)?;
                    }
                    held.version = newest;
                    held.position = after;
                    Ok::<CachedField, Refused>(held)
                })
                .await??;
            held = self.keep_segment(held).await?;
        }
        if held.version < document.version {
            let (version, read) = (document.version, held.version);
            return Err(damaged(format!("{read} of {version} entries are there")));
        }
        Ok(held)
    }

    fn empty_field(&self) -> CachedField {
        CachedField {
            field: Field::new(self.shared.fields.config().clone()),
            version: 0,
            key: None,
            position: Position::START,
            kept: 0,
        }
    }

    /// Reads what is kept of a field's fold. One segment that cannot be used makes all of them useless: the log says it.
    async fn read_segments(&self, document: &Document) -> Result<CachedField, Refused> {
        let mut held = self.empty_field();
        held.key = Some(document.key);
        loop {
            let segment = self
                .shared
                .store
                .field_segment(document.key, held.version)
                .await?;
            let Some(segment) = segment else {
                return Ok(held);
            };
            let segment = match segment {
                Ok(segment) => segment,
                Err(unusable) => {
                    let reason = unusable.to_string();
                    return self.without_segments(document, reason).await;
                }
            };
            let version = document.version;
            let read = self
                .run_blocking(move || take_in(held, &segment, version))
                .await?;
            held = match read {
                Ok(held) => held,
                Err(reason) => return self.without_segments(document, reason).await,
            };
        }
    }

    /// Forgets what is kept of a field's fold, which is then read from the log.
    async fn without_segments(
        &self,
        document: &Document,
        error: String,
    ) -> Result<CachedField, Refused> {
        tracing::warn!(error, "a field is folded again from its log");
        self.shared.store.drop_field_segments(document.key).await?;
        let mut empty = self.empty_field();
        empty.key = Some(document.key);
        Ok(empty)
    }

    /// Keeps what was folded since the last segment, once that is enough for one. Losing it costs the next start some time.
    pub(super) async fn keep_segment(&self, mut held: CachedField) -> Result<CachedField, Refused> {
        let Some(field) = held.key.filter(|_| held.is_due()) else {
            return Ok(held);
        };
        let shared = Arc::clone(&self.shared.fields.segments).read_owned().await;
        let (held, segment) = self
            .run_blocking(move || {
                let segment = FieldSegment {
                    field,
                    after: held.kept,
                    last: held.version,
                    position: held.position,
                    bytes: held.field.segment(held.kept),
                };
                held.kept = held.version;
                (held, segment)
            })
            .await?;
        let store = Arc::clone(&self.shared.store);
        self.shared.spawn.spawn(Box::pin(async move {
            let _shared = shared;
            if let Err(error) = store.put_field_segment(segment).await {
                tracing::warn!(%error, "a segment of a field cannot be kept");
            }
        }));
        Ok(held)
    }

    /// Reads what lies beside entries, all at once.
    async fn contents_beside(&self, entries: &[Read]) -> Result<Vec<Content>, Refused> {
        let named = |(_, text, vector): &Read| [*text, *vector].into_iter().flatten();
        let digests: Vec<Digest> = entries.iter().flat_map(named).collect();
        let found = self.shared.store.blobs_as_stored(digests).await?;
        let mut found = found.into_iter();
        let mut next = |digest: Option<Digest>| {
            let bytes = digest.and_then(|_| found.next())?;
            // What does not hash to its name is not the text: the entry stands, its words are lost.
            bytes.filter(|bytes| Some(canon::sha256(bytes)) == digest)
        };
        let contents = entries.iter().map(|(_, text, vector)| {
            let (text, vector) = (next(*text), next(*vector));
            Content::read(text.as_deref(), vector.as_deref())
        });
        Ok(contents.collect())
    }
}

impl CachedField {
    /// Returns whether enough was folded since the last segment for another.
    pub(super) fn is_due(&self) -> bool {
        self.version >= self.kept + SEGMENT_LEN
    }
}

/// An entry with the digests of its text and its vector.
type Read = (Entry, Option<Digest>, Option<Digest>);

fn damaged(problem: impl std::fmt::Display) -> Refused {
    Refused::FieldUnreadable {
        detail: format!("a field cannot be read: {problem}; run `reprise log verify`"),
    }
}

/// Folds a segment that begins where what was read ends, and ends within the log.
fn take_in(
    mut held: CachedField,
    segment: &FieldSegment,
    version: u64,
) -> Result<CachedField, String> {
    let follows = segment.after == held.version && segment.last > segment.after;
    if !follows || segment.position <= held.position {
        return Err("a segment does not follow the one before it".to_owned());
    }
    if segment.last > version {
        return Err("a segment is ahead of the log".to_owned());
    }
    let read = held.field.read_segment(&segment.bytes);
    read.map_err(|error| error.to_string())?;
    if held.field.head() > segment.last {
        return Err("a segment goes further than it says".to_owned());
    }
    held.version = segment.last;
    held.kept = segment.last;
    held.position = segment.position;
    Ok(held)
}

/// Reads a page of entries that follow a sequence without a gap, and says how far it goes. What a repair had to reduce to its header is lost, and nothing else.
fn read(page: &[StoredEvent], mut newest: u64) -> Result<(Vec<Read>, u64), Refused> {
    let mut entries = Vec::with_capacity(page.len());
    for stored in page {
        let event = Event::parse(&stored.bytes).map_err(damaged)?;
        if event.kind() != Ok(Kind::FieldEntry) {
            return Err(damaged(format!("`{}` is not an entry", event.id)));
        }
        if event.sequence != newest + 1 {
            let sequence = event.sequence;
            return Err(damaged(format!("entry {sequence} follows entry {newest}")));
        }
        newest = event.sequence;
        if event.is_header() {
            continue;
        }
        let entry = Entry::read(event.sequence, &event.payload).map_err(damaged)?;
        let (text, vector) = entry.content_digests(&event.payload);
        entries.push((entry, text, vector));
    }
    Ok((entries, newest))
}

fn apply(held: &mut CachedField, entry: &Entry, content: &Content) -> Result<(), Refused> {
    held.field.apply(entry, Some(content)).map_err(damaged)?;
    held.version = entry.seq;
    Ok(())
}
