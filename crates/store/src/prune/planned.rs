//! Which Tasks an unfinished replay of a Session will still want.

use std::collections::BTreeSet;

use canon::Value;
use domain::{Position, ResourceKind, State};
use engine::port::{ListQuery, Scope};

use super::{CHUNK, Prune};
use crate::audit::AuditError;
use crate::{blob, read};

impl Prune<'_> {
    /// Adds the sources of replays of Sessions that have not ended: their plans name them.
    pub(super) fn planned(&self, in_use: &mut BTreeSet<Box<str>>) -> Result<(), AuditError> {
        let mut after = Position::START;
        loop {
            let query = ListQuery {
                kind: ResourceKind::Session,
                scope: Scope::All,
                open_only: true,
                after,
                limit: CHUNK,
            };
            let page = read::list(self.connection, query)?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = last.key;
            for document in page {
                let State::Session(session) = document.state else {
                    continue;
                };
                let Some(plan) = session.replaying else {
                    continue;
                };
                let bytes = blob::find_unchecked(self.directory, self.connection, &plan)?;
                let plan: Value =
                    serde_json::from_slice(&bytes.unwrap_or_default()).unwrap_or_default();
                let tasks = plan.get("tasks").and_then(Value::as_array);
                let tasks = tasks.into_iter().flatten();
                in_use.extend(tasks.filter_map(|task| Some(task.get("task_id")?.as_str()?.into())));
            }
        }
    }
}
