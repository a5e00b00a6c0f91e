//! One receipt in a file, verified from files alone.

use std::io::Read as _;
use std::path::Path;

use canon::{Digest, Integers, Value};
use receipts::note::{Checkpoint, KeyUse, Note, NoteKey};
use receipts::verify::{Batch, Evidence, Form, Inclusion, Keys, Predecessor};
use receipts::{KeySet, Receipt, cbor, verify as verify_receipt};

use super::report::{Findings, Question};
use super::witnessed::Witnesses;
use crate::exit::{OrHint, Problem};

/// What is verified with what.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) receipt: &'a Path,
    pub(crate) keys: Option<&'a Path>,
    pub(crate) previous: Option<&'a Path>,
    pub(crate) first: bool,
    pub(crate) proof: Option<&'a Path>,
    pub(crate) checkpoint: Option<&'a Path>,
    pub(crate) trust_anchor: Option<&'a str>,
    pub(crate) at_time: Option<&'a str>,
    pub(crate) witnesses: &'a Witnesses,
    pub(crate) question: Question,
}

/// A receipt as somebody handed it over.
#[derive(Debug)]
pub(crate) struct ReceiptDocument {
    /// The bare receipt as JSON; not more canonical than it came.
    pub(crate) bytes: Vec<u8>,
}

/// The largest file that is read whole.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

pub(crate) fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let what = format!("`{}`", path.display());
    let hint = "name a readable file";
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin()
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
    } else {
        let file = std::fs::File::open(path).or_hint(&what, hint)?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)
    };
    read.or_hint(&what, hint)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let hint = "a receipt, a proof or a key set is smaller";
        return Err(Problem::new(
            format!("{what} is longer than {FILE_BYTES_MAX} bytes"),
            hint,
        )
        .into());
    }
    Ok(bytes)
}

/// Reads a receipt: bare or superset JSON, or the CBOR archive form.
pub(crate) fn read_receipt(path: &Path) -> anyhow::Result<ReceiptDocument> {
    let bytes = read_file(path)?;
    let what = format!("`{}`", path.display());
    let hint = "name a file that holds one receipt as JSON or CBOR";
    let is_map = bytes.first().is_some_and(|byte| byte >> 5 == 5);
    if is_map {
        let receipt = cbor::read(&bytes).or_hint(&what, hint)?;
        return Ok(ReceiptDocument {
            bytes: receipt.bytes(),
        });
    }
    // What the strict reader refuses goes on as it is: the verdict says why.
    let Ok(map) = canon::read_object(&bytes, Integers::Safe) else {
        return Ok(ReceiptDocument { bytes });
    };
    if !map.contains_key("wire") {
        return Ok(ReceiptDocument { bytes });
    }
    let bare = wire::receipt::bare(map).map_err(|error| {
        let message = match error {
            wire::InputError::Invalid { param, message } => format!("`{param}` {message}"),
            wire::InputError::Unknown { param, .. } => format!("`{param}` is unknown"),
            wire::InputError::TooLarge { message, .. }
            | wire::InputError::Policy { message, .. } => message,
        };
        Problem::new(
            format!("{what}: {message}"),
            "it was changed; ask its issuer for the original",
        )
        .answers_no()
    })?;
    Ok(ReceiptDocument {
        bytes: canon::jcs(&Value::Object(bare)),
    })
}

pub(crate) fn read_keys(path: &Path) -> anyhow::Result<KeySet> {
    KeySet::from_jwks(&read_file(path)?).or_hint(
        format_args!("`{}`", path.display()),
        "a server publishes its keys at /.well-known/jwks.json",
    )
}

/// Verifies a receipt from files alone.
pub(crate) fn verify(request: &Request<'_>) -> anyhow::Result<Findings> {
    if let Some(time) = request.at_time
        && receipts::seconds_of(time).is_none()
    {
        let hint = "write it as 2026-11-15T10:00:00Z";
        return Err(Problem::new(format!("`{time}` is not an RFC 3339 time"), hint).into());
    }
    let handed = read_receipt(request.receipt)?;
    let keys = request.keys.map(read_keys).transpose()?;
    let keys = keys.as_ref();
    let predecessor = match request.previous {
        Some(path) => {
            let previous = Receipt::read(&read_receipt(path)?.bytes).or_hint(
                format_args!("`{}`", path.display()),
                "--previous names the receipt before it in its session",
            )?;
            Predecessor::Hash(previous.hash())
        }
        None if request.first => Predecessor::Absent,
        None => Predecessor::NotAsked,
    };
    let proof = request.proof.map(read_proof).transpose()?;
    let mut findings = Findings::of(request.question);
    let checkpoint = match (request.checkpoint, &proof) {
        (Some(path), _) => Some(read_file(path)?),
        (None, Some(proof)) => proof.checkpoint.clone().map(String::into_bytes),
        (None, None) => None,
    };
    let head = checkpoint.as_deref().and_then(|bytes| {
        let anchor = request.trust_anchor;
        check_checkpoint(bytes, keys, anchor, request.witnesses, &mut findings)
    });
    if head.is_none() && !request.witnesses.is_empty() && checkpoint.is_none() {
        let expected = Some("a checkpoint, in --proof or by --checkpoint".to_owned());
        findings.fail("witnesses", "witness_quorum", expected, None);
    }
    let batches: Vec<Batch> = head.into_iter().map(|head| head.batch).collect();
    let evidence = Evidence {
        form: Form::AnyJson,
        predecessor,
        batches: &batches,
        // A head that nobody vouches for proves nothing.
        inclusion: proof
            .as_ref()
            .filter(|_| keys.is_some())
            .map(|proof| &proof.inclusion),
        keys: match (keys, request.question) {
            (_, Question::Whole) => Keys::NotAsked,
            (Some(keys), Question::Valid) => Keys::Given(keys),
            (None, Question::Valid) => Keys::Unknown,
        },
        at_time: request.at_time,
        trust_anchor: request.trust_anchor,
        references: None,
    };
    let report = verify_receipt(&handed.bytes, &evidence);
    findings.report(&report);
    if let Some(proof) = &proof {
        proof.check_subject(&handed.bytes, &mut findings);
    }
    for name in &report.skipped {
        match *name {
            "chain" => findings.skip("chain", "give --previous, or --first"),
            "inclusion" if proof.is_some() => findings.skip("inclusion", "give --keys"),
            "inclusion" => findings.skip("inclusion", "give --proof"),
            "references" => findings.skip("references", "only the log it came from has them"),
            "signatures" => findings.skip("signatures", "give --keys instead of --unsigned"),
            // Whose signature it is, is told by the keys that were given.
            _ => {}
        }
    }
    findings.set("receipt_id", report.receipt_id.clone().into());
    findings.set("signatures", report.signatures.as_str().into());
    if keys.is_none() && request.question == Question::Valid {
        findings.note(
            "      give the issuer's keys with --keys; --unsigned asks only whether the document is whole",
        );
    }
    Ok(findings)
}

/// A head that a given key signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SignedHead {
    pub(crate) batch: Batch,
    /// The id of that key.
    pub(crate) key_id: String,
}

/// Checks the signature of a checkpoint and returns the head it states; without keys it is not believed.
pub(crate) fn check_checkpoint(
    bytes: &[u8],
    keys: Option<&KeySet>,
    trust_anchor: Option<&str>,
    witnesses: &Witnesses,
    findings: &mut Findings,
) -> Option<SignedHead> {
    let malformed = |error: receipts::note::NoteError| error.to_string();
    let read = Note::read(bytes).map_err(malformed).and_then(|note| {
        let head = Checkpoint::read(note.text()).map_err(malformed)?;
        Ok((note, head))
    });
    let (note, head) = match read {
        Ok(read) => read,
        Err(problem) => {
            let expected = Some("a signed checkpoint".to_owned());
            findings.fail("checkpoint", "checkpoint_invalid", expected, Some(problem));
            return None;
        }
    };
    let Some(keys) = keys else {
        findings.skip("checkpoint", "give --keys");
        return None;
    };
    let is_trusted = |key: &&receipts::PublicKey| {
        trust_anchor.is_none_or(|anchor| anchor == key.key_id || anchor == key.thumbprint())
    };
    let signer = keys.keys().iter().filter(is_trusted).find(|key| {
        let note_key = NoteKey::new(&head.origin, KeyUse::Note, key.bytes);
        note_key.is_ok_and(|note_key| note.verify(&note_key).is_ok())
    });
    let Some(signer) = signer else {
        let expected = format!("a signature of `{}` by a given key", head.origin);
        let names = note.signatures().iter().map(|line| line.name().to_owned());
        let names: Vec<String> = names.collect();
        let found = Some(format!("signed by {}", names.join(", ")));
        findings.fail("checkpoint", "signature_invalid", Some(expected), found);
        return None;
    };
    let was_seen_in_time = witnesses.check(&note, signer, findings);
    // Who saw it in time says that nobody made it up later.
    if !was_seen_in_time && !keys.may_sign_head(signer, &head.origin, head.size, &head.root) {
        let expected = format!("the key that was current at size {}", head.size);
        let found = Some(format!("signed by `{}`", signer.key_id));
        findings.fail("checkpoint", "key_retired", Some(expected), found);
        return None;
    }
    findings.pass("checkpoint");
    Some(SignedHead {
        batch: Batch {
            size: head.size,
            root: head.root,
        },
        key_id: signer.key_id.clone(),
    })
}

struct Proof {
    inclusion: Inclusion,
    /// What it says that it is about.
    receipt_id: Option<String>,
    receipt_hash: Option<Digest>,
    checkpoint: Option<String>,
}

impl Proof {
    /// A proof names the receipt that it is about; that must be this one.
    fn check_subject(&self, receipt: &[u8], findings: &mut Findings) {
        let Ok(receipt) = Receipt::read(receipt) else {
            return;
        };
        let (id, hash) = (receipt.id().to_owned(), receipt.hash());
        let is_it = self.receipt_id.as_ref().is_none_or(|known| *known == id)
            && self.receipt_hash.is_none_or(|known| known == hash);
        if is_it {
            findings.pass("proof");
            return;
        }
        let stated = self.receipt_hash.map(|hash| hash.to_string());
        let stated_id = self.receipt_id.as_deref().unwrap_or("no id");
        let found = format!("{stated_id} {}", stated.as_deref().unwrap_or("no hash"));
        let expected = Some(format!("{id} {hash}"));
        findings.fail("proof", "merkle_mismatch", expected, Some(found));
    }
}

fn read_proof(path: &Path) -> anyhow::Result<Proof> {
    let what = format!("`{}`", path.display());
    let hint = "`reprise receipt proof` prints one";
    let map = canon::read_object(&read_file(path)?, Integers::Safe).or_hint(&what, hint)?;
    let number = |name: &str| map.get(name).and_then(Value::as_u64);
    let digest = |value: &Value| Digest::parse(value.as_str()?).ok();
    let read = || {
        let hashes = map.get("path")?.as_array()?.iter().map(digest);
        Some(Inclusion {
            leaf_index: number("leaf_index")?,
            batch: Batch {
                size: number("tree_size")?,
                root: digest(map.get("root")?)?,
            },
            path: hashes.collect::<Option<_>>()?,
        })
    };
    let Some(inclusion) = read() else {
        return Err(Problem::new(format!("{what} is not a proof"), hint).into());
    };
    let checkpoint = map.get("checkpoint").and_then(Value::as_str);
    let receipt_id = map.get("receipt_id").and_then(Value::as_str);
    Ok(Proof {
        inclusion,
        receipt_id: receipt_id.map(str::to_owned),
        receipt_hash: map.get("receipt_hash").and_then(digest),
        checkpoint: checkpoint.map(str::to_owned),
    })
}
