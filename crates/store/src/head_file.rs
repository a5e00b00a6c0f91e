//! How far the log had come, kept in a small file beside the database.
//!
//! Nothing in a database says that its end is missing. The file does: it is written after each commit and before
//! anybody is told of it, in its own place and without a sync of its own, so that it survives the process and costs no
//! second sync. A file that is behind the log is normal, because a process can die in between; a log that is behind the
//! file has lost what was acknowledged.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use canon::{Digest, sha256};
use domain::Position;
use serde_json::{Value, json};

use crate::directory::{OpenError, private, sync_directory};
use crate::wal::{self, Salts};

const FILE: &str = "head";

/// Its length is always the same, so that it is written over in one go: longer than any content, shorter than a sector.
const BYTES: usize = 448;

/// How many digits of the digest guard the content.
const GUARD_DIGITS: usize = 16;

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadRecord {
    /// The newest position that was acknowledged.
    pub position: Position,
    /// The digest of the event there; none in an empty log.
    pub(crate) event: Option<Digest>,
    /// Size and root of the newest signed head of the receipt log.
    pub tree: Option<(u64, Digest)>,
    /// How many frames of which write-ahead log were committed.
    pub(crate) wal: Option<(Salts, u64)>,
}

/// Returns the place of the file.
pub(crate) fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Reads the file of a directory; none when there is none yet.
///
/// # Errors
/// It cannot be read, or it is damaged.
pub(crate) fn read(directory: &Path) -> Result<Option<HeadRecord>, OpenError> {
    // A process that works here may be writing it at this moment.
    const TRIES: u32 = 5;
    let file = path(directory);
    for _ in 0..TRIES {
        match fs::read(&file) {
            Ok(bytes) if bytes.is_empty() => return Ok(None),
            Ok(bytes) => {
                if let Some(kept) = HeadRecord::parse(&bytes) {
                    return Ok(Some(kept));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(OpenError::fault(directory, error)),
        }
        std::thread::yield_now();
    }
    Err(OpenError::UnreadableHead { file })
}

impl HeadRecord {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = str::from_utf8(bytes).ok()?;
        let (content, guard) = text.trim_end().rsplit_once(' ')?;
        let content = content.trim_end();
        if guard != guard_of(content) {
            return None;
        }
        let value: Value = serde_json::from_str(content).ok()?;
        let digest = |value: &Value| Digest::parse(value.as_str()?).ok();
        let pair = |name: &str| match value.get(name)? {
            Value::Array(members) => Some((members.first()?.clone(), members.get(1)?.clone())),
            _ => None,
        };
        Some(Self {
            position: Position(value.get("position")?.as_u64()?),
            event: value.get("event").and_then(digest),
            tree: match pair("tree") {
                Some((size, root)) => Some((size.as_u64()?, digest(&root)?)),
                None => None,
            },
            wal: match pair("wal") {
                Some((salts, frames)) => {
                    let salts = u64::from_str_radix(salts.as_str()?, 16).ok()?;
                    Some((Salts(salts), frames.as_u64()?))
                }
                None => None,
            },
        })
    }

    fn text(&self) -> String {
        let tree = self.tree.map(|(size, root)| json!([size, root]));
        let wal = self.wal;
        let wal = wal.map(|(salts, frames)| json!([format!("{:016x}", salts.0), frames]));
        let content = json!({
            "position": self.position.0,
            "event": self.event,
            "tree": tree,
            "wal": wal,
        })
        .to_string();
        let guard = guard_of(&content);
        let room = BYTES - GUARD_DIGITS - 2;
        format!("{content:<room$} {guard}\n")
    }
}

fn guard_of(content: &str) -> String {
    let digest = sha256(content.as_bytes()).hex();
    digest.chars().take(GUARD_DIGITS).collect()
}

/// The file, open for a process that writes. Where several do, whoever committed last may be overtaken by one before it, and the
/// file is behind until the next commit.
#[derive(Debug)]
pub(crate) struct HeadWriter {
    file: File,
    wal: PathBuf,
    log: Option<File>,
    kept: HeadRecord,
    failed: bool,
}

impl HeadWriter {
    /// Opens the file, makes it when it is missing, and writes down where the log stands.
    pub(crate) fn open(directory: &Path, kept: HeadRecord) -> io::Result<Self> {
        let file = private()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path(directory))?;
        let mut keeper = Self {
            file,
            wal: wal::path(directory),
            log: None,
            kept,
            failed: false,
        };
        keeper.write()?;
        keeper.file.sync_all()?;
        sync_directory(directory)?;
        Ok(keeper)
    }

    /// Writes down where the log stands after a commit, and how many frames it left in the write-ahead log, where that is
    /// known. That it cannot be written takes nothing back: the commit is durable, and the file is behind.
    pub(crate) fn committed(&mut self, kept: HeadRecord, frames: Option<u64>) {
        self.kept = kept;
        let salts = match frames {
            Some(_) => self.salts(),
            None => Ok(None),
        };
        let written = salts.and_then(|salts| {
            self.kept.wal = salts.zip(frames);
            self.write()
        });
        if let Err(error) = &written
            && !self.failed
        {
            tracing::warn!(%error, "the position of the newest event cannot be kept outside the database");
        }
        self.failed = written.is_err();
    }

    /// Writes down that the write-ahead log is about to be emptied, durably.
    pub(crate) fn close(mut self) -> io::Result<()> {
        self.kept.wal = None;
        self.write()?;
        self.file.sync_all()
    }

    fn salts(&mut self) -> io::Result<Option<Salts>> {
        if self.log.is_none() {
            self.log = Some(File::open(&self.wal)?);
        }
        self.log.as_mut().map_or(Ok(None), wal::salts)
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.rewind()?;
        self.file.write_all(self.kept.text().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_reads_back_and_a_changed_byte_is_seen() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(read(home.path()).unwrap(), None);
        let full = HeadRecord {
            position: Position(u64::MAX),
            event: Some(sha256(b"event")),
            tree: Some((u64::MAX, sha256(b"tree"))),
            wal: Some((Salts(u64::MAX), u64::MAX)),
        };
        let empty = HeadRecord {
            position: Position::START,
            event: None,
            tree: None,
            wal: None,
        };
        for kept in [empty, full] {
            HeadWriter::open(home.path(), kept).unwrap();
            assert_eq!(read(home.path()).unwrap(), Some(kept));
            assert_eq!(fs::metadata(path(home.path())).unwrap().len(), BYTES as u64);
        }
        let bytes = fs::read(path(home.path())).unwrap();
        for index in 0..bytes.len() - 1 {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            fs::write(path(home.path()), changed).unwrap();
            assert!(
                matches!(read(home.path()), Err(OpenError::UnreadableHead { .. })),
                "byte {index}"
            );
        }
    }
}
