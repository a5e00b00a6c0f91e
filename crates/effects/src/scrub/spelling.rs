//! The spellings in which a value is looked for.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use canon::Value;

/// Encoded forms shorter than this would be found everywhere.
const ENCODED_BYTES_MIN: usize = 5;
/// A shorter line of a value could be anything.
const LINE_BYTES_MIN: usize = 16;

/// What usual programs leave as it is when they percent-encode, besides letters and digits: nothing that a URL could
/// take for its own, the same with the separator of paths, a form, a component of a script's URL, a script's whole URL.
const LEFT: [&[u8]; 5] = [
    b"-._~",
    b"-._~/",
    b"-._*",
    b"-._~!'()*",
    b"-._~!'()*;,/?:@&=+$#",
];

/// Every spelling of a value that is looked for.
pub(super) fn spellings(value: &str) -> Vec<String> {
    let mut spellings = texts(value);
    spellings.extend(base64_forms(value.as_bytes()));
    spellings.extend(hex_forms(value.as_bytes()));
    for line in secret_lines(value) {
        spellings.extend(texts(line));
    }
    spellings.sort_unstable();
    spellings.dedup();
    spellings
}

/// The encodings of a value that are long enough to be looked for across line breaks and blanks.
pub(super) fn encodings(value: &str) -> Vec<String> {
    let mut encodings = base64_forms(value.as_bytes());
    encodings.extend(hex_forms(value.as_bytes()));
    encodings.retain(|encoding| encoding.len() >= ENCODED_BYTES_MIN);
    encodings.sort_unstable();
    encodings.dedup();
    encodings
}

/// A value that is a number, and long enough to be no other.
pub(super) fn number(value: &str) -> Option<f64> {
    let number: f64 = value.trim().parse().ok()?;
    let digits = number.to_string();
    (number.is_finite() && digits.len() >= ENCODED_BYTES_MIN).then_some(number)
}

/// The lines of a value that are secret by themselves: programs print long keys line by line.
fn secret_lines(value: &str) -> impl Iterator<Item = &str> {
    value
        .lines()
        .map(str::trim)
        .filter(move |line| *line != value && line.len() >= LINE_BYTES_MIN)
        // What every key of a kind begins and ends with.
        .filter(|line| !(line.starts_with("-----") && line.ends_with("-----")))
}

/// A text as it is, as JSON, as JSON inside of JSON and percent-encoded.
fn texts(text: &str) -> Vec<String> {
    let mut texts = vec![text.to_owned()];
    let escapes: [fn(u16) -> String; 2] = [
        |unit| format!("\\u{unit:04x}"),
        |unit| format!("\\u{unit:04X}"),
    ];
    let escaped = json(text);
    texts.extend(escapes.map(|escape| ascii(&escaped, escape)));
    texts.push(escaped);
    // Some writers of JSON escape this one too.
    let slashes: Vec<String> = texts
        .iter()
        .skip(1)
        .map(|text| text.replace('/', "\\/"))
        .collect();
    texts.extend(slashes);
    // JSON inside the text of JSON, as programs print that quote what they were told.
    let nested: Vec<String> = texts.iter().skip(1).map(|text| json(text)).collect();
    texts.extend(nested);
    for left in LEFT {
        for escape in [
            |byte: u8| format!("%{byte:02X}"),
            |byte: u8| format!("%{byte:02x}"),
        ] {
            let percent = percent(text, left, escape);
            texts.push(percent.replace("%20", "+"));
            texts.push(percent);
        }
    }
    texts
}

fn json(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    let inner = quoted
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or_default().to_owned()
}

fn ascii(text: &str, escape: fn(u16) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            out.push(character);
        } else {
            let mut units = [0; 2];
            out.extend(
                character
                    .encode_utf16(&mut units)
                    .iter()
                    .map(|unit| escape(*unit)),
            );
        }
    }
    out
}

fn percent(text: &str, left: &[u8], escape: fn(u8) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || left.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&escape(byte));
        }
    }
    out
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

fn hex_forms(value: &[u8]) -> Vec<String> {
    if value.len() < ENCODED_BYTES_MIN {
        return Vec::new();
    }
    vec![
        value.iter().map(|byte| format!("{byte:02x}")).collect(),
        value.iter().map(|byte| format!("{byte:02X}")).collect(),
    ]
}
