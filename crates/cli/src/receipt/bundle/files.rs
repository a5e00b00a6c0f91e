//! The files of an exported log: its manifest, its lines, its blobs. Everything here is read within bounds: a bundle is a
//! stranger's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use canon::{Digest, Integers, Map, Value};
use receipts::{KeySet, export};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::super::file::read_file;
use super::super::report::Findings;
use super::HINT;
use crate::exit::{OrHint, Problem};

/// The longest line that is read.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The largest blob that is held in memory.
const BLOB_BYTES_MAX: u64 = 256 * 1024 * 1024;

pub(super) fn optional(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match path.is_file() {
        true => read_file(path).map(Some),
        false => Ok(None),
    }
}

/// What a bundle says about itself.
pub(super) struct Manifest {
    bytes: Vec<u8>,
    map: Map<String, Value>,
}

impl Manifest {
    pub(super) fn read(directory: &Path) -> anyhow::Result<Self> {
        let file = directory.join("manifest.json");
        let bytes = read_file(&file)?;
        let map = canon::read_object(&bytes, Integers::Safe)
            .or_hint(format_args!("`{}`", file.display()), HINT)?;
        let is = |name: &str, value: Value| map.get(name) == Some(&value);
        if !is("format", json!("reprise-log")) || !is("version", json!(1)) {
            let message = format!("`{}` is of another format or version", file.display());
            return Err(Problem::new(message, HINT).into());
        }
        Ok(Self { bytes, map })
    }

    pub(super) fn log(&self) -> &str {
        self.map
            .get("log")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Checks who wrote it. The digests in it then stand for every file, also for what no receipt commits to.
    pub(super) fn check_seal(
        &self,
        directory: &Path,
        keys: Option<&KeySet>,
        findings: &mut Findings,
    ) -> anyhow::Result<Seal> {
        let Some(seal) = optional(&directory.join("manifest.note"))? else {
            let expected = "`manifest.note`, the signature of who exported it".to_owned();
            let found = "none: whatever no receipt covers could have been left out".to_owned();
            let code = "export_unsigned";
            findings.fail("manifest", code, Some(expected), Some(found));
            return Ok(Seal::Missing);
        };
        let Some(keys) = keys else {
            findings.skip("manifest", "give --keys");
            return Ok(Seal::Missing);
        };
        match export::check(&self.bytes, &seal, keys) {
            Ok(key) => {
                findings.pass("manifest");
                findings.signed_by(&key.key_id);
                Ok(Seal::Holds)
            }
            Err(problem) => {
                let expected = "the signature of a given key over this manifest".to_owned();
                let found = problem.to_string();
                let code = match problem {
                    export::SealError::KeyRetired(_) => "key_retired",
                    _ => "signature_invalid",
                };
                findings.fail("manifest", code, Some(expected), Some(found));
                Ok(Seal::Missing)
            }
        }
    }

    fn files(&self) -> impl Iterator<Item = (&str, &Value)> {
        let files = self.map.get("files").and_then(Value::as_object);
        let files = files.into_iter().flatten();
        files.map(|(name, entry)| (name.as_str(), entry.get("sha256").unwrap_or(&Value::Null)))
    }

    pub(super) fn compare(&self, name: &str, found: Digest, findings: &mut Findings) {
        let stated = self.files().find(|(known, _)| *known == name);
        let stated = stated
            .and_then(|(_, digest)| digest.as_str())
            .unwrap_or("none");
        findings.compare(format!("file {name}"), "manifest_mismatch", stated, found);
    }

    pub(super) fn count(&self, name: &str, found: u64, findings: &mut Findings) {
        let stated = self.map.get(name).cloned().unwrap_or_default();
        let name = format!("{} count", name.trim_end_matches('s'));
        findings.compare(name, "manifest_mismatch", stated, found);
    }

    pub(super) fn count_blobs(&self, found: u64, findings: &mut Findings) {
        let blobs = self.map.get("blobs");
        let stated = blobs.and_then(|blobs| blobs.get("count"));
        let stated = stated.cloned().unwrap_or_default();
        findings.compare("blob count", "manifest_mismatch", stated, found);
    }

    /// Returns the blobs that were left out on purpose.
    pub(super) fn withheld(&self) -> BTreeSet<Digest> {
        let list = self.map.get("withheld").and_then(Value::as_array);
        let texts = list.into_iter().flatten().filter_map(Value::as_str);
        texts.filter_map(|text| Digest::parse(text).ok()).collect()
    }

    /// Returns the ids of events of which a repair left headers.
    pub(super) fn repaired(&self) -> BTreeSet<Box<str>> {
        let list = self.map.get("repaired").and_then(Value::as_array);
        let texts = list.into_iter().flatten().filter_map(Value::as_str);
        texts.map(Into::into).collect()
    }

    /// Checks the files that are read whole; the large ones are hashed while they are read.
    pub(super) fn check_small_files(
        &self,
        directory: &Path,
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        for name in ["keys.json", "checkpoint"] {
            let there = optional(&directory.join(name))?;
            let stated = self.files().any(|(known, _)| known == name);
            match there {
                Some(bytes) => self.compare(name, canon::sha256(&bytes), findings),
                None if stated => {
                    let name = format!("file {name}");
                    findings.fail(name, "manifest_mismatch", None, Some("missing".to_owned()));
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// What an export writes; the manifest's signature stands for all of it.
const NAMES: [&str; 7] = [
    "manifest.json",
    "manifest.note",
    "events.jsonl",
    "receipts.jsonl",
    "keys.json",
    "checkpoint",
    "blobs",
];

/// Looks for what no export writes: whoever reads the folder takes it for checked. What a link leads to can be another
/// thing a moment later, so that none is followed.
pub(super) fn check_names(directory: &Path, findings: &mut Findings) -> anyhow::Result<()> {
    let blobs = directory.join("blobs");
    let mut found = Vec::new();
    for folder in [directory, &blobs] {
        let what = || format!("`{}`", folder.display());
        for entry in std::fs::read_dir(folder).or_hint(what(), HINT)? {
            let entry = entry.or_hint(what(), HINT)?;
            let kind = entry.file_type().or_hint(what(), HINT)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_blob = folder == blobs;
            let is_known = is_blob || NAMES.contains(&name.as_str());
            let is_folder = !is_blob && name == "blobs";
            let name = match is_blob {
                true => format!("blobs/{name}"),
                false => name,
            };
            if !is_known {
                found.push((
                    name,
                    "file_unlisted",
                    "nothing that the manifest does not list",
                ));
            } else if kind.is_symlink() || (is_folder != kind.is_dir()) {
                found.push((name, "not_a_file", "a regular file, not a link"));
            }
        }
    }
    found.sort();
    for (name, code, expected) in found {
        let expected = Some(expected.to_owned());
        findings.fail(format!("file {name}"), code, expected, None);
    }
    Ok(())
}

/// Whether a given key vouches for the manifest, and so for every byte that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seal {
    Holds,
    Missing,
}

/// Where a line stands in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    start: u64,
    bytes: usize,
}

/// Lines of a file with the digest of the whole.
pub(crate) struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    hasher: Sha256,
    line: Vec<u8>,
    at: u64,
}

impl Lines {
    pub(crate) fn open(path: PathBuf) -> anyhow::Result<Self> {
        let file = open_file(&path)?;
        Ok(Self {
            path,
            reader: BufReader::with_capacity(1 << 16, file),
            hasher: Sha256::new(),
            line: Vec::new(),
            at: 0,
        })
    }

    /// Returns the next line without its line feed, whether it had one, and where it is.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<(&[u8], bool, Place)>> {
        self.line.clear();
        let mut bounded = (&mut self.reader).take(LINE_BYTES_MAX + 1);
        let read = bounded.read_until(b'\n', &mut self.line);
        let count = read.or_hint(format_args!("`{}`", self.path.display()), HINT)?;
        if count as u64 > LINE_BYTES_MAX {
            let message = format!(
                "`{}` has a line of more than {LINE_BYTES_MAX} bytes",
                self.path.display()
            );
            return Err(Problem::new(message, HINT).answers_no().into());
        }
        if count == 0 {
            return Ok(None);
        }
        let start = self.at;
        self.at += count as u64;
        self.hasher.update(&self.line);
        let (line, ended) = match self.line.strip_suffix(b"\n") {
            Some(line) => (line, true),
            None => (self.line.as_slice(), false),
        };
        let bytes = line.len();
        Ok(Some((line, ended, Place { start, bytes })))
    }

    pub(crate) fn sha256(self) -> Digest {
        Digest::from_bytes(self.hasher.finalize().into())
    }
}

/// Reads lines again by their places.
pub(crate) struct Reread {
    path: PathBuf,
    file: File,
}

impl Reread {
    pub(crate) fn open(path: PathBuf) -> anyhow::Result<Self> {
        let file = open_file(&path)?;
        Ok(Self { path, file })
    }

    pub(crate) fn line(&mut self, place: Place) -> anyhow::Result<Vec<u8>> {
        let mut line = vec![0; place.bytes];
        let mut read = || {
            self.file.seek(SeekFrom::Start(place.start))?;
            self.file.read_exact(&mut line)
        };
        read().or_hint(format_args!("`{}`", self.path.display()), HINT)?;
        Ok(line)
    }
}

/// Opens an ordinary file: a pipe would never end, a device has no end.
fn open_file(path: &Path) -> anyhow::Result<File> {
    let what = format!("`{}`", path.display());
    if !std::fs::metadata(path).or_hint(&what, HINT)?.is_file() {
        return Err(Problem::new(format!("{what} is not a file"), HINT).into());
    }
    File::open(path).or_hint(&what, HINT)
}

/// The blobs of a bundle.
pub(crate) struct Blobs {
    folder: PathBuf,
}

impl Blobs {
    pub(crate) fn of(directory: &Path) -> Self {
        Self {
            folder: directory.join("blobs"),
        }
    }

    /// Returns the bytes of a blob that is there, is what its name says and is not too large to hold.
    pub(crate) fn read(&self, digest: Digest) -> Option<Vec<u8>> {
        let path = self.folder.join(digest.hex());
        let file = open_file(&path).ok()?;
        let mut bytes = Vec::new();
        let mut bounded = file.take(BLOB_BYTES_MAX + 1);
        bounded.read_to_end(&mut bytes).ok()?;
        let is_whole = bytes.len() as u64 <= BLOB_BYTES_MAX && canon::sha256(&bytes) == digest;
        is_whole.then_some(bytes)
    }

    /// Compares every blob with its name, and looks for each one that events name.
    pub(super) fn check(
        &self,
        named: &BTreeMap<Digest, Box<str>>,
        withheld: &BTreeSet<Digest>,
        findings: &mut Findings,
    ) -> anyhow::Result<u64> {
        let what = || format!("`{}`", self.folder.display());
        let mut names: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(&self.folder).or_hint(what(), HINT)? {
            names.push(entry.or_hint(what(), HINT)?.path());
        }
        names.sort();
        let mut there = BTreeSet::new();
        let mut bad = 0;
        for path in &names {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let found = digest_of(path)?;
            if Digest::parse(&name) == Ok(found) {
                there.insert(found);
                continue;
            }
            bad += 1;
            let expected = Some(name.clone().into_owned());
            let name = format!("blob {name}");
            findings.fail(name, "blob_mismatch", expected, Some(found.hex()));
        }
        for (digest, event) in named {
            if there.contains(digest) || withheld.contains(digest) {
                continue;
            }
            bad += 1;
            let name = format!("blob {}", digest.hex());
            let expected = Some(format!("the content that {event} names"));
            let found = Some("missing".to_owned());
            findings.fail(name, "material_unavailable", expected, found);
        }
        if bad == 0 {
            findings.pass("blobs");
        }
        Ok(names.len() as u64)
    }
}

/// Hashes a file without holding it.
fn digest_of(path: &Path) -> anyhow::Result<Digest> {
    let what = format!("`{}`", path.display());
    let mut file = open_file(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = file.read(&mut buffer).or_hint(&what, HINT)?;
        if count == 0 {
            return Ok(Digest::from_bytes(hasher.finalize().into()));
        }
        hasher.update(buffer.get(..count).unwrap_or_default());
    }
}
