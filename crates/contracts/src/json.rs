//! The reader of JSON that contracts are checked on: strict, exact and bounded.
//!
//! Two readers of the same text must not be able to disagree about it, so duplicate member names and lone surrogates
//! are refused. Numbers keep every digit; [`Numbers::Doubles`] also refuses those that a double would change, because
//! the tool that runs may read doubles.

use std::collections::BTreeMap;

use crate::decimal::{Decimal, ParseDecimalError};
use crate::value::{Number, Value};

/// Bounds of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest text.
    pub bytes_max: usize,
    /// Deepest nesting.
    pub depth_max: usize,
    /// Most values, nested ones counted.
    pub values_max: usize,
}

impl Limits {
    /// The bounds of the arguments of one call.
    pub const ARGUMENTS: Self = Self {
        bytes_max: 1 << 20,
        depth_max: 64,
        values_max: 20_000,
    };
    /// The bounds of a tool's output.
    pub const OUTPUT: Self = Self {
        bytes_max: 4 << 20,
        depth_max: 64,
        values_max: 200_000,
    };
    /// The bounds of a principal.
    pub const PRINCIPAL: Self = Self {
        bytes_max: 64 << 10,
        depth_max: 64,
        values_max: 20_000,
    };
    /// The bounds of a request or response of a model provider.
    pub const MESSAGE: Self = Self {
        bytes_max: 16 << 20,
        depth_max: 128,
        values_max: 2_000_000,
    };
}

/// Which numbers are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// All; those beyond exactness are marked.
    Any,
    /// Only those whose shortest text as a double is the same decimal.
    Doubles,
}

/// Why a text was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Not a JSON text.
    #[error("not valid JSON")]
    Syntax,
    /// A member name occurs twice in one object.
    #[error("a duplicate member name")]
    DuplicateKey,
    /// A member is named `__proto__`.
    #[error("a member named `__proto__`")]
    ProtoKey,
    /// A number that a double would change.
    #[error("a number that a double cannot hold")]
    InexactNumber,
    /// Longer, deeper or more values than allowed.
    #[error("larger than allowed")]
    TooLarge,
}

/// The member name that programs in JavaScript may take for the prototype of the object: what stands under it then becomes
/// members that nobody has checked.
pub const PROTO: &str = "__proto__";

/// Reads the arguments of a call that is to be judged: as any reader would, a program in JavaScript too.
///
/// # Errors
/// The first reason to refuse them.
pub fn read_arguments(text: &str) -> Result<Value, JsonError> {
    read_as(text, Limits::ARGUMENTS, Numbers::Doubles, true)
}

/// Reads one JSON text.
///
/// # Errors
/// The first reason to refuse it.
pub fn read(text: &str, limits: Limits, numbers: Numbers) -> Result<Value, JsonError> {
    read_as(text, limits, numbers, false)
}

fn read_as(
    text: &str,
    limits: Limits,
    numbers: Numbers,
    refuses_proto: bool,
) -> Result<Value, JsonError> {
    if text.len() > limits.bytes_max {
        return Err(JsonError::TooLarge);
    }
    let mut reader = Reader {
        cursor: Cursor {
            text,
            at: 0,
            values_left: limits.values_max,
        },
        numbers,
        refuses_proto,
    };
    let value = reader.value(limits.depth_max)?;
    reader.cursor.skip_blank();
    if reader.cursor.at == text.len() {
        Ok(value)
    } else {
        Err(JsonError::Syntax)
    }
}

/// A place in a JSON text.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    pub(crate) text: &'a str,
    pub(crate) at: usize,
    pub(crate) values_left: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub(crate) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub(crate) fn skip_blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        self.take(byte).then_some(()).ok_or(JsonError::Syntax)
    }

    pub(crate) fn word<T>(&mut self, word: &str, value: T) -> Result<T, JsonError> {
        if !self.rest().starts_with(word) {
            return Err(JsonError::Syntax);
        }
        self.at += word.len();
        Ok(value)
    }

    /// Goes to the next value and returns its first byte.
    pub(crate) fn next_value(&mut self) -> Result<u8, JsonError> {
        self.values_left = self.values_left.checked_sub(1).ok_or(JsonError::TooLarge)?;
        self.skip_blank();
        self.peek().ok_or(JsonError::Syntax)
    }
}

/// Reads what stands between the brackets of a list or an object, piece by piece: from the opening one to behind the closing
/// one. `cursor` names the place in a reader.
pub(crate) fn read_between<'a, R>(
    reader: &mut R,
    cursor: impl Fn(&mut R) -> &mut Cursor<'a>,
    [open, close]: [u8; 2],
    mut piece: impl FnMut(&mut R) -> Result<(), JsonError>,
) -> Result<(), JsonError> {
    cursor(reader).expect(open)?;
    cursor(reader).skip_blank();
    if cursor(reader).take(close) {
        return Ok(());
    }
    loop {
        piece(reader)?;
        cursor(reader).skip_blank();
        if cursor(reader).take(close) {
            return Ok(());
        }
        cursor(reader).expect(b',')?;
    }
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    numbers: Numbers,
    refuses_proto: bool,
}

impl Reader<'_> {
    fn value(&mut self, depth_left: usize) -> Result<Value, JsonError> {
        let deeper = || depth_left.checked_sub(1).ok_or(JsonError::TooLarge);
        match self.cursor.next_value()? {
            b'n' => self.cursor.word("null", Value::Null),
            b't' => self.cursor.word("true", Value::Bool(true)),
            b'f' => self.cursor.word("false", Value::Bool(false)),
            b'"' => self.string().map(Value::String),
            b'[' => self.array(deeper()?),
            b'{' => self.object(deeper()?),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err(JsonError::Syntax),
        }
    }

    fn array(&mut self, depth_left: usize) -> Result<Value, JsonError> {
        let mut items = Vec::new();
        read_between(
            self,
            |reader| &mut reader.cursor,
            *b"[]",
            |reader| {
                items.push(reader.value(depth_left)?);
                Ok(())
            },
        )?;
        Ok(Value::Array(items))
    }

    fn object(&mut self, depth_left: usize) -> Result<Value, JsonError> {
        let mut members = BTreeMap::new();
        read_between(
            self,
            |reader| &mut reader.cursor,
            *b"{}",
            |reader| {
                reader.cursor.skip_blank();
                let name = reader.string()?;
                if reader.refuses_proto && name == PROTO {
                    return Err(JsonError::ProtoKey);
                }
                reader.cursor.skip_blank();
                reader.cursor.expect(b':')?;
                let value = reader.value(depth_left)?;
                if members.insert(name, value).is_some() {
                    return Err(JsonError::DuplicateKey);
                }
                Ok(())
            },
        )?;
        Ok(Value::Object(members))
    }

    fn string(&mut self) -> Result<String, JsonError> {
        let start = self.cursor.at;
        self.cursor.expect(b'"')?;
        let mut plain = true;
        loop {
            match self.cursor.peek().ok_or(JsonError::Syntax)? {
                b'"' => break,
                b'\\' => {
                    plain = false;
                    self.cursor.at += 2;
                }
                0..=31 => return Err(JsonError::Syntax),
                _ => self.cursor.at += 1,
            }
        }
        self.cursor.at += 1;
        let quoted = self
            .cursor
            .text
            .get(start..self.cursor.at)
            .ok_or(JsonError::Syntax)?;
        if plain {
            let inner = quoted.get(1..quoted.len() - 1).unwrap_or_default();
            return Ok(inner.to_owned());
        }
        // Escapes, surrogate pairs among them, are what serde_json says they are.
        serde_json::from_str(quoted).map_err(|_| JsonError::Syntax)
    }

    fn number(&mut self) -> Result<Value, JsonError> {
        let rest = self.cursor.rest();
        let len = rest
            .bytes()
            .take_while(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
            .count();
        let text = rest.get(..len).unwrap_or_default();
        self.cursor.at += len;
        let number = match Decimal::parse(text) {
            Ok(decimal) => Number::Exact(decimal),
            Err(ParseDecimalError::Syntax) => return Err(JsonError::Syntax),
            Err(ParseDecimalError::OutOfRange { is_integer }) => Number::OutOfRange { is_integer },
        };
        match (self.numbers, number) {
            (Numbers::Any, number) => Ok(Value::Number(number)),
            (Numbers::Doubles, Number::Exact(decimal)) if survives_double(text, decimal) => {
                Ok(Value::Number(number))
            }
            (Numbers::Doubles, Number::Exact(_) | Number::OutOfRange { .. }) => {
                Err(JsonError::InexactNumber)
            }
        }
    }
}

/// Says whether a number is the same decimal after it was a double.
fn survives_double(text: &str, decimal: Decimal) -> bool {
    // Integers up to 2^53 are doubles; nearly every number is one.
    if decimal.as_u64().is_some_and(|value| value <= 1 << 53) {
        return true;
    }
    let Ok(double) = text.parse::<f64>() else {
        return false;
    };
    double.is_finite() && Decimal::parse(&canon_text(double)) == Ok(decimal)
}

/// The shortest text of a double, in JSON syntax.
fn canon_text(double: f64) -> String {
    // `{:e}` writes the shortest digits that read back, which is what RFC 8785 writes too.
    format!("{double:e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strict(text: &str) -> Result<Value, JsonError> {
        read(text, Limits::ARGUMENTS, Numbers::Doubles)
    }

    #[test]
    fn values_are_read_as_written() {
        let value = strict(r#" {"a": [1, -2.5e3, "xA\n", null], "b": {"c": true}} "#).unwrap();
        assert_eq!(
            value.to_json(),
            r#"{"a":[1,-2500,"xA\n",null],"b":{"c":true}}"#
        );
        assert_eq!(strict(r#""😀""#), Ok(Value::from("😀")));
    }

    #[test]
    fn r13_numbers_that_a_double_changes_are_refused() {
        for text in [
            "9007199254740993",
            "1e400",
            "-1e400",
            "0.1000000000000000055511151231257827",
            "9223372036854775808",
            &"9".repeat(40),
            "1e-400",
        ] {
            assert_eq!(strict(text), Err(JsonError::InexactNumber), "{text}");
            assert!(
                read(text, Limits::ARGUMENTS, Numbers::Any).is_ok(),
                "{text}"
            );
        }
        for text in [
            "9007199254740992",
            "0.1",
            "1e22",
            "-0",
            "1.50",
            "1e300",
            "5e-324",
        ] {
            assert!(strict(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        assert_eq!(strict(r#"{"a":1,"a":1}"#), Err(JsonError::DuplicateKey));
        assert_eq!(
            strict(r#"{"a":1,"\u0061":1}"#),
            Err(JsonError::DuplicateKey)
        );
        for text in [
            r#""\ud800""#,
            r#""\udc00x""#,
            "{",
            "[1,]",
            "{\"a\"}",
            "nul",
            "1 2",
            "",
            "\"\t\"",
            "'a'",
            "[1 2]",
            "{,}",
            "+1",
            "01",
            "\"\\",
            "\"\\u12",
            "\u{feff}1",
        ] {
            assert_eq!(strict(text), Err(JsonError::Syntax), "{text}");
        }
    }

    #[test]
    fn r35_sizes_of_arguments_hold() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(strict(&nested(64)).is_ok());
        assert_eq!(strict(&nested(65)), Err(JsonError::TooLarge));
        assert_eq!(strict(&"[".repeat(500_000)), Err(JsonError::TooLarge));
        let many = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
        assert!(strict(&many(19_999)).is_ok());
        assert_eq!(strict(&many(20_000)), Err(JsonError::TooLarge));
        assert_eq!(
            strict(&format!("\"{}\"", "x".repeat(1 << 20))),
            Err(JsonError::TooLarge)
        );
    }
}
