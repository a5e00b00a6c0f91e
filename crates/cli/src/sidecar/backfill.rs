//! `sidecar backfill`: sidecars for reports older than replay blocks, rebuilt from git.
//!
//! Takes the commit that last touched the report and hashes token and brief as they were then. What
//! git cannot tell (models, number of samples) comes from flags; what nobody knows is `unknown`.

use std::path::PathBuf;
use std::process::ExitCode;

use ::sidecar::{
    Ahd, AhdSampling, Conditions, Files, HashedFile, Limits, Profile, SCHEMA_VERSION, Sidecar,
    canonical_hash, is_utc_time,
};
use anyhow::{Context as _, bail, ensure};
use canon::{Integers, Number};

use super::facts::ModelArgs;
use super::files::WorkingTree;
use super::git::{self, AtCommit};
use super::hashing::below_root;
use super::locate::{self, ReportPair, directory_of};
use super::write::PreparedFile;
use crate::output::{Output, warn};

pub(super) const EXAMPLES: &str = "\
Examples:
  reprise sidecar backfill --kind eval-live --token tokens/swiss.yml \\
    --brief briefs/landing.yml --n 30 \\
    --model id=cf:@cf/vendor/model,provider=cloudflare-workers-ai \\
    docs/evals/2026-04-21-swiss.md
  reprise sidecar backfill --kind critique --token tokens/swiss.yml --n 12 \\
    docs/evals/critique-*.md

Reports that already have a sidecar are skipped. The reports themselves are not changed.";

/// Arguments of `sidecar backfill`.
#[derive(Debug, clap::Args)]
pub(super) struct BackfillArgs {
    /// Reports, tracked by git.
    #[arg(required = true, value_name = "REPORT")]
    reports: Vec<PathBuf>,
    /// Kind of run.
    #[arg(long, value_parser = ["eval-live", "critique", "eval-image"])]
    kind: String,
    /// The style token.
    #[arg(long, value_name = "FILE")]
    token: PathBuf,
    /// The brief; none on critique runs.
    #[arg(long, value_name = "FILE")]
    brief: Option<PathBuf>,
    /// Time of the run [default: the time in the report's heading].
    #[arg(long, value_name = "TIME")]
    invoked_at: Option<String>,
    /// Directory that paths are relative to [default: found from the report's place].
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    known: ModelArgs,
}

/// Runs the subcommand: every report is tried, one refusal makes the exit status 2.
pub(super) fn run(args: &BackfillArgs) -> anyhow::Result<ExitCode> {
    let mut refused = false;
    let mut told = Vec::new();
    for report in &args.reports {
        let pair = ReportPair::of(report);
        let (result, message) = if pair.sidecar.symlink_metadata().is_ok() {
            let message = format!("skipped `{}`: it has a sidecar", report.display());
            ("skipped", message)
        } else {
            match backfill(args, &pair) {
                Ok(()) => {
                    let message = format!("sidecar written to `{}`", pair.sidecar.display());
                    ("written", message)
                }
                Err(error) => {
                    refused = true;
                    let message = format!("error: `{}`: {error:#}", report.display());
                    ("refused", message)
                }
            }
        };
        if !args.json {
            warn(&message);
        }
        told.push(serde_json::json!({
            "report": report, "sidecar": pair.sidecar, "result": result, "message": message,
        }));
    }
    if args.json {
        Output::stdout().json(&told)?;
    }
    Ok(ExitCode::from(if refused { 2 } else { 0 }))
}

fn backfill(args: &BackfillArgs, pair: &ReportPair) -> anyhow::Result<()> {
    let report = pair
        .report
        .canonicalize()
        .context("cannot read the report")?;
    let tree = WorkingTree::open(&locate::root(
        args.root.as_deref(),
        directory_of(&report),
        true,
    )?)?;
    let root = tree.root();
    ensure!(
        git::is_tracked(directory_of(&report), &report),
        "git does not track the report"
    );
    ensure!(
        !git::is_shallow(root),
        "the clone is shallow, so the commit of the report is not known; run `git fetch --unshallow`"
    );
    let commit = git::last_commit(directory_of(&report), &report)
        .context("no commit touches the report yet")?;
    let then = AtCommit::open(root, &commit)?;
    let text = std::fs::read_to_string(&report).context("cannot read the report")?;
    let invoked_at = match &args.invoked_at {
        Some(time) => time.clone(),
        None => heading_time(&text)
            .context("no heading of the report holds a UTC time; give --invoked-at")?,
    };
    let token = structured(&then, &below_root(&tree, &args.token)?)?;
    let brief = args
        .brief
        .as_ref()
        .map(|brief| either(&then, &below_root(&tree, brief)?))
        .transpose()?;
    let both = || vec!["raw".to_owned(), "compiled".to_owned()];
    let conditions = match args.kind.as_str() {
        "critique" => Conditions {
            requested: Vec::new(),
            effective: Vec::new(),
        },
        _ => Conditions {
            requested: both(),
            effective: both(),
        },
    };
    let block = Ahd {
        schema_version: Number::from(SCHEMA_VERSION),
        kind: args.kind.clone(),
        ahd_version: version_then(&then)?,
        ahd_commit: Some(commit),
        git_dirty: Some(false),
        node_version: "unknown".to_owned(),
        platform: "unknown".to_owned(),
        invoked_at,
        argv: Vec::new(),
        token,
        brief,
        // What was not recorded then is not known now (section 8).
        sampling: AhdSampling {
            n: args.known.samples()?,
            temperature: None,
            seed: None,
        },
        models: args.known.ahd_models()?,
        conditions,
        backfilled: Some(true),
    };
    let text = Sidecar::Ahd(Box::new(block)).text()?;
    PreparedFile::new(&pair.sidecar, text.as_bytes())?.commit()
}

fn read(files: &AtCommit, path: &str) -> anyhow::Result<(canon::Digest, Vec<u8>)> {
    let doing = || format!("`{path}` at commit {}", files.commit());
    let content = files
        .read(path, Limits::STANDARD.input_bytes_max as u64)
        .with_context(doing)?;
    let bytes = content.bytes.context("too large").with_context(doing)?;
    Ok((content.digest, bytes))
}

fn structured(files: &AtCommit, path: &str) -> anyhow::Result<HashedFile> {
    let (_, bytes) = read(files, path)?;
    let hash = canonical_hash(&bytes, Profile::AhdJs1).with_context(|| format!("`{path}`"))?;
    Ok(HashedFile {
        path: path.to_owned(),
        hash,
    })
}

/// By value where the text parses, else by its bytes (section 8).
fn either(files: &AtCommit, path: &str) -> anyhow::Result<HashedFile> {
    let (raw, bytes) = read(files, path)?;
    Ok(HashedFile {
        path: path.to_owned(),
        hash: canonical_hash(&bytes, Profile::AhdJs1).unwrap_or(raw),
    })
}

fn version_then(files: &AtCommit) -> anyhow::Result<String> {
    let (_, bytes) = read(files, "package.json")?;
    let manifest = canon::read(&bytes, Integers::Doubles).context("`package.json`")?;
    match manifest.get("version").and_then(|version| version.as_str()) {
        Some(version) => Ok(version.to_owned()),
        None => bail!("`package.json` at commit {} has no version", files.commit()),
    }
}

/// Returns the first UTC time in a heading line.
fn heading_time(report: &str) -> Option<String> {
    report
        .lines()
        .filter(|line| line.trim_start_matches('\u{feff}').starts_with('#'))
        .flat_map(|line| line.split(|char: char| !"0123456789-:.TZ".contains(char)))
        .find(|word| is_utc_time(word))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_comes_from_a_heading() {
        let time = |text| heading_time(text);
        assert_eq!(
            time("# Eval, swiss (2026-04-22T10:24:18.123Z)\n"),
            Some("2026-04-22T10:24:18.123Z".to_owned())
        );
        assert_eq!(time("at 2026-04-22T10:24:18Z\n# Eval 2026-04-22\n"), None);
    }
}
