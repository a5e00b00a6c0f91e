//! From settings to what the engine and the server take.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use engine::Limits;
use serde_json::{Map, Value};
use server::{Config, Connector, Provider, RateLimit, Tls, Tool};

use crate::config::{self, CardObject, Settings};
use crate::exit::{OrHint, Problem};

/// Returns the server's side of the settings.
pub(super) fn config(settings: &Settings) -> anyhow::Result<Config> {
    let limits = &settings.limits;
    let listen = address(&settings.listen).or_hint(
        format_args!("cannot listen on `{}`", settings.listen),
        "give an address and a port, such as 127.0.0.1:8080",
    )?;
    let tls = settings.tls.files()?.map(|(cert, key)| Tls {
        cert: cert.to_owned(),
        key: key.to_owned(),
    });
    let rate_limit = (limits.requests_per_second.0 > 0).then_some(RateLimit {
        per_second: limits.requests_per_second.0,
        burst: limits.requests_burst.0,
    });
    let connectors = settings.connectors.iter().map(connector);
    Ok(Config {
        listen,
        tls,
        allow_plain_http: settings.allow_plain_http,
        public_url: (!settings.public_url.is_empty()).then(|| settings.public_url.clone()),
        allowed_hosts: settings.allowed_hosts.clone(),
        card_object: match settings.card_object {
            CardObject::HarnAgentCard => "harn_agent_card".to_owned(),
            CardObject::AgentCard => "agent_card".to_owned(),
        },
        replay_conformance: settings.replay_conformance,
        retention_days: settings.retention(),
        tools: tools(settings),
        providers: settings.providers.iter().map(provider).collect(),
        connectors: connectors.collect::<anyhow::Result<_>>()?,
        body_bytes_max: limits.body_bytes_max.count(),
        artifact_bytes_max: limits.artifact_bytes_max.count(),
        large_bodies_bytes_max: limits.large_bodies_bytes_max.count(),
        uploads_bytes_max: limits.uploads_bytes_max.count(),
        connections_max: limits.connections_max.count(),
        request_timeout: limits.request_timeout_ms.milliseconds(),
        header_read_timeout: limits.header_read_timeout_ms.milliseconds(),
        sse_heartbeat: limits.sse_heartbeat_ms.milliseconds(),
        shutdown_timeout: limits.shutdown_timeout_ms.milliseconds(),
        rate_limit,
    })
}

/// Returns the engine's side of the limits.
pub(super) fn limits(limits: &config::Limits, stored_bytes_max: u64) -> Limits {
    Limits {
        batch_len_max: limits.batch_len_max.count(),
        pending_commands_max: limits.pending_commands_max.count(),
        workers_max: limits.workers_max.count(),
        open_tasks_max: limits.open_tasks_max.count(),
        stored_bytes_max,
        streams_max: limits.streams_max.count(),
        fork_messages_max: limits.fork_messages_max.count(),
        settle_window: limits.settle_window_ms.milliseconds(),
        start_window: limits.start_window_ms.milliseconds(),
        idempotency_window: limits.idempotency_window_s.seconds(),
        leaf_interval: limits.leaf_interval_ms.milliseconds(),
        head_leaves_max: limits.head_leaves_max.count() as u64,
        head_interval: limits.head_interval_ms.milliseconds(),
        receipt_window: limits.receipt_window_ms.milliseconds(),
        drain_window: limits.drain_window_ms.milliseconds(),
    }
}

/// Returns what fields offer.
pub(super) fn fields(fields: &config::Fields) -> field::Config {
    let level = match fields.level.0 {
        0 => field::Level::Starter,
        1 => field::Level::Core,
        2 => field::Level::Standard,
        _ => field::Level::Full,
    };
    let timeout = i64::from(fields.vote_timeout_s.0) * 1_000_000;
    field::Config {
        vote_timeout_us: (timeout > 0).then_some(timeout),
        ..field::Config::at(level)
    }
}

/// Finds the address that a name and a port mean; of several an IPv4 one, as clients try `localhost`.
fn address(text: &str) -> io::Result<SocketAddr> {
    let found: Vec<SocketAddr> = text.to_socket_addrs()?.collect();
    let preferred = found.iter().find(|address| address.is_ipv4());
    let first = preferred.or(found.first()).copied();
    first.ok_or_else(|| io::Error::other("the name has no address"))
}

fn connector(connector: &config::Connector) -> anyhow::Result<Connector> {
    let object = |table: &toml::Table| -> anyhow::Result<Map<String, Value>> {
        match serde_json::to_value(table) {
            Ok(Value::Object(members)) => Ok(members),
            Ok(_) | Err(_) => Err(Problem::new(
                format!(
                    "connector `{}` has a value that JSON cannot hold",
                    connector.id
                ),
                "use text, numbers, booleans, lists and tables",
            )
            .into()),
        }
    };
    Ok(Connector {
        id: connector.id.clone(),
        provider: connector.provider.clone(),
        workspace_id: connector.workspace_id.clone(),
        event_kinds: connector.event_kinds.clone(),
        dedupe_policy: object(&connector.dedupe_policy)?,
        webhook: object(&connector.webhook)?,
        polling: object(&connector.polling)?,
        target_persona_id: connector.target_persona_id.clone(),
        target_session_id: connector.target_session_id.clone(),
        metadata: object(&connector.metadata)?,
    })
}

fn tools(settings: &Settings) -> Vec<Tool> {
    let local = settings.tools.iter().map(|tool| Tool {
        name: tool.name.clone(),
        description: tool.description.clone(),
        input_schema: tool.parameters.clone(),
        source: "local",
    });
    let servers = settings.mcp_servers.iter().map(|server| Tool {
        name: server.id.clone(),
        description: format!(
            "All tools of the MCP server `{0}`; one of them is `{0}.NAME` in a persona",
            server.id
        ),
        input_schema: serde_json::json!({"type": "object"}),
        source: "mcp_server",
    });
    local.chain(servers).collect()
}

fn provider(provider: &effects::ProviderConfig) -> Provider {
    let kind = serde_json::to_value(provider.kind).unwrap_or_default();
    Provider {
        id: provider.id.clone(),
        kind: kind.as_str().unwrap_or_default().to_owned(),
        model: provider.model.clone(),
    }
}

/// Returns what the server may use outside.
pub(super) fn outside(settings: &Settings) -> effects::Config {
    effects::Config {
        providers: settings.providers.clone(),
        prices: settings.prices.clone(),
        tools: settings.tools.clone(),
        mcp_servers: settings.mcp_servers.clone(),
        host_env: settings.host_env.clone(),
    }
}

/// Returns what governed sessions must hold to.
pub(super) fn demands(settings: &config::Governed) -> engine::Demands {
    engine::Demands {
        mode: match settings.mode {
            config::ModeSetting::LogOnly => engine::MinimumMode::LogOnly,
            config::ModeSetting::Shadow => engine::MinimumMode::Shadow,
            config::ModeSetting::Enforce => engine::MinimumMode::Enforce,
        },
        blocks_unmatched: settings.unmatched_policy == config::UnmatchedTools::Block,
        configured_contracts: settings.contracts == config::ContractSource::Configured,
    }
}
