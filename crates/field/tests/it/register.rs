//! Who takes part.

use field::{Administration, Code, Level, Operation, administer};
use serde_json::json;

use crate::common::{Lab, unit};

#[test]
fn ak_reg_01_id_and_role_are_needed() {
    let mut lab = Lab::at(Level::Starter);
    for payload in [
        json!({"id": "a"}),
        json!({"id": "a", "role": ""}),
        json!({"id": "a", "role": "  "}),
        json!({"role": "r"}),
        json!({"id": 1, "role": "r"}),
    ] {
        assert_eq!(
            lab.code(Operation::Register, "a", payload),
            Code::InvalidRequest
        );
    }
    for taken in ["system", "SYSTEM", "redacted", "Redacted"] {
        let payload = json!({"id": taken, "role": "r"});
        assert_eq!(
            lab.code(Operation::Register, taken, payload),
            Code::InvalidRequest
        );
    }
}

#[test]
fn ak_reg_02_an_id_in_use_is_taken() {
    let mut lab = Lab::with_agents(Level::Starter, &["a"]);
    assert_eq!(
        lab.code(Operation::Register, "a", json!({"id": "a", "role": "r"})),
        Code::AgentIdTaken
    );
}

#[test]
fn ak_reg_03_operations_that_are_missing_are_named() {
    let mut lab = Lab::at(Level::Core);
    let payload =
        json!({"id": "a", "role": "r", "required_operations": ["RECORD", "MERGE", "FLY"]});
    let refusal = lab.send(Operation::Register, "a", payload).unwrap_err();
    assert_eq!(refusal.code(), Code::UnsupportedOperation);
    assert!(refusal.message().ends_with("MERGE, FLY"), "{refusal}");
    let payload = json!({"id": "a", "role": "r", "required_operations": ["RECORD", "DETECT"]});
    lab.ok(Operation::Register, "a", payload);
}

#[test]
fn ak_reg_04_05_an_agent_starts_idle_and_learns_what_is_offered() {
    for level in Level::ALL {
        let mut lab = Lab::at(*level);
        let answer = lab.join("a", 6);
        assert_eq!(answer["status"], "registered");
        assert_eq!(answer["agent"]["status"], "idle");
        assert_eq!(answer["rejection_reason"], json!(null));
        let capabilities = &answer["field_capabilities"];
        assert_eq!(capabilities["conformance_level"], level.number());
        assert_eq!(capabilities["protocol_version"], "0.1.0");
        let listed: Vec<&str> = capabilities["supported_operations"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect();
        for operation in Operation::ALL {
            let result = lab.send(*operation, "a", json!({}));
            let unsupported =
                result.is_err_and(|refusal| refusal.code() == Code::UnsupportedOperation);
            assert_eq!(
                unsupported,
                !listed.contains(&operation.as_str()),
                "{operation} at {level:?}"
            );
        }
    }
}

#[test]
fn ak_reg_06_interests_are_kept_and_used() {
    let mut lab = Lab::with_agents(Level::Starter, &["writer"]);
    let payload = json!({"id": "a", "role": "cook", "interests": ["volcano geology"]});
    let answer = lab.ok(Operation::Register, "a", payload);
    assert_eq!(answer["agent"]["interests"], json!(["volcano geology"]));
    let wanted = lab.note("writer", "the geology of a volcano", &[]);
    for _ in 0..5 {
        lab.note("writer", "prices of grain", &[]);
    }
    let scope = json!({"scope": {"role": "cook", "max_units": 1}});
    let answer = lab.ok(Operation::Attune, "a", scope);
    assert_eq!(answer["record"][0]["memory_unit"]["id"], json!(wanted));
    assert!(
        answer["record"][0]["relevance_reason"]
            .as_str()
            .unwrap()
            .contains("interests")
    );
}

#[test]
fn ak_reg_07_an_id_that_was_freed_is_free_and_units_keep_their_source() {
    let mut lab = Lab::with_agents(Level::Core, &["a", "b"]);
    let unit = lab.note("a", "x", &[]);
    lab.ok(Operation::Deregister, "a", json!({"agent_id": "a"}));
    let payload = json!({"id": "a", "role": "poet"});
    assert_eq!(
        lab.ok(Operation::Register, "a", payload)["agent"]["role"],
        "poet"
    );
    let answer = lab.ok(
        Operation::Attune,
        "b",
        json!({"scope": {"role": "r", "max_units": 9}}),
    );
    assert_eq!(answer["record"][0]["memory_unit"]["id"], json!(unit));
    assert_eq!(
        answer["record"][0]["memory_unit"]["source"]["agent_role"],
        "analyst"
    );
}

#[test]
fn ak_der_01_02_who_left_sends_nothing_and_its_units_stay() {
    let mut lab = Lab::with_agents(Level::Core, &["a", "b"]);
    let id = lab.note("a", "x", &[]);
    lab.ok(Operation::Deregister, "a", json!({"agent_id": "a"}));
    assert_eq!(
        lab.code(Operation::Record, "a", unit("finding", "x", json!({}))),
        Code::AgentNotRegistered
    );
    assert_eq!(lab.seen_by("b"), [id]);
}

#[test]
fn ak_der_03_an_unknown_agent_is_not_found_and_no_error() {
    let mut lab = Lab::with_agents(Level::Core, &["a"]);
    let answer = lab.ok(Operation::Deregister, "a", json!({"agent_id": "nobody"}));
    assert_eq!(answer["status"], "not_found");
    assert_eq!(
        answer["cleanup"],
        json!({"units_orphaned": 0, "tasks_reassigned": 0})
    );
    assert_eq!(
        lab.code(Operation::Deregister, "a", json!({})),
        Code::InvalidRequest
    );
}

#[test]
fn ak_der_04_05_what_is_left_behind_is_counted() {
    let mut lab = Lab::with_agents(Level::Full, &["a"]);
    lab.join("boss", 10);
    for content in ["x", "y"] {
        lab.note("a", content, &[]);
    }
    lab.unit("a", "observation", "z", json!({}));
    let purge = json!({"strategy": "purge", "filter": {"types": ["observation"]}});
    lab.ok(Operation::Compact, "boss", purge);
    let task = json!({"action": "create", "task": {"title": "t", "assignee": "a"}});
    lab.ok(Operation::Coordinate, "boss", task);
    let answer = lab.ok(Operation::Deregister, "a", json!({"agent_id": "a"}));
    assert_eq!(
        answer["cleanup"],
        json!({"units_orphaned": 2, "tasks_reassigned": 1})
    );
}

#[test]
fn ak_der_06_only_authority_8_removes_another() {
    let mut lab = Lab::with_agents(Level::Full, &["senior", "a"]);
    lab.join("observer", 2);
    lab.join("auditor", 0);
    lab.join("boss", 8);
    for target in ["a", "nobody"] {
        assert_eq!(
            lab.code(Operation::Deregister, "senior", json!({"agent_id": target})),
            Code::Forbidden
        );
    }
    assert_eq!(
        lab.ok(Operation::Deregister, "boss", json!({"agent_id": "a"}))["status"],
        "ok"
    );
    for own in ["observer", "auditor", "senior"] {
        assert_eq!(
            lab.ok(Operation::Deregister, own, json!({"agent_id": own}))["status"],
            "ok"
        );
    }
}

#[test]
fn an_agent_that_failed_says_so() {
    let mut lab = Lab::with_agents(Level::Core, &["a"]);
    let fresh = lab.fresh();
    let act = Administration::Fail {
        agent_id: "a".into(),
        reason: "no heartbeat".into(),
    };
    let decision = administer(&lab.field, &act, &fresh).unwrap();
    lab.field.commit(&decision).unwrap();
    assert_eq!(lab.field.agents_view(None)["agents"][0]["status"], "failed");
    let unknown = Administration::Fail {
        agent_id: "b".into(),
        reason: "r".into(),
    };
    assert_eq!(
        administer(&lab.field, &unknown, &fresh).unwrap_err().code(),
        Code::AgentNotRegistered
    );
}
