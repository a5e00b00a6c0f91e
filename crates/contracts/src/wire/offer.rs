//! The tools of a request: functions, tools that the application runs, and tools that the provider runs.
//!
//! A tool that the application runs is governed by its name. A tool that the provider runs is governed by the name of
//! its type, because it happens before any verdict; so is a type that is not known.

use std::ops::Range;

use super::Wire;
use super::doc::At;

/// A tool and where it stands in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) name: String,
    /// Where the schema of its parameters stands, from the beginning of `tools` on: most are never looked at.
    pub(super) schema: Option<Range<usize>>,
    pub(super) hosted: bool,
    /// Its place in `tools`.
    pub(super) index: usize,
    /// Its place in its set, if it is a member of one.
    pub(super) member: Option<usize>,
}

/// Reads the tools; an error names the member that cannot be judged.
pub(super) fn read(wire: Wire, root: At<'_>) -> Result<Vec<Offer>, String> {
    let Some(tools) = root.get("tools") else {
        return Ok(Vec::new());
    };
    let items = tools.items().ok_or("tools")?;
    let start = tools.place().start;
    let mut offers = Vec::new();
    for (index, tool) in items.into_iter().enumerate() {
        if is_deferred(tool) {
            return Err("tools.defer_loading".to_owned());
        }
        let kind = match tool.get("type") {
            Some(kind) => kind.str().ok_or("tools")?.into_owned(),
            None => match wire {
                Wire::AnthropicMessages => "custom".to_owned(),
                Wire::OpenAiChat | Wire::OpenAiResponses => return Err("tools".to_owned()),
            },
        };
        if wire == Wire::OpenAiResponses && kind == "namespace" {
            members(tool, index, &mut offers)?;
            continue;
        }
        offers.push(one(wire, &kind, tool, index).ok_or("tools")?);
    }
    for place in offers.iter_mut().filter_map(|offer| offer.schema.as_mut()) {
        *place = place.start - start..place.end - start;
    }
    Ok(offers)
}

/// Tools that are looked up later are not in the list that is narrowed.
fn is_deferred(tool: At<'_>) -> bool {
    let asks = |at: At<'_>| {
        at.get("defer_loading")
            .is_some_and(|value| value.bool() != Some(false))
    };
    asks(tool) || tool.get("function").is_some_and(asks)
}

/// Members of a set are named after it.
fn members(set: At<'_>, index: usize, offers: &mut Vec<Offer>) -> Result<(), String> {
    let name = set.get("name").and_then(At::str).ok_or("tools")?;
    let tools = set.get("tools").and_then(At::items).ok_or("tools")?;
    for (place, tool) in tools.into_iter().enumerate() {
        if is_deferred(tool) {
            return Err("tools.defer_loading".to_owned());
        }
        let kind = tool.get("type").and_then(At::str).ok_or("tools")?;
        let mut offer = one(Wire::OpenAiResponses, &kind, tool, index).ok_or("tools")?;
        offer.name = format!("{name}.{}", offer.name);
        offer.member = Some(place);
        offers.push(offer);
    }
    Ok(())
}

fn one(wire: Wire, kind: &str, tool: At<'_>, index: usize) -> Option<Offer> {
    let named = |at: At<'_>, schema: &str| {
        let schema = at.get(schema).map(At::place);
        Some(Offer {
            name: at.get("name")?.str()?.into_owned(),
            schema,
            hosted: false,
            index,
            member: None,
        })
    };
    let by_type = |hosted| {
        Some(Offer {
            name: kind.to_owned(),
            schema: None,
            hosted,
            index,
            member: None,
        })
    };
    match (wire, kind) {
        (Wire::OpenAiChat, "function") => named(tool.get("function")?, "parameters"),
        (Wire::OpenAiChat, "custom") => named(tool.get("custom")?, ""),
        (Wire::OpenAiResponses, "function") => named(tool, "parameters"),
        (Wire::OpenAiResponses, "custom") => named(tool, ""),
        (Wire::OpenAiResponses, "local_shell" | "shell" | "apply_patch") => by_type(false),
        (Wire::OpenAiResponses, kind) if kind.starts_with("computer") => {
            let mut offer = by_type(false)?;
            "computer".clone_into(&mut offer.name);
            Some(offer)
        }
        (Wire::AnthropicMessages, "custom") => named(tool, "input_schema"),
        (Wire::AnthropicMessages, kind)
            if ["bash_", "text_editor_", "memory_", "computer_"]
                .iter()
                .any(|prefix| kind.starts_with(prefix)) =>
        {
            named(tool, "")
        }
        (Wire::OpenAiChat | Wire::OpenAiResponses | Wire::AnthropicMessages, _) => by_type(true),
    }
}
