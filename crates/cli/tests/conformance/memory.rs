//! The runner of the memory protocol against the real program, at each level that it can announce.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use conformance::breaking::{BreakingProxy, Lie};
use serde_json::{Value, json};

use conformance::{AkashikSuite, Report, Verdict, akashik_ids};

use crate::subject::Subject;

/// Ids that no run can see, each with a reason in its line.
const UNSEEN: [&str; 6] = [
    "AK-CLK-07",
    "AK-CLK-10",
    "AK-REC-13",
    "AK-REC-14",
    "AK-REC-16",
    // Keys are always needed here.
    "AK-SEC-01",
];

/// Ids that take a purge, which level 3 brings.
const BY_PURGE: [&str; 3] = ["AK-LOG-05", "AK-LOG-06", "AK-REPLAY-15"];

async fn judged(level: u8) -> Report {
    let settings = format!("[log]\nlevel = \"warn\"\n\n[fields]\nlevel = {level}\n");
    let subject = Subject::start_with(&settings).await;
    subject.memory(&subject.url).run(|_| ()).await.unwrap()
}

/// Every id has a line; what binds at the level was seen, apart from what no wire shows.
fn check(level: u8, report: &Report, also_unseen: &[&str]) {
    assert_eq!(report.failed_ids(), Vec::<&str>::new(), "{report}");
    assert_eq!(report.outcomes.len(), 158);
    let unseen: BTreeSet<&str> = report
        .outcomes
        .iter()
        .filter(|outcome| matches!(outcome.verdict, Verdict::NotCovered { .. }))
        .map(|outcome| outcome.id)
        .collect();
    for (id, from) in akashik_ids() {
        let transport = id.starts_with("AK-HTTP") || id.starts_with("AK-MCP");
        let excused = UNSEEN.contains(&id) || also_unseen.contains(&id);
        let binds = from <= level || transport;
        assert!(
            binds || unseen.contains(id),
            "{id} at level {level}: {report}"
        );
        assert!(
            !binds || excused || !unseen.contains(id),
            "{id} at level {level}: {report}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_server_meets_every_requirement_that_can_be_seen() {
    check(3, &judged(3).await, &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_level_2_meets_its_own() {
    check(2, &judged(2).await, &BY_PURGE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_level_1_or_0_meets_theirs() {
    // The log is read by REPLAY, which level 2 brings.
    let by_replay = [
        "AK-CLK-04",
        "AK-LOG-01",
        "AK-LOG-02",
        "AK-LOG-07",
        "AK-LOG-08",
        "AK-REC-09",
        "AK-LOG-05",
        // Nothing is pushed.
        "AK-HTTP-07",
    ];
    check(1, &judged(1).await, &by_replay);
    check(0, &judged(0).await, &["AK-MCP-02", "AK-HTTP-07"]);
}

/// Ids that no lie about JSON shows: they take a restart or a stream of events, or are long or only ever accepted.
const UNTOLD: [&str; 16] = [
    "AK-CLK-06",
    "AK-LOG-03",
    "AK-LOG-04",
    "AK-REPLAY-01",
    "AK-REPLAY-06",
    "AK-REG-08",
    "AK-REC-12",
    "AK-SUB-02",
    "AK-SUB-04",
    "AK-SUB-05",
    "AK-MRG-07",
    "AK-HND-01",
    "AK-HTTP-07",
    "AK-HTTP-04",
    "AK-DET-02",
    "AK-REC-11",
];

fn at(path: &str, operations: &[&str]) -> bool {
    operations.iter().any(|operation| path.ends_with(operation))
}

fn set(body: &mut Value, members: &[&str], value: &Value) {
    for member in members {
        if body.get(member).is_some() {
            body[*member] = value.clone();
        }
    }
}

static ANSWERS: AtomicU64 = AtomicU64::new(0);

const LIES: [(&str, Lie); 14] = [
    ("whoever is refused is accepted", |_, status, body| {
        if *status >= 400 {
            (*status, *body) = (200, json!({"status": "ok"}));
        }
    }),
    (
        "nothing is refused for its real reason",
        |_, status, body| {
            if *status >= 400 {
                *body = json!({"code": "INTERNAL_ERROR", "message": "no", "type": "gossip"});
            }
        },
    ),
    ("the worst comes first", |path, _, body| {
        if let Some(found) = body["record"]
            .as_array_mut()
            .filter(|_| at(path, &["attune"]))
        {
            found.reverse();
        }
    }),
    ("there is nothing", |path, _, body| {
        if at(path, &["attune", "detect", "agents", "conflicts", "replay"]) {
            let lists = [
                "record",
                "conflicts",
                "agents",
                "timeline",
                "agents_involved",
            ];
            set(body, &lists, &json!([]));
        }
    }),
    ("time passes without reason", |path, _, body| {
        let epoch = body["epoch"].as_u64().unwrap_or_default();
        if at(path, &["attune", "record", "field/status"]) {
            set(body, &["epoch"], &json!(epoch * 2 + 1));
        }
    }),
    ("whoever joins learns nothing", |path, _, body| {
        if at(path, &["register"]) {
            set(body, &["agent", "field_capabilities"], &json!({}));
        }
    }),
    ("nothing changed hands", |path, _, body| {
        if at(
            path,
            &["merge", "compact", "handoff", "deregister", "subscribe"],
        ) {
            let members = [
                "status",
                "side_effects",
                "conflict",
                "cleanup",
                "units_affected",
                "synthesis_units_created",
                "subscription",
                "subscriptions",
            ];
            set(body, &members, &json!({}));
        }
    }),
    (
        "what happened is told backwards, and counted wrong",
        |path, _, body| {
            if let Some(told) = body["timeline"]
                .as_array_mut()
                .filter(|_| at(path, &["replay"]))
            {
                told.reverse();
            }
            set(body, &["total_events"], &json!(77));
        },
    ),
    ("a unit is something else", |path, _, body| {
        for found in body["record"]
            .as_array_mut()
            .filter(|_| at(path, &["attune"]))
            .into_iter()
            .flatten()
        {
            found["memory_unit"] = json!({"id": "x", "content": "y", "epoch": -1});
            found["relevance_score"] = json!(7);
        }
        set(body, &["context_budget", "scan_coverage"], &json!({}));
    }),
    ("a conflict is something else", |path, _, body| {
        for found in body["conflicts"]
            .as_array_mut()
            .filter(|_| at(path, &["detect"]))
            .into_iter()
            .flatten()
        {
            set(found, &["unit_a", "detected_by", "status"], &json!("x"));
        }
    }),
    ("a unit without a trace", |path, _, body| {
        if at(path, &["record"]) {
            set(
                body,
                &["memory_unit_id", "warnings", "status", "rejection_reason"],
                &Value::Null,
            );
        }
    }),
    ("each time something else", |path, _, body| {
        let number = ANSWERS.fetch_add(1, Ordering::Relaxed);
        if at(path, &["attune", "replay", "record"]) {
            set(body, &["context_budget", "summary"], &json!(number));
            set(body, &["epoch"], &json!("late"));
        }
    }),
    ("more than was asked for", |path, _, body| {
        let found = body["record"]
            .as_array_mut()
            .filter(|found| found.len() == 1);
        if let Some(found) = found.filter(|_| at(path, &["attune"])) {
            let mut more = found[0].clone();
            more["relevance_score"] = json!(0);
            found.push(more);
        }
    }),
    ("a tool says something else", |path, _, body| {
        if at(path, &["mcp"]) && body["result"]["structuredContent"].is_object() {
            body["result"]["structuredContent"] = json!({"said": "something else"});
        }
        if let Some(tools) = body["result"]["tools"].as_array_mut() {
            tools.push(json!({"name": "akashik_subscribe"}));
        }
    }),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_id_that_is_ok_is_refuted_by_some_lie() {
    let subject = Subject::start_with("[log]\nlevel = \"warn\"\n").await;
    let mut suite = subject.memory(&subject.url);
    suite.restart = None;
    suite.skip = UNTOLD.map(str::to_owned).to_vec();
    suite.timeout = std::time::Duration::from_secs(5);
    let sound = suite.run(|_| ()).await.unwrap();
    let mut unrefuted: BTreeSet<&str> = sound.passed_ids().into_iter().collect();
    let told = LIES.map(|(name, lie)| {
        let (suite, url) = (suite.clone(), subject.url.clone());
        tokio::spawn(async move {
            let proxy = BreakingProxy::lying(&url, lie).await.unwrap();
            let url = proxy.url().to_owned();
            let report = AkashikSuite { url, ..suite }.run(|_| ()).await.unwrap();
            (name, report.failed_ids())
        })
    });
    for told in told {
        let (name, failed) = told.await.unwrap();
        assert!(!failed.is_empty(), "`{name}` was believed");
        for id in failed {
            unrefuted.remove(id);
        }
    }
    assert_eq!(unrefuted, BTreeSet::new(), "no lie was noticed");
}
