//! Every operation: its method and path, what it asks of its caller, what it takes, how that is read, what it gives.

use super::operation::{Body::*, ResponseKind::*, operations};
use crate::access::WorkspaceRule::*;
use crate::access::{PUBLIC, needs, needs_one_of};
use crate::decode;
use crate::receipt::{MEDIA_TYPE, MEDIA_TYPE_CBOR};
use domain::ResourceKind::*;

// Every operation of the contract, and those of the server itself.
operations! {
    get    "/health" getHealth Runtime Json("Health") PUBLIC;
    get    "/version" getVersion Runtime Json("RuntimeVersion") PUBLIC;
    get    "/" getStartPage Discovery Html PUBLIC;
    get    "/openapi.json" getOpenApiDocument Discovery AnyObject PUBLIC;
    get    "/v1" getProtocolDiscovery Discovery Json("Discovery") PUBLIC;
    get    "/v1/runtime" getRuntime Runtime Json("RuntimeMetadata") needs(&[], Unplaced);
    get    "/v1/capabilities" listCapabilities Runtime Json("CapabilitySummary") needs(&[], Unplaced);
    get    "/v1/provider-catalog" getProviderCatalog Runtime Json("ProviderCatalog") needs(&[], Unplaced);
    get    "/v1/tools" listTools Tools Json("ToolList") needs(&[], Unplaced).query(&["limit", "cursor"]);
    get    "/v1/tools/{tool_id}" getTool Tools Json("Tool") needs(&[], Unplaced);
    get    "/v1/agent-card" getAgentCard Discovery Json("HarnAgentCard") PUBLIC;
    get    "/v1/personas" listPersonas Personas Json("PersonaList") needs(&["personas:read"], Unplaced).query(&["limit", "cursor"]);
    post   "/v1/personas" createPersona Personas
        Json("Persona") needs(&["personas:write"], Every("personas:write for all workspaces"))
        .accepts(Required("CreatePersonaRequest")).decodes(decode::create_persona).with_status(201);
    get    "/v1/personas/{persona_id}" getPersona Personas Json("Persona") needs(&["personas:read"], Unplaced);
    patch  "/v1/personas/{persona_id}" updatePersona Personas
        Json("Persona") needs(&["personas:write"], Every("personas:write for all workspaces"))
        .accepts(Required("UpdatePersonaRequest")).decodes(decode::update_persona);
    get    "/v1/workspaces" listWorkspaces Workspaces Json("WorkspaceList") needs(&["workspaces:read"], Filtered)
        .query(&["limit", "cursor"]);
    post   "/v1/workspaces" createWorkspace Workspaces
        Json("Workspace") needs(&["workspaces:write"], Every("workspaces:write for all workspaces"))
        .accepts(Required("CreateWorkspaceRequest")).decodes(decode::create_workspace).with_status(201);
    get    "/v1/workspaces/{workspace_id}" getWorkspace Workspaces Json("Workspace") needs(&["workspaces:read"], InPath(Workspace));
    patch  "/v1/workspaces/{workspace_id}" updateWorkspace Workspaces
        Json("Workspace") needs(&["workspaces:write"], InPath(Workspace))
        .accepts(Optional("UpdateWorkspaceRequest")).decodes(decode::update_workspace);
    get    "/v1/workspaces/{workspace_id}/files" readWorkspaceFile Workspaces
        JsonAnyOf(&["WorkspaceFile", "WorkspaceFileListing"]) needs(&["workspaces:read"], InPath(Workspace))
        .query(&["path"]).may_refuse(&[422]);
    put    "/v1/workspaces/{workspace_id}/files" writeWorkspaceFile Workspaces
        Json("WorkspaceFile") needs(&["workspaces:write"], InPath(Workspace))
        .query(&["path"]).accepts(Required("WriteWorkspaceFileRequest"));
    get    "/v1/sessions" listSessions Sessions Json("SessionList") needs(&["sessions:read"], Filtered)
        .query(&["workspace_id", "limit", "cursor", "order", "status", "persona_id", "created_after", "created_before", "metadata"]);
    post   "/v1/sessions" createSession Sessions Json("Session") needs(&["sessions:write"], InBody)
        .accepts(Optional("CreateSessionRequest")).decodes(decode::create_session).with_status(201);
    get    "/v1/sessions/{session_id}" getSession Sessions Json("Session") needs(&["sessions:read"], InPath(Session));
    patch  "/v1/sessions/{session_id}" updateSession Sessions Json("Session") needs(&["sessions:write"], InPath(Session))
        .accepts(Optional("UpdateSessionRequest")).decodes(decode::update_session);
    post   "/v1/sessions/{session_id}/close" closeSession Sessions Json("Session") needs(&["sessions:write"], InPath(Session))
        .accepts(Optional("JsonObject")).decodes(decode::close_session);
    get    "/v1/sessions/{session_id}/live-clients" listSessionLiveClients Sessions
        Json("LiveSessionClientList") needs(&["sessions:read"], InPath(Session));
    post   "/v1/sessions/{session_id}/attach" attachSessionClient Sessions
        Json("LiveSessionClientChange") needs(&["sessions:write"], InPath(Session)).accepts(Required("AttachSessionClientRequest"));
    post   "/v1/sessions/{session_id}/takeover" takeoverSessionClient Sessions
        Json("LiveSessionClientChange") needs(&["sessions:write"], InPath(Session)).accepts(Required("SessionClientRequest"));
    post   "/v1/sessions/{session_id}/detach" detachSessionClient Sessions
        Json("LiveSessionClientChange") needs(&["sessions:write"], InPath(Session)).accepts(Required("SessionClientRequest"));
    post   "/v1/sessions/{session_id}/heartbeat" heartbeatSessionClient Sessions
        Json("LiveSessionClientChange") needs(&["sessions:write"], InPath(Session)).accepts(Required("SessionClientRequest"));
    post   "/v1/sessions/{session_id}/fork" forkSession Sessions Json("Session") needs(&["sessions:write"], InPath(Session))
        .accepts(Optional("ForkSessionRequest")).decodes(decode::fork_session).with_status(201);
    post   "/v1/sessions/{session_id}/truncate" truncateSession Sessions
        Json("TruncateSessionResponse") needs(&["sessions:write"], InPath(Session))
        .accepts(Required("TruncateSessionRequest")).decodes(decode::truncate_session);
    get    "/v1/sessions/{session_id}/messages" listSessionMessages Messages
        Json("MessageList") needs(&["sessions:read"], InPath(Session)).query(&["limit", "cursor"]);
    post   "/v1/sessions/{session_id}/messages" appendSessionMessage Messages
        Json("Message") needs(&["sessions:write"], InPath(Session))
        .accepts(Required("AppendMessageRequest")).decodes(decode::append_message).with_status(201);
    get    "/v1/sessions/{session_id}/tasks" listSessionTasks Tasks Json("TaskList") needs(&["tasks:read"], InPath(Session))
        .query(&["limit", "cursor", "order", "status", "persona_id", "workflow", "created_after", "created_before", "metadata"]);
    post   "/v1/sessions/{session_id}/tasks" submitSessionTask Tasks Json("Task") needs(&["tasks:write"], InPath(Session))
        .accepts(Required("SubmitTaskRequest")).decodes(decode::submit_task).with_status(202);
    get    "/v1/sessions/{session_id}/branches" listSessionBranches Branches
        Json("BranchList") needs(&["sessions:read"], InPath(Session)).query(&["limit", "cursor"]);
    post   "/v1/sessions/{session_id}/branches" createSessionBranch Branches
        Json("Branch") needs(&["sessions:write"], InPath(Session))
        .accepts(Required("CreateBranchRequest")).decodes(decode::create_branch).with_status(201);
    get    "/v1/sessions/{session_id}/events" listSessionEvents Events Json("EventList") needs(&["events:read"], InPath(Session))
        .query(&["after_event_id", "limit", "cursor", "after", "order", "view"]);
    get    "/v1/sessions/{session_id}/events/stream" streamSessionEvents Events Stream needs(&["events:read"], InPath(Session))
        .query(&["after_event_id", "cursor", "after"]);
    get    "/v1/tasks" listTasks Tasks Json("TaskList") needs(&["tasks:read"], Filtered)
        .query(&["workspace_id", "session_id", "limit", "cursor", "order", "status", "persona_id", "workflow", "created_after", "created_before", "metadata"]);
    post   "/v1/tasks" submitTask Tasks Json("Task") needs(&["tasks:write"], InBody)
        .accepts(Required("SubmitTaskRequest")).decodes(decode::submit_task).with_status(202);
    get    "/v1/tasks/{task_id}" getTask Tasks Json("Task") needs(&["tasks:read"], InPath(Task));
    post   "/v1/tasks/{task_id}/cancel" cancelTask Tasks Json("Task") needs(&["tasks:write"], InPath(Task))
        .accepts(Optional("CancelTaskRequest")).decodes(decode::cancel_task);
    get    "/v1/permission-requests" listPermissionRequests Permissions
        Json("PermissionRequestList") needs(&["tasks:read"], Filtered)
        .query(&["session_id", "task_id", "limit", "cursor", "order", "status", "created_after", "created_before"]);
    get    "/v1/tasks/{task_id}/permission-requests" listTaskPermissionRequests Permissions
        Json("PermissionRequestList") needs(&["tasks:read"], InPath(Task))
        .query(&["limit", "cursor", "order", "status", "created_after", "created_before"]);
    get    "/v1/permission-requests/{request_id}" getPermissionRequest Permissions
        Json("PermissionRequest") needs(&["tasks:read"], InPath(Permission));
    post   "/v1/permission-requests/{request_id}/respond" respondPermissionRequest Permissions
        Json("PermissionRequest") needs_one_of(&["tasks:write", "approvals:write"], InPath(Permission))
        .accepts(Required("PermissionResponseRequest")).decodes(decode::respond_permission);
    get    "/v1/permissions/policy" getPermissionPolicy Permissions
        Json("PermissionPolicyResponse") needs(&["tasks:read"], Unplaced);
    put    "/v1/permissions/policy" installPermissionPolicy Permissions
        Json("PermissionPolicyResponse") needs(&["tasks:write"], Unplaced).accepts(Required("PermissionPolicy"));
    get    "/v1/permissions/rules" listPermissionRules Permissions Json("RememberRuleList") needs(&["tasks:read"], Unplaced);
    post   "/v1/permissions/rules" createPermissionRule Permissions Json("RememberRule") needs(&["tasks:write"], Unplaced)
        .accepts(Required("RememberRule"));
    delete "/v1/permissions/rules/{rule_id}" revokePermissionRule Permissions Nothing needs(&["tasks:write"], Unplaced)
        .with_status(204);
    get    "/v1/permissions/history" getPermissionHistory Permissions Json("AuditEntryList") needs(&["tasks:read"], Unplaced)
        .query(&["session_id", "workspace_id", "tenant_id", "actor", "outcome", "limit"]);
    post   "/v1/permissions/check" checkPermission Permissions Json("PermissionCheckResponse") needs(&["tasks:write"], Unplaced)
        .accepts(Required("PermissionCheckRequest"));
    post   "/v1/sessions/{session_id}/replay" replaySession Sessions
        Json("Session") needs(&["tasks:write", "sessions:write"], InPath(Session))
        .accepts(Optional("ReplayTaskRequest")).decodes(decode::replay_session).with_status(202).may_refuse(&[410]);
    post   "/v1/tasks/{task_id}/replay" replayTask Tasks Json("Task") needs(&["tasks:write"], InPath(Task))
        .accepts(Optional("ReplayTaskRequest")).decodes(decode::replay_task).with_status(202).may_refuse(&[410]);
    post   "/v1/tasks/{task_id}/retry" retryTask Tasks Json("Task") needs(&["tasks:write"], InPath(Task))
        .accepts(Optional("RetryTaskRequest")).decodes(decode::retry_task).with_status(202).may_refuse(&[410]);
    post   "/v1/tasks/{task_id}/messages" appendTaskMessage Messages
        JsonAnyOf(&["Message", "PermissionRequest"]) needs_one_of(&["tasks:write", "approvals:write"], InPath(Task))
        .accepts(Required("AppendTaskMessageRequest")).decodes(decode::task_message).with_status(201).or_status(&[200]);
    get    "/v1/tasks/{task_id}/events" listTaskEvents Events Json("EventList") needs(&["events:read"], InPath(Task))
        .query(&["after_event_id", "limit", "cursor", "after", "order", "view"]);
    get    "/v1/tasks/{task_id}/stream" streamTaskEvents Events Stream needs(&["events:read"], InPath(Task))
        .query(&["after_event_id", "cursor", "after"]);
    get    "/v1/tasks/{task_id}/receipts" listTaskReceipts Receipts Json("ReceiptList") needs(&["receipts:read"], InPath(Task))
        .query(&["limit", "cursor"]);
    get    "/v1/branches/{branch_id}" getBranch Branches Json("Branch") needs(&["sessions:read"], InPath(Branch));
    get    "/v1/messages/{message_id}" getMessage Messages Json("Message") needs(&["sessions:read"], InPath(Message));
    get    "/v1/artifacts" listArtifacts Artifacts Json("ArtifactList") needs(&["artifacts:read"], Filtered)
        .query(&["workspace_id", "session_id", "task_id", "limit", "cursor", "order", "created_after", "created_before", "metadata"]);
    post   "/v1/artifacts" registerArtifact Artifacts Json("Artifact") needs(&["artifacts:write"], InBody)
        .accepts(Required("RegisterArtifactRequest")).decodes(decode::register_artifact).with_status(201);
    get    "/v1/artifacts/{artifact_id}" getArtifact Artifacts Json("Artifact") needs(&["artifacts:read"], InPath(Artifact));
    get    "/v1/artifacts/{artifact_id}/content" downloadArtifactContent Artifacts
        Bytes needs(&["artifacts:read"], InPath(Artifact)).query(&["member"]);
    get    "/v1/events" listEvents Events Json("EventList") needs(&["events:read"], Filtered)
        .query(&["workspace_id", "session_id", "task_id", "order", "view", "after_event_id", "limit", "cursor", "after"]);
    get    "/v1/events/{event_id}" getEvent Events Json("Event") needs(&["events:read"], Filtered);
    get    "/v1/events/stream" streamEvents Events Stream needs(&["events:read"], Filtered)
        .query(&["workspace_id", "session_id", "task_id", "after_event_id", "cursor", "after"]);
    get    "/v1/receipts/{receipt_id}" getReceipt Receipts Json("Receipt") needs(&["receipts:read"], InPath(Receipt))
        .or_types(&[MEDIA_TYPE, MEDIA_TYPE_CBOR]).query(&["view"]);
    post   "/v1/receipts/{receipt_id}/verify" verifyReceipt Receipts
        Json("ReceiptVerification") needs(&["receipts:read"], InPath(Receipt)).accepts(Optional("VerifyReceiptRequest"))
        .decodes(decode::verify_receipt);
    get    "/v1/memories" listMemories Memories Json("MemoryList") needs(&[], Unplaced)
        .query(&["workspace_id", "session_id", "limit", "cursor"]);
    post   "/v1/memories" createMemory Memories Json("Memory") needs(&[], Unplaced)
        .accepts(Required("CreateMemoryRequest")).with_status(201);
    get    "/v1/memories/{memory_id}" getMemory Memories Json("Memory") needs(&[], Unplaced);
    delete "/v1/memories/{memory_id}" deleteMemory Memories Nothing needs(&[], Unplaced).with_status(204);
    get    "/v1/vaults" listVaults Vaults Json("VaultList") needs(&["vaults:read"], Filtered)
        .query(&["workspace_id", "limit", "cursor"]);
    put    "/v1/vaults/{vault_id}/secrets/{name}" putSecret Vaults
        Nothing needs(&["vaults:write"], Every("vaults:write for all workspaces"))
        .accepts(Required("PutSecretRequest")).with_status(204);
    delete "/v1/vaults/{vault_id}/secrets/{name}" deleteSecret Vaults
        Nothing needs(&["vaults:write"], Every("vaults:write for all workspaces")).with_status(204);
    post   "/v1/vaults" createVault Vaults Json("Vault") needs(&["vaults:write"], InBody)
        .accepts(Required("CreateVaultRequest")).decodes(decode::create_vault).with_status(201);
    get    "/v1/vaults/{vault_id}" getVault Vaults Json("Vault") needs(&["vaults:read"], InPath(Vault));
    get    "/v1/connectors" listConnectors Connectors Json("ConnectorList") needs(&["connectors:read"], Filtered)
        .query(&["workspace_id", "limit", "cursor"]);
    get    "/v1/connectors/{connector_id}" getConnector Connectors Json("Connector") needs(&["connectors:read"], Filtered);
    get    "/v1/skills" listSkills Skills Json("SkillList") needs(&["skills:read"], Unplaced).query(&["limit", "cursor"]);
    get    "/v1/skills/{skill_id}" getSkill Skills Json("Skill") needs(&["skills:read"], Unplaced);
    get    "/v1/outcomes" listOutcomes Outcomes Json("OutcomeList") needs(&["tasks:read"], Filtered)
        .query(&["task_id", "limit", "cursor"]);
    get    "/v1/outcomes/{outcome_id}" getOutcome Outcomes Json("Outcome") needs(&["tasks:read"], InPath(Outcome));
    get    "/v1/quotas" listQuotas Quotas Json("QuotaList") needs(&[], Unplaced).query(&["limit", "cursor"]);
    get    "/v1/quotas/{quota_id}" getQuota Quotas Json("Quota") needs(&[], Unplaced);
    put    "/v1/artifacts/{artifact_id}/content" uploadArtifactContent Artifacts
        Json("Artifact") needs(&["artifacts:write"], InPath(Artifact)).accepts(Octets);
    get    "/healthz" getLiveness Operation PlainText PUBLIC;
    get    "/readyz" getReadiness Operation PlainText PUBLIC;
    get    "/metrics" getMetrics Operation PlainText PUBLIC;
}
