//! Signed notes and checkpoints in the C2SP formats, and the cosignatures of witnesses.
//!
//! A note is a text and signature lines below it; a checkpoint is such a text that states the size and
//! root of a log. Which keys to trust is the caller's decision.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use canon::{Digest, sha256_parts};

use crate::keys::{self, Signer};

/// The longest note that is read.
pub const NOTE_BYTES_MAX: usize = 1 << 20;
/// The most signature lines that are read.
pub const NOTE_SIGNATURES_MAX: usize = 100;

const DASH: &str = "\u{2014} ";

/// A text with signature lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    text: String,
    signatures: Vec<SignatureLine>,
}

/// One signature line: who is said to have signed, and the signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureLine {
    name: String,
    key_id: [u8; 4],
    signature: Vec<u8>,
}

/// What a key may sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyUse {
    /// The note's text itself; the log's own key.
    Note,
    /// A time and the text of a checkpoint; the key of a witness.
    Cosignature,
}

/// The public key of a signer of notes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteKey {
    name: String,
    key_use: KeyUse,
    public: [u8; 32],
}

/// A note was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// The text is not a signed note.
    #[error("malformed note: {0}")]
    Malformed(&'static str),
    /// No line is by the given key.
    #[error("note is not signed by this key")]
    NotSigned,
    /// A line that names the given key is not by it.
    #[error("signature does not verify")]
    SignatureInvalid,
}

impl NoteKey {
    /// Names a public key. The name must be a word without blanks or `+`.
    ///
    /// # Errors
    /// The name is not such a word.
    pub fn new(
        name: impl Into<String>,
        key_use: KeyUse,
        public: [u8; 32],
    ) -> Result<Self, NoteError> {
        let name = name.into();
        if !is_name(&name) {
            return Err(NoteError::Malformed("key name"));
        }
        Ok(Self {
            name,
            key_use,
            public,
        })
    }

    /// Returns the 32 public bytes: the same key under another name is the same signer.
    pub fn public(&self) -> &[u8; 32] {
        &self.public
    }

    /// Reads the text form `<name>+<key id in hex>+<base64 of kind and key>`.
    ///
    /// # Errors
    /// The text has another form, the kind is neither a note nor a cosignature key, or the key id is
    /// not that of the key.
    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let malformed = NoteError::Malformed("verifier key");
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(malformed);
        };
        let bytes = STANDARD.decode(key).map_err(|_| malformed)?;
        let (kind, public) = bytes.split_first().ok_or(malformed)?;
        let key_use = match kind {
            1 => KeyUse::Note,
            4 => KeyUse::Cosignature,
            _ => return Err(malformed),
        };
        let public = public.try_into().map_err(|_| malformed)?;
        let key = Self::new(name, key_use, public)?;
        if hex(key.id()) != id {
            return Err(malformed);
        }
        Ok(key)
    }

    /// Returns the text form that [`NoteKey::parse`] reads.
    pub fn text(&self) -> String {
        let mut bytes = vec![self.key_use.byte()];
        bytes.extend_from_slice(&self.public);
        let (name, id) = (&self.name, hex(self.id()));
        format!("{name}+{id}+{}", STANDARD.encode(bytes))
    }

    /// Returns the name of the signer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the key may sign.
    pub fn key_use(&self) -> KeyUse {
        self.key_use
    }

    /// Returns the short id that signature lines carry.
    pub fn id(&self) -> [u8; 4] {
        let parts = [
            self.name.as_bytes(),
            b"\n",
            &[self.key_use.byte()],
            &self.public,
        ];
        let [a, b, c, d, ..] = *sha256_parts(parts).as_bytes();
        [a, b, c, d]
    }
}

impl KeyUse {
    const fn byte(self) -> u8 {
        match self {
            Self::Note => 1,
            Self::Cosignature => 4,
        }
    }
}

impl Note {
    /// Starts a note without signatures.
    ///
    /// # Errors
    /// The text does not end with a line feed or holds other control characters.
    pub fn new(text: impl Into<String>) -> Result<Self, NoteError> {
        let text = text.into();
        if !text.ends_with('\n') {
            return Err(NoteError::Malformed("text without final line feed"));
        }
        if text.bytes().any(|byte| byte < 0x20 && byte != b'\n') {
            return Err(NoteError::Malformed("control character"));
        }
        Ok(Self {
            text,
            signatures: Vec::new(),
        })
    }

    /// Reads a note with at least one signature line.
    ///
    /// # Errors
    /// The bytes are not a signed note; see [`NoteError::Malformed`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoteError> {
        if bytes.len() > NOTE_BYTES_MAX {
            return Err(NoteError::Malformed("too long"));
        }
        let all = std::str::from_utf8(bytes).map_err(|_| NoteError::Malformed("not UTF-8"))?;
        // The signatures follow the last empty line; the text may hold others.
        let (before, lines) = all
            .rsplit_once("\n\n")
            .ok_or(NoteError::Malformed("no signatures"))?;
        let mut note = Self::new(format!("{before}\n"))?;
        let lines = lines
            .strip_suffix('\n')
            .ok_or(NoteError::Malformed("last line is not ended"))?;
        for line in lines.split('\n') {
            if note.signatures.len() == NOTE_SIGNATURES_MAX {
                return Err(NoteError::Malformed("too many signatures"));
            }
            note.signatures.push(SignatureLine::parse(line)?);
        }
        Ok(note)
    }

    /// Returns the text above the signatures, with its final line feed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the signature lines.
    pub fn signatures(&self) -> &[SignatureLine] {
        &self.signatures
    }

    /// Writes the note.
    pub fn write(&self) -> String {
        let mut all = format!("{}\n", self.text);
        for line in &self.signatures {
            all.push_str(&line.write());
            all.push('\n');
        }
        all
    }

    /// Adds a signature by the log's own key under the given name.
    ///
    /// # Errors
    /// The name is not a word without blanks or `+`.
    pub fn sign(&mut self, name: &str, signer: &Signer) -> Result<(), NoteError> {
        let key = NoteKey::new(name, KeyUse::Note, signer.public())?;
        self.add(SignatureLine {
            name: name.to_owned(),
            key_id: key.id(),
            signature: signer.sign_bytes(self.text.as_bytes()).to_vec(),
        });
        Ok(())
    }

    /// Adds a line that another party made, such as a witness; a line that is there stays once.
    pub fn add(&mut self, line: SignatureLine) {
        if !self.signatures.contains(&line) {
            self.signatures.push(line);
        }
    }

    /// Checks all lines by a key; for a cosignature returns its latest time in seconds since 1970.
    ///
    /// # Errors
    /// No line names the key, or one that does is not by it.
    pub fn verify(&self, key: &NoteKey) -> Result<Option<u64>, NoteError> {
        let id = key.id();
        let is_theirs = |line: &&SignatureLine| line.name == key.name && line.key_id == id;
        let mut times = Vec::new();
        for line in self.signatures.iter().filter(is_theirs) {
            times.push(line.verify(&self.text, key)?);
        }
        times.into_iter().max().ok_or(NoteError::NotSigned)
    }
}

impl SignatureLine {
    /// Reads one line, without its line feed.
    ///
    /// # Errors
    /// The line is not a signature line.
    pub fn parse(line: &str) -> Result<Self, NoteError> {
        let malformed = NoteError::Malformed("signature line");
        let (name, text) = line
            .strip_prefix(DASH)
            .and_then(|rest| rest.split_once(' '))
            .ok_or(malformed)?;
        let bytes = STANDARD.decode(text).map_err(|_| malformed)?;
        let (key_id, signature) = bytes.split_first_chunk::<4>().ok_or(malformed)?;
        if !is_name(name) || signature.is_empty() {
            return Err(malformed);
        }
        Ok(Self {
            name: name.to_owned(),
            key_id: *key_id,
            signature: signature.to_vec(),
        })
    }

    /// Writes the line, without a line feed.
    pub fn write(&self) -> String {
        let mut bytes = self.key_id.to_vec();
        bytes.extend_from_slice(&self.signature);
        format!("{DASH}{} {}", self.name, STANDARD.encode(bytes))
    }

    /// Returns the name of the signer, as stated.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn verify(&self, text: &str, key: &NoteKey) -> Result<Option<u64>, NoteError> {
        let (time, message, signature) = match key.key_use {
            KeyUse::Note => (None, text.to_owned(), self.signature.as_slice()),
            KeyUse::Cosignature => {
                let (time, signature) = self
                    .signature
                    .split_first_chunk::<8>()
                    .ok_or(NoteError::SignatureInvalid)?;
                let time = u64::from_be_bytes(*time);
                let message = format!("cosignature/v1\ntime {time}\n{text}");
                (Some(time), message, signature)
            }
        };
        if keys::verify(&key.public, message.as_bytes(), signature) {
            Ok(time)
        } else {
            Err(NoteError::SignatureInvalid)
        }
    }
}

/// The statement of a log about itself: how many leaves, which root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The name of the log.
    pub origin: String,
    /// The number of leaves.
    pub size: u64,
    /// The root of the tree.
    pub root: Digest,
    /// Further lines, none of them empty.
    pub extensions: Vec<String>,
}

impl Checkpoint {
    /// Writes the text that is signed.
    pub fn text(&self) -> String {
        let root = STANDARD.encode(self.root.as_bytes());
        let mut text = format!("{}\n{}\n{root}\n", self.origin, self.size);
        for line in &self.extensions {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    /// Reads the text of a note as a checkpoint.
    ///
    /// # Errors
    /// The text is not a checkpoint.
    pub fn read(text: &str) -> Result<Self, NoteError> {
        let malformed = NoteError::Malformed("checkpoint");
        let mut lines = text.strip_suffix('\n').ok_or(malformed)?.split('\n');
        let mut line = || {
            lines
                .next()
                .filter(|line| !line.is_empty())
                .ok_or(malformed)
        };
        let (origin, size, root) = (line()?, line()?, line()?);
        let root = STANDARD.decode(root).map_err(|_| malformed)?;
        let checkpoint = Self {
            origin: origin.to_owned(),
            size: size.parse().map_err(|_| malformed)?,
            root: Digest::from_bytes(root.try_into().map_err(|_| malformed)?),
            extensions: lines.map(str::to_owned).collect(),
        };
        // The number was read leniently (`+1`, `007`); the round trip allows one form only.
        let is_exact = checkpoint.text() == text;
        let has_empty = checkpoint.extensions.iter().any(String::is_empty);
        if !is_exact || has_empty {
            return Err(malformed);
        }
        Ok(checkpoint)
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name
            .chars()
            .any(|c| c.is_whitespace() || c.is_control() || c == '+')
}

fn hex(id: [u8; 4]) -> String {
    format!("{:08x}", u32::from_be_bytes(id))
}
