//! RFC 8785 text of exact values: what arguments are digested and recorded as.
//!
//! Only for values whose numbers survived a double; the text is then the same as that of the doubles.

use crate::value::{Number, Value};

/// Returns the canonical text of a value.
pub(crate) fn text(value: &Value) -> String {
    let mut out = Vec::new();
    push(&mut out, value);
    // Every piece was written as UTF-8.
    String::from_utf8(out).unwrap_or_default()
}

fn push(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null | Value::Number(Number::OutOfRange { .. }) => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(Number::Exact(decimal)) => match decimal.as_u64() {
            Some(integer) if integer <= 1 << 53 => {
                out.extend_from_slice(integer.to_string().as_bytes());
            }
            Some(_) | None => {
                let double: f64 = decimal.to_string().parse().unwrap_or_default();
                out.extend_from_slice(canon::number(double).as_bytes());
            }
        },
        Value::String(text) => canon::append_string(out, text),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                push(out, item);
            }
            out.push(b']');
        }
        Value::Object(members) => {
            let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
            // The map is in the order of bytes, which is not that of UTF-16 units outside ASCII.
            if !members.keys().all(|name| name.is_ascii()) {
                sorted.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            }
            out.push(b'{');
            for (index, (name, member)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                canon::append_string(out, name);
                out.push(b':');
                push(out, member);
            }
            out.push(b'}');
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::json::{Limits, Numbers, read};

    #[test]
    fn the_text_is_that_of_the_canonical_writer() {
        for text in [
            r#"{"b":[1,2.50,-3e2,1e21,1e-7,0.1,-0,9007199254740992],"a":"é\u0007","ａ":1,"😀":2}"#,
            r#"{"z":{"y":null,"x":true},"":[],"amount_cents":12000,"5e-324":5e-324,"n":1e300}"#,
        ] {
            let value = read(text, Limits::ARGUMENTS, Numbers::Doubles).unwrap();
            let expected = canon::jcs(&serde_json::from_str(text).unwrap());
            assert_eq!(super::text(&value).as_bytes(), expected);
        }
    }
}
