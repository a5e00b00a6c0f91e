//! `reprise completions` and `reprise man`: what shells and manuals need to know of the command line.

use std::path::PathBuf;

use clap::CommandFactory;

use crate::args::Cli;
use crate::exit::{Exit, OrHint};
use crate::output::{Output, inform};

/// `reprise completions`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "New shells complete `reprise` then; for zsh, ~/.zshrc must have `fpath+=~/.zfunc` before `compinit`.\n\n\
    Examples:\n  mkdir -p ~/.local/share/bash-completion/completions\n  \
    reprise completions bash > ~/.local/share/bash-completion/completions/reprise\n  \
    mkdir -p ~/.zfunc && reprise completions zsh > ~/.zfunc/_reprise\n  \
    mkdir -p ~/.config/fish/completions && reprise completions fish > ~/.config/fish/completions/reprise.fish"
)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

/// `reprise man`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  reprise man | man -l -\n  reprise man ~/.local/share/man/man1"
)]
pub(crate) struct ManArgs {
    /// Write a page for every command into this folder instead of the first one to stdout
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// Writes what a shell needs to complete commands and flags.
pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "reprise", &mut script);
    Output::stdout().write(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}

/// Writes the manual.
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<Exit> {
    let hint = "name a folder that can be written";
    match &args.folder {
        None => {
            let mut page = Vec::new();
            let manual = clap_mangen::Man::new(Cli::command());
            manual.render(&mut page).or_hint("the page", hint)?;
            Output::stdout().write(&String::from_utf8_lossy(&page))?;
        }
        Some(folder) => {
            let name = format!("`{}`", folder.display());
            std::fs::create_dir_all(folder).or_hint(&name, hint)?;
            clap_mangen::generate_to(Cli::command(), folder).or_hint(&name, hint)?;
            inform(format_args!("wrote the pages to {name}"));
        }
    }
    Ok(Exit::Ok)
}
