//! Which sidecar is meant, and where its root is.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::Context as _;
use canon::{Integers, Value};

/// A report and its sidecar, found by either name (RB-SRF-01).
#[derive(Debug)]
pub(super) struct ReportPair {
    pub(super) report: PathBuf,
    pub(super) sidecar: PathBuf,
}

const SIDECAR_END: &str = ".replay.json";

impl ReportPair {
    pub(super) fn of(argument: &Path) -> Self {
        let text = argument.to_string_lossy();
        if let Some(stem) = text.strip_suffix(SIDECAR_END) {
            Self {
                report: PathBuf::from(format!("{stem}.md")),
                sidecar: argument.to_owned(),
            }
        } else {
            let stem = text.strip_suffix(".md").unwrap_or(&text);
            Self {
                report: argument.to_owned(),
                sidecar: PathBuf::from(format!("{stem}{SIDECAR_END}")),
            }
        }
    }
}

/// Returns the root (section 5.2): the one given, else the nearest marker above `start`, else the
/// current directory.
pub(super) fn root(given: Option<&Path>, start: &Path, ahd: bool) -> anyhow::Result<PathBuf> {
    if let Some(root) = given {
        return Ok(root.to_owned());
    }
    let start = lexical(&std::path::absolute(start).context("cannot read the current directory")?);
    let marked = |is_root: &dyn Fn(&Path) -> bool| {
        start
            .ancestors()
            .find(|directory| is_root(directory))
            .map(Path::to_owned)
    };
    let found = if ahd {
        marked(&is_framework)
    } else {
        marked(&|directory| directory.join(".replay-root").is_file())
            .or_else(|| marked(&|directory| directory.join(".git").exists()))
    };
    match found {
        Some(root) => Ok(root),
        None => std::env::current_dir().context("cannot read the current directory"),
    }
}

/// Removes `..` by the text of the path, so that a linked directory is searched by its own name.
fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        if component == Component::ParentDir {
            out.pop();
        } else {
            out.push(component);
        }
    }
    out
}

fn is_framework(directory: &Path) -> bool {
    package_manifest(&directory.join("package.json"))
        .is_some_and(|manifest| manifest.get("name").is_some_and(|name| name == FRAMEWORK))
}

const FRAMEWORK: &str = "@adastracomputing/ahd";

/// Reads a `package.json`; anything unreadable is passed over.
pub(super) fn package_manifest(path: &Path) -> Option<Value> {
    const MANIFEST_BYTES_MAX: u64 = 1 << 20;
    if fs::metadata(path).ok()?.len() > MANIFEST_BYTES_MAX {
        return None;
    }
    canon::read(&fs::read(path).ok()?, Integers::Doubles).ok()
}

/// Returns the directory that a file is in.
pub(super) fn directory_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
