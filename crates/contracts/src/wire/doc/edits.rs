//! Changing parts of a text.

use std::ops::Range;

use super::{At, quoted};

/// Changes to a text that touch nothing else.
#[derive(Debug, Default)]
pub(in crate::wire) struct Edits(Vec<(Range<usize>, String)>);

impl Edits {
    pub(in crate::wire) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::wire) fn replace(&mut self, place: Range<usize>, text: impl Into<String>) {
        self.0.push((place, text.into()));
    }

    pub(in crate::wire) fn insert(&mut self, at: usize, text: impl Into<String>) {
        self.replace(at..at, text);
    }

    /// Removes some parts of a list or of an object, with the commas that go with them.
    pub(in crate::wire) fn remove(
        &mut self,
        parts: &[Range<usize>],
        is_removed: impl Fn(usize) -> bool,
    ) {
        let mut kept_end: Option<usize> = None;
        for (index, part) in parts.iter().enumerate() {
            if !is_removed(index) {
                kept_end = Some(part.end);
                continue;
            }
            let next = parts.get(index + 1);
            match (kept_end, next) {
                // After something that stays, the comma before goes along.
                (Some(end), _) => {
                    self.replace(end..part.end, "");
                    kept_end = Some(part.end);
                }
                (None, Some(next)) => self.replace(part.start..next.start, ""),
                (None, None) => self.replace(part.clone(), ""),
            }
        }
    }

    /// Puts a member in front of those that an object has and keeps.
    pub(in crate::wire) fn add_member(&mut self, object: At<'_>, name: &str, value: &str) {
        let comma = if object.member_places().is_empty() {
            ""
        } else {
            ","
        };
        let name = quoted(name);
        self.insert(object.place().start + 1, format!("{name}:{value}{comma}"));
    }

    /// Puts an element in front of those that a list has and keeps.
    pub(in crate::wire) fn add_first(&mut self, list: At<'_>, value: &str) {
        let empty = list.items().is_none_or(|items| items.is_empty());
        let comma = if empty { "" } else { "," };
        self.insert(list.place().start + 1, format!("{value}{comma}"));
    }

    pub(in crate::wire) fn apply(mut self, text: &str) -> String {
        // Stable: what is put in at one place stays in order.
        self.0.sort_by_key(|(place, _)| place.start);
        let mut out = String::with_capacity(text.len() + 64);
        let mut at = 0;
        for (place, new) in &self.0 {
            out.push_str(text.get(at..place.start).unwrap_or_default());
            out.push_str(new);
            at = at.max(place.end);
        }
        out.push_str(text.get(at..).unwrap_or_default());
        out
    }
}
