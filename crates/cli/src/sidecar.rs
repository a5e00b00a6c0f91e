//! `reprise sidecar`: replay blocks on the command line.
//!
//! Does all the input and output around the pure crate of the same name: files, git, processes and
//! the terminal. Exit codes are 0 (yes), 1 (the answer is no: drift) and 2 (usage or fault), except
//! that `capture` passes the status of the command it wrapped.

mod backfill;
mod capture;
mod facts;
mod files;
mod git;
mod hashing;
mod locate;
mod output;
mod recording;
mod rerun;
mod signature;
mod verify;
mod write;

use std::io;
use std::process::ExitCode;

use clap::Subcommand;

use crate::exit::Problem;

pub(crate) use verify::{EXAMPLES as VERIFY_EXAMPLES, VerifyArgs};

/// Arguments of `reprise sidecar`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Wrap a run, or describe one, and write its sidecar.
    #[command(after_help = capture::EXAMPLES)]
    Capture(Box<capture::CaptureArgs>),
    /// Check that the inputs on disk are the inputs the run used.
    #[command(after_help = verify::EXAMPLES)]
    Verify(Box<VerifyArgs>),
    /// Print, or with --exec perform, the steps that run the command again.
    #[command(after_help = rerun::EXAMPLES)]
    Rerun(rerun::RerunArgs),
    /// Rebuild sidecars from git for reports older than replay blocks.
    #[command(after_help = backfill::EXAMPLES)]
    Backfill(backfill::BackfillArgs),
    /// Create a key for `capture --sign` and print its public part.
    #[command(after_help = signature::EXAMPLES)]
    Keygen(signature::KeygenArgs),
}

impl From<VerifyArgs> for Args {
    fn from(args: VerifyArgs) -> Self {
        Self {
            command: Command::Verify(Box::new(args)),
        }
    }
}

/// Runs one subcommand.
///
/// # Errors
/// Usage and faults; the caller prints them and exits with 2.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (name, done) = match args.command {
        Command::Capture(args) => ("capture", capture::run(*args)),
        Command::Verify(args) => ("verify", verify::run(&args)),
        Command::Rerun(args) => ("rerun", rerun::run(&args)),
        Command::Backfill(args) => ("backfill", backfill::run(&args)),
        Command::Keygen(args) => ("keygen", signature::keygen(&args)),
    };
    done.map_err(|error| advised(error, name))
}

/// Adds what to do about an error that does not say so itself.
fn advised(error: anyhow::Error, command: &str) -> anyhow::Error {
    let cause = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>())
        .map(io::Error::kind);
    if error.is::<Problem>() || cause == Some(io::ErrorKind::BrokenPipe) {
        return error;
    }
    let hint = match cause {
        Some(io::ErrorKind::NotFound) => {
            "check the path, and for a program its name and PATH".to_owned()
        }
        Some(
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::StorageFull,
        ) => "name a place that this user can read and write, with room on its disk".to_owned(),
        Some(io::ErrorKind::AlreadyExists) => {
            "nothing is overwritten: name a file that is not there yet".to_owned()
        }
        _ => {
            format!("`reprise sidecar {command} --help` says what each option means, with examples")
        }
    };
    Problem::new(format!("{error:#}"), hint).into()
}
