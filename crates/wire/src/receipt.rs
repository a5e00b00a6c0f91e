//! Receipts, verdicts, heads and proofs as the protocol shows them.
//!
//! A receipt travels in two forms: bare, which is what was hashed and signed, and the superset that is also a resource
//! of the contract (C-04). Nothing here hashes or judges.

use canon::{Digest, Map, Value};
use domain::{Batch, State, Timestamp, View, payload};
use serde_json::json;

use crate::InputError;
use crate::render::{Envelope, Source};

/// Our JSON Schema of a bare receipt.
pub const SCHEMA: &str =
    include_str!("../../../conformance/schemas/receipt-2026-04-25.schema.json");

/// The format of the receipts we issue.
pub const FORMAT: &str = "receipt-2026-04-25";

/// The media type of a bare receipt.
pub const MEDIA_TYPE: &str = "application/vnd.harn.receipt+json";

/// The media type of its archive form.
pub const MEDIA_TYPE_CBOR: &str = "application/vnd.harn.receipt+cbor";

/// What the superset adds to a bare receipt.
const ADDED: [&str; 9] = [
    "id",
    "object",
    "format",
    "summary",
    "created_at",
    "updated_at",
    "wire",
    "verification",
    "issuer_id",
];

/// Returns a receipt in its superset form. Without bytes that can be read it says so and shows what events know.
pub fn receipt(view: &View, bytes: Option<&[u8]>) -> Value {
    of_source(Source::of(view), bytes)
}

pub(crate) fn of_source(source: Source<'_>, bytes: Option<&[u8]>) -> Value {
    let document = source.document;
    let bare = bytes.and_then(|bytes| canon::read_object(bytes, canon::Integers::Safe).ok());
    let State::Receipt(state) = &document.state else {
        return Value::Null;
    };
    let subject = json!({"object": "task", "id": state.task_id});
    let mut whole = match &bare {
        Some(bare) => bare.clone(),
        None => Map::from_iter([
            ("schema".to_owned(), FORMAT.into()),
            ("receipt_id".to_owned(), (&*document.id).into()),
            ("subject".to_owned(), subject),
            ("issued_at".to_owned(), json!(document.created_at)),
            ("issuer".to_owned(), json!({})),
            ("metadata".to_owned(), json!({})),
            (
                "chain".to_owned(),
                json!({"receipt_hash": state.receipt_hash, "previous_receipt_hash": state.previous}),
            ),
        ]),
    };
    let member = |name: &str| whole.get(name).cloned().unwrap_or_default();
    let metadata = match member("metadata") {
        Value::Object(map) => Value::Object(map),
        _ => json!({}),
    };
    let verified = state.verified.and_then(|at| source.payloads.get(&at));
    let added = json!({
        "format": member("schema"),
        "summary": summary(bare.as_ref()),
        "issuer_id": member("issuer").get("id").cloned().unwrap_or_default(),
        "wire": {
            "schema_version": member("schema"),
            "subject": member("subject"),
            "issued_at": member("issued_at"),
            "signature": signature(bare.as_ref()),
        },
        // A receipt changes by verifications only: its last change is the last of them.
        "verification": verified.map(|payload| verification(&document.id, payload, document.updated_at)),
    });
    if let Value::Object(mut added) = added {
        if let (Some(Value::Object(wire)), Some(bare)) = (added.get_mut("wire"), bare) {
            wire.insert("payload".to_owned(), Value::Object(bare));
        }
        whole.extend(added);
    }
    let envelope = Envelope {
        id: &document.id,
        object: "receipt",
        created_at: document.created_at,
        updated_at: document.updated_at,
        metadata,
    };
    envelope.with(Value::Object(whole))
}

fn summary(bare: Option<&Map<String, Value>>) -> String {
    let text = |object: &str, name: &str| {
        let member = bare.and_then(|bare| bare.get(object)?.get(name)?.as_str());
        member.unwrap_or("unknown").to_owned()
    };
    if bare.is_none() {
        return "the bytes of this receipt are missing or damaged".to_owned();
    }
    let (object, id) = (text("subject", "object"), text("subject", "id"));
    format!("{object} {id}: {}", text("lifecycle", "final_state"))
}

/// Returns the first signature in the contract's words.
fn signature(bare: Option<&Map<String, Value>>) -> Option<Value> {
    let first = bare?.get("signatures")?.as_array()?.first()?;
    Some(json!({
        "algorithm": first.get("algorithm"),
        "key_id": first.get("key_id"),
        "value": first.get("signature"),
    }))
}

/// Returns a verdict from the payload of the event that recorded it.
pub fn verification(receipt_id: &str, payload: &Map<String, Value>, at: Timestamp) -> Value {
    let said = payload::Verified::of(payload);
    let given = |value: Option<&Value>| value.cloned().unwrap_or_default();
    let valid = said.valid() == Some(&Value::Bool(true));
    let (reason, value) = (given(said.reason()), given(said.value()));
    verdict(Some(receipt_id), valid, reason, value, at)
}

/// Returns a verdict.
pub fn verdict(
    receipt_id: Option<&str>,
    valid: bool,
    reason: Value,
    details: Value,
    at: Timestamp,
) -> Value {
    let details = match details {
        Value::Object(map) => Value::Object(map),
        _ => json!({}),
    };
    json!({
        "object": "receipt_verification",
        "receipt_id": receipt_id,
        "valid": valid,
        "checked_at": at,
        "reason": reason,
        "details": details,
    })
}

/// Returns a sealed head of the receipt log: envelope metadata and members.
pub(crate) fn batch(source: Source<'_>, state: &Batch) -> (Value, Value) {
    let sealed = source.said::<payload::TreeHeadSealed>(state.source);
    let mut checkpoint = sealed.checkpoint().unwrap_or_default().to_owned();
    let own = checkpoint.lines().find(|line| line.starts_with('\u{2014}'));
    let signature = own.map(str::to_owned);
    let cosigned = state.cosigned.iter();
    let lines = cosigned.map(|at| source.said::<payload::TreeHeadCosigned>(*at).line());
    let cosignatures: Vec<&str> = lines.map(Option::unwrap_or_default).collect();
    for line in &cosignatures {
        checkpoint.push_str(line);
        checkpoint.push('\n');
    }
    let members = json!({
        "batch_id": source.document.id,
        "size": state.size,
        "root": state.root,
        "previous_root": sealed.previous_root(),
        "sealed_at": source.document.created_at,
        "signature": signature,
        "cosignatures": cosignatures,
        "checkpoint": checkpoint,
    });
    (json!({}), members)
}

/// The proof that a receipt is in the log.
#[derive(Debug, Clone, Copy)]
pub struct Proof<'a> {
    /// The receipt.
    pub receipt_id: &'a str,
    /// The hash that was logged.
    pub receipt_hash: Digest,
    /// The index of its leaf.
    pub leaf_index: u64,
    /// The sealed head.
    pub batch_id: &'a str,
    /// Its size.
    pub tree_size: u64,
    /// Its root.
    pub root: Digest,
    /// The hashes from the leaf to the root.
    pub path: &'a [Digest],
    /// The signed checkpoint of the head.
    pub checkpoint: &'a str,
}

impl Proof<'_> {
    /// Returns the JSON.
    pub fn render(&self) -> Value {
        json!({
            "object": "receipt_proof",
            "receipt_id": self.receipt_id,
            "receipt_hash": self.receipt_hash,
            "leaf_index": self.leaf_index,
            "batch_id": self.batch_id,
            "tree_size": self.tree_size,
            "root": self.root,
            "path": self.path,
            "checkpoint": self.checkpoint,
        })
    }
}

/// Returns the proof that one head is the beginning of another.
pub fn consistency(from: u64, to: u64, path: &[Digest]) -> Value {
    json!({"object": "receipt_consistency_proof", "from": from, "to": to, "path": path})
}

/// Returns the bare receipt that somebody hands over, out of its superset form when it has that.
///
/// # Errors
/// What stands at the top level is not what `wire.payload` says: then it is not known which of them was meant.
pub fn bare(mut body: Map<String, Value>) -> Result<Map<String, Value>, InputError> {
    let Some(Value::Object(wire)) = body.get_mut("wire") else {
        return Ok(body);
    };
    let Some(Value::Object(payload)) = wire.remove("payload") else {
        return Err(InputError::invalid(
            "wire.payload",
            "must be the bare receipt",
        ));
    };
    let disagrees = |name: &str| {
        let message = format!("disagrees with the top level about `{name}`");
        InputError::invalid("wire.payload", message)
    };
    let same = |name: &str, of: &str| {
        let other = payload.get(of);
        match body.get(name) {
            Some(value) => Some(value) == other,
            None => true,
        }
    };
    for (name, of) in [("id", "receipt_id"), ("format", "schema")] {
        if !same(name, of) {
            return Err(disagrees(name));
        }
    }
    if let Some(name) = contradicted(&body, &payload) {
        return Err(disagrees(name));
    }
    let extra = body.keys().filter(|name| !ADDED.contains(&name.as_str()));
    for name in extra.chain(payload.keys()) {
        if body.get(name) != payload.get(name) {
            return Err(disagrees(name));
        }
    }
    Ok(payload)
}

/// Returns the first member beside a bare receipt that does not follow from it. What a server knows by itself, such as its
/// last verdict, must at least be about this receipt.
fn contradicted(body: &Map<String, Value>, payload: &Map<String, Value>) -> Option<&'static str> {
    let bare = |name: &str| payload.get(name).cloned().unwrap_or_default();
    let issuer = bare("issuer").get("id").cloned().unwrap_or_default();
    let wire = body.get("wire").and_then(Value::as_object);
    let inside = |name: &str| wire.and_then(|wire| wire.get(name));
    let stated = [
        ("object", body.get("object"), "receipt".into()),
        ("issuer_id", body.get("issuer_id"), issuer),
        (
            "summary",
            body.get("summary"),
            summary(Some(payload)).into(),
        ),
        (
            "wire.schema_version",
            inside("schema_version"),
            bare("schema"),
        ),
        ("wire.subject", inside("subject"), bare("subject")),
        ("wire.issued_at", inside("issued_at"), bare("issued_at")),
        (
            "wire.signature",
            inside("signature"),
            json!(signature(Some(payload))),
        ),
    ];
    let other = stated.into_iter().find_map(|(name, found, expected)| {
        let differs = found.is_some_and(|found| *found != expected);
        differs.then_some(name)
    });
    if other.is_some() {
        return other;
    }
    let verified = body
        .get("verification")
        .and_then(|verdict| verdict.get("receipt_id"));
    if verified.is_some_and(|id| *id != bare("receipt_id")) {
        return Some("verification");
    }
    let time = |value: Option<&Value>| {
        let text = value.and_then(Value::as_str)?;
        Timestamp::parse(text).ok()
    };
    // Nothing else stands beside the payload, where a reader could take it for part of what was signed.
    const WIRE: [&str; 4] = ["schema_version", "subject", "issued_at", "signature"];
    let mut around = wire.into_iter().flat_map(Map::keys);
    if around.any(|name| !WIRE.contains(&name.as_str())) {
        return Some("wire");
    }
    // A receipt changes by verifications only: its last change is the last of them, or its own making.
    let verdict = body
        .get("verification")
        .filter(|verdict| !verdict.is_null());
    let changed = match verdict {
        Some(verdict) => verdict.get("checked_at"),
        None => body.get("created_at"),
    };
    let updated = body.get("updated_at");
    if updated.is_some() && time(updated) != time(changed)
        || time(updated).is_none() != updated.is_none()
    {
        return Some("updated_at");
    }
    // It was stored when it was issued, or later: as a replay's or as one of another server.
    let (created, issued) = (time(body.get("created_at")), time(payload.get("issued_at")));
    let is_early = created
        .zip(issued)
        .is_some_and(|(created, issued)| created < issued);
    let is_malformed = body.contains_key("created_at") && created.is_none();
    (is_early || is_malformed).then_some("created_at")
}

#[cfg(test)]
mod tests;
