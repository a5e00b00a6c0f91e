//! JSON that can be hashed: a reader that refuses what would lose meaning, writers that give one
//! text per value, and the digest type.
//!
//! Nothing here knows what a document means. Two profiles share one writer: RFC 8785 (`Profile::Jcs`)
//! and `ahd-js-1` (`Profile::AhdJs1`), which differ only in the order of object members.

mod depth;
mod digest;
mod read;
mod text;
mod write;

pub use depth::{DEPTH_MAX, VALUE_DEPTH_MAX, depth, holds_unsafe_integer};
pub use digest::{Digest, ParseDigestError, sha256, sha256_parts};
pub use read::{Integers, ReadError, Reason, read, read_object};
pub use serde_json::{Map, Number, Value};
pub use text::deserialize_text;
pub use write::{
    NameKey, Profile, append, append_members, append_number, append_string, canonical, jcs,
    jcs_len, len_hint, number,
};
