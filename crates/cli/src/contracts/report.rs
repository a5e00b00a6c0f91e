//! Reports of `reprise contracts test` for machines: JUnit and SARIF.

use std::fs;
use std::path::Path;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use serde_json::{Value, json};

use super::pack::CaseResult;
use crate::exit::OrHint;

/// Writes a JUnit report.
pub(super) fn junit(path: &Path, results: &[CaseResult]) -> anyhow::Result<()> {
    let mut suite = TestSuite::new("contracts");
    for result in results {
        let mut status = TestCaseStatus::success();
        if !result.problems.is_empty() {
            status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(result.problems.join("\n"));
        }
        let mut case = TestCase::new(result.name.clone(), status);
        case.set_classname("contracts");
        suite.add_test_case(case);
    }
    let mut report = Report::new("reprise contracts test");
    report.add_test_suite(suite);
    let text = report
        .to_string()
        .or_hint("the JUnit report", "report this")?;
    write(path, &text)
}

/// Writes a SARIF 2.1.0 report.
pub(super) fn sarif(path: &Path, results: &[CaseResult]) -> anyhow::Result<()> {
    let found: Vec<Value> = results
        .iter()
        .flat_map(|result| {
            result.problems.iter().map(|problem| {
                json!({
                    "ruleId": "unexpected-verdict",
                    "level": "error",
                    "message": {"text": format!("{}: {problem}", result.name)},
                    "locations": [{"physicalLocation": {"artifactLocation": {"uri": result.file}}}],
                })
            })
        })
        .collect();
    let report = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "reprise contracts test",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": [{"id": "unexpected-verdict",
                    "shortDescription": {"text": "A response was not judged as the pack expects"}}],
            }},
            "results": found,
        }],
    });
    write(path, &format!("{report:#}\n"))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).or_hint(
        format_args!("`{}`", path.display()),
        "name a file that can be written",
    )
}
