//! What is in a folder, and what has changed in it.
//!
//! Files are told by their content, links by where they point; nothing is followed, not even what becomes a link while it is
//! looked at: a tool may still be running, and this process may read more than the tool. A folder that is too large to
//! look at, or that cannot be read, is not observed: no guess takes the place of a look. The digest of a file that
//! holds a secret and nothing else would betray it, and is not told.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use canon::{Digest, sha256};
use domain::FileChange;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::scrub::Scrubber;

/// How much is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) files_max: usize,
    pub(super) bytes_max: u64,
}

/// All files, by path inside the folder.
pub(super) type Snapshot = BTreeMap<String, Content>;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    sha256: Digest,
    is_secret: bool,
}

impl Content {
    fn of(bytes: &[u8], scrubber: &Scrubber) -> Self {
        Self {
            sha256: sha256(bytes),
            is_secret: scrubber.is_secret(bytes),
        }
    }

    fn public_digest(self) -> Option<Digest> {
        (!self.is_secret).then_some(self.sha256)
    }
}

/// Looks at every file of a folder.
pub(super) fn snapshot(folder: &Path, limits: Limits, scrubber: &Scrubber) -> io::Result<Snapshot> {
    let mut snapshot = Snapshot::new();
    let mut bytes_left = limits.bytes_max;
    let root = File::open(folder)?;
    let mut open = vec![PathBuf::new()];
    while let Some(inside) = open.pop() {
        let directory = open_inside(&root, &inside, OFlags::DIRECTORY)?;
        // By its descriptor: whatever stands at its path by now.
        for entry in fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))? {
            let entry = entry?;
            let path = inside.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                open.push(path);
                continue;
            }
            if snapshot.len() + open.len() >= limits.files_max {
                return Err(io::Error::other("too many files"));
            }
            let content = if kind.is_symlink() {
                let target = fs::read_link(entry.path())?;
                Content::of(target.as_os_str().as_bytes(), scrubber)
            } else if kind.is_file() {
                Content::of(&read(&root, &path, &mut bytes_left)?, scrubber)
            } else {
                // Sockets and pipes hold nothing.
                continue;
            };
            snapshot.insert(path.to_string_lossy().into_owned(), content);
        }
    }
    Ok(snapshot)
}

/// Opens what lies inside a folder, without following a link on the way and without waiting for the other end of a pipe.
fn open_inside(root: &File, inside: &Path, flags: OFlags) -> io::Result<File> {
    let inside = match inside.as_os_str().is_empty() {
        true => Path::new("."),
        false => inside,
    };
    let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let opened = rustix::fs::openat2(root, inside, flags, Mode::empty(), resolve)?;
    Ok(File::from(opened))
}

fn read(root: &File, inside: &Path, bytes_left: &mut u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = open_inside(root, inside, OFlags::empty())?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("a file changed while it was read"));
    }
    let read = file
        .take(bytes_left.saturating_add(1))
        .read_to_end(&mut bytes)?;
    *bytes_left = bytes_left
        .checked_sub(u64::try_from(read).unwrap_or(u64::MAX))
        .ok_or_else(|| io::Error::other("too many bytes"))?;
    Ok(bytes)
}

/// Returns what is different, by path.
pub(super) fn changes(before: &Snapshot, after: &Snapshot, scrubber: &Scrubber) -> Vec<FileChange> {
    let mut paths: Vec<&String> = before.keys().chain(after.keys()).collect();
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .filter_map(|path| {
            let (before, after) = (before.get(path), after.get(path));
            let operation = match (before, after) {
                (None, Some(_)) => "create",
                (Some(_), None) => "delete",
                (Some(before), Some(after)) if before.sha256 != after.sha256 => "modify",
                _ => return None,
            };
            Some(FileChange {
                path: scrubber.text(path),
                operation: operation.to_owned(),
                before_sha256: before.and_then(|content| content.public_digest()),
                after_sha256: after.and_then(|content| content.public_digest()),
            })
        })
        .collect()
}
