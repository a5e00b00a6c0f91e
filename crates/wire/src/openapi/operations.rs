//! Every operation: its method and path, what it asks of its caller, what it takes, how that is read, what it gives.

use super::operation::{Body::*, Gives::*, Operation};
use crate::access::Place::*;
use crate::access::{PUBLIC, needs, needs_one_of};
use crate::decode;
use crate::receipt::{MEDIA_TYPE, MEDIA_TYPE_CBOR};
use domain::ResourceKind;

/// Every operation of the contract, and those of the server itself.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation::new(
        "get",
        "/health",
        "getHealth",
        "Runtime",
        Json("Health"),
        PUBLIC,
    ),
    Operation::new(
        "get",
        "/version",
        "getVersion",
        "Runtime",
        Json("RuntimeVersion"),
        PUBLIC,
    ),
    Operation::new("get", "/", "getStartPage", "Discovery", Html, PUBLIC),
    Operation::new(
        "get",
        "/openapi.json",
        "getOpenApiDocument",
        "Discovery",
        AnyObject,
        PUBLIC,
    ),
    Operation::new(
        "get",
        "/v1",
        "getProtocolDiscovery",
        "Discovery",
        Json("Discovery"),
        PUBLIC,
    ),
    Operation::new(
        "get",
        "/v1/runtime",
        "getRuntime",
        "Runtime",
        Json("RuntimeMetadata"),
        needs(&[], Unplaced),
    ),
    Operation::new(
        "get",
        "/v1/capabilities",
        "listCapabilities",
        "Runtime",
        Json("CapabilitySummary"),
        needs(&[], Unplaced),
    ),
    Operation::new(
        "get",
        "/v1/provider-catalog",
        "getProviderCatalog",
        "Runtime",
        Json("ProviderCatalog"),
        needs(&[], Unplaced),
    ),
    Operation::new(
        "get",
        "/v1/tools",
        "listTools",
        "Tools",
        Json("ToolList"),
        needs(&[], Unplaced),
    )
    .query(&["limit", "cursor"]),
    Operation::new(
        "get",
        "/v1/tools/{tool_id}",
        "getTool",
        "Tools",
        Json("Tool"),
        needs(&[], Unplaced),
    ),
    Operation::new(
        "get",
        "/v1/agent-card",
        "getAgentCard",
        "Discovery",
        Json("HarnAgentCard"),
        PUBLIC,
    ),
    Operation::new(
        "get",
        "/v1/personas",
        "listPersonas",
        "Personas",
        Json("PersonaList"),
        needs(&["personas:read"], Unplaced),
    )
    .query(&["limit", "cursor"]),
    Operation::new(
        "post",
        "/v1/personas",
        "createPersona",
        "Personas",
        Json("Persona"),
        needs(
            &["personas:write"],
            Every("personas:write for all workspaces"),
        ),
    )
    .takes(Required("CreatePersonaRequest"))
    .decodes(decode::create_persona)
    .with_status(201),
    Operation::new(
        "get",
        "/v1/personas/{persona_id}",
        "getPersona",
        "Personas",
        Json("Persona"),
        needs(&["personas:read"], Unplaced),
    ),
    Operation::new(
        "patch",
        "/v1/personas/{persona_id}",
        "updatePersona",
        "Personas",
        Json("Persona"),
        needs(
            &["personas:write"],
            Every("personas:write for all workspaces"),
        ),
    )
    .takes(Required("UpdatePersonaRequest"))
    .decodes(decode::update_persona),
    Operation::new(
        "get",
        "/v1/workspaces",
        "listWorkspaces",
        "Workspaces",
        Json("WorkspaceList"),
        needs(&["workspaces:read"], Filtered),
    )
    .query(&["limit", "cursor"]),
    Operation::new(
        "post",
        "/v1/workspaces",
        "createWorkspace",
        "Workspaces",
        Json("Workspace"),
        needs(
            &["workspaces:write"],
            Every("workspaces:write for all workspaces"),
        ),
    )
    .takes(Required("CreateWorkspaceRequest"))
    .decodes(decode::create_workspace)
    .with_status(201),
    Operation::new(
        "get",
        "/v1/workspaces/{workspace_id}",
        "getWorkspace",
        "Workspaces",
        Json("Workspace"),
        needs(&["workspaces:read"], InPath(ResourceKind::Workspace)),
    ),
    Operation::new(
        "patch",
        "/v1/workspaces/{workspace_id}",
        "updateWorkspace",
        "Workspaces",
        Json("Workspace"),
        needs(&["workspaces:write"], InPath(ResourceKind::Workspace)),
    )
    .takes(Optional("UpdateWorkspaceRequest"))
    .decodes(decode::update_workspace),
    Operation::new(
        "get",
        "/v1/workspaces/{workspace_id}/files",
        "readWorkspaceFile",
        "Workspaces",
        JsonAnyOf(&["WorkspaceFile", "WorkspaceFileListing"]),
        needs(&["workspaces:read"], InPath(ResourceKind::Workspace)),
    )
    .query(&["path"])
    .may_refuse(&[422]),
    Operation::new(
        "put",
        "/v1/workspaces/{workspace_id}/files",
        "writeWorkspaceFile",
        "Workspaces",
        Json("WorkspaceFile"),
        needs(&["workspaces:write"], InPath(ResourceKind::Workspace)),
    )
    .query(&["path"])
    .takes(Required("WriteWorkspaceFileRequest")),
    Operation::new(
        "get",
        "/v1/sessions",
        "listSessions",
        "Sessions",
        Json("SessionList"),
        needs(&["sessions:read"], Filtered),
    )
    .query(&[
        "workspace_id",
        "limit",
        "cursor",
        "order",
        "status",
        "persona_id",
        "created_after",
        "created_before",
        "metadata",
    ]),
    Operation::new(
        "post",
        "/v1/sessions",
        "createSession",
        "Sessions",
        Json("Session"),
        needs(&["sessions:write"], InBody),
    )
    .takes(Optional("CreateSessionRequest"))
    .decodes(decode::create_session)
    .with_status(201),
    Operation::new(
        "get",
        "/v1/sessions/{session_id}",
        "getSession",
        "Sessions",
        Json("Session"),
        needs(&["sessions:read"], InPath(ResourceKind::Session)),
    ),
    Operation::new(
        "patch",
        "/v1/sessions/{session_id}",
        "updateSession",
        "Sessions",
        Json("Session"),
        needs(&["sessions:write"], InPath(ResourceKind::Session)),
    )
    .takes(Optional("UpdateSessionRequest"))
    .decodes(decode::update_session),
    Operation::new(
        "post",
        "/v1/sessions/{session_id}/close",
        "closeSession",
        "Sessions",
        Json("Session"),
        needs(&["sessions:write"], InPath(ResourceKind::Session)),
    )
    .takes(Optional("JsonObject"))
    .decodes(decode::close_session),
    Operation::new(
        "get",
        "/v1/sessions/{session_id}/live-clients",
        "listSessionLiveClients",
        "Sessions",
        Json("LiveSessionClientList"),
        needs(&["sessions:read"], InPath(ResourceKind::Session)),
    ),
    Operation::new(
        "post",
        "/v1/sessions/{session_id}/attach",
        "attachSessionClient",
        "Sessions",
        Json("LiveSessionClientChange"),
        needs(&["sessions:write"], InPath(ResourceKind::Session)),
    )
    .takes(Required("AttachSessionClientRequest")),
    Operation::new(
        "post",
        "/v1/sessions/{session_id}/takeover",
        "takeoverSessionClient",
        "Sessions",
        Json("LiveSessionClientChange"),
        needs(&["sessions:write"], InPath(ResourceKind::Session)),
    )
    .takes(Required("SessionClientRequest")),
    Operation::new(
        "post",
        "/v1/sessions/{session_id}/detach",
        "detachSessionClient",
        "Sessions",
        Json("LiveSessionClientChange"),
        needs(&["sessions:write"], InPath(ResourceKind::Session)),
    )
    .takes(Required("SessionClientRequest")),
    Operation::new(
        "post",
        "/v1/sessions/{session_id}/heartbeat",
        "heartbeatSessionClient",
        "Sessions",
        Json("LiveSessionClientChange"),
        needs(&["sessions:write"], InPath(ResourceKind::Session)),
    )
    .takes(Required("SessionClientRequest")),
    Operation::new(
        "post",
        "/v1/sessions/{session_id}/fork",
        "forkSession",
        "Sessions",
        Json("Session"),
        needs(&["sessions:write"], InPath(ResourceKind::Session)),
    )
    .takes(Optional("ForkSessionRequest"))
    .decodes(decode::fork_session)
    .with_status(201),
    Operation::new(
        "post",
        "/v1/sessions/{session_id}/truncate",
        "truncateSession",
        "Sessions",
        Json("TruncateSessionResponse"),
        needs(&["sessions:write"], InPath(ResourceKind::Session)),
    )
    .takes(Required("TruncateSessionRequest"))
    .decodes(decode::truncate_session),
    Operation::new(
        "get",
        "/v1/sessions/{session_id}/messages",
        "listSessionMessages",
        "Messages",
        Json("MessageList"),
        needs(&["sessions:read"], InPath(ResourceKind::Session)),
    )
    .query(&["limit", "cursor"]),
    Operation::new(
        "post",
        "/v1/sessions/{session_id}/messages",
        "appendSessionMessage",
        "Messages",
        Json("Message"),
        needs(&["sessions:write"], InPath(ResourceKind::Session)),
    )
    .takes(Required("AppendMessageRequest"))
    .decodes(decode::append_message)
    .with_status(201),
    Operation::new(
        "get",
        "/v1/sessions/{session_id}/tasks",
        "listSessionTasks",
        "Tasks",
        Json("TaskList"),
        needs(&["tasks:read"], InPath(ResourceKind::Session)),
    )
    .query(&[
        "limit",
        "cursor",
        "order",
        "status",
        "persona_id",
        "workflow",
        "created_after",
        "created_before",
        "metadata",
    ]),
    Operation::new(
        "post",
        "/v1/sessions/{session_id}/tasks",
        "submitSessionTask",
        "Tasks",
        Json("Task"),
        needs(&["tasks:write"], InPath(ResourceKind::Session)),
    )
    .takes(Required("SubmitTaskRequest"))
    .decodes(decode::submit_task)
    .with_status(202),
    Operation::new(
        "get",
        "/v1/sessions/{session_id}/branches",
        "listSessionBranches",
        "Branches",
        Json("BranchList"),
        needs(&["sessions:read"], InPath(ResourceKind::Session)),
    )
    .query(&["limit", "cursor"]),
    Operation::new(
        "post",
        "/v1/sessions/{session_id}/branches",
        "createSessionBranch",
        "Branches",
        Json("Branch"),
        needs(&["sessions:write"], InPath(ResourceKind::Session)),
    )
    .takes(Required("CreateBranchRequest"))
    .decodes(decode::create_branch)
    .with_status(201),
    Operation::new(
        "get",
        "/v1/sessions/{session_id}/events",
        "listSessionEvents",
        "Events",
        Json("EventList"),
        needs(&["events:read"], InPath(ResourceKind::Session)),
    )
    .query(&[
        "after_event_id",
        "limit",
        "cursor",
        "after",
        "order",
        "view",
    ]),
    Operation::new(
        "get",
        "/v1/sessions/{session_id}/events/stream",
        "streamSessionEvents",
        "Events",
        Stream,
        needs(&["events:read"], InPath(ResourceKind::Session)),
    )
    .query(&["after_event_id", "cursor", "after"]),
    Operation::new(
        "get",
        "/v1/tasks",
        "listTasks",
        "Tasks",
        Json("TaskList"),
        needs(&["tasks:read"], Filtered),
    )
    .query(&[
        "workspace_id",
        "session_id",
        "limit",
        "cursor",
        "order",
        "status",
        "persona_id",
        "workflow",
        "created_after",
        "created_before",
        "metadata",
    ]),
    Operation::new(
        "post",
        "/v1/tasks",
        "submitTask",
        "Tasks",
        Json("Task"),
        needs(&["tasks:write"], InBody),
    )
    .takes(Required("SubmitTaskRequest"))
    .decodes(decode::submit_task)
    .with_status(202),
    Operation::new(
        "get",
        "/v1/tasks/{task_id}",
        "getTask",
        "Tasks",
        Json("Task"),
        needs(&["tasks:read"], InPath(ResourceKind::Task)),
    ),
    Operation::new(
        "post",
        "/v1/tasks/{task_id}/cancel",
        "cancelTask",
        "Tasks",
        Json("Task"),
        needs(&["tasks:write"], InPath(ResourceKind::Task)),
    )
    .takes(Optional("CancelTaskRequest"))
    .decodes(decode::cancel_task),
    Operation::new(
        "get",
        "/v1/permission-requests",
        "listPermissionRequests",
        "Permissions",
        Json("PermissionRequestList"),
        needs(&["tasks:read"], Filtered),
    )
    .query(&[
        "session_id",
        "task_id",
        "limit",
        "cursor",
        "order",
        "status",
        "created_after",
        "created_before",
    ]),
    Operation::new(
        "get",
        "/v1/tasks/{task_id}/permission-requests",
        "listTaskPermissionRequests",
        "Permissions",
        Json("PermissionRequestList"),
        needs(&["tasks:read"], InPath(ResourceKind::Task)),
    )
    .query(&[
        "limit",
        "cursor",
        "order",
        "status",
        "created_after",
        "created_before",
    ]),
    Operation::new(
        "get",
        "/v1/permission-requests/{request_id}",
        "getPermissionRequest",
        "Permissions",
        Json("PermissionRequest"),
        needs(&["tasks:read"], InPath(ResourceKind::Permission)),
    ),
    Operation::new(
        "post",
        "/v1/permission-requests/{request_id}/respond",
        "respondPermissionRequest",
        "Permissions",
        Json("PermissionRequest"),
        needs_one_of(
            &["tasks:write", "approvals:write"],
            InPath(ResourceKind::Permission),
        ),
    )
    .takes(Required("PermissionResponseRequest"))
    .decodes(decode::respond_permission),
    Operation::new(
        "get",
        "/v1/permissions/policy",
        "getPermissionPolicy",
        "Permissions",
        Json("PermissionPolicyResponse"),
        needs(&["tasks:read"], Unplaced),
    ),
    Operation::new(
        "put",
        "/v1/permissions/policy",
        "installPermissionPolicy",
        "Permissions",
        Json("PermissionPolicyResponse"),
        needs(&["tasks:write"], Unplaced),
    )
    .takes(Required("PermissionPolicy")),
    Operation::new(
        "get",
        "/v1/permissions/rules",
        "listPermissionRules",
        "Permissions",
        Json("RememberRuleList"),
        needs(&["tasks:read"], Unplaced),
    ),
    Operation::new(
        "post",
        "/v1/permissions/rules",
        "createPermissionRule",
        "Permissions",
        Json("RememberRule"),
        needs(&["tasks:write"], Unplaced),
    )
    .takes(Required("RememberRule")),
    Operation::new(
        "delete",
        "/v1/permissions/rules/{rule_id}",
        "revokePermissionRule",
        "Permissions",
        Nothing,
        needs(&["tasks:write"], Unplaced),
    )
    .with_status(204),
    Operation::new(
        "get",
        "/v1/permissions/history",
        "getPermissionHistory",
        "Permissions",
        Json("AuditEntryList"),
        needs(&["tasks:read"], Unplaced),
    )
    .query(&[
        "session_id",
        "workspace_id",
        "tenant_id",
        "actor",
        "outcome",
        "limit",
    ]),
    Operation::new(
        "post",
        "/v1/permissions/check",
        "checkPermission",
        "Permissions",
        Json("PermissionCheckResponse"),
        needs(&["tasks:write"], Unplaced),
    )
    .takes(Required("PermissionCheckRequest")),
    Operation::new(
        "post",
        "/v1/sessions/{session_id}/replay",
        "replaySession",
        "Sessions",
        Json("Session"),
        needs(
            &["tasks:write", "sessions:write"],
            InPath(ResourceKind::Session),
        ),
    )
    .takes(Optional("ReplayTaskRequest"))
    .decodes(decode::replay_session)
    .with_status(202)
    .may_refuse(&[410]),
    Operation::new(
        "post",
        "/v1/tasks/{task_id}/replay",
        "replayTask",
        "Tasks",
        Json("Task"),
        needs(&["tasks:write"], InPath(ResourceKind::Task)),
    )
    .takes(Optional("ReplayTaskRequest"))
    .decodes(decode::replay_task)
    .with_status(202)
    .may_refuse(&[410]),
    Operation::new(
        "post",
        "/v1/tasks/{task_id}/retry",
        "retryTask",
        "Tasks",
        Json("Task"),
        needs(&["tasks:write"], InPath(ResourceKind::Task)),
    )
    .takes(Optional("RetryTaskRequest"))
    .decodes(decode::retry_task)
    .with_status(202)
    .may_refuse(&[410]),
    Operation::new(
        "post",
        "/v1/tasks/{task_id}/messages",
        "appendTaskMessage",
        "Messages",
        JsonAnyOf(&["Message", "PermissionRequest"]),
        needs_one_of(
            &["tasks:write", "approvals:write"],
            InPath(ResourceKind::Task),
        ),
    )
    .takes(Required("AppendTaskMessageRequest"))
    .decodes(decode::task_message)
    .with_status(201)
    .or_status(&[200]),
    Operation::new(
        "get",
        "/v1/tasks/{task_id}/events",
        "listTaskEvents",
        "Events",
        Json("EventList"),
        needs(&["events:read"], InPath(ResourceKind::Task)),
    )
    .query(&[
        "after_event_id",
        "limit",
        "cursor",
        "after",
        "order",
        "view",
    ]),
    Operation::new(
        "get",
        "/v1/tasks/{task_id}/stream",
        "streamTaskEvents",
        "Events",
        Stream,
        needs(&["events:read"], InPath(ResourceKind::Task)),
    )
    .query(&["after_event_id", "cursor", "after"]),
    Operation::new(
        "get",
        "/v1/tasks/{task_id}/receipts",
        "listTaskReceipts",
        "Receipts",
        Json("ReceiptList"),
        needs(&["receipts:read"], InPath(ResourceKind::Task)),
    )
    .query(&["limit", "cursor"]),
    Operation::new(
        "get",
        "/v1/branches/{branch_id}",
        "getBranch",
        "Branches",
        Json("Branch"),
        needs(&["sessions:read"], InPath(ResourceKind::Branch)),
    ),
    Operation::new(
        "get",
        "/v1/messages/{message_id}",
        "getMessage",
        "Messages",
        Json("Message"),
        needs(&["sessions:read"], InPath(ResourceKind::Message)),
    ),
    Operation::new(
        "get",
        "/v1/artifacts",
        "listArtifacts",
        "Artifacts",
        Json("ArtifactList"),
        needs(&["artifacts:read"], Filtered),
    )
    .query(&[
        "workspace_id",
        "session_id",
        "task_id",
        "limit",
        "cursor",
        "order",
        "created_after",
        "created_before",
        "metadata",
    ]),
    Operation::new(
        "post",
        "/v1/artifacts",
        "registerArtifact",
        "Artifacts",
        Json("Artifact"),
        needs(&["artifacts:write"], InBody),
    )
    .takes(Required("RegisterArtifactRequest"))
    .decodes(decode::register_artifact)
    .with_status(201),
    Operation::new(
        "get",
        "/v1/artifacts/{artifact_id}",
        "getArtifact",
        "Artifacts",
        Json("Artifact"),
        needs(&["artifacts:read"], InPath(ResourceKind::Artifact)),
    ),
    Operation::new(
        "get",
        "/v1/artifacts/{artifact_id}/content",
        "downloadArtifactContent",
        "Artifacts",
        Bytes,
        needs(&["artifacts:read"], InPath(ResourceKind::Artifact)),
    )
    .query(&["member"]),
    Operation::new(
        "get",
        "/v1/events",
        "listEvents",
        "Events",
        Json("EventList"),
        needs(&["events:read"], Filtered),
    )
    .query(&[
        "workspace_id",
        "session_id",
        "task_id",
        "order",
        "view",
        "after_event_id",
        "limit",
        "cursor",
        "after",
    ]),
    Operation::new(
        "get",
        "/v1/events/{event_id}",
        "getEvent",
        "Events",
        Json("Event"),
        needs(&["events:read"], Filtered),
    ),
    Operation::new(
        "get",
        "/v1/events/stream",
        "streamEvents",
        "Events",
        Stream,
        needs(&["events:read"], Filtered),
    )
    .query(&[
        "workspace_id",
        "session_id",
        "task_id",
        "after_event_id",
        "cursor",
        "after",
    ]),
    Operation::new(
        "get",
        "/v1/receipts/{receipt_id}",
        "getReceipt",
        "Receipts",
        Json("Receipt"),
        needs(&["receipts:read"], InPath(ResourceKind::Receipt)),
    )
    .or_types(&[MEDIA_TYPE, MEDIA_TYPE_CBOR])
    .query(&["view"]),
    Operation::new(
        "post",
        "/v1/receipts/{receipt_id}/verify",
        "verifyReceipt",
        "Receipts",
        Json("ReceiptVerification"),
        needs(&["receipts:read"], InPath(ResourceKind::Receipt)),
    )
    .takes(Optional("VerifyReceiptRequest")),
    Operation::new(
        "get",
        "/v1/memories",
        "listMemories",
        "Memories",
        Json("MemoryList"),
        needs(&[], Unplaced),
    )
    .query(&["workspace_id", "session_id", "limit", "cursor"]),
    Operation::new(
        "post",
        "/v1/memories",
        "createMemory",
        "Memories",
        Json("Memory"),
        needs(&[], Unplaced),
    )
    .takes(Required("CreateMemoryRequest"))
    .with_status(201),
    Operation::new(
        "get",
        "/v1/memories/{memory_id}",
        "getMemory",
        "Memories",
        Json("Memory"),
        needs(&[], Unplaced),
    ),
    Operation::new(
        "delete",
        "/v1/memories/{memory_id}",
        "deleteMemory",
        "Memories",
        Nothing,
        needs(&[], Unplaced),
    )
    .with_status(204),
    Operation::new(
        "get",
        "/v1/vaults",
        "listVaults",
        "Vaults",
        Json("VaultList"),
        needs(&["vaults:read"], Filtered),
    )
    .query(&["workspace_id", "limit", "cursor"]),
    Operation::new(
        "put",
        "/v1/vaults/{vault_id}/secrets/{name}",
        "putSecret",
        "Vaults",
        Nothing,
        needs(&["vaults:write"], Every("vaults:write for all workspaces")),
    )
    .takes(Required("PutSecretRequest"))
    .with_status(204),
    Operation::new(
        "delete",
        "/v1/vaults/{vault_id}/secrets/{name}",
        "deleteSecret",
        "Vaults",
        Nothing,
        needs(&["vaults:write"], Every("vaults:write for all workspaces")),
    )
    .with_status(204),
    Operation::new(
        "post",
        "/v1/vaults",
        "createVault",
        "Vaults",
        Json("Vault"),
        needs(&["vaults:write"], InBody),
    )
    .takes(Required("CreateVaultRequest"))
    .decodes(decode::create_vault)
    .with_status(201),
    Operation::new(
        "get",
        "/v1/vaults/{vault_id}",
        "getVault",
        "Vaults",
        Json("Vault"),
        needs(&["vaults:read"], InPath(ResourceKind::Vault)),
    ),
    Operation::new(
        "get",
        "/v1/connectors",
        "listConnectors",
        "Connectors",
        Json("ConnectorList"),
        needs(&["connectors:read"], Filtered),
    )
    .query(&["workspace_id", "limit", "cursor"]),
    Operation::new(
        "get",
        "/v1/connectors/{connector_id}",
        "getConnector",
        "Connectors",
        Json("Connector"),
        needs(&["connectors:read"], Filtered),
    ),
    Operation::new(
        "get",
        "/v1/skills",
        "listSkills",
        "Skills",
        Json("SkillList"),
        needs(&["skills:read"], Unplaced),
    )
    .query(&["limit", "cursor"]),
    Operation::new(
        "get",
        "/v1/skills/{skill_id}",
        "getSkill",
        "Skills",
        Json("Skill"),
        needs(&["skills:read"], Unplaced),
    ),
    Operation::new(
        "get",
        "/v1/outcomes",
        "listOutcomes",
        "Outcomes",
        Json("OutcomeList"),
        needs(&["tasks:read"], Filtered),
    )
    .query(&["task_id", "limit", "cursor"]),
    Operation::new(
        "get",
        "/v1/outcomes/{outcome_id}",
        "getOutcome",
        "Outcomes",
        Json("Outcome"),
        needs(&["tasks:read"], InPath(ResourceKind::Outcome)),
    ),
    Operation::new(
        "get",
        "/v1/quotas",
        "listQuotas",
        "Quotas",
        Json("QuotaList"),
        needs(&[], Unplaced),
    )
    .query(&["limit", "cursor"]),
    Operation::new(
        "get",
        "/v1/quotas/{quota_id}",
        "getQuota",
        "Quotas",
        Json("Quota"),
        needs(&[], Unplaced),
    ),
    Operation::new(
        "put",
        "/v1/artifacts/{artifact_id}/content",
        "uploadArtifactContent",
        "Artifacts",
        Json("Artifact"),
        needs(&["artifacts:write"], InPath(ResourceKind::Artifact)),
    )
    .takes(Octets),
    Operation::new(
        "get",
        "/healthz",
        "getLiveness",
        "Operation",
        PlainText,
        PUBLIC,
    ),
    Operation::new(
        "get",
        "/readyz",
        "getReadiness",
        "Operation",
        PlainText,
        PUBLIC,
    ),
    Operation::new(
        "get",
        "/metrics",
        "getMetrics",
        "Operation",
        PlainText,
        PUBLIC,
    ),
];
