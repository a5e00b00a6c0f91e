//! Every requirement id and what this runner does about it.
//!
//! Owns the shape of a row and the order of the groups; the rows stand beside their checks. An id that no check covers
//! has a row too, with the reason.

use std::future::Future;
use std::pin::Pin;

use crate::check;
use crate::miss::Checked;
use crate::report::{Level, Outcome};
use crate::wire::{Claims, Wire};

/// A check as a table entry.
pub(crate) type Probe = for<'a> fn(&'a Wire) -> Pin<Box<dyn Future<Output = Checked> + Send + 'a>>;

/// When and how an id is judged.
pub(crate) enum Check {
    /// In its turn.
    Now(Probe),
    /// At the same time as the others, because it mostly waits.
    Beside(Probe),
    /// After the others, because it restarts the server.
    Restart(Probe),
    /// At the end, because it judges everything seen.
    Last(Probe),
    /// From the other verdicts.
    Derived(fn(Claims, &[Outcome]) -> Checked),
    /// As the next probe of the published suite.
    Published,
    /// Not yet; the reason depends on whether discovery claims the capability.
    Claimed(&'static str),
    /// Not by this runner, for this reason.
    Elsewhere(&'static str),
}

/// One requirement.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) level: Level,
    pub(crate) title: &'static str,
    pub(crate) check: Check,
}

/// Why an id that no wire shows is not covered.
pub(crate) const ELSEWHERE: Check = Check::Elsewhere("see conformance/coverage.md");

/// Makes a row: `row!("AP-X-01", M, "title", Now check_function)` or `row!("AP-X-01", M, "title", = check)`.
macro_rules! row {
    ($id:literal, $level:ident, $title:literal, = $check:expr) => {
        $crate::registry::Row {
            id: $id,
            level: $crate::registry::level::$level,
            title: $title,
            check: $check,
        }
    };
    ($id:literal, $level:ident, $title:literal, $when:ident $probe:path) => {
        $crate::registry::Row {
            id: $id,
            level: $crate::registry::level::$level,
            title: $title,
            check: $crate::registry::Check::$when(|wire| Box::pin($probe(wire))),
        }
    };
}
pub(crate) use row;

/// The level letters of the requirement tables.
pub(crate) mod level {
    use super::Level;

    pub(crate) const M: Level = Level::Must;
    pub(crate) const N: Level = Level::MustNot;
    pub(crate) const S: Level = Level::Should;
    pub(crate) const O: Level = Level::May;
    pub(crate) const U: Level = Level::Unstated;
}

/// Returns all rows in report order.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    let groups: [&'static [Row]; 29] = [
        check::version::ROWS,
        check::envelope::ROWS,
        check::workspace::ROWS,
        check::session::ROWS,
        check::task::ROWS,
        check::branch::ROWS,
        check::message::ROWS,
        check::artifact::ROWS,
        check::card::ROWS,
        check::event::ROWS,
        check::extended::ROWS,
        check::outcome::ROWS,
        check::permission::ROWS,
        check::rest::ROWS,
        check::sse::ROWS,
        check::auth::ROWS,
        check::walk::ROWS,
        check::idempotency::ROWS,
        check::lifecycle::ROWS,
        check::taxonomy::ROWS,
        check::error::ROWS,
        check::privacy::ROWS,
        check::sdk::ROWS,
        check::persona::ROWS,
        check::beyond::ROWS,
        check::receipt::ROWS,
        check::replay::ROWS,
        check::beyond::CONFORMANCE,
        check::published::ROWS,
    ];
    groups.into_iter().flatten()
}

/// Returns every id that a run judges, in report order.
pub fn ids() -> impl Iterator<Item = &'static str> {
    rows().map(|row| row.id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_id_is_listed_twice() {
        let mut seen = BTreeSet::new();
        for row in rows() {
            assert!(seen.insert(row.id), "{} is listed twice", row.id);
        }
    }

    #[test]
    fn the_published_probes_are_listed_in_order() {
        let listed: Vec<&str> = rows()
            .filter(|row| matches!(row.check, Check::Published))
            .map(|row| row.id)
            .collect();
        let expected: Vec<String> = (1..=26)
            .map(|number| format!("SUITE-{number:02}"))
            .collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn every_id_that_no_wire_shows_names_a_test() {
        let table = include_str!("../coverage.md");
        for row in rows() {
            let elsewhere = matches!(row.check, Check::Elsewhere("see conformance/coverage.md"));
            let listed = table
                .lines()
                .any(|line| line.starts_with(&format!("| {} |", row.id)));
            assert!(listed || !elsewhere, "{} is not in coverage.md", row.id);
        }
    }

    /// The requirement tables are not part of this repository.
    #[test]
    fn the_registry_lists_every_id_of_the_requirement_tables_with_its_level() {
        let Some(digest) = testing::published("agents-protocol.md") else {
            return;
        };
        let digest = String::from_utf8(digest).unwrap();
        let mut expected = BTreeSet::new();
        for line in digest.lines().filter(|line| line.starts_with("| AP-")) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let level = if ["M", "N", "S", "O"].contains(&cells[2]) {
                cells[2]
            } else {
                "-"
            };
            expected.insert((cells[1].to_owned(), level.to_owned()));
        }
        assert!(
            expected.len() > 200,
            "only {} ids were found",
            expected.len()
        );
        expected.insert(("AP-CONF-01".to_owned(), "M".to_owned()));
        expected.insert(("AP-CONF-02".to_owned(), "S".to_owned()));
        let listed: BTreeSet<(String, String)> = rows()
            .filter(|row| row.id.starts_with("AP-"))
            .map(|row| (row.id.to_owned(), row.level.letter().to_owned()))
            .collect();
        let missing: Vec<_> = expected.difference(&listed).collect();
        let extra: Vec<_> = listed.difference(&expected).collect();
        assert!(
            missing.is_empty() && extra.is_empty(),
            "missing {missing:?}, extra {extra:?}"
        );
    }
}
