//! Reading a JSON text into the places of its values.

use std::sync::Arc;

use super::{DetachedValue, Kind, KnownList, Member, Node, unquote};
use crate::json::{Cursor, JsonError, PROTO, read_between};

/// Reads values from a place in a text on.
pub(super) struct Reader<'a> {
    pub(super) cursor: Cursor<'a>,
    pub(super) duplicates: Vec<usize>,
    /// Whether a member is named `__proto__`.
    pub(super) has_proto: bool,
    /// The member of the outermost object that is read apart, and what is known of it.
    pub(super) apart: Option<(&'a str, Option<&'a KnownList>)>,
}

impl Reader<'_> {
    pub(super) fn value(&mut self, depth_left: usize) -> Result<Node, JsonError> {
        let first = self.cursor.next_value()?;
        let start = self.cursor.at;
        let deeper = || depth_left.checked_sub(1).ok_or(JsonError::TooLarge);
        let kind = match first {
            b'n' => self.cursor.word("null", Kind::Null)?,
            b't' => self.cursor.word("true", Kind::Bool(true))?,
            b'f' => self.cursor.word("false", Kind::Bool(false))?,
            b'"' => {
                self.string()?;
                Kind::String
            }
            b'[' => self.array(deeper()?)?,
            b'{' => self.object(deeper()?)?,
            b'-' | b'0'..=b'9' => self.number()?,
            _ => return Err(JsonError::Syntax),
        };
        let end = self.cursor.at;
        Ok(Node { start, end, kind })
    }

    fn array(&mut self, depth_left: usize) -> Result<Kind, JsonError> {
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
        Ok(Kind::Array(items))
    }

    fn object(&mut self, depth_left: usize) -> Result<Kind, JsonError> {
        let object_start = self.cursor.at;
        let apart = self.apart.take();
        let mut members: Vec<Member> = Vec::new();
        read_between(
            self,
            |reader| &mut reader.cursor,
            *b"{}",
            |reader| {
                reader.cursor.skip_blank();
                let start = reader.cursor.at;
                reader.string()?;
                let name_end = reader.cursor.at;
                reader.cursor.skip_blank();
                reader.cursor.expect(b':')?;
                let name = reader.cursor.text.get(start + 1..name_end - 1);
                let value = match apart {
                    Some((wanted, known)) if name == Some(wanted) => {
                        reader.value_apart(depth_left, known)?
                    }
                    _ => reader.value(depth_left)?,
                };
                members.push(Member {
                    start,
                    name_end,
                    value,
                });
                Ok(())
            },
        )?;
        if self.has_duplicate(&members) {
            self.duplicates.push(object_start);
        }
        Ok(Kind::Object(members))
    }

    fn value_apart(
        &mut self,
        depth_left: usize,
        known: Option<&KnownList>,
    ) -> Result<Node, JsonError> {
        self.cursor.skip_blank();
        let start = self.cursor.at;
        let rest = self.cursor.rest();
        // A list ends with its bracket: whatever begins like it is it.
        let known = known.filter(|known| rest.starts_with(&known.text));
        let (length, value) = match known {
            Some(known) => (known.text.len(), Arc::clone(&known.value)),
            None => {
                let mut reader = Reader {
                    cursor: Cursor {
                        text: rest,
                        at: 0,
                        values_left: self.cursor.values_left,
                    },
                    duplicates: Vec::new(),
                    has_proto: false,
                    apart: None,
                };
                let node = reader.value(depth_left)?;
                let found = reader.duplicates.iter().map(|at| start + at);
                self.duplicates.extend(found);
                self.has_proto |= reader.has_proto;
                let values = self.cursor.values_left - reader.cursor.values_left;
                (reader.cursor.at, Arc::new(DetachedValue { node, values }))
            }
        };
        let left = self.cursor.values_left.checked_sub(value.values);
        self.cursor.values_left = left.ok_or(JsonError::TooLarge)?;
        self.cursor.at += length;
        Ok(Node {
            start,
            end: self.cursor.at,
            kind: Kind::Detached(value),
        })
    }

    /// A name that cannot be read counts as a duplicate: nobody knows what others make of it.
    fn has_duplicate(&mut self, members: &[Member]) -> bool {
        let names = members.iter().map(|member| {
            let quoted = self.cursor.text.get(member.start..member.name_end);
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
        self.cursor.expect(b'"')?;
        loop {
            match self.cursor.peek().ok_or(JsonError::Syntax)? {
                b'"' => break,
                b'\\' => {
                    self.cursor.at += 1;
                    match self.cursor.peek().ok_or(JsonError::Syntax)? {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                            self.cursor.at += 1
                        }
                        b'u' => {
                            let digits = self
                                .cursor
                                .text
                                .as_bytes()
                                .get(self.cursor.at + 1..self.cursor.at + 5);
                            if !digits.is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) {
                                return Err(JsonError::Syntax);
                            }
                            self.cursor.at += 5;
                        }
                        _ => return Err(JsonError::Syntax),
                    }
                }
                0..=31 => return Err(JsonError::Syntax),
                _ => self.cursor.at += 1,
            }
        }
        self.cursor.at += 1;
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.cursor.at;
        while matches!(self.cursor.peek(), Some(b'0'..=b'9')) {
            self.cursor.at += 1;
        }
        if self.cursor.at == start {
            return Err(JsonError::Syntax);
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Kind, JsonError> {
        self.cursor.take(b'-');
        if !self.cursor.take(b'0') {
            self.digits()?;
        }
        if self.cursor.take(b'.') {
            self.digits()?;
        }
        if matches!(self.cursor.peek(), Some(b'e' | b'E')) {
            self.cursor.at += 1;
            if matches!(self.cursor.peek(), Some(b'+' | b'-')) {
                self.cursor.at += 1;
            }
            self.digits()?;
        }
        Ok(Kind::Number)
    }
}
