//! `reprise artifact`: list, read and store content.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::args::{Connection, ServerArgs};
use crate::client::{Client, Target, Write, fresh_key};
use crate::exit::{Exit, OrHint, Problem};
use crate::listing::{Listing, text};
use crate::output::{Output, Table, inform, is_quiet, shorten};

/// `reprise artifact`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List artifacts, newest first
    #[command(
        after_help = "Examples:\n  reprise artifact list\n  reprise artifact list --task task_0123 --json"
    )]
    List(ListArgs),
    /// Write the content of an artifact, or content stored beside an event, to a file or stdout
    #[command(
        after_help = "Examples:\n  reprise artifact get artifact_0123 report.md\n  \
        reprise artifact get event_log_task_0123 > log.jsonl\n  \
        reprise artifact get event_abc_0000000000000012 --member value"
    )]
    Get(GetArgs),
    /// Store a file as an artifact
    #[command(
        after_help = "Example:\n  reprise artifact put report.md --kind file --mime-type text/markdown"
    )]
    Put(PutArgs),
}

/// `reprise artifact list`
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those of this task
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// Only those of this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    #[command(flatten)]
    listing: Listing,
}

/// `reprise artifact get`
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The artifact, `event_log_TASK`, or an event
    id: String,
    /// The file to write, which must not exist yet [default: stdout]
    out: Option<PathBuf>,
    /// For an event: which member of its payload
    #[arg(long, value_name = "NAME")]
    member: Option<String>,
    /// Print JSON about what was written to the file
    #[arg(long, requires = "out")]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// `reprise artifact put`
#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// The file
    file: PathBuf,
    /// What it is: file, patch, image, log, diff, receipt, snapshot, dataset or other
    #[arg(long, value_name = "KIND", default_value = "file")]
    kind: String,
    /// Its media type
    #[arg(long, value_name = "TYPE", default_value = "application/octet-stream")]
    mime_type: String,
    /// Who may read it: public, internal or receipt_only
    #[arg(long, value_name = "WHO", default_value = "public")]
    visibility: String,
    /// The workspace it belongs to
    #[arg(long, value_name = "ID", default_value = "workspace_local")]
    workspace: String,
    /// The session it belongs to
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs one of them.
pub(crate) async fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::List(args) => list(args).await,
        Command::Get(args) => get(args).await,
        Command::Put(args) => put(args).await,
    }
}

async fn list(args: ListArgs) -> anyhow::Result<Exit> {
    let client = args.listing.server.client()?;
    let mut query = vec![("order", "desc")];
    query.extend(args.task.iter().map(|id| ("task_id", id.as_str())));
    query.extend(args.session.iter().map(|id| ("session_id", id.as_str())));
    let path = ["v1", "artifacts"];
    let (found, more) = client.list(&path, &query, args.listing.limit()).await?;
    args.listing.print(found, more, "no artifacts", |found| {
        let names = ["id", "kind", "mime_type", "visibility", "task_id"];
        let mut rows = Table::new(&["ARTIFACT", "KIND", "TYPE", "VISIBILITY", "TASK"]);
        for artifact in found {
            rows.row(names.map(|name| (shorten(text(artifact, name), 80), None)));
        }
        rows
    })
}

async fn get(args: GetArgs) -> anyhow::Result<Exit> {
    let client = Client::new(Target::find(&args.connection)?)?;
    let member = args.member.as_deref();
    let query: Vec<(&str, &str)> = member
        .map(|member| ("member", member))
        .into_iter()
        .collect();
    let path = ["v1", "artifacts", &args.id, "content"];
    let bytes = client.get_bytes(&path, &query).await?;
    match &args.out {
        Some(file) if file != Path::new("-") => {
            let hint = "name a file that does not exist yet, on a disk with room";
            let name = format!("`{}`", file.display());
            let mut opened = std::fs::File::create_new(file).or_hint(&name, hint)?;
            opened.write_all(&bytes).or_hint(&name, hint)?;
            let digest = canon::sha256(&bytes);
            if args.json {
                Output::stdout().json(&json!({
                    "artifact_id": args.id, "member": args.member, "file": file,
                    "bytes": bytes.len(), "sha256": digest.to_string(),
                }))?;
            } else {
                inform(format_args!(
                    "wrote {} bytes to {name}, {digest}",
                    bytes.len()
                ));
            }
        }
        _ if args.json => {
            let hint = "name a file: without one the content itself goes to stdout";
            return Err(Problem::new("--json describes a file", hint).into());
        }
        _ => std::io::stdout().write_all(&bytes)?,
    }
    Ok(Exit::Ok)
}

async fn put(args: PutArgs) -> anyhow::Result<Exit> {
    let client = args.server.client()?;
    let name = format!("`{}`", args.file.display());
    let bytes = std::fs::read(&args.file).or_hint(&name, "name a file that can be read")?;
    let mut body = json!({
        "kind": args.kind,
        "mime_type": args.mime_type,
        "visibility": args.visibility,
        "workspace_id": args.workspace,
        "sha256": canon::sha256(&bytes).to_string(),
    });
    if let (Some(session), Value::Object(body)) = (&args.session, &mut body) {
        body.insert("session_id".to_owned(), session.as_str().into());
    }
    let key = fresh_key()?;
    let made = client
        .post(&["v1", "artifacts"], Write { body, key: &key })
        .await?;
    let id = text(&made, "id").to_owned();
    if id.is_empty() {
        let hint = "check that the address is that of an Agents Protocol server";
        return Err(Problem::new("the server's answer is not an artifact", hint).into());
    }
    let stored = client
        .put(&["v1", "artifacts", &id, "content"], &bytes)
        .await?;
    let mut out = Output::stdout();
    match args.server.json {
        true => out.json(&stored)?,
        false if is_quiet() => out.ids([id.as_str()])?,
        false => out.line(format_args!("{}  {} bytes", shorten(&id, 120), bytes.len()))?,
    }
    Ok(Exit::Ok)
}
