//! Which server, and with which key.
//!
//! Flags and environment come first; otherwise the data directory of a server on this machine tells both. The key in
//! a data directory goes to the server that works in it, or where on this machine somebody says, never elsewhere, and no
//! key is sent in the clear to another machine unless somebody insists.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use reqwest::Url;

use crate::args::Connection;
use crate::command::key::{APPROVER_KEY_FILE, KEY_FILE};
use crate::exit::{OrHint, Problem};
use crate::locked_file;

/// The file in the data directory in which a running server says where it listens.
pub(crate) const ADDRESS_FILE: &str = "address";

const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// A server and a key for it.
pub(crate) struct Target {
    /// Where.
    pub(crate) url: Url,
    /// The credential.
    pub(crate) key: String,
    /// The file that the credential was found in; none for one that somebody gave.
    pub(crate) key_file: Option<PathBuf>,
    /// Certificates to trust beside the system's.
    pub(crate) ca: Option<PathBuf>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("url", &self.url.as_str())
            .finish_non_exhaustive()
    }
}

impl Target {
    /// Finds the server and the key that a command means.
    pub(crate) fn find(connection: &Connection) -> anyhow::Result<Self> {
        Self::find_with(connection, KEY_FILE)
    }

    /// Finds the server, and the key of whoever answers and decides; the first key where there is none.
    pub(crate) fn find_approver(connection: &Connection) -> anyhow::Result<Self> {
        let has_own = connection.data.join(APPROVER_KEY_FILE).exists();
        Self::find_with(
            connection,
            if has_own { APPROVER_KEY_FILE } else { KEY_FILE },
        )
    }

    fn find_with(connection: &Connection, key_file: &str) -> anyhow::Result<Self> {
        let (url, local) = match &connection.url {
            Some(url) => (url.clone(), false),
            None => match (local_address(&connection.data), &connection.key) {
                (Some(url), _) => (url, true),
                (None, Some(_)) => (DEFAULT_URL.to_owned(), true),
                // Whoever listens at some port of this machine is not the server that the key is for.
                (None, None) => {
                    local_key(&connection.data, key_file)?;
                    return Err(Problem::new(
                        format!("no server is running in `{}`", connection.data.display()),
                        "start one there with `reprise serve`, or name one with --url",
                    )
                    .into());
                }
            },
        };
        let url = parse(&url)?;
        if url.scheme() == "http" && !is_loopback(&url) && !connection.allow_plain_http {
            return Err(Problem::new(
                format!(
                    "plain http to another machine, `{url}`, would expose the key on the network"
                ),
                "use https://, or say --allow-plain-http in a network you trust",
            )
            .into());
        }
        let mut found = None;
        let key = match &connection.key {
            // A folder that came from elsewhere may hold the file, and the key is none of its own.
            Some(_) if local && !is_loopback(&url) => {
                return Err(Problem::new(
                    format!(
                        "`{}` names another machine, `{url}`: a key from elsewhere is not sent there",
                        connection.data.join(ADDRESS_FILE).display()
                    ),
                    "name the server with --url or REPRISE_URL",
                )
                .into());
            }
            Some(key) => key.clone(),
            None if local || is_loopback(&url) => {
                found = Some(connection.data.join(key_file));
                local_key(&connection.data, key_file)?
            }
            None => {
                return Err(Problem::new(
                    format!("no key for `{url}`"),
                    "give one with --key or REPRISE_KEY: whoever runs that server creates it there with `reprise key create --actor NAME`; \
                     the key of this folder is not sent to other machines",
                )
                .into());
            }
        };
        Ok(Self {
            url,
            key,
            key_file: found,
            ca: connection.ca.clone(),
        })
    }
}

/// Reads an address.
fn parse(text: &str) -> anyhow::Result<Url> {
    let hint = "an address looks like http://127.0.0.1:8080";
    let url = Url::parse(text).or_hint(format_args!("`{text}`"), hint)?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(Problem::new(format!("`{text}` is not an http address"), hint).into());
    }
    if !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some()
    {
        return Err(Problem::new(
            "an address with a user name, a password, a query or a fragment is not used",
            "give the key with --key or REPRISE_KEY",
        )
        .into());
    }
    Ok(url)
}

/// True when nothing sent there leaves this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else {
        return false;
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns where the server of a data directory listens, while it runs.
fn local_address(data: &Path) -> Option<String> {
    let text = locked_file::read(data, ADDRESS_FILE)?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn local_key(data: &Path, key_file: &str) -> anyhow::Result<String> {
    let file = data.join(key_file);
    let hint = "run this where `reprise serve` runs, or give --key, REPRISE_KEY or --data";
    match std::fs::read_to_string(&file) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = format!("no key: there is no file `{}`", file.display());
            Err(Problem::new(message, hint).into())
        }
        Err(error) => {
            let message = format!("no key: `{}` cannot be read: {error}", file.display());
            Err(Problem::new(message, hint).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(data: &Path, url: Option<&str>) -> Connection {
        Connection {
            url: url.map(str::to_owned),
            key: None,
            data: data.to_owned(),
            ca: None,
            allow_plain_http: true,
        }
    }

    #[test]
    fn the_local_key_goes_to_the_local_server_only() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(KEY_FILE), "rpk_local\n").unwrap();
        // Nobody works there, and whoever listens at the usual port is not its server.
        let error = Target::find(&connection(home.path(), None)).unwrap_err();
        assert!(
            error.to_string().contains("no server is running in"),
            "{error}"
        );
        // What a crash left leads to a port that may be another's by now.
        std::fs::write(home.path().join(ADDRESS_FILE), "http://127.0.0.1:8080\n").unwrap();
        let error = Target::find(&connection(home.path(), None)).unwrap_err();
        assert!(
            error.to_string().contains("no server is running in"),
            "{error}"
        );
        // Somebody who names a server of this machine means it.
        let url = Some("http://127.0.0.1:8080");
        let target = Target::find(&connection(home.path(), url)).unwrap();
        assert_eq!(target.key, "rpk_local");
        let mut given = connection(home.path(), None);
        given.key = Some("rpk_given".to_owned());
        let target = Target::find(&given).unwrap();
        assert_eq!(
            (target.url.as_str(), target.key.as_str()),
            ("http://127.0.0.1:8080/", "rpk_given")
        );
        let said =
            |text: &str| locked_file::LockedFile::write(home.path(), ADDRESS_FILE, text).unwrap();
        let held = said("https://[::1]:9\n");
        let target = Target::find(&connection(home.path(), None)).unwrap();
        assert_eq!(
            (target.url.as_str(), target.key.as_str()),
            ("https://[::1]:9/", "rpk_local")
        );
        drop(held);
        let _held = said("https://192.0.2.1:9\n");
        let target = Target::find(&connection(home.path(), None)).unwrap();
        assert_eq!(target.key, "rpk_local");
        let mut given = connection(home.path(), None);
        given.key = Some("rpk_of_another_server".to_owned());
        let error = Target::find(&given).unwrap_err();
        assert!(error.to_string().contains("another machine"), "{error}");
        let error =
            Target::find(&connection(home.path(), Some("https://example.org"))).unwrap_err();
        assert!(error.to_string().contains("no key"), "{error}");
    }

    #[test]
    fn ap_rest_02_a_key_is_not_sent_in_the_clear_to_another_machine() {
        let home = tempfile::tempdir().unwrap();
        let mut connection = connection(home.path(), Some("http://192.0.2.1:8080"));
        connection.key = Some("rpk_x".to_owned());
        assert!(Target::find(&connection).is_ok());
        connection.allow_plain_http = false;
        let error = Target::find(&connection).unwrap_err();
        assert!(error.to_string().contains("plain http"), "{error}");
        connection.url = Some("http://localhost:1".to_owned());
        assert!(Target::find(&connection).is_ok());
    }

    #[test]
    fn addresses_that_cannot_be_meant_are_refused() {
        for text in [
            "",
            "127.0.0.1:8080",
            "ftp://x",
            "http://user:secret@host",
            "http://h/?key=1",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
