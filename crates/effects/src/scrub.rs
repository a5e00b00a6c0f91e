//! Takes the values of secrets out of whatever comes back from outside.
//!
//! A value is found as it is, inside JSON text, percent-encoded, and in base64, also in the middle of a longer
//! encoded text. Nothing finds a value that the other side has encrypted, compressed or spelt backwards: this is a
//! net for accidents, not a wall.

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use canon::Value;

/// Encoded forms shorter than this would be found everywhere.
const ENCODED_BYTES_MIN: usize = 5;

/// What to look for and what to write instead.
#[derive(Clone)]
pub(crate) struct Scrubber {
    needles: Vec<String>,
    markers: Vec<String>,
    finder: Option<AhoCorasick>,
}

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
            for form in forms(value) {
                needles.push(form);
                markers.push(format!("[redacted:secret:{name}]"));
            }
        }
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&needles)
            .ok()
            .filter(|_| !needles.is_empty());
        Self {
            needles,
            markers,
            finder,
        }
    }

    pub(crate) fn text(&self, text: &str) -> String {
        match &self.finder {
            Some(finder) => finder.replace_all(text, &self.markers),
            None => text.to_owned(),
        }
    }

    /// Scrubs somebody else's words and keeps their beginning. Cutting first would leave halves of values.
    pub(crate) fn capped(&self, text: &str, chars_max: usize) -> String {
        self.text(text).chars().take(chars_max).collect()
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        match &self.finder {
            Some(finder) => finder.replace_all_bytes(bytes, &self.markers),
            None => bytes.to_owned(),
        }
    }

    /// Scrubs every text of a value, names of members included.
    pub(crate) fn value(&self, value: Value) -> Value {
        if self.finder.is_none() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(members) => members
                .into_iter()
                .map(|(name, member)| (self.text(&name), self.value(member)))
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
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

/// Every spelling of a value that is looked for.
fn forms(value: &str) -> Vec<String> {
    let mut forms = vec![value.to_owned()];
    let quoted = Value::from(value).to_string();
    forms.extend(
        quoted
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
            .map(str::to_owned),
    );
    let percent = percent_encode(value);
    forms.push(percent.to_lowercase_escapes());
    forms.push(percent.0.replace("%20", "+"));
    forms.push(percent.0);
    forms.extend(base64_forms(value.as_bytes()));
    forms.sort();
    forms.dedup();
    forms
}

struct Percent(String);

impl Percent {
    fn to_lowercase_escapes(&self) -> String {
        let mut out = String::new();
        let mut escape = 0;
        for character in self.0.chars() {
            match (character, escape) {
                ('%', _) => escape = 2,
                (_, 0) => {}
                _ => {
                    escape -= 1;
                    out.push(character.to_ascii_lowercase());
                    continue;
                }
            }
            out.push(character);
        }
        out
    }
}

fn percent_encode(text: &str) -> Percent {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    Percent(out)
}

/// The whole encoding, and for each of the three places where a value can begin inside a longer text the
/// characters that depend on the value alone.
fn base64_forms(value: &[u8]) -> Vec<String> {
    let mut forms = vec![STANDARD.encode(value), URL_SAFE.encode(value)];
    for before in 0..3 {
        let mut shifted = vec![0; before];
        shifted.extend_from_slice(value);
        let first = (before * 8).div_ceil(6);
        let end = shifted.len() * 8 / 6;
        for text in [
            STANDARD_NO_PAD.encode(&shifted),
            URL_SAFE_NO_PAD.encode(&shifted),
        ] {
            if let Some(inner) = text.get(first..end)
                && inner.len() >= ENCODED_BYTES_MIN
            {
                forms.push(inner.to_owned());
            }
        }
    }
    forms
}

#[cfg(test)]
mod tests {
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
        check(&percent_encode(VALUE).0);
        check(&percent_encode(VALUE).to_lowercase_escapes());
        check("p%22ss+w%2Frd%2B%C3%BC%3D1234");
        for before in ["", "a", "ab", "abc", "user:"] {
            for after in ["", "z", "zz"] {
                let inside = format!("{before}{VALUE}{after}");
                check(&STANDARD.encode(&inside));
                check(&URL_SAFE_NO_PAD.encode(&inside));
            }
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
