//! Answers from a file, for work without a network: demonstrations, tests, rehearsals.
//!
//! Invariant: an answer is a function of the effect's key and request. No call changes what a later one gets, so a
//! call that is repeated after a crash gets what it would have got.

use std::path::Path;
use std::time::Duration;

use canon::Value;
use runs::workflow::Effect;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::completion::{Completion, ToolCall};
use super::openai;

/// The largest file of answers.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// An alias bomb has more values.
const LIMITS: yaml::Limits = yaml::Limits {
    nodes_max: 20_000,
    depth_max: 128,
};
const MODEL: &str = "scripted-1";

/// The answers of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Script {
    #[serde(default = "model")]
    model: String,
    answers: Vec<Entry>,
}

fn model() -> String {
    MODEL.to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    when: When,
    answer: Option<String>,
    #[serde(default)]
    tool_calls: Vec<Call>,
    usage: Option<Counted>,
    error: Option<ScriptedError>,
    delay_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct When {
    key: Option<String>,
    contains: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    id: Option<String>,
    name: String,
    #[serde(default)]
    arguments: Value,
}

/// Whatever a provider could tell, so that a script can play one that counts wrongly.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Counted {
    prompt_tokens: Value,
    completion_tokens: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedError {
    code: String,
    #[serde(default)]
    message: String,
    status: Option<u16>,
    retry_after_ms: Option<u64>,
}

/// What a script says to a call.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) delay: Option<Duration>,
    pub(super) outcome: Result<Completion, Value>,
}

impl Script {
    pub(super) fn load(file: &Path) -> Result<Self, String> {
        let shown = file.display();
        let size = std::fs::metadata(file)
            .map_err(|error| format!("cannot read `{shown}`: {error}"))?
            .len();
        if size > FILE_BYTES_MAX {
            return Err(format!("`{shown}` is larger than {FILE_BYTES_MAX} bytes"));
        }
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read `{shown}`: {error}"))?;
        Self::parse(&text).map_err(|error| format!("`{shown}`: {error}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let script: Self = yaml::from_str(text, LIMITS).map_err(|error| error.to_string())?;
        for (index, entry) in script.answers.iter().enumerate() {
            let answers = entry.answer.is_some() || !entry.tool_calls.is_empty();
            if answers == entry.error.is_some() {
                return Err(format!(
                    "answer {} needs either `answer` or `tool_calls`, or `error`",
                    index + 1
                ));
            }
        }
        Ok(script)
    }

    pub(super) fn answer(&self, effect: &Effect) -> Answer {
        let last = effect
            .request
            .get("messages")
            .and_then(Value::as_array)
            .and_then(|messages| messages.last())
            .and_then(|message| message.get("content"));
        let last = match last {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        let holds = |when: &When| {
            when.key.as_ref().is_none_or(|key| *key == effect.key)
                && when
                    .contains
                    .as_ref()
                    .is_none_or(|part| last.contains(part))
        };
        let Some(entry) = self.answers.iter().find(|entry| holds(&entry.when)) else {
            return Answer {
                delay: None,
                outcome: Err(json!({
                    "code": "provider_refused",
                    "message": format!("the script has no answer for `{}`", effect.key),
                })),
            };
        };
        Answer {
            delay: entry.delay_ms.map(Duration::from_millis),
            outcome: match &entry.error {
                Some(told) => Err(told.value()),
                None => Ok(self.completion(entry, effect)),
            },
        }
    }

    fn completion(&self, entry: &Entry, effect: &Effect) -> Completion {
        let digest = effect.request_digest().hex();
        let short = digest.get(..16).unwrap_or_default();
        let model = effect.request.get("model").and_then(Value::as_str);
        let mut completion = Completion {
            id: format!("scripted-{short}"),
            model: model.unwrap_or(&self.model).to_owned(),
            calls: entry.tool_calls.iter().enumerate().map(call).collect(),
            ..Completion::default()
        };
        if let Some(counted) = &entry.usage {
            let told = serde_json::to_value(counted).unwrap_or_default();
            completion.count(&told, openai::read_usage(&told));
        }
        let reason = match completion.calls.is_empty() {
            true => "stop",
            false => "tool_calls",
        };
        completion.finish_reason = Some(reason.to_owned());
        completion.push_text(entry.answer.as_deref().unwrap_or_default());
        completion.end_text();
        completion
    }
}

fn call((index, call): (usize, &Call)) -> ToolCall {
    ToolCall {
        id: call.id.clone().unwrap_or_else(|| format!("call_{index}")),
        name: call.name.clone(),
        arguments: match &call.arguments {
            Value::Null => "{}".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        },
    }
}

impl ScriptedError {
    fn value(&self) -> Value {
        let mut value = json!({"code": self.code, "message": self.message});
        if let Some(members) = value.as_object_mut() {
            members.extend(
                self.status
                    .map(|status| ("status".to_owned(), status.into())),
            );
            members.extend(
                self.retry_after_ms
                    .map(|wait| ("retry_after_ms".to_owned(), wait.into())),
            );
        }
        value
    }
}
