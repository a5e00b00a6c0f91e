//! The reader under arbitrary text: no panic, no hang, no growth beyond the text's own.

use std::time::{Duration, Instant};

use canon::{Integers, Value};
use proptest::prelude::*;
use sidecar::{Limits, Profile, YamlRefusal, canonical_text, read_yaml};

fn read(text: &[u8]) -> Result<Value, YamlRefusal> {
    let text = canonical_text(text, Profile::AhdJs1).map_err(|error| error.refusal())?;
    Ok(serde_json::from_slice(&text).unwrap())
}

/// Pieces that YAML gives a meaning to, so that random texts reach the parser's corners.
fn yaml_shaped() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "- ",
        "? ",
        ": ",
        ":",
        "\n",
        "\r\n",
        "  ",
        "\t",
        "[",
        "]",
        "{",
        "}",
        ",",
        "&a ",
        "*a ",
        "*b",
        "!!str ",
        "!x ",
        "!",
        "!<tag:yaml.org,2002:int> ",
        "|",
        ">-\n",
        "|2+\n",
        "\"",
        "'",
        "\\",
        "\\uD83D\\uDE00",
        "\\uD83D",
        "\\x4",
        "# c",
        " #",
        "---",
        "---\n",
        "...\n",
        "%YAML 1.2\n",
        "%YAML 1.1\n",
        "%TAG ! x:\n",
        "\u{feff}",
        "\u{e000}",
        "\u{85}",
        "<<",
        "__proto__",
        "a",
        "a: 1\n",
        "0x1F",
        "1e400",
        ".inf",
        "~",
        "null",
        "@",
        "`",
        "%",
        "\0",
        "\r",
        "é",
    ]);
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn yaml_shaped_text_is_read_or_refused(text in yaml_shaped()) {
        let _ = read(text.as_bytes());
    }

    #[test]
    fn arbitrary_text_is_read_or_refused(text in any::<String>()) {
        let _ = read(text.as_bytes());
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in any::<Vec<u8>>()) {
        let _ = read(&bytes);
    }

    /// A canonical text is JSON, written the same from its value; read again through YAML it must give itself.
    #[test]
    fn what_was_read_reads_back_to_the_same_text(text in yaml_shaped()) {
        if let Ok(once) = canonical_text(text.as_bytes(), Profile::AhdJs1) {
            let value = canon::read(&once, Integers::Doubles).unwrap();
            prop_assert_eq!(&canon::canonical(&value, canon::Profile::AhdJs1), &once);
            prop_assert_eq!(canonical_text(&once, Profile::AhdJs1), Ok(once));
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Writes every character beyond ASCII as `\u` escapes, as many JSON writers do.
fn escaped(json: &str) -> String {
    let mut out = String::new();
    for char in json.chars() {
        if char.is_ascii() {
            out.push(char);
        } else {
            for unit in char.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04X}"));
            }
        }
    }
    out
}

proptest! {
    /// RB-CAN-01: the YAML reader gives JSON the meaning that the JSON reader gives it.
    #[test]
    fn json_means_the_same_through_both_readers(value in any_value()) {
        for text in [value.to_string(), escaped(&value.to_string())] {
            let json = canon::read(text.as_bytes(), Integers::Doubles).unwrap();
            let expect = canon::canonical(&json, canon::Profile::AhdJs1);
            match canonical_text(text.as_bytes(), Profile::AhdJs1) {
                Ok(through_yaml) => prop_assert_eq!(through_yaml, expect),
                // Raw control characters and the like may be refused, never misread.
                Err(error) => prop_assert!(text.contains("__proto__"), "{} in {}", error, text),
            }
        }
    }
}

/// RB-CAN-11, and a guard against quadratic time: each text must end within seconds, in debug builds.
#[test]
#[expect(clippy::disallowed_methods, reason = "measures time")]
fn hostile_texts_end_quickly() {
    let many = 100_000;
    let texts = [
        "[".repeat(many),
        "{a: ".repeat(many),
        "- ".repeat(many),
        "? ".repeat(many),
        "[a: ".repeat(many),
        "\"\\uD83D\\uDE00\" ".repeat(many / 10),
        format!("[{}]", "1,".repeat(many)),
        format!(
            "{{{}}}",
            (0..many).map(|n| format!("k{n}: 1, ")).collect::<String>()
        ),
        (0..many)
            .map(|n| format!("&a{n} k{n}: *a{n}\n"))
            .collect::<String>(),
        format!(
            "a: &a [{}]\nb: [{}]\n",
            "x,".repeat(60_000),
            "*a,".repeat(90)
        ),
        format!(
            "a: &a {}\nb: [{}]\n",
            "x".repeat(1_000_000),
            "*a,".repeat(90)
        ),
        format!("a: |\n{}", "  \n".repeat(many)),
        format!("a: \"{}\"", "\\n\n ".repeat(many)),
        format!("a: x{}", "\n  y".repeat(many)),
        "#\n".repeat(many),
        "%A b\n".repeat(many),
        "...\n".repeat(many),
        " ".repeat(many * 4),
        "\\".repeat(many * 4),
        "!".repeat(many),
        "&".repeat(many),
        format!("{}a", "!!str ".repeat(many)),
        // Out of order on every level, around as much text as can be had.
        format!(
            "a: &a \"{}\"\nb: {}[{}]{}\n",
            "\\x01".repeat(40_000),
            "{b: ".repeat(190),
            "*a,".repeat(90),
            ", a: 1}".repeat(190)
        ),
        (0..2_000)
            .map(|n| format!("{}k:\n", " ".repeat(n)))
            .collect::<String>(),
    ];
    for text in texts {
        let start = Instant::now();
        let outcome = canonical_text(text.as_bytes(), Profile::AhdJs1);
        let took = start.elapsed();
        let head: String = text.chars().take(30).collect();
        assert!(
            took < Duration::from_secs(5),
            "{took:?} for {head:?}: {:?}",
            outcome.err()
        );
    }
}

#[test]
fn limits_are_typed_refusals() {
    let limits = Limits {
        input_bytes_max: 20,
        depth_max: 2,
        nodes_max: 4,
        expanded_bytes_max: 6,
    };
    let read = |text: &str| {
        let read = read_yaml(text.as_bytes(), Profile::AhdJs1, limits);
        read.map(|text| text.to_vec())
            .map_err(|error| error.refusal())
    };
    assert!(read("[[a]]").is_ok());
    for text in [
        "[[[a]]]",
        "[1,2,3,4]",
        "[&a x, *a, 3, 4]",
        "[aaaa,bbb]",
        "[&a aaa, *a, b]",
    ] {
        assert_eq!(read(text), Err(YamlRefusal::TooLarge), "{text}");
    }
    assert_eq!(read(&"a".repeat(21)), Err(YamlRefusal::TooLarge));
}

#[test]
fn refusals_say_which_kind_they_are() {
    for (text, refusal) in [
        ("a: 1\na: 2\n", YamlRefusal::Syntax),
        ("a: [1\n", YamlRefusal::Syntax),
        ("a: 1\n---\nb: 1\n", YamlRefusal::Syntax),
        ("1: a\n\"1\": b\n", YamlRefusal::Unsupported),
        ("&k key: 1\n*k : 2\n", YamlRefusal::Unsupported),
        ("a: !foo b\n", YamlRefusal::Unsupported),
        ("a: ! b\n", YamlRefusal::Unsupported),
        ("!!map a\n", YamlRefusal::Unsupported),
        ("!!str {a: 1}\n", YamlRefusal::Unsupported),
        ("!!int 1.5\n", YamlRefusal::Unsupported),
        (
            "%TAG !! tag:example.org,2000:\n---\n!!str a\n",
            YamlRefusal::Unsupported,
        ),
        ("# c\n\n%YAML 1.1\n---\na: yes\n", YamlRefusal::Unsupported),
        ("...\n%YAML 1.1\n---\na: yes\n", YamlRefusal::Unsupported),
        ("a: \"\\uD83D\"\n", YamlRefusal::Unsupported),
        ("a: \"\\\\uD83D\\uDE00\"\n", YamlRefusal::Unsupported),
        ("a: x\0y\n", YamlRefusal::Unsupported),
        ("a: x\ry\n", YamlRefusal::Unsupported),
        ("&a [*a]\n", YamlRefusal::Unsupported),
        ("\u{feff}\u{feff}a\n", YamlRefusal::Unsupported),
        ("a: b\n\u{feff}c: d\n", YamlRefusal::Unsupported),
        ("a: |\n x\n ", YamlRefusal::Unsupported),
        ("a: |2\n\n   \n", YamlRefusal::Unsupported),
        ("a: 1e400\n", YamlRefusal::Unsupported),
    ] {
        assert_eq!(read(text.as_bytes()), Err(refusal), "{text:?}");
    }
    assert_eq!(read(b"a: \xff\n"), Err(YamlRefusal::Syntax));
    for deep in [201, 300, 10_000] {
        let text = "[".repeat(deep) + &"]".repeat(deep);
        assert_eq!(read(text.as_bytes()), Err(YamlRefusal::TooLarge), "{deep}");
        let text = "- ".repeat(deep);
        assert_eq!(read(text.as_bytes()), Err(YamlRefusal::TooLarge), "{deep}");
    }
}

#[test]
fn surrogate_escapes_count_only_in_double_quotes() {
    let text = concat!(
        "a: \"\\uD83D\\uDE00\\\\uD83D\"\n",
        "b: \\uD83D\\uDE00 \u{e000}\n",
        "c: '\\ud83d\\uDE00'\n",
        "d: |\n  \\uD83D\\uDE00\n",
        "\"\\uD83D\\uDE00\": &x\\uD83D\\uDE00 1\n",
        "f: *x\\uD83D\\uDE00\n",
        "g: \"\\uE001\\uD83D\\uDE00\\U0000E002\"\n",
        "h: [\\é, \"\\uD83D\\uDE00\"]\n",
    );
    let value = read(text.as_bytes()).unwrap();
    assert_eq!(value["a"], "😀\\uD83D");
    assert_eq!(value["b"], "\\uD83D\\uDE00 \u{e000}");
    assert_eq!(value["c"], "\\ud83d\\uDE00");
    assert_eq!(value["d"], "\\uD83D\\uDE00\n");
    assert_eq!(value["😀"], 1);
    assert_eq!(value["f"], 1);
    assert_eq!(value["g"], "\u{e001}😀\u{e002}");
    assert_eq!(value["h"][1], "😀");
}

#[test]
fn anchors_on_keys_and_numbers_keep_their_type() {
    let value = read(b"&k 12: &v 1.0\na: *k\n*v : b\n").unwrap();
    assert_eq!(value, serde_json::json!({"12": 1, "a": 12, "1": "b"}));
}
