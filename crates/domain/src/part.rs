//! Message parts: their shapes, who may see them, and where large or private content goes.
//!
//! An event holds public content up to [`INLINE_BYTES_MAX`]; the rest goes into blobs addressed by digest.
//! A private part leaves a descriptor in the event. Its blob carries a salt, so that the digest in a public
//! event cannot be used to guess a short text (AP-PRIV-04).

use canon::{Digest, Map, Value, jcs, jcs_len, sha256};
use serde::{Deserialize, Serialize};

/// The largest canonical payload an event holds itself. A constant of the log format.
pub const INLINE_BYTES_MAX: usize = 4096;

/// The payload member that lists members moved into blobs.
pub const BLOB_MEMBER: &str = "blobs";

/// Who speaks in a Message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The person or program that uses the agent.
    User,
    /// The model.
    Assistant,
    /// Instructions.
    System,
    /// A tool's result.
    Tool,
    /// Another agent.
    Agent,
}

impl Role {
    /// Returns the protocol's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::System => "system",
            Role::Tool => "tool",
            Role::Agent => "agent",
        }
    }

    /// Reads the protocol's word.
    pub fn parse(text: &str) -> Option<Self> {
        [
            Role::User,
            Role::Assistant,
            Role::System,
            Role::Tool,
            Role::Agent,
        ]
        .into_iter()
        .find(|role| role.as_str() == text)
    }
}

/// Who may see a part or an Artifact; what fewer may see is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// Everybody who may read the resource.
    Public,
    /// Readers with the permission for internal content.
    Internal,
    /// Nobody over the API; receipts prove it.
    ReceiptOnly,
}

impl Visibility {
    /// Returns the protocol's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Visibility::Public => "public",
            Visibility::Internal => "internal",
            Visibility::ReceiptOnly => "receipt_only",
        }
    }

    /// Reads the protocol's word.
    pub fn parse(text: &str) -> Option<Self> {
        [
            Visibility::Public,
            Visibility::Internal,
            Visibility::ReceiptOnly,
        ]
        .into_iter()
        .find(|visibility| visibility.as_str() == text)
    }
}

/// Content stored beside the log under its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// SHA-256 of the bytes.
    pub digest: Digest,
    /// The content.
    pub bytes: Vec<u8>,
}

impl Blob {
    /// Takes bytes under their digest.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self {
            digest: sha256(&bytes),
            bytes,
        }
    }
}

/// What is wrong with a part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("part {index}: {problem}")]
pub struct PartError {
    /// Its place in the list, from 0.
    pub index: usize,
    /// The member at fault.
    pub member: &'static str,
    /// What is wrong.
    pub problem: String,
}

/// Checks a list of parts and returns it in stored form: known types keep their known members, an absent
/// visibility becomes `public` (C-31), unknown types stay whole (AP-PART-03).
///
/// # Errors
/// Names the first part that lacks a member or has one of the wrong type.
pub fn check_parts(parts: &[Value]) -> Result<Vec<Value>, PartError> {
    parts
        .iter()
        .enumerate()
        .map(|(index, part)| check_part(index, part))
        .collect()
}

fn check_part(index: usize, part: &Value) -> Result<Value, PartError> {
    let fail = |member, problem: &str| PartError {
        index,
        member,
        problem: problem.to_owned(),
    };
    let Value::Object(part) = part else {
        return Err(fail("parts", "must be an object"));
    };
    let Some(Value::String(kind)) = part.get("type") else {
        return Err(fail("type", "needs a string member `type`"));
    };
    let visibility = match part.get("visibility") {
        None => Visibility::Public,
        Some(Value::String(text)) => Visibility::parse(text).ok_or_else(|| {
            fail(
                "visibility",
                "has a `visibility` other than public, internal, receipt_only",
            )
        })?,
        Some(_) => {
            return Err(fail(
                "visibility",
                "has a `visibility` that is not a string",
            ));
        }
    };
    let string = |name: &'static str| match part.get(name) {
        Some(Value::String(_)) => Ok(name),
        _ => Err(fail(
            name,
            &format!("of type {kind} needs a string member `{name}`"),
        )),
    };
    let any = |name: &'static str| match part.get(name) {
        Some(_) => Ok(name),
        None => Err(fail(
            name,
            &format!("of type {kind} needs a member `{name}`"),
        )),
    };
    let object = |name: &'static str| match part.get(name) {
        Some(Value::Object(_)) => Ok(name),
        _ => Err(fail(
            name,
            &format!("of type {kind} needs an object member `{name}`"),
        )),
    };
    let members: Vec<&'static str> = match kind.as_str() {
        "text" => vec![string("text")?],
        "json" => vec![any("value")?],
        "tool_call" => vec![string("tool_call_id")?, string("name")?, object("input")?],
        "tool_result" => {
            let members = vec![string("tool_call_id")?, any("output")?, string("status")?];
            if !matches!(
                part.get("status").and_then(Value::as_str),
                Some("ok" | "error")
            ) {
                return Err(fail(
                    "status",
                    "of type tool_result has a `status` other than ok, error",
                ));
            }
            members
        }
        "artifact_ref" => vec![string("artifact_id")?],
        "file_ref" => vec![string("uri")?, string("mime_type")?],
        "image_ref" => vec![string("artifact_id")?, string("mime_type")?],
        _ => {
            let mut whole = part.clone();
            whole.insert("visibility".to_owned(), visibility.as_str().into());
            return Ok(Value::Object(whole));
        }
    };
    let mut stored = Map::new();
    stored.insert("type".to_owned(), kind.as_str().into());
    stored.insert("visibility".to_owned(), visibility.as_str().into());
    for name in members {
        if let Some(value) = part.get(name) {
            stored.insert(name.to_owned(), value.clone());
        }
    }
    Ok(Value::Object(stored))
}

/// Replaces each part that is not public by a descriptor and returns the salted blobs that hold them.
pub(crate) fn hide_private_parts(parts: Vec<Value>, salt: &str) -> (Vec<Value>, Vec<Blob>) {
    let mut blobs = Vec::new();
    let parts = parts
        .into_iter()
        .enumerate()
        .map(|(index, part)| {
            let visibility = part
                .get("visibility")
                .and_then(Value::as_str)
                .unwrap_or_default();
            if visibility == Visibility::Public.as_str() {
                return part;
            }
            let descriptor_type = part.get("type").cloned().unwrap_or_default();
            let visibility = visibility.to_owned();
            let blob = Blob::new(jcs(
                &serde_json::json!({"part": part, "salt": format!("{salt}.{index}")}),
            ));
            let descriptor = serde_json::json!({
                "type": descriptor_type,
                "visibility": visibility,
                "redacted": true,
                "reason": "not_public",
                "sha256": blob.digest,
            });
            blobs.push(blob);
            descriptor
        })
        .collect();
    (parts, blobs)
}

/// Payload members that hold callers' or effects' content. Folding never looks into them, so they may move.
const CONTENT: [&str; 13] = [
    "parts",
    "metadata",
    "input",
    "output",
    "value",
    "answer",
    "remarks",
    "request",
    "request_parts",
    "action",
    "persona",
    "messages",
    "text",
];

/// Moves the largest content members of a payload into blobs until its canonical form fits an event.
///
/// The members moved are listed under [`BLOB_MEMBER`], which no caller's own data can reach: it always lies
/// deeper.
pub fn externalize(mut payload: Map<String, Value>) -> (Map<String, Value>, Vec<Blob>) {
    let mut blobs = Vec::new();
    let size = |(name, value): (&String, &Value)| jcs_len(value) + name.len() + 4;
    let mut total: usize = payload.iter().map(size).sum();
    if total <= INLINE_BYTES_MAX {
        return (payload, blobs);
    }
    let content = payload
        .iter()
        .filter(|(name, _)| CONTENT.contains(&name.as_str()));
    let mut sizes: Vec<(usize, String)> = content
        .map(|(name, value)| (size((name, value)), name.clone()))
        .collect();
    sizes.sort_by(|a, b| b.cmp(a));
    // A payload that is repeated from another event may have members in blobs already.
    let mut listed = match payload.remove(BLOB_MEMBER) {
        Some(Value::Object(listed)) => listed,
        _ => Map::new(),
    };
    for (size, name) in sizes {
        // A descriptor takes about 120 bytes: moving less than that would gain nothing.
        if total <= INLINE_BYTES_MAX || size < 160 {
            break;
        }
        if let Some(value) = payload.remove(&name) {
            let blob = Blob::new(jcs(&value));
            let descriptor = serde_json::json!({"sha256": blob.digest, "bytes": blob.bytes.len()});
            total = total - size + 120 + name.len();
            listed.insert(name, descriptor);
            blobs.push(blob);
        }
    }
    payload.insert(BLOB_MEMBER.to_owned(), Value::Object(listed));
    (payload, blobs)
}

/// Returns the Part that stands for content: whoever wants it reads the Artifact, or the event, of that id.
pub fn artifact_reference(id: &str) -> Value {
    serde_json::json!({"type": "artifact_ref", "artifact_id": id})
}

/// A member that was moved out of a payload into a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExternalMember<'a> {
    /// Its name.
    pub member: &'a str,
    /// The blob.
    pub digest: Digest,
    /// The blob's length, as the payload states it.
    pub bytes: Option<u64>,
}

/// Returns the members that were moved out of a payload. A payload that came with a request names nothing of the log's own,
/// see [`crate::Event::is_substituted`].
pub fn external_members(payload: &Map<String, Value>) -> impl Iterator<Item = ExternalMember<'_>> {
    let listed = payload.get(BLOB_MEMBER).and_then(Value::as_object);
    listed.into_iter().flatten().filter_map(|(member, stated)| {
        Some(ExternalMember {
            member,
            digest: Digest::parse(stated.get("sha256")?.as_str()?).ok()?,
            bytes: stated.get("bytes").and_then(Value::as_u64),
        })
    })
}

/// Returns the digest under which a payload member was stored as a blob.
pub fn blob_reference(payload: &Map<String, Value>, member: &str) -> Option<Digest> {
    let text = payload
        .get(BLOB_MEMBER)?
        .get(member)?
        .get("sha256")?
        .as_str()?;
    Digest::parse(text).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(part: Value) -> Result<Value, &'static str> {
        check_parts(&[part])
            .map(|mut parts| parts.remove(0))
            .map_err(|error| error.member)
    }

    #[test]
    fn ap_part_02_each_type_needs_its_members() {
        let full = [
            json!({"type": "text", "text": "a"}),
            json!({"type": "json", "value": null}),
            json!({"type": "tool_call", "tool_call_id": "c", "name": "n", "input": {}}),
            json!({"type": "tool_result", "tool_call_id": "c", "output": 1, "status": "ok"}),
            json!({"type": "artifact_ref", "artifact_id": "a"}),
            json!({"type": "file_ref", "uri": "u", "mime_type": "m"}),
            json!({"type": "image_ref", "artifact_id": "a", "mime_type": "m"}),
        ];
        for part in full {
            assert!(check(part.clone()).is_ok(), "{part}");
            for name in part.as_object().unwrap().keys() {
                let mut without = part.clone();
                without.as_object_mut().unwrap().remove(name);
                assert_eq!(
                    check(without),
                    Err(name.as_str()).map_err(|name| match name {
                        "type" => "type",
                        "text" => "text",
                        "value" => "value",
                        "tool_call_id" => "tool_call_id",
                        "name" => "name",
                        "input" => "input",
                        "output" => "output",
                        "status" => "status",
                        "artifact_id" => "artifact_id",
                        "uri" => "uri",
                        "mime_type" => "mime_type",
                        _ => "?",
                    })
                );
            }
        }
    }

    #[test]
    fn ap_part_01_visibility_is_public_unless_given_and_never_made_up() {
        assert_eq!(
            check(json!({"type": "text", "text": "a"})).unwrap()["visibility"],
            "public"
        );
        assert_eq!(
            check(json!({"type": "text", "text": "a", "visibility": "secret"})),
            Err("visibility")
        );
        assert_eq!(
            check(json!({"type": "text", "text": "a", "visibility": 1})),
            Err("visibility")
        );
    }

    #[test]
    fn ap_part_03_unknown_types_stay_whole_and_unknown_members_of_known_types_go() {
        let odd = json!({"type": "hologram", "depth": 3, "visibility": "public"});
        assert_eq!(check(odd.clone()).unwrap(), odd);
        assert!(
            check(json!({"type": "text", "text": "a", "extra": 1}))
                .unwrap()
                .get("extra")
                .is_none()
        );
    }

    #[test]
    fn ap_priv_04_private_parts_leave_descriptors_whose_digests_cannot_be_guessed() {
        let part = json!({"type": "text", "text": "4711", "visibility": "internal"});
        let (one, blobs) = hide_private_parts(vec![part.clone()], "salt-a");
        let (other, _) = hide_private_parts(vec![part.clone()], "salt-b");
        assert_eq!(one[0]["redacted"], true);
        assert!(!one[0].to_string().contains("4711"));
        assert_ne!(one[0]["sha256"], other[0]["sha256"]);
        assert_eq!(one[0]["sha256"], blobs[0].digest.to_string());
    }

    #[test]
    fn large_members_move_into_blobs_and_small_payloads_stay() {
        let small = json!({"role": "user", "parts": ["x"]})
            .as_object()
            .unwrap()
            .clone();
        assert_eq!(externalize(small.clone()), (small, vec![]));
        let large = json!({"role": "user", "parts": ["x".repeat(5000)], "metadata": {}});
        let (payload, blobs) = externalize(large.as_object().unwrap().clone());
        assert_eq!(blob_reference(&payload, "parts"), Some(blobs[0].digest));
        let found: Vec<ExternalMember<'_>> = external_members(&payload).collect();
        let expected = ExternalMember {
            member: "parts",
            digest: blobs[0].digest,
            bytes: Some(blobs[0].bytes.len() as u64),
        };
        assert_eq!(found, [expected]);
        assert_eq!(payload.get("parts"), None);
        assert_eq!(payload["role"], "user");
        assert!(jcs(&Value::Object(payload)).len() <= INLINE_BYTES_MAX);
    }
}
