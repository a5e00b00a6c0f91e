//! The server keeps to its own description: requests generated from `/openapi.json`, answers checked against it.

use std::process::Command;

use crate::subject::{Subject, VERSION};

/// Checks that contradict the protocol: a missing version is 426 (AP-VER-01), and what the description cannot say
/// about a body is decided by the server.
const UNFIT: &str = "missing_required_header,negative_data_rejection,positive_data_acceptance";

#[tokio::test]
async fn ap_rest_01_ap_rest_05_generated_requests_get_the_described_answers() {
    let tool = testing::installed("pypi", "REPRISE_TEST_PYTHON_BIN", "schemathesis");
    let Some((tool, _running)) = tool else {
        return;
    };
    let subject = Subject::start("harn_agent_card").await;
    let mut run = Command::new(tool);
    run.arg("run")
        .arg(format!("{}/openapi.json", subject.url))
        .args([
            "--header",
            &format!("Authorization: Bearer {}", subject.key),
        ])
        .args([
            "--header",
            &format!("Harn-Agents-Protocol-Version: {VERSION}"),
        ])
        // A stream has no end to check.
        .args(["--exclude-path-regex", "/stream$"])
        .args([
            "--phases",
            "coverage,fuzzing",
            "--max-examples",
            "10",
            "--seed",
            "20260425",
        ])
        .args(["--exclude-checks", UNFIT, "--continue-on-failure"])
        .args(["--request-timeout", "30", "--generation-database", "none"])
        .args(["--warnings", "off", "--no-color"])
        .env("NO_PROXY", "127.0.0.1")
        .current_dir(subject.home());
    let output = tokio::task::spawn_blocking(move || run.output())
        .await
        .unwrap();
    let output = output.expect("schemathesis starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("No issues found"), "{said}");
}
