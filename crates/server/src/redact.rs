//! Takes a caller's own credential out of what it sends (AP-AUTH-03).
//!
//! A client that puts its key into a message would have it in the log for good, where nothing is ever removed. So the
//! key goes before anything is stored. Bytes of artifacts are not touched: their digest is the client's.

use canon::{Map, Value};

const MARK: &str = "[redacted:api_key]";

/// Replaces every occurrence of the key in strings and member names.
pub(crate) fn members(members: &mut Map<String, Value>, key: &str) {
    // Written after decoding and not over the raw bytes, because JSON can spell a character in several ways.
    if members.keys().any(|name| name.contains(key)) {
        let cleaned = std::mem::take(members).into_iter();
        members.extend(cleaned.map(|(name, member)| (name.replace(key, MARK), member)));
    }
    for member in members.values_mut() {
        value(member, key);
    }
}

fn value(here: &mut Value, key: &str) {
    match here {
        Value::String(text) if text.contains(key) => *text = text.replace(key, MARK),
        Value::Array(items) => items.iter_mut().for_each(|item| value(item, key)),
        Value::Object(inner) => members(inner, key),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ap_auth_03_the_key_goes_wherever_it_stands_and_the_rest_stays() {
        let mut body = json!({
            "a": "rk_1 and rk_1", "b": [1, null, {"rk_1": ["x rk_1"], "n": "rk_"}], "rk_1": true, "rk_2": "rk_2",
        });
        members(body.as_object_mut().unwrap(), "rk_1");
        let expected = json!({
            "a": "[redacted:api_key] and [redacted:api_key]",
            "b": [1, null, {"[redacted:api_key]": ["x [redacted:api_key]"], "n": "rk_"}],
            "[redacted:api_key]": true, "rk_2": "rk_2",
        });
        assert_eq!(body, expected);
    }
}
