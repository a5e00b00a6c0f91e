//! Contracts from the outside: files in, verdicts and states out.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod agreement;
mod backtest;
mod bytes;
mod bytes_server;
mod checks;
mod compiling;
mod coverage;
mod driver;
mod generate;
mod governed;
mod oracle;
mod prechecks;
mod rulings;
mod seats;
mod support;
mod wire;
mod wire_pieces;
mod wire_streams;
mod worked_cases;
mod workflow;
