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
        // Neither is the value that the flag announced.
        if named_by_flag.is_some() && (argument == "--" || argument.trim().is_empty()) {
            continue;
        }
        let mut push = |name: String, start: usize| found.push(Secret { index, name, start });
        let awaits = awaits_value(argument);
        let inside = first_inside(argument);
        // A switch may have the name of a credential and no value. What follows it then is another flag; if that one has not
        // such a name as well, it is taken for a value that begins with a hyphen.
        let flag = argument.split('=').next().unwrap_or_default();
        let is_flag = argument.starts_with('-')
            && flag.chars().all(is_of_name)
            && (awaits.is_some() || inside.is_some());
        if let Some(name) = named_by_flag.take()
            && !is_flag
        {
            push(name, 0);
            continue;
        }
        if let Some((name, start)) = inside {
            push(name, start);
        }
        named_by_flag = awaits;
    }
    found
}

/// Returns the name of a credential that is the next argument: of `--flag`, `--flag=` and `Header:`.
fn awaits_value(argument: &str) -> Option<String> {
    let is_flag = argument.starts_with('-');
    let name = argument
        .strip_suffix(':')
        .or_else(|| argument.strip_suffix('=').filter(|_| is_flag))
        .or(is_flag.then_some(argument))?;
    let is_word = name.chars().all(is_of_name);
    is_word.then(|| secret_label(name)).flatten()
}

/// Returns the first credential of an argument, by its form or by its name. What follows it goes with it.
fn first_inside(argument: &str) -> Option<(String, usize)> {
    let by_form = key_by_form(argument).map(|(kind, start)| (kind.to_owned(), start));
    let by_name = named(argument);
    // `Bearer` and the like tell what kind of credential a header has, and stay.
    let is_scheme = |from: usize, to: usize| {
        let between = argument.get(from..to).unwrap_or_default();
        ["Bearer ", "bearer ", "Basic "].contains(&between)
    };
    match (by_form, by_name) {
        (Some((kind, at)), Some((_, start))) if at < start || is_scheme(start, at) => {
            Some((kind, at))
        }
        (by_form, by_name) => by_name.or(by_form),
    }
}

/// Returns the first value that has the name of a credential: `NAME=value`, `--flag value`, `--flag=NAME=value`,
/// `Header: value` or `"name": value`, by itself or among other words.
fn named(argument: &str) -> Option<(String, usize)> {
    let found = readings(argument).filter_map(|text| first_named(&text));
    found.min_by_key(|(_, start)| *start)
}

fn first_named(argument: &str) -> Option<(String, usize)> {
    let words: Vec<(usize, &str)> = words(argument).collect();
    words.iter().enumerate().find_map(|(nth, (at, word))| {
        let next = words.get(nth + 1).map(|(at, _)| *at);
        let mut begin = 0;
        for (end, _) in word.match_indices(is_separator) {
            let before = word.get(begin..end)?;
            begin = end + 1;
            // The host of an address has a port behind it.
            if before.starts_with("//") && !before.trim_start_matches('/').contains('/') {
                continue;
            }
            if let Some(label) = secret_label(last_name(before)) {
                let start = match begin < word.len() {
                    true => Some(at + begin),
                    false => next,
                };
                return start.map(|start| (label, start));
            }
        }
        let name = last_name(word.get(begin..)?);
        let label = secret_label(name)?;
        let start = next.filter(|next| {
            let between = argument.get(at + word.len()..*next).unwrap_or_default();
            name.starts_with('-') || between.contains(is_separator)
        });
        start.map(|start| (label, start))
    })
}

/// Returns the label of a name that is a credential's.
fn secret_label(name: &str) -> Option<String> {
    let is_secret = |name: &str| {
        let label = label(name);
        let is_own_flag = name.starts_with('-') && OWN_FLAGS.contains(&label.as_str());
        let is_header = label.ends_with("authorization") || label.ends_with("cookie");
        (is_own_flag || is_header || is_secret_name(&label)).then_some(label)
    };
    // `-HAuthorization` is a flag of one letter and a name.
    let mut letters = name.strip_prefix('-').unwrap_or_default().chars();
    let attached = letters
        .next()
        .filter(char::is_ascii_alphabetic)
        .map(|_| letters.as_str())
        .filter(|rest| rest.starts_with(|char: char| char.is_ascii_uppercase()));
    attached.and_then(is_secret).or_else(|| is_secret(name))
}

/// Returns the name at the end of a text. What stands before it may be a credential, and is never part of the name.
fn last_name(text: &str) -> &str {
    let name = text.trim_end_matches(is_of_name);
    text.get(name.len()..).unwrap_or_default()
}

fn is_of_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || "-_.".contains(char)
}

/// What stands between a name and its value.
fn is_separator(char: char) -> bool {
    char == '=' || char == ':'
}

/// Returns the words of a text, each with its place, without what shells, addresses and JSON put around them.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_between = |char: char| char.is_whitespace() || ";&|?\"'`(){},\\".contains(char);
    let mut at = 0;
    text.split(is_between).filter_map(move |word| {
        let start = at;
        at += word.len()
            + text
                .get(start + word.len()..)?
                .chars()
                .next()
                .map_or(0, char::len_utf8);
        // A colon or `=` by itself stands between a name and its value.
        (!word.trim_matches([':', '=', '>']).is_empty()).then_some((start, word))
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
            pointer: pointer(secret.index),
            reason: "credential".to_owned(),
            hash: None,
        });
    }
    (redacted, redactions)
}

/// Returns the name of what was taken out of an argument, and the text before it.
///
/// Ordinary text may look the same: the list tells which arguments were redacted.
pub fn redacted_name<'a>(
    argv: &'a [String],
    index: usize,
    redactions: &[Redaction],
) -> Option<(&'a str, &'a str)> {
    let pointer = pointer(index);
    let is_listed = redactions
        .iter()
        .any(|redaction| redaction.pointer == pointer);
    let argument = argv.get(index).filter(|_| is_listed)?;
    argument.strip_suffix('>')?.rsplit_once("<redacted:")
}

/// The place of an argument in a sidecar.
fn pointer(index: usize) -> String {
    format!("/argv/{index}")
}

/// Says whether a value has the form of a credential, whatever it is called.
pub fn looks_secret(value: &str) -> bool {
    key_by_form(value).is_some()
}

/// Says whether a variable or flag of this name holds a credential.
pub fn is_secret_variable(name: &str) -> bool {
    is_secret_name(&label(name))
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
    (named || tail || own) && !count
}

fn key_by_form(text: &str) -> Option<(&'static str, usize)> {
    let found = readings(text).flat_map(|text| {
        let password = url_password(&text).map(|at| ("url-password", at));
        let behind_flag = credentials::find(&without_short_flags(&text));
        let found = credentials::find(&text).into_iter();
        found.chain(behind_flag).chain(password)
    });
    found.min_by_key(|(_, start)| *start)
}

/// How often a text inside a text is read.
const READINGS_MAX: usize = 4;
/// More backslashes than this come from no such nesting.
const BACKSLASHES_MAX: usize = 16;

/// Returns a text, and then what it says when escapes of addresses and JSON are read, once and again. All have the same length,
/// so that a place in one is a place in the others. None replaces another: `\rpk_…` may be an escape or the end of a path.
fn readings(text: &str) -> impl Iterator<Item = String> {
    let next = |text: &String| Some(unescaped(text)).filter(|read| read != text);
    std::iter::successors(Some(text.to_owned()), next).take(READINGS_MAX)
}

/// Writes blanks and the character that is meant over each escape. Letters and digits become blanks as well, for an escape ends a
/// word.
fn unescaped(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let escape = bytes.get(at..).and_then(escape);
        let length = escape.map_or(1, |(length, _)| length);
        if let Some((_, meant)) = escape
            && let Some([before @ .., last]) = bytes.get_mut(at..at + length)
        {
            before.fill(b' ');
            *last = match meant.is_ascii_punctuation() {
                true => meant,
                false => b' ',
            };
        }
        at += length;
    }
    // Invariant: escapes are ASCII, and so is what is written over them.
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// Returns the length of the escape at the beginning, and the character that is meant where it is ASCII.
fn escape(text: &[u8]) -> Option<(usize, u8)> {
    let hex = |digits: &[u8]| {
        let digits = str::from_utf8(digits).ok()?;
        let are_digits = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let code = are_digits.then(|| u32::from_str_radix(digits, 16).ok())??;
        Some(u8::try_from(code).ok().filter(u8::is_ascii).unwrap_or(b' '))
    };
    if let [b'%', first, second, ..] = text {
        return Some((3, hex(&[*first, *second])?));
    }
    // JSON inside of JSON escapes the backslash too.
    let slashes = text.iter().take(BACKSLASHES_MAX);
    let slashes = slashes.take_while(|byte| **byte == b'\\').count();
    match text.get(slashes..)? {
        _ if slashes == 0 => None,
        [b'n' | b'r' | b't' | b'b' | b'f', ..] => Some((slashes + 1, b' ')),
        [b'u', rest @ ..] => Some((slashes + 5, hex(rest.get(..4)?)?)),
        _ => None,
    }
}

/// Writes blanks over flags of one letter, which may have their value behind them without any sign between.
fn without_short_flags(text: &str) -> String {
    let (mut first, mut second) = (' ', ' ');
    let blanked = text.chars().map(|char| {
        let ends_flag = !is_of_name(first) && second == '-' && char.is_ascii_alphabetic();
        (first, second) = (second, char);
        if ends_flag { ' ' } else { char }
    });
    blanked.collect()
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

    /// What stands before a name is no part of it, and may hold another credential.
    #[test]
    fn rb_md_09_a_name_is_one_word_and_the_first_credential_ends_what_is_shown() {
        let key = "rpk_0123456789abcdef0123456789abcdef";
        for (argument, expect) in [
            (
                format!("true {key}; DB_PASSWORD=x true"),
                "true <redacted:reprise-key>",
            ),
            (
                "https://u:hunter2@h/p?api_key=x".to_owned(),
                "https://u:<redacted:url-password>",
            ),
            (
                "true 'Authorization: Bearer abcdefghijklmnop' --password=x".to_owned(),
                "true 'Authorization: Bearer <redacted:authorization>",
            ),
            (
                "https://h/p/api_key=x".to_owned(),
                "https://h/p/api_key=<redacted:api-key>",
            ),
            (format!("--{key}-password=x"), "--<redacted:reprise-key>"),
            (
                "connect password = hunter2".to_owned(),
                "connect password = <redacted:password>",
            ),
            (
                format!("{}_PASSWORD=hunter2", "A".repeat(90)),
                &format!(
                    "{0}_PASSWORD=<redacted:{1}-password>",
                    "A".repeat(90),
                    "a".repeat(90)
                ),
            ),
        ] {
            check(&["sh", "-c", &argument], &["sh", "-c", expect]);
        }
    }

    #[test]
    fn rb_md_09_a_flag_without_a_value_does_not_hide_the_flag_behind_it() {
        check(
            &["x", "--no-password", "--key", "hunter2abc", "a"],
            &["x", "--no-password", "--key", "<redacted:key>", "a"],
        );
        check(
            &["x", "--allow-secrets-in-argv", "--key", "hunter2abc"],
            &["x", "--allow-secrets-in-argv", "--key", "<redacted:key>"],
        );
        check(
            &["x", "--no-password", "--key=hunter2abc", "a"],
            &["x", "--no-password", "--key=<redacted:key>", "a"],
        );
        check(
            &["x", "--password", "--", "hunter2", "a"],
            &["x", "--password", "--", "<redacted:password>", "a"],
        );
        check(
            &["x", "--api-key", "", "hunter2", "a"],
            &["x", "--api-key", "", "<redacted:api-key>", "a"],
        );
        check(
            &["x", "--api-key=", "hunter2", "a"],
            &["x", "--api-key=", "<redacted:api-key>", "a"],
        );
        // A value may begin like a flag.
        check(
            &["x", "--password", "-hunter2", "a"],
            &["x", "--password", "<redacted:password>", "a"],
        );
    }

    #[test]
    fn rb_md_09_what_a_flag_sets_is_looked_into() {
        for (argument, expect) in [
            (
                "--header=X-Api-Key: hunter2",
                "--header=X-Api-Key: <redacted:x-api-key>",
            ),
            (
                "--header=Authorization: token hunter2",
                "--header=Authorization: <redacted:authorization>",
            ),
            (
                "--header=Cookie: sid=hunter2",
                "--header=Cookie: <redacted:cookie>",
            ),
            (
                "--env=DB_PASSWORD=hunter2",
                "--env=DB_PASSWORD=<redacted:db-password>",
            ),
            (
                "--from-literal=password=hunter2",
                "--from-literal=password=<redacted:password>",
            ),
            (
                "--set=db.password=hunter2",
                "--set=db.password=<redacted:db-password>",
            ),
            (
                "-HAuthorization: token hunter2",
                "-HAuthorization: <redacted:authorization>",
            ),
            ("-HCookie: sid=hunter2", "-HCookie: <redacted:cookie>"),
            (
                "Proxy-Authorization: hunter2",
                "Proxy-Authorization: <redacted:proxy-authorization>",
            ),
            (
                r#"{"a":"{\"password\":\"hunter2\"}"}"#,
                r#"{"a":"{\"password\":\"<redacted:password>"#,
            ),
        ] {
            check(&["curl", argument, "a"], &["curl", expect, "a"]);
            let line = format!("curl '{argument}' a");
            check(
                &["sh", "-c", &line],
                &["sh", "-c", &format!("curl '{expect}")],
            );
        }
        let kept = [
            "x",
            "--set=a=b",
            "http://secret-service:8080/a=b",
            "--at=12:30",
        ];
        check(&kept, &kept);
    }

    /// Texts inside of texts: a key begins behind what escapes a character, and behind a flag of one letter.
    #[test]
    fn rb_md_09_escapes_and_flags_of_one_letter_end_a_word() {
        let key = "rpk_0123456789abcdef0123456789abcdef";
        for before in [
            "https://h/?q=%22",
            "https://h/?q=%2522",
            "{\"log\":\"line\\n",
            "{\"log\":\"line\\t",
            "{\"log\":\"line\\r",
            "{\"log\":\"line\\u0022",
            "{\"a\":\"{\\\"log\\\":\\\"line\\\\n",
            "C:\\",
            "-k",
            "curl -k",
        ] {
            let argument = format!("{before}{key}\"}}");
            let expect = format!("{before}<redacted:reprise-key>");
            check(&["sh", &argument], &["sh", &expect]);
            assert!(looks_secret(&argument), "{argument}");
        }
        check(
            &["sh", "https://h/?q=%22password%22%3A%22hunter2%22"],
            &["sh", "https://h/?q=%22password%22%3A%22<redacted:password>"],
        );
        let kept = [
            "-task-0123456789abcdef0123",
            "100%task-0123456789abcdef0123",
            "C:\\new\\task-0123456789abcdef0123",
            "a-krpk_0123456789abcdef0123456789abcdef",
            "é%2",
            "\\u00e",
        ];
        check(&kept, &kept);
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
    fn rb_run_07_a_redacted_argument_tells_its_name_and_text_that_looks_like_one_is_text() {
        let argv = ["--api-key=a1", "<redacted:foo>", "plain"].map(str::to_owned);
        let (redacted, redactions) = redact(&argv);
        let name = |index| redacted_name(&redacted, index, &redactions);
        assert_eq!(name(0), Some(("--api-key=", "api-key")));
        assert_eq!([name(1), name(2), name(3)], [None; 3]);
        assert_eq!(redacted_name(&redacted, 0, &[]), None);
    }
}
