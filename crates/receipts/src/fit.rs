//! Making content fit the format: what a receipt cannot say is left out or replaced, and named as a redaction.
//!
//! Only what a run brings with it is treated so: usage, tool calls, failures, approvals. Who issued the receipt, about
//! what, when and after which one must be right, and stays an error.

use canon::{Map, Value};

use crate::{
    build::{object, text},
    format::RECEIPT,
    shape::{Closed, Shape, push_step},
};

/// Why such a value is missing.
const REASON: &str = "unrepresentable";

/// Members of a receipt that come from outside.
const CONTENT: [&str; 9] = [
    "approvals",
    "autonomy_budget",
    "cost",
    "deltas",
    "final_artifacts",
    "metadata",
    "model_route",
    "replay_input",
    "side_effects",
];

/// How deep the open objects of a receipt may nest. The strict reader takes more; what a receipt is wrapped in needs some.
const DEPTH_MAX: usize = 64;

/// Replaces what does not fit and names each place in `redactions`.
pub(crate) fn fit(map: &mut Map<String, Value>) {
    let mut places = Vec::new();
    for member in RECEIPT
        .members
        .iter()
        .filter(|member| CONTENT.contains(&member.name))
    {
        if let Some(value) = map.get_mut(member.name) {
            let pointer = format!("/{}", member.name);
            if !fits(value, &member.shape, &pointer, &mut places) {
                *value = stand_in(&member.shape);
            }
        }
    }
    let failure = map
        .get_mut("lifecycle")
        .and_then(|lifecycle| lifecycle.get_mut("failure"));
    if let Some(failure) = failure {
        open(failure, 1, "/lifecycle/failure", &mut places);
    }
    if places.is_empty() {
        return;
    }
    let list = map
        .entry("redactions")
        .or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(list) = list {
        list.extend(places.iter().map(|place| {
            Value::Object(object([("field", text(place)), ("reason", text(REASON))]))
        }));
    }
}

/// Puts what is inside a value right. False when the value itself has to go; its place is noted then.
fn fits(value: &mut Value, shape: &Shape, pointer: &str, places: &mut Vec<String>) -> bool {
    match (&mut *value, shape) {
        (Value::Object(map), Shape::Closed(closed)) => {
            members(map, closed, pointer, places);
            return true;
        }
        (Value::Array(items), Shape::List(item_shape)) => {
            for (index, item) in items.iter_mut().enumerate() {
                let pointer = format!("{pointer}/{index}");
                if !fits(item, item_shape, &pointer, places) {
                    *item = stand_in(item_shape);
                }
            }
            return true;
        }
        (Value::Object(_), Shape::Open | Shape::OpenOrNull) => {
            open(value, 1, pointer, places);
            return true;
        }
        _ => {}
    }
    let is_fit = is_safe(value) && crate::shape::check(value, shape).is_ok();
    if !is_fit {
        places.push(pointer.to_owned());
    }
    is_fit
}

fn members(map: &mut Map<String, Value>, closed: &Closed, pointer: &str, places: &mut Vec<String>) {
    for member in closed.members {
        let pointer = format!("{pointer}/{}", member.name);
        let is_fit = match map.get_mut(member.name) {
            Some(value) => fits(value, &member.shape, &pointer, places),
            None if member.required => {
                places.push(pointer);
                false
            }
            None => true,
        };
        if !is_fit && member.required {
            map.insert(member.name.to_owned(), stand_in(&member.shape));
        } else if !is_fit {
            map.remove(member.name);
        }
    }
    let complete = |group: &&[&str]| group.iter().all(|name| map.contains_key(*name));
    if !closed.any_of.is_empty() && !closed.any_of.iter().any(complete) {
        // A material whose content cannot be named still says that there was one.
        map.insert("metadata".to_owned(), Value::Object(Map::new()));
    }
}

/// Puts an object right whose members are not ours: numbers keep their text, what is too deep is left out.
fn open(value: &mut Value, depth: usize, pointer: &str, places: &mut Vec<String>) {
    let step = |name: &str| {
        let mut pointer = pointer.to_owned();
        push_step(&mut pointer, name);
        pointer
    };
    match value {
        Value::Number(_) if !is_safe(value) => {
            *value = value.to_string().into();
            places.push(pointer.to_owned());
        }
        Value::Array(_) | Value::Object(_) if depth >= DEPTH_MAX => {
            *value = Value::Null;
            places.push(pointer.to_owned());
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                open(item, depth + 1, &step(&index.to_string()), places);
            }
        }
        Value::Object(map) => {
            for (name, item) in map.iter_mut() {
                open(item, depth + 1, &step(name), places);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// True for everything but integers that a double cannot hold exactly.
fn is_safe(value: &Value) -> bool {
    const SAFE_MAX: u64 = (1 << 53) - 1;
    let Value::Number(number) = value else {
        return true;
    };
    if let Some(integer) = number.as_i64() {
        return integer.unsigned_abs() <= SAFE_MAX;
    }
    number
        .as_f64()
        .is_some_and(|double| double.fract() != 0.0 || double.abs() <= SAFE_MAX as f64)
}

/// What stands where the format demands something and nothing fits. The redaction beside it says that it means nothing.
fn stand_in(shape: &Shape) -> Value {
    match shape {
        Shape::Text => "unknown".into(),
        Shape::TextOrNull | Shape::DigestOrNull | Shape::AmountOrNull | Shape::OpenOrNull => {
            Value::Null
        }
        Shape::OneOf(words) => words.first().copied().unwrap_or("unknown").into(),
        Shape::Time => "1970-01-01T00:00:00Z".into(),
        Shape::Digest => canon::sha256(b"").to_string().into(),
        Shape::Currency => "XXX".into(),
        Shape::Amount => 0.into(),
        Shape::Whole(least) => (*least as u64).into(),
        Shape::Flag => false.into(),
        Shape::Open => Value::Object(Map::new()),
        Shape::List(_) => Value::Array(Vec::new()),
        Shape::Closed(closed) => closed
            .members
            .iter()
            .filter(|member| member.required)
            .map(|member| (member.name.to_owned(), stand_in(&member.shape)))
            .collect::<Map<String, Value>>()
            .into(),
    }
}
