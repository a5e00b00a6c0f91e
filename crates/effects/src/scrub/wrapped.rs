//! Encodings that are broken into lines and groups.
//!
//! Owns what may stand inside an encoded text without being part of it, and where the rest stood.

use std::ops::Range;

/// More backslashes than this come from no nesting of JSON.
const BACKSLASHES_MAX: usize = 16;

/// A text without its blanks and line breaks.
pub(super) struct Joined {
    bytes: Vec<u8>,
    parts: Vec<Part>,
}

/// A part of the text that has no blank inside.
struct Part {
    /// Where it stands in what is joined.
    at: usize,
    /// Where it stood.
    from: usize,
}

impl Joined {
    pub(super) fn of(text: &[u8]) -> Self {
        let (mut bytes, mut parts) = (Vec::with_capacity(text.len()), Vec::new());
        let (mut at, mut is_inside) = (0, false);
        while let Some(rest @ [byte, ..]) = text.get(at..) {
            let blank = blank(rest);
            if blank == 0 {
                if !is_inside {
                    let part = Part {
                        at: bytes.len(),
                        from: at,
                    };
                    parts.push(part);
                }
                bytes.push(*byte);
            }
            is_inside = blank == 0;
            at += blank.max(1);
        }
        Self { bytes, parts }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_one_part(&self) -> bool {
        self.parts.len() < 2
    }

    /// Returns where a range of what is joined stood.
    pub(super) fn range(&self, range: &Range<usize>) -> Range<usize> {
        match range.end.checked_sub(1) {
            Some(last) => self.place(range.start)..self.place(last) + 1,
            None => 0..0,
        }
    }

    /// Returns where a byte of what is joined stood.
    pub(super) fn place(&self, at: usize) -> usize {
        let later = self.parts.partition_point(|part| part.at <= at);
        let part = later.checked_sub(1).and_then(|nth| self.parts.get(nth));
        part.map_or(at, |part| part.from + (at - part.at))
    }
}

/// Returns the length of the blank or line break at the beginning, as it is or as JSON escapes it.
fn blank(text: &[u8]) -> usize {
    if let [b' ' | b'\t' | b'\r' | b'\n', ..] = text {
        return 1;
    }
    let slashes = text.iter().take(BACKSLASHES_MAX);
    let slashes = slashes.take_while(|byte| **byte == b'\\').count();
    match text.get(slashes..) {
        _ if slashes == 0 => 0,
        Some([b'n' | b'r' | b't', ..]) => slashes + 1,
        // The end of a piece may be the middle of an escape.
        Some([]) => slashes,
        _ => 0,
    }
}
