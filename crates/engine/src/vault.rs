//! Secrets of the local vault: set and deleted. Never read back through here.
//!
//! They are kept beside the log, encrypted; no event tells a value, and nothing here can be asked for one.

use domain::{Command, CreateVault, Order, ResourceKind, VaultId};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::{KeepSecretError, SecretKeeper};
use crate::refused::Refused;
use crate::turn::Lease;

/// The body of the id of the one vault that keeps values itself.
const LOCAL: &str = "local";

impl Engine {
    /// Keeps a secret in the local vault and returns its version. The vault is made when it is first used.
    ///
    /// # Errors
    /// See [`Refused`]; nothing was kept then.
    pub async fn put_secret(
        &self,
        caller: &Caller,
        vault: &str,
        name: &str,
        value: &str,
    ) -> Result<u64, Refused> {
        let keeper = self.keeper(caller, vault).await?;
        self.ensure_local_vault(caller).await?;
        keeper.put(name, value).map_err(not_kept)
    }

    /// Deletes a secret of the local vault.
    ///
    /// # Errors
    /// See [`Refused`].
    pub async fn delete_secret(
        &self,
        caller: &Caller,
        vault: &str,
        name: &str,
    ) -> Result<(), Refused> {
        let keeper = self.keeper(caller, vault).await?;
        keeper.delete(name).map_err(not_kept)
    }

    async fn keeper(&self, caller: &Caller, vault: &str) -> Result<&dyn SecretKeeper, Refused> {
        caller.require("vaults:write")?;
        if caller.workspaces().is_some() {
            // Every tool and provider of the server may be given them.
            return Err(Refused::PermissionDenied {
                scope: "vaults:write for all workspaces",
            });
        }
        let not_available = || {
            Refused::Domain(domain::Refusal::Policy {
                reason: "not_available",
                message: format!(
                    "only the vault `{}` keeps values on this server",
                    local_id()
                ),
            })
        };
        if vault != local_id().as_str() {
            self.visible(caller, ResourceKind::Vault, vault).await?;
            return Err(not_available());
        }
        self.shared.secrets.as_deref().ok_or_else(not_available)
    }

    async fn ensure_local_vault(&self, caller: &Caller) -> Result<(), Refused> {
        if self.document(local_id().as_str()).await?.is_some() {
            return Ok(());
        }
        let command = Command {
            actor: caller.actor.clone(),
            idempotency_key: None,
            order: Order::CreateVault(CreateVault {
                id: local_id(),
                new: domain::NewVault {
                    workspace_id: None,
                    provider: "reprise".to_owned(),
                    capabilities: vec!["tools".to_owned(), "providers".to_owned()],
                    metadata: canon::Map::new(),
                },
            }),
        };
        self.order(command, None, Lease::None).await.map(drop)
    }
}

fn local_id() -> VaultId {
    VaultId::from_body(LOCAL)
}

fn not_kept(error: KeepSecretError) -> Refused {
    match error {
        KeepSecretError::Refused(message) => Refused::Domain(domain::Refusal::Invalid {
            param: "value",
            message,
        }),
        KeepSecretError::Failed(detail) => Refused::Internal { detail },
    }
}
