//! REPLAY: the published example, the vectors, and what must hold for every chain.

use std::collections::BTreeMap;

use field::{
    Administration, Code, Depth, Effect, Entry, Level, Limits, Log, Model, Operation, Reader,
    Target, TargetType, UnitStatus, UnitText, administer,
};
use serde_json::{Value, json};

use crate::common::Lab;
use crate::vectors::{entries, vectors};

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Replays a log that is all there is: no field, no documents, no texts.
pub(crate) fn replay(entries: &[Entry], request: &Value, limits: &Limits) -> Result<Value, Code> {
    let parsed = (
        TargetType::parse(request["target_type"].as_str().unwrap()),
        Depth::parse(request["depth"].as_str().unwrap()),
    );
    let (Some(kind), Some(depth)) = parsed else {
        return Err(Code::InvalidRequest);
    };
    let log = Log::build(entries.iter().cloned()).unwrap();
    let target = Target {
        kind,
        id: text(&request["target_id"]),
        depth,
    };
    let reader = Reader {
        text_of: &|_| None,
        sees: &|_| true,
    };
    log.replay(&target, &reader, limits)
        .map_err(|refusal| refusal.code())
}

#[test]
fn ak_replay_02_05_06_10_11_all_vectors_pass() {
    let vectors = vectors();
    let cases = vectors["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 61);
    for case in cases {
        let entries = entries(&vectors, case["log"].as_str().unwrap());
        let mut limits = Limits::standard();
        if let Some(max) = case["limits"]["replay_events_max"].as_u64() {
            limits.replay_events_max = usize::try_from(max).unwrap();
        }
        let id = &case["id"];
        let expect = &case["expect"];
        match replay(&entries, &case["request"], &limits) {
            Err(code) => assert_eq!(json!(code.as_str()), expect["error"], "{id}"),
            Ok(answer) => {
                assert_eq!(answer["agents_involved"], expect["agents_involved"], "{id}");
                assert_eq!(answer["total_events"], expect["total_events"], "{id}");
                let by_time: BTreeMap<String, u64> = entries
                    .iter()
                    .map(|entry| (entry.at.to_string(), entry.seq))
                    .collect();
                let seqs: Vec<u64> = answer["timeline"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|event| by_time[event["timestamp"].as_str().unwrap()])
                    .collect();
                assert_eq!(json!(seqs), expect["timeline_seqs"], "{id}");
            }
        }
    }
}

#[test]
fn ak_replay_16_the_published_example_is_reproduced_member_by_member() {
    let vectors = vectors();
    let entries = entries(&vectors, "published_example");
    let words = |content: &str| UnitText {
        salt: String::new(),
        content: content.into(),
        purpose: "p".into(),
        question: None,
        reasoning: None,
        evidence: None,
        assumptions: None,
        descriptions: Vec::new(),
    };
    let texts = BTreeMap::from([
        ("mem-002", words("23% CAGR")),
        ("mem-010", words(" 14%\n CAGR ")),
    ]);
    let log = Log::build(entries.iter().cloned()).unwrap();
    let target = Target {
        kind: TargetType::Conflict,
        id: "conflict-001".into(),
        depth: Depth::Detailed,
    };
    let reader = Reader {
        text_of: &|unit| texts.get(unit),
        sees: &|_| true,
    };
    let mut answer = log.replay(&target, &reader, &Limits::standard()).unwrap();
    let names: Vec<&String> = answer.as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        [
            "agents_involved",
            "status",
            "summary",
            "timeline",
            "total_events"
        ]
    );
    for event in answer["timeline"].as_array_mut().unwrap() {
        assert!(event.as_object_mut().unwrap().remove("timestamp").is_some());
    }
    assert_eq!(
        answer["timeline"],
        json!([
            {"epoch": 2, "event_type": "RECORD", "agent_id": "researcher-01", "description": "Recorded finding: 23% CAGR", "memory_unit_id": "mem-002", "task_id": "task-market-sizing"},
            {"epoch": 11, "event_type": "RECORD", "agent_id": "researcher-02", "description": "Recorded contradicting finding: 14% CAGR", "memory_unit_id": "mem-010", "task_id": null},
            {"epoch": 11, "event_type": "CONFLICT_CREATED", "agent_id": "system", "description": "Explicit conflict created from contradicts relation", "memory_unit_id": null, "task_id": null},
            {"epoch": 21, "event_type": "MERGE", "agent_id": "strategist-01", "description": "Resolved via confidence_weighted: mem-002 prevails", "memory_unit_id": "mem-002", "task_id": null},
        ])
    );
    assert_eq!(answer["status"], "ok");
    assert_eq!(
        answer["agents_involved"],
        json!(["researcher-01", "researcher-02", "strategist-01"])
    );
    assert_eq!(answer["total_events"], 4);
    let summary = answer["summary"].as_str().unwrap();
    for words in [
        "researcher-01 recorded finding: 23% CAGR",
        "researcher-02 recorded finding: 14% CAGR with contradicts relation",
        "Resolved by strategist-01 using confidence_weighted strategy at epoch 21.",
    ] {
        assert!(summary.contains(words), "{summary}");
    }
}

/// A field in which a question was answered, contested, decided on and replaced: the worked example.
fn worked() -> (Lab, BTreeMap<&'static str, String>) {
    let mut lab = Lab::with_agents(Level::Standard, &["ann", "bob", "sam"]);
    let mut units = BTreeMap::new();
    let q = lab.unit("sam", "question", "How large is the market?", json!({}));
    let f = lab.note("ann", "The market is large", &[("answers", &q)]);
    let e1 = lab.unit(
        "bob",
        "observation",
        "Many buyers",
        json!({"relations": [{"type": "supports", "target_id": f}]}),
    );
    let g = lab.note("bob", "The market is small", &[("contradicts", &f)]);
    let listed = lab.ok(Operation::Detect, "sam", json!({"mode": "list"}));
    let c = text(&listed["conflicts"][0]["id"]);
    lab.merge("sam", &c, "authority", json!({"winner_id": f}))
        .unwrap();
    let d = lab.unit(
        "sam",
        "decision",
        "Enter it",
        json!({"relations": [{"type": "depends_on", "target_id": f}]}),
    );
    let e2 = lab.unit(
        "bob",
        "observation",
        "More buyers",
        json!({"relations": [{"type": "supports", "target_id": f}]}),
    );
    let f2 = lab.note("ann", "The market is huge", &[("supersedes", &f)]);
    let x = lab.unit(
        "ann",
        "observation",
        "In spring",
        json!({"relations": [{"type": "elaborates", "target_id": d}]}),
    );
    for (name, id) in [
        ("Q", q),
        ("F", f),
        ("E1", e1),
        ("G", g),
        ("C", c),
        ("D", d),
        ("E2", e2),
        ("F2", f2),
        ("X", x),
    ] {
        units.insert(name, id);
    }
    (lab, units)
}

fn timeline(answer: &Value, units: &BTreeMap<&'static str, String>) -> Vec<String> {
    answer["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| match event["event_type"].as_str().unwrap() {
            "RECORD" => {
                let unit = units
                    .iter()
                    .find(|(_, id)| json!(id) == event["memory_unit_id"]);
                (*unit.unwrap().0).to_owned()
            }
            "CONFLICT_CREATED" => "created".to_owned(),
            other => other.to_owned(),
        })
        .collect()
}

#[test]
fn ak_replay_04_05_horizons_keep_out_what_came_after_a_reason_was_used() {
    let (mut lab, units) = worked();
    let mut ask = |kind: &str, name: &str, depth: &str| {
        let payload = json!({"target_type": kind, "target_id": units[name], "depth": depth});
        timeline(&lab.ok(Operation::Replay, "sam", payload), &units)
    };
    let chain = ["Q", "F", "E1", "G", "created", "MERGE"];
    assert_eq!(
        ask("conflict", "C", "detailed"),
        ["F", "G", "created", "MERGE"]
    );
    assert_eq!(ask("conflict", "C", "full_trace"), chain);
    assert_eq!(ask("memory_unit", "X", "detailed"), ["X"]);
    assert_eq!(
        ask("memory_unit", "X", "full_trace"),
        [&chain[..], &["D", "X"]].concat()
    );
    assert_eq!(
        ask("memory_unit", "F", "detailed"),
        ["F", "G", "created", "MERGE", "F2"]
    );
    assert_eq!(
        ask("memory_unit", "F", "full_trace"),
        [&chain[..], &["E2", "F2"]].concat()
    );
    assert_eq!(
        ask("memory_unit", "G", "detailed"),
        ["F", "G", "created", "MERGE"]
    );
    assert_eq!(ask("memory_unit", "G", "full_trace"), chain);
}

#[test]
fn ak_replay_01_the_log_alone_gives_the_same_timeline() {
    let (mut lab, units) = worked();
    for (kind, name) in [
        ("memory_unit", "F"),
        ("decision", "D"),
        ("conflict", "C"),
        ("memory_unit", "X"),
    ] {
        for depth in ["summary", "detailed", "full_trace"] {
            let request = json!({"target_type": kind, "target_id": units[name], "depth": depth});
            let entries: Vec<Entry> = lab.field.log().entries().to_vec();
            let mut bare = replay(&entries, &request, &Limits::standard()).unwrap();
            let mut answer = lab.ok(Operation::Replay, "sam", request);
            // Without texts only the words differ.
            for value in [&mut bare, &mut answer] {
                value["summary"] = json!(null);
                for event in value["timeline"].as_array_mut().unwrap() {
                    event["description"] = json!(null);
                }
            }
            assert_eq!(bare, answer);
        }
    }
}

#[test]
fn ak_replay_03_10_12_13_depths_agree_on_counts_and_a_replay_does_not_count_itself() {
    let (mut lab, units) = worked();
    let mut answers = Vec::new();
    for depth in ["summary", "detailed", "full_trace", "full_trace"] {
        let payload =
            json!({"target_type": "memory_unit", "target_id": units["F"], "depth": depth});
        answers.push(lab.ok(Operation::Replay, "bob", payload));
    }
    assert_eq!(answers[0]["timeline"], json!([]));
    assert!(!answers[0]["summary"].as_str().unwrap().is_empty());
    for name in ["total_events", "agents_involved", "summary"] {
        for answer in &answers {
            assert_eq!(answer[name], answers[0][name]);
        }
    }
    assert_eq!(canon::jcs(&answers[2]), canon::jcs(&answers[3]));
}

#[test]
fn ak_replay_12_a_session_replay_reads_up_to_its_own_request() {
    let mut lab = Lab::at(Level::Standard);
    lab.session = Some("s".into());
    lab.join("a", 4);
    let payload = || json!({"target_type": "session", "target_id": "s", "depth": "full_trace"});
    assert_eq!(lab.ok(Operation::Replay, "a", payload())["total_events"], 1);
    assert_eq!(
        lab.ok(Operation::Replay, "a", payload())["total_events"],
        2,
        "the first replay is history now"
    );
}

#[test]
fn ak_replay_06_the_whole_answer_or_none() {
    let (mut lab, units) = worked();
    let mut config = lab.field.config().clone();
    let ask = |lab: &mut Lab, depth: &str| {
        let payload =
            json!({"target_type": "memory_unit", "target_id": units["F"], "depth": depth});
        lab.send(Operation::Replay, "bob", payload)
    };
    let size = ask(&mut lab, "full_trace").unwrap()["timeline"]
        .as_array()
        .unwrap()
        .len();
    for (max, fits) in [(size, true), (size - 1, false)] {
        config.limits.replay_events_max = max;
        let mut small = lab.copied(config.clone());
        let answer = ask(&mut small, "full_trace");
        assert_eq!(answer.is_ok(), fits);
        if let Err(refusal) = answer {
            assert_eq!(refusal.code(), Code::ReplayTooLarge);
            assert_eq!(
                refusal.to_json()["suggested_action"],
                "use detailed or summary"
            );
        }
        assert!(ask(&mut small, "summary").is_ok());
    }
    config.limits = Limits {
        replay_bytes_max: 900,
        ..Limits::standard()
    };
    let mut small = lab.copied(config.clone());
    let refusal = ask(&mut small, "detailed").unwrap_err();
    assert_eq!(refusal.to_json()["suggested_action"], "use summary");
    assert!(
        ask(&mut small, "summary").is_ok(),
        "a summary has no such limit"
    );
    config.limits = Limits {
        replay_visit_max: 3,
        ..Limits::standard()
    };
    let mut small = lab.copied(config);
    let refusal = ask(&mut small, "summary").unwrap_err();
    assert_eq!(refusal.code(), Code::ReplayTooLarge);
    assert_eq!(refusal.to_json()["suggested_action"], json!(null));
}

#[test]
fn ak_replay_07_08_09_bad_requests() {
    let (mut lab, units) = worked();
    let mut code = |payload: Value| lab.code(Operation::Replay, "sam", payload);
    for (kind, name) in [
        ("decision", "F"),
        ("conflict", "F"),
        ("memory_unit", "C"),
        ("task", "F"),
        ("session", "F"),
    ] {
        assert_eq!(
            code(json!({"target_type": kind, "target_id": units[name], "depth": "summary"})),
            Code::UnitNotFound
        );
    }
    for payload in [
        json!({"target_type": "agent", "target_id": "a", "depth": "summary"}),
        json!({"target_type": "task", "target_id": "a", "depth": "deep"}),
        json!({"target_type": "task", "target_id": "", "depth": "summary"}),
        json!({"target_type": "task", "depth": "summary"}),
        json!({"target_id": "a", "depth": "summary"}),
        json!({"target_type": "task", "target_id": "a"}),
    ] {
        assert_eq!(code(payload), Code::InvalidRequest);
    }
    assert_eq!(
        lab.code(Operation::Replay, "nobody", json!({})),
        Code::AgentNotRegistered
    );
    for level in [Level::Starter, Level::Core] {
        assert_eq!(
            Lab::with_agents(level, &["a"]).code(Operation::Replay, "a", json!({})),
            Code::UnsupportedOperation
        );
    }
}

#[test]
fn ak_replay_15_purged_units_stay_in_the_timeline() {
    let mut lab = Lab::with_agents(Level::Full, &["a"]);
    lab.join("boss", 10);
    let reason = lab.note("a", "the reason", &[]);
    let unit = lab.note("a", "the secret", &[("depends_on", &reason)]);
    let payload =
        || json!({"target_type": "memory_unit", "target_id": unit, "depth": "full_trace"});
    let mut envelope = lab.envelope(Operation::Replay, "a", payload());
    envelope["id"] = json!("before");
    lab.send_envelope(&envelope).unwrap();
    let mut attune = lab.envelope(
        Operation::Attune,
        "boss",
        json!({"scope": {"role": "r", "max_units": 9}}),
    );
    attune["id"] = json!("seen");
    lab.send_envelope(&attune).unwrap();
    let purge = json!({"strategy": "purge", "filter": {"max_age_epochs": 0}, "reason": "the law"});
    assert_eq!(
        lab.ok(Operation::Compact, "boss", purge)["units_affected"],
        2
    );
    let answer = lab.ok(Operation::Replay, "a", payload());
    let words: Vec<&str> = answer["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["description"].as_str().unwrap())
        .collect();
    assert_eq!(
        words,
        [
            "Recorded finding (content purged)",
            "Recorded finding (content purged)",
            "Compacted by purge: 2 units"
        ]
    );
    assert!(!answer["summary"].as_str().unwrap().contains("secret"));
    // Answers that were given before are remembered without the text.
    for envelope in [&envelope, &attune] {
        let again = lab.send_envelope(envelope).unwrap().to_string();
        assert!(
            !again.contains("the secret") && !again.contains("the reason"),
            "{again}"
        );
        assert!(again.contains("(content purged)"));
    }
    let (_, why) = lab.field.tombstone(&unit).unwrap();
    assert_eq!(why, Some("the law"));
    // A fold without the erased texts tells the same story.
    let mut other = lab.copied(lab.field.config().clone());
    assert_eq!(
        other.ok(Operation::Replay, "a", payload()),
        lab.ok(Operation::Replay, "a", payload())
    );
}

#[test]
fn retractions_and_enrichments_belong_to_the_chain() {
    let mut lab = Lab::with_agents(Level::Standard, &["a"]);
    lab.embedding = field::Embedding::Failed("late".into());
    let unit = lab.note("a", "x", &[]);
    for act in [
        Administration::Enrich {
            unit_id: unit.clone(),
            embedding: field::Embedding::BuiltIn,
        },
        Administration::Retract {
            caller: lab.caller.clone(),
            agent_id: "a".into(),
            unit_id: unit.clone(),
            reason: "wrong".into(),
        },
    ] {
        let fresh = lab.fresh();
        let decision = administer(&lab.field, &act, &fresh).unwrap();
        lab.field.commit(&decision).unwrap();
    }
    let payload = json!({"target_type": "memory_unit", "target_id": unit, "depth": "detailed"});
    let answer = lab.ok(Operation::Replay, "a", payload);
    let words: Vec<&str> = answer["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["description"].as_str().unwrap())
        .collect();
    assert_eq!(
        words,
        [
            "Recorded finding: x",
            "Enriched by hash-1024",
            "Retracted: wrong"
        ]
    );
    assert!(
        answer["summary"].as_str().unwrap().contains("is retracted"),
        "{}",
        answer["summary"]
    );
    assert_eq!(Model::hash_1024().name, "hash-1024");
}

#[test]
fn the_status_in_a_summary_is_the_status_of_the_unit() {
    let (mut lab, units) = worked();
    for name in ["Q", "F", "G", "F2", "D", "X"] {
        let payload =
            json!({"target_type": "memory_unit", "target_id": units[name], "depth": "summary"});
        let answer = lab.ok(Operation::Replay, "sam", payload);
        let expected = format!("is {}.", lab.status(&units[name]));
        assert!(
            answer["summary"].as_str().unwrap().contains(&expected),
            "{name}: {}",
            answer["summary"]
        );
    }
    let effect = Effect {
        unit_id: "u".into(),
        status: UnitStatus::Active,
    };
    assert_eq!(
        serde_json::to_value(&effect).unwrap(),
        json!({"unit_id": "u", "status": "active"})
    );
}
