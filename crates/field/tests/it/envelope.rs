//! Envelopes, errors and the order of checks.

use field::{Code, Config, Envelope, Level, Limits, Operation, Refusal};
use serde_json::{Value, json};

use crate::common::{Lab, key, unit};

fn read(value: &Value) -> Result<Envelope, Refusal> {
    Envelope::read(
        &serde_json::to_vec(value).unwrap(),
        &Limits::standard(),
        None,
    )
}

fn good() -> Value {
    Lab::at(Level::Starter).envelope(Operation::Record, "a", unit("finding", "x", json!({})))
}

#[test]
fn ak_env_01_a_request_carries_eight_members_and_no_other() {
    assert!(read(&good()).is_ok());
    let names: Vec<String> = good().as_object().unwrap().keys().cloned().collect();
    assert_eq!(names.len(), 8);
    for name in names {
        let mut envelope = good();
        envelope.as_object_mut().unwrap().remove(&name);
        assert_eq!(
            read(&envelope).unwrap_err().code(),
            Code::InvalidEnvelope,
            "{name}"
        );
    }
    let mut envelope = good();
    envelope["extra"] = json!(1);
    assert_eq!(read(&envelope).unwrap_err().code(), Code::InvalidEnvelope);
}

#[test]
fn ak_env_02_03_another_protocol_or_version_is_refused() {
    for (name, value) in [
        ("protocol", "other"),
        ("version", "0.2.0"),
        ("protocol", "Akashik"),
    ] {
        let mut envelope = good();
        envelope[name] = json!(value);
        let refusal = read(&envelope).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidEnvelope);
        assert_eq!(Code::InvalidEnvelope.http_status(), 400);
    }
}

#[test]
fn ak_env_04_a_session_is_a_member_even_when_there_is_none() {
    let mut envelope = good();
    envelope["session_id"] = json!(null);
    assert!(read(&envelope).is_ok());
    envelope.as_object_mut().unwrap().remove("session_id");
    assert!(read(&envelope).is_err());
}

#[test]
fn ak_env_05_epochs_are_integers_from_zero() {
    for epoch in [
        json!(-1),
        json!(1.5),
        json!("1"),
        json!(null),
        json!(1_u64 << 53),
        json!(1e300),
    ] {
        let mut envelope = good();
        envelope["epoch"] = epoch.clone();
        assert_eq!(
            read(&envelope).unwrap_err().code(),
            Code::InvalidEnvelope,
            "{epoch}"
        );
    }
    let mut lab = Lab::with_agents(Level::Starter, &["a"]);
    for _ in 0..3 {
        lab.note("a", "x", &[]);
    }
}

#[test]
fn ak_env_06_who_is_not_registered_registers_first() {
    let mut lab = Lab::at(Level::Full);
    for operation in Operation::ALL
        .iter()
        .filter(|operation| **operation != Operation::Register)
    {
        assert_eq!(
            lab.code(*operation, "a", json!({})),
            Code::AgentNotRegistered,
            "{operation}"
        );
    }
}

#[test]
fn ak_env_07_unknown_operations_are_malformed_and_others_not_offered() {
    let mut envelope = good();
    envelope["operation"] = json!("FOO");
    assert_eq!(read(&envelope).unwrap_err().code(), Code::InvalidEnvelope);
    let mut lab = Lab::with_agents(Level::Starter, &["a"]);
    assert_eq!(
        lab.code(Operation::Merge, "a", json!({})),
        Code::UnsupportedOperation
    );
}

#[test]
fn ak_env_08_a_malformed_envelope_can_be_mended() {
    let refusal = read(&json!([])).unwrap_err();
    assert_eq!(refusal.code().as_str(), "INVALID_ENVELOPE");
    assert!(refusal.code().recoverable());
    for bytes in [
        &b"{"[..],
        b"",
        b"\xff\xfe",
        b"{\"id\":1,\"id\":2}",
        b"\"\\ud800\"",
    ] {
        let refusal =
            Envelope::read(bytes, &Limits::standard(), Some(Operation::Record)).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidEnvelope);
        let shown = refusal.to_json();
        assert_eq!(
            shown["operation"], "RECORD",
            "the operation of the path when the body names none"
        );
        assert_eq!(shown["status"], "rejected");
    }
}

#[test]
fn ak_env_09_the_same_message_is_answered_twice_and_done_once() {
    let mut lab = Lab::with_agents(Level::Core, &["a", "b"]);
    let mut envelope = lab.envelope(Operation::Record, "a", unit("finding", "x", json!({})));
    envelope["id"] = json!("fixed");
    let first = lab.send_envelope(&envelope).unwrap();
    let head = lab.field.head();
    // Other bytes, the same value: members in another order.
    let mut turned = serde_json::Map::new();
    for (name, value) in envelope.as_object().unwrap().iter().rev() {
        turned.insert(name.clone(), value.clone());
    }
    assert_eq!(lab.send_envelope(&Value::Object(turned)).unwrap(), first);
    assert_eq!(lab.field.head(), head, "nothing was written");
    let mut other = envelope.clone();
    other["payload"]["content"] = json!("y");
    assert_eq!(
        lab.send_envelope(&other).unwrap_err().code(),
        Code::InvalidEnvelope
    );
    // The id belongs to its sender.
    other["agent_id"] = json!("b");
    assert!(lab.send_envelope(&other).is_ok());
    // A restart forgets nothing: the fold knows the message.
    lab.field = lab.refolded();
    assert_eq!(lab.send_envelope(&envelope).unwrap(), first);
}

#[test]
fn ak_env_09_a_refused_message_may_be_sent_again_under_its_id() {
    let mut lab = Lab::at(Level::Core);
    let mut envelope = lab.envelope(Operation::Record, "a", unit("finding", "x", json!({})));
    envelope["id"] = json!("fixed");
    assert_eq!(
        lab.send_envelope(&envelope).unwrap_err().code(),
        Code::AgentNotRegistered
    );
    lab.join("a", 4);
    assert_eq!(lab.send_envelope(&envelope).unwrap()["status"], "accepted");
}

#[test]
fn ak_env_10_an_agent_registers_itself() {
    let mut lab = Lab::at(Level::Starter);
    let payload = json!({"id": "b", "role": "r"});
    assert_eq!(
        lab.code(Operation::Register, "a", payload),
        Code::InvalidEnvelope
    );
}

#[test]
fn ak_env_11_the_first_check_that_fails_wins() {
    let mut lab = Lab::at(Level::Full);
    lab.join("observer", 2);
    lab.join("standard", 4);
    let bad = json!({"mode": "committed", "type": "nonsense"});
    // Shape of the envelope before the credential of a stranger.
    let mut envelope = lab.envelope(Operation::Record, "", bad.clone());
    assert_eq!(
        lab.send_envelope(&envelope).unwrap_err().code(),
        Code::InvalidEnvelope
    );
    // Credential before everything that looks at the field.
    envelope["agent_id"] = json!("nobody");
    let caller = lab.caller.take();
    assert_eq!(
        lab.send_envelope(&envelope).unwrap_err().code(),
        Code::Unauthenticated
    );
    lab.caller = caller;
    // Sender before authority, authority before payload, payload before existence, existence before state.
    assert_eq!(
        lab.code(Operation::Record, "nobody", bad.clone()),
        Code::AgentNotRegistered
    );
    assert_eq!(
        lab.code(Operation::Record, "observer", bad.clone()),
        Code::Forbidden
    );
    assert_eq!(
        lab.code(Operation::Record, "standard", bad),
        Code::InvalidType
    );
    let resolution = json!({"conflict_id": "none", "strategy": "vote", "resolution": {}});
    assert_eq!(
        lab.code(Operation::Merge, "standard", resolution),
        Code::InvalidRequest
    );
    let resolution = json!({"conflict_id": "none", "strategy": "vote", "resolution": {"rationale": "r", "winner_id": "w"}});
    assert_eq!(
        lab.code(Operation::Merge, "standard", resolution),
        Code::ConflictNotFound
    );
    // An operation that is not offered before a sender that is not known.
    let mut starter = Lab::at(Level::Starter);
    assert_eq!(
        starter.code(Operation::Merge, "nobody", json!({})),
        Code::UnsupportedOperation
    );
}

#[test]
fn ak_err_01_02_03_a_refusal_has_five_members_and_rejections_two_more() {
    let mut lab = Lab::with_agents(Level::Starter, &["a"]);
    let refusal = lab
        .send(Operation::Attune, "a", json!({}))
        .unwrap_err()
        .to_json();
    let names: Vec<&String> = refusal.as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        [
            "code",
            "message",
            "operation",
            "recoverable",
            "suggested_action"
        ]
    );
    assert_eq!(refusal["operation"], "ATTUNE");
    for (operation, payload) in [
        (Operation::Record, json!({})),
        (Operation::Register, json!({"id": "a", "role": ""})),
    ] {
        let refusal = lab.send(operation, "a", payload).unwrap_err().to_json();
        assert_eq!(refusal["status"], "rejected");
        assert_eq!(refusal["rejection_reason"], refusal["message"]);
        assert_eq!(refusal["operation"], operation.as_str());
    }
}

#[test]
fn ak_err_01_the_table_of_codes_is_the_published_one() {
    let rows: Vec<String> = Code::ALL
        .iter()
        .map(|code| {
            let action = code.suggested_action().unwrap_or("null");
            format!(
                "{} {} {} {action}",
                code.as_str(),
                code.recoverable(),
                code.http_status()
            )
        })
        .collect();
    assert_eq!(
        rows.join("\n"),
        "\
MISSING_INTENT true 422 resubmit with intent
MISSING_CONFIDENCE true 422 resubmit with confidence
INVALID_CONFIDENCE true 422 correct and resubmit
INVALID_TYPE true 422 use a supported type
AGENT_NOT_REGISTERED true 403 call REGISTER first
AGENT_ID_TAKEN true 409 use another id
CONFLICT_NOT_FOUND false 404 null
UNIT_NOT_FOUND false 404 null
INVALID_TRANSITION true 409 check current state
UNSUPPORTED_OPERATION false 501 null
ENRICHMENT_FAILED true 200 none needed
DETECTION_TIMEOUT true 200 none needed
MERGE_FAILED true 409 try another strategy
REPLAY_TOO_LARGE true 413 use detailed or summary
STORAGE_FULL false 507 run COMPACT or expand storage
EPOCH_OVERFLOW false 500 restart with checkpoint
INTERNAL_ERROR false 500 null
INVALID_ENVELOPE true 400 fix the envelope
INVALID_REQUEST true 400 fix the payload
UNAUTHENTICATED true 401 authenticate
FORBIDDEN false 403 null"
    );
}

#[test]
fn ak_err_04_messages_name_the_member_and_never_its_content() {
    let mut lab = Lab::with_agents(Level::Full, &["a"]);
    let secret = "hunter2-the-secret";
    let payloads = [
        (Operation::Record, json!({"mode": secret})),
        (Operation::Record, json!({"mode": "draft", "type": secret})),
        (
            Operation::Record,
            unit("finding", "x", json!({"confidence": {"score": secret}})),
        ),
        (
            Operation::Record,
            unit(
                "finding",
                "x",
                json!({"relations": [{"type": secret, "target_id": "t"}]}),
            ),
        ),
        (
            Operation::Record,
            unit(
                "finding",
                "x",
                json!({"relations": [{"type": "contradicts", "target_id": secret}]}),
            ),
        ),
        (
            Operation::Attune,
            json!({"scope": {"role": "r", "max_units": secret}}),
        ),
        (
            Operation::Replay,
            json!({"target_type": "task", "target_id": secret, "depth": "summary"}),
        ),
        (
            Operation::Merge,
            json!({"conflict_id": secret, "strategy": "authority", "resolution": {"rationale": "r", "winner_id": secret}}),
        ),
        (Operation::Compact, json!({"strategy": secret})),
    ];
    for (operation, payload) in payloads {
        let refusal = lab.send(operation, "a", payload.clone()).unwrap_err();
        assert!(!refusal.message().contains(secret), "{payload}: {refusal}");
        assert!(
            refusal.message().contains('`') || refusal.message().contains("unit"),
            "{refusal}"
        );
    }
}

#[test]
fn ids_and_lines_have_a_length() {
    let mut lab = Lab::with_agents(Level::Core, &["a"]);
    let long = "x".repeat(257);
    for name in ["id", "agent_id", "session_id"] {
        let mut envelope = good();
        envelope[name] = json!(long);
        assert_eq!(
            read(&envelope).unwrap_err().code(),
            Code::InvalidEnvelope,
            "{name}"
        );
        envelope[name] = json!("");
        assert_eq!(
            read(&envelope).unwrap_err().code(),
            Code::InvalidEnvelope,
            "{name}"
        );
    }
    for intent in [
        json!({"purpose": "p", "task_id": long}),
        json!({"purpose": "x".repeat(4_097)}),
    ] {
        let payload = unit("finding", "x", json!({"intent": intent}));
        assert_eq!(
            lab.code(Operation::Record, "a", payload),
            Code::InvalidRequest
        );
    }
    let payload = unit(
        "finding",
        "x",
        json!({"relations": [{"type": "informs", "target_id": long}]}),
    );
    assert_eq!(
        lab.code(Operation::Record, "a", payload),
        Code::InvalidRequest
    );
}

#[test]
fn requests_have_a_size() {
    let limits = Limits {
        request_bytes_max: 100,
        ..Limits::standard()
    };
    let bytes = serde_json::to_vec(&good()).unwrap();
    let refusal = Envelope::read(&bytes, &limits, Some(Operation::Record)).unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidRequest);
}

#[test]
fn ak_http_02_the_operation_of_the_path_is_the_operation_of_the_envelope() {
    let bytes = serde_json::to_vec(&good()).unwrap();
    let refusal = Envelope::read(&bytes, &Limits::standard(), Some(Operation::Attune)).unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidEnvelope);
}

#[test]
fn ak_sec_01_02_tokens_are_needed_from_level_2() {
    for level in Level::ALL {
        let mut lab = Lab::with(Config::at(*level));
        lab.caller = None;
        let answer = lab.send(Operation::Register, "a", json!({"id": "a", "role": "r"}));
        if *level >= Level::Standard {
            assert_eq!(answer.unwrap_err().code(), Code::Unauthenticated);
        } else {
            assert!(answer.is_ok());
        }
    }
}

#[test]
fn ak_sec_02_a_key_acts_for_its_own_agents() {
    let mut lab = Lab::at(Level::Standard);
    let mut mine = key("mine", 6);
    mine.agents.clear();
    let mut theirs = key("theirs", 6);
    theirs.agents.clear();
    lab.caller = Some(mine.clone());
    lab.join("a", 4);
    lab.caller = Some(theirs);
    assert_eq!(lab.code(Operation::Attune, "a", json!({})), Code::Forbidden);
    assert_eq!(
        lab.code(Operation::Register, "a", json!({"id": "a", "role": "r"})),
        Code::Forbidden
    );
    let mut patterned = key("patterned", 6);
    patterned.agents = vec!["team-*".into(), "b".into()];
    lab.caller = Some(patterned);
    lab.join("team-1", 4);
    lab.join("b", 4);
    assert_eq!(
        lab.code(Operation::Register, "bb", json!({"id": "bb", "role": "r"})),
        Code::Forbidden
    );
    // An id stays with the key that registered it first, also after it left.
    lab.caller = Some(mine);
    lab.ok(Operation::Deregister, "a", json!({"agent_id": "a"}));
    lab.join("a", 4);
}
