//! Redaction: secrets and addresses leave a text before it is kept.
//!
//! Touches only what is kept; verdicts are computed on the values themselves. One list of patterns serves every side; what keys look like is in `credentials`.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// The patterns in the order in which they are replaced: the more specific first.
static PATTERNS: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    let shapes = credentials::in_captures().map(|(shape, token)| {
        let (prefix, rest_min) = (shape.prefix, shape.rest_min);
        (format!(r"\b{prefix}[A-Za-z0-9_-]{{{rest_min},}}"), token)
    });
    let wholes = [
        (
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
            "[REDACTED:pem_key]",
        ),
        (
            r#"(?i)\b[a-z][a-z0-9+.-]*://[^\s:/@"'<>]*:[^\s@/"'<>]+@[^\s"'<>]*"#,
            "[REDACTED:connection_string]",
        ),
    ];
    let rest = [
        (
            r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]{8,}",
            "[REDACTED:bearer]",
        ),
        (
            r#"(?i)\b(?:x-)?api[-_]key["']?\s*[:=]\s*["']?[^\s"',;}]+"#,
            "[REDACTED:api_key_header]",
        ),
        (
            r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}",
            "[REDACTED:email]",
        ),
    ];
    // A test compiles every pattern: none is lost here.
    let owned = |(text, token): (&str, _)| (text.to_owned(), token);
    let list = wholes
        .map(owned)
        .into_iter()
        .chain(shapes)
        .chain(rest.map(owned));
    list.filter_map(|(text, token)| Some((Regex::new(&text).ok()?, token)))
        .collect()
});

const OWN_KEY: &str = "[REDACTED:api_key]";

/// Redacts a text; `secrets` are replaced wherever they occur.
pub fn text(text: &str, secrets: &[&str]) -> String {
    let mut redacted = exact(text, secrets);
    for (pattern, token) in PATTERNS.iter() {
        if pattern.is_match(&redacted) {
            redacted = pattern.replace_all(&redacted, *token).into_owned();
        }
    }
    redacted
}

/// Replaces only the given secrets.
pub fn exact(text: &str, secrets: &[&str]) -> String {
    let mut redacted = text.to_owned();
    for secret in secrets.iter().filter(|secret| secret.len() >= 8) {
        redacted = redacted.replace(secret, OWN_KEY);
    }
    redacted
}

/// Redacts every text of a value, and whole values under names such as `api_key` and `authorization`.
pub fn value(input: &Value, secrets: &[&str]) -> Value {
    match input {
        Value::Null | Value::Bool(_) | Value::Number(_) => input.clone(),
        Value::String(content) => Value::String(text(content, secrets)),
        Value::Array(items) => items.iter().map(|item| value(item, secrets)).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| {
                let kept = if is_key_name(name) && member.is_string() {
                    Value::from("[REDACTED:api_key_header]")
                } else {
                    value(member, secrets)
                };
                (text(name, secrets), kept)
            })
            .collect(),
    }
}

fn is_key_name(name: &str) -> bool {
    let plain = name.to_ascii_lowercase().replace('_', "-");
    matches!(
        plain.as_str(),
        "api-key" | "x-api-key" | "apikey" | "authorization"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        assert_eq!(PATTERNS.len(), 8);
    }

    #[test]
    fn each_kind_of_secret_is_replaced_by_its_token() {
        for (input, expected) in [
            (
                "key sk-abcdefghijklmnop1234 end",
                "key [REDACTED:openai_key] end",
            ),
            ("sk-ant-api03-abcdefgh", "[REDACTED:anthropic_key]"),
            ("rpk_0123456789abcdef", "[REDACTED:api_key]"),
            (
                "Authorization: Bearer abc.def-ghi",
                "Authorization: [REDACTED:bearer]",
            ),
            (
                "write to ann.lee+x@mail.example.org!",
                "write to [REDACTED:email]!",
            ),
            (
                "-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nrest",
                "[REDACTED:pem_key]\nrest",
            ),
            (
                "postgres://me:pass@db.example/x y",
                "[REDACTED:connection_string] y",
            ),
            ("x-api-key: 12345", "[REDACTED:api_key_header]"),
            ("nothing here: 12345 a@b", "nothing here: 12345 a@b"),
        ] {
            assert_eq!(text(input, &[]), expected, "{input}");
        }
        assert_eq!(
            text("my own-secret-1 here", &["own-secret-1"]),
            "my [REDACTED:api_key] here"
        );
    }

    #[test]
    fn values_are_redacted_inside() {
        let input = serde_json::json!({"to": ["a@b.example"], "api_key": "x", "n": 1});
        let expected = serde_json::json!({
            "to": ["[REDACTED:email]"], "api_key": "[REDACTED:api_key_header]", "n": 1
        });
        assert_eq!(value(&input, &[]), expected);
    }
}
