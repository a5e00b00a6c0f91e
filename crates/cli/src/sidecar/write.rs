//! Writing whole files or none: a crash leaves the old file or the new one, never a part.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;

use super::locate::directory_of;

/// A file that is complete on disk under a temporary name.
#[derive(Debug)]
pub(super) struct PreparedFile {
    file: NamedTempFile,
    target: PathBuf,
}

impl PreparedFile {
    /// Writes the bytes beside the target and makes them durable.
    pub(super) fn new(target: &Path, bytes: &[u8]) -> anyhow::Result<Self> {
        // A link is kept: the file it names is replaced.
        let target = target.canonicalize().unwrap_or_else(|_| target.to_owned());
        let doing = || format!("cannot write `{}`", target.display());
        let mut builder = tempfile::Builder::new();
        builder.prefix(".reprise-").suffix(".tmp");
        let permissions = match fs::metadata(&target) {
            Ok(metadata) => Some(metadata.permissions()),
            Err(_) => new_file_permissions(),
        };
        if let Some(permissions) = permissions {
            builder.permissions(permissions);
        }
        let mut file = builder
            .tempfile_in(directory_of(&target))
            .with_context(doing)?;
        file.write_all(bytes).with_context(doing)?;
        file.as_file().sync_all().with_context(doing)?;
        Ok(Self { file, target })
    }

    /// Puts the file in its place.
    pub(super) fn commit(self) -> anyhow::Result<()> {
        let target = self.target;
        self.file
            .persist(&target)
            .with_context(|| format!("cannot write `{}`", target.display()))?;
        // Best effort: not every file system lets a directory be synced.
        if let Ok(directory) = File::open(directory_of(&target)) {
            let _ = directory.sync_all();
        }
        Ok(())
    }
}

#[cfg(unix)]
fn new_file_permissions() -> Option<Permissions> {
    use std::os::unix::fs::PermissionsExt as _;
    // The process's umask still applies.
    Some(Permissions::from_mode(0o666))
}

#[cfg(not(unix))]
fn new_file_permissions() -> Option<Permissions> {
    None
}
