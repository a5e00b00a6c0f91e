//! Finding what looks like a credential in a command, and taking it out.
//!
//! A heuristic by design: names of flags and variables, and the prefixes that providers give their
//! keys. It errs on the side of taking too much out.

use crate::block::Redaction;

/// Flags of our own program that take an API key, which may be one of another server and have any form.
const OWN_FLAGS: [&str; 5] = [
    "key",
    "other-key",
    "approver-key",
    "dead-key",
    "expired-key",
];

/// Something in an argument vector that looks like a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    /// Index of the argument.
    pub index: usize,
    /// What it seems to be: a flag, a variable or a kind of key.
    pub name: String,
    /// Where the value starts in the argument; it ends where the argument ends.
    start: usize,
}

/// Finds arguments that hold a credential.
pub fn find_secrets(argv: &[String]) -> Vec<Secret> {
    let mut found: Vec<Secret> = Vec::new();
    let mut named_by_flag: Option<String> = None;
    for (index, argument) in argv.iter().enumerate() {
        let mut push = |name: String, start: usize| found.push(Secret { index, name, start });
        if let Some(name) = named_by_flag.take()
            && !argument.is_empty()
        {
            push(name, 0);
            continue;
        }
        let (name, value_start) = match argument.split_once('=') {
            Some((name, _)) => (name, Some(name.len() + 1)),
            None => (argument.as_str(), None),
        };
        let label = label(name);
        let is_flag = name.starts_with('-');
        let is_own_flag = is_flag && OWN_FLAGS.contains(&label.as_str());
        if is_own_flag || is_secret_name(&label) && (is_flag || value_start.is_some()) {
            match value_start {
                Some(start) if argument.len() > start => push(label, start),
                Some(_) => {}
                None => named_by_flag = Some(label),
            }
        } else if let Some((kind, start)) = key_by_form(argument) {
            push(kind.to_owned(), start);
        } else if let Some((label, start)) = header(argument) {
            push(label, start);
        }
    }
    found
}

/// Returns the vector with each secret replaced by `<redacted:NAME>`, and the list of redactions.
///
/// Names that occur twice are numbered, so that each can be supplied again on its own.
pub fn redact(argv: &[String]) -> (Vec<String>, Vec<Redaction>) {
    let secrets = find_secrets(argv);
    let mut redacted = argv.to_vec();
    let mut redactions = Vec::new();
    for (nth, secret) in secrets.iter().enumerate() {
        let earlier = secrets
            .iter()
            .take(nth)
            .filter(|other| other.name == secret.name);
        let name = match earlier.count() {
            0 => secret.name.clone(),
            count => format!("{}-{}", secret.name, count + 1),
        };
        if let Some(argument) = redacted.get_mut(secret.index) {
            argument.truncate(secret.start);
            argument.push_str(&format!("<redacted:{name}>"));
        }
        redactions.push(Redaction {
            pointer: format!("/argv/{}", secret.index),
            reason: "credential".to_owned(),
            hash: None,
        });
    }
    (redacted, redactions)
}

/// Returns the name of a redacted argument and the text before it.
pub fn redacted_name(argument: &str) -> Option<(&str, &str)> {
    let (before, name) = argument.strip_suffix('>')?.rsplit_once("<redacted:")?;
    Some((before, name))
}

/// Says whether a value has the form of a credential, whatever it is called.
pub fn looks_secret(value: &str) -> bool {
    key_by_form(value).is_some()
}

/// Says whether a variable or flag of this name holds a credential.
pub fn is_secret_variable(name: &str) -> bool {
    is_secret_name(&label(name))
}

/// Returns the name and the place of the value of `Name: value` where the name is that of a credential.
fn header(argument: &str) -> Option<(String, usize)> {
    let (name, value) = argument.split_once(": ")?;
    let word = |char: char| char.is_ascii_alphanumeric() || "-_".contains(char);
    let label = label(name);
    let secret = label == "authorization" || label == "cookie" || is_secret_name(&label);
    (name.chars().all(word) && secret && !value.trim().is_empty())
        .then_some((label, name.len() + 2))
}

fn label(name: &str) -> String {
    name.trim_start_matches('-')
        .to_ascii_lowercase()
        .replace(['_', '.'], "-")
}

/// `token` alone is no credential here: it names the style token of an eval, or a count.
fn is_secret_name(label: &str) -> bool {
    const PARTS: [&str; 12] = [
        "api-key",
        "apikey",
        "access-key",
        "secret",
        "password",
        "passwd",
        "passphrase",
        "credential",
        "private-key",
        "auth-token",
        "access-token",
        "bearer",
    ];
    let suffix = ["-token", "-pat"];
    let named = PARTS.iter().any(|part| label.contains(part));
    let tail = suffix.iter().any(|suffix| label.ends_with(suffix));
    let own = label.starts_with("reprise-") && label.ends_with("-key");
    let count = label.starts_with("max-") || label.ends_with("style-token");
    (named || tail || own) && !count && label.len() < 80
}

fn key_by_form(text: &str) -> Option<(&'static str, usize)> {
    const PREFIXES: [(&str, &str, usize); 15] = [
        ("rpk_", "reprise-key", 20),
        ("sk-", "api-key", 20),
        ("rk_live_", "api-key", 20),
        ("sk_live_", "api-key", 20),
        ("ghp_", "github-token", 30),
        ("gho_", "github-token", 30),
        ("ghs_", "github-token", 30),
        ("github_pat_", "github-token", 30),
        ("glpat-", "gitlab-token", 20),
        ("xoxb-", "slack-token", 20),
        ("xoxp-", "slack-token", 20),
        ("AKIA", "aws-key", 20),
        ("AIza", "google-key", 35),
        ("hf_", "hub-token", 20),
        ("npm_", "npm-token", 30),
    ];
    let word = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
    for (prefix, kind, len_min) in PREFIXES {
        for (at, _) in text.match_indices(prefix) {
            let starts_word = text.get(..at).is_some_and(|before| !before.ends_with(word));
            let len = text.get(at..).map_or(0, |rest| {
                rest.find(|char| !word(char)).unwrap_or(rest.len())
            });
            if starts_word && len >= len_min {
                return Some((kind, at));
            }
        }
    }
    if text.contains("PRIVATE KEY-----") {
        return Some(("private-key", 0));
    }
    for marker in ["Bearer ", "bearer ", "Basic "] {
        if let Some(at) = text.find(marker)
            && text.len() >= at + marker.len() + 8
        {
            return Some(("authorization", at + marker.len()));
        }
    }
    if let Some(at) = text.find("eyJ")
        && text
            .get(at..)
            .is_some_and(|rest| rest.matches('.').count() == 2 && rest.len() > 40)
    {
        return Some(("jwt", at));
    }
    url_password(text).map(|at| ("url-password", at))
}

/// Returns where the password of `scheme://user:password@host` starts.
fn url_password(text: &str) -> Option<usize> {
    let authority = text.find("://")? + 3;
    let rest = text.get(authority..)?;
    let host = rest.get(..rest.find(['/', '?', '#']).unwrap_or(rest.len()))?;
    let user = host.get(..host.rfind('@')?)?;
    let password = user.find(':')? + 1;
    (user.len() > password).then_some(authority + password)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(argv: &[&str], expect: &[&str]) {
        let argv: Vec<String> = argv.iter().map(ToString::to_string).collect();
        let (redacted, redactions) = redact(&argv);
        assert_eq!(redacted, expect);
        let changed = redacted
            .iter()
            .zip(&argv)
            .filter(|(new, old)| new != old)
            .count();
        assert_eq!(redactions.len(), changed);
    }

    #[test]
    fn rb_md_09_credentials_are_taken_out_and_named() {
        let key = "sk-ant-0123456789abcdef0123";
        check(
            &["run", "--api-key", "x1"],
            &["run", "--api-key", "<redacted:api-key>"],
        );
        check(
            &["run", "--password=hunter2"],
            &["run", "--password=<redacted:password>"],
        );
        check(
            &["env", "OPENAI_API_KEY=abc"],
            &["env", "OPENAI_API_KEY=<redacted:openai-api-key>"],
        );
        check(
            &[key, &format!("k={key}")],
            &["<redacted:api-key>", "k=<redacted:api-key-2>"],
        );
        check(
            &["curl", "-H", "Authorization: Bearer abcdefghij"],
            &[
                "curl",
                "-H",
                "Authorization: Bearer <redacted:authorization>",
            ],
        );
        check(
            &["x", "postgres://u:pw@h/d"],
            &["x", "postgres://u:<redacted:url-password>"],
        );
        check(
            &["curl", "-H", "X-Api-Key: a1", "-H", "Accept: a1"],
            &[
                "curl",
                "-H",
                "X-Api-Key: <redacted:x-api-key>",
                "-H",
                "Accept: a1",
            ],
        );
        check(
            &["curl", "-H", "Authorization: token a1"],
            &["curl", "-H", "Authorization: <redacted:authorization>"],
        );
    }

    #[test]
    fn rb_md_09_keys_of_our_own_server_are_taken_out() {
        let key = format!("rpk_{}", "0123456789abcdef".repeat(4));
        check(&["sh", &key], &["sh", "<redacted:reprise-key>"]);
        for flag in ["--key", "--other-key", "--approver-key"] {
            let name = flag.trim_start_matches('-');
            let redacted = format!("<redacted:{name}>");
            check(&["reprise", flag, &key], &["reprise", flag, &redacted]);
            // A key of another server has another form.
            check(&["reprise", flag, "k1"], &["reprise", flag, &redacted]);
            check(
                &["reprise", &format!("{flag}={key}")],
                &["reprise", &format!("{flag}={redacted}")],
            );
        }
        check(
            &["env", &format!("REPRISE_KEY={key}"), "REPRISE_OTHER_KEY=k1"],
            &[
                "env",
                "REPRISE_KEY=<redacted:reprise-key>",
                "REPRISE_OTHER_KEY=<redacted:reprise-other-key>",
            ],
        );
        assert!(is_secret_variable("REPRISE_KEY") && looks_secret(&key));
        check(
            &[
                "receipt",
                "--keys",
                "jwks.json",
                "key=a",
                "--idempotency-key",
                "1",
            ],
            &[
                "receipt",
                "--keys",
                "jwks.json",
                "key=a",
                "--idempotency-key",
                "1",
            ],
        );
    }

    #[test]
    fn ordinary_arguments_stay() {
        let argv = [
            "node",
            "ahd",
            "eval-live",
            "--token",
            "tokens/demo.yml",
            "--n=30",
            "--max-tokens",
            "100",
            "https://example.org/a:b@c",
            "--secretary",
            "disk-usage",
            "task-sk-1",
            "",
            "a=b",
        ];
        let kept: Vec<&str> = argv
            .iter()
            .filter(|text| **text != "--secretary")
            .copied()
            .collect();
        check(&kept, &kept);
    }

    #[test]
    fn a_redacted_argument_tells_its_name() {
        assert_eq!(
            redacted_name("--k=<redacted:api-key>"),
            Some(("--k=", "api-key"))
        );
        assert_eq!(redacted_name("plain"), None);
    }
}
