//! Logs and requests that nobody should send: large, circular, malformed.

use canon::Digest;
use domain::Timestamp;
use field::{
    Code, Config, Depth, Entry, Envelope, Event, Field, Level, Limits, Log, MemoryType, Mode,
    Operation, Reader, Recorded, Relation, RelationType, Target, TargetType, UnitStatus,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::{Lab, unit};
use crate::replay::replay;

fn recorded(seq: u64, unit: String, relations: &[(RelationType, String)]) -> Entry {
    Entry {
        seq,
        at: Timestamp::from_micros(0),
        epoch: seq,
        agent_id: "a".into(),
        session_id: None,
        message: None,
        event: Event::Recorded(Recorded {
            unit_id: unit,
            mode: Mode::Committed,
            kind: MemoryType::Finding,
            agent_role: "r".into(),
            task_id: None,
            score: None,
            relations: relations
                .iter()
                .map(|(kind, target)| Relation {
                    kind: *kind,
                    target_id: target.clone(),
                    unbound: false,
                })
                .collect(),
            status: UnitStatus::Active,
            text_sha256: Digest::from_bytes([0; 32]),
            model: None,
            effects: Vec::new(),
        }),
    }
}

fn request(unit: &str, depth: &str) -> Value {
    json!({"target_type": "memory_unit", "target_id": unit, "depth": depth})
}

#[test]
fn a_chain_of_a_million_units_is_counted_or_refused_and_never_cut() {
    let count = 1_000_000_u64;
    let entries = (1..=count).map(|number| {
        let before = (number > 1).then(|| (RelationType::DependsOn, format!("u{}", number - 1)));
        recorded(number, format!("u{number}"), before.as_slice())
    });
    let log = Log::build(entries).unwrap();
    let reader = Reader {
        text_of: &|_| None,
        sees: &|_| true,
    };
    let ask = |unit: &str, depth: Depth, limits: &Limits| {
        let target = Target {
            kind: TargetType::MemoryUnit,
            id: unit.into(),
            depth,
        };
        log.replay(&target, &reader, limits)
            .map_err(|refusal| refusal.code())
    };
    let limits = Limits::standard();
    assert_eq!(
        ask("u1000000", Depth::Summary, &limits).unwrap()["total_events"],
        count
    );
    assert_eq!(
        ask("u1000000", Depth::FullTrace, &limits),
        Err(Code::ReplayTooLarge)
    );
    let limits = Limits {
        replay_visit_max: 999_999,
        ..Limits::standard()
    };
    assert_eq!(
        ask("u1000000", Depth::Summary, &limits),
        Err(Code::ReplayTooLarge)
    );
    assert_eq!(
        ask("u5", Depth::FullTrace, &limits).unwrap()["total_events"],
        5
    );
}

#[test]
fn circles_of_relations_end() {
    for kind in RelationType::ALL {
        let entries: Vec<Entry> = (0..10_u64)
            .map(|number| {
                recorded(
                    number + 1,
                    format!("u{number}"),
                    &[
                        (*kind, format!("u{}", (number + 1) % 10)),
                        (*kind, format!("u{number}")),
                    ],
                )
            })
            .collect();
        for depth in ["summary", "detailed", "full_trace"] {
            let answer = replay(&entries, &request("u3", depth), &Limits::standard()).unwrap();
            assert!(answer["total_events"].as_u64().unwrap() <= 10);
        }
    }
}

#[test]
fn a_unit_that_thousands_support_is_visited_once() {
    let mut entries = vec![recorded(1, "hub".into(), &[])];
    for number in 2..=5_000 {
        entries.push(recorded(
            number,
            format!("u{number}"),
            &[(RelationType::Supports, "hub".into())],
        ));
    }
    let answer = replay(&entries, &request("u77", "full_trace"), &Limits::standard()).unwrap();
    assert_eq!(
        answer["total_events"], 77,
        "the hub, and who supported it by epoch 77"
    );
}

#[test]
fn entries_that_cannot_follow_are_refused_whole() {
    let base = || {
        let mut field = Field::new(Config::at(Level::Full));
        field.apply(&recorded(1, "u1".into(), &[]), None).unwrap();
        field
    };
    let with = |event: Event| Entry {
        event,
        ..recorded(2, "x".into(), &[])
    };
    let bad = [
        recorded(1, "u2".into(), &[]),
        recorded(2, "u1".into(), &[]),
        with(Event::ConflictEscalated {
            conflict_id: "none".into(),
            reason: "r".into(),
        }),
        with(Event::Retracted {
            unit_id: "none".into(),
            reason: "r".into(),
        }),
        with(Event::Compacted {
            strategy: field::CompactStrategy::Purge,
            unit_ids: vec!["u1".into(), "none".into()],
            reason: None,
            erased: Vec::new(),
        }),
        with(Event::ConflictCreated {
            conflict_id: "c".into(),
            unit_a: "u1".into(),
            unit_b: "none".into(),
            kind: field::ConflictType::Factual,
            detected_by: field::Method::Explicit,
            effects: Vec::new(),
        }),
        with(Event::HandedOff {
            action: field::HandoffAction::Accept,
            handoff_id: "none".into(),
            task_id: "t".into(),
            to_agent: "a".into(),
            package: None,
        }),
    ];
    for entry in bad {
        let mut field = base();
        let before = format!("{field:?}");
        assert!(field.apply(&entry, None).is_err(), "{entry:?}");
        assert_eq!(format!("{field:?}"), before, "nothing was changed");
    }
}

#[test]
fn unknown_members_of_stored_entries_are_refused() {
    let mut value = serde_json::to_value(recorded(1, "u".into(), &[])).unwrap();
    assert!(serde_json::from_value::<Entry>(value.clone()).is_ok());
    value["surprise"] = json!(1);
    assert!(serde_json::from_value::<Entry>(value).is_err());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        prop_oneof![
            Just("committed"),
            Just("finding"),
            Just("scan"),
            Just("subscribe"),
            Just("purge"),
            Just("vote"),
            Just("create")
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        let names = prop_oneof![
            Just("mode"),
            Just("type"),
            Just("content"),
            Just("intent"),
            Just("purpose"),
            Just("confidence"),
            Just("score"),
            Just("relations"),
            Just("target_id"),
            Just("scope"),
            Just("role"),
            Just("max_units"),
            Just("filter"),
            Just("strategy"),
            Just("resolution"),
            Just("rationale"),
            Just("action"),
            Just("subscription"),
            Just("events"),
            Just("task"),
            Just("session"),
            Just("depth"),
            Just("target_type"),
            Just("id"),
            Just("authority"),
            Just("since_epoch"),
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(names.prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_are_an_envelope_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Envelope::read(&bytes, &Limits::standard(), None);
    }

    #[test]
    fn any_payload_is_answered_or_refused(payload in any_json(), operation in 0_usize..12) {
        let mut lab = Lab::with_agents(Level::Full, &["a"]);
        lab.note("a", "x", &[]);
        let payload = if payload.is_object() { payload } else { json!({"scope": payload}) };
        // The harness checks that a refusal changed nothing and that what was accepted can be applied.
        let _ = lab.send(Operation::ALL[operation], "a", payload);
    }
}

#[test]
fn texts_of_every_script_are_kept_and_found() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    for content in [
        "市场增长23%。下一句。",
        "рынок растёт",
        "🦀\u{0}\u{202e}",
        "İstanbul",
        "e\u{301}té",
        " ",
    ] {
        let id = lab.unit("a", "finding", content, json!({}));
        let answer = lab.ok(
            Operation::Attune,
            "b",
            json!({"scope": {"role": "r", "max_units": 1}, "context_hint": content}),
        );
        let found = &answer["record"][0]["memory_unit"];
        assert_eq!(
            (&found["id"], &found["content"]),
            (&json!(id), &json!(content))
        );
        lab.ok(Operation::Replay, "b", request(&id, "detailed"));
    }
    assert_eq!(
        lab.code(Operation::Record, "a", unit("finding", "", json!({}))),
        Code::InvalidRequest
    );
}
