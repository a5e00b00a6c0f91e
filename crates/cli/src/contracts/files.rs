//! The files of a folder of contracts.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use contracts::{CompileError, Compiled, Severity, Source, compile};
use domain::{ContractText, ContractTexts};
use runs::workflow::check_contracts;

use crate::config::ContractsConfig;
use crate::exit::{OrHint, Problem};

/// Contracts and session file of a folder, as they are on disk.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) contracts: Vec<Source>,
    pub(super) session: Option<Source>,
    /// The workflow whose roles have folders of their own.
    pub(super) workflow: Option<Source>,
}

impl Folder {
    /// Reads the folder of one agent.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let read = Self::read_any(folder)?;
        if let Some(workflow) = &read.workflow {
            let message = format!("`{}`: a workflow has several agents", workflow.file);
            let hint = "name the folder of one role; programs open a workflow themselves";
            return Err(Problem::new(message, hint).into());
        }
        Ok(read)
    }

    /// Reads `<tool>.yaml` for each tool, `session.yaml` and `workflow.yaml`, in the order of their names.
    pub(super) fn read_any(folder: &Path) -> anyhow::Result<Self> {
        let mut contracts = Vec::new();
        let (mut session, mut workflow) = (None, None);
        for path in yaml_files(folder)? {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let source = Source {
                file: path.display().to_string(),
                text: read_text(&path)?,
            };
            match name.as_str() {
                "session.yaml" => session = Some(source),
                "workflow.yaml" => workflow = Some(source),
                _ => contracts.push(source),
            }
        }
        if contracts.is_empty() && session.is_none() && workflow.is_none() {
            let message = format!("`{}` holds no contracts", folder.display());
            return Err(Problem::new(message, "a contract is a file `<tool>.yaml`").into());
        }
        // Rules in a file that nobody reads would be rules that silently do not hold.
        for inner in subfolders(folder)? {
            if workflow.is_none() && holds_yaml(&inner)? {
                let message = format!("the contracts in `{}` are not read", inner.display());
                let hint = "put all contracts next to each other in one folder";
                return Err(Problem::new(message, hint).into());
            }
        }
        Ok(Self {
            contracts,
            session,
            workflow,
        })
    }

    pub(super) fn compile(&self) -> Result<Compiled, CompileError> {
        compile(&self.contracts, self.session.as_ref())
    }
}

/// Reads the sets of contracts that the configuration names.
///
/// # Errors
/// A name that occurs twice, files that cannot be read, or the first finding of a set that does not compile: contracts
/// that do not hold stop the start.
pub(crate) fn configured(sets: &[ContractsConfig]) -> anyhow::Result<Vec<ContractTexts>> {
    let mut found: Vec<ContractTexts> = Vec::new();
    for set in sets {
        let name = &set.name;
        if name.is_empty() || found.iter().any(|other| other.name == *name) {
            let message = format!("contracts `{name}`: the name is empty or used twice");
            return Err(Problem::new(message, "give each `[[contracts]]` its own name").into());
        }
        let hint = format!(
            "`reprise contracts check {}` shows everything",
            set.folder.display()
        );
        let folder = Folder::read(&set.folder)?;
        let compiled = folder.compile().map_err(|error| {
            let first = error
                .findings()
                .iter()
                .find(|finding| finding.severity == Severity::Error);
            let first = first.map(ToString::to_string).unwrap_or_default();
            Problem::new(
                format!("contracts `{name}` do not compile: {first}"),
                hint.clone(),
            )
        })?;
        let text = |source: &Source| ContractText {
            file: Path::new(&source.file)
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            text: source.text.clone(),
        };
        let texts = ContractTexts {
            name: name.clone(),
            sha256: compiled.digest(),
            files: folder.contracts.iter().map(text).collect(),
            session: folder.session.as_ref().map(text),
            principal: set.principal.clone(),
        };
        check_contracts(&texts)
            .map_err(|message| Problem::new(format!("contracts `{name}`: {message}"), hint))?;
        found.push(texts);
    }
    Ok(found)
}

/// Returns the YAML files of a folder, sorted.
pub(super) fn yaml_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let hint = "name a folder that exists and can be read";
    let entries = fs::read_dir(folder).or_hint(format_args!("`{}`", folder.display()), hint)?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry
            .or_hint(format_args!("`{}`", folder.display()), hint)?
            .path();
        let is = |part: Option<&OsStr>, words: &[&str]| {
            part.is_some_and(|part| words.iter().any(|word| part.eq_ignore_ascii_case(word)))
        };
        let is_session = is(path.file_stem(), &["session"]);
        let is_yaml = is(path.extension(), &["yaml", "yml"]);
        if !is_yaml && !is_session {
            continue;
        }
        // Rules in a file that nobody reads would be rules that silently do not hold.
        if is_session && path.file_name() != Some(OsStr::new("session.yaml")) {
            let message = format!("`{}` is not read", path.display());
            return Err(Problem::new(message, "name the session file `session.yaml`").into());
        }
        if !path.is_file() {
            let message = format!("`{}` is not a file that can be read", path.display());
            return Err(Problem::new(message, "a contract is a file `<tool>.yaml`").into());
        }
        files.push(path);
    }
    files.sort();
    Ok(files)
}

fn holds_yaml(folder: &Path) -> anyhow::Result<bool> {
    let hint = "name a folder that exists and can be read";
    let entries = fs::read_dir(folder).or_hint(format_args!("`{}`", folder.display()), hint)?;
    let is_yaml = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.ok().map(|entry| entry.path());
        let extension = path.as_deref().and_then(Path::extension);
        extension.is_some_and(|part| part == "yaml" || part == "yml")
    };
    Ok(entries.into_iter().any(is_yaml))
}

/// Returns the folders in a folder that are not hidden, sorted. Links to folders are refused: nobody would read what they lead to.
pub(super) fn subfolders(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let hint = "name a folder that exists and can be read";
    let shown = format!("`{}`", folder.display());
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder).or_hint(&shown, hint)? {
        let entry = entry.or_hint(&shown, hint)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let kind = entry.file_type().or_hint(&shown, hint)?;
        let path = entry.path();
        if !is_hidden && kind.is_symlink() && path.is_dir() {
            let message = format!(
                "`{}` is a link to a folder, which is not followed",
                path.display()
            );
            return Err(Problem::new(message, "put the folder itself there").into());
        }
        if !is_hidden && kind.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}

/// Reads a text file.
pub(super) fn read_text(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).or_hint(
        format_args!("`{}`", path.display()),
        "name a UTF-8 file that exists and can be read",
    )
}
