//! DETECT and MERGE: how contradictions are found and how they end.

use field::{
    Administration, Code, Config, Detection, Embedding, Envelope, Level, Limits, Operation,
    administer, find_contradictions,
};
use serde_json::{Value, json};

use crate::common::{Lab, ids, key, related, unit};

const DETECT: Operation = Operation::Detect;

/// A committed unit of a task.
fn of_task(content: &str, task: &str) -> Value {
    unit(
        "finding",
        content,
        json!({"intent": {"purpose": "p", "task_id": task}}),
    )
}

#[test]
fn ak_det_01_06_conflicts_are_listed_and_filtered() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b", "c"]);
    let (_, _, one) = lab.conflict(("a", 0.5), ("b", 0.4));
    let (_, _, two) = lab.conflict(("b", 0.5), ("c", 0.4));
    lab.merge("a", &two, "last_write_wins", json!({})).unwrap();
    let mut list = |filter: Value| -> Vec<String> {
        let answer = lab.ok(DETECT, "a", json!({"mode": "list", "filter": filter}));
        assert_eq!(
            answer["scan_coverage"],
            json!({"units_scanned": 0, "new_conflicts_found": 0})
        );
        answer["conflicts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|conflict| conflict["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let both = vec![one.clone(), two.clone()];
    assert_eq!(list(json!(null)), both);
    assert_eq!(list(json!({"status": ["resolved"]})), [two.as_str()]);
    assert_eq!(
        list(json!({"status": ["resolved", "detected"]})),
        both,
        "or inside a member"
    );
    assert_eq!(
        list(json!({"involving_agents": ["a", "x"]})),
        [one.as_str()]
    );
    assert_eq!(
        list(json!({"involving_agents": ["c"], "status": ["detected"]})),
        Vec::<String>::new(),
        "and between members"
    );
    assert_eq!(list(json!({"types": ["strategic"]})), Vec::<String>::new());
    assert_eq!(list(json!({"types": ["factual"], "status": []})), both);
    assert_eq!(
        lab.code(
            DETECT,
            "a",
            json!({"mode": "list", "filter": {"status": ["open"]}})
        ),
        Code::InvalidRequest
    );
}

#[test]
fn ak_det_02_check_and_scan_are_not_offered_at_level_1() {
    let mut lab = Lab::with_agents(Level::Core, &["a"]);
    lab.ok(DETECT, "a", json!({"mode": "list"}));
    for mode in ["check", "scan"] {
        let refusal = lab
            .send(DETECT, "a", json!({"mode": mode, "target_id": "x"}))
            .unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidRequest);
        assert!(refusal.message().contains(mode));
    }
    assert_eq!(
        lab.code(DETECT, "a", json!({"mode": "guess"})),
        Code::InvalidRequest
    );
}

#[test]
fn ak_det_04_check_names_a_unit_that_exists() {
    let mut lab = Lab::with_agents(Level::Standard, &["a"]);
    assert_eq!(
        lab.code(DETECT, "a", json!({"mode": "check"})),
        Code::InvalidRequest
    );
    assert_eq!(
        lab.code(DETECT, "a", json!({"mode": "check", "target_id": "none"})),
        Code::UnitNotFound
    );
}

/// Two findings that differ in a number, recorded without automatic detection.
fn disagreeing(lab: &mut Lab) -> (String, String) {
    let one = lab.ok(
        Operation::Record,
        "a",
        of_task(
            "The European market grows by 23 percent every year until 2030",
            "t",
        ),
    );
    let two = lab.ok(
        Operation::Record,
        "b",
        of_task(
            "The European market grows by 14 percent every year until 2030",
            "t",
        ),
    );
    let id = |answer: &Value| answer["memory_unit_id"].as_str().unwrap().to_owned();
    (id(&one), id(&two))
}

fn quiet(level: Level) -> Lab {
    let mut config = Config::at(level);
    config.automatic_detection = false;
    let mut lab = Lab::with(config);
    for agent in ["a", "b", "c"] {
        lab.join(agent, 6);
    }
    lab
}

#[test]
fn ak_det_03_05_scan_and_check_find_contradictions_once() {
    for payload in [
        json!({"mode": "scan"}),
        json!({"mode": "check", "target_id": "first"}),
    ] {
        let mut lab = quiet(Level::Standard);
        let (one, two) = disagreeing(&mut lab);
        lab.ok(
            Operation::Record,
            "c",
            of_task("Nobody likes rain on a Sunday", "t"),
        );
        let mut payload = payload;
        if payload["target_id"] == "first" {
            payload["target_id"] = json!(one);
        }
        let answer = lab.ok(DETECT, "c", payload.clone());
        assert_eq!(answer["scan_coverage"]["new_conflicts_found"], 1);
        let conflict = &answer["conflicts"][0];
        assert_eq!(
            (&conflict["unit_a"], &conflict["unit_b"]),
            (&json!(one), &json!(two))
        );
        assert_eq!(conflict["detected_by"], "semantic");
        assert_eq!(
            (lab.status(&one), lab.status(&two)),
            ("contested", "contested")
        );
        let tail: Vec<&str> = lab
            .log
            .iter()
            .rev()
            .take(2)
            .map(|(entry, _)| entry.event.event_type())
            .collect();
        assert_eq!(tail, ["CONFLICT_CREATED", "DETECT"]);
        let again = lab.ok(DETECT, "c", payload.clone());
        assert_eq!(
            again["scan_coverage"]["new_conflicts_found"], 0,
            "a known pair is not created twice"
        );
        assert_eq!(again["conflicts"][0]["id"], conflict["id"]);
        // Resolved or not: a pair that had a conflict never gets another by itself.
        let id = conflict["id"].as_str().unwrap().to_owned();
        lab.merge("c", &id, "authority", json!({"winner_id": one}))
            .unwrap();
        assert_eq!(
            lab.ok(DETECT, "c", payload)["scan_coverage"]["new_conflicts_found"],
            0
        );
        // The DETECT that found the conflict is one of its events.
        let replay = lab.ok(
            Operation::Replay,
            "c",
            json!({"target_type": "conflict", "target_id": id, "depth": "detailed"}),
        );
        let types: Vec<&str> = replay["timeline"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["event_type"].as_str().unwrap())
            .collect();
        assert_eq!(
            types,
            ["RECORD", "RECORD", "DETECT", "CONFLICT_CREATED", "MERGE"]
        );
        assert!(
            replay["timeline"][3]["description"]
                .as_str()
                .unwrap()
                .starts_with("Semantic conflict detected between ")
        );
    }
}

#[test]
fn ak_rec_11_recording_finds_what_it_contradicts() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b", "c"]);
    let (one, two) = disagreeing(&mut lab);
    assert_eq!(
        (lab.status(&one), lab.status(&two)),
        ("contested", "contested")
    );
    let listed = lab.ok(DETECT, "a", json!({"mode": "list"}));
    assert_eq!(listed["conflicts"][0]["detected_by"], "semantic");
    let denied = lab.ok(
        Operation::Record,
        "c",
        of_task(
            "The European market does not grow by 23 percent every year until 2030",
            "t",
        ),
    );
    assert_eq!(
        denied["conflicts_detected"].as_array().unwrap().len(),
        2,
        "a negation against one, another number against the other"
    );
}

#[test]
fn ak_rec_11_pairs_that_do_not_qualify_are_left_alone() {
    let first = "The European market grows by 23 percent every year until 2030";
    let second = "The European market grows by 14 percent every year until 2030";
    let cases: [(&str, &str, Value); 7] = [
        ("same author", "a", of_task(second, "t")),
        ("another task", "b", of_task(second, "u")),
        ("no task", "b", unit("finding", second, json!({}))),
        (
            "another type",
            "b",
            unit(
                "observation",
                second,
                json!({"intent": {"purpose": "p", "task_id": "t"}}),
            ),
        ),
        (
            "draft",
            "b",
            unit(
                "finding",
                second,
                json!({"mode": "draft", "intent": {"purpose": "p", "task_id": "t"}}),
            ),
        ),
        ("the same words", "b", of_task(first, "t")),
        (
            "other words",
            "b",
            of_task("Rain fell on 14 days of May", "t"),
        ),
    ];
    for (why, agent, payload) in cases {
        let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
        lab.ok(Operation::Record, "a", of_task(first, "t"));
        let answer = lab.ok(Operation::Record, agent, payload);
        assert_eq!(answer["conflicts_detected"], json!([]), "{why}");
    }
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let answer = lab.ok(Operation::Record, "a", of_task(first, "t"));
    let mut payload = of_task(second, "t");
    payload["relations"] = related(&[("supersedes", answer["memory_unit_id"].as_str().unwrap())]);
    assert_eq!(
        lab.ok(Operation::Record, "b", payload)["conflicts_detected"],
        json!([]),
        "a relation between them"
    );
}

#[test]
fn findings_made_before_the_decision_give_the_same_conflicts() {
    let second = "The European market grows by 14 percent every year until 2030";
    let mut inline = Lab::with_agents(Level::Standard, &["a", "b", "c"]);
    let mut ahead = Lab::with_agents(Level::Standard, &["a", "b", "c"]);
    for lab in [&mut inline, &mut ahead] {
        lab.ok(
            Operation::Record,
            "a",
            of_task(
                "The European market grows by 23 percent every year until 2030",
                "t",
            ),
        );
    }
    let value = ahead.envelope(Operation::Record, "b", of_task(second, "t"));
    let envelope = Envelope::from_json(&value, None).unwrap();
    let findings = find_contradictions(&ahead.field, &envelope, &Embedding::BuiltIn).unwrap();
    // Another contradiction arrives between the search and the decision.
    for lab in [&mut inline, &mut ahead] {
        lab.detection = Detection::Late;
        lab.ok(
            Operation::Record,
            "c",
            of_task(
                "The European market grows by 19 percent every year until 2030",
                "t",
            ),
        );
        lab.detection = Detection::Here;
    }
    ahead.detection = Detection::Found(findings);
    let one = inline.ok(Operation::Record, "b", of_task(second, "t"));
    let other = ahead.ok(Operation::Record, "b", of_task(second, "t"));
    assert_eq!(one["conflicts_detected"].as_array().unwrap().len(), 2);
    assert_eq!(other["conflicts_detected"], one["conflicts_detected"]);
}

#[test]
fn detection_has_a_limit() {
    let mut config = Config::at(Level::Standard);
    config.limits = Limits {
        detect_pairs_max: 2,
        ..config.limits
    };
    let mut lab = Lab::with(config);
    for agent in ["a", "b"] {
        lab.join(agent, 4);
    }
    for number in 0..3 {
        lab.ok(
            Operation::Record,
            "a",
            of_task(&format!("unit {number}"), "t"),
        );
    }
    let answer = lab.ok(Operation::Record, "b", of_task("unit", "t"));
    assert_eq!(
        answer["conflict_detection"], "deferred",
        "more units than may be compared"
    );
    let scan = lab.ok(DETECT, "b", json!({"mode": "scan"}));
    assert_eq!(
        scan["scan_coverage"]["units_scanned"], 2,
        "it says how far it came"
    );
}

#[test]
fn ak_det_07_mrg_13_authority_of_detect_and_merge() {
    let mut lab = Lab::with_agents(Level::Full, &["a", "b"]);
    lab.join("observer", 2);
    lab.join("standard", 4);
    lab.join("human", 10);
    assert_eq!(
        lab.code(DETECT, "observer", json!({"mode": "list"})),
        Code::Forbidden
    );
    lab.ok(DETECT, "standard", json!({"mode": "list"}));
    let (one, _, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    let winner = json!({"winner_id": one});
    assert_eq!(
        lab.merge("standard", &conflict, "authority", winner.clone())
            .unwrap_err()
            .code(),
        Code::Forbidden
    );
    lab.merge("a", &conflict, "human_escalation", json!({}))
        .unwrap();
    assert_eq!(
        lab.merge("a", &conflict, "authority", winner.clone())
            .unwrap_err()
            .code(),
        Code::Forbidden
    );
    assert_eq!(
        lab.merge("human", &conflict, "human_escalation", json!({}))
            .unwrap_err()
            .code(),
        Code::InvalidTransition
    );
    assert_eq!(
        lab.merge("human", &conflict, "authority", winner).unwrap()["status"],
        "resolved"
    );
}

#[test]
fn ak_mrg_01_02_03_bad_merges_change_nothing() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let (_, _, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    assert_eq!(
        lab.merge("a", "none", "last_write_wins", json!({}))
            .unwrap_err()
            .code(),
        Code::ConflictNotFound
    );
    for payload in [
        json!({"conflict_id": conflict, "strategy": "last_write_wins"}),
        json!({"conflict_id": conflict, "strategy": "last_write_wins", "resolution": {}}),
        json!({"conflict_id": conflict, "strategy": "last_write_wins", "resolution": {"rationale": " "}}),
        json!({"conflict_id": conflict, "strategy": "dice", "resolution": {"rationale": "r"}}),
        json!({"conflict_id": conflict, "strategy": "authority", "resolution": {"rationale": "r"}}),
        json!({"conflict_id": conflict, "strategy": "authority", "resolution": {"rationale": "r", "winner_id": "other"}}),
        json!({"conflict_id": conflict, "strategy": "synthesis", "resolution": {"rationale": "r"}}),
        json!({"conflict_id": conflict, "strategy": "synthesis", "resolution": {"rationale": "r", "synthesis": ""}}),
        json!({"strategy": "authority", "resolution": {"rationale": "r"}}),
    ] {
        assert_eq!(
            lab.code(Operation::Merge, "a", payload.clone()),
            Code::InvalidRequest,
            "{payload}"
        );
    }
    lab.merge("a", &conflict, "last_write_wins", json!({}))
        .unwrap();
    for strategy in ["last_write_wins", "human_escalation"] {
        assert_eq!(
            lab.merge("a", &conflict, strategy, json!({}))
                .unwrap_err()
                .code(),
            Code::InvalidTransition
        );
    }
}

#[test]
fn ak_mrg_04_a_synthesis_replaces_both() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b", "c"]);
    let (one, two, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    assert_eq!(
        lab.merge(
            "c",
            &conflict,
            "synthesis",
            json!({"synthesis": "s", "winner_id": one})
        )
        .unwrap_err()
        .code(),
        Code::MergeFailed
    );
    let answer = lab
        .merge(
            "c",
            &conflict,
            "synthesis",
            json!({"synthesis": "both are true"}),
        )
        .unwrap();
    let new = answer["side_effects"]["new_unit_id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        answer["side_effects"]["superseded_units"],
        json!([one, two])
    );
    assert_eq!(answer["conflict"]["resolution"]["winner_id"], json!(null));
    assert_eq!(
        (lab.status(&one), lab.status(&two), lab.status(&new)),
        ("superseded", "superseded", "active")
    );
    let shown = lab.ok(
        Operation::Attune,
        "a",
        json!({"scope": {"role": "r", "max_units": 9}}),
    );
    assert_eq!(ids(&shown), [new]);
    let shown = &shown["record"][0]["memory_unit"];
    assert_eq!(shown["type"], "synthesis");
    assert_eq!(shown["content"], "both are true");
    assert_eq!(shown["intent"]["purpose"], "because");
    assert_eq!(shown["confidence"]["score"], 0.4);
    assert_eq!(shown["source"]["agent_id"], "c");
    let relations: Vec<(&str, &str)> = shown["relations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|relation| {
            (
                relation["type"].as_str().unwrap(),
                relation["target_id"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        relations,
        [("elaborates", one.as_str()), ("elaborates", two.as_str())]
    );
}

#[test]
fn ak_mrg_05_06_07_the_loser_is_superseded_and_the_conflict_says_how() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b", "c"]);
    let (one, two, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    let answer = lab
        .merge("c", &conflict, "confidence_weighted", json!({}))
        .unwrap();
    assert_eq!(answer["status"], "resolved");
    assert_eq!(
        (lab.status(&one), lab.status(&two)),
        ("active", "superseded")
    );
    let epoch = lab.field.clock();
    assert_eq!(
        answer["conflict"]["resolution"],
        json!({"strategy": "confidence_weighted", "winner_id": one, "rationale": "because", "resolved_by": "c", "epoch_resolved": epoch})
    );
    assert_eq!(
        answer["side_effects"],
        json!({"superseded_units": [two], "new_unit_id": null, "notified_agents": ["a", "b"]})
    );
    let listed = lab.ok(DETECT, "a", json!({"mode": "list"}));
    assert_eq!(
        listed["conflicts"][0], answer["conflict"],
        "what was answered is what is stored"
    );
}

#[test]
fn ak_mrg_08_each_level_offers_its_strategies() {
    let offered = |level: Level| -> Vec<Value> {
        let mut lab = Lab::at(level);
        lab.join("a", 4)["field_capabilities"]["conflict_strategies"]
            .as_array()
            .unwrap()
            .clone()
    };
    assert_eq!(offered(Level::Core), Vec::<Value>::new());
    for strategy in ["last_write_wins", "confidence_weighted", "human_escalation"] {
        assert!(offered(Level::Standard).contains(&json!(strategy)));
    }
    assert_eq!(offered(Level::Full).len(), 7);
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let (one, _, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    assert_eq!(
        lab.merge("a", &conflict, "vote", json!({"winner_id": one}))
            .unwrap_err()
            .code(),
        Code::UnsupportedOperation
    );
}

#[test]
fn ak_mrg_09_10_each_strategy_prefers_its_unit_and_ties_fail() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b", "c"]);
    let (_, two, conflict) = lab.conflict(("a", 0.9), ("b", 0.1));
    let answer = lab
        .merge("a", &conflict, "last_write_wins", json!({"winner_id": two}))
        .unwrap();
    assert_eq!(answer["conflict"]["resolution"]["winner_id"], json!(two));

    let (one, two, conflict) = lab.conflict(("a", 0.9), ("b", 0.1));
    for (strategy, more) in [
        ("confidence_weighted", json!({"winner_id": two})),
        ("evidence_count", json!({})),
    ] {
        assert_eq!(
            lab.merge("a", &conflict, strategy, more)
                .unwrap_err()
                .code(),
            Code::MergeFailed
        );
        assert_eq!(lab.status(&one), "contested", "nothing changes");
    }
    // Two supporters of one, one of which falls away; one supporter of two, counted once although it says so twice.
    let gone = lab.note("c", "s1", &[("supports", &one)]);
    lab.note("c", "s2", &[("supports", &one)]);
    lab.note("c", "s3", &[("supports", &two), ("supports", &two)]);
    lab.note("c", "s4", &[("supersedes", &gone)]);
    assert_eq!(
        lab.merge("a", &conflict, "evidence_count", json!({}))
            .unwrap_err()
            .code(),
        Code::MergeFailed
    );
    lab.unit(
        "c",
        "observation",
        "s5",
        json!({"mode": "draft", "relations": related(&[("supports", &two)])}),
    );
    let answer = lab
        .merge("a", &conflict, "evidence_count", json!({}))
        .unwrap();
    assert_eq!(answer["conflict"]["resolution"]["winner_id"], json!(two));

    let (_, _, tie) = lab.conflict(("a", 0.5), ("b", 0.5));
    assert_eq!(
        lab.merge("a", &tie, "confidence_weighted", json!({}))
            .unwrap_err()
            .code(),
        Code::MergeFailed
    );
    let draft = lab.unit(
        "a",
        "finding",
        "d",
        json!({"mode": "draft", "confidence": null}),
    );
    let answer = lab.ok(
        Operation::Record,
        "b",
        unit(
            "finding",
            "e",
            json!({"relations": related(&[("contradicts", &draft)])}),
        ),
    );
    let conflict = answer["conflicts_detected"][0].as_str().unwrap().to_owned();
    assert_eq!(
        lab.merge("a", &conflict, "confidence_weighted", json!({}))
            .unwrap_err()
            .code(),
        Code::MergeFailed,
        "a missing score"
    );
}

#[test]
fn ak_mrg_11_an_escalated_conflict_waits_for_the_operator() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let (one, two, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    lab.caller = Some(key("writer", 6));
    let answer = lab
        .merge("a", &conflict, "human_escalation", json!({}))
        .unwrap();
    assert_eq!(answer["status"], "escalated");
    assert_eq!(answer["conflict"]["status"], "escalated");
    assert!(answer["conflict"].get("resolution").is_none());
    assert_eq!(
        (lab.status(&one), lab.status(&two)),
        ("contested", "contested")
    );
    assert_eq!(
        lab.merge("a", &conflict, "last_write_wins", json!({}))
            .unwrap_err()
            .code(),
        Code::InvalidTransition
    );
    lab.caller = Some(key("admin", 10));
    assert_eq!(
        lab.merge("a", &conflict, "human_escalation", json!({}))
            .unwrap_err()
            .code(),
        Code::InvalidTransition
    );
    assert_eq!(
        lab.merge("a", &conflict, "last_write_wins", json!({}))
            .unwrap()["status"],
        "resolved"
    );
}

#[test]
fn ak_mrg_12_votes_need_more_than_half_of_those_who_may_vote() {
    let mut lab = Lab::with_agents(Level::Full, &["a", "b", "c", "d"]);
    lab.join("observer", 2);
    lab.join("standard", 4);
    let (one, two, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    let vote = |lab: &mut Lab, agent: &str, unit: &str| {
        lab.merge(agent, &conflict, "vote", json!({"winner_id": unit}))
    };
    assert_eq!(
        vote(&mut lab, "observer", &one).unwrap_err().code(),
        Code::Forbidden
    );
    assert_eq!(
        vote(&mut lab, "a", "other").unwrap_err().code(),
        Code::InvalidRequest
    );
    let answer = vote(&mut lab, "a", &one).unwrap();
    assert_eq!(
        (&answer["status"], &answer["conflict"]["status"]),
        (&json!("pending_vote"), &json!("resolving"))
    );
    assert_eq!(
        vote(&mut lab, "a", &one).unwrap()["status"],
        "pending_vote",
        "one agent has one vote"
    );
    assert_eq!(vote(&mut lab, "b", &two).unwrap()["status"], "pending_vote");
    assert_eq!(
        vote(&mut lab, "b", &one).unwrap()["status"],
        "pending_vote",
        "the last vote counts: two of five"
    );
    lab.ok(Operation::Deregister, "b", json!({"agent_id": "b"}));
    assert_eq!(
        vote(&mut lab, "c", &two).unwrap()["status"],
        "pending_vote",
        "the vote of who left does not count"
    );
    assert_eq!(
        vote(&mut lab, "c", &one).unwrap()["status"],
        "pending_vote",
        "two of four"
    );
    let answer = vote(&mut lab, "standard", &one).unwrap();
    assert_eq!(answer["status"], "resolved");
    assert_eq!(
        (lab.status(&one), lab.status(&two)),
        ("active", "superseded")
    );
    let replay = lab.ok(
        Operation::Replay,
        "a",
        json!({"target_type": "conflict", "target_id": conflict, "depth": "detailed"}),
    );
    let last = replay["timeline"].as_array().unwrap().last().unwrap();
    assert_eq!(
        last["description"],
        json!(format!("Resolved via vote: {one} prevails"))
    );
    assert!(replay["timeline"][3]["memory_unit_id"].is_null());
    assert_eq!(
        replay["timeline"][3]["description"],
        json!(format!("Vote for {one}"))
    );
}

#[test]
fn a_vote_that_takes_too_long_is_escalated() {
    let mut config = Config::at(Level::Full);
    config.vote_timeout_us = Some(60_000_000);
    let mut lab = Lab::with(config);
    for agent in ["a", "b", "c"] {
        lab.join(agent, 6);
    }
    let (one, _, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    lab.merge("a", &conflict, "vote", json!({"winner_id": one}))
        .unwrap();
    let voted_by = lab.fresh().now.as_micros();
    let votes: Vec<(&str, domain::Timestamp)> = lab.field.votes().collect();
    let [(voted, end)] = votes[..] else {
        panic!("{votes:?}");
    };
    assert_eq!(voted, conflict);
    assert!(end.as_micros() > voted_by && end.as_micros() <= voted_by + 60_000_000);
    let fresh = lab.fresh();
    let act = Administration::Escalate {
        conflict_id: conflict.clone(),
        reason: "the vote took too long".into(),
    };
    let decision = administer(&lab.field, &act, &fresh).unwrap();
    lab.field.commit(&decision).unwrap();
    assert_eq!(lab.field.votes().count(), 0);
    assert_eq!(
        administer(&lab.field, &act, &fresh).unwrap_err().code(),
        Code::InvalidTransition
    );
    let replay = lab.ok(
        Operation::Replay,
        "a",
        json!({"target_type": "conflict", "target_id": conflict, "depth": "detailed"}),
    );
    let last = replay["timeline"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["event_type"], &last["description"]),
        (
            &json!("CONFLICT_ESCALATED"),
            &json!("Escalated: the vote took too long")
        )
    );
}

#[test]
fn a_unit_returns_to_what_it_was_when_its_last_conflict_ends() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b", "c"]);
    let draft = lab.unit("a", "finding", "d", json!({"mode": "draft"}));
    let mut conflicts = Vec::new();
    for agent in ["b", "c"] {
        let payload = unit(
            "finding",
            "e",
            json!({"relations": related(&[("contradicts", &draft)])}),
        );
        conflicts.push(
            lab.ok(Operation::Record, agent, payload)["conflicts_detected"][0]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    lab.merge("a", &conflicts[0], "authority", json!({"winner_id": draft}))
        .unwrap();
    assert_eq!(lab.status(&draft), "contested", "one is still open");
    lab.merge("a", &conflicts[1], "authority", json!({"winner_id": draft}))
        .unwrap();
    assert_eq!(
        lab.status(&draft),
        "draft",
        "winning does not commit a draft"
    );
}

#[test]
fn a_unit_replaced_while_its_conflict_is_open_stays_replaced() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let (one, two, conflict) = lab.conflict(("a", 0.9), ("b", 0.4));
    lab.note("a", "better", &[("supersedes", &one)]);
    let answer = lab
        .merge("a", &conflict, "confidence_weighted", json!({}))
        .unwrap();
    assert_eq!(answer["conflict"]["resolution"]["winner_id"], json!(one));
    assert_eq!(
        (lab.status(&one), lab.status(&two)),
        ("superseded", "superseded")
    );
}

#[test]
fn the_table_of_conflict_states() {
    // Status of the conflict, strategy, key: what comes of it.
    let mut rows = Vec::new();
    for before in ["detected", "resolving", "escalated", "resolved"] {
        for strategy in ["last_write_wins", "human_escalation", "vote"] {
            for authority in [6, 10] {
                let mut lab = Lab::with_agents(Level::Full, &["a", "b", "c"]);
                lab.join("actor", authority);
                let (one, _, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
                match before {
                    "resolving" => drop(
                        lab.merge("a", &conflict, "vote", json!({"winner_id": one}))
                            .unwrap(),
                    ),
                    "escalated" => drop(
                        lab.merge("a", &conflict, "human_escalation", json!({}))
                            .unwrap(),
                    ),
                    "resolved" => drop(
                        lab.merge("a", &conflict, "last_write_wins", json!({}))
                            .unwrap(),
                    ),
                    _ => {}
                }
                let more = if strategy == "vote" {
                    json!({"winner_id": one})
                } else {
                    json!({})
                };
                let result = match lab.merge("actor", &conflict, strategy, more) {
                    Ok(answer) => answer["conflict"]["status"].as_str().unwrap().to_owned(),
                    Err(refusal) => refusal.code().as_str().to_owned(),
                };
                rows.push(format!("{before} {strategy} {authority}: {result}"));
            }
        }
    }
    assert_eq!(
        rows.join("\n"),
        "\
detected last_write_wins 6: resolved
detected last_write_wins 10: resolved
detected human_escalation 6: escalated
detected human_escalation 10: escalated
detected vote 6: resolving
detected vote 10: resolving
resolving last_write_wins 6: resolved
resolving last_write_wins 10: resolved
resolving human_escalation 6: escalated
resolving human_escalation 10: escalated
resolving vote 6: resolving
resolving vote 10: resolving
escalated last_write_wins 6: FORBIDDEN
escalated last_write_wins 10: resolved
escalated human_escalation 6: INVALID_TRANSITION
escalated human_escalation 10: INVALID_TRANSITION
escalated vote 6: FORBIDDEN
escalated vote 10: INVALID_TRANSITION
resolved last_write_wins 6: INVALID_TRANSITION
resolved last_write_wins 10: INVALID_TRANSITION
resolved human_escalation 6: INVALID_TRANSITION
resolved human_escalation 10: INVALID_TRANSITION
resolved vote 6: INVALID_TRANSITION
resolved vote 10: INVALID_TRANSITION"
    );
}
