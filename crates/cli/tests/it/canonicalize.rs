//! `reprise canonicalize`.

use std::fs;

use testing::process::run_to_end;

use crate::world::World;

#[test]
fn json_is_written_canonically() {
    let world = World::new();
    let run = |args: &[&str], input: &str| {
        let file = world.home.path().join("input.json");
        fs::write(&file, input).unwrap();
        let mut command = world.command(&[&["canonicalize"], args].concat());
        command.stdin(fs::File::open(file).unwrap());
        run_to_end(command)
    };
    let text = "{ \"b\": 1.0, \"a\": [\"\\u00e9\", 1.0e-7], \"10\": 0, \"9\": -0 }\n";
    assert_eq!(
        run(&[], text).stdout,
        r#"{"10":0,"9":0,"a":["é",1e-7],"b":1}"#
    );
    let js = run(&["--profile", "ahd-js-1"], text);
    assert_eq!(js.stdout, r#"{"9":0,"10":0,"a":["é",1e-7],"b":1}"#);
    // Numbers are doubles, also beyond the safe integers; only digits that would change are refused.
    let large = r#"{"\\\"9007199254740993":[1E30,9007199254740992,-1e20,100000000000000000000,2.95147905179352825856e+20]}"#;
    assert_eq!(
        run(&[], large).stdout,
        r#"{"\\\"9007199254740993":[1e+30,9007199254740992,-100000000000000000000,100000000000000000000,295147905179352830000]}"#
    );
    for bad in [
        "",
        "{\"a\":1,\"a\":2}",
        "9007199254740993",
        "[0,-18446744073709551615]",
        "{\"\\\\\":9007199254740993}",
        "1000000000000000000000001",
        "\"\\ud800\"",
        "[1] x",
    ] {
        let said = run(&[], bad);
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{bad} {said:?}");
        assert!(said.stderr.contains("hint: "), "{said:?}");
    }
}

/// AP-RCPT-02: the vectors through the program; it refuses more than they do where an integer would change.
#[test]
fn published_numbers_and_texts_are_written_as_the_standard_says() {
    let vectors = include_str!("../../../../conformance/vectors/jcs/vectors.json");
    let vectors: serde_json::Value = serde_json::from_str(vectors).unwrap();
    let world = World::new();
    let mut changed = Vec::new();
    for vector in vectors["vectors"].as_array().unwrap() {
        let hex = vector["input_hex"].as_str().unwrap();
        let bytes: Vec<u8> = (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let file = world.home.path().join("input.json");
        fs::write(&file, bytes).unwrap();
        let mut command = world.command(&["canonicalize"]);
        command.stdin(fs::File::open(file).unwrap());
        let said = run_to_end(command);
        let id = vector["id"].as_str().unwrap();
        match vector["expect"]["canonical"].as_str() {
            Some(_) if said.stderr.contains("would become another number") => changed.push(id),
            Some(expected) => assert_eq!(said.stdout, expected, "{id}: {said:?}"),
            None => assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{id}"),
        }
    }
    assert_eq!(changed, ["jcs-064", "jcs-068", "jcs-069"]);
}
