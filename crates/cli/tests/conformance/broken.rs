//! The runner notices what is broken, and nothing else: a proxy before the real program breaks one rule at a time.
//!
//! Each run asks the ids that must notice and about a third of the rest, chosen by their names, so that each id is asked
//! under about a third of the faults and a new one changes nothing for the others. With `REPRISE_TEST_EVERY_ID` set, all runs ask everything but the slow ids.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use conformance::breaking::{BreakingProxy, Fault};

use crate::subject::Subject;

/// Runs at the same time. Each has a server of its own, because a run restarts it and fills it.
const LANES: usize = 8;
/// Ids that take long; only faults that they must notice run them.
const SLOW: [&str; 3] = ["AP-SSE-07", "AP-SSE-09", "WALK-02"];

#[derive(Debug)]
struct Seen {
    fault: Option<Fault>,
    passed: BTreeSet<&'static str>,
    failed: BTreeSet<&'static str>,
    report: String,
}

async fn seen(fault: Option<Fault>) -> Seen {
    let subject = Subject::start("agent_card").await;
    let proxy = BreakingProxy::start(&subject.url, fault).await.unwrap();
    let mut suite = subject.suite(proxy.url());
    if let Some(fault) = fault {
        let every = std::env::var_os("REPRISE_TEST_EVERY_ID").is_some();
        let fault_name = format!("{fault:?}");
        let chosen = |id: &str| {
            let bytes = fault_name.bytes().chain(id.bytes());
            let sum = bytes.fold(7_u32, |sum, byte| {
                sum.wrapping_mul(31).wrapping_add(u32::from(byte))
            });
            sum % 3 == 0
        };
        let rest = conformance::ids();
        let rest = rest.filter(|id| !fault.fails().contains(id));
        let left_out = rest.filter(|id| SLOW.contains(id) || !every && !chosen(id));
        suite.skip = left_out.map(str::to_owned).collect();
    }
    let report = suite.run(|_| ()).await.unwrap();
    Seen {
        fault,
        passed: report.passed_ids().into_iter().collect(),
        failed: report.failed_ids().into_iter().collect(),
        report: report.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_fails_exactly_the_ids_that_must_notice_it() {
    let faults = std::iter::once(None).chain(Fault::ALL.iter().copied().map(Some));
    let queue = Arc::new(Mutex::new(faults.collect::<Vec<_>>().into_iter()));
    let lanes: Vec<_> = (0..LANES)
        .map(|_| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move {
                let mut all = Vec::new();
                loop {
                    let next = queue.lock().unwrap().next();
                    let Some(fault) = next else {
                        return all;
                    };
                    all.push(seen(fault).await);
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for lane in lanes {
        all.extend(lane.await.unwrap());
    }
    let sound = all.iter().find(|seen| seen.fault.is_none()).unwrap();
    assert!(sound.failed.is_empty(), "without a fault: {}", sound.report);
    let mut wrong = Vec::new();
    for seen in &all {
        let Some(fault) = seen.fault else {
            continue;
        };
        let expected: BTreeSet<&str> = fault.fails().into_iter().collect();
        let expected: BTreeSet<&str> = expected.intersection(&sound.passed).copied().collect();
        assert!(
            !expected.is_empty(),
            "{fault:?} breaks nothing that is seen"
        );
        if seen.failed != expected {
            let lines = seen.report.lines().filter(|line| line.starts_with("FAIL"));
            wrong.push(format!(
                "{fault:?}: missed {:?}, also failed {:?}\n  {}",
                expected.difference(&seen.failed).collect::<Vec<_>>(),
                seen.failed.difference(&expected).collect::<Vec<_>>(),
                lines.collect::<Vec<_>>().join("\n  "),
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
