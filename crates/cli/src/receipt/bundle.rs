//! A whole exported log, verified from its files alone.
//!
//! The tree over the receipts is computed again and compared with a signed checkpoint. Where it matches, the
//! checkpoint's one signature stands for every receipt it covers, and the report says so. Each receipt commits to the
//! events of its task, so a changed event is seen too.

pub(crate) mod files;
mod prove;

use std::collections::BTreeMap;
use std::path::Path;

use canon::Digest;
use receipts::verify::{Code, Evidence, Form, Keys, Predecessor};
use receipts::walk::Walk;
use receipts::{KeySet, verify as verify_receipt};
use serde::Deserialize;
use serde_json::json;

use super::events::{self, Outline, ReceiptFacts};
use super::file::{SignedHead, check_checkpoint, read_file, read_keys};
use super::replays::{self, UnboundEvents};
use super::report::{Findings, Question};
use super::witnessed::Witnesses;
use crate::output::{Progress, plural};
use files::{Blobs, Lines, Manifest, Seal, optional};
pub(crate) use prove::prove;

/// What is verified with what.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) keys: Option<&'a Path>,
    pub(crate) checkpoint: Option<&'a Path>,
    pub(crate) trust_anchor: Option<&'a str>,
    pub(crate) all_signatures: bool,
    pub(crate) witnesses: &'a Witnesses,
    pub(crate) question: Question,
}

const HINT: &str = "name a directory that `reprise log export` wrote";

/// Verifies a bundle.
pub(crate) fn verify(request: &Request<'_>) -> anyhow::Result<Findings> {
    let directory = request.directory;
    let mut findings = Findings::of(request.question);
    let manifest = Manifest::read(directory)?;
    let own_keys = directory.join("keys.json");
    let keys = match request.keys {
        Some(path) => Some(read_keys(path)?),
        None if own_keys.is_file() => Some(read_keys(&own_keys)?),
        None => None,
    };
    let checkpoint = match request.checkpoint {
        Some(path) => Some(read_file(path)?),
        None => optional(&directory.join("checkpoint"))?,
    };
    let seal = manifest.check_seal(directory, keys.as_ref(), &mut findings)?;
    manifest.check_small_files(directory, &mut findings)?;
    files::check_names(directory, &mut findings)?;
    let outline = events::outline(directory)?;
    let head = match &checkpoint {
        Some(bytes) => {
            let (keys, anchor) = (keys.as_ref(), request.trust_anchor);
            check_checkpoint(bytes, keys, anchor, request.witnesses, &mut findings)
        }
        None if outline.heads.is_empty() => {
            let why = "the bundle has none, because no head was sealed";
            findings.skip("checkpoint", why);
            None
        }
        None => {
            let expected = Some("the newest of the heads that events tell of".to_owned());
            let found = Some("no file `checkpoint`".to_owned());
            findings.fail("checkpoint", "checkpoint_missing", expected, found);
            None
        }
    };
    let verified = Verified {
        keys: keys.as_ref(),
        signed: head.as_ref(),
        outline: &outline,
    };
    let receipts = check_receipts(request, &verified, &mut findings)?;
    manifest.compare("receipts.jsonl", receipts.sha256, &mut findings);
    manifest.count("receipts", receipts.count, &mut findings);
    let covered = &receipts.covered;
    let said = events::BundleFacts {
        log: manifest.log(),
        repaired: manifest.repaired(),
        seal,
    };
    let events = events::check(directory, said, covered, &mut findings)?;
    manifest.compare("events.jsonl", events.sha256, &mut findings);
    manifest.count("events", events.count, &mut findings);
    let withheld = manifest.withheld();
    let blobs = Blobs::of(directory).check(&events.named, &withheld, &mut findings)?;
    manifest.count_blobs(blobs, &mut findings);
    if !withheld.is_empty() {
        findings.note(format!(
            "      {} blobs are withheld because they are not public: nothing here shows what they held, and --json lists their digests",
            withheld.len()
        ));
        findings.set("withheld", json!(withheld));
    }
    let mut unbound = replays::check(directory, covered, &events, &mut findings)?;
    unbound.extend(events.unbound.iter().cloned());
    report_unbound(&unbound, seal, &mut findings);
    // Whoever makes up a bundle makes up its keys too, their ids included; a thumbprint is the key itself.
    let is_anchored = keys.as_ref().is_some_and(|keys| {
        let mut thumbprints = keys.keys().iter().map(receipts::PublicKey::thumbprint);
        thumbprints.any(|thumbprint| Some(thumbprint.as_str()) == request.trust_anchor)
    });
    if request.keys.is_none() && !is_anchored && request.question == Question::Valid {
        let expected = Some("--keys, or --trust-anchor with a thumbprint".to_owned());
        let found = Some("keys that come from the bundle itself".to_owned());
        findings.fail("keys", "keys_not_given", expected, found);
    }
    findings.note(format!(
        "      {}, {}, {}",
        plural(receipts.count, "receipt"),
        plural(events.count, "event"),
        plural(blobs, "blob")
    ));
    findings.set("receipts", receipts.count.into());
    findings.set("events", events.count.into());
    findings.set("blobs", blobs.into());
    Ok(findings)
}

/// How many events that nothing binds are shown to a person.
const UNBOUND_SHOWN_MAX: usize = 12;

/// Says by name what no receipt, no signature and no run confirms. None of it counts as checked.
fn report_unbound(unbound: &[UnboundEvents], seal: Seal, findings: &mut Findings) {
    if unbound.is_empty() {
        return;
    }
    findings.note(match seal {
        Seal::Holds => "      bound by the signature of the export alone, by no receipt:",
        Seal::Missing => "      bound by nothing:",
    });
    // For one reason one line: what else it is true of is counted.
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for entry in unbound {
        match reasons.iter_mut().find(|(why, _)| *why == entry.why) {
            Some((_, entries)) => entries.push(&entry.what),
            None => reasons.push((&entry.why, vec![&entry.what])),
        }
    }
    for (why, entries) in reasons.iter().take(UNBOUND_SHOWN_MAX) {
        let more = match entries.len().saturating_sub(1) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let first = entries.first().copied().unwrap_or_default();
        findings.note(format!("      - {first}{more}: {why}"));
    }
    if unbound.len() > reasons.len() || reasons.len() > UNBOUND_SHOWN_MAX {
        findings.note("      --json lists all of them");
    }
    let list: Vec<_> = unbound
        .iter()
        .map(|entry| json!({"what": entry.what, "why": entry.why}))
        .collect();
    findings.set("unbound", json!(list));
}

/// What receipts are held against.
struct Verified<'a> {
    keys: Option<&'a KeySet>,
    signed: Option<&'a SignedHead>,
    outline: &'a Outline,
}

struct Receipts {
    count: u64,
    sha256: Digest,
    covered: BTreeMap<String, ReceiptFacts>,
}

/// The members of a receipt that lead to its events.
#[derive(Deserialize)]
struct ReceiptReferences {
    identifiers: Identifiers,
    replay_input: ReplayInput,
    metadata: Lineage,
}

#[derive(Deserialize)]
struct Lineage {
    source_task_id: Option<String>,
}

#[derive(Deserialize)]
struct Identifiers {
    task_id: String,
}

#[derive(Deserialize)]
struct ReplayInput {
    materials: Vec<Material>,
}

#[derive(Deserialize)]
struct Material {
    kind: String,
    sha256: Option<String>,
}

/// A line that stands for a receipt whose bytes a repair took out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LostLine {
    lost_receipt: LostReceipt,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LostReceipt {
    content_sha256: Digest,
    receipt_hash: Digest,
    session_id: Option<String>,
}

fn lost_receipt(line: &[u8]) -> Option<LostReceipt> {
    let is_one = line.starts_with(b"{\"lost_receipt\":");
    let line: LostLine = is_one.then(|| serde_json::from_slice(line).ok())??;
    Some(line.lost_receipt)
}

fn check_receipts(
    request: &Request<'_>,
    verified: &Verified<'_>,
    findings: &mut Findings,
) -> anyhow::Result<Receipts> {
    let Verified {
        keys,
        signed,
        outline,
    } = *verified;
    let progress = Progress::begin("reading the export");
    let head = signed.map(|signed| signed.batch);
    let mut lines = Lines::open(request.directory.join("receipts.jsonl"))?;
    let mut walk = Walk::default();
    for hash in &outline.foreign {
        walk.add_known(*hash);
    }
    let mut roots = BTreeMap::from([(0, walk.root())]);
    let mut ids = BTreeMap::new();
    let mut count = 0_u64;
    let mut bad = 0_u64;
    let mut covered = BTreeMap::new();
    let mut root_at_head = head.filter(|head| head.size == 0).map(|_| walk.root());
    // Signatures that a matching checkpoint will not stand for; checked at the end, when that is known.
    while let Some((line, ended, place)) = lines.next()? {
        let name = format!("receipt {count}");
        count += 1;
        if count.is_multiple_of(1_000) {
            progress.count("receipts checked", count);
        }
        if !ended {
            bad += 1;
            findings.fail(
                &name,
                "schema_invalid",
                None,
                Some("a line that is not ended".to_owned()),
            );
        }
        if let Some(lost) = lost_receipt(line) {
            bad += 1;
            let expected = Some(format!("the receipt with hash {}", lost.receipt_hash));
            let found = Some(format!(
                "nothing: a repair took out blob {}, which was damaged",
                lost.content_sha256
            ));
            findings.fail(&name, "receipt_lost", expected, found);
            // The others have their places in the tree and in the chain by its hash.
            walk.pass(lost.session_id.as_deref(), lost.receipt_hash);
            root_at_head = root_at_head.or(head
                .filter(|head| head.size == walk.size())
                .map(|_| walk.root()));
            if outline.heads.contains_key(&walk.size()) {
                roots.insert(walk.size(), walk.root());
            }
            continue;
        }
        let step = match walk.step(line) {
            Ok(step) => step,
            Err(refusal) => {
                bad += 1;
                let code = match &refusal {
                    receipts::stream::Refusal::NotAReceipt(_) => "schema_invalid",
                    receipts::stream::Refusal::NotCanonical => "not_canonical",
                    receipts::stream::Refusal::Hash { .. } => "receipt_hash_mismatch",
                };
                findings.fail(&name, code, None, Some(refusal.to_string()));
                continue;
            }
        };
        if let Err(broken) = step.link {
            bad += 1;
            let text = |hash: Option<Digest>| {
                Some(hash.map_or("null".to_owned(), |hash| hash.to_string()))
            };
            let name = format!("{name} {} chain", step.receipt.receipt_id);
            findings.fail(
                name,
                broken.code.as_str(),
                text(broken.expected),
                text(broken.found),
            );
        }
        if let Ok(leads) = serde_json::from_slice::<ReceiptReferences>(line) {
            let log = leads
                .replay_input
                .materials
                .iter()
                .find(|material| material.kind == "event_log");
            let log = log.and_then(|log| Digest::parse(log.sha256.as_deref()?).ok());
            let entry = ReceiptFacts {
                receipt_id: step.receipt.receipt_id.clone().into_owned(),
                receipt_hash: step.receipt.hash,
                content: canon::sha256(line),
                task_id: leads.identifiers.task_id.clone(),
                is_replay: step.receipt.is_replay,
                place,
                log_of: match step.receipt.is_replay {
                    true => leads.metadata.source_task_id.unwrap_or_default(),
                    false => leads.identifiers.task_id.clone(),
                },
                event_log: log,
            };
            let task = leads.identifiers.task_id;
            // Each task leaves one receipt, replays too, and no id is given twice.
            let again = ids.insert(entry.receipt_id.clone(), count).is_some();
            if covered.insert(task.clone(), entry).is_some() || again {
                bad += 1;
                findings.fail(&name, "receipt_duplicate", None, Some(task));
            }
        }
        if outline.heads.contains_key(&walk.size()) {
            roots.insert(walk.size(), walk.root());
        }
        if head.is_some_and(|head| head.size == walk.size()) {
            root_at_head = Some(walk.root());
        }
    }
    drop(progress);
    if bad == 0 {
        findings.pass("receipts");
        findings.pass("chains");
    }
    check_heads(outline, &roots, findings);
    let matches = match head {
        None => false,
        Some(head) => {
            let found = root_at_head.map_or_else(
                || {
                    format!(
                        "{} receipts, the checkpoint covers {}",
                        walk.size(),
                        head.size
                    )
                },
                |root| root.to_string(),
            );
            let expected = head.root.to_string();
            findings.compare("tree", "merkle_mismatch", &expected, &found);
            expected == found
        }
    };
    let stands_for = match signed {
        Some(signed) if matches => {
            findings.signed_by(&signed.key_id);
            signed.batch.size
        }
        _ => 0,
    };
    check_signatures(request, keys, stands_for, findings)?;
    Ok(Receipts {
        count,
        sha256: lines.sha256(),
        covered,
    })
}

/// Every head that events tell of must be a head of this tree.
fn check_heads(outline: &Outline, roots: &BTreeMap<u64, Digest>, findings: &mut Findings) {
    let mut bad = 0;
    for (size, stated) in &outline.heads {
        let found = roots.get(size);
        if found == Some(stated) {
            continue;
        }
        bad += 1;
        let found = found.map_or("fewer receipts".to_owned(), Digest::to_string);
        let name = format!("head of {size} receipts");
        let expected = Some(stated.to_string());
        findings.fail(name, "merkle_mismatch", expected, Some(found));
    }
    if bad == 0 && !outline.heads.is_empty() {
        findings.pass(format!("heads: {}", outline.heads.len()));
    }
}

/// Checks the signatures that no checkpoint stands for, or all of them.
fn check_signatures(
    request: &Request<'_>,
    keys: Option<&KeySet>,
    covered: u64,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let mut lines = Lines::open(request.directory.join("receipts.jsonl"))?;
    let mut index = 0_u64;
    let (mut checked, mut skipped, mut unsigned, mut bad) = (0_u64, 0_u64, 0_u64, 0_u64);
    while let Some((line, _, _)) = lines.next()? {
        let at = index;
        index += 1;
        if at < covered && !request.all_signatures {
            skipped += 1;
            continue;
        }
        let Some(keys) = keys else { continue };
        let evidence = Evidence {
            form: Form::Canonical,
            predecessor: Predecessor::NotAsked,
            batches: &[],
            inclusion: None,
            keys: Keys::Given(keys),
            at_time: None,
            trust_anchor: request.trust_anchor,
            references: None,
        };
        let report = verify_receipt(line, &evidence);
        let is_signed = report
            .checks
            .iter()
            .any(|check| check.name.starts_with("signature/"));
        for key in &report.signed_by {
            findings.signed_by(key);
        }
        unsigned += u64::from(!is_signed);
        checked += u64::from(is_signed);
        let about = |name: &str| name.starts_with("signature/") || name == "anchor";
        for check in report
            .checks
            .iter()
            .filter(|check| !check.ok && about(&check.name))
            // The tree under the signed checkpoint holds it: that is the proof.
            .filter(|check| at >= covered || check.code != Some(Code::KeyRetired))
        {
            bad += 1;
            let mut named = check.clone();
            named.name = format!("receipt {at} {}", check.name);
            findings.check(&named);
        }
    }
    if unsigned > 0 {
        let found = format!("{unsigned} receipts without any");
        findings.fail("signatures", "signature_missing", None, Some(found));
    }
    if keys.is_none() && index > skipped {
        findings.skip("signatures", "give --keys");
    } else if bad == 0 && unsigned == 0 {
        findings.pass(match (skipped, checked) {
            (0, _) => format!("signatures: {checked} checked"),
            (_, 0) => format!("signatures: {skipped} covered by the signed checkpoint"),
            _ => {
                format!("signatures: {skipped} covered by the signed checkpoint, {checked} checked")
            }
        });
    }
    findings.set(
        "signatures",
        json!({"covered": skipped, "checked": checked, "failed": bad, "unsigned": unsigned}),
    );
    Ok(())
}
