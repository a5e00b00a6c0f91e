//! The clock and the log.

use field::{Code, Config, EPOCH_MAX, Entry, Event, Level, Limits, Operation};
use serde_json::{Value, json};

use crate::common::{Lab, related, unit};

fn record_at(lab: &mut Lab, epoch: u64) -> Result<u64, Code> {
    let mut envelope = lab.envelope(Operation::Record, "a", unit("finding", "x", json!({})));
    envelope["epoch"] = json!(epoch);
    match lab.send_envelope(&envelope) {
        Ok(answer) => Ok(answer["epoch"].as_u64().unwrap()),
        Err(refusal) => Err(refusal.code()),
    }
}

#[test]
fn ak_clk_01_02_each_accepted_message_moves_the_clock_past_everything_it_knows() {
    for level in Level::ALL {
        let mut lab = Lab::at(*level);
        lab.join("a", 4);
        assert_eq!(lab.field.clock(), 1);
        assert_eq!(record_at(&mut lab, 1), Ok(2));
        assert_eq!(record_at(&mut lab, 10), Ok(11));
        assert_eq!(record_at(&mut lab, 3), Ok(12));
        assert_eq!(record_at(&mut lab, 12), Ok(13));
    }
}

#[test]
fn ak_clk_03_the_answer_and_the_unit_carry_the_epoch_and_reads_tick() {
    let mut lab = Lab::with_agents(Level::Core, &["a", "b"]);
    let answer = lab.ok(Operation::Record, "a", unit("finding", "x", json!({})));
    let seen = lab.ok(
        Operation::Attune,
        "b",
        json!({"scope": {"role": "r", "max_units": 1}}),
    );
    assert_eq!(seen["record"][0]["memory_unit"]["epoch"], answer["epoch"]);
    assert_eq!(
        seen["epoch"].as_u64().unwrap(),
        answer["epoch"].as_u64().unwrap() + 1
    );
}

#[test]
fn ak_clk_04_derived_entries_carry_the_epoch_of_their_operation_and_follow_it() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let (_, _, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    lab.merge("a", &conflict, "synthesis", json!({"synthesis": "both"}))
        .unwrap();
    let tail: Vec<(u64, &str, &str)> = lab.log[2..]
        .iter()
        .map(|(entry, _)| {
            (
                entry.epoch,
                entry.event.event_type(),
                entry.agent_id.as_str(),
            )
        })
        .collect();
    assert_eq!(
        tail,
        [
            (3, "RECORD", "a"),
            (4, "RECORD", "b"),
            (4, "CONFLICT_CREATED", "system"),
            (5, "MERGE", "a"),
            (5, "RECORD", "a"),
        ]
    );
}

#[test]
fn ak_log_08_an_operations_own_entry_comes_first() {
    let mut lab = Lab::with_agents(Level::Standard, &["a"]);
    lab.note("a", "x", &[]);
    lab.ok(
        Operation::Compact,
        "a",
        json!({"strategy": "summarize", "filter": {}}),
    );
    let tail: Vec<&str> = lab.log[2..]
        .iter()
        .map(|(entry, _)| entry.event.event_type())
        .collect();
    assert_eq!(tail, ["COMPACT", "RECORD"]);
    assert!(lab.log[2].0.message.is_some() && lab.log[3].0.message.is_none());
}

#[test]
fn ak_clk_05_a_refused_message_leaves_no_trace() {
    let mut lab = Lab::with_agents(Level::Core, &["a"]);
    let (clock, entries) = (lab.field.clock(), lab.log.len());
    for _ in 0..5 {
        lab.code(Operation::Record, "a", json!({}));
    }
    assert_eq!((lab.field.clock(), lab.log.len()), (clock, entries));
    assert_eq!(record_at(&mut lab, 0), Ok(clock + 1));
}

#[test]
fn ak_clk_06_after_a_restart_the_clock_is_past_every_epoch_that_was_answered() {
    let mut lab = Lab::with_agents(Level::Core, &["a"]);
    let answer = lab.ok(
        Operation::Attune,
        "a",
        json!({"scope": {"role": "r", "max_units": 1}}),
    );
    let seen = answer["epoch"].as_u64().unwrap();
    lab.field = lab.refolded();
    assert!(record_at(&mut lab, 0).unwrap() > seen);
}

#[test]
fn ak_clk_07_wall_time_is_never_an_order() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let one = lab.note("a", "x", &[]);
    lab.now_us -= 3_600_000_000;
    let two = lab.note("a", "y", &[("supersedes", &one)]);
    let payload = json!({"target_type": "memory_unit", "target_id": two, "depth": "full_trace"});
    let answer = lab.ok(Operation::Replay, "b", payload);
    let units: Vec<&Value> = answer["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| &event["memory_unit_id"])
        .collect();
    assert_eq!(units, [&json!(one), &json!(two)]);
    assert!(
        answer["timeline"][0]["timestamp"].as_str() > answer["timeline"][1]["timestamp"].as_str()
    );
}

#[test]
fn ak_clk_08_the_clock_ends_at_the_largest_safe_integer() {
    let mut config = Config::at(Level::Core);
    config.limits = Limits {
        epoch_jump_max: u64::MAX,
        ..config.limits
    };
    let mut lab = Lab::with(config);
    lab.join("a", 4);
    assert_eq!(record_at(&mut lab, EPOCH_MAX), Err(Code::EpochOverflow));
    assert_eq!(
        record_at(&mut lab, EPOCH_MAX + 1),
        Err(Code::InvalidEnvelope)
    );
    assert_eq!(record_at(&mut lab, EPOCH_MAX - 2), Ok(EPOCH_MAX - 1));
    assert_eq!(record_at(&mut lab, 0), Ok(EPOCH_MAX));
    assert_eq!(record_at(&mut lab, 0), Err(Code::EpochOverflow));
    assert_eq!(lab.field.clock(), EPOCH_MAX);
}

#[test]
fn ak_clk_09_one_client_cannot_exhaust_the_clock() {
    let mut lab = Lab::with_agents(Level::Core, &["a"]);
    let clock = lab.field.clock();
    assert_eq!(
        record_at(&mut lab, clock + 1_000_001),
        Err(Code::InvalidEnvelope)
    );
    assert_eq!(
        record_at(&mut lab, clock + 1_000_000),
        Ok(clock + 1_000_001)
    );
    // Overflow is judged before the jump.
    assert_eq!(record_at(&mut lab, EPOCH_MAX), Err(Code::EpochOverflow));
    assert_eq!(
        record_at(&mut lab, EPOCH_MAX - 1),
        Err(Code::InvalidEnvelope)
    );
}

/// Below level 2 nothing over the wire shows the log.
#[test]
fn ak_clk_04_07_log_01_02_05_07_08_rec_09_the_log_is_kept_at_every_level_from_1() {
    for level in [Level::Core, Level::Standard, Level::Full] {
        let mut lab = Lab::with_agents(level, &["a", "b"]);
        let one = lab.note("a", "a secret", &[]);
        // From here on the wall clock is an hour behind.
        lab.now_us -= 3_600_000_000;
        let unit = |relations: &[(&str, &str)]| {
            let relations = related(relations);
            unit("finding", "a secret", json!({"relations": relations}))
        };
        let operations = [
            (
                Operation::Record,
                unit(&[("contradicts", &one)]),
                &["RECORD", "CONFLICT_CREATED"][..],
            ),
            (
                Operation::Record,
                unit(&[("supersedes", &one)]),
                &["RECORD"],
            ),
            (
                Operation::Attune,
                json!({"scope": {"role": "r", "max_units": 9}}),
                &["ATTUNE"],
            ),
            (Operation::Detect, json!({"mode": "list"}), &["DETECT"]),
            (
                Operation::Subscribe,
                json!({"action": "list"}),
                &["SUBSCRIBE"],
            ),
            (
                Operation::Deregister,
                json!({"agent_id": "b"}),
                &["DEREGISTER"],
            ),
        ];
        for (operation, payload, written) in operations {
            let before = lab.field.log().entries().to_vec();
            lab.ok(operation, "b", payload);
            let (past, new) = lab.field.log().entries().split_at(before.len());
            assert_eq!(past, before, "{operation} changed the past at {level:?}");
            let types: Vec<&str> = new.iter().map(|entry| entry.event.event_type()).collect();
            assert_eq!(types, written, "{operation} at {level:?}");
            let epoch = past.last().unwrap().epoch + 1;
            assert!(new.iter().all(|entry| entry.epoch == epoch));
            let bytes = serde_json::to_string(new).unwrap();
            assert!(!bytes.contains("a secret"), "{bytes}");
        }
        let entries = lab.field.log().entries();
        let Event::Recorded(recorded) = &entries[5].event else {
            panic!("{:?}", entries[5]);
        };
        // What it does to others is part of the entry itself.
        assert_eq!(recorded.relations[0].target_id, one);
        assert_eq!(entries[5].event.effects()[0].unit_id, one);
        assert!(entries[5].at < entries[2].at && entries[5].epoch > entries[2].epoch);
        assert_eq!(lab.status(&one), "superseded");
    }
}

#[test]
fn ak_log_01_02_07_every_operation_appends_and_nothing_changes_what_was_appended() {
    let mut lab = Lab::with_agents(Level::Full, &["a", "b"]);
    lab.join("boss", 10);
    let mut before: Vec<Vec<u8>> = Vec::new();
    let bytes = |lab: &Lab| -> Vec<Vec<u8>> {
        lab.field
            .log()
            .entries()
            .iter()
            .map(|entry: &Entry| serde_json::to_vec(entry).unwrap())
            .collect()
    };
    let (one, _, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    let operations = [
        (
            Operation::Attune,
            "a",
            json!({"scope": {"role": "r", "max_units": 1}}),
        ),
        (Operation::Detect, "a", json!({"mode": "scan"})),
        (Operation::Subscribe, "a", json!({"action": "list"})),
        (
            Operation::Merge,
            "a",
            json!({"conflict_id": conflict, "strategy": "last_write_wins", "resolution": {"rationale": "r"}}),
        ),
        (
            Operation::Replay,
            "a",
            json!({"target_type": "memory_unit", "target_id": one, "depth": "summary"}),
        ),
        (
            Operation::Compact,
            "boss",
            json!({"strategy": "purge", "filter": {"types": ["finding"]}}),
        ),
        (
            Operation::Handoff,
            "a",
            json!({"action": "offer", "task_id": "t", "to_agent": "b"}),
        ),
        (
            Operation::Session,
            "a",
            json!({"action": "create", "session": {"goal": "g"}}),
        ),
        (
            Operation::Coordinate,
            "a",
            json!({"action": "create", "task": {"title": "t"}}),
        ),
        (Operation::Deregister, "a", json!({"agent_id": "a"})),
    ];
    for (operation, agent, payload) in operations {
        lab.ok(operation, agent, payload);
        let after = bytes(&lab);
        assert!(after.len() > before.len(), "{operation} was logged");
        assert_eq!(
            &after[..before.len()],
            &before[..],
            "{operation} changed the past"
        );
        before = after;
    }
    assert!(
        lab.field.text_of(&one).is_none(),
        "the text is gone, the entries are not"
    );
}

#[test]
fn ak_log_04_the_field_is_the_fold_of_its_log() {
    let mut lab = Lab::with_agents(Level::Full, &["a", "b"]);
    let (_, _, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    lab.merge("a", &conflict, "confidence_weighted", json!({}))
        .unwrap();
    lab.note("a", "more", &[]);
    lab.ok(
        Operation::Subscribe,
        "b",
        json!({"action": "subscribe", "subscription": {"events": ["agent.joined"]}}),
    );
    let questions = [
        (
            Operation::Attune,
            json!({"scope": {"role": "r", "max_units": 9}, "context_hint": "more"}),
        ),
        (Operation::Detect, json!({"mode": "list"})),
        (Operation::Subscribe, json!({"action": "list"})),
        (
            Operation::Replay,
            json!({"target_type": "conflict", "target_id": conflict, "depth": "full_trace"}),
        ),
    ];
    let mut other = lab.copied(lab.field.config().clone());
    for (operation, payload) in questions {
        assert_eq!(
            lab.ok(operation, "b", payload.clone()),
            other.ok(operation, "b", payload)
        );
    }
}

#[test]
fn entries_survive_being_written_and_read() {
    let mut lab = Lab::with_agents(Level::Full, &["a", "b"]);
    lab.conflict(("a", 0.5), ("b", 0.4));
    for (entry, content) in &lab.log {
        let bytes = serde_json::to_vec(entry).unwrap();
        assert_eq!(&serde_json::from_slice::<Entry>(&bytes).unwrap(), entry);
        let bytes = serde_json::to_vec(content).unwrap();
        assert_eq!(
            &serde_json::from_slice::<Option<field::Content>>(&bytes).unwrap(),
            content
        );
    }
}
