//! How deep a value nests.

use serde_json::Value;

/// The deepest text that a reader takes.
pub const DEPTH_MAX: usize = 127;

/// The deepest value that is taken from outside. What is wrapped around it on its way (an event, the state of a
/// workflow, a list) still fits [`DEPTH_MAX`], so that whatever is written can be read.
pub const VALUE_DEPTH_MAX: usize = 100;

/// Returns how many objects and arrays lie inside each other; a plain value has none.
pub fn depth(value: &Value) -> usize {
    let deepest = match value {
        Value::Object(map) => map.values().map(depth).max(),
        Value::Array(list) => list.iter().map(depth).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 0,
    };
    1 + deepest.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Integers, read};

    #[test]
    fn depth_counts_what_the_reader_counts() {
        assert_eq!(depth(&json!(1)), 0);
        assert_eq!(depth(&json!([])), 1);
        assert_eq!(depth(&json!({"a": 1, "b": [{"c": []}, 2]})), 4);
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let deepest = read(nested(DEPTH_MAX).as_bytes(), Integers::Safe).unwrap();
        assert_eq!(depth(&deepest), DEPTH_MAX);
        assert!(read(nested(DEPTH_MAX + 1).as_bytes(), Integers::Safe).is_err());
    }
}
