//! Calls in places where none is read. Nobody judges them there, and some reader may still run them: the whole is refused.

use std::ops::Range;

use super::doc::At;
use super::reply::ReplyError;

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

/// Refuses calls outside of the places where they were read. `read` are calls, or lists of calls.
pub(super) fn check(root: At<'_>, read: &[Range<usize>]) -> Result<(), ReplyError> {
    Search { read, shown: &[] }.refuse(root)
}

/// As [`check`], for a response of the Responses format or an event with one.
///
/// It repeats what the request said: the tools and the form of the text. These are searched too, except for the schemas in
/// them. A schema may describe things that look like calls, and no reader can take one for a call: it would then run every
/// tool that has such a parameter as soon as it is offered.
///
/// `metadata` is the caller's own map of texts, with whatever names it likes: as long as it is only that, it has no item, and so no
/// call of this format.
pub(super) fn check_responses(root: At<'_>, read: &[Range<usize>]) -> Result<(), ReplyError> {
    let responses = [Some(root), root.get("response")];
    let metadata = responses
        .iter()
        .flatten()
        .filter_map(|at| at.get("metadata"));
    let is_flat = |at: &At<'_>| at.is_object() && at.members().all(|(_, value)| value.is_string());
    let flat = metadata.filter(is_flat).map(At::place);
    let read: Vec<Range<usize>> = read.iter().cloned().chain(flat).collect();
    let shown = definitions(root);
    Search {
        read: &read,
        shown: &shown,
    }
    .refuse(root)
}

/// Where a response, or an event with one or with an item of one, defines tools and forms.
fn definitions(root: At<'_>) -> Vec<Range<usize>> {
    let responses = [Some(root), root.get("response")];
    let mut shown = Vec::new();
    let mut items: Vec<At<'_>> = root.get("item").into_iter().collect();
    for response in responses.into_iter().flatten() {
        shown.extend(response.get("tools").map(At::place));
        let format = response.get("text").and_then(|text| text.get("format"));
        shown.extend(format.map(At::place));
        items.extend(
            response
                .get("output")
                .and_then(At::items)
                .unwrap_or_default(),
        );
    }
    let lists = items.into_iter().filter(|item| {
        let kind = item.get("type").and_then(At::str);
        matches!(
            kind.as_deref(),
            Some("mcp_list_tools" | "tool_search_output")
        )
    });
    shown.extend(lists.filter_map(|item| item.get("tools").map(At::place)));
    shown
}

/// A search for calls in a whole answer.
#[derive(Clone, Copy)]
struct Search<'s> {
    /// Calls that were read, and lists of them. Their arguments are judged with them; the rest of them is searched.
    read: &'s [Range<usize>],
    /// Definitions.
    shown: &'s [Range<usize>],
}

impl Search<'_> {
    fn refuse(self, root: At<'_>) -> Result<(), ReplyError> {
        if self.finds(root) {
            return Err(ReplyError::unreadable(
                "a call in a place where none is read",
            ));
        }
        Ok(())
    }

    fn finds(self, at: At<'_>) -> bool {
        if at.is_bare() || at.is_string() {
            return false;
        }
        if self.shown.contains(&at.place()) {
            return self.finds_in_definition(at);
        }
        let is_read = self.read.contains(&at.place());
        if let Some(items) = at.items() {
            let mut items = items.into_iter();
            return items.any(|item| match is_read {
                true => self.finds_beside(item),
                false => self.finds(item),
            });
        }
        if is_read {
            return self.finds_beside(at);
        }
        if has_call_type(at) || at.get("name").is_some() && has_arguments(at) {
            return true;
        }
        at.members().any(|(name, value)| match &*name {
            _ if value.is_null() => false,
            "tool_calls" if self.read.contains(&value.place()) => self.finds(value),
            "tool_calls" => value.items().is_none_or(|items| !items.is_empty()),
            "function_call" => true,
            "function" | "custom" if value.get("name").is_some() => true,
            _ => self.finds(value),
        })
    }

    /// Searches what stands in a call beside its name and its arguments, which may be one level below it.
    fn finds_beside(self, call: At<'_>) -> bool {
        // What holds a name and holds another holder is two calls.
        self.finds_around(call, |holder| self.finds_around(holder, |_| true))
    }

    fn finds_around(self, call: At<'_>, holder: impl Fn(At<'_>) -> bool) -> bool {
        call.members().any(|(name, value)| match &*name {
            "arguments" | "input" | "action" | "actions" | "operation" => false,
            "function" | "custom" if value.is_object() => holder(value),
            _ => self.finds(value),
        })
    }

    /// Searches a definition: it has a name, and no arguments.
    fn finds_in_definition(self, at: At<'_>) -> bool {
        if let Some(items) = at.items() {
            return items.into_iter().any(|item| self.finds_in_definition(item));
        }
        if has_call_type(at) || has_arguments(at) {
            return true;
        }
        at.members().any(|(name, value)| match &*name {
            "parameters" | "input_schema" | "output_schema" | "schema" => false,
            "tool_calls" | "function_call" => !value.is_null(),
            _ => self.finds_in_definition(value),
        })
    }
}

fn has_arguments(at: At<'_>) -> bool {
    at.get("arguments").is_some() || at.get("input").is_some()
}

fn has_call_type(at: At<'_>) -> bool {
    at.get("type").and_then(At::str).is_some_and(is_call_type)
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
