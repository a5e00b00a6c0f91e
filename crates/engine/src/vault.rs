//! Secrets of the local vault: set and deleted. Never read back through here.
//!
//! They are kept beside the log, encrypted; no event tells a value, and nothing here can be asked for one.

use domain::{CreateVault, Request, ResourceKind, VaultId};

use crate::caller::Caller;
use crate::dispatch::Settle;
use crate::engine::Engine;
use crate::port::{KeepSecretError, SecretKeeper};
use crate::refused::Refused;

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
        if self.document(local_id().as_str()).await?.is_none() {
            let request = Request::CreateLocalVault;
            let made = self.dispatch(caller, request, None, Settle::Window);
            Box::pin(made).await?;
        }
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
        // Values are no part of any request: they must not reach what requests are logged, cloned and claimed by. Who may
        // make the vault may put them in and take them out.
        let request = Request::CreateLocalVault;
        self.admit(caller, &request)?;
        self.workspace(caller, &request).await?;
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
}

/// The vault that keeps values itself.
pub(crate) fn local() -> CreateVault {
    CreateVault {
        id: local_id(),
        new: domain::NewVault {
            workspace_id: None,
            provider: "reprise".to_owned(),
            capabilities: vec!["tools".to_owned(), "providers".to_owned()],
            metadata: canon::Map::new(),
        },
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
