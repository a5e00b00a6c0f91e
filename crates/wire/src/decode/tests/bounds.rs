//! The bounds that the description states, tried one by one.

use canon::Value;
use serde_json::json;

use super::{SESSION, TARGET, read, sample};
use crate::InputError;

/// A bound that a schema states, and where.
struct Bound {
    place: Vec<String>,
    at: Value,
    beyond: Value,
}

/// Follows references and leaves out null.
fn plain<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return plain(document, document.pointer(&target[1..]).expect(target));
    }
    match schema.get("anyOf").and_then(Value::as_array) {
        Some(options) => plain(document, &options[0]),
        None => schema,
    }
}

/// A small value that a schema admits.
fn example(document: &Value, schema: &Value) -> Value {
    let schema = plain(document, schema);
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        return words[0].clone();
    }
    let kind = schema.get("type").map(|kind| match kind {
        Value::Array(kinds) => kinds[0].as_str().unwrap(),
        kind => kind.as_str().unwrap(),
    });
    match kind {
        Some("string") => match schema.get("pattern").and_then(Value::as_str) {
            Some(pattern) if pattern.contains("{64}") => json!("0".repeat(64)),
            _ => json!("a"),
        },
        Some("integer" | "number") => json!(0),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        _ => {
            let required = schema.get("required").and_then(Value::as_array);
            let required = required
                .into_iter()
                .flatten()
                .map(|name| name.as_str().unwrap());
            let members = required.map(|name| {
                let of = &schema["properties"][name];
                (name.to_owned(), example(document, of))
            });
            Value::Object(members.collect())
        }
    }
}

/// An id of this many bytes, of the kind that a member names.
fn id_of(name: &str, bytes: usize) -> Value {
    let object = name.strip_suffix("_id").unwrap_or(name);
    let object = object.strip_prefix("parent_").unwrap_or(object);
    let prefix = format!("{object}_");
    json!(format!(
        "{prefix}{}",
        "x".repeat(bytes.saturating_sub(prefix.len()))
    ))
}

fn bounds(document: &Value, schema: &Value, place: &[String], found: &mut Vec<Bound>) {
    let schema = plain(document, schema);
    let number = |name: &str| schema.get(name).and_then(Value::as_u64);
    let mut add = |at: Value, beyond: Value| {
        let place = place.to_vec();
        found.push(Bound { place, at, beyond });
    };
    let name = place.last().map(String::as_str).unwrap_or_default();
    if let Some(most) = number("maxLength") {
        let text = |length: u64| match name.ends_with("_id") {
            true => id_of(name, length as usize),
            false => json!("x".repeat(length as usize)),
        };
        add(text(most), text(most + 1));
    }
    if let Some(most) = number("maximum") {
        add(json!(most), json!(most + 1));
    }
    if let Some(most) = number("x-canonical-bytes-max") {
        let object = |length: u64| json!({"a": "x".repeat(length as usize - 8)});
        add(object(most), object(most + 1));
    }
    if let Some(most) = number("maxItems") {
        let items = |count: u64| {
            let item = example(document, &schema["items"]);
            Value::Array(vec![item; count as usize])
        };
        add(items(most), items(most + 1));
    }
    if let Some(items) = schema.get("items") {
        let place = [place, &["0".to_owned()]].concat();
        bounds(document, items, &place, found);
    }
    let members = schema.get("properties").and_then(Value::as_object);
    for (name, of) in members.into_iter().flatten() {
        let place = [place, std::slice::from_ref(name)].concat();
        bounds(document, of, &place, found);
    }
}

/// Puts a value at a place of a body, and what is needed around it.
fn put(document: &Value, schema: &Value, body: &mut Value, place: &[String], value: &Value) {
    let Some((name, rest)) = place.split_first() else {
        *body = value.clone();
        return;
    };
    let schema = plain(document, schema);
    if let Some(items) = schema.get("items") {
        if body.as_array().is_none_or(Vec::is_empty) {
            *body = json!([example(document, items)]);
        }
        return put(document, items, &mut body[0], rest, value);
    }
    let of = &schema["properties"][name];
    if !body.is_object() {
        *body = example(document, schema);
    }
    if body.get(name).is_none_or(Value::is_null) {
        body[name] = example(document, of);
    }
    put(document, of, &mut body[name], rest, value);
}

/// Every bound of a body that the description states is the one that is kept: what is just within it is not refused for
/// its size, what is just beyond is, by the name of the member.
#[test]
fn what_the_description_bounds_is_bounded() {
    let sizes = crate::openapi::Sizes {
        body_bytes_max: 1,
        artifact_bytes_max: 1,
        bundle_bytes_max: 1,
        initial_messages_max: 2,
    };
    let document = crate::openapi::document("0", "http://x", &sizes);
    let mut count = 0;
    for operation in crate::openapi::operations() {
        use crate::openapi::Body::{Optional, Required};
        let (Some(decode), Required(name) | Optional(name)) = (operation.decode, operation.body)
        else {
            continue;
        };
        let schema = &document["components"]["schemas"][name];
        let mut found = Vec::new();
        bounds(&document, schema, &[], &mut found);
        for Bound { place, at, beyond } in found {
            let told = format!("{} {}", operation.id, place.join("."));
            let target = [TARGET, SESSION].concat();
            let mut body = sample(operation.id);
            put(&document, schema, &mut body, &place, &at);
            if let Err(refused) = read(decode, &target, &body) {
                let words = format!("{refused:?}");
                let by_size = [
                    "longer than",
                    "more than",
                    "must be an integer",
                    "from 0 to",
                ];
                assert!(
                    !by_size.iter().any(|by| words.contains(by)),
                    "{told}: {words}"
                );
            }
            let mut body = sample(operation.id);
            put(&document, schema, &mut body, &place, &beyond);
            match read(decode, &target, &body) {
                Err(
                    InputError::Invalid { param, .. }
                    | InputError::Unknown { param, .. }
                    | InputError::TooLarge { param, .. },
                ) => assert_eq!(param, place.join("."), "{told}"),
                other => panic!("{told}: {other:?}"),
            }
            count += 1;
        }
    }
    assert!(count > 120, "only {count} bounds");
}
