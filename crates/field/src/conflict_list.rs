//! Lists of conflicts: a page at a time, because whoever may draft can begin many.

use canon::Value;

use crate::render;
use crate::state::{Conflict, Field};

/// Which part of a list is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page {
    limit: usize,
    /// The first conflict that may be listed.
    from: usize,
}

/// A part of a list of conflicts, in the order in which they were found.
pub(crate) struct ConflictList {
    pub(crate) shown: Vec<Value>,
    /// How many there are on all pages.
    total: usize,
    /// The last one of this page, if others follow.
    next: Option<String>,
}

impl Page {
    /// Returns the page of at most `limit` conflicts after the one named `cursor`; nothing if there is no such conflict.
    pub(crate) fn of(field: &Field, limit: Option<u64>, cursor: Option<&str>) -> Option<Self> {
        let from = match cursor {
            Some(cursor) => field.conflict_rows.get(cursor)? + 1,
            None => 0,
        };
        let most = field.config.limits.conflicts_listed_max;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        let limit = limit.map_or(most, |limit| limit.clamp(1, most));
        Some(Self { limit, from })
    }

    /// Renders the conflicts of this page, of all that the reader may see with their places.
    pub(crate) fn cut<'c>(
        self,
        field: &Field,
        conflicts: impl Iterator<Item = (usize, &'c Conflict)>,
    ) -> ConflictList {
        let (mut shown, mut total, mut last, mut next) = (Vec::new(), 0, None, None);
        for (place, conflict) in conflicts {
            total += 1;
            if place < self.from {
                continue;
            }
            if shown.len() < self.limit {
                shown.push(render::conflict(field, conflict));
                last = Some(&conflict.id);
            } else {
                next = last;
            }
        }
        ConflictList {
            shown,
            total,
            next: next.cloned(),
        }
    }
}

impl ConflictList {
    /// Says how many there are and how to go on, where this is not all.
    pub(crate) fn name_rest(&self, answer: &mut Value) {
        if let Some(members) = answer.as_object_mut()
            && self.shown.len() < self.total
        {
            members.insert("conflicts_total".into(), self.total.into());
            members.insert("next_cursor".into(), self.next.clone().into());
        }
    }
}
