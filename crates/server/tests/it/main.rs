//! The real server on a loopback port, over real HTTP, with the store in memory.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that meets what it does not expect stops"
)]

mod artifacts;
mod auth;
mod below;
mod boundary;
mod contract;
mod discovery;
mod errors;
mod events;
mod fixture;
mod governed;
mod governed_agreeing;
mod governed_bounds;
mod governed_control;
mod governed_parties;
mod governed_people;
mod governed_records;
mod governed_strict;
mod governed_workflows;
mod idempotency;
mod listening;
mod mcp;
mod memory;
mod memory_full;
mod memory_vectors;
mod personas;
mod policy;
mod privacy;
mod properties;
mod reading;
mod receipts;
mod records;
mod replay;
mod sessions;
mod shares;
mod sse;
mod tasks;
mod tls;
mod trust;
mod walk;
mod witness;
mod workspaces;
