//! Canonical writing: one text per value.
//!
//! Strings and numbers are written alike in both profiles; only the order of members differs. Member
//! order under RFC 8785 is by UTF-16 code units, which differs from the map's own (UTF-8) order when a
//! supplementary character meets one from U+E000 to U+FFFF.

use std::cmp::Ordering;
use std::io::Write as _;

use serde_json::{Number, Value};

/// Which canonical form to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// RFC 8785: members by UTF-16 code units.
    Jcs,
    /// `ahd-js-1`: array-index names first, as numbers; then the others as in RFC 8785.
    AhdJs1,
}

/// Returns the RFC 8785 bytes of a value.
pub fn jcs(value: &Value) -> Vec<u8> {
    canonical(value, Profile::Jcs)
}

/// Returns the canonical bytes of a value under a profile.
pub fn canonical(value: &Value, profile: Profile) -> Vec<u8> {
    let mut out = Vec::with_capacity(len_hint(value));
    append(&mut out, value, profile);
    out
}

/// Returns about how long a value is in canonical form, to make room for it: too short by what must be escaped.
pub fn len_hint(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 16,
        Value::Array(items) => items.iter().map(|item| len_hint(item) + 1).sum::<usize>() + 2,
        Value::Object(map) => {
            let members = map.iter();
            let len = |(name, value): (&String, &Value)| name.len() + 4 + len_hint(value);
            members.map(len).sum::<usize>() + 2
        }
    }
}

/// Returns how many bytes the RFC 8785 form of a value has, without writing it.
pub fn jcs_len(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(true) => 4,
        Value::Bool(false) => 5,
        Value::Number(value) => {
            let mut digits = Vec::with_capacity(NUMBER_BYTES_MAX);
            push_number(&mut digits, value);
            digits.len()
        }
        Value::String(text) => string_len(text),
        // As many commas as there are items, less one; and two brackets.
        Value::Array(items) => {
            items.iter().map(|item| jcs_len(item) + 1).sum::<usize>() + 2
                - usize::from(!items.is_empty())
        }
        Value::Object(map) => {
            let len = |(name, value): (&String, &Value)| string_len(name) + 2 + jcs_len(value);
            map.iter().map(len).sum::<usize>() + 2 - usize::from(!map.is_empty())
        }
    }
}

/// The longest form of a double, and more than that of any integer.
const NUMBER_BYTES_MAX: usize = 25;

fn string_len(text: &str) -> usize {
    let mut len = text.len() + 2;
    let mut rest = text.as_bytes();
    while let Some((_, [byte, after @ ..])) = rest.split_at_checked(clean_len(rest)) {
        rest = after;
        len += match byte {
            0x08 | 0x09 | 0x0a | 0x0c | 0x0d => 1,
            0x00..=0x1f => 5,
            _ => 1,
        };
    }
    len
}

/// Appends the canonical bytes of a value.
pub fn append(out: &mut Vec<u8>, value: &Value, profile: Profile) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(value) => push_number(out, value),
        Value::String(text) => append_string(out, text),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                append(out, item, profile);
            }
            out.push(b']');
        }
        Value::Object(map) => append_members(out, map.iter(), profile),
    }
}

/// Appends the canonical bytes of the object with these members, given in the order of a map: by their bytes.
pub fn append_members<'a>(
    out: &mut Vec<u8>,
    members: impl Iterator<Item = (&'a String, &'a Value)> + Clone,
    profile: Profile,
) {
    // Among ASCII names, which nearly all are, the order of the bytes is that of RFC 8785 already.
    if profile == Profile::Jcs && members.clone().all(|(name, _)| name.is_ascii()) {
        return append_in_order(out, members, profile);
    }
    let mut members: Vec<(&String, &Value)> = members.collect();
    members.sort_by(|(a, _), (b, _)| profile.compare_names(a, b));
    append_in_order(out, members.into_iter(), profile);
}

fn append_in_order<'a>(
    out: &mut Vec<u8>,
    members: impl Iterator<Item = (&'a String, &'a Value)>,
    profile: Profile,
) {
    out.push(b'{');
    for (index, (name, member)) in members.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        append_string(out, name);
        out.push(b':');
        append(out, member, profile);
    }
    out.push(b'}');
}

/// Returns a finite double in ECMAScript's shortest notation; others as `null`.
pub fn number(value: f64) -> String {
    let mut out = Vec::new();
    append_number(&mut out, value);
    String::from_utf8(out).unwrap_or_default()
}

/// Appends what [`number`] returns.
pub fn append_number(out: &mut Vec<u8>, value: f64) {
    if !value.is_finite() {
        return out.extend_from_slice(b"null");
    }
    // Integers that a double holds exactly print as their digits, and negative zero has no sign.
    if value.fract() == 0.0 && value.abs() <= EXACT as f64 {
        return push_integer(out, value as i64);
    }
    out.extend_from_slice(ryu_js::Buffer::new().format_finite(value).as_bytes());
}

/// Doubles hold every integer up to this one, in either direction.
const EXACT: u64 = 1 << 53;

fn push_integer(out: &mut Vec<u8>, integer: i64) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "{integer}");
}

fn push_number(out: &mut Vec<u8>, value: &Number) {
    if let Some(integer) = value.as_i64()
        && integer.unsigned_abs() <= EXACT
    {
        push_integer(out, integer);
    } else if let Some(double) = value.as_f64() {
        append_number(out, double);
    }
}

/// Appends a string in canonical form, quotes included.
pub fn append_string(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some((clean, [byte, after @ ..])) = rest.split_at_checked(clean_len(rest)) {
        out.extend_from_slice(clean);
        rest = after;
        let short = match byte {
            0x08 => b'b',
            0x09 => b't',
            0x0a => b'n',
            0x0c => b'f',
            0x0d => b'r',
            0x00..=0x1f => b'u',
            other => *other,
        };
        out.extend_from_slice(&[b'\\', short]);
        if short == b'u' {
            let digit = |nibble: u8| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0');
            out.extend_from_slice(&[b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// Returns how many bytes come before the first that must be escaped.
fn clean_len(bytes: &[u8]) -> usize {
    // Eight at a time: texts are long, and what must be escaped is rare.
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let marks = escaped(u64::from_le_bytes(*word));
        if marks != 0 {
            return index * 8 + marks.trailing_zeros() as usize / 8;
        }
    }
    let clean = rest
        .iter()
        .take_while(|byte| !matches!(byte, 0x00..=0x1f | b'"' | b'\\'));
    words.len() * 8 + clean.count()
}

/// Marks the highest bit of the lowest of eight bytes that must be escaped; bytes above it may be marked wrongly.
fn escaped(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word;
    let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    (below(word, 0x20) | is(b'"') | is(b'\\')) & (ONES << 7)
}

/// The beginning of a member name, made to be compared fast.
///
/// Names whose keys differ are in the order of the keys; names of one key are in the order that
/// [`Profile::compare_names`] tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameKey {
    is_text: bool,
    head: u64,
}

impl Profile {
    /// Returns the order of two member names.
    pub fn compare_names(self, a: &str, b: &str) -> Ordering {
        let by_key = self.name_key(a, 0).cmp(&self.name_key(b, 0));
        by_key.then_with(|| by_code_units(a, b))
    }

    /// Returns the key of a member name, of which the first `skip` bytes are those of every name it is compared with.
    pub fn name_key(self, name: &str, skip: usize) -> NameKey {
        if self == Self::AhdJs1
            && let Some(index) = array_index(name)
        {
            return NameKey {
                is_text: false,
                head: u64::from(index),
            };
        }
        let mut head = [0; 8];
        let rest = name.as_bytes().get(skip..).unwrap_or_default();
        for (to, from) in head.iter_mut().zip(rest) {
            *to = rank(*from);
        }
        NameKey {
            is_text: true,
            head: u64::from_be_bytes(head),
        }
    }
}

/// Compares texts by UTF-16 code units, on their UTF-8 bytes.
fn by_code_units(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    while let (Some((head_a, rest_a)), Some((head_b, rest_b))) =
        (a.split_first_chunk::<8>(), b.split_first_chunk::<8>())
        && head_a == head_b
    {
        (a, b) = (rest_a, rest_b);
    }
    match a.iter().zip(b).find(|(a, b)| a != b) {
        Some((a, b)) => rank(*a).cmp(&rank(*b)),
        None => a.len().cmp(&b.len()),
    }
}

/// Returns a byte of UTF-8 as it counts in the order of UTF-16 code units, where it is the first that differs.
///
/// That is the order of code points, but for supplementary characters (their first byte is F0 to F4): their
/// surrogates are below U+E000 to U+FFFF (EE and EF).
fn rank(byte: u8) -> u8 {
    match byte {
        0xee | 0xef => byte + 0x10,
        _ => byte,
    }
}

/// Returns the value of a name that JavaScript treats as an array index.
fn array_index(name: &str) -> Option<u32> {
    const ARRAY_INDEX_MAX: u32 = u32::MAX - 1;
    let canonical = name == "0" || name.starts_with(|first| matches!(first, '1'..='9'));
    if !canonical || !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    name.parse().ok().filter(|index| *index <= ARRAY_INDEX_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Integers, Reason, read, sha256};

    #[derive(serde::Deserialize)]
    struct Vectors {
        vectors: Vec<Vector>,
    }

    #[derive(serde::Deserialize)]
    struct Vector {
        id: String,
        input_hex: String,
        expect: Value,
    }

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    }

    #[test]
    fn all_138_published_vectors_agree() {
        let text = include_bytes!("../../../conformance/vectors/jcs/vectors.json");
        let vectors: Vectors = serde_json::from_slice(text).unwrap();
        assert_eq!(vectors.vectors.len(), 138);
        for Vector {
            id,
            input_hex,
            expect,
        } in vectors.vectors
        {
            let read = read(&unhex(&input_hex), Integers::Doubles);
            if let Some(reason) = expect.get("reject") {
                let expected = match reason.as_str().unwrap() {
                    "syntax" => Reason::Syntax,
                    "invalid_utf8" => Reason::InvalidUtf8,
                    "duplicate_key" => Reason::DuplicateKey,
                    "lone_surrogate" => Reason::LoneSurrogate,
                    "number_out_of_range" => Reason::NumberOutOfRange,
                    other => panic!("unknown reason {other}"),
                };
                assert_eq!(read.map_err(|error| error.reason()), Err(expected), "{id}");
            } else {
                let bytes = jcs(&read.unwrap());
                assert_eq!(
                    bytes,
                    unhex(expect["canonical_hex"].as_str().unwrap()),
                    "{id}"
                );
                assert_eq!(
                    sha256(&bytes).hex(),
                    expect["sha256"].as_str().unwrap(),
                    "{id}"
                );
            }
        }
    }

    #[test]
    fn array_index_names_come_first_in_ahd_only() {
        let value =
            serde_json::json!({"10": 1, "9": 2, "a": 3, "00": 4, "4294967295": 5, "4294967294": 6});
        let text = |profile| String::from_utf8(canonical(&value, profile)).unwrap();
        assert_eq!(
            text(Profile::Jcs),
            r#"{"00":4,"10":1,"4294967294":6,"4294967295":5,"9":2,"a":3}"#
        );
        assert_eq!(
            text(Profile::AhdJs1),
            r#"{"9":2,"10":1,"4294967294":6,"00":4,"4294967295":5,"a":3}"#
        );
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>()
                .prop_map(|double| Number::from_f64(double).map_or(Value::Null, Value::Number)),
            any::<String>().prop_map(Value::String),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
                prop::collection::btree_map(any::<String>(), inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn names_are_in_the_order_of_their_code_units(
            a in "[aé\u{d7ff}\u{e000}\u{ffff}\u{10000}\u{10ffff}]{0,7}",
            b in "[aé\u{d7ff}\u{e000}\u{ffff}\u{10000}\u{10ffff}]{0,7}",
            same in "[a\u{0}]{0,20}",
        ) {
            let (a, b) = (format!("{same}{a}"), format!("{same}{b}"));
            let oracle = a.encode_utf16().cmp(b.encode_utf16());
            prop_assert_eq!(Profile::Jcs.compare_names(&a, &b), oracle);
            let key = |name: &str| Profile::Jcs.name_key(name, same.len());
            let by_key = key(&a).cmp(&key(&b));
            prop_assert!(by_key.is_eq() || by_key == oracle);
        }

        #[test]
        fn the_writer_equals_an_independent_one(value in any_value()) {
            let oracle = serde_json_canonicalizer::to_vec(&value).unwrap();
            prop_assert_eq!(jcs_len(&value), oracle.len());
            prop_assert_eq!(jcs(&value), oracle);
        }

        #[test]
        fn what_must_be_escaped_is_found_at_every_place(
            text in "[ a\"\\\\\n\u{1}\u{1f}!#\\[\\]\u{7f}é\u{a2}]{0,40}"
        ) {
            let oracle = serde_json_canonicalizer::to_vec(&text).unwrap();
            prop_assert_eq!(string_len(&text), oracle.len());
            prop_assert_eq!(jcs(&Value::String(text)), oracle);
        }

        #[test]
        fn reading_back_and_writing_again_changes_nothing(value in any_value()) {
            let once = jcs(&value);
            let again = jcs(&read(&once, Integers::Doubles).unwrap());
            prop_assert_eq!(once, again);
        }
    }
}
