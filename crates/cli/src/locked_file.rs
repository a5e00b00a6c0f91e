//! Files of the data directory that a running process vouches for.
//!
//! The process holds a lock on such a file for as long as it lives. One that a crash left behind is held by nobody: what it
//! says is not used, because a port in it may be somebody else's by now.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// A file that this process vouches for; dropping it removes the file.
#[derive(Debug)]
pub(crate) struct LockedFile {
    path: PathBuf,
    /// Kept open: the lock goes with it.
    _file: File,
}

impl LockedFile {
    /// Writes a file whole or not at all: a reader may come at any moment.
    ///
    /// # Errors
    /// The disk fails.
    pub(crate) fn write(directory: &Path, name: &str, text: &str) -> io::Result<Self> {
        let temporary = directory.join(format!("{name}.tmp"));
        let mut file = files::create_fresh(&temporary)?;
        file.try_lock().map_err(io::Error::from)?;
        file.write_all(text.as_bytes())?;
        let path = directory.join(name);
        std::fs::rename(&temporary, &path)?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // One that stays behind is held by nobody, and nobody follows it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Reads a file that a running process vouches for; none when there is none, or when nobody holds it.
pub(crate) fn read(directory: &Path, name: &str) -> Option<String> {
    let mut file = File::open(directory.join(name)).ok()?;
    if file.try_lock_shared().is_ok() {
        return None;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_holds_is_not_read() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(read(home.path(), "address"), None);
        std::fs::write(home.path().join("address"), "left behind").unwrap();
        assert_eq!(read(home.path(), "address"), None);
        let held = LockedFile::write(home.path(), "address", "alive").unwrap();
        assert_eq!(read(home.path(), "address").as_deref(), Some("alive"));
        drop(held);
        assert!(!home.path().join("address").exists());
    }
}
