//! What the user sees: text, JSON and JUnit of a verification.
//!
//! A sidecar comes from strangers. What it says is shown without line breaks and control characters, so that it can
//! forge no line and steer no terminal.

mod facts;

use std::path::{Path, PathBuf};

use ::sidecar::{Check, Outcome, Reason, Sidecar, Verification};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use serde::Serialize;

use super::write::PreparedFile;
use crate::output::escaped;

/// The outcome of `verify` as a document.
#[derive(Debug, Serialize)]
pub(super) struct VerifyReport {
    pub(super) report: PathBuf,
    pub(super) sidecar: PathBuf,
    pub(super) root: Option<PathBuf>,
    pub(super) kind: Option<String>,
    pub(super) verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    pub(super) warnings: Vec<String>,
    pub(super) checks: Vec<Check>,
    pub(super) not_checked: Vec<NotChecked>,
}

/// Something that the sidecar records and nobody asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct NotChecked {
    pub(super) part: &'static str,
    /// What to give.
    pub(super) ask: &'static str,
}

/// The answer as one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Clean,
    Drift,
    Error,
}

/// Returns the text form of a verification.
pub(super) fn text(
    (report, path): (&Path, &Path),
    sidecar: &Sidecar,
    verification: &Verification,
    not_checked: &[NotChecked],
) -> String {
    let (name, version) = sidecar.tool();
    let dirty = if sidecar.dirty() { " (dirty)" } else { "" };
    let commit = sidecar.commit().unwrap_or("none");
    let mut lines = vec![
        ("report", report.display().to_string()),
        ("sidecar", path.display().to_string()),
        ("kind", sidecar.kind().to_owned()),
        ("tool", format!("{name} {version}")),
        ("commit", format!("{commit}{dirty}")),
        ("time", sidecar.invoked_at().to_owned()),
    ];
    if let Sidecar::General(general) = sidecar {
        lines.extend(facts::lines(general));
    }
    let mut text = String::new();
    for (name, value) in lines {
        text.push_str(&format!("{name:<9}{}\n", escaped(&value)));
    }
    text.push('\n');
    for check in &verification.checks {
        text.push_str(&check_lines(check));
    }
    for warning in &verification.warnings {
        text.push_str(&format!("  warning: {}\n", escaped(warning)));
    }
    for NotChecked { part, ask } in not_checked {
        text.push_str(&format!("  not checked: {part}; {ask}\n"));
    }
    let failed = count(verification, Outcome::Fail);
    let verdict = match failed {
        0 => format!("\nclean: {} of {0} ok\n", count(verification, Outcome::Ok)),
        failed => format!("\ndrift: {failed} of {} FAIL\n", verification.checks.len()),
    };
    text + &verdict
}

fn count(verification: &Verification, outcome: Outcome) -> usize {
    let of_kind = verification
        .checks
        .iter()
        .filter(|check| check.result == outcome);
    of_kind.count()
}

/// Returns a check as lines: one when ok, with expected and actual below it otherwise.
pub(super) fn check_lines(check: &Check) -> String {
    let phrase = phrase(check);
    let Check { field, .. } = check;
    match check.result {
        Outcome::Ok => format!("  ok    {field}  {phrase}\n"),
        Outcome::Note => format!("  note  {field}  {phrase}\n"),
        Outcome::Fail => {
            let mut lines = format!("  FAIL  {field}  {phrase}\n");
            // A signature has neither.
            if let Some(expected) = check.expected {
                let actual = check
                    .actual
                    .map_or("<none>".to_owned(), |hash| hash.to_string());
                lines.push_str(&format!(
                    "          expected {expected}\n          actual   {actual}\n"
                ));
            }
            lines
        }
    }
}

fn phrase(check: &Check) -> String {
    let mut phrase = format!("`{}`", escaped(&check.path));
    if let Some(found) = &check.relocated_to {
        phrase.push_str(&format!(" found at `{}`", escaped(found)));
    }
    if let Some(mode) = check.matched {
        phrase.push_str(&format!(" agrees by {mode}"));
    }
    if let Some(reason) = check.reason {
        phrase.push_str(&format!(": {}", reason.name()));
    }
    if let Some(detail) = &check.detail {
        phrase.push_str(&format!(": {}", escaped(detail)));
    }
    phrase
}

/// Writes the JUnit form: a test case per check, or one in error when there is no verdict.
pub(super) fn write_junit(path: &Path, outlook: &VerifyReport) -> anyhow::Result<()> {
    let mut suite = TestSuite::new(outlook.sidecar.display().to_string());
    if let Some(error) = outlook.error {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_type(error);
        status.set_message(outlook.message.clone().unwrap_or_default());
        suite.add_test_case(TestCase::new("sidecar", status));
    }
    for check in &outlook.checks {
        let status = match check.result {
            Outcome::Note if check.reason == Some(Reason::NotChecked) => {
                let mut status = TestCaseStatus::skipped();
                status.set_message(phrase(check));
                status
            }
            Outcome::Ok | Outcome::Note => TestCaseStatus::success(),
            Outcome::Fail => {
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_type(check.reason.map_or("hash_mismatch", Reason::name));
                status.set_message(phrase(check));
                status.set_description(check_lines(check));
                status
            }
        };
        let mut case = TestCase::new(check.field.clone(), status);
        case.set_classname(outlook.kind.clone().unwrap_or_default());
        suite.add_test_case(case);
    }
    let mut report = Report::new("reprise sidecar verify");
    report.add_test_suite(suite);
    PreparedFile::new(path, report.to_string()?.as_bytes())?.commit()
}
