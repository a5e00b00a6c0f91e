//! Which Tasks an unfinished replay of a Session will still want.

use std::collections::BTreeSet;

use canon::Value;
use domain::{ResourceKind, State};

use super::Prune;
use crate::audit::AuditError;
use crate::blob;

impl Prune<'_> {
    /// Adds the sources of replays of Sessions that have not ended: their plans name them.
    pub(super) fn planned(&self, in_use: &mut BTreeSet<Box<str>>) -> Result<(), AuditError> {
        self.each_document(ResourceKind::Session, true, |document| {
            let State::Session(session) = document.state else {
                return Ok(());
            };
            let Some(plan) = session.replaying else {
                return Ok(());
            };
            let bytes = blob::find_unchecked(self.directory, self.connection, &plan)?;
            let plan: Value =
                serde_json::from_slice(&bytes.unwrap_or_default()).unwrap_or_default();
            let tasks = plan.get("tasks").and_then(Value::as_array);
            let tasks = tasks.into_iter().flatten();
            in_use.extend(tasks.filter_map(|task| Some(task.get("task_id")?.as_str()?.into())));
            Ok(())
        })
    }
}
