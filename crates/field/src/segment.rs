//! Stretches of a field's log with what reading them made of them: entries, texts, words and vectors.
//!
//! A field is the fold of its log, and reading a long one means parsing events, finding the texts beside them and taking
//! them apart into words. A segment keeps what comes out of that, so that a start does none of it. It is disposable: whatever
//! it says can be read from the log again, with no difference.

use std::collections::BTreeMap;

use crate::event::{Content, Entry, Event, UnitText};
use crate::state::{Field, Unit};
use crate::text;
use crate::vector::{Model, Vector};

/// The number of this form. A segment of another one is not read.
const FORM: u8 = 1;

/// A segment that cannot be read, or does not follow what was read before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a segment of the field cannot be read: {0}")]
pub struct UnreadableSegment(String);

fn unreadable(problem: impl ToString) -> UnreadableSegment {
    UnreadableSegment(problem.to_string())
}

/// What search knows of an entry's unit.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Indexed {
    /// Its words with their counts, in order.
    pub(crate) terms: Vec<(String, u32)>,
    /// The components of the vector that the entry gave it.
    pub(crate) vector: Vec<i8>,
}

impl Field {
    /// Returns the segment of the entries after a sequence.
    pub fn segment(&self, after: u64) -> Vec<u8> {
        let mut bytes = vec![FORM];
        let entries = self.log.entries();
        let first = entries.partition_point(|entry| entry.seq <= after);
        for entry in entries.iter().skip(first) {
            put_bytes(&mut bytes, &serde_json::to_vec(entry).unwrap_or_default());
            let (unit, model) = match &entry.event {
                Event::Recorded(recorded) => (Some(&recorded.unit_id), recorded.model.as_ref()),
                Event::Enriched { unit_id, model } => (Some(unit_id), Some(model)),
                _ => (None, None),
            };
            let row = unit.and_then(|id| self.unit_rows.get(id)).copied();
            let unit = row.and_then(|row| self.at(row));
            let text = unit
                .filter(|_| matches!(entry.event, Event::Recorded(_)))
                .and_then(|unit| unit.text.as_ref());
            put_bytes(&mut bytes, &text.map(UnitText::bytes).unwrap_or_default());
            let terms = text.map(|text| counted(&Unit::searched_texts(text)));
            let terms = terms.unwrap_or_default();
            put_count(&mut bytes, terms.len());
            for (term, count) in &terms {
                put_bytes(&mut bytes, term.as_bytes());
                bytes.extend(count.to_le_bytes());
            }
            let vector = row
                .zip(model)
                .filter(|_| unit.is_some_and(|unit| !unit.is_purged()))
                .and_then(|(row, model)| self.search.vector(row, model));
            let is_given = unit
                .and_then(|unit| unit.vector.as_ref())
                .is_some_and(|given| Some(&given.model) == model);
            bytes.push(u8::from(is_given));
            let vector = vector.map(|vector| vector.components).unwrap_or_default();
            let vector: Vec<u8> = vector.iter().map(|value| value.cast_unsigned()).collect();
            put_bytes(&mut bytes, &vector);
        }
        bytes
    }

    /// Folds the entries of a segment, which follow those that are there.
    ///
    /// # Errors
    /// It cannot be read or does not follow. Entries before that were taken in: the field is of no more use then.
    pub fn read_segment(&mut self, bytes: &[u8]) -> Result<(), UnreadableSegment> {
        let mut rest = Rest(bytes);
        if rest.byte()? != FORM {
            return Err(unreadable("it has another form"));
        }
        while !rest.0.is_empty() {
            let entry = rest.bytes()?;
            let entry: Entry = serde_json::from_slice(entry).map_err(unreadable)?;
            let text = rest.bytes()?;
            let text: Option<UnitText> = match text {
                [] => None,
                text => Some(serde_json::from_slice(text).map_err(unreadable)?),
            };
            let mut indexed = Indexed::default();
            for _ in 0..rest.count()? {
                let term = std::str::from_utf8(rest.bytes()?).map_err(unreadable)?;
                let term = term.to_owned();
                indexed.terms.push((term, rest.number()?));
            }
            let is_given = rest.byte()? == 1;
            let vector = rest.bytes()?.iter().map(|byte| byte.cast_signed());
            indexed.vector = vector.collect();
            let model = match &entry.event {
                Event::Recorded(recorded) => recorded.model.clone(),
                Event::Enriched { model, .. } => Some(model.clone()),
                _ => None,
            };
            let vector = model.filter(|_| is_given).map(|model| Vector {
                model,
                components: indexed.vector.clone(),
            });
            let content = Content { text, vector };
            self.apply_indexed(entry, &content, &indexed)
                .map_err(unreadable)?;
        }
        Ok(())
    }
}

/// Returns the words of some texts with their counts, in order.
pub(crate) fn counted(texts: &[&str]) -> Vec<(String, u32)> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for text in texts {
        for term in text::terms(text) {
            *counts.entry(term).or_default() += 1;
        }
    }
    counts.into_iter().collect()
}

impl Indexed {
    /// Returns the vector that the entry gave its unit, made by this model.
    pub(crate) fn vector_of(&self, model: &Model) -> Option<Vector> {
        (!self.vector.is_empty()).then(|| Vector {
            model: model.clone(),
            components: self.vector.clone(),
        })
    }
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    bytes.extend(count.to_le_bytes());
}

fn put_bytes(bytes: &mut Vec<u8>, piece: &[u8]) {
    put_count(bytes, piece.len());
    bytes.extend(piece);
}

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], UnreadableSegment> {
        let (piece, rest) = self
            .0
            .split_at_checked(count)
            .ok_or_else(|| unreadable("it ends too early"))?;
        self.0 = rest;
        Ok(piece)
    }

    fn byte(&mut self) -> Result<u8, UnreadableSegment> {
        self.take(1)
            .map(|byte| byte.first().copied().unwrap_or_default())
    }

    fn number(&mut self) -> Result<u32, UnreadableSegment> {
        let piece = self.take(4)?.first_chunk().copied();
        Ok(u32::from_le_bytes(piece.unwrap_or_default()))
    }

    fn count(&mut self) -> Result<usize, UnreadableSegment> {
        self.number()
            .map(|count| usize::try_from(count).unwrap_or(usize::MAX))
    }

    fn bytes(&mut self) -> Result<&'a [u8], UnreadableSegment> {
        let count = self.count()?;
        self.take(count)
    }
}
