//! Request bodies.

use domain::PersonaMemory;

use super::super::schema::{Schema, Shape::*, Type::*, opt, req};
use crate::decode::{
    CAPABILITIES_MAX, CAPABILITY_BYTES_MAX, LIST_LEN_MAX, NAME_BYTES_MAX, PROMPT_BYTES_MAX,
    SUMMARY_BYTES_MAX, TEXT_BYTES_MAX, URI_BYTES_MAX,
};

pub(in crate::openapi) const SCHEMAS: &[Schema] = &[
    Schema {
        name: "CreatePersonaRequest",
        shape: Plain(&[
            // Refused with 400: no module is run here.
            opt("module_ref", Text),
            req("name", Name(NAME_BYTES_MAX)),
            req("version", Name(NAME_BYTES_MAX)),
            req("entry_workflow", Name(NAME_BYTES_MAX)),
            req("description", TextMax(SUMMARY_BYTES_MAX)),
            req("autonomy_tier", Ref("AutonomyTier")),
            req(
                "receipt_policy",
                Words(&["required", "optional", "disabled"]),
            ),
            opt("tools", ListMax(LIST_LEN_MAX, &Id)),
            opt("capabilities", ListMax(LIST_LEN_MAX, &Id)),
            opt("triggers", ListMax(LIST_LEN_MAX, &Object)),
            opt("schedules", ListMax(LIST_LEN_MAX, &Object)),
            opt("handoffs", ListMax(LIST_LEN_MAX, &Id)),
            opt("context_packs", ListMax(LIST_LEN_MAX, &Id)),
            opt("evals", ListMax(LIST_LEN_MAX, &Id)),
            opt("owner", OrNull(&TextMax(TEXT_BYTES_MAX))),
            opt("model_policy", Metadata),
            opt("rollout_policy", Metadata),
            opt("quota_id", OrNull(&Id)),
            opt("system_prompt", OrNull(&TextMax(PROMPT_BYTES_MAX))),
            opt("model", Ref("PersonaModel")),
            opt("limits", Ref("PersonaLimits")),
            opt("memory", Words(PersonaMemory::WORDS)),
            opt("isolated_replay", Boolean),
            opt("forbids_replay", Boolean),
            opt("contracts", OrNull(&Name(NAME_BYTES_MAX))),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "UpdatePersonaRequest",
        shape: Plain(&[
            opt("description", TextMax(SUMMARY_BYTES_MAX)),
            opt(
                "receipt_policy",
                Words(&["required", "optional", "disabled"]),
            ),
            opt("quota_id", OrNull(&Id)),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "WriteWorkspaceFileRequest",
        shape: Plain(&[
            opt("path", Text),
            req("content", Text),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "CreateWorkspaceRequest",
        shape: Plain(&[
            req("name", TextMax(TEXT_BYTES_MAX)),
            req("root", TextMax(TEXT_BYTES_MAX)),
            opt("image", OrNull(&TextMax(TEXT_BYTES_MAX))),
            opt("packages", ListMax(LIST_LEN_MAX, &Id)),
            opt("network_policy", Object),
            opt("sandbox_backend", OrNull(&TextMax(TEXT_BYTES_MAX))),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "UpdateWorkspaceRequest",
        shape: Plain(&[
            opt("name", TextMax(TEXT_BYTES_MAX)),
            opt(
                "capabilities",
                ListMax(CAPABILITIES_MAX, &TextMax(CAPABILITY_BYTES_MAX)),
            ),
            opt("quota_id", OrNull(&Id)),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "CreateSessionRequest",
        shape: Plain(&[
            opt("workspace_id", Id),
            opt(
                "mode_id",
                OrNull(&Words(&["ask", "architect", "code", "shadow"])),
            ),
            opt("persona_id", OrNull(&Id)),
            opt("model_policy", OrNull(&Ref("SessionModelPolicy"))),
            opt("vault_ids", ListMax(LIST_LEN_MAX, &Id)),
            opt("memory_ids", ListMax(LIST_LEN_MAX, &Id)),
            opt("skill_ids", ListMax(LIST_LEN_MAX, &Id)),
            opt("initial_messages", List(&Ref("MessageInput"))),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "UpdateSessionRequest",
        shape: Plain(&[
            opt("summary", OrNull(&TextMax(SUMMARY_BYTES_MAX))),
            opt("model_policy", OrNull(&Ref("SessionModelPolicy"))),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "ForkSessionRequest",
        shape: Plain(&[
            opt("at_event_id", OrNull(&Id)),
            opt("branch_id", OrNull(&Id)),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "TruncateSessionRequest",
        shape: Plain(&[
            req("keep_first", Count),
            opt("reason", TextMax(TEXT_BYTES_MAX)),
        ]),
    },
    Schema {
        name: "AttachSessionClientRequest",
        shape: Plain(&[
            req("client_id", Text),
            opt("mode", Words(&["observer", "controller"])),
            opt("takeover", Boolean),
            opt("prompt_injection", Boolean),
            opt("permission_routing", Boolean),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "SessionClientRequest",
        shape: Plain(&[
            req("client_id", Text),
            opt("reason", OrNull(&Text)),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "SubmitTaskRequest",
        shape: Plain(&[
            opt("session_id", Id),
            opt("workspace_id", Id),
            opt("persona_id", OrNull(&Id)),
            opt("branch_id", OrNull(&Id)),
            opt("parent_task_id", OrNull(&Id)),
            req("input", Object),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "CancelTaskRequest",
        shape: Plain(&[opt("reason", OrNull(&TextMax(TEXT_BYTES_MAX)))]),
    },
    Schema {
        name: "PermissionResponseRequest",
        shape: Plain(&[
            opt("approved", Boolean),
            opt(
                "outcome",
                Words(&[
                    "approved", "approve", "selected", "denied", "deny", "rejected",
                ]),
            ),
            opt("answer", Any),
            opt("reviewer", OrNull(&TextMax(TEXT_BYTES_MAX))),
            opt("reason", OrNull(&TextMax(TEXT_BYTES_MAX))),
            opt("metadata", Metadata),
            opt(
                "scope",
                OrNull(&Words(&["session", "workspace", "user", "always"])),
            ),
            opt("expires_at", OrNull(&Time)),
            opt("remember", OrNull(&Boolean)),
            opt("action_pattern", OrNull(&TextMax(TEXT_BYTES_MAX))),
            opt("target_pattern", OrNull(&TextMax(TEXT_BYTES_MAX))),
            opt(
                "class",
                OrNull(&Words(&["read", "write", "exec", "net", "llm", "custom"])),
            ),
        ]),
    },
    Schema {
        name: "PermissionCheckRequest",
        shape: Plain(&[
            opt("id", OrNull(&Text)),
            opt("tenant_id", OrNull(&Text)),
            req("session_id", Text),
            opt("workspace_id", OrNull(&Id)),
            req("actor", Text),
            req(
                "class",
                Words(&["read", "write", "exec", "net", "llm", "custom"]),
            ),
            req("action", Text),
            req("target", Text),
            opt(
                "risk",
                OrNull(&Words(&["low", "medium", "high", "critical"])),
            ),
            opt("context", Object),
            opt("reason", OrNull(&Text)),
            opt("requested_at", Time),
        ]),
    },
    Schema {
        name: "PutSecretRequest",
        shape: Plain(&[req("value", TextMax(65_536))]),
    },
    Schema {
        name: "ReplayTaskRequest",
        shape: Plain(&[
            opt("mode", Ref("ReplayMode")),
            opt("override", MapOf(&Ref("ReplayOverride"))),
            opt("checkpoint_id", OrNull(&Text)),
            opt("checkpoint_event_id", OrNull(&Text)),
            opt(
                "refresh",
                List(&Words(&[
                    "memory", "secrets", "host", "time", "model", "tools",
                ])),
            ),
            opt("refresh_from", OrNull(&Text)),
            opt("reason", OrNull(&TextMax(TEXT_BYTES_MAX))),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "RetryTaskRequest",
        shape: Plain(&[
            opt("reason", TextMax(TEXT_BYTES_MAX)),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "CreateBranchRequest",
        shape: Plain(&[
            req("kind", Words(&["workspace", "session", "task", "sandbox"])),
            req("base_ref", TextMax(TEXT_BYTES_MAX)),
            opt("parent_branch_id", OrNull(&Id)),
            opt("task_id", OrNull(&Id)),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "AppendMessageRequest",
        shape: Plain(&[req("message", Ref("MessageInput"))]),
    },
    Schema {
        name: "AppendTaskMessageRequest",
        shape: Plain(&[
            req("kind", Words(&["input", "interrupt", "tool_confirmation"])),
            req("message", Ref("MessageInput")),
        ]),
    },
    Schema {
        name: "RegisterArtifactRequest",
        shape: Plain(&[
            req(
                "kind",
                Words(&[
                    "file", "patch", "image", "log", "diff", "receipt", "snapshot", "dataset",
                    "other",
                ]),
            ),
            req("mime_type", Matching("^[!-~]([ -~]{0,253}[!-~])?$")),
            opt("uri", OrNull(&TextMax(URI_BYTES_MAX))),
            req("visibility", Ref("PartVisibility")),
            opt("sha256", OrNull(&Matching("^(sha256:)?[0-9a-fA-F]{64}$"))),
            opt("workspace_id", OrNull(&Id)),
            opt("session_id", OrNull(&Id)),
            opt("task_id", OrNull(&Id)),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "VerifyReceiptRequest",
        shape: Plain(&[
            opt("trust_anchor", OrNull(&Text)),
            opt("at_time", OrNull(&Time)),
        ]),
    },
    Schema {
        name: "CreateMemoryRequest",
        shape: Plain(&[
            req(
                "scope",
                Words(&["persona", "session", "workspace", "tenant"]),
            ),
            req("owner_id", Text),
            req("content", Any),
            req("provenance", Object),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "CreateVaultRequest",
        shape: Plain(&[
            opt("workspace_id", OrNull(&Id)),
            req("provider", TextMax(TEXT_BYTES_MAX)),
            req(
                "capabilities",
                ListMax(CAPABILITIES_MAX, &TextMax(CAPABILITY_BYTES_MAX)),
            ),
            opt("metadata", Metadata),
        ]),
    },
];
