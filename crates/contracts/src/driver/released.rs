//! The responses of a session that the next request may continue on the side of the provider.

use std::collections::{BTreeSet, VecDeque};

use crate::wire::{Reply, Wire};

/// How many responses may be continued. An older one is refused, as one that the session did not create.
const RESPONSES_MAX: usize = 10_000;

/// Ids of responses that were released whole.
#[derive(Debug, Default)]
pub(super) struct ReleasedIds {
    ids: BTreeSet<String>,
    order: VecDeque<String>,
}

impl ReleasedIds {
    /// Takes note of a response. Only one wire format has requests that name an earlier response.
    pub(super) fn add(&mut self, wire: Wire, reply: &Reply) {
        let (Wire::OpenAiResponses, Some(id)) = (wire, reply.id()) else {
            return;
        };
        if !self.ids.insert(id.to_owned()) {
            return;
        }
        self.order.push_back(id.to_owned());
        if self.order.len() > RESPONSES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    pub(super) fn ids(&self) -> &BTreeSet<String> {
        &self.ids
    }
}
