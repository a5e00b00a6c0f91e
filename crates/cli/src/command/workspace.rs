//! `reprise workspace`: list and show the places that keys are bound to.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::args::Connection;
use crate::client::{Client, Target};
use crate::exit::Exit;
use crate::output::{Output, Paint, Table, is_quiet, shorten, talk};

/// `reprise workspace`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the workspaces that this key may see
    #[command(after_help = "Examples:\n  reprise workspace list\n  reprise workspace list --json")]
    List(ListArgs),
    /// Show a workspace
    #[command(after_help = "Example:\n  reprise workspace show workspace_local")]
    Show(ShowArgs),
}

/// `reprise workspace list`
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Maximum number to list
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// `reprise workspace show`
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The workspace
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs one of them.
pub(crate) async fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::List(args) => list(args).await,
        Command::Show(args) => show(args).await,
    }
}

async fn list(args: ListArgs) -> anyhow::Result<Exit> {
    let client = Client::new(Target::find(&args.connection)?)?;
    let wanted = args.limit as usize;
    let (found, more) = client.list(&["v1", "workspaces"], &[], wanted).await?;
    let mut out = Output::stdout();
    if args.json {
        out.json(&Value::Array(found))?;
        return Ok(Exit::Ok);
    }
    if is_quiet() {
        out.ids(found.iter().map(|workspace| text(workspace, "id")))?;
        return Ok(Exit::Ok);
    }
    let mut rows = Table::new(&["WORKSPACE", "NAME", "CREATED"]);
    for workspace in &found {
        let created = text(workspace, "created_at").get(..19).unwrap_or_default();
        rows.row([
            (shorten(text(workspace, "id"), 80), None),
            (shorten(text(workspace, "name"), 80), None),
            (created.replace('T', " "), None),
        ]);
    }
    rows.print(&mut out, "")?;
    if more {
        talk(format_args!("there are more; raise --limit (now {wanted})"));
    }
    Ok(Exit::Ok)
}

async fn show(args: ShowArgs) -> anyhow::Result<Exit> {
    let client = Client::new(Target::find(&args.connection)?)?;
    let workspace = client.get(&["v1", "workspaces", &args.id], &[]).await?;
    let mut out = Output::stdout();
    if args.json {
        out.json(&workspace)?;
        return Ok(Exit::Ok);
    }
    let mut rows = Table::default();
    for (name, value) in workspace.as_object().into_iter().flatten() {
        let value = match value {
            Value::Null => continue,
            Value::Array(items) if items.is_empty() => continue,
            Value::Object(members) if members.is_empty() => continue,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if name != "object" {
            rows.row([
                (name.clone(), Some(Paint::Quiet)),
                (shorten(&value, 200), None),
            ]);
        }
    }
    rows.print(&mut out, "")?;
    Ok(Exit::Ok)
}

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value
        .get(member)
        .and_then(Value::as_str)
        .unwrap_or_default()
}
