//! `reprise log import`: a finished task of another server, with its sealed log and its receipt.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use canon::{Digest, Value};
use receipts::Receipt;
use runs::replay::{BUNDLE_BYTES_MAX, BUNDLE_FORMAT, Bundle};

use crate::args::ServerArgs;
use crate::client::{Task, fresh_key};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, inform};

/// What `--help` shows.
pub(crate) const EXAMPLES: &str = "\
The task keeps its ids, and replays, comparisons and exports of it give the same bytes as on the server it comes from.
Its events stay in the bundle; this log holds one event that says that it is here. Everything is checked before
anything is written. The key must be an administrator's: the scope tasks:import (held by `*`) for all workspaces.
The same file again changes nothing.

Examples:
  reprise task export task_0123 run.bundle     on the server it ran on
  reprise log import run.bundle                here; then: reprise replay task_0123
  reprise log import log.jsonl --receipt receipt.json --blobs blobs";

/// `reprise log import`
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    /// A file that `reprise task export` wrote, or a sealed log: one event per line
    file: PathBuf,
    /// The receipt of the task, when FILE is its log
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// A directory with the content that the log keeps beside itself, in files named by the hex digits of their digest
    #[arg(long, value_name = "DIR", requires = "receipt")]
    blobs: Option<PathBuf>,
    /// The workspace to put it into [default: workspace_local]
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Sends it to the server.
pub(super) async fn run(args: &ImportArgs) -> anyhow::Result<Exit> {
    let bundle = read(args)?;
    let client = args.server.client()?;
    let query: Vec<(&str, &str)> = args
        .workspace
        .iter()
        .map(|workspace| ("workspace_id", workspace.as_str()))
        .collect();
    let key = fresh_key()?;
    let path = ["v1", "tasks", "import"];
    let task = client.post_bytes(&path, &query, &bundle, &key).await?;
    let task = Task::read(task)?;
    if args.server.json {
        Output::stdout().json(&task.raw)?;
        return Ok(Exit::Ok);
    }
    Output::stdout().line(&task.id)?;
    inform(format_args!(
        "{} is here, {}; to replay it: reprise replay {}",
        task.id, task.status, task.id
    ));
    Ok(Exit::Ok)
}

/// Returns the bundle to send: the file itself, or what is put together from a log, a receipt and blobs.
fn read(args: &ImportArgs) -> anyhow::Result<Vec<u8>> {
    let bytes = read_file(&args.file)?;
    let name = format!("`{}`", args.file.display());
    let first = bytes.split(|byte| *byte == b'\n').next();
    let first: Option<Value> = first.and_then(|line| serde_json::from_slice(line).ok());
    let is_bundle = first.is_some_and(|line| line.get("format") == Some(&BUNDLE_FORMAT.into()));
    match (&args.receipt, is_bundle) {
        (None, true) => Ok(bytes),
        (Some(_), true) => Err(Problem::new(
            format!("{name} is a bundle, which has its receipt in it"),
            "leave --receipt and --blobs out",
        )
        .into()),
        (None, false) => Err(Problem::new(
            format!("{name} is not a bundle"),
            "name a file that `reprise task export` wrote; for a log alone, give its receipt with --receipt",
        )
        .into()),
        (Some(receipt), false) => assemble(&bytes, &name, receipt, args.blobs.as_deref()),
    }
}

fn assemble(
    log: &[u8],
    name: &str,
    receipt_file: &Path,
    blobs: Option<&Path>,
) -> anyhow::Result<Vec<u8>> {
    let events: Vec<Arc<[u8]>> = log
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(Arc::from)
        .collect();
    let receipt = Receipt::read(read_file(receipt_file)?.trim_ascii()).or_hint(
        format_args!("`{}`", receipt_file.display()),
        "name the bare receipt, as `reprise receipt show ID --wire` prints it",
    )?;
    let blobs = match blobs {
        None => BTreeMap::new(),
        Some(directory) => read_blobs(directory)?,
    };
    let bundle = Bundle::new(&events, blobs, Some(receipt)).or_hint(
        name,
        "the log of one finished task is needed, from its first event to its last",
    )?;
    Ok(bundle.to_bytes())
}

fn read_blobs(directory: &Path) -> anyhow::Result<BTreeMap<Digest, Vec<u8>>> {
    let name = format!("`{}`", directory.display());
    let hint = "name a directory with one file per blob";
    let mut blobs = BTreeMap::new();
    for entry in std::fs::read_dir(directory).or_hint(&name, hint)? {
        let path = entry.or_hint(&name, hint)?.path();
        let hex = path.file_name().and_then(|name| name.to_str());
        let digest = hex.and_then(|hex| Digest::parse(&format!("sha256:{hex}")).ok());
        let digest = digest.ok_or_else(|| {
            let message = format!("`{}` is not named by a digest", path.display());
            Problem::new(message, hint)
        })?;
        blobs.insert(digest, read_file(&path)?);
    }
    Ok(blobs)
}

fn read_file(file: &Path) -> anyhow::Result<Vec<u8>> {
    let name = format!("`{}`", file.display());
    let hint = "name a file that is there and can be read";
    let size = std::fs::metadata(file).or_hint(&name, hint)?.len();
    if size > BUNDLE_BYTES_MAX as u64 {
        let message = format!("{name} has more than {BUNDLE_BYTES_MAX} bytes");
        return Err(Problem::new(message, "a server takes no larger bundle").into());
    }
    std::fs::read(file).or_hint(&name, hint)
}
