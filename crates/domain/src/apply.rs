//! Folding: what an event does to the document of its resource.
//!
//! Refuses nothing that `decide` produced. An error means that the log is corrupt or foreign.

use canon::{Digest, Value};
use serde::Deserialize as _;

use crate::kind::Payload;
use crate::{
    Answer, Artifact, ArtifactKind, Ask, Batch, Branch, Chain, Document, Event, EventName, Field,
    Imported, Key, Kind, Ledger, Links, Message, Outcome, Permission, Persona, Position, Receipt,
    ReplayOf, Session, SessionId, State, Status, Task, TaskId, TaskPersona, TruncatedRange,
    TrustChain, Vault, Visibility, Workspace, WorkspaceId, blob_reference, payload,
};

/// An event that cannot follow what is stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event `{event}` ({kind}): {problem}")]
pub struct ImpossibleEvent {
    event: Box<str>,
    kind: Box<str>,
    problem: String,
}

impl ImpossibleEvent {
    /// Says why an event that had to be could not be made.
    pub fn new(event: &str, kind: crate::Kind, problem: impl Into<String>) -> Self {
        Self {
            event: event.into(),
            kind: kind.as_str().into(),
            problem: problem.into(),
        }
    }
}

/// Folds an event into the document of its resource.
///
/// # Errors
/// The event does not continue the document: a hole in the sequence, a creation of what exists, a change of
/// what does not, a payload without its members, a forbidden transition.
pub fn apply(
    log: &EventName,
    document: Option<Document>,
    event: &Event,
    position: Position,
    links: Links,
) -> Result<Document, ImpossibleEvent> {
    let fold = Fold {
        log,
        event,
        position,
    };
    let kind = event
        .kind()
        .map_err(|error| fold.impossible(error.to_string()))?;
    let expected = document.as_ref().map_or(1, |document| document.version + 1);
    if event.sequence != expected {
        return Err(fold.impossible(format!(
            "sequence {} where {expected} follows",
            event.sequence
        )));
    }
    match document {
        None => {
            let state = fold.next(kind, None)?;
            if state.kind().object() != &*event.resource.object {
                return Err(fold.misplaced());
            }
            Ok(Document {
                key: position,
                id: event.resource.id.clone(),
                version: 1,
                tip: position,
                links,
                created_at: event.created_at,
                updated_at: event.created_at,
                state,
            })
        }
        Some(document) => {
            let object = document.state.kind().object();
            if document.id != event.resource.id || object != &*event.resource.object {
                return Err(fold.impossible(format!("applied to `{}`", document.id)));
            }
            Ok(Document {
                version: event.sequence,
                tip: position,
                updated_at: event.created_at,
                state: fold.next(kind, Some(document.state))?,
                ..document
            })
        }
    }
}

struct Fold<'a> {
    log: &'a EventName,
    event: &'a Event,
    position: Position,
}

/// Takes a state of the variant that a kind changes; whatever else the event names, it cannot change.
macro_rules! changed {
    ($fold:ident, $state:expr, $variant:ident) => {
        match $state {
            Some(State::$variant(state)) => state,
            _ => return Err($fold.misplaced()),
        }
    };
}

impl Fold<'_> {
    fn impossible(&self, problem: impl Into<String>) -> ImpossibleEvent {
        ImpossibleEvent {
            event: self.event.id.clone(),
            kind: self.event.kind.clone(),
            problem: problem.into(),
        }
    }

    fn misplaced(&self) -> ImpossibleEvent {
        let object = &self.event.resource.object;
        self.impossible(format!("does not happen to this {object}"))
    }

    fn workspace(&self) -> Result<WorkspaceId, ImpossibleEvent> {
        let id = self.event.workspace_id.clone();
        id.ok_or_else(|| self.impossible("no workspace_id"))
    }

    fn session(&self) -> Result<SessionId, ImpossibleEvent> {
        let id = self.event.session_id.clone();
        id.ok_or_else(|| self.impossible("no session_id"))
    }

    fn task(&self) -> Result<TaskId, ImpossibleEvent> {
        let id = self.event.task_id.clone();
        id.ok_or_else(|| self.impossible("no task_id"))
    }

    fn actor(&self) -> String {
        self.event.actor.clone().unwrap_or_default()
    }

    /// Returns the state of what an event creates, unless it is there already.
    fn created(&self, before: Option<State>, state: State) -> Result<State, ImpossibleEvent> {
        match before {
            None => Ok(state),
            Some(_) => Err(self.misplaced()),
        }
    }

    fn next(&self, kind: Kind, state: Option<State>) -> Result<State, ImpossibleEvent> {
        if self.event.replay.is_some()
            && let Some(State::Task(task)) = state
        {
            return self.repeat(task);
        }
        let payload = Payload::read(kind, &self.event.payload)
            .map_err(|error| self.impossible(format!("payload: {error}")))?;
        self.fold(payload, state)
    }

    /// Says what each kind does to the document of its resource.
    fn fold(&self, payload: Payload, state: Option<State>) -> Result<State, ImpossibleEvent> {
        match payload {
            Payload::WorkspaceCreated(said) => {
                let workspace = Workspace {
                    name: said.name,
                    root: said.root,
                    default_branch_id: said.default_branch_id,
                    capabilities: Vec::new(),
                    quota_id: None,
                    metadata: self.position,
                };
                self.created(state, State::Workspace(workspace))
            }
            Payload::WorkspaceUpdated(said) => {
                let workspace = changed!(self, state, Workspace);
                Ok(State::Workspace(Workspace {
                    name: said.name.unwrap_or(workspace.name),
                    capabilities: said.capabilities.unwrap_or(workspace.capabilities),
                    quota_id: said.quota_id.unwrap_or(workspace.quota_id),
                    metadata: self.metadata_after(workspace.metadata),
                    ..workspace
                }))
            }
            Payload::SessionCreated(said) => {
                let session = self.session_created(said)?;
                self.created(state, State::Session(session))
            }
            Payload::SessionUpdated(said) => {
                let session = changed!(self, state, Session);
                Ok(State::Session(Session {
                    summary: said.summary.unwrap_or(session.summary),
                    model_policy: said.model_policy.unwrap_or(session.model_policy),
                    metadata: self.metadata_after(session.metadata),
                    ..session
                }))
            }
            Payload::SessionMessageAppended(_) => {
                let mut session = changed!(self, state, Session);
                session.appended += 1;
                Ok(State::Session(session))
            }
            Payload::SessionTruncated(said) => Ok(State::Session(truncated(
                changed!(self, state, Session),
                &said,
            ))),
            Payload::SessionThreadForked(_) => Ok(State::Session(changed!(self, state, Session))),
            Payload::SessionReplayed(_) => {
                let session = changed!(self, state, Session);
                Ok(State::Session(Session {
                    replaying: None,
                    ..session
                }))
            }
            Payload::SessionClosed(_) => {
                let session = changed!(self, state, Session);
                Ok(State::Session(Session {
                    closed: true,
                    ..session
                }))
            }
            Payload::BranchCreated(said) => {
                let branch = Branch {
                    workspace_id: self.workspace()?,
                    kind: said.kind,
                    base_ref: said.base_ref,
                    parent_branch_id: said.parent_branch_id.flatten(),
                    session_id: self.event.session_id.clone(),
                    task_id: said.task_id.flatten(),
                    created_by: self.actor(),
                    metadata: self.position,
                };
                self.created(state, State::Branch(branch))
            }
            Payload::UserMessage(said) | Payload::AgentMessage(said) => {
                let message = Message {
                    session_id: self.session()?,
                    task_id: self.event.task_id.clone(),
                    role: said.role,
                    source: self.position,
                };
                self.created(state, State::Message(message))
            }
            Payload::MessageCopied(said) => {
                let message = Message {
                    session_id: self.session()?,
                    task_id: None,
                    role: said.role,
                    source: said.source_position,
                };
                self.created(state, State::Message(message))
            }
            Payload::ArtifactCreated(said) => {
                let artifact = self.artifact(said)?;
                self.created(state, State::Artifact(artifact))
            }
            Payload::CheckpointCreated(said) => {
                let artifact = self.artifact(payload::ArtifactCreated {
                    kind: ArtifactKind::Snapshot,
                    mime_type: "application/json".to_owned(),
                    uri: None,
                    visibility: Visibility::ReceiptOnly,
                    sha256: said.state_sha256,
                    bytes: said.bytes,
                    task_id: said.task_id,
                    metadata: payload::Detail::of(Value::Null),
                })?;
                self.created(state, State::Artifact(artifact))
            }
            Payload::ArtifactUpdated(said) => {
                let artifact = changed!(self, state, Artifact);
                Ok(State::Artifact(Artifact {
                    sha256: Some(said.sha256),
                    bytes: Some(said.bytes),
                    ..artifact
                }))
            }
            Payload::OutcomeRecorded(said) => {
                let outcome = Outcome {
                    task_id: self.task()?,
                    session_id: self.session()?,
                    workspace_id: self.workspace()?,
                    status: said.status,
                    receipt_id: said.receipt_id,
                    source: self.position,
                };
                self.created(state, State::Outcome(outcome))
            }
            Payload::InputRequested(said) => {
                let request = self.asked(Ask::Input, said)?;
                self.created(state, State::Permission(request))
            }
            Payload::ToolApprovalRequired(said) => {
                let request = self.asked(Ask::Approval, said)?;
                self.created(state, State::Permission(request))
            }
            Payload::UserInputSubmitted(said) | Payload::UserToolConfirmation(said) => {
                let (at, digest) = (self.position, said.answer_sha256);
                let answer = match said.approved {
                    true => Answer::Approved { at, digest },
                    false => Answer::Denied { at, digest },
                };
                self.answered(state, answer)
            }
            Payload::RequestWithdrawn(_) => {
                let at = self.position;
                self.answered(state, Answer::Withdrawn { at })
            }
            Payload::ToolApproved(_) => Ok(State::Permission(changed!(self, state, Permission))),
            // A person's no belongs to the request, the workflow's own to its Task.
            Payload::ToolDenied(_) => match state {
                Some(State::Permission(request)) => Ok(State::Permission(request)),
                other => self.noted(other),
            },
            Payload::VaultCreated(said) => {
                let vault = Vault {
                    workspace_id: self.event.workspace_id.clone(),
                    provider: said.provider,
                    capabilities: said.capabilities,
                    metadata: self.position,
                };
                self.created(state, State::Vault(vault))
            }
            Payload::ReceiptIssued(said) => {
                let receipt = self.receipt(said, false)?;
                self.created(state, State::Receipt(receipt))
            }
            Payload::ReceiptImported(said) => {
                let receipt = self.receipt(said, true)?;
                self.created(state, State::Receipt(receipt))
            }
            Payload::ReceiptVerified(_) | Payload::ReceiptVerificationFailed(_) => {
                let receipt = changed!(self, state, Receipt);
                Ok(State::Receipt(Receipt {
                    verified: Some(self.position),
                    ..receipt
                }))
            }
            Payload::ReceiptChained(said) => match state {
                None | Some(State::Chain(_)) => Ok(State::Chain(Chain {
                    session_id: self.session()?,
                    receipt_id: said.receipt_id,
                    receipt_hash: said.receipt_hash,
                    count: said.count,
                })),
                Some(_) => Err(self.misplaced()),
            },
            Payload::TrustRecorded(said) => match state {
                None | Some(State::TrustChain(_)) => Ok(State::TrustChain(TrustChain {
                    session_id: self.session()?,
                    entry_hash: match said.record {
                        Some(record) => record.entry_hash,
                        None => return Err(self.impossible("no record")),
                    },
                    count: self.event.sequence,
                })),
                Some(_) => Err(self.misplaced()),
            },
            Payload::TreeHeadSealed(said) => {
                let batch = Batch {
                    size: said.size,
                    root: said.root,
                    source: self.position,
                    cosigned: Vec::new(),
                };
                self.created(state, State::Batch(batch))
            }
            Payload::TreeHeadCosigned(_) => {
                let mut batch = changed!(self, state, Batch);
                batch.cosigned.push(self.position);
                Ok(State::Batch(batch))
            }
            Payload::PersonaCreated(said) => {
                let persona = self.persona(said);
                self.created(state, State::Persona(persona))
            }
            Payload::PersonaUpdated(said) => {
                let _ = changed!(self, state, Persona);
                Ok(State::Persona(self.persona(said)))
            }
            Payload::TaskSubmitted(said) => {
                let task = self.submitted(said)?;
                self.created(state, State::Task(task))
            }
            Payload::TaskImported(said) => {
                let task = self.imported(said)?;
                self.created(state, State::Task(task))
            }
            Payload::TaskInputRequired(said) | Payload::TaskAuthRequired(said) => {
                let mut task = self.open_task(state)?;
                // Asking the same again after a restart is no new request.
                let is_known = task.awaited().any(|id| *id == said.request_id);
                if is_known {
                    return Ok(State::Task(task));
                }
                task.requests += 1;
                if task.status.is_waiting() {
                    task.add_awaited(said.request_id);
                } else {
                    task.waits_for = Some(said.request_id);
                    task.waits_also = None;
                }
                Ok(State::Task(task))
            }
            Payload::TaskCompleted(said) | Payload::TaskCanceled(said) => {
                let task = self.open_task(state)?;
                Ok(State::Task(Task {
                    outcome_id: said.outcome_id,
                    receipt_id: said.receipt_id,
                    ..task
                }))
            }
            Payload::TaskFailed(said) => {
                let task = self.open_task(state)?;
                Ok(State::Task(Task {
                    outcome_id: said.outcome_id,
                    receipt_id: said.receipt_id,
                    failure: Some(self.position),
                    ..task
                }))
            }
            Payload::TaskStatusChanged(said) => self.moved(changed!(self, state, Task), &said),
            Payload::UserCancelRequested(said) => {
                let mut task = self.open_task(state)?;
                if said.pending == Some(true) {
                    task.interrupts.push(self.position);
                }
                Ok(State::Task(task))
            }
            Payload::TaskStarted(said) => {
                let mut task = self.open_task(state)?;
                // A replay follows the record of its source.
                let workflow = said.workflow_sha256.filter(|_| task.replay.is_none());
                let workflow = workflow.and_then(|digest| Digest::parse(digest.as_str()?).ok());
                task.ledger = workflow.map(Ledger::new).map(Box::new);
                Ok(State::Task(task))
            }
            Payload::EffectRequested(said) => {
                let mut task = self.open_task(state)?;
                let key = said.effect_key.as_ref().and_then(Value::as_str);
                if let (Some(ledger), Some(key)) = (&mut task.ledger, key) {
                    ledger.request(key);
                }
                Ok(State::Task(task))
            }
            Payload::EffectRecorded(said) => {
                let mut task = self.open_task(state)?;
                let key = said.effect_key.as_ref().and_then(Value::as_str);
                if let (Some(ledger), Some(key)) = (&mut task.ledger, key) {
                    ledger.record(key);
                }
                if let Some(through) = said.interrupted_through {
                    task.interrupts.retain(|position| *position > through);
                }
                Ok(State::Task(task))
            }
            Payload::AgentToolUse(_)
            | Payload::AgentToolResult(_)
            | Payload::AgentMemoryRead(_)
            | Payload::ContractDecided(_)
            | Payload::ToolFailed(_)
            | Payload::MessageDelta(_)
            | Payload::ReplayStarted(_)
            | Payload::ReplayCompleted(_)
            | Payload::ReplayFailed(_) => self.noted(state),
            // Only a replay emits it, and what a replay repeats is never folded.
            Payload::ReplayEventReplayed(_) => Err(self.misplaced()),
            Payload::KeyCreated(said) => {
                let key = Key {
                    actor: said.actor,
                    workspaces: said.workspaces,
                    scopes: said.scopes,
                    fingerprint: said.fingerprint,
                    expires_at: said.expires_at,
                    revoked_at: said.revoked_at,
                };
                self.created(state, State::Key(key))
            }
            Payload::KeyGranted(said) => {
                let key = changed!(self, state, Key);
                Ok(State::Key(Key {
                    scopes: said.scopes,
                    ..key
                }))
            }
            Payload::KeyRevoked(said) => {
                let key = changed!(self, state, Key);
                Ok(State::Key(Key {
                    revoked_at: Some(said.revoked_at),
                    ..key
                }))
            }
            // It stands for an event that nobody can read any more, and whatever that did.
            Payload::EventLost(_) => Err(self.misplaced()),
            // The first entry says which field it is; what entries say is folded by whoever serves the field.
            Payload::FieldEntry(said) => match (state, said.field) {
                (None, Some(name)) => Ok(State::Field(Field {
                    workspace_id: self.workspace()?,
                    name,
                    epoch: said.epoch,
                })),
                (Some(State::Field(field)), None) => Ok(State::Field(Field {
                    epoch: field.epoch.max(said.epoch),
                    ..field
                })),
                _ => Err(self.misplaced()),
            },
        }
    }

    /// Returns where the caller's own members are after an update: here when it brought some, in the event or as a blob.
    fn metadata_after(&self, before: Position) -> Position {
        let payload = &self.event.payload;
        let brought =
            payload.contains_key("metadata") || blob_reference(payload, "metadata").is_some();
        if brought { self.position } else { before }
    }

    fn session_created(&self, said: payload::SessionCreated) -> Result<Session, ImpossibleEvent> {
        Ok(Session {
            workspace_id: self.workspace()?,
            root_session_id: said.root_session_id,
            parent_session_id: said.parent_session_id,
            branch_id: said.branch_id.flatten(),
            mode_id: said.mode_id.flatten(),
            persona_id: said.persona_id.flatten(),
            model_policy: said.model_policy.flatten(),
            summary: None,
            metadata: self.position,
            appended: said.copied.unwrap_or(0),
            dropped: Vec::new(),
            closed: false,
            imported: said.imported == Some(true),
            replaying: said.replay_plan_sha256,
        })
    }

    fn artifact(&self, said: payload::ArtifactCreated) -> Result<Artifact, ImpossibleEvent> {
        Ok(Artifact {
            kind: said.kind,
            mime_type: said.mime_type,
            uri: said.uri,
            visibility: said.visibility,
            sha256: said.sha256,
            bytes: said.bytes,
            workspace_id: self.workspace()?,
            session_id: self.event.session_id.clone(),
            task_id: said.task_id,
            source: self.position,
        })
    }

    fn asked(&self, ask: Ask, said: payload::Asked) -> Result<Permission, ImpossibleEvent> {
        Ok(Permission {
            task_id: self.task()?,
            session_id: self.session()?,
            workspace_id: self.workspace()?,
            ask,
            effect_key: said.effect_key,
            action: said.action_name,
            asked: self.position,
            answer: Answer::Pending,
        })
    }

    fn answered(&self, state: Option<State>, answer: Answer) -> Result<State, ImpossibleEvent> {
        let request = changed!(self, state, Permission);
        Ok(State::Permission(Permission { answer, ..request }))
    }

    fn receipt(&self, said: payload::Receipt, imported: bool) -> Result<Receipt, ImpossibleEvent> {
        Ok(Receipt {
            task_id: self.task()?,
            session_id: self.session()?,
            workspace_id: self.workspace()?,
            receipt_hash: said.receipt_hash,
            content: said.content_sha256,
            previous: said.previous_receipt_hash,
            previous_id: said.previous_receipt_id.flatten(),
            verified: None,
            imported,
        })
    }

    fn persona(&self, said: payload::Persona) -> Persona {
        Persona {
            name: said.name,
            version: said.version,
            content: said.content_sha256,
            source: self.position,
        }
    }

    fn submitted(&self, said: payload::TaskSubmitted) -> Result<Task, ImpossibleEvent> {
        let input = match said.input_event_id {
            Some(id) => self
                .log
                .position(&id)
                .ok_or_else(|| self.impossible(format!("input event `{id}` is not of this log")))?,
            // A replay works on its source's input.
            None => said.input_position.unwrap_or(self.position),
        };
        let persona = match said.persona_id {
            None => None,
            Some(id) => {
                let (Some(version), Some(autonomy_tier), Some(receipt_policy)) = (
                    said.persona_version,
                    said.autonomy_tier,
                    said.receipt_policy,
                ) else {
                    return Err(self.impossible(format!("says too little of persona `{id}`")));
                };
                Some(TaskPersona {
                    id,
                    version,
                    autonomy_tier,
                    receipt_policy,
                })
            }
        };
        Ok(Task {
            session_id: self.session()?,
            workspace_id: self.workspace()?,
            status: Status::Submitted,
            created_by: self.actor(),
            workflow: said.workflow,
            persona,
            branch_id: said.branch_id,
            parent_task_id: said.parent_task_id,
            submitted: self.position,
            input,
            waits_for: None,
            waits_also: None,
            requests: 0,
            started_at: None,
            completed_at: None,
            canceled_at: None,
            outcome_id: None,
            receipt_id: None,
            failure: None,
            replay: said.replay.map(|replay| ReplayOf {
                source_task_id: replay.source_task_id,
                request: replay.request_sha256,
                ordinal: replay.ordinal,
            }),
            imported: None,
            interrupts: Vec::new(),
            ledger: None,
        })
    }

    /// A Task from another log begins where it ended.
    fn imported(&self, said: payload::TaskImported) -> Result<Task, ImpossibleEvent> {
        let status = said.status;
        if !status.is_terminal() {
            return Err(self.impossible(format!("imports a task that is {}", status.as_str())));
        }
        let submitted = payload::TaskSubmitted::deserialize(&*self.event.payload)
            .map_err(|error| self.impossible(format!("payload: {error}")))?;
        let ended_at = Some(said.ended_at);
        Ok(Task {
            status,
            created_by: said.created_by,
            started_at: said.started_at,
            completed_at: ended_at.filter(|_| status != Status::Canceled),
            canceled_at: ended_at.filter(|_| status == Status::Canceled),
            failure: (status == Status::Failed).then_some(self.position),
            receipt_id: said.receipt_id,
            imported: Some(Imported {
                bundle: said.bundle_sha256,
                submitted_at: said.submitted_at,
            }),
            ..self.submitted(submitted)?
        })
    }

    /// Takes a Task that has not ended: the log of a finished one is sealed.
    fn open_task(&self, state: Option<State>) -> Result<Task, ImpossibleEvent> {
        let task = changed!(self, state, Task);
        if task.status.is_terminal() {
            return Err(self.impossible("the log of a finished task is sealed"));
        }
        Ok(task)
    }

    /// Folds what stands in a Task's log and changes nothing of it.
    fn noted(&self, state: Option<State>) -> Result<State, ImpossibleEvent> {
        self.open_task(state).map(State::Task)
    }

    /// Whatever a replay repeats happens to nothing: it only stands in the replay's own log.
    fn repeat(&self, task: Task) -> Result<State, ImpossibleEvent> {
        if task.replay.is_none() {
            return Err(self.impossible("repeats an event in a task that is not a replay"));
        }
        self.noted(Some(State::Task(task)))
    }

    /// Moves a Task to another status. A transition judges itself, the one that ends a Task included.
    fn moved(
        &self,
        mut task: Task,
        said: &payload::StatusChanged,
    ) -> Result<State, ImpossibleEvent> {
        if said.from != task.status || !said.from.allows(said.to) {
            return Err(self.impossible(format!(
                "moves {} to {} while the task is {}",
                said.from.as_str(),
                said.to.as_str(),
                task.status.as_str()
            )));
        }
        task.status = said.to;
        if said.to.is_terminal() {
            task.interrupts.clear();
            task.ledger = None;
        }
        let now = self.event.created_at;
        match said.to {
            Status::Working => {
                task.started_at.get_or_insert(now);
                // A recovered Task asks again under the same request; an answered one waits for nothing.
                if said.reason.as_deref() != Some("recovered") {
                    task.waits_for = None;
                    task.waits_also = None;
                }
            }
            Status::Completed | Status::Failed => {
                task.completed_at = Some(now);
                task.waits_for = None;
                task.waits_also = None;
            }
            Status::Canceled => {
                task.canceled_at = Some(now);
                task.waits_for = None;
                task.waits_also = None;
            }
            Status::Submitted | Status::InputRequired | Status::AuthRequired => {}
        }
        Ok(State::Task(task))
    }
}

/// Drops the later Messages of a Session.
fn truncated(mut session: Session, said: &payload::SessionTruncated) -> Session {
    let (count, after) = (said.removed_turn_count, said.after_position);
    if count > 0 {
        // Earlier cuts beyond this one lie inside it: their Messages are gone already.
        let ranges = session.dropped.iter();
        let inside = ranges.filter(|range| range.after >= after);
        let inside: u64 = inside.map(|range| range.count).sum();
        session.dropped.retain(|range| range.after < after);
        session.dropped.push(TruncatedRange {
            after,
            through: said.through_position,
            count: count + inside,
        });
    }
    session
}
