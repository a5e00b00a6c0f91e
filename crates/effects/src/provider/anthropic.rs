//! Messages, as Anthropic speaks them.

use canon::{Map, Value};
use serde_json::json;

use super::completion::{Completion, NotACount, ToolCall, count, total};
use super::http::{Event, Failure};
use crate::config::ProviderConfig;
use crate::prices::Usage;

const VERSION: &str = "2023-06-01";

pub(super) fn headers(key: Option<&str>) -> Vec<(&'static str, String)> {
    let mut headers = vec![("anthropic-version", VERSION.to_owned())];
    headers.extend(key.map(|key| ("x-api-key", key.to_owned())));
    headers
}

pub(super) fn body(config: &ProviderConfig, request: &Value, model: &str) -> Value {
    let mut body = Map::new();
    body.insert("model".to_owned(), model.into());
    let limit = request.get("max_tokens").filter(|limit| !limit.is_null());
    let limit = limit.cloned().unwrap_or(config.max_tokens_default.into());
    body.insert("max_tokens".to_owned(), limit);
    if let Some(temperature) = request.get("temperature").filter(|value| !value.is_null()) {
        body.insert("temperature".to_owned(), temperature.clone());
    }
    let all = request
        .get("messages")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let system: Vec<&str> = all
        .iter()
        .filter(|message| role_of(message) == "system")
        .filter_map(|message| message.get("content").and_then(Value::as_str))
        .collect();
    if !system.is_empty() {
        body.insert("system".to_owned(), system.join("\n\n").into());
    }
    body.insert("messages".to_owned(), messages(all));
    let tools = request.get("tools").and_then(Value::as_array);
    if let Some(tools) = tools.filter(|tools| !tools.is_empty()) {
        let tools = tools.iter().filter_map(|tool| tool.get("function")).map(|function| {
            let parameters = function.get("parameters").cloned();
            json!({
                "name": function.get("name"),
                "description": function.get("description").and_then(Value::as_str).unwrap_or_default(),
                "input_schema": parameters.unwrap_or_else(|| json!({"type": "object"})),
            })
        });
        body.insert("tools".to_owned(), tools.collect());
    }
    if config.stream {
        body.insert("stream".to_owned(), true.into());
    }
    Value::Object(body)
}

fn role_of(message: &Value) -> &str {
    message
        .get("role")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Two roles take turns here; results of tools are said by the user, all of one turn together.
fn messages(all: &[Value]) -> Value {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in all {
        let role = match role_of(message) {
            "system" => continue,
            "assistant" => "assistant",
            _ => "user",
        };
        let blocks = blocks(message);
        match turns.last_mut() {
            Some((last, turn)) if *last == role => turn.extend(blocks),
            _ => turns.push((role, blocks)),
        }
    }
    turns
        .into_iter()
        .filter(|(_, blocks)| !blocks.is_empty())
        .map(|(role, blocks)| json!({"role": role, "content": blocks}))
        .collect()
}

fn blocks(message: &Value) -> Vec<Value> {
    let text = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    };
    if role_of(message) == "tool" {
        let id = message.get("tool_call_id");
        return vec![json!({"type": "tool_result", "tool_use_id": id, "content": text})];
    }
    let mut blocks = Vec::new();
    if !text.is_empty() {
        blocks.push(json!({"type": "text", "text": text}));
    }
    let calls = message.get("tool_calls").and_then(Value::as_array);
    for call in calls.into_iter().flatten() {
        let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
        let input = arguments
            .and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok())
            .map(Value::Object)
            // The format has no place for what a model wrote wrongly, but the model should see it.
            .unwrap_or_else(|| json!({"malformed_arguments": arguments}));
        let name = call.pointer("/function/name");
        blocks
            .push(json!({"type": "tool_use", "id": call.get("id"), "name": name, "input": input}));
    }
    blocks
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
    let event = super::http::json(data)?;
    let text = |path: &str| {
        event
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    match text("/type") {
        "message_start" => {
            text("/message/id").clone_into(&mut completion.id);
            text("/message/model").clone_into(&mut completion.model);
            read_usage(completion, event.pointer("/message/usage"));
        }
        "content_block_start" => match text("/content_block/type") {
            "text" => return Ok(completion.push_text(text("/content_block/text"))),
            "tool_use" => completion.calls.push(ToolCall {
                id: text("/content_block/id").to_owned(),
                name: text("/content_block/name").to_owned(),
                arguments: String::new(),
            }),
            // Reasoning and whatever else comes one day.
            _ => {}
        },
        "content_block_delta" => match text("/delta/type") {
            "text_delta" => return Ok(completion.push_text(text("/delta/text"))),
            "input_json_delta" => {
                let call = completion
                    .calls
                    .last_mut()
                    .ok_or_else(|| Failure::unreadable("arguments came before their tool call"))?;
                call.arguments.push_str(text("/delta/partial_json"));
            }
            _ => {}
        },
        "message_delta" => {
            let reason = text("/delta/stop_reason");
            if !reason.is_empty() {
                completion.finish_reason = Some(finish_reason(reason));
            }
            read_usage(completion, event.get("usage"));
        }
        "message_stop" => end_calls(completion),
        "error" => {
            let error = event.get("error").unwrap_or(&Value::Null);
            return Err(Failure::provider_error(None, error));
        }
        // `ping`, the end of a block, and events that are added one day.
        _ => {}
    }
    Ok(String::new())
}

pub(super) fn whole(completion: &mut Completion, value: &Value) -> Result<(), Failure> {
    let text = |path: &str| {
        value
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let content = value
        .get("content")
        .and_then(Value::as_array)
        .ok_or_else(|| Failure::unreadable("the answer has no content"))?;
    text("/id").clone_into(&mut completion.id);
    text("/model").clone_into(&mut completion.model);
    completion.finish_reason = Some(finish_reason(text("/stop_reason")));
    read_usage(completion, value.get("usage"));
    for block in content {
        let text = |member: &str| {
            block
                .get(member)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        match text("type") {
            "text" => {
                completion.push_text(text("text"));
            }
            "tool_use" => completion.calls.push(ToolCall {
                id: text("id").to_owned(),
                name: text("name").to_owned(),
                arguments: block.get("input").map(Value::to_string).unwrap_or_default(),
            }),
            _ => {}
        }
    }
    end_calls(completion);
    Ok(())
}

/// A tool without arguments gets none in pieces.
fn end_calls(completion: &mut Completion) {
    for call in &mut completion.calls {
        if call.arguments.is_empty() {
            "{}".clone_into(&mut call.arguments);
        }
    }
}

/// Counts come at the beginning and again at the end; cached tokens are counted apart.
fn read_usage(completion: &mut Completion, usage: Option<&Value>) {
    if let Some(usage) = usage.filter(|usage| usage.is_object()) {
        let counted = counted(completion.usage, usage);
        completion.count(usage, counted);
    }
}

fn counted(before: Option<Usage>, usage: &Value) -> Result<Option<Usage>, NotACount> {
    let mut counted = before.unwrap_or_default();
    let fresh = count(usage, "/input_tokens")?;
    let cached = count(usage, "/cache_read_input_tokens")?;
    let cache_writes = count(usage, "/cache_creation_input_tokens")?;
    if let Some(fresh) = fresh {
        counted.cached = cached.unwrap_or(0);
        counted.cache_writes = cache_writes.unwrap_or(0);
        counted.input = total([fresh, counted.cached, counted.cache_writes])?;
    }
    let output = count(usage, "/output_tokens")?;
    counted.output = output.unwrap_or(counted.output);
    Ok((fresh.is_some() || output.is_some()).then_some(counted))
}

fn finish_reason(stop_reason: &str) -> String {
    match stop_reason {
        "end_turn" | "stop_sequence" | "" => "stop",
        "max_tokens" => "length",
        "tool_use" => "tool_calls",
        "refusal" => "content_filter",
        other => other,
    }
    .to_owned()
}
