//! What is asked of git: the commit, the dirty state, old contents, worktrees.
//!
//! Runs the `git` program; never changes the user's checkout.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ::sidecar::{Content, FileError, Files, RawHasher, is_absolute, normalise};
use anyhow::{Context as _, bail};
use canon::Digest;

use super::files::relative_to;

/// What git sets for its hooks, and what would turn it to another repository than the directory's.
const REPOSITORY_VARIABLES: [&str; 8] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
];

fn git(directory: &Path) -> Command {
    let mut command = Command::new("git");
    for name in REPOSITORY_VARIABLES {
        command.env_remove(name);
    }
    command
        .arg("-C")
        .arg(directory)
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_LITERAL_PATHSPECS", "1")
        // What is not in this clone is missing: fetching it would start commands that the repository names.
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .args(["-c", "protocol.allow=never"])
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    command
}

/// Returns what git prints, or nothing when it fails for whatever reason.
fn ask<S: AsRef<OsStr>>(directory: &Path, arguments: &[S]) -> Option<Vec<u8>> {
    let output = git(directory).args(arguments).output().ok()?;
    output.status.success().then_some(output.stdout)
}

fn ask_line(directory: &Path, arguments: &[&str]) -> Option<String> {
    let line = String::from_utf8(ask(directory, arguments)?).ok()?;
    Some(line.trim_end_matches('\n').to_owned())
}

/// Returns what git says against a directory, or nothing when it can use it.
pub(super) fn complaint(directory: &Path) -> Option<String> {
    let output = match git(directory)
        .args(["rev-parse", "--verify", "HEAD"])
        .output()
    {
        Ok(output) if output.status.success() => return None,
        Ok(output) => output,
        Err(error) => return Some(format!("cannot run git: {error}")),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or("git fails");
    Some(match said.contains("Needed a single revision") {
        true => "the repository has no commit yet".to_owned(),
        false => said.to_owned(),
    })
}

/// Returns the top directory of the repository.
pub(super) fn top_level(directory: &Path) -> Option<PathBuf> {
    PathBuf::from(ask_line(directory, &["rev-parse", "--show-toplevel"])?)
        .canonicalize()
        .ok()
}

/// Returns the commit and whether the tree differs from it, leaving out the paths named.
///
/// Best effort (RB-CAP-02): any failure gives nothing.
pub(super) fn state(directory: &Path, ignored: &[PathBuf]) -> Option<(String, bool)> {
    let commit = ask_line(directory, &["rev-parse", "--verify", "HEAD"])?;
    let hex = commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !hex || !matches!(commit.len(), 40 | 64) {
        return None;
    }
    let top = top_level(directory)?;
    let listing = ask(
        &top,
        &[
            "status",
            "--porcelain=v1",
            "-z",
            "--untracked-files=all",
            "--no-renames",
        ],
    )?;
    let dirty = listing.split(|byte| *byte == 0).any(|entry| {
        let Some(path) = entry.get(3..).map(String::from_utf8_lossy) else {
            return false;
        };
        let path = top.join(&*path);
        !ignored.iter().any(|ignored| path.starts_with(ignored))
    });
    Some((commit, dirty))
}

/// Says whether history is cut off in this clone.
pub(super) fn is_shallow(directory: &Path) -> bool {
    ask_line(directory, &["rev-parse", "--is-shallow-repository"]).as_deref() == Some("true")
}

/// Returns the commit that last touched a file.
pub(super) fn last_commit(directory: &Path, file: &Path) -> Option<String> {
    let arguments: [&OsStr; 5] = [
        "log".as_ref(),
        "-1".as_ref(),
        "--format=%H".as_ref(),
        "--".as_ref(),
        file.as_os_str(),
    ];
    let commit = String::from_utf8(ask(directory, &arguments)?).ok()?;
    let commit = commit.trim();
    (!commit.is_empty()).then(|| commit.to_owned())
}

/// Says whether git tracks a file.
pub(super) fn is_tracked(directory: &Path, file: &Path) -> bool {
    let arguments: [&OsStr; 4] = [
        "ls-files".as_ref(),
        "--error-unmatch".as_ref(),
        "--".as_ref(),
        file.as_os_str(),
    ];
    ask(directory, &arguments).is_some()
}

/// Makes a detached worktree of a commit.
pub(super) fn add_worktree(directory: &Path, target: &Path, commit: &str) -> anyhow::Result<()> {
    let output = git(directory)
        .args(["worktree", "add", "--detach"])
        .arg(target)
        .arg(commit)
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!(
            "git worktree add: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// The files below a root as they were at a commit.
#[derive(Debug)]
pub(super) struct AtCommit {
    root: PathBuf,
    /// The root relative to the repository's top, empty or ending in `/`.
    prefix: String,
    commit: String,
}

impl AtCommit {
    /// Finds the commit in the repository that holds the root.
    pub(super) fn open(root: &Path, revision: &str) -> anyhow::Result<Self> {
        let root = root
            .canonicalize()
            .with_context(|| format!("cannot read the root `{}`", root.display()))?;
        let prefix = ask_line(&root, &["rev-parse", "--show-prefix"]).with_context(|| {
            let said = complaint(&root).unwrap_or_default();
            format!("`{}` is not in a git repository: {said}", root.display())
        })?;
        let commit = format!("{revision}^{{commit}}");
        let arguments = [
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            &commit,
        ];
        let Some(commit) = ask_line(&root, &arguments) else {
            let hint = if is_shallow(&root) {
                " (the clone is shallow: `git fetch --unshallow` may bring it)"
            } else {
                ""
            };
            bail!("commit `{revision}` is not in this repository{hint}");
        };
        Ok(Self {
            root,
            prefix,
            commit,
        })
    }

    /// Returns the full commit id.
    pub(super) fn commit(&self) -> &str {
        &self.commit
    }

    /// Lists entries as mode, object and path below the root.
    fn entries(&self, path: &str, recursive: bool) -> Vec<Entry> {
        let full = format!("{}{path}", self.prefix);
        let mut arguments = vec!["ls-tree", "-z", "--full-tree"];
        if recursive {
            arguments.push("-r");
        }
        arguments.extend([self.commit.as_str(), "--", &full]);
        let listing = ask(&self.root, &arguments).unwrap_or_default();
        listing
            .split(|byte| *byte == 0)
            .filter_map(|entry| {
                let entry = std::str::from_utf8(entry).ok()?;
                let (facts, path) = entry.split_once('\t')?;
                let mut facts = facts.split(' ');
                let (mode, _, object) = (facts.next()?, facts.next()?, facts.next()?);
                let path = path.strip_prefix(&self.prefix)?;
                Some((mode.to_owned(), object.to_owned(), path.to_owned()))
            })
            .collect()
    }

    fn blob(&self, object: &str, keep_bytes_max: u64) -> Result<Content, FileError> {
        let unreadable = |error: std::io::Error| FileError::Unreadable(error.to_string());
        let mut child = git(&self.root)
            .args(["cat-file", "blob", object])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(unreadable)?;
        let mut hasher = RawHasher::new();
        let mut kept = Some(Vec::new());
        let mut chunk = vec![0; 64 << 10];
        if let Some(mut stdout) = child.stdout.take() {
            loop {
                let len = stdout.read(&mut chunk).map_err(unreadable)?;
                let bytes = chunk.get(..len).unwrap_or_default();
                if bytes.is_empty() {
                    break;
                }
                hasher.update(bytes);
                kept = kept
                    .filter(|kept| (kept.len() + len) as u64 <= keep_bytes_max)
                    .map(|mut kept| {
                        kept.extend_from_slice(bytes);
                        kept
                    });
            }
        }
        if !child.wait().map_err(unreadable)?.success() {
            return Err(FileError::Unreadable(format!(
                "git cannot read object `{object}`; in a partial clone `git fetch` brings what is missing"
            )));
        }
        let (digest, len) = hasher.finish();
        Ok(Content {
            digest,
            len,
            bytes: kept,
        })
    }
}

/// A name in a commit: its mode, its object and its path below the root.
type Entry = (String, String, String);

impl AtCommit {
    /// Finds what a path names, following symbolic links as the working tree does.
    fn locate(&self, path: &str) -> Result<Entry, FileError> {
        const LINKS_MAX: usize = 40;
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            match self.entry(&path) {
                Some(entry) if !is_link(&entry.0) => return Ok(entry),
                _ => path = self.past_first_link(&path)?,
            }
        }
        Err(FileError::Unreadable("too many symbolic links".to_owned()))
    }

    fn entry(&self, path: &str) -> Option<Entry> {
        let entries = self.entries(path, false);
        entries.into_iter().find(|(_, _, found)| found == path)
    }

    /// Returns a path with its first link replaced by what it leads to.
    fn past_first_link(&self, path: &str) -> Result<String, FileError> {
        const TARGET_BYTES_MAX: u64 = 4096;
        let ends = path.match_indices('/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let (head, rest) = path.split_at_checked(end).unwrap_or((path, ""));
            let Some((mode, object, _)) = self.entry(head) else {
                return Err(FileError::Missing);
            };
            if !is_link(&mode) {
                continue;
            }
            let target = self.blob(&object, TARGET_BYTES_MAX)?.bytes;
            let target = target.and_then(|bytes| String::from_utf8(bytes).ok());
            let target = target.ok_or(FileError::Missing)?;
            if is_absolute(&target) {
                return Err(FileError::OutsideRoot);
            }
            let parent = head.rsplit_once('/').map_or("", |(parent, _)| parent);
            return normalise(&format!("{parent}/{target}{rest}")).ok_or(FileError::OutsideRoot);
        }
        Err(FileError::Missing)
    }
}

fn is_regular(mode: &str) -> bool {
    mode.starts_with("100")
}

fn is_link(mode: &str) -> bool {
    mode == "120000"
}

impl Files for AtCommit {
    fn read(&self, path: &str, keep_bytes_max: u64) -> Result<Content, FileError> {
        let (mode, object, _) = self.locate(path)?;
        if !is_regular(&mode) {
            return Err(FileError::Unreadable(
                "not a regular file in git".to_owned(),
            ));
        }
        self.blob(&object, keep_bytes_max)
    }

    fn is_file(&self, path: &str) -> bool {
        self.locate(path).is_ok_and(|(mode, ..)| is_regular(&mode))
    }

    fn tree(&self, path: &str) -> Result<Vec<(String, Digest)>, FileError> {
        let prefix = match path {
            "" => String::new(),
            path => format!("{}/", self.locate(path)?.2),
        };
        let entries = self.entries(&prefix, true);
        if entries.is_empty() {
            return Err(FileError::Missing);
        }
        entries
            .iter()
            .filter_map(|(mode, object, found)| Some((mode, object, found.strip_prefix(&prefix)?)))
            .map(|(mode, object, name)| {
                if is_regular(mode) {
                    Ok((name.to_owned(), self.blob(object, 0)?.digest))
                } else {
                    let message = format!("`{name}` is not a regular file in git");
                    Err(FileError::Unreadable(message))
                }
            })
            .collect()
    }

    fn relative(&self, absolute: &str) -> Option<String> {
        relative_to(&self.root, absolute)
    }
}
