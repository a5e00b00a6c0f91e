//! `reprise contracts`: check, test, backtest, draft and explain contracts. Nothing here needs a server.

mod backtest;
mod check;
mod draft;
mod explain;
mod files;
mod observed;
mod pack;
mod recorded;
mod report;

pub(crate) use files::configured;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use domain::Timestamp;

use crate::exit::Exit;
use crate::output::Output;

/// `reprise contracts`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compile the contracts of a folder and print everything that is wrong with them
    #[command(
        after_help = "A folder holds `<tool>.yaml` for each tool and, if limits or phases are wanted, `session.yaml`; one with\n\
        `workflow.yaml` has a folder for each role.\n\
        Exit 0 when they compile, 1 when they do not. Tools that can never be called are warnings.\n\n\
        Examples:\n  reprise contracts check contracts/\n  reprise contracts check contracts/ --json"
    )]
    Check(CheckArgs),
    /// Judge the recorded responses of a pack and compare the verdicts with what it expects
    #[command(
        after_help = "A pack is a folder with `contracts/`, `golden/` and `golden/negative/`. A case is a YAML file of steps, also\n\
        in subfolders; in `golden/` calls are expected to be allowed unless a step says otherwise, in `golden/negative/` each\n\
        response is expected to be blocked. Exit 0 when every case is as expected, 1 when one is not.\n\n\
        Examples:\n  reprise contracts test examples/refund-desk\n  \
        reprise contracts test packs/desk --junit report.xml --sarif report.sarif"
    )]
    Test(TestArgs),
    /// Judge recorded runs again under these contracts and show what would have been blocked
    #[command(
        after_help = "RUNS are bundles (`reprise task export`), folders of bundles, exports (`reprise log export`) or data\n\
        directories. Each run is judged as it went: the first call that would have been blocked, and apart from it\n\
        those after it, which may not have happened then. What was refused then and is refused now is as before. What a\n\
        record does not hold is not judgeable, never allowed.\n\
        Exit 1 when a threshold is passed.\n\n\
        Examples:\n  reprise contracts backtest contracts/ reprise-data --since 2026-11-01\n  \
        reprise contracts backtest contracts/ runs/ --principal desk.json \\\n    --max-blocked 0 --json"
    )]
    Backtest(BacktestArgs),
    /// Write a first draft of contracts from tool definitions or recorded runs
    #[command(
        after_help = "Reads a JSON list of tools as OpenAI, Anthropic or MCP write them, or recorded runs: a bundle\n\
        (`reprise task export`), a folder of bundles, an export (`reprise log export`) or a data directory. Runs also\n\
        show which values were given and which calls came first. Every guess is marked in a comment; nothing is\n\
        overwritten, and nothing is in force until you move the files.\n\n\
        Examples:\n  reprise contracts init tools.json\n  reprise contracts init reprise-data --output drafts/"
    )]
    Init(InitArgs),
    /// Show one recorded decision as the table of checks
    #[command(
        after_help = "Reads a decision as JSON: the `decision` of a contract error, or a line of the record.\n\n\
        Examples:\n  reprise contracts explain decision.json\n  reprise contracts explain decision.json --call call_3"
    )]
    Explain(ExplainArgs),
    /// Print the JSON Schema of a file, for editors
    #[command(
        after_help = "Examples:\n  reprise contracts schema contract > contract.schema.json\n  \
        reprise contracts schema session"
    )]
    Schema(SchemaArgs),
}

/// `reprise contracts check`
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Also look at the schemas that tools are offered with: a JSON file of tool definitions
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `reprise contracts test`
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// The pack's folder
    #[arg(value_name = "PACK")]
    pack: PathBuf,
    /// Also write a JUnit report
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Also write a SARIF report
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `reprise contracts backtest`
#[derive(Debug, Args)]
pub(crate) struct BacktestArgs {
    /// The folder of the contracts
    #[arg(value_name = "DIR")]
    contracts: PathBuf,
    /// Bundles, folders of bundles, exports or data directories
    #[arg(value_name = "RUNS", default_value = "reprise-data")]
    runs: Vec<PathBuf>,
    /// Only runs that began since: 30m, 1h30m or 2d ago, 2026-04-25, or 2026-04-25T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = crate::time::since)]
    since: Option<Timestamp>,
    /// The caller, a JSON file; records do not name it
    #[arg(long, value_name = "FILE")]
    principal: Option<PathBuf>,
    /// A label that every run begins with; can be given again
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// Exit 1 when more runs than this would have been stopped
    #[arg(long, value_name = "N")]
    max_blocked: Option<usize>,
    /// Exit 1 when more than this cannot be judged
    #[arg(long, value_name = "N")]
    max_not_judgeable: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `reprise contracts init`
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The tool definitions, a JSON file, or recorded runs
    #[arg(value_name = "TOOLS")]
    tools: PathBuf,
    /// Where to write the draft
    #[arg(long, short, value_name = "DIR", default_value = "contracts-draft")]
    output: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `reprise contracts explain`
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The decision, a JSON file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only this call
    #[arg(long, value_name = "ID")]
    call: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `reprise contracts schema`
#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// Which file
    #[arg(value_name = "FILE")]
    kind: SchemaKind,
    /// Print JSON, which this command always does
    #[arg(long)]
    json: bool,
}

/// The files that have a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaKind {
    /// The contract of a tool
    Contract,
    /// `session.yaml`
    Session,
}

/// Runs one of them.
pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Check(args) => check::run(&args),
        Command::Test(args) => pack::run(&args),
        Command::Backtest(args) => backtest::run(&args),
        Command::Init(args) => draft::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Schema(SchemaArgs { kind, json: _ }) => {
            let text = match kind {
                SchemaKind::Contract => contracts::CONTRACT_SCHEMA,
                SchemaKind::Session => contracts::SESSION_SCHEMA,
            };
            Output::stdout().write(text)?;
            Ok(Exit::Ok)
        }
    }
}
