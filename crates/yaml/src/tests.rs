//! What is read, what is refused, and where.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;

const LIMITS: Limits = Limits {
    nodes_max: 200,
    depth_max: 16,
};

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    name: String,
    count: Option<u64>,
    share: f64,
    on: bool,
    tier: Tier,
    tools: Vec<String>,
    more: BTreeMap<String, Value>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Tier {
    #[default]
    Low,
    High,
}

fn read(text: &str) -> Result<File, String> {
    from_str(text, LIMITS).map_err(|error| error.to_string())
}

fn value(text: &str) -> Result<Value, String> {
    from_str(text, LIMITS).map_err(|error| error.to_string())
}

#[test]
fn a_scalar_is_what_the_type_wants() {
    let text = "name: 1.10\ncount: 3\nshare: 2\non: true\ntier: high\ntools: [a, 2, true, \"null\"]\nmore: {1: 1, yes: no}\n";
    let file = read(text).unwrap();
    assert_eq!(file.name, "1.10");
    assert_eq!((file.count, file.share, file.on), (Some(3), 2.0, true));
    assert_eq!(file.tier, Tier::High);
    assert_eq!(file.tools, ["a", "2", "true", "null"]);
    assert_eq!(json!(file.more), json!({"1": 1, "yes": "no"}));
}

#[test]
fn without_a_type_the_words_and_numbers_of_json_are_meant() {
    let text = "[~, null, '', true, yes, 0, -7, 18446744073709551615, 0.5, 1e3, '1', 2026-11-15, 1.2.3, a b]";
    assert_eq!(
        value(text).unwrap(),
        json!([
            null,
            null,
            "",
            true,
            "yes",
            0,
            -7,
            18446744073709551615u64,
            0.5,
            1000.0,
            "1",
            "2026-11-15",
            "1.2.3",
            "a b"
        ])
    );
    assert_eq!(
        value("a: |\n  x\n  y\nb: >-\n  x\n  y\n").unwrap(),
        json!({"a": "x\ny\n", "b": "x y"})
    );
}

#[test]
fn nothing_is_empty_where_something_may_be_empty() {
    assert_eq!(read("").unwrap(), File::default());
    assert_eq!(read("# nothing\n").unwrap(), File::default());
    assert_eq!(
        read("\u{feff}count:\ntools:\nmore: ~\n").unwrap(),
        File::default()
    );
    assert_eq!(
        read("name:\n").unwrap_err(),
        "invalid type: unit value, expected a string at line 1 column 5"
    );
}

#[test]
fn aliases_stand_for_what_they_name_as_often_as_the_limit_allows() {
    assert_eq!(
        value("a: &x {b: [1]}\nc: [*x, *x]\n").unwrap(),
        json!({"a": {"b": [1]}, "c": [{"b": [1]}, {"b": [1]}]})
    );
    let bomb = "a: &a [1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b]\n";
    assert_eq!(
        value(bomb).unwrap_err(),
        "more than 200 values at line 3 column 20"
    );
    assert_eq!(
        value("a: &a [*a]\n").unwrap_err(),
        "an alias inside of what it names at line 1 column 8"
    );
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (text, expected) in [
        (
            "name: a\nnmae: b\n",
            "unknown field `nmae`, expected one of `name`, `count`, `share`, `on`, `tier`, `tools`, `more` at line 2 column 1",
        ),
        (
            "tools:\n  - a\n  - [b]\n",
            "invalid type: sequence, expected a string at line 3 column 5",
        ),
        (
            "on: yes\n",
            "invalid type: string \"yes\", expected a boolean at line 1 column 5",
        ),
        (
            "count: '3'\n",
            "invalid type: string \"3\", expected u64 at line 1 column 8",
        ),
        (
            "count: -3\n",
            "invalid value: integer `-3`, expected u64 at line 1 column 8",
        ),
        (
            "tier: middle\n",
            "unknown variant `middle`, expected `low` or `high` at line 1 column 7",
        ),
        (
            "tier: {low: 1}\n",
            "invalid type: map, expected enum Tier at line 1 column 7",
        ),
        (
            "name: a\nmore: {x: 1, x: 2}\n",
            "key `x` occurs twice at line 2 column 14",
        ),
        (
            "name: a\n\"name\": a\n",
            "key `name` occurs twice at line 2 column 1",
        ),
        (
            "more: {[1]: 1}\n",
            "a key is a text; put it in quotes at line 1 column 8",
        ),
        (
            "more: {~: 1}\n",
            "a key is a text; put it in quotes at line 1 column 8",
        ),
        (
            "name: !!str a\n",
            "tags are not supported at line 1 column 7",
        ),
        (
            "more: &m {}\ntools: []\n<<: *m\n",
            "merge keys are not supported: write the members out at line 3 column 1",
        ),
        (
            "name: a\n---\nname: b\n",
            "a file holds one document at line 2 column 1",
        ),
        (
            "count: 0x10\n",
            "`0x10` is a number in some readers and a text in others: write it as JSON does, or in quotes at line 1 column 8",
        ),
        (
            "more: {a: 18446744073709551616}\n",
            "`18446744073709551616` has more digits than a whole number may have at line 1 column 11",
        ),
        (
            "- a\n",
            "invalid type: sequence, expected struct File at line 1 column 1",
        ),
    ] {
        assert_eq!(read(text).err().as_deref(), Some(expected), "{text}");
    }
    assert!(read("name: [a\ntier: b").unwrap_err().contains(" at line "));
}

#[test]
fn numbers_that_readers_take_for_different_things_are_refused() {
    for text in [
        "1_000", "+5", ".5", "5.", "010", ".inf", "-.Inf", "0o17", "0b1",
    ] {
        assert!(value(text).is_err(), "{text}");
    }
}

#[test]
fn every_size_has_a_limit() {
    assert!(value(&format!("[{}]", "1,".repeat(199))).is_ok());
    assert!(value(&format!("[{}]", "1,".repeat(200))).is_err());
    assert!(value(&format!("{}{}", "[".repeat(16), "]".repeat(16))).is_ok());
    assert!(value(&format!("{}{}", "[".repeat(17), "]".repeat(17))).is_err());
    assert!(value(&"[".repeat(60_000)).is_err());
    assert!(value(&"- ".repeat(60_000)).is_err());
}
