//! `reprise workspace`: list and show the places that keys are bound to.

use clap::Subcommand;
use serde_json::Value;

use crate::exit::Exit;
use crate::listing::{Listing, ShowArgs, text, time};
use crate::output::{Output, Paint, Table, shorten};

/// `reprise workspace`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the workspaces that this key may see
    #[command(after_help = "Examples:\n  reprise workspace list\n  reprise workspace list --json")]
    List(Listing),
    /// Show a workspace
    #[command(after_help = "Example:\n  reprise workspace show workspace_local")]
    Show(ShowArgs),
}

/// Runs one of them.
pub(crate) async fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::List(args) => list(args).await,
        Command::Show(args) => show(args).await,
    }
}

async fn list(listing: Listing) -> anyhow::Result<Exit> {
    let client = listing.server.client()?;
    let path = ["v1", "workspaces"];
    let (found, more) = client.list(&path, &[], listing.limit()).await?;
    listing.print(found, more, "no workspaces", |found| {
        let mut rows = Table::new(&["WORKSPACE", "NAME", "CREATED"]);
        for workspace in found {
            rows.row([
                (shorten(text(workspace, "id"), 80), None),
                (shorten(text(workspace, "name"), 80), None),
                (time(workspace, "created_at"), None),
            ]);
        }
        rows
    })
}

async fn show(args: ShowArgs) -> anyhow::Result<Exit> {
    let client = args.server.client()?;
    let workspace = client.get(&["v1", "workspaces", &args.id], &[]).await?;
    let mut out = Output::stdout();
    if args.server.json {
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
