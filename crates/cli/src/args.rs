//! The words of the command line.
//!
//! Owns names, flags, help and examples. Decides nothing: commands read these values.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::command::{
    about, approvals, artifact, diff, event, field, log, replay, session, workspace,
};
use crate::output::Colour;
use crate::{contracts, persona, receipt, sidecar, vault};

/// The flight recorder for AI agents: run them on record, replay any run, prove what happened.
#[derive(Debug, Parser)]
#[command(
    name = "reprise",
    version,
    after_help = "Exit codes: 0 yes, 1 the answer is no, 2 wrong usage or a fault, 130 interrupted with Ctrl-C.\n\
        With --json a command prints one document: an array for a list, an object for anything else; what follows\n\
        something prints one object per line. What goes wrong is then an object on stderr, {\"error\": …}.\n\n\
        Examples:\n  reprise demo                         the tour, nothing to configure\n  \
        reprise serve                        a server on 127.0.0.1:8080, data in ./reprise-data\n  \
        reprise task submit 'Hello' --watch  a task, followed until it ends"
)]
pub(crate) struct Cli {
    /// Print results only: no advice, and only the ids of tasks and lists
    #[arg(long, short, global = true, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Use colours: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(
        long,
        value_name = "WHEN",
        global = true,
        help_heading = "Output",
        value_enum,
        default_value_t,
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub(crate) color: Colour,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take the tour: start a server, run tasks, watch, answer, approve, cancel, verify
    Demo(DemoArgs),
    /// Run the server
    Serve(ServeArgs),
    /// Create, list, extend and revoke API keys
    #[command(
        subcommand,
        after_help = "Examples:\n  reprise key create --actor ci\n  reprise key list"
    )]
    Key(KeyCommand),
    /// Submit tasks, follow them, answer and cancel them
    #[command(
        subcommand,
        after_help = "Examples:\n  reprise task submit 'Summarise the incident' --watch\n  reprise task list --status failed --since 1h\n  reprise task show task_0123"
    )]
    Task(TaskCommand),
    /// See what is waiting for a decision, and decide
    #[command(
        subcommand,
        after_help = "Examples:\n  reprise approvals list\n  reprise approvals show task_0123\n  reprise approvals deny task_0123 --reason 'not on a Friday'"
    )]
    Approvals(approvals::Command),
    /// List and show sessions
    #[command(subcommand, after_help = "Example:\n  reprise session list --since 1d")]
    Session(session::Command),
    /// List, read and store artifacts
    #[command(
        subcommand,
        after_help = "Examples:\n  reprise artifact list --task task_0123\n  reprise artifact get artifact_0123 report.md"
    )]
    Artifact(artifact::Command),
    /// Read the log, newest or oldest first
    #[command(
        subcommand,
        after_help = "Example:\n  reprise event list --task task_0123 -n 10"
    )]
    Event(event::Command),
    /// List and show workspaces
    #[command(subcommand, after_help = "Example:\n  reprise workspace list")]
    Workspace(workspace::Command),
    /// Run a finished task again from its record, exactly or with answers changed
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::ReplayArgs),
    /// Compare two runs
    #[command(after_help = diff::EXAMPLES)]
    Diff(diff::DiffArgs),
    /// Define agents from files, list and show them
    #[command(
        subcommand,
        after_help = "Examples:\n  reprise persona apply reviewer.yaml\n  reprise persona list"
    )]
    Persona(persona::Command),
    /// Use the memory that agents share: record, look up, settle conflicts, replay the reasons
    #[command(
        subcommand,
        after_help = "Examples:\n  reprise field register ann --role analyst\n  reprise field replay conflict conflict_0123 --agent sam"
    )]
    Field(field::Command),
    /// Store, list and delete secrets for tools and providers
    #[command(
        subcommand,
        after_help = "Examples:\n  reprise vault set openai\n  reprise vault list"
    )]
    Vault(vault::Command),
    /// Check, test, draft and explain contracts for tool calls
    #[command(
        subcommand,
        after_help = "Examples:\n  reprise contracts check contracts/\n  reprise contracts backtest contracts/ reprise-data --since 1w"
    )]
    Contracts(contracts::Command),
    /// Check, rebuild, export and prune the event log, and import tasks from other servers
    #[command(
        subcommand,
        after_help = "Examples:\n  reprise log verify\n  reprise log export evidence"
    )]
    Log(LogCommand),
    /// Show, verify and prove receipts, on a server or from files alone
    #[command(
        subcommand,
        after_help = "Examples:\n  reprise receipt show task_0123\n  reprise receipt verify receipt.json --keys jwks.json"
    )]
    Receipt(receipt::Command),
    /// Compare heads of a receipt log
    #[command(
        subcommand,
        after_help = "Example:\n  reprise tlog check old.txt new.txt --keys jwks.json"
    )]
    Tlog(receipt::tlog::Command),
    /// Ask third parties to sign the heads of the receipt log
    #[command(subcommand, after_help = "Example:\n  reprise witness list")]
    Witness(crate::witness::Command),
    /// Write JSON from stdin in its canonical form to stdout
    Canonicalize(CanonicalizeArgs),
    /// Replay blocks: capture a run, verify its inputs, run it again
    #[command(
        after_help = "Examples:\n  reprise sidecar capture --kind agent-run --input prompt=prompt.md \\\n    --report out/report.md -- python agent.py\n  \
        reprise sidecar verify --outputs out/report.md"
    )]
    Sidecar(sidecar::Args),
    /// Check a report's replay block (the same as `sidecar verify`)
    #[command(after_help = sidecar::VERIFY_EXAMPLES, hide = true)]
    VerifyReplay(sidecar::VerifyArgs),
    /// Check a server's protocol conformance
    Conformance(ConformanceArgs),
    /// Print a completion script for a shell
    Completions(about::CompletionsArgs),
    /// Print the manual page
    Man(about::ManArgs),
}

/// `reprise demo`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  reprise demo         then try the commands it shows\n  \
    reprise demo --once  exits when the tour is over"
)]
pub(crate) struct DemoArgs {
    /// Keep the data in this directory instead of a temporary one
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Exit at the end instead of leaving the server running
    #[arg(long)]
    pub(crate) once: bool,
}

/// `reprise serve`
#[derive(Debug, Args)]
#[command(
    after_help = "Every setting can also be given in the configuration file, and by a variable such as\n\
    REPRISE_LISTEN or REPRISE_LIMITS_WORKERS_MAX. Flags win over variables, variables over the file.\n\n\
    Examples:\n  reprise serve\n  reprise serve --data /var/lib/reprise --listen 127.0.0.1:9000\n  \
    reprise serve --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem\n  \
    reprise serve --print-config > reprise.toml"
)]
pub(crate) struct ServeArgs {
    /// Data directory [default: ./reprise-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Address and port to listen on [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "REPRISE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Print every setting with its default and exit
    #[arg(long)]
    pub(crate) print_config: bool,
    /// Read the configuration, say what is wrong with it, and exit
    #[arg(long, conflicts_with = "print_config")]
    pub(crate) check_config: bool,
    /// Listen without TLS on an address that other machines can reach
    #[arg(long)]
    pub(crate) allow_plain_http: bool,
    /// Certificate chain (PEM) for HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key (PEM) for HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Offer the example workflows `ask`, `approve`, `hold` and `replay-fixture` to new tasks
    #[arg(long)]
    pub(crate) examples: bool,
    /// UNSAFE: acknowledge writes before they are on the disk; only for tests
    #[arg(long, hide = true)]
    pub(crate) unsafe_no_sync: bool,
}

/// The data directory of a command that works without a server.
#[derive(Debug, Args)]
pub(crate) struct DataArgs {
    /// Data directory
    #[arg(
        long,
        value_name = "DIR",
        env = "REPRISE_DATA",
        default_value = "reprise-data"
    )]
    pub(crate) data: PathBuf,
}

/// `reprise key`
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a key and print it, once
    #[command(
        after_help = "The key goes to stdout, everything else to stderr. Works while a server is running. Making, granting and revoking\n\
        a key are events in the log. What agents say to the shared memory is written down, so that `field:read`, which lets them\n\
        register as observers and draft, is given by name: `reprise key grant ID field:read`.\n\n\
        Examples:\n  reprise key create --actor ci\n  reprise key create --actor auditor --read-only --expires 30d\n  \
        reprise key create --actor bot --workspace workspace_local \\\n    --scope tasks:read --scope tasks:write"
    )]
    Create(KeyCreateArgs),
    /// List keys; the keys themselves are not stored and cannot be shown
    #[command(after_help = "Examples:\n  reprise key list\n  reprise key list --json")]
    List(DirectoryArgs),
    /// Grant a key one more scope; a running server applies it within a second
    #[command(
        after_help = "A scope that does not exist is refused with the list of those that do.\n\n\
        Example:\n  reprise key grant key_0123abcd approvals:write"
    )]
    Grant(KeyGrantArgs),
    /// Revoke a key; a running server refuses it within a second
    #[command(after_help = "Example:\n  reprise key revoke key_0123abcd")]
    Revoke(KeyRevokeArgs),
}

/// `reprise key grant`
#[derive(Debug, Args)]
pub(crate) struct KeyGrantArgs {
    /// The id that `reprise key list` shows
    pub(crate) id: String,
    /// The scope, such as approvals:write
    pub(crate) scope: String,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
}

/// `reprise key create`
#[derive(Debug, Args)]
pub(crate) struct KeyCreateArgs {
    /// Whose key it is: the actor that events name
    #[arg(long, value_name = "NAME")]
    pub(crate) actor: String,
    /// A workspace it may see; repeat for more [default: all]
    #[arg(long, value_name = "ID")]
    pub(crate) workspace: Vec<String>,
    /// Something it may do, such as `tasks:write`; repeat for more [default: everything but `approvals:write`]
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Vec<String>,
    /// It may read everything but the shared memory, and write nothing
    #[arg(long, conflicts_with = "scope")]
    pub(crate) read_only: bool,
    /// When it expires: 30d, 12h, 90m, 45s, or a time such as 2027-01-31T00:00:00Z [default: never]
    #[arg(long, value_name = "WHEN")]
    pub(crate) expires: Option<String>,
    /// Print JSON, the key in its member `key`
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) data: DataArgs,
}

/// `reprise key revoke`
#[derive(Debug, Args)]
pub(crate) struct KeyRevokeArgs {
    /// The id that `reprise key list` shows
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
}

/// Which server to talk to, and as whom.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connection {
    /// Its address [default: that of the server in the data directory]
    #[arg(long, env = "REPRISE_URL")]
    pub(crate) url: Option<String>,
    /// API key [default: the file `api-key` in the data directory]
    #[arg(long, env = "REPRISE_KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
    /// Data directory of a server on this machine
    #[arg(
        long,
        value_name = "DIR",
        env = "REPRISE_DATA",
        default_value = "reprise-data"
    )]
    pub(crate) data: PathBuf,
    /// Certificates (PEM) to trust in addition to the system's
    #[arg(long, value_name = "FILE", env = "REPRISE_CA")]
    pub(crate) ca: Option<PathBuf>,
    /// Send the key over plain http to another machine
    #[arg(long)]
    pub(crate) allow_plain_http: bool,
}

/// The server that a command asks, and how it prints.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// `reprise task`
#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Submit a task, in a new session unless one is given
    #[command(
        after_help = "The workflow is agent unless you say otherwise; `reprise serve --examples` adds ask, approve and hold.\n\n\
        Examples:\n  reprise task submit 'Summarise the incident' --watch\n  \
        reprise task submit - < prompt.txt\n  \
        reprise task submit 'Deploy' --workflow approve --metadata ticket=OPS-7\n  \
        reprise task submit 'Review the last commit' --persona reviewer\n  \
        reprise task submit --json-input input.json --session session_0123"
    )]
    Submit(TaskSubmitArgs),
    /// Show a task
    #[command(after_help = "Example:\n  reprise task get task_0123 --json")]
    Get(TaskGetArgs),
    /// Show a run: what was asked, every model request and answer, every tool call and decision, the end
    #[command(
        after_help = "Requests are put together from the record, and each says whether it has the recorded digest.\n\
        Exit 1 when one does not. With a file nothing but the file is read.\n\n\
        Examples:\n  reprise task show task_0123\n  reprise task show task_0123 --step 3\n  \
        reprise task show run.bundle --json\n  reprise task show task_0123 --step 3 --raw"
    )]
    Show(TaskShowArgs),
    /// List tasks, newest first
    #[command(
        after_help = "Examples:\n  reprise task list\n  reprise task list --status failed --since 1h --persona reviewer\n  \
        reprise task list --metadata ticket=OPS-7\n  reprise task list --session session_0123 -n 10 --json"
    )]
    List(TaskListArgs),
    /// Follow a task until it ends, one line per event; exit 0 only if it completed
    #[command(
        after_help = "After a lost connection it continues where it broke off, even across a restart of the server.\n\n\
        Examples:\n  reprise task watch task_0123\n  reprise task watch task_0123 --json | jq .event"
    )]
    Watch(TaskGetArgs),
    /// Answer a task that is waiting for input or a decision
    #[command(
        after_help = "Examples:\n  reprise task answer task_0123 'Use the staging cluster'\n  \
        reprise task answer task_0123 --approve\n  reprise task answer task_0123 --deny --reason 'not on a Friday'"
    )]
    Answer(TaskAnswerArgs),
    /// Write a finished task to one file, for replays and comparisons without a server
    #[command(
        after_help = "The file holds everything, also what is not public: the key needs internal:read and receipts:read.\n\n\
        Examples:\n  reprise task export task_0123 run.bundle\n  reprise replay --bundle run.bundle"
    )]
    Export(TaskExportArgs),
    /// Retry a failed task live, from its last checkpoint
    #[command(
        after_help = "A new task, linked to the old one. What has a result on record is served from there and never done again;\n\
        only what failed is asked again, and what comes after it. Like any run, it costs money and has side effects.\n\n\
        Examples:\n  reprise task retry task_0123 --watch\n  reprise task retry task_0123 --reason 'the provider is back'"
    )]
    Retry(TaskRetryArgs),
    /// Cancel a task
    #[command(after_help = "Example:\n  reprise task cancel task_0123 --reason 'no longer needed'")]
    Cancel(TaskCancelArgs),
}

/// `reprise task submit`
#[derive(Debug, Args)]
pub(crate) struct TaskSubmitArgs {
    /// What to do; `-` reads it from stdin
    #[arg(required_unless_present = "json_input", conflicts_with = "json_input")]
    pub(crate) text: Option<String>,
    /// The workflow to run [default: the persona's, else agent]
    #[arg(long, value_name = "NAME")]
    pub(crate) workflow: Option<String>,
    /// The persona to run under: its id, its name, or NAME@VERSION [default: the session's]
    #[arg(long, value_name = "PERSONA")]
    pub(crate) persona: Option<String>,
    /// The session to submit to [default: a new one]
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// The workspace of a new session [default: workspace_local]
    #[arg(long, value_name = "ID")]
    pub(crate) workspace: Option<String>,
    /// A file with a JSON object as input; `-` for stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) json_input: Option<PathBuf>,
    /// A member of the task's metadata; repeat for more
    #[arg(long, value_name = "K=V", value_parser = key_value)]
    pub(crate) metadata: Vec<(String, String)>,
    /// Follow it until it ends
    #[arg(long)]
    pub(crate) watch: bool,
    /// Submit at most once under this key [default: a fresh one]
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// `reprise task get` and `reprise task watch`
#[derive(Debug, Args)]
pub(crate) struct TaskGetArgs {
    /// The task
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// `reprise task show`
#[derive(Debug, Args)]
pub(crate) struct TaskShowArgs {
    /// The task, or a file that `reprise task export` wrote
    pub(crate) task: String,
    /// Only this step, with everything known about it
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) step: Option<usize>,
    /// Print the stored bytes of the events instead, each after its digest
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not use a pager
    #[arg(long)]
    pub(crate) no_pager: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// `reprise task list`
#[derive(Debug, Args)]
pub(crate) struct TaskListArgs {
    /// Only tasks of this session
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Only tasks of this workspace
    #[arg(long, value_name = "ID")]
    pub(crate) workspace: Option<String>,
    /// Only those in this state, such as failed or input_required; several separated by commas
    #[arg(long, value_name = "STATUS")]
    pub(crate) status: Option<String>,
    /// Only those of this persona: its id, its name (the version defined last), or NAME@VERSION
    #[arg(long, value_name = "PERSONA")]
    pub(crate) persona: Option<String>,
    /// Only those of this workflow
    #[arg(long, value_name = "NAME")]
    pub(crate) workflow: Option<String>,
    /// Only those created since: 30m, 1h30m or 2d ago, 2026-04-25, or 2026-04-25T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub(crate) since: Option<String>,
    /// Only those whose metadata has this; repeat for more
    #[arg(long, value_name = "K=V", value_parser = key_value)]
    pub(crate) metadata: Vec<(String, String)>,
    /// Leave out replays
    #[arg(long)]
    pub(crate) no_replays: bool,
    /// The oldest first
    #[arg(long)]
    pub(crate) oldest: bool,
    /// Maximum number of tasks to list
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// `reprise task answer`
#[derive(Debug, Args)]
pub(crate) struct TaskAnswerArgs {
    /// The task
    pub(crate) id: String,
    /// The answer to its question
    #[arg(required_unless_present_any = ["approve", "deny"], conflicts_with_all = ["approve", "deny"])]
    pub(crate) text: Option<String>,
    /// Approve what it wants to do
    #[arg(long, conflicts_with = "deny")]
    pub(crate) approve: bool,
    /// Deny what it wants to do
    #[arg(long)]
    pub(crate) deny: bool,
    /// Why, for the record of a decision
    #[arg(long, value_name = "TEXT", conflicts_with = "text")]
    pub(crate) reason: Option<String>,
    /// The request to decide on, where the task waits for several decisions
    #[arg(long, value_name = "ID", conflicts_with = "text")]
    pub(crate) request: Option<String>,
    /// Decide on everything the task waits for
    #[arg(long, conflicts_with_all = ["text", "request"])]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// `reprise task export`
#[derive(Debug, Args)]
pub(crate) struct TaskExportArgs {
    /// The task
    pub(crate) id: String,
    /// The file to write, which must not exist yet; `-` for stdout
    pub(crate) out: PathBuf,
    /// Print JSON about what was written
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// `reprise task retry`
#[derive(Debug, Args)]
pub(crate) struct TaskRetryArgs {
    /// The task that failed
    pub(crate) id: String,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Follow the new task until it ends
    #[arg(long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// `reprise task cancel`
#[derive(Debug, Args)]
pub(crate) struct TaskCancelArgs {
    /// The task; name more to cancel several
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// `reprise log`
#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Check every event and everything derived from events; exit 1 when something is wrong
    #[command(
        after_help = "Works while a server is running, on media that cannot be written, and writes nothing.\n\n\
        Examples:\n  reprise log verify\n  \
        reprise log verify --data /var/lib/reprise --json"
    )]
    Verify(DirectoryArgs),
    /// Derive everything again from the events alone and compare; exit 1 when something differs
    #[command(
        after_help = "Changes nothing without `--write`, and works while a server is running. With `--write`, stop the server first:\n\
        what is derived from events is stored again as they say, after a backup in the data directory, which is named.\n\
        Events are never changed.\n\n\
        Examples:\n  reprise log rebuild\n  reprise log rebuild --write --data /var/lib/reprise"
    )]
    Rebuild(LogRebuildArgs),
    /// Convert a data directory written by an older version to the current format
    #[command(
        after_help = "Stop the server first. `reprise serve` does the same when it starts. The directory is kept as it was in a\n\
        backup within it, which is named; remove it when you no longer need it. A run that is killed is finished by the\n\
        next one.\n\nExample:\n  reprise log migrate --data /var/lib/reprise"
    )]
    Migrate(DirectoryArgs),
    /// Write the log as plain files: events, receipts with keys and checkpoint, blobs by digest, a manifest
    #[command(
        after_help = "Works while a server is running. `reprise receipt verify --bundle` checks what it wrote.\n\n\
        Example:\n  reprise log export backup-2026-11-15"
    )]
    Export(LogExportArgs),
    /// Import a finished task from another server, with its log and its receipt, to replay it here
    #[command(after_help = log::import::EXAMPLES)]
    Import(log::import::ImportArgs),
    /// Continue with a log that has lost acknowledged events
    #[command(
        after_help = "Only for a data directory that `reprise serve` and `reprise log verify` refuse because acknowledged events\n\
        are missing, when there is no backup to restore. Stop the server first. What can still be read stays; the damaged\n\
        files are kept in a folder `lost-N` of the data directory. The receipt log goes on under a new origin, and its\n\
        first head there names the last one of the old origin: nobody can take the one for a continuation of the other.\n\n\
        Example:\n  reprise log recover --accept-loss --data /var/lib/reprise"
    )]
    Recover(LogRecoverArgs),
    /// Replace unreadable events with headers, so that everything else can be checked and used again
    #[command(
        after_help = "Lists every event and blob that cannot be read, and changes nothing unless --apply is given. Stop the server\n\
        first. An event whose envelope can be read keeps it, and the digest of what it said; otherwise an event\n\
        `vendor.event_lost` stands in its place. What was stored is kept in a folder `unreadable-N` of the data directory.\n\
        A task that lost an event cannot be replayed, and its receipt not be compared with its log. Restore a backup\n\
        instead if there is one. Exit 0 when `log verify` finds nothing wrong afterwards.\n\n\
        Examples:\n  reprise log repair --data /var/lib/reprise\n  reprise log repair --apply --data /var/lib/reprise"
    )]
    Repair(LogRepairArgs),
    /// Remove unreferenced blobs, left by refused uploads and killed processes
    #[command(
        after_help = "Stop the server first. Reads the whole log.\n\nExample:\n  reprise log sweep --data /var/lib/reprise"
    )]
    Sweep(DirectoryArgs),
    /// Reduce finished tasks to headers once they are older than the retention
    #[command(
        after_help = "Stop the server first. Of each event of such a task its envelope and the digest of what it said stay;\n\
        payloads go, and so do the blobs that nothing else names. Receipts, trust records and artifacts stay. A pruned\n\
        task cannot be replayed any more. What is younger than the setting `retention_days` is never touched; without\n\
        that setting everything is kept until you name the days. 0 days means everything that has finished.\n\n\
        Examples:\n  reprise log prune --config reprise.toml\n  reprise log prune --older-than-days 90 --dry-run"
    )]
    Prune(LogPruneArgs),
}

/// `reprise log recover`
#[derive(Debug, Args)]
pub(crate) struct LogRecoverArgs {
    /// Accept that the lost events are gone
    #[arg(long)]
    pub(crate) accept_loss: bool,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
}

/// `reprise log repair`
#[derive(Debug, Args)]
pub(crate) struct LogRepairArgs {
    /// Apply the repair
    #[arg(long)]
    pub(crate) apply: bool,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
}

/// `reprise log prune`
#[derive(Debug, Args)]
pub(crate) struct LogPruneArgs {
    /// Prune tasks whose last event is older than this many days [default: the setting `retention_days`]
    #[arg(long, value_name = "DAYS")]
    pub(crate) older_than_days: Option<u32>,
    /// Show what would be pruned, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Configuration file (TOML) of the server
    #[arg(long, value_name = "FILE", env = "REPRISE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Data directory [default: ./reprise-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
}

/// Where a command works without a server, and how it prints.
#[derive(Debug, Args)]
pub(crate) struct DirectoryArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) data: DataArgs,
}

/// `reprise log rebuild`
#[derive(Debug, Args)]
pub(crate) struct LogRebuildArgs {
    /// Store what was derived, after a backup
    #[arg(long)]
    pub(crate) write: bool,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
}

/// `reprise log export`
#[derive(Debug, Args)]
pub(crate) struct LogExportArgs {
    /// The directory to write, which must not exist yet
    pub(crate) out: PathBuf,
    /// Leave out content that is not public; what is left still verifies
    #[arg(long)]
    pub(crate) auditor: bool,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
}

/// `reprise canonicalize`
#[derive(Debug, Args)]
#[command(
    after_help = "Refuses what a canonical form would silently change: duplicate members, lone surrogates, bytes that\n\
    are not UTF-8, integers that a double cannot hold. Writes no line feed at the end.\n\
    ahd-js-1 reads JSON and YAML as replay blocks do: every number is a double, and what has no lossless form is refused.\n\n\
    Examples:\n  reprise canonicalize < receipt.json | sha256sum\n  reprise canonicalize --profile ahd-js-1 < block.json"
)]
pub(crate) struct CanonicalizeArgs {
    /// jcs (RFC 8785) or ahd-js-1
    #[arg(long, value_enum, default_value = "jcs")]
    pub(crate) profile: CanonicalProfile,
}

/// A canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CanonicalProfile {
    /// RFC 8785
    Jcs,
    /// The form of replay blocks
    #[value(name = "ahd-js-1")]
    AhdJs1,
}

/// `reprise conformance`
#[derive(Debug, Args)]
#[command(
    after_help = "Asks over the wire only and works with any server of the protocol.\n\
    It leaves workspaces, sessions and tasks behind: use a server that you can throw away. Exit 1 when a\nrequirement is not met.\n\n\
    Examples:\n  reprise conformance\n  reprise conformance --url http://127.0.0.1:8080 --key rpk_…\n  \
    reprise conformance --url http://127.0.0.1:8080 --key rpk_… --other-key rpk_… \\\n    --restart ./restart.sh --json\n  \
    reprise conformance --akashik"
)]
pub(crate) struct ConformanceArgs {
    /// Judge the memory protocol instead, at this address or at that of the server
    #[arg(long, value_name = "URL", num_args = 0..=1, conflicts_with_all = ["dead_key", "expired_key", "make_key", "suite"])]
    pub(crate) akashik: Option<Option<String>>,
    /// Its address, without /v1 [default: the one in the data directory, else http://127.0.0.1:8080]
    #[arg(long, env = "REPRISE_URL")]
    pub(crate) url: Option<String>,
    /// A key that may do everything [default: the file `api-key` in the data directory]
    #[arg(long, env = "REPRISE_KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
    /// Data directory of a server on this machine
    #[arg(
        long,
        value_name = "DIR",
        env = "REPRISE_DATA",
        default_value = "reprise-data"
    )]
    pub(crate) data: PathBuf,
    /// A key of another actor that may see or do less
    #[arg(
        long,
        value_name = "KEY",
        env = "REPRISE_OTHER_KEY",
        hide_env_values = true
    )]
    pub(crate) other_key: Option<String>,
    /// A key of another actor that may approve what tasks of the first ask [default: with the key of a data directory, the
    /// file `approver-key` there]
    #[arg(
        long,
        value_name = "KEY",
        env = "REPRISE_APPROVER_KEY",
        hide_env_values = true
    )]
    pub(crate) approver_key: Option<String>,
    /// A key that was revoked; can be given several times
    #[arg(long, value_name = "KEY")]
    pub(crate) dead_key: Vec<String>,
    /// A key that has expired; can be given several times
    #[arg(long, value_name = "KEY")]
    pub(crate) expired_key: Vec<String>,
    /// A shell command that makes a key with the one scope $SCOPE and prints it, such as
    /// `reprise key create --actor walker --scope "$SCOPE"`
    #[arg(long, value_name = "COMMAND")]
    pub(crate) make_key: Option<String>,
    /// A shell command that kills and restarts the server and returns when it is ready
    #[arg(long, value_name = "COMMAND")]
    pub(crate) restart: Option<String>,
    /// Judge by the published suite alone, even where it contradicts the contract
    #[arg(long)]
    pub(crate) suite: bool,
    /// How long to wait for any one answer
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) timeout: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads a time, a day, or how long ago it was; returns the time as the protocol writes it.
pub(crate) fn since(text: &str) -> Result<String, String> {
    crate::time::since(text).map(|time| time.to_string())
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("a number from 1".to_owned()),
    }
}

pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_option_is_refused_because_of_a_variable_in_the_environment() {
        let mut cli = Cli::command();
        cli.build();
        let mut commands = vec![&cli];
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands());
            for arg in command.get_arguments() {
                for other in command.get_arg_conflicts_with(arg) {
                    let either = [arg, other].map(clap::Arg::get_env);
                    let name = command.get_name();
                    assert_eq!(either, [None, None], "{name}: {arg} and {other}");
                }
            }
        }
    }

    /// What has no `--json`, and why.
    const WITHOUT_JSON: [&str; 5] = [
        // They run until they are stopped, and answer nothing.
        "reprise demo",
        "reprise serve",
        // What they write is canonical JSON, a script and a manual, for programs.
        "reprise canonicalize",
        "reprise completions",
        "reprise man",
    ];

    #[test]
    fn every_command_that_answers_can_answer_in_json() {
        fn walk(command: &clap::Command, path: &str, lacking: &mut Vec<String>) {
            let subcommands: Vec<_> = command.get_subcommands().collect();
            if subcommands.is_empty() {
                let has_json = command
                    .get_arguments()
                    .any(|arg| arg.get_long() == Some("json"));
                if !has_json {
                    lacking.push(path.to_owned());
                }
            }
            for subcommand in subcommands {
                walk(
                    subcommand,
                    &format!("{path} {}", subcommand.get_name()),
                    lacking,
                );
            }
        }
        let mut lacking = Vec::new();
        walk(&Cli::command(), "reprise", &mut lacking);
        lacking.sort();
        let mut expected = WITHOUT_JSON.map(str::to_owned);
        expected.sort();
        assert_eq!(lacking, expected);
    }
}
