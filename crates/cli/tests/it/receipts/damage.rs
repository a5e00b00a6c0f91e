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
    let sql = "UPDATE blobs SET bytes = ?2 WHERE digest = ?1";
    let count = ran
        .database()
        .execute(sql, (digest.as_bytes(), changed.as_bytes()));
    assert_eq!(count.unwrap(), 1);
    bare.into_bytes()
}

fn restore(ran: &Ran, bytes: &[u8]) {
    let digest = canon::sha256(bytes);
    let sql = "UPDATE blobs SET bytes = ?2 WHERE digest = ?1";
    assert_eq!(
        ran.database()
            .execute(sql, (digest.as_bytes(), bytes))
            .unwrap(),
        1
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
    let change = |sql: &str| assert_eq!(ran.database().execute(sql, []).unwrap(), 1, "{sql}");
    let first = &ran.receipts[0];
    let swap = |from: &str, to: &str| {
        change(&format!(
            "UPDATE documents SET body = CAST(replace(CAST(body AS TEXT), '{from}', '{to}') AS BLOB) WHERE id = '{first}'"
        ));
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
    change(&format!(
        "UPDATE documents SET id = 'receipt_gone' WHERE id = '{first}'"
    ));
    assert_eq!(reason(1, &[]), "previous_receipt_missing");
    change(&format!(
        "UPDATE documents SET id = '{first}' WHERE id = 'receipt_gone'"
    ));
    assert_eq!(ran.verify(&[&ran.receipts[1]]).0.code, 0);
    // The tree.
    change("UPDATE tree_hashes SET hash = zeroblob(32) WHERE level = 0 AND idx = 0");
    assert_eq!(reason(1, &[]), "merkle_mismatch");
    assert_eq!(reason(2, &[]), "merkle_mismatch");
    // The events that the receipt commits to.
    let task = &ran.tasks[0];
    change(&format!(
        "UPDATE events SET bytes = CAST(replace(CAST(bytes AS TEXT), 'offline', 'offlane') AS BLOB) \
         WHERE position = (SELECT max(position) FROM events WHERE task = (SELECT key FROM documents WHERE id = '{task}') \
         AND instr(CAST(bytes AS TEXT), 'offline') > 0)"
    ));
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
