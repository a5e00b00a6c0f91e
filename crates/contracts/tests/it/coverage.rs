//! The table of rules and tests is whole, and the tests it names exist.

use std::collections::BTreeSet;

use contracts::{BlockReason, Condition, NarrowReason};

const TABLE: &str = include_str!("../../../../conformance/contracts-coverage.md");
const SOURCES: [(&str, &str); 22] = [
    (
        "backtests",
        include_str!("../../../cli/tests/it/backtests.rs"),
    ),
    (
        "governed_agreeing",
        include_str!("../../../server/tests/it/governed_agreeing.rs"),
    ),
    ("bytes", include_str!("bytes.rs")),
    ("checks", include_str!("checks.rs")),
    ("compiling", include_str!("compiling.rs")),
    ("cost", include_str!("../../src/cost.rs")),
    ("driver", include_str!("driver.rs")),
    ("endpoint", include_str!("../../src/wire/endpoint.rs")),
    ("governed", include_str!("governed.rs")),
    (
        "governed_parties",
        include_str!("../../../server/tests/it/governed_parties.rs"),
    ),
    (
        "governed_strict",
        include_str!("../../../server/tests/it/governed_strict.rs"),
    ),
    (
        "governed_records",
        include_str!("../../../server/tests/it/governed_records.rs"),
    ),
    (
        "governed_time",
        include_str!("../../../engine/tests/it/governed_time.rs"),
    ),
    (
        "governed_workflows",
        include_str!("../../../server/tests/it/governed_workflows.rs"),
    ),
    ("prechecks", include_str!("prechecks.rs")),
    ("rulings", include_str!("rulings.rs")),
    ("seats", include_str!("seats.rs")),
    (
        "session.test.mjs",
        include_str!("../../../../packages/replay/test/session.test.mjs"),
    ),
    ("wire", include_str!("wire.rs")),
    ("wire_streams", include_str!("wire_streams.rs")),
    ("worked_cases", include_str!("worked_cases.rs")),
    ("workflow", include_str!("workflow.rs")),
];

/// The rows below a heading: ids, and what stands beside them.
fn rows(heading: &str) -> Vec<(String, &'static str)> {
    let from = TABLE.split(&format!("## {heading}\n")).nth(1).unwrap();
    let section = from.split("\n## ").next().unwrap();
    let rows = section
        .lines()
        .filter(|line| line.starts_with("| ") && !line.contains("---"));
    let cells = rows.skip(1).map(|line| {
        let mut cells = line.trim_matches('|').splitn(2, '|');
        let id = cells.next().unwrap().trim().trim_matches('`').to_owned();
        (id, cells.next().unwrap().trim())
    });
    cells.collect()
}

fn check(heading: &str, expected: impl IntoIterator<Item = String>) {
    let rows = rows(heading);
    let ids: BTreeSet<String> = rows.iter().map(|(id, _)| id.clone()).collect();
    let expected: BTreeSet<String> = expected.into_iter().collect();
    assert_eq!(ids, expected, "{heading}");
    assert_eq!(ids.len(), rows.len(), "{heading}: a row twice");
    for (id, beside) in rows {
        let named: Vec<&str> = beside
            .split('`')
            .filter(|part| part.contains("::"))
            .collect();
        assert!(!named.is_empty(), "{id} has no test");
        for test in named {
            let (module, name) = test.split_once("::").unwrap();
            let source = SOURCES.iter().find(|(known, _)| *known == module);
            let (_, source) = source.unwrap_or_else(|| panic!("{id}: no module {module}"));
            let is_there = match module.ends_with(".mjs") {
                true => source.contains(&format!("test(\"{name}\"")),
                false => source.contains(&format!("fn {name}()")),
            };
            assert!(is_there, "{id}: no test {test}");
        }
    }
}

#[test]
fn every_rule_has_its_row_and_every_row_its_test() {
    check("Worked cases", (1..=21).map(|number| format!("C{number}")));
    check(
        "Block reasons",
        BlockReason::ALL.iter().map(ToString::to_string),
    );
    check(
        "Narrowing reasons",
        NarrowReason::ALL.iter().map(ToString::to_string),
    );
    let errors = [
        "Contract",
        "Kill",
        "Config",
        "Fault",
        "Inactive",
        "Unsupported",
        "Timeout",
    ];
    let errors = errors.map(|name| format!("Replay{name}Error"));
    let conditions = Condition::ALL.iter().map(ToString::to_string);
    check(
        "Errors and conditions",
        errors.into_iter().chain(conditions),
    );
    check("Rulings", (1..=47).map(|number| format!("R{number}")));
    let over_http = [
        "workflows and handoffs",
        "equal requests at the same time",
        "unknown members",
        "parties",
        "attempts under way",
        "labels that are used up",
        "who decided",
        "what is said in two places",
        "log-only",
        "opening again",
        "gates and people",
        "outputs of calls that counted at release",
        "backtest of the same contracts",
        "expected errors",
        "constraints of executors",
        "a session that cannot be read",
        "the operator's floor",
        "receipts and late reports",
        "session_lost",
        "expiry and heartbeat",
        "timeouts over a restart",
    ];
    check("On the server", over_http.map(str::to_owned));
    let workflows = [
        "getWorkflowState",
        "handoff",
        "outside of a workflow",
        "limits",
        "shared_resources",
        "session_contract",
        "labels of a parent",
        "kill of a root",
    ];
    check("Workflows", workflows.map(str::to_owned));
}
