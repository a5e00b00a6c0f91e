//! The vault's files: made for their owner alone, written whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::VaultError;

const LOCK_FILE: &str = "lock";

/// Makes a folder and those around it, unless they are there, so that they survive a crash.
pub(super) fn make_folder(folder: &Path) -> Result<(), VaultError> {
    if folder.exists() {
        return Ok(());
    }
    let around = match folder.parent() {
        Some(around) if !around.as_os_str().is_empty() => around,
        _ => Path::new("."),
    };
    make_folder(around)?;
    let made = fs::DirBuilder::new().mode(0o700).create(folder);
    match made {
        // Somebody else was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(at(folder)(error)),
        Ok(()) => files::sync_directory(around).map_err(at(around)),
    }
}

pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> VaultError {
    let path = path.to_owned();
    move |source| VaultError::Io { path, source }
}

pub(super) fn random(bytes: &mut [u8], path: &Path) -> Result<(), VaultError> {
    getrandom::fill(bytes).map_err(|error| at(path)(io::Error::other(error.to_string())))
}

pub(super) fn check_mode(path: &Path, wanted: u32) -> Result<(), VaultError> {
    let mode = fs::metadata(path).map_err(at(path))?.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(VaultError::Permissions {
        path: path.to_owned(),
        mode,
        wanted,
    })
}

/// Waits for the turn to write; it ends when the file is dropped.
pub(super) fn lock(folder: &Path) -> Result<File, VaultError> {
    let path = folder.join(LOCK_FILE);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(at(&path))?;
    file.lock().map_err(at(&path))?;
    Ok(file)
}

pub(super) fn write_durably(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), VaultError> {
    files::write_durably(folder, name, bytes).map_err(at(&folder.join(name)))
}
