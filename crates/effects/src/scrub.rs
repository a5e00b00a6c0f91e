//! Takes the values of secrets out of whatever comes back from outside.
//!
//! A value is found as it is, inside JSON text, percent-encoded, line by line, as a number, in hexadecimal, and in base64, also in
//! the middle of a longer encoded text and where that is broken into lines. Nothing finds a value that the other side has encrypted, compressed or spelt backwards: this is
//! a net for accidents, not a wall.

mod spelling;
mod wrapped;

use std::cmp::Reverse;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use canon::{Number, Value};
use wrapped::Joined;

/// What to look for and what to write instead.
pub(crate) struct Scrubber {
    needles: Vec<String>,
    markers: Vec<String>,
    /// The needles that encode bytes, which programs break into lines, each with the index of its marker.
    encoded: Vec<(String, usize)>,
    /// Values that are numbers, which may come back in another notation.
    numbers: Vec<(f64, usize)>,
    finder: Finder,
}

/// How values are found.
enum Finder {
    /// There are none.
    Nothing,
    /// By all their spellings at once, and by their encodings in text without blanks.
    Known(Box<[AhoCorasick; 2]>),
    /// What there is to hide is not known: nothing is shown.
    Closed,
}

/// Stands in the place of text that cannot be looked through.
const CLOSED: &str = "[redacted: this could not be searched for secrets]";
/// All spellings of all values together; the search for more would take all memory.
const NEEDLES_BYTES_MAX: usize = 32 * 1024 * 1024;

impl std::fmt::Debug for Scrubber {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Scrubber({})", self.needles.len())
    }
}

impl Scrubber {
    /// Looks for these values: name and value.
    pub(crate) fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let (mut needles, mut markers) = (Vec::new(), Vec::new());
        let (mut encoded, mut numbers) = (Vec::new(), Vec::new());
        for (name, value) in secrets {
            for needle in spelling::spellings(value) {
                needles.push(needle);
                markers.push(format!("[redacted:secret:{name}]"));
            }
            // Invariant: a value has a spelling, so the last marker is its own.
            let marker = markers.len().saturating_sub(1);
            let encodings = spelling::encodings(value).into_iter();
            encoded.extend(encodings.map(|needle| (needle, marker)));
            numbers.extend(spelling::number(value).map(|number| (number, marker)));
        }
        let bytes: usize = needles.iter().map(String::len).sum();
        if needles.is_empty() {
            return Self {
                needles,
                markers,
                encoded,
                numbers,
                finder: Finder::Nothing,
            };
        }
        if bytes > NEEDLES_BYTES_MAX {
            return Self::closed();
        }
        let mut builder = AhoCorasick::builder();
        builder.match_kind(MatchKind::LeftmostLongest);
        let spelt = builder.build(&needles);
        let wrapped = builder.build(encoded.iter().map(|(needle, _)| needle));
        match (spelt, wrapped) {
            (Ok(spelt), Ok(wrapped)) => Self {
                needles,
                markers,
                encoded,
                numbers,
                finder: Finder::Known(Box::new([spelt, wrapped])),
            },
            (Err(_), _) | (_, Err(_)) => Self::closed(),
        }
    }

    /// Hides everything: for when it is not known what there is to hide.
    pub(crate) fn closed() -> Self {
        Self {
            needles: Vec::new(),
            markers: Vec::new(),
            encoded: Vec::new(),
            numbers: Vec::new(),
            finder: Finder::Closed,
        }
    }

    pub(crate) fn text(&self, text: &str) -> String {
        match &self.finder {
            // Invariant: what is found and what is written is text.
            Finder::Known(_) => {
                String::from_utf8(self.bytes(text.as_bytes())).unwrap_or_else(|_| CLOSED.to_owned())
            }
            Finder::Nothing => text.to_owned(),
            Finder::Closed if text.is_empty() => String::new(),
            Finder::Closed => CLOSED.to_owned(),
        }
    }

    /// Scrubs somebody else's words and keeps their beginning. Cutting first would leave halves of values.
    pub(crate) fn capped(&self, text: &str, chars_max: usize) -> String {
        self.text(text).chars().take(chars_max).collect()
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        match &self.finder {
            Finder::Known(finders) => self.replaced(bytes, finders),
            Finder::Nothing => bytes.to_owned(),
            Finder::Closed if bytes.is_empty() => Vec::new(),
            Finder::Closed => CLOSED.as_bytes().to_owned(),
        }
    }

    fn replaced(&self, bytes: &[u8], finders: &[AhoCorasick; 2]) -> Vec<u8> {
        let mut clean = Vec::with_capacity(bytes.len());
        let mut shown = 0;
        for (range, marker) in self.found(bytes, finders) {
            // What begins inside an earlier one hides no less.
            if range.start >= shown {
                clean.extend(bytes.get(shown..range.start).unwrap_or_default());
                clean.extend(self.markers.get(marker).map_or("", String::as_str).bytes());
            }
            shown = shown.max(range.end);
        }
        clean.extend(bytes.get(shown..).unwrap_or_default());
        clean
    }

    /// Returns where values stand, in order, and the indexes of their markers.
    fn found(
        &self,
        bytes: &[u8],
        [spelt, wrapped]: &[AhoCorasick; 2],
    ) -> Vec<(Range<usize>, usize)> {
        let found = spelt.find_iter(bytes);
        let mut found: Vec<_> = found
            .map(|found| (found.range(), found.pattern().as_usize()))
            .collect();
        let joined = Joined::of(bytes);
        if !joined.is_one_part() {
            found.extend(wrapped.find_iter(joined.bytes()).filter_map(|found| {
                let (_, marker) = self.encoded.get(found.pattern().as_usize())?;
                Some((joined.range(&found.range()), *marker))
            }));
            found.sort_by_key(|(range, _)| (range.start, Reverse(range.end)));
        }
        found
    }

    /// Scrubs every text of a value, names of members included, and every number.
    pub(crate) fn value(&self, value: Value) -> Value {
        self.walk(value, Self::number)
    }

    /// Scrubs every text of a value, where numbers are counts and bounds that are read again: what a model used, a schema.
    pub(crate) fn texts(&self, value: Value) -> Value {
        self.walk(value, |_, number| Value::Number(number))
    }

    fn walk(&self, value: Value, of_number: fn(&Self, Number) -> Value) -> Value {
        if matches!(self.finder, Finder::Nothing) {
            return value;
        }
        let walk = |value| self.walk(value, of_number);
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(walk).collect(),
            Value::Object(members) => members
                .into_iter()
                // Names are kept where nothing is known: they tell the parts of an answer from each other.
                .map(|(name, member)| match self.finder {
                    Finder::Closed => (name, walk(member)),
                    _ => (self.text(&name), walk(member)),
                })
                .collect(),
            Value::Number(number) => of_number(self, number),
            Value::Null | Value::Bool(_) => value,
        }
    }

    /// Numbers that are not known to be secret stay, also where nothing is known: they tell how many and how long.
    fn number(&self, number: Number) -> Value {
        if matches!(self.finder, Finder::Closed) {
            return Value::Number(number);
        }
        let text = number.to_string();
        let clean = self.text(&text);
        if clean != text {
            return Value::String(clean);
        }
        let is_same = |value: &f64| number.as_f64().map(f64::to_bits) == Some(value.to_bits());
        let known = self.numbers.iter().find(|(value, _)| is_same(value));
        match known.and_then(|(_, marker)| self.markers.get(*marker)) {
            Some(marker) => Value::String(marker.clone()),
            None => Value::Number(number),
        }
    }

    /// Returns whether this is a value and nothing else, in whatever spelling, but for ends of lines behind it.
    pub(crate) fn is_secret(&self, bytes: &[u8]) -> bool {
        let bytes = without_line_ends(bytes);
        if matches!(self.finder, Finder::Closed) {
            return true;
        }
        let is_same = |needle: &String| without_line_ends(needle.as_bytes()) == bytes;
        let joined = Joined::of(bytes);
        let is_wrapped = |(needle, _): &(String, usize)| needle.as_bytes() == joined.bytes();
        !bytes.is_empty()
            && (self.needles.iter().any(is_same) || self.encoded.iter().any(is_wrapped))
    }

    /// Returns how many bytes at the end could be the beginning of something to hide.
    pub(crate) fn open_end(&self, bytes: &[u8]) -> usize {
        let spelt = open_end(bytes, self.needles.iter());
        let joined = Joined::of(bytes);
        let wrapped = match open_end(
            joined.bytes(),
            self.encoded.iter().map(|(needle, _)| needle),
        ) {
            0 => 0,
            length => bytes.len() - joined.place(joined.bytes().len() - length),
        };
        spelt.max(wrapped)
    }
}

/// Returns how many bytes at the end are the beginning of a needle.
fn open_end<'a>(bytes: &[u8], needles: impl Iterator<Item = &'a String> + Clone) -> usize {
    let longest = needles.clone().map(String::len).max().unwrap_or(0);
    let reach = longest.saturating_sub(1).min(bytes.len());
    (1..=reach)
        .rev()
        .find(|length| {
            let end = bytes.get(bytes.len() - length..).unwrap_or_default();
            let mut needles = needles.clone();
            needles.any(|needle| needle.as_bytes().starts_with(end))
        })
        .unwrap_or(0)
}

fn without_line_ends(mut bytes: &[u8]) -> &[u8] {
    while let [rest @ .., b'\n' | b'\r'] = bytes {
        bytes = rest;
    }
    bytes
}

/// Scrubs text that comes in pieces: what could be the beginning of a value waits for the next piece.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    scrubber: &'a Scrubber,
    waiting: String,
}

impl<'a> Pieces<'a> {
    pub(crate) const fn new(scrubber: &'a Scrubber) -> Self {
        Self {
            scrubber,
            waiting: String::new(),
        }
    }

    /// Returns what may be shown now.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        self.waiting.push_str(piece);
        let clean = self.scrubber.text(&self.waiting);
        let mut cut = clean.len() - self.scrubber.open_end(clean.as_bytes());
        while !clean.is_char_boundary(cut) {
            cut -= 1;
        }
        let (shown, waiting) = clean.split_at(cut);
        let shown = shown.to_owned();
        self.waiting = waiting.to_owned();
        shown
    }

    /// Returns the rest.
    pub(crate) fn finish(self) -> String {
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

    use super::*;

    const VALUE: &str = "p\"ss w/rd+ü=1234";

    fn scrubber() -> Scrubber {
        Scrubber::new([("db", VALUE), ("other", "secret")])
    }

    fn check(text: &str) {
        let clean = scrubber().text(text);
        assert!(clean.contains("[redacted:secret:db]"), "{text} -> {clean}");
    }

    #[test]
    fn a_value_is_found_in_each_spelling() {
        check(&format!("before {VALUE} after"));
        check(&serde_json::json!({"x": VALUE}).to_string());
        check("p%22ss%20w%2Frd%2B%C3%BC%3D1234");
        check("p%22ss%20w%2frd%2b%c3%bc%3d1234");
        check("p%22ss%20w/rd%2B%C3%BC%3D1234");
        check("p%22ss+w%2Frd%2B%C3%BC%3D1234");
        check("p%22ss%20w/rd+%C3%BC=1234");
        check("p\\\"ss w/rd+\\u00fc=1234");
        check("p\\\"ss w\\/rd+\\u00FC=1234");
        check(r#"p\\\"ss w/rd+\\u00fc=1234"#);
        check(&serde_json::json!(serde_json::json!({"x": VALUE}).to_string()).to_string());
        for before in ["", "a", "ab", "abc", "user:"] {
            for after in ["", "z", "zz"] {
                let inside = format!("{before}{VALUE}{after}");
                check(&STANDARD.encode(&inside));
                check(&URL_SAFE_NO_PAD.encode(&inside));
            }
        }
    }

    #[test]
    fn a_value_is_found_in_hexadecimal() {
        let bytes = format!("x{VALUE}y").into_bytes();
        let lower: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let upper: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
        check(&lower);
        check(&upper);
    }

    /// It fails closed.
    #[test]
    fn what_cannot_be_searched_is_not_shown() {
        let scrubber = Scrubber::closed();
        {
            assert_eq!(scrubber.text("anything"), CLOSED);
            assert_eq!(scrubber.bytes(b"anything"), CLOSED.as_bytes());
            assert_eq!(
                scrubber.value(serde_json::json!({"a": ["b", 1]})),
                serde_json::json!({"a": [CLOSED, 1]})
            );
            assert!(scrubber.is_secret(b"x"));
        }
    }

    #[test]
    fn a_value_is_a_secret_with_and_without_the_end_of_its_line() {
        for text in [VALUE, "secret\n", "secret\r\n", "c2VjcmV0"] {
            assert!(scrubber().is_secret(text.as_bytes()), "{text}");
        }
        for text in ["", "\n", "secret\nmore", "my secret", "secre"] {
            assert!(!scrubber().is_secret(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn markers_are_not_searched_again() {
        assert_eq!(
            scrubber().text("a secret here"),
            "a [redacted:secret:other] here"
        );
    }

    /// Programs that encode wrap their lines: `base64` at 76 columns, mail with CRLF, dumps in pairs or groups.
    #[test]
    fn a_value_is_found_in_encodings_that_are_wrapped() {
        let wrap = |text: &str, columns: usize, between: &str| {
            let lines: Vec<String> = text
                .as_bytes()
                .chunks(columns)
                .map(|line| String::from_utf8(line.to_vec()).unwrap())
                .collect();
            lines.join(between)
        };
        let hex =
            |text: &str| -> String { text.bytes().map(|byte| format!("{byte:02x}")).collect() };
        let scrubber = scrubber();
        for before in ["", "a", &"ab".repeat(33), "user:"] {
            let inside = format!("{before}{VALUE}z");
            for encoded in [
                STANDARD.encode(&inside),
                URL_SAFE_NO_PAD.encode(&inside),
                hex(&inside),
                hex(&inside).to_uppercase(),
            ] {
                for columns in [2, 5, 60, 76] {
                    for between in ["\n", "\r\n", " ", "\n  ", "\t", "\\n", "\\r\\n"] {
                        let text = wrap(&encoded, columns, between);
                        let text = format!("it is\n{text}\n.");
                        let clean = scrubber.text(&text);
                        assert!(clean.contains("[redacted:secret:db]"), "{text} -> {clean}");
                    }
                }
            }
        }
        assert!(scrubber.is_secret(wrap(&STANDARD.encode(VALUE), 5, "\n").as_bytes()));
        // Only encodings: words that stand side by side are no value.
        assert_eq!(scrubber.text("sec ret\nsec\nret"), "sec ret\nsec\nret");
        let text = format!("ok {}", wrap(&STANDARD.encode(VALUE), 5, "\r\n"));
        for size in 1..8 {
            let mut pieces = Pieces::new(&scrubber);
            let chars: Vec<char> = text.chars().collect();
            let mut shown: String = chars
                .chunks(size)
                .map(|piece| pieces.push(&piece.iter().collect::<String>()))
                .collect();
            shown.push_str(&pieces.finish());
            let rest = shown.strip_prefix("ok [redacted:secret:db]").unwrap();
            // What only the end of the encoding has comes behind the value.
            assert!(rest.len() <= 4, "{size}: {shown}");
        }
        let cut = &text[..text.len() - 4];
        assert_eq!(cut.len() - scrubber.open_end(cut.as_bytes()), 3);
    }

    #[test]
    fn a_number_that_is_a_value_is_hidden() {
        let scrubber = Scrubber::new([("pin", "8675309"), ("long", "123456789012345678901234")]);
        let used = serde_json::json!({"usage": {"prompt_tokens": 8675309}});
        assert_eq!(scrubber.texts(used.clone()), used);
        let value = serde_json::json!({
            "pin": 8675309,
            "more": [86753091, -8675309, 8675309.0, 867530, 1.5],
            "long": 123456789012345678901234_f64,
        });
        assert_eq!(
            scrubber.value(value),
            serde_json::json!({
                "pin": "[redacted:secret:pin]",
                "more": [
                    "[redacted:secret:pin]1",
                    "-[redacted:secret:pin]",
                    "[redacted:secret:pin].0",
                    867530,
                    1.5,
                ],
                "long": "[redacted:secret:long]",
            })
        );
    }

    #[test]
    fn texts_inside_values_are_scrubbed_names_included() {
        let value = serde_json::json!({"secret": [1, "no secret", {"x": null}]});
        assert_eq!(
            scrubber().value(value),
            serde_json::json!({"[redacted:secret:other]": [1, "no [redacted:secret:other]", {"x": null}]})
        );
    }

    #[test]
    fn a_value_split_over_pieces_is_found_and_other_text_is_not_held_back() {
        let scrubber = scrubber();
        let mut pieces = Pieces::new(&scrubber);
        let mut shown = vec![
            pieces.push("hello "),
            pieces.push("sec"),
            pieces.push("ret ü"),
        ];
        assert_eq!(shown[..2], ["hello ", ""]);
        shown.push(pieces.push(" sec"));
        shown.push(pieces.finish());
        assert_eq!(shown.concat(), "hello [redacted:secret:other] ü sec");
    }
}
