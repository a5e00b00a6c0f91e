//! Documents known from the last turns.
//!
//! Never the truth: a turn that decides on what is in here has every version checked by its commit. Outside a turn
//! it answers only for what no event changes, such as whose a resource is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::Document;

/// Documents by id, as they last were.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    documents: Mutex<BTreeMap<Box<str>, Arc<Document>>>,
}

impl Cache {
    const LEN_MAX: usize = 8_192;

    /// Returns a document as it was when a turn last saw it.
    pub(crate) fn document(&self, id: &str) -> Option<Arc<Document>> {
        self.lock().get(id).cloned()
    }

    /// Keeps documents that a turn has read or written.
    pub(super) fn insert(&self, documents: &[Arc<Document>]) {
        let mut known = self.lock();
        for document in documents {
            if known.len() >= Self::LEN_MAX {
                known.clear();
            }
            known.insert(document.id.clone(), Arc::clone(document));
        }
    }

    /// Forgets everything: something in here was not so any more.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Box<str>, Arc<Document>>> {
        // Each change is one call on the map.
        self.documents
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
