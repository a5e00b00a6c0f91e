//! Sealing: drafts get positions, ids, sequences, links and bytes, and are folded into the documents.
//!
//! Pure, so that it can run inside a store's transaction, once the first position is known.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::apply::apply;
use crate::{
    Document, Documents, Draft, Event, EventName, FurtherLink, ImpossibleEvent, Kind, Links,
    Position, Timestamp, artifact_reference, blob_reference,
};

/// Documents as a turn sees them: what the store held, changed by what the turn has decided so far. Copies share the
/// documents that neither has changed.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    documents: BTreeSet<ById>,
    /// What documents were at the mark, each once; none without a mark.
    before: Option<Vec<Before>>,
}

/// A document, found by its id.
#[derive(Debug, Clone)]
struct ById(Arc<Document>);

impl Borrow<str> for ById {
    fn borrow(&self) -> &str {
        &self.0.id
    }
}

impl Ord for ById {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.id.cmp(&other.0.id)
    }
}

impl PartialOrd for ById {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ById {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for ById {}

/// What a document was, by its id; none when it was not there.
type Before = (Box<str>, Option<Arc<Document>>);

impl Scratch {
    /// Puts a document in.
    pub fn insert(&mut self, document: Document) {
        self.insert_shared(Arc::new(document));
    }

    /// Puts a document in that somebody else holds too.
    pub fn insert_shared(&mut self, document: Arc<Document>) {
        self.documents.replace(ById(document));
    }

    /// Remembers how things stand: [`Scratch::roll_back`] returns to it. Replaces an earlier mark.
    pub fn mark(&mut self) {
        self.before.get_or_insert_default().clear();
    }

    /// Undoes what was sealed since the mark.
    pub fn roll_back(&mut self) {
        for (id, document) in self.before.take().into_iter().flatten() {
            match document {
                Some(document) => drop(self.documents.replace(ById(document))),
                None => drop(self.documents.remove(&*id)),
            }
        }
    }

    fn key(&self, id: Option<&str>) -> Option<Position> {
        self.documents.get(id?).map(|document| document.0.key)
    }

    /// Returns every document, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Document> {
        self.documents.iter().map(|document| &*document.0)
    }

    /// Returns every document, by id, to be kept.
    pub fn iter_shared(&self) -> impl Iterator<Item = &Arc<Document>> {
        self.documents.iter().map(|document| &document.0)
    }

    /// Takes a document out to change it.
    fn take(&mut self, id: &str) -> Option<Document> {
        let document = self.documents.take(id).map(|document| document.0);
        // Only the first time: whoever holds a document makes the next change copy it.
        if let Some(before) = &mut self.before
            && !before.iter().any(|(known, _)| **known == *id)
        {
            before.push((id.into(), document.clone()));
        }
        document.map(Arc::unwrap_or_clone)
    }
}

impl Documents for Scratch {
    fn document(&self, id: &str) -> Option<&Document> {
        self.documents.get(id).map(|document| &*document.0)
    }
}

/// An event with its place in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Sealed {
    /// Where it stands.
    pub position: Position,
    /// What it belongs to.
    pub links: Links,
    /// Key of the resource it happened to.
    pub resource: Position,
    /// The stored bytes.
    pub bytes: Vec<u8>,
    /// What they say.
    pub event: Event,
}

/// Seals drafts from a first position on and folds them into the scratch documents.
///
/// # Errors
/// A draft does not follow from the documents: an error of this program, not of a caller.
pub fn seal(
    log: &EventName,
    scratch: &mut Scratch,
    drafts: &[Draft],
    first: Position,
    stamp: Timestamp,
) -> Result<Vec<Sealed>, ImpossibleEvent> {
    let mut sealed = Vec::with_capacity(drafts.len());
    for (index, draft) in drafts.iter().enumerate() {
        let position = first.plus(index as u64);
        let document = scratch.take(&draft.resource.id);
        let mut payload = Arc::clone(&draft.payload);
        if let Some((member, distance)) = draft.sibling {
            Arc::make_mut(&mut payload)
                .insert(member.to_owned(), log.id(position.plus(distance)).into());
        }
        // What a tool gave is kept beside the event when it is long; a reader finds in its place what to fetch. Events of
        // replays repeat those of their source.
        if draft.kind == Kind::AgentToolResult
            && draft.replay.is_none()
            && blob_reference(&payload, "output").is_some()
        {
            let reference = artifact_reference(&log.id(position));
            Arc::make_mut(&mut payload).insert("output".to_owned(), reference);
        }
        let event = Event {
            id: log.id(position).into(),
            kind: draft.kind.as_str().into(),
            resource: draft.resource.clone(),
            sequence: document.as_ref().map_or(1, |document| document.version + 1),
            created_at: stamp,
            payload,
            workspace_id: draft.workspace_id.clone(),
            session_id: draft.session_id.clone(),
            task_id: draft.task_id.clone(),
            actor: draft.actor.clone(),
            idempotency_key: draft.idempotency_key.clone(),
            receipt_id: draft.receipt_id.clone(),
            replay: draft.replay.clone(),
            previous_event_id: document
                .as_ref()
                .map(|document| log.id(document.tip).into()),
        };
        let own_key = document.as_ref().map_or(position, |document| document.key);
        let links = links_of(scratch, &event, own_key);
        let bytes = event.to_bytes();
        let document = apply(
            log,
            document,
            &event,
            position,
            belongs_to(scratch, &event, &links),
        )?;
        scratch.insert(document);
        sealed.push(Sealed {
            position,
            links,
            resource: own_key,
            bytes,
            event,
        });
    }
    Ok(sealed)
}

/// Returns what a new resource belongs to: as its event, except that an Artifact registered for a finished
/// Task belongs to the Task while its event stays outside the sealed log.
fn belongs_to(scratch: &Scratch, event: &Event, links: &Links) -> Links {
    Links {
        task: links.task.or_else(|| scratch.key(event.owner())),
        ..links.clone()
    }
}

fn links_of(scratch: &Scratch, event: &Event, own_key: Position) -> Links {
    // A resource that an event creates is not in the scratch yet: it links to itself by its own key.
    links(event, |id| match *id == *event.resource.id {
        true => Some(own_key),
        false => scratch.key(Some(id)),
    })
}

/// Returns what an event belongs to, given the keys of the documents that it names.
pub fn links(event: &Event, key: impl Fn(&str) -> Option<Position>) -> Links {
    let further = event.kind().map_or(FurtherLink::None, Kind::further_link);
    let mut further: Vec<Position> = further.ids(event).filter_map(&key).collect();
    further.sort_unstable();
    further.dedup();
    Links {
        workspace: event.workspace_id.as_ref().and_then(|id| key(id.as_str())),
        session: event.session_id.as_ref().and_then(|id| key(id.as_str())),
        task: event.task_id.as_ref().and_then(|id| key(id.as_str())),
        further: further.into(),
    }
}
