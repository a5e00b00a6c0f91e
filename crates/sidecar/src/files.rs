//! The view of files that verification needs, and the rules for recorded paths.
//!
//! Implementations hold the root and never read outside it, symbolic links included; this module
//! decides only what a recorded path means before it is resolved.

use canon::Digest;

/// What was read from one file, in one pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// Hash of all bytes.
    pub digest: Digest,
    /// Number of bytes.
    pub len: u64,
    /// The bytes, unless there are more than the caller wanted to keep.
    pub bytes: Option<Vec<u8>>,
}

/// Why a file could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// There is no such file.
    #[error("no such file")]
    Missing,
    /// The path leads out of the root.
    #[error("leads out of the root")]
    OutsideRoot,
    /// The file changed while it was being read.
    #[error("changed while it was being read")]
    Changed,
    /// Anything else: permissions, a directory where a file was named, a broken disk.
    #[error("{0}")]
    Unreadable(String),
}

/// Read access to the files below a root. Paths are relative, use `/` and hold no `..`.
pub trait Files {
    /// Reads a file once: hashes all of it and keeps up to `keep_bytes_max`.
    ///
    /// # Errors
    /// The file is missing, outside the root, changing or unreadable.
    fn read(&self, path: &str, keep_bytes_max: u64) -> Result<Content, FileError>;

    /// Says whether a regular file inside the root has this path.
    fn is_file(&self, path: &str) -> bool;

    /// Lists the regular files of a directory with their raw-bytes hashes.
    ///
    /// # Errors
    /// As [`Files::read`]; also a symbolic link or special file below the directory.
    fn tree(&self, path: &str) -> Result<Vec<(String, Digest)>, FileError>;

    /// Returns the relative form of an absolute path that lies inside the root.
    fn relative(&self, absolute: &str) -> Option<String>;
}

/// A recorded path as it will be looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Path below the root.
    pub path: String,
    /// Whether an absolute path of another machine was matched by its end (RB-VER-06).
    pub relocated: bool,
}

/// Longest recorded path that is looked at; beyond it nothing can exist.
const PATH_BYTES_MAX: usize = 4096;

/// Resolves a recorded path (section 5.3).
///
/// # Errors
/// The path leaves the root, or is absolute and no end of it names a file below the root.
pub fn resolve(path: &str, files: &dyn Files) -> Result<Resolved, FileError> {
    if path.len() > PATH_BYTES_MAX || path.contains('\0') {
        return Err(FileError::Missing);
    }
    if !is_absolute(path) {
        let resolved = normalise(path).ok_or(FileError::OutsideRoot)?;
        // A slash at the end names a directory: a file of that name is not what was recorded.
        if path.ends_with('/') && files.is_file(&resolved) {
            return Err(FileError::Missing);
        }
        return Ok(Resolved {
            path: resolved,
            relocated: false,
        });
    }
    if let Some(path) = files.relative(path)
        && files.is_file(&path)
    {
        return Ok(Resolved {
            path,
            relocated: false,
        });
    }
    let parts: Vec<&str> = path
        .split(['/', '\\'])
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    (0..parts.len())
        .filter_map(|from| parts.get(from..))
        .filter(|suffix| !suffix.contains(&".."))
        .map(|suffix| suffix.join("/"))
        .find(|path| files.is_file(path))
        .map(|path| Resolved {
            path,
            relocated: true,
        })
        .ok_or(FileError::Missing)
}

/// Says whether a path is absolute in POSIX or Windows form.
pub fn is_absolute(path: &str) -> bool {
    let bytes = path.as_bytes();
    let drive = bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.get(1) == Some(&b':')
        && matches!(bytes.get(2), Some(b'/' | b'\\'));
    path.starts_with('/') || path.starts_with("\\\\") || drive
}

/// Removes `.` and `..`; nothing when the path climbs above its start.
pub fn normalise(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Only(&'static [&'static str]);

    impl Files for Only {
        fn read(&self, _: &str, _: u64) -> Result<Content, FileError> {
            Err(FileError::Missing)
        }

        fn is_file(&self, path: &str) -> bool {
            self.0.contains(&path)
        }

        fn tree(&self, _: &str) -> Result<Vec<(String, Digest)>, FileError> {
            Err(FileError::Missing)
        }

        fn relative(&self, absolute: &str) -> Option<String> {
            absolute.strip_prefix("/here/").map(str::to_owned)
        }
    }

    fn check(path: &str, expect: Result<(&str, bool), FileError>) {
        let files = Only(&["tokens/demo.yml", "demo.yml", "own.yml"]);
        let resolved = resolve(path, &files).map(|found| (found.path, found.relocated));
        assert_eq!(
            resolved,
            expect.map(|(path, moved)| (path.to_owned(), moved)),
            "{path}"
        );
    }

    #[test]
    fn rb_ver_06_the_longest_end_that_exists_is_taken() {
        check("/builds/x/tokens/demo.yml", Ok(("tokens/demo.yml", true)));
        check("C:\\x\\tokens\\demo.yml", Ok(("tokens/demo.yml", true)));
        check("\\\\host\\share\\demo.yml", Ok(("demo.yml", true)));
        check("/here/own.yml", Ok(("own.yml", false)));
        check("/builds/../tokens/demo.yml", Ok(("tokens/demo.yml", true)));
        check("/etc/passwd", Err(FileError::Missing));
        check("/", Err(FileError::Missing));
        check(&"/a".repeat(5_000), Err(FileError::Missing));
    }

    #[test]
    fn rb_ver_05_relative_paths_stay_inside() {
        check("./tokens//demo.yml", Ok(("tokens/demo.yml", false)));
        check("a/../demo.yml", Ok(("demo.yml", false)));
        check("tokens/demo.yml/", Err(FileError::Missing));
        check("../outside.yml", Err(FileError::OutsideRoot));
        check("a/../../outside.yml", Err(FileError::OutsideRoot));
    }
}
