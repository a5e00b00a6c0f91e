//! The seal of an exported log: a signed note over its manifest.
//!
//! Receipts commit to events of finished tasks. What no receipt covers, and that nothing was left out, is vouched for by
//! whoever exported: the manifest names every file by its digest, and the note names the manifest.

use canon::sha256;

use crate::keys::{KeySet, PublicKey, Signer};
use crate::note::{KeyUse, Note, NoteError, NoteKey};

const FIRST_LINE: &str = "reprise-export/1";

/// Why a seal does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It is not a seal.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// It is the seal of something else.
    #[error("the seal is of another manifest")]
    OtherManifest,
    /// It is by a key that is not the current one: whoever has that now could have made it.
    #[error("it was signed by `{0}`, which was retired")]
    KeyRetired(String),
    /// No key of the set made it.
    #[error("no key of the key set has signed it")]
    NotSigned,
}

/// Seals a manifest under the name of the log.
///
/// # Errors
/// The name is not a word that can sign a note.
pub fn seal(manifest: &[u8], origin: &str, signer: &Signer) -> Result<String, NoteError> {
    let mut note = Note::new(text(manifest, origin))?;
    note.sign(origin, signer)?;
    Ok(note.write())
}

/// Returns the key that sealed a manifest.
///
/// # Errors
/// The seal is malformed, of another manifest, or by none of the keys.
pub fn check<'a>(
    manifest: &[u8],
    seal: &[u8],
    keys: &'a KeySet,
) -> Result<&'a PublicKey, SealError> {
    let note = Note::read(seal)?;
    let origin = note.text().lines().nth(1).unwrap_or_default();
    if note.text() != text(manifest, origin) {
        return Err(SealError::OtherManifest);
    }
    let mut signers = keys.keys().iter().filter(|key| {
        let key = NoteKey::new(origin, KeyUse::Note, key.bytes);
        key.is_ok_and(|key| note.verify(&key).is_ok())
    });
    let signer = signers.next().ok_or(SealError::NotSigned)?;
    match &signer.retired {
        None => Ok(signer),
        Some(_) => Err(SealError::KeyRetired(signer.key_id.clone())),
    }
}

fn text(manifest: &[u8], origin: &str) -> String {
    format!("{FIRST_LINE}\n{origin}\n{}\n", sha256(manifest))
}
