//! What all handlers share.

use std::sync::Arc;

use bytes::Bytes;
use canon::Value;
use domain::Timestamp;
use engine::Engine;
use engine::port::Clock;
use tokio::sync::watch;
use wire::card::{About, Skill};

use crate::auth::Keys;
use crate::config::Config;
use crate::frames::Frames;
use crate::limit::Buckets;
use crate::metrics::HttpMetrics;
use crate::world::SystemClock;

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
    pub(crate) started_at: Timestamp,
    /// Where it answers, without a slash at the end.
    pub(crate) base_url: String,
    /// The keys that sign receipts, as JSON Web Keys.
    pub(crate) receipt_keys: Vec<Value>,
    /// The API's description, written once.
    pub(crate) openapi: Bytes,
    /// True once the server stops: streams end.
    pub(crate) closing: watch::Receiver<bool>,
}

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
        let keys: Value =
            serde_json::from_slice(&engine.authority().keys.to_jwks()).unwrap_or_default();
        let receipt_keys = keys.get("keys").and_then(Value::as_array);
        let receipt_keys = receipt_keys.cloned().unwrap_or_default();
        let openapi = wire::openapi::document(VERSION, &base_url);
        Arc::new(Self {
            engine,
            keys: Keys::default(),
            buckets: config.rate_limit.map(Buckets::new),
            config,
            http: HttpMetrics::default(),
            frames: Frames::default(),
            started_at: SystemClock.now(),
            base_url,
            receipt_keys,
            openapi: openapi.to_string().into(),
            closing,
        })
    }

    pub(crate) fn about(&self) -> About<'_> {
        About {
            version: VERSION,
            base_url: &self.base_url,
            public_url: self.config.public_url.as_deref(),
            receipt_keys: &self.receipt_keys,
            started_at: self.started_at,
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
