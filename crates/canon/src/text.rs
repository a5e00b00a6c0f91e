//! Values whose JSON form is a text.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, Visitor};

/// Reads a value from its text, without a copy of the text.
///
/// # Errors
/// There is no text, or it is refused.
pub fn deserialize_text<'de, D: Deserializer<'de>, T, E: fmt::Display>(
    deserializer: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    deserializer.deserialize_str(Text {
        parse,
        of: PhantomData,
    })
}

struct Text<T, F> {
    parse: F,
    of: PhantomData<T>,
}

impl<T, E: fmt::Display, F: FnOnce(&str) -> Result<T, E>> Visitor<'_> for Text<T, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<R: Error>(self, text: &str) -> Result<T, R> {
        (self.parse)(text).map_err(R::custom)
    }
}
