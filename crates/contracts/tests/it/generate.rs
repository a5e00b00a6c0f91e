//! Random contracts, session files, arguments and outputs: small domains, so that values meet.
//!
//! Documents are JSON, which is YAML too: the crate reads their text, the oracle the values.

use fastrand::Rng;
use serde_json::{Value as Json, json};

pub(crate) const TOOLS: [&str; 4] = ["t0", "t1", "t2", "t3"];
pub(crate) const LABELS: [&str; 2] = ["red", "blue"];
const PATHS: [&str; 5] = ["$.a", "$.b", "$.c", "$.c[0]", "$.a.x"];

pub(crate) struct Files {
    pub(crate) tools: Vec<(String, Json)>,
    pub(crate) session: Json,
    pub(crate) principal: Json,
}

fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.u32(0..100) < percent
}

fn pick<'a, T: ?Sized>(rng: &mut Rng, items: &[&'a T]) -> &'a T {
    items[rng.usize(0..items.len())]
}

fn some_tools(rng: &mut Rng, percent: u32) -> Vec<&'static str> {
    TOOLS.into_iter().filter(|_| chance(rng, percent)).collect()
}

/// A number that doubles and decimals hold alike.
fn number(rng: &mut Rng) -> Json {
    let halves = rng.i32(-2..9);
    if halves % 2 == 0 {
        json!(halves / 2)
    } else {
        json!(f64::from(halves) / 2.0)
    }
}

fn value(rng: &mut Rng) -> Json {
    match rng.u32(0..8) {
        0..=3 => number(rng),
        4 => json!(pick(rng, &["x", "y", "xy", ""])),
        5 => json!(rng.bool()),
        6 => json!(null),
        _ => json!([number(rng), "x"]),
    }
}

pub(crate) fn arguments(rng: &mut Rng) -> Json {
    let mut members = serde_json::Map::new();
    if chance(rng, 85) {
        members.insert(
            "a".to_owned(),
            if chance(rng, 85) {
                number(rng)
            } else {
                value(rng)
            },
        );
    }
    if chance(rng, 80) {
        members.insert("b".to_owned(), json!(pick(rng, &["x", "y", "xy"])));
    }
    if chance(rng, 40) {
        members.insert("c".to_owned(), value(rng));
    }
    Json::Object(members)
}

pub(crate) fn output(rng: &mut Rng) -> Json {
    match rng.u32(0..10) {
        0 => json!("plain"),
        1 => json!([1]),
        _ => json!({"ok": chance(rng, 75), "n": number(rng), "b": pick(rng, &["x", "y"])}),
    }
}

/// An entry that holds more often than not.
fn invariant(rng: &mut Rng, paths: &[&str]) -> Json {
    let mut entry = json!({"path": pick(rng, paths)});
    if chance(rng, 50) {
        entry["when_present"] = json!(true);
    }
    match rng.u32(0..11) {
        0 => entry["exists"] = json!(chance(rng, 80)),
        1 => {
            entry["type"] = json!(pick(
                rng,
                &["string", "number", "integer", "array", "object", "null"]
            ))
        }
        2 => entry["equals"] = value(rng),
        3 => entry["one_of"] = json!([value(rng), number(rng), "x", "y"]),
        4 => entry["gte"] = json!(rng.i32(-1..2)),
        5 => entry["lte"] = json!(rng.i32(2..5)),
        6 => {
            entry["gte"] = json!(-1);
            entry["lte"] = json!(3);
            entry["type"] = json!("number");
        }
        7 => entry["length_gte"] = json!(rng.u32(0..2)),
        8 => entry["length_lte"] = json!(rng.u32(1..3)),
        9 => entry["contains"] = json!(pick(rng, &["x", "y"])),
        _ => entry["regex"] = json!(pick(rng, &["^x", "y$"])),
    }
    if entry.get("exists") == Some(&json!(false)) {
        // Nothing may stand beside it.
        entry = json!({"path": entry["path"], "exists": false});
    }
    entry
}

fn invariants(rng: &mut Rng, max: u32, paths: &[&str]) -> Json {
    let count = rng.u32(0..max);
    (0..count).map(|_| invariant(rng, paths)).collect()
}

fn policy(rng: &mut Rng) -> Json {
    let paths = ["$.role", "$.level", "$.gone"];
    let rules: Vec<Json> = (0..rng.u32(0..3))
        .map(|id| {
            let allows = chance(rng, 70);
            let mut when = invariants(rng, 3, &paths);
            // An allow rule does not compile with it: what is absent must not grant.
            for entry in when.as_array_mut().into_iter().flatten().filter(|_| allows) {
                entry.as_object_mut().unwrap().remove("when_present");
            }
            let effect = if allows { "allow" } else { "deny" };
            json!({"id": format!("r{id}"), "effect": effect, "when": when})
        })
        .collect();
    json!({"default": if chance(rng, 75) { "allow" } else { "deny" }, "rules": rules})
}

fn precondition(rng: &mut Rng) -> Json {
    let mut pre = json!({"requires_prior_tool": pick(rng, &TOOLS)});
    if chance(rng, 40) {
        pre["with_output"] = json!([match rng.u32(0..4) {
            0 => json!({"path": "$.ok", "equals": true}),
            1 => json!({"path": "$.n", "gte": 0, "lte": 3}),
            2 => json!({"path": "$.b", "exists": true}),
            _ => json!({"path": "$.zzz", "exists": false}),
        }]);
    }
    if chance(rng, 40) {
        pre["same_as_prior"] = json!([match rng.u32(0..3) {
            0 => json!({"argument": "$.b", "prior": "$.b"}),
            1 => json!({"argument": "$.a", "prior": "$.n", "prior_from": "output"}),
            _ => json!({"argument": "$.b", "prior": "$.b", "prior_from": "output"}),
        }]);
        if chance(rng, 20) {
            let pairs = pre["same_as_prior"].as_array_mut();
            pairs
                .unwrap()
                .push(json!({"argument": "$.a", "prior": "$.a", "prior_from": "arguments"}));
        }
    }
    pre
}

const PHASES: [&str; 4] = ["p0", "p1", "p2", "end"];

fn tool(rng: &mut Rng, name: &str, phases: bool) -> Json {
    let mut doc =
        json!({"tool": name, "side_effect": pick(rng, &["read", "write", "read", "admin"])});
    if chance(rng, 15) {
        doc["gate"] = json!(if chance(rng, 80) { "allow" } else { "block" });
    }
    if chance(rng, 30) {
        doc["commit_requirement"] = json!("none");
    }
    if phases && chance(rng, 60) {
        let mut transitions = json!({});
        if chance(rng, 40) {
            let valid: Vec<&str> = PHASES.into_iter().filter(|_| chance(rng, 75)).collect();
            transitions["valid_in_phases"] = json!(valid);
        }
        if chance(rng, 60) {
            transitions["advances_to"] = json!(pick(rng, &PHASES));
        }
        doc["transitions"] = transitions;
    }
    if chance(rng, 25) {
        doc["preconditions"] = (0..rng.u32(1..3)).map(|_| precondition(rng)).collect();
    }
    if chance(rng, 20) {
        doc["forbids_after"] = json!(some_tools(rng, 25));
    }
    if chance(rng, 40) {
        doc["argument_value_invariants"] = invariants(rng, 3, &PATHS);
    }
    if chance(rng, 20) {
        let mut entry = json!({"path": "$.b", "ref": pick(rng, &["s0", "s1"])});
        if chance(rng, 40) {
            entry["when_present"] = json!(true);
        }
        let mut entries = doc["argument_value_invariants"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        entries.push(entry);
        doc["argument_value_invariants"] = json!(entries);
    }
    if chance(rng, 10) {
        doc["assertions"] = json!({
            "input_invariants": invariants(rng, 2, &["$.model", "$.messages", "$.missing"]),
            "output_invariants": invariants(rng, 2, &["$.content", "$.tool_calls[0].name", "$.tool_calls"]),
        });
    }
    if chance(rng, 10) {
        doc["response_format_invariants"] = json!({
            "finish_reason": ["tool_calls"], "content": pick(rng, &["any", "empty", "required"])
        });
    }
    if chance(rng, 15) {
        doc["policy"] = policy(rng);
    }
    if chance(rng, 25) {
        doc["checkpoint"] = json!({"reason": "look", "when": invariants(rng, 2, &PATHS)});
    }
    if chance(rng, 15) {
        doc["adds_labels"] = json!([pick(rng, &LABELS)]);
    }
    doc
}

fn session(rng: &mut Rng, phases: bool) -> Json {
    let mut doc = json!({"schema_version": "1.0"});
    if phases {
        doc["phases"] = json!([
            {"name": "p0", "initial": true}, {"name": "p1"}, {"name": "p2"}, {"name": "end", "terminal": true}
        ]);
        let mut transitions = json!({"p0": ["p1"], "p1": ["p2"], "p2": ["end"]});
        for from in ["p0", "p1", "p2"] {
            for to in PHASES {
                let targets = transitions[from].as_array_mut().unwrap();
                if chance(rng, 25) && !targets.contains(&json!(to)) {
                    targets.push(json!(to));
                }
            }
        }
        doc["transitions"] = transitions;
    }
    let mut limits = json!({});
    if chance(rng, 20) {
        limits["max_steps"] = json!(rng.u32(5..25));
    }
    if chance(rng, 20) {
        limits["max_attempts"] = json!(rng.u32(8..30));
    }
    if chance(rng, 10) {
        limits["max_cost_per_session"] = json!(f64::from(rng.u32(1..4)) / 8.0);
    }
    if chance(rng, 25) {
        limits["max_tool_calls"] = json!(rng.u32(3..20));
    }
    if chance(rng, 25) {
        let mut per_tool = json!({});
        for name in some_tools(rng, 40) {
            per_tool[name] = json!(rng.u32(0..5));
        }
        limits["max_calls_per_tool"] = per_tool;
    }
    if chance(rng, 25) {
        limits["rate"] = json!({"max_calls": rng.u32(1..5), "per_seconds": rng.u32(5..60)});
        if chance(rng, 50) {
            limits["rate"]["tools"] = json!(some_tools(rng, 60));
        }
    }
    if chance(rng, 30) {
        limits["loop_detection"] = json!({"window": rng.u32(1..6), "threshold": rng.u32(2..4)});
    }
    if chance(rng, 15) {
        limits["circuit_breaker"] =
            json!({"consecutive_blocks": rng.u32(3..9), "consecutive_errors": 3});
    }
    doc["session_limits"] = limits;
    if chance(rng, 25) {
        doc["risk_defaults"] = if chance(rng, 60) {
            json!({"write": "allow", "admin": "allow"})
        } else {
            json!({})
        };
    }
    if chance(rng, 10) {
        doc["policy"] = policy(rng);
    }
    if chance(rng, 35) {
        doc["aggregates"] = (0..rng.u32(1..3))
            .map(|index| aggregate(rng, index))
            .collect();
    }
    if chance(rng, 20) {
        let from = pick(rng, &["arguments", "output"]);
        doc["envelopes"] = json!([{
            "name": "e0",
            "direction": pick(rng, &["at_most", "at_least"]),
            "establish": {
                "tool": pick(rng, &TOOLS), "from": from, "path": if from == "output" { "$.n" } else { "$.a" }
            },
            "constrain": [{"tool": pick(rng, &TOOLS), "path": "$.a"}],
        }]);
    }
    if chance(rng, 30) {
        let key = pick(rng, &["block_tools", "allow_only_tools"]);
        let percent = if key == "block_tools" { 30 } else { 80 };
        let mut gate = json!({"label": pick(rng, &LABELS)});
        gate[key] = json!(some_tools(rng, percent));
        doc["label_gates"] = json!([gate]);
    }
    doc
}

fn aggregate(rng: &mut Rng, index: u32) -> Json {
    let metric = pick(rng, &["sum", "count", "count_distinct", "max"]);
    let mut doc = json!({
        "name": format!("g{index}"), "metric": metric, "tools": some_tools(rng, 60), "lte": rng.u32(2..9)
    });
    if metric != "count" {
        doc["path"] = json!(if metric == "count_distinct" {
            "$.b"
        } else {
            "$.a"
        });
    }
    if metric == "sum" && chance(rng, 50) {
        doc["allow_negative"] = json!(true);
    }
    doc
}

pub(crate) fn files(rng: &mut Rng) -> Files {
    let phases = chance(rng, 60);
    let mut tools: Vec<(String, Json)> = TOOLS
        .iter()
        .map(|name| ((*name).to_owned(), tool(rng, name, phases)))
        .collect();
    // Slots must be bound by somebody.
    for (index, slot, from, path) in [(0, "s0", "arguments", "$.b"), (1, "s1", "output", "$.b")] {
        tools[index].1["binds"] = json!([{"slot": slot, "from": from, "path": path}]);
    }
    let principal = match rng.u32(0..4) {
        0 => json!(null),
        1 => json!({"role": "x"}),
        _ => json!({"role": pick(rng, &["x", "y"]), "level": number(rng)}),
    };
    Files {
        tools,
        session: session(rng, phases),
        principal,
    }
}
