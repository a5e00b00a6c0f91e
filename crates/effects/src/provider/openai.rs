//! Chat completions, as OpenAI and many compatible services speak them.

use canon::{Map, Value};
use serde_json::json;

use super::completion::{Completion, NotACount, count};
use super::http::{Event, Failure};
use crate::config::ProviderConfig;
use crate::prices::Usage;

/// The data that ends a stream.
const DONE: &str = "[DONE]";

pub(super) fn headers(key: Option<&str>) -> Vec<(&'static str, String)> {
    key.map(|key| ("authorization", format!("Bearer {key}")))
        .into_iter()
        .collect()
}

/// The neutral request is this format already, but for who answers it.
pub(super) fn body(config: &ProviderConfig, request: &Value, model: &str) -> Value {
    let mut body: Map<String, Value> = request.as_object().cloned().unwrap_or_default();
    body.remove("provider");
    body.insert("model".to_owned(), model.into());
    if let Some(limit) = body.remove("max_tokens") {
        body.insert(config.max_tokens_member.clone(), limit);
    }
    if config.stream {
        body.insert("stream".to_owned(), true.into());
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    Value::Object(body)
}

pub(super) fn event(completion: &mut Completion, event: Event<'_>) -> Result<String, Failure> {
    let Event::Data(data) = event else {
        return match completion.finish_reason {
            Some(_) => Ok(String::new()),
            None => Err(Failure::stream_broken(
                "the stream ended before the answer was complete",
            )),
        };
    };
    if data == DONE.as_bytes() {
        return Ok(String::new());
    }
    let chunk = super::http::json(data)?;
    if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
        return Err(Failure::provider_error(None, error));
    }
    read_envelope(completion, &chunk);
    let Some(choice) = chunk.pointer("/choices/0") else {
        return Ok(String::new());
    };
    if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
        completion.finish_reason = Some(reason.to_owned());
    }
    read_calls(completion, choice.pointer("/delta/tool_calls"))?;
    Ok(completion.push_text(&text_of(choice.pointer("/delta/content"))))
}

pub(super) fn whole(completion: &mut Completion, value: &Value) -> Result<(), Failure> {
    read_envelope(completion, value);
    let choice = value
        .pointer("/choices/0")
        .filter(|choice| choice.get("message").is_some_and(Value::is_object))
        .ok_or_else(|| Failure::unreadable("the answer has no message"))?;
    completion.finish_reason = choice
        .get("finish_reason")
        .and_then(Value::as_str)
        .map(str::to_owned);
    read_calls(completion, choice.pointer("/message/tool_calls"))?;
    completion.push_text(&text_of(choice.pointer("/message/content")));
    Ok(())
}

fn read_envelope(completion: &mut Completion, value: &Value) {
    for (member, place) in [("id", &mut completion.id), ("model", &mut completion.model)] {
        if let Some(text) = value.get(member).and_then(Value::as_str)
            && !text.is_empty()
        {
            text.clone_into(place);
        }
    }
    if let Some(usage) = value.get("usage").filter(|usage| usage.is_object()) {
        completion.count(usage, read_usage(usage));
    }
}

pub(super) fn read_usage(usage: &Value) -> Result<Option<Usage>, NotACount> {
    let input = count(usage, "/prompt_tokens")?;
    let output = count(usage, "/completion_tokens")?;
    let cached = count(usage, "/prompt_tokens_details/cached_tokens")?;
    let (Some(input), Some(output)) = (input, output) else {
        return Ok(None);
    };
    Ok(Some(Usage {
        input,
        output,
        cached: cached.unwrap_or(0),
        cache_writes: 0,
    }))
}

/// Text is a string or a list of parts. Parts that are not text, such as reasoning, are left out.
fn text_of(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .filter(|part| part.get("type").and_then(Value::as_str) == Some("text"))
            .filter_map(|part| part.get("text").and_then(Value::as_str))
            .collect(),
        _ => String::new(),
    }
}

/// Takes calls whole or in pieces: the name comes once, the arguments bit by bit.
fn read_calls(completion: &mut Completion, calls: Option<&Value>) -> Result<(), Failure> {
    let calls = calls
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    for (place, piece) in calls.iter().enumerate() {
        let index = match piece.get("index").and_then(Value::as_u64) {
            Some(index) => usize::try_from(index).unwrap_or(usize::MAX),
            None => place,
        };
        let text = |path: &str| {
            piece
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let call = completion
            .call_at(index)
            .ok_or_else(|| Failure::unreadable("the tool calls are out of order"))?;
        call.id.push_str(text("/id"));
        call.name.push_str(text("/function/name"));
        match piece.pointer("/function/arguments") {
            Some(Value::String(arguments)) => call.arguments.push_str(arguments),
            // Some compatible services send the object itself.
            Some(other @ Value::Object(_)) => call.arguments.push_str(&other.to_string()),
            _ => {}
        }
    }
    Ok(())
}
