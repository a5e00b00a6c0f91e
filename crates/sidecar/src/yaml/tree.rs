//! The plain way to a canonical text, which the writer must agree with: build a value, then write the value.
//!
//! Knows no limits. Texts that reach one are not compared.

use std::collections::BTreeMap;

use canon::{Map, Number, Value};
use proptest::prelude::*;

use super::write::name_of;
use super::{Item, Limits, Resolved, YamlError, YamlRefusal, read_yaml, walk};
use crate::hash::Profile;

/// A node and the name it gives as a key; collections give none.
type Node = (Value, Option<String>);

fn items(text: &[u8], profile: Profile) -> Result<Vec<Item<'static>>, YamlError> {
    let mut items = Vec::new();
    walk(text, profile, Limits::STANDARD, |item, _| {
        items.push(match item {
            Item::Scalar {
                resolved,
                text,
                anchor,
            } => Item::Scalar {
                resolved,
                text: text.into_owned().into(),
                anchor,
            },
            Item::Alias(anchor) => Item::Alias(anchor),
            Item::OpenSequence(anchor) => Item::OpenSequence(anchor),
            Item::OpenMapping(anchor) => Item::OpenMapping(anchor),
            Item::Close => Item::Close,
        });
        Ok(())
    })?;
    Ok(items)
}

/// Returns the next node, or nothing at the end of its collection; `Err` is a refusal.
fn node(
    items: &mut std::vec::IntoIter<Item<'static>>,
    anchors: &mut BTreeMap<usize, Node>,
) -> Result<Option<Node>, ()> {
    let Some(item) = items.next() else {
        return Ok(None);
    };
    let (node, anchor) = match item {
        Item::Close => return Ok(None),
        Item::Alias(anchor) => (anchors.get(&anchor).cloned().ok_or(())?, 0),
        Item::Scalar {
            resolved,
            text,
            anchor,
        } => {
            let value = match resolved {
                Resolved::Null => Value::Null,
                Resolved::Bool(value) => Value::Bool(value),
                Resolved::Number(number) => {
                    Number::from_f64(number).map_or(Value::Null, Value::Number)
                }
                Resolved::Text => Value::String(text.clone().into_owned()),
            };
            let name = name_of(resolved, &text).0.into_owned();
            ((value, Some(name)), anchor)
        }
        Item::OpenSequence(anchor) => {
            let mut values = Vec::new();
            while let Some((value, _)) = node(items, anchors)? {
                values.push(value);
            }
            ((Value::Array(values), None), anchor)
        }
        Item::OpenMapping(anchor) => {
            let mut members = Map::new();
            while let Some((_, name)) = node(items, anchors)? {
                let name = name.ok_or(())?;
                let (value, _) = node(items, anchors)?.ok_or(())?;
                if name == "__proto__" || members.insert(name, value).is_some() {
                    return Err(());
                }
            }
            ((Value::Object(members), None), anchor)
        }
    };
    if anchor > 0 {
        anchors.insert(anchor, node.clone());
    }
    Ok(Some(node))
}

fn through_a_tree(text: &[u8], profile: Profile) -> Result<Vec<u8>, ()> {
    let items = items(text, profile).map_err(|_| ())?;
    let node = node(&mut items.into_iter(), &mut BTreeMap::new())?;
    let order = match profile {
        Profile::Jcs1 => canon::Profile::Jcs,
        Profile::AhdJs1 => canon::Profile::AhdJs1,
    };
    Ok(canon::canonical(
        &node.map_or(Value::Null, |(value, _)| value),
        order,
    ))
}

fn check(text: &str) -> Result<(), TestCaseError> {
    for profile in [Profile::Jcs1, Profile::AhdJs1] {
        let written = read_yaml(text.as_bytes(), profile, Limits::STANDARD);
        if let Err(error) = &written
            && error.refusal() == YamlRefusal::TooLarge
        {
            continue;
        }
        let tree = through_a_tree(text.as_bytes(), profile);
        let shown = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let digest = tree.as_ref().ok().map(|bytes| canon::sha256(bytes));
        prop_assert_eq!(
            written.as_ref().ok().map(super::CanonicalText::digest),
            digest,
            "{}",
            text
        );
        prop_assert_eq!(
            written.ok().map(|text| shown(text.to_vec())),
            tree.ok().map(shown),
            "{}",
            text
        );
    }
    Ok(())
}

/// Names that meet every rule of order: array indexes, digits that are none, UTF-16, escapes, other types.
const NAMES: &str = r#"a b aa ab B c10 c9 10 9 1 0 00 4294967294 4294967295 -1 1.5 true ~ "" "\n" "\\" "\uE000"
    "\uD83D\uDE00" "\uFFFF" "é" "~" "!" "10" zz zy _ A"#;

const SCALARS: &str =
    r#"x y 1 1.50 -0 1e21 1e-7 0x1F 017 true null ~ "\t\u0001é" "\uD83D\uDE00" 'it''s' &x"#;

fn word(words: &'static str) -> impl Strategy<Value = String> {
    let words: Vec<&str> = words.split_whitespace().collect();
    prop::sample::select(words).prop_map(str::to_owned)
}

/// A list of nodes in flow style; `with_anchors` names the anchors.
fn flow() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        40 => word(SCALARS),
        6 => Just("*".to_owned()),
        1 => word(".inf .nan 1e400 !x"),
    ];
    let node = leaf.prop_recursive(5, 60, 7, |inner| {
        let name = prop_oneof![
            120 => word(NAMES),
            2 => Just("*".to_owned()),
            2 => Just("&k".to_owned()),
            1 => word("__proto__ [] .inf"),
        ];
        let anchor = prop::sample::select(vec!["", "", "", "&c "]);
        let members = prop::collection::vec((name, inner.clone()), 0..6);
        let items = prop::collection::vec(inner, 0..5);
        prop_oneof![
            2 => (anchor.clone(), members).prop_map(|(anchor, members)| {
                let members: Vec<String> =
                    members.iter().map(|(name, node)| format!("{name} : {node}")).collect();
                format!("{anchor}{{{}}}", members.join(", "))
            }),
            1 => (anchor, items).prop_map(|(anchor, items)| format!("{anchor}[{}]", items.join(", "))),
        ]
    });
    prop::collection::vec(node, 1..4).prop_map(|nodes| format!("[{}]", nodes.join(", ")))
}

/// Gives anchors names of their own, and aliases the name of one of those before them.
fn with_anchors(text: &str, picks: &[usize]) -> String {
    let mut out = String::new();
    let mut anchors = 0;
    let mut picks = picks.iter().cycle();
    let mut rest = text.chars().peekable();
    while let Some(next) = rest.next() {
        match next {
            '&' => {
                let scalar = rest.next() != Some('c');
                out.push_str(&format!("&n{anchors}{}", if scalar { " s" } else { "" }));
                anchors += 1;
            }
            '*' if anchors == 0 => out.push_str("none"),
            '*' => out.push_str(&format!("*n{}", picks.next().unwrap() % anchors)),
            other => out.push(other),
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn the_writer_agrees_with_the_tree(text in flow(), picks in prop::collection::vec(0..50_usize, 1..20)) {
        check(&with_anchors(&text, &picks))?;
    }
}

/// Anchored objects out of order, inside each other, used before and after their parents close.
#[test]
fn repeated_objects_keep_their_order() {
    for text in [
        "b: &b {z: 1, a: {d: 1, c: 2}}\na: *b\n",
        "- &o {z: &i {y: 1, x: 2}, a: *i}\n- *o\n- {q: *i, p: *o}\n",
        "{b: {b: {b: {b: 1, a: 1}, a: 1}, a: 1}, a: 1}",
        "{a: {b: 1, a: 1}, b: {a: 1, b: {d: 1, c: 1}}, c: []}",
        "{b: [{d: 1, c: 1}, {c: 1, d: 1}, {d: {z: 1, y: 1}, c: 1}], a: 1}",
        "",
        "{}",
        "[]",
    ] {
        check(text).unwrap();
    }
    let text = read_yaml(
        b"b: &b {z: 1, a: {d: 1, c: 2}}\na: *b\n",
        Profile::Jcs1,
        Limits::STANDARD,
    );
    assert_eq!(
        String::from_utf8(text.unwrap().to_vec()).unwrap(),
        r#"{"a":{"a":{"c":2,"d":1},"z":1},"b":{"a":{"c":2,"d":1},"z":1}}"#
    );
}
