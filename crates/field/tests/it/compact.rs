//! COMPACT: archive, summarise, purge.

use field::{Code, Level, Operation};
use serde_json::{Value, json};

use crate::common::{Lab, ids, key};

const COMPACT: Operation = Operation::Compact;

fn archived_too(lab: &mut Lab, agent: &str) -> Vec<String> {
    let scope = json!({"scope": {"role": "r", "max_units": 99, "include_archived": true}});
    let answer = lab.ok(Operation::Attune, agent, scope);
    ids(&answer)
}

#[test]
fn ak_cmp_02_att_12_archived_units_are_shown_on_request_only() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let unit = lab.note("a", "x", &[]);
    let answer = lab.ok(COMPACT, "b", json!({"strategy": "archive", "filter": {}}));
    assert_eq!(
        answer,
        json!({"status": "ok", "units_affected": 1, "synthesis_units_created": 0, "storage_reclaimed_bytes": null})
    );
    assert_eq!(lab.seen_by("b"), Vec::<String>::new());
    assert_eq!(archived_too(&mut lab, "b"), [unit.as_str()]);
    assert_eq!(lab.status(&unit), "active", "archived is not a status");
    let again = lab.ok(COMPACT, "b", json!({"strategy": "archive"}));
    assert_eq!(
        again["units_affected"], 0,
        "archived units are not selected again"
    );
}

#[test]
fn ak_cmp_03_08_summaries_replace_groups_by_task_and_session() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let record = |lab: &mut Lab, content: &str, task: Value, score: f64| {
        lab.unit("a", "finding", content, json!({"intent": {"purpose": "p", "task_id": task}, "confidence": {"score": score, "reasoning": "r"}}))
    };
    let one = record(&mut lab, "First fact. More words.", json!("t"), 0.9);
    let alone = record(&mut lab, "Lonely fact.", json!(null), 0.8);
    lab.session = Some("s".into());
    let other = record(&mut lab, "Session fact.", json!("t"), 0.7);
    lab.session = None;
    let two = record(&mut lab, "Second fact.", json!("t"), 0.3);
    let answer = lab.ok(
        COMPACT,
        "b",
        json!({"strategy": "summarize", "filter": {"types": ["finding"]}}),
    );
    assert_eq!(
        (
            &answer["units_affected"],
            &answer["synthesis_units_created"]
        ),
        (&json!(4), &json!(3))
    );
    let shown = lab.ok(
        Operation::Attune,
        "a",
        json!({"scope": {"role": "r", "max_units": 9, "recency_weight": 0}}),
    );
    let mut found: Vec<(Value, Value, Vec<String>, f64)> = shown["record"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| {
            let unit = &record["memory_unit"];
            assert_eq!(
                (&unit["type"], &unit["mode"]),
                (&json!("synthesis"), &json!("committed"))
            );
            assert_eq!(unit["source"]["agent_id"], "b");
            let targets = unit["relations"]
                .as_array()
                .unwrap()
                .iter()
                .map(|relation| {
                    assert_eq!(relation["type"], "elaborates");
                    relation["target_id"].as_str().unwrap().to_owned()
                });
            (
                unit["intent"]["task_id"].clone(),
                unit["source"]["session_id"].clone(),
                targets.collect(),
                unit["confidence"]["score"].as_f64().unwrap(),
            )
        })
        .collect();
    found.sort_by(|a, b| {
        a.2.len()
            .cmp(&b.2.len())
            .then(a.0.to_string().cmp(&b.0.to_string()))
    });
    assert_eq!(
        found,
        [
            (json!("t"), json!("s"), vec![other], 0.7),
            (json!(null), json!(null), vec![alone], 0.8),
            (json!("t"), json!(null), vec![one.clone(), two], 0.3),
        ]
    );
    let contents: Vec<&str> = shown["record"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["memory_unit"]["content"].as_str().unwrap())
        .collect();
    assert!(
        contents.contains(
            &"Summary of 2 units.\nfinding by a: First fact.\nfinding by a: Second fact."
        ),
        "{contents:?}"
    );
    assert_eq!(
        archived_too(&mut lab, "b").len(),
        4,
        "the originals are archived; the summaries are b's own"
    );
    assert_eq!(lab.status(&one), "active");
}

#[test]
fn ak_cmp_01_04_log_06_a_purge_leaves_entries_and_a_tombstone() {
    let mut lab = Lab::with_agents(Level::Full, &["a"]);
    lab.join("boss", 10);
    let unit = lab.note("a", "the secret volcano", &[]);
    let entries = lab.field.log().entries().to_vec();
    let purge =
        || json!({"strategy": "purge", "filter": {"types": ["finding"]}, "reason": "asked for"});
    assert_eq!(lab.code(COMPACT, "a", purge()), Code::Forbidden);
    let answer = lab.ok(COMPACT, "boss", purge());
    assert_eq!(answer["units_affected"], 1);
    assert!(answer["storage_reclaimed_bytes"].as_u64().unwrap() > 18);
    assert_eq!(&lab.field.log().entries()[..entries.len()], &entries[..]);
    assert!(lab.field.text_of(&unit).is_none());
    assert_eq!(lab.field.tombstone(&unit).unwrap().1, Some("asked for"));
    let hint = json!({"scope": {"role": "r", "max_units": 9, "include_archived": true}, "context_hint": "volcano"});
    assert_eq!(lab.ok(Operation::Attune, "boss", hint)["record"], json!([]));
    assert_eq!(
        lab.ok(COMPACT, "boss", purge())["units_affected"],
        0,
        "purged units are never selected"
    );
    let contradiction = crate::common::unit(
        "finding",
        "x",
        json!({"relations": [{"type": "contradicts", "target_id": unit}]}),
    );
    assert_eq!(
        lab.code(Operation::Record, "a", contradiction),
        Code::UnitNotFound
    );
    assert!(lab.refolded().text_of(&unit).is_none());
}

#[test]
fn ak_cmp_05_filters_combine_and_age_is_counted_from_the_compaction() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let old = lab.note("a", "old", &[]);
    lab.session = Some("s".into());
    let in_session = lab.unit("a", "decision", "x", json!({}));
    lab.session = None;
    let last = lab.note("a", "last", &[]);
    let epoch_of_next = lab.field.clock() + 1;
    // Units older than n epochs before the compaction itself.
    let exact = epoch_of_next - (lab.field.clock() - 2);
    let filter = json!({"max_age_epochs": exact});
    assert_eq!(
        lab.ok(
            COMPACT,
            "b",
            json!({"strategy": "archive", "filter": filter})
        )["units_affected"],
        0,
        "not older: as old"
    );
    let filter = json!({"max_age_epochs": exact});
    assert_eq!(
        lab.ok(
            COMPACT,
            "b",
            json!({"strategy": "archive", "filter": filter})
        )["units_affected"],
        1
    );
    assert!(!lab.seen_by("b").contains(&old));
    let none = json!({"session_id": "s", "types": ["finding"]});
    assert_eq!(
        lab.ok(COMPACT, "b", json!({"strategy": "archive", "filter": none}))["units_affected"],
        0
    );
    let one = json!({"session_id": "s", "types": ["decision"], "status": ["active"]});
    assert_eq!(
        lab.ok(COMPACT, "b", json!({"strategy": "archive", "filter": one}))["units_affected"],
        1
    );
    assert_eq!(lab.seen_by("b"), [last]);
    assert_eq!(lab.status(&in_session), "active");
    for filter in [
        json!({"types": ["rumour"]}),
        json!({"status": "active"}),
        json!({"max_age_epochs": -1}),
    ] {
        assert_eq!(
            lab.code(
                COMPACT,
                "b",
                json!({"strategy": "archive", "filter": filter})
            ),
            Code::InvalidRequest
        );
    }
}

#[test]
fn ak_cmp_06_disputed_units_are_skipped() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let (one, two, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    assert_eq!(
        lab.ok(COMPACT, "a", json!({"strategy": "archive"}))["units_affected"],
        0
    );
    lab.merge("a", &conflict, "last_write_wins", json!({}))
        .unwrap();
    assert_eq!(
        lab.ok(COMPACT, "a", json!({"strategy": "archive"}))["units_affected"],
        2,
        "superseded ones too"
    );
    assert_eq!(
        (lab.status(&one), lab.status(&two)),
        ("superseded", "active")
    );
}

#[test]
fn ak_cmp_07_nothing_selected_is_fine_and_a_purge_names_what_it_erases() {
    let mut lab = Lab::with_agents(Level::Full, &["a"]);
    lab.join("boss", 10);
    let answer = lab.ok(COMPACT, "a", json!({"strategy": "summarize", "filter": {}}));
    assert_eq!(
        (
            &answer["units_affected"],
            &answer["synthesis_units_created"]
        ),
        (&json!(0), &json!(0))
    );
    for filter in [
        json!(null),
        json!({}),
        json!({"types": [], "status": [], "session_id": null, "max_age_epochs": null}),
    ] {
        assert_eq!(
            lab.code(
                COMPACT,
                "boss",
                json!({"strategy": "purge", "filter": filter})
            ),
            Code::InvalidRequest
        );
    }
    assert_eq!(
        lab.code(COMPACT, "a", json!({"strategy": "burn"})),
        Code::InvalidRequest
    );
}

#[test]
fn ak_cmp_09_authority_of_compaction() {
    let mut lab = Lab::with_agents(Level::Full, &["senior"]);
    lab.join("standard", 4);
    for strategy in ["archive", "summarize"] {
        assert_eq!(
            lab.code(COMPACT, "standard", json!({"strategy": strategy})),
            Code::Forbidden
        );
        lab.ok(COMPACT, "senior", json!({"strategy": strategy}));
    }
    let mut standard = Lab::with_agents(Level::Standard, &["a"]);
    let purge = || json!({"strategy": "purge", "filter": {"types": ["finding"]}});
    assert_eq!(
        standard.code(COMPACT, "a", purge()),
        Code::UnsupportedOperation
    );
    standard.caller = Some(key("writer", 6));
    assert_eq!(
        standard.code(COMPACT, "a", purge()),
        Code::UnsupportedOperation,
        "and again"
    );
}
