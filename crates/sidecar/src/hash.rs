//! The hash contract: what is hashed for an input, by mode and profile.
//!
//! Raw bytes are hashed as they come; structured inputs by their canonical text; directories by a
//! listing of their files. Reads nothing itself.

use std::fmt;

use canon::{Digest, Value};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::yaml::{Limits, YamlError, read_yaml};

/// How an artifact is hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The exact bytes of the file.
    RawBytes,
    /// The canonical text of the parsed value, under the document's [`Profile`].
    CanonicalJson,
    /// The listing of a directory.
    Tree,
}

impl Mode {
    /// Returns the name used in sidecars and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::RawBytes => "raw-bytes",
            Self::CanonicalJson => "canonical-json",
            Self::Tree => "tree",
        }
    }

    /// Returns the mode of that name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::RawBytes, Self::CanonicalJson, Self::Tree]
            .into_iter()
            .find(|mode| mode.name() == name)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What mode canonical-json means in a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Profile {
    /// RFC 8785, without numbers that JSON cannot write.
    #[serde(rename = "jcs-1")]
    Jcs1,
    /// The order and number rules of the AHD framework.
    #[serde(rename = "ahd-js-1")]
    AhdJs1,
}

/// A raw-bytes hash in the making, for inputs that do not fit in memory.
#[derive(Clone, Default)]
pub struct RawHasher {
    inner: Sha256,
    len: u64,
}

impl RawHasher {
    /// Starts with no bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.inner.update(bytes);
        self.len = self.len.saturating_add(bytes.len() as u64);
    }

    /// Returns the hash and how many bytes went into it.
    pub fn finish(self) -> (Digest, u64) {
        (Digest::from_bytes(self.inner.finalize().into()), self.len)
    }
}

impl fmt::Debug for RawHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawHasher({} bytes)", self.len)
    }
}

/// Returns the canonical text of a structured input.
///
/// # Errors
/// The input is refused by [`read_yaml`].
pub fn canonical_text(bytes: &[u8], profile: Profile) -> Result<Vec<u8>, YamlError> {
    read_yaml(bytes, profile, Limits::STANDARD).map(|text| text.to_vec())
}

/// Returns the canonical-json hash of a structured input.
///
/// # Errors
/// The input is refused by [`read_yaml`].
pub fn canonical_hash(bytes: &[u8], profile: Profile) -> Result<Digest, YamlError> {
    read_yaml(bytes, profile, Limits::STANDARD).map(|text| text.digest())
}

/// Returns the listing whose bytes mode tree hashes: one line per file, by the path's UTF-8 bytes.
///
/// Paths are relative to the directory and use `/`.
pub fn tree_listing(files: &[(String, Digest)]) -> String {
    let mut sorted: Vec<&(String, Digest)> = files.iter().collect();
    sorted.sort();
    let mut listing = String::new();
    for (path, digest) in sorted {
        listing.push_str(&format!("{digest}  {path}\n"));
    }
    listing
}

/// Returns the tree hash of a directory's files.
pub fn tree_hash(files: &[(String, Digest)]) -> Digest {
    canon::sha256(tree_listing(files).as_bytes())
}

/// Returns the bytes that a sidecar's signature is over: RFC 8785, without its `signature` member.
pub fn signed_bytes(document: &Value) -> Vec<u8> {
    let mut unsigned = document.clone();
    if let Some(members) = unsigned.as_object_mut() {
        members.remove("signature");
    }
    canon::jcs(&unsigned)
}

/// Returns the hash that names a sidecar, over [`signed_bytes`].
pub fn sidecar_hash(document: &Value) -> Digest {
    canon::sha256(&signed_bytes(document))
}
