//! The program `reprise`: reads the command line, runs one command, tells how it ended.
//!
//! The composition root: the only place that knows every crate. It owns no rule of its own.

mod args;
mod client;
mod command;
mod config;
mod contracts;
mod exit;
mod listing;
mod locked_file;
mod output;
mod persona;
mod receipt;
mod sidecar;
mod signing;
mod time;
mod vault;
mod webhook;
mod witness;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};

use args::{Cli, Command};
use exit::{Exit, OrHint};

/// The system's allocator took a quarter of the time of an append, much of it waiting for its own locks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // First of all: a process that is to become a tool does nothing else.
    if let Some(code) = effects::confine::enter_if_asked() {
        return code;
    }
    let is_json = asks_for_json(std::env::args().skip(1));
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error, is_json),
    };
    output::set_quiet(cli.quiet);
    output::use_colour(cli.color);
    match run(cli.command) {
        Ok(code) => code,
        // Whoever closed the pipe has what he wanted.
        Err(error) if is_broken_pipe(&error) => Exit::Ok.into(),
        Err(error) => {
            let (text, exit) = exit::report(&error, is_json);
            output::warn(text);
            exit.into()
        }
    }
}

/// True when a command line asks for JSON: then what goes wrong is told in JSON too, whether or not it can be parsed.
fn asks_for_json(mut words: impl Iterator<Item = String>) -> bool {
    words
        .by_ref()
        .take_while(|word| word != "--")
        .any(|word| word == "--json")
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let exit = match command {
        Command::Demo(args) => command::demo::run(args),
        Command::Serve(args) => wait(command::serve::run(args)),
        Command::Key(key) => wait(command::key::run(key)),
        Command::Task(task) => wait(command::task::run(task)),
        Command::Approvals(approvals) => wait(command::approvals::run(approvals)),
        Command::Session(session) => wait(command::session::run(session)),
        Command::Artifact(artifact) => wait(command::artifact::run(artifact)),
        Command::Event(event) => wait(command::event::run(event)),
        Command::Workspace(workspace) => wait(command::workspace::run(workspace)),
        Command::Completions(args) => command::about::completions(&args),
        Command::Man(args) => command::about::man(&args),
        Command::Replay(args) => command::replay::run(&args),
        Command::Diff(args) => command::diff::run(&args),
        Command::Persona(persona) => wait(persona::run(persona)),
        Command::Field(field) => wait(command::field::run(field)),
        Command::Vault(vault) => vault::run(vault),
        Command::Contracts(command) => contracts::run(command),
        Command::Log(log) => command::log::run(log),
        Command::Receipt(receipt) => receipt::run(receipt),
        Command::Tlog(tlog) => receipt::tlog::run(tlog),
        Command::Witness(witness) => witness::run(witness),
        Command::Canonicalize(args) => command::canonicalize::run(&args),
        Command::Sidecar(args) => return sidecar::run(args),
        Command::VerifyReplay(args) => return sidecar::run(args.into()),
        Command::Conformance(args) => wait(command::conformance::run(args)),
    };
    exit.map(ExitCode::from)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

fn wait<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .or_hint("cannot start", "check the limits on threads and open files")?;
    runtime.block_on(future)
}

/// Says what is wrong with the command line in the same two lines as any other error.
fn usage(error: &clap::Error, is_json: bool) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        let mut out = output::Output::stdout();
        let text = error.render();
        let written = if out.is_coloured() {
            out.write(&text.ansi().to_string())
        } else {
            out.write(&text.to_string())
        };
        return if written.is_ok() {
            Exit::Ok
        } else {
            Exit::Fault
        }
        .into();
    }
    let text = error.render().to_string();
    // Without a subcommand clap shows the whole help: an answer to a question nobody asked, but the right one.
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        output::warn(text.trim_end());
        return Exit::Fault.into();
    }
    let message = text.split("\n\n").next().unwrap_or_default();
    // What people typed stands in backticks everywhere else.
    let message = message.trim_start_matches("error: ").replace('\'', "`");
    let suggestion = [
        ContextKind::SuggestedArg,
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedValue,
    ]
    .iter()
    .find_map(|kind| error.get(*kind))
    .map(|value| format!("did you mean `{value}`? "))
    .unwrap_or_default();
    let usage = match error.get(ContextKind::Usage) {
        Some(usage) => usage.to_string().replace("Usage: ", "usage: ") + "; ",
        None => String::new(),
    };
    let hint = format!("{suggestion}{usage}`--help` shows examples");
    let problem = exit::Problem::new(message, hint);
    let (text, exit) = exit::report(&problem.into(), is_json);
    output::warn(text);
    exit.into()
}
