//! JSON values with exact numbers, and what "equal" means.
//!
//! No coercion: a text is never a number and `1` is never `true`. A number that cannot be held exactly equals nothing,
//! not even itself.

use std::collections::BTreeMap;

use crate::decimal::Decimal;

/// A JSON value whose numbers are exact decimals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    String(String),
    /// A list.
    Array(Vec<Value>),
    /// Members by name.
    Object(BTreeMap<String, Value>),
}

/// A number, exact or known to be beyond exactness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// Held exactly.
    Exact(Decimal),
    /// More than 34 digits or an exponent beyond ±6144: it fails every operator but `exists` and `type`.
    OutOfRange {
        /// True when it has no fractional part.
        is_integer: bool,
    },
}

/// The JSON types that contracts can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A text.
    String,
    /// Any number.
    Number,
    /// A number without fractional part, `3.0` included.
    Integer,
    /// `true` or `false`.
    Boolean,
    /// A list.
    Array,
    /// An object.
    Object,
    /// `null`.
    Null,
}

impl Type {
    /// Every type, by its word.
    pub const ALL: [(&'static str, Type); 7] = [
        ("string", Type::String),
        ("number", Type::Number),
        ("integer", Type::Integer),
        ("boolean", Type::Boolean),
        ("array", Type::Array),
        ("object", Type::Object),
        ("null", Type::Null),
    ];

    /// Returns the type that a word names.
    pub fn named(word: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(name, _)| *name == word);
        found.map(|(_, value)| *value)
    }
}

impl Value {
    /// Says whether two values are equal by the rules of contracts.
    pub fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Number(Number::Exact(a)), Value::Number(Number::Exact(b))) => a == b,
            (Value::String(a), Value::String(b)) => a == b,
            (Value::Array(a), Value::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b))
            }
            (Value::Object(a), Value::Object(b)) => {
                let mut members = a.iter().zip(b);
                a.len() == b.len() && members.all(|((m, a), (n, b))| m == n && a.equals(b))
            }
            (
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Array(_)
                | Value::Object(_),
                _,
            ) => false,
        }
    }

    /// Says whether the value has a JSON type.
    pub fn is_type(&self, expected: Type) -> bool {
        match (expected, self) {
            (Type::String, Value::String(_))
            | (Type::Number, Value::Number(_))
            | (Type::Boolean, Value::Bool(_))
            | (Type::Array, Value::Array(_))
            | (Type::Object, Value::Object(_))
            | (Type::Null, Value::Null) => true,
            (Type::Integer, Value::Number(number)) => match number {
                Number::Exact(decimal) => decimal.is_integer(),
                Number::OutOfRange { is_integer } => *is_integer,
            },
            (
                Type::String
                | Type::Number
                | Type::Integer
                | Type::Boolean
                | Type::Array
                | Type::Object
                | Type::Null,
                _,
            ) => false,
        }
    }

    /// Returns the word for the value's type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        }
    }

    /// Returns the exact number, if the value is one.
    pub fn as_decimal(&self) -> Option<Decimal> {
        match self {
            Value::Number(Number::Exact(decimal)) => Some(*decimal),
            Value::Number(Number::OutOfRange { .. })
            | Value::Null
            | Value::Bool(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        }
    }

    /// Returns the text, if the value is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        }
    }

    /// Returns the members, if the value is an object.
    pub fn as_object(&self) -> Option<&BTreeMap<String, Value>> {
        match self {
            Value::Object(members) => Some(members),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => None,
        }
    }

    /// Returns the elements, if the value is a list.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(items) => Some(items),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Object(_) => None,
        }
    }

    /// Returns bytes that are equal exactly for equal values; nothing for values that equal nothing.
    pub fn key(&self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.push_key(&mut out).then_some(out)
    }

    /// Appends the key; returns false when the value equals nothing.
    pub(crate) fn push_key(&self, out: &mut Vec<u8>) -> bool {
        match self {
            Value::Null => out.push(b'z'),
            Value::Bool(true) => out.push(b't'),
            Value::Bool(false) => out.push(b'f'),
            Value::Number(Number::OutOfRange { .. }) => return false,
            Value::Number(Number::Exact(decimal)) => push_text(out, b'n', &decimal.to_string()),
            Value::String(text) => push_text(out, b's', text),
            Value::Array(items) => {
                push_len(out, b'a', items.len());
                for item in items {
                    if !item.push_key(out) {
                        return false;
                    }
                }
            }
            Value::Object(members) => {
                push_len(out, b'o', members.len());
                for (name, value) in members {
                    push_text(out, b's', name);
                    if !value.push_key(out) {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Returns the value as JSON text, numbers exact; a number out of range is written as `null`.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        self.push_json(&mut out);
        out
    }

    fn push_json(&self, out: &mut String) {
        match self {
            Value::Null | Value::Number(Number::OutOfRange { .. }) => out.push_str("null"),
            Value::Bool(true) => out.push_str("true"),
            Value::Bool(false) => out.push_str("false"),
            Value::Number(Number::Exact(decimal)) => out.push_str(&decimal.to_string()),
            Value::String(text) => push_json_string(out, text),
            Value::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.push_json(out);
                }
                out.push(']');
            }
            Value::Object(members) => {
                out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    push_json_string(out, name);
                    out.push(':');
                    value.push_json(out);
                }
                out.push('}');
            }
        }
    }

    /// Returns the value as `serde_json` holds it: numbers become doubles where they are not integers.
    pub fn to_serde(&self) -> serde_json::Value {
        match self {
            Value::Null | Value::Number(Number::OutOfRange { .. }) => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Number(Number::Exact(decimal)) => {
                serde_json::from_str(&decimal.to_string()).unwrap_or(serde_json::Value::Null)
            }
            Value::String(text) => text.as_str().into(),
            Value::Array(items) => items.iter().map(Value::to_serde).collect(),
            Value::Object(members) => members
                .iter()
                .map(|(name, value)| (name.clone(), value.to_serde()))
                .collect(),
        }
    }
}

fn push_text(out: &mut Vec<u8>, tag: u8, text: &str) {
    push_len(out, tag, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn push_len(out: &mut Vec<u8>, tag: u8, len: usize) {
    out.push(tag);
    out.extend_from_slice(len.to_string().as_bytes());
    out.push(b':');
}

fn push_json_string(out: &mut String, text: &str) {
    let mut bytes = Vec::with_capacity(text.len() + 2);
    canon::append_string(&mut bytes, text);
    out.push_str(&String::from_utf8_lossy(&bytes));
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::String(text)
    }
}

impl From<Decimal> for Value {
    fn from(value: Decimal) -> Self {
        Value::Number(Number::Exact(value))
    }
}
