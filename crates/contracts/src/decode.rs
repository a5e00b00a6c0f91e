//! Trees to fields: every wrong type, missing and unknown key becomes a finding with its place.
//!
//! A decoder asks a [`Fields`] for the keys it knows and ends with [`Fields::finish`], which reports the rest. A field
//! that could not be read gives nothing and a finding; decoding goes on, so that one run shows everything.

use crate::decimal::Decimal;
use crate::finding::{Code, Findings, Place, shown};
use crate::path::Path;
use crate::yaml::{Key, Kind, Node};

/// The members of one map while they are read.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    at: Place,
    members: &'a [(Key, Node)],
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// Starts to read a map.
    pub(crate) fn of(node: &'a Node, findings: &mut Findings) -> Option<Self> {
        let members = map(node, findings)?;
        Some(Self {
            at: node.at,
            members,
            known: Vec::new(),
        })
    }

    /// Returns where the map stands.
    pub(crate) fn at(&self) -> Place {
        self.at
    }

    /// Returns a member, or nothing when it is absent.
    pub(crate) fn optional(&mut self, name: &'static str) -> Option<&'a Node> {
        self.known.push(name);
        let found = self.members.iter().find(|(key, _)| key.name == name);
        found.map(|(_, node)| node)
    }

    /// Returns a member that must be there.
    pub(crate) fn required(
        &mut self,
        name: &'static str,
        findings: &mut Findings,
    ) -> Option<&'a Node> {
        let found = self.optional(name);
        if found.is_none() {
            let message = format!("key `{name}` is missing");
            findings.error(self.at, Code::MissingKey, message);
        }
        found
    }

    /// Reports the keys that nobody asked for.
    pub(crate) fn finish(self, findings: &mut Findings) {
        for (key, _) in self.members {
            if self.known.contains(&key.name.as_str()) || key.name.starts_with('\u{0}') {
                continue;
            }
            let guess = nearest(&key.name, &self.known);
            let hint = guess.map_or_else(
                || format!("known are {}", list(&self.known)),
                |name| format!("did you mean `{name}`?"),
            );
            let message = format!("unknown key {}: {hint}", shown(&key.name));
            findings.error(key.at, Code::UnknownKey, message);
        }
    }
}

fn list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// Returns the known name that differs in one or two letters.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let distances = known.iter().map(|other| (distance(name, other), *other));
    let (distance, other) = distances.min()?;
    (distance <= 2 && distance < other.len()).then_some(other)
}

fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().take(80).enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, to) in row
            .iter_mut()
            .zip(std::iter::once(None).chain(b.chars().map(Some)))
        {
            let Some(to) = to else {
                *cell = i + 1;
                continue;
            };
            let best = (diagonal + usize::from(from != to))
                .min(left + 1)
                .min(*cell + 1);
            diagonal = *cell;
            *cell = best;
            left = best;
        }
    }
    row.last().copied().unwrap_or_default()
}

fn wrong(node: &Node, expected: &str, findings: &mut Findings) {
    if matches!(node.kind, Kind::Broken) {
        return;
    }
    let message = format!("expected {expected}, found {}", node.type_name());
    findings.error(node.at, Code::WrongType, message);
}

/// Returns a node's members.
pub(crate) fn map<'a>(node: &'a Node, findings: &mut Findings) -> Option<&'a [(Key, Node)]> {
    match &node.kind {
        Kind::Map(members) => Some(members),
        Kind::Null
        | Kind::Bool(_)
        | Kind::Number(_)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Broken => {
            wrong(node, "a map", findings);
            None
        }
    }
}

/// Returns a node's elements, at most `len_max`.
pub(crate) fn items<'a>(
    node: &'a Node,
    len_max: usize,
    findings: &mut Findings,
) -> Option<&'a [Node]> {
    let Kind::List(items) = &node.kind else {
        wrong(node, "a list", findings);
        return None;
    };
    if items.len() > len_max {
        let message = format!("more than {len_max} entries");
        findings.error(node.at, Code::TooLarge, message);
        return None;
    }
    Some(items)
}

/// Returns a node's text.
pub(crate) fn text<'a>(node: &'a Node, findings: &mut Findings) -> Option<&'a str> {
    let Kind::Text(text) = &node.kind else {
        wrong(node, "a text", findings);
        return None;
    };
    Some(text)
}

/// Returns a text of a given length in bytes.
pub(crate) fn bounded_text<'a>(
    node: &'a Node,
    len_max: usize,
    findings: &mut Findings,
) -> Option<&'a str> {
    let text = text(node, findings)?;
    if text.is_empty() || text.len() > len_max {
        let message = format!("expected 1 to {len_max} bytes, found {}", text.len());
        findings.error(node.at, Code::BadValue, message);
        return None;
    }
    Some(text)
}

/// Returns a node's boolean.
pub(crate) fn boolean(node: &Node, findings: &mut Findings) -> Option<bool> {
    let Kind::Bool(value) = node.kind else {
        wrong(node, "true or false", findings);
        return None;
    };
    Some(value)
}

/// Returns a node's number.
pub(crate) fn number(node: &Node, findings: &mut Findings) -> Option<Decimal> {
    let Kind::Number(value) = node.kind else {
        wrong(node, "a number", findings);
        return None;
    };
    Some(value)
}

/// Returns an integer within bounds.
pub(crate) fn integer(node: &Node, min: u64, max: u64, findings: &mut Findings) -> Option<u64> {
    let value = number(node, findings)?;
    let found = value.as_u64().filter(|value| (min..=max).contains(value));
    if found.is_none() {
        let message = format!("expected an integer from {min} to {max}, found `{value}`");
        findings.error(node.at, Code::BadValue, message);
    }
    found
}

/// Returns one of a set of words.
pub(crate) fn word<T: Copy>(
    node: &Node,
    words: &[(&'static str, T)],
    findings: &mut Findings,
) -> Option<T> {
    let text = text(node, findings)?;
    let found = words.iter().find(|(word, _)| *word == text);
    if found.is_none() {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let message = format!("{} is not one of {}", shown(text), list(&known));
        findings.error(node.at, Code::BadValue, message);
    }
    found.map(|(_, value)| *value)
}

/// Returns a path.
pub(crate) fn path(node: &Node, findings: &mut Findings) -> Option<Path> {
    let text = text(node, findings)?;
    match Path::parse(text) {
        Ok(path) => Some(path),
        Err(error) => {
            findings.error(node.at, Code::BadValue, error.to_string());
            None
        }
    }
}

/// Returns the elements that could be read.
pub(crate) fn list_of<T>(
    node: Option<&Node>,
    len_max: usize,
    findings: &mut Findings,
    mut read: impl FnMut(&Node, &mut Findings) -> Option<T>,
) -> Vec<T> {
    let Some(node) = node else {
        return Vec::new();
    };
    let items = items(node, len_max, findings).unwrap_or_default();
    items
        .iter()
        .filter_map(|item| read(item, findings))
        .collect()
}

/// A name and where it was used, for checks that need all files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) at: Place,
}

/// Longest name of a tool, phase, slot, label or rule.
pub(crate) const NAME_BYTES_MAX: usize = 128;

/// Returns a name with its place.
pub(crate) fn named(node: &Node, findings: &mut Findings) -> Option<Named> {
    let text = bounded_text(node, NAME_BYTES_MAX, findings)?;
    Some(Named {
        name: text.to_owned(),
        at: node.at,
    })
}

/// Returns a label: 1 to 128 ASCII letters, digits, `-` and `_`.
pub(crate) fn label(node: &Node, findings: &mut Findings) -> Option<String> {
    let text = text(node, findings)?;
    if !is_label(text) {
        let message = format!(
            "{} is not a label: 1 to 128 letters, digits, `-` and `_`",
            shown(text)
        );
        findings.error(node.at, Code::BadValue, message);
        return None;
    }
    Some(text.to_owned())
}

/// Says whether a text can be a label.
pub(crate) fn is_label(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=128).contains(&text.len()) && text.bytes().all(allowed)
}
