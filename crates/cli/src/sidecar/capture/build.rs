//! From flags and hashes to a sidecar: one builder per shape.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::sidecar::{
    Ahd, Artifact, Environment, General, HashedFile, Mode, Parent, Profile, Runtime,
    SCHEMA_VERSION, Sidecar, Tool, is_secret_variable, looks_secret, read_sidecar, redact,
    sidecar_hash,
};
use anyhow::{Context as _, bail, ensure};
use canon::{Digest, Number};

use super::super::facts::{RequestIds, node_platform};
use super::super::files::{WorkingTree, read_file};
use super::super::hashing::{RoleFile, artifact, below_root, is_structured, mode_of};
use super::super::locate::package_manifest;
use super::super::signature;
use super::{CaptureArgs, FinishedRun, Input, Plan, Report, hash_outputs};

/// Facts of the AHD kinds.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "AHD kinds")]
pub(super) struct AhdArgs {
    /// The style token, a structured file.
    #[arg(long, value_name = "FILE")]
    token: Option<PathBuf>,
    /// The brief: .yml, .yaml and .json by value, other files by their bytes.
    #[arg(long, value_name = "FILE")]
    brief: Option<PathBuf>,
    /// Version of the framework [default: from package.json at the root].
    ///
    /// The variable AHD_VERSION comes between the two.
    #[arg(long, value_name = "VERSION")]
    ahd_version: Option<String>,
    /// Version of Node [default: what `node --version` prints].
    #[arg(long, value_name = "VERSION")]
    node_version: Option<String>,
}

/// Facts of every other kind.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Other kinds")]
pub(super) struct GeneralArgs {
    /// A file or directory the run reads: role=path[:raw-bytes|:canonical-json|:tree].
    #[arg(long = "input", value_name = "ROLE=PATH[:MODE]", value_parser = RoleFile::parse)]
    pub(super) inputs: Vec<RoleFile>,
    /// A file or directory the run writes.
    #[arg(long = "output", value_name = "ROLE=PATH[:MODE]", value_parser = RoleFile::parse)]
    pub(super) outputs: Vec<RoleFile>,
    /// An output that every rerun is expected to repeat.
    #[arg(long = "stable-output", value_name = "ROLE=PATH[:MODE]", value_parser = RoleFile::parse)]
    pub(super) stable_outputs: Vec<RoleFile>,
    /// Name of the tool that ran [default: the command's file name].
    #[arg(long, value_name = "NAME")]
    tool_name: Option<String>,
    /// Version of the tool [default: unknown].
    #[arg(long, value_name = "VERSION")]
    pub(super) tool_version: Option<String>,
    /// Where the tool's source is.
    #[arg(long, value_name = "URL")]
    tool_repository: Option<String>,
    /// The program that ran; its hash is recorded.
    #[arg(long, value_name = "FILE")]
    tool_binary: Option<PathBuf>,
    /// Interpreter of the run, for example node=v22.22.2.
    #[arg(long, value_name = "NAME=VERSION")]
    runtime: Option<String>,
    /// The caller's own name for the run.
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
    /// An environment variable to record with its value; repeat for more.
    #[arg(long = "env", value_name = "NAME")]
    variables: Vec<String>,
    /// Time zone of the run.
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Locale of the run.
    #[arg(long, value_name = "LOCALE")]
    locale: Option<String>,
    /// Container image, NAME@sha256:HEX.
    #[arg(long, value_name = "IMAGE")]
    container_image: Option<String>,
    /// What the run could reach.
    #[arg(long, value_parser = ["none", "restricted", "open"])]
    network: Option<String>,
    /// The sidecar that this run follows.
    #[arg(long, value_name = "SIDECAR")]
    parent: Option<PathBuf>,
    /// How it follows it.
    #[arg(long, requires = "parent", value_parser = ["rerun", "resume", "derived"])]
    relation: Option<String>,
}

/// Refuses flags that the kind has no member for, instead of dropping what they say.
pub(super) fn refuse_foreign_flags(args: &CaptureArgs, ahd: bool) -> anyhow::Result<()> {
    let general = &args.general;
    if !ahd {
        ensure!(
            args.ahd.token.is_none() && args.ahd.brief.is_none() && args.ahd.node_version.is_none(),
            "--token, --brief and --node-version belong to the AHD kinds; use --input and --runtime"
        );
        return Ok(());
    }
    let foreign = !general.inputs.is_empty()
        || !general.outputs.is_empty()
        || !general.stable_outputs.is_empty()
        || !general.variables.is_empty()
        || !args.sampling.is_empty()
        || [
            &general.tool_name,
            &general.tool_version,
            &general.tool_repository,
            &general.runtime,
            &general.run_id,
            &general.timezone,
            &general.locale,
            &general.container_image,
            &general.network,
        ]
        .iter()
        .any(|flag| flag.is_some())
        || general.tool_binary.is_some()
        || general.parent.is_some()
        || !args.agent.is_empty()
        || !args.trace.is_empty()
        || args.finished_at.is_some()
        || args.exit_code.is_some()
        || args.sign.is_some();
    ensure!(
        !foreign,
        "kind `{}` writes an AHD block, which has no member for one of the flags given",
        args.kind
    );
    Ok(())
}

/// Hashes the inputs before the run.
pub(super) fn inputs(
    args: &CaptureArgs,
    tree: &WorkingTree,
    ahd: bool,
) -> anyhow::Result<Vec<Input>> {
    let hash = |role: &str, path: &str, mode, profile| -> anyhow::Result<Input> {
        Ok(Input {
            artifact: artifact(tree, role, path, mode, profile)?,
            profile,
        })
    };
    if !ahd {
        let wanted = args.general.inputs.iter();
        return wanted
            .map(|RoleFile { role, path, mode }| {
                let path = below_root(tree, path)?;
                let mode = mode.unwrap_or_else(|| mode_of(tree, &path));
                hash(role, &path, mode, Profile::Jcs1)
            })
            .collect();
    }
    let token = args.ahd.token.as_ref().context("this kind needs --token")?;
    let token = below_root(tree, token)?;
    let mut inputs = vec![hash("token", &token, Mode::CanonicalJson, Profile::AhdJs1)?];
    if let Some(brief) = &args.ahd.brief {
        let mode = if is_structured(brief) {
            Mode::CanonicalJson
        } else {
            Mode::RawBytes
        };
        inputs.push(hash(
            "brief",
            &below_root(tree, brief)?,
            mode,
            Profile::AhdJs1,
        )?);
    }
    Ok(inputs)
}

/// What a draft is made of.
pub(super) struct Materials<'a> {
    pub(super) tree: &'a WorkingTree,
    pub(super) argv: &'a [String],
    pub(super) inputs: &'a [Input],
    pub(super) git: Option<&'a (String, bool)>,
}

/// Builds the sidecar as far as it is known before the run, so that a missing or wrong flag is told
/// before the command costs anything.
pub(super) fn draft(
    args: &CaptureArgs,
    known: &Materials<'_>,
    ahd: bool,
) -> anyhow::Result<Sidecar> {
    let sidecar = if ahd {
        Sidecar::Ahd(Box::new(ahd_draft(args, known)?))
    } else {
        Sidecar::General(Box::new(general_draft(args, known)?))
    };
    sidecar.text()?;
    Ok(sidecar)
}

/// Adds what only the run could tell.
pub(super) fn complete(
    draft: Sidecar,
    args: &CaptureArgs,
    plan: &Plan,
    ran: &FinishedRun,
    report: Option<&Report>,
) -> anyhow::Result<Sidecar> {
    match draft {
        Sidecar::Ahd(block) => {
            let recorded = args.recorded.read(false)?;
            let models = args.facts.ahd_models(RequestIds::Attached)?;
            Ok(Sidecar::Ahd(Box::new(Ahd {
                invoked_at: ran.invoked_at.clone(),
                models: recorded.join_ahd(models),
                ..*block
            })))
        }
        Sidecar::General(general) => {
            let recorded = args.recorded.read(true)?;
            let models = recorded.join(args.facts.models(RequestIds::Attached)?);
            let outputs = hash_outputs(plan, Profile::Jcs1)?;
            let agent = args.agent.agent()?;
            ensure!(
                agent == general.agent,
                "what defines the agent changed while the command ran"
            );
            ensure!(
                binary_hash(&args.general)? == general.tool.binary_hash,
                "the program given with --tool-binary changed while the command ran"
            );
            let general = General {
                invoked_at: ran.invoked_at.clone(),
                finished_at: ran.finished_at.clone().or(general.finished_at),
                exit_code: ran
                    .status
                    .and_then(|status| status.code())
                    .map(Number::from)
                    .or(general.exit_code),
                outputs: (!outputs.is_empty()).then_some(outputs),
                report: report
                    .map(|report| hashed_report(plan, report))
                    .transpose()?,
                models: (!models.is_empty()).then_some(models),
                trace: args.trace.trace(&plan.tree)?,
                recording: recorded.recording,
                ..*general
            };
            let general = match &plan.key {
                Some(key) => signature::sign(general, key)?,
                None => general,
            };
            Ok(Sidecar::General(Box::new(general)))
        }
    }
}

/// Stands for the start of a run that has not started.
const NOT_STARTED: &str = "1970-01-01T00:00:00Z";

fn ahd_draft(args: &CaptureArgs, known: &Materials<'_>) -> anyhow::Result<Ahd> {
    let file = |role: &str| {
        let input = known
            .inputs
            .iter()
            .find(|input| input.artifact.role == role)?;
        Some(HashedFile {
            path: input.artifact.path.clone(),
            hash: input.artifact.hash,
        })
    };
    let manifest = || package_manifest(&known.tree.root().join("package.json"));
    let from_environment = std::env::var("AHD_VERSION")
        .ok()
        .filter(|version| !version.is_empty());
    let ahd_version = match args.ahd.ahd_version.clone().or(from_environment) {
        Some(version) => version,
        None => manifest()
            .and_then(|manifest| manifest.get("version")?.as_str().map(str::to_owned))
            .context("no package.json with a version at the root; give --ahd-version")?,
    };
    let node_version = match &args.ahd.node_version {
        Some(version) => version.clone(),
        None => node_version().context("`node --version` does not run; give --node-version")?,
    };
    // A commit of another length counts as none (RB-CAP-02).
    let git = known.git.filter(|(commit, _)| commit.len() == 40);
    Ok(Ahd {
        schema_version: Number::from(SCHEMA_VERSION),
        kind: args.kind.clone(),
        ahd_version,
        ahd_commit: git.map(|(commit, _)| commit.clone()),
        git_dirty: git.map(|(_, dirty)| *dirty),
        node_version,
        platform: node_platform(),
        invoked_at: args
            .invoked_at
            .clone()
            .unwrap_or_else(|| NOT_STARTED.to_owned()),
        argv: known.argv.to_vec(),
        token: file("token").context("this kind needs --token")?,
        brief: file("brief"),
        sampling: args.facts.ahd_sampling()?,
        models: args.facts.ahd_models(RequestIds::Pending)?,
        conditions: args.facts.conditions(),
        backfilled: None,
    })
}

fn node_version() -> Option<String> {
    let output = std::process::Command::new("node")
        .arg("--version")
        .output()
        .ok()?;
    let version = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !version.is_empty()).then_some(version)
}

fn general_draft(args: &CaptureArgs, known: &Materials<'_>) -> anyhow::Result<General> {
    let flags = &args.general;
    let (argv, redactions) = redact(known.argv);
    let repository = flags.tool_repository.as_deref();
    ensure!(
        !repository.is_some_and(looks_secret),
        "--tool-repository holds what looks like a credential, which a sidecar must not publish"
    );
    let models = args.facts.models(RequestIds::Pending)?;
    let conditions = args.facts.conditions();
    let command_name = || {
        let program = argv.first().map(PathBuf::from).unwrap_or_default();
        let name = program.file_name().and_then(|name| name.to_str());
        name.unwrap_or("unknown").to_owned()
    };
    Ok(General {
        schema_version: Number::from(SCHEMA_VERSION),
        kind: args.kind.clone(),
        profile: Some(Profile::Jcs1),
        run_id: flags.run_id.clone(),
        tool: Tool {
            name: flags.tool_name.clone().unwrap_or_else(command_name),
            version: flags
                .tool_version
                .clone()
                .unwrap_or_else(|| "unknown".to_owned()),
            commit: known.git.map(|(commit, _)| commit.clone()),
            dirty: known.git.map(|(_, dirty)| *dirty),
            repository: flags.tool_repository.clone(),
            binary_hash: binary_hash(flags)?,
        },
        runtime: flags.runtime.as_deref().map(runtime).transpose()?,
        platform: node_platform(),
        invoked_at: args
            .invoked_at
            .clone()
            .unwrap_or_else(|| NOT_STARTED.to_owned()),
        finished_at: args.finished_at.clone(),
        exit_code: args.exit_code.map(Number::from),
        argv,
        cwd: (!args.no_run).then(|| cwd(known.tree)).flatten(),
        inputs: known
            .inputs
            .iter()
            .map(|input| input.artifact.clone())
            .collect(),
        outputs: None,
        report: None,
        sampling: args.facts.sampling(&args.sampling)?,
        models: (!models.is_empty()).then_some(models),
        conditions: (!conditions.requested.is_empty() || !conditions.effective.is_empty())
            .then_some(conditions),
        agent: args.agent.agent()?,
        trace: None,
        environment: environment(flags)?,
        redactions: (!redactions.is_empty()).then_some(redactions),
        parent: flags
            .parent
            .as_ref()
            .map(|path| parent(known.tree, flags, path))
            .transpose()?,
        backfilled: None,
        recording: None,
        signature: None,
    })
}

fn runtime(text: &str) -> anyhow::Result<Runtime> {
    let (name, version) = text
        .split_once('=')
        .context("--runtime wants NAME=VERSION")?;
    Ok(Runtime {
        name: name.to_owned(),
        version: version.to_owned(),
    })
}

/// The directory of a run that takes place here, when it lies inside the root.
fn cwd(tree: &WorkingTree) -> Option<String> {
    below_root(tree, &std::env::current_dir().ok()?).ok()
}

fn hashed_report(plan: &Plan, report: &Report) -> anyhow::Result<Artifact> {
    Ok(Artifact {
        role: "report".to_owned(),
        path: below_root(&plan.tree, &report.path)?,
        hash: canon::sha256(&report.stripped),
        mode: Mode::RawBytes,
        bytes: Some(Number::from(report.stripped.len())),
        media_type: None,
        stable: None,
    })
}

fn binary_hash(flags: &GeneralArgs) -> anyhow::Result<Option<Digest>> {
    let Some(path) = &flags.tool_binary else {
        return Ok(None);
    };
    let content =
        read_file(path, 0).with_context(|| format!("cannot hash `{}`", path.display()))?;
    Ok(Some(content.digest))
}

fn environment(flags: &GeneralArgs) -> anyhow::Result<Option<Environment>> {
    let mut env = BTreeMap::new();
    for name in &flags.variables {
        let value = std::env::var(name).with_context(|| format!("variable `{name}`"))?;
        if is_secret_variable(name) || looks_secret(&value) {
            bail!("variable `{name}` looks like a credential, which a sidecar must not publish");
        }
        env.insert(name.clone(), value);
    }
    let environment = Environment {
        env: (!env.is_empty()).then_some(env),
        timezone: flags.timezone.clone(),
        locale: flags.locale.clone(),
        container_image: flags.container_image.clone(),
        network: flags.network.clone(),
    };
    Ok((environment != Environment::default()).then_some(environment))
}

fn parent(tree: &WorkingTree, flags: &GeneralArgs, path: &Path) -> anyhow::Result<Parent> {
    let doing = || format!("cannot use the parent `{}`", path.display());
    let content = read_file(path, 64 << 20).with_context(doing)?;
    let bytes = content.bytes.context("too large").with_context(doing)?;
    let read = read_sidecar(&bytes, false).with_context(doing)?;
    Ok(Parent {
        path: below_root(tree, path).ok(),
        hash: sidecar_hash(&read.document),
        relation: flags.relation.clone(),
    })
}
