//! The working tree as the pure crate sees it: files below a root, and nothing outside it.
//!
//! A path is followed only when its target, after all symbolic links, lies inside the root.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use ::sidecar::{Content, FileError, Files, Limits, RawHasher, normalise};
use anyhow::Context as _;
use canon::Digest;

/// Files below a directory.
#[derive(Debug)]
pub(super) struct WorkingTree {
    root: PathBuf,
}

/// Bytes hashed at a time: large enough for full speed, small enough to stay in cache.
const CHUNK_BYTES: usize = 128 << 10;

impl WorkingTree {
    /// Opens the tree below a directory.
    pub(super) fn open(root: &Path) -> anyhow::Result<Self> {
        let root = root
            .canonicalize()
            .with_context(|| format!("cannot read the root `{}`", root.display()))?;
        anyhow::ensure!(
            root.is_dir(),
            "the root `{}` is not a directory",
            root.display()
        );
        Ok(Self { root })
    }

    /// Returns the root, without symbolic links.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn locate(&self, path: &str) -> Result<PathBuf, FileError> {
        let target = self.root.join(path).canonicalize().map_err(refuse)?;
        if target.starts_with(&self.root) {
            Ok(target)
        } else {
            Err(FileError::OutsideRoot)
        }
    }
}

impl Files for WorkingTree {
    fn read(&self, path: &str, keep_bytes_max: u64) -> Result<Content, FileError> {
        read_file(&self.locate(path)?, keep_bytes_max)
    }

    fn is_file(&self, path: &str) -> bool {
        self.locate(path).is_ok_and(|target| target.is_file())
    }

    fn tree(&self, path: &str) -> Result<Vec<(String, Digest)>, FileError> {
        let directory = self.locate(path)?;
        if !directory.is_dir() {
            return Err(FileError::Unreadable("not a directory".to_owned()));
        }
        let mut files = Vec::new();
        let mut pending = vec![(directory, String::new())];
        while let Some((directory, prefix)) = pending.pop() {
            for entry in fs::read_dir(&directory).map_err(refuse)? {
                let entry = entry.map_err(refuse)?;
                let name = entry.file_name();
                let name = name
                    .to_str()
                    .ok_or_else(|| FileError::Unreadable("a file name is not UTF-8".to_owned()))?;
                let path = format!("{prefix}{name}");
                let kind = entry.file_type().map_err(refuse)?;
                if kind.is_dir() {
                    pending.push((entry.path(), format!("{path}/")));
                } else if kind.is_file() {
                    files.push((path, read_file(&entry.path(), 0)?.digest));
                } else {
                    let message = format!("`{path}` is a symbolic link or special file");
                    return Err(FileError::Unreadable(message));
                }
            }
        }
        Ok(files)
    }

    fn relative(&self, absolute: &str) -> Option<String> {
        relative_to(&self.root, absolute)
    }
}

/// Returns an absolute path relative to a root it lies in, by its text alone.
pub(super) fn relative_to(root: &Path, absolute: &str) -> Option<String> {
    let rest = Path::new(absolute).strip_prefix(root).ok()?;
    normalise(rest.to_str()?)
}

/// Reads a file once: hashes all of it, keeps up to a bound, and notices when it changes meanwhile.
pub(super) fn read_file(path: &Path, keep_bytes_max: u64) -> Result<Content, FileError> {
    // Looked at before it is opened: opening a pipe would wait for a writer.
    if !fs::metadata(path).map_err(refuse)?.is_file() {
        return Err(FileError::Unreadable("not a regular file".to_owned()));
    }
    let mut file = File::open(path).map_err(refuse)?;
    let before = file.metadata().map_err(refuse)?;
    let mut hasher = RawHasher::new();
    let mut kept = (before.len() <= keep_bytes_max).then(Vec::new);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let len = match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(refuse(error)),
        };
        let bytes = chunk.get(..len).unwrap_or_default();
        hasher.update(bytes);
        if let Some(kept) = &mut kept {
            kept.extend_from_slice(bytes);
            if kept.len() as u64 > keep_bytes_max {
                return Err(FileError::Changed);
            }
        }
    }
    let (digest, len) = hasher.finish();
    let after = file.metadata().map_err(refuse)?;
    if len != before.len() || !same_state(&before, &after) {
        return Err(FileError::Changed);
    }
    Ok(Content {
        digest,
        len,
        bytes: kept,
    })
}

/// Reads a file of moderate size that the user named, from wherever it is; a pipe will do.
pub(super) fn read_named(path: &Path) -> anyhow::Result<Content> {
    const NAMED_BYTES_MAX: u64 = Limits::STANDARD.input_bytes_max as u64;
    let doing = || format!("cannot read `{}`", path.display());
    let file = File::open(path).with_context(doing)?;
    let mut bytes = Vec::new();
    file.take(NAMED_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .with_context(doing)?;
    let len = bytes.len() as u64;
    anyhow::ensure!(
        len <= NAMED_BYTES_MAX,
        "`{}` has more than {NAMED_BYTES_MAX} bytes",
        path.display()
    );
    Ok(Content {
        digest: canon::sha256(&bytes),
        len,
        bytes: Some(bytes),
    })
}

fn same_state(before: &Metadata, after: &Metadata) -> bool {
    let modified = |metadata: &Metadata| metadata.modified().ok();
    before.len() == after.len() && modified(before) == modified(after)
}

fn refuse(error: io::Error) -> FileError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => FileError::Missing,
        _ => FileError::Unreadable(error.to_string()),
    }
}
