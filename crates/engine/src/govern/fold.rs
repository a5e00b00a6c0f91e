//! The state of a governed session, from its Task's log.
//!
//! Every recorded input is taken again, and what it brings about must be what was recorded then: a session whose verdicts
//! have changed is not gone on with.

use std::collections::VecDeque;
use std::sync::Arc;

use canon::{Map, Value, jcs, sha256};
use domain::{
    Document, Event, GOVERNED_WORKFLOW, GovernedFiles, GovernedInput, GovernedOperation,
    GovernedStart, Kind, Position, State, Task, TaskId, Timestamp, payload,
};
use runs::workflow::EffectAnswer;
use runs::workflow::governed::{
    Contracts, GovernedSession, GovernedWorkflow, Parties, Subject, awaited, retained_captures,
};
use serde::Deserialize as _;
use serde_json::json;
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::{OpenProgram, no_session};
use crate::engine::Engine;
use crate::port::{BoxFuture, ReadEvents, Scope};
use crate::refused::Refused;
use crate::turn::CommitContents;
use crate::view;

/// Events whose texts are in memory at once.
const FOLDED_AT_ONCE: usize = 16;

/// A governed session, and how far its log is in it.
#[derive(Debug)]
pub(super) struct GovernedFold {
    pub(super) subject: Subject,
    /// What a session began with.
    start: Option<GovernedStart>,
    through: Position,
    /// How many inputs it has taken.
    pub(super) inputs: u64,
    /// When the last of them came.
    pub(super) last: Timestamp,
    /// What the inputs brought about that the log has not confirmed.
    expected: VecDeque<Map<String, Value>>,
}

impl GovernedFold {
    /// Takes note that an input it has taken is durable.
    pub(super) fn committed(&mut self, written: &CommitContents, task: Position, at: Timestamp) {
        let events = written.events().iter();
        let own = events.filter(|(stored, _)| stored.links.task == Some(task));
        let last = own.map(|(stored, _)| stored.position).max();
        self.through = last.unwrap_or(self.through);
        self.inputs += 1;
        self.last = at;
    }

    /// Takes a recorded input again, or holds a recorded verdict against what the input before it brought about.
    fn take(&mut self, event: &Event) -> Result<(), &'static str> {
        match event.kind() {
            Ok(Kind::EffectRecorded) => {
                let key = awaited(self.inputs + 1).key;
                if event.effect_key() != Some(key.as_str()) {
                    return Err("an input is missing");
                }
                let answer = EffectAnswer::recorded(event);
                let input = GovernedInput::deserialize(&answer.value)
                    .map_err(|_| "an input cannot be read")?;
                let taken = self.subject.take(&input);
                self.inputs += 1;
                self.last = input.at;
                let told = taken.notes.into_iter();
                let told = told.filter(|note| note.kind == Kind::ContractDecided);
                self.expected = told.map(|note| note.payload).collect();
            }
            Ok(Kind::ContractDecided)
                if self.expected.pop_front().as_ref() != Some(&event.payload) =>
            {
                return Err("a verdict is not what was recorded");
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns what is recorded of an operation.
    pub(super) fn kept(&self, operation: GovernedOperation) -> GovernedOperation {
        match (operation, &self.start) {
            (GovernedOperation::Capture { captures }, Some(start)) => GovernedOperation::Capture {
                captures: retained_captures(start, captures),
            },
            (other, _) => other,
        }
    }

    /// Returns what a session began with.
    pub(super) fn start(&self) -> Option<&GovernedStart> {
        self.start.as_ref()
    }

    /// Returns the session that it is.
    pub(super) fn session(&self) -> Result<&GovernedSession, Refused> {
        match &self.subject {
            Subject::Session(session) => Ok(session),
            Subject::Workflow(_) => Err(no_session()),
        }
    }

    /// Returns the workflow that it is.
    pub(super) fn workflow(&self) -> Result<&GovernedWorkflow, Refused> {
        match &self.subject {
            Subject::Workflow(workflow) => Ok(workflow),
            Subject::Session(_) => Err(no_session()),
        }
    }

    /// Returns who works in it and who decided in it.
    pub(super) fn parties(&self) -> &Parties {
        match &self.subject {
            Subject::Session(session) => session.parties(),
            Subject::Workflow(workflow) => workflow.parties(),
        }
    }

    /// Returns when something is overdue that has to be settled, if anything will be.
    pub(super) fn next_deadline(&self, now: Timestamp) -> Option<Timestamp> {
        match &self.subject {
            Subject::Session(session) => session.next_deadline(),
            Subject::Workflow(workflow) => workflow.is_over().then_some(now),
        }
    }
}

impl Engine {
    /// Holds a session or a workflow, read from its log unless it is known. The reading goes on when whoever asked for it gives up,
    /// so that a long history is read once and not again and again.
    pub(super) async fn hold_known(
        &self,
        known: &OpenProgram,
    ) -> Result<OwnedMutexGuard<Option<GovernedFold>>, Refused> {
        let mut slot = Arc::clone(&known.folded).lock_owned().await;
        if slot.is_some() {
            return Ok(slot);
        }
        let (sender, held) = oneshot::channel();
        let (engine, id) = (self.clone(), known.id.clone());
        self.shared.spawn.spawn(Box::pin(async move {
            let read = engine.read_whole(&id).await;
            let held = read.map(|folded| {
                *slot = Some(folded);
                slot
            });
            drop(sender.send(held));
        }));
        held.await.map_err(|_| Refused::Internal {
            detail: "a governed session was not read to its end".to_owned(),
        })?
    }

    async fn read_whole(&self, id: &TaskId) -> Result<GovernedFold, Refused> {
        let document = self.shared_document(id.as_str()).await?;
        let document = document.ok_or_else(no_session)?;
        let State::Task(task) = &document.state else {
            return Err(no_session());
        };
        self.folded(None, &document, task).await
    }

    /// Brings a session up to its Task's newest event.
    pub(super) fn folded<'a>(
        &'a self,
        known: Option<GovernedFold>,
        document: &'a Document,
        task: &'a Task,
    ) -> BoxFuture<'a, Result<GovernedFold, Refused>> {
        // A future is compiled where it is boxed: here, and not in each crate that waits for it.
        Box::pin(self.fold_on(known, document, task))
    }

    async fn fold_on(
        &self,
        known: Option<GovernedFold>,
        document: &Document,
        task: &Task,
    ) -> Result<GovernedFold, Refused> {
        let unreadable = |detail: String| Refused::Internal {
            detail: format!("governed session {}: {detail}", document.id),
        };
        let mut folded = match known {
            Some(folded) => folded,
            None => self
                .begin_folded(task)
                .await
                .map_err(|refused| match refused {
                    Refused::Internal { detail } => unreadable(detail),
                    other => other,
                })?,
        };
        while folded.through < document.tip {
            let query = ReadEvents {
                scope: Scope::Task(document.key),
                after: folded.through,
                limit: 512,
            };
            let page = self.shared.store.events(query).await?;
            let Some(last) = page.last() else { break };
            let through = last.position;
            for stored in page.chunks(FOLDED_AT_ONCE) {
                let mut events = Vec::with_capacity(stored.len());
                for stored in stored {
                    let event = Event::parse(&stored.bytes);
                    let mut event = event.map_err(|error| unreadable(error.to_string()))?;
                    if matches!(
                        event.kind(),
                        Ok(Kind::EffectRecorded | Kind::ContractDecided)
                    ) {
                        view::resolve_blobs(&*self.shared.store, Arc::make_mut(&mut event.payload))
                            .await?;
                        events.push(event);
                    }
                }
                if events.is_empty() {
                    continue;
                }
                let judged;
                (folded, judged) = self
                    .run_judgement(&task.created_by, move || {
                        let judged = events.iter().try_for_each(|event| folded.take(event));
                        (folded, judged)
                    })
                    .await?;
                judged.map_err(|detail| unreadable(detail.to_owned()))?;
            }
            folded.through = through;
        }
        self.note_places(document.key, task, &folded);
        Ok(folded)
    }

    /// Keeps the index of places in step with a workflow that was read or has gone on.
    pub(super) fn note_places(&self, key: Position, task: &Task, folded: &GovernedFold) {
        if let Subject::Workflow(workflow) = &folded.subject {
            let governed = &self.shared.governed;
            governed.note_places(key, &task.workspace_id, workflow);
        }
    }

    async fn begin_folded(&self, task: &Task) -> Result<GovernedFold, Refused> {
        let payload = self.payload(task.submitted).await?;
        let input = payload::TaskSubmitted::of(&payload).input();
        let input = input.cloned().unwrap_or_default();
        let bad = |detail: String| Refused::Internal { detail };
        if &*task.workflow == GOVERNED_WORKFLOW {
            let workflow = GovernedWorkflow::begin(&input).map_err(bad)?;
            return Ok(GovernedFold {
                last: workflow.began_at(),
                subject: Subject::Workflow(Box::new(workflow)),
                start: None,
                through: task.submitted,
                inputs: 0,
                expected: VecDeque::new(),
            });
        }
        let start = GovernedStart::deserialize(&input).map_err(|error| bad(error.to_string()))?;
        let contracts = self
            .compiled_recorded(&task.created_by, &start.contracts)
            .await?;
        let session = GovernedSession::begin_under(&start, &contracts).map_err(bad)?;
        Ok(GovernedFold {
            subject: Subject::Session(Box::new(session)),
            last: start.at,
            start: Some(start),
            through: task.submitted,
            inputs: 0,
            expected: VecDeque::new(),
        })
    }

    /// Compiles the contracts of a session that began.
    pub(super) async fn compiled_recorded(
        &self,
        actor: &str,
        files: &GovernedFiles,
    ) -> Result<Contracts, Refused> {
        let digest = sha256(&jcs(&json!(files)));
        if let Some(known) = self.shared.governed.compiled(digest) {
            return Ok(known);
        }
        let files = files.clone();
        let contracts = self
            .run_judgement(actor, move || Contracts::compile_recorded(&files))
            .await??;
        self.shared
            .governed
            .keep_compiled(digest, contracts.clone());
        Ok(contracts)
    }
}
