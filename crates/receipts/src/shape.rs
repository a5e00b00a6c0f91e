//! What a closed document looks like, as a table, and the check of a parsed value against it.
//!
//! The tables themselves stand beside the formats they describe. One table serves both the check
//! here and the single-pass check in `stream`, so the two cannot drift apart.

use canon::{Map, Number, Value};

use crate::time;

/// What a value must be.
#[derive(Debug)]
pub(crate) enum Shape {
    /// A text of at least one character.
    Text,
    /// [`Shape::Text`] or null.
    TextOrNull,
    /// One of the listed texts.
    OneOf(&'static [&'static str]),
    /// An RFC 3339 time.
    Time,
    /// `sha256:` and 64 lower-case hex digits.
    Digest,
    /// [`Shape::Digest`] or null.
    DigestOrNull,
    /// Three capital letters.
    Currency,
    /// A number that is not negative.
    Amount,
    /// [`Shape::Amount`] or null.
    AmountOrNull,
    /// A whole number not below the given one.
    Whole(f64),
    /// A boolean.
    Flag,
    /// An object with any members.
    Open,
    /// [`Shape::Open`] or null.
    OpenOrNull,
    /// A list of one shape.
    List(&'static Shape),
    /// An object with these members only.
    Closed(&'static Closed),
}

/// An object that admits no other members.
#[derive(Debug)]
pub(crate) struct Closed {
    /// Invariant: in the order of RFC 8785; the single-pass check walks it once.
    pub(crate) members: &'static [Member],
    /// If not empty, all names of at least one group must be present.
    pub(crate) any_of: &'static [&'static [&'static str]],
}

/// One member of a closed object.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) required: bool,
    pub(crate) shape: Shape,
    /// Whether, and where, the single-pass check remembers the place of the value.
    pub(crate) slot: Option<Slot>,
}

/// Values whose place the single-pass check remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    ReceiptId,
    IssuedAt,
    SubjectObject,
    SessionId,
    PreviousHash,
    MerkleRoot,
    ReceiptHash,
    Signatures,
}

impl Slot {
    /// How many slots there are.
    pub(crate) const COUNT: usize = Self::Signatures as usize + 1;
}

/// A required member.
pub(crate) const fn need(name: &'static str, shape: Shape) -> Member {
    Member {
        name,
        required: true,
        shape,
        slot: None,
    }
}

/// An optional member.
pub(crate) const fn may(name: &'static str, shape: Shape) -> Member {
    Member {
        name,
        required: false,
        shape,
        slot: None,
    }
}

impl Member {
    /// Asks the single-pass check to remember where the value stands.
    pub(crate) const fn kept(self, slot: Slot) -> Self {
        Self {
            slot: Some(slot),
            ..self
        }
    }
}

/// Where a document differs from its shape, and how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at `{pointer}`")]
pub struct ShapeError {
    pointer: String,
    problem: String,
}

impl ShapeError {
    /// Returns the JSON Pointer of the value that is wrong; for a missing or unknown member, of the
    /// object it is missing from or found in.
    pub fn pointer(&self) -> &str {
        &self.pointer
    }

    /// Returns what is wrong there.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// Tells the place from one step further out. Built on the way back: nearly every check finds nothing wrong.
    fn within(mut self, step: &str) -> Self {
        let mut pointer = String::new();
        push_step(&mut pointer, step);
        pointer.push_str(&self.pointer);
        self.pointer = pointer;
        self
    }
}

/// Checks a value against a shape and returns the first difference in document order.
pub(crate) fn check(value: &Value, shape: &Shape) -> Result<(), ShapeError> {
    check_at(value, shape)
}

/// Checks an object against a closed shape.
pub(crate) fn check_object(map: &Map<String, Value>, closed: &Closed) -> Result<(), ShapeError> {
    check_closed(map, closed)
}

/// Appends one step to a JSON Pointer, escaped.
pub(crate) fn push_step(pointer: &mut String, step: &str) {
    pointer.push('/');
    for character in step.chars() {
        match character {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
}

impl Shape {
    /// Tells whether null satisfies this shape.
    pub(crate) const fn accepts_null(&self) -> bool {
        matches!(
            self,
            Self::TextOrNull | Self::DigestOrNull | Self::AmountOrNull | Self::OpenOrNull
        )
    }

    /// Tells whether a text satisfies this shape.
    pub(crate) fn accepts_text(&self, text: &str) -> bool {
        match self {
            Self::Text | Self::TextOrNull => !text.is_empty(),
            Self::OneOf(words) => words.contains(&text),
            Self::Time => time::parse(text).is_some(),
            Self::Digest | Self::DigestOrNull => is_digest(text),
            Self::Currency => text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_uppercase()),
            Self::Amount
            | Self::AmountOrNull
            | Self::Whole(_)
            | Self::Flag
            | Self::Open
            | Self::OpenOrNull
            | Self::List(_)
            | Self::Closed(_) => false,
        }
    }

    /// Tells whether a number satisfies this shape.
    pub(crate) fn accepts_number(&self, number: f64) -> bool {
        match self {
            Self::Amount | Self::AmountOrNull => number >= 0.0,
            Self::Whole(least) => number >= *least && number.fract() == 0.0,
            Self::Text
            | Self::TextOrNull
            | Self::OneOf(_)
            | Self::Time
            | Self::Digest
            | Self::DigestOrNull
            | Self::Currency
            | Self::Flag
            | Self::Open
            | Self::OpenOrNull
            | Self::List(_)
            | Self::Closed(_) => false,
        }
    }

    fn expectation(&self) -> String {
        let plain = match self {
            Self::Text => "a text that is not empty",
            Self::TextOrNull => "a text that is not empty, or null",
            Self::OneOf(words) => return format!("one of `{}`", words.join("`, `")),
            Self::Time => "an RFC 3339 time",
            Self::Digest => "a `sha256:` digest in lower case",
            Self::DigestOrNull => "a `sha256:` digest in lower case, or null",
            Self::Currency => "three capital letters",
            Self::Amount => "a number that is not negative",
            Self::AmountOrNull => "a number that is not negative, or null",
            Self::Whole(least) => return format!("a whole number from {least}"),
            Self::Flag => "true or false",
            Self::Open | Self::Closed(_) => "an object",
            Self::OpenOrNull => "an object or null",
            Self::List(_) => "a list",
        };
        plain.to_owned()
    }
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64
            && hex
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn check_at(value: &Value, shape: &Shape) -> Result<(), ShapeError> {
    let fits = match (value, shape) {
        (Value::Object(map), Shape::Closed(closed)) => return check_closed(map, closed),
        (Value::Array(items), Shape::List(item_shape)) => {
            for (index, item) in items.iter().enumerate() {
                check_at(item, item_shape).map_err(|error| error.within(&index.to_string()))?;
            }
            true
        }
        (Value::Object(_), Shape::Open | Shape::OpenOrNull) | (Value::Bool(_), Shape::Flag) => true,
        (Value::Null, shape) => shape.accepts_null(),
        (Value::String(text), shape) => shape.accepts_text(text),
        (Value::Number(number), shape) => {
            Number::as_f64(number).is_some_and(|number| shape.accepts_number(number))
        }
        (Value::Bool(_) | Value::Array(_) | Value::Object(_), _) => false,
    };
    if fits {
        Ok(())
    } else {
        refuse(format!("expected {}", shape.expectation()))
    }
}

fn check_closed(map: &Map<String, Value>, closed: &Closed) -> Result<(), ShapeError> {
    let known = |name: &str| closed.members.iter().any(|member| member.name == name);
    if let Some(name) = map.keys().find(|name| !known(name)) {
        return refuse(format!("unknown member `{name}`"));
    }
    for member in closed.members {
        match map.get(member.name) {
            Some(value) => {
                check_at(value, &member.shape).map_err(|error| error.within(member.name))?;
            }
            None if member.required => {
                return refuse(format!("member `{}` is missing", member.name));
            }
            None => {}
        }
    }
    let complete = |group: &&[&str]| group.iter().all(|name| map.contains_key(*name));
    if !closed.any_of.is_empty() && !closed.any_of.iter().any(complete) {
        let groups: Vec<String> = closed.any_of.iter().map(|group| group.join("+")).collect();
        return refuse(format!("needs one of `{}`", groups.join("`, `")));
    }
    Ok(())
}

fn refuse(problem: String) -> Result<(), ShapeError> {
    Err(ShapeError {
        pointer: String::new(),
        problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_sorted(shape: &Shape) {
        match shape {
            Shape::List(item) => assert_sorted(item),
            Shape::Closed(closed) => {
                assert!(closed.members.is_sorted_by(|a, b| a.name < b.name));
                assert!(closed.members.iter().all(|member| member.name.is_ascii()));
                for member in closed.members {
                    assert_sorted(&member.shape);
                }
                for name in closed.any_of.iter().copied().flatten() {
                    assert!(closed.members.iter().any(|member| member.name == *name));
                }
            }
            _ => {}
        }
    }

    #[test]
    fn the_tables_are_in_canonical_order() {
        assert_sorted(&Shape::Closed(&crate::format::RECEIPT));
        assert_sorted(&Shape::Closed(&crate::trust::EXPORT));
    }
}
