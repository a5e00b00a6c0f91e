//! What of a finished run can be changed, and how people say what to put there.

use canon::{Integers, Value};
use domain::{Ask, Kind};
use serde::Serialize;
use serde_json::json;

use super::source::{LIFECYCLE_KEYS, Source};

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
    /// False when nothing was recorded: the run ended before.
    pub recorded: bool,
    /// What was recorded, when it is available.
    pub value: Option<Value>,
    /// The digest of what was recorded, where the log states it.
    pub value_sha256: Option<String>,
    /// True when the request of a replay gave it.
    pub overridden: bool,
}

/// Returns what a run asked for, its checkpoints and the times of its life, in the order of its log.
pub fn keys(source: &Source) -> Vec<Key> {
    let mut keys: Vec<(usize, Key)> = Vec::new();
    let mut add = |place: usize, key: String, recorded: bool, value: Option<Value>| {
        if let (Some(event), Some(kind)) = (source.event(place), kind_of(&key)) {
            let text = |name: &str| event.payload.get(name).and_then(Value::as_str);
            let digest = text("value_sha256").or_else(|| text("state_sha256"));
            let mark = event.replay.as_ref();
            let key = Key {
                key,
                kind,
                event_id: event.id.to_string(),
                sequence: place as u64 + 1,
                ok: recorded && text("outcome") != Some("error"),
                recorded,
                value,
                value_sha256: digest.map(str::to_owned),
                overridden: mark.is_some_and(|mark| mark.override_key.is_some())
                    && text("replay_note") != Some("refreshed"),
            };
            keys.push((place, key));
        }
    };
    for label in LIFECYCLE_KEYS {
        if let Some(place) = source.lifecycle_event(label) {
            let time = source.event(place).map(|event| json!(event.created_at));
            add(place, label.to_owned(), true, time);
        }
    }
    for (key, places) in source.effects() {
        match (places.recorded, places.requested) {
            (Some(place), _) => {
                let value = source.answer(place).map(|answer| answer.value);
                add(place, key.to_owned(), true, value);
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

/// Returns what somebody was asked for under a key.
pub fn question(source: &Source, key: &str) -> Option<Ask> {
    match source.kind(source.places(key).asked?)? {
        Kind::ToolApprovalRequired => Some(Ask::Approval),
        Kind::InputRequested => Some(Ask::Input),
        _ => None,
    }
}

/// Text that decides nothing, where a decision is asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected `approve` or `deny` for `{key}`, got `{text}`")]
pub struct NoDecision {
    key: String,
    text: String,
}

/// Returns the value that plain text means under a key: the answer of a model, what a tool prints, a decision or an
/// answer of somebody (`ask` says which was asked for), a time or a secret as it is; for the rest a JSON value if it is
/// one.
///
/// # Errors
/// An approval was asked for, and the text neither approves nor denies.
pub fn text_value(key: &str, text: &str, ask: Option<Ask>) -> Result<Value, NoDecision> {
    let json = || canon::read(text.as_bytes(), Integers::Safe).ok();
    Ok(match kind_of(key) {
        Some("llm_provider_response") => {
            json!({"choices": [{"message": {"role": "assistant", "content": text}}]})
        }
        Some("mcp_tool_return") => json!({"content": [{"type": "text", "text": text}]}),
        Some("tool_result") => json!({
            "exit_code": 0,
            "stdout": text,
            "stderr": "",
            "stdout_truncated": false,
            "stderr_truncated": false,
        }),
        Some("time" | "secret_value") => text.into(),
        Some("host_fact") if key.starts_with("host:approval:") => {
            let has =
                |value: &Value, names: &[&str]| names.iter().any(|name| value.get(name).is_some());
            let whole = |names: &[&str]| json().filter(|value| has(value, names));
            match (ask, decision(text)) {
                (Some(Ask::Input), _) => whole(&["text", "answer", "approved"])
                    .unwrap_or_else(|| json!({"approved": true, "text": text})),
                (_, Some(approved)) => json!({"approved": approved}),
                (Some(Ask::Approval), None) => whole(&["approved"]).ok_or_else(|| NoDecision {
                    key: key.to_owned(),
                    text: text.to_owned(),
                })?,
                (None, None) => json().unwrap_or_else(|| text.into()),
            }
        }
        _ => json().unwrap_or_else(|| text.into()),
    })
}

/// Reads a word that approves or denies.
fn decision(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "approve" | "approved" | "yes" | "true" => Some(true),
        "deny" | "denied" | "no" | "false" => Some(false),
        _ => None,
    }
}

/// Returns a value as people read it: what a model said and which tools it called, what a tool printed, or JSON.
pub fn readable(value: &Value) -> String {
    if let Some(message) = value.pointer("/choices/0/message") {
        return message_words(message);
    }
    if let (Some(stdout), Some(code)) = (value.get("stdout"), value.get("exit_code")) {
        return printed(stdout, value.get("stderr"), code);
    }
    match (texts(value), value) {
        (Some(text), _) => text,
        (None, Value::String(text)) => text.clone(),
        (None, other) => format!("{other:#}"),
    }
}

/// Returns a message of a model call as people read it: its words, then the tools that it calls.
pub fn message_words(message: &Value) -> String {
    let Value::Object(_) = message else {
        return readable(message);
    };
    let said = match message.get("content") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Null) | None => None,
        Some(other) => Some(texts(message).unwrap_or_else(|| other.to_string())),
    };
    let calls = message.get("tool_calls").and_then(Value::as_array);
    let calls = calls.into_iter().flatten().filter_map(|call| {
        let name = call.pointer("/function/name")?.as_str()?;
        let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
        Some(format!("calls {name}({})", arguments.unwrap_or_default()))
    });
    let said = said.into_iter().filter(|text| !text.is_empty());
    said.chain(calls).collect::<Vec<_>>().join("\n")
}

/// Returns the texts of a list of parts.
fn texts(value: &Value) -> Option<String> {
    let parts = value.get("content")?.as_array()?;
    let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
    let texts: Vec<&str> = texts.collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// Returns what a command left: what it printed, and what went wrong.
fn printed(stdout: &Value, stderr: Option<&Value>, code: &Value) -> String {
    let text = |value: &Value| match value {
        Value::String(text) => text.trim_end_matches('\n').to_owned(),
        other => other.to_string(),
    };
    let mut lines = vec![text(stdout)];
    lines.extend(
        stderr
            .map(text)
            .filter(|text| !text.is_empty())
            .map(|text| format!("stderr: {text}")),
    );
    if code != &json!(0) {
        lines.push(format!("exit code {code}"));
    }
    lines.retain(|line| !line.is_empty());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_what_the_key_takes() {
        let check = |key: &str, text: &str, expect: Value| {
            assert_eq!(text_value(key, text, None), Ok(expect), "{key}");
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
            json!({"exit_code": 0, "stdout": "a", "stderr": "", "stdout_truncated": false, "stderr_truncated": false}),
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
        for key in ["llm:main:1", "mcp:a:main:1", "host:tool.a:main:1"] {
            let said = text_value(key, "Hello", None).unwrap();
            assert_eq!(readable(&said), "Hello", "{key}");
        }
        let failed = json!({"exit_code": 2, "stdout": "half\n", "stderr": "no\n"});
        assert_eq!(readable(&failed), "half\nstderr: no\nexit code 2");
        let call = json!({"choices": [{"message": {"content": null, "tool_calls": [
            {"function": {"name": "add", "arguments": "{\"a\":1}"}}]}}]});
        assert_eq!(readable(&call), "calls add({\"a\":1})");
        assert_eq!(readable(&json!("plain")), "plain");
        assert_eq!(readable(&json!(1)), "1");
    }

    #[test]
    fn words_decide_an_approval_and_answer_a_question() {
        let value = |text: &str, ask: Option<Ask>| text_value("host:approval:1", text, ask);
        for (words, approved) in [
            (["approve", "approved", "yes", " True"], true),
            (["deny", "denied", "no", "false"], false),
        ] {
            for word in words {
                let expect = Ok(json!({"approved": approved}));
                assert_eq!(value(word, Some(Ask::Approval)), expect, "{word}");
                assert_eq!(value(word, None), expect, "{word}");
                let text = json!({"approved": true, "text": word});
                assert_eq!(value(word, Some(Ask::Input)), Ok(text), "{word}");
            }
        }
        let whole = json!({"approved": false, "reason": "late"});
        assert_eq!(value(&whole.to_string(), Some(Ask::Approval)), Ok(whole));
        for word in ["maybe", "{\"text\": \"yes\"}", "1"] {
            let error = value(word, Some(Ask::Approval)).unwrap_err();
            assert!(
                error.to_string().contains("expected `approve` or `deny`"),
                "{error}"
            );
        }
        let answer = json!({"answer": 7});
        assert_eq!(value(&answer.to_string(), Some(Ask::Input)), Ok(answer));
        let green = json!({"approved": true, "text": "green"});
        assert_eq!(value("green", Some(Ask::Input)), Ok(green));
    }

    #[test]
    fn what_is_no_key_has_no_kind() {
        for key in ["", "llm", "llm:", "other:main:1", ":x"] {
            assert_eq!(kind_of(key), None, "{key}");
        }
    }
}
