//! Reading a field from the log: its events in order, with the texts that lie beside them.

use canon::Digest;
use domain::{Event, FieldId, Kind, Position};
use field::{Content, Entry, Field};

use super::desk::{Desk, Held};
use crate::engine::Engine;
use crate::port::{ReadEvents, Scope, StoredEvent};
use crate::refused::Refused;

/// Events that are read at once.
const PAGE_LEN: usize = 500;

impl Engine {
    /// Folds the log of a field; one that does not exist is empty.
    pub(super) async fn load_field(&self, desk: &Desk) -> Result<Held, Refused> {
        let id = FieldId::of(&desk.workspace_id, &desk.name);
        let mut held = Held {
            field: Field::new(self.shared.fields.config().clone()),
            version: 0,
        };
        let Some(document) = self.shared_document(id.as_str()).await? else {
            return Ok(held);
        };
        let mut after = Position::START;
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
            let (entries, newest) = read(&page)?;
            let contents = self.contents_beside(&entries).await?;
            held = self
                .aside(move || {
                    for ((entry, ..), content) in entries.iter().zip(&contents) {
                        apply(&mut held, entry, content)?;
                    }
                    held.version = held.version.max(newest);
                    Ok::<Held, Refused>(held)
                })
                .await??;
        }
        if held.version < document.version {
            let (version, read) = (document.version, held.version);
            return Err(damaged(format!("{read} of {version} entries are there")));
        }
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

/// An entry with the digests of its text and its vector.
type Read = (Entry, Option<Digest>, Option<Digest>);

fn damaged(problem: impl std::fmt::Display) -> Refused {
    Refused::Internal {
        detail: format!("a field cannot be read: {problem}; run `reprise log verify`"),
    }
}

/// Reads a page of entries, and says how far it goes. What a repair had to reduce to its header is lost, and nothing else.
fn read(page: &[StoredEvent]) -> Result<(Vec<Read>, u64), Refused> {
    let (mut entries, mut newest) = (Vec::with_capacity(page.len()), 0);
    for stored in page {
        let event = Event::parse(&stored.bytes).map_err(damaged)?;
        if event.kind() != Ok(Kind::FieldEntry) {
            return Err(damaged(format!("`{}` is not an entry", event.id)));
        }
        newest = event.sequence;
        if event.is_header() {
            continue;
        }
        let entry = Entry::read(event.sequence, &event.payload).map_err(damaged)?;
        let (text, vector) = entry.beside(&event.payload);
        entries.push((entry, text, vector));
    }
    Ok((entries, newest))
}

fn apply(held: &mut Held, entry: &Entry, content: &Content) -> Result<(), Refused> {
    held.field.apply(entry, Some(content)).map_err(damaged)?;
    held.version = entry.seq;
    Ok(())
}
