//! Keeping secrets out of a receipt while it is built: after that its hash would break.
//!
//! Knows every text of the document; what a secret looks like is in `credentials`.

use canon::Value;
use credentials::is_kept_out_of_receipts as is_secret;

use crate::{
    build::{self, BuildError, object, text},
    receipt::Receipt,
    shape::push_step,
};

const REPLACEMENT: &str = "redacted";
const REASON: &str = "looks like a secret";

impl Receipt {
    /// Returns an unsigned receipt without the texts that hold a secret. Each place is named in `redactions`, without
    /// any digest: that of a short secret would betray it. An object with a secret as a member's name is emptied.
    ///
    /// # Errors
    /// A secret stood where the receipt says whose it is or when it was issued.
    pub fn redacted(self) -> Result<Self, BuildError> {
        // Nearly always there is none, and nothing has to be copied.
        if !self.as_map().values().any(holds) {
            return Ok(self);
        }
        let mut map = self.as_map().clone();
        let mut places = Vec::new();
        for (name, value) in &mut map {
            let mut pointer = String::new();
            push_step(&mut pointer, name);
            walk(value, &pointer, &mut places);
        }
        let entries = places.iter().map(|place| {
            let entry = object([("field", text(place)), ("reason", text(REASON))]);
            Value::Object(entry)
        });
        let list = map
            .entry("redactions")
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.extend(entries);
        }
        build::seal_fitting(|| map.clone())
    }
}

/// True when a text or the name of a member is a secret.
fn holds(value: &Value) -> bool {
    match value {
        Value::String(text) => is_secret(text),
        Value::Object(members) => members
            .iter()
            .any(|(name, value)| is_secret(name) || holds(value)),
        Value::Array(items) => items.iter().any(holds),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn walk(value: &mut Value, pointer: &str, places: &mut Vec<String>) {
    let mut step = |value: &mut Value, name: &str| {
        let mut pointer = pointer.to_owned();
        push_step(&mut pointer, name);
        walk(value, &pointer, places);
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
