//! The black-box runner for servers of the memory protocol (Akashik 0.1.0).
//!
//! Owns the list of its requirement ids and the run over them: one verdict for each id, whatever level the server announces.
//! An id above that level, or one that no wire shows, is not covered and says why. Each check works in a field of its own.

mod agent;
mod attune;
mod clock;
mod compact;
mod conflict;
mod envelope;
mod full;
mod ground;
mod mcp;
mod record;
mod replay;
mod socket;
mod subscribe;
mod transport;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::json::at;
use crate::miss::{Checked, Miss};
use crate::report::{Level, Outcome, Report};
use crate::suite::{SuiteError, address, verdict};
use crate::wire::Wire;
use ground::Ground;

/// The version of the memory protocol that this runner speaks.
const VERSION: &str = "akashik-0.1.0";

/// What to ask of a server of the memory protocol, and with what.
#[derive(Debug, Clone)]
pub struct AkashikSuite {
    /// The address of the server, or of the protocol on it: `/akashik` below the former is tried too.
    pub url: String,
    /// An API key that may do everything in fields and make them.
    pub key: String,
    /// A key of somebody else that may use the fields of the first.
    pub other_key: Option<String>,
    /// A shell command that kills and restarts the server and returns when it is ready.
    pub restart: Option<String>,
    /// How long to wait for any one answer.
    pub timeout: Duration,
    /// Ids to leave out; they are reported as not covered.
    pub skip: Vec<String>,
}

/// A check as a table entry.
pub(crate) type Probe =
    for<'a> fn(&'a Ground) -> Pin<Box<dyn Future<Output = Checked> + Send + 'a>>;

/// When an id is judged.
pub(crate) enum Check {
    /// In its turn, if the server announces its level.
    Now(Probe),
    /// In its turn at every level: whoever offers a transport meets its requirements.
    Always(Probe),
    /// After the others, because it restarts the server.
    Restart(Probe),
    /// Not by this runner, for this reason.
    Elsewhere(&'static str),
}

/// One requirement.
pub(crate) struct Row {
    id: &'static str,
    level: u8,
    title: &'static str,
    check: Check,
}

/// Makes a row: `row!("AK-X-01", 0, "title", Now check_function)` or `row!("AK-X-01", 0, "title", not "reason")`.
macro_rules! row {
    ($id:literal, $level:literal, $title:literal, not $reason:expr) => {
        $crate::akashik::Row {
            id: $id,
            level: $level,
            title: $title,
            check: $crate::akashik::Check::Elsewhere($reason),
        }
    };
    ($id:literal, $level:literal, $title:literal, $when:ident $probe:path) => {
        $crate::akashik::Row {
            id: $id,
            level: $level,
            title: $title,
            check: $crate::akashik::Check::$when(|ground| Box::pin($probe(ground))),
        }
    };
}
pub(crate) use row;

/// Why an id that takes a purge is not judged here.
pub(crate) const PURGE: &str =
    "takes a purge, which level 3 brings; see conformance/akashik-coverage.md";

/// Returns all rows in report order.
fn rows() -> impl Iterator<Item = &'static Row> {
    let groups: [&'static [Row]; 14] = [
        envelope::ENVELOPE,
        clock::CLOCK,
        clock::LOG,
        envelope::ERRORS,
        agent::ROWS,
        record::ROWS,
        attune::ROWS,
        conflict::ROWS,
        subscribe::ROWS,
        replay::ROWS,
        compact::ROWS,
        transport::SECURITY,
        transport::HTTP,
        mcp::ROWS,
    ];
    groups.into_iter().flatten()
}

/// Returns every id that a run judges, in report order, with the level that it binds from.
pub fn akashik_ids() -> Vec<(&'static str, u8)> {
    rows().map(|row| (row.id, row.level)).collect()
}

impl AkashikSuite {
    /// Runs every check and returns the verdicts in order; `progress` hears each one as it is reached.
    ///
    /// # Errors
    ///
    /// Returns an error when the address is unusable or no field answers there.
    pub async fn run(&self, mut progress: impl FnMut(&Outcome)) -> Result<Report, SuiteError> {
        let ground = self.connect().await?;
        let rows: Vec<&'static Row> = rows().collect();
        let mut outcomes = Vec::with_capacity(rows.len());
        let mut tell = |row: &Row, checked: Checked| {
            let outcome = outcome(&ground.wire, row, checked);
            progress(&outcome);
            outcomes.push(outcome);
        };
        for row in &rows {
            match &row.check {
                _ if self.skip.iter().any(|id| id == row.id) => {
                    tell(row, Err(Miss::Unseen("left out".to_owned())));
                }
                Check::Elsewhere(reason) => tell(row, Err(Miss::Unseen((*reason).to_owned()))),
                Check::Now(_) | Check::Restart(_) if row.level > ground.level => {
                    let reason = format!(
                        "binds from level {}; the server announces {}",
                        row.level, ground.level
                    );
                    tell(row, Err(Miss::Unseen(reason)));
                }
                Check::Now(probe) | Check::Always(probe) => tell(row, probe(&ground).await),
                Check::Restart(_) => {}
            }
        }
        for row in rows.iter().filter(|row| row.level <= ground.level) {
            if self.skip.iter().any(|id| id == row.id) {
                continue;
            }
            if let Check::Restart(probe) = row.check {
                tell(row, probe(&ground).await);
            }
        }
        let place = |id: &str| rows.iter().position(|row| row.id == id);
        outcomes.sort_by_key(|outcome| place(outcome.id));
        Ok(Report {
            protocol_version: VERSION,
            url: self.url.clone(),
            outcomes,
        })
    }

    async fn connect(&self) -> Result<Ground, SuiteError> {
        let mut base = address(&self.url)?;
        // The tools lie beside the protocol, at the root of the server.
        let path = base.path().trim_end_matches('/').to_owned();
        let root = path.strip_suffix("/akashik").unwrap_or(&path).to_owned();
        base.set_path(&root);
        let wire = Wire::new(
            base,
            self.key.clone(),
            (self.other_key.clone(), None),
            self.restart.clone(),
            self.timeout,
        );
        let wire = wire.map_err(|error| SuiteError::unreachable(&self.url, error))?;
        let mut found = String::new();
        for prefix in ["/akashik", ""] {
            let status = format!("{prefix}/fields/{}/v1/field/status", wire.fresh("check"));
            let answer = wire.get(status).version(None).send().await;
            let answer = answer.map_err(|miss| SuiteError::unreachable(&self.url, miss.found()))?;
            let level = answer.value().unwrap_or_default();
            if let Some(level) = at(&level, "conformance_level").as_u64() {
                let level = u8::try_from(level).unwrap_or(u8::MAX);
                return Ok(Ground::new(wire, prefix, level));
            }
            found = format!("no field: {}", answer.found());
        }
        Err(SuiteError::unreachable(&self.url, wire.redact(&found)))
    }
}

fn outcome(wire: &Wire, row: &Row, checked: Checked) -> Outcome {
    Outcome {
        id: row.id,
        level: Level::From(row.level),
        title: row.title,
        verdict: verdict(wire, checked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever adds a requirement to the table of tests answers for it here, and the other way round.
    #[test]
    fn every_requirement_of_the_table_has_a_line_with_its_level() {
        let table = include_str!("../akashik-coverage.md");
        let listed = table.lines().filter(|line| line.starts_with("| AK-"));
        let listed: Vec<(String, String)> = listed
            .map(|line| {
                let mut cells = line.split('|').map(str::trim).skip(1);
                let mut next = || cells.next().unwrap().to_owned();
                (next(), next())
            })
            .collect();
        let rows: Vec<(String, String)> = akashik_ids()
            .iter()
            .map(|(id, level)| ((*id).to_owned(), level.to_string()))
            .collect();
        assert_eq!(rows.len(), 158);
        assert_eq!(rows, listed);
    }
}
