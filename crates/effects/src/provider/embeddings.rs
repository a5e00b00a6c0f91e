//! Embeddings, as OpenAI and compatible services give them: texts in, one vector each.
//!
//! What goes wrong is said in words of our own: they end up in answers and in the log.

use std::sync::Arc;
use std::time::Duration;

use canon::Digest;
use engine::port::{BoxFuture, Embedder, EmbeddingModel};
use reqwest::Url;
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::json;

use super::Provider;
use super::http::RESPONSE_BYTES_MAX;
use crate::outside::Outside;

/// How long a field waits for vectors.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A model of a provider that makes vectors.
#[derive(Debug, Clone)]
pub struct Embeddings {
    pub(crate) outside: Outside,
    pub(super) provider: Arc<Provider>,
    pub(super) client: reqwest::Client,
    pub(super) url: Url,
    pub(super) model: String,
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<One>,
}

#[derive(Deserialize)]
struct One {
    index: Option<usize>,
    embedding: Vec<f32>,
}

impl Embeddings {
    async fn ask(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, String> {
        let key = self.provider.config.api_key.as_ref();
        let key = key.map(|key| self.outside.key(key)).transpose();
        let key = key.map_err(|_| "the key of the provider is not set".to_owned())?;
        let body = json!({"model": self.model, "input": texts, "encoding_format": "float"});
        let mut request = self.client.post(self.url.clone()).json(&body);
        if let Some(key) = &key {
            request = request.bearer_auth(key.expose_secret());
        }
        let sent = request.send().await;
        let mut response =
            sent.map_err(|_| "the embeddings endpoint cannot be reached".to_owned())?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!(
                "the embeddings endpoint answered {}",
                status.as_u16()
            ));
        }
        let mut bytes = Vec::new();
        let broken = |_| "the embeddings endpoint closed the connection early".to_owned();
        while let Some(piece) = response.chunk().await.map_err(broken)? {
            bytes.extend_from_slice(&piece);
            if bytes.len() > RESPONSE_BYTES_MAX {
                return Err("the embeddings endpoint sent too large an answer".to_owned());
            }
        }
        let unreadable = |_| "the answer of the embeddings endpoint cannot be read".to_owned();
        let mut answer: Answer = serde_json::from_slice(&bytes).map_err(unreadable)?;
        // In the order of the texts, whatever the order of the answer.
        answer.data.sort_by_key(|one| one.index);
        Ok(answer.data.into_iter().map(|one| one.embedding).collect())
    }
}

impl Embedder for Embeddings {
    fn model(&self) -> EmbeddingModel {
        EmbeddingModel {
            name: self.model.clone(),
            sha256: digest(&self.url, &self.model),
        }
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vec<f32>>, String>> {
        let this = self.clone();
        Box::pin(async move {
            let asked = tokio::time::timeout(TIMEOUT, this.ask(texts)).await;
            asked.unwrap_or_else(|_| {
                Err(format!(
                    "no answer of the embeddings endpoint within {} s",
                    TIMEOUT.as_secs()
                ))
            })
        })
    }
}

/// Nobody shows us the weights of a service: the same name at another place counts as another model.
fn digest(url: &Url, model: &str) -> Digest {
    canon::sha256(format!("openai-embeddings/1\n{url}\n{model}").as_bytes())
}
