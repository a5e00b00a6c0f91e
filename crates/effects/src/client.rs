//! The HTTP client of one configuration.

use std::cell::OnceCell;
use std::time::Duration;

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// One client for everything that is behind an address. It is made for the first that asks: it reads and keeps all
/// certificates that the system trusts, which a configuration without addresses has no use for.
#[derive(Debug, Default)]
pub(crate) struct SharedClient(OnceCell<reqwest::Client>);

impl SharedClient {
    /// Returns the client, or why there can be none.
    pub(crate) fn get(&self) -> Result<reqwest::Client, String> {
        if let Some(client) = self.0.get() {
            return Ok(client.clone());
        }
        let made = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            // A redirected call would carry its key to a host that nobody configured.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| format!("cannot create an HTTP client: {error}"))?;
        Ok(self.0.get_or_init(|| made).clone())
    }
}
