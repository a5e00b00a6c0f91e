//! YAML files that people write, read into types.
//!
//! One document of what JSON has, with comments, block style, anchors and aliases. What readers take for different things is
//! refused and never guessed: a key twice, a tag, a merge key, a number that JSON spells otherwise. What is wrong is told with
//! its place. Every size is bounded by [`Limits`]. Owns no file, and no idea of what a document means.

mod read;
mod tree;

use std::fmt;

use serde::de::DeserializeOwned;

/// Bounds of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most values, those that aliases repeat included.
    pub nodes_max: usize,
    /// Deepest nesting of collections.
    pub depth_max: usize,
}

/// Where something stands. Both count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// What is wrong with a document, and where.
#[derive(Debug, thiserror::Error)]
pub struct YamlError {
    message: String,
    place: Option<Place>,
}

impl YamlError {
    fn at(place: Place, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            place: Some(place),
        }
    }

    /// Says where it is, unless that is known more exactly.
    fn or_at(mut self, place: Place) -> Self {
        self.place.get_or_insert(place);
        self
    }

    /// Returns what is wrong, without the place.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns where it is wrong.
    pub fn place(&self) -> Option<Place> {
        self.place
    }
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.place {
            Some(Place { line, column }) => write!(f, " at line {line} column {column}"),
            None => Ok(()),
        }
    }
}

impl serde::de::Error for YamlError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self {
            message: message.to_string(),
            place: None,
        }
    }
}

/// Reads the one document of a text. No document is null.
///
/// # Errors
/// It is not YAML of the accepted kind, not what the type wants, or beyond a limit.
pub fn from_str<T: DeserializeOwned>(text: &str, limits: Limits) -> Result<T, YamlError> {
    let root = tree::parse(text, limits)?;
    T::deserialize(&*root).map_err(|error| error.or_at(root.place))
}

/// Says whether YAML readers take a text for a number although JSON does not.
pub fn is_odd_number(text: &str) -> bool {
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(body, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let digits = |text: &str, radix| {
        !text.is_empty() && text.chars().all(|char| char.is_digit(radix) || char == '_')
    };
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(rest) = body.strip_prefix(prefix) {
            return digits(rest, radix);
        }
    }
    let starts = body.starts_with(|char: char| char.is_ascii_digit() || char == '.');
    let numeric = body
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'_' | b'e' | b'E' | b'+' | b'-'));
    let has_digit = body.bytes().any(|byte| byte.is_ascii_digit());
    // Dates and versions (`2026-11-15`, `1.2.3`) are texts everywhere.
    let dashes = body.matches('-').count() > usize::from(body.contains(['e', 'E']));
    starts && numeric && has_digit && !dashes && body.matches('.').count() <= 1
}

#[cfg(test)]
mod tests;
