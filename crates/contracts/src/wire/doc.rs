//! A JSON text with the place of every value, so that a part can be changed and the rest stays byte for byte.
//!
//! Nothing is converted: numbers stay digits, texts stay as they are written. What two readers could read differently
//! is noted ([`Doc::duplicate_outside`]) and left to the caller to refuse.

mod edits;
mod reader;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::json::{Cursor, JsonError, Limits};
use reader::Reader;

pub(super) use edits::Edits;

/// A JSON text and its tree.
#[derive(Debug, Clone)]
pub(super) struct Doc {
    text: String,
    root: Node,
    duplicates: Vec<usize>,
    has_proto: bool,
}

/// A value in a text.
#[derive(Debug, Clone)]
pub(super) struct Node {
    start: usize,
    end: usize,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Null,
    Bool(bool),
    Number,
    String,
    Array(Vec<Node>),
    Object(Vec<Member>),
    /// A value that may stand in other texts too.
    Detached(Arc<DetachedValue>),
}

/// A value by itself: its places count from its own beginning.
#[derive(Debug)]
struct DetachedValue {
    node: Node,
    values: usize,
}

/// A list that stood in a text. Where it stands in another one, letter for letter, it is not read again.
#[derive(Debug, Clone)]
pub(super) struct KnownList {
    text: String,
    value: Arc<DetachedValue>,
}

#[derive(Debug, Clone)]
struct Member {
    /// Where the name begins, with its quote.
    start: usize,
    name_end: usize,
    value: Node,
}

/// A value together with the text it stands in.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'d> {
    text: &'d str,
    /// Where the places of the node count from.
    base: usize,
    node: &'d Node,
}

impl Doc {
    /// Reads one JSON text.
    pub(super) fn read(text: &str, limits: Limits) -> Result<Self, JsonError> {
        Self::read_as(text, limits, None)
    }

    /// Reads one JSON text that is an object, of which one member may be known already.
    pub(super) fn read_knowing(
        text: &str,
        limits: Limits,
        member: &str,
        known: Option<&KnownList>,
    ) -> Result<Self, JsonError> {
        Self::read_as(text, limits, Some((member, known)))
    }

    fn read_as(
        text: &str,
        limits: Limits,
        apart: Option<(&str, Option<&KnownList>)>,
    ) -> Result<Self, JsonError> {
        if text.len() > limits.bytes_max {
            return Err(JsonError::TooLarge);
        }
        let mut reader = Reader {
            cursor: Cursor {
                text,
                at: 0,
                values_left: limits.values_max,
            },
            duplicates: Vec::new(),
            has_proto: false,
            apart,
        };
        let root = reader.value(limits.depth_max)?;
        reader.cursor.skip_blank();
        if reader.cursor.at != text.len() {
            return Err(JsonError::Syntax);
        }
        Ok(Self {
            duplicates: reader.duplicates,
            has_proto: reader.has_proto,
            text: text.to_owned(),
            root,
        })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn root(&self) -> At<'_> {
        At::new(&self.text, 0, &self.root)
    }

    /// Returns the list that was read apart, for other texts; nothing when two readers could read it differently.
    pub(super) fn known(&self) -> Option<KnownList> {
        let (node, value) = self.apart()?;
        let is_list = matches!(value.node.kind, Kind::Array(_));
        let text = self.text.get(node.start..node.end)?;
        (is_list && self.duplicates.is_empty()).then(|| KnownList {
            text: text.to_owned(),
            value: Arc::clone(value),
        })
    }

    /// Says whether what was known is what stands here.
    pub(super) fn has(&self, known: &KnownList) -> bool {
        let own = self.apart();
        own.is_some_and(|(_, value)| Arc::ptr_eq(value, &known.value))
    }

    fn apart(&self) -> Option<(&Node, &Arc<DetachedValue>)> {
        let Kind::Object(members) = &self.root.kind else {
            return None;
        };
        members.iter().find_map(|member| match &member.value.kind {
            Kind::Detached(value) => Some((&member.value, value)),
            _ => None,
        })
    }

    /// Reads a text of a model, in which no member may be named `__proto__`: a client that copies such an object takes what
    /// stands there for members of the object itself.
    pub(super) fn read_reply(text: &str) -> Result<Self, JsonError> {
        let doc = Self::read(text, Limits::MESSAGE)?;
        if doc.has_proto {
            return Err(JsonError::ProtoKey);
        }
        Ok(doc)
    }

    /// Says whether an object outside of these places has a member name twice.
    pub(super) fn duplicate_outside(&self, places: &[Range<usize>]) -> bool {
        let inside = |at: &usize| places.iter().any(|place| place.contains(at));
        !self.duplicates.iter().all(inside)
    }
}

impl<'d> At<'d> {
    fn new(text: &'d str, base: usize, node: &'d Node) -> Self {
        match &node.kind {
            Kind::Detached(value) => Self {
                text,
                base: base + node.start,
                node: &value.node,
            },
            _ => Self { text, base, node },
        }
    }

    /// Returns the place of the value.
    pub(super) fn place(self) -> Range<usize> {
        self.base + self.node.start..self.base + self.node.end
    }

    /// Returns the value as it is written.
    pub(super) fn raw(self) -> &'d str {
        self.text.get(self.place()).unwrap_or_default()
    }

    /// Returns a member, null included.
    pub(super) fn member(self, name: &str) -> Option<At<'d>> {
        let members = self.members_raw()?;
        let found = members
            .iter()
            .find(|member| self.name_of(member).as_deref() == Some(name))?;
        Some(Self::new(self.text, self.base, &found.value))
    }

    /// Returns a member that is there and not null.
    pub(super) fn get(self, name: &str) -> Option<At<'d>> {
        self.member(name).filter(|value| !value.is_null())
    }

    /// Returns the place of a member, its name included.
    pub(super) fn member_places(self) -> Vec<(String, Range<usize>)> {
        let members = self.members_raw().unwrap_or_default();
        let places = members.iter().map(|member| {
            let name = self.name_of(member).unwrap_or_default();
            let place = self.base + member.start..self.base + member.value.end;
            (name.into_owned(), place)
        });
        places.collect()
    }

    /// Returns the members of an object with their names.
    pub(super) fn members(self) -> impl Iterator<Item = (Cow<'d, str>, At<'d>)> {
        let members = self.members_raw().unwrap_or_default().iter();
        members.map(move |member| {
            let name = self.name_of(member).unwrap_or_default();
            (name, Self::new(self.text, self.base, &member.value))
        })
    }

    /// Returns the elements of a list.
    pub(super) fn items(self) -> Option<Vec<At<'d>>> {
        let Kind::Array(items) = &self.node.kind else {
            return None;
        };
        let items = items.iter();
        let items = items.map(|node| Self::new(self.text, self.base, node));
        Some(items.collect())
    }

    pub(super) fn is_null(self) -> bool {
        matches!(self.node.kind, Kind::Null)
    }

    pub(super) fn is_object(self) -> bool {
        matches!(self.node.kind, Kind::Object(_))
    }

    /// Says whether it is a number, a truth value or null.
    pub(super) fn is_bare(self) -> bool {
        matches!(self.node.kind, Kind::Null | Kind::Bool(_) | Kind::Number)
    }

    pub(super) fn is_string(self) -> bool {
        matches!(self.node.kind, Kind::String)
    }

    pub(super) fn bool(self) -> Option<bool> {
        match self.node.kind {
            Kind::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// Returns a text; nothing when it is none, or holds half of a surrogate pair.
    pub(super) fn str(self) -> Option<Cow<'d, str>> {
        match self.node.kind {
            Kind::String => unquote(self.raw()),
            _ => None,
        }
    }

    /// Returns a text for looking at: what cannot be read is shown as such.
    pub(super) fn shown(self) -> Option<Cow<'d, str>> {
        let unreadable = || self.is_string().then_some(Cow::Borrowed("\u{fffd}"));
        self.str().or_else(unreadable)
    }

    /// Returns a whole number that a double holds.
    pub(super) fn u64(self) -> Option<u64> {
        let number: u64 = self.raw().parse().ok()?;
        (number < 1 << 53).then_some(number)
    }

    fn members_raw(self) -> Option<&'d [Member]> {
        match &self.node.kind {
            Kind::Object(members) => Some(members),
            _ => None,
        }
    }

    fn name_of(self, member: &Member) -> Option<Cow<'d, str>> {
        let place = self.base + member.start..self.base + member.name_end;
        unquote(self.text.get(place)?)
    }
}

fn unquote(quoted: &str) -> Option<Cow<'_, str>> {
    if quoted.contains('\\') {
        return serde_json::from_str(quoted).ok().map(Cow::Owned);
    }
    let inner = quoted.get(1..quoted.len().checked_sub(1)?)?;
    Some(Cow::Borrowed(inner))
}

/// Writes a text as JSON.
pub(super) fn quoted(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len() + 2);
    canon::append_string(&mut out, text);
    String::from_utf8(out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doc(text: &str) -> Doc {
        Doc::read(text, Limits::MESSAGE).unwrap()
    }

    #[test]
    fn parts_are_found_where_they_stand() {
        let doc = doc(" {\"a\" : [1, {\"\\u0062\":\"x\\ty\"}],\"n\":null, \"e\":1.5e3 } ");
        let root = doc.root();
        assert_eq!(root.get("a").unwrap().raw(), "[1, {\"\\u0062\":\"x\\ty\"}]");
        let items = root.get("a").unwrap().items().unwrap();
        assert_eq!(items[1].get("b").unwrap().str().unwrap(), "x\ty");
        assert!(root.member("n").unwrap().is_null() && root.get("n").is_none());
        assert_eq!(root.get("e").unwrap().raw(), "1.5e3");
    }

    #[test]
    fn removing_parts_leaves_the_rest_as_it_was() {
        let text = "[ 10 , 20,30 ]";
        let doc = doc(text);
        let items = doc.root().items().unwrap();
        let parts: Vec<_> = items.iter().map(|item| item.place()).collect();
        for (gone, expected) in [
            (vec![], "[ 10 , 20,30 ]"),
            (vec![0], "[ 20,30 ]"),
            (vec![1], "[ 10,30 ]"),
            (vec![2], "[ 10 , 20 ]"),
            (vec![0, 1], "[ 30 ]"),
            (vec![0, 2], "[ 20 ]"),
            (vec![1, 2], "[ 10 ]"),
            (vec![0, 1, 2], "[  ]"),
        ] {
            let mut edits = Edits::default();
            edits.remove(&parts, |index| gone.contains(&index));
            assert_eq!(edits.apply(text), expected);
        }
    }

    #[test]
    fn what_others_could_read_differently_is_noted() {
        let twice = doc(r#"{"a":{"b":1,"\u0062":2}}"#);
        assert!(twice.duplicate_outside(&[]));
        let place = twice.root().get("a").unwrap().place();
        assert!(!twice.duplicate_outside(&[place]));
        assert!(doc(r#"{"\ud800":1}"#).duplicate_outside(&[]));
        assert!(!doc(r#"{"a":{"b":1},"b":2}"#).duplicate_outside(&[]));
        for text in [r#"{"a":[{"__proto__":1}]}"#, r#"{"\u005f_proto__":1}"#] {
            assert_eq!(Doc::read_reply(text).err(), Some(JsonError::ProtoKey));
        }
        assert!(Doc::read_reply(r#"{"a":"__proto__","proto":1}"#).is_ok());
    }

    #[test]
    fn what_is_known_is_found_again_wherever_it_stands() {
        let read = |text: &str, known: Option<&KnownList>| {
            Doc::read_knowing(text, Limits::MESSAGE, "list", known).unwrap()
        };
        let list = r#"[{"a":"x"},[1, 2]]"#;
        let first = read(&format!(r#"{{"n":1,"list": {list}}}"#), None);
        let known = first.known().unwrap();
        let moved = read(
            &format!(r#"{{"other":[true],"list":{list} ,"z":0}}"#),
            Some(&known),
        );
        assert!(moved.has(&known) && first.has(&known));
        let found = moved.root().get("list").unwrap();
        assert_eq!(found.raw(), list);
        let items = found.items().unwrap();
        assert_eq!(items[0].get("a").unwrap().str().unwrap(), "x");
        assert_eq!(items[1].items().unwrap()[1].raw(), "2");
        assert_eq!(moved.root().member_places()[1].1, 16..41);
        // Another list, one that goes on, and one that is deeper down are read.
        for text in [
            r#"{"list":[{"a":"y"},[1, 2]]}"#,
            r#"{"list":[{"a":"x"},[1, 2], 3]}"#,
            r#"{"in":{"list":[{"a":"x"},[1, 2]]}}"#,
        ] {
            assert!(!read(text, Some(&known)).has(&known), "{text}");
        }
        // What two readers could read differently is not kept, nor what is not a list.
        for text in [
            r#"{"list":[{"a":1,"a":2}]}"#,
            r#"{"list":1}"#,
            r#"{"list":[],"b":1,"b":2}"#,
        ] {
            assert!(read(text, None).known().is_none(), "{text}");
        }
        let twice = read(r#"{"list":[{"a":1,"a":2}]}"#, None);
        let place = twice.root().get("list").unwrap().place();
        assert!(twice.duplicate_outside(&[]) && !twice.duplicate_outside(&[place]));
    }

    #[test]
    fn reads_exactly_what_json_is() {
        for text in [
            "",
            "{",
            "[1,]",
            "01",
            "1.",
            "-",
            "1e",
            "\"\\x\"",
            "\"\\u12g4\"",
            "nul",
            "{\"a\"}",
            "1 2",
            "\u{feff}1",
            "\"\n\"",
            "[",
            "{,}",
        ] {
            assert!(Doc::read(text, Limits::MESSAGE).is_err(), "{text}");
            assert!(serde_json::from_str::<serde_json::Value>(text).is_err());
        }
        let deep = "[".repeat(200_000);
        assert_eq!(
            Doc::read(&deep, Limits::MESSAGE).err(),
            Some(JsonError::TooLarge)
        );
    }
}
