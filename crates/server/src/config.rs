//! What an operator can set, as plain data. Reading files and the environment is the program's business.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use wire::card::{Connector, Provider, Tool};

/// The card's discriminator by default (C-01).
pub const CARD_OBJECT: &str = "harn_agent_card";

/// How the server listens and what it allows.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where to listen; port 0 picks one.
    pub listen: SocketAddr,
    /// Certificate and key; none for plain HTTP.
    pub tls: Option<Tls>,
    /// Allows plain HTTP on an address that others can reach.
    pub allow_plain_http: bool,
    /// Where clients reach this server, when that is not the listening address.
    pub public_url: Option<String>,
    /// Names by which clients may call this server, beside its own: what a browser is led to under another name by somebody
    /// else's page is refused. On an address that others can reach, names are looked at only when there are some.
    pub allowed_hosts: Vec<String>,
    /// The value of `object` in the card: `harn_agent_card` or `agent_card` (C-01).
    pub card_object: String,
    /// Tools of the configuration, as far as others may see them.
    pub tools: Vec<Tool>,
    /// Model providers of the configuration, as far as others may see them.
    pub providers: Vec<Provider>,
    /// Connectors to show.
    pub connectors: Vec<Connector>,
    /// Fixes what replay receipts say of their issuer, and echoes placeholders (B9): for conformance runs.
    pub replay_conformance: bool,
    /// For how many days events are kept whole, as discovery says; none for good (AP-RPL-19).
    pub retention_days: Option<u32>,
    /// The largest JSON body.
    pub body_bytes_max: usize,
    /// The largest uploaded content of an Artifact.
    pub artifact_bytes_max: usize,
    /// Connections open at the same time; more wait to be accepted.
    pub connections_max: usize,
    /// How long a request may take until its answer begins.
    pub request_timeout: Duration,
    /// How long a client may take to send a request's head, and to complete the TLS handshake.
    pub header_read_timeout: Duration,
    /// Heartbeat interval of idle streams. At least five seconds (AP-SSE-09).
    pub sse_heartbeat: Duration,
    /// How long a stop waits for requests that are being answered.
    pub shutdown_timeout: Duration,
    /// Requests per actor; none for no bound.
    pub rate_limit: Option<RateLimit>,
}

/// Certificate and key in PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The certificate chain.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// A bucket of requests that fills up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// How many requests a second fill in.
    pub per_second: u32,
    /// How many fit.
    pub burst: u32,
}

impl Config {
    /// A server for this machine alone, as a fresh start uses it.
    pub fn local(listen: SocketAddr) -> Self {
        Self {
            listen,
            tls: None,
            allow_plain_http: false,
            public_url: None,
            allowed_hosts: Vec::new(),
            card_object: CARD_OBJECT.to_owned(),
            replay_conformance: false,
            retention_days: None,
            tools: Vec::new(),
            providers: Vec::new(),
            connectors: Vec::new(),
            body_bytes_max: 1024 * 1024,
            artifact_bytes_max: 64 * 1024 * 1024,
            connections_max: 1024,
            request_timeout: Duration::from_secs(30),
            header_read_timeout: Duration::from_secs(10),
            sse_heartbeat: Duration::from_secs(15),
            shutdown_timeout: Duration::from_secs(10),
            rate_limit: None,
        }
    }
}
