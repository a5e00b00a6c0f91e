//! What the receipts of open Tasks will say, kept up to date commit by commit.
//!
//! Never the truth, like every cache: what is missing here is read from the log, once, and outside of turns wherever
//! somebody knows beforehand that a Task may end ([`Engine::know_task_log`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::{Document, Documents as _, Position, Scratch, State, Task};

use super::Item;
use super::close::Closing;
use super::load::{may_end, orders};
use super::plan::Written;
use crate::engine::{Engine, Shared};
use crate::port::{ReadEvents, Scope};
use crate::receipt::TaskFold;
use crate::refused::Refused;

/// Folds of Tasks that commands may end, by Task id.
pub(super) type FoldsById = BTreeMap<Box<str>, Arc<TaskFold>>;

/// Folds of open Tasks.
#[derive(Debug)]
pub(crate) struct Folds {
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    tasks: BTreeMap<Position, Entry>,
    /// The last event that a turn of this process committed.
    head: Position,
}

#[derive(Debug, Clone)]
struct Entry {
    fold: Arc<TaskFold>,
    /// False when events may have been committed that are not in it.
    is_current: bool,
}

impl Default for Folds {
    fn default() -> Self {
        let known = Known {
            tasks: BTreeMap::new(),
            head: Position::START,
        };
        Self {
            known: Mutex::new(known),
        }
    }
}

impl Folds {
    /// Tasks beyond that are read from the log when they end.
    const LEN_MAX: usize = 8_192;

    /// Adds what a turn has committed.
    pub(super) fn after_commit(&self, written: &Written) {
        let events = written.events();
        let (Some((first, _)), Some((last, _))) = (events.first(), events.last()) else {
            return;
        };
        let mut known = self.lock();
        if first.position != known.head.plus(1) {
            // Somebody else has committed in between.
            for entry in known.tasks.values_mut() {
                entry.is_current = false;
            }
        }
        known.head = last.position;
        // Nobody will ask for those any more: what they end with is in their receipts already. That of a replay is computed
        // from its source.
        let is_done = |task: &Task| task.status.is_terminal() || task.replay.is_some();
        let documents = written.documents().iter();
        let done = documents.filter(|document| task_of(document).is_some_and(is_done));
        let done: BTreeSet<Position> = done.map(|document| document.key).collect();
        for key in &done {
            known.tasks.remove(key);
        }
        for (stored, event) in events {
            let Some(key) = stored.links.task.filter(|key| !done.contains(key)) else {
                continue;
            };
            if stored.position == key {
                known.put(key, Arc::default(), true);
            }
            if let Some(entry) = known.tasks.get_mut(&key)
                && entry.is_current
            {
                Arc::make_mut(&mut entry.fold).add(stored.position, &stored.bytes, event);
            }
        }
    }

    fn find(&self, key: Position, head: Position) -> Option<Entry> {
        let known = self.lock();
        let mut entry = known.tasks.get(&key)?.clone();
        entry.is_current &= known.head == head;
        Some(entry)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Each change leaves whole entries.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn put(&mut self, key: Position, fold: Arc<TaskFold>, is_current: bool) {
        if self.tasks.len() >= Folds::LEN_MAX {
            self.tasks.clear();
        }
        self.tasks.insert(key, Entry { fold, is_current });
    }
}

impl Engine {
    /// Reads the log of a Task that may end soon, so that the turn that ends it does not have to.
    ///
    /// # Errors
    /// The store failed, or holds what is no event.
    pub(crate) async fn know_task_log(&self, key: Position) -> Result<(), Refused> {
        let shared = &self.shared;
        if shared.folds.find(key, Position::START).is_none() {
            let mut fold = TaskFold::default();
            go_on(shared, key, &mut fold).await?;
            shared.folds.offer(key, fold);
        }
        Ok(())
    }
}

impl Folds {
    /// Takes what somebody has read of a Task's log, up to a point.
    pub(crate) fn offer(&self, key: Position, fold: TaskFold) {
        let mut known = self.lock();
        if !known.tasks.contains_key(&key) {
            known.put(key, Arc::new(fold), false);
        }
    }
}

/// Returns the folds of Tasks that may end in this turn: their receipts commit to them.
pub(super) async fn load_folds(
    shared: &Shared,
    base: &Scratch,
    batch: &[Item],
    closing: &Closing,
) -> Result<FoldsById, Refused> {
    let mut folds = FoldsById::new();
    let ordered = batch.iter().flat_map(orders).filter_map(may_end);
    for id in ordered.chain(closing.tasks()) {
        let Some(document) = base.document(id) else {
            continue;
        };
        let ended = task_of(document).is_none_or(|task| task.status.is_terminal());
        if ended || folds.contains_key(id) {
            continue;
        }
        let known = shared.folds.find(document.key, shared.store.head());
        let fold = match known {
            Some(entry) if entry.is_current => entry.fold,
            other => {
                let mut fold = other.map(|entry| entry.fold).unwrap_or_default();
                go_on(shared, document.key, Arc::make_mut(&mut fold)).await?;
                let mut known = shared.folds.lock();
                known.put(document.key, Arc::clone(&fold), true);
                fold
            }
        };
        folds.insert(id.into(), fold);
    }
    Ok(folds)
}

/// Adds what the log holds after a fold.
async fn go_on(shared: &Shared, key: Position, fold: &mut TaskFold) -> Result<(), Refused> {
    loop {
        let query = ReadEvents {
            scope: Scope::Task(key),
            after: fold.through(),
            limit: 512,
        };
        let page = shared.store.events(query).await?;
        if page.is_empty() {
            return Ok(());
        }
        for stored in &page {
            fold.read(stored).map_err(|error| Refused::Internal {
                detail: format!("the event at {}: {error}", stored.position.0),
            })?;
        }
    }
}

fn task_of(document: &Document) -> Option<&Task> {
    match &document.state {
        State::Task(task) => Some(task),
        _ => None,
    }
}
