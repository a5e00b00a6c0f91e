//! Folding a Task that was taken over from another log: it begins where it ended.

use super::{Fold, ImpossibleEvent};
use crate::{Imported, Status, Task, Timestamp};

impl Fold<'_> {
    pub(super) fn imported(&self) -> Result<Task, ImpossibleEvent> {
        let status: Status = self.member("status")?;
        if !status.is_terminal() {
            return Err(self.impossible(format!("takes over a task that is {}", status.as_str())));
        }
        let ended_at: Option<Timestamp> = Some(self.member("ended_at")?);
        Ok(Task {
            status,
            created_by: self.member("created_by")?,
            started_at: self.member("started_at")?,
            completed_at: ended_at.filter(|_| status != Status::Canceled),
            canceled_at: ended_at.filter(|_| status == Status::Canceled),
            failure: (status == Status::Failed).then_some(self.position),
            receipt_id: self.member("receipt_id")?,
            imported: Some(Imported {
                bundle: self.member("bundle_sha256")?,
                submitted_at: self.member("submitted_at")?,
            }),
            ..self.submitted()?
        })
    }
}
