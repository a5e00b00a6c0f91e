//! The whole suite against the real program, for both names that the card may have (C-01).

use conformance::{Report, Verdict};

use crate::subject::Subject;

/// Ids that a run over the wire says nothing about. A group without a number stands for all of its ids.
const NOT_COVERED: &[&str] = &[
    // A client, a build, a data directory or a configuration shows these; coverage.md names the tests.
    "AP-VER-06",
    "AP-VER-07",
    "AP-VER-08",
    "AP-CARD-06",
    "AP-SKILL-02",
    "AP-REST-02",
    "AP-AUTH-04",
    "AP-IDEM-01",
    "AP-IDEM-09",
    "AP-SDK-02",
    "AP-RCPT-05",
    "AP-CONF-02",
    // A client cannot bring the server there; coverage.md names the tests.
    "AP-WS-06",
    "AP-ERR-05",
    "AP-PRIV-04",
    // No built-in workflow calls tools or models, uses secrets or makes anything large, and nothing compacts.
    "AP-SESS-04",
    "AP-ART-03",
    "AP-VAULT-03",
    "AP-VAULT-04",
    "AP-TAX-03",
    "AP-TAX-04",
    "AP-TAX-05",
    // Not part of this server yet.
    "AP-CARD-02",
    "AP-CARD-05",
    "AP-CONN-02",
    "AP-CONN-03",
    "AP-MEM-",
    "AP-OAUTH-",
    "AP-PERS-03",
    "AP-PERS-04",
    "AP-PERS-06",
    "AP-QUOTA-",
    "AP-RPL-18",
    "AP-SDK-06",
    "AP-SDK-10",
    "AP-SDK-11",
    "AP-WSK-",
];
/// Every id that is not covered is accounted for in `conformance/coverage.md`, itself or by its group.
#[test]
fn what_is_not_covered_is_accounted_for() {
    let table = include_str!("../../../../conformance/coverage.md");
    for id in NOT_COVERED {
        assert!(table.contains(id.trim_end_matches('-')), "{id}");
    }
}

async fn judged(card_object: &str) -> Report {
    let subject = Subject::start(card_object).await;
    subject.suite(&subject.url).run(|_| ()).await.unwrap()
}

fn check(report: &Report, failed: &[&str]) {
    assert_eq!(report.failed_ids(), failed, "{report}");
    let listed = |id: &str| {
        let group = |name: &&str| *name == id || name.ends_with('-') && id.starts_with(*name);
        NOT_COVERED.iter().any(group)
    };
    for outcome in &report.outcomes {
        let not_covered = matches!(outcome.verdict, Verdict::NotCovered { .. });
        assert_eq!(not_covered, listed(outcome.id), "{}", outcome.line());
    }
    for name in NOT_COVERED {
        let known = |id: &&str| id.starts_with(name);
        assert!(
            report
                .outcomes
                .iter()
                .map(|outcome| outcome.id)
                .any(|id| known(&id)),
            "{name}"
        );
    }
}

#[tokio::test]
async fn with_the_published_suites_name_of_the_card_nothing_fails() {
    check(&judged("agent_card").await, &[]);
}

#[tokio::test]
async fn with_the_protocols_name_of_the_card_the_probe_that_wants_the_other_differs_by_decision() {
    let report = judged("harn_agent_card").await;
    check(&report, &[]);
    assert_eq!(report.differing(), 1, "{report}");
}
