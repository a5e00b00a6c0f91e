//! A whole exported log, verified from its files alone.
//!
//! The tree over the receipts is computed again and compared with a signed checkpoint. Where it matches, the
//! checkpoint's one signature stands for every receipt it covers, and the report says so. Each receipt commits to the
//! events of its task, so a changed event is seen too.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use canon::{Digest, Integers, Map, Value};
use receipts::merkle::{self, Frontier};
use receipts::note::Checkpoint;
use receipts::tiles::{self, TILE_WIDTH};
use receipts::verify::{Evidence, Form, Keys, Predecessor};
use receipts::walk::Walk;
use receipts::{KeySet, verify as verify_receipt};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::events::{self, Covered};
use super::file::{SignedHead, check_checkpoint, read_file, read_keys, read_receipt};
use super::names_file;
use super::report::{Findings, Question};
use crate::exit::{OrHint, Problem};
use crate::output::counter;

/// What is verified with what.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) keys: Option<&'a Path>,
    pub(crate) checkpoint: Option<&'a Path>,
    pub(crate) trust_anchor: Option<&'a str>,
    pub(crate) all_signatures: bool,
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
    manifest.check_small_files(directory, &mut findings)?;
    let head = match &checkpoint {
        Some(bytes) => check_checkpoint(bytes, keys.as_ref(), request.trust_anchor, &mut findings),
        None => {
            findings.skip(
                "checkpoint",
                "the bundle has none, because no head was sealed",
            );
            None
        }
    };
    let receipts = check_receipts(request, keys.as_ref(), head.as_ref(), &mut findings)?;
    manifest.compare("receipts.jsonl", receipts.sha256, &mut findings);
    manifest.count("receipts", receipts.count, &mut findings);
    let events = events::check(directory, manifest.log(), &receipts.covered, &mut findings)?;
    manifest.compare("events.jsonl", events.sha256, &mut findings);
    manifest.count("events", events.count, &mut findings);
    let blobs = check_blobs(directory, &mut findings)?;
    let stated = manifest
        .map
        .get("blobs")
        .and_then(|blobs| blobs.get("count"));
    let stated = stated.cloned().unwrap_or_default();
    findings.compare("blob count", "manifest_mismatch", stated, blobs);
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
        "      {} receipts, {} events, {blobs} blobs",
        receipts.count, events.count
    ));
    findings.set("receipts", receipts.count.into());
    findings.set("events", events.count.into());
    findings.set("blobs", blobs.into());
    Ok(findings)
}

fn optional(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match path.is_file() {
        true => read_file(path).map(Some),
        false => Ok(None),
    }
}

/// What a bundle says about itself.
struct Manifest {
    map: Map<String, Value>,
}

impl Manifest {
    fn read(directory: &Path) -> anyhow::Result<Self> {
        let file = directory.join("manifest.json");
        let bytes = read_file(&file)?;
        let map = canon::read_object(&bytes, Integers::Safe)
            .or_hint(format_args!("`{}`", file.display()), HINT)?;
        let is = |name: &str, value: Value| map.get(name) == Some(&value);
        if !is("format", json!("reprise-log")) || !is("version", json!(1)) {
            let message = format!("`{}` is of another format or version", file.display());
            return Err(Problem::new(message, HINT).into());
        }
        Ok(Self { map })
    }

    fn log(&self) -> &str {
        self.map
            .get("log")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    fn files(&self) -> impl Iterator<Item = (&str, &Value)> {
        let files = self.map.get("files").and_then(Value::as_object);
        let files = files.into_iter().flatten();
        files.map(|(name, entry)| (name.as_str(), entry.get("sha256").unwrap_or(&Value::Null)))
    }

    fn compare(&self, name: &str, found: Digest, findings: &mut Findings) {
        let stated = self.files().find(|(known, _)| *known == name);
        let stated = stated
            .and_then(|(_, digest)| digest.as_str())
            .unwrap_or("none");
        findings.compare(format!("file {name}"), "manifest_mismatch", stated, found);
    }

    fn count(&self, name: &str, found: u64, findings: &mut Findings) {
        let stated = self.map.get(name).cloned().unwrap_or_default();
        let name = format!("{} count", name.trim_end_matches('s'));
        findings.compare(name, "manifest_mismatch", stated, found);
    }

    /// Checks the files that are read whole; the large ones are hashed while they are read.
    fn check_small_files(&self, directory: &Path, findings: &mut Findings) -> anyhow::Result<()> {
        for name in ["keys.json", "checkpoint"] {
            let there = optional(&directory.join(name))?;
            let stated = self.files().any(|(known, _)| known == name);
            match there {
                Some(bytes) => self.compare(name, canon::sha256(&bytes), findings),
                None if stated => {
                    let name = format!("file {name}");
                    findings.fail(name, "manifest_mismatch", None, Some("missing".to_owned()));
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// Lines of a file with the digest of the whole.
pub(crate) struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    hasher: Sha256,
    line: Vec<u8>,
}

impl Lines {
    pub(crate) fn open(path: PathBuf) -> anyhow::Result<Self> {
        let file = File::open(&path).or_hint(format_args!("`{}`", path.display()), HINT)?;
        Ok(Self {
            path,
            reader: BufReader::with_capacity(1 << 16, file),
            hasher: Sha256::new(),
            line: Vec::new(),
        })
    }

    /// Returns the next line without its line feed, and whether it had one.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<(&[u8], bool)>> {
        self.line.clear();
        let read = self.reader.read_until(b'\n', &mut self.line);
        let count = read.or_hint(format_args!("`{}`", self.path.display()), HINT)?;
        if count == 0 {
            return Ok(None);
        }
        self.hasher.update(&self.line);
        Ok(Some(match self.line.strip_suffix(b"\n") {
            Some(line) => (line, true),
            None => (&self.line, false),
        }))
    }

    pub(crate) fn sha256(self) -> Digest {
        Digest::from_bytes(self.hasher.finalize().into())
    }
}

struct Receipts {
    count: u64,
    sha256: Digest,
    covered: BTreeMap<String, Covered>,
}

/// The members of a receipt that lead to its events.
#[derive(Deserialize)]
struct Leads {
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

fn check_receipts(
    request: &Request<'_>,
    keys: Option<&KeySet>,
    signed: Option<&SignedHead>,
    findings: &mut Findings,
) -> anyhow::Result<Receipts> {
    let bar = counter();
    let head = signed.map(|signed| signed.batch);
    let mut lines = Lines::open(request.directory.join("receipts.jsonl"))?;
    let mut walk = Walk::default();
    for hash in events::foreign(request.directory)? {
        walk.know(hash);
    }
    let mut count = 0_u64;
    let mut bad = 0_u64;
    let mut covered = BTreeMap::new();
    let mut root_at_head = head.filter(|head| head.size == 0).map(|_| walk.root());
    // Signatures that a matching checkpoint will not stand for; checked at the end, when that is known.
    while let Some((line, ended)) = lines.next()? {
        let name = format!("receipt {count}");
        count += 1;
        if count.is_multiple_of(1_000) {
            bar.set_position(count);
            bar.set_message("receipts checked");
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
        if let Ok(leads) = serde_json::from_slice::<Leads>(line) {
            let log = leads
                .replay_input
                .materials
                .iter()
                .find(|material| material.kind == "event_log");
            let log = log.and_then(|log| Digest::parse(log.sha256.as_deref()?).ok());
            let entry = Covered {
                receipt_id: step.receipt.receipt_id.clone().into_owned(),
                receipt_hash: step.receipt.hash,
                content: canon::sha256(line),
                log_of: match step.receipt.is_replay {
                    true => leads.metadata.source_task_id.unwrap_or_default(),
                    false => leads.identifiers.task_id.clone(),
                },
                event_log: log,
            };
            if covered
                .insert(leads.identifiers.task_id.clone(), entry)
                .is_some()
                && !step.receipt.is_replay
            {
                bad += 1;
                let found = Some(leads.identifiers.task_id);
                findings.fail(&name, "receipt_duplicate", None, found);
            }
        }
        if head.is_some_and(|head| head.size == walk.size()) {
            root_at_head = Some(walk.root());
        }
    }
    bar.finish_and_clear();
    if bad == 0 {
        findings.pass("receipts");
        findings.pass("chains");
    }
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
    while let Some((line, _)) = lines.next()? {
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

fn check_blobs(directory: &Path, findings: &mut Findings) -> anyhow::Result<u64> {
    let folder = directory.join("blobs");
    let entries =
        std::fs::read_dir(&folder).or_hint(format_args!("`{}`", folder.display()), HINT)?;
    let mut names: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let entry = entry.or_hint(format_args!("`{}`", folder.display()), HINT)?;
        names.push(entry.path());
    }
    names.sort();
    let mut bad = 0;
    for path in &names {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let bytes = std::fs::read(path).or_hint(format_args!("`{}`", path.display()), HINT)?;
        let found = canon::sha256(&bytes);
        if Digest::parse(&name) != Ok(found) {
            bad += 1;
            let expected = Some(name.clone().into_owned());
            findings.fail(
                format!("blob {name}"),
                "blob_mismatch",
                expected,
                Some(found.hex()),
            );
        }
    }
    if bad == 0 {
        findings.pass("blobs");
    }
    Ok(names.len() as u64)
}

/// Computes the proof that a receipt, named by id, task or file, is in the tree of a bundle's checkpoint.
pub(crate) fn prove(directory: &Path, name: &str) -> anyhow::Result<Value> {
    let wanted = match names_file(name) {
        true => {
            let handed = read_receipt(name.as_ref())?;
            let hint = "name a file that holds one receipt as JSON or CBOR";
            Some(
                receipts::Receipt::read(&handed.bytes)
                    .or_hint(format_args!("`{name}`"), hint)?
                    .hash(),
            )
        }
        false => None,
    };
    let missing = |what: &str| Problem::new(what.to_owned(), HINT).answers_no();
    let checkpoint = optional(&directory.join("checkpoint"))?;
    let Some(checkpoint) = checkpoint else {
        return Err(missing("the bundle has no checkpoint: no head was sealed yet").into());
    };
    let note = receipts::note::Note::read(&checkpoint).or_hint("the checkpoint", HINT)?;
    let head = Checkpoint::read(note.text()).or_hint("the checkpoint", HINT)?;
    let mut lines = Lines::open(directory.join("receipts.jsonl"))?;
    let mut frontier = Frontier::EMPTY;
    let mut tree: BTreeMap<(u8, u64), Vec<Digest>> = BTreeMap::new();
    let mut found = None;
    while frontier.size() < head.size
        && let Some((line, _)) = lines.next()?
    {
        let receipt = receipts::stream::check(line).or_hint("receipts.jsonl", HINT)?;
        let is_task = || {
            serde_json::from_slice::<Leads>(line)
                .is_ok_and(|leads| leads.identifiers.task_id == name)
        };
        let is_it = match wanted {
            Some(hash) => receipt.hash == hash,
            None => receipt.receipt_id == name || is_task(),
        };
        if is_it {
            found = Some((
                frontier.size(),
                receipt.receipt_id.clone().into_owned(),
                receipt.hash,
            ));
        }
        let (grown, kept) = merkle::append(frontier, merkle::leaf(&receipt.hash));
        frontier = grown;
        for hash in kept {
            let tile = tree
                .entry((hash.level, hash.index / TILE_WIDTH))
                .or_default();
            tile.push(hash.hash);
        }
    }
    let Some((index, receipt_id, receipt_hash)) = found else {
        let message = format!("`{name}` is not among the receipts that the checkpoint covers");
        return Err(missing(&message).into());
    };
    if frontier.size() < head.size {
        return Err(missing("the bundle has fewer receipts than its checkpoint covers").into());
    }
    let read = |tile: tiles::Tile| {
        tree.get(&(tile.level, tile.index))
            .map(|hashes| tiles::tile_bytes(hashes))
    };
    let path = tiles::inclusion(read, index, head.size).or_hint("the proof", HINT)?;
    Ok(json!({
        "object": "receipt_proof",
        "receipt_id": receipt_id,
        "receipt_hash": receipt_hash,
        "leaf_index": index,
        "tree_size": head.size,
        "root": frontier.root(),
        "path": path,
        "checkpoint": String::from_utf8_lossy(&checkpoint),
    }))
}
