//! `reprise canonicalize`.

use std::fs;

use crate::world::{World, said};

#[test]
fn json_is_written_canonically() {
    let world = World::new();
    let run = |args: &[&str], input: &str| {
        let file = world.home.path().join("input.json");
        fs::write(&file, input).unwrap();
        let mut command = world.command(&[&["canonicalize"], args].concat());
        command.stdin(fs::File::open(file).unwrap());
        said(command)
    };
    let text = "{ \"b\": 1.0, \"a\": [\"\\u00e9\", 1.0e-7], \"10\": 0, \"9\": -0 }\n";
    assert_eq!(
        run(&[], text).stdout,
        r#"{"10":0,"9":0,"a":["é",1e-7],"b":1}"#
    );
    let js = run(&["--profile", "ahd-js-1"], text);
    assert_eq!(js.stdout, r#"{"9":0,"10":0,"a":["é",1e-7],"b":1}"#);
    for bad in [
        "",
        "{\"a\":1,\"a\":2}",
        "9007199254740993",
        "\"\\ud800\"",
        "[1] x",
    ] {
        let said = run(&[], bad);
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{bad} {said:?}");
        assert!(said.stderr.contains("hint: "), "{said:?}");
    }
}
