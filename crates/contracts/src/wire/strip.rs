//! Taking calls out of a response that is not a stream.

use std::collections::BTreeSet;

use super::Wire;
use super::doc::{At, Doc, Edits};
use super::reply::{ReplyEnd, substitute, text_of};

/// Returns the response without the calls at these places among its calls.
pub(super) fn body(
    wire: Wire,
    doc: &Doc,
    places: &[usize],
    removed: &[usize],
    end: Option<ReplyEnd>,
) -> String {
    let gone: BTreeSet<usize> = removed
        .iter()
        .filter_map(|call| places.get(*call).copied())
        .collect();
    let mut edits = Edits::default();
    match wire {
        Wire::OpenAiChat => chat(doc.root(), &mut edits, &gone, end),
        Wire::OpenAiResponses => responses(doc.root(), &mut edits, &gone, end),
        Wire::AnthropicMessages => messages(doc.root(), &mut edits, &gone, end),
    }
    edits.apply(doc.text())
}

fn chat(root: At<'_>, edits: &mut Edits, gone: &BTreeSet<usize>, end: Option<ReplyEnd>) {
    let choices = root.get("choices").and_then(At::items).unwrap_or_default();
    let Some((choice, message)) = choices
        .first()
        .and_then(|choice| Some((*choice, choice.get("message")?)))
    else {
        return;
    };
    let Some(end) = end else {
        let calls = message.get("tool_calls").and_then(At::items);
        edits.remove(&spans(&calls.unwrap_or_default()), |index| {
            gone.contains(&index)
        });
        return;
    };
    let members = message.member_places();
    let places: Vec<_> = members.iter().map(|(_, place)| place.clone()).collect();
    let name = |index: usize| members.get(index).map(|(name, _)| name.as_str());
    edits.remove(&places, |index| name(index) == Some("tool_calls"));
    match choice.member("finish_reason") {
        Some(reason) => edits.replace(reason.place(), "\"stop\""),
        None => edits.add_member(choice, "finish_reason", "\"stop\""),
    }
    if end == ReplyEnd::Substitute {
        match message.member("content") {
            Some(content) => edits.replace(content.place(), substitute()),
            // A message always has a role beside its calls; were they its only member, no comma may follow.
            None => {
                let comma = if members.len() > 1 { "," } else { "" };
                let text = format!("\"content\":{}{comma}", substitute());
                edits.insert(message.place().start + 1, text);
            }
        }
    }
}

fn messages(root: At<'_>, edits: &mut Edits, gone: &BTreeSet<usize>, end: Option<ReplyEnd>) {
    let blocks = root.get("content").and_then(At::items).unwrap_or_default();
    edits.remove(&spans(&blocks), |index| gone.contains(&index));
    let Some(end) = end else {
        return;
    };
    match root.member("stop_reason") {
        Some(reason) => edits.replace(reason.place(), "\"end_turn\""),
        None => edits.add_member(root, "stop_reason", "\"end_turn\""),
    }
    if end == ReplyEnd::Substitute
        && let Some(list) = root.get("content")
    {
        let comma = if gone.len() < blocks.len() { "," } else { "" };
        let block = format!(r#"{comma}{{"type":"text","text":{}}}"#, substitute());
        edits.insert(list.place().end - 1, block);
    }
}

/// Says which items go: the calls, and a piece of reasoning directly before one.
pub(super) fn with_reasoning(items: &[At<'_>], calls: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut gone = calls.clone();
    for call in calls {
        let before = call.checked_sub(1).and_then(|index| items.get(index));
        let is_reasoning = before.and_then(|item| text_of(*item, "type"));
        if is_reasoning.as_deref() == Some("reasoning") {
            gone.insert(call - 1);
        }
    }
    gone
}

/// Changes a response object of the Responses format, wherever it stands. Its status stays: without a call,
/// `completed` is the word for a normal stop, and a response that was cut off is still one.
pub(super) fn responses(
    root: At<'_>,
    edits: &mut Edits,
    calls: &BTreeSet<usize>,
    end: Option<ReplyEnd>,
) {
    let Some(list) = root.get("output") else {
        return;
    };
    let items = list.items().unwrap_or_default();
    let gone = with_reasoning(&items, calls);
    edits.remove(&spans(&items), |index| gone.contains(&index));
    if end == Some(ReplyEnd::Substitute) {
        let comma = if gone.len() < items.len() { "," } else { "" };
        let item = format!("{comma}{}", substitute_item("completed"));
        edits.insert(list.place().end - 1, item);
    }
}

/// The message that stands in for a response of which nothing is left.
pub(super) fn substitute_item(status: &str) -> String {
    let content = match status {
        "completed" => format!("[{}]", substitute_part(&substitute())),
        _ => "[]".to_owned(),
    };
    format!(
        r#"{{"id":"msg_substitute","type":"message","status":"{status}","role":"assistant","content":{content}}}"#
    )
}

pub(super) fn substitute_part(text: &str) -> String {
    format!(r#"{{"type":"output_text","annotations":[],"text":{text}}}"#)
}

fn spans(items: &[At<'_>]) -> Vec<std::ops::Range<usize>> {
    items.iter().map(|item| item.place()).collect()
}
