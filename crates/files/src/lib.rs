//! Files that only their owner may read, written so that after a crash they are there whole or not at all.
//!
//! Whatever Reprise keeps on disk is somebody's content or a key, so this is how all of it is made: the log, the vault, keys.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

/// What a file is called while it is written. A crash can leave one behind; the next write of that file takes it away.
pub const TEMPORARY_SUFFIX: &str = ".tmp";

/// Returns how files are opened that only their owner may read.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Makes a file that only its owner may read, or empties the one that is there.
///
/// # Errors
/// The disk fails.
pub fn create(file: &Path) -> io::Result<File> {
    private().write(true).create(true).truncate(true).open(file)
}

/// Makes a file that only its owner may read, in the place of the file or the link that has that name.
///
/// # Errors
/// The disk fails.
pub fn create_fresh(file: &Path) -> io::Result<File> {
    let found = fs::symlink_metadata(file);
    if found.is_ok_and(|found| found.is_file() || found.is_symlink()) {
        fs::remove_file(file)?;
    }
    create(file)
}

/// Makes directories that only their owner can look into.
///
/// # Errors
/// The disk fails.
pub fn make_private(directory: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)
}

/// Writes a file so that after a crash it is there whole or not at all, and durably once this returns.
///
/// # Errors
/// The disk fails; what had that name before is still there.
pub fn write_durably(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = directory.join(format!("{name}{TEMPORARY_SUFFIX}"));
    let written = create_fresh(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(error) = written.and_then(|()| fs::rename(&temporary, directory.join(name))) {
        // Half a file takes room that is perhaps what was missing; that it stays is not a second error.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_directory(directory)
}

/// Makes names in a directory durable.
///
/// # Errors
/// The disk fails.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_no_half_file() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("name/occupied")).unwrap();
        assert!(write_durably(home.path(), "name", b"x").is_err());
        assert!(!home.path().join("name.tmp").exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_written_file_is_its_owners_alone_and_follows_no_link() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let home = tempfile::tempdir().unwrap();
        let elsewhere = home.path().join("elsewhere");
        fs::write(&elsewhere, "untouched").unwrap();
        // What somebody put where the file is written first.
        symlink(&elsewhere, home.path().join("name.tmp")).unwrap();
        write_durably(home.path(), "name", b"secret").unwrap();
        assert_eq!(fs::read(home.path().join("name")).unwrap(), b"secret");
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "untouched");
        let mode = fs::symlink_metadata(home.path().join("name")).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    }
}
