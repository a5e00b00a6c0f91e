//! MCP servers: connections that are kept, calls that end.
//!
//! A server is started or contacted when it is first needed and kept. When its process dies the calls in flight
//! fail and the next one starts it again. A call that takes too long, or a server that says too much, costs a
//! process its life: what it would still say belongs to nobody.

mod flood;
mod http;
mod stdio;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use canon::{Map, Number, Value};
use domain::{Egress, Observed};
use engine::port::Performed;
use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, Implementation,
    InitializeRequestParams, PaginatedRequestParams, ProtocolVersion, Tool,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransportConfig, StreamableHttpError,
};
use secrecy::ExposeSecret;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::config::{ConfigError, McpServerConfig, SecretRef, check_ids};
use crate::scrub::Scrubber;
use crate::secrets::{SecretError, Secrets, environment};
use crate::vault::SecretHandle;
use flood::Flood;
use stdio::Process;

/// How many tools of one server are taken.
const TOOLS_MAX: usize = 1_000;
/// How much of a server's own words is repeated.
const TOLD_CHARS_MAX: usize = 300;
/// Numbers that a double holds exactly reach this far.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;
/// Stands between the server and the tool in names for models.
pub(crate) const SEPARATOR: &str = "__";

/// The configured servers, by id.
#[derive(Debug)]
pub(crate) struct Servers(BTreeMap<String, Arc<Server>>);

/// A server, connected or not.
#[derive(Debug)]
pub(crate) struct Server {
    config: McpServerConfig,
    client: reqwest::Client,
    host: Option<String>,
    connection: Mutex<Option<Arc<Connection>>>,
}

#[derive(Debug)]
struct Connection {
    service: RunningService<RoleClient, InitializeRequestParams>,
    flood: Flood,
    process: std::sync::Mutex<Option<Process>>,
}

/// Why a server gave no answer.
#[derive(Debug)]
pub(crate) enum McpError {
    Secret(SecretError),
    Failed(&'static str, String),
}

impl McpError {
    /// Returns the stable word and the scrubbed reason.
    pub(crate) fn told(&self, server: &str, scrubber: &Scrubber) -> (&'static str, String) {
        let (code, said) = match self {
            McpError::Secret(error) => ("secret_unknown", error.to_string()),
            McpError::Failed(code, said) => (*code, said.clone()),
        };
        let said = scrubber.capped(&said, TOLD_CHARS_MAX);
        (code, format!("MCP server `{server}`: {said}"))
    }
}

impl Servers {
    pub(crate) fn new(
        configs: Vec<McpServerConfig>,
        client: &reqwest::Client,
    ) -> Result<Self, ConfigError> {
        check_ids(
            "MCP server",
            configs.iter().map(|config| config.id.as_str()),
        )?;
        let mut servers = BTreeMap::new();
        for config in configs {
            let host = check(&config).map_err(|problem| {
                ConfigError::new(format!("MCP server `{}`", config.id), problem)
            })?;
            let server = Server {
                client: client.clone(),
                host,
                connection: Mutex::default(),
                config,
            };
            servers.insert(server.config.id.clone(), Arc::new(server));
        }
        Ok(Self(servers))
    }

    pub(crate) fn find(&self, id: &str) -> Option<&Arc<Server>> {
        self.0.get(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.0.values()
    }

    /// Calls a tool.
    pub(crate) async fn perform(&self, request: &Value, secrets: &Secrets) -> Performed {
        let id = request
            .get("server")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let Some(server) = self.find(id) else {
            let message = format!("no MCP server `{id}` is configured");
            return Performed::error("mcp_server_unknown", message);
        };
        let result = server.call(request, secrets).await;
        let scrubber = secrets.scrubber();
        let performed = match result {
            Ok(value) => Performed::ok(scrubber.value(value)),
            Err(error) => {
                let (code, message) = error.told(id, &scrubber);
                Performed::error(code, message)
            }
        };
        Performed {
            observed: Some(server.observed()),
            ..performed
        }
    }

    /// Ends every connection and every process.
    pub(crate) async fn shutdown(&self) {
        for server in self.iter() {
            if let Some(connection) = server.connection.lock().await.take() {
                connection.service.cancellation_token().cancel();
                let process = connection.take_process();
                if let Some(process) = process {
                    process.end().await;
                }
            }
        }
    }
}

/// Returns the host of a server behind an address.
fn check(config: &McpServerConfig) -> Result<Option<String>, String> {
    if config.id.contains(SEPARATOR) {
        return Err(format!("the id cannot contain `{SEPARATOR}`"));
    }
    for name in config.headers.keys().chain(config.secret_headers.keys()) {
        HeaderName::try_from(name).map_err(|_| format!("`{name}` is no name of a header"))?;
    }
    match (&config.command, &config.url) {
        (Some(command), None) if !command.is_empty() => Ok(None),
        (None, Some(url)) => {
            let url = Url::parse(url).map_err(|error| format!("`url` is no address: {error}"))?;
            match (url.scheme(), url.host_str()) {
                ("http" | "https", Some(host)) => Ok(Some(host.to_owned())),
                _ => Err("`url` must begin with http:// or https://".to_owned()),
            }
        }
        _ => Err("needs either `command` or `url`".to_owned()),
    }
}

impl Server {
    pub(crate) fn id(&self) -> &str {
        &self.config.id
    }

    /// The secrets that its process or its address is given.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &SecretRef> {
        self.config
            .secrets
            .values()
            .chain(self.config.secret_headers.values())
    }

    fn observed(&self) -> Observed {
        match &self.host {
            Some(host) => Observed {
                network_egress: vec![Egress {
                    destination: host.clone(),
                    purpose: "mcp".to_owned(),
                    bytes_sent: None,
                }],
                ..Observed::default()
            },
            // Nobody watches what a server's process does.
            None => Observed {
                not_observed: vec!["fs_writes".to_owned(), "network_egress".to_owned()],
                ..Observed::default()
            },
        }
    }

    async fn call(&self, request: &Value, secrets: &Secrets) -> Result<Value, McpError> {
        let tool = request
            .get("tool")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let mut arguments = match request.get("arguments") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(members)) => members.clone(),
            Some(_) => {
                return Err(McpError::Failed(
                    "tool_arguments_invalid",
                    format!("arguments of `{tool}` are not an object"),
                ));
            }
        };
        for (name, handle) in request
            .get("secrets")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let handle = serde_json::from_value::<SecretHandle>(handle.clone()).map_err(|_| {
                McpError::Failed(
                    "secret_unknown",
                    format!("`{name}` is no handle of a secret"),
                )
            })?;
            let value = secrets.value_of(&handle).map_err(McpError::Secret)?;
            arguments.insert(name.clone(), value.expose_secret().into());
        }
        let connection = self.connected(secrets).await?;
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let answer = self
            .bounded(&connection, connection.service.call_tool_once(params))
            .await?;
        let CallToolResponse::Complete(result) = answer else {
            return Err(McpError::Failed(
                "mcp_protocol_error",
                format!("`{tool}` wants more than a call"),
            ));
        };
        let mut value = json!({
            "content": exact(serde_json::to_value(&result.content).unwrap_or_default()),
            "isError": result.is_error.unwrap_or(false),
        });
        if let (Some(structured), Some(members)) =
            (result.structured_content, value.as_object_mut())
        {
            members.insert("structuredContent".to_owned(), exact(structured));
        }
        Ok(value)
    }

    /// Returns the tools that the server offers.
    pub(crate) async fn tools(&self, secrets: &Secrets) -> Result<Vec<Tool>, McpError> {
        let connection = self.connected(secrets).await?;
        let list = async {
            let mut tools = Vec::new();
            let mut cursor = None;
            loop {
                let params = PaginatedRequestParams::default().with_cursor(cursor);
                let page = connection.service.list_tools(Some(params)).await?;
                tools.extend(page.tools);
                cursor = page.next_cursor;
                if cursor.is_none() || tools.len() > TOOLS_MAX {
                    return Ok(tools);
                }
            }
        };
        let tools = self.bounded(&connection, list).await?;
        if tools.len() > TOOLS_MAX {
            let said = format!("more than {TOOLS_MAX} tools");
            return Err(McpError::Failed("mcp_output_too_large", said));
        }
        Ok(tools)
    }

    /// Waits for an answer until it takes too long, becomes too much, or cannot come any more.
    async fn bounded<T>(
        &self,
        connection: &Arc<Connection>,
        answer: impl Future<Output = Result<T, ServiceError>>,
    ) -> Result<T, McpError> {
        let limit = self.config.timeout_ms;
        let flood = &connection.flood;
        flood.new_call();
        let outcome = tokio::select! {
            biased;
            () = flood.noticed() => None,
            outcome = timeout(Duration::from_millis(limit), answer) => Some(outcome),
        };
        flood.new_call();
        let (code, said) = match outcome {
            Some(Ok(Ok(answer))) => return Ok(answer),
            Some(Ok(Err(ServiceError::McpError(error)))) => {
                // The server is well; it only says no.
                let said = format!("error {}: {}", error.code.0, error.message);
                return Err(McpError::Failed("mcp_protocol_error", said));
            }
            None => too_much(flood),
            Some(_) if flood.is_noticed() => too_much(flood),
            Some(Err(_)) => ("mcp_timeout", format!("no answer within {limit} ms")),
            Some(Ok(Err(error))) => failure(&error),
        };
        self.forget(connection).await;
        Err(McpError::Failed(code, said))
    }

    /// Ends a connection that is of no more use.
    async fn forget(&self, connection: &Arc<Connection>) {
        // The others who wait on it learn that it is closed.
        drop(connection.take_process());
        let mut kept = self.connection.lock().await;
        if kept
            .as_ref()
            .is_some_and(|kept| Arc::ptr_eq(kept, connection))
        {
            *kept = None;
        }
    }

    async fn connected(&self, secrets: &Secrets) -> Result<Arc<Connection>, McpError> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref()
            && !connection.service.is_transport_closed()
            && !connection.flood.is_noticed()
        {
            return Ok(Arc::clone(connection));
        }
        *kept = None;
        let connection = Arc::new(self.connect(secrets).await?);
        *kept = Some(Arc::clone(&connection));
        Ok(connection)
    }

    async fn connect(&self, secrets: &Secrets) -> Result<Connection, McpError> {
        let config = &self.config;
        let flood = Flood::new(config.output_bytes_max);
        let me = InitializeRequestParams::new(
            ClientCapabilities::default(),
            Implementation::new("reprise", env!("CARGO_PKG_VERSION")),
        );
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::LATEST],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        };
        let limit = Duration::from_millis(config.start_timeout_ms);
        let mut process = None;
        let ready = match &config.url {
            Some(url) => {
                let client = http::Client {
                    inner: self.client.clone(),
                    flood: flood.clone(),
                };
                let settings = self.settings(url, secrets)?;
                let transport = StreamableHttpClientTransport::with_client(client, settings);
                timeout(limit, me.serve_with_lifecycle(transport, lifecycle)).await
            }
            None => {
                let hidden = environment(secrets, &config.secrets).map_err(McpError::Secret)?;
                let (started, output, input) = stdio::start(config, hidden, &flood)
                    .map_err(|problem| McpError::Failed("mcp_unavailable", problem))?;
                process = Some(started);
                let transport = AsyncRwTransport::new_client(output, input)
                    // The reader itself stops at our limit, and says so.
                    .with_max_line_length(usize::MAX);
                timeout(limit, me.serve_with_lifecycle(transport, lifecycle)).await
            }
        };
        let complaint = process.as_ref().map(|process| process.complaints());
        let said = match ready {
            Ok(Ok(service)) => {
                return Ok(Connection {
                    service,
                    flood,
                    process: std::sync::Mutex::new(process),
                });
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("not ready within {} ms", config.start_timeout_ms),
        };
        if flood.is_noticed() {
            let (code, said) = too_much(&flood);
            return Err(McpError::Failed(code, said));
        }
        let complaint = complaint.map(|complaint| complaint.last_line());
        Err(McpError::Failed(
            "mcp_unavailable",
            match complaint.filter(|line| !line.is_empty()) {
                Some(line) => format!("{said} ({line})"),
                None => said,
            },
        ))
    }

    fn settings(
        &self,
        url: &str,
        secrets: &Secrets,
    ) -> Result<StreamableHttpClientTransportConfig, McpError> {
        let config = &self.config;
        let mut headers = HashMap::new();
        let hidden = environment(secrets, &config.secret_headers).map_err(McpError::Secret)?;
        let plain = config
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let hidden = hidden
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose_secret()));
        for (name, value) in plain.chain(hidden) {
            let (Ok(name), Ok(mut value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            else {
                let said = format!("header `{name}` cannot be sent");
                return Err(McpError::Failed("mcp_unavailable", said));
            };
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let mut settings = StreamableHttpClientTransportConfig::with_uri(url)
            .custom_headers(headers)
            .max_sse_event_size(config.output_bytes_max);
        if let Some(bearer) = &config.bearer {
            let token = secrets.key(bearer).map_err(McpError::Secret)?;
            settings = settings.auth_header(token.expose_secret());
        }
        Ok(settings)
    }
}

impl Connection {
    fn take_process(&self) -> Option<Process> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.take()
    }
}

fn too_much(flood: &Flood) -> (&'static str, String) {
    let max = flood.message_bytes_max();
    (
        "mcp_output_too_large",
        format!("the server says more than {max} bytes at once"),
    )
}

fn failure(error: &ServiceError) -> (&'static str, String) {
    let code = match error {
        ServiceError::TransportSend(sent) => {
            match sent
                .error
                .downcast_ref::<StreamableHttpError<reqwest::Error>>()
            {
                Some(
                    StreamableHttpError::Deserialize(_)
                    | StreamableHttpError::UnexpectedContentType(_)
                    | StreamableHttpError::UnexpectedServerResponse(_),
                ) => "mcp_protocol_error",
                _ => "mcp_unavailable",
            }
        }
        ServiceError::UnexpectedResponse => "mcp_protocol_error",
        _ => "mcp_unavailable",
    };
    let said = match error {
        ServiceError::TransportClosed => "the connection closed during the call".to_owned(),
        ServiceError::TransportSend(_) => "the call could not be delivered or answered".to_owned(),
        other => other.to_string(),
    };
    (code, said)
}

/// Carries integers that a double cannot hold as text: their canonical form would be another number.
fn exact(value: Value) -> Value {
    match value {
        Value::Number(number) if is_inexact(&number) => Value::String(number.to_string()),
        Value::Array(items) => items.into_iter().map(exact).collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(name, member)| (name, exact(member)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

fn is_inexact(number: &Number) -> bool {
    number
        .as_u64()
        .is_some_and(|number| number > SAFE_INTEGER_MAX)
        || number
            .as_i64()
            .is_some_and(|number| number.unsigned_abs() > SAFE_INTEGER_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_that_a_double_cannot_hold_become_text() {
        let value = json!({"a": [9_007_199_254_740_993_u64, 9_007_199_254_740_991_u64, -9_007_199_254_740_993_i64, 1.5]});
        assert_eq!(
            exact(value),
            json!({"a": ["9007199254740993", 9_007_199_254_740_991_u64, "-9007199254740993", 1.5]})
        );
    }
}
