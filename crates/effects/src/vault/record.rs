//! One secret in one file: what was sealed, and what it was sealed for.

use std::fs;
use std::io;
use std::path::PathBuf;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use zeroize::Zeroizing;

use super::disk::{at, random, write_durably};
use super::{NAME_BYTES_MAX, Vault, VaultError, damaged, is_name};

pub(super) const RECORD_SUFFIX: &str = ".record";
const MAGIC: &[u8; 8] = b"RPRVLT01";
const NONCE_BYTES: usize = 12;
const HEADER_BYTES: usize = MAGIC.len() + 8 + NONCE_BYTES;

impl Vault {
    /// A damaged record may be replaced: its header still says which version it was, if anything does.
    pub(super) fn newest_version(&self, name: &str) -> Result<u64, VaultError> {
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

    pub(super) fn read(&self, name: &str) -> Result<(u64, Zeroizing<Vec<u8>>), VaultError> {
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

    pub(super) fn write(&self, name: &str, version: u64, plain: &[u8]) -> Result<(), VaultError> {
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
        write_durably(&self.folder, &format!("{name}{RECORD_SUFFIX}"), &bytes)
    }

    fn cipher(&self) -> Aes256Gcm {
        Aes256Gcm::new((&*self.key).into())
    }

    /// What a record is about. Neither part can contain the separator.
    fn context(&self, name: &str, version: u64) -> Vec<u8> {
        format!("{}\n{name}\n{version}", self.id).into_bytes()
    }

    pub(super) fn path(&self, name: &str) -> Result<PathBuf, VaultError> {
        if !is_name(name) {
            return Err(VaultError::BadName(
                name.chars().take(NAME_BYTES_MAX).collect(),
            ));
        }
        Ok(self.folder.join(format!("{name}{RECORD_SUFFIX}")))
    }
}

fn split(bytes: &[u8]) -> Option<(u64, [u8; NONCE_BYTES], &[u8])> {
    let (header, sealed) = bytes.split_at_checked(HEADER_BYTES)?;
    let (magic, rest) = header.split_at_checked(MAGIC.len())?;
    let (version, nonce) = rest.split_at_checked(8)?;
    let version = u64::from_be_bytes(version.try_into().ok()?);
    (magic == MAGIC).then_some((version, nonce.try_into().ok()?, sealed))
}
