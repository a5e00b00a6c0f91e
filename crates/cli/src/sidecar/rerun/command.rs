//! The recorded vector made runnable here: redacted values supplied, foreign paths replaced.

use std::path::{Path, PathBuf};

use ::sidecar::{Files as _, General, is_absolute, redacted_name};
use anyhow::{Context as _, ensure};
use serde::Serialize;

use super::super::files::{WorkingTree, relative_to};

/// An argument that was replaced (RB-RUN-05).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Substitution {
    pub(super) index: usize,
    pub(super) from: String,
    pub(super) to: String,
}

/// Fills redacted arguments from environment variables named as NAME=VARIABLE (RB-RUN-07).
pub(super) fn supplied(recorded: &General, supply: &[String]) -> anyhow::Result<Vec<String>> {
    let lookup = |name: &str| {
        let variable = supply
            .iter()
            .filter_map(|pair| pair.split_once('='))
            .find(|(supplied, _)| *supplied == name)
            .map(|(_, variable)| variable)
            .with_context(|| {
                format!("argument `<redacted:{name}>` must be supplied: --supply {name}=VARIABLE")
            })?;
        let value = std::env::var(variable).with_context(|| format!("variable `{variable}`"))?;
        ensure!(!value.is_empty(), "variable `{variable}` is empty");
        Ok(value)
    };
    let redactions = recorded.redactions.as_deref().unwrap_or_default();
    let arguments = recorded.argv.iter().enumerate();
    arguments
        .map(
            |(index, argument)| match redacted_name(&recorded.argv, index, redactions) {
                Some((before, name)) => Ok(format!("{before}{}", lookup(name)?)),
                None => Ok(argument.clone()),
            },
        )
        .collect()
}

/// Replaces what names another place: paths into the user's checkout by their twins in the worktree,
/// interpreter and script of another machine by the local ones of the same name.
pub(super) fn localise(
    argv: &[String],
    checkout: &Path,
    root: &WorkingTree,
) -> (Vec<String>, Vec<Substitution>) {
    let mut substitutions = Vec::new();
    let local = argv
        .iter()
        .enumerate()
        .map(|(index, argument)| {
            let (before, path) = match argument.split_once('=') {
                Some((name, path)) if !is_absolute(argument) => (format!("{name}="), path),
                _ => (String::new(), argument.as_str()),
            };
            let Some(to) = replacement(index, path, checkout, root) else {
                return argument.clone();
            };
            let to = format!("{before}{to}");
            substitutions.push(Substitution {
                index,
                from: argument.clone(),
                to: to.clone(),
            });
            to
        })
        .collect();
    (local, substitutions)
}

fn replacement(index: usize, path: &str, checkout: &Path, root: &WorkingTree) -> Option<String> {
    if !is_absolute(path) {
        return None;
    }
    if let Some(inside) = relative_to(checkout, path) {
        return root.root().join(inside).to_str().map(str::to_owned);
    }
    if index > 1 || Path::new(path).exists() {
        return None;
    }
    let name = path
        .rsplit(['/', '\\'])
        .next()
        .filter(|name| !name.is_empty())?;
    if index == 1 {
        let found = ::sidecar::resolve(path, root).ok()?;
        if root.is_file(&found.path) {
            return root.root().join(found.path).to_str().map(str::to_owned);
        }
    }
    on_path(name.strip_suffix(".exe").unwrap_or(name))
}

/// Returns the name when a program of that name is on the search path.
fn on_path(name: &str) -> Option<String> {
    let path = std::env::var_os("PATH")?;
    let found =
        std::env::split_paths(&path).any(|directory: PathBuf| directory.join(name).is_file());
    found.then(|| name.to_owned())
}
