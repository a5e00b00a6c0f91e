//! The log as REPLAY reads it: every entry, and one index built while they pass.
//!
//! The index holds what an entry says and nothing that a later entry could change, so that it can be thrown away and
//! built again from the entries with no difference.

use std::collections::BTreeMap;

use crate::event::{Entry, Event, Outcome};
use crate::kind::{RelationType, TaskAction};

/// The number of an entry: its place in the log.
pub(crate) type EntryNumber = u32;

/// All entries of a field with the index of causes.
#[derive(Debug, Clone, Default)]
pub struct Log {
    entries: Vec<Entry>,
    unit_nodes: BTreeMap<String, u32>,
    units: Vec<UnitNode>,
    conflict_nodes: BTreeMap<String, u32>,
    conflicts: Vec<ConflictNode>,
    by_task: BTreeMap<String, Vec<EntryNumber>>,
    by_session: BTreeMap<String, Vec<EntryNumber>>,
    /// Where each task was created that COORDINATE knows.
    tasks: BTreeMap<String, EntryNumber>,
    epoch_max: u64,
}

/// A unit that some entry names, recorded or not.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnitNode {
    /// Its RECORD; nothing for a unit that is only pointed at.
    pub(crate) record: Option<EntryNumber>,
    pub(crate) epoch: u64,
    pub(crate) outgoing: Vec<(RelationType, u32)>,
    pub(crate) incoming: Vec<(RelationType, u32)>,
    pub(crate) conflicts: Vec<u32>,
    /// The conflicts that this unit ended as their synthesis.
    pub(crate) synthesis_of: Vec<u32>,
    pub(crate) touched: Vec<EntryNumber>,
}

/// A conflict that some entry names.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConflictNode {
    pub(crate) created: bool,
    pub(crate) events: Vec<EntryNumber>,
    pub(crate) units: Vec<u32>,
    /// The synthesis unit of the MERGE that ended it.
    pub(crate) new: Option<u32>,
    /// The epoch at which it ended.
    pub(crate) end: Option<u64>,
}

impl Log {
    /// Builds the index of a whole log.
    ///
    /// # Errors
    /// Says what is wrong with the first entry that does not fit.
    pub fn build(entries: impl IntoIterator<Item = Entry>) -> Result<Self, &'static str> {
        let mut log = Self::default();
        for entry in entries {
            log.add(entry)?;
        }
        Ok(log)
    }

    /// Returns all entries in log order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the largest epoch so far: "now".
    pub(crate) fn now(&self) -> u64 {
        self.epoch_max
    }

    pub(crate) fn entry(&self, place: EntryNumber) -> Option<&Entry> {
        usize::try_from(place)
            .ok()
            .and_then(|place| self.entries.get(place))
    }

    /// Returns the order of a place in a timeline: epoch, then log sequence.
    pub(crate) fn order(&self, place: EntryNumber) -> (u64, EntryNumber) {
        (self.entry(place).map_or(0, |entry| entry.epoch), place)
    }

    pub(crate) fn unit(&self, node: u32) -> Option<&UnitNode> {
        usize::try_from(node)
            .ok()
            .and_then(|node| self.units.get(node))
    }

    pub(crate) fn unit_named(&self, id: &str) -> Option<(u32, &UnitNode)> {
        let node = *self.unit_nodes.get(id)?;
        self.unit(node).map(|unit| (node, unit))
    }

    pub(crate) fn conflict(&self, node: u32) -> Option<&ConflictNode> {
        usize::try_from(node)
            .ok()
            .and_then(|node| self.conflicts.get(node))
    }

    pub(crate) fn conflict_named(&self, id: &str) -> Option<&ConflictNode> {
        self.conflict_nodes
            .get(id)
            .and_then(|node| self.conflict(*node))
    }

    pub(crate) fn of_task(&self, id: &str) -> &[EntryNumber] {
        self.by_task.get(id).map_or(&[], Vec::as_slice)
    }

    /// Returns the session in which a task was created; nothing for one that was created in none, or by no COORDINATE.
    pub(crate) fn session_of_task(&self, id: &str) -> Option<&str> {
        let created = self.tasks.get(id).and_then(|place| self.entry(*place))?;
        created.session_id.as_deref()
    }

    pub(crate) fn of_session(&self, id: &str) -> &[EntryNumber] {
        self.by_session.get(id).map_or(&[], Vec::as_slice)
    }

    /// Adds an entry; nothing changes on an error.
    fn add(&mut self, entry: Entry) -> Result<(), &'static str> {
        self.check(&entry)?;
        self.push(entry);
        Ok(())
    }

    /// Says whether an entry can follow.
    pub(crate) fn check(&self, entry: &Entry) -> Result<(), &'static str> {
        if EntryNumber::try_from(self.entries.len()).is_err() {
            return Err("the log is full");
        }
        if self
            .entries
            .last()
            .is_some_and(|last| last.seq >= entry.seq)
        {
            return Err("its sequence was used before");
        }
        if let Event::Recorded(recorded) = &entry.event
            && self
                .unit_named(&recorded.unit_id)
                .is_some_and(|(_, node)| node.record.is_some())
        {
            return Err("the unit was recorded before");
        }
        Ok(())
    }

    /// Adds an entry that can follow.
    pub(crate) fn push(&mut self, entry: Entry) {
        let place = EntryNumber::try_from(self.entries.len()).unwrap_or(EntryNumber::MAX);
        if let Some(task) = entry.event.task_id() {
            self.by_task.entry(task.to_owned()).or_default().push(place);
        }
        if let Some(session) = &entry.session_id {
            let places = self.by_session.entry(session.clone()).or_default();
            places.push(place);
        }
        for unit in entry.event.touched() {
            let node = self.unit_node(unit);
            self.change_unit(node, |unit| unit.touched.push(place));
        }
        for conflict in entry.event.conflict_ids() {
            let node = self.conflict_node(conflict);
            self.change_conflict(node, |conflict| conflict.events.push(place));
        }
        if let Event::Coordinated {
            action: TaskAction::Create,
            task_id,
            ..
        } = &entry.event
        {
            self.tasks.entry(task_id.clone()).or_insert(place);
        }
        self.index(&entry, place);
        self.epoch_max = self.epoch_max.max(entry.epoch);
        self.entries.push(entry);
    }

    fn index(&mut self, entry: &Entry, place: EntryNumber) {
        match &entry.event {
            Event::Recorded(recorded) => {
                let node = self.unit_node(&recorded.unit_id);
                self.change_unit(node, |unit| {
                    unit.record = Some(place);
                    unit.epoch = entry.epoch;
                });
                for relation in recorded.relations.iter().filter(|to| !to.unbound) {
                    let target = self.unit_node(&relation.target_id);
                    self.change_unit(node, |unit| unit.outgoing.push((relation.kind, target)));
                    self.change_unit(target, |unit| unit.incoming.push((relation.kind, node)));
                }
            }
            Event::ConflictCreated {
                conflict_id,
                unit_a,
                unit_b,
                ..
            } => {
                let conflict = self.conflict_node(conflict_id);
                for unit in [unit_a, unit_b] {
                    let node = self.unit_node(unit);
                    let mut is_new = false;
                    self.change_conflict(conflict, |conflict| {
                        conflict.created = true;
                        is_new = !conflict.units.contains(&node);
                        if is_new {
                            conflict.units.push(node);
                        }
                    });
                    if is_new {
                        self.change_unit(node, |unit| unit.conflicts.push(conflict));
                    }
                }
            }
            Event::Merged(merged) if merged.outcome == Outcome::Resolved => {
                let new = merged
                    .new_unit_id
                    .as_deref()
                    .map(|unit| self.unit_node(unit));
                let conflict = self.conflict_node(&merged.conflict_id);
                if let Some(new) = new {
                    self.change_unit(new, |unit| unit.synthesis_of.push(conflict));
                }
                self.change_conflict(conflict, |conflict| {
                    conflict.new = new;
                    conflict.end = Some(entry.epoch);
                });
            }
            _ => {}
        }
    }

    fn unit_node(&mut self, id: &str) -> u32 {
        if let Some(node) = self.unit_nodes.get(id) {
            return *node;
        }
        // Each entry names at most a few hundred units, and entries are numbered by the same type: units that do not
        // fit would need a log larger than memory. The last number then stands for all of them and is never recorded.
        let node = u32::try_from(self.units.len()).unwrap_or(u32::MAX);
        self.unit_nodes.insert(id.to_owned(), node);
        self.units.push(UnitNode::default());
        node
    }

    fn conflict_node(&mut self, id: &str) -> u32 {
        if let Some(node) = self.conflict_nodes.get(id) {
            return *node;
        }
        let node = u32::try_from(self.conflicts.len()).unwrap_or(u32::MAX);
        self.conflict_nodes.insert(id.to_owned(), node);
        self.conflicts.push(ConflictNode::default());
        node
    }

    fn change_unit(&mut self, node: u32, change: impl FnOnce(&mut UnitNode)) {
        if let Some(unit) = usize::try_from(node)
            .ok()
            .and_then(|node| self.units.get_mut(node))
        {
            change(unit);
        }
    }

    fn change_conflict(&mut self, node: u32, change: impl FnOnce(&mut ConflictNode)) {
        if let Some(conflict) = usize::try_from(node)
            .ok()
            .and_then(|node| self.conflicts.get_mut(node))
        {
            change(conflict);
        }
    }
}
