//! Trust records, format `opentrustgraph/v0`: who let an agent do what, as a hash chain of its own.
//!
//! Builds and signs records and exports chains; `check` reads them. What a decision means for an agent
//! is decided elsewhere.

mod check;

use canon::{Digest, Integers, Map, Value, jcs, sha256};

#[cfg(test)]
pub(crate) use check::EXPORT;
use check::{RECORD, shows_approval};
pub use check::{TrustFault, TrustRefusal, follows, verify_export, verify_signatures};

use crate::{
    build::{
        BuildError, digest_or_null, list, money, number, object, optional_text, some, some_list,
        text,
    },
    chain::Head,
    facts::{Micros, Tier, words},
    keys::{ED25519, Signer},
    receipt::ReadReceiptError,
    shape,
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
        Self::finish(unsealed(facts, head)?)
    }

    /// Builds the record that follows a head, with a signature for the approver's word.
    ///
    /// The key is not the approver's own: whoever holds it vouches that the approver decided this. The message
    /// is the text of [`statement_hash`].
    ///
    /// # Errors
    /// As [`TrustRecord::build`]; also when there is no approver to sign for.
    pub fn signed(facts: &TrustFacts, head: &Head, signer: &Signer) -> Result<Self, TrustError> {
        let Some(reviewer) = &facts.approver else {
            return Err(TrustError::ApprovalMissing);
        };
        let mut map = unsealed(facts, head)?;
        let entry = Value::Object(object([
            ("reviewer", text(reviewer)),
            ("signed_at", text(&facts.timestamp)),
            ("algorithm", text(ED25519)),
            ("key_id", text(signer.key_id())),
            ("signature", text(&signer.sign(&statement_hash(&map)))),
        ]));
        let list = map
            .get_mut("metadata")
            .and_then(|metadata| metadata.get_mut("approval")?.get_mut("signatures"));
        match list {
            Some(Value::Array(list)) => list.push(entry),
            _ => return Err(TrustError::ApprovalMissing),
        }
        Self::finish(map)
    }

    /// Takes a record as it was stored. Whether it holds is for [`verify_export`] to say.
    pub fn stored(map: Map<String, Value>) -> Self {
        let stated = check::digest_of(&map, "entry_hash");
        Self {
            entry_hash: stated.unwrap_or_else(|| entry_hash(&map)),
            map,
        }
    }

    fn finish(mut map: Map<String, Value>) -> Result<Self, TrustError> {
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

    /// Returns the document.
    pub fn as_map(&self) -> &Map<String, Value> {
        &self.map
    }

    /// Returns the canonical bytes.
    pub fn bytes(&self) -> Vec<u8> {
        jcs(&Value::Object(self.map.clone()))
    }
}

/// A record without its own hash.
fn unsealed(facts: &TrustFacts, head: &Head) -> Result<Map<String, Value>, TrustError> {
    let cost = facts.cost.map(money).transpose()?.flatten();
    let mut metadata = facts.metadata.clone();
    if let Some(approval) = &facts.approval {
        metadata.insert("approval".to_owned(), Value::Object(evidence(approval)));
    }
    Ok(object([
        ("schema", text(RECORD_FORMAT)),
        ("record_id", text(&facts.record_id)),
        ("agent", text(&facts.agent)),
        ("action", text(&facts.action)),
        (
            "approver",
            Some(optional_text(&facts.approver).unwrap_or_default()),
        ),
        ("outcome", text(facts.outcome.as_str())),
        ("trace_id", text(&facts.trace_id)),
        ("autonomy_tier", text(facts.tier.as_str())),
        ("timestamp", text(&facts.timestamp)),
        ("cost_usd", Some(cost.unwrap_or_default())),
        ("chain_index", number(head.count + 1)),
        ("previous_hash", Some(digest_or_null(head.hash))),
        ("metadata", some(metadata)),
    ]))
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

/// Returns the hash of a record of any version of the format: over its canonical form without
/// `entry_hash`.
pub fn entry_hash(record: &Map<String, Value>) -> Digest {
    let mut record = record.clone();
    record.remove("entry_hash");
    sha256(&jcs(&Value::Object(record)))
}

/// Returns what a reviewer's signature is made over: the hash of the canonical record without
/// `entry_hash` and without `metadata.approval.signatures`.
pub fn statement_hash(record: &Map<String, Value>) -> Digest {
    let mut record = record.clone();
    record.remove("entry_hash");
    let approval = record
        .get_mut("metadata")
        .and_then(|metadata| metadata.get_mut("approval"));
    if let Some(Value::Object(approval)) = approval {
        approval.remove("signatures");
    }
    sha256(&jcs(&Value::Object(record)))
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
