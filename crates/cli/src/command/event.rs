//! `reprise event`: read the log of a task, a session, a workspace or everything, in both directions.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::client::Event;
use crate::exit::Exit;
use crate::listing::{Listing, ShowArgs};
use crate::output::{Output, event_line, inform, is_quiet, width};

/// `reprise event`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List events, newest first
    #[command(
        after_help = "With --compact the content of events is left out: of a long run it is much less to read.\n\n\
        Examples:\n  reprise event list --task task_0123 --oldest\n  reprise event list --session session_0123 -n 10\n  \
        reprise event list --after event_0123 --compact --json"
    )]
    List(ListArgs),
    /// Show an event as it is stored
    #[command(after_help = "Example:\n  reprise event show event_abc_0000000000000012")]
    Show(ShowArgs),
}

/// `reprise event list`
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those of this task
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// Only those of this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only those of this workspace
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    /// The oldest first
    #[arg(long)]
    oldest: bool,
    /// Continue after this event, in the order of the list
    #[arg(long, value_name = "EVENT")]
    after: Option<String>,
    /// Without their content
    #[arg(long)]
    compact: bool,
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
    let mut query = vec![("order", if args.oldest { "asc" } else { "desc" })];
    for (name, value) in [
        ("task_id", &args.task),
        ("session_id", &args.session),
        ("workspace_id", &args.workspace),
    ] {
        query.extend(value.iter().map(|value| (name, value.as_str())));
    }
    if args.compact {
        query.push(("view", "compact"));
    }
    let path = ["v1", "events"];
    let wanted = args.listing.limit();
    let after = args.after.as_deref();
    let (found, more) = client.list_after(&path, &query, wanted, after).await?;
    let mut out = Output::stdout();
    if args.listing.server.json {
        out.json(&Value::Array(found))?;
        return Ok(Exit::Ok);
    }
    let events: Vec<Event> = found
        .into_iter()
        .map(Event::read)
        .collect::<anyhow::Result<_>>()?;
    if is_quiet() {
        out.ids(events.iter().map(|event| event.id.as_str()))?;
        return Ok(Exit::Ok);
    }
    if events.is_empty() {
        inform("no events");
    }
    for event in &events {
        out.line(event_line(&out, event, width()))?;
    }
    if let (true, Some(last)) = (more, events.last()) {
        inform(format_args!(
            "there may be more; raise --limit (now {wanted}), or continue with --after {}",
            last.id
        ));
    }
    Ok(Exit::Ok)
}

async fn show(args: ShowArgs) -> anyhow::Result<Exit> {
    let client = args.server.client()?;
    let event = client.get(&["v1", "events", &args.id], &[]).await?;
    Output::stdout().json(&event)?;
    Ok(Exit::Ok)
}
