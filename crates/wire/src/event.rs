//! Events on their way out: stored bytes in lists and frames, never written again.
//!
//! Delivery marks say how an event reached this reader and are spliced into a copy of the stored bytes; they are not
//! part of the event (C-18).

use canon::Value;
use domain::{Event, Timestamp};
use serde::Deserialize;
use serde_json::json;

use crate::ErrorBody;

/// The members of a stored event that frames repeat.
#[derive(Deserialize)]
struct Head {
    id: String,
    event: String,
}

fn head(bytes: &[u8]) -> Option<Head> {
    serde_json::from_slice(bytes).ok()
}

/// Returns a list of stored events, byte for byte. Its cursor is the id of the last event, more or not: that is
/// where a reader goes on.
pub fn event_list<'a>(events: impl IntoIterator<Item = &'a [u8]>, has_more: bool) -> Vec<u8> {
    let mut out = b"{\"data\":[".to_vec();
    let mut last = None;
    for bytes in events {
        if last.is_some() {
            out.push(b',');
        }
        out.extend_from_slice(bytes);
        last = Some(bytes);
    }
    let cursor = last.and_then(head).map(|head| head.id);
    let page = json!({"has_more": has_more, "next_cursor": cursor});
    let tail = format!(
        "],\"has_more\":{has_more},\"next_cursor\":{},\"object\":\"list\",\"page\":{page}}}",
        json!(cursor)
    );
    out.extend_from_slice(tail.as_bytes());
    out
}

/// Returns an event with the words of its payload that say what it is about, and none of its content: what a page needs
/// that shows a long run. `bytes` is the length of what is stored.
pub fn compact_event(bytes: &[u8]) -> Vec<u8> {
    const WORDS: [&str; 5] = ["effect_key", "kind", "outcome", "from", "to"];
    let Ok(Value::Object(mut event)) = serde_json::from_slice::<Value>(bytes) else {
        return bytes.to_vec();
    };
    if let Some(Value::Object(payload)) = event.get_mut("payload") {
        payload.retain(|name, value| WORDS.contains(&name.as_str()) && value.is_string());
    }
    event.insert("metadata".to_owned(), json!({}));
    event.insert("bytes".to_owned(), json!(bytes.len()));
    canon::jcs(&Value::Object(event))
}

/// Returns the stored bytes with `replay` and `replayed` in their places. An event of a replay Task carries its own
/// and stays as it is.
pub fn with_delivery_marks(bytes: &[u8], replayed: bool) -> Vec<u8> {
    const NEXT: &[u8] = b"\"resource\":{\"id\":";
    const OWN: &[u8] = b"\"replayed\":true,";
    // The last occurrence is the event's own member: after it come only ids and times, and a payload lies before it.
    let place = bytes
        .windows(NEXT.len())
        .rposition(|window| window == NEXT)
        .and_then(|at| bytes.split_at_checked(at));
    let Some((before, after)) = place else {
        return bytes.to_vec();
    };
    if before.ends_with(OWN) {
        return bytes.to_vec();
    }
    let marks = format!("\"replay\":null,\"replayed\":{replayed},");
    [before, marks.as_bytes(), after].concat()
}

/// Returns the frame of a stored event in the text of a server-sent event stream.
pub fn frame(bytes: &[u8], replayed: bool) -> Vec<u8> {
    let (id, event) = match head(bytes) {
        Some(head) => (head.id, head.event),
        // Stored bytes are events; a reader gets what there is either way.
        None => (String::new(), "message".to_owned()),
    };
    let mut out = format!("id: {id}\nevent: {event}\ndata: ").into_bytes();
    push_one_line(&mut out, &with_delivery_marks(bytes, replayed));
    out.extend_from_slice(b"\n\n");
    out
}

/// True when an event may keep members of its payload beside itself. Cheap, and sometimes true of one that does not.
pub fn may_keep_beside(bytes: &[u8]) -> bool {
    const NAME: &[u8] = b"\"blobs\":{";
    bytes.windows(NAME.len()).any(|window| window == NAME)
}

/// Returns the frame of a stored event with content in its place that the event keeps beside itself. `expanded` names
/// these members: without them, and without the other delivery marks, the event is what is stored. Those that have a
/// reference to the event in their place there are named by `referenced` as well.
pub fn expanded_frame(bytes: &[u8], replayed: bool, content: &[(String, Value)]) -> Vec<u8> {
    let Ok(Value::Object(mut event)) = serde_json::from_slice::<Value>(bytes) else {
        return frame(bytes, replayed);
    };
    let Some(Value::Object(payload)) = event.get_mut("payload") else {
        return frame(bytes, replayed);
    };
    let (mut expanded, mut referenced) = (Vec::new(), Vec::new());
    for (member, value) in content {
        match payload.get(member) {
            None => {}
            Some(kept) if kept.get("type") == Some(&json!("artifact_ref")) => {
                referenced.push(member.as_str());
            }
            Some(_) => continue,
        }
        payload.insert(member.clone(), value.clone());
        expanded.push(member.as_str());
    }
    if expanded.is_empty() {
        return frame(bytes, replayed);
    }
    event.insert("expanded".to_owned(), json!(expanded));
    if !referenced.is_empty() {
        event.insert("referenced".to_owned(), json!(referenced));
    }
    frame(&canon::jcs(&Value::Object(event)), replayed)
}

/// Returns content that the log holds as an Artifact, for those who follow a reference to it: what an event keeps beside
/// itself, or the whole log of a Task. `event` says where it belongs.
pub fn recorded_artifact(
    id: &str,
    kind: &str,
    mime_type: &str,
    event: &Event,
    bytes: &[u8],
) -> Value {
    json!({
        "object": "artifact",
        "id": id,
        "created_at": event.created_at,
        "updated_at": event.created_at,
        "metadata": {},
        "kind": kind,
        "mime_type": mime_type,
        "uri": format!("artifact://{id}"),
        "visibility": "public",
        "sha256": canon::sha256(bytes).hex(),
        "workspace_id": event.workspace_id,
        "session_id": event.session_id,
        "task_id": event.task_id,
        "receipt_id": event.receipt_id,
    })
}

/// Appends JSON with the characters escaped that some readers of streams take for the end of a line: U+0085, U+2028
/// and U+2029. JSON has them only inside strings, where the escape means the same.
fn push_one_line(out: &mut Vec<u8>, json: &[u8]) {
    const BREAKS: [(&[u8], &[u8]); 3] = [
        ("\u{85}".as_bytes(), br"\u0085"),
        ("\u{2028}".as_bytes(), br"\u2028"),
        ("\u{2029}".as_bytes(), br"\u2029"),
    ];
    let mut rest = json;
    // Both bytes that begin one of them are rare in JSON: most events are copied in one piece.
    while let Some(at) = rest.iter().position(|byte| matches!(byte, 0xC2 | 0xE2)) {
        let (before, found) = rest.split_at(at);
        out.extend_from_slice(before);
        let escaped = BREAKS.iter().find(|(raw, _)| found.starts_with(raw));
        let (taken, after) = found.split_at(escaped.map_or(1, |(raw, _)| raw.len()));
        out.extend_from_slice(escaped.map_or(taken, |(_, escape)| *escape));
        rest = after;
    }
    out.extend_from_slice(rest);
}

/// Returns the comment that keeps an idle stream alive.
pub fn heartbeat() -> &'static [u8] {
    b": still here\n\n"
}

/// Returns the frame that ends a stream whose cursor cannot be used (C-17). Shaped like an event, since clients may
/// keep only its data.
pub fn error_frame(error: &ErrorBody<'_>, at: Timestamp) -> Vec<u8> {
    let id = format!("error_{}", error.request_id);
    let data: Value = json!({
        "id": id,
        "object": "event",
        "event": "error",
        "resource": {"object": "event_stream", "id": error.request_id},
        "sequence": 0,
        "created_at": at,
        "updated_at": at,
        "metadata": {},
        "payload": {"error": error.error()},
        "error": error.error(),
        "replayed": false,
        "replay": null,
    });
    format!("id: {id}\nevent: error\ndata: {data}\n\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use canon::Map;

    use super::*;
    use crate::Code;

    const STORED: &str = r#"{"actor":null,"event":"task.started","id":"event_a_1","payload":{"receipt_id":null,"resource":{"id":"x"}},"receipt_id":null,"resource":{"id":"task_1","object":"task"},"sequence":2}"#;

    #[test]
    fn ap_evt_07_lists_hold_the_stored_bytes() {
        let text =
            String::from_utf8(event_list([STORED.as_bytes(), STORED.as_bytes()], true)).unwrap();
        assert!(text.starts_with(&format!("{{\"data\":[{STORED},{STORED}],")));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["next_cursor"], "event_a_1");
        assert_eq!(
            value["page"],
            json!({"has_more": true, "next_cursor": "event_a_1"})
        );
        let empty: Value = serde_json::from_slice(&event_list([], false)).unwrap();
        assert_eq!(empty.get("next_cursor"), Some(&Value::Null));
        assert_eq!(empty["data"], json!([]));
    }

    #[test]
    fn ap_sse_12_marks_go_beside_the_events_own_resource() {
        let marked = with_delivery_marks(STORED.as_bytes(), true);
        let value: Value = serde_json::from_slice(&marked).unwrap();
        assert_eq!(value["replayed"], true);
        assert_eq!(value.get("replay"), Some(&Value::Null));
        assert_eq!(
            value["payload"],
            json!({"receipt_id": null, "resource": {"id": "x"}})
        );
        // Spliced in order: the marked bytes are canonical too.
        assert_eq!(canon::jcs(&value), marked);
    }

    #[test]
    fn events_of_replay_tasks_keep_their_own_marks() {
        let own = r#"{"event":"e","id":"i","replay":{"mode":"exact"},"replayed":true,"resource":{"id":"task_1"}}"#;
        assert_eq!(with_delivery_marks(own.as_bytes(), false), own.as_bytes());
    }

    #[test]
    fn ap_sse_02_frames_have_id_event_and_data_on_lf_lines() {
        let text = String::from_utf8(frame(STORED.as_bytes(), false)).unwrap();
        let lines: Vec<&str> = text.split('\n').collect();
        assert_eq!(lines[0], "id: event_a_1");
        assert_eq!(lines[1], "event: task.started");
        assert!(lines[2].starts_with("data: {"));
        assert_eq!(&lines[3..], ["", ""]);
        assert!(!text.contains('\r'));
    }

    #[test]
    fn characters_that_end_a_line_elsewhere_are_escaped_in_frames() {
        let stored = STORED.replace("\"x\"", "\"a\u{2028}b\u{2029}c\u{85}dâ€\u{e2}\u{2027}\"");
        let text = String::from_utf8(frame(stored.as_bytes(), false)).unwrap();
        let data = text.lines().nth(2).unwrap().strip_prefix("data: ").unwrap();
        assert!(!data.contains(['\u{85}', '\u{2028}', '\u{2029}']), "{data}");
        let delivered: Value = serde_json::from_str(data).unwrap();
        let value: Value = serde_json::from_str(&stored).unwrap();
        assert_eq!(delivered["payload"], value["payload"]);
    }

    #[test]
    fn ap_sse_06_the_error_frame_is_shaped_like_an_event() {
        let error = ErrorBody {
            code: Code::CursorExpired,
            message: "the cursor is gone",
            param: None,
            request_id: "req_1",
            details: &Map::new(),
        };
        let text = String::from_utf8(error_frame(&error, Timestamp::from_micros(0))).unwrap();
        let data = text.lines().nth(2).unwrap().strip_prefix("data: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["payload"]["error"]["code"], "cursor_expired");
        assert_eq!(data["error"], data["payload"]["error"]);
        assert_eq!(data["object"], "event");
    }
}
