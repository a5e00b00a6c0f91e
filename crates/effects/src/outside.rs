//! The performer: sends each effect to whoever can perform it, and scrubs what comes back.

use std::fmt;
use std::sync::Arc;

use canon::Value;
use engine::Offline;
use engine::port::{BoxFuture, Deltas, Performer};
use runs::workflow::{Effect, EffectKind, EffectOutcome};
use secrecy::SecretString;
use serde_json::json;

use crate::catalog::{self, CatalogError, CatalogTool};
use crate::client::SharedClient;
use crate::config::{ApiKey, Config, ConfigError};
use crate::confine::Confinement;
use crate::mcp::Servers;
use crate::provider::{Choice, Embeddings, Providers};
use crate::secrets::{SecretError, Secrets};
use crate::tool::Tools;
use crate::vault::Vault;

/// The outside of one configuration. Clones share their connections and processes.
#[derive(Clone)]
pub struct Outside(Arc<Inner>);

struct Inner {
    providers: Providers,
    tools: Tools,
    servers: Servers,
    secrets: Secrets,
    host_env: Vec<String>,
}

impl fmt::Debug for Outside {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Outside")
            .field("providers", &self.0.providers)
            .finish_non_exhaustive()
    }
}

impl Outside {
    /// Checks a configuration and makes it ready. Nothing is contacted or started yet.
    ///
    /// # Errors
    /// Names the part of the configuration that cannot work.
    pub fn new(
        config: Config,
        vault: Option<Vault>,
        confinement: Confinement,
    ) -> Result<Self, ConfigError> {
        let confinement = Arc::new(confinement);
        let client = SharedClient::default();
        let tools = Tools::new(config.tools.clone(), &confinement)?;
        let servers = Servers::new(config.mcp_servers.clone(), &client, &confinement)?;
        catalog::check(&tools, &servers)?;
        Ok(Self(Arc::new(Inner {
            providers: Providers::new(&config, &client)?,
            tools,
            servers,
            secrets: Secrets::new(vault, &config),
            host_env: config.host_env,
        })))
    }

    /// Returns what of the configuration will not work as long as nothing changes: folders that are not there, secrets that
    /// nobody set. All of it can be mended while the server runs.
    pub fn warnings(&self) -> Vec<String> {
        let inner = &self.0;
        let mut warnings = Vec::new();
        for (place, reach, secrets) in (inner.tools.iter().map(|tool| tool.needs()))
            .chain(inner.servers.iter().map(|server| server.needs()))
        {
            let missing = reach.into_iter().filter(|path| !path.exists());
            warnings
                .extend(missing.map(|path| format!("{place}: there is no `{}`", path.display())));
            let unknown = secrets
                .into_iter()
                .filter_map(|secret| inner.secrets.newest(std::iter::once(secret)).err());
            warnings.extend(unknown.map(|error| format!("{place}: {error}")));
        }
        if inner.tools.iter().any(|tool| tool.leaves_modes())
            || inner.servers.iter().any(|server| server.leaves_modes())
        {
            let warning = "tools could change modes, owners and times of this user's files, because the system allows \
                no user namespaces; let only this user enter the folder that holds the data directory";
            warnings.push(warning.to_owned());
        }
        for (id, key) in inner.providers.keys() {
            if let Err(error) = inner.secrets.key(key) {
                warnings.push(format!("provider `{id}`: {error}"));
            }
        }
        warnings
    }

    /// Returns a model of a provider that makes vectors. Nothing is contacted yet.
    ///
    /// # Errors
    /// The provider is unknown or speaks another format, or no model is named.
    pub fn embeddings(&self, provider: &str, model: &str) -> Result<Embeddings, ConfigError> {
        self.0.providers.embeddings(self.clone(), provider, model)
    }

    pub(crate) fn key(&self, key: &ApiKey) -> Result<SecretString, SecretError> {
        self.0.secrets.key(key)
    }

    /// Returns all tools that models may call, by name. Starts and contacts the MCP servers that it must ask.
    ///
    /// # Errors
    /// Names the server that does not answer.
    pub async fn tool_catalog(&self) -> Result<Vec<CatalogTool>, CatalogError> {
        let inner = &self.0;
        catalog::list(&inner.tools, &inner.servers, None, &inner.secrets).await
    }

    /// Ends all processes that were started for MCP servers. A later effect would start them again.
    pub async fn shutdown(&self) {
        self.0.servers.shutdown().await;
    }
}

impl Performer for Outside {
    fn perform(&self, effect: Effect, deltas: Deltas) -> BoxFuture<'static, EffectOutcome> {
        let inner = Arc::clone(&self.0);
        match effect.kind {
            EffectKind::Model => match inner.providers.choose(&effect.request) {
                Choice::Offline => Offline.perform(effect, deltas),
                Choice::Unknown(id) => Box::pin(std::future::ready(Choice::unknown(&id))),
                Choice::Call(call) => {
                    Box::pin(async move { call.perform(&effect, &deltas, &inner.secrets).await })
                }
            },
            EffectKind::Secret => Box::pin(async move { inner.secrets.handle(&effect.request) }),
            EffectKind::Host => Box::pin(async move { inner.host(&effect.request).await }),
            EffectKind::LocalTool => {
                Box::pin(async move { inner.tools.perform(&effect, &inner.secrets).await })
            }
            EffectKind::McpTool => {
                Box::pin(async move { inner.servers.perform(&effect, &inner.secrets).await })
            }
            EffectKind::Time
            | EffectKind::Random
            | EffectKind::Memory
            | EffectKind::Hold
            | EffectKind::Ask(_) => Offline.perform(effect, deltas),
        }
    }
}

impl Inner {
    async fn host(&self, request: &Value) -> EffectOutcome {
        let text = |member: &str| {
            request
                .get(member)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        match text("capability") {
            "env" => self.environment(text("name")),
            "tools" => self.tools(request.get("names")).await,
            other => EffectOutcome::error(
                "capability_unknown",
                format!("there is no host fact `{other}`"),
            ),
        }
    }

    async fn tools(&self, names: Option<&Value>) -> EffectOutcome {
        let names = match names {
            None | Some(Value::Null) => None,
            Some(names) => {
                let texts = names
                    .as_array()
                    .and_then(|names| names.iter().map(Value::as_str).collect());
                let Some(texts) = texts else {
                    return EffectOutcome::error("tool_unknown", "`names` is not a list of names");
                };
                Some::<Vec<&str>>(texts)
            }
        };
        let listed = catalog::list(&self.tools, &self.servers, names.as_deref(), &self.secrets);
        match listed.await {
            Ok(tools) => EffectOutcome::ok(json!({"tools": tools})),
            Err(error) => EffectOutcome::error(error.code, error.message),
        }
    }

    fn environment(&self, name: &str) -> EffectOutcome {
        if !self.host_env.iter().any(|allowed| allowed == name) {
            return EffectOutcome::error(
                "env_not_allowed",
                format!("`{name}` is not in `host_env` of the configuration"),
            );
        }
        let value = std::env::var(name).ok();
        let value = value.map(|value| self.secrets.scrubber().text(&value));
        EffectOutcome::ok(json!({"name": name, "value": value}))
    }
}
