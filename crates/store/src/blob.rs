//! Blobs: small ones in the database, in blocks, large ones as files named by their digest.
//!
//! A blob is content: whatever it is called by, its bytes must hash to the digest asked for.

use std::fs;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use canon::{Digest, sha256};
use domain::Blob;
use engine::port::StoreFault;
use rusqlite::Connection;

use crate::directory::{blobs, create, make_private, sync_directory};
use crate::fault::file_fault;
use crate::{incoming, read};

/// The largest blob kept in the database, where it shares the sync of its commit.
pub(crate) const SMALL_BYTES_MAX: usize = 128 * 1024;

pub(crate) fn is_small(blob: &Blob) -> bool {
    blob.bytes.len() <= SMALL_BYTES_MAX
}

fn place(directory: &Path, digest: &Digest) -> (PathBuf, String) {
    let name = digest.hex();
    let shelf: String = name.chars().take(2).collect();
    (blobs(directory).join(shelf), name)
}

/// Writers of one blob take turns, by its digest: they share a file that has no name yet, and a second one that cut it short
/// would let the first give a torn file its name. Another process has one of its own, with the same bytes.
static TURNS: [Mutex<()>; 16] = [const { Mutex::new(()) }; 16];

/// Stores a large blob as a file, durably.
pub(crate) fn write_file(directory: &Path, blob: &Blob) -> Result<(), StoreFault> {
    let len = blob.bytes.len() as u64;
    put_file(directory, &blob.digest, len, |shelf, name| {
        let fresh = incoming::own_path(directory, name);
        let write = || {
            if let Some(folder) = fresh.parent() {
                make_private(folder)?;
            }
            let mut file = create(&fresh)?;
            file.write_all(&blob.bytes)?;
            file.sync_all()?;
            fs::rename(&fresh, shelf.join(name))?;
            sync_directory(shelf)
        };
        // Half a file takes room that is perhaps what was missing.
        write().inspect_err(|_| drop(fs::remove_file(&fresh)))
    })
}

/// Gives a file that was synced the name of the blob it is, durably.
pub(crate) fn take_file(
    directory: &Path,
    digest: &Digest,
    len: u64,
    file: &Path,
) -> Result<(), StoreFault> {
    put_file(directory, digest, len, |shelf, name| {
        fs::rename(file, shelf.join(name))?;
        sync_directory(shelf)
    })
}

fn put_file(
    directory: &Path,
    digest: &Digest,
    len: u64,
    put: impl FnOnce(&Path, &str) -> io::Result<()>,
) -> Result<(), StoreFault> {
    let [first, ..] = *digest.as_bytes();
    let turn = TURNS.get(usize::from(first) % TURNS.len());
    let _turn = turn.map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
    let (shelf, name) = place(directory, digest);
    let store = || -> io::Result<()> {
        if !shelf.exists() {
            make_private(&shelf)?;
            sync_directory(&blobs(directory))?;
            sync_directory(directory)?;
        }
        match fs::metadata(shelf.join(&name)) {
            // The file was synced before it got its name, but a crash may have come before the name was.
            Ok(known) if known.len() == len => sync_directory(&shelf),
            _ => put(&shelf, &name),
        }
    };
    store().map_err(|error| file_fault(&format!("blob `{digest}`"), error))
}

/// Reads a part of a blob, unchecked.
pub(crate) fn piece(
    directory: &Path,
    blocks: &Connection,
    digest: &Digest,
    offset: u64,
    bytes_max: usize,
) -> Result<Option<Vec<u8>>, StoreFault> {
    if let Some(whole) = read::blob(blocks, digest)? {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        return Ok(Some(
            whole.into_iter().skip(start).take(bytes_max).collect(),
        ));
    }
    let (shelf, name) = place(directory, digest);
    let read = || -> io::Result<Vec<u8>> {
        let mut file = fs::File::open(shelf.join(name))?;
        file.seek(io::SeekFrom::Start(offset))?;
        let mut bytes = Vec::with_capacity(bytes_max);
        file.take(bytes_max as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file_fault(&format!("blob `{digest}`"), error)),
    }
}

/// Reads a blob and checks it.
pub(crate) fn find(
    directory: &Path,
    blocks: &Connection,
    digest: &Digest,
) -> Result<Option<Vec<u8>>, StoreFault> {
    let Some(bytes) = find_unchecked(directory, blocks, digest)? else {
        return Ok(None);
    };
    if sha256(&bytes) != *digest {
        return Err(StoreFault::new(format!(
            "blob `{digest}` is damaged: its bytes hash to something else; run `reprise log verify`"
        )));
    }
    Ok(Some(bytes))
}

pub(crate) fn find_unchecked(
    directory: &Path,
    blocks: &Connection,
    digest: &Digest,
) -> Result<Option<Vec<u8>>, StoreFault> {
    if let Some(bytes) = read::blob(blocks, digest)? {
        return Ok(Some(bytes));
    }
    let (shelf, name) = place(directory, digest);
    match fs::read(shelf.join(name)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file_fault(&format!("blob `{digest}`"), error)),
    }
}

/// Removes the file of a blob, durably; returns how long it was, or none when there is no such file.
pub(crate) fn remove_file(directory: &Path, digest: &Digest) -> Result<Option<u64>, StoreFault> {
    let (shelf, name) = place(directory, digest);
    let file = shelf.join(name);
    let remove = || {
        let len = fs::metadata(&file)?.len();
        fs::remove_file(&file)?;
        sync_directory(&shelf)?;
        Ok(Some(len))
    };
    remove().or_else(|error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Ok(None),
        _ => Err(file_fault(&format!("blob `{digest}`"), error)),
    })
}

/// Returns the digests of every blob file. Left-over temporary files are no blobs.
pub(crate) fn files(directory: &Path) -> io::Result<Vec<Digest>> {
    Ok(shelved(directory)?.0)
}

/// Returns the files in the blobs' folder that do not stand where a blob would: nothing ever finds them.
pub(crate) fn strays(directory: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(shelved(directory)?.1)
}

fn shelved(directory: &Path) -> io::Result<(Vec<Digest>, Vec<PathBuf>)> {
    let (mut digests, mut strays) = (Vec::new(), Vec::new());
    let shelves = match fs::read_dir(blobs(directory)) {
        Ok(shelves) => shelves,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((digests, strays)),
        Err(error) => return Err(error),
    };
    for shelf in shelves {
        let shelf = shelf?;
        // Somebody may take it away meanwhile.
        if !fs::metadata(shelf.path()).is_ok_and(|shelf| shelf.is_dir()) {
            strays.push(shelf.path());
            continue;
        }
        let is_incoming = shelf.file_name() == incoming::FOLDER;
        for file in fs::read_dir(shelf.path())? {
            let file = file?;
            let name = file.file_name();
            let name = name.to_str().unwrap_or_default();
            match Digest::parse(name) {
                Ok(digest) if place(directory, &digest) == (shelf.path(), name.to_owned()) => {
                    digests.push(digest);
                }
                Err(_) if is_incoming || name.ends_with(files::TEMPORARY_SUFFIX) => {}
                _ => strays.push(file.path()),
            }
        }
    }
    Ok((digests, strays))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_blob_written_many_times_at_once_is_written_whole_each_time() {
        let home = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let blob = Blob::new(vec![round; 300_000]);
            let (shelf, name) = place(home.path(), &blob.digest);
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        write_file(home.path(), &blob).unwrap();
                        // Whoever was told that it is stored can read it.
                        assert_eq!(fs::read(shelf.join(&name)).unwrap(), blob.bytes);
                    });
                }
            });
        }
        assert_eq!(files(home.path()).unwrap().len(), 20);
    }
}
