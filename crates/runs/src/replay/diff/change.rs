//! A value that differs, told member by member: only what differs is shown.

use canon::{Map, Value, jcs, sha256};
use domain::INLINE_BYTES_MAX;
use serde::Serialize;
use serde_json::json;

use super::text::TextDiff;
use crate::replay::keys::{message_words, readable};

/// Something that the runs were given, asked or answered differently.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// `workflow`, `workflow_version`, `input` or `persona` of what was given; `message` or `request` of what was
    /// asked; `value` of what was answered.
    pub what: &'static str,
    /// Which member of it, by its path; for a message its number from 1. None for the whole.
    pub member: Option<String>,
    /// For a message: who speaks.
    pub role: Option<String>,
    /// Of the first run; null when only the second has it, a digest in place of a large value.
    pub before: Value,
    /// Of the second.
    pub after: Value,
    /// The difference of the words.
    pub text: Option<TextDiff>,
}

impl Change {
    fn new(what: &'static str, path: &[&str], before: &Value, after: &Value) -> Self {
        let words = |value: &Value| match value {
            Value::Null => String::new(),
            value => readable(value),
        };
        Self {
            what,
            member: (!path.is_empty()).then(|| path.join(".")),
            role: None,
            text: TextDiff::between(&words(before), &words(after)),
            before: shown(before),
            after: shown(after),
        }
    }

    /// Takes the words away.
    pub(super) fn hide(&mut self) {
        let hidden = |value: &Value| match value {
            Value::Null => Value::Null,
            _ => json!({"redacted": true}),
        };
        self.before = hidden(&self.before);
        self.after = hidden(&self.after);
        self.text = None;
    }
}

/// Returns the members that differ, down to those that are no objects on both sides.
pub(super) fn members(what: &'static str, before: &Value, after: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    walk(what, &mut Vec::new(), before, after, &mut changes);
    changes
}

fn walk<'a>(
    what: &'static str,
    path: &mut Vec<&'a str>,
    before: &'a Value,
    after: &'a Value,
    changes: &mut Vec<Change>,
) {
    match (before, after) {
        (before, after) if before == after => {}
        (Value::Object(a), Value::Object(b)) => {
            let only_b = b.keys().filter(|name| !a.contains_key(*name));
            let mut names: Vec<&String> = a.keys().chain(only_b).collect();
            names.sort_unstable();
            for name in names {
                let member = |of: &'a Map<String, Value>| of.get(name).unwrap_or(&Value::Null);
                path.push(name);
                walk(what, path, member(a), member(b), changes);
                path.pop();
            }
        }
        _ => changes.push(Change::new(what, path, before, after)),
    }
}

/// Returns the messages that differ between what both requests have in common at their ends.
pub(super) fn messages(before: &[Value], after: &[Value]) -> Vec<Change> {
    let start = before.iter().zip(after).take_while(|(a, b)| a == b).count();
    let rest = before.len().min(after.len()) - start;
    let ends = before.iter().rev().zip(after.iter().rev());
    let end = ends.take(rest).take_while(|(a, b)| a == b).count();
    let last = before.len().max(after.len()) - end;
    let within = |list: &[Value], at: usize| match at < list.len() - end {
        true => list.get(at).cloned().unwrap_or_default(),
        false => Value::Null,
    };
    (start..last)
        .map(|at| message(at + 1, &within(before, at), &within(after, at)))
        .collect()
}

fn message(number: usize, before: &Value, after: &Value) -> Change {
    let role = [after, before]
        .into_iter()
        .find_map(|message| message.get("role")?.as_str().map(str::to_owned));
    let words = |message: &Value| match message {
        Value::Null => String::new(),
        message => message_words(message),
    };
    let mut change = Change::new("message", &[], before, after);
    change.member = Some(number.to_string());
    change.role = role;
    // The same words in another shape are told by the shape.
    change.text = TextDiff::between(&words(before), &words(after)).or(change.text);
    change
}

/// Returns a value, or its digest when it is large.
fn shown(value: &Value) -> Value {
    let bytes = jcs(value);
    if bytes.len() <= INLINE_BYTES_MAX {
        return value.clone();
    }
    json!({"sha256": sha256(&bytes), "bytes": bytes.len()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(changes: &[Change]) -> Vec<(&str, Vec<String>, Vec<String>)> {
        changes
            .iter()
            .map(|change| {
                let text = change.text.clone().unwrap();
                let member = change.member.as_deref().unwrap_or_default();
                (member, text.before, text.after)
            })
            .collect()
    }

    #[test]
    fn only_members_that_differ_are_told() {
        let before = json!({"name": "n", "prompt": "be\nkind", "model": {"name": "m", "seed": 1}, "old": "x"});
        let after = json!({"name": "n", "prompt": "be\nbrief", "model": {"name": "m", "seed": 2}, "new": true});
        let changes = members("persona", &before, &after);
        let text = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            named(&changes),
            [
                ("model.seed", text(&["1"]), text(&["2"])),
                ("new", text(&[]), text(&["true"])),
                ("old", text(&["x"]), text(&[])),
                ("prompt", text(&["kind"]), text(&["brief"])),
            ]
        );
        assert_eq!(changes[1].before, Value::Null);
        assert!(members("persona", &before, &before).is_empty());
        assert_eq!(members("input", &json!("a"), &json!("b"))[0].member, None);
    }

    #[test]
    fn messages_are_told_by_their_numbers_and_words() {
        let say = |role: &str, content: &str| json!({"role": role, "content": content});
        let before = [say("system", "s"), say("user", "u"), say("tool", "1")];
        let after = [
            say("system", "s"),
            say("user", "v"),
            say("assistant", "a"),
            say("tool", "1"),
        ];
        let changes = messages(&before, &after);
        let found: Vec<(&str, &str)> = changes
            .iter()
            .map(|change| {
                let role = change.role.as_deref().unwrap();
                (change.member.as_deref().unwrap(), role)
            })
            .collect();
        assert_eq!(found, [("2", "user"), ("3", "assistant")]);
        assert_eq!(changes[1].before, Value::Null);
        assert_eq!(changes[1].text.as_ref().unwrap().after, ["a"]);
        assert_eq!(messages(&before[..2], &before).len(), 1);
        assert!(messages(&before, &before).is_empty());
    }
}
