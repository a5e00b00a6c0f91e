//! One event as one readable line.

mod words;

use super::{Output, Paint, shorten};
use crate::client::Event;
use words::detail;

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

/// True for an event whose words stand in another one: pieces of an answer that follows whole.
pub(crate) fn is_told_elsewhere(event: &Event) -> bool {
    event.kind == "vendor.message_delta"
}

#[cfg(test)]
mod tests {
    use domain::Kind;
    use serde_json::{Value, json};

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
    /// People read words: the JSON of an event is for `--json`. A header that pruning left says so.
    #[test]
    fn every_kind_that_this_program_writes_has_words() {
        let mut members = serde_json::Map::new();
        for some in [
            json!({"mode": "exact", "source_task_id": "task_1", "override_keys": ["llm:main:1"], "refresh": ["model"]}),
            json!({"events_replayed": 29, "overrides_unused": [], "result_equal": true}),
            json!({"code": "replay_divergence", "message": "it asked something else"}),
            json!({"size": 6, "checkpoint": "log\n6\n", "line": "— witness.example sig", "receipt_id": "receipt_1"}),
            json!({"count": 2, "valid": true, "reason": "why", "actor": "ci", "scopes": ["tasks:read"]}),
            json!({"name": "reviewer", "version": "1", "kind": "main", "base_ref": "event_1"}),
            json!({"workspace_id": "workspace_local", "session_id": "session_1", "source_session_id": "session_1"}),
            json!({"tasks": [{}], "skipped": [], "completed": true, "removed_turn_count": 1, "bytes": 12}),
            json!({"sha256": "sha256:00", "mime_type": "text/plain", "provider": "disk", "event_type": "RECORD"}),
            json!({"agent_id": "ann", "epoch": 3, "role": "user", "source_message_id": "message_1"}),
            json!({"effect_key": "host:memory.read:main:1", "workflow": "agent", "status": "COMPLETED"}),
            json!({"from": "SUBMITTED", "to": "WORKING", "parts": [{"type": "text", "text": "words"}]}),
            json!({"input": {"file": "a"}, "text": "w", "action": "input", "decision": "approved"}),
            json!({"bundle_bytes": 7, "bundle_sha256": "sha256:00"}),
        ] {
            members.extend(some.as_object().unwrap().clone());
        }
        let mut lines = Vec::new();
        for kind in Kind::ALL {
            let payload = Value::Object(members.clone());
            let line = line(kind.as_str(), payload);
            assert!(!line.contains("\"mode\""), "JSON of {kind}: {line}");
            lines.push(line);
        }
        lines.push(line(
            "task.submitted",
            json!({"pruned": true, "sha256": "sha256:00"}),
        ));
        insta::assert_snapshot!(lines.join("\n"));
    }
}
