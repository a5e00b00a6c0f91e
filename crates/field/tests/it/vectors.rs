//! The published vectors of REPLAY as entries of a log. The tests of the server load the same entries into its store.

use canon::Digest;
use domain::Timestamp;
use field::{
    ConflictType, Depth, Entry, Event, Merged, Method, Mode, Outcome, Recorded, Relation, Strategy,
    TargetType, UnitStatus,
};
use serde_json::Value;

/// Returns the logs and the cases.
pub(crate) fn vectors() -> Value {
    let text = include_str!("../../../../conformance/vectors/akashik/replay-vectors.json");
    serde_json::from_str(text).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn maybe(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Makes an entry of a line of the vectors: same types, same ids, same epochs.
pub(crate) fn entry_of(line: &Value) -> Entry {
    let touched = || -> Vec<String> {
        line["units_touched"]
            .as_array()
            .unwrap()
            .iter()
            .map(text)
            .collect()
    };
    let event = match line["event_type"].as_str().unwrap() {
        "REGISTER" => Event::Registered {
            role: "r".into(),
            interests: Vec::new(),
            authority: 4,
            key: None,
        },
        "RECORD" => Event::Recorded(Recorded {
            unit_id: text(&line["memory_unit_id"]),
            mode: Mode::Committed,
            kind: field::MemoryType::parse(line["unit_type"].as_str().unwrap()).unwrap(),
            agent_role: "r".into(),
            task_id: maybe(&line["task_id"]),
            score: None,
            relations: line["relations"]
                .as_array()
                .unwrap()
                .iter()
                .map(|relation| Relation {
                    kind: field::RelationType::parse(relation["type"].as_str().unwrap()).unwrap(),
                    target_id: text(&relation["target_id"]),
                    unbound: false,
                })
                .collect(),
            status: UnitStatus::Active,
            text_sha256: Digest::from_bytes([0; 32]),
            model: None,
            effects: Vec::new(),
        }),
        "CONFLICT_CREATED" => Event::ConflictCreated {
            conflict_id: text(&line["conflict_id"]),
            unit_a: text(&line["unit_a"]),
            unit_b: text(&line["unit_b"]),
            kind: ConflictType::Factual,
            detected_by: Method::Explicit,
            effects: Vec::new(),
        },
        "MERGE" => Event::Merged(Merged {
            conflict_id: text(&line["conflict_id"]),
            strategy: Strategy::parse(line["strategy"].as_str().unwrap()).unwrap(),
            outcome: match line["outcome"].as_str().unwrap() {
                "resolved" => Outcome::Resolved,
                "escalated" => Outcome::Escalated,
                other => panic!("{other}"),
            },
            winner_id: maybe(&line["winner_id"]),
            new_unit_id: maybe(&line["new_unit_id"]),
            rationale: "r".into(),
            effects: Vec::new(),
        }),
        "COMPACT" => Event::Compacted {
            strategy: field::CompactStrategy::parse(line["strategy"].as_str().unwrap()).unwrap(),
            unit_ids: touched(),
            reason: None,
            erased: Vec::new(),
        },
        "UNIT_RETRACTED" => Event::Retracted {
            unit_id: touched().remove(0),
            reason: "r".into(),
        },
        "ATTUNE" => Event::Attuned {
            role: "r".into(),
            max_units: 1,
            since_epoch: None,
            unit_ids: Vec::new(),
        },
        "DETECT" => Event::Detected {
            mode: field::DetectMode::List,
            target_id: None,
            conflict_ids: Vec::new(),
        },
        "REPLAY" => Event::Replayed {
            target_type: TargetType::Task,
            target_id: "t".into(),
            depth: Depth::Summary,
        },
        "HANDOFF" => Event::HandedOff {
            action: field::HandoffAction::Offer,
            handoff_id: "h".into(),
            task_id: text(&line["task_id"]),
            to_agent: text(&line["to_agent"]),
            package: None,
        },
        other => panic!("{other}"),
    };
    Entry {
        seq: line["seq"].as_u64().unwrap(),
        at: Timestamp::from_micros(line["seq"].as_i64().unwrap()),
        epoch: line["epoch"].as_u64().unwrap(),
        agent_id: text(&line["agent_id"]),
        session_id: maybe(&line["session_id"]),
        message: None,
        event,
    }
}

/// Returns the entries of a log of the vectors.
pub(crate) fn entries(vectors: &Value, log: &str) -> Vec<Entry> {
    vectors["logs"][log]
        .as_array()
        .unwrap()
        .iter()
        .map(entry_of)
        .collect()
}
