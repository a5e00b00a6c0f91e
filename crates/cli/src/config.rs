//! The server's settings: flags over environment over file over defaults.
//!
//! Owns the configuration format, its defaults, and the commented file that `serve --print-config` prints. A key that
//! nobody knows is an error with its line.

mod print;
mod value;

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use effects::{McpServerConfig, PriceTable, ProviderConfig, ToolConfig};

use crate::exit::{OrHint, Problem};
use crate::webhook::WebhookConfig;

pub(crate) use print::print;
use value::{
    Bounded, Count, FieldLevel, HeartbeatMs, Mebibytes, Rate, RetentionS, Size, TimeoutMs,
    VoteTimeoutS, WindowMs,
};

/// All settings, each with its default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) data: PathBuf,
    pub(crate) listen: String,
    pub(crate) allow_plain_http: bool,
    pub(crate) public_url: String,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) card_object: CardObject,
    pub(crate) issuer_id: String,
    pub(crate) issuer_name: String,
    pub(crate) origin: String,
    pub(crate) replay_conformance: bool,
    pub(crate) examples: bool,
    pub(crate) retention_days: Rate,
    pub(crate) connectors: Vec<Connector>,
    pub(crate) providers: Vec<ProviderConfig>,
    pub(crate) tools: Vec<ToolConfig>,
    pub(crate) mcp_servers: Vec<McpServerConfig>,
    pub(crate) contracts: Vec<ContractsConfig>,
    pub(crate) approval_webhooks: Vec<WebhookConfig>,
    pub(crate) host_env: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prices: Option<PriceTable>,
    pub(crate) fields: Fields,
    pub(crate) governed: Governed,
    pub(crate) log: Log,
    pub(crate) tls: Tls,
    pub(crate) limits: Limits,
}

impl Settings {
    /// Returns for how many days events are kept whole; none for good.
    pub(crate) fn retention(&self) -> Option<u32> {
        Some(self.retention_days.0).filter(|days| *days > 0)
    }
}

/// A set of contracts that personas may name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContractsConfig {
    /// The name that personas use.
    pub(crate) name: String,
    /// The folder with `<tool>.yaml` for each tool and perhaps `session.yaml`.
    pub(crate) folder: PathBuf,
    /// Who the agent is, for policies.
    #[serde(default)]
    pub(crate) principal: serde_json::Map<String, serde_json::Value>,
}

/// What governed sessions must hold to; whoever opens one chooses within it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Governed {
    pub(crate) mode: ModeSetting,
    pub(crate) unmatched_policy: UnmatchedTools,
    pub(crate) contracts: ContractSource,
}

impl Default for Governed {
    fn default() -> Self {
        Self {
            mode: ModeSetting::LogOnly,
            unmatched_policy: UnmatchedTools::Allow,
            contracts: ContractSource::Any,
        }
    }
}

/// The weakest mode that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ModeSetting {
    LogOnly,
    Shadow,
    Enforce,
}

/// Whether a session may allow tools without a contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UnmatchedTools {
    Allow,
    Block,
}

/// Whether a session may bring contracts of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ContractSource {
    Any,
    Configured,
}

/// What the card calls itself (C-01).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CardObject {
    HarnAgentCard,
    AgentCard,
}

/// A source of deliveries, as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Connector {
    pub(crate) id: String,
    pub(crate) provider: String,
    #[serde(default = "local_workspace")]
    pub(crate) workspace_id: String,
    #[serde(default)]
    pub(crate) status: ConnectorStatus,
    #[serde(default)]
    pub(crate) event_kinds: Vec<String>,
    #[serde(default)]
    pub(crate) dedupe_policy: Table,
    #[serde(default)]
    pub(crate) webhook: Table,
    #[serde(default)]
    pub(crate) polling: Table,
    pub(crate) target_persona_id: Option<String>,
    pub(crate) target_session_id: Option<String>,
    #[serde(default)]
    pub(crate) metadata: Table,
}

fn local_workspace() -> String {
    "workspace_local".to_owned()
}

/// Whether a connector is in use. None is: deliveries are not served yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum ConnectorStatus {
    #[default]
    Disabled,
}

/// What fields, the memories that agents share, offer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Fields {
    pub(crate) level: FieldLevel,
    pub(crate) embeddings_provider: String,
    pub(crate) embeddings_model: String,
    pub(crate) vote_timeout_s: VoteTimeoutS,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            level: Bounded(3),
            embeddings_provider: String::new(),
            embeddings_model: String::new(),
            vote_timeout_s: Bounded(0),
        }
    }
}

/// What the operator is told while the server runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    pub(crate) level: String,
}

/// The shape of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Files for HTTPS; both or neither.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tls {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Tls {
    /// Returns certificate and key, or none when neither is set.
    ///
    /// # Errors
    /// Only one of them is set.
    pub(crate) fn files(&self) -> anyhow::Result<Option<(&Path, &Path)>> {
        match (
            self.cert.as_os_str().is_empty(),
            self.key.as_os_str().is_empty(),
        ) {
            (true, true) => Ok(None),
            (false, false) => Ok(Some((&self.cert, &self.key))),
            (true, false) | (false, true) => Err(Problem::new(
                "HTTPS needs both a certificate and a key",
                "set `tls.cert` and `tls.key`, or give --tls-cert and --tls-key",
            )
            .into()),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            data: PathBuf::from("reprise-data"),
            listen: "127.0.0.1:8080".to_owned(),
            allow_plain_http: false,
            public_url: String::new(),
            allowed_hosts: Vec::new(),
            card_object: CardObject::HarnAgentCard,
            issuer_id: String::new(),
            issuer_name: String::new(),
            origin: String::new(),
            replay_conformance: false,
            examples: false,
            retention_days: Bounded(0),
            connectors: Vec::new(),
            providers: Vec::new(),
            tools: Vec::new(),
            mcp_servers: Vec::new(),
            contracts: Vec::new(),
            approval_webhooks: Vec::new(),
            host_env: Vec::new(),
            prices: None,
            fields: Fields::default(),
            governed: Governed::default(),
            log: Log::default(),
            tls: Tls::default(),
            limits: Limits::default(),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: "info".to_owned(),
        }
    }
}

/// Every bound by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    pub(crate) batch_len_max: Count,
    pub(crate) pending_commands_max: Count,
    pub(crate) workers_max: Count,
    pub(crate) open_tasks_max: Count,
    pub(crate) stored_mib_max: Mebibytes,
    pub(crate) streams_max: Count,
    pub(crate) fork_messages_max: Count,
    pub(crate) settle_window_ms: WindowMs,
    pub(crate) start_window_ms: WindowMs,
    pub(crate) idempotency_window_s: RetentionS,
    pub(crate) leaf_interval_ms: TimeoutMs,
    pub(crate) head_leaves_max: Count,
    pub(crate) head_interval_ms: TimeoutMs,
    pub(crate) receipt_window_ms: WindowMs,
    pub(crate) drain_window_ms: WindowMs,
    pub(crate) body_bytes_max: Size,
    pub(crate) artifact_bytes_max: Size,
    pub(crate) large_bodies_bytes_max: Size,
    pub(crate) uploads_bytes_max: Size,
    pub(crate) connections_max: Count,
    pub(crate) request_timeout_ms: TimeoutMs,
    pub(crate) header_read_timeout_ms: TimeoutMs,
    pub(crate) sse_heartbeat_ms: HeartbeatMs,
    pub(crate) shutdown_timeout_ms: WindowMs,
    pub(crate) requests_per_second: Rate,
    pub(crate) requests_burst: Count,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_len_max: Bounded(256),
            pending_commands_max: Bounded(4_096),
            workers_max: Bounded(64),
            open_tasks_max: Bounded(10_000),
            stored_mib_max: Bounded(0),
            streams_max: Bounded(1_024),
            fork_messages_max: Bounded(10_000),
            settle_window_ms: Bounded(250),
            start_window_ms: Bounded(2_000),
            idempotency_window_s: Bounded(86_400),
            leaf_interval_ms: Bounded(1_000),
            head_leaves_max: Bounded(1_000),
            head_interval_ms: Bounded(60_000),
            receipt_window_ms: Bounded(2_000),
            drain_window_ms: Bounded(5_000),
            body_bytes_max: Bounded(1_048_576),
            artifact_bytes_max: Bounded(67_108_864),
            large_bodies_bytes_max: Bounded(268_435_456),
            uploads_bytes_max: Bounded(1_073_741_824),
            connections_max: Bounded(1_024),
            request_timeout_ms: Bounded(30_000),
            header_read_timeout_ms: Bounded(10_000),
            sse_heartbeat_ms: Bounded(15_000),
            shutdown_timeout_ms: Bounded(10_000),
            requests_per_second: Bounded(0),
            requests_burst: Bounded(100),
        }
    }
}

/// What the command line says.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    pub(crate) data: Option<PathBuf>,
    pub(crate) listen: Option<String>,
    pub(crate) allow_plain_http: bool,
    pub(crate) examples: bool,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
}

/// A configuration file as it was read.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) path: &'a Path,
    pub(crate) text: &'a str,
}

/// Puts the settings together.
///
/// # Errors
/// The file or a variable holds something that is not a setting; the error names the file and the line, or the
/// variable.
pub(crate) fn load(
    file: Option<&Source<'_>>,
    environment: impl Iterator<Item = (String, String)>,
    flags: Flags,
) -> anyhow::Result<Settings> {
    let mut table = match file {
        Some(source) => read(source)?,
        None => Table::new(),
    };
    for (name, value) in environment {
        if let Some((path, value)) = variable(&name, &value)? {
            set(&mut table, path, value);
        }
    }
    // Each part was checked on its own; together they cannot fail differently.
    let mut settings: Settings = table.try_into().map_err(|error: toml::de::Error| {
        Problem::new(
            error.message().to_owned(),
            "see `reprise serve --print-config`",
        )
    })?;
    if let Some(data) = flags.data {
        settings.data = data;
    }
    if let Some(listen) = flags.listen {
        settings.listen = listen;
    }
    settings.allow_plain_http |= flags.allow_plain_http;
    settings.examples |= flags.examples;
    if let Some(cert) = flags.tls_cert {
        settings.tls.cert = cert;
    }
    if let Some(key) = flags.tls_key {
        settings.tls.key = key;
    }
    Ok(settings)
}

/// Reads a configuration file and the environment, under what the command line says.
///
/// # Errors
/// The file cannot be read; as [`load`].
pub(crate) fn of_process(file: Option<&Path>, flags: Flags) -> anyhow::Result<Settings> {
    let text = match file {
        Some(path) => {
            let text = std::fs::read_to_string(path).or_hint(
                format_args!("`{}`", path.display()),
                "name a readable file; `reprise serve --print-config` prints one to start from",
            )?;
            Some((path, text))
        }
        None => None,
    };
    let source = text.as_ref().map(|(path, text)| Source { path, text });
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    load(source.as_ref(), environment, flags)
}

/// Checks a file against the format and returns its values.
fn read(source: &Source<'_>) -> anyhow::Result<Table> {
    let problem = |error: toml::de::Error| {
        let line = error.span().map(|span| line_of(source.text, &span));
        let place = match line {
            Some(line) => format!("{}:{line}", source.path.display()),
            None => source.path.display().to_string(),
        };
        Problem::new(
            format!("{place}: {}", words(&error)),
            "`reprise serve --print-config` prints every setting with its default",
        )
    };
    toml::from_str::<Settings>(source.text).map_err(problem)?;
    Ok(toml::from_str::<Table>(source.text).map_err(problem)?)
}

/// Returns an error in words of the format, not of this program.
fn words(error: &toml::de::Error) -> String {
    error
        .message()
        .replace("expected i64", "expected a whole number")
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    let before = text.as_bytes().iter().take(span.start);
    before.filter(|byte| **byte == b'\n').count() + 1
}

/// Where a setting stands: its section, empty at the top, and its name.
type Place = (&'static str, &'static str);

/// Reads a variable; none when it is not a setting.
fn variable(name: &str, value: &str) -> anyhow::Result<Option<(Place, Value)>> {
    let Some(rest) = name.strip_prefix("REPRISE_") else {
        return Ok(None);
    };
    let known = print::KEYS
        .iter()
        .find(|key| key.variable().as_deref() == Some(name));
    let Some(key) = known else {
        // Other programs set variables with our prefix too, but hardly ones with our sections.
        if print::SECTIONS
            .iter()
            .any(|section| rest.starts_with(&format!("{}_", section.to_uppercase())))
        {
            return Err(Problem::new(
                format!("the variable `{name}` is not a setting"),
                "`reprise serve --print-config` names the variable of every setting",
            )
            .into());
        }
        return Ok(None);
    };
    let value = print::like_default(key, value);
    let mut table = Table::new();
    set(&mut table, key.place(), value.clone());
    let checked: Result<Settings, toml::de::Error> = table.try_into();
    match checked {
        Ok(_) => Ok(Some((key.place(), value))),
        Err(error) => Err(Problem::new(
            format!("the variable `{name}`: {}", words(&error)),
            "`reprise serve --print-config` shows the default of every setting",
        )
        .into()),
    }
}

fn set(table: &mut Table, (section, name): Place, value: Value) {
    if section.is_empty() {
        table.insert(name.to_owned(), value);
        return;
    }
    let entry = table
        .entry(section)
        .or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(inner) = entry {
        inner.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file(text: &str) -> anyhow::Result<Settings> {
        let source = Source {
            path: Path::new("reprise.toml"),
            text,
        };
        load(Some(&source), std::iter::empty(), Flags::default())
    }

    fn with_variable(name: &str, value: &str) -> anyhow::Result<Settings> {
        let variables = [(name.to_owned(), value.to_owned())];
        load(None, variables.into_iter(), Flags::default())
    }

    #[test]
    fn every_setting_is_optional() {
        assert_eq!(with_file("").unwrap(), Settings::default());
    }

    #[test]
    fn flags_win_over_variables_and_variables_over_the_file() {
        let source = Source {
            path: Path::new("reprise.toml"),
            text: "listen = \"127.0.0.1:1\"\ndata = \"from-file\"\n[limits]\nworkers_max = 3\nstreams_max = 5\n",
        };
        let variables = [
            ("REPRISE_LISTEN".to_owned(), "127.0.0.1:2".to_owned()),
            ("REPRISE_LIMITS_WORKERS_MAX".to_owned(), "4".to_owned()),
            ("REPRISE_ALLOW_PLAIN_HTTP".to_owned(), "true".to_owned()),
            ("REPRISE_URL".to_owned(), "http://x".to_owned()),
        ];
        let flags = Flags {
            listen: Some("127.0.0.1:3".to_owned()),
            ..Flags::default()
        };
        let settings = load(Some(&source), variables.into_iter(), flags).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:3");
        assert_eq!(settings.data, Path::new("from-file"));
        assert!(settings.allow_plain_http);
        assert_eq!(settings.limits.workers_max, Bounded(4));
        assert_eq!(settings.limits.streams_max, Bounded(5));
    }

    #[test]
    fn an_error_names_the_file_and_the_line() {
        let texts = [
            "listne = \"x\"\n",
            "# comment\n[limits]\nworkers_max = 1\nworker_max = 2\n",
            "[limits]\n\nworkers_max = 0\n",
            "[limits]\nidempotency_window_s = 60\n",
            "[log]\nformat = \"xml\"\n",
            "[[connectors]]\nid = \"c\"\nprovider = \"p\"\nwebhok = {}\n",
            "card_object = \"a\n",
            "allow_plain_http = 1\n",
            "[limits]\nworkers_max = \"many\"\n",
        ];
        let errors: Vec<String> = texts
            .iter()
            .map(|text| with_file(text).unwrap_err().to_string())
            .collect();
        insta::assert_snapshot!(errors.join("\n"));
    }

    #[test]
    fn a_variable_that_is_no_setting_or_holds_none_is_an_error() {
        let errors = [
            with_variable("REPRISE_LIMITS_WORKER_MAX", "1"),
            with_variable("REPRISE_LIMITS_WORKERS_MAX", "many"),
            with_variable("REPRISE_LIMITS_WORKERS_MAX", "0"),
            with_variable("REPRISE_CARD_OBJECT", "card"),
        ];
        let errors: Vec<String> = errors
            .into_iter()
            .map(|result| result.unwrap_err().to_string())
            .collect();
        insta::assert_snapshot!(errors.join("\n"));
        assert!(with_variable("REPRISE_SERVICE_HOST", "10.0.0.1").is_ok());
    }

    #[test]
    fn ap_sdk_02_the_default_address_is_on_loopback() {
        let address: std::net::SocketAddr = Settings::default().listen.parse().unwrap();
        assert!(address.ip().is_loopback());
        assert_eq!(address.port(), 8080);
    }

    #[test]
    fn ap_idem_03_answers_are_kept_for_a_day_or_longer() {
        let window = |seconds: &str| with_variable("REPRISE_LIMITS_IDEMPOTENCY_WINDOW_S", seconds);
        assert_eq!(
            Settings::default().limits.idempotency_window_s,
            Bounded(86_400)
        );
        assert!(window("86400").is_ok());
        assert!(window("86399").is_err());
    }

    #[test]
    fn connectors_are_read_with_their_defaults() {
        let settings = with_file(
            "[[connectors]]\nid = \"connector_hook\"\nprovider = \"github\"\nevent_kinds = [\"push\"]\n\
             webhook = { path = \"/hook\" }\n",
        )
        .unwrap();
        let connector = settings.connectors.first().unwrap();
        assert_eq!(connector.workspace_id, "workspace_local");
        assert_eq!(connector.status, ConnectorStatus::Disabled);
        let active = "[[connectors]]\nid = \"c\"\nprovider = \"p\"\nstatus = \"ACTIVE\"\n";
        assert!(with_file(active).is_err(), "nothing would be delivered");
        assert_eq!(connector.event_kinds, ["push"]);
    }
}
