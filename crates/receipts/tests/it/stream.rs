//! The single-pass check against the value-based one.

use canon::{Map, Value, jcs, sha256_parts};
use proptest::prelude::*;
use receipts::{Receipt, build_replay, build_task, stream};
use serde_json::json;

use crate::common::{everything, pointers, remove, replay_facts, reseal, signer, task_facts};

fn samples() -> Vec<Vec<u8>> {
    vec![
        jcs(&Value::Object(everything())),
        build_task(&task_facts()).unwrap().bytes(),
        build_task(&task_facts()).unwrap().signed(&signer()).bytes(),
        build_replay(&replay_facts()).unwrap().bytes(),
    ]
}

/// Asserts that both paths agree, and returns the verdict.
fn agree(bytes: &[u8]) -> bool {
    let by_value = stream::check_by_value(bytes);
    match (stream::check(bytes), &by_value) {
        (Ok(fast), Ok(receipt)) => {
            assert_eq!(fast.hash, receipt.hash());
            assert_eq!(fast.previous_hash, receipt.previous_hash());
            assert_eq!(fast.merkle_root, receipt.merkle_root());
            assert_eq!(fast.receipt_id, receipt.id());
            assert_eq!(fast.session_id, receipt.session_id());
            assert_eq!(fast.issued_at, receipt.issued_at());
            assert_eq!(fast.is_replay, receipt.is_replay());
            assert_eq!(fast.is_signed, receipt.signatures().next().is_some());
            true
        }
        (Err(fast), Err(slow)) => {
            assert_eq!(&fast, slow);
            false
        }
        (fast, slow) => panic!(
            "{fast:?} against {slow:?} for {}",
            String::from_utf8_lossy(bytes)
        ),
    }
}

fn sealed(mut document: Value) -> Vec<u8> {
    if let Value::Object(map) = &mut document {
        reseal(map);
    }
    jcs(&document)
}

/// Sets the hash that fits the bytes as they stand, canonical or not, so that a hash that does not fit
/// cannot hide what else is wrong. Gives up if the two members cannot be found.
fn fitted(mut bytes: Vec<u8>) -> Vec<u8> {
    let find = |needle: &[u8]| {
        bytes
            .windows(needle.len())
            .position(|window| window == needle)
    };
    let Some(hash_from) = find(b",\"receipt_hash\":\"sha256:") else {
        return bytes;
    };
    let hash_to = hash_from + b",\"receipt_hash\":\"sha256:\"".len() + 64;
    let end = bytes.len();
    let list = find(b",\"signatures\":")
        .zip(find(b",\"subject\":"))
        .unwrap_or((end, end));
    if hash_to > list.0 || list.0 > list.1 {
        return bytes;
    }
    let parts = [
        &bytes[..hash_from],
        &bytes[hash_to..list.0],
        &bytes[list.1..],
    ];
    let hash = sha256_parts(parts).to_string();
    bytes[hash_to - 1 - hash.len()..hash_to - 1].copy_from_slice(hash.as_bytes());
    bytes
}

#[test]
fn whole_receipts_pass() {
    for sample in samples() {
        assert!(agree(&sample));
        assert_eq!(fitted(sample.clone()), sample);
    }
}

#[test]
fn every_truncation_and_every_removed_byte_is_refused() {
    let sample = build_replay(&replay_facts()).unwrap().bytes();
    for length in 0..sample.len() {
        assert!(!agree(&sample[..length]));
        let mut shorter = sample.clone();
        shorter.remove(length);
        assert!(!agree(&shorter));
    }
}

#[test]
fn every_removed_or_replaced_member_is_judged_alike_under_a_fitting_hash() {
    let original = Value::Object(everything());
    let mut accepted = 0;
    for pointer in pointers(&original).iter().skip(1) {
        let mut changed = original.clone();
        remove(&mut changed, pointer);
        accepted += usize::from(agree(&sealed(changed)));
        for probe in [
            json!(null),
            json!(false),
            json!(-1),
            json!(1e-7),
            json!(9_007_199_254_740_991_u64),
            json!(9_007_199_254_740_992_u64),
            json!(1.5e300),
            json!(""),
            json!("a\"\\\u{8}\t\n\u{c}\r\u{0}\u{1f}\u{7f}é\u{1f600}"),
            json!([1, [2]]),
            json!({"b": 1, "a": {}, "\u{fb01}": 2, "\u{1f600}": 3, "\n": 4, "": 5}),
        ] {
            let mut changed = original.clone();
            *changed.pointer_mut(pointer).unwrap() = probe;
            accepted += usize::from(agree(&sealed(changed)));
        }
    }
    assert!(accepted > 200, "{accepted}");
}

#[test]
fn other_spellings_of_the_same_receipt_are_not_canonical() {
    let sample = String::from_utf8(samples().remove(0)).unwrap();
    for (from, to) in [
        (r#""total":0.0375"#, r#""total":3.75e-2"#),
        (r#""total":0.0375"#, r#""total":0.03750"#),
        (r#""tool_calls":4"#, r#""tool_calls":4.0"#),
        (r#""tool_calls":4"#, r#""tool_calls":04"#),
        (r#""tool_calls":4"#, r#""tool_calls":+4"#),
        (r#""tool_calls":4"#, r#""tool_calls": 4"#),
        (r#""USD""#, r#""\u0055SD""#),
        ("ü", r"\u00fc"),
        (r"notes/", r"notes\/"),
        (r#""metadata":{}"#, r#""metadata":{"b":1,"a":2}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":1,"a":1}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":-0}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":"\u0009"}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":"\u000c"}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":"\u000G"}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":"\u0020"}"#),
        (r#""metadata":{}"#, "\"metadata\":{\"a\":\"\t\"}"),
        (r#""metadata":{}"#, r#""metadata":{"a":1,}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":[1,]}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":1E3}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":1e21}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":nul}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":"\u001F"}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":"\ud800"}"#),
        (r#""metadata":{}"#, r#""metadata":{"a":1e400}"#),
    ] {
        assert!(sample.contains(from), "{from}");
        let changed = sample.replacen(from, to, 1).into_bytes();
        assert!(!agree(&changed), "{to}");
        assert!(!agree(&fitted(changed)), "{to}");
    }
    for changed in [format!("{sample}\n"), format!("\u{feff}{sample}")] {
        assert!(!agree(&fitted(changed.into_bytes())));
    }
}

#[test]
fn both_stop_at_the_same_depth() {
    let mut verdicts = Vec::new();
    for levels in 120..132 {
        let mut nested = json!(1);
        for _ in 0..levels {
            nested = json!([nested]);
        }
        let mut document = Value::Object(everything());
        document["metadata"] = json!({"nested": nested});
        verdicts.push(agree(&sealed(document)));
    }
    assert_eq!(verdicts.iter().filter(|verdict| **verdict).count(), 6);
}

#[test]
fn a_refusal_says_why() {
    let refuse = |bytes: &[u8]| stream::check(bytes).unwrap_err().to_string();
    let sample = samples().remove(1);
    assert!(refuse(b"{").contains("EOF"));
    let pretty = serde_json::to_vec_pretty(Receipt::read(&sample).unwrap().as_map()).unwrap();
    assert_eq!(refuse(&pretty), "receipt is not in canonical form");
    let mut changed = Receipt::read(&sample).unwrap().as_map().clone();
    changed["trust"]["end_tier"] = json!("act_auto");
    assert!(refuse(&jcs(&Value::Object(changed))).contains("content gives `sha256:"));
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-9_007_199_254_740_993_i64..9_007_199_254_740_993).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::String),
        any::<String>().prop_map(Value::String),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_bytes_changed_are_judged_alike(
        sample in prop::sample::select(samples()),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..4),
    ) {
        let mut bytes = sample;
        for (place, byte, kind) in edits {
            let at = place.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => bytes.truncate(at.max(1)),
            }
        }
        agree(&bytes);
        agree(&fitted(bytes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_value_changed_is_judged_alike_under_a_fitting_hash(
        place in any::<prop::sample::Index>(),
        name in any::<String>(),
        value in any_value(),
        extra in any::<bool>(),
    ) {
        let mut document = Value::Object(everything());
        let places = pointers(&document);
        let pointer = &places[1 + place.index(places.len() - 1)];
        match document.pointer_mut(pointer).unwrap() {
            Value::Object(map) if extra => { map.insert(name, value); }
            slot => *slot = value,
        }
        agree(&sealed(document));
    }

    #[test]
    fn any_operator_metadata_is_accepted_by_both(
        metadata in prop::collection::btree_map(any::<String>(), any_value(), 0..6),
    ) {
        let mut document = Value::Object(everything());
        document["metadata"] = Value::Object(metadata.into_iter().collect());
        let bytes = sealed(document);
        // Unsafe integers among the values are the one reason to refuse.
        let is_safe = canon::read(&bytes, canon::Integers::Safe).is_ok();
        prop_assert_eq!(agree(&bytes), is_safe);
    }
}
