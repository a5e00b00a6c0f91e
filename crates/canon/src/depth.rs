//! Whether a value can be read back once it is written: how deep it nests, and whether its numbers are exact.

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

/// True when a value holds a whole number that not every reader takes for the same one: beyond ±(2^53−1), however it is
/// written. A strict reader refuses it.
pub fn holds_unsafe_integer(value: &Value) -> bool {
    const SAFE_MAX: f64 = 9_007_199_254_740_991.0;
    match value {
        Value::Object(map) => map.values().any(holds_unsafe_integer),
        Value::Array(list) => list.iter().any(holds_unsafe_integer),
        Value::Number(number) => number
            .as_f64()
            .is_none_or(|number| number.fract() == 0.0 && number.abs() > SAFE_MAX),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Integers, read};

    #[test]
    fn what_is_unsafe_is_what_the_strict_reader_refuses() {
        for text in [
            "0",
            "-1.5",
            "9007199254740991",
            "-9007199254740991",
            "9007199254740992",
            "-9007199254740993",
            "18446744073709551615",
            "1e15",
            "1e16",
            "1e21",
            "-1e300",
            "1.5e300",
            "0.1",
            "5e-324",
        ] {
            let lenient: Value = serde_json::from_str(text).unwrap();
            let strict = read(&crate::jcs(&lenient), Integers::Safe);
            assert_eq!(holds_unsafe_integer(&lenient), strict.is_err(), "{text}");
            assert_eq!(
                holds_unsafe_integer(&json!([{"a": lenient}])),
                strict.is_err(),
                "{text}"
            );
        }
    }

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
