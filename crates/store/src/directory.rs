//! The data directory: its lock, its format version, the names in it, and durable file writes.
//!
//! Knows nothing of what the files say.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use engine::port::StoreFault;
pub(crate) use files::{create, make_private, private, sync_directory, write_durably};

use crate::loss::Loss;
use crate::notes::MADE_WITH_THE_LOG;

/// The version of the data directory that this program writes.
///
/// 1: the first, never released. Each event was a row of its own.
/// 2: events of a commit and its small blobs are compressed together, with dictionary 1.
/// 3: a block could continue an earlier one of its Task.
/// 4: each block stands alone, in a row of its own, and an event has any number of links. What 2 and 3 wrote is brought
///    forward (`migrate`).
pub const FORMAT_VERSION: u32 = 4;

/// The oldest version that can be brought forward.
const FORMAT_OLDEST: u32 = 2;

const LOCK: &str = "lock";
pub(crate) const FORMAT: &str = "format";
const DATABASE: &str = "reprise.db";
const BLOBS: &str = "blobs";

/// Why a data directory was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process writes here.
    #[error("data directory `{}` is in use by {}", directory.display(), holder(*pid))]
    Locked {
        /// The directory.
        directory: PathBuf,
        /// The process, when it wrote down its id.
        pid: Option<u32>,
    },
    /// A newer program wrote it.
    #[error("data directory `{}` has format {found}, this program knows up to {FORMAT_VERSION}", directory.display())]
    NewerFormat {
        /// The directory.
        directory: PathBuf,
        /// Its format.
        found: u32,
    },
    /// An older program wrote it, and there is no way from there to here.
    #[error("data directory `{}` has format {found}, this program needs {FORMAT_VERSION}", directory.display())]
    OlderFormat {
        /// The directory.
        directory: PathBuf,
        /// Its format.
        found: u32,
    },
    /// An older program wrote it, and this one can bring it forward.
    #[error("data directory `{}` has an older format than {FORMAT_VERSION}", directory.display())]
    NotMigrated {
        /// The directory.
        directory: PathBuf,
    },
    /// The tables of the database are of a version that this program does not know.
    #[error("the database in `{}` has tables of version {found}, which this program does not know", directory.display())]
    OtherTables {
        /// The directory.
        directory: PathBuf,
        /// Their version.
        found: i64,
    },
    /// Others share it, and their program is older: what this one would change they do not know.
    #[error("data directory `{}` is shared with processes of an older program", directory.display())]
    OlderBeside {
        /// The directory.
        directory: PathBuf,
    },
    /// There is no log here.
    #[error("`{}` is not a data directory", directory.display())]
    NoLog {
        /// The directory.
        directory: PathBuf,
    },
    /// The format file says nothing sensible, or it is missing beside a database.
    #[error("`{}` does not state a format version", file.display())]
    UnreadableFormat {
        /// The file.
        file: PathBuf,
    },
    /// The file that says how far the log had come is damaged.
    #[error("`{}` is damaged", file.display())]
    UnreadableHead {
        /// The file.
        file: PathBuf,
    },
    /// The file that says how far the log had come is missing, though there was one.
    #[error("`{}` is missing, which says how far the log had come: its end may be missing too", file.display())]
    MissingHead {
        /// The file.
        file: PathBuf,
    },
    /// The database lacks what every log has.
    #[error("the database in `{}` lacks {}, which every log has", directory.display(), missing.join(", "))]
    Incomplete {
        /// The directory.
        directory: PathBuf,
        /// What is missing.
        missing: Vec<String>,
    },
    /// The database is not built as this program builds it, or says of itself what cannot be.
    #[error("the database in `{}` was changed: {}", directory.display(), problems.join("; "))]
    Flawed {
        /// The directory.
        directory: PathBuf,
        /// What is wrong.
        problems: Vec<String>,
    },
    /// The log does not hold what was acknowledged. Nothing was changed.
    #[error("data directory `{}` has lost acknowledged events: {loss}", directory.display())]
    Lost {
        /// The directory.
        directory: PathBuf,
        /// What is lost.
        loss: Loss,
    },
    /// The disk or the database failed.
    #[error("data directory `{}`: {problem}", directory.display())]
    Fault {
        /// The directory.
        directory: PathBuf,
        /// What happened.
        problem: String,
    },
}

fn holder(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    }
}

impl OpenError {
    /// Says what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            OpenError::Locked { .. } => {
                "stop that process first, or give this one another data directory"
            }
            OpenError::NewerFormat { .. } => {
                "run the newer program that wrote it; an older one would damage it"
            }
            OpenError::OlderFormat { .. } => {
                "it was never released: keep what you need with the `reprise log export` of the program that wrote it, then name a new directory"
            }
            OpenError::NotMigrated { .. } => {
                "`reprise log migrate` brings it forward and keeps it as it was in a backup; `reprise serve` does the same when it starts"
            }
            OpenError::OtherTables { .. } => {
                "run the newer program that wrote it; an older one would damage it"
            }
            OpenError::OlderBeside { .. } => {
                "stop every process that works in it; the first one of this program that starts then brings it forward"
            }
            OpenError::NoLog { .. } => {
                "name the directory that `reprise serve` uses; its first start creates one"
            }
            OpenError::UnreadableFormat { .. } => {
                "restore the file `format` from a backup; it holds one number"
            }
            OpenError::UnreadableHead { .. } => {
                "it says how far the log had come: restore it from a backup; if there is none, and `reprise log verify` finds nothing else, `reprise log repair --apply` writes it again from the log as it is"
            }
            OpenError::MissingHead { .. } => {
                "restore it from a backup; if there is none, and `reprise log verify` finds nothing else, `reprise log repair --apply` writes it again from the log as it is"
            }
            OpenError::Incomplete { missing, .. } => {
                let nothing_tells = |what: &String| {
                    what.starts_with("the table")
                        || MADE_WITH_THE_LOG
                            .iter()
                            .any(|name| what.contains(&format!("`{name}`")))
                };
                match missing.iter().any(nothing_tells) {
                    true => "restore a backup: nothing else records what was there",
                    false => {
                        "restore a backup if there is one; `reprise log repair --apply` restores it from the rest of the log, and says so"
                    }
                }
            }
            OpenError::Flawed { .. } => {
                "`reprise log repair --apply` corrects it, and `reprise log verify` says whether more was changed"
            }
            OpenError::Lost { .. } => {
                "nothing was changed: keep a copy of the directory and restore a backup if there is one; `reprise log recover --accept-loss` continues from what can still be read, under a new origin"
            }
            OpenError::Fault { .. } => {
                "check that the disk works, has room, and lets this user write"
            }
        }
    }

    /// Returns the refusal of a format that is not the one this program writes.
    pub(crate) fn other_format(directory: &Path, found: u32) -> Self {
        let directory = directory.to_owned();
        if found > FORMAT_VERSION {
            OpenError::NewerFormat { directory, found }
        } else {
            OpenError::OlderFormat { directory, found }
        }
    }

    pub(crate) fn lost(directory: &Path, loss: Loss) -> Self {
        OpenError::Lost {
            directory: directory.to_owned(),
            loss,
        }
    }

    pub(crate) fn incomplete(directory: &Path, missing: Vec<String>) -> Self {
        OpenError::Incomplete {
            directory: directory.to_owned(),
            missing,
        }
    }

    pub(crate) fn fault(directory: &Path, problem: impl ToString) -> Self {
        OpenError::Fault {
            directory: directory.to_owned(),
            problem: problem.to_string(),
        }
    }
}

/// The lock of a data directory, held until dropped: by one process alone, or by several that share the directory.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    is_alone: bool,
}

impl Lock {
    /// True while nobody else can be there.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Lets others in who share the directory. Somebody else may have been there when this returns: nothing that was read
    /// before it is known any more.
    pub(crate) fn share(&mut self, directory: &Path) -> Result<(), OpenError> {
        if self.is_alone {
            let fault = |error: io::Error| OpenError::fault(directory, error);
            self.file.unlock().map_err(fault)?;
            retry(&self.file, SHARING, File::try_lock_shared)
                .map_err(|error| refused(directory, &mut self.file, error))?;
            self.is_alone = false;
        }
        Ok(())
    }

    /// Returns what tells whether the directory is still in its place.
    pub(crate) fn presence(&self, directory: &Path) -> io::Result<Presence> {
        Ok(Presence {
            lock: directory.join(LOCK),
            database: database(directory),
            held: identity(&self.file.metadata()?),
        })
    }
}

/// Tells whether a directory was moved or removed under the process that works in it. Its files would take writes
/// nevertheless, where nobody finds them.
#[derive(Debug, Clone)]
pub(crate) struct Presence {
    lock: PathBuf,
    database: PathBuf,
    held: (u64, u64),
}

impl Presence {
    pub(crate) fn check(&self) -> Result<(), StoreFault> {
        let found = fs::metadata(&self.lock).map(|found| identity(&found));
        let database = fs::metadata(&self.database);
        match (found, database) {
            (Ok(found), Ok(_)) if found == self.held => Ok(()),
            _ => Err(StoreFault::unavailable(format!(
                "the data directory was moved or replaced (`{}` is missing or different); put it back, or stop the server",
                self.lock.display()
            ))),
        }
    }
}

#[cfg(unix)]
fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> (u64, u64) {
    (0, 0)
}

/// Takes the lock, or gives up after a moment. A child that is about to become another program holds what its parent had
/// open until it is one, and a process that was killed holds its locks until it is gone.
fn retry(
    file: &File,
    (tries, pause): (u32, Duration),
    lock: fn(&File) -> Result<(), TryLockError>,
) -> Result<(), TryLockError> {
    for _ in 1..tries {
        match lock(file) {
            Err(TryLockError::WouldBlock) => std::thread::sleep(pause),
            taken => return taken,
        }
    }
    lock(file)
}

/// How often and how far apart the lock is tried: by whoever wants it alone,
const ALONE: (u32, Duration) = (20, Duration::from_millis(10));
/// by whoever wants to share it, for as long as another one may take to look through a directory that it opens first,
const SHARING: (u32, Duration) = (200, Duration::from_millis(10));
/// and by whoever only wants to know: somebody else who does has it for some microseconds.
const LOOKING: (u32, Duration) = (5, Duration::from_millis(2));

/// True when a process works in the directory, or when that cannot be told.
pub(crate) fn is_held(directory: &Path) -> bool {
    match File::open(directory.join(LOCK)) {
        // Given back at once: whoever wants to work here tries for longer than this takes.
        Ok(file) => retry(&file, LOOKING, File::try_lock).is_err(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Makes the directory when it is missing, takes its lock and checks its format, which [`adopt`] makes ours.
pub(crate) fn claim(directory: &Path) -> Result<Lock, OpenError> {
    let mut file = lock_file(directory)?;
    retry(&file, ALONE, File::try_lock).map_err(|error| refused(directory, &mut file, error))?;
    claimed(directory, file, true)
}

/// The same to work beside others who share the directory. Alone at first when nobody is there, so that what only one may do
/// can be done; [`Lock::share`] lets the others in.
pub(crate) fn join(directory: &Path) -> Result<Lock, OpenError> {
    let mut file = lock_file(directory)?;
    let (tries, pause) = SHARING;
    for _ in 0..tries {
        match retry(&file, LOOKING, File::try_lock) {
            Ok(()) => return claimed(directory, file, true),
            Err(TryLockError::WouldBlock) => {}
            Err(error) => return Err(refused(directory, &mut file, error)),
        }
        match file.try_lock_shared() {
            Ok(()) => return claimed(directory, file, false),
            Err(TryLockError::WouldBlock) => std::thread::sleep(pause),
            Err(error) => return Err(refused(directory, &mut file, error)),
        }
    }
    Err(refused(directory, &mut file, TryLockError::WouldBlock))
}

fn lock_file(directory: &Path) -> Result<File, OpenError> {
    let open = || {
        make_directory(directory)?;
        private()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(directory.join(LOCK))
    };
    open().map_err(|error| OpenError::fault(directory, error))
}

fn refused(directory: &Path, file: &mut File, error: TryLockError) -> OpenError {
    match error {
        TryLockError::WouldBlock => {
            let mut text = String::new();
            let pid = file.read_to_string(&mut text).ok();
            OpenError::Locked {
                directory: directory.to_owned(),
                pid: pid.and_then(|_| text.trim().parse().ok()),
            }
        }
        TryLockError::Error(error) => OpenError::fault(directory, error),
    }
}

fn claimed(directory: &Path, mut file: File, is_alone: bool) -> Result<Lock, OpenError> {
    let fault = |error: io::Error| OpenError::fault(directory, error);
    let write_pid = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    write_pid(&mut file).map_err(fault)?;
    match read_format(directory)? {
        Some(FORMAT_OLDEST..=FORMAT_VERSION) | None => Ok(Lock { file, is_alone }),
        Some(found) => Err(OpenError::other_format(directory, found)),
    }
}

/// Makes the format of a claimed directory ours: an older program must not read what is about to be written.
pub(crate) fn adopt(directory: &Path) -> Result<(), OpenError> {
    if read_format(directory)? == Some(FORMAT_VERSION) {
        return Ok(());
    }
    write_durably(directory, FORMAT, format!("{FORMAT_VERSION}\n").as_bytes())
        .map_err(|error| OpenError::fault(directory, error))
}

/// Checks that a directory holds a log of a format this program can read.
pub(crate) fn check(directory: &Path) -> Result<(), OpenError> {
    match read_format(directory)? {
        Some(FORMAT_OLDEST..=FORMAT_VERSION) if database(directory).exists() => Ok(()),
        Some(found) if !(FORMAT_OLDEST..=FORMAT_VERSION).contains(&found) => {
            Err(OpenError::other_format(directory, found))
        }
        Some(_) | None => Err(OpenError::NoLog {
            directory: directory.to_owned(),
        }),
    }
}

fn read_format(directory: &Path) -> Result<Option<u32>, OpenError> {
    let file = directory.join(FORMAT);
    match fs::read_to_string(&file) {
        Ok(text) => match text.trim().parse() {
            Ok(0) | Err(_) => Err(OpenError::UnreadableFormat { file }),
            Ok(found) => Ok(Some(found)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if database(directory).exists() {
                return Err(OpenError::UnreadableFormat { file });
            }
            Ok(None)
        }
        Err(error) => Err(OpenError::fault(directory, error)),
    }
}

pub(crate) fn database(directory: &Path) -> PathBuf {
    directory.join(DATABASE)
}

pub(crate) fn blobs(directory: &Path) -> PathBuf {
    directory.join(BLOBS)
}

/// Makes a directory that only its owner can look into: the log's secret is in it.
pub(crate) fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    make_private(directory)?;
    // Its name must be as durable as what will be in it.
    let parent = directory
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    sync_directory(parent.unwrap_or(Path::new(".")))
}

/// Closes to others what is open to them: a directory that somebody else made, and what an older program wrote into it
/// under a wide umask. Returns what was changed. Files within closed directories need no look.
#[cfg(unix)]
pub(crate) fn restrict_permissions(directory: &Path) -> io::Result<Vec<PathBuf>> {
    use std::os::unix::fs::PermissionsExt;
    let mut changed = Vec::new();
    let entries = [LOCK, FORMAT, DATABASE, BLOBS].map(|name| directory.join(name));
    let beside = ["-wal", "-shm"].map(|end| directory.join(format!("{DATABASE}{end}")));
    let entries = entries.into_iter().chain(beside);
    for path in std::iter::once(directory.to_owned()).chain(entries) {
        let mode = match fs::metadata(&path) {
            Ok(metadata) => metadata.permissions().mode(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if mode & 0o077 != 0 {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o700))?;
            changed.push(path);
        }
    }
    Ok(changed)
}

#[cfg(not(unix))]
pub(crate) fn restrict_permissions(_: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(Vec::new())
}

/// Returns what names of files that this process alone writes have in them. Ids of processes repeat where several machines
/// in a box share a directory; this does not.
pub(crate) fn own_number() -> u64 {
    static OWN: OnceLock<u64> = OnceLock::new();
    *OWN.get_or_init(|| getrandom::u64().unwrap_or_else(|_| std::process::id().into()))
}

/// Finds out whether so many bytes can be written.
pub(crate) fn probe(directory: &Path, bytes: usize) -> io::Result<()> {
    let file = directory.join(format!("probe-{}.tmp", own_number()));
    let written = create(&file).and_then(|mut file| {
        file.write_all(&vec![0; bytes])?;
        file.sync_all()
    });
    let removed = fs::remove_file(&file);
    written.and(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_held_by_those_who_share_it_and_by_nobody_else() {
        let home = tempfile::tempdir().unwrap();
        assert!(!is_held(home.path()));
        let mut first = join(home.path()).unwrap();
        assert!(first.is_alone() && is_held(home.path()));
        first.share(home.path()).unwrap();
        assert!(!first.is_alone() && is_held(home.path()));
        let second = join(home.path()).unwrap();
        assert!(!second.is_alone());
        drop(first);
        assert!(is_held(home.path()), "the second is still there");
        assert!(matches!(claim(home.path()), Err(OpenError::Locked { .. })));
        drop(second);
        assert!(!is_held(home.path()));
        assert!(claim(home.path()).unwrap().is_alone());
    }

    #[test]
    fn a_format_that_is_no_number_and_a_lost_format_file_are_refused() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(FORMAT), "one\n").unwrap();
        let error = claim(home.path()).unwrap_err();
        assert!(
            matches!(error, OpenError::UnreadableFormat { .. }),
            "{error}"
        );
        fs::remove_file(home.path().join(FORMAT)).unwrap();
        fs::write(home.path().join(DATABASE), "").unwrap();
        let error = claim(home.path()).unwrap_err();
        assert!(
            matches!(error, OpenError::UnreadableFormat { .. }),
            "{error}"
        );
    }
}
