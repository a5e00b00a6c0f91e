//! A JSON text with the place of every value, so that a part can be changed and the rest stays byte for byte.
//!
//! Nothing is converted: numbers stay digits, texts stay as they are written. What two readers could read differently
//! is noted ([`Doc::duplicate_outside`]) and left to the caller to refuse.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::json::{JsonError, Limits};

/// A JSON text and its tree.
#[derive(Debug, Clone)]
pub(super) struct Doc {
    text: String,
    root: Node,
    duplicates: Vec<usize>,
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
    Apart(Arc<Apart>),
}

/// A value by itself: its places count from its own beginning.
#[derive(Debug)]
struct Apart {
    node: Node,
    values: usize,
}

/// A list that stood in a text. Where it stands in another one, letter for letter, it is not read again.
#[derive(Debug, Clone)]
pub(super) struct Known {
    text: String,
    value: Arc<Apart>,
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
        known: Option<&Known>,
    ) -> Result<Self, JsonError> {
        Self::read_as(text, limits, Some((member, known)))
    }

    fn read_as(
        text: &str,
        limits: Limits,
        apart: Option<(&str, Option<&Known>)>,
    ) -> Result<Self, JsonError> {
        if text.len() > limits.bytes_max {
            return Err(JsonError::TooLarge);
        }
        let mut reader = Reader {
            text,
            at: 0,
            values_left: limits.values_max,
            duplicates: Vec::new(),
            apart,
        };
        let root = reader.value(limits.depth_max)?;
        reader.skip_blank();
        if reader.at != text.len() {
            return Err(JsonError::Syntax);
        }
        Ok(Self {
            duplicates: reader.duplicates,
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
    pub(super) fn known(&self) -> Option<Known> {
        let (node, value) = self.apart()?;
        let is_list = matches!(value.node.kind, Kind::Array(_));
        let text = self.text.get(node.start..node.end)?;
        (is_list && self.duplicates.is_empty()).then(|| Known {
            text: text.to_owned(),
            value: Arc::clone(value),
        })
    }

    /// Says whether what was known is what stands here.
    pub(super) fn has(&self, known: &Known) -> bool {
        let own = self.apart();
        own.is_some_and(|(_, value)| Arc::ptr_eq(value, &known.value))
    }

    fn apart(&self) -> Option<(&Node, &Arc<Apart>)> {
        let Kind::Object(members) = &self.root.kind else {
            return None;
        };
        members.iter().find_map(|member| match &member.value.kind {
            Kind::Apart(value) => Some((&member.value, value)),
            _ => None,
        })
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
            Kind::Apart(value) => Self {
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

struct Reader<'a> {
    text: &'a str,
    at: usize,
    values_left: usize,
    duplicates: Vec<usize>,
    /// The member of the outermost object that is read apart, and what is known of it.
    apart: Option<(&'a str, Option<&'a Known>)>,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        if self.take(byte) {
            Ok(())
        } else {
            Err(JsonError::Syntax)
        }
    }

    fn value(&mut self, depth_left: usize) -> Result<Node, JsonError> {
        self.values_left = self.values_left.checked_sub(1).ok_or(JsonError::TooLarge)?;
        self.skip_blank();
        let start = self.at;
        let deeper = || depth_left.checked_sub(1).ok_or(JsonError::TooLarge);
        let kind = match self.peek().ok_or(JsonError::Syntax)? {
            b'n' => self.word("null", Kind::Null)?,
            b't' => self.word("true", Kind::Bool(true))?,
            b'f' => self.word("false", Kind::Bool(false))?,
            b'"' => {
                self.string()?;
                Kind::String
            }
            b'[' => self.array(deeper()?)?,
            b'{' => self.object(deeper()?)?,
            b'-' | b'0'..=b'9' => self.number()?,
            _ => return Err(JsonError::Syntax),
        };
        let end = self.at;
        Ok(Node { start, end, kind })
    }

    fn word(&mut self, word: &str, kind: Kind) -> Result<Kind, JsonError> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        if !rest.starts_with(word) {
            return Err(JsonError::Syntax);
        }
        self.at += word.len();
        Ok(kind)
    }

    fn array(&mut self, depth_left: usize) -> Result<Kind, JsonError> {
        self.expect(b'[')?;
        let mut items = Vec::new();
        self.skip_blank();
        if self.take(b']') {
            return Ok(Kind::Array(items));
        }
        loop {
            items.push(self.value(depth_left)?);
            self.skip_blank();
            if self.take(b']') {
                return Ok(Kind::Array(items));
            }
            self.expect(b',')?;
        }
    }

    fn object(&mut self, depth_left: usize) -> Result<Kind, JsonError> {
        let object_start = self.at;
        let apart = self.apart.take();
        self.expect(b'{')?;
        let mut members: Vec<Member> = Vec::new();
        self.skip_blank();
        if self.take(b'}') {
            return Ok(Kind::Object(members));
        }
        loop {
            self.skip_blank();
            let start = self.at;
            self.string()?;
            let name_end = self.at;
            self.skip_blank();
            self.expect(b':')?;
            let name = self.text.get(start + 1..name_end - 1);
            let value = match apart {
                Some((wanted, known)) if name == Some(wanted) => {
                    self.value_apart(depth_left, known)?
                }
                _ => self.value(depth_left)?,
            };
            members.push(Member {
                start,
                name_end,
                value,
            });
            self.skip_blank();
            if self.take(b'}') {
                break;
            }
            self.expect(b',')?;
        }
        if self.has_duplicate(&members) {
            self.duplicates.push(object_start);
        }
        Ok(Kind::Object(members))
    }

    fn value_apart(&mut self, depth_left: usize, known: Option<&Known>) -> Result<Node, JsonError> {
        self.skip_blank();
        let start = self.at;
        let rest = self.text.get(start..).unwrap_or_default();
        // A list ends with its bracket: whatever begins like it is it.
        let known = known.filter(|known| rest.starts_with(&known.text));
        let (length, value) = match known {
            Some(known) => (known.text.len(), Arc::clone(&known.value)),
            None => {
                let mut reader = Reader {
                    text: rest,
                    at: 0,
                    values_left: self.values_left,
                    duplicates: Vec::new(),
                    apart: None,
                };
                let node = reader.value(depth_left)?;
                let found = reader.duplicates.iter().map(|at| start + at);
                self.duplicates.extend(found);
                let values = self.values_left - reader.values_left;
                (reader.at, Arc::new(Apart { node, values }))
            }
        };
        let left = self.values_left.checked_sub(value.values);
        self.values_left = left.ok_or(JsonError::TooLarge)?;
        self.at += length;
        Ok(Node {
            start,
            end: self.at,
            kind: Kind::Apart(value),
        })
    }

    /// A name that cannot be read counts as a duplicate: nobody knows what others make of it.
    fn has_duplicate(&self, members: &[Member]) -> bool {
        let names = members.iter().map(|member| {
            let quoted = self.text.get(member.start..member.name_end);
            quoted.and_then(unquote)
        });
        let Some(mut names) = names.collect::<Option<Vec<_>>>() else {
            return true;
        };
        names.sort_unstable();
        names.windows(2).any(|pair| pair.first() == pair.last())
    }

    fn string(&mut self) -> Result<(), JsonError> {
        self.expect(b'"')?;
        loop {
            match self.peek().ok_or(JsonError::Syntax)? {
                b'"' => break,
                b'\\' => {
                    self.at += 1;
                    match self.peek().ok_or(JsonError::Syntax)? {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
                        b'u' => {
                            let digits = self.text.as_bytes().get(self.at + 1..self.at + 5);
                            if !digits.is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) {
                                return Err(JsonError::Syntax);
                            }
                            self.at += 5;
                        }
                        _ => return Err(JsonError::Syntax),
                    }
                }
                0..=31 => return Err(JsonError::Syntax),
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start {
            return Err(JsonError::Syntax);
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Kind, JsonError> {
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(Kind::Number)
    }
}

/// Changes to a text that touch nothing else.
#[derive(Debug, Default)]
pub(super) struct Edits(Vec<(Range<usize>, String)>);

impl Edits {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn replace(&mut self, place: Range<usize>, text: impl Into<String>) {
        self.0.push((place, text.into()));
    }

    pub(super) fn insert(&mut self, at: usize, text: impl Into<String>) {
        self.replace(at..at, text);
    }

    /// Removes some parts of a list or of an object, with the commas that go with them.
    pub(super) fn remove(&mut self, parts: &[Range<usize>], is_removed: impl Fn(usize) -> bool) {
        let mut kept_end: Option<usize> = None;
        for (index, part) in parts.iter().enumerate() {
            if !is_removed(index) {
                kept_end = Some(part.end);
                continue;
            }
            let next = parts.get(index + 1);
            match (kept_end, next) {
                // After something that stays, the comma before goes along.
                (Some(end), _) => {
                    self.replace(end..part.end, "");
                    kept_end = Some(part.end);
                }
                (None, Some(next)) => self.replace(part.start..next.start, ""),
                (None, None) => self.replace(part.clone(), ""),
            }
        }
    }

    /// Puts a member in front of those that an object has and keeps.
    pub(super) fn add_member(&mut self, object: At<'_>, name: &str, value: &str) {
        let comma = if object.member_places().is_empty() {
            ""
        } else {
            ","
        };
        let name = quoted(name);
        self.insert(object.place().start + 1, format!("{name}:{value}{comma}"));
    }

    /// Puts an element in front of those that a list has and keeps.
    pub(super) fn add_first(&mut self, list: At<'_>, value: &str) {
        let empty = list.items().is_none_or(|items| items.is_empty());
        let comma = if empty { "" } else { "," };
        self.insert(list.place().start + 1, format!("{value}{comma}"));
    }

    pub(super) fn apply(mut self, text: &str) -> String {
        // Stable: what is put in at one place stays in order.
        self.0.sort_by_key(|(place, _)| place.start);
        let mut out = String::with_capacity(text.len() + 64);
        let mut at = 0;
        for (place, new) in &self.0 {
            out.push_str(text.get(at..place.start).unwrap_or_default());
            out.push_str(new);
            at = at.max(place.end);
        }
        out.push_str(text.get(at..).unwrap_or_default());
        out
    }
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
    }

    #[test]
    fn what_is_known_is_found_again_wherever_it_stands() {
        let read = |text: &str, known: Option<&Known>| {
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
        assert_eq!(moved.root().member_places()[1].1, 16..43);
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
        assert!(twice.duplicate_outside(&[]) && !twice.duplicate_outside(&[8..23]));
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
