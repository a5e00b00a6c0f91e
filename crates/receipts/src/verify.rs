//! The verification of a receipt, step by step, with a reason for each failure.
//!
//! Takes what the caller could find out (the predecessor, batches, keys, stored artifacts) as values
//! and looks nothing up. Only a document that is not a receipt stops it; all other results are
//! collected. What was not asked is listed as skipped, never as passed.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use canon::{Digest, Value, sha256};

use crate::{
    facts::words,
    keys::{KeySet, PublicKey, SignatureFault},
    merkle,
    receipt::{ReadReceiptError, Receipt},
    time,
};

words! {
    /// Why a check failed.
    Code {
        SchemaInvalid = "schema_invalid",
        NotCanonical = "not_canonical",
        ReceiptHashMismatch = "receipt_hash_mismatch",
        PreviousReceiptMissing = "previous_receipt_missing",
        ChainMismatch = "chain_mismatch",
        MerkleBatchUnknown = "merkle_batch_unknown",
        MerkleMismatch = "merkle_mismatch",
        SignatureInvalid = "signature_invalid",
        KeyUnknown = "key_unknown",
        KeyNotValidAtTime = "key_not_valid_at_time",
        KeyRetired = "key_retired",
        AlgorithmUnsupported = "algorithm_unsupported",
        UntrustedAnchor = "untrusted_anchor",
        SignatureMissing = "signature_missing",
        SignatureNotChecked = "signature_not_checked",
        Unsigned = "unsigned",
        ReceiptIdConflict = "receipt_id_conflict",
        SubjectMissing = "subject_missing",
        MaterialMismatch = "material_mismatch",
        ContentMismatch = "content_mismatch",
    }
}

words! {
    /// What can be said of the signatures together.
    Signatures {
        None = "none",
        Valid = "valid",
        Invalid = "invalid",
        Unchecked = "unchecked",
    }
}

/// What the verifier is given besides the receipt.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Which bytes may carry the receipt.
    pub form: Form,
    /// What is known of its stream.
    pub predecessor: Predecessor,
    /// The sealed batches that are known.
    pub batches: &'a [Batch],
    /// The proof that the receipt is in a log.
    pub inclusion: Option<&'a Inclusion>,
    /// Whose signature makes it valid.
    pub keys: Keys<'a>,
    /// The time at which keys must have been valid, RFC 3339; none: the time of issue.
    pub at_time: Option<&'a str>,
    /// A key, by id or thumbprint, that must have signed.
    pub trust_anchor: Option<&'a str>,
    /// What the receipt points to, if it is one's own.
    pub references: Option<&'a References>,
}

/// Whose signature is asked for. Without a signature that was checked no receipt is valid, whatever else holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys<'a> {
    /// One of these must have signed, and every signature must hold.
    Given(&'a KeySet),
    /// None are known: signatures cannot be checked, which is a failure.
    Unknown,
    /// Nobody asks who signed; only whether the document is whole.
    NotAsked,
}

/// Which bytes may carry a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Any JSON text: a file that someone handed over.
    AnyJson,
    /// The canonical bytes only: a receipt from one's own store.
    Canonical,
}

/// What is known of the stream that a receipt belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Predecessor {
    /// Nothing; the link is not checked.
    NotAsked,
    /// The stream has no earlier receipt, or it cannot be found.
    Absent,
    /// The hash of the earlier receipt, or of the source of a replay.
    Hash(Digest),
}

/// A sealed tree head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// The number of leaves.
    pub size: u64,
    /// The root.
    pub root: Digest,
}

/// The proof that a receipt is in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inclusion {
    /// The place of its leaf.
    pub leaf_index: u64,
    /// The tree head; it must be one of the known batches.
    pub batch: Batch,
    /// The hashes from the leaf to the root.
    pub path: Vec<Digest>,
}

/// What became of the things that a receipt points to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct References {
    /// Whether the subject is there.
    pub subject_exists: bool,
    /// The digest of the stored bytes by address; what is absent here was pruned or redacted.
    pub digests: BTreeMap<String, Digest>,
}

/// One result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What was checked; a signature is named with its place, `signature/0`.
    pub name: String,
    /// Whether it holds.
    pub ok: bool,
    /// Why it does not.
    pub code: Option<Code>,
    /// What would have been right.
    pub expected: Option<String>,
    /// What was there.
    pub found: Option<String>,
}

impl Check {
    /// Tells whether this is about who made the receipt, not about what it says.
    pub fn is_about_author(&self) -> bool {
        self.name.starts_with("signature/")
            || matches!(self.name.as_str(), "signatures" | "anchor" | "stored")
    }
}

/// All results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The id that the receipt states, if it is a receipt at all.
    pub receipt_id: Option<String>,
    /// The results, in the order of the checks.
    pub checks: Vec<Check>,
    /// What was not asked and so is not known.
    pub skipped: Vec<&'static str>,
    /// What can be said of the signatures together.
    pub signatures: Signatures,
    /// The ids of the keys whose signatures hold.
    pub signed_by: Vec<String>,
    /// How many things it points to are still there with the stated bytes.
    pub materials_available: usize,
    /// The addresses of those that are gone, which does not make the receipt invalid.
    pub materials_unavailable: Vec<String>,
}

impl Report {
    /// Tells whether every check that was made holds, and a known key vouches for the content.
    pub fn is_valid(&self) -> bool {
        self.signatures == Signatures::Valid && self.checks.iter().all(|check| check.ok)
    }

    /// Tells whether the document is what its hash says, whoever made it.
    pub fn is_whole(&self) -> bool {
        let mut about_content = self.checks.iter().filter(|check| !check.is_about_author());
        about_content.all(|check| check.ok)
    }

    /// Returns the first reason why not.
    pub fn reason(&self) -> Option<Code> {
        self.checks.iter().find_map(|check| check.code)
    }

    fn pass(&mut self, name: impl Into<String>) {
        self.checks.push(Check {
            name: name.into(),
            ok: true,
            code: None,
            expected: None,
            found: None,
        });
    }

    fn fail(
        &mut self,
        name: impl Into<String>,
        code: Code,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) {
        self.checks.push(Check {
            name: name.into(),
            ok: false,
            code: Some(code),
            expected: Some(expected.into()),
            found: Some(found.into()),
        });
    }
}

/// Verifies a receipt.
pub fn verify(bytes: &[u8], evidence: &Evidence<'_>) -> Report {
    let mut report = Report {
        receipt_id: None,
        checks: Vec::new(),
        skipped: Vec::new(),
        signatures: Signatures::None,
        signed_by: Vec::new(),
        materials_available: 0,
        materials_unavailable: Vec::new(),
    };
    let receipt = match Receipt::read(bytes) {
        Ok(receipt) => receipt,
        Err(error) => {
            let (expected, found) = match &error {
                ReadReceiptError::Json(error) => ("strict JSON".to_owned(), error.to_string()),
                ReadReceiptError::Shape(error) => {
                    (error.problem().to_owned(), error.pointer().to_owned())
                }
            };
            report.fail("schema", Code::SchemaInvalid, expected, found);
            return report;
        }
    };
    report.receipt_id = Some(receipt.id().to_owned());
    report.pass("schema");
    if evidence.form == Form::Canonical {
        let canonical = receipt.bytes();
        if canonical == bytes {
            report.pass("canonical");
        } else {
            let (expected, found) = (sha256(&canonical), sha256(bytes));
            report.fail(
                "canonical",
                Code::NotCanonical,
                format!("bytes with digest {expected}"),
                format!("bytes with digest {found}"),
            );
        }
    }
    check_hash(&receipt, &mut report);
    check_chain(&receipt, evidence.predecessor, &mut report);
    check_merkle(&receipt, evidence, &mut report);
    check_signatures(&receipt, evidence, &mut report);
    check_inline_materials(&receipt, &mut report);
    check_references(&receipt, evidence.references, &mut report);
    // Last: whoever reads only the first reason learns first that the content is wrong.
    check_vouched(&receipt, evidence.keys, &mut report);
    report
}

/// The list of signatures stands outside the hash, so that taking it away leaves no other trace than its absence.
fn check_vouched(receipt: &Receipt, keys: Keys<'_>, report: &mut Report) {
    let signers: Vec<&str> = receipt.signatures().map(|stated| stated.key_id).collect();
    match (keys, signers.is_empty()) {
        (Keys::NotAsked, _) => report.skipped.push("signatures"),
        (Keys::Given(_), false) => {}
        (Keys::Given(_), true) => {
            let expected = "a signature by a key of the key set";
            report.fail("signatures", Code::SignatureMissing, expected, NO_SIGNATURE);
        }
        (Keys::Unknown, true) => {
            report.fail("signatures", Code::Unsigned, "a signature", NO_SIGNATURE);
        }
        (Keys::Unknown, false) => {
            let expected = format!("the public key of {}", signers.join(", "));
            let code = Code::SignatureNotChecked;
            report.fail("signatures", code, expected, "no keys");
        }
    }
}

fn check_hash(receipt: &Receipt, report: &mut Report) {
    let (expected, found) = (Some(receipt.hash()), receipt.stated_hash());
    if expected == found {
        report.pass("hash");
    } else {
        let (expected, found) = (words_of(expected), words_of(found));
        report.fail("hash", Code::ReceiptHashMismatch, expected, found);
    }
}

fn check_chain(receipt: &Receipt, predecessor: Predecessor, report: &mut Report) {
    let stated = receipt.previous_hash();
    match predecessor {
        Predecessor::NotAsked => report.skipped.push("chain"),
        Predecessor::Absent if stated.is_some() => {
            let expected = words_of(stated);
            report.fail("chain", Code::PreviousReceiptMissing, expected, NOTHING);
        }
        Predecessor::Hash(hash) if stated != Some(hash) => {
            let expected = words_of(Some(hash));
            report.fail("chain", Code::ChainMismatch, expected, words_of(stated));
        }
        Predecessor::Absent | Predecessor::Hash(_) => report.pass("chain"),
    }
}

fn check_merkle(receipt: &Receipt, evidence: &Evidence<'_>, report: &mut Report) {
    let batches = evidence.batches;
    if let Some(root) = receipt.merkle_root() {
        let found = words_of(Some(root));
        let known = batches.iter().filter(|batch| batch.root == root);
        // A receipt can only know a tree that was sealed before it was added.
        let is_later = |size: u64| {
            evidence
                .inclusion
                .is_some_and(|inclusion| size > inclusion.leaf_index)
        };
        match known.map(|batch| batch.size).min() {
            None => {
                let expected = "the root of a known head";
                report.fail("merkle_root", Code::MerkleBatchUnknown, expected, found);
            }
            Some(size) if is_later(size) => {
                let expected = "the root of a head from before the receipt";
                report.fail("merkle_root", Code::MerkleMismatch, expected, found);
            }
            Some(_) => report.pass("merkle_root"),
        }
    }
    match evidence.inclusion {
        None => report.skipped.push("inclusion"),
        Some(inclusion) => {
            let Inclusion {
                leaf_index,
                batch: Batch { size, root },
                path,
            } = inclusion;
            let leaf = merkle::leaf(&receipt.hash());
            let reached = merkle::inclusion_root(&leaf, *leaf_index, *size, path);
            if !batches.contains(&inclusion.batch) {
                let found = words_of(Some(*root));
                let expected = "the root of a known head";
                report.fail("inclusion", Code::MerkleBatchUnknown, expected, found);
            } else if reached == Some(*root) {
                report.pass("inclusion");
            } else {
                let expected = words_of(Some(*root));
                let found = reached.map_or_else(
                    || "a path that leads to no root".to_owned(),
                    |root| root.to_string(),
                );
                report.fail("inclusion", Code::MerkleMismatch, expected, found);
            }
        }
    }
}

fn check_signatures(receipt: &Receipt, evidence: &Evidence<'_>, report: &mut Report) {
    let is_signed = receipt.signatures().next().is_some();
    match evidence.keys {
        Keys::Given(keys) => check_each_signature(receipt, keys, evidence.at_time, report),
        Keys::Unknown | Keys::NotAsked if is_signed => report.signatures = Signatures::Unchecked,
        Keys::Unknown | Keys::NotAsked => {}
    }
    let Some(anchor) = evidence.trust_anchor else {
        report.skipped.push("anchor");
        return;
    };
    let is_anchor = |key: &PublicKey| {
        let is_signer = report.signed_by.contains(&key.key_id);
        is_signer && (anchor == key.key_id || anchor == key.thumbprint())
    };
    match evidence.keys {
        Keys::Given(keys) if keys.keys().iter().any(is_anchor) => report.pass("anchor"),
        Keys::Given(_) | Keys::Unknown | Keys::NotAsked => {
            let signers: Vec<&str> = receipt.signatures().map(|stated| stated.key_id).collect();
            let found = match signers.as_slice() {
                [] => NO_SIGNATURE.to_owned(),
                signers => format!("signed by {}", signers.join(", ")),
            };
            let expected = format!("a valid signature by `{anchor}`");
            report.fail("anchor", Code::UntrustedAnchor, expected, found);
        }
    }
}

fn check_each_signature(
    receipt: &Receipt,
    keys: &KeySet,
    at_time: Option<&str>,
    report: &mut Report,
) {
    let at = at_time.unwrap_or_else(|| receipt.issued_at());
    // At an invalid time no key is valid.
    let at_seconds = time::parse(at);
    let is_included = report
        .checks
        .iter()
        .any(|check| check.name == "inclusion" && check.ok);
    for (index, stated) in receipt.signatures().enumerate() {
        let name = format!("signature/{index}");
        // Over the computed hash, not the stated one: a signature counts only for this content.
        let result = keys.check(stated, &receipt.hash(), at_seconds);
        let (code, expected, found) = match result {
            // Whoever has it now can sign and date what he likes: only the log says that it was there before.
            Ok(key) if key.retired.is_some() && !is_included => (
                Code::KeyRetired,
                format!(
                    "a proof that the log held it, because `{}` was retired",
                    key.key_id
                ),
                "no inclusion proof",
            ),
            Ok(key) => {
                report.signed_by.push(key.key_id.clone());
                report.pass(name);
                continue;
            }
            Err(SignatureFault::AlgorithmUnsupported) => (
                Code::AlgorithmUnsupported,
                crate::keys::ED25519.to_owned(),
                stated.algorithm,
            ),
            Err(SignatureFault::KeyUnknown) => (
                Code::KeyUnknown,
                "a key of the key set".to_owned(),
                stated.key_id,
            ),
            Err(SignatureFault::KeyNotValidAtTime) => (
                Code::KeyNotValidAtTime,
                format!("a time at which `{}` was valid", stated.key_id),
                at,
            ),
            Err(SignatureFault::SignatureInvalid) => (
                Code::SignatureInvalid,
                format!(
                    "the signature of `{}` over {}",
                    stated.key_id,
                    receipt.hash()
                ),
                stated.signature,
            ),
        };
        report.signatures = Signatures::Invalid;
        report.fail(name, code, expected, found);
    }
    if report.signatures != Signatures::Invalid && !report.signed_by.is_empty() {
        report.signatures = Signatures::Valid;
    }
}

/// Something outside that a receipt states the digest of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference<'a> {
    /// Where it can be read.
    pub uri: &'a str,
    /// What its bytes hash to, as stated.
    pub sha256: Digest,
}

/// Lists what a receipt points to: materials, then final artifacts. A caller that verifies its own
/// receipts looks these up for [`References`].
pub fn references(receipt: &Receipt) -> Vec<Reference<'_>> {
    let map = receipt.as_map();
    let materials = map
        .get("replay_input")
        .and_then(|input| input.get("materials"));
    let lists = [materials, map.get("final_artifacts")];
    lists
        .into_iter()
        .flatten()
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(|item| {
            let member = |name| item.get(name).and_then(Value::as_str);
            Some(Reference {
                uri: member("uri")?,
                sha256: Digest::parse(member("sha256")?).ok()?,
            })
        })
        .collect()
}

/// Content that the receipt carries itself must hash to what it states.
fn check_inline_materials(receipt: &Receipt, report: &mut Report) {
    let input = receipt.as_map().get("replay_input");
    let materials = input
        .and_then(|input| input.get("materials"))
        .and_then(Value::as_array);
    for (index, material) in materials.into_iter().flatten().enumerate() {
        let member = |name| material.get(name).and_then(Value::as_str);
        let (Some(inline), Some(stated)) = (member("bytes_base64"), member("sha256")) else {
            continue;
        };
        let name = format!("material/{index}");
        let computed = STANDARD
            .decode(inline)
            .ok()
            .map(|bytes| sha256(&bytes).to_string());
        if computed.as_deref() == Some(stated) {
            report.pass(name);
        } else {
            let found = computed.unwrap_or_else(|| "no base64".to_owned());
            report.fail(name, Code::MaterialMismatch, stated, found);
        }
    }
}

fn check_references(receipt: &Receipt, found: Option<&References>, report: &mut Report) {
    let Some(found) = found else {
        report.skipped.push("references");
        return;
    };
    if found.subject_exists {
        report.pass("subject");
    } else {
        let id = receipt.subject_id();
        report.fail("subject", Code::SubjectMissing, id, NOTHING);
    }
    let mut mismatches = 0;
    for reference in references(receipt) {
        match found.digests.get(reference.uri) {
            None => report.materials_unavailable.push(reference.uri.to_owned()),
            Some(digest) if *digest == reference.sha256 => report.materials_available += 1,
            Some(digest) => {
                mismatches += 1;
                let (expected, found) = (words_of(Some(reference.sha256)), words_of(Some(*digest)));
                report.fail("references", Code::MaterialMismatch, expected, found);
            }
        }
    }
    if mismatches == 0 {
        report.pass("references");
    }
}

/// What is found where something is missing.
const NOTHING: &str = "nothing";
const NO_SIGNATURE: &str = "no signature";

fn words_of(digest: Option<Digest>) -> String {
    digest.map_or_else(|| "null".to_owned(), |digest| digest.to_string())
}
