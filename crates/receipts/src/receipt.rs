//! A receipt as a value: read strictly, hashed, signed, written canonically.
//!
//! Every [`Receipt`] has the shape of the format; whether its hash, links and signatures hold is for
//! `verify` to say. Nothing here decides what goes into a receipt.

use canon::{Digest, Integers, Map, Profile, ReadError, Value, append_members, sha256};

use crate::{
    format,
    keys::{self, Signer},
    shape::{self, ShapeError},
};

/// A document that has the shape of a receipt.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    map: Map<String, Value>,
    hash: Digest,
}

/// The bytes are not a receipt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadReceiptError {
    /// The text was refused by the strict reader.
    #[error(transparent)]
    Json(#[from] ReadError),
    /// The document has another shape than a receipt.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

/// One entry of the list `signatures`, as stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatedSignature<'a> {
    /// Which key is said to have signed.
    pub key_id: &'a str,
    /// Which algorithm is said to have been used.
    pub algorithm: &'a str,
    /// The signature text, for Ed25519 `base64:` and standard padded base64.
    pub signature: &'a str,
}

impl Receipt {
    /// Reads a receipt from JSON, canonical or not.
    ///
    /// # Errors
    /// The text has duplicate members, lone surrogates, invalid UTF-8 or unsafe integers, or another
    /// shape than a receipt.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadReceiptError> {
        Ok(Self::from_map(canon::read_object(bytes, Integers::Safe)?)?)
    }

    /// Wraps a parsed document.
    ///
    /// The caller must have read it strictly: what a lenient reader dropped cannot be seen here.
    ///
    /// # Errors
    /// The document has another shape than a receipt.
    pub fn from_map(map: Map<String, Value>) -> Result<Self, ShapeError> {
        shape::check_object(&map, &format::RECEIPT)?;
        let hash = hash(&map);
        Ok(Self { map, hash })
    }

    /// Takes what was built and is as the strict reader would read it back; its hash is known.
    ///
    /// # Errors
    /// The document has another shape than a receipt.
    pub(crate) fn built(map: Map<String, Value>, hash: Digest) -> Result<Self, ReadReceiptError> {
        shape::check_object(&map, &format::RECEIPT)?;
        Ok(Self { map, hash })
    }

    /// Reads back what was built, whose hash is known.
    ///
    /// # Errors
    /// As [`Receipt::read`].
    pub(crate) fn read_back(bytes: &[u8], hash: Digest) -> Result<Self, ReadReceiptError> {
        Self::built(canon::read_object(bytes, Integers::Safe)?, hash)
    }

    /// Returns the canonical bytes, the form that is stored and served.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES_USUAL);
        append_members(&mut bytes, self.map.iter(), Profile::Jcs);
        bytes
    }

    /// Returns the document.
    pub fn as_map(&self) -> &Map<String, Value> {
        &self.map
    }

    /// Returns the hash computed from the content.
    pub fn hash(&self) -> Digest {
        self.hash
    }

    /// Returns the hash that the receipt states about itself.
    pub fn stated_hash(&self) -> Option<Digest> {
        self.digest("chain", "receipt_hash")
    }

    /// Returns the hash of the predecessor that the receipt names.
    pub fn previous_hash(&self) -> Option<Digest> {
        self.digest("chain", "previous_receipt_hash")
    }

    /// Returns the batch root that the receipt names.
    pub fn merkle_root(&self) -> Option<Digest> {
        self.digest("chain", "merkle_root")
    }

    /// Returns the member `receipt_id`.
    pub fn id(&self) -> &str {
        self.map.get("receipt_id").map_or("", text)
    }

    /// Returns the kind of thing that the receipt is about.
    pub fn subject_object(&self) -> &str {
        self.text("subject", "object")
    }

    /// Returns the id of the thing that the receipt is about.
    pub fn subject_id(&self) -> &str {
        self.text("subject", "id")
    }

    /// Returns the member `identifiers.session_id`.
    pub fn session_id(&self) -> &str {
        self.text("identifiers", "session_id")
    }

    /// Returns the time of issue as written.
    pub fn issued_at(&self) -> &str {
        self.map.get("issued_at").map_or("", text)
    }

    /// Tells whether this is a leaf that hangs off the chain instead of advancing it.
    pub fn is_replay(&self) -> bool {
        self.subject_object() == REPLAY_SEGMENT
    }

    /// Lists the signatures as stated; none of them is checked here.
    pub fn signatures(&self) -> impl Iterator<Item = StatedSignature<'_>> {
        let list = self.map.get("signatures").and_then(Value::as_array);
        list.into_iter().flatten().map(|entry| {
            let member = |name| entry.get(name).map_or("", text);
            StatedSignature {
                key_id: member("key_id"),
                algorithm: member("algorithm"),
                signature: member("signature"),
            }
        })
    }

    /// Returns the receipt with one more signature over its hash.
    ///
    /// `signed_at` is not written: it stands outside the hash and would be a mere claim.
    #[must_use]
    pub fn signed(mut self, signer: &Signer) -> Self {
        let entry = Value::Object(Map::from_iter([
            ("key_id".to_owned(), signer.key_id().into()),
            ("algorithm".to_owned(), keys::ED25519.into()),
            ("signature".to_owned(), signer.sign(&self.hash).into()),
        ]));
        let list = self
            .map
            .entry("signatures")
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.push(entry);
        }
        self
    }

    fn text(&self, object: &str, name: &str) -> &str {
        let member = self.map.get(object).and_then(|object| object.get(name));
        member.map_or("", text)
    }

    fn digest(&self, object: &str, name: &str) -> Option<Digest> {
        Digest::parse(self.text(object, name)).ok()
    }
}

/// The subject of a replay receipt.
pub(crate) const REPLAY_SEGMENT: &str = "replay_segment";

/// Hashes a receipt without the two members that cannot be inside their own hash.
pub(crate) fn hash(map: &Map<String, Value>) -> Digest {
    // Only the small part that differs is copied: a receipt can name thousands of materials.
    let mut chain = map.get("chain").cloned();
    if let Some(Value::Object(chain)) = &mut chain {
        chain.remove("receipt_hash");
    }
    let members = map
        .iter()
        .filter(|(name, _)| *name != "signatures")
        .map(|(name, value)| match &chain {
            Some(chain) if name == "chain" => (name, chain),
            _ => (name, value),
        });
    let mut bytes = Vec::with_capacity(BYTES_USUAL);
    append_members(&mut bytes, members, Profile::Jcs);
    sha256(&bytes)
}

/// More bytes than most receipts have.
const BYTES_USUAL: usize = 8_192;

// Invariant: the shape check has seen a text wherever this is used.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
