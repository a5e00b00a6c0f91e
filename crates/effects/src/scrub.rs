//! Takes the values of secrets out of whatever comes back from outside.
//!
//! A value is found as it is, inside JSON text, percent-encoded, line by line, in hexadecimal, and in base64, also in the
//! middle of a longer encoded text. Nothing finds a value that the other side has encrypted, compressed or spelt backwards: this is
//! a net for accidents, not a wall.

mod spelling;

use aho_corasick::{AhoCorasick, MatchKind};
use canon::Value;

/// What to look for and what to write instead.
pub(crate) struct Scrubber {
    needles: Vec<String>,
    markers: Vec<String>,
    finder: Finder,
}

/// How values are found.
enum Finder {
    /// There are none.
    Nothing,
    /// By all their spellings at once.
    Known(Box<AhoCorasick>),
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
        for (name, value) in secrets {
            for needle in spelling::spellings(value) {
                needles.push(needle);
                markers.push(format!("[redacted:secret:{name}]"));
            }
        }
        let bytes: usize = needles.iter().map(String::len).sum();
        if needles.is_empty() {
            return Self {
                needles,
                markers,
                finder: Finder::Nothing,
            };
        }
        if bytes > NEEDLES_BYTES_MAX {
            return Self::closed();
        }
        let built = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&needles);
        match built {
            Ok(finder) => Self {
                needles,
                markers,
                finder: Finder::Known(Box::new(finder)),
            },
            Err(_) => Self::closed(),
        }
    }

    /// Hides everything: for when it is not known what there is to hide.
    pub(crate) fn closed() -> Self {
        Self {
            needles: Vec::new(),
            markers: Vec::new(),
            finder: Finder::Closed,
        }
    }

    pub(crate) fn text(&self, text: &str) -> String {
        match &self.finder {
            Finder::Known(finder) => finder.replace_all(text, &self.markers),
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
            Finder::Known(finder) => finder.replace_all_bytes(bytes, &self.markers),
            Finder::Nothing => bytes.to_owned(),
            Finder::Closed if bytes.is_empty() => Vec::new(),
            Finder::Closed => CLOSED.as_bytes().to_owned(),
        }
    }

    /// Scrubs every text of a value, names of members included.
    pub(crate) fn value(&self, value: Value) -> Value {
        if matches!(self.finder, Finder::Nothing) {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(members) => members
                .into_iter()
                // Names are kept where nothing is known: they tell the parts of an answer from each other.
                .map(|(name, member)| match self.finder {
                    Finder::Closed => (name, self.value(member)),
                    _ => (self.text(&name), self.value(member)),
                })
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }

    /// Returns whether this is a value and nothing else, in whatever spelling, but for ends of lines behind it.
    pub(crate) fn is_secret(&self, bytes: &[u8]) -> bool {
        let bytes = without_line_ends(bytes);
        if matches!(self.finder, Finder::Closed) {
            return true;
        }
        let is_same = |needle: &String| without_line_ends(needle.as_bytes()) == bytes;
        !bytes.is_empty() && self.needles.iter().any(is_same)
    }

    /// Returns how many bytes at the end could be the beginning of something to hide.
    pub(crate) fn open_end(&self, bytes: &[u8]) -> usize {
        let longest = self.needles.iter().map(String::len).max().unwrap_or(0);
        let reach = longest.saturating_sub(1).min(bytes.len());
        (1..=reach)
            .rev()
            .find(|length| {
                let end = bytes.get(bytes.len() - length..).unwrap_or_default();
                self.needles
                    .iter()
                    .any(|needle| needle.as_bytes().starts_with(end))
            })
            .unwrap_or(0)
    }
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
