//! A copy of a data directory, made before something in it is rewritten.
//!
//! It lies in the directory itself and is a data directory of its own: the database, how far the log had come, the format,
//! and the blobs. Blobs are never changed, so that they are shared with the directory where the file system can do that.
//! Keys and vault are not in it: what a backup is made for does not touch them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::directory::{self, FORMAT, blobs, database, make_private, sync_directory};
use crate::{head_file, wal};

/// Whether the database will be changed in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Database {
    /// It will: it is copied.
    Changes,
    /// Another file takes its name: the backup keeps this one.
    IsReplaced,
}

/// Makes a backup under a name and returns its place. Nobody works in the directory, and its write-ahead log is empty. One
/// that an earlier try made of the same database is used again.
pub(crate) fn make(directory: &Path, name: &str, database_is: Database) -> io::Result<PathBuf> {
    let mut number = 1;
    let folder = loop {
        let folder = match number {
            1 => directory.join(name),
            number => directory.join(format!("{name}-{number}")),
        };
        if !folder.exists() {
            break folder;
        }
        if database_is == Database::IsReplaced && is_same(directory, &folder)? {
            return Ok(folder);
        }
        number += 1;
    };
    let under_way = directory.join(format!("{name}.tmp"));
    if under_way.exists() {
        fs::remove_dir_all(&under_way)?;
    }
    make_private(&under_way)?;
    match database_is {
        Database::IsReplaced => link(&database(directory), &database(&under_way))?,
        Database::Changes => copy(&database(directory), &database(&under_way))?,
    }
    for file in [head_file::path(directory), directory.join(FORMAT)] {
        if let Some(name) = file.file_name()
            && file.exists()
        {
            copy(&file, &under_way.join(name))?;
        }
    }
    link_all(&blobs(directory), &blobs(&under_way))?;
    sync_directory(&under_way)?;
    fs::rename(&under_way, &folder)?;
    sync_directory(directory)?;
    Ok(folder)
}

/// Puts a finished database in the place of a directory's, which must have no write-ahead log beside it.
pub(crate) fn replace_database(directory: &Path, finished: &Path) -> io::Result<()> {
    for beside in [wal::path(directory), wal::index_path(directory)] {
        match fs::remove_file(beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    sync_directory(directory)?;
    fs::rename(finished, database(directory))?;
    sync_directory(directory)
}

#[cfg(unix)]
fn is_same(directory: &Path, backup: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let identity =
        |folder: &Path| fs::metadata(database(folder)).map(|found| (found.dev(), found.ino()));
    match (identity(directory), identity(backup)) {
        (Ok(one), Ok(other)) => Ok(one == other),
        (Err(error), _) => Err(error),
        (_, Err(_)) => Ok(false),
    }
}

#[cfg(not(unix))]
fn is_same(_: &Path, _: &Path) -> io::Result<bool> {
    Ok(false)
}

fn link_all(from: &Path, to: &Path) -> io::Result<()> {
    if !from.exists() {
        return Ok(());
    }
    make_private(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => link_all(&entry.path(), &to)?,
            false => link(&entry.path(), &to)?,
        }
    }
    sync_directory(to)
}

/// Gives a file a second name, or copies it where that cannot be done.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to).or_else(|_| copy(from, to))
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = fs::File::open(from)?;
    let mut target = directory::create(to)?;
    io::copy(&mut source, &mut target)?;
    target.sync_all()
}
