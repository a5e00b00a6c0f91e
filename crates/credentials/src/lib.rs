//! What credentials look like, and where they stand in a text.
//!
//! One list of shapes for all who keep credentials out of what they write. What becomes of one is theirs: a receipt
//! replaces the whole text, a replay block the rest of the argument, a capture the key alone. A search for shapes, not a
//! promise.
//!
//! Invariant: rows that name [`Place::Receipts`] or [`Place::Captures`] never change, and no other row gets them:
//! receipts of replays and captures of recorded runs are made again and must come out the same.

/// How a kind of credential begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The beginning.
    pub prefix: &'static str,
    /// What it is.
    pub name: &'static str,
    /// How many further characters make it one.
    pub rest_min: usize,
    /// Where it is searched for, beside command lines.
    pub places: &'static [Place],
}

/// Texts that are made again from a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Receipts.
    Receipts,
    /// What is captured of a governed session; this stands in its place there.
    Captures(&'static str),
}

use Place::{Captures, Receipts};

/// Every shape; a longer one stands before its own beginning.
const SHAPES: [Shape; 22] = [
    shape(
        "sk-ant-",
        "api-key",
        8,
        &[Captures("[REDACTED:anthropic_key]")],
    ),
    shape(
        "sk-",
        "api-key",
        16,
        &[Receipts, Captures("[REDACTED:openai_key]")],
    ),
    shape(
        "rpk_",
        "reprise-key",
        16,
        &[Receipts, Captures("[REDACTED:api_key]")],
    ),
    shape("-----BEGIN", "private-key", 0, &[Receipts]),
    shape("Bearer ", "authorization", 8, &[Receipts]),
    shape("bearer ", "authorization", 8, &[]),
    shape("Basic ", "authorization", 8, &[]),
    shape("sk_live_", "api-key", 8, &[Receipts]),
    shape("rk_live_", "api-key", 8, &[]),
    shape("xoxb-", "slack-token", 8, &[Receipts]),
    shape("xoxp-", "slack-token", 8, &[Receipts]),
    shape("ghp_", "github-token", 16, &[Receipts]),
    shape("gho_", "github-token", 16, &[]),
    shape("ghs_", "github-token", 16, &[]),
    shape("github_pat_", "github-token", 16, &[Receipts]),
    shape("glpat-", "gitlab-token", 14, &[]),
    shape("AKIA", "aws-key", 12, &[Receipts]),
    shape("AIza", "google-key", 20, &[Receipts]),
    shape("hf_", "hub-token", 17, &[]),
    shape("npm_", "npm-token", 26, &[]),
    // A JSON object in base64: of the first every token is one, of the other what is as long as a token.
    shape("eyJhbGciOi", "jwt", 16, &[Receipts]),
    shape("eyJ", "jwt", 38, &[]),
];

const fn shape(
    prefix: &'static str,
    name: &'static str,
    rest_min: usize,
    places: &'static [Place],
) -> Shape {
    Shape {
        prefix,
        name,
        rest_min,
        places,
    }
}

/// Returns the first credential of a text: what it is and where it starts, behind the word for its scheme.
pub fn find(text: &str) -> Option<(&'static str, usize)> {
    let (shape, at) = first(text, |_| true)?;
    let scheme = shape
        .prefix
        .strip_suffix(' ')
        .map_or(0, |_| shape.prefix.len());
    Some((shape.name, at + scheme))
}

/// True for a text that a receipt does not show.
pub fn is_kept_out_of_receipts(text: &str) -> bool {
    first(text, |shape| shape.places.contains(&Receipts)).is_some()
}

/// Returns the shapes that captures are searched for, in this order, and what stands in their place.
pub fn in_captures() -> impl Iterator<Item = (&'static Shape, &'static str)> {
    SHAPES.iter().filter_map(|shape| {
        let token = shape.places.iter().find_map(|place| match place {
            Captures(token) => Some(*token),
            Receipts => None,
        });
        Some((shape, token?))
    })
}

/// Returns the first credential of these shapes, and where its prefix starts.
fn first(text: &str, wanted: impl Fn(&Shape) -> bool) -> Option<(&'static Shape, usize)> {
    // One pass for all shapes: a long receipt is nothing but texts.
    let mut before = b' ';
    text.bytes().enumerate().find_map(|(at, byte)| {
        let previous = std::mem::replace(&mut before, byte);
        if !begins_shape(byte) || previous.is_ascii_alphanumeric() {
            return None;
        }
        let (before, rest) = text.split_at_checked(at)?;
        // `task-…` is no `sk-…`.
        if before.ends_with(char::is_alphanumeric) {
            return None;
        }
        let found = SHAPES
            .iter()
            .find(|shape| wanted(shape) && begins(rest, shape))?;
        Some((found, at))
    })
}

/// True for the first bytes of the shapes.
const fn begins_shape(byte: u8) -> bool {
    matches!(
        byte,
        b'-' | b'A' | b'B' | b'b' | b'e' | b'g' | b'h' | b'n' | b'r' | b's' | b'x'
    )
}

fn begins(text: &str, shape: &Shape) -> bool {
    let belongs = |character: &char| !character.is_whitespace() && *character != '"';
    text.strip_prefix(shape.prefix)
        .is_some_and(|rest| rest.chars().take_while(belongs).count() >= shape.rest_min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_found_where_a_word_begins_and_nowhere_else() {
        for shape in &SHAPES {
            let word = format!("{}{}", shape.prefix, "x".repeat(shape.rest_min));
            let found = first(&format!("é {word}"), |_| true);
            assert_eq!(found, Some((shape, 3)), "{word}");
            assert_eq!(find(&format!("é{word}")), None, "{word}");
            let short = &word[..word.len() - 1];
            assert_ne!(first(short, |_| true), Some((shape, 0)), "{short}");
        }
    }

    #[test]
    fn what_records_rest_on_stays() {
        let shapes = SHAPES.iter();
        let in_receipts = shapes.filter(|shape| shape.places.contains(&Receipts));
        let mut in_receipts: Vec<_> = in_receipts
            .map(|shape| (shape.prefix, shape.rest_min))
            .collect();
        in_receipts.sort_unstable();
        let expected = [
            ("-----BEGIN", 0),
            ("AIza", 20),
            ("AKIA", 12),
            ("Bearer ", 8),
            ("eyJhbGciOi", 16),
            ("ghp_", 16),
            ("github_pat_", 16),
            ("rpk_", 16),
            ("sk-", 16),
            ("sk_live_", 8),
            ("xoxb-", 8),
            ("xoxp-", 8),
        ];
        assert_eq!(in_receipts, expected);
    }

    #[test]
    fn planted_secrets_are_kept_out_of_receipts_and_plain_words_are_not() {
        for text in [
            "failed with rpk_0123456789abcdef0123",
            "-----BEGIN PRIVATE KEY-----",
            "(sk-abcdefghijklmnop1234)",
            "header was Authorization: Bearer abcdefgh12345678",
            "key sk-abcdefghijklmnop1234",
            r#"{"token":"eyJhbGciOiJIUzI1NiIsInR5cCI6"}"#,
        ] {
            assert!(is_kept_out_of_receipts(text), "{text}");
        }
        for text in [
            "the bearer of news",
            "ask-me",
            "sk-short",
            "task-0123456789abcdef0123",
            "the desk-operator-of-building-seven",
            "rpk_",
            "AKIA",
            "",
        ] {
            assert!(!is_kept_out_of_receipts(text), "{text}");
        }
    }
}
