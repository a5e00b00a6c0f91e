//! Content on its way in: a file without a name of its own until its digest is known.
//!
//! Such files lie in one folder beside the shelves. Dropping one removes it; what a crash leaves there is removed by the
//! next start.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use canon::Digest;
use engine::port::{BoxFuture, Incoming, StoreFault};
use tokio::sync::oneshot;

use crate::blob;
use crate::directory::{Presence, blobs, create, make_private, own_number};
use crate::fault::{closed, file_fault};
use crate::threads::FileWriters;

/// The folder of files that have no name yet. No digest looks like it.
pub(crate) const FOLDER: &str = "incoming";

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Removes what a process that was killed left behind.
pub(crate) fn clear(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(blobs(directory).join(FOLDER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the place of a file that no other process writes to.
pub(crate) fn own_path(directory: &Path, name: &str) -> PathBuf {
    let name = format!("{}-{name}.tmp", own_number());
    blobs(directory).join(FOLDER).join(name)
}

/// One file.
#[derive(Debug)]
pub(crate) struct IncomingFile {
    directory: Arc<Path>,
    presence: Presence,
    files: FileWriters,
    path: PathBuf,
    /// None while a thread writes to it, and once it has its name.
    file: Option<File>,
    bytes: u64,
}

impl Drop for IncomingFile {
    fn drop(&mut self) {
        // One that has its name is no longer here.
        let _ = fs::remove_file(&self.path);
    }
}

impl IncomingFile {
    pub(crate) fn new(directory: Arc<Path>, presence: Presence, files: FileWriters) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = own_path(&directory, &number.to_string());
        Self {
            directory,
            presence,
            files,
            path,
            file: None,
            bytes: 0,
        }
    }

    /// Does something with the file where it blocks nobody.
    async fn run_blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(Option<File>) -> Result<T, StoreFault> + Send + 'static,
    ) -> Result<T, StoreFault> {
        let (answer, result) = oneshot::channel();
        let (file, presence) = (self.file.take(), self.presence.clone());
        self.files.submit(Box::new(move |ready| {
            // A directory that is not there must not be made again.
            let work = |()| presence.check().and_then(|()| work(file));
            let _ = answer.send(ready.copied().and_then(work));
        }));
        result.await.unwrap_or_else(|_| Err(closed()))
    }
}

impl Incoming for IncomingFile {
    fn append(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), StoreFault>> {
        Box::pin(async move {
            let (path, is_first) = (self.path.clone(), self.bytes == 0);
            self.bytes += bytes.len() as u64;
            let write = move |file: Option<File>| {
                let written = || -> io::Result<File> {
                    let mut file = match (file, is_first) {
                        (Some(file), _) => file,
                        (None, true) => {
                            if let Some(folder) = path.parent() {
                                make_private(folder)?;
                            }
                            create(&path)?
                        }
                        // Somebody stopped waiting for an earlier piece.
                        (None, false) => return Err(io::ErrorKind::Interrupted.into()),
                    };
                    file.write_all(&bytes)?;
                    Ok(file)
                };
                written().map_err(|error| file_fault("content that arrives", error))
            };
            self.file = Some(self.run_blocking(write).await?);
            Ok(())
        })
    }

    fn keep(mut self: Box<Self>, digest: Digest) -> BoxFuture<'static, Result<(), StoreFault>> {
        Box::pin(async move {
            let (directory, path, bytes) = (self.directory.clone(), self.path.clone(), self.bytes);
            self.run_blocking(move |file| {
                let file = file.ok_or_else(closed)?;
                file.sync_all()
                    .map_err(|error| file_fault(&format!("blob `{digest}`"), error))?;
                blob::take_file(&directory, &digest, bytes, &path)
            })
            .await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_removes_what_was_on_its_way() {
        let home = tempfile::tempdir().unwrap();
        let folder = blobs(home.path()).join(FOLDER);
        clear(home.path()).unwrap();
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("7.tmp"), "half").unwrap();
        clear(home.path()).unwrap();
        assert!(!folder.exists());
        assert_eq!(blob::files(home.path()).unwrap(), []);
    }
}
