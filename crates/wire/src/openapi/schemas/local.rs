//! What the server says about itself, and permissions.

use super::super::schema::{Schema, Shape::*, Type::*, opt, req};

pub(in crate::openapi) const SCHEMAS: &[Schema] = &[
    Schema {
        name: "Discovery",
        shape: Plain(&[
            req("object", Words(&["protocol_discovery"])),
            req("protocol_family", Words(&["harn_agents_protocol"])),
            req("current_version", Words(&["agents-protocol-2026-04-25"])),
            req("supported_versions", List(&Text)),
            req(
                "capabilities",
                Inline(&[
                    opt("rest", Boolean),
                    opt("sse", Boolean),
                    opt("websocket", Boolean),
                    opt("receipts", Boolean),
                    opt("replay", Boolean),
                ]),
            ),
            opt("retention", Object),
        ]),
    },
    Schema {
        name: "Health",
        shape: Plain(&[
            req("ok", Boolean),
            req("status", Text),
            req("version", Text),
        ]),
    },
    Schema {
        name: "RuntimeVersion",
        shape: Plain(&[
            req("object", Words(&["version"])),
            req("version", Text),
            req("protocol_version", Text),
        ]),
    },
    Schema {
        name: "RuntimeMetadata",
        shape: Plain(&[
            req("object", Words(&["runtime"])),
            req("version", Text),
            req("protocol_version", Text),
            req("adapter", Text),
            opt("workspace_root", Text),
            opt("session_count", Count),
            opt("task_count", Count),
            req("capabilities", List(&Ref("Capability"))),
        ]),
    },
    Schema {
        name: "Capability",
        shape: Plain(&[req("id", Text), req("description", Text)]),
    },
    Schema {
        name: "CapabilitySummary",
        shape: Plain(&[
            req("object", Words(&["capability_summary"])),
            req("capabilities", List(&Ref("Capability"))),
        ]),
    },
    Schema {
        name: "ProviderCatalog",
        shape: Closed(&[
            req("schema_version", Exactly(6)),
            req(
                "schema",
                Words(&["https://harnlang.com/schemas/provider-catalog.v6.json"]),
            ),
            req("generated_by", Text),
            req("providers", List(&Object)),
            req("models", List(&Object)),
            req("aliases", List(&Object)),
            req("variants", List(&Object)),
            req("families", List(&Object)),
            opt("routing_routes", List(&Object)),
            req("qc_defaults", MapOf(&Text)),
        ]),
    },
    Schema {
        name: "Tool",
        shape: Plain(&[
            req("id", Text),
            req("object", Words(&["tool"])),
            req("name", Text),
            req("description", Text),
            req("input_schema", Object),
            req("output_schema", Object),
        ]),
    },
    Schema {
        name: "ToolList",
        shape: Page("Tool"),
    },
    Schema {
        name: "WorkspaceFileEntry",
        shape: Plain(&[
            req("name", Text),
            req("path", Text),
            req("kind", Words(&["file", "directory"])),
            req("size", Count),
        ]),
    },
    Schema {
        name: "WorkspaceFileListing",
        shape: Plain(&[
            req("object", Words(&["file_listing"])),
            req("workspace_id", Text),
            req("path", Text),
            req("entries", List(&Ref("WorkspaceFileEntry"))),
        ]),
    },
    Schema {
        name: "WorkspaceFile",
        shape: Plain(&[
            req("object", Words(&["file"])),
            req("workspace_id", Text),
            req("path", Text),
            req("encoding", Words(&["utf-8"])),
            opt("content", Text),
            opt("bytes", Count),
        ]),
    },
    Schema {
        name: "LiveSessionClient",
        shape: Plain(&[
            req("client_id", Text),
            req("mode", Words(&["observer", "controller"])),
            req("attached_at", Text),
            req("last_seen_at", Text),
            req("prompt_injection", Boolean),
            req("permission_routing", Boolean),
            req("metadata", Object),
        ]),
    },
    Schema {
        name: "LiveSessionClientChange",
        shape: Plain(&[
            req("client", OrNull(&Ref("LiveSessionClient"))),
            req("previous_controller_id", OrNull(&Text)),
            req("active_controller_id", OrNull(&Text)),
            req("clients", List(&Ref("LiveSessionClient"))),
        ]),
    },
    Schema {
        name: "LiveSessionClientList",
        shape: Plain(&[
            req("object", Words(&["list"])),
            req("data", List(&Ref("LiveSessionClient"))),
        ]),
    },
    Schema {
        name: "PermissionPolicy",
        shape: Plain(&[
            opt("read", List(&Text)),
            opt("write", List(&Text)),
            opt("exec", List(&Text)),
            opt("net", List(&Text)),
            opt(
                "llm",
                Inline(&[
                    opt("providers", List(&Text)),
                    opt("cost_ceiling_usd_cents", OrNull(&Count)),
                ]),
            ),
            opt(
                "redact",
                Inline(&[opt("transcript", List(&Text)), opt("logs", List(&Text))]),
            ),
            opt("escalate_to", List(&Text)),
        ]),
    },
    Schema {
        name: "PermissionPolicyResponse",
        shape: Plain(&[
            req("object", Words(&["permission_policy"])),
            req("version", Text),
            req("policy", Ref("PermissionPolicy")),
        ]),
    },
    Schema {
        name: "RememberRule",
        shape: Plain(&[
            req("id", Text),
            opt("tenant_id", OrNull(&Text)),
            req("scope", Words(&["session", "workspace", "user", "always"])),
            opt("scope_value", OrNull(&Text)),
            req(
                "class",
                Words(&["read", "write", "exec", "net", "llm", "custom"]),
            ),
            req("action_pattern", Text),
            req("target_pattern", Text),
            req("allow", Boolean),
            opt("reason", OrNull(&Text)),
            req("created_at", Time),
            req("created_by", Text),
            opt("expires_at", OrNull(&Time)),
            opt("revoked_at", OrNull(&Time)),
        ]),
    },
    Schema {
        name: "RememberRuleList",
        shape: Page("RememberRule"),
    },
    Schema {
        name: "PermissionCheckResponse",
        shape: Plain(&[
            req("object", Words(&["permission_decision"])),
            req("request_id", Text),
            req(
                "decision",
                AnyOf(&[
                    Ref("PermissionDecisionGranted"),
                    Ref("PermissionDecisionDenied"),
                    Ref("PermissionDecisionSuspend"),
                ]),
            ),
        ]),
    },
    Schema {
        name: "PermissionDecisionGranted",
        shape: Plain(&[
            req("outcome", Words(&["granted"])),
            req("scope", Words(&["session", "workspace", "user", "always"])),
            req("policy_version", Text),
            opt("reason", OrNull(&Text)),
            opt("expires_at", OrNull(&Time)),
            opt("rule_id", OrNull(&Text)),
        ]),
    },
    Schema {
        name: "PermissionDecisionDenied",
        shape: Plain(&[
            req("outcome", Words(&["denied"])),
            req("scope", Words(&["session", "workspace", "user", "always"])),
            req("policy_version", Text),
            opt("reason", OrNull(&Text)),
            opt("rule_id", OrNull(&Text)),
        ]),
    },
    Schema {
        name: "PermissionDecisionSuspend",
        shape: Plain(&[
            req("outcome", Words(&["suspend"])),
            req("policy_version", Text),
            req("escalate_to", List(&Text)),
            opt("reason", OrNull(&Text)),
        ]),
    },
    Schema {
        name: "AuditEntry",
        shape: Plain(&[
            req("request", Ref("PermissionCheckRequest")),
            req("outcome", Words(&["granted", "denied", "escalated"])),
            opt(
                "scope",
                OrNull(&Words(&["session", "workspace", "user", "always"])),
            ),
            req("policy_version", Text),
            req("risk", Words(&["low", "medium", "high", "critical"])),
            opt("rule_id", OrNull(&Text)),
            opt("reason", OrNull(&Text)),
            opt("expires_at", OrNull(&Time)),
            req("decided_at", Time),
            opt("decided_by", OrNull(&Text)),
        ]),
    },
    Schema {
        name: "AuditEntryList",
        shape: Page("AuditEntry"),
    },
    Schema {
        name: "ReplayMode",
        shape: Just(Words(&["exact", "with_overrides", "from_checkpoint"])),
    },
    Schema {
        name: "ReplayOverride",
        shape: Plain(&[
            req(
                "kind",
                Words(&[
                    "llm_provider_response",
                    "mcp_tool_return",
                    "secret_value",
                    "time",
                    "host_fact",
                    "tool_result",
                    "event_payload",
                    "checkpoint_value",
                ]),
            ),
            opt("event_id", OrNull(&Text)),
            opt("target", OrNull(&Text)),
            opt("value", Any),
            opt("artifact_id", OrNull(&Text)),
            opt("sha256", OrNull(&Matching("^sha256:[0-9a-f]{64}$"))),
            opt("visibility", Words(&["public", "internal", "receipt_only"])),
            opt("reason", OrNull(&Text)),
        ]),
    },
    Schema {
        name: "ReplayEventMetadata",
        shape: Plain(&[
            req("source_task_id", Text),
            req("replay_task_id", Text),
            opt("original_event_id", OrNull(&Text)),
            opt("replay_cursor", OrNull(&Text)),
            opt("mode", Ref("ReplayMode")),
            opt("override_key", OrNull(&Text)),
            opt("receipt_delta_id", OrNull(&Text)),
        ]),
    },
    Schema {
        name: "HarnAgentCard",
        shape: Resource(&[
            req("object", Words(&["harn_agent_card", "agent_card"])),
            req("name", Text),
            req("description", Text),
            req("protocol_version", Text),
            req("a2a_card", Ref("A2aAgentCard")),
            req("skills", List(&Ref("Skill"))),
            opt("harn_interfaces", List(&Ref("HarnAgentInterface"))),
            opt("persona_ids", List(&Text)),
            opt("capabilities", List(&Text)),
            opt("auth_schemes", List(&Text)),
            opt("receipt_policy", OrNull(&Text)),
            opt("receipt_keys", List(&Object)),
            opt("quotas", List(&Ref("Quota"))),
            opt("provider", Object),
            opt("public_url", OrNull(&Text)),
            opt("signature", OrNull(&Ref("CardSignature"))),
            opt("interfaces", List(&Ref("HarnAgentInterface"))),
            opt("a2a_agent_card", Ref("A2aAgentCard")),
        ]),
    },
    Schema {
        name: "A2aAgentCard",
        shape: Plain(&[
            req("name", Text),
            req("description", Text),
            req("supportedInterfaces", List(&Ref("A2aAgentInterface"))),
            opt("provider", Ref("A2aAgentProvider")),
            req("version", Text),
            opt("documentationUrl", OrNull(&Text)),
            req("capabilities", Ref("A2aAgentCapabilities")),
            opt("securitySchemes", MapOf(&Ref("A2aSecurityScheme"))),
            opt("security", List(&MapOf(&List(&Text)))),
            req("defaultInputModes", List(&Text)),
            req("defaultOutputModes", List(&Text)),
            req("skills", List(&Ref("A2aAgentSkill"))),
            opt("signatures", List(&Ref("A2aAgentCardSignature"))),
            opt("iconUrl", OrNull(&Text)),
            opt("preferredTransport", OrNull(&Text)),
            opt("additionalInterfaces", List(&Object)),
        ]),
    },
    Schema {
        name: "A2aAgentInterface",
        shape: Plain(&[
            req("url", Text),
            req("protocolBinding", Text),
            opt("tenant", OrNull(&Text)),
            req("protocolVersion", Text),
        ]),
    },
    Schema {
        name: "A2aAgentProvider",
        shape: Plain(&[req("organization", Text), req("url", Text)]),
    },
    Schema {
        name: "A2aAgentCapabilities",
        shape: Plain(&[
            opt("streaming", Boolean),
            opt("pushNotifications", Boolean),
            opt("extensions", List(&Object)),
            opt("extendedAgentCard", Boolean),
        ]),
    },
    Schema {
        name: "A2aAgentSkill",
        shape: Plain(&[
            req("id", Text),
            req("name", Text),
            req("description", Text),
            req("tags", List(&Text)),
            opt("examples", List(&Text)),
            opt("inputModes", List(&Text)),
            opt("outputModes", List(&Text)),
            opt("security", List(&MapOf(&List(&Text)))),
            opt("inputSchema", OrNull(&Object)),
        ]),
    },
    Schema {
        name: "A2aSecurityScheme",
        shape: Just(Object),
    },
    Schema {
        name: "A2aAgentCardSignature",
        shape: Plain(&[
            req("protected", Text),
            req("signature", Text),
            opt("header", Object),
        ]),
    },
    Schema {
        name: "HarnAgentInterface",
        shape: Plain(&[
            req(
                "transport",
                Words(&["rest", "sse", "websocket", "a2a", "mcp", "acp"]),
            ),
            req("url", Text),
        ]),
    },
    Schema {
        name: "CardSignature",
        shape: Plain(&[
            req("algorithm", Text),
            req("key_id", Text),
            req("value", Text),
        ]),
    },
];
