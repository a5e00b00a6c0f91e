//! A log as plain files, for people without this program.
//!
//! ```text
//! manifest.json   what is in here
//! manifest.note   a signed note over the manifest, by the key that signs receipts
//! events.jsonl    the stored bytes of every event and a line feed, by position
//! receipts.jsonl  the canonical bytes of every receipt and a line feed, in the order of their leaves
//! keys.json       the public keys that signed them, as a JSON Web Key Set
//! checkpoint      the newest signed head of the receipt log, when one is sealed
//! blobs/<hex>     content by digest
//! ```
//!
//! An export for an auditor leaves out every blob that is not known to be public; the manifest lists them under `withheld`.
//! Events and receipts go out whole in any case: what is private stands in them as a descriptor with a digest.
//!
//! Event bytes and blobs go out as they are; a damaged block of events stops the export, and so does a damaged blob,
//! because its name would lie.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use canon::{Digest, sha256};
use domain::{Event, Kind, NamedBlob, Position, State, Visibility, payload};
use engine::port::StoreFault;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::audit::{Audit, AuditError};
use crate::directory::{create, make_private, sync_directory};

/// The version of the bundle.
const BUNDLE_VERSION: u32 = 1;

/// What was exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// How many events.
    pub events: u64,
    /// How many blobs.
    pub blobs: u64,
    /// How many receipts.
    pub receipts: u64,
    /// How many of the events are headers that pruning left.
    pub pruned: u64,
    /// How many blobs were left out because they are not public.
    pub withheld: u64,
    /// Digest of `events.jsonl`.
    pub events_sha256: Digest,
}

/// Which content goes out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Content {
    /// All of it, as in the data directory.
    #[default]
    Whole,
    /// What is known to be public, for an auditor.
    Public,
}

/// Signs the bytes of a manifest and returns the note.
pub type SealManifest<'a> = dyn Fn(&[u8]) -> io::Result<String> + 'a;

/// What a bundle holds that is not in the log itself.
#[derive(Clone, Copy, Default)]
pub struct Evidence<'a> {
    /// The public keys, as a JSON Web Key Set.
    pub keys: Option<&'a [u8]>,
    /// The newest signed checkpoint.
    pub checkpoint: Option<&'a str>,
    /// Signs the manifest: it gets its bytes and returns the note.
    pub seal: Option<&'a SealManifest<'a>>,
    /// Which content goes out.
    pub content: Content,
}

impl std::fmt::Debug for Evidence<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evidence")
            .field("keys", &self.keys)
            .field("checkpoint", &self.checkpoint)
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

/// Writes the log of a directory as a bundle into a directory that must not exist yet; it appears whole or not at
/// all. Tells how far it is: events written, and the position of the last one.
///
/// # Errors
/// The log cannot be read, a blob is damaged, or the files cannot be written.
pub fn export(
    directory: &Path,
    out: &Path,
    evidence: Evidence<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Exported, AuditError> {
    let audit = Audit::open(directory)?;
    if out.exists() {
        let exists = io::Error::from(io::ErrorKind::AlreadyExists);
        return Err(AuditError::file(out)(exists));
    }
    let aside = UnfinishedFolder(unfinished_path(out));
    let _ = fs::remove_dir_all(&aside.0);
    let blobs = aside.0.join("blobs");
    make_private(&blobs).map_err(AuditError::file(&blobs))?;
    let mut public = match evidence.content {
        Content::Whole => None,
        Content::Public => Some(Public::default()),
    };
    let found = write_events(&audit, &aside.0, public.as_mut(), progress)?;
    let events = &found.written;
    let mut files = vec![("events.jsonl", events.sha256)];
    let (receipts, sha256) = write_receipts(&audit, &aside.0, &found.issued)?;
    files.push(("receipts.jsonl", sha256));
    let given = [
        ("keys.json", evidence.keys),
        ("checkpoint", evidence.checkpoint.map(str::as_bytes)),
    ];
    for (name, bytes) in given {
        if let Some(bytes) = bytes {
            write(&aside.0.join(name), &[bytes])?;
            files.push((name, canon::sha256(bytes)));
        }
    }
    let public = public.map(|public| public.blobs(&audit)).transpose()?;
    let (written, withheld) = write_blobs(&audit, &blobs, public.as_ref())?;
    let exported = Exported {
        events: events.lines,
        blobs: written.count,
        receipts,
        pruned: found.pruned,
        withheld: withheld.len() as u64,
        events_sha256: events.sha256,
    };
    let mut manifest = manifest(&audit, &exported, &files, found.first, written.bytes);
    if let Value::Object(members) = &mut manifest {
        if evidence.content == Content::Public {
            members.insert("content".to_owned(), "public".into());
            members.insert("withheld".to_owned(), json!(withheld));
        }
        if !found.repaired.is_empty() {
            members.insert("repaired".to_owned(), json!(found.repaired));
        }
    }
    let mut manifest = canon::jcs(&manifest);
    manifest.push(b'\n');
    write(&aside.0.join("manifest.json"), &[&manifest])?;
    if let Some(seal) = evidence.seal {
        let file = aside.0.join("manifest.note");
        let note = seal(&manifest).map_err(AuditError::file(&file))?;
        write(&file, &[note.as_bytes()])?;
    }
    for folder in [&blobs, &aside.0] {
        sync_directory(folder).map_err(AuditError::file(folder))?;
    }
    fs::rename(&aside.0, out).map_err(AuditError::file(out))?;
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_directory(parent.unwrap_or(Path::new("."))).map_err(AuditError::file(out))?;
    Ok(exported)
}

/// A directory that is gone with its owner, unless it got its real name.
struct UnfinishedFolder(PathBuf);

impl Drop for UnfinishedFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn unfinished_path(out: &Path) -> PathBuf {
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    out.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

/// A file of lines that is hashed while it is written.
struct Lines {
    file: PathBuf,
    writer: BufWriter<File>,
    hasher: Sha256,
    lines: u64,
}

/// Such a file when it is done.
struct Written {
    lines: u64,
    sha256: Digest,
}

impl Lines {
    fn create(file: PathBuf) -> Result<Self, AuditError> {
        let writer = BufWriter::new(create(&file).map_err(AuditError::file(&file))?);
        Ok(Self {
            file,
            writer,
            hasher: Sha256::new(),
            lines: 0,
        })
    }

    fn add(&mut self, line: &[u8]) -> Result<(), AuditError> {
        self.lines += 1;
        for bytes in [line, b"\n"] {
            self.hasher.update(bytes);
            let written = self.writer.write_all(bytes);
            written.map_err(AuditError::file(&self.file))?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Written, AuditError> {
        let synced = self
            .writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(|file| file.sync_all());
        synced.map_err(AuditError::file(&self.file))?;
        Ok(Written {
            lines: self.lines,
            sha256: Digest::from_bytes(self.hasher.finalize().into()),
        })
    }
}

/// What the events were.
struct Events {
    written: Written,
    first: Option<Position>,
    /// The receipts that they issued.
    issued: Vec<Issued>,
    pruned: u64,
    /// The ids of those that a repair left headers of.
    repaired: Vec<String>,
}

fn write_events(
    audit: &Audit,
    out: &Path,
    mut public: Option<&mut Public>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Events, AuditError> {
    let noted = audit.repaired()?;
    let mut repaired = Vec::new();
    let mut lines = Lines::create(out.join("events.jsonl"))?;
    let mut first = None;
    let mut issued = Vec::new();
    let mut pruned = 0;
    let mut after = Position::START;
    loop {
        let rows = audit.events(after)?;
        if rows.is_empty() {
            break;
        }
        for row in rows {
            let row = row.map_err(|damaged| StoreFault::new(damaged.to_string()))?;
            after = row.position;
            first.get_or_insert(row.position);
            lines.add(&row.bytes)?;
            issued.extend(issued_by(&row.bytes));
            if let Some(public) = public.as_deref_mut() {
                public.event(&row.bytes);
            }
            if noted.contains_key(&row.position) {
                repaired.push(audit.name().id(row.position));
                issued.extend(issued_at(audit, row.position)?);
            } else {
                pruned += u64::from(is_header(&row.bytes));
            }
        }
        progress(lines.lines, audit.head().0);
    }
    Ok(Events {
        written: lines.finish()?,
        first,
        issued,
        pruned,
        repaired,
    })
}

/// A receipt, as the event that issued it names it.
struct Issued {
    content: Digest,
    hash: Digest,
    /// The chain that it is in; none when that is not known.
    session: Option<String>,
}

/// Returns the receipt that a lost event issued, as its document says.
fn issued_at(audit: &Audit, position: Position) -> Result<Option<Issued>, AuditError> {
    let stored = audit.document(position)?;
    let document = stored.and_then(|stored| stored.document().ok());
    Ok(document.and_then(|document| match document.state {
        State::Receipt(receipt) if !receipt.imported => Some(Issued {
            content: receipt.content,
            hash: receipt.receipt_hash,
            session: None,
        }),
        _ => None,
    }))
}

/// What events show to be public. Everything else is not.
#[derive(Default)]
struct Public {
    blobs: BTreeSet<Digest>,
    /// Artifacts, and whether they are.
    artifacts: BTreeMap<Box<str>, bool>,
    /// Requests of replays: they are when all that they give is.
    requests: BTreeSet<Digest>,
}

impl Public {
    fn event(&mut self, bytes: &[u8]) {
        let Ok(event) = Event::parse(bytes) else {
            return;
        };
        if event.is_header() || event.is_substituted() {
            return;
        }
        if event.visibility() == Visibility::Public {
            let moved = domain::external_members(&event.payload);
            self.blobs.extend(moved.map(|moved| moved.digest));
        }
        let Ok(kind) = event.kind() else { return };
        let named = kind.named_blob();
        let digest = named.digest(&event);
        match named {
            NamedBlob::Receipt => self.blobs.extend(digest),
            NamedBlob::Request => self.requests.extend(digest),
            NamedBlob::Content => {
                let id = event.resource.id.clone();
                let stated = payload::ArtifactCreated::of(&event.payload).visibility();
                let is_public = stated == Some(Visibility::Public);
                let is_public = *self.artifacts.entry(id).or_insert(is_public);
                self.blobs.extend(digest.filter(|_| is_public));
            }
            // States of checkpoints are for replays only; plans and bundles hold what is not public too, and so does a memory.
            NamedBlob::State
            | NamedBlob::Plan
            | NamedBlob::Bundle
            | NamedBlob::Entry
            | NamedBlob::None => {}
        }
    }

    fn blobs(mut self, audit: &Audit) -> Result<BTreeSet<Digest>, AuditError> {
        for digest in self.requests {
            let bytes = audit.blob(&digest)?.unwrap_or_default();
            let stored: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let overrides = stored
                .get("request")
                .and_then(|request| request.get("overrides")?.as_object());
            let is_public = overrides.is_some_and(|given| {
                given
                    .values()
                    .all(|given| given.get("visibility") == Some(&json!(Visibility::Public)))
            });
            self.blobs.extend(is_public.then_some(digest));
        }
        Ok(self.blobs)
    }
}

fn is_header(bytes: &[u8]) -> bool {
    const MARK: &[u8] = b"\"payload\":{\"pruned\":true,";
    bytes.windows(MARK.len()).any(|window| window == MARK)
        && Event::parse(bytes).is_ok_and(|event| event.is_header())
}

/// Returns the digest of the receipt that an event issued, when it did.
fn issued_by(bytes: &[u8]) -> Option<Issued> {
    const MARK: &[u8] = b"\"event\":\"receipt.issued\"";
    // Most events are others: looking for the word is cheaper than reading each.
    bytes.windows(MARK.len()).find(|window| *window == MARK)?;
    let event = Event::parse(bytes).ok()?;
    if event.kind() != Ok(Kind::ReceiptIssued) {
        return None;
    }
    let receipt = payload::Receipt::of(&event.payload);
    Some(Issued {
        content: receipt.content_sha256()?,
        hash: receipt.receipt_hash()?,
        session: event.session_id.as_ref().map(ToString::to_string),
    })
}

/// Writes receipts in the order in which they were issued, which is that of their leaves. For one whose bytes a repair took
/// out stands a line that says so: its hash is known, and the tree over the others needs it.
fn write_receipts(
    audit: &Audit,
    out: &Path,
    issued: &[Issued],
) -> Result<(u64, Digest), AuditError> {
    let lost = audit.lost_blobs()?;
    let mut lines = Lines::create(out.join("receipts.jsonl"))?;
    for receipt in issued {
        let digest = &receipt.content;
        let Some(bytes) = audit.blob(digest)? else {
            if lost.contains(digest) {
                let said = json!({"lost_receipt": {
                    "content_sha256": digest,
                    "receipt_hash": receipt.hash,
                    "session_id": receipt.session,
                }});
                lines.add(&canon::jcs(&said))?;
                continue;
            }
            let problem = format!("the receipt in blob `{digest}` is missing");
            return Err(StoreFault::new(problem).into());
        };
        lines.add(&bytes)?;
    }
    let written = lines.finish()?;
    Ok((written.lines, written.sha256))
}

/// The blobs that were written.
#[derive(Default)]
struct Blobs {
    count: u64,
    bytes: u64,
}

/// Writes blobs, those of a set or all; returns those that it left out.
fn write_blobs(
    audit: &Audit,
    out: &Path,
    public: Option<&BTreeSet<Digest>>,
) -> Result<(Blobs, Vec<Digest>), AuditError> {
    let mut written = Blobs::default();
    let mut withheld = Vec::new();
    for digest in audit.blobs()? {
        if public.is_some_and(|public| !public.contains(&digest)) {
            withheld.push(digest);
            continue;
        }
        let Some(bytes) = audit.blob(&digest)? else {
            continue;
        };
        if sha256(&bytes) != digest {
            let problem = format!("blob `{digest}` is damaged: its bytes hash to something else");
            return Err(StoreFault::new(problem).into());
        }
        write(&out.join(digest.hex()), &[&bytes])?;
        written.count += 1;
        written.bytes += bytes.len() as u64;
    }
    Ok((written, withheld))
}

fn write(file: &Path, parts: &[&[u8]]) -> Result<(), AuditError> {
    let write = || {
        let mut out = create(file)?;
        for part in parts {
            out.write_all(part)?;
        }
        out.sync_all()
    };
    write().map_err(AuditError::file(file))
}

fn manifest(
    audit: &Audit,
    exported: &Exported,
    files: &[(&str, Digest)],
    first: Option<Position>,
    blob_bytes: u64,
) -> Value {
    let last = first.map(|_| audit.head().0);
    let files: canon::Map<String, Value> = files
        .iter()
        .map(|(name, sha256)| ((*name).to_owned(), json!({"sha256": sha256})))
        .collect();
    json!({
        "format": "reprise-log",
        "version": BUNDLE_VERSION,
        "log": audit.name().log(),
        "events": exported.events,
        "receipts": exported.receipts,
        "pruned": exported.pruned,
        "first_position": first.map(|first| first.0),
        "last_position": last,
        "files": files,
        "blobs": {"count": exported.blobs, "bytes": blob_bytes},
    })
}
