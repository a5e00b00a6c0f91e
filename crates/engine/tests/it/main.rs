//! The engine on the in-memory store, driven through its public API.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod approvals;
mod cache;
mod containment;
mod contracts;
mod contracts_together;
mod door;
mod governed_time;
mod hand;
mod imported;
mod interrupt;
mod keys;
mod lifecycle;
mod receipts;
mod records;
mod recovery;
mod replay_agent;
mod replay_crash;
mod replay_diff;
mod replay_edges;
mod replay_modes;
mod replay_property;
mod replay_request;
mod replay_vectors;
mod rig;
mod session_replay;
mod shared_log;
mod support;
mod transcript;
mod watched;
