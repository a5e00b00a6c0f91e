//! The outside as it is met: HTTP servers that speak the providers' formats, real processes, real files.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that meets what it does not expect stops"
)]

mod anthropic;
mod failures;
mod fixture;
mod mcp;
mod mcp_everything;
mod mcp_http;
mod openai;
mod providers;
mod sandbox;
mod sandbox_attacks;
mod scrubbing;
mod tools;
