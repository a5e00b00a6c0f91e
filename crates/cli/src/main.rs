//! The program `reprise`.

pub(crate) mod sidecar;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replay blocks: capture a run, verify its inputs, run it again.
    Sidecar(sidecar::Args),
    /// Check a report's replay block (the same as `sidecar verify`).
    #[command(after_help = sidecar::VERIFY_EXAMPLES)]
    VerifyReplay(sidecar::VerifyArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Sidecar(args) => sidecar::run(args),
        Command::VerifyReplay(args) => sidecar::run(args.into()),
    };
    outcome.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        ExitCode::from(2)
    })
}
