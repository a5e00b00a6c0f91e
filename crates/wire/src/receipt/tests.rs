//! Both forms of a receipt, and the way back.

use std::collections::BTreeMap;

use domain::{
    Content, Document, Extra, Links, Position, Receipt, SessionId, TaskId, View, WorkspaceId,
};

use super::*;

fn document(verified: Option<Position>) -> Document {
    Document {
        key: Position(1),
        id: "receipt_1".into(),
        version: 1,
        tip: Position(1),
        links: Links::default(),
        created_at: Timestamp::parse("2026-04-25T00:00:00.5Z").unwrap(),
        updated_at: Timestamp::parse("2026-04-25T00:00:05Z").unwrap(),
        state: State::Receipt(Receipt {
            task_id: TaskId::from_body("1"),
            session_id: SessionId::from_body("1"),
            workspace_id: WorkspaceId::local(),
            receipt_hash: canon::sha256(b"hash"),
            content: canon::sha256(b"content"),
            previous: None,
            previous_id: None,
            verified,
            imported: false,
        }),
    }
}

fn stored() -> Value {
    json!({
        "schema": FORMAT,
        "receipt_id": "receipt_1",
        "subject": {"object": "task", "id": "task_1"},
        "issuer": {"id": "harness", "kind": "harness"},
        "issued_at": "2026-04-25T00:00:00Z",
        "lifecycle": {"final_state": "SUCCEEDED"},
        "signatures": [{"algorithm": "ed25519", "key_id": "key_1", "signature": "base64:AA=="}],
        "metadata": {"team": "a"},
    })
}

fn superset(bytes: Option<&[u8]>) -> Value {
    let payload = json!({"valid": false, "reason": "chain_mismatch", "value": {"checks": []}});
    let payload = Content::Filled(payload.as_object().unwrap().clone());
    let payloads = BTreeMap::from([(Position(9), payload)]);
    let document = document(Some(Position(9)));
    let view = View {
        document,
        payloads,
        extra: Extra::None,
    };
    receipt(&view, bytes)
}

#[test]
fn ap_rcpt_06_the_superset_has_both_forms() {
    let shown = superset(Some(&canon::jcs(&stored())));
    for (name, value) in stored().as_object().unwrap() {
        assert_eq!(shown.get(name), Some(value), "{name}");
    }
    assert_eq!(shown["object"], "receipt");
    assert_eq!(shown["id"], shown["receipt_id"]);
    assert_eq!(shown["format"], FORMAT);
    assert_eq!(shown["issuer_id"], "harness");
    assert_eq!(shown["summary"], "task task_1: SUCCEEDED");
    assert_eq!(shown["wire"]["payload"], stored());
    assert_eq!(shown["wire"]["schema_version"], FORMAT);
    assert_eq!(shown["wire"]["signature"]["value"], "base64:AA==");
    assert_eq!(shown["verification"]["valid"], false);
    assert_eq!(shown["verification"]["reason"], "chain_mismatch");
    assert_eq!(shown["verification"]["checked_at"], shown["updated_at"]);
}

#[test]
fn a_receipt_without_readable_bytes_says_so() {
    for bytes in [None, Some(&b"{"[..]), Some(b"")] {
        let shown = superset(bytes);
        assert_eq!(shown["wire"].get("payload"), None);
        assert_eq!(shown["subject"]["id"], "task_1");
        assert!(shown["summary"].as_str().unwrap().contains("damaged"));
    }
}

#[test]
fn a_superset_gives_its_bare_receipt_back_unless_it_disagrees() {
    let whole = superset(Some(&canon::jcs(&stored())));
    let whole = whole.as_object().unwrap();
    assert_eq!(Value::Object(bare(whole.clone()).unwrap()), stored());
    let plain = stored().as_object().unwrap().clone();
    assert_eq!(bare(plain.clone()).unwrap(), plain);
    let other: [(&str, Value); 16] = [
        ("updated_at", json!("2027-04-25T00:00:00Z")),
        ("updated_at", json!("soon")),
        ("updated_at", Value::Null),
        ("id", json!("receipt_2")),
        ("format", json!("other")),
        ("issued_at", json!("2026-04-26T00:00:00Z")),
        ("signatures", json!([])),
        ("deltas", json!([])),
        ("unknown", json!(1)),
        ("object", json!("task")),
        ("issuer_id", json!("somebody")),
        ("summary", json!("task task_1: FAILED")),
        ("created_at", json!("2025-04-25T00:00:00Z")),
        ("created_at", json!("soon")),
        ("created_at", json!(7)),
        (
            "verification",
            json!({"receipt_id": "receipt_2", "valid": true}),
        ),
    ];
    for (name, value) in other {
        let mut changed = whole.clone();
        changed.insert(name.to_owned(), value);
        let error = format!("{:?}", bare(changed).unwrap_err());
        assert!(error.contains(name), "{name}: {error}");
    }
    for name in ["schema_version", "subject", "issued_at", "signature"] {
        let mut changed = whole.clone();
        changed["wire"][name] = json!("other");
        let error = format!("{:?}", bare(changed).unwrap_err());
        assert!(error.contains(&format!("wire.{name}")), "{name}: {error}");
    }
    let mut more = whole.clone();
    more["wire"]["zz"] = json!(1);
    assert!(bare(more).is_err(), "a member beside the payload");
    // Without a verdict nothing changed since it was stored.
    let mut fresh = whole.clone();
    fresh.insert("verification".to_owned(), Value::Null);
    assert!(bare(fresh.clone()).is_err());
    fresh.insert("updated_at".to_owned(), fresh["created_at"].clone());
    assert!(bare(fresh).is_ok());
    let mut without = whole.clone();
    without.remove("lifecycle");
    assert!(bare(without).is_err());
    let mut empty = whole.clone();
    empty.insert("wire".to_owned(), json!({}));
    assert!(bare(empty).is_err());
}
