//! The configuration of the outside: providers, tools, MCP servers, prices.
//!
//! Owns the shapes, their defaults and the checks that need nothing but the text. Files, programs and servers
//! that it names are looked at when [`crate::Outside`] is made or when they are used.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use canon::Value;
pub use domain::{Price, PriceTable};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// All that effects may use outside. Everything is optional: without any of it the built-in offline model answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Model providers. The first one answers calls that name none.
    pub providers: Vec<ProviderConfig>,
    /// Prices that the shipped table lacks or has wrong.
    pub prices: Option<PriceTable>,
    /// Local commands that models may call.
    pub tools: Vec<ToolConfig>,
    /// MCP servers whose tools models may call.
    pub mcp_servers: Vec<McpServerConfig>,
    /// Names of environment variables that a workflow may read as host facts.
    pub host_env: Vec<String>,
}

/// The wire format of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// Chat completions: `POST <base_url>/chat/completions`.
    Openai,
    /// Messages: `POST <base_url>/v1/messages`.
    Anthropic,
    /// Answers from a YAML file.
    Scripted,
}

/// Where a key is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ApiKey {
    /// In the vault: `name` or `vault/name`.
    Secret(SecretRef),
    /// In an environment variable of this process.
    Env(String),
}

impl<'de> Deserialize<'de> for ApiKey {
    /// Whoever writes the key itself here learns where it belongs, and does not see it repeated.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Kept {
            Secret(SecretRef),
            Env(String),
        }
        struct Place;
        impl<'de> Visitor<'de> for Place {
            type Value = ApiKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`{ secret = \"NAME\" }` or `{ env = \"NAME\" }`")
            }

            fn visit_str<E: de::Error>(self, _: &str) -> Result<ApiKey, E> {
                Err(E::custom(
                    "a key does not belong in a configuration file: keep it with `reprise vault set NAME` and write \
                     `api_key = { secret = \"NAME\" }`, or `{ env = \"NAME\" }` for a variable",
                ))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ApiKey, A::Error> {
                let kept = Kept::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(match kept {
                    Kept::Secret(secret) => ApiKey::Secret(secret),
                    Kept::Env(name) => ApiKey::Env(name),
                })
            }
        }
        deserializer.deserialize_any(Place)
    }
}

/// A secret of the vault: `name` or `vault/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretRef(pub String);

impl SecretRef {
    /// Returns the vault, if one is named, and the name.
    pub fn parts(&self) -> (Option<&str>, &str) {
        match self.0.split_once('/') {
            Some((vault, name)) => (Some(vault), name),
            None => (None, &self.0),
        }
    }
}

/// One model provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// Its name in requests, events and receipts.
    pub id: String,
    /// Its wire format.
    pub kind: ProviderKind,
    /// Where it listens; each format has its public service as default.
    pub base_url: Option<String>,
    /// Its key, if it needs one.
    pub api_key: Option<ApiKey>,
    /// The model for requests that name none.
    pub model: Option<String>,
    /// Whether answers are asked for piece by piece.
    #[serde(default = "yes")]
    pub stream: bool,
    /// How long one attempt may take, to its last byte.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// How often a call is tried again after a refused connection, a 429 or a 5xx.
    #[serde(default = "retries_max")]
    pub retries_max: u32,
    /// The first wait before trying again; each further one is twice as long.
    #[serde(default = "retry_backoff_ms")]
    pub retry_backoff_ms: u64,
    /// Tokens to write when the request sets no limit and the format needs one.
    #[serde(default = "max_tokens_default")]
    pub max_tokens_default: u64,
    /// The member that carries `max_tokens` in chat completions, for services that renamed it.
    #[serde(default = "max_tokens_member")]
    pub max_tokens_member: String,
    /// The answers of a scripted provider.
    pub file: Option<PathBuf>,
}

const fn yes() -> bool {
    true
}
const fn timeout_ms() -> u64 {
    120_000
}
const fn retries_max() -> u32 {
    2
}
const fn retry_backoff_ms() -> u64 {
    250
}
const fn max_tokens_default() -> u64 {
    4_096
}
fn max_tokens_member() -> String {
    "max_tokens".to_owned()
}

/// A local command that models may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolConfig {
    /// Its name, as models see it.
    pub name: String,
    /// What it does, as models see it.
    #[serde(default)]
    pub description: String,
    /// What it takes, as a JSON Schema of an object.
    #[serde(default = "any_object")]
    pub parameters: Value,
    /// The program and its arguments. An element that is `{name}` becomes the argument of that name, as one
    /// element, or as several for a list; it is left out when the call has no such argument. There is no shell.
    /// Put `--` before an argument that must not be taken for an option.
    pub argv: Vec<String>,
    /// What the program reads.
    #[serde(default)]
    pub stdin: Stdin,
    /// Where it runs. What it changes there is observed; without a folder nothing is.
    pub folder: Option<PathBuf>,
    /// Variables of this process that it gets.
    #[serde(default = "path_only")]
    pub env: Vec<String>,
    /// Variables that hold secrets of the vault.
    #[serde(default)]
    pub secrets: BTreeMap<String, SecretRef>,
    /// How long it may run before its whole process group is killed.
    #[serde(default = "tool_timeout_ms")]
    pub timeout_ms: u64,
    /// How much of each of its outputs is kept.
    #[serde(default = "output_bytes_max")]
    pub output_bytes_max: usize,
    /// How many files the folder may hold to be observed.
    #[serde(default = "observed_files_max")]
    pub observed_files_max: usize,
    /// How many bytes the files of the folder may hold to be observed.
    #[serde(default = "observed_bytes_max")]
    pub observed_bytes_max: u64,
    /// True when it may run again after a crash that left its result unknown.
    #[serde(default)]
    pub repeatable: bool,
    /// True when it changes nothing. Only such tools run without asking under the careful tiers.
    #[serde(default)]
    pub read_only: bool,
    /// What it can read besides system folders, its own file and its folder.
    #[serde(default)]
    pub read: Vec<PathBuf>,
    /// What it can change besides its folder and a temporary one.
    #[serde(default)]
    pub write: Vec<PathBuf>,
    /// Whether it has the network.
    #[serde(default)]
    pub network: bool,
    /// Whether it is confined.
    #[serde(default)]
    pub sandbox: SandboxMode,
}

/// Whether a program is confined by the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxMode {
    /// It is, and does not run where that is not possible.
    #[default]
    On,
    /// It runs with the rights of the server: it can read the server's keys.
    Off,
}

/// What a local command reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// Nothing.
    #[default]
    None,
    /// The arguments as one JSON text.
    Json,
}

fn any_object() -> Value {
    serde_json::json!({"type": "object"})
}
fn path_only() -> Vec<String> {
    vec!["PATH".to_owned()]
}
const fn tool_timeout_ms() -> u64 {
    60_000
}
const fn output_bytes_max() -> usize {
    65_536
}
const fn observed_files_max() -> usize {
    10_000
}
const fn observed_bytes_max() -> u64 {
    64 * 1024 * 1024
}

/// An MCP server: a program that is started, or an address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpServerConfig {
    /// Its name; models see its tools as `id__tool`.
    pub id: String,
    /// The program and its arguments, to speak over its input and output. Either this or `url`.
    pub command: Option<Vec<String>>,
    /// The address, to speak over HTTP. Either this or `command`.
    pub url: Option<String>,
    /// Where the program runs.
    pub folder: Option<PathBuf>,
    /// Variables of this process that the program gets.
    #[serde(default = "path_and_home")]
    pub env: Vec<String>,
    /// Variables of the program that hold secrets of the vault.
    #[serde(default)]
    pub secrets: BTreeMap<String, SecretRef>,
    /// Headers of each request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Headers of each request that hold secrets of the vault.
    #[serde(default)]
    pub secret_headers: BTreeMap<String, SecretRef>,
    /// The key that is sent as bearer token.
    pub bearer: Option<ApiKey>,
    /// How long one call may take. A program that takes longer is killed.
    #[serde(default = "tool_timeout_ms")]
    pub timeout_ms: u64,
    /// How long it may take until the server is ready.
    #[serde(default = "start_timeout_ms")]
    pub start_timeout_ms: u64,
    /// The longest message of the server.
    #[serde(default = "message_bytes_max")]
    pub output_bytes_max: usize,
    /// Its tools that change nothing, by their names there, or `*`. Only such tools run without asking under the
    /// careful tiers. What the server itself says of a tool can take this back, never give it.
    #[serde(default)]
    pub read_only: Vec<String>,
    /// Its tools that may be called again after a crash that left their result unknown, by their names there, or `*`.
    #[serde(default)]
    pub repeatable: Vec<String>,
    /// What the program can read besides system folders, its own file and its folder.
    #[serde(default)]
    pub read: Vec<PathBuf>,
    /// What the program can change besides its folder and a temporary one.
    #[serde(default)]
    pub write: Vec<PathBuf>,
    /// Whether the program has the network.
    #[serde(default)]
    pub network: bool,
    /// Whether the program is confined.
    #[serde(default)]
    pub sandbox: SandboxMode,
}

fn path_and_home() -> Vec<String> {
    vec!["PATH".to_owned(), "HOME".to_owned()]
}
const fn start_timeout_ms() -> u64 {
    30_000
}
const fn message_bytes_max() -> usize {
    1024 * 1024
}

/// A configuration that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct ConfigError {
    place: String,
    problem: String,
}

impl ConfigError {
    pub(crate) fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            problem: problem.into(),
        }
    }

    /// Returns which part of the configuration is meant, such as ``provider `main` ``.
    pub fn place(&self) -> &str {
        &self.place
    }
}

/// Why an address is refused that a key would be sent to.
pub(crate) const IN_THE_CLEAR: &str = "`{member}` is plain http://, which would expose the key on the network; use https://, or an address of this machine";

/// Returns whether nobody on the way can read what is sent: it is encrypted, or does not leave this machine.
pub(crate) fn keeps_a_key(url: &reqwest::Url) -> bool {
    let name = url.host_str().unwrap_or_default();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let is_here = match address.parse::<std::net::IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => name == "localhost" || name.ends_with(".localhost"),
    };
    url.scheme() == "https" || is_here
}

/// Checks that ids of a kind are well-formed and each used once.
pub(crate) fn check_ids<'a>(
    kind: &str,
    ids: impl IntoIterator<Item = &'a str>,
) -> Result<(), ConfigError> {
    let mut seen = BTreeMap::new();
    for id in ids {
        let place = format!("{kind} `{id}`");
        if !is_tool_name(id) {
            return Err(ConfigError::new(
                place,
                "a name is 1 to 64 of the characters A-Z a-z 0-9 _ -",
            ));
        }
        if seen.insert(id, ()).is_some() {
            return Err(ConfigError::new(place, "is defined twice"));
        }
    }
    Ok(())
}

/// Returns whether every provider takes this as the name of a tool.
pub(crate) fn is_tool_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}
