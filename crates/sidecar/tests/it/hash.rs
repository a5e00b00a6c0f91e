//! The hash contract against the published vectors.

use crate::vectors::{Vector, group, unhex};
use canon::{Integers, Value};
use sidecar::{Profile, RawHasher, canonical_text, sidecar_hash, tree_hash, tree_listing};

/// Compares one canonical text with a vector: tier `core` must agree, tier `quirk` may refuse.
fn check(vector: &Vector, text: Result<Vec<u8>, String>) {
    let id = &vector.id;
    let expect = &vector.body["expect"];
    match (text, expect.get("canonical_hex").and_then(Value::as_str)) {
        (Ok(text), Some(hex)) => {
            assert_eq!(text, unhex(hex), "{id}");
            let hash = canon::sha256(&text).to_string();
            assert_eq!(hash, expect["hash"].as_str().unwrap(), "{id}");
        }
        (Ok(text), None) => panic!("{id}: accepted as {}", String::from_utf8_lossy(&text)),
        (Err(error), Some(_)) => assert_eq!(vector.tier, "quirk", "{id}: {error}"),
        (Err(_), None) => assert!(expect.get("error").is_some(), "{id}"),
    }
}

fn through_yaml(vector: &Vector) -> Result<Vec<u8>, String> {
    canonical_text(&vector.input(), Profile::AhdJs1).map_err(|error| error.to_string())
}

/// RB-CAN-01 to RB-CAN-16.
#[test]
fn all_79_yaml_vectors_agree() {
    let vectors = group("canonical-yaml");
    assert_eq!(vectors.len(), 79);
    for vector in &vectors {
        check(vector, through_yaml(vector));
    }
}

/// RB-CAN-01: JSON files go through the same reader; the strict JSON reader gives the same text.
#[test]
fn all_41_json_vectors_agree_through_both_readers() {
    let vectors = group("canonical-json");
    assert_eq!(vectors.len(), 41);
    for vector in &vectors {
        check(vector, through_yaml(vector));
        if vector.tier == "core" {
            let value = canon::read(&vector.input(), Integers::Doubles).unwrap();
            check(vector, Ok(canon::canonical(&value, canon::Profile::AhdJs1)));
        }
    }
}

/// RB-CAN-10: what the reference hashes with loss is refused, except keys that are numbers.
#[test]
fn quirks_are_refused_and_number_keys_reproduced() {
    for name in ["canonical-yaml", "canonical-json"] {
        for vector in group(name).iter().filter(|vector| vector.tier == "quirk") {
            let accepted = matches!(vector.id.as_str(), "yaml-029" | "yaml-062");
            assert_eq!(through_yaml(vector).is_ok(), accepted, "{}", vector.id);
        }
    }
}

/// RB-RAW-01, RB-RAW-02.
#[test]
fn all_8_raw_vectors_agree_in_one_piece_and_byte_by_byte() {
    let vectors = group("raw-bytes");
    assert_eq!(vectors.len(), 8);
    for vector in &vectors {
        let bytes = vector.input();
        let mut hasher = RawHasher::new();
        for byte in &bytes {
            hasher.update(&[*byte]);
        }
        let (digest, len) = hasher.finish();
        assert_eq!(
            digest.to_string(),
            vector.body["expect"]["hash"].as_str().unwrap()
        );
        assert_eq!(len, bytes.len() as u64);
        assert_eq!(digest, canon::sha256(&bytes));
    }
}

#[test]
fn both_tree_vectors_agree() {
    let vectors = group("tree-mode");
    assert_eq!(vectors.len(), 2);
    for vector in &vectors {
        let files: Vec<_> = vector.body["files"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(path, text)| {
                (
                    path.clone(),
                    canon::sha256(text.as_str().unwrap().as_bytes()),
                )
            })
            .rev()
            .collect();
        let expect = &vector.body["expect"];
        assert_eq!(tree_listing(&files), expect["listing"].as_str().unwrap());
        assert_eq!(
            tree_hash(&files).to_string(),
            expect["hash"].as_str().unwrap()
        );
    }
}

#[test]
fn the_sidecar_hash_vector_agrees() {
    let vectors = group("sidecar-hash");
    assert_eq!(vectors.len(), 1);
    for vector in &vectors {
        let hash = sidecar_hash(&vector.body["document"]).to_string();
        assert_eq!(hash, vector.body["expect"]["hash"].as_str().unwrap());
    }
}

/// Section 10.2: `jcs-1` reads by the same rules and refuses what JSON cannot write.
#[test]
fn jcs_refuses_non_finite_numbers_and_orders_names_as_text() {
    assert!(canonical_text(b"a: .inf", Profile::Jcs1).is_err());
    assert!(canonical_text(b".nan: 1", Profile::Jcs1).is_err());
    let text = |profile| String::from_utf8(canonical_text(b"{10: a, 9: b}", profile).unwrap());
    assert_eq!(text(Profile::Jcs1).unwrap(), r#"{"10":"a","9":"b"}"#);
    assert_eq!(text(Profile::AhdJs1).unwrap(), r#"{"9":"b","10":"a"}"#);
}

/// A tab separates as a space does; inside a text it is a character of it.
#[test]
fn a_tab_after_a_colon_is_json_and_yaml() {
    let text = |input: &str| {
        let text = canonical_text(input.as_bytes(), Profile::AhdJs1);
        text.map(|text| String::from_utf8(text).unwrap())
            .map_err(|error| error.to_string())
    };
    for (input, expected) in [
        ("{\"a\":\t1}", r#"{"a":1}"#),
        (
            "{\t\"a\"\t:\ttrue\t,\n\t\"b\":\t[\t-1\t]}",
            r#"{"a":true,"b":[-1]}"#,
        ),
        ("a:\t1", r#"{"a":1}"#),
        ("a:\t\t word\nb:\tnull\n", r#"{"a":"word","b":null}"#),
        ("- a:\tx\n  b:\t-1\n", r#"[{"a":"x","b":-1}]"#),
        ("a: \"b:\tc\"\nd:\te", r#"{"a":"b:\tc","d":"e"}"#),
        ("a: |\n  b:\tc\nd:\te", r#"{"a":"b:\tc\n","d":"e"}"#),
        ("{a:\tb, c:\td}", r#"{"a":"b","c":"d"}"#),
    ] {
        assert_eq!(text(input).as_deref(), Ok(expected), "{input:?}");
    }
    for input in ["? a\n:\tb: c", "a:\tb: c"] {
        assert!(text(input).is_err(), "{input:?}: {:?}", text(input));
    }
}

/// What the reference reads otherwise, or not at all, gets no hash.
#[test]
fn no_text_gets_a_third_hash() {
    for input in [
        "a: \"x\\\n\n  y\"",
        "a: \"x\\\r\n\r\n  y\"",
        "? a\n: \n: b",
        "? a\n:\n: b",
        "{?}",
        "[?]",
        "--- |\n--- |\n  t",
        "--- a\n---\n",
        "{a: >10}",
        "[|x]",
    ] {
        let text = canonical_text(input.as_bytes(), Profile::AhdJs1);
        let text = text.map(|text| String::from_utf8(text).unwrap());
        assert!(text.is_err(), "{input:?}: {text:?}");
    }
    for (input, expected) in [
        ("a: \"x\\\n  y\"", r#"{"a":"xy"}"#),
        ("a: |\n  x\\\n\n  y\n", r#"{"a":"x\\\n\ny\n"}"#),
        ("---\na: 1\n", r#"{"a":1}"#),
        ("---a: 1\n", r#"{"---a":1}"#),
    ] {
        let text = canonical_text(input.as_bytes(), Profile::AhdJs1).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), expected, "{input:?}");
    }
}
