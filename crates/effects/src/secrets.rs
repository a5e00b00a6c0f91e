//! Resolves secrets for executors, and remembers each value so that it can be taken out of what comes back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use canon::Value;
use runs::workflow::{EffectOutcome, Handles};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use crate::config::{ApiKey, Config, SecretRef};
use crate::scrub::Scrubber;
use crate::vault::{SecretHandle, VALUE_BYTES_MIN, Vault, VaultError};

/// How old a change must be so that no other can have the same time.
const SETTLED: Duration = Duration::from_secs(1);

/// A secret that an executor asked for and cannot have.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("no vault is open, so there is no secret `{0}`")]
    NoVault(String),
    #[error("there is no vault `{0}`")]
    OtherVault(String),
    #[error(
        "version {wanted} of secret `{name}`, which this run has on record, is gone; the vault has {}",
        version(*found)
    )]
    OtherVersion {
        name: String,
        wanted: u64,
        found: Option<u64>,
    },
    #[error("this run has no handle of secret `{0}` on record; a new task would have one")]
    NoHandle(String),
    #[error("the recorded handle does not belong to secret `{0}`")]
    NotItsHandle(String),
    #[error("environment variable `{0}` is not set, or too short for a secret")]
    NoVariable(String),
    #[error(transparent)]
    Vault(#[from] VaultError),
}

fn version(found: Option<u64>) -> String {
    match found {
        Some(version) => format!("version {version}"),
        None => "none".to_owned(),
    }
}

impl SecretError {
    pub(crate) fn performed(&self) -> EffectOutcome {
        EffectOutcome::error("secret_unknown", self.to_string())
    }
}

/// The vault, the variables that hold keys, and every value that was in them since this process started: a process
/// that was given an older value may still show it.
#[derive(Debug, Clone)]
pub(crate) struct Secrets(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    vault: Option<Vault>,
    /// Variables of this process that the configuration names as keys.
    variables: Vec<String>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    values: Vec<(String, SecretString)>,
    /// When the vault was changed that these come from.
    vault: Option<SystemTime>,
    /// Hides all of these values; none when one came after it was made.
    scrubber: Option<Arc<Scrubber>>,
}

impl Secrets {
    pub(crate) fn new(vault: Option<Vault>, config: &Config) -> Self {
        let keys = config
            .providers
            .iter()
            .filter_map(|provider| provider.api_key.as_ref());
        let bearers = config
            .mcp_servers
            .iter()
            .filter_map(|server| server.bearer.as_ref());
        let variables = keys.chain(bearers).filter_map(|key| match key {
            ApiKey::Env(name) => Some(name.clone()),
            ApiKey::Secret(_) => None,
        });
        Self(Arc::new(Shared {
            vault,
            variables: variables.collect(),
            seen: Mutex::default(),
        }))
    }

    /// Returns the value that a run means by a secret of the configuration: that of the version it has on record.
    pub(crate) fn resolve(
        &self,
        secret: &SecretRef,
        handles: &Handles,
    ) -> Result<SecretString, SecretError> {
        let (vault_id, name) = secret.parts();
        let not_its_handle = || SecretError::NotItsHandle(secret.0.clone());
        match handles.get(&secret.0) {
            None => Err(SecretError::NoHandle(secret.0.clone())),
            Some(handle) => {
                let handle: SecretHandle =
                    serde_json::from_value(handle.clone()).map_err(|_| not_its_handle())?;
                if handle.name != name || vault_id.is_some_and(|id| id != handle.vault_id) {
                    return Err(not_its_handle());
                }
                self.value_of(&handle)
            }
        }
    }

    /// Returns handles of the newest versions.
    pub(crate) fn newest<'a>(
        &self,
        secrets: impl Iterator<Item = &'a SecretRef>,
    ) -> Result<Handles, SecretError> {
        secrets
            .map(|secret| {
                let (vault_id, name) = secret.parts();
                let (_, handle) = self.find(vault_id, name)?;
                Ok((secret.0.clone(), handle_json(&handle)))
            })
            .collect()
    }

    /// Returns the value that a handle means.
    pub(crate) fn value_of(&self, handle: &SecretHandle) -> Result<SecretString, SecretError> {
        let other = |found| SecretError::OtherVersion {
            name: handle.name.clone(),
            wanted: handle.version,
            found,
        };
        match self.find(Some(&handle.vault_id), &handle.name) {
            Ok((value, found)) if found.version == handle.version => Ok(value),
            // The record names the version that was used. Using another one would make it untrue.
            Ok((_, found)) => Err(other(Some(found.version))),
            Err(SecretError::Vault(VaultError::Unknown(_))) => Err(other(None)),
            Err(error) => Err(error),
        }
    }

    /// Returns a key from where the configuration says it is.
    pub(crate) fn key(&self, key: &ApiKey) -> Result<SecretString, SecretError> {
        match key {
            ApiKey::Secret(secret) => {
                let (vault_id, name) = secret.parts();
                Ok(self.find(vault_id, name)?.0)
            }
            ApiKey::Env(name) => self.variable(name),
        }
    }

    /// Answers a workflow that asks for a secret: a handle, never the value.
    pub(crate) fn handle(&self, request: &Value) -> EffectOutcome {
        let text = |member: &str| request.get(member).and_then(Value::as_str);
        // A tool's configuration may name the vault together with the secret.
        let secret = SecretRef(text("name").unwrap_or_default().to_owned());
        let (vault_id, name) = secret.parts();
        match self.find(text("vault_id").or(vault_id), name) {
            Ok((_, handle)) => EffectOutcome::ok(handle_json(&handle)),
            Err(error) => error.performed(),
        }
    }

    /// Returns what hides all values that are or were known.
    pub(crate) fn scrubber(&self) -> Arc<Scrubber> {
        if let Some(vault) = &self.0.vault
            && let Err(error) = self.look_into(vault)
        {
            tracing::warn!(%error, "the vault cannot be listed, so nothing is shown");
            return Arc::new(Scrubber::closed());
        }
        for name in &self.0.variables {
            // One that is not set is told by whoever needs it.
            let _ = self.variable(name);
        }
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Seen {
            values, scrubber, ..
        } = &mut *seen;
        let scrubber = scrubber.get_or_insert_with(|| {
            let values = values.iter();
            let values = values.map(|(name, value)| (name.as_str(), value.expose_secret()));
            Arc::new(Scrubber::new(values))
        });
        Arc::clone(scrubber)
    }

    /// Learns the values of a vault, if it changed since the last look.
    fn look_into(&self, vault: &Vault) -> Result<(), VaultError> {
        let stamp = vault.stamp()?;
        {
            let seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.vault == Some(stamp) {
                return Ok(());
            }
        }
        // A damaged record gives nobody its value, so there is nothing to hide.
        for (value, handle) in vault.all()?.into_iter().flatten() {
            self.remember(&handle.name, &value);
        }
        // A clock that ticks too slowly could hide a second change behind the first.
        let is_settled = stamp.elapsed().is_ok_and(|age| age > SETTLED);
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.vault = is_settled.then_some(stamp);
        Ok(())
    }

    fn variable(&self, name: &str) -> Result<SecretString, SecretError> {
        let value = std::env::var(name)
            .ok()
            .filter(|value| value.len() >= VALUE_BYTES_MIN)
            .map(SecretString::from)
            .ok_or_else(|| SecretError::NoVariable(name.to_owned()))?;
        self.remember(name, &value);
        Ok(value)
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
            .values
            .iter()
            .any(|(_, known)| known.expose_secret() == value.expose_secret());
        if !known {
            seen.values.push((name.to_owned(), value.clone()));
            seen.scrubber = None;
        }
    }
}

/// A handle as it is recorded.
fn handle_json(handle: &SecretHandle) -> Value {
    json!({"name": handle.name, "vault_id": handle.vault_id, "version": handle.version})
}

/// Resolves the environment variables or headers that somebody is given.
pub(crate) fn environment(
    secrets: &Secrets,
    names: &BTreeMap<String, SecretRef>,
    handles: &Handles,
) -> Result<Vec<(String, SecretString)>, SecretError> {
    names
        .iter()
        .map(|(variable, secret)| Ok((variable.clone(), secrets.resolve(secret, handles)?)))
        .collect()
}
