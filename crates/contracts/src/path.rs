//! Paths into JSON: `$`, `.name`, `["any name"]`, `[0]`.
//!
//! A path denotes at most one place, so "missing" has one meaning. No wildcard, slice, filter or descent.

use std::fmt;

use crate::value::Value;

/// A place in a JSON value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Member(String),
    Element(usize),
}

/// The text is not a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a path: {problem}")]
pub struct ParsePathError {
    text: String,
    problem: &'static str,
}

const LEN_MAX: usize = 1_000;

impl Path {
    /// Reads a path.
    ///
    /// # Errors
    /// The text does not start with `$`, or goes on with something else than members and elements.
    pub fn parse(text: &str) -> Result<Self, ParsePathError> {
        let refuse = |problem| ParsePathError {
            text: text.chars().take(80).collect(),
            problem,
        };
        if text.len() > LEN_MAX {
            return Err(refuse("it is longer than 1,000 bytes"));
        }
        let mut rest = text
            .strip_prefix('$')
            .ok_or_else(|| refuse("it does not start with `$`"))?;
        let mut segments = Vec::new();
        while !rest.is_empty() {
            let (segment, after) = if let Some(after) = rest.strip_prefix('.') {
                member(after).map_err(refuse)?
            } else if rest.starts_with("[\"") {
                quoted(rest).map_err(refuse)?
            } else if let Some(after) = rest.strip_prefix('[') {
                element(after).map_err(refuse)?
            } else {
                return Err(refuse(
                    "after `$` only `.name`, `[\"name\"]` and `[0]` follow",
                ));
            };
            segments.push(segment);
            rest = after;
        }
        Ok(Self {
            text: text.to_owned(),
            segments,
        })
    }

    /// Returns the value at the place, or nothing when the path leads nowhere.
    pub fn find<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.segments
            .iter()
            .try_fold(root, |value, segment| match segment {
                Segment::Member(name) => value.as_object()?.get(name),
                Segment::Element(index) => value.as_array()?.get(*index),
            })
    }

    /// The same in a value as other crates read it.
    pub fn find_json<'a>(&self, root: &'a serde_json::Value) -> Option<&'a serde_json::Value> {
        self.segments
            .iter()
            .try_fold(root, |value, segment| match segment {
                Segment::Member(name) => value.as_object()?.get(name),
                Segment::Element(index) => value.as_array()?.get(*index),
            })
    }

    /// Puts a value at the place, making what leads there; false where something else is in the way, or an index is so
    /// large that nobody means it.
    pub fn put(&self, root: &mut serde_json::Value, value: serde_json::Value) -> bool {
        const ELEMENTS_MAX: usize = 4_096;
        let mut at = root;
        for segment in &self.segments {
            at = match segment {
                Segment::Member(name) => {
                    if at.is_null() {
                        *at = serde_json::Value::Object(serde_json::Map::new());
                    }
                    let Some(members) = at.as_object_mut() else {
                        return false;
                    };
                    members
                        .entry(name.clone())
                        .or_insert(serde_json::Value::Null)
                }
                Segment::Element(index) => {
                    if at.is_null() {
                        *at = serde_json::Value::Array(Vec::new());
                    }
                    let Some(items) = at.as_array_mut() else {
                        return false;
                    };
                    if *index >= ELEMENTS_MAX {
                        return false;
                    }
                    if items.len() <= *index {
                        items.resize(index + 1, serde_json::Value::Null);
                    }
                    let Some(item) = items.get_mut(*index) else {
                        return false;
                    };
                    item
                }
            };
        }
        if !at.is_null() {
            return false;
        }
        *at = value;
        true
    }

    /// Says whether another path is this place or lies inside it.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        other.segments.starts_with(&self.segments)
    }

    /// Returns the place of a member below this one.
    pub fn member(&self, name: &str) -> Self {
        let quoted = serde_json::Value::from(name);
        let mut segments = self.segments.clone();
        segments.push(Segment::Member(name.to_owned()));
        let plain = member(name).is_ok_and(|(_, rest)| rest.is_empty());
        let text = if plain {
            format!("{}.{name}", self.text)
        } else {
            format!("{}[{quoted}]", self.text)
        };
        Self { text, segments }
    }

    /// Returns the place of an element below this one.
    pub(crate) fn element(&self, index: usize) -> Self {
        let mut segments = self.segments.clone();
        segments.push(Segment::Element(index));
        Self {
            text: format!("{}[{index}]", self.text),
            segments,
        }
    }

    /// Returns the root, `$`.
    pub fn root() -> Self {
        Self {
            text: "$".to_owned(),
            segments: Vec::new(),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn member(text: &str) -> Result<(Segment, &str), &'static str> {
    let is_first = |char: char| char.is_ascii_alphabetic() || char == '_';
    let is_next = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '-';
    if !text.starts_with(is_first) {
        return Err("a name after `.` starts with a letter or `_`");
    }
    let end = text.find(|char| !is_next(char)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    Ok((Segment::Member(name.to_owned()), rest))
}

fn quoted(text: &str) -> Result<(Segment, &str), &'static str> {
    let inner = text.strip_prefix('[').unwrap_or(text);
    let mut stream = serde_json::Deserializer::from_str(inner).into_iter::<String>();
    let Some(Ok(name)) = stream.next() else {
        return Err("the text in brackets is not a JSON string");
    };
    let after = inner.get(stream.byte_offset()..).unwrap_or_default();
    let rest = after.strip_prefix(']').ok_or("`]` is missing")?;
    Ok((Segment::Member(name), rest))
}

fn element(text: &str) -> Result<(Segment, &str), &'static str> {
    let (digits, rest) = text.split_once(']').ok_or("`]` is missing")?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !plain || (digits.len() > 1 && digits.starts_with('0')) {
        return Err("an element is a number from zero on");
    }
    let index = digits
        .parse()
        .map_err(|_| "the element's number is too large")?;
    Ok((Segment::Element(index), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_put_where_its_path_leads() {
        let mut root = serde_json::Value::Null;
        for (path, value) in [("$.a.b", 1), ("$.a[\"c d\"]", 2), ("$.list[1].x", 3)] {
            assert!(Path::parse(path).unwrap().put(&mut root, value.into()));
        }
        let expected = serde_json::json!({"a": {"b": 1, "c d": 2}, "list": [null, {"x": 3}]});
        assert_eq!(root, expected);
        for path in ["$.a.b.c", "$.a.b", "$.a[0]", "$.far[99999999]"] {
            let mut other = root.clone();
            assert!(
                !Path::parse(path).unwrap().put(&mut other, 4.into()),
                "{path}"
            );
        }
    }
    use crate::json::{Limits, Numbers, read};

    #[test]
    fn a_path_leads_to_one_place_or_nowhere() {
        let text = r#"{"a":{"b-c":[10,{"x y":1}]},"_":null,"0":7}"#;
        let root = read(text, Limits::ARGUMENTS, Numbers::Any).unwrap();
        let found = |path: &str| Path::parse(path).unwrap().find(&root).map(Value::to_json);
        assert_eq!(found("$.a.b-c[0]").as_deref(), Some("10"));
        assert_eq!(found(r#"$.a["b-c"][1]["x y"]"#).as_deref(), Some("1"));
        assert_eq!(found("$._").as_deref(), Some("null"));
        assert_eq!(found(r#"$["0"]"#).as_deref(), Some("7"));
        for nowhere in ["$.b", "$.a.b-c.x", "$.a[0]", "$.a.b-c[2]", "$[0]", "$._.x"] {
            assert_eq!(found(nowhere), None, "{nowhere}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "a",
            ".a",
            "$a",
            "$.",
            "$..a",
            "$.1",
            "$.a.",
            "$[",
            "$[]",
            "$[-1]",
            "$[01]",
            "$[*]",
            "$[a]",
            "$['a']",
            "$[\"a]",
            "$[\"a\"",
            "$.a b",
            "$[1:2]",
            "$.*",
            "$[99999999999999999999]",
            "$.ä",
        ] {
            assert!(Path::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_place_covers_what_is_below_it() {
        let path = |text: &str| Path::parse(text).unwrap();
        assert!(path("$.a").covers(&path("$.a.b[0]")));
        assert!(path("$").covers(&path("$.a")));
        assert!(!path("$.a.b").covers(&path("$.a")));
        assert_eq!(
            path("$").member("a").member("b c").element(2),
            path("$.a[\"b c\"][2]")
        );
    }
}
