//! `sidecar capture`: wrap a run, or describe one that already happened.
//!
//! Inputs are hashed before the command starts and again when it has ended; a difference is a fault
//! and leaves no sidecar. Everything is checked and written under temporary names before anything is
//! put in place, the sidecar last: where there is a sidecar, the capture was whole.

mod agent;
mod build;
mod trace;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use ::sidecar::{AHD_KINDS, Artifact, DOCUMENT_BYTES_MAX, Mode, Profile, Sidecar};
use anyhow::{Context as _, bail, ensure};
use ed25519_dalek::SigningKey;

use super::facts::{FactArgs, GeneralSamplingArgs, now};
use super::files::{WorkingTree, read_file};
use super::git;
use super::hashing::{RoleFile, artifact, below_root, mode_of};
use super::locate::{self, ReportPair, directory_of};
use super::recording::RecordingArgs;
use super::signature;
use super::write::PreparedFile;
use crate::output::{self, warn};

pub(super) const EXAMPLES: &str = "\
Examples:
  Wrap an agent run, hash what it read and wrote, render the block into its report:
    reprise sidecar capture --kind agent-run --input prompt=prompts/task.md \\
      --input config=agent.yml:canonical-json --output answer=out/answer.txt \\
      --report out/report.md -- python agent.py prompts/task.md

  An AHD eval:
    reprise sidecar capture --kind eval-live --report docs/evals/run.md \\
      --token tokens/swiss.yml --brief briefs/landing.yml --n 30 \\
      --model id=claude-x,provider=anthropic --request-ids ids.json \\
      --condition-requested raw --condition-effective raw \\
      -- node bin/ahd eval-live swiss --n 30

  Describe a run that already happened:
    reprise sidecar capture --kind agent-run --no-run --argv-json argv.json \\
      --invoked-at 2026-01-02T03:04:05Z --input prompt=prompts/task.md \\
      --report out/report.md

  What defines the agent, and the recording that it writes:
    reprise sidecar capture --kind agent-run --report out/report.md \\
      --input prompt=prompts/task.md \\
      --agent-name scout --agent-config agent.yml --agent-policy policy.cedar \\
      --agent-tool read=tools/read.json --agent-tool search=tools/search.json \\
      --trace out/trace.jsonl --trace-format jsonl --trace-events lines \\
      --trace-session s-17 -- python agent.py prompts/task.md

  With the receipt of the task that a server recorded, and signed:
    reprise sidecar capture … --task task_0123 --sign sidecar.key

Exit status: that of COMMAND; 2 when the capture itself failed, and then there is no sidecar.";

/// Arguments of `sidecar capture`.
#[derive(Debug, clap::Args)]
pub(super) struct CaptureArgs {
    /// Kind of run; eval-live, critique and eval-image write AHD blocks, other names general ones.
    #[arg(long)]
    kind: String,
    /// The report. The sidecar is written next to it and the block is rendered into it.
    #[arg(long, value_name = "FILE", required_unless_present = "sidecar")]
    report: Option<PathBuf>,
    /// Where to write the sidecar when there is no report.
    #[arg(long, value_name = "FILE", conflicts_with = "report")]
    sidecar: Option<PathBuf>,
    /// Leave the report as it is.
    #[arg(long)]
    no_block: bool,
    /// Replace an existing sidecar; it is gone once the command has started.
    #[arg(long)]
    overwrite: bool,
    /// Directory that paths are relative to [default: found from the report's place].
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Do not run anything, describe a run: one of a server with --task, any other with --argv-json and --invoked-at.
    #[arg(long)]
    no_run: bool,
    /// The command of a described run: a JSON list of strings.
    #[arg(
        long,
        value_name = "FILE",
        requires = "no_run",
        conflicts_with = "command"
    )]
    argv_json: Option<PathBuf>,
    /// Start of a described run, UTC with Z.
    #[arg(long, value_name = "TIME", requires = "no_run")]
    invoked_at: Option<String>,
    /// End of a described run, UTC with Z (not AHD kinds).
    #[arg(long, value_name = "TIME", requires = "no_run")]
    finished_at: Option<String>,
    /// Exit status of a described run (not AHD kinds).
    #[arg(
        long,
        value_name = "STATUS",
        requires = "no_run",
        allow_negative_numbers = true
    )]
    exit_code: Option<i32>,
    /// Write the sidecar even though the command holds what looks like a credential (AHD kinds).
    #[arg(long)]
    allow_secrets_in_argv: bool,
    /// Sign the sidecar with the seed in this file (not AHD kinds).
    #[arg(long, value_name = "KEYFILE")]
    sign: Option<PathBuf>,
    /// Print JSON; what the command prints goes to stderr then.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    recorded: RecordingArgs,
    #[command(flatten)]
    facts: FactArgs,
    #[command(flatten)]
    ahd: build::AhdArgs,
    #[command(flatten)]
    general: build::GeneralArgs,
    #[command(flatten)]
    agent: agent::AgentArgs,
    #[command(flatten)]
    trace: trace::TraceArgs,
    #[command(flatten)]
    sampling: GeneralSamplingArgs,
    /// The command and its arguments, executed as given and without a shell.
    #[arg(
        last = true,
        value_name = "COMMAND",
        required_unless_present = "no_run"
    )]
    command: Vec<String>,
}

/// What is known before the command starts.
struct Plan {
    tree: WorkingTree,
    ahd: bool,
    argv: Vec<String>,
    sidecar: PathBuf,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    draft: Sidecar,
    key: Option<SigningKey>,
}

/// An input and its hash before the run.
struct Input {
    artifact: Artifact,
    profile: Profile,
}

struct Output {
    role: String,
    path: String,
    mode: Option<Mode>,
    stable: bool,
}

/// What the run itself told.
struct FinishedRun {
    invoked_at: String,
    finished_at: Option<String>,
    status: Option<ExitStatus>,
}

/// Runs the subcommand.
pub(super) fn run(mut args: CaptureArgs) -> anyhow::Result<ExitCode> {
    args.describe_task()?;
    let plan = plan(&args)?;
    let earlier = ReplacedSidecar::take(&plan.sidecar, args.overwrite)?;
    let ran = match execute(&args, &plan) {
        Ok(ran) => ran,
        // Nothing ran: what was there is as good as it was.
        Err(error) => {
            earlier.put_back()?;
            return Err(error);
        }
    };
    earlier.drop()?;
    unchanged(
        &plan.tree,
        plan.inputs
            .iter()
            .map(|input| (&input.artifact, input.profile)),
    )?;
    if plan.ahd
        && let Some(status) = ran.status
        && !status.success()
    {
        // Schema 1 has no member for a failed run.
        warn(format_args!("no sidecar: the command ended with {status}"));
        if args.json {
            output::Output::stdout().json(&result_json(&args, None, &ran))?;
        }
        return Ok(exit_code(Some(status)));
    }
    let report = args.report.as_deref().map(Report::read).transpose();
    let report = report.map_err(|error| match ran.status {
        Some(status) if !status.success() => {
            error.context(format!("no sidecar: the command ended with {status}"))
        }
        _ => error,
    })?;
    let sidecar = build::complete(plan.draft.clone(), &args, &plan, &ran, report.as_ref())?;
    write(
        &plan.sidecar,
        &sidecar,
        report.as_ref().filter(|_| !args.no_block),
    )?;
    if args.json {
        output::Output::stdout().json(&result_json(&args, Some(&plan.sidecar), &ran))?;
    } else {
        warn(format_args!(
            "sidecar written to `{}`",
            plan.sidecar.display()
        ));
    }
    Ok(exit_code(ran.status))
}

/// A sidecar that will be replaced, out of the way while a command runs: a run that ends midway must leave none behind.
struct ReplacedSidecar {
    sidecar: PathBuf,
    aside: Option<PathBuf>,
}

impl ReplacedSidecar {
    fn take(sidecar: &Path, overwrite: bool) -> anyhow::Result<Self> {
        let sidecar = sidecar.to_owned();
        if sidecar.symlink_metadata().is_err() {
            let aside = None;
            return Ok(Self { sidecar, aside });
        }
        let shown = sidecar.display();
        ensure!(overwrite, "`{shown}` exists; --overwrite replaces it");
        let mut name = sidecar.as_os_str().to_owned();
        name.push(".replaced");
        let aside = PathBuf::from(name);
        fs::rename(&sidecar, &aside).with_context(|| format!("cannot remove `{shown}`"))?;
        let aside = Some(aside);
        Ok(Self { sidecar, aside })
    }

    fn put_back(self) -> anyhow::Result<()> {
        let Some(aside) = self.aside else {
            return Ok(());
        };
        let doing = || format!("cannot put `{}` back", self.sidecar.display());
        fs::rename(aside, &self.sidecar).with_context(doing)
    }

    fn drop(self) -> anyhow::Result<()> {
        let Some(aside) = self.aside else {
            return Ok(());
        };
        fs::remove_file(&aside).with_context(|| format!("cannot remove `{}`", aside.display()))
    }
}

impl CaptureArgs {
    /// Takes from the record what a described run of a server does not have to be told: times, command, program.
    fn describe_task(&mut self) -> anyhow::Result<()> {
        if !self.no_run || (self.argv_json.is_some() && self.invoked_at.is_some()) {
            return Ok(());
        }
        let Some(described) = self.recorded.described()? else {
            bail!("--no-run describes a run: give --task, or --argv-json and --invoked-at");
        };
        if self.argv_json.is_none() {
            // What runs it again.
            self.command = ["reprise", "replay", &described.task]
                .map(str::to_owned)
                .into();
            let version = &mut self.general.tool_version;
            version.get_or_insert_with(|| env!("CARGO_PKG_VERSION").to_owned());
        }
        self.invoked_at.get_or_insert(described.started_at);
        if !AHD_KINDS.contains(&self.kind.as_str()) && self.finished_at.is_none() {
            self.finished_at = described.ended_at;
        }
        Ok(())
    }
}

/// Returns what came of a capture, for programs.
fn result_json(args: &CaptureArgs, sidecar: Option<&Path>, ran: &FinishedRun) -> serde_json::Value {
    serde_json::json!({
        "sidecar": sidecar,
        "report": args.report,
        "invoked_at": ran.invoked_at,
        "finished_at": ran.finished_at,
        "exit_code": ran.status.and_then(|status| status.code()),
    })
}

fn plan(args: &CaptureArgs) -> anyhow::Result<Plan> {
    let ahd = AHD_KINDS.contains(&args.kind.as_str());
    build::refuse_foreign_flags(args, ahd)?;
    let key = args.sign.as_deref().map(signature::read_seed).transpose()?;
    let named = args
        .report
        .as_ref()
        .or(args.sidecar.as_ref())
        .context("no report")?;
    let start = directory_of(named);
    let tree = WorkingTree::open(&locate::root(args.root.as_deref(), start, ahd)?)?;
    let sidecar = match &args.sidecar {
        Some(path) => path.clone(),
        None => ReportPair::of(named).sidecar,
    };
    ensure!(start.is_dir(), "`{}` is not a directory", start.display());
    let argv = match &args.argv_json {
        Some(path) => {
            let doing = || format!("cannot read a command from `{}`", path.display());
            let bytes = fs::read(path).with_context(doing)?;
            serde_json::from_slice(&bytes).with_context(doing)?
        }
        None => args.command.clone(),
    };
    ensure!(!argv.is_empty(), "the command is empty");
    if ahd
        && !args.allow_secrets_in_argv
        && let Some(secret) = ::sidecar::find_secrets(&argv).first()
    {
        bail!(
            "argument {} looks like a credential ({}), and blocks of this kind publish the whole command; \
             --allow-secrets-in-argv writes it all the same",
            secret.index,
            secret.name
        );
    }
    let inputs = build::inputs(args, &tree, ahd)?;
    if inputs.is_empty() {
        warn("warning: no --input is given: a reader will have nothing to verify");
    }
    let outputs = outputs(args, &tree)?;
    let mut ignored = vec![absolute(&sidecar)?];
    for path in args.report.iter() {
        ignored.push(absolute(path)?);
    }
    let trace = args.trace.path(&tree)?;
    if !ahd && let Some(report) = &args.report {
        below_root(&tree, report)?;
    }
    let hashed = inputs.iter().map(|input| &input.artifact.path);
    let written = outputs.iter().map(|output| &output.path).chain(&trace);
    for path in hashed.chain(written) {
        let place = tree.root().join(path);
        let own = ignored.iter().any(|written| written.starts_with(&place));
        ensure!(
            !own,
            "`{path}` holds the report or the sidecar, which are written after it is hashed"
        );
    }
    let written = outputs.iter().map(|output| &output.path).chain(&trace);
    ignored.extend(written.map(|path| tree.root().join(path)));
    let git = git::state(tree.root(), &ignored);
    // Without git there is no commit; a repository that git refuses is somebody's mistake.
    let in_repository = |root: &Path| root.ancestors().any(|above| above.join(".git").exists());
    if git.is_none()
        && in_repository(tree.root())
        && let Some(said) = git::complaint(tree.root())
    {
        warn(format_args!("warning: no commit is recorded: {said}"));
    }
    let known = build::Materials {
        tree: &tree,
        argv: &argv,
        inputs: &inputs,
        git: git.as_ref(),
    };
    let draft = build::draft(args, &known, ahd)?;
    args.recorded.probe()?;
    Ok(Plan {
        tree,
        ahd,
        argv,
        sidecar,
        inputs,
        outputs,
        draft,
        key,
    })
}

/// Returns the place of a file that may not exist yet, without links in its directory.
fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    let path = std::path::absolute(path).context("cannot read the current directory")?;
    let directory = directory_of(&path);
    let directory = directory
        .canonicalize()
        .unwrap_or_else(|_| directory.to_owned());
    Ok(directory.join(path.file_name().unwrap_or_default()))
}

fn outputs(args: &CaptureArgs, tree: &WorkingTree) -> anyhow::Result<Vec<Output>> {
    let unstable = args.general.outputs.iter().map(|wanted| (wanted, false));
    let stable = args
        .general
        .stable_outputs
        .iter()
        .map(|wanted| (wanted, true));
    unstable
        .chain(stable)
        .map(|(RoleFile { role, path, mode }, stable)| {
            Ok(Output {
                role: role.clone(),
                path: below_root(tree, path)?,
                mode: *mode,
                stable,
            })
        })
        .collect()
}

fn execute(args: &CaptureArgs, plan: &Plan) -> anyhow::Result<FinishedRun> {
    if let Some(invoked_at) = &args.invoked_at {
        return Ok(FinishedRun {
            invoked_at: invoked_at.clone(),
            finished_at: None,
            status: None,
        });
    }
    let (program, arguments) = plan.argv.split_first().context("the command is empty")?;
    let invoked_at = now();
    let mut command = Command::new(program);
    command.args(arguments);
    if args.json {
        command.stdout(Stdio::from(std::io::stderr()));
    }
    let status = command
        .status()
        .with_context(|| format!("cannot run `{program}`"))?;
    Ok(FinishedRun {
        invoked_at,
        finished_at: Some(now()),
        status: Some(status),
    })
}

/// Hashes inputs again and refuses a difference (RB-CAP-05).
pub(super) fn unchanged<'a>(
    tree: &WorkingTree,
    inputs: impl Iterator<Item = (&'a Artifact, Profile)>,
) -> anyhow::Result<()> {
    for (before, profile) in inputs {
        let after = artifact(tree, &before.role, &before.path, before.mode, profile)?;
        ensure!(
            after.hash == before.hash,
            "input `{}` changed while the command ran",
            before.path
        );
    }
    Ok(())
}

/// Hashes what the run wrote.
fn hash_outputs(plan: &Plan, profile: Profile) -> anyhow::Result<Vec<Artifact>> {
    plan.outputs
        .iter()
        .map(|output| {
            let mode = output
                .mode
                .unwrap_or_else(|| mode_of(&plan.tree, &output.path));
            let mut hashed = artifact(&plan.tree, &output.role, &output.path, mode, profile)?;
            hashed.stable = Some(output.stable);
            Ok(hashed)
        })
        .collect()
}

/// A report as the run left it.
pub(super) struct Report {
    path: PathBuf,
    bytes: Vec<u8>,
    /// Without a replay block of an earlier run.
    stripped: Vec<u8>,
}

impl Report {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let doing = || format!("cannot use the report `{}`", path.display());
        let content = read_file(path, DOCUMENT_BYTES_MAX).with_context(doing)?;
        let bytes = content.bytes.with_context(|| {
            let len = content.len;
            format!("{len} bytes, more than {DOCUMENT_BYTES_MAX} for a report")
        });
        let bytes = bytes.with_context(doing)?;
        let stripped = ::sidecar::strip(&bytes).with_context(doing)?;
        Ok(Self {
            path: path.to_owned(),
            bytes,
            stripped,
        })
    }
}

/// Writes the sidecar, and the block into the report: both complete before either is in place.
fn write(path: &Path, sidecar: &Sidecar, report: Option<&Report>) -> anyhow::Result<()> {
    let text = sidecar.text()?;
    let report = report
        .map(|report| PreparedFile::new(&report.path, &::sidecar::render(&report.bytes, sidecar)?))
        .transpose()?;
    let prepared = PreparedFile::new(path, text.as_bytes())?;
    if let Some(report) = report {
        report.commit()?;
    }
    prepared.commit()
}

/// Returns the command's status as ours; a signal as 128 and its number.
pub(super) fn exit_code(status: Option<ExitStatus>) -> ExitCode {
    let Some(status) = status else {
        return ExitCode::SUCCESS;
    };
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    #[cfg(not(unix))]
    let signal: Option<i32> = None;
    let code = status.code().unwrap_or(128 + signal.unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(255))
}
