//! Verification: one tampering test per step, each seeing its own code.

use canon::{Digest, Map, Value, jcs, sha256};
use receipts::{
    Head, KeySet, Material, MaterialContent, MaterialKind, PublicKey, Receipt, Signer,
    build_replay, build_task, cbor, merkle, stream, tiles,
    verify::{
        Batch, Code, Evidence, Form, Inclusion, Keys, Predecessor, References, Report, Signatures,
        references,
    },
};
use serde_json::json;

use crate::common::{
    REPLAY_FIXTURE, TASK_FIXTURE, everything, key_set, published, repeated, replay_facts, reseal,
    signer, task_facts,
};

fn evidence(keys: &KeySet) -> Evidence<'_> {
    Evidence {
        form: Form::AnyJson,
        predecessor: Predecessor::NotAsked,
        batches: &[],
        inclusion: None,
        keys: Keys::Given(keys),
        at_time: None,
        trust_anchor: None,
        references: None,
    }
}

fn receipt() -> Receipt {
    build_task(&task_facts()).unwrap().signed(&signer())
}

fn verify(bytes: &[u8]) -> Report {
    receipts::verify(bytes, &evidence(&key_set()))
}

/// The failed checks as name and code.
/// The failed checks by name and code; each says what was expected and what was found.
fn failures(report: &Report) -> Vec<(&str, &str)> {
    let failed = report.checks.iter().filter(|check| !check.ok);
    failed
        .map(|check| {
            assert!(
                check.expected.is_some() && check.found.is_some(),
                "{check:?}"
            );
            assert_ne!(check.expected, check.found);
            (check.name.as_str(), check.code.unwrap().as_str())
        })
        .collect()
}

/// Changes a signed receipt and makes its hash fit, but not its signature.
fn changed(change: impl FnOnce(&mut Map<String, Value>)) -> Vec<u8> {
    let mut map = receipt().as_map().clone();
    change(&mut map);
    jcs(&Value::Object(map))
}

#[test]
fn ap_rcpt_08_an_untouched_receipt_is_valid_and_says_what_was_not_asked() {
    let report = verify(&receipt().bytes());
    assert!(report.is_valid());
    assert_eq!(report.reason(), None);
    assert_eq!(report.signatures, Signatures::Valid);
    assert_eq!(report.receipt_id.as_deref(), Some("receipt_7"));
    let names: Vec<&str> = report
        .checks
        .iter()
        .map(|check| check.name.as_str())
        .collect();
    assert_eq!(names, ["schema", "hash", "signature/0"]);
    assert_eq!(
        report.skipped,
        ["chain", "inclusion", "anchor", "references"]
    );
}

#[test]
fn a_forged_receipt_without_signatures_is_whole_and_not_valid() {
    let mut map = receipt().as_map().clone();
    map["lifecycle"]["final_state"] = json!("FAILED");
    map.remove("signatures");
    reseal(&mut map);
    let forged = jcs(&Value::Object(map));
    let keys = key_set();
    let with = |asked| {
        let mut evidence = evidence(&keys);
        evidence.keys = asked;
        receipts::verify(&forged, &evidence)
    };
    let report = with(Keys::Given(&keys));
    assert_eq!(failures(&report), [("signatures", "signature_missing")]);
    assert!(report.is_whole() && !report.is_valid());
    assert_eq!(report.signatures, Signatures::None);
    assert!(report.signed_by.is_empty());
    assert_eq!(failures(&with(Keys::Unknown)), [("signatures", "unsigned")]);
    // Integrity alone: nothing fails, and still nobody vouches for it.
    let report = with(Keys::NotAsked);
    assert!(failures(&report).is_empty() && report.skipped.contains(&"signatures"));
    assert!(report.is_whole() && !report.is_valid());
}

#[test]
fn a_signature_that_was_not_checked_vouches_for_nothing() {
    let bytes = receipt().bytes();
    let keys = key_set();
    for (asked, reason) in [
        (Keys::Unknown, Some(Code::SignatureNotChecked)),
        (Keys::NotAsked, None),
    ] {
        let mut evidence = evidence(&keys);
        evidence.keys = asked;
        let report = receipts::verify(&bytes, &evidence);
        assert_eq!(report.reason(), reason);
        assert!(report.is_whole() && !report.is_valid());
        assert_eq!(report.signatures, Signatures::Unchecked);
    }
    let report = verify(&bytes);
    assert!(report.is_valid());
    assert_eq!(report.signed_by, [signer().key_id()]);
}

#[test]
fn the_published_receipts_fail_for_their_placeholders() {
    for path in [TASK_FIXTURE, REPLAY_FIXTURE] {
        let Some(bytes) = published(path) else {
            return;
        };
        let report = verify(&bytes);
        assert_eq!(report.reason(), Some(Code::ReceiptHashMismatch));
        assert_eq!(
            failures(&report)[1],
            ("merkle_root", "merkle_batch_unknown")
        );
    }
}

#[test]
fn ap_rcpt_08_step_1_shape() {
    for bytes in [
        changed(|map| {
            map.insert("extra".to_owned(), json!(1));
        }),
        changed(|map| {
            map.remove("trust");
        }),
        String::from_utf8(receipt().bytes())
            .unwrap()
            .replacen('{', r#"{"schema":"receipt-2026-04-25","#, 1)
            .into_bytes(),
        changed(|map| map["metadata"] = json!({"big": 9_007_199_254_740_993_u64})),
        b"\xff".to_vec(),
        b"[]".to_vec(),
    ] {
        let report = verify(&bytes);
        assert_eq!(failures(&report), [("schema", "schema_invalid")]);
        assert_eq!(report.checks.len(), 1);
        assert!(report.checks[0].found.is_some());
    }
    let report = verify(&changed(|map| {
        map["chain"].as_object_mut().unwrap().remove("receipt_hash");
    }));
    assert_eq!(report.checks[0].found.as_deref(), Some("/chain"));
}

#[test]
fn ap_rcpt_08_step_2_hash() {
    let bytes = changed(|map| map["chain"]["receipt_hash"] = json!(repeated('2').to_string()));
    let report = verify(&bytes);
    assert_eq!(failures(&report), [("hash", "receipt_hash_mismatch")]);
    let check = &report.checks[1];
    assert_eq!(check.expected, Some(receipt().hash().to_string()));
    assert_eq!(check.found, Some(repeated('2').to_string()));
    // Changed content also loses its signature, which was made for other content.
    let report = verify(&changed(|map| map["trust"]["end_tier"] = json!("act_auto")));
    assert_eq!(
        failures(&report),
        [
            ("hash", "receipt_hash_mismatch"),
            ("signature/0", "signature_invalid")
        ]
    );
    assert_eq!(report.reason(), Some(Code::ReceiptHashMismatch));
}

#[test]
fn stored_bytes_must_be_canonical() {
    let pretty = serde_json::to_vec_pretty(receipt().as_map()).unwrap();
    assert!(verify(&pretty).is_valid());
    let keys = key_set();
    let stored = Evidence {
        form: Form::Canonical,
        ..evidence(&keys)
    };
    assert!(receipts::verify(&receipt().bytes(), &stored).is_valid());
    let report = receipts::verify(&pretty, &stored);
    assert_eq!(failures(&report), [("canonical", "not_canonical")]);
}

#[test]
fn ap_rcpt_08_step_3_chain() {
    let first = receipt();
    let mut facts = task_facts();
    facts.previous_receipt_hash = Some(first.hash());
    let second = build_task(&facts).unwrap().signed(&signer());
    let keys = key_set();
    let check = |receipt: &Receipt, predecessor| {
        let report = receipts::verify(
            &receipt.bytes(),
            &Evidence {
                predecessor,
                ..evidence(&keys)
            },
        );
        failures(&report)
            .first()
            .map(|(name, code)| format!("{name} {code}"))
    };
    let known = Predecessor::Hash(first.hash());
    assert_eq!(check(&first, Predecessor::Absent), None);
    assert_eq!(check(&second, known), None);
    let missing = Some("chain previous_receipt_missing".to_owned());
    assert_eq!(check(&second, Predecessor::Absent), missing);
    let mismatch = Some("chain chain_mismatch".to_owned());
    assert_eq!(check(&second, Predecessor::Hash(second.hash())), mismatch);
    // Null where a predecessor exists.
    assert_eq!(check(&first, known), mismatch);
    // A replay hangs off its source in the same way.
    let mut facts = replay_facts();
    facts.source_receipt_hash = Some(first.hash());
    let replay = build_replay(&facts).unwrap().signed(&signer());
    assert!(replay.is_replay());
    assert_eq!(check(&replay, known), None);
}

/// A log of three receipts: ours and two others.
fn log(own: &Receipt, place: usize) -> (Batch, Vec<Digest>) {
    let mut hashes = vec![repeated('1'), repeated('2')];
    hashes.insert(place, own.hash());
    let leaves: Vec<Digest> = hashes.iter().map(merkle::leaf).collect();
    let mut frontier = merkle::Frontier::EMPTY;
    for leaf in &leaves {
        frontier = merkle::append(frontier, *leaf).0;
    }
    (
        Batch {
            size: 3,
            root: frontier.root(),
        },
        leaves,
    )
}

#[test]
fn ap_rcpt_08_step_4_merkle() {
    let own = receipt();
    let keys = key_set();
    let (batch, leaves) = log(&own, 1);
    let path = tiles::inclusion(|_| Some(tiles::tile_bytes(&leaves)), 1, 3).unwrap();
    let good = Inclusion {
        leaf_index: 1,
        batch,
        path,
    };
    let check = |bytes: &[u8], batches: &[Batch], inclusion: Option<&Inclusion>| {
        let report = receipts::verify(
            bytes,
            &Evidence {
                batches,
                inclusion,
                ..evidence(&keys)
            },
        );
        let failed = failures(&report).into_iter();
        failed
            .map(|(name, code)| format!("{name} {code}"))
            .collect::<Vec<_>>()
    };
    let bytes = own.bytes();
    assert!(check(&bytes, &[batch], Some(&good)).is_empty());
    assert_eq!(
        check(&bytes, &[], Some(&good)),
        ["inclusion merkle_batch_unknown"]
    );
    let elsewhere = Inclusion {
        leaf_index: 2,
        ..good.clone()
    };
    assert_eq!(
        check(&bytes, &[batch], Some(&elsewhere)),
        ["inclusion merkle_mismatch"]
    );
    let short = Inclusion {
        path: good.path[..1].to_vec(),
        ..good.clone()
    };
    assert_eq!(
        check(&bytes, &[batch], Some(&short)),
        ["inclusion merkle_mismatch"]
    );

    // The profile that embeds the root of an earlier batch.
    let mut facts = task_facts();
    let earlier = Batch {
        size: 1,
        root: merkle::leaf(&repeated('1')),
    };
    facts.merkle_root = Some(earlier.root);
    let embedding = build_task(&facts).unwrap().signed(&signer());
    let bytes = embedding.bytes();
    assert!(check(&bytes, &[earlier], None).is_empty());
    assert_eq!(
        check(&bytes, &[], None),
        ["merkle_root merkle_batch_unknown"]
    );
    assert_eq!(
        check(&bytes, &[batch], None),
        ["merkle_root merkle_batch_unknown"]
    );
    // A root that covers the receipt itself cannot have been known at issue.
    let (batch, leaves) = log(&embedding, 0);
    let path = tiles::inclusion(|_| Some(tiles::tile_bytes(&leaves)), 0, 3).unwrap();
    let inclusion = Inclusion {
        leaf_index: 0,
        batch,
        path,
    };
    assert_eq!(
        check(&bytes, &[earlier, batch], Some(&inclusion)),
        ["merkle_root merkle_mismatch"]
    );
}

#[test]
fn ap_rcpt_08_step_5_signatures() {
    let with = |name: &str, value: Value| {
        let bytes = changed(|map| map["signatures"][0][name] = value);
        let report = verify(&bytes);
        assert_eq!(report.signatures, Signatures::Invalid);
        assert_eq!(failures(&report).len(), 1);
        report.reason().unwrap()
    };
    let stated = receipt().signatures().next().unwrap().signature.to_owned();
    let other = Signer::new("key_1", &[3; 32]).sign(&receipt().hash());
    assert_eq!(with("signature", json!(other)), Code::SignatureInvalid);
    // Strict base64: prefix, padding, trailing bits, white space.
    let mut trailing = stated.strip_suffix("==").unwrap().to_owned();
    let last = trailing.pop().unwrap();
    trailing.push(char::from(last as u8 + 1));
    trailing.push_str("==");
    for form in [
        stated.replace("base64:", ""),
        stated.replace("==", ""),
        trailing,
        format!("{stated}\n"),
        stated.replace('+', "-").replace('/', "_"),
    ] {
        assert_ne!(form, stated);
        assert_eq!(with("signature", json!(form)), Code::SignatureInvalid);
    }
    assert_eq!(with("key_id", json!("key_other")), Code::KeyUnknown);
    assert_eq!(
        with("algorithm", json!("ES256")),
        Code::AlgorithmUnsupported
    );
    assert_eq!(
        with("algorithm", json!("Ed25519")),
        Code::AlgorithmUnsupported
    );
    // One bad signature among good ones is enough.
    let bytes = receipt()
        .signed(&Signer::new("key_witness", &[4; 32]))
        .bytes();
    assert_eq!(failures(&verify(&bytes)), [("signature/1", "key_unknown")]);
}

#[test]
fn a_second_form_of_a_signature_is_refused() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    // Adding the order of the group to the scalar gives a signature that lax verifiers accept.
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde,
        0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let stated = receipt().signatures().next().unwrap().signature.to_owned();
    let mut bytes = STANDARD
        .decode(stated.strip_prefix("base64:").unwrap())
        .unwrap();
    let mut carry = 0;
    for (byte, order) in bytes[32..].iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(order) + carry;
        *byte = (sum & 0xff) as u8;
        carry = sum >> 8;
    }
    let form = format!("base64:{}", STANDARD.encode(bytes));
    let report = verify(&changed(|map| {
        map["signatures"][0]["signature"] = json!(form)
    }));
    assert_eq!(report.reason(), Some(Code::SignatureInvalid));
}

#[test]
fn a_weak_key_signs_nothing() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    // Under the neutral point as key, this signature satisfies the equation for every message.
    let mut neutral = [0; 32];
    neutral[0] = 1;
    let mut signature = [0; 64];
    signature[0] = 1;
    let keys = KeySet::new(vec![PublicKey {
        key_id: "key_1".to_owned(),
        bytes: neutral,
        not_before: None,
        expires: None,
        retired: None,
    }])
    .unwrap();
    let form = format!("base64:{}", STANDARD.encode(signature));
    let bytes = changed(|map| map["signatures"][0]["signature"] = json!(form));
    let report = receipts::verify(&bytes, &evidence(&keys));
    assert_eq!(failures(&report), [("signature/0", "signature_invalid")]);
}

#[test]
fn ap_rcpt_08_keys_count_only_in_their_time() {
    const ISSUED: i64 = 1_777_144_653;
    let bytes = receipt().bytes();
    let check = |not_before, expires, at_time: Option<&str>| {
        let mut key = key_set().keys()[0].clone();
        (key.not_before, key.expires) = (not_before, expires);
        let keys = KeySet::new(vec![key]).unwrap();
        let report = receipts::verify(
            &bytes,
            &Evidence {
                at_time,
                ..evidence(&keys)
            },
        );
        report.reason()
    };
    let invalid = Some(Code::KeyNotValidAtTime);
    assert_eq!(check(Some(ISSUED), Some(ISSUED + 1), None), None);
    assert_eq!(check(Some(ISSUED + 1), None, None), invalid);
    assert_eq!(check(None, Some(ISSUED), None), invalid);
    // The key was rotated out since: the time of issue counts, unless another is asked for.
    assert_eq!(
        check(None, Some(ISSUED + 60), Some("2026-04-25T19:18:32Z")),
        None
    );
    assert_eq!(
        check(None, Some(ISSUED + 60), Some("2026-04-25T19:18:33Z")),
        invalid
    );
    assert_eq!(check(None, None, Some("some day")), invalid);
}

#[test]
fn ap_rcpt_08_a_trust_anchor_must_have_signed() {
    let keys = key_set();
    let check = |bytes: &[u8], anchor| {
        let trust_anchor = Some(anchor);
        receipts::verify(
            bytes,
            &Evidence {
                trust_anchor,
                ..evidence(&keys)
            },
        )
        .reason()
    };
    let signed = receipt().bytes();
    let thumbprint = keys.keys()[0].thumbprint();
    // The thumbprint of this key is given in RFC 8037, appendix A.3.
    assert_eq!(thumbprint, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    assert_eq!(check(&signed, "key_1"), None);
    assert_eq!(check(&signed, &thumbprint), None);
    assert_eq!(check(&signed, "key_other"), Some(Code::UntrustedAnchor));
    let unsigned = build_task(&task_facts()).unwrap().bytes();
    assert_eq!(check(&unsigned, "key_1"), Some(Code::UntrustedAnchor));
    // A signature that only names the anchor does not count.
    let forged = changed(|map| {
        map["signatures"][0]["signature"] =
            json!(Signer::new("key_1", &[3; 32]).sign(&receipt().hash()));
    });
    let trust_anchor = Some("key_1");
    let report = receipts::verify(
        &forged,
        &Evidence {
            trust_anchor,
            ..evidence(&keys)
        },
    );
    assert_eq!(
        failures(&report),
        [
            ("signature/0", "signature_invalid"),
            ("anchor", "untrusted_anchor")
        ]
    );
}

#[test]
fn ap_rcpt_08_step_6_references() {
    let own = receipt();
    let keys = key_set();
    let mut found = References {
        subject_exists: true,
        ..References::default()
    };
    for reference in references(&own) {
        found
            .digests
            .insert(reference.uri.to_owned(), reference.sha256);
    }
    assert_eq!(found.digests.len(), 4);
    let check = |found: &References| {
        let references = Some(found);
        receipts::verify(
            &own.bytes(),
            &Evidence {
                references,
                ..evidence(&keys)
            },
        )
    };
    let report = check(&found);
    assert!(report.is_valid());
    assert_eq!(
        (
            report.materials_available,
            report.materials_unavailable.len()
        ),
        (4, 0)
    );
    // Pruned material is told and does not invalidate.
    let mut pruned = found.clone();
    pruned.digests.remove("artifact://artifact_change");
    let report = check(&pruned);
    assert!(report.is_valid());
    assert_eq!(report.materials_unavailable, ["artifact://artifact_change"]);
    // Changed material and a lost subject do.
    let mut swapped = found.clone();
    swapped
        .digests
        .insert("artifact://artifact_change".to_owned(), sha256(b"other"));
    swapped.subject_exists = false;
    assert_eq!(
        failures(&check(&swapped)),
        [
            ("subject", "subject_missing"),
            ("references", "material_mismatch")
        ]
    );
}

#[test]
fn inline_material_must_hash_to_what_is_stated() {
    let mut facts = task_facts();
    facts.replay_input.materials = vec![Material {
        kind: MaterialKind::HostFact,
        id: "host:env:main:1".to_owned(),
        content_type: None,
        content: MaterialContent::Inline(b"value".to_vec()),
    }];
    let good = build_task(&facts).unwrap().signed(&signer());
    assert!(verify(&good.bytes()).is_valid());
    for inline in ["b3RoZXI=", "no base64"] {
        let mut map = good.as_map().clone();
        map["replay_input"]["materials"][1]["bytes_base64"] = json!(inline);
        reseal(&mut map);
        map["signatures"] = json!([]);
        let report = verify(&jcs(&Value::Object(map)));
        assert_eq!(report.reason(), Some(Code::MaterialMismatch));
        assert_eq!(failures(&report)[0], ("material/1", "material_mismatch"));
    }
}

/// Flips one bit of each byte in a range and demands that it is seen.
fn flip(own: &Receipt, range: std::ops::Range<usize>) {
    let bytes = own.bytes();
    for index in range {
        let mut flipped = bytes.clone();
        flipped[index] ^= 1 << (index % 8);
        let report = verify(&flipped);
        if report.is_valid() {
            let same = Receipt::read(&flipped).unwrap().bytes();
            assert_eq!(same, bytes, "byte {index}");
        }
        // Stored bytes have one form; only the signatures lie outside their hash.
        if stream::check(&flipped).is_ok() {
            assert_eq!(report.signatures, Signatures::Invalid, "byte {index}");
        }
    }
}

#[test]
fn ap_rcpt_07_every_flipped_byte_is_found() {
    let unsigned = build_replay(&replay_facts()).unwrap();
    flip(&unsigned, 0..unsigned.bytes().len());
    // The same content again, so only the list of signatures is new.
    let signed = unsigned.signed(&signer());
    let text = String::from_utf8(signed.bytes()).unwrap();
    let from = text.find(r#""signatures""#).unwrap();
    flip(&signed, from..text.find(r#","subject""#).unwrap());
}

#[test]
fn ap_rcpt_11_the_archive_form_keeps_the_hash() {
    let everything = Receipt::from_map(everything()).unwrap();
    for own in [
        receipt(),
        build_replay(&replay_facts()).unwrap(),
        everything,
    ] {
        let archived = cbor::write(&own);
        let back = cbor::read(&archived).unwrap();
        assert_eq!(back.hash(), own.hash());
        assert_eq!(back.bytes(), own.bytes());
        assert_eq!(cbor::write(&back), archived);
        assert!(archived.len() < own.bytes().len());
    }
    assert!(cbor::read(&[0xa0]).is_err());
    assert!(cbor::read(&[0x80]).is_err());
    assert_eq!(
        cbor::MEDIA_TYPE,
        "application/vnd.harn.receipt+cbor; schema=receipt-2026-04-25"
    );
}

#[test]
fn key_sets_are_written_and_read() {
    let key = |id: &str, secret: u8, not_before, expires| PublicKey {
        key_id: id.to_owned(),
        bytes: Signer::new(id, &[secret; 32]).public(),
        not_before,
        expires,
        retired: None,
    };
    let keys = KeySet::new(vec![
        key("old", 1, Some(0), Some(1_777_000_000)),
        key("new", 2, Some(1_777_000_000), None),
    ])
    .unwrap();
    let jwks = keys.to_jwks();
    assert_eq!(KeySet::from_jwks(&jwks).unwrap(), keys);
    let document: Value = serde_json::from_slice(&jwks).unwrap();
    let first = &document["keys"][0];
    assert_eq!(
        (
            &first["kty"],
            &first["crv"],
            &first["kid"],
            &first["nbf"],
            &first["exp"]
        ),
        (
            &json!("OKP"),
            &json!("Ed25519"),
            &json!("old"),
            &json!(0),
            &json!(1_777_000_000)
        )
    );
    assert!(document["keys"][1].get("exp").is_none());
    assert!(KeySet::new(vec![key("a", 1, None, None), key("a", 2, None, None)]).is_err());

    let with = |entry: Value| KeySet::from_jwks(&jcs(&json!({"keys": [entry]})));
    let x = first["x"].clone();
    // Other kinds of keys are passed over.
    assert_eq!(
        with(json!({"kty": "RSA", "kid": "r"})),
        Ok(KeySet::default())
    );
    let good = json!({"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": x, "use": "sig"});
    assert_eq!(with(good.clone()).unwrap().keys().len(), 1);
    for (name, value) in [
        ("kid", Value::Null),
        ("kid", json!("")),
        ("x", json!("AAAA")),
        ("x", json!(format!("{}=", x.as_str().unwrap()))),
        ("d", json!("secret")),
        ("nbf", json!("yesterday")),
        ("exp", json!(1.5)),
    ] {
        let mut entry = good.clone();
        entry[name] = value;
        assert!(with(entry).is_err(), "{name}");
    }
    for text in ["{}", "[]", r#"{"keys":[],"keys":[]}"#, r#"{"keys":[1]}"#] {
        assert!(KeySet::from_jwks(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn heads_name_the_receipt_they_end_with() {
    let own = receipt();
    assert_eq!(Head::EMPTY.advanced(own.hash()).hash, own.stated_hash());
}
