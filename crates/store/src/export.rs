//! A log as plain files, for people without this program.
//!
//! ```text
//! manifest.json   what is in here
//! events.jsonl    the stored bytes of every event and a line feed, by position
//! blobs/<hex>     content by digest
//! ```
//!
//! Event bytes and blobs go out as they are; a damaged blob stops the export, because its name would lie.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use canon::{Digest, sha256};
use domain::Position;
use engine::port::StoreFault;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::audit::{Audit, AuditError};
use crate::directory::sync_directory;

/// The version of the bundle.
const BUNDLE_VERSION: u32 = 1;

/// What was exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// How many events.
    pub events: u64,
    /// How many blobs.
    pub blobs: u64,
    /// Digest of `events.jsonl`.
    pub events_sha256: Digest,
}

/// Writes the log of a directory as a bundle into a directory that must not exist yet; it appears whole or not at
/// all. Tells how far it is: events written, and the position of the last one.
///
/// # Errors
/// The log cannot be read, a blob is damaged, or the files cannot be written.
pub fn export(
    directory: &Path,
    out: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Exported, AuditError> {
    let audit = Audit::open(directory)?;
    if out.exists() {
        let exists = io::Error::from(io::ErrorKind::AlreadyExists);
        return Err(AuditError::file(out)(exists));
    }
    let aside = Aside(aside_of(out));
    let _ = fs::remove_dir_all(&aside.0);
    let blobs = aside.0.join("blobs");
    fs::create_dir_all(&blobs).map_err(AuditError::file(&blobs))?;
    let (exported, first) = write_events(&audit, &aside.0, progress)?;
    let (blob_count, blob_bytes) = write_blobs(&audit, &blobs)?;
    let exported = Exported {
        blobs: blob_count,
        ..exported
    };
    let manifest = manifest(&audit, &exported, first, blob_bytes);
    write(
        &aside.0.join("manifest.json"),
        &[&canon::jcs(&manifest), b"\n"],
    )?;
    for folder in [&blobs, &aside.0] {
        sync_directory(folder).map_err(AuditError::file(folder))?;
    }
    fs::rename(&aside.0, out).map_err(AuditError::file(out))?;
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_directory(parent.unwrap_or(Path::new("."))).map_err(AuditError::file(out))?;
    Ok(exported)
}

/// A directory that is gone with its owner, unless it got its real name.
struct Aside(PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn aside_of(out: &Path) -> PathBuf {
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    out.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

fn write_events(
    audit: &Audit,
    out: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Exported, Option<Position>), AuditError> {
    let file = out.join("events.jsonl");
    let mut writer = BufWriter::new(File::create(&file).map_err(AuditError::file(&file))?);
    let mut hasher = Sha256::new();
    let mut events = 0;
    let mut first = None;
    let mut after = Position::START;
    loop {
        let rows = audit.events(after)?;
        let Some(last) = rows.last() else { break };
        after = last.position;
        for row in &rows {
            first.get_or_insert(row.position);
            events += 1;
            for bytes in [&*row.bytes, b"\n"] {
                hasher.update(bytes);
                writer.write_all(bytes).map_err(AuditError::file(&file))?;
            }
        }
        progress(events, audit.head().0);
    }
    let synced = writer
        .into_inner()
        .map_err(io::IntoInnerError::into_error)
        .and_then(|file| file.sync_all());
    synced.map_err(AuditError::file(&file))?;
    let exported = Exported {
        events,
        blobs: 0,
        events_sha256: Digest::from_bytes(hasher.finalize().into()),
    };
    Ok((exported, first))
}

fn write_blobs(audit: &Audit, out: &Path) -> Result<(u64, u64), AuditError> {
    let mut count = 0;
    let mut total = 0;
    for digest in audit.blobs()? {
        let Some(bytes) = audit.blob(&digest)? else {
            continue;
        };
        if sha256(&bytes) != digest {
            let problem = format!("blob `{digest}` is damaged: its bytes hash to something else");
            return Err(StoreFault::new(problem).into());
        }
        write(&out.join(digest.hex()), &[&bytes])?;
        count += 1;
        total += bytes.len() as u64;
    }
    Ok((count, total))
}

fn write(file: &Path, parts: &[&[u8]]) -> Result<(), AuditError> {
    let write = || {
        let mut out = File::create(file)?;
        for part in parts {
            out.write_all(part)?;
        }
        out.sync_all()
    };
    write().map_err(AuditError::file(file))
}

fn manifest(audit: &Audit, exported: &Exported, first: Option<Position>, blob_bytes: u64) -> Value {
    let last = first.map(|_| audit.head().0);
    json!({
        "format": "reprise-log",
        "version": BUNDLE_VERSION,
        "log": audit.name().log(),
        "events": exported.events,
        "first_position": first.map(|first| first.0),
        "last_position": last,
        "files": {"events.jsonl": {"sha256": exported.events_sha256}},
        "blobs": {"count": exported.blobs, "bytes": blob_bytes},
    })
}
