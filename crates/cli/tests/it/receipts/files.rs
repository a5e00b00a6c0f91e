//! Receipts in files: verified with no server and no network.

use std::fs;

use serde_json::json;

use super::Ran;

#[test]
fn files_are_verified_without_any_server() {
    let mut ran = Ran::new(3);
    ran.save();
    ran.stop();
    fs::remove_dir_all(ran.world.data()).unwrap();
    let whole = [
        "r2.json",
        "--keys",
        "jwks.json",
        "--previous",
        "r1.json",
        "--proof",
        "proof.json",
    ];
    let (said, value) = ran.verify(&whole);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(value["valid"], true);
    assert_eq!(value["not_checked"], json!(["references"]));
    let names: Vec<&str> = value["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    for name in [
        "schema",
        "hash",
        "chain",
        "checkpoint",
        "inclusion",
        "signature/0",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert_eq!(value["signed_by"].as_array().unwrap().len(), 1);
    // Without keys nobody vouches for it, however whole it is.
    let (said, value) = ran.verify(&["r2.json"]);
    assert_eq!(said.code, 1);
    assert_eq!(value["reason"], "signature_not_checked");
    assert_eq!(
        (&value["valid"], &value["whole"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(value["signatures"], "unchecked");
    assert_eq!(
        value["not_checked"],
        json!(["chain", "inclusion", "references"])
    );
    let said = ran.world.run(&["receipt", "verify", "r2.json"]);
    assert_eq!(
        said.stdout.lines().last(),
        Some("whole, but nobody vouches for it: signature_not_checked")
    );
    assert_eq!(
        ran.verify(&["r0.json", "--first", "--keys", "jwks.json"])
            .0
            .code,
        0
    );

    let (said, value) = ran.verify(&["r0.json", "--unsigned"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(
        (&value["valid"], &value["whole"]),
        (&json!(false), &json!(true))
    );
    let said = ran
        .world
        .run(&["receipt", "verify", "r0.json", "--unsigned"]);
    assert!(
        said.stdout.contains("whole, and nobody vouches for it"),
        "{said:?}"
    );
    assert!(!said.stdout.contains("valid"), "{said:?}");

    let failing: [(&[&str], &str); 6] = [
        (&["r2.json", "--previous", "r0.json"], "chain_mismatch"),
        (&["r2.json", "--first"], "previous_receipt_missing"),
        (
            &["r1.json", "--keys", "jwks.json", "--proof", "proof.json"],
            "merkle_mismatch",
        ),
        (
            &[
                "r2.json",
                "--keys",
                "jwks.json",
                "--trust-anchor",
                "key_else",
            ],
            "untrusted_anchor",
        ),
        (&["r2.json", "--keys", "other.json"], "key_unknown"),
        (&["r2.json", "--keys", "past.json"], "key_not_valid_at_time"),
    ];
    fs::write(ran.path("other.json"), r#"{"keys":[]}"#).unwrap();
    let keys = fs::read_to_string(ran.path("jwks.json")).unwrap();
    fs::write(
        ran.path("past.json"),
        keys.replace("\"kid\"", "\"exp\":1,\"kid\""),
    )
    .unwrap();
    for (args, code) in failing {
        let (said, value) = ran.verify(args);
        assert_eq!(said.code, 1, "{args:?} {said:?}");
        assert_eq!(value["reason"], code, "{args:?}");
    }
    // A proof says what it is about: the path alone would do, the statement beside it must not lie.
    let proof = fs::read_to_string(ran.path("proof.json")).unwrap();
    let own = &ran.receipts[2];
    fs::write(
        ran.path("other-proof.json"),
        proof.replace(own, &ran.receipts[1]),
    )
    .unwrap();
    let args = [
        "r2.json",
        "--keys",
        "jwks.json",
        "--proof",
        "other-proof.json",
    ];
    let (said, value) = ran.verify(&args);
    assert_eq!(
        (said.code, &value["reason"]),
        (1, &json!("merkle_mismatch"))
    );
    let text = fs::read_to_string(ran.path("r2.json")).unwrap();
    for (from, to, code) in [
        ("SUCCEEDED", "FAILED", "receipt_hash_mismatch"),
        ("\"schema\"", "\"schemb\"", "schema_invalid"),
        ("ed25519", "ed25518", "algorithm_unsupported"),
        ("{", "{\"schema\":1,", "schema_invalid"),
    ] {
        fs::write(ran.path("bad.json"), text.replacen(from, to, 1)).unwrap();
        let (said, value) = ran.verify(&["bad.json", "--keys", "jwks.json"]);
        assert_eq!(
            (said.code, value["reason"].as_str()),
            (1, Some(code)),
            "{said:?}"
        );
    }
    let said = ran
        .world
        .run(&["receipt", "verify", "bad.json", "--keys", "jwks.json"]);
    assert!(
        said.stdout.contains("FAIL  schema  schema_invalid"),
        "{said:?}"
    );
    assert!(
        said.stdout.contains("expected") && said.stdout.contains("found"),
        "{said:?}"
    );
    let fault = ran
        .world
        .run(&["receipt", "verify", "r2.json", "--keys", "nothing.json"]);
    assert_eq!(fault.code, 2, "{fault:?}");
    let fault = ran
        .world
        .run(&["receipt", "verify", "gone.json", "--keys", "jwks.json"]);
    assert_eq!(fault.code, 2, "{fault:?}");
}

/// Content changed, hash recomputed, `signatures` emptied or removed: what anybody can make of a receipt.
#[test]
fn a_forged_receipt_without_a_signature_is_not_valid() {
    let mut ran = Ran::new(1);
    ran.save();
    ran.stop();
    let bytes = fs::read(ran.path("r0.json")).unwrap();
    for removed in [true, false] {
        let mut map = receipts::Receipt::read(&bytes).unwrap().as_map().clone();
        map["lifecycle"]["final_state"] = json!("FAILED");
        map["signatures"] = json!([]);
        if removed {
            map.remove("signatures");
        }
        let hash = receipts::Receipt::from_map(map.clone()).unwrap().hash();
        map["chain"]["receipt_hash"] = json!(hash.to_string());
        fs::write(
            ran.path("forged.json"),
            canon::jcs(&serde_json::Value::Object(map)),
        )
        .unwrap();
        let (said, value) = ran.verify(&["forged.json", "--keys", "jwks.json"]);
        assert_eq!(said.code, 1, "{said:?}");
        assert_eq!(value["reason"], "signature_missing");
        assert_eq!(value["signed_by"], json!([]));
        let said = ran
            .world
            .run(&["receipt", "verify", "forged.json", "--keys", "jwks.json"]);
        assert_eq!(
            said.stdout.lines().last(),
            Some("whole, but nobody vouches for it: signature_missing")
        );
        let (said, value) = ran.verify(&["forged.json"]);
        assert_eq!(
            (said.code, &value["reason"]),
            (1, &json!("unsigned")),
            "{said:?}"
        );
        assert_eq!(ran.verify(&["forged.json", "--unsigned"]).0.code, 0);
    }
    let said = ran.world.run(&[
        "receipt",
        "verify",
        "forged.json",
        "--unsigned",
        "--keys",
        "jwks.json",
    ]);
    assert_eq!(said.code, 2, "two questions at once: {said:?}");
}
