//! What other people's crates may be: their licences, which of them are banned, and where they come from.
//!
//! Three checks over `cargo metadata`, the same that `cargo deny` makes. Advisories are not among them: they would need
//! a database from outside.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell::cargo;

/// Licences that our own, MIT and Apache-2.0, can be combined with.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that must not come in, and why.
const BANNED: &[(&str, &str)] = &[
    ("native-tls", "TLS is rustls"),
    ("openssl", "TLS is rustls"),
    ("openssl-sys", "TLS is rustls"),
    ("serde_yaml", "it is no longer maintained; YAML is saphyr"),
    ("async-std", "the executor is tokio"),
];

/// Crates of which the product holds one version: two would be two implementations of what proofs rest on.
const ONCE: &[&str] = &[
    "curve25519-dalek",
    "ed25519-dalek",
    "rustls",
    "serde_json",
    "sha2",
    "tokio",
];

/// Where crates come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Runs the checks and lists all that is wrong.
pub(crate) fn run() -> Result<()> {
    eprintln!("==> licences, bans and sources of dependencies");
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .context("cannot run cargo metadata")?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata gave no JSON")?;
    let problems = problems(&metadata);
    if problems.is_empty() {
        return Ok(());
    }
    bail!("dependencies:\n  {}", problems.join("\n  "))
}

fn problems(metadata: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let product = product(metadata);
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in list(metadata, "packages") {
        let (name, version) = (text(package, "name"), text(package, "version"));
        let licence = text(package, "license");
        if !is_allowed(licence) {
            problems.push(format!(
                "{name} {version}: licence `{licence}` is not in the list"
            ));
        }
        if let Some((_, why)) = BANNED.iter().find(|(banned, _)| *banned == name) {
            problems.push(format!("{name} {version} is banned: {why}"));
        }
        let source = text(package, "source");
        if !source.is_empty() && source != REGISTRY {
            problems.push(format!("{name} {version} comes from `{source}`"));
        }
        if product.contains(text(package, "id")) {
            versions.entry(name).or_default().push(version);
        }
    }
    for name in ONCE {
        let found = versions.get(name).map(Vec::as_slice).unwrap_or_default();
        if found.len() > 1 {
            problems.push(format!(
                "the product holds {name} in versions {}",
                found.join(", ")
            ));
        }
    }
    problems
}

/// Returns what the program is made of: whatever `reprise` needs outside of tests, by id.
fn product(metadata: &Value) -> BTreeSet<&str> {
    let nodes = metadata
        .get("resolve")
        .map(|resolve| list(resolve, "nodes"));
    let nodes = nodes.unwrap_or_default();
    let mut known = BTreeSet::new();
    let mut next: Vec<&str> = list(metadata, "packages")
        .iter()
        .filter(|package| text(package, "name") == "reprise")
        .map(|package| text(package, "id"))
        .collect();
    while let Some(id) = next.pop() {
        if !known.insert(id) {
            continue;
        }
        let node = nodes.iter().find(|node| text(node, "id") == id);
        for dependency in node.map(|node| list(node, "deps")).unwrap_or_default() {
            let is_for_tests = |kind: &Value| text(kind, "kind") == "dev";
            if !list(dependency, "dep_kinds").iter().all(is_for_tests) {
                next.push(text(dependency, "pkg"));
            }
        }
    }
    known
}

fn list<'a>(value: &'a Value, member: &str) -> &'a [Value] {
    let list = value.get(member).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value
        .get(member)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// True when a licence expression can be satisfied by licences of the list. An expression that cannot be read cannot.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    alternatives(&mut rest) == Some(true) && rest.is_empty()
}

fn alternatives(rest: &mut &[&str]) -> Option<bool> {
    let mut allowed = conjunction(rest)?;
    while let Some(("OR", after)) = rest.split_first().map(|(word, after)| (*word, after)) {
        *rest = after;
        allowed |= conjunction(rest)?;
    }
    Some(allowed)
}

fn conjunction(rest: &mut &[&str]) -> Option<bool> {
    let mut allowed = licence(rest)?;
    while let Some(("AND", after)) = rest.split_first().map(|(word, after)| (*word, after)) {
        *rest = after;
        allowed &= licence(rest)?;
    }
    Some(allowed)
}

fn licence(rest: &mut &[&str]) -> Option<bool> {
    let (word, after) = rest.split_first()?;
    *rest = after;
    if *word == "(" {
        let allowed = alternatives(rest)?;
        let (close, after) = rest.split_first()?;
        *rest = after;
        return (*close == ")").then_some(allowed);
    }
    if let [with, exception, after @ ..] = *rest
        && *with == "WITH"
    {
        *rest = after;
        return Some(LICENCES.contains(&format!("{word} WITH {exception}").as_str()));
    }
    Some(LICENCES.contains(word))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn licences_are_read_as_expressions() {
        for allowed in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "ISC AND (GPL-3.0 OR Apache-2.0)",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT",
            "MIT MIT",
            "GPL-2.0 WITH LLVM-exception",
        ] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }

    #[test]
    fn a_licence_a_ban_a_source_and_a_second_version_are_named() {
        let package = |name: &str, version: &str, licence: &str, source: &str| json!({"name": name, "version": version, "id": format!("{name} {version}"), "license": licence, "source": source});
        let needs = |id: &str| json!({"pkg": id, "dep_kinds": [{"kind": null}]});
        let metadata = json!({
            "packages": [
                package("reprise", "1", "MIT", ""),
                package("sha2", "1", "MIT", REGISTRY),
                package("sha2", "2", "MIT", REGISTRY),
                package("openssl", "1", "MIT", REGISTRY),
                package("other", "1", "GPL-3.0", "git+https://example.org/other"),
            ],
            "resolve": {"nodes": [
                {"id": "reprise 1", "deps": [needs("sha2 1"), needs("other 1")]},
                {"id": "other 1", "deps": [needs("sha2 2"), {"pkg": "openssl 1", "dep_kinds": [{"kind": "dev"}]}]},
            ]},
        });
        let found = problems(&metadata);
        assert_eq!(found.len(), 4, "{found:?}");
        for word in ["GPL-3.0", "git+https", "banned", "versions 1, 2"] {
            assert!(
                found.iter().any(|problem| problem.contains(word)),
                "{word}: {found:?}"
            );
        }
    }
}
