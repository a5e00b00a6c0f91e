//! Folding: what an event does to the document of its resource.
//!
//! Refuses nothing that `decide` produced. An error means that the log is corrupt or foreign.

mod import;

use canon::{Digest, Map, Value};
use serde::de::DeserializeOwned;

use crate::decide::task::withdrawn_digest;
use crate::{
    Answer, Artifact, ArtifactKind, Ask, Batch, Branch, BranchKind, Chain, Document, Dropped,
    Event, EventName, Kind, Links, Message, Outcome, Permission, Persona, Position, Receipt,
    ReplayOf, Session, SessionId, State, Status, Task, TaskId, TaskPersona, TrustChain, Vault,
    Visibility, Workspace, WorkspaceId,
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
        None => Ok(Document {
            key: position,
            id: event.resource.id.clone(),
            version: 1,
            tip: position,
            links,
            created_at: event.created_at,
            updated_at: event.created_at,
            state: fold.create(kind)?,
        }),
        Some(mut document) => {
            if document.id != event.resource.id
                || document.state.kind().object() != &*event.resource.object
            {
                return Err(fold.impossible(format!("applied to `{}`", document.id)));
            }
            fold.change(kind, &mut document.state)?;
            document.version = event.sequence;
            document.tip = position;
            document.updated_at = event.created_at;
            Ok(document)
        }
    }
}

struct Fold<'a> {
    log: &'a EventName,
    event: &'a Event,
    position: Position,
}

impl Fold<'_> {
    fn impossible(&self, problem: String) -> ImpossibleEvent {
        ImpossibleEvent {
            event: self.event.id.clone(),
            kind: self.event.kind.clone(),
            problem,
        }
    }

    fn payload(&self) -> &Map<String, Value> {
        &self.event.payload
    }

    /// Reads a payload member; an absent one reads as null.
    fn member<T: DeserializeOwned>(&self, name: &str) -> Result<T, ImpossibleEvent> {
        let value = self.payload().get(name).cloned().unwrap_or_default();
        serde_json::from_value(value)
            .map_err(|error| self.impossible(format!("payload member `{name}`: {error}")))
    }

    fn inside<T: DeserializeOwned>(&self, value: &Value, name: &str) -> Result<T, ImpossibleEvent> {
        let value = value.get(name).cloned().unwrap_or_default();
        serde_json::from_value(value)
            .map_err(|error| self.impossible(format!("payload member `replay.{name}`: {error}")))
    }

    fn workspace(&self) -> Result<WorkspaceId, ImpossibleEvent> {
        self.event
            .workspace_id
            .clone()
            .ok_or_else(|| self.impossible("no workspace_id".to_owned()))
    }

    fn session(&self) -> Result<SessionId, ImpossibleEvent> {
        self.event
            .session_id
            .clone()
            .ok_or_else(|| self.impossible("no session_id".to_owned()))
    }

    fn task(&self) -> Result<TaskId, ImpossibleEvent> {
        self.event
            .task_id
            .clone()
            .ok_or_else(|| self.impossible("no task_id".to_owned()))
    }

    fn actor(&self) -> String {
        self.event.actor.clone().unwrap_or_default()
    }

    fn create(&self, kind: Kind) -> Result<State, ImpossibleEvent> {
        let object = &*self.event.resource.object;
        let state = match (object, kind) {
            ("workspace", Kind::WorkspaceCreated) => State::Workspace(Workspace {
                name: self.member("name")?,
                root: self.member("root")?,
                default_branch_id: self.member("default_branch_id")?,
                capabilities: Vec::new(),
                quota_id: None,
                metadata: self.position,
            }),
            ("session", Kind::SessionCreated) => State::Session(Session {
                workspace_id: self.workspace()?,
                root_session_id: self.member("root_session_id")?,
                parent_session_id: self.member("parent_session_id")?,
                branch_id: self.member("branch_id")?,
                mode_id: self.member("mode_id")?,
                persona_id: self.member("persona_id")?,
                model_policy: self.member("model_policy")?,
                summary: None,
                metadata: self.position,
                appended: self.member::<Option<u64>>("copied")?.unwrap_or(0),
                dropped: Vec::new(),
                closed: false,
                imported: self.member::<Option<bool>>("imported")? == Some(true),
                replaying: self.member("replay_plan_sha256")?,
            }),
            ("task", Kind::TaskSubmitted) => State::Task(self.submitted()?),
            ("task", Kind::TaskImported) => State::Task(self.imported()?),
            ("branch", Kind::BranchCreated) => State::Branch(Branch {
                workspace_id: self.workspace()?,
                kind: self.member::<BranchKind>("kind")?,
                base_ref: self.member("base_ref")?,
                parent_branch_id: self.member("parent_branch_id")?,
                session_id: self.event.session_id.clone(),
                task_id: self.member("task_id")?,
                created_by: self.actor(),
                metadata: self.position,
            }),
            ("message", Kind::UserMessage | Kind::AgentMessage) => State::Message(Message {
                session_id: self.session()?,
                task_id: self.event.task_id.clone(),
                role: self.member("role")?,
                source: self.position,
            }),
            ("message", Kind::MessageCopied) => State::Message(Message {
                session_id: self.session()?,
                task_id: None,
                role: self.member("role")?,
                source: self.member("source_position")?,
            }),
            ("artifact", Kind::ArtifactCreated) => State::Artifact(Artifact {
                kind: self.member("kind")?,
                mime_type: self.member("mime_type")?,
                uri: self.member("uri")?,
                visibility: self.member("visibility")?,
                sha256: self.member("sha256")?,
                bytes: self.member("bytes")?,
                workspace_id: self.workspace()?,
                session_id: self.event.session_id.clone(),
                task_id: self.member("task_id")?,
                source: self.position,
            }),
            ("artifact", Kind::CheckpointCreated) => State::Artifact(Artifact {
                kind: ArtifactKind::Snapshot,
                mime_type: "application/json".to_owned(),
                uri: None,
                visibility: Visibility::ReceiptOnly,
                sha256: self.member("state_sha256")?,
                bytes: self.member("bytes")?,
                workspace_id: self.workspace()?,
                session_id: self.event.session_id.clone(),
                task_id: self.member("task_id")?,
                source: self.position,
            }),
            ("outcome", Kind::OutcomeRecorded) => State::Outcome(Outcome {
                task_id: self.task()?,
                session_id: self.session()?,
                workspace_id: self.workspace()?,
                status: self.member("status")?,
                receipt_id: self.member("receipt_id")?,
                source: self.position,
            }),
            ("permission_request", Kind::InputRequested | Kind::ToolApprovalRequired) => {
                State::Permission(Permission {
                    task_id: self.task()?,
                    session_id: self.session()?,
                    workspace_id: self.workspace()?,
                    ask: if kind == Kind::InputRequested {
                        Ask::Input
                    } else {
                        Ask::Approval
                    },
                    effect_key: self.member("effect_key")?,
                    action: self.member("action_name")?,
                    asked: self.position,
                    answer: Answer::Pending,
                })
            }
            ("vault", Kind::VaultCreated) => State::Vault(Vault {
                workspace_id: self.event.workspace_id.clone(),
                provider: self.member("provider")?,
                capabilities: self.member("capabilities")?,
                metadata: self.position,
            }),
            ("receipt", Kind::ReceiptIssued | Kind::ReceiptImported) => State::Receipt(Receipt {
                task_id: self.task()?,
                session_id: self.session()?,
                workspace_id: self.workspace()?,
                receipt_hash: self.member("receipt_hash")?,
                content: self.member("content_sha256")?,
                previous: self.member("previous_receipt_hash")?,
                previous_id: self.member("previous_receipt_id")?,
                verified: None,
                imported: kind == Kind::ReceiptImported,
            }),
            ("receipt_chain", Kind::ReceiptChained) => State::Chain(self.chained()?),
            ("receipt_batch", Kind::TreeHeadSealed) => State::Batch(Batch {
                size: self.member("size")?,
                root: self.member("root")?,
                source: self.position,
                cosigned: Vec::new(),
            }),
            ("trust_chain", Kind::TrustRecorded) => State::TrustChain(self.trusted()?),
            ("persona", Kind::PersonaCreated) => State::Persona(self.persona()?),
            (object, _) => return Err(self.impossible(format!("does not create a {object}"))),
        };
        Ok(state)
    }

    fn chained(&self) -> Result<Chain, ImpossibleEvent> {
        Ok(Chain {
            session_id: self.session()?,
            receipt_id: self.member("receipt_id")?,
            receipt_hash: self.member("receipt_hash")?,
            count: self.member("count")?,
        })
    }

    fn trusted(&self) -> Result<TrustChain, ImpossibleEvent> {
        let record: Map<String, Value> = self.member("record")?;
        let hash = record.get("entry_hash").and_then(Value::as_str);
        let hash = hash.and_then(|text| Digest::parse(text).ok());
        Ok(TrustChain {
            session_id: self.session()?,
            entry_hash: hash.ok_or_else(|| self.impossible("no entry_hash".to_owned()))?,
            count: self.event.sequence,
        })
    }

    fn persona(&self) -> Result<Persona, ImpossibleEvent> {
        Ok(Persona {
            name: self.member("name")?,
            version: self.member("version")?,
            content: self.member("content_sha256")?,
            source: self.position,
        })
    }

    fn task_persona(&self) -> Result<Option<TaskPersona>, ImpossibleEvent> {
        let Some(id) = self.member("persona_id")? else {
            return Ok(None);
        };
        Ok(Some(TaskPersona {
            id,
            version: self.member("persona_version")?,
            autonomy_tier: self.member("autonomy_tier")?,
            receipt_policy: self.member("receipt_policy")?,
        }))
    }

    fn submitted(&self) -> Result<Task, ImpossibleEvent> {
        let input = match self.member::<Option<String>>("input_event_id")? {
            Some(id) => self
                .log
                .position(&id)
                .ok_or_else(|| self.impossible(format!("input event `{id}` is not of this log")))?,
            // A replay works on its source's input.
            None => self
                .member::<Option<Position>>("input_position")?
                .unwrap_or(self.position),
        };
        let replay = match self.payload().get("replay") {
            None => None,
            Some(replay) => Some(ReplayOf {
                source_task_id: self.inside(replay, "source_task_id")?,
                request: self.inside(replay, "request_sha256")?,
                ordinal: self.inside(replay, "ordinal")?,
            }),
        };
        Ok(Task {
            session_id: self.session()?,
            workspace_id: self.workspace()?,
            status: Status::Submitted,
            created_by: self.actor(),
            workflow: self.member("workflow")?,
            persona: self.task_persona()?,
            branch_id: self.member("branch_id")?,
            parent_task_id: self.member("parent_task_id")?,
            submitted: self.position,
            input,
            waits_for: None,
            requests: 0,
            started_at: None,
            completed_at: None,
            canceled_at: None,
            outcome_id: None,
            receipt_id: None,
            failure: None,
            replay,
            imported: None,
        })
    }

    fn change(&self, kind: Kind, state: &mut State) -> Result<(), ImpossibleEvent> {
        match state {
            State::Workspace(workspace) => self.change_workspace(kind, workspace),
            State::Session(session) => self.change_session(kind, session),
            State::Task(task) => self.change_task(kind, task),
            State::Artifact(artifact) => self.change_artifact(kind, artifact),
            State::Permission(request) => self.change_permission(kind, request),
            State::Receipt(receipt)
                if matches!(
                    kind,
                    Kind::ReceiptVerified | Kind::ReceiptVerificationFailed
                ) =>
            {
                receipt.verified = Some(self.position);
                Ok(())
            }
            State::Chain(chain) if kind == Kind::ReceiptChained => {
                *chain = self.chained()?;
                Ok(())
            }
            State::TrustChain(chain) if kind == Kind::TrustRecorded => {
                *chain = self.trusted()?;
                Ok(())
            }
            State::Batch(batch) if kind == Kind::TreeHeadCosigned => {
                batch.cosigned.push(self.position);
                Ok(())
            }
            State::Persona(persona) if kind == Kind::PersonaUpdated => {
                *persona = self.persona()?;
                Ok(())
            }
            State::Branch(_)
            | State::Message(_)
            | State::Outcome(_)
            | State::Vault(_)
            | State::Receipt(_)
            | State::Chain(_)
            | State::Batch(_)
            | State::TrustChain(_)
            | State::Persona(_) => Err(self.impossible("this resource never changes".to_owned())),
        }
    }

    fn change_workspace(
        &self,
        kind: Kind,
        workspace: &mut Workspace,
    ) -> Result<(), ImpossibleEvent> {
        if kind != Kind::WorkspaceUpdated {
            return Err(self.impossible("does not change a workspace".to_owned()));
        }
        if self.payload().contains_key("name") {
            workspace.name = self.member("name")?;
        }
        if self.payload().contains_key("capabilities") {
            workspace.capabilities = self.member("capabilities")?;
        }
        if self.payload().contains_key("quota_id") {
            workspace.quota_id = self.member("quota_id")?;
        }
        if self.holds("metadata") {
            workspace.metadata = self.position;
        }
        Ok(())
    }

    /// True when the payload brought this content, in the event or as a blob.
    fn holds(&self, content: &str) -> bool {
        self.payload().contains_key(content)
            || crate::blob_reference(self.payload(), content).is_some()
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "every other kind names other resources; the arm refuses"
    )]
    fn change_session(&self, kind: Kind, session: &mut Session) -> Result<(), ImpossibleEvent> {
        match kind {
            Kind::SessionMessageAppended => session.appended += 1,
            Kind::SessionThreadForked => {}
            Kind::SessionReplayed => session.replaying = None,
            Kind::SessionClosed => session.closed = true,
            Kind::SessionUpdated => {
                if self.payload().contains_key("summary") {
                    session.summary = self.member("summary")?;
                }
                if self.payload().contains_key("model_policy") {
                    session.model_policy = self.member("model_policy")?;
                }
                if self.holds("metadata") {
                    session.metadata = self.position;
                }
            }
            Kind::SessionTruncated => {
                let count: u64 = self.member("removed_turn_count")?;
                if count > 0 {
                    let after: Position = self.member("after_position")?;
                    let through: Position = self.member("through_position")?;
                    // Earlier cuts beyond this one lie inside it: their Messages are gone already.
                    let inside: u64 = session
                        .dropped
                        .iter()
                        .filter(|range| range.after >= after)
                        .map(|range| range.count)
                        .sum();
                    session.dropped.retain(|range| range.after < after);
                    session.dropped.push(Dropped {
                        after,
                        through,
                        count: count + inside,
                    });
                }
            }
            _ => return Err(self.impossible("does not change a session".to_owned())),
        }
        Ok(())
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "every other kind names other resources; the arm refuses"
    )]
    fn change_task(&self, kind: Kind, task: &mut Task) -> Result<(), ImpossibleEvent> {
        if self.event.replay.is_some() {
            return self.repeat(task);
        }
        // A transition judges itself.
        if kind != Kind::TaskStatusChanged && task.status.is_terminal() {
            return Err(self.impossible("the log of a finished task is sealed".to_owned()));
        }
        match kind {
            Kind::TaskStarted
            | Kind::UserCancelRequested
            | Kind::EffectRequested
            | Kind::EffectRecorded
            | Kind::AgentToolUse
            | Kind::AgentToolResult
            | Kind::AgentMemoryRead
            | Kind::ToolDenied
            | Kind::ToolFailed
            | Kind::MessageDelta
            | Kind::ReplayStarted
            | Kind::ReplayCompleted
            | Kind::ReplayFailed => Ok(()),
            Kind::TaskInputRequired | Kind::TaskAuthRequired => {
                let request = self.member("request_id")?;
                // Asking the same again after a restart is no new request.
                if task.waits_for.as_ref() != Some(&request) {
                    task.requests += 1;
                }
                task.waits_for = Some(request);
                Ok(())
            }
            Kind::TaskCompleted | Kind::TaskCanceled => {
                task.outcome_id = self.member("outcome_id")?;
                task.receipt_id = self.member("receipt_id")?;
                Ok(())
            }
            Kind::TaskFailed => {
                task.outcome_id = self.member("outcome_id")?;
                task.receipt_id = self.member("receipt_id")?;
                task.failure = Some(self.position);
                Ok(())
            }
            Kind::TaskStatusChanged => self.change_status(task),
            _ => Err(self.impossible("does not change a task".to_owned())),
        }
    }

    /// Whatever a replay repeats happens to nothing: it only stands in the replay's own log.
    fn repeat(&self, task: &Task) -> Result<(), ImpossibleEvent> {
        if task.status.is_terminal() {
            return Err(self.impossible("the log of a finished task is sealed".to_owned()));
        }
        if task.replay.is_none() {
            return Err(self.impossible("repeats an event in a task that is no replay".to_owned()));
        }
        Ok(())
    }

    fn change_status(&self, task: &mut Task) -> Result<(), ImpossibleEvent> {
        let from: Status = self.member("from")?;
        let to: Status = self.member("to")?;
        if from != task.status || !from.allows(to) {
            return Err(self.impossible(format!(
                "moves {} to {} while the task is {}",
                from.as_str(),
                to.as_str(),
                task.status.as_str()
            )));
        }
        task.status = to;
        let now = self.event.created_at;
        match to {
            Status::Working => {
                task.started_at.get_or_insert(now);
                // A recovered Task asks again under the same request; an answered one waits for nothing.
                if self.payload().get("reason").and_then(Value::as_str) != Some("recovered") {
                    task.waits_for = None;
                }
            }
            Status::Completed | Status::Failed => {
                task.completed_at = Some(now);
                task.waits_for = None;
            }
            Status::Canceled => {
                task.canceled_at = Some(now);
                task.waits_for = None;
            }
            Status::Submitted | Status::InputRequired | Status::AuthRequired => {}
        }
        Ok(())
    }

    fn change_artifact(&self, kind: Kind, artifact: &mut Artifact) -> Result<(), ImpossibleEvent> {
        if kind != Kind::ArtifactUpdated {
            return Err(self.impossible("does not change an artifact".to_owned()));
        }
        artifact.sha256 = Some(self.member("sha256")?);
        artifact.bytes = Some(self.member("bytes")?);
        Ok(())
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "every other kind names other resources; the arm refuses"
    )]
    fn change_permission(
        &self,
        kind: Kind,
        request: &mut Permission,
    ) -> Result<(), ImpossibleEvent> {
        match kind {
            Kind::UserInputSubmitted | Kind::UserToolConfirmation => {
                let digest: Digest = self.member("answer_sha256")?;
                let at = self.position;
                request.answer = if self.member("approved")? {
                    Answer::Approved { at, digest }
                } else {
                    Answer::Denied { at, digest }
                };
            }
            Kind::RequestWithdrawn => {
                request.answer = Answer::Denied {
                    at: self.position,
                    digest: withdrawn_digest(),
                };
            }
            Kind::ToolApproved | Kind::ToolDenied => {}
            _ => return Err(self.impossible("does not change a permission request".to_owned())),
        }
        Ok(())
    }
}
