//! The shape checks against the vectors and against the two schemas themselves.

use canon::Value;
use jsonschema::Validator;
use proptest::prelude::*;
use serde_json::json;
use sidecar::{check_ahd, check_general, read_sidecar};

use crate::vectors::group;

fn schema(text: &str) -> Validator {
    let schema: Value = serde_json::from_str(text).unwrap();
    jsonschema::options()
        .should_validate_formats(true)
        .build(&schema)
        .unwrap()
}

fn ahd_schema() -> Validator {
    schema(include_str!(
        "../../../../conformance/vectors/ahd/replay.schema.json"
    ))
}

fn general_schema() -> Validator {
    schema(include_str!(
        "../../../../conformance/vectors/ahd/replay-general.schema.json"
    ))
}

/// The AHD schema refuses unknown members, the general one allows them.
fn ours(document: &Value, ahd: bool) -> bool {
    if ahd {
        let shape = check_ahd(document);
        shape.problems.is_empty() && shape.unknown.is_empty()
    } else {
        check_general(document).problems.is_empty()
    }
}

/// RB-X-02 to RB-X-05, RB-X-12 and the conditional rules.
#[test]
fn all_69_schema_vectors_agree_with_us_and_with_the_schema() {
    let vectors = group("sidecar-schema");
    assert_eq!(vectors.len(), 69);
    let (ahd, general) = (ahd_schema(), general_schema());
    for vector in &vectors {
        let document = &vector.body["document"];
        let valid = vector.body["expect"]["valid"].as_bool().unwrap();
        let is_ahd = vector.body["schema"] == "ahd";
        let by_schema = if is_ahd { &ahd } else { &general }.is_valid(document);
        assert_eq!(by_schema, valid, "{} by the schema", vector.id);
        assert_eq!(ours(document, is_ahd), valid, "{} by us", vector.id);
    }
}

/// What passes a shape check also decodes into the typed sidecar and is written back valid.
#[test]
fn every_valid_vector_is_read_and_written_again() {
    for vector in group("sidecar-schema") {
        if vector.body["expect"]["valid"] == true {
            let text = vector.body["document"].to_string();
            let read = read_sidecar(text.as_bytes(), false).unwrap();
            let written = read.sidecar.text().unwrap();
            let again = read_sidecar(written.as_bytes(), true).unwrap();
            assert_eq!(again.sidecar, read.sidecar, "{}", vector.id);
            assert!(written.ends_with("}\n") && written.starts_with("{\n  \"schema_version\": 1"));
        }
    }
}

/// RB-X-01, RB-D-12: unknown members at every level are listed, and refused only when strict.
#[test]
fn unknown_members_are_listed_at_every_level() {
    let mut document = group("sidecar-schema")[0].body["document"].clone();
    document["future"] = json!(1);
    document["token"]["a/b~c"] = json!(1);
    document["models"][0]["region"] = json!("x");
    let text = document.to_string();
    let read = read_sidecar(text.as_bytes(), false).unwrap();
    assert_eq!(
        read.unknown,
        ["/token/a~1b~0c", "/models/0/region", "/future"]
    );
    let error = read_sidecar(text.as_bytes(), true).unwrap_err();
    assert_eq!(error.code(), "invalid_sidecar");
    assert!(error.to_string().contains("/models/0/region"), "{error}");
}

/// RB-VSN-03: the version is looked at before anything else.
#[test]
fn newer_versions_are_refused_first() {
    for text in [
        r#"{"schema_version":2}"#,
        r#"{"schema_version":1.5,"kind":7}"#,
    ] {
        let error = read_sidecar(text.as_bytes(), false).unwrap_err();
        assert_eq!(error.code(), "unsupported_schema_version", "{text}");
    }
    for text in [
        "[]",
        "{",
        r#"{"schema_version":"2"}"#,
        r#"{"a":1,"a":2}"#,
        "\u{feff}{}",
    ] {
        let error = read_sidecar(text.as_bytes(), false).unwrap_err();
        assert_eq!(error.code(), "invalid_sidecar", "{text}");
    }
}

/// A general document that uses every member.
fn full() -> Value {
    let hash = format!("sha256:{}", "a".repeat(64));
    let artifact = json!({"role": "prompt", "path": "p/a.md", "hash": hash, "mode": "tree",
        "bytes": 3, "media_type": "text/plain", "stable": true});
    json!({
        "schema_version": 1, "kind": "agent-run", "profile": "jcs-1", "run_id": "r1",
        "tool": {"name": "t", "version": "1", "commit": "0".repeat(40), "dirty": false,
            "repository": "x", "binary_hash": hash},
        "runtime": {"name": "node", "version": "22"},
        "platform": "linux-x64", "invoked_at": "2026-01-02T03:04:05Z",
        "finished_at": "2026-01-02T03:04:06.5Z", "exit_code": 0, "argv": ["a"], "cwd": ".",
        "inputs": [artifact], "outputs": [artifact], "report": artifact,
        "sampling": {"n": 3, "temperature": 0.5, "top_p": null, "max_tokens": 9, "seed": 1,
            "seeds": [1, 2], "concurrency": 4},
        "models": [{"id": "m", "provider": "p", "provider_request_ids": ["a"], "reported_ids": ["m1"],
            "endpoint": "e", "calls": 1, "tokens_in": 2, "tokens_out": 3}],
        "conditions": {"requested": ["a"], "effective": []},
        "agent": {"name": "a", "version": "1", "config_hash": hash,
            "tools": [{"name": "read", "schema_hash": hash}], "policy_hash": hash},
        "trace": {"path": "t.jsonl", "hash": hash, "events": 1, "session_id": "s", "format": "f"},
        "environment": {"env": {"A": "b"}, "timezone": "UTC", "locale": "C",
            "container_image": format!("img@sha256:{}", "b".repeat(64)), "network": "none"},
        "redactions": [{"pointer": "/argv/0", "reason": "credential", "hash": hash}],
        "parent": {"path": "p.json", "hash": hash, "relation": "rerun"},
        "backfilled": false,
        "signature": {"alg": "ed25519", "key_id": "k", "value": "AA_-"}
    })
}

fn every_place(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Object(map) => {
            for (name, member) in map {
                every_place(member, &format!("{at}/{name}"), out);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                every_place(item, &format!("{at}/{index}"), out);
            }
        }
        _ => {}
    }
}

fn odd_value() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(1.0),
        json!(1.5),
        json!(2),
        json!(1e300),
        json!(""),
        json!("x"),
        json!("unknown"),
        json!("critique"),
        json!("eval-live"),
        json!("agent-run"),
        json!("a--b"),
        json!("a.b:c-d"),
        json!("A"),
        json!("é"),
        json!("a".repeat(65)),
        json!("a".repeat(201)),
        json!("é".repeat(200)),
        json!("../a"),
        json!("a/.."),
        json!("a/..b"),
        json!("/a"),
        json!("a\\b"),
        json!("C:x"),
        json!("a:b"),
        json!("0".repeat(40)),
        json!("0".repeat(64)),
        json!("A".repeat(40)),
        json!(format!("sha256:{}", "0".repeat(64))),
        json!(format!("sha256:{}", "A".repeat(64))),
        json!(format!("x@sha256:{}", "0".repeat(64))),
        json!(format!("a@b@sha256:{}", "0".repeat(64))),
        json!("2026-02-29T00:00:00Z"),
        json!("2024-02-29T23:59:59.123456789Z"),
        json!("2026-13-01T00:00:00Z"),
        json!("2026-01-01T24:00:00Z"),
        json!("2026-01-01T00:00:00.Z"),
        json!("2026-01-01 00:00:00Z"),
        json!("2026-01-01T00:00:00z"),
        json!("2026-1-01T00:00:00Z"),
        json!("/a~0"),
        json!("/a~2"),
        json!("a/b"),
        json!("/~"),
        json!("a=b"),
        json!([]),
        json!({}),
        json!(["a", "a"]),
        json!([1]),
        json!(["a", 1]),
        json!("jcs-1"),
        json!("raw-bytes"),
        json!("open"),
        json!("resume"),
    ])
}

#[derive(Debug, Clone)]
enum Edit {
    Replace(prop::sample::Index, Value),
    Remove(prop::sample::Index),
    Add(prop::sample::Index, Value),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        4 => (any::<prop::sample::Index>(), odd_value()).prop_map(|(at, value)| Edit::Replace(at, value)),
        1 => any::<prop::sample::Index>().prop_map(Edit::Remove),
        1 => (any::<prop::sample::Index>(), odd_value()).prop_map(|(at, value)| Edit::Add(at, value)),
    ];
    prop::collection::vec(edit, 1..3)
}

fn apply(document: &mut Value, edit: &Edit) {
    let mut places = Vec::new();
    every_place(document, "", &mut places);
    match edit {
        Edit::Replace(index, value) => {
            if let Some(place) = document.pointer_mut(index.get(&places).as_str()) {
                *place = value.clone();
            }
        }
        Edit::Remove(index) => {
            let (parent, name) = index.get(&places).rsplit_once('/').unwrap_or(("", ""));
            if let Some(Value::Object(map)) = document.pointer_mut(parent) {
                map.remove(name);
            }
        }
        Edit::Add(index, value) => {
            if let Some(Value::Object(map)) = document.pointer_mut(index.get(&places).as_str()) {
                map.insert("added".to_owned(), value.clone());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn edited_documents_are_judged_like_the_schemas(
        start in 0_usize..5,
        edits in edits(),
    ) {
        thread_local! {
            static SCHEMAS: (Validator, Validator, Vec<Value>) = {
                let vectors = group("sidecar-schema");
                let valid = |id: &str| {
                    vectors.iter().find(|vector| vector.id == id).unwrap().body["document"].clone()
                };
                let starts = vec![valid("schema-001"), valid("schema-008"), valid("schema-050"), full(), full()];
                (ahd_schema(), general_schema(), starts)
            };
        }
        SCHEMAS.with(|(ahd, general, starts)| {
            let mut document = starts[start].clone();
            for edit in &edits {
                apply(&mut document, edit);
            }
            prop_assert_eq!(ours(&document, true), ahd.is_valid(&document), "ahd {}", document);
            prop_assert_eq!(ours(&document, false), general.is_valid(&document), "general {}", document);
            // Whatever the shape accepts must also decode.
            if let Err(error) = read_sidecar(document.to_string().as_bytes(), false) {
                let accepted = if start < 3 { ours(&document, true) } else { ours(&document, false) };
                prop_assert!(!accepted, "{} {}", error, document);
            }
            Ok(())
        })?;
    }
}

#[test]
fn the_full_document_is_valid_under_both() {
    assert!(general_schema().is_valid(&full()));
    assert_eq!(check_general(&full()).problems, []);
    assert_eq!(check_general(&full()).unknown, [] as [String; 0]);
}
