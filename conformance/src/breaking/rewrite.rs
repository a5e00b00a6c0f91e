//! What each fault does to requests, answers and streams.
//!
//! Owns the changes as functions of values. An answer that a fault does not touch keeps its bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::{Map, Value, json};

use super::{Fault, receipt};
use crate::json::{at, text};
use crate::wire::{IDEMPOTENCY_KEY, VERSION, VERSION_HEADER};

/// A request as it came in.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) headers: HeaderMap,
}

/// An answer before it goes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

/// Changes a request.
pub(super) fn request(fault: Fault, sent: &mut Sent) {
    let is_list_of_events = sent.path.ends_with("/events");
    match fault {
        Fault::BadVersionAccepted => {
            let lines = sent.headers.get_all(VERSION_HEADER).iter().count();
            sent.headers.remove(VERSION_HEADER);
            for _ in 0..lines {
                sent.headers
                    .append(VERSION_HEADER, HeaderValue::from_static(VERSION));
            }
        }
        Fault::MissingVersionAccepted if !sent.headers.contains_key(VERSION_HEADER) => {
            sent.headers
                .insert(VERSION_HEADER, HeaderValue::from_static(VERSION));
        }
        Fault::FirstVersionCounts => keep_first(&mut sent.headers, VERSION_HEADER),
        Fault::FirstKeyCounts => keep_first(&mut sent.headers, IDEMPOTENCY_KEY),
        Fault::KeysIgnored => drop(sent.headers.remove(IDEMPOTENCY_KEY)),
        Fault::CursorIgnored => drop(sent.headers.remove("last-event-id")),
        Fault::LimitZeroAccepted => {
            sent.query = replace_parameter(&sent.query, "limit=0", Some("limit=1"))
        }
        Fault::WorkspaceFilterIgnored if sent.path == "/v1/tasks" => {
            sent.query = without_parameter(&sent.query, "workspace_id");
        }
        Fault::RangeIgnored if is_list_of_events => {
            sent.query = without_parameter(&sent.query, "after_event_id")
        }
        _ => {}
    }
}

fn keep_first(headers: &mut HeaderMap, name: &'static str) {
    if let Some(first) = headers.get(name).cloned() {
        headers.insert(name, first);
    }
}

fn replace_parameter(query: &str, old: &str, new: Option<&str>) -> String {
    let parts = query
        .split('&')
        .filter_map(|part| if part == old { new } else { Some(part) });
    parts.collect::<Vec<_>>().join("&")
}

fn without_parameter(query: &str, name: &str) -> String {
    let kept = query
        .split('&')
        .filter(|part| part.split('=').next() != Some(name));
    kept.collect::<Vec<_>>().join("&")
}

/// Changes the head of a stream.
pub(super) fn stream_head(fault: Fault, reply: &mut Reply) {
    if fault == Fault::StreamAsText {
        reply.content_type = "text/plain".to_owned();
    }
}

/// Changes an answer.
pub(super) fn answer(fault: Fault, asked: &Sent, reply: &mut Reply) {
    if by_status(fault, asked, reply) || receipt::by_bytes(fault, reply) {
        return;
    }
    let Ok(mut value) = serde_json::from_slice::<Value>(&reply.body) else {
        return;
    };
    let before = value.clone();
    by_value(fault, asked, reply.status, &mut value);
    receipt::by_value(fault, asked, &mut value);
    if value != before {
        reply.body = value.to_string().into_bytes();
    }
}

/// True when an answer tells that a key has ended.
fn says_expired(reply: &Reply) -> bool {
    let text = String::from_utf8_lossy(&reply.body);
    text.contains("key_expired")
}

/// An answer where a refusal belongs.
fn open_to_all() -> Reply {
    Reply {
        status: 200,
        content_type: "application/json".to_owned(),
        body: b"{}".to_vec(),
    }
}

/// Handles the faults that replace an answer or its head; tells whether it did.
fn by_status(fault: Fault, asked: &Sent, reply: &mut Reply) -> bool {
    let original: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let request_id = at(&original, "error.request_id").clone();
    let json_reply = |status: u16, code: &str, kind: &str, message: &str| Reply {
        status,
        content_type: "application/json".to_owned(),
        body: json!({"error": {"code": code, "message": message, "type": kind, "param": null,
            "request_id": request_id, "details": {}}})
        .to_string()
        .into_bytes(),
    };
    let presented = asked
        .headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let submits = asked.method == Method::POST && asked.path.ends_with("/tasks");
    let segments: Vec<&str> = asked.path.trim_matches('/').split('/').collect();
    match fault {
        Fault::CardNeedsCredential if asked.path == "/v1/agent-card" && presented.is_none() => {
            *reply = json_reply(
                401,
                "unauthenticated",
                "auth_error",
                "a credential is needed",
            );
        }
        Fault::ClosedSessionTruncated
            if asked.path.ends_with("/truncate") && reply.status == 409 =>
        {
            *reply = open_to_all();
        }
        Fault::SubmitAnswersCreated if submits && reply.status == 202 => reply.status = 201,
        Fault::CancelFinishedIsBadRequest
            if asked.path.ends_with("/cancel") && reply.status == 409 =>
        {
            *reply = json_reply(
                400,
                "invalid_state_transition",
                "conflict_error",
                "the task has ended",
            );
        }
        Fault::KeyEchoed if reply.status == 401 && presented.is_some() => {
            let message = format!("not a credential: {}", presented.unwrap_or_default());
            *reply = json_reply(401, "unauthenticated", "auth_error", &message);
        }
        Fault::UnknownRouteIsHtml if asked.path.starts_with("/v1/no/") => {
            *reply = Reply {
                status: 404,
                content_type: "text/html".to_owned(),
                body: b"<h1>not found</h1>".to_vec(),
            };
        }
        Fault::WrongMethodIsEmpty if reply.status == 405 => reply.body.clear(),
        Fault::MissingIsServerError
            if asked.method == Method::GET
                && reply.status == 404
                && matches!(
                    segments.as_slice(),
                    ["v1", "sessions" | "tasks" | "messages" | "events", _]
                ) =>
        {
            *reply = json_reply(
                500,
                "internal_error",
                "server_error",
                "something went wrong",
            );
        }
        Fault::OperationUnguarded
            if asked.path == "/v1/quotas" && reply.status == 401 && !says_expired(reply) =>
        {
            *reply = open_to_all();
        }
        Fault::ExpiredKeyTaken
            if asked.path == "/v1/quotas" && reply.status == 401 && says_expired(reply) =>
        {
            *reply = open_to_all();
        }
        Fault::ScopeUnasked if asked.path == "/v1/skills" && reply.status == 403 => {
            *reply = open_to_all();
        }
        Fault::ForeignBranchesShown if reply.status == 404 => match segments.as_slice() {
            // An id that this runner made up has no digits but nines.
            ["v1", "branches", id, ..] if id.contains(|c: char| c.is_ascii_digit() && c != '9') => {
                *reply = json_reply(404, "resource_not_found", "not_found_error", "not for you");
            }
            _ => return false,
        },
        Fault::ReplayTakesAnything
            if asked.path.ends_with("/replay") && [400, 404, 422].contains(&reply.status) =>
        {
            reply.status = 202;
            reply.body = json!({"object": "task", "id": "task_of_nobody"})
                .to_string()
                .into_bytes();
        }
        Fault::UnfinishedReplayIsBadRequest
            if asked.path.ends_with("/replay") && reply.status == 409 =>
        {
            *reply = json_reply(400, "invalid_request", "request_error", "not finished");
        }
        Fault::UnknownPersonaIsBadRequest if text(&original, "error.param") == "persona_id" => {
            *reply = json_reply(400, "invalid_request", "request_error", "no such persona");
        }
        Fault::JsonAsText if asked.path == "/v1/outcomes" => {
            reply.content_type = "text/plain".to_owned()
        }
        _ => return false,
    }
    true
}

fn by_value(fault: Fault, asked: &Sent, status: u16, value: &mut Value) {
    /// Makes list answers that would be equal differ.
    static READS: AtomicU64 = AtomicU64::new(0);
    let kind_is = |word: &'static str| move |event: &Value| text(event, "event") == word;
    match fault {
        Fault::SupportedVersionsHidden => {
            if let Some(details) = value
                .pointer_mut("/error/details")
                .and_then(Value::as_object_mut)
            {
                details.remove("supported_versions");
            }
        }
        Fault::CapabilityMissing => {
            if let Some(capabilities) = value
                .pointer_mut("/capabilities")
                .and_then(Value::as_object_mut)
                && asked.path == "/v1"
            {
                capabilities.remove("replay");
            }
        }
        Fault::CardMixed if asked.path == "/v1/agent-card" => {
            set(value, "preferredTransport", json!("JSONRPC"))
        }
        Fault::RequestIdMissing => {
            if let Some(error) = value.get_mut("error").and_then(Value::as_object_mut) {
                error.remove("request_id");
            }
        }
        Fault::CodeOutsideTable if status == 405 => {
            if let Some(error) = value.get_mut("error") {
                set(error, "code", json!("method_not_allowed"));
            }
        }
        Fault::TaskMetadataMissing => {
            each(value, "task", &mut |task| drop(task.remove("metadata")))
        }
        Fault::CreatedByHidden => each(value, "task", &mut |task| drop(task.remove("created_by"))),
        Fault::OutcomeIdMissing => each(value, "task", &mut |task| {
            drop(task.insert("outcome_id".to_owned(), Value::Null))
        }),
        Fault::CancelledSpelling => each(value, "task", &mut |task| {
            if task.get("status") == Some(&json!("CANCELED")) {
                task.insert("status".to_owned(), json!("CANCELLED"));
            }
        }),
        Fault::CompletedAtOnCanceled => each(value, "task", &mut |task| {
            if task.get("status") == Some(&json!("CANCELED")) {
                let time = task.get("canceled_at").cloned().unwrap_or_default();
                task.insert("completed_at".to_owned(), time);
            }
        }),
        Fault::SubmittedTooLate
            if asked.method == Method::POST && asked.path.ends_with("/tasks") =>
        {
            each(value, "task", &mut |task| {
                drop(task.insert("status".to_owned(), json!("SUBMITTED")))
            });
        }
        Fault::SessionMetadataForgotten => {
            each(value, "session", &mut |session| {
                drop(session.insert("metadata".to_owned(), json!({})))
            });
        }
        Fault::OffsetTimes => each(value, "session", &mut |session| {
            for (name, member) in session.iter_mut().filter(|(name, _)| name.ends_with("_at")) {
                let _: &String = name;
                if let Some(time) = member.as_str().and_then(|time| time.strip_suffix('Z')) {
                    *member = json!(format!("{time}+00:00"));
                }
            }
        }),
        Fault::SessionAlwaysIdle => each(value, "session", &mut |session| {
            if session.get("state") != Some(&json!("CLOSED")) {
                session.insert("state".to_owned(), json!("IDLE"));
            }
        }),
        Fault::BranchWorkspaceMissing => each(value, "branch", &mut |branch| {
            drop(branch.remove("workspace_id"))
        }),
        Fault::DigestPrefixed => each(value, "artifact", &mut |artifact| {
            if let Some(digest) = artifact
                .get("sha256")
                .and_then(Value::as_str)
                .map(|hex| format!("sha256:{hex}"))
            {
                artifact.insert("sha256".to_owned(), json!(digest));
            }
        }),
        Fault::SequenceStretched => each(value, "event", &mut |event| {
            if let Some(sequence) = event.get("sequence").and_then(Value::as_u64) {
                event.insert("sequence".to_owned(), json!(sequence * 2));
            }
        }),
        Fault::SequenceAsText => each(value, "event", &mut |event| {
            if let Some(sequence) = event.get("sequence").and_then(Value::as_u64) {
                event.insert("sequence".to_owned(), json!(sequence.to_string()));
            }
        }),
        Fault::VendorPrefixLost => each(value, "event", &mut |event| {
            if let Some(kind) = event
                .get("event")
                .and_then(Value::as_str)
                .and_then(|kind| kind.strip_prefix("vendor."))
            {
                let kind = json!(format!("custom.{kind}"));
                event.insert("event".to_owned(), kind);
            }
        }),
        Fault::ReplayParentHidden => each(value, "task", &mut |task| {
            if is_replay(task) {
                task.insert("parent_task_id".to_owned(), Value::Null);
            }
        }),
        Fault::ReplayElsewhere => each(value, "task", &mut |task| {
            if is_replay(task) {
                task.insert("session_id".to_owned(), json!("session_elsewhere"));
            }
        }),
        Fault::ReplayEndSkipped => skip(value, kind_is("replay.completed")),
        Fault::SessionReplaySilent => skip(value, kind_is("session.replayed")),
        Fault::OutcomeWordsChange if asked.path.starts_with("/v1/outcomes/") => {
            let read = READS.fetch_add(1, Ordering::Relaxed);
            if let Some(text) = value.pointer_mut("/messages/0/parts/0/text") {
                *text = json!(format!("words {read}"));
            }
        }
        Fault::EffectKeysHidden => each(value, "event", &mut |event| {
            if let Some(Value::Object(payload)) = event.get_mut("payload") {
                payload.remove("effect_key");
            }
        }),
        Fault::ReplayMarksLost => each(value, "event", &mut |event| {
            drop(event.remove("replay"));
        }),
        Fault::RetentionHidden if asked.path == "/v1" => {
            if let Some(discovery) = value.as_object_mut() {
                discovery.remove("retention");
            }
        }
        Fault::DeltasHidden if !text(value, "metadata.source_task_id").is_empty() => {
            set(value, "deltas", json!([]));
        }
        Fault::ReplayReceiptsUnstable if !text(value, "metadata.source_task_id").is_empty() => {
            set(
                value,
                "issued_at",
                json!(READS.fetch_add(1, Ordering::Relaxed)),
            );
        }
        Fault::PersonaTierMissing => each(value, "persona", &mut |persona| {
            drop(persona.remove("autonomy_tier"))
        }),
        Fault::PersonaToolsForgotten if asked.method == Method::GET => {
            each(value, "persona", &mut |persona| {
                drop(persona.insert("tools".to_owned(), json!([])))
            });
        }
        Fault::ReceiptInvented => each(value, "task", &mut |task| {
            let ended = task.get("outcome_id").is_some_and(Value::is_string);
            if ended && task.get("receipt_id") == Some(&Value::Null) {
                task.insert("receipt_id".to_owned(), json!("receipt_invented"));
            }
        }),
        Fault::PageMissing if text(value, "object") == "list" => {
            if let Some(list) = value.as_object_mut() {
                list.remove("page");
            }
        }
        Fault::MessagesReversed
            if asked.method == Method::GET && asked.path.ends_with("/messages") =>
        {
            if let Some(items) = value.get_mut("data").and_then(Value::as_array_mut) {
                items.reverse();
            }
        }
        Fault::StateEventsSkipped => skip(value, kind_is("task.status_changed")),
        Fault::CancelRequestSkipped => skip(value, kind_is("user.cancel_requested")),
        Fault::UnstableList if asked.path.ends_with("/events") && at(value, "data").is_array() => {
            set(value, "reads", json!(READS.fetch_add(1, Ordering::Relaxed)));
        }
        _ => {}
    }
}

fn is_replay(task: &Map<String, Value>) -> bool {
    let metadata = task.get("metadata");
    metadata.is_some_and(|metadata| metadata.get("replay").is_some_and(Value::is_object))
}

fn set(value: &mut Value, name: &str, member: Value) {
    if let Some(members) = value.as_object_mut() {
        members.insert(name.to_owned(), member);
    }
}

pub(super) fn skip(value: &mut Value, unwanted: impl Fn(&Value) -> bool) {
    if let Some(items) = value.get_mut("data").and_then(Value::as_array_mut) {
        items.retain(|item| !unwanted(item));
    }
}

/// Changes every resource of a kind, however deep.
pub(super) fn each(value: &mut Value, kind: &str, change: &mut dyn FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| each(item, kind, change)),
        Value::Object(members) => {
            members
                .values_mut()
                .for_each(|member| each(member, kind, change));
            // A pointer to a resource has `object` and `id` only.
            if members.get("object") == Some(&json!(kind)) && members.len() > 2 {
                change(members);
            }
        }
        _ => {}
    }
}

/// Changes a stream frame by frame.
pub(super) struct Frames {
    fault: Fault,
    resumed: bool,
    pending: Vec<u8>,
    count: usize,
}

impl Frames {
    pub(super) fn new(fault: Fault, resumed: bool) -> Self {
        Self {
            fault,
            resumed,
            pending: Vec::new(),
            count: 0,
        }
    }

    /// Returns what is sent before the stream's own bytes.
    pub(super) fn before(&self) -> std::option::IntoIter<Vec<u8>> {
        (self.fault == Fault::CommentFirst)
            .then(|| b": hello\n\n".to_vec())
            .into_iter()
    }

    /// Takes some bytes and returns the frames they complete, changed.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.pending.extend(bytes);
        let mut out = Vec::new();
        while let Some(end) = crate::raw::find(&self.pending, b"\n\n") {
            let rest = self.pending.split_off(end + 2);
            let block =
                String::from_utf8_lossy(&std::mem::replace(&mut self.pending, rest)).into_owned();
            out.extend(self.frame(&block).into_bytes());
        }
        out
    }

    fn frame(&mut self, block: &str) -> String {
        let is_event = block.lines().any(|line| line.starts_with("data:"));
        let is_error = block
            .lines()
            .any(|line| line == "event: error" || line == "event:error");
        if is_event {
            self.count += 1;
        }
        match self.fault {
            Fault::CarriageReturns => block.replace('\n', "\r\n"),
            Fault::StreamMarksLost => block.replace("\"replay\":{", "\"unmarked\":{"),
            Fault::HistoryAsLive => block.replace("\"replayed\":true", "\"replayed\":false"),
            Fault::FrameIdDiffers if is_event => {
                let lines = block
                    .split('\n')
                    .map(|line| match line.strip_prefix("id:") {
                        Some(id) => format!("id: x{}", id.trim()),
                        None => line.to_owned(),
                    });
                lines.collect::<Vec<_>>().join("\n")
            }
            Fault::FrameRepeated if is_event && !is_error && self.resumed && self.count == 1 => {
                format!("{block}{block}")
            }
            Fault::FramesLost if is_event && self.count.is_multiple_of(100) => String::new(),
            _ => block.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(method: Method, path: &str, query: &str) -> Sent {
        Sent {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            headers: HeaderMap::new(),
        }
    }

    fn answered(fault: Fault, asked: &Sent, status: u16, body: &Value) -> Reply {
        let mut reply = Reply {
            status,
            content_type: "application/json".to_owned(),
            body: body.to_string().into_bytes(),
        };
        answer(fault, asked, &mut reply);
        reply
    }

    fn body(reply: &Reply) -> Value {
        serde_json::from_slice(&reply.body).unwrap()
    }

    #[test]
    fn an_answer_that_the_fault_does_not_touch_keeps_its_bytes() {
        let asked = sent(Method::GET, "/v1/tasks/t", "");
        let bytes = b"{ \"object\" : \"session\", \"b\":1, \"a\":2 }".to_vec();
        let reply = Reply {
            status: 200,
            content_type: "application/json".to_owned(),
            body: bytes,
        };
        for fault in [
            Fault::TaskMetadataMissing,
            Fault::KeysIgnored,
            Fault::CarriageReturns,
        ] {
            let mut changed = reply.clone();
            answer(fault, &asked, &mut changed);
            assert_eq!(changed, reply, "{fault:?}");
        }
    }

    #[test]
    fn a_resource_is_changed_wherever_it_stands() {
        let list = json!({"object": "list", "data": [
            {"object": "task", "id": "t", "metadata": {}, "resource": {"object": "task", "id": "t"}},
        ]});
        let reply = answered(
            Fault::TaskMetadataMissing,
            &sent(Method::GET, "/v1/tasks", ""),
            200,
            &list,
        );
        let expected =
            json!({"object": "task", "id": "t", "resource": {"object": "task", "id": "t"}});
        assert_eq!(at(&body(&reply), "data.0"), &expected);
    }

    #[test]
    fn statuses_are_changed_only_where_the_fault_says() {
        let (submit, cancel) = (
            sent(Method::POST, "/v1/sessions/s/tasks", ""),
            sent(Method::POST, "/v1/tasks/t/cancel", ""),
        );
        assert_eq!(
            answered(Fault::SubmitAnswersCreated, &submit, 202, &json!({})).status,
            201
        );
        assert_eq!(
            answered(Fault::SubmitAnswersCreated, &cancel, 200, &json!({})).status,
            200
        );
        assert_eq!(
            answered(Fault::CancelFinishedIsBadRequest, &cancel, 409, &json!({})).status,
            400
        );
        assert_eq!(
            answered(Fault::CancelFinishedIsBadRequest, &submit, 409, &json!({})).status,
            409
        );
        let read = sent(Method::GET, "/v1/sessions/s", "");
        assert_eq!(
            answered(Fault::MissingIsServerError, &read, 404, &json!({})).status,
            500
        );
        let deeper = sent(Method::GET, "/v1/sessions/s/events", "");
        assert_eq!(
            answered(Fault::MissingIsServerError, &deeper, 404, &json!({})).status,
            404
        );
    }

    #[test]
    fn requests_are_changed_by_header_and_query() {
        let mut asked = sent(
            Method::GET,
            "/v1/tasks",
            "limit=0&workspace_id=w&session_id=s",
        );
        asked
            .headers
            .append(VERSION_HEADER, HeaderValue::from_static("a"));
        asked
            .headers
            .append(VERSION_HEADER, HeaderValue::from_static("b"));
        let changed = |fault: Fault| {
            let mut sent = asked.clone();
            request(fault, &mut sent);
            sent
        };
        assert_eq!(
            changed(Fault::LimitZeroAccepted).query,
            "limit=1&workspace_id=w&session_id=s"
        );
        assert_eq!(
            changed(Fault::WorkspaceFilterIgnored).query,
            "limit=0&session_id=s"
        );
        assert_eq!(
            changed(Fault::FirstVersionCounts)
                .headers
                .get_all(VERSION_HEADER)
                .iter()
                .count(),
            1
        );
        let versions = changed(Fault::BadVersionAccepted);
        assert!(
            versions
                .headers
                .get_all(VERSION_HEADER)
                .iter()
                .eq([VERSION, VERSION])
        );
    }

    const FRAME: &str = "id: e1\nevent: a\ndata: {\"id\":\"e1\",\"replayed\":true}\n\n";

    fn streamed(fault: Fault, resumed: bool, bytes: &str) -> String {
        let mut frames = Frames::new(fault, resumed);
        let mut out: Vec<u8> = frames.before().flatten().collect();
        for piece in bytes.as_bytes().chunks(7) {
            out.extend(frames.push(piece));
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn frames_are_changed_whole() {
        assert_eq!(streamed(Fault::KeysIgnored, true, FRAME), FRAME);
        assert_eq!(
            streamed(Fault::CarriageReturns, false, FRAME),
            FRAME.replace('\n', "\r\n")
        );
        assert_eq!(
            streamed(Fault::CommentFirst, false, FRAME),
            format!(": hello\n\n{FRAME}")
        );
        assert_eq!(
            streamed(Fault::HistoryAsLive, false, FRAME),
            FRAME.replace("true", "false")
        );
        assert_eq!(
            streamed(Fault::FrameIdDiffers, false, FRAME),
            FRAME.replace("id: e1", "id: xe1")
        );
        assert_eq!(
            streamed(Fault::FrameRepeated, true, FRAME),
            format!("{FRAME}{FRAME}")
        );
        assert_eq!(streamed(Fault::FrameRepeated, false, FRAME), FRAME);
        assert_eq!(
            streamed(Fault::FramesLost, false, &FRAME.repeat(100)),
            FRAME.repeat(99)
        );
    }
}
