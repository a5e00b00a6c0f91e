//! Connections: made when they are needed, kept, and left when they are of no more use.
//!
//! A connection was made with certain versions of secrets. Only runs whose handles mean these versions use it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::RoleClient;
use rmcp::model::{ClientCapabilities, Implementation, InitializeRequestParams, ProtocolVersion};
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransportConfig, StreamableHttpError,
};
use runs::workflow::Handles;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;

use super::call::flood_error;
use super::flood::Flood;
use super::stdio::{self, Process};
use super::{McpError, Server, http};
use crate::config::ApiKey;
use crate::secrets::{SecretError, Secrets, environment};

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) service: RunningService<RoleClient, InitializeRequestParams>,
    pub(super) flood: Flood,
    /// What the run that needed it had on record.
    handles: Handles,
    process: std::sync::Mutex<Option<Process>>,
}

/// The values that a server is given.
struct ServerSecrets {
    variables: Vec<(String, SecretString)>,
    headers: Vec<(String, SecretString)>,
    bearer: Option<SecretString>,
}

impl Server {
    /// Ends a connection that is of no more use.
    pub(super) async fn forget(&self, connection: &Arc<Connection>) {
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

    /// Returns the connection that was made with what a run has on record, or makes it.
    pub(super) async fn connected(
        &self,
        secrets: &Secrets,
        handles: &Handles,
    ) -> Result<Arc<Connection>, McpError> {
        let own = |name: &String| Some((name.clone(), handles.get(name)?.clone()));
        let handles: Handles = self.secrets().filter_map(|secret| own(&secret.0)).collect();
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref()
            && connection.handles == handles
            && !connection.service.is_transport_closed()
            && !connection.flood.is_noticed()
        {
            return Ok(Arc::clone(connection));
        }
        // First, so that a run whose version is gone costs nobody else the connection.
        let given = self.given(secrets, &handles).map_err(McpError::Secret)?;
        *kept = None;
        let connection = Arc::new(self.connect(given, handles).await?);
        *kept = Some(Arc::clone(&connection));
        Ok(connection)
    }

    fn given(&self, secrets: &Secrets, handles: &Handles) -> Result<ServerSecrets, SecretError> {
        let config = &self.config;
        Ok(ServerSecrets {
            variables: environment(secrets, &config.secrets, handles)?,
            headers: environment(secrets, &config.secret_headers, handles)?,
            bearer: match &config.bearer {
                Some(ApiKey::Secret(secret)) => Some(secrets.resolve(secret, handles)?),
                Some(key @ ApiKey::Env(_)) => Some(secrets.key(key)?),
                None => None,
            },
        })
    }

    async fn connect(
        &self,
        given: ServerSecrets,
        handles: Handles,
    ) -> Result<Connection, McpError> {
        let config = &self.config;
        let flood = Flood::new(config.output_bytes_max)
            .map_err(|problem| McpError::Failed("mcp_unavailable", problem))?;
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
        let ready = match (&config.url, &self.client) {
            (Some(url), Some(client)) => {
                let client = http::Client {
                    inner: client.clone(),
                    flood: flood.clone(),
                };
                let settings = self.settings(url, &given)?;
                let transport = StreamableHttpClientTransport::with_client(client, settings);
                timeout(limit, me.serve_with_lifecycle(transport, lifecycle)).await
            }
            _ => {
                let sandbox = self.sandbox.as_ref().ok_or_else(|| {
                    McpError::Failed("mcp_unavailable", "there is no program".to_owned())
                })?;
                let (started, output, input) =
                    stdio::start(config, sandbox, given.variables, &flood)
                        .map_err(|problem| McpError::Failed("mcp_unavailable", problem))?;
                process = Some(started);
                let transport = AsyncRwTransport::new_client(output, input)
                    // The reader itself stops at our limit, and says so.
                    .with_max_line_length(usize::MAX);
                timeout(limit, me.serve_with_lifecycle(transport, lifecycle)).await
            }
        };
        let said = match ready {
            Ok(Ok(service)) => {
                return Ok(Connection {
                    service,
                    flood,
                    handles,
                    process: std::sync::Mutex::new(process),
                });
            }
            Ok(Err(error)) => self.not_begun(&error),
            Err(_) => format!("not ready within {} ms", config.start_timeout_ms),
        };
        if flood.is_noticed() {
            let (code, said) = flood_error(&flood);
            return Err(McpError::Failed(code, said));
        }
        let complaint = match &mut process {
            Some(process) => Some(process.stderr_tail().await),
            None => None,
        };
        Err(McpError::Failed(
            "mcp_unavailable",
            match complaint.filter(|line| !line.is_empty()) {
                Some(line) => format!("{said} ({line})"),
                None => said,
            },
        ))
    }

    /// Says why a connection did not begin: where, and the cause at the bottom, in place of the transport's own names.
    fn not_begun(&self, error: &ClientInitializeError) -> String {
        let ClientInitializeError::TransportError { error, .. } = error else {
            return error.to_string();
        };
        // This one does not say what is behind it.
        let mut cause: &dyn std::error::Error = match error
            .error
            .downcast_ref::<StreamableHttpError<reqwest::Error>>()
        {
            Some(StreamableHttpError::Client(sent)) => sent,
            _ => &*error.error,
        };
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        let url = self.config.url.as_deref().map(reqwest::Url::parse);
        match url {
            // The rest of an address may hold what nobody should read.
            Some(Ok(url)) => format!("{}: {cause}", url.origin().ascii_serialization()),
            Some(Err(_)) | None => cause.to_string(),
        }
    }

    fn settings(
        &self,
        url: &str,
        given: &ServerSecrets,
    ) -> Result<StreamableHttpClientTransportConfig, McpError> {
        let config = &self.config;
        let mut headers = HashMap::new();
        let plain = config
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let hidden = given
            .headers
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
        if let Some(token) = &given.bearer {
            settings = settings.auth_header(token.expose_secret());
        }
        Ok(settings)
    }
}

impl Connection {
    /// Ends it, and waits a little for its process.
    pub(super) async fn end(&self) {
        self.service.cancellation_token().cancel();
        if let Some(process) = self.take_process() {
            process.end().await;
        }
    }

    fn take_process(&self) -> Option<Process> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.take()
    }
}
