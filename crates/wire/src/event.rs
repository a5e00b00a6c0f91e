//! Events on their way out: stored bytes in lists and frames, never written again.
//!
//! Delivery marks say how an event reached this reader and are spliced into a copy of the stored bytes; they are not
//! part of the event (C-18).

use canon::Value;
use domain::Timestamp;
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
    push_data(&mut out, &with_delivery_marks(bytes, replayed));
    out.extend_from_slice(b"\n\n");
    out
}

/// Appends JSON as the data of a frame. Some clients end lines at characters that only Unicode calls the end of a line;
/// these are escaped, which means the same. In JSON they stand only inside of texts.
fn push_data(out: &mut Vec<u8>, json: &[u8]) {
    let mut rest = json;
    while let Some((byte, tail)) = rest.split_first() {
        let (escaped, length): (&[u8], usize) = match rest {
            [0xc2, 0x85, ..] => (b"\\u0085", 2),
            [0xe2, 0x80, 0xa8, ..] => (b"\\u2028", 3),
            [0xe2, 0x80, 0xa9, ..] => (b"\\u2029", 3),
            _ => {
                out.push(*byte);
                rest = tail;
                continue;
            }
        };
        out.extend_from_slice(escaped);
        rest = rest.get(length..).unwrap_or_default();
    }
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
    let mut out = format!("id: {id}\nevent: error\ndata: ").into_bytes();
    push_data(&mut out, data.to_string().as_bytes());
    out.extend_from_slice(b"\n\n");
    out
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

    /// Published clients split at whatever Unicode calls the end of a line.
    #[test]
    fn a_frame_has_no_line_end_inside_its_data_whoever_splits_it() {
        let said = "a\u{85}b\u{2028}c\u{2029}d\u{2026}ü\u{c285}";
        let stored = STORED.replace(
            "\"receipt_id\":null,\"resource\":{\"id\":\"x\"}",
            &format!("\"said\":{}", json!(said)),
        );
        let error = ErrorBody {
            code: Code::CursorExpired,
            message: said,
            param: None,
            request_id: "r",
            details: &Map::new(),
        };
        for (frame, pointer) in [
            (frame(stored.as_bytes(), false), "/payload/said"),
            (
                error_frame(&error, Timestamp::from_micros(0)),
                "/error/message",
            ),
        ] {
            let frame = String::from_utf8(frame).unwrap();
            assert!(
                !frame.contains(['\u{85}', '\u{2028}', '\u{2029}']),
                "{frame}"
            );
            let data = frame.lines().find_map(|line| line.strip_prefix("data: "));
            let data: Value = serde_json::from_str(data.unwrap()).unwrap();
            assert_eq!(data.pointer(pointer).unwrap(), said);
        }
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
