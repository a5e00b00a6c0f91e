//! What a request says about calling tools.

use super::Wire;
use super::doc::At;
use crate::request::ToolChoice;

/// Reads the choice; nothing when it has a form that cannot be judged.
pub(super) fn read(wire: Wire, root: At<'_>) -> Option<ToolChoice> {
    let Some(choice) = root.get("tool_choice") else {
        return Some(ToolChoice::Auto);
    };
    match wire {
        Wire::OpenAiChat | Wire::OpenAiResponses => open_ai(wire, choice),
        Wire::AnthropicMessages => match choice.get("type")?.str()?.as_ref() {
            "auto" => Some(ToolChoice::Auto),
            "none" => Some(ToolChoice::None),
            "any" => Some(ToolChoice::Required),
            "tool" => Some(ToolChoice::Named(choice.get("name")?.str()?.into_owned())),
            _ => None,
        },
    }
}

fn open_ai(wire: Wire, choice: At<'_>) -> Option<ToolChoice> {
    if let Some(word) = choice.str() {
        return match word.as_ref() {
            "auto" => Some(ToolChoice::Auto),
            "none" => Some(ToolChoice::None),
            "required" => Some(ToolChoice::Required),
            _ => None,
        };
    }
    if choice.get("type")?.str()? != "allowed_tools" {
        return Some(ToolChoice::Named(named(wire, choice)?));
    }
    let tools = list(wire, choice)?.items()?;
    let names: Option<Vec<String>> = tools.into_iter().map(|tool| named(wire, tool)).collect();
    Some(ToolChoice::AllowedOnly(names?))
}

/// Returns the list of `allowed_tools`.
pub(super) fn list(wire: Wire, choice: At<'_>) -> Option<At<'_>> {
    match wire {
        Wire::OpenAiChat => choice.get("allowed_tools")?.get("tools"),
        Wire::OpenAiResponses => choice.get("tools"),
        Wire::AnthropicMessages => None,
    }
}

/// Returns the name of the tool that an entry means: its own, or that of its type.
pub(super) fn named(wire: Wire, entry: At<'_>) -> Option<String> {
    let kind = entry.get("type")?.str()?.into_owned();
    let own = ["function", "custom"].contains(&kind.as_str());
    if !own {
        let is_computer = kind.starts_with("computer");
        return Some(if is_computer {
            "computer".to_owned()
        } else {
            kind
        });
    }
    let holder = match wire {
        Wire::OpenAiChat => entry.get(&kind)?,
        Wire::OpenAiResponses | Wire::AnthropicMessages => entry,
    };
    let name = holder.get("name")?.str()?.into_owned();
    let set = entry.get("namespace").and_then(At::str);
    Some(set.map_or(name.clone(), |set| format!("{set}.{name}")))
}

/// Says whether a list of allowed tools makes the model call one of them.
pub(super) fn mode_is_required(wire: Wire, root: At<'_>) -> bool {
    let mode = root.get("tool_choice").and_then(|choice| {
        let holder = match wire {
            Wire::OpenAiChat => choice.get("allowed_tools")?,
            Wire::OpenAiResponses | Wire::AnthropicMessages => choice,
        };
        holder.get("mode")?.str()
    });
    mode.as_deref() == Some("required")
}
