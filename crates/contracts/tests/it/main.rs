//! Contracts from the outside: files in, verdicts and states out.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod agreement;
mod generate;
mod oracle;
mod prechecks;
mod support;
mod worked_cases;
