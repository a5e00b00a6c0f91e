//! The table of requirements names every id and only tests that exist.

use std::collections::BTreeSet;

const TABLE: &str = include_str!("../../../../conformance/akashik-coverage.md");

/// The areas of the specification and how many requirements each has.
const AREAS: [(&str, usize); 19] = [
    ("ENV", 11),
    ("CLK", 10),
    ("LOG", 8),
    ("ERR", 4),
    ("REG", 8),
    ("DER", 6),
    ("REC", 19),
    ("ATT", 15),
    ("DET", 7),
    ("MRG", 13),
    ("SUB", 7),
    ("REPLAY", 16),
    ("CMP", 9),
    ("HND", 2),
    ("COR", 1),
    ("SES", 1),
    ("SEC", 8),
    ("HTTP", 7),
    ("MCP", 6),
];

/// The tests that carry requirement ids, by module: of this crate, of the server and of the program.
fn tests() -> BTreeSet<String> {
    let elsewhere = [
        (
            "server::it::memory",
            include_str!("../../../server/tests/it/memory.rs"),
        ),
        (
            "server::it::memory_full",
            include_str!("../../../server/tests/it/memory_full.rs"),
        ),
        (
            "server::it::memory_vectors",
            include_str!("../../../server/tests/it/memory_vectors.rs"),
        ),
        (
            "server::it::mcp",
            include_str!("../../../server/tests/it/mcp.rs"),
        ),
        (
            "reprise::command::field::clock",
            include_str!("../../../cli/src/command/field/clock.rs"),
        ),
        (
            "reprise::it::fields",
            include_str!("../../../cli/tests/it/fields.rs"),
        ),
    ];
    let modules = [
        ("again", include_str!("again.rs")),
        ("attune", include_str!("attune.rs")),
        ("clock", include_str!("clock.rs")),
        ("compact", include_str!("compact.rs")),
        ("conflicts", include_str!("conflicts.rs")),
        ("coordination", include_str!("coordination.rs")),
        ("envelope", include_str!("envelope.rs")),
        ("record", include_str!("record.rs")),
        ("register", include_str!("register.rs")),
        ("replay", include_str!("replay.rs")),
    ];
    let own = modules.map(|(module, source)| (format!("field::it::{module}"), source));
    let elsewhere = elsewhere.map(|(module, source)| (module.to_owned(), source));
    let mut tests = BTreeSet::new();
    for (module, source) in own.into_iter().chain(elsewhere) {
        let lines = source.lines();
        let names = lines.filter_map(|line| {
            line.strip_prefix("async ")
                .unwrap_or(line)
                .strip_prefix("fn ak_")
        });
        for (name, _) in names.filter_map(|name| name.split_once('(')) {
            tests.insert(format!("{module}::ak_{name}"));
        }
    }
    tests
}

/// The ids in the name of a test: `ak_reg_08_rec_12_words` is REG-08 and REC-12.
fn ids(test: &str) -> BTreeSet<String> {
    let name = test.rsplit("::ak_").next().unwrap();
    let (mut ids, mut area) = (BTreeSet::new(), "");
    for token in name.split('_') {
        let found = AREAS
            .iter()
            .find(|(area, _)| area.eq_ignore_ascii_case(token));
        match found {
            Some((found, _)) => area = found,
            None if token.len() == 2 && token.parse::<u8>().is_ok() => {
                ids.insert(format!("AK-{area}-{token}"));
            }
            None => break,
        }
    }
    ids
}

#[test]
fn every_requirement_has_a_row_and_every_row_a_test_or_a_reason() {
    let tests = tests();
    let expected: Vec<String> = AREAS
        .iter()
        .flat_map(|(area, count)| (1..=*count).map(move |number| format!("AK-{area}-{number:02}")))
        .collect();
    assert_eq!(expected.len(), 158);
    let rows: Vec<Vec<&str>> = TABLE
        .lines()
        .filter(|line| line.starts_with("| AK-"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let listed: Vec<&str> = rows.iter().map(|row| row[1]).collect();
    assert_eq!(listed, expected);
    let mut named = BTreeSet::new();
    for row in rows {
        let cited: Vec<&str> = row[3].split('`').skip(1).step_by(2).collect();
        assert!(
            !cited.is_empty() || row[3].starts_with("none yet: "),
            "{}",
            row[1]
        );
        for test in cited {
            assert!(
                tests.contains(test),
                "{} cites {test}, which does not exist",
                row[1]
            );
            assert!(
                ids(test).contains(row[1]),
                "{test} does not carry {}",
                row[1]
            );
            named.insert(test.to_owned());
        }
    }
    assert_eq!(named, tests, "tests that carry ids are in the table");
}
