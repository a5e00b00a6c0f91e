//! `sidecar verify` and `verify-replay`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::sidecar::{
    AgentFiles, BlockState, FileError, Files, ReadSidecar, Sidecar, VerifyOptions, compare_block,
    read_sidecar, verify,
};
use anyhow::Context as _;
use ed25519_dalek::VerifyingKey;
use receipts::KeySet;

use super::files::{WorkingTree, read_file, read_named};
use super::git::AtCommit;
use super::hashing::NamedFile;
use super::locate::{self, ReportPair, directory_of};
use super::output::{self, NotChecked, Verdict, VerifyReport};
use super::{recording, signature};
use crate::output::{Output, Progress, escaped, warn};

pub(crate) const EXAMPLES: &str = "\
Examples:
  reprise sidecar verify docs/evals/2026-04-22-swiss-n30.md
  reprise sidecar verify --at-commit docs/evals/2026-04-22-swiss-n30.md
  reprise sidecar verify --outputs --json out/report.replay.json
  reprise sidecar verify --junit replay.xml docs/evals/run.md
  reprise sidecar verify --agent agent.yml \\\n    --agent-tool read=tools/read.json out/report.md
  reprise sidecar verify --keys jwks.json --key \"$(cat sidecar.pub)\" out/report.md

Exit status: 0 clean, 1 drift (at least one FAIL), 2 no verdict.
A clean verdict says that the inputs are those recorded; it does not say that the command was run,
that the named models answered, or that a rerun would agree.";

/// Arguments of `sidecar verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The report, or its sidecar.
    #[arg(value_name = "REPORT|SIDECAR")]
    argument: PathBuf,
    /// Directory that paths are relative to [default: found from the report's place].
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Refuse members that this program does not know.
    #[arg(long)]
    strict: bool,
    /// Read the files from git, at the recorded commit or at REV.
    #[arg(long, value_name = "REV", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    at_commit: Option<String>,
    /// Also check outputs and the report itself (general sidecars).
    #[arg(long)]
    outputs: bool,
    /// Also compare the agent's configuration with its recorded hash (general sidecars).
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// Also compare the schema of one of the agent's tools with its recorded hash; repeat for more.
    #[arg(long = "agent-tool", value_name = "NAME=FILE", value_parser = NamedFile::parse)]
    agent_tools: Vec<NamedFile>,
    /// Also compare the agent's policy with its recorded hash.
    #[arg(long, value_name = "FILE")]
    agent_policy: Option<PathBuf>,
    /// Also check the sidecar's own signature against this public key.
    // Read later: a value that clap refuses is printed, and it may be the seed by mistake.
    #[arg(long, value_name = "PUBLICKEY")]
    key: Option<String>,
    /// Check the signatures of a recorded run against the keys of its server, a JWKS file.
    #[arg(long, value_name = "JWKS")]
    keys: Option<PathBuf>,
    /// Print the outcome as JSON.
    #[arg(long)]
    json: bool,
    /// Also write the outcome as a JUnit file.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// Largest sidecar that is read.
const SIDECAR_BYTES_MAX: u64 = 64 << 20;

/// Why there is no verdict: a stable name and a message.
#[derive(Debug)]
pub(super) struct NoVerdict {
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl NoVerdict {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Runs the subcommand.
pub(super) fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let key = args.key.as_deref().map(signature::parse_public);
    let key = key.transpose()?;
    let pair = ReportPair::of(&args.argument);
    let mut outlook = VerifyReport {
        report: pair.report.clone(),
        sidecar: pair.sidecar.clone(),
        root: None,
        kind: None,
        verdict: Verdict::Error,
        error: None,
        message: None,
        warnings: Vec::new(),
        checks: Vec::new(),
        not_checked: Vec::new(),
    };
    let mut text = String::new();
    match judge(args, key.as_ref(), &pair, &mut outlook) {
        Ok(read) => {
            text = read;
        }
        Err(NoVerdict { code, message }) => {
            warn(format_args!("error: {code}: {}", escaped(&message)));
            warn(format_args!("hint: {}", hint(code)));
            outlook.error = Some(code);
            outlook.message = Some(message);
        }
    }
    if let Some(path) = &args.junit {
        output::write_junit(path, &outlook)?;
    }
    if args.json {
        Output::stdout().json(&outlook)?;
    } else {
        Output::stdout().write(&text)?;
    }
    Ok(ExitCode::from(match outlook.verdict {
        Verdict::Clean => 0,
        Verdict::Drift => 1,
        Verdict::Error => 2,
    }))
}

/// Says what to do where there is no verdict.
fn hint(code: &str) -> &'static str {
    match code {
        "sidecar_not_found" => {
            "name a report that has its sidecar, NAME.replay.json, next to it, or the sidecar itself"
        }
        "unreadable_keys" => "name a JWKS file, such as a server's /.well-known/jwks.json",
        "unreadable_agent" => "name the files that `reprise sidecar capture` was given",
        "commit_not_found" => "fetch the commit that the sidecar names, or leave --at-commit out",
        "unreadable_root" => "name the folder that paths are relative to with --root",
        _ => "the file is damaged or is not a sidecar: take it from where it was published",
    }
}

/// Fills the outcome and returns its text form.
fn judge(
    args: &VerifyArgs,
    key: Option<&VerifyingKey>,
    pair: &ReportPair,
    outlook: &mut VerifyReport,
) -> Result<String, NoVerdict> {
    let read = read_pair(pair, args.strict)?;
    outlook.kind = Some(read.sidecar.kind().to_owned());
    let root = root_of(args.root.as_deref(), pair, &read.sidecar)?;
    let files: Box<dyn Files> = match &args.at_commit {
        None => Box::new(open_tree(&root)?),
        Some(revision) => Box::new(open_commit(&root, revision, &read.sidecar)?),
    };
    outlook.root = Some(root.canonicalize().unwrap_or(root));
    let options = VerifyOptions {
        outputs: args.outputs,
        // The recorded commit is what the run started from.
        before_run: args.at_commit.as_deref() == Some(""),
        agent: agent_files(args).map_err(unreadable_agent)?,
    };
    let keys = args.keys.as_deref().map(read_keys).transpose()?;
    let progress = Progress::begin("hashing files");
    let mut verification = verify(&read, files.as_ref(), &options);
    drop(progress);
    let recorded = match &read.sidecar {
        Sidecar::General(general) => general.recording.as_ref(),
        Sidecar::Ahd(_) => None,
    };
    match recorded {
        Some(recorded) => {
            let checks = recording::checks(recorded, keys.as_ref());
            verification.checks.extend(checks);
        }
        // Keys are given to see the run vouched for.
        None if keys.is_some() => verification.checks.push(recording::missing()),
        None => {}
    }
    let signature = signature::check(&read, key);
    verification.checks.extend(signature);
    outlook.verdict = if verification.clean() {
        Verdict::Clean
    } else {
        Verdict::Drift
    };
    if args.outputs && matches!(read.sidecar, Sidecar::Ahd(_)) && differs(pair, &read.sidecar) {
        // Published blocks of these kinds are not all YAML; their sidecars are what counts.
        verification.warnings.push("block_differs".to_owned());
    }
    outlook.not_checked = not_checked(args, &read.sidecar);
    let text = output::text(
        (&pair.report, &pair.sidecar),
        &read.sidecar,
        &verification,
        &outlook.not_checked,
    );
    outlook.warnings = verification.warnings;
    outlook.checks = verification.checks;
    Ok(text)
}

/// Says whether a report has a block, and that is not what the sidecar renders to.
fn differs(pair: &ReportPair, sidecar: &Sidecar) -> bool {
    let content = read_file(&pair.report, ::sidecar::DOCUMENT_BYTES_MAX).ok();
    let bytes = content.and_then(|content| content.bytes);
    let state = bytes.and_then(|bytes| compare_block(&bytes, sidecar).ok());
    state.is_some_and(|state| !matches!(state, BlockState::Same | BlockState::Absent))
}

/// Returns what the sidecar records and nobody asked about, with what to give.
fn not_checked(args: &VerifyArgs, sidecar: &Sidecar) -> Vec<NotChecked> {
    let mut parts = Vec::new();
    let mut add = |is_open: bool, part: &'static str, ask: &'static str| {
        if is_open {
            parts.push(NotChecked { part, ask });
        }
    };
    let Sidecar::General(general) = sidecar else {
        return parts;
    };
    let has_outputs = general
        .outputs
        .as_ref()
        .is_some_and(|outputs| !outputs.is_empty());
    add(has_outputs && !args.outputs, "outputs", "give --outputs");
    let has_report = general.report.is_some() && !args.outputs;
    add(has_report, "report", "give --outputs");
    add(has_report, "block", "give --outputs");
    let agent = general.agent.as_ref();
    let has_config = agent.is_some_and(|agent| agent.config_hash.is_some());
    add(
        has_config && args.agent.is_none(),
        "agent",
        "give --agent FILE",
    );
    let tools = agent.and_then(|agent| agent.tools.as_ref());
    let open_tools = tools.is_some_and(|tools| tools.len() > args.agent_tools.len());
    add(
        open_tools,
        "agent/tools",
        "give --agent-tool NAME=FILE for each",
    );
    let has_policy = agent.is_some_and(|agent| agent.policy_hash.is_some());
    let without_policy = has_policy && args.agent_policy.is_none();
    add(without_policy, "agent/policy", "give --agent-policy FILE");
    let unsigned = general.signature.is_some() && args.key.is_none();
    add(unsigned, "signature", "give --key PUBLICKEY");
    let recorded = general.recording.is_some() && args.keys.is_none();
    add(recorded, "recording/signature", "give --keys JWKS");
    parts
}

fn agent_files(args: &VerifyArgs) -> anyhow::Result<AgentFiles> {
    let tools = args.agent_tools.iter();
    Ok(AgentFiles {
        config: args.agent.as_deref().map(read_named).transpose()?,
        tools: tools
            .map(|NamedFile { name, path }| Ok((name.clone(), read_named(path)?)))
            .collect::<anyhow::Result<_>>()?,
        policy: args.agent_policy.as_deref().map(read_named).transpose()?,
    })
}

fn unreadable_agent(error: anyhow::Error) -> NoVerdict {
    NoVerdict::new("unreadable_agent", format!("{error:#}"))
}

fn read_keys(path: &Path) -> Result<KeySet, NoVerdict> {
    let unreadable = |error: &dyn std::fmt::Display| {
        NoVerdict::new("unreadable_keys", format!("`{}`: {error}", path.display()))
    };
    let bytes = std::fs::read(path).map_err(|error| unreadable(&error))?;
    KeySet::from_jwks(&bytes).map_err(|error| unreadable(&error))
}

/// Reads the sidecar of a pair.
pub(super) fn read_pair(pair: &ReportPair, strict: bool) -> Result<ReadSidecar, NoVerdict> {
    let shown = pair.sidecar.display();
    let content = read_file(&pair.sidecar, SIDECAR_BYTES_MAX).map_err(|error| match error {
        FileError::Missing => {
            NoVerdict::new("sidecar_not_found", format!("no sidecar at `{shown}`"))
        }
        other => NoVerdict::new("invalid_sidecar", format!("`{shown}`: {other}")),
    })?;
    let Some(bytes) = content.bytes else {
        let message = format!("`{shown}` has {} bytes, more than any sidecar", content.len);
        return Err(NoVerdict::new("invalid_sidecar", message));
    };
    read_sidecar(&bytes, strict)
        .map_err(|error| NoVerdict::new(error.code(), format!("`{shown}`: {error}")))
}

/// Returns the root that a sidecar's paths are relative to.
pub(super) fn root_of(
    given: Option<&Path>,
    pair: &ReportPair,
    sidecar: &Sidecar,
) -> Result<PathBuf, NoVerdict> {
    let ahd = matches!(sidecar, Sidecar::Ahd(_));
    locate::root(given, directory_of(&pair.sidecar), ahd).map_err(unreadable_root)
}

pub(super) fn open_tree(root: &Path) -> Result<WorkingTree, NoVerdict> {
    WorkingTree::open(root).map_err(unreadable_root)
}

/// Opens the files at a revision; an empty one means the recorded commit.
pub(super) fn open_commit(
    root: &Path,
    revision: &str,
    sidecar: &Sidecar,
) -> Result<AtCommit, NoVerdict> {
    let revision = if revision.is_empty() {
        sidecar
            .commit()
            .context("the sidecar records no commit; name one with --at-commit=REV")
    } else {
        Ok(revision)
    };
    revision
        .and_then(|revision| AtCommit::open(root, revision))
        .map_err(|error| NoVerdict::new("commit_not_found", format!("{error:#}")))
}

fn unreadable_root(error: anyhow::Error) -> NoVerdict {
    NoVerdict::new("unreadable_root", format!("{error:#}"))
}
