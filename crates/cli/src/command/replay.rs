//! `reprise replay`: a finished task again, on a server or from a bundle alone, or all those of a session.
//!
//! Owns the words of the command and which of its ways a call takes; what a replay is lives in the engine.

mod keys;
mod offline;
mod online;
mod report;
mod request;
mod session;
mod trial;

use std::path::{Path, PathBuf};

use runs::replay::{BUNDLE_BYTES_MAX, Bundle, Source};

use crate::args::{Connection, key_value};
use crate::exit::{Exit, OrHint, Problem};

/// What `--help` shows at its end.
pub(crate) const EXAMPLES: &str = "Keys name what a run asked for: llm:main:1 is its first model call; --list shows all of them.\n\
    Nothing is performed again: no model, no tool, no network, unless --refresh says so.\n\
    Exit 0 when the result is the recorded one, or when a changed run completed; 1 when it failed, diverged, or\nnever asked for a key that was given.\n\n\
    Examples:\n  reprise replay task_0123                      exactly as recorded\n  \
    reprise replay task_0123 --list               what can be changed\n  \
    reprise replay task_0123 --set 'llm:main:1=Roll back now'\n  \
    reprise replay task_0123 --override mcp:files:main:2=result.json \\\n    \
    --reason 'what if the file was empty'\n  \
    reprise replay task_0123 --from checkpoint_0123_2 --refresh model,tools \\\n    \
    --set 'llm:main:3=Try again'\n  \
    reprise replay session_0123 --set 'task_0123/llm:main:1=Roll back now'\n  \
    reprise replay --bundle run.bundle            without a server";

/// `reprise replay`
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// The finished task, or a session whose finished tasks are replayed one after the other
    #[arg(required_unless_present = "bundle", conflicts_with = "bundle")]
    task: Option<String>,
    /// Replay a file that `reprise task export` wrote: no server, no data directory, no network
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// Show what can be changed and run nothing
    #[arg(long)]
    list: bool,
    /// How to treat the record [default: what the other flags ask for, else exact]
    #[arg(long, value_parser = ["exact", "with_overrides", "from_checkpoint"])]
    mode: Option<String>,
    /// Replace an answer with plain text: what a model says or a tool prints, approve or deny, a time; repeat for more
    /// (in a session: TASK/KEY=TEXT)
    #[arg(long, value_name = "KEY=TEXT", value_parser = key_value)]
    set: Vec<(String, String)>,
    /// Replace an answer with the JSON value in a file; repeat for more
    #[arg(long = "override", value_name = "KEY=FILE", value_parser = key_value)]
    overrides: Vec<(String, String)>,
    /// Replace an answer with the content of an artifact; repeat for more
    #[arg(long, value_name = "KEY=ARTIFACT", value_parser = key_value)]
    override_artifact: Vec<(String, String)>,
    /// Start from a checkpoint, or from the event that made it or came before it
    #[arg(long, value_name = "CHECKPOINT|EVENT")]
    from: Option<String>,
    /// What may be read or performed live: memory, secrets, host, time, and model and tools once the run has left its record
    #[arg(long, value_name = "WHAT", value_delimiter = ',',
        value_parser = ["memory", "secrets", "host", "time", "model", "tools"])]
    refresh: Vec<String>,
    /// With --refresh: from this effect on everything it names is live, whatever is on record
    #[arg(long, value_name = "KEY", requires = "refresh")]
    refresh_from: Option<String>,
    /// Fail where a changed run asks for something other than what was recorded, instead of using the recorded answer
    #[arg(long)]
    fail_on_stale_input: bool,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// A file with the whole request as the protocol defines it; `-` for stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["mode", "set", "overrides", "override_artifact", "from",
        "fail_on_stale_input", "reason"])]
    request: Option<PathBuf>,
    /// Return as soon as the server has accepted it
    #[arg(long, conflicts_with_all = ["bundle", "receipt", "list"])]
    no_wait: bool,
    /// Print the canonical bytes of the replay's receipt, unsigned, and nothing else
    #[arg(long, conflicts_with_all = ["json", "list"])]
    receipt: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    offline: OfflineArgs,
    #[command(flatten)]
    connection: Connection,
}

/// What only a replay without a server needs to be told.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With --bundle")]
struct OfflineArgs {
    /// The content of an artifact that the request names; repeat for more
    #[arg(long, value_name = "ID=FILE", conflicts_with = "task", value_parser = key_value)]
    artifact: Vec<(String, String)>,
    /// The issuer of the receipt [default: that of the source's receipt]
    #[arg(long, value_name = "ID", conflicts_with = "task")]
    issuer: Option<String>,
    /// The issuer's name [default: that of the source's receipt]
    #[arg(long, value_name = "NAME", conflicts_with = "task")]
    issuer_name: Option<String>,
    /// Which replay of its source it is: the number in its ids
    #[arg(long, value_name = "N", conflicts_with = "task", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    ordinal: u64,
    /// Write what conformance vectors write: a fixed issuer, digests and event ids as they were given
    #[arg(long, conflicts_with = "task")]
    conformance: bool,
}

/// Runs it.
pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<Exit> {
    match (&args.bundle, &args.task) {
        (Some(file), _) if args.list => keys::show(&read_source(file)?, args.json, None),
        (Some(file), _) => offline::run(args, file),
        (None, Some(session)) if session.starts_with("session_") => {
            crate::wait(session::run(args, session))
        }
        (None, Some(task)) if args.list => crate::wait(keys::online(args, task)),
        (None, Some(task)) => crate::wait(online::run(args, task)),
        (None, None) => {
            let hint = "name a task, or a file with --bundle";
            Err(Problem::new("nothing to replay", hint).into())
        }
    }
}

/// Reads a bundle.
pub(crate) fn read_source(file: &Path) -> anyhow::Result<Source> {
    source_of(&read_bytes(file)?, &format!("`{}`", file.display()))
}

/// Reads a file that is no larger than a bundle can be.
pub(crate) fn read_bytes(file: &Path) -> anyhow::Result<Vec<u8>> {
    let hint = "name a file that `reprise task export` wrote";
    let name = format!("`{}`", file.display());
    let size = std::fs::metadata(file).or_hint(&name, hint)?.len();
    if size > BUNDLE_BYTES_MAX as u64 {
        let message = format!("{name} has more than {BUNDLE_BYTES_MAX} bytes");
        return Err(Problem::new(message, hint).into());
    }
    std::fs::read(file).or_hint(&name, hint)
}

/// Reads the bytes of a bundle.
pub(crate) fn source_of(bytes: &[u8], name: &str) -> anyhow::Result<Source> {
    let hint = "name a file that `reprise task export` wrote";
    let bundle = Bundle::read(bytes).or_hint(name, hint)?;
    bundle.into_source().or_hint(name, hint)
}
