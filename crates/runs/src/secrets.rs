//! Telling what looks like a secret, so that it can be kept out of proofs.
//!
//! A scanner of shapes, not a promise: it knows our own keys, private-key blocks, bearer credentials and the
//! prefixes that large providers give their keys.

/// Shapes that begin a secret, and how many further characters without white space make it one.
const SHAPES: [(&str, usize); 12] = [
    ("rpk_", 16),
    ("-----BEGIN", 0),
    ("Bearer ", 8),
    ("sk-", 16),
    ("sk_live_", 8),
    ("xoxb-", 8),
    ("xoxp-", 8),
    ("ghp_", 16),
    ("github_pat_", 16),
    ("AKIA", 12),
    ("AIza", 20),
    ("eyJhbGciOi", 16),
];

/// True when a text holds something shaped like a credential.
pub fn looks_secret(text: &str) -> bool {
    // One pass for all shapes: a long receipt is nothing but texts.
    let mut before = b' ';
    text.bytes().enumerate().any(|(at, byte)| {
        let previous = std::mem::replace(&mut before, byte);
        begins_shape(byte) && !previous.is_ascii_alphanumeric() && begins_secret(text, at)
    })
}

/// True for the first bytes of the shapes.
const fn begins_shape(byte: u8) -> bool {
    matches!(byte, b'r' | b'-' | b'B' | b's' | b'x' | b'g' | b'A' | b'e')
}

fn begins_secret(text: &str, at: usize) -> bool {
    let Some((before, found)) = text.split_at_checked(at) else {
        return false;
    };
    // `task-…` is no `sk-…`.
    if before.ends_with(|character: char| character.is_alphanumeric()) {
        return false;
    }
    SHAPES.iter().any(|(prefix, length)| {
        found.strip_prefix(prefix).is_some_and(|rest| {
            rest.chars()
                .take_while(|character| !character.is_whitespace() && *character != '"')
                .count()
                >= *length
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_looked_for() {
        for (prefix, length) in SHAPES {
            let long = format!("é {prefix}{}", "x".repeat(length));
            assert!(looks_secret(&long), "{long}");
            assert!(
                !looks_secret(&format!("é{long}").replace(' ', "")),
                "{long}"
            );
        }
    }

    #[test]
    fn planted_secrets_are_found_and_plain_words_are_not() {
        for text in [
            "failed with rpk_0123456789abcdef0123",
            "-----BEGIN PRIVATE KEY-----",
            "(sk-abcdefghijklmnop1234)",
            "header was Authorization: Bearer abcdefgh12345678",
            "key sk-abcdefghijklmnop1234",
            r#"{"token":"eyJhbGciOiJIUzI1NiIsInR5cCI6"}"#,
        ] {
            assert!(looks_secret(text), "{text}");
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
            assert!(!looks_secret(text), "{text}");
        }
    }
}
