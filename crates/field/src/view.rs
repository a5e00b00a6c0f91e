//! Views of the field for people and tools: no operation, no epoch, no entry.

use std::collections::BTreeMap;

use canon::Value;
use serde_json::json;

use crate::conflict_list::Page;
use crate::envelope::PROTOCOL_VERSION;
use crate::render;
use crate::state::{Conflict, Field};

impl Field {
    /// Returns the registered agents, and what they work on as far as one of `viewers` may see it.
    pub fn agents_view(&self, viewers: Option<&[&str]>) -> Value {
        let shown = |id: &String| {
            let mut agent = self.active(id)?.clone();
            agent.current_task = agent.current_task.filter(|task| {
                let task = self.tasks.get(task);
                let session = task.and_then(|task| task.session.as_deref());
                self.is_session_shown(viewers, session)
            });
            Some(render::agent(id, &agent))
        };
        let agents: Vec<Value> = self.agents.keys().filter_map(shown).collect();
        json!({"agents": agents})
    }

    /// Returns conflicts that are not resolved and that one of `viewers` may see, those of everybody for nobody in
    /// particular: at most `limit`, after the one named `cursor`. Nothing if there is no such conflict.
    pub fn conflicts_view(
        &self,
        viewers: Option<&[&str]>,
        limit: Option<u64>,
        cursor: Option<&str>,
    ) -> Option<Value> {
        let open = self.conflicts.iter().enumerate();
        let open =
            open.filter(|(_, conflict)| conflict.is_open() && self.is_shown(viewers, conflict));
        let listed = Page::of(self, limit, cursor)?.cut(self, open);
        let mut view = json!({});
        listed.name_rest(&mut view);
        if let Some(members) = view.as_object_mut() {
            members.insert("conflicts".into(), listed.shown.into());
        }
        Some(view)
    }

    /// Returns counts of what is in the field, of what one of `viewers` may see.
    pub fn status_view(&self, viewers: Option<&[&str]>) -> Value {
        let mut units: BTreeMap<&str, u64> = BTreeMap::new();
        for unit in &self.units {
            let shown = self.is_session_shown(viewers, unit.session.as_deref());
            if shown && !unit.is_purged() {
                let status = self.status_for(unit, |conflict| self.is_shown(viewers, conflict));
                *units.entry(status.as_str()).or_default() += 1;
            }
        }
        let mut conflicts: BTreeMap<&str, u64> = BTreeMap::new();
        for conflict in self
            .conflicts
            .iter()
            .filter(|conflict| self.is_shown(viewers, conflict))
        {
            *conflicts.entry(conflict.status.as_str()).or_default() += 1;
        }
        let agents = self
            .agents
            .keys()
            .filter(|id| self.active(id).is_some())
            .count();
        json!({
            "conformance_level": self.config.level.number(),
            "protocol_version": PROTOCOL_VERSION,
            "epoch": self.clock,
            "agents": agents,
            "units": units,
            "conflicts": conflicts,
        })
    }

    /// Returns when and why a unit was purged.
    pub fn tombstone(&self, unit: &str) -> Option<(domain::Timestamp, Option<&str>)> {
        let tombstone = self.unit(unit)?.tombstone.as_ref()?;
        Some((tombstone.at, tombstone.reason.as_deref()))
    }

    fn is_shown(&self, viewers: Option<&[&str]>, conflict: &Conflict) -> bool {
        viewers.is_none_or(|viewers| {
            let mut viewers = viewers.iter();
            viewers.any(|agent| self.sees_conflict(agent, conflict))
                || self.sees_conflict("", conflict)
        })
    }
}
