//! Damage in the database of a running server, and the verdict on each.

use serde_json::Value;

use super::Ran;

/// Changes the stored bytes of a receipt behind the server's back.
fn rewrite(ran: &Ran, number: usize, from: &str, to: &str) -> Vec<u8> {
    let bare = ran
        .world
        .ok(&["receipt", "show", &ran.receipts[number], "--wire"]);
    let changed = bare.replacen(from, to, 1);
    assert_ne!(changed, bare, "{from}");
    let digest = canon::sha256(bare.as_bytes());
    assert!(
        ran.damage()
            .blob(&digest, |bytes| *bytes = changed.into_bytes())
    );
    bare.into_bytes()
}

fn restore(ran: &Ran, bytes: &[u8]) {
    let digest = canon::sha256(bytes);
    assert!(
        ran.damage()
            .blob(&digest, |stored| *stored = bytes.to_vec())
    );
}

/// AP-RCPT-07 and AP-RCPT-08: one damage per step of the verification, each in the database of a running server.
#[test]
fn each_step_of_the_verification_sees_its_own_damage() {
    let ran = Ran::new(3);
    let reason = |number: usize, args: &[&str]| {
        let args = [&[ran.receipts[number].as_str()][..], args].concat();
        let (said, value) = ran.verify(&args);
        assert_eq!(said.code, 1, "{said:?}");
        value["reason"].as_str().unwrap().to_owned()
    };
    for (from, to, code) in [
        ("\"SUCCEEDED\"", "\"SUCCEEDEE\"", "schema_invalid"),
        ("{", "{ ", "not_canonical"),
        ("\"SUCCEEDED\"", "\"FAILED\"", "receipt_hash_mismatch"),
        ("base64:", "base64:A", "signature_invalid"),
        ("\"key_id\":\"key_", "\"key_id\":\"kex_", "key_unknown"),
        ("\"ed25519\"", "\"ed448\"", "algorithm_unsupported"),
    ] {
        let bytes = rewrite(&ran, 1, from, to);
        assert_eq!(reason(1, &[]), code);
        restore(&ran, &bytes);
        assert_eq!(ran.verify(&[&ran.receipts[1]]).0.code, 0, "{code}");
    }
    assert_eq!(reason(1, &["--trust-anchor", "nobody"]), "untrusted_anchor");
    // The chain: the receipt before says something else, or is gone.
    let first = &ran.receipts[0];
    let swap = |from: &str, to: &str| {
        ran.damage()
            .document(first, |text| *text = text.replace(from, to));
    };
    swap(
        "\"receipt_hash\":\"sha256:",
        "\"receipt_hash\":\"sha256:0000000000000000000000000000000000000000000000000000000000000000\",\"was\":\"sha256:",
    );
    assert_eq!(reason(1, &[]), "chain_mismatch");
    swap(
        "\"receipt_hash\":\"sha256:0000000000000000000000000000000000000000000000000000000000000000\",\"was\":\"sha256:",
        "\"receipt_hash\":\"sha256:",
    );
    assert_eq!(ran.verify(&[&ran.receipts[1]]).0.code, 0);
    ran.damage().set(first, "id = CAST(x'ff' || id AS BLOB)");
    assert_eq!(reason(1, &[]), "previous_receipt_missing");
    ran.damage().execute(
        "UPDATE documents SET id = CAST(substr(id, 2) AS BLOB) WHERE substr(id, 1, 1) = x'ff'",
    );
    assert_eq!(ran.verify(&[&ran.receipts[1]]).0.code, 0);
    // The tree.
    ran.damage()
        .execute("UPDATE tree_hashes SET hash = zeroblob(32) WHERE level = 0 AND idx = 0");
    assert_eq!(reason(1, &[]), "merkle_mismatch");
    assert_eq!(reason(2, &[]), "merkle_mismatch");
    // The events that the receipt commits to.
    let task = ran.damage().key(&ran.tasks[0]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut events = ran.damage().all_events();
    events.retain(|event| event.links.task == Some(task) && text(&event.bytes).contains("offline"));
    ran.damage().event(events.pop().unwrap().position, |event| {
        let changed = text(&event.bytes).replace("offline", "offlane");
        event.bytes = changed.into_bytes().into();
    });
    let (_, value) = ran.verify(&[&ran.receipts[0]]);
    let failed: Vec<&Value> = value["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["ok"] == false)
        .collect();
    assert!(
        failed
            .iter()
            .any(|check| check["code"] == "material_mismatch"),
        "{value}"
    );
}
