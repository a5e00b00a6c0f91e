//! Stretches of a field's log with what reading them made of them: entries, texts, words and vectors.
//!
//! A field is the fold of its log, and reading a long one means parsing events, finding the texts beside them and taking
//! them apart into words. A segment keeps what comes out of that, so that a start does none of it. It is disposable: whatever
//! it says can be read from the log again, with no difference.
//!
//! In it are the entries in order, each with its text and vector, and behind them every word once with the units that have
//! it, so that a word is looked up once a segment and not once a unit.

mod coding;

use std::collections::BTreeMap;

use crate::event::{Content, Event};
use crate::search::counted;
use crate::state::{Field, Row, Unit};
use crate::text::Claims;
use crate::vector::Vector;
use coding::{Bytes, Remaining};

/// The number of this form. A segment of another one is not read: the log says the same.
const FORM: u8 = 3;

/// A segment that cannot be read, or does not follow what was read before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a segment of the field cannot be read: {0}")]
pub struct UnreadableSegment(String);

fn unreadable(problem: impl ToString) -> UnreadableSegment {
    UnreadableSegment(problem.to_string())
}

/// What was made of an entry's text.
#[derive(Debug, Default)]
pub(crate) struct Indexed {
    /// What it claims, where that is ever compared.
    pub(crate) claims: Option<Claims>,
    /// The components of its vector, where they can be computed.
    pub(crate) components: Vec<i8>,
}

/// For each word the units of a segment that have it, by their number in it, and how often.
type Words = BTreeMap<String, Vec<(u32, u32)>>;

impl Field {
    /// Returns the segment of the entries after a sequence.
    pub fn segment(&self, after: u64) -> Vec<u8> {
        let entries = self.log.entries();
        let first = entries.partition_point(|entry| entry.seq <= after);
        let entries = entries.get(first..).unwrap_or_default();
        let mut bytes = Bytes::new(FORM);
        let (mut words, mut units) = (Words::new(), 0);
        bytes.count(entries.len());
        for entry in entries {
            bytes.entry(entry);
            let (unit, model) = match &entry.event {
                Event::Recorded(recorded) => (Some(&recorded.unit_id), recorded.model.as_ref()),
                Event::Enriched { unit_id, model } => (Some(unit_id), Some(model)),
                _ => (None, None),
            };
            let row = unit.and_then(|id| self.unit_rows.get(id)).copied();
            let unit = row.and_then(|row| self.at(row));
            if matches!(entry.event, Event::Recorded(_)) {
                let text = unit.and_then(|unit| unit.text.as_ref());
                bytes.text(text);
                bytes.claims(unit.and_then(|unit| unit.claims.as_ref()));
                for (word, times) in
                    text.map_or(BTreeMap::new(), |text| counted(&Unit::searched_texts(text)))
                {
                    words.entry(word).or_default().push((units, times));
                }
                units += 1;
            }
            if let Some(model) = model {
                let vector = row
                    .filter(|_| unit.is_some_and(|unit| !unit.is_purged()))
                    .and_then(|row| self.search.vector(row, model));
                let embedded_by = unit.and_then(|unit| unit.embedded_by.as_ref());
                bytes.flag(embedded_by == Some(model));
                bytes.components(&vector.map(|vector| vector.components).unwrap_or_default());
            }
        }
        bytes.words(&words);
        bytes.finish()
    }

    /// Folds the entries of a segment, which follow those that are there.
    ///
    /// # Errors
    /// It cannot be read or does not follow. Entries before that were taken in: the field is of no more use then.
    pub fn read_segment(&mut self, bytes: &[u8]) -> Result<(), UnreadableSegment> {
        let mut rest = Remaining::of(bytes);
        if rest.byte()? != FORM {
            return Err(unreadable("it has another form"));
        }
        let first = Row::try_from(self.units.len()).map_err(unreadable)?;
        for _ in 0..rest.count()? {
            let entry = rest.entry()?;
            let mut indexed = Indexed::default();
            let (mut text, mut vector) = (None, None);
            let model = match &entry.event {
                Event::Recorded(recorded) => {
                    text = rest.text()?;
                    indexed.claims = rest.claims()?;
                    recorded.model.clone()
                }
                Event::Enriched { model, .. } => Some(model.clone()),
                _ => None,
            };
            if let Some(model) = model {
                let is_given = rest.flag()?;
                let components = rest.components()?;
                if is_given {
                    vector = Some(Vector { model, components });
                } else {
                    indexed.components = components;
                }
            }
            let content = Content { text, vector };
            self.apply_indexed(entry, content, indexed)
                .map_err(unreadable)?;
        }
        let rows = first..Row::try_from(self.units.len()).map_err(unreadable)?;
        for _ in 0..rest.count()? {
            let (word, places) = rest.word(&rows)?;
            self.search.add_term(word, places);
        }
        rest.finish()
    }
}
