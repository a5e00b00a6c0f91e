//! Runs as values: workflows that ask for effects, and replays of what is recorded.
//!
//! Pure: nothing here reads a clock, a file or the network. The engine steps workflows and writes what replays say;
//! the offline commands of the program run the same code on the bytes of a bundle.

pub mod replay;
mod side_effects;
pub mod workflow;

pub use side_effects::SideEffectSummary;

use canon::{Map, Value};

/// Returns the members of an object; none of anything else.
pub(crate) fn members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

/// Returns the public text of a Message, by its payload.
pub(crate) fn message_text(payload: &Map<String, Value>) -> String {
    let parts = domain::payload::Message::of(payload).parts();
    let parts = parts.and_then(Value::as_array);
    domain::public_text(parts.map(Vec::as_slice).unwrap_or_default())
}
