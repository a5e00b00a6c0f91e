//! Reading a JSON text into the places of its values.

use std::sync::Arc;

use super::{Apart, Kind, Known, Member, Node, unquote};
use crate::json::{JsonError, PROTO};

/// Reads values from a place in a text on.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    pub(super) values_left: usize,
    pub(super) duplicates: Vec<usize>,
    /// Whether a member is named `__proto__`.
    pub(super) has_proto: bool,
    /// The member of the outermost object that is read apart, and what is known of it.
    pub(super) apart: Option<(&'a str, Option<&'a Known>)>,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub(super) fn skip_blank(&mut self) {
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

    pub(super) fn value(&mut self, depth_left: usize) -> Result<Node, JsonError> {
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
                    has_proto: false,
                    apart: None,
                };
                let node = reader.value(depth_left)?;
                let found = reader.duplicates.iter().map(|at| start + at);
                self.duplicates.extend(found);
                self.has_proto |= reader.has_proto;
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
    fn has_duplicate(&mut self, members: &[Member]) -> bool {
        let names = members.iter().map(|member| {
            let quoted = self.text.get(member.start..member.name_end);
            let name = quoted.and_then(unquote);
            self.has_proto |= name.as_deref() == Some(PROTO);
            name
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
