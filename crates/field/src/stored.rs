//! How entries lie in a log of events: the members of an event's payload, and what lies beside it under its digest.
//!
//! The sequence of an entry is that of its event, and is not said twice. Everything that can hold words of agents lies
//! beside the entry and is salted: a digest in the log must not betray a short text.

use canon::{Digest, Map, Value};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::decide::Decision;
use crate::event::{Content, Entry, Event, UnitText};
use crate::stored_answer::StoredAnswer;
use crate::vector::Vector;

/// Members of an entry that its event has under their own names.
const MEMBERS: [&str; 5] = ["at", "epoch", "agent_id", "session_id", "message"];

/// Something that is kept beside the log under its digest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Salted<T> {
    /// Makes the digest useless for guessing.
    pub salt: String,
    /// What is kept.
    pub value: T,
}

impl<T: Serialize> Salted<T> {
    /// Returns the bytes that are stored and hashed.
    pub fn bytes(&self) -> Vec<u8> {
        let value = serde_json::to_value(&self.value).unwrap_or(Value::Null);
        salted_bytes(&self.salt, &value)
    }
}

/// Returns the bytes of something that is kept, without a copy of it: answers can be large.
pub fn salted_bytes(salt: &str, value: &Value) -> Vec<u8> {
    let mut bytes = br#"{"salt":"#.to_vec();
    canon::append_string(&mut bytes, salt);
    bytes.extend_from_slice(br#","value":"#);
    canon::append(&mut bytes, value, canon::Profile::Jcs);
    bytes.push(b'}');
    bytes
}

/// An event that holds no entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {seq} of the field's log cannot be read: {problem}")]
pub struct UnreadableEntry {
    seq: u64,
    problem: String,
}

impl Entry {
    /// Returns what the payload of its event says; `vector` is the digest of the vector beside it.
    pub fn members(&self, vector: Option<Digest>) -> Map<String, Value> {
        let Ok(Value::Object(mut whole)) = serde_json::to_value(self) else {
            return Map::new();
        };
        let mut members = Map::new();
        for name in MEMBERS {
            let value = whole.remove(name).unwrap_or_default();
            if name != "message" || !value.is_null() {
                members.insert(name.to_owned(), value);
            }
        }
        if let Some(Value::Object(event)) = whole.remove("event") {
            members.extend(event);
        }
        if let Some(vector) = vector {
            members.insert("vector_sha256".to_owned(), json!(vector));
        }
        members
    }

    /// Reads the payload of an event.
    ///
    /// # Errors
    /// It is not one that [`Entry::members`] made.
    pub fn read(seq: u64, members: &Map<String, Value>) -> Result<Self, UnreadableEntry> {
        let mut whole = json!({
            "seq": seq,
            "event": {"event_type": members.get("event_type"), "data": members.get("data")},
        });
        if let Some(whole) = whole.as_object_mut() {
            for name in MEMBERS {
                let value = members.get(name).cloned().unwrap_or_default();
                whole.insert(name.to_owned(), value);
            }
        }
        serde_json::from_value(whole).map_err(|error| UnreadableEntry {
            seq,
            problem: error.to_string(),
        })
    }

    /// Returns the digests of the text and the vector that lie beside an entry with these members.
    pub fn content_digests(
        &self,
        members: &Map<String, Value>,
    ) -> (Option<Digest>, Option<Digest>) {
        let text = match &self.event {
            Event::Recorded(recorded) => Some(recorded.text_sha256),
            _ => None,
        };
        let vector = members.get("vector_sha256").and_then(Value::as_str);
        (text, vector.and_then(|text| Digest::parse(text).ok()))
    }
}

impl Content {
    /// Reads what lies beside an entry from the bytes of its text and of its vector; what is not there or cannot be read
    /// is left out.
    pub fn read(text: Option<&[u8]>, vector: Option<&[u8]>) -> Self {
        let text = text.and_then(|bytes| serde_json::from_slice::<UnitText>(bytes).ok());
        let vector = vector.and_then(|bytes| serde_json::from_slice::<Salted<Vector>>(bytes).ok());
        Self {
            text,
            vector: vector.map(|kept| kept.value),
        }
    }
}

impl Decision {
    /// Notes in the first entry under which digest the answer is kept.
    pub fn keep_answer(&mut self, sha256: Digest) {
        let without_text = matches!(self.kept, StoredAnswer::WithoutText(_));
        let first = self.steps.first_mut();
        if let Some(message) = first.and_then(|(entry, _)| entry.message.as_mut()) {
            message.answer_sha256 = Some(sha256);
            message.answer_without_text = without_text;
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::Timestamp;

    use super::*;
    use crate::event::{Effect, Message, Recorded, Relation};
    use crate::kind::{MemoryType, Mode, RelationType, UnitStatus};
    use crate::vector::Model;

    fn recorded() -> Entry {
        Entry {
            seq: 7,
            at: Timestamp::from_micros(1_700_000_000_000_001),
            epoch: 12,
            agent_id: "ann".into(),
            session_id: None,
            message: Some(Message {
                agent_id: "ann".into(),
                id: "m-1".into(),
                sha256: canon::sha256(b"message"),
                answer_sha256: Some(canon::sha256(b"answer")),
                answer_without_text: false,
            }),
            event: Event::Recorded(Recorded {
                unit_id: "mem_1".into(),
                mode: Mode::Committed,
                kind: MemoryType::Finding,
                agent_role: "analyst".into(),
                task_id: Some("t".into()),
                score: Some(0.75),
                relations: vec![Relation {
                    kind: RelationType::Supersedes,
                    target_id: "mem_0".into(),
                    unbound: false,
                }],
                status: UnitStatus::Active,
                text_sha256: canon::sha256(b"text"),
                model: Some(Model::hash_1024()),
                effects: vec![Effect {
                    unit_id: "mem_0".into(),
                    status: UnitStatus::Superseded,
                }],
            }),
        }
    }

    /// Stored bytes are forever.
    #[test]
    fn an_entry_is_stored_as_it_always_was_and_read_back() {
        let entry = recorded();
        let members = entry.members(None);
        let bytes = canon::jcs(&Value::Object(members.clone()));
        let expected = concat!(
            r#"{"agent_id":"ann","at":"2023-11-14T22:13:20.000001Z","data":{"agent_role":"analyst","#,
            r#""effects":[{"status":"superseded","unit_id":"mem_0"}],"kind":"finding","mode":"committed","#,
            r#""model":{"name":"hash-1024","#,
            r#""sha256":"sha256:2e0a32e05f00c5d34275ab6d012f75848ee8a71d74c1b0ecb2d17ec6f93b955a"},"#,
            r#""relations":[{"target_id":"mem_0","type":"supersedes"}],"score":0.75,"status":"active","#,
            r#""task_id":"t","#,
            r#""text_sha256":"sha256:982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1","#,
            r#""unit_id":"mem_1"},"epoch":12,"event_type":"RECORD","message":{"agent_id":"ann","#,
            r#""answer_sha256":"sha256:0db52f4076c082518412afd3dd3576e2cb0c63703fd7fed5e23ade60efef31d9","#,
            r#""id":"m-1","#,
            r#""sha256":"sha256:ab530a13e45914982b79f9b7e3fba994cfd1f3fb22f71cea1afbf02b460c6d1d"},"#,
            r#""session_id":null}"#,
        );
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        assert_eq!(Entry::read(7, &members).unwrap(), entry);
        assert_eq!(
            entry.content_digests(&members),
            (Some(canon::sha256(b"text")), None)
        );
        let vector = canon::sha256(b"vector");
        let members = entry.members(Some(vector));
        assert_eq!(entry.content_digests(&members).1, Some(vector));
        assert_eq!(Entry::read(7, &members).unwrap(), entry);
    }

    #[test]
    fn what_is_kept_has_its_canonical_bytes() {
        let value = json!({"b": [1, "\u{e9}\n"], "a": null});
        let kept = Salted {
            salt: "a\"b".to_owned(),
            value,
        };
        let expected = canon::jcs(&serde_json::to_value(&kept).unwrap());
        assert_eq!(kept.bytes(), expected);
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        let mut members = recorded().members(None);
        members.insert("event_type".into(), "OTHER".into());
        assert!(Entry::read(1, &members).is_err());
        assert!(Entry::read(1, &Map::new()).is_err());
    }
}
