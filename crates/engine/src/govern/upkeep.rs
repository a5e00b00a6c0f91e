//! Looking after open sessions: questions whose time is over, and programs that are gone.

use std::time::Duration;

use domain::{GovernedOperation, State, Timestamp};
use runs::workflow::governed::Subject;

use super::{OpenProgram, Sessions};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::refused::Refused;

/// How often sessions are looked after while there are some.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a program may be silent when nothing of its session is outstanding.
const SILENCE_MICROS: i64 = 600_000_000;

/// What has to be done about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DueAction {
    Nothing,
    /// Its log has to be read: it may have a deadline.
    Look,
    /// Something is overdue.
    Tick,
    /// Its program is not heard any more.
    Lose,
}

impl OpenProgram {
    fn due(&self, now: Timestamp) -> DueAction {
        let liveness = *self.liveness();
        let silent = now.as_micros().saturating_sub(liveness.heard.as_micros());
        if !liveness.is_folded {
            DueAction::Look
        } else if liveness.deadline.is_some_and(|deadline| now >= deadline) {
            DueAction::Tick
        } else if silent >= SILENCE_MICROS {
            DueAction::Lose
        } else {
            DueAction::Nothing
        }
    }
}

impl Sessions {
    fn all(&self) -> Vec<std::sync::Arc<OpenProgram>> {
        self.lock().values().cloned().collect()
    }
}

impl Engine {
    /// Looks after open sessions until a drain begins.
    pub(crate) async fn maintain_governed_sessions(self) {
        while !self.is_draining() {
            let sessions = self.shared.governed.all();
            if sessions.is_empty() {
                self.shared.governed.some.notified().await;
                continue;
            }
            for known in sessions {
                if self.is_draining() {
                    return;
                }
                if let Err(refused) = self.maintain(&known).await {
                    let fault = refused.for_the_log();
                    tracing::warn!(task.id = %known.id, %fault, "a governed session was not looked after");
                }
            }
            self.shared.clock.sleep(LOOK_EVERY).await;
        }
    }

    async fn maintain(&self, known: &OpenProgram) -> Result<(), Refused> {
        let now = self.shared.clock.now();
        let operation = match known.due(now) {
            DueAction::Nothing => return Ok(()),
            DueAction::Look => {
                // Whatever becomes of it, it is not tried every second.
                known.liveness().is_folded = true;
                let Some(document) = self.shared_document(known.id.as_str()).await? else {
                    return Ok(());
                };
                if !matches!(&document.state, State::Task(task) if !task.status.is_terminal()) {
                    return Ok(());
                }
                let deadline = self
                    .read_folded(&document, |folded| match &folded.subject {
                        // It may have been stopped with another one before this process began.
                        Subject::Session(session) if session.workflow_id().is_some() => Some(now),
                        _ => folded.next_deadline(now),
                    })
                    .await?;
                known.liveness().deadline = deadline;
                return Ok(());
            }
            DueAction::Tick => {
                known.liveness().deadline = None;
                GovernedOperation::Tick
            }
            DueAction::Lose => {
                // Asked again after another silence, should something be outstanding.
                known.liveness().heard = now;
                GovernedOperation::Lose
            }
        };
        let Some(document) = self.shared_document(known.id.as_str()).await? else {
            return Ok(());
        };
        let system = Caller::system();
        if operation == GovernedOperation::Lose {
            self.report_missing_sessions(&system, &document).await?;
        }
        self.take_input(&system, &document, operation, None, None, None)
            .await
            .map(drop)
    }
}
