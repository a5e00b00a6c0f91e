//! From a request to an order: what the caller may see is checked, ids are made, documents are looked up.

use canon::Value;
use domain::{
    ArtifactId, Ask, BranchId, CreateBranch, CreateVault, CreateWorkspace, Document, EndIds,
    MessageId, MessageSpec, NewArtifact, NewMessage, NewSession, Order, Permission, PermissionId,
    ReceiptId, Refusal, RegisterArtifact, Request, ResourceKind, SessionId, State, Task, TaskId,
    VaultId, WorkspaceId,
};

use crate::caller::{APPROVE, Caller, workspace_of};
use crate::engine::Engine;
use crate::refused::Refused;

impl Engine {
    /// Finds the Workspace that a request happens in, before anything is built: from what it names, all of which the
    /// caller must be allowed to see. None where it concerns all of them.
    pub(crate) async fn workspace(
        &self,
        caller: &Caller,
        request: &Request,
    ) -> Result<Option<WorkspaceId>, Refused> {
        match request {
            Request::CreateWorkspace(_) => {
                must_be_unbound(caller, "workspaces:write for all workspaces")?;
                Ok(None)
            }
            Request::CreatePersona(_) | Request::UpdatePersona { .. } => {
                must_be_unbound(caller, "personas:write for all workspaces")?;
                Ok(None)
            }
            Request::ImportTask { workspace_id, .. } => {
                must_be_unbound(caller, "tasks:import for all workspaces")?;
                self.named_workspace(caller, workspace_id.as_ref()).await?;
                Ok(workspace_id.clone())
            }
            Request::CreateVault(new) => {
                if new.workspace_id.is_none() {
                    must_be_unbound(caller, "vaults:write for all workspaces")?;
                }
                let workspace = new.workspace_id.as_ref();
                self.named_workspace(caller, workspace).await?;
                Ok(new.workspace_id.clone())
            }
            Request::CreateLocalVault => {
                // Every tool and provider of the server may be given what is in it.
                must_be_unbound(caller, "vaults:write for all workspaces")?;
                Ok(None)
            }
            Request::CreateSession(new) => {
                let id = new.workspace_id.clone().unwrap_or_else(WorkspaceId::local);
                self.named_workspace(caller, Some(&id)).await?;
                Ok(Some(id))
            }
            Request::RegisterArtifact(new) => Ok(Some(self.artifact_workspace(caller, new).await?)),
            Request::UpdateWorkspace(update) => {
                self.sees(caller, ResourceKind::Workspace, update.id.as_str())
                    .await?;
                Ok(Some(update.id.clone()))
            }
            Request::AttachContent { id, .. } => {
                let (kind, id) = (ResourceKind::Artifact, id.as_str());
                self.workspace_of_visible(caller, kind, id).await
            }
            Request::VerifyReceipt { id, .. } => {
                let (kind, id) = (ResourceKind::Receipt, id.as_str());
                self.workspace_of_visible(caller, kind, id).await
            }
            // Heads belong to no Workspace: a caller that is bound to some does not see them.
            Request::CosignHead { id, .. } => {
                let (kind, id) = (ResourceKind::Batch, id.as_str());
                self.workspace_of_visible(caller, kind, id).await
            }
            Request::UpdateSession(update) => self.session_workspace(caller, &update.id).await,
            Request::CloseSession(id)
            | Request::ForkSession { id, .. }
            | Request::TruncateSession { id, .. } => self.session_workspace(caller, id).await,
            Request::ReplaySession(new) => self.session_workspace(caller, &new.id).await,
            Request::AppendMessage { session_id, .. } => {
                self.session_workspace(caller, session_id).await
            }
            Request::CreateBranch(new) => self.session_workspace(caller, &new.session_id).await,
            Request::SubmitTask(new) => {
                let session = Some(new.session_id.as_str());
                self.must_see(caller, ResourceKind::Session, session, "session_id")
                    .await?;
                self.session_workspace(caller, &new.session_id).await
            }
            Request::ReplayTask(new) => self.task_workspace(caller, &new.id).await,
            // Such a request names its Workspace in its own way: see [`Engine::govern`].
            Request::Govern(_) => Err(not_here()),
            Request::CancelTask { id, .. } | Request::SendTaskMessage { id, .. } => {
                self.task_workspace(caller, id).await
            }
            Request::RespondPermission { id, .. } => {
                let permission = self.visible_permission(caller, id).await?;
                // Answering a question is part of the work; deciding what an agent may do is a right of its own (U21).
                caller.require(match permission.ask {
                    Ask::Input => "tasks:write",
                    Ask::Approval => APPROVE,
                })?;
                Ok(Some(permission.workspace_id))
            }
        }
    }

    /// Looks up what a request names, makes ids, and builds the order. What is rare and long is boxed: the future of every
    /// request is moved as a whole, with room for the largest of them.
    pub(super) async fn build(
        &self,
        caller: &Caller,
        request: Request,
        workspace: Option<WorkspaceId>,
    ) -> Result<Order, Refused> {
        let ids = &self.shared.ids;
        Ok(match request {
            Request::CreateWorkspace(new) => Order::CreateWorkspace(CreateWorkspace {
                id: WorkspaceId::from_body(&ids.body()),
                branch_id: BranchId::from_body(&ids.body()),
                new,
            }),
            Request::UpdateWorkspace(update) => Order::UpdateWorkspace(update),
            Request::CreateSession(new) => self.build_session(caller, new, workspace).await?,
            Request::UpdateSession(update) => Order::UpdateSession(update),
            Request::CloseSession(id) => {
                Box::pin(self.end_surplus(caller, &id)).await?;
                Order::CloseSession(id)
            }
            Request::ForkSession {
                id,
                at_event_id,
                branch_id,
                metadata,
            } => {
                let fork = self.build_fork(caller, id, at_event_id, branch_id, metadata);
                Order::ForkSession(Box::pin(fork).await?)
            }
            Request::TruncateSession {
                id,
                keep_first,
                reason,
            } => {
                let truncation = self.build_truncation(caller, id, keep_first, reason);
                Order::TruncateSession(Box::pin(truncation).await?)
            }
            Request::AppendMessage {
                session_id,
                message,
            } => {
                let place = (caller, workspace.as_ref());
                self.references_must_exist(place, &message).await?;
                Order::AppendMessage(domain::AppendMessage {
                    session_id,
                    message: self.new_message(message),
                })
            }
            Request::SubmitTask(new) => self.build_task(caller, new).await?,
            Request::ReplayTask(new) => Box::pin(self.build_replay(caller, &new)).await?,
            Request::ReplaySession(new) => {
                Box::pin(self.build_session_replay(caller, &new)).await?
            }
            Request::ImportTask {
                bundle,
                workspace_id,
            } => Box::pin(self.build_import(caller, &bundle, workspace_id)).await?,
            Request::CancelTask { id, reason } => {
                let (document, task) = self.visible_task(caller, &id).await?;
                let receipt = Box::pin(self.canceled_receipt(document.key, &task)).await?;
                let ids = match &receipt {
                    Some(receipt) => self.replay_end_ids(receipt)?,
                    None => self.end_ids(),
                };
                let receipt = receipt.map(|receipt| receipt.bytes().into());
                Order::CancelTask(domain::CancelTask {
                    id,
                    ids,
                    receipt,
                    reason,
                })
            }
            Request::SendTaskMessage { id, kind, message } => {
                let place = (caller, workspace.as_ref());
                self.references_must_exist(place, &message).await?;
                Box::pin(self.build_task_message(caller, id, kind, message)).await?
            }
            Request::RespondPermission {
                id,
                approved,
                answer,
                remarks,
            } => {
                let answered = self.build_answer(caller, id, approved, answer, remarks);
                Order::AnswerRequest(Box::pin(answered).await?)
            }
            Request::CreateBranch(new) => {
                let place = (caller, workspace.as_ref());
                let parent = new.parent_branch_id.as_ref().map(BranchId::as_str);
                self.must_be_in(place, ResourceKind::Branch, parent, "parent_branch_id")
                    .await?;
                let task = new.task_id.as_ref().map(TaskId::as_str);
                self.must_be_in(place, ResourceKind::Task, task, "task_id")
                    .await?;
                let id = BranchId::from_body(&ids.body());
                Order::CreateBranch(CreateBranch { id, new })
            }
            Request::RegisterArtifact(new) => Order::RegisterArtifact(RegisterArtifact {
                id: ArtifactId::from_body(&ids.body()),
                workspace_id: workspace.unwrap_or_else(WorkspaceId::local),
                new,
            }),
            Request::CreateVault(new) => Order::CreateVault(CreateVault {
                id: VaultId::from_body(&ids.body()),
                new,
            }),
            Request::CreateLocalVault => Order::CreateVault(crate::vault::local()),
            Request::AttachContent { id, sha256, bytes } => {
                Order::AttachContent(domain::AttachContent { id, sha256, bytes })
            }
            Request::VerifyReceipt { id, check } => {
                let judged = self.judged(caller, &id, &check);
                Order::RecordVerification(Box::pin(judged).await?)
            }
            Request::CosignHead { id, line } => {
                let cosigned = self.build_cosignature(caller, id, &line);
                Order::CosignHead(Box::pin(cosigned).await?)
            }
            Request::CreatePersona(new) => self.build_persona(*new)?,
            Request::Govern(_) => return Err(not_here()),
            Request::UpdatePersona { id, change } => {
                Box::pin(self.build_persona_change(caller, &id, change)).await?
            }
        })
    }

    async fn build_session(
        &self,
        caller: &Caller,
        new: NewSession,
        workspace: Option<WorkspaceId>,
    ) -> Result<Order, Refused> {
        let persona = self
            .persona_named(caller, new.persona_id.as_deref())
            .await?;
        let workspace = workspace.unwrap_or_else(WorkspaceId::local);
        for message in &new.initial_messages {
            let place = (caller, Some(&workspace));
            self.references_must_exist(place, message).await?;
        }
        let messages = new.initial_messages.into_iter();
        Ok(Order::CreateSession(domain::CreateSession {
            id: SessionId::from_body(&self.shared.ids.body()),
            workspace_id: workspace,
            mode_id: new.mode_id,
            persona_id: persona.map(|persona| persona.id),
            model_policy: new.model_policy,
            initial_messages: messages.map(|message| self.new_message(message)).collect(),
            metadata: new.metadata,
        }))
    }

    /// Finds where an Artifact belongs: with its Task, its Session, or where the request says.
    async fn artifact_workspace(
        &self,
        caller: &Caller,
        new: &NewArtifact,
    ) -> Result<WorkspaceId, Refused> {
        let session = new.session_id.as_ref().map(SessionId::as_str);
        let task = new.task_id.as_ref().map(TaskId::as_str);
        self.must_see(caller, ResourceKind::Session, session, "session_id")
            .await?;
        self.must_see(caller, ResourceKind::Task, task, "task_id")
            .await?;
        let mut workspace_id = new.workspace_id.clone().unwrap_or_else(WorkspaceId::local);
        if let Some(id) = &new.task_id {
            workspace_id = self.visible_task(caller, id).await?.1.workspace_id;
        } else if let Some(id) = &new.session_id {
            workspace_id = self.visible_session(caller, id).await?.1.workspace_id;
        }
        self.named_workspace(caller, Some(&workspace_id)).await?;
        let place = (caller, Some(&workspace_id));
        self.must_be_in(place, ResourceKind::Session, session, "session_id")
            .await?;
        Ok(workspace_id)
    }

    /// Refuses a reference to something the caller may not see, like a reference to nothing.
    pub(crate) async fn must_see(
        &self,
        caller: &Caller,
        kind: ResourceKind,
        id: Option<&str>,
        param: &'static str,
    ) -> Result<(), Refused> {
        self.workspace_of_named(caller, kind, id, param)
            .await
            .map(drop)
    }

    /// Refuses a reference to something outside of the Workspace that the request happens in, like a reference to nothing:
    /// whoever reads there may not see what it names.
    pub(super) async fn must_be_in(
        &self,
        (caller, workspace): (&Caller, Option<&WorkspaceId>),
        kind: ResourceKind,
        id: Option<&str>,
        param: &'static str,
    ) -> Result<(), Refused> {
        let found = self.workspace_of_named(caller, kind, id, param).await?;
        match found {
            Some(found) if workspace != Some(&found) => Err(Refused::Domain(Refusal::NotFound {
                object: kind.object(),
                param: Some(param),
            })),
            _ => Ok(()),
        }
    }

    /// Returns the Workspace of what a member of a request names.
    async fn workspace_of_named(
        &self,
        caller: &Caller,
        kind: ResourceKind,
        id: Option<&str>,
        param: &'static str,
    ) -> Result<Option<WorkspaceId>, Refused> {
        let Some(id) = id else { return Ok(None) };
        match self.workspace_of_visible(caller, kind, id).await {
            Ok(found) => Ok(found),
            Err(Refused::Domain(Refusal::NotFound { object, .. })) => {
                Err(Refused::Domain(Refusal::NotFound {
                    object,
                    param: Some(param),
                }))
            }
            Err(other) => Err(other),
        }
    }

    async fn named_workspace(
        &self,
        caller: &Caller,
        id: Option<&WorkspaceId>,
    ) -> Result<(), Refused> {
        let id = id.map(WorkspaceId::as_str);
        self.must_see(caller, ResourceKind::Workspace, id, "workspace_id")
            .await
    }

    async fn session_workspace(
        &self,
        caller: &Caller,
        id: &SessionId,
    ) -> Result<Option<WorkspaceId>, Refused> {
        self.workspace_of_visible(caller, ResourceKind::Session, id.as_str())
            .await
    }

    async fn task_workspace(
        &self,
        caller: &Caller,
        id: &TaskId,
    ) -> Result<Option<WorkspaceId>, Refused> {
        self.workspace_of_visible(caller, ResourceKind::Task, id.as_str())
            .await
    }

    /// Returns the Workspace of a resource that the caller may see. Whose it is never changes, so what a turn
    /// remembers is as good as the store.
    async fn workspace_of_visible(
        &self,
        caller: &Caller,
        kind: ResourceKind,
        id: &str,
    ) -> Result<Option<WorkspaceId>, Refused> {
        if let Some(document) = self.shared.cache.last_seen(id)
            && document.state.kind() == kind
            && let Some(workspace) = workspace_of(&document)
            && caller.sees(Some(&workspace))
        {
            return Ok(Some(workspace));
        }
        let document = self.visible(caller, kind, id).await?;
        Ok(workspace_of(&document))
    }

    pub(super) async fn visible_session(
        &self,
        caller: &Caller,
        id: &SessionId,
    ) -> Result<(Document, domain::Session), Refused> {
        let document = self
            .visible(caller, ResourceKind::Session, id.as_str())
            .await?;
        match document.state.clone() {
            State::Session(session) => Ok((document, session)),
            _ => Err(Refused::Internal {
                detail: "the document is not a session".to_owned(),
            }),
        }
    }

    pub(super) async fn visible_task(
        &self,
        caller: &Caller,
        id: &TaskId,
    ) -> Result<(Document, Task), Refused> {
        let document = self
            .visible(caller, ResourceKind::Task, id.as_str())
            .await?;
        match document.state.clone() {
            State::Task(task) => Ok((document, task)),
            _ => Err(Refused::Internal {
                detail: "the document is not a task".to_owned(),
            }),
        }
    }

    pub(crate) async fn visible_permission(
        &self,
        caller: &Caller,
        id: &PermissionId,
    ) -> Result<Permission, Refused> {
        let document = self
            .visible(caller, ResourceKind::Permission, id.as_str())
            .await?;
        match document.state {
            State::Permission(permission) => Ok(permission),
            _ => Err(Refused::Internal {
                detail: "the document is not a permission request".to_owned(),
            }),
        }
    }

    /// Refuses a Message that refers to an Artifact that is not there, or that its writer may not see. What an event keeps
    /// beside itself goes by the event's id.
    pub(super) async fn references_must_exist(
        &self,
        place: (&Caller, Option<&WorkspaceId>),
        message: &MessageSpec,
    ) -> Result<(), Refused> {
        const PARAM: &str = "message.parts";
        for part in &message.parts {
            let text = |name: &str| part.get(name).and_then(Value::as_str);
            let Some("artifact_ref" | "image_ref") = text("type") else {
                continue;
            };
            let id = text("artifact_id");
            if let Some(event) = id.filter(|id| self.shared.store.name().position(id).is_some()) {
                self.visible_event(place.0, event, Some(PARAM)).await?;
            } else {
                self.must_be_in(place, ResourceKind::Artifact, id, PARAM)
                    .await?;
            }
        }
        Ok(())
    }

    pub(super) fn new_message(&self, spec: MessageSpec) -> NewMessage {
        NewMessage {
            id: MessageId::from_body(&self.shared.ids.body()),
            salt: self.shared.ids.salt(),
            role: spec.role,
            parts: spec.parts,
            metadata: spec.metadata,
        }
    }

    /// Makes the ids of what the end of a Task leaves.
    pub(crate) fn end_ids(&self) -> EndIds {
        EndIds {
            outcome_id: domain::OutcomeId::from_body(&self.shared.ids.body()),
            receipt_id: ReceiptId::from_body(&self.shared.ids.body()),
        }
    }
}

fn not_here() -> Refused {
    Refused::Internal {
        detail: "a governed session takes this through its own endpoints".to_owned(),
    }
}

/// Refuses a caller that is bound to Workspaces what concerns all of them.
fn must_be_unbound(caller: &Caller, scope: &'static str) -> Result<(), Refused> {
    match caller.workspaces() {
        None => Ok(()),
        Some(_) => Err(Refused::PermissionDenied { scope }),
    }
}
