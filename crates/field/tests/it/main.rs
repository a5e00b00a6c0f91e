//! The field seen from outside: every requirement, published vectors, oracles, hostile input.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking; the exemption for tests does not reach their helpers"
)]

mod again;
mod attune;
mod clock;
mod common;
mod compact;
mod conflicts;
mod coordination;
mod coverage;
mod disputes;
mod envelope;
mod hidden;
mod hostile;
mod oracle;
mod picture;
mod quality;
mod record;
mod register;
mod replay;
mod segments;
mod vectors;
