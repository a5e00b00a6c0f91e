//! The vault: secrets in a folder, encrypted at rest.
//!
//! One file per secret, one key file beside them. A record is AES-256-GCM with a fresh nonce; the vault's id, the
//! secret's name and its version are authenticated with it, so that a record cannot pass for another one. The key
//! lies on the same disk: the vault keeps secrets out of logs, backups of the data and other users' hands, not out
//! of the hands of whoever reads this user's files. An old record put back in place of a newer one is not noticed.
//!
//! Writes are atomic and durable: a temporary file, synced, renamed, and the folder synced. Writers of several
//! processes take turns through a lock file. The files are in [`disk`], the form of a record in [`record`].

mod disk;
mod record;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use engine::port::{KeepSecretError, SecretKeeper};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use disk::{at, check_mode, lock, make_folder, random, write_durably};
use record::RECORD_SUFFIX;

/// A value below this length could not be told from ordinary text in an output.
pub(crate) const VALUE_BYTES_MIN: usize = 4;
/// The longest value.
pub(crate) const VALUE_BYTES_MAX: usize = 65_536;
/// The longest name.
const NAME_BYTES_MAX: usize = 64;

const KEY_BYTES: usize = 32;
const KEY_FILE: &str = "key";
const LIVE: u8 = 1;
const DELETED: u8 = 0;

/// A name for a secret that says which value was meant, without the value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretHandle {
    /// The secret.
    pub name: String,
    /// The vault that keeps it.
    pub vault_id: String,
    /// Counts the values that it has had, from 1.
    pub version: u64,
}

/// A value and its handle.
pub(crate) type ResolvedSecret = (SecretString, SecretHandle);

/// Why the vault could not do it.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// No secret of that name.
    #[error("the vault has no secret `{0}`; `reprise vault set {0}` stores one")]
    Unknown(String),
    /// A name outside `[A-Za-z0-9_.-]{1,64}`.
    #[error("`{0}` is not a valid secret name: use 1 to 64 of the characters A-Z a-z 0-9 _ . -")]
    BadName(String),
    /// A value that cannot be kept.
    #[error("a secret is text of {VALUE_BYTES_MIN} to {VALUE_BYTES_MAX} bytes without NUL")]
    BadValue,
    /// A file or folder that others can read.
    #[error("`{path}` can be read by others (mode {mode:o}); run `chmod {wanted:o} {path}`", path = path.display())]
    Permissions {
        /// Which one.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// What it should be.
        wanted: u32,
    },
    /// The key file is missing or has the wrong size.
    #[error("the vault's key `{path}` {problem}; its records cannot be read without it", path = path.display())]
    Key {
        /// Where it should be.
        path: PathBuf,
        /// What is wrong.
        problem: &'static str,
    },
    /// A record that was changed, cut, or written with another key.
    #[error("the record of secret `{name}` is damaged ({problem}); set it again")]
    Damaged {
        /// The secret.
        name: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// The disk said no.
    #[error("cannot use `{path}`: {source}", path = path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// An open vault.
#[derive(Clone)]
pub struct Vault {
    folder: PathBuf,
    id: String,
    key: Zeroizing<[u8; KEY_BYTES]>,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Vault")
            .field("folder", &self.folder)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl SecretKeeper for Vault {
    fn put(&self, name: &str, value: &str) -> Result<u64, KeepSecretError> {
        let kept = Vault::put(self, name, &SecretString::from(value));
        Ok(kept.map_err(not_kept)?.version)
    }

    fn delete(&self, name: &str) -> Result<(), KeepSecretError> {
        match Vault::delete(self, name) {
            Ok(()) | Err(VaultError::Unknown(_)) => Ok(()),
            Err(error) => Err(not_kept(error)),
        }
    }
}

fn not_kept(error: VaultError) -> KeepSecretError {
    match error {
        VaultError::BadName(_) | VaultError::BadValue => {
            KeepSecretError::Refused(error.to_string())
        }
        other => KeepSecretError::Failed(other.to_string()),
    }
}

impl Vault {
    /// Opens the vault in a folder, making both when there is none yet. Removes what an interrupted write left.
    ///
    /// # Errors
    /// Refuses a folder or key that others can read, and records without their key.
    pub fn open(folder: impl Into<PathBuf>, id: impl Into<String>) -> Result<Self, VaultError> {
        let (folder, id) = (folder.into(), id.into());
        if !is_name(&id) {
            return Err(VaultError::BadName(id));
        }
        make_folder(&folder)?;
        check_mode(&folder, 0o700)?;
        let _turn = lock(&folder)?;
        let mut has_records = false;
        for entry in fs::read_dir(&folder).map_err(at(&folder))? {
            let path = entry.map_err(at(&folder))?.path();
            let name = path.to_string_lossy();
            // Writers hold the lock, so nobody is writing this one.
            if name.ends_with(files::TEMPORARY_SUFFIX) {
                fs::remove_file(&path).map_err(at(&path))?;
            }
            has_records |= name.ends_with(RECORD_SUFFIX);
        }
        let key_path = folder.join(KEY_FILE);
        if !key_path.exists() {
            if has_records {
                return Err(VaultError::Key {
                    path: key_path,
                    problem: "is missing",
                });
            }
            let mut fresh = Zeroizing::new([0; KEY_BYTES]);
            random(fresh.as_mut(), &key_path)?;
            write_durably(&folder, KEY_FILE, fresh.as_ref())?;
        }
        check_mode(&key_path, 0o600)?;
        let bytes = Zeroizing::new(fs::read(&key_path).map_err(at(&key_path))?);
        let key = <[u8; KEY_BYTES]>::try_from(bytes.as_slice()).map_err(|_| VaultError::Key {
            path: key_path,
            problem: "does not have 32 bytes",
        })?;
        Ok(Self {
            folder,
            id,
            key: Zeroizing::new(key),
        })
    }

    /// Returns the vault's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Keeps a value under a name, in place of the one before.
    ///
    /// # Errors
    /// Refuses bad names and values; tells of a disk that does not take it.
    pub fn put(&self, name: &str, value: &SecretString) -> Result<SecretHandle, VaultError> {
        let text = value.expose_secret();
        let fits = (VALUE_BYTES_MIN..=VALUE_BYTES_MAX).contains(&text.len());
        if !fits || text.contains('\0') {
            return Err(VaultError::BadValue);
        }
        let _turn = lock(&self.folder)?;
        let version = self.newest_version(name)? + 1;
        let mut plain = Zeroizing::new(vec![LIVE]);
        plain.extend_from_slice(text.as_bytes());
        self.write(name, version, &plain)?;
        Ok(self.handle(name, version))
    }

    /// Returns the value of a name and its handle.
    ///
    /// # Errors
    /// Tells an unknown name from a damaged record.
    pub fn get(&self, name: &str) -> Result<(SecretString, SecretHandle), VaultError> {
        let (version, plain) = self.read(name)?;
        match plain.split_first() {
            Some((&LIVE, text)) => {
                let text = std::str::from_utf8(text).map_err(|_| damaged(name, "not text"))?;
                Ok((SecretString::from(text), self.handle(name, version)))
            }
            Some((&DELETED, _)) => Err(VaultError::Unknown(name.to_owned())),
            Some(_) | None => Err(damaged(name, "of an unknown form")),
        }
    }

    /// Returns the handles of all secrets, by name; those that cannot be read come as errors.
    ///
    /// # Errors
    /// Returns an error only when the folder itself cannot be listed.
    pub fn list(&self) -> Result<Vec<Result<SecretHandle, VaultError>>, VaultError> {
        let all = self.all()?;
        Ok(all
            .into_iter()
            .map(|found| found.map(|(_, handle)| handle))
            .collect())
    }

    /// Returns when a record was last added, replaced or removed.
    pub(crate) fn stamp(&self) -> Result<SystemTime, VaultError> {
        let folder = fs::metadata(&self.folder).map_err(at(&self.folder))?;
        folder.modified().map_err(at(&self.folder))
    }

    /// Returns every secret, by name.
    pub(crate) fn all(&self) -> Result<Vec<Result<ResolvedSecret, VaultError>>, VaultError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(at(&self.folder))? {
            let file = entry.map_err(at(&self.folder))?.file_name();
            let file = file.to_string_lossy();
            if let Some(name) = file.strip_suffix(RECORD_SUFFIX)
                && is_name(name)
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names
            .iter()
            .map(|name| self.get(name))
            .filter(|found| !matches!(found, Err(VaultError::Unknown(_))))
            .collect())
    }

    /// Forgets a secret. Its name keeps counting, so that a handle never means two values.
    ///
    /// # Errors
    /// Returns [`VaultError::Unknown`] when there is none.
    pub fn delete(&self, name: &str) -> Result<(), VaultError> {
        let _turn = lock(&self.folder)?;
        let (_, handle) = self.get(name)?;
        self.write(name, handle.version + 1, &[DELETED])
    }

    fn handle(&self, name: &str, version: u64) -> SecretHandle {
        SecretHandle {
            name: name.to_owned(),
            vault_id: self.id.clone(),
            version,
        }
    }
}

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn damaged(name: &str, problem: &'static str) -> VaultError {
    VaultError::Damaged {
        name: name.to_owned(),
        problem,
    }
}

#[cfg(test)]
mod tests;
