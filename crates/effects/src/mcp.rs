//! MCP servers: connections that are kept, calls that end.
//!
//! A server is started or contacted when it is first needed and kept. When its process dies the calls in flight
//! fail and the next one starts it again. A call that takes too long, or a process that says too much, costs a
//! process its life: what it would still say belongs to nobody. Behind an address each call has an answer of its own,
//! and one that is too long costs nothing but that call.
//!
//! Calls are in [`call`], connections and the secrets that they were made with in [`connection`].

mod call;
mod connection;
mod flood;
mod http;
mod stdio;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use canon::Value;
use domain::{Egress, Observed};
use reqwest::Url;
use reqwest::header::HeaderName;
use runs::workflow::{Effect, EffectOutcome};
use tokio::sync::Mutex;

use crate::client::SharedClient;
use crate::config::{
    ApiKey, ConfigError, IN_THE_CLEAR, McpServerConfig, SecretRef, check_ids, keeps_a_key,
};
use crate::confine::{Confinement, Sandbox, SandboxAccess};
use crate::scrub::Scrubber;
use crate::secrets::{SecretError, Secrets};
use connection::Connection;

/// How much of a server's own words is repeated.
const TOLD_CHARS_MAX: usize = 300;
/// Stands between the server and the tool in names for models.
pub(crate) const SEPARATOR: &str = "__";

/// The configured servers, by id.
#[derive(Debug)]
pub(crate) struct Servers(BTreeMap<String, Arc<Server>>);

/// A server, connected or not.
#[derive(Debug)]
pub(crate) struct Server {
    config: McpServerConfig,
    /// For one behind an address.
    client: Option<reqwest::Client>,
    host: Option<String>,
    /// That of its program, if it is one.
    sandbox: Option<Sandbox>,
    connection: Mutex<Option<Arc<Connection>>>,
}

/// Why a server gave no answer.
#[derive(Debug)]
pub(crate) enum McpError {
    Secret(SecretError),
    Failed(&'static str, String),
}

impl McpError {
    /// Returns the stable word and the scrubbed reason.
    pub(crate) fn code_and_reason(
        &self,
        server: &str,
        scrubber: &Scrubber,
    ) -> (&'static str, String) {
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
        client: &SharedClient,
        confinement: &Arc<Confinement>,
    ) -> Result<Self, ConfigError> {
        check_ids(
            "MCP server",
            configs.iter().map(|config| config.id.as_str()),
        )?;
        let mut servers = BTreeMap::new();
        for config in configs {
            let refused =
                |problem| ConfigError::new(format!("MCP server `{}`", config.id), problem);
            let host = check(&config).map_err(refused)?;
            let sandbox = match config.command {
                Some(_) => Some(sandbox(&config, confinement).map_err(refused)?),
                None => None,
            };
            let client = match config.url {
                Some(_) => Some(client.get().map_err(refused)?),
                None => None,
            };
            let server = Server {
                client,
                host,
                sandbox,
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
    pub(crate) async fn perform(&self, effect: &Effect, secrets: &Secrets) -> EffectOutcome {
        let id = effect
            .request
            .get("server")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let Some(server) = self.find(id) else {
            let message = format!("no MCP server `{id}` is configured");
            return EffectOutcome::error("mcp_server_unknown", message);
        };
        let result = server.call(effect, secrets).await;
        let scrubber = secrets.scrubber();
        let performed = match result {
            Ok(value) => EffectOutcome::ok(scrubber.value(value)),
            Err(error) => {
                let (code, message) = error.code_and_reason(id, &scrubber);
                EffectOutcome::error(code, message)
            }
        };
        EffectOutcome {
            observed: Some(server.observed()),
            ..performed
        }
    }

    /// Ends every connection and every process.
    pub(crate) async fn shutdown(&self) {
        for server in self.iter() {
            if let Some(connection) = server.connection.lock().await.take() {
                connection.end().await;
            }
        }
    }
}

fn sandbox(config: &McpServerConfig, confinement: &Arc<Confinement>) -> Result<Sandbox, String> {
    let reach = SandboxAccess {
        folder: config.folder.clone(),
        read: config.read.clone(),
        write: config.write.clone(),
        network: config.network,
        mode: config.sandbox,
    };
    Sandbox::new(confinement, reach)
}

/// Returns the host of a server behind an address.
fn check(config: &McpServerConfig) -> Result<Option<String>, String> {
    if config.id.contains(SEPARATOR) {
        return Err(format!("the id cannot contain `{SEPARATOR}`"));
    }
    for name in config.headers.keys().chain(config.secret_headers.keys()) {
        HeaderName::try_from(name).map_err(|_| format!("`{name}` is not a valid header name"))?;
    }
    match (&config.command, &config.url) {
        (Some(command), None) if !command.is_empty() => Ok(None),
        (None, Some(url)) => {
            let url =
                Url::parse(url).map_err(|error| format!("`url` is not a valid URL: {error}"))?;
            let carries_a_key = config.bearer.is_some() || !config.secret_headers.is_empty();
            if url.scheme() == "http" && carries_a_key && !keeps_a_key(&url) {
                return Err(IN_THE_CLEAR.replace("{member}", "url"));
            }
            match (url.scheme(), url.host_str()) {
                ("http" | "https", Some(host)) => Ok(Some(host.to_owned())),
                _ => Err("`url` must begin with http:// or https://".to_owned()),
            }
        }
        _ => Err("needs either `command` or `url`".to_owned()),
    }
}

fn is_named(names: &[String], tool: &str) -> bool {
    names.iter().any(|name| name == tool || name == "*")
}

impl Server {
    pub(crate) fn id(&self) -> &str {
        &self.config.id
    }

    /// Its name for people, the places that its program uses and the secrets that it is given.
    pub(crate) fn needs(&self) -> (String, Vec<&PathBuf>, Vec<&SecretRef>) {
        let place = format!("MCP server `{}`", self.config.id);
        let places = self.sandbox.as_ref().map(Sandbox::places);
        (place, places.unwrap_or_default(), self.secrets().collect())
    }

    /// Returns whether its program is confined, but could change modes of files outside its folders.
    pub(crate) fn leaves_modes(&self) -> bool {
        self.sandbox.as_ref().is_some_and(Sandbox::leaves_modes)
    }

    /// Returns whether the operator says that a tool changes nothing.
    pub(crate) fn is_read_only(&self, tool: &str) -> bool {
        is_named(&self.config.read_only, tool)
    }

    /// Returns whether the operator says that a tool may be called twice.
    pub(crate) fn is_repeatable(&self, tool: &str) -> bool {
        is_named(&self.config.repeatable, tool)
    }

    /// The secrets that its process or its address is given.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &SecretRef> {
        let bearer = match &self.config.bearer {
            Some(ApiKey::Secret(secret)) => Some(secret),
            Some(ApiKey::Env(_)) | None => None,
        };
        self.config
            .secrets
            .values()
            .chain(self.config.secret_headers.values())
            .chain(bearer)
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
                sandbox: self.sandbox.as_ref().map(Sandbox::limits_record),
                ..Observed::default()
            },
        }
    }
}
