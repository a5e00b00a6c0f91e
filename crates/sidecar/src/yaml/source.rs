//! The text before parsing: what the parser would misread is refused or rewritten here.
//!
//! Three gaps of an event parser matter for hashes: it takes NUL for the end of the text, it ignores
//! the version a document declares, and it knows no surrogate pairs written as two escapes, which
//! JSON files contain.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::{YamlError, YamlRefusal};

/// A text ready for the parser.
#[derive(Debug)]
pub(super) struct Source<'a> {
    text: Cow<'a, str>,
    /// The character that stands for a joined surrogate pair; it does not occur in the input.
    mark: Option<char>,
}

/// Length of `\uD83D\uDE00`. Its stand-in has the same length, so that no column moves.
const PAIR_LEN: usize = 12;

const MARK: char = '\u{feff}';

pub(super) fn prepare(bytes: &[u8], bytes_max: usize) -> Result<Source<'_>, YamlError> {
    if bytes.len() > bytes_max {
        return Err(YamlError::new(
            YamlRefusal::TooLarge,
            format!("{} bytes, more than {bytes_max}", bytes.len()),
            0,
        ));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = line_at(bytes, error.valid_up_to());
        YamlError::new(YamlRefusal::Syntax, "not UTF-8", line)
    })?;
    let unsupported =
        |message, at| YamlError::new(YamlRefusal::Unsupported, message, line_at(bytes, at));
    if let Some(at) = text.find('\0') {
        return Err(unsupported("a NUL character", at));
    }
    // A carriage return alone is a line break to YAML and a character to the reference.
    let mut returns = text.match_indices('\r');
    if let Some((at, _)) = returns.find(|(at, _)| bytes.get(at + 1) != Some(&b'\n')) {
        return Err(unsupported("a carriage return without a line feed", at));
    }
    // The parser skips a byte order mark at the start of any line; the reference only the first.
    let text = text.strip_prefix(MARK).unwrap_or(text);
    let starts_line = |at: usize| at == 0 || text.as_bytes().get(at - 1) == Some(&b'\n');
    if text.match_indices(MARK).any(|(at, _)| starts_line(at)) {
        return Err(unsupported("a byte order mark after the start", 0));
    }
    refuse_other_versions(text)?;
    refuse_second_document(text)?;
    refuse_empty_value_before_empty_key(text)?;
    // Between the tokens of JSON a tab is as good as a space, and no string of JSON holds one.
    if text.contains(":\t") && canon::read(text.as_bytes(), canon::Integers::Doubles).is_ok() {
        return Ok(join_surrogates(Cow::Owned(text.replace('\t', " "))));
    }
    Ok(join_surrogates(Cow::Borrowed(text)))
}

/// Refuses a second `---`: the parser takes one inside a scalar that is not indented for text.
fn refuse_second_document(text: &str) -> Result<(), YamlError> {
    let is_marker = |line: &str| {
        let rest = line.strip_prefix("---");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r']))
    };
    let mut markers = text
        .split('\n')
        .zip(1..)
        .filter(|(line, _)| is_marker(line));
    match markers.nth(1) {
        None => Ok(()),
        Some((_, line)) => Err(YamlError::new(
            YamlRefusal::Syntax,
            "more than one document",
            line,
        )),
    }
}

/// Refuses a `:` without a value on the line before another `:`. Readers differ in which key the second belongs to.
fn refuse_empty_value_before_empty_key(text: &str) -> Result<(), YamlError> {
    let mut is_open = false;
    for (line, number) in text.split('\n').zip(1..) {
        let rest = line.trim_start_matches(' ').strip_prefix(':');
        let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r']));
        if is_open && rest.is_some() {
            let message = "a key without a name after a key without a value";
            return Err(YamlError::new(YamlRefusal::Unsupported, message, number));
        }
        let is_empty = |rest: &str| rest.trim().is_empty() || rest.trim().starts_with('#');
        is_open = rest.is_some_and(is_empty);
    }
    Ok(())
}

impl Source<'_> {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Makes a space of the tab between a colon and the plain scalar at a character of the text, which the parser refuses
    /// there. Returns whether there was one. Only after a key of the same line: elsewhere a tab would be indentation.
    pub(super) fn accept_tab_before(&mut self, character: usize) -> bool {
        let Some((end, _)) = self.text.char_indices().nth(character) else {
            return false;
        };
        let before = self.text.get(..end).unwrap_or_default();
        let blanks = before.trim_end_matches(['\t', ' ']);
        let Some(key) = blanks.strip_suffix(':') else {
            return false;
        };
        let line = key.rsplit('\n').next().unwrap_or_default();
        let at = blanks.len();
        if line.trim().is_empty() || before.as_bytes().get(at) != Some(&b'\t') {
            return false;
        }
        self.text.to_mut().replace_range(at..=at, " ");
        true
    }

    /// Says whether a line of a quoted text ends in a backslash before an empty line: readers differ in what that joins.
    pub(super) fn joins_empty_line(&self, start: usize, end: usize) -> bool {
        // Most texts have no such line at all, and counting characters costs a pass.
        if !self.text.contains("\\\n") && !self.text.contains("\\\r\n") {
            return false;
        }
        let quoted: String = self.text.chars().skip(start).take(end - start).collect();
        let mut lines = quoted.lines().peekable();
        while let Some(line) = lines.next() {
            let backslashes = line.len() - line.trim_end_matches('\\').len();
            let is_empty = lines.peek().is_some_and(|next| next.trim().is_empty());
            if backslashes % 2 == 1 && is_empty {
                return true;
            }
        }
        false
    }

    /// Says whether the text ends in a line of blanks without a line feed.
    pub(super) fn ends_in_blanks(&self) -> bool {
        let trimmed = self.text.trim_end_matches([' ', '\t']);
        trimmed.len() < self.text.len() && trimmed.ends_with('\n')
    }

    /// Says whether some block scalar may state its indentation (`|2`, `>-1`).
    pub(super) fn may_state_indentation(&self) -> bool {
        self.text.match_indices(['|', '>']).any(|(at, _)| {
            let rest = self.text.get(at + 1..).unwrap_or_default();
            rest.trim_start_matches(['+', '-'])
                .starts_with(|char: char| char.is_ascii_digit())
        })
    }

    /// Puts joined pairs back: as characters where escapes count, as they were written elsewhere.
    pub(super) fn restore<'t>(&self, text: Cow<'t, str>, escapes: bool) -> Cow<'t, str> {
        let Some(mark) = self.mark else {
            return text;
        };
        if !text.contains(mark) {
            return text;
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text.chars();
        while let Some(next) = rest.next() {
            if next != mark {
                out.push(next);
                continue;
            }
            // Invariant: `join_surrogates` wrote eight digits and three more marks after each mark.
            let digits: String = rest.by_ref().take(8).collect();
            let _padding = rest.by_ref().take(3).count();
            let (high, low) = digits.split_at_checked(4).unwrap_or_default();
            let unit = |hex| u16::from_str_radix(hex, 16).unwrap_or_default();
            match char::decode_utf16([unit(high), unit(low)]).next() {
                Some(Ok(joined)) if escapes => out.push(joined),
                _ => {
                    for half in [high, low] {
                        out.push_str("\\u");
                        out.push_str(half);
                    }
                }
            }
        }
        Cow::Owned(out)
    }
}

/// Refuses a document that declares another version than 1.2, whose scalars mean other things.
fn refuse_other_versions(text: &str) -> Result<(), YamlError> {
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if let Some(directive) = line.strip_prefix('%') {
            let mut words = directive.split_ascii_whitespace();
            if words.next() == Some("YAML") && words.next() != Some("1.2") {
                return Err(YamlError::new(
                    YamlRefusal::Unsupported,
                    "a YAML version other than 1.2",
                    index + 1,
                ));
            }
        } else if !(line.trim_start().is_empty()
            || line.trim_start().starts_with('#')
            || line.starts_with("..."))
        {
            break;
        }
    }
    Ok(())
}

fn join_surrogates(text: Cow<'_, str>) -> Source<'_> {
    let pairs = surrogate_pairs(&text);
    if pairs.is_empty() {
        return Source { text, mark: None };
    }
    let taken = private_characters(&text);
    let free = ('\u{e000}'..='\u{f8ff}')
        .chain('\u{f0000}'..='\u{ffffd}')
        .find(|char| !taken.contains(char));
    let Some(mark) = free else {
        // A text that uses all 71,933 of them is refused by the parser for its surrogate escape.
        return Source { text, mark: None };
    };
    let mut out = String::with_capacity(text.len() + pairs.len());
    let mut from = 0;
    for at in pairs {
        let half = |start: usize| text.get(start + 2..start + 6).unwrap_or_default();
        out.push_str(text.get(from..at).unwrap_or_default());
        out.push(mark);
        out.push_str(half(at));
        out.push_str(half(at + 6));
        out.extend([mark; 3]);
        from = at + PAIR_LEN;
    }
    out.push_str(text.get(from..).unwrap_or_default());
    Source {
        text: Cow::Owned(out),
        mark: Some(mark),
    }
}

/// Returns the private-use characters that the text holds or could produce by an escape.
fn private_characters(text: &str) -> BTreeSet<char> {
    let escaped = text.match_indices("\\").filter_map(|(at, _)| {
        let (start, end) = match text.as_bytes().get(at + 1)? {
            b'u' => (at + 2, at + 6),
            b'U' => (at + 2, at + 10),
            _ => return None,
        };
        char::from_u32(u32::from_str_radix(text.get(start..end)?, 16).ok()?)
    });
    text.chars()
        .chain(escaped)
        .filter(|char| matches!(char, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{ffffd}'))
        .collect()
}

/// Returns where a high surrogate escape is followed by a low one.
fn surrogate_pairs(text: &str) -> Vec<usize> {
    let unit = |at: usize| -> Option<u16> {
        let escape = text.get(at..at + 6)?.strip_prefix("\\u")?;
        escape
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit())
            .then(|| u16::from_str_radix(escape, 16).ok())?
    };
    let mut pairs = Vec::new();
    let mut at = 0;
    while let Some(backslash) = text.get(at..).and_then(|rest| rest.find('\\')) {
        at += backslash;
        let high = unit(at).is_some_and(|unit| (0xd800..0xdc00).contains(&unit));
        let low = unit(at + 6).is_some_and(|unit| (0xdc00..0xe000).contains(&unit));
        if high && low {
            pairs.push(at);
            at += PAIR_LEN;
        } else {
            // With what follows it: the second half of `\\` starts no escape.
            let next = text.get(at + 1..).and_then(|rest| rest.chars().next());
            at += 1 + next.map_or(0, char::len_utf8);
        }
    }
    pairs
}

fn line_at(bytes: &[u8], at: usize) -> usize {
    let before = bytes.get(..at).unwrap_or_default();
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}
