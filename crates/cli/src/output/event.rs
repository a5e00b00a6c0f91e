//! One event as one readable line.

use serde_json::Value;

use super::{Output, Paint, shorten};
use crate::client::Event;

/// Room for the longest kind that we write, so that details line up.
pub(crate) const KIND_WIDTH: usize = 25;

/// Returns `time  kind  detail`, as long as the detail is or cut to a terminal's width.
pub(crate) fn event_line(out: &Output, event: &Event, width: Option<usize>) -> String {
    let kind = shorten(&event.kind, 60);
    let padding = KIND_WIDTH.saturating_sub(kind.chars().count());
    let detail = detail(&event.kind, &event.payload);
    let before = 12 + 2 + KIND_WIDTH.max(kind.chars().count()) + 2;
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(before).max(20));
    let detail = shorten(&detail, room);
    let painted = match paint(event) {
        Some(paint) => out.paint(paint, &kind),
        None => kind,
    };
    let line = format!(
        "{}  {painted}{:padding$}  {detail}",
        out.paint(Paint::Quiet, &clock(&event.created_at)),
        ""
    );
    line.trim_end().to_owned()
}

/// Returns the time of day of an RFC 3339 time, to the millisecond.
fn clock(time: &str) -> String {
    match time.split_once('T') {
        Some((_, rest)) => shorten(rest.trim_end_matches('Z'), 64)
            .chars()
            .take(12)
            .collect(),
        None => shorten(time, 12),
    }
}

fn paint(event: &Event) -> Option<Paint> {
    match event.kind.as_str() {
        "task.completed" | "tool.approved" => Some(Paint::Good),
        "task.failed" | "task.canceled" | "tool.denied" | "error" => Some(Paint::Bad),
        "task.input_required" | "task.auth_required" | "tool.approval_required" => {
            Some(Paint::Waiting)
        }
        kind if kind.starts_with("vendor.") => Some(Paint::Quiet),
        _ => None,
    }
}

fn detail(kind: &str, payload: &Value) -> String {
    let text = |pointer: &str| {
        payload
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    match kind {
        "task.submitted" | "task.started" => format!("workflow {}", text("/workflow")),
        "task.status_changed" => {
            let reason = text("/reason");
            let note = if reason.is_empty() {
                String::new()
            } else {
                format!(" ({reason})")
            };
            format!("{} → {}{note}", text("/from"), text("/to"))
        }
        "user.message" | "agent.message" => format!("“{}”", spoken(payload)),
        "session.message_appended" => text("/role").to_owned(),
        "vendor.effect_requested" => format!("{}  {}", text("/effect_key"), text("/kind")),
        "vendor.effect_recorded" => recorded(payload),
        "vendor.input_requested" => text("/request/question").to_owned(),
        // Whoever is asked must see what for.
        "tool.approval_required" => {
            let input = payload.pointer("/action/input").map(Value::to_string);
            format!("{}  {}", text("/action_name"), input.unwrap_or_default())
        }
        "user.input_submitted" | "user.tool_confirmation" => match payload.get("approved") {
            Some(Value::Bool(false)) => with_reason("denied", text("/remarks/reason")),
            Some(Value::Bool(true)) if kind == "user.tool_confirmation" => {
                with_reason("approved", text("/remarks/reason"))
            }
            _ => "answered".to_owned(),
        },
        "vendor.task_imported" => {
            let bytes = payload.get("bundle_bytes").map(Value::to_string);
            let bytes = bytes.unwrap_or_default();
            format!("a bundle of {bytes} bytes, {}", text("/bundle_sha256"))
        }
        "vendor.receipt_imported" => text("/receipt_id").to_owned(),
        "vendor.trust_recorded" => format!("{}  {}", text("/action"), text("/decision")),
        "receipt.issued" => text("/receipt_id").to_owned(),
        "agent.tool_use" => {
            let input = payload
                .get("input")
                .map(Value::to_string)
                .unwrap_or_default();
            format!("{}  {input}", text("/name"))
        }
        "tool.failed" => text("/name").to_owned(),
        "agent.tool_result" => format!("{}  {}", text("/name"), text("/status")),
        "vendor.message_delta" => format!("“{}”", text("/text")),
        // The number alone: the rest of the id is the task's.
        "vendor.checkpoint_created" => {
            let id = text("/checkpoint_id");
            format!("checkpoint {}", id.rsplit('_').next().unwrap_or(id))
        }
        "replay.event_replayed" => text("/original_event").to_owned(),
        "user.cancel_requested" => text("/reason").to_owned(),
        // The message before it has the words.
        "vendor.outcome_recorded" => text("/status").to_owned(),
        "task.failed" => format!("{}: {}", text("/failure/code"), text("/failure/message")),
        // Their neighbours tell the same in words.
        "task.completed"
        | "task.canceled"
        | "task.input_required"
        | "task.auth_required"
        | "tool.approved" => String::new(),
        // Where a person said no, a neighbour tells it; contracts and tiers say why here.
        "tool.denied" => text("/reason").to_owned(),
        "vendor.contract_decided" => decided(payload),
        "error" => format!("{}: {}", text("/error/code"), text("/error/message")),
        // A kind that this program does not know is still shown.
        _ => match payload.as_object() {
            Some(members) if members.is_empty() => String::new(),
            _ => payload.to_string(),
        },
    }
}

/// True for an event whose words stand in another one: pieces of an answer that follows whole.
pub(crate) fn is_told_elsewhere(event: &Event) -> bool {
    event.kind == "vendor.message_delta"
}

fn with_reason(word: &str, reason: &str) -> String {
    match reason {
        "" => word.to_owned(),
        reason => format!("{word}: {reason}"),
    }
}

/// Says what an effect gave. The last answer of a model is told by the message that follows it; others only here.
fn recorded(payload: &Value) -> String {
    let text = |name: &str| {
        payload
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let line = format!("{}  {}", text("effect_key"), text("outcome"));
    let value = payload.get("value").unwrap_or(&Value::Null);
    let calls = value.pointer("/choices/0/message/tool_calls");
    match (calls.and_then(Value::as_array), text("outcome")) {
        (Some(calls), _) if !calls.is_empty() => {
            format!("{line}  {}", runs::replay::readable(value))
        }
        (_, "error") => match value.get("message").and_then(Value::as_str) {
            Some(message) => format!("{line}  {message}"),
            None => line,
        },
        _ => line,
    }
}

/// What contracts decided: which tools the model does not see, which calls are made and which are not.
fn decided(payload: &Value) -> String {
    let list = |pointer: &str| payload.pointer(pointer).and_then(Value::as_array);
    let text = |value: &Value, name: &str| {
        let found = value.get(name).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    if let Some(removed) = list("/narrowing/removed") {
        if removed.is_empty() {
            return "every tool is offered".to_owned();
        }
        let removed = removed
            .iter()
            .map(|tool| format!("{} ({})", text(tool, "tool"), text(tool, "reason")));
        return format!("not offered: {}", removed.collect::<Vec<_>>().join(", "));
    }
    if let Some(questions) = list("/questions") {
        let tools: Vec<String> = questions
            .iter()
            .map(|asked| text(asked, "tool_name"))
            .collect();
        return format!("asks about {}", tools.join(", "));
    }
    if let Some(execution) = payload.get("execution") {
        let (tool, reason) = (text(execution, "tool_name"), text(execution, "reason"));
        return format!("blocked before it ran: {tool} ({reason})");
    }
    let action = payload.pointer("/decision/action").and_then(Value::as_str);
    let calls = list("/decision/calls").into_iter().flatten().map(|call| {
        let reason = text(call, "reason");
        match reason.is_empty() {
            true => format!("{} {}", text(call, "verdict"), text(call, "tool_name")),
            false => format!(
                "{} {} ({reason})",
                text(call, "verdict"),
                text(call, "tool_name")
            ),
        }
    });
    let calls: Vec<String> = calls.collect();
    match calls.is_empty() {
        true => "the answer calls no tool".to_owned(),
        false => format!("{}: {}", action.unwrap_or_default(), calls.join(", ")),
    }
}

/// Returns the public text of a Message's parts.
fn spoken(payload: &Value) -> String {
    let parts = payload.get("parts").and_then(Value::as_array);
    let texts = parts
        .into_iter()
        .flatten()
        .filter_map(|part| part.get("text")?.as_str());
    texts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(kind: &str, payload: Value) -> String {
        let out = Output {
            colour: false,
            closed: false,
        };
        let event = Event {
            id: "event_1".to_owned(),
            kind: kind.to_owned(),
            created_at: "2026-11-15T09:56:39.123456Z".to_owned(),
            payload,
            raw: Value::Null,
        };
        event_line(&out, &event, None)
    }

    #[test]
    fn a_line_is_as_wide_as_the_terminal_and_uncut_without_one() {
        let out = Output {
            colour: false,
            closed: false,
        };
        let long = "word ".repeat(100);
        let event = Event {
            id: "event_1".to_owned(),
            kind: "agent.message".to_owned(),
            created_at: "2026-11-15T09:56:39.123456Z".to_owned(),
            payload: json!({"parts": [{"type": "text", "text": long}]}),
            raw: Value::Null,
        };
        let cut = event_line(&out, &event, Some(120));
        assert_eq!(cut.chars().count(), 120, "{cut}");
        let whole = event_line(&out, &event, None);
        assert_eq!(whole.matches("word").count(), 100);
    }

    #[test]
    fn each_event_is_one_aligned_line() {
        let lines = [
            line("task.submitted", json!({"workflow": "agent"})),
            line(
                "task.status_changed",
                json!({"from": "SUBMITTED", "to": "WORKING"}),
            ),
            line(
                "task.status_changed",
                json!({"from": "INPUT_REQUIRED", "to": "WORKING", "reason": "recovered"}),
            ),
            line(
                "agent.message",
                json!({"parts": [{"type": "text", "text": "two\nlines\u{1b}[2J"}]}),
            ),
            line(
                "vendor.effect_recorded",
                json!({"effect_key": "llm:main:1", "outcome": "ok", "value": {"big": 1}}),
            ),
            line(
                "task.failed",
                json!({"failure": {"code": "denied", "message": "no"}}),
            ),
            line("somebody.elses", json!({"a": 1})),
            line("session.closed", json!({})),
        ];
        insta::assert_snapshot!(lines.join("\n"));
    }
}
