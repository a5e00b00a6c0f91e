//! Results of effects, made safe to record.
//!
//! Whoever performed an effect, its result becomes part of events, receipts and replays. These hold only numbers that
//! every reader of JSON reads alike, and are read with a limit on depth. What does not fit is kept as text here, once,
//! so that nothing later has to check.

use canon::{Number, Value};

use super::EffectOutcome;

/// Integers up to here are the same number for every reader.
pub const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;
/// How deep a value from outside may nest. Events are read with 127 levels, and wrap it: in a payload, in the override
/// of a replay, in a bundle.
pub const VALUE_DEPTH_MAX: usize = 64;
/// How many characters of an id or a name from outside are kept.
pub const NAME_CHARS_MAX: usize = 256;

impl EffectOutcome {
    /// Returns the same result in a form that can be recorded and read back.
    ///
    /// Numbers that a double cannot hold become their text, and so does what nests too deeply. A usage or a price that
    /// cannot be one is unknown.
    #[must_use]
    pub fn made_safe(mut self) -> Self {
        self.value = safe(self.value, VALUE_DEPTH_MAX);
        self.provider_request_id = self.provider_request_id.map(short);
        if let Some(used) = &mut self.model {
            for tokens in [&mut used.input_tokens, &mut used.output_tokens] {
                if *tokens > SAFE_INTEGER_MAX {
                    *tokens = 0;
                    used.usage_unknown = true;
                    used.cost_micros = None;
                }
            }
            used.cost_micros = used.cost_micros.filter(|cost| *cost <= SAFE_INTEGER_MAX);
            if used.cost_micros.is_none() {
                used.price_table = None;
            }
            used.provider = short(std::mem::take(&mut used.provider));
            used.model = short(std::mem::take(&mut used.model));
        }
        self
    }
}

fn safe(value: Value, levels: usize) -> Value {
    match value {
        Value::Number(number) if is_unsafe(&number) => Value::String(number.to_string()),
        Value::Array(_) | Value::Object(_) if levels == 0 => Value::String(value.to_string()),
        Value::Array(items) => items
            .into_iter()
            .map(|item| safe(item, levels - 1))
            .collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(name, member)| (name, safe(member, levels - 1)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

/// Above the limit every double is an integer, and most integers are no double.
fn is_unsafe(number: &Number) -> bool {
    if let Some(number) = number.as_u64() {
        return number > SAFE_INTEGER_MAX;
    }
    if let Some(number) = number.as_i64() {
        return number.unsigned_abs() > SAFE_INTEGER_MAX;
    }
    number
        .as_f64()
        .is_none_or(|number| number.abs() > SAFE_INTEGER_MAX as f64)
}

fn short(text: String) -> String {
    match text.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => text.get(..end).unwrap_or_default().to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use canon::{Integers, jcs, read};
    use domain::ModelUse;
    use serde_json::json;

    use super::*;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }))
    }

    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
            Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    #[test]
    fn numbers_that_a_double_cannot_hold_become_text() {
        let value = json!({"a": [
            9_007_199_254_740_993_u64, 9_007_199_254_740_991_u64, -9_007_199_254_740_993_i64, 1.5,
            18_446_744_073_709_551_615_u64, 1e300, -0.5, 1e-300,
        ]});
        let made = EffectOutcome::ok(value).made_safe().value;
        assert_eq!(
            made,
            json!({"a": [
                "9007199254740993", 9_007_199_254_740_991_u64, "-9007199254740993", 1.5,
                "18446744073709551615", "1e+300", -0.5, 1e-300,
            ]})
        );
        assert_eq!(read(&jcs(&made), Integers::Safe).unwrap(), made);
    }

    #[test]
    fn what_nests_too_deeply_is_kept_as_text() {
        let fits = nested(VALUE_DEPTH_MAX);
        assert_eq!(EffectOutcome::ok(fits.clone()).made_safe().value, fits);
        let made = EffectOutcome::ok(nested(127)).made_safe().value;
        assert_eq!(depth(&made), VALUE_DEPTH_MAX);
        let pointer = "/a".repeat(VALUE_DEPTH_MAX);
        let text = made.pointer(&pointer).and_then(Value::as_str).unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(text).unwrap(),
            nested(127 - VALUE_DEPTH_MAX)
        );
        let list = (0..127).fold(json!([]), |inner, _| json!([inner]));
        assert_eq!(
            depth(&EffectOutcome::ok(list).made_safe().value),
            VALUE_DEPTH_MAX
        );
    }

    #[test]
    fn a_use_that_cannot_be_one_is_unknown() {
        let used = ModelUse {
            provider: "p".to_owned(),
            model: "m".repeat(10_000),
            input_tokens: 3,
            output_tokens: SAFE_INTEGER_MAX + 1,
            cost_micros: Some(5),
            price_table: Some("t".to_owned()),
            usage_unknown: false,
        };
        let performed = EffectOutcome {
            model: Some(used.clone()),
            provider_request_id: Some("ü".repeat(300)),
            ..EffectOutcome::ok(json!({}))
        };
        let made = performed.made_safe();
        assert_eq!(
            made.provider_request_id.unwrap().chars().count(),
            NAME_CHARS_MAX
        );
        let made = made.model.unwrap();
        assert_eq!(made.model.len(), NAME_CHARS_MAX);
        assert_eq!((made.input_tokens, made.output_tokens), (3, 0));
        assert!(made.usage_unknown);
        assert_eq!((made.cost_micros, made.price_table), (None, None));
        let dear = ModelUse {
            output_tokens: 1,
            cost_micros: Some(u64::MAX),
            ..used
        };
        let performed = EffectOutcome {
            model: Some(dear),
            ..EffectOutcome::ok(json!({}))
        };
        let made = performed.made_safe().model.unwrap();
        assert!(!made.usage_unknown);
        assert_eq!((made.cost_micros, made.price_table), (None, None));
    }
}
