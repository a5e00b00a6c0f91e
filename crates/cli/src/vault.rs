//! `reprise vault`: secrets for tools and providers, straight in the data directory, also while a server is running.
//!
//! A value goes in and never comes out again: there is no command that shows one.

use std::io::{IsTerminal, Read};
use std::path::Path;

use clap::{Args, Subcommand};
use effects::{Vault, VaultError};
use serde_json::json;

use crate::args::{DataArgs, DirectoryArgs};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, Table, inform, is_quiet, warn};

/// The folder of the vault in a data directory, and the id under which the API knows it.
const FOLDER: &str = "vault";
const ID: &str = "vault_local";

/// `reprise vault`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Store a secret; you are asked for its value, or it is read from stdin
    #[command(
        after_help = "The value never appears in a command line. A line end at its end is not part of it.\n\
        Creates the data directory if there is none yet: a secret can be set before the server's first start.\n\n\
        Examples:\n  reprise vault set openai\n  printf %s \"$TOKEN\" | reprise vault set tickets\n  reprise vault set openai < key.txt"
    )]
    Set(SetArgs),
    /// List the names and versions of secrets; the values cannot be shown
    #[command(after_help = "Examples:\n  reprise vault list\n  reprise vault list --json")]
    List(DirectoryArgs),
    /// Delete a secret
    #[command(after_help = "Example:\n  reprise vault delete tickets")]
    Delete(DeleteArgs),
}

/// `reprise vault set`
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// Its name, as tools and providers name it
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// `reprise vault delete`
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// Opens the vault of a data directory, making it when there is none yet.
pub(crate) fn open(data: &Path) -> anyhow::Result<Vault> {
    let folder = data.join(FOLDER);
    Vault::open(&folder, ID).or_hint(
        format_args!("the vault in `{}`", folder.display()),
        "it must belong to this user and be closed to others (chmod 700), its key file too (chmod 600)",
    )
}

/// Opens the vault of a data directory that exists.
fn existing(data: &DataArgs) -> anyhow::Result<Vault> {
    if !data.data.is_dir() {
        return Err(Problem::new(
            format!("there is no data directory `{}`", data.data.display()),
            "name it with --data; the first `reprise vault set` or `reprise serve` creates one",
        )
        .into());
    }
    open(&data.data)
}

/// Runs one of them.
pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Set(args) => set(&args),
        Command::List(args) => list(&args),
        Command::Delete(args) => {
            delete(&existing(&args.directory.data)?, &args.name)?;
            match args.directory.json {
                true => Output::stdout().json(&json!({"name": args.name, "deleted": true}))?,
                false => inform(format_args!("deleted `{}`", args.name)),
            }
            Ok(Exit::Ok)
        }
    }
}

fn set(args: &SetArgs) -> anyhow::Result<Exit> {
    let data = &args.directory.data.data;
    let is_new = !data.exists();
    let value = value_of(&args.name)?;
    let value = value.strip_suffix('\n').unwrap_or(&value);
    let value = value.strip_suffix('\r').unwrap_or(value);
    let vault = open(data)?;
    if is_new {
        inform(format_args!(
            "created the data directory `{}`",
            data.display()
        ));
    }
    let kept = vault
        .put(&args.name, &value.into())
        .or_hint(format_args!("`{}`", args.name), "nothing was stored")?;
    match args.directory.json {
        true => Output::stdout().json(&json!({"name": kept.name, "version": kept.version}))?,
        false => inform(format_args!(
            "stored `{}`, version {}",
            kept.name, kept.version
        )),
    }
    Ok(Exit::Ok)
}

/// Asks for a value without showing it where somebody types, and reads it from a pipe elsewhere.
fn value_of(name: &str) -> anyhow::Result<String> {
    if std::io::stdin().is_terminal() {
        warn(format_args!(
            "value of `{name}`, not shown, ended by Enter:"
        ));
        let typed = console::Term::stderr()
            .read_secure_line()
            .or_hint("the terminal", "give the value on stdin")?;
        if typed.is_empty() {
            return Err(Problem::new("nothing was typed", "nothing was stored").into());
        }
        return Ok(typed);
    }
    let mut value = String::new();
    std::io::stdin()
        .read_to_string(&mut value)
        .or_hint("stdin", "a secret is text")?;
    Ok(value)
}

fn delete(vault: &Vault, name: &str) -> anyhow::Result<()> {
    let hint = "`reprise vault list` shows the secrets";
    match vault.delete(name) {
        Err(VaultError::Unknown(_)) => {
            let message = format!("the vault has no secret `{name}`");
            Err(Problem::new(message, hint).answers_no().into())
        }
        deleted => deleted.or_hint(format_args!("`{name}`"), hint),
    }
}

fn list(args: &DirectoryArgs) -> anyhow::Result<Exit> {
    let found = existing(&args.data)?
        .list()
        .or_hint("the vault", "check that this user may read it")?;
    let mut output = Output::stdout();
    let mut damaged = false;
    let mut kept = Vec::new();
    for handle in found {
        match handle {
            Ok(handle) => kept.push(handle),
            Err(error) => {
                damaged = true;
                inform(error);
            }
        }
    }
    if args.json {
        let listed = kept.iter();
        let listed = listed.map(|one| json!({"name": one.name, "version": one.version}));
        output.json(&listed.collect::<Vec<_>>())?;
    } else if is_quiet() {
        output.ids(kept.iter().map(|one| one.name.as_str()))?;
    } else {
        let mut table = Table::new(&["NAME", "VERSION"]);
        for handle in &kept {
            table.row([
                (handle.name.clone(), None),
                (handle.version.to_string(), None),
            ]);
        }
        table.print(&mut output, "")?;
    }
    Ok(if damaged { Exit::Fault } else { Exit::Ok })
}
