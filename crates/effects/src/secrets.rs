//! Resolves secrets for executors, and remembers each value so that it can be taken out of what comes back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use canon::Value;
use engine::port::Performed;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use crate::config::{ApiKey, SecretRef};
use crate::scrub::Scrubber;
use crate::vault::{SecretHandle, VALUE_BYTES_MIN, Vault, VaultError};

/// A secret that an executor asked for and cannot have.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("no vault is open, so there is no secret `{0}`")]
    NoVault(String),
    #[error("there is no vault `{0}`")]
    OtherVault(String),
    #[error("version {wanted} of secret `{name}` is gone; the vault has version {found}")]
    OtherVersion {
        name: String,
        wanted: u64,
        found: u64,
    },
    #[error("environment variable `{0}` is not set, or too short for a secret")]
    NoVariable(String),
    #[error(transparent)]
    Vault(#[from] VaultError),
}

impl SecretError {
    pub(crate) fn performed(&self) -> Performed {
        Performed::error("secret_unknown", self.to_string())
    }
}

/// The vault, and every value that has left it since this process started: a process that was given an older
/// value may still show it.
#[derive(Debug, Clone)]
pub(crate) struct Secrets(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    vault: Option<Vault>,
    seen: Mutex<Vec<(String, SecretString)>>,
}

impl Secrets {
    pub(crate) fn new(vault: Option<Vault>) -> Self {
        Self(Arc::new(Shared {
            vault,
            seen: Mutex::default(),
        }))
    }

    /// Returns a value of the vault.
    pub(crate) fn value(&self, secret: &SecretRef) -> Result<SecretString, SecretError> {
        let (vault_id, name) = secret.parts();
        Ok(self.find(vault_id, name)?.0)
    }

    /// Returns the value that a handle means.
    pub(crate) fn value_of(&self, handle: &SecretHandle) -> Result<SecretString, SecretError> {
        let (value, found) = self.find(Some(&handle.vault_id), &handle.name)?;
        if found.version != handle.version {
            // The record names the version that was used. Using another one would make it untrue.
            return Err(SecretError::OtherVersion {
                name: handle.name.clone(),
                wanted: handle.version,
                found: found.version,
            });
        }
        Ok(value)
    }

    /// Returns a key from where the configuration says it is.
    pub(crate) fn key(&self, key: &ApiKey) -> Result<SecretString, SecretError> {
        match key {
            ApiKey::Secret(secret) => self.value(secret),
            ApiKey::Env(name) => {
                let value = std::env::var(name)
                    .ok()
                    .filter(|value| value.len() >= VALUE_BYTES_MIN)
                    .map(SecretString::from)
                    .ok_or_else(|| SecretError::NoVariable(name.clone()))?;
                self.remember(name, &value);
                Ok(value)
            }
        }
    }

    /// Answers a workflow that asks for a secret: a handle, never the value.
    pub(crate) fn handle(&self, request: &Value) -> Performed {
        let text = |member: &str| request.get(member).and_then(Value::as_str);
        let found = self.find(text("vault_id"), text("name").unwrap_or_default());
        match found {
            Ok((_, handle)) => Performed::ok(json!({
                "name": handle.name, "vault_id": handle.vault_id, "version": handle.version,
            })),
            Err(error) => error.performed(),
        }
    }

    /// Returns what hides all values that are or were known.
    pub(crate) fn scrubber(&self) -> Scrubber {
        if let Some(vault) = &self.0.vault {
            match vault.all() {
                // A damaged record gives nobody its value, so there is nothing to hide.
                Ok(all) => {
                    for (value, handle) in all.into_iter().flatten() {
                        self.remember(&handle.name, &value);
                    }
                }
                Err(error) => tracing::warn!(%error, "the vault cannot be listed"),
            }
        }
        let seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Scrubber::new(
            seen.iter()
                .map(|(name, value)| (name.as_str(), value.expose_secret())),
        )
    }

    fn find(
        &self,
        vault_id: Option<&str>,
        name: &str,
    ) -> Result<(SecretString, SecretHandle), SecretError> {
        let vault = self
            .0
            .vault
            .as_ref()
            .ok_or_else(|| SecretError::NoVault(name.to_owned()))?;
        if let Some(id) = vault_id
            && id != vault.id()
        {
            return Err(SecretError::OtherVault(id.to_owned()));
        }
        let (value, handle) = vault.get(name)?;
        self.remember(name, &value);
        Ok((value, handle))
    }

    fn remember(&self, name: &str, value: &SecretString) {
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = seen
            .iter()
            .any(|(_, known)| known.expose_secret() == value.expose_secret());
        if !known {
            seen.push((name.to_owned(), value.clone()));
        }
    }
}

/// Resolves the environment variables that a process is given.
pub(crate) fn environment(
    secrets: &Secrets,
    names: &BTreeMap<String, SecretRef>,
) -> Result<Vec<(String, SecretString)>, SecretError> {
    names
        .iter()
        .map(|(variable, secret)| Ok((variable.clone(), secrets.value(secret)?)))
        .collect()
}
