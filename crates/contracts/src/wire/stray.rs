//! Calls in places where none is read. Nobody judges them there, and some reader may still run them: the whole is refused.

use std::ops::Range;

use super::doc::At;
use super::reply::ReplyError;

/// Members that show what was offered or asked, or that describe a form: nothing in them is proposed.
const SHOWN: [&str; 8] = [
    "tools",
    "tool_choice",
    "instructions",
    "prompt",
    "metadata",
    "parameters",
    "input_schema",
    "schema",
];

/// Events of the Responses format that have no call in them, or pieces of one that are held against the end.
const EVENTS: [&str; 57] = [
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.compaction.compacting",
    "response.output_item.added",
    "response.output_item.done",
    "response.content_part.added",
    "response.content_part.done",
    "response.output_text.delta",
    "response.output_text.done",
    "response.output_text.annotation.added",
    "response.refusal.delta",
    "response.refusal.done",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_part.done",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "response.audio.delta",
    "response.audio.done",
    "response.audio.transcript.delta",
    "response.audio.transcript.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.shell_call_command.added",
    "response.shell_call_command.delta",
    "response.shell_call_command.done",
    "response.shell_call_output_content.delta",
    "response.shell_call_output_content.done",
    "response.apply_patch_call_operation_diff.delta",
    "response.apply_patch_call_operation_diff.done",
    "response.code_interpreter_call.in_progress",
    "response.code_interpreter_call.interpreting",
    "response.code_interpreter_call.completed",
    "response.code_interpreter_call_code.delta",
    "response.code_interpreter_call_code.done",
    "response.file_search_call.in_progress",
    "response.file_search_call.searching",
    "response.file_search_call.completed",
    "response.web_search_call.in_progress",
    "response.web_search_call.searching",
    "response.web_search_call.completed",
    "response.image_generation_call.in_progress",
    "response.image_generation_call.generating",
    "response.image_generation_call.partial_image",
    "response.image_generation_call.completed",
    "response.mcp_call.in_progress",
    "response.mcp_call.completed",
    "response.mcp_call.failed",
    "response.mcp_call_arguments.delta",
    "response.mcp_call_arguments.done",
    "response.mcp_list_tools.in_progress",
    "response.mcp_list_tools.completed",
    "response.mcp_list_tools.failed",
];

/// Refuses an event of the Responses format that nobody knows, unless it says nothing.
pub(super) fn check_event(root: At<'_>, kind: &str) -> Result<(), ReplyError> {
    if EVENTS.contains(&kind) || says_nothing(root) {
        return Ok(());
    }
    Err(unknown(kind))
}

/// The refusal of an event or a piece of a type that nobody knows.
pub(super) fn unknown(kind: &str) -> ReplyError {
    ReplyError::unreadable(&format!("`{kind}` is not known, and it says something"))
}

/// Says whether an object holds nothing but its type, numbers and the like: too little for a call.
pub(super) fn says_nothing(at: At<'_>) -> bool {
    at.members()
        .all(|(name, value)| name == "type" || value.is_bare())
}

/// Refuses calls outside of the places where they were read.
pub(super) fn check(root: At<'_>, read: &[Range<usize>]) -> Result<(), ReplyError> {
    if has_call(root, read) {
        return Err(ReplyError::unreadable(
            "a call in a place where none is read",
        ));
    }
    Ok(())
}

fn has_call(at: At<'_>, read: &[Range<usize>]) -> bool {
    if at.is_bare() || at.is_string() || read.contains(&at.place()) {
        return false;
    }
    if let Some(items) = at.items() {
        return items.into_iter().any(|item| has_call(item, read));
    }
    if at.get("type").and_then(At::str).is_some_and(is_call_type) {
        return true;
    }
    at.members().any(|(name, value)| match &*name {
        _ if value.is_null() || SHOWN.contains(&&*name) => false,
        "tool_calls" if read.contains(&value.place()) => false,
        "tool_calls" => value.items().is_none_or(|items| !items.is_empty()),
        "function_call" => true,
        "function" | "custom" => value.get("name").is_some(),
        _ => has_call(value, read),
    })
}

fn is_call_type(kind: std::borrow::Cow<'_, str>) -> bool {
    kind.ends_with("_call") || kind.ends_with("tool_use") || kind == "mcp_approval_request"
}

/// Refuses a call of which two readers could take different members for its name or its arguments.
pub(super) fn check_readings(item: At<'_>) -> Result<(), ReplyError> {
    let kind = item.get("type").and_then(At::str).unwrap_or_default();
    let others: &[&str] = match &*kind {
        "function_call" => &["function", "custom", "input", "parsed_arguments"],
        "custom_tool_call" | "tool_use" => &["function", "custom", "arguments"],
        _ => &["function", "custom"],
    };
    if others.iter().any(|name| item.get(name).is_some()) {
        return Err(two_readings());
    }
    Ok(())
}

/// As [`check_readings`], for a call of the chat format or a piece of one.
pub(super) fn check_chat_readings(item: At<'_>) -> Result<(), ReplyError> {
    let (function, custom) = (item.get("function"), item.get("custom"));
    let has = |at: At<'_>, names: &[&str]| names.iter().any(|name| at.get(name).is_some());
    let is_double = function.is_some() && custom.is_some()
        || has(item, &["name", "arguments", "input", "parsed_arguments"])
        || function.is_some_and(|holder| has(holder, &["input", "parsed_arguments"]))
        || custom.is_some_and(|holder| has(holder, &["arguments", "parsed_arguments"]));
    if is_double {
        return Err(two_readings());
    }
    Ok(())
}

fn two_readings() -> ReplyError {
    ReplyError::unreadable("a call with two names or two sets of arguments")
}
