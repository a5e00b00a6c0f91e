//! What of a finished run can be changed, and how people say what to put there.

use canon::{Integers, Value};
use serde::Serialize;
use serde_json::json;

use super::source::Source;

/// Something that a replay can be told to answer differently.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Key {
    /// The override key.
    pub key: String,
    /// The kind of override that fits.
    pub kind: &'static str,
    /// The event that holds what was recorded.
    pub event_id: String,
    /// The number of that event in the log, from 1.
    pub sequence: u64,
    /// False when an error was recorded, or nothing at all.
    pub ok: bool,
    /// What was recorded, when it is to be had.
    pub value: Option<Value>,
}

/// Returns what a run asked for, its checkpoints and the times of its life, in the order of its log.
pub fn keys(source: &Source) -> Vec<Key> {
    let mut keys: Vec<(usize, Key)> = Vec::new();
    let mut add = |place: usize, key: String, ok: bool, value: Option<Value>| {
        if let (Some(event), Some(kind)) = (source.event(place), kind_of(&key)) {
            let key = Key {
                key,
                kind,
                event_id: event.id.to_string(),
                sequence: place as u64 + 1,
                ok,
                value,
            };
            keys.push((place, key));
        }
    };
    for label in ["time:created_at", "time:started_at", "time:completed_at"] {
        if let Some(place) = source.lifecycle_event(label) {
            let time = source.event(place).map(|event| json!(event.created_at));
            add(place, label.to_owned(), true, time);
        }
    }
    for (key, places) in source.effects() {
        match (places.recorded, places.requested) {
            (Some(place), _) => {
                let ok = source.answer(place).is_some_and(|answer| answer.ok);
                add(place, key.to_owned(), ok, source.recorded_value(place));
            }
            (None, Some(place)) => add(place, key.to_owned(), false, None),
            (None, None) => {}
        }
    }
    for (place, id) in source.checkpoints() {
        let state = source.checkpoint_state(place);
        add(place, format!("host:checkpoint:{id}"), true, state);
    }
    keys.sort_by_key(|(place, _)| *place);
    keys.into_iter().map(|(_, key)| key).collect()
}

/// Returns the kind of override that a key takes; none for what is no key.
pub fn kind_of(key: &str) -> Option<&'static str> {
    let (prefix, rest) = key.split_once(':')?;
    if rest.is_empty() {
        return None;
    }
    Some(match prefix {
        "llm" => "llm_provider_response",
        "mcp" => "mcp_tool_return",
        "secret" => "secret_value",
        "time" => "time",
        "host" if rest.starts_with("checkpoint:") => "checkpoint_value",
        "host" if rest.starts_with("tool.") => "tool_result",
        "host" => "host_fact",
        "event" => "event_payload",
        _ => return None,
    })
}

/// Returns the value that plain text means under a key: the answer of a model, the text of a tool, a time or a secret
/// as it is; for the rest a JSON value if it is one.
pub fn text_value(key: &str, text: &str) -> Value {
    match kind_of(key) {
        Some("llm_provider_response") => {
            json!({"choices": [{"message": {"role": "assistant", "content": text}}]})
        }
        Some("mcp_tool_return" | "tool_result") => {
            json!({"content": [{"type": "text", "text": text}]})
        }
        Some("time" | "secret_value") => text.into(),
        _ => canon::read(text.as_bytes(), Integers::Safe).unwrap_or_else(|_| text.into()),
    }
}

/// Returns a value as people read it: what a model said and which tools it called, the text of a tool, or JSON.
pub fn readable(value: &Value) -> String {
    if let Some(message) = value.pointer("/choices/0/message") {
        let content = message.get("content").and_then(Value::as_str);
        let calls = message.get("tool_calls").and_then(Value::as_array);
        let calls = calls.into_iter().flatten().filter_map(|call| {
            let name = call.pointer("/function/name")?.as_str()?;
            let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
            Some(format!("calls {name}({})", arguments.unwrap_or_default()))
        });
        let lines = content.map(str::to_owned).filter(|text| !text.is_empty());
        return lines
            .into_iter()
            .chain(calls)
            .collect::<Vec<_>>()
            .join("\n");
    }
    let parts = value.get("content").and_then(Value::as_array);
    let texts: Vec<&str> = parts
        .into_iter()
        .flatten()
        .filter_map(|part| part.get("text")?.as_str())
        .collect();
    match value {
        _ if !texts.is_empty() => texts.join("\n"),
        Value::String(text) => text.clone(),
        other => format!("{other:#}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_what_the_key_takes() {
        let check = |key: &str, text: &str, expect: Value| {
            assert_eq!(text_value(key, text), expect, "{key}");
        };
        check(
            "llm:main:1",
            "7",
            json!({"choices": [{"message": {"role": "assistant", "content": "7"}}]}),
        );
        check(
            "mcp:files:main:1",
            "a",
            json!({"content": [{"type": "text", "text": "a"}]}),
        );
        check(
            "host:tool.ls:main:1",
            "a",
            json!({"content": [{"type": "text", "text": "a"}]}),
        );
        check(
            "time:started_at",
            "2026-01-01T00:00:00Z",
            json!("2026-01-01T00:00:00Z"),
        );
        check("secret:token", "{}", json!("{}"));
        check(
            "host:approval:1",
            "{\"approved\": false}",
            json!({"approved": false}),
        );
        check("host:env:main:1", "not JSON", json!("not JSON"));
    }

    #[test]
    fn what_is_said_is_read_without_its_envelope() {
        let said = text_value("llm:main:1", "Hello");
        assert_eq!(readable(&said), "Hello");
        assert_eq!(readable(&text_value("mcp:a:main:1", "x")), "x");
        let call = json!({"choices": [{"message": {"content": null, "tool_calls": [
            {"function": {"name": "add", "arguments": "{\"a\":1}"}}]}}]});
        assert_eq!(readable(&call), "calls add({\"a\":1})");
        assert_eq!(readable(&json!("plain")), "plain");
        assert_eq!(readable(&json!(1)), "1");
    }

    #[test]
    fn what_is_no_key_has_no_kind() {
        for key in ["", "llm", "llm:", "other:main:1", ":x"] {
            assert_eq!(kind_of(key), None, "{key}");
        }
    }
}
