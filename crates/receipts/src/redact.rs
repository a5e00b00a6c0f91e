//! Keeping secrets out of a receipt while it is built: after that its hash would break.
//!
//! Knows every text of the document, not what a secret looks like: that is for the caller to say.

use canon::{Map, Value};

use crate::{
    build::{object, text},
    shape::push_step,
};

const REPLACEMENT: &str = "redacted";
const REASON: &str = "looks like a secret";

/// Replaces every text that holds a secret and names its place in `redactions`, without any digest of it: that of a
/// short secret would betray it. An object with a secret as a member's name is emptied.
pub(crate) fn redact(map: &mut Map<String, Value>, is_secret: &dyn Fn(&str) -> bool) {
    let mut places = Vec::new();
    for (name, value) in map.iter_mut() {
        let mut pointer = String::new();
        push_step(&mut pointer, name);
        walk(value, &pointer, is_secret, &mut places);
    }
    let entries = places.iter().map(|place| {
        let entry = object([("field", text(place)), ("reason", text(REASON))]);
        Value::Object(entry)
    });
    if let Some(Value::Array(list)) = map.get_mut("redactions") {
        list.extend(entries);
    }
}

fn walk(
    value: &mut Value,
    pointer: &str,
    is_secret: &dyn Fn(&str) -> bool,
    places: &mut Vec<String>,
) {
    let mut step = |value: &mut Value, name: &str| {
        let mut pointer = pointer.to_owned();
        push_step(&mut pointer, name);
        walk(value, &pointer, is_secret, places);
    };
    match value {
        Value::String(text) if is_secret(text) => {
            REPLACEMENT.clone_into(text);
            places.push(pointer.to_owned());
        }
        Value::Object(members) if members.keys().any(|name| is_secret(name)) => {
            members.clear();
            places.push(pointer.to_owned());
        }
        Value::Object(members) => members
            .iter_mut()
            .for_each(|(name, value)| step(value, name)),
        Value::Array(items) => (0..)
            .zip(items)
            .for_each(|(index, value): (usize, _)| step(value, &index.to_string())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
