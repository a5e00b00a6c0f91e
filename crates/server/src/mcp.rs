//! The memory protocol as tools of an MCP server at `/mcp`, through the protocol's own SDK.
//!
//! Stateless: each request brings its key, and what it may do is decided below like for any other transport. A tool's
//! arguments are the members of the payload and those of the envelope; the answer is that of HTTP.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use bytes::Bytes;
use canon::{Map, Value};
use engine::port::Ids;
use engine::{Caller, Engine, FieldRefused};
use field::{Config, Envelope, Operation, PROTOCOL_VERSION};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CustomRequest, CustomResult,
    ErrorCode, ErrorData, Implementation, InitializeResult, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use wire::json_rpc;

use crate::world::RandomIds;
use crate::{gate, memory};

/// The operations that are tools. SUBSCRIBE is none: agents poll with `since_epoch`.
const OPERATIONS: [Operation; 11] = [
    Operation::Register,
    Operation::Deregister,
    Operation::Record,
    Operation::Attune,
    Operation::Detect,
    Operation::Merge,
    Operation::Replay,
    Operation::Compact,
    Operation::Handoff,
    Operation::Coordinate,
    Operation::Session,
];

/// Members of the envelope among a tool's arguments.
const ENVELOPE: [&str; 5] = ["agent_id", "session_id", "epoch", "message_id", "field"];

/// The tools, ready to answer requests.
pub(crate) struct Mcp {
    service: StreamableHttpService<Tools, NeverSessionManager>,
    /// The longest message that is read.
    bytes_max: usize,
}

impl fmt::Debug for Mcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mcp").finish()
    }
}

impl Mcp {
    pub(crate) fn new(engine: Engine, base_url: &str) -> Self {
        let tools = Tools { engine };
        let bytes_max = tools.engine.fields().limits.request_bytes_max;
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(true)
            .with_max_request_body_bytes(bytes_max)
            // Names were checked on the way in, by the settings of this server.
            .disable_allowed_hosts()
            // No page but one of our own speaks for the person in front of a browser.
            .with_allowed_origins([base_url])
            .enforce_origin_validation();
        let sessions = Arc::new(NeverSessionManager::default());
        Self {
            bytes_max,
            service: StreamableHttpService::new(move || Ok(tools.clone()), sessions, config),
        }
    }

    /// Answers a request. Whatever is refused is refused in the words of JSON-RPC: the SDK answers a message that it cannot
    /// read with a line of text.
    pub(crate) async fn answer(
        &self,
        request: Request<Body>,
    ) -> axum::http::Response<BoxBody<Bytes, Infallible>> {
        let (parts, body) = request.into_parts();
        let Ok(bytes) = axum::body::to_bytes(body, self.bytes_max).await else {
            let message = format!("the message is larger than {} bytes", self.bytes_max);
            return refused(
                StatusCode::PAYLOAD_TOO_LARGE,
                &Value::Null,
                json_rpc::INVALID_REQUEST,
                &message,
            );
        };
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        let is_json = content_type.is_some_and(|given| given.starts_with("application/json"));
        let id = match json_rpc::id_of(&bytes) {
            Ok(id) => id,
            Err(not) if is_json => {
                return refused(StatusCode::BAD_REQUEST, &not.id, not.code, &not.message);
            }
            Err(_) => Value::Null,
        };
        let request = Request::from_parts(parts, Body::from(bytes));
        let response = self.service.handle(request).await;
        let status = response.status();
        let said = response.headers().get(header::CONTENT_TYPE);
        if !status.is_client_error() || said.is_some() {
            return response;
        }
        // The type was right: it is the message that is not one of this protocol.
        let (status, message) = match status {
            StatusCode::UNSUPPORTED_MEDIA_TYPE if is_json => (
                StatusCode::BAD_REQUEST,
                "this is not a message of this protocol".to_owned(),
            ),
            status => {
                let text = response.into_body().collect().await;
                let text = text.map(|text| text.to_bytes()).unwrap_or_default();
                (status, String::from_utf8_lossy(&text).into_owned())
            }
        };
        refused(status, &id, json_rpc::INVALID_REQUEST, &message)
    }
}

fn refused(
    status: StatusCode,
    id: &Value,
    code: i32,
    message: &str,
) -> axum::http::Response<BoxBody<Bytes, Infallible>> {
    let error = json_rpc::error(id, code, message);
    let mut response = axum::http::Response::new(Full::new(error.to_string().into()).boxed());
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[derive(Clone)]
struct Tools {
    engine: Engine,
}

fn name_of(operation: Operation) -> String {
    format!("akashik_{}", operation.as_str().to_ascii_lowercase())
}

impl Tools {
    fn offered(&self) -> impl Iterator<Item = Operation> + '_ {
        let config = self.engine.fields();
        OPERATIONS
            .into_iter()
            .filter(|operation| config.offers(*operation))
    }

    async fn call(&self, name: &str, arguments: Map<String, Value>, parts: &Parts) -> Called {
        let operation = self.offered().find(|known| name_of(*known) == name);
        let operation = operation.ok_or(NotCalled::Unknown)?;
        // Nobody gets here without a key.
        let caller = parts
            .extensions
            .get::<Arc<Caller>>()
            .ok_or(NotCalled::Unknown)?;
        let mut arguments = arguments;
        if let Some(key) = gate::presented(&parts.headers) {
            gate::redact(&mut arguments, key);
        }
        let field = match arguments.get("field") {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => Some(name.clone()),
            Some(_) => {
                let message = "`field` must be a string";
                let code = field::Code::InvalidEnvelope;
                return Ok(Err(
                    field::Refusal::new(code, message, Some(operation)).into()
                ));
            }
        };
        let envelope = match Envelope::from_json(&envelope(operation, arguments), Some(operation)) {
            Ok(envelope) => envelope,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        let answered = self
            .engine
            .field_message(caller, field.as_deref(), envelope);
        Ok(answered.await)
    }
}

/// Why a tool was not called at all.
enum NotCalled {
    Unknown,
}

type Called = Result<Result<Value, FieldRefused>, NotCalled>;

/// Builds the envelope that the arguments of a tool stand for.
fn envelope(operation: Operation, mut arguments: Map<String, Value>) -> Value {
    let mut take = |name: &str| arguments.remove(name).filter(|value| !value.is_null());
    let [agent, session, epoch, message, _] = ENVELOPE.map(&mut take);
    let target = take("target_agent_id");
    match operation {
        Operation::Register => {
            let own = agent.clone().unwrap_or_default();
            arguments.entry("id").or_insert(own);
        }
        Operation::Deregister => {
            let target = target.or_else(|| agent.clone()).unwrap_or_default();
            arguments.insert("agent_id".to_owned(), target);
        }
        _ => {}
    }
    let mut envelope = json!({
        "protocol": "akashik",
        "version": PROTOCOL_VERSION,
        "id": message.unwrap_or_else(|| format!("mcp-{}", RandomIds.body()).into()),
        "operation": operation,
        "session_id": session,
        "epoch": epoch.unwrap_or_else(|| 0.into()),
        "payload": arguments,
    });
    // Without a sender it is missing, and says so.
    if let (Some(agent), Some(members)) = (agent, envelope.as_object_mut()) {
        members.insert("agent_id".to_owned(), agent);
    }
    envelope
}

impl ServerHandler for Tools {
    fn get_info(&self) -> InitializeResult {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        InitializeResult::new(capabilities)
            .with_server_info(Implementation::new("reprise", env!("CARGO_PKG_VERSION")))
            .with_instructions(
                "A memory that agents share. Register first, then record what you know and why, attune to see what \
                 others know, and replay to see why something is the way it is.",
            )
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let config = self.engine.fields();
        let tools = self.offered().map(|operation| tool(config, operation));
        let tools = tools.collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let lost = || ErrorData::internal_error("internal error", None);
        let parts = context.extensions.get::<Parts>().ok_or_else(lost)?;
        let arguments = request.arguments.unwrap_or_default();
        let result = match self.call(&request.name, arguments, parts).await {
            Ok(Ok(answer)) => CallToolResult::structured(answer),
            Ok(Err(FieldRefused::Protocol(refusal))) => {
                CallToolResult::structured_error(refusal.to_json())
            }
            Ok(Err(FieldRefused::Engine(refused))) => {
                let path = request.name.trim_start_matches("akashik_");
                let (refusal, _) = memory::refusal(&refused.into(), path);
                CallToolResult::structured_error(refusal.to_json())
            }
            Err(NotCalled::Unknown) => {
                let message = "there is no such tool";
                return Err(ErrorData::invalid_params(message, None));
            }
        };
        Ok(result.into())
    }

    /// A request whose parameters the SDK cannot read comes here like one whose method nobody knows.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let error = match KNOWN_METHODS.contains(&request.method.as_str()) {
            true => {
                let message = format!("invalid `params` for `{}`", request.method);
                ErrorData::invalid_params(message, None)
            }
            false => ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None),
        };
        Err(error)
    }
}

/// The methods that are answered here.
const KNOWN_METHODS: [&str; 4] = ["initialize", "ping", "tools/list", "tools/call"];

fn tool(config: &Config, operation: Operation) -> Tool {
    let (description, payload, required) = described(config, operation);
    let mut properties = json!({
        "agent_id": {"type": "string", "description": "Who speaks"},
        "session_id": {"type": ["string", "null"], "description": "The session that the message belongs to"},
        "epoch": {"type": "integer", "minimum": 0, "description": "The sender's logical clock; 0 by default"},
        "message_id": {"type": "string", "description": "Makes retries safe; generated by default"},
        "field": {"type": "string", "description": "Which memory to use; the default memory if left out"},
    });
    if let (Some(properties), Value::Object(payload)) = (properties.as_object_mut(), payload) {
        properties.extend(payload);
    }
    let required: Vec<&str> = ["agent_id"].iter().chain(required).copied().collect();
    let schema = json!({"type": "object", "properties": properties, "required": required});
    let schema = match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    };
    Tool::new(name_of(operation), Cow::Borrowed(description), schema)
}

/// Returns what a tool does, the members of its payload, and those that are needed.
fn described(
    config: &Config,
    operation: Operation,
) -> (&'static str, Value, &'static [&'static str]) {
    let text = || json!({"type": "string"});
    let texts = || json!({"type": "array", "items": {"type": "string"}});
    match operation {
        Operation::Register => (
            "Join the memory as an agent with a role",
            json!({"id": text(), "role": text(), "interests": texts(), "required_operations": texts(),
                "authority": {"type": "integer", "minimum": 0, "maximum": 10}}),
            &["role"],
        ),
        Operation::Deregister => (
            "Leave the memory, or remove another agent; what was recorded stays",
            json!({"target_agent_id": text()}),
            &[],
        ),
        Operation::Record => (
            "Record something you know, with the purpose it serves and how sure you are",
            json!({
                "mode": {"enum": ["draft", "committed"]},
                "type": {"enum": names(field::MemoryType::ALL.iter().map(|kind| kind.as_str()))},
                "content": text(),
                "intent": {"type": "object", "properties": {"purpose": text(), "task_id": text(), "question": text()},
                    "required": ["purpose"]},
                "confidence": {"type": "object", "properties": {
                    "score": {"type": "number", "minimum": 0, "maximum": 1}, "reasoning": text(),
                    "evidence": texts(), "assumptions": texts()}},
                "relations": {"type": "array", "items": {"type": "object", "properties": {
                    "type": {"enum": names(field::RelationType::ALL.iter().map(|kind| kind.as_str()))},
                    "target_id": text(), "description": text()}, "required": ["type", "target_id"]}},
            }),
            &["mode", "type", "content", "intent"],
        ),
        Operation::Attune => (
            "See what you should know now, most relevant first, with open conflicts",
            json!({
                "scope": {"type": "object", "properties": {
                    "role": text(), "max_units": {"type": "integer", "minimum": 1}, "interests": texts(),
                    "active_task_id": text(), "max_tokens": {"type": "integer", "minimum": 1},
                    "since_epoch": {"type": "integer", "minimum": 0}}, "required": ["role", "max_units"]},
                "context_hint": text(),
                "format": {"enum": ["full", "summary", "ids_only"]},
                "since_epoch": {"type": "integer", "minimum": 0},
            }),
            &["scope"],
        ),
        Operation::Detect => (
            "List conflicts, or look for contradictions of one unit or of all",
            json!({"mode": {"enum": ["check", "scan", "list"]}, "target_id": text(), "filter": {"type": "object"},
                "limit": {"type": "integer", "minimum": 1}, "cursor": text()}),
            &["mode"],
        ),
        Operation::Merge => (
            "Settle a conflict by a strategy and say why",
            json!({
                "conflict_id": text(),
                "strategy": {"enum": names(config.strategies().map(|kind| kind.as_str()))},
                "resolution": {"type": "object", "properties": {
                    "rationale": text(), "winner_id": text(), "synthesis": text()}, "required": ["rationale"]},
            }),
            &["conflict_id", "strategy", "resolution"],
        ),
        Operation::Replay => (
            "Explain how something came about: the reasons behind a task, unit, decision, conflict or session",
            json!({
                "target_type": {"enum": names(field::TargetType::ALL.iter().map(|kind| kind.as_str()))},
                "target_id": text(),
                "depth": {"enum": ["summary", "detailed", "full_trace"]},
            }),
            &["target_type", "target_id", "depth"],
        ),
        Operation::Compact => (
            "Archive or summarise old units, or erase text permanently; the log stays intact",
            json!({
                "strategy": {"enum": names(field::CompactStrategy::ALL.iter()
                    .filter(|strategy| config.compacts(**strategy)).map(|strategy| strategy.as_str()))},
                "filter": {"type": "object", "properties": {
                    "max_age_epochs": {"type": "integer", "minimum": 0}, "session_id": text(),
                    "types": texts(), "status": texts()}},
                "reason": text(),
            }),
            &["strategy"],
        ),
        Operation::Handoff => (
            "Offer a task to another agent with what it needs to continue, or answer such an offer",
            json!({
                "action": {"enum": names(field::HandoffAction::ALL.iter().map(|action| action.as_str()))},
                "handoff_id": text(), "task_id": text(), "to_agent": text(), "reason": text(),
                "context": {"type": "object", "properties": {
                    "unit_ids": texts(), "open_questions": texts(), "summary": text()}},
            }),
            &["action"],
        ),
        Operation::Coordinate => (
            "Create a task, or move it forward",
            json!({
                "action": {"enum": names(field::TaskAction::ALL.iter().map(|action| action.as_str()))},
                "task": {"type": "object", "properties": {
                    "id": text(), "title": text(), "goal": text(), "assignee": text(), "depends_on": texts()}},
                "reason": text(),
            }),
            &["action", "task"],
        ),
        Operation::Session => (
            "Create, join, leave, pause, resume or end a session: only its members see what is recorded in it",
            json!({
                "action": {"enum": names(field::SessionAction::ALL.iter().map(|action| action.as_str()))},
                "session": {"type": "object", "properties": {"id": text(), "goal": text(),
                    "rules": {"type": "object", "properties": {"roles": texts()}}}},
            }),
            &["action", "session"],
        ),
        Operation::Subscribe => ("", json!({}), &[]),
    }
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    names.collect()
}
