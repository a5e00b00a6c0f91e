//! `reprise session`: list and show conversations.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::args::since;
use crate::exit::Exit;
use crate::listing::{Listing, ShowArgs, text, time};
use crate::output::{Output, Paint, Table, inform, printable, shorten};

/// `reprise session`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List sessions, newest first
    #[command(
        after_help = "Examples:\n  reprise session list\n  reprise session list --status paused --since 1d --json"
    )]
    List(ListArgs),
    /// Show a session: its messages and its tasks
    #[command(after_help = "Example:\n  reprise session show session_0123")]
    Show(ShowArgs),
}

/// `reprise session list`
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those in this state: active, paused, idle or closed
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only those of this workspace
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    /// Only those created since: 30m, 1h30m or 2d ago, 2026-04-25, or 2026-04-25T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<String>,
    #[command(flatten)]
    listing: Listing,
}

/// Runs one of them.
pub(crate) async fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::List(args) => list(args).await,
        Command::Show(args) => show(args).await,
    }
}

async fn list(args: ListArgs) -> anyhow::Result<Exit> {
    let client = args.listing.server.client()?;
    let status = args.status.as_ref().map(|status| status.to_uppercase());
    let mut query = vec![("order", "desc")];
    for (name, value) in [
        ("status", &status),
        ("workspace_id", &args.workspace),
        ("created_after", &args.since),
    ] {
        query.extend(value.iter().map(|value| (name, value.as_str())));
    }
    let path = ["v1", "sessions"];
    let (found, more) = client.list(&path, &query, args.listing.limit()).await?;
    args.listing.print(found, more, "no sessions", |found| {
        let mut rows = Table::new(&["SESSION", "STATUS", "CREATED", "WORKSPACE", "PERSONA"]);
        for session in found {
            rows.row([
                (shorten(text(session, "id"), 80), None),
                (shorten(text(session, "state"), 20), None),
                (time(session, "created_at"), None),
                (shorten(text(session, "workspace_id"), 60), None),
                (shorten(text(session, "persona_id"), 60), None),
            ]);
        }
        rows
    })
}

async fn show(args: ShowArgs) -> anyhow::Result<Exit> {
    let client = args.server.client()?;
    let session = client.get(&["v1", "sessions", &args.id], &[]).await?;
    let path = ["v1", "sessions", &args.id, "messages"];
    let (messages, more_messages) = client.list(&path, &[], 1_000).await?;
    let path = ["v1", "sessions", &args.id, "tasks"];
    let (tasks, more_tasks) = client.list(&path, &[("order", "desc")], 50).await?;
    let mut out = Output::stdout();
    if args.server.json {
        out.json(&json!({"session": session, "messages": messages, "tasks": tasks}))?;
        return Ok(Exit::Ok);
    }
    let mut rows = Table::default();
    for name in [
        "id",
        "state",
        "workspace_id",
        "persona_id",
        "parent_session_id",
        "created_at",
    ] {
        let value = text(&session, name);
        if !value.is_empty() {
            rows.row([
                (name.to_owned(), Some(Paint::Quiet)),
                (shorten(value, 200), None),
            ]);
        }
    }
    rows.print(&mut out, "")?;
    for message in &messages {
        let role = out.paint(Paint::Heading, &printable(text(message, "role")));
        out.line(format_args!("\n{role}"))?;
        let parts = message.get("parts").and_then(Value::as_array);
        for part in parts.into_iter().flatten() {
            let said = match part.get("text").and_then(Value::as_str) {
                Some(said) => said.to_owned(),
                None => part.to_string(),
            };
            for line in printable(&said).lines() {
                out.line(format_args!("  {line}"))?;
            }
        }
    }
    if !tasks.is_empty() {
        out.line("")?;
        let mut rows = Table::new(&["TASK", "STATUS", "CREATED"]);
        for task in &tasks {
            rows.row(
                ["id", "status", "created_at"].map(|name| (shorten(text(task, name), 80), None)),
            );
        }
        rows.print(&mut out, "")?;
    }
    if more_messages || more_tasks {
        inform("there is more than is shown; --json and the API page through all of it");
    }
    Ok(Exit::Ok)
}
