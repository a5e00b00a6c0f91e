//! Ed25519 keys: signing a receipt hash, and key sets with validity and rotation.
//!
//! Key material arrives as bytes; nothing here makes keys or keeps them. Signatures are always
//! checked with `verify_strict`, which refuses weak keys and second forms of one signature.

use std::fmt;

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use canon::{Digest, Integers, Map, ReadError, Value, jcs, sha256};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

/// The one signature algorithm that is spoken.
pub const ED25519: &str = "ed25519";

const PREFIX: &str = "base64:";

/// A private key with its name.
pub struct Signer {
    key_id: String,
    key: SigningKey,
}

impl Signer {
    /// Takes the 32 secret bytes of an Ed25519 key.
    pub fn new(key_id: impl Into<String>, secret: &[u8; 32]) -> Self {
        Self {
            key_id: key_id.into(),
            key: SigningKey::from_bytes(secret),
        }
    }

    /// Returns the name under which the public key is published.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Returns the 32 public bytes.
    pub fn public(&self) -> [u8; 32] {
        self.key.verifying_key().to_bytes()
    }

    /// Signs a receipt hash and returns the text for the member `signature`.
    ///
    /// The message is the text of the hash, prefix included.
    pub fn sign(&self, hash: &Digest) -> String {
        let signature = self.sign_bytes(hash.to_string().as_bytes());
        format!("{PREFIX}{}", STANDARD.encode(signature))
    }

    pub(crate) fn sign_bytes(&self, message: &[u8]) -> [u8; 64] {
        self.key.sign(message).to_bytes()
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

/// A public key with its name and the time in which it may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// The name, `kid` in a key set.
    pub key_id: String,
    /// The 32 public bytes.
    pub bytes: [u8; 32],
    /// First second since 1970 in which the key is valid; none: since ever.
    pub not_before: Option<i64>,
    /// First second since 1970 in which it is no longer valid; none: for ever.
    pub expires: Option<i64>,
    /// Where it ended, when another key took over.
    pub retired: Option<KeyRetirement>,
}

/// The end of a key. Its holder can sign anything and write any date, so what it signed counts only if the log held it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyRetirement {
    /// The size of the log at its end, and the root.
    pub head: Option<(u64, Digest)>,
    /// The name of the log that it ended in. Sizes of logs with different names cannot be compared: one that lost something
    /// goes on under a new name, and may be shorter. None in key sets from before names were kept.
    pub origin: Option<String>,
    /// The second since 1970 from which on it is not trusted at all: somebody else may have had it.
    pub revoked_at: Option<i64>,
}

impl PublicKey {
    /// Returns the RFC 7638 thumbprint: base64url of the SHA-256 of the required members.
    pub fn thumbprint(&self) -> String {
        let digest = sha256(&jcs(&Value::Object(self.required_members())));
        URL_SAFE_NO_PAD.encode(digest.as_bytes())
    }

    /// Tells whether a witness that saw a head at this second saw it while the key was in use: only then does it say more
    /// than the key itself, which its holder can still use after its end.
    pub fn was_in_use_at(&self, seconds: u64) -> bool {
        let has_end = self.expires.is_some() || self.revoked_at().is_some();
        has_end && i64::try_from(seconds).is_ok_and(|seconds| self.is_valid_at(seconds))
    }

    fn revoked_at(&self) -> Option<i64> {
        self.retired.as_ref()?.revoked_at
    }

    fn is_valid_at(&self, seconds: i64) -> bool {
        self.revoked_at().is_none_or(|end| seconds < end)
            && self.not_before.is_none_or(|first| first <= seconds)
            && self.expires.is_none_or(|end| seconds < end)
    }

    fn required_members(&self) -> Map<String, Value> {
        Map::from_iter([
            ("kty".to_owned(), "OKP".into()),
            ("crv".to_owned(), "Ed25519".into()),
            ("x".to_owned(), URL_SAFE_NO_PAD.encode(self.bytes).into()),
        ])
    }

    fn read(entry: &Map<String, Value>) -> Result<Self, String> {
        let key_id = entry.get("kid").and_then(Value::as_str).unwrap_or_default();
        if key_id.is_empty() {
            return Err("an Ed25519 key has no `kid`".to_owned());
        }
        if entry.contains_key("d") {
            return Err(format!("key `{key_id}` shows its private part"));
        }
        let bytes = entry
            .get("x")
            .and_then(Value::as_str)
            .and_then(|text| URL_SAFE_NO_PAD.decode(text).ok())
            .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok())
            .filter(|bytes| VerifyingKey::from_bytes(bytes).is_ok())
            .ok_or_else(|| format!("key `{key_id}` has no Ed25519 public key in `x`"))?;
        let seconds = |name: &str| match entry.get(name) {
            None => Ok(None),
            Some(value) => value
                .as_i64()
                .map(Some)
                .ok_or_else(|| format!("`{name}` of key `{key_id}` is not a whole number")),
        };
        Ok(Self {
            key_id: key_id.to_owned(),
            bytes,
            not_before: seconds("nbf")?,
            expires: seconds("exp")?,
            retired: KeyRetirement::read(entry.get("retired"), seconds("revoked_at")?)
                .ok_or_else(|| format!("`retired` of key `{key_id}` is malformed"))?,
        })
    }
}

impl KeyRetirement {
    /// Reads the members of a key set; none when they are malformed.
    fn read(stated: Option<&Value>, revoked_at: Option<i64>) -> Option<Option<Self>> {
        let head = match stated {
            None if revoked_at.is_none() => return Some(None),
            None => None,
            Some(Value::Object(stated)) if stated.is_empty() => None,
            Some(stated) => {
                let size = stated.get("size")?.as_u64()?;
                let root = Digest::parse(stated.get("root")?.as_str()?).ok()?;
                Some((size, root))
            }
        };
        let origin = match stated.and_then(|stated| stated.get("origin")) {
            None => None,
            Some(origin) => Some(origin.as_str()?.to_owned()),
        };
        Some(Some(Self {
            head,
            origin,
            revoked_at,
        }))
    }

    fn write(&self, members: &mut Map<String, Value>) {
        let mut retired = Map::new();
        if let Some((size, root)) = self.head {
            retired.insert("size".to_owned(), size.into());
            retired.insert("root".to_owned(), root.to_string().into());
        }
        if let Some(origin) = &self.origin {
            retired.insert("origin".to_owned(), origin.as_str().into());
        }
        members.insert("retired".to_owned(), Value::Object(retired));
        if let Some(seconds) = self.revoked_at {
            members.insert("revoked_at".to_owned(), seconds.into());
        }
    }
}

/// Published keys, old ones included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeySet {
    keys: Vec<PublicKey>,
}

/// The document is not a usable key set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// The text was refused by the strict reader.
    #[error(transparent)]
    Json(#[from] ReadError),
    /// A member is missing or wrong.
    #[error("key set: {0}")]
    Content(String),
}

/// Why a signature does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureFault {
    AlgorithmUnsupported,
    KeyUnknown,
    KeyNotValidAtTime,
    SignatureInvalid,
}

impl KeySet {
    /// Collects keys.
    ///
    /// # Errors
    /// Two keys have one name: then a signature would not say which of them made it.
    pub fn new(keys: Vec<PublicKey>) -> Result<Self, KeySetError> {
        for (index, key) in keys.iter().enumerate() {
            if keys.iter().skip(index + 1).any(|k| k.key_id == key.key_id) {
                let message = format!("two keys are called `{}`", key.key_id);
                return Err(KeySetError::Content(message));
            }
        }
        Ok(Self { keys })
    }

    /// Returns the digest of which keys there are and how far each counts: it changes when a key is added, ends or is
    /// revoked. What the log was called when a key ended is left out, because files of before do not say so.
    pub fn state(&self) -> Digest {
        let mut text = String::from("reprise-signing-keys-state/1\n");
        for key in &self.keys {
            let retired = key.retired.as_ref();
            let end = retired
                .and_then(|retired| retired.head)
                .map(|(size, _)| size);
            text.push_str(&format!(
                "{} {} {:?} {:?} {} {end:?} {:?}\n",
                key.key_id,
                key.thumbprint(),
                key.not_before,
                key.expires,
                retired.is_some(),
                key.revoked_at(),
            ));
        }
        sha256(text.as_bytes())
    }

    /// Reads a JSON Web Key Set. Keys of other types are passed over, as RFC 7517 asks.
    ///
    /// # Errors
    /// The text is not strict JSON, has no list `keys`, names a key twice, shows a private key, or
    /// holds an Ed25519 key that is malformed.
    pub fn from_jwks(bytes: &[u8]) -> Result<Self, KeySetError> {
        let document = canon::read_object(bytes, Integers::Safe)?;
        let list = document.get("keys").and_then(Value::as_array);
        let content = |message: &str| KeySetError::Content(message.to_owned());
        let mut keys = Vec::new();
        for entry in list.ok_or_else(|| content("no list `keys`"))? {
            let entry = entry
                .as_object()
                .ok_or_else(|| content("an entry of `keys` is not an object"))?;
            let is = |name: &str, text: &str| entry.get(name).is_some_and(|value| value == text);
            if is("kty", "OKP") && is("crv", "Ed25519") {
                keys.push(PublicKey::read(entry).map_err(KeySetError::Content)?);
            }
        }
        Self::new(keys)
    }

    /// Writes the set as a JSON Web Key Set, canonically.
    pub fn to_jwks(&self) -> Vec<u8> {
        let keys: Vec<Value> = self
            .keys
            .iter()
            .map(|key| {
                let mut members = key.required_members();
                members.insert("kid".to_owned(), key.key_id.as_str().into());
                members.insert("alg".to_owned(), "EdDSA".into());
                members.insert("use".to_owned(), "sig".into());
                for (name, time) in [("nbf", key.not_before), ("exp", key.expires)] {
                    if let Some(seconds) = time {
                        members.insert(name.to_owned(), seconds.into());
                    }
                }
                if let Some(retired) = &key.retired {
                    retired.write(&mut members);
                }
                Value::Object(members)
            })
            .collect();
        jcs(&Value::Object(Map::from_iter([(
            "keys".to_owned(),
            keys.into(),
        )])))
    }

    /// Returns the keys.
    pub fn keys(&self) -> &[PublicKey] {
        &self.keys
    }

    /// Tells whether a key was the current one at a size of the log with a name: a retired key signs no head after its end or
    /// of another log, none at all once it is revoked, and a later key none from before. The head at its very end is
    /// known by its root.
    pub fn may_sign_head(&self, key: &PublicKey, origin: &str, size: u64, root: &Digest) -> bool {
        let is_here =
            |retired: &KeyRetirement| retired.origin.as_deref().is_none_or(|at| at == origin);
        let Some(retired) = &key.retired else {
            let others = self.keys.iter().filter_map(|other| other.retired.as_ref());
            let mut ends = others
                .filter(|retired| is_here(retired))
                .filter_map(|retired| retired.head);
            return ends.all(|(end, _)| size >= end);
        };
        if !is_here(retired) {
            return false;
        }
        match retired.head {
            Some((end, known)) if size == end => known == *root,
            Some((end, _)) => size < end && retired.revoked_at.is_none(),
            None => retired.revoked_at.is_none(),
        }
    }

    /// Checks one stated signature over a hash, and returns the key that made it.
    pub(crate) fn check(
        &self,
        stated: crate::receipt::StatedSignature<'_>,
        hash: &Digest,
        at_seconds: Option<i64>,
    ) -> Result<&PublicKey, SignatureFault> {
        if stated.algorithm != ED25519 {
            return Err(SignatureFault::AlgorithmUnsupported);
        }
        let key = self
            .keys
            .iter()
            .find(|key| key.key_id == stated.key_id)
            .ok_or(SignatureFault::KeyUnknown)?;
        if !at_seconds.is_some_and(|seconds| key.is_valid_at(seconds)) {
            return Err(SignatureFault::KeyNotValidAtTime);
        }
        let signature = stated
            .signature
            .strip_prefix(PREFIX)
            .and_then(|text| STANDARD.decode(text).ok())
            .ok_or(SignatureFault::SignatureInvalid)?;
        verify(&key.bytes, hash.to_string().as_bytes(), &signature)
            .then_some(key)
            .ok_or(SignatureFault::SignatureInvalid)
    }
}

/// Checks an Ed25519 signature strictly.
pub(crate) fn verify(public: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
    let key = VerifyingKey::from_bytes(public);
    let signature = Signature::from_slice(signature);
    matches!((key, signature), (Ok(key), Ok(signature)) if key.verify_strict(message, &signature).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A witness's time excuses a key that is over only if it lies within the key's life; a key without an end needs no
    /// excuse, and gets none.
    #[test]
    fn u16_a_witness_counts_only_while_the_key_was_in_use() {
        let key = |not_before, expires, revoked_at| PublicKey {
            key_id: "key".to_owned(),
            bytes: [1; 32],
            not_before,
            expires,
            retired: Some(KeyRetirement {
                revoked_at,
                ..KeyRetirement::default()
            }),
        };
        let cases = [
            (key(Some(10), Some(20), None), 10, true),
            (key(Some(10), Some(20), None), 19, true),
            (key(Some(10), Some(20), None), 20, false),
            (key(Some(10), Some(20), None), 9, false),
            (key(Some(10), Some(20), None), 1 << 63, false),
            (key(Some(10), Some(20), Some(15)), 14, true),
            (key(Some(10), Some(20), Some(15)), 15, false),
            (key(None, None, Some(15)), 1, true),
            (key(None, None, Some(15)), 1 << 62, false),
            (key(None, None, None), 1, false),
        ];
        for (key, time, expected) in cases {
            assert_eq!(key.was_in_use_at(time), expected, "{key:?} at {time}");
        }
    }

    /// Sizes are compared within one log only: after a loss it goes on under a new name, and may be shorter.
    #[test]
    fn u16_the_end_of_a_key_is_an_end_in_its_own_log() {
        let key = |name: &str, origin: Option<&str>, end: Option<u64>| PublicKey {
            key_id: name.to_owned(),
            bytes: [1; 32],
            not_before: None,
            expires: None,
            retired: end.map(|end| KeyRetirement {
                head: Some((end, sha256(b"end"))),
                origin: origin.map(str::to_owned),
                revoked_at: None,
            }),
        };
        let set = |origin| {
            let keys = vec![key("old", origin, Some(10)), key("new", None, None)];
            KeySet::new(keys).unwrap()
        };
        let may = |keys: &KeySet, name: &str, origin: &str, size: u64| {
            let key = keys.keys().iter().find(|key| key.key_id == name).unwrap();
            keys.may_sign_head(key, origin, size, &sha256(b"any"))
        };
        let named = set(Some("log"));
        assert!(may(&named, "new", "log", 10) && !may(&named, "new", "log", 9));
        assert!(may(&named, "new", "log-2", 9), "the shorter log goes on");
        assert!(may(&named, "old", "log", 9) && !may(&named, "old", "log", 11));
        assert!(!may(&named, "old", "log-2", 9), "it never signed that one");
        // A set from before names were kept holds everything to the one end it knows.
        let unnamed = set(None);
        assert!(!may(&unnamed, "new", "log-2", 9) && may(&unnamed, "old", "log-2", 9));
        let read = KeySet::from_jwks(&named.to_jwks()).unwrap();
        assert_eq!(read, named);
    }
}
