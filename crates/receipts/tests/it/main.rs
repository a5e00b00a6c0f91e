//! The crate seen from outside: published vectors, tampering, hostile input, oracles.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking; the exemption for tests does not reach their helpers"
)]

mod build;
mod common;
mod hostile;
mod merkle;
mod note;
mod published;
mod shape;
mod stream;
mod trust;
mod vectors;
mod verify;
