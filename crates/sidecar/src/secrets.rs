//! Finding what looks like a credential in a command, and taking it out.
//!
//! A heuristic by design: names of flags and variables here, what keys look like in `credentials`. It errs on the side of
//! taking too much out.

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
        } else if let Some((label, start)) = first_inside(argument) {
            push(label, start);
        }
    }
    found
}

/// Returns the first credential of an argument that is more than one: a command for a shell, a header, an address. What follows
/// it goes with it.
fn first_inside(argument: &str) -> Option<(String, usize)> {
    let by_form = key_by_form(argument).map(|(kind, start)| (kind.to_owned(), start));
    let by_name = header(argument).into_iter().chain(named(argument));
    let by_name = by_name.min_by_key(|(_, start)| *start);
    // `Bearer` and the like tell what kind of credential a header has, and stay.
    let is_scheme = |from: usize, to: usize| {
        let between = argument.get(from..to).unwrap_or_default();
        ["Bearer ", "bearer ", "Basic "].contains(&between)
    };
    match (by_form, by_name) {
        (Some((kind, at)), Some((_, start))) if at <= start || is_scheme(start, at) => {
            Some((kind, at))
        }
        (by_form, by_name) => by_name.or(by_form),
    }
}

/// Returns the first value that has the name of a credential: `NAME=value`, `--flag value` or `"name": value` among other words.
fn named(argument: &str) -> Option<(String, usize)> {
    let words: Vec<(usize, &str)> = words(argument).collect();
    words.iter().enumerate().find_map(|(nth, (at, word))| {
        let next = words.get(nth + 1).map(|(at, _)| *at);
        let (name, value) = match word.find(['=', ':']) {
            Some(end) => (word.get(..end)?, Some(at + end + 1)),
            None => (*word, None),
        };
        let is_flag = name.starts_with('-');
        let label = label(name);
        let is_own_flag = is_flag && OWN_FLAGS.contains(&label.as_str());
        let is_header = label == "authorization" || label == "cookie";
        if !(is_own_flag || is_header || is_secret_name(&label)) {
            return None;
        }
        let start = match value {
            Some(start) if start < at + word.len() => Some(start),
            Some(_) => next,
            None => next.filter(|next| {
                let between = argument.get(at + word.len()..*next).unwrap_or_default();
                is_flag || between.contains(':')
            }),
        };
        start.map(|start| (label, start))
    })
}

/// Returns the words of a text, each with its place, without what shells, addresses and JSON put around them.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_between = |char: char| char.is_whitespace() || ";&|?\"'`(){},".contains(char);
    let mut at = 0;
    text.split(is_between).filter_map(move |word| {
        let start = at;
        at += word.len()
            + text
                .get(start + word.len()..)?
                .chars()
                .next()
                .map_or(0, char::len_utf8);
        // A colon by itself stands between a name and its value.
        (!word.is_empty() && word != ":").then_some((start, word))
    })
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
    let password = url_password(text).map(|at| ("url-password", at));
    let found = credentials::find(text).into_iter().chain(password);
    found.min_by_key(|(_, start)| *start)
}

/// Returns where the password of the first `scheme://user:password@host` starts.
fn url_password(text: &str) -> Option<usize> {
    let addresses = text.match_indices("://").map(|(at, mark)| at + mark.len());
    addresses.into_iter().find_map(|at| password_at(text, at))
}

fn password_at(text: &str, authority: usize) -> Option<usize> {
    let rest = text.get(authority..)?;
    let ends = |char: char| char.is_whitespace() || "/?#".contains(char);
    let host = rest.get(..rest.find(ends).unwrap_or(rest.len()))?;
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

    /// Commands for a shell, headers and addresses hold several words: the first credential and all behind it goes.
    #[test]
    fn rb_md_09_credentials_inside_an_argument_are_taken_out() {
        let key = "rpk_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
        for (argument, expect) in [
            (
                format!("true \"Authorization: Bearer LEAKVAL1abcdefgh\" {key}"),
                "true \"Authorization: Bearer <redacted:authorization>",
            ),
            (
                format!("curl postgres://u:PW@h; echo {key}"),
                "curl postgres://u:<redacted:url-password>",
            ),
            (
                "http://a postgres://u:PW@h".to_owned(),
                "http://a postgres://u:<redacted:url-password>",
            ),
            (
                "A=1 DB_PASSWORD=x make".to_owned(),
                "A=1 DB_PASSWORD=<redacted:db-password>",
            ),
            (
                "export REPRISE_APPROVER_KEY=x; make".to_owned(),
                "export REPRISE_APPROVER_KEY=<redacted:reprise-approver-key>",
            ),
            (
                "https://h/p?a=1&api_key=x".to_owned(),
                "https://h/p?a=1&api_key=<redacted:api-key>",
            ),
            (
                "reprise task list --key x --json".to_owned(),
                "reprise task list --key <redacted:key>",
            ),
            (
                "reprise task list --key=x".to_owned(),
                "reprise task list --key=<redacted:key>",
            ),
            ("X-Api-Key:x".to_owned(), "X-Api-Key:<redacted:x-api-key>"),
            (
                "{\"model\": \"m\", \"api_key\": \"x\"}".to_owned(),
                "{\"model\": \"m\", \"api_key\": \"<redacted:api-key>",
            ),
        ] {
            check(&["sh", "-c", &argument], &["sh", "-c", expect]);
        }
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
            "tell me the password and the secret of it",
            "cookie recipes: butter, sugar",
            "wc -w < \"$0\"; date: now",
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
