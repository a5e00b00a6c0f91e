//! The crate against the published vectors, the schemas and arbitrary text.

mod arbitrary_yaml;
mod hash;
mod markdown;
mod report;
mod shape;
mod vectors;
mod verify;
