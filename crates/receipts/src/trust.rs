//! Trust records, format `opentrustgraph/v0`: who let an agent do what, as a hash chain of its own.
//!
//! Builds records, exports chains and checks exports in the order that the format states. What a
//! decision means for an agent is decided elsewhere.

use canon::{Digest, Integers, Map, ReadError, Value, jcs, sha256};

use crate::{
    build::{
        BuildError, digest_or_null, list, maybe, money, number, object, some, some_list, text,
    },
    chain::Head,
    facts::{Micros, Tier, words},
    format::TIER,
    receipt::ReadReceiptError,
    shape::{self, Closed, Shape, ShapeError, may, need},
};

const RECORD_FORMAT: &str = "opentrustgraph/v0";
const EXPORT_FORMAT: &str = "opentrustgraph-chain/v0";

words! {
    /// What came of a decision.
    TrustOutcome {
        Success = "success",
        Failure = "failure",
        Denied = "denied",
        Timeout = "timeout",
    }
}

words! {
    /// Why a chain of trust records does not hold.
    TrustFault {
        SchemaInvalid = "schema_invalid",
        EntryHashMismatch = "entry_hash_mismatch",
        ChainLinkBroken = "chain_link_broken",
        TotalMismatch = "total_mismatch",
        RootHashMismatch = "root_hash_mismatch",
        ApprovalMissing = "approval_missing",
    }
}

/// One decision, as plain data.
#[derive(Debug, Clone, PartialEq)]
pub struct TrustFacts {
    /// A unique id.
    pub record_id: String,
    /// Whom it concerns.
    pub agent: String,
    /// What it is about.
    pub action: String,
    /// Who approved; none if nobody was asked.
    pub approver: Option<String>,
    /// What came of it.
    pub outcome: TrustOutcome,
    /// The trace it belongs to.
    pub trace_id: String,
    /// The tier at that time.
    pub tier: Tier,
    /// When.
    pub timestamp: String,
    /// What it cost, if known.
    pub cost: Option<Micros>,
    /// The approval that was required, if one was.
    pub approval: Option<ApprovalEvidence>,
    /// What else is known; the member `approval` is set by the builder.
    pub metadata: Map<String, Value>,
}

/// The proof that a required approval was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalEvidence {
    /// How many reviewers had to agree.
    pub quorum: u64,
    /// Those who did.
    pub signatures: Vec<ReviewerSignature>,
}

/// One reviewer's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewerSignature {
    /// Who.
    pub reviewer: String,
    /// When.
    pub signed_at: String,
    /// The signature, in whatever form the reviewer's system gives.
    pub signature: String,
}

/// A record that has its place in a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct TrustRecord {
    map: Map<String, Value>,
    entry_hash: Digest,
}

/// A record could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// A fact cannot be said in the format.
    #[error(transparent)]
    Facts(#[from] BuildError),
    /// The decision needed an approval that it does not show.
    #[error("approval was required and is not shown")]
    ApprovalMissing,
}

impl TrustRecord {
    /// Builds the record that follows a head.
    ///
    /// # Errors
    /// A fact cannot be said in the format, or a required approval is not shown.
    pub fn build(facts: &TrustFacts, head: &Head) -> Result<Self, TrustError> {
        let cost = facts.cost.map(money).transpose()?.flatten();
        let mut metadata = facts.metadata.clone();
        if let Some(approval) = &facts.approval {
            metadata.insert("approval".to_owned(), Value::Object(evidence(approval)));
        }
        let mut map = object([
            ("schema", text(RECORD_FORMAT)),
            ("record_id", text(&facts.record_id)),
            ("agent", text(&facts.agent)),
            ("action", text(&facts.action)),
            ("approver", Some(maybe(&facts.approver).unwrap_or_default())),
            ("outcome", text(facts.outcome.as_str())),
            ("trace_id", text(&facts.trace_id)),
            ("autonomy_tier", text(facts.tier.as_str())),
            ("timestamp", text(&facts.timestamp)),
            ("cost_usd", Some(cost.unwrap_or_default())),
            ("chain_index", number(head.count + 1)),
            ("previous_hash", Some(digest_or_null(head.hash))),
            ("metadata", some(metadata)),
        ]);
        let entry_hash = entry_hash(&map);
        map.insert("entry_hash".to_owned(), entry_hash.to_string().into());
        // The round trip refuses unsafe integers, the shape everything else.
        let unfit = |error: ReadReceiptError| TrustError::Facts(BuildError::Unfit(error));
        let map = canon::read_object(&jcs(&Value::Object(map)), Integers::Safe)
            .map_err(|error| unfit(error.into()))?;
        shape::check_object(&map, &RECORD).map_err(|error| unfit(error.into()))?;
        if !shows_approval(&map) {
            return Err(TrustError::ApprovalMissing);
        }
        Ok(Self { map, entry_hash })
    }

    /// Returns the hash; a receipt's approval names it as evidence.
    pub fn entry_hash(&self) -> Digest {
        self.entry_hash
    }

    /// Returns the canonical bytes.
    pub fn bytes(&self) -> Vec<u8> {
        jcs(&Value::Object(self.map.clone()))
    }
}

/// Who exports a chain, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportHeader {
    /// The name of the stream.
    pub topic: String,
    /// When.
    pub generated_at: String,
    /// The program.
    pub producer_name: String,
    /// Its version.
    pub producer_version: String,
}

/// Writes a whole chain, from its first record, as canonical bytes.
///
/// The export states to be verified only if [`verify_export`] finds nothing wrong with it.
pub fn export(header: &ExportHeader, records: &[TrustRecord]) -> Vec<u8> {
    let write = |verified: bool| {
        let last = records.last().map(TrustRecord::entry_hash);
        let producer = object([
            ("name", text(&header.producer_name)),
            ("version", text(&header.producer_version)),
        ]);
        jcs(&Value::Object(object([
            ("schema", text(EXPORT_FORMAT)),
            (
                "chain",
                some(object([
                    ("topic", text(&header.topic)),
                    ("total", number(records.len() as u64)),
                    ("root_hash", Some(digest_or_null(last))),
                    ("verified", Some(verified.into())),
                    ("generated_at", text(&header.generated_at)),
                    ("producer", some(producer)),
                ])),
            ),
            ("records", list(records, |record| record.map.clone())),
        ])))
    };
    let bytes = write(true);
    if verify_export(&bytes).is_ok() {
        bytes
    } else {
        write(false)
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
    let records: Vec<&Map<String, Value>> = document
        .get("records")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
        .collect();
    for (index, record) in records.iter().enumerate() {
        let computed = entry_hash(record);
        if digest_of(record, "entry_hash") != Some(computed) {
            let message = format!("content gives `{computed}`");
            return Err(refusal(TrustFault::EntryHashMismatch, Some(index), message));
        }
    }
    let mut head = Head::EMPTY;
    for (index, record) in records.iter().enumerate() {
        let is_next =
            record.get("chain_index").and_then(Value::as_f64) == Some((head.count + 1) as f64);
        if digest_of(record, "previous_hash") != head.hash || !is_next {
            let message = "record does not follow the one before".to_owned();
            return Err(refusal(TrustFault::ChainLinkBroken, Some(index), message));
        }
        head = digest_of(record, "entry_hash").map_or(head, |hash| head.advanced(hash));
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

/// Returns the hash of a record of any version of the format: over its canonical form without
/// `entry_hash`.
pub fn entry_hash(record: &Map<String, Value>) -> Digest {
    let mut record = record.clone();
    record.remove("entry_hash");
    sha256(&jcs(&Value::Object(record)))
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

static RECORD: Closed = Closed {
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
fn shows_approval(record: &Map<String, Value>) -> bool {
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

fn evidence(approval: &ApprovalEvidence) -> Map<String, Value> {
    let signatures = approval.signatures.iter().map(|signature| {
        Value::Object(object([
            ("reviewer", text(&signature.reviewer)),
            ("signed_at", text(&signature.signed_at)),
            ("signature", text(&signature.signature)),
        ]))
    });
    object([
        ("required", Some(true.into())),
        ("quorum", number(approval.quorum)),
        ("signatures", some_list(signatures.collect())),
    ])
}

fn digest_of(map: &Map<String, Value>, name: &str) -> Option<Digest> {
    Digest::parse(map.get(name)?.as_str()?).ok()
}

fn refusal(fault: TrustFault, record: Option<usize>, message: String) -> TrustRefusal {
    TrustRefusal {
        fault,
        record,
        message,
    }
}
