//! Vectors of texts, made outside.

use std::fmt;

use canon::Digest;

use super::BoxFuture;

/// Which model makes vectors. Those of two models are never compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingModel {
    /// Its name.
    pub name: String,
    /// What tells it from others of that name.
    pub sha256: Digest,
}

/// A model that turns texts into vectors.
pub trait Embedder: Send + Sync + fmt::Debug + 'static {
    /// Returns which one it is.
    fn model(&self) -> EmbeddingModel;

    /// Makes a vector of each text, in their order, within a few seconds. An error says what happened in words that may be
    /// shown and kept.
    fn embed(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vec<f32>>, String>>;
}
