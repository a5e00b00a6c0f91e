//! What all handlers share.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use axum::http::Method;
use bytes::Bytes;
use canon::Value;
use domain::Timestamp;
use engine::Engine;
use runs::replay::BUNDLE_BYTES_MAX;
use tokio::sync::{RwLock, watch};
use wire::card::{ServerInfo, Skill};
use wire::openapi::Operation;

use crate::byte_budget::{ByteBudget, Reservation};
use crate::config::Config;
use crate::connection::Connections;
use crate::failure::Failure;
use crate::gate::{Buckets, Credential, Keys};
use crate::mcp::Mcp;
use crate::metrics::HttpMetrics;
use crate::sse::Frames;

/// The version of the program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// One running server.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) config: Config,
    pub(crate) keys: Keys,
    pub(crate) buckets: Option<Buckets>,
    pub(crate) http: HttpMetrics,
    /// What streams deliver, rendered.
    pub(crate) frames: Frames,
    /// When its log began: so old is what the server itself has, such as its card.
    pub(crate) began_at: Timestamp,
    /// Where it answers, without a slash at the end.
    pub(crate) base_url: String,
    /// The keys that sign receipts, as JSON Web Keys.
    pub(crate) receipt_keys: Vec<Value>,
    /// The API's description, written once somebody asks for it: made at the start, it would be most of an idle server's heap.
    openapi: OnceLock<Bytes>,
    /// True once the server stops: streams end.
    pub(crate) closing: watch::Receiver<bool>,
    /// Held shared by every WebSocket.
    pub(crate) sockets: Arc<RwLock<()>>,
    /// The tools of agents.
    pub(crate) mcp: Mcp,
    /// Every operation by method and path.
    operations: BTreeMap<(&'static str, &'static str), &'static Operation>,
    /// Every open connection.
    pub(crate) connections: Arc<Connections>,
    /// Room for large bodies that are in memory at the same time.
    pub(crate) memory: Arc<ByteBudget>,
    /// Room for uploads that are not stored under their name yet.
    pub(crate) uploads: Arc<ByteBudget>,
}

/// Bodies up to this length are not counted: the number of connections bounds them.
pub(crate) const SMALL_BODY_BYTES: usize = 1024 * 1024;

impl App {
    pub(crate) fn new(
        engine: Engine,
        config: Config,
        base_url: String,
        closing: watch::Receiver<bool>,
    ) -> Arc<Self> {
        let base_url = match &config.public_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => base_url,
        };
        let began_at = engine.began_at();
        let keys: Value =
            serde_json::from_slice(&engine.authority().keys.to_jwks()).unwrap_or_default();
        let receipt_keys = keys.get("keys").and_then(Value::as_array);
        let receipt_keys = receipt_keys.cloned().unwrap_or_default();
        let connections = Connections::new(config.connections_max);
        let memory = ByteBudget::new("large_bodies_bytes_max", config.large_bodies_bytes_max);
        let uploads = ByteBudget::new("uploads_bytes_max", config.uploads_bytes_max);
        Arc::new(Self {
            mcp: Mcp::new(engine.clone(), &base_url),
            engine,
            keys: Keys::default(),
            buckets: config.rate_limit.map(Buckets::new),
            config,
            http: HttpMetrics::default(),
            frames: Frames::default(),
            began_at,
            base_url,
            receipt_keys,
            openapi: OnceLock::new(),
            closing,
            operations: wire::openapi::operations()
                .map(|operation| ((operation.method, operation.path), operation))
                .collect(),
            connections,
            memory,
            uploads,
            sockets: Arc::default(),
        })
    }

    /// Returns the API's description.
    pub(crate) fn openapi(&self) -> Bytes {
        let written = self.openapi.get_or_init(|| {
            let sizes = wire::openapi::Sizes {
                body_bytes_max: self.config.body_bytes_max,
                artifact_bytes_max: self.config.artifact_bytes_max,
                bundle_bytes_max: BUNDLE_BYTES_MAX,
                initial_messages_max: self.engine.limits().fork_messages_max,
            };
            let document = wire::openapi::document(VERSION, &self.base_url, &sizes);
            document.to_string().into()
        });
        written.clone()
    }

    /// Returns the description of what a method of a path does.
    pub(crate) fn operation(&self, method: &Method, path: &str) -> Option<&'static Operation> {
        let method = match method.as_str() {
            "GET" | "HEAD" => "get",
            "POST" => "post",
            "PUT" => "put",
            "PATCH" => "patch",
            "DELETE" => "delete",
            _ => return None,
        };
        self.operations.get(&(method, path)).copied()
    }

    /// Takes room for a body that is whole in memory; none is needed for a small one.
    pub(crate) async fn room(
        &self,
        key: Credential,
        bytes: usize,
    ) -> Result<Option<Reservation>, Failure> {
        match bytes <= SMALL_BODY_BYTES {
            true => Ok(None),
            false => self.memory.take(key, bytes).await.map(Some),
        }
    }

    pub(crate) fn about(&self) -> ServerInfo<'_> {
        ServerInfo {
            version: VERSION,
            base_url: &self.base_url,
            public_url: self.config.public_url.as_deref(),
            receipt_keys: &self.receipt_keys,
            began_at: self.began_at,
        }
    }

    /// Returns the skills on offer: the registered workflows, by name.
    pub(crate) fn skills(&self) -> Vec<Skill> {
        self.engine
            .workflows()
            .iter()
            .map(|workflow| Skill {
                name: workflow.name().to_owned(),
                description: workflow.description().to_owned(),
                version: workflow.version().to_owned(),
                input_schema: Some(workflow.input_schema()),
                output_schema: Some(workflow.output_schema()),
            })
            .collect()
    }
}
