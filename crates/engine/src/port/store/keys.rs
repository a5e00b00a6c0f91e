//! API keys.

use canon::Digest;
use domain::Timestamp;
use serde::{Deserialize, Serialize};

use super::StoreFault;
use crate::port::BoxFuture;

/// API keys. They authenticate before anything is folded.
pub trait KeyStore: Send + Sync {
    /// Finds an API key by the digest of its text.
    fn api_key(&self, digest: Digest) -> BoxFuture<'_, Result<Option<ApiKey>, StoreFault>>;

    /// Lists API keys, oldest first.
    fn api_keys(&self) -> BoxFuture<'_, Result<Vec<ApiKey>, StoreFault>>;

    /// Adds an API key, or replaces the one with the same id.
    fn put_api_key(&self, key: ApiKey) -> BoxFuture<'_, Result<(), StoreFault>>;

    /// Returns whether every API key was recorded by events once: then one without events was made by nobody.
    fn keys_are_recorded(&self) -> BoxFuture<'_, Result<bool, StoreFault>> {
        Box::pin(async { Ok(false) })
    }

    /// Notes that they are.
    fn note_keys_recorded(&self) -> BoxFuture<'_, Result<(), StoreFault>> {
        Box::pin(async { Ok(()) })
    }
}

/// A credential: who it is and what it may do. Its text is not stored, only the digest. This form
/// is also what the operator's commands send to the server that holds the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    /// A public id to name it by.
    pub id: String,
    /// SHA-256 of the key's text.
    pub digest: Digest,
    /// The actor in events.
    pub actor: String,
    /// Workspaces it may see; none for all.
    pub workspaces: Option<Vec<String>>,
    /// What it may do, such as `tasks:write`; `*` for everything.
    pub scopes: Vec<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
}

impl ApiKey {
    /// Makes a key that sees every Workspace and does not end.
    pub fn new(
        id: impl Into<String>,
        digest: Digest,
        actor: impl Into<String>,
        scopes: impl IntoIterator<Item: Into<String>>,
        created_at: Timestamp,
    ) -> Self {
        Self {
            id: id.into(),
            digest,
            actor: actor.into(),
            workspaces: None,
            scopes: scopes.into_iter().map(Into::into).collect(),
            created_at,
            revoked_at: None,
            expires_at: None,
        }
    }

    /// Returns what events tell of it.
    pub fn recorded(&self) -> domain::Key {
        domain::Key {
            actor: self.actor.clone(),
            workspaces: self.workspaces.clone(),
            scopes: self.scopes.clone(),
            fingerprint: canon::sha256(self.digest.as_bytes()),
            expires_at: self.expires_at,
            revoked_at: self.revoked_at,
        }
    }

    /// True from its end on.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}
