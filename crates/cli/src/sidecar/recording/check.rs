//! Judging a recording, one line for each link from the run to the recorder's log.
//!
//! The receipt against its own hash, the task against the receipt, that hash against the tree of the checkpoint,
//! the checkpoint and the receipt against the published keys. A broken link is told at its own line; what
//! cannot be judged without it is a note, never ok. Reads nothing but the sidecar and the keys.

use ::sidecar::{Check, Outcome, Reason, Recording};
use canon::{Digest, Value};
use receipts::note::{Checkpoint, KeyUse, Note, NoteError, NoteKey};
use receipts::verify::{Batch, Code, Evidence, Form, Inclusion, Keys, Predecessor, Report};
use receipts::{KeySet, Receipt, merkle};

/// Checks a recording; its signatures only with keys.
pub(in super::super) fn checks(recording: &Recording, keys: Option<&KeySet>) -> Vec<Check> {
    let bytes = canon::jcs(&recording.receipt);
    let checkpoint = read_checkpoint(&recording.checkpoint);
    // Of a retired key, a receipt counts only with its place under a head that the key of that time signed.
    let head = checkpoint.as_ref().ok().filter(|stated| {
        let signed = |keys| signed_by_log(&stated.note, &stated.checkpoint, keys);
        keys.is_some_and(|keys| signed(keys).result == Outcome::Ok)
    });
    let batch = head.map(|stated| Batch {
        size: stated.checkpoint.size,
        root: stated.checkpoint.root,
    });
    let batches: Vec<Batch> = batch.into_iter().collect();
    let proof = Proof::read(&recording.proof);
    let inclusion = batch.zip(proof).map(|(batch, proof)| Inclusion {
        leaf_index: proof.leaf_index,
        batch,
        path: proof.path,
    });
    let report = receipts::verify(
        &bytes,
        &Evidence {
            form: Form::AnyJson,
            predecessor: Predecessor::NotAsked,
            batches: &batches,
            inclusion: inclusion.as_ref(),
            keys: keys.map_or(Keys::NotAsked, Keys::Given),
            at_time: None,
            trust_anchor: None,
            references: None,
        },
    );
    let receipt = Receipt::read(&bytes).ok();
    let receipt = receipt.as_ref();
    vec![
        receipt_line(receipt, &report),
        task_line(receipt, &recording.task_id),
        proof_line(receipt, &recording.proof, checkpoint.as_ref().ok()),
        checkpoint_line(&checkpoint, keys),
        signature_line(receipt, &report, keys),
    ]
}

/// Returns the line of a sidecar without a recording, for somebody who has the keys to check one.
pub(in super::super) fn missing() -> Check {
    let answer = fail(Reason::NotRecorded, "the sidecar holds no recording");
    line("receipt", "receipt", answer)
}

/// The answer to one line.
struct Answer {
    result: Outcome,
    reason: Option<Reason>,
    detail: Option<String>,
    expected: Option<Digest>,
    actual: Option<Digest>,
}

const OK: Answer = Answer {
    result: Outcome::Ok,
    reason: None,
    detail: None,
    expected: None,
    actual: None,
};

fn fail(reason: Reason, detail: impl Into<String>) -> Answer {
    Answer {
        result: Outcome::Fail,
        reason: Some(reason),
        detail: Some(detail.into()),
        ..OK
    }
}

fn not_checked(why: &str) -> Answer {
    Answer {
        result: Outcome::Note,
        reason: Some(Reason::NotChecked),
        detail: Some(why.to_owned()),
        ..OK
    }
}

fn line(name: &str, subject: &str, answer: Answer) -> Check {
    let said = (answer.result, answer.reason, answer.detail);
    Check {
        expected: answer.expected,
        actual: answer.actual,
        ..Check::new(format!("recording/{name}"), subject, said)
    }
}

const NO_RECEIPT: &str = "there is no receipt to compare with";
const NO_KEYS: &str = "signatures were not checked, --keys names the published keys";

/// Shape, hash, and whatever the receipt carries itself.
fn receipt_line(receipt: Option<&Receipt>, report: &Report) -> Check {
    let Some(receipt) = receipt else {
        let problem = report.checks.first();
        let place = problem.and_then(|check| check.found.as_deref());
        let wanted = problem.and_then(|check| check.expected.as_deref());
        let detail = format!(
            "{} {}",
            place.unwrap_or_default(),
            wanted.unwrap_or_default()
        );
        return line(
            "receipt",
            "receipt",
            fail(Reason::InvalidReceipt, detail.trim()),
        );
    };
    let (stated, computed) = (receipt.stated_hash(), Some(receipt.hash()));
    let hashes = |answer: Answer| Answer {
        expected: stated,
        actual: computed,
        ..answer
    };
    // Signatures have their line; which trees a receipt may name is known to its server alone.
    let other = report.checks.iter().find(|check| {
        !check.ok
            && check.name != "hash"
            && check.name != "merkle_root"
            && check.name != "inclusion"
            && !is_signature(&check.name)
    });
    let answer = if stated != computed {
        Answer {
            detail: None,
            ..fail(Reason::HashMismatch, "")
        }
    } else if let Some(check) = other {
        let code = check.code.map_or("", Code::as_str);
        fail(Reason::InvalidReceipt, format!("{}: {code}", check.name))
    } else {
        OK
    };
    line("receipt", receipt.id(), hashes(answer))
}

fn is_signature(name: &str) -> bool {
    name.starts_with("signature/") || name == "signatures"
}

fn task_line(receipt: Option<&Receipt>, task: &str) -> Check {
    let answer = match receipt {
        None => not_checked(NO_RECEIPT),
        Some(receipt) => {
            let (object, id) = (receipt.subject_object(), receipt.subject_id());
            if matches!(object, "task" | "replay_segment") && id == task {
                OK
            } else {
                fail(
                    Reason::OtherTask,
                    format!("the receipt is about {object} `{id}`"),
                )
            }
        }
    };
    line("task", task, answer)
}

/// A proof as it stands in a sidecar.
struct Proof {
    receipt_hash: Digest,
    leaf_index: u64,
    size: u64,
    root: Digest,
    path: Vec<Digest>,
}

impl Proof {
    fn read(proof: &Value) -> Option<Self> {
        let digest = |value: &Value| Digest::parse(value.as_str()?).ok();
        let path = proof.get("path")?.as_array()?;
        Some(Self {
            receipt_hash: digest(proof.get("receipt_hash")?)?,
            leaf_index: proof.get("leaf_index")?.as_u64()?,
            size: proof.get("tree_size")?.as_u64()?,
            root: digest(proof.get("root")?)?,
            path: path.iter().map(digest).collect::<Option<_>>()?,
        })
    }
}

/// From the hash that the receipt states to the root that the checkpoint states.
fn proof_line(receipt: Option<&Receipt>, proof: &Value, checkpoint: Option<&Stated>) -> Check {
    let Some(proof) = Proof::read(proof) else {
        let answer = fail(Reason::InvalidProof, "a member is missing or malformed");
        return line("proof", "proof", answer);
    };
    let Proof {
        receipt_hash,
        leaf_index,
        size,
        root,
        path,
    } = &proof;
    let subject = format!("leaf {leaf_index} of {size}");
    let differs = |detail: &str, expected: Option<Digest>, actual: &Digest| Answer {
        expected,
        actual: Some(*actual),
        ..fail(Reason::NotInLog, detail)
    };
    let stated = receipt.map(Receipt::stated_hash);
    let answer = if let Some(stated) = stated
        && stated != Some(*receipt_hash)
    {
        differs("the proof is of another receipt", stated, receipt_hash)
    } else if !merkle::verify_inclusion(&merkle::leaf(receipt_hash), *leaf_index, *size, path, root)
    {
        Answer {
            expected: Some(*root),
            ..fail(Reason::NotInLog, "the path does not lead to the root")
        }
    } else {
        match checkpoint {
            None => not_checked("there is no checkpoint to compare with"),
            Some(Stated { checkpoint, .. }) if checkpoint.size != *size => fail(
                Reason::NotInLog,
                format!("the checkpoint is of a tree of {}", checkpoint.size),
            ),
            Some(Stated { checkpoint, .. }) if checkpoint.root != *root => {
                let expected = Some(checkpoint.root);
                differs("the checkpoint states another root", expected, root)
            }
            Some(_) => Answer {
                expected: Some(*root),
                actual: Some(*root),
                ..OK
            },
        }
    };
    line("proof", &subject, answer)
}

/// A checkpoint with the note that carries it.
struct Stated {
    note: Note,
    checkpoint: Checkpoint,
}

fn read_checkpoint(text: &str) -> Result<Stated, NoteError> {
    let note = Note::read(text.as_bytes())?;
    let checkpoint = Checkpoint::read(note.text())?;
    Ok(Stated { note, checkpoint })
}

fn checkpoint_line(stated: &Result<Stated, NoteError>, keys: Option<&KeySet>) -> Check {
    match stated {
        Err(error) => {
            let answer = fail(Reason::InvalidCheckpoint, error.to_string());
            line("checkpoint", "checkpoint", answer)
        }
        Ok(Stated { note, checkpoint }) => {
            let origin = &checkpoint.origin;
            let answer = keys.map_or_else(
                || not_checked(NO_KEYS),
                |keys| signed_by_log(note, checkpoint, keys),
            );
            line("checkpoint", origin, answer)
        }
    }
}

/// The log signs under the name of its origin; other lines are of witnesses, whose keys are not in its set.
fn signed_by_log(note: &Note, head: &Checkpoint, keys: &KeySet) -> Answer {
    let mut answer = fail(Reason::KeyUnknown, "no published key has signed it");
    for key in keys.keys() {
        let verified =
            NoteKey::new(&head.origin, KeyUse::Note, key.bytes).and_then(|key| note.verify(&key));
        match verified {
            Ok(_) if keys.may_sign_head(key, &head.origin, head.size, &head.root) => return OK,
            Ok(_) => {
                let detail = format!("`{}` was not the key in use at that size", key.key_id);
                answer = fail(Reason::KeyRetired, detail);
            }
            Err(NoteError::NotSigned) => {}
            Err(error) => answer = fail(Reason::SignatureInvalid, error.to_string()),
        }
    }
    answer
}

fn signature_line(receipt: Option<&Receipt>, report: &Report, keys: Option<&KeySet>) -> Check {
    let Some(receipt) = receipt else {
        return line("signature", "receipt", not_checked(NO_RECEIPT));
    };
    let names: Vec<&str> = receipt.signatures().map(|stated| stated.key_id).collect();
    let failed = report
        .checks
        .iter()
        .find(|check| !check.ok && is_signature(&check.name));
    let answer = match (keys, failed) {
        (None, _) => not_checked(NO_KEYS),
        (Some(_), None) => OK,
        (Some(_), Some(check)) if check.code == Some(Code::SignatureMissing) => {
            fail(Reason::NotSigned, "the receipt has no signature")
        }
        (Some(_), Some(check)) => {
            let reason = match check.code {
                Some(Code::KeyUnknown) => Reason::KeyUnknown,
                Some(Code::KeyRetired) => Reason::KeyRetired,
                _ => Reason::SignatureInvalid,
            };
            fail(reason, check.code.map_or("", Code::as_str))
        }
    };
    let subject = match names.is_empty() {
        true => receipt.id().to_owned(),
        false => names.join(", "),
    };
    line("signature", &subject, answer)
}
