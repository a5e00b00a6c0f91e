//! A run of the whole registry against one server.
//!
//! Owns the order: first the checks that stand alone (with the slow ones beside them), then the probes of the published
//! suite, then the checks that restart the server, then those that judge everything seen so far.

use std::time::Duration;

use serde_json::Value;

use crate::check;
use crate::json::{at, text};
use crate::miss::{Checked, Miss};
use crate::registry::{Check, Probe, Row, rows};
use crate::report::{Outcome, Report, Verdict};
use crate::wire::{Claims, Wire};

/// What to ask and with what.
#[derive(Debug, Clone)]
pub struct Suite {
    /// The address of the server, without `/v1`.
    pub url: String,
    /// An API key that may read and write in the default workspace and make workspaces.
    pub key: String,
    /// A key of another actor that is limited to another workspace or may only read.
    pub other_key: Option<String>,
    /// A key of another actor that may decide what tasks of the first key ask approval for.
    pub approver_key: Option<String>,
    /// Keys that were valid once and were revoked.
    pub dead_keys: Vec<String>,
    /// Keys that were valid once and have ended by themselves.
    pub expired_keys: Vec<String>,
    /// A shell command that makes a key which holds the one scope `$SCOPE`, and prints it as its last line.
    pub make_key: Option<String>,
    /// A shell command that kills and restarts the server and returns when it is ready.
    pub restart: Option<String>,
    /// True to judge by the published suite alone, also where it contradicts the contract.
    pub published: bool,
    /// How long to wait for any one answer.
    pub timeout: Duration,
    /// Ids to leave out; they are reported as not covered. The probes of the published suite build on one another and
    /// always run.
    pub skip: Vec<String>,
}

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// The address cannot be used.
    #[error("`{url}` is not an http:// or https:// address")]
    Address {
        /// The address as given.
        url: String,
    },
    /// Nothing answers there.
    #[error("no answer from `{url}`: {cause}")]
    Unreachable {
        /// The address as given.
        url: String,
        /// What happened instead.
        cause: String,
    },
}

impl SuiteError {
    pub(crate) fn unreachable(url: &str, cause: impl ToString) -> Self {
        Self::Unreachable {
            url: url.to_owned(),
            cause: cause.to_string(),
        }
    }
}

/// Reads the address of a server.
pub(crate) fn address(url: &str) -> Result<reqwest::Url, SuiteError> {
    let parsed = reqwest::Url::parse(url).ok();
    let usable =
        parsed.filter(|url| matches!(url.scheme(), "http" | "https") && url.host_str().is_some());
    usable.ok_or_else(|| SuiteError::Address {
        url: url.to_owned(),
    })
}

/// Returns what a report says of a check, without the keys that were used.
pub(crate) fn verdict(wire: &Wire, checked: Checked) -> Verdict {
    match checked {
        Ok(()) => Verdict::Ok { unseen: None },
        Err(miss) => miss.verdict(|text| wire.redact(text)),
    }
}

impl Suite {
    /// Runs every check and returns the verdicts in registry order; `progress` hears each one as it is reached.
    ///
    /// # Errors
    ///
    /// Returns an error when the address is unusable or nothing answers at all.
    pub async fn run(&self, mut progress: impl FnMut(&Outcome)) -> Result<Report, SuiteError> {
        let wire = self.connect().await?;
        let wire = &wire;
        let all: Vec<&'static Row> = rows().collect();
        let (rows, left_out): (Vec<&Row>, Vec<&Row>) = all.iter().partition(|row| {
            matches!(row.check, Check::Published) || !self.skip.iter().any(|id| id == row.id)
        });
        let mut outcomes = Vec::with_capacity(all.len());
        let mut tell = |row: &Row, checked: Checked| {
            let outcome = outcome(wire, row, checked);
            progress(&outcome);
            outcomes.push(outcome);
        };

        for row in left_out {
            tell(row, Err(Miss::Unseen("left out".to_owned())));
        }
        let slow = rows.iter().filter_map(|row| match row.check {
            Check::Beside(probe) => Some(async move { (*row, run(wire, probe).await) }),
            _ => None,
        });
        let beside = futures_util::future::join_all(slow);
        let now = async {
            for row in &rows {
                match &row.check {
                    Check::Now(probe) => tell(row, run(wire, *probe).await),
                    Check::Claimed(claim) => {
                        tell(row, Err(Miss::Unseen(unclaimed(wire.claims, claim))))
                    }
                    Check::Elsewhere(reason) => tell(row, Err(Miss::Unseen((*reason).to_owned()))),
                    Check::Beside(_)
                    | Check::Published
                    | Check::Restart(_)
                    | Check::Last(_)
                    | Check::Derived(_) => {}
                }
            }
            let probes = check::published::run(wire).await;
            for (row, checked) in rows
                .iter()
                .filter(|row| matches!(row.check, Check::Published))
                .zip(probes)
            {
                tell(row, checked);
            }
        };
        let (beside, ()) = tokio::join!(beside, now);
        for (row, checked) in beside {
            tell(row, checked);
        }
        for row in &rows {
            if let Check::Restart(probe) = row.check {
                tell(row, run(wire, probe).await);
            }
        }
        for row in &rows {
            if let Check::Last(probe) = row.check {
                tell(row, run(wire, probe).await);
            }
        }
        for row in &rows {
            if let Check::Derived(judge) = row.check {
                let checked = judge(wire.claims, &outcomes);
                let outcome = outcome(wire, row, checked);
                progress(&outcome);
                outcomes.push(outcome);
            }
        }
        let place = |id: &str| all.iter().position(|row| row.id == id);
        outcomes.sort_by_key(|outcome| place(outcome.id));
        Ok(Report {
            protocol_version: crate::wire::VERSION,
            url: self.url.clone(),
            outcomes,
        })
    }

    async fn connect(&self) -> Result<Wire, SuiteError> {
        let wire = Wire::new(
            address(&self.url)?,
            self.key.clone(),
            (self.other_key.clone(), self.approver_key.clone()),
            self.restart.clone(),
            self.timeout,
        );
        let mut wire = wire.map_err(|error| SuiteError::unreachable(&self.url, error))?;
        wire.dead_keys.clone_from(&self.dead_keys);
        wire.expired_keys.clone_from(&self.expired_keys);
        wire.make_key.clone_from(&self.make_key);
        let answer = wire.get("/v1").send().await;
        let answer = answer.map_err(|miss| SuiteError::unreachable(&self.url, miss.found()))?;
        let discovery = answer.value().unwrap_or_default();
        let claim = |name: &str| {
            at(&discovery, "capabilities")
                .get(name)
                .and_then(Value::as_bool)
                .unwrap_or(false)
        };
        wire.published = self.published;
        wire.claims = Claims {
            websocket: claim("websocket"),
            receipts: claim("receipts"),
            replay: claim("replay"),
        };
        if let Ok(workspace) = wire.workspace().await {
            wire.home = text(&workspace, "id").to_owned();
        }
        Ok(wire)
    }
}

async fn run(wire: &Wire, probe: Probe) -> Checked {
    probe(wire).await
}

fn outcome(wire: &Wire, row: &Row, checked: Checked) -> Outcome {
    Outcome {
        id: row.id,
        level: row.level,
        title: row.title,
        verdict: verdict(wire, checked),
    }
}

fn unclaimed(claims: Claims, claim: &str) -> String {
    let claimed = match claim {
        "receipts" => claims.receipts,
        "replay" => claims.replay,
        "websocket" => claims.websocket,
        _ => false,
    };
    if claimed {
        format!("the server advertises {claim}, but this runner has no check for it yet")
    } else {
        format!("the server does not advertise {claim}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(url: &str) -> Suite {
        let timeout = Duration::from_secs(2);
        Suite {
            url: url.to_owned(),
            key: "k".to_owned(),
            other_key: None,
            approver_key: None,
            dead_keys: Vec::new(),
            expired_keys: Vec::new(),
            make_key: None,
            restart: None,
            published: false,
            timeout,
            skip: Vec::new(),
        }
    }

    #[tokio::test]
    async fn an_address_that_is_none_is_an_error() {
        for url in ["", "127.0.0.1:8080", "ftp://127.0.0.1", "http://"] {
            let run = suite(url).run(|_| ()).await;
            assert!(
                matches!(run, Err(SuiteError::Address { .. })),
                "`{url}`: {run:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_an_error_and_not_a_report() {
        // The port is free: it was just given and closed again.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let run = suite(&format!("http://127.0.0.1:{port}")).run(|_| ()).await;
        assert!(
            matches!(run, Err(SuiteError::Unreachable { .. })),
            "{run:?}"
        );
    }
}
