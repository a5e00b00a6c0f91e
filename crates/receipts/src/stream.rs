//! The fast check of one stored receipt: canonical form, shape and hash in one pass over its bytes.
//!
//! Builds no value. The bytes are hashed as they stand with `chain.receipt_hash` and `signatures` cut
//! out, which is right only because the pass has shown them to be canonical. Links, signatures and
//! batches are for the caller, who gets the members that those checks need.
//!
//! Invariant: accepts exactly what the value-based [`check_by_value`] accepts.

use std::borrow::Cow;

use canon::{Digest, sha256_parts};

use crate::{
    format,
    receipt::{REPLAY_SEGMENT, ReadReceiptError, Receipt},
    shape::{Closed, Shape, Slot},
};

/// What is known of a receipt whose bytes hold together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedReceipt<'a> {
    /// The hash, computed and found equal to the stated one.
    pub hash: Digest,
    /// The predecessor that it names.
    pub previous_hash: Option<Digest>,
    /// The batch root that it names.
    pub merkle_root: Option<Digest>,
    /// The member `receipt_id`.
    pub receipt_id: Cow<'a, str>,
    /// The member `identifiers.session_id`.
    pub session_id: Cow<'a, str>,
    /// The time of issue as written.
    pub issued_at: &'a str,
    /// Whether it hangs off the chain instead of advancing it.
    pub is_replay: bool,
    /// Whether the list `signatures` has entries.
    pub is_signed: bool,
}

/// Why stored bytes were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// They are not a receipt.
    #[error(transparent)]
    NotAReceipt(#[from] ReadReceiptError),
    /// They are a receipt, but not in canonical form.
    #[error("receipt is not in canonical form")]
    NotCanonical,
    /// The stated hash is not the hash of the content.
    #[error("receipt hash is `{found}`, content gives `{expected}`")]
    Hash {
        /// The hash of the content.
        expected: Digest,
        /// The hash that the receipt states.
        found: Digest,
    },
}

/// Checks one stored receipt.
///
/// # Errors
/// Says why not. Only a refusal costs a second, slower look, to find the reason.
pub fn check(bytes: &[u8]) -> Result<CheckedReceipt<'_>, Refusal> {
    match scan(bytes) {
        Some(checked) => Ok(checked),
        None => Err(check_by_value(bytes).err().unwrap_or(Refusal::NotCanonical)),
    }
}

/// Checks one stored receipt by parsing it into a value: slow, simple, and the reference for
/// [`check`].
///
/// # Errors
/// Says why the bytes were refused.
pub fn check_by_value(bytes: &[u8]) -> Result<Receipt, Refusal> {
    let receipt = Receipt::read(bytes)?;
    if receipt.bytes() != bytes {
        return Err(Refusal::NotCanonical);
    }
    match receipt.stated_hash() {
        Some(found) if found != receipt.hash() => Err(Refusal::Hash {
            expected: receipt.hash(),
            found,
        }),
        _ => Ok(receipt),
    }
}

/// The one pass. `None` means refused, for whatever reason.
pub(crate) fn scan(bytes: &[u8]) -> Option<CheckedReceipt<'_>> {
    let mut scanner = Scanner {
        bytes,
        at: 0,
        places: [None; Slot::COUNT],
    };
    scanner.closed(&format::RECEIPT, 1)?;
    if scanner.at != bytes.len() {
        return None;
    }
    let stated = scanner.digest(Slot::ReceiptHash)?;
    let hash = scanner.hash()?;
    (hash == stated).then_some(())?;
    Some(CheckedReceipt {
        hash,
        previous_hash: scanner.digest(Slot::PreviousHash),
        merkle_root: scanner.digest(Slot::MerkleRoot),
        receipt_id: unescape(scanner.text(Slot::ReceiptId)?),
        session_id: unescape(scanner.text(Slot::SessionId)?),
        issued_at: scanner.text(Slot::IssuedAt)?,
        is_replay: scanner.text(Slot::SubjectObject)? == REPLAY_SEGMENT,
        is_signed: scanner
            .raw(Slot::Signatures)
            .is_some_and(|list| list != b"[]"),
    })
}

/// The strict reader refuses the 128th level; so does the scanner.
const DEPTH_MAX: usize = 127;
const SAFE_INTEGER_MAX: f64 = 9_007_199_254_740_991.0;

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    places: [Option<(usize, usize)>; Slot::COUNT],
}

impl<'a> Scanner<'a> {
    fn hash(&self) -> Option<Digest> {
        // Both members are preceded by a comma in every canonical receipt, because a required one
        // sorts before each: `previous_receipt_hash` and `schema`.
        let cut = |slot: Slot, name: &str| {
            self.place(slot)
                .map(|(from, to)| (from - name.len() - r#","":"#.len(), to))
        };
        let (own_from, own_to) = cut(Slot::ReceiptHash, "receipt_hash")?;
        let end = self.bytes.len();
        let (list_from, list_to) = cut(Slot::Signatures, "signatures").unwrap_or((end, end));
        let parts = [
            self.bytes.get(..own_from)?,
            self.bytes.get(own_to..list_from)?,
            self.bytes.get(list_to..)?,
        ];
        Some(sha256_parts(parts))
    }

    fn place(&self, slot: Slot) -> Option<(usize, usize)> {
        self.places.get(slot as usize).copied().flatten()
    }

    fn raw(&self, slot: Slot) -> Option<&'a [u8]> {
        let (from, to) = self.place(slot)?;
        self.bytes.get(from..to)
    }

    /// Returns the text between the quotes, escapes left as they are.
    fn text(&self, slot: Slot) -> Option<&'a str> {
        let raw = std::str::from_utf8(self.raw(slot)?).ok()?;
        raw.strip_prefix('"')?.strip_suffix('"')
    }

    fn digest(&self, slot: Slot) -> Option<Digest> {
        Digest::parse(self.text(slot)?).ok()
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let eaten = self.peek() == Some(byte);
        self.at += usize::from(eaten);
        eaten
    }

    fn word(&mut self, word: &[u8]) -> bool {
        let eaten = self
            .bytes
            .get(self.at..)
            .is_some_and(|rest| rest.starts_with(word));
        if eaten {
            self.at += word.len();
        }
        eaten
    }

    fn value(&mut self, shape: &Shape, depth: usize) -> Option<()> {
        match self.peek()? {
            b'"' => {
                let text = self.string()?;
                shape.accepts_text(text).then_some(())
            }
            b'n' => (self.word(b"null") && shape.accepts_null()).then_some(()),
            b'{' => match shape {
                Shape::Closed(closed) => self.closed(closed, depth),
                Shape::Open | Shape::OpenOrNull => self.any(depth),
                _ => None,
            },
            b'[' => match shape {
                Shape::List(item) => self.list(depth, |scanner| scanner.value(item, depth + 1)),
                _ => None,
            },
            b't' | b'f' => {
                let is_flag = matches!(shape, Shape::Flag);
                (is_flag && (self.word(b"true") || self.word(b"false"))).then_some(())
            }
            _ => {
                let number = self.number()?;
                shape.accepts_number(number).then_some(())
            }
        }
    }

    fn closed(&mut self, closed: &Closed, depth: usize) -> Option<()> {
        let mut expected = closed.members.iter().enumerate();
        let mut present = 0_u32;
        self.members(depth, |scanner, name| {
            // Both sides are sorted: what is skipped here is absent, what is passed cannot come back.
            let member = loop {
                let (index, member) = expected.next()?;
                if member.name == name {
                    present |= 1 << index;
                    break member;
                }
                if member.required {
                    return None;
                }
            };
            let from = scanner.at;
            scanner.value(&member.shape, depth + 1)?;
            if let Some(slot) = member.slot
                && let Some(place) = scanner.places.get_mut(slot as usize)
            {
                *place = Some((from, scanner.at));
            }
            Some(())
        })?;
        let has = |name: &&str| {
            let index = closed
                .members
                .iter()
                .position(|member| member.name == *name);
            index.is_some_and(|index| present & 1 << index != 0)
        };
        let complete =
            closed.any_of.is_empty() || closed.any_of.iter().any(|group| group.iter().all(has));
        (complete && !expected.any(|(_, member)| member.required)).then_some(())
    }

    /// Any canonical value.
    fn any(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'"' => self.string().map(drop),
            b'{' => {
                let mut last: Option<&str> = None;
                self.members(depth, |scanner, name| {
                    if last.is_some_and(|last| !is_before(last, name)) {
                        return None;
                    }
                    last = Some(name);
                    scanner.any(depth + 1)
                })
            }
            b'[' => self.list(depth, |scanner| scanner.any(depth + 1)),
            b'n' => self.word(b"null").then_some(()),
            b't' => self.word(b"true").then_some(()),
            b'f' => self.word(b"false").then_some(()),
            _ => self.number().map(drop),
        }
    }

    fn list(&mut self, depth: usize, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        if depth > DEPTH_MAX || !self.eat(b'[') {
            return None;
        }
        if self.eat(b']') {
            return Some(());
        }
        loop {
            item(self)?;
            if self.eat(b']') {
                return Some(());
            }
            if !self.eat(b',') {
                return None;
            }
        }
    }

    fn members(
        &mut self,
        depth: usize,
        mut member: impl FnMut(&mut Self, &'a str) -> Option<()>,
    ) -> Option<()> {
        if depth > DEPTH_MAX || !self.eat(b'{') {
            return None;
        }
        if self.eat(b'}') {
            return Some(());
        }
        loop {
            let name = self.string()?;
            if !self.eat(b':') {
                return None;
            }
            member(self, name)?;
            if self.eat(b'}') {
                return Some(());
            }
            if !self.eat(b',') {
                return None;
            }
        }
    }

    /// Eats a canonical string and returns what stands between the quotes.
    fn string(&mut self) -> Option<&'a str> {
        if !self.eat(b'"') {
            return None;
        }
        let from = self.at;
        let mut rest = self.bytes.get(from..)?;
        loop {
            let plain = rest
                .iter()
                .position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))?;
            let (_, tail) = rest.split_at_checked(plain)?;
            match tail {
                [b'"', after @ ..] => {
                    let to = self.bytes.len() - after.len() - 1;
                    self.at = to + 1;
                    return std::str::from_utf8(self.bytes.get(from..to)?).ok();
                }
                [
                    b'\\',
                    b'"' | b'\\' | b'b' | b't' | b'n' | b'f' | b'r',
                    after @ ..,
                ] => {
                    rest = after;
                }
                [b'\\', b'u', b'0', b'0', high @ b'0'..=b'1', low, after @ ..] => {
                    // The short forms above must be used where they exist.
                    let is_short = *high == b'0' && matches!(low, b'8' | b'9' | b'a' | b'c' | b'd');
                    if is_short || !matches!(low, b'0'..=b'9' | b'a'..=b'f') {
                        return None;
                    }
                    rest = after;
                }
                _ => return None,
            }
        }
    }

    /// Eats a canonical number.
    fn number(&mut self) -> Option<f64> {
        let rest = self.bytes.get(self.at..)?;
        let length = rest
            .iter()
            .take_while(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
            .count();
        let text = std::str::from_utf8(rest.get(..length)?).ok()?;
        self.at += length;
        let number: f64 = text.parse().ok()?;
        // Up to 15 digits a plain integer is exact and already in its canonical form.
        let is_plain = length <= 15
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && (length == 1 || !text.starts_with('0'));
        if is_plain {
            return Some(number);
        }
        let is_safe =
            number.is_finite() && (number.abs() <= SAFE_INTEGER_MAX || number.fract() != 0.0);
        (is_safe && canon::number(number) == text).then_some(number)
    }
}

/// Tells whether one member name sorts strictly before another, both with canonical escapes.
fn is_before(a: &str, b: &str) -> bool {
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii() && byte != b'\\');
    if is_plain(a) && is_plain(b) {
        return a < b;
    }
    unescape(a).encode_utf16().lt(unescape(b).encode_utf16())
}

/// Undoes canonical escapes.
fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        plain.push(match (character, character == '\\') {
            (plain, false) => plain,
            (_, true) => match characters.next() {
                Some('b') => '\u{8}',
                Some('t') => '\t',
                Some('n') => '\n',
                Some('f') => '\u{c}',
                Some('r') => '\r',
                Some('u') => {
                    let digits: String = characters.by_ref().take(4).collect();
                    let code = u32::from_str_radix(&digits, 16).unwrap_or_default();
                    char::from_u32(code).unwrap_or_default()
                }
                Some(other) => other,
                None => break,
            },
        });
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        assert_eq!(
            unescape(r#"a\"\\\b\t\n\f\r\u0000\u001fz"#),
            "a\"\\\u{8}\t\n\u{c}\r\0\u{1f}z"
        );
    }

    #[test]
    fn names_compare_by_utf16_after_unescaping() {
        assert!(is_before("a", "b"));
        assert!(!is_before("a", "a"));
        // U+FB01 sorts after the surrogates of U+1F600 in UTF-16, before it in UTF-8.
        assert!(is_before("\u{1f600}", "\u{fb01}"));
        // An escaped tab sorts before a quote, although the backslash itself sorts after.
        assert!(is_before(r"\t", "!"));
    }
}
