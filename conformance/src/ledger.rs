//! What was seen in all answers of a run together.
//!
//! Owns the observations behind requirements of the form "every …" and "never …". It only notes; the checks that run
//! last judge. Members that carry a caller's own JSON are not looked into.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::json::{at, is_utc_time, short, text};

/// Members whose content belongs to callers or to another format.
const FOREIGN: [&str; 17] = [
    "metadata",
    "input",
    "payload",
    "value",
    "action",
    "request",
    "response",
    "a2a_card",
    "a2a_agent_card",
    "wire",
    "details",
    "output",
    "content",
    "provenance",
    "parts",
    "input_schema",
    "output_schema",
];

/// The observations of a run. Lists of violations say where each was seen.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) answers: usize,
    pub(crate) events: usize,
    pub(crate) bad_events: Vec<String>,
    pub(crate) event_kinds: BTreeMap<String, String>,
    pub(crate) task_statuses: BTreeMap<String, String>,
    pub(crate) session_states: BTreeMap<String, String>,
    pub(crate) error_codes: BTreeMap<String, String>,
    pub(crate) bad_ids: Vec<String>,
    pub(crate) times: usize,
    pub(crate) bad_times: Vec<String>,
    pub(crate) canceled: usize,
    pub(crate) misspelt: Vec<String>,
    pub(crate) wrong_content_type: Vec<String>,
    kind_of_id: BTreeMap<String, String>,
    judged_events: BTreeSet<String>,
}

impl Ledger {
    /// Returns how many ids were seen.
    pub(crate) fn ids(&self) -> usize {
        self.kind_of_id.len()
    }

    /// Notes an answer that came with a body.
    pub(crate) fn note_answer(&mut self, place: &str, content_type: &str, body: &[u8]) {
        let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_slice(body) else {
            return;
        };
        self.answers += 1;
        // A receipt in its own media type was asked for by that name; a problem document (RFC 9457) is an answer of an
        // interface beside the protocol.
        let own = [
            "application/vnd.harn.receipt+json",
            "application/problem+json",
        ];
        let own = own.iter().any(|own| content_type.starts_with(own));
        if !own && !content_type.starts_with("application/json") {
            self.wrong_content_type
                .push(format!("{place}: `{content_type}`"));
        }
        self.note(place, &value);
    }

    /// Notes a JSON value, whatever carried it.
    pub(crate) fn note(&mut self, place: &str, value: &Value) {
        let whole = value.to_string();
        if whole.contains("CANCELLED") {
            self.misspelt.push(format!("{place}: {}", short(&whole)));
        }
        if whole.contains("\"CANCELED\"") {
            self.canceled += 1;
        }
        if let Some(code) = at(value, "error.code").as_str() {
            self.error_codes
                .entry(code.to_owned())
                .or_insert_with(|| place.to_owned());
        }
        self.walk(place, value);
    }

    fn walk(&mut self, place: &str, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.walk(place, item)),
            Value::Object(members) => {
                self.resource(place, value);
                for (name, member) in members {
                    if let (true, Some(time)) = (name.ends_with("_at"), member.as_str()) {
                        self.times += 1;
                        if !is_utc_time(time) {
                            self.bad_times
                                .push(format!("{place}: `{name}` is `{}`", short(time)));
                        }
                    }
                    if !FOREIGN.contains(&name.as_str()) {
                        self.walk(place, member);
                    }
                }
            }
            _ => {}
        }
    }

    fn resource(&mut self, place: &str, value: &Value) {
        let (kind, id) = (text(value, "object"), text(value, "id"));
        // A receipt names the replay Task by another word: the segment that it proves.
        if kind == "replay_segment" {
            return;
        }
        if kind.is_empty() || id.is_empty() || (kind == "event" && text(value, "event") == "error")
        {
            return;
        }
        let safe = id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        if !safe {
            self.bad_ids.push(format!("{place}: `{}`", short(id)));
        }
        let before = self
            .kind_of_id
            .entry(id.to_owned())
            .or_insert_with(|| kind.to_owned());
        if before.as_str() != kind {
            self.bad_ids
                .push(format!("{place}: `{id}` is a {kind} and a {before}"));
        }
        let seen = |set: &mut BTreeMap<String, String>, member: &str| {
            if let Some(word) = at(value, member).as_str() {
                set.entry(word.to_owned())
                    .or_insert_with(|| place.to_owned());
            }
        };
        match kind {
            "task" => seen(&mut self.task_statuses, "status"),
            "session" => seen(&mut self.session_states, "state"),
            "event" if value.get("event").is_some() => {
                seen(&mut self.event_kinds, "event");
                self.event(place, value);
            }
            _ => {}
        }
    }

    fn event(&mut self, place: &str, event: &Value) {
        self.events += 1;
        let faults = event_faults(event);
        if !faults.is_empty() && self.judged_events.insert(text(event, "id").to_owned()) {
            self.bad_events.push(format!(
                "{place}: `{}` {}",
                text(event, "id"),
                faults.join(", ")
            ));
        }
    }
}

/// Says what an event lacks of the required members.
pub(crate) fn event_faults(event: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for path in [
        "id",
        "event",
        "resource.object",
        "resource.id",
        "created_at",
    ] {
        if text(event, path).is_empty() {
            faults.push(format!("has no string `{path}`"));
        }
    }
    if !at(event, "sequence").is_u64() {
        faults.push("has no unsigned integer `sequence`".to_owned());
    }
    if !at(event, "payload").is_object() {
        faults.push("has no object `payload`".to_owned());
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn noted(value: &Value) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.note_answer("GET /x", "application/json", value.to_string().as_bytes());
        ledger
    }

    #[test]
    fn resources_inside_lists_are_noted() {
        let ledger = noted(&json!({"object": "list", "data": [
            {"object": "task", "id": "task_1", "status": "WORKING", "created_at": "2026-04-25T00:00:00Z"},
            {"object": "session", "id": "session 1", "state": "IDLE", "created_at": "yesterday"},
        ]}));
        assert!(ledger.task_statuses.contains_key("WORKING"));
        assert!(ledger.session_states.contains_key("IDLE"));
        assert_eq!(
            (ledger.times, ledger.bad_times.len(), ledger.bad_ids.len()),
            (2, 1, 1)
        );
    }

    #[test]
    fn callers_json_is_not_judged() {
        let ledger = noted(
            &json!({"object": "task", "id": "t", "metadata": {"due_at": "soon", "object": "x", "id": "/"}}),
        );
        assert!(ledger.bad_times.is_empty() && ledger.bad_ids.is_empty());
    }

    #[test]
    fn an_id_of_two_kinds_is_noted() {
        let ledger =
            noted(&json!([{"object": "task", "id": "x"}, {"object": "session", "id": "x"}]));
        assert_eq!(ledger.bad_ids.len(), 1);
    }

    #[test]
    fn the_two_spellings_of_canceled_are_told_apart() {
        let (right, wrong) = (
            noted(&json!({"status": "CANCELED"})),
            noted(&json!({"status": "CANCELLED"})),
        );
        assert_eq!((right.canceled, right.misspelt.len()), (1, 0));
        assert_eq!((wrong.canceled, wrong.misspelt.len()), (0, 1));
    }

    #[test]
    fn an_event_without_sequence_is_noted_once() {
        let event = json!({"object": "event", "id": "e", "event": "task.started", "created_at": "2026-04-25T00:00:00Z",
            "resource": {"object": "task", "id": "t"}, "payload": {}});
        let ledger = noted(&json!([event, event]));
        assert_eq!((ledger.events, ledger.bad_events.len()), (2, 1));
    }

    #[test]
    fn json_under_another_content_type_is_noted() {
        let mut ledger = Ledger::default();
        ledger.note_answer("GET /x", "text/plain", b"{}");
        ledger.note_answer("GET /x", "text/plain", b"hello");
        ledger.note_answer("GET /x", "application/vnd.harn.receipt+json", b"{}");
        assert_eq!(ledger.wrong_content_type.len(), 1);
    }
}
