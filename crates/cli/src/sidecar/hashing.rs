//! Hashing named files into artifacts, for capture and rerun.

use std::path::{Path, PathBuf};

use ::sidecar::{Artifact, Files, Limits, Mode, Profile, canonical_hash, tree_hash};
use anyhow::{Context as _, anyhow, bail};
use canon::{Digest, Number};

use super::files::WorkingTree;
use crate::output::Progress;

/// A file to be hashed, as named on the command line: `role=path[:mode]`.
#[derive(Debug, Clone)]
pub(super) struct RoleFile {
    pub(super) role: String,
    pub(super) path: PathBuf,
    pub(super) mode: Option<Mode>,
}

impl RoleFile {
    /// Reads `role=path[:mode]`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (role, rest) = text
            .split_once('=')
            .filter(|(role, path)| !role.is_empty() && !path.is_empty())
            .ok_or("expected role=path or role=path:mode")?;
        // Only the name of a mode ends a path: file names may hold colons.
        let (path, mode) = match rest.rsplit_once(':') {
            Some((path, name)) if !path.is_empty() && Mode::named(name).is_some() => {
                (path, Mode::named(name))
            }
            _ => (rest, None),
        };
        Ok(Self {
            role: role.to_owned(),
            path: PathBuf::from(path),
            mode,
        })
    }
}

/// A file with a name of its own: `NAME=FILE`.
#[derive(Debug, Clone)]
pub(super) struct NamedFile {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

impl NamedFile {
    /// Reads `NAME=FILE`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (name, path) = text
            .split_once('=')
            .filter(|(name, path)| !name.is_empty() && !path.is_empty())
            .ok_or("expected NAME=FILE")?;
        Ok(Self {
            name: name.to_owned(),
            path: PathBuf::from(path),
        })
    }
}

/// Says whether a file of this name is hashed by its value where nobody says how.
pub(super) fn is_structured(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["yml", "yaml", "json"].contains(&extension))
}

/// Returns a path given on the command line relative to the root, with `/` (RB-CAP-04).
pub(super) fn below_root(tree: &WorkingTree, path: &Path) -> anyhow::Result<String> {
    let outside = || {
        anyhow!(
            "`{}` is outside the root `{}`",
            path.display(),
            tree.root().display()
        )
    };
    let absolute = std::path::absolute(path).context("cannot read the current directory")?;
    let relative = |absolute: &Path| {
        let text = absolute.to_str()?;
        super::files::relative_to(tree.root(), text)
    };
    // First as written, so that a link keeps its own name; then by its real place.
    let found = relative(&absolute).or_else(|| {
        let directory = absolute.parent()?.canonicalize().ok()?;
        relative(&directory.join(absolute.file_name()?))
    });
    let found = found.ok_or_else(outside)?;
    if found.is_empty() {
        return Ok(".".to_owned());
    }
    Ok(found)
}

/// Hashes one file or directory below the root.
pub(super) fn artifact(
    files: &dyn Files,
    role: &str,
    path: &str,
    mode: Mode,
    profile: Profile,
) -> anyhow::Result<Artifact> {
    let _progress = Progress::begin(format!("hashing {path}"));
    let (hash, bytes) =
        hash(files, path, mode, profile).with_context(|| format!("cannot hash `{path}`"))?;
    Ok(Artifact {
        role: role.to_owned(),
        path: path.to_owned(),
        hash,
        mode,
        bytes: bytes.map(Number::from),
        media_type: None,
        stable: None,
    })
}

fn hash(
    files: &dyn Files,
    path: &str,
    mode: Mode,
    profile: Profile,
) -> anyhow::Result<(Digest, Option<u64>)> {
    match mode {
        Mode::RawBytes => {
            let content = files.read(path, 0)?;
            Ok((content.digest, Some(content.len)))
        }
        Mode::CanonicalJson => {
            let max = Limits::STANDARD.input_bytes_max as u64;
            let content = files.read(path, max)?;
            let Some(bytes) = content.bytes else {
                bail!(
                    "{} bytes, more than {max} for a structured input",
                    content.len
                );
            };
            Ok((canonical_hash(&bytes, profile)?, Some(content.len)))
        }
        Mode::Tree => Ok((tree_hash(&files.tree(path)?), None)),
    }
}

/// Returns the mode of a file when none was named: directories by their listing, files by their bytes.
pub(super) fn mode_of(tree: &WorkingTree, path: &str) -> Mode {
    if tree.root().join(path).is_dir() {
        Mode::Tree
    } else {
        Mode::RawBytes
    }
}
