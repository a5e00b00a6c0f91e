//! Sealing one command: its decided events get their places, and a Task that they end gets its receipt.

use std::sync::Arc;

use domain::{
    Blob, Documents, Draft, Ends, EventName, ImpossibleEvent, Kind, Position, Scratch, Sealed,
    State, Timestamp, seal,
};
use receipts::Receipt;

use crate::receipt::{self, Authority, TaskFold};
use crate::trust;

/// How many events a receipt adds to the commit that ends a Task: its issue, and its place in the Session's chain.
const RECEIPT_EVENTS: u64 = 2;

/// A replay's receipt hangs off its source and leaves the chain alone.
const REPLAY_RECEIPT_EVENTS: u64 = 1;

/// The decided events of one command, and the Task they end.
#[derive(Debug, Clone)]
pub(crate) struct SealStep {
    pub(crate) drafts: Vec<Draft>,
    pub(crate) ends: Option<Ends>,
    /// What the ended Task's earlier events come to.
    pub(crate) fold: Arc<TaskFold>,
}

impl SealStep {
    pub(crate) fn event_count(&self) -> u64 {
        let receipt = match &self.ends {
            Some(ends) if ends.receipt.is_some() => REPLAY_RECEIPT_EVENTS,
            Some(_) => RECEIPT_EVENTS,
            None => 0,
        };
        self.drafts.len() as u64 + receipt
    }

    /// Seals the step; `earlier` are the events of the same turn before it.
    ///
    /// # Errors
    /// The command cannot be carried out. The scratch documents must be rolled back then.
    pub(crate) fn seal(
        &self,
        log: &EventName,
        authority: &Authority,
        scratch: &mut Scratch,
        earlier: &[Sealed],
        first: Position,
        stamp: Timestamp,
    ) -> Result<(Vec<Sealed>, Option<Blob>), ImpossibleEvent> {
        let mut sealed = Vec::with_capacity(self.drafts.len());
        for (index, draft) in (0..).zip(&self.drafts) {
            let draft = trust::complete(draft, scratch, authority, stamp)?;
            let drafts = std::slice::from_ref(draft.as_ref());
            sealed.extend(seal(log, scratch, drafts, first.plus(index), stamp)?);
        }
        let Some(Ends {
            task_id,
            receipt_id,
            receipt: prepared,
        }) = &self.ends
        else {
            return Ok((sealed, None));
        };
        let broken = |problem: String| {
            ImpossibleEvent::new(receipt_id.as_str(), Kind::ReceiptIssued, problem)
        };
        let (receipt, source) = if let Some(prepared) = prepared {
            let receipt = Receipt::read(prepared)
                .map_err(|error| broken(error.to_string()))?
                .signed(&authority.signer);
            let source = Some(receipt.previous_hash());
            (receipt, source)
        } else {
            let document = scratch.document(task_id.as_str());
            let Some((document, State::Task(task))) =
                document.map(|document| (document, &document.state))
            else {
                return Err(broken(format!("`{task_id}` is not a task")));
            };
            let mut fold = TaskFold::clone(&self.fold);
            for event in earlier.iter().chain(&sealed) {
                if event.links.task == Some(document.key) {
                    fold.add(event.position, &event.bytes, &event.event);
                }
            }
            let receipt =
                receipt::of_task(scratch, authority, document, task, receipt_id, fold, stamp)
                    .map_err(|error| broken(error.to_string()))?;
            (receipt, None)
        };
        let (issued, blob) = receipt::issue(scratch, task_id, receipt_id, &receipt, source);
        let first = first.plus(self.drafts.len() as u64);
        sealed.extend(seal(log, scratch, &issued, first, stamp)?);
        Ok((sealed, Some(blob)))
    }
}
