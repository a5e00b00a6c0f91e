//! SHA-256 digests and their two text forms: `sha256:<hex>` and bare hex.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::deserialize_text;

/// A SHA-256 value. Displays as `sha256:` and 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

const PREFIX: &[u8; 7] = b"sha256:";
const HEX_BYTES: usize = 64;
const TEXT_BYTES: usize = PREFIX.len() + HEX_BYTES;

/// The text is not a SHA-256 digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a SHA-256 digest: 64 hex digits, optionally after `sha256:`")]
pub struct ParseDigestError(String);

impl Digest {
    /// Wraps 32 bytes that are already a digest.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the raw bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns 64 lower-case hex digits without prefix.
    pub fn hex(&self) -> String {
        let text = self.text();
        let (_, hex) = text.split_at(PREFIX.len());
        str::from_utf8(hex).unwrap_or_default().to_owned()
    }

    /// Returns the text with its prefix.
    fn text(&self) -> [u8; TEXT_BYTES] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0');
        let mut text = [0; TEXT_BYTES];
        let (prefix, hex) = text.split_at_mut(PREFIX.len());
        prefix.copy_from_slice(PREFIX);
        for ([high, low], byte) in hex.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            (*high, *low) = (digit(byte >> 4), digit(byte & 15));
        }
        text
    }

    /// Reads either text form, in any letter case.
    ///
    /// # Errors
    /// The text is neither 64 hex digits nor `sha256:` followed by them.
    pub fn parse(text: &str) -> Result<Self, ParseDigestError> {
        let refuse = || ParseDigestError(text.chars().take(80).collect());
        let hex = text.strip_prefix("sha256:").unwrap_or(text).as_bytes();
        if hex.len() != 64 {
            return Err(refuse());
        }
        let mut bytes = [0; 32];
        let mut all = 0;
        for (byte, [high, low]) in bytes.iter_mut().zip(hex.as_chunks::<2>().0) {
            let (high, low) = (nibble(*high), nibble(*low));
            all |= high | low;
            *byte = high << 4 | low & 15;
        }
        if all > 15 {
            return Err(refuse());
        }
        Ok(Self(bytes))
    }
}

/// Hashes one run of bytes.
pub fn sha256(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// Hashes several runs of bytes as if they were joined.
pub fn sha256_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Digest {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    Digest(hasher.finalize().into())
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer, Self::parse)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = ParseDigestError;

    fn try_from(text: String) -> Result<Self, ParseDigestError> {
        Self::parse(&text)
    }
}

/// What each byte is worth as a hex digit. Logs are full of digests, and branches on their digits cannot be foretold.
#[expect(
    clippy::indexing_slicing,
    reason = "computed when the program is compiled"
)]
const NIBBLES: [u8; 256] = {
    let mut nibbles = [NO_NIBBLE; 256];
    let mut digit = 0;
    while digit < 16 {
        nibbles[b"0123456789abcdef"[digit] as usize] = digit as u8;
        nibbles[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
        digit += 1;
    }
    nibbles
};

const NO_NIBBLE: u8 = u8::MAX;

fn nibble(digit: u8) -> u8 {
    NIBBLES
        .get(usize::from(digit))
        .copied()
        .unwrap_or(NO_NIBBLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_text_forms_read_and_one_is_written() {
        let empty = sha256(b"");
        let hex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(empty.hex(), hex);
        assert_eq!(empty.to_string(), format!("sha256:{hex}"));
        assert_eq!(Digest::parse(hex), Ok(empty));
        assert_eq!(
            Digest::parse(&format!("sha256:{}", hex.to_uppercase())),
            Ok(empty)
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "sha256:",
            "sha512:00",
            &"g".repeat(64),
            &"0".repeat(63),
            &"é".repeat(32),
        ] {
            assert!(Digest::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parts_hash_like_their_concatenation() {
        assert_eq!(sha256_parts([&b"ab"[..], b"", b"c"]), sha256(b"abc"));
    }
}
