//! `sidecar rerun`: print, or perform, the steps that run a recorded command again.
//!
//! Never runs a shell and never touches the user's checkout: with a commit it works in a worktree of
//! its own, without one only in a directory that the user names.

mod command;
mod compare;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use ::sidecar::{
    Agent, AgentFiles, Artifact, Check, General, Mode, Outcome, Parent, Profile, ReadSidecar,
    Sidecar, VerifyOptions, shell_line, sidecar_hash, verify,
};
use anyhow::{Context as _, anyhow, bail, ensure};
use canon::Number;
use serde::Serialize;

use self::command::Substitution;
use self::compare::{Comparison, HostEnvironment, Relation, RerunResult};
use super::capture::unchanged;
use super::facts::now;
use super::files::WorkingTree;
use super::git::{self, AtCommit};
use super::hashing::{artifact, below_root};
use super::locate::{ReportPair, directory_of};
use super::output;
use super::verify::{NoVerdict, read_pair, root_of};
use super::write::PreparedFile;
use crate::output::{Output, escaped, warn};

pub(super) const EXAMPLES: &str = "\
Examples:
  Print the steps, run nothing:
    reprise sidecar rerun docs/evals/run.md

  Run the command in a fresh worktree of the recorded commit and compare the outputs:
    reprise sidecar rerun --exec out/report.replay.json

  Supply an argument that was redacted, from an environment variable:
    reprise sidecar rerun --exec --supply api-key=OPENAI_API_KEY out/report.replay.json

Exit status: 0 done, 1 inputs have drifted or an output that was stable differs, 2 fault.";

/// Arguments of `sidecar rerun`.
#[derive(Debug, clap::Args)]
pub(super) struct RerunArgs {
    /// The report, or its sidecar.
    #[arg(value_name = "REPORT|SIDECAR")]
    argument: PathBuf,
    /// Directory that paths are relative to [default: found from the report's place].
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Run the command.
    #[arg(long)]
    exec: bool,
    /// Where to run: a new directory for the worktree, or a prepared one when no commit is recorded.
    #[arg(long, value_name = "DIR")]
    worktree: Option<PathBuf>,
    /// Run it even if inputs have drifted.
    #[arg(long)]
    force: bool,
    /// Value of a redacted argument, taken from an environment variable.
    #[arg(long, value_name = "NAME=VARIABLE")]
    supply: Vec<String>,
    /// Where to write the new sidecar [default: STEM.rerun.replay.json in the worktree].
    #[arg(long, value_name = "FILE")]
    sidecar: Option<PathBuf>,
    /// Print the outcome as JSON; the command's own output goes to standard error.
    #[arg(long)]
    json: bool,
}

/// The outcome as a document.
#[derive(Debug, Serialize)]
struct Outcomes {
    sidecar: PathBuf,
    executed: bool,
    steps: Vec<String>,
    warnings: Vec<String>,
    /// Checks that stop a rerun.
    failed: Vec<Check>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    substitutions: Vec<Substitution>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worktree: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_sidecar: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    comparison: Vec<Comparison>,
}

/// Runs the subcommand.
pub(super) fn run(args: &RerunArgs) -> anyhow::Result<ExitCode> {
    let pair = ReportPair::of(&args.argument);
    let read = read_pair(&pair, false).map_err(fault)?;
    let root = root_of(args.root.as_deref(), &pair, &read.sidecar).map_err(fault)?;
    let tree = WorkingTree::open(&root)?;
    if read.sidecar.argv().is_empty() || read.sidecar.backfilled() {
        bail!("not rerunnable: the command was not recorded");
    }
    let place = Place::find(args, &tree, &read.sidecar)?;
    let checked = check_inputs(args, &place, &tree, &read);
    let stopped = !checked.failed.is_empty() && !args.force;
    let mut outcomes = Outcomes {
        sidecar: pair.sidecar.clone(),
        executed: false,
        steps: steps(&read.sidecar, &place),
        warnings: checked.warnings,
        failed: checked.failed,
        substitutions: Vec::new(),
        worktree: None,
        new_sidecar: None,
        exit_code: None,
        comparison: Vec::new(),
    };
    for check in &outcomes.failed {
        warn(output::check_lines(check).trim_end());
    }
    if stopped {
        warn("drift: not run again; --force runs it anyway");
        if args.json {
            Output::stdout().json(&outcomes)?;
        }
        return Ok(ExitCode::from(1));
    }
    for warning in &outcomes.warnings {
        warn(format_args!("warning: {}", escaped(warning)));
    }
    if args.exec {
        let recorded = match &read.sidecar {
            Sidecar::General(general) => (**general).clone(),
            Sidecar::Ahd(ahd) => General::import(ahd, checked.brief_mode),
        };
        perform(args, &pair, &read, recorded, &tree, &place, &mut outcomes)?;
    }
    if args.json {
        Output::stdout().json(&outcomes)?;
    } else {
        Output::stdout().write(&text(&outcomes))?;
    }
    let broken = outcomes
        .comparison
        .iter()
        .any(|line| line.result == Relation::DiffersThoughStable);
    Ok(ExitCode::from(u8::from(broken)))
}

fn fault(error: NoVerdict) -> anyhow::Error {
    anyhow!("{}: {}", error.code, error.message)
}

/// Where the command would run.
enum Place {
    /// In a new worktree of the recorded commit.
    Commit { files: AtCommit, below_top: PathBuf },
    /// In a directory that the user prepared.
    Directory(WorkingTree),
    /// Nowhere: the steps are only printed.
    Nowhere { commit: Option<String> },
}

impl Place {
    fn find(args: &RerunArgs, tree: &WorkingTree, sidecar: &Sidecar) -> anyhow::Result<Self> {
        let commit = sidecar.commit();
        let opened = commit.map(|commit| AtCommit::open(tree.root(), commit));
        match opened {
            Some(Ok(files)) => {
                let top = git::top_level(tree.root()).context("no repository")?;
                let below_top = tree.root().strip_prefix(&top).unwrap_or(Path::new(""));
                Ok(Self::Commit {
                    below_top: below_top.to_owned(),
                    files,
                })
            }
            Some(Err(error)) if args.exec => Err(error),
            None if args.exec => {
                let Some(directory) = &args.worktree else {
                    bail!(
                        "no commit is recorded: prepare a directory with the files and name it with --worktree"
                    );
                };
                let directory = WorkingTree::open(directory)?;
                ensure!(
                    !directory.root().starts_with(tree.root())
                        && !tree.root().starts_with(directory.root()),
                    "--worktree must not be the checkout itself"
                );
                Ok(Self::Directory(directory))
            }
            _ => Ok(Self::Nowhere {
                commit: commit.map(str::to_owned),
            }),
        }
    }
}

/// What verifying told.
struct Checked {
    warnings: Vec<String>,
    failed: Vec<Check>,
    /// How an AHD block's brief agrees, which the block itself does not say.
    brief_mode: Mode,
}

/// Verifies first (RB-RUN-03).
fn check_inputs(
    args: &RerunArgs,
    place: &Place,
    tree: &WorkingTree,
    read: &ReadSidecar,
) -> Checked {
    let options = VerifyOptions {
        outputs: false,
        before_run: true,
        agent: AgentFiles::default(),
    };
    let verification = match place {
        Place::Commit { files, .. } => verify(read, files, &options),
        Place::Directory(files) => verify(read, files, &options),
        Place::Nowhere { .. } => verify(read, tree, &options),
    };
    let brief_mode = verification.checks.iter().find_map(|check| check.matched);
    let mut warnings = verification.warnings;
    let mut failed = verification.checks;
    failed.retain(|check| check.result == Outcome::Fail);
    if !failed.is_empty() && args.force {
        warnings.push("drift".to_owned());
    }
    if read.sidecar.dirty() {
        warnings.push("the checkout was dirty: the commit is not exactly what ran".to_owned());
    }
    Checked {
        warnings,
        failed,
        brief_mode: brief_mode.unwrap_or(Mode::CanonicalJson),
    }
}

/// The steps as shell lines, to be read (RB-RUN-01).
fn steps(sidecar: &Sidecar, place: &Place) -> Vec<String> {
    let (name, version) = sidecar.tool();
    // Whoever reads the steps may paste them into a shell.
    let tool = shell_line(&[name.to_owned(), version.to_owned()]);
    let mut steps = Vec::new();
    let commit = match place {
        Place::Commit { files, .. } => Some(files.commit()),
        Place::Nowhere { commit } => commit.as_deref(),
        Place::Directory(_) => None,
    };
    match commit {
        Some(commit) => {
            steps.push(format!("git worktree add --detach DIR {commit}"));
            steps.push("cd DIR".to_owned());
            steps.push(format!(": build {tool} here, as its documentation says"));
        }
        None => steps.push(format!(": install {tool}")),
    }
    if let Sidecar::General(general) = sidecar {
        if let Some(cwd) = general.cwd.as_deref().filter(|cwd| *cwd != ".") {
            steps.push(format!("cd {}", shell_line(&[cwd.to_owned()])));
        }
        let environment = general
            .environment
            .iter()
            .flat_map(|environment| &environment.env);
        for (name, value) in environment.flatten() {
            steps.push(format!(
                "export {}",
                shell_line(&[format!("{name}={value}")])
            ));
        }
    }
    steps.push(shell_line(sidecar.argv()));
    steps
}

fn perform(
    args: &RerunArgs,
    pair: &ReportPair,
    read: &ReadSidecar,
    recorded: General,
    tree: &WorkingTree,
    place: &Place,
    outcomes: &mut Outcomes,
) -> anyhow::Result<()> {
    let supplied = command::supplied(&recorded, &args.supply)?;
    let (worktree, root) = match place {
        Place::Commit { files, below_top } => {
            let worktree = fresh_directory(args)?;
            git::add_worktree(tree.root(), &worktree, files.commit())?;
            let root = WorkingTree::open(&worktree.join(below_top))?;
            // Outputs that were committed must not pass for outputs of this run.
            for output in recorded.outputs.iter().flatten() {
                remove(&root, &output.path)?;
            }
            (worktree.canonicalize().unwrap_or(worktree), root)
        }
        Place::Directory(directory) => {
            let root = WorkingTree::open(directory.root())?;
            (root.root().to_owned(), root)
        }
        Place::Nowhere { .. } => bail!("there is no place to run in"),
    };
    outcomes.worktree = Some(worktree);
    let (argv, substitutions) = command::localise(&supplied, tree.root(), &root);
    for Substitution { from, to, .. } in &substitutions {
        let line = format!("substituted `{to}` for `{from}`");
        warn(escaped(&line));
    }
    outcomes.substitutions = substitutions;
    let profile = recorded.profile.unwrap_or(Profile::Jcs1);
    let inputs = hash_again(&root, &recorded.inputs, profile, args.force)?;
    let invoked_at = now();
    let status = spawn(&argv, &recorded, &root, args.json)?;
    let finished_at = now();
    unchanged(&root, inputs.iter().map(|input| (input, profile)))?;
    outcomes.executed = true;
    outcomes.exit_code = status.code();
    let outputs = present(
        &root,
        recorded.outputs.as_deref().unwrap_or_default(),
        profile,
    )?;
    let here = HostEnvironment::look();
    outcomes.comparison = compare::compare(
        &recorded,
        &RerunResult {
            here: &here,
            inputs: &inputs,
            outputs: &outputs,
            exit_code: status.code(),
        },
    );
    let renewed = General {
        invoked_at,
        finished_at: Some(finished_at),
        exit_code: status.code().map(Number::from),
        platform: here.platform.clone(),
        inputs,
        outputs: (!outputs.is_empty()).then_some(outputs),
        report: None,
        trace: None,
        run_id: None,
        // Nobody told what the provider answered this time.
        models: recorded
            .models
            .map(|models| models.into_iter().map(compare::unreported).collect()),
        tool: ::sidecar::Tool {
            dirty: recorded.tool.commit.as_ref().map(|_| false),
            binary_hash: None,
            ..recorded.tool
        },
        // Nobody looked at these again: the new sidecar says only what is known of this run.
        runtime: None,
        agent: recorded.agent.map(|agent| Agent {
            config_hash: None,
            tools: None,
            policy_hash: None,
            ..agent
        }),
        environment: here.environment(recorded.environment),
        parent: Some(Parent {
            path: below_root(tree, &pair.sidecar).ok(),
            hash: sidecar_hash(&read.document),
            relation: Some("rerun".to_owned()),
        }),
        backfilled: None,
        // Both are about the earlier run.
        recording: None,
        signature: None,
        ..recorded
    };
    let target = match &args.sidecar {
        Some(path) => path.clone(),
        None => new_sidecar_path(pair, tree, &root)?,
    };
    let text = Sidecar::General(Box::new(renewed)).text()?;
    fs::create_dir_all(directory_of(&target))
        .with_context(|| format!("cannot write `{}`", target.display()))?;
    PreparedFile::new(&target, text.as_bytes())?.commit()?;
    outcomes.new_sidecar = Some(target);
    Ok(())
}

/// Hashes the inputs again; one that is gone stops the run unless it is forced.
fn hash_again(
    root: &WorkingTree,
    recorded: &[Artifact],
    profile: Profile,
    force: bool,
) -> anyhow::Result<Vec<Artifact>> {
    let mut inputs = Vec::new();
    for input in recorded {
        let path = ::sidecar::resolve(&input.path, root)
            .map(|found| found.path)
            .unwrap_or_else(|_| input.path.clone());
        match artifact(root, &input.role, &path, input.mode, profile) {
            Ok(hashed) => inputs.push(hashed),
            Err(error) if force => warn(format_args!("warning: {error:#}")),
            Err(error) => return Err(error),
        }
    }
    Ok(inputs)
}

fn present(
    root: &WorkingTree,
    recorded: &[Artifact],
    profile: Profile,
) -> anyhow::Result<Vec<Artifact>> {
    let exists = |output: &&Artifact| root.root().join(&output.path).exists();
    recorded
        .iter()
        .filter(exists)
        .map(|output| {
            let hashed = artifact(root, &output.role, &output.path, output.mode, profile)?;
            Ok(Artifact {
                stable: output.stable,
                ..hashed
            })
        })
        .collect()
}

fn spawn(
    argv: &[String],
    recorded: &General,
    root: &WorkingTree,
    json: bool,
) -> anyhow::Result<ExitStatus> {
    let (program, arguments) = argv.split_first().context("the command is empty")?;
    let cwd = recorded.cwd.as_deref().unwrap_or(".");
    let cwd = ::sidecar::normalise(cwd).context("the recorded directory is outside the root")?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root.root().join(cwd));
    let environment = recorded
        .environment
        .iter()
        .filter_map(|environment| environment.env.as_ref());
    command.envs(environment.flatten());
    if json {
        command.stdout(Stdio::from(std::io::stderr()));
    }
    command
        .status()
        .with_context(|| format!("cannot run `{program}`"))
}

fn fresh_directory(args: &RerunArgs) -> anyhow::Result<PathBuf> {
    match &args.worktree {
        Some(directory) => {
            let mut inside = directory.read_dir().into_iter().flatten();
            ensure!(
                inside.next().is_none(),
                "`{}` is not empty; --worktree names a new directory",
                directory.display()
            );
            std::path::absolute(directory).context("cannot read the current directory")
        }
        // Kept after the run: it holds the outputs.
        None => Ok(tempfile::Builder::new()
            .prefix("reprise-rerun-")
            .tempdir()
            .context("cannot make a directory for the worktree")?
            .keep()),
    }
}

fn remove(root: &WorkingTree, path: &str) -> anyhow::Result<()> {
    let path = ::sidecar::normalise(path).context("an output is outside the root")?;
    ensure!(!path.is_empty(), "an output is the root itself");
    let target = root.root().join(&path);
    // A link on the way must not lead to files that are not of this run.
    let parent = match directory_of(&target).canonicalize() {
        Ok(parent) => parent,
        Err(_) => return Ok(()),
    };
    ensure!(
        parent.starts_with(root.root()),
        "output `{path}` leads out of the worktree, where nothing is removed"
    );
    let outcome = match target.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&target),
        Ok(_) => fs::remove_file(&target),
    };
    outcome.with_context(|| format!("cannot remove `{}`", target.display()))
}

fn new_sidecar_path(
    pair: &ReportPair,
    tree: &WorkingTree,
    root: &WorkingTree,
) -> anyhow::Result<PathBuf> {
    let relative = below_root(tree, &pair.sidecar).unwrap_or_else(|_| "run.replay.json".to_owned());
    let stem = relative.strip_suffix(".replay.json").unwrap_or(&relative);
    let normal = ::sidecar::normalise(stem).context("the sidecar is outside the root")?;
    Ok(root.root().join(format!("{normal}.rerun.replay.json")))
}

fn text(outcomes: &Outcomes) -> String {
    if !outcomes.executed {
        return outcomes
            .steps
            .iter()
            .map(|step| format!("{step}\n"))
            .collect();
    }
    let mut text = String::new();
    for line in &outcomes.comparison {
        let subject = escaped(&line.subject);
        text.push_str(&format!("  {:<22}{subject}\n", line.result.phrase()));
    }
    let shown = |name: &str, path: &Option<PathBuf>| match path {
        Some(path) => format!("{name} {}\n", path.display()),
        None => String::new(),
    };
    text.push_str(&shown("worktree", &outcomes.worktree));
    text.push_str(&shown("sidecar ", &outcomes.new_sidecar));
    text
}
