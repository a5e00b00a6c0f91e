//! Checking trust records: shape, hashes, links, evidence of approval, signatures.
//!
//! The order of the checks is the format's. Signatures are asked for separately, because only their keys say
//! whose they are.

use canon::{Digest, Integers, Map, ReadError, Value};

use super::{EXPORT_FORMAT, RECORD_FORMAT, TrustOutcome, entry_hash, statement_hash};
use crate::{
    chain::Head,
    facts::{Tier, words},
    format::TIER,
    keys::{KeySet, SignatureFault},
    receipt::StatedSignature,
    shape::{self, Closed, Shape, ShapeError, may, need},
    time,
};

words! {
    /// Why a chain of trust records does not hold.
    TrustFault {
        SchemaInvalid = "schema_invalid",
        EntryHashMismatch = "entry_hash_mismatch",
        ChainLinkBroken = "chain_link_broken",
        TotalMismatch = "total_mismatch",
        RootHashMismatch = "root_hash_mismatch",
        ApprovalMissing = "approval_missing",
        AlgorithmUnsupported = "algorithm_unsupported",
        KeyUnknown = "key_unknown",
        KeyNotValidAtTime = "key_not_valid_at_time",
        SignatureInvalid = "signature_invalid",
    }
}

/// The first thing that is wrong with an export.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", fault.as_str())]
pub struct TrustRefusal {
    fault: TrustFault,
    record: Option<usize>,
    message: String,
}

impl TrustRefusal {
    /// Returns the class of the fault.
    pub fn fault(&self) -> TrustFault {
        self.fault
    }

    /// Returns which record it was found in, counting from 0.
    pub fn record(&self) -> Option<usize> {
        self.record
    }

    fn at(mut self, index: usize) -> Self {
        self.record = Some(index);
        self
    }
}

impl From<ReadError> for TrustRefusal {
    fn from(error: ReadError) -> Self {
        refusal(TrustFault::SchemaInvalid, None, error.to_string())
    }
}

impl From<ShapeError> for TrustRefusal {
    fn from(error: ShapeError) -> Self {
        refusal(TrustFault::SchemaInvalid, None, error.to_string())
    }
}

/// Checks an export: shape, every hash, every link, total and root, approvals, in this order.
///
/// Returns the head of the chain.
///
/// # Errors
/// Returns the first fault. What the export says about itself in `verified` is not believed.
pub fn verify_export(bytes: &[u8]) -> Result<Head, TrustRefusal> {
    let document = canon::read_object(bytes, Integers::Safe)?;
    shape::check_object(&document, &EXPORT)?;
    let records = records(&document);
    for (index, record) in records.iter().enumerate() {
        check_hash(record).map_err(|refusal| refusal.at(index))?;
    }
    let mut head = Head::EMPTY;
    for (index, record) in records.iter().enumerate() {
        head = follows(&head, record).map_err(|refusal| refusal.at(index))?;
    }
    let chain = document.get("chain").and_then(Value::as_object);
    let total = chain.and_then(|chain| chain.get("total")?.as_f64());
    if total != Some(records.len() as f64) {
        let message = format!("export has {} records", records.len());
        return Err(refusal(TrustFault::TotalMismatch, None, message));
    }
    if chain.and_then(|chain| digest_of(chain, "root_hash")) != head.hash {
        let message = "root is not the hash of the last record".to_owned();
        return Err(refusal(TrustFault::RootHashMismatch, None, message));
    }
    for (index, record) in records.iter().enumerate() {
        if !shows_approval(record) {
            let message = "approval was required and is not shown".to_owned();
            return Err(refusal(TrustFault::ApprovalMissing, Some(index), message));
        }
    }
    Ok(head)
}

/// Checks the hash of a record and that it follows a head. Returns the head after it.
///
/// # Errors
/// Its hash is not that of its content, or it follows another one.
pub fn follows(head: &Head, record: &Map<String, Value>) -> Result<Head, TrustRefusal> {
    let hash = check_hash(record)?;
    let index = record.get("chain_index").and_then(Value::as_f64);
    if digest_of(record, "previous_hash") != head.hash || index != Some((head.count + 1) as f64) {
        let message = "record does not follow the one before".to_owned();
        return Err(refusal(TrustFault::ChainLinkBroken, None, message));
    }
    Ok(head.advanced(hash))
}

fn check_hash(record: &Map<String, Value>) -> Result<Digest, TrustRefusal> {
    let computed = entry_hash(record);
    if digest_of(record, "entry_hash") != Some(computed) {
        let message = format!("content gives `{computed}`");
        return Err(refusal(TrustFault::EntryHashMismatch, None, message));
    }
    Ok(computed)
}

/// Checks the reviewers' signatures in an export that names keys. Returns how many hold.
///
/// Signatures without a key id are in a form of their producer's own: they are not counted.
///
/// # Errors
/// Returns the first that does not hold.
pub fn verify_signatures(bytes: &[u8], keys: &KeySet) -> Result<u64, TrustRefusal> {
    let document = canon::read_object(bytes, Integers::Safe)?;
    shape::check_object(&document, &EXPORT)?;
    let mut count = 0;
    for (index, record) in records(&document).into_iter().enumerate() {
        for entry in signatures(record) {
            if entry.get("key_id").is_some() {
                check_signature(record, entry, keys).map_err(|refusal| refusal.at(index))?;
                count += 1;
            }
        }
    }
    Ok(count)
}

fn check_signature(
    record: &Map<String, Value>,
    entry: &Value,
    keys: &KeySet,
) -> Result<(), TrustRefusal> {
    let member = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
    // The reviewer's name stands outside of what is signed; the approver's inside.
    if record.get("approver") != entry.get("reviewer") {
        let message = format!("`{}` is not the approver", member("reviewer"));
        return Err(refusal(TrustFault::SignatureInvalid, None, message));
    }
    let stated = StatedSignature {
        key_id: member("key_id"),
        algorithm: member("algorithm"),
        signature: member("signature"),
    };
    let at = record.get("timestamp").and_then(Value::as_str);
    let checked = keys.check(stated, &statement_hash(record), at.and_then(time::parse));
    let (fault, about) = match checked {
        Ok(_) => return Ok(()),
        Err(SignatureFault::AlgorithmUnsupported) => {
            (TrustFault::AlgorithmUnsupported, stated.algorithm)
        }
        Err(SignatureFault::KeyUnknown) => (TrustFault::KeyUnknown, stated.key_id),
        Err(SignatureFault::KeyNotValidAtTime) => (TrustFault::KeyNotValidAtTime, stated.key_id),
        Err(SignatureFault::SignatureInvalid) => (TrustFault::SignatureInvalid, stated.key_id),
    };
    Err(refusal(fault, None, format!("signature by `{about}`")))
}

fn records(document: &Map<String, Value>) -> Vec<&Map<String, Value>> {
    let list = document.get("records").and_then(Value::as_array);
    let records = list.into_iter().flatten();
    records.filter_map(Value::as_object).collect()
}

fn signatures(record: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let approval = record.get("metadata").and_then(|data| data.get("approval"));
    let list = approval.and_then(|approval| approval.get("signatures")?.as_array());
    list.into_iter().flatten()
}

pub(crate) static EXPORT: Closed = Closed {
    members: &[
        need("chain", Shape::Closed(&CHAIN)),
        need("records", Shape::List(&Shape::Closed(&RECORD))),
        need("schema", Shape::OneOf(&[EXPORT_FORMAT])),
    ],
    any_of: &[],
};

static CHAIN: Closed = Closed {
    members: &[
        need("generated_at", Shape::Time),
        need("producer", Shape::Closed(&PRODUCER)),
        need("root_hash", Shape::DigestOrNull),
        need("topic", Shape::Text),
        need("total", Shape::Whole(0.0)),
        need("verified", Shape::Flag),
    ],
    any_of: &[],
};

static PRODUCER: Closed = Closed {
    members: &[need("name", Shape::Text), need("version", Shape::Text)],
    any_of: &[],
};

pub(super) static RECORD: Closed = Closed {
    members: &[
        need("action", Shape::Text),
        need("agent", Shape::Text),
        may("approver", Shape::TextOrNull),
        need("autonomy_tier", TIER),
        need("chain_index", Shape::Whole(1.0)),
        may("cost_usd", Shape::AmountOrNull),
        need("entry_hash", Shape::Digest),
        need("metadata", Shape::Open),
        need(
            "outcome",
            Shape::OneOf(&["success", "failure", "denied", "timeout"]),
        ),
        need("previous_hash", Shape::DigestOrNull),
        need("record_id", Shape::Text),
        need("schema", Shape::OneOf(&[RECORD_FORMAT])),
        need("timestamp", Shape::Time),
        need("trace_id", Shape::Text),
    ],
    any_of: &[],
};

/// Tells whether a record that needed an approval shows one; true for all others.
pub(super) fn shows_approval(record: &Map<String, Value>) -> bool {
    let is = |name: &str, word: &str| record.get(name).is_some_and(|value| value == word);
    let approval = record.get("metadata").and_then(|data| data.get("approval"));
    let Some(approval) = approval else {
        return true;
    };
    let needed = is("outcome", TrustOutcome::Success.as_str())
        && is("autonomy_tier", Tier::ActWithApproval.as_str())
        && approval.get("required") == Some(&Value::Bool(true));
    let has = |member: &str, shape: &Shape| {
        let value = approval.get(member);
        value.is_some_and(|value| shape::check(value, shape).is_ok())
    };
    let signatures = approval.get("signatures").and_then(Value::as_array);
    let all_signed = signatures.is_some_and(|list| !list.is_empty() && list.iter().all(is_signed));
    !needed
        || (record.get("approver").is_some_and(Value::is_string)
            && has("quorum", &Shape::Whole(1.0))
            && all_signed)
}

fn is_signed(entry: &Value) -> bool {
    let has = |name: &str, shape: &Shape| {
        let value = entry.get(name);
        value.is_some_and(|value| shape::check(value, shape).is_ok())
    };
    has("reviewer", &Shape::Text)
        && has("signed_at", &Shape::Time)
        && has("signature", &Shape::Text)
}

pub(super) fn digest_of(map: &Map<String, Value>, name: &str) -> Option<Digest> {
    Digest::parse(map.get(name)?.as_str()?).ok()
}

fn refusal(fault: TrustFault, record: Option<usize>, message: String) -> TrustRefusal {
    TrustRefusal {
        fault,
        record,
        message,
    }
}
