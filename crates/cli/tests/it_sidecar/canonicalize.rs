//! `reprise canonicalize --profile ahd-js-1` reads as replay blocks do.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use crate::world::{World, isolate};

fn canonicalize(world: &World, bytes: &[u8]) -> Output {
    world.write("input", bytes);
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprise"));
    isolate(&mut command)
        .args(["canonicalize", "--profile", "ahd-js-1"])
        .stdin(fs::File::open(world.at("input")).unwrap())
        .output()
        .unwrap()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

/// RB-CAN-01 to RB-CAN-16: every vector byte for byte; a quirk may be refused and never be another text.
#[test]
fn all_120_canonical_vectors_agree_on_the_binary() {
    let text = include_bytes!("../../../../conformance/vectors/ahd/vectors.json");
    let document: Value = serde_json::from_slice(text).unwrap();
    let of_groups = |vector: &&Value| {
        let group = vector["group"].as_str().unwrap();
        group == "canonical-json" || group == "canonical-yaml"
    };
    let all = document["vectors"].as_array().unwrap();
    let vectors: Vec<_> = all.iter().filter(of_groups).collect();
    assert_eq!(vectors.len(), 120);
    let world = World::empty();
    for vector in vectors {
        let (id, expect) = (&vector["id"], &vector["expect"]);
        let output = canonicalize(&world, &unhex(vector["input_hex"].as_str().unwrap()));
        let refused = output.status.code() == Some(2) && output.stdout.is_empty();
        match expect["canonical_hex"].as_str() {
            Some(hex) if output.status.success() => assert_eq!(output.stdout, unhex(hex), "{id}"),
            Some(_) => assert!(refused && vector["tier"] == "quirk", "{id}: {output:?}"),
            None => assert!(refused, "{id}: {output:?}"),
        }
    }
}

/// RB-CAN-10: what has no lossless form is refused, also where a plain JSON reader would take it.
#[test]
fn what_has_no_lossless_form_is_refused() {
    let world = World::empty();
    for text in [
        r#"{"__proto__": 1}"#,
        r#"{"a": {"__proto__": {}}}"#,
        "%YAML 1.1\n---\na: 1\n",
        "a: !!timestamp 2026-08-03\n",
        "1: a\n\"1\": b\n",
        "[1, 2]: a\n",
        r#""\ud800""#,
        "1e999",
    ] {
        let output = canonicalize(&world, text.as_bytes());
        assert_eq!(output.status.code(), Some(2), "{text}: {output:?}");
        assert!(output.stdout.is_empty(), "{text}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("hint: write it in a form"), "{text}: {said}");
    }
}
