//! From a request to an order: what the caller may see is checked, ids are made, documents are looked up.

use canon::{Digest, Value};
use domain::{
    ArtifactId, Blob, BranchId, Document, EndIds, MessageId, NewMessage, Order, Permission,
    PersonaId, Position, ReceiptId, Refusal, RequestReply, ResourceKind, SessionId, State, Task,
    TaskId, TaskInput, VaultId, WorkspaceId,
};

use crate::caller::{APPROVE, Caller};
use crate::engine::Engine;
use crate::port::{ListQuery, Scope};
use crate::read::workspace_of;
use crate::refused::Refused;
use crate::request::{
    InputSpec, MessageSpec, NewArtifact, NewSession, NewTask, Request, TaskMessageKind,
};

impl Engine {
    /// Checks what the caller may see and builds the order, with the Workspace it happens in.
    pub(super) async fn build(
        &self,
        caller: &Caller,
        request: &Request,
    ) -> Result<(Option<WorkspaceId>, Order), Refused> {
        let ids = &self.shared.ids;
        match request {
            Request::CreateWorkspace {
                name,
                root,
                metadata,
            } => {
                if caller.workspaces().is_some() {
                    return Err(Refused::PermissionDenied {
                        scope: "workspaces:write for all workspaces",
                    });
                }
                let order = domain::CreateWorkspace {
                    id: WorkspaceId::from_body(&ids.body()),
                    branch_id: BranchId::from_body(&ids.body()),
                    name: name.clone(),
                    root: root.clone(),
                    metadata: metadata.clone(),
                };
                Ok((None, Order::CreateWorkspace(order)))
            }
            Request::UpdateWorkspace(update) => {
                self.visible(caller, ResourceKind::Workspace, update.id.as_str())
                    .await?;
                Ok((
                    Some(update.id.clone()),
                    Order::UpdateWorkspace(update.clone()),
                ))
            }
            Request::CreateSession(spec) => self.build_session(caller, spec).await,
            Request::UpdateSession(update) => {
                let workspace = self.session_workspace(caller, &update.id).await?;
                Ok((Some(workspace), Order::UpdateSession(update.clone())))
            }
            Request::CloseSession(id) => {
                let workspace = self.session_workspace(caller, id).await?;
                Ok((Some(workspace), Order::CloseSession(id.clone())))
            }
            Request::ForkSession {
                id,
                at_event_id,
                branch_id,
                metadata,
            } => {
                let fork = self
                    .build_fork(caller, id, at_event_id.as_deref(), branch_id.as_ref())
                    .await?;
                let (workspace, mut order) = fork;
                order.metadata.clone_from(metadata);
                Ok((Some(workspace), Order::ForkSession(order)))
            }
            Request::TruncateSession {
                id,
                keep_first,
                reason,
            } => {
                let (workspace, mut order) = self.build_truncation(caller, id, *keep_first).await?;
                order.reason.clone_from(reason);
                Ok((Some(workspace), Order::TruncateSession(order)))
            }
            Request::AppendMessage {
                session_id,
                message,
            } => {
                let workspace = self.session_workspace(caller, session_id).await?;
                let order = domain::AppendMessage {
                    session_id: session_id.clone(),
                    message: self.new_message(message),
                };
                Ok((Some(workspace), Order::AppendMessage(order)))
            }
            Request::SubmitTask(spec) => self.build_task(caller, spec).await,
            Request::ReplayTask(spec) => self.build_replay(caller, spec).await,
            Request::ReplaySession(spec) => self.build_session_replay(caller, spec).await,
            Request::ImportTask {
                bundle,
                workspace_id,
            } => {
                self.build_import(caller, bundle, workspace_id.as_ref())
                    .await
            }
            Request::CancelTask { id, reason } => {
                let (document, task) = self.visible_task(caller, id).await?;
                let receipt = self.canceled_receipt(document.key, &task).await?;
                let ids = match &receipt {
                    Some(receipt) => self.replay_end_ids(receipt)?,
                    None => self.end_ids(),
                };
                let order = domain::CancelTask {
                    id: id.clone(),
                    ids,
                    receipt: receipt.map(|receipt| receipt.bytes().into()),
                    reason: reason.clone(),
                };
                Ok((Some(task.workspace_id), Order::CancelTask(order)))
            }
            Request::SendTaskMessage { id, kind, message } => {
                self.build_task_message(caller, id, *kind, message).await
            }
            Request::RespondPermission {
                id,
                approved,
                answer,
                remarks,
            } => {
                let document = self
                    .visible(caller, ResourceKind::Permission, id.as_str())
                    .await?;
                let State::Permission(permission) = document.state else {
                    return Err(Refused::Internal {
                        detail: "the document is not a permission request".to_owned(),
                    });
                };
                let reply = reply(&permission, *approved, answer.as_ref());
                let (_, task) = self.visible_task(caller, &permission.task_id).await?;
                check_right(caller, permission.ask, &reply, &task)?;
                let order = domain::AnswerRequest {
                    id: id.clone(),
                    reply,
                    remarks: remarks.clone(),
                };
                Ok((Some(permission.workspace_id), Order::AnswerRequest(order)))
            }
            Request::CreateBranch {
                session_id,
                kind,
                base_ref,
                parent_branch_id,
                task_id,
                metadata,
            } => {
                let workspace = self.session_workspace(caller, session_id).await?;
                self.must_see(
                    caller,
                    ResourceKind::Branch,
                    parent_branch_id.as_ref().map(BranchId::as_str),
                    "parent_branch_id",
                )
                .await?;
                self.must_see(
                    caller,
                    ResourceKind::Task,
                    task_id.as_ref().map(TaskId::as_str),
                    "task_id",
                )
                .await?;
                let order = domain::CreateBranch {
                    id: BranchId::from_body(&ids.body()),
                    session_id: session_id.clone(),
                    kind: *kind,
                    base_ref: base_ref.clone(),
                    parent_branch_id: parent_branch_id.clone(),
                    task_id: task_id.clone(),
                    metadata: metadata.clone(),
                };
                Ok((Some(workspace), Order::CreateBranch(order)))
            }
            Request::RegisterArtifact(spec) => self.build_artifact(caller, spec).await,
            Request::UploadContent { id, bytes } => {
                let document = self
                    .visible(caller, ResourceKind::Artifact, id.as_str())
                    .await?;
                let workspace = workspace_of(&document);
                let blob = Blob::new(bytes.clone());
                let order = domain::AttachContent {
                    id: id.clone(),
                    sha256: blob.digest,
                    bytes: blob.bytes.len() as u64,
                };
                // Other bytes than were stated are refused in the turn: they are not stored first.
                let is_stated = match &document.state {
                    State::Artifact(artifact) => {
                        artifact.sha256.is_none_or(|stated| stated == blob.digest)
                    }
                    _ => true,
                };
                // Durable before the event that names it. If the order is refused for another reason the bytes stay,
                // named by nothing, until `reprise log sweep`.
                if is_stated {
                    self.shared.store.put_blob(blob).await?;
                }
                Ok((workspace, Order::AttachContent(order)))
            }
            Request::CreateVault {
                workspace_id,
                provider,
                capabilities,
                metadata,
            } => {
                let workspace = workspace_id.as_ref().map(WorkspaceId::as_str);
                self.must_see(caller, ResourceKind::Workspace, workspace, "workspace_id")
                    .await?;
                if workspace_id.is_none() && caller.workspaces().is_some() {
                    return Err(Refused::PermissionDenied {
                        scope: "vaults:write for all workspaces",
                    });
                }
                let order = domain::CreateVault {
                    id: VaultId::from_body(&ids.body()),
                    workspace_id: workspace_id.clone(),
                    provider: provider.clone(),
                    capabilities: capabilities.clone(),
                    metadata: metadata.clone(),
                };
                Ok((workspace_id.clone(), Order::CreateVault(order)))
            }
            Request::CreatePersona(order) => self.build_persona(caller, order),
            Request::UpdatePersona { id, change } => {
                self.build_persona_change(caller, id, change).await
            }
        }
    }

    /// Finds the Workspace that a request happens in, from what it names and the caller may see; `None` where that takes
    /// building it. The same Workspace that [`Self::build`] returns.
    pub(super) async fn workspace_asked(
        &self,
        caller: &Caller,
        request: &Request,
    ) -> Result<Option<Option<WorkspaceId>>, Refused> {
        let workspace = match request {
            Request::CreateWorkspace { .. }
            | Request::CreatePersona(_)
            | Request::UpdatePersona { .. } => match caller.workspaces() {
                None => None,
                // Refused where it is built.
                Some(_) => return Ok(None),
            },
            // Where a bundle belongs may depend on what it holds.
            Request::ImportTask { .. } => return Ok(None),
            Request::UpdateWorkspace(update) => {
                self.sees(caller, ResourceKind::Workspace, update.id.as_str())
                    .await?;
                Some(update.id.clone())
            }
            Request::CreateSession(spec) => {
                let id = spec.workspace_id.clone().unwrap_or_else(WorkspaceId::local);
                let named = Some(id.as_str());
                self.must_see(caller, ResourceKind::Workspace, named, "workspace_id")
                    .await?;
                Some(id)
            }
            Request::UpdateSession(update) => {
                Some(self.session_workspace(caller, &update.id).await?)
            }
            Request::CloseSession(id)
            | Request::ForkSession { id, .. }
            | Request::TruncateSession { id, .. } => {
                Some(self.session_workspace(caller, id).await?)
            }
            Request::ReplaySession(spec) => Some(self.session_workspace(caller, &spec.id).await?),
            Request::AppendMessage { session_id, .. }
            | Request::CreateBranch { session_id, .. } => {
                Some(self.session_workspace(caller, session_id).await?)
            }
            Request::SubmitTask(spec) => {
                let session = Some(spec.session_id.as_str());
                self.must_see(caller, ResourceKind::Session, session, "session_id")
                    .await?;
                Some(self.session_workspace(caller, &spec.session_id).await?)
            }
            Request::ReplayTask(spec) => {
                Some(self.visible_task(caller, &spec.id).await?.1.workspace_id)
            }
            Request::CancelTask { id, .. } | Request::SendTaskMessage { id, .. } => {
                Some(self.visible_task(caller, id).await?.1.workspace_id)
            }
            Request::RespondPermission { id, .. } => {
                let found = self.visible(caller, ResourceKind::Permission, id.as_str());
                workspace_of(&found.await?)
            }
            Request::RegisterArtifact(spec) => Some(self.artifact_workspace(caller, spec).await?),
            Request::UploadContent { id, .. } => {
                let found = self.visible(caller, ResourceKind::Artifact, id.as_str());
                workspace_of(&found.await?)
            }
            Request::CreateVault { workspace_id, .. } => {
                let named = workspace_id.as_ref().map(WorkspaceId::as_str);
                self.must_see(caller, ResourceKind::Workspace, named, "workspace_id")
                    .await?;
                workspace_id.clone()
            }
        };
        Ok(Some(workspace))
    }

    async fn build_session(
        &self,
        caller: &Caller,
        spec: &NewSession,
    ) -> Result<(Option<WorkspaceId>, Order), Refused> {
        let persona = self
            .persona_named(caller, spec.persona_id.as_deref())
            .await?;
        let workspace_id = spec.workspace_id.clone().unwrap_or_else(WorkspaceId::local);
        self.must_see(
            caller,
            ResourceKind::Workspace,
            Some(workspace_id.as_str()),
            "workspace_id",
        )
        .await?;
        let order = domain::CreateSession {
            id: SessionId::from_body(&self.shared.ids.body()),
            workspace_id: workspace_id.clone(),
            mode_id: spec.mode_id.clone(),
            persona_id: persona.map(|persona| persona.id),
            model_policy: spec.model_policy.clone(),
            initial_messages: spec
                .initial_messages
                .iter()
                .map(|message| self.new_message(message))
                .collect(),
            metadata: spec.metadata.clone(),
        };
        Ok((Some(workspace_id), Order::CreateSession(order)))
    }

    async fn build_task(
        &self,
        caller: &Caller,
        spec: &NewTask,
    ) -> Result<(Option<WorkspaceId>, Order), Refused> {
        if self.shared.work.active_count() >= self.shared.limits.open_tasks_max {
            return Err(Refused::Busy {
                what: "open_tasks_max",
            });
        }
        let session = spec.session_id.as_str();
        self.must_see(caller, ResourceKind::Session, Some(session), "session_id")
            .await?;
        let (_, session) = self.visible_session(caller, &spec.session_id).await?;
        let workspace = session.workspace_id;
        // Its own, or else the Session's.
        let of_session = session.persona_id.as_ref().map(PersonaId::as_str);
        let persona = self
            .persona_named(caller, spec.persona_id.as_deref().or(of_session))
            .await?;
        self.must_see(
            caller,
            ResourceKind::Branch,
            spec.branch_id.as_ref().map(BranchId::as_str),
            "branch_id",
        )
        .await?;
        self.must_see(
            caller,
            ResourceKind::Task,
            spec.parent_task_id.as_ref().map(TaskId::as_str),
            "parent_task_id",
        )
        .await?;
        let entry = persona.as_ref().map(|known| &*known.spec.entry_workflow);
        let workflow = match spec.metadata.get("workflow") {
            // A persona says how its agent runs, approvals included: no caller gets around it.
            Some(asked) if entry.is_some_and(|entry| asked.as_str() != Some(entry)) => {
                return Err(Refused::Domain(Refusal::Policy {
                    reason: "persona_workflow",
                    message: format!(
                        "tasks of this persona run `{}`: leave out `metadata.workflow`",
                        entry.unwrap_or_default()
                    ),
                }));
            }
            None => match &persona {
                Some(persona) => self.entry_workflow(persona)?,
                None => "agent",
            },
            Some(asked) => {
                let name = asked.as_str().unwrap_or_default();
                self.offered(name, "metadata.workflow")?;
                name
            }
        };
        let input = match &spec.input {
            InputSpec::Message(message) => TaskInput::Message(self.new_message(message)),
            InputSpec::Object(map) => TaskInput::Object(map.clone()),
        };
        let order = domain::SubmitTask {
            id: TaskId::from_body(&self.shared.ids.body()),
            session_id: spec.session_id.clone(),
            workspace_id: spec.workspace_id.clone(),
            branch_id: spec.branch_id.clone(),
            parent_task_id: spec.parent_task_id.clone(),
            workflow: workflow.to_owned(),
            persona: persona.map(|known| known.spec.snapshot(known.id)),
            input,
            metadata: spec.metadata.clone(),
        };
        Ok((Some(workspace), Order::SubmitTask(order)))
    }

    async fn build_task_message(
        &self,
        caller: &Caller,
        id: &TaskId,
        kind: TaskMessageKind,
        message: &MessageSpec,
    ) -> Result<(Option<WorkspaceId>, Order), Refused> {
        let (document, task) = self.visible_task(caller, id).await?;
        let workspace = Some(task.workspace_id.clone());
        if kind == TaskMessageKind::Interrupt {
            caller.require("tasks:write")?;
            let order = domain::InterruptTask {
                id: id.clone(),
                message: self.new_message(message),
            };
            return Ok((workspace, Order::InterruptTask(order)));
        }
        // The request that waits, or the last one that was answered: a repeated answer must find it.
        let (wanted, scope) = match kind {
            TaskMessageKind::Input | TaskMessageKind::Interrupt => {
                (domain::Ask::Input, "tasks:write")
            }
            TaskMessageKind::ToolConfirmation => (domain::Ask::Approval, APPROVE),
        };
        caller.require(scope)?;
        let Some(request) = self.last_request(document.key, wanted).await? else {
            return Err(Refused::Domain(if task.status.is_terminal() {
                Refusal::InvalidTransition {
                    status: task.status,
                }
            } else {
                Refusal::Conflict {
                    reason: "not_waiting",
                    message: format!(
                        "the task is {} and is not waiting for input",
                        task.status.as_str()
                    ),
                    status: Some(task.status),
                }
            }));
        };
        let reply = match kind {
            TaskMessageKind::Input | TaskMessageKind::Interrupt => {
                RequestReply::Message(self.new_message(message))
            }
            TaskMessageKind::ToolConfirmation => {
                let decision = message
                    .parts
                    .iter()
                    .find_map(|part| part.pointer("/value/approved")?.as_bool());
                match decision {
                    Some(approved) => RequestReply::Confirm {
                        approved,
                        message: self.new_message(message),
                    },
                    None => {
                        let message =
                            "a tool confirmation needs a `json` part with a boolean `approved`"
                                .to_owned();
                        return Err(Refused::Domain(Refusal::Invalid {
                            param: "message.parts",
                            message,
                        }));
                    }
                }
            }
        };
        check_right(caller, wanted, &reply, &task)?;
        let order = domain::AnswerRequest {
            id: request,
            reply,
            remarks: canon::Map::new(),
        };
        Ok((workspace, Order::AnswerRequest(order)))
    }

    async fn last_request(
        &self,
        task: Position,
        ask: domain::Ask,
    ) -> Result<Option<domain::PermissionId>, Refused> {
        let mut after = Position::START;
        let mut last = None;
        loop {
            let query = ListQuery {
                kind: ResourceKind::Permission,
                scope: Scope::Task(task),
                open_only: false,
                after,
                limit: 200,
            };
            let page = self.shared.store.list(query).await?;
            let Some(end) = page.last() else {
                return Ok(last);
            };
            after = end.key;
            for document in &page {
                if let State::Permission(request) = &document.state
                    && request.ask == ask
                {
                    last = domain::PermissionId::parse(&document.id).ok();
                }
            }
        }
    }

    /// Finds where an Artifact belongs: with its Task, its Session, or where the request says.
    async fn artifact_workspace(
        &self,
        caller: &Caller,
        spec: &NewArtifact,
    ) -> Result<WorkspaceId, Refused> {
        let session = spec.session_id.as_ref().map(SessionId::as_str);
        let task = spec.task_id.as_ref().map(TaskId::as_str);
        self.must_see(caller, ResourceKind::Session, session, "session_id")
            .await?;
        self.must_see(caller, ResourceKind::Task, task, "task_id")
            .await?;
        let mut workspace_id = spec.workspace_id.clone().unwrap_or_else(WorkspaceId::local);
        if let Some(id) = &spec.task_id {
            workspace_id = self.visible_task(caller, id).await?.1.workspace_id;
        } else if let Some(id) = &spec.session_id {
            workspace_id = self.session_workspace(caller, id).await?;
        }
        self.must_see(
            caller,
            ResourceKind::Workspace,
            Some(workspace_id.as_str()),
            "workspace_id",
        )
        .await?;
        Ok(workspace_id)
    }

    async fn build_artifact(
        &self,
        caller: &Caller,
        spec: &NewArtifact,
    ) -> Result<(Option<WorkspaceId>, Order), Refused> {
        let workspace_id = self.artifact_workspace(caller, spec).await?;
        let order = domain::RegisterArtifact {
            id: ArtifactId::from_body(&self.shared.ids.body()),
            kind: spec.kind,
            mime_type: spec.mime_type.clone(),
            uri: spec.uri.clone(),
            visibility: spec.visibility,
            sha256: spec.sha256,
            workspace_id: workspace_id.clone(),
            session_id: spec.session_id.clone(),
            task_id: spec.task_id.clone(),
            metadata: spec.metadata.clone(),
        };
        Ok((Some(workspace_id), Order::RegisterArtifact(order)))
    }

    /// Refuses a reference to something the caller may not see, like a reference to nothing.
    pub(super) async fn must_see(
        &self,
        caller: &Caller,
        kind: ResourceKind,
        id: Option<&str>,
        param: &'static str,
    ) -> Result<(), Refused> {
        let Some(id) = id else { return Ok(()) };
        match self.belonging(caller, kind, id).await {
            Ok(_) => Ok(()),
            Err(Refused::Domain(Refusal::NotFound { object, .. })) => {
                Err(Refused::Domain(Refusal::NotFound {
                    object,
                    param: Some(param),
                }))
            }
            Err(other) => Err(other),
        }
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

    async fn session_workspace(
        &self,
        caller: &Caller,
        id: &SessionId,
    ) -> Result<WorkspaceId, Refused> {
        let kind = ResourceKind::Session;
        let workspace = self.belonging(caller, kind, id.as_str()).await?;
        workspace.ok_or_else(|| Refused::Internal {
            detail: "a session of no workspace".to_owned(),
        })
    }

    /// Returns the Workspace of a resource that the caller may see. Whose it is never changes, so what a turn
    /// remembers is as good as the store.
    async fn belonging(
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

    fn new_message(&self, spec: &MessageSpec) -> NewMessage {
        NewMessage {
            id: MessageId::from_body(&self.shared.ids.body()),
            salt: self.shared.ids.salt(),
            role: spec.role,
            parts: spec.parts.clone(),
            metadata: spec.metadata.clone(),
        }
    }

    async fn build_fork(
        &self,
        caller: &Caller,
        id: &SessionId,
        at_event_id: Option<&str>,
        branch_id: Option<&BranchId>,
    ) -> Result<(WorkspaceId, domain::ForkSession), Refused> {
        let (document, session) = self.visible_session(caller, id).await?;
        self.must_see(
            caller,
            ResourceKind::Branch,
            branch_id.map(BranchId::as_str),
            "branch_id",
        )
        .await?;
        let until = match at_event_id {
            None => Position(u64::MAX),
            Some(event_id) => {
                let event = self
                    .visible_event(caller, event_id, Some("at_event_id"))
                    .await?;
                if event.links.session != Some(document.key) {
                    return Err(Refused::Domain(Refusal::NotFound {
                        object: "event",
                        param: Some("at_event_id"),
                    }));
                }
                event.position
            }
        };
        let limit = self.shared.limits.fork_messages_max;
        let messages = self
            .transcript_documents(document.key, &session, Position::START, limit + 1)
            .await?;
        if messages.len() > limit {
            let message = format!("the session has more than {limit} messages (fork_messages_max)");
            return Err(Refused::Domain(Refusal::Policy {
                reason: "fork_messages_max",
                message,
            }));
        }
        let messages = messages
            .into_iter()
            .filter(|message| message.key <= until)
            .filter_map(|message| match message.state {
                State::Message(state) => Some(domain::MessageCopy {
                    id: MessageId::from_body(&self.shared.ids.body()),
                    of: MessageId::parse(&message.id).ok()?,
                    role: state.role,
                    source: state.source,
                }),
                _ => None,
            })
            .collect();
        let order = domain::ForkSession {
            parent: id.clone(),
            parent_version: document.version,
            id: SessionId::from_body(&self.shared.ids.body()),
            at_event_id: at_event_id.map(str::to_owned),
            branch_id: branch_id.cloned(),
            new_branch: None,
            chain: self.chain_at(document.key, until).await?,
            replay: None,
            messages,
            metadata: canon::Map::new(),
        };
        Ok((session.workspace_id, order))
    }

    /// Returns the newest Receipt of a Session up to a position.
    async fn chain_at(
        &self,
        session: Position,
        until: Position,
    ) -> Result<Option<(ReceiptId, Digest)>, Refused> {
        let mut after = Position::START;
        let mut newest = None;
        loop {
            let query = ListQuery {
                kind: ResourceKind::Receipt,
                scope: Scope::Session(session),
                open_only: false,
                after,
                limit: 500,
            };
            let page = self.shared.store.list(query).await?;
            for document in &page {
                if let State::Receipt(receipt) = &document.state
                    // Those of another server are in no chain here.
                    && !receipt.imported
                    && document.key <= until
                    && let Ok(id) = ReceiptId::parse(&document.id)
                {
                    newest = Some((id, receipt.receipt_hash));
                }
            }
            match page.last() {
                Some(last) if last.key <= until => after = last.key,
                _ => return Ok(newest),
            }
        }
    }

    /// Makes the ids of what the end of a Task leaves.
    pub(crate) fn end_ids(&self) -> EndIds {
        EndIds {
            outcome_id: domain::OutcomeId::from_body(&self.shared.ids.body()),
            receipt_id: ReceiptId::from_body(&self.shared.ids.body()),
        }
    }

    async fn build_truncation(
        &self,
        caller: &Caller,
        id: &SessionId,
        keep_first: u64,
    ) -> Result<(WorkspaceId, domain::TruncateSession), Refused> {
        let (document, session) = self.visible_session(caller, id).await?;
        let mut order = domain::TruncateSession {
            id: id.clone(),
            version: document.version,
            keep_first,
            after: Position::START,
            through: self.shared.store.head(),
            tip: None,
            reason: None,
        };
        // Walks the kept part: its last Message is where the cut is made.
        let mut left = keep_first;
        while left > 0 {
            let limit = usize::try_from(left.min(500)).unwrap_or(500);
            let page = self
                .transcript_documents(document.key, &session, order.after, limit)
                .await?;
            let Some(last) = page.last() else { break };
            order.after = last.key;
            order.tip = MessageId::parse(&last.id).ok();
            left -= (page.len() as u64).min(left);
        }
        Ok((session.workspace_id, order))
    }
}

/// Answering a question is part of the work; deciding what an agent may do is a right of its own (U21), and approving is
/// for somebody else than whoever submitted the Task. A key has one actor, so that the same key is the same actor.
fn check_right(
    caller: &Caller,
    ask: domain::Ask,
    reply: &RequestReply,
    task: &Task,
) -> Result<(), Refused> {
    match ask {
        domain::Ask::Input => caller.require("tasks:write"),
        domain::Ask::Approval => {
            caller.require(APPROVE)?;
            let approves = matches!(
                reply,
                RequestReply::Approve | RequestReply::Confirm { approved: true, .. }
            );
            match approves && task.created_by == caller.actor {
                true => Err(Refused::ApproverMustDiffer),
                false => Ok(()),
            }
        }
    }
}

fn reply(permission: &Permission, approved: Option<bool>, answer: Option<&Value>) -> RequestReply {
    match (permission.ask, approved, answer) {
        (_, Some(false), _) => RequestReply::Deny,
        (domain::Ask::Input, _, Some(answer)) => RequestReply::Value(answer.clone()),
        (domain::Ask::Approval, None, Some(answer)) => RequestReply::Value(answer.clone()),
        (_, Some(true) | None, _) => RequestReply::Approve,
    }
}
