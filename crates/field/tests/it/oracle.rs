//! The field against slow and simple models of it.
//!
//! The causal chain by brute force over all (unit, epoch) pairs until nothing changes, written from the definition;
//! the ranking of vectors by a plain scan of floating-point numbers.

use std::collections::{BTreeMap, BTreeSet};

use field::{Entry, Event, Level, Limits, Operation, Outcome, RelationType, Vector};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::{Lab, related, unit};
use crate::replay::replay;
use crate::vectors::entry_of;

/// A log in the form of the vectors, drawn at random.
fn lines() -> impl Strategy<Value = Vec<Value>> {
    let step = (
        0_u8..10,
        0_usize..40,
        0_usize..40,
        0_usize..9,
        0_u64..3,
        0_u8..4,
    );
    proptest::collection::vec(step, 1..40).prop_map(|steps| {
        let relations = ["supports", "contradicts", "depends_on", "supersedes", "caused_by", "elaborates", "answers", "blocks", "informs"];
        let mut lines: Vec<Value> = Vec::new();
        let (mut units, mut conflicts, mut epoch) = (0_usize, Vec::<(String, String, String, bool)>::new(), 1_u64);
        for (kind, a, b, relation, gap, small) in steps {
            epoch += gap;
            let base = |event: &str, agent: &str| {
                json!({"epoch": epoch, "event_type": event, "agent_id": agent, "session_id": null, "memory_unit_id": null, "task_id": null, "conflict_id": null})
            };
            let task = if small == 0 { json!("t") } else { json!(null) };
            match kind {
                0..=5 => {
                    let mut line = base("RECORD", ["x", "y", "z"][a % 3]);
                    // Targets may be missing, later than their source, or the unit itself: logs of others can be anything.
                    let targets = [(relation, a % (units + 3)), ((relation + 1) % 9, b % (units + 3))];
                    let used = usize::from(small) % 3;
                    line["relations"] = targets[..used].iter().map(|(kind, target)| json!({"type": relations[*kind], "target_id": format!("u{target}")})).collect();
                    line["memory_unit_id"] = json!(format!("u{units}"));
                    line["unit_type"] = json!(if b % 4 == 0 { "decision" } else { "finding" });
                    line["task_id"] = task;
                    units += 1;
                    lines.push(line);
                }
                6 if units > 1 => {
                    let (one, two) = (format!("u{}", a % units), format!("u{}", b % units));
                    let id = format!("c{}", conflicts.len());
                    let mut line = base("CONFLICT_CREATED", "system");
                    line["conflict_id"] = json!(id);
                    line["unit_a"] = json!(one);
                    line["unit_b"] = json!(two);
                    conflicts.push((id, one, two, true));
                    lines.push(line);
                }
                7 if conflicts.iter().any(|conflict| conflict.3) => {
                    let open: Vec<usize> = (0..conflicts.len()).filter(|index| conflicts[*index].3).collect();
                    let index = open[a % open.len()];
                    let (id, one, two, _) = conflicts[index].clone();
                    let mut line = base("MERGE", "m");
                    line["conflict_id"] = json!(id);
                    match small {
                        0 => {
                            line["strategy"] = json!("human_escalation");
                            line["outcome"] = json!("escalated");
                            lines.push(line);
                        }
                        1 => {
                            let new = format!("u{units}");
                            units += 1;
                            line["strategy"] = json!("synthesis");
                            line["outcome"] = json!("resolved");
                            line["new_unit_id"] = json!(new);
                            lines.push(line);
                            let mut record = base("RECORD", "m");
                            record["memory_unit_id"] = json!(new);
                            record["unit_type"] = json!("synthesis");
                            record["relations"] = json!([{"type": "elaborates", "target_id": one}, {"type": "elaborates", "target_id": two}]);
                            lines.push(record);
                            conflicts[index].3 = false;
                        }
                        _ => {
                            line["strategy"] = json!("authority");
                            line["outcome"] = json!("resolved");
                            line["winner_id"] = json!(one);
                            lines.push(line);
                            conflicts[index].3 = false;
                        }
                    }
                }
                8 if units > 0 => {
                    let mut line = base("COMPACT", "k");
                    line["strategy"] = json!("archive");
                    line["units_touched"] = json!([format!("u{}", a % units), format!("u{}", b % units)]);
                    lines.push(line);
                }
                _ => lines.push(base("ATTUNE", "x")),
            }
        }
        for (index, line) in lines.iter_mut().enumerate() {
            line["seq"] = json!(index + 1);
        }
        lines
    })
}

/// The chain of one unit with horizon "now", by the definition and by exhaustion.
fn chain(entries: &[Entry], start: &str) -> Vec<u64> {
    let record = |unit: &str| {
        entries.iter().find_map(|entry| match &entry.event {
            Event::Recorded(recorded) if recorded.unit_id == unit => Some((entry, recorded)),
            _ => None,
        })
    };
    let conflict_events = |conflict: &str| -> Vec<&Entry> {
        entries
            .iter()
            .filter(|entry| match &entry.event {
                Event::ConflictCreated { conflict_id, .. } => conflict_id == conflict,
                Event::Merged(merged) => merged.conflict_id == conflict,
                _ => false,
            })
            .collect()
    };
    let conflicts_of = |unit: &str| -> Vec<(String, String)> {
        entries
            .iter()
            .filter_map(|entry| match &entry.event {
                Event::ConflictCreated {
                    conflict_id,
                    unit_a,
                    unit_b,
                    ..
                } if unit_a == unit => Some((conflict_id.clone(), unit_b.clone())),
                Event::ConflictCreated {
                    conflict_id,
                    unit_a,
                    unit_b,
                    ..
                } if unit_b == unit => Some((conflict_id.clone(), unit_a.clone())),
                _ => None,
            })
            .collect()
    };
    let now = entries.iter().map(|entry| entry.epoch).max().unwrap();
    // Every pair that is derivable, not only the greatest horizon of each unit.
    let mut pairs: BTreeSet<(String, u64)> = BTreeSet::from([(start.to_owned(), now)]);
    loop {
        let mut found = pairs.clone();
        for (unit, horizon) in &pairs {
            let Some((entry, recorded)) = record(unit) else {
                continue;
            };
            if entry.epoch > *horizon {
                continue;
            }
            for relation in &recorded.relations {
                found.insert((relation.target_id.clone(), entry.epoch));
            }
            for other in entries {
                let Event::Recorded(source) = &other.event else {
                    continue;
                };
                let acts = source.relations.iter().any(|relation| {
                    relation.target_id == *unit
                        && matches!(
                            relation.kind,
                            RelationType::Supersedes
                                | RelationType::Supports
                                | RelationType::Informs
                                | RelationType::Blocks
                        )
                });
                if acts && other.epoch <= *horizon {
                    found.insert((source.unit_id.clone(), *horizon));
                }
            }
            for (conflict, opponent) in conflicts_of(unit) {
                let events = conflict_events(&conflict);
                if events[0].epoch > *horizon {
                    continue;
                }
                let end = events.iter().find_map(|entry| match &entry.event {
                    Event::Merged(merged) if merged.outcome == Outcome::Resolved => {
                        Some((entry.epoch, merged.new_unit_id.clone()))
                    }
                    _ => None,
                });
                let until = end.as_ref().map_or(*horizon, |(end, _)| *horizon.min(end));
                found.insert((opponent, until));
                if let Some((end, Some(new))) = end
                    && end <= *horizon
                {
                    found.insert((new, *horizon));
                }
            }
        }
        if found == pairs {
            break;
        }
        pairs = found;
    }
    let mut seqs: BTreeSet<(u64, u64)> = BTreeSet::new();
    for (unit, horizon) in &pairs {
        let Some((entry, _)) = record(unit) else {
            continue;
        };
        if entry.epoch > *horizon {
            continue;
        }
        seqs.insert((entry.epoch, entry.seq));
        for other in entries.iter().filter(|other| other.epoch <= *horizon) {
            let touches = match &other.event {
                Event::Compacted { unit_ids, .. } => unit_ids.contains(unit),
                _ => false,
            };
            if touches {
                seqs.insert((other.epoch, other.seq));
            }
        }
        for (conflict, _) in conflicts_of(unit) {
            for event in conflict_events(&conflict) {
                if event.epoch <= *horizon {
                    seqs.insert((event.epoch, event.seq));
                }
            }
        }
    }
    seqs.into_iter().map(|(_, seq)| seq).collect()
}

fn shown(entries: &[Entry], answer: &Value) -> Vec<u64> {
    let by_time: BTreeMap<String, u64> = entries
        .iter()
        .map(|entry| (entry.at.to_string(), entry.seq))
        .collect();
    answer["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| by_time[event["timestamp"].as_str().unwrap()])
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_chain_is_the_least_fixed_point_of_its_definition(lines in lines()) {
        let entries: Vec<Entry> = lines.iter().map(entry_of).collect();
        for entry in &entries {
            let Event::Recorded(recorded) = &entry.event else { continue };
            let request = |depth: &str| json!({"target_type": "memory_unit", "target_id": recorded.unit_id, "depth": depth});
            let full = replay(&entries, &request("full_trace"), &Limits::standard()).unwrap();
            let expected = chain(&entries, &recorded.unit_id);
            prop_assert_eq!(shown(&entries, &full), &expected[..], "{}", recorded.unit_id);
            let detailed = replay(&entries, &request("detailed"), &Limits::standard()).unwrap();
            let key = shown(&entries, &detailed);
            prop_assert!(key.iter().all(|seq| expected.contains(seq)), "key events belong to the chain");
            prop_assert!(key.contains(&entry.seq));
            for name in ["summary", "agents_involved", "total_events"] {
                prop_assert_eq!(&full[name], &detailed[name]);
            }
        }
    }

    #[test]
    fn every_epoch_is_greater_than_all_that_was_known(epochs in proptest::collection::vec(0_u64..2_000, 1..30)) {
        let mut lab = Lab::with_agents(Level::Core, &["a"]);
        let mut last = lab.field.clock();
        for epoch in epochs {
            let mut envelope = lab.envelope(Operation::Record, "a", unit("finding", "x", json!({})));
            envelope["epoch"] = json!(epoch);
            let answered = lab.send_envelope(&envelope).unwrap()["epoch"].as_u64().unwrap();
            prop_assert!(answered > epoch && answered > last);
            last = answered;
        }
    }

    #[test]
    fn any_unit_of_a_line_of_replacements_tells_the_same_story(length in 1_usize..12) {
        let mut lab = Lab::with_agents(Level::Standard, &["a"]);
        let mut line = vec![lab.note("a", "first", &[])];
        for number in 1..length {
            let before = line.last().unwrap().clone();
            line.push(lab.note("a", &format!("version {number}"), &[("supersedes", &before)]));
        }
        let mut stories = BTreeSet::new();
        for unit in &line {
            let answer = lab.ok(Operation::Replay, "a", json!({"target_type": "memory_unit", "target_id": unit, "depth": "detailed"}));
            stories.insert(answer["timeline"].to_string());
        }
        prop_assert_eq!(stories.len(), 1);
    }

    #[test]
    fn whatever_is_accepted_folds_to_the_same_field(steps in proptest::collection::vec((0_u8..7, 0_usize..30, 0_usize..9, 0_usize..3), 1..40)) {
        let agents = ["a", "b", "c"];
        let mut lab = Lab::with_agents(Level::Full, &agents);
        lab.join("boss", 10);
        let (mut units, mut conflicts) = (Vec::<String>::new(), Vec::<String>::new());
        for (kind, pick, relation, agent) in steps {
            let agent = agents[agent];
            match kind {
                0..=2 => {
                    let mut more = json!({"mode": if pick % 5 == 0 { "draft" } else { "committed" }, "intent": {"purpose": "p", "task_id": (pick % 2 == 0).then_some("t")}});
                    if !units.is_empty() {
                        more["relations"] = related(&[(RelationType::ALL[relation].as_str(), &units[pick % units.len()])]);
                    }
                    let content = format!("the value is {} percent of the total of all things", pick % 3);
                    if let Ok(answer) = lab.send(Operation::Record, agent, unit("finding", &content, more)) {
                        units.push(answer["memory_unit_id"].as_str().unwrap().to_owned());
                        conflicts.extend(answer["conflicts_detected"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()));
                    }
                }
                3 if !conflicts.is_empty() => {
                    let conflict = conflicts[pick % conflicts.len()].clone();
                    let strategy = field::Strategy::ALL[relation % 7].as_str();
                    let winner = units[pick % units.len()].clone();
                    let _ = lab.merge(agent, &conflict, strategy, json!({"winner_id": winner}));
                    let _ = lab.merge(agent, &conflict, strategy, json!({"synthesis": "both"}));
                }
                4 => {
                    lab.ok(Operation::Detect, agent, json!({"mode": "scan"}));
                }
                5 => {
                    let strategy = ["archive", "summarize", "purge"][relation % 3];
                    lab.ok(Operation::Compact, "boss", json!({"strategy": strategy, "filter": {"max_age_epochs": pick}}));
                }
                _ => {
                    lab.seen_by(agent);
                }
            }
        }
        let mut other = lab.copied(lab.field.config().clone());
        for (operation, payload) in [
            (Operation::Attune, json!({"scope": {"role": "analyst", "max_units": 50, "include_own": true, "include_archived": true}, "context_hint": "value percent"})),
            (Operation::Detect, json!({"mode": "list"})),
            (Operation::Replay, json!({"target_type": "task", "target_id": "t", "depth": "full_trace"})),
        ] {
            prop_assert_eq!(lab.send(operation, "a", payload.clone()), other.send(operation, "a", payload));
        }
        prop_assert_eq!(lab.field.status_view(None), other.field.status_view(None));
    }

    #[test]
    fn vectors_rank_as_a_plain_scan_does(texts in proptest::collection::vec("[a-f]{2,5}( [a-f]{2,5}){0,6}", 2..40), query in "[a-f]{2,5}( [a-f]{2,5}){0,3}") {
        let asked = Vector::hash_1024(&query);
        let plain = |vector: &Vector| -> f32 {
            let float = |vector: &Vector| -> Vec<f32> { vector.components.iter().map(|value| f32::from(*value)).collect() };
            let (one, other) = (float(&asked), float(vector));
            let dot: f32 = one.iter().zip(&other).map(|(a, b)| a * b).sum();
            let norm = |vector: &[f32]| vector.iter().map(|value| value * value).sum::<f32>().sqrt();
            let norms = norm(&one) * norm(&other);
            if norms > 0.0 { dot / norms } else { 0.0 }
        };
        for text in &texts {
            let vector = Vector::hash_1024(text);
            let exact = asked.cosine(&vector).unwrap();
            prop_assert!((exact - f64::from(plain(&vector))).abs() < 1e-4);
        }
    }
}

#[test]
fn ranking_is_the_ranking_of_a_naive_model() {
    // With recency off and everything else equal the order is that of the words and vectors alone.
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let subjects = [
        "volcano", "glacier", "harbour", "invoice", "latency", "orchard",
    ];
    let mut contents = BTreeMap::new();
    for number in 0..120_usize {
        let content = format!(
            "{} {} report {number}",
            subjects[number % 6],
            subjects[number / 6 % 6]
        );
        contents.insert(lab.note("a", &content, &[]), content);
    }
    let answer = lab.ok(
        Operation::Attune,
        "b",
        json!({"scope": {"role": "nobody", "max_units": 120, "recency_weight": 0}, "context_hint": "glacier volcano"}),
    );
    let order: Vec<&String> = answer["record"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| &contents[record["memory_unit"]["id"].as_str().unwrap()])
        .collect();
    let both: Vec<usize> = (0..order.len())
        .filter(|place| order[*place].contains("glacier") && order[*place].contains("volcano"))
        .collect();
    let one: Vec<usize> = (0..order.len())
        .filter(|place| order[*place].contains("glacier") != order[*place].contains("volcano"))
        .collect();
    let none: Vec<usize> = (0..order.len())
        .filter(|place| !order[*place].contains("glacier") && !order[*place].contains("volcano"))
        .collect();
    assert!(both.iter().max() < one.iter().min() && one.iter().max() < none.iter().min());
}
