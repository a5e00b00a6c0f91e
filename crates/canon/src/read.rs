//! The strict reader: JSON text to a value, or the reason why not.
//!
//! Refuses what a lenient reader would silently change: duplicate member names, lone surrogates,
//! numbers beyond a double, bytes that are not UTF-8, and, under [`Integers::Safe`], integers that a
//! double cannot hold exactly.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// What to do with integers outside ±(2^53−1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integers {
    /// Refuse them: their canonical form would be another number.
    Safe,
    /// Read them as the nearest double, as RFC 8785 does.
    Doubles,
}

/// Why a text was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Not a JSON text.
    Syntax,
    /// Bytes that are not UTF-8.
    InvalidUtf8,
    /// A member name occurs twice in one object.
    DuplicateKey,
    /// A string holds half of a surrogate pair.
    LoneSurrogate,
    /// A number overflows a double.
    NumberOutOfRange,
    /// An integer outside ±(2^53−1) under [`Integers::Safe`].
    UnsafeInteger,
    /// Nested deeper than 127 levels.
    TooDeep,
    /// A JSON text of another type than the caller asked for.
    WrongType,
}

/// A refused text: the reason, a message for people, and where it was seen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} at line {line} column {column}")]
pub struct ReadError {
    reason: Reason,
    message: String,
    line: usize,
    column: usize,
}

impl ReadError {
    /// Returns the class of the refusal.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns the message without the place.
    pub fn message(&self) -> &str {
        &self.message
    }
}

const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;
const DUPLICATE: &str = "duplicate member name";
const UNSAFE_INTEGER: &str = "integer outside ±(2^53−1)";

/// Reads one JSON text strictly.
///
/// # Errors
/// Returns the first reason to refuse the text, see [`Reason`].
pub fn read(bytes: &[u8], integers: Integers) -> Result<Value, ReadError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = before
            .iter()
            .rev()
            .take_while(|byte| **byte != b'\n')
            .count()
            + 1;
        ReadError {
            reason: Reason::InvalidUtf8,
            message: "not UTF-8".to_owned(),
            line,
            column,
        }
    })?;
    let mut reader = serde_json::Deserializer::from_str(text);
    Strict { integers }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| classify(&error))
}

/// Reads one JSON text strictly and requires an object.
///
/// # Errors
/// As [`read`], and [`Reason::WrongType`] for any other value.
pub fn read_object(bytes: &[u8], integers: Integers) -> Result<Map<String, Value>, ReadError> {
    match read(bytes, integers)? {
        Value::Object(map) => Ok(map),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(ReadError {
                reason: Reason::WrongType,
                message: "not a JSON object".to_owned(),
                line: 1,
                column: 1,
            })
        }
    }
}

fn classify(error: &serde_json::Error) -> ReadError {
    let text = error.to_string();
    let message = text.split(" at line ").next().unwrap_or(&text);
    // The reader below reports these two by our own words; the rest are serde_json's.
    let reason = if message.starts_with(DUPLICATE) {
        Reason::DuplicateKey
    } else if message.starts_with(UNSAFE_INTEGER) {
        Reason::UnsafeInteger
    } else if message.contains("surrogate") || message.starts_with("unexpected end of hex escape") {
        Reason::LoneSurrogate
    } else if message.starts_with("number out of range") {
        Reason::NumberOutOfRange
    } else if message.starts_with("recursion limit exceeded") {
        Reason::TooDeep
    } else {
        Reason::Syntax
    };
    ReadError {
        reason,
        message: message.to_owned(),
        line: error.line(),
        column: error.column(),
    }
}

#[derive(Clone, Copy)]
struct Strict {
    integers: Integers,
}

impl Strict {
    fn integer<E: de::Error>(self, magnitude: u64, number: Number) -> Result<Value, E> {
        if self.integers == Integers::Safe && magnitude > SAFE_INTEGER_MAX {
            return Err(E::custom(format_args!("{UNSAFE_INTEGER}: {number}")));
        }
        Ok(Value::Number(number))
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        self.integer(value, value.into())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        self.integer(value.unsigned_abs(), value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("number out of range"))?;
        // An integer too long for 64 bits also arrives here; so does `1e300`, which is no safe
        // integer either: its canonical form drops digits that were never significant.
        if self.integers == Integers::Safe
            && value.abs() > SAFE_INTEGER_MAX as f64
            && value.fract() == 0.0
        {
            return Err(E::custom(format_args!("{UNSAFE_INTEGER}: {number}")));
        }
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            if map.contains_key(&name) {
                return Err(de::Error::custom(format_args!("{DUPLICATE} `{name}`")));
            }
            let value = access.next_value_seed(self)?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str, integers: Integers) -> Result<Value, Reason> {
        read(text.as_bytes(), integers).map_err(|error| error.reason())
    }

    #[test]
    fn unsafe_integers_are_refused_only_when_asked() {
        for text in [
            "9007199254740992",
            "-9007199254740992",
            "18446744073709551616",
            "1e300",
        ] {
            assert_eq!(
                reason(text, Integers::Safe),
                Err(Reason::UnsafeInteger),
                "{text}"
            );
            assert!(reason(text, Integers::Doubles).is_ok(), "{text}");
        }
        for text in ["9007199254740991", "-9007199254740991", "0.5", "1e15"] {
            assert!(reason(text, Integers::Safe).is_ok(), "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_crash() {
        let text = "[".repeat(100_000);
        assert_eq!(reason(&text, Integers::Safe), Err(Reason::TooDeep));
    }

    #[test]
    fn the_place_of_a_refusal_is_told() {
        let error = read(b"{\n \"a\": 1,\n \"a\": 2}", Integers::Safe).unwrap_err();
        assert_eq!(
            error.to_string(),
            "duplicate member name `a` at line 3 column 4"
        );
    }
}
