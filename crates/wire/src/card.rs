//! What a server says about itself: discovery, card, versions, skills, connectors.

use canon::{Map, Value};
use domain::Timestamp;
use serde_json::json;

use crate::PROTOCOL_VERSION;
use crate::render::Envelope;

/// The server, as far as its descriptions need it.
#[derive(Debug, Clone, Copy)]
pub struct ServerInfo<'a> {
    /// The program's version.
    pub version: &'a str,
    /// Where it answers, without a slash at the end.
    pub base_url: &'a str,
    /// The address that was configured for others to use.
    pub public_url: Option<&'a str>,
    /// The keys that sign receipts, as JSON Web Keys.
    pub receipt_keys: &'a [Value],
    /// When its log began.
    pub began_at: Timestamp,
}

/// A skill on offer.
#[derive(Debug, Clone, PartialEq)]
pub struct Skill {
    /// The name under which Tasks ask for it.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// Its version.
    pub version: String,
    /// What it takes.
    pub input_schema: Option<Value>,
    /// What it gives.
    pub output_schema: Option<Value>,
}

impl Skill {
    /// Returns its id.
    pub fn id(&self) -> String {
        format!("skill_{}", self.name)
    }

    /// Returns the resource.
    pub fn resource(&self, at: Timestamp) -> Value {
        let members = json!({
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
            "source": "builtin",
            "version": self.version,
            "capabilities": [],
            "requires_approval": false,
            "deprecated": false,
        });
        global(&self.id(), "skill", at, json!({})).with(members)
    }
}

/// A tool of the configuration: a command, or an MCP server, whose own tools are listed when a Task asks for them.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The name that a persona lists.
    pub name: String,
    /// What it does.
    pub description: String,
    /// What it takes.
    pub input_schema: Value,
    /// `local` or `mcp_server`.
    pub source: &'static str,
}

impl Tool {
    /// Returns the resource.
    pub fn resource(&self) -> Value {
        json!({
            "id": format!("tool_{}", self.name),
            "object": "tool",
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
            "output_schema": {},
            "source": self.source,
        })
    }
}

/// A model provider of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// The name that a persona's `model.provider` has.
    pub id: String,
    /// `openai`, `anthropic` or `scripted`.
    pub kind: String,
    /// The model for requests that name none.
    pub model: Option<String>,
}

/// A connector from the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Connector {
    /// Its id, such as `connector_github`.
    pub id: String,
    /// Where deliveries come from.
    pub provider: String,
    /// Its Workspace.
    pub workspace_id: String,
    /// The kinds of delivery it takes.
    pub event_kinds: Vec<String>,
    /// How repeated deliveries are known.
    pub dedupe_policy: Map<String, Value>,
    /// How it is called.
    pub webhook: Map<String, Value>,
    /// How it asks.
    pub polling: Map<String, Value>,
    /// The persona its Tasks name.
    pub target_persona_id: Option<String>,
    /// The Session its Tasks go to.
    pub target_session_id: Option<String>,
    /// Members of the operator's own.
    pub metadata: Map<String, Value>,
}

impl Connector {
    /// Returns the resource. How it authenticates is not shown.
    pub fn resource(&self, at: Timestamp) -> Value {
        let members = json!({
            "provider": self.provider,
            "workspace_id": self.workspace_id,
            // Nothing is delivered yet.
            "status": "DISABLED",

            "event_kinds": self.event_kinds,
            "dedupe_policy": self.dedupe_policy,
            "auth": {},
            "webhook": self.webhook,
            "polling": self.polling,
            "target_persona_id": self.target_persona_id,
            "target_session_id": self.target_session_id,
        });
        global(&self.id, "connector", at, json!(self.metadata)).with(members)
    }
}

fn global<'a>(id: &'a str, object: &'a str, at: Timestamp, metadata: Value) -> Envelope<'a> {
    Envelope {
        id,
        object,
        created_at: at,
        updated_at: at,
        metadata,
    }
}

/// Returns what `GET /v1` answers (AP-VER-05). A capability is claimed only when all of it is there. Events are kept for
/// this many days, or forever (AP-RPL-19).
pub fn discovery(retention_days: Option<u32>) -> Value {
    json!({
        "object": "protocol_discovery",
        "protocol_family": "harn_agents_protocol",
        "current_version": PROTOCOL_VERSION,
        "supported_versions": [PROTOCOL_VERSION],
        "capabilities": {
            "rest": true,
            "sse": true,
            "websocket": false,
            "receipts": true,
            "replay": true,
        },
        "retention": {"days": retention_days},
    })
}

/// Returns what `GET /health` answers.
pub fn health(version: &str, draining: bool) -> Value {
    json!({
        "ok": !draining,
        "status": if draining { "draining" } else { "ok" },
        "version": version,
    })
}

/// Returns what `GET /version` answers.
pub fn version(version: &str) -> Value {
    json!({"object": "version", "version": version, "protocol_version": PROTOCOL_VERSION})
}

const CAPABILITIES: [(&str, &str); 9] = [
    (
        "sessions",
        "Conversations with durable, ordered messages, forks and truncation",
    ),
    (
        "tasks",
        "Durable agent work with a published lifecycle, cancellation and answers",
    ),
    (
        "events",
        "An append-only log with range reads and durable cursors",
    ),
    (
        "sse",
        "Event streams that resume without gaps or repetitions",
    ),
    (
        "artifacts",
        "Registered content with digests, upload and download",
    ),
    (
        "receipts",
        "A signed, chained and logged proof of every finished task, verified here or offline",
    ),
    (
        "permissions",
        "Questions and approvals that a task waits for",
    ),
    (
        "replay",
        "Finished tasks run again from their record, exactly or with answers changed",
    ),
    ("personas", "Definitions of agents that tasks run under"),
];

fn capability_list() -> Value {
    CAPABILITIES
        .iter()
        .map(|(id, description)| json!({"id": id, "description": description}))
        .collect()
}

/// Returns what `GET /v1/capabilities` answers.
pub fn capabilities() -> Value {
    json!({"object": "capability_summary", "capabilities": capability_list()})
}

/// Returns what `GET /v1/runtime` answers.
pub fn runtime(version: &str) -> Value {
    json!({
        "object": "runtime",
        "version": version,
        "protocol_version": PROTOCOL_VERSION,
        "adapter": "reprise",
        "capabilities": capability_list(),
    })
}

/// Returns what `GET /v1/provider-catalog` answers: the providers of the configuration. Addresses and keys are not shown.
pub fn provider_catalog(version: &str, providers: &[Provider]) -> Value {
    let listed = providers.iter();
    let listed: Vec<Value> = listed
        .map(|one| json!({"id": one.id, "kind": one.kind, "default_model": one.model}))
        .collect();
    let models = providers.iter().filter_map(|one| {
        let model = one.model.as_ref()?;
        Some(json!({"id": model, "provider": one.id}))
    });
    let models: Vec<Value> = models.collect();
    json!({
        "schema_version": 6,
        "schema": "https://harnlang.com/schemas/provider-catalog.v6.json",
        "generated_by": format!("reprise {version}"),
        "providers": listed,
        "models": models,
        "aliases": [],
        "variants": [],
        "families": [],
        "routing_routes": [],
        "qc_defaults": {},
    })
}

/// Returns what `GET /v1/permissions/policy` answers: nothing is allowed or denied by a policy.
pub fn permission_policy() -> Value {
    let policy = json!({
        "read": [], "write": [], "exec": [], "net": [],
        "llm": {"providers": [], "cost_ceiling_usd_cents": null},
        "redact": {"transcript": [], "logs": []},
        "escalate_to": [],
    });
    json!({
        "object": "permission_policy",
        "version": canon::sha256(&canon::jcs(&policy)).to_string(),
        "policy": policy,
    })
}

const NAME: &str = "Reprise";
const DESCRIPTION: &str = "Runs agents on record: every event is stored, any run can be read and replayed, and every end is signed";

/// Returns the card (AP-CARD). `object` is the configured discriminator (C-01).
pub fn agent_card(
    about: ServerInfo<'_>,
    object: &str,
    skills: &[Skill],
    persona_ids: &[String],
) -> Value {
    let interfaces = json!([
        {"transport": "rest", "url": format!("{}/v1", about.base_url)},
        {"transport": "sse", "url": format!("{}/v1/events/stream", about.base_url)},
    ]);
    let nested = a2a_card(about, skills);
    let skills: Vec<Value> = skills
        .iter()
        .map(|skill| skill.resource(about.began_at))
        .collect();
    let members = json!({
        "name": NAME,
        "description": DESCRIPTION,
        "protocol_version": PROTOCOL_VERSION,
        "a2a_card": nested,
        // C-02: names of an earlier draft.
        "a2a_agent_card": nested,
        "interfaces": interfaces,
        "harn_interfaces": interfaces,
        "skills": skills,
        "persona_ids": persona_ids,
        "capabilities": CAPABILITIES.map(|(id, _)| id),
        "auth_schemes": ["bearer"],
        "receipt_policy": "required",
        "receipt_keys": about.receipt_keys,
        "quotas": [],
        "provider": {},
        "public_url": about.public_url,
        "signature": null,
    });
    global("card_reprise", object, about.began_at, json!({})).with(members)
}

/// The A2A card inside. It lists only interfaces that answer, and none does yet (C-48).
fn a2a_card(about: ServerInfo<'_>, skills: &[Skill]) -> Value {
    let skills: Vec<Value> = skills
        .iter()
        .map(|skill| {
            json!({
                "id": skill.id(),
                "name": skill.name,
                "description": skill.description,
                "tags": ["workflow"],
                "inputSchema": skill.input_schema,
            })
        })
        .collect();
    json!({
        "name": NAME,
        "description": DESCRIPTION,
        "version": about.version,
        "supportedInterfaces": [],
        "preferredTransport": null,
        "additionalInterfaces": [],
        "capabilities": {"streaming": false, "pushNotifications": false, "extensions": [], "extendedAgentCard": false},
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        "security": [{"bearer": []}],
        "defaultInputModes": ["text/plain", "application/json"],
        "defaultOutputModes": ["text/plain", "application/json"],
        "skills": skills,
        "signatures": [],
        "documentationUrl": null,
        "iconUrl": null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> ServerInfo<'static> {
        ServerInfo {
            version: "0.1.0",
            base_url: "http://127.0.0.1:8080",
            public_url: None,
            receipt_keys: &[],
            began_at: Timestamp::from_micros(0),
        }
    }

    #[test]
    fn ap_card_03_the_names_of_the_nested_card_stay_inside() {
        let card = agent_card(about(), "harn_agent_card", &[], &[]);
        for name in [
            "supportedInterfaces",
            "preferredTransport",
            "additionalInterfaces",
        ] {
            assert_eq!(card.get(name), None, "{name}");
            assert!(card["a2a_card"].get(name).is_some(), "{name}");
        }
        for name in ["url", "interfaces", "protocolVersion"] {
            assert_eq!(card["a2a_card"].get(name), None, "{name}");
        }
        assert_eq!(card["interfaces"], card["harn_interfaces"]);
        assert_eq!(card["a2a_agent_card"], card["a2a_card"]);
        assert_eq!(card["object"], "harn_agent_card");
    }

    #[test]
    fn ap_ver_05_discovery_claims_what_is_there() {
        let discovery = discovery(None);
        assert_eq!(discovery["current_version"], PROTOCOL_VERSION);
        assert_eq!(
            discovery["capabilities"],
            json!({"rest": true, "sse": true, "websocket": false, "receipts": true, "replay": true})
        );
        assert_eq!(discovery["retention"], json!({"days": null}));
    }

    #[test]
    fn ap_skill_01_skills_have_schemas_and_an_envelope() {
        let skill = Skill {
            name: "agent".to_owned(),
            description: "d".to_owned(),
            version: "1".to_owned(),
            input_schema: Some(json!({"type": "object"})),
            output_schema: None,
        };
        let resource = skill.resource(Timestamp::from_micros(0));
        assert_eq!(resource["id"], "skill_agent");
        assert_eq!(resource["input_schema"], json!({"type": "object"}));
        assert_eq!(resource.get("output_schema"), Some(&Value::Null));
        assert_eq!(resource["metadata"], json!({}));
    }
}
