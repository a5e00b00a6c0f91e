//! Items to canonical text: open collections, anchors, aliases, and the bounds.
//!
//! Writes each value once, where it is read. Of an open object only the names and places of its members are held;
//! they are put in order when it closes. Nothing is built in between: a value that is hashed is never looked at.

use std::borrow::Cow;
use std::collections::BTreeMap;

use canon::Profile;

use super::members::{Members, Start};
use super::scalar::{self, Resolved};
use super::text::{CanonicalText, Object, Span};
use super::{Item, Limits, YamlError, YamlRefusal};

#[derive(Debug, Clone, Copy, Default)]
struct Size {
    nodes: usize,
    bytes: usize,
}

/// What an anchor names, once its node is complete.
#[derive(Debug)]
struct Anchored {
    node: Node,
    size: Size,
    /// The reference's guard against expansion: uses (the node itself is one) times the heaviest
    /// alias inside.
    uses: usize,
    weight: usize,
}

#[derive(Debug)]
enum Node {
    /// The name it gives as a key, and its text as a value.
    Scalar {
        name: String,
        text: Vec<u8>,
    },
    Collection(Span),
}

/// `uses × weight` beyond this is refused, as in the reference: the hundredth alias of a scalar.
const ALIAS_WEIGHT_MAX: usize = 100;

#[derive(Debug)]
enum Open {
    Sequence,
    Mapping {
        object: usize,
        members: Start,
        wants_key: bool,
        in_order: bool,
    },
}

#[derive(Debug)]
struct Frame {
    open: Open,
    anchor: usize,
    start: usize,
    first_object: usize,
    before: Size,
    weight: usize,
}

#[derive(Debug)]
pub(super) struct Writer {
    limits: Limits,
    written: CanonicalText,
    frames: Vec<Frame>,
    members: Members,
    anchors: BTreeMap<usize, Anchored>,
    size: Size,
}

impl Writer {
    pub(super) fn new(profile: Profile, limits: Limits) -> Self {
        Self {
            limits,
            written: CanonicalText::default(),
            frames: Vec::new(),
            members: Members::new(profile),
            anchors: BTreeMap::new(),
            size: Size::default(),
        }
    }

    /// Returns the text; of no node at all that of null.
    pub(super) fn finish(mut self) -> CanonicalText {
        if self.written.text.is_empty() {
            self.written.text.extend_from_slice(b"null");
        }
        self.written
    }

    pub(super) fn take(&mut self, item: Item<'_>, line: usize) -> Result<(), YamlError> {
        match item {
            Item::Scalar {
                resolved,
                text,
                anchor,
            } => self.scalar(resolved, &text, anchor, line),
            Item::Alias(anchor) => self.alias(anchor, line),
            Item::OpenSequence(anchor) => self.open(Open::Sequence, anchor, b'[', line),
            Item::OpenMapping(anchor) => {
                let open = Open::Mapping {
                    object: self.written.objects.len(),
                    members: self.members.start(),
                    wants_key: true,
                    in_order: true,
                };
                self.open(open, anchor, b'{', line)?;
                self.written.objects.push(Object::default());
                Ok(())
            }
            Item::Close => self.close(line),
        }
    }

    fn scalar(
        &mut self,
        resolved: Resolved,
        text: &str,
        anchor: usize,
        line: usize,
    ) -> Result<(), YamlError> {
        let mut size = Size { nodes: 1, bytes: 0 };
        if self.wants_key() {
            let (name, derived) = name_of(resolved, text);
            size.bytes = name.len();
            self.charge(size, line)?;
            self.key(&name, derived, line)?;
        } else {
            if resolved == Resolved::Text {
                size.bytes = text.len();
            }
            self.charge(size, line)?;
            self.before_value();
            push_value(&mut self.written.text, resolved, text);
            self.after_value();
        }
        if anchor > 0 {
            let mut value = Vec::new();
            push_value(&mut value, resolved, text);
            let anchored = Anchored {
                node: Node::Scalar {
                    name: name_of(resolved, text).0.into_owned(),
                    text: value,
                },
                size,
                uses: 1,
                weight: 1,
            };
            self.anchors.insert(anchor, anchored);
        }
        Ok(())
    }

    fn alias(&mut self, anchor: usize, line: usize) -> Result<(), YamlError> {
        let Some(target) = self.anchors.get_mut(&anchor) else {
            return Err(unsupported("an alias inside the node it names", line));
        };
        target.uses += 1;
        let weight = target.uses.saturating_mul(target.weight);
        if weight > ALIAS_WEIGHT_MAX {
            return Err(YamlError::new(
                YamlRefusal::TooLarge,
                "too many uses of one alias",
                line,
            ));
        }
        let size = target.size;
        self.charge(size, line)?;
        if self.wants_key() {
            let Some(Node::Scalar { name, .. }) = self.anchored(anchor) else {
                return Err(unsupported("a collection as a key", line));
            };
            // An alias is not compared with its target by the reference: a collision is no duplicate.
            let name = name.clone();
            return self.key(&name, true, line);
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.weight = frame.weight.max(weight);
        }
        self.before_value();
        match self.anchors.get(&anchor).map(|anchored| &anchored.node) {
            Some(Node::Scalar { text, .. }) => self.written.text.extend_from_slice(text),
            Some(Node::Collection(span)) => self.written.repeat(*span),
            None => {}
        }
        self.after_value();
        Ok(())
    }

    fn anchored(&self, anchor: usize) -> Option<&Node> {
        self.anchors.get(&anchor).map(|anchored| &anchored.node)
    }

    fn open(
        &mut self,
        open: Open,
        anchor: usize,
        bracket: u8,
        line: usize,
    ) -> Result<(), YamlError> {
        if self.wants_key() {
            return Err(unsupported("a collection as a key", line));
        }
        if self.frames.len() >= self.limits.depth_max {
            return Err(too_large("levels", self.limits.depth_max, line));
        }
        let before = self.size;
        self.charge(Size { nodes: 1, bytes: 0 }, line)?;
        self.before_value();
        self.frames.push(Frame {
            open,
            anchor,
            start: self.written.text.len(),
            first_object: self.written.objects.len(),
            before,
            weight: 1,
        });
        self.written.text.push(bracket);
        Ok(())
    }

    fn close(&mut self, line: usize) -> Result<(), YamlError> {
        let Some(frame) = self.frames.pop() else {
            return Err(YamlError::new(YamlRefusal::Syntax, "unbalanced end", line));
        };
        match frame.open {
            Open::Sequence => self.written.text.push(b']'),
            Open::Mapping {
                object,
                members,
                in_order,
                ..
            } => {
                if in_order {
                    self.keep_order(object);
                } else {
                    self.set_order(object, members, frame.start + 1)?;
                }
                self.members.forget(members);
                self.written.text.push(b'}');
            }
        }
        if frame.anchor > 0 {
            let span = Span {
                start: frame.start,
                end: self.written.text.len(),
                first_object: frame.first_object,
                end_object: self.written.objects.len(),
            };
            let size = Size {
                nodes: self.size.nodes - frame.before.nodes,
                bytes: self.size.bytes - frame.before.bytes,
            };
            let anchored = Anchored {
                node: Node::Collection(span),
                size,
                uses: 1,
                weight: frame.weight,
            };
            self.anchors.insert(frame.anchor, anchored);
        }
        if let Some(parent) = self.frames.last_mut() {
            parent.weight = parent.weight.max(frame.weight);
        }
        self.after_value();
        Ok(())
    }

    fn keep_order(&mut self, object: usize) {
        // An object that needs no order is only held where others opened in it.
        if self.written.objects.len() == object + 1 {
            self.written.objects.pop();
        }
    }

    fn set_order(&mut self, object: usize, members: Start, start: usize) -> Result<(), YamlError> {
        let written = &mut self.written;
        let first_member = written.order.len();
        written.order.extend(self.members.sort(members)?);
        let next = written.objects.len();
        if let Some(object) = written.objects.get_mut(object) {
            *object = Object {
                start,
                end: written.text.len(),
                next,
                first_member,
                end_member: written.order.len(),
            };
        }
        Ok(())
    }

    /// Says whether the next node is a member name.
    fn wants_key(&self) -> bool {
        let open = self.frames.last().map(|frame| &frame.open);
        matches!(
            open,
            Some(Open::Mapping {
                wants_key: true,
                ..
            })
        )
    }

    fn key(&mut self, name: &str, derived: bool, line: usize) -> Result<(), YamlError> {
        if name == "__proto__" {
            return Err(unsupported("`__proto__` as a key", line));
        }
        let Some(Frame {
            open:
                Open::Mapping {
                    members,
                    wants_key,
                    in_order,
                    ..
                },
            ..
        }) = self.frames.last_mut()
        else {
            return Err(YamlError::new(
                YamlRefusal::Syntax,
                "a key outside a map",
                line,
            ));
        };
        *wants_key = false;
        if let Some(follows) = self.members.follows(*members, name) {
            *in_order &= follows;
            self.written.text.push(b',');
        }
        let place = Span {
            start: self.written.text.len(),
            first_object: self.written.objects.len(),
            ..Span::default()
        };
        self.members.push(name, derived, line, place);
        canon::append_string(&mut self.written.text, name);
        self.written.text.push(b':');
        Ok(())
    }

    fn before_value(&mut self) {
        let text = &mut self.written.text;
        if let Some(Frame {
            open: Open::Sequence,
            start,
            ..
        }) = self.frames.last()
            && text.len() > start + 1
        {
            text.push(b',');
        }
    }

    fn after_value(&mut self) {
        if let Some(Frame {
            open: Open::Mapping { wants_key, .. },
            ..
        }) = self.frames.last_mut()
            && let Some(place) = self.members.last_span()
        {
            *wants_key = true;
            place.end = self.written.text.len();
            place.end_object = self.written.objects.len();
        }
    }

    fn charge(&mut self, size: Size, line: usize) -> Result<(), YamlError> {
        self.size.nodes += size.nodes;
        self.size.bytes += size.bytes;
        if self.size.nodes > self.limits.nodes_max {
            return Err(too_large("nodes", self.limits.nodes_max, line));
        }
        if self.size.bytes > self.limits.expanded_bytes_max {
            let max = self.limits.expanded_bytes_max;
            return Err(too_large("bytes of text after expansion", max, line));
        }
        Ok(())
    }
}

/// Returns a scalar as a member name, and whether it is another text than the scalar's own.
pub(super) fn name_of(resolved: Resolved, text: &str) -> (Cow<'_, str>, bool) {
    match resolved {
        Resolved::Null => (Cow::Borrowed(""), true),
        Resolved::Bool(true) => (Cow::Borrowed("true"), true),
        Resolved::Bool(false) => (Cow::Borrowed("false"), true),
        Resolved::Number(number) => (Cow::Owned(scalar::number_key(number)), true),
        Resolved::Text => (Cow::Borrowed(text), false),
    }
}

fn push_value(out: &mut Vec<u8>, resolved: Resolved, text: &str) {
    match resolved {
        Resolved::Null => out.extend_from_slice(b"null"),
        Resolved::Bool(true) => out.extend_from_slice(b"true"),
        Resolved::Bool(false) => out.extend_from_slice(b"false"),
        Resolved::Number(number) => canon::append_number(out, number),
        Resolved::Text => canon::append_string(out, text),
    }
}

fn unsupported(message: &str, line: usize) -> YamlError {
    YamlError::new(YamlRefusal::Unsupported, message, line)
}

fn too_large(what: &str, max: usize, line: usize) -> YamlError {
    YamlError::new(
        YamlRefusal::TooLarge,
        format!("more than {max} {what}"),
        line,
    )
}
