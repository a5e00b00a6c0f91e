//! Replay blocks: the sidecar beside a report that lets a stranger check which inputs a run consumed.
//!
//! Holds the hash contract, the shapes of a sidecar, the verification and the markdown block. Takes
//! bytes and a [`Files`] view as values; it opens no file, knows no clock and runs nothing.

mod block;
mod files;
mod hash;
mod markdown;
mod report;
mod secrets;
mod shape;
mod shell;
mod verify;
mod yaml;

pub use block::{
    Agent, AgentTool, Ahd, AhdModel, AhdSampling, Artifact, Conditions, Environment, General,
    HashedFile, Model, Parent, ReadSidecar, Recording, Redaction, Runtime, SCHEMA_VERSION,
    Sampling, Sidecar, SidecarError, Signature, Tool, Trace, read_sidecar,
};
pub use files::{Content, FileError, Files, Resolved, is_absolute, normalise, resolve};
pub use hash::{
    Mode, Profile, RawHasher, canonical_hash, canonical_text, sidecar_hash, signed_bytes,
    tree_hash, tree_listing,
};
pub use markdown::{INFO_STRING, shell_block, yaml_block};
pub use report::{BlockState, ReportError, compare_block, render, strip};
pub use secrets::{Secret, find_secrets, is_secret_variable, looks_secret, redact, redacted_name};
pub use shape::{AHD_KINDS, Problem, Shape, check_ahd, check_general, is_utc_time};
pub use shell::shell_line;
pub use verify::{
    AgentFiles, Check, DOCUMENT_BYTES_MAX, Outcome, Reason, Verification, VerifyOptions, verify,
};
pub use yaml::{CanonicalText, Limits, YamlError, YamlRefusal, read_yaml};
