//! Documents as the events read so far leave them, without holding them all.
//!
//! A document that has come to what is stored of it is let go: the stored one is the same, and is read again when a later
//! event names it. Of those only the keys are held, a bit for each position. In memory stay those that later events go on
//! changing, and those that are wrong.

use std::collections::BTreeMap;
use std::sync::Arc;

use canon::Digest;
use domain::{Document, Event, Position, Scratch, State};

use crate::audit::{Audit, AuditError};
use crate::fold::named;
use crate::read;
use crate::row::DocumentRow;

/// How many documents are held that are also stored, because events name them again and again.
const RECALLED_MAX: usize = 4_096;

#[derive(Default)]
pub(super) struct Folded {
    /// Those that are not what is stored, or not yet.
    open: BTreeMap<Box<str>, Open>,
    /// Their ids.
    ids: BTreeMap<Position, Box<str>>,
    /// Those that are what is stored.
    closed: Positions,
    /// Some of these.
    recalled: BTreeMap<Box<str>, Arc<Document>>,
    /// The signed heads among these.
    heads: BTreeMap<Position, Head>,
}

struct Open {
    document: Arc<Document>,
    /// The event that last changed the stored one; none when there is none.
    stored_tip: Option<Position>,
}

/// Id, size and root of a signed head.
pub(super) type Head = (Box<str>, u64, Digest);

impl Folded {
    /// Returns a document by its id.
    pub(super) fn find(
        &mut self,
        audit: &Audit,
        id: &str,
    ) -> Result<Option<Arc<Document>>, AuditError> {
        if let Some(open) = self.open.get(id) {
            return Ok(Some(Arc::clone(&open.document)));
        }
        if let Some(known) = self.recalled.get(id) {
            return Ok(Some(Arc::clone(known)));
        }
        let row = read::document_row(audit.connection(), id)?;
        Ok(row.and_then(|row| self.recall(&row)))
    }

    /// Returns a document by its key.
    pub(super) fn find_key(
        &mut self,
        audit: &Audit,
        key: Position,
    ) -> Result<Option<Arc<Document>>, AuditError> {
        if let Some(id) = self.ids.get(&key) {
            let open = self.open.get(id);
            return Ok(open.map(|open| Arc::clone(&open.document)));
        }
        if !self.closed.contains(key) {
            return Ok(None);
        }
        let row = audit.document(key)?;
        Ok(row.and_then(|row| self.recall(&row)))
    }

    /// Returns a stored document that was found to be right.
    fn recall(&mut self, row: &DocumentRow) -> Option<Arc<Document>> {
        if !self.closed.contains(row.key) {
            return None;
        }
        let document = Arc::new(row.document().ok()?);
        if self.recalled.len() >= RECALLED_MAX {
            self.recalled.clear();
        }
        self.recalled
            .insert(document.id.clone(), Arc::clone(&document));
        Some(document)
    }

    /// Returns the documents that sealing an event may look at.
    pub(super) fn scratch(&mut self, audit: &Audit, event: &Event) -> Result<Scratch, AuditError> {
        let mut scratch = Scratch::default();
        for id in named(event) {
            if let Some(document) = self.find(audit, id)? {
                scratch.insert_shared(document);
            }
        }
        Ok(scratch)
    }

    /// Takes a document that an event has changed, and lets it go if it is what is stored.
    pub(super) fn put(&mut self, audit: &Audit, document: Arc<Document>) -> Result<(), AuditError> {
        let known = self.open.get(&document.id);
        let row = match known.filter(|known| known.document.key == document.key) {
            Some(open) if open.stored_tip != Some(document.tip) => None,
            _ => audit.document(document.key)?,
        };
        if let Some(row) = &row
            && row.tip == document.tip
            && DocumentRow::of(&document).difference(row).is_empty()
        {
            self.let_go(&document);
            return Ok(());
        }
        let stored_tip = match row {
            Some(row) => Some(row.tip),
            None => known.and_then(|known| known.stored_tip),
        };
        self.hold(document, stored_tip);
        Ok(())
    }

    /// Takes a document that is not judged.
    pub(super) fn put_unjudged(&mut self, document: Document) {
        self.hold(Arc::new(document), None);
    }

    fn hold(&mut self, document: Arc<Document>, stored_tip: Option<Position>) {
        self.closed.remove(document.key);
        self.recalled.remove(&document.id);
        self.heads.remove(&document.key);
        self.ids.insert(document.key, document.id.clone());
        let open = Open {
            document: Arc::clone(&document),
            stored_tip,
        };
        self.open.insert(document.id.clone(), open);
    }

    fn let_go(&mut self, document: &Document) {
        self.open.remove(&document.id);
        self.ids.remove(&document.key);
        self.recalled.remove(&document.id);
        self.closed.insert(document.key);
        if let Some(head) = head(document) {
            self.heads.insert(document.key, head);
        }
    }

    /// True for a document that is what is stored.
    pub(super) fn is_stored(&self, key: Position) -> bool {
        self.closed.contains(key)
    }

    /// Returns the documents that are not what is stored, by key.
    pub(super) fn different(&self) -> BTreeMap<Position, Arc<Document>> {
        let open = self.open.values();
        open.map(|open| (open.document.key, Arc::clone(&open.document)))
            .collect()
    }

    /// Returns the signed heads, by key.
    pub(super) fn heads(&self) -> BTreeMap<Position, Head> {
        let open = self.open.values();
        let open = open.filter_map(|open| Some((open.document.key, head(&open.document)?)));
        let closed = self.heads.iter().map(|(key, head)| (*key, head.clone()));
        closed.chain(open).collect()
    }
}

fn head(document: &Document) -> Option<Head> {
    match &document.state {
        State::Batch(batch) => Some((document.id.clone(), batch.size, batch.root)),
        _ => None,
    }
}

/// A set of positions, which lie close together: a bit for each.
#[derive(Debug, Default)]
pub(super) struct Positions(BTreeMap<u64, [u64; 8]>);

impl Positions {
    fn place(position: Position) -> (u64, usize, u64) {
        let word = (position.0 / 64) % 8;
        let word = usize::try_from(word).unwrap_or_default();
        (position.0 / 512, word, 1 << (position.0 % 64))
    }

    /// Puts a position in; false when it was there.
    pub(super) fn insert(&mut self, position: Position) -> bool {
        let (chunk, word, bit) = Self::place(position);
        let words = self.0.entry(chunk).or_default();
        let Some(word) = words.get_mut(word) else {
            return false;
        };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn remove(&mut self, position: Position) {
        let (chunk, word, bit) = Self::place(position);
        let words = self.0.get_mut(&chunk);
        if let Some(word) = words.and_then(|words| words.get_mut(word)) {
            *word &= !bit;
        }
    }

    pub(super) fn contains(&self, position: Position) -> bool {
        let (chunk, word, bit) = Self::place(position);
        let words = self.0.get(&chunk);
        words
            .and_then(|words| words.get(word))
            .is_some_and(|word| word & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_set_of_positions_is_a_set() {
        let mut positions = Positions::default();
        let mut naive = BTreeSet::new();
        let mut number: u64 = 1;
        for _ in 0..20_000 {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let position = Position((number >> 33) % 3_000);
            match number % 3 {
                0 => {
                    positions.remove(position);
                    naive.remove(&position);
                }
                _ => assert_eq!(positions.insert(position), naive.insert(position)),
            }
        }
        for number in 0..3_100 {
            let position = Position(number);
            assert_eq!(positions.contains(position), naive.contains(&position));
        }
        assert!(positions.insert(Position(u64::MAX)));
        assert!(positions.contains(Position(u64::MAX)));
    }
}
