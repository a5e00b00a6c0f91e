//! The vault: secrets in a folder, encrypted at rest.
//!
//! One file per secret, one key file beside them. A record is AES-256-GCM with a fresh nonce; the vault's id, the
//! secret's name and its version are authenticated with it, so that a record cannot pass for another one. The key
//! lies on the same disk: the vault keeps secrets out of logs, backups of the data and other users' hands, not out
//! of the hands of whoever reads this user's files. An old record put back in place of a newer one is not noticed.
//!
//! Writes are atomic and durable: a temporary file, synced, renamed, and the folder synced. Writers of several
//! processes take turns through a lock file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use engine::port::{KeepSecretError, SecretKeeper};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// A value below this length could not be told from ordinary text in an output.
pub(crate) const VALUE_BYTES_MIN: usize = 4;
/// The longest value.
pub(crate) const VALUE_BYTES_MAX: usize = 65_536;
/// The longest name.
const NAME_BYTES_MAX: usize = 64;

const MAGIC: &[u8; 8] = b"RPRVLT01";
const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;
const HEADER_BYTES: usize = MAGIC.len() + 8 + NONCE_BYTES;
const KEY_FILE: &str = "key";
const LOCK_FILE: &str = "lock";
const RECORD_SUFFIX: &str = ".record";
const TEMPORARY_SUFFIX: &str = ".tmp";
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
pub(crate) type Found = (SecretString, SecretHandle);

/// Why the vault could not do it.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// No secret of that name.
    #[error("the vault has no secret `{0}`")]
    Unknown(String),
    /// A name outside `[A-Za-z0-9_.-]{1,64}`.
    #[error("`{0}` is no name of a secret: use 1 to 64 of the characters A-Z a-z 0-9 _ . -")]
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

    fn names(&self) -> Result<Vec<(String, u64)>, KeepSecretError> {
        let all = self.list().map_err(not_kept)?;
        // A damaged record is told by whoever needs it.
        Ok(all
            .into_iter()
            .flatten()
            .map(|handle| (handle.name, handle.version))
            .collect())
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
        if !folder.exists() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .map_err(at(&folder))?;
        }
        check_mode(&folder, 0o700)?;
        let _turn = lock(&folder)?;
        let mut has_records = false;
        for entry in fs::read_dir(&folder).map_err(at(&folder))? {
            let path = entry.map_err(at(&folder))?.path();
            let name = path.to_string_lossy();
            // Writers hold the lock, so nobody is writing this one.
            if name.ends_with(TEMPORARY_SUFFIX) {
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
            write_atomically(&folder, KEY_FILE, fresh.as_ref())?;
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

    /// Returns every secret, by name.
    pub(crate) fn all(&self) -> Result<Vec<Result<Found, VaultError>>, VaultError> {
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

    /// A damaged record may be replaced: its header still says which version it was, if anything does.
    fn newest_version(&self, name: &str) -> Result<u64, VaultError> {
        match self.read(name) {
            Ok((version, _)) => Ok(version),
            Err(VaultError::Unknown(_)) => Ok(0),
            Err(VaultError::Damaged { .. }) => {
                let bytes = fs::read(self.path(name)?).unwrap_or_default();
                Ok(split(&bytes).map_or(0, |(version, ..)| version.min(u64::MAX - 1)))
            }
            Err(error) => Err(error),
        }
    }

    fn read(&self, name: &str) -> Result<(u64, Zeroizing<Vec<u8>>), VaultError> {
        let path = self.path(name)?;
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(VaultError::Unknown(name.to_owned()));
            }
            Err(error) => return Err(at(&path)(error)),
        };
        let (version, nonce, sealed) =
            split(&bytes).ok_or_else(|| damaged(name, "not a whole record"))?;
        let payload = Payload {
            msg: sealed,
            aad: &self.context(name, version),
        };
        let plain = self
            .cipher()
            .decrypt(&Nonce::from(nonce), payload)
            .map_err(|_| damaged(name, "changed, or written with another key"))?;
        Ok((version, Zeroizing::new(plain)))
    }

    fn write(&self, name: &str, version: u64, plain: &[u8]) -> Result<(), VaultError> {
        let path = self.path(name)?;
        let mut nonce = [0; NONCE_BYTES];
        random(&mut nonce, &path)?;
        let payload = Payload {
            msg: plain,
            aad: &self.context(name, version),
        };
        let sealed = self
            .cipher()
            .encrypt(&Nonce::from(nonce), payload)
            .map_err(|_| VaultError::BadValue)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&version.to_be_bytes());
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(&sealed);
        write_atomically(&self.folder, &format!("{name}{RECORD_SUFFIX}"), &bytes)
    }

    fn cipher(&self) -> Aes256Gcm {
        Aes256Gcm::new((&*self.key).into())
    }

    /// What a record is about. Neither part can contain the separator.
    fn context(&self, name: &str, version: u64) -> Vec<u8> {
        format!("{}\n{name}\n{version}", self.id).into_bytes()
    }

    fn path(&self, name: &str) -> Result<PathBuf, VaultError> {
        if !is_name(name) {
            return Err(VaultError::BadName(
                name.chars().take(NAME_BYTES_MAX).collect(),
            ));
        }
        Ok(self.folder.join(format!("{name}{RECORD_SUFFIX}")))
    }
}

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn split(bytes: &[u8]) -> Option<(u64, [u8; NONCE_BYTES], &[u8])> {
    let (header, sealed) = bytes.split_at_checked(HEADER_BYTES)?;
    let (magic, rest) = header.split_at_checked(MAGIC.len())?;
    let (version, nonce) = rest.split_at_checked(8)?;
    let version = u64::from_be_bytes(version.try_into().ok()?);
    (magic == MAGIC).then_some((version, nonce.try_into().ok()?, sealed))
}

fn damaged(name: &str, problem: &'static str) -> VaultError {
    VaultError::Damaged {
        name: name.to_owned(),
        problem,
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> VaultError {
    let path = path.to_owned();
    move |source| VaultError::Io { path, source }
}

fn random(bytes: &mut [u8], path: &Path) -> Result<(), VaultError> {
    getrandom::fill(bytes).map_err(|error| at(path)(io::Error::other(error.to_string())))
}

fn check_mode(path: &Path, wanted: u32) -> Result<(), VaultError> {
    let mode = fs::metadata(path).map_err(at(path))?.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(VaultError::Permissions {
        path: path.to_owned(),
        mode,
        wanted,
    })
}

/// Waits for the turn to write; it ends when the file is dropped.
fn lock(folder: &Path) -> Result<File, VaultError> {
    let path = folder.join(LOCK_FILE);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(at(&path))?;
    file.lock().map_err(at(&path))?;
    Ok(file)
}

fn write_atomically(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), VaultError> {
    let temporary = folder.join(format!("{name}{TEMPORARY_SUFFIX}"));
    let path = folder.join(name);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(at(&temporary))?;
    file.write_all(bytes).map_err(at(&temporary))?;
    file.sync_all().map_err(at(&temporary))?;
    fs::rename(&temporary, &path).map_err(at(&path))?;
    // Only now is the new name on disk.
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(at(folder))
}

#[cfg(test)]
mod tests;
